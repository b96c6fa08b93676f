#!/usr/bin/env python3
"""The service, end to end: the built program with its HTTP API on a port of this machine, its clients, its signals.

Prints `ok NAME` or `not ok NAME` per test. AETHERIS_BIN names the program, AETHERIS_ROOT the tree.
  serve.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import gzip
import http.client
import http.server
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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.path.join(sys.path[0], "chaos"))
import bad_requests  # noqa: E402
from shared.home import PATIENCE, expect, home, run_tests, until  # noqa: E402
from shared.sanitizer import sanitizer  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Server:
    """`aetheris serve` in a home; `ask` is one request."""

    def __init__(self, h, *words, env=None, prefix=()):
        self.h = h
        self.process = h.start("serve", *(words or ("agents.yaml",)), "--listen", "127.0.0.1:0", "--json", env=env,
                               prefix=prefix)
        line = self.process.stdout.readline()
        assert line, self.h.end(self.process)
        self.url = json.loads(line)["listening"]
        self.address = urllib.parse.urlsplit(self.url).netloc
        self.env = {"AETHERIS_URL": self.url}

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, headers or {})
        answer = connection.getresponse()
        raw = answer.read().decode()
        connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(raw) if "json" in kind else raw

    def get(self, path, **more):
        return self.ask("GET", path, **more)

    def post(self, path, body, **more):
        return self.ask("POST", path, body, **more)

    def status(self, job):
        return self.get(f"/api/jobs/{job}")[1]["status"]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.h.end(self.process)


@contextlib.contextmanager
def serving(*words, env=None):
    with home() as h:
        yield Server(h, *words, env=env)


@test
def it_says_where_it_listens_and_ends_with_0_when_told_to():
    with serving() as s:
        assert s.get("/api/health")[0] == 200
        assert s.get("/api/ready") == (200, {"status": "ready"})
        expect(s.stop(), 0)


@test
def its_default_address_is_on_this_machine():
    with home() as h:
        process = h.start("serve", "agents.yaml", "--json")
        line = process.stdout.readline()
        if line:
            assert json.loads(line)["listening"] == "http://127.0.0.1:7070", line
            process.send_signal(signal.SIGTERM)
            expect(h.end(process), 0)
        else:  # another program has the port
            said = expect(h.end(process), 7)
            assert "127.0.0.1:7070" in said.err, said


@test
def a_job_is_made_run_and_waited_for():
    with serving() as s:
        status, job = s.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 1}})
        assert (status, job["status"], job["result"]) == (201, "completed", {"n": 1}), job
        status, again = s.post("/api/jobs", {"agent": "asks"}, headers={"Idempotency-Key": "k"})
        assert status == 201
        status, same = s.post("/api/jobs", {"agent": "asks"}, headers={"Idempotency-Key": "k"})
        assert (status, same["id"]) == (200, again["id"])
        status, problem = s.post("/api/jobs", {"agent": "echo"}, headers={"Idempotency-Key": "k"})
        assert status == 201, "keys are an agent's own"
        status, problem = s.post("/api/jobs", {"agent": "asks", "input": {"other": 1}},
                                 headers={"Idempotency-Key": "k"})
        assert (status, problem["code"]) == (409, "idempotency_conflict"), problem


@test
def commands_ask_a_server_as_they_ask_a_store():
    with serving() as s:
        said = expect(s.h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', env=s.env), 0)
        assert said.json() == {"n": 2}
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
def an_approval_of_a_call_whose_tool_has_changed_says_that_it_is_not_used():
    with home() as h:
        def file(word):
            (h.path / "v.yaml").write_text(f"""
aetheris: 1
tools: {{ stamp: {{ command: [echo, {word}], effect: read, approval: required }} }}
agents: {{ a: {{ plan: [ {{ id: s, tool: stamp, args: {{}} }} ], output: "${{ .steps.s }}" }} }}
""")
        file("one")
        expect(h.run("run", "v.yaml", "--job-id", "j"), 4)
        asked = lambda: expect(h.run("approvals", "--json"), 0).json()["approvals"]
        first = asked()[0]["id"]
        file("two")
        s = Server(h, "v.yaml")
        said = expect(h.run("approve", first), 5)
        assert "approved" in said.out and "will not be made" in said.err and '"stamp" has changed' in said.err, said
        until(lambda: [one["id"] for one in asked()] not in ([], [first]))
        second = asked()[0]["id"]
        status, body = s.post(f"/api/approvals/{second}", {"decision": "approve"})
        assert status == 200 and "applied" not in body, body
        until(lambda: s.status("j") == "completed")
        assert s.get("/api/jobs/j")[1]["result"] == "two"
        expect(s.stop(), 0)


@test
def a_server_that_is_not_there_is_7():
    with home() as h:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert "no server responds" in expect(h.run("jobs", env={"AETHERIS_URL": url}), 7).err
        expect(h.run("jobs", env={"AETHERIS_URL": "127.0.0.1:1"}), 2)


# What each command does when AETHERIS_URL names a server: asks it, refuses, since it needs the store itself, or has nothing to
# do with either. serve and worker are what a URL leads to.
ASK = {"run": ["agents.yaml", "echo"], "jobs": [], "job": ["j"], "events": ["j"], "trace": ["j"], "transcript": ["j"], "replay": ["j"], "verify": ["j"],
       "signal": ["j", "k", "1"], "message": ["j", "c", "1"], "approvals": [], "requests": [], "approve": ["j.0123456789abcdef"],
       "reject": ["j.0123456789abcdef"], "pause": ["j"], "resume": ["j"], "budget": ["j", "--tokens", "5"], "cancel": ["j"],
       "resolve": ["j", "k" * 12, "fail"], "fork": ["j", "--at", "3"], "retry": ["j"], "plan": ["j", "agents.yaml"],
       "redact": ["j", "--all", "--reason", "why"], "audit": [], "keys": ["list"], "mcp": [],
       "prune": ["--older-than", "90d"]}
REFUSE = {"inspect": [], "rebuild": [], "migrate": [], "backup": ["b.db"], "restore": ["b.db"], "doctor": []}
NEITHER = {"init": ["demo"], "check": ["agents.yaml"], "completion": ["bash"], "version": []}
SERVE = {"serve", "worker"}


@test
def each_command_asks_the_server_that_it_is_given_or_says_that_it_cannot():
    with home() as h:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            env = {"AETHERIS_URL": f"http://127.0.0.1:{free.getsockname()[1]}"}
        help_text = expect(h.run("--help"), 0).out
        listed = help_text.split("\nRun:\n")[1].split("Get started:")[0]
        commands = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2:3].strip()}
        known = ASK.keys() | REFUSE.keys() | NEITHER.keys() | SERVE
        assert commands == known, commands ^ known
        for name, words in ASK.items():
            assert "no server responds" in expect(h.run(name, *words, env=env), 7).err, name
        for name, words in REFUSE.items():
            said = expect(h.run(name, *words, "--json", env=env), 2)
            assert said.json()["code"] == "usage" and "needs direct access to the store: unset AETHERIS_URL" in said.err, (name, said)
        for name, words in NEITHER.items():
            expect(h.run(name, *words, env=env), 0)
        assert not h.store.exists(), "nothing was done on a store here"


@test
def a_store_and_a_server_are_never_both_named():
    with serving() as s:
        other = ["--store", "sqlite:other.db"]
        for name, words in ASK.items():
            for store in (other, ["--store=sqlite:other.db"]):
                said = expect(s.h.run(name, *words, *store, "--json", env=s.env), 2)
                assert said.json()["code"] == "usage" and "AETHERIS_URL" in said.err, (name, said)
        for name in SERVE:
            said = expect(s.h.run(name, "agents.yaml", env={**s.env, "AETHERIS_STORE": "sqlite:other.db"}), 2)
            assert "AETHERIS_URL" in said.err and "--store" in said.err, (name, said)
        assert not (s.h.path / "other.db").exists()
        # Which of the two is meant is said: a server beside another one.
        second = s.h.start("serve", "agents.yaml", *other, "--listen", "127.0.0.1:0", "--json", env=s.env)
        url = json.loads(second.stdout.readline())["listening"]
        assert url != s.url
        second.send_signal(signal.SIGTERM)
        expect(s.h.end(second), 0)
        # A store of the environment is the default of --store, no more: the server is asked, and the next command asks it too.
        made = expect(s.h.run("run", "agents.yaml", "asks", "--job-id", "a", env={**s.env, "AETHERIS_STORE": "sqlite:other.db"}), 4)
        assert "aetheris signal a go-a" in made.err and "--store" not in made.err, made


class Scripted(http.server.BaseHTTPRequestHandler):
    """A server of a test: do_GET answers, to POST as well."""

    def begin(self, status=200, kind="application/json", size=None):
        """Takes the request in and sends the headers of the answer; without a size its end is the end of the connection."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


class Foreign(Scripted):
    """Another program's server; the first segment of the path means nothing to it."""
    answer = (404, "text/html", b"<h1>nothing here</h1>")

    def do_GET(self):
        status, kind, body = self.answer
        self.begin(status, kind, len(body))
        self.wfile.write(body)


@contextlib.contextmanager
def answering(handler):
    """A server of this test; gives its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Endless(Scripted):
    """Its health is well; every other answer has no end."""
    protocol_version = "HTTP/1.0"
    piece = b" " * (1 << 20)
    sent = 0

    def do_GET(self):
        self.begin()
        if self.path == "/api/health":
            return self.wfile.write(b'{"status": "ok"}')
        with contextlib.suppress(OSError):
            while Endless.sent < 600:
                self.wfile.write(self.piece)
                Endless.sent += 1


@test
def an_answer_of_more_than_256_mib_is_not_read_to_its_end():
    with home() as h, answering(Endless) as url:
        for command, code in ((("jobs",), "payload_too_large"), (("cancel", "a"), "unknown_outcome")):
            Endless.sent = 0
            said = h.run(*command, env={"AETHERIS_URL": url})
            assert said.code != 0 and f"[{code}]" in said.err and "larger than 268435456 bytes" in said.err, said
            assert 250 <= Endless.sent < 300, Endless.sent


class Still(Scripted):
    """Answers the health request that each command sends first. Then it is silent like a stopped process, or busy."""
    frozen = True
    asked = 0
    looked = threading.Event()

    def do_GET(self):
        if self.path == "/api/health":
            Still.asked += 1
            if Still.asked > 1:
                if Still.frozen:
                    threading.Event().wait(PATIENCE)
                Still.looked.set()
        elif Still.frozen:
            threading.Event().wait(PATIENCE)
        else:
            Still.looked.wait(PATIENCE)
        body = b'{"status": "ok", "jobs": [], "next_cursor": null}'
        with contextlib.suppress(OSError):
            self.begin(size=len(body))
            self.wfile.write(body)


@test
def a_server_that_stops_answering_is_given_up_and_one_that_is_busy_is_waited_for():
    with home() as h, answering(Still) as url:
        for command, code in ((("jobs",), "unavailable"), (("cancel", "a"), "unknown_outcome")):
            Still.frozen, Still.asked = True, 0
            began = time.monotonic()
            said = expect(h.run(*command, env={"AETHERIS_URL": url}), 7)
            assert f"[{code}]" in said.err and "has stopped responding" in said.err, said
            assert time.monotonic() - began < 60, "it has two minutes"
        Still.frozen, Still.asked = False, 0
        expect(h.run("jobs", env={"AETHERIS_URL": url}), 0)
        assert Still.looked.is_set()


@test
def what_is_no_server_of_ours_is_called_so():
    with home() as h, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{foreign.server_address[1]}"
        for Foreign.answer in ((404, "text/html", b"<h1>no</h1>"), (404, "application/json", b"{}"), (200, "text/html", b"<p>hello")):
            said = expect(h.run("jobs", env={"AETHERIS_URL": url}), 7)
            assert f"the server at {url} is not an aetheris server ({Foreign.answer[0]})" in said.err, said
        Foreign.answer = (404, "text/html", b"<h1>no</h1>")
        assert "[unavailable]" in expect(h.run("cancel", "a", env={"AETHERIS_URL": url}), 7).err, "it was not done"
        Foreign.answer = (502, "text/html", b"<h1>bad gateway</h1>")
        assert "[unknown_outcome]" in h.run("cancel", "a", env={"AETHERIS_URL": url}).err, "it may have been"
        foreign.shutdown()
        for path in ("/api", "/api/", "/?a=b", "/#x"):
            said = expect(h.run("jobs", env={"AETHERIS_URL": url + path}), 2)
            assert "without a path" in said.err, said


@test
def a_path_says_which_methods_it_takes_and_where_all_paths_are():
    with serving() as s:
        def ask(method, path, headers=None):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer, answer.read()

        for method, path, allow in (("DELETE", "/api/jobs", "GET, HEAD, POST"), ("OPTIONS", "/api/prune", "POST"),
                                    ("POST", "/metrics", "GET, HEAD"), ("HEAD", "/api/prune", "POST"),
                                    ("POST", "/", "GET, HEAD")):
            answer, _ = ask(method, path)
            assert (answer.status, answer.headers["Allow"]) == (405, allow), (method, path, answer.headers)
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})
        for path in ("/", "/api/health", "/api/jobs/a", "/api/jobs/a/events", "/openapi.json", "/api/jobs/nobody"):
            shown, body = ask("GET", path)
            head, nothing = ask("HEAD", path, {"Accept": "text/event-stream"} if "events" in path else {})
            assert (head.status, nothing) == (shown.status, b""), path
            for name in ("Content-Type", "Content-Length", "Cache-Control"):
                assert head.headers[name] == shown.headers[name], (path, name)
        status, said = s.get("/nowhere")
        assert status == 404 and "no route /nowhere;" in said["detail"] and "/openapi.json" in said["detail"], said


@test
def what_would_be_taken_for_nothing_is_refused():
    with serving() as s:
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})
        for method, path, body, name in (
                ("POST", "/api/jobs", {"agent": "echo", "id": ""}, '"id"'),
                ("POST", "/api/jobs/a/fork", {"at_seq": 3, "id": ""}, '"id"'),
                ("POST", "/api/jobs?wait=6m", {"agent": "echo"}, '"wait"'),
                ("GET", "/api/jobs/a/events?wait=301s", None, '"wait"'),
                ("GET", "/api/jobs/a/events?wait=soon", None, '"wait"'),
                ("GET", "/api/jobs/a/events?type=job_complete", None, "did you mean job_completed?"),
                ("GET", "/api/jobs/a/events?type=nonsense", None, '"type"')):
            status, said = s.ask(method, path, body)
            assert (status, said["code"]) == (400, "input_invalid") and name in said["detail"], (path, said)
        assert [job["id"] for job in s.get("/api/jobs")[1]["jobs"]] == ["a"], "none was made"
        assert s.get("/api/jobs/a/events?wait=5m&type=job_completed")[0] == 200


@test
def a_job_shows_how_it_stands_in_line():
    with serving("agents.yaml", "--workers", "0") as s:
        s.post("/api/jobs", {"agent": "echo", "id": "a", "queue": "slow", "priority": 7, "required_capabilities": ["gpu", "eu"]})
        s.post("/api/jobs", {"agent": "echo", "id": "b"})
        shown = {id: {name: s.get("/api/jobs/" + id)[1][name] for name in ("queue", "priority", "required_capabilities")} for id in "ab"}
        assert shown == {"a": {"queue": "slow", "priority": 7, "required_capabilities": ["eu", "gpu"]},
                         "b": {"queue": "default", "priority": 0, "required_capabilities": []}}, shown
        assert "queue slow, priority 7, needs eu gpu" in expect(s.h.run("job", "a"), 0).out


@test
def doctor_sees_a_job_that_stands_still_beside_a_server():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--detach"), 0)
        s = Server(h, "--workers", "0")
        assert expect(h.run("doctor"), 0).out.endswith("\nok\n"), "it has only just been made"
        expect(s.stop(), 0)
        with sqlite3.connect(h.store) as store:
            store.execute("UPDATE heads SET updated_at = updated_at - 600000000")
        store.close()
        s = Server(h, "--workers", "0")
        said = expect(h.run("doctor", "--json"), 1).json()["problems"]
        assert [one["code"] for one in said] == ["stuck"] and "aetheris jobs --stuck" in said[0]["message"], said
        assert re.search(r"^a +queued", expect(h.run("jobs", "--stuck"), 0).out, re.M)


@test
def a_timer_is_waited_for_by_a_client_too():
    with serving() as s:
        said = expect(s.h.run("run", "agents.yaml", "sleeps", env=s.env), 0)
        assert said.json() == {"woke": True}


@test
def live_events_go_on_after_the_last_that_was_seen():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        last = s.get("/api/jobs/a/events")[1]["events"][-1]["seq"]
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        connection.request("GET", "/api/jobs/a/events", headers={"Accept": "text/event-stream", "Last-Event-ID": str(last)})
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"
        s.post("/api/jobs/a/signal", {"correlation_key": "go-a", "payload": 1})
        seen = [line for line in answer.read().decode().splitlines() if line.startswith("id: ")]
        assert seen[0] == f"id: {last + 1}", seen
        assert len(seen) == int(seen[-1][4:]) - last, "each once, in order"


def live(s, path, last=None, at_most=64 << 10):
    """The whole of a live stream that ends by itself: its status and text."""
    connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": str(last)})}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = b""
    while piece := answer.read1(4096):
        text += piece
        assert len(text) < at_most, f"it goes on for ever: {text[-200:]}"
    connection.close()
    return answer.status, text.decode()


@test
def a_live_stream_of_an_ended_job_ends_wherever_it_begins():
    with serving() as s:
        job = s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})[1]
        assert job["status"] == "completed", job
        path = "/api/jobs/a/events"
        events = s.get(path)[1]["events"]
        last = events[-1]["seq"]
        status, text = live(s, path)
        assert status == 200 and text.count("id: ") == last, text
        assert live(s, path, last) == (204, ""), "a browser asks again after every other answer"
        assert live(s, f"{path}?after={last}") == (204, "")
        assert live(s, path, last + 100) == (204, "")
        assert live(s, f"{path}?type=progress") == (204, "")
        status, text = live(s, f"{path}?type=job_created")
        assert status == 200 and text.count("event: ") == text.count("event: job_created") == 1, text
        status, text = live(s, f"{path}?class=coordination")
        assert status == 200 and "event: job_completed" not in text and "event: job_running" in text, text


@test
def a_live_stream_whose_filter_hides_the_end_ends_with_the_job():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        threading.Timer(0.2, lambda: s.post("/api/jobs/a/cancel", {})).start()
        status, text = live(s, "/api/jobs/a/events?type=wait_opened")
        assert status == 200 and text.count("id: ") == 1 and s.status("a") == "cancelled", text


@test
def pages_and_names_of_others_are_kept_out():
    with serving() as s:
        status, problem = s.get("/api/jobs", headers={"Origin": "http://evil.example"})
        assert (status, problem["code"]) == (403, "forbidden")
        assert s.get("/api/jobs", headers={"Origin": s.url})[0] == 200
        status, problem = s.get("/api/jobs", headers={"Host": "evil.example"})
        assert (status, problem["code"]) == (400, "input_invalid")


@test
def an_address_that_others_can_reach_is_refused():
    with home() as h:
        said = expect(h.run("serve", "agents.yaml", "--listen", "0.0.0.0:0"), 2)
        assert "other machines" in said.err
        for bad in ("nowhere", "127.0.0.1:99999", "127.0.0.1:", "localhost:x"):
            expect(h.run("serve", "agents.yaml", "--listen", bad), 2)
        expect(h.run("serve", "agents.yaml", "--workers", "-1"), 2)
        expect(h.run("serve", "no-such-file.yaml"), 2)


@test
def the_address_that_it_says_is_one_that_it_answers():
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
def without_keys_no_share_of_live_streams_is_kept_for_others():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        opened = []
        for _ in range(70):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request("GET", "/api/jobs/a/events", headers={"Accept": "text/event-stream"})
            opened.append(connection)
            assert connection.getresponse().status == 200, len(opened)
        for connection in opened:
            connection.close()


@test
def the_one_who_is_asked_among_thousands_of_open_jobs_is_found_by_the_command():
    with serving() as s:
        plan = {"plan": [{"id": "sure", "wait": {"type": "human", "key": "sure"}}]}
        assert s.ask("PUT", "/api/agents/person", plan)[0] == 201
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
        assert [asked["job_id"] for asked in page["approvals"]] == ["p"] and page["next_cursor"] is None, page
        said = expect(s.h.run("approvals", "--json", env=s.env), 0).json()
        assert [asked["job_id"] for asked in said["approvals"]] == ["p"] and said["next_cursor"] is None, said
        assert "aetheris approve p." in expect(s.h.run("approvals", env=s.env), 0).out


@test
def a_port_that_is_taken_is_said():
    with serving() as s, home() as other:
        said = other.run("serve", "agents.yaml", "--listen", s.address)
        assert said.code == 7 and s.address.split(":")[1] in said.err and "[unavailable]" in said.err, said


@test
def a_second_owner_of_a_store_is_refused():
    with serving() as s:
        said = expect(s.h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0"), 7)
        assert str(s.process.pid) in said.err, said


@test
def told_to_stop_it_lets_a_call_finish_and_answers_those_who_wait():
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
        assert len((s.h.path / "began.txt").read_text().splitlines()) == 1, "the call was not made again"


@test
def told_twice_it_leaves_at_once():
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
def killed_it_goes_on_where_it_was():
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
def without_workers_it_takes_jobs_and_runs_none():
    with serving("agents.yaml", "--workers", "0") as s:
        status, job = s.post("/api/jobs?wait=300ms", {"agent": "echo", "input": {"n": 3}})
        assert (status, job["status"]) == (201, "queued"), job
        expect(s.stop(), 0)
        again = Server(s.h)
        until(lambda: again.status(job["id"]) == "completed")


@test
def more_jobs_than_it_runs_at_once_wait_their_turn():
    with serving("agents.yaml", "--workers", "1") as s:
        s.post("/api/jobs", {"agent": "holds", "id": "h"})
        s.h.wait_for_hold()
        s.post("/api/jobs", {"agent": "echo", "id": "e"})
        assert s.get("/api/health")[1]["held"] == 1
        assert s.status("e") == "queued"
        s.h.release_hold()
        until(lambda: s.status("e") == "completed")


@test
def it_says_what_it_offers_and_counts_what_it_wrote():
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


def echo_agent(value):
    return {"plan": [{"id": "w", "wait": {"type": "signal", "key": "go-${ .job.id }"}},
                     {"id": "say", "tool": "echo", "needs": ["w"], "args": {"v": value}}],
            "output": "${ .steps.say.v }"}


@test
def a_job_keeps_the_version_of_the_agent_that_it_was_made_with():
    with serving() as s:
        status, made = s.ask("PUT", "/api/agents/late", echo_agent(1))
        assert (status, made["version"]) == (201, 1), made
        s.post("/api/jobs", {"agent": "late", "id": "one"})
        until(lambda: s.status("one") == "waiting")
        assert s.ask("PUT", "/api/agents/late", echo_agent(1))[0] == 200
        status, second = s.ask("PUT", "/api/agents/late", echo_agent(2))
        assert (status, second["version"]) == (201, 2), second
        s.post("/api/jobs", {"agent": "late", "id": "two"})
        until(lambda: s.status("two") == "waiting")
        expect(s.stop(), 0)
        # The agent is in no file: the next server knows it from the store.
        again = Server(s.h)
        listed = {agent["name"]: agent for agent in again.get("/api/agents")[1]["agents"]}
        assert listed["late"]["version"] == 2 and listed["late"]["runs_here"], listed["late"]
        assert listed["echo"]["version"] == 1, "the same file is the same version"
        for job, value in (("one", 1), ("two", 2)):
            again.post(f"/api/jobs/{job}/signal", {"correlation_key": f"go-{job}", "payload": None})
            until(lambda: again.status(job) == "completed")
            body = again.get(f"/api/jobs/{job}")[1]
            assert (body["result"], body["agent_version"]) == (value, value), body
        assert again.get("/api/agents/late?version=1")[1]["plan_hash"] == made["plan_hash"]
        assert again.get("/api/jobs/one")[1]["plan_hash"] == made["plan_hash"]
        status, begun = again.post("/api/agents/late/message", {"message": "hi"})
        assert status == 202, begun
        # A file that has changed is a new version of its agent, and counts at the start.
        expect(again.stop(), 0)
        text = (s.h.path / "agents.yaml").read_text()
        (s.h.path / "agents.yaml").write_text(text.replace('output: "${ .steps.say.said }"', 'output: "${ [.steps.say.said] }"'))
        third = Server(s.h)
        assert third.get("/api/agents/echo")[1]["version"] == 2
        assert third.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 1}})[1]["result"] == [{"n": 1}]
        acts = [e for e in expect(s.h.run("audit", "--json"), 0).json()["entries"] if e["act"] == "agent_registered"]
        assert [e["by"] for e in acts if e["detail"]["name"] == "echo"] == ["serve", "serve"], acts
        expect(s.h.run("audit", "--verify"), 0)
        shown = expect(s.h.run("audit"), 0).out
        assert "agent_registered" in shown and '"definition"' not in shown, "a table has no room for that"


@test
def faults_of_an_agent_are_told_as_check_does():
    with serving() as s:
        status, body = s.ask("PUT", "/api/agents/late", {"plan": [{"id": "a", "tool": "ech"}, {"id": "b"}]})
        assert (status, body["code"]) == (400, "plan_invalid"), body
        assert len(body["faults"]) == 2 and body["faults"][0]["suggestion"] == "echo", body
        assert set(body["faults"][0]) == {"code", "message", "file", "line", "column", "path", "suggestion"}, body
        assert s.get("/api/agents/late")[0] == 404
    with home() as h:
        none = Server(h, "--workers", "0")
        status, body = none.ask("PUT", "/api/agents/late", echo_agent(1))
        assert (status, body["code"]) == (400, "unsupported"), body


@contextlib.contextmanager
def silent_clients(address, count):
    """So many connections that say nothing; this process may need more descriptors for them."""
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
    """A server that is started with so many descriptors."""
    with home() as h:
        (h.path / "programs.yaml").write_text(PROGRAMS)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        try:
            # The hard limit of the child alone: nobody gets it back.
            s = Server(h, "programs.yaml", prefix=["prlimit", f"--nofile={soft}:{hard}"])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        yield s


@test
def silent_clients_cost_nobody_a_job_or_a_place():
    # With the usual limit, which is raised; with one that cannot be; and with a small one.
    for soft, hard, clients in ((1024, 4096, 1100), (1024, 1024, 1100), (256, 256, 400)):
        with serving_with(soft, hard) as s, silent_clients(s.address, clients):
            assert s.get("/api/ready")[0] == 200
            for _ in range(5):
                status, job = s.post("/api/jobs?wait=30s", {"agent": "limit"})
                assert (status, job["status"]) == (201, "completed"), (soft, hard, job)
                assert job["result"] == str(soft), "a program is not given what we took for ourselves"
            said = expect(s.stop(), 0)
            assert "idle connections were closed" in said.err, said
            assert len([line for line in said.err.splitlines() if " job " not in line]) < 10, said


COSTLY = """
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  costly:
    plan:
""" + "".join(f'      - {{ id: n{i}, tool: echo, when: "${{ ([range(200000)] | length) < 0 }}" }}\n' for i in range(600))


@test
def a_long_verify_does_not_delay_other_requests():
    with home() as h:
        (h.path / "costly.yaml").write_text(COSTLY)
        s = Server(h, "costly.yaml")
        status, job = s.post("/api/jobs?wait=60s", {"agent": "costly", "id": "c"})
        assert (status, job["status"]) == (201, "completed"), job
        began = time.monotonic()
        answer = []
        verifies = threading.Thread(target=lambda: answer.append(s.get("/api/jobs/c/verify")))
        verifies.start()
        waits = []
        while verifies.is_alive():
            asked = time.monotonic()
            assert s.get("/api/health")[0] == 200
            waits.append(time.monotonic() - asked)
            time.sleep(0.01)
        took = time.monotonic() - began
        assert answer[0][0] == 200 and answer[0][1]["ok"], answer
        # Each health request waits for a few portions, not for the whole verify.
        assert max(waits) < took / 2, (took, waits)
        expect(s.stop(), 0)


@test
def a_read_ends_when_its_client_disconnects():
    with home() as h:
        (h.path / "costly.yaml").write_text(COSTLY)
        s = Server(h, "costly.yaml")
        status, job = s.post("/api/jobs?wait=60s", {"agent": "costly", "id": "c"})
        assert (status, job["status"]) == (201, "completed"), job
        began = time.monotonic()
        assert s.get("/api/jobs/c/verify")[1]["ok"]
        took = time.monotonic() - began
        host, port = s.address.rsplit(":", 1)
        # As many as are read at once, and some that wait behind them.
        clients = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(6)]
        for client in clients:
            client.sendall(f"GET /api/jobs/c/verify HTTP/1.1\r\nHost: {s.address}\r\n\r\n".encode())
        time.sleep(took / 4)
        for client in clients:
            client.close()
        began = time.monotonic()
        assert s.get("/api/jobs/c/verify")[1]["ok"]
        waited = time.monotonic() - began
        assert waited < 2 * took, (took, waited)
        expect(s.stop(), 0)


@test
def a_view_that_has_not_changed_is_answered_with_304():
    with serving() as s:
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})

        def ask(path, method="GET", **headers):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()

        for view in ("", "/events", "/trace", "/transcript", "/replay"):
            path = f"/api/jobs/a{view}"
            # The first tag may be older than the audit log that the server has read.
            tag = ask(path, If_None_Match='"none"')[0].headers["ETag"]
            assert tag.startswith('W/"'), tag
            for method in ("GET", "HEAD"):
                same, nothing = ask(path, method, If_None_Match=f'"x", {tag}')
                assert (same.status, nothing, same.headers["ETag"]) == (304, b"", tag), (view, same.status, same.headers)
                assert same.headers["Content-Type"] is None
            assert ask(path, If_None_Match='"x"')[0].status == 200
        assert ask("/api/jobs/a/verify")[0].headers["ETag"] is None
        assert ask("/api/jobs/nobody", If_None_Match="*")[0].status == 404


@test
def large_bodies_are_compressed_for_clients_that_accept_gzip():
    with serving() as s:
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a", "input": {"text": "x" * 4000}})

        def ask(path, encoding):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request("GET", path, headers={"Accept-Encoding": encoding} if encoding else {})
            answer = connection.getresponse()
            return answer.headers["Content-Encoding"], answer.read()

        for path in ("/api/jobs/a", "/api/jobs/a/events", "/api/jobs/a/trace", "/api/jobs/a/replay", "/openapi.json"):
            plain = ask(path, None)
            encoding, body = ask(path, "br, gzip")
            assert plain[0] is None and encoding == "gzip", (path, plain[0], encoding)
            assert len(body) < len(plain[1]) / 2, path
            assert gzip.decompress(body) == plain[1], path
            assert ask(path, "gzip;q=0") == plain, path
        assert ask("/api/health", "gzip")[0] is None, "a small body"


@test
def what_cannot_be_started_for_want_of_descriptors_is_started_later():
    with serving_with(1024, 1024) as s:
        s.post("/api/jobs?wait=30s", {"agent": "limit"})
        # So few that no program can be started; what is open stays so.
        open_now = len(os.listdir(f"/proc/{s.process.pid}/fd"))
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (open_now + 4, 1024))
        s.post("/api/jobs", {"agent": "limit", "id": "later"})
        until(lambda: any(e["type"] == "tool_invocation_finished" for e in s.get("/api/jobs/later/events")[1]["events"]))
        event = [e for e in s.get("/api/jobs/later/events")[1]["events"] if e["type"] == "tool_invocation_finished"][0]
        assert event["payload"]["error"]["code"] == "not_sent", event
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        until(lambda: s.status("later") == "completed")


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
TRACED = """
aetheris: 1
tools:
  show: { command: ["sh", "-c", "echo $TRACEPARENT $TRACESTATE"], effect: read }
agents:
  shows: { plan: [ { id: s, tool: show } ], output: "${ .steps.s }" }
  asks:
    plan: [ { id: w, wait: { type: signal, key: k } }, { id: m, wait: { type: message, channel: c } } ]
"""


@test
def a_trace_goes_in_and_out():
    with home() as h:
        (h.path / "traced.yaml").write_text(TRACED)
        s = Server(h, "traced.yaml")

        def made(**headers):
            status, job = s.post("/api/jobs?wait=30s", {"agent": "shows"},
                                 headers={name.replace("_", "-"): value for name, value in headers.items()})
            assert (status, job["status"]) == (201, "completed"), job
            created = s.get(f"/api/jobs/{job['id']}/events?type=job_created")[1]["events"][0]["payload"]
            trace = s.get(f"/api/jobs/{job['id']}/trace")[1]
            return job, created, trace

        job, created, trace = made(traceparent=PARENT, tracestate="congo=t61")
        assert created["traceparent"] == PARENT and created["tracestate"] == "congo=t61", created
        assert job["trace_id"] == TRACE and trace["trace"]["trace_id"] == TRACE, trace["trace"]
        assert trace["trace"]["parent_id"] == "b7ad6b7169203331", trace["trace"]
        span = trace["nodes"][0]["tries"][0]["span_id"]
        assert job["result"] == f"00-{TRACE}-{span}-01 congo=t61", job["result"]
        assert TRACE in h.run("trace", job["id"]).out
        # What is malformed counts as absent, and a job that nobody asked for in a trace has one of its own.
        for headers in ({}, {"traceparent": PARENT.upper()}, {"traceparent": "00-" + "0" * 32 + PARENT[35:]},
                        {"tracestate": "congo=t61"}):
            job, created, trace = made(**headers)
            assert "traceparent" not in created and "tracestate" not in created, created
            assert job["result"].startswith(f"00-{job['trace_id']}-") and job["trace_id"] != TRACE, job
            assert s.get(f"/api/jobs/{job['id']}/verify")[1]["ok"]
        # The same request in another trace is the same request.
        first = s.post("/api/jobs", {"agent": "shows"}, headers={"Idempotency-Key": "k", "traceparent": PARENT})
        again = s.post("/api/jobs", {"agent": "shows"}, headers={"Idempotency-Key": "k"})
        assert (first[0], again[0]) == (201, 200) and first[1]["id"] == again[1]["id"]
        # Who answers is written down with the answer.
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        s.post("/api/jobs/a/signal", {"correlation_key": "k", "payload": 1}, headers={"traceparent": PARENT})
        s.post("/api/jobs/a/message", {"channel": "c", "payload": 1}, headers={"traceparent": PARENT})
        until(lambda: s.status("a") == "completed")
        events = s.get("/api/jobs/a/events")[1]["events"]
        said = [event["type"] for event in events if event["payload"].get("traceparent") == PARENT]
        assert said == ["wait_completed", "agent_message"], said
        expect(s.stop(), 0)


@test
def what_does_not_go_on_is_listed_with_what_would_help():
    with serving() as s:
        s.post("/api/jobs", {"agent": "doubts", "id": "d"})
        until(lambda: s.status("d") == "parked")
        s.post("/api/jobs", {"agent": "asks", "id": "w"})
        s.post("/api/jobs", {"agent": "echo", "id": "q", "required_capabilities": ["gpu"]})
        doubt = s.get("/api/jobs?in_doubt=true")[1]["jobs"]
        assert [job["id"] for job in doubt] == ["d"] and doubt[0]["in_doubt"][0]["tool"] == "doubt", doubt
        text = expect(s.h.run("jobs", "--in-doubt"), 0).out
        assert "aetheris resolve d " in text and " happened" in text, text
        stuck = s.get("/api/jobs?stuck=true")[1]["jobs"]
        assert [(job["id"], job["stuck"]["reason"], job["stuck"]["until"]) for job in stuck] == [("d", "parked", "resolve")]
        text = expect(s.h.run("jobs", "--stuck", "--older-than", "0s"), 0).out
        assert "aetheris resolve d " in text and "no worker has gpu" in text, text
        assert "aetheris serve FILE --capability gpu" in text and "w  waiting" not in text, text
        for words in (["--older-than", "1s"], ["--stuck", "--in-doubt"], ["--stuck", "--status", "parked"],
                      ["--stuck", "--older-than", "soon"]):
            expect(s.h.run("jobs", *words), 2)
        metrics = s.get("/metrics")[1]
        assert 'aetheris_job_state{state="parked"} 1\n' in metrics and "aetheris_store_up 1\n" in metrics, metrics
        assert 'aetheris_storage_operation_duration_seconds_count{operation="commit"}' in metrics, metrics
        families = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families)), families


@test
def what_happens_is_logged_a_line_each_and_no_value_of_a_job():
    with home() as h:
        server = Server(h, "agents.yaml", "--log", "json", "-v")
        server.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a", "input": {"n": 77001}})
        server.post("/api/jobs?wait=30s", {"agent": "fails", "id": "b"})
        server.post("/api/jobs?wait=30s", {"agent": "asks", "id": "c"})
        server.post("/api/jobs/c/pause", {})
        server.get("/api/jobs/nobody")
        said = expect(server.stop(), 0)
        lines = [json.loads(line) for line in said.err.splitlines()]
        assert all({"ts", "level", "event", "worker"} <= set(line) for line in lines), lines
        told = [(line["event"], line.get("job"), line.get("code")) for line in lines]
        for one in (("store_created", None, None), ("started", None, None), ("job_created", "a", None), ("job_completed", "a", None),
                    ("job_failed", "b", "no_money"), ("request_refused", None, "not_found"), ("stopping", None, None),
                    ("stopped", None, None)):
            assert one in told, (one, told)
        assert "77001" not in said.err and "the account is empty" not in said.err, said.err
        text = Server(h, "agents.yaml", "--log", "text")
        text.post("/api/jobs?wait=30s", {"agent": "echo", "id": "d"})
        said = expect(text.stop(), 0)
        assert "info job d completed" in said.err and "info job d created" in said.err, said.err
        quiet = Server(h, "agents.yaml", "--quiet")
        quiet.post("/api/jobs?wait=30s", {"agent": "echo", "id": "e"})
        said = expect(quiet.stop(), 0).err
        if os.geteuid() == 0:
            warning, _, said = said.partition("\n")
            assert "running as root" in warning, warning
        assert said.startswith("Shutting down; waiting "), said


APPROVED = """
aetheris: 1
tools: { stamp: { native: echo, effect: at_most_once, approval: required }, lost: { native: doubt, effect: at_most_once } }
agents:
  a: { plan: [ { id: s, tool: stamp, args: { n: 77002 } } ] }
  d: { plan: [ { id: l, tool: lost, args: { message: lost } } ] }
"""


@test
def a_job_that_starts_waits_parks_or_ends_is_a_line_on_stderr():
    with home() as h:
        (h.path / "w.yaml").write_text(APPROVED)
        s = Server(h, "w.yaml", "agents.yaml")
        for agent, job in (("echo", "e"), ("fails", "f"), ("a", "w"), ("asks", "s"), ("sleeps", "t")):
            s.post("/api/jobs?wait=30s", {"agent": agent, "id": job, "input": {"n": 77003}})
        until(lambda: s.status("w") == "waiting" and s.status("s") == "waiting")
        s.post("/api/jobs/s/pause", {})
        until(lambda: s.status("s") == "parked")
        asked = s.get("/api/approvals?job=w")[1]["approvals"][0]["id"]
        expect(h.run("approve", asked), 0)
        until(lambda: s.status("w") == "completed")
        until(lambda: s.status("t") == "completed")
        s.post("/api/jobs?wait=30s", {"agent": "d", "id": "d"})
        said = expect(s.stop(), 0).err
        lines = [line.split(" ", 1)[1] for line in said.splitlines() if " job " in line]
        for line in ("job e started: agent echo", "job e completed", "job f failed (no_money) at node f",
                     "job w started: agent a",
                     f"job w waiting for approval of a call at node s; run: aetheris approve {asked}",
                     "job w resumed: agent a", "job w completed",
                     "job s waiting for a signal at node w; run: aetheris job s",
                     "job s parked (paused): until resumed; run: aetheris resume s",
                     "job t waiting for a timer at node t", "job t completed"):
            assert line in lines, (line, said)
        doubt = [line for line in lines if line.startswith("job d parked")]
        assert len(doubt) == 1 and doubt[0].endswith("; run: aetheris job d"), said
        assert "77002" not in said and "77003" not in said and "account is empty" not in said, said
        s = Server(h, "w.yaml", "--log", "json")
        s.post("/api/jobs?wait=30s", {"agent": "a", "id": "w2"})
        lines = [json.loads(line) for line in expect(s.stop(), 0).err.splitlines()]
        one = [line for line in lines if line["event"] == "job_waiting" and line["job"] == "w2"][0]
        assert one["node"] == "s" and one["question"] == "approval", one
        assert one["answer"].startswith("aetheris approve w2."), one
        assert [line["agent"] for line in lines if line["event"] == "job_running"] == ["a"], lines


def watched(agent, word, more=""):
    return f"""
aetheris: 1
tools: {{ say_{agent}: {{ command: [echo, "{word}"], effect: read }} }}
agents: {{ {agent}: {{ plan: [ {{ id: t, wait: {{ type: signal, key: go }} }}, {{ id: s, tool: say_{agent}, args: {{}}, needs: [t] }} ],
  output: "${{ .steps.s }}" }} }}
{more}"""


class Lines:
    """What a server prints on stderr, read as it comes."""

    def __init__(self, process):
        self.lines = []
        self.thread = threading.Thread(target=self.read, args=(process.stderr,), daemon=True)
        self.thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    def has(self, text):
        return any(text in line for line in self.lines)


@test
def watch_reloads_a_file_that_is_sound_and_keeps_the_last_one_while_it_is_broken():
    with home() as h:
        (h.path / "a.yaml").write_text(watched("one", "old"))
        (h.path / "b.yaml").write_text(watched("two", "old"))
        expect(h.run("serve", "--watch", "--listen", "127.0.0.1:0"), 2)
        s = Server(h, "--watch", "a.yaml", "b.yaml")
        seen = Lines(s.process)

        def result(agent, job):
            s.post("/api/jobs", {"agent": agent, "id": job})
            until(lambda: s.status(job) == "waiting")
            return finish(job)

        def finish(job):
            s.post(f"/api/jobs/{job}/signal", {"correlation_key": "go", "payload": 1})
            until(lambda: s.status(job) in ("completed", "failed"))
            return s.get(f"/api/jobs/{job}")[1]["result"]

        def version(agent):
            return s.get(f"/api/agents/{agent}")[1]["version"]

        s.post("/api/jobs", {"agent": "one", "id": "before"})
        until(lambda: s.status("before") == "waiting")
        assert version("one") == 1
        # A broken edit: its faults are printed, and the server serves on.
        (h.path / "a.yaml").write_text(watched("one", "new", "toolz: {}\n"))
        until(lambda: seen.has("error: a.yaml not reloaded; the last valid version stays in use"))
        line = (h.path / "a.yaml").read_text().splitlines().index("toolz: {}") + 1
        assert seen.has(f"a.yaml:{line}:1: toolz: unknown key `toolz`"), seen.lines
        assert version("one") == 1
        assert result("one", "broken") == "old"
        # A sound edit: new jobs take it, jobs that run keep theirs.
        (h.path / "a.yaml").write_text(watched("one", "new"))
        until(lambda: seen.has("reloaded a.yaml: agent one version 1 → 2"))
        assert result("one", "after") == "new" and finish("before") == "old"
        # An editor that replaces the file; the other file.
        (h.path / ".b.tmp").write_text(watched("two", "new"))
        os.rename(h.path / ".b.tmp", h.path / "b.yaml")
        until(lambda: seen.has("reloaded b.yaml: agent two version 1 → 2"))
        assert result("two", "renamed") == "new" and version("one") == 2
        # Nothing of an agent has changed.
        (h.path / "b.yaml").write_text(watched("two", "new", "# a remark\n"))
        until(lambda: seen.has("reloaded b.yaml: no agent changed"))
        # Missing for a moment, and back as it was: no change.
        before = len([line for line in seen.lines if "reload" in line])
        (h.path / "a.yaml").rename(h.path / "away")
        (h.path / "away").rename(h.path / "a.yaml")
        # A new agent.
        (h.path / "b.yaml").write_text(watched("two", "new", "").replace(
            "agents: {", "agents: { three: { plan: [ { id: s, tool: say_two, args: {} } ] }, "))
        until(lambda: seen.has("reloaded b.yaml: agent three version 1"))
        assert len([line for line in seen.lines if "reload" in line]) == before + 1, seen.lines
        # One file is edited while the other one cannot be read: that is reported once, and then made up for.
        (h.path / "a.yaml").rename(h.path / "away")
        (h.path / "b.yaml").write_text(watched("two", "newest"))
        until(lambda: seen.has("cannot read a.yaml"))
        (h.path / "away").rename(h.path / "a.yaml")
        until(lambda: seen.has("reloaded b.yaml: agent three version 1 → 2, agent two version 2 → 3"))
        assert len([line for line in seen.lines if line.startswith("cannot read a.yaml")]) == 1, seen.lines
        expect(s.h.run("verify", "before", env=s.env), 0)
        s.stop()


@test
def watch_logs_a_reload_as_json_and_without_it_a_change_is_not_noticed():
    with home() as h:
        (h.path / "a.yaml").write_text(watched("one", "old"))
        s = Server(h, "--watch", "a.yaml", "--log", "json")
        seen = Lines(s.process)
        (h.path / "a.yaml").write_text("aetheris: 1\nagents: 7\n")
        until(lambda: seen.has("reload_failed"))
        (h.path / "a.yaml").write_text(watched("one", "new"))
        until(lambda: seen.has('"event":"reloaded"'))
        s.stop()
        lines = {line["event"]: line for line in map(json.loads, seen.lines)}
        assert lines["reload_failed"]["faults"][0]["path"] == "agents", lines
        assert lines["reload_failed"]["files"] == ["a.yaml"] and lines["reload_failed"]["level"] == "error", lines
        assert lines["reloaded"]["agents"] == [{"from": 1, "name": "one", "to": 2}], lines
        s = Server(h, "--watch", "a.yaml", "--log", "text")
        seen = Lines(s.process)
        (h.path / "a.yaml").write_text("aetheris: 1\nagents: 7\ntoolz: 1\n")
        until(lambda: seen.has("not reloaded"))
        line = [line for line in seen.lines if "not reloaded" in line][0]
        assert " error a.yaml:2:9: agents: " in line and "; a.yaml:3:1: toolz: " in line, seen.lines
        s.stop()
        (h.path / "a.yaml").write_text(watched("one", "new"))
        s = Server(h, "a.yaml")
        (h.path / "a.yaml").write_text(watched("one", "newer"))
        said = expect(h.run("run", "a.yaml", "one", "--detach"), 5)
        assert "restart it" in said.err and "serve --watch" in said.err, said
        assert "reload" not in expect(s.stop(), 0).err


class Counted(Scripted):
    """The downstream: it counts what it gets, by path and job, and takes its time."""
    lock = threading.Lock()
    got = {}

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        with self.lock:
            self.got.setdefault((body["job"], body["node"]), []).append(self.path)
        time.sleep(0.2)
        answer = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


COUNTED = """
aetheris: 1
tools:
  post: { http: { method: POST, url: "URL/VERSION", body: "${ .args }" }, effect: at_most_once, result: body }
agents:
  twice:
    plan:
      - { id: a, tool: post, args: { job: "${ .input.job }", node: a } }
      - { id: b, tool: post, args: { job: "${ .input.job }", node: b }, needs: [a] }
    output: { a: "${ .steps.a.path }", b: "${ .steps.b.path }", is: VERSION }
"""


@test
def watch_loses_no_call_and_sends_none_twice():
    with home() as h, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counted) as world:
        threading.Thread(target=world.serve_forever, daemon=True).start()
        Counted.got.clear()
        text = COUNTED.replace("URL", f"http://127.0.0.1:{world.server_port}")
        (h.path / "a.yaml").write_text(text.replace("VERSION", "v1"))
        s = Server(h, "--watch", "a.yaml")
        seen = Lines(s.process)
        jobs, over = [], threading.Event()

        def ask_for_jobs():
            while not over.is_set():
                job = f"j{len(jobs)}"
                assert s.post("/api/jobs", {"agent": "twice", "id": job, "input": {"job": job}})[0] == 201, job
                jobs.append(job)
                time.sleep(0.02)

        client = threading.Thread(target=ask_for_jobs)
        client.start()
        for number in range(2, 8):
            # Every second time it is broken first.
            if number % 2:
                (h.path / "a.yaml").write_text(text.replace("VERSION", f"v{number}").replace("plan:", "plans:"))
                faults = len([line for line in seen.lines if "not reloaded" in line])
                until(lambda: len([line for line in seen.lines if "not reloaded" in line]) > faults)
            (h.path / "a.yaml").write_text(text.replace("VERSION", f"v{number}"))
            until(lambda: seen.has(f"agent twice version {number - 1} → {number}"))
            before = len(jobs)
            until(lambda: len(jobs) > before + 3)
        over.set()
        client.join()
        until(lambda: all(s.status(job) in ("completed", "failed", "parked") for job in jobs))
        versions = set()
        for job in jobs:
            body = s.get(f"/api/jobs/{job}")[1]
            assert body["status"] == "completed", body
            version = body["result"]["is"]
            assert body["result"] == {"a": f"/{version}", "b": f"/{version}", "is": version}, body
            assert version == f"v{body['agent_version']}", body
            for node in ("a", "b"):
                assert Counted.got[(job, node)] == [f"/{version}"], (job, node, Counted.got[(job, node)])
            versions.add(version)
        assert versions == {f"v{number}" for number in range(1, 8)}, versions
        assert len(Counted.got) == 2 * len(jobs), "nothing else was sent"
        expect(h.run("verify", jobs[0], env=s.env), 0)
        expect(s.stop(), 0)
        world.shutdown()


def is_alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# An MCP server that notes its SIGTERM.
STOPPED = """
import os, pathlib, runpy, signal, sys
def stop(*_):
    with open(pathlib.Path(sys.argv[2]).parent / "stopped", "a") as file:
        file.write(f"{os.getpid()}\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
sys.path.insert(0, os.path.dirname("PROGRAM"))
sys.argv[0] = "PROGRAM"
runpy.run_path("PROGRAM", run_name="__main__")
"""


@test
def watch_leaves_one_server_of_a_tool_after_many_edits_and_kills_one_that_does_not_stop():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared", "mcp_server.py")
    with home() as h:
        (h.path / "deaf.py").write_text(STOPPED.replace("PROGRAM", program).replace("    os._exit(0)\n", ""))

        def file(number):
            command = [sys.executable, "-B", str(h.path / "deaf.py"), "--journal", str(h.path / "journal")]
            agents = {"says": {"plan": [{"id": "c", "tool": "s.echo", "args": {"text": "now"}}]}}
            server = {"command": command, "env": {"NUMBER": str(number)}}
            return json.dumps({"aetheris": 1, "tools": {"s": {"mcp": server}}, "agents": agents})

        def servers():
            return {json.loads(line)["pid"] for line in (h.path / "journal").read_text().splitlines()}

        (h.path / "a.yaml").write_text(file(0))
        expect(h.run("check", "a.yaml"), 0)
        s = Server(h, "--watch", "a.yaml")
        seen = Lines(s.process)
        for number in range(1, 11):
            assert s.post("/api/jobs?wait=30s", {"agent": "says"})[1]["status"] == "completed"
            (h.path / "a.yaml").write_text(file(number))
            until(lambda: len([line for line in seen.lines if line.startswith("reloaded a.yaml")]) == number)
        assert s.post("/api/jobs?wait=30s", {"agent": "says"})[1]["status"] == "completed"
        assert len(servers()) == 11
        until(lambda: sum(map(is_alive, servers())) == 1)
        stopped = {int(pid) for pid in (h.path / "stopped").read_text().split()}
        assert len(stopped) == 10 and stopped < servers(), "each was asked to stop, and did not"
        expect(s.stop(), 0)


@test
def watch_starts_a_changed_mcp_server_again_for_new_calls_only():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared", "mcp_server.py")
    with home() as h:
        def file(era):
            command = [sys.executable, "-B", program, "--journal", str(h.path / "journal"), "--era", era]
            go = {"id": "w", "wait": {"type": "signal", "key": "go"}}
            # Of another server, whose calls are short.
            other = [sys.executable, "-B", str(h.path / "other.py"), "--journal", str(h.path / "other"), "--era", era]
            agents = {"hangs": {"plan": [{"id": "c", "tool": "s.hang", "args": {}}]},
                      "short": {"plan": [{"id": "c", "tool": "o.echo", "args": {"text": "short"}}]},
                      "says": {"plan": [{"id": "c", "tool": "s.echo", "args": {"text": "now"}}]},
                      "later": {"plan": [go, {"id": "c", "tool": "s.echo", "args": {"text": "later"}, "needs": ["w"]}]}}
            return json.dumps({"aetheris": 1, "tools": {"s": {"mcp": {"command": command}}, "o": {"mcp": {"command": other}}},
                               "agents": agents})

        def calls(text, journal="journal"):
            lines = (h.path / journal).read_text().splitlines() if (h.path / journal).exists() else []
            return [one for one in map(json.loads, lines) if one["tool"] == text or one["args"].get("text") == text]

        (h.path / "other.py").write_text(STOPPED.replace("PROGRAM", program))
        (h.path / "a.yaml").write_text(file("legacy"))
        expect(h.run("check", "a.yaml"), 0)
        s = Server(h, "--watch", "a.yaml")
        seen = Lines(s.process)
        s.post("/api/jobs", {"agent": "later", "id": "waits"})
        s.post("/api/jobs", {"agent": "hangs", "id": "open"})
        until(lambda: len(calls("hang")) == 1 and s.status("waits") == "waiting")
        old = calls("hang")[0]["pid"]
        s.post("/api/jobs?wait=30s", {"agent": "short", "id": "short"})
        idle = calls("short", "other")[0]["pid"]
        (h.path / "a.yaml").write_text(file("modern"))
        until(lambda: seen.has("reloaded a.yaml"))
        s.post("/api/jobs", {"agent": "says", "id": "new"})
        until(lambda: s.status("new") == "completed")
        new = calls("now")[0]["pid"]
        assert new != old
        until(lambda: not is_alive(idle))
        assert (h.path / "stopped").read_text() == f"{idle}\n", "it was asked to stop"
        assert is_alive(old) and s.status("open") == "running", "its call is open"
        (h.path / "go").touch()
        until(lambda: s.status("open") == "completed")
        assert len(calls("hang")) == 1
        until(lambda: not is_alive(old))
        # An older job has the server as it was.
        s.post("/api/jobs/waits/signal", {"correlation_key": "go", "payload": 1})
        until(lambda: s.status("waits") in ("completed", "failed", "parked"))
        assert s.status("waits") == "completed", s.get("/api/jobs/waits")
        assert len(calls("later")) == 1 and calls("later")[0]["pid"] not in (old, new)
        until(lambda: not is_alive(calls("later")[0]["pid"]))
        assert is_alive(new)
        expect(s.stop(), 0)
        assert not is_alive(new)


@test
def watch_prints_the_warnings_of_a_file_again():
    with home() as h:
        (h.path / "a.yaml").write_text(watched("one", "old"))
        (h.path / "p.yaml").write_text("aetheris: 1\npolicies: [ { tools: [nothing_of_it], action: deny } ]\n")
        s = Server(h, "--watch", "a.yaml", "--policies", "p.yaml")
        seen = Lines(s.process)
        until(lambda: seen.has("nothing_of_it"))
        (h.path / "a.yaml").write_text(watched("one", "new"))
        until(lambda: len([line for line in seen.lines if "nothing_of_it" in line]) == 2)
        warnings = [line for line in seen.lines if "nothing_of_it" in line]
        assert warnings[0].startswith("warning: p.yaml:") and warnings[0] == warnings[1], warnings
        # An edit of the policies file alone.
        (h.path / "p.yaml").write_text("aetheris: 1\npolicies: [ { tools: [say_one], action: require_approval } ]\n")
        until(lambda: seen.has("reloaded p.yaml: agent one version 2 → 3"))
        assert len([line for line in seen.lines if "nothing_of_it" in line]) == 2
        expect(s.stop(), 0)


@test
def the_first_page_names_the_document_and_the_health():
    with serving() as s:
        status, page = s.get("/")
        assert status == 200 and page["openapi"] == "/openapi.json" and page["health"] == "/api/health", page
        assert s.get(page["openapi"])[0] == 200
        status, wrong = s.ask("DELETE", "/api/health")
        assert (status, wrong["code"]) == (405, "method_not_allowed"), wrong
        assert wrong["detail"] == "method not allowed; allowed: GET, HEAD", wrong
        status, wrong = s.get("/api/jobs/nobody")
        assert status == 404 and wrong["act"] == "GET /api/jobs", wrong
        assert wrong["detail"] == "there is no job nobody in this store; GET /api/jobs lists them", wrong


@test
def an_error_names_a_request_to_clients_and_a_command_to_the_program():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        asked = [s.get("/api/jobs/nobody"), s.get("/api/jobs/nobody/verify"),
                 s.post("/api/jobs/nobody/cancel", {}), s.post("/api/jobs/nobody/fork", {"at_seq": 2}),
                 s.post("/api/jobs/a/resolve", {"idempotency_key": "k", "resolution": "fail"}),
                 s.post("/api/jobs/a/fork", {"at_seq": 999}), s.post("/api/jobs/a/retry", {}),
                 s.post("/api/jobs/a/signal", {"correlation_key": "other", "payload": 1}),
                 s.post("/api/approvals/nobody", {"decision": "approve"}), s.ask("DELETE", "/api/keys/nobody")]
        for status, wrong in asked:
            assert 400 <= status < 500 and " /api/" in wrong["detail"], wrong
            assert "aetheris" not in wrong["detail"] and wrong["act"] in wrong["detail"], wrong
        shown = expect(s.h.run("signal", "a", "other", "1"), 2)
        assert "`aetheris job a` lists its waits [wait_mismatch]" in shown.err, shown
        shown = expect(s.h.run("--json", "job", "nobody"), 3)
        assert json.loads(shown.out)["detail"].endswith("; `aetheris jobs` lists them"), shown


@test
def a_reader_of_stderr_that_stops_does_not_stop_the_jobs():
    with home() as h:
        s = Server(h, "agents.yaml")  # nothing reads its stderr
        for _ in range(6):
            made = [s.post("/api/jobs", {"agent": "echo"})[1]["id"] for _ in range(100)]
            until(lambda: all(s.status(job) == "completed" for job in made[-5:]))
            time.sleep(1)
        said = expect(s.stop(), 0).err
        assert "completed" in said and len(said) < 200_000, len(said)


@test
def each_bad_request_gets_its_status_in_one_shape_and_nothing_comes_of_it():
    with serving(env=sanitizer("quarantine_size_mb=1")) as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        asked, wrong = bad_requests.run(s.url, mark=True, pid=s.process.pid)
        assert asked > 450 and not wrong, "\n".join(wrong)
        assert s.process.poll() is None
        assert s.get("/api/jobs/a/verify")[1]["ok"]


@test
def a_body_is_json_whoever_says_so():
    with serving() as s:
        for kind in ("application/json", "application/json; charset=UTF-8", "application/merge-patch+json",
                     "application/x-www-form-urlencoded"):
            assert s.post("/api/jobs", {"agent": "asks"}, headers={"Content-Type": kind})[0] == 201, kind
        for kind in ("text/plain", "application/json; charset=utf-16", "application/jsonx"):
            status, problem = s.post("/api/jobs", {"agent": "asks"}, headers={"Content-Type": kind})
            assert (status, problem["code"], problem["status"]) == (415, "unsupported_media_type", 415), kind


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
    sys.exit(run_tests("serve", TESTS, " ".join(sys.argv[1:])))
