#!/usr/bin/env python3
"""Processes that share a store on a real PostgreSQL server: work, keys, streams, crashes.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  postgres_processes.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.client
import http.server
import json
import socket
import sys
import threading
import time

from shared import attacks
from shared.home import expect, home, until
from shared.postgres_server import run_with_server, running_server, shared_store
from shared.server import Server
from shared.worn_jobs import check_job_that_kills, check_message_order, write_agents

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_job_runs_and_every_command_reads_it():
    with shared_store() as (h, env):
        result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', "--job-id", "a", env=env), 0)
        assert result.json() == {"n": 2}
        assert not h.store.exists(), "and there is no file"
        for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["verify", "a"]):
            expect(h.run(*words, "--json", env=env), 0).json()
        jobs = expect(h.run("jobs", "--json", env=env), 0).json()["jobs"]
        assert [job["id"] for job in jobs] == ["a"]
        expect(h.run("inspect", "--json", env=env), 0)
        again = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", env=env), 0)
        assert again.json() == {"n": 2}, "an ended job is shown, not run again"


@test
def read_commands_create_no_store():
    with shared_store() as (h, env):
        expect(h.run("jobs", "--json", env=env), 3)
        expect(h.run("job", "a", env=env), 3)
        expect(h.run("signal", "a", "k", "1", env=env), 3)
        tables = running_server().program("psql", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], "-Atc",
                                  "SELECT count(*) FROM pg_namespace WHERE nspname = 'aetheris'")
        assert tables == "0\n", tables


@test
def a_server_without_workers_creates_the_store():
    with shared_store() as (h, env):
        creator = Server(h, "agents.yaml", "--workers", "0", env=env)
        assert creator.post("/api/jobs", {"agent": "echo", "id": "a", "input": {"n": 1}})[0] == 201
        worker = Server(h, env=env)
        until(lambda: creator.status("a") == "completed")
        for server in (creator, worker):
            expect(server.stop(), 0)


@test
def concurrent_processes_create_one_store():
    with shared_store() as (h, env):
        result = expect(h.run("migrate", "--check", "--json", env=env), 5)
        assert result.json()["from"] == 0 and result.json()["due"], result
        all_of_them = [h.start("migrate", "--json", env=env) for _ in range(8)]
        result = [expect(h.end(process), 0).json() for process in all_of_them]
        assert sum(one["changed"] for one in result) == 1, result
        assert len({one["to"] for one in result}) == 1, result
        expect(h.run("migrate", "--check", env=env), 0)
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 1}', env=env), 0)


@test
def requests_of_another_process_reach_the_lease_holder():
    with shared_store() as (h, env):
        server = Server(h, env=env)
        made = expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--detach", env=env), 0)
        assert made.out == "a\n"
        until(lambda: server.status("a") == "waiting")
        expect(h.run("signal", "a", "go-a", "7", env=env), 0)
        until(lambda: server.status("a") == "completed")
        expect(h.run("run", "agents.yaml", "holds", "--job-id", "b", "--detach", env=env), 0)
        h.wait_for_hold()
        expect(h.run("cancel", "b", env=env), 0)
        until(lambda: any(event["type"] == "job_cancel_requested" for event in server.get("/api/jobs/b/events")[1]["events"]))
        h.release_hold()
        until(lambda: server.status("b") == "cancelled")
        expect(server.stop(), 0)


@test
def a_revoked_key_is_refused_by_all_processes_within_a_second():
    with shared_store() as (h, env):
        made = expect(h.run("keys", "create", "--role", "viewer", "--json", env=env), 0).json()
        servers = [Server(h, env=env), Server(h, env=env)]
        headers = {"Authorization": "Bearer " + made["key"]}
        for server in servers:
            assert server.get("/api/jobs", headers=headers)[0] == 200
            assert server.get("/api/jobs")[0] == 401
        expect(h.run("keys", "revoke", made["id"], env=env), 0)
        time.sleep(1.0)  # the guaranteed second
        assert [server.get("/api/jobs", headers=headers)[0] for server in servers] == [401, 401]
        for server in servers:
            expect(server.stop(), 0)


class StreamingModel(http.server.BaseHTTPRequestHandler):
    """A model that streams a number every 50 ms until it is stopped."""

    stop = threading.Event()

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        number = 0
        while not StreamingModel.stop.wait(0.05):
            number += 1
            self.send_delta({"content": f"{number} "})
        self.send_delta({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def send_delta(self, delta, finish=None):
        chunk = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_):
        pass


class StreamReader:
    """An event stream of job `a`: the times of its deltas, and of its end."""

    def __init__(self, server, key):
        self.connection = http.client.HTTPConnection(server.address, timeout=60)
        self.connection.request("GET", "/api/jobs/a/events", headers={"Accept": "text/event-stream", **key})
        self.pieces, self.ended = [], None
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            for line in self.connection.getresponse():
                if line.startswith(b"event: said"):
                    self.pieces.append(time.monotonic())
        except (OSError, http.client.HTTPException):
            pass
        self.ended = time.monotonic()


class PausableLink:
    """A proxy to PostgreSQL that forwards nothing while it is not `open`."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def to(self, url):
        return url.replace(f":{running_server().place.port}/", f":{self.listening.getsockname()[1]}/")

    def accept(self):
        while True:
            try:
                ours, _ = self.listening.accept()
            except OSError:
                return
            theirs = socket.create_connection((running_server().place.hostname, running_server().place.port))
            for one, other in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    def pass_on(self, one, other):
        try:
            while data := one.recv(65536):
                self.open.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextlib.contextmanager
def running_stream(link=None):
    """A server that runs job `a` with an endless model stream. Yields a key to revoke, its id, and another key."""
    with shared_store() as (h, env):
        model = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StreamingModel)
        model.daemon_threads = True
        threading.Thread(target=model.serve_forever, daemon=True).start()
        StreamingModel.stop.clear()
        (h.path / "talk.yaml").write_text(f"""\
aetheris: 1
models:
  m: {{ provider: openai, base_url: "http://127.0.0.1:{model.server_port}/v1", model: m, timeout: 10m }}
agents:
  talks: {{ plan: [ {{ id: t, llm: {{ model: m, prompt: Talk. }} }} ], output: "${{ .steps.t.text }}" }}
""")
        made = [expect(h.run("keys", "create", "--role", "operator", "--json", env=env), 0).json() for _ in range(2)]
        ours, other = ({"Authorization": "Bearer " + one["key"]} for one in made)
        server = Server(h, "talk.yaml", env={"AETHERIS_STORE": link.to(env["AETHERIS_STORE"])} if link else env)
        try:
            assert server.post("/api/jobs", {"agent": "talks", "id": "a"}, headers=other)[0] == 201
            yield h, env, server, ours, made[0]["id"], other
            StreamingModel.stop.set()
            until(lambda: server.get("/api/jobs/a", headers=other)[1].get("status") == "completed")
            expect(server.stop(), 0)
        finally:
            StreamingModel.stop.set()
            model.shutdown()
            model.server_close()


@test
def a_live_stream_ends_within_a_second_when_another_process_revokes_its_key():
    with running_stream() as (h, env, server, ours, key_id, other):
        reader, on = StreamReader(server, ours), StreamReader(server, other)
        until(lambda: reader.pieces and on.pieces)
        expect(h.run("keys", "revoke", key_id, env=env), 0)
        revoked = time.monotonic()
        until(lambda: reader.ended)
        # The guarantee is one second; the rest is for a busy machine. The periodic check of a stream takes 15.
        assert reader.ended - revoked < 4, reader.ended - revoked
        assert reader.pieces[-1] - revoked < 4, reader.pieces[-1] - revoked
        until(lambda: on.pieces[-1] > reader.ended)  # other streams continue


@test
def no_partial_output_is_streamed_while_the_store_is_unreachable():
    link = PausableLink()
    with running_stream(link) as (h, env, server, ours, key_id, other):
        reader = StreamReader(server, ours)
        until(lambda: reader.pieces)
        link.open.clear()
        silent = time.monotonic()
        expect(h.run("keys", "revoke", key_id, env=env), 0)  # by a process that reaches the store
        time.sleep(max(0, silent + 5 - time.monotonic()))
        late = [at - silent for at in reader.pieces if at - silent > 3]
        link.open.set()
        assert not late, f"{len(late)} deltas, the last after {late[-1]} s"
        until(lambda: reader.ended)
        assert reader.pieces[-1] - silent < 3, "withheld deltas were streamed"


@test
def an_agent_that_is_registered_at_one_server_is_run_by_another():
    with shared_store() as (h, env):
        front = Server(h, "agents.yaml", "--workers", "0", env=env)
        runs = Server(h, env=env)
        agent = {"plan": [{"id": "say", "tool": "echo", "args": {"v": 7}}], "output": "${ .steps.say.v }"}
        status, made = front.request("PUT", "/api/agents/late", agent)
        assert (status, made["version"]) == (201, 1), made
        status, job = front.post("/api/jobs", {"agent": "late", "id": "j"})
        assert status == 201, job
        until(lambda: front.status("j") == "completed")
        assert runs.get("/api/jobs/j")[1]["result"] == 7
        assert runs.get("/api/agents/late")[1]["version"] == 1
        for server in (front, runs):
            expect(server.stop(), 0)


@test
def two_processes_share_the_work():
    with shared_store() as (h, env):
        servers = [Server(h, env=env), Server(h, env=env)]
        ids = [f"j{i}" for i in range(30)]
        for i, job in enumerate(ids):
            servers[i % 2].post("/api/jobs", {"agent": "echo", "input": {"n": i}, "id": job})
        for i, job in enumerate(ids):
            until(lambda: servers[(i + 1) % 2].status(job) == "completed")
            expect(h.run("verify", job, env=env), 0)
        for server in servers:
            expect(server.stop(), 0)


@test
def a_tool_of_a_worker_can_neither_approve_its_payment_nor_create_a_key():
    with attacks.user_home() as h:
        env = {"AETHERIS_STORE": running_server().database()}
        s = Server(h, "agents.yaml", "--workers", "0", env=env, prefix=attacks.as_user())
        worker = h.start("worker", "agents.yaml", "--json", env=env, prefix=attacks.as_user())
        assert worker.stdout.readline(), h.end(worker)
        decision = attacks.pending_payment(s)
        tried = attacks.attack(s, {"on_tcp": [s.address, decision], "on_tcp_from_hidden_thread": [s.address],
                                       "after_the_main_thread": [s.address, str(h.path / "said.json")]})
        tried["on_tcp_from_hidden_thread"].pop("unshared")
        for attempt, result in tried.items():
            for name, answer in result.items():
                assert attacks.is_forbidden(answer), (attempt, name, answer)
        assert not (h.path / "paid.txt").exists()
        assert expect(h.run("keys", "list", "--json", env=env), 0).json()["keys"] == []
        # The same request of an operator is accepted.
        status, result = s.post("/api/approvals/" + decision, {"decision": "approve"})
        assert status < 300, result
        until(lambda: (h.path / "paid.txt").exists())


@test
def a_running_job_survives_a_restart_of_postgresql():
    with shared_store() as (h, env):
        process = h.start("run", "agents.yaml", "holds", "--job-id", "a", env=env)
        h.wait_for_hold()
        running_server().control("kill")
        result = expect(h.run("jobs", env=env), 7)
        assert "unavailable" in result.err, result
        h.release_hold()
        running_server().control("start")
        assert "held" in expect(h.end(process), 0).out
        assert (h.path / "began.txt").read_text() == "began\n", "called once"
        expect(h.run("verify", "a", env=env), 0)


@test
def a_job_that_kills_its_process_twice_is_parked_while_its_lease_is_valid():
    with shared_store() as (h, env):
        check_job_that_kills(h, env)


@test
def messages_to_a_worn_out_job_stay_in_order():
    with shared_store() as (h, env):
        check_message_order(h, env)


@test
def processes_that_share_a_store_use_separate_running_files():
    with shared_store() as (h, env):
        write_agents(h)
        calm = [Server(h, env=env) for _ in range(2)]
        files = sorted(path.name[-2:] for path in (h.path / ".aetheris").glob("*.running.*"))
        assert files == [".0", ".1"], files
        made = expect(h.run("run", "agents.yaml", "calm", env=env), 0)
        assert made.code == 0
        for server in calm:
            expect(server.stop(), 0)
        expect(h.run("run", "agents.yaml", "calm", env=env), 0)
        assert len(list((h.path / ".aetheris").glob("*.running.*"))) == 3, "each file is reused"


@test
def a_store_url_is_validated_and_its_password_is_not_shown():
    with shared_store() as (h, env):
        for bad in ("postgres:x", "postgres://%%%", "mysql://x"):
            assert expect(h.run("jobs", "--store", bad, "--json"), 2).json()["code"] == "usage", bad
        unreachable = expect(h.run("jobs", "--store", "postgres://u:secret@127.0.0.1:1/x", "--json"), 7)
        assert "secret" not in unreachable.out + unreachable.err and unreachable.json()["code"] == "unavailable", unreachable
        url = env["AETHERIS_STORE"].replace("aetheris@", "aetheris:secret@")
        blocked = expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--store", url), 4)
        assert "secret" not in blocked.out + blocked.err and "--store postgres://aetheris@" in blocked.err, blocked


@test
def an_error_of_the_database_server_is_one_line():
    with home() as h:
        result = expect(h.run("jobs", "--store", "postgres://127.0.0.1:1/x"), 7)
        assert "\\t" not in result.err and "\t" not in result.err and "  " not in result.err.strip(), repr(result.err)


if __name__ == "__main__":
    sys.exit(run_with_server("postgres_processes", TESTS))
