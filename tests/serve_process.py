#!/usr/bin/env python3
"""The process `aetheris serve`: address, start and shutdown, workers, limits, logs.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  serve_process.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import sys
import threading
import time
import urllib.parse

from shared.home import PATIENCE, expect, home, run_tests, until
from shared.server import Server, serving

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def serve_prints_its_address_and_exits_with_0_on_sigterm():
    with serving() as s:
        assert s.get("/api/health")[0] == 200
        assert s.get("/api/ready") == (200, {"status": "ready"})
        expect(s.stop(), 0)


@test
def the_default_address_is_loopback():
    with home() as h:
        process = h.start("serve", "agents.yaml", "--json")
        line = process.stdout.readline()
        if line:
            assert json.loads(line)["listening"] == "http://127.0.0.1:7070", line
            process.send_signal(signal.SIGTERM)
            expect(h.end(process), 0)
        else:  # another program has the port
            result = expect(h.end(process), 7)
            assert "127.0.0.1:7070" in result.err, result


@test
def doctor_reports_a_stuck_job_while_a_server_runs():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--detach"), 0)
        s = Server(h, "--workers", "0")
        assert expect(h.run("doctor"), 0).out.endswith("\nok\n"), "the job is too new to be stuck"
        expect(s.stop(), 0)
        with sqlite3.connect(h.store) as store:
            store.execute("UPDATE heads SET updated_at = updated_at - 600000000")
        store.close()
        s = Server(h, "--workers", "0")
        result = expect(h.run("doctor", "--json"), 1).json()["problems"]
        assert [one["code"] for one in result] == ["stuck"] and "aetheris jobs --stalled" in result[0]["message"], result
        assert re.search(r"^a +queued", expect(h.run("jobs", "--stalled"), 0).out, re.M)


@test
def an_address_that_other_machines_can_reach_is_refused():
    with home() as h:
        result = expect(h.run("serve", "agents.yaml", "--listen", "0.0.0.0:0"), 2)
        assert "other machines" in result.err
        for bad in ("nowhere", "127.0.0.1:99999", "127.0.0.1:", "localhost:x"):
            expect(h.run("serve", "agents.yaml", "--listen", bad), 2)
        expect(h.run("serve", "agents.yaml", "--workers", "-1"), 2)
        expect(h.run("serve", "no-such-file.yaml"), 2)


@test
def requests_to_the_printed_address_are_answered():
    with home() as h:
        process = h.start("serve", "agents.yaml", "--listen", "127.0.0.2:0", "--json")
        address = urllib.parse.urlsplit(json.loads(process.stdout.readline())["listening"]).netloc
        assert address.startswith("127.0.0.2:"), address
        for name, status in ((address, 200), (address.replace("127.0.0.2", "localhost"), 200), ("evil.example", 400)):
            connection = http.client.HTTPConnection(address, timeout=PATIENCE)
            connection.request("GET", "/api/jobs", headers={"Host": name})
            assert connection.getresponse().status == status, name
            connection.close()
        process.send_signal(signal.SIGTERM)
        expect(h.end(process), 0)


@test
def a_port_in_use_is_reported():
    with serving() as s, home() as other:
        result = other.run("serve", "agents.yaml", "--listen", s.address)
        assert result.code == 7 and s.address.split(":")[1] in result.err and "[unavailable]" in result.err, result


@test
def a_second_owner_of_a_store_is_refused():
    with serving() as s:
        result = expect(s.h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0"), 7)
        assert str(s.process.pid) in result.err, result


@test
def shutdown_finishes_calls_in_flight_and_answers_waiting_clients():
    with serving() as s:
        s.post("/api/jobs", {"agent": "holds", "id": "h"})
        s.h.wait_for_hold()
        waiting = {}
        client = threading.Thread(target=lambda: waiting.update(
            answer=s.get("/api/jobs/h/events?after=1000&wait=60s")))
        client.start()
        until(lambda: "aetheris_requests_waiting 1\n" in s.get("/metrics")[1])
        s.process.send_signal(signal.SIGTERM)
        client.join(PATIENCE)
        assert waiting["answer"][0] == 200, waiting
        s.h.release_hold()
        expect(s.h.end(s.process), 0)
        again = Server(s.h)
        until(lambda: again.status("h") == "completed")
        assert len((s.h.path / "began.txt").read_text().splitlines()) == 1, "the call was not repeated"


@test
def a_second_signal_ends_shutdown_immediately():
    with serving() as s:
        s.post("/api/jobs", {"agent": "holds", "id": "h"})
        s.h.wait_for_hold()
        s.process.send_signal(signal.SIGTERM)
        until(lambda: s.process.stderr.readline().startswith("Shutting down"))
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(PATIENCE) == 128 + signal.SIGTERM
        s.h.release_hold()
        again = Server(s.h)
        until(lambda: again.status("h") == "completed")


@test
def a_killed_server_resumes_its_jobs():
    with serving() as s:
        s.post("/api/jobs", {"agent": "holds_and_asks", "id": "h"})
        s.h.wait_for_hold()
        expect(s.stop(signal.SIGKILL), -signal.SIGKILL)
        s.h.release_hold()
        again = Server(s.h)
        until(lambda: again.status("h") == "waiting")
        again.post("/api/jobs/h/signal", {"correlation_key": "k", "payload": {"yes": 1}})
        until(lambda: again.status("h") == "completed")
        assert again.get("/api/jobs/h/verify")[1]["ok"]


@test
def without_workers_jobs_are_queued_and_not_run():
    with serving("agents.yaml", "--workers", "0") as s:
        status, job = s.post("/api/jobs?wait=300ms", {"agent": "echo", "input": {"n": 3}})
        assert (status, job["status"]) == (201, "queued"), job
        expect(s.stop(), 0)
        again = Server(s.h)
        until(lambda: again.status(job["id"]) == "completed")


@test
def jobs_above_the_number_of_workers_stay_queued():
    with serving("agents.yaml", "--workers", "1") as s:
        s.post("/api/jobs", {"agent": "holds", "id": "h"})
        s.h.wait_for_hold()
        s.post("/api/jobs", {"agent": "echo", "id": "e"})
        assert s.get("/api/health")[1]["held"] == 1
        assert s.status("e") == "queued"
        s.h.release_hold()
        until(lambda: s.status("e") == "completed")


@test
def agents_tools_workers_and_metrics_are_reported():
    with serving() as s:
        s.post("/api/jobs?wait=30s", {"agent": "flaky"})
        names = [agent["name"] for agent in s.get("/api/agents")[1]["agents"]]
        assert "flaky" in names and names == sorted(names)
        assert s.get("/api/tools")[1]["tools"]
        assert s.get("/api/workers")[1]["workers"][0]["held"] == 0
        text = s.get("/metrics")[1]
        assert 'aetheris_job_total{status="completed"} 1\n' in text, text
        assert "aetheris_step_retries_total 1\n" in text, text
        document = s.get("/openapi.json")[1]
        assert document["openapi"] == "3.1.0" and "/api/jobs/{id}" in document["paths"]


@contextlib.contextmanager
def idle_clients(address, count):
    """That many connections that send nothing. Raises the descriptor limit of this process for them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 500, limits[1]), limits[1]))
    host, _, port = address.rpartition(":")
    peers = []
    try:
        for _ in range(count):
            peers.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
        yield peers
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


PROGRAMS = """
aetheris: 1
tools:
  limit: { command: ["sh", "-c", "ulimit -Sn"], effect: at_most_once }
agents:
  limit: { plan: [ { id: s, tool: limit } ], output: "${ .steps.s }" }
"""


@contextlib.contextmanager
def serving_with(soft, hard):
    """A server with these limits of descriptors."""
    with home() as h:
        (h.path / "programs.yaml").write_text(PROGRAMS)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        try:
            # The hard limit of the child alone: it cannot be raised again.
            s = Server(h, "programs.yaml", prefix=["prlimit", f"--nofile={soft}:{hard}"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        yield s


@test
def idle_connections_do_not_block_jobs_or_other_clients():
    # With the usual limit, which is raised; with one that cannot be raised; and with a small one.
    for soft, hard, clients in ((1024, 4096, 1100), (1024, 1024, 1100), (256, 256, 400)):
        with serving_with(soft, hard) as s, idle_clients(s.address, clients):
            assert s.get("/api/ready")[0] == 200
            for _ in range(5):
                status, job = s.post("/api/jobs?wait=30s", {"agent": "limit"})
                assert (status, job["status"]) == (201, "completed"), (soft, hard, job)
                assert job["result"] == str(soft), "a program keeps the original limit"
            result = expect(s.stop(), 0)
            assert "idle connections were closed" in result.err, result
            assert len([line for line in result.err.splitlines() if " job " not in line]) < 10, result


@test
def a_program_that_cannot_start_for_lack_of_descriptors_is_retried():
    with serving_with(1024, 1024) as s:
        s.post("/api/jobs?wait=30s", {"agent": "limit"})
        # So few that no program can be started; open descriptors stay open.
        open_now = len(os.listdir(f"/proc/{s.process.pid}/fd"))
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (open_now + 4, 1024))
        s.post("/api/jobs", {"agent": "limit", "id": "later"})
        until(lambda: any(e["type"] == "tool_invocation_finished" for e in s.get("/api/jobs/later/events")[1]["events"]))
        event = [e for e in s.get("/api/jobs/later/events")[1]["events"] if e["type"] == "tool_invocation_finished"][0]
        assert event["payload"]["error"]["code"] == "not_sent", event
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        until(lambda: s.status("later") == "completed")


@test
def each_event_is_logged_as_one_line_without_values_of_jobs():
    with home() as h:
        server = Server(h, "agents.yaml", "--log", "json", "-v")
        server.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a", "input": {"n": 77001}})
        server.post("/api/jobs?wait=30s", {"agent": "fails", "id": "b"})
        server.post("/api/jobs?wait=30s", {"agent": "asks", "id": "c"})
        server.post("/api/jobs/c/pause", {})
        server.get("/api/jobs/nobody")
        result = expect(server.stop(), 0)
        lines = [json.loads(line) for line in result.err.splitlines()]
        assert all({"ts", "level", "event", "worker"} <= set(line) for line in lines), lines
        logged = [(line["event"], line.get("job"), line.get("code")) for line in lines]
        for one in (("store_created", None, None), ("started", None, None), ("job_created", "a", None), ("job_completed", "a", None),
                    ("job_failed", "b", "no_money"), ("request_refused", None, "not_found"), ("stopping", None, None),
                    ("stopped", None, None)):
            assert one in logged, (one, logged)
        assert "77001" not in result.err and "the account is empty" not in result.err, result.err
        text = Server(h, "agents.yaml", "--log", "text")
        text.post("/api/jobs?wait=30s", {"agent": "echo", "id": "d"})
        result = expect(text.stop(), 0)
        assert "info job d completed" in result.err and "info job d created" in result.err, result.err
        quiet = Server(h, "agents.yaml", "--quiet")
        quiet.post("/api/jobs?wait=30s", {"agent": "echo", "id": "e"})
        result = expect(quiet.stop(), 0).err
        if os.geteuid() == 0:
            warning, _, result = result.partition("\n")
            assert "running as root" in warning, warning
        assert result.startswith("Shutting down; waiting "), result


APPROVED = """
aetheris: 1
tools: { stamp: { native: echo, effect: at_most_once, approval: required }, lost: { native: doubt, effect: at_most_once } }
agents:
  a: { plan: [ { id: s, tool: stamp, args: { n: 77002 } } ] }
  d: { plan: [ { id: l, tool: lost, args: { message: lost } } ] }
"""


@test
def each_change_of_a_jobs_status_is_a_line_on_stderr():
    with home() as h:
        (h.path / "w.yaml").write_text(APPROVED)
        s = Server(h, "w.yaml", "agents.yaml")
        for agent, job in (("echo", "e"), ("fails", "f"), ("a", "w"), ("asks", "s"), ("sleeps", "t")):
            s.post("/api/jobs?wait=30s", {"agent": agent, "id": job, "input": {"n": 77003}})
        until(lambda: s.status("w") == "waiting" and s.status("s") == "waiting")
        s.post("/api/jobs/s/pause", {})
        until(lambda: s.status("s") == "parked")
        approval = s.get("/api/approvals?job=w")[1]["approvals"][0]["id"]
        expect(h.run("approve", approval), 0)
        until(lambda: s.status("w") == "completed")
        until(lambda: s.status("t") == "completed")
        s.post("/api/jobs?wait=30s", {"agent": "d", "id": "d"})
        result = expect(s.stop(), 0).err
        lines = [line.split(" ", 1)[1] for line in result.splitlines() if " job " in line]
        for line in ("job e started: agent echo", "job e completed", "job f failed (no_money) at node f",
                     "job w started: agent a",
                     f"job w waiting for approval of a call at node s; run: aetheris approve {approval}",
                     "job w resumed: agent a", "job w completed",
                     "job s waiting for a signal at node w; run: aetheris job s",
                     "job s parked (paused): until resumed; run: aetheris resume s",
                     "job t waiting for a timer at node t", "job t completed"):
            assert line in lines, (line, result)
        doubt = [line for line in lines if line.startswith("job d parked")]
        assert len(doubt) == 1 and doubt[0].endswith("; run: aetheris job d"), result
        assert "77002" not in result and "77003" not in result and "account is empty" not in result, result
        s = Server(h, "w.yaml", "--log", "json")
        s.post("/api/jobs?wait=30s", {"agent": "a", "id": "w2"})
        lines = [json.loads(line) for line in expect(s.stop(), 0).err.splitlines()]
        one = [line for line in lines if line["event"] == "job_waiting" and line["job"] == "w2"][0]
        assert one["node"] == "s" and one["question"] == "approval", one
        assert one["answer"].startswith("aetheris approve w2."), one
        assert [line["agent"] for line in lines if line["event"] == "job_running"] == ["a"], lines


@test
def a_blocked_stderr_does_not_block_jobs():
    with home() as h:
        s = Server(h, "agents.yaml")  # nothing reads its stderr
        for _ in range(6):
            made = [s.post("/api/jobs", {"agent": "echo"})[1]["id"] for _ in range(100)]
            until(lambda: all(s.status(job) == "completed" for job in made[-5:]))
            time.sleep(1)
        result = expect(s.stop(), 0).err
        assert "completed" in result and len(result) < 200_000, len(result)


@test
def a_server_whose_disk_is_full_is_not_ready_until_a_write_succeeds():
    with serving() as s:
        limits = resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
        status, problem = s.post("/api/jobs", {"agent": "asks", "input": {"n": "x" * 100_000}})
        assert (status, problem["code"]) == (503, "unavailable"), problem
        status, problem = s.get("/api/ready")
        assert (status, problem["code"]) == (503, "unavailable") and "last write" in problem["detail"], problem
        assert s.get("/api/health")[0] == 200 and s.get("/api/jobs")[0] == 200 and s.process.poll() is None
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, limits)
        assert s.post("/api/jobs?wait=30s", {"agent": "echo"})[1]["status"] == "completed"
        assert s.get("/api/ready") == (200, {"status": "ready"}), "a write that succeeds ends it at once"


if __name__ == "__main__":
    sys.exit(run_tests("serve_process", TESTS, " ".join(sys.argv[1:])))
