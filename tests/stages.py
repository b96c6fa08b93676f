#!/usr/bin/env python3
"""The scheduler of `./dev ci` (scripts/ci.py), on stages of a second, and the page that shows the stages.

Prints `ok NAME` or `not ok NAME` per test.
"""
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parents[1])
sys.path.insert(0, str(ROOT / "scripts"))

import ci  # noqa: E402
import run_tests  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def task(name, command, **more):
    return ci.Task(name, ["bash", "-c", command], read=ci.by_code(), repeat=ci.typed(f"again {name}"), **more)


def stage(name, *commands, needs=(), **more):
    more.setdefault("minutes", 1)
    return ci.Stage(name, tasks=lambda: [task(f"{name}{n}", command) for n, command in enumerate(commands)], needs=needs, **more)


def performed(*stages):
    """What the run of the stages printed, and the sum of their results."""
    total, printed = run_tests.Tally(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        ci.perform("test", list(stages), total)
    return printed.getvalue(), total


@test
def a_stage_whose_need_failed_counts_as_failed():
    printed, total = performed(stage("build", "echo broken; exit 3"), stage("tests", "true", needs=("build",)),
                               stage("report", "true", needs=("tests",)), stage("apart", "true"))
    assert total.passed == 1, total.line()
    assert total.failures == ["build0: ended with code 3", "tests: not run: build failed", "report: not run: tests failed"], total.failures
    assert "broken" in printed and "repeat: again build0" in printed, printed


@test
def a_stage_waits_for_its_needs_and_free_slots():
    with tempfile.TemporaryDirectory() as folder:
        alone = f"mkdir {folder}/lock && sleep 0.2 && rmdir {folder}/lock"
        _, total = performed(stage("one", alone, alone, slots=ci.ALL), stage("two", f"{alone}; touch {folder}/done", slots=ci.ALL),
                             stage("last", f"test -e {folder}/done", needs=("two",)))
    assert not total.failures, total.failures


@test
def waiting_stages_do_not_delay_computing_stages():
    begin = time.monotonic()
    _, total = performed(stage("waiting", *["sleep 2"] * ci.ROOM["waiting"], pool="waiting"), stage("computing", "sleep 2", slots=ci.ALL))
    assert not total.failures and time.monotonic() - begin < 4, time.monotonic() - begin


@test
def a_command_that_does_not_end_is_stopped_with_its_children():
    with tempfile.TemporaryDirectory() as folder:
        late = ci.Stage("late", 1, lambda: [task("late", f"(sleep 3; touch {folder}/child) & sleep 60", seconds=1)])
        printed, total = performed(late)
        assert total.failures == ["late: ended with code 124"] and "stopped after 1 s" in printed, printed
        time.sleep(3)
        assert not os.path.exists(f"{folder}/child")


@test
def processes_that_a_command_leaves_behind_are_stopped():
    with tempfile.TemporaryDirectory() as folder:
        _, total = performed(stage("leaves", f"(sleep 2; touch {folder}/child) & true"))
        time.sleep(3)
        assert not total.failures and not os.path.exists(f"{folder}/child")


@test
def a_stage_over_its_budget_is_listed_first_and_does_not_fail():
    printed, total = performed(stage("slow", "sleep 0.5", minutes=0.001), stage("bad", "exit 1"))
    summary = printed[printed.index("==== test"):].splitlines()
    assert summary[1].startswith("over budget: slow took") and total.failures == ["bad0: ended with code 1"], summary


@test
def a_stage_with_nothing_to_run_fails():
    def broken():
        raise OSError("no list")
    _, total = performed(stage("empty"), ci.Stage("broken", 1, broken), stage("after", "true", needs=("broken",)))
    assert len(total.failures) == 3 and not total.passed, total.failures


@test
def every_need_of_a_push_or_a_part_is_an_earlier_stage():
    for stages in (ci.push_stages(), *(make() for _, make in ci.full_parts().values())):
        names = [each.name for each in stages]
        assert len(set(names)) == len(names), names
        for number, each in enumerate(stages):
            assert set(each.needs) <= set(names[:number]), each.name


@test
def each_script_runs_on_every_push():
    names, barred = run_tests.test_scripts()
    assert set(names) == set(ci.on_release(names)) | set(ci.HOSTILE_SCRIPTS) and not barred, (names, barred)
    assert set(ci.LONG_SCRIPTS) | set(ci.HOSTILE_SCRIPTS) <= set(names)


@test
def the_page_shows_the_stages_and_the_parts():
    page = (ROOT / "docs/testing.md").read_text()
    for each in ci.push_stages():
        row = f"| {each.name} | {each.pool} | {each.minutes:g} | {', '.join(each.needs)} |"
        assert row in page, row
    for name in ci.full_parts():
        assert f"`{name}`" in page, name


def main():
    failed = 0
    for function in TESTS:
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"ok stages/{name}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"# {error}\nnot ok stages/{name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
