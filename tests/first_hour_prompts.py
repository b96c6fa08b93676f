#!/usr/bin/env python3
"""The first hour of a new user: the transcript of a conversation, and approval at the prompt of `run`.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  first_hour_prompts.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

from shared.desk import SCENARIOS, Desk
from shared.home import PATIENCE, expect, home, run_tests, until
from shared.trip import lines_of

TESTS = []


def test(function):
    TESTS.append(function)
    return function


LED_BY_A_MODEL = """\
aetheris: 1
tools:
  get_order:
    description: Read an order
    command: ["sh", "-c", "echo began >> began; while [ ! -e go ]; do sleep 0.02; done; echo '{\\"id\\":\\"43\\",\\"total\\":12}'"]
    output: json
    effect: read
  refund:
    description: Refund an order
    command: ["sh", "-c", "echo paid >> paid; echo '{\\"receipt\\": 7}'"]
    output: json
    effect: at_most_once
models:
  main:
    provider: openai
    base_url: "${ env.MODELS }/v1"
    api_key: "secret:MODEL_KEY"
    model: refund
    price: { input: "1", output: "2" }
agents:
  helper: { loop: { model: main, system: You are kind., tools: [get_order, refund] } }
"""


@test
def a_transcript_shows_the_conversation_of_a_running_and_a_finished_job():
    with contextlib.closing(Desk(["sk-first-hour"], SCENARIOS / "refund.json")) as desk:
        (desk.path / "agents.yaml").write_text(LED_BY_A_MODEL, encoding="utf-8")
        desk.env |= {"MODELS": desk.open_models(), "MODEL_KEY": "sk-first-hour"}
        piped = desk.path / "piped.txt"
        begin = {"cwd": desk.path, "env": desk.env, "stdin": subprocess.DEVNULL}
        with open(piped, "wb") as out, open(desk.path / "run.txt", "wb") as rest:
            run = subprocess.Popen([desk.program, "run", "agents.yaml", "--message", "Refund order 43", "--job-id", "c"], stdout=rest,
                                   stderr=rest, **begin)
            follow = None
            try:
                until(lambda: lines_of(desk, "began"))
                follow = subprocess.Popen([desk.program, "transcript", "c", "-f"], stdout=out, stderr=rest, **begin)
                until(lambda: "→ get_order" in piped.read_text(encoding="utf-8"))
                text = piped.read_text(encoding="utf-8")
                assert text.startswith("job c · agent helper · running · 1 model answer · 1 tool call · "), text
                assert "← get_order" not in text and "turn 2" not in text and lines_of(desk, "paid") == [], text
                assert follow.poll() is None
                (desk.path / "go").touch()
                codes = run.wait(PATIENCE), follow.wait(PATIENCE)
                assert codes == (0, 0), (codes, (desk.path / "run.txt").read_text(encoding="utf-8"))
            finally:
                for process in filter(None, (run, follow)):
                    process.kill()
                    process.wait()
        assert lines_of(desk, "paid") == ["paid"]
        finished = desk.run("transcript", "c", code=0).stdout
        head, _, body = finished.partition("\n")
        assert re.fullmatch(r"job c · agent helper · completed · 3 model answers · 2 tool calls · [\d,]+ tokens · "
                            r"cost 0\.\d+", head), head
        turn = r"turn {} · model main.* · [\d,]+ tokens · cost 0\.\d+ · \d+ ms\n"
        assert re.fullmatch(r'\[input\] \{"message":"Refund order 43"\}\n\nnode loop\n\[system\] You are kind\.\n'
                            r"\[user\] Refund order 43\n" + turn.format(1) +
                            r'→ get_order \{"id":"43"\}  \(read\)\n← get_order \{"id":"43","total":12\}  \d+ ms\n' +
                            turn.format(2) + r"\[assistant\] The order exists\. I request the refund\.\n"
                            r'→ refund \{"amount":12,"order":"43"\}  \(at_most_once\)\n← refund \{"receipt":7\}  \d+ ms\n' +
                            turn.format(3) + r"\[assistant\] 12 EUR was refunded for order 43\.\n\n\[completed\] .*\n", body), body
        # The followed transcript has the same body, between its first and its last header.
        assert piped.read_text(encoding="utf-8").partition("\n")[2] == f"{body}\n{head}\n"


ASKING = """\
aetheris: 1
tools:
  pay:
    command: ["sh", "-c", "echo paid >> paid; echo ok"]
    effect: at_most_once
    approval: required
agents:
  buys: { plan: [ { id: pay, tool: pay, args: { amount: 5 } } ], output: "${ .steps.pay }" }
"""


class OnTerminal:
    """A command whose stdin, stdout and stderr are a terminal."""

    def __init__(self, h, *words, out=None):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(h.path)
            os.execve(h.program, [h.program, *words], {**h.env, "TERM": "dumb"})
        self.text = ""

    def read(self):
        if not select.select([self.master], [], [], PATIENCE)[0]:
            raise AssertionError("no output: " + self.text)
        try:
            part = os.read(self.master, 65536).decode()
        except OSError:
            return False
        self.text += part
        return part != ""

    def until(self, words):
        while words not in self.text:
            assert self.read(), self.text

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        while self.read():
            pass
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run_at_prompt(h, *words):
    (h.path / "buys.yaml").write_text(ASKING, encoding="utf-8")
    return OnTerminal(h, *(words or ("run", "buys.yaml", "--job-id", "b")))


@test
def yes_at_the_prompt_approves_and_the_run_continues():
    with home() as h:
        run = run_at_prompt(h)
        run.until("approve now? [y/N] ")
        assert 'waits for approval of the call of tool "pay"' in run.text and '"amount": 5' in run.text, run.text
        assert lines_of(h, "paid") == []
        run.type("y\n")
        assert run.end() == 0 and run.text.rstrip().endswith("ok"), run.text
        assert lines_of(h, "paid") == ["paid"]
        events = expect(h.run("events", "b", "--json"), 0).json()["events"]
        assert any("cli:" in json.dumps(e) and "approve" in json.dumps(e) for e in events), events


@test
def anything_else_at_the_prompt_leaves_the_call_pending():
    with home() as h:
        for answer in ("n\n", "\n", "yep\n", "\x04"):
            run = run_at_prompt(h)
            run.until("approve now? [y/N] ")
            run.type(answer)
            assert run.end() == 4, run.text
            assert "aetheris approve b." in run.text and "job b is waiting" in run.text, run.text
        assert lines_of(h, "paid") == []
        expect(h.run("approve", expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]), 0)


@test
def ctrl_c_at_the_prompt_leaves_the_call_pending():
    with home() as h:
        run = run_at_prompt(h)
        run.until("approve now? [y/N] ")
        run.type("\x03")
        assert run.end() == 128 + signal.SIGINT, run.text
        assert "aetheris approve b." in run.text, run.text
        assert len(expect(h.run("approvals", "--json"), 0).json()["approvals"]) == 1


@test
def nothing_is_prompted_in_a_pipe_or_with_json():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKING, encoding="utf-8")
        result = expect(h.run("run", "buys.yaml", "--job-id", "b", stdin="y\n"), 4)
        assert "approve now?" not in result.err and "aetheris approve b." in result.err, result
        run = run_at_prompt(h, "run", "buys.yaml", "--job-id", "b", "--json")
        assert run.end() == 4 and "approve now?" not in run.text, run.text
        assert lines_of(h, "paid") == []


@test
def a_job_run_by_the_owner_prompts_too():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKING.replace("agents:", """\
  hold: { command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done"], effect: read }
agents:
  holds: { plan: [ { id: h, tool: hold } ] }"""), encoding="utf-8")
        first = h.start("run", "buys.yaml", "holds")
        h.wait_for_hold()
        run = OnTerminal(h, "run", "buys.yaml", "buys", "--job-id", "b")
        run.until("approve now? [y/N] ")
        run.type("y\n")
        assert run.end() == 0 and lines_of(h, "paid") == ["paid"], run.text
        h.release_hold()
        expect(h.end(first), 0)


@test
def a_retry_with_a_file_prompts_too():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKING.replace("amount: 5", 'amount: "${ .input.no.way | floor }"'), encoding="utf-8")
        expect(h.run("run", "buys.yaml", "--job-id", "b"), 1)
        run = run_at_prompt(h, "retry", "b", "buys.yaml", "--job-id", "c")
        run.until("approve now? [y/N] ")
        run.type("y\n")
        assert run.end() == 0 and lines_of(h, "paid") == ["paid"], run.text


if __name__ == "__main__":
    sys.exit(run_tests("first_hour_prompts", TESTS, " ".join(sys.argv[1:])))
