#!/usr/bin/env python3
"""Streamed model answers, over both protocols, with a provider that streams.

Deltas equal the recorded answer byte for byte; a crash, a cut or a slow reader leaves no partial answer.
Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
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
from shared.home import run_tests, until  # noqa: E402
from shared.program import BIN  # noqa: E402

ROOT = oracles.ROOT
SERVER = ROOT / "examples/model-server/server.mjs"
KEY = "sk-canary-0815-never-shown"
ESCAPED = f"\\u{ord(KEY[0]):04x}" + KEY[1:].replace("-", "\\u002d")
PATIENCE = 60
LONG = "Ein Satz, der dauert: äöü 日本語 🙂 “so”.\nUnd noch einer. " * 4
MUCH, MUCH_PIECES = "0123456789abcdef" * 60_000, 240
HELD_AFTER = 2000  # bytes of an answer: its head, and a few deltas
CUTS = (1, 2, 3, 5, 8, 13, 21, len(KEY), len(KEY) + 1)  # every one: src/llm/model_tool_secret_test.cc
TALK = {"turns": [
    {"when": {"prompt": "cut"}, "fail": {"cut_after": 3}, "text": LONG},
    {"when": {"prompt": "error event"}, "fail": {"error_after": 3, "status": 529}, "text": LONG},
    *({"when": {"prompt": f"key in {size}s"}, "text": f"Your key is {KEY}, and {KEY}.", "piece": size} for size in CUTS),
    *({"when": {"prompt": f"escaped in {size}s"}, "text": '{"key": "' + ESCAPED + '", "a": "b\\n\\/c"}', "piece": size} for size in CUTS),
    {"when": {"prompt": "much"}, "text": MUCH, "piece": len(MUCH) // MUCH_PIECES},
    {"text": LONG}]}
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


class HeldConnection:
    """A proxy to the provider that can pause within an answer; `gone` is set when the client has disconnected."""

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
            threading.Thread(target=self.request, args=(ours, theirs), daemon=True).start()
            threading.Thread(target=self.answer, args=(ours, theirs), daemon=True).start()

    def request(self, ours, theirs):
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
        """A stream that was requested on this connection."""
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

    def read_to_end(self):
        while self.next():
            pass
        return self

    def deltas(self):
        """The joined deltas of each try; their offsets have no gap."""
        texts = {}
        for ident, name, data in self.seen:
            if name != "said":
                continue
            assert ident is None, "a delta has no id: a reader resumes after an event"
            key = (data["invocation_id"], data["try"])
            text = texts.setdefault(key, b"")
            assert data["offset"] == len(text), (data, len(text))
            texts[key] = text + data["text"].encode()
        return {key: text.decode() for key, text in texts.items()}

    def close(self):
        self.answer.close()
        self.connection.close()


class Desk:
    """A folder with an agents file, a running provider, and servers that are started and killed."""

    def __init__(self, provider):
        self.provider = provider
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-streaming-"))
        self.theirs = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-streaming-provider-"))
        (self.path / "agents.yaml").write_text(AGENTS.format(provider=provider))
        (self.theirs / "talk.json").write_text(json.dumps(TALK))
        self.journal = self.theirs / "requests.jsonl"
        self.models = subprocess.Popen(
            [oracles.node(), SERVER, "--key", KEY, "--journal", self.journal, "--scenario", self.theirs / "talk.json"],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.gate = HeldConnection(self.models.stdout.readline().split()[-1])
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
        plain = (kept + self.shown.encode()).replace(b"\\\\", b"\\")  # as in JSON strings
        assert KEY.encode() not in plain and ESCAPED.encode() not in plain, "the key was stored or shown"

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

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.shown += text
        assert answer.status < 400, (answer.status, text)
        return json.loads(text)

    def create_job(self, agent, x, job="j", held=False):
        if held:
            self.gate.open.clear()
        return self.request("POST", "/api/jobs", {"agent": agent, "id": job, "input": {"x": x}})

    def job(self, job="j"):
        return self.request("GET", f"/api/jobs/{job}")

    def ended(self, job="j"):
        return until(lambda: (lambda j: j if j["status"] in ("completed", "failed", "cancelled") else None)(self.job(job)))

    def events(self, job="j"):
        return self.request("GET", f"/api/jobs/{job}/events?limit=1000")["events"]

    def run(self, *words, code=0):
        done = subprocess.run([BIN, *words], cwd=self.path, env=self.env, capture_output=True, text=True, timeout=PATIENCE,
                              stdin=subprocess.DEVNULL)
        self.shown += done.stdout + done.stderr
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def requests(self):
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


def recorded_answers(events):
    """(invocation, try) → its recorded payload."""
    return {(e["payload"]["invocation_id"], e["payload"]["try"]): e["payload"] for e in events
            if e["type"] == "tool_invocation_finished"}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


@both
def deltas_arrive_before_the_end_and_match_the_recorded_answer(desk):
    desk.serve()
    desk.create_job("talk", "hello", held=True)
    stream = Stream(desk, "j")
    first = stream.until("said")
    assert desk.job()["status"] == "running" and not recorded_answers(desk.events()), "deltas arrived only at the end"
    assert first["node_id"] == "a" and first["try"] == 1 and first["offset"] == 0 and LONG.startswith(first["text"]), first
    desk.gate.open.set()
    stream.read_to_end()
    ended = recorded_answers(desk.events())
    texts = stream.deltas()
    assert len([one for one in stream.seen if one[1] == "said"]) > 1, "there was only one delta"
    assert set(texts) == set(ended), (texts, ended)
    for key, text in texts.items():
        recorded = ended[key]["result"]["text"]
        assert text == recorded == LONG and digest(text) == digest(recorded), key
    names = [name for _, name, _ in stream.seen]
    assert len(names) - 1 - names[::-1].index("said") < names.index("tool_invocation_finished"), names
    assert [int(i) for i, name, _ in stream.seen if name != "said"] == list(range(1, len(desk.events()) + 1)), "no event is missing"
    desk.create_job("whole", "hello", "w")
    whole = next(iter(recorded_answers((desk.ended("w"), desk.events("w"))[1]).values()))["result"]
    streamed = next(iter(ended.values()))["result"]
    assert {k: v for k, v in whole.items() if k != "usage"} == {k: v for k, v in streamed.items() if k != "usage"}, (whole, streamed)
    assert set(whole["usage"]) == set(streamed["usage"]), (whole, streamed)
    assert [a["stream"] for a in desk.requests()] == [True, False], desk.requests()


@both
def a_reader_that_reconnects_receives_the_whole_answer(desk):
    desk.serve()
    desk.create_job("talk", "hello", held=True)
    first = Stream(desk, "j")
    first.until("said")
    last = max(int(i) for i, _, _ in first.seen if i)
    first.close()
    again = Stream(desk, "j", after=last)
    shown_text = again.until("said")
    assert shown_text["offset"] == 0 and LONG.startswith(shown_text["text"]), shown_text
    assert not recorded_answers(desk.events()), "the delta was the complete answer"
    desk.gate.open.set()
    again.read_to_end()
    assert list(again.deltas().values()) == [LONG], again.deltas()
    assert [int(i) for i, name, _ in again.seen if name != "said"] == list(range(last + 1, len(desk.events()) + 1))
    assert Stream(desk, "j").read_to_end().deltas() == {}, "an ended call has no deltas"


@both
def a_crash_during_a_stream_records_no_partial_answer(desk):
    desk.serve()
    desk.create_job("talk", "hello", held=True)
    stream = Stream(desk, "j")
    stream.until("said")
    desk.kill()
    desk.gate.open.set()
    try:
        stream.read_to_end()
    except (http.client.IncompleteRead, ConnectionError):
        pass
    desk.serve()
    again = Stream(desk, "j").read_to_end()
    job = desk.ended()
    assert job["status"] == "completed" and job["result"] == LONG, job
    ended = recorded_answers(desk.events())
    assert [p["outcome"] for p in ended.values() if p["outcome"] == "success"] == ["success"], ended
    assert all("text" not in json.dumps(p.get("result")) for p in ended.values() if p["outcome"] != "success"), ended
    success = [key for key, p in ended.items() if p["outcome"] == "success"]
    assert success[0][1] == 2 and len(desk.requests()) == 2, (ended, desk.requests())
    assert all(text == LONG and key == success[0] for key, text in again.deltas().items()), again.deltas()
    desk.run("verify", "j")


@both
def a_broken_stream_is_retried_and_deltas_carry_the_try_number(desk):
    desk.serve()
    for number, prompt in enumerate(("cut it", "error event")):
        name = f"j{number}"
        desk.create_job("talk", prompt, name)
        stream = Stream(desk, name).read_to_end()
        job, ended = desk.ended(name), recorded_answers(desk.events(name))
        assert job["result"] == LONG, job
        codes = [p["error"]["code"] if p["outcome"] != "success" else "" for p in ended.values()]
        # One of the two providers has an error type for 529, the other has none.
        gave_up = {"openai": "http_500", "anthropic": "http_529"}[desk.provider]
        assert codes == [("reset", gave_up)[number], ""], ended
        tries = {attempt for _, attempt in stream.deltas()}
        assert tries == {1, 2}, (tries, "both tries are streamed, each with its number")
        for (_, attempt), text in stream.deltas().items():
            assert LONG.startswith(text) and (attempt == 1 or text == LONG), (attempt, text)


@both
def an_api_key_echoed_by_a_provider_is_redacted_from_deltas(desk):
    desk.serve()
    for name, expected in (("key", "Your key is [secret MODEL_KEY], and [secret MODEL_KEY]."),
                           ("escaped", '{"key": "[secret MODEL_KEY]", "a": "b\\n\\/c"}')):
        streamed = 0
        for size in CUTS:
            job = f"{name}{size}"
            desk.create_job("talk", f"{name} in {size}s", job, held=True)
            stream = Stream(desk, job)
            desk.gate.open.set()
            stream.read_to_end()
            assert KEY.encode() not in stream.raw and ESCAPED.encode() not in stream.raw.replace(b"\\\\", b"\\"), job
            assert desk.ended(job)["result"] == expected, (job, desk.job(job)["result"])
            streamed += len(stream.deltas())
            assert all(text == expected for text in stream.deltas().values()), (job, stream.deltas())
        assert streamed > 0, f"{name}: no delta was streamed"


@both
def a_cancel_closes_the_connection_and_ends_the_job(desk):
    desk.serve()
    desk.create_job("talk", "hello", held=True)
    stream = Stream(desk, "j")
    stream.until("said")
    assert not desk.gate.gone.is_set()
    desk.request("POST", "/api/jobs/j/cancel", {"reason": "enough"})
    assert desk.gate.gone.wait(PATIENCE), "the connection stayed open"
    stream.read_to_end()
    job = desk.ended()
    assert job["status"] == "cancelled" and not job.get("in_doubt"), job
    assert [p["error"]["code"] for p in recorded_answers(desk.events()).values()] == ["abandoned"], recorded_answers(desk.events())
    assert len(desk.requests()) == 1, "the call is not repeated"


@test
def a_reader_that_does_not_read_blocks_no_job(desk):
    desk.serve()
    desk.create_job("talk", "much, please", held=True)
    # Over the Unix socket: the kernel buffers more than an answer for a TCP reader.
    slow = socket.socket(socket.AF_UNIX)
    slow.settimeout(PATIENCE)
    slow.connect(str(next(desk.path.rglob("*.sock"))))
    slow.sendall(f"GET /api/jobs/j/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    stream = Stream.of(slow)
    stream.until("tool_invocation_started")
    desk.gate.open.set()
    assert desk.ended()["result"] == MUCH
    desk.create_job("beside", "b", "k")
    assert desk.ended("k")["result"] == "b"
    # It misses the last deltas, and no event: the events contain the answer.
    stream.read_to_end()
    slow.close()
    names = [name for _, name, _ in stream.seen]
    assert names[-1] == "job_completed", names
    assert [int(i) for i, name, _ in stream.seen if name != "said"] == list(range(1, len(desk.events()) + 1)), names
    (texts,) = stream.deltas().values()
    assert MUCH.startswith(texts) and len(texts) < len(MUCH), len(texts)
    recorded = [data["payload"]["result"]["text"] for _, name, data in stream.seen if name == "tool_invocation_finished"]
    assert recorded == [MUCH], "the event has the whole answer"


@both
def events_follow_prints_deltas(desk):
    desk.serve()
    desk.create_job("talk", "hello", held=True)
    follower, reader = desk.start("events", "j", "-f", "--json", "--partial-output"), desk.start("events", "j", "-f")
    plain = desk.start("events", "j", "-f", "--json")
    lines = []
    while not lines or "partial_output" not in lines[-1]:
        lines.append(json.loads(follower.stdout.readline()))
    shown_text = ""
    while "“" not in shown_text:
        shown_text += reader.stdout.read(1)
    assert not recorded_answers(desk.events()), "deltas arrived only at the end"
    desk.gate.open.set()
    lines += [json.loads(line) for line in follower.stdout.read().splitlines()]
    pieces = [line["partial_output"] for line in lines if "partial_output" in line]
    assert "".join(p["text"] for p in pieces) == LONG, pieces
    assert [line for line in lines if "partial_output" not in line] == desk.events()
    assert [json.loads(line) for line in plain.stdout.read().splitlines()] == desk.events(), "every line is an event"
    assert lines.index({"partial_output": pieces[0], "said": pieces[0]}) < [line.get("type") for line in lines].index("tool_invocation_finished")
    shown_text = (shown_text + reader.stdout.read()).split("“  a  ", 1)[1]
    assert shown_text.startswith(LONG + "\n") and "tool_invocation_finished" in shown_text, shown_text
    chosen = desk.run("events", "j", "-f", "--json", "--partial-output", "--type", "node_finished").stdout
    assert "partial_output" not in chosen and len(chosen.splitlines()) == 1, chosen
    desk.run("events", "j", "--partial-output", code=2)


@test
def run_prints_partial_output_on_a_terminal_only(desk):
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
    shown_text = shown.decode().replace("\r\n", "\n")
    assert LONG.splitlines()[0] in shown_text and "“" in shown_text.split(LONG.splitlines()[0])[0], shown_text
    os.close(ours)
    silent = desk.run(*words, "--job-id", "p")
    assert LONG.splitlines()[0] not in silent.stderr and silent.stdout.startswith(LONG.splitlines()[0]), silent.stderr


if __name__ == "__main__":
    sys.exit(run_tests("streaming", TESTS, " ".join(sys.argv[1:])))
