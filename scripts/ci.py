#!/usr/bin/env python3
"""What each push is tested with, as a graph of stages; and the parts of the long run (docs/testing.md).

  ci.py                      what each push runs
  ci.py --full [PART…]       the parts of the long run, one after the other; --list shows them
  ci.py --stage NAME…        these stages of the push and what they need

A stage starts when the stages that it needs have passed and its pool has room: `cpu` has a slot for each core,
`waiting`, for what waits more than it computes, two for each. The stages' order is their priority. Each test line is
printed when its command ends, with the output and the command that repeats it when it failed. A stage whose needs
failed counts as failed. A stage that takes 1.5 times its budget is reported first in the summary; that is
not a failure, because other work of the machine can cause it. The last line is `N passed, N failed`.
"""
import argparse
import dataclasses
import os
import pathlib
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Callable

import run_tests
from run_tests import ROOT, Tally, environment, read_gtest, read_script

CORES = os.cpu_count() or 2
ROOM = {"cpu": CORES, "waiting": 2 * CORES}
ALL = 0  # slots: the whole pool
RELEASE, DEV = "build/release", "build/dev"

# Scripts that run long, the longest first: none of them may be the last one to start.
LONG_SCRIPTS = ["tests/chaos_short.py", "tests/conformance.py", "tests/crash_sweep.py", "tests/serve_process.py",
                "tests/serve_watch.py", "tests/mcp.py", "tests/postgres_store.py", "tests/postgres_processes.py",
                "tests/loops.py", "tests/approvals.py", "tests/agents_shown.py", "tests/sdk_conformance.py", "tests/code_examples.py", "tests/code_postgres.py"]
# Bytes and texts of enemies: always under sanitizers.
HOSTILE_SCRIPTS = ["tests/hostile.py", "tests/injection.py"]


def commit():
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "1"


@dataclasses.dataclass
class Task:
    """One command. `read` makes a Tally of its code and output; `repeat` is the command that repeats it."""
    name: str
    command: list
    build: str = RELEASE
    read: Callable = None
    repeat: Callable = None
    seconds: int = 1800
    env: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Stage:
    """`tasks` is called when the stage starts: what there is to run can depend on what was built."""
    name: str
    minutes: float  # its budget on two cores that do nothing else, from its first command to its last
    tasks: Callable
    needs: tuple = ()
    pool: str = "cpu"
    slots: int = 1  # of each task
    # What the run finds out:
    waiting: list = None  # tasks that have not started; None = the stage has not
    running: int = 0
    began: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0
    result: str = ""
    tally: Tally = dataclasses.field(default_factory=Tally)

    def over_budget(self):
        return self.wall > 1.5 * 60 * self.minutes


# ---------------------------------------------------------------- the scheduler

class Run:
    def __init__(self, stages):
        self.stages = stages
        self.free = dict(ROOM)
        self.ended = queue.Queue()

    def slots(self, stage):
        return min(stage.slots or ROOM[stage.pool], ROOM[stage.pool])

    def find(self, name):
        return next(stage for stage in self.stages if stage.name == name)

    def run(self):
        while True:
            self.open()
            self.start()
            if not any(stage.running for stage in self.stages):
                break
            self.end(*self.ended.get())
        stuck = [stage.name for stage in self.stages if not stage.result]
        assert not stuck, f"stages that wait for each other: {stuck}"

    def open(self):
        """Stages whose needs are decided become startable, or fail. The list is in order: needs come first."""
        for stage in self.stages:
            if stage.result or stage.waiting is not None:
                continue
            needs = [self.find(name) for name in stage.needs]
            if failed := [need.name for need in needs if need.result and need.result != "passed"]:
                stage.result = f"not run: {', '.join(failed)} failed"
                stage.tally.failures.append(f"{stage.name}: {stage.result}")
                print(f"BAD {stage.name}: {stage.result}", flush=True)
            elif all(need.result for need in needs):
                try:
                    stage.waiting = stage.tasks()
                    problem = "" if stage.waiting else "there was nothing to run"
                except Exception as error:  # an error here fails this stage only
                    problem = f"its tasks cannot be listed: {error!r}"
                if problem:
                    stage.tally.failures.append(f"{stage.name}: {problem}")
                    self.close(stage)

    def start(self):
        """In the order of the stages; a task that needs more slots than are free keeps later ones of its pool back."""
        full = set()
        for stage in self.stages:
            while stage.waiting and stage.pool not in full:
                if self.slots(stage) > self.free[stage.pool]:
                    full.add(stage.pool)
                    break
                self.free[stage.pool] -= self.slots(stage)
                task = stage.waiting.pop(0)
                stage.began = stage.began or time.monotonic()
                stage.running += 1
                threading.Thread(target=self.perform, args=(stage, task), daemon=True).start()

    def perform(self, stage, task):
        try:
            done = run_tests.run(task.command, {**environment(task.build), **task.env}, task.seconds)
            tally = task.read(task.name, done.code, done.output)
        except Exception as error:  # a reader's fault must not leave the run waiting
            done = run_tests.types.SimpleNamespace(code=1, output=repr(error), wall=0.0, cpu=0.0)
            tally = Tally()
            tally.failures.append(f"{task.name}: {error!r}")
        self.ended.put((stage, task, done, tally))

    def end(self, stage, task, done, tally):
        self.free[stage.pool] += self.slots(stage)
        stage.running -= 1
        stage.cpu += done.cpu
        stage.tally.add(tally)
        run_tests.report(task.name, tally, done, task.repeat(tally))
        if not stage.waiting and not stage.running:
            self.close(stage)

    def close(self, stage):
        stage.wall = time.monotonic() - stage.began if stage.began else 0.0
        stage.result = "FAILED" if stage.tally.failures else "passed"
        print(f"--- {stage.name}: {stage.result}, {clock(stage.wall)} of {clock(60 * stage.minutes)}, "
              f"{stage.cpu:.0f} s of CPU", flush=True)


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def summary(stages, began, title):
    """Budgets first, then what failed, then a line for each stage."""
    print(f"\n==== {title}")
    for stage in stages:
        if stage.over_budget():
            print(f"over budget: {stage.name} took {clock(stage.wall)}, its budget is {clock(60 * stage.minutes)}")
    failures = [failure for stage in stages for failure in stage.tally.failures]
    if failures:
        print("failed:", *failures, sep="\n  ")
    print(f"{'stage':<26} {'wall':>6} {'CPU':>6} {'budget':>7}  result")
    for stage in stages:
        print(f"{stage.name:<26} {clock(stage.wall):>6} {clock(stage.cpu):>6} {clock(60 * stage.minutes):>7}  "
              f"{stage.result}; {stage.tally.line()}")
    wall, cpu = time.monotonic() - began, sum(stage.cpu for stage in stages)
    print(f"{'all':<26} {clock(wall):>6} {clock(cpu):>6}          {cpu / CORES / 60:.1f} min if {CORES} cores were always busy",
          flush=True)


# ---------------------------------------------------------------- what a task's output means

def by_code(wanted=0):
    def read(name, code, _):
        tally = Tally()
        if code == wanted:
            tally.passed += 1
        else:
            tally.failures.append(f"{name}: ended with code {code}" + (f", not {wanted}" if wanted else ""))
        return tally
    return read


def silent_script(name, code, output):
    return read_script(name, code, output, silent_is_ok=True)


def typed(text):
    return lambda _: text


def nice(*words):
    """Compilers have a lower priority than tests, because some tests measure time."""
    return ["nice", "-n", "10", *words]


def one(name, words, read=read_script, **more):
    words = list(map(str, words))
    return lambda: [Task(name, nice(*words), read=read, repeat=typed(" ".join(words)), **more)]


# ---------------------------------------------------------------- the stages

def builds(preset, *words):
    return one(f"build {preset} {' '.join(words[1:])}".strip(), ["./dev", "build-preset", preset, *words],
               by_code(), build=f"build/{preset}", seconds=3600)


def programs(build, slow=False):
    def tasks():
        return [Task(pathlib.Path(program).name, [str(ROOT / build / program), "--gtest_color=no"], build, read_gtest,
                     lambda tally, program=program: run_tests.repeat_program(build, program, tally),
                     3600 if slow else 600, slow_env(slow))
                for program in run_tests.test_programs(build)]
    return tasks


def slow_env(slow):
    return {"AETHERIS_SLOW_TESTS": "1"} if slow else {}


def scripts(build, choose, slow=False):
    """The chosen ones of tests/*.sh and tests/*.py against the program of a build."""
    def tasks():
        names, barred = run_tests.test_scripts()
        chosen = sorted(choose(names + barred), key=lambda name: LONG_SCRIPTS.index(name) if name in LONG_SCRIPTS else 99)
        return [Task(name, [str(ROOT / name)], build, read_script, typed(run_tests.repeat_script(build, name)),
                     3600 if slow else 1800, slow_env(slow)) for name in chosen]
    return tasks


def on_release(names):
    return [name for name in names if name not in HOSTILE_SCRIPTS]


def on_sanitizers(names):
    """The hostile ones, and three others that follow from the commit."""
    return HOSTILE_SCRIPTS + random.Random(commit()).sample(on_release(names), 3)


def sim(name, *words, wanted=0):
    program = [f"{RELEASE}/aetheris_sim", "--jobs", CORES, "--commit", commit()]
    return lambda: [Task(f"sim {name}", nice(*map(str, [*program, *words])), RELEASE, by_code(wanted),
                         typed("./dev sim " + " ".join(words)), 5400)]


def sdks(*runs):
    """Scripts with their words: each fault at each frame."""
    return lambda: [Task(" ".join(words), [str(ROOT / words[0]), *words[1:]], RELEASE, read_script,
                         typed(run_tests.repeat_script(RELEASE, words[0]) + " " + " ".join(words[1:])), 5400, slow_env(True))
                    for words in runs]


def some_mutants():
    names = subprocess.run(["scripts/mutants", "--list", "--fast"], cwd=ROOT, capture_output=True, text=True,
                           check=True).stdout.splitlines()
    chosen = random.Random(commit()).sample(names, 2)
    return one("mutants", ["scripts/mutants", "--as-dev", "--tested", "--exactly", *chosen], seconds=1200)()


def demos():
    return [Task(" ".join(words), [str(ROOT / words[0]), *words[1:]], RELEASE, silent_script, typed(" ".join(words)))
            for words in (["scripts/demo", "--agent"], ["scripts/demo"], ["scripts/demo", "--code"], ["scripts/demo", "--postgres"], ["scripts/examples"])]


def push_stages():
    seed = commit()
    return [
        Stage("source", 1, one("source", ["scripts/check", "source"]), pool="waiting"),
        Stage("release program", 6, builds("release", "--target", "aetheris", "aetheris_testing", "aetheris_library"), slots=ALL),
        Stage("scripts", 11, scripts(RELEASE, on_release), ("release program",), "waiting"),
        Stage("examples and demos", 3, demos, ("release program",), "waiting"),
        Stage("simulator", 2, builds("release", "--target", "aetheris_sim"), ("release program",), slots=ALL),
        Stage("dev build", 12, builds("dev", "--target", "all", "fuzzers"), ("simulator",), slots=ALL),
        Stage("scripts, sanitizers", 4, scripts(DEV, on_sanitizers), ("dev build",), "waiting"),
        Stage("test programs", 4, programs(DEV), ("dev build",)),
        Stage("tidy", 3, one("tidy", ["scripts/check", "tidy"], seconds=3600), ("simulator",), slots=ALL),
        Stage("sim sweep", 3, sim("sweep", "--sweep", "--share", seed), ("simulator",), slots=ALL),
        Stage("sim seeds", 1, sim("seeds", "--seeds", "4000", "--from", seed), ("simulator",), slots=ALL),
        Stage("sim canary", 0.2, sim("canary", "--canary", wanted=73), ("simulator",)),
        Stage("model", 2, one("model", ["scripts/model"]), slots=ALL),
        Stage("fuzz", 2.5, one("fuzz", ["scripts/fuzz", "--seconds", 20]), ("dev build",), slots=ALL),
        Stage("mutants", 2.5, some_mutants, ("dev build",), slots=ALL),
    ]


# ---------------------------------------------------------------- the long run

def full_parts():
    def build(preset, minutes, *words):
        return Stage(f"{preset} build", minutes, builds(preset, *words), slots=ALL)

    def tested(preset, minutes):
        return [build(preset, 30), Stage("test programs", minutes, programs(f"build/{preset}"), (f"{preset} build",))]

    def released(*stages):
        return [Stage("release build", 6, builds("release"), slots=ALL), *stages]

    def mutants(part):
        return [Stage("mutants", 55, one("mutants", ["scripts/mutants", "--part", part], seconds=5400), slots=ALL)]

    after = ("release build",)
    return {
        "tests": ("every test program under clang's sanitizers, slow tests included",
                  lambda: [build("dev", 12), Stage("test programs", 40, programs(DEV, True), ("dev build",))]),
        "scripts": ("every script of tests/ under sanitizers, slow tests included",
                    lambda: [build("dev", 12, "--target", "aetheris", "aetheris_testing"), Stage("release build", 6, builds("release"), slots=ALL),
                             Stage("scripts", 30, scripts(DEV, list, True), ("dev build", *after), "waiting")]),
        "gcc": ("the test programs under the address and undefined-behaviour sanitizers of g++", lambda: tested("dev-gcc", 10)),
        "tsan": ("the test programs under the thread sanitizer", lambda: tested("tsan", 20)),
        "tidy": ("clang-tidy over every file",
                 lambda: released(Stage("tidy", 12, one("tidy", ["scripts/check", "tidy", "--all"], seconds=5400), after,
                                        slots=ALL))),
        "sim": ("the whole sweep, 20,000 seeds",
                lambda: released(Stage("sim sweep", 36, sim("sweep", "--sweep"), after, slots=ALL),
                                 Stage("sim seeds", 4, sim("seeds", "--seeds", "20000", "--from", commit()), after, slots=ALL))),
        "mutants-1": ("the first half of the planted defects", lambda: mutants("1/2")),
        "mutants-2": ("the second half of the planted defects", lambda: mutants("2/2")),
        "chaos": ("real processes under real faults, both stores, five minutes",
                  lambda: released(Stage("chaos", 12, one("chaos", ["./dev", "chaos", "--store", "both", "--minutes", 5],
                                                          by_code(), seconds=3600), after, slots=ALL))),
        "fuzz": ("each fuzzer for ten minutes",
                 lambda: [build("dev", 12, "--target", "fuzzers"),
                          Stage("fuzz", 52, one("fuzz", ["scripts/fuzz", "--seconds", 600], seconds=5400), ("dev build",),
                                slots=ALL)]),
        "sdk-1": ("the conformance of the TypeScript SDK and of the C++ library, and the examples: each fault at each frame",
                  lambda: released(Stage("conformance of SDKs", 50, sdks(
                      ("tests/sdk_conformance.py", "typescript", "--full"), ("tests/sdk_conformance.py", "cpp", "--full"),
                      ("tests/code_examples.py",)), after, slots=ALL))),
        "sdk-2": ("the conformance of the Python SDK: each fault at each frame, a share of them for further kinds of agents",
                  lambda: released(Stage("conformance of SDKs", 50, sdks(
                      ("tests/sdk_conformance.py", "python", "--full")), after, slots=ALL))),
        "conformance": ("the whole conformance suite of MCP, OAuth included",
                        lambda: released(Stage("conformance", 15, scripts(
                            RELEASE, lambda names: ["tests/conformance.py"], True), after, "waiting"))),
    }


def with_needs(stages, names):
    wanted = set(names)
    for stage in reversed(stages):
        if stage.name in wanted:
            wanted |= set(stage.needs)
    return [stage for stage in stages if stage.name in wanted]


def perform(title, stages, total):
    began = time.monotonic()
    Run(stages).run()
    summary(stages, began, title)
    for stage in stages:
        total.add(stage.tally)


def main():
    parser = argparse.ArgumentParser(prog="./dev ci", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", nargs="*", metavar="PART")
    parser.add_argument("--list", action="store_true", help="show the stages and the parts, run nothing")
    parser.add_argument("--stage", nargs="+", default=[], metavar="NAME", help="of the push: these, and what they need")
    options = parser.parse_args()
    stages, parts = push_stages(), full_parts()
    for words, known in ((options.stage, [stage.name for stage in stages]), (options.full or [], list(parts))):
        if unknown := [word for word in words if word not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}")
    if options.list:
        for stage in stages:
            print(f"{stage.name:<22} {clock(60 * stage.minutes):>6}  {stage.pool:<8} after {', '.join(stage.needs) or 'nothing'}")
        for name, (purpose, _) in parts.items():
            print(f"--full {name:<15} {purpose}")
        return 0
    # The copies of the sources that mutants are built from find what the dev build left in ccache.
    os.environ.update(CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1", CI="1")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: (run_tests.stop_all(), os._exit(130)))
    total = Tally()
    if options.full is None:
        perform("each push", with_needs(stages, options.stage) if options.stage else stages, total)
    else:
        for name in options.full or parts:
            perform(f"part {name}", parts[name][1](), total)
    if total.skipped:  # a machine reads the last line: always the same two numbers
        print(f"{total.skipped} skipped")
        total.skipped = 0
    print(total.line(), flush=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
