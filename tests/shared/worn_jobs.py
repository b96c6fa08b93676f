"""Jobs that kill or stall their process, for stores of either kind: used by worn.py and postgres_processes.py."""
import json

from shared.home import expect, until
from shared.server import Server

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


def write_agents(h):
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
    stuck = expect(h.run("jobs", "--stalled", env=server.env), 0).out
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
    write_agents(h)
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
    write_agents(h)
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
