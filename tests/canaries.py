#!/usr/bin/env python3
"""Secrets stay secret: every place that can hold a secret gets its own canary, every service echoes it, and afterwards no
canary, nor a part of one, is in any file, response or output.

Canaries are: the keys of models of both providers (streamed, whole, as arguments of calls, as refusals, in streams that break,
are cut or end in an error), headers of http tools and of an MCP server, and variables of programs and of an MCP server. Each
service echoes its canary plain, in base64, in hex, percent-encoded and as a JSON string, also with escaped characters: as
result, failure, progress, description and on stderr. These are searched byte by byte: the database and its write-ahead log,
the lock file, the audit log, archives, stdout and stderr of every command, events, traces, approvals with the request to be
sent, metrics, responses of the API, an event stream, and the log of the server.

The search itself is tested, too: a canary that is not a secret must be found in all these places.
Prints `ok NAME` or `not ok NAME` for each test.
  canaries.py [WORDS]   only tests whose name contains WORDS
"""
import base64
import collections
import hashlib
import http.server
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import home, run_tests, until  # noqa: E402
from shared.mcp_server import spellings  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SECRETS = ("OPENAI", "ANTHROPIC", "HEADER", "PROGRAM", "SERVER_PROGRAM", "SERVER_URL")
TESTS = []
FRAGMENT = 12  # a run of that many characters of a canary is found
AGENTS = """\
aetheris: 1
tools:
  tells: { http: { method: GET, url: "${ env.WORLD }/tells", headers: { Authorization: "Bearer secret:HEADER" } }, result: full, effect: read }
  fails: { http: { method: GET, url: "${ env.WORLD }/fails", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read, retry: { max_attempts: 1 } }
  plain: { http: { method: GET, url: "${ env.WORLD }/plain", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read }
  moved: { http: { method: GET, url: "${ env.WORLD }/moved", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read }
  broken: { http: { method: GET, url: "${ env.WORLD }/broken", headers: { Authorization: "Bearer secret:HEADER" } }, effect: read, retry: { max_attempts: 1 } }
  asks:
    http: { method: POST, url: "${ env.WORLD }/tells", headers: { Authorization: "Bearer secret:HEADER" } }
    effect: idempotent
    approval: required
    changes: [ { type: thing, id: "${ .result.id }", op: create, etag: "${ .result.id }" } ]
  program: { command: [PROGRAM, "${ .args.code }"], env: { TOKEN: "secret:PROGRAM" }, effect: read }
  echo: { native: echo, effect: read }
  fail: { native: fail, effect: read }
  s: { mcp: { command: [SERVER] , env: { TOKEN: "secret:SERVER_PROGRAM" } }, effect: read }
  h: { mcp: { url: "${ env.SERVER_URL_AT }", headers: { Authorization: "Bearer secret:SERVER_URL" } }, effect: read }
models:
MODELS
agents:
  all:
    plan:
      - { id: tells, tool: tells }
      - { id: fails, tool: fails, on_error: continue }
      - { id: plain, tool: plain, on_error: continue }
      - { id: moved, tool: moved, on_error: continue }
      - { id: broken, tool: broken, on_error: continue }
      - { id: program, tool: program, args: { code: 0 } }
      - { id: bad_program, tool: program, args: { code: 3 }, on_error: continue }
      - { id: echo, tool: echo, needs: [tells], args: { of: "${ .steps.tells }", name: "${ .input.name }" } }
      - { id: fail, tool: fail, needs: [program], args: { code: bad, message: "${ .steps.program }" }, on_error: continue }
      - { id: s, tool: s.leak }
      - { id: s_fail, tool: s.leak, args: { how: fail }, on_error: continue }
      - { id: s_error, tool: s.leak, args: { how: error }, on_error: continue }
      - { id: h, tool: h.leak }
      - { id: h_fail, tool: h.leak, args: { how: fail }, on_error: continue }
      - { id: h_error, tool: h.leak, args: { how: error }, on_error: continue }
NODES
      - { id: asks, needs: [tells], tool: asks, args: { of: "${ .steps.tells.body.text }" } }
    output: "${ .steps }"
"""
PROGRAM = """\
import json, os, sys
sys.path.insert(0, sys.argv[1])
from mcp_server import spellings
output = " ".join(spellings(os.environ["TOKEN"])) + " " + json.dumps(dict(os.environ))
os.write(int(os.environ["AETHERIS_PROGRESS_FD"]), (json.dumps({"at": output[:3000]}) + "\\n").encode())
print(output)
print(output, file=sys.stderr)
sys.exit(int(sys.argv[2]))
"""
INPUT = {"name": "secret:HEADER"}  # a text that looks like a secret reference is a text
# The behaviours of models, by name. `whole` ones do not stream.
MODEL_BEHAVIOURS = ("says", "calls", "breaks", "cut", "errs", "refuses", "whole_says", "whole_calls", "whole_refuses")


def test(function):
    TESTS.append(function)
    return function


def canary(name):
    digest = base64.b32encode(hashlib.sha256(name.encode()).digest()).decode()
    return f'{digest[:30]}+"/=\\{digest[30:50].lower()}'


CANARIES = {name: canary(name) for name in (*SECRETS, "LOUD")}


def fragments(text):
    """Each run of FRAGMENT characters, in all encodings."""
    raw, found = text.encode(), set()
    for part in re.findall(rb"[A-Za-z0-9]+", raw):
        found |= {part[i:i + FRAGMENT] for i in range(len(part) - FRAGMENT + 1)}
        found |= {part[i:i + FRAGMENT].hex().encode() for i in range(len(part) - FRAGMENT + 1)}
    for before in range(3):
        coded = base64.b64encode(b" " * before + raw + b" " * 3)[4:-8]
        found |= {coded[i:i + 16].translate(bytes.maketrans(b"+/", chars)) for i in range(len(coded) - 15) for chars in (b"+/", b"-_")}
    return found


FRAGMENTS = {name: fragments(text) for name, text in CANARIES.items()}


class EchoServer(http.server.BaseHTTPRequestHandler):
    """Echoes the credentials of a request, or `instead`; `seen` has those received. The end of a stream waits for `gate`."""

    protocol_version = "HTTP/1.1"
    instead, seen, failed, gate = None, set(), set(), threading.Event()

    def respond(self, status, kind, data, headers=()):
        self.send_response(status)
        for name, value in (("content-type", kind), ("content-length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def answer(self):
        request = self.rfile.read(int(self.headers.get("content-length", 0)))
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        EchoServer.seen.add(given)
        echoed = EchoServer.instead or given
        text = " ".join(spellings(echoed))
        if self.path.startswith("/v1/"):
            return self.model(json.loads(request), echoed, text)
        if self.path == "/tells":
            return self.respond(200, "application/json", json.dumps({"text": text, text: 1, "id": echoed}).encode(), [("x-said", echoed)])
        if self.path == "/plain":
            return self.respond(500, "text/plain", text.encode())
        if self.path == "/moved":
            return self.respond(302, "text/plain", b"", [("location", f"http://{echoed}/{text}")])
        if self.path == "/broken":
            return self.respond(200, "application/json", b'{"it": "' + echoed.encode() + b" " + text.encode())
        return self.respond(400, "application/json", json.dumps({"error": {"message": f"the key {text} is no good"}}).encode())

    # ------------------------------------------------------------ models

    def model(self, request, echoed, text):
        way, streamed = request["model"].removeprefix("whole_"), request.get("stream", False)
        assert streamed != request["model"].startswith("whole_"), request
        messages = self.path.endswith("/messages")
        if way == "refuses":
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": f"the key {text} is no good"}}
            return self.respond(400, "application/json", json.dumps(error).encode())
        calls = way == "calls" and not any(m["role"] == "tool" or "tool_result" in json.dumps(m["content"]) for m in request["messages"])
        if not streamed:
            return self.respond(200, "application/json", json.dumps((self.message if messages else self.chat)(text, calls)).encode())
        first = way in ("cut", "errs") and (self.path, way) not in EchoServer.failed
        EchoServer.failed.add((self.path, way))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if way == "breaks":  # short enough to be shown whole in the error for an unreadable answer
            both = f"{echoed} {spellings(echoed)[-1]}"
            step = -(-len(both) // 4)
            self.wfile.write("".join(self.fragment(messages, both[at:at + step]) for at in range(0, len(both), step)).encode() + b"data: {garbage\n\n")
            return
        events = list(self.message_events(text, calls) if messages else self.chat_events(text, calls))
        for number, event in enumerate(events):
            if number == len(events) - 1:
                EchoServer.gate.wait(60)
            if number == 40 and first and way == "cut":
                # No clean end: the connection is reset.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return os.close(self.connection.detach())
            if number == 40 and first:
                error = {"type": "error", "error": {"type": "overloaded_error", "message": f"too much of {text}"}}
                event = f"event: error\ndata: {json.dumps(error)}\n\n"
            self.wfile.write(event.encode())
            self.wfile.flush()

    @staticmethod
    def fragment(messages, text):
        if messages:
            return f'data: {{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{json.dumps(text)}}}}}\n\n'
        return f'data: {{"choices":[{{"delta":{{"content":{json.dumps(text)}}}}}]}}\n\n'

    @staticmethod
    def chat(text, calls):
        call = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": json.dumps({"of": text, text: text})}}
        echoed = {"role": "assistant", "content": text, **({"tool_calls": [call]} if calls else {})}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": text, "usage": {
            "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, "choices": [
                {"index": 0, "finish_reason": "tool_calls" if calls else text, "message": echoed}]}

    @staticmethod
    def message(text, calls):
        call = {"type": "tool_use", "id": "c", "name": "echo", "input": {"of": text, text: text}}
        thought = {"type": "thinking", "thinking": text, "signature": text}
        return {"id": "m", "type": "message", "role": "assistant", "model": text, "stop_sequence": None,
                "content": [thought, {"type": "text", "text": text}, *([call] if calls else [])],
                "stop_reason": "tool_use" if calls else text, "usage": {"input_tokens": 1, "output_tokens": 1}}

    @staticmethod
    def chat_events(text, calls):
        def chunk(delta, finish=None):
            return "data: " + json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": text, "choices": [
                {"index": 0, "delta": delta, "finish_reason": finish}]}) + "\n\n"
        yield chunk({"role": "assistant", "content": ""})
        for at in range(0, len(text), 5):
            yield chunk({"content": text[at:at + 5]})
        if calls:
            yield chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "echo", "arguments": ""}}]})
            arguments = json.dumps({"of": text, text: text})
            for at in range(0, len(arguments), 7):
                yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": arguments[at:at + 7]}}]})
        yield chunk({}, "tool_calls" if calls else "stop")
        yield "data: [DONE]\n\n"

    @staticmethod
    def message_events(text, calls):
        def event(kind, **members):
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"
        yield event("message_start", message={"id": "m", "type": "message", "role": "assistant", "model": text, "content": [],
                                              "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}})
        blocks = [({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking", text),
                  ({"type": "text", "text": ""}, "text_delta", "text", text)]
        if calls:
            blocks.append(({"type": "tool_use", "id": "c", "name": "echo", "input": {}}, "input_json_delta", "partial_json",
                           json.dumps({"of": text, text: text})))
        for index, (begun, kind, member, whole) in enumerate(blocks):
            yield event("content_block_start", index=index, content_block=begun)
            for at in range(0, len(whole), 5):
                yield event("content_block_delta", index=index, delta={"type": kind, member: whole[at:at + 5]})
            yield event("content_block_stop", index=index)
        yield event("message_delta", delta={"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None},
                    usage={"output_tokens": 2})
        yield event("message_stop")

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


class Setup:
    """A folder with everything that holds a canary, the services that echo them, and `found`: (name, where)."""

    def __init__(self, h, loud):
        self.h, self.found, self.texts = h, set(), []
        self.world = http.server.ThreadingHTTPServer(("127.0.0.1", 0), EchoServer)
        threading.Thread(target=self.world.serve_forever, daemon=True).start()
        EchoServer.instead, EchoServer.seen, EchoServer.failed = CANARIES["LOUD"] if loud else None, set(), set()
        EchoServer.gate.set()
        words = [sys.executable, "-B", str(HERE / "shared/mcp_server.py"), "--journal", str(h.path / "world.journal"), "--tools"]
        for name in ("SERVER_PROGRAM", "SERVER_URL"):
            echoed = f"Leaks {CANARIES['LOUD' if loud else name]}"
            tools = {"leak": {"description": echoed, "inputSchema": {"type": "object", "description": echoed}}}
            (h.path / f"world.{name}").write_text(json.dumps(tools))
        self.server = subprocess.Popen([*words, h.path / "world.SERVER_URL", "--http", "--era", "modern", "--token", CANARIES["SERVER_URL"]], stdin=subprocess.DEVNULL,
                                       env={"PATH": os.environ["PATH"], **({"TOKEN": CANARIES["LOUD"]} if loud else {})},
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        (h.path / "world.py").write_text(PROGRAM)
        program = [sys.executable, "-B", str(h.path / "world.py"), str(HERE / "shared")]
        models, nodes = [], []
        for provider in ("openai", "anthropic"):
            for way in MODEL_BEHAVIOURS:
                models.append(f'  {provider}_{way}: {{ provider: {provider}, base_url: "${{ env.WORLD }}/v1", model: {way}, '
                              f'api_key: "secret:{provider.upper()}", stream: {"false" if way.startswith("whole") else "true"}, '
                              "retry: { max_attempts: 3, initial_backoff: 10ms, retry_on: [reset, 5xx] } }")
                loop = f"loop: {{ model: {provider}_{way}, prompt: Say your key., tools: [echo] }}"
                once = f"llm: {{ model: {provider}_{way}, prompt: Say your key. }}"
                nodes.append(f"      - {{ id: {provider}_{way}, {loop if way.endswith('calls') else once}, on_error: continue }}")
        text = AGENTS.replace("MODELS", "\n".join(models)).replace("NODES", "\n".join(nodes))
        text = text.replace("[SERVER]", json.dumps([*words, str(h.path / "world.SERVER_PROGRAM")])).replace("[PROGRAM", json.dumps(program)[:-1])
        if loud:
            text = text.replace('"secret:PROGRAM"', '"${ env.LOUD }"').replace('"secret:SERVER_PROGRAM"', '"${ env.LOUD }"')
        (h.path / "agents.yaml").write_text(text)
        h.env |= {"WORLD": f"http://127.0.0.1:{self.world.server_port}", "SERVER_URL_AT": self.server.stdout.readline().strip(), **CANARIES}

    def close(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()
        self.world.shutdown()
        self.world.server_close()

    def search(self, where, data):
        plain = re.sub(rb"\\+u00([0-9a-fA-F]{2})", lambda escape: bytes.fromhex(escape[1].decode()), data)
        self.found |= {(name, where) for name, all_fragments in FRAGMENTS.items()
                       if any(piece in data or piece in plain for piece in all_fragments)}
        return data

    def run(self, *words, codes=(0,), where=None):
        done = self.h.run(*words)
        assert done.code in codes, (words, done)
        self.search(where or " ".join(words), (done.out + done.err).encode())
        return done.out

    def search_files(self):
        """Searches the files of the folder, without those of the echoing services."""
        for file in self.h.path.rglob("*"):
            if file.is_file() and not file.name.startswith("world."):
                self.search(f"file {file.name}", file.read_bytes())


def run_by_commands(loud=False):
    """Runs and reads everything with commands. Returns the setup with all findings."""
    with home() as h:
        place = Setup(h, loud)
        try:
            place.run("check", "agents.yaml", codes=(0, 1))
            place.run("run", "agents.yaml", "all", "--job-id", "j", "--input", json.dumps(INPUT), codes=(4,), where="run")
            place.run("approvals")
            approval = json.loads(place.run("approvals", "--json"))["approvals"][0]["id"]
            arguments = json.dumps({"of": CANARIES["LOUD"] if loud else "edited"})
            place.run("approve", approval, "--arguments", arguments, where="approve")
            place.run("run", "agents.yaml", "all", "--job-id", "j", "--json", where="run again")
            for words in (("job", "j"), ("job", "j", "--json"), ("events", "j"), ("events", "j", "--json"), ("trace", "j"),
                          ("trace", "j", "--json"), ("verify", "j", "--json"), ("replay", "j", "--json"), ("inspect",), ("audit",),
                          ("jobs", "--json"), ("doctor",)):
                place.run(*words, codes=(0, 1, 2))
            place.events = place.run("events", "j", "--json", where="events j --json")
            place.given = set(EchoServer.seen)
            place.search_files()
            return place
        finally:
            place.close()


def run_by_server(loud=False):
    """The same job at a server, with an event stream, and the request to be sent shown for approval."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with home() as h:
        place = Setup(h, loud)
        EchoServer.gate.clear()
        try:
            with open(h.path / "served.log", "wb") as log:
                process = subprocess.Popen([h.program, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"],
                                           cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            h.started.append(process)
            url = json.loads(process.stdout.readline())["listening"]

            def send_request(path, body=None, where=None):
                data = json.dumps(body).encode() if body is not None else None
                request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
                return place.search(where or path, opener.open(request, timeout=60).read())

            send_request("/api/jobs", {"agent": "all", "id": "j", "input": INPUT}, "POST /api/jobs")
            live = opener.open(urllib.request.Request(url + "/api/jobs/j/events", headers={"accept": "text/event-stream"}), timeout=60)
            received = []
            reader = threading.Thread(target=lambda: received.extend(live))
            reader.start()
            # A slow reader misses deltas of ended calls, so no call may end before these are read.
            until(lambda: repeats(b"\n".join(joined_deltas(b"".join(received))), loud))
            EchoServer.gate.set()
            approval = until(lambda: json.loads(send_request("/api/approvals"))["approvals"])[0]
            place.preview = approval["sends"]
            arguments = {"of": CANARIES["LOUD"] if loud else "edited"}
            one = json.loads(send_request(f"/api/approvals/{approval['id']}", where="one request"))
            assert one["sends"] == approval["sends"], one
            edit = json.loads(send_request(f"/api/approvals/{approval['id']}/preview", {"arguments": arguments}, "preview"))
            assert edit["faults"] == [] and edit["sends"], edit
            send_request(f"/api/approvals/{approval['id']}", {"decision": "approve", "arguments": arguments}, "approve")
            until(lambda: json.loads(send_request("/api/jobs/j"))["status"] == "completed")
            for path in ("/api/jobs/j/events?limit=1000", "/api/jobs/j/trace", "/api/tools", "/api/agents", "/api/workers", "/metrics"):
                send_request(path)
            call = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "aetheris://jobs/j/trace"}}
            send_request("/mcp", call, "MCP")
            reader.join(60)
            live.close()
            place.live = place.search("live stream", b"".join(received))
            process.terminate()
            place.search("stdout of serve", process.stdout.read())
            process.wait()
            process.stdout.close()
            place.search_files()
            return place
        finally:
            EchoServer.gate.set()
            place.close()


def joined_deltas(live):
    """The joined deltas of each try of a model call; calls run concurrently, so their deltas are interleaved."""
    texts = collections.defaultdict(dict)
    for data in re.findall(rb"event: said\ndata: (.*)", live):
        piece = json.loads(data)
        texts[piece["invocation_id"], piece["try"]][piece["offset"]] = piece["text"].encode()
    return [b"".join(by_offset[at] for at in sorted(by_offset)) for by_offset in texts.values()]


def repeats(echoed, loud):
    """Whether models of both providers echoed their key."""
    if loud:
        return any(piece in echoed for piece in FRAGMENTS["LOUD"])
    return all(f"[secret {name}]".encode() in echoed for name in ("OPENAI", "ANTHROPIC"))


def expect_no_canary(place):
    assert not place.found, "\n".join(f"{name} in {where}" for name, where in sorted(place.found))


@test
def no_secret_is_stored_or_printed_by_a_command():
    place = run_by_commands()
    expect_no_canary(place)
    given = {CANARIES[name] for name in ("OPENAI", "ANTHROPIC", "HEADER")}
    assert given <= place.given, f"the services did not receive the secrets: {place.given}"
    for name in SECRETS:
        assert f"[secret {name}]" in place.events, f"nothing echoed {name}: the test checks nothing"
    events = json.loads(place.events)["events"]
    errors = {e["payload"].get("error", {}).get("code") for e in events if e["type"] == "tool_invocation_finished"}
    assert {"http_400", "http_500", "http_502", "reset"} <= errors, errors


@test
def no_secret_is_in_responses_streams_and_logs_of_the_server():
    place = run_by_server()
    expect_no_canary(place)
    assert place.preview["headers"]["Authorization"] == "Bearer secret:HEADER", place.preview
    assert repeats(b"\n".join(joined_deltas(place.live)), False), "no deltas hold the keys' names"


@test
def a_canary_that_is_not_a_secret_is_found_in_files_and_command_output():
    missed = {"approvals", "approvals --json", "run again", "job j", "job j --json", "events j", "events j --json", "trace j",
              "trace j --json", "replay j --json", "file aetheris.db", "file agents.lock.json"} - {
                  where for name, where in run_by_commands(loud=True).found if name == "LOUD"}
    assert not missed, f"a canary is there and was not found: {missed}"


@test
def a_canary_that_is_not_a_secret_is_found_in_files_and_server_responses():
    place = run_by_server(loud=True)
    missed = {"/api/approvals", "/api/jobs/j", "/api/jobs/j/events?limit=1000", "/api/jobs/j/trace", "live stream",
              "MCP", "file aetheris.db"} - {where for name, where in place.found if name == "LOUD"}
    assert not missed, f"a canary is there and was not found: {missed}"
    assert repeats(b"\n".join(joined_deltas(place.live)), True), "no deltas hold a canary"


if __name__ == "__main__":
    sys.exit(run_tests("canaries", TESTS, " ".join(sys.argv[1:])))
