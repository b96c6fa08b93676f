"""MCP clients for tests, over HTTP and over stdio, which validate results against the schemas of the specification."""
import http.client
import json
import os
import pathlib
import subprocess

from jsonschema import Draft7Validator, Draft202012Validator

from shared.home import PATIENCE
from shared.program import ROOT

MODERN, LEGACY = "2026-07-28", "2025-11-25"
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
ELICITATION = {"elicitation": {}}
NAMES = {"tools/call": "name", "resources/read": "uri", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
TESTDATA = pathlib.Path(os.environ.get("AETHERIS_TESTDATA") or ROOT / "testdata")


class Schemas:
    """The schemas of the specification, by revision, if their files exist."""

    def __init__(self):
        self.files = {}

    def check(self, revision, name, value):
        path = TESTDATA / f"mcp/schema-{revision}.json"
        if not path.exists():
            return
        if revision not in self.files:
            self.files[revision] = json.loads(path.read_text())
        document = self.files[revision]
        place = "$defs" if "$defs" in document else "definitions"
        kind = Draft202012Validator if place == "$defs" else Draft7Validator
        schema = {**document, "$ref": f"#/{place}/{name}"}
        faults = [f"{'/'.join(map(str, e.absolute_path))}: {e.message[:400]}" for e in kind(schema).iter_errors(value)]
        assert not faults, f"{revision} {name}: {faults}\n{value}"


SCHEMAS = Schemas()


RESULTS = {"initialize": "InitializeResult", "server/discover": "DiscoverResult", "tools/list": "ListToolsResult",
           "tools/call": "CallToolResult", "resources/list": "ListResourcesResult",
           "resources/templates/list": "ListResourceTemplatesResult", "resources/read": "ReadResourceResult"}


class Client:
    """The common part of both transports. `revision` selects the protocol era."""

    def __init__(self, revision, capabilities=None):
        self.revision, self.capabilities, self.last = revision, capabilities or {}, 0
        self.notes = []

    def message(self, method, params=None, meta=None):
        self.last += 1
        params = dict(params or {})
        meta = dict(meta or {})
        if self.revision >= MODERN:
            meta = {"io.modelcontextprotocol/protocolVersion": self.revision,
                    "io.modelcontextprotocol/clientCapabilities": self.capabilities,
                    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"}, **meta}
        if meta:
            params["_meta"] = meta
        return {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}

    def result(self, method, params=None, meta=None):
        answer = self.request(self.message(method, params, meta))
        assert "result" in answer, (method, params, answer)
        name = RESULTS.get(method)
        plain = answer["result"].get("resultType", "complete") == "complete" and "task" not in answer["result"]
        if name and plain:
            SCHEMAS.check(self.revision, name, answer["result"])
        return answer["result"]

    def error(self, method, params=None, meta=None):
        answer = self.request(self.message(method, params, meta))
        assert "error" in answer, (method, params, answer)
        return answer["error"]

    def call(self, tool, arguments=None, meta=None, **more):
        return self.result("tools/call", {"name": tool, "arguments": arguments or {}, **more}, meta)

    def initialize(self):
        if self.revision < MODERN:
            output = self.result("initialize", {"protocolVersion": self.revision, "capabilities": {},
                                                "clientInfo": {"name": "t", "version": "1"}})
            assert output["protocolVersion"] == self.revision, output
        else:
            assert self.revision in self.result("server/discover")["supportedVersions"]
        return self


class Http(Client):
    def __init__(self, server, revision, capabilities=None, key=None):
        super().__init__(revision, capabilities)
        self.server, self.key, self.status = server, key, None

    def headers(self, message):
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        if self.revision >= "2025-06-18" and message.get("method") != "initialize":
            headers["MCP-Protocol-Version"] = self.revision
        if self.revision >= MODERN:
            headers["Mcp-Method"] = message["method"]
            if message["method"] in NAMES:
                headers["Mcp-Name"] = str(message["params"].get(NAMES[message["method"]]))
        return headers

    def request(self, message, headers=None):
        connection = http.client.HTTPConnection(self.server.address, timeout=PATIENCE)
        connection.request("POST", "/mcp", json.dumps(message), self.headers(message) if headers is None else headers)
        answer = connection.getresponse()
        raw, self.status = answer.read().decode(), answer.status
        connection.close()
        kind = answer.headers.get("Content-Type", "")
        if kind != "text/event-stream":
            return json.loads(raw) if raw else None
        assert answer.headers["X-Accel-Buffering"] == "no"
        events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: ")]
        self.notes += events[:-1]
        return events[-1]


class Stdio(Client):
    def __init__(self, h, *words, revision=LEGACY, capabilities=None, env=None):
        super().__init__(revision, capabilities)
        self.process = subprocess.Popen([h.program, "mcp", *words], cwd=h.path, env={**h.env, **(env or {})}, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        h.started.append(self.process)

    def send(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def request(self, message):
        self.send(json.dumps(message))
        while True:
            answer = self.read()
            if "id" in answer:
                assert answer["id"] == message["id"], answer
                return answer
            self.notes.append(answer)

    def close(self):
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err
