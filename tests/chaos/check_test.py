#!/usr/bin/env python3
"""The checker must find planted defects: it gets copies of the files of a correct run, each with one defect.

    check_test.py FOLDER        a folder that run.py --keep left and that check.py accepts

Prints `ok NAME` or `not ok NAME` for each planted defect.
"""
import copy
import json
import pathlib
import shutil
import sys
import tempfile

import check
import files
from check import ids


class Run:
    """The files of a run, in memory."""

    def __init__(self, folder):
        self.shop = list(files.read(folder / "shop.ndjson"))
        self.ledger = list(files.read(folder / "ledger.ndjson"))
        self.export = list(files.read(folder / "export.ndjson"))
        self.faults = list(files.read(folder / "faults.ndjson"))
        self.meta = json.loads((folder / "meta.json").read_text())
        self.prints = (folder / "prints.txt").read_text() if (folder / "prints.txt").exists() else ""

    def write(self, folder):
        for name in ("shop", "ledger", "export", "faults"):
            (folder / f"{name}.ndjson").write_text("".join(json.dumps(line) + "\n" for line in getattr(self, name)))
        (folder / "meta.json").write_text(json.dumps(self.meta))
        (folder / "prints.txt").write_text(self.prints)

    def acted(self, kind):
        """The line of an effect of a job that completed."""
        done = {line["job"] for line in self.export if line["status"] == "completed"}
        return next(line for line in self.shop if line["did"] == "acted" and line["kind"] == kind and
                    line["key"].split(":")[1] in done)

    def log(self, wanted):
        """The first log in which an event is so, and the event's place."""
        for line in self.export:
            for n, event in enumerate(line["events"]):
                if wanted(event):
                    return line, n
        raise LookupError("the run has no such event")


# (what it does to a run, the kind of violation, whether the checker must find one of this kind or none)
PLANTS = []


def plant(kind, found=True):
    def add(function):
        PLANTS.append((function, kind, found))
        return function
    return add


@plant("duplicate")
def an_at_most_once_call_that_took_effect_twice(run):
    run.shop.append({**run.acted("once"), "try": 2})


@plant("duplicate")
def a_try_that_arrived_twice(run):
    run.shop.append({**run.acted("idempotent"), "did": "repeat"})


@plant("duplicate")
def an_idempotent_call_that_took_effect_twice(run):
    line = run.acted("idempotent")
    run.shop.append({**line, "try": line["try"] + 1})


@plant("missing")
def a_completed_call_without_an_effect(run):
    run.shop.remove(run.acted("idempotent"))


@plant("effects")
def an_effect_without_a_declaration(run):
    run.shop.append({**run.acted("once"), "key": "aetheris:nobody:0000000000000000:0"})


@plant("effects")
def arguments_that_differ_from_the_declaration(run):
    run.acted("once")["sha"] = "0" * 64


@plant("hashes")
def a_hash_of_other_arguments(run):
    declaration(run)[1]["payload"]["arguments_hash"] = "0" * 64


@plant("hashes")
def a_key_computed_without_the_blind(run):
    line, event = declaration(run)
    event["payload"]["idempotency_key"] = ids.idempotency_key(line["job"], "", event["payload"])


@plant("hashes")
def a_key_that_names_an_attempt(run):
    event = declaration(run)[1]
    event["payload"]["external_key"] = event["payload"]["external_key"][:-1] + event["attempt_id"]


@plant("hashes")
def a_job_whose_hashes_have_another_blind(run):
    blind_of(declaration(run)[0])["blind"] = "0" * 32


@plant("hashes", found=False)
def a_job_of_a_version_without_a_blind(run):
    line, _ = declaration(run)
    del blind_of(line)["blind"]
    text = json.dumps(line["events"])
    for event in line["events"]:
        if event["type"] == "tool_invocation_started":
            payload = event["payload"]
            for field, value in ids.declared(line["job"], "", event, payload["external_key"]).items():
                text = text.replace(payload[field], value)
    line["events"] = json.loads(text)


def declaration(run):
    """A log and its first declared try."""
    line, n = run.log(lambda event: event["type"] == "tool_invocation_started")
    return line, line["events"][n]


def blind_of(line):
    return line["events"][0]["payload"]


@plant("clock")
def an_event_written_after_a_clock_change(run):
    event = declaration(run)[1]
    hour = check.datetime.timedelta(hours=1)
    event["created_at"] = (check.datetime.datetime.fromisoformat(event["created_at"]) + hour).isoformat()


@plant("missing")
def a_job_that_completed_without_one_of_its_steps(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    kept = [e for e in line["events"]]
    last = max(n for n, e in enumerate(kept) if e["type"] == "tool_invocation_started")
    key = kept[last]["payload"]["external_key"]
    run.shop = [entry for entry in run.shop if entry["key"] != key]


@plant("lost")
def a_creation_that_was_acknowledged_and_lost(run):
    acked = {line.get("id") for line in run.ledger if line.get("end") == "ack"}
    run.export.remove(next(line for line in run.export if line["job"] in acked))


@plant("lost")
def a_signal_that_was_acknowledged_and_lost(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    run.ledger += [{"i": -1, "op": "signal", "key": "go-nowhere", "job": line["job"], "message_id": "m-nowhere", "t": 0},
                   {"i": -1, "end": "ack", "status": 202, "code": "", "t": 0}]


@plant("lost")
def an_approval_recorded_as_its_opposite(run):
    line, n = run.log(lambda event: event["type"] == "wait_completed" and event["payload"]["outcome"] == "approved")
    line["events"][n]["payload"]["outcome"] = "rejected"


@plant("lost")
def a_cancel_that_was_acknowledged_and_lost(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    run.ledger += [{"i": -1, "op": "cancel", "key": line["job"], "job": line["job"], "t": 0},
                   {"i": -1, "end": "ack", "status": 202, "code": "", "t": 0}]


@plant("lost")
def a_resume_that_was_acknowledged_and_lost(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    line["events"] = [event for event in line["events"] if event["type"] != "job_resumed"]
    run.ledger += [{"i": -1, "op": "resume", "key": line["job"], "job": line["job"], "t": 0},
                   {"i": -1, "end": "ack", "status": 200, "code": "", "t": 0}]


@plant("lost")
def a_resolution_that_was_acknowledged_and_lost(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    run.ledger += [{"i": -1, "op": "resolve", "key": "0" * 64, "job": line["job"], "t": 0},
                   {"i": -1, "end": "ack", "status": 200, "code": "", "t": 0}]


@plant("effects")
def a_call_declared_after_a_cancel(run):
    line, n = run.log(lambda event: event["type"] == "tool_invocation_started" and event["payload"]["tool_name"] == "mail")
    line["events"].insert(n, {**line["events"][n], "type": "job_cancel_requested", "payload": {"by": "api"}})


@plant("lost")
def an_event_that_changed_after_it_was_read(run):
    line, _ = run.log(lambda event: event["type"] == "job_completed")
    run.ledger.append({"i": -1, "op": "saw", "key": line["job"], "job": line["job"], "seq": 3, "hash": "0" * 64, "t": 0})


@plant("refused")
def a_rejected_request_that_had_an_effect(run):
    intent = next(line for line in run.ledger if line.get("op") == "create")
    run.ledger = [line for line in run.ledger if line["i"] != intent["i"]] + [
        intent, {"i": intent["i"], "end": "refused", "status": 503, "code": "unavailable", "t": 0}]
    key = intent["key"]
    for line in run.export:
        if line["events"][0]["payload"].get("idempotency_key") == key:
            return
    raise LookupError("the first key created no job")


@plant("duplicate")
def an_idempotency_key_that_created_two_jobs(run):
    line, _ = run.log(lambda event: event["payload"].get("idempotency_key", "").startswith("key-"))
    twin = copy.deepcopy(line)
    twin["job"] = "twin"
    run.export.append(twin)


@plant("chain")
def an_event_that_was_altered(run):
    line, n = run.log(lambda event: event["type"] == "tool_invocation_started")
    line["events"][n]["payload"]["try"] = 1.5


@plant("chain")
def an_instant_that_was_altered(run):
    line, n = run.log(lambda event: event["type"] == "step_committed")
    line["events"][n]["created_at"] = line["events"][n]["created_at"].replace("Z", "1Z")[-28:]


@plant("log")
def an_event_that_is_missing(run):
    line, n = run.log(lambda event: event["type"] == "step_committed")
    del line["events"][n]


@plant("log")
def an_event_after_the_end_of_a_job(run):
    line, n = run.log(lambda event: event["type"] == "job_completed")
    line["events"].append({**line["events"][3], "seq": len(line["events"]) + 1, "id": "another"})


@plant("fencing")
def a_write_by_an_attempt_that_had_lost_its_lease(run):
    line, n = run.log(lambda event: event["type"] == "job_running" and event["payload"]["epoch"] > 1)
    line["events"][n + 1]["attempt_id"] = line["events"][0]["attempt_id"]


@plant("fencing")
def two_claims_of_one_epoch(run):
    line, n = run.log(lambda event: event["type"] == "job_running" and event["payload"]["epoch"] > 1)
    line["events"][n]["payload"]["epoch"] = 1


@plant("waits")
def a_wait_that_was_resolved_twice(run):
    line, n = run.log(lambda event: event["type"] == "wait_completed")
    line["events"].insert(n, line["events"][n])


@plant("unresolved")
def a_job_that_never_ends(run):
    line, n = run.log(lambda event: event["type"] == "job_completed")
    del line["events"][n:]


@plant("verify")
def a_proof_that_fails(run):
    next(line for line in run.export if "verify" in line)["verify"] = False


@plant("end")
def a_job_that_failed_without_an_expected_reason(run):
    line, n = run.log(lambda event: event["type"] == "job_completed")
    line["events"][n] = {**line["events"][n], "type": "job_failed", "payload": {"code": "max_attempts", "error": {}}}


@plant("recovery")
def an_attempt_that_was_not_taken_over_in_time(run):
    worker = next(line["worker"] for line in run.faults if line["what"] == "end")
    died = next(line["t"] for line in run.faults if line["what"] == "end")
    run.meta["healed"] = died + 1
    line, n = run.log(lambda event: event["type"] == "job_completed")
    line["events"][n:] = [
        {**line["events"][2], "payload": {"epoch": 1000, "attempt_id": "a", "worker_id": worker}},
        {**line["events"][2], "payload": {"epoch": 1001, "attempt_id": "b", "worker_id": "other"},
         "created_at": check.datetime.datetime.fromtimestamp(died + 3600, check.datetime.UTC).isoformat()}]


@plant("recovery")
def an_attempt_that_was_not_taken_over_during_the_run(run):
    take_over(run, check.POLL_S + check.MARGIN_S + 1)


@plant("recovery", found=False)
def an_attempt_that_was_taken_over_once_the_store_was_available_again(run):
    taken_over_at = take_over(run, check.POLL_S + check.MARGIN_S + 1)
    run.faults += [{"t": taken_over_at - 4, "what": "outage"}, {"t": taken_over_at - 2, "what": "outage_over"}]


def take_over(run, seconds):
    """Plants an attempt whose process dies; the next one starts immediately and takes it over that long after the lease. Returns when."""
    death = next(line for line in run.faults if line["what"] == "end")
    taken_over_at = death["t"] + run.meta["lease_s"] + seconds
    run.faults = [line for line in run.faults if line["t"] <= death["t"]] + [
        {"t": death["t"], "what": "start", "server": 0, "worker": "another", "kind": "serve", "runs": True}]
    line, n = run.log(lambda event: event["type"] == "job_completed")
    line["events"][n:] = [
        {**line["events"][2], "payload": {"epoch": 1000, "attempt_id": "a", "worker_id": death["worker"]}},
        {**line["events"][2], "payload": {"epoch": 1001, "attempt_id": "b", "worker_id": "another"},
         "created_at": check.datetime.datetime.fromtimestamp(taken_over_at, check.datetime.UTC).isoformat()}]
    return taken_over_at


def kinds_found(run, every=False):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-chaos-canary-"))
    try:
        run.write(folder)
        checker = check.Checker(folder, every)
        checker.run()
        return {kind for kind, _ in checker.violations}
    finally:
        shutil.rmtree(folder)


def test(folder):
    """[(name, found)]; first the unmodified files, which must be correct."""
    run = Run(pathlib.Path(folder))
    found = [("the unmodified files violate nothing", not kinds_found(run, True))]
    for function, kind, wanted in PLANTS:
        spoilt = copy.deepcopy(run)
        try:
            function(spoilt)
            kinds = kinds_found(spoilt, kind == "chain")
            title = f"{function.__name__.replace('_', ' ')} is "
            found.append((title + "found", kind in kinds) if wanted else (title + "no violation", kind not in kinds))
        except LookupError as why:
            found.append((f"{function.__name__.replace('_', ' ')} can be planted ({why})", False))
    return found


def main():
    bad = 0
    for name, ok in test(sys.argv[1]):
        print(f"{'ok' if ok else 'not ok'} chaos checker/{name}", flush=True)
        bad += not ok
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
