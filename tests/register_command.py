#!/usr/bin/env python3
"""`aetheris register`: the agents of a file are registered with a server, before its workers offer them.

Prints `ok NAME` or `not ok NAME` for each test.
  register_command.py [WORDS]   only tests whose name contains WORDS
"""
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
import preflight  # noqa: E402
from shared.api_keys import bearer, serving  # noqa: E402
from shared.home import PATIENCE, expect, run_tests, until  # noqa: E402

TESTS = []
ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVER = """
aetheris: 1
tools: { pay: { worker: pay, effect: idempotent } }
agents: { asks: { plan: [ { id: w, wait: { type: signal, key: go } } ] } }
"""
PLANS = """
aetheris: 1
tools: { pay: { worker: pay, effect: idempotent } }
agents:
  one: { plan: [ { id: p, tool: pay, args: { order: "1" } } ] }
  two: { plan: [ { id: p, tool: pay, args: { order: "2" } } ] }
"""


def test(function):
    TESTS.append(function)
    return function


class Registering:
    """A server with keys, and files of code beside its agents file."""

    def __init__(self, s):
        self.s, self.folder = s, s.h.path
        self.env = {"AETHERIS_SDK_TYPESCRIPT": str(npm_packages.sdk()), "AETHERIS_SDK_PYTHON": str(ROOT / "sdk/python"),
                    "PATH": f"{oracles.node().parent}:{os.environ['PATH']}"}

    def write(self, name, text, executable=False):
        (self.folder / name).write_text(text.replace("SDK", self.env["AETHERIS_SDK_TYPESCRIPT"]))
        (self.folder / name).chmod(0o755 if executable else 0o644)

    def code(self, version, *steps):
        self.write("agent.ts", preflight.AGENT.replace("VERSION", version).replace("STEPS", "".join(steps)))

    def register(self, *words, role="admin", url=None):
        env = {**self.env, "AETHERIS_API_KEY": self.s.keys[role]}
        return self.s.h.run("register", *words, "--url", url or self.s.url, env=env)

    def agent(self, name):
        status, answer = self.s.get(f"/api/agents/{name}", headers=bearer(self.s.keys["admin"]))
        return (answer["version"], answer["plan_hash"]) if status == 200 else None


def registering():
    return serving("server.yaml", roles=("admin", "operator", "worker"), files={"server.yaml": SERVER})


@test
def an_agent_of_code_is_registered_and_its_worker_runs_it():
    with registering() as s:
        r = Registering(s)
        r.code("v1", preflight.FIRST, preflight.THEN, preflight.LAST)
        done = expect(r.register("agent.ts"), 0)
        assert done.out == "agent refund: version 1\n", done
        assert expect(r.register("agent.ts"), 0).out == "agent refund: version 1, unchanged\n"
        r.code("v2", preflight.FIRST, preflight.LAST)
        done = expect(r.register("agent.ts", "--json"), 0).json()
        version, plan = r.agent("refund")
        assert done == {"agents": [{"is_new": True, "name": "refund", "plan_hash": plan, "version": 2}]} and version == 2, done
        assert not (r.folder / "calls.txt").exists(), "a function was called"
        worker = subprocess.Popen(["node", npm_packages.sdk() / "src/worker_main.ts", "agent.ts"], cwd=r.folder,
                                  env={**os.environ, **r.env, "AETHERIS_URL": s.url, "AETHERIS_API_KEY": s.keys["worker"]})
        try:
            headers = bearer(s.keys["admin"])
            until(lambda: s.get("/api/workers", headers=headers)[1]["code_workers"])
            body = {"agent": "refund", "input": {"order": "7"}, "id": "j"}
            assert s.post("/api/jobs", body, headers=headers)[0] in (200, 201, 202)
            until(lambda: s.get("/api/jobs/j", headers=headers)[1]["status"] == "completed")
            job = s.get("/api/jobs/j", headers=headers)[1]
            assert job["result"] == {"paid": "7", "end": 1} and job["plan_hash"] == plan, job
            assert r.agent("refund") == (2, plan), "what the worker offers is the version that was registered"
        finally:
            worker.terminate()
            worker.wait(PATIENCE)


@test
def the_agents_of_python_and_of_an_agents_file_are_registered():
    with registering() as s:
        r = Registering(s)
        r.write("agent.py", preflight.PYTHON.replace("VERSION", "v1").replace("STEPS", "paid = 1"))
        assert expect(r.register("agent.py"), 0).out == "agent refund: version 1\n"
        r.write("plans.yaml", PLANS)
        assert expect(r.register("plans.yaml"), 0).out == "agent one: version 1\nagent two: version 1\n"
        r.write("plans.yaml", PLANS.replace('order: "2"', 'order: "3"'))
        assert expect(r.register("plans.yaml"), 0).out == "agent one: version 1, unchanged\nagent two: version 2\n"


@test
def what_cannot_be_registered_is_reported():
    with registering() as s:
        r = Registering(s)
        r.write("plans.yaml", PLANS)
        denied = expect(r.register("plans.yaml", role="operator"), 2)
        assert "agent one" in denied.err and "[forbidden]" in denied.err and r.agent("one") is None, denied
        r.write("other.yaml", PLANS.replace("pay: {", "other: {").replace("tool: pay", "tool: other"))
        unknown = expect(r.register("other.yaml"), 2)
        assert "other.yaml: " in unknown.err and "other" in unknown.err and "[plan_invalid]" in unknown.err, unknown
        faults = expect(r.register("other.yaml", "--json"), 2).json()
        assert faults["code"] == "plan_invalid", faults
        r.write("bad.yaml", PLANS.replace("tool: pay", "tol: pay"))
        assert "bad.yaml:" in expect(r.register("bad.yaml"), 2).err
        r.write("bad.ts", "throw new Error('no agent here');")
        assert "no agent here" in expect(r.register("bad.ts"), 7).err
        assert "cannot read missing.ts" in expect(r.register("missing.ts"), 2).err
        assert "no server responds" in expect(r.register("plans.yaml", url="http://127.0.0.1:1"), 7).err
        without = expect(s.h.run("register", "plans.yaml", "--store", "sqlite:none.db"), 2)
        assert "--url or AETHERIS_URL" in without.err, without
        owner = expect(s.h.run("register", "plans.yaml"), 0)  # the process that owns the default store
        assert owner.out == "agent one: version 1\nagent two: version 1\n", owner


if __name__ == "__main__":
    sys.exit(run_tests("register", TESTS, " ".join(sys.argv[1:])))
