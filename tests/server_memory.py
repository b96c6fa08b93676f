#!/usr/bin/env python3
"""The memory that clients can make the server use: bodies that it has not read, responses that are not read.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  server_memory.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import select
import socket
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.api_keys import bearer, serving  # noqa: E402
from shared.home import PATIENCE, expect, run_tests, until  # noqa: E402
from shared.sanitizer import sanitizer  # noqa: E402

TESTS = []
# The allocator of the sanitizer keeps freed memory unless configured otherwise; this test measures the memory of the server.
QUIET = sanitizer("quarantine_size_mb=1:thread_local_quarantine_size_kb=64:allocator_release_to_os_interval_ms=100")
MIB = 1 << 20
BODY = 4 * MIB
BODIES_MAX = 64 * MIB
FREE = 16 << 10  # of each body, not counted


def test(function):
    TESTS.append(function)
    return function


def memory(process):
    """Bytes of this process that are in memory."""
    with open(f"/proc/{process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_falls_to(process, most):
    """Whether the memory falls to at most `most` within a few seconds."""
    try:
        until(lambda: memory(process) <= most, patience=10)
    except AssertionError:
        return False
    return True


class Client:
    def __init__(self, s):
        host, port = s.address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.seen = b""

    def send(self, data):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def push(self, data):
        """Sends what the socket accepts now, without waiting for the server."""
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            return self.socket.send(data)
        return 0

    def head(self):
        """The head of the first response; "" = the server closed the connection without one."""
        self.socket.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while b"\r\n\r\n" not in self.seen:
                more = self.socket.recv(65536)
                if not more:
                    break
                self.seen += more
        return self.seen.split(b"\r\n\r\n")[0].decode()

    def close(self):
        self.socket.close()


def post(key=None, length=BODY, path="/api/jobs", extra=""):
    key_line = f"Authorization: Bearer {key}\r\n" if key else ""
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n{key_line}{extra}\r\n").encode()


def complete_job(s):
    status, job = s.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 1}}, headers=bearer(s.keys["admin"]))
    assert (status, job["status"]) == (201, "completed"), job


@test
def a_request_rejected_by_its_headers_is_answered_before_its_body():
    with serving(roles=("admin", "viewer"), env=QUIET) as s:
        expectation = "Expect: 100-continue\r\n"
        for head, wanted in [
            (post(extra=expectation), "401"),
            (post("aek_" + "0" * 12 + "_" + "0" * 64, extra=expectation), "401"),
            (post(s.keys["viewer"], extra=expectation), "403"),
            (post(s.keys["admin"], path="/api/nothing", extra=expectation), "404"),
            (post(s.keys["admin"], path="/api/health", extra=expectation), "405"),
            (post(s.keys["admin"], length=BODY + 1, extra=expectation), "413"),
            (post(s.keys["admin"], extra=expectation + "Origin: http://elsewhere\r\n"), "403"),
        ]:
            client = Client(s)
            client.send(head)
            answer = client.head()
            assert answer.startswith("HTTP/1.1 " + wanted), (wanted, answer)
            assert "Connection: close" in answer, answer
            client.close()
        client = Client(s)
        body = b'{"agent": "echo", "input": {"n": 1}}'
        client.send(post(s.keys["admin"], length=len(body), extra=expectation))
        assert client.head() == "HTTP/1.1 100 Continue", client.seen
        client.seen = b""
        client.send(body)
        assert client.head().startswith("HTTP/1.1 201"), client.seen
        expect(s.stop(), 0)


@test
def a_client_that_sends_a_whole_rejected_body_receives_the_error():
    with serving(env=QUIET) as s:
        client = Client(s)
        client.send(post() + b" " * BODY)
        assert client.head().startswith("HTTP/1.1 401"), client.seen
        expect(s.stop(), 0)


@test
def a_thousand_unauthenticated_bodies_use_no_memory():
    with serving(env=QUIET) as s:
        assert s.get("/api/health")[0] == 200
        before = memory(s.process)
        clients = []
        for i in range(1000):
            client = Client(s)
            client.send(post(extra="Expect: 100-continue\r\n" if i % 2 else ""))
            client.push(b" " * BODY)
            clients.append(client)
            if i % 100 == 99:
                assert s.get("/api/health")[0] == 200
        grown = memory(s.process) - before
        assert grown <= 64 * MIB, grown / MIB
        for client in clients:
            client.close()
        assert s.get("/api/health")[0] == 200
        assert memory_falls_to(s.process, before + 16 * MIB), (memory(s.process) - before) / MIB
        expect(s.stop(), 0)


@test
def slow_bodies_stay_within_the_shared_limit_and_small_requests_still_pass():
    with serving(env=QUIET) as s:
        complete_job(s)  # the pages of the code and of the store that every job needs are in memory now
        before = memory(s.process)
        part = b" " * (BODY - 100)  # a body that never ends
        clients = [Client(s) for _ in range(60)]
        left = {}
        for client in clients:
            client.send(post(s.keys["admin"]))
            left[client] = len(part)
        peak = before
        refused = set()

        def too_many_were_refused():
            nonlocal peak
            for client in list(left):
                left[client] -= client.push(part[:min(left[client], 256 << 10)])
                if left[client] <= 0:
                    del left[client]
            refused.update(select.select([client.socket for client in clients], [], [], 0)[0])
            peak = max(peak, memory(s.process))
            return len(refused) >= len(clients) - BODIES_MAX // (len(part) - FREE) - 1

        until(too_many_were_refused)
        assert peak - before <= BODIES_MAX + 48 * MIB, (peak - before) / MIB
        complete_job(s)
        for client in clients:
            if client.socket in refused:
                answer = client.head()
                assert answer.startswith("HTTP/1.1 503") and "Retry-After: 1" in answer, answer
        for client in clients:
            client.close()
        assert memory_falls_to(s.process, before + 24 * MIB), (memory(s.process) - before) / MIB
        expect(s.stop(), 0)


LARGE = """
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  large:
    plan: [ { id: each, map: "${ .input.items }", do: { tool: echo, args: { n: "${ .item }" } } } ]
    output: "${ .steps.each[0] }"
  all:
    plan: [ { id: each, map: "${ .input.items }", do: { tool: echo, args: { n: "${ .item }" } } } ]
    output: "${ .steps.each }"
"""
ANSWERS_MAX = 64 * MIB
MEMORY_MAX = 224 * MIB  # of the process, including what it needs to build responses


def large_job(s, agent="large"):
    """A job whose trace has several MiB, and for agent `all` also its result. Returns its id."""
    items = ["x" * 20_000 + str(i) for i in range(150)]
    status, job = s.post("/api/jobs?wait=60s", {"agent": agent, "input": {"items": items}},
                         headers=bearer(s.keys["admin"]))
    assert (status, job["status"]) == (201, "completed"), (status, str(job)[:500])
    return job["id"]


def health_latency(s):
    """The seconds until health is answered, while others are busy."""
    began = time.monotonic()
    assert s.get("/api/health")[0] == 200
    return time.monotonic() - began


def serving_large():
    return serving("large.yaml", files={"large.yaml": LARGE}, env=QUIET)


@test
def unread_large_responses_stay_within_the_shared_limit():
    with serving_large() as s:
        job = large_job(s)
        status, trace = s.get(f"/api/jobs/{job}/trace", headers=bearer(s.keys["admin"]))
        assert status == 200
        size = len(json.dumps(trace))
        assert size > 3 * MIB, size
        memory_falls_to(s.process, 0)
        before = memory(s.process)
        clients = []
        for _ in range(ANSWERS_MAX // size + 20):
            client = Client(s)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send((f"GET /api/jobs/{job}/trace HTTP/1.1\r\nHost: localhost\r\n"
                         f"Authorization: Bearer {s.keys['admin']}\r\n\r\n").encode())
            clients.append(client)
        peak, slowest = 0, 0
        answers = {}
        while len(answers) < len(clients):
            slowest = max(slowest, health_latency(s))
            peak = max(peak, memory(s.process) - before)
            waiting = [c for c in clients if c not in answers]
            for ready in select.select([c.socket for c in waiting], [], [], 0.2)[0]:
                client = next(c for c in waiting if c.socket is ready)
                answers[client] = client.head()
        statuses = [head.split(" ")[1] for head in answers.values()]
        assert "200" in statuses and "503" in statuses, statuses
        refused = next(head for head in answers.values() if " 503 " in head)
        assert "Retry-After: " in refused, refused
        assert peak <= MEMORY_MAX, peak / MIB
        assert slowest < 20, slowest
        for client in clients:
            client.close()
        assert memory_falls_to(s.process, before + 48 * MIB), (memory(s.process) - before) / MIB
        expect(s.stop(), 0)


@test
def unread_event_streams_stay_within_the_memory_limit_and_a_read_one_completes():
    with serving_large() as s:
        job = large_job(s)
        clients = []
        before = memory(s.process)
        for i in range(60):
            client = Client(s)
            if i > 0:  # the first one is read later, and must not be slow then
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send((f"GET /api/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
                         f"Authorization: Bearer {s.keys['admin']}\r\n\r\n").encode())
            clients.append(client)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert health_latency(s) < 20
            time.sleep(0.05)  # health has a rate limit, too
            assert memory(s.process) - before <= MEMORY_MAX, (memory(s.process) - before) / MIB
        for client in clients[1:]:
            client.close()
        clients[0].socket.settimeout(PATIENCE)
        while b"job_completed" not in clients[0].seen[-100_000:]:
            more = clients[0].socket.recv(1 << 20)
            assert more, "a stream that is read must end"
            clients[0].seen += more
        expect(s.stop(), 0)


@test
def unread_mcp_streams_stay_within_the_shared_limit():
    with serving_large() as s:
        job = large_job(s, "all")
        call = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
                           "params": {"name": "aetheris_job", "arguments": {"job_id": job, "wait_seconds": 5},
                                      "_meta": {"progressToken": 1}}})
        request = (f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-11-25\r\n"
                   f"Content-Length: {len(call)}\r\nAuthorization: Bearer {s.keys['admin']}\r\n\r\n{call}").encode()

        def answer(client):
            client.socket.settimeout(PATIENCE)
            while b"\r\n0\r\n" not in client.seen[-20:]:
                more = client.socket.recv(1 << 20)
                if not more:
                    break
                client.seen += more
            return client.seen

        def is_refused(client):
            """Whether the response is an error. It is short, so all of it has arrived."""
            client.socket.settimeout(1)
            with contextlib.suppress(TimeoutError, ConnectionError):
                while len(client.seen) < 1 << 16 and (more := client.socket.recv(1 << 12)):
                    client.seen += more
            return b'"code":"unknown_outcome"' in client.seen and b'"id":7' in client.seen

        def is_cut(client):
            try:
                return b"\r\n0\r\n" not in answer(client)[-20:]
            except ConnectionError:
                return True

        first = Client(s)
        first.send(request)
        whole = answer(first)
        assert b"text/event-stream" in whole and b"notifications/progress" in whole, whole[:1000]
        size = len(whole)
        assert size > 3 * MIB and b'"isError":false' in whole, size
        memory_falls_to(s.process, 0)
        before = memory(s.process)
        clients, began = [], time.monotonic()
        for _ in range(ANSWERS_MAX // size + 40):
            client = Client(s)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(request)
            clients.append(client)
        peak, slowest = 0, 0
        waiting = set(clients)
        while waiting:
            slowest = max(slowest, health_latency(s))
            peak = max(peak, memory(s.process) - before)
            ready = select.select([c.socket for c in waiting], [], [], 0.2)[0]
            waiting = {c for c in waiting if c.socket not in ready}
        filled = time.monotonic() - began
        end = time.monotonic() + 3
        while time.monotonic() < end:  # the last responses may not be built yet
            slowest = max(slowest, health_latency(s))
            peak = max(peak, memory(s.process) - before)
            time.sleep(0.1)
        assert peak <= MEMORY_MAX, peak / MIB
        assert slowest < 20, slowest
        status, small = s.post("/api/jobs?wait=30s", {"agent": "large", "input": {"items": ["x"]}},
                               headers=bearer(s.keys["admin"]))
        assert (status, small["status"]) == (201, "completed"), small
        # A client that reads nothing for 10 s is disconnected, which frees memory; on a slow machine before the last ones connect.
        assert any(is_refused(client) for client in reversed(clients)) or filled > 10 and is_cut(clients[0]), filled
        for client in clients:
            client.close()
        assert memory_falls_to(s.process, before + 48 * MIB), (memory(s.process) - before) / MIB
        expect(s.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_tests("server memory", TESTS, " ".join(sys.argv[1:])))
