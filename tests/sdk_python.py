#!/usr/bin/env python3
"""The Python SDK: its own tests, its wheel and quickstart, and jobs of a server whose worker and server are killed.

Prints `ok NAME`, `not ok NAME` or `ok NAME # SKIP why` for each test.
  sdk_python.py [WORDS]   only tests whose name contains WORDS
"""
import base64
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.code_world import CodeWorld, ends_in_order, kill_at_any_time, waits_for_approval_without_a_worker  # noqa: E402
from shared.home import PATIENCE, run_tests, until  # noqa: E402
from shared.ports import reserve_port  # noqa: E402
from shared.program import BIN, ROOT  # noqa: E402
from shared.python import python_with_httpx  # noqa: E402
from shared.sanitizer import sanitizer  # noqa: E402
from shared.scripted_model import scripted_model  # noqa: E402
from shared.search import search_engine  # noqa: E402

SDK = ROOT / "sdk/python"
sys.path.insert(0, str(SDK))
import aetheris  # noqa: E402

SEED = int(os.environ.get("AETHERIS_SEED") or random.SystemRandom().randrange(1 << 31))
TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def its_own_tests_pass():
    done = subprocess.run([python_with_httpx() or sys.executable, "-m", "unittest"], cwd=SDK, capture_output=True, text=True, timeout=1200,
                          env={**environment(), "AETHERIS_TESTDATA": os.environ.get("AETHERIS_TESTDATA", "")})
    passed = re.search(r"^Ran (\d+) tests", done.stderr, re.M)
    assert done.returncode == 0 and passed and int(passed[1]) > 100, done.stderr[-6000:]


AGENT = '''
import asyncio
import pathlib

from aetheris import Failure, agent, tool


def note(name, text):
    with open(name, "a") as file:
        file.write(text + "\\n")


def lines(name):
    path = pathlib.Path(name)
    return path.read_text().splitlines() if path.exists() else []


# No timeout ends before a lost worker is known to be lost: else the outcome of a call is unknown.
RETRY = {"max_attempts": 10, "initial_backoff": "10ms", "retry_on": ["timeout", "worker_lost"]}


@tool(effect="read", retry=RETRY)
def get_order(args):
    if args["order"] == "99":
        raise Failure("no_order", "there is no order 99")
    return {"order": args["order"], "total": 29, "items": ["a", "b", "c"]}


@tool(effect="idempotent", timeout="60s", retry=RETRY)
def pay_back(args, call):
    note("calls.txt", "pay " + call.key)
    if call.key not in lines("payments.txt"):
        note("payments.txt", call.key)
    return {"payment": call.key}


async def pack(args, call):
    note("calls.txt", "pack " + call.key)
    return args["item"] + "!"


def mail(args, call):
    note("mails.txt", call.key)


@agent
async def refund(ctx, input):
    order = await ctx.call(get_order, {"order": input["order"]})
    started = ctx.now()
    packed = await ctx.map("item", order["items"],
                           lambda c, item, i: c.run("pack", "idempotent", pack, args={"item": item}))
    await asyncio.sleep(0.02)
    try:
        await asyncio.wait_for(ctx.receive("never"), 0.02)
    except asyncio.TimeoutError:
        pass
    paid = await ctx.call(pay_back, {"order": input["order"], "amount": order["total"]})
    await ctx.run("mail", "at_most_once", mail, args={"to": "ada@example.org"})
    assert ctx.now() >= started
    return {"packed": packed, "paid": bool(paid["payment"]), "id": len(str(ctx.uuid()))}


@agent
def refund_sync(ctx, input):
    order = ctx.call(get_order, {"order": input["order"]})
    started = ctx.now()
    packed = ctx.map("item", order["items"], lambda c, item, i: c.run("pack", "idempotent", pack, args={"item": item}))
    ctx.race("wait", {"message": lambda c: c.receive("never"), "time": lambda c: c.sleep(0.02)})
    paid = ctx.call(pay_back, {"order": input["order"], "amount": order["total"]})
    ctx.run("mail", "at_most_once", mail, args={"to": "ada@example.org"})
    assert ctx.now() >= started
    return {"packed": packed, "paid": bool(paid["payment"]), "id": len(str(ctx.uuid()))}


@agent(loop="host")
async def refund_host(ctx, input):
    reader, writer = await asyncio.open_connection(*input["address"])
    writer.close()
    order = await ctx.call(get_order, {"order": input["order"]})
    packed = await asyncio.gather(*[ctx.run("pack", "idempotent", pack, args={"item": item}) for item in order["items"]])
    paid = await ctx.call(pay_back, {"order": input["order"], "amount": order["total"]})
    await ctx.run("mail", "at_most_once", mail, args={"to": "ada@example.org"})
    return {"packed": packed, "paid": bool(paid["payment"]), "id": len(str(ctx.uuid()))}


@agent
async def greet(ctx, input):
    answer = await ctx.approval(f"Greet {input['name']}?", key="greet", expires="1h")
    return sorted(answer)


@agent
async def has_a_mistake(ctx, input):
    await ctx.run("mail", "at_most_once", mail, args={"to": "ada@example.org"})
    return 1 // 0
'''
RESULT = {"id": 36, "packed": ["a!", "b!", "c!"], "paid": True}


def environment():
    return {**{name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")},
            "PYTHONPATH": str(SDK), "PYTHONDONTWRITEBYTECODE": "1"}


class World(CodeWorld):
    """With a worker of Python, and a client."""

    def __init__(self, agent=AGENT, files=None, env=None):
        super().__init__([sys.executable, "-m", "aetheris", "agent.py"], {"agent.py": agent, **(files or {})},
                         {"PYTHONPATH": str(SDK), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})})
        self.client = aetheris.Client(f"http://{self.address}")


@test
def jobs_of_all_three_kinds_of_agents_run_and_verify():
    with World() as world:
        world.start_both()
        for number, name in enumerate(("refund", "refund_sync", "refund_host")):
            address = world.address.split(":")
            world.create(name, {"order": "43", "address": [address[0], int(address[1])]}, f"{name}-43")
            job = world.reaches(f"{name}-43", "completed", "failed", "parked")
            assert job.get("result") == RESULT, (job, world.output())
            assert len(world.lines("payments.txt")) == len(world.lines("mails.txt")) == number + 1
            world.verify(f"{name}-43")
        for name in ("refund", "refund_sync"):
            world.create(name, {"order": "99"}, f"{name}-99")
            job = world.reaches(f"{name}-99", "failed", "completed", "parked")
            assert job["error"]["code"] == "no_order", job


@test
def an_approval_waits_without_a_worker():
    with World() as world:
        job = waits_for_approval_without_a_worker(world)
        assert job["result"] == ["decision", "note"], (job["result"], world.output())


@test
def a_mistake_parks_the_job_and_corrected_code_continues_it():
    with World() as world:
        world.start_both()
        world.create("has_a_mistake", {}, "mistake-1")
        assert world.reaches("mistake-1", "parked")["parked"]["reason"] == "routine_failed"
        output = world.output()
        assert re.search(r"job mistake-1 \(agent has_a_mistake\): an exception ended the code.*aetheris resume mistake-1\n(.|\n)*return 1 // 0(.|\n)*ZeroDivisionError", output), output
        world.worker.send_signal(signal.SIGTERM)
        assert world.worker.wait(PATIENCE) == 0, world.output()
        (world.folder / "agent.py").write_text(AGENT.replace("1 // 0", "1 // 1"))
        world.start_worker()
        world.client.resume("mistake-1")
        assert world.reaches("mistake-1", "completed", "parked", "failed")["result"] == 1, world.output()
        assert len(world.lines("mails.txt")) == 1
        world.verify("mistake-1")


@test
def a_client_signals_sends_and_cancels():
    agent = '''
from aetheris import agent

@agent
async def waits(ctx, input):
    signal = await ctx.wait("signal", "paid/" + input["order"])
    return [signal, await ctx.receive("answers"), ctx.job.labels]
'''
    with World(agent) as world:
        world.start_both()
        world.create("waits", {"order": "1"}, "waits-1")
        world.reaches("waits-1", "waiting")
        client = world.client
        job = client.create("waits", {"order": "2"}, idempotency_key="order-2", labels={"shop": "north"})
        assert client.create("waits", {"order": "2"}, idempotency_key="order-2", labels={"shop": "north"})["id"] == job["id"]
        client.signal(job["id"], "paid/2", {"amount": 29}, message_id="m1")
        client.message(job["id"], "answers", "yes")
        assert client.run("waits", {"order": "2"}, idempotency_key="order-2", labels={"shop": "north"}) == \
            [{"amount": 29}, "yes", {"shop": "north"}]
        client.cancel("waits-1", reason="not needed")
        world.reaches("waits-1", "cancelled")
        try:
            client.run("waits", {"order": "1"}, id="waits-1")
        except aetheris.AetherisError as error:
            assert error.code in ("cancelled", "already_exists"), error.code
        else:
            raise AssertionError("a cancelled job has no result")
        unix = aetheris.Client(socket=os.path.relpath(world.folder / ".aetheris/aetheris.sock"))
        assert unix.job(job["id"])["status"] == "completed"


# Of a process, for 900 more jobs that wait: less than 19 KiB each, and what a pool of threads has begun besides.
IDLE_KIB, IDLE_THREADS = 16 << 10, 8
# The allocator of the sanitizer keeps freed memory unless configured otherwise.
QUIET = sanitizer("quarantine_size_mb=1:thread_local_quarantine_size_kb=64:allocator_release_to_os_interval_ms=100")
SECRET = "correct/horse+battery"


@test
def a_secret_of_the_worker_is_not_in_the_store():
    agent = '''
import base64
import os
from aetheris import InvalidInput, agent

KEY = os.environ["SHOP_API_KEY"]


def say(args, call):
    with open("spilled.txt", "a") as file:
        file.write(args["key"] + " " + call.secret("SHOP_API_KEY"))
    call.text("the key is " + KEY)
    return {"key": base64.b64encode(KEY.encode()).decode()}


@agent
async def spills(ctx, input):
    ctx.emit("note", {"key": KEY})
    await ctx.run("say", "read", say, args={"key": KEY})
    try:
        await ctx.wait("signal", "go " + KEY, expires="1s", on_expire="continue")
    except InvalidInput as error:  # a key of a wait is not replaced: nobody could answer it
        ctx.emit("refused", str(error) + KEY)
    raise TypeError("the key is " + KEY)
'''
    with World(agent, env={"SHOP_API_KEY": SECRET}) as world:
        world.start_both()
        world.create("spills", None, "spills-1")
        job = world.reaches("spills-1", "parked", "completed", "failed")
        exception = job["exception"]
        assert exception["name"] == "TypeError" and exception["message"] == "the key is [secret SHOP_API_KEY]", exception
        assert world.lines("spilled.txt") == [f"{SECRET} {SECRET}"], world.lines("spilled.txt")
        code, out, error = world.command("events", "spills-1")
        assert code == 0 and out.count("[secret SHOP_API_KEY]") >= 5, (out, error)
        world.server.terminate()
        world.server.wait(PATIENCE)
        forms = [SECRET.encode(), base64.b64encode(SECRET.encode())]
        files = [path for path in (world.folder / ".aetheris").rglob("*") if path.is_file()]
        assert any(b"spills-1" in path.read_bytes() for path in files), files
        assert not [path for path in files for form in forms if form in path.read_bytes()]


@test
def a_worker_that_ends_finishes_its_function_and_the_job_continues_elsewhere():
    agent = '''
import os
import pathlib
import time
from aetheris import agent


def mail(args, call):
    with open("mails.txt", "a") as file:
        file.write(call.key + "\\n")
    while not pathlib.Path("go").exists():
        time.sleep(0.01)


@agent
async def mails(ctx, input):
    await ctx.run("mail", "at_most_once", mail)
    await ctx.sleep(0.05)
    return await ctx.run("where", "read", lambda args, call: os.getpid())


@agent
def mails_sync(ctx, input):
    ctx.run("mail", "at_most_once", mail)
    ctx.sleep(0.05)
    return ctx.run("where", "read", lambda args, call: os.getpid())
'''
    for name in ("mails", "mails_sync"):
        with World(agent) as world:
            world.start_both()
            ends_in_order(world, name, "mails-1")


def memory_and_threads(process):
    """(resident KiB, threads) of a process."""
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return tuple(int(re.search(rf"^{name}:\s+(\d+)", text, re.M)[1]) for name in ("VmRSS", "Threads"))


@test
def a_thousand_waiting_jobs_have_no_routines():
    agent = '''
from aetheris import agent

@agent
async def waits(ctx, input):
    await ctx.run("read", "read", lambda args, call: "x" * 200)
    return await ctx.wait("signal", "go")
'''
    with World(agent, env=QUIET) as world:
        world.options = ["--rate", "0"]
        world.start_both()
        processes = {"server": world.server, "worker": world.worker}

        def wait_for(number):
            world.reaches(f"waits-{number}", "waiting")

            def is_idle():
                found, = world.request("/api/workers")["code_workers"]
                return found["routines"] == found["calls"] == 0
            until(is_idle)
            return {name: memory_and_threads(process) for name, process in processes.items()}
        for number in range(1000):
            world.create("waits", {}, f"waits-{number}")
            if number == 99:
                before = wait_for(number)  # what the first jobs need is there
        after = wait_for(999)
        for name, (memory, threads) in after.items():
            assert memory - before[name][0] < IDLE_KIB and threads - before[name][1] < IDLE_THREADS, (name, before, after)
        code, out, error = world.command("signal", "waits-500", "go", "1")
        assert code == 0, (out, error)
        world.reaches("waits-500", "completed")


@test
def killed_at_any_time_effects_happen_once():
    choice = random.Random(SEED)
    repeat = f"AETHERIS_SEED={SEED} tests/sdk_python.py killed"

    def job(number):
        kind = ("refund", "refund_sync")[number % 2]
        return kind, {"order": f"order-{number}"}, f"{kind}-{number}"
    for victims in ("worker", "server", "both"):
        with World() as world:
            world.start_both()
            kill_at_any_time(world, job, victims, choice, lambda result: result == RESULT, repeat)


@test
def the_research_example_runs_with_a_scripted_model_and_a_killed_worker():
    files = {"agents.yaml": (SDK / "examples/agents.yaml").read_text()}
    with search_engine(fails_each=3) as search, scripted_model("--scenario", SDK / "examples/research_model.json") as url:
        env = {"MODEL_URL": f"{url}/v1", "MODEL": "research_model", "MODEL_KEY": "any-key", "SEARCH_URL": search}
        with World((SDK / "examples/research.py").read_text(), files, env) as world:
            world.start_both()
            world.create("research", {"topic": "bees"}, "bees")
            time.sleep(random.Random(SEED).uniform(0, 1))
            world.kill_worker()
            world.start_worker()
            try:
                request = until(lambda: next(iter(world.client.requests("bees")), None))
            except AssertionError:
                raise AssertionError(f"{world.job('bees')}\n{world.output()}") from None
            assert "Publish the report?" in json.dumps(request), request
            world.client.approve(request["id"])
            job = world.reaches("bees", "completed", "failed", "parked")
            assert job.get("result") == {"report": "The report.", "published": True}, (job, world.output())
            world.verify("bees")
            events = json.dumps(world.events("bees"))
            assert events.count("question/") > 10 and "What is wrong with bees?" in events


@test
def the_wheel_installs_without_a_network_and_the_quickstart_runs_as_written():
    text = (SDK / "README.md").read_text().split("## Quickstart")[1].split("\n## ")[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", text, re.S)
    with tempfile.TemporaryDirectory() as name:
        folder, (reserved, port) = pathlib.Path(name), reserve_port()
        address = f"127.0.0.1:{port}"
        wheel = subprocess.run([ROOT / "scripts/wheel", "--into", folder], check=True, capture_output=True, text=True).stdout.strip()
        again = subprocess.run([ROOT / "scripts/wheel", "--into", folder / "again"], check=True, capture_output=True, text=True)
        assert pathlib.Path(wheel).read_bytes() == pathlib.Path(again.stdout.strip()).read_bytes()
        env = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, capture_output=True, env=env, timeout=300)
        subprocess.run([folder / "venv/bin/pip", "install", "--no-index", "--quiet", wheel], check=True, env=env, timeout=300)
        checked = subprocess.run([folder / "venv/bin/python", "-c", "import aetheris, importlib.metadata as m;"
                                  "print(aetheris.__file__, m.version('aetheris'), len(m.files('aetheris')))"],
                                 check=True, env=env, cwd=folder, capture_output=True, text=True).stdout
        assert "site-packages" in checked and aetheris.SDK_VERSION in checked, checked
        os.symlink(BIN, folder / "aetheris")
        env["PATH"] = f"{folder}/venv/bin:{folder}:{env['PATH']}"
        files = iter(("refund.py", "run.py"))
        commands = []
        for language, body in blocks:
            body = body.replace("127.0.0.1:7070", address).replace("aetheris dev", f"aetheris dev --listen {address}")
            if language == "sh":
                commands.append(body)
            else:
                (folder / next(files)).write_text(body)
        assert len(commands) == 2, commands
        log = open(folder / "log.txt", "w+")
        started = []
        try:
            for command in commands[:-1]:
                started.append(subprocess.Popen(["bash", "-c", "exec env " + command], cwd=folder, env=env, stdout=log, stderr=log))

            def is_offered():
                try:
                    agents = aetheris.Client(f"http://{address}").request("GET", "/api/agents")
                except aetheris.AetherisError:
                    return False
                return '"refund"' in json.dumps(agents)
            until(is_offered)
            done = subprocess.run(["bash", "-c", commands[-1]], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
            expected = re.search(r"It prints `(.*?)`", text)[1]
            assert done.stdout.strip() == expected, (done.stdout, done.stderr, (folder / "log.txt").read_text())
        finally:
            for process in reversed(started):
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(PATIENCE) for process in reversed(started)]
            log.close()
            reserved.close()
        assert codes[0] == 0, codes


if __name__ == "__main__":
    sys.exit(run_tests("sdk python", TESTS, " ".join(sys.argv[1:])))
