"""World: a server, a worker and the proxy between them, in a temporary folder; for one job at a time."""
import collections
import http.client
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness.commits import Commits, preload
from harness.proxy import Proxy
from harness.reaper import Reaper

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Of the server, in milliseconds. Nothing waits for a long limit that a fault does not need, so a busy machine loses no
# session that the test does not mean to lose.
Limits = collections.namedtuple("Limits", "heartbeat silent resume")
CONNECTED = Limits(2000, 10_000, 10_000)  # the worker reports soon
SILENT = Limits(300, 1000, 10_000)  # the connection is silent, and the session is resumed
LOST = Limits(300, 1000, 1000)  # the session is lost
FROZEN = (LOST.silent + LOST.resume) / 1000 + 0.7  # seconds: longer than a session survives
AGENTS = """
aetheris: 1
tools:
  server_read:
    http: {{ method: POST, url: "{shop}/tool" }}
    effect: read
    retry: {{ max_attempts: 3, initial_backoff: 10ms }}
  server_idempotent:
    http: {{ method: POST, url: "{shop}/tool" }}
    effect: idempotent
    retry: {{ max_attempts: 3, initial_backoff: 10ms, retry_on: [connect, timeout, 5xx] }}
  server_child: {{ agent: helper }}
  echo: {{ native: echo, effect: read }}
  server_once: {{ http: {{ method: POST, url: "{shop}/tool" }}, effect: at_most_once }}
models:
  main: {{ provider: openai, base_url: "{shop}/v1", model: echo }}
agents:
  helper: {{ plan: [ {{ id: e, tool: echo, args: {{ of: "${{ .input.value }}" }} }} ], output: "${{ .steps.e.of }}" }}
  none: {{ plan: [ {{ id: w, wait: {{ type: signal, key: never }} }} ] }}
"""


making, reaper = threading.Lock(), None  # of all worlds; made with the first


class Failed(Exception):
    """What is wrong, for people."""


class World:
    """`command`: of the worker. `program`: aetheris_testing. Subclasses run other agents (tests/code_examples.py)."""
    agent = "script"  # the server knows it when the worker is connected

    def __init__(self, program, command, shop, kind=None, limits=CONNECTED):
        global reaper
        with making:
            reaper = reaper or Reaper()
        self.program, self.command, self.shop, self.kind = program, shlex.split(command), shop, kind
        self.limits = limits
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
        self.write_files()
        self.log = open(self.folder / "log.txt", "ab")
        # Open until the end: the system gives the port to no other process while the server is started again.
        self.reserved = socket.socket()
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = self.reserved.getsockname()[1]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")} | self.environment()
        self.changing, self.is_closed = threading.Lock(), False  # held while a fault is applied
        self.server = self.worker = self.connection = self.thaw = self.proxy = None
        try:
            self.start_all()
            self.until(self.knows_agent, "the worker's agents")
        except BaseException:
            self.close()
            raise

    def write_files(self):
        """Into the folder, before a process starts."""
        (self.folder / "agents.yaml").write_text(AGENTS.format(shop=self.shop.url))

    def environment(self):
        """Of both processes, besides that of the runner."""
        return {}

    def start_all(self):
        self.start_server()
        self.until(lambda: self.get("/api/health"), "the server")
        self.proxy = Proxy(self.folder / "proxy.sock", self.upstream(), self.on_fault)
        self.start_worker()

    def upstream(self):
        """Of the proxy: the server's socket, which a store in files has."""
        return str(self.folder / ".aetheris/aetheris.sock")

    @staticmethod
    def limits_for(fault):
        """The limits of a world in which this fault has its effect."""
        if fault is None or fault.action.startswith(("cut", "kill_server")):
            return CONNECTED
        return SILENT if fault.action in ("freeze_server", "late") else LOST

    # ---------------------------------------------------------------- processes

    def start(self, words, **env):
        process = subprocess.Popen(words, cwd=self.folder, env={**self.env, **env}, stdin=subprocess.DEVNULL,
                                   stdout=self.log, stderr=self.log, start_new_session=True)
        reaper.add(process.pid)
        return process

    def start_server(self):
        self.server = self.start([self.program, "serve", "agents.yaml", "--listen", f"127.0.0.1:{self.port}", "--rate",
                                  "0", "--lease", "2s", "--quiet"],
                                 AETHERIS_WORKER_LIMITS=" ".join(map(str, self.limits)))

    def start_worker(self):
        kind = {} if self.kind is None else {"SCRIPT_KIND": self.kind}
        self.worker = self.start(self.command, AETHERIS_SOCKET=str(self.folder / "proxy.sock"),
                                 AETHERIS_SHOP=self.shop.url, **kind)

    @staticmethod
    def kill(process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reaper.remove(process.pid)

    def on_fault(self, fault):
        """In a thread of the proxy: kills and starts again, or freezes for a while."""
        with self.changing:
            if not self.is_closed:
                self.apply(fault)

    def apply(self, fault):
        victims = [name for name in ("server", "worker") if name in fault.action or "both" in fault.action]
        if fault.action.startswith("freeze"):
            processes = [getattr(self, name) for name in victims]
            for process in processes:
                os.killpg(process.pid, signal.SIGSTOP)
            self.thaw = threading.Timer(FROZEN, lambda: [os.killpg(one.pid, signal.SIGCONT) for one in processes])
            self.thaw.start()
            return
        for name in victims:
            self.kill(getattr(self, name))
        for name in victims:
            getattr(self, f"start_{name}")()

    def recover(self):
        """Waits for the end of what on_fault began."""
        with self.changing:
            pass
        if self.thaw is not None:
            self.thaw.join()
            self.thaw = None

    def close(self):
        """Ends both in order. Returns what is wrong with their ends."""
        problems = []
        self.recover()
        with self.changing:
            self.is_closed = True
        for name, process in (("worker", self.worker), ("server", self.server)):
            if process is None:
                continue
            try:
                process.send_signal(signal.SIGTERM)
                code = process.wait(15)
                if code != 0:
                    problems.append(f"the {name} ended with code {code} after SIGTERM")
            except subprocess.TimeoutExpired:
                problems.append(f"the {name} did not end within 15 s of SIGTERM")
                self.kill(process)
            try:
                os.killpg(process.pid, signal.SIGKILL)
                problems.append(f"a process of the {name} is left")
            except ProcessLookupError:
                pass
            reaper.remove(process.pid)
        if self.proxy is not None:
            self.proxy.close()
        self.reserved.close()
        self.log.close()
        return problems

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def output(self):
        self.log.flush()
        return (self.folder / "log.txt").read_text(errors="replace")[-2500:]

    # ---------------------------------------------------------------- requests

    def until(self, condition, what, patience=30.0):
        give_up = time.monotonic() + patience
        while not (found := condition()):
            self.check_processes(what)
            if time.monotonic() > give_up:
                raise Failed(f"{what}: not within {patience:.0f} s\n{self.output()}")
            time.sleep(0.02)
        return found

    def check_processes(self, what):
        """A process may end only by the SIGKILL of a fault, which starts it again."""
        for name, process in (("server", self.server), ("worker", self.worker)):
            if process is not None and process.poll() not in (None, -signal.SIGKILL):
                raise Failed(f"{what}: the {name} ended with code {process.returncode}\n{self.output()}")

    def request(self, method, path, body=None):
        """(status, body); (0, None): the server does not answer."""
        for attempt in (1, 2):  # a kept connection may have been closed
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                self.connection.request(method, path, None if body is None else json.dumps(body),
                                        {} if body is None else {"Content-Type": "application/json"})
                response = self.connection.getresponse()
                return response.status, json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError):
                self.connection.close()
                self.connection = None
                if attempt == 2 or method != "GET":
                    return 0, None
        return 0, None

    def get(self, path):
        """The body; None: not 200."""
        status, body = self.request("GET", path)
        return body if status == 200 else None

    def knows_agent(self):
        return self.get(f"/api/agents/{self.agent}") is not None

    def events(self, job):
        """All events of a job's log."""
        events = []
        while True:
            page = self.get(f"/api/jobs/{job}/events?limit=1000&after={events[-1]['seq'] if events else 0}")
            if page is None:
                return None
            events += page["events"]
            if len(page["events"]) < 1000:
                return events


class LibraryWorld(World):
    """A process that runs its agents itself, and serves the HTTP API: COMMAND STORE AGENTS_FILE ADDRESS."""

    def start_all(self):
        self.proxy = Commits(self.folder / "commits", self.on_fault)
        self.start_server()

    @staticmethod
    def limits_for(fault):
        return CONNECTED  # it has none

    def start_server(self):
        self.server = self.start([*self.command, *self.words()], AETHERIS_SHOP=self.shop.url,
                                 LD_PRELOAD=str(preload()), COMMITS_FILE=str(self.folder / "commits"))

    def words(self):
        return ["sqlite:.aetheris/aetheris.db", "agents.yaml", f"127.0.0.1:{self.port}"]

    def apply(self, fault):
        self.server.wait()  # it was killed
        reaper.remove(self.server.pid)
        self.start_server()
