"""Shared by the rows of whole processes: a store, `aetheris serve` on it, the request driver, and figures from /proc."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTING_BIN = os.environ.get("AETHERIS_TESTING_BIN") or str(ROOT / "build/release/aetheris_testing")
BENCH = os.environ.get("AETHERIS_BENCH_BIN") or str(ROOT / "build/release/aetheris_bench")
TIMEOUT_S = 1800.0  # of every wait
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")

AGENTS = """
aetheris: 1
tools:
  fill: { native: fill, effect: idempotent }
  late: { native: nap, effect: read, timeout: 1h }
agents:
  one:
    plan: [ { id: a, tool: fill, args: { bytes: 200 } } ]
  sleeps:
    plan:
      - { id: w, wait: { type: timer, until: "${ .input.at }" } }
      - { id: a, tool: fill, needs: [w], args: { bytes: 200 } }
  asks:
    plan:
      - { id: w, wait: { type: signal, key: go } }
      - { id: a, tool: fill, needs: [w], args: { bytes: 200 } }
"""
# Jobs of `blocks_N` occupy every thread for native functions, so calls of `late` are declared but never run. The jobs of
# each wave require their own capability, so that later servers do not claim them.
TWO = """
  two_{n}:
    required_capabilities: [wave_{n}]
    plan:
      - {{ id: a, tool: fill, args: {{ bytes: 200 }} }}
      - {{ id: b, tool: late, needs: [a], args: {{ ms: 0 }} }}
"""
BLOCKS = """
  blocks_{n}:
    required_capabilities: [wave_{n}]
    plan: [ {{ id: x, tool: block, args: {{ ms: 3600000 }} }} ]
"""
BLOCK = "  block: { native: nap, effect: read, timeout: 1h }\n"
THREADS = 16  # docs/decisions/0022-native-threads.md


def node():
    """A Node of version 22 or newer: AETHERIS_NODE, else `node` on the PATH, else the one that tests install by npm."""
    if named := os.environ.get("AETHERIS_NODE"):
        return named
    found = shutil.which("node")
    if found:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        if version.startswith("v") and int(version[1:].split(".")[0]) >= 22:
            return found
    sys.path.insert(0, str(ROOT / "tests"))
    import oracles
    return str(oracles.node())


def postgres_script():
    loader = importlib.machinery.SourceFileLoader("aetheris_postgres", str(ROOT / "scripts/postgres"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def stat(pid):
    """(parent, CPU ms, CPU ms of terminated children), or None."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    user, system, children_user, children_system = map(int, fields[11:15])
    return int(fields[1]), (user + system) * TICK_MS, (children_user + children_system) * TICK_MS


def memory(pid, name="VmRSS"):
    """Bytes; VmHWM is the maximum so far."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} of {pid}")


class Store:
    """A new store of one kind, in its own folder."""

    def __init__(self, kind):
        self.kind = kind
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-bench-"))
        self.server = postgres_script().Server(["shared_buffers=256MB", "max_wal_size=2GB"]) if kind == "postgres" else None
        self.url = self.server.url() if self.server else f"sqlite:{self.folder}/aetheris.db"
        self.serving = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for serve in self.serving:
            serve.kill()
        if self.server:
            self.server.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def serve(self, *words, begins=None, ends=(), agents=None):
        """`begins`: runs only the jobs of that wave, none to its end; `ends`: also completes the jobs of these waves; `agents`:
        another file."""
        if agents is not None:
            pass
        elif begins is None:
            agents = AGENTS + "".join(TWO.format(n=n) for n in ends)
        else:
            agents = AGENTS.partition("agents:\n")[0] + BLOCK + "agents:" + (BLOCKS + TWO).format(n=begins)
        for wave in ends if begins is None else [begins]:
            words += ("--capability", f"wave_{wave}")
        (self.folder / "agents.yaml").write_text(agents)
        self.serving.append(Serve(self, words))
        return self.serving[-1]

    def server_cpu_ms(self):
        if not self.server:
            return 0.0
        _, own, children = stat(self.server.process.pid)
        found = [stat(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
        return own + children + sum(one[1] for one in found if one and one[0] == self.server.process.pid)

    def query(self, sql):
        """One integer from the store's tables; the store may be in use."""
        if self.server:
            psql = [self.server.bin / "psql", "-h", "127.0.0.1", "-p", str(self.server.port), "-U", "aetheris", "-d", "postgres",
                    "-Atc", "SET search_path = aetheris", "-c", sql]
            out = subprocess.run(psql, check=True, capture_output=True, text=True, cwd="/").stdout
            return int(out.split()[-1])
        with sqlite3.connect(f"file:{self.folder}/aetheris.db?mode=ro", uri=True, timeout=60) as db:
            return int(db.execute(sql).fetchone()[0])

    def status_table(self):
        return "heads" if self.server else "jobs"

    def log_end_table(self):
        return "log_ends" if self.server else "heads"

    def count(self, condition):
        return self.query(f"SELECT count(*) FROM {self.status_table()} WHERE {condition}")

    def await_status(self, status, jobs, every=0.5):
        """Waits until exactly `jobs` jobs have this status; exits if a job failed, parked or was cancelled."""
        def is_reached():
            if bad := self.count("status IN ('failed', 'parked', 'cancelled')"):
                sys.exit(f"{bad} jobs failed, parked or were cancelled")
            return self.count(f"status = '{status}'") == jobs
        until(is_reached, every, f"{jobs} jobs are {status}")

    def last_written(self):
        """The wall-clock time of the last event of any job."""
        return self.query(f"SELECT max(updated_at) FROM {self.log_end_table()}") / 1e6

    def first_written_since(self, when):
        """The earliest `updated_at` of any job after `when`."""
        table = self.log_end_table()
        return self.query(f"SELECT min(updated_at) FROM {table} WHERE updated_at > {int(when * 1e6)}") / 1e6


class Serve:
    """An `aetheris serve` process; reads only the first line of its output."""

    def __init__(self, store, words):
        env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.started = time.time()
        self.process = subprocess.Popen(
            [TESTING_BIN, "serve", "agents.yaml", "--store", store.url, "--listen", "127.0.0.1:0", "--json", *words],
            cwd=store.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(store.folder / "stderr", "a"),
            text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("serve did not start: " + (store.folder / "stderr").read_text()[-2000:])
        self.url = json.loads(line)["listening"]

    pid = property(lambda self: self.process.pid)

    def rss(self):
        return memory(self.pid)

    def cpu_ms(self):
        return stat(self.pid)[1]

    def drive(self, path, body, requests, connections=16, first=0, rate=0):
        """Sends requests by the driver, a separate process; returns its row of figures."""
        command = [BENCH, "drive", self.url.removeprefix("http://"), path, json.dumps(body), connections, requests, first, rate]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"requests failed: {done.stdout}{done.stderr[:2000]}")
        return json.loads(done.stdout)

    def counter(self, name):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        text = opener.open(self.url + "/metrics", timeout=60).read().decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        if self.process.wait(timeout=120) != 0:
            raise RuntimeError("serve exited with an error")


def until(condition, every, what):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"timeout after {TIMEOUT_S:.0f} s: {what}")
        time.sleep(every)
