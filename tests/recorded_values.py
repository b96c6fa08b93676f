#!/usr/bin/env python3
"""Recorded time, random numbers and ids: one value per step, wherever the process dies.

A plan sends its values to a shop, a loop returns them to its model. Both are killed at every failpoint, and with SIGKILL during
a call; the values recorded before are those sent afterwards. `redact --all` erases them, and the job can still be read. `check`
rejects call settings of these tools.

  recorded_values.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from shared.home import until  # noqa: E402
from shared import desk as shared  # noqa: E402
from shared.desk import BIN, exit_at, failpoint_hits, job_name, run_tests  # noqa: E402

KEY = "sk-of-values-1"
TYPES = ("time_recorded", "random_recorded", "uuid_recorded")
AGENTS = """\
aetheris: 1
tools:
  clock: { native: now, description: What time it is }
  dice: { native: random }
  id: { native: uuid }
  pay: { description: Pay, http: { method: POST, url: "${ env.SHOP }/payments" }, effect: idempotent }
  slow:
    command: ["sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.05; done"]
    effect: read
    timeout: 60s
models:
  teller: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: teller }
agents:
  plan:
    plan:
      - { id: at, tool: clock }
      - { id: roll, tool: dice, args: { min: 1, max: 1000000000 } }
      - { id: ids, map: "${ [1, 2] }", do: { tool: id } }
      - id: pay
        tool: pay
        needs: [at, roll, ids]
        args: { at: "${ .steps.at.time }", ms: "${ .steps.at.ms }", n: "${ .steps.roll }", ids: "${ .steps.ids }" }
    output: { at: "${ .steps.at }", roll: "${ .steps.roll }", ids: "${ .steps.ids }", paid: "${ .steps.pay.of }" }
  slow:
    plan:
      - { id: at, tool: clock }
      - { id: part, tool: dice, needs: [at] }
      - { id: name, tool: id, needs: [at], args: { version: 4 } }
      - { id: wait, tool: slow, needs: [part, name] }
      - { id: late, tool: clock, needs: [wait] }
    output: "${ .steps }"
  teller: { loop: { model: teller, tools: [clock, dice, id, pay] }, output: "${ .steps.loop.text }" }
"""
# Three values in one answer, then a payment with one of them, then the end.
TELLER = {"about": "Asks for values and pays with one of them.", "turns": [
    {"when": {"turn": 1}, "call": [{"tool": "clock", "args": {}}, {"tool": "id", "args": {}},
                                   {"tool": "dice", "args": {"min": 7, "max": 1}}]},
    {"when": {"turn": 2}, "call": {"tool": "pay", "args": {"at": "${/results/clock/ms}"}}},
    {"text": "Paid at ${/results/pay/of/at}."}]}


class Desk(shared.Desk):
    def __init__(self):
        super().__init__([KEY])
        (self.path / "agents.yaml").write_text(AGENTS)
        (self.path / "teller.json").write_text(json.dumps(TELLER))
        self.scenarios += ["--scenario", self.path / "teller.json"]
        self.env |= {"SHOP": self.shop.url, "MODELS": self.open_models(), "MODEL_KEY": KEY}

    def job(self, agent, job="t", durability="fused", **more):
        return self.start(agent, {"message": "Go on."}, job, "--durability", durability, **more)

    def values(self, job="t"):
        """{effect_id: value}; no effect has two."""
        recorded = [e["payload"] for e in self.events(job) if e["type"] in TYPES]
        values = {p["effect_id"]: p["value"] for p in recorded}
        assert len(values) == len(recorded), recorded
        return values


def of_kind(values, kind):
    return [value for effect, value in values.items() if effect.endswith(":" + kind)]


def a_plan_uses_recorded_values_without_a_tool_call(desk):
    before = time.time()
    result = json.loads(desk.job("plan", code=0).stdout)
    values = desk.values()
    at, = of_kind(values, "time")
    roll, = of_kind(values, "random")
    ids = of_kind(values, "uuid")
    assert result["at"] == at and result["roll"] == roll and sorted(result["ids"]) == sorted(ids), (result, values)
    assert result["paid"] == {"at": at["time"], "ms": at["ms"], "n": roll, "ids": result["ids"]}, result
    assert before - 1 < at["ms"] / 1000 < time.time() + 1, at
    assert 1 <= roll <= 10**9 and ids[0] != ids[1], values
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", i) for i in ids), ids
    events = desk.events()
    assert [e["payload"]["tool_name"] for e in events if e["type"] == "tool_invocation_started"] == ["pay"]
    start = next(i for i, e in enumerate(events) if e["type"] == "time_recorded") - 2
    assert [e["type"] for e in events[start:start + 6]] == [
        "node_started", "command_emitted", "time_recorded", "command_committed", "node_finished", "step_committed"], events
    desk.expect_verified()
    other = json.loads(desk.job("plan", job="u", code=0).stdout)
    assert other["roll"] != result["roll"] and other["ids"][0] != result["ids"][0], other
    trace = json.loads(desk.run("trace", "t", "--json", code=0).stdout)
    assert trace["nodes"][0]["result"] == at and trace["nodes"][0]["tries"] == [], trace["nodes"][0]
    assert {e["kind"] for e in trace["effects"]} == {"time", "random", "uuid", "tool"}, trace["effects"]


def killed_at_every_failpoint_hit(desk, agent):
    for durability in ("fused", "split"):
        baseline = desk.job(agent, job=f"calm-{durability}", code=0, durability=durability, AETHERIS_FAILPOINTS_TRACE="1")
        points = failpoint_hits(baseline)
        assert len(points) > 5, points
        for point in points:
            job = job_name(agent, durability, point)
            paid = len(desk.shop.paid)
            died = desk.job(agent, job=job, durability=durability, **exit_at(point))
            assert died.returncode in (0, 137), (point, died.stderr)
            known = desk.values(job)
            if died.returncode:
                desk.job(agent, job=job, code=0, durability=durability)
            values = desk.values(job)
            assert {effect: values[effect] for effect in known} == known, (point, known, values)
            assert len(desk.shop.paid) - paid == 1, (point, desk.shop.paid)
            at, = of_kind(values, "time")
            assert desk.shop.paid[-1][1]["at"] in (at["time"], at["ms"]), (point, desk.shop.paid[-1], at)
            desk.expect_verified(job)


def a_plan_killed_at_every_failpoint_records_one_value_per_step(desk):
    killed_at_every_failpoint_hit(desk, "plan")


def a_loop_killed_at_every_failpoint_records_one_value_per_step(desk):
    killed_at_every_failpoint_hit(desk, "teller")


def a_model_receives_the_value_and_the_error_for_invalid_bounds(desk):
    desk.job("teller", code=0)
    at, = of_kind(desk.values(), "time")
    assert desk.shop.paid == [("/payments", {"at": at["ms"]})], (desk.shop.paid, at)
    chosen = next(e["payload"]["payload"] for e in desk.events() if e["payload"].get("kind") == "tool_choice")
    assert [call.get("refused", {}).get("code") for call in chosen["calls"]] == [None, None, "input_invalid"], chosen
    assert [e["type"] for e in desk.events()].count("tool_invocation_started") == 4, desk.events()
    desk.expect_verified()


def after_sigkill_a_job_continues_with_the_same_values(desk):
    words = [BIN, "run", "agents.yaml", "slow", "--job-id", "t", "--input", "{}"]
    running = subprocess.Popen(words, cwd=desk.path, env=desk.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    until((desk.path / "began").exists)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    known = desk.values()
    assert len(known) == 3, known
    (desk.path / "go").touch()
    result = json.loads(desk.run(*words[1:], code=0).stdout)
    values = desk.values()
    assert len(values) == 4 and {effect: values[effect] for effect in known} == known, (known, values)
    assert [result["at"]] == of_kind(known, "time") and [result["part"]] == of_kind(known, "random"), (result, known)
    assert [result["name"]] == of_kind(known, "uuid") and 0 <= result["part"] < 1 and result["late"]["ms"] > result["at"]["ms"], result
    desk.expect_verified()
    replayed = json.loads(desk.run("replay", "t", "--json", code=0).stdout)
    assert result["name"] in json.dumps(replayed), replayed
    fork = desk.events()
    at = next(e["seq"] for e in fork if e["payload"].get("node_id") == "wait" and e["type"] == "node_started")
    desk.run("fork", "t", "--at", str(at - 1), "--job-id", "fork", code=0)
    again = json.loads(desk.run("run", "agents.yaml", "slow", "--job-id", "fork", code=0).stdout)
    assert [again[node] for node in ("at", "part", "name")] == [result[node] for node in ("at", "part", "name")], (again, result)
    desk.expect_verified("fork")


def a_job_with_redacted_values_can_still_be_read(desk):
    desk.job("plan", code=0)
    roll, = of_kind(desk.values(), "random")
    ids = of_kind(desk.values(), "uuid")
    desk.run("redact", "t", "--all", "--reason", "on request", code=0)
    for view in ("events", "trace", "job", "replay", "verify"):
        result = desk.run(view, "t", "--json", code=0).stdout
        assert not any(value in result for value in [str(roll), *ids]), (view, result)
    assert all("$redacted" in value for value in desk.values().values()), desk.values()
    desk.expect_verified()


def check_rejects_call_settings_of_value_tools(desk):
    (desk.path / "bad.yaml").write_text("aetheris: 1\ntools: { clock: { native: now, timeout: 5s, effect: idempotent } }\n"
                                        "agents: { a: { plan: [ { id: x, tool: clock, args: { zone: UTC } } ] } }\n")
    result = desk.run("check", "bad.yaml", code=2)
    assert "`timeout` does not apply" in result.stdout + result.stderr and "effect: read" in result.stdout + result.stderr, result


TESTS = (a_plan_uses_recorded_values_without_a_tool_call, a_model_receives_the_value_and_the_error_for_invalid_bounds,
         after_sigkill_a_job_continues_with_the_same_values,
         a_plan_killed_at_every_failpoint_records_one_value_per_step,
         a_loop_killed_at_every_failpoint_records_one_value_per_step, a_job_with_redacted_values_can_still_be_read,
         check_rejects_call_settings_of_value_tools)

if __name__ == "__main__":
    sys.exit(run_tests("recorded_values", TESTS, Desk))
