#!/usr/bin/env python3
"""Runs clang-tidy over the sources of a build, in parallel, and remembers what was clean.

A file is looked at again when it, a header of ours that it includes (also indirectly), its compile
command or .clang-tidy changed. Files that include Asio, Beast or CLI11 are left out: they take
half a minute each and are few by design.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAVY = re.compile(r"^(boost/(asio|beast|url|json/src)\b|CLI/)")
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
            ours = ROOT / "src" / name
            if kind == '"' and ours.is_file():
                pending.append(ours)
            else:
                outside.add(name)
    return outside


def key_of(texts, command, rules):
    digest = hashlib.sha256()
    for path in sorted(texts):
        digest.update(f"{path.relative_to(ROOT)}\0{texts[path]}\0".encode())
    digest.update(f"{command}\0{rules}".encode())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--cache", default="build/tidy-cache")
    options = parser.parse_args()
    tidy = shutil.which("clang-tidy-19")
    if not tidy:
        print("clang-tidy-19 is not here: ./dev setup")
        return 1
    cache = ROOT / options.cache
    cache.mkdir(parents=True, exist_ok=True)
    rules = (ROOT / ".clang-tidy").read_text()
    listing = ROOT / options.build / "compile_commands.json"
    commands = json.loads(listing.read_text()) if listing.exists() else []

    work, heavy, known = [], 0, 0
    for entry in commands:
        path = pathlib.Path(entry["directory"], entry["file"])
        if not path.is_file() or ROOT / "src" not in path.parents:
            continue
        texts = {}
        if any(HEAVY.match(name) for name in closure(path, texts)):
            heavy += 1
            continue
        mark = cache / key_of(texts, entry["command"], rules)
        if mark.exists():
            mark.touch()
            known += 1
        else:
            work.append((path, mark))

    def look(item):
        path, mark = item
        command = [tidy, "--quiet", "-p", str(ROOT / options.build), "--extra-arg=-Wno-everything",
                   "--extra-arg=-Wno-error", str(path)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            mark.touch()
            return ""
        text = result.stdout + (result.stderr if not result.stdout.strip() else "")
        return text.replace(f"{ROOT}/", "") or f"{shlex.join(command)}: {result.returncode}"

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        bad = [text for text in pool.map(look, work) if text]
    for text in bad:
        print(text)
    print(f"{len(work)} looked at, {known} known to be clean, {heavy} left out, {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
