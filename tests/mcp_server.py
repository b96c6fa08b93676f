#!/usr/bin/env python3
"""Our MCP server over HTTP and stdio, in all protocol revisions, through crashes; and with the official client.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  mcp_server.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import pathlib
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import oracles  # noqa: E402
from shared.home import PATIENCE, expect, home, run_tests, until  # noqa: E402
from shared.mcp_agents import command  # noqa: E402
from shared.mcp_client import ELICITATION, LEGACY, MODERN, SCHEMAS, TASKS, Http, Stdio  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@contextlib.contextmanager
def serving():
    with home() as h:
        server = Server(h)
        yield server
        expect(server.stop(), 0)


def check_protocol(client):
    """Checks everything that all revisions and transports have in common."""
    client.initialize()
    names = {tool["name"] for tool in client.result("tools/list")["tools"]}
    assert {"echo", "asks", "aetheris_job", "aetheris_answer", "aetheris_signal", "aetheris_cancel"} <= names, names
    made = client.call("echo", {"n": 4})
    assert json.loads(made["content"][0]["text"]) == {"n": 4} and not made["isError"], made
    assert client.call("fails")["isError"] and client.call("echo", {"n": "x"})["isError"]
    assert client.error("tools/call", {"name": "nobody"})["code"] == -32602
    job = client.call("asks")["_meta"]["aetheris/job"]
    assert not client.call("aetheris_signal", {"job_id": job, "key": f"go-{job}", "payload": [1]})["isError"]
    done = client.call("aetheris_job", {"job_id": job, "wait_seconds": 30})
    assert json.loads(done["content"][0]["text"]) == [1], done
    uris = [one["uri"] for one in client.result("resources/list")["resources"]]
    assert f"aetheris://jobs/{job}" in uris, uris
    for part in ("", "/trace", "/events", "/events?after=2"):
        read = client.result("resources/read", {"uri": f"aetheris://jobs/{job}{part}"})["contents"][0]
        assert json.loads(read["text"]), read
    missing = client.error("resources/read", {"uri": "aetheris://jobs/nobody"})["code"]
    assert missing == (-32602 if client.revision >= MODERN else -32002), missing
    assert len(client.result("resources/templates/list")["resourceTemplates"]) == 3


@test
def every_protocol_revision_works_over_http():
    with serving() as server:
        for revision in ("2024-11-05", "2025-03-26", "2025-06-18", LEGACY, MODERN):
            check_protocol(Http(server, revision))


@test
def every_protocol_revision_works_over_stdio():
    with home() as h:
        for revision in ("2024-11-05", "2025-06-18", LEGACY, MODERN):
            client = Stdio(h, "agents.yaml", revision=revision)
            check_protocol(client)
            # Other commands find the process as the owner of the store.
            assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) >= 3
            code, out, err = client.close()
            assert (code, out) == (0, ""), (code, out, err)
            assert expect(h.run("jobs", "--status", "running", "--json"), 0).json()["jobs"] == []


@test
def stdio_forwards_to_a_server_or_the_owner_of_the_store():
    with serving() as server:
        for words, env in ((), server.env), ((), {}), (("agents.yaml",), {}):
            client = Stdio(server.h, *words, env=env, revision=MODERN)
            check_protocol(client)
            code, out, err = client.close()
            assert (code, out) == (0, ""), (code, out, err)
            assert ("another process owns this store" in err) == bool(words), err
        result = server.h.run("mcp", "agents.yaml", env=server.env)
        assert "omit FILE" in expect(result, 2).err


@test
def requests_sent_before_the_end_of_input_are_answered():
    with home() as h:
        lines = [json.dumps({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": "echo", "arguments": {"n": n}}})
                 for n in range(5)]
        result = expect(h.run("mcp", "agents.yaml", stdin="\n".join(lines)), 0)
        answers = {answer["id"]: answer for answer in map(json.loads, result.out.splitlines())}
        assert set(answers) == set(range(5)), result
        assert all("result" in answer for answer in answers.values()), result


@test
def invalid_lines_are_rejected_and_the_next_ones_answered():
    with home() as h:
        client = Stdio(h, "agents.yaml")
        for text, code in (("{", -32700), ("nonsense", -32700), ('"text"', -32600), ("[]", -32600), ("{}", -32600),
                           ("[" * 70 + "]" * 70, -32700), ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
                           ('{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32602),
                           ('{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32700)):
            client.send(text)
            assert client.read()["error"]["code"] == code, text
        client.send("x" * (9 << 20))
        assert client.read()["error"]["code"] == -32700
        client.send("\n  \n")
        assert client.result("ping") == {}
        client.process.send_signal(signal.SIGTERM)
        assert client.close()[0] == 0


@test
def a_cancelled_request_is_not_answered_and_its_job_continues():
    with home() as h:
        client = Stdio(h, "agents.yaml")
        client.initialize()
        held = client.message("tools/call", {"name": "holds", "arguments": {}})
        client.send(json.dumps(held))
        h.wait_for_hold()
        client.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": held["id"]}}))
        assert client.result("ping") == {}
        h.release_hold()
        until(lambda: expect(h.run("jobs", "--status", "completed", "--json"), 0).json()["jobs"])
        assert client.result("ping") == {}, "and no response of the cancelled request precedes it"
        assert client.close()[:2] == (0, "")


@test
def headers_must_match_the_message_and_the_protocol_version():
    with serving() as server:
        client = Http(server, MODERN)
        message = client.message("tools/call", {"name": "echo", "arguments": {}})
        sound = client.headers(message)
        for name, value in (("Mcp-Method", "tools/list"), ("Mcp-Method", None), ("Mcp-Name", "fails"), ("Mcp-Name", None),
                            ("MCP-Protocol-Version", LEGACY), ("MCP-Protocol-Version", None)):
            headers = {k: v for k, v in {**sound, name: value}.items() if v is not None}
            answer = client.request(message, headers)
            assert (client.status, answer["error"]["code"]) == (400, -32020), (name, value, answer)
        answer = client.request(Http(server, "2099-01-01").message("tools/list"),
                                {**sound, "MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/list"})
        assert (client.status, answer["error"]["code"]) == (400, -32022) and MODERN in answer["error"]["data"]["supported"]
        assert server.get("/api/jobs")[1]["jobs"] == []
        assert client.error("no/such")["code"] == -32601 and client.status == 404
        assert client.error("tasks/get", {"taskId": "a"})["code"] == -32021 and client.status == 400
        assert client.request(message)["result"] and client.status == 200
        legacy = Http(server, LEGACY)
        assert legacy.error("no/such")["code"] == -32601 and legacy.status == 200
        assert legacy.request({"jsonrpc": "2.0", "method": "notifications/initialized"}) is None and legacy.status == 202
        for method in ("GET", "DELETE"):
            assert server.request(method, "/mcp")[0] == 405
        page = {"Origin": "http://evil.example"}
        assert server.request("POST", "/mcp", message, page)[0] == 403
        assert server.request("POST", "/mcp", message, {"Host": "evil.example"})[0] in (400, 403, 421)
        assert server.request("POST", "/mcp", message, {"Content-Type": "text/plain"})[0] == 415


@test
def keys_and_roles_apply_to_mcp():
    with home() as h:
        keys = {role: expect(h.run("keys", "create", "--role", role, "--json"), 0).json()["key"]
                for role in ("viewer", "operator", "approver")}
        server = Server(h)
        bare = Http(server, MODERN)
        assert bare.request(bare.message("tools/list"))["code"] == "unauthorized" and bare.status == 401
        viewer, operator, approver = (Http(server, MODERN, key=keys[role]) for role in keys)
        assert viewer.result("tools/list")["tools"]
        assert viewer.error("tools/call", {"name": "echo"})["code"] == 403 and viewer.status == 403
        assert approver.error("tools/call", {"name": "echo"})["code"] == 403
        assert operator.call("echo", {"n": 1})["structuredContent"] == {"n": 1}
        expect(server.stop(), 0)


@test
def progress_is_streamed_before_the_result():
    with serving() as server:
        for revision in (LEGACY, MODERN):
            client = Http(server, revision)
            done = client.call("sleeps", meta={"progressToken": 7})
            assert done["structuredContent"] == {"woke": True}, done
            progress = [note["params"]["progress"] for note in client.notes if note["method"] == "notifications/progress"]
            assert progress and progress == sorted(set(progress)), client.notes
            for note in client.notes:
                SCHEMAS.check(revision, "ProgressNotificationParams" if revision >= LEGACY else "ProgressNotification",
                              note["params"])


@test
def a_repeated_call_with_the_same_key_creates_no_second_job():
    with serving() as server:
        once = {"aetheris/idempotency-key": "order-1"}
        first = Http(server, MODERN).call("echo", {"n": 1}, once)
        again = Http(server, LEGACY).call("echo", {"n": 1}, once)
        assert first["_meta"]["aetheris/job"] == again["_meta"]["aetheris/job"]
        other = Http(server, LEGACY).call("echo", {"n": 2}, once)
        assert other["isError"] and other["structuredContent"]["code"] == "idempotency_conflict", other
        assert len(server.get("/api/jobs")[1]["jobs"]) == 1


@test
def a_task_survives_a_restart_of_the_server():
    with home() as h:
        server = Server(h)
        client = Http(server, MODERN, TASKS)
        once = {"aetheris/idempotency-key": "k"}
        task = client.call("holds", meta=once)
        assert (task["resultType"], task["status"]) == ("task", "working"), task
        h.wait_for_hold()
        server.process.send_signal(signal.SIGKILL)
        h.end(server.process)
        server = Server(h)
        client = Http(server, MODERN, TASKS)
        found = client.result("tasks/get", {"taskId": task["taskId"]})
        assert found["status"] == "working" and found["createdAt"] == task["createdAt"], found
        assert client.call("holds", meta=once)["taskId"] == task["taskId"], "a repeated call returns the same task"
        h.release_hold()
        ended = until(lambda: (seen := client.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "completed" and seen)
        assert ended["result"]["content"][0]["text"] == "held", ended
        assert len(server.get("/api/jobs")[1]["jobs"]) == 1
        assert client.error("tasks/get", {"taskId": "nobody"})["code"] == -32602
        expect(server.stop(), 0)


@test
def questions_are_answered_through_the_client():
    with serving() as server:
        person = {"plan": [{"id": "w", "wait": {"type": "human", "key": "sure"}}, {"id": "e", "tool": "echo", "needs": ["w"]}],
                "output": "went on"}
        assert server.request("PUT", "/api/agents/person", person)[0] == 201
        client = Http(server, MODERN, {**ELICITATION, **TASKS})
        task = client.call("person")
        waiting = until(lambda: (seen := client.result("tasks/get", {"taskId": task["taskId"]}))["status"] == "input_required" and seen)
        (key, question), = waiting["inputRequests"].items()
        SCHEMAS.check(MODERN, "ElicitRequest", question)
        client.result("tasks/update", {"taskId": task["taskId"],
                                       "inputResponses": {key: {"action": "accept", "content": {"decision": "approve"}}}})
        until(lambda: client.result("tasks/get", {"taskId": task["taskId"]})["status"] == "completed")
        # Without tasks the result contains the question, and the call is repeated with the answer.
        client = Http(server, MODERN, ELICITATION)
        waiting = client.call("person")
        assert waiting["resultType"] == "input_required", waiting
        SCHEMAS.check(MODERN, "InputRequiredResult", waiting)
        (key, _), = waiting["inputRequests"].items()
        done = client.call("person", requestState=waiting["requestState"],
                           inputResponses={key: {"action": "accept", "content": {"decision": "approve"}}})
        assert done["structuredContent"] == "went on", done
        assert len(server.get("/api/jobs")[1]["jobs"]) == 2


@test
def a_client_without_elicitation_gets_the_approval_as_text():
    with home() as h:
        (h.path / "buys.yaml").write_text(
            "aetheris: 1\ntools:\n  buy: { native: echo, approval: \"${ .args.n > 1 }\" }\nagents:\n"
            "  buys: { plan: [ { id: b, tool: buy, args: { n: 5 } } ], output: \"${ .steps.b }\" }\n"
            "  told: { plan: [ { id: w, wait: { type: human, key: sum, answer: data } } ], output: \"${ .steps.w }\" }\n")
        server = Server(h, "buys.yaml")
        for revision in ("2024-11-05", "2025-06-18", LEGACY):
            client = Http(server, revision).initialize()
            waiting = client.call("buys")
            job, text = waiting["_meta"]["aetheris/job"], waiting["content"][0]["text"]
            approval = server.request("GET", f"/api/approvals?job={job}")[1]["approvals"][0]
            for word in ('the call of tool "buy"', '{"n":5}', approval["id"], "aetheris_answer"):
                assert word in text, (revision, word, text)
            if "structuredContent" in waiting:
                wait, = waiting["structuredContent"]["waits"]
                assert (wait["tool"], wait["arguments"], wait["approval_id"]) == ("buy", {"n": 5}, approval["id"]), wait
                assert wait["correlation_key"] == approval["correlation_key"], wait
            else:
                assert revision < "2025-06-18", waiting
            # The command in the text answers the question.
            result = json.loads(re.search(r"aetheris_answer (\{.*\})", text)[1].replace('"approve" or "reject"', '"approve"'))
            assert not client.call("aetheris_answer", result)["isError"]
            assert json.loads(client.call("aetheris_job", {"job_id": job, "wait_seconds": 30})["content"][0]["text"]) == {"n": 5}
            text = client.call("told")["content"][0]["text"]
            assert '"payload": …' in text and '"sum"' in text and '"decision"' not in text, text
        expect(server.stop(), 0)


def run_official_client(*words, env=None):
    done = subprocess.run([oracles.node(), ROOT / "tests/oracles/mcp_client.mjs", oracles.modules(), *words], capture_output=True,
                          text=True, timeout=4 * PATIENCE, stdin=subprocess.DEVNULL, env=env)
    assert done.returncode == 0 and done.stdout.count("ok ") == 8, done.stdout + done.stderr


@test
def the_official_client_works_over_http():
    with serving() as server:
        run_official_client("http", server.url + "/mcp")


@test
def the_official_client_works_over_stdio():
    with home() as h:
        run_official_client("stdio", h.program, "mcp", str(h.path / "agents.yaml"), "--store", f"sqlite:{h.path}/mcp.db", env=h.env)


def official_client_calls(server, *calls):
    """The responses that the official client of 2025 gets to these calls."""
    words = [oracles.node(), ROOT / "tests/oracles/mcp_calls.mjs", oracles.modules(), server.url + "/mcp"]
    steps = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    done = subprocess.run(words, input=steps, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_on_the_page(text):
    """Replaces what differs between runs by the placeholders of the page."""
    job = re.match(r"The job (\S+) ", text)[1]
    text = re.sub(r"JOB\.[0-9a-f]{16}", "QUESTION", text.replace(job, "JOB"))
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text).replace(r" \u001b[31mred", "")


@test
def a_2025_client_answers_questions_as_documented():
    with home() as h:
        (h.path / "tools.json").write_text(json.dumps({"book": {"description": "Books seats", "inputSchema": {"type": "object"}}}))
        (h.path / "asks.yaml").write_text(json.dumps({
            "aetheris": 1,
            "tools": {"pay": {"native": "echo", "effect": "idempotent", "approval": "required"},
                      "say": {"native": "echo", "effect": "read"}, "s": {"mcp": {"command": command(h, "modern")}}},
            "agents": {"refund": {"plan": [{"id": "pay", "tool": "pay", "args": {"amount": 12}}], "output": "${ .steps.pay }"},
                       "seats": {"plan": [{"id": "book", "tool": "s.book"}], "output": "${ .steps.book }"},
                       "poor": {"budget": {"tool_calls": 0}, "plan": [{"id": "say", "tool": "say"}]}}}))
        server = Server(h, "asks.yaml")
        page = (ROOT / "docs/mcp-server.md").read_text()
        yes, job = {"job_id": "JOB", "decision": "approve"}, {"job_id": "JOB", "wait_seconds": 30}
        waiting, done, again, other, shown = official_client_calls(server, ("refund", {}), ("aetheris_answer", yes), ("aetheris_answer", yes),
                                                ("aetheris_answer", {**yes, "decision": "reject"}), ("aetheris_job", job))
        assert "    " + as_on_the_page(waiting["content"][0]["text"]).replace("\n", "\n    ") in page, waiting
        wait, = waiting["structuredContent"]["waits"]
        assert (wait["answer"], wait["tool"], wait["arguments"], wait["question"]) == ("decision", "pay", {"amount": 12}, None), wait
        assert not done["isError"] and not again["isError"] and again["structuredContent"]["duplicate"], again
        assert other["isError"] and other["structuredContent"]["outcome"] == "approved", other
        assert shown["structuredContent"] == {"amount": 12}, shown

        form = {"job_id": "JOB", "payload": {"n": 3}}
        waiting, wrong, done, again, signs, signed, shown = official_client_calls(
            server, ("seats", {}), ("aetheris_answer", {"job_id": "JOB", "payload": {"n": 0}}), ("aetheris_answer", form),
            ("aetheris_answer", form), ("aetheris_job", job), ("aetheris_answer", yes), ("aetheris_job", job))
        assert "    " + as_on_the_page(waiting["content"][0]["text"]).replace("\n", "\n    ") in page, waiting
        wait, = waiting["structuredContent"]["waits"]
        assert wait["answer"] == "data" and wait["question"]["schema"]["required"] == ["n"], wait
        assert wrong["isError"] and "/n" in wrong["content"][0]["text"], wrong
        assert not done["isError"] and (again["isError"] or again["structuredContent"]["duplicate"]), again
        assert "https://sign.example/42" in signs["content"][0]["text"], signs
        assert not signed["isError"] and shown["structuredContent"] == {"result": "booked 3"}, shown

        poor, = official_client_calls(server, ("poor", {}))
        result = poor["content"][0]["text"]
        assert "the next call exceeds tool_calls; aetheris budget " in result and "--tool-calls 1" in result, result
        assert poor["structuredContent"]["budget"]["shortfall"][0]["limit"] == "tool_calls", poor
        expect(server.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_tests("mcp_server", TESTS, " ".join(sys.argv[1:])))
