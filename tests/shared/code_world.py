"""CodeWorld: a server with a store, and a worker with a file of agents in code, in one folder. Both can be killed and
started again."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from shared.home import PATIENCE, until
from shared.program import BIN

AGENTS_YAML = """
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents: { echo: { plan: [ { id: e, tool: echo } ] } }
"""


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class CodeWorld:
    def __init__(self, worker, files, env=None):
        """`worker`: the words of its command. `files`: text by name; agents.yaml has a default. `env`: of both."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-code-"))
        for name, text in {"agents.yaml": AGENTS_YAML, **files}.items():
            (self.folder / name).write_text(text)
        self.worker_command = worker
        self.options = []  # of the server
        self.server = self.worker = None
        self.address = free_address()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
        self.env |= env or {}
        self.log = open(self.folder / "log.txt", "w")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.worker, self.server):
            if process is not None:
                process.kill()
                process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---------------------------------------------------------------- processes

    def start_server(self):
        self.server = self.start([BIN, "serve", "agents.yaml", "--listen", self.address, *self.options])

    def start_worker(self):
        self.worker = self.start(self.worker_command)

    def start(self, words):
        """A process of this world: a server, or a worker of it."""
        return subprocess.Popen(words, cwd=self.folder, stdout=self.log, stderr=self.log,
                                env={**self.env, "AETHERIS_SOCKET": str(self.folder / ".aetheris/aetheris.sock")})

    def kill_server(self):
        self.server.kill()
        self.server.wait()

    def kill_worker(self):
        self.worker.kill()
        self.worker.wait()

    def command(self, *words):
        """(exit code, stdout, stderr) of `aetheris WORDS --json`."""
        done = subprocess.run([BIN, *words, "--json"], cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE,
                              env=self.env)
        return done.returncode, done.stdout, done.stderr

    # ---------------------------------------------------------------- jobs

    def request(self, path, body=None):
        """The answer of the API; None: the server does not answer, or not with success."""
        request = urllib.request.Request(f"http://{self.address}{path}", headers={"Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def job(self, name):
        return self.request(f"/api/jobs/{name}")

    def create(self, agent, data, name):
        """Once the server knows the agent. The key makes a repetition after a lost answer the same job."""
        until(lambda: self.request("/api/jobs", {"agent": agent, "input": data, "id": name, "idempotency_key": name}))

    def reaches(self, name, *statuses, patience=PATIENCE):
        """The job, once it has one of these statuses."""
        def reached():
            job = self.job(name)
            return job if job is not None and job["status"] in statuses else None
        try:
            return until(reached, patience)
        except AssertionError:
            raise AssertionError(f"{name}: {self.job(name)}\n{self.output()}") from None

    def verify(self, name):
        code, out, error = self.command("verify", name)
        assert code == 0, (name, out, error)

    # ---------------------------------------------------------------- files

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def output(self):
        self.log.flush()
        return (self.folder / "log.txt").read_text()[-4000:]


def kill_at_any_time(world, names, victims, choice, is_result, repeat):
    """Kills "worker", "server" or "both" while these jobs run, and starts them again, at times from `choice`. Each job must
    end with a result that `is_result` accepts, or with an unknown outcome. A function writes each mail and each payment
    as a line of mails.txt and payments.txt: none may be there twice. `repeat`: the command that repeats the test."""
    for _ in range(6):
        time.sleep(choice.uniform(0.0, 0.5))
        if victims in ("worker", "both"):
            world.kill_worker()
        if victims in ("server", "both"):
            world.kill_server()
            world.start_server()
        if victims in ("worker", "both"):
            world.start_worker()
    for name in names:
        job = world.reaches(name, "completed", "parked", "failed", patience=240)
        unknown = job["status"] == "parked" and job["parked"]["reason"] == "invocation_in_doubt"
        assert unknown or job["status"] == "completed" and is_result(job["result"]), (job, victims, repeat, world.output())
        world.verify(name)
    jobs = [world.job(name) for name in names]
    completed = sum(job["status"] == "completed" for job in jobs)
    for file in ("mails.txt", "payments.txt"):
        lines = world.lines(file)
        assert len(lines) == len(set(lines)) and completed <= len(lines) <= len(names), (file, lines, victims, repeat)
