#!/usr/bin/env python3
"""Store files of every version, opened for ever: each job in them is proved, folds to what it was, and goes on.

  golden_store.py                  for every testdata/golden/*/store.db, what testdata/golden/*/store.json says
  golden_store.py --write VERSION  a new pair, by this program; files that are there are never written again
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
    """What each job of a store comes to, by commands that only look."""
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
    """Everything that was there is there still. Where not: its path."""
    if isinstance(then, dict) and isinstance(now, dict):
        return next(filter(None, (missing(v, now.get(k), f"{path}.{k}") for k, v in then.items())), "")
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return next(filter(None, (missing(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(then, now)))), "")
    return "" if then == now else f"{path}: {then!r} is now {now!r}"


def write(version):
    folder = GOLDEN / version
    assert not (folder / "store.json").exists(), f"{folder} is written already, and stays as it is"
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
            # A call in doubt that is settled after the end; a job without its values.
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
        # An owner brings the file up to date; what was in it is the same, and goes on.
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
