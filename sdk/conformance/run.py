#!/usr/bin/env python3
"""Runs the scenarios of an SDK against a real server: undisturbed, and with a fault at each frame (README.md).

Prints `ok` or `not ok` for each scenario, and for each failure the command that repeats it. Exit codes: 0 all is well,
1 something failed, 2 usage.
"""
import argparse
import collections
import os
import pathlib
import random
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import scenario as scenarios  # noqa: E402
from harness.proxy import ACTIONS, COMMIT, IN, KILL_AFTER, KILL_BEFORE, OUT, Fault  # noqa: E402
from harness.shop import Shop  # noqa: E402
from harness.world import FROZEN, ROOT, Failed, LibraryWorld, World  # noqa: E402


FRAMES_MIN = 1  # in each direction, of an undisturbed run: a routine is started and makes an advance
# Of the faults of a run: another order of frames can end a job before its fault. A few faults are a poor sample.
NOT_REACHED_MAX, NOT_REACHED_MAX_OF_FEW, FEW = 0.25, 0.5, 40


class Suite:
    """Runs (scenario, fault) pairs in several worlds. Threads: `parallel` of its own, each with one world. What follows of a
    scenario is in `warm_up`, `make_run` and `judge`; tests/code_examples.py has others."""
    warm_up, make_run, judge = map(staticmethod, (scenarios.warm_up, scenarios.Run, scenarios.judge))

    def __init__(self, options, make_world=None, shop=None):
        self.options = options
        self.make_world = make_world or (LibraryWorld if options.library else World)
        self.shop = shop or Shop()
        self.lock = threading.Lock()
        self.number = 0
        self.frames = {}  # of the undisturbed runs: scenario → {direction: count}
        self.failures, self.passed, self.known = [], collections.Counter(), {}
        self.disturbed, self.not_reached = 0, 0  # runs with a fault; those in which it did not happen
        self.is_stopped = False

    def run_all(self, pairs, deadline=None):
        """Until all pairs are done, or the deadline has come. Returns how many were done."""
        todo = collections.defaultdict(collections.deque)  # by the limits of the world
        for one, fault in pairs:
            todo[self.make_world.limits_for(fault)].append((one, fault))
        threads_of, done = collections.Counter(), [0]

        def work():
            try:
                while (limits := next_limits()) is not None:
                    work_off(limits)
            except BaseException:  # of the runner itself: what it had to run was not run
                with self.lock:
                    self.is_stopped = True
                    self.failures.append("the runner")
                    print("not ok the runner\n    " + traceback.format_exc().replace("\n", "\n    "), flush=True)

        def next_limits():
            """Those with the most pairs for each thread."""
            with self.lock:
                if self.is_stopped or (deadline and time.monotonic() > deadline) or not any(todo.values()):
                    return None
                limits = max(todo, key=lambda one: len(todo[one]) / (1 + threads_of[one]))
                threads_of[limits] += 1
                return limits

        def work_off(limits):
            world = None
            while True:
                with self.lock:
                    if not todo[limits] or self.is_stopped or (deadline and time.monotonic() > deadline):
                        threads_of[limits] -= 1
                        break
                    one, fault = todo[limits].popleft()
                    done[0] += 1
                world = self.run_one(world, one, fault)
            self.close(world)

        threads = [threading.Thread(target=work) for _ in range(min(self.options.parallel, len(pairs)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done[0]

    def run_one(self, world, one, fault):
        """Returns the world for the next run; None: it is of no use any more."""
        began = time.monotonic()
        problems, is_error = [], False
        try:
            if world is None:
                world = self.make_world(self.options.program, self.options.library or self.options.worker, self.shop,
                                        self.options.kind, self.make_world.limits_for(fault))
                self.warm_up(world, self.next_number())
            run = self.make_run(world, one, self.next_number())
            world.proxy.begin(fault, FROZEN)
            run.until_ended()
            run.frames = dict(world.proxy.counts)
            has_fired = world.proxy.has_fired
            with self.lock:
                if fault is not None:
                    self.disturbed += 1
                    self.not_reached += not has_fired
                elif not one.known.keys() & {"all", self.options.sdk}:
                    self.frames[one.name] = run.frames
            self.until_ready(world)
            problems = self.judge(run, fault)
            if fault is None:
                problems += [f"{count} frames {direction} were counted: there is nothing to disturb"
                             for direction, count in run.frames.items() if count < FRAMES_MIN]
        except Failed as why:
            problems = [str(why)]
            if world is None:
                self.is_stopped = True  # no other run would have a world
        except Exception:
            problems, is_error = [traceback.format_exc()], True
        self.report(one, fault, problems, time.monotonic() - began, world, is_error)
        if problems and world is not None:
            self.close(world, is_broken=True)
            return None
        return world

    def next_number(self):
        with self.lock:
            self.number += 1
            return self.number

    @staticmethod
    def until_ready(world):
        """After a fault: until both processes are there again."""
        world.proxy.begin()
        world.recover()
        world.until(world.knows_agent, "the worker's agents, after the fault")

    def judge_faults(self, is_wanted):
        """A suite whose faults do not happen proves nothing."""
        if is_wanted and self.disturbed == 0:
            self.failures.append("the faults")
            print("not ok the faults: no run had one")
        elif is_wanted and self.not_reached > self.disturbed * (
                NOT_REACHED_MAX_OF_FEW if self.disturbed < FEW else NOT_REACHED_MAX):
            self.failures.append("the faults")
            print(f"not ok the faults: {self.not_reached} of {self.disturbed} were not reached")

    def close(self, world, is_broken=False):
        if world is None:
            return
        problems = world.close()
        if problems and not is_broken:
            self.report(None, None, problems + [world.output()], 0, world)
        if not self.options.keep:
            world.remove()

    def report(self, one, fault, problems, seconds, world, is_error=False):
        name = "the end of a world" if one is None else one.name
        text = f"{name} {fault}" if fault else name
        with self.lock:
            reason = None if one is None else one.known.get(self.options.sdk, one.known.get("all"))
            if reason is not None and fault is None and not is_error:  # an error of the runner is never known
                if not problems:
                    problems = ["it passes: remove it from `known` of the scenario"]
                else:
                    self.known[one.name] = reason
                    print(f"ok {text} # KNOWN {reason}", flush=True)
                    return
            if not problems:
                self.passed[name] += 1
                if fault is None or self.options.verbose:
                    print(f"ok {text}  {seconds:.2f} s", flush=True)
                return
            self.failures.append(text)
            print(f"not ok {text}  {seconds:.2f} s")
            for problem in problems:
                print("    " + problem.replace("\n", "\n    "))
            if one is not None:
                print(f"    repeat: {self.command_of(one, fault)}")
            if self.options.keep and world is not None:
                print(f"    kept: {world.folder}")
            sys.stdout.flush()

    def command_of(self, one, fault):
        """It repeats this run."""
        words = f" --fault {fault}" if fault else ""
        kind = f" --kind {self.options.kind}" if self.options.kind else ""
        how = "library" if self.options.library else "worker"
        return (f'sdk/conformance/run.py --sdk {self.options.sdk} --{how} "{getattr(self.options, how)}"{kind} '
                f"--only {one.name}{words}")


def faults_of(frames):
    """Each fault at each frame of an undisturbed run; of a library, a kill before and after each commit."""
    if COMMIT in frames:
        return [Fault(action, number, COMMIT) for number in range(1, frames[COMMIT] + 1)
                for action in (KILL_BEFORE, KILL_AFTER)]
    return [Fault(action, number, direction) for direction in (OUT, IN) for number in range(1, frames[direction] + 1)
            for action in ACTIONS]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_mutually_exclusive_group(required=True)
    command.add_argument("--worker", help="the command that runs the worker with the agent script")
    command.add_argument("--library", help="instead: the command of a process that runs its agents itself")
    parser.add_argument("--sdk", default="", help="its name, for `known` of scenarios: typescript, python")
    parser.add_argument("--kind", help="SCRIPT_KIND of the worker")
    parser.add_argument("--lacks", default="", help="operations that the SDK does not have, with commas")
    parser.add_argument("--only", action="append", help="one scenario; may be repeated")
    parser.add_argument("--fault", type=Fault.parse, help="one fault, ACTION@NUMBER:out or :in")
    parser.add_argument("--full", action="store_true", help="each fault at each frame")
    parser.add_argument("--share", metavar="SEED", help="a part of --full in an order chosen by SEED")
    parser.add_argument("--action", action="append", choices=ACTIONS, help="of --full and --share: only this one; may be "
                        "repeated")
    parser.add_argument("--whole", metavar="NAME", help="also each fault at each frame of this scenario")
    parser.add_argument("--minutes", type=float, default=2.0, help="of --share")
    parser.add_argument("--parallel", type=int, default=4, help="worlds at a time (default 4; they wait most of the time)")
    parser.add_argument("--program", default=os.environ.get("AETHERIS_TESTING_BIN") or
                        str(ROOT / "build/release/aetheris_testing"), help="aetheris_testing")
    parser.add_argument("--keep", action="store_true", help="keep the folders of worlds")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each fault")
    parser.add_argument("--list", action="store_true", help="the scenarios")
    return parser.parse_args()


def main():
    options = read_options()
    all_scenarios = scenarios.load()
    if options.only:
        unknown = set(options.only) - {one.name for one in all_scenarios}
        if unknown:
            print(f"there is no scenario {', '.join(sorted(unknown))}", file=sys.stderr)
            return 2
        all_scenarios = [one for one in all_scenarios if one.name in options.only]
    if options.list:
        for one in all_scenarios:
            print(one.name)
        return 0
    lacking = set(filter(None, options.lacks.split(",")))
    chosen = [one for one in all_scenarios if not one.needs & lacking]
    for one in all_scenarios:
        if one.needs & lacking:
            print(f"ok {one.name} # SKIP the SDK has no {', '.join(sorted(one.needs & lacking))}")
    suite = Suite(options)
    began = time.monotonic()
    if options.fault:
        suite.run_all([(one, options.fault) for one in chosen])
    else:
        suite.run_all([(one, None) for one in chosen])
        faults = [(one, fault) for one in chosen if one.name in suite.frames
                  for fault in faults_of(suite.frames[one.name])
                  if not options.action or fault.action in options.action]
        if options.whole:
            suite.run_all([(one, fault) for one, fault in faults if one.name == options.whole])
        if options.full:
            suite.run_all(faults)
        elif options.share:
            random.Random(options.share).shuffle(faults)
            done = suite.run_all(faults, time.monotonic() + 60 * options.minutes)
            print(f"share {options.share}: {done} of {len(faults)} faults")
    suite.shop.close()
    suite.judge_faults(bool(options.fault or options.whole or options.full or options.share))
    print(f"{sum(suite.passed.values())} passed, {len(suite.failures)} failed, {len(suite.known)} known, "
          f"{suite.not_reached} faults not reached, {time.monotonic() - began:.0f} s")
    return 1 if suite.failures else 0


if __name__ == "__main__":
    sys.exit(main())
