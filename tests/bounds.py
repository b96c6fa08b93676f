#!/usr/bin/env python3
"""The effect of one job, one damaged row or one busy moment on a process: at most that job fails.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  bounds.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import random
import signal
import sqlite3
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent / "chaos"))
from bad_requests import INNER  # noqa: E402
from shared import desk as shared  # noqa: E402
from shared.home import expect, home, run_tests, until  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []
TOWER = "reduce range(60) as $i (1; [., .])"  # 2^60 leaves in 60 shared arrays
TOWERS = (TOWER, "reduce range(28) as $i (1; [., .])", "reduce range(60) as $i (1; {a: ., b: .})",
          'reduce range(60) as $i ("a"; . + .)')


def test(function):
    TESTS.append(function)
    return function


def plans():
    """Agents by name: the expression in each place of a plan."""
    plan = {}
    for i, tower in enumerate(TOWERS):
        e = "${ " + tower + " }"
        call = {"id": "a", "tool": "e"}
        plan |= {
            f"args{i}": {"plan": [call | {"args": {"v": e}}]},
            f"text{i}": {"plan": [call | {"args": {"v": f"so: {e}"}}]},
            f"map{i}": {"plan": [{"id": "m", "map": e, "do": {"tool": "e"}}]},
            f"key{i}": {"plan": [{"id": "w", "wait": {"type": "signal", "key": e}}]},
            f"when{i}": {"plan": [call | {"when": "${ (" + tower + ") == 1 }"}]},
            f"output{i}": {"plan": [call], "output": e},
            f"prompt{i}": {"loop": {"model": "m", "prompt": e, "tools": ["e"]}},
            f"system{i}": {"loop": {"model": "m", "prompt": "Go", "system": f"so: {e}", "tools": ["e"]}},
        }
    return plan


def agents(h):
    tools = {"e": {"native": "echo", "effect": "read"}}
    quick = {"plan": [{"id": "a", "tool": "e", "args": {"said": 7}}], "output": "${ .steps.a.said }"}
    waits = {"plan": [{"id": "w", "wait": {"type": "signal", "key": "k"}}]}
    models = {"m": {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}}  # never called
    file = {"aetheris": 1, "tools": tools, "models": models, "agents": plans() | {"calm": quick, "waits": waits}}
    (h.path / "agents.yaml").write_text(json.dumps(file))


class HealthProbe:
    """Requests the health of a server until it is closed; `slowest` is the longest response time in seconds."""

    def __init__(self, server):
        self.server, self.slowest, self.requests, self.over = server, 0.0, 0, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.over.wait(0.02):
            began = time.monotonic()
            assert self.server.get("/api/health")[0] == 200
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.requests += 1

    def close(self):
        self.over.set()
        self.thread.join()
        return self.slowest


@test
def a_value_of_2_60_leaves_fails_its_job_and_delays_no_other():
    with home() as h:
        agents(h)
        server = Server(h)
        watch = HealthProbe(server)
        for agent in plans():
            assert server.post("/api/jobs", {"agent": agent, "id": agent})[0] == 201
        assert server.post("/api/jobs", {"agent": "calm", "id": "calm"})[0] == 201
        until(lambda: server.status("calm") == "completed")
        for agent in plans():
            until(lambda: server.status(agent) == "failed")
            job = server.get(f"/api/jobs/{agent}")[1]
            assert job["error"]["code"] == "expression_failed", job
        assert watch.close() < 5, watch.slowest
        began = time.monotonic()
        assert server.stop().code == 0
        assert time.monotonic() - began < 10
        expect(h.run("verify", "args0"), 0)


@test
def a_model_generated_plan_with_such_a_value_fails_its_job():
    desk = shared.Desk(["sk-bounds-1"], shared.SCENARIOS / "planner.json")
    try:
        answer = {"nodes": [{"id": "a", "tool": "e", "args": json.dumps({"v": "${ " + TOWER + " }"})}], "output": '"ok"'}
        scenario = desk.path / "tower.json"
        scenario.write_text(json.dumps({"about": "A plan that makes a tower.",
                                        "turns": [{"when": {"prompt": "."}, "text": answer}]}))
        desk.scenarios = ["--scenario", str(scenario)]
        desk.env |= {"MODEL_URL": f"{desk.open_models()}/v1", "MODEL_KEY": "sk-bounds-1"}
        text = (shared.ROOT / "examples/agents/planner.yaml").read_text()
        models = text[text.index("models:"):]
        models = models[:models.index("\n\n")]
        (desk.path / "agents.yaml").write_text(
            "aetheris: 1\n" + models + "\ntools:\n  e: { native: echo, effect: read, description: Says what it is told. }\n"
            "agents:\n  p: { planner: { model: main, prompt: \"${ .input.message }\", tools: [e] } }\n")
        desk.env |= {"MODEL": "tower"}
        began = time.monotonic()
        done = desk.start("p", {"message": "Build a tower."}, "t", code=1)
        assert "expression_failed" in done.stderr, done.stderr
        assert time.monotonic() - began < 30
        desk.expect_verified("t", "failed")
    finally:
        desk.close()


def state_of(pid):
    """The state of a process as /proc names it: T = stopped."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(") ", 1)[1][0]


@test
def a_second_signal_ends_a_process_whose_loop_is_busy():
    with home() as h:
        agents(h)
        server = Server(h)
        # A stopped process acts like a busy one: both signals arrive before its loop runs again.
        os.kill(server.process.pid, signal.SIGSTOP)
        until(lambda: state_of(server.process.pid) == "T")
        os.kill(server.process.pid, signal.SIGINT)
        os.kill(server.process.pid, signal.SIGTERM)
        os.kill(server.process.pid, signal.SIGCONT)
        done = h.end(server.process)
        assert done.code in (128 + signal.SIGINT, 128 + signal.SIGTERM), done


@test
def one_signal_shuts_a_process_down_in_order():
    with home() as h:
        agents(h)
        server = Server(h)
        os.kill(server.process.pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGTERM)
        os.kill(server.process.pid, signal.SIGCONT)
        assert h.end(server.process).code == 0


@test
def a_plan_with_the_maximum_number_of_nodes_does_not_block_other_requests():
    with home() as h:
        nodes = [{"id": f"n{i}", "tool": "e"} for i in range(10_000)]
        quick = {"plan": [{"id": "a", "tool": "e"}], "output": "done"}
        (h.path / "agents.yaml").write_text(json.dumps({
            "aetheris": 1, "tools": {"e": {"native": "echo", "effect": "read"}},
            "agents": {"wide": {"plan": nodes, "output": "done"}, "calm": quick}}))
        server = Server(h)
        assert server.post("/api/jobs", {"agent": "wide", "id": "wide"})[0] == 201
        began, beside = time.monotonic(), 0
        watch = HealthProbe(server)
        # The list reads rows; a request for the job itself reads its whole log.
        while not server.get("/api/jobs?agent=wide&status=completed")[1]["jobs"]:
            assert server.post("/api/jobs?wait=30s", {"agent": "calm"})[1]["status"] == "completed"
            beside += 1
        slowest, lasted = watch.close(), time.monotonic() - began
        assert beside > 1 and watch.requests > 10, (beside, watch.requests)
        assert slowest < max(5, lasted / 4), (slowest, lasted)
        assert server.stop().code == 0


MOST, LEAST = 2**63 - 1, -(2**63)
# Table, column, value; the row is of a job that waits.
DAMAGE = [("jobs", column, value) for column in ("created_at", "not_before", "wake_at", "ripe_at") for value in (MOST, LEAST)]
DAMAGE += [("heads", "updated_at", MOST), ("heads", "updated_at", LEAST)]


@test
def an_invalid_time_in_one_row_stops_no_other_job():
    for table, column, value in DAMAGE:
        with home() as h:
            agents(h)
            expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", "damaged"), 4)
            expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", "sound"), 4)
            with sqlite3.connect(h.store) as db:
                key = "id" if table == "jobs" else "job"
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = (SELECT id FROM jobs WHERE job_id = 'damaged')",
                           (value,))
            db.close()
            where = (table, column, value)
            server = Server(h)
            assert server.get("/api/health")[0] == 200, where
            status, jobs = server.get("/api/jobs")
            assert status == 200 and len(jobs["jobs"]) == 2, where
            for act in (("/api/jobs/damaged/signal", {"correlation_key": "k"}), ("/api/jobs/sound/signal", {"correlation_key": "k"})):
                server.post(*act)
            until(lambda: server.status("sound") == "completed")
            for path in ("/api/jobs/damaged", "/api/jobs/damaged/trace", "/api/jobs/damaged/events", "/metrics"):
                assert server.get(path)[0] < 500 or "log_corrupt" in str(server.get(path)[1]), (where, path)
            result = server.stop()
            assert result.code == 0, where
            # The signal wrote every other column of the row again.
            if column == "created_at":
                assert f"its row holds an invalid time (created_at): {value}" in result.err, (where, result)
                refused = expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", "damaged"), 6)
                assert "[log_corrupt]" in refused.err, (where, refused)
                assert "rows_differ" in [one["code"] for one in expect(h.run("doctor", "--json"), 1).json()["problems"]], where
            expect(h.run("rebuild"), 0)
            expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", "damaged"), 0)
            expect(h.run("verify", "damaged"), 0)


@test
def a_job_id_that_cannot_appear_in_a_url_is_rejected():
    with home() as h:
        agents(h)
        for name in (".", ".."):
            result = expect(h.run("run", "agents.yaml", "calm", "--job-id", name), 2)
            assert "input_invalid" in result.err and "neither . nor .." in result.err, result
        server = Server(h)
        for name in (".", ".."):
            status, result = server.post("/api/jobs", {"agent": "calm", "id": name})
            assert status == 400 and result["code"] == "input_invalid", result
        expect(h.run("run", "agents.yaml", "calm", "--job-id", "...", env=server.env), 0)
        server.stop()


AGENTS = """\
aetheris: 1
tools:
  put:
    http: { method: POST, url: "http://127.0.0.1:9/${ .args.to }", headers: { Authorization: "Bearer secret:TOKEN" } }
    effect: idempotent
  show: { command: ["sh", "-c", "echo $T; exit 3"], env: { T: "secret:TOKEN" }, effect: read }
agents:
  puts:
    input_schema: { type: object, required: [to], properties: { to: { type: string } } }
    plan: [ { id: a, tool: put, args: { to: "${ .input.to }" } } ]
  shows: { plan: [ { id: a, tool: show } ] }
"""


@test
def errors_of_invalid_input_contain_no_secret_and_no_internals():
    canary = "tok-5c1e7f3a9b"
    with home() as h:
        env = {"TOKEN": canary}
        (h.path / "agents.yaml").write_text(AGENTS)
        texts = []
        generator = random.Random(14)
        for _ in range(60):  # a file with a part removed, repeated, or replaced by another character
            at, long = generator.randrange(len(AGENTS)), generator.randrange(1, 12)
            text = generator.choice((AGENTS[:at] + AGENTS[at + long:], AGENTS[:at] + AGENTS[at:at + long] * 2 + AGENTS[at + long:],
                                     AGENTS[:at] + generator.choice("\0\t'\"{}[]$:&*\u00e4\u200b") + AGENTS[at:]))
            (h.path / "bad.yaml").write_text(text)
            result = h.run("check", "bad.yaml", env=env)
            assert result.code in (0, 2), (text, result)
            texts.append(result.out + result.err)
        for words in (("puts", "--input", "{}"), ("puts", "--input", "{"), ("puts", "--input", '{"to": 7}'),
                      ("nobody",),
                      ("puts", "--job-id", "a b"), ("shows",), ("puts", "--input", '{"to": "x\\u0000y"}')):
            result = h.run("run", "agents.yaml", *words, env=env)
            assert result.code in (1, 2, 3), (words, result)
            texts.append(result.out + result.err)
        server = Server(h, env=env)
        for body in ({"agent": "puts", "input": {}}, {"agent": "secret:TOKEN"}, [], "x",
                     {"agent": "puts", "input": "secret:TOKEN"}):
            status, problem = server.post("/api/jobs", body)
            assert 400 <= status < 500, (body, status)
            texts.append(json.dumps(problem))
        for part in ({"plan": [{"id": "a", "tool": "secret:TOKEN"}]},
                     {"plan": [{"id": "a", "tool": "put", "args": {"to": "${ secret }"}}]},
                     {"loop": {"model": "secret:TOKEN"}}, {"plan": 7}):
            status, problem = server.request("PUT", "/api/agents/bad", part)
            assert status == 400, (part, status, problem)
            texts.append(json.dumps(problem))
        status, job = server.post("/api/jobs?wait=30s", {"agent": "shows"})
        assert job["status"] == "failed", job
        texts += [json.dumps(job), json.dumps(server.get(f"/api/jobs/{job['id']}/trace")[1])]
        ended = server.stop()
        texts.append(ended.out + ended.err)
        for text in texts:
            assert canary not in text and not INNER.search(text), text


if __name__ == "__main__":
    sys.exit(run_tests("bounds", TESTS, " ".join(sys.argv[1:])))
