#!/usr/bin/env python3
"""The first hour of a new user: what a failure reports, and which calls are retried by default.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  first_hour_failures.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http
import http.server
import json
import re
import shlex
import sys
import threading
import time

from shared.home import expect, home, run_tests
from shared.trip import printed_command

TESTS = []


def test(function):
    TESTS.append(function)
    return function


FAILING = """\
aetheris: 1
models:
  main: { provider: openai, base_url: "http://HOST/v1", model: m, retry: { max_attempts: 1 } }
tools:
  get_trip:
    http: { method: GET, url: "http://HOST/trips/${ .args.id }?token=${ .args.token // 1 }" }
    effect: read
    retry: { max_attempts: 1 }
  head: { http: { method: GET, url: "http://HOST/", headers: { X-Id: "id ${ .args.id }" } }, effect: read }
  post: { http: { method: POST, url: "http://HOST/", body: { a: ["n ${ .args.n }"] } }, effect: at_most_once }
  say:  { command: [echo, "it is ${ .args.word }"], effect: read }
  env:  { command: [echo], env: { WORD: "${ .args.word + 1 }" }, effect: read }
  json: { command: [echo, not json], output: json, effect: read }
  rule: { command: [echo, "{}"], output: json, result_schema: { type: object, required: [n] }, effect: read }
  take: { command: [echo], args_schema: { type: object, properties: { n: { type: integer } } }, effect: read }
agents:
  AGENT
"""


# The agent; what its failure names: node, tool, field, expression and cause, and its code.
FAILURES = {
    "args": ('plan: [ { id: a, tool: say, args: { list: [ { word: "to ${ .input.who }" } ] } } ]',
             "at node a (tool say): args.list[0].word: .input.who is null [expression_failed]"),
    "types": ('plan: [ { id: a, tool: say, args: { word: "${ .input.n + 1 | .x }" } } ]',
              "at node a (tool say): args.word: .input.n + 1 | .x: "),
    "when": ('plan: [ { id: a, tool: say, when: "${ .input.n | .x }", args: { word: x } } ]',
             "at node a (tool say): when: .input.n | .x: "),
    "output": ('plan: [ { id: a, tool: say, args: { word: x } } ]\n    output: { b: "see ${ .input.none }" }',
               ": output.b: .input.none is null [expression_failed]"),
    "map": ('plan: [ { id: m, map: "${ .input.n }", do: { tool: say, args: { word: x } } } ]',
            "at node m: map: .input.n: the value of `map` must be an array [expression_failed]"),
    "item": ('plan: [ { id: m, map: "${ [1, null] }", do: { tool: say, args: { word: "is ${ .item }" } } } ]',
             "at node m, item 1 (tool say): args.word: .item is null [expression_failed]"),
    "wait": ('plan: [ { id: w, wait: { type: signal, key: "k-${ .input.key }" } } ]',
             "at node w: wait.key: .input.key is null [expression_failed]"),
    "timer": ('plan: [ { id: w, wait: { type: timer, for: "${ .input.n }" } } ]',
              "at node w: wait.for: .input.n: "),
    "prompt": ('plan: [ { id: a, llm: { model: main, prompt: "Say ${ .input.word }" } } ]',
               "at node a (model main): prompt: .input.word is null [expression_failed]"),
    "loop": ('loop: { model: main, system: "You are ${ .input.who }", tools: [say] }',
             "at node loop (model main): system: .input.who is null [expression_failed]"),
    "planner": ('planner: { model: main, system: Plan., prompt: "Do ${ .input.what }", tools: [say] }',
                "at node planner (model main): prompt: .input.what is null [expression_failed]"),
    "schema": ('plan: [ { id: a, tool: take, args: { n: "${ .input.word // .input.text }" } } ]',
               "at node a (tool take): args.n: .input.word // .input.text: "),
    "url": ('plan: [ { id: a, tool: get_trip, args: { x: 1 } } ]',
            "at node a (tool get_trip): http.url: .args.id is null [request_invalid]"),
    "headers": ('plan: [ { id: a, tool: head } ]',
                "at node a (tool head): http.headers.X-Id: .args.id is null [request_invalid]"),
    "body": ('plan: [ { id: a, tool: post } ]',
             "at node a (tool post): http.body.a[0]: .args.n is null [request_invalid]"),
    "command": ('plan: [ { id: a, tool: say } ]',
                "at node a (tool say): command[1]: .args.word is null [request_invalid]"),
    "env": ('plan: [ { id: a, tool: env, args: { word: x } } ]',
            "at node a (tool env): env: WORD: .args.word + 1: "),
    "status": ('plan: [ { id: a, tool: get_trip, args: { id: "a b", token: geheim } } ]',
               "at node a (tool get_trip): GET HOST/trips/a%20b answered 404: no such trip [http_404]"),
    "connect": ('plan: [ { id: a, tool: get_trip, args: { id: 7, token: geheim } } ]',
                "at node a (tool get_trip): GET HOST/trips/7: "),
    "broken": ('plan: [ { id: a, tool: json } ]', "at node a (tool json): the call succeeded, but "),
    "result": ('plan: [ { id: a, tool: rule } ]', "at node a (tool rule): the call succeeded, but "),
    "model": ('plan: [ { id: a, llm: { model: main, prompt: Hi } } ]',
              "at node a (model main): the server answered 404: no such trip; check `base_url` (HOST) and `model` "
              "(tried once) [http_404]"),
}


class NotFound(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"no such trip"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def not_found_server():
    """HOST of a server that answers 404."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFound)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_failing(h, name, agent, host):
    """The job's failure and what `run` printed; the printed commands are run verbatim."""
    text = FAILING.replace("AGENT", f"{name}:\n    {agent}").replace("HOST", host)
    (h.path / f"{name}.yaml").write_text(text, encoding="utf-8")
    run = expect(h.run("run", f"{name}.yaml", "--job-id", name, "--input", '{"n": 1, "text": "t"}'), 1)
    details = shlex.split(re.search(r"^Details: aetheris (.*)$", run.err, re.M)[1])
    traced = expect(h.run(*details), 0)
    retried = expect(h.run(*printed_command(run.err)), 1)
    line = re.search(r"^job \S+ failed(.*)$", run.err, re.M)[1]
    assert re.search(r"^job \S+ failed(.*)$", retried.err, re.M)[1] == line, (run, retried)
    return line.replace(host, "HOST"), traced, run


@test
def a_failure_names_node_tool_field_expression_and_the_next_command():
    with home() as h, not_found_server() as host:
        for name, (agent, wanted) in FAILURES.items():
            at = "127.0.0.1:1" if name == "connect" else host
            line, traced, run = run_failing(h, name, agent, at)
            assert line.lstrip().startswith(wanted), (name, line)
            assert re.search(r" \[[a-z0-9_]+\]$", line), line
            assert "geheim" not in run.err and "token=" not in run.err, run
            error = json.loads(expect(h.run("job", name, "--json"), 0).out)["error"]
            summary = error["summary"].replace(at, "HOST")
            assert line == (" at " if error["node_id"] else ": ") + f"{summary} [{error['code']}]", (line, error)
            shown = expect(h.run("job", name), 0)
            assert error["summary"] in shown.out and f"aetheris trace {name}" in shown.out, shown
            squeezed = "".join(traced.out.split())
            assert "".join(error["summary"].split()) in squeezed, (error, traced)
            followed = expect(h.run("events", name, "-f"), 0)
            assert error["summary"] in followed.err, followed
            listed = expect(h.run("jobs"), 0).out
            assert f"{error['code']}: {error['summary']}"[:50] in listed, listed


@test
def the_members_of_a_failure_are_null_where_they_do_not_apply():
    with home() as h, not_found_server() as host:
        wanted = {
            "item": {"node_id": "m", "item": 1, "turn": None, "tool": "say", "model": None, "field": "args.word",
                     "expression": ".item"},
            "output": {"node_id": None, "item": None, "turn": None, "tool": None, "model": None,
                       "field": "output.b", "expression": ".input.none"},
            "loop": {"node_id": "loop", "item": None, "turn": None, "tool": None, "model": "main", "field": "system",
                     "expression": ".input.who"},
            "status": {"node_id": "a", "item": None, "turn": None, "tool": "get_trip", "model": None, "field": None,
                       "expression": None},
        }
        for name, members in wanted.items():
            run_failing(h, name, FAILURES[name][0], host)
            error = json.loads(expect(h.run("job", name, "--json"), 0).out)["error"]
            assert {k: error[k] for k in members} == members, error
            nodes = json.loads(expect(h.run("trace", name, "--json"), 0).out)["nodes"]
            if name == "item":
                assert nodes[0]["items"][1]["error"]["expression"] == ".item", nodes
            expect(h.run("verify", name), 0)


@test
def job_prints_why_a_job_is_blocked_on_stdout():
    with home() as h:
        blocked = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        assert "aetheris signal w go-w" in blocked.err and blocked.out == "", blocked
        shown = expect(h.run("job", "w"), 0)
        assert "aetheris signal w go-w '{}'" in shown.out and shown.err == "", shown


@test
def the_trace_does_not_show_timers_and_waits_as_crashes():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        expect(h.run("signal", "w", "go-w", "1"), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "w", "asks"), 0)
        traced = expect(h.run("trace", "w"), 0).out
        assert "attempt" not in traced and "replayed" not in traced and "key " not in traced, traced
        assert len(json.loads(expect(h.run("trace", "w", "--json"), 0).out)["attempts"]) == 2
        assert " · invocation " in expect(h.run("trace", "w", "-v"), 0).out


RETRIES = """\
aetheris: 1
tools:
  look: { http: { method: GET, url: "${ env.AT }/look" }, effect: read }
  once: { http: { method: GET, url: "${ env.AT }/once" }, effect: read, retry: { max_attempts: 1 } }
  pay: { http: { method: POST, url: "${ env.AT }/pay" }, effect: at_most_once }
  mark: { http: { method: POST, url: "${ env.AT }/mark" }, effect: idempotent }
models:
  main: { provider: openai, base_url: "${ env.AT }/v1", model: m, stream: false }
agents:
  ask: { plan: [ { id: a, llm: { model: main, prompt: Hi } } ], output: "${ .steps.a.text }" }
  chat: { loop: { model: main, tools: [look] } }
  few: { budget: { model_calls: 2 }, plan: [ { id: a, llm: { model: main, prompt: Hi } } ], output: "${ .steps.a.text }" }
  soon: { deadline: 1500ms, plan: [ { id: a, llm: { model: main, prompt: Hi } } ] }
  look: { plan: [ { id: a, tool: look } ], output: "${ .steps.a }" }
  once: { plan: [ { id: a, tool: once } ] }
  pay: { plan: [ { id: a, tool: pay } ] }
  mark: { plan: [ { id: a, tool: mark } ] }
"""


class Upstream(http.server.ThreadingHTTPServer):
    """A model and a web service. `answers`: statuses in order, then 200. Records the time of each request."""

    def __init__(self, *answers, retry_after=None):
        super().__init__(("127.0.0.1", 0), UpstreamRequest)
        self.daemon_threads = True
        self.answers, self.retry_after, self.times = list(answers), retry_after, []
        self.env = {"AT": f"http://127.0.0.1:{self.server_port}"}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class UpstreamRequest(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.do_GET()

    def do_GET(self):
        upstream = self.server
        upstream.times.append(time.monotonic())
        status = upstream.answers.pop(0) if upstream.answers else 200
        body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        text = json.dumps(body if status == 200 else {"error": {"message": "not now"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status != 200 and upstream.retry_after is not None:
            self.send_header("Retry-After", str(upstream.retry_after))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def outcomes(h, job):
    """The tries of a job, as its log has them."""
    events = expect(h.run("events", job, "--json"), 0).json()["events"]
    return [e["payload"]["outcome"] for e in events if e["type"] == "tool_invocation_finished"]


def run_with_retries(h, agent, upstream, code):
    (h.path / "agents.yaml").write_text(RETRIES, encoding="utf-8")
    words = ["--input", '{"message": "Hi"}'] if agent == "chat" else []
    done = expect(h.run("run", "agents.yaml", agent, "--job-id", "r", *words, env=upstream.env), code)
    expect(h.run("verify", "r"), 0)
    return done


@test
def a_model_call_is_retried_by_default_after_the_requested_delay():
    for agent in ("ask", "chat"):
        with home() as h, Upstream(429, 429, retry_after=1) as upstream:
            assert "Hello." in run_with_retries(h, agent, upstream, 0).out
            assert len(upstream.times) == 3 and outcomes(h, "r")[-1] == "success" and len(outcomes(h, "r")) == 3, upstream.times
            waits = [b - a for a, b in zip(upstream.times, upstream.times[1:])]
            assert all(1 <= wait < 9 for wait in waits), waits
            trace = expect(h.run("trace", "r"), 0).out
            assert all(f"try {n}" in trace for n in (1, 2, 3)) and "http_429" in trace, trace


@test
def a_failure_that_persists_ends_after_four_tries():
    with home() as h, Upstream(*[529] * 9) as upstream:
        assert "(tried 4 times)" in run_with_retries(h, "ask", upstream, 1).err
        assert len(upstream.times) == 4, upstream.times


@test
def a_read_tool_is_retried_by_default():
    with home() as h, Upstream(503) as upstream:
        assert "Hello." in run_with_retries(h, "look", upstream, 0).out
        assert len(upstream.times) == 2 and len(outcomes(h, "r")) == 2, upstream.times


@test
def a_definitive_error_is_not_retried():
    for agent, status in (("ask", 401), ("ask", 400), ("ask", 413), ("look", 404), ("look", 403)):
        with home() as h, Upstream(status) as upstream:
            run_with_retries(h, agent, upstream, 1)
            assert len(upstream.times) == 1, (agent, status, upstream.times)


@test
def tools_with_side_effects_and_single_tries_are_not_retried_by_default():
    # An at_most_once call with an unknown outcome is not repeated: the job waits for an operator.
    for agent, code in (("once", 1), ("pay", 4), ("mark", 4)):
        with home() as h, Upstream(503, retry_after=0) as upstream:
            run_with_retries(h, agent, upstream, code)
            assert len(upstream.times) == 1, (agent, upstream.times)


@test
def a_retry_counts_in_the_budget_and_ends_with_the_deadline():
    with home() as h, Upstream(503, 503, 503, retry_after=0) as upstream:
        run_with_retries(h, "few", upstream, 4)
        assert len(upstream.times) == 2, upstream.times
        shown = expect(h.run("job", "r", "--json"), 0).json()
        assert shown["usage"]["model_calls"] == 2, shown
    with home() as h, Upstream(*[429] * 9, retry_after=30) as upstream:
        began = time.monotonic()
        assert "deadline_exceeded" in run_with_retries(h, "soon", upstream, 1).err
        assert len(upstream.times) == 1 and time.monotonic() - began < 20, upstream.times


PARTS = """\
aetheris: 1
tools:
  say: { command: ["cat"], output: json, effect: read }
agents:
  parts:
    plan:
      - { id: each, map: [1, 2], do: { tool: say, args: { n: "${ .item }" } } }
      - { id: asks, wait: { type: signal, key: go }, needs: [each] }
      - { id: never, tool: say, needs: [each], when: "${ false }" }
      - { id: bad, tool: say, needs: [asks], args: { n: "${ .input.a.b | floor }" } }
"""


@test
def replay_and_trace_name_each_part_in_full():
    with home() as h:
        (h.path / "parts.yaml").write_text(PARTS, encoding="utf-8")
        progress = expect(h.run("run", "parts.yaml", "--job-id", "p", "-v"), 4).err
        for line in (r"✓ each\[0\] +say \{\"n\":1\}", r"✓ each\[1\] +say \{\"n\":2\}", r"✓ each +\d"):
            assert re.search(line, progress), progress
        before = expect(h.run("replay", "p"), 0).out
        assert re.search(r"\n  waits +node asks waits for a signal with the key go\n", before), before
        assert '"' not in before, before
        traced = expect(h.run("trace", "p"), 0).out
        assert re.search(r"asks +signal ", traced) and "…" not in traced.replace("… asks", ""), traced
        expect(h.run("signal", "p", "go"), 0)
        expect(h.run("run", "parts.yaml", "--job-id", "p"), 1)
        shown = expect(h.run("replay", "p"), 0).out
        rows = dict(line.split() for line in shown.splitlines() if len(line.split()) == 2 and line[0] != " ")
        assert rows == {"NODE": "STATE", "each": "done", "each[0]": "done", "each[1]": "done", "asks": "done",
                        "never": "skipped", "bad": "failed"}, shown


@test
def a_job_that_does_not_exist_is_reported_in_one_form():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "e"), 0)
        for command in ("job", "events", "trace", "transcript", "replay", "verify", "cancel"):
            missing = expect(h.run(command, "nope"), 3)
            assert "job nope in this store; `aetheris jobs` lists the jobs [not_found]" in missing.err, (command, missing)


if __name__ == "__main__":
    sys.exit(run_tests("first_hour_failures", TESTS, " ".join(sys.argv[1:])))
