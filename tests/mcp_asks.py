#!/usr/bin/env python3
"""Tools that ask a person in the middle of a call, end to end: the built program against a server that keeps nothing, so that
all it knows of an earlier try has to come back to it; and against servers of the old era, real ones too, which ask while their
call is open.

Prints `ok NAME` or `not ok NAME` per test.
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
from mcp import behind_http, calls, command, real, write  # noqa: E402
from mcp_server import MODERN, PEOPLE, SCHEMAS, Http  # noqa: E402
from shared.server import Server  # noqa: E402

BOOK = {"description": "Books seats", "inputSchema": {"type": "object"}}
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def offer(h, mcp, **entry):
    (h.path / "tools.json").write_text(json.dumps({"book": BOOK}))
    write(h, mcp, {"book": ("s.book", {})}, **entry)


def book(h, job="j1"):
    return h.run("run", "agents.yaml", "book", "--job-id", job, "--json")


def asked(h):
    """What is asked now: exactly one question."""
    [one] = expect(h.run("approvals", "--json"), 0).json()["approvals"]
    assert one["kind"] == "question" and one["tool"] == "s.book", one
    return one


def fill_in(h, content):
    return h.run("approve", asked(h)["id"], "--arguments", json.dumps(content), "--json")


def proved(h, job="j1"):
    assert expect(h.run("verify", job, "--json"), 0).json()["ok"]


def goes_all_the_way(h):
    """From the first question to the result, each part of it in a process of its own."""
    waits = expect(book(h), 4).json()
    assert waits["status"] == "waiting" and waits["in_doubt"] == [], waits
    assert waits["waiting"]["correlation_key"].startswith("input/"), waits
    first = asked(h)
    assert first["question"]["schema"]["required"] == ["n"], first
    shown = expect(h.run("approvals"), 0).out
    assert "How many seats?" in shown and "\x1b" not in shown and "--arguments" in shown, shown
    for wrong in ({"n": 0}, {"n": "many"}, {}):
        assert expect(fill_in(h, wrong), 2).json()["code"] == "input_invalid"
    assert asked(h)["id"] == first["id"], "a wrong answer leaves the question as it is"
    expect(fill_in(h, {"n": 3}), 0)

    expect(book(h), 4)
    second = asked(h)
    assert second["question"] == {"message": "Sign, please", "mode": "url", "url": "https://sign.example/42"}, second
    assert "https://sign.example/42" in expect(h.run("approvals"), 0).out
    expect(h.run("approve", second["id"]), 0)
    assert expect(book(h), 0).json()["result"] == "booked 3"

    made = calls(h, "book")
    assert [call["try"] for call in made] == [1, 2, 3] and len({call["key"] for call in made}) == 1, made
    assert made[0]["responses"] is None and made[1]["responses"] == {"seats": {"action": "accept", "content": {"n": 3}}}, made
    assert made[2]["responses"] == {"sign": {"action": "accept"}} and made[2]["state"] != made[1]["state"], made
    proved(h)
    expect(h.run("approve", first["id"], "--arguments", '{"n":3}'), 0)
    assert expect(h.run("approve", first["id"], "--arguments", '{"n":4}', "--json"), 5).json()["applied"] is False


@test
def a_program_is_called_again_with_what_people_answered():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        goes_all_the_way(h)


@test
def a_url_is_called_again_with_what_people_answered():
    with home() as h, behind_http(h, "modern", "--tools", str(h.path / "tools.json")) as url:
        offer(h, {"url": url})
        goes_all_the_way(h)


@test
def a_no_is_told_to_the_tool_which_decides():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        expect(book(h), 4)
        expect(h.run("reject", asked(h)["id"]), 0)
        failed = expect(book(h), 1).json()
        assert failed["error"]["code"] == "tool_error" and "not booked: decline" in failed["error"]["message"], failed
        assert len(calls(h, "book")) == 2
        proved(h)


@test
def nobody_answers_in_time_and_the_tool_is_told_so():
    with home() as h:
        offer(h, {"command": command(h, "modern")}, ask_expires="1s")
        expect(book(h), 4)
        until(lambda: book(h).code == 1)
        assert calls(h, "book")[-1]["responses"] == {"seats": {"action": "cancel"}} and len(calls(h, "book")) == 2
        proved(h)


@test
def a_signal_with_the_words_of_mcp_answers_too():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        key = expect(book(h), 4).json()["waiting"]["correlation_key"]
        assert expect(h.run("signal", "j1", key, '{"n":3}', "--json"), 2).json()["code"] == "input_invalid"
        expect(h.run("signal", "j1", key, '{"action":"cancel"}'), 0)
        expect(book(h), 1)
        assert calls(h, "book")[-1]["responses"] == {"seats": {"action": "cancel"}}


@test
def kill_9_while_a_person_thinks_changes_nothing():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = server.post("/api/jobs", {"agent": "book", "input": {}})[1]["id"]
        until(lambda: server.status(job) == "waiting")
        question = asked(h)
        server.process.send_signal(signal.SIGKILL)
        h.end(server.process)
        assert asked(h) == question, "the question is in the log, not in the process"
        expect(fill_in(h, {"n": 2}), 0)
        expect(book(h, job), 4)
        expect(h.run("approve", asked(h)["id"]), 0)
        assert expect(book(h, job), 0).json()["result"] == "booked 2"
        assert [call["try"] for call in calls(h, "book")] == [1, 2, 3]
        proved(h, job)


@test
def kill_9_in_the_call_that_has_the_answers_is_a_call_in_doubt():
    with home() as h:
        offer(h, {"command": command(h, "modern")}, timeout="5s", grace="1s")
        expect(book(h), 4)
        expect(fill_in(h, {"n": 2}), 0)
        expect(book(h), 4)
        expect(h.run("approve", asked(h)["id"]), 0)
        (h.path / "stop").touch()
        process = h.start("run", "agents.yaml", "book", "--job-id", "j1")
        until(lambda: len(calls(h, "book")) == 3)
        server = calls(h, "book")[-1]["pid"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not pathlib.Path(f"/proc/{server}").exists())
        (h.path / "stop").unlink()
        doubt = expect(book(h), 4).json()
        assert doubt["in_doubt"][0]["tool"] == "s.book" and len(calls(h, "book")) == 3, doubt
        key = doubt["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "j1", key, "not_happened", "--json"), 5).json()["code"] == "not_settled"
        until(lambda: h.run("resolve", "j1", key, "not_happened").code == 0)
        assert expect(book(h), 0).json()["result"] == "booked 2", "the answers were not asked for again"
        assert calls(h, "book")[3]["responses"] == calls(h, "book")[2]["responses"]
        proved(h)


@test
def our_own_mcp_server_hands_the_question_on():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        client = Http(server, MODERN, PEOPLE)
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
def what_no_person_can_answer_fails_the_call():
    with home() as h:
        offer(h, {"command": command(h, "modern")})
        write(h, {"command": command(h, "modern")}, {"ask": ("s.ask", {})})  # a form without a schema
        assert expect(h.run("run", "agents.yaml", "ask", "--json"), 1).json()["error"]["code"] == "input_required"


# ------------------------------------------------------------------- in an open call, as servers did before 2026-07-28


FORM = "s.trigger-elicitation-request"


def elicits(h, **entry):
    write(h, real("server-everything", "stdio"), {"ask": (FORM, {})}, **entry)
    expect(h.run("check", "agents.yaml"), 0)


def waits(server):
    """A new job, when its tool has asked."""
    job = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
    until(lambda: server.status(job) == "waiting")
    return job


def open_question(h, job):
    asked = [one for one in expect(h.run("approvals", "--json"), 0).json()["approvals"] if one["job_id"] == job]
    assert len(asked) == 1 and asked[0]["kind"] == "question", asked
    return asked[0]["id"]


def ends(h, server, job, status="completed"):
    until(lambda: server.status(job) == status)
    proved(h, job)
    return server.get(f"/api/jobs/{job}")[1]


def tries(h, job):
    events = expect(h.run("events", job, "--json"), 0).json()["events"]
    return [event["payload"]["outcome"] for event in events if event["type"] == "tool_invocation_finished"]


@test
def a_real_server_of_the_old_era_is_answered_in_its_open_call():
    with home() as h:
        elicits(h)
        server = Server(h)
        job = waits(server)
        assert expect(h.run("approve", open_question(h, job), "--json"), 2).json()["code"] == "input_invalid", "it wants a name"
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Ada", "integer": 7}'), 0)
        said = json.dumps(ends(h, server, job)["result"])
        assert "Name: Ada" in said and "Favorite Integer: 7" in said, said
        assert tries(h, job) == ["input_required", "success"]
        job = waits(server)
        expect(h.run("reject", open_question(h, job)), 0)
        assert "User declined" in json.dumps(ends(h, server, job)["result"])
        expect(server.stop(), 0)


def killed_while_a_person_thinks(h, **entry):
    """The job, and the server after the one that was killed, which has been given the answer."""
    elicits(h, **{"timeout": "3s", "grace": "1s", **entry})  # what is lost settles soon after it
    server = Server(h)
    job = waits(server)
    server.process.send_signal(signal.SIGKILL)
    h.end(server.process)
    server = Server(h)
    expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Ada"}'), 0)
    return job, server


@test
def kill_9_while_a_person_thinks_leaves_an_open_call_in_doubt():
    with home() as h:
        job, server = killed_while_a_person_thinks(h)
        until(lambda: server.status(job) == "parked")
        doubt = server.get(f"/api/jobs/{job}")[1]["in_doubt"][0]
        assert doubt["tool"] == FORM and tries(h, job) == ["input_required", "unknown"], doubt
        until(lambda: h.run("resolve", job, doubt["idempotency_key"], "not_happened").code == 0)
        until(lambda: server.status(job) == "waiting")
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Grace"}'), 0)
        assert "Name: Grace" in json.dumps(ends(h, server, job)["result"]), "asked anew, in a call of its own"
        assert tries(h, job) == ["input_required", "unknown", "input_required", "success"]
        expect(server.stop(), 0)


@test
def kill_9_while_a_person_thinks_asks_anew_where_a_call_may_be_repeated():
    with home() as h:
        job, server = killed_while_a_person_thinks(h, effect="idempotent", retry={"max_attempts": 3, "retry_on": ["reset"]})
        until(lambda: tries(h, job) == ["input_required", "unknown", "input_required"])
        until(lambda: server.status(job) == "waiting")
        expect(h.run("approve", open_question(h, job), "--arguments", '{"name": "Grace"}'), 0)
        assert "Name: Grace" in json.dumps(ends(h, server, job)["result"])
        expect(server.stop(), 0)


@test
def over_http_several_open_calls_wait_at_once_and_none_is_made_twice():
    with home() as h, behind_http(h, "legacy") as url:
        write(h, {"url": url}, {"ask": ("s.ask", {})}, timeout="2s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        jobs = [waits(server) for _ in range(3)]
        time.sleep(3)  # longer than a call may take: a person's time is not the call's
        for job, verb in zip(jobs, ("approve", "reject", "approve")):
            expect(h.run(verb, open_question(h, job)), 0)
        assert [ends(h, server, job)["result"] for job in jobs] == ["accept", "decline", "accept"]
        assert len(calls(h, "ask")) == 3
        expect(server.stop(), 0)


class Door:
    """In front of a server. What is connected stays so; while it is shut, new connections are refused, and while it is jammed
    nobody takes them in."""

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

    def shut(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.listening = None

    def jam(self):
        self.shut()
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


def answered_through(closing):
    """The answer cannot get to the server, then it can. It is told once, in the call that was kept."""
    with home() as h, behind_http(h, "legacy") as url:
        door = Door(url)
        write(h, {"url": door.url()}, {"ask": ("s.ask", {})}, timeout="2s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = waits(server)
        closing(door)
        expect(h.run("approve", open_question(h, job)), 0)
        until(lambda: tries(h, job)[1:])
        events = [event["payload"] for event in expect(h.run("events", job, "--json"), 0).json()["events"]]
        [failed] = [one for one in events if one.get("outcome") == "failure"][:1]
        assert failed["definite"] and failed["error"]["code"] == "not_sent", failed
        time.sleep(1)
        door.open()
        assert ends(h, server, job)["result"] == "accept"
        assert set(tries(h, job)[1:-1]) == {"failure"} and tries(h, job)[-1] == "success", tries(h, job)
        assert (h.path / "said").read_text() == "accept\n" and len(calls(h, "ask")) == 1
        expect(server.stop(), 0)


@test
def an_answer_that_is_refused_on_its_way_keeps_the_call_for_the_next_try():
    answered_through(Door.shut)


@test
def an_answer_that_nobody_takes_in_ends_with_its_try_and_is_told_by_the_next():
    answered_through(Door.jam)


@test
def a_program_that_answers_a_call_that_was_given_up_is_heard_again():
    with home() as h:
        write(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {}), "hang": ("s.hang", {})}, timeout="1s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        hung = server.post("/api/jobs", {"agent": "hang", "input": {}})[1]["id"]
        until(lambda: server.status(hung) == "parked")
        astray = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
        assert ends(h, server, astray)["result"] == "decline"
        assert "abandoned or lost" in expect(h.run("events", astray, "--json"), 0).out
        (h.path / "go").touch()
        time.sleep(0.5)
        job = waits(server)
        expect(h.run("approve", open_question(h, job)), 0)
        assert ends(h, server, job)["result"] == "accept"
        expect(server.stop(), 0)


@contextlib.contextmanager
def asks_aside():
    """A server of the official SDK that asks on the stream of GET, which belongs to no call."""
    program = pathlib.Path(oracles.__file__).parent / "asking_server.mjs"
    process = subprocess.Popen([oracles.node(), program, oracles.modules()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answered_aside(tool):
    with home() as h, asks_aside() as url:
        write(h, {"url": url}, {"ask": (tool, {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        for mail in ("ada@example.org", "grace@example.org"):
            job = waits(server)
            refused = expect(h.run("approve", open_question(h, job), "--arguments", '{"mail": "nobody"}', "--json"), 2).json()
            assert refused["code"] == "input_invalid" and "/mail must be an email address" in refused["detail"], refused
            expect(h.run("approve", open_question(h, job), "--arguments", json.dumps({"mail": mail})), 0)
            assert ends(h, server, job)["result"] == f"accept {mail}"
            assert tries(h, job) == ["input_required", "success"]
        began = time.monotonic()
        expect(server.stop(), 0)
        assert time.monotonic() - began < 5, "an open stream holds nothing up"


@test
def a_real_server_that_asks_aside_of_its_call_is_heard():
    answered_aside("s.ask")


@test
def a_stream_that_ended_is_taken_up_again_before_the_question_comes():
    answered_aside("s.later")


@test
def with_two_calls_open_nobody_knows_which_asks_aside_and_the_job_says_so():
    with home() as h, asks_aside() as url:
        write(h, {"url": url}, {"ask": ("s.ask", {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        first = waits(server)
        second = server.post("/api/jobs", {"agent": "ask", "input": {}})[1]["id"]
        assert ends(h, server, second)["result"] == "decline"
        assert "several calls are open" in expect(h.run("events", second, "--json"), 0).out
        expect(h.run("reject", open_question(h, first)), 0)
        assert ends(h, server, first)["result"] == "decline"
        expect(server.stop(), 0)


@test
def a_run_hears_what_is_asked_aside_and_declines_it_at_once():
    with home() as h, asks_aside() as url:
        write(h, {"url": url}, {"ask": ("s.ask", {})}, timeout="20s")
        began = time.monotonic()
        assert expect(h.run("run", "agents.yaml", "ask", "--json"), 0).json()["result"] == "decline"
        assert time.monotonic() - began < 10


@test
def a_job_that_is_cancelled_tells_the_open_call_so():
    with home() as h:
        write(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})})
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        job = waits(server)
        expect(h.run("cancel", job), 0)
        until(lambda: (h.path / "said").exists() and (h.path / "said").read_text() == "cancel\n")
        ends(h, server, job, "cancelled")
        again = waits(server)
        expect(h.run("approve", open_question(h, again)), 0)
        assert ends(h, server, again)["result"] == "accept" and len(calls(h, "ask")) == 2
        expect(server.stop(), 0)


@test
def nobody_answers_an_open_call_in_time_and_its_server_is_told_so():
    with home() as h:
        write(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})}, ask_expires="1s")
        expect(h.run("check", "agents.yaml"), 0)
        server = Server(h)
        assert ends(h, server, waits(server))["result"] == "cancel" and len(calls(h, "ask")) == 1
        expect(server.stop(), 0)


@test
def a_run_that_ends_when_its_job_rests_asks_nobody_and_the_job_says_so():
    with home() as h:
        write(h, {"command": command(h, "legacy")}, {"ask": ("s.ask", {})})
        said = expect(h.run("run", "agents.yaml", "ask", "--job-id", "j1", "--json"), 0)
        assert said.json()["result"] == "decline" and len(calls(h, "ask")) == 1, said
        [warning] = [line for line in said.err.splitlines() if "warning:" in line]
        assert "job j1: the MCP server of s.ask asks a user: \"Who?\"; it was declined:" in warning, warning
        assert "`run` ends" in warning and "`aetheris serve` and `aetheris worker` keep" in warning, warning
        assert "a question to a user was declined" in expect(h.run("events", "j1", "--json"), 0).out


@test
def the_policy_key_is_for_servers_only():
    with home() as h:
        (h.path / "agents.yaml").write_text(json.dumps({
            "aetheris": 1, "tools": {"t": {"native": "echo", "ask_expires": "1h"}},
            "agents": {"a": {"plan": [{"id": "x", "tool": "t"}]}}}))
        assert "ask_expires" in expect(h.run("check", "agents.yaml"), 2).out


if __name__ == "__main__":
    sys.exit(run_tests("mcp_asks", TESTS, " ".join(sys.argv[1:])))
