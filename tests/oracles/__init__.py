"""Official clients and servers for comparison: installed once, from tests/oracles, below build/.

Not a test: tests import it. `modules()` returns the folder with the packages, `node()` the Node that runs them.
"""
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parents[2])
PINNED = pathlib.Path(__file__).resolve().parent
FILES = ["package.json", "package-lock.json", ".npmrc"]


def modules():
    """The folder with node_modules as in package-lock.json. Installs it if it is missing."""
    stamp = hashlib.sha256(b"".join((PINNED / name).read_bytes() for name in FILES)).hexdigest()[:16]
    folder = ROOT / "build/oracles" / stamp
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            if not shutil.which("npm"):
                raise SystemExit("there is no npm here; ./dev setup installs it")
            for name in FILES:
                shutil.copy(PINNED / name, folder / name)
            done = subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=folder, capture_output=True, text=True, timeout=600,
                                  stdin=subprocess.DEVNULL)
            if done.returncode:
                raise SystemExit(f"npm ci ended with code {done.returncode}\n{done.stdout}{done.stderr}")
            (folder / "complete").touch()
    return folder


def node():
    return modules() / "node_modules/.bin/node"
