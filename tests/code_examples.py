#!/usr/bin/env python3
"""The examples of code agents with a fault at each frame between worker and server, or at each commit of a library:
examples/code-refund (TypeScript), sdk/python/examples (Python) and examples/library (C++), with their approvals, against
examples/shop and examples/model-server.

Prints `ok NAME`, `not ok NAME` or `ok NAME # SKIP why` for each example. The worlds and faults are those of sdk/conformance.
A push runs one of the examples, and of its faults those that kill or cut, for half a minute; AETHERIS_SEED (default: the
commit) selects both. AETHERIS_SLOW_TESTS=1 runs each fault at each frame of all of them.
  code_examples.py [WORDS] [--fault FAULT]   the examples whose name contains WORDS; only this fault, as kill_both_after@3:in
"""
import atexit
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.program import ROOT, TESTING_BIN  # noqa: E402
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "sdk/conformance")]
import npm_packages  # noqa: E402
import oracles  # noqa: E402
import run as conformance  # noqa: E402
from harness.proxy import Fault  # noqa: E402
from harness.shop import job_of  # noqa: E402
from harness.world import LibraryWorld, World  # noqa: E402
from shared.home import Skip, run_tests  # noqa: E402
from shared.search import search_engine  # noqa: E402

IS_FULL = bool(os.environ.get("AETHERIS_SLOW_TESTS"))
SECONDS = 30.0  # of the faults of a push
PARALLEL = 6  # worlds; they wait most of the time
ORDERS_MAX = 5000  # of a world of the library: one for each job
TOTAL = 180  # of an order of the library; more than 100 needs an approval
EXAMPLES = []


def seed():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("AETHERIS_SEED") or head.stdout.strip() or "1"


def address_of(words):
    """Starts a server that lives until the end of this program. Returns what it listens on."""
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
    atexit.register(process.wait)
    atexit.register(process.kill)
    return process.stdout.readline().split()[-1].removeprefix("http://")


def model_server(scenario):
    return f"http://{address_of([oracles.node(), ROOT / 'examples/model-server/server.mjs', '--scenario', scenario])}/v1"


class Example:
    """One job of an example. `acts` and `expect` as in a scenario of sdk/conformance."""
    known, holds, url = {}, {}, ""
    mail = "mail"  # the position of its call

    def hold(self, job, labels):
        pass

    def may_be_in_doubt(self, fault):
        """Only the mail of the refunds is at_most_once, and the process that is killed sends it."""
        return fault is not None and conformance.scenarios.Scenario.loses_performer(fault)

    def problems_with(self, run, is_completed):
        """What is wrong with the result and with what was done outside."""
        raise NotImplementedError


class Run(conformance.scenarios.Run):
    def __init__(self, world, example, number):
        super().__init__(world, example, number)
        self.number = number

    def input(self):
        return self.scenario.input(self)


def judge(run, fault):
    """What is wrong; nothing: []."""
    problems, example = [], run.scenario
    is_completed = run.last["status"] == "completed"
    if not is_completed:
        unknown = [one["position"] for one in run.last["in_doubt"]]
        if not (run.is_in_doubt() and unknown == [example.mail] and example.may_be_in_doubt(fault)):
            problems.append(f"status is {run.last['status']} (error: {run.last['error']}, parked: {run.last['parked']}, "
                            f"in doubt: {unknown})")
    problems += example.problems_with(run, is_completed)
    verified = run.world.get(f"/api/jobs/{run.job}/verify")
    if not verified or not verified.get("ok"):
        problems.append(f"verify: {json.dumps(verified)[:500]}")
    return problems


class Suite(conformance.Suite):
    make_run, judge = Run, staticmethod(judge)

    @staticmethod
    def warm_up(world, number):
        pass

    def command_of(self, one, fault):
        return f"tests/code_examples.py {one.name}" + (f" --fault {fault}" if fault else "")


def run_example(example, make_world):
    """Undisturbed, then with the faults."""
    options = types.SimpleNamespace(parallel=PARALLEL, keep=False, library=issubclass(make_world, LibraryWorld), kind=None,
                                    program=TESTING_BIN, worker="", sdk="", verbose=False)
    suite = Suite(options, make_world, example)
    suite.run_all([(example, FAULT)])
    if not FAULT and example.name in suite.frames:
        frames = suite.frames[example.name]
        faults = [(example, fault) for fault in conformance.faults_of(frames)
                  if IS_FULL or fault.action.startswith(("kill", "cut"))]
        random.Random(seed()).shuffle(faults)
        done = suite.run_all(faults, None if IS_FULL else time.monotonic() + SECONDS)
        print(f"# {example.name}: {frames} frames, {done} of {len(faults)} faults", flush=True)
    suite.judge_faults(True)
    assert not suite.failures, f"{len(suite.failures)} runs failed; AETHERIS_SEED={seed()}"


def example(function):
    EXAMPLES.append(function)
    return function


# ---------------------------------------------------------------- TypeScript


class Refund(Example):
    """Outside: the shop, whose journal has each request and each effect."""
    name, agent = "typescript", "refund"
    acts = [{"at": {"wait": "approval"}, "do": {"approve": "approval"}}]

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-example-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        shop = address_of([sys.executable, ROOT / "examples/shop/shop.py", "--port", "0", "--journal", self.folder / "journal"])
        self.env = {"SHOP_URL": f"http://{shop}", "MODEL": "refund", "MODEL_KEY": "any-key",
                    "MODEL_URL": model_server(ROOT / "examples/model-server/scenarios/refund.json")}

    def input(self, run):
        return {"message": f"Refund order {run.number}, please."}

    def problems_with(self, run, is_completed):
        lines = map(json.loads, (self.folder / "journal").read_text().splitlines())
        mine = [line for line in lines if line.get("idempotency_key") and job_of(line["idempotency_key"]) == run.job]
        done = collections.defaultdict(list)
        for line in mine:
            done[line["kind"], line["route"]].append(line)
        refunds, mails = done["effect", "POST /refunds"], done["effect", "POST /mail"]
        problems = []
        if len(refunds) != 1 or len(mails) > 1 or len(mails) < is_completed:
            problems.append(f"the shop made {len(refunds)} refunds and sent {len(mails)} mails")
        if len({line["idempotency_key"] for line in done["arrival", "POST /refunds"]}) != 1:
            problems.append("the requests of one refund have different keys")
        if is_completed and refunds:
            paid = refunds[0]["answer"]
            wanted = {"answer": f"{paid['amount']} EUR was refunded for order {run.number}.", "refunds": [paid["id"]]}
            if run.last["result"] != wanted:
                problems.append(f"result is {run.last['result']}, expected {wanted}")
        return problems


@example
def typescript():
    sdk, outside = npm_packages.built_sdk(), Refund()

    class RefundWorld(World):
        agent = "refund"

        def __init__(self, program, _, shop, kind, limits):
            super().__init__(program, f"{oracles.node()} {sdk}/dist/worker_main.js agent.ts", shop, kind, limits)

        def environment(self):
            return outside.env

        def write_files(self):
            for name in ("agent.ts", "agents.yaml"):
                shutil.copy(ROOT / "examples/code-refund" / name, self.folder)
            (self.folder / "node_modules").mkdir()
            (self.folder / "node_modules/aetheris").symlink_to(sdk)
            (self.folder / "node_modules/openai").symlink_to(oracles.modules() / "node_modules/openai")
    run_example(outside, RefundWorld)


# ---------------------------------------------------------------- Python


class Research(Example):
    """Reads, and a person's decision: whatever is killed, nothing is unknown and the result is the same."""
    name, agent = "python", "research"
    acts = [{"at": {"wait": "human"}, "do": {"approve": "human"}}]

    def __init__(self, search):
        self.env = {"MODEL": "research_model", "MODEL_KEY": "any-key", "SEARCH_URL": search,
                    "MODEL_URL": model_server(ROOT / "sdk/python/examples/research_model.json"),
                    "PYTHONPATH": str(ROOT / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1"}

    def may_be_in_doubt(self, fault):
        return False

    def input(self, run):
        return {"topic": run.job}

    def problems_with(self, run, is_completed):
        wanted = {"report": "The report.", "published": True}
        problems = [] if run.last["result"] == wanted else [f"result is {run.last['result']}"]
        events = run.world.events(run.job)
        questions = {one["payload"]["position"] for one in events if one["type"] == "node_started"
                     and one["payload"].get("position", "").startswith("question/")}
        if len(questions) < 10:
            problems.append(f"a search and an answer for each of five questions are missing: {sorted(questions)}")
        return problems + [f"left out: {one['payload']}" for one in events if one["payload"].get("name") == "left_out"]


@example
def python():
    with search_engine() as url:
        outside = Research(url)

        class ResearchWorld(World):
            agent = "research"

            def __init__(self, program, _, shop, kind, limits):
                super().__init__(program, f"{sys.executable} -m aetheris research.py", shop, kind, limits)

            def environment(self):
                return outside.env

            def write_files(self):
                for name in ("research.py", "agents.yaml"):
                    shutil.copy(ROOT / "sdk/python/examples" / name, self.folder)
        run_example(outside, ResearchWorld)


# ---------------------------------------------------------------- C++


class LibraryRefund(Example):
    """Outside: files in the folder of the process."""
    name, agent, mail = "cpp", "refund", "send_mail"
    acts = [{"at": {"wait": "approval"}, "do": {"approve": "approval"}}]

    def input(self, run):
        return {"order": str(run.number)}

    def problems_with(self, run, is_completed):
        def lines(name):
            path = run.world.folder / name
            return path.read_text().splitlines() if path.exists() else []
        keys = [line.split()[0] for line in lines("payments.txt") if job_of(line.split()[0]) == run.job]
        mails = lines("mails.txt").count(f"{run.number}@example.org")
        problems = []
        if len(keys) != 1 or mails > 1 or mails < is_completed:
            problems.append(f"there are {len(keys)} payments and {mails} mails")
        if is_completed and run.last["result"] != {"payment": keys[0]}:
            problems.append(f"result is {run.last['result']}, the payment {keys}")
        return problems


@example
def cpp():
    build = ROOT / "build/release"
    if not (build / "libaetheris.a").exists():
        raise Skip("build/release has no libaetheris.a: ./dev build-preset release --target aetheris_library")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-example-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for words in (["cmake", "--install", build, "--component", "library", "--prefix", folder / "prefix"],
                  ["cmake", "-S", ROOT / "examples/library", "-B", folder / "build", "-DCMAKE_CXX_COMPILER=g++",
                   f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}"],
                  ["cmake", "--build", folder / "build"]):
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])

    class RefundWorld(LibraryWorld):
        agent = "refund"

        def __init__(self, program, _, shop, kind, limits):
            super().__init__(program, str(folder / "build/refund"), shop, kind, limits)

        def words(self):
            return ["serve", f"127.0.0.1:{self.port}"]

        def write_files(self):
            orders = {str(number): {"email": f"{number}@example.org", "total": TOTAL} for number in range(ORDERS_MAX)}
            (self.folder / "orders.json").write_text(json.dumps(orders))
    run_example(LibraryRefund(), RefundWorld)


def main():
    words = sys.argv[1:]
    fault = None
    if "--fault" in words:
        at = words.index("--fault")
        fault = Fault.parse(words[at + 1])
        del words[at:at + 2]
    chosen = EXAMPLES
    if not IS_FULL and not words:
        chosen = [random.Random(seed()).choice(EXAMPLES)]
    return chosen, fault, words


if __name__ == "__main__":
    CHOSEN, FAULT, WORDS = main()
    sys.exit(run_tests("code examples", CHOSEN, " ".join(WORDS)))
