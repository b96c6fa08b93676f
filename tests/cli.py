#!/usr/bin/env python3
"""The command line, end to end: the built program in folders of its own, as a person or a script would use it.

Prints `ok NAME` or `not ok NAME` per test. tests/shared/program.py has the program, AETHERIS_ROOT names the tree.
  cli.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from shared.program import ROOT, TESTING_BIN
from shared.sanitizer import sanitizer

PATIENCE = 60.0  # seconds, for anything that must happen some time
TESTS = []

AGENTS = r"""
aetheris: 1
tools:
  echo:   { native: echo, effect: read }
  fail:   { native: fail, effect: read }
  doubt:  { native: doubt, effect: at_most_once }
  flaky:
    command: ["sh", "-c", "if [ \"$AETHERIS_TRY\" = 1 ]; then exit 75; fi; echo fine"]
    effect: read
    retry: { max_attempts: 2, initial_backoff: 10ms, retry_on: [exit_75] }
  # Says that it began, then waits until a file called `go` stands in its folder.
  hold:
    command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: read
    timeout: 60s
  hold_once:
    command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: at_most_once
    local: true
    timeout: 60s
agents:
  echo:
    input_schema: { type: object, properties: { n: { type: integer } } }
    plan: [ { id: say, tool: echo, args: { said: "${ .input }" } } ]
    output: "${ .steps.say.said }"
  fails:   { plan: [ { id: f, tool: fail, args: { code: "no_money", message: "the account is empty" } } ] }
  doubts:  { plan: [ { id: d, tool: doubt, args: { message: "lost" } } ], output: "${ .steps.d }" }
  flaky:   { plan: [ { id: f, tool: flaky } ], output: "${ .steps.f }" }
  holds:   { plan: [ { id: h, tool: hold } ], output: "${ .steps.h }" }
  holds_once: { plan: [ { id: h, tool: hold_once } ], output: "${ .steps.h }" }
  asks:
    plan:
      - { id: w, wait: { type: signal, key: "go-${ .job.id }" } }
      - { id: say, tool: echo, needs: [w], args: { got: "${ .steps.w }" } }
    output: "${ .steps.say.got }"
  maps_and_asks:
    plan:
      - { id: each, map: "${ .input }", do: { tool: echo, args: { n: "${ .item }" } } }
      - { id: w, wait: { type: signal, key: "k" }, needs: [each] }
  sleeps:
    plan:
      - { id: t, wait: { type: timer, for: 700ms } }
      - { id: say, tool: echo, needs: [t], args: { woke: true } }
    output: "${ .steps.say }"
  holds_and_asks:
    plan:
      - { id: h, tool: hold }
      - { id: w, wait: { type: signal, key: "k" } }
    output: "${ .steps.w }"
"""


def test(function):
    TESTS.append(function)
    return function


class Said:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"


class Home:
    """A folder with an agents file; commands run in it."""

    def __init__(self, program):
        self.program = program
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-cli-"))
        (self.path / "agents.yaml").write_text(AGENTS)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.started = []

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, *words, env=None, stdin="", timeout=PATIENCE):
        done = subprocess.run([self.program, *words], cwd=self.path, env={**self.env, **(env or {})},
                              input=stdin, capture_output=True, text=True, timeout=timeout)
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words, env=None, prefix=()):
        process = subprocess.Popen([*prefix, self.program, *words], cwd=self.path, env={**self.env, **(env or {})},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=PATIENCE)
        return Said(process.returncode, out, err)

    def began(self, times=1):
        """Waits until `hold` has begun so many times."""
        def enough():
            file = self.path / "began.txt"
            return file.exists() and len(file.read_text().splitlines()) >= times
        until(enough)

    def go(self):
        (self.path / "go").touch()

    @property
    def store(self):
        return self.path / ".aetheris/aetheris.db"


def until(condition, patience=PATIENCE):
    give_up = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.02)
    return value


def expect(said, code):
    assert said.code == code, f"expected exit code {code}, got {said!r}"
    return said


@contextlib.contextmanager
def home(program=TESTING_BIN):
    """AGENTS needs TESTING_BIN."""
    h = Home(program)
    try:
        yield h
    finally:
        h.close()


# ---------------------------------------------------------------- usage

@test
def version_and_help():
    with home() as h:
        for word in ("version", "--version"):
            assert re.match(r"aetheris \d+\.\d+\.\d+\n$", expect(h.run(word), 0).out)
        assert "nonsense" in expect(h.run("nonsense"), 2).err
        assert "version" in expect(h.run("version", "--json"), 0).json()
        text = expect(h.run("--help"), 0).out
        for command in ("init run check jobs job events trace replay verify signal message approvals "
                        "approve reject pause resume budget cancel resolve fork retry plan inspect completion "
                        "serve worker mcp keys migrate backup restore doctor version").split():
            assert re.search(rf"^  {command}\b", text, re.M), command
        for command in "exec".split():
            assert not re.search(rf"^  {command}\b", text, re.M), command


@test
def usage_errors_are_2():
    with home() as h:
        for words in ([], ["nonsense"], ["job"], ["run"], ["run", "nowhere.yaml"], ["jobs", "--nonsense"],
                      ["jobs", "--store", "file.db"], ["jobs", "--store", "sqlite:"],
                      ["jobs", "--status", "asleep", "--store", "memory:"],
                      ["run", "agents.yaml"], ["run", "agents.yaml", "nobody"],
                      ["run", "agents.yaml", "echo", "--input", "{"],
                      ["run", "agents.yaml", "echo", "--label", "x"],
                      ["run", "agents.yaml", "echo", "--label", "a=1", "--label", "a=2"],
                      ["run", "agents.yaml", "echo", "--label", "a=1", "--label", "a=1"],
                      ["run", "agents.yaml", "echo", "--store", "memory:", "--detach"],
                      ["run", "agents.yaml", "echo", "--grace", "soon"],
                      ["run", "agents.yaml", "echo", "--job-id", "a b"],
                      ["run", "agents.yaml", "echo", "--durability", "none"]):
            said = expect(h.run(*words), 2)
            assert said.out == "", said
            assert said.err, words
        assert not h.store.exists()


@test
def what_comes_later_is_unsupported():
    with home() as h:
        for words in (["exec", "f"],):
            said = expect(h.run(*words, "--json"), 2)
            assert said.json()["code"] == "unsupported", said
            assert "unsupported" in said.err


@test
def errors_are_problems_in_json_and_sentences_on_stderr():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo"), 0)
        said = expect(h.run("job", "nobody", "--json"), 3)
        body = said.json()
        assert body["code"] == "not_found" and body["status"] == 404 and body["title"] and body["detail"]
        assert "nobody" in said.err


# ---------------------------------------------------------------- files

@test
def check_says_all_faults_with_their_places():
    with home() as h:
        assert expect(h.run("check", "agents.yaml", "--json"), 0).json() == {"ok": True, "faults": []}
        expect(h.run("check", "agents.yaml"), 0)
        (h.path / "bad.yaml").write_text(
            "aetheris: 1\ntools:\n  a: { native: echo, efect: read }\nagents:\n  x:\n    plan:\n"
            "      - { id: one, tool: b }\n")
        said = expect(h.run("check", "bad.yaml", "--json"), 2)
        body = said.json()
        assert body["ok"] is False and len(body["faults"]) >= 2, body
        for fault in body["faults"]:
            assert {"code", "message", "file", "line", "column", "path", "suggestion"} <= set(fault), fault
            assert fault["file"] == "bad.yaml" and fault["line"] >= 1 and fault["column"] >= 1
        text = expect(h.run("check", "bad.yaml"), 2).out
        assert "bad.yaml:3:" in text and "effect" in text, text
        said = expect(h.run("run", "bad.yaml", "x", "--json"), 2)
        assert said.json()["code"] == "plan_invalid" and said.json()["faults"]
        assert not h.store.exists()


@test
def a_tool_that_this_machine_cannot_run_is_a_fault_with_its_place():
    with home() as h:
        (h.path / "bad.yaml").write_text(
            "aetheris: 1\ntools:\n  a: { command: [\"no-such-program\", \"-x\"], effect: read }\n"
            "  b: { command: [\"./nothing.sh\"], effect: read }\n"
            "  c: { command: [\"date\"], effect: read, cwd: nowhere }\n"
            "agents:\n  x: { plan: [ { id: one, tool: a } ] }\n")
        checked = expect(h.run("check", "bad.yaml", "--json"), 2).json()["faults"]
        assert [(f["code"], f["line"], f["column"], f["path"]) for f in checked] == [
            ("plan_invalid", 3, 18, "tools.a.command[0]"), ("plan_invalid", 4, 18, "tools.b.command[0]"),
            ("plan_invalid", 5, 46, "tools.c.cwd")], checked
        assert "no-such-program" in checked[0]["message"] and "PATH" in checked[0]["message"]
        said = expect(h.run("run", "bad.yaml", "--json"), 2)
        assert said.json()["code"] == "plan_invalid" and said.json()["faults"] == checked, said
        assert "bad.yaml:3:18: tools.a.command[0]: " in said.err, said
        assert not h.store.exists()


@test
def check_draws_a_graph():
    with home() as h:
        text = expect(h.run("check", "agents.yaml", "--graph"), 0).out
        assert "sleeps\n└─ t  wait for timer 700ms\n   └─ say  tool echo (read)\n" in text, text


@test
def init_writes_a_file_that_runs():
    with home() as h:
        said = expect(h.run("init", "new/place"), 0)
        assert "aetheris run" in said.out and "aetheris jobs" in said.out
        expect(h.run("check", "new/place/agents.yaml"), 0)
        said = expect(h.run("run", "new/place/agents.yaml", "--input", '{"name":"Ada"}'), 0)
        assert said.json()["message"] == "Hello, Ada!"
        assert (h.path / "new/place/notes.txt").exists()
        assert expect(h.run("init", "new/place", "--json"), 5).json()["code"] == "already_exists"


# ---------------------------------------------------------------- run

@test
def run_prints_the_result_and_nothing_else():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}'), 0)
        assert said.json() == {"n": 7}
        assert said.err == f"created store at {h.store.resolve()}\n", said
        assert expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}'), 0).err == ""
        (h.path / "in.json").write_text('{"n":8}')
        assert expect(h.run("run", "agents.yaml", "echo", "--input", "@in.json"), 0).json() == {"n": 8}
        said = expect(h.run("run", "agents.yaml", "echo", "--input", "@-", stdin='{"n":9}'), 0)
        assert said.json() == {"n": 9}


@test
def run_json_is_the_job():
    with home() as h:
        body = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}', "--job-id", "j1",
                            "--label", "team=red", "--json"), 0).json()
        assert body["id"] == "j1" and body["agent"] == "echo" and body["status"] == "completed"
        assert body["input"] == {"n": 7} and body["result"] == {"n": 7} and body["labels"]["team"] == "red"
        for field in ("error", "waiting", "in_doubt", "waits", "parked", "attempt", "created_at", "updated_at"):
            assert field in body, field
        assert expect(h.run("job", "j1", "--json"), 0).json() == body


def on_terminal(h, *words, env=None):
    """What a command prints on a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen([h.program, *words], cwd=h.path, stdin=slave, stdout=slave, stderr=slave,
                               env={**h.env, "TERM": "xterm-256color", **(env or {})})
    os.close(slave)
    text = b""
    while select.select([master], [], [], PATIENCE)[0]:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    assert process.wait(PATIENCE) == 0
    os.close(master)
    return text.decode()


@test
def a_long_value_of_a_job_is_cut_and_the_command_for_all_of_it_named():
    with home() as h:
        given = {"n": 1, "text": "x" * 5000}
        expect(h.run("run", "agents.yaml", "echo", "--input", json.dumps(given), "--job-id", "long"), 0)
        shown = on_terminal(h, "job", "long", env={"COLUMNS": "100", "NO_COLOR": "1"}).replace("\r\n", "\n")
        assert max(map(len, shown.splitlines())) <= 100 and shown.count("… (cut: --json has it all)\n") == 2, shown
        assert "x" * 5000 in expect(h.run("job", "long"), 0).out, "a pipe gets all of it"
        assert expect(h.run("job", "long", "--json"), 0).json()["input"] == given


@test
def a_failed_job_is_1():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "fails", "--json"), 1)
        assert said.json()["status"] == "failed" and said.json()["error"]["code"] == "no_money"
        said = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert said.out == "" and "the account is empty" in said.err and "already" not in said.err
        said = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert "job f had already failed; this command ran nothing" in said.err, said


@test
def bad_input_is_2_and_nothing_is_written():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":"x"}', "--json"), 2)
        assert said.json()["code"] == "input_invalid" and "/n" in said.json()["detail"], said
        assert not h.store.exists()


@test
def dry_run_calls_and_writes_nothing():
    with home() as h:
        body = expect(h.run("run", "agents.yaml", "holds_and_asks", "--dry-run", "--json"), 0).json()
        assert [step["id"] for step in body["steps"]] == ["h", "w"]
        assert "hold" in expect(h.run("run", "agents.yaml", "holds", "--dry-run"), 0).out
        assert not h.store.exists() and not (h.path / "began.txt").exists()
        expect(h.run("run", "agents.yaml", "echo", "--dry-run", "--input", '{"n":"x"}'), 2)


@test
def the_same_job_id_is_the_same_job():
    with home() as h:
        first = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a"), 0)
        again = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a"), 0)
        assert again.out == first.out
        assert expect(h.run("run", "agents.yaml", "--job-id", "a"), 0).out == first.out
        assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 1
        events = len(expect(h.run("events", "a", "--json"), 0).json()["events"])
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":2}', "--job-id", "a"), 5)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "a"), 5)
        assert "job a had already completed; this command ran nothing" in again.err and not first.err.count("already"), again
        assert len(expect(h.run("events", "a", "--json"), 0).json()["events"]) == events


@test
def an_idempotency_key_makes_one_job():
    with home() as h:
        words = ("run", "agents.yaml", "echo", "--idempotency-key", "k", "--json")
        one = expect(h.run(*words, "--input", '{"n":1}'), 0).json()
        two = expect(h.run(*words, "--input", '{"n":1}'), 0).json()
        assert one["id"] == two["id"]
        said = expect(h.run(*words, "--input", '{"n":2}'), 5)
        assert said.json()["code"] == "idempotency_conflict"


@test
def timers_are_waited_for():
    with home() as h:
        begin = time.monotonic()
        assert expect(h.run("run", "agents.yaml", "sleeps"), 0).json() == {"woke": True}
        assert time.monotonic() - begin >= 0.7
        assert expect(h.run("run", "agents.yaml", "sleeps", "--only"), 0).json() == {"woke": True}


@test
def retries_are_made_and_shown():
    with home() as h:
        assert expect(h.run("run", "agents.yaml", "flaky", "--job-id", "f"), 0).out == "fine\n"
        text = expect(h.run("trace", "f"), 0).out
        assert "exit_75" in text, text


@test
def a_store_in_memory_is_gone_afterwards():
    with home() as h:
        assert expect(h.run("run", "agents.yaml", "echo", "--store", "memory:", "--input", '{"n":1}'), 0).json()
        assert not h.store.exists()
        assert expect(h.run("jobs", "--store", "memory:", "--json"), 0).json()["jobs"] == []


@test
def a_store_elsewhere_is_named_in_the_commands_that_are_printed():
    with home() as h:
        (h.path / "other").mkdir()
        said = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--store", "sqlite:other/s.db"), 4)
        assert "aetheris signal w go-w" in said.err and "--store sqlite:other/s.db" in said.err, said
        assert (h.path / "other/s.db").exists() and not h.store.exists()
        expect(h.run("signal", "w", "go-w", "1", env={"AETHERIS_STORE": "sqlite:other/s.db"}), 0)


# ---------------------------------------------------------------- looking

@test
def looking_needs_no_owner_and_makes_no_store():
    with home() as h:
        for words in (["jobs"], ["approvals"], ["job", "a"], ["events", "a"], ["events", "a", "-f"], ["trace", "a"], ["replay", "a"],
                      ["verify", "a"], ["signal", "a", "k"], ["cancel", "a"],
                      ["resolve", "a", "12345678", "fail"]):
            said = expect(h.run(*words, "--json"), 3)
            assert said.json()["code"] == "not_found", said
        assert not (h.path / ".aetheris").exists()


@test
def without_an_owner_a_command_writes_and_runs_no_job_and_looking_writes_nothing():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--only"), 4)

        def written():  # not the index of the write-ahead log, which readers share
            files = [h.store, h.store.with_name(h.store.name + "-wal")]
            return [file.read_bytes() if file.exists() else b"" for file in files]

        before = written()
        for words in (["jobs"], ["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["verify", "a"],
                      ["approvals"]):
            expect(h.run(*words), 0)
            assert written() == before, words
        seq = expect(h.run("job", "a", "--json"), 0).json()["seq"]
        expect(h.run("signal", "a", "go-a", "7"), 0)
        job = expect(h.run("job", "a", "--json"), 0).json()
        assert job["status"] == "queued" and job["seq"] > seq, job
        last = expect(h.run("run", "agents.yaml", "--job-id", "a"), 0)
        assert last.json() == 7, "the lock is free again"
        assert "resuming job a (queued)\n" in last.err, last


@test
def a_queued_job_whose_agent_the_owner_of_the_store_does_not_run_says_so():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a", "--detach"), 0)
        (h.path / "other.yaml").write_text("aetheris: 1\nagents:\n  nap:\n    plan:\n"
                                           "      - { id: w, wait: { type: timer, for: 10ms } }\n")
        server = h.start("serve", "other.yaml", "--listen", "127.0.0.1:0", "--json")
        assert "listening" in json.loads(server.stdout.readline())
        job = expect(h.run("job", "a", "--json"), 0).json()
        assert job["status"] == "queued" and job["unattended"]["message"].startswith("no worker runs the agent echo;"), job
        assert "answer: aetheris serve FILE\n" in expect(h.run("job", "a"), 0).out
        nap = expect(h.run("run", "other.yaml", "--job-id", "n", "--json"), 0).json()
        assert nap["unattended"] is None, nap


@test
def jobs_are_listed_newest_first_and_filtered():
    with home() as h:
        for i, label in enumerate(["red", "blue", "red"]):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", f"j{i}", "--label", f"team={label}"), 0)
            time.sleep(0.005)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "bad"), 1)
        ids = [job["id"] for job in expect(h.run("jobs", "--json"), 0).json()["jobs"]]
        assert ids == ["bad", "j2", "j1", "j0"], ids
        def listed(*words):
            return [job["id"] for job in expect(h.run("jobs", "--json", *words), 0).json()["jobs"]]
        assert listed("--label", "team=red") == ["j2", "j0"]
        assert listed("--status", "failed") == ["bad"]
        assert listed("--agent", "echo", "--limit", "2") == ["j2", "j1"]
        page = expect(h.run("jobs", "--json", "--limit", "2"), 0).json()
        assert page["next_cursor"].startswith("j2@"), page
        assert listed("--limit", "2", "--cursor", page["next_cursor"]) == ["j1", "j0"]
        assert listed("--limit", "2", "--cursor", "j2") == ["j1", "j0"]
        text = expect(h.run("jobs"), 0).out
        assert text.splitlines()[0].split()[:3] == ["ID", "STATUS", "AGENT"] and "\x1b" not in text


@test
def a_list_of_jobs_says_why_each_does_not_continue():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "good"), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "bad"), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "asks"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "doubts"), 4)
        rows = {line.split()[0]: line for line in expect(h.run("jobs"), 0).out.splitlines()}
        assert rows["ID"].rstrip().endswith("REASON"), rows
        assert "no_money: " in rows["bad"] and "waits for" in rows["asks"], rows
        assert rows["doubts"].endswith("the outcome of a call is unknown"), rows
        assert re.fullmatch(r"good +completed +echo +[-0-9]+ [:0-9]+Z +[\d.]+ m?s", rows["good"]), rows
        expect(h.run("cancel", "asks"), 0)
        assert "been cancelled" in expect(h.run("run", "agents.yaml", "--job-id", "asks"), 1).err


@test
def events_are_whole_envelopes():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        body = expect(h.run("events", "a", "--json"), 0).json()
        assert body["next"] is None
        events = body["events"]
        assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
        assert events[0]["type"] == "job_created" and events[-1]["type"] == "job_completed"
        assert events[0]["prev_hash"] == "0" * 64
        for before, event in zip(events, events[1:]):
            assert event["prev_hash"] == before["hash"]
        for event in events:
            assert {"job_id", "seq", "id", "type", "schema", "created_at", "payload", "prev_hash",
                    "hash"} <= set(event), event
        lines = expect(h.run("events", "a", "-f", "--json"), 0).out.splitlines()
        assert [json.loads(line) for line in lines] == events
        types = [e["type"] for e in expect(h.run("events", "a", "--json", "--type", "node_finished"), 0).json()["events"]]
        assert types == ["node_finished"]
        classes = expect(h.run("events", "a", "--json", "--class", "coordination"), 0).json()["events"]
        assert {e["type"] for e in classes} == {"job_running"}
        after = expect(h.run("events", "a", "--json", "--after", "3"), 0).json()["events"]
        assert after == events[3:]
        assert len(expect(h.run("events", "a"), 0).out.splitlines()) == len(events)


@test
def replay_goes_back_in_time():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        early = expect(h.run("replay", "a", "--at", "2", "--json"), 0).json()
        late = expect(h.run("replay", "a", "--json"), 0).json()
        assert early != late
        expect(h.run("replay", "a"), 0)
        assert expect(h.run("replay", "a", "--at", "9999", "--json"), 2).json()["code"] == "input_invalid"


@test
def verify_proves_and_says_what_it_proved():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        body = expect(h.run("verify", "a", "--json"), 0).json()
        assert body["ok"] is True and body["head"] == "unsigned", body
        assert set(body["proofs"]) == {"execution_hash", "event_chain", "ledger", "replay", "state_machine"}
        assert all(proof["ok"] is True for proof in body["proofs"].values())
        expect(h.run("verify", "a"), 0)


def new_key(h, name):
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(h.path / name)], check=True)
    (h.path / name).chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", str(h.path / name), "-pubout", "-out", str(h.path / (name + ".pub"))],
                   check=True)


@test
def a_signed_head_says_who_wrote_the_log_and_that_it_is_whole():
    with home() as h:
        new_key(h, "ada")
        new_key(h, "eve")
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--signing-key", "ada"), 4)
        for key in ("ada", "ada.pub"):
            assert expect(h.run("verify", "a", "--key", key, "--json"), 0).json()["head"] == "intact"
        proof = expect(h.run("verify", "a", "--json"), 0).json()
        assert proof["head"] == "unknown_key" and len(proof["signature"]["key_id"]) == 16, proof
        assert expect(h.run("verify", "a", "--key", "eve.pub", "--json"), 6).json()["head"] == "unknown_key"
        assert expect(h.run("verify", "a", "--key", "eve", "--key", "ada", "--json"), 0).json()["head"] == "intact"
        assert expect(h.run("verify", "a", "--json", env={"AETHERIS_SIGNING_KEY": "ada"}), 0).json()["head"] == "intact"
        # Somebody without a key goes on with it, then somebody with one.
        expect(h.run("signal", "a", "go-a", "1"), 0)
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()
        assert proof["head"] == "unsigned" and "up to event" in proof["proofs"]["event_chain"]["detail"], proof
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", env={"AETHERIS_SIGNING_KEY": "ada"}), 0)
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()
        assert proof["head"] == "intact", proof
        # The end is cut off, and the rows are made to fit.
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            rows = db.execute("SELECT id, last_seq, body FROM commits ORDER BY id").fetchall()
            db.execute("DELETE FROM commits WHERE id = ?", (rows[-1][0],))
            db.execute("UPDATE heads SET last_seq = ?, last_commit = ?, commits = commits - 1, head = ?",
                       (rows[-2][1], rows[-2][0], rows[-2][2][-32:]))
            db.execute("UPDATE jobs SET status = 'running'")
            db.commit()
        assert len(expect(h.run("inspect", "a", "--json"), 0).json()["commits"]) == len(body["commits"]) - 1
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 6).json()
        assert proof["head"] == "truncated", proof
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            db.execute("DELETE FROM signed_heads")
            db.commit()
        assert expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()["head"] == "unsigned"


@test
def a_signing_key_that_others_may_read_is_refused():
    with home() as h:
        new_key(h, "ada")
        (h.path / "ada").chmod(0o640)
        said = expect(h.run("run", "agents.yaml", "echo", "--signing-key", "ada"), 2)
        assert "chmod 600 ada" in said.err, said
        for wrong in ("nowhere", "ada.pub"):
            (h.path / "ada.pub").chmod(0o600)
            expect(h.run("run", "agents.yaml", "echo", "--signing-key", wrong), 2)
        assert not h.store.exists()
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("verify", "a", "--key", "agents.yaml"), 2)
        expect(h.run("verify", "a", "--key", "00ff"), 2)


@test
def inspect_shows_every_row_and_changes_none():
    with home() as h:
        expect(h.run("inspect", "nobody"), 3)
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "a", "--durability", "split"), 0)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "b", "--label", "team=red"), 4)
        jobs = {job["id"]: job for job in expect(h.run("inspect", "--json"), 0).json()["jobs"]}
        assert set(jobs) == {"a", "b"} and jobs["b"]["labels"] == {"team": "red"}, jobs
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        assert body["job"] == jobs["a"]
        events = expect(h.run("events", "a", "--json"), 0).json()["events"]
        assert [t for c in body["commits"] for t in c["types"]] == [e["type"] for e in events]
        assert body["commits"][-1]["head"] == events[-1]["hash"] == jobs["a"]["head"]
        assert all(c["bytes"] > 0 and len(c["sha256"]) == 64 for c in body["commits"])
        assert len(body["effects"]) == len(body["ledger"]) == 2 and body["effects"][0]["record"]["try"] == 1
        assert body["blobs"] and all(blob["whole"] for blob in body["blobs"])
        text = expect(h.run("inspect", "a"), 0).out
        assert "job_created" in text and "effects" in text
        assert "b" in expect(h.run("inspect"), 0).out
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            row = db.execute("SELECT id, body FROM commits ORDER BY id LIMIT 1 OFFSET 2").fetchone()
            db.execute("UPDATE commits SET body = ? WHERE id = ?", (row[1][:-1] + b"?", row[0]))
            db.commit()
        broken = expect(h.run("inspect", "a", "--json"), 0).json()["commits"]
        assert "refused" in broken[2] and "types" in broken[1] and "types" not in broken[3]


@test
def inspect_looks_while_another_owns_the_store():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "a")
        h.began()
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        assert body["job"]["status"] == "running" and body["job"]["claim"]["epoch"] == 1, body["job"]
        assert body["ledger"][0]["state"] == "INFLIGHT", body["ledger"]
        h.go()
        expect(h.end(runner), 0)


@test
def steps_are_listed_below_their_parent_and_shown_one_by_one():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        nodes = expect(h.run("trace", "a", "--json"), 0).json()["nodes"]
        page = expect(h.run("trace", "a", "--parent", "root", "--json"), 0).json()
        assert [row["step_id"] for row in page["steps"]] == [node["step_id"] for node in nodes], page
        assert page["total"] == len(nodes) and page["by_status"] == {"done": len(nodes)}, page
        step = nodes[0]["step_id"]
        assert expect(h.run("trace", "a", "--step", step, "--json"), 0).json() == {**nodes[0], "items": []}
        listed = expect(h.run("trace", "a", "--parent", "root"), 0).out
        assert step in listed and "done" in listed, listed
        shown = expect(h.run("trace", "a", "--step", step), 0).out
        assert nodes[0]["node_id"] in shown and "done" in shown, shown
        expect(h.run("trace", "a", "--parent", step), 0)
        expect(h.run("trace", "a", "--step", "nothing"), 3)
        expect(h.run("trace", "a", "--step", step, "--parent", "root"), 2)


# ---------------------------------------------------------------- rebuild

DAMAGE = """
    UPDATE jobs SET agent = 'nobody', idempotency_key = '';
    UPDATE jobs SET request_hash = x'00', priority = 9, capabilities = 'no', queue = 'q', turn = 't', created_at = 1, not_before = 5, wake_at = 6,
      ripe_at = 7, ready = 9, status = CASE status WHEN 'completed' THEN 'running' ELSE 'completed' END;
    DELETE FROM heads; DELETE FROM labels;
    INSERT INTO labels VALUES(1, 0, 'not', 'so');
    UPDATE commits SET first_seq = 0, last_seq = 0, prev = id, jump = NULL, blobs = x'00';
    UPDATE checkpoints SET body = x'00';
"""


def rows_of(store):
    """Every row of every table."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: sorted(map(repr, db.execute(f"SELECT * FROM {table}"))) for table in tables}


def run_sql(store, script):
    with contextlib.closing(sqlite3.connect(store)) as db:
        db.executescript(script)


@test
def rebuild_makes_the_rows_of_every_kind_of_job_anew():
    with home() as h:
        expect(h.run("rebuild"), 3)
        expect(h.run("rebuild", "--store", "memory:"), 2)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--idempotency-key", "k", "--label", "z=1",
                     "--label", "a=2"), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "failed"), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting", "--label", "team=red"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked"), 4)
        expect(h.run("run", "agents.yaml", "maps_and_asks", "--job-id", "long", "--input", json.dumps(list(range(80)))), 4)
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "live", "--only")
        h.began()
        runner.kill()
        runner.wait()
        before = rows_of(h.store)
        assert len(before["checkpoints"]) == 1 and len(before["jobs"]) == 6, before
        fine = expect(h.run("rebuild", "--check", "--json"), 0).json()
        assert fine["ok"] and fine["checked_only"] and fine["jobs"] == 6 and fine["differing"] == [], fine

        run_sql(h.store, DAMAGE)
        damaged = rows_of(h.store)
        said = expect(h.run("rebuild", "--check"), 6)
        assert "jobs.status" in said.out and "waiting" in said.out and "heads" in said.out, said
        body = expect(h.run("rebuild", "--check", "--job", "waiting", "--json"), 6).json()
        assert not body["ok"] and body["jobs"] == 1, body
        status = [row for row in body["differing"][0]["rows"] if row["column"] == "status"]
        assert status == [{"column": "status", "derived": "'waiting'", "stored": "'completed'", "table": "jobs"}], body
        assert rows_of(h.store) == damaged
        expect(h.run("rebuild", "--job", "nobody"), 3)

        said = expect(h.run("rebuild"), 0)
        assert "6 rebuilt" in said.out, said
        after = rows_of(h.store)
        for table, rows in before.items():
            if table not in ("audit", "meta"):  # that it was made anew is told there
                assert after[table] == rows, (table, rows, after[table])
        assert len(after["audit"]) == 1, after["audit"]
        expect(h.run("rebuild", "--check"), 0)

        run_sql(h.store, "DELETE FROM checkpoints")
        expect(h.run("rebuild", "--check"), 0)  # there need not be one
        expect(h.run("rebuild"), 0)
        assert rows_of(h.store)["checkpoints"] == before["checkpoints"]
        for job in ("done", "failed", "waiting", "parked", "long", "live"):
            expect(h.run("verify", job), 0)
        h.go()
        assert expect(h.run("run", "agents.yaml", "--job-id", "live"), 0).out == "held\n"
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)


@test
def a_job_ends_at_the_deadline_that_it_is_given():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "sleeps", "--job-id", "a", "--deadline", "300ms", "--json"), 1).json()
        assert said["error"]["code"] == "deadline_exceeded", said
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b", "--deadline", "1h"), 0)
        for bad in ("soon", "", "0s"):
            expect(h.run("run", "agents.yaml", "echo", "--deadline", bad), 2)


@test
def a_rebuild_knows_again_what_an_idempotency_key_stands_for():
    with home() as h:
        asked = ["run", "agents.yaml", "asks", "--detach", "--idempotency-key", "k", "--priority", "3", "--queue", "slow",
                 "--deadline", "1h"]
        job = expect(h.run(*asked), 0).out
        before = rows_of(h.store)
        assert expect(h.run("rebuild", "--check", "--json"), 0).json()["ok"]
        run_sql(h.store, "UPDATE jobs SET request_hash = x'00'")
        expect(h.run("rebuild"), 0)
        assert rows_of(h.store)["jobs"] == before["jobs"]
        assert expect(h.run(*asked), 0).out == job
        for other in (["--priority", "4"], ["--queue", "fast"], ["--deadline", "2h"]):
            name = asked.index(other[0])
            expect(h.run(*asked[:name], *other, *asked[name + 2:]), 5)


@test
def rebuild_is_refused_while_another_owns_the_store():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "a")
        h.began()
        said = expect(h.run("rebuild"), 7)
        assert "store_locked" in said.err and str(runner.pid) in said.err, said
        expect(h.run("rebuild", "--check"), 0)
        h.go()
        expect(h.end(runner), 0)
        expect(h.run("rebuild"), 0)


@test
def rebuild_that_was_killed_is_run_again():
    with home() as h:
        for number in range(55):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", f"j{number}", "--only"), 0)
        before = rows_of(h.store)
        run_sql(h.store, DAMAGE)
        expect(h.run("rebuild", env={"AETHERIS_FAILPOINTS": "rebuild.after_batch=exit@1"}), 137)
        half = expect(h.run("rebuild", "--check", "--json"), 6).json()
        assert 0 < half["differing_jobs"] < 55, half["differing_jobs"]
        expect(h.run("rebuild"), 0)
        after = rows_of(h.store)
        for table, rows in before.items():
            if table not in ("audit", "meta"):
                assert after[table] == rows, table
        assert len(after["audit"]) == 2, after["audit"]


@test
def rebuild_leaves_the_rows_of_a_log_without_its_end():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        run_sql(h.store, "DELETE FROM commits WHERE id = (SELECT last_commit FROM heads WHERE job = 1)")
        cut = rows_of(h.store)
        body = expect(h.run("rebuild", "--json"), 6).json()
        assert [refused["id"] for refused in body["refused"]] == ["a"] and body["refused"][0]["code"] == "log_corrupt", body
        assert rows_of(h.store) == cut
        said = expect(h.run("rebuild"), 6)
        assert "a: " in said.err and "backup" in said.err, said


@test
def completion_completes_in_bash():
    with home() as h:
        script = expect(h.run("completion", "bash"), 0).out

        def completed(*words):
            line = " ".join(shlex.quote(w) for w in ("aetheris", *words))
            ask = (f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); _aetheris\n"
                   'printf "%s\\n" "${COMPREPLY[@]}"')
            done = subprocess.run(["bash", "-c", ask], cwd=h.path, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0 and done.stderr == "", done.stderr
            return set(done.stdout.split())

        commands = set(re.findall(r"^  (\w+) ", expect(h.run("--help"), 0).out.split("Subcommands:")[-1], re.M))
        assert {"run", "verify", "inspect", "completion"} <= completed("") <= commands, (completed(""), commands)
        assert completed("ver") == {"verify", "version"}
        assert {"--input", "--job-id", "--signing-key", "--store", "--json"} <= completed("run", "agents.yaml", "--")
        assert completed("run", "--durability", "") == {"fused", "split"}
        assert completed("--store", "sqlite:x", "ins") == {"inspect"}
        assert {"--check", "--job", "--json"} <= completed("rebuild", "--")
        assert completed("completion", "") == {"bash", "zsh", "fish"}
        assert "agents.yaml" in completed("run", "ag") and "agents.yaml" in completed("check", "")
        assert "--key" in completed("verify", "a", "-")
        for shell in ("zsh", "fish"):
            other = expect(h.run("completion", shell), 0).out
            assert "inspect" in other and "durability" in other
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=other, text=True, check=True, timeout=PATIENCE)
        expect(h.run("completion", "tcsh"), 2)


@test
def a_changed_log_is_6():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":4242}'), 0)
        for name in ("aetheris.db", "aetheris.db-wal"):
            file = h.path / ".aetheris" / name
            if file.exists():
                file.write_bytes(file.read_bytes().replace(b"4242", b"4243"))
        said = h.run("verify", "a", "--json")
        assert said.code == 6, said
        assert said.json()["ok"] is False and said.json()["head"] == "altered", said


@test
def a_log_with_commits_gone_is_6():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--durability", "split"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        whole = h.path / "whole"
        (h.path / ".aetheris").rename(whole)

        def without(which):
            shutil.rmtree(h.path / ".aetheris", ignore_errors=True)
            shutil.copytree(whole, h.path / ".aetheris")
            with contextlib.closing(sqlite3.connect(h.store)) as db:
                commits = db.execute("SELECT id, first_seq, last_seq FROM commits WHERE job = "
                                     "(SELECT id FROM jobs WHERE job_id = 'a') ORDER BY id").fetchall()
                assert len(commits) > 4
                gone = commits[which]
                db.executemany("DELETE FROM commits WHERE id = ?", [(id,) for id, _, _ in gone])
                db.commit()
                return gone, commits

        for which, head in ((slice(-1, None), "truncated"), (slice(-3, None), "truncated"),
                            (slice(0, None), "truncated"), (slice(2, 3), "altered"), (slice(0, 1), "altered")):
            gone, commits = without(which)
            said = expect(h.run("verify", "a", "--json"), 6)
            proof = said.json()
            assert proof["ok"] is False and proof["head"] == head, (which, said)
            detail = proof["proofs"]["event_chain"]["detail"]
            assert proof["proofs"]["event_chain"]["ok"] is False
            before = gone[0][1] - 1  # the last event that is there
            assert re.search(rf"\bevent {before}\b", detail), (which, detail)
            assert "NOT verified" in expect(h.run("verify", "a"), 6).out
            for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"]):
                said = expect(h.run(*words, "--json"), 6)
                assert said.json()["code"] == "log_corrupt", (which, said)
            expect(h.run("verify", "b"), 0)


@test
def a_store_that_went_backwards_is_noticed_and_accepted():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked"), 4)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--only"), 0)
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "live", "--only")
        h.began()
        runner.kill()
        runner.wait()
        expect(h.run("pause", "queued"), 0)  # so that the store is closed in order
        expect(h.run("resume", "queued"), 0)
        backup = h.path / "backup.db"
        shutil.copy(h.store, backup)
        said = expect(h.run("doctor", "--accept-rollback"), 0)
        assert "was not rolled back" in said.out, said
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)
        shutil.copy(backup, h.store)

        for words in (["run", "agents.yaml", "echo"], ["signal", "waiting", "go-waiting", "1"], ["cancel", "done"]):
            said = expect(h.run(*words), 7)
            assert "store_rolled_back" in said.err and "doctor --accept-rollback" in said.err, said
        assert expect(h.run("job", "waiting", "--json"), 0).json()["status"] == "waiting"
        said = h.run("doctor", "--json")
        assert said.code == 1 and "store_rolled_back" in [p["code"] for p in said.json()["problems"]], said

        body = expect(h.run("doctor", "--accept-rollback", "--json"), 0).json()
        assert [(job["id"], job["calls"]) for job in body.pop("may_repeat")] == [("parked", ["d (doubt, at_most_once)"])]
        assert body == {"accepted": True, "ending": 0, "parked": 3, "pausing": 1}, body
        for job in ("waiting", "queued"):
            parked = expect(h.run("job", job, "--json"), 0).json()["parked"]
            assert (parked["reason"], parked["until"]) == ("store_rolled_back", "resume"), parked
        assert expect(h.run("job", "parked", "--json"), 0).json()["parked"]["reason"] == "invocation_in_doubt"
        assert expect(h.run("job", "done", "--json"), 0).json()["status"] == "completed"
        assert "store_rolled_back" not in h.run("doctor", "--json").out
        said = expect(h.run("doctor", "--accept-rollback"), 0)
        assert "was not rolled back" in said.out, said

        expect(h.run("run", "agents.yaml", "--job-id", "live"), 4)
        parked = expect(h.run("job", "live", "--json"), 0).json()["parked"]
        assert parked["reason"] == "store_rolled_back", parked
        h.go()
        for job in ("queued", "live", "waiting"):
            expect(h.run("resume", job), 0)
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)
        for job in ("queued", "live", "waiting"):
            expect(h.run("run", "agents.yaml", "--job-id", job, "--only"), 0)
        for job in ("queued", "live", "waiting", "parked", "done"):
            expect(h.run("verify", job), 0)
        shutil.copy(backup, h.store)  # from before what was accepted
        expect(h.run("run", "agents.yaml", "echo"), 7)


SECRET = "Ada-Lovelace-4711"


@test
def a_redacted_value_is_nowhere_and_the_log_still_proves_well():
    for durability in ("fused", "split"):
        with home() as h:
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--durability", durability, "--input",
                         json.dumps({"name": SECRET, "n": 1})), 0)
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "b", "--input", '{"n": 2}'), 0)
            proved = expect(h.run("verify", "a", "--json"), 0).json()
            assert proved["redacted"] == [], proved
            events = expect(h.run("events", "a", "--json"), 0).json()["events"]
            holders = [e for e in events if SECRET in json.dumps(e)]
            names = [f"{e['seq']}:{f}" for e in holders for f in e["salts"]]
            assert holders[0]["seq"] == 1 and len(holders) > 2, holders

            for bad in (["1"], ["--reason", "x"], ["x", "--reason", "x"], ["0", "--reason", "x"], ["1:", "--reason", "x"],
                        ["1:nothing", "--reason", "x"], ["999", "--reason", "x"], ["1", "--all", "--reason", "x"]):
                expect(h.run("redact", "a", *bad), 2)
            expect(h.run("redact", "nobody", "1", "--reason", "x"), 3)
            assert expect(h.run("audit", "--json"), 0).json()["entries"] == []

            body = expect(h.run("redact", "a", *names, "--reason", "she asked", "--json"), 0).json()
            assert [f"{v['seq']}:{v['field']}" for v in body["redacted"]] == sorted(
                names, key=lambda n: (int(n.split(":")[0]), n)) and body["gone"] == [], body
            after = expect(h.run("events", "a", "--json"), 0).json()["events"]
            assert SECRET not in json.dumps(after)
            assert [e["hash"] for e in after] == [e["hash"] for e in events]
            assert "$redacted" in after[0]["payload"]["input"], after[0]
            proof = expect(h.run("verify", "a", "--json"), 0).json()
            assert proof["redacted"] == body["redacted"] and proof["head"] == "unsigned", proof
            said = expect(h.run("verify", "a"), 0)
            assert "redacted  event 1, input" in said.out, said
            for words in (["job", "a"], ["trace", "a"], ["replay", "a"], ["inspect", "a"], ["rebuild", "--check"]):
                assert SECRET not in expect(h.run(*words, "--json"), 0).out, words
            for file in (h.path / ".aetheris").iterdir():
                if file.is_file():
                    assert SECRET.encode() not in file.read_bytes(), file

            again = expect(h.run("redact", "a", "1:input", "--reason", "again", "--json"), 0).json()
            assert (again["gone"], again["redacted"], again["forks"]) == ([{"field": "input", "seq": 1}], [], []), again
            entries = expect(h.run("audit", "--json"), 0).json()["entries"]
            assert len(entries) == 1, entries
            one = entries[0]
            assert (one["act"], one["job"], one["seq"], one["prev_hash"]) == ("redact", "a", 1, "0" * 64), one
            beside = {"effects": 1} if durability == "split" else {}
            assert one["detail"] == {**beside, "reason": "she asked", "values": body["redacted"]}, one
            assert one["by"].startswith("cli:"), one
            assert SECRET not in json.dumps(entries)
            expect(h.run("run", "agents.yaml", "--job-id", "a"), 0)
            expect(h.run("redact", "b", "--all", "--reason", "all of it"), 0)
            expect(h.run("verify", "b"), 0)
            assert "verified" in expect(h.run("audit", "--verify"), 0).out
            assert "redact" in expect(h.run("audit"), 0).out


@test
def a_value_that_only_looks_redacted_is_one_like_any_other():
    looks = {"$redacted": "a" * 64}
    with home() as h:
        (h.path / "looks.yaml").write_text("""
aetheris: 1
tools:
  echo: { native: echo, effect: idempotent }
  fail: { native: fail, effect: read }
agents:
  a:
    plan:
      - { id: says, tool: echo, args: { $redacted: "${ .input.digest }" } }
      - { id: fails, tool: fail, needs: [says], args: { of: "${ .steps.says }" } }
""")
        expect(h.run("run", "looks.yaml", "--job-id", "j", "--input", json.dumps({"digest": "a" * 64})), 1)
        said = [e["payload"].get("result") for e in expect(h.run("events", "j", "--json"), 0).json()["events"]]
        assert looks in said, said
        for words in (["retry", "j", "--job-id", "again"], ["fork", "j", "--at", str(len(said)), "--job-id", "f"]):
            expect(h.run(*words), 0)
            expect(h.run("run", "looks.yaml", "--job-id", words[-1]), 1)
        for job in ("j", "again", "f"):
            proof = expect(h.run("verify", job, "--json"), 0).json()
            assert proof["redacted"] == [] and " the plan" in proof["proofs"]["replay"]["detail"], proof
        says = next(e["seq"] for e in expect(h.run("events", "j", "--json"), 0).json()["events"]
                    if e["payload"].get("result") == looks)
        expect(h.run("redact", "j", f"{says}:result", "--keep-forks", "--reason", "x"), 0)
        said = expect(h.run("retry", "j", "--job-id", "late"), 2)
        assert "has been erased from the log" in said.err, said
        gone = expect(h.run("verify", "j", "--json"), 0).json()["redacted"]
        assert gone == [{"field": "blind", "seq": 1}, {"field": "result", "seq": says}], gone


@test
def people_are_notified_once_of_each_thing_that_waits_for_them():
    with home() as h:
        (h.path / "people.yaml").write_text("""
aetheris: 1
tools:
  doubt: { native: doubt, effect: at_most_once }
  pay:   { native: echo, effect: idempotent, approval: required }
agents:
  a:
    plan:
      - { id: ask, wait: { type: human, key: sign } }
      - { id: pay, tool: pay, args: { x: 1 } }
      - { id: lost, tool: doubt }
""")
        told = h.path / "told"
        program = h.path / "tell me"
        program.write_text(f"#!/bin/sh\ncat >> '{told}'\necho noise\n")
        program.chmod(0o755)
        said = expect(h.run("run", "people.yaml", "--job-id", "j", "--notify", str(program)), 4)
        assert "noise" not in said.out, said
        items = {item["kind"]: item for item in map(json.loads, told.read_text().splitlines())}
        assert sorted(items) == ["approval", "in_doubt", "wait"], items
        assert all(item["job"] == "j" for item in items.values()), items
        assert items["wait"]["key"] == "sign" and items["wait"]["node_id"] == "ask", items
        expect(h.run("run", "people.yaml", "--job-id", "j", "--notify", str(program)), 4)
        assert len(told.read_text().splitlines()) == 3, "nothing new waits"
        for kind in ("wait", "approval"):
            expect(h.run(*shlex.split(items[kind]["command"])[1:]), 0)
        assert items["in_doubt"]["command"] == "aetheris job j", "no answer is a default"
        assert "aetheris resolve j " in expect(pasted(h, items["in_doubt"]["command"]), 0).out
        key = items["in_doubt"]["key"].removeprefix("resolve/")
        expect(h.run("resolve", "j", key[:12], "happened"), 0)
        expect(h.run("run", "people.yaml", "--job-id", "j"), 0)
        expect(h.run("verify", "j"), 0)

        bad = h.path / "bad"
        bad.write_text("#!/bin/sh\nexit 3\n")
        for name, why in ((str(bad), "cannot be started"), ("no-such-program-here", "cannot be started")):
            said = expect(h.run("run", "people.yaml", "--notify", name), 4)
            assert said.err.count(why) == 3, said
        bad.chmod(0o755)
        said = expect(h.run("run", "people.yaml", "--notify", str(bad)), 4)
        assert said.err.count("ended with 3") == 3, said
        expect(h.run("run", "people.yaml", "--notify", ""), 2)


@test
def a_job_that_goes_on_keeps_its_values():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--input", "{}"), 4)
        said = expect(h.run("redact", "w", "1:input", "--reason", "x"), 5)
        assert "not_settled" in said.err, said
        expect(h.run("cancel", "w"), 0)
        expect(h.run("redact", "w", "1:input", "--reason", "x"), 0)
        expect(h.run("verify", "w"), 0)


@test
def the_audit_log_tells_of_forks_rebuilds_and_losses_and_each_change_of_it_is_found():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("fork", "a", "--at", "2", "--job-id", "f"), 0)
        backup = h.path / "backup.db"
        shutil.copy(h.store, backup)
        run_sql(h.store, "UPDATE jobs SET priority = 9 WHERE job_id = 'a'")
        expect(h.run("rebuild", "--check"), 6)
        expect(h.run("rebuild"), 0)
        expect(h.run("rebuild"), 0)  # nothing to do, nothing to tell
        acts = [(e["act"], e["job"]) for e in expect(h.run("audit", "--json"), 0).json()["entries"]]
        assert acts == [("fork", "a"), ("rebuild", "")], acts
        expect(h.run("cancel", "f"), 0)
        shutil.copy(backup, h.store)
        expect(h.run("doctor", "--accept-rollback"), 0)
        body = expect(h.run("audit", "--json"), 0).json()
        assert [e["act"] for e in body["entries"]] == ["fork", "accept_rollback"], body
        page = expect(h.run("audit", "--limit", "1", "--json"), 0).json()
        assert page["next"] == 1 and len(page["entries"]) == 1, page
        page = expect(h.run("audit", "--after", "1", "--json"), 0).json()
        assert page["next"] is None and page["entries"] == body["entries"][1:], page
        assert expect(h.run("audit", "--verify", "--json"), 0).json()["entries"] == 2
        whole = (h.store).read_bytes()
        for damage, head in (("UPDATE audit SET body = replace(body, 'cli:', 'cly:') WHERE seq = 1", "altered"),
                             ("UPDATE audit SET hash = zeroblob(32) WHERE seq = 2", "altered"),
                             ("DELETE FROM audit WHERE seq = 1", "altered"),
                             ("DELETE FROM audit WHERE seq = 2", "truncated"),
                             ("DELETE FROM audit", "truncated"),
                             ("DELETE FROM meta WHERE key = 'audit_head'", "altered")):
            run_sql(h.store, damage)
            said = expect(h.run("audit", "--verify", "--json"), 6)
            assert said.json()["head"] == head and not said.json()["ok"], (damage, said)
            assert "NOT verified" in expect(h.run("audit", "--verify"), 6).out
            h.store.write_bytes(whole)
        expect(h.run("audit", "--verify"), 0)


@test
def what_jobs_say_cannot_harm_a_terminal():
    with home() as h:
        evil = json.dumps({"n": 1, "x": "\x1b[2Jboo\x07\u202e"})
        said = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", evil), 0)
        for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["jobs"]):
            said = expect(h.run(*words), 0)
            for bad in ("\x1b", "\x07", "\u202e"):
                assert bad not in said.out + said.err, (words, said)


@test
def json_parses_to_the_very_value_and_cannot_harm_a_terminal():
    with home() as h:
        given = {"n": 1, "x": "\x1b[2Jboo\x07\x7f\u0085\u202e\u2066\u200f tab\t line\n \u00e9 \U0001F642"}
        evil = json.dumps(given)
        outs = [expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", evil), 0).out]
        assert json.loads(outs[0]) == given, outs
        for words in (["run", "agents.yaml", "--job-id", "a", "--json"], ["job", "a", "--json"],
                      ["events", "a", "--json"], ["events", "a", "-f", "--json"], ["trace", "a", "--json"],
                      ["replay", "a", "--json"], ["verify", "a", "--json"]):
            outs.append(expect(h.run(*words), 0).out)
            for line in outs[-1].splitlines() if "-f" in words else [outs[-1]]:
                json.loads(line)
        assert json.loads(outs[1])["result"] == given and json.loads(outs[2])["input"] == given
        for out in outs:
            for bad in ("\x1b", "\x07", "\x7f", "\u0085", "\u202e", "\u2066", "\u200f"):
                assert bad not in out, out
            assert "\\x" not in out, out
        line = re.search(r"^  result +(.*)$", expect(h.run("job", "a"), 0).out, re.M)[1]
        assert json.loads(line) == given, line


@test
def output_that_cannot_be_written_is_7_and_said():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":1}'), 0)

        def full(*words, out="/dev/full"):
            with open(out, "wb") as file:
                done = subprocess.run([h.program, *words], cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
            return Said(done.returncode, "", done.stderr)

        for words in (["run", "agents.yaml", "echo", "--job-id", "b", "--input", '{"n":2}'], ["job", "a"],
                      ["job", "a", "--json"], ["jobs"], ["events", "a", "-f"], ["--help"], ["version"],
                      ["check", "agents.yaml"]):
            said = expect(full(*words), 7)
            assert "No space left on device" in said.err and said.err.count("error:") == 1, said
        assert expect(h.run("run", "agents.yaml", "--job-id", "b"), 0).json() == {"n": 2}  # the job itself was done
        expect(full("run", "agents.yaml", "fails", "--json"), 1)  # what is worse is said
        expect(full("job", "nobody", "--json"), 3)
        reader, writer = os.pipe()  # whoever read has gone: as every program in a pipe, without a word
        os.close(reader)
        try:
            done = subprocess.run([h.program, "events", "a"], cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=writer,
                                  stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        finally:
            os.close(writer)
        assert done.returncode == 128 + signal.SIGPIPE and done.stderr == "", done
        # A stdout that was never open is not taken for one of our own files.
        done = subprocess.run(["sh", "-c", 'exec "$0" run agents.yaml echo --input \'{"n":3}\' >&-', h.program], cwd=h.path,
                              env=h.env, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        assert done.returncode == 7, done
        expect(h.run("run", "agents.yaml", "echo"), 0)


# ---------------------------------------------------------------- acting

@test
def a_job_that_waits_is_4_and_says_how_to_answer():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        assert said.out == ""
        assert "aetheris signal w go-w" in said.err and "aetheris run agents.yaml --job-id w" in said.err
        body = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--json"), 4).json()
        assert body["status"] == "waiting" and body["waiting"]["correlation_key"] == "go-w"
        said = expect(h.run("signal", "w", "wrong", "1", "--json"), 2)
        assert said.json()["code"] == "wait_mismatch" and said.json()["status"] == 400
        expect(h.run("signal", "w", "go-w", "not json"), 2)
        said = expect(h.run("signal", "w", "go-w", '{"yes":true}', "--json"), 0)
        assert said.json()["delivered"] is True
        assert expect(h.run("job", "w", "--json"), 0).json()["status"] == "queued"
        said = expect(h.run("signal", "w", "go-w", '{"yes":true}', "--json"), 0).json()
        assert said["duplicate"] is True and said["applied"] is True
        assert expect(h.run("run", "agents.yaml", "--job-id", "w"), 0).json() == {"yes": True}
        said = expect(h.run("signal", "w", "go-w", '{"yes":false}', "--json"), 5).json()
        assert said["duplicate"] is True and said["applied"] is False


@test
def cancel_ends_a_job_once():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        expect(h.run("cancel", "w", "--reason", "changed my mind"), 0)
        body = expect(h.run("job", "w", "--json"), 0).json()
        assert body["status"] == "cancelled"
        assert expect(h.run("cancel", "w", "--json"), 5).json()["code"] == "job_terminal"
        expect(h.run("run", "agents.yaml", "--job-id", "w"), 1)


SIDES = r"""
aetheris: 1
tools:
  # Each writes a line `KEY WORD` to its folder.
  book:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> done.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
    local: true
    on_in_doubt: probe
    probe: { tool: look, args: { key: "${ .call.external_key }" }, happened: "${ .result.found }" }
    compensate: { tool: unbook, args: { what: "${ .result }" } }
  look:
    command: ["sh", "-c", "cat > /dev/null; grep -sF \"$0 \" done.txt | awk 'NR == 1 { f = 1; printf \"%s\", \"{\\\"found\\\":\\\"\" $2 \"\\\"}\" } END { if (!f) print \"{}\" }'", "${ .args.key }"]
    effect: read
    output: json
  unbook:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY un$0\" >> done.txt", "${ .args.what }"]
    effect: idempotent
agents:
  trip:
    plan:
      - { id: a, tool: book, args: { what: flight } }
      - { id: b, tool: book, needs: [a], args: { what: hotel } }
      - { id: w, wait: { type: signal, key: paid }, needs: [b] }
"""


def side_words(h):
    file = h.path / "done.txt"
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


@test
def a_cancel_undoes_what_was_done_and_says_so():
    with home() as h:
        (h.path / "agents.yaml").write_text(SIDES)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t"), 0)
        assert expect(h.run("job", "t", "--json"), 0).json()["status"] == "queued", "nobody has undone it yet"
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 1)
        assert side_words(h) == ["flight", "hotel", "unhotel", "unflight"]
        body = expect(h.run("job", "t", "--json"), 0).json()
        assert body["status"] == "cancelled"
        assert [one["node_id"] for one in body["compensated"]] == ["b", "a"]
        nodes = expect(h.run("trace", "t", "--json"), 0).json()["nodes"]
        assert [node["world"] for node in nodes] == ["rolled back", "rolled back", "unchanged"]
        assert "undo: unbook" in expect(h.run("trace", "t"), 0).out
        expect(h.run("verify", "t"), 0)


@test
def a_compensation_that_failed_is_not_said_to_be_a_call_of_which_nobody_knows():
    with home() as h:
        failing = SIDES.replace('echo \\"$AETHERIS_IDEMPOTENCY_KEY un$0\\" >> done.txt', "exit 9")
        assert failing != SIDES
        (h.path / "agents.yaml").write_text(failing)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t"), 0)
        parked = expect(h.run("run", "agents.yaml", "--job-id", "t"), 4).err
        listed = expect(h.run("jobs", "--in-doubt"), 0)
        for text in (parked, listed.out):
            assert "is unknown" not in text and 'compensation by tool "unbook" is not confirmed: it failed (exit_9)' in text, text
        for text in (parked, listed.out):
            assert "replace RESULT with the call's result as JSON" in text, text


@test
def a_cancel_without_compensation_leaves_and_lists_it():
    with home() as h:
        (h.path / "agents.yaml").write_text(SIDES)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t", "--no-compensate"), 0)
        body = expect(h.run("job", "t", "--json"), 0).json()
        assert body["status"] == "cancelled" and body["compensated"] == []
        assert [one["node_id"] for one in body["uncompensated"]] == ["b", "a"]
        assert side_words(h) == ["flight", "hotel"]


@test
def a_job_killed_at_every_point_asks_and_undoes_and_does_nothing_twice():
    for n in range(1, 100):
        with home() as h:
            (h.path / "agents.yaml").write_text(SIDES)
            killed = 0
            for step in ("run", "cancel", "run"):
                words = ("cancel", "t") if step == "cancel" else ("run", "agents.yaml", "--job-id", "t")
                said = h.run(*words, env={"AETHERIS_FAILPOINTS": f"append.after=exit@{n};tool.after=exit@{n}"})
                if said.code == 137:
                    killed += 1
                    said = h.run(*words)
                assert said.code in (0, 1, 4, 5), said
            status = expect(h.run("job", "t", "--json"), 0).json()
            assert status["status"] == "cancelled", status
            assert side_words(h)[:2] == ["flight", "hotel"], side_words(h)
            keys = [line.split()[0] for line in (h.path / "done.txt").read_text().splitlines()]
            assert sorted(set(side_words(h))) == ["flight", "hotel", "unflight", "unhotel"]
            assert len(set(keys)) == 4, keys
            expect(h.run("verify", "t"), 0)
            if killed == 0:
                return
    raise AssertionError("it never came to an end")


# The tool `stamp` counts its calls in calls.txt, and fails as long as there is no file `mended`.
FORKS = r"""
aetheris: 1
tools:
  stamp:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> calls.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
  fragile:
    command: ["sh", "-c", "cat > /dev/null; test -e mended || exit 3; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> calls.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
agents:
  trip:
    plan:
      - { id: a, tool: stamp, args: { what: "one ${ .input.n }" } }
      - { id: b, tool: fragile, needs: [a], args: { what: "two ${ .steps.a }" } }
      - { id: c, tool: stamp, needs: [b], args: { what: "three ${ .steps.b } ${ .input.n }" } }
    output: "${ .steps.c }"
  asks:
    plan:
      - { id: a, tool: stamp, args: { what: first } }
      - { id: w, wait: { type: signal, key: go }, needs: [a] }
      - { id: z, tool: stamp, needs: [w], args: { what: old } }
    output: "${ .steps.z }"
  each:
    plan:
      - { id: labels, map: [x, y], do: { tool: stamp, args: { what: "${ .item }" } } }
"""
REPLANNED = FORKS.replace("what: old", "what: \"new ${ .steps.w }\"")


def stamped(h):
    """What was called: one line of words for each."""
    file = h.path / "calls.txt"
    return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def last_seq(h, job):
    return expect(h.run("events", job, "--json"), 0).json()["events"][-1]["seq"]


@test
def a_failed_job_is_tried_again_when_its_tool_is_mended():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "trip", "--job-id", "t", "--input", '{"n":"1"}'), 1)
        assert stamped(h) == ["one 1"]
        (h.path / "mended").touch()
        said = expect(h.run("retry", "t", "--job-id", "t2"), 0)
        assert said.out == "t2\n" and "aetheris run FILE --job-id t2" in said.err, said
        assert expect(h.run("retry", "t", "--job-id", "t2"), 0).out == "t2\n", "the same again is the same job"
        body = expect(h.run("job", "t2", "--json"), 0).json()
        assert body["status"] == "queued" and body["forked_from"]["job_id"] == "t", body
        expect(h.run("run", "agents.yaml", "--job-id", "t2"), 0)
        assert stamped(h) == ["one 1", "two one 1", "three two one 1 1"]
        keys = [line.split()[0] for line in (h.path / "calls.txt").read_text().splitlines()]
        assert len(set(keys)) == 3
        for job in ("t", "t2"):
            expect(h.run("verify", job), 0)
        nodes = expect(h.run("trace", "t2", "--json"), 0).json()["nodes"]
        assert [node["imported"] for node in nodes] == [True, False, False]
        assert "imported" in expect(h.run("trace", "t2"), 0).out
        assert expect(h.run("job", "t", "--json"), 0).json()["status"] == "failed", "the first one is not touched"
        assert expect(h.run("retry", "t2", "--json"), 2).json()["code"] == "input_invalid"
        assert expect(h.run("retry", "nobody", "--json"), 3).json()["code"] == "not_found"


@test
def a_fork_names_the_items_of_a_map_as_other_commands_do():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "each", "--job-id", "m"), 0)
        said = expect(h.run("fork", "m", "--at", "2"), 5).err
        assert "labels[0] (stamp, applied), labels[1] (stamp, applied)" in said and "labels/" not in said, said
        assert re.search(r"^labels\[0\] +stamp ", said, re.MULTILINE), said
        assert "✓ [0]" in expect(h.run("trace", "m"), 0).out


@test
def a_fork_says_what_would_happen_again_and_wants_a_yes():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        (h.path / "mended").touch()
        expect(h.run("run", "agents.yaml", "trip", "--job-id", "t", "--input", '{"n":"1"}'), 0)
        events = expect(h.run("events", "t", "--json"), 0).json()["events"]
        at = next(e["seq"] for e in events if e["type"] == "node_started" and e["payload"]["node_id"] == "b")
        said = expect(h.run("fork", "t", "--at", str(at), "--json"), 5).json()
        assert said["code"] == "effects_repeated", said
        assert [(e["node_id"], e["state"]) for e in said["effects"]] == [("b", "committed"), ("c", "committed")]
        said = expect(h.run("fork", "t", "--at", str(at)), 5)
        assert "--repeat-effects" in said.err and "b (fragile, applied)" in said.err, said
        sent = {e["payload"]["node_id"]: e["seq"] for e in events if e["type"] == "tool_invocation_started"}
        assert re.search(rf"^b +\w+ +at_most_once +applied +\w+ +{sent['b']}$", said.err, re.M), said
        assert expect(h.run("jobs", "--json"), 0).json()["jobs"][0]["id"] == "t", "nothing was made"
        one = ["--repeat", said_step(h, "t", "b")]
        expect(h.run("fork", "t", "--at", str(at), *one), 5)
        both = one + ["--repeat", said_step(h, "t", "c")]
        expect(h.run("fork", "t", "--at", str(at), *both, "--job-id", "f"), 0)
        expect(h.run("fork", "t", "--at", str(at), "--job-id", "f"), 0)
        assert expect(h.run("fork", "t", "--at", "2", "--job-id", "f", "--json"), 5).json()["code"] == "already_exists"
        key = ["--idempotency-key", "k", "--repeat-effects", "--input", '{"n":"2"}', "--json"]
        keyed = expect(h.run("fork", "t", "--at", str(at), *key), 0).json()["id"]
        assert expect(h.run("fork", "t", "--at", str(at), *key), 0).json()["id"] == keyed
        assert expect(h.run("run", "agents.yaml", "--job-id", "f"), 0).out == "three two one 1 1\n"
        assert expect(h.run("run", "agents.yaml", "--job-id", keyed), 0).out == "three two one 1 2\n"
        assert stamped(h)[0] == "one 1" and stamped(h).count("one 1") == 1, stamped(h)
        assert len(stamped(h)) == 7
        # At the end of it all that stands is taken over.
        assert expect(h.run("fork", "t", "--at", str(events[-1]["seq"]), "--job-id", "e"), 0).out == "e\n"
        expect(h.run("run", "agents.yaml", "--job-id", "e"), 0)
        assert len(stamped(h)) == 7
        for job in ("f", "e", keyed):
            expect(h.run("verify", job), 0)
        assert expect(h.run("fork", "t", "--at", "999", "--json"), 2).json()["code"] == "input_invalid"
        assert expect(h.run("fork", "t", "--json"), 2).json()["code"] == "usage"


def said_step(h, job, node):
    nodes = expect(h.run("trace", job, "--json"), 0).json()["nodes"]
    return next(one["step_id"] for one in nodes if one["node_id"] == node)


@test
def a_waiting_job_gets_another_plan():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        (h.path / "new.yaml").write_text(REPLANNED)
        said = expect(h.run("plan", "w", "new.yaml", "--reason", "a better word"), 0)
        assert said.out == "plan 1 keeps a, w\n", said
        assert expect(h.run("plan", "w", "new.yaml"), 0).out == "it has this plan already\n"
        expect(h.run("run", "new.yaml", "--job-id", "w"), 4)
        expect(h.run("signal", "w", "go", '"yes"'), 0)
        assert expect(h.run("run", "new.yaml", "--job-id", "w"), 0).out == "new yes\n"
        assert stamped(h) == ["first", "new yes"]
        expect(h.run("verify", "w"), 0)
        events = expect(h.run("events", "w", "--json"), 0).json()["events"]
        decision = next(e["payload"] for e in events if e["payload"].get("kind") == "re_plan")
        assert decision["reason"] == "a better word" and decision["by"].startswith("cli")
        assert expect(h.run("job", "w", "--json"), 0).json()["plan"] == 1
        assert expect(h.run("plan", "w", "agents.yaml", "--json"), 5).json()["code"] == "job_terminal"


@test
def another_plan_must_name_the_effects_that_it_lets_go():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        (h.path / "other.yaml").write_text(FORKS.replace("what: first", "what: second"))
        said = expect(h.run("plan", "w", "other.yaml", "--json"), 2).json()
        assert said["code"] == "plan_invalid" and ": a;" in said["detail"], said
        expect(h.run("plan", "w", "other.yaml", "--drop", "nobody"), 2)
        said = expect(h.run("plan", "w", "other.yaml", "--drop", "a", "--json"), 0).json()
        assert said["drop"] == ["a"] and said["carried"] == [], said
        said = expect(h.run("run", "other.yaml", "--job-id", "w"), 4)
        assert "signal w 'go#1'" in said.err, "the wait begins anew, under a key of its own"
        expect(h.run("signal", "w", "go#1", "1"), 0)
        expect(h.run("run", "other.yaml", "--job-id", "w"), 0)
        assert stamped(h) == ["first", "second", "old"]
        expect(h.run("verify", "w"), 0)
        (h.path / "broken.yaml").write_text(FORKS.replace("needs: [w]", "needs: [nobody]"))
        said = expect(h.run("plan", "w", "broken.yaml", "--json"), 2).json()
        assert said["code"] == "plan_invalid" and said["faults"], said
        (h.path / "none.yaml").write_text(FORKS.replace("  asks:", "  other:"))
        assert expect(h.run("plan", "w", "none.yaml", "--json"), 2).json()["code"] == "plan_invalid"


@test
def a_job_that_is_held_takes_another_plan_between_two_calls():
    with home() as h:
        def file(last):
            (h.path / "held.yaml").write_text(AGENTS.replace("  holds_and_asks:", """  held:
    plan:
      - { id: h, tool: hold }
      - { id: z, tool: echo, needs: [h], args: { word: """ + last + """ } }
    output: "${ .steps.z.word }"
  holds_and_asks:"""))
        file("old")
        process = h.start("run", "held.yaml", "held", "--job-id", "j")
        h.began()
        file("new")
        said = expect(h.run("plan", "j", "held.yaml", "--json"), 5).json()
        assert said["code"] == "call_pending", said
        expect(h.run("pause", "j"), 0)
        h.go()
        expect(h.end(process), 4)
        expect(h.run("plan", "j", "held.yaml"), 0)
        expect(h.run("resume", "j"), 0)
        assert expect(h.run("run", "held.yaml", "--job-id", "j"), 0).out == "new\n"
        expect(h.run("verify", "j"), 0)


@test
def a_fork_and_a_new_plan_killed_at_every_point_are_there_or_not():
    for n in range(1, 100):
        with home() as h:
            (h.path / "agents.yaml").write_text(FORKS.replace("at_most_once", "idempotent"))
            (h.path / "new.yaml").write_text(REPLANNED.replace("at_most_once", "idempotent"))
            expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
            killed = 0
            at = str(last_seq(h, "w"))
            for words in (("fork", "w", "--at", at, "--job-id", "f"), ("plan", "f", "new.yaml"),
                          ("signal", "f", "go", '"yes"', "--buffer"), ("run", "new.yaml", "--job-id", "f", "--only")):
                said = h.run(*words, env={"AETHERIS_FAILPOINTS": f"append.before=exit@{n};append.after=exit@{n}"})
                if said.code == 137:
                    killed += 1
                    said = h.run(*words)
                assert said.code == 0, (words, said)
            lines = (h.path / "calls.txt").read_text().splitlines()
            assert len(set(lines)) == 2 and sorted(set(stamped(h))) == ["first", "new yes"], lines
            for job in ("w", "f"):
                expect(h.run("verify", job), 0)
            if killed == 0:
                return
    raise AssertionError("it never came to an end")


@test
def a_cancelled_job_says_what_stays_unknown():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        assert "parked: the outcome of a call is unknown [invocation_in_doubt]; continues after aetheris resolve" in said.err, said
        unknown = "node d: the outcome of the call of tool \"doubt\" is unknown"
        said = expect(h.run("cancel", "d"), 0)
        assert said.out == "cancel requested\n" and unknown in said.err, said
        assert said.err.index("job d is cancelled\n") < said.err.index(unknown), said
        shown = expect(h.run("job", "d"), 0)
        assert "cancelled" in shown.out and unknown in shown.out, shown
        said = expect(h.run("run", "agents.yaml", "--job-id", "d"), 1)
        assert "was cancelled" in said.err and unknown in said.err, said
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "sure"), 4)
        said = expect(h.run("cancel", "sure"), 0)
        assert "is unknown" not in said.err and "is unknown" not in expect(h.run("job", "sure"), 0).out, said


@test
def another_answer_than_the_recorded_one_is_a_conflict():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        expect(h.run("signal", "a", "go-a", "1"), 0)
        assert "with the same payload" in expect(h.run("signal", "a", "go-a", "1"), 0).out
        said = expect(h.run("signal", "a", "go-a", "2"), 5)
        assert "with another payload: 1" in said.out, said
        assert expect(h.run("signal", "a", "go-a", "2", "--json"), 5).json()["applied"] is False


@test
def a_refusal_names_the_option_and_not_the_field():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        for words, name in ((["replay", "a", "--at", "999"], "--at"), (["jobs", "--limit", "0"], "--limit"),
                            (["jobs", "--cursor", "nobody"], "--cursor"), (["jobs", "--status", "odd"], "--status"),
                            (["jobs", "--stuck", "--older-than", "x"], "--older-than"), (["approvals", "--limit", "x"], "--limit"),
                            (["audit", "--after", "x"], "--after"), (["events", "a", "--class", "odd"], "--class"),
                            (["events", "a", "--type", "nonsense"], "--type"),
                            (["keys", "create", "--role", "viewer", "--expires", "soon"], "--expires"),
                            (["jobs", "--label", "team"], "--label must be NAME=VALUE")):
            said = expect(h.run(*words), 2)
            assert said.err.startswith(f"error: {name}"), (words, said)
        said = expect(h.run("events", "a", "--type", "job_complete"), 2)
        assert "did you mean job_completed?" in said.err, said
        assert len(expect(h.run("events", "a", "--type", "job_completed"), 0).out.splitlines()) == 1


@test
def a_usage_error_prints_the_usage_of_its_command():
    with home() as h:
        for words, usage in ((["retry", "a", "--nonsense"], "retry [OPTIONS] ID [FILE]"),
                             (["retry"], "retry [OPTIONS] ID [FILE]"),
                             (["budget", "a", "tokens=5"], "budget [OPTIONS] ID"),
                             (["--store", "memory:", "job"], "job [OPTIONS] ID"),
                             (["nonsense"], "[OPTIONS] COMMAND"),
                             (["--nonsense"], "[OPTIONS] COMMAND")):
            for more in ([], ["--json"]):
                said = expect(h.run(*words, *more), 2)
                assert said.err.endswith(f"\nusage: aetheris {usage}\n"), said
                assert "--help`" in said.err, said


@test
def a_name_and_value_where_none_is_taken_gets_the_right_form():
    with home() as h:
        for words, form in ((["budget", "a", "model_calls=5"], "write --model-calls 5"),
                            (["retry", "a", "agents.yaml", "n=2"], "aetheris run FILE n=2"),
                            (["fork", "a", "--at", "2", "n=2"], "--input JSON")):
            said = expect(h.run(*words), 2)
            assert form in said.err.splitlines()[0], said
        assert "write" not in expect(h.run("budget", "a", "nonsense=5"), 2).err


@test
def the_help_of_retry_is_about_retry():
    with home() as h:
        said = expect(h.run("retry", "--help"), 0).out
        assert "that event" not in said and "fork" not in said, said
        assert "event" in expect(h.run("fork", "--help"), 0).out


@test
def an_effect_that_would_be_repeated_names_the_option_that_allows_it():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        expect(h.run("cancel", "d"), 0)
        for words in ([], ["--json"]):
            said = expect(h.run("fork", "d", "--at", "2", *words), 5)
            text = said.json()["detail"] if words else said.err
            assert "allow it with --repeat-effects or --repeat STEP, or fork at a later event" in text, said
            assert "repeat_effects" not in text, said


@test
def a_rejection_prints_what_the_job_does_next():
    with home() as h:
        (h.path / "ask.yaml").write_text(
            "aetheris: 1\ntools:\n  buy: { native: echo, effect: read, approval: required }\nagents:\n"
            "  stops: { plan: [ { id: b, tool: buy } ] }\n"
            "  goes_on: { plan: [ { id: b, tool: buy, on_error: continue } ] }\n")
        for agent, then, code in (("stops", "the job fails at node b", 1),
                                  ("goes_on", "node b fails and the job continues", 0)):
            expect(h.run("run", "ask.yaml", agent, "--job-id", agent), 4)
            asked = expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]
            said = expect(h.run("reject", asked), 0)
            assert said.out == "rejected\n", said
            assert said.err.startswith(f"When a process runs the job next, {then}.\nTo continue, run: "), said
            expect(h.run("run", "ask.yaml", "--job-id", agent), code)


@test
def help_of_a_command_is_asked_for_in_two_ways_and_names_what_all_commands_take():
    with home() as h:
        for name in ("run", "jobs", "doctor", "completion"):
            said = expect(h.run(name, "--help"), 0)
            assert "--store" in said.out and "--json" in said.out and "Example: " in said.out, said
            assert expect(h.run("help", name), 0).out == said.out
        assert expect(h.run("help"), 0).out == expect(h.run("--help"), 0).out
        assert "nonsense" in expect(h.run("help", "nonsense"), 2).err


@test
def a_call_in_doubt_parks_and_is_resolved():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        assert "aetheris resolve d" in said.err, said
        body = expect(h.run("job", "d", "--json"), 0).json()
        assert body["status"] == "parked" and len(body["in_doubt"]) == 1
        doubt = body["in_doubt"][0]
        assert "the outcome of the call of tool \"doubt\" is unknown" in said.err and "replace RESULT with the call's result as JSON" in said.err, said
        for field in ("idempotency_key", "invocation_id", "external_key", "tool", "node_id", "arguments", "since"):
            assert field in doubt, field
        # Who is to find out what became of it is shown the call, wherever they look.
        call = (json.dumps(doubt["arguments"], separators=(",", ":")), doubt["external_key"], doubt["tool"])
        assert doubt["arguments"] == {"message": "lost"} and doubt["external_key"], doubt
        for seen in (said.err, expect(h.run("job", "d"), 0).out, expect(h.run("jobs", "--in-doubt"), 0).out):
            assert all(word in seen for word in call), (call, seen)
        key = doubt["idempotency_key"]
        assert expect(h.run("resolve", "d", "0" * 64, "happened", "1", "--json"), 5).json()["code"] == "not_in_doubt"
        expect(h.run("resolve", "d", key, "perhaps"), 2)
        assert expect(h.run("resolve", "d", key[:12], "happened", '{"id":9}'), 0).out.endswith('\nresult: {"id":9}\n')
        for _ in range(2):  # before the job goes on, and after it has ended
            again = expect(h.run("resolve", "d", key, "happened", '{"id":9}'), 0)
            assert re.match(r"already answered with the same payload, by .+ at 20\S+ \S+Z\n", again.out), again
            other = expect(h.run("resolve", "d", key, "happened", "1", "--json"), 5).json()
            assert other["code"] == "not_in_doubt" and re.search(
                r'happened by .+ at 20\S+Z with the result \{"id":9\}$', other["detail"]), other
            assert expect(h.run("run", "agents.yaml", "--job-id", "d"), 0).json() == {"id": 9}
        expect(h.run("verify", "d"), 0)


@contextlib.contextmanager
def slow_way(h, seconds):
    """Between the command line and the owner: what changes something arrives later. Yields when each was let through."""
    here, there = h.path / ".aetheris/aetheris.sock", h.path / "owner.sock"
    here.rename(there)
    through, door = [], socket.socket(socket.AF_UNIX)
    door.bind(str(here))
    door.listen()

    def carry(source, target, posts):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if posts and data.startswith(b"POST"):
                    time.sleep(seconds)
                    through.append(datetime.datetime.now(datetime.timezone.utc))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                caller, owner = door.accept()[0], socket.socket(socket.AF_UNIX)
                owner.connect(str(there))
                threading.Thread(target=carry, args=(caller, owner, True), daemon=True).start()
                threading.Thread(target=carry, args=(owner, caller, False), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield through
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        there.rename(here)


@test
def a_result_that_was_left_out_is_said_to_be_null():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        key = expect(h.run("job", "d", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "d", key, "happened"), 0).out == "recorded: happened\nresult: null\n"
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "e"), 4)
        key = expect(h.run("job", "e", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "e", key, "fail"), 0).out == "recorded: fail\n"


@test
def not_happened_counts_from_when_the_command_was_called():
    with home() as h:
        (h.path / "both.yaml").write_text(
            AGENTS + "  both: { plan: [ { id: d, tool: doubt, args: { message: m } }, { id: h, tool: hold } ] }\n")
        runner = h.start("run", "both.yaml", "both", "--job-id", "d")
        h.began()
        key = until(lambda: expect(h.run("job", "d", "--json"), 0).json()["in_doubt"])[0]["idempotency_key"]
        with slow_way(h, 0.5) as through:
            said = expect(h.run("resolve", "d", key, "not_happened", "--json"), 5).json()
        assert said["code"] == "not_settled", said
        looked_at = datetime.datetime.fromisoformat(re.search(r"at (\S+)Z the call", said["detail"])[1] + "+00:00")
        assert (through[0] - looked_at).total_seconds() >= 0.4, (looked_at, through)


def pasted(h, command):
    """The command as a shell takes it, with our program for `aetheris`."""
    words = shlex.split(command)
    assert words[0] == "aetheris", command
    return h.run(*words[1:])


@test
def every_command_that_is_printed_can_be_pasted():
    with home() as h:
        (h.path / "ways.yaml").write_text(
            "aetheris: 1\ntools:\n  doubt: { command: [sh, -c, \"kill -9 $$\"], effect: at_most_once, local: true }\nagents:\n"
            "  doubts: { plan: [ { id: d, tool: doubt, args: { message: lost } } ], output: \"${ .steps.d }\" }\n"
            "  asks: { plan: [ { id: w, wait: { type: signal, key: \"it's a key; $HOME\" } } ], output: \"${ .steps.w }\" }\n")
        (h.path / "else where").mkdir()
        for store in ([], ["--store", "sqlite:else where/s.db"]):
            said = expect(h.run("run", "ways.yaml", "asks", "--job-id", "w", *store), 4)
            commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", said.err)
            assert len(commands) == 2, said
            body = expect(h.run("job", "w", "--json", *store), 0).json()
            assert body["waiting"]["command"] == commands[0] == body["waits"][0]["command"], body
            trace = expect(h.run("trace", "w", *store), 0).out
            assert commands[0] in trace, trace
            for command in commands:
                expect(pasted(h, command), 0)
            for how in range(3):
                id = f"d{how}"
                said = expect(h.run("run", "ways.yaml", "doubts", "--job-id", id, *store), 4)
                commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", said.err)
                assert len(commands) == 4, said
                assert [shlex.split(c)[4] for c in commands[:3]] == ["happened", "not_happened", "fail"]
                body = expect(h.run("job", id, "--json", *store), 0).json()
                assert body == expect(h.run("run", "ways.yaml", "--job-id", id, "--json", *store), 4).json()
                assert body["in_doubt"][0]["commands"] == commands[:3], body
                assert body["parked"]["command"] == commands[0]
                trace = expect(h.run("trace", id, *store), 0).out
                for command in commands[:3]:
                    assert command in trace, trace
                if how == 0:
                    assert pasted(h, commands[0]).code == 2, "a form that is not filled in is rejected"
                expect(pasted(h, commands[how].replace(" RESULT", " '{}'")), 0)
                assert pasted(h, commands[3]).code == [0, 4, 1][how]


@test
def people_are_asked_and_answer():
    with home() as h:
        (h.path / "people.yaml").write_text(
            "aetheris: 1\ntools:\n  buy: { native: echo, approval: \"${ .args.n > 1 }\" }\nagents:\n"
            "  buys: { plan: [ { id: b, tool: buy, args: { n: 5 } } ], output: \"${ .steps.b }\" }\n"
            "  hears:\n    plan:\n      - { id: m, wait: { type: message, channel: c } }\n"
            "      - { id: s, needs: [m], wait: { type: signal, key: k } }\n    output: \"${ .steps }\"\n")
        expect(h.run("approvals", "--json"), 3)
        said = expect(h.run("run", "people.yaml", "buys", "--job-id", "b"), 4)
        commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", said.err)
        assert [shlex.split(c)[1] for c in commands] == ["approve", "reject", "run"], said
        asked = expect(h.run("approvals", "--json"), 0).json()["approvals"]
        assert [a["kind"] for a in asked] == ["call"] and asked[0]["arguments"] == {"n": 5}, asked
        for seen in (said.err, expect(h.run("job", "b"), 0).out):
            assert "approval of the call of tool \"buy\"" in seen and 'arguments: {"n":5}' in seen, seen
            assert "aetheris approvals\n" in seen and f"aetheris approve {asked[0]['id']}\n" in seen, seen
        wait, = expect(h.run("job", "b", "--json"), 0).json()["waits"]
        assert (wait["tool"], wait["arguments"], wait["approval_id"], wait["answer"]) == ("buy", {"n": 5}, asked[0]["id"], "decision"), wait
        assert commands[0] in expect(h.run("trace", "b"), 0).out
        expect(h.run("pause", "b"), 0)
        assert expect(h.run("job", "b", "--json"), 0).json()["parked"]["until"] == "resume"
        expect(pasted(h, commands[0]), 0)
        expect(h.run("reject", asked[0]["id"]), 5)
        expect(h.run("approve", "b.0123456789abcdef"), 3)
        expect(h.run("resume", "b"), 0)
        expect(h.run("resume", "b"), 5)
        assert json.loads(expect(h.run("run", "people.yaml", "--job-id", "b"), 0).out) == {"n": 5}
        expect(h.run("run", "people.yaml", "hears", "--job-id", "h"), 4)
        expect(h.run("signal", "h", "k", "7"), 2)
        expect(h.run("signal", "h", "k", "7", "--buffer"), 0)
        expect(h.run("message", "h", "c", "8"), 0)
        assert json.loads(expect(h.run("run", "people.yaml", "--job-id", "h"), 0).out) == {"m": 8, "s": 7}


@test
def a_job_that_rests_at_once_is_seen_all_the_same():
    with home() as h:
        for n in range(25):  # it may park before `run` looks at it for the first time
            said = expect(h.run("run", "agents.yaml", "doubts", "--only", "--job-id", f"d{n}"), 4)
            assert f"aetheris resolve d{n} " in said.err, said


@test
def a_recovered_job_that_blocks_is_told_with_its_answer():
    with home() as h:
        for agent, id in (("doubts", "left"), ("asks", "asked"), ("echo", "fine"), ("sleeps", "slept")):
            expect(h.run("run", "agents.yaml", agent, "--detach", "--job-id", id), 0)
        said = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}'), 0)
        assert said.json() == {"n": 1}
        lines = [line for line in said.err.splitlines() if "answer" in line]
        assert len(lines) == 2, said
        parked = next(line for line in lines if "job left is parked" in line)
        waiting = next(line for line in lines if "job asked is waiting" in line)
        expect(pasted(h, re.search(r"aetheris signal \S+ \S+ '[^']*'", waiting)[0]), 0)
        expect(pasted(h, re.search(r"aetheris resolve \S+ \S+ happened ", parked)[0] + "'{}'"), 0)
        said = expect(h.run("run", "agents.yaml", "echo", "--json"), 0)  # nothing blocks any more
        assert "answer" not in said.err
        for id in ("left", "asked", "fine"):
            assert expect(h.run("job", id, "--json"), 0).json()["status"] == "completed", id


# ---------------------------------------------------------------- two terminals

@test
def a_running_job_is_seen_and_signalled_from_a_second_terminal():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds_and_asks", "--job-id", "r")
        h.began()
        sock = h.path / ".aetheris/aetheris.sock"
        mode = sock.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, oct(mode)
        watcher = h.start("events", "r", "-f", "--json")
        assert expect(h.run("job", "r", "--json"), 0).json()["status"] == "running"
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["r"]
        for words in (["trace", "r"], ["replay", "r"], ["verify", "r"], ["doctor"]):
            expect(h.run(*words), 0)
        body = until(lambda: h.run("signal", "r", "k", '"hi"', "--json"))
        assert body.code == 0 and (body.json().get("accepted") or body.json().get("delivered")), body
        again = h.start("run", "agents.yaml", "--job-id", "r")
        h.go()
        assert expect(h.end(again), 0).out == "hi\n"
        assert expect(h.end(runner), 0).out == "hi\n"
        seen = [json.loads(line) for line in expect(h.end(watcher), 0).out.splitlines()]
        assert seen == expect(h.run("events", "r", "--json"), 0).json()["events"]
        assert not sock.exists()


@test
def a_running_job_is_cancelled_from_a_second_terminal():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--json")
        h.began()
        expect(h.run("cancel", "r"), 0)
        h.go()
        said = expect(h.end(runner), 1)
        assert said.json()["status"] == "cancelled"
        expect(h.run("verify", "r"), 0)


@test
def no_command_is_printed_that_cannot_work():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "asks", "--store", "memory:", "--job-id", "m"), 4)
        assert "aetheris signal" not in said.err and "then:" not in said.err and "the memory store ends with this process" in said.err, said
        said = expect(h.run("aproove", "x"), 2)
        assert "did you mean approve?" in said.err, said
        assert "did you mean" not in expect(h.run("xyzzy"), 2).err
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "e"), 0)
        said = expect(h.run("fork", "e", "--at", "0"), 2)
        assert "--at must be at least 1" in said.err and "missing" not in said.err, said
        # The same refusal for whatever comes too late, also for the plan that it had.
        for words in (("plan", "e", "agents.yaml"), ("pause", "e"), ("cancel", "e"), ("budget", "e", "--tokens", "4")):
            assert "[job_terminal]" in expect(h.run(*words), 5).err, words
        said = expect(h.run("budget", "e", "--note", "x"), 2)
        assert "--model-calls" in said.err and "aetheris job e" in said.err, said


@test
def a_job_left_with_a_busy_owner_is_run_by_it():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.began()
        said = expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "e", "--input", '{"n":1}'), 0)
        assert said.out == "e\n"
        until(lambda: h.run("job", "e", "--json").json()["status"] == "completed")
        assert expect(h.run("run", "agents.yaml", "--job-id", "e"), 0).json() == {"n": 1}
        h.go()
        expect(h.end(runner), 0)


@test
def the_socket_speaks_http():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.began()

        class Unix(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(PATIENCE)
                self.sock.connect(str(h.path / ".aetheris/aetheris.sock"))

        def ask(method, path, body=None, headers=None):
            connection = Unix("localhost")
            connection.request(method, path, body and json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer, json.loads(answer.read())

        answer, body = ask("GET", "/api/health")
        assert answer.status == 200 and body["status"] == "ok"
        answer, body = ask("POST", "/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 3}},
                           {"Idempotency-Key": "k"})
        assert answer.status == 201 and body["status"] == "completed" and body["result"] == {"n": 3}, body
        assert answer.getheader("Location") == "/api/jobs/" + body["id"]
        answer, again = ask("POST", "/api/jobs", {"agent": "echo", "input": {"n": 3}}, {"Idempotency-Key": "k"})
        assert answer.status == 200 and again["id"] == body["id"]
        answer, body = ask("POST", "/api/jobs", {"agent": "echo", "input": {"n": 4}}, {"Idempotency-Key": "k"})
        assert answer.status == 409 and body["code"] == "idempotency_conflict"
        assert answer.getheader("Content-Type") == "application/problem+json"
        answer, body = ask("POST", "/api/jobs", {"agent": "echo", "input": {"n": "x"}})
        assert answer.status == 400 and body["code"] == "input_invalid"
        answer, body = ask("GET", "/api/jobs/r/events?limit=2")
        assert len(body["events"]) == 2 and body["next"] == 2
        answer, body = ask("GET", "/api/jobs/nobody")
        assert answer.status == 404
        answer, body = ask("DELETE", "/api/jobs/r")
        assert answer.status == 405
        connection = Unix("localhost")
        connection.request("GET", "/api/jobs/r/events", headers={"Accept": "text/event-stream", "Last-Event-ID": "2"})
        stream = connection.getresponse()
        assert stream.getheader("Content-Type").startswith("text/event-stream")
        first = stream.readline().decode()
        assert first == "id: 3\n", first
        h.go()
        rest = stream.read().decode()
        assert "event: job_completed" in rest
        expect(h.end(runner), 0)


@test
def a_secret_too_short_to_be_hidden_is_warned_about():
    with home() as h:
        (h.path / "s.yaml").write_text(
            "aetheris: 1\ntools:\n"
            "  t: { command: [\"sh\", \"-c\", \"echo $A-$B\"], env: { A: \"secret:PIN\", B: \"secret:TOKEN\" }, effect: read }\n"
            "agents:\n  s: { plan: [ { id: t, tool: t } ], output: \"${ .steps.t }\" }\n")
        said = expect(h.run("run", "s.yaml", env={"PIN": "123", "TOKEN": "12345"}), 0)
        assert said.out == "123-[secret TOKEN]\n", said
        warned = [line for line in said.err.splitlines() if "warning" in line]
        assert len(warned) == 1 and "PIN" in warned[0] and "123" not in warned[0] and "TOKEN" not in warned[0], said
        said = expect(h.run("run", "s.yaml", env={"PIN": "1234", "TOKEN": "12345"}), 0)
        assert "warning" not in said.err, said


# ---------------------------------------------------------------- crashes and stops

@test
def a_killed_run_goes_on_where_it_stopped():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.began()
        runner.kill()
        runner.wait()
        h.go()
        left = expect(h.run("job", "r", "--json"), 0).json()
        assert left["status"] == "running" and left["unattended"]["commands"][0] == "aetheris run FILE --job-id r", left
        seen = expect(h.run("job", "r"), 0).out
        assert f":{runner.pid}, its last worker, is gone" in seen and "aetheris run FILE --job-id r\n" in seen, seen
        stuck = expect(h.run("jobs", "--stuck"), 0).out
        assert "no_worker: no process runs jobs of this store" in stuck and "1970" not in stuck, stuck
        assert "aetheris run FILE --job-id r\n" in stuck and "aetheris worker" not in stuck, stuck
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert expect(h.run("job", "r", "--json"), 0).json()["unattended"] is None
        assert "no stuck jobs" in expect(h.run("jobs", "--stuck"), 0).err
        events = expect(h.run("events", "r", "--json"), 0).json()["events"]
        assert sum(e["type"] == "job_running" for e in events) == 2
        assert sum(e["type"] == "job_created" for e in events) == 1
        expect(h.run("verify", "r"), 0)


CHARGES = r"""
aetheris: 1
outbound: { allow: ["127.0.0.1"] }
tools:
  charge:
    http: { method: POST, url: "SHOP/charges" }
    effect: idempotent
    timeout: 20s
    changes:
      - { type: charge, id: "${ .result.id }", op: create, version: "${ .result.version }", etag: "${ .result.etag }", ref: "${ .result.url }" }
    VERIFY
  hold:
    command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo held"]
    effect: read
    timeout: 60s
agents:
  sell:
    CONFIRM
    plan:
      - { id: pay, tool: charge, args: { amount: 5 } }
      - { id: h, tool: hold, needs: [pay] }
    output: "${ .steps.h }"
"""


class Shop:
    """The shop of the examples, on a port of its own."""

    def __init__(self, h):
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/shop/shop.py"), "--port", "0", "--journal", str(h.path / "journal")],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        h.started.append(self.process)
        self.address = self.process.stdout.readline().split()[1]

    def change(self, path):
        """Somebody else changes a charge."""
        connection = http.client.HTTPConnection(*self.address.split(":"), timeout=PATIENCE)
        connection.request("POST", "/control", json.dumps({"change": path}))
        assert connection.getresponse().status == 200
        connection.close()

    def charges(self, h):
        lines = map(json.loads, (h.path / "journal").read_text().splitlines())
        return [line for line in lines if line["kind"] == "effect" and line["route"] == "POST /charges"]


@contextlib.contextmanager
def charged_and_killed(verify, confirm="", change=True):
    """A job that has charged and was killed in its next call; then somebody else changed the charge."""
    with home() as h:
        shop = Shop(h)
        (h.path / "agents.yaml").write_text(CHARGES.replace("SHOP", "http://" + shop.address)
                                            .replace("VERIFY", verify).replace("CONFIRM", confirm))
        runner = h.start("run", "agents.yaml", "--job-id", "c")
        h.began()
        runner.kill()
        runner.wait()
        changed = [e["payload"] for e in expect(h.run("events", "c", "--json"), 0).json()["events"]
                   if e["type"] == "state_changed"]
        assert len(changed) == 1, changed
        if change:
            shop.change("/charges/" + changed[0]["resource_id"])
        h.go()
        yield h, shop
        assert len(shop.charges(h)) == 1, "charged twice"
        expect(h.run("verify", "c"), 0)


def verdicts(h):
    events = expect(h.run("events", "c", "--json"), 0).json()["events"]
    return [e["payload"]["verdict"] for e in events if e["type"] == "confirmation_checked"]


@test
def after_a_kill_a_charge_that_somebody_changed_fails_the_job():
    with charged_and_killed('verify: { http_etag: "${ .change.ref }" }') as (h, _):
        said = expect(h.run("run", "agents.yaml", "--job-id", "c"), 1)
        assert "confirmation_failed" in said.err, said
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert job["error"]["code"] == "confirmation_failed", job
        assert verdicts(h) == ["mismatch"]
        assert (h.path / "began.txt").read_text() == "began\n", "nothing new begins"
        assert "mismatch" in expect(h.run("trace", "c"), 0).out


@test
def after_a_kill_a_charge_that_is_as_it_was_is_confirmed():
    with charged_and_killed('verify: { http_etag: "${ .change.ref }" }', change=False) as (h, _):
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        assert verdicts(h) == ["match"]
        assert "match" in expect(h.run("trace", "c"), 0).out


@test
def after_a_kill_a_change_can_be_warned_about_only():
    with charged_and_killed('verify: { http_json: { url: "${ .change.ref }", field: "${ .result.version }" } }',
                            "confirm: warn") as (h, _):
        said = expect(h.run("run", "agents.yaml", "--job-id", "c"), 0)
        assert said.out == "held\n" and "is not as the job left it" in said.err, said
        assert verdicts(h) == ["mismatch"]


@test
def after_a_kill_a_person_is_asked_about_a_change():
    verify = 'verify: { http_etag: "${ .change.ref }", mode: human }'
    with charged_and_killed(verify) as (h, shop):
        said = expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        commands = re.findall(r"aetheris (resolve c \S+ (?:accept|fail))", said.err)
        assert len(commands) == 2, said
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert (job["status"], job["parked"]["until"]) == ("parked", "confirmation"), job
        assert job["parked"]["reason"] == "replay_verification_human_required"
        asked = expect(h.run("approvals", "--json"), 0).json()["approvals"]
        assert [(a["kind"], a["tool"], a["node_id"]) for a in asked] == [("confirmation", "charge", "pay")], asked
        assert "which has changed" in expect(h.run("approvals"), 0).out
        assert "not_paused" in expect(h.run("resume", "c"), 5).err
        expect(h.run(*commands[0].split(), "--note", "it was me"), 0)
        assert "already answered with the same payload, by " in expect(h.run(*commands[0].split()), 0).out
        assert "accept by " in expect(h.run(*commands[1].split()), 5).err
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        decisions = [e["payload"] for e in expect(h.run("events", "c", "--json"), 0).json()["events"]
                     if e["type"] == "decision_recorded" and e["payload"]["kind"] == "confirmation"]
        said = [d for d in decisions if d.get("state") == "accept"]
        assert len(said) == 1 and said[0]["reason"] == "it was me" and said[0]["by"] and said[0]["at"], decisions
    with charged_and_killed(verify) as (h, shop):
        expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        one = expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]
        expect(h.run("reject", one), 0)
        assert expect(h.run("job", "c", "--json"), 0).json()["error"]["code"] == "confirmation_failed"
        assert "already answered: rejected, by " in expect(h.run("reject", one), 0).out
        assert "fail by " in expect(h.run("approve", one), 5).err


@test
def after_a_kill_a_verifier_that_is_gone_parks_the_job():
    with charged_and_killed('verify: { http_etag: "${ .change.ref }" }', change=False) as (h, shop):
        shop.process.kill()
        shop.process.wait()
        said = expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        assert "aetheris resume c" in said.err, said
        assert expect(h.run("job", "c", "--json"), 0).json()["parked"]["reason"] == "verifier_unreachable"
        assert verdicts(h) == ["unreachable"]
        expect(h.run("resume", "c"), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "c"), 4)
        expect(h.run("resolve", "c", "pay", "accept"), 0)
        expect(h.run("resume", "c"), 0)
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"


@test
def without_a_verifier_a_change_is_shown_as_unconfirmed():
    with charged_and_killed("") as (h, _):
        assert expect(h.run("run", "agents.yaml", "--job-id", "c"), 0).out == "held\n"
        assert verdicts(h) == ["unconfirmed"]
        job = expect(h.run("job", "c", "--json"), 0).json()
        assert [c["verdict"] for c in job["changes"]] == ["unconfirmed"], job["changes"]
        assert "unconfirmed" in expect(h.run("trace", "c"), 0).out
        assert "(create): unconfirmed" in expect(h.run("job", "c"), 0).out


@test
def a_job_killed_at_every_point_confirms_and_charges_once():
    for n in range(1, 100):
        with home() as h:
            shop = Shop(h)
            (h.path / "agents.yaml").write_text(
                CHARGES.replace("SHOP", "http://" + shop.address).replace("CONFIRM", "")
                .replace("VERIFY", 'verify: { http_etag: "${ .change.ref }" }'))
            h.go()
            split = ["--durability", "split"] if n % 2 else []
            said = h.run("run", "agents.yaml", "--job-id", "c", *split,
                         env={"AETHERIS_FAILPOINTS": f"append.after=exit@{n};append.before=exit@{n + 3}"})
            again = said
            if said.code == 137:  # and once more, in the recovery
                again = h.run("run", "agents.yaml", "--job-id", "c", *split, env={"AETHERIS_FAILPOINTS": "append.after=exit@1"})
                assert again.code in (0, 137), again
                again = h.run("run", "agents.yaml", "--job-id", "c")
            assert expect(again, 0).out == "held\n"
            assert len(shop.charges(h)) == 1
            assert set(verdicts(h)) <= {"match"}
            expect(h.run("verify", "c"), 0)
            if said.code != 137 and not split:
                return
    raise AssertionError("it never came to an end")


@test
def a_killed_call_that_may_have_happened_is_not_repeated():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds_once", "--job-id", "r")
        h.began()
        runner.kill()
        runner.wait()
        h.go()
        said = expect(h.run("run", "agents.yaml", "--job-id", "r"), 4)
        assert "aetheris resolve r" in said.err
        assert (h.path / "began.txt").read_text() == "began\n"
        key = expect(h.run("job", "r", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        expect(h.run("resolve", "r", key, "not_happened"), 0)
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert (h.path / "began.txt").read_text() == "began\nbegan\n"
        expect(h.run("verify", "r"), 0)


@test
def run_recovers_the_others_first():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "lost")
        h.began()
        runner.kill()
        runner.wait()
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "left"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"
        expect(h.run("run", "agents.yaml", "echo", "--only"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"
        assert expect(h.run("job", "lost", "--json"), 0).json()["status"] == "running"
        h.go()
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits"), 4)
        for job in ("left", "lost"):
            assert expect(h.run("job", job, "--json"), 0).json()["status"] == "completed", job


@test
def recovered_jobs_of_other_files_are_left_alone():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "left"), 0)
        (h.path / "other.yaml").write_text(
            "aetheris: 1\ntools:\n  e: { native: echo, effect: read }\nagents:\n"
            "  other: { plan: [ { id: a, tool: e } ] }\n")
        expect(h.run("run", "other.yaml"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"


@test
def ctrl_c_stops_politely_and_says_how_to_go_on():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "30s")
        h.began()
        runner.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert runner.poll() is None  # the call in flight has its grace
        h.go()
        said = expect(h.end(runner), 130)
        assert "for the call in flight: " in said.err and "aetheris run agents.yaml --job-id r" in said.err, said
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"
        assert (h.path / "began.txt").read_text() == "began\n"


@test
def ctrl_c_prints_the_job_in_json():
    with home() as h:
        for times in (1, 2):
            job = f"r{times}"
            (h.path / "began.txt").unlink(missing_ok=True)
            runner = h.start("run", "agents.yaml", "holds", "--job-id", job, "--json", "--grace",
                             "100ms" if times == 1 else "60s")
            h.began()
            for _ in range(times):
                runner.send_signal(signal.SIGINT)
                time.sleep(0.05)
            said = expect(h.end(runner), 130)
            body = said.json()
            assert body["id"] == job and body["agent"] == "holds" and body["status"] in ("running", "queued"), said
            assert set(body) == set(expect(h.run("job", job, "--json"), 0).json())
            assert f"aetheris run agents.yaml --job-id {job}" in said.err, said
            if times == 1:
                assert said.out.count("\n") == 1
                expect(h.run("cancel", job), 0)


@test
def ctrl_c_twice_stops_now():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "60s")
        h.began()
        runner.send_signal(signal.SIGINT)
        time.sleep(0.2)
        runner.send_signal(signal.SIGINT)
        said = expect(h.end(runner), 130)
        assert "--job-id r" in said.err
        h.go()
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"


@test
def grace_ends_a_call_that_takes_too_long():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--grace", "100ms")
        h.began()
        runner.send_signal(signal.SIGINT)
        expect(h.end(runner), 130)
        h.go()
        assert expect(h.run("run", "agents.yaml", "--job-id", "r"), 0).out == "held\n"


@test
def a_job_that_this_file_cannot_run_is_left_to_one_that_can():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "e", "--input", '{"n":1}'), 0)
        (h.path / "less.yaml").write_text(
            "aetheris: 1\ntools:\n  other: { native: echo, effect: read }\nagents:\n"
            "  echo: { plan: [ { id: a, tool: other } ] }\n")
        said = expect(h.run("run", "less.yaml", "--job-id", "e", "--json"), 5)
        assert said.json()["code"] == "needs_version" and "echo" in said.json()["detail"], said
        said = expect(h.run("run", "less.yaml"), 0)  # and it does not stand in the way of others
        body = expect(h.run("job", "e", "--json"), 0).json()
        assert body["status"] == "queued" and body["attempt"] == 0, body
        assert expect(h.run("run", "agents.yaml", "--job-id", "e"), 0).json() == {"n": 1}
        expect(h.run("verify", "e"), 0)


@test
def a_frozen_owner_does_not_freeze_the_others():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.began()
        runner.send_signal(signal.SIGSTOP)
        try:
            assert expect(h.run("job", "r", "--json"), 0).json()["status"] == "running"
            said = expect(h.run("cancel", "r"), 7)
            assert str(runner.pid) in said.err
        finally:
            runner.send_signal(signal.SIGCONT)
        h.go()
        expect(h.end(runner), 0)


@test
def two_stores_in_one_folder_have_two_owners():
    with home() as h:
        one = h.start("run", "agents.yaml", "holds", "--job-id", "one")
        h.began()
        other = ("--store", "sqlite:.aetheris/other.db")
        two = h.start("run", "agents.yaml", "holds_and_asks", "--job-id", "two", *other)
        h.began(2)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["one"]
        assert [j["id"] for j in expect(h.run("jobs", "--json", *other), 0).json()["jobs"]] == ["two"]
        expect(h.run("signal", "two", "k", "1", *other), 0)
        expect(h.run("signal", "two", "k", "1"), 3)
        h.go()
        expect(h.end(one), 0)
        expect(h.end(two), 0)


@test
def a_watcher_outlives_owners():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        watcher = h.start("events", "w", "-f", "--json")
        time.sleep(0.5)
        expect(h.run("signal", "w", "go-w", "5"), 0)
        time.sleep(0.3)
        assert watcher.poll() is None
        expect(h.run("run", "agents.yaml", "--job-id", "w"), 0)
        seen = [json.loads(line)["seq"] for line in expect(h.end(watcher), 0).out.splitlines()]
        assert seen == list(range(1, len(seen) + 1)) and len(seen) > 10, seen


@test
def events_are_followed_across_a_restart_of_the_server():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)

        def serve(listen):
            server = h.start("serve", "agents.yaml", "--listen", listen, "--json")
            return server, json.loads(server.stdout.readline())["listening"]

        server, url = serve("127.0.0.1:0")
        out, err = h.path / "out.txt", h.path / "err.txt"
        with open(out, "wb") as to, open(err, "wb") as warnings:
            watcher = subprocess.Popen([h.program, "events", "w", "-f", "--json"], cwd=h.path, env={**h.env, "AETHERIS_URL": url},
                                       stdin=subprocess.DEVNULL, stdout=to, stderr=warnings)
        h.started.append(watcher)
        until(lambda: "wait_opened" in out.read_text())
        server.terminate()
        h.end(server)
        until(lambda: "the connection is lost" in err.read_text())
        server, _ = serve(url.removeprefix("http://"))
        expect(h.run("signal", "w", "go-w", "5"), 0)
        watcher.wait(PATIENCE)
        server.terminate()
        h.end(server)
        assert watcher.returncode == 0, err.read_text()
        seen = [json.loads(line) for line in out.read_text().splitlines()]
        assert seen == expect(h.run("events", "w", "--json"), 0).json()["events"], seen
        warnings = err.read_text().splitlines()
        assert len(warnings) == 2 and url in warnings[0] and "available again" in warnings[1], warnings


# ---------------------------------------------------------------- failpoints, doctor, terminals

@test
def failpoints_are_read_traced_and_obeyed():
    with home() as h:
        for bad in ("append.before", "append.before=explode", "append.before=exit@0", "=exit", "x=pause:"):
            expect(h.run("run", "agents.yaml", "echo", env={"AETHERIS_FAILPOINTS": bad}), 2)
        said = expect(h.run("run", "agents.yaml", "echo", env={"AETHERIS_FAILPOINTS_TRACE": "1"}), 0)
        assert "failpoint append.before@1\n" in said.err and "failpoint tool.before@1\n" in said.err, said
        hits = int(max(re.findall(r"failpoint append\.before@(\d+)", said.err), key=int))
        for durability in ("fused", "split"):
            for n in range(1, hits + 1):
                job = f"{durability}{n}"
                words = ("run", "agents.yaml", "echo", "--job-id", job, "--durability", durability,
                         "--input", '{"n":5}')
                env = {"AETHERIS_FAILPOINTS": f"append.before=exit@{n}"}
                expect(h.run(*words, env=env), 137)
                assert expect(h.run(*words), 0).json() == {"n": 5}
                expect(h.run("verify", job), 0)


@test
def doctor_lists_jobs_that_wait_for_an_operator_as_notes():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "q", "--detach"), 0)
        said = expect(h.run("doctor"), 0)
        notes = [line for line in said.out.splitlines() if line.startswith("note ")]
        assert [re.search("job (.*?) is ([a-z]+)", line).groups() for line in notes] == \
            [("q", "queued"), ("a", "waiting"), ("d", "parked")], said
        for line, command in zip(notes, ("aetheris run FILE --job-id q", "aetheris job a", "aetheris job d")):
            assert f"`{command}`" in line, said
        assert said.out.endswith("\nok\n") and "problem" not in said.out, said
        body = expect(h.run("doctor", "--json"), 0).json()
        assert body["ok"] and body["problems"] == [], body
        assert [one["code"] for one in body["notes"]] == ["queued", "waiting", "parked"], body
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "q2", "--detach"), 0)
        assert "2 jobs are queued and no process runs them: `aetheris jobs --status queued`" in h.run("doctor").out


@test
def doctor_names_an_interrupted_job_as_a_problem():
    with home() as h:
        job = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.began()
        job.kill()
        job.wait()
        said = expect(h.run("doctor"), 1)
        assert "job r is running and no process runs it: `aetheris run FILE --job-id r` resumes it" in said.out, said


@test
def doctor_prints_a_line_per_check_and_ok():
    with home() as h:
        said = expect(h.run("doctor"), 0)
        assert said.out.endswith("\nok\n") and "does not exist yet" in said.out and said.err == "", said
        expect(h.run("run", "agents.yaml", "echo"), 0)
        said = expect(h.run("doctor"), 0)
        lines = said.out.splitlines()
        assert lines[-1] == "ok" and all(line.startswith("ok       ") for line in lines[:-1]), said
        assert [line.split()[1] for line in lines[:-1]] == \
            ["environment", "clock", "sandbox", "writable", "disk", "permissions", "secrets", "rollback", "store",
             "rows", "lock", "jobs"], said
        said = expect(h.run("doctor", env={"AETHERIS_FAILPOINTS": "append.before=error@99"}), 1)
        problems = [line for line in said.out.splitlines() if line.startswith("problem ")]
        assert "AETHERIS_FAILPOINTS" in problems[0] and len(problems) == 1, said
        assert said.out.endswith("\n1 problem\n"), said
        body = expect(h.run("doctor", "--json"), 0).json()
        assert body["ok"] and body["problems"] == [] and all(one["ok"] for one in body["checks"]), body
        h.store.chmod(0o644)
        body = expect(h.run("doctor", "--json"), 1).json()
        assert body["ok"] is False and body["problems"][0]["code"] == "permissions"


@test
def what_goes_to_a_pipe_is_whole_whatever_the_columns():
    with home() as h:
        long = "x" * 700
        (h.path / "any.yaml").write_text("""
aetheris: 1
tools: { say: { native: echo, effect: read } }
agents: { any: { plan: [ { id: s, tool: say, args: { n: "${ .input.n }" } } ], output: "${ .steps.s }" } }
""")
        expect(h.run("run", "any.yaml", "any", "--job-id", "j" * 60, "--label", "team=" + "red" * 20,
                     "--input", json.dumps({"n": long})), 0)
        for words in (["jobs"], ["job", "j" * 60], ["trace", "j" * 60], ["events", "j" * 60], ["replay", "j" * 60],
                      ["inspect"], ["check", "agents.yaml"]):
            said = [expect(h.run(*words, env={"COLUMNS": columns}), 0).out for columns in ("40", "300")]
            assert said[0] == said[1] and "…" not in said[0], (words, said)
        assert long in h.run("job", "j" * 60).out and "red" * 20 in h.run("jobs").out
        # The arguments of a call that is to be approved, and of one whose outcome is unknown.
        (h.path / "asks.yaml").write_text("""
aetheris: 1
tools:
  pay: { native: echo, effect: at_most_once, approval: required }
  lost: { native: doubt, effect: at_most_once }
agents:
  pays: { plan: [ { id: p, tool: pay, args: { n: "${ .input.n }" } } ] }
  loses: { plan: [ { id: l, tool: lost, args: { message: "${ .input.n }" } } ] }
""")
        long = "y" * 5000
        for agent in ("pays", "loses"):
            said = expect(h.run("run", "asks.yaml", agent, "--only", "--job-id", agent, "--input",
                                json.dumps({"n": long})), 4)
            assert long in said.err and "…" not in said.err, said.err[:400]
            assert long in h.run("job", agent).out
        assert long in h.run("jobs", "--in-doubt").out


@test
def a_table_on_a_narrow_terminal_leaves_columns_out_and_never_wraps():
    with home() as h:
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "a-job-with-a-name"), 0)
        for columns in (40, 50, 60, 80, 120):
            for words in (["jobs"], ["trace", "a-job-with-a-name"]):
                shown = on_terminal(h, *words, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
                lines = shown.replace("\r\n", "\n").splitlines()
                assert max(map(len, lines)) <= columns, (columns, shown)
        assert "━" in on_terminal(h, "trace", "a-job-with-a-name", env={"COLUMNS": "80", "NO_COLOR": "1"}), "bars stay"


@test
def replay_is_a_summary_without_json():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":7}'), 0)
        said = expect(h.run("replay", "a"), 0).out
        assert len(said.splitlines()) < 20 and "completed" in said and '{"n":7}' in said, said


def as_user_without_rights():
    """A prefix that drops the rights of root, which writes everywhere."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []


@test
def doctor_finds_a_folder_in_which_run_would_fail():
    with home() as h:
        h.path.chmod(0o555)
        try:
            process = h.start("run", "agents.yaml", "echo", prefix=as_user_without_rights())
            expect(h.end(process), 7)
            for store in ([], ["--store", "sqlite:sub/x.db"]):
                process = h.start("doctor", "--json", *store, prefix=as_user_without_rights())
                body = expect(h.end(process), 1).json()
                assert [one["code"] for one in body["problems"]] == ["read_only"], body
            said = h.end(h.start("doctor", prefix=as_user_without_rights()))
            assert said.code == 1 and "problem  writable" in said.out and "`aetheris run` would fail" in said.out, said
        finally:
            h.path.chmod(0o755)
        expect(h.run("doctor"), 0)


@test
def colours_are_for_terminals_only():
    with home() as h:
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "f"), 0)
        h.env.pop("NO_COLOR", None)
        assert "\x1b[" in on_terminal(h, "trace", "f")
        assert "\x1b[" not in on_terminal(h, "trace", "f", env={"NO_COLOR": "1"})
        assert "\x1b[" not in expect(h.run("trace", "f"), 0).out


@test
def a_job_waits_for_a_process_that_offers_what_it_needs():
    with home() as h:
        (h.path / "needs.yaml").write_text("""
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  heavy: { required_capabilities: [gpu, eu], plan: [ { id: say, tool: echo, args: { x: 1 } } ] }
""")
        said = expect(h.run("run", "needs.yaml", "--job-id", "j", "--capability", "gpu"), 5)
        assert "needs_version" in said.err and "eu" in said.err, said
        body = expect(h.run("job", "j", "--json"), 0).json()
        assert body["status"] == "queued", body
        expect(h.run("run", "needs.yaml", "--job-id", "j", "--capability", "gpu", "--capability", "eu"), 0)
        expect(h.run("run", "needs.yaml", "--capability", "a b"), 2)


@test
def queues_have_limits_and_labels_take_turns():
    with home() as h:
        (h.path / "lines.yaml").write_text("""
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  a: { queue: nightly, plan: [ { id: say, tool: echo, args: { x: 1 } } ] }
""")
        for job, tenant in (("big1", "big"), ("big2", "big"), ("big3", "big"), ("small1", "small")):
            expect(h.run("run", "lines.yaml", "--job-id", job, "--detach", "--label", f"tenant={tenant}"), 0)
        assert expect(h.run("inspect", "big1", "--json"), 0).json()["job"]["queue"] == "nightly"
        expect(h.run("run", "lines.yaml", "--job-id", "last", "--queue", "daily", "--queue-limit", "nightly=1",
                     "--queue-limit", "daily=2", "--fair-by", "tenant"), 0)
        began = {job: expect(h.run("events", job, "--type", "job_running", "--json"), 0).json()["events"][0]["created_at"]
                 for job in ("big1", "big2", "big3", "small1", "last")}
        nightly = sorted(("big1", "big2", "big3", "small1"), key=began.get)
        assert nightly == ["big1", "small1", "big2", "big3"], began
        created = expect(h.run("events", "last", "--type", "job_created", "--json"), 0).json()["events"][0]["payload"]
        assert created["queue"] == "daily", created
        ends = {job: expect(h.run("events", job, "--type", "job_completed", "--json"), 0).json()["events"][0]["created_at"]
                for job in nightly}
        for one, next_one in zip(nightly, nightly[1:]):
            assert ends[one] <= began[next_one], (one, next_one, began, ends)
        expect(h.run("run", "lines.yaml", "--no-fair-by"), 0)
        for bad in (["--queue", "a b"], ["--queue", ""], ["--queue-limit", "nightly"], ["--queue-limit", "nightly=0"],
                    ["--queue-limit", "nightly=x"], ["--queue-limit", "=1"], ["--queue-limit", "a=1", "--queue-limit", "a=2"],
                    ["--fair-by", ""], ["--fair-by", "tenant", "--no-fair-by"]):
            said = expect(h.run("run", "lines.yaml", *bad), 2)
            assert bad[0] in said.err, said


@test
def a_strict_job_goes_on_under_its_own_version_only():
    with home() as h:
        def file(version, policy):
            (h.path / "v.yaml").write_text(f"""
aetheris: 1
tools: {{ echo: {{ native: echo, effect: read }} }}
agents:
  a:
    versions: {{ policy: {policy}, execution: {version} }}
    plan: [ {{ id: t, wait: {{ type: timer, for: 50ms }} }}, {{ id: say, needs: [t], tool: echo, args: {{ x: 1 }} }} ]
""")
        file("one", "strict")
        for job in ("strict", "other", "ends"):
            expect(h.run("run", "v.yaml", "--job-id", job, "--detach"), 0)
        file("two", "strict")
        said = expect(h.run("run", "v.yaml", "--job-id", "strict"), 4)
        assert "parked: it needs another execution version" in said.err, said
        assert "execution: one" in said.err and "aetheris run FILE --job-id strict" in said.err, said
        parked = expect(h.run("job", "strict", "--json"), 0).json()
        assert parked["parked"]["until"] == "version" and parked["execution_version"] == "one", parked
        assert parked["parked"]["command"] == "aetheris run FILE --job-id strict", parked
        assert h.run("events", "strict", "--type", "node_started", "--json").json()["events"] == []
        noted = h.run("events", "strict", "--type", "version_mismatched", "--json").json()["events"][0]["payload"]
        assert (noted["job_version"], noted["worker_version"]) == ("one", "two"), noted
        assert "execution version one → two" in expect(h.run("trace", "strict"), 0).out
        listed = expect(h.run("jobs", "--stuck", "--json"), 0).json()["jobs"]
        stuck = {job["id"]: job["stuck"] for job in listed}
        assert stuck["strict"]["missing"] == ["execution_version:a=one"], stuck
        assert "version a=one" in stuck["strict"]["message"] and stuck["strict"]["until"] == "version", stuck
        # Another file of the same version changes nothing, and neither does `resume`; the run before met all three.
        expect(h.run("run", "v.yaml", "--job-id", "strict"), 4)
        assert "until `version`" in expect(h.run("resume", "strict"), 5).err
        assert len(h.run("events", "strict", "--type", "job_parked", "--json").json()["events"]) == 1
        # A plan that is not strict takes any version; a cancelled job needs none.
        file("two", "warn")
        expect(h.run("plan", "other", "v.yaml"), 0)
        expect(h.run("run", "v.yaml", "--job-id", "other"), 0)
        file("two", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "ends"), 4)
        expect(h.run("cancel", "ends"), 0)
        file("one", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "strict"), 0)
        resumed = h.run("events", "strict", "--type", "job_resumed", "--json").json()["events"]
        assert len(resumed) == 1 and resumed[0]["payload"]["by"], resumed

        expect(h.run("run", "v.yaml", "--job-id", "swept", "--detach"), 0)
        file("two", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "swept"), 4)
        file("one", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "new"), 0)  # whoever starts takes what waited for its version
        until(lambda: h.run("job", "swept", "--json").json()["status"] in ("queued", "waiting", "completed"))

        file("one", "route")
        expect(h.run("run", "v.yaml", "--job-id", "route", "--detach"), 0)
        file("two", "route")
        said = expect(h.run("run", "v.yaml", "--job-id", "route"), 5)
        assert "execution_version_mismatch" in said.err, said
        assert h.run("job", "route", "--json").json()["status"] == "queued"
        file("one", "route")
        expect(h.run("run", "v.yaml", "--job-id", "route"), 0)
        file("one", "warn")
        expect(h.run("run", "v.yaml", "--job-id", "warned", "--detach"), 0)
        file("two", "warn")
        said = expect(h.run("run", "v.yaml", "--job-id", "warned"), 0)
        assert "execution version" in said.err, said


@test
def a_disk_that_fails_ends_the_run_and_the_next_one_goes_on():
    with home() as h:
        (h.path / "agents.yaml").write_text(AGENTS.replace("for: 700ms", "for: 10ms"))
        ends = set()
        for n in range(1, 40):
            strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
                      "-e", f"inject=fdatasync,fsync:error=EIO:when={n}+"]
            done = subprocess.run([*strace, h.program, "run", "agents.yaml", "sleeps", "--job-id", f"j{n}"], cwd=h.path,
                                  env={**h.env, **sanitizer("detect_leaks=0")}, capture_output=True, text=True,
                                  timeout=PATIENCE)
            ends.add(done.returncode)
            if done.returncode == 0:
                break
            assert done.returncode == 7 and done.stdout == "", done
            assert done.stderr.count("tried again") <= 1, done.stderr
            if "[store_stopped]" in done.stderr:
                ends.add("stopped")
            # The disk is well again: what was begun ends, what was not is begun.
            expect(h.run("run", "agents.yaml", "sleeps", "--job-id", f"j{n}"), 0)
        assert {0, 7, "stopped"} <= ends, ends


class Skip(Exception):
    """A test cannot run on this machine; its text is the reason."""


def run_tests(area, tests, words):
    """Those whose name contains the words, one after the other. Gives the exit code."""
    failed = 0
    for function in tests:
        name = f"{area}/" + function.__name__.replace("_", " ")
        if words not in name:
            continue
        try:
            function()
            print(f"ok {name}", flush=True)
        except Skip as why:
            print(f"ok {name} # SKIP {why}", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {name}")
            print("    " + traceback.format_exc().replace("\n", "\n    "), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_tests("cli", TESTS, " ".join(sys.argv[1:])))
