#!/usr/bin/env python3
"""A job that kills or stalls its process within a slice: after the second time it is parked, and all other jobs run.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  worn.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.server import Server  # noqa: E402
from shared.worn_jobs import KILLS, STALLS, check_job_that_kills, check_message_order, expect_parked_after_restart, write_agents  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def messages_to_a_worn_out_job_stay_in_order():
    with home() as h:
        check_message_order(h, {})


@test
def a_job_that_kills_its_process_twice_is_parked_and_other_jobs_run():
    with home() as h:
        check_job_that_kills(h, {})
        assert pathlib.Path(f"{h.store}.running").stat().st_mode & 0o777 == 0o600


@test
def a_job_that_stalls_its_process_until_it_is_killed_twice_is_parked():
    with home() as h:
        write_agents(h)
        for i, ends in enumerate(((signal.SIGINT, signal.SIGTERM), (signal.SIGKILL,))):
            process = h.start("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json",
                              env=STALLS | {"AETHERIS_FAILPOINTS_TRACE": "1"})
            if i == 0:
                url = json.loads(process.stdout.readline())["listening"]
                service_env = {"AETHERIS_URL": url}
                expect(h.run("run", "agents.yaml", "calm", "--job-id", "before", env=service_env), 0)
                asking = h.start("run", "agents.yaml", "poison", "--job-id", "p", "--detach", env=service_env)
            for line in process.stderr:
                if "decided.poison" in line:
                    break
            for one in ends:
                os.kill(process.pid, one)
            assert h.end(process).code != 0
        h.end(asking)
        expect_parked_after_restart(h, {}, STALLS)


@test
def run_reports_how_to_resume_a_job_that_killed_it_twice():
    with home() as h:
        write_agents(h)
        for _ in range(2):
            assert h.run("run", "agents.yaml", "poison", "--job-id", "p", env=KILLS).code == 137
        result = expect(h.run("run", "agents.yaml", "poison", "--job-id", "p", env=KILLS), 4).err
        assert "worn_out" in result and "aetheris resume p" in result, result
        expect(h.run("run", "agents.yaml", "calm", env=KILLS), 0)
        expect(h.run("resume", "p"), 0)
        assert h.run("run", "agents.yaml", "poison", "--job-id", "p", env=KILLS).code == 137
        expect(h.run("run", "agents.yaml", "poison", "--job-id", "p", env=KILLS), 4)
        expect(h.run("cancel", "p"), 0)
        until(lambda: expect(h.run("job", "p", "--json"), 0).json()["status"] in ("cancelled", "queued"))
        h.run("run", "agents.yaml", "calm", env=KILLS)
        assert expect(h.run("job", "p", "--json"), 0).json()["status"] == "cancelled"


@test
def kills_during_a_call_in_flight_park_no_job():
    with home() as h:
        write_agents(h)
        for i in range(3):
            server = Server(h)
            if i == 0:
                assert server.post("/api/jobs", {"agent": "holds", "id": "long"})[0] == 201
            until(lambda: (h.path / "began").exists())
            (h.path / "began").unlink()
            os.kill(server.process.pid, signal.SIGKILL)
            h.end(server.process)
        server = Server(h)
        until(lambda: (h.path / "began").exists())
        assert server.status("long") == "running"
        events = server.get("/api/jobs/long/events")[1]["events"]
        assert not [event for event in events if event["type"] == "job_parked"], events
        expect(h.run("cancel", "long", env=server.env), 0)
        os.kill(server.process.pid, signal.SIGKILL)
        h.end(server.process)


@test
def a_running_file_that_cannot_be_written_causes_a_warning():
    with home() as h:
        write_agents(h)
        h.store.parent.mkdir(exist_ok=True)
        os.mkdir(f"{h.store}.running")
        result = expect(h.run("run", "agents.yaml", "calm"), 0)
        assert ".running" in result.err and "will not be parked" in result.err, result.err


if __name__ == "__main__":
    sys.exit(run_tests("worn", TESTS, " ".join(sys.argv[1:])))
