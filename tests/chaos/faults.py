"""The faults: one class each. `run` breaks something, waits, and repairs it, while the run continues.

To add one: a class with `name` and `stores`, listed in ALL. `missing` returns what it needs and does not find; then it is
reported as skipped. A fault only affects a server from `world.idle()`, and returns it with `busy = False`.
"""
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import bad_requests
import check
from client import ACK, send_request, quoted
from world import FAILPOINT, STOPPED, program

POINTS = ["tool.before", "tool.after", "effect.after_put", "append.before", "append.after", "ledger.after_commit",
          "claim.after", "heartbeat.before", "signal.after_inbox", "timer.after_fire"]
CLOCK_ERROR_S = 0.5  # error of the database time that a process measures
AT_A_TIME = 3  # failpoints before the next fault
# Hit often, so that a later hit is worth waiting for.
BUSY_POINTS = {"tool.before", "tool.after", "effect.after_put", "append.before", "append.after", "ledger.after_commit"}


class Fault:
    name = ""
    stores = ("sqlite", "postgres")

    def __init__(self, world, generator, long):
        self.world, self.generator, self.long = world, generator, long

    def missing(self):
        return ""

    def run(self):
        raise NotImplementedError

    def borrow(self, patience=20.0, creates_jobs=False):
        give_up = time.monotonic() + patience
        while time.monotonic() < give_up:
            if server := self.world.idle(creates_jobs):
                return server
            time.sleep(0.05)
        raise TimeoutError("no server is free")

    def replace(self, server, **how):
        """Kills it and starts it another way."""
        server.kill()
        server.start(**how)

    def wait_for_end(self, server, seconds):
        give_up = time.monotonic() + seconds
        while server.alive() and time.monotonic() < give_up:
            time.sleep(0.01)
        return not server.alive()


class Kill(Fault):
    """kill -9, at once or in the middle of its recovery, and again."""
    name = "kill"

    def run(self):
        server = self.borrow()
        try:
            for _ in range(self.generator.choice([1, 1, 1, 3])):
                server.kill()
                server.start()
                time.sleep(self.generator.uniform(0, 0.25))
        finally:
            server.busy = False


class Failpoint(Fault):
    """The process dies, fails or loses a response at a failpoint; each failpoint in turn."""
    name = "failpoint"
    action = "exit"

    def __init__(self, world, generator, long):
        super().__init__(world, generator, long)
        self.turn = []

    def run(self):
        for _ in range(AT_A_TIME):
            if not self.turn:
                self.turn = self.generator.sample(POINTS, len(POINTS))
            self.die_at(self.turn.pop())

    def die_at(self, point):
        at = self.generator.randint(1, 30 if point in BUSY_POINTS else 1)
        server = self.borrow()
        try:
            self.replace(server, env={"AETHERIS_FAILPOINTS": f"{point}={self.action}@{at}"}, allowed=[FAILPOINT],
                         durability="split" if point == "ledger.after_commit" else None)
            if self.wait_for_end(server, 12 if point == "heartbeat.before" else 5):
                server.ended(f"failpoint {point}")
                if server.process.returncode == FAILPOINT:
                    self.world.count("failpoints")
                    self.world.count(f"failpoint {point}")
                else:
                    self.world.violation("died", f"with {point}@{at} {server.name} ended with {server.process.returncode}")
                server.start()
            else:
                self.replace(server)
        finally:
            server.busy = False


class Refused(Failpoint):
    """Some writes are rejected, or their response is lost."""
    name = "store_error"

    def run(self):
        server = self.borrow()
        rules = ";".join(f"{self.generator.choice(POINTS)}={action}@{self.generator.randint(1, 400)}"
                         for action in ("error", "error_after") * 6)
        try:
            self.replace(server, env={"AETHERIS_FAILPOINTS": rules})
            self.wait_for_end(server, 4)
            if not server.alive():
                server.ended("itself")
                self.world.violation("died", f"with {rules} {server.name} ended with {server.process.returncode}")
                server.start()
            else:
                self.replace(server)
        finally:
            server.busy = False


class Stop(Fault):
    """SIGSTOP for longer than a lease, then SIGCONT: other processes have taken its jobs meanwhile."""
    name = "stop"

    def run(self):
        server = self.borrow()
        seconds = self.world.lease_s + self.generator.uniform(2, 6)
        try:
            if not server.alive():
                return
            server.process.send_signal(signal.SIGSTOP)
            self.world.note("stop", server=server.number, seconds=seconds)
            time.sleep(seconds)
            server.process.send_signal(signal.SIGCONT)
            self.world.note("continue", server=server.number)
            time.sleep(2)
            if not server.alive():
                self.world.violation("died", f"{server.name} ended with {server.process.returncode} after SIGCONT")
                server.ended("itself")
                server.start()
        finally:
            server.busy = False


class Clock(Fault):
    """The clock of a running process is set, and set back."""
    name = "clock"

    def run(self):
        server = self.borrow()
        # A SQLite store uses the clock of its owner: the late effects of the shop and the grace of the tools allow two seconds.
        span = 3600 if self.world.kind == "postgres" else 2
        offset = self.generator.choice([-span, span])
        try:
            server.clock.write_text(str(offset * 1_000_000))
            self.world.note("clock", server=server.number, offset=offset)
            if server.creates_jobs and server.ready(20):
                # A PostgreSQL store uses the clock of the database, not that of a process.
                self.time_of_a_new_job(server, 0 if self.world.kind == "postgres" else offset)
            time.sleep(self.generator.uniform(2, 6))
        finally:
            server.clock.write_text("0")
            server.busy = False

    def time_of_a_new_job(self, server, offset):
        """Checks that the creation time of a new job is the time of this machine plus `offset` seconds."""
        before = time.time()
        answer = send_request(server.url, "POST", "/api/jobs", {"agent": "undone", "input": {"n": 0}}, timeout=20)
        after = time.time()
        if answer.end == ACK:
            answer = send_request(server.url, "GET", f"/api/jobs/{quoted(answer.body['id'])}", timeout=20)
        if answer.end != ACK:
            self.world.count("clocks not read")
            return
        created = check.seconds(answer.body["created_at"]) - offset
        self.world.count("clocks read")
        if not before - CLOCK_ERROR_S < created < after + CLOCK_ERROR_S:
            self.world.violation("clock", f"{server.name}: a job's time is {created - before:.3f} s from its request, "
                                          f"less an offset of {offset} s")


class SecondOwner(Fault):
    """A second process on one SQLite file is rejected and has no effect."""
    name = "second_owner"
    stores = ("sqlite",)

    def run(self):
        server = self.borrow()
        try:
            if not server.ready(20):
                return
            for words in (["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["rebuild", "--check"]):
                done = subprocess.run([program(), *words], cwd=self.world.folder, env=self.world.env, capture_output=True,
                                      text=True, stdin=subprocess.DEVNULL, timeout=60)
                if words[0] == "serve" and done.returncode != STOPPED:
                    self.world.violation("second_owner", f"{words} ended with {done.returncode}: {done.stderr[-300:]}")
            if not server.alive():
                self.world.violation("second_owner", "the first owner died")
        finally:
            server.busy = False


def has_room(server):
    """Whether a job can be created and ends."""
    answer = send_request(server.url, "POST", "/api/jobs?wait=20s", {"agent": "undone", "input": {"n": 0}}, timeout=40)
    return answer.end == ACK


class DiskFull(Fault):
    """The disk is full for a while: writes are rejected, the process stays alive and works again with free space."""
    name = "disk_full"
    stores = ("sqlite",)

    def missing(self):
        return "" if self.world.mounted else "a loop device to mount"

    def run(self):
        server = self.borrow()
        ballast = self.world.disk / "ballast"
        try:
            if not server.ready(20):
                return
            server.allowed = {STOPPED}
            free = shutil.disk_usage(self.world.disk).free
            with open(ballast, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, free - (64 << 10)))
            self.world.note("disk_full", server=server.number)
            self.world.note("outage")
            time.sleep(self.generator.uniform(2, 5))
            reads = send_request(server.url, "GET", "/api/jobs?limit=1").end == ACK
            ballast.unlink()
            self.world.note("outage_over")
            if not server.alive():
                # If the index of the write-ahead log cannot grow, the last commit is unknown: the process stops, as for EIO.
                if server.process.returncode != STOPPED:
                    self.world.violation("disk_full", f"a full disk ended serve with {server.process.returncode}")
                self.world.count("store_stopped by a full disk")
                server.ended("itself")
                server.start()
            else:
                if not reads:
                    self.world.violation("disk_full", "nothing could be read while the disk was full")
                if not (has_room(server) or has_room(server)):
                    self.world.violation("disk_full", "with free space again the process creates no job")
        finally:
            ballast.unlink(missing_ok=True)
            server.busy = False


class FileLimit(Fault):
    """No file may grow (RLIMIT_FSIZE) for a while, in a process that runs."""
    name = "file_limit"
    stores = ("sqlite",)

    def run(self):
        server = self.borrow()
        try:
            if not server.ready(20):
                return
            server.allowed = {STOPPED}
            unlimited = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
            size = max(path.stat().st_size for path in (self.world.disk).glob("store.db*"))
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (min(size, 4096), unlimited[1]))
            self.world.note("file_limit", server=server.number)
            self.world.note("outage")
            time.sleep(self.generator.uniform(2, 4))
            alive = server.alive()
            self.world.note("outage_over")
            if alive:
                resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)
                if not (has_room(server) or has_room(server)):
                    self.world.violation("file_limit", "without the limit the process creates no job")
            else:
                self.world.violation("file_limit", f"the limit ended serve with {server.process.returncode}")
                server.ended("itself")
                server.start()
        finally:
            server.busy = False


class Eio(Fault):
    """A sync or write fails: the process stops writing immediately, exits with 7, and the next one continues."""
    name = "eio"
    stores = ("sqlite",)

    def missing(self):
        if not shutil.which("strace"):
            return "strace"
        # Tracing another process may be forbidden here.
        other = subprocess.Popen(["sleep", "30"])
        strace = subprocess.Popen(["strace", "-qq", "-o", "/dev/null", "-p", str(other.pid)], stderr=subprocess.DEVNULL)
        try:
            strace.wait(0.5)
            return "right to trace a process"
        except subprocess.TimeoutExpired:
            return ""
        finally:
            for process in (strace, other):
                process.kill()
                process.wait()

    def run(self):
        server = self.borrow()
        call = self.generator.choice(["fdatasync,fsync", "pwrite64"])
        when = self.generator.choice(["1", "1+", "3"])
        try:
            if not server.ready(20):
                return
            server.allowed = {STOPPED}
            with tempfile.NamedTemporaryFile("r") as seen:
                strace = subprocess.Popen(["strace", "-qq", "-f", "-y", "-o", seen.name, "-e", f"trace={call}", "-e",
                                           f"inject={call}:error=EIO:when={when}", "-p", str(server.pid)],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                ended = self.wait_for_end(server, 8)
                strace.send_signal(signal.SIGTERM)
                strace.wait()
                # Empty if nothing was written. A write of the position file may fail: it is only a lower bound.
                failed = [line.strip() for line in seen if "INJECTED" in line and ".position>" not in line]
            ended = ended or (failed and self.wait_for_end(server, 8))
            self.world.note("eio", server=server.number, call=call, when=when, failed=failed)
            if ended:
                server.ended("itself")
                self.world.count("store_stopped")
                if server.process.returncode != STOPPED:
                    self.world.violation("eio", f"{call} failed, and serve ended with {server.process.returncode}, not {STOPPED}")
                server.start()
            elif failed and call != "pwrite64":
                self.world.violation("eio", f"serve continued after {failed}")
        finally:
            server.busy = False


class SlowClients(Fault):
    """Hundreds of clients that trickle and stall do not delay a normal one."""
    name = "slow_clients"

    def run(self):
        server = self.borrow(creates_jobs=True)
        try:
            if not server.ready(20):
                return
            rounds = []
            for _ in range(3):  # load of the machine can cause this, too, but not three times
                rounds.append(bad_requests.latency_under(server.url, 600 if self.long else 300))
                if rounds[-1][1] <= 2 * rounds[-1][0] + 0.001:
                    break
            else:
                self.world.violation("slow_clients", "p99 alone and beside slow clients (s), three times: " + str(rounds))
            self.world.note("slow_clients", p99=rounds)
        finally:
            server.busy = False


class BadRequests(Fault):
    """Every request of the catalogue is answered as it should be, and the process lives."""
    name = "bad_requests"

    def run(self):
        server = self.borrow(creates_jobs=True)
        try:
            if not server.ready(20):
                return
            sent, wrong = bad_requests.run(server.url)
            self.world.count("bad_requests", sent)
            for text in wrong[:20]:
                self.world.violation("bad_request", text)
            if not server.alive():
                self.world.violation("bad_request", f"serve ended with {server.process.returncode}")
                server.start()
        finally:
            server.busy = False


# ---------------------------------------------------------------- PostgreSQL

class Outage(Fault):
    """The database stops as after a power loss and restarts, sometimes after a while."""
    name = "outage"
    stores = ("postgres",)

    def run(self):
        postgres = self.world.postgres
        self.world.note("outage")
        postgres.primary.stop()
        time.sleep(self.generator.choice([0, 0.5, 2, 8]))
        postgres.primary.start()
        self.world.count("outages")
        self.world.note("outage_over")


class Backends(Fault):
    """The server closes some connections, or cancels their statements."""
    name = "backends"
    stores = ("postgres",)

    def run(self):
        for _ in range(self.generator.randint(1, 6)):
            cancel = self.generator.random() < 0.3
            hit = self.world.postgres.kill_backends(self.generator.choice([0.2, 0.6, 1]), cancel)
            self.world.note("backends", cancel=cancel, hit=hit)
            self.world.count("backends cancelled" if cancel else "backends", hit)
            time.sleep(self.generator.uniform(0, 0.5))


class Network(Fault):
    """The connection to the database is cut, slow, silent, or loses responses."""
    name = "network"
    stores = ("postgres",)

    def run(self):
        proxy = self.world.postgres.proxy
        what = self.generator.choice(["cut", "delay", "silent", "deaf"])
        self.world.note("outage", network=what)
        try:
            if what == "cut":
                for _ in range(5):
                    proxy.cut()
                    time.sleep(self.generator.uniform(0, 0.4))
            elif what == "delay":
                proxy.delay = self.generator.choice([0.02, 0.1, 0.4])
                time.sleep(self.generator.uniform(2, 5))
            elif what == "silent":
                proxy.silent = True
                time.sleep(self.generator.choice([2, 8, 20]))
                if self.generator.random() < 0.5:
                    proxy.cut()
            else:
                for _ in range(4):
                    proxy.deaf = True
                    time.sleep(self.generator.uniform(0.02, 0.2))
                    proxy.deaf = False
                    time.sleep(0.2)
        finally:
            proxy.heal()
            self.world.count(f"network {what}")
            self.world.note("outage_over")


class Failover(Fault):
    """A synchronous standby takes over from a primary that dies. Sometimes replication stalls before, and an operator cancels the
    commits that wait for it: those were not confirmed, and the standby does not have them."""
    name = "failover"
    stores = ("postgres",)

    def run(self):
        def during_outage():
            time.sleep(self.generator.uniform(2, 5))  # commits that only the two of them confirm
            self.world.note("outage", failover=True)
            if self.generator.random() < 0.5:
                self.world.postgres.stall()
                time.sleep(0.3)
                self.world.count("waits for the standby cancelled", self.world.postgres.kill_backends(1, cancel=True))
        self.world.postgres.failover(during_outage)
        self.world.count("failovers")
        self.world.note("outage_over")


ALL = [Kill, Failpoint, Refused, Stop, Clock, SecondOwner, DiskFull, FileLimit, Eio, SlowClients, BadRequests, Outage, Backends,
       Network, Failover]


class Killer:
    """In addition to the faults, one process dies about every second."""

    def __init__(self, world, generator, every):
        self.world, self.generator, self.every = world, generator, every
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopped.wait(self.generator.uniform(0.7, 1.3) * self.every):
            if server := self.world.idle():
                try:
                    server.kill()
                    server.start()
                finally:
                    server.busy = False

    def end(self):
        self.stopped.set()
        self.thread.join()
