#!/usr/bin/env python3
"""Runs the test programs and scripts, adds up what they say, and ends with `N passed, N failed`.

  run_tests.py --build build/dev [--filter WORDS]   GoogleTest programs, then tests/*.sh, tests/*.py
  run_tests.py --build build/dev --ci               check, model, build, all of that, sim, fuzz, examples, demo

A program of the list build/<preset>/tests.txt that crashes counts as a failure, and so does a
script that ends badly or says nothing, and a run in which nothing was tested at all. A script says
`ok NAME`, `not ok NAME` or `ok NAME # SKIP why`, each on a line of its own.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLOW = os.environ.get("AETHERIS_SLOW_TESTS") == "1"
PROGRAM_SECONDS = 3600 if SLOW else 600
SCRIPT_SECONDS = 3600 if SLOW else 1800

GTEST_LINE = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (.*) \(\d+ ms\)$")
GTEST_RUN = re.compile(r"^\[ RUN      \] (.*)$")
GTEST_END = re.compile(r"^\[==========\] \d+ tests? from \d+ test suites? ran\.")
SCRIPT_LINE = re.compile(r"^(ok|not ok)\s+(?:\d+\s+)?(?:-\s+)?(.*)$")


class Tally:
    """What passed, failed and was skipped so far; the names of what failed."""

    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []

    def add(self, other):
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures

    def line(self):
        text = f"{self.passed} passed, {len(self.failures)} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def environment(build):
    env = dict(os.environ)
    env["AETHERIS_ROOT"] = str(ROOT)
    binary = ROOT / build / "aetheris"
    if binary.exists():
        env["AETHERIS_BIN"] = str(binary)
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    env.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=1")
    return env


def run(command, env, seconds):
    """Returns (exit code, output); a command that does not end in time is stopped with its children."""
    try:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    except OSError as error:
        return 126, f"{command[0]}: {error}\n"
    try:
        output, _ = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        output += f"\nstopped after {seconds} s\n".encode()
        code = 124
    return code, output.decode(errors="replace")


def read_gtest(name, code, output):
    tally, running, ended = Tally(), None, False
    for line in output.splitlines():
        if match := GTEST_RUN.match(line):
            running = match[1]
        elif match := GTEST_LINE.match(line):
            running = None
            if match[1] == "OK":
                tally.passed += 1
            elif match[1] == "SKIPPED":
                tally.skipped += 1
            else:
                tally.failures.append(match[2].split(", where ")[0])
        elif GTEST_END.match(line):
            ended = True
    if not ended or (code != 0 and not tally.failures):
        where = f" in {running}" if running else ""
        tally.failures.append(f"{name}: ended with code {code}{where}")
    return tally


def read_script(name, code, output, silent_is_ok=False):
    tally = Tally()
    for line in output.splitlines():
        if match := SCRIPT_LINE.match(line):
            if match[1] == "not ok":
                tally.failures.append(f"{name}: {match[2]}")
            elif re.search(r"#\s*skip", match[2], re.IGNORECASE):
                tally.skipped += 1
            else:
                tally.passed += 1
    said = tally.passed + tally.skipped + len(tally.failures)
    if code != 0 and not tally.failures:
        tally.failures.append(f"{name}: ended with code {code}")
    elif not said:
        if silent_is_ok:
            tally.passed += 1
        else:
            tally.failures.append(f"{name}: said neither ok nor not ok")
    return tally


def interesting(output):
    """A failing program's output without the tests that passed; its last 400 lines."""
    kept, block = [], None
    for line in output.splitlines():
        if GTEST_RUN.match(line):
            block = [line]
        elif block is not None and (match := GTEST_LINE.match(line)):
            if match[1] == "FAILED":
                kept += block + [line]
            block = None
        elif block is not None:
            block.append(line)
        else:
            kept.append(line)
    return "\n".join((kept + (block or []))[-400:])


def report(name, tally, output, seconds):
    state = "ok " if not tally.failures else "BAD"
    print(f"{state} {name:<28} {tally.line()}  ({seconds:.1f} s)", flush=True)
    if tally.failures:
        print(interesting(output), flush=True)


def run_programs(build, words, total):
    env = environment(build)
    listing = ROOT / build / "tests.txt"
    programs = [line for line in listing.read_text().split() if line] if listing.exists() else []
    filters = []
    if words:
        # ':' and '-' mean something to --gtest_filter; the '/' after the suite is a '.' there.
        plain = re.sub(r"[:\-/]", "?", words)
        filters = [f"--gtest_filter=*{plain}*"]

    def one(program):
        begin = time.monotonic()
        path = ROOT / build / program
        command = [str(path), "--gtest_color=no", *filters]
        code, output = run(command, env, PROGRAM_SECONDS)
        return path.name, code, output, time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, code, output, seconds in pool.map(one, programs):
            tally = read_gtest(name, code, output)
            if words and not tally.failures and not tally.passed + tally.skipped:
                continue
            report(name, tally, output, seconds)
            total.add(tally)


def run_script(command, build, total, name, silent_is_ok=False):
    run_side_by_side([(name, command)], build, total, 1, silent_is_ok)


def run_side_by_side(scripts, build, total, width, silent_is_ok=False):
    """Runs (name, command) pairs, so many at once, and reports them in their order."""
    def one(script):
        begin = time.monotonic()
        code, output = run(script[1], environment(build), SCRIPT_SECONDS)
        return script[0], code, output, time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        for name, code, output, seconds in pool.map(one, scripts):
            tally = read_script(name, code, output, silent_is_ok)
            report(name, tally, output, seconds)
            total.add(tally)


def run_scripts(build, words, total):
    """They wait more than they compute: as many at once as there are cores."""
    folder = ROOT / "tests"
    scripts = []
    for path in sorted([*folder.glob("*.sh"), *folder.glob("*.py")]):
        name = str(path.relative_to(ROOT))
        if words and words not in name:
            continue
        if os.access(path, os.X_OK):
            scripts.append((name, [str(path)]))
        else:
            total.failures.append(f"{name}: nobody may execute it, so it was not run")
    run_side_by_side(scripts, build, total, os.cpu_count() or 1)


def build_preset(build, total):
    """Builds with ./dev; a build that fails is one failure, and what was built before is not run."""
    name = f"build {pathlib.Path(build).name}"
    code = subprocess.call([str(ROOT / "dev"), "build-preset", pathlib.Path(build).name], cwd=ROOT,
                           stdout=sys.stdout, stderr=subprocess.STDOUT)
    if code == 0:
        total.passed += 1
    else:
        total.failures.append(f"{name}: ended with code {code}")
    return code == 0


def run_simulation(total):
    """The simulated world at length; the commit is the seed, so that every commit sees other storms, and another
    quarter of the sweep."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip() or "1"
    seeds = "20000" if SLOW else "4000"
    for name, arguments, wanted in (("seeds", ["--seeds", seeds, "--from", commit], 0),
                                    ("sweep", ["--sweep", *([] if SLOW else ["--quarter", commit])], 0),
                                    ("canary", ["--canary"], 73)):
        begin = time.monotonic()
        code, output = run([str(ROOT / "dev"), "sim", *arguments], environment("build/release"),
                           SCRIPT_SECONDS)
        tally = Tally()
        if code == wanted:
            tally.passed += 1
        else:
            tally.failures.append(f"sim {name}: ended with code {code}, not {wanted}")
        report(f"sim {name}", tally, output, time.monotonic() - begin)
        total.add(tally)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--filter", default="")
    parser.add_argument("--ci", action="store_true")
    options = parser.parse_args()
    total = Tally()
    if options.ci:
        run_script([str(ROOT / "scripts/check")], options.build, total, "check")
        run_script([str(ROOT / "scripts/model")], options.build, total, "model")
    if not options.ci or build_preset(options.build, total):
        tested = Tally()
        run_programs(options.build, options.filter, tested)
        run_scripts(options.build, options.filter, tested)
        if not tested.passed + len(tested.failures) + (tested.skipped if options.filter else 0):
            tested.failures.append("no test was run")
        total.add(tested)
    if options.ci:
        run_simulation(total)
        if SLOW:
            run_script([str(ROOT / "dev"), "sim", "--mutants"], "build/mutants", total, "mutants")
        run_script([str(ROOT / "dev"), "fuzz", "--seconds", "600" if SLOW else "60"], "build/fuzz", total, "fuzz")
        for extra in (["scripts/examples"], ["scripts/demo"], ["scripts/demo", "--postgres"], ["scripts/demo", "--agent"]):
            if os.access(ROOT / extra[0], os.X_OK):
                run_script([str(ROOT / extra[0]), *extra[1:]], "build/release", total, " ".join(extra), silent_is_ok=True)
    if total.failures:
        print("\nfailed:")
        for failure in total.failures:
            print(f"  {failure}")
    if options.ci and total.skipped:  # a machine reads the last line: always the same two numbers
        print(f"{total.skipped} skipped")
        total.skipped = 0
    print(total.line(), flush=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
