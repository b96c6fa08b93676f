#!/usr/bin/env python3
"""How jobs with an unknown outcome end: the process dies during the only call of a job, the job is cancelled or its deadline
passes, and the effect is compensated before the job ends. And where unknown outcomes are shown: at the end of `run`, in `job`,
in `jobs --in-doubt`, and after `resolve` on an ended job.

A downstream service records what arrived and what took effect.
"""

import calendar
import contextlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

from shared.program import TESTING_BIN

AGENTS = """\
aetheris: 1
tools:
  undo:   { http: { method: POST, url: "URL/undo" }, effect: idempotent }
  find:   { http: { method: GET, url: "URL/find?key=${ .args.key }" }, effect: read }
  once:   { http: { method: POST, url: "URL/pay" }, effect: at_most_once, timeout: 1s, grace: 0s, UNDO }
  repeat: { http: { method: POST, url: "URL/pay" }, effect: idempotent, timeout: 1s, grace: 0s, UNDO }
  probed:
    http: { method: POST, url: "URL/pay" }
    effect: at_most_once
    timeout: 1s
    grace: 0s
    on_in_doubt: probe
    probe: { tool: find, args: { key: "${ .call.external_key }" }, happened: "${ .result.found }" }
    UNDO
  lost:   { native: doubt, on_in_doubt: fail }
  parked: { native: doubt, timeout: 1s, grace: 0s }
  slow:   { native: nap, timeout: 500ms, grace: 0s, on_in_doubt: fail }
  bad:    { native: fail, effect: read }
agents:
  once:   { plan: [ { id: a, tool: once, args: { n: 1 } } ] }
  repeat: { plan: [ { id: a, tool: repeat, args: { n: 1 } } ] }
  probed: { plan: [ { id: a, tool: probed, args: { n: 1 } } ] }
  late:   { deadline: 2s, plan: [ { id: a, tool: once, args: { n: 1 } } ] }
  quiet:  { plan: [ { id: a, tool: lost, args: { n: 1 }, on_error: continue } ], output: "ok" }
  items:  { plan: [ { id: m, map: "${ [1] }", on_item_error: collect, do: { tool: lost } } ], output: "ok" }
  given:  { plan: [ { id: a, tool: parked, on_error: continue } ], output: "ok" }
  slow:   { plan: [ { id: a, tool: slow, args: { ms: 2500, deaf: true } } ] }
  waits:
    plan:
      - { id: a, tool: lost, args: { n: 1 }, on_error: continue }
      - { id: w, wait: { type: signal, key: go }, needs: [a] }
  long:   { plan: [ { id: t, wait: { type: timer, for: 2s } } ] }
  loud:   { plan: [ { id: a, tool: lost, on_error: continue }, { id: b, tool: bad, needs: [a] } ] }
"""
UNDO = 'compensate: { tool: undo, args: { id: "${ .result.id }" } }'


class Downstream(http.server.ThreadingHTTPServer):
    """Records the keys of requests to /pay, and the payments that were compensated."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Customer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.paid, self.undone = [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self):
        self.paid, self.undone = [], []


class Customer(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        key = self.path.split("key=")[1].replace("%3A", ":")
        self.answer({"found": {"id": key} if key in self.server.paid else None})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Idempotency-Key")
        if self.path == "/undo":
            self.server.undone.append(body["id"])
            return self.answer({})
        self.server.paid.append(key)
        self.answer({"id": key})

    def log_message(self, *_):
        pass


class Shop:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.downstream = Downstream()
        text = AGENTS.replace("UNDO", UNDO).replace("URL", self.downstream.url)
        (self.folder / "agents.yaml").write_text(text)

    def run(self, *words, code=0, **env):
        clean_env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        done = subprocess.run([TESTING_BIN, *words], cwd=self.folder, env=dict(clean_env, NO_COLOR="1", **env), text=True,
                              capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @contextlib.contextmanager
    def serving(self):
        clean_env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        words = [TESTING_BIN, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"]
        with open(self.folder / "serve.log", "ab") as log:
            server = subprocess.Popen(words, cwd=self.folder, env=clean_env, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout.readline(), (self.folder / "serve.log").read_text()
            yield
        finally:
            server.terminate()
            server.wait(60)
            server.stdout.close()

    def job(self, job):
        return json.loads(self.run("job", job, "--json").stdout)

    def die_in_call(self, agent, job):
        """The request has arrived and taken effect; the log does not show it."""
        self.downstream.reset()
        self.run("run", "agents.yaml", agent, "--job-id", job, "--only", code=137, AETHERIS_FAILPOINTS="tool.after=exit")
        assert len(self.downstream.paid) == 1, self.downstream.paid

    def resume(self, job, code):
        return self.run("run", "agents.yaml", "--job-id", job, "--only", code=code)

    def ended(self, job, status, undone):
        body = self.job(job)
        assert body["status"] == status, body["status"]
        assert body["in_doubt"] == [], body["in_doubt"]
        assert len(body["compensated"]) == (1 if undone else 0), body["compensated"]
        assert self.downstream.undone == ([self.downstream.paid[0]] if undone else []), self.downstream.undone
        self.run("verify", job)


def key_of(body):
    assert len(body["in_doubt"]) == 1, body["in_doubt"]
    return body["in_doubt"][0]["idempotency_key"]


def wait_until(instant):
    due = time.strptime(instant[:19], "%Y-%m-%dT%H:%M:%S")
    time.sleep(max(0.0, calendar.timegm(due) + 1 - time.time()))


def until(condition, patience=60):
    give_up = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.05)


def a_cancelled_job_parks_for_its_unknown_call_and_ends_after_one_resolve(shop):
    for resolution in ("happened", "not_happened", "fail"):
        job = "cancelled-" + resolution
        shop.die_in_call("once", job)
        shop.run("cancel", job)
        shop.resume(job, 4)
        body = shop.job(job)
        assert (body["status"], body["parked"]["until"]) == ("parked", "resolve"), body
        assert shop.downstream.undone == []
        happened = resolution == "happened"
        answer = [json.dumps({"id": shop.downstream.paid[0]})] if happened else []
        if resolution == "not_happened":
            wait_until(body["in_doubt"][0]["resolvable_at"])
        shop.run("resolve", job, key_of(body), resolution, *answer)
        shop.resume(job, 1)
        assert len(shop.downstream.paid) == 1, "the call was not sent again"
        if resolution == "fail":
            assert shop.job(job)["status"] == "cancelled"
            assert len(shop.job(job)["in_doubt"]) == 1
        else:
            shop.ended(job, "cancelled", happened)


def a_job_past_its_deadline_parks_for_its_unknown_call_and_ends_after_one_resolve(shop):
    shop.die_in_call("late", "late")
    wait_until(shop.job("late")["deadline"])
    shop.resume("late", 4)
    body = shop.job("late")
    assert body["ending"]["code"] == "deadline_exceeded", body["ending"]
    shop.run("resolve", "late", key_of(body), "happened", json.dumps({"id": shop.downstream.paid[0]}))
    shop.resume("late", 1)
    shop.ended("late", "failed", True)


def an_idempotent_call_is_sent_again_under_its_key_and_compensated(shop):
    shop.die_in_call("repeat", "repeat")
    shop.run("cancel", "repeat")
    shop.resume("repeat", 1)
    assert len(shop.downstream.paid) == 2 and len(set(shop.downstream.paid)) == 1, shop.downstream.paid
    shop.ended("repeat", "cancelled", True)


def a_call_that_a_probe_confirms_is_compensated(shop):
    shop.die_in_call("probed", "probed")
    shop.run("cancel", "probed")
    shop.resume("probed", 1)
    assert len(shop.downstream.paid) == 1
    shop.ended("probed", "cancelled", True)


def a_call_with_an_unknown_outcome_is_shown_for_every_kind_of_end(shop):
    for agent, code in (("quiet", 0), ("items", 0), ("loud", 1)):
        done = shop.run("run", "agents.yaml", agent, "--job-id", agent, "--only", code=code)
        key = key_of(shop.job(agent))
        assert "calls whose outcome is unknown" in done.stderr, done.stderr
        for word in ("lost", f"call: {key}", "sent to the tool as the idempotency key", f"aetheris resolve {agent} {key[:12]} happened"):
            assert word in done.stderr, (word, done.stderr)
    shop.run("run", "agents.yaml", "given", "--job-id", "given", "--only", code=4)
    shop.run("resolve", "given", key_of(shop.job("given")), "fail")
    done = shop.resume("given", 0)
    assert "calls whose outcome is unknown" in done.stderr, done.stderr
    listed = json.loads(shop.run("jobs", "--in-doubt", "--json").stdout)["jobs"]
    assert {"quiet", "items", "loud", "given"} <= {one["id"] for one in listed}, listed


def an_outcome_reported_after_the_end_is_noted(shop):
    body = shop.job("quiet")
    key, seq = key_of(body), body["seq"]
    result = shop.run("resolve", "quiet", key, "happened", '{"id":7}', "--note", "on the statement").stdout
    assert "recorded in the log of the ended job" in result, result
    again = shop.job("quiet")
    assert (again["status"], again["result"], again["seq"]) == ("completed", "ok", seq + 1)
    noted = again["in_doubt"][0]["noted"]
    assert (noted["resolution"], noted["result"], noted["note"]) == ("happened", {"id": 7}, "on the statement"), noted
    assert "with the same payload" in shop.run("resolve", "quiet", key, "happened", '{"id":7}').stdout
    shop.run("resolve", "quiet", key, "not_happened", code=5)
    assert "noted: happened" in shop.run("jobs", "--in-doubt").stdout
    assert "noted: happened" in shop.run("job", "quiet").stdout
    shop.run("verify", "quiet")
    shop.run("rebuild")
    shop.run("cancel", "quiet", code=5)


def a_recovered_job_reports_the_number_of_unknown_outcomes(shop):
    shop.run("run", "agents.yaml", "quiet", "--job-id", "left", "--detach")
    done = shop.run("run", "agents.yaml", "long", "--job-id", "beside")
    assert "recovered job left: completed; the outcome of 1 call is unknown (aetheris job left" in done.stderr, done.stderr


def a_waiting_job_shows_its_abandoned_call(shop):
    done = shop.run("run", "agents.yaml", "waits", "--job-id", "waits", "--only", code=4)
    assert "given up" in done.stderr, done.stderr
    doubt, = shop.job("waits")["in_doubt"]
    assert (doubt["given_up"], doubt["commands"], doubt["tool"]) == (True, [], "lost"), doubt
    listed = shop.run("jobs", "--in-doubt").stdout
    assert re.search(r"^waits +waiting +waits$", listed, re.M) and "given up" in listed, listed
    shown = shop.run("job", "waits")
    assert "given up" in shown.stdout, shown.stdout


def a_fork_shows_the_abandoned_call_of_its_origin(shop):
    key = key_of(shop.job("waits"))
    seq = shop.job("waits")["seq"]
    shop.run("fork", "waits", "--at", str(seq), "--job-id", "forked")
    assert key_of(shop.job("forked")) == key
    shop.resume("forked", 4)
    shop.run("signal", "forked", "go", "1")
    done = shop.resume("forked", 0)
    assert "calls whose outcome is unknown" in done.stderr and key in done.stderr, done.stderr
    shop.run("verify", "forked")


def a_plan_that_drops_an_abandoned_call_does_not_hide_it(shop):
    key = key_of(shop.job("waits"))
    (shop.folder / "other.yaml").write_text("aetheris: 1\nagents: { waits: { plan: [ { id: z, wait: { type: signal, key: on } } ] } }\n")
    shop.run("plan", "waits", "other.yaml", "--drop", "a")
    assert key_of(shop.job("waits")) == key
    assert key in json.dumps(json.loads(shop.run("jobs", "--in-doubt", "--json").stdout))
    shop.resume("waits", 4)
    shop.run("signal", "waits", "on", "1")
    done = shop.resume("waits", 0)
    assert "calls whose outcome is unknown" in done.stderr and key in done.stderr, done.stderr
    last = json.loads(shop.run("events", "waits", "--json").stdout)["events"][-1]
    assert last["payload"]["in_doubt"] == [key], last
    assert "recorded in the log of the ended job" in shop.run("resolve", "waits", key, "happened", '{"id":7}').stdout
    assert shop.job("waits")["in_doubt"][0]["noted"]["resolution"] == "happened"
    shop.run("verify", "waits")


def a_result_that_arrives_after_the_end_is_noted(shop):
    with shop.serving():
        shop.run("run", "agents.yaml", "slow", "--job-id", "slow", "--detach")
        until(lambda: shop.job("slow")["status"] == "failed")
        until(lambda: shop.job("slow")["in_doubt"][0]["noted"])
    noted = shop.job("slow")["in_doubt"][0]["noted"]
    assert (noted["by"], noted["resolution"], noted["result"]) == ("runtime", "happened", {"slept_ms": 2500}), noted
    assert "noted: happened, by runtime" in shop.run("jobs", "--in-doubt").stdout
    assert "noted: happened, by runtime" in shop.run("job", "slow").stdout
    trace = json.loads(shop.run("trace", "slow", "--json").stdout)
    assert trace["nodes"][0]["world"] == "changed", trace["nodes"][0]
    events = json.loads(shop.run("events", "slow", "--json").stdout)["events"]
    assert [event["type"] for event in events].count("outcome_noted") == 1, events
    shop.run("verify", "slow")
    shop.run("rebuild")


def main():
    tests = [test for test in (a_cancelled_job_parks_for_its_unknown_call_and_ends_after_one_resolve,
                               a_job_past_its_deadline_parks_for_its_unknown_call_and_ends_after_one_resolve,
                               an_idempotent_call_is_sent_again_under_its_key_and_compensated,
                               a_call_that_a_probe_confirms_is_compensated,
                               a_call_with_an_unknown_outcome_is_shown_for_every_kind_of_end,
                               an_outcome_reported_after_the_end_is_noted,
                               a_recovered_job_reports_the_number_of_unknown_outcomes,
                               a_waiting_job_shows_its_abandoned_call,
                               a_fork_shows_the_abandoned_call_of_its_origin,
                               a_plan_that_drops_an_abandoned_call_does_not_hide_it,
                               a_result_that_arrives_after_the_end_is_noted)]
    words = sys.argv[1:]
    tests = [test for test in tests if all(word in test.__name__ for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(folder)
        for test in tests:
            test(shop)
            print(f"ok   {test.__name__.replace('_', ' ')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
