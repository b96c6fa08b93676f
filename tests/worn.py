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

TESTS = []
KILLS = {"AETHERIS_FAILPOINTS": "decided.poison=exit"}
STALLS = {"AETHERIS_FAILPOINTS": "decided.poison=pause:600000"}
FILE = {
    "aetheris": 1,
    "tools": {"e": {"native": "echo", "effect": "read"},
              "hold": {"command": ["sh", "-c", "touch began; sleep 600"], "effect": "idempotent"}},
    "agents": {
        "poison": {"plan": [{"id": "poison", "tool": "e"}], "output": "done"},
        "calm": {"plan": [{"id": "a", "tool": "e"}], "output": "done"},
        "reads": {"plan": [{"id": "poison", "tool": "e"},
                           *({"id": one, "needs": [before], "wait": {"type": "message", "channel": "c"}}
                             for before, one in (("poison", "m1"), ("m1", "m2"), ("m2", "m3")))],
                  "output": "${ [.steps.m1, .steps.m2, .steps.m3] }"},
        "holds": {"plan": [{"id": "h", "tool": "hold"}], "output": "done"},
    },
}


def test(function):
    TESTS.append(function)
    return function


def agents(h):
    (h.path / "agents.yaml").write_text(json.dumps(FILE))


def expect_crash(h, env):
    """A server that must die of a job in its store."""
    process = h.start("serve", "agents.yaml", "--listen", "127.0.0.1:0", env=env)
    assert h.end(process).code == 137


def expect_parked_after_restart(h, env, failpoint):
    """The job is parked while the failpoint is active; others run, and `resume` runs it once the failpoint is removed."""
    server = Server(h, env=env | failpoint)
    until(lambda: server.status("p") == "parked")
    assert server.post("/api/jobs?wait=30s", {"agent": "calm", "id": "after"})[1]["status"] == "completed"
    assert server.status("before") == "completed"
    job = server.get("/api/jobs/p")[1]
    assert job["parked"]["reason"] == "worn_out" and job["parked"]["until"] == "resume", job["parked"]
    assert job["parked"]["command"] == "aetheris resume p", job["parked"]
    stuck = expect(h.run("jobs", "--stuck", env=server.env), 0).out
    assert "aetheris resume p" in stuck and "worn_out" in stuck, stuck
    shown = expect(h.run("job", "p", env=server.env), 0)
    assert "worn_out" in shown.out and "aetheris resume p" in shown.out, shown
    result = expect(h.run("run", "agents.yaml", "poison", "--job-id", "p", env=server.env), 4).err
    assert "worn_out" in result and "aetheris resume p" in result, result
    expect(server.stop(), 0)
    server = Server(h, env=env)
    assert server.status("p") == "parked"
    expect(h.run("resume", "p", env=server.env), 0)
    until(lambda: server.status("p") == "completed")
    expect(server.stop(), 0)
    expect(h.run("verify", "p", env=env), 0)


def check_job_that_kills(h, env):
    agents(h)
    server = Server(h, env=env | KILLS)
    assert server.post("/api/jobs?wait=30s", {"agent": "calm", "id": "before"})[1]["status"] == "completed"
    try:
        server.post("/api/jobs", {"agent": "poison", "id": "p"})
    except OSError:
        pass  # the server died before it responded
    assert h.end(server.process).code == 137
    expect_crash(h, env | KILLS)
    expect_parked_after_restart(h, env, KILLS)


def check_message_order(h, env):
    """Messages in the inbox of the job, and one that arrives when it is worn_out, are read in the order sent."""
    agents(h)
    creator = Server(h, "agents.yaml", "--workers", "0", env=env) if env else None

    def send(channel, text):
        more = creator.env if creator else {}
        assert expect(h.run("message", "p", channel, json.dumps(text), "--json", env=more), 0).json()["accepted"]

    if creator:
        assert creator.post("/api/jobs", {"agent": "reads", "id": "p"})[0] == 201
        expect_crash(h, env | KILLS)
    else:
        assert h.run("run", "agents.yaml", "reads", "--job-id", "p", env=KILLS).code == 137
    send("c", "one")
    send("d", "elsewhere")
    expect_crash(h, env | KILLS)
    send("c", "two")
    server = Server(h, env=env | KILLS)
    until(lambda: server.status("p") == "parked")
    log = server.get("/api/jobs/p/events")[1]["events"]
    assert log[-1]["payload"]["reason"] == "worn_out" and not [e for e in log if e["type"] == "agent_message"], log
    assert server.post("/api/jobs/p/message", {"channel": "c", "payload": "three"})[0] in (200, 202)
    expect(server.stop(), 0)
    if creator:
        expect(creator.stop(), 0)
    server = Server(h, env=env)
    expect(h.run("resume", "p", env=server.env), 0)
    until(lambda: server.status("p") == "completed")
    log = server.get("/api/jobs/p/events")[1]["events"]
    messages = [(event["payload"]["channel"], event["payload"]["payload"]) for event in log if event["type"] == "agent_message"]
    assert [text for channel, text in messages if channel == "c"] == ["one", "two", "three"], messages
    assert ("d", "elsewhere") in messages, messages
    assert server.get("/api/jobs/p")[1]["result"] == ["one", "two", "three"], server.get("/api/jobs/p")[1]
    expect(server.stop(), 0)
    expect(h.run("verify", "p", env=env), 0)


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
        agents(h)
        for i, ends in enumerate(((signal.SIGINT, signal.SIGTERM), (signal.SIGKILL,))):
            process = h.start("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json",
                              env=STALLS | {"AETHERIS_FAILPOINTS_TRACE": "1"})
            if i == 0:
                url = json.loads(process.stdout.readline())["listening"]
                asks = {"AETHERIS_URL": url}
                expect(h.run("run", "agents.yaml", "calm", "--job-id", "before", env=asks), 0)
                asking = h.start("run", "agents.yaml", "poison", "--job-id", "p", "--detach", env=asks)
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
        agents(h)
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
        agents(h)
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
        agents(h)
        h.store.parent.mkdir(exist_ok=True)
        os.mkdir(f"{h.store}.running")
        result = expect(h.run("run", "agents.yaml", "calm"), 0)
        assert ".running" in result.err and "will not be parked" in result.err, result.err


if __name__ == "__main__":
    sys.exit(run_tests("worn", TESTS, " ".join(sys.argv[1:])))
