#!/usr/bin/env python3
"""After a crash: changes that a job recorded are compared with the external state before it continues.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_confirm.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.client
import json
import re
import subprocess
import sys

from shared.home import PATIENCE, expect, home, run_tests
from shared.program import ROOT

TESTS = []


def test(function):
    TESTS.append(function)
    return function


CHARGES = r"""
aetheris: 1
outbound: { allow: ["127.0.0.1"] }
tools:
  charge:
    http: { method: POST, url: "SHOP/charges" }
    effect: idempotent
    timeout: 20s
    changes:
      - { type: charge, id: "${ .result.id }", op: create, version: "${ .result.version }", etag: "${ .result.etag }", ref: "${ .result.url }" }
    VERIFY
  hold:
    command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: read
    timeout: 60s
agents:
  sell:
    CONFIRM
    plan:
      - { id: pay, tool: charge, args: { amount: 5 } }
      - { id: h, tool: hold, needs: [pay] }
    output: "${ .steps.h }"
"""


class Shop:
    """The shop of the examples, on a port of its own."""

    def __init__(self, h):
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/shop/shop.py"), "--port", "0", "--journal", str(h.path / "journal")],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        h.started.append(self.process)
        self.address = self.process.stdout.readline().split()[1]

    def change(self, path):
        """Another client changes a charge."""
        connection = http.client.HTTPConnection(*self.address.split(":"), timeout=PATIENCE)
        connection.request("POST", "/control", json.dumps({"change": path}))
        assert connection.getresponse().status == 200
        connection.close()

    def charges(self, h):
        lines = map(json.loads, (h.path / "journal").read_text().splitlines())
        return [line for line in lines if line["kind"] == "effect" and line["route"] == "POST /charges"]


@contextlib.contextmanager
def killed_after_a_charge(verify, confirm="", change=True):
    """A job that was killed in the call after its charge; then another client changed the charge."""
    with home() as h:
        shop = Shop(h)
        (h.path / "agents.yaml").write_text(CHARGES.replace("SHOP", "http://" + shop.address)
                                            .replace("VERIFY", verify).replace("CONFIRM", confirm))
        runner = h.start("run", "agents.yaml", "--job-id", "c")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        changed = [e["payload"] for e in expect(h.run("events", "c", "--json"), 0).json()["events"]
                   if e["type"] == "state_changed"]
        assert len(changed) == 1, changed
        if change:
            shop.change("/charges/" + changed[0]["resource_id"])
        h.release_hold()
        yield h, shop
        assert len(shop.charges(h)) == 1, "charged twice"
        expect(h.run("verify", "c"), 0)


def verdicts(h):
    events = expect(h.run("events", "c", "--json"), 0).json()["events"]
    return [e["payload"]["verdict"] for e in events if e["type"] == "confirmation_checked"]


@test
def after_a_crash_a_charge_that_was_changed_elsewhere_fails_the_job():
    with killed_after_a_charge('verify: { http_etag: "${ .change.ref }" }') as (h, _):
        result = expect(h.run("run", "agents.yaml", "--job-id", "c"), 1)
        assert "confirmation_failed" in result.err, result
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert job["error"]["code"] == "confirmation_failed", job
        assert verdicts(h) == ["mismatch"]
        assert (h.path / "began.txt").read_text() == "began\n", "nothing new begins"
        assert "mismatch" in expect(h.run("trace", "c"), 0).out


@test
def after_a_crash_an_unchanged_charge_is_confirmed():
    with killed_after_a_charge('verify: { http_etag: "${ .change.ref }" }', change=False) as (h, _):
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        assert verdicts(h) == ["match"]
        assert "match" in expect(h.run("trace", "c"), 0).out


@test
def after_a_crash_warn_mode_logs_a_changed_charge_and_continues():
    with killed_after_a_charge('verify: { http_json: { url: "${ .change.ref }", field: "${ .result.version }" } }',
                               "confirm: warn") as (h, _):
        result = expect(h.run("run", "agents.yaml", "--job-id", "c"), 0)
        assert result.out == "held\n" and "is not as the job left it" in result.err, result
        assert verdicts(h) == ["mismatch"]


@test
def after_a_crash_human_mode_requests_a_decision_about_a_changed_charge():
    verify = 'verify: { http_etag: "${ .change.ref }", mode: human }'
    with killed_after_a_charge(verify) as (h, shop):
        result = expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        commands = re.findall(r"aetheris (resolve c \S+ (?:accept|fail))", result.err)
        assert len(commands) == 2, result
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert (job["status"], job["parked"]["until"]) == ("parked", "confirmation"), job
        assert job["parked"]["reason"] == "replay_verification_human_required"
        waiting = expect(h.run("approvals", "--json"), 0).json()["approvals"]
        assert [(a["kind"], a["tool"], a["node_id"]) for a in waiting] == [("confirmation", "charge", "pay")], waiting
        assert "which has changed" in expect(h.run("approvals"), 0).out
        assert "not_paused" in expect(h.run("resume", "c"), 5).err
        expect(h.run(*commands[0].split(), "--note", "it was me"), 0)
        assert "already answered with the same payload, by " in expect(h.run(*commands[0].split()), 0).out
        assert "accept by " in expect(h.run(*commands[1].split()), 5).err
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        decisions = [e["payload"] for e in expect(h.run("events", "c", "--json"), 0).json()["events"]
                     if e["type"] == "decision_recorded" and e["payload"]["kind"] == "confirmation"]
        result = [d for d in decisions if d.get("state") == "accept"]
        assert len(result) == 1 and result[0]["reason"] == "it was me" and result[0]["by"] and result[0]["at"], decisions
    with killed_after_a_charge(verify) as (h, shop):
        expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        one = expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]
        expect(h.run("reject", one), 0)
        assert expect(h.run("job", "c", "--json"), 0).json()["error"]["code"] == "confirmation_failed"
        assert "already answered: rejected, by " in expect(h.run("reject", one), 0).out
        assert "fail by " in expect(h.run("approve", one), 5).err


@test
def after_a_crash_an_unreachable_verifier_parks_the_job():
    with killed_after_a_charge('verify: { http_etag: "${ .change.ref }" }', change=False) as (h, shop):
        shop.process.kill()
        shop.process.wait()
        result = expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        assert "aetheris resume c" in result.err, result
        assert expect(h.run("job", "c", "--json"), 0).json()["parked"]["reason"] == "verifier_unreachable"
        assert verdicts(h) == ["unreachable"]
        expect(h.run("resume", "c"), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        expect(h.run("resolve", "c", "pay", "accept"), 0)
        expect(h.run("resume", "c"), 0)
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"


@test
def without_a_verifier_a_change_is_shown_as_unconfirmed():
    with killed_after_a_charge("") as (h, _):
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        assert verdicts(h) == ["unconfirmed"]
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert [c["verdict"] for c in job["changes"]] == ["unconfirmed"], job["changes"]
        assert "unconfirmed" in expect(h.run("trace", "c"), 0).out
        assert "(create): unconfirmed" in expect(h.run("job", "c"), 0).out


@test
def a_job_killed_at_every_point_confirms_and_charges_once():
    for n in range(1, 100):
        with home() as h:
            shop = Shop(h)
            (h.path / "agents.yaml").write_text(
                CHARGES.replace("SHOP", "http://" + shop.address).replace("CONFIRM", "")
                .replace("VERIFY", 'verify: { http_etag: "${ .change.ref }" }'))
            h.release_hold()
            split = ["--durability", "split"] if n % 2 else []
            result = h.run("run", "agents.yaml", "--job-id", "c", *split,
                         env={"AETHERIS_FAILPOINTS": f"append.after=exit@{n};append.before=exit@{n + 3}"})
            again = result
            if result.code == 137:  # and once more, in the recovery
                again = h.run("run", "agents.yaml", "--job-id", "c", *split, env={"AETHERIS_FAILPOINTS": "append.after=exit@1"})
                assert again.code in (0, 137), again
                again = h.run("run", "agents.yaml", "--job-id", "c")
            assert expect(again, 0).out == "held\n"
            assert len(shop.charges(h)) == 1
            assert set(verdicts(h)) <= {"match"}
            expect(h.run("verify", "c"), 0)
            if result.code != 137 and not split:
                return
    raise AssertionError("it never ended")


if __name__ == "__main__":
    sys.exit(run_tests("cli_confirm", TESTS, " ".join(sys.argv[1:])))
