#!/usr/bin/env python3
"""The first hour of a new user: several commands in one folder, where the store is, inputs as arguments.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  first_hour_folder.py [WORDS]   only tests whose name contains WORDS
"""
import os
import re
import subprocess
import sys

from shared.home import PATIENCE, expect, home, run_tests, until
from shared.trip import BROKEN, lines_of

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_second_run_passes_its_job_to_the_first_and_waits():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        done = expect(h.run("run", "agents.yaml", "echo", "n:=1", "--json"), 0)
        assert done.json()["status"] == "completed" and done.json()["result"] == {"n": 1}, done
        assert f"runs in process {first.pid}, which owns the store" in done.err, done
        failed = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert "no_money" in failed.err and "aetheris retry f agents.yaml" in failed.err, failed
        waiting = expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        assert "aetheris signal a go-a" in waiting.err, waiting
        h.release_hold()
        assert expect(h.end(first), 0).out == "held\n"


@test
def when_the_first_run_is_killed_the_second_takes_over():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds_once", "--job-id", "r")
        h.wait_for_hold()
        second = h.start("run", "agents.yaml", "sleeps", "--job-id", "s")
        until(lambda: h.run("job", "s").code == 0)
        third = h.start("run", "agents.yaml", "holds", "--only", "--job-id", "t")
        h.wait_for_hold(2)
        first.kill()
        first.wait()
        h.release_hold()
        assert expect(h.end(second), 0).json() == {"woke": True}
        assert expect(h.end(third), 0).out == "held\n"
        events = expect(h.run("events", "s", "--json"), 0).json()["events"]
        assert [e["type"] for e in events].count("tool_invocation_started") == 1, events
        # A call at most once is not repeated: its outcome is unknown, or its program finished and its result arrived.
        assert len(lines_of(h, "began.txt")) <= 4, lines_of(h, "began.txt")
        for job in ("r", "s", "t"):
            expect(h.run("verify", job), 0)


@test
def an_effect_happens_once_when_the_owner_is_killed():
    with home() as h:
        (h.path / "once.yaml").write_text("""
aetheris: 1
tools:
  pay: { command: ["sh", "-c", "echo paid >> paid; echo ok"], effect: at_most_once }
  hold: { command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done"], effect: read }
agents:
  buys: { plan: [ { id: pay, tool: pay }, { id: h, tool: hold, needs: [pay] } ], output: "${ .steps.pay }" }
""", encoding="utf-8")
        first = h.start("run", "once.yaml", "--job-id", "a")
        h.wait_for_hold()
        second = h.start("run", "once.yaml")
        h.wait_for_hold(2)
        first.kill()
        first.wait()
        h.wait_for_hold(3)
        h.release_hold()
        assert expect(h.end(second), 0).out == "ok\n"
        assert lines_of(h, "paid") == ["paid", "paid"], "one for each job"
        jobs = expect(h.run("jobs", "--json"), 0).json()["jobs"]
        assert len(jobs) == 2 and {j["status"] for j in jobs} == {"completed"}, jobs


@test
def runs_that_start_at_the_same_time_all_complete():
    with home() as h:
        runs = [h.start("run", "agents.yaml", "echo", f"n:={n}") for n in range(4)]
        for n, run in enumerate(runs):
            assert expect(h.end(run), 0).json() == {"n": n}
        assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 4


@test
def an_owner_that_does_not_run_the_agent_is_reported():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
        result = expect(h.run("run", "trip.yaml"), 5)
        assert f"process {first.pid} owns the store and does not run agent \"trip\"" in result.err, result
        assert "serve this file too (`aetheris serve FILE… trip.yaml`)" in result.err, result
        text = (h.path / "agents.yaml").read_text(encoding="utf-8")
        (h.path / "new.yaml").write_text(text.replace('code: "no_money"', 'code: "no_gold"'), encoding="utf-8")
        result = expect(h.run("run", "new.yaml", "fails"), 5)
        assert "runs another version of agent \"fails\"" in result.err, result
        h.release_hold()
        expect(h.end(first), 0)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["r"]
        assert "expression_failed" in expect(h.run("run", "trip.yaml"), 1).err


@test
def run_announces_the_older_jobs_that_it_resumes():
    with home() as h:
        for job in ("a", "b"):
            expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", job), 0)
        result = expect(h.run("run", "agents.yaml", "echo", "--only"), 0)
        assert "resuming" not in result.err, result
        result = expect(h.run("run", "agents.yaml", "echo"), 0)
        assert re.search(r"^resuming 2 unfinished jobs: (a, b|b, a); use --only to skip$", result.err, re.M), result
        assert "resuming" not in expect(h.run("run", "agents.yaml", "echo"), 0).err


@test
def the_store_of_a_parent_folder_is_found():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        assert f"created store at {h.path.resolve()}/.aetheris/aetheris.db\n" in result.err, result
        assert "created store" not in expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0).err
        below = h.path / "x" / "y"
        below.mkdir(parents=True)
        top, h.path = h.path, below
        try:
            assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 2
            result = expect(h.run("run", "../../agents.yaml", "asks", "--job-id", "c"), 4)
            assert "created store" not in result.err and "--store" not in result.err, result
            for words in (["job", "c"], ["doctor"], ["approvals"], ["signal", "c", "go-c", "1"],
                          ["run", "../../agents.yaml", "--job-id", "c"]):
                expect(h.run(*words), 0)
            assert list(below.iterdir()) == []
            # The home folder is searched only when it is the current one.
            result = expect(h.run("jobs", env={"HOME": str(top)}), 3)
            assert "there is no store in this folder or a parent" in result.err, result
        finally:
            h.path = top
        expect(h.run("jobs", env={"HOME": str(top)}), 0)


@test
def commands_that_only_read_create_no_store():
    with home() as h:
        for words in (["jobs"], ["jobs", "--stalled"], ["approvals"], ["job", "a"], ["events", "a"], ["trace", "a"],
                      ["verify", "a"], ["replay", "a"], ["inspect"], ["audit"], ["keys", "list"], ["cancel", "a"],
                      ["backup", "copy.db"], ["prune", "--older-than", "1d"]):
            result = h.run(*words)
            assert result.code == 3, (words, result)
            assert expect(h.run(*words, "--json"), 3).json()["code"] == "not_found", words
        expect(h.run("check", "agents.yaml"), 0)
        expect(h.run("doctor"), 0)
        assert sorted(p.name for p in h.path.iterdir()) == ["agents.yaml"]


@test
def a_mistyped_path_of_a_store_creates_nothing():
    with home() as h:
        for words in (["run", "agents.yaml", "echo"], ["serve", "agents.yaml", "--listen", "127.0.0.1:0"],
                      ["run", "agents.yaml", "echo", "--detach"], ["migrate"], ["jobs"],
                      ["keys", "create", "--role", "viewer"]):
            result = expect(h.run(*words, "--store", "sqlite:dta/new/a.db"), 3)
            assert "dta/new" in result.err, result
        assert sorted(p.name for p in h.path.iterdir()) == ["agents.yaml"]


@test
def a_store_of_another_user_is_refused():
    with home() as h:
        if os.geteuid() != 0:
            return  # only root can change the owner of a folder
        expect(h.run("run", "agents.yaml", "echo"), 0)
        below = h.path / "x"
        below.mkdir()
        os.chown(h.path / ".aetheris", 12345, 12345)
        for folder in (h.path, below):
            for words in (["jobs"], ["run", str(h.path / "agents.yaml"), "echo"]):
                done = subprocess.run([h.program, *words], cwd=folder, env=h.env, capture_output=True, text=True)
                assert done.returncode == 2 and "belongs to another user (uid 12345)" in done.stderr, done
        os.chown(h.path / ".aetheris", 0, 0)
        # A link of another user to this store is not followed.
        (below / ".aetheris").symlink_to(h.path / ".aetheris")
        os.lchown(below / ".aetheris", 12345, 12345)
        done = subprocess.run([h.program, "jobs"], cwd=below, env=h.env, capture_output=True, text=True)
        assert done.returncode == 2 and "belongs to another user" in done.stderr, done


@test
def the_input_can_be_given_as_arguments():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "echo", "a=b=c", 'list:=[1, {"x": null}]', "empty=", "--message", "hi",
                              "--input", '{"n": 1}', "--job-id", "i"), 0)
        assert result.json() == {"a": "b=c", "empty": "", "list": [1, {"x": None}], "message": "hi", "n": 1}
        expect(h.run("run", "agents.yaml", "echo", "n:=2", "--job-id", "i"), 5)
        (h.path / "one.yaml").write_text(
            "aetheris: 1\ntools: { echo: { native: echo, effect: read } }\n"
            "agents: { one: { plan: [ { id: s, tool: echo, args: { x: \"${ .input }\" } } ], output: \"${ .steps.s.x }\" } }\n",
            encoding="utf-8")
        assert expect(h.run("run", "one.yaml", "name=Ada"), 0).json() == {"name": "Ada"}
        assert expect(h.run("run", "one.yaml", "--message", "hello"), 0).json() == {"message": "hello"}
        assert expect(h.run("run", "one.yaml", "--dry-run", "--json", "name=Ada"), 0).json()["input"] == {"name": "Ada"}
        for words, named in ((["a=1", "a=2"], '"a"'), (["n:=1", "--input", '{"n":2}'], '"n"'),
                             (["message=x", "--message", "y"], '"message"'), (["a=1", "--input", "[1]"], "--input"),
                             (["--message", "x", "--input", "5"], "--input"), (["=x"], "KEY=VALUE"),
                             (["a=1", "stray"], '"stray"'), (["a:={"], "a:=")):
            result = expect(h.run("run", "agents.yaml", "echo", *words), 2)
            assert named in result.err, (words, result)


@test
def a_program_runs_in_the_folder_of_its_file():
    with home() as h:
        (h.path / "notes.txt").write_text("a note", encoding="utf-8")
        (h.path / "reads.yaml").write_text(
            'aetheris: 1\ntools: { read: { command: ["cat", "notes.txt"], effect: read } }\n'
            'agents: { a: { plan: [{ id: note, tool: read }], output: "${ .steps.note }" } }\n', encoding="utf-8")
        (h.path / "sub").mkdir()
        done = subprocess.run([h.program, "run", "../reads.yaml"], cwd=h.path / "sub", env=h.env, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "a note\n"), done


if __name__ == "__main__":
    sys.exit(run_tests("first_hour_folder", TESTS, " ".join(sys.argv[1:])))
