#!/usr/bin/env python3
"""After `redact --all` nothing of a job's values is readable but what the answer lists, in any form.

Jobs of every shape run on a SQLite store and on a PostgreSQL server: branches, a map, waits, a note, a failed call, a
large value, a loop, a model's answer, a plan that a model makes, a fork and its origin. Their values hold a mark.
Then the store (the files of SQLite, a dump of PostgreSQL), every view, the audit log and an archive are searched for
the mark, and for the SHA-256 of what can be guessed: inputs, arguments, messages, the creating request. Texts that
are no values hold another mark: each of them must be listed as kept.

  erasure.py [WORDS]   only tests whose name contains WORDS
"""
import hashlib
import json
import re
import subprocess
import sys
import urllib.request

sys.dont_write_bytecode = True
from shared import desk as shared  # noqa: E402
from shared.desk import BIN, run_tests  # noqa: E402
from postgres import Postgres  # noqa: E402

MARK = "ada-7f3a@x.org"  # in values
KEY = "sk-of-erasure-1"
KEPT = "kept-5c1e@x.org"  # in keys, notes and ids, which are no values
INPUT = {"mail": MARK, "people": [MARK, "bob-7f3a@x.org"], "key": KEPT}
AGENTS = """
aetheris: 1
tools:
  echo: { native: echo, effect: read }
  put:  { native: echo, effect: idempotent, args_schema: { type: object } }
  ask:  { native: echo, effect: idempotent, approval: required }
  bad:  { command: ["sh", "-c", "exit 1"], effect: read }
  buy:
    http: { method: POST, url: "${ env.TILL }/buy" }
    effect: idempotent
    changes:
      - { type: order, id: "${ .result.id }", op: create, version: "${ .result.version }", etag: "${ .result.etag }",
          ref: "${ .result.url }" }
  tell:
    command: ["sh", "-c", "printf '\\"KEPT\\"\\\\n' >&3; sleep 0.2; echo done"]
    effect: idempotent
models:
  chooses: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: chooses }
  plans:   { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: plans }
agents:
  shapes:
    plan:
      - { id: a, tool: echo, args: { to: "${ .input.mail }" } }
      - { id: yes, tool: put, needs: [a], when: "${ .input.mail != \\"\\" }", args: { to: "${ .input.mail }" } }
      - { id: no, tool: put, needs: [a], when: "${ .input.mail == \\"\\" }", args: { to: "${ .input.mail }" } }
      - { id: each, map: "${ .input.people }", needs: [a], do: { tool: put, args: { p: "${ .item }" } } }
      - { id: large, tool: put, needs: [a], args: { text: "${ .input.mail * 20000 }" } }
    output: "${ .steps.each }"
  asks:
    plan:
      - { id: w, wait: { type: signal, key: go } }
      - { id: p, tool: ask, needs: [w], args: { to: "${ .steps.w.mail }" } }
    output: "${ .steps.p }"
  fails:
    plan:
      - { id: a, tool: put, args: { to: "${ .input.mail }" } }
      - { id: b, tool: bad, needs: [a] }
  texts:
    plan:
      - { id: buy, tool: buy, args: { to: "${ .input.mail }" } }
      - { id: tell, tool: tell, needs: [buy] }
      - { id: key, needs: [tell], wait: { type: signal, key: "ask-${ .input.key }" } }
      - { id: said, needs: [key], wait: { type: message, channel: "KEPT" } }
      - { id: sure, needs: [said], wait: { type: human, key: "sure-${ .input.key }" } }
      - { id: p, tool: ask, needs: [sure], args: { to: "${ .input.mail }" } }
      - { id: last, needs: [p], wait: { type: signal, key: never } }
  loop: { loop: { model: chooses, system: "Write to people.", tools: [put, echo] } }
  asked:
    plan:
      - { id: line, llm: { model: chooses, prompt: "A line for ${ .input.mail }" } }
    output: "${ .steps.line.text }"
  planner:
    planner: { model: plans, system: "Make a plan.", tools: [put] }
""".replace("KEPT", KEPT)
CHOOSES = {"about": "Two calls, one of a tool that there is not, then the end.", "turns": [
    {"when": {"prompt": "line for"}, "say": f"Dear {MARK}, all is well."},
    {"when": {"turn": 1}, "call": [{"tool": "put", "args": {"to": MARK}},
                                   {"tool": f"wipe {KEPT}", "args": {"who": MARK}}]},
    {"say": f"Written to {MARK}."}]}
PLANS = {"about": "A plan of one call, whose text is the model's.", "turns": [
    {"say": {"nodes": [{"id": "a", "tool": "put", "args": json.dumps({"to": "${ .input.message }", "as": KEPT})}],
             "output": json.dumps({"done": "${ .steps.a }"})}}]}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Desk(shared.Desk):
    """A store of its own, in files."""

    def __init__(self):
        super().__init__([KEY])
        for name, scenario in (("chooses", CHOOSES), ("plans", PLANS)):
            (self.path / f"{name}.json").write_text(json.dumps(scenario))
            self.scenarios += ["--scenario", self.path / f"{name}.json"]
        (self.path / "agents.yaml").write_text(AGENTS)
        self.till.receipt = lambda body: {"id": f"id-{KEPT}", "version": f"v-{KEPT}", "etag": f"e-{KEPT}",
                                          "url": f"http://127.0.0.1/{KEPT}", "for": MARK}
        self.env |= {"TILL": self.till.url, "MODELS": self.open_models(), "MODEL_KEY": KEY, "NO_COLOR": "1",
                     "AETHERIS_STORE": f"sqlite:{self.path}/a.db"}

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def begin(self, agent, job, *words, code=0, given=None):
        return self.start(agent, given or INPUT, job, "--only", *words, code=code)

    def go_on(self, agent, job, code):
        return self.run("run", "agents.yaml", agent, "--job-id", job, "--only", code=code)

    def contents(self):
        """Every byte of the store that holds something."""
        return b"".join(path.read_bytes() for path in sorted(self.path.glob("a.db*")) if path.is_file())


class Shared(Desk):
    """Its store is a database of a server of our own."""

    def __init__(self):
        self.server = Postgres()
        super().__init__()
        self.env["AETHERIS_STORE"] = self.server.database()

    def contents(self):
        # Deleted rows stay on their pages until VACUUM (docs/operations.md): what the database holds is what it dumps.
        return self.server.program("pg_dump", self.env["AETHERIS_STORE"].rsplit("/", 1)[1]).encode()

    def close(self):
        super().close()
        self.server.end()


def guesses(desk, job):
    """Texts whose hashes would confirm a guess, from the log before it was redacted."""
    texts = [MARK.encode(), canonical(MARK)]
    for event in desk.events(job):
        payload = event["payload"]
        for name in ("arguments", "input", "payload", "result"):
            if name in payload:
                texts.append(canonical(payload[name]))
                said = payload[name].get("messages") if isinstance(payload[name], dict) else None
                texts += [canonical(message) for message in said or []]
        if event["type"] == "job_created":
            texts.append(canonical({"agent": payload["agent"], "input": payload["input"],
                                    "labels": payload.get("labels", {})}))
    # What is the same in every job, and holds no mark, is no guess of a value.
    return [text for text in texts if MARK.encode() in text]


def blinded(blind, text):
    return hashlib.sha256(b"aetheris.blind.v1" + blind.encode() + text).hexdigest()


def expect_none_in(seen, texts, where):
    for form in (MARK.encode(), MARK.encode().hex().encode()):
        at = seen.find(form)
        assert at < 0, (where, seen[max(0, at - 300):][:600])
    for text in texts:
        digest = hashlib.sha256(text)
        assert digest.digest() not in seen and digest.hexdigest().encode() not in seen, (where, text[:500])
        assert digest.hexdigest()[:16].encode() not in seen, (where, text[:500])


def expect_gone(desk, job, texts):
    seen = desk.contents()
    for view in ("events", "trace", "job", "replay", "verify"):
        seen += desk.run(view, job, "--json", code=0).stdout.encode()
    expect_none_in(seen + desk.run("audit", "--json", code=0).stdout.encode(), texts, job)
    proof = desk.json("verify", job)
    assert proof["ok"], proof
    assert "the blind is gone" in proof["proofs"]["ledger"]["detail"], proof


def listed(kept):
    """{what: numbers of its events} of an answer's list."""
    assert kept and all(set(one) == {"what", "where", "why"} for one in kept), kept
    return {one["what"]: set(map(int, re.findall(r"\d+", one["where"]))) for one in kept}


def expect_listed(desk, job, kept):
    """Each text of the log that is still there is in the list, with its event. Gives their names."""
    kept, found = listed(kept), set()
    for event in desk.events(job):
        for name, value in event["payload"].items():
            if KEPT in json.dumps(value):
                what = f"{event['type']}.{name}"
                assert what in kept and event["seq"] in kept[what], (what, event, kept)
                found.add(what)
    return found


def ended(desk):
    """{job: texts} of jobs of every shape, all of which have ended."""
    desk.begin("shapes", "shapes")
    desk.begin("asks", "asks", code=4)
    desk.run("signal", "asks", "go", json.dumps({"mail": MARK}), code=0)
    desk.go_on("asks", "asks", 4)
    approval, = desk.approvals()
    desk.run("approve", approval["id"], code=0)
    desk.go_on("asks", "asks", 0)
    desk.begin("fails", "fails", code=1)
    desk.begin("loop", "loop", given={"message": f"Write to {MARK}."})
    desk.begin("asked", "asked")
    desk.begin("planner", "planner", given={"message": f"Write to {MARK}."})
    return {job: guesses(desk, job) for job in ("shapes", "asks", "fails", "loop", "asked", "planner")}


SHAPE = {"shapes": {"decision_recorded.payload", "the number of items of a map"},
         "asks": {"the names and hashes of an approval"}, "fails": {"tool_invocation_finished.error.code"},
         "loop": {"which tools a model chose"}, "asked": set(), "planner": {"plan_generated.task_graph"}}


def nothing_of_an_ended_job_is_readable(desk):
    before = ended(desk)
    for job in before:
        assert MARK in desk.run("events", job, "--json").stdout, job
        body = desk.json("redact", job, "--all", "--reason", "by request")
        assert {"field": "blind", "seq": 1} in body["redacted"], body
        assert SHAPE[job] | {"names and ids", "copies"} <= listed(body["kept"]).keys(), (job, body["kept"])
        expect_listed(desk, job, body["kept"])
        again = desk.json("redact", job, "--all", "--reason", "again")
        assert again["redacted"] == [] and again["kept"] == body["kept"], again
    for job, texts in before.items():
        expect_gone(desk, job, texts)
    desk.run("prune", "--older-than", "0s", "--archive", "archive", code=0)
    assert desk.json("jobs")["jobs"] == []
    for job, texts in before.items():
        expect_none_in((desk.path / f"archive/{job}.json").read_bytes(), texts, job)
    expect_none_in(desk.contents(), [text for texts in before.values() for text in texts], "a store without its jobs")


def each_text_that_is_no_value_is_listed_by_the_command_and_by_the_api(desk):
    desk.begin("texts", "t", "--label", f"who={KEPT}", "--idempotency-key", KEPT, code=4)
    desk.run("signal", "t", f"ask-{KEPT}", json.dumps(MARK), "--message-id", KEPT, code=0)
    desk.run("message", "t", KEPT, json.dumps(MARK), "--message-id", f"m-{KEPT}", code=0)
    desk.go_on("texts", "t", 4)
    for _ in range(2):  # the human wait, then the call
        approval, = desk.approvals()
        desk.run("approve", approval["id"], "--note", f"note of {KEPT}", code=0)
        desk.go_on("texts", "t", 4)
    desk.run("pause", "t", "--reason", f"paused for {KEPT}", code=0)
    desk.run("resume", "t", code=0)
    desk.run("cancel", "t", "--reason", f"cancelled for {KEPT}", code=0)
    desk.go_on("texts", "t", 1)
    texts = guesses(desk, "t")
    body = desk.json("redact", "t", "--all", "--reason", f"of {KEPT}")
    found = expect_listed(desk, "t", body["kept"])
    assert found >= {
        "tool_invocation_finished.external_id", "state_changed.resource_id", "state_changed.version",
        "state_changed.etag", "state_changed.external_ref", "wait_opened.correlation_key", "wait_opened.channel",
        "wait_completed.correlation_key", "wait_completed.signal_id", "agent_message.channel",
        "agent_message.message_id", "job_cancel_requested.reason", "job_created.labels",
        "job_created.idempotency_key", "progress.detail"}, sorted(found)
    assert {"labels", "idempotency_key", "the reason"} <= listed(body["kept"]).keys(), body["kept"]
    expect_gone(desk, "t", texts)
    server = subprocess.Popen([BIN, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"], cwd=desk.path,
                              env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, text=True)
    try:
        url = json.loads(server.stdout.readline())["listening"]
        wish = json.dumps({"all": True, "reason": "again"}).encode()
        request = urllib.request.Request(f"{url}/api/jobs/t/redact", wish)
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.load(answer)
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    assert told == {**body, "redacted": []}, told
    text = desk.run("redact", "t", "--all", "--reason", "again", code=0).stdout
    assert all(f"kept {one['what']}, {one['where']}: {one['why']}\n" in text for one in body["kept"]), text


def forks_are_named_and_go_with_the_tree(desk):
    desk.begin("fails", "one", code=1)
    desk.run("fork", "one", "--at", "2", "--job-id", "two", "--repeat-effects", code=0)
    desk.begin("fails", "two", code=1)
    done = desk.run("redact", "one", "--all", "--reason", "x", code=2)
    assert "two" in done.stderr and "--tree" in done.stderr, done.stderr
    kept = desk.json("redact", "one", "--all", "--keep-forks", "--reason", "x")["kept"]
    assert any(one["where"] == "job two" for one in kept), kept
    assert MARK in desk.run("events", "two", "--json").stdout
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    assert [fork["job_id"] for fork in body["forks"]] == ["two"], body
    assert MARK.encode() not in desk.contents()


def a_fork_that_is_redacted_alone_names_the_jobs_that_keep_its_blind(desk):
    desk.begin("fails", "one", code=1)
    texts = guesses(desk, "one")
    for fork in ("two", "three"):
        desk.run("fork", "one", "--at", "2", "--job-id", fork, "--repeat-effects", code=0)
        desk.begin("fails", fork, code=1)
    blind = desk.events("one")[0]["payload"]["blind"]
    assert desk.events("two")[0]["payload"]["blind"] == blind
    body = desk.json("redact", "two", "--all", "--reason", "x")
    holders = {one["where"] for one in body["kept"] if one["what"] == "blind"}
    assert holders == {"job one", "job three"}, body["kept"]
    # What the list is for: with the blind of the origin a guess is confirmed by a hash that the fork keeps.
    sent = next(e["payload"] for e in desk.events("two") if e["type"] == "tool_invocation_started")
    assert sent["arguments_hash"] == blinded(blind, canonical({"to": MARK})), sent
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    assert [fork["job_id"] for fork in body["forks"]] == ["three"], body
    assert not [one for one in body["kept"] if one["what"] == "blind"], body["kept"]
    assert blind.encode() not in desk.contents(), "no job has it any more"
    for job in ("one", "two", "three"):
        expect_gone(desk, job, texts)


def what_a_fork_took_over_of_a_loop_is_erased_or_listed(desk):
    desk.begin("loop", "one", given={"message": f"Write to {MARK}."})
    texts = guesses(desk, "one")
    second = [event["seq"] for event in desk.events("one") if event["payload"].get("kind") == "tool_choice"][1]
    desk.run("fork", "one", "--at", str(second), "--job-id", "two", code=0)
    desk.go_on("loop", "two", 0)
    texts += guesses(desk, "two")
    taken, = [event["payload"] for event in desk.events("two") if event["type"] == "fork_imported"]
    assert KEPT in json.dumps(taken["commands"]), "the name of a tool that was refused is taken over"
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    fork, = body["forks"]
    assert "fork_imported.commands" in expect_listed(desk, "two", fork["kept"]), fork["kept"]
    assert expect_listed(desk, "one", body["kept"]) == set(), "of the origin the refused name is erased"
    for job in ("one", "two"):
        expect_gone(desk, job, texts)


def the_same_request_is_the_same_job_also_after_it(desk):
    words = ("run", "agents.yaml", "shapes", "--input", json.dumps(INPUT), "--idempotency-key", "order-1")
    desk.run(*words, code=0)
    job = desk.json("jobs")["jobs"][0]["id"]
    desk.run(*words, code=0)
    assert len(desk.json("jobs")["jobs"]) == 1
    desk.run("redact", job, "--all", "--reason", "x", code=0)
    desk.run(*words, code=0)
    assert len(desk.json("jobs")["jobs"]) == 1


ON_BOTH = (nothing_of_an_ended_job_is_readable, each_text_that_is_no_value_is_listed_by_the_command_and_by_the_api,
           what_a_fork_took_over_of_a_loop_is_erased_or_listed)


def on_postgres(test):
    def run(desk):
        test(desk)
    run.__name__ = "on_postgres_" + test.__name__
    return run


if __name__ == "__main__":
    failed = run_tests("erasure", ON_BOTH + (forks_are_named_and_go_with_the_tree,
                                             a_fork_that_is_redacted_alone_names_the_jobs_that_keep_its_blind,
                                             the_same_request_is_the_same_job_also_after_it), Desk)
    failed |= run_tests("erasure", [on_postgres(test) for test in ON_BOTH], Shared)
    sys.exit(failed)
