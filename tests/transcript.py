#!/usr/bin/env python3
"""`aetheris transcript`, with the scripted model server: the messages and answers of a model, its calls with their results, and
approvals, in order; while the job runs; as JSON, in a pipe and on a terminal; from a closed store, from the owner of the store
and over HTTP; after a redaction and for a fork.

  transcript.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pty
import re
import select
import subprocess
import sys

sys.dont_write_bytecode = True
from shared.home import Skip, until  # noqa: E402
from shared import desk as shared  # noqa: E402
from shared.desk import BIN, SCENARIOS, run_tests  # noqa: E402

KEY = "sk-of-transcripts-1"
PATIENCE = 60
# Members of an entry that do not contain text of a user, a model or a tool.
MEASURED = ("at", "seq", "step_id", "duration_us", "cost_micros", "usage")
AGENTS = """\
aetheris: 1
tools:
  get_order:
    description: Look an order up
    http: { method: GET, url: "${ env.SHOP }/orders/${ .args.id }" }
    effect: read
  refund:
    description: Pay an order back
    http: { method: POST, url: "${ env.SHOP }/refunds" }
    effect: idempotent
    approval: required
  say: { native: echo, effect: read }
  never: { command: ["false"], effect: idempotent }
models:
  refund: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: refund, price: { input: "1", output: "2" } }
  instant: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: instant }
agents:
  refund: { loop: { model: refund, system: You are kind., tools: [get_order, refund] } }
  long: { loop: { model: instant, tools: [say], max_turns: 300 } }
  note: { plan: [ { id: note, llm: { model: instant, prompt: "Note ${ .input.message }" } } ] }
  plain:
    plan:
      - { id: first, tool: say, args: { text: "${ .input.message }" } }
      - { id: no, tool: say, when: "${ false }" }
      - { id: bad, tool: never, needs: [first] }
"""


class Desk(shared.Desk):
    def __init__(self):
        super().__init__([KEY], *(SCENARIOS / f"{name}.json" for name in ("refund", "instant")))
        (self.path / "agents.yaml").write_text(AGENTS)
        self.env |= {"SHOP": self.shop.url, "MODELS": self.open_models(), "MODEL_KEY": KEY}

    def job(self, agent, message, job="t", *words, **more):
        return self.start(agent, {"message": message}, job, *words, **more)

    def transcript(self, job="t", *words, **more):
        return self.run("transcript", job, *words, code=0, **more).stdout

    def entries(self, job="t", *words, **more):
        return json.loads(self.transcript(job, "--json", *words, **more))["entries"]

    def popen(self, *words, **more):
        more = {"env": self.env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([BIN, *words], cwd=self.path, text=True, stdin=subprocess.DEVNULL, **more)

    def serve(self, listen="127.0.0.1:0"):
        server = self.popen("serve", "agents.yaml", "--listen", listen, "--json")
        return server, json.loads(server.stdout.readline())["listening"]


def wait_for_end(process):
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()


def stop(server):
    server.terminate()
    return wait_for_end(server)


def expect_in_order(text, *parts):
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is missing after {text[:at]!r} in:\n{text}"
        at = found + len(part)


def a_conversation_is_shown_in_order_with_its_approval(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    waiting = desk.run("transcript", "t", code=0)
    expect_in_order(waiting.stdout, "job t · agent refund · waiting · 2 model answers · 1 tool call · ", "approval requested: refund")
    assert "aetheris job t" in waiting.stderr, waiting.stderr
    desk.run("approve", desk.approvals()[0]["id"], "--note", "as agreed", code=0)
    desk.job("refund", "Refund order 43, please.", code=0)
    text = desk.transcript()
    expect_in_order(text, "job t · agent refund · completed · 3 model answers · 2 tool calls · ", "cost 0.",
                    '[input] {"message":"Refund order 43, please."}', "node loop", "[system] You are kind.",
                    "[user] Refund order 43, please.", "turn 1 · model refund", "cost 0.", '→ get_order {"id":"43"}  (read)',
                    '← get_order {"id":"43","total":12}', " ms\n", "turn 2", "approval requested: refund ", '"amount":12',
                    "approval approved", "as agreed", '→ refund {"amount":12,"order":"43"}  (idempotent)', '← refund {', "turn 3",
                    "[assistant] 12 EUR was refunded for order 43.", "[completed] {")
    seen = json.loads(desk.transcript("t", "--json"))
    job = json.loads(desk.run("job", "t", "--json", code=0).stdout)
    for name in ("input_tokens", "output_tokens", "total_tokens", "tool_calls"):
        assert seen["totals"][name] == job["usage"][name], (name, seen["totals"], job["usage"])
    assert seen["totals"]["answers"] == job["usage"]["model_calls"], seen["totals"]
    costs = [entry["cost_micros"] for entry in seen["entries"] if entry["kind"] == "answer"]
    assert sum(costs) == seen["totals"]["cost_micros"] > 0, (costs, seen["totals"])
    assert seen["ended"] and seen["next"] is None
    seqs = [entry["seq"] for entry in seen["entries"]]
    assert seqs == sorted(seqs) and seen["entries"][-1]["kind"] == "end"


def a_plan_without_a_model_shows_its_calls(desk):
    desk.job("plain", "Hello", code=1)
    text = desk.transcript()
    expect_in_order(text, "failed · 2 tool calls", "node first", '→ say {"text":"Hello"}  (read)', '← say {"text":"Hello"}',
                    "node bad", "→ never {}  (idempotent)", "← never ✗ ", "[failed] ")
    assert "skipped" in text and "tokens" not in text.splitlines()[0], text


def a_model_node_shows_its_prompt_and_answer(desk):
    desk.job("note", "Hello", code=0)
    expect_in_order(desk.transcript(), "node note", "[user] Note Hello", "model instant", "token", "[assistant] Done in turn 1.")


def following_continues_across_owners(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    piped = desk.path / "piped.txt"
    with open(piped, "wb") as out:
        follower = desk.popen("transcript", "t", "-f", stdout=out)
    lines = desk.popen("transcript", "t", "-f", "--json")
    until(lambda: "approval requested" in piped.read_text())
    assert piped.read_text().startswith("job t · agent refund · waiting"), piped.read_text()
    desk.run("approve", desk.approvals()[0]["id"], code=0)
    desk.job("refund", "Refund order 43, please.", code=0)
    (_, err), (jsonl, _) = wait_for_end(follower), wait_for_end(lines)
    assert follower.returncode == 0 and lines.returncode == 0, err
    text = piped.read_text()
    expect_in_order(text, "[input]", "approval requested", "approval approved", "turn 3", "[completed]", "job t · agent refund · completed")
    assert text.count("turn 3") == text.count("[input]") == 1, text
    assert [json.loads(line) for line in jsonl.splitlines()] == desk.entries(), jsonl


def following_continues_across_a_crash_of_the_server(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    server, url = desk.serve()
    out, err = desk.path / "out.txt", desk.path / "err.txt"
    with open(out, "wb") as to, open(err, "wb") as warnings:
        follower = desk.popen("transcript", "t", "-f", "--json", stdout=to, stderr=warnings, env={**desk.env, "AETHERIS_URL": url})
    try:
        until(lambda: '"requested"' in out.read_text())
        server.kill()
        wait_for_end(server)
        until(lambda: "the connection is lost" in err.read_text())
        server, _ = desk.serve(url.removeprefix("http://"))
        until(lambda: "the connection is available again" in err.read_text())
        desk.run("approve", desk.approvals()[0]["id"], code=0)
        wait_for_end(follower)
    finally:
        follower.kill()
        stop(server)
    assert follower.returncode == 0, err.read_text()
    assert [json.loads(line) for line in out.read_text().splitlines()] == desk.entries(), out.read_text()
    warnings = err.read_text().splitlines()
    assert len(warnings) == 2 and url in warnings[0], warnings


def following_fails_after_a_minute_without_a_server(desk):
    if os.environ.get("AETHERIS_SLOW_TESTS") != "1":
        raise Skip("slow: set AETHERIS_SLOW_TESTS=1 to run it")
    desk.job("refund", "Refund order 43, please.", code=4)
    server, url = desk.serve()
    followers = []
    try:
        for command in ("transcript", "events"):
            out = desk.path / command
            with open(out, "wb") as to:
                followers.append(desk.popen(command, "t", "-f", stdout=to, env={**desk.env, "AETHERIS_URL": url}))
            until(lambda: out.read_text())
        stop(server)
        for follower in followers:
            _, err = follower.communicate(timeout=2 * PATIENCE)
            assert follower.returncode == 7 and len(err.splitlines()) == 2, err
            assert "the connection is lost" in err and "no connection for " in err and "[unavailable]" in err, err
    finally:
        for process in (server, *followers):
            process.kill()
            process.wait()


def the_transcript_is_the_same_over_http_socket_and_store(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    closed, text = desk.entries(), desk.transcript()
    server, url = desk.serve()
    try:
        assert desk.entries() == closed and desk.transcript() == text, "the owner's socket"
        assert desk.entries("t", AETHERIS_URL=url) == closed and desk.transcript("t", AETHERIS_URL=url) == text, "HTTP"
        follower = desk.popen("transcript", "t", "-f")
        desk.run("approve", desk.approvals()[0]["id"], code=0)
        followed, err = wait_for_end(follower)
        assert follower.returncode == 0 and "[completed]" in followed, err
        none = desk.run("transcript", "nobody", AETHERIS_URL=url)
        assert none.returncode == 3 and "nobody" in none.stderr, none
    finally:
        stop(server)
    assert desk.run("transcript", "nobody").returncode == 3


def long_texts_are_truncated_on_a_terminal_only(desk):
    long = "word " * 2000
    desk.job("note", long, code=0)
    piped = desk.transcript()
    assert f"[user] Note {long}" in piped and "…" not in piped
    for words, whole in ((["transcript", "t"], False), (["transcript", "t", "-v"], True)):
        text = on_terminal(desk, words)
        # 2,000 times in the input and in the prompt.
        assert (text.count("word") == 4000) == whole, (words, text.count("word"))
        assert ("-v shows them whole" in text) != whole, words


def on_terminal(desk, words):
    """The output on a terminal, of stdout and stderr."""
    master, slave = pty.openpty()
    process = subprocess.Popen([BIN, *words], cwd=desk.path, env={**desk.env, "TERM": "xterm", "COLUMNS": "80"}, stdin=slave,
                               stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    while select.select([master], [], [], PATIENCE)[0]:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(master)
    assert process.wait(timeout=PATIENCE) == 0, text
    return text.decode()


def a_long_transcript_is_complete_and_can_be_paged(desk):
    desk.job("long", "40 turns", code=0)
    entries = desk.entries()
    answers = sum(entry["kind"] == "answer" for entry in entries)
    assert answers == len(desk.model_requests()) == 40, (answers, len(desk.model_requests()))
    server, url = desk.serve()
    try:
        joined, after = [], 0
        while after is not None:
            page = json.loads(fetch(f"{url}/api/jobs/t/transcript?limit=7&after={after}"))
            assert len(page["entries"]) <= 10, len(page["entries"])
            joined, after = joined + page["entries"], page["next"]
        assert joined == entries
    finally:
        stop(server)


def fetch(url):
    return subprocess.run(["curl", "-sf", url], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def redacted_values_are_marked_and_not_shown(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    desk.run("approve", desk.approvals()[0]["id"], code=0)
    desk.job("refund", "Refund order 43, please.", code=0)
    desk.run("redact", "t", "--all", "--reason", "test", code=0)
    text = desk.transcript()
    expect_in_order(text, "[input] (redacted)", "[user] (redacted)", "[assistant] (redacted)", "→ get_order (redacted)",
                    "← get_order (redacted)", "[completed] (redacted)")
    values = re.sub(r"[\d,]+ tokens?|cost [\d.]+|\d+ ms", "", text)  # without what the program measures
    assert not any(word in values for word in ("kind", "Refund order", "12", "43")), text
    assert text.count("[user]") == 1, text
    for entry in desk.entries():
        values = {name: value for name, value in entry.items() if name not in MEASURED}
        assert not any(word in json.dumps(values) for word in ("You are", "Refund order", "12", "43")), entry


def a_fork_shows_the_turns_of_its_origin(desk):
    desk.job("refund", "Refund order 43, please.", code=4)
    desk.run("cancel", "t", code=0)
    last = desk.events()[-1]["seq"]
    forked = desk.run("fork", "t", "--at", str(last), "--job-id", "f")
    assert forked.returncode == 0, forked
    expect_in_order(desk.transcript("f"), "fork of t", "(from the origin)", "[system] You are kind.", "turn 1", "→ get_order")


TESTS = [a_conversation_is_shown_in_order_with_its_approval, a_plan_without_a_model_shows_its_calls,
         a_model_node_shows_its_prompt_and_answer, following_continues_across_owners,
         following_continues_across_a_crash_of_the_server, following_fails_after_a_minute_without_a_server,
         the_transcript_is_the_same_over_http_socket_and_store, long_texts_are_truncated_on_a_terminal_only,
         a_long_transcript_is_complete_and_can_be_paged, redacted_values_are_marked_and_not_shown, a_fork_shows_the_turns_of_its_origin]

if __name__ == "__main__":
    sys.exit(run_tests("transcript", TESTS, Desk))
