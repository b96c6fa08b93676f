#!/usr/bin/env python3
"""What `aetheris check` finds before anything runs, on the real program: conditions over arguments that no tool takes, grants that
nothing has, keys that are not there; and what `run` and `serve` make of them.

Prints `ok NAME` or `not ok NAME` per test. AETHERIS_BIN names the program, AETHERIS_ROOT the tree.
  checks.py [WORDS]   only tests whose name contains WORDS
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import expect, home, run_tests  # noqa: E402
from serve import Server  # noqa: E402

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


def pays(h, when, action="deny", schema=""):
    text = PAYS.replace("WHEN", when).replace("ACTION", action).replace("ARGS_SCHEMA", schema)
    (h.path / "agents.yaml").write_text(text)


@test
def a_misspelt_argument_of_a_condition_is_told_with_its_place_and_the_near_name():
    with home() as h:
        pays(h, ".args.amuont > 500", schema=CLOSED)
        said = expect(h.run("check", "agents.yaml"), 2)
        assert "agents.yaml:9:39: policies[0].when: there is no .args.amuont" in said.out, said
        assert "did you mean amount?" in said.out, said
        expect(h.run("run", "agents.yaml", "--input", '{"amount": 900}'), 2)
        pays(h, ".args.amount > 500", schema=CLOSED)
        expect(h.run("check", "agents.yaml"), 0)
        expect(h.run("run", "agents.yaml", "--input", '{"amount": 900}'), 1)
        assert not (h.path / "charged.txt").exists()


@test
def a_condition_over_an_argument_that_is_not_there_lets_nothing_through():
    for action in ("deny", "require_approval", "allow"):
        with home() as h:
            pays(h, ".args.amuont > 500", action)
            expect(h.run("check", "agents.yaml"), 0)
            said = expect(h.run("run", "agents.yaml", "--job-id", "j", "--input", '{"amount": 900}'), 1)
            assert "expression_failed" in said.err and "`amuont` is null or not there" in said.err, said
            assert not (h.path / "charged.txt").exists()
            expect(h.run("verify", "j"), 0)
            pays(h, "(.args.amuont // 0) > 500", "deny")
            expect(h.run("run", "agents.yaml", "--job-id", "said", "--input", '{"amount": 900}'), 0)
            assert (h.path / "charged.txt").exists(), "what else to take was said"


@test
def a_key_that_is_not_there_is_told_before_a_job_is_made():
    with home() as h:
        (h.path / "agents.yaml").write_text(KEYED)
        said = expect(h.run("check", "agents.yaml"), 0)
        assert "models.main: the secret MODEL_KEY is missing" in said.err, said
        assert "tools.wire: the secret WIRE_TOKEN is missing" in said.err, said
        assert len(expect(h.run("check", "agents.yaml", "--json"), 0).json()["notes"]) == 2
        for agent, key in (("wires", "WIRE_TOKEN"), ("asks", "WIRE_TOKEN")):
            said = expect(h.run("run", "agents.yaml", agent, "--job-id", agent), 1)
            assert f"the secret {key} is missing" in said.err and "secret_missing" in said.err, said
        expect(h.run("run", "agents.yaml", "plain", "--job-id", "plain"), 0)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["plain"], "others were made"
        env = {"WIRE_TOKEN": "long-enough"}
        expect(h.run("run", "agents.yaml", "wires", "--job-id", "wires", env=env), 0)
        expect(h.run("run", "agents.yaml", "wires", "--job-id", "wires"), 0)  # it has ended: nothing is called


@test
def a_server_says_which_keys_are_not_there():
    with home() as h:
        (h.path / "agents.yaml").write_text(KEYED)
        said = Server(h, env={"WIRE_TOKEN": "long-enough"}).stop()
        assert "models.main cannot be called: the secret MODEL_KEY is missing" in said.out + said.err, said
        assert "WIRE_TOKEN" not in said.out + said.err, said


if __name__ == "__main__":
    sys.exit(run_tests("checks", TESTS, " ".join(sys.argv[1:])))
