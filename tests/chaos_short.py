#!/usr/bin/env python3
"""A short chaos run (tests/chaos, docs/chaos.md) for both stores, with one seed and a few faults each; then the test of the checker.

Prints `ok NAME` or `not ok NAME` for each run and each planted defect. AETHERIS_BIN names the program.
"""
import pathlib
import re
import shutil
import subprocess
import sys

CHAOS = pathlib.Path(__file__).resolve().parent / "chaos"
SEED = "20"
PROMISE = "no request is lost, repeated or left unfinished under faults"
RUNS = {
    "sqlite": ["--jobs", "250", "--minutes", "0.35", "--only", "kill", "--only", "failpoint", "--only", "stop", "--only",
               "second_owner", "--only", "eio", "--only", "file_limit", "--only", "clock"],
    "postgres": ["--jobs", "250", "--minutes", "0.6", "--only", "kill", "--only", "failpoint", "--only", "backends", "--only",
                 "outage", "--only", "clock", "--only", "stop"],
}


def main():
    bad = 0
    for store, words in RUNS.items():
        done = subprocess.run([sys.executable, CHAOS / "run.py", "--store", store, "--seed", SEED, "--long", "--keep", *words],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        good = done.returncode == 0
        verdict = next((line for line in done.stdout.splitlines() if line.startswith(f"chaos {store}:")), "no verdict")
        print(f"{'ok' if good else 'not ok'} chaos/{store}: {PROMISE}", flush=True)
        print(f"# {verdict}" if good else done.stdout + done.stderr, flush=True)
        bad += not good
        kept = re.search(r"^kept: (.*)$", done.stdout, re.MULTILINE)
        if kept and good:
            if store == "sqlite":
                bad += subprocess.run([sys.executable, CHAOS / "check_test.py", kept[1]]).returncode
            shutil.rmtree(kept[1], ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
