#!/usr/bin/env python3
"""Approvals and policies, with the scripted model server and a shop that counts its payments.

A refund requested by a model is approved, rejected, edited, denied by a policy, or expires. The approver sees the request
that would be sent. An answer to an edited question reports the edit. A process killed at every failpoint around a question
and its answer makes the approved call once, or not at all.

  approvals.py [WORDS]   only tests whose name contains WORDS
"""
import collections
import json
import re
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from shared import desk as shared, ids  # noqa: E402
from shared.desk import BIN, PATIENCE, SCENARIOS, exit_at, failpoint_hits, job_name, run_tests  # noqa: E402

KEY = "sk-of-approvals-1"
TOKEN = "token-of-the-shop"
PROMPT = "Refund order 43, please."
AGENTS = """\
aetheris: 1
tools:
  get_order:
    description: Look an order up
    http: { method: GET, url: "${ env.SHOP }/orders/${ .args.id }" }
    effect: read
  refund:
    description: Pay an order back
    http: { method: POST, url: "${ env.SHOP }/refunds/${ .args.order }", headers: { Authorization: "Bearer secret:SHOP_TOKEN" } }
    effect: idempotent
    capabilities: [payments]
    args_schema: { type: object, required: [order, amount], properties: { amount: { type: integer } } }
  stamp: { command: [echo, "for ${ .args.who }"], effect: read, approval: required }
models:
  refund: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: refund }
policies:
  - { tools: [refund], when: "${ .args.amount > 1000 }", action: deny, reason: over our limit }
  - { tools: [refund], label: "tier:banned", action: deny, reason: no refunds for them }
  - { capability: payments, action: require_approval, reason: money leaves, expires: EXPIRES }
agents:
  refund: { loop: { model: refund, system: You are kind., tools: [get_order, refund] } }
  strict: { loop: { model: refund, tools: [get_order, refund], on_reject: fail } }
  plain: { plan: [ { id: pay, tool: refund, args: { order: "${ .input.order }", amount: "${ .input.amount }" } } ], output: "${ .steps.pay }" }
  stamp: { plan: [ { id: stamp, tool: stamp, args: { who: "${ .input.who }" } } ] }
"""


class Desk(shared.Desk):
    """Its model repeats what it receives about an edited call."""

    def __init__(self):
        super().__init__([KEY, TOKEN])
        self.expires("24h")
        scenario = json.loads((SCENARIOS / "refund.json").read_text())
        scripted = {"when": {"last": "tool", "last_text": "edited_arguments"}, "text": "I was told: ${/last/text}"}
        scenario["turns"].insert(0, scripted)
        (self.path / "refund.json").write_text(json.dumps(scenario))
        self.scenarios += ["--scenario", self.path / "refund.json"]
        self.env |= {"SHOP": self.shop.url, "MODELS": self.open_models(), "MODEL_KEY": KEY, "SHOP_TOKEN": TOKEN}

    def expires(self, span):
        (self.path / "agents.yaml").write_text(AGENTS.replace("EXPIRES", span))

    def job(self, agent="refund", job="t", more=(), given=None, **rest):
        return self.start(agent, given or {"message": PROMPT}, job, *more, **rest)

    def decisions(self, job="t"):
        return [e["payload"] for e in self.events(job)
                if e["type"] == "decision_recorded" and e["payload"]["kind"] == "approval"]

    def hash_of(self, arguments, job="t"):
        """The arguments_hash, computed with the blind of the job."""
        return ids.blinded(self.events(job)[0]["payload"]["blind"], ids.canonical(arguments))


def a_call_that_a_policy_holds_is_made_once_after_approval(desk):
    desk.job(code=4, more=("--label", "tier=new"))
    assert desk.shop.paid == [], desk.shop.paid
    waiting = desk.approvals()
    assert len(waiting) == 1, waiting
    one = waiting[0]
    assert one["arguments"] == {"amount": 12, "order": "43"}, one
    assert one["arguments_hash"] == desk.hash_of(one["arguments"]), one
    assert (one["reason"], one["labels"], one["editable"]) == ("money leaves", {"tier": "new"}, True), one
    assert one["expires_at"], one
    wait, = json.loads(desk.run("job", "t", "--json", code=0).stdout)["waits"]
    assert wait["expired"] is False and len(wait["commands"]) == 2, wait
    text = desk.run("approvals", code=0).stdout
    for words in ('waits for approval of the call of tool "refund"', "reason:    money leaves", '"amount": 12', one["arguments_hash"],
                  f"aetheris approve {one['id']}"):
        assert words in text, (words, text)
    desk.run("approve", one["id"], code=0)
    done = desk.job(code=0, more=("--label", "tier=new", "-v"))
    steps = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    assert steps and not any("an item" in line or line.endswith(",") for line in steps), done.stderr
    loop = [line.split(None, 2)[2] for line in steps if line.split()[:2] == ["✓", "loop"] and len(line.split()) > 2]
    assert any(line.startswith("turn 2: refund {") for line in loop) and any("model " in line for line in loop), done.stderr
    assert not any(line.split() == ["✓", "loop"] for line in steps), done.stderr
    result = json.loads(done.stdout)
    assert result["text"] == "12 EUR was refunded for order 43.", result
    assert desk.shop.paid == [("/refunds/43", {"amount": 12, "order": "43"})], desk.shop.paid
    assert desk.shop.tokens == {f"Bearer {TOKEN}"}, "the call had its secret"
    desk.expect_verified()


def the_approver_sees_the_request_to_be_sent_without_secrets(desk):
    hostile = "4\u202e3/\u0007.."
    for agent, given in (("plain", {"order": hostile, "amount": 5}), ("stamp", {"who": "Ada; rm -rf /"})):
        desk.job(agent, job=agent, code=4, given=given)
    server = subprocess.Popen([BIN, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"], cwd=desk.path, env=desk.env,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, stdin=subprocess.DEVNULL)
    try:
        server.stdout.readline()
        waiting = {one["job_id"]: one for one in desk.approvals()}
        sends = waiting["plain"]["sends"]
        assert sends["method"] == "POST" and sends["url"].startswith(desk.shop.url + "/refunds/4%E2%80%AE3%2F"), sends
        assert sends["headers"]["Authorization"] == "Bearer secret:SHOP_TOKEN", sends
        assert json.loads(sends["body"]) == {"order": hostile, "amount": 5}, sends
        assert waiting["stamp"]["sends"]["argv"] == ["echo", "for Ada; rm -rf /"], waiting["stamp"]
        text = desk.run("approvals", code=0).stdout
        assert "\u202e" not in text and "\u0007" not in text and "\\u202e" in text, repr(text)
        assert "sends:     POST " + desk.shop.url in text and "secret:SHOP_TOKEN" in text, text
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def a_rejection_is_returned_to_the_model_or_fails_the_job_as_declared(desk):
    desk.job(code=4)
    one = desk.approvals()[0]["id"]
    desk.run("reject", one, "--note", "not today", code=0)
    for words, code in ((("reject", one), 0), (("approve", one), 5)):
        again = desk.run(*words, code=code).stdout
        assert re.match(r"already answered: rejected, by .+ at 20\S+ \S+Z\n", again), again
    result = json.loads(desk.job(code=0).stdout)
    assert result["text"].startswith("Nothing was refunded"), result
    desk.expect_verified()
    desk.job("strict", job="s", code=4)
    desk.run("reject", desk.approvals()[0]["id"], code=0)
    desk.job("strict", job="s", code=1)
    assert desk.expect_verified("s", "failed")["error"]["code"] == "rejected"
    assert desk.shop.paid == [], desk.shop.paid


def an_edited_call_is_made_as_edited_and_the_model_is_informed(desk):
    desk.job(code=4)
    one = desk.approvals()[0]
    less = {"amount": 5, "order": "43"}
    desk.run("approve", one["id"], "--arguments", '{"amount": "much", "order": "43"}', code=2)
    refused = desk.run("approve", one["id"], "--arguments", '{"amount": 5000, "order": "43"}', code=2)
    assert "denied" in refused.stderr and "over our limit" in refused.stderr, refused.stderr
    assert desk.approvals()[0]["id"] == one["id"], "the question stays open"
    result = desk.run("approve", one["id"], "--arguments", json.dumps(less), code=0)
    assert "changed arguments" in result.stdout, result.stdout
    late = desk.run("approve", one["id"], code=5)
    assert "approval_edited" in late.stderr and re.search(r"edited by .+ at 20\S+Z", late.stderr), late.stderr
    desk.run("reject", one["id"], code=5)
    desk.run("approve", one["id"], "--arguments", json.dumps(less), code=0)
    result = json.loads(desk.job(code=0).stdout)["text"].removeprefix("I was told: ")
    assert json.loads(result) == {"edited_arguments": less, "result": {"ok": True, "of": less}}, result
    assert desk.shop.paid == [("/refunds/43", less)], desk.shop.paid
    shown = desk.run("trace", "t", code=0).stdout
    assert json.dumps(less, separators=(",", ":")) in shown and "edited by " in shown, shown
    again = desk.run("approve", one["id"], "--arguments", json.dumps(less), "--note", "once more", code=0)
    assert "already answered: edited" in again.stdout, again.stdout
    desk.run("approve", one["id"], "--arguments", '{"amount": 6, "order": "43"}', code=5)
    edited = [d for d in desk.decisions() if d["state"] == "edited"]
    assert len(edited) == 1 and edited[0]["by"] and edited[0]["payload"]["arguments"] == less, edited
    assert edited[0]["payload"]["arguments_hash"] == desk.hash_of(less), edited
    assert edited[0]["payload"]["edited_from"] == one["arguments_hash"], edited
    desk.expect_verified()


def a_call_that_a_policy_denies_is_never_declared(desk):
    result = json.loads(desk.job(code=0, more=("--label", "tier=banned")).stdout)
    assert result["text"].startswith("Nothing was refunded") and "no refunds for them" in result["text"], result
    assert [d["state"] for d in desk.decisions()] == ["denied"], desk.decisions()
    desk.expect_verified()
    desk.job("plain", job="p", code=1, given={"order": "43", "amount": 5000})
    assert desk.expect_verified("p", "failed")["error"]["code"] == "denied"
    (desk.path / "house.yaml").write_text(
        "aetheris: 1\npolicies: [ { tools: [refund, unknown_here], action: deny, reason: the house says no } ]\n")
    warned = desk.run("check", "agents.yaml", "--policies", "house.yaml", code=0).stderr
    assert warned.count("house.yaml") == 1 and "no file has a tool named `unknown_here`" in warned, warned
    denied = desk.job("plain", job="h", code=1, more=("--policies", "house.yaml"), given={"order": "43", "amount": 1})
    assert "the house says no" in denied.stdout + denied.stderr, denied
    (desk.path / "house.yaml").write_text("aetheris: 1\npolicies: [ { action: dney } ]\n")
    wrong = desk.run("check", "agents.yaml", "--policies", "house.yaml", "--json", code=2)
    fault = json.loads(wrong.stdout)["faults"][0]
    assert (fault["file"], fault["line"], fault["suggestion"]) == ("house.yaml", 2, "deny"), fault
    assert desk.shop.paid == [], desk.shop.paid


def an_operator_policy_that_applies_to_nothing_causes_a_warning(desk):
    (desk.path / "house.yaml").write_text(
        "aetheris: 1\npolicies:\n  - { tools: [refnd], action: deny }\n  - { capability: payments, action: deny }\n")
    idle = "house.yaml: policies[0]: this policy applies to nothing: no file has a tool named `refnd`"
    checked = desk.run("check", "agents.yaml", "--policies", "house.yaml", code=0)
    assert idle in checked.stderr and "policies[1]" not in checked.stderr and "ok" in checked.stdout, checked
    notes = json.loads(desk.run("check", "agents.yaml", "--policies", "house.yaml", "--json", code=0).stdout)["notes"]
    assert [(n["file"], n["path"]) for n in notes] == [("house.yaml", "policies[0]")], notes
    ran = desk.job("plain", code=1, more=("--policies", "house.yaml"), given={"order": "43", "amount": 1})
    assert "warning: " + idle in ran.stderr, ran
    (desk.path / "more.yaml").write_text(
        "aetheris: 1\ntools: { refnd: { native: echo } }\nagents: { r: { plan: [ { id: a, tool: refnd } ] } }\n")
    both = desk.run("check", "agents.yaml", "more.yaml", "--policies", "house.yaml", code=0)
    assert "house.yaml" not in both.stderr, both
    for command in ("serve", "worker"):
        more = ("memory:", "--listen", "127.0.0.1:0") if command == "serve" else ("postgres://127.0.0.1:1/none",)
        words = [BIN, command, "agents.yaml", "--policies", "house.yaml", "--store", *more]
        process = subprocess.Popen(words, cwd=desk.path, env=desk.env, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            first = next((line for line in process.stderr if "house.yaml" in line), "")
        finally:
            late.cancel()
            process.terminate()
            process.wait(PATIENCE)
            process.stderr.close()
        assert idle in first, f"{command}: {first}"
    assert desk.shop.paid == [], desk.shop.paid


def an_unanswered_approval_expires_and_the_call_is_not_made(desk):
    desk.expires("300ms")
    result = desk.job(code=4)
    one, = json.loads(desk.run("job", "t", "--json", code=0).stdout)["waits"]
    time.sleep(0.4)  # no process runs the job, so no process has recorded the expiry
    assert desk.approvals() == [], "the question is no longer listed"
    seen = json.loads(desk.run("job", "t", "--json", code=0).stdout)
    for wait in (seen["waits"][0], seen["waiting"]):
        assert (wait["expired"], wait["command"], wait["commands"]) == (True, None, []), wait
    text = desk.run("job", "t", code=0)
    assert f"expired at {one['expires_at'][:19].replace('T', ' ')}Z" in text.stdout and "aetheris a" not in text.stdout, text
    for words in (("approve", one["approval_id"]), ("reject", one["approval_id"]),
                  ("signal", "t", one["correlation_key"], '{"decision": "approve"}')):
        late = desk.run(*words, code=5)
        assert "wait_expired" in late.stderr and one["expires_at"] in late.stderr, late.stderr
    result = desk.job(code=None)
    for _ in range(100):
        if result.returncode != 4:
            break
        time.sleep(0.1)
        result = desk.job(code=None)
    assert result.returncode == 0, result.stderr
    assert desk.shop.paid == [], desk.shop.paid
    desk.expect_verified()


def an_approved_call_is_made_once_when_killed_at_every_failpoint(desk):
    less = {"amount": 5, "order": "43"}
    answers = {"approve": ("approve", (), [("/refunds/43", {"amount": 12, "order": "43"})]),
               "edit": ("approve", ("--arguments", json.dumps(less)), [("/refunds/43", less)]),
               "reject": ("reject", (), [])}
    for name, (verb, more, paid) in answers.items():
        job = f"calm-{name}"
        points = [desk.job(job=job, AETHERIS_FAILPOINTS_TRACE="1")]
        one = [a for a in desk.approvals() if a["job_id"] == job][0]
        points.append(desk.run(verb, one["id"], *more, code=0, AETHERIS_FAILPOINTS_TRACE="1"))
        points.append(desk.job(job=job, code=0, AETHERIS_FAILPOINTS_TRACE="1"))
        found = [failpoint_hits(done) for done in points]
        assert all(found), found
        for act, points in enumerate(found):
            if act == 0 and name != "edit":
                continue  # before the answer, all three cases are the same
            for point in points:
                desk.shop.reset()
                job, exit_env = job_name(name, act, point), exit_at(point)
                if act == 0:
                    desk.job(job=job, **exit_env)
                desk.job(job=job)
                mine = [a for a in desk.approvals() if a["job_id"] == job]
                assert len(mine) == 1 and desk.shop.paid == [], (job, mine, desk.shop.paid)
                if act == 1:  # a client without a response repeats its answer
                    desk.run(verb, mine[0]["id"], *more, **exit_env)
                desk.run(verb, mine[0]["id"], *more, code=0)
                if act == 2:
                    desk.job(job=job, **exit_env)
                desk.job(job=job, code=0)
                assert desk.shop.paid == paid, (job, desk.shop.paid)
                states = collections.Counter(d["state"] for d in desk.decisions(job))
                assert states["requested"] == 1 and sum(states.values()) == 2, (job, states)
                desk.run("verify", job, code=0)


TESTS = (a_call_that_a_policy_holds_is_made_once_after_approval, the_approver_sees_the_request_to_be_sent_without_secrets,
         a_rejection_is_returned_to_the_model_or_fails_the_job_as_declared,
         an_edited_call_is_made_as_edited_and_the_model_is_informed, a_call_that_a_policy_denies_is_never_declared,
         an_operator_policy_that_applies_to_nothing_causes_a_warning,
         an_unanswered_approval_expires_and_the_call_is_not_made, an_approved_call_is_made_once_when_killed_at_every_failpoint)

if __name__ == "__main__":
    sys.exit(run_tests("approvals", TESTS, Desk))
