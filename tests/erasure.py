#!/usr/bin/env python3
"""After `redact --all` no value of a job is readable in any form, except what the answer lists as kept.

Jobs of every kind run on a SQLite store and on a PostgreSQL server: branches, a map, waits, a note, a failed call, a large
value, a loop, a model answer, a model-generated plan, recorded values, a compensation, an edited approval, a question of a
tool, a raised budget, an unknown outcome that is resolved after the end, a fork and its origin. Their values contain a mark.
Then the files of the store (with its write-ahead log; of PostgreSQL the data directory without the WAL), every view, the audit
log, a backup and an archive are searched for the mark, and for the SHA-256 of everything that can be guessed: inputs,
arguments, messages, the creating request. This runs without an owner, and with an owner that runs other jobs meanwhile. Texts
that are not values contain another mark; each must be listed as kept.

  erasure.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
from shared import desk as shared  # noqa: E402
from shared.desk import ROOT, run_tests  # noqa: E402
from shared.home import until  # noqa: E402
from shared.postgres_server import Postgres  # noqa: E402
from shared.program import TESTING_BIN  # noqa: E402

MARK = "ada-7f3a@x.org"  # in values
KEY = "sk-of-erasure-1"
KEPT = "kept-5c1e@x.org"  # in keys, notes and ids, which are not values
INPUT = {"mail": MARK, "people": [MARK, "bob-7f3a@x.org"], "key": KEPT}
AGENTS = """
aetheris: 1
tools:
  echo: { native: echo, effect: read }
  put:  { native: echo, effect: idempotent, args_schema: { type: object } }
  ask:  { native: echo, effect: idempotent, approval: required }
  clock: { native: now }
  dice: { native: random }
  id:   { native: uuid }
  lost: { native: doubt, on_in_doubt: fail }
  charge: { native: echo, effect: idempotent, compensate: { tool: put, args: { back: "${ .result.to }" } } }
  slow:
    command: ["sh", "-c", "touch began; while [ ! -e go ]; do sleep 0.05; done"]
    effect: read
    timeout: 60s
  s:    { mcp: { command: ["PYTHON", "-B", "SERVER", "--journal", "journal", "--era", "modern", "--tools", "tools.json"] } }
  bad:  { command: ["sh", "-c", "exit 1"], effect: read }
  buy:
    http: { method: POST, url: "${ env.SHOP }/buy" }
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
  values:
    plan:
      - { id: at, tool: clock }
      - { id: roll, tool: dice, args: { min: 100000000000000, max: 900000000000000 } }
      - { id: name, tool: id, args: { version: 4 } }
      - { id: sent, tool: put, needs: [at, roll, name], args: { n: "${ .steps.roll }", id: "${ .steps.name }", ms: "${ .steps.at.ms }" } }
    output: "${ .steps }"
  undone:
    plan:
      - { id: a, tool: charge, args: { to: "${ .input.mail }" } }
      - { id: b, tool: bad, needs: [a] }
  edited: { plan: [ { id: p, tool: ask, args: { to: "${ .input.mail }" } } ], output: "${ .steps.p }" }
  question: { plan: [ { id: q, tool: s.send, args: { to: "${ .input.mail }" } } ], output: "${ .steps.q }" }
  spends:
    budget: { tool_calls: 1 }
    plan:
      - { id: a, tool: put, args: { to: "${ .input.mail }" } }
      - { id: b, tool: put, needs: [a], args: { again: "${ .input.mail }" } }
    output: "${ .steps.b }"
  doubted:
    plan: [ { id: a, tool: lost, args: { message: "${ .input.mail }" }, on_error: continue } ]
    output: "${ .input.mail }"
  held:
    plan:
      - { id: s, tool: slow }
      - { id: w, wait: { type: signal, key: go } }
    output: "${ .steps.w }"
  other: { plan: [ { id: a, tool: put, args: { text: "${ .input.text }" } } ] }
  loop: { loop: { model: chooses, system: "Write to people.", tools: [put, echo] } }
  asked:
    plan:
      - { id: line, llm: { model: chooses, prompt: "A line for ${ .input.mail }" } }
    output: "${ .steps.line.text }"
  planner:
    planner: { model: plans, system: "Make a plan.", tools: [put] }
""".replace("KEPT", KEPT).replace("PYTHON", sys.executable).replace("SERVER", str(ROOT / "tests/shared/mcp_server.py"))
CHOOSES = {"about": "Two calls, one of a tool that there is not, then the end.", "turns": [
    {"when": {"prompt": "line for"}, "text": f"Dear {MARK}, all is well."},
    {"when": {"turn": 1}, "call": [{"tool": "put", "args": {"to": MARK}},
                                   {"tool": f"wipe {KEPT}", "args": {"who": MARK}}]},
    {"text": f"Written to {MARK}."}]}
PLANS = {"about": "A plan of one call, whose text is the model's.", "turns": [
    {"text": {"nodes": [{"id": "a", "tool": "put", "args": json.dumps({"to": "${ .input.message }", "as": KEPT})}],
             "output": json.dumps({"done": "${ .steps.a }"})}}]}


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Desk(shared.Desk):
    """Its store is a SQLite file."""
    program = TESTING_BIN

    def __init__(self):
        super().__init__([KEY])
        for name, scenario in (("chooses", CHOOSES), ("plans", PLANS)):
            (self.path / f"{name}.json").write_text(json.dumps(scenario))
            self.scenarios += ["--scenario", self.path / f"{name}.json"]
        (self.path / "agents.yaml").write_text(AGENTS)
        (self.path / "tools.json").write_text(json.dumps({"send": {"description": "Sends", "inputSchema": {"type": "object"}}}))
        self.shop.receipt = lambda body: {"id": f"id-{KEPT}", "version": f"v-{KEPT}", "etag": f"e-{KEPT}",
                                          "url": f"http://127.0.0.1/{KEPT}", "for": MARK}
        self.env |= {"SHOP": self.shop.url, "MODELS": self.open_models(), "MODEL_KEY": KEY, "NO_COLOR": "1",
                     "AETHERIS_STORE": f"sqlite:{self.path}/a.db"}

    def json(self, *words, code=0):
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def create_job(self, agent, job, *words, code=0, given=None):
        return self.start(agent, given or INPUT, job, "--only", *words, code=code)

    def resume(self, agent, job, code):
        return self.run("run", "agents.yaml", agent, "--job-id", job, "--only", code=code)

    def approve(self, *words):
        approval, = self.approvals()
        self.run("approve", approval["id"], *words, code=0)

    def contents(self):
        """All bytes of the store and of a backup."""
        seen = b"".join(path.read_bytes() for path in sorted(self.path.glob("a.db*")) if path.is_file())
        return seen + self.backup()

    def backup(self):
        copy = self.path / "copy"
        copy.unlink(missing_ok=True)
        self.run("backup", copy, code=0)
        return copy.read_bytes()


class Shared(Desk):
    """Its store is a database of a private server."""

    def __init__(self):
        self.server = Postgres()
        super().__init__()
        self.env["AETHERIS_STORE"] = self.server.database()
        self.start("other", {"text": ""}, "first", "--only", code=0)  # creates the tables
        # Large values are not compressed: in compressed ones the mark would not be found.
        for table, column in (("commits", "body"), ("blobs", "bytes"), ("effects", "record"), ("inbox", "act"),
                              ("checkpoints", "body"), ("ledger", "record")):
            self.sql(f"ALTER TABLE aetheris.{table} ALTER {column} SET STORAGE EXTERNAL")

    def sql(self, text):
        return self.server.program("psql", self.env["AETHERIS_STORE"].rsplit("/", 1)[1], "-Atc", text).strip()

    def contents(self):
        """Every file of the server without its WAL, which the answer lists; and a dump."""
        self.sql("CHECKPOINT")
        place, seen = pathlib.Path(self.sql("SHOW data_directory")), []
        for path in sorted(place.rglob("*")):
            if path.is_file() and place / "pg_wal" not in path.parents:
                with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                    seen.append(path.read_bytes())
        return b"".join(seen) + self.backup()

    def backup(self):
        return self.server.program("pg_dump", self.env["AETHERIS_STORE"].rsplit("/", 1)[1]).encode()

    def close(self):
        super().close()
        self.server.end()


class WithOwner:
    """With a process that owns or shares the store and continuously runs other jobs."""

    def __init__(self):
        super().__init__()
        self.owner = subprocess.Popen([TESTING_BIN, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"], cwd=self.path,
                                      env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      stdin=subprocess.DEVNULL, text=True)
        self.url = json.loads(self.owner.stdout.readline())["listening"]
        self.stop, self.made = threading.Event(), 0
        self.load = threading.Thread(target=self.run_others)
        self.load.start()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def run_others(self):
        while not self.stop.wait(0.02):
            with contextlib.suppress(urllib.error.URLError):  # a busy moment
                self.post("/api/jobs", {"agent": "other", "input": {"text": "x" * 500}})
                self.made += 1

    def create_job(self, agent, job, *words, code=0, given=None):
        self.post("/api/jobs", {"agent": agent, "id": job, "input": given or INPUT})
        self.resume(agent, job, code)

    def resume(self, agent, job, code):
        expected = {0: ("completed",), 1: ("failed", "cancelled"), 4: ("waiting", "parked")}[code]
        until(lambda: self.json("job", job)["status"] in expected)

    def close(self):
        self.stop.set()
        self.load.join()
        self.owner.terminate()
        self.owner.wait()
        self.owner.stdout.close()
        super().close()


class DeskWithOwner(WithOwner, Desk):
    pass


class SharedWithOwner(WithOwner, Shared):
    pass


def guessable_texts(desk, job):
    """Texts whose hashes would confirm a guess, from the log before its redaction."""
    texts = [MARK.encode(), canonical(MARK)]
    for event in desk.events(job):
        payload = event["payload"]
        for name in ("arguments", "input", "payload", "result"):
            if name in payload:
                texts.append(canonical(payload[name]))
                result = payload[name].get("messages") if isinstance(payload[name], dict) else None
                texts += [canonical(message) for message in result or []]
                if isinstance(payload[name], dict) and "arguments" in payload[name]:
                    texts.append(canonical(payload[name]["arguments"]))
        if event["type"] == "job_created":
            texts.append(canonical({"agent": payload["agent"], "input": payload["input"],
                                    "labels": payload.get("labels", {})}))
    # Texts without the mark are the same in every job and reveal no value.
    return [text for text in texts if MARK.encode() in text]


def blinded(blind, text):
    return hashlib.sha256(b"aetheris.blind.v1" + blind.encode() + text).hexdigest()


def expect_none_in(seen, texts, where):
    for form in (MARK.encode(), MARK.encode().hex().encode()):
        at = seen.find(form)
        assert at < 0, (where, seen[max(0, at - 300):][:600])
    for form in RECORDED:  # the milliseconds of a commit's instant, which stays, can be those of a recorded time
        found = re.search(rb"(?<!\d)" + re.escape(form) + rb"(?!\d)", seen)
        assert not found, (where, form, seen[max(0, found.start() - 300):][:600])
    for text in set(texts):
        digest = hashlib.sha256(text)
        assert digest.digest() not in seen and digest.hexdigest().encode() not in seen, (where, text[:500])
        assert digest.hexdigest()[:16].encode() not in seen, (where, text[:500])


def expect_gone(desk, job, texts):
    expect_none_in(desk.contents(), texts, job)
    expect_none_shown(desk, job, texts)


def expect_none_shown(desk, job, texts):
    seen = b""
    for view in ("events", "trace", "job", "replay", "verify"):
        seen += desk.run(view, job, "--json", code=0).stdout.encode()
    expect_none_in(seen + desk.run("audit", "--json", code=0).stdout.encode(), texts, job)
    proof = desk.json("verify", job)
    assert proof["ok"], proof
    assert "the blind is gone" in proof["proofs"]["ledger"]["detail"], proof


RECORDED = set()  # values that were recorded without a call


def note_recorded(desk, job):
    for event in desk.events(job):
        if event["type"] in ("random_recorded", "uuid_recorded"):
            RECORDED.add(str(event["payload"]["value"]).encode())
        elif event["type"] == "time_recorded":
            RECORDED.add(str(event["payload"]["value"]["ms"]).encode())


def listed(kept):
    """{what: numbers of its events} of an answer's list."""
    assert kept and all(set(one) == {"what", "where", "why"} for one in kept), kept
    return {one["what"]: set(map(int, re.findall(r"\d+", one["where"]))) for one in kept}


def expect_listed(desk, job, kept):
    """Each text that the log still contains is listed with its event. Returns their names."""
    kept, found = listed(kept), set()
    for event in desk.events(job):
        for name, value in event["payload"].items():
            if KEPT in json.dumps(value):
                what = f"{event['type']}.{name}"
                assert what in kept and event["seq"] in kept[what], (what, event, kept)
                found.add(what)
    return found


def ended(desk):
    """{job: texts} of ended jobs of every kind."""
    desk.create_job("shapes", "shapes")
    desk.create_job("asks", "asks", code=4)
    desk.run("signal", "asks", "go", json.dumps({"mail": MARK}), code=0)
    if not isinstance(desk, WithOwner):
        desk.resume("asks", "asks", 4)
    until(desk.approvals)
    desk.approve()
    desk.resume("asks", "asks", 0)
    desk.create_job("fails", "fails", code=1)
    desk.create_job("loop", "loop", given={"message": f"Write to {MARK}."})
    desk.create_job("asked", "asked")
    desk.create_job("planner", "planner", given={"message": f"Write to {MARK}."})
    desk.create_job("values", "values")
    RECORDED.clear()
    note_recorded(desk, "values")
    desk.create_job("undone", "undone", code=1)
    assert [event["type"] for event in desk.events("undone")].count("command_committed") == 2, "it is compensated"
    desk.create_job("edited", "edited", code=4)
    desk.approve("--arguments", json.dumps({"to": "edited-" + MARK}))
    desk.resume("edited", "edited", 0)
    desk.create_job("question", "question", code=4)
    desk.approve("--arguments", json.dumps({"to": "answered-" + MARK}))
    desk.resume("question", "question", 0)
    desk.create_job("spends", "spends", code=4)
    desk.run("budget", "spends", "--tool-calls", "5", code=0)
    desk.resume("spends", "spends", 0)
    desk.create_job("doubted", "doubted")
    doubt, = desk.json("job", "doubted")["in_doubt"]
    desk.run("resolve", "doubted", doubt["idempotency_key"], "happened", json.dumps({"to": MARK}), code=0)
    assert desk.events("doubted")[-1]["type"] == "outcome_noted"
    return {job: guessable_texts(desk, job) for job in SHAPE}


SHAPE = {"shapes": {"decision_recorded.payload", "the number of items of a map"},
         "asks": {"the names and hashes of an approval"}, "fails": {"tool_invocation_finished.error.code"},
         "loop": {"which tools a model chose"}, "asked": set(), "planner": {"plan_generated.task_graph"},
         "values": set(), "undone": {"tool_invocation_finished.error.code"}, "edited": {"the names and hashes of an approval"},
         "question": set(), "spends": set(), "doubted": set()}


def no_value_of_an_ended_job_is_readable_after_redaction(desk):
    before = ended(desk)
    for job in before:
        assert MARK in desk.run("events", job, "--json").stdout, job
        body = desk.json("redact", job, "--all", "--reason", "by request")
        assert {"field": "blind", "seq": 1} in body["redacted"], body
        assert SHAPE[job] | {"names and ids", "copies"} <= listed(body["kept"]).keys(), (job, body["kept"])
        expect_listed(desk, job, body["kept"])
        again = desk.json("redact", job, "--all", "--reason", "again")
        assert again["redacted"] == [] and again["kept"] == body["kept"], again
        beside = {"copies of values"} if isinstance(desk, Shared) else set()  # the server's log, and nothing else
        assert {one["what"] for one in body["kept"] if one["what"] == "copies of values"} == beside, body["kept"]
    seen = desk.contents()  # immediately: the owner has had no idle time
    expect_none_in(seen, [text for texts in before.values() for text in texts], "right after the answers")
    for job, texts in before.items():
        expect_none_shown(desk, job, texts)
    if isinstance(desk, WithOwner):
        assert desk.made > 0 and desk.owner.poll() is None
        return
    desk.run("prune", "--older-than", "0s", "--archive", "archive", code=0)
    assert desk.json("jobs")["jobs"] == []
    for job, texts in before.items():
        expect_none_in((desk.path / f"archive/{job}.json").read_bytes(), texts, job)
    expect_none_in(desk.contents(), [text for texts in before.values() for text in texts], "a store without its jobs")


def a_request_that_waited_in_the_inbox_leaves_no_value(desk):
    desk.post("/api/jobs", {"agent": "held", "id": "held", "input": {}})
    until(lambda: (desk.path / "began").exists())
    desk.run("signal", "held", "go", json.dumps({"mail": MARK}), code=0)  # a worker has leased the job
    (desk.path / "go").touch()
    desk.resume("held", "held", 0)
    texts = guessable_texts(desk, "held")
    desk.run("redact", "held", "--all", "--reason", "by request", code=0)
    expect_none_in(desk.contents(), texts, "held")


def statistics_of_postgresql_contain_no_value(desk):
    texts = []
    for job in ("one", "two", "three"):
        desk.create_job("edited", job, code=4)
        texts += guessable_texts(desk, job)
    desk.sql("ANALYZE")
    seen = desk.sql("SELECT * FROM pg_stats WHERE schemaname = 'aetheris'")
    assert "|job_id|" in seen, "there are samples"
    expect_none_in(seen.encode(), texts, "the statistics of the server")


def without_table_ownership_the_remaining_copies_are_listed(desk):
    desk.create_job("other", "one", given={"text": MARK})
    desk.sql("CREATE ROLE works LOGIN; GRANT USAGE ON SCHEMA aetheris TO works;"
             "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA aetheris TO works;"
             "GRANT USAGE ON ALL SEQUENCES IN SCHEMA aetheris TO works")
    desk.env["AETHERIS_STORE"] = desk.env["AETHERIS_STORE"].replace("aetheris@", "works@")
    kept = desk.json("redact", "one", "--all", "--reason", "x")["kept"]
    place, = [one for one in kept if one["where"].startswith("old rows in the pages")]
    assert "does not own" in place["why"] and "VACUUM FULL" in place["why"] and ".commits" in place["why"], place


def each_kept_text_is_listed_by_the_command_and_the_api(desk):
    desk.create_job("texts", "t", "--label", f"who={KEPT}", "--idempotency-key", KEPT, code=4)
    desk.run("signal", "t", f"ask-{KEPT}", json.dumps(MARK), "--message-id", KEPT, code=0)
    desk.run("message", "t", KEPT, json.dumps(MARK), "--message-id", f"m-{KEPT}", code=0)
    desk.resume("texts", "t", 4)
    for _ in range(2):  # the human wait, then the call
        approval, = desk.approvals()
        desk.run("approve", approval["id"], "--note", f"note of {KEPT}", code=0)
        desk.resume("texts", "t", 4)
    desk.run("pause", "t", "--reason", f"paused for {KEPT}", code=0)
    desk.run("resume", "t", code=0)
    desk.run("cancel", "t", "--reason", f"cancelled for {KEPT}", code=0)
    desk.resume("texts", "t", 1)
    texts = guessable_texts(desk, "t")
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
    server = subprocess.Popen([TESTING_BIN, "serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json"], cwd=desk.path,
                              env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, text=True)
    try:
        url = json.loads(server.stdout.readline())["listening"]
        body_sent = json.dumps({"all": True, "reason": "again"}).encode()
        request = urllib.request.Request(f"{url}/api/jobs/t/redact", body_sent)
        with urllib.request.urlopen(request, timeout=60) as answer:
            answered = json.load(answer)
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    assert answered == {**body, "redacted": []}, answered
    text = desk.run("redact", "t", "--all", "--reason", "again", code=0).stdout
    assert all(f"kept {one['what']}, {one['where']}: {one['why']}\n" in text for one in body["kept"]), text


def forks_are_reported_and_redacted_with_tree(desk):
    desk.create_job("fails", "one", code=1)
    desk.run("fork", "one", "--at", "2", "--job-id", "two", "--repeat-effects", code=0)
    desk.create_job("fails", "two", code=1)
    done = desk.run("redact", "one", "--all", "--reason", "x", code=2)
    assert "two" in done.stderr and "--tree" in done.stderr, done.stderr
    kept = desk.json("redact", "one", "--all", "--keep-forks", "--reason", "x")["kept"]
    assert any(one["where"] == "job two" for one in kept), kept
    assert MARK in desk.run("events", "two", "--json").stdout
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    assert [fork["job_id"] for fork in body["forks"]] == ["two"], body
    assert MARK.encode() not in desk.contents()


def redacting_a_fork_alone_lists_the_jobs_that_keep_its_blind(desk):
    desk.create_job("fails", "one", code=1)
    texts = guessable_texts(desk, "one")
    for fork in ("two", "three"):
        desk.run("fork", "one", "--at", "2", "--job-id", fork, "--repeat-effects", code=0)
        desk.create_job("fails", fork, code=1)
    blind = desk.events("one")[0]["payload"]["blind"]
    assert desk.events("two")[0]["payload"]["blind"] == blind
    body = desk.json("redact", "two", "--all", "--reason", "x")
    holders = {one["where"] for one in body["kept"] if one["what"] == "blind"}
    assert holders == {"job one", "job three"}, body["kept"]
    # Why the list matters: with the blind of the origin, a hash that the fork keeps confirms a guess.
    sent = next(e["payload"] for e in desk.events("two") if e["type"] == "tool_invocation_started")
    assert sent["arguments_hash"] == blinded(blind, canonical({"to": MARK})), sent
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    assert [fork["job_id"] for fork in body["forks"]] == ["three"], body
    assert not [one for one in body["kept"] if one["what"] == "blind"], body["kept"]
    assert blind.encode() not in desk.contents(), "no job has the blind"
    for job in ("one", "two", "three"):
        expect_gone(desk, job, texts)


def values_that_a_fork_imported_from_a_loop_are_erased_or_listed(desk):
    desk.create_job("loop", "one", given={"message": f"Write to {MARK}."})
    texts = guessable_texts(desk, "one")
    second = [event["seq"] for event in desk.events("one") if event["payload"].get("kind") == "tool_choice"][1]
    desk.run("fork", "one", "--at", str(second), "--job-id", "two", code=0)
    desk.resume("loop", "two", 0)
    texts += guessable_texts(desk, "two")
    imported, = [event["payload"] for event in desk.events("two") if event["type"] == "fork_imported"]
    assert KEPT in json.dumps(imported["commands"]), "the name of a rejected tool is imported"
    body = desk.json("redact", "one", "--all", "--tree", "--reason", "x")
    fork, = body["forks"]
    assert "fork_imported.commands" in expect_listed(desk, "two", fork["kept"]), fork["kept"]
    assert expect_listed(desk, "one", body["kept"]) == set(), "of the origin the refused name is erased"
    for job in ("one", "two"):
        expect_gone(desk, job, texts)


def a_repeated_request_returns_the_same_job_after_redaction(desk):
    words = ("run", "agents.yaml", "shapes", "--input", json.dumps(INPUT), "--idempotency-key", "order-1")
    desk.run(*words, code=0)
    job = desk.json("jobs")["jobs"][0]["id"]
    desk.run(*words, code=0)
    assert len(desk.json("jobs")["jobs"]) == 1
    desk.run("redact", job, "--all", "--reason", "x", code=0)
    desk.run(*words, code=0)
    assert len(desk.json("jobs")["jobs"]) == 1


ON_BOTH = (no_value_of_an_ended_job_is_readable_after_redaction, each_kept_text_is_listed_by_the_command_and_the_api,
           values_that_a_fork_imported_from_a_loop_are_erased_or_listed)


def on_postgres(test):
    def run(desk):
        test(desk)
    run.__name__ = "on_postgres_" + test.__name__
    return run


def with_an_owner(test):
    def run(desk):
        test(desk)
    run.__name__ = "with_an_owner_" + test.__name__
    return run


if __name__ == "__main__":
    failed = run_tests("erasure", ON_BOTH + (forks_are_reported_and_redacted_with_tree,
                                             redacting_a_fork_alone_lists_the_jobs_that_keep_its_blind,
                                             a_repeated_request_returns_the_same_job_after_redaction), Desk)
    owned = (with_an_owner(no_value_of_an_ended_job_is_readable_after_redaction), a_request_that_waited_in_the_inbox_leaves_no_value)
    failed |= run_tests("erasure", owned, DeskWithOwner)
    failed |= run_tests("erasure", [on_postgres(test) for test in ON_BOTH + (
        statistics_of_postgresql_contain_no_value, without_table_ownership_the_remaining_copies_are_listed)], Shared)
    failed |= run_tests("erasure", [on_postgres(test) for test in owned], SharedWithOwner)
    sys.exit(failed)
