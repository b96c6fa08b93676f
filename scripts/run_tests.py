#!/usr/bin/env python3
"""Runs the test programs and scripts, adds up their results, and ends with `N passed, N failed`.

  run_tests.py --build build/dev [--filter WORDS]   GoogleTest programs, then tests/*.sh, tests/*.py

scripts/ci.py runs the same and more, as a graph of stages.
A program of the list build/<preset>/tests.txt that crashes counts as a failure, and so does a
script that fails or prints nothing, and a run without any test. A script prints
`ok NAME`, `not ok NAME` or `ok NAME # SKIP why`, each on a line of its own.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types

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
    env["AETHERIS_BIN"] = str(ROOT / build / "aetheris")
    # The programs of the packages: a version manager's wrapper of python3 starts a shell each time.
    env["PATH"] = f"/usr/bin:{env['PATH']}"
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    # Eight frames of each allocation: storing thirty costs a tenth of the time of the simulated world.
    env.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=1:malloc_context_size=8")
    if symbolizer := shutil.which("llvm-symbolizer-19"):
        env.setdefault("ASAN_SYMBOLIZER_PATH", symbolizer)  # so that clang's reports have names and lines
    return env


RUNNING = set()  # the process groups of the commands that run now


def run(command, env, seconds):
    """Runs a command; a command that does not end in time is stopped with its children.

    Returns code, output, wall (seconds) and cpu (seconds of it and of the children that it waited for).
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as file:
        try:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return types.SimpleNamespace(code=126, output=f"{command[0]}: {error}\n", wall=0.0, cpu=0.0)
        RUNNING.add(process.pid)
        late = threading.Event()

        def stop():
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, stop)
        timer.start()
        # WNOWAIT: the process stays a zombie until the timer is off, so its number cannot belong to another process.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        timer.cancel()
        timer.join()
        os.killpg(process.pid, signal.SIGKILL)  # nothing that it started in its group outlives it
        RUNNING.discard(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        output = file.read().decode(errors="replace")
    if late.is_set():
        code, output = 124, output + f"\nstopped after {seconds} s\n"
    return types.SimpleNamespace(code=code, output=output, wall=time.monotonic() - begin,
                                 cpu=used.ru_utime + used.ru_stime)


def stop_all():
    for group in list(RUNNING):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


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
    results = tally.passed + tally.skipped + len(tally.failures)
    if code != 0 and not tally.failures:
        tally.failures.append(f"{name}: ended with code {code}")
    elif not results:
        if silent_is_ok:
            tally.passed += 1
        else:
            tally.failures.append(f"{name}: printed neither ok nor not ok")
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


def report(name, tally, done, repeat=""):
    """One line for what passed; for a failure also its output and the command that repeats it."""
    state = "ok " if not tally.failures else "BAD"
    text = f"{state} {name:<28} {tally.line()}  ({done.wall:.1f} s, {done.cpu:.1f} s of CPU)"
    if tally.failures:
        text += f"\n{interesting(done.output)}" + (f"\nrepeat: {repeat}" if repeat else "")
    print(text, flush=True)


def test_programs(build):
    """The GoogleTest programs that a build made."""
    listing = ROOT / build / "tests.txt"
    return listing.read_text().split() if listing.exists() else []


def test_scripts():
    """The executable scripts tests/*.sh and tests/*.py, and those that cannot be executed."""
    paths = sorted([*(ROOT / "tests").glob("*.sh"), *(ROOT / "tests").glob("*.py")])
    names = [str(path.relative_to(ROOT)) for path in paths]
    return ([name for name in names if os.access(ROOT / name, os.X_OK)],
            [name for name in names if not os.access(ROOT / name, os.X_OK)])


def repeat_program(build, program, tally):
    words = tally.failures[0].split(".", 1)[-1] if tally.failures and ": ended" not in tally.failures[0] else ""
    chosen = f" --gtest_filter={shlex.quote('*' + re.sub(r'[:/-]', '?', words) + '*')}" if words else ""
    return f"AETHERIS_ROOT=$PWD AETHERIS_BIN=$PWD/{build}/aetheris {build}/{program}{chosen}"


def repeat_script(build, name):
    return f"AETHERIS_ROOT=$PWD AETHERIS_BIN=$PWD/{build}/aetheris {name}"


def run_programs(build, words, total):
    env = environment(build)
    filters = []
    if words:
        # ':' and '-' mean something to --gtest_filter; the '/' after the suite is a '.' there.
        plain = re.sub(r"[:\-/]", "?", words)
        filters = [f"--gtest_filter=*{plain}*"]

    def one(program):
        return program, run([str(ROOT / build / program), "--gtest_color=no", *filters], env, PROGRAM_SECONDS)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for program, done in pool.map(one, test_programs(build)):
            name = pathlib.Path(program).name
            tally = read_gtest(name, done.code, done.output)
            if words and not tally.failures and not tally.passed + tally.skipped:
                continue
            report(name, tally, done, repeat_program(build, program, tally))
            total.add(tally)


def run_scripts(build, words, total):
    """They wait more than they compute: as many at once as there are cores, and reported in their order."""
    names, barred = test_scripts()
    total.failures += [f"{name}: it is not executable, so it was not run" for name in barred if words in name]

    def one(name):
        return name, run([str(ROOT / name)], environment(build), SCRIPT_SECONDS)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, done in pool.map(one, [name for name in names if words in name]):
            tally = read_script(name, done.code, done.output)
            report(name, tally, done, repeat_script(build, name))
            total.add(tally)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    total = Tally()
    run_programs(options.build, options.filter, total)
    run_scripts(options.build, options.filter, total)
    if not total.passed + len(total.failures) + (total.skipped if options.filter else 0):
        total.failures.append("no test was run")
    if total.failures:
        print("\nfailed:")
        for failure in total.failures:
            print(f"  {failure}")
    print(total.line(), flush=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
