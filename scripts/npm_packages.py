#!/usr/bin/env python3
"""Builds the npm packages from this folder's sources and program, into build/packages/.

  npm_packages.py        prints the paths of the two files

  aetheris-VERSION.tgz             the TypeScript SDK: ES modules, CommonJS, types; the commands aetheris and aetheris-worker
  aetheris-linux-x64-VERSION.tgz   the stripped release program (AETHERIS_BIN, else build/release/aetheris)

The first names the second as an optional dependency. Nothing is published. The packages that the build needs are
installed below build/ from the lock file of sdk/typescript.
"""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parent.parent)
SDK = ROOT / "sdk/typescript"
SOURCES = ("src", "test", "tsconfig.json", "tsconfig.build.json", "tsconfig.cjs.json", "README.md")


@contextlib.contextmanager
def locked(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(*words, cwd, env=None):
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def installed(source, target):
    """A folder below build/TARGET with the packages of the lock file of `source`. Installs them if they are missing."""
    names = ["package.json", "package-lock.json", ".npmrc"]
    stamp = hashlib.sha256(b"".join((source / name).read_bytes() for name in names)).hexdigest()[:16]
    folder = ROOT / "build" / target / stamp
    with locked(folder.parent):
        if not (folder / "complete").exists():
            if not shutil.which("npm"):
                raise SystemExit("there is no npm here; ./dev setup installs it")
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                shutil.copy(source / name, folder / name)
            run("npm", "ci", "--ignore-scripts", cwd=folder)
            (folder / "complete").touch()
    return folder


def sdk():
    """A copy of the SDK with its node_modules. It is only written if a source has changed, because others may use it."""
    folder = installed(SDK, "sdk_typescript")
    paths = [path for name in SOURCES for path in (sorted((SDK / name).rglob("*")) if (SDK / name).is_dir() else [SDK / name])]
    parts = [f"{path.relative_to(SDK)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths
             if path.is_file() and "node_modules" not in path.parts]
    sources, known = "\n".join(parts), folder / "sources"
    with locked(folder.parent):
        if known.exists() and known.read_text() == sources:
            return folder
        for name in SOURCES:
            target = folder / name
            shutil.rmtree(target, ignore_errors=True)
            if (SDK / name).is_dir():
                shutil.copytree(SDK / name, target, ignore=shutil.ignore_patterns("node_modules"))
            else:
                shutil.copy(SDK / name, target)
        shutil.rmtree(folder / "dist", ignore_errors=True)  # made of other sources; its programs would be used
        known.write_text(sources)
    return folder


def built_sdk():
    """The same, with dist/ as the package has it."""
    folder = sdk()
    with locked(folder.parent):
        sources, known = (folder / "sources").read_text(), folder / "dist/sources"
        if not known.exists() or known.read_text() != sources:
            run("npm", "run", "build", cwd=folder, env=environment(folder))
            for path in (folder / "dist").rglob("*.d.ts"):  # tsc leaves the names of sources in declarations
                path.write_text(re.sub(r'(from|import\()( ?)"(\.[^"]+)\.ts"', r'\1\2"\3.js"', path.read_text()))
            known.write_text(sources)
    return folder


def environment(folder):
    """With the Node of these packages first in PATH."""
    return {**os.environ, "PATH": f"{folder}/node_modules/.bin:{os.environ['PATH']}", "NO_COLOR": "1"}


def pack(manifest, folder, target, env):
    (folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
    shutil.copy(ROOT / "LICENSE", folder)
    name = json.loads(run("npm", "pack", "--json", "--pack-destination", target, cwd=folder, env=env))[0]["filename"]
    return target / name


def pack_sdk(work, target, version, program_package):
    folder, made = built_sdk(), work / "sdk"
    env = environment(folder)
    shutil.copytree(folder / "dist", made / "dist", ignore=shutil.ignore_patterns("sources"))
    for name in ("README.md", "API.md"):
        shutil.copy(SDK / name, made)
    manifest = json.loads((SDK / "package.json").read_text())
    assert manifest["version"] == version, f"package.json has version {manifest['version']}, the program {version}"
    for name in ("scripts", "devDependencies"):
        del manifest[name]
    manifest["optionalDependencies"] = {program_package: version}
    return pack(manifest, made, target, env)


README = """# {name}

The program of [aetheris](https://www.npmjs.com/package/aetheris) for Linux on x86-64. Install the package `aetheris`, which
needs this one.

It is built on Debian 12, and needs these libraries of the system:

    {libraries}

On Debian 12: `apt-get install {packages}`.
"""


def libraries(program):
    """The libraries that the program needs, and the Debian packages that have them."""
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", program, cwd=ROOT))
    found = run("dpkg-query", "-S", *(f"*/{name}" for name in names), cwd=ROOT)
    return names, sorted(set(re.findall(r"^([^\s:,]+):amd64: /(?:usr/)?lib/x86_64-linux-gnu/[^/]*$", found, re.M)))


def pack_program(work, target, version, name):
    program = pathlib.Path(os.environ.get("AETHERIS_BIN") or ROOT / "build/release/aetheris").resolve()
    made = work / "program"
    made.mkdir(parents=True)
    shutil.copy(program, made / "aetheris")
    run("strip", "aetheris", cwd=made)
    (made / "aetheris").chmod(0o755)
    names, packages = libraries(program)
    (made / "README.md").write_text(README.format(name=name, libraries=" ".join(names), packages=" ".join(packages)))
    manifest = {"name": name, "version": version, "description": "The program of aetheris for Linux on x86-64.",
                "license": "Apache-2.0", "os": ["linux"], "cpu": ["x64"], "libc": ["glibc"],
                "files": ["aetheris", "README.md"], "preferUnplugged": True}
    return pack(manifest, made, target, environment(sdk()))


def build():
    """The paths of the two packages."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise SystemExit("npm_packages: the package of the program is built on Linux, x86-64")
    target = ROOT / "build/packages"
    with locked(target):
        program = os.environ.get("AETHERIS_BIN") or ROOT / "build/release/aetheris"
        version = json.loads(run(program, "version", "--json", cwd=ROOT))["version"]
        work = target / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        name = "aetheris-linux-x64"
        made = [pack_sdk(work, target, version, name), pack_program(work, target, version, name)]
        shutil.rmtree(work)
    return made


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1] in ("-h", "--help") else 2)
    print(*build(), sep="\n")
