#!/usr/bin/env python3
"""Several workers on one PostgreSQL store: which of them claims a job, and what happens when they die or stop.

Effects are counted in files and in the fsynced journal of the shop, which the killed processes do not write.
Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  worker.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import PATIENCE, expect, home, until  # noqa: E402
from shared.postgres_server import run_with_server, running_server  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []

# Each tool appends a line to a file each time it runs.
AGENTS = r"""
aetheris: 1
tools:
  step:
    command: ["sh", "-c", "echo ${ .args.n } >> done.txt"]
    effect: at_most_once
  slow:
    command: ["sh", "-c", "echo began $AETHERIS_TRY >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: read
    timeout: 60s
    grace: 1s
  brief:
    command: ["sh", "-c", "echo + >> brief.txt; sleep 0.15; echo - >> brief.txt"]
    effect: read
agents:
  holds: { plan: [ { id: h, tool: slow } ], output: "${ .steps.h }" }
  brief: { plan: [ { id: b, tool: brief } ] }
  pins:  { required_capabilities: [gpu], plan: [ { id: s, tool: step, args: { n: "${ .input.n }" } } ] }
"""


def test(function):
    TESTS.append(function)
    return function


class Worker:
    """`aetheris worker` in a home; `line` is its first line of output."""

    def __init__(self, h, *words, env, lease="2s", file="worker.yaml"):
        self.h = h
        self.process = h.start("worker", file, "--json", "--lease", lease, *words, env=env)
        line = self.process.stdout.readline()
        assert line, h.end(self.process)
        self.line = json.loads(line)
        self.name = self.line["worker"]

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        self.send(number)
        return self.h.end(self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def shared():
    with home() as h:
        (h.path / "worker.yaml").write_text(AGENTS)
        yield h, {"AETHERIS_STORE": running_server().database()}


def create_job(h, env, agent, job, *words):
    expect(h.run("run", "worker.yaml", agent, "--job-id", job, "--detach", *words, env=env), 0)


def job(h, env, name):
    return h.run("job", name, "--json", env=env).json()


def events(h, env, name, kind):
    listed = expect(h.run("events", name, "--type", kind, "--json", env=env), 0).json()["events"]
    return [event["payload"] for event in listed]


def lease_holder(h, env, name):
    runs = events(h, env, name, "job_running")
    return runs[-1]["worker_id"] if runs else None


@test
def a_worker_prints_what_it_offers_and_exits_with_0_on_sigterm():
    with shared() as (h, env):
        worker = Worker(h, "--workers", "3", "--capability", "gpu", "--listen", "127.0.0.1:0", env=env)
        assert worker.line["agents"] == ["brief", "holds", "pins"] and worker.line["workers"] == 3, worker.line
        assert worker.line["capabilities"] == ["gpu"] and "postgres://" in worker.line["store"], worker.line
        send_request = HttpClient(worker.line["listening"])
        assert send_request("/api/health")[0] == 200 and send_request("/api/ready")[0] == 200
        assert "aetheris_worker_busy" in send_request("/metrics")[1]
        refused = send_request("/api/jobs")
        assert refused[0] == 404 and "worker" in json.loads(refused[1])["detail"], refused
        expect(worker.end(), 0)


class HttpClient:
    def __init__(self, url):
        self.url = url

    def __call__(self, path):
        import urllib.error
        import urllib.request
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.url + path, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()


def versioned(h, version, policy):
    path = h.path / f"{policy}-{version}.yaml"
    path.write_text(f"""
aetheris: 1
tools: {{ step: {{ command: ["sh", "-c", "echo {version} ${{ .args.n }} >> done.txt"], effect: at_most_once }} }}
agents:
  bound:
    versions: {{ policy: {policy}, execution: {version} }}
    plan: [ {{ id: s, tool: step, args: {{ n: "${{ .input.n }}" }} }} ]
""")
    return path.name


def create_bound_job(h, env, file, job):
    expect(h.run("run", file, "--job-id", job, "--detach", "--input", json.dumps({"n": job}), env=env), 0)


@test
def a_strict_job_runs_at_a_worker_of_its_version_or_parks_until_one_starts():
    with shared() as (h, env):
        one, two = versioned(h, "one", "strict"), versioned(h, "two", "strict")
        lines = lambda: (h.path / "done.txt").read_text().split("\n")[:-1] if (h.path / "done.txt").exists() else []
        newer = Worker(h, env=env, file=two, lease="10s")
        create_bound_job(h, env, one, "early")
        until(lambda: job(h, env, "early")["status"] == "parked")
        parked = job(h, env, "early")["parked"]
        assert (parked["reason"], parked["until"]) == ("execution_version_mismatch", "version"), parked
        stuck = expect(h.run("jobs", "--stalled", "--json", env=env), 0).json()["jobs"][0]["stalled"]
        assert stuck["missing"] == ["execution_version:bound=one"], stuck
        older = Worker(h, env=env, file=one, lease="10s")
        until(lambda: job(h, env, "early")["status"] == "completed")
        assert events(h, env, "early", "job_resumed")[0]["by"] == older.name
        # With both running, each job goes to the worker of its version.
        for number in range(6):
            create_bound_job(h, env, one if number % 2 else two, f"j{number}")
        until(lambda: all(job(h, env, f"j{number}")["status"] == "completed" for number in range(6)))
        assert sorted(lines()) == sorted(["one early"] + [f"{'one' if n % 2 else 'two'} j{n}" for n in range(6)]), lines()
        assert all(events(h, env, f"j{number}", "job_parked") == [] for number in range(6))
        expect(older.end(), 0)
        create_bound_job(h, env, one, "late")
        until(lambda: job(h, env, "late")["status"] == "parked")
        expect(newer.end(), 0)
        expect(h.run("run", one, "--job-id", "late", env=env), 0)
        assert lines()[-1] == "one late", lines()


@test
def a_route_job_stays_queued_for_a_worker_of_its_version():
    with shared() as (h, env):
        one, two = versioned(h, "one", "route"), versioned(h, "two", "route")
        newer = Worker(h, env=env, file=two, lease="10s")
        create_bound_job(h, env, one, "r")
        create_bound_job(h, env, two, "mark")
        until(lambda: job(h, env, "mark")["status"] == "completed")
        assert job(h, env, "r")["status"] == "queued" and events(h, env, "r", "job_running") == []
        listed = expect(h.run("jobs", "--stalled", "--older-than", "1ms", "--json", env=env), 0).json()["jobs"]
        stuck = {one["id"]: one["stalled"] for one in listed}["r"]
        assert stuck["reason"] == "needs_version" and "version bound=one" in stuck["message"], stuck
        older = Worker(h, env=env, file=one, lease="10s")
        until(lambda: job(h, env, "r")["status"] == "completed")
        assert lease_holder(h, env, "r") == older.name
        for worker in (older, newer):
            expect(worker.end(), 0)


@test
def a_worker_rejects_a_store_that_cannot_be_shared():
    with home() as h:
        (h.path / "worker.yaml").write_text(AGENTS)
        for store, word in (("sqlite:x.db", "has one owner"), ("memory:", "cannot be shared")):
            result = expect(h.run("worker", "worker.yaml", "--store", store, "--json"), 2)
            assert result.json()["code"] == "usage" and word in result.json()["detail"], result
        expect(h.run("worker"), 2)
        unreachable = "postgres://127.0.0.1:1/x"
        expect(h.run("worker", "worker.yaml", "--store", unreachable, "--wait-store", "0s"), 7)
        for bad in (["--workers", "0"], ["--workers", "x"], ["--lease", "5ms"], ["--lease", "2h"], ["--grace", "soon"],
                    ["--capability", "a b"], ["--queue-limit", "x"], ["--log", "xml"], ["--listen", "x"]):
            expect(h.run("worker", "worker.yaml", "--store", unreachable, *bad), 2)
        expect(h.run("worker", "none.yaml", "--store", unreachable), 2)


@test
def several_files_are_served_together_unless_their_names_conflict():
    with shared() as (h, env):
        (h.path / "b").mkdir()
        (h.path / "b/more.yaml").write_text(
            "aetheris: 1\ntools:\n  here: { command: [\"./here.sh\"], effect: read }\n"
            "agents:\n  where: { plan: [ { id: w, tool: here } ], output: \"${ .steps.w }\" }\n")
        script = h.path / "b/here.sh"
        script.write_text("#!/bin/sh\necho beside its file\n")
        script.chmod(0o755)
        server = Server(h, "worker.yaml", "b/more.yaml", env=env)
        status, made = server.post("/api/jobs?wait=30s", {"agent": "where"})
        assert (status, made["result"]) == (201, "beside its file"), made
        assert len(server.get("/api/agents")[1]["agents"]) == 4
        expect(server.stop(), 0)
        (h.path / "twice.yaml").write_text((h.path / "worker.yaml").read_text().replace("timeout: 60s", "timeout: 61s"))
        for command in ("serve", "worker"):
            result = expect(h.run(command, "worker.yaml", "twice.yaml", "--json", env=env), 2)
            text = result.json()["detail"]
            assert "worker.yaml:7" in text and "twice.yaml:7" in text and "slow" in text, result
        (h.path / "same.yaml").write_text((h.path / "worker.yaml").read_text())
        worker = Worker(h, "same.yaml", env=env)
        expect(worker.end(), 0)


@test
def a_job_is_created_with_a_lease_of_its_server():
    with shared() as (h, env):
        server = Server(h, "worker.yaml", env=env)
        server.post("/api/jobs", {"agent": "brief", "id": "a"})
        until(lambda: server.status("a") == "completed")
        listed = server.get("/api/jobs/a/events")[1]["events"]
        assert [event["type"] for event in listed[:3]] == ["job_created", "plan_generated", "job_running"], listed
        assert listed[0]["created_at"] == listed[2]["created_at"], "one commit"
        expect(server.stop(), 0)


@test
def the_jobs_of_a_dead_worker_are_finished_by_another_and_nothing_is_repeated():
    with shared() as (h, env):
        one, two = Worker(h, env=env), Worker(h, env=env)
        create_job(h, env, "holds", "a")
        h.wait_for_hold()
        first = until(lambda: lease_holder(h, env, "a"))
        dying, living = (one, two) if first == one.name else (two, one)
        dying.kill()
        h.wait_for_hold(2)
        h.release_hold()
        until(lambda: job(h, env, "a")["status"] == "completed")
        assert lease_holder(h, env, "a") == living.name
        # A read is repeated, with the next try number.
        assert (h.path / "began.txt").read_text() == "began 1\nbegan 2\n"
        expect(h.run("verify", "a", env=env), 0)
        expect(living.end(), 0)


@test
def each_effect_happens_once_when_workers_are_killed():
    with shared() as (h, env):
        shop = subprocess.Popen([sys.executable, ROOT / "examples/shop/shop.py", "--port", "0", "--journal", "shop.journal"],
                                cwd=h.path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        h.started.append(shop)
        address = shop.stdout.readline().split()[-1]
        (h.path / "worker.yaml").write_text(
            "aetheris: 1\ntools:\n  pay:\n    http: { method: POST, url: \"${ env.SHOP_URL }/refunds\" }\n"
            "    effect: idempotent\n    grace: 1s\n    retry: { max_attempts: 3, retry_on: [connect, timeout, 5xx] }\n"
            "agents:\n  pays:\n    plan:\n"
            + "".join(f"      - {{ id: p{i}, tool: pay, args: {{ order: \"o{i}\", amount: {i + 1} }}"
                      + (f", needs: [p{i - 1}]" if i else "") + " }\n" for i in range(12)))
        env = {**env, "SHOP_URL": f"http://{address}"}
        send_request = HttpClient(f"http://{address}")
        rule = json.dumps({"route": "POST /refunds", "at": "after", "delay_ms": 60000, "times": 1}).encode()
        workers = [Worker(h, env=env) for _ in range(3)]
        jobs = [f"j{i}" for i in range(6)]
        for name in jobs:
            create_job(h, env, "pays", name)
        for _ in range(2):
            import urllib.request
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(send_request.url + "/control", rule, PATIENCE).read()
            silent = until(lambda: [line for line in journal(h) if line["kind"] == "effect"])
            assert silent
            victim = workers.pop(0)
            victim.kill()
            workers.append(Worker(h, env=env))
        # A hanging call of a surviving worker first runs into its timeout.
        until(lambda: all(job(h, env, name)["status"] == "completed" for name in jobs), 120)
        done = {}
        for line in journal(h):
            if line["kind"] == "effect":
                done[line["idempotency_key"]] = done.get(line["idempotency_key"], 0) + 1
        assert len(done) == len(jobs) * 12 and set(done.values()) == {1}, done
        for name in jobs:
            expect(h.run("verify", name, env=env), 0)
        for worker in workers:
            expect(worker.end(), 0)


def journal(h):
    path = h.path / "shop.journal"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@test
def a_job_is_claimed_by_a_worker_that_offers_its_capabilities():
    with shared() as (h, env):
        plain = Worker(h, env=env)
        create_job(h, env, "pins", "a", "--input", '{"n": 1}')
        create_job(h, env, "brief", "b")
        until(lambda: job(h, env, "b")["status"] == "completed")
        assert job(h, env, "a")["status"] == "queued"
        able = Worker(h, "--capability", "gpu", env=env)
        until(lambda: job(h, env, "a")["status"] == "completed")
        assert lease_holder(h, env, "a") == able.name
        assert (h.path / "done.txt").read_text() == "1\n"
        for worker in (plain, able):
            expect(worker.end(), 0)


@test
def a_queue_limit_applies_across_processes():
    with shared() as (h, env):
        for i in range(8):
            create_job(h, env, "brief", f"j{i}", "--queue", "narrow")
        workers = [Worker(h, "--queue-limit", "narrow=2", env=env) for _ in range(3)]
        until(lambda: all(job(h, env, f"j{i}")["status"] == "completed" for i in range(8)))
        running = most = 0
        for sign in (h.path / "brief.txt").read_text().split():
            running += 1 if sign == "+" else -1
            most = max(most, running)
        assert most == 2, most
        for worker in workers:
            expect(worker.end(), 0)


@test
def a_worker_paused_past_its_lease_writes_nothing_more_and_continues():
    with shared() as (h, env):
        one = Worker(h, env=env)
        create_job(h, env, "holds", "a")
        h.wait_for_hold()
        one.send(signal.SIGSTOP)
        two = Worker(h, env=env)
        h.wait_for_hold(2)
        before = len(expect(h.run("events", "a", "--json", env=env), 0).json()["events"])
        one.send(signal.SIGCONT)
        until(lambda: one.name not in lease_of(h, env))
        h.release_hold()
        until(lambda: job(h, env, "a")["status"] == "completed")
        log = expect(h.run("events", "a", "--json", env=env), 0).json()["events"]
        attempts = {event["payload"]["attempt_id"]: event["payload"]["worker_id"]
                    for event in log if event["type"] == "job_running"}
        # The second worker may release the job until the grace of the lost call has passed, and claim it again.
        assert list(dict.fromkeys(attempts.values())) == [one.name, two.name], attempts
        stale = next(attempt for attempt, worker in attempts.items() if worker == one.name)
        # From the second attempt on the first one writes nothing, except a late result.
        second = next(i for i, event in enumerate(log) if event["payload"].get("worker_id") == two.name)
        for event in log[second:]:
            assert event.get("attempt_id") != stale, event
        assert before >= second
        expect(h.run("verify", "a", env=env), 0)
        expect(two.end(), 0)
        create_job(h, env, "brief", "b")
        until(lambda: job(h, env, "b")["status"] == "completed")
        assert lease_holder(h, env, "b") == one.name, "the worker continues"
        expect(one.end(), 0)


def lease_of(h, env):
    server_free = h.run("inspect", "a", "--json", env=env).json()
    return json.dumps(server_free.get("job", server_free).get("claim", ""))


@test
def a_worker_releases_its_jobs_on_sigterm():
    with shared() as (h, env):
        one = Worker(h, "--grace", "100ms", env=env, lease="1h")
        create_job(h, env, "holds", "a")
        h.wait_for_hold()
        expect(one.end(), 0)
        two = Worker(h, env=env)
        h.wait_for_hold(2)  # not after an hour
        h.release_hold()
        until(lambda: job(h, env, "a")["status"] == "completed")
        assert lease_holder(h, env, "a") == two.name
        expect(two.end(), 0)


@test
def a_second_signal_ends_a_worker_immediately():
    with shared() as (h, env):
        one = Worker(h, "--grace", "1h", env=env)
        create_job(h, env, "holds", "a")
        h.wait_for_hold()
        one.send(signal.SIGTERM)
        until(lambda: "Shutting down" in one.process.stderr.readline())
        result = one.end(signal.SIGTERM)
        assert result.code == 128 + signal.SIGTERM, result
        two = Worker(h, env=env)
        h.wait_for_hold(2)
        h.release_hold()
        until(lambda: job(h, env, "a")["status"] == "completed")
        expect(two.end(), 0)


@test
def a_worker_rejects_an_address_that_other_machines_can_reach():
    with shared() as (h, env):
        result = expect(h.run("worker", "worker.yaml", "--listen", "0.0.0.0:0", env=env), 2)
        assert "other machines" in result.err and "127.0.0.1" in result.err, result
        assert not any(word in result.err for word in ("--tls-cert", "--insecure-http", "keys create")), result


@test
def an_idle_worker_is_notified_of_a_job_that_another_process_creates():
    with shared() as (h, env):
        worker = Worker(h, "--listen", "127.0.0.1:0", env=env)
        send_request = HttpClient(worker.line["listening"])

        def hint_count():
            lines = [line for line in send_request("/metrics")[1].splitlines() if line.startswith("aetheris_store_hint_total ")]
            return int(lines[0].split()[1])

        before = hint_count()
        create_job(h, env, "brief", "first")
        until(lambda: hint_count() > before)
        until(lambda: job(h, env, "first")["status"] == "completed")
        expect(worker.end(), 0)


@test
def a_waiting_request_ends_immediately_when_a_worker_completes_its_job():
    with shared() as (h, env):
        worker = Worker(h, env=env)
        server = Server(h, "worker.yaml", "--workers", "0", env=env)
        took = []
        for _ in range(5):
            began = time.monotonic()
            status, result = server.post("/api/jobs?wait=30s", {"agent": "brief"})
            took.append(time.monotonic() - began)
            assert result["status"] == "completed", (status, result)
        assert min(took) < 0.9, f"the poll would have found it after a second: {took}"
        expect(server.stop(), 0)
        expect(worker.end(), 0)


@test
def other_workers_are_listed_with_what_they_offer():
    with shared() as (h, env):
        idle = Worker(h, "--capability", "gpu", "--workers", "7", env=env)
        server = Server(h, "worker.yaml", "--workers", "0", env=env)

        def listed():
            return {one["worker"]: one for one in server.get("/api/workers")[1]["workers"]}

        until(lambda: idle.name in listed())
        one = listed()[idle.name]
        assert one["capabilities"] == ["gpu"] and one["agents"] == ["brief", "holds", "pins"], one
        assert (one["held"], one["jobs_max"]) == (0, 7), one
        server.post("/api/jobs", {"agent": "holds", "id": "a"})
        h.wait_for_hold()
        until(lambda: listed()[idle.name]["held"] == 1)
        # The offer of a dead worker expires with its lease, and its jobs are reported as without an owner.
        idle.kill()
        until(lambda: listed().get(idle.name, {}).get("expired") == 1)
        until(lambda: "capabilities" not in listed()[idle.name])
        stuck = expect(h.run("jobs", "--stalled", "--older-than", "0s", env=env), 0).out
        assert "lease_expired" in stuck and "aetheris worker FILE --store" in stuck, stuck
        again = Worker(h, env=env)
        h.release_hold()
        until(lambda: job(h, env, "a")["status"] == "completed")
        expect(again.end(), 0)
        until(lambda: again.name not in listed())
        expect(server.stop(), 0)


@test
def a_job_that_no_worker_can_claim_reports_what_is_missing():
    with shared() as (h, env):
        create_job(h, env, "pins", "a", "--input", '{"n": 1}')
        stuck = h.run("jobs", "--stalled", "--older-than", "0s", "--json", env=env).json()["jobs"]
        assert [one["stalled"]["message"] for one in stuck] == ["no worker is running"], stuck
        plain = Worker(h, "--listen", "127.0.0.1:0", env=env)

        def message():
            listed = h.run("jobs", "--stalled", "--older-than", "0s", "--json", env=env).json()["jobs"]
            return [(one["stalled"]["message"], one["stalled"]["missing"], one["stalled"]["commands"]) for one in listed]

        wanted = [("no worker has gpu", ["gpu"], ["aetheris worker FILE --capability gpu"])]
        until(lambda: message() == wanted)
        metrics = HttpClient(plain.line["listening"])("/metrics")[1]
        assert 'aetheris_job_state{state="queued"} 1\n' in metrics, metrics
        assert 'aetheris_queue_backlog{queue="default"} 1\n' in metrics, metrics
        able = Worker(h, "--capability", "gpu", env=env)
        until(lambda: job(h, env, "a")["status"] == "completed")
        assert message() == []
        for worker in (plain, able):
            expect(worker.end(), 0)


@test
def an_outage_of_the_store_is_logged_when_it_begins_and_ends():
    with shared() as (h, env):
        worker = Worker(h, "--log", "json", "--listen", "127.0.0.1:0", env=env)
        send_request = HttpClient(worker.line["listening"])
        create_job(h, env, "brief", "a")
        until(lambda: job(h, env, "a")["status"] == "completed")
        running_server().control("kill")
        seen = []

        def event(name):
            while True:
                line = json.loads(worker.process.stderr.readline())
                seen.append(line)
                if line["event"] == name:
                    return line

        out = event("store_unavailable")
        assert out["level"] == "warn" and out["code"] == "unavailable" and out["worker"] == worker.name, out
        metrics = send_request("/metrics")[1]
        assert "aetheris_store_up 0\n" in metrics and "aetheris_stalled_job_count" not in metrics, metrics
        assert send_request("/api/health")[0] == 200 and send_request("/api/ready")[0] == 503
        running_server().control("start")
        event("store_available")
        until(lambda: send_request("/api/ready")[0] == 200)
        until(lambda: "aetheris_store_up 1\n" in send_request("/metrics")[1])  # each connection is opened again on its own
        assert [line["event"] for line in seen].count("store_unavailable") == 1, seen
        assert ("job_completed", "a") in [(line["event"], line.get("job")) for line in seen], seen
        create_job(h, env, "brief", "b")
        until(lambda: job(h, env, "b")["status"] == "completed")
        expect(worker.end(), 0)


@test
def doctor_reports_settings_that_a_database_server_lacks():
    with shared() as (h, env):
        create_job(h, env, "brief", "a")
        database = env["AETHERIS_STORE"].rsplit("/", 1)[1]

        def settings(*words):
            for word in words:
                running_server().program("psql", "-d", database, "-qc", word)
            running_server().program("psql", "-d", database, "-qAtc", "SELECT pg_reload_conf()")

        def codes():
            return [one["code"] for one in h.run("doctor", "--json", env=env).json()["problems"]]

        assert codes() == ["no_synchronous_standby"], codes()
        # The name alone satisfies the check; nothing is written while no standby confirms.
        settings("ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'")
        try:
            until(lambda: codes() == [])
            result = expect(h.run("doctor", env=env), 0)
            lines = result.out.splitlines()
            assert lines[-1] == "ok" and all(line.startswith("ok       ") for line in lines[:-1]), result
            assert [line.split()[1] for line in lines[:-1]] == \
                ["environment", "clock", "sandbox", "server", "rollback", "store", "rows", "jobs"] and result.err == "", result
            settings("ALTER SYSTEM SET full_page_writes = off", "ALTER SYSTEM SET autovacuum = off")
            until(lambda: codes() == ["full_page_writes", "autovacuum"])
        finally:
            settings("ALTER SYSTEM RESET ALL")


@test
def agents_that_a_server_registers_are_run_by_workers_that_have_their_tools():
    with shared() as (h, env):
        server = Server(h, "worker.yaml", "--workers", "0", env=env)
        worker = Worker(h, env=env)
        late = {"plan": [{"id": "b", "tool": "brief"}], "output": "late"}
        status, made = server.request("PUT", "/api/agents/late", late)
        assert status == 201, made
        server.post("/api/jobs", {"agent": "late", "id": "a"})
        until(lambda: server.status("a") == "completed")
        assert lease_holder(h, env, "a") == worker.name
        expect(worker.end(), 0)
        expect(server.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_with_server("worker", TESTS))
