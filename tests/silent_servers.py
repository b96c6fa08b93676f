#!/usr/bin/env python3
"""Servers that do not respond, and how commands, services and browsers handle them.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  silent_servers.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import expect, home, run_tests  # noqa: E402
from shared.postgres_server import Postgres  # noqa: E402
from shared.server import Server, serving  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_frozen_server_times_out_before_anything_is_sent_and_doctor_reports_it():
    with home() as h:
        s = Server(h)
        assert s.post("/api/jobs", {"agent": "asks", "id": "a"})[0] == 201
        s.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            result = expect(h.run("cancel", "a", env=s.env), 7)
            assert time.monotonic() - began < 30, "five seconds, and what the machine needs"
            assert "nothing was sent" in result.err, result
            problems = expect(h.run("doctor", "--json"), 1).json()["problems"]
            one, = [problem for problem in problems if problem["code"] == "owner_silent"]
            assert f"process {s.process.pid} " in one["message"], one
        finally:
            s.process.send_signal(signal.SIGCONT)
        assert "owner_silent" not in h.run("doctor", "--json").out
        assert s.status("a") in ("waiting", "running", "queued")
        expect(s.stop(), 0)


@test
def a_service_waits_for_its_database_for_wait_store():
    with home() as h:
        nowhere = "postgres://127.0.0.1:1/x"
        for words in (["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["worker", "agents.yaml"]):
            result = expect(h.run(*words, "--store", nowhere, "--wait-store", "1s"), 7)
            assert "retrying in" in result.err, result
            result = expect(h.run(*words, "--store", nowhere, "--wait-store", "0s"), 7)
            assert "retrying in" not in result.err, result


@test
def a_service_started_before_its_database_works_once_it_is_available():
    postgres = Postgres()
    try:
        with home() as h:
            env = {"AETHERIS_STORE": postgres.database()}
            postgres.control("kill")
            processes = [h.start("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json", "--workers", "0", env=env),
                         h.start("worker", "agents.yaml", env=env)]
            waited = [process.stderr.readline() for process in processes]
            assert all("retrying in" in line for line in waited), waited
            postgres.control("start")
            url = json.loads(processes[0].stdout.readline())["listening"]
            result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}', env={"AETHERIS_URL": url}), 0)
            assert result.json() == {"n": 7}, result
            for process in processes:
                process.send_signal(signal.SIGTERM)
                expect(h.end(process), 0)
    finally:
        postgres.end()


@test
def cross_site_requests_are_rejected():
    with serving() as s:
        cross = {"Sec-Fetch-Site": "cross-site"}
        assert s.get("/api/jobs", headers=cross)[0] == 403
        assert s.get("/api/health", headers=cross)[0] == 200
        assert s.get("/api/jobs", headers={"Sec-Fetch-Site": "same-origin"})[0] == 200
        expect(s.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_tests("silent servers", TESTS, " ".join(sys.argv[1:])))
