#!/usr/bin/env python3
"""MCP tools that ask a user during a call: against a stateless test server, whose state must be returned with each try; and against
servers of the legacy protocol, test servers and official ones, which ask while their call is open.

Prints `ok NAME` or `not ok NAME` for each test.
  mcp_asks.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracles  # noqa: E402
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.mcp_agents import behind_http, calls, command, real, write_agents  # noqa: E402
from shared.mcp_client import ELICITATION, MODERN, SCHEMAS, Http  # noqa: E402
from shared.server import Server  # noqa: E402

BOOK = {"description": "Books seats", "inputSchema": {"type": "object"}}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def write_book_agent(h, mcp, **entry):
    (h.path / "tools.json").write_text(json.dumps({"book": BOOK}))
    write_agents(h, mcp, {"book": ("s.book", {})}, **entry)


def run_book(h, job="j1"):
    return h.run("run", "agents.yaml", "book", "--job-id", job, "--json")


def pending_question(h):
    """The pending question; there must be exactly one."""
    [one] = expect(h.run("approvals", "--json"), 0).json()["approvals"]
    assert one["kind"] == "question" and one["tool"] == "s.book", one
    return one


def fill_in(h, content):
    return h.run("approve", pending_question(h)["id"], "--arguments", json.dumps(content), "--json")


def expect_verified(h, job="j1"):
    assert expect(h.run("verify", job, "--json"), 0).json()["ok"]


def check_whole_conversation(h):
    """From the first question to the result, each step in its own process."""
    waiting_job = expect(run_book(h), 4).json()
    assert waiting_job["status"] == "waiting" and waiting_job["in_doubt"] == [], waiting_job
    assert waiting_job["waiting"]["correlation_key"].startswith("input/"), waiting_job
    first = pending_question(h)
    assert first["question"]["schema"]["required"] == ["n"], first
    shown = expect(h.run("approvals"), 0).out
    assert "How many seats?" in shown and "\x1b" not in shown and "--arguments" in shown, shown
    for wrong in ({"n": 0}, {"n": "many"}, {}):
        assert expect(fill_in(h, wrong), 2).json()["code"] == "input_invalid"
    assert pending_question(h)["id"] == first["id"], "an invalid answer leaves the question open"
    expect(fill_in(h, {"n": 3}), 0)

    expect(run_book(h), 4)
    second = pending_question(h)
    assert second["question"] == {"message": "Sign, please", "mode": "url", "url": "https://sign.example/42"}, second
    assert "https://sign.example/42" in expect(h.run("approvals"), 0).out
    expect(h.run("approve", second["id"]), 0)
    assert expect(run_book(h), 0).json()["result"] == "booked 3"

    made = calls(h, "book")
    assert [call["try"] for call in made] == [1, 2, 3] and len({call["key"] for call in made}) == 1, made
    assert made[0]["responses"] is None and made[1]["responses"] == {"seats": {"action": "accept", "content": {"n": 3}}}, made
    assert made[2]["responses"] == {"sign": {"action": "accept"}} and made[2]["state"] != made[1]["state"], made
    expect_verified(h)
    expect(h.run("approve", first["id"], "--arguments", '{"n":3}'), 0)
    assert expect(h.run("approve", first["id"], "--arguments", '{"n":4}', "--json"), 5).json()["applied"] is False


@test
def a_stdio_server_is_called_again_with_the_answers():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        check_whole_conversation(h)


@test
def an_http_server_is_called_again_with_the_answers():
    with home() as h, behind_http(h, "modern", "--tools", str(h.path / "tools.json")) as url:
        write_book_agent(h, {"url": url})
        check_whole_conversation(h)


@test
def a_rejection_is_passed_to_the_tool():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        expect(run_book(h), 4)
        expect(h.run("reject", pending_question(h)["id"]), 0)
        failed = expect(run_book(h), 1).json()
        assert failed["error"]["code"] == "tool_error" and "not booked: decline" in failed["error"]["message"], failed
        assert len(calls(h, "book")) == 2
        expect_verified(h)


@test
def an_expired_question_is_cancelled_at_the_tool():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")}, question_expires="1s")
        expect(run_book(h), 4)
        until(lambda: run_book(h).code == 1)
        assert calls(h, "book")[-1]["responses"] == {"seats": {"action": "cancel"}} and len(calls(h, "book")) == 2
        expect_verified(h)


@test
def a_signal_with_an_mcp_action_answers_a_question():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        key = expect(run_book(h), 4).json()["waiting"]["correlation_key"]
        assert expect(h.run("signal", "j1", key, '{"n":3}', "--json"), 2).json()["code"] == "input_invalid"
        expect(h.run("signal", "j1", key, '{"action":"cancel"}'), 0)
        expect(run_book(h), 1)
        assert calls(h, "book")[-1]["responses"] == {"seats": {"action": "cancel"}}


@test
def kill_9_while_a_question_is_open_changes_nothing():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = server.post("/api/jobs", {"agent": "book", "input": {}})[1]["id"]
        until(lambda: server.status(job) == "waiting")
        question = pending_question(h)
        server.process.send_signal(signal.SIGKILL)
        h.end(server.process)
        assert pending_question(h) == question, "the question is in the log, not in the process"
        expect(fill_in(h, {"n": 2}), 0)
        expect(run_book(h, job), 4)
        expect(h.run("approve", pending_question(h)["id"]), 0)
        assert expect(run_book(h, job), 0).json()["result"] == "booked 2"
        assert [call["try"] for call in calls(h, "book")] == [1, 2, 3]
        expect_verified(h, job)


@test
def kill_9_during_the_call_with_the_answers_leaves_its_outcome_unknown():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")}, timeout="5s", grace="1s")
        expect(run_book(h), 4)
        expect(fill_in(h, {"n": 2}), 0)
        expect(run_book(h), 4)
        expect(h.run("approve", pending_question(h)["id"]), 0)
        (h.path / "stop").touch()
        process = h.start("run", "agents.yaml", "book", "--job-id", "j1")
        until(lambda: len(calls(h, "book")) == 3)
        server = calls(h, "book")[-1]["pid"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not pathlib.Path(f"/proc/{server}").exists())
        (h.path / "stop").unlink()
        unknown = expect(run_book(h), 4).json()
        assert unknown["in_doubt"][0]["tool"] == "s.book" and len(calls(h, "book")) == 3, unknown
        key = unknown["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "j1", key, "not_happened", "--json"), 5).json()["code"] == "not_settled"
        until(lambda: h.run("resolve", "j1", key, "not_happened").code == 0)
        assert expect(run_book(h), 0).json()["result"] == "booked 2", "the questions were not repeated"
        assert calls(h, "book")[3]["responses"] == calls(h, "book")[2]["responses"]
        expect_verified(h)


@test
def our_mcp_server_passes_the_question_to_its_client():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        client = Http(server, MODERN, ELICITATION)
        first = client.call("book")
        SCHEMAS.check(MODERN, "InputRequiredResult", first)
        [(key, question)] = first["inputRequests"].items()
        assert question["params"]["requestedSchema"]["required"] == ["n"] and "How many" in question["params"]["message"], first
        second = client.call("book", requestState=first["requestState"],
                             inputResponses={key: {"action": "accept", "content": {"n": 5}}})
        [(key, question)] = second["inputRequests"].items()
        assert "https://sign.example/42" in question["params"]["message"], second
        done = client.call("book", requestState=second["requestState"],
                           inputResponses={key: {"action": "accept", "content": {"decision": "approve"}}})
        assert done["structuredContent"] == "booked 5", done
        expect(server.stop(), 0)


@test
def a_question_without_a_schema_fails_the_call():
    with home() as h:
        write_book_agent(h, {"command": command(h, "modern")})
        write_agents(h, {"command": command(h, "modern")}, {"ask": ("s.ask", {})})  # a form without a schema
        assert expect(h.run("run", "agents.yaml", "ask", "--json"), 1).json()["error"]["code"] == "input_required"


# ------------------------------------------------------------------- in an open call, as servers did before 2026-07-28


FORM = "s.trigger-elicitation-request"


def write_elicitation_agent(h, **entry):
    write_agents(h, real("server-everything", "stdio"), {"ask": (FORM, {})}, **entry)
    expect(h.run("check", "agents.yaml"), 0)


def waiting_job(server):
    """A new job whose tool has asked its question."""
    job = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
    until(lambda: server.status(job) == "waiting")
    return job


def open_question(h, job):
    pending_question = [one for one in expect(h.run("approvals", "--json"), 0).json()["approvals"] if one["job_id"] == job]
    assert len(pending_question) == 1 and pending_question[0]["kind"] == "question", pending_question
    return pending_question[0]["id"]


def expect_end(h, server, job, status="completed"):
    until(lambda: server.status(job) == status)
    expect_verified(h, job)
    return server.get(f"/api/jobs/{job}")[1]


def outcomes(h, job):
    events = expect(h.run("events", job, "--json"), 0).json()["events"]
    return [event["payload"]["outcome"] for event in events if event["type"] == "tool_invocation_finished"]


@test
def an_official_legacy_server_is_answered_within_its_open_call():
    with home() as h:
        write_elicitation_agent(h)
        server = Server(h)
        job = waiting_job(server)
        assert expect(h.run("approve", open_question(h, job), "--json"), 2).json()["code"] == "input_invalid", "a name is required"
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Ada", "integer": 7}'), 0)
        result = json.dumps(expect_end(h, server, job)["result"])
        assert "Name: Ada" in result and "Favorite Integer: 7" in result, result
        assert outcomes(h, job) == ["input_required", "success"]
        job = waiting_job(server)
        expect(h.run("reject", open_question(h, job)), 0)
        assert "User declined" in json.dumps(expect_end(h, server, job)["result"])
        expect(server.stop(), 0)


def kill_while_question_is_open(h, **entry):
    """The job, and the server that replaced the killed one and received the answer."""
    write_elicitation_agent(h, **{"timeout": "3s", "grace": "1s", **entry})  # so that a lost call settles soon
    server = Server(h)
    job = waiting_job(server)
    server.process.send_signal(signal.SIGKILL)
    h.end(server.process)
    server = Server(h)
    expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Ada"}'), 0)
    return job, server


@test
def kill_9_while_a_question_is_open_leaves_a_legacy_call_with_unknown_outcome():
    with home() as h:
        job, server = kill_while_question_is_open(h)
        until(lambda: server.status(job) == "parked")
        unknown = server.get(f"/api/jobs/{job}")[1]["in_doubt"][0]
        assert unknown["tool"] == FORM and outcomes(h, job) == ["input_required", "unknown"], unknown
        until(lambda: h.run("resolve", job, unknown["idempotency_key"], "not_happened").code == 0)
        until(lambda: server.status(job) == "waiting")
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Grace"}'), 0)
        assert "Name: Grace" in json.dumps(expect_end(h, server, job)["result"]), "the question was asked again, in a new call"
        assert outcomes(h, job) == ["input_required", "unknown", "input_required", "success"]
        expect(server.stop(), 0)


@test
def kill_9_while_a_question_is_open_repeats_an_idempotent_call_and_its_question():
    with home() as h:
        job, server = kill_while_question_is_open(h, effect="idempotent", retry={"max_attempts": 3, "retry_on": ["reset"]})
        until(lambda: outcomes(h, job) == ["input_required", "unknown", "input_required"])
        until(lambda: server.status(job) == "waiting")
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Grace"}'), 0)
        assert "Name: Grace" in json.dumps(expect_end(h, server, job)["result"])
        expect(server.stop(), 0)


@test
def several_open_http_calls_wait_concurrently_and_none_is_repeated():
    with home() as h, behind_http(h, "legacy") as url:
        write_agents(h, {"url": url}, {"ask": ("s.ask", {})}, timeout="2s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        jobs = [waiting_job(server) for _ in range(3)]
        time.sleep(3)  # longer than the timeout of a call: waiting for a user does not count
        for job, verb in zip(jobs, ("approve", "reject", "approve")):
            expect(h.run(verb, open_question(h, job)), 0)
        assert [expect_end(h, server, job)["result"] for job in jobs] == ["accept", "decline", "accept"]
        assert len(calls(h, "ask")) == 3
        expect(server.stop(), 0)


class ConnectionBlocker:
    """A proxy in front of a server. Open connections stay open. While it is closed, new connections are refused; while it is
    blocked, they are not accepted."""

    def __init__(self, url):
        self.upstream = urllib.parse.urlsplit(url)
        self.far = (self.upstream.hostname, self.upstream.port)
        self.port, self.listening, self.crowd = 0, None, []
        self.open()

    def open(self):
        if self.listening is None:
            self.listening = socket.create_server(("127.0.0.1", self.port), backlog=64)
            self.port = self.listening.getsockname()[1]
        while self.crowd:
            self.crowd.pop().close()
        threading.Thread(target=self.accept, args=(self.listening,), daemon=True).start()

    def close(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.listening = None

    def block(self):
        self.close()
        self.listening = socket.create_server(("127.0.0.1", self.port), backlog=0)
        for _ in range(4):
            self.crowd.append(socket.socket())
            self.crowd[-1].setblocking(False)
            self.crowd[-1].connect_ex(("127.0.0.1", self.port))

    def url(self):
        return self.upstream._replace(netloc=f"127.0.0.1:{self.port}").geturl()

    def accept(self, listening):
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(self.far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def check_delivery(closing):
    """The answer cannot reach the server, then it can. It is delivered once, in the open call."""
    with home() as h, behind_http(h, "legacy") as url:
        blocker = ConnectionBlocker(url)
        write_agents(h, {"url": blocker.url()}, {"ask": ("s.ask", {})}, timeout="2s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = waiting_job(server)
        closing(blocker)
        expect(h.run("approve", open_question(h, job)), 0)
        until(lambda: outcomes(h, job)[1:])
        events = [event["payload"] for event in expect(h.run("events", job, "--json"), 0).json()["events"]]
        [failed] = [one for one in events if one.get("outcome") == "failure"][:1]
        assert failed["definite"] and failed["error"]["code"] == "not_sent", failed
        time.sleep(1)
        blocker.open()
        assert expect_end(h, server, job)["result"] == "accept"
        assert set(outcomes(h, job)[1:-1]) == {"failure"} and outcomes(h, job)[-1] == "success", outcomes(h, job)
        assert (h.path / "said").read_text() == "accept\n" and len(calls(h, "ask")) == 1
        expect(server.stop(), 0)


@test
def an_answer_that_cannot_be_delivered_keeps_the_call_for_the_next_try():
    check_delivery(ConnectionBlocker.close)


@test
def an_answer_that_is_not_accepted_times_out_and_is_delivered_by_the_next_try():
    check_delivery(ConnectionBlocker.block)


@test
def a_server_that_answers_an_abandoned_call_can_ask_again():
    with home() as h:
        write_agents(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {}), "hang": ("s.hang", {})}, timeout="1s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        hung = server.post("/api/jobs", {"agent": "hang", "input": {}})[1]["id"]
        until(lambda: server.status(hung) == "parked")
        misdirected = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
        assert expect_end(h, server, misdirected)["result"] == "decline"
        assert "abandoned or lost" in expect(h.run("events", misdirected, "--json"), 0).out
        (h.path / "go").touch()
        time.sleep(0.5)
        job = waiting_job(server)
        expect(h.run("approve", open_question(h, job)), 0)
        assert expect_end(h, server, job)["result"] == "accept"
        expect(server.stop(), 0)


@contextlib.contextmanager
def server_with_get_stream():
    """A server of the official SDK that asks on the GET stream, which belongs to no call."""
    program = pathlib.Path(oracles.__file__).parent / "asking_server.mjs"
    process = subprocess.Popen([oracles.node(), program, oracles.modules()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def check_get_stream(tool):
    with home() as h, server_with_get_stream() as url:
        write_agents(h, {"url": url}, {"ask": (tool, {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        for mail in ("ada@example.org", "grace@example.org"):
            job = waiting_job(server)
            refused = expect(h.run("approve", open_question(h, job), "--arguments", '{"mail": "nobody"}', "--json"), 2).json()
            assert refused["code"] == "input_invalid" and "/mail must be an email address" in refused["detail"], refused
            expect(h.run("approve", open_question(h, job), "--arguments", json.dumps({"mail": mail})), 0)
            assert expect_end(h, server, job)["result"] == f"accept {mail}"
            assert outcomes(h, job) == ["input_required", "success"]
        began = time.monotonic()
        expect(server.stop(), 0)
        assert time.monotonic() - began < 5, "an open stream delays shutdown"


@test
def a_question_on_the_get_stream_is_answered():
    check_get_stream("s.ask")


@test
def a_get_stream_that_ended_is_reopened_before_the_question_arrives():
    check_get_stream("s.later")


@test
def a_question_on_the_get_stream_is_declined_while_several_calls_are_open():
    with home() as h, server_with_get_stream() as url:
        write_agents(h, {"url": url}, {"ask": ("s.ask", {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        first = waiting_job(server)
        second = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
        assert expect_end(h, server, second)["result"] == "decline"
        assert "several calls are open" in expect(h.run("events", second, "--json"), 0).out
        expect(h.run("reject", open_question(h, first)), 0)
        assert expect_end(h, server, first)["result"] == "decline"
        expect(server.stop(), 0)


@test
def run_declines_a_question_on_the_get_stream_immediately():
    with home() as h, server_with_get_stream() as url:
        write_agents(h, {"url": url}, {"ask": ("s.ask", {})}, timeout="20s")
        began = time.monotonic()
        assert expect(h.run("run", "agents.yaml", "ask", "--json"), 0).json()["result"] == "decline"
        assert time.monotonic() - began < 10


@test
def cancelling_a_job_cancels_the_question_of_its_open_call():
    with home() as h:
        write_agents(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = waiting_job(server)
        expect(h.run("cancel", job), 0)
        until(lambda: (h.path / "said").exists() and (h.path / "said").read_text() == "cancel\n")
        expect_end(h, server, job, "cancelled")
        again = waiting_job(server)
        expect(h.run("approve", open_question(h, again)), 0)
        assert expect_end(h, server, again)["result"] == "accept" and len(calls(h, "ask")) == 2
        expect(server.stop(), 0)


@test
def an_expired_question_of_an_open_call_is_cancelled_at_its_server():
    with home() as h:
        write_agents(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})}, question_expires="1s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        assert expect_end(h, server, waiting_job(server))["result"] == "cancel" and len(calls(h, "ask")) == 1
        expect(server.stop(), 0)


@test
def run_declines_questions_of_open_calls_and_reports_it():
    with home() as h:
        write_agents(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})})
        result = expect(h.run("run", "agents.yaml", "ask", "--job-id", "j1", "--json"), 0)
        assert result.json()["result"] == "decline" and len(calls(h, "ask")) == 1, result
        [warning] = [line for line in result.err.splitlines() if "warning:" in line]
        assert "job j1: the MCP server of s.ask asks a user: \"Who?\"; it was declined:" in warning, warning
        assert "`run` ends" in warning and "only a server or a worker keeps" in warning, warning
        assert "a question to a user was declined" in expect(h.run("events", "j1", "--json"), 0).out


@test
def question_expires_is_valid_for_mcp_servers_only():
    with home() as h:
        (h.path / "agents.yaml").write_text(json.dumps({
            "aetheris": 1, "tools": {"t": {"native": "echo", "question_expires": "1h"}},
            "agents": {"a": {"plan": [{"id": "x", "tool": "t"}]}}}))
        assert "question_expires" in expect(h.run("check", "agents.yaml"), 2).out


if __name__ == "__main__":
    sys.exit(run_tests("mcp_asks", TESTS, " ".join(sys.argv[1:])))
