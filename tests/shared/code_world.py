"""CodeWorld: a server with a store, and a worker with a file of agents in code, in one folder. Both can be killed and
started again."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from shared.home import PATIENCE, until
from shared.ports import reserve_port
from shared.program import BIN

AGENTS_YAML = """
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents: { echo: { plan: [ { id: e, tool: echo } ] } }
"""
ENDED = ("completed", "parked", "failed", "cancelled")


class CodeWorld:
    def __init__(self, worker, files, env=None):
        """`worker`: the words of its command. `files`: text by name; agents.yaml has a default. `env`: of both."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-code-"))
        for name, text in {"agents.yaml": AGENTS_YAML, **files}.items():
            (self.folder / name).write_text(text)
        self.worker_command = worker
        self.options = []  # of the server
        self.server = self.worker = None
        self.reserved, port = reserve_port()
        self.address = f"127.0.0.1:{port}"
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
        self.reserved.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---------------------------------------------------------------- processes

    def start_server(self):
        self.server = self.start([BIN, "serve", "agents.yaml", "--listen", self.address, *self.options])

    def start_worker(self):
        self.worker = self.start(self.worker_command)

    def start_both(self):
        self.start_server()
        self.start_worker()

    def start(self, words):
        """A process of this world: a server, or a worker of it."""
        return subprocess.Popen(words, cwd=self.folder, stdout=self.log, stderr=self.log, env={**self.env, **self.place(words)})

    def place(self, _words):
        """Where a worker finds the server: at its socket, which a store in files has."""
        return {"AETHERIS_SOCKET": str(self.folder / ".aetheris/aetheris.sock")}

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

    def events(self, name, kind=None):
        """The events of a job (of this type)."""
        code, out, error = self.command("events", name)
        assert code == 0, (out, error)
        return [event for event in json.loads(out)["events"] if kind in (None, event["type"])]

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


def ends_in_order(world, agent, name):
    """SIGTERM of a worker whose function is in flight: it finishes the function, and ends; its job continues in another
    worker. The agent `agent` writes a line of mails.txt in a call of class at_most_once, which waits for the file `go`,
    then sleeps, and returns the id of its process."""
    world.create(agent, {}, name)
    until(lambda: world.lines("mails.txt"))
    first = world.worker
    first.terminate()
    world.start_worker()
    time.sleep(0.3)
    assert first.poll() is None and world.job(name)["status"] == "running", (world.job(name), world.output())
    (world.folder / "go").touch()
    assert first.wait(PATIENCE) == 0, world.output()
    job = world.reaches(name, *ENDED)
    assert job["status"] == "completed" and job["result"] == world.worker.pid and not job["in_doubt"], (job, world.output())
    assert len(world.lines("mails.txt")) == 1, world.lines("mails.txt")
    world.verify(name)


KILLS = 6  # that hit a running job
ROUNDS_MAX = 20


def kill_at_any_time(world, jobs, victims, choice, is_result, repeat):
    """Kills "worker", "server" or "both", and starts them again, until KILLS have hit a running job. `jobs` gives (agent,
    input, id) for a number. The first job runs undisturbed; each other one is hit when its log has a number of events from
    `choice`, half of them long before the mail. A function writes each mail and each payment as a line of mails.txt and
    payments.txt: none may be there twice. Each job must end with a result that `is_result` accepts. The
    outcome of a mail may be unknown only if its worker was killed, and some jobs that were hit complete. `repeat`: the command that repeats the test."""
    def create():
        agent, data, name = jobs(len(names))
        world.create(agent, data, name)
        names.append(name)
        return name
    names, hits = [], 0
    length = world.reaches(create(), "completed")["seq"]
    while hits < KILLS:
        assert len(names) < ROUNDS_MAX, f"{hits} of {len(names)} kills hit a running job; {victims}; {repeat}"
        hits += runs_until(world, create(), choice.randrange(1, length if hits % 2 else length // 2))
        kill_and_start(world, victims)
    completed = 0
    for name in names:
        job = world.reaches(name, "completed", "parked", "failed", patience=240)
        is_completed = job["status"] == "completed" and is_result(job["result"])
        assert is_completed or is_mail_unknown(job, victims), (job, victims, repeat, world.output())
        completed += is_completed
        world.verify(name)
    assert completed > len(names) - KILLS, f"{completed} of {len(names)} jobs completed; {victims}; {repeat}"
    for file in ("mails.txt", "payments.txt"):
        lines = world.lines(file)
        assert len(lines) == len(set(lines)) and completed <= len(lines) <= len(names), (file, lines, victims, repeat)


def runs_until(world, name, length):
    """Waits until the job's log has this length. False: it ended before."""
    def seen():
        job = world.job(name)
        return job if job is not None and (job["seq"] >= length or job["status"] in ENDED) else None
    return until(seen)["status"] not in ENDED


def kill_and_start(world, victims):
    if victims in ("worker", "both"):
        world.kill_worker()
    if victims in ("server", "both"):
        world.kill_server()
        world.start_server()
    if victims in ("worker", "both"):
        world.start_worker()


def is_mail_unknown(job, victims):
    """May the job be parked? A worker that lives reports how its calls ended, and the server calls nothing itself."""
    return (victims != "server" and job["status"] == "parked" and job["parked"]["reason"] == "invocation_in_doubt"
            and all(one["position"] == "mail" for one in job["in_doubt"]))


def waits_for_approval_without_a_worker(world):
    """The agent `greet` waits for an approval, and continues in another worker. Returns its job."""
    world.start_both()
    world.create("greet", {"name": "Ada"}, "greet-1")
    world.reaches("greet-1", "waiting")
    world.kill_worker()
    request, = world.request("/api/requests?job=greet-1")["requests"]
    assert "Greet Ada?" in json.dumps(request), request
    code, out, error = world.command("approve", request["id"], "--note", "ok")
    assert code == 0, (out, error)
    world.start_worker()
    job = world.reaches("greet-1", "completed", "parked", "failed")
    world.verify("greet-1")
    return job
