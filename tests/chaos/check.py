#!/usr/bin/env python3
"""The checker of a chaos run. It reads only files: the journal of the shop, the ledger of the clients, the exported logs.

    check.py FOLDER [--all]     prints each violation, then one line of JSON; exits with 1 if there is one
      --all   recomputes the hash chain of every log, not only of a sample

The rules (with the words of docs/guarantees.md and docs/chaos.md):
  effects   a try is sent once; an at_most_once call takes effect at most once, an idempotent one exactly once per key; every
            request was declared before, with the arguments that arrived; a call recorded as a success took effect; a completed
            job had all effects of its agent, a compensated one undid them
  clients   every acknowledged request is in the log: creation, signal, approval, cancel, resume, resolution; one key is one job; a
            request rejected without effect, and not repeated, had no effect; events that were read are still in the log
  logs      sequence numbers have no gap, ids are unique, there is one end; a higher epoch ends writes of the lower one; a wait is
            resolved once; the chain recomputes; `verify` agrees
  hashes    the keys and hashes of a declared call follow from its job, arguments and blind, as docs/data.md describes
  clock     the times of all events are within the run, also those of processes whose clock was changed
  end       every job has ended; attempts of dead processes were taken over in time
"""
import argparse
import bisect
import collections
import datetime
import hashlib
import json
import pathlib
import sys
import zlib

import agents
import files

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
from shared import ids  # noqa: E402
from shared.ids import verify_vectors  # noqa: E402

ENDS = {"job_completed": "completed", "job_failed": "failed", "job_cancelled": "cancelled"}
NARRATIVE = {"recovery_started", "recovery_completed", "confirmation_checked", "progress", "agent_thought_recorded",
             "state_checkpointed"}
POLL_S, MARGIN_S = 1.0, 5.0
CLOCK_MARGIN_S = 5.0  # by which the time of an event may be outside of the run: a process's clock is set by 2 s on SQLite
STRIKES = {"end", "stop", "outage", "outage_over", "backends"}  # faults that can end a claim before its first event
SAMPLE = 20  # of a hundred logs, the number whose chain is recomputed without --all


def seconds(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Job:
    """One exported log, read once."""

    def __init__(self, line):
        self.id, self.raw = line["job"], line["events"]
        self.agent, self.key, self.end, self.status_shown = "", "", "", line.get("status", "")
        self.verified = line.get("verify")
        self.started, self.tries, self.finished = {}, {}, {}   # (key, try) → payload
        self.sent = {}                                         # external key → SHA-256 of its canonical arguments
        self.bound = {}                                        # command → the external key of its first try
        self.calls = {}                                        # external key → its last outcome
        self.blind = ""                                        # "": the job has none
        self.waits, self.undelivered = {}, []
        self.decided = set()  # keys of calls whose unknown outcome was resolved
        self.cancel = self.resumed = False
        self.workers = []                                      # of its attempts
        self.dead = []                                         # taken over: (worker, when, claims between that wrote nothing)
        self.problems = []
        self.fold()

    def wrong(self, kind, text):
        self.problems.append((kind, f"{self.id}: {text}"))

    def fold(self):
        seen, epoch, attempt, holds, worker = set(), 0, None, False, ""
        by_invocation = {}
        for number, event in enumerate(self.raw, 1):
            kind, payload = event["type"], event["payload"]
            if event["seq"] != number:
                self.wrong("log", f"event {number} has seq {event['seq']}")
            if event["id"] in seen:
                self.wrong("log", f"event id {event['id']} occurs twice")
            seen.add(event["id"])
            if self.end and kind not in NARRATIVE:
                self.wrong("log", f"{kind} after {self.end}")
            if kind == "job_running":
                if payload["epoch"] <= epoch:
                    self.wrong("fencing", f"epoch {payload['epoch']} after {epoch}")
                if holds:
                    self.dead.append((worker, seconds(event["created_at"]), payload["epoch"] - epoch - 1))
                epoch, attempt, holds, worker = payload["epoch"], payload["attempt_id"], True, payload["worker_id"]
                self.workers.append(worker)
            elif event.get("attempt_id") and attempt and event["attempt_id"] != attempt:
                self.wrong("fencing", f"event {number} ({kind}) was written by an attempt that had lost the job")
            if kind in ("job_requeued", "job_waiting", "job_parked") or kind in ENDS:
                holds = False
            if kind == "job_created":
                self.agent, self.key = payload["agent"], payload.get("idempotency_key", "")
                self.blind = payload.get("blind", "")
            elif kind == "tool_invocation_started":
                key = (payload["external_key"], payload["try"])
                if key in self.started:
                    self.wrong("log", f"the try {key} was declared twice")
                self.started[key] = payload
                self.tries[payload["external_key"]] = self.tries.get(payload["external_key"], 0) + 1
                self.calls.setdefault(payload["external_key"], "open")
                by_invocation[payload["invocation_id"]] = payload
                self.recompute(event)
                first = self.tries[payload["external_key"]] == 1
                if self.cancel and first and payload["tool_name"] not in ("refund", "find"):  # the compensation and the probe
                    self.wrong("effects", f"{payload['tool_name']} was declared after a cancel")
            elif kind == "tool_invocation_finished" and not payload.get("late"):
                first = by_invocation[payload["invocation_id"]]
                self.finished[(first["external_key"], payload["try"])] = payload
                if payload["outcome"] == "success":
                    if self.calls[first["external_key"]] == "success":
                        self.wrong("effects", f"{first['external_key']} succeeded twice")
                    self.calls[first["external_key"]] = "success"
            elif kind == "command_committed" and "result" in payload:
                for call, first in ((p["external_key"], p) for p in by_invocation.values()):
                    if first["command_id"] == payload["command_id"]:
                        self.calls[call] = "success"  # as an operator or a probe reported
            elif kind == "wait_completed":
                name = payload["correlation_key"]
                if name in self.waits:
                    self.wrong("waits", f"the wait {name} was resolved twice")
                self.waits[name] = payload
            elif kind == "decision_recorded":
                if payload["kind"] == "in_doubt":
                    self.decided.add(payload["payload"]["idempotency_key"])
            elif kind == "job_cancel_requested":
                self.cancel = True
            elif kind == "job_resumed":
                self.resumed = True
            if kind in ENDS:
                self.end = ENDS[kind]
                self.undelivered = payload.get("undelivered") or []
                self.last = payload

    def recompute(self, event):
        """Recomputes the hashes and keys of a declared try."""
        payload = event["payload"]
        self.sent[payload["external_key"]] = hashlib.sha256(ids.canonical(payload["arguments"])).hexdigest()
        for field, value in ids.declared(self.id, self.blind, event, self.bound.get(payload["command_id"])).items():
            if payload[field] != value:
                self.wrong("hashes", f"event {event['seq']}: {field} is {payload[field]}, not {value}")
        self.bound.setdefault(payload["command_id"], payload["external_key"])

    def chain(self):
        try:
            verify_vectors.verify([verify_vectors.read_json(json.dumps(event)) for event in self.raw])
        except verify_vectors.Altered as why:
            self.wrong("chain", str(why))


class Checker:
    def __init__(self, folder, every):
        self.folder, self.every = pathlib.Path(folder), every
        self.violations = []
        self.numbers = collections.Counter()
        self.recovery, self.left_alone = [], []

    def wrong(self, kind, text):
        self.violations.append((kind, text))

    def run(self):
        self.meta = json.loads((self.folder / "meta.json").read_text())
        self.read_shop()
        self.read_ledger()
        self.read_faults()
        self.ids = set()
        self.by_key = collections.defaultdict(list)
        for line in files.read(self.folder / "export.ndjson"):
            job = Job(line)
            if job.id in self.ids:
                self.wrong("log", f"{job.id} was exported twice")
            self.ids.add(job.id)
            self.check_job(job)
        self.check_clients()
        for key in self.arrived.keys() - self.declared:
            self.wrong("effects", f"{key} reached the shop, and no log declares it")
        self.numbers["duplicates"] = sum(kind == "duplicate" for kind, _ in self.violations)
        self.numbers["lost"] = sum(kind == "lost" for kind, _ in self.violations)
        self.numbers["unresolved"] = sum(kind == "unresolved" for kind, _ in self.violations)

    # ---------------------------------------------------------------- input files

    def read_shop(self):
        self.arrived = collections.defaultdict(list)  # external key → its lines
        for line in files.read(self.folder / "shop.ndjson"):
            if line["key"]:
                self.arrived[line["key"]].append(line)
                self.numbers["arrivals"] += 1
        try:
            printed = (self.folder / "prints.txt").read_text().splitlines()
        except FileNotFoundError:
            printed = []
        for line in printed:
            key, attempt = line.split()
            self.arrived[key].append({"tool": "print", "kind": "once", "did": "acted", "key": key, "try": int(attempt),
                                      "exec": "", "sha": None})
        self.declared = set()

    def read_ledger(self):
        self.intents = {}
        for line in files.read(self.folder / "ledger.ndjson"):
            if "op" in line:
                self.intents[line["i"]] = {**line, "ends": []}
            else:
                self.intents[line["i"]]["ends"].append(line)
        self.of_job = collections.defaultdict(list)
        for intent in self.intents.values():
            if "job" in intent:
                self.of_job[intent["job"]].append(intent)
            self.numbers[f"{intent['op']}s sent"] += 1

    def read_faults(self):
        self.deaths = collections.defaultdict(list)  # process ids may be reused
        self.of_workers = set()
        self.strikes = []
        self.away = []  # (from, to): the store, or every process that runs jobs, was not there
        running, stopped, outage, since = set(), set(), False, 0.0
        lines = sorted(files.read(self.folder / "faults.ndjson"), key=lambda line: line["t"])
        self.began = lines[0]["t"]
        for line in lines:
            what, server = line["what"], line.get("server")
            if what in STRIKES:
                self.strikes.append(line["t"])
            if what == "start":
                if line["runs"]:
                    running.add(server)
                if line["kind"] == "worker":
                    self.of_workers.add(line["worker"])
            elif what == "end":
                self.deaths[line["worker"]].append(line["t"])
                running.discard(server)
                stopped.discard(server)
            elif what == "stop":
                stopped.add(server)
            elif what == "continue":
                stopped.discard(server)
            elif what in ("outage", "outage_over"):
                outage = what == "outage"
            there = bool(running - stopped) and not outage
            # From the start of the first process, or the loss of the last one.
            if since is None and not there:
                since = line["t"]
            elif since is not None and there:
                self.away.append((since, line["t"]))
                since = None
        if since is not None:
            self.away.append((since, float("inf")))

    # ---------------------------------------------------------------- one job

    def check_job(self, job):
        self.numbers["jobs"] += 1
        self.numbers[job.end or "not ended"] += 1
        self.numbers["events"] += len(job.raw)
        self.by_key[job.key].append(job.id)
        self.check_effects(job)
        self.check_requests(job)
        if self.every or zlib.crc32(job.id.encode()) % 100 < SAMPLE:
            job.chain()
            self.numbers["chains recomputed"] += 1
        if job.verified is not None:
            self.numbers["verified"] += 1
            if not job.verified:
                self.wrong("verify", f"{job.id}: verify fails")
        if not job.end:
            self.wrong("unresolved", f"{job.id} ({job.agent}) has not ended: {job.status_shown}")
        elif job.status_shown != job.end:
            self.wrong("log", f"{job.id} is shown as {job.status_shown}, its log ends {job.end}")
        self.check_recovery(job)
        self.check_times(job)
        self.numbers["attempts of workers"] += sum(worker in self.of_workers for worker in job.workers)
        self.violations += job.problems

    def check_effects(self, job):
        acted = collections.Counter()
        for (key, number), payload in job.started.items():
            self.declared.add(key)
        for key in job.tries:
            lines = self.arrived.get(key, [])
            tries = collections.Counter(line["try"] for line in lines)
            for number, times in tries.items():
                declared = job.started.get((key, number))
                if times > 1:
                    self.wrong("duplicate", f"{job.id}: try {number} of {key} arrived {times} times")
                if declared is None:
                    self.wrong("effects", f"{job.id}: try {number} of {key} arrived, and was not declared")
            effects = [line for line in lines if line["did"] == "acted"]
            one = next(payload for (k, _), payload in job.started.items() if k == key)
            if len(effects) > 1:
                self.wrong("duplicate", f"{job.id}: {one['tool_name']} took effect {len(effects)} times under {key}")
            if effects:
                acted[one["tool_name"]] += 1
            for line in lines:
                if line["sha"] and one["effect_class"] != "read" and line["sha"] != job.sent[key]:
                    self.wrong("effects", f"{job.id}: the arguments under {key} differ from the declaration")
            if job.calls[key] == "success" and one["effect_class"] != "read" and not effects:
                self.wrong("missing", f"{job.id}: {one['tool_name']} is recorded as done and had no effect ({key})")
        self.numbers["effects"] += sum(acted.values())
        wanted = agents.COMPLETED.get(job.agent)
        if job.end == "completed":
            if wanted is None or dict(acted) != wanted:
                self.wrong("missing" if wanted and sum(acted.values()) < sum(wanted.values()) else "duplicate",
                           f"{job.id} ({job.agent}) completed with {dict(acted)}, not {wanted}")
        elif job.agent in agents.UNDONE and job.end == agents.UNDONE[job.agent]:
            # A charge with an unknown outcome at the end is not compensated, and the last event lists it.
            doubted = set(job.last.get("in_doubt") or [])
            stays = sum(line["did"] == "acted" and line["exec"] in doubted
                        for key in job.tries for line in self.arrived.get(key, []))
            self.numbers["left in doubt"] += stays
            if acted["charge"] - acted["refund"] != stays:
                self.wrong("missing", f"{job.id}: {acted['charge']} charges and {acted['refund']} refunds")
        elif job.end:
            code = job.last.get("code")
            self.numbers[f"failed {code}"] += 1
            if code not in self.meta.get("may_fail", []):
                self.wrong("end", f"{job.id} ({job.agent}) {job.end} with {code}: {job.last.get('error')}")

    def check_requests(self, job):
        for intent in self.of_job.get(job.id, []):
            acked = [end for end in intent["ends"] if end["end"] == "ack"]
            op, key = intent["op"], intent["key"]
            if op == "saw":
                if len(job.raw) < intent["seq"] or job.raw[intent["seq"] - 1]["hash"] != intent["hash"]:
                    self.wrong("lost", f"{job.id}: event {intent['seq']} was read and has changed")
            if not acked:
                continue
            self.numbers["acknowledged"] += 1
            if op == "signal":
                wait = job.waits.get(key)
                taken = wait is not None and wait.get("signal_id") == intent["message_id"]
                if not taken and intent["message_id"] not in json.dumps(job.undelivered):
                    self.wrong("lost", f"{job.id}: the signal {key} was acknowledged, and is not in the log")
            elif op == "approve":
                outcome = {"approve": "approved", "reject": "rejected"}[intent["decision"]]
                if job.waits.get(key, {}).get("outcome") != outcome and key not in json.dumps(job.undelivered):
                    self.wrong("lost", f"{job.id}: {key} was {outcome}, and the log has {job.waits.get(key)}")
            elif op == "cancel":
                if not job.cancel and job.end != "cancelled":
                    self.wrong("lost", f"{job.id}: a cancel was acknowledged, and is not in the log")
            elif op == "resume":
                if not job.resumed:
                    self.wrong("lost", f"{job.id}: a resume was acknowledged, and is not in the log")
            elif op == "resolve":
                if key not in job.decided:
                    self.wrong("lost", f"{job.id}: a resolution was acknowledged, and is not in the log")

    def check_recovery(self, job):
        """Measures the time from the death of a process to the takeover of its attempt, and checks that it was not left without need."""
        for worker, when, missed in job.dead:
            died = max((at for at in self.deaths.get(worker, []) if at <= when), default=None)
            if died is None:
                self.numbers["taken from the living"] += 1  # it was stopped, or cut off, for longer than its lease
                continue
            self.recovery.append(when - died)
            left = self.left(died, when, missed)
            self.left_alone.append(left)
            if left > POLL_S + MARGIN_S:
                self.wrong("recovery", f"{job.id}: its process had died {when - died:.1f} s ago, its lease had expired, the store "
                                       f"and processes that run jobs were available, and no process took it over for {left:.1f} s")

    def check_times(self, job):
        for event in job.raw:
            if not self.began - CLOCK_MARGIN_S <= seconds(event["created_at"]) <= self.meta["exported"] + CLOCK_MARGIN_S:
                self.wrong("clock", f"{job.id}: event {event['seq']} has a time outside of the run: {event['created_at']}")

    def left(self, died, when, missed):
        """The seconds that it was not claimed although its lease had expired. A missing epoch was claimed by a process that a fault
        hit before its first write; from then on another lease counts."""
        left = self.longest(died + self.meta["lease_s"], when)
        while left > POLL_S + MARGIN_S and missed:
            missed -= 1
            between = [at for at in self.strikes if died + self.meta["lease_s"] < at < when
                       and self.longest(died + self.meta["lease_s"], at) <= POLL_S + MARGIN_S]
            if not between:
                break
            died = max(between)
            left = self.longest(died + self.meta["lease_s"], when)
        return left

    def longest(self, begin, end):
        """The longest time between the two in which the store and a process that runs jobs were available throughout."""
        found = 0.0
        for gone, back in self.away[bisect.bisect_right(self.away, (begin,), key=lambda time: time[1:]):]:
            if gone >= end:
                break
            found, begin = max(found, gone - begin), back
        return max(found, end - begin)

    # ---------------------------------------------------------------- clients

    def check_clients(self):
        by_key = collections.defaultdict(lambda: {"acked": set(), "ends": [], "once": False})
        for intent in self.intents.values():
            if intent["op"] == "create":
                entry = by_key[intent["key"]]
                entry["ends"] += intent["ends"]
                entry["agent"] = intent["agent"]
                entry["acked"] |= {end["id"] for end in intent["ends"] if end["end"] == "ack"}
        for key, entry in by_key.items():
            there = self.by_key.get(key, [])
            ends = {end["end"] for end in entry["ends"]}
            if entry["acked"]:
                self.numbers["acknowledged"] += 1
            for job in entry["acked"] - self.ids:
                self.wrong("lost", f"the job {job} was acknowledged and does not exist")
            if len(there) > 1 or len(entry["acked"]) > 1:
                self.wrong("duplicate", f"{key} created {sorted(set(there) | entry['acked'])}")
            if there and entry["ends"] and ends == {"refused"}:
                self.wrong("refused", f"{key} was rejected without effect, and created {there}")
        for intent in self.intents.values():
            if intent["op"] not in ("create", "saw") and "job" in intent and intent["job"] not in self.ids:
                self.wrong("lost", f"the job {intent['job']} received requests and does not exist")

    def verdict(self):
        times = sorted(self.recovery)

        def at(share):
            return round(times[min(len(times) - 1, int(len(times) * share))], 2) if times else None
        return {**self.numbers, "violations": len(self.violations),
                "recovery_s": {"n": len(times), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1),
                               "left alone at most": round(max(self.left_alone), 2) if times else None}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    checker = Checker(options.folder, options.all)
    checker.run()
    for kind, text in checker.violations:
        print(f"{kind}: {text}")
    print(json.dumps(checker.verdict()))
    return 1 if checker.violations else 0


if __name__ == "__main__":
    sys.exit(main())
