#!/usr/bin/env python3
"""Budgets: a job parks before the call that exceeds its budget, and resumes when an approver raises it; also when the process is
killed at any point of either. The models are those of examples/model-server.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  budgets.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.api_keys import bearer, create_key  # noqa: E402
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

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
LED = """\
aetheris: 1
tools:
  look: { native: echo, effect: read }
models:
  main: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:KEY", model: instant, price: { input: 1, output: "2.5" } }
agents:
  open: { loop: { model: main, tools: [look], max_tokens: 50 } }
  tokens: { budget: { tokens: 300, soft: 50 }, loop: { model: main, tools: [look], max_tokens: 50 } }
  cost: { budget: { cost: "0.0004" }, loop: { model: main, tools: [look], max_tokens: 50 } }
  model_calls: { budget: { model_calls: 2, soft: 50 }, loop: { model: main, tools: [look], max_tokens: 50 } }
  tool_calls: { budget: { tool_calls: 1 }, loop: { model: main, tools: [look], max_tokens: 50 } }
  wall:
    budget: { wall: 500ms }
    plan:
      - { id: sleep, wait: { type: timer, for: 1s } }
      - { id: a, tool: look, needs: [sleep] }
"""
TURNS = json.dumps({"message": "Take 4 turns"})
RAISES = {"tokens": "100000", "cost": "5", "model_calls": "50", "tool_calls": "50", "wall": "1h"}


def test(function):
    TESTS.append(function)
    return function


class Models:
    """The model server, with its journal in the home; `h.env` has its URL."""

    def __init__(self, h):
        (h.path / "led.yaml").write_text(LED)
        self.journal = h.path / "requests.jsonl"
        folder = ROOT / "examples/model-server"
        self.process = subprocess.Popen(
            ["node", folder / "server.mjs", "--journal", self.journal, "--scenario", folder / "scenarios/instant.json"],
            stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        h.env["KEY"] = "sk-of-budgets"
        h.env["MODELS"] = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def requests(self):
        return len(self.journal.read_text().splitlines()) if self.journal.exists() else 0


def writes(h):
    file = h.path / "said.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def budget_home(h):
    (h.path / "budget.yaml").write_text(FILE)
    return h


@test
def a_job_parks_before_the_call_that_exceeds_its_budget_and_resumes_when_raised():
    with home() as h:
        budget_home(h)
        ran = expect(h.run("run", "budget.yaml", "three", "--job-id", "j"), 4)
        assert "parked: the budget is exhausted [budget_exceeded]; continues after aetheris budget" in ran.err, ran
        assert "aetheris budget j --tool-calls 4" in ran.err, ran
        assert writes(h) == 2
        job = expect(h.run("job", "j", "--json"), 0).json()
        assert job["parked"]["until"] == "budget" and job["parked"]["command"].startswith("aetheris budget j"), job["parked"]
        assert job["budget"]["limits"]["tool_calls"] == 2 and job["budget"]["spent"]["tool_calls"] == 2, job["budget"]
        assert job["budget"]["exceeded"] == {"limit": "tool_calls", "requested": 1, "asked": 1}, job["budget"]
        assert re.search(r"budget +tool_calls 2 of 2 · until 20", expect(h.run("job", "j"), 0).out)
        stuck = expect(h.run("jobs", "--stalled", "--json"), 0).json()["jobs"]
        assert [(one["id"], one["stalled"]["until"]) for one in stuck] == [("j", "budget")], stuck
        # No other request ends the park, and no call starts meanwhile.
        assert "not_paused" in expect(h.run("resume", "j"), 5).err
        expect(h.run("run", "budget.yaml", "three", "--job-id", "j"), 4)
        assert writes(h) == 2
        # An insufficient raise is rejected.
        assert "raised" in expect(h.run("budget", "j", "--tool-calls", "1"), 2).err
        assert "not limited" in expect(h.run("budget", "j", "--tokens", "5"), 2).err
        expect(h.run("budget", "j"), 2)
        assert "budget unchanged" in expect(h.run("budget", "j", "--tool-calls", "2"), 0).out
        assert expect(h.run("budget", "j", "--tool-calls", "3", "--note", "go on"), 0).out == "raised\n"
        assert expect(h.run("run", "budget.yaml", "three", "--job-id", "j", "--json"), 0).json()["result"] == "done"
        assert writes(h) == 3
        expect(h.run("verify", "j"), 0)
        assert "job_terminal" in expect(h.run("budget", "j", "--tool-calls", "9"), 5).err
        decided = [e["payload"] for e in expect(h.run("events", "j", "--type", "decision_recorded", "--json"), 0).json()["events"]]
        assert [(p["kind"], p["state"]) for p in decided] == [("budget", "exceeded"), ("budget", "raised")], decided
        assert decided[1]["payload"] == {"tool_calls": 3} and decided[1]["reason"] == "go on" and decided[1]["by"], decided


@test
def a_request_can_lower_the_budget_of_its_agent_and_not_raise_it():
    with home() as h:
        budget_home(h)
        expect(h.run("run", "budget.yaml", "three", "--job-id", "low", "--budget", "tool_calls=0"), 4)
        assert writes(h) == 0
        for wrong in ("tool_calls=3", "wall=2h", "tool_calls=x", "nonsense=1", "tokens", "soft=5"):
            expect(h.run("run", "budget.yaml", "three", "--job-id", "w", "--budget", wrong), 2)
        assert "price" in expect(h.run("run", "budget.yaml", "unpriced", "--job-id", "o", "--budget", "cost=1"), 2).err
        expect(h.run("run", "budget.yaml", "open", "--job-id", "p", "--budget", "tool_calls=0", "--budget", "wall=1m"), 4)
        expect(h.run("cancel", "low"), 0)
        assert expect(h.run("job", "low", "--json"), 0).json()["status"] == "cancelled"


@test
def a_model_call_that_costs_more_than_the_remaining_budget_is_not_made():
    with home() as h:
        budget_home(h)
        expect(h.run("run", "budget.yaml", "asks", "--job-id", "m"), 4)
        job = expect(h.run("job", "m", "--json"), 0).json()
        assert job["budget"]["exceeded"]["limit"] == "cost" and job["usage"]["model_calls"] == 0, job
        assert "--cost 0." in job["parked"]["command"], job["parked"]


@test
def an_invalid_budget_in_a_file_is_rejected():
    with home() as h:
        (h.path / "bad.yaml").write_text(BAD)
        faults = expect(h.run("check", "bad.yaml", "--json"), 2).json()["faults"]
        result = [f"{fault['path']}: {fault['message']}" for fault in faults]
        for path in ("agents.a.budget.cost", "agents.b.budget", "agents.c.budget.tokens", "agents.c.budget.wall",
                     "agents.c.budget.soft", "agents.c.budget.cost", "agents.c.budget.money"):
            assert any(line.startswith(path + ":") for line in result), (path, result)


@test
def only_an_approver_can_raise_a_budget_and_the_job_resumes_immediately():
    with home() as h:
        budget_home(h)
        operator, approver = (bearer(create_key(h, role)[0]) for role in ("operator", "approver"))
        s = Server(h, "budget.yaml")
        made = s.request("POST", "/api/jobs?wait=30s", {"agent": "three", "id": "s"}, operator)
        assert made[1]["status"] == "parked", made
        refused = s.request("POST", "/api/jobs/s/budget", {"tool_calls": 5}, operator)
        assert (refused[0], refused[1]["code"]) == (403, "forbidden"), refused
        raised = s.request("POST", "/api/jobs/s/budget", {"tool_calls": 5}, approver)
        assert raised[0] in (200, 202), raised
        until(lambda: s.request("GET", "/api/jobs/s", None, operator)[1]["status"] == "completed")
        metrics = s.request("GET", "/metrics", None, operator)[1]
        assert 'aetheris_run_pause_total{until="budget"} 1' in metrics, metrics


@test
def verbose_output_lists_each_turn_and_call_of_a_loop():
    with home() as h, Models(h):
        result = expect(h.run("run", "led.yaml", "open", "--job-id", "o", "--input", TURNS, "-v"), 0).err
        lines = [line.split(None, 2)[2].rsplit(",", 1)[0] for line in result.splitlines() if line.startswith("  ✓ loop")]
        assert lines[:6] == ["turn 1: model main", 'turn 1: look {"n":1}', "turn 2: model main", 'turn 2: look {"n":2}',
                             "turn 3: model main", 'turn 3: look {"n":3}'], result
        assert "an item" not in result, result


@test
def each_limit_parks_the_job_until_that_limit_is_raised():
    with home() as h, Models(h):
        whole = expect(h.run("run", "led.yaml", "open", "--job-id", "open", "--input", TURNS), 0).json()
        for limit, most in RAISES.items():
            expect(h.run("run", "led.yaml", limit, "--job-id", limit, "--input", TURNS), 4)
            job = expect(h.run("job", limit, "--json"), 0).json()
            assert (job["status"], job["parked"]["until"]) == ("parked", "budget"), job
            assert job["budget"]["exceeded"]["limit"] == limit, job["budget"]
            option = "--" + limit.replace("_", "-")
            assert option + " " in job["parked"]["command"], job["parked"]
            expect(h.run("budget", limit, option, most), 0)
            done = expect(h.run("run", "led.yaml", limit, "--job-id", limit, "--input", TURNS), 0)
            assert limit == "wall" or done.json() == whole, (limit, done)
            expect(h.run("verify", limit), 0)


@test
def the_command_shown_for_a_parked_job_resumes_it():
    with home() as h, Models(h):
        expect(h.run("run", "led.yaml", "tokens", "--job-id", "t", "--input", TURNS), 4)
        for _ in range(20):
            job = expect(h.run("job", "t", "--json"), 0).json()
            if job["status"] == "completed":
                break
            before = job["budget"]["spent"]["model_calls"]
            expect(h.run(*job["parked"]["command"].split()[1:]), 0)
            h.run("run", "led.yaml", "tokens", "--job-id", "t", "--input", TURNS)
            assert expect(h.run("job", "t", "--json"), 0).json()["budget"]["spent"]["model_calls"] > before
        assert job["status"] == "completed", job
        expect(h.run("verify", "t"), 0)


@test
def all_exceeded_limits_are_reported_together_and_raised_by_one_command():
    with home() as h, Models(h):
        (h.path / "led.yaml").write_text(LED + """\
  both: { budget: { tokens: 60, cost: "0.000001", model_calls: 0 }, loop: { model: main, tools: [look], max_tokens: 50 } }
""")
        ran = expect(h.run("run", "led.yaml", "both", "--job-id", "b", "--input", TURNS), 4)
        job = expect(h.run("job", "b", "--json"), 0).json()
        lacking = job["budget"]["shortfall"]
        assert job["budget"]["lacking"] == lacking, job["budget"]
        assert [one["limit"] for one in lacking] == ["tokens", "cost", "model_calls"], lacking
        assert all(one["used"] == 0 and one["requested"] > one["most"] for one in lacking), lacking
        text = expect(h.run("job", "b"), 0).out
        for seen in (ran.err, text):
            assert f"tokens: 0 of 60 used, and the next call needs {lacking[0]['requested']}" in seen, seen
            assert "cost: 0 of 0.000001 used" in seen and "model_calls: 0 of 0 used, and the next call needs 1" in seen, seen
            assert job["parked"]["command"] + "\n" in seen, seen
        # Raising one limit is not enough: the error lists all of them and the command.
        refused = expect(h.run("budget", "b", "--cost", "5"), 2).err
        assert "exceeds tokens, cost, model_calls: `" + job["parked"]["command"] + "` allows it" in refused, refused
        expect(h.run("run", "led.yaml", "both", "--job-id", "p", "--input", TURNS), 4)
        part = expect(h.run("budget", "p", "--tokens", "5000"), 0)
        assert part.out == "raised\n" and "cost: 0 of 0.000001 used" in part.err and "tokens:" not in part.err, part
        rest = re.search(r"answer: (aetheris budget p --cost \S+ --model-calls \S+)\n", part.err)[1]
        expect(h.run(*rest.split()[1:]), 0)
        h.run("run", "led.yaml", "both", "--job-id", "p", "--input", TURNS)
        assert expect(h.run("job", "p", "--json"), 0).json()["budget"]["spent"]["model_calls"] >= 1
        expect(h.run(*job["parked"]["command"].split()[1:]), 0)
        h.run("run", "led.yaml", "both", "--job-id", "b", "--input", TURNS)
        assert expect(h.run("job", "b", "--json"), 0).json()["budget"]["spent"]["model_calls"] >= 1
        expect(h.run("run", "led.yaml", "wall", "--job-id", "w", "--input", TURNS), 4)
        assert "wall: the time limit of 500ms has passed" in expect(h.run("job", "w"), 0).out
        assert expect(h.run("run", "led.yaml", "open", "--job-id", "o", "--input", TURNS, "--json"), 0).json()["budget"] is None


def notices(h, job):
    started = expect(h.run("events", job, "--type", "tool_invocation_started", "--json"), 0).json()["events"]
    return [e["payload"]["arguments"]["notice"] for e in started if "notice" in e["payload"]["arguments"]]


@test
def a_model_is_notified_of_a_low_budget_once_per_limit_value():
    with home() as h, Models(h):
        expect(h.run("run", "led.yaml", "model_calls", "--job-id", "m", "--input", TURNS), 4)
        assert notices(h, "m") == [{"model_calls": {"left": "1", "of": "2"}}], notices(h, "m")
        expect(h.run("budget", "m", "--model-calls", "6"), 0)
        result = expect(h.run("run", "led.yaml", "model_calls", "--job-id", "m", "--input", TURNS), 0).json()
        assert result["turns"] == 4, result
        assert notices(h, "m")[1:] == [{"model_calls": {"left": "3", "of": "6"}}], notices(h, "m")
        expect(h.run("verify", "m"), 0)


@test
def reading_replaying_and_forking_make_no_model_calls():
    with home() as h, Models(h) as models:
        expect(h.run("run", "led.yaml", "model_calls", "--job-id", "m", "--input", TURNS), 4)
        expect(h.run("budget", "m", "--model-calls", "5"), 0)
        expect(h.run("run", "led.yaml", "model_calls", "--job-id", "m", "--input", TURNS), 0)
        spent = expect(h.run("job", "m", "--json"), 0).json()["budget"]["spent"]
        assert spent["model_calls"] == models.requests() == 4, spent
        for words in (("replay", "m"), ("trace", "m"), ("verify", "m")):
            expect(h.run(*words), 0)
        assert models.requests() == 4
        assert expect(h.run("job", "m", "--json"), 0).json()["budget"]["spent"] == spent
        events = expect(h.run("events", "m", "--json"), 0).json()["events"]
        expect(h.run("fork", "m", "--at", str(events[-1]["seq"]), "--job-id", "f"), 0)
        expect(h.run("run", "led.yaml", "model_calls", "--job-id", "f", "--input", TURNS), 0)
        fork = expect(h.run("job", "f", "--json"), 0).json()
        assert fork["budget"]["spent"] == spent and fork["budget"]["limits"]["model_calls"] == 5, fork["budget"]
        assert models.requests() == 4


@test
def a_fork_keeps_the_budget_of_its_origin():
    with home() as h:
        budget_home(h)
        expect(h.run("run", "budget.yaml", "three", "--job-id", "j"), 4)
        parked = expect(h.run("job", "j", "--json"), 0).json()["budget"]
        events = expect(h.run("events", "j", "--json"), 0).json()["events"]
        expect(h.run("fork", "j", "--at", str(events[-1]["seq"]), "--job-id", "f"), 0)
        expect(h.run("run", "budget.yaml", "three", "--job-id", "f"), 4)
        fork = expect(h.run("job", "f", "--json"), 0).json()["budget"]
        assert fork["limits"] == parked["limits"] and fork["spent"] == parked["spent"], (fork, parked)
        assert writes(h) == 2, "the fork made the call that exceeded the budget of its origin"
        expect(h.run("budget", "f", "--tool-calls", "3"), 0)
        expect(h.run("run", "budget.yaml", "three", "--job-id", "f"), 0)
        assert writes(h) == 3
        expect(h.run("verify", "f"), 0)


def failpoint_hits(done):
    return list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", done.err)))


@test
def a_kill_at_any_point_of_parking_or_raising_does_not_change_the_outcome():
    with home() as h:
        budget_home(h)
        trace = {"AETHERIS_FAILPOINTS_TRACE": "1"}
        run = ("run", "budget.yaml", "three", "--job-id")
        parks = failpoint_hits(expect(h.run(*run, "calm", env=trace), 4))
        raises = failpoint_hits(expect(h.run("budget", "calm", "--tool-calls", "3", env=trace), 0))
        resumes = failpoint_hits(expect(h.run(*run, "calm", env=trace), 0))
        assert len(parks) > 8 and raises and len(resumes) > 4, (parks, raises, resumes)

        def dies(point, *words):
            died = h.run(*words, env={"AETHERIS_FAILPOINTS": point.replace("@", "=exit@")})
            assert died.code == 137, (point, died)

        cases = [(n, point) for n, points in enumerate((parks, raises, resumes)) for point in points]
        for when, point in cases:
            job = f"{when}-{point}".replace("@", "-").replace(".", "-")
            if when == 0:
                dies(point, *run, job)
            expect(h.run(*run, job), 4)
            if when == 1:
                dies(point, "budget", job, "--tool-calls", "3")
            expect(h.run("budget", job, "--tool-calls", "3"), 0)
            if when == 2:
                dies(point, *run, job)
            expect(h.run(*run, job), 0)
            decided = expect(h.run("events", job, "--type", "decision_recorded", "--json"), 0).json()["events"]
            states = [e["payload"]["state"] for e in decided if e["payload"]["kind"] == "budget"]
            assert states == ["exceeded", "raised"], (point, states)
            spent = expect(h.run("job", job, "--json"), 0).json()["budget"]["spent"]
            assert spent["tool_calls"] == 3, (point, spent)
            expect(h.run("verify", job), 0)


if __name__ == "__main__":
    sys.exit(run_tests("budgets", TESTS, " ".join(sys.argv[1:])))
