#!/usr/bin/env python3
"""Store files of every released version can be opened: each job in them verifies, folds to its recorded state and continues.

  golden_store.py                  compares every testdata/golden/*/store.db with testdata/golden/*/store.json
  golden_store.py --write VERSION  writes a new pair with this program; existing files are never overwritten
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from shared.program import ROOT, TESTING_BIN

GOLDEN = ROOT / "testdata/golden"
AGENTS = r"""
aetheris: 1
tools:
  hello: { native: echo, effect: read }
  count:
    command: ["sh", "-c", "if [ \"$AETHERIS_TRY\" = 1 ]; then exit 75; fi; cat"]
    effect: idempotent
    retry: { max_attempts: 3, initial_backoff: 1ms, retry_on: [exit_75] }
  no:    { command: ["sh", "-c", "exit 1"], effect: read }
  lost:  { native: doubt, on_in_doubt: fail }
agents:
  greets:
    labels: { made: by-hand }
    plan:
      - { id: a, tool: hello, args: { n: "${ .input.n }" } }
      - { id: skipped, tool: hello, when: "${ .input.n > 5 }" }
      - { id: each, map: "${ .input.list }", needs: [a], do: { tool: count, args: { i: "${ .item }" } } }
    output: "${ .steps }"
  asks:
    plan:
      - { id: t, wait: { type: timer, for: 1ms } }
      - { id: w, wait: { type: signal, key: "go", expires: 3650d }, needs: [t] }
      - { id: a, tool: hello, args: { said: "${ .steps.w }" }, needs: [w] }
    output: "${ .steps.a }"
  fails: { plan: [ { id: a, tool: no } ] }
  doubts:
    plan: [ { id: a, tool: lost, args: { message: "${ .input.to }" }, on_error: continue } ]
    output: "${ .input.to }"
"""


def aetheris(store, *arguments, code=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
    done = subprocess.run([TESTING_BIN, "--store", f"sqlite:{store}", *arguments], env=dict(env, NO_COLOR="1"), cwd=store.parent,
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout


def state_of_jobs(store):
    """The state of each job of a store, from commands that only read."""
    jobs = {}
    for job in json.loads(aetheris(store, "jobs", "--json"))["jobs"]:
        proof = json.loads(aetheris(store, "verify", job["id"], "--json"))
        events = json.loads(aetheris(store, "events", job["id"], "--json"))["events"]
        jobs[job["id"]] = {"ok": proof["ok"], "head": proof["proofs"]["event_chain"]["hash"],
                           "execution_hash": proof["proofs"]["execution_hash"]["hash"],
                           "types": [event["type"] for event in events],
                           "view": json.loads(aetheris(store, "replay", job["id"], "--json"))}
    return jobs


def missing(then, now, path=""):
    """The path of the first value of `then` that `now` lacks; "" if there is none."""
    if isinstance(then, dict) and isinstance(now, dict):
        return next(filter(None, (missing(v, now.get(k), f"{path}.{k}") for k, v in then.items())), "")
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return next(filter(None, (missing(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(then, now)))), "")
    return "" if then == now else f"{path}: {then!r} is now {now!r}"


def write(version):
    folder = GOLDEN / version
    assert not (folder / "store.json").exists(), f"{folder} exists and is never overwritten"
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "store.db"
    if not store.exists():
        with tempfile.TemporaryDirectory() as temp:
            work = pathlib.Path(temp) / "store.db"
            agents = work.parent / "agents.yaml"
            agents.write_text(AGENTS)
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(work.parent / "key.pem")], check=True)
            (work.parent / "key.pem").chmod(0o600)
            key = ["--signing-key", str(work.parent / "key.pem")]
            run = ["run", "agents.yaml"]
            aetheris(work, *run, "greets", "--input", '{"n":1,"list":[1,2,3]}', "--job-id", "greets", "--idempotency-key",
                     "k1", *key)
            aetheris(work, *run, "greets", "--input", '{"n":1,"list":[1,2]}', "--job-id", "split", "--durability", "split")
            aetheris(work, *run, "asks", "--job-id", "waits", code=4)
            aetheris(work, *run, "asks", "--job-id", "answered", code=4)
            aetheris(work, "signal", "answered", "go", '{"by":"Ada"}')
            aetheris(work, *run, "asks", "--job-id", "answered", "--only")
            aetheris(work, *run, "asks", "--job-id", "cancelled", code=4)
            aetheris(work, "cancel", "cancelled", "--reason", "over")
            aetheris(work, *run, "fails", "--job-id", "fails", code=1)
            aetheris(work, *run, "greets", "--detach", "--job-id", "queued", "--input", '{"n":9,"list":[]}')
            # An unknown outcome that is resolved after the end; a job with redacted values.
            for job in ("noted", "erased"):
                aetheris(work, *run, "doubts", "--job-id", job, "--input", '{"to":"ada@x.org"}')
                doubt, = json.loads(aetheris(work, "job", job, "--json"))["in_doubt"]
                aetheris(work, "resolve", job, doubt["idempotency_key"], "happened", '{"id":7}')
            aetheris(work, *run, "greets", "--input", '{"n":1,"list":["ada@x.org"]}', "--job-id", "greeted", "--durability",
                     "split")
            for job in ("erased", "greeted"):
                aetheris(work, "redact", job, "--all", "--reason", "by request")
            shutil.copy(work, store)
            assert not (work.parent / "store.db-wal").exists() or (work.parent / "store.db-wal").stat().st_size == 0
    with tempfile.TemporaryDirectory() as temp:
        copy = pathlib.Path(temp) / "store.db"
        shutil.copy(store, copy)
        (folder / "store.json").write_text(json.dumps(state_of_jobs(copy), indent=1, sort_keys=True) + "\n")


def check(folder):
    then = json.loads((folder / "store.json").read_text())
    assert all(job["ok"] for job in then.values())
    with tempfile.TemporaryDirectory() as temp:
        store = pathlib.Path(temp) / "store.db"
        shutil.copy(folder / "store.db", store)
        (store.parent / "agents.yaml").write_text(AGENTS)
        # An owner migrates the file; the jobs keep their state and continue.
        aetheris(store, "run", "agents.yaml", "greets", "--detach", "--job-id", "newcomer", "--input", '{"n":1,"list":[]}')
        wrong = missing(then, state_of_jobs(store))
        assert not wrong, f"after an owner has opened it: {wrong}"
        aetheris(store, "signal", "waits", "go", '"late"')
        aetheris(store, "run", "agents.yaml", "asks", "--job-id", "waits", "--only")
        aetheris(store, "run", "agents.yaml", "greets", "--job-id", "queued", "--input", '{"n":9,"list":[]}', "--only")
        ended = state_of_jobs(store)
        assert all(job["ok"] for job in ended.values()), ended
        assert ended["waits"]["types"][-1] == ended["queued"]["types"][-1] == "job_completed"


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--write":
        return write(sys.argv[2])
    folders = sorted(p.parent for p in GOLDEN.glob("*/store.db"))
    assert folders, "no golden store"
    for folder in folders:
        check(folder)
        print(f"ok {folder.name}: every job verifies, folds to its recorded state and continues")


if __name__ == "__main__":
    main()
