"""The base of tests that run the program: a folder with an agents file, its commands and their results.

`run_tests` runs the tests of a script and prints `ok NAME`, `not ok NAME` or `ok NAME # SKIP why` for each.
"""
import contextlib
import json
import os
import pathlib
import pty
import select
import shlex
import shutil
import sqlite3
import subprocess
import tempfile
import time
import traceback

from shared.program import TESTING_BIN

PATIENCE = 60.0  # seconds, for anything that must happen eventually
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
  # Records that it began, then waits until the file `go` exists in its folder.
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


class Result:
    """The exit code and output of a command."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)

    def __repr__(self):
        return f"exit {self.code}\nstdout: {self.out}\nstderr: {self.err}"


class Home:
    """A folder with an agents file, in which commands run."""

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
        return Result(done.returncode, done.stdout, done.stderr)

    def start(self, *words, env=None, prefix=()):
        process = subprocess.Popen([*prefix, self.program, *words], cwd=self.path, env={**self.env, **(env or {})},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=PATIENCE)
        return Result(process.returncode, out, err)

    def wait_for_hold(self, times=1):
        """Waits until `hold` has begun that many times."""
        def enough():
            file = self.path / "began.txt"
            return file.exists() and len(file.read_text().splitlines()) >= times
        until(enough)

    def release_hold(self):
        (self.path / "go").touch()

    @property
    def store(self):
        return self.path / ".aetheris/aetheris.db"


def until(condition, patience=PATIENCE):
    give_up = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < give_up, "the condition was not met in time"
        time.sleep(0.02)
    return value


def expect(result, code):
    assert result.code == code, f"expected exit code {code}, got {result!r}"
    return result


@contextlib.contextmanager
def home(program=TESTING_BIN):
    """AGENTS needs TESTING_BIN."""
    h = Home(program)
    try:
        yield h
    finally:
        h.close()


def on_terminal(h, *words, env=None):
    """The output of a command on a terminal."""
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


def run_printed(h, command):
    """Runs a printed command like a shell, with the program under test as `aetheris`."""
    words = shlex.split(command)
    assert words[0] == "aetheris", command
    return h.run(*words[1:])


def run_sql(store, script):
    with contextlib.closing(sqlite3.connect(store)) as db:
        db.executescript(script)


class Skip(Exception):
    """A test cannot run on this machine; its text is the reason."""


def run_tests(area, tests, words):
    """Runs the tests whose name contains the words, in order. Returns the exit code."""
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
