#!/usr/bin/env python3
"""Versions of code, and calls of functions whose server is killed: a server and workers of the TypeScript SDK.

Prints `ok NAME` or `not ok NAME` for each test.
  code_versions.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
from shared.code_world import CodeWorld  # noqa: E402
from shared.home import run_tests, until  # noqa: E402

RESUME_S = 20  # for so long a server that was started waits for reports of workers (docs/worker-protocol.md)
TESTS = []
# `steps` is the body of the agent's function.
AGENT = """
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { agent } from "SDK/src/index.ts";

const note = (text) => appendFileSync("calls.txt", text + "\\n");
const wait = async (file) => { while (!existsSync(file)) await delay(10); };

export const work = agent("work", DEFINITION, async (ctx, input) => {
STEPS
});
"""
FIRST = '  const first = await ctx.run("first", "idempotent", { n: 1 }, () => { note("first"); return 1; });\n'
GO = '  await ctx.wait({ type: "signal", wait_key: "go" });\n'
LAST = '  return { last: await ctx.run("last", "idempotent", { n: 1 }, () => { note("VERSION"); return "VERSION"; }) };\n'
OTHER_FIRST = '  await ctx.run("first", "idempotent", { n: 2 }, () => 2);\n'


def test(function):
    TESTS.append(function)
    return function


class World(CodeWorld):
    """With workers of TypeScript, by the version of their code. The clock of the server can be set."""

    def __init__(self):
        self.sdk = npm_packages.sdk()
        super().__init__([], {})
        self.clock = self.folder / "clock"
        self.env["AETHERIS_CLOCK_OFFSET_FILE"] = str(self.clock)
        self.clock.write_text("0")
        self.workers = {}

    def __exit__(self, *rest):
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        return super().__exit__(*rest)

    def start_version(self, version, *steps, wait="1h", policy="route"):
        definition = {"version": version, "versions": {"policy": policy}}
        if policy == "route":
            definition["versions"]["wait"] = wait
        path = self.folder / f"{version}.ts"
        path.write_text(AGENT.replace("SDK", str(self.sdk)).replace("DEFINITION", json.dumps(definition))
                        .replace("STEPS", "".join(steps)).replace("VERSION", version))
        self.workers[version] = self.start([oracles.node(), self.sdk / "src/worker_main.ts", path])

    def stop_version(self, version):
        worker = self.workers.pop(version)
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)

    def signal(self, name):
        code, out, error = self.command("signal", name, "go")
        assert code == 0, (out, error)

    def events(self, name, kind):
        code, out, error = self.command("events", name)
        assert code == 0, (out, error)
        listed = json.loads(out)
        return [one for one in listed["events"] if one["type"] == kind]

    def moves(self, name):
        return [one["payload"]["payload"] for one in self.events(name, "decision_recorded")
                if one["payload"]["kind"] == "route"]

    def registered(self):
        return next(one["version"] for one in self.request("/api/agents")["agents"] if one["name"] == "work")

    def are_connected(self, count):
        listed = self.request("/api/workers")
        return listed is not None and len(listed["code_workers"]) == count

    def decides(self, name, seconds=0):
        """Sets the server's clock forward, and has the engine decide about this job: an unread message is an event."""
        self.clock.write_text(str(int(self.clock.read_text()) + seconds * 1_000_000))
        before = self.job(name)["seq"]
        assert self.request(f"/api/jobs/{name}/message", {"channel": "unread", "payload": None, "message_id": str(before)})
        until(lambda: self.job(name)["seq"] > before)
        return self.job(name)


@test
def a_job_stays_with_its_version_while_a_worker_offers_it():
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST)
        world.create("work", {}, "job-1")
        world.reaches("job-1", "waiting")
        world.start_version("v2", OTHER_FIRST, GO, LAST)
        until(lambda: world.registered() == 2)
        world.signal("job-1")
        assert world.reaches("job-1", "completed", "parked", "failed")["result"] == {"last": "v1"}, world.output()
        assert world.moves("job-1") == []
        # Each worker connects again: neither replaces the other.
        for _ in range(2):
            for version in ("v1", "v2"):
                world.stop_version(version)
            world.start_version("v1", FIRST, GO, LAST)
            world.start_version("v2", OTHER_FIRST, GO, LAST)
        until(lambda: world.are_connected(2))
        assert world.registered() == 2, world.output()
        world.create("work", {}, "job-2")
        world.reaches("job-2", "waiting")
        world.signal("job-2")
        assert world.reaches("job-2", "completed", "parked", "failed")["result"] == {"last": "v2"}, world.output()
        for name in ("job-1", "job-2"):
            world.verify(name)


@test
def a_trial_that_fits_moves_the_job():
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST, wait="100ms")
        world.create("work", {}, "job-1")
        world.reaches("job-1", "waiting")
        world.stop_version("v1")
        world.start_version("v2", FIRST, GO, LAST, wait="100ms")
        until(lambda: world.registered() == 2)
        world.signal("job-1")
        assert world.reaches("job-1", "completed", "parked", "failed")["result"] == {"last": "v2"}, world.output()
        assert world.moves("job-1") == [{"from": "v1", "requests": 2, "to": "v2"}]
        assert world.lines("calls.txt") == ["first", "v2"]
        world.verify("job-1")


@test
def a_trial_that_diverges_parks_the_job_until_code_comes_that_fits():
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST, wait="100ms")
        world.create("work", {}, "job-1")
        world.reaches("job-1", "waiting")
        world.stop_version("v1")
        world.start_version("v2", OTHER_FIRST, GO, LAST, wait="100ms")
        until(lambda: world.registered() == 2)
        world.signal("job-1")
        job = world.reaches("job-1", "parked", "completed", "failed")
        assert job["parked"]["reason"] == "non_determinism" and job["parked"]["until"] == "version", world.output()
        assert [one["payload"]["version"] for one in world.events("job-1", "routine_diverged")] == ["v2"]
        assert world.moves("job-1") == []
        world.start_version("v3", FIRST, GO, LAST, wait="100ms")
        assert world.reaches("job-1", "completed", "failed")["result"] == {"last": "v3"}, world.output()
        assert world.moves("job-1") == [{"from": "v1", "requests": 2, "to": "v3"}]
        world.verify("job-1")


@test
def a_job_that_its_code_failed_goes_on_with_the_corrected_code():
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, '  throw new TypeError("a typo");\n')
        world.create("work", {}, "job-1")
        assert world.reaches("job-1", "parked")["parked"]["reason"] == "routine_failed"
        world.start_version("v2", FIRST, LAST)
        assert world.reaches("job-1", "completed", "failed")["result"] == {"last": "v2"}, world.output()
        assert world.lines("calls.txt") == ["first", "v2"]
        world.verify("job-1")


@test
def a_strict_job_waits_for_its_version():
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST, policy="strict")
        world.create("work", {}, "job-1")
        world.reaches("job-1", "waiting")
        world.stop_version("v1")
        world.start_version("v2", FIRST, GO, LAST, policy="strict")
        until(lambda: world.registered() == 2)
        world.signal("job-1")
        assert world.reaches("job-1", "parked", "completed")["parked"]["reason"] == "execution_version_mismatch"
        world.start_version("v1", FIRST, GO, LAST, policy="strict")
        assert world.reaches("job-1", "completed", "failed")["result"] == {"last": "v1"}, world.output()
        world.verify("job-1")


@test
def with_warn_the_newest_version_that_fits_runs():
    with World() as world:
        world.options = ["--code-versions", "warn"]
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST)
        for name in ("job-1", "job-2"):
            world.create("work", {}, name)
            world.reaches(name, "waiting")
        world.start_version("v2", FIRST, GO, LAST)
        until(lambda: world.registered() == 2)
        world.signal("job-1")
        assert world.reaches("job-1", "completed", "parked", "failed")["result"] == {"last": "v2"}, world.output()
        world.start_version("v3", OTHER_FIRST, GO, LAST)
        until(lambda: world.registered() == 3)
        world.stop_version("v2")
        world.signal("job-2")
        assert world.reaches("job-2", "completed", "parked", "failed")["result"] == {"last": "v1"}, world.output()
        assert [one["payload"]["version"] for one in world.events("job-2", "routine_diverged")] == ["v3"]
        for name in ("job-1", "job-2"):
            world.verify(name)


@test
def patched_is_false_for_a_job_that_began_before_the_change():
    change = ('  if (ctx.patched("cents")) await ctx.run("round", "idempotent", {}, () => { note("round"); return 0; });\n')
    with World() as world:
        world.start_server()
        world.start_version("v1", FIRST, GO, LAST, wait="100ms")
        world.create("work", {}, "before")
        world.reaches("before", "waiting")
        world.stop_version("v1")
        world.start_version("v2", change, FIRST, GO, LAST, wait="100ms")
        until(lambda: world.registered() == 2)
        world.create("work", {}, "after")
        world.reaches("after", "waiting")
        assert world.lines("calls.txt") == ["first", "round", "first"]
        for name in ("before", "after"):
            world.signal(name)
            assert world.reaches(name, "completed", "parked", "failed")["result"] == {"last": "v2"}, world.output()
            world.verify(name)
        patches = [[one["payload"]["payload"] for one in world.events(name, "decision_recorded")
                    if one["payload"]["kind"] == "patch"] for name in ("before", "after")]
        assert patches == [[{"patch": "cents", "value": False}], [{"patch": "cents", "value": True}]], patches


MAIL = ('  return { mail: await ctx.run("mail", "at_most_once", {}, async () => {\n'
        '    note("mail"); await wait("go.txt"); return "sent"; }) };\n')


@test
def a_function_that_ends_while_the_server_is_dead_is_not_in_doubt():
    with World() as world:
        world.start_server()
        world.start_version("v1", MAIL)
        world.create("work", {}, "job-1")
        until(lambda: world.lines("calls.txt") == ["mail"])
        world.kill_server()
        (world.folder / "go.txt").touch()
        time.sleep(0.2)
        world.start_server()
        job = world.reaches("job-1", "completed", "parked", "failed")
        assert job["status"] == "completed" and job["result"] == {"mail": "sent"}, (job, world.output())
        assert world.lines("calls.txt") == ["mail"]
        world.verify("job-1")


@test
def a_function_that_runs_while_the_server_restarts_is_awaited():
    with World() as world:
        world.start_server()
        world.start_version("v1", MAIL)
        world.create("work", {}, "job-1")
        until(lambda: world.lines("calls.txt") == ["mail"])
        world.kill_server()
        world.start_server()
        until(lambda: world.are_connected(1))
        job = world.decides("job-1", seconds=RESUME_S + 1)
        assert job["status"] in ("running", "queued") and not job["in_doubt"], (job, world.output())
        (world.folder / "go.txt").touch()
        job = world.reaches("job-1", "completed", "parked", "failed")
        assert job["status"] == "completed" and job["result"] == {"mail": "sent"}, (job, world.output())
        assert world.lines("calls.txt") == ["mail"]
        world.verify("job-1")


@test
def a_function_whose_worker_died_with_the_server_is_in_doubt():
    with World() as world:
        world.start_server()
        world.start_version("v1", MAIL)
        world.create("work", {}, "job-1")
        until(lambda: world.lines("calls.txt") == ["mail"])
        world.workers["v1"].kill()
        world.kill_server()
        began = time.monotonic()
        world.start_server()
        world.start_version("v1", MAIL)
        until(lambda: world.are_connected(1))
        job = world.decides("job-1")
        assert job["status"] in ("running", "queued") or time.monotonic() - began > RESUME_S, (job, world.output())
        world.decides("job-1", seconds=RESUME_S + 1)
        job = world.reaches("job-1", "completed", "parked", "failed")
        assert job["status"] == "parked" and job["parked"]["reason"] == "invocation_in_doubt", (job, world.output())
        assert world.lines("calls.txt") == ["mail"]
        world.verify("job-1")


if __name__ == "__main__":
    sys.exit(run_tests("code versions", TESTS, " ".join(sys.argv[1:])))
