#!/usr/bin/env python3
"""What `aetheris check` reports before anything runs: conditions on arguments that no tool accepts, names that do not exist,
missing secrets; and how `run` and `serve` handle them.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  checks.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.server
import json
import os
import sys
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import expect, home, run_tests  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []
PAYS = """\
aetheris: 1
tools:
  charge:
    command: ["sh", "-c", "echo x >> charged.txt"]
    cwd: .
    effect: idempotent
    ARGS_SCHEMA
policies:
  - { tools: [charge], when: "${ WHEN }", action: ACTION }
agents:
  sale: { plan: [ { id: pay, tool: charge, args: { amount: "${ .input.amount }" } } ] }
"""
CLOSED = "args_schema: { type: object, additionalProperties: false, properties: { amount: { type: number } } }"
TALKS = """\
aetheris: 1
tools:
  charge: { command: ["sh", "-c", "echo x >> charged.txt"], cwd: ., effect: idempotent }
policies:
  - { tools: [charge], when: "${ WHEN }", action: ACTION }
models:
  main: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: m, stream: false }
agents:
  sale: { loop: { model: main, tools: [charge], prompt: "Pay." } }
"""
KEYED = """\
aetheris: 1
tools:
  look: { native: echo, effect: read }
  wire: { command: ["true"], env: { TOKEN: "secret:WIRE_TOKEN" }, effect: read }
models:
  main: { provider: openai, base_url: "http://127.0.0.1:9", api_key: "secret:MODEL_KEY", model: m }
agents:
  plain: { plan: [ { id: a, tool: look } ] }
  wires: { plan: [ { id: a, tool: wire } ] }
  asks: { loop: { model: main, tools: [look, wire] } }
"""


def test(function):
    TESTS.append(function)
    return function


def write_agents(h, when, action="deny", schema=""):
    text = PAYS.replace("WHEN", when).replace("ACTION", action).replace("ARGS_SCHEMA", schema)
    (h.path / "agents.yaml").write_text(text)


@test
def a_misspelt_argument_in_a_condition_is_reported_with_position_and_suggestion():
    with home() as h:
        write_agents(h, ".args.amuont > 500", schema=CLOSED)
        result = expect(h.run("check", "agents.yaml"), 2)
        assert "agents.yaml:9:39: policies[0].when: .args.amuont does not exist" in result.out, result
        assert "did you mean amount?" in result.out, result
        expect(h.run("run", "agents.yaml", "--input", '{"amount": 900}'), 2)
        write_agents(h, ".args.amount > 500", schema=CLOSED)
        expect(h.run("check", "agents.yaml"), 0)
        expect(h.run("run", "agents.yaml", "--input", '{"amount": 900}'), 1)
        assert not (h.path / "charged.txt").exists()


@test
def a_condition_on_a_missing_argument_allows_no_call():
    for action in ("deny", "require_approval", "allow"):
        with home() as h:
            write_agents(h, ".args.amuont > 500", action)
            expect(h.run("check", "agents.yaml"), 0)
            result = expect(h.run("run", "agents.yaml", "--job-id", "j", "--input", '{"amount": 900}'), 1)
            assert "expression_failed" in result.err and "`amuont` is null or missing" in result.err, result
            assert not (h.path / "charged.txt").exists()
            expect(h.run("verify", "j"), 0)
            write_agents(h, "(.args.amuont // 0) > 500", "deny")
            expect(h.run("run", "agents.yaml", "--job-id", "said", "--input", '{"amount": 900}'), 0)
            assert (h.path / "charged.txt").exists(), "the condition has a default for a missing argument"


@contextlib.contextmanager
def model_that_calls(arguments):
    """A model that calls `charge` once with these bytes as arguments, then ends. Yields its URL and the results that it received."""
    received = []

    class Model(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            last = request["messages"][-1]
            message = {"role": "assistant", "content": "Done."}
            if last["role"] == "tool":
                received.append(last["content"])
            else:
                call = {"name": "charge", "arguments": arguments}
                message = {"role": "assistant", "content": None,
                           "tool_calls": [{"id": "c1", "type": "function", "function": call}]}
            reason = "tool_calls" if "tool_calls" in message else "stop"
            body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                               "choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()


def charge_of_a_model(arguments, when, action="deny"):
    """Whether `charge` was called, and the result that the model received."""
    with home() as h, model_that_calls(arguments) as (url, received):
        (h.path / "agents.yaml").write_text(TALKS.replace("WHEN", when).replace("ACTION", action))
        expect(h.run("check", "agents.yaml", env={"MODELS": url, "MODEL_KEY": "any-long-key"}), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "j", env={"MODELS": url, "MODEL_KEY": "any-long-key"}), 0)
        expect(h.run("verify", "j"), 0)
        assert len(received) == 1, received
        return (h.path / "charged.txt").exists(), received[0]


@test
def a_model_argument_of_another_type_than_the_condition_allows_no_call():
    for action in ("deny", "allow", "require_approval"):
        for when, sent in ((".args.left < 10", '{"left": "5"}'), (".args.amount > 1000", '{"amount": true}'),
                           (".args.left == 5", '{"left": "5"}'), (".args.left < 10", '{"left": [5]}')):
            paid, received = charge_of_a_model(sent, when, action)
            assert not paid and "expression_failed" in received and "; convert one of them" in received, (action, when, sent, received)
    assert charge_of_a_model('{"left": 50}', ".args.left < 10")[0], "the types match"
    paid, received = charge_of_a_model('{"left": 5}', ".args.left < 10")
    assert not paid and "denied" in received, received
    assert charge_of_a_model('{"to": ["x"]}', '.args.to == \\"x\\"')[0], "a list never equals a text"


@test
def a_model_receives_the_reason_why_its_arguments_are_invalid_json():
    for sent, why in (('{"amount": 1, "amount": 2}', 'duplicate key "amount" at byte 0'),
                      ('{"amount": 1e999}', "a number beyond the largest double at byte 11"),
                      ("[5]", "the arguments must be a JSON object")):
        paid, received = charge_of_a_model(sent, ".args.amount == null")
        error = json.loads(received)["error"]
        assert not paid and error["code"] == "input_invalid" and error["message"].endswith(why), received


@test
def a_misspelt_job_member_in_a_condition_is_reported_with_position_and_suggestion():
    misspelt = '.job.label.tier == \\"untrusted\\"'
    fault = ".job has no member `label`; available: .agent, .created_at, .id, .labels (did you mean .job.labels?)"
    with home() as h:
        write_agents(h, misspelt)
        result = expect(h.run("check", "agents.yaml"), 2)
        assert "agents.yaml:9:34: policies[0].when: " + fault in result.out, result
        expect(h.run("run", "agents.yaml", "--input", '{"amount": 900}'), 2)
        write_agents(h, misspelt.replace("label.", "labels."))
        expect(h.run("check", "agents.yaml"), 0)
        (h.path / "house.yaml").write_text(
            "aetheris: 1\npolicies: [ { tools: [charge], when: \"${ %s }\", action: deny } ]\n" % misspelt)
        result = expect(h.run("check", "agents.yaml", "--policies", "house.yaml"), 2)
        assert "house.yaml:2:42: policies[0].when: " + fault in result.out, result
        expect(h.run("run", "agents.yaml", "--policies", "house.yaml", "--input", '{"amount": 900}'), 2)
        assert not (h.path / "charged.txt").exists()


@test
def each_unknown_name_in_an_operator_policy_causes_a_warning():
    with home() as h:
        write_agents(h, ".args.amount > 500")
        (h.path / "house.yaml").write_text(
            "aetheris: 1\npolicies: [ { tools: [charge, chrage], agents: [sale, slae], action: deny } ]\n")
        result = expect(h.run("check", "agents.yaml", "--policies", "house.yaml"), 0)
        assert "house.yaml: policies[0].tools[1]: no file has a tool named `chrage`" in result.err, result
        assert "house.yaml: policies[0].agents[1]: no file has an agent named `slae`" in result.err, result
        assert "tools[0]" not in result.err and "agents[0]" not in result.err, result
        expect(h.run("run", "agents.yaml", "--policies", "house.yaml", "--input", '{"amount": 9}'), 1)
        assert not (h.path / "charged.txt").exists()


@test
def a_missing_secret_is_reported_before_a_job_is_created():
    with home() as h:
        (h.path / "agents.yaml").write_text(KEYED)
        result = expect(h.run("check", "agents.yaml"), 0)
        assert "models.main: the secret MODEL_KEY is missing" in result.err, result
        assert "tools.wire: the secret WIRE_TOKEN is missing" in result.err, result
        assert len(expect(h.run("check", "agents.yaml", "--json"), 0).json()["notes"]) == 2
        for agent, key in (("wires", "WIRE_TOKEN"), ("asks", "WIRE_TOKEN")):
            result = expect(h.run("run", "agents.yaml", agent, "--job-id", agent), 1)
            assert f"the secret {key} is missing" in result.err and "secret_missing" in result.err, result
        expect(h.run("run", "agents.yaml", "plain", "--job-id", "plain"), 0)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["plain"], "other jobs were created"
        env = {"WIRE_TOKEN": "long-enough"}
        expect(h.run("run", "agents.yaml", "wires", "--job-id", "wires", env=env), 0)
        expect(h.run("run", "agents.yaml", "wires", "--job-id", "wires"), 0)  # it has ended: no call is made


@test
def a_server_reports_missing_secrets_at_start():
    with home() as h:
        (h.path / "agents.yaml").write_text(KEYED)
        result = Server(h, env={"WIRE_TOKEN": "long-enough"}).stop()
        assert "models.main cannot be called: the secret MODEL_KEY is missing" in result.out + result.err, result
        assert "WIRE_TOKEN" not in result.out + result.err, result


if __name__ == "__main__":
    sys.exit(run_tests("checks", TESTS, " ".join(sys.argv[1:])))
