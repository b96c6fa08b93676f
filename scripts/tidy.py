#!/usr/bin/env python3
"""Runs clang-tidy over the changed sources of a build and all that include them, and remembers what was clean.

  tidy.py                 what changed since the base: AETHERIS_BASE of the environment; else the common ancestor with
                          origin/main; on main itself the state of main six hours before its last commit
  tidy.py --base=COMMIT   what changed since then
  tidy.py --all           every file

A file is checked again when it, a header of ours that it includes (also indirectly), its compile command or .clang-tidy
changed. A change of .clang-tidy, or a history without a base (a shallow clone), means every file. Files that include
Asio, Beast or CLI11 are left out: they take half a minute each and are few by design.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAVY = re.compile(r"^(boost/(asio|beast|url|json/src)\b|CLI/)")
BASE_SECONDS = 6 * 3600  # on main itself: as much of its history is checked again
TOGETHER = 8  # files that are read as one; with --all each is read alone, which finds a missing #include
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def closure(path, seen):
    """Texts of a file and of our headers under it; collects the outside headers they name."""
    outside = set()
    pending = [path]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen[current] = current.read_text(errors="replace")
        for kind, name in INCLUDE.findall(seen[current]):
            ours = [folder / name for folder in (ROOT / "src", current.parent) if (folder / name).is_file()]
            if kind == '"' and ours:
                pending.append(ours[0])
            else:
                outside.add(name)
    return outside


def flags_of(entry):
    """The compile command without compiler, source and output."""
    words = shlex.split(entry["command"])[1:]
    at = words.index("-o")
    return [word for word in words[:at] + words[at + 2 :] if word != "-c" and not word.endswith(entry["file"])]


def key_of(texts, command, rules):
    digest = hashlib.sha256()
    for path in sorted(texts):
        digest.update(f"{path.relative_to(ROOT)}\0{texts[path]}\0".encode())
    digest.update(f"{command}\0{rules}".encode())
    return digest.hexdigest()


def git(*words):
    """The output of git, or nothing when it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def find_base():
    """The commit since which files count as changed; "" when there is none."""
    if named := os.environ.get("AETHERIS_BASE"):
        return git("rev-parse", "--verify", f"{named}^{{commit}}")
    head = git("rev-parse", "HEAD")
    if (common := git("merge-base", "HEAD", "origin/main")) and common != head:
        return common
    if not (when := git("log", "-1", "--format=%ct")):
        return ""
    return git("rev-list", "--first-parent", "-1", f"--before={int(when) - BASE_SECONDS}", "HEAD")


def changed_since(base):
    """The files that differ from the base, new ones included; None = take every file."""
    if not base:
        return None
    names = git("diff", "--name-only", base).splitlines() + git("ls-files", "-o", "--exclude-standard").splitlines()
    return None if ".clang-tidy" in names else {ROOT / name for name in names}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/tidy", help="a build that compiles each file on its own")
    parser.add_argument("--cache", default="build/tidy-cache")
    parser.add_argument("--base", help="check what changed since this commit, and what includes it")
    parser.add_argument("--all", action="store_true", help="check every file")
    options = parser.parse_args()
    if options.base and not (base := git("rev-parse", "--verify", f"{options.base}^{{commit}}")):
        parser.error(f"{options.base} is not a commit here")
    elif not options.base:
        base = "" if options.all else find_base()
    changed = changed_since(base)
    tidy = shutil.which("clang-tidy-19")
    if not tidy:
        print("clang-tidy-19 is not here: ./dev setup")
        return 1
    cache = ROOT / options.cache
    cache.mkdir(parents=True, exist_ok=True)
    rules = (ROOT / ".clang-tidy").read_text()
    listing = ROOT / options.build / "compile_commands.json"
    commands = json.loads(listing.read_text()) if listing.exists() else []
    if not any(ROOT / "src" in pathlib.Path(entry["directory"], entry["file"]).parents for entry in commands):
        print(f"{listing} names no file of src: cmake --preset release -B {options.build} -DAE_UNITY=0")
        return 1

    groups, heavy, known, same = {}, 0, 0, 0
    for entry in commands:
        path = pathlib.Path(entry["directory"], entry["file"])
        if not path.is_file() or not {ROOT / "src", ROOT / "bench"} & set(path.parents):
            continue
        texts = {}
        if any(HEAVY.match(name) for name in closure(path, texts)):
            heavy += 1
            continue
        if changed is not None and not changed & texts.keys():
            same += 1
            continue
        mark = cache / key_of(texts, entry["command"], rules)
        if mark.exists():
            mark.touch()
            known += 1
        else:
            groups.setdefault((path.parent, tuple(flags_of(entry))), []).append((path, mark))
    # Most of the time goes into the headers, so files of one module are read together.
    together = 1 if options.all else TOGETHER
    work = [(flags, files[at : at + together]) for (_, flags), files in groups.items()
            for at in range(0, len(files), together)]

    def report_of(path, *more):
        command = [tidy, "--quiet", "--extra-arg=-Wno-everything", "--extra-arg=-Wno-error", str(path), *more]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        text = result.stdout + (result.stderr if not result.stdout.strip() else "")
        return "" if result.returncode == 0 else (
            text.replace(f"{ROOT}/", "") or f"{shlex.join(command)}: {result.returncode}")

    def report_together(item):
        """The reports about these files: of each on its own when they cannot be read together, or one has findings."""
        flags, files = item
        reports = []
        with tempfile.NamedTemporaryFile("w", suffix=".cc", dir=cache) as all_of_them:
            all_of_them.writelines(f'#include "{path}"\n' for path, _ in files)
            all_of_them.flush()
            good = len(files) > 1 and not report_of(all_of_them.name, f"--config-file={ROOT / '.clang-tidy'}", "--", *flags)
        for path, mark in files:
            if report := "" if good else report_of(path, "-p", str(ROOT / options.build)):
                reports.append(report)
            else:
                mark.touch()
        return reports

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        bad = [text for reports in pool.map(report_together, work) for text in reports]
    for text in bad:
        print(text)
    checked = sum(len(files) for _, files in work)
    since = f"unchanged since {base[:10]}" if changed is not None else "unchanged"
    print(f"{checked} checked, {known} known to be clean, {same} {since}, {heavy} left out, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
