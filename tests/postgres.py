#!/usr/bin/env python3
"""A store that processes share, end to end: the built program on a real PostgreSQL server, which dies and comes back.

Prints `ok NAME` or `not ok NAME` per test. AETHERIS_BIN names the program, AETHERIS_ROOT the tree.
  postgres.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import glob
import http.client
import http.server
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared import retention  # noqa: E402
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402
from shared import attacks  # noqa: E402
import worn  # noqa: E402

TESTS = []
NUMBERS = itertools.count(1)


def test(function):
    TESTS.append(function)
    return function


class Postgres:
    """A server of our own; `database` makes a new one in it and gives its address."""

    def __init__(self):
        self.process = subprocess.Popen([ROOT / "scripts/postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, "no server"
        self.place = urllib.parse.urlsplit(self.url)

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def program(self, name, *words):
        path = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))[-1]
        return subprocess.run([path, "-h", self.place.hostname, "-p", str(self.place.port), "-U", "aetheris", *words],
                              check=True, capture_output=True, text=True).stdout

    def database(self):
        name = f"d{next(NUMBERS)}"
        self.program("createdb", name)
        return self.url.rsplit("/", 1)[0] + "/" + name

    def end(self):
        self.process.stdin.close()
        self.process.wait()


POSTGRES = None


@contextlib.contextmanager
def shared():
    """A home, and the environment that names a new database."""
    with home() as h:
        yield h, {"AETHERIS_STORE": POSTGRES.database()}


@test
def a_job_runs_and_every_command_reads_it():
    with shared() as (h, env):
        said = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', "--job-id", "a", env=env), 0)
        assert said.json() == {"n": 2}
        assert not h.store.exists(), "and there is no file"
        for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["verify", "a"]):
            expect(h.run(*words, "--json", env=env), 0).json()
        jobs = expect(h.run("jobs", "--json", env=env), 0).json()["jobs"]
        assert [job["id"] for job in jobs] == ["a"]
        expect(h.run("inspect", "--json", env=env), 0)
        again = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", env=env), 0)
        assert again.json() == {"n": 2}, "an ended job is shown, not run again"


@test
def a_store_that_is_not_there_yet_is_not_made_by_looking():
    with shared() as (h, env):
        expect(h.run("jobs", "--json", env=env), 3)
        expect(h.run("job", "a", env=env), 3)
        expect(h.run("signal", "a", "k", "1", env=env), 3)
        tables = POSTGRES.program("psql", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], "-Atc",
                                  "SELECT count(*) FROM pg_namespace WHERE nspname = 'aetheris'")
        assert tables == "0\n", tables


@test
def a_server_that_takes_jobs_and_runs_none_makes_the_store():
    with shared() as (h, env):
        clerk = Server(h, "agents.yaml", "--workers", "0", env=env)
        assert clerk.post("/api/jobs", {"agent": "echo", "id": "a", "input": {"n": 1}})[0] == 201
        worker = Server(h, env=env)
        until(lambda: clerk.status("a") == "completed")
        for server in (clerk, worker):
            expect(server.stop(), 0)


@test
def many_processes_at_once_make_one_store():
    with shared() as (h, env):
        said = expect(h.run("migrate", "--check", "--json", env=env), 5)
        assert said.json()["from"] == 0 and said.json()["due"], said
        all_of_them = [h.start("migrate", "--json", env=env) for _ in range(8)]
        said = [expect(h.end(process), 0).json() for process in all_of_them]
        assert sum(one["changed"] for one in said) == 1, said
        assert len({one["to"] for one in said}) == 1, said
        expect(h.run("migrate", "--check", env=env), 0)
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 1}', env=env), 0)


@test
def what_another_process_does_reaches_the_one_that_runs_jobs():
    with shared() as (h, env):
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
def a_key_that_one_process_revokes_is_refused_by_all_within_a_second():
    with shared() as (h, env):
        made = expect(h.run("keys", "create", "--role", "viewer", "--json", env=env), 0).json()
        servers = [Server(h, env=env), Server(h, env=env)]
        headers = {"Authorization": "Bearer " + made["key"]}
        for server in servers:
            assert server.get("/api/jobs", headers=headers)[0] == 200
            assert server.get("/api/jobs")[0] == 401
        expect(h.run("keys", "revoke", made["id"], env=env), 0)
        time.sleep(1.0)  # what is promised, to the second
        assert [server.get("/api/jobs", headers=headers)[0] for server in servers] == [401, 401]
        for server in servers:
            expect(server.stop(), 0)


class Talker(http.server.BaseHTTPRequestHandler):
    """A model that says a number every 50 ms, until it is enough."""

    enough = threading.Event()

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        number = 0
        while not Talker.enough.wait(0.05):
            number += 1
            self.say({"content": f"{number} "})
        self.say({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, delta, finish=None):
        chunk = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_):
        pass


class Heard:
    """A live stream of job `a`: when each piece of an answer came, and when it ended."""

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


class Link:
    """A way to PostgreSQL on which nothing passes while it is not `open`."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def to(self, url):
        return url.replace(f":{POSTGRES.place.port}/", f":{self.listening.getsockname()[1]}/")

    def accept(self):
        while True:
            try:
                ours, _ = self.listening.accept()
            except OSError:
                return
            theirs = socket.create_connection((POSTGRES.place.hostname, POSTGRES.place.port))
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
def talking(link=None):
    """A server that runs job `a`, whose model talks on and on; a key that is to be revoked, its id, and another key."""
    with shared() as (h, env):
        world = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Talker)
        world.daemon_threads = True
        threading.Thread(target=world.serve_forever, daemon=True).start()
        Talker.enough.clear()
        (h.path / "talk.yaml").write_text(f"""\
aetheris: 1
models:
  m: {{ provider: openai, base_url: "http://127.0.0.1:{world.server_port}/v1", model: m, timeout: 10m }}
agents:
  talks: {{ plan: [ {{ id: t, llm: {{ model: m, prompt: Talk. }} }} ], output: "${{ .steps.t.text }}" }}
""")
        made = [expect(h.run("keys", "create", "--role", "operator", "--json", env=env), 0).json() for _ in range(2)]
        ours, other = ({"Authorization": "Bearer " + one["key"]} for one in made)
        server = Server(h, "talk.yaml", env={"AETHERIS_STORE": link.to(env["AETHERIS_STORE"])} if link else env)
        try:
            assert server.post("/api/jobs", {"agent": "talks", "id": "a"}, headers=other)[0] == 201
            yield h, env, server, ours, made[0]["id"], other
            Talker.enough.set()
            until(lambda: server.get("/api/jobs/a", headers=other)[1].get("status") == "completed")
            expect(server.stop(), 0)
        finally:
            Talker.enough.set()
            world.shutdown()
            world.server_close()


@test
def a_live_stream_ends_within_a_second_when_another_process_revokes_its_key():
    with talking() as (h, env, server, ours, key_id, other):
        heard, on = Heard(server, ours), Heard(server, other)
        until(lambda: heard.pieces and on.pieces)
        expect(h.run("keys", "revoke", key_id, env=env), 0)
        revoked = time.monotonic()
        until(lambda: heard.ended)
        # A second is promised; the rest is for a busy machine. A question of the stream takes 15.
        assert heard.ended - revoked < 4, heard.ended - revoked
        assert heard.pieces[-1] - revoked < 4, heard.pieces[-1] - revoked
        until(lambda: on.pieces[-1] > heard.ended)  # others hear on


@test
def no_piece_of_an_answer_is_told_while_the_store_does_not_tell_who_may_hear_it():
    link = Link()
    with talking(link) as (h, env, server, ours, key_id, other):
        heard = Heard(server, ours)
        until(lambda: heard.pieces)
        link.open.clear()
        silent = time.monotonic()
        expect(h.run("keys", "revoke", key_id, env=env), 0)  # by a process that reaches the store
        time.sleep(max(0, silent + 5 - time.monotonic()))
        late = [at - silent for at in heard.pieces if at - silent > 3]
        link.open.set()
        assert not late, f"{len(late)} pieces, the last after {late[-1]} s"
        until(lambda: heard.ended)
        assert heard.pieces[-1] - silent < 3, "it was told what was held back"


@test
def an_agent_that_is_registered_at_one_server_is_run_by_another():
    with shared() as (h, env):
        door = Server(h, "agents.yaml", "--workers", "0", env=env)
        runs = Server(h, env=env)
        agent = {"plan": [{"id": "say", "tool": "echo", "args": {"v": 7}}], "output": "${ .steps.say.v }"}
        status, made = door.ask("PUT", "/api/agents/late", agent)
        assert (status, made["version"]) == (201, 1), made
        status, job = door.post("/api/jobs", {"agent": "late", "id": "j"})
        assert status == 201, job
        until(lambda: door.status("j") == "completed")
        assert runs.get("/api/jobs/j")[1]["result"] == 7
        assert runs.get("/api/agents/late")[1]["version"] == 1
        for server in (door, runs):
            expect(server.stop(), 0)


@test
def two_processes_share_the_work():
    with shared() as (h, env):
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
def a_tool_of_a_worker_neither_approves_its_payment_nor_makes_a_key_at_a_server_of_the_store():
    with attacks.user_home() as h:
        env = {"AETHERIS_STORE": POSTGRES.database()}
        s = Server(h, "agents.yaml", "--workers", "0", env=env, prefix=attacks.as_user())
        worker = h.start("worker", "agents.yaml", "--json", env=env, prefix=attacks.as_user())
        assert worker.stdout.readline(), h.end(worker)
        decision = attacks.pending_payment(s)
        tried = attacks.attack(s, {"on_tcp": [s.address, decision], "in_a_hidden_thread": [s.address],
                                       "after_the_main_thread": [s.address, str(h.path / "said.json")]})
        tried["in_a_hidden_thread"].pop("unshared")
        for attempt, said in tried.items():
            for name, answer in said.items():
                assert attacks.is_forbidden(answer), (attempt, name, answer)
        assert not (h.path / "paid.txt").exists()
        assert expect(h.run("keys", "list", "--json", env=env), 0).json()["keys"] == []
        # The same request of the operator is taken.
        status, said = s.post("/api/approvals/" + decision, {"decision": "approve"})
        assert status < 300, said
        until(lambda: (h.path / "paid.txt").exists())


@test
def a_server_that_dies_under_a_running_job_is_waited_for():
    with shared() as (h, env):
        process = h.start("run", "agents.yaml", "holds", "--job-id", "a", env=env)
        h.wait_for_hold()
        POSTGRES.say("kill")
        said = expect(h.run("jobs", env=env), 7)
        assert "unavailable" in said.err, said
        h.release_hold()
        POSTGRES.say("start")
        assert "held" in expect(h.end(process), 0).out
        assert (h.path / "began.txt").read_text() == "began\n", "called once"
        expect(h.run("verify", "a", env=env), 0)


@test
def a_job_that_kills_its_process_twice_is_parked_while_its_lease_lives():
    with shared() as (h, env):
        worn.a_job_that_kills(h, env)


@test
def messages_to_a_worn_out_job_stay_in_order():
    with shared() as (h, env):
        worn.messages_stay_in_order(h, env)


@test
def processes_that_share_a_store_name_their_jobs_in_files_of_their_own():
    with shared() as (h, env):
        worn.agents(h)
        calm = [Server(h, env=env) for _ in range(2)]
        files = sorted(path.name[-2:] for path in (h.path / ".aetheris").glob("*.running.*"))
        assert files == [".0", ".1"], files
        made = expect(h.run("run", "agents.yaml", "calm", env=env), 0)
        assert made.code == 0
        for server in calm:
            expect(server.stop(), 0)
        expect(h.run("run", "agents.yaml", "calm", env=env), 0)
        assert len(list((h.path / ".aetheris").glob("*.running.*"))) == 3, "each is used again"


@test
def a_time_that_does_not_exist_in_one_row_stops_no_other_job():
    file = {"aetheris": 1, "tools": {"e": {"native": "echo", "effect": "read"}},
            "agents": {"waits": {"plan": [{"id": "w", "wait": {"type": "signal", "key": "k"}}]}}}
    for column in ("created_at", "updated_at", "not_before", "wake_at", "ripe_at"):
        for value in (2**63 - 1, -(2**63)):
            with shared() as (h, env):
                (h.path / "agents.yaml").write_text(json.dumps(file))
                for job in ("damaged", "sound"):
                    expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", job, env=env), 4)
                table, key = ("jobs", "number") if column == "created_at" else ("heads", "job")
                one = "(SELECT number FROM jobs WHERE job_id = 'damaged')"
                sql(env, f"UPDATE {table} SET {column} = {value} WHERE {key} = {one}")
                where = (column, value)
                server = Server(h, env=env)
                status, jobs = server.get("/api/jobs")
                assert status == 200 and len(jobs["jobs"]) == 2, (where, jobs)
                for job in ("damaged", "sound"):
                    server.post(f"/api/jobs/{job}/signal", {"correlation_key": "k"})
                until(lambda: server.status("sound") == "completed")
                for path in ("/api/jobs/damaged", "/api/jobs/damaged/trace", "/metrics"):
                    assert server.get(path)[0] < 500 or "log_corrupt" in str(server.get(path)[1]), (where, path)
                expect(server.stop(), 0)


@test
def an_address_is_checked_and_its_password_is_not_shown():
    with shared() as (h, env):
        for bad in ("postgres:x", "postgres://%%%", "mysql://x"):
            assert expect(h.run("jobs", "--store", bad, "--json"), 2).json()["code"] == "usage", bad
        nobody = expect(h.run("jobs", "--store", "postgres://u:secret@127.0.0.1:1/x", "--json"), 7)
        assert "secret" not in nobody.out + nobody.err and nobody.json()["code"] == "unavailable", nobody
        url = env["AETHERIS_STORE"].replace("aetheris@", "aetheris:secret@")
        blocked = expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--store", url), 4)
        assert "secret" not in blocked.out + blocked.err and "--store postgres://aetheris@" in blocked.err, blocked


TABLES = ("jobs", "heads", "commits", "labels", "checkpoints", "effects", "ledger", "inbox", "signed_heads", "blobs",
          "summaries")
# Every column that follows from the log. Who holds a job, and its epoch, are sources.
DAMAGE = """
UPDATE jobs SET agent = 'nobody', idempotency_key = '';
UPDATE jobs SET request_hash = 'x', priority = 77 - priority, capabilities = '{no}', created_at = number, forked_from = 'x';
UPDATE jobs SET agent = 'echo', idempotency_key = 'k' WHERE number = (SELECT max(number) FROM jobs);
UPDATE heads SET priority = 9, queue = 'q', turn = 't', not_before = 5, wake_at = 6, ripe_at = 7, ready = NOT ready,
    status = CASE status WHEN 'completed' THEN 'running' ELSE 'completed' END, updated_at = 8;
DELETE FROM heads WHERE attempt IS NULL AND job % 2 = 0;
UPDATE summaries SET error = 'x', body = 'y';
INSERT INTO summaries VALUES(9999, '', '{}');
DELETE FROM labels;
INSERT INTO labels SELECT min(number), 0, 'not', 'so' FROM jobs;
INSERT INTO labels VALUES(9999, 0, 'of', 'nobody');
UPDATE commits SET last_seq = 0, blobs = 'y';
"""


def sql(env, text):
    return POSTGRES.program("psql", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], "-v", "ON_ERROR_STOP=1", "-Atc",
                            "SET search_path = aetheris; " + text)


def rows_of(env):
    return {table: sql(env, f"SELECT t::text FROM {table} t ORDER BY 1") for table in TABLES}


@test
def rebuild_makes_the_rows_of_every_kind_of_job_anew_also_while_others_work():
    with shared() as (h, env):
        expect(h.run("rebuild", env=env), 3)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--idempotency-key", "k", "--label", "z=1",
                     "--label", "a=2", "--input", '{"n": 1}', env=env), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "failed", env=env), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting", "--label", "team=red", env=env), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked", env=env), 4)
        expect(h.run("run", "agents.yaml", "maps_and_asks", "--job-id", "long", "--input", json.dumps(list(range(80))),
                     env=env), 4)
        before = rows_of(env)
        fine = expect(h.run("rebuild", "--check", "--json", env=env), 0).json()
        assert fine["ok"] and fine["jobs"] == 5 and fine["differing"] == [], fine

        sql(env, DAMAGE)
        damaged = rows_of(env)
        assert damaged != before
        body = expect(h.run("rebuild", "--check", "--job", "done", "--json", env=env), 6).json()
        status = [row for row in body["differing"][0]["rows"] if row["column"] == "status"]
        assert status in ([], [{"column": "status", "derived": "'completed'", "stored": "'running'", "table": "heads"}]), body
        refused = expect(h.run("rebuild", "--job", "done", env=env), 6)
        assert "another job of agent echo" in refused.out + refused.err, refused
        assert rows_of(env) == damaged, "who compares writes nothing, and what is refused neither"

        said = expect(h.run("rebuild", env=env), 0)
        assert "5 rebuilt" in said.out, said
        after = rows_of(env)
        for table in TABLES:
            assert after[table] == before[table], (table, before[table], after[table])
        audit = expect(h.run("audit", "--json", env=env), 0).json()["entries"]
        assert [entry["act"] for entry in audit] == ["rebuild"], audit
        expect(h.run("audit", "--verify", env=env), 0)
        sql(env, "DELETE FROM checkpoints")
        expect(h.run("rebuild", env=env), 0)
        assert rows_of(env)["checkpoints"] == before["checkpoints"]

        server = Server(h, env=env)
        server.post("/api/jobs", {"agent": "holds", "id": "held"})
        h.wait_for_hold()
        expect(h.run("rebuild", env=env), 0)
        h.release_hold()
        until(lambda: server.status("held") == "completed")
        expect(server.stop(), 0)
        sql(env, "DELETE FROM commits WHERE job = 1 AND first_seq > 1")
        cut = rows_of(env)
        said = expect(h.run("rebuild", "--json", env=env), 6).json()
        assert not said["ok"], said
        assert rows_of(env) == cut, "the rows that tell of a lost end stay"


@test
def another_label_for_turns_is_no_difference_to_rebuild():
    with shared() as (h, env):
        def turns():
            return sql(env, "SELECT job_id, turn FROM heads JOIN jobs ON number = job ORDER BY 1")

        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--label", "team=red", "--input", '{"n": 1}', env=env), 0)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "b", "--label", "team=blue", env=env), 4)
        for label in ("team", "zone"):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "c" + label, "--label", "team=red", "--label", "zone=x",
                         "--input", '{"n": 1}', "--fair-by", label, env=env), 0)
            said = expect(h.run("rebuild", "--check", "--json", env=env), 0).json()
            assert said["ok"] and said["differing"] == [], said
        there = turns()
        assert there.split() == ["SET", "a|", "b|", "cteam|red", "czone|x"], there
        expect(h.run("rebuild", env=env), 0)
        assert turns() == there
        sql(env, "UPDATE heads SET turn = 'nobody'")
        expect(h.run("rebuild", "--check", env=env), 6)
        expect(h.run("rebuild", env=env), 0)
        assert turns().split() == ["SET", "a|", "b|", "cteam|x", "czone|x"], turns()


def dumped(env):
    """The store as it stands, as the operations manual says; put back by `restored`."""
    path = f"/tmp/aetheris-{os.getpid()}-{next(NUMBERS)}.dump"
    POSTGRES.program("pg_dump", "-Fc", "-n", "aetheris", "-f", path, env["AETHERIS_STORE"].rsplit("/", 1)[1])
    return path


def in_place(env):
    """From now on the store takes the tables as they are for the ones that it was written in, as before a version that knows."""
    sql(env, "DELETE FROM aetheris.meta WHERE key = 'place'")


def restored(env, path):
    name = env["AETHERIS_STORE"].rsplit("/", 1)[1]
    POSTGRES.program("psql", "-d", name, "-qc", "DROP SCHEMA aetheris CASCADE")
    POSTGRES.program("pg_restore", "--exit-on-error", "--single-transaction", "-d", name, path)


@test
def a_restored_store_is_noticed_by_who_remembers_and_parked_by_who_says_so():
    for remembers in (True, False):
        with shared() as (h, env):
            expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach", env=env), 0)
            backup = dumped(env)
            expect(h.run("signal", "waits", "go-waits", '"after the backup"', env=env), 0)
            expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
            restored(env, backup)
            os.unlink(backup)
            in_place(env)
            marks = list((h.path / ".aetheris").glob("*.mark"))
            assert len(marks) == 1, marks
            if not remembers:
                marks[0].unlink()
            said = h.run("doctor", "--json", env=env).json()
            assert remembers == ("store_rolled_back" in [p["code"] for p in said["problems"]]), said
            if remembers:
                for words in (["run", "agents.yaml", "echo"], ["signal", "waits", "go-waits", "1"],
                              ["serve", "agents.yaml", "--listen", "127.0.0.1:0"]):
                    said = expect(h.run(*words, env=env), 7)
                    assert "store_rolled_back" in said.err and "doctor --accept-rollback" in said.err, said
                assert expect(h.run("job", "waits", "--json", env=env), 0).json()["status"] == "waiting"
            else:
                expect(h.run("doctor", "--restored", env=env), 2)
            words = ["doctor", "--accept-rollback", "--json"] + ([] if remembers else ["--restored"])
            body = expect(h.run(*words, env=env), 0).json()
            assert body == {"accepted": True, "ending": 0, "may_repeat": [], "parked": 2, "pausing": 0}, body
            for job in ("waits", "queued"):
                parked = expect(h.run("job", job, "--json", env=env), 0).json()["parked"]
                assert (parked["reason"], parked["until"]) == ("store_rolled_back", "resume"), parked
            expect(h.run("resume", "waits", env=env), 0)
            expect(h.run("signal", "waits", "go-waits", '"again"', env=env), 0)
            expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
            expect(h.run("verify", "waits", env=env), 0)
            expect(h.run("audit", "--verify", env=env), 0)


@test
def a_dump_that_was_restored_is_noticed_where_no_process_remembers():
    for where in ("same", "other"):
        for end in ("accept", "nothing_lost"):
            with shared() as (h, env), home() as fresh:
                expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
                expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach", env=env), 0)
                backup = dumped(env)
                if where == "same":
                    restored(env, backup)
                else:
                    env = {"AETHERIS_STORE": POSTGRES.database()}
                    POSTGRES.program("pg_restore", "--exit-on-error", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], backup)
                os.unlink(backup)
                for words in (["run", "agents.yaml", "echo"], ["signal", "waits", "go-waits", "1"],
                              ["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["worker", "agents.yaml"]):
                    said = expect(fresh.run(*words, env=env), 7)
                    assert "store_rolled_back" in said.err and "doctor --accept-rollback" in said.err, said
                said = fresh.run("doctor", "--json", env=env).json()
                assert "store_rolled_back" in [p["code"] for p in said["problems"]], said
                assert expect(fresh.run("job", "waits", "--json", env=env), 0).json()["status"] == "waiting"
                if end == "accept":
                    body = expect(fresh.run("doctor", "--accept-rollback", "--json", env=env), 0).json()
                    assert (body["accepted"], body["parked"]) == (True, 2), body
                    assert expect(fresh.run("job", "waits", "--json", env=env), 0).json()["status"] == "parked"
                    expect(fresh.run("resume", "waits", env=env), 0)
                else:
                    body = expect(fresh.run("doctor", "--accept-rollback", "--nothing-lost", "--json", env=env), 0).json()
                    assert (body["accepted"], body["parked"]) == (True, 0), body
                expect(fresh.run("signal", "waits", "go-waits", '"here"', env=env), 0)
                expect(fresh.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
                expect(fresh.run("audit", "--verify", env=env), 0)


@test
def nothing_lost_is_refused_where_a_process_remembers_more():
    with shared() as (h, env):
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
        backup = dumped(env)
        expect(h.run("signal", "waits", "go-waits", '1', env=env), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
        restored(env, backup)
        os.unlink(backup)
        said = expect(h.run("doctor", "--accept-rollback", "--nothing-lost", env=env), 7)
        assert "went backwards" in said.err, said
        expect(h.run("doctor", "--accept-rollback", env=env), 0)


@test
def a_server_that_does_not_tell_its_identifier_is_compared_by_what_it_tells():
    with shared() as (h, env):
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", env=env), 0)
        place = sql(env, "SELECT value FROM aetheris.meta WHERE key = 'place'").split()[1:]
        for known, code in ((["-", *place[1:]], 0), (["1", *place[1:]], 7), ([place[0], "1", place[2]], 7)):
            sql(env, f"UPDATE aetheris.meta SET value = '{' '.join(known)}' WHERE key = 'place'")
            assert (h.run("signal", "a", "k", "1", env=env).code == 7) == (code == 7), known


@test
def a_server_under_which_a_store_went_backwards_writes_nothing_more():
    with shared() as (h, env):
        server = Server(h, env=env)
        server.post("/api/jobs", {"agent": "echo", "input": {"n": 1}, "id": "before"})
        until(lambda: server.status("before") == "completed")
        backup = dumped(env)
        server.post("/api/jobs", {"agent": "echo", "input": {"n": 2}, "id": "after"})
        until(lambda: server.status("after") == "completed")
        restored(env, backup)
        os.unlink(backup)
        said = until(lambda: server.process.poll() is not None and h.end(server.process))
        assert said.code == 7 and "went backwards" in said.err, said
        expect(h.run("signal", "before", "k", "1", env=env), 7)
        body = expect(h.run("doctor", "--accept-rollback", "--json", env=env), 0).json()
        assert body["accepted"], body
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 3}', env=env), 0)


@test
def one_that_runs_nothing_stops_too_when_its_store_went_backwards():
    with shared() as (h, env):
        server = Server(h, "agents.yaml", "--workers", "0", env=env)
        assert server.post("/api/jobs", {"agent": "echo", "id": "before"})[0] == 201
        backup = dumped(env)
        assert server.post("/api/jobs", {"agent": "echo", "id": "after"})[0] == 201
        restored(env, backup)
        os.unlink(backup)
        said = until(lambda: server.process.poll() is not None and h.end(server.process))
        assert said.code == 7 and "went backwards" in said.err, said


@test
def what_the_server_says_is_one_line():
    with home() as h:
        said = expect(h.run("jobs", "--store", "postgres://127.0.0.1:1/x"), 7)
        assert "\\t" not in said.err and "\t" not in said.err and "  " not in said.err.strip(), repr(said.err)


@test
def doctor_says_what_a_lost_server_would_lose():
    with shared() as (h, env):
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 1}', env=env), 0)
        said = h.run("doctor", "--json", env=env)
        codes = [problem["code"] for problem in said.json()["problems"]]
        assert "no_synchronous_standby" in codes, said
        nobody = h.run("doctor", "--json", "--store", "postgres://127.0.0.1:1/x")
        assert "unavailable" in [problem["code"] for problem in nobody.json()["problems"]], nobody


@test
def doctor_and_verify_report_damage_beside_the_logs():
    with shared() as (h, env):
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)

        def codes():
            return {p["code"]: p["message"] for p in h.run("doctor", "--json", env=env).json()["problems"]}

        assert not {"foreign_trigger", "meta", "rows_differ"} & set(codes()), codes()
        for damage, code, repair in (
                ("CREATE RULE evil AS ON UPDATE TO audit DO INSTEAD NOTHING", "foreign_trigger", "DROP RULE evil ON audit"),
                ("CREATE TRIGGER evil BEFORE UPDATE ON heads FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                 "foreign_trigger", "DROP TRIGGER evil ON heads"),
                ("UPDATE heads SET status = 'completed'", "rows_differ", "UPDATE heads SET status = 'waiting'"),
                ("UPDATE meta SET value = 'x' WHERE key = 'audit_head'", "meta",
                 "UPDATE meta SET value = '0 ' || repeat('0', 64) WHERE key = 'audit_head'")):
            sql(env, damage)
            found = codes()
            assert code in found, (damage, found)
            if code == "foreign_trigger":
                assert f"`{repair}`" in found[code], found
            sql(env, repair)
        assert not {"foreign_trigger", "meta", "rows_differ"} & set(codes()), codes()
        sql(env, "UPDATE jobs SET request_hash = decode(repeat('00', 32), 'hex')")
        said = expect(h.run("verify", "waits", "--json", env=env), 6).json()
        assert "request_hash" in said["proofs"]["state_machine"]["detail"], said


@test
def old_jobs_are_archived_and_deleted_whatever_dies_meanwhile():
    with shared() as (h, env):
        retention.delete_them_whatever_dies(h, env)


def main():
    global POSTGRES
    POSTGRES = Postgres()
    try:
        return run_tests("postgres", TESTS, " ".join(sys.argv[1:]))
    finally:
        POSTGRES.end()


if __name__ == "__main__":
    sys.exit(main())
