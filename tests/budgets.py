#!/usr/bin/env python3
"""Budgets, on the real program: a job parks before the call that it has no room for, and goes on when somebody raises it.

Prints `ok NAME` or `not ok NAME` per test. AETHERIS_BIN names the program, AETHERIS_ROOT the tree.
  budgets.py [WORDS]   only tests whose name contains WORDS
"""
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli import expect, home, run_tests, until  # noqa: E402
from keys import bearer, make  # noqa: E402
from serve import Server  # noqa: E402

TESTS = []
FILE = """\
aetheris: 1
tools:
  say: { native: echo, effect: read }
  write: { command: ["sh", "-c", "echo x >> said.txt; echo '{}'"], output: json, effect: idempotent }
models:
  priced: { provider: openai, base_url: "http://127.0.0.1:9", model: m, price: { input: 1, output: "2.5" } }
  free: { provider: openai, base_url: "http://127.0.0.1:9", model: m }
agents:
  three:
    budget: { tool_calls: 2, wall: 1h, soft: 50 }
    plan:
      - { id: a, tool: write }
      - { id: b, tool: write, needs: [a] }
      - { id: c, tool: write, needs: [b] }
    output: done
  open:
    plan: [{ id: a, tool: write }]
  unpriced:
    plan: [{ id: a, llm: { model: free, prompt: Hello } }]
  asks:
    budget: { cost: "0.000001", tokens: 100000 }
    plan: [{ id: a, llm: { model: priced, prompt: Hello } }]
"""
BAD = """\
aetheris: 1
models:
  free: { provider: openai, base_url: "http://127.0.0.1:9", model: m }
agents:
  a: { budget: { cost: "2.50" }, plan: [{ id: x, llm: { model: free, prompt: Hello } }] }
  b: { budget: { soft: 80 }, plan: [{ id: x, llm: { model: free, prompt: Hello } }] }
  c: { budget: { tokens: -1, wall: soon, soft: 101, cost: "1,5", money: 1 }, plan: [{ id: x, llm: { model: free, prompt: Hello } }] }
"""


def test(function):
    TESTS.append(function)
    return function


def said(h):
    file = h.path / "said.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def budget_home(h):
    (h.path / "budget.yaml").write_text(FILE)
    return h


@test
def a_job_parks_before_the_call_that_does_not_fit_and_goes_on_when_it_is_raised():
    with home() as h:
        budget_home(h)
        ran = expect(h.run("run", "budget.yaml", "three", "--job-id", "j"), 4)
        assert "parked: budget_exceeded, until budget" in ran.err, ran
        assert "aetheris budget j --tool-calls 4" in ran.err, ran
        assert said(h) == 2
        job = expect(h.run("job", "j", "--json"), 0).json()
        assert job["parked"]["until"] == "budget" and job["parked"]["command"].startswith("aetheris budget j"), job["parked"]
        assert job["budget"]["limits"]["tool_calls"] == 2 and job["budget"]["spent"]["tool_calls"] == 2, job["budget"]
        assert job["budget"]["exceeded"] == {"limit": "tool_calls", "asked": 1}, job["budget"]
        stuck = expect(h.run("jobs", "--stuck", "--json"), 0).json()["jobs"]
        assert [(one["id"], one["stuck"]["until"]) for one in stuck] == [("j", "budget")], stuck
        # Nobody else's act ends it, and it starts nothing meanwhile.
        assert "not_paused" in expect(h.run("resume", "j"), 5).err
        expect(h.run("run", "budget.yaml", "three", "--job-id", "j"), 4)
        assert said(h) == 2
        # What would not do is refused.
        assert "raised" in expect(h.run("budget", "j", "--tool-calls", "1"), 2).err
        assert "not limited" in expect(h.run("budget", "j", "--tokens", "5"), 2).err
        expect(h.run("budget", "j"), 2)
        assert "it may use as much already" in expect(h.run("budget", "j", "--tool-calls", "2"), 0).out
        assert expect(h.run("budget", "j", "--tool-calls", "3", "--note", "go on"), 0).out == "raised\n"
        assert expect(h.run("run", "budget.yaml", "three", "--job-id", "j", "--json"), 0).json()["result"] == "done"
        assert said(h) == 3
        expect(h.run("verify", "j"), 0)
        assert "job_terminal" in expect(h.run("budget", "j", "--tool-calls", "9"), 5).err
        decided = [e["payload"] for e in expect(h.run("events", "j", "--type", "decision_recorded", "--json"), 0).json()["events"]]
        assert [(p["kind"], p["state"]) for p in decided] == [("budget", "exceeded"), ("budget", "raised")], decided
        assert decided[1]["payload"] == {"tool_calls": 3} and decided[1]["reason"] == "go on" and decided[1]["by"], decided


@test
def a_request_lowers_its_agents_budget_and_never_raises_it():
    with home() as h:
        budget_home(h)
        expect(h.run("run", "budget.yaml", "three", "--job-id", "low", "--budget", "tool_calls=0"), 4)
        assert said(h) == 0
        for wrong in ("tool_calls=3", "wall=2h", "tool_calls=x", "nonsense=1", "tokens", "soft=5"):
            expect(h.run("run", "budget.yaml", "three", "--job-id", "w", "--budget", wrong), 2)
        assert "price" in expect(h.run("run", "budget.yaml", "unpriced", "--job-id", "o", "--budget", "cost=1"), 2).err
        expect(h.run("run", "budget.yaml", "open", "--job-id", "p", "--budget", "tool_calls=0", "--budget", "wall=1m"), 4)
        expect(h.run("cancel", "low"), 0)
        assert expect(h.run("job", "low", "--json"), 0).json()["status"] == "cancelled"


@test
def a_model_that_costs_more_than_is_left_is_not_asked():
    with home() as h:
        budget_home(h)
        expect(h.run("run", "budget.yaml", "asks", "--job-id", "m"), 4)
        job = expect(h.run("job", "m", "--json"), 0).json()
        assert job["budget"]["exceeded"]["limit"] == "cost" and job["usage"]["model_calls"] == 0, job
        assert "--cost 0." in job["parked"]["command"], job["parked"]


@test
def a_file_that_cannot_be_kept_to_is_refused():
    with home() as h:
        (h.path / "bad.yaml").write_text(BAD)
        faults = expect(h.run("check", "bad.yaml", "--json"), 2).json()["faults"]
        said = [f"{fault['path']}: {fault['message']}" for fault in faults]
        for path in ("agents.a.budget.cost", "agents.b.budget", "agents.c.budget.tokens", "agents.c.budget.wall",
                     "agents.c.budget.soft", "agents.c.budget.cost", "agents.c.budget.money"):
            assert any(line.startswith(path + ":") for line in said), (path, said)


@test
def only_who_answers_for_people_raises_it_and_a_server_goes_on_at_once():
    with home() as h:
        budget_home(h)
        operator, approver = (bearer(make(h, role)[0]) for role in ("operator", "approver"))
        s = Server(h, "budget.yaml")
        made = s.ask("POST", "/api/jobs?wait=30s", {"agent": "three", "id": "s"}, operator)
        assert made[1]["status"] == "parked", made
        refused = s.ask("POST", "/api/jobs/s/budget", {"tool_calls": 5}, operator)
        assert (refused[0], refused[1]["code"]) == (403, "forbidden"), refused
        raised = s.ask("POST", "/api/jobs/s/budget", {"tool_calls": 5}, approver)
        assert raised[0] in (200, 202), raised
        until(lambda: s.ask("GET", "/api/jobs/s", None, operator)[1]["status"] == "completed")
        metrics = s.ask("GET", "/metrics", None, operator)[1]
        assert 'aetheris_run_pause_total{until="budget"} 1' in metrics, metrics


if __name__ == "__main__":
    sys.exit(run_tests("budgets", TESTS, " ".join(sys.argv[1:])))
