"""A small MCP server for tests, for both protocol eras and transports, with a journal of its calls.

  mcp_server.py --journal FILE [--era legacy|modern] [--http] [--tools FILE]

Every call is one line of JSON in the journal, fsynced before the call runs. Over HTTP the first line of stdout is its URL.
`--tools` names a JSON file {name: {…}} whose members replace those of its tools. The file is read for every listing.
"""
import argparse
import base64
import http.server
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import urllib.parse

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
OBJECT = {"type": "object", "additionalProperties": True}
TOOLS = {
    "echo": {"description": "Says it again", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}},
             "required": ["text"], "$schema": "http://json-schema.org/draft-07/schema#"},
             "annotations": {"readOnlyHint": True}},
    "pay": {"description": "Pays", "inputSchema": OBJECT, "annotations": {"idempotentHint": True}},
    "hang": {"description": "Waits until a file is there", "inputSchema": OBJECT},
    "die": {"description": "Kills the server, the first time", "inputSchema": OBJECT},
    "fail": {"description": "Fails", "inputSchema": OBJECT},
    "refuse": {"description": "Refuses its arguments", "inputSchema": OBJECT},
    "break": {"description": "Breaks", "inputSchema": OBJECT},
    "sum": {"description": "Adds", "inputSchema": {"type": "object", "properties": {
                "a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
            "outputSchema": {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}},
    "slow": {"description": "Says how far it is", "inputSchema": OBJECT},
    "ask": {"description": "Asks a person", "inputSchema": OBJECT},
    "secret": {"description": "Says a secret", "inputSchema": OBJECT},
    "route": {"description": "Goes by a header", "inputSchema": {"type": "object", "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"}}}},
}


def text(reply, **more):
    return {"content": [{"type": "text", "text": reply}], **more}


class Server:
    def __init__(self, options):
        self.options = options
        self.modern = options.era == "modern"
        self.started = False
        self.lock = threading.Lock()
        self.requests = {}  # over HTTP: id -> event, with the answer

    def note(self, params):
        meta = params.get("_meta", {})
        line = {"tool": params["name"], "args": params.get("arguments"), "pid": os.getpid(),
                "key": meta.get("aetheris/idempotency-key"), "try": meta.get("aetheris/try"), "meta": meta,
                "responses": params.get("inputResponses"), "state": params.get("requestState")}
        with self.lock:
            with open(self.options.journal, "a") as journal:
                journal.write(json.dumps(line) + "\n")
                journal.flush()
                os.fsync(journal.fileno())

    def tools(self):
        changed = {}
        if self.options.tools and os.path.exists(self.options.tools):
            changed = json.loads(pathlib.Path(self.options.tools).read_text())
        return [{"name": name, **{**TOOLS.get(name, {}), **changed.get(name, {})}} for name in sorted({**TOOLS, **changed})
                if changed.get(name, {}) is not None]

    # `send_request` returns the answer of the client.
    def answer(self, method, params, send_notification, send_request):
        if self.modern:
            meta = params.get("_meta", {})
            if method != "server/discover" and META + "clientCapabilities" not in meta:
                return {"error": {"code": -32602, "message": "no capabilities in _meta"}}
            if meta.get(META + "protocolVersion") != MODERN:
                return {"error": {"code": -32022, "message": "version",
                                  "data": {"supported": [MODERN], "requested": meta.get(META + "protocolVersion", "")}}}
            if method == "server/discover":
                return {"result": {"resultType": "complete", "supportedVersions": [MODERN], "capabilities": {"tools": {}},
                                   "ttlMs": 0, "cacheScope": "private"}}
        elif method == "initialize":
            self.started = True
            return {"result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "test", "version": "1"}}}
        elif not self.started:
            return {"error": {"code": -32600, "message": "not initialized"}}
        if method == "tools/list":
            tools, cursor = self.tools(), int(params.get("cursor", 0))
            more = {"nextCursor": str(cursor + 5)} if cursor + 5 < len(tools) else {}
            stamp = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.modern else {}
            return {"result": {"tools": tools[cursor:cursor + 5], **more, **stamp}}
        if method == "tools/call":
            done = self.call(params, send_notification, send_request)
            if self.modern and "result" in done:
                done["result"].setdefault("resultType", "complete")
            return done
        return {"error": {"code": -32601, "message": f"no method {method}"}}

    def call(self, params, send_notification, send_request):
        name, args = params["name"], params.get("arguments") or {}
        self.note(params)
        folder = pathlib.Path(self.options.journal).parent
        if name == "echo":
            return {"result": text(args["text"])}
        if name == "pay":
            return {"result": text(f"paid {params['_meta']['aetheris/idempotency-key']}")}
        if name == "hang":
            while not (folder / "go").exists():
                time.sleep(0.02)
            return {"result": text("went on")}
        if name == "die":
            if (folder / "died").exists():
                return {"result": text("lives")}
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "fail":
            return {"result": text("the account is empty", isError=True)}
        if name == "refuse":
            return {"error": {"code": -32602, "message": "no such account"}}
        if name == "garble":
            return {"raw": '{"this is no message'}
        if name == "break":
            return {"error": {"code": -32603, "message": "half of it is done"}}
        if name == "sum":
            total = args["a"] + args["b"]
            return {"result": text(str(total), structuredContent={"sum": total})}
        if name == "slow":
            for i in (1, 2):
                send_notification("notifications/progress", {"progressToken": params["_meta"]["progressToken"], "progress": i, "total": 2,
                                                             "message": "on the way"})
            return {"result": text("done")}
        if name == "ask":
            if self.modern:
                return {"result": {"resultType": "input_required", "inputRequests": {
                    "name": {"method": "elicitation/create", "params": {"mode": "form", "message": "Who?"}}}}}
            reply = send_request("elicitation/create", {"message": "Who?", "requestedSchema": OBJECT})["action"]
            with open(folder / "said", "a") as file:
                file.write(reply + "\n")
            return {"result": text(reply)}
        if name == "send":
            return {"result": send(args, params.get("inputResponses") or {})}
        if name == "book":
            reply = book(params.get("inputResponses") or {}, params.get("requestState"))
            while "booked" in json.dumps(reply) and (folder / "stop").exists():
                time.sleep(0.02)
            return {"result": reply}
        if name == "reach":
            host, port = args["address"].split(":")
            return {"result": text(json.dumps({
                "path": attempt(lambda: open(args["path"], "rb").close()),
                "address": attempt(lambda: socket.create_connection((host, int(port)), 5).close())}))}
        if name == "secret":
            return {"result": text("it is " + os.environ.get("TOKEN", "?"))}
        if name == "leak":
            return self.leak(args, params, send_notification)
        if name == "route":
            return {"result": text("went to " + args["region"])}
        return {"error": {"code": -32602, "message": "unknown tool"}}

    def leak(self, args, params, send_notification):
        """Returns its secret in every possible way: text, values, a failure, an error, progress, and on stderr."""
        secret = os.environ.get("TOKEN") or self.options.token
        reply = " ".join(spellings(secret)) + f" {json.dumps(dict(os.environ)) if not self.options.http else secret}"
        print(reply, file=sys.stderr, flush=True)
        send_notification("notifications/progress", {"progressToken": params["_meta"].get("progressToken"), "progress": 1, "message": reply})
        if args.get("how") == "error":
            return {"error": {"code": -32602, "message": reply}}
        return {"result": text(reply, isError=args.get("how") == "fail", structuredContent={"said": reply})}


def attempt(action):
    try:
        action()
        return "reached"
    except OSError as error:
        return f"refused: {error}"


def spellings(secret):
    raw = secret.encode()
    numbers = "".join(f"\\u{ord(c):04x}" for c in secret)
    escaped = json.dumps(secret)[1:-1]
    return [secret, base64.b64encode(raw).decode(), raw.hex(), urllib.parse.quote(secret, safe=""), escaped, numbers,
            numbers[:6] + escaped[1:].replace("/", "\\/")]


def seal(reply):
    return base64.b64encode(json.dumps(reply).encode()).decode()


def input_required(state, **questions):
    return {"resultType": "input_required", "requestState": seal(state), "inputRequests": {
        key: {"method": "elicitation/create", "params": params} for key, params in questions.items()}}


def send(arguments, responses):
    """Asks whether an address is right, and returns the answered one."""
    if "who" not in responses:
        return input_required({}, who={"mode": "form", "message": f"Is {arguments['to']} right?", "requestedSchema": {
            "type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}})
    return text("sent to " + responses["who"]["content"]["to"])


def book(responses, sealed):
    """Books seats: asks for their number, then for a signature at a URL. It keeps no state: the client returns it with the answers."""
    known = json.loads(base64.b64decode(sealed)) if sealed else {}
    for answer in responses.values():
        if answer["action"] != "accept":
            return text("not booked: " + answer["action"], isError=True)
    if "seats" in responses:
        known["seats"] = responses["seats"]["content"]["n"]
    if "seats" not in known:
        return input_required(known, seats={"mode": "form", "message": "How many seats? \x1b[31mred", "requestedSchema": {
            "type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 1}}}})
    if "sign" not in responses:
        return input_required(known, sign={"mode": "url", "message": "Sign, please", "url": "https://sign.example/42", "elicitationId": "42"})
    return text(f"booked {known['seats']}")


def serve_stdio(server):
    lock, answers = threading.Lock(), {}

    def write(message):
        with lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()

    def send_notification(method, params):
        write({"method": method, "params": params})

    def send_request(method, params):
        arrived = threading.Event()
        answers["q1"] = arrived
        write({"id": "q1", "method": method, "params": params})
        arrived.wait(30)
        return arrived.answer

    def work(message):
        done = server.answer(message["method"], message.get("params", {}), send_notification, send_request)
        if "raw" not in done:
            return write({"id": message["id"], **done})
        with lock:
            print(done["raw"], flush=True)

    print("a banner that is no message", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            arrived = answers[message["id"]]
            arrived.answer = message.get("result", {})
            arrived.set()
        elif "id" in message:
            threading.Thread(target=work, args=(message,), daemon=True).start()


def plain(value):
    if value and value.startswith("=?base64?"):
        return base64.b64decode(value[9:-2]).decode()
    return value


class Handler(http.server.BaseHTTPRequestHandler):
    server_version, protocol_version = "mcp", "HTTP/1.1"

    def log_message(self, *_):
        pass

    def respond(self, status, body=None, headers=()):
        self.respond_bytes(status, json.dumps({"jsonrpc": "2.0", **body}).encode() if body is not None else b"", headers)

    def respond_bytes(self, status, data, headers):
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.respond(405)

    def do_POST(self):
        mcp = self.server.mcp
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert "text/event-stream" in self.headers["Accept"], self.headers
        if mcp.options.token and self.headers.get("Authorization") != f"Bearer {mcp.options.token}":
            return self.respond(401)
        if "id" not in message or "method" not in message:
            if "result" in message:
                mcp.requests[message["id"]].answer = message["result"]
                mcp.requests[message["id"]].set()
            return self.respond(202)
        identity, method, params = message["id"], message["method"], message.get("params", {})
        if mcp.modern:
            wrong = [self.headers.get("MCP-Protocol-Version") != MODERN, self.headers.get("Mcp-Method") != method,
                     method == "tools/call" and self.headers.get("Mcp-Name") != params["name"],
                     params.get("arguments", {}).get("region") != plain(self.headers.get("Mcp-Param-Region"))]
            if any(wrong):
                return self.respond(400, {"id": identity, "error": {"code": -32020, "message": f"headers {wrong}"}})
        elif method == "server/discover":
            return self.respond(400)
        elif method != "initialize" and self.headers.get("Mcp-Session-Id") != mcp.session:
            return self.respond(404)
        headers = [("Mcp-Session-Id", mcp.session)] if method == "initialize" else []
        if mcp.modern or method != "tools/call":
            done = mcp.answer(method, params, lambda *_: None, None)
            if "raw" in done:
                return self.respond_bytes(200, done["raw"].encode(), headers)
            return self.respond(404 if mcp.modern and done.get("error", {}).get("code") == -32601 else 200,
                                {"id": identity, **done}, headers)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

        def event(body):
            self.wfile.write(b": a comment\r\nevent: message\r\ndata: " + json.dumps({"jsonrpc": "2.0", **body}).encode() +
                             b"\r\n\r\n")
            self.wfile.flush()

        def send_request(method, about):
            arrived = threading.Event()
            with mcp.lock:
                name = f"q{len(mcp.requests)}"
                mcp.requests[name] = arrived
            event({"id": name, "method": method, "params": about})
            arrived.wait(30)
            return arrived.answer

        done = mcp.answer(method, params, lambda m, p: event({"method": m, "params": p}), send_request)
        if "raw" in done:
            self.wfile.write(b"data: " + done["raw"].encode() + b"\r\n\r\n")
            self.wfile.flush()
            threading.Event().wait()  # the stream stays open
        event({"id": identity, **done})
        self.close_connection = True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", required=True)
    parser.add_argument("--era", default="legacy")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--tools")
    parser.add_argument("--token")
    options = parser.parse_args()
    server = Server(options)
    if not options.http:
        return serve_stdio(server)
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.mcp, server.session = server, f"session-{os.getpid()}"
    print(f"http://127.0.0.1:{listener.server_port}/mcp", flush=True)
    listener.serve_forever()


if __name__ == "__main__":
    main()
