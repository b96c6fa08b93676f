#!/usr/bin/env python3
"""Secrets stay secret: each place that may hold one gets a canary of its own, every tool repeats what it was given, in results and
in errors, and afterwards no canary stands anywhere in what we keep or say.

Canaries go in as the key of a model of either provider, as the header of an http tool, the variable of a program and the
variable of an MCP server. Each of those repeats it: plain, in base64, in hex, percent-encoded and as a JSON string, as its answer, as its
failure, and on stderr. Looked through byte by byte: database, its log, the lock file, stdout and stderr of every command, events, trace,
approvals, metrics, the answers of the API and its stream. Prints `ok NAME` or `not ok NAME` per test.
  canaries.py [WORDS]   only tests whose name contains WORDS
"""
import base64
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import home, run_tests  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CANARIES = {name: f"canary/{name}+\"{number}\"=tweet-{number * 7919:06d}" for number, name in enumerate(
    ("OPENAI", "ANTHROPIC", "HEADER", "PROGRAM", "SERVER_PROGRAM"), 1)}
TESTS = []
AGENTS = """\
aetheris: 1
tools:
  tells: { http: { method: GET, url: "${ env.WORLD }/tells", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read }
  fails: { http: { method: GET, url: "${ env.WORLD }/fails", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read }
  asks:
    http: { method: POST, url: "${ env.WORLD }/tells", headers: { Authorization: "Bearer secret:HEADER" } }
    effect: idempotent
    approval: required
  program:
    command: ["sh", "-c", "echo \\"$TOKEN\\"; echo \\"$TOKEN\\" >&2; printf %s \\"$TOKEN\\" | base64 -w0; exit ${ .args.code }"]
    env: { TOKEN: "secret:PROGRAM" }
    effect: read
  s:
    mcp: { command: [SERVER], env: { TOKEN: "secret:SERVER_PROGRAM" } }
    effect: read
models:
  openai: { provider: openai, base_url: "${ env.WORLD }/v1", api_key: "secret:OPENAI", model: small }
  anthropic: { provider: anthropic, base_url: "${ env.WORLD }/v1", api_key: "secret:ANTHROPIC", model: small }
  broken: { provider: openai, base_url: "${ env.WORLD }/broken", api_key: "secret:OPENAI", model: small }
agents:
  all:
    plan:
      - { id: tells, tool: tells }
      - { id: fails, tool: fails, on_error: continue }
      - { id: program, tool: program, args: { code: 0 } }
      - { id: broken_program, tool: program, args: { code: 3 }, on_error: continue }
      - { id: server, tool: s.secret }
      - { id: openai, llm: { model: openai, prompt: Say your key. } }
      - { id: anthropic, llm: { model: anthropic, prompt: Say your key. } }
      - { id: broken, llm: { model: broken, prompt: Say your key. }, on_error: continue }
      - { id: asks, needs: [tells], tool: asks, args: { of: "${ .steps.tells.text }" } }
    output: "${ .steps }"
"""


def test(function):
    TESTS.append(function)
    return function


def spellings(text):
    raw = text.encode()
    return {raw, base64.b64encode(raw), raw.hex().encode(), urllib.parse.quote(text, safe="").encode(),
            json.dumps(text)[1:-1].encode()}


class World(http.server.BaseHTTPRequestHandler):
    """Repeats the credentials that it is given, in every spelling; `seen` has those that came."""

    protocol_version = "HTTP/1.1"
    seen = set()

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        World.seen.add(given)
        said = " ".join(spelling.decode() for spelling in sorted(spellings(given)))
        status, body = 200, {"text": said}
        if self.path.endswith("/messages"):
            body = {"id": "m", "type": "message", "role": "assistant", "model": "small", "content": [{"type": "text", "text": said}],
                    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
        elif self.path == "/v1/chat/completions":
            body = {"id": "c", "object": "chat.completion", "created": 1, "model": "small", "usage": {
                "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, "choices": [
                    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}]}
        elif self.path != "/tells":
            status, body = 400, {"error": {"message": f"the key {said} is no good", "type": "invalid_request_error"}}
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


def prepare(h, world):
    server = [sys.executable, "-B", str(HERE / "shared/mcp_server.py"), "--journal", str(h.path / "world.journal")]
    (h.path / "agents.yaml").write_text(AGENTS.replace("SERVER]", ", ".join(map(json.dumps, server)) + "]"))
    h.env |= {"WORLD": f"http://127.0.0.1:{world.server_port}", **CANARIES}


def found_in(where, data):
    return [f"{name} as {spelling!r} in {where}" for name, canary in CANARIES.items() for spelling in spellings(canary)
            if spelling in data]


def kept(h):
    """Everything in the folder but what the world wrote itself."""
    return [found for file in h.path.rglob("*") if file.is_file() and file.name != "world.journal"
            for found in found_in(file.relative_to(h.path), file.read_bytes())]


def said(h, *words, codes=(0,)):
    done = h.run(*words)
    assert done.code in codes, done
    return found_in(" ".join(words), (done.out + done.err).encode()), done


@test
def no_canary_stands_in_anything_that_is_kept_or_said():
    world = http.server.ThreadingHTTPServer(("127.0.0.1", 0), World)
    threading.Thread(target=world.serve_forever, daemon=True).start()
    World.seen.clear()
    try:
        with home() as h:
            prepare(h, world)
            found, _ = said(h, "run", "agents.yaml", "--job-id", "j", codes=(4,))
            for words in (("approvals",), ("approvals", "--json")):
                found += said(h, *words)[0]
            approval = json.loads(said(h, "approvals", "--json")[1].out)["approvals"][0]["id"]
            found += said(h, "approve", approval)[0]
            found += said(h, "run", "agents.yaml", "--job-id", "j", "--json")[0]
            for words in (("job", "j", "--json"), ("events", "j", "--json"), ("trace", "j"), ("trace", "j", "--json"), ("verify", "j"),
                          ("replay", "j", "--json"), ("inspect",)):
                found += said(h, *words, codes=(0, 2))[0]
            given = {CANARIES[name] for name in ("OPENAI", "ANTHROPIC", "HEADER")}
            assert given <= World.seen, f"the world was not given what it should repeat: {World.seen}"
            events = said(h, "events", "j", "--json")[1].out
            for name in ("HEADER", "PROGRAM", "OPENAI", "ANTHROPIC", "SERVER_PROGRAM"):
                assert f"[secret {name}]" in events, f"nothing repeated {name}: this test looks at nothing"
            found += kept(h)
            assert not found, "\n".join(found)
    finally:
        world.shutdown()
        world.server_close()


@test
def no_canary_stands_in_what_the_server_answers_streams_and_logs():
    world = http.server.ThreadingHTTPServer(("127.0.0.1", 0), World)
    threading.Thread(target=world.serve_forever, daemon=True).start()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with home() as h:
            prepare(h, world)
            with open(h.path / "served.log", "wb") as log:
                process = subprocess.Popen([os.environ["AETHERIS_BIN"], "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"],
                                           cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            h.started.append(process)
            url = json.loads(process.stdout.readline())["listening"]

            def ask(path, body=None):
                data = json.dumps(body).encode() if body is not None else None
                request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
                return opener.open(request, timeout=60).read()

            made = ask("/api/jobs?wait=30s", {"agent": "all", "input": {}})
            job = json.loads(made)["id"]
            approval = json.loads(ask("/api/approvals"))["approvals"][0]["id"]
            found = found_in("the answer", made)
            found += found_in("approvals", ask("/api/approvals"))
            found += found_in("approve", ask(f"/api/approvals/{approval}", {"decision": "approve"}))
            for path in (f"/api/jobs/{job}?wait=30s", f"/api/jobs/{job}/events", f"/api/jobs/{job}/trace", "/metrics"):
                found += found_in(path, ask(path))
            process.terminate()
            process.wait()
            process.stdout.close()
            found += kept(h)
            assert not found, "\n".join(found)
    finally:
        world.shutdown()
        world.server_close()


if __name__ == "__main__":
    sys.exit(run_tests("canaries", TESTS, " ".join(sys.argv[1:])))
