#!/usr/bin/env python3
"""The first hour of a new user: an agent fails, its file is changed, and the printed command retries it.

Says `ok NAME` or `not ok NAME`. The tools are real programs; each writes a line per call into a file, which is the
count of the effects.

  first_hour.py [WORDS]   only tests whose name contains WORDS
"""
import json
import re
import shlex
import shutil
import sys
import time

sys.dont_write_bytecode = True
from cli import expect, home, run_tests  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function

BROKEN = """\
aetheris: 1
tools:
  pay:
    command: ["sh", "-c", "echo paid >> paid; echo '{\\"receipt\\": 7}'"]
    output: json
    effect: at_most_once
  print:
    command: ["sh", "-c", "echo printed >> printed; cat"]
    output: json
    effect: idempotent
agents:
  trip:
    plan:
      - { id: charge, tool: pay, args: { amount: 5 } }
      - { id: ticket, tool: print, needs: [charge], args: { receipt: "${ .steps.charge.reciept | floor }" } }
    output: "${ .steps.ticket.receipt }"
"""
FIXED = BROKEN.replace("reciept", "receipt")


def lines(home_, name):
    path = home_.path / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def printed_command(stderr):
    """The retry command of a failure's own stderr, as words after `aetheris`."""
    words = shlex.split(re.search(r"aetheris retry .*", stderr)[0])
    assert words[0] == "aetheris", words
    return words[1:]


def broken(h):
    (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
    said = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
    assert "expression_failed" in said.err, said
    return said


def fix(h):
    (h.path / "trip.yaml").write_text(FIXED, encoding="utf-8")


@test
def the_printed_command_retries_with_the_changed_file():
    with home() as h:
        said = broken(h)
        fix(h)
        began = time.monotonic()
        done = expect(h.run(*printed_command(said.err)), 0)
        assert time.monotonic() - began < 10
        assert done.out == "7\n", done
        assert "plan changed: nodes.ticket: args" in done.err, done
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed"])


@test
def a_retry_whose_answer_was_lost_is_one_by_its_job_id():
    with home() as h:
        broken(h)
        fix(h)
        for _ in range(2):
            assert expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed"])
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 5)
        assert "already_exists" in refused.err and lines(h, "paid") == ["paid"], refused
        expect(h.run("verify", "x2"), 0)


@test
def the_printed_command_makes_one_job_whenever_it_is_killed():
    with home() as h:
        said = broken(h)
        fix(h)
        retry = printed_command(said.err)
        shutil.copytree(h.path, h.path.parent / (h.path.name + "-failed"))
        traced = expect(h.run(*retry, env={"AETHERIS_FAILPOINTS_TRACE": "1"}), 0)
        points = list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", traced.err)))
        assert len(points) >= 10, traced
        for point in points:
            shutil.rmtree(h.path)
            shutil.copytree(h.path.parent / (h.path.name + "-failed"), h.path)
            killed = h.run(*retry, env={"AETHERIS_FAILPOINTS": point.replace("@", "=exit@")})
            assert killed.code == 137, (point, killed)
            assert expect(h.run(*retry), 0).out == "7\n", point
            jobs = json.loads(expect(h.run("jobs", "--json"), 0).out)["jobs"]
            assert sorted(job["id"] for job in jobs) == ["x1", "x1-retry-1"], (point, jobs)
            assert lines(h, "paid") == ["paid"], point
        shutil.rmtree(h.path.parent / (h.path.name + "-failed"))


@test
def a_retry_that_fails_prints_a_command_with_the_next_id():
    with home() as h:
        said = broken(h)
        for number in (1, 2):
            words = printed_command(said.err)
            assert words[-2:] == ["--job-id", f"x1-retry-{number}"], words
            said = expect(h.run(*words), 1)
        fix(h)
        assert expect(h.run(*printed_command(said.err)), 0).out == "7\n"
        assert lines(h, "paid") == ["paid"]


@test
def a_changed_effect_is_repeated_only_when_its_node_is_dropped():
    with home() as h:
        broken(h)
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml"), 2)
        assert "plan_invalid" in refused.err and "charge" in refused.err, refused
        assert lines(h, "paid") == ["paid"]
        expect(h.run("retry", "x1", "trip.yaml", "--drop", "charge"), 0)
        assert lines(h, "paid") == ["paid", "paid"]


@test
def run_says_when_the_file_differs_from_the_plan_of_the_job():
    with home() as h:
        broken(h)
        fix(h)
        again = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "trip.yaml differs from the plan of job x1" in again.err, again
        assert "aetheris retry x1 trip.yaml --job-id x1-retry-1" in again.err, again


@test
def retry_detached_leaves_the_job_to_another_process():
    with home() as h:
        broken(h)
        fix(h)
        made = expect(h.run("retry", "x1", "trip.yaml", "--detach", "--job-id", "x2"), 0)
        assert made.out == "x2\n" and lines(h, "printed") == [], made
        assert expect(h.run("run", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert lines(h, "paid") == ["paid"]


if __name__ == "__main__":
    sys.exit(run_tests("first hour", TESTS, " ".join(sys.argv[1:])))
