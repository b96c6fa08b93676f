#!/usr/bin/env python3
"""After `redact --all` nothing of a job's values is readable but what the answer lists, in any form.

Jobs of every shape that needs no model run on a real SQLite store: branches, a map, an approval, a signal, a note, a fork, a failed
call. Their values hold a mark. Then the store's files, every view and an archive are searched for the mark, and for the SHA-256 of
what can be guessed: the input, each call's arguments, the creating request. Says `ok NAME` or `not ok NAME`.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT", pathlib.Path(__file__).resolve().parent.parent))
BIN = os.environ.get("AETHERIS_BIN", str(ROOT / "build/dev/aetheris"))
MARK = "ada-7f3a@x.org"
INPUT = {"mail": MARK, "people": [MARK, "bob-7f3a@x.org"]}
AGENTS = """
aetheris: 1
tools:
  echo: { native: echo, effect: read }
  put:  { native: echo, effect: idempotent, args_schema: { type: object } }
  ask:  { native: echo, effect: idempotent, approval: required }
  bad:  { command: ["sh", "-c", "exit 1"], effect: read }
agents:
  shapes:
    plan:
      - { id: a, tool: echo, args: { to: "${ .input.mail }" } }
      - { id: yes, tool: put, needs: [a], when: "${ .input.mail != \\"\\" }", args: { to: "${ .input.mail }" } }
      - { id: no, tool: put, needs: [a], when: "${ .input.mail == \\"\\" }", args: { to: "${ .input.mail }" } }
      - { id: each, map: "${ .input.people }", needs: [a], do: { tool: put, args: { p: "${ .item }" } } }
    output: "${ .steps }"
  asks:
    plan:
      - { id: w, wait: { type: signal, key: go } }
      - { id: p, tool: ask, needs: [w], args: { to: "${ .steps.w.mail }" } }
    output: "${ .steps.p }"
  fails:
    plan:
      - { id: a, tool: put, args: { to: "${ .input.mail }" } }
      - { id: b, tool: bad, needs: [a] }
"""


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "a.db"
        self.agents = folder / "agents.yaml"
        self.agents.write_text(AGENTS)

    def run(self, *arguments, code=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        done = subprocess.run([BIN, "--store", f"sqlite:{self.file}", *arguments], env=dict(env, NO_COLOR="1"),
                              cwd=self.folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments, code=0):
        return json.loads(self.run(*arguments, "--json", code=code))

    def start(self, agent, job, code=0, data=INPUT):
        return self.run("run", str(self.agents), agent, "--job-id", job, "--only", "--input", json.dumps(data), code=code)

    def files(self):
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("a.db*")) if path.is_file())


def guesses(store, job):
    """Texts whose hashes would confirm a guess, from the log before it was redacted."""
    texts = [canonical(INPUT), MARK.encode(), canonical(MARK)]
    for event in store.json("events", job)["events"]:
        payload = event["payload"]
        for name in ("arguments", "input", "payload", "result"):
            if name in payload:
                texts.append(canonical(payload[name]))
        if event["type"] == "job_created":
            texts.append(canonical({"agent": payload["agent"], "input": payload["input"],
                                    "labels": payload.get("labels", {})}))
    # What is the same in every job, and holds no mark, is no guess of a value.
    return [text for text in texts if MARK.encode() in text]


def expect_gone(store, job, texts):
    seen = store.files()
    for view in (("events", job), ("trace", job), ("job", job), ("replay", job), ("verify", job)):
        seen += store.run(*view, "--json").encode()
    seen += store.run("audit", "--json").encode()
    assert MARK.encode() not in seen, (job, seen[max(0, seen.index(MARK.encode()) - 300):][:600])
    for text in texts:
        digest = hashlib.sha256(text)
        assert digest.digest() not in seen and digest.hexdigest().encode() not in seen, (job, text)
        assert digest.hexdigest()[:16].encode() not in seen, (job, text)
    proof = store.json("verify", job)
    assert proof["ok"], proof
    assert "the blind is gone" in proof["proofs"]["ledger"]["detail"], proof


def ended(store):
    """{job: texts} of jobs of every shape, all of which have ended."""
    store.start("shapes", "shapes")
    store.start("asks", "asks", code=4)
    store.run("signal", "asks", "go", json.dumps({"mail": MARK}))
    store.start("asks", "asks", code=4)
    approval = store.json("approvals")["approvals"][0]["id"]
    store.run("approve", approval)
    store.start("asks", "asks")
    store.start("fails", "fails", code=1)
    return {job: guesses(store, job) for job in ("shapes", "asks", "fails")}


def nothing_of_an_ended_job_is_readable():
    with tempfile.TemporaryDirectory() as folder:
        store = Store(pathlib.Path(folder))
        before = ended(store)
        for job in before:
            assert MARK in store.run("events", job, "--json"), job
            body = store.json("redact", job, "--all", "--reason", "she asked")
            assert body["kept"] and all(set(one) == {"what", "where", "why"} for one in body["kept"]), body
            assert {"field": "blind", "seq": 1} in body["redacted"], body
            if job == "shapes":
                listed = {one["what"] for one in body["kept"]}
                assert {"decision_recorded.payload", "the number of items of a map"} <= listed, listed
            again = store.json("redact", job, "--all", "--reason", "again")
            assert again["redacted"] == [], again
        for job, texts in before.items():
            expect_gone(store, job, texts)


def forks_are_named_and_go_with_the_tree():
    with tempfile.TemporaryDirectory() as folder:
        store = Store(pathlib.Path(folder))
        store.start("fails", "one", code=1)
        store.run("fork", "one", "--at", "2", "--job-id", "two", "--repeat-effects")
        store.start("fails", "two", code=1)
        store.run("redact", "one", "--all", "--reason", "x", code=2)
        kept = store.json("redact", "one", "--all", "--keep-forks", "--reason", "x")["kept"]
        assert any(one["where"] == "job two" for one in kept), kept
        assert MARK in store.run("events", "two", "--json")
        body = store.json("redact", "one", "--all", "--tree", "--reason", "x")
        assert [fork["job_id"] for fork in body["forks"]] == ["two"], body
        assert MARK.encode() not in store.files()


def the_same_request_is_the_same_job_also_after_it():
    with tempfile.TemporaryDirectory() as folder:
        store = Store(pathlib.Path(folder))
        key = ("--idempotency-key", "order-1")
        store.run("run", str(store.agents), "shapes", "--input", json.dumps(INPUT), *key)
        job = store.json("jobs")["jobs"][0]["id"]
        store.run("run", str(store.agents), "shapes", "--input", json.dumps(INPUT), *key)
        assert len(store.json("jobs")["jobs"]) == 1
        store.run("redact", job, "--all", "--reason", "x")
        store.run("run", str(store.agents), "shapes", "--input", json.dumps(INPUT), *key)
        assert len(store.json("jobs")["jobs"]) == 1


failed = 0
for test in (nothing_of_an_ended_job_is_readable, forks_are_named_and_go_with_the_tree,
             the_same_request_is_the_same_job_also_after_it):
    name = test.__name__.replace("_", " ")
    try:
        test()
        print(f"ok erasure: {name}")
    except AssertionError as why:
        failed = 1
        print(f"not ok erasure: {name}\n# {why}")
sys.exit(failed)
