#!/usr/bin/env python3
"""--notify of services: each question is notified once, across restarts and by several processes. A failing program is retried.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  notifications.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.mcp_client import Stdio  # noqa: E402
from shared.postgres_server import Postgres  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []
AGENTS = """
aetheris: 1
tools:
  echo:  { native: echo, effect: read }
  pay:   { native: echo, effect: at_most_once, approval: required }
  doubt: { native: doubt, effect: at_most_once }
agents:
  asks:    { plan: [ { id: w, wait: { type: human, key: "k-${ .job.id }" } } ], output: "${ .steps.w }" }
  pays:    { plan: [ { id: p, tool: pay, args: { n: 1 } } ] }
  doubts:  { plan: [ { id: d, tool: doubt, args: { message: "lost" } } ] }
  spends:
    budget: { tool_calls: 1 }
    plan: [ { id: a, tool: echo, args: { n: 1 } }, { id: b, tool: echo, needs: [a], args: { n: 2 } } ]
  signals: { plan: [ { id: w, wait: { type: signal, key: k } } ] }
"""
# Records each notification as a line; fails while the file `broken` exists.
PROGRAM = """#!/bin/sh
read -r line
if [ -e "{folder}/broken" ]; then echo "$line" >> "{folder}/failed.txt"; exit 3; fi
echo "$line" >> "{folder}/notified.txt"
"""


def test(function):
    TESTS.append(function)
    return function


def prepare(h):
    (h.path / "asks.yaml").write_text(AGENTS)
    program = h.path / "notify"
    program.write_text(PROGRAM.format(folder=h.path))
    program.chmod(0o755)
    return str(program)


def lines(h, name="notified.txt"):
    file = h.path / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def recorded_notifications(h, env=None):
    """The notified questions in the audit log."""
    entries = expect(h.run("audit", "--limit", "1000", "--json", env=env), 0).json()["entries"]
    return [entry["detail"]["question"] for entry in entries if entry["act"] == "notified"]


@test
def each_question_is_notified_once_across_restarts_of_a_service():
    with home() as h:
        program = prepare(h)
        s = Server(h, "asks.yaml", "--notify", program)
        for agent in ("asks", "pays", "doubts", "spends", "signals"):
            assert s.post("/api/jobs", {"agent": agent, "id": agent})[0] == 201
        until(lambda: len(lines(h)) >= 4)
        notified = lines(h)
        assert sorted((one["job"], one["kind"]) for one in notified) == [
            ("asks", "wait"), ("doubts", "in_doubt"), ("pays", "approval"), ("spends", "budget")], notified
        assert len({one["id"] for one in notified}) == 4, notified
        until(lambda: len(recorded_notifications(h)) == 4)
        s.process.send_signal(signal.SIGKILL)
        s.process.wait()
        s = Server(h, "asks.yaml", "--notify", program)
        assert s.post("/api/jobs", {"agent": "asks", "id": "later"})[0] == 201
        until(lambda: len(lines(h)) >= 5)
        expect(s.stop(), 0)
        s = Server(h, "asks.yaml", "--notify", program)
        approval, = [one for one in notified if one["kind"] == "approval"]
        assert approval["command"].startswith("aetheris approve pays."), approval
        expect(s.stop(), 0)
        assert [one["job"] for one in lines(h)[4:]] == ["later"], lines(h)


@test
def a_job_that_reuses_the_id_of_a_pruned_job_is_notified_again():
    with home() as h:
        program = prepare(h)
        s = Server(h, "asks.yaml", "--notify", program)
        for n in (1, 2):
            assert s.post("/api/jobs", {"agent": "asks", "id": "asks"})[0] == 201
            until(lambda: len(lines(h)) >= n)
            until(lambda: len(recorded_notifications(h)) == n)
            expect(h.run("signal", "asks", "k-asks", '{"decision": "approve"}'), 0)
            until(lambda: s.status("asks") == "completed")
            expect(h.run("prune", "--older-than", "0s"), 0)
        first, second = lines(h)
        assert first["id"] != second["id"] and {**first, "id": ""} == {**second, "id": ""}, lines(h)
        assert recorded_notifications(h) == [first["id"], second["id"]]
        expect(s.stop(), 0)


@test
def questions_opened_while_no_service_notified_are_notified_at_start():
    with home() as h:
        program = prepare(h)
        s = Server(h, "asks.yaml")
        for agent in ("asks", "pays"):
            assert s.post("/api/jobs", {"agent": agent, "id": agent})[0] == 201
        assert s.post("/api/jobs", {"agent": "asks", "id": "answered"})[0] == 201
        until(lambda: s.status("answered") == "waiting" and s.status("pays") == "waiting" and
              s.status("asks") == "waiting")
        expect(h.run("signal", "answered", "k-answered", '{"decision": "approve"}'), 0)
        expect(s.stop(), 0)
        s = Server(h, "asks.yaml", "--notify", program)
        until(lambda: len(lines(h)) >= 2)
        until(lambda: len(recorded_notifications(h)) == 2)
        assert sorted(one["job"] for one in lines(h)) == ["asks", "pays"], lines(h)
        expect(s.stop(), 0)


@test
def a_failing_notify_program_is_retried_and_blocks_no_job():
    with home() as h:
        program = prepare(h)
        (h.path / "broken").touch()
        s = Server(h, "asks.yaml", "--notify", program)
        assert s.post("/api/jobs", {"agent": "asks", "id": "asks"})[0] == 201
        until(lambda: len(lines(h, "failed.txt")) >= 2)
        assert s.post("/api/jobs?wait=30s", {"agent": "spends", "id": "other"})[1]["status"] == "parked"
        assert recorded_notifications(h) == [] and lines(h) == []
        (h.path / "broken").unlink()
        until(lambda: "asks" in [one["job"] for one in lines(h)])
        until(lambda: len(recorded_notifications(h)) == 2)
        assert len([one for one in lines(h) if one["job"] == "asks"]) == 1, lines(h)
        result = expect(s.stop(), 0)
        assert "ended with 3" in result.err and "is retried in 1s" in result.err, result.err


@test
def an_mcp_process_that_owns_its_store_notifies_each_question_once():
    with home() as h:
        program = prepare(h)
        client = Stdio(h, "asks.yaml", "--notify", program).initialize()
        for agent in ("asks", "pays"):
            client.call(agent)
        until(lambda: len(lines(h)) >= 2)
        until(lambda: len(recorded_notifications(h)) == 2)
        assert sorted(one["kind"] for one in lines(h)) == ["approval", "wait"], lines(h)
        client.process.send_signal(signal.SIGKILL)
        client.process.wait()
        client = Stdio(h, "asks.yaml", "--notify", program).initialize()
        client.call("doubts")
        until(lambda: len(lines(h)) >= 3)
        until(lambda: len(recorded_notifications(h)) == 3)
        assert [one["kind"] for one in lines(h)[2:]] == ["in_doubt"], lines(h)
        code, _, err = client.close()
        assert code == 0, err


@test
def workers_on_one_postgres_store_notify_each_question_once():
    postgres = Postgres()
    try:
        with home() as h:
            program, env = prepare(h), {"AETHERIS_STORE": postgres.database()}
            creator = Server(h, "asks.yaml", "--workers", "0", "--notify", program, env=env)
            workers = [h.start("worker", "asks.yaml", "--notify", program, env=env) for _ in range(3)]
            waiting = {f"{agent}{n}" for agent in ("asks", "pays", "doubts", "spends") for n in range(5)}
            for job in waiting:
                assert creator.post("/api/jobs", {"agent": job[:-1], "id": job})[0] == 201
            until(lambda: {one["job"] for one in lines(h)} == waiting)
            until(lambda: len(recorded_notifications(h, env)) == len(waiting))
            # A worker that starts later checks all jobs that have not ended.
            workers.append(h.start("worker", "asks.yaml", "--notify", program, env=env))
            assert "uses store" in workers[-1].stdout.readline()  # before that, SIGTERM ends a process at once
            assert creator.post("/api/jobs", {"agent": "asks", "id": "later"})[0] == 201
            until(lambda: "later" in {one["job"] for one in lines(h)})
            until(lambda: len(recorded_notifications(h, env)) == len(waiting) + 1)
            for process in workers:
                process.send_signal(signal.SIGTERM)
            ended = [h.end(process) for process in workers]
            expect(creator.stop(), 0)
            assert [one.code for one in ended] == [0] * 4, ended
            notified = lines(h)
            assert len(notified) == len(waiting) + 1 and len({one["id"] for one in notified}) == len(notified), notified
            assert len(set(recorded_notifications(h, env))) == len(recorded_notifications(h, env)), recorded_notifications(h, env)
    finally:
        postgres.end()


if __name__ == "__main__":
    sys.exit(run_tests("notifications", TESTS, " ".join(sys.argv[1:])))
