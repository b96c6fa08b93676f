#!/usr/bin/env python3
"""The HTTP API of `aetheris serve`: routes, event streams, caching, invalid requests, agents.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  serve_http.py [WORDS]   only tests whose name contains WORDS
"""
import gzip
import http.client
import os
import socket
import sys
import threading
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "chaos"))
import bad_requests  # noqa: E402
from shared.home import PATIENCE, expect, home, run_tests, until  # noqa: E402
from shared.sanitizer import sanitizer  # noqa: E402
from shared.server import Server, serving  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_job_is_created_run_and_waited_for():
    with serving() as s:
        status, job = s.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 1}})
        assert (status, job["status"], job["result"]) == (201, "completed", {"n": 1}), job
        status, again = s.post("/api/jobs", {"agent": "asks"}, headers={"Idempotency-Key": "k"})
        assert status == 201
        status, same = s.post("/api/jobs", {"agent": "asks"}, headers={"Idempotency-Key": "k"})
        assert (status, same["id"]) == (200, again["id"])
        status, problem = s.post("/api/jobs", {"agent": "echo"}, headers={"Idempotency-Key": "k"})
        assert status == 201, "keys are scoped to an agent"
        status, problem = s.post("/api/jobs", {"agent": "asks", "input": {"other": 1}},
                                 headers={"Idempotency-Key": "k"})
        assert (status, problem["code"]) == (409, "idempotency_conflict"), problem


@test
def a_path_reports_its_methods_and_an_unknown_path_names_the_openapi_document():
    with serving() as s:
        def send_request(method, path, headers=None):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer, answer.read()

        for method, path, allow in (("DELETE", "/api/jobs", "GET, HEAD, POST"), ("OPTIONS", "/api/prune", "POST"),
                                    ("POST", "/metrics", "GET, HEAD"), ("HEAD", "/api/prune", "POST"),
                                    ("POST", "/", "GET, HEAD")):
            answer, _ = send_request(method, path)
            assert (answer.status, answer.headers["Allow"]) == (405, allow), (method, path, answer.headers)
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})
        for path in ("/", "/api/health", "/api/jobs/a", "/api/jobs/a/events", "/openapi.json", "/api/jobs/nobody"):
            shown, body = send_request("GET", path)
            head, nothing = send_request("HEAD", path, {"Accept": "text/event-stream"} if "events" in path else {})
            assert (head.status, nothing) == (shown.status, b""), path
            for name in ("Content-Type", "Content-Length", "Cache-Control"):
                assert head.headers[name] == shown.headers[name], (path, name)
        status, result = s.get("/nowhere")
        assert status == 404 and "no route /nowhere;" in result["detail"] and "/openapi.json" in result["detail"], result


@test
def empty_and_out_of_range_values_are_rejected():
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
            status, result = s.request(method, path, body)
            assert (status, result["code"]) == (400, "input_invalid") and name in result["detail"], (path, result)
        assert [job["id"] for job in s.get("/api/jobs")[1]["jobs"]] == ["a"], "no other job was created"
        assert s.get("/api/jobs/a/events?wait=5m&type=job_completed")[0] == 200


@test
def a_job_shows_its_queue_priority_and_required_capabilities():
    with serving("agents.yaml", "--workers", "0") as s:
        s.post("/api/jobs", {"agent": "echo", "id": "a", "queue": "slow", "priority": 7, "required_capabilities": ["gpu", "eu"]})
        s.post("/api/jobs", {"agent": "echo", "id": "b"})
        shown = {id: {name: s.get("/api/jobs/" + id)[1][name] for name in ("queue", "priority", "required_capabilities")} for id in "ab"}
        assert shown == {"a": {"queue": "slow", "priority": 7, "required_capabilities": ["eu", "gpu"]},
                         "b": {"queue": "default", "priority": 0, "required_capabilities": []}}, shown
        assert "queue slow, priority 7, needs eu gpu" in expect(s.h.run("job", "a"), 0).out


@test
def an_event_stream_continues_after_last_event_id():
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


def read_stream(s, path, last=None, at_most=64 << 10):
    """The status and text of an event stream that ends by itself."""
    connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": str(last)})}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = b""
    while piece := answer.read1(4096):
        text += piece
        assert len(text) < at_most, f"the stream does not end: {text[-200:]}"
    connection.close()
    return answer.status, text.decode()


@test
def an_event_stream_of_an_ended_job_ends_at_any_position():
    with serving() as s:
        job = s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a"})[1]
        assert job["status"] == "completed", job
        path = "/api/jobs/a/events"
        events = s.get(path)[1]["events"]
        last = events[-1]["seq"]
        status, text = read_stream(s, path)
        assert status == 200 and text.count("id: ") == last, text
        assert read_stream(s, path, last) == (204, ""), "a browser reconnects after every other answer"
        assert read_stream(s, f"{path}?after={last}") == (204, "")
        assert read_stream(s, path, last + 100) == (204, "")
        assert read_stream(s, f"{path}?type=progress") == (204, "")
        status, text = read_stream(s, f"{path}?type=job_created")
        assert status == 200 and text.count("event: ") == text.count("event: job_created") == 1, text
        status, text = read_stream(s, f"{path}?class=coordination")
        assert status == 200 and "event: job_completed" not in text and "event: job_running" in text, text


@test
def a_filtered_event_stream_ends_with_the_job():
    with serving() as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        threading.Timer(0.2, lambda: s.post("/api/jobs/a/cancel", {})).start()
        status, text = read_stream(s, "/api/jobs/a/events?type=wait_opened")
        assert status == 200 and text.count("id: ") == 1 and s.status("a") == "cancelled", text


@test
def requests_with_a_foreign_origin_or_host_are_rejected():
    with serving() as s:
        status, problem = s.get("/api/jobs", headers={"Origin": "http://evil.example"})
        assert (status, problem["code"]) == (403, "forbidden")
        assert s.get("/api/jobs", headers={"Origin": s.url})[0] == 200
        status, problem = s.get("/api/jobs", headers={"Host": "evil.example"})
        assert (status, problem["code"]) == (400, "input_invalid")


@test
def without_keys_one_client_may_open_many_event_streams():
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


def echo_agent(value):
    return {"plan": [{"id": "w", "wait": {"type": "signal", "key": "go-${ .job.id }"}},
                     {"id": "say", "tool": "echo", "needs": ["w"], "args": {"v": value}}],
            "output": "${ .steps.say.v }"}


@test
def a_job_keeps_the_agent_version_that_it_was_created_with():
    with serving() as s:
        status, made = s.request("PUT", "/api/agents/late", echo_agent(1))
        assert (status, made["version"]) == (201, 1), made
        s.post("/api/jobs", {"agent": "late", "id": "one"})
        until(lambda: s.status("one") == "waiting")
        assert s.request("PUT", "/api/agents/late", echo_agent(1))[0] == 200
        status, second = s.request("PUT", "/api/agents/late", echo_agent(2))
        assert (status, second["version"]) == (201, 2), second
        s.post("/api/jobs", {"agent": "late", "id": "two"})
        until(lambda: s.status("two") == "waiting")
        expect(s.stop(), 0)
        # The agent is in no file: the next server reads it from the store.
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
        # A changed file is a new version of its agent from the next start on.
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
        assert "agent_registered" in shown and '"definition"' not in shown, "the table omits it"


@test
def errors_of_a_registered_agent_are_reported_as_check_reports_them():
    with serving() as s:
        status, body = s.request("PUT", "/api/agents/late", {"plan": [{"id": "a", "tool": "ech"}, {"id": "b"}]})
        assert (status, body["code"]) == (400, "plan_invalid"), body
        assert len(body["faults"]) == 2 and body["faults"][0]["suggestion"] == "echo", body
        assert set(body["faults"][0]) == {"code", "message", "file", "line", "column", "path", "suggestion"}, body
        assert s.get("/api/agents/late")[0] == 404
    with home() as h:
        none = Server(h, "--workers", "0")
        status, body = none.request("PUT", "/api/agents/late", echo_agent(1))
        assert (status, body["code"]) == (400, "unsupported"), body


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
            started = time.monotonic()
            assert s.get("/api/health")[0] == 200
            waits.append(time.monotonic() - started)
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
        # As many as are processed at once, and some that wait behind them.
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

        def send_request(path, method="GET", **headers):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()

        step = s.get("/api/jobs/a/steps")[1]["steps"][0]["step_id"]
        views = ("", "/events", "/trace", "/transcript", "/replay", "/steps", f"/steps/{step}", "/timeline", "/conversation")
        for path in ("/openapi.json", "/api/agents", "/api/agents/echo", "/api/tools", *(f"/api/jobs/a{view}" for view in views)):
            # The first tag may be older than the audit log that the server has read.
            tag = send_request(path, If_None_Match='"none"')[0].headers["ETag"]
            assert tag.startswith('W/"'), tag
            for method in ("GET", "HEAD"):
                same, nothing = send_request(path, method, If_None_Match=f'"x", {tag}')
                assert (same.status, nothing, same.headers["ETag"]) == (304, b"", tag), (path, same.status, same.headers)
                assert same.headers["Content-Type"] is None
            assert send_request(path, If_None_Match='"x"')[0].status == 200
        assert send_request("/api/jobs/a/verify")[0].headers["ETag"] is None
        assert send_request("/api/jobs/nobody", If_None_Match="*")[0].status == 404


@test
def large_bodies_are_compressed_for_clients_that_accept_gzip():
    with serving() as s:
        s.post("/api/jobs?wait=30s", {"agent": "echo", "id": "a", "input": {"text": "x" * 4000}})

        def send_request(path, encoding):
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request("GET", path, headers={"Accept-Encoding": encoding} if encoding else {})
            answer = connection.getresponse()
            return answer.headers["Content-Encoding"], answer.read()

        for path in ("/api/jobs/a", "/api/jobs/a/events", "/api/jobs/a/trace", "/api/jobs/a/replay", "/openapi.json"):
            plain = send_request(path, None)
            encoding, body = send_request(path, "br, gzip")
            assert plain[0] is None and encoding == "gzip", (path, plain[0], encoding)
            assert len(body) < len(plain[1]) / 2, path
            assert gzip.decompress(body) == plain[1], path
            assert send_request(path, "gzip;q=0") == plain, path
        assert send_request("/api/health", "gzip")[0] is None, "a small body"


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
def trace_context_is_accepted_recorded_and_passed_to_tools():
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
        # A malformed header counts as absent; a job without a trace context gets its own trace.
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
        # The trace context of an answer is recorded with it.
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        s.post("/api/jobs/a/signal", {"correlation_key": "k", "payload": 1}, headers={"traceparent": PARENT})
        s.post("/api/jobs/a/message", {"channel": "c", "payload": 1}, headers={"traceparent": PARENT})
        until(lambda: s.status("a") == "completed")
        events = s.get("/api/jobs/a/events")[1]["events"]
        result = [event["type"] for event in events if event["payload"].get("traceparent") == PARENT]
        assert result == ["wait_completed", "agent_message"], result
        expect(s.stop(), 0)


@test
def the_root_page_names_the_openapi_document_and_the_health_route():
    with serving() as s:
        status, page = s.get("/")
        assert status == 200 and page["openapi"] == "/openapi.json" and page["health"] == "/api/health", page
        assert s.get(page["openapi"])[0] == 200
        status, wrong = s.request("DELETE", "/api/health")
        assert (status, wrong["code"]) == (405, "method_not_allowed"), wrong
        assert wrong["detail"] == "method not allowed; allowed: GET, HEAD", wrong
        status, wrong = s.get("/api/jobs/nobody")
        assert status == 404 and wrong["act"] == "GET /api/jobs", wrong
        assert wrong["detail"] == "there is no job nobody in this store", wrong
        assert wrong["action"] == {"act": "jobs", "arguments": {}, "choices": []}, wrong


@test
def each_invalid_request_gets_its_status_as_a_problem_and_changes_nothing():
    with serving(env=sanitizer("quarantine_size_mb=1")) as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"})
        until(lambda: s.status("a") == "waiting")
        sent, wrong = bad_requests.run(s.url, mark=True, pid=s.process.pid)
        assert sent > 450 and not wrong, "\n".join(wrong)
        assert s.process.poll() is None
        assert s.get("/api/jobs/a/verify")[1]["ok"]


@test
def a_body_is_accepted_by_content_type():
    with serving() as s:
        for kind in ("application/json", "application/json; charset=UTF-8", "application/merge-patch+json",
                     "application/x-www-form-urlencoded"):
            assert s.post("/api/jobs", {"agent": "asks"}, headers={"Content-Type": kind})[0] == 201, kind
        for kind in ("text/plain", "application/json; charset=utf-16", "application/jsonx"):
            status, problem = s.post("/api/jobs", {"agent": "asks"}, headers={"Content-Type": kind})
            assert (status, problem["code"], problem["status"]) == (415, "unsupported_media_type", 415), kind


if __name__ == "__main__":
    sys.exit(run_tests("serve_http", TESTS, " ".join(sys.argv[1:])))
