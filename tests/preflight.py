#!/usr/bin/env python3
"""`aetheris preflight` and `aetheris replay --code`: code is checked against the logs of jobs.

Prints `ok NAME` or `not ok NAME` for each test.
  preflight.py [WORDS]   only tests whose name contains WORDS
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dev_command  # noqa: E402
import oracles  # noqa: E402
from shared.home import PATIENCE, run_tests, until  # noqa: E402
from shared.plain_worker import plain_worker  # noqa: E402
from shared.program import BIN  # noqa: E402

TESTS = []
ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST = '  const paid = await ctx.call(pay, { order: input.order });\n'
THEN = '  await ctx.wait({ type: "signal", wait_key: "go" });\n'
LAST = '  return { paid, end: await ctx.run("end", "idempotent", { n: 1 }, () => { note("end"); return 1; }) };\n'
AGENT = """
import { appendFileSync } from "node:fs";
import { agent, tool, Failure } from "SDK/src/index.ts";
const note = (text) => appendFileSync("calls.txt", text + "\\n");
export const pay = tool("pay", { effect: "idempotent" }, ({ order }) => { note("pay"); return order; });
export const refund = agent("refund", { version: "VERSION" }, async (ctx, input) => {
STEPS});
"""
PYTHON = """
from aetheris import agent, tool

@tool(effect="idempotent")
def pay(args, call):
    with open("calls.txt", "a") as calls:
        calls.write("pay\\n")
    return args["order"]

@agent("refund", version="VERSION")
async def refund(ctx, input):
    STEPS
    await ctx.wait(type="signal", wait_key="go")
    return {"paid": paid}
"""


def test(function):
    TESTS.append(function)
    return function


class Folder(dev_command.Folder):
    def __init__(self):
        super().__init__()
        self.use_typescript()
        self.env["AETHERIS_SDK_PYTHON"] = str(ROOT / "sdk/python")

    def code(self, name, *steps, version="v1"):
        self.write(name, AGENT.replace("VERSION", version).replace("STEPS", "".join(steps)), executable=False)

    def python(self, name, steps, version="v1"):
        self.write(name, PYTHON.replace("VERSION", version).replace("STEPS", steps), executable=False)

    def calls(self):
        calls = self.path / "calls.txt"
        return calls.read_text().split() if calls.exists() else []

    def waiting_job(self, *names, file="agent.ts"):
        """Jobs that wait for the signal `go`; no process has the store afterwards."""
        for name in names or ("one",):
            done = self.run("run", file, "refund", "order=7", "--job-id", name)
            assert done.returncode == 4, done

    def preflight(self, *words, code, json_too=True, env=None):
        """Its output and, with --json, what it found."""
        before, calls = self.store(), self.calls()
        done = self.run("preflight", *words, env=env)
        assert done.returncode == code, done
        assert "keeps its version" not in done.stderr, done.stderr  # the command states it
        assert "connected to" not in done.stderr, done.stderr
        found = self.run("preflight", *words, "--json", env=env)
        assert found.returncode == code, found
        assert self.calls() == calls, "a function was called"
        assert self.store() == before, "the store was changed"
        return done.stdout, json.loads(found.stdout)

    def store(self):
        """The bytes of its files. Each command that reads makes an empty write-ahead log, and its index."""
        files = [path for path in (self.path / ".aetheris").iterdir() if path.is_file() and not path.name.endswith("-shm")]
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.stat().st_size > 0}


def verdicts(found):
    return {job["job"]: job["verdict"] for job in found["jobs"]}


@test
def code_that_fits_continues():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job("one", "two")
        folder.code("new.ts", FIRST, THEN, LAST.replace("paid,", "paid: paid * 2,"), version="v2")
        text, found = folder.preflight("new.ts", "--all", code=0)
        assert verdicts(found) == {"one": "continues", "two": "continues"}, found
        assert found["counts"] == {"continues": 2, "diverges": 0, "fails": 0, "not_judged": 0}, found
        one = found["jobs"][0]
        assert one == {"agent": "refund", "arguments_compared": True, "divergence": None, "exception": None,
                       "explanation": None, "job": "one", "reason": None, "recorded_requests": 2, "status": "waiting", "verdict": "continues",
                       "version": "v2"}, one
        assert "one  continues  2 recorded requests\n" in text, text
        assert folder.calls() == ["pay", "pay"]
        until(lambda: not folder.workers())


@test
def code_that_makes_another_request_diverges():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job("one", "two")
        folder.code("new.ts", FIRST.replace("input.order", "input.order + 1"), THEN, LAST, version="v2")
        text, found = folder.preflight("new.ts", "two", code=6)
        assert verdicts(found) == {"two": "diverges"}, found
        for part in ("two  diverges", "position pay", "new.ts:7", "recorded: call of tool", '{"order":"7"}', "version v1",
                     "version v2", "patched(ID)"):
            assert part in text, (part, text)
        divergence = found["jobs"][0]["divergence"]
        assert divergence["finding"] == "arguments" and divergence["recorded"]["version"] == "v1", divergence
        assert divergence["version"] == "v2" and divergence["seq"] is None, divergence
        for line in found["jobs"][0]["explanation"].splitlines():
            assert f"  {line}\n" in text, (line, text)


@test
def a_removed_request_diverges():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        folder.code("new.ts", "  const paid = 7;\n", THEN, LAST, version="v2")
        _, found = folder.preflight("new.ts", "one", code=6)
        assert found["jobs"][0]["divergence"]["finding"] == "missing", found
        folder.code("new.ts", "  return 1;\n", version="v2")
        _, found = folder.preflight("new.ts", "one", code=6)
        assert found["jobs"][0]["divergence"]["finding"] == "ended", found


@test
def code_that_throws_after_its_recorded_requests_fails():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        folder.code("new.ts", FIRST, THEN.replace("await ", "const w = ") + "  undefined.x;\n", version="v2")
        text, found = folder.preflight("new.ts", "one", code=6)
        assert verdicts(found) == {"one": "fails"} and found["jobs"][0]["exception"]["name"] == "TypeError", found
        assert "one  fails" in text and "TypeError" in text and "new.ts" in text, text
        # A failure that the code states is an end like others.
        folder.code("new.ts", FIRST, THEN.replace("await ", "const w = ") + '  throw new Failure("no", "no");\n', version="v2")
        folder.preflight("new.ts", "one", code=0)


@test
def jobs_that_cannot_be_judged_are_listed():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        folder.write("other", plain_worker("one"))
        text, found = folder.preflight("other", "one", code=0)
        assert "no worker offers the agent refund" in text, text
        assert verdicts(found) == {"one": "not_judged"}, found
        assert folder.preflight("other", "--all", code=0)[1]["jobs"] == []
        folder.write("less.ts", AGENT.replace("VERSION", "v2").replace("STEPS", THEN).replace('tool("pay"', 'tool("pay_all"'),
                     executable=False)
        text, _ = folder.preflight("less.ts", "one", code=0)
        assert "no worker has all functions of the job's plan: pay" in text, text
        (folder.path / "agents.yaml").write_text(dev_command.json.dumps({
            "aetheris": 1, "agents": {"plan": {"plan": [{"id": "w", "wait": {"type": "signal"}}]}}}))
        assert folder.run("run", "agents.yaml", "plan", "--job-id", "plan").returncode == 4
        text, _ = folder.preflight("agent.ts", "plan", "one", code=0)
        assert "plan  not judged: the agent plan of job plan is not code" in text and "one  continues" in text, text


@test
def words_and_workers_that_are_wrong_are_errors():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        assert folder.run("preflight", "agent.ts").returncode == 2
        assert folder.run("preflight", "agent.ts", "one", "--all").returncode == 2
        assert folder.run("preflight", "missing.ts", "one").returncode == 2
        assert folder.run("preflight", "agent.ts", "one", "--archive", "agent.ts").returncode == 2
        for archive in ("missing.json", "agent.ts", "."):
            done = folder.run("preflight", "agent.ts", "--archive", archive)
            assert done.returncode == 2 and archive in done.stderr, done
        assert folder.run("preflight", "agent.ts", "nobody").returncode == 3
        folder.write("broken", "#!/bin/sh\necho no; exit 1\n")
        done = folder.run("preflight", "broken", "one")
        assert done.returncode == 7 and "before it was ready" in done.stderr, done


@test
def a_job_that_has_ended_is_compared_to_its_end():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        folder.run("signal", "one", "go", "1")
        assert folder.run("run", "agent.ts", "--job-id", "one").returncode == 0
        assert folder.preflight("agent.ts", "--all", code=0)[1]["jobs"] == []
        assert verdicts(folder.preflight("agent.ts", "one", code=0)[1]) == {"one": "continues"}
        folder.code("new.ts", FIRST, THEN, LAST.replace("{ paid,", "{ paid: paid + Date.now(),"), version="v2")
        text, found = folder.preflight("new.ts", "one", code=6)
        assert found["jobs"][0]["divergence"]["finding"] == "result", found
        assert "the end of node" in text and 'recorded: result {"end":1,"paid":"7"}' in text, text
        folder.code("new.ts", FIRST, THEN, LAST.replace("return", "const r =") + "  await ctx.sleep('1h');\n", version="v2")
        text, _ = folder.preflight("new.ts", "one", code=6)
        assert "it does not end; it requests sleep" in text, text


@test
def archived_logs_are_checked_without_a_store():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job("one", "two")
        (folder.path / "two.json").write_text(folder.run("events", "two", "--json").stdout)
        folder.run("signal", "one", "go", "1")
        assert folder.run("run", "agent.ts", "--job-id", "one").returncode == 0
        assert folder.run("prune", "--older-than", "0s", "--archive", "archive").returncode == 0
        shutil.rmtree(folder.path / ".aetheris")
        calls = folder.calls()
        words = ["--archive", "archive", "--archive", "two.json"]
        done = folder.run("preflight", "agent.ts", *words, "--json")
        assert done.returncode == 0 and verdicts(json.loads(done.stdout)) == {"one": "continues", "two": "continues"}, done
        folder.code("new.ts", FIRST, THEN, LAST.replace("{ paid,", "{ paid: 1,"), version="v2")
        done = folder.run("preflight", "new.ts", *words)
        assert done.returncode == 6 and "one  diverges" in done.stdout and "two  continues" in done.stdout, done
        # Events of a later version.
        (folder.path / "later.json").write_text((folder.path / "two.json").read_text().replace("node_started", "node_begun"))
        done = folder.run("preflight", "agent.ts", "--archive", "later.json")
        assert done.returncode == 0 and "two  not judged" in done.stdout, done
        assert folder.calls() == calls and not (folder.path / ".aetheris").exists()


@test
def replay_with_code_checks_one_job_at_an_event():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        folder.code("new.ts", FIRST.replace("input.order", "1"), THEN, LAST, version="v2")
        events = json.loads(folder.run("events", "one", "--json").stdout)["events"]
        call = next(one["seq"] for one in events if one["type"] == "node_started" and one["payload"].get("position") == "pay")
        before, calls = folder.store(), folder.calls()
        assert folder.run("replay", "one", "--code", "agent.ts").returncode == 0
        assert folder.run("replay", "one", "--code", "new.ts").returncode == 6
        assert folder.run("replay", "one", "--code", "new.ts", "--at", str(call - 1)).returncode == 0
        assert folder.run("replay", "one", "--code", "new.ts", "--at", "x").returncode == 2
        assert folder.run("replay", "one", "--code", "new.ts", "--fields", "steps").returncode == 2
        assert folder.store() == before and folder.calls() == calls


DEBUGS = """
const server = new WebSocket(process.argv[2]), answers = new Map();
let sent = 0;
const send = (method, params = {}) => new Promise((resolve) => {
  answers.set(++sent, resolve);
  server.send(JSON.stringify({ id: sent, method, params }));
});
server.onmessage = async ({ data }) => {
  const { id, method, params, result } = JSON.parse(data);
  answers.get(id)?.(result);
  if (method !== "Debugger.paused") return;
  if (params.hitBreakpoints.length > 0) {
    const callFrameId = params.callFrames[0].callFrameId;
    const { result: value } = await send("Debugger.evaluateOnCallFrame", { callFrameId, expression: "input.order" });
    console.log("stopped with order", value.value);
  }
  await send("Debugger.resume");
};
server.onopen = async () => {
  await send("Debugger.enable");
  await send("Debugger.setBreakpointByUrl", { lineNumber: Number(process.argv[3]), urlRegex: "/agent\\\\.ts$" });
  await send("Runtime.runIfWaitingForDebugger");
};
"""


def debugged(folder, file):
    """`replay --inspect` of the job `one`, and the address that it prints."""
    process = subprocess.Popen([BIN, "replay", "one", "--code", file, "--inspect"], cwd=folder.path, env=folder.env, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folder.started.append(process)
    for line in process.stderr:
        found = re.search(r"the code waits for a debugger at (\S+):", line)
        if found:
            return process, found[1]
    raise AssertionError(process.communicate())


@test
def code_of_node_runs_against_a_log_under_a_debugger():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.waiting_job()
        before, calls = folder.store(), folder.calls()
        process, address = debugged(folder, "agent.ts")
        with urllib.request.urlopen(f"http://{address.split('/')[2]}/json/list", timeout=PATIENCE) as answer:
            assert json.load(answer)[0]["webSocketDebuggerUrl"] == address
        line = (folder.path / "agent.ts").read_text().splitlines().index(FIRST.rstrip())
        folder.write("debugs.mjs", DEBUGS, executable=False)
        done = subprocess.run([oracles.node(), "debugs.mjs", address, str(line)], cwd=folder.path, capture_output=True, text=True,
                              timeout=PATIENCE)
        assert done.stdout == "stopped with order 7\n", done
        out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and "one  continues  2 recorded requests\n" in out, (out, error)
        assert folder.store() == before and folder.calls() == calls
        until(lambda: not folder.workers())


@test
def code_of_python_runs_against_a_log_under_a_debugger():
    with Folder() as folder:
        folder.python("agent.py", 'paid = await ctx.call(pay, {"order": input["order"]})')
        folder.waiting_job(file="agent.py")
        before, calls = folder.store(), folder.calls()
        process, address = debugged(folder, "agent.py")
        assert os.stat(os.path.dirname(address)).st_mode & 0o777 == 0o700, "only its user can connect"
        line = (folder.path / "agent.py").read_text().splitlines().index("    await ctx.wait(type=\"signal\", wait_key=\"go\")") + 1
        commands = f"b agent.py:{line}\nc\np 'stopped with order', input['order']\nc\n"
        done = subprocess.run([sys.executable, "-m", "aetheris.debugger", "--connect", address], input=commands, cwd=folder.path,
                              env={**folder.env, "PYTHONPATH": str(ROOT / "sdk/python")}, capture_output=True, text=True,
                              timeout=PATIENCE)
        assert "('stopped with order', '7')" in done.stdout, done
        out, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and "one  continues  2 recorded requests\n" in out, (out, error)
        assert folder.store() == before and folder.calls() == calls


@test
def only_code_of_node_and_python_is_debugged():
    with Folder() as folder:
        folder.python("agent.py", "paid = 1")
        folder.waiting_job(file="agent.py")
        folder.write("agent", plain_worker("other"))
        done = folder.run("replay", "one", "--code", "agent", "--inspect")
        assert done.returncode == 2 and "Node or Python" in done.stderr, done
        assert folder.run("replay", "one", "--inspect").returncode == 2, "it needs --code"


@test
def the_jobs_of_a_server_are_checked():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        dev = folder.dev("agent.ts", "--no-watch")
        folder.wait_for("agent.ts: agent refund")
        folder.waiting_job()
        folder.code("new.ts", FIRST.replace("input.order", "1"), THEN, LAST, version="v2")
        events = folder.run("events", "one", "--json").stdout
        for env in ({}, {"AETHERIS_URL": f"http://{folder.address}"}):
            assert verdicts(json.loads(folder.run("preflight", "new.ts", "--all", "--json", env=env).stdout)) == \
                {"one": "diverges"}
            assert folder.run("preflight", "agent.ts", "--all", env=env).returncode == 0
        assert folder.run("events", "one", "--json").stdout == events and folder.calls() == ["pay"]
        workers = json.loads(folder.run("workers", "--json").stdout)["code_workers"]
        assert len(workers) == 1, workers
        assert len(json.loads(folder.run("audit", "--json").stdout)["entries"]) == 1  # the agent of `dev`
        dev.send_signal(signal.SIGTERM)
        dev.wait(PATIENCE)


@test
def python_code_is_checked_and_replaces_typescript():
    with Folder() as folder:
        folder.python("agent.py", 'paid = await ctx.call(pay, {"order": input["order"]})')
        folder.waiting_job(file="agent.py")
        folder.python("new.py", 'paid = await ctx.call(pay, {"order": "8"})', version="v2")
        assert verdicts(folder.preflight("agent.py", "--all", code=0)[1]) == {"one": "continues"}
        text, _ = folder.preflight("new.py", "--all", code=6)
        assert "one  diverges" in text and "new.py" in text, text
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.preflight("agent.ts", "--all", code=0)


@test
def many_jobs_are_checked_at_once():
    with Folder() as folder:
        folder.code("agent.ts", FIRST, THEN, LAST)
        folder.dev("agent.ts", "--no-watch")
        folder.wait_for("agent.ts: agent refund")
        names = [f"job-{n:02}" for n in range(40)]
        for name in names:
            assert folder.run("run", "agent.ts", "refund", "order=7", "--job-id", name).returncode == 4
        folder.code("new.ts", FIRST, "  if (input.order) ", THEN, LAST, version="v2")
        found = json.loads(folder.run("preflight", "new.ts", "--all", "--json").stdout)
        assert verdicts(found) == dict.fromkeys(names, "continues"), found
        assert [job["job"] for job in found["jobs"]] == names


if __name__ == "__main__":
    sys.exit(run_tests("preflight", TESTS, " ".join(sys.argv[1:])))
