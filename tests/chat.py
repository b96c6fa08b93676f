#!/usr/bin/env python3
"""`aetheris chat`: a thread on a terminal and line by line, with the scripted model server.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  chat.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import oracles  # noqa: E402
from shared.home import run_tests  # noqa: E402
from shared.program import BIN  # noqa: E402

ROOT = oracles.ROOT
SERVER = ROOT / "examples/model-server/server.mjs"
PATIENCE = 60
TESTS = []


def test(function):
    def run():
        with Room() as room:
            function(room)
    run.__name__ = function.__name__
    TESTS.append(run)
    return function


class Room:
    """A folder with examples/chat.yaml, and a model server."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-chat-"))
        shutil.copy(ROOT / "examples/chat.yaml", self.folder / "chat.yaml")
        self.models = subprocess.Popen([str(oracles.node()), str(SERVER), "--journal", str(self.folder / "model.journal")],
                                       stdout=subprocess.PIPE, text=True)
        url = self.models.stdout.readline().split()[-1]
        self.env = {**os.environ, "MODEL_URL": f"{url}/v1", "MODEL": "chat", "MODEL_KEY": "any-key",
                    "AETHERIS_STORE": f"sqlite:{self.folder}/store.db", "TERM": "xterm"}
        self.env.pop("AETHERIS_URL", None)
        return self

    def __exit__(self, *_):
        self.models.terminate()
        self.models.wait()
        shutil.rmtree(self.folder)

    def run(self, *words, lines=(), check=None):
        done = subprocess.run([str(BIN), *words], cwd=self.folder, env=self.env, text=True, timeout=PATIENCE,
                              input="".join(line + "\n" for line in lines), capture_output=True, check=False)
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def job(self, name):
        return json.loads(self.run("job", name, "--json", check=0).stdout)

    def model_calls(self):
        return len((self.folder / "model.journal").read_text().splitlines())

    def terminal(self, *words):
        return Terminal(self, words)


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, room, words):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(room.folder)
            os.execve(str(BIN), [str(BIN), *words], room.env)

    def until(self, pattern, seconds=PATIENCE):
        """Reads until the output matches; what it read since the last match."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen!r}"
            if not select.select([self.fd], [], [], left)[0]:
                continue
            try:
                more = os.read(self.fd, 4096)
            except OSError:
                more = b""
            assert more, f"ended without {pattern!r}: {self.seen!r}"
            self.seen += more.decode(errors="replace")
        at = re.search(pattern, self.seen).end()
        seen, self.seen = self.seen[:at], self.seen[at:]
        return seen

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        while True:
            try:
                more = os.read(self.fd, 4096)
            except OSError:
                more = b""
            if not more:
                break
            self.seen += more.decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


@test
def lines_of_a_pipe_are_messages_and_each_has_one_answer(room):
    done = room.run("chat", "chat.yaml", lines=["Hello", "And now?"], check=0)
    assert done.stdout == "Answer 1 to: Hello\nAnswer 2 to: And now?\n", done.stdout
    name = re.search(r"aetheris chat chat.yaml --job (\S+)", done.stderr).group(1)
    job = room.job(name)
    assert job["status"] == "waiting" and job["thread"]["exchanges"] == 2, job
    assert job["thread"]["answer"]["text"] == "Answer 2 to: And now?"
    done = room.run("chat", "chat.yaml", "--job", name, lines=["Third", "/end"], check=0)
    assert done.stdout == "Answer 2 to: And now?\nAnswer 3 to: Third\n", done.stdout
    assert room.job(name)["status"] == "completed"
    assert room.model_calls() == 3
    room.run("verify", name, check=0)


@test
def answers_are_json_lines_with_json(room):
    done = room.run("chat", "chat.yaml", "--json", lines=["Hello", "/end"], check=0)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["answer"]["text"] for answer in answers] == ["Answer 1 to: Hello"], answers


@test
def a_message_with_the_same_id_is_answered_once(room):
    done = room.run("chat", "chat.yaml", lines=["Hello"], check=0)
    name = re.search(r"--job (\S+)", done.stderr).group(1)
    for _ in range(3):
        room.run("message", name, "thread", "--text", "Once", "--message-id", "m1", check=0)
    done = room.run("chat", "chat.yaml", "--job", name, lines=["/end"], check=0)
    assert room.job(name)["thread"]["answer"]["text"] == "Answer 2 to: Once"
    assert room.model_calls() == 2


@test
def an_approval_is_answered_inline(room):
    done = room.run("chat", "chat.yaml", lines=["note: buy milk", "y", "note: buy beer", "n", "/end"], check=0)
    assert "It is written down." in done.stdout and "I wrote nothing down." in done.stdout, done
    assert "buy milk" in done.stderr, done.stderr


@test
def an_answer_is_streamed_to_a_terminal(room):
    terminal = room.terminal("chat", "chat.yaml")
    terminal.until("> ")
    terminal.type("slow\n")
    terminal.until("takes")
    begun = time.monotonic()
    terminal.until("five\\.")
    assert time.monotonic() - begun > 0.3, "the pieces came together"
    terminal.until("> ")
    terminal.type("note: buy milk\n")
    terminal.until("buy milk")
    terminal.until(r"approve\? \[y/n\]")
    terminal.type("y\n")
    terminal.until("It is written down")
    terminal.until("> ")
    terminal.type("\x04")
    terminal.until("to continue: .*--job")
    assert terminal.end() == 0


@test
def ctrl_c_interrupts_and_a_second_one_leaves(room):
    terminal = room.terminal("chat", "chat.yaml")
    terminal.until("> ")
    terminal.type("note: buy milk\n")
    terminal.until(r"approve\? \[y/n\]")
    terminal.type("\x03")
    terminal.until("interrupted")
    terminal.until("> ")
    terminal.type("go on\n")
    terminal.until("I wrote nothing down")
    terminal.until("> ")
    terminal.type("slow\n")
    terminal.until("takes")
    terminal.type("\x03")
    terminal.until("interrupted")
    terminal.type("\x03")
    seen = terminal.until(r"to continue: [^\r\n]*--job \S+")
    name = re.search(r"--job (\S+)", re.sub("\x1b\\[[0-9;]*m", "", seen)).group(1)
    assert terminal.end() == 130
    done = room.run("chat", "chat.yaml", "--job", name, lines=["still here?", "/end"], check=0)
    assert "still here?" in done.stdout, done
    room.run("verify", name, check=0)


@test
def a_killed_chat_continues_where_it_was(room):
    terminal = room.terminal("chat", "chat.yaml")
    terminal.until("> ")
    terminal.type("Hello\n")
    seen = terminal.until("job \\S+\r?\n")
    name = re.search(r"job (\S+)", re.sub("\x1b\\[[0-9;]*m", "", seen)).group(1)
    terminal.until("> ")
    terminal.type("slow\n")
    terminal.until("takes")
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.end()
    done = room.run("chat", "chat.yaml", "--job", name, lines=["Back", "/end"], check=0)
    assert "takes its time" in done.stdout and "Answer 3 to: Back" in done.stdout, done
    room.run("verify", name, check=0)


@test
def a_server_runs_the_thread(room):
    server = subprocess.Popen([str(BIN), "serve", "chat.yaml", "--listen", "127.0.0.1:0"], cwd=room.folder,
                              env=room.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = None
        for line in server.stdout:
            if found := re.search(r"http://127.0.0.1:\d+", line):
                url = found.group(0)
                break
        done = room.run("chat", "chat.yaml", lines=["Hello"], check=0)
        assert done.stdout == "Answer 1 to: Hello\n", done
        room.env["AETHERIS_URL"] = url
        done = room.run("chat", "chat.yaml", lines=["Hello", "/end"], check=0)
        assert done.stdout == "Answer 1 to: Hello\n", done
    finally:
        server.terminate()
        server.communicate()


CODE = """
from aetheris import agent

@agent("echo")
async def echo(ctx, input):
    text = input["message"]
    while text != "bye":
        if text.startswith("pay"):
            await ctx.approval(f"{text}?", data={"amount": 7})
        ctx.emit("answer", f"you wrote: {text}")
        text = await ctx.receive("thread")
    return "done"
"""


@test
def code_that_receives_messages_is_a_thread(room):
    (room.folder / "agent.py").write_text(CODE)
    room.env["PYTHONPATH"] = str(ROOT / "sdk/python")
    alone = room.run("chat", "agent.py", "echo", lines=["Hello"])
    assert alone.returncode != 0 and "aetheris dev agent.py" in alone.stderr, alone
    dev = subprocess.Popen([str(BIN), "dev", "agent.py", "--listen", "127.0.0.1:0"], cwd=room.folder, env=room.env,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while "agent echo" not in dev.stdout.readline():
            assert dev.poll() is None
        done = room.run("chat", "agent.py", "echo", lines=["Hello", "pay 7", "y"], check=0)
        assert done.stdout == "you wrote: Hello\nyou wrote: pay 7\n", done
        assert "pay 7?" in done.stderr and '"amount"' in done.stderr.replace("amount:", '"amount"'), done.stderr
        name = re.search(r"--job (\S+)", done.stderr).group(1)
        done = room.run("chat", "agent.py", "--job", name, lines=["/end", "bye"], check=0)
        assert "this agent decides itself when it ends" in done.stderr and "completed" in done.stderr, done
        room.run("verify", name, check=0)
    finally:
        dev.terminate()
        dev.communicate()


@test
def an_agent_that_answers_once_is_refused(room):
    (room.folder / "once.yaml").write_text((room.folder / "chat.yaml").read_text().replace("thread: true", "thread: false"))
    done = room.run("chat", "once.yaml", lines=["Hello"], check=2)
    assert "thread: true" in done.stderr


if __name__ == "__main__":
    sys.exit(run_tests("chat", TESTS, " ".join(sys.argv[1:])))
