#!/usr/bin/env python3
"""Models, against a real HTTP server that counts its requests: the model of the example shop.

A process that is killed during a model call repeats it under the same key. A recorded answer is never requested again, wherever
the process dies after it. The messages of a conversation are stored once. A failure reports the model, its node, the error, the
number of tries and the next command.
"""

import http.client
import http.server
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

from shared.program import BIN, ROOT

ROUTE = "POST /v1/chat/completions"
LONG = "a line that is long enough to be stored as a blob of its own, for all messages that repeat it"
AGENTS = f"""\
aetheris: 1
tools:
  say: {{ native: echo, effect: read }}
models:
  main:
    provider: openai
    base_url: "${{ env.SHOP }}/v1"
    api_key: "secret:MODEL_KEY"
    model: small
    timeout: 20s
    retry: {{ max_attempts: 3, initial_backoff: 10ms, retry_on: [connect, reset, 429, 5xx] }}
agents:
  talk:
    plan:
      - {{ id: one, llm: {{ model: main, system: "{LONG}", prompt: "Tell me about ${{ .input.x }}" }} }}
      - id: two
        needs: [one]
        llm:
          model: main
          temperature: 0.5
          messages:
            - {{ role: system, content: "{LONG}" }}
            - {{ role: user, content: "Tell me about ${{ .input.x }}" }}
            - {{ role: assistant, content: "${{ .steps.one.text }}" }}
            - {{ role: user, content: Go on. }}
      - {{ id: say, tool: say, needs: [two], args: {{ text: "${{ .steps.two.text }}" }} }}
    output: "${{ .steps.say.text }}"
"""
KEY = "sk-very-secret-123"
PATIENCE = 60


# The answers of servers that are not providers, or of broken ones, by name.
GOOD = 'data: {"choices":[{"index":0,"delta":{"content":"All of it."},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HALF = 'data: {"choices":[{"index":0,"delta":{"content":"Half of it"}}]}\n\n'
INVALID_ANSWERS = {
    "page": ("text/html", "<html><head><title>Sign in</title></head><body>Who are you?</body></html>"),
    "text": ("text/plain", "ok"),
    "nothing": ("application/json", ""),
    "broken": ("application/json", '{"choices": ['),
    "garbage": ("text/event-stream", HALF + "data: <<< no JSON\n\n" + GOOD),
    "no-end": ("text/event-stream", HALF),
    "no-begin": ("text/event-stream", "data: [DONE]\n\n"),
    "unknown": ("text/event-stream", 'event: news\ndata: {"x": 1}\n\n: a comment\n\n' + GOOD),
}


class FakeProvider(http.server.ThreadingHTTPServer):
    """Returns the listed answers in order, then always the last one: "good", a status, "close", or one of INVALID_ANSWERS."""

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), FakeProviderRequest)
        self.daemon_threads = True
        self.answers, self.tries = list(answers), []
        self.host = f"127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()


class FakeProviderRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        desk = self.server
        answer = desk.answers.pop(0) if len(desk.answers) > 1 else desk.answers[0]
        desk.tries.append(self.headers["X-Aetheris-Try"])
        self.close_connection = True
        if answer == "close":
            return
        status, kind, body = 200, "text/event-stream", GOOD
        if isinstance(answer, int):
            status, kind, body = answer, "application/json", json.dumps({"error": {"message": f"I say {answer}"}})
        elif answer != "good":
            kind, body = INVALID_ANSWERS[answer]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class Desk:
    """A folder with an agents file, and a running shop."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-models-"))
        (self.path / "agents.yaml").write_text(AGENTS)
        self.shop = subprocess.Popen(
            [sys.executable, ROOT / "examples/shop/shop.py", "--journal", self.path / "shop.journal"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "SHOP_TOKEN": KEY})
        self.address = self.shop.stdout.readline().split()[1]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.env |= {"SHOP": f"http://{self.address}", "MODEL_KEY": KEY}

    def close(self):
        self.shop.kill()
        self.shop.wait()
        self.shop.stdout.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, *words, **env):
        done = subprocess.run([BIN, *words], cwd=self.path, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        assert KEY not in done.stdout + done.stderr, "the key was shown"
        return done

    def talk(self, *words, **env):
        return self.run("run", "agents.yaml", "--job-id", "t", "--input", '{"x": "rain"}', *words, **env)

    def control(self, **rule):
        connection = http.client.HTTPConnection(self.address, timeout=10)
        connection.request("POST", "/control", json.dumps({"route": ROUTE, **rule}))
        assert connection.getresponse().status == 200
        connection.close()

    def requests(self):
        """The calls of the model, in order: (key, invocation, try)."""
        lines = (self.path / "shop.journal").read_text().splitlines()
        arrivals = [json.loads(line) for line in lines]
        return [(a["idempotency_key"], a["invocation_id"], a["try"]) for a in arrivals
                if a["kind"] == "arrival" and a["route"] == ROUTE]

    def expect_verified(self, status="completed"):
        job = json.loads(self.run("job", "t", "--json").stdout)
        assert job["status"] == status, job
        verified = self.run("verify", "t", "--json")
        assert verified.returncode == 0, verified.stdout
        events = json.loads(self.run("events", "t", "--json").stdout)["events"]
        assert KEY not in json.dumps(events)
        return job, events


def expect_exit(done, code=0):
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def a_job_calls_the_model_and_records_the_answers(desk):
    result = expect_exit(desk.talk()).stdout
    assert result == "4 messages: Go on.\n", result
    job, events = desk.expect_verified()
    assert len(desk.requests()) == 2
    assert expect_exit(desk.talk()).stdout == result and len(desk.requests()) == 2, "the same job makes no further call"
    committed = [e["payload"] for e in events if e["type"] == "command_committed"][:2]
    assert [c["llm_model"] for c in committed] == ["small-2026-11-01"] * 2
    assert [c.get("llm_temperature") for c in committed] == [None, 0.5]
    tokens = sum(c["usage"]["total_tokens"] for c in committed)
    assert job["usage"]["total_tokens"] == tokens > 0 and job["usage"]["model_calls"] == 2
    kinds = [e["payload"]["kind"] for e in events if e["type"] == "command_emitted"]
    assert kinds == ["llm", "llm", "tool"], kinds
    types = [e["payload"]["result_type"] for e in events if e["type"] == "node_finished"]
    assert types == ["pure", "pure", "side_effect_committed"], types
    trace = expect_exit(desk.run("trace", "t")).stdout
    assert "model small-2026-11-01 (openai, requested as small)" in trace and f"{tokens} tokens" in trace, trace


def messages_are_stored_once(desk):
    expect_exit(desk.talk())
    store = sqlite3.connect(f"file:{desk.path}/.aetheris/aetheris.db?mode=ro", uri=True)
    blobs = [row[0] for row in store.execute("SELECT bytes FROM blobs")]
    store.close()
    messages = [json.loads(b) for b in blobs if b"role" in b and b"task_graph" not in b and b"nodes" not in b]
    assert sum(m == {"role": "system", "content": LONG} for m in messages) == 1, messages
    body = b"".join(path.read_bytes() for path in (desk.path / ".aetheris").glob("aetheris.db*"))
    assert KEY.encode() not in body
    _, events = desk.expect_verified()
    started = [e["payload"]["arguments"] for e in events if e["type"] == "tool_invocation_started"]
    assert started[1]["messages"][0]["content"] == LONG and len(started[1]["messages"]) == 4


def after_a_kill_during_a_call_the_model_is_called_again_under_the_same_key(desk):
    desk.control(hang=True, times=1)
    runner = subprocess.Popen([BIN, "run", "agents.yaml", "--job-id", "t", "--input", '{"x": "rain"}'], cwd=desk.path,
                              env=desk.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    give_up = time.monotonic() + PATIENCE
    while not desk.requests():
        assert time.monotonic() < give_up and runner.poll() is None
        time.sleep(0.02)
    runner.kill()
    runner.wait()
    expect_exit(desk.talk())
    requests = desk.requests()
    assert len(requests) == 3 and requests[0][:2] == requests[1][:2] and [a[2] for a in requests] == [1, 2, 1], requests
    job, _ = desk.expect_verified()
    assert job["usage"]["model_calls"] == 3, job["usage"]


def a_recorded_answer_is_never_requested_again(desk):
    """The process dies at every boundary, in both durabilities."""
    for durability in ("fused", "split"):
        for point in ("append.before", "append.after", "tool.before", "tool.after", "effect.after_put"):
            for n in range(1, 40):
                shutil.rmtree(desk.path / ".aetheris", ignore_errors=True)
                before = len(desk.requests())
                died = desk.talk("--durability", durability, AETHERIS_FAILPOINTS=f"{point}=exit@{n}")
                if died.returncode != 137:
                    expect_exit(died)
                    break
                here = f"{durability} {point}@{n}"
                events = desk.run("events", "t", "--json")
                known = json.loads(events.stdout)["events"] if events.returncode == 0 else []
                recorded = sum(e["type"] == "tool_invocation_finished" and e["payload"]["outcome"] == "success"
                               for e in known)
                requests_then = len(desk.requests()) - before
                expect_exit(desk.talk("--durability", durability))
                requests = desk.requests()[before:]
                # Of two calls those without a recorded answer are made again; one may have been in flight.
                assert len(requests) <= 3, (here, requests)
                assert len(requests) - requests_then <= max(0, 2 - recorded), (here, recorded, requests_then, requests)
                assert len({a[0] for a in requests}) == 2, (here, requests)
                desk.expect_verified()
            else:
                raise AssertionError(f"{durability} {point} never ended")


def transient_provider_errors_are_retried_and_permanent_ones_reported(desk):
    desk.control(fail=429, at="before", times=1)
    desk.control(fail=503, at="before", times=1)
    expect_exit(desk.talk())
    assert [a[2] for a in desk.requests()] == [1, 2, 3, 1], desk.requests()
    desk.expect_verified()
    result = expect_exit(desk.run("run", "agents.yaml", "--job-id", "u", "--input", '{"x": 1}', MODEL_KEY="sk-other"), 1)
    assert "this is no key of ours" in result.stderr and "sk-other" not in result.stderr, result.stderr
    del desk.env["MODEL_KEY"]
    result = expect_exit(desk.run("run", "agents.yaml", "--job-id", "v", "--input", '{"x": 1}'), 1)
    assert "MODEL_KEY" in result.stderr, result.stderr


PROVIDER_AGENTS = """\
aetheris: 1
tools:
  say: { native: echo, effect: read }
models:
  main:
    provider: openai
    base_url: "${ env.STRANGER }/v1"
    api_key: "secret:MODEL_KEY"
    model: small
    retry: { max_attempts: 3, initial_backoff: 1ms, retry_on: [connect, 429, 5xx] }
agents:
  once: { plan: [ { id: note, llm: { model: main, prompt: Hi } } ], output: "${ .steps.note.text }" }
  each:
    plan: [ { id: all, map: "${ [1, 2] }", max_parallel: 1, do: { llm: { model: main, prompt: "${ .item }" } } } ]
  anyway: { plan: [ { id: note, llm: { model: main, prompt: Hi }, on_error: continue } ], output: "${ .steps.note.error }" }
  chat: { loop: { model: main, system: Be brief., tools: [say] } }
  plans: { planner: { model: main, system: Plan., tools: [say] } }
"""


def call_fake_provider(desk, agent, *answers, code=1):
    """Runs a job that calls such a server. Returns its stderr, the job, and the tries that the server received."""
    shutil.rmtree(desk.path / ".aetheris", ignore_errors=True)
    (desk.path / "agents.yaml").write_text(PROVIDER_AGENTS)
    provider = FakeProvider(*answers)
    try:
        done = expect_exit(desk.run("run", "agents.yaml", agent, "--job-id", "t", "--input", '{"message": "Hi"}',
                                    STRANGER="http://" + provider.host), code)
    finally:
        provider.close()
    job, events = desk.expect_verified("completed" if code == 0 else "failed")
    assert "Half of it" not in json.dumps(events) and "Who are you" not in json.dumps(events), events
    return done.stderr.replace(provider.host, "HOST"), json.loads(json.dumps(job).replace(provider.host, "HOST")), provider.tries


def a_model_failure_reports_its_location_cause_and_the_next_command(desk):
    cases = (
        ("once", 503, "http_503", "node note, model main: the server answered 503: I say 503 (tried 3 times)"),
        ("once", 400, "http_400", "node note, model main: the server answered 400: I say 400 (tried once)"),
        ("once", 401, "http_401",
         "node note, model main: the server answered 401: I say 401; its key is secret:MODEL_KEY (tried once)"),
        ("once", 404, "http_404", "node note, model main: the server answered 404: I say 404; "
         "check `base_url` (HOST) and `model` (tried once)"),
        ("each", 503, "http_503", "node all, item 0, model main: the server answered 503: I say 503 (tried 3 times)"),
        ("chat", 503, "http_503", "node loop, turn 1, model main: the server answered 503: I say 503 (tried 3 times)"),
        ("plans", 503, "http_503", "node planner, turn 1, model main: the server answered 503: I say 503 (tried 3 times)"))
    for agent, answer, code, message in cases:
        stderr, job, tries = call_fake_provider(desk, agent, answer)
        assert tries == ["1", "2", "3"][:len(tries)] and len(tries) == (3 if "3 times" in message else 1), tries
        assert (job["error"]["code"], job["error"]["message"]) == (code, message), (agent, job["error"])
        place, result = message.split(", model main: ")
        assert job["error"]["summary"] == f"{place} (model main): {result}", job["error"]
        assert (job["error"]["model"], job["error"]["tool"]) == ("main", None), job["error"]
        assert f"failed at {place} (model main): {result} [{code}]" in stderr, stderr
        assert "aetheris retry t agents.yaml" in stderr and f"the server answered {answer}" in stderr, stderr
        for shown in (expect_exit(desk.run("job", "t")).stdout, expect_exit(desk.run("trace", "t")).stdout):
            again = "aetheris retry t FILE " if answer == 400 else "aetheris retry t "  # a 400 ends so again under its file
            assert again in shown and ("retry t FILE" in shown) == (answer == 400), shown
            assert f"the server answered {answer}" in shown, shown
    call_fake_provider(desk, "anyway", 503, code=0)
    assert cases[0][3] in " ".join(expect_exit(desk.run("trace", "t")).stdout.replace("│", "").split()), "shown in full, and once"
    result = json.loads(expect_exit(desk.run("job", "t", "--json")).stdout)["result"]
    assert result == {"code": "http_503", "message": cases[0][3]}, result


def the_printed_retry_command_succeeds_once_the_provider_responds(desk):
    stderr, _, _ = call_fake_provider(desk, "chat", "page")
    words = stderr.split("aetheris retry ")[1].splitlines()[0].split()
    provider = FakeProvider("good")
    try:
        done = expect_exit(desk.run("retry", *words, STRANGER="http://" + provider.host))
    finally:
        provider.close()
    assert "All of it." in done.stdout, done.stdout


def an_invalid_answer_is_a_provider_failure_and_is_retried(desk):
    not_a_provider = "the server at HOST is not a model provider: it sent "
    cases = {
        "page": not_a_provider + "text/html (Sign in): check `base_url`",
        "text": not_a_provider + "text/plain (ok): check `base_url`",
        "nothing": not_a_provider + "nothing: check `base_url`",
        "broken": "the answer is invalid JSON",
        "garbage": "an event of the streamed answer is not a JSON object",
        "no-end": "the streamed answer stopped before its end",
        "no-begin": "the streamed answer ends before it begins",
    }
    for name, message in cases.items():
        stderr, job, tries = call_fake_provider(desk, "once", name)
        assert job["error"]["code"] == "http_502" and tries == ["1", "2", "3"], (name, job, tries)
        assert f"failed at node note (model main): {message}" in stderr, stderr
        assert "(tried 3 times) [http_502]" in stderr, stderr
        _, job, tries = call_fake_provider(desk, "once", name, "good", code=0)
        assert job["result"] == "All of it." and tries == ["1", "2"], (name, job, tries)
    _, job, tries = call_fake_provider(desk, "once", "unknown", code=0)
    assert job["result"] == "All of it." and tries == ["1"], (job, tries)
    stderr, job, tries = call_fake_provider(desk, "once", "close")
    assert job["error"]["code"] == "reset" and "(tried once)" in stderr and tries == ["1"], (stderr, tries)


def main():
    for test in (a_job_calls_the_model_and_records_the_answers, messages_are_stored_once,
                 after_a_kill_during_a_call_the_model_is_called_again_under_the_same_key,
                 a_recorded_answer_is_never_requested_again,
                 transient_provider_errors_are_retried_and_permanent_ones_reported,
                 a_model_failure_reports_its_location_cause_and_the_next_command,
                 the_printed_retry_command_succeeds_once_the_provider_responds,
                 an_invalid_answer_is_a_provider_failure_and_is_retried):
        desk = Desk()
        try:
            test(desk)
        finally:
            desk.close()
        print("ok", test.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main()
