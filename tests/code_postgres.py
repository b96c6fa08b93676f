#!/usr/bin/env python3
"""Code agents on a PostgreSQL store, in real processes: kills, faults at frames, and a lease that is lost.

Prints `ok NAME` or `not ok NAME` for each test.
  code_postgres.py [WORDS]   only tests whose name contains WORDS
"""
import os
import random
import signal
import sys
import types

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.code_world import ENDED, CodeWorld, kill_at_any_time  # noqa: E402
from shared.home import until  # noqa: E402
from shared.postgres_server import run_with_server, running_server  # noqa: E402
from shared.program import ROOT, TESTING_BIN  # noqa: E402
sys.path.insert(0, str(ROOT / "sdk/conformance"))
import run as conformance  # noqa: E402
from harness.world import World  # noqa: E402

SEED = int(os.environ.get("AETHERIS_SEED") or random.SystemRandom().randrange(1 << 31))
SECONDS = 120.0 if os.environ.get("AETHERIS_SLOW_TESTS") else 10.0  # of the faults
SCENARIOS = ("tools_of_the_worker", "approval", "loop_of_turns")
LEASE = ["--lease", "2s"]
TESTS = []
AGENT = '''
import os
import pathlib
import time
from aetheris import agent, tool

NOTES = pathlib.Path(os.environ["NOTES"])
RETRY = {"max_attempts": 10, "initial_backoff": "10ms", "retry_on": ["timeout", "worker_lost"]}


def note(name, text):
    with open(NOTES / name, "a") as file:
        file.write(text + "\\n")


@tool(effect="idempotent", timeout="60s", retry=RETRY)
def pay_back(args, call):
    paid = NOTES / "payments.txt"
    if not paid.exists() or call.key not in paid.read_text().splitlines():
        note("payments.txt", call.key)
    return True


@agent
async def refund(ctx, input):
    await ctx.run("read", "read", lambda args, call: input)
    await ctx.sleep(0.02)
    paid = await ctx.call(pay_back, {})
    await ctx.run("mail", "at_most_once", lambda args, call: note("mails.txt", call.key))
    return paid


def step(args, call):
    note("steps.txt", call.key)
    time.sleep(0.1)


@agent
async def steps(ctx, input):
    for _ in range(input["steps"]):
        await ctx.run("step", "idempotent", step)
    return await ctx.run("where", "read", lambda args, call: os.getpid())
'''


def test(function):
    TESTS.append(function)
    return function


class Store(CodeWorld):
    """A server with a PostgreSQL store, and a worker of Python. `notes`: the folder of what its functions did."""

    def __init__(self, url, notes=None):
        super().__init__([sys.executable, "-m", "aetheris", "agent.py"], {"agent.py": AGENT},
                         {"PYTHONPATH": str(ROOT / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1", "AETHERIS_STORE": url})
        self.env["NOTES"] = str(notes or self.folder)
        self.options = LEASE
        self.start_server()
        self.start_worker()

    def place(self, words):
        return {} if "serve" in words else {"AETHERIS_URL": f"http://{self.address}"}


@test
def killed_at_any_time_effects_happen_once():
    repeat = f"AETHERIS_SEED={SEED} tests/code_postgres.py killed"
    with Store(running_server().database()) as world:
        kill_at_any_time(world, lambda n: ("refund", {}, f"refund-{n}"), "both", random.Random(SEED), lambda result: result,
                         repeat)


@test
def scenarios_hold_with_faults_at_frames():
    class PostgresWorld(World):
        def environment(self):
            return {"AETHERIS_STORE": running_server().database(), "PYTHONPATH": str(ROOT / "sdk/python")}

        def upstream(self):
            return "127.0.0.1", self.port
    options = types.SimpleNamespace(parallel=3, keep=False, library=None, kind=None, program=TESTING_BIN, sdk="python",
                                    worker=f"{sys.executable} -m aetheris {ROOT}/sdk/conformance/agents/script.py",
                                    verbose=False)
    suite = conformance.Suite(options, PostgresWorld)
    chosen = [one for one in conformance.scenarios.load() if one.name in SCENARIOS]
    assert len(chosen) == len(SCENARIOS), chosen
    for one in chosen:
        # Where processes share the store, a report does not prove that a call of the last ten seconds was not received.
        one.may_be_in_doubt = lambda fault, one=one: type(one).may_be_in_doubt(one, fault) or (
            fault.action.startswith("kill_server") and "at_most_once" in {effect for effect, _ in one.performs.values()})
    suite.run_all([(one, None) for one in chosen])
    faults = [(one, fault) for one in chosen if one.name in suite.frames
              for fault in conformance.faults_of(suite.frames[one.name])
              if fault.action.startswith(("cut", "kill"))]
    random.Random(SEED).shuffle(faults)
    done = suite.run_all(faults, conformance.time.monotonic() + SECONDS)
    suite.shop.close()
    suite.judge_faults(True)
    print(f"# {done} of {len(faults)} faults", flush=True)
    assert not suite.failures, f"{len(suite.failures)} runs failed; AETHERIS_SEED={SEED}"


@test
def a_lease_that_is_lost_stops_the_routine_and_another_server_continues():
    url = running_server().database()
    with Store(url) as first, Store(url, first.folder) as second:
        def routines():
            return sum(one["routines"] for one in first.request("/api/workers")["code_workers"])

        def done():
            return len(set(first.lines("steps.txt")))
        until(lambda: second.request("/api/agents/steps"))
        until(lambda: first.request("/api/agents/steps"))
        second.server.send_signal(signal.SIGSTOP)  # the first one claims the job
        first.create("steps", {"steps": 30}, "steps-1")
        until(lambda: done() >= 3 and routines() == 1)
        first.server.send_signal(signal.SIGSTOP)
        second.server.send_signal(signal.SIGCONT)
        begun = done()
        until(lambda: done() > begun + 3)  # in the worker of the second one
        first.server.send_signal(signal.SIGCONT)
        until(lambda: routines() == 0)  # `stop` with `lost`
        assert first.worker.poll() is None and first.server.poll() is None, first.output()
        job = second.reaches("steps-1", *ENDED)
        assert job["status"] == "completed" and job["result"] == second.worker.pid, (job, first.output(), second.output())
        keys = first.lines("steps.txt")
        assert len(set(keys)) == 30 and len(keys) <= 32, keys  # what was in flight is sent again, with the same key
        second.verify("steps-1")
        first.create("steps", {"steps": 1}, "steps-2")  # both go on
        first.reaches("steps-2", "completed")


if __name__ == "__main__":
    sys.exit(run_with_server("code postgres", TESTS))
