#!/usr/bin/env python3
"""docs/openapi.json is a valid OpenAPI 3.1 document, the program serves it, and the responses of the program match it.

Every operation is called on a SQLite store, and its response must match the document for that status. An object whose fields the
document names may have no others.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  openapi.py [WORDS]   only tests whose name contains WORDS
"""
import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from jsonschema import Draft202012Validator  # noqa: E402

from shared.home import AGENTS, expect, home, run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

DOCUMENT = json.loads((ROOT / "docs/openapi.json").read_text())
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
TESTS = []

# The requirements of OpenAPI 3.1 for the parts that the document has. Each `schema` is validated separately.
SHAPE = {
    "$defs": {
        "ref": {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string", "pattern": "^#/components/"}}},
        "parameter": {
            "type": "object", "required": ["name", "in", "schema"], "additionalProperties": False,
            "properties": {"name": {"type": "string", "minLength": 1}, "in": {"enum": ["path", "query", "header", "cookie"]},
                           "description": {"type": "string"}, "required": {"type": "boolean"}, "schema": {"type": "object"},
                           "deprecated": {"type": "boolean"}, "explode": {"type": "boolean"}, "style": {"type": "string"}},
            "if": {"properties": {"in": {"const": "path"}}},
            "then": {"required": ["required"], "properties": {"required": {"const": True}}}},
        "content": {
            "type": "object", "minProperties": 1, "propertyNames": {"pattern": "^[a-z]+/[a-z0-9.+-]+$"},
            "additionalProperties": {"type": "object", "required": ["schema"], "additionalProperties": False,
                                     "properties": {"schema": {"type": "object"}, "example": {}}}},
        "body": {"type": "object", "required": ["content"], "additionalProperties": False,
                 "properties": {"description": {"type": "string"}, "required": {"type": "boolean"},
                                "content": {"$ref": "#/$defs/content"}}},
        "response": {
            "if": {"required": ["$ref"]}, "then": {"$ref": "#/$defs/ref"},
            "else": {"type": "object", "required": ["description"], "additionalProperties": False,
                     "properties": {"description": {"type": "string"}, "content": {"$ref": "#/$defs/content"},
                                    "headers": {"type": "object"}}}},
        "operation": {
            "type": "object", "required": ["operationId", "summary", "responses"], "additionalProperties": False,
            "properties": {
                "operationId": {"type": "string", "pattern": "^[a-z_]+$"}, "summary": {"type": "string"},
                "description": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "parameters": {"type": "array", "items": {"$ref": "#/$defs/parameter"}},
                "requestBody": {"$ref": "#/$defs/body"}, "deprecated": {"type": "boolean"}, "x-upgrade": {"const": True},
                "security": {"type": "array", "items": {"type": "object", "additionalProperties": {
                    "type": "array", "items": {"type": "string"}}}},
                "responses": {"type": "object", "minProperties": 1, "required": ["default"],
                              "propertyNames": {"pattern": "^([1-5][0-9][0-9]|default)$"},
                              "additionalProperties": {"$ref": "#/$defs/response"}}}},
    },
    "type": "object", "required": ["openapi", "info", "paths", "components"], "additionalProperties": False,
    "properties": {
        "openapi": {"const": "3.1.0"},
        "servers": {"type": "array", "items": {"type": "object", "required": ["url"], "additionalProperties": False, "properties": {
            "url": {"type": "string"}, "description": {"type": "string"}, "variables": {"type": "object"}}}},
        "info": {"type": "object", "required": ["title", "version"],
                 "properties": {name: {"type": "string"} for name in ("title", "version", "summary", "description")}},
        "paths": {"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^/"}, "additionalProperties": {
            "type": "object", "additionalProperties": False,
            "properties": {"parameters": {"type": "array", "items": {"$ref": "#/$defs/parameter"}},
                           **{method: {"$ref": "#/$defs/operation"} for method in METHODS}}}},
        "components": {
            "type": "object", "additionalProperties": False,
            "properties": {
                "schemas": {"type": "object", "propertyNames": {"pattern": r"^[A-Za-z0-9._-]+$"},
                            "additionalProperties": {"type": "object"}},
                "responses": {"type": "object", "additionalProperties": {"$ref": "#/$defs/response"}},
                "securitySchemes": {"type": "object", "additionalProperties": {
                    "type": "object", "required": ["type"],
                    "properties": {"type": {"enum": ["apiKey", "http", "mutualTLS", "oauth2", "openIdConnect"]}}}}}}},
}


def test(function):
    TESTS.append(function)
    return function


def operations():
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS & item.keys():
            yield path, method, item[method], item.get("parameters", []) + item[method].get("parameters", [])


def parts(value, where=()):
    """(path, value) of every nested value."""
    yield where, value
    if isinstance(value, (dict, list)):
        for name, inner in (value.items() if isinstance(value, dict) else enumerate(value)):
            yield from parts(inner, (*where, name))


def schemas():
    yield from (((name,), schema) for name, schema in DOCUMENT["components"]["schemas"].items())
    yield from ((where, value) for where, value in parts(DOCUMENT["paths"]) if where and where[-1] == "schema")
    yield from ((where, value) for where, value in parts(DOCUMENT["components"]["responses"]) if where and where[-1] == "schema")


def resolved(ref):
    value = DOCUMENT
    for name in ref.removeprefix("#/").split("/"):
        value = value[name]
    return value


@test
def the_document_is_valid_openapi_3_1():
    Draft202012Validator.check_schema(SHAPE)
    faults = [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in Draft202012Validator(SHAPE).iter_errors(DOCUMENT)]
    assert not faults, "\n".join(faults)


@test
def every_schema_is_valid_json_schema_2020_12():
    for where, schema in schemas():
        try:
            Draft202012Validator.check_schema(schema)
        except Exception as why:
            raise AssertionError(f"{where}: {why}") from why


@test
def every_reference_resolves():
    for where, value in parts(DOCUMENT):
        if where and where[-1] == "$ref":
            try:
                resolved(value)
            except KeyError:
                raise AssertionError(f"{where}: {value} does not resolve") from None


@test
def operation_ids_are_unique_and_path_parameters_match():
    seen = set()
    for path, method, operation, parameters in operations():
        assert operation["operationId"] not in seen, operation["operationId"]
        seen.add(operation["operationId"])
        names = [(p["in"], p["name"]) for p in parameters]
        assert len(names) == len(set(names)), f"{method} {path}: a parameter twice"
        there = {name for place, name in names if place == "path"}
        assert there == set(re.findall(r"{(\w+)}", path)), f"{method} {path}: {there}"
        assert method != "get" or "requestBody" not in operation, path
        for rule in operation.get("security", []):
            assert rule.keys() <= DOCUMENT["components"]["securitySchemes"].keys(), path


@test
def the_document_is_formatted_canonically():
    text = (ROOT / "docs/openapi.json").read_text(encoding="utf-8")
    assert text == json.dumps(DOCUMENT, indent=1, ensure_ascii=False) + "\n", "json.dumps with indent=1"


@test
def the_program_serves_the_document():
    with home() as h:
        server = Server(h)
        served = server.get("/openapi.json")[1]
        assert served.pop("info").keys() >= DOCUMENT["info"].keys()
        assert served == {name: value for name, value in DOCUMENT.items() if name != "info"}, "built of another document"
        expect(server.stop(), 0)


def closed(schema):
    """The schema, with additional fields forbidden where it names the fields of an object. A condition names only some."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema:
        out["additionalProperties"] = False
    return out


CLOSED = closed({"schemas": DOCUMENT["components"]["schemas"]})
EVENT = Draft202012Validator({"components": CLOSED, "$ref": "#/components/schemas/Event"})


def event_faults(event):
    return [f"{event['type']}: {'.'.join(map(str, error.absolute_path))}: {error.message[:600]}"
            for error in EVENT.iter_errors(event)]


def documented_events():
    """An event for each example of a payload in docs/data.md."""
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    for name, section in re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page, re.M | re.S):
        for payload in re.findall(r"^```json\n(.*?)^```", section, re.M | re.S):
            yield {"job_id": "j", "seq": 1, "id": "i", "type": name, "schema": 1, "created_at": "t", "prev_hash": "", "hash": "",
                   "payload": json.loads(payload)}


@test
def the_examples_of_events_match_the_schemas_of_their_types():
    events = list(documented_events())
    assert len({event["type"] for event in events}) > 30, "docs/data.md has examples of few events"
    faults = [fault for event in events for fault in event_faults(event)]
    assert not faults, "\n".join(faults)


@test
def a_payload_that_is_not_of_its_type_is_refused():
    event = next(event for event in documented_events() if event["type"] == "job_created")
    payload = event["payload"]
    for wrong in ({**payload, "agent": 1}, {**payload, "nobody": 1}, {k: v for k, v in payload.items() if k != "agent"}):
        assert event_faults({**event, "payload": wrong}), wrong
    assert not event_faults({**event, "type": "of_a_newer_program", "payload": {"x": 1}})
    decision = next(event for event in documented_events() if event["type"] == "decision_recorded")["payload"]
    assert event_faults({**event, "type": "decision_recorded", "payload": {**decision, "kind": "retry", "payload": {"try": "2"}}})


GUARDED = """
  guarded:
    native: echo
    effect: at_most_once
    approval: required
    args_schema: { type: object, properties: { n: { type: integer } } }
agents:
  guarded: { plan: [ { id: g, tool: guarded, args: { n: 1 } } ] }
"""


class CheckedClient:
    """Calls a server and validates each response against the document."""

    def __init__(self, server):
        self.server, self.faults, self.done = server, [], set()

    def __call__(self, status, method, path, body=None, headers=None):
        got, answer = self.server.request(method.upper(), path, body, headers)
        assert got == status, f"{method} {path}: {got}, not {status}: {answer}"
        template, operation = self.operation(method, path.split("?")[0])
        response = operation["responses"].get(str(status)) or operation["responses"]["default"]
        response = resolved(response["$ref"]) if "$ref" in response else response
        (kind, content), *_ = response["content"].items()
        schema = {"components": CLOSED, **closed(content["schema"])}
        label = f"{method} {template} {status}"
        if "json" in kind and schema.get("type") == "object" and "properties" not in schema and template != "/openapi.json":
            self.faults.append(f"{label}: the document names no field; these came: {answer}")
        for error in Draft202012Validator(schema).iter_errors(answer):
            self.faults.append(f"{label}: {'.'.join(map(str, error.absolute_path))}: {error.message[:600]}")
        if operation["operationId"] == "events" and status == 200 and "fields=slim" not in path:
            self.faults += [f"{label}: {fault}" for event in answer["events"] for fault in event_faults(event)]
        if status < 300 or "x-upgrade" in operation:
            self.done.add(operation["operationId"])
        return answer

    def operation(self, method, path):
        for template, item in DOCUMENT["paths"].items():
            if method in item and re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
                return template, item[method]
        raise AssertionError(f"the document has no {method} {path}")

    def job(self, agent, name, **more):
        """Creates a job and waits until it ends or blocks."""
        return self(201, "post", "/api/jobs?wait=30s", {"agent": agent, "id": name, **more})

    def ended(self, name, kind="job_completed"):
        page = self(200, "get", f"/api/jobs/{name}/events?type={kind}&wait=30s")
        assert page["events"], (name, kind)


def call_service_and_agents(send_request):
    """Health, documents and the registry of agents."""
    for path in ("/", "/api/health", "/api/ready", "/metrics", "/openapi.json", "/api/workers", "/api/tools", "/api/agents"):
        send_request(200, "get", path)
    send_request(426, "get", "/api/worker")
    late = {"plan": [{"id": "say", "tool": "echo", "args": {"v": 1}}], "output": "${ .steps.say }"}
    send_request(201, "put", "/api/agents/late", late)
    send_request(200, "put", "/api/agents/late", late)
    send_request(400, "put", "/api/agents/late", {"plan": [{"id": "say", "tool": "nobody"}]})
    send_request(200, "get", "/api/agents/late?version=1")
    send_request(404, "get", "/api/agents/nobody")


def create_jobs(send_request):
    """A job that completes, one that fails, one with an unknown outcome, and one that waits for a user, a signal and a message."""
    send_request(201, "put", "/api/agents/person", {"plan": [
        {"id": "sure", "wait": {"type": "human", "key": "sure"}}, {"id": "word", "wait": {"type": "signal", "key": "word"}},
        {"id": "note", "wait": {"type": "message", "channel": "note"}}]})
    send_request.job("echo", "e", input={"n": 1}, labels={"a": "b"}, priority=3, queue="q", idempotency_key="key")
    send_request(200, "post", "/api/jobs", {"agent": "echo", "id": "e", "input": {"n": 1}, "labels": {"a": "b"}, "priority": 3,
                                            "queue": "q", "idempotency_key": "key"})
    send_request(409, "post", "/api/jobs", {"agent": "echo", "id": "other", "input": {"n": 2}, "idempotency_key": "key"})
    send_request(404, "post", "/api/jobs", {"agent": "nobody"})
    send_request.job("fails", "f")
    send_request.job("doubts", "d")
    send_request.job("person", "p")


def read_jobs(send_request):
    """Lists and views of jobs that completed, failed, have an unknown outcome, and wait."""
    for job in ("e", "f", "d", "p"):
        for part in ("", "/events", "/trace", "/transcript", "/replay", "/verify"):
            send_request(200, "get", f"/api/jobs/{job}{part}")
        for part in ("/steps", "/conversation", "/forks", "/events?order=desc&limit=2", "/events?fields=slim", "/events?class=effect",
                     "/replay?at=2", "/replay?fields=summary", "/replay?fields=steps", "/replay?diff_from=1", "/replay?at=2&diff_from=1&fields=steps",
                     "/timeline", "/timeline?after=2&limit=1"):
            send_request(200, "get", f"/api/jobs/{job}{part}")
        step = send_request(200, "get", f"/api/jobs/{job}/steps?parent=root")["steps"][0]["step_id"]
        send_request(200, "get", f"/api/jobs/{job}/steps/{step}")
    send_request(404, "get", "/api/jobs/e/steps/nothing")
    for query in ("", "?limit=1", "?in_doubt=true", "?stalled=true&older_than=0s", "?label=a:b", "?status=failed&status=waiting",
                  "?since=1h", "?queue=q", "?sort=changed", "?sort=ended&kind=plan&cost_min=0"):
        send_request(200, "get", "/api/jobs" + query)
    for query in ("", "?agent=echo&queue=q&since=1h", "?label=a:b"):
        assert send_request(200, "get", "/api/job-counts" + query)["statuses"]["completed"] == 1, query
    send_request(400, "get", "/api/job-counts?since=then")
    send_request(404, "get", "/api/jobs/nobody")


def preview_edits(send_request):
    """A call that needs approval: an edit that is accepted, one that its schema refuses."""
    send_request.job("guarded", "c")
    request = send_request(200, "get", "/api/approvals?job=c")["approvals"][0]["id"]
    send_request(200, "get", f"/api/approvals/{request}")
    assert not send_request(200, "post", f"/api/approvals/{request}/preview", {"arguments": {"n": 2}})["faults"]
    assert send_request(200, "post", f"/api/approvals/{request}/preview", {"arguments": {"n": "2"}})["faults"]
    send_request(200, "post", f"/api/approvals/{request}", {"decision": "approve", "arguments": {"n": 2}})
    send_request.ended("c")


def answer_jobs(server, send_request):
    """Approvals, signals, messages and resolutions."""
    for request in send_request(200, "get", "/api/requests")["requests"]:
        send_request(200, "get", f"/api/approvals/{request['id']}")
        send_request(400, "post", f"/api/approvals/{request['id']}/preview", {"arguments": {}})
    send_request(404, "get", "/api/approvals/nobody.0123456789abcdef")
    approval = send_request(200, "get", "/api/approvals")["approvals"][0]["id"]
    send_request(200, "post", f"/api/approvals/{approval}", {"decision": "approve", "note": "x"})
    until(lambda: server.status("p") == "waiting")
    send_request(200, "post", "/api/jobs/p/signal", {"correlation_key": "word", "payload": 1, "message_id": "m"})
    send_request(200, "post", "/api/jobs/p/signal", {"correlation_key": "word", "payload": 1, "message_id": "m"})
    send_request(202, "post", "/api/jobs/p/message", {"channel": "note", "payload": 2})
    send_request.ended("p")
    send_request(202, "post", "/api/agents/late/message", {"message": 1})
    call = send_request(200, "get", "/api/jobs/d")["in_doubt"][0]["idempotency_key"]
    send_request(200, "post", "/api/jobs/d/resolve", {"idempotency_key": call, "resolution": "happened", "result": 1})
    send_request.ended("d")


def fork_jobs(send_request):
    """Forks and retries; MCP."""
    send_request(200, "post", "/api/jobs/f/retry", {"dry_run": True})
    send_request(200, "post", "/api/jobs/e/fork", {"at_seq": 2, "dry_run": True})
    send_request(201, "post", "/api/jobs/f/retry?wait=30s", {"id": "f2"})
    assert [job["id"] for job in send_request(200, "get", "/api/jobs/f/forks")["jobs"]] == ["f2"]
    send_request(201, "post", "/api/jobs/e/fork?wait=30s", {"at_seq": 2, "id": "e2", "input": {"n": 5}})
    send_request(409, "post", "/api/jobs/d/fork", {"at_seq": 2, "id": "d2"})
    send_request(200, "get", "/api/approvals?job=p")
    send_request(200, "post", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    send_request(400, "post", "/mcp", {"jsonrpc": "2.0", "id": 1})


def change_budget(send_request):
    """A budget that is lowered, exhausted and raised."""
    step = {"tool": "echo", "args": {"v": 1}}
    send_request(201, "put", "/api/agents/little", {"budget": {"tool_calls": 1, "wall": "1h", "soft": 50}, "plan": [{"id": "say", **step}]})
    send_request.job("little", "b", budget={"tool_calls": 0, "wall": "30m"})
    send_request(400, "post", "/api/jobs", {"agent": "little", "budget": {"tool_calls": 2}})
    for part in ("", "/trace", "/replay"):
        send_request(200, "get", "/api/jobs/b" + part)
    send_request(200, "get", "/api/jobs?stalled=true")
    send_request(400, "post", "/api/jobs/b/budget", {"tokens": 5})
    send_request(200, "post", "/api/jobs/b/budget", {"tool_calls": 5, "note": "x"})
    send_request.ended("b")
    send_request(409, "post", "/api/jobs/b/budget", {"tool_calls": 9})


def change_running_jobs(h, server, send_request):
    """Pause, re-plan, resume and cancel: of a job that is leased by this process, then of one that no process holds."""
    send_request(201, "post", "/api/jobs", {"agent": "holds", "id": "h"})
    until(lambda: server.status("h") == "running")
    send_request(202, "post", "/api/jobs/h/pause", {"reason": "x"})
    send_request(200, "get", "/api/jobs/h")
    send_request(200, "get", "/api/jobs/h/trace")
    h.release_hold()
    until(lambda: server.status("h") in ("parked", "completed"))
    send_request(201, "post", "/api/jobs?wait=30s", {"agent": "asks", "id": "a"})
    plan = send_request(200, "get", "/api/agents/asks")["plan"]
    send_request(202, "post", "/api/jobs/a/plan", {"task_graph": plan, "reason": "x"})
    plan["nodes"][0]["wait"]["key"] = "another"
    send_request(202, "post", "/api/jobs/a/plan", {"task_graph": plan, "reason": "x"})
    until(lambda: server.status("a") == "waiting")
    send_request(202, "post", "/api/jobs/a/pause", {"reason": "x"})
    until(lambda: server.status("a") == "parked")
    send_request(200, "get", "/api/jobs/a")
    send_request(202, "post", "/api/jobs/a/resume", {"reason": "x"})
    send_request(202, "post", "/api/jobs/a/cancel", {"reason": "x"})
    send_request.ended("a", "job_cancelled")


def delete_and_audit(send_request):
    """A redaction, transcripts of all jobs, a prune, the audit log."""
    send_request(200, "post", "/api/jobs/e/redact", {"all": True, "keep_forks": True, "reason": "x"})
    send_request(200, "get", "/api/jobs/e/events")
    for job in ("e", "e2", "f", "f2", "d", "p", "b", "a", "h"):  # a fork, an approval, a budget, another plan, a redaction
        send_request(200, "get", f"/api/jobs/{job}/transcript")
    send_request(200, "post", "/api/prune", {"older_than": "0s", "dry_run": True})
    send_request(200, "post", "/api/prune", {"older_than": "0s", "agent": "echo"})
    send_request(200, "get", "/api/audit")
    send_request(200, "get", "/api/audit/verify")


def use_keys(h, server, send_request):
    """The first key restricts access."""
    key = expect(h.run("keys", "create", "--role", "admin", "--json"), 0).json()["key"]
    until(lambda: server.get("/api/jobs")[0] == 401)
    send_request(401, "get", "/api/jobs")
    admin = {"Authorization": "Bearer " + key}
    made = send_request(201, "post", "/api/keys", {"role": "viewer", "name": "x", "expires": "1h"}, admin)
    send_request(200, "get", "/api/keys", None, admin)
    send_request(200, "delete", f"/api/keys/{made['id']}", None, admin)
    send_request(200, "get", "/api/keys", None, admin)
    send_request(200, "get", "/api/audit", None, admin)


@test
def every_operation_answers_as_documented():
    with home() as h:
        (h.path / "agents.yaml").write_text(AGENTS.replace("\nagents:\n", GUARDED))
        server = Server(h)
        send_request = CheckedClient(server)
        call_service_and_agents(send_request)
        create_jobs(send_request)
        read_jobs(send_request)
        preview_edits(send_request)
        answer_jobs(server, send_request)
        fork_jobs(send_request)
        change_budget(send_request)
        change_running_jobs(h, server, send_request)
        delete_and_audit(send_request)
        use_keys(h, server, send_request)
        expect(server.stop(), 0)
        missing = {operation["operationId"] for _, _, operation, _ in operations()} - send_request.done
        assert not missing, f"never called: {sorted(missing)}"
        assert not send_request.faults, "\n".join(dict.fromkeys(send_request.faults))


if __name__ == "__main__":
    sys.exit(run_tests("openapi", TESTS, " ".join(sys.argv[1:])))
