#!/usr/bin/env python3
"""Commands that use a server (AETHERIS_URL) instead of a store.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  serve_client.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.client
import http.server
import json
import signal
import socket
import sys
import threading
import time

from shared.home import PATIENCE, expect, home, run_tests, until
from shared.server import Scripted, Server, serving, test_server

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def commands_return_the_same_from_a_server_as_from_a_store():
    with serving() as s:
        result = expect(s.h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', env=s.env), 0)
        assert result.json() == {"n": 2}
        made = expect(s.h.run("run", "agents.yaml", "asks", "--job-id", "a", "--detach", env=s.env), 0)
        assert made.out == "a\n"
        until(lambda: s.status("a") == "waiting")
        blocked = expect(s.h.run("run", "agents.yaml", "asks", "--job-id", "a", env=s.env), 4)
        assert "aetheris signal a go-a" in blocked.err, blocked
        expect(s.h.run("signal", "a", "go-a", "7", env=s.env), 0)
        until(lambda: s.status("a") == "completed")
        for words in (["jobs"], ["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["verify", "a"]):
            there = expect(s.h.run(*words, "--json", env=s.env), 0)
            here = expect(s.h.run(*words, "--json"), 0)
            assert there.json() == here.json(), words
        expect(s.h.run("job", "nobody", env=s.env), 3)


@test
def an_approval_of_a_call_whose_tool_has_changed_is_reported_as_not_applied():
    with home() as h:
        def file(word):
            (h.path / "v.yaml").write_text(f"""
aetheris: 1
tools: {{ stamp: {{ command: [echo, {word}], effect: read, approval: required }} }}
agents: {{ a: {{ plan: [ {{ id: s, tool: stamp, args: {{}} }} ], output: "${{ .steps.s }}" }} }}
""")
        file("one")
        expect(h.run("run", "v.yaml", "--job-id", "j"), 4)
        approvals = lambda: expect(h.run("approvals", "--json"), 0).json()["approvals"]
        first = approvals()[0]["id"]
        file("two")
        s = Server(h, "v.yaml")
        result = expect(h.run("approve", first), 5)
        assert "approved" in result.out and "will not be made" in result.err and '"stamp" has changed' in result.err, result
        until(lambda: [one["id"] for one in approvals()] not in ([], [first]))
        second = approvals()[0]["id"]
        status, body = s.post(f"/api/approvals/{second}", {"decision": "approve"})
        assert status == 200 and "applied" not in body, body
        until(lambda: s.status("j") == "completed")
        assert s.get("/api/jobs/j")[1]["result"] == "two"
        expect(s.stop(), 0)


@test
def an_unreachable_server_exits_with_7():
    with home() as h:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert "no server responds" in expect(h.run("jobs", env={"AETHERIS_URL": url}), 7).err
        expect(h.run("jobs", env={"AETHERIS_URL": "127.0.0.1:1"}), 2)


# What each command does when AETHERIS_URL names a server: it uses the server, rejects the URL because it needs the store, or
# needs neither. serve and worker are servers themselves.
USES_SERVER = {"run": ["agents.yaml", "echo"], "jobs": [], "job": ["j"], "events": ["j"], "trace": ["j"], "transcript": ["j"], "replay": ["j"], "verify": ["j"],
               "signal": ["j", "k", "1"], "message": ["j", "c", "1"], "approvals": [], "requests": [], "approve": ["j.0123456789abcdef"],
               "reject": ["j.0123456789abcdef"], "pause": ["j"], "resume": ["j"], "budget": ["j", "--tokens", "5"], "cancel": ["j"],
               "resolve": ["j", "k" * 12, "fail"], "fork": ["j", "--at", "3"], "retry": ["j"], "plan": ["j", "agents.yaml"],
               "redact": ["j", "--all", "--reason", "why"], "audit": [], "keys": ["list"], "mcp": [],
               "prune": ["--older-than", "90d"], "divergence": ["j"], "workers": [], "preflight": ["agent", "j"],
               "chat": ["agents.yaml", "--job", "j"], "register": ["agents.yaml"]}


NEEDS_STORE = {"inspect": [], "rebuild": [], "migrate": [], "backup": ["b.db"], "restore": ["b.db"], "doctor": []}


NEEDS_NEITHER = {"init": ["demo"], "check": ["agents.yaml"], "completion": ["bash"], "version": []}


IS_SERVER = {"serve", "worker", "dev"}


@test
def each_command_uses_the_server_or_rejects_the_url():
    with home() as h:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env = {"AETHERIS_URL": f"http://127.0.0.1:{free.getsockname()[1]}"}
        help_text = expect(h.run("--help"), 0).out
        listed = help_text.split("\nRun:\n")[1].split("Get started:")[0]
        commands = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2:3].strip()}
        (h.path / "agent").write_text("#!/bin/sh\n")
        (h.path / "agent").chmod(0o755)
        known = USES_SERVER.keys() | NEEDS_STORE.keys() | NEEDS_NEITHER.keys() | IS_SERVER
        assert commands == known, commands ^ known
        for name, words in USES_SERVER.items():
            assert "no server responds" in expect(h.run(name, *words, env=env), 7).err, name
        for name, words in NEEDS_STORE.items():
            result = expect(h.run(name, *words, "--json", env=env), 2)
            assert result.json()["code"] == "usage" and "needs direct access to the store: unset AETHERIS_URL" in result.err, (name, result)
        for name, words in NEEDS_NEITHER.items():
            expect(h.run(name, *words, env=env), 0)
        assert not h.store.exists(), "no local store was used"


@test
def a_store_and_a_server_url_are_mutually_exclusive():
    with serving() as s:
        other = ["--store", "sqlite:other.db"]
        for name, words in USES_SERVER.items():
            for store in (other, ["--store=sqlite:other.db"]):
                result = expect(s.h.run(name, *words, *store, "--json", env=s.env), 2)
                assert result.json()["code"] == "usage" and "AETHERIS_URL" in result.err, (name, result)
        for name in IS_SERVER:
            result = expect(s.h.run(name, "agents.yaml", env={**s.env, "AETHERIS_STORE": "sqlite:other.db"}), 2)
            assert "AETHERIS_URL" in result.err and "--store" in result.err, (name, result)
        assert not (s.h.path / "other.db").exists()
        # --store is explicit: a server beside another one.
        second = s.h.start("serve", "agents.yaml", *other, "--listen", "127.0.0.1:0", "--json", env=s.env)
        url = json.loads(second.stdout.readline())["listening"]
        assert url != s.url
        second.send_signal(signal.SIGTERM)
        expect(s.h.end(second), 0)
        # AETHERIS_STORE is only the default of --store: the server is used, also by the next command.
        made = expect(s.h.run("run", "agents.yaml", "asks", "--job-id", "a", env={**s.env, "AETHERIS_STORE": "sqlite:other.db"}), 4)
        assert "aetheris signal a go-a" in made.err and "--store" not in made.err, made


class ForeignServer(Scripted):
    """The server of another program."""
    answer = (404, "text/html", b"<h1>nothing here</h1>")

    def do_GET(self):
        status, kind, body = self.answer
        self.send_head(status, kind, len(body))
        self.wfile.write(body)


class Endless(Scripted):
    """Answers health requests; every other answer is endless."""
    protocol_version = "HTTP/1.0"
    piece = b" " * (1 << 20)
    sent = 0

    def do_GET(self):
        self.send_head()
        if self.path == "/api/health":
            return self.wfile.write(b'{"status": "ok"}')
        with contextlib.suppress(OSError):
            while Endless.sent < 600:
                self.wfile.write(self.piece)
                Endless.sent += 1


@test
def a_response_above_256_mib_is_not_read_to_its_end():
    with home() as h, test_server(Endless) as url:
        for command, code in ((("jobs",), "payload_too_large"), (("cancel", "a"), "unknown_outcome")):
            Endless.sent = 0
            result = h.run(*command, env={"AETHERIS_URL": url})
            assert result.code != 0 and f"[{code}]" in result.err and "larger than 268435456 bytes" in result.err, result
            assert 250 <= Endless.sent < 300, Endless.sent


class Frozen(Scripted):
    """Answers the health request that each command sends first. Then it does not respond, like a stopped process, or it is busy."""
    frozen = True
    requests = 0
    health_checked = threading.Event()

    def do_GET(self):
        if self.path == "/api/health":
            Frozen.requests += 1
            if Frozen.requests > 1:
                if Frozen.frozen:
                    threading.Event().wait(PATIENCE)
                Frozen.health_checked.set()
        elif Frozen.frozen:
            threading.Event().wait(PATIENCE)
        else:
            Frozen.health_checked.wait(PATIENCE)
        body = b'{"status": "ok", "jobs": [], "next_cursor": null}'
        with contextlib.suppress(OSError):
            self.send_head(size=len(body))
            self.wfile.write(body)


@test
def a_frozen_server_times_out_and_a_busy_one_is_waited_for():
    with home() as h, test_server(Frozen) as url:
        for command, code in ((("jobs",), "unavailable"), (("cancel", "a"), "unknown_outcome")):
            Frozen.frozen, Frozen.requests = True, 0
            began = time.monotonic()
            result = expect(h.run(*command, env={"AETHERIS_URL": url}), 7)
            assert f"[{code}]" in result.err and "has stopped responding" in result.err, result
            assert time.monotonic() - began < 60, "the limit is two minutes"
        Frozen.frozen, Frozen.requests = False, 0
        expect(h.run("jobs", env={"AETHERIS_URL": url}), 0)
        assert Frozen.health_checked.is_set()


@test
def a_server_that_is_not_aetheris_is_reported_as_such():
    with home() as h, http.server.ThreadingHTTPServer(("127.0.0.1", 0), ForeignServer) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{foreign.server_address[1]}"
        for ForeignServer.answer in ((404, "text/html", b"<h1>no</h1>"), (404, "application/json", b"{}"), (200, "text/html", b"<p>hello")):
            result = expect(h.run("jobs", env={"AETHERIS_URL": url}), 7)
            assert f"the server at {url} is not an aetheris server ({ForeignServer.answer[0]})" in result.err, result
        ForeignServer.answer = (404, "text/html", b"<h1>no</h1>")
        assert "[unavailable]" in expect(h.run("cancel", "a", env={"AETHERIS_URL": url}), 7).err, "it did not happen"
        ForeignServer.answer = (502, "text/html", b"<h1>bad gateway</h1>")
        assert "[unknown_outcome]" in h.run("cancel", "a", env={"AETHERIS_URL": url}).err, "it may have happened"
        foreign.shutdown()
        for path in ("/api", "/api/", "/?a=b", "/#x"):
            result = expect(h.run("jobs", env={"AETHERIS_URL": url + path}), 2)
            assert "without a path" in result.err, result


@test
def run_at_a_server_waits_for_timers():
    with serving() as s:
        result = expect(s.h.run("run", "agents.yaml", "sleeps", env=s.env), 0)
        assert result.json() == {"woke": True}


@test
def approvals_lists_a_question_among_thousands_of_open_jobs():
    with serving() as s:
        plan = {"plan": [{"id": "sure", "wait": {"type": "human", "key": "sure"}}]}
        assert s.request("PUT", "/api/agents/person", plan)[0] == 201
        assert s.post("/api/jobs?wait=30s", {"agent": "person", "id": "p"})[1]["status"] == "waiting"
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        for n in range(2001):
            connection.request("POST", "/api/jobs", json.dumps({"agent": "asks", "id": f"j{n}"}))
            answer = connection.getresponse()
            assert answer.status == 201, answer.read()
            answer.read()
        connection.close()
        until(lambda: not any(s.get(f"/api/jobs?status={status}&limit=1")[1]["jobs"] for status in ("queued", "running")))
        page = s.get("/api/approvals")[1]
        assert [approval["job_id"] for approval in page["approvals"]] == ["p"] and page["next_cursor"] is None, page
        result = expect(s.h.run("approvals", "--json", env=s.env), 0).json()
        assert [approval["job_id"] for approval in result["approvals"]] == ["p"] and result["next_cursor"] is None, result
        assert "aetheris approve p." in expect(s.h.run("approvals", env=s.env), 0).out


@test
def stuck_jobs_are_listed_with_the_command_that_resolves_them():
    with serving() as s:
        s.post("/api/jobs", {"agent": "doubts", "id": "d"})
        until(lambda: s.status("d") == "parked")
        s.post("/api/jobs", {"agent": "asks", "id": "w"})
        s.post("/api/jobs", {"agent": "echo", "id": "q", "required_capabilities": ["gpu"]})
        doubt = s.get("/api/jobs?in_doubt=true")[1]["jobs"]
        assert [job["id"] for job in doubt] == ["d"] and doubt[0]["in_doubt"][0]["tool"] == "doubt", doubt
        text = expect(s.h.run("jobs", "--in-doubt"), 0).out
        assert "aetheris resolve d " in text and " happened" in text, text
        stuck = s.get("/api/jobs?stalled=true")[1]["jobs"]
        assert [(job["id"], job["stalled"]["reason"], job["stalled"]["until"]) for job in stuck] == [("d", "parked", "resolve")]
        text = expect(s.h.run("jobs", "--stalled", "--older-than", "0s"), 0).out
        assert "aetheris resolve d " in text and "no worker has gpu" in text, text
        assert "aetheris serve FILE --capability gpu" in text and "w  waiting" not in text, text
        for words in (["--older-than", "1s"], ["--stalled", "--in-doubt"], ["--stalled", "--status", "parked"],
                      ["--stalled", "--older-than", "soon"]):
            expect(s.h.run("jobs", *words), 2)
        metrics = s.get("/metrics")[1]
        assert 'aetheris_job_state{state="parked"} 1\n' in metrics and "aetheris_store_up 1\n" in metrics, metrics
        assert 'aetheris_storage_operation_duration_seconds_count{operation="commit"}' in metrics, metrics
        families = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families)), families


@test
def an_error_names_a_route_to_http_clients_and_a_command_to_cli_users():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        answers = [s.get("/api/jobs/nobody"), s.get("/api/jobs/nobody/verify"),
                 s.post("/api/jobs/nobody/cancel", {}), s.post("/api/jobs/nobody/fork", {"at_seq": 2}),
                 s.post("/api/jobs/a/resolve", {"idempotency_key": "k", "resolution": "fail"}),
                 s.post("/api/jobs/a/fork", {"at_seq": 999}), s.post("/api/jobs/a/retry", {}),
                 s.post("/api/jobs/a/signal", {"correlation_key": "other", "payload": 1}),
                 s.post("/api/approvals/nobody", {"decision": "approve"}), s.request("DELETE", "/api/keys/nobody")]
        for status, wrong in answers:
            assert 400 <= status < 500 and " /api/" in wrong["act"], wrong
            assert "aetheris" not in wrong["detail"] and wrong["action"]["act"], wrong
        shown = expect(s.h.run("signal", "a", "other", "1"), 2)
        assert "; `aetheris job a` shows what the job waits for [wait_mismatch]" in shown.err, shown
        shown = expect(s.h.run("--json", "job", "nobody"), 3)
        assert json.loads(shown.out)["command"] == "aetheris jobs", shown
        assert "in this store; `aetheris jobs` lists the jobs [not_found]" in shown.err, shown


if __name__ == "__main__":
    sys.exit(run_tests("serve_client", TESTS, " ".join(sys.argv[1:])))
