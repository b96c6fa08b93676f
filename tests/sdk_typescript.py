#!/usr/bin/env python3
"""The TypeScript SDK: its own tests, and jobs of a server whose worker and server are killed.

Prints `ok NAME` or `not ok NAME` for each test. tests/oracles provides Node; the packages that only the checks of the SDK
need are installed below build/ from its lock file.
  sdk_typescript.py [WORDS]   only tests whose name contains WORDS
"""
import fcntl
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracles  # noqa: E402
from shared.home import PATIENCE, run_tests, until  # noqa: E402
from shared.program import BIN, ROOT  # noqa: E402

SDK = ROOT / "sdk/typescript"
SEED = int(os.environ.get("AETHERIS_SEED") or random.SystemRandom().randrange(1 << 31))
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def packages():
    """A copy of the SDK with its node_modules, as in its lock file."""
    names = ["package.json", "package-lock.json", ".npmrc"]
    stamp = hashlib.sha256(b"".join((SDK / name).read_bytes() for name in names)).hexdigest()[:16]
    folder = ROOT / "build/sdk_typescript" / stamp
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for name in names:
                shutil.copy(SDK / name, folder / name)
            done = subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=folder, capture_output=True, text=True,
                                  timeout=600, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "complete").touch()
        for name in ("src", "test", "tsconfig.json", "tsconfig.build.json", "README.md"):
            target = folder / name
            shutil.rmtree(target, ignore_errors=True)
            if (SDK / name).is_dir():
                shutil.copytree(SDK / name, target, ignore=shutil.ignore_patterns("node_modules"))
            else:
                shutil.copy(SDK / name, target)
    return folder


@test
def its_types_hold_and_its_own_tests_pass():
    folder = packages()
    node = folder / "node_modules/.bin/node"
    checked = subprocess.run([folder / "node_modules/.bin/tsc", "-p", "tsconfig.json"], cwd=folder, capture_output=True,
                             text=True, env={**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"}, timeout=600)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tests = sorted(map(str, (folder / "test").glob("*.test.ts")))
    done = subprocess.run([node, "--test", "--test-reporter=tap", *tests], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "NO_COLOR": "1"}, timeout=1200)
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.M)
    assert done.returncode == 0 and passed and int(passed[1]) > 100, done.stdout[-6000:] + done.stderr[-2000:]


AGENT = """
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { agent, tool, Failure } from "SDK/src/index.ts";

const note = (file, text) => appendFileSync(file, text + "\\n");
const lines = (file) => (existsSync(file) ? readFileSync(file, "utf8").split("\\n").slice(0, -1) : []);

export const getOrder = tool("get_order", { effect: "read" }, ({ order }) => {
  if (order === "99") throw new Failure("no_order", "there is no order 99");
  return { order, total: 29, items: ["a", "b", "c"] };
});
export const payBack = tool("pay_back", { effect: "idempotent", timeout: "10s" }, (args, call) => {
  note("calls.txt", "pay " + call.key);
  if (!lines("payments.txt").includes(call.key)) note("payments.txt", call.key);
  return { payment: call.key };
});

export const refund = agent("refund", {}, async (ctx, input) => {
  const order = await ctx.call(getOrder, { order: input.order });
  const started = ctx.now();
  const packed = await ctx.map("item", order.items, async (c, item) =>
    c.run("pack", "idempotent", { item }, ({ item }, call) => {
      note("calls.txt", "pack " + call.key);
      return item + ctx.job.id.length;
    }));
  await ctx.sleep("20ms");
  const paid = await ctx.call(payBack, { order: input.order, amount: order.total });
  await ctx.run("mail", "at_most_once", { to: "ada@example.org" }, (args, call) => {
    note("mails.txt", call.key);
    return null;
  });
  if (ctx.now() < started) throw new Error("time went back");
  return { packed, paid: paid.payment.length > 0, id: ctx.uuid().length };
});

export const greet = agent("greet", {}, async (ctx, input) => {
  const answer = await ctx.approval("Greet " + input.name + "?", { key: "greet", expires: "1h" });
  return { by: answer.by !== undefined };
});
"""


class World:
    """A server with a store, and a worker with the agent above, in one folder."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        (self.folder / "agents.yaml").write_text("""aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents: { echo: { plan: [ { id: e, tool: echo } ] } }
""")
        (self.folder / "agent.ts").write_text(AGENT.replace("SDK", str(packages())))
        self.server = self.worker = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = open(self.folder / "log.txt", "w")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.worker, self.server):
            if process is not None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_server(self):
        self.server = subprocess.Popen([BIN, "serve", "agents.yaml", "--listen", self.address], cwd=self.folder,
                                       stdout=self.log, stderr=self.log)

    def start_worker(self):
        path = self.folder / ".aetheris/aetheris.sock"
        self.worker = subprocess.Popen([oracles.node(), packages() / "src/worker_main.ts", "agent.ts"], cwd=self.folder,
                                       stdout=self.log, stderr=self.log,
                                       env={**os.environ, "AETHERIS_SOCKET": str(path)})

    def command(self, *words):
        done = subprocess.run([BIN, *words, "--json"], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def job(self, name):
        code, out, _ = self.command("job", name)
        return json.loads(out) if code == 0 else None

    def create(self, agent, data, name):
        """Once the server knows the agent."""
        def created():
            request = urllib.request.Request(
                f"http://{self.address}/api/jobs", method="POST", headers={"Content-Type": "application/json"},
                data=json.dumps({"agent": agent, "input": data, "id": name}).encode())
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE):
                    return True
            except OSError:  # not listening yet, or the agent is not known yet
                return False
        until(created)

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def output(self):
        self.log.flush()
        return (self.folder / "log.txt").read_text()[-4000:]


@test
def a_job_runs_functions_of_a_worker_and_verifies():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.create("refund", {"order": "43"}, "refund-43")
        until(lambda: world.job("refund-43")["status"] == "completed")
        job = world.job("refund-43")
        assert job["result"] == {"id": 36, "packed": ["a9", "b9", "c9"], "paid": True}, (job, world.output())
        assert len(world.lines("payments.txt")) == 1 and len(world.lines("mails.txt")) == 1
        code, out, error = world.command("verify", "refund-43")
        assert code == 0, (out, error)
        world.create("refund", {"order": "99"}, "refund-99")
        until(lambda: world.job("refund-99")["status"] == "failed")
        assert world.job("refund-99")["error"]["code"] == "no_order", world.job("refund-99")


@test
def an_approval_waits_without_a_worker():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.create("greet", {"name": "Ada"}, "greet-1")
        until(lambda: world.job("greet-1")["status"] == "waiting")
        world.worker.kill()
        world.worker.wait()
        code, out, error = world.command("requests")
        assert "Greet Ada?" in out, (out, error)
        code, out, error = world.command("approve", json.loads(out)["requests"][0]["id"])
        assert code == 0, (out, error)
        world.start_worker()
        until(lambda: world.job("greet-1")["status"] == "completed")


@test
def killed_at_any_time_effects_happen_once():
    choice = random.Random(SEED)
    repeat = f"AETHERIS_SEED={SEED} tests/sdk_typescript.py killed"
    for victims in ("worker", "server", "both"):
        with World() as world:
            world.start_server()
            world.start_worker()
            for name in range(4):
                world.create("refund", {"order": str(name)}, f"refund-{name}")
            for _ in range(6):
                time.sleep(choice.uniform(0.0, 0.4))
                if victims in ("worker", "both"):
                    world.worker.send_signal(signal.SIGKILL)
                    world.worker.wait()
                if victims in ("server", "both"):
                    world.server.send_signal(signal.SIGKILL)
                    world.server.wait()
                    world.start_server()
                if victims in ("worker", "both"):
                    world.start_worker()

            def ended():
                jobs = [world.job(f"refund-{name}") for name in range(4)]
                return all(job is not None and job["status"] in ("completed", "parked") for job in jobs) and jobs
            jobs = until(ended, patience=180)
            for job in jobs:
                unknown = job["status"] == "parked" and job["parked"]["reason"] == "invocation_in_doubt"
                assert job["status"] == "completed" or unknown, (job, victims, repeat, world.output())
                code, out, error = world.command("verify", job["id"])
                assert code == 0, (out, error, repeat)
            mails, payments = world.lines("mails.txt"), world.lines("payments.txt")
            assert len(mails) == len(set(mails)) <= 4, (mails, victims, repeat)
            assert len(payments) == len(set(payments)) <= 4, (payments, victims, repeat)
            completed = sum(job["status"] == "completed" for job in jobs)
            assert len(mails) >= completed and len(payments) >= completed, (mails, payments, repeat)


if __name__ == "__main__":
    sys.exit(run_tests("sdk typescript", TESTS, " ".join(sys.argv[1:])))
