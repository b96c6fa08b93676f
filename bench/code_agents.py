"""Rows of code agents: jobs of ten steps, which are functions of a worker process; and the same work with Restate.

They need Node 22, found by processes.node(); `code-cpp` needs the installed library, `restate` the npm
registry. All processes but the driver count for CPU.
"""
import datetime
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from processes import BENCH, ROOT, TESTING_BIN, memory, node, stat, until

FOLDER = ROOT / "bench/code"
STEPS = 10
IN_FLIGHT = (1, 32, 256)
AGENTS = """
aetheris: 1
agents:
  none: { plan: [ { id: w, wait: { type: signal, key: never } } ] }
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def request(url, body=None):
    """The JSON answer; None: there is none."""
    made = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(),
                                  headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(made, timeout=60) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


class System:
    """Processes in a folder of their own, whose jobs are started by HTTP."""
    store = "sqlite"

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-bench-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("AETHERIS_", "RESTATE_"))}
        self.processes = []
        self.port = free_port()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *words, **env):
        with open(self.folder / "log.txt", "a") as log:
            process = subprocess.Popen(list(map(str, words)), cwd=self.folder, env={**self.env, **env}, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def until(self, condition, what):
        give_up = time.monotonic() + 60
        while not condition():
            if time.monotonic() > give_up or any(process.poll() is not None for process in self.processes):
                raise SystemExit(f"{what}: no\n{(self.folder / 'log.txt').read_text()[-3000:]}")
            time.sleep(0.05)

    def cpu_ms(self):
        return [stat(process.pid)[1] for process in self.processes]

    def drive(self, jobs, connections, steps=STEPS):
        """Runs jobs, `connections` at a time, each from its creation to its end. A row of the driver."""
        path, body = self.job(steps)
        command = [BENCH, "drive", f"127.0.0.1:{self.port}", path, json.dumps(body), connections, jobs, 0, 0]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"requests failed: {done.stdout}{done.stderr[:2000]}\n"
                             f"{(self.folder / 'log.txt').read_text()[-2000:]}")
        return json.loads(done.stdout)


class Aetheris(System):
    """`serve`, and a worker."""

    def __init__(self, *command, **env):
        super().__init__()
        self.env.update(env)
        (self.folder / "agents.yaml").write_text(AGENTS)
        self.socket = self.folder / ".aetheris/aetheris.sock"
        self.start_server()
        self.command = command
        self.start_worker()
        self.until(lambda: request(f"http://127.0.0.1:{self.port}/api/agents/steps"), "the worker's agents are known")

    def start_server(self):
        self.server = self.start(TESTING_BIN, "serve", "agents.yaml", "--listen", f"127.0.0.1:{self.port}", "--rate", "0", "--quiet",
                                 "--workers", "1000")
        self.until(lambda: self.socket.exists() and self.get("/api/ready"), "the server listens")

    def start_worker(self):
        self.worker = self.start(*self.command, AETHERIS_SOCKET=str(self.socket), AETHERIS_VERBOSE="1")
        return self.worker

    def job(self, steps):
        return "/api/jobs?wait=60s", {"agent": "steps", "input": {"steps": steps}}

    def connections(self):
        return (self.folder / "log.txt").read_bytes().count(b"connected as")

    def get(self, path):
        return request(f"http://127.0.0.1:{self.port}{path}")

    def post(self, path, body):
        return request(f"http://127.0.0.1:{self.port}{path}", body)


class Library(System):
    def __init__(self):
        super().__init__()
        if not (ROOT / "build/release/libaetheris.a").exists():
            raise SystemExit("code-cpp needs the library: ./dev build-preset release --target aetheris_library")
        prefix, build = self.folder / "prefix", self.folder / "build"
        for words in (["cmake", "--install", ROOT / "build/release", "--component", "library", "--prefix", prefix],
                      ["cmake", "-S", FOLDER, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_COMPILER=g++"],
                      ["cmake", "--build", build]):
            subprocess.run(list(map(str, words)), check=True, capture_output=True)
        self.start(build / "agent", f"sqlite:{self.folder}/aetheris.db", f"127.0.0.1:{self.port}")
        self.until(lambda: request(f"http://127.0.0.1:{self.port}/api/agents/steps"), "the process serves")

    def job(self, steps):
        return "/api/jobs?wait=60s", {"agent": "steps", "input": {"steps": steps}}


class Restate(System):
    """A Restate server with its defaults, and a service of its TypeScript SDK; both by npm."""
    store = "restate"

    def __init__(self):
        super().__init__()
        packages = ROOT / "build/restate"
        packages.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "restate.ts"):
            shutil.copy(FOLDER / name, packages / name)
        if not (packages / "node_modules/@restatedev/restate-server").exists():
            done = subprocess.run(["npm", "install", "--ignore-scripts", "--no-fund", "--no-audit"], cwd=packages,
                                  capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                raise SystemExit(f"npm cannot install Restate: {done.stderr[-2000:]}")
        binary = next(packages.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
        admin, peers, service = free_port(), free_port(), free_port()
        self.start(binary, "--no-logo", RESTATE_BASE_DIR=str(self.folder / "data"), RESTATE_DISABLE_TELEMETRY="1",
                   DO_NOT_TRACK="1", RESTATE_LISTEN_MODE="tcp",
                   RESTATE_BIND_ADDRESS=f"127.0.0.1:{peers}", RESTATE_ADVERTISED_ADDRESS=f"http://127.0.0.1:{peers}",
                   RESTATE_INGRESS__BIND_ADDRESS=f"127.0.0.1:{self.port}", RESTATE_ADMIN__BIND_ADDRESS=f"127.0.0.1:{admin}")
        self.start(node(), packages / "restate.ts", BENCH_PORT=str(service), NODE_ENV="production")
        self.until(lambda: request(f"http://127.0.0.1:{admin}/deployments",
                                   {"uri": f"http://127.0.0.1:{service}", "force": True}), "the service is registered")
        self.until(lambda: request(f"http://127.0.0.1:{self.port}/bench/run", {"steps": 1}), "a job ends")

    def job(self, steps):
        return "/bench/run", {"steps": steps}


def flush_ms(folder):
    """The median time in which this disk appends 4 KiB to a file durably."""
    times = []
    with open(folder / "flush", "wb", buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


def commits(system):
    """Of one job: its events with one time are one commit."""
    created = system.post(*system.job(STEPS))
    events = system.get(f"/api/jobs/{created['id']}/events?limit=1000")["events"]
    return len({event["created_at"] for event in events})


def measure(system, options):
    """Rows of a system: its jobs at each number in flight."""
    for in_flight in IN_FLIGHT:
        jobs = (20 if in_flight == 1 else 4 * in_flight) if options.quick else (200 if in_flight == 1 else 40 * in_flight)
        system.drive(max(20, jobs // 10), in_flight)
        before, began = system.cpu_ms(), time.monotonic()
        driven = system.drive(jobs, in_flight)
        took = time.monotonic() - began
        cpu = [(after - earlier) / (jobs * STEPS) for earlier, after in zip(before, system.cpu_ms())]
        steps = jobs * STEPS
        alone = {}
        if in_flight == 1:  # of job_p50_ms, the part that the disk takes
            alone["flush_ms"] = flush_ms(system.folder)
            if isinstance(system, Aetheris):
                alone["commits"] = commits(system)
                alone["flushes_ms"] = alone["commits"] * alone["flush_ms"]
        yield {"store": system.store, "in_flight": in_flight, "jobs": jobs, "steps_per_second": STEPS * driven["per_second"], "cpu_us": 1000 * sum(cpu),
               "server_us": 1000 * cpu[0], "worker_us": 1000 * sum(cpu[1:]), "job_p50_ms": driven["p50_ms"],
               "job_p99_ms": driven["p99_ms"], "cores": sum(cpu) * steps / 1000 / took, **alone}


def worker_ts():
    return node(), ROOT / "sdk/typescript/src/worker_main.ts", FOLDER / "agent.ts"


def python_sdk():
    """The folder with the package; AETHERIS_PYTHON_SDK names another one."""
    return pathlib.Path(os.environ.get("AETHERIS_PYTHON_SDK") or ROOT / "sdk/python")


def code_ts(_, options):
    with Aetheris(*worker_ts()) as system:
        yield from measure(system, options)


def code_py(_, options):
    if not (python_sdk() / "aetheris").is_dir():
        raise SystemExit(f"there is no Python SDK in {python_sdk()}")
    with Aetheris(sys.executable, "-m", "aetheris", FOLDER / "agent.py", PYTHONPATH=str(python_sdk())) as system:
        yield from measure(system, options)


def code_cpp(_, options):
    with Library() as system:
        yield from measure(system, options)


def restate(_, options):
    with Restate() as system:
        yield from measure(system, options)


def replace_worker(system):
    """Ends the worker and starts another one; when it was started, and when it was connected."""
    system.worker.send_signal(signal.SIGTERM)
    system.worker.wait(60)
    system.processes.remove(system.worker)
    connections = system.connections()
    started = time.monotonic()
    system.start_worker()
    until(lambda: system.connections() > connections, 0.005, "the new worker is connected")
    return started, time.monotonic()


def answer(system, key, is_done, pause=0.0):
    """Sends the signal that the job waits for; seconds until the job has used it. `pause`: before the first request for
    the job, which competes with it for the processor."""
    began = time.monotonic()
    system.post("/api/jobs/w/signal", {"correlation_key": key, "payload": 1})
    time.sleep(pause)
    until(lambda: is_done(system.get("/api/jobs/w")), 0.002, f"the job used the signal {key}")
    return time.monotonic() - began


def has_ended(job):
    return job["status"] == "completed"


def waits_for(key):
    return lambda job: job["status"] == "waiting" and job["waits"][0].get("correlation_key") == key


def resume(_, options):
    """A job of many steps waits; a new worker replays its record to the frontier, and the job ends."""
    for steps in ((100, 1000) if options.quick else (100, 1000, 10000)):
        with Aetheris(*worker_ts()) as system:
            system.post("/api/jobs", {"agent": "waits", "id": "w", "input": {"steps": steps}})
            until(lambda: system.get("/api/jobs/w")["status"] == "waiting", 0.05, "the job waits")
            started, connected = replace_worker(system)
            fresh = system.worker
            before = stat(fresh.pid)[1], stat(system.server.pid)[1]
            took = answer(system, "go", has_ended)
            yield {"steps": steps, "start_s": connected - started, "resume_s": took, "us_each": 1e6 * took / steps,
                   "worker_us_each": 1000 * (stat(fresh.pid)[1] - before[0]) / steps,
                   "server_us_each": 1000 * (stat(system.server.pid)[1] - before[1]) / steps,
                   "worker_mb": memory(fresh.pid) / 1e6}


def recovery_ms(system):
    """From the newest answer to a wait until the job waited again or ended, by the times of its events."""
    seq = system.get("/api/jobs/w")["seq"]
    events = system.get(f"/api/jobs/w/events?after={seq - 12}&limit=20")["events"]
    answered = [event for event in events if event["type"] == "wait_completed"][-1]
    done = [event for event in events if event["type"] in ("wait_opened", "job_completed")][-1]
    first, last = (datetime.datetime.fromisoformat(event["created_at"].replace("Z", "+00:00")) for event in (answered, done))
    return (last - first).total_seconds() * 1000


def code_loop(_, options):
    """A loop of many turns waits in its last one: for a signal after its worker was replaced, then for another one after
    the server was killed and started again. A fresh worker is given the state of the last turn, not the turns. The times
    are those of the log, from the signal to the next wait or the end. `view_ms` is the time of a request for the job."""
    for turns in ((100, 1000) if options.quick else (1000, 100000)):
        with Aetheris(*worker_ts()) as system:
            began = time.monotonic()
            system.post("/api/jobs", {"agent": "turns", "id": "w", "input": {"turns": turns}})
            until(lambda: waits_for("go")(system.get("/api/jobs/w")), 0.02, "the job waits")
            took = time.monotonic() - began
            replace_worker(system)
            answer(system, "go", waits_for("again"), pause=1)
            worker_ms = recovery_ms(system)
            system.server.kill()
            system.server.wait()
            system.processes.remove(system.server)
            connections = system.connections()
            began = time.monotonic()
            system.start_server()
            until(lambda: system.connections() > connections, 0.005, "the worker is connected again")
            started = time.monotonic()
            answer(system, "again", has_ended, pause=1)
            server_ms = recovery_ms(system)
            began_view = time.monotonic()
            system.get("/api/jobs/w")
            yield {"turns": turns, "turns_per_second": turns / took, "worker_ms": worker_ms, "restart_s": started - began,
                   "server_ms": server_ms, "view_ms": 1000 * (time.monotonic() - began_view), "worker_mb": memory(system.worker.pid) / 1e6,
                   "server_mb": memory(system.server.pid) / 1e6}


# Compared with Restate in the same run; the goals of code agents.
GOALS = [("steps_per_second", 256, ">=", 3.0), ("cpu_us", 256, "<=", 1 / 3), ("job_p50_ms", 1, "<=", 1 / 3)]


def ratios(rows):
    """Each goal: the figure of `code-ts` relative to that of Restate."""
    for figure, in_flight, way, goal in GOALS:
        found = {row["row"]: row[figure] for row in rows if row.get("in_flight") == in_flight and figure in row}
        if "code-ts" in found and "restate" in found:
            ratio = found["code-ts"] / found["restate"]
            yield {"row": "ratio", "of": f"code-ts to restate, {in_flight} in flight", "figure": figure, "ratio": ratio,
                   "way": way, "goal": goal, "held": ratio >= goal if way == ">=" else ratio <= goal}
