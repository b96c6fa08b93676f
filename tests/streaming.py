#!/usr/bin/env python3
"""Answers of models as they come: on the real program, over both protocols, with a provider that streams.

What is heard is what is recorded, byte for byte; a crash, a cut or a slow reader leaves no half answer. Prints `ok NAME` or
`not ok NAME` per test. AETHERIS_BIN names the program, AETHERIS_ROOT the tree.
  streaming.py [WORDS]   only tests whose name contains WORDS
"""
import hashlib
import http.client
import json
import os
import pathlib
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import oracles  # noqa: E402
from cli import run_tests, until  # noqa: E402
from shared.program import BIN  # noqa: E402

ROOT = oracles.ROOT
SERVER = ROOT / "examples/model-server/server.mjs"
KEY = "sk-canary-0815-never-shown"
ESCAPED = f"\\u{ord(KEY[0]):04x}" + KEY[1:].replace("-", "\\u002d")
PATIENCE = 60
LONG = "Ein Satz, der dauert: äöü 日本語 🙂 “so”.\nUnd noch einer. " * 4
MUCH, MUCH_PIECES = "0123456789abcdef" * 60_000, 240
HELD_AFTER = 2000  # bytes of an answer: its head, and a few pieces
CUTS = (1, 2, 3, 5, 8, 13, 21, len(KEY), len(KEY) + 1)  # every one: src/llm/model_tool_secret_test.cc
TALK = {"turns": [
    {"when": {"prompt": "cut"}, "fail": {"cut_after": 3}, "say": LONG},
    {"when": {"prompt": "error event"}, "fail": {"error_after": 3, "status": 529}, "say": LONG},
    *({"when": {"prompt": f"key in {size}s"}, "say": f"Your key is {KEY}, and {KEY}.", "piece": size} for size in CUTS),
    *({"when": {"prompt": f"escaped in {size}s"}, "say": '{"key": "' + ESCAPED + '", "a": "b\\n\\/c"}', "piece": size} for size in CUTS),
    {"when": {"prompt": "much"}, "say": MUCH, "piece": len(MUCH) // MUCH_PIECES},
    {"say": LONG}]}
AGENTS = """\
aetheris: 1
tools:
  echo: {{ native: echo, effect: read }}
models:
  talk: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: talk, timeout: 10m,
          retry: {{ max_attempts: 3, initial_backoff: 10ms, retry_on: [reset, 5xx] }} }}
  whole: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: talk, stream: false }}
agents:
  talk: {{ plan: [ {{ id: a, llm: {{ model: talk, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.text }}" }}
  whole: {{ plan: [ {{ id: a, llm: {{ model: whole, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.text }}" }}
  beside: {{ plan: [ {{ id: a, tool: echo, args: {{ n: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.n }}" }}
"""
TESTS = []


def both(function):
    """The test, once for each provider."""
    for provider in ("openai", "anthropic"):
        def run(provider=provider):
            with Desk(provider) as desk:
                function(desk)
        run.__name__ = f"{function.__name__}_{provider}"
        TESTS.append(run)
    return function


def test(function):
    def run():
        with Desk("openai") as desk:
            function(desk)
    run.__name__ = function.__name__
    TESTS.append(run)
    return function


class Gate:
    """A connection to the provider that can be held in the middle of an answer, and knows when our side has gone."""

    def __init__(self, upstream):
        self.upstream = urllib.parse.urlsplit(upstream).netloc.split(":")
        self.open, self.gone = threading.Event(), threading.Event()
        self.open.set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                ours, _ = self.listening.accept()
            except OSError:
                return
            theirs = socket.create_connection((self.upstream[0], int(self.upstream[1])))
            threading.Thread(target=self.ask, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self.answer, args=(ours, theirs), daemon=True).start()

    def ask(self, ours, theirs):
        try:
            while block := ours.recv(65536):
                theirs.sendall(block)
        except OSError:
            pass
        self.gone.set()
        theirs.close()

    def answer(self, ours, theirs):
        passed = 0
        try:
            while block := theirs.recv(HELD_AFTER):
                ours.sendall(block)
                passed += len(block)
                if passed >= HELD_AFTER:
                    self.open.wait()
            ours.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.open.set()
        self.listening.close()


class Stream:
    """A live stream of a job's events."""

    def __init__(self, desk, job, after=None):
        self.connection = http.client.HTTPConnection(desk.address, timeout=PATIENCE)
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
        self.connection.request("GET", f"/api/jobs/{job}/events", headers=headers)
        self.answer = self.connection.getresponse()
        self.seen, self.raw = [], b""
        assert self.answer.status == 200, self.answer.status

    @classmethod
    def of(cls, link):
        """One that was asked for on this connection, by hand."""
        stream = cls.__new__(cls)
        stream.connection, stream.answer = link, http.client.HTTPResponse(link, method="GET")
        stream.answer.begin()
        stream.seen, stream.raw = [], b""
        assert stream.answer.status == 200, stream.answer.status
        return stream

    def next(self):
        """(id, name, data) of the next event, or None at the end."""
        event = {}
        while line := self.answer.readline():
            self.raw += line
            line = line.decode().rstrip("\n")
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif event:
                self.seen.append((event.get("id"), event["event"], json.loads(event["data"])))
                return self.seen[-1]
        return None

    def until(self, name):
        while one := self.next():
            if one[1] == name:
                return one[2]
        raise AssertionError(f"the stream ended without {name}: {[e[1] for e in self.seen]}")

    def rest(self):
        while self.next():
            pass
        return self

    def said(self):
        """What each try has said, joined; offsets have no hole."""
        texts = {}
        for ident, name, data in self.seen:
            if name != "said":
                continue
            assert ident is None, "a piece has no id: a reader resumes behind an event"
            key = (data["invocation_id"], data["try"])
            text = texts.setdefault(key, b"")
            assert data["offset"] == len(text), (data, len(text))
            texts[key] = text + data["text"].encode()
        return {key: text.decode() for key, text in texts.items()}

    def close(self):
        self.answer.close()
        self.connection.close()


class Desk:
    """A folder with an agents file, a running provider, and servers of ours that come and go."""

    def __init__(self, provider):
        self.provider = provider
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-streaming-"))
        self.theirs = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-streaming-provider-"))
        (self.path / "agents.yaml").write_text(AGENTS.format(provider=provider))
        (self.theirs / "talk.json").write_text(json.dumps(TALK))
        self.journal = self.theirs / "asked.jsonl"
        self.models = subprocess.Popen(
            [oracles.node(), SERVER, "--key", KEY, "--journal", self.journal, "--scenario", self.theirs / "talk.json"],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.gate = Gate(self.models.stdout.readline().split()[-1])
        self.env |= {"MODELS": self.gate.url, "MODEL_KEY": KEY}
        self.started, self.process, self.shown = [], None, ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gate.close()
        for process in [*self.started, self.models]:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)
        self.models.stdout.close()
        kept = b"".join(path.read_bytes() for path in self.path.rglob("*") if path.is_file())
        for folder in (self.path, self.theirs):
            shutil.rmtree(folder, ignore_errors=True)
        plain = (kept + self.shown.encode()).replace(b"\\\\", b"\\")  # as it stands in strings
        assert KEY.encode() not in plain and ESCAPED.encode() not in plain, "the key was kept or shown"

    def start(self, *words, **more):
        process = subprocess.Popen([BIN, *words], cwd=self.path, env={**self.env, **more.pop("env", {})}, text=True,
                                   stdin=subprocess.DEVNULL, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})
        self.started.append(process)
        return process

    def serve(self):
        self.process = self.start("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json", stderr=subprocess.DEVNULL)
        url = json.loads(self.process.stdout.readline())["listening"]
        self.address = urllib.parse.urlsplit(url).netloc

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.shown += text
        assert answer.status < 400, (answer.status, text)
        return json.loads(text)

    def make(self, agent, x, job="j", held=False):
        if held:
            self.gate.open.clear()
        return self.ask("POST", "/api/jobs", {"agent": agent, "id": job, "input": {"x": x}})

    def job(self, job="j"):
        return self.ask("GET", f"/api/jobs/{job}")

    def ended(self, job="j"):
        return until(lambda: (lambda j: j if j["status"] in ("completed", "failed", "cancelled") else None)(self.job(job)))

    def events(self, job="j"):
        return self.ask("GET", f"/api/jobs/{job}/events?limit=1000")["events"]

    def run(self, *words, code=0):
        done = subprocess.run([BIN, *words], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=PATIENCE,
                              stdin=subprocess.DEVNULL)
        self.shown += done.stdout + done.stderr
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def asked(self):
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


def answers(events):
    """(invocation, try) → what its record says."""
    return {(e["payload"]["invocation_id"], e["payload"]["try"]): e["payload"] for e in events
            if e["type"] == "tool_invocation_finished"}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


@both
def pieces_come_before_the_end_and_are_what_is_recorded(desk):
    desk.serve()
    desk.make("talk", "hello", held=True)
    stream = Stream(desk, "j")
    first = stream.until("said")
    assert desk.job()["status"] == "running" and not answers(desk.events()), "it was told at its end only"
    assert first["node_id"] == "a" and first["try"] == 1 and first["offset"] == 0 and LONG.startswith(first["text"]), first
    desk.gate.open.set()
    stream.rest()
    ended = answers(desk.events())
    said = stream.said()
    assert len([one for one in stream.seen if one[1] == "said"]) > 1, "it came in one piece"
    assert set(said) == set(ended), (said, ended)
    for key, text in said.items():
        recorded = ended[key]["result"]["text"]
        assert text == recorded == LONG and digest(text) == digest(recorded), key
    names = [name for _, name, _ in stream.seen]
    assert len(names) - 1 - names[::-1].index("said") < names.index("tool_invocation_finished"), names
    assert [int(i) for i, name, _ in stream.seen if name != "said"] == list(range(1, len(desk.events()) + 1)), "no event is missing"
    desk.make("whole", "hello", "w")
    whole = next(iter(answers((desk.ended("w"), desk.events("w"))[1]).values()))["result"]
    streamed = next(iter(ended.values()))["result"]
    assert {k: v for k, v in whole.items() if k != "usage"} == {k: v for k, v in streamed.items() if k != "usage"}, (whole, streamed)
    assert set(whole["usage"]) == set(streamed["usage"]), (whole, streamed)
    assert [a["stream"] for a in desk.asked()] == [True, False], desk.asked()


@both
def a_reader_that_comes_back_in_the_middle_has_all_of_it(desk):
    desk.serve()
    desk.make("talk", "hello", held=True)
    first = Stream(desk, "j")
    first.until("said")
    last = max(int(i) for i, _, _ in first.seen if i)
    first.close()
    again = Stream(desk, "j", after=last)
    told = again.until("said")
    assert told["offset"] == 0 and LONG.startswith(told["text"]), told
    assert not answers(desk.events()), "it was the end that was told"
    desk.gate.open.set()
    again.rest()
    assert list(again.said().values()) == [LONG], again.said()
    assert [int(i) for i, name, _ in again.seen if name != "said"] == list(range(last + 1, len(desk.events()) + 1))
    assert Stream(desk, "j").rest().said() == {}, "what is over is read in the log"


@both
def a_crash_in_mid_stream_leaves_no_half_answer(desk):
    desk.serve()
    desk.make("talk", "hello", held=True)
    stream = Stream(desk, "j")
    stream.until("said")
    desk.kill()
    desk.gate.open.set()
    try:
        stream.rest()
    except (http.client.IncompleteRead, ConnectionError):
        pass
    desk.serve()
    again = Stream(desk, "j").rest()
    job = desk.ended()
    assert job["status"] == "completed" and job["result"] == LONG, job
    ended = answers(desk.events())
    assert [p["outcome"] for p in ended.values() if p["outcome"] == "success"] == ["success"], ended
    assert all("text" not in json.dumps(p.get("result")) for p in ended.values() if p["outcome"] != "success"), ended
    success = [key for key, p in ended.items() if p["outcome"] == "success"]
    assert success[0][1] == 2 and len(desk.asked()) == 2, (ended, desk.asked())
    assert all(text == LONG and key == success[0] for key, text in again.said().items()), again.said()
    desk.run("verify", "j")


@both
def a_stream_that_breaks_is_asked_for_again_and_tells_its_try(desk):
    desk.serve()
    for number, prompt in enumerate(("cut it", "error event")):
        name = f"j{number}"
        desk.make("talk", prompt, name)
        stream = Stream(desk, name).rest()
        job, ended = desk.ended(name), answers(desk.events(name))
        assert job["result"] == LONG, job
        codes = [p["error"]["code"] if p["outcome"] != "success" else "" for p in ended.values()]
        # One of the two providers has a word for what it would say with 529, the other has none.
        gave_up = {"openai": "http_500", "anthropic": "http_529"}[desk.provider]
        assert codes == [("reset", gave_up)[number], ""], ended
        tries = {attempt for _, attempt in stream.said()}
        assert tries == {1, 2}, (tries, "both tries are heard, each under its number")
        for (_, attempt), text in stream.said().items():
            assert LONG.startswith(text) and (attempt == 1 or text == LONG), (attempt, text)


@both
def a_key_that_a_provider_says_back_is_in_no_piece(desk):
    desk.serve()
    for name, expected in (("key", "Your key is [secret MODEL_KEY], and [secret MODEL_KEY]."),
                           ("escaped", '{"key": "[secret MODEL_KEY]", "a": "b\\n\\/c"}')):
        heard = 0
        for size in CUTS:
            job = f"{name}{size}"
            desk.make("talk", f"{name} in {size}s", job, held=True)
            stream = Stream(desk, job)
            desk.gate.open.set()
            stream.rest()
            assert KEY.encode() not in stream.raw and ESCAPED.encode() not in stream.raw.replace(b"\\\\", b"\\"), job
            assert desk.ended(job)["result"] == expected, (job, desk.job(job)["result"])
            heard += len(stream.said())
            assert all(text == expected for text in stream.said().values()), (job, stream.said())
        assert heard > 0, f"{name}: nothing was said while anybody listened"


@both
def a_cancel_closes_the_connection_and_the_job_is_over(desk):
    desk.serve()
    desk.make("talk", "hello", held=True)
    stream = Stream(desk, "j")
    stream.until("said")
    assert not desk.gate.gone.is_set()
    desk.ask("POST", "/api/jobs/j/cancel", {"reason": "enough"})
    assert desk.gate.gone.wait(PATIENCE), "the connection stayed open"
    stream.rest()
    job = desk.ended()
    assert job["status"] == "cancelled" and not job.get("in_doubt"), job
    assert [p["error"]["code"] for p in answers(desk.events()).values()] == ["abandoned"], answers(desk.events())
    assert len(desk.asked()) == 1, "nobody is asked again"


@test
def a_reader_that_does_not_read_holds_up_nobody(desk):
    desk.serve()
    desk.make("talk", "much, please", held=True)
    # By the socket of our own user: what the kernel keeps for a reader over TCP is more than an answer.
    slow = socket.socket(socket.AF_UNIX)
    slow.settimeout(PATIENCE)
    slow.connect(str(next(desk.path.rglob("*.sock"))))
    slow.sendall(f"GET /api/jobs/j/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    stream = Stream.of(slow)
    stream.until("tool_invocation_started")
    desk.gate.open.set()
    assert desk.ended()["result"] == MUCH
    desk.make("beside", "b", "k")
    assert desk.ended("k")["result"] == "b"
    # It misses the end of what was said, and no event: what it missed is there.
    stream.rest()
    slow.close()
    names = [name for _, name, _ in stream.seen]
    assert names[-1] == "job_completed", names
    assert [int(i) for i, name, _ in stream.seen if name != "said"] == list(range(1, len(desk.events()) + 1)), names
    (said,) = stream.said().values()
    assert MUCH.startswith(said) and len(said) < len(MUCH), len(said)
    recorded = [data["payload"]["result"]["text"] for _, name, data in stream.seen if name == "tool_invocation_finished"]
    assert recorded == [MUCH], "the event has all of it"


@both
def the_command_line_follows(desk):
    desk.serve()
    desk.make("talk", "hello", held=True)
    follower, reader = desk.start("events", "j", "-f", "--json", "--said"), desk.start("events", "j", "-f")
    plain = desk.start("events", "j", "-f", "--json")
    lines = []
    while not lines or "said" not in lines[-1]:
        lines.append(json.loads(follower.stdout.readline()))
    told = ""
    while "“" not in told:
        told += reader.stdout.read(1)
    assert not answers(desk.events()), "it was told at its end only"
    desk.gate.open.set()
    lines += [json.loads(line) for line in follower.stdout.read().splitlines()]
    pieces = [line["said"] for line in lines if "said" in line]
    assert "".join(p["text"] for p in pieces) == LONG, pieces
    assert [line for line in lines if "said" not in line] == desk.events()
    assert [json.loads(line) for line in plain.stdout.read().splitlines()] == desk.events(), "each line is an event"
    assert lines.index({"said": pieces[0]}) < [line.get("type") for line in lines].index("tool_invocation_finished")
    told = (told + reader.stdout.read()).split("“  a  ", 1)[1]
    assert told.startswith(LONG + "\n") and "tool_invocation_finished" in told, told
    chosen = desk.run("events", "j", "-f", "--json", "--said", "--type", "node_finished").stdout
    assert "said" not in chosen and len(chosen.splitlines()) == 1, chosen
    desk.run("events", "j", "--said", code=2)


@test
def a_run_on_a_terminal_shows_what_is_said_and_a_pipe_does_not(desk):
    words = ("run", "agents.yaml", "talk", "--input", json.dumps({"x": "hello"}))
    ours, theirs = pty.openpty()
    process = desk.start(*words, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # the other side has gone
        pass
    assert process.communicate(timeout=PATIENCE)[0] == LONG + "\n" and process.returncode == 0
    told = shown.decode().replace("\r\n", "\n")
    assert LONG.splitlines()[0] in told and "“" in told.split(LONG.splitlines()[0])[0], told
    os.close(ours)
    silent = desk.run(*words, "--job-id", "p")
    assert LONG.splitlines()[0] not in silent.stderr and silent.stdout.startswith(LONG.splitlines()[0]), silent.stderr


if __name__ == "__main__":
    sys.exit(run_tests("streaming", TESTS, " ".join(sys.argv[1:])))
