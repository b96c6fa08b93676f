#!/usr/bin/env python3
"""A planner, with the scripted model server and a shop that counts its payments.

A model-generated plan is checked, recorded and executed. A plan with an unknown tool is repaired once, or fails the job. A call
that a policy denies or the agent does not grant is not made. A process killed at every failpoint requests no recorded answer
again, keeps the plan, and pays nothing twice.

  planner.py [WORDS]   only tests whose name contains WORDS
"""
import json
import sys

sys.dont_write_bytecode = True
from shared import desk as shared  # noqa: E402
from shared.desk import ROOT, SCENARIOS, exit_at, failpoint_hits, job_name, run_tests  # noqa: E402

KEY = "sk-of-planners-1"


class Desk(shared.Desk):
    """Its agents file is the example."""

    def __init__(self):
        super().__init__([KEY], SCENARIOS / "planner.json")
        self.write()
        self.shop.receipt = lambda body: {"of": body["order"], "amount": body["amount"]}
        self.env |= {"SHOP_URL": self.shop.url, "MODEL_URL": f"{self.open_models()}/v1", "MODEL_KEY": KEY, "MODEL": "planner"}

    def write(self, **changes):
        text = (ROOT / "examples/agents/planner.yaml").read_text()
        for old, new in changes.values():
            assert old in text, old
            text = text.replace(old, new)
        (self.path / "agents.yaml").write_text(text)

    def job(self, message, job="t", durability="fused", **more):
        return self.start("planner", {"message": message}, job, "--durability", durability, **more)

    def requests(self):
        return len(self.model_requests())

    def plans(self, job="t"):
        return [e["payload"] for e in self.events(job) if e["type"] == "plan_generated"]


def a_model_generated_plan_is_recorded_and_executed(desk):
    result = json.loads(desk.job("Refund order 43, please.", code=0).stdout)
    assert result == {"paid": {"of": "43", "amount": 12}}, result
    first, second = desk.plans()
    assert first["planned_by"] == "file" and second["planned_by"].startswith("model:main/"), (first, second)
    assert second["decision_locked"] is True and second["plan_hash"] != first["plan_hash"], second
    turns = [e["payload"] for e in desk.events() if e["type"] == "tool_invocation_started"]
    assert second["plan_input_hash"] == turns[0]["arguments_hash"], (second, turns[0])
    words = json.dumps(turns[0]["arguments"]["messages"])
    assert "Refunds an order" in words and "exclusiveMinimum" in words and KEY not in words, words
    assert desk.requests() == 1 and desk.shop.effects == {"/refunds": 1}, desk.shop.effects
    trace = desk.run("trace", "t", code=0).stdout
    for node in ("planner", "order", "pay"):
        assert node in trace, trace
    assert [n["id"] for n in second["task_graph"]["nodes"]] == ["planner", "order", "pay"], second
    desk.run("replay", "t", code=0)
    desk.job("Refund order 43, please.", code=0)
    assert desk.requests() == 1, "a recorded plan was requested again"
    desk.expect_verified()


def an_invalid_plan_is_repaired_once_or_fails_the_job(desk):
    result = json.loads(desk.job("A slip: refund order 43, please.", code=0).stdout)
    assert result == {"paid": {"of": "43", "amount": 12}} and desk.requests() == 2, result
    choices = [e["payload"]["payload"] for e in desk.events() if e["type"] == "decision_recorded"]
    assert "`find_order`, which may not be called; there are: get_order, refund" in choices[0]["repair"], choices
    desk.expect_verified()
    done = desk.job("This is never a plan.", "bad", code=1)
    assert "plan_invalid" in done.stderr and "wire_money" in done.stderr, done.stderr
    assert desk.requests() == 4 and desk.shop.effects == {"/refunds": 1} and len(desk.plans("bad")) == 1, desk.shop.effects
    desk.expect_verified("bad", "failed")


def a_planned_call_that_is_denied_or_not_granted_is_not_made(desk):
    done = desk.job("Be sneaky: refund order 43.", code=1)
    assert "denied" in done.stderr and "above the limit of 500 EUR" in done.stderr, done.stderr
    desk.write(grants=("grants: [payments]", "grants: []"))
    noted = desk.run("check", "agents.yaml", code=0).stderr
    assert "agents.planner.planner.tools" in noted and "`refund` (`payments`)" in noted, noted
    requests = desk.requests()
    done = desk.job("Refund order 43, please.", "ungranted", code=1)
    assert "plan_invalid" in done.stderr and "`refund`, which may not be called" in done.stderr, done.stderr
    assert desk.requests() == requests + 2 and len(desk.plans("ungranted")) == 1, "the model receives the reason before any call"
    assert desk.shop.effects == {}, desk.shop.effects
    desk.expect_verified("ungranted", "failed")


def a_planner_killed_at_every_failpoint_makes_one_plan_and_pays_once(desk):
    words = "A slip: refund order 43, please."
    for durability in ("fused", "split"):
        baseline = desk.job(words, f"calm-{durability}", durability, code=0, AETHERIS_FAILPOINTS_TRACE="1")
        points = failpoint_hits(baseline)
        assert len(points) > 10, points
        plan = desk.plans(f"calm-{durability}")[1]["plan_hash"]
        for point in points:
            job = job_name(durability, point)
            paid, requests = desk.shop.effects["/refunds"], desk.requests()
            died = desk.job(words, job, durability=durability, **exit_at(point))
            assert died.returncode in (0, 137), (point, died.stderr)
            if died.returncode:
                known = sum(e["type"] == "command_committed" and "llm_model" in e["payload"] for e in desk.events(job))
                then = desk.requests()
                lived = desk.job(words, job, code=0, durability=durability)
                assert lived.stdout == baseline.stdout, (point, lived.stdout)
                assert desk.requests() - then <= 2 - known, (point, "a recorded answer was requested again")
            assert desk.shop.effects["/refunds"] - paid == 1, (point, desk.shop.effects)
            assert desk.requests() - requests <= 3, point
            assert [p["plan_hash"] for p in desk.plans(job)[1:]] == [plan], point
            desk.expect_verified(job)


TESTS = (a_model_generated_plan_is_recorded_and_executed, an_invalid_plan_is_repaired_once_or_fails_the_job,
         a_planned_call_that_is_denied_or_not_granted_is_not_made, a_planner_killed_at_every_failpoint_makes_one_plan_and_pays_once)

if __name__ == "__main__":
    sys.exit(run_tests("planner", TESTS, Desk))
