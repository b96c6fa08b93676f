#!/usr/bin/env python3
"""A planner, on the real program, with the scripted model server and a till that counts what it was asked to do.

A model's plan is checked, recorded and carried out; one that calls what there is not is mended once, or fails the job;
what a policy denies or the agent does not grant is not done; killed at every failpoint hit, the model's recorded answer is
not asked for again, the plan is the same, and nothing is paid twice.

  planner.py [WORDS]   only tests whose name contains WORDS
"""
import collections
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT", pathlib.Path(__file__).resolve().parent.parent))
BIN = os.environ.get("AETHERIS_BIN", str(ROOT / "build/dev/aetheris"))
SERVER = ROOT / "examples/model-server/server.mjs"
SCENARIO = SERVER.parent / "scenarios/planner.json"
PATIENCE = 120
KEY = "sk-of-planners-1"


class Till(http.server.BaseHTTPRequestHandler):
    """Orders and refunds: a repeated key is answered as the first time."""

    lock = threading.Lock()
    done = {}  # key: answer
    effects = collections.Counter()  # by path

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"id": self.path.rsplit("/", 1)[1], "total": 12})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["idempotency-key"]
        with Till.lock:
            if key not in Till.done:
                Till.effects[self.path] += 1
                Till.done[key] = {"of": body["order"], "amount": body["amount"]}
        self.answer(Till.done[key])

    def log_message(self, *_):
        pass


class Counter(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # whoever asked was killed


class Desk:
    """A folder with the example, a till and a model server."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-planner-"))
        self.write()
        Till.done, Till.effects = {}, collections.Counter()
        self.till = Counter(("127.0.0.1", 0), Till)
        threading.Thread(target=self.till.serve_forever, daemon=True).start()
        self.models = subprocess.Popen(["node", SERVER, "--journal", self.path / "asked.jsonl", "--scenario", SCENARIO],
                                       stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        url = self.models.stdout.readline().split()[-1]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.env |= {"SHOP_URL": f"http://127.0.0.1:{self.till.server_port}", "MODEL_URL": f"{url}/v1", "MODEL_KEY": KEY,
                     "MODEL": "planner"}

    def write(self, **changes):
        text = (ROOT / "examples/agents/planner.yaml").read_text()
        for old, new in changes.values():
            assert old in text, old
            text = text.replace(old, new)
        (self.path / "agents.yaml").write_text(text)

    def close(self):
        self.models.terminate()
        self.models.wait()
        self.models.stdout.close()
        self.till.shutdown()
        self.till.server_close()
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, *words, code=None, **env):
        done = subprocess.run([BIN, *words], cwd=self.path, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        assert code is None or done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert KEY not in done.stdout + done.stderr, "the key was shown"
        return done

    def job(self, message, job="t", code=None, durability="fused", **env):
        return self.run("run", "agents.yaml", "planner", "--job-id", job, "--durability", durability, "--input",
                        json.dumps({"message": message}), code=code, **env)

    def asked(self):
        path = self.path / "asked.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def events(self, job="t"):
        said = self.run("events", job, "--json")
        return json.loads(said.stdout)["events"] if said.returncode == 0 else []

    def plans(self, job="t"):
        return [e["payload"] for e in self.events(job) if e["type"] == "plan_generated"]

    def proved(self, job="t", status="completed"):
        seen = json.loads(self.run("job", job, "--json", code=0).stdout)
        assert seen["status"] == status, seen
        self.run("verify", job, code=0)
        return seen


def a_plan_that_a_model_makes_is_recorded_and_carried_out(desk):
    said = json.loads(desk.job("Refund order 43, please.", code=0).stdout)
    assert said == {"paid": {"of": "43", "amount": 12}}, said
    first, second = desk.plans()
    assert first["planned_by"] == "file" and second["planned_by"].startswith("model:main/"), (first, second)
    assert second["decision_locked"] is True and second["plan_hash"] != first["plan_hash"], second
    turns = [e["payload"] for e in desk.events() if e["type"] == "tool_invocation_started"]
    assert second["plan_input_hash"] == turns[0]["arguments_hash"], (second, turns[0])
    words = json.dumps(turns[0]["arguments"]["messages"])
    assert "Pays an order back" in words and "exclusiveMinimum" in words and KEY not in words, words
    assert desk.asked() == 1 and Till.effects == {"/refunds": 1}, Till.effects
    trace = desk.run("trace", "t", code=0).stdout
    for node in ("planner", "order", "pay"):
        assert node in trace, trace
    assert [n["id"] for n in second["task_graph"]["nodes"]] == ["planner", "order", "pay"], second
    desk.run("replay", "t", code=0)
    desk.job("Refund order 43, please.", code=0)
    assert desk.asked() == 1, "a recorded plan was asked for again"
    desk.proved()


def a_plan_that_is_none_is_mended_once_or_fails_the_job(desk):
    said = json.loads(desk.job("A slip: refund order 43, please.", code=0).stdout)
    assert said == {"paid": {"of": "43", "amount": 12}} and desk.asked() == 2, said
    choices = [e["payload"]["payload"] for e in desk.events() if e["type"] == "decision_recorded"]
    assert "`find_order`, which may not be called; there are: get_order, refund" in choices[0]["repair"], choices
    desk.proved()
    done = desk.job("This is never a plan.", "bad", code=1)
    assert "plan_invalid" in done.stderr and "wire_money" in done.stderr, done.stderr
    assert desk.asked() == 4 and Till.effects == {"/refunds": 1} and len(desk.plans("bad")) == 1, Till.effects
    desk.proved("bad", "failed")


def what_a_policy_denies_or_nobody_granted_is_not_done(desk):
    done = desk.job("Be sneaky: refund order 43.", code=1)
    assert "denied" in done.stderr and "more than anybody pays here" in done.stderr, done.stderr
    desk.write(grants=("grants: [payments]", "grants: []"))
    noted = desk.run("check", "agents.yaml", code=0).stderr
    assert "agents.planner.planner.tools" in noted and "`refund` (`payments`)" in noted, noted
    asked = desk.asked()
    done = desk.job("Refund order 43, please.", "ungranted", code=1)
    assert "plan_invalid" in done.stderr and "`refund`, which may not be called" in done.stderr, done.stderr
    assert desk.asked() == asked + 2 and len(desk.plans("ungranted")) == 1, "its model is told why, before anything is done"
    assert Till.effects == {}, Till.effects
    desk.proved("ungranted", "failed")


def killed_at_every_failpoint_hit_it_makes_one_plan_and_pays_once(desk):
    words = "A slip: refund order 43, please."
    for durability in ("fused", "split"):
        calm = desk.job(words, f"calm-{durability}", code=0, durability=durability, AETHERIS_FAILPOINTS_TRACE="1")
        points = list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", calm.stderr)))
        assert len(points) > 10, points
        plan = desk.plans(f"calm-{durability}")[1]["plan_hash"]
        for point in points:
            job = f"{durability}-{point}".replace("@", "-").replace(".", "-")
            paid, asked = Till.effects["/refunds"], desk.asked()
            died = desk.job(words, job, durability=durability, AETHERIS_FAILPOINTS=point.replace("@", "=exit@"))
            assert died.returncode in (0, 137), (point, died.stderr)
            if died.returncode:
                known = sum(e["type"] == "command_committed" and "llm_model" in e["payload"] for e in desk.events(job))
                then = desk.asked()
                lived = desk.job(words, job, code=0, durability=durability)
                assert lived.stdout == calm.stdout, (point, lived.stdout)
                assert desk.asked() - then <= 2 - known, (point, "a recorded answer was asked for again")
            assert Till.effects["/refunds"] - paid == 1, (point, Till.effects)
            assert desk.asked() - asked <= 3, point
            assert [p["plan_hash"] for p in desk.plans(job)[1:]] == [plan], point
            desk.proved(job)


def main():
    tests = (a_plan_that_a_model_makes_is_recorded_and_carried_out, a_plan_that_is_none_is_mended_once_or_fails_the_job,
             what_a_policy_denies_or_nobody_granted_is_not_done, killed_at_every_failpoint_hit_it_makes_one_plan_and_pays_once)
    wanted = " ".join(sys.argv[1:])
    for test in tests:
        name = test.__name__.replace("_", " ")
        if wanted not in name:
            continue
        desk = Desk()
        try:
            test(desk)
        finally:
            desk.close()
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
