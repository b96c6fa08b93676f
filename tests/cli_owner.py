#!/usr/bin/env python3
"""The process that owns a store: commands from other terminals, crashes, signals, failpoints and disk errors.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_owner.py [WORDS]   only tests whose name contains WORDS
"""
import http.client
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time

from shared.home import AGENTS, PATIENCE, expect, home, run_tests, until
from shared.sanitizer import sanitizer

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_running_job_is_shown_and_signalled_from_a_second_terminal():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds_and_asks", "--job-id", "r")
        h.wait_for_hold()
        sock = h.path / ".aetheris/aetheris.sock"
        mode = sock.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode)
        watcher = h.start("events", "r", "-f", "--json")
        assert expect(h.run("job", "r", "--json"), 0).json()["status"] == "running"
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["r"]
        for words in (["trace", "r"], ["replay", "r"], ["verify", "r"], ["doctor"]):
            expect(h.run(*words), 0)
        body = until(lambda: h.run("signal", "r", "k", '"hi"', "--json"))
        assert body.code == 0 and (body.json().get("accepted") or body.json().get("delivered")), body
        again = h.start("run", "agents.yaml", "--job-id", "r")
        h.release_hold()
        assert expect(h.end(again), 0).out == "hi\n"
        assert expect(h.end(runner), 0).out == "hi\n"
        seen = [json.loads(line) for line in expect(h.end(watcher), 0).out.splitlines()]
        assert seen == expect(h.run("events", "r", "--json"), 0).json()["events"]
        assert not sock.exists()


@test
def a_detached_job_is_run_by_the_busy_owner():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        result = expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "e", "--input", '{"n":1}'), 0)
        assert result.out == "e\n"
        until(lambda: h.run("job", "e", "--json").json()["status"] == "completed")
        assert expect(h.run("run", "agents.yaml", "--job-id", "e"), 0).json() == {"n": 1}
        h.release_hold()
        expect(h.end(runner), 0)


@test
def the_socket_of_the_owner_serves_the_http_api():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()

        class Unix(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(PATIENCE)
                self.sock.connect(str(h.path / ".aetheris/aetheris.sock"))

        def send_request(method, path, body=None, headers=None):
            connection = Unix("localhost")
            connection.request(method, path, body and json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer, json.loads(answer.read())

        answer, body = send_request("GET", "/api/health")
        assert answer.status == 200 and body["status"] == "ok"
        answer, body = send_request("POST", "/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 3}},
                                    {"Idempotency-Key": "k"})
        assert answer.status == 201 and body["status"] == "completed" and body["result"] == {"n": 3}, body
        assert answer.getheader("Location") == "/api/jobs/" + body["id"]
        answer, again = send_request("POST", "/api/jobs", {"agent": "echo", "input": {"n": 3}}, {"Idempotency-Key": "k"})
        assert answer.status == 200 and again["id"] == body["id"]
        answer, body = send_request("POST", "/api/jobs", {"agent": "echo", "input": {"n": 4}}, {"Idempotency-Key": "k"})
        assert answer.status == 409 and body["code"] == "idempotency_conflict"
        assert answer.getheader("Content-Type") == "application/problem+json"
        answer, body = send_request("POST", "/api/jobs", {"agent": "echo", "input": {"n": "x"}})
        assert answer.status == 400 and body["code"] == "input_invalid"
        answer, body = send_request("GET", "/api/jobs/r/events?limit=2")
        assert len(body["events"]) == 2 and body["next"] == 2
        answer, body = send_request("GET", "/api/jobs/nobody")
        assert answer.status == 404
        answer, body = send_request("DELETE", "/api/jobs/r")
        assert answer.status == 405
        connection = Unix("localhost")
        connection.request("GET", "/api/jobs/r/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "2"})
        stream = connection.getresponse()
        assert stream.getheader("Content-Type").startswith("text/event-stream")
        first = stream.readline().decode()
        assert first == "id: 3\n", first
        h.release_hold()
        rest = stream.read().decode()
        assert "event: job_completed" in rest
        expect(h.end(runner), 0)


@test
def a_killed_run_resumes_where_it_stopped():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        h.release_hold()
        left = expect(h.run("job", "r", "--json"), 0).json()
        assert left["status"] == "running" and left["no_worker"]["commands"][0] == "aetheris run FILE --job-id r", left
        seen = expect(h.run("job", "r"), 0).out
        assert f":{runner.pid}, its last worker, is gone" in seen and "aetheris run FILE --job-id r\n" in seen, seen
        stuck = expect(h.run("jobs", "--stalled"), 0).out
        assert "no_worker: no process runs jobs of this store" in stuck and "1970" not in stuck, stuck
        assert "aetheris run FILE --job-id r\n" in stuck and "aetheris worker" not in stuck, stuck
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert expect(h.run("job", "r", "--json"), 0).json()["no_worker"] is None
        assert "no stalled jobs" in expect(h.run("jobs", "--stalled"), 0).err
        events = expect(h.run("events", "r", "--json"), 0).json()["events"]
        assert sum(e["type"] == "job_running" for e in events) == 2
        assert sum(e["type"] == "job_created" for e in events) == 1
        expect(h.run("verify", "r"), 0)


@test
def a_killed_at_most_once_call_is_not_repeated_until_it_is_resolved():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds_once", "--job-id", "r")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        h.release_hold()
        result = expect(h.run("run", "agents.yaml", "--job-id", "r"), 4)
        assert "aetheris resolve r" in result.err
        assert (h.path / "began.txt").read_text() == "began\n"
        key = expect(h.run("job", "r", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        expect(h.run("resolve", "r", key, "not_happened"), 0)
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert (h.path / "began.txt").read_text() == "began\nbegan\n"
        expect(h.run("verify", "r"), 0)


@test
def ctrl_c_waits_for_the_call_in_flight_and_prints_how_to_resume():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "30s")
        h.wait_for_hold()
        runner.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert runner.poll() is None  # the call in flight has its grace
        h.release_hold()
        result = expect(h.end(runner), 130)
        assert "for the call in flight: " in result.err and "aetheris run agents.yaml --job-id r" in result.err, result
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert (h.path / "began.txt").read_text() == "began\n"


@test
def ctrl_c_prints_the_job_in_json():
    with home() as h:
        for times in (1, 2):
            job = f"r{times}"
            (h.path / "began.txt").unlink(missing_ok=True)
            runner = h.start("run", "agents.yaml", "holds", "--job-id", job, "--json", "--grace",
                             "100ms" if times == 1 else "60s")
            h.wait_for_hold()
            for _ in range(times):
                runner.send_signal(signal.SIGINT)
                time.sleep(0.05)
            result = expect(h.end(runner), 130)
            body = result.json()
            assert body["id"] == job and body["agent"] == "holds" and body["status"] in ("running", "queued"), result
            assert set(body) == set(expect(h.run("job", job, "--json"), 0).json())
            assert f"aetheris run agents.yaml --job-id {job}" in result.err, result
            if times == 1:
                assert result.out.count("\n") == 1
                expect(h.run("cancel", job), 0)


@test
def ctrl_c_twice_stops_immediately():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "60s")
        h.wait_for_hold()
        runner.send_signal(signal.SIGINT)
        time.sleep(0.2)
        runner.send_signal(signal.SIGINT)
        result = expect(h.end(runner), 130)
        assert "--job-id r" in result.err
        h.release_hold()
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"


@test
def a_call_is_stopped_at_the_end_of_the_grace_period():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "100ms")
        h.wait_for_hold()
        runner.send_signal(signal.SIGINT)
        expect(h.end(runner), 130)
        h.release_hold()
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"


@test
def a_frozen_owner_does_not_block_other_commands():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        runner.send_signal(signal.SIGSTOP)
        try:
            assert expect(h.run("job", "r", "--json"), 0).json()["status"] == "running"
            result = expect(h.run("cancel", "r"), 7)
            assert str(runner.pid) in result.err
        finally:
            runner.send_signal(signal.SIGCONT)
        h.release_hold()
        expect(h.end(runner), 0)


@test
def two_stores_in_one_folder_have_two_owners():
    with home() as h:
        one = h.start("run", "agents.yaml", "holds", "--job-id", "one")
        h.wait_for_hold()
        other = ("--store", "sqlite:.aetheris/other.db")
        two = h.start("run", "agents.yaml", "holds_and_asks", "--job-id", "two", *other)
        h.wait_for_hold(2)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["one"]
        assert [j["id"] for j in expect(h.run("jobs", "--json", *other), 0).json()["jobs"]] == ["two"]
        expect(h.run("signal", "two", "k", "1", *other), 0)
        expect(h.run("signal", "two", "k", "1"), 3)
        h.release_hold()
        expect(h.end(one), 0)
        expect(h.end(two), 0)


@test
def failpoints_are_parsed_traced_and_applied():
    with home() as h:
        for bad in ("append.before", "append.before=explode", "append.before=exit@0", "=exit", "x=pause:"):
            expect(h.run("run", "agents.yaml", "echo", env={"AETHERIS_FAILPOINTS": bad}), 2)
        result = expect(h.run("run", "agents.yaml", "echo", env={"AETHERIS_FAILPOINTS_TRACE": "1"}), 0)
        assert "failpoint append.before@1\n" in result.err and "failpoint tool.before@1\n" in result.err, result
        hits = int(max(re.findall(r"failpoint append\.before@(\d+)", result.err), key=int))
        for durability in ("fused", "split"):
            for n in range(1, hits + 1):
                job = f"{durability}{n}"
                words = ("run", "agents.yaml", "echo", "--job-id", job, "--durability", durability,
                         "--input", '{"n":5}')
                env = {"AETHERIS_FAILPOINTS": f"append.before=exit@{n}"}
                expect(h.run(*words, env=env), 137)
                assert expect(h.run(*words), 0).json() == {"n": 5}
                expect(h.run("verify", job), 0)


@test
def a_failing_disk_ends_the_run_and_the_next_run_resumes():
    with home() as h:
        (h.path / "agents.yaml").write_text(AGENTS.replace("for: 700ms", "for: 10ms"))
        ends = set()
        for n in range(1, 40):
            strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
                      "-e", f"inject=fdatasync,fsync:error=EIO:when={n}+"]
            done = subprocess.run([*strace, h.program, "run", "agents.yaml", "sleeps", "--job-id", f"j{n}"], cwd=h.path,
                                  env={**h.env, **sanitizer("detect_leaks=0")}, capture_output=True, text=True,
                                  timeout=PATIENCE)
            ends.add(done.returncode)
            if done.returncode == 0:
                break
            assert done.returncode == 7 and done.stdout == "", done
            assert done.stderr.count("tried again") <= 1, done.stderr
            if "[store_stopped]" in done.stderr:
                ends.add("stopped")
            # The disk works again: the job is resumed, or started.
            expect(h.run("run", "agents.yaml", "sleeps", "--job-id", f"j{n}"), 0)
        assert {0, 7, "stopped"} <= ends, ends


if __name__ == "__main__":
    sys.exit(run_tests("cli_owner", TESTS, " ".join(sys.argv[1:])))
