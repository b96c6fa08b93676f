"""The parts of a chaos run: a folder, the shop, a store, and the processes of the built program that share it."""
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import agents
from client import ACK, send_request
from files import Lines
from postgres import Postgres

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from shared.ports import reserve_port  # noqa: E402
from shared.sanitizer import sanitizer  # noqa: E402

ROOT = HERE.parent.parent
READY_S = 60.0
DISK_MIB = 3072  # sparse
CONNECTIONS = 8      # of one process, its dead predecessors' included
# Exit codes that a fault explains.
STOPPED, FAILPOINT = 7, 137


def program():
    named = os.environ.get("AETHERIS_BIN")
    return str(pathlib.Path(named).resolve()) if named else str(ROOT / "build/release/aetheris")


def clean_environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}


class Server:
    """One `aetheris serve` on its own port, restarted whenever it ends. `busy`: in use by a fault; nothing else kills it."""
    kind = "serve"
    creates_jobs = True     # whether it creates and lists jobs
    IDLE = 0.0      # share of its processes that run no jobs

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.name = f"{self.kind} {number}"
        self.reserved, self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.out = world.folder / f"{self.kind}{number}.out"
        self.err = world.folder / f"{self.kind}{number}.err"
        self.process = None
        self.busy = False
        self.clock = world.folder / f"clock-{number}"  # microseconds added to its clock
        self.down = False       # not restarted until a fault allows it
        self.allowed = set()    # allowed exit codes of this process
        self.lock = threading.RLock()

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def start(self, env=None, durability=None, allowed=(), words=()):
        with self.lock:
            world = self.world
            self.allowed = set(allowed)
            durability = durability or world.generator.choice(["fused", "fused", "fused", "split"])
            if not words and not env and world.generator.random() < self.IDLE:
                words = ["--workers", "0"]
            with open(self.err, "ab") as err, open(self.out, "wb") as out:
                self.process = subprocess.Popen(
                    [program(), self.kind, "agents.yaml", "--listen", f"127.0.0.1:{self.port}", "--durability", durability, *words],
                    cwd=world.folder, env={**world.env, "AETHERIS_CLOCK_OFFSET_FILE": str(self.clock), **(env or {})}, stdin=subprocess.DEVNULL,
                    stdout=out, stderr=err)
            world.count("restarts" if world.begun else "starts")
            world.note("start", server=self.number, worker=f"{socket.gethostname()}:{self.pid}", kind=self.kind,
                       runs=list(words) != ["--workers", "0"], durability=durability, env=env or {})

    def kill(self):
        """kill -9, and the time of it."""
        with self.lock:
            if self.alive():
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
                self.world.count("kills")
                self.world.count(f"kills of {self.kind}")
                self.ended("kill")

    def ended(self, why):
        self.world.note("end", server=self.number, worker=f"{socket.gethostname()}:{self.pid}", why=why,
                        code=self.process.returncode)

    def stop(self):
        """SIGTERM; whether it shut down in order."""
        with self.lock:
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(30)
            except subprocess.TimeoutExpired:
                code = None
                self.process.kill()
                self.process.wait()
            self.ended("stop")
            return code == 0

    def ready(self, patience=READY_S):
        give_up = time.monotonic() + patience
        while time.monotonic() < give_up and self.alive():
            if send_request(self.url, "GET", "/api/ready", timeout=2).end == ACK:
                return True
            time.sleep(0.02)
        return False

    def listened(self):
        """Whether this process has printed its address."""
        return self.out.stat().st_size > 0

    def restart_if_ended(self):
        """Restarts it when it has ended. An end that no fault explains is a violation."""
        with self.lock:
            if self.process is None or self.process.poll() is None or self.down:
                return
            code = self.process.returncode
            if code != -signal.SIGKILL:
                self.ended("itself")
                if code == STOPPED and self.world.kind == "postgres" and not self.listened():
                    self.world.count("starts refused")  # the database was not available
                    time.sleep(0.1)
                elif code not in self.allowed:
                    self.world.violation("died", f"{self.name} ended by itself with {code}: " +
                                         self.err.read_text(errors="replace")[-600:])
            self.start()


class SharedServer(Server):
    """One of several servers; some of its processes create jobs and run none."""
    IDLE = 0.4


class Worker(Server):
    """One `aetheris worker`: it creates and lists no jobs, but reports whether it is ready."""
    kind = "worker"
    creates_jobs = False


class World:
    kind = ""

    def __init__(self, seed, kinds):
        self.seed, self.generator = seed, random.Random(f"world {seed} {self.kind}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"aetheris-chaos-{self.kind}-"))
        self.begun = False
        self.counts = {}
        self.violations = []
        self.lock = threading.Lock()
        self.faults = Lines(self.folder / "faults.ndjson")
        (self.folder / "agents.yaml").write_text(agents.TEXT)
        self.shop = subprocess.Popen([sys.executable, str(HERE / "shop.py"), "--journal", str(self.folder / "shop.ndjson"),
                                      "--seed", str(seed)],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.shop_url = "http://" + self.shop.stdout.readline().split()[1]
        self.env = {**clean_environment(), **sanitizer("detect_leaks=0"), "SHOP_URL": self.shop_url,
                    "PRINTS": str(self.folder / "prints.txt"), "NO_COLOR": "1"}
        self.servers = [kind(self, n) for n, kind in enumerate(kinds)]
        self.creators = [server for server in self.servers if server.creates_jobs]
        self.write_urls()
        self.keeping = True
        self.keeper = threading.Thread(target=self.keep, daemon=True)

    def write_urls(self):
        path = self.folder / "urls.new"
        path.write_text("\n".join(server.url for server in self.creators) + "\n")
        path.rename(self.folder / "urls")

    def start(self):
        self.open_store()
        for server in self.servers:
            server.start()
            if not server.ready():
                raise RuntimeError(f"{server.name} does not start: {server.err.read_text()}")
        self.begun = True
        self.keeper.start()

    def keep(self):
        while self.keeping:
            for server in self.servers:
                if not server.busy:
                    server.restart_if_ended()
            time.sleep(0.02)

    def note(self, what, **fields):
        self.faults.write({"t": time.time(), "what": what, **fields})

    def count(self, name, n=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + n

    def violation(self, kind, text):
        with self.lock:
            self.violations.append((kind, text))

    def idle(self, creates_jobs=False):
        """A server that no fault uses (`creates_jobs`: one that creates jobs), reserved until `busy` is false again."""
        with self.lock:
            free = [server for server in (self.creators if creates_jobs else self.servers) if not server.busy and server.alive()]
            if not free:
                return None
            server = self.generator.choice(free)
            server.busy = True
            return server

    def heal(self):
        """Ends all faults and waits for every process."""
        for server in self.servers:
            with server.lock:
                server.busy, server.down = False, False
                if server.alive():
                    server.process.send_signal(signal.SIGCONT)
        for server in self.servers:
            deadline = time.monotonic() + READY_S
            while not server.ready() and time.monotonic() < deadline:
                time.sleep(0.1)

    def end(self, keep_folder):
        self.keeping = False
        if self.keeper.is_alive():
            self.keeper.join()
        for server in self.servers:
            if server.alive():
                server.process.send_signal(signal.SIGCONT)
                server.process.kill()
                server.process.wait()
        self.shop.stdin.close()
        self.shop.wait()
        self.close_store()
        if not keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class SqliteWorld(World):
    """One process owns the store; its file is on a separate disk, if one can be mounted, so that it can be filled."""
    kind = "sqlite"
    lease_s = 0.0  # opening the store ends every earlier lease

    def __init__(self, seed):
        super().__init__(seed, [Server])
        self.disk = self.folder / "disk"
        self.mounted = False

    def open_store(self):
        self.disk.mkdir()
        image = self.folder / "disk.img"
        with open(image, "wb") as file:
            file.truncate(DISK_MIB << 20)
        make = ["mkfs.ext4", "-q", "-m0", str(image)]
        mount = ["mount", "-o", "loop", str(image), str(self.disk)]
        try:
            self.mounted = all(subprocess.run(command, capture_output=True).returncode == 0 for command in (make, mount))
        except FileNotFoundError:
            pass
        self.env["AETHERIS_STORE"] = f"sqlite:{self.disk / 'store.db'}"

    def close_store(self):
        if self.mounted:
            subprocess.run(["umount", str(self.disk)], capture_output=True)


class PostgresWorld(World):
    kind = "postgres"
    lease_s = 30.0

    def __init__(self, seed, creators=2, workers=2):
        super().__init__(seed, [SharedServer if creators > 1 else Server] * creators + [Worker] * workers)

    def open_store(self):
        self.postgres = Postgres(CONNECTIONS * len(self.servers) + 20)
        self.env["AETHERIS_STORE"] = self.postgres.url

    def close_store(self):
        if hasattr(self, "postgres"):
            self.postgres.end()
