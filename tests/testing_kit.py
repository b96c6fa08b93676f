#!/usr/bin/env python3
"""The SDKs' kits for tests: their own tests, the examples of docs/testing-agents.md, and the clock of the server.

Prints `ok NAME` or `not ok NAME` for each test.
  testing_kit.py [WORDS]   only tests whose name contains WORDS
"""
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import preflight  # noqa: E402
from shared.home import PATIENCE, run_tests, until  # noqa: E402
from shared.program import BIN, ROOT  # noqa: E402

TESTS = []
PAGE = ROOT / "docs/testing-agents.md"


def test(function):
    TESTS.append(function)
    return function


def environment():
    return {**os.environ, "AETHERIS_BIN": str(BIN), "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "sdk/python")}


def examples(language):
    """The blocks of this language. Each is a file: it begins with its imports."""
    found = [block for block in re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
             if block.startswith("import ")]
    assert len(found) == 3, len(found)
    return found


def node_tests(path, folder):
    """How many tests passed."""
    done = subprocess.run([folder / "node_modules/.bin/node", "--test", "--test-reporter=tap", path], cwd=folder,
                          capture_output=True, text=True, env=environment(), timeout=1200)
    count = re.search(r"^# pass (\d+)$", done.stdout, re.M)
    assert done.returncode == 0 and count, done.stdout[-6000:] + done.stderr[-2000:]
    return int(count[1])


@test
def the_kit_for_typescript_passes_its_tests():
    folder = npm_packages.sdk()
    for name, least in (("testing", 13), ("testing_models", 6), ("testing_replay", 4)):
        assert node_tests(folder / f"test/{name}.test.ts", folder) >= least


@test
def the_kit_for_python_passes_its_tests():
    done = subprocess.run([sys.executable, "-m", "unittest", "-k", "test_testing"], cwd=ROOT / "sdk/python", env=environment(),
                          capture_output=True, text=True, timeout=1200)
    passed = re.search(r"^Ran (\d+) tests", done.stderr, re.M)
    assert done.returncode == 0 and passed and int(passed[1]) >= 25 and "skipped" not in done.stderr, done.stderr[-6000:]


@test
def the_example_for_typescript_runs_and_has_its_types():
    folder = npm_packages.sdk()
    place = folder / "test/kit_example"
    place.mkdir(exist_ok=True)
    for number, text in enumerate(examples("ts")):
        text = text.replace('"aetheris"', '"../../src/index.ts"').replace('"aetheris/testing"', '"../../src/testing.ts"')
        (place / f"example{number}.test.ts").write_text(text)
    (place / "tsconfig.json").write_text(json.dumps({"extends": "../../tsconfig.json", "include": ["*.ts"]}))
    done = subprocess.run([folder / "node_modules/.bin/tsc", "-p", place], cwd=folder, capture_output=True, text=True,
                          env=npm_packages.environment(folder), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node_tests(place / f"example{number}.test.ts", folder) for number in range(3)] == [2, 1, 1]


@test
def the_example_for_python_runs():
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(examples("python")):
            (pathlib.Path(folder) / f"test_example{number}.py").write_text(text)
        done = subprocess.run([sys.executable, "-m", "unittest"], cwd=folder, env=environment(), capture_output=True,
                              text=True, timeout=600)
        assert done.returncode == 0 and "Ran 4 tests" in done.stderr, done.stderr


REPLAYS_TYPESCRIPT = """
import * as testing from "SDK/src/testing.ts";
const { refund, pay } = await import(`./${process.argv[2]}`);
const found = await testing.replay({ store: "sqlite:.aetheris/aetheris.db" }, [refund, pay]).catch((error) => error);
console.log(found instanceof Error ? `${found.code} ${found.message}` : JSON.stringify(found));
"""
REPLAYS_PYTHON = """
import importlib, json, sys
from aetheris import AetherisError, testing
code = importlib.import_module(sys.argv[1][:-3])
try:
    found = testing.replay(testing.StoredJobs(store="sqlite:.aetheris/aetheris.db"), [code.refund, code.pay])
    print(json.dumps([one._asdict() for one in found]))
except AetherisError as error:
    print(error.code, error)
"""


def check_replays_of_a_store(folder, program, file, changed):
    """`program` replays the jobs of the store with the code of a file; nothing is called or written."""
    store, calls = folder.store(), folder.calls()

    def replayed(name):
        done = subprocess.run([*program, name], cwd=folder.path, env={**folder.env, **environment()}, capture_output=True,
                              text=True, timeout=PATIENCE)
        assert done.returncode == 0, done
        return done.stdout
    jobs = json.loads(replayed(file))
    assert [(one["job"], one["agent"], one["verdict"], one["recorded_requests"]) for one in jobs] == [
        ("one", "refund", "continues", 2), ("two", "refund", "continues", 2)], jobs
    text = replayed(changed)
    assert text.startswith("replay_diverged 2 of 2") and "job one (agent refund) diverges" in text, text
    assert 'recorded: call of tool "pay"' in text and changed in text, text
    assert folder.calls() == calls == ["pay", "pay"] and folder.store() == store


@test
def the_kit_for_typescript_replays_the_jobs_of_a_store():
    with preflight.Folder() as folder:
        folder.code("agent.ts", preflight.FIRST, preflight.THEN, preflight.LAST)
        folder.waiting_job("one", "two")
        folder.code("changed.ts", preflight.FIRST.replace("input.order", "`${input.order}0`"), preflight.THEN, preflight.LAST)
        folder.write("replays.mts", REPLAYS_TYPESCRIPT, executable=False)
        node = npm_packages.sdk() / "node_modules/.bin/node"
        check_replays_of_a_store(folder, [node, "replays.mts"], "agent.ts", "changed.ts")


@test
def the_kit_for_python_replays_the_jobs_of_a_store():
    with preflight.Folder() as folder:
        folder.python("agent.py", 'paid = await ctx.call(pay, {"order": input["order"]})')
        folder.waiting_job("one", "two", file="agent.py")
        folder.python("changed.py", 'paid = await ctx.call(pay, {"order": input["order"] * 2})')
        folder.write("replays.py", REPLAYS_PYTHON, executable=False)
        check_replays_of_a_store(folder, [sys.executable, "-B", "replays.py"], "agent.py", "changed.py")


@test
def both_forms_of_the_package_have_the_kit():
    dist = npm_packages.built_sdk() / "dist"
    for name in ("testing.js", "testing.d.ts", "cjs/testing.js", "cjs/testing.d.ts"):
        assert (dist / name).exists(), name
    node = npm_packages.sdk() / "node_modules/.bin/node"
    code = f"const t = require({str(dist / 'cjs/testing.js')!r}); console.log(typeof t.start, typeof t.crashEverywhere)"
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "function function\n", done


AGENTS = """
aetheris: 1
tools:
  note: { command: [echo, fine], effect: read }
agents:
  sleeps:
    plan:
      - { id: first, wait: { type: timer, for: 1d } }
      - { id: second, needs: [first], wait: { type: timer, for: 1d } }
      - { id: say, needs: [second], tool: note }
  asks: { plan: [ { id: w, wait: { type: human, expires: 2d } } ] }
  waits: { plan: [ { id: w, wait: { type: signal, key: go } } ] }
"""


class Served:
    """`serve` with a store in memory."""

    def __init__(self, store):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-clock-"))
        (self.folder / "agents.yaml").write_text(AGENTS)
        self.log = self.folder / "log"
        env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([BIN, "serve", "agents.yaml", "--store", store, "--listen", "127.0.0.1:0"],
                                            cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: "listening on" in self.log.read_text())
        self.url = re.search(r"listening on (\S+)", self.log.read_text())[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        shutil.rmtree(self.folder)

    def send(self, method, path, body=None):
        request = urllib.request.Request(self.url + path, method=method, headers={"Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def clock(self, **body):
        status, answer = self.send("POST", "/api/clock", body)
        assert status == 200, answer
        return answer["advanced"], datetime.datetime.fromisoformat(answer["now"].replace("Z", "+00:00"))

    def job(self, agent, name):
        assert self.send("POST", "/api/jobs", {"agent": agent, "id": name})[0] in (200, 201, 202)

    def status(self, name):
        return self.send("GET", f"/api/jobs/{name}")[1]["status"]


@test
def the_clock_advances_to_what_is_due():
    with Served("memory:?clock=virtual") as s:
        began = s.clock()[1]
        assert s.clock(to_next=True)[0] is False, "nothing is due"
        s.job("sleeps", "a")
        until(lambda: s.status("a") == "waiting")
        advanced, now = s.clock(to_next=True)
        assert advanced and datetime.timedelta(days=1) <= now - began < datetime.timedelta(days=1, minutes=2)
        assert s.clock(to_next=True)[0], "the second timer"
        until(lambda: s.status("a") == "completed")
        assert s.clock()[1] - began >= datetime.timedelta(days=2)
        events = s.send("GET", "/api/jobs/a/events?limit=1000")[1]["events"]
        times = [event["created_at"] for event in events]
        assert times == sorted(times)
        assert s.clock(to_next=True)[0] is False


@test
def the_clock_advances_by_a_duration_through_all_that_is_due():
    with Served("memory:?clock=virtual") as s:
        s.job("sleeps", "a")
        s.job("asks", "b")
        s.job("waits", "c")
        until(lambda: [s.status(job) for job in "abc"] == ["waiting"] * 3)
        began = s.clock()[1]
        assert s.clock(advance="1h")[1] - began >= datetime.timedelta(hours=1)
        assert [s.status(job) for job in "abc"] == ["waiting"] * 3
        assert s.clock(advance="3d")[1] - began >= datetime.timedelta(days=3)
        assert s.status("a") == "completed" and s.status("b") == "failed" and s.status("c") == "waiting"


@test
def only_a_virtual_clock_can_be_advanced():
    with Served("memory:?clock=virtual") as s:
        for body in ({"advance": 3}, {"advance": "soon"}, {"advance": "1d", "to_next": True}, {"by": "1d"}, [], {"to_next": "yes"}):
            status, answer = s.send("POST", "/api/clock", body)
            assert status == 400 and answer["code"] == "input_invalid", (body, status, answer)
        assert s.send("GET", "/api/clock")[0] == 405
    with Served("memory:") as s:
        assert s.send("POST", "/api/clock", {})[0] == 404
    done = subprocess.run([BIN, "jobs", "--store", "memory:?clock=slow"], capture_output=True, text=True)
    assert done.returncode == 2, done


if __name__ == "__main__":
    sys.exit(run_tests("testing kit", TESTS, " ".join(sys.argv[1:])))
