#!/usr/bin/env python3
"""Invalid requests to a running server: each must get its status and have no effect.

    bad_requests.py URL        sends all of them, prints each unexpected answer
"""
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

from client import ACK, send_request

PATIENCE_S = 12.0
TURNS = 5
SILENCE_S = 45.0  # longer than a server waits for a body
LINGER_S = 1.5  # longer than a server reads from a client that it has rejected
RSS_SLACK = 32 << 20
LONG = "x" * 10_000
# A stack trace, an address, a source location, a report of a runtime library: a client must never get one.
INNER = re.compile(r"\b\w+\.(?:cc|h):\d+|\b0x[0-9a-f]{6,}|\bstd::\w|terminate called|what\(\):|Sanitizer|#\d+ 0x")


def request(line="GET /api/health HTTP/1.1", headers=(), body=b"", host=True):
    head = [line, *(["Host: 127.0.0.1"] if host else []), *headers]
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body


def post(path, body, *headers, kind="application/json"):
    content = body if isinstance(body, bytes) else body.encode()
    return request(f"POST {path} HTTP/1.1", [*([f"Content-Type: {kind}"] if kind else []), f"Content-Length: {len(content)}",
                                             *headers], content)


def jobs(body, *headers, **more):
    return post("/api/jobs", body, *headers, **more)


def framing(_):
    good = '{"agent": "nobody"}'
    chunked = ["Content-Type: application/json", "Transfer-Encoding: chunked"]

    def chunks(text, *more):
        return request("POST /api/jobs HTTP/1.1", [*chunked, *more], text)

    def lengths(*values):
        return request("POST /api/jobs HTTP/1.1", ["Content-Type: application/json",
                                                   *(f"Content-Length: {v}" for v in values)], good.encode())
    yield "request line over 8 KiB", request(f"GET /{LONG} HTTP/1.1"), 414
    yield "101 headers", request(headers=[f"X-{n}: 1" for n in range(101)]), 431
    yield "headers over 16 KiB", request(headers=[f"X-{n}: {'y' * 3000}" for n in range(7)]), 431
    yield "headers without an end", b"GET / HTTP/1.1\r\nX: " + b"y" * 40_000, 431
    yield "a request line without an end", b"G" * 40_000, (400, 414, 431, 501)
    yield "bare LF", b"GET /api/health HTTP/1.1\nHost: 127.0.0.1\n\n", 400
    yield "bare CR", b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rb\r\n\r\n", 400
    yield "a folded header", request(headers=["X: a\r\n b"]), 400
    yield "a space before the colon", request(headers=["X : a"]), 400
    yield "NUL in a header", request(headers=["X: a\0b"]), 400
    yield "a control character in a header", request(headers=["X: a\x07b"]), 400
    yield "a header without a name", request(headers=[": a"]), 400
    yield "two different lengths", lengths(5, 6), 400
    for value in ("+19", "-1", "0x13", "5, 5", "18446744073709551616", "1e1", "", " "):
        yield f"Content-Length: {value!r}", lengths(value), 400
    yield "the same length twice", lengths(19, 19), 400
    yield "length and chunks", chunks(b"0\r\n\r\n", "Content-Length: 5"), 400
    for value in ("xchunked", "chunked, identity", "Chunked\x0b", "gzip", "chunked, chunked"):
        yield f"Transfer-Encoding: {value!r}", request("POST /api/jobs HTTP/1.1", [
            "Content-Type: application/json", f"Transfer-Encoding: {value}"], b"0\r\n\r\n"), (400, 501)
    yield "Transfer-Encoding twice", chunks(b"0\r\n\r\n", "Transfer-Encoding: chunked"), 400
    for size in (b"-2", b"FFFFFFFFFFFFFFFFF", b"0x10", b"", b"g", b" 5"):
        yield f"chunk size {size!r}", chunks(size + b"\r\nhello\r\n0\r\n\r\n"), (400, 413)
    yield "a trailer that says another length", chunks(b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n"), 400
    yield "12,000 chunks of one byte", chunks(b"1\r\n \r\n" * 12_000 + b"0\r\n\r\n"), (400, 413)
    yield "a bare LF behind a chunk size", chunks(b"2\n{}\r\n0\r\n\r\n"), 400
    yield "a long chunk extension", chunks(b"2;" + b"x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n"), (400, 413, 431)
    yield "a chunk that is longer than it says", chunks(b"2\r\n{}}\r\n0\r\n\r\n"), 400
    yield "an unknown Expect", jobs(good, "Expect: 200-maybe"), 417
    yield "a body announced too large", request("POST /api/jobs HTTP/1.1", [
        "Content-Type: application/json", "Content-Length: 999999999", "Expect: 100-continue"]), (413, 417)
    yield "CONNECT", request("CONNECT 127.0.0.1:80 HTTP/1.1"), (400, 405, 501)
    yield "TRACE", request("TRACE /api/health HTTP/1.1"), (405, 501)
    yield "an unknown method", request("BREW /api/health HTTP/1.1"), (405, 501)
    yield "DELETE where there is none", request("DELETE /api/jobs HTTP/1.1"), 405
    yield "an upgrade", request(headers=["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]), 501
    yield "HTTP/0.9", b"GET /api/health\r\n\r\n", 400
    yield "HTTP/3.0", request("GET /api/health HTTP/3.0"), (400, 505)
    yield "the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 501, 505)
    yield "no Host", request(host=False), 400
    yield "two Hosts", request(headers=["Host: 127.0.0.1"]), 400
    yield "another's Host", request(headers=["Host: evil.example"], host=False), 400
    yield "another's page", request(headers=["Origin: http://evil.example"]), 403
    yield "TLS", bytes.fromhex("16030100a5010000a10303") + b"\0" * 160, 400
    yield "a target of another site", request("GET http://evil.example/api/health HTTP/1.1"), (400, 404)
    yield "gzip", jobs(good, "Content-Encoding: gzip"), 415
    yield "no type", jobs(good, kind=""), (415, 404)
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json; charset=utf-16", "application/xml"):
        yield kind, jobs(good, kind=kind), 415
    yield "ten thousand ranges", request(headers=["Range: bytes=" + ",".join("0-1" for _ in range(1500))]), (200, 416)


def targets(_):
    names = ["%00", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..%5c", "%c0%ae%c0%ae", "%252e%252e", "'%20OR%201=1--", "$(id)",
             "%3Cscript%3E", "%F0%9F%98%80", "%E2%80%AE", "a%0d%0ab", "%ff", "%", "%zz", LONG[:7000], "x" * 65, "%20", ".."]
    for name in names:
        yield f"the job {name[:40]}", request(f"GET /api/jobs/{name} HTTP/1.1"), (400, 404)
        yield f"a signal to {name[:40]}", post(f"/api/jobs/{name}/signal", '{"correlation_key": "k"}'), (400, 404, 405)
    yield "//", request("GET // HTTP/1.1"), (400, 404)
    yield "2,000 segments", request("GET " + "/a" * 2000 + " HTTP/1.1"), (400, 404)
    yield "../../etc/passwd", request("GET /../../etc/passwd HTTP/1.1"), (400, 404)
    for value in ("-1", "1e9", "NaN", "0x10", "%31%00", "99999999999999999999"):
        yield f"limit={value}", request(f"GET /api/jobs?limit={value} HTTP/1.1"), 400
        yield f"after={value}", request(f"GET /api/audit?after={value} HTTP/1.1"), 400
    for value in ("0", "1001", "1000000000"):
        for path in ("jobs?", "jobs?stalled=true&", "jobs?in_doubt=true&", "approvals?", "audit?"):
            yield f"{path}limit={value}", request(f"GET /api/{path}limit={value} HTTP/1.1"), 400
    for path in ("approvals?cursor=x", "approvals?cursor=waiting:nobody", "jobs?stalled=true&cursor=x",
                 "jobs?in_doubt=true&cursor=parked:nobody", "jobs?agent=a%00b", "jobs?label=a:%00"):
        yield path, request(f"GET /api/{path} HTTP/1.1"), 400
    yield "limit twice", request("GET /api/jobs?limit=1&limit=2 HTTP/1.1"), 400
    yield "an unknown question", request("GET /api/jobs?nonsense=1 HTTP/1.1"), (200, 400)
    yield "a forged cursor", request("GET /api/jobs?cursor=%27%3B%20DROP HTTP/1.1"), 400
    yield "an unknown status", request("GET /api/jobs?status=happy HTTP/1.1"), 400


def bodies(agent):
    job = '{"agent": "' + agent + '", "input": %s}'
    yield "an empty body", jobs(""), 400
    yield "one byte", jobs("{"), 400
    yield "4 MiB", jobs('{"agent": "nobody"}' + " " * ((4 << 20) - 19)), 404
    yield "a byte over 4 MiB", jobs('{"agent": "nobody"}' + " " * ((4 << 20) - 18)), 413
    yield "100,000 keys", jobs('{"agent": "nobody", "input": {' + ",".join(f'"{n}":1' for n in range(100_000)) + "}}"), (400, 404)
    yield "over 4 MiB", jobs(job % ('"' + "x" * (4 << 20) + '"')), 413
    for name, text in {
            "BOM": "\ufeff{}", "garbage behind": "{} x", "two documents": "{}{}", "a number": "1", "a list": "[]",
            "null": "null", "a comment": "{} // no", "single quotes": "{'agent': 'five'}", "no quotes": "{agent: 1}",
            "a comma too many": '{"agent": "five",}', "a key twice": '{"agent": "five", "agent": "five"}',
            "a key twice, escaped": '{"a": 1, "\\u0061": 2}', "64 deep and more": "[" * 65 + "]" * 65,
            "100,000 brackets": "[" * 100_000, "100,000 objects": '{"a":' * 100_000}.items():
        yield name, jobs(text), 400
    for name, text in {
            "a high surrogate": '"\\ud800"', "a low surrogate": '"\\udc00"', "reversed surrogates": '"\\udc00\\ud800"',
            "1e400": "1e400", "2^53": "9007199254740992", "2^64": "18446744073709551616", "1,000 digits": "1" * 1000,
            "01": "01", "+1": "+1", ".5": ".5", "1.": "1.", "NaN": "NaN", "Infinity": "Infinity", "-": "-",
            "a key twice inside": '{"a": {"b": 1, "b": 1}}', "a tab in a text": '"\t"', "\\x": '"\\x41"'}.items():
        yield f"input {name}", jobs(job % text), 400
    for name, text in {"invalid UTF-8": b'"\xff"', "overlong": b'"\xc0\xae"', "cut off": b'"\xe2\x82"'}.items():
        yield f"input {name}", jobs(job.encode() % text), 400


def protocol(agent):
    def one(path, body):
        return post(path, json.dumps(body))
    yield "nobody's agent", one("/api/jobs", {"agent": "nobody"}), (400, 404)
    yield "an unknown field", one("/api/jobs", {"agent": agent, "inptu": 1}), 400
    yield "an agent that is a number", one("/api/jobs", {"agent": 5}), 400
    yield "an id of another alphabet", one("/api/jobs", {"agent": agent, "id": "../x"}), 400
    yield "a priority out of range", one("/api/jobs", {"agent": agent, "priority": 1001}), 400
    yield "a key of 257", one("/api/jobs", {"agent": agent, "idempotency_key": "k" * 257}), 400
    for name, key in {"an empty key": "", "a blank key": " \t", "NUL in a key": "a\0b"}.items():
        yield name, one("/api/jobs", {"agent": agent, "idempotency_key": key}), 400
    good = json.dumps({"agent": agent})
    for name, keys in {"an empty key in the header": [""], "two keys": ["a", "b"], "a key of 257 in the header": ["k" * 257],
                       "a key that is not ASCII": ["schl\u00fcssel"]}.items():
        yield name, jobs(good, *(f"Idempotency-Key: {key}" for key in keys)), 400
    yield "another key in the header", jobs(json.dumps({"agent": agent, "idempotency_key": "a"}), "Idempotency-Key: b"), 400
    yield "NUL in a queue", one("/api/jobs", {"agent": agent, "queue": "a\0b"}), 400
    yield "NUL in a label", one("/api/jobs", {"agent": agent, "labels": {"a": "b\0"}}), 400
    yield "NUL in the name of a label", one("/api/jobs", {"agent": agent, "labels": {"a\0": "b"}}), 400
    yield "NUL in an id", one("/api/jobs", {"agent": agent, "id": "a\0b"}), 400
    yield "a deadline that is past", one("/api/jobs", {"agent": agent, "deadline": "2001-01-01T00:00:00Z"}), 400
    yield "a signal without a key", one("/api/jobs/nobody/signal", {}), 400
    yield "a signal with a key that is a number", one("/api/jobs/nobody/signal", {"correlation_key": 7}), 400
    yield "NUL in a reason", one("/api/jobs/nobody/cancel", {"reason": "a\0b"}), 400
    for at in ("0000-00-00T00:00:00Z", "10000-01-01T00:00:00Z", "2026-06-30T23:59:60Z", "2026-01-01T00:00:00+25:00", "now", 7):
        yield f"looked at {at}", one("/api/jobs/nobody/resolve", {"idempotency_key": "k", "resolution": "not_happened",
                                                                 "checked_at": at}), 400
    yield "a wait without end", post("/api/jobs?wait=1e9s", json.dumps({"agent": agent})), 400
    for act, body in {"signal": {"correlation_key": "k"}, "cancel": {}, "pause": {}, "resume": {}, "message": {"channel": "c"},
                      "resolve": {"idempotency_key": "k" * 64, "resolution": "fail"}, "retry": {}}.items():
        yield f"{act} of nobody", one(f"/api/jobs/nobody/{act}", body), 404
    yield "a resolution that is none", one("/api/jobs/nobody/resolve", {"idempotency_key": "k", "resolution": "maybe"}), (400, 404)
    yield "a request of nobody", one("/api/approvals/nobody.0123456789abcdef", {"decision": "approve"}), 404
    yield "a decision that is none", one("/api/approvals/nobody.0123456789abcdef", {"decision": "perhaps"}), (400, 404)


def plans(_):
    def put(agent):
        content = json.dumps(agent).encode()
        return request("PUT /api/agents/bad HTTP/1.1", ["Content-Type: application/json", f"Content-Length: {len(content)}"],
                       content)
    step = {"id": "a", "wait": {"type": "signal", "key": "k"}}
    for name, plan in {
            "an empty plan": [], "a plan that is a text": "a", "a node without a kind": [{"id": "a"}],
            "a node that needs itself": [{**step, "needs": ["a"]}],
            "a cycle": [{**step, "needs": ["b"]}, {**step, "id": "b", "needs": ["a"]}],
            "a node that nobody has": [{**step, "needs": ["z"]}], "an id twice": [step, step],
            "an id that is empty": [{**step, "id": ""}], "an id of 1 MiB": [{**step, "id": "x" * (1 << 20)}],
            "an id with a line break": [{**step, "id": "a\nb"}], "an unknown field": [{**step, "x": 1}],
            "an unknown tool": [{"id": "a", "tool": "no-such-tool-at-all"}],
            "a wait of another type": [{"id": "a", "wait": {"type": "miracle"}}],
            "a timer of -1s": [{"id": "a", "wait": {"type": "timer", "for": "-1s"}}],
            "a timer of 1e308s": [{"id": "a", "wait": {"type": "timer", "for": "1e308s"}}],
            "a reference to nobody": [{**step, "when": "${ .steps.z }"}],
            "a reference to oneself": [{**step, "when": "${ .steps.a }"}]}.items():
        yield name, put({"plan": plan}), 400
    yield "no plan", put({}), 400
    yield "an unknown key of an agent", put({"plan": [step], "x": 1}), 400


def read_answer(stream):
    """(status, headers, body) of one answer; None when the connection ended without."""
    while True:
        line = stream.readline()
        if not line:
            return None
        status = int(line.split()[1])
        headers = {}
        while (line := stream.readline().strip()):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if status != 100:
            return status, headers, stream.read(int(headers.get("content-length", 0)))


def one_answer(url, content, first=None):
    """The answer; with `first`, a valid request precedes it on the connection and is answered normally."""
    place = urllib.parse.urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as peer:
        def send():
            try:
                peer.sendall((first or b"") + content)
            except OSError:
                pass  # refused before it was read to the end
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        stream = peer.makefile("rb")
        try:
            if first is not None:
                before = read_answer(stream)
                if before is None or before[0] != 200:
                    return before and (before[0], before[1], b"the good request before it: " + before[2])
            return read_answer(stream)
        except (TimeoutError, ConnectionError):
            return None


def begin_silence(url):
    """Clients that send the beginning of a request and nothing more: (name, connection)."""
    place = urllib.parse.urlsplit(url)
    peers = []
    for name, content in {"1 byte of a request line": b"G", "1 byte of a header": b"GET / HTTP/1.1\r\nH",
                          "1 byte of a body": post("/api/jobs", b"{" + b" " * 9)[:-9]}.items():
        peer = socket.create_connection((place.hostname, place.port), timeout=SILENCE_S)
        peer.sendall(content)
        peers.append((name, peer))
    return peers


def end_silence(peers):
    for name, peer in peers:
        with peer:
            try:
                got = read_answer(peer.makefile("rb"))
            except OSError:
                got = None
            if got is None or got[0] != 408:
                yield f"{name}, then silence: {got and got[0]}, 408 wanted"


class Process:
    """What a server costs, as the system sees it."""

    def __init__(self, pid):
        self.pid = pid
        self.fds, self.memory = self.measure()

    def measure(self):
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as text:
            pages = int(text.read().split()[1])
        return len(os.listdir(f"/proc/{self.pid}/fd")), pages * os.sysconf("SC_PAGESIZE")

    def growth(self):
        """The measurements that did not return to their values once the rejected clients are gone."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            fds, memory = self.measure()
            what = [f"{fds} descriptors, {self.fds} before"] if fds > self.fds else []
            if memory > self.memory + RSS_SLACK:
                what.append(f"{memory >> 20} MiB of memory, {self.memory >> 20} before")
            if not what or time.monotonic() > give_up:
                return what
            time.sleep(0.1)


def error_in(name, got, wanted):
    """The error in an answer; "" = none."""
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    if got is None:
        return f"{name}: no answer, {wanted} wanted"
    status, headers, body = got
    if status not in wanted:
        return f"{name}: {status} {body[:120]!r}, {wanted} wanted"
    if inner := INNER.search(body if isinstance(body, str) else body.decode("latin-1")):
        return f"{name}: the answer tells of the inside of the program: {inner[0]!r}"
    if status < 400:
        return ""
    try:
        problem = json.loads(body)
        sound = (headers.get("content-type") == "application/problem+json" and problem["status"] == status
                 and all(problem.get(k) for k in ("code", "detail", "type"))
                 and problem["title"] == problem["code"].replace("_", " "))
    except (ValueError, KeyError):
        sound = False
    return "" if sound else f"{name}: the answer is no problem: {headers.get('content-type')} {body[:120]!r}"


def created_jobs(url):
    """Ids of the newest jobs."""
    return [job["id"] for job in send_request(url, "GET", "/api/jobs?limit=100").body["jobs"]]


def run(url, mark=None, pid=None):
    """(number of requests, unexpected answers). `mark`: no other client creates jobs, so none may exist afterwards. `pid`: of the
    server, which has no other clients meanwhile: its memory and descriptors must return to their values."""
    wrong, sent = [], 0
    silent = begin_silence(url) if mark else []
    agent = send_request(url, "GET", "/api/agents").body["agents"][0]["name"]
    before = created_jobs(url) if mark else None
    costs = None
    # On a separate connection, and after a valid request. The first pass fills caches.
    for first in (None, request()):
        for group in (framing, targets, bodies, protocol, plans):
            for name, content, wanted in group(agent):
                fault = error_in(name, one_answer(url, content, first), wanted)
                if fault:
                    wrong.append(fault + (" (behind a good one)" if first else ""))
                sent += 1
        if pid and costs is None:
            time.sleep(LINGER_S)
            costs = Process(pid)
    if costs:
        wrong += costs.growth()
    # Rejected, and the bytes after it on the connection are not parsed as a request.
    follow = request("GET /api/nothing HTTP/1.1", ["Content-Length: 5", "Transfer-Encoding: chunked"],
                     b"0\r\n\r\n") + request()
    place = urllib.parse.urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as peer:
        peer.sendall(follow)
        text = b""
        try:
            while part := peer.recv(65536):
                text += part
        except OSError:
            pass
        if text.count(b"HTTP/1.1 ") != 1:
            wrong.append(f"left-overs of a refused request were read as another: {text[:300]!r}")
    sent += 1
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as peer:
        peer.sendall(request() * 500)
        stream, answers = peer.makefile("rb"), 0
        try:
            while answers < 500 and (line := stream.readline()):
                answers += line.startswith(b"HTTP/1.1 200")
        except OSError:
            pass
        if answers != 500:
            wrong.append(f"of 500 requests in a row {answers} were answered")
    sent += 1
    # Gone in the middle.
    for content in (b"GE", jobs(b'{"agent": "nobody"}')[:-5], request()):
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as peer:
            peer.sendall(content)
        sent += 1
    sent += len(silent)
    wrong += end_silence(silent)
    if send_request(url, "GET", "/api/health").end != ACK:
        wrong.append("the server is not there any longer")
    elif mark and created_jobs(url) != before:
        wrong.append("a job came of a bad request")
    return sent, wrong


def measure(url, times):
    took = []
    for _ in range(times):
        began = time.monotonic()
        send_request(url, "GET", "/api/health")
        took.append(time.monotonic() - began)
    return took


def measure_elsewhere(url, times):
    """Measured by a process that has nothing else to do."""
    return json.loads(subprocess.run([sys.executable, __file__, url, "--measure", str(times)], capture_output=True, text=True,
                                     check=True).stdout)


def p99(took):
    return sorted(took)[int(len(took) * 0.99)]


def latency_under(url, clients, times=500):
    """(p99 alone, p99 with that many clients that trickle, stall and never read). Measured alternately, so that other load of
    the machine affects both."""
    alone, beside = [], []
    for _ in range(TURNS):
        alone += measure_elsewhere(url, times // TURNS)
        with slow_clients(url, clients):
            beside += measure_elsewhere(url, times // TURNS)
    return p99(alone), p99(beside)


@contextlib.contextmanager
def slow_clients(url, clients):
    place = urllib.parse.urlsplit(url)
    peers = []
    for n in range(clients):
        peer = socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S)
        peers.append(peer)
        peer.sendall([b"GET /api/hea", b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n{",
                      b"GET /api/jobs?limit=100 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3, b""][n % 4])
    stop = threading.Event()

    def trickle():
        while not stop.wait(0.05):
            for peer in peers[::4]:
                try:
                    peer.send(b"x")
                except OSError:
                    pass
    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        # The requests of the third kind are real work, and are answered first. The clients do not read the answers.
        for peer in peers[2::4]:
            answered(peer, 3)
        yield
    finally:
        stop.set()
        thread.join()
        for peer in peers:
            peer.close()


def answered(peer, answers):
    """Waits until that many answers have arrived at a client that does not read them."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        try:
            came = peer.recv(1 << 20, socket.MSG_PEEK)
        except OSError:
            return
        if not came or came.count(b"HTTP/1.1 200") >= answers:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--measure"]:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[3]))))
        sys.exit()
    count, bad = run(sys.argv[1], mark=True)
    print("\n".join(bad))
    print(f"{count} sent, {len(bad)} answered otherwise")
    print("p99 alone %.1f ms, beside slow clients %.1f ms" % tuple(x * 1000 for x in latency_under(sys.argv[1], 600)))
    sys.exit(1 if bad else 0)
