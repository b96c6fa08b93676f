#!/usr/bin/env python3
"""`aetheris dev` and `aetheris run` for files of code: workers are started, replaced and ended.

Prints `ok NAME` or `not ok NAME` for each test.
  dev_command.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
from shared.home import PATIENCE, run_tests, until  # noqa: E402
from shared.plain_worker import plain_worker  # noqa: E402
from shared.program import BIN  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Folder:
    """A folder with files of code, in which `dev` and other commands run."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-dev-"))
        self.address = f"127.0.0.1:{free_port()}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.path, ignore_errors=True)

    def use_typescript(self):
        self.env["AETHERIS_SDK_TYPESCRIPT"] = str(npm_packages.sdk())
        self.env["PATH"] = f"{oracles.node().parent}:{self.env['PATH']}"

    def write(self, name, text, executable=True):
        """As an editor does: the old file is replaced by a complete one."""
        new = self.path / f".{name}.new"
        new.write_text(text.replace("SDK", self.env.get("AETHERIS_SDK_TYPESCRIPT", "SDK")))
        new.chmod(0o755 if executable else 0o644)
        new.rename(self.path / name)

    def dev(self, *words, env=None):
        log = open(self.path / "dev.log", "a")
        process = subprocess.Popen([BIN, "dev", "--listen", self.address, *words], cwd=self.path, stdout=log, stderr=log,
                                   stdin=subprocess.DEVNULL, env={**self.env, **(env or {})})
        self.started.append(process)
        return process

    def log(self):
        return (self.path / "dev.log").read_text()

    def wait_for(self, text, times=1):
        def seen():
            return self.log().count(text) >= times
        try:
            until(seen)
        except AssertionError:
            raise AssertionError(f"{text!r} was not printed {times} times:\n{self.log()[-4000:]}") from None

    def run(self, *words, env=None, timeout=PATIENCE):
        return subprocess.run([BIN, *words], cwd=self.path, env={**self.env, **(env or {})}, capture_output=True,
                              text=True, timeout=timeout, stdin=subprocess.DEVNULL)

    def job(self, name):
        done = self.run("job", name, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_for_socket(self):
        """The workers that we start have written the path of their socket into this file."""
        socket = self.path / "socket"
        until(lambda: socket.exists() and socket.read_text())
        return socket.read_text()

    def connect_other(self, more=""):
        """A worker that `dev` did not start, with the agent `other`."""
        text = plain_worker("other", agents=[{"name": "other", "language": "python"}], more=more)
        self.started.append(subprocess.Popen([sys.executable, "-c", text], cwd="/",
                                             env={**self.env, "AETHERIS_SOCKET": self.wait_for_socket()}))

    def result(self, name, *words):
        """The result of a new job that the running server runs."""
        done = self.run("run", "agent", "plain", "--job-id", name, *words)
        assert done.returncode == 0, (done, self.log())
        return done.stdout.strip()

    def workers(self):
        """The processes whose folder this is, except those of our program."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(self.path):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if "python3" in command or "node" in command or "sleep" in command or "__guard" in command:
                        found.append(command)
            except OSError:  # it has ended
                pass
        return found


@test
def a_worker_is_started_and_runs_jobs():
    with Folder() as folder:
        folder.write("agent", plain_worker("one", more='print("hello from the worker", flush=True)'))
        dev = folder.dev("agent")
        folder.wait_for("agent: agent plain")
        assert f"listening on http://{folder.address}" in folder.log(), folder.log()
        assert "hello from the worker" in folder.log(), folder.log()
        assert folder.result("one") == "one"
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(PATIENCE) == 0, folder.log()
        until(lambda: not folder.workers())


@test
def an_edit_replaces_the_worker():
    with Folder() as folder:
        folder.write("agent", plain_worker("one"))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        assert folder.result("one") == "one"
        folder.write("agent", plain_worker("two"))
        folder.wait_for("agent reloaded: agent plain")
        assert folder.result("two") == "two"
        until(lambda: len(folder.workers()) == 2)  # the worker and its guard


CLOCK = """
import time
from aetheris import agent

@agent("clock")
async def clock(ctx, input):
    await ctx.run("one", "read", lambda args, call: 1, args={})
    if input.get("named"):
        await ctx.run(f"at_{time.time_ns()}", "read", lambda args, call: 1, args={})
    if input.get("waits"):
        await ctx.wait(type="signal", key="go")
    return {"at": time.time() if input.get("returned") else 5}
"""


@test
def code_that_is_not_deterministic_is_reported_when_its_job_waits_or_ends():
    with Folder() as folder:
        folder.env["PYTHONPATH"] = str(pathlib.Path(__file__).resolve().parent.parent / "sdk/python")
        folder.write("clock.py", CLOCK, executable=False)
        folder.dev("clock.py")
        folder.wait_for("clock.py: agent clock")

        def run(name, *words, code=0):
            done = folder.run("run", "clock.py", "clock", "--job-id", name, *words)
            assert done.returncode == code, done
        run("same")
        run("returned", "returned=true")
        folder.wait_for("job returned is not deterministic")
        run("named", "named=true")
        folder.wait_for("job named is not deterministic")
        run("waits", "named=true", "waits=true", code=4)
        folder.wait_for("job waits is not deterministic")
        assert folder.job("waits")["status"] == "waiting"  # the check changes nothing
        log = folder.log()
        assert "job same is not" not in log and log.count("is not deterministic") == 3, log
        assert "a value that is not recorded" in log and "the end of node code" in log, log


@test
def a_broken_edit_leaves_the_old_worker_in_place():
    with Folder() as folder:
        folder.write("agent", plain_worker("one"))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        folder.write("agent", plain_worker("two", more="this is no Python"))
        folder.wait_for("agent exited with code 1 before it was ready; the running version stays in use")
        assert "SyntaxError" in folder.log(), folder.log()
        assert folder.result("one") == "one"
        folder.write("agent", plain_worker("three"))
        folder.wait_for("agent reloaded")
        assert folder.result("three") == "three"


@test
def definitions_that_are_refused_are_explained_once():
    with Folder() as folder:
        faulty = [{"name": "plain", "language": "python", "uses": ["get_orde"]}]
        folder.write("agent", plain_worker(agents=faulty))
        folder.dev("agent")
        folder.wait_for("agent: agent plain, uses[0]")
        folder.write("agent", plain_worker("one"))
        folder.wait_for("agent: agent plain\n")
        assert folder.result("one") == "one"
        folder.write("agent", plain_worker("two", agents=faulty))
        folder.wait_for("agent: the running version stays in use")
        assert folder.result("two") == "one"
        lines = [line for line in folder.log().splitlines() if "get_orde" in line]
        assert len(lines) == 2 and not any("\\n" in line or "{" in line or "code.json" in line for line in lines), lines


@test
def a_refused_worker_is_started_again_without_watching():
    with Folder() as folder:
        faulty = [{"name": "plain", "language": "python", "uses": ["get_orde"]}]
        # It is right from its third start on.
        more = ('open("starts", "a").write("x")\n'
                'if len(open("starts").read()) >= 3: AGENTS[0].pop("uses")')
        folder.write("agent", plain_worker("one", agents=faulty, more=more))
        folder.dev("--no-watch", "agent")
        folder.wait_for("agent was not accepted; starting it again until it works\n")
        folder.wait_for("agent: agent plain\n")
        assert folder.result("one") == "one"
        assert folder.log().count("get_orde") == 1 and folder.log().count("was not accepted") == 1, folder.log()


@test
def an_edit_sends_no_signal_to_the_subprocesses_of_a_call():
    with Folder() as folder:
        # The worker ends a second after its signal; the other process is of a call.
        more = """
import atexit, subprocess, time
OTHER = '''import signal, time
signal.signal(signal.SIGTERM, lambda *_: open("signalled", "w"))
open("ready", "w")
time.sleep(1000)'''
subprocess.Popen([sys.executable, "-c", OTHER])
while not os.path.exists("ready"): time.sleep(0.01)
atexit.register(lambda: (time.sleep(1), open("ended", "w")))
"""
        folder.write("agent", plain_worker("one", more=more))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        folder.write("agent", plain_worker("two"))
        folder.wait_for("agent reloaded")
        until(lambda: (folder.path / "ended").exists())
        assert not (folder.path / "signalled").exists()
        until(lambda: len(folder.workers()) == 2)  # it was killed when the worker had ended


@test
def the_end_of_a_guard_is_seen_although_another_process_has_its_output():
    with Folder() as folder:
        more = ('import subprocess\n'
                'child = subprocess.Popen(["sleep", "1000"], start_new_session=True)\n'
                'open("guard", "w").write(f"{os.getppid()} {child.pid}")')
        folder.write("agent", plain_worker("one", more=more))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        guard, child = map(int, (folder.path / "guard").read_text().split())
        os.kill(guard, signal.SIGKILL)
        folder.wait_for("agent was killed by signal 9; starting it again")
        folder.wait_for("agent: agent plain", times=2)
        assert folder.result("one") == "one"
        os.kill(child, signal.SIGKILL)


@test
def a_worker_that_prints_faster_than_its_lines_are_used_waits():
    with Folder() as folder:
        more = ('line = ("x" * 40 + "\\n") * 25000\n'
                'for i in range(60): sys.stdout.write(line)\n'
                'sys.stdout.flush()')
        folder.write("agent", plain_worker("one", more=more))
        dev = folder.dev("agent")
        folder.wait_for("agent: agent plain")
        assert folder.log().count("x" * 40) == 1_500_000
        status = pathlib.Path(f"/proc/{dev.pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) >> 10
        print(f"# the peak of its memory: {peak} MiB")
        assert peak < 150, peak


@test
def another_worker_that_names_the_process_of_ours_is_not_taken_for_it():
    with Folder() as folder:
        more = ('import time\nopen("pid", "w").write(str(os.getpid()))\n'
                'open("socket", "w").write(os.environ["AETHERIS_SOCKET"])\n'
                'while not os.path.exists("go"): time.sleep(0.01)')
        folder.write("agent", plain_worker("one", more=more))
        folder.dev("agent")
        pid = folder.wait_for_socket() and (folder.path / "pid").read_text()
        folder.connect_other(f"os.getpid = lambda: {pid}")
        folder.wait_for(": agent other")
        assert "agent: agent other" not in folder.log(), folder.log()
        (folder.path / "go").touch()
        folder.wait_for("agent: agent plain")
        assert folder.result("one") == "one"


@test
def a_worker_that_ends_is_started_again():
    with Folder() as folder:
        folder.write("agent", plain_worker("one", more='open("pid", "w").write(str(os.getpid()))'))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        os.kill(int((folder.path / "pid").read_text()), signal.SIGKILL)
        folder.wait_for("agent was killed by signal 9; starting it again")
        folder.wait_for("agent: agent plain", times=2)
        assert folder.result("one") == "one"


@test
def a_worker_that_does_not_start_is_repeated_without_repeating_its_output():
    with Folder() as folder:
        folder.write("agent", plain_worker(more='open("starts", "a").write("x"); sys.exit("no database")'))
        folder.dev("agent")
        until(lambda: (folder.path / "starts").exists() and len((folder.path / "starts").read_text()) >= 4)
        assert folder.log().count("no database") == 1, folder.log()
        folder.write("agent", plain_worker("one"))
        folder.wait_for("agent: agent plain")


@test
def kill_9_leaves_no_process():
    with Folder() as folder:
        child = 'import subprocess; subprocess.Popen(["sleep", "1000"], start_new_session=True)'
        folder.write("agent", plain_worker("one", more=child))
        dev = folder.dev("agent")
        folder.wait_for("agent: agent plain")
        assert len(folder.workers()) == 3, folder.workers()
        dev.kill()
        dev.wait()
        until(lambda: not folder.workers())


@test
def several_workers_and_an_agents_file_are_served_together():
    with Folder() as folder:
        folder.write("agents.yaml", "aetheris: 1\ntools: { echo: { native: echo, effect: read } }\n", executable=False)
        folder.write("agent", plain_worker("one", more='print("first", flush=True)'))
        other = [{"name": "other", "language": "python", "uses": ["echo"]}]
        folder.write("second", plain_worker("two", agents=other))
        folder.dev("agents.yaml", "agent", "second")
        folder.wait_for("agent: agent plain")
        folder.wait_for("second: agent other")
        folder.wait_for("agent | first")
        assert folder.result("one") == "one"
        done = folder.run("run", "second", "other", "--job-id", "two")
        assert done.stdout == "two\n", done


@test
def the_words_after_dashes_are_the_command_of_a_worker():
    with Folder() as folder:
        folder.write("agent", plain_worker("one"), executable=False)
        folder.dev("--", "sh", "-c", "python3 agent; exit 7")
        folder.wait_for("sh: agent plain")
        assert folder.run("run", "agent", "plain", "--job-id", "one").returncode == 2  # it is no file of code
        folder.write("run", plain_worker())
        assert folder.run("run", "run", "plain", "--job-id", "one").stdout == "one\n"


@test
def what_is_missing_is_named():
    with Folder() as folder:
        folder.write("agent.ts", "", executable=False)
        folder.use_typescript()
        without = {"AETHERIS_SDK_TYPESCRIPT": ""}
        for words, env, expected in (
                (["dev", "agent.ts"], without, "install it there"),
                (["run", "agent.ts"], without, "install it there"),
                (["dev", "agent.ts"], {"AETHERIS_SDK_TYPESCRIPT": "/nowhere"}, "is not the TypeScript SDK"),
                (["dev", "agent.ts"], {"PATH": "/nowhere"}, "program node, which is not in PATH"),
                (["dev", "none.py"], {}, "cannot read none.py"),
                (["dev", "agents.yaml"], {}, "dev needs a file of code"),
                (["dev"], {}, "dev needs a file of code")):
            done = folder.run(*words, env=env)
            assert done.returncode == 2 and expected in done.stderr, (words, done)
        folder.write("agent", plain_worker())
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(folder.address.split(":")[1])))
            taken.listen()
            done = folder.run("dev", "agent", "--listen", folder.address)
            assert done.returncode == 7 and "--listen" in done.stderr, done


@test
def run_starts_the_worker_and_ends_it():
    with Folder() as folder:
        folder.write("agent", plain_worker("one", more='print("from the worker", flush=True)'))
        done = folder.run("run", "agent", "--detach")
        assert done.returncode == 2 and "no process serves the store" in done.stderr, done
        assert "aetheris dev agent" in done.stderr and not (folder.path / ".aetheris").exists(), done
        done = folder.run("run", "agent", "--job-id", "one", "order=43")
        assert done.returncode == 0 and done.stdout == "one\n", done
        assert "from the worker" in done.stderr, done
        assert folder.job("one")["input"] == {"order": "43"}
        until(lambda: not folder.workers())
        done = folder.run("run", "agent", "nobody")
        assert done.returncode == 2 and "plain" in done.stderr, done
        folder.write("agent", plain_worker(more='sys.exit("no database")'))
        done = folder.run("run", "agent")
        assert done.returncode == 7 and "exited with code 1 before it was ready" in done.stderr, done
        done = folder.run("run", "agent", "--store", "memory:")
        assert done.returncode == 7, done
        folder.write("agent", plain_worker("two"))
        done = folder.run("run", "agent", "--store", "memory:")
        assert done.stdout == "two\n", done


@test
def run_waits_for_its_own_worker():
    with Folder() as folder:
        more = ('import time\nopen("socket", "w").write(os.environ["AETHERIS_SOCKET"])\n'
                'while not os.path.exists("go"): time.sleep(0.01)')
        folder.write("agent", plain_worker("one", more=more))
        run = subprocess.Popen([BIN, "run", "agent", "plain", "--job-id", "one"], cwd=folder.path, env=folder.env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        folder.started.append(run)
        folder.wait_for_socket()
        folder.connect_other()
        until(lambda: "other" in folder.run("workers").stdout)
        time.sleep(1)  # by now the agents of the other one are in use
        assert run.poll() is None, run.communicate()
        (folder.path / "go").touch()
        output, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0 and "one" in output.splitlines(), output


@test
def serve_needs_no_agents_file():
    with Folder() as folder:
        log = open(folder.path / "dev.log", "a")
        folder.started.append(subprocess.Popen([BIN, "serve", "--listen", folder.address], cwd=folder.path, stdout=log,
                                               stderr=log, stdin=subprocess.DEVNULL, env=folder.env))
        folder.wait_for("none yet: workers offer them")
        folder.write("agent", plain_worker("one"))
        done = folder.run("run", "agent", "--job-id", "one")
        assert done.returncode == 5 or "no worker offers an agent" in done.stderr, done
        request = urllib.request.Request(f"http://{folder.address}/api/jobs", method="POST",
                                         headers={"Content-Type": "application/json"}, data=b'{"agent": "plain"}')
        try:
            raise AssertionError(urllib.request.urlopen(request, timeout=PATIENCE).read())
        except urllib.error.HTTPError as error:
            problem = json.loads(error.read())
        assert problem["status"] == 404 and problem["act"] == "GET /api/workers", problem
        assert "once a worker that offers it has connected" in problem["detail"], problem
        worker = subprocess.Popen([folder.path / "agent"], cwd=folder.path, stdin=subprocess.DEVNULL,
                                  env={**folder.env, "AETHERIS_SOCKET": str(folder.path / ".aetheris/aetheris.sock")})
        folder.started.append(worker)
        folder.wait_for("agent plain version")
        assert folder.result("one") == "one"
        done = folder.run("run", "agent", "--detach", "--job-id", "two")
        assert done.returncode == 0 and done.stdout == "two\n", done
        until(lambda: folder.job("two")["status"] == "completed")


STACK = """TypeError: there is no order
    at read (node:internal/fs:1:1)
    at refund (file:///srv/shop/agent.ts:5:28)
    at Routine.step (/srv/shop/node_modules/aetheris/dist/routine.js:1:1)"""


@test
def an_exception_is_shown_with_its_line_and_resume_continues_after_a_correction():
    with Folder() as folder:
        exception = {"exception": {"name": "TypeError", "message": "there is no order", "stack": STACK}}
        folder.write("agent", plain_worker(end=exception))
        folder.dev("agent")
        folder.wait_for("agent: agent plain")
        done = folder.run("run", "agent", "plain", "--job-id", "one")
        shown = folder.run("job", "one").stdout
        for text in (done.stderr, shown):
            assert "TypeError: there is no order" in text and "refund (file:///srv/shop/agent.ts:5:28)" in text, text
            assert "aetheris resume one" in text, text
            assert "aetheris plan" not in text and "aetheris retry" not in text and "versions:" not in text, text
        assert done.returncode == 4, done
        body = folder.job("one")["exception"]
        assert body["stack"] == STACK and body["where"] == "refund (file:///srv/shop/agent.ts:5:28)", body
        stalled = folder.run("jobs", "--stalled").stdout
        assert "its code ended with an exception" in stalled and "aetheris resume one" in stalled, stalled
        assert "no worker has the version" not in stalled, stalled
        folder.wait_for("parked (routine_failed): its code ended with an exception")
        assert folder.run("divergence", "one").returncode == 3
        folder.write("agent", plain_worker("one"))
        folder.wait_for("agent reloaded")
        assert folder.run("resume", "one").returncode == 0
        until(lambda: folder.job("one")["status"] == "completed")
        assert folder.job("one")["exception"] is None


@test
def a_failed_job_of_code_is_not_retried():
    with Folder() as folder:
        folder.write("agent", plain_worker(end={"failure": {"code": "no_order", "message": "there is no order"}}))
        done = folder.run("run", "agent", "--job-id", "one", "order=43")
        assert done.returncode == 1, done
        for text in (done.stderr, folder.run("job", "one").stdout):
            assert "aetheris retry" not in text and "aetheris run" in text, text
            assert """--input '{"order":"43"}'""" in text, text


@test
def a_job_waits_for_a_worker_and_continues_as_soon_as_one_connects():
    with Folder() as folder:
        log = open(folder.path / "dev.log", "a")
        folder.started.append(subprocess.Popen([BIN, "serve", "--listen", folder.address], cwd=folder.path, stdout=log,
                                               stderr=log, stdin=subprocess.DEVNULL, env=folder.env))
        folder.wait_for("none yet: workers offer them")
        folder.write("agent", plain_worker("one"))

        def worker():
            process = subprocess.Popen([folder.path / "agent"], cwd=folder.path, stdin=subprocess.DEVNULL,
                                       env={**folder.env, "AETHERIS_SOCKET": str(folder.path / ".aetheris/aetheris.sock")})
            folder.started.append(process)
            return process
        first = worker()
        folder.wait_for("agent plain version")
        done = folder.run("workers", "--json")
        listed = json.loads(done.stdout)["code_workers"]
        assert [one["agents"] for one in listed] == [[{"language": "python", "name": "plain", "version": ""}]], listed
        assert listed[0]["worker"] == f"here:{first.pid}:1" and listed[0]["connected"], listed
        assert "plain/1" in folder.run("workers").stdout
        first.terminate()
        first.wait()
        until(lambda: not json.loads(folder.run("workers", "--json").stdout)["code_workers"])
        request = urllib.request.Request(f"http://{folder.address}/api/jobs", method="POST",
                                         headers={"Content-Type": "application/json"},
                                         data=json.dumps({"agent": "plain", "id": "one", "input": {}}).encode())
        urllib.request.urlopen(request, timeout=PATIENCE).close()
        until(lambda: 'runs the code of the agent "plain"' in folder.run("job", "one").stdout, patience=10)
        worker()
        began = time.monotonic()
        until(lambda: folder.job("one")["status"] == "completed", patience=20)
        assert time.monotonic() - began < 20  # the lease is 30 s


AGENT = """
import { appendFileSync } from "node:fs";
import { agent, tool } from "SDK/src/index.ts";

const note = (text) => appendFileSync("calls.txt", text + "\\n");

export const payBack = tool("pay_back", { effect: "idempotent", timeout: "10s" }, ({ order }, call) => {
  note("pay " + call.key);
  return { payment: order };
});
export const refund = agent("refund", {}, async (ctx, input) => {
  const steps = [];
  for (let i = 0; i < 20; ++i) {
    steps.push(await ctx.run("step", "idempotent", { i }, async ({ i }, call) => {
      note("step " + call.key);
      await new Promise((done) => setTimeout(done, input.pause));
      return i;
    }));
  }
  const paid = await ctx.call(payBack, { order: input.order });
  return { paid: paid.payment, steps: steps.length };
});
"""


@test
def typescript_runs_and_resumes_after_kill_9():
    with Folder() as folder:
        folder.use_typescript()
        folder.write("agent.ts", AGENT, executable=False)
        words = ["run", "agent.ts", "refund", "--job-id", "refund-43"]
        given = ["--input", json.dumps({"order": "43", "pause": 50})]
        killed = subprocess.Popen([BIN, *words, *given], cwd=folder.path, env=folder.env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        folder.started.append(killed)
        calls = folder.path / "calls.txt"
        until(lambda: calls.exists() and len(calls.read_text().splitlines()) >= 5)
        killed.kill()
        killed.wait()
        until(lambda: not folder.workers())
        done = folder.run(*words)
        assert done.returncode == 0, done
        assert json.loads(done.stdout) == {"paid": "43", "steps": 20}, done
        made = calls.read_text().splitlines()
        assert len(set(made)) == 21 and len(made) <= 22, made  # the call in flight may be sent again, with its key
        assert folder.run("verify", "refund-43").returncode == 0


@test
def typescript_is_reloaded():
    with Folder() as folder:
        folder.use_typescript()
        folder.write("agent.ts", AGENT, executable=False)
        folder.dev("agent.ts")
        folder.wait_for("agent.ts: agent refund")
        words = ["run", "agent.ts", "refund", "--input", json.dumps({"order": "7", "pause": 0}), "--job-id"]
        done = folder.run(*words, "one")
        assert json.loads(done.stdout)["paid"] == "7", (done, folder.log())
        folder.write("agent.ts", AGENT.replace("paid: paid.payment", "paid: paid.payment + '!'"), executable=False)
        folder.wait_for("agent.ts reloaded: agent refund")
        done = folder.run(*words, "two")
        assert json.loads(done.stdout)["paid"] == "7!", (done, folder.log())


@test
def a_divergence_is_explained():
    agent = """
import { agent, tool } from "SDK/src/index.ts";
export const look = tool("look", { effect: "read" }, () => 1);
export const drifts = agent("drifts", {}, async (ctx) => {
  const n = await ctx.call(look, { at: Date.now() });
  await ctx.wait({ type: "signal" });
  return n;
});
"""
    with Folder() as folder:
        folder.use_typescript()
        folder.write("agent.ts", agent, executable=False)
        folder.dev("agent.ts")
        folder.wait_for("agent.ts: agent drifts")
        done = folder.run("run", "agent.ts", "drifts", "--job-id", "one")
        assert done.returncode == 4, (done, folder.log())
        folder.write("agent.ts", agent + "// edited\n", executable=False)
        folder.wait_for("agent.ts reloaded")
        key = folder.job("one")["waits"][0]["correlation_key"]
        assert folder.run("signal", "one", key, "1").returncode == 0
        until(lambda: folder.job("one")["status"] == "parked")
        done = folder.run("divergence", "one")
        assert done.returncode == 0, done
        for text in ("job one", "position look", "agent.ts:5", "recorded: call of tool", "with other arguments",
                     "now(), uuid() or random()", "(/at)", "aetheris resume one"):
            assert text in done.stdout, (text, done.stdout)
        body = json.loads(folder.run("divergence", "one", "--json").stdout)
        assert body == {**folder.job("one")["divergence"], "job": "one"}, body
        assert body["finding"] == "arguments" and body["recorded"]["arguments"]["at"] > 0, body
        assert body["likely"] in folder.run("job", "one").stdout


if __name__ == "__main__":
    sys.exit(run_tests("dev command", TESTS, " ".join(sys.argv[1:])))
