#!/usr/bin/env python3
"""The checker of the demo: compares the journal of the shop with what each job should do and with its log.

  demo_check.py await JOURNAL JOB ROUTE           waits until the journal has an effect of the job on that route
  demo_check.py judge JOURNAL CASE…               CASE = folder with job.json, events.json and case.json
                                                  {"job", "order", "replacement", "arrived": {ROUTE: [requests…]}}

`judge` prints `ok …` or `not ok …` per check and exits with 1 if an effect was repeated, is missing or was not
requested. The expected effects come from the price list of the shop, never from the runtime.
"""
import collections
import json
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples/shop"))
import shop  # noqa: E402  (what an order is)
import table  # noqa: E402  (what counts as repeated)

PATIENCE = 40.0  # seconds


def effects(journal, job, route=None):
    return [line for line in journal
            if line["kind"] == "effect" and (line["idempotency_key"] or "").startswith(f"aetheris:{job}:")
            and route in (None, line["route"])]


def await_effect(path, job, route):
    give_up = time.monotonic() + PATIENCE
    while not effects(table.read(path), job, route):
        if time.monotonic() > give_up:
            print(f"demo: no effect of {route} within {PATIENCE:.0f} s", file=sys.stderr)
            return 1
        time.sleep(0.02)
    return 0


def expected(case):
    """{route: (number of effects, allowed numbers of requests per effect)}"""
    wanted = {
        "POST /labels": len(shop.order(case["order"])["items"]),
        "POST /flaky": 1,
        "POST /refunds": 1,
        "POST /shipments": 1 if shop.stock(case["replacement"])["available"] else 0,
        "POST /gift-cards": 1,
    }
    needed = {route: [1] for route in wanted} | {"POST /flaky": [3]} | case["arrived"]
    return {route: (count, needed[route]) for route, count in wanted.items()}


def questions(journal, case, job, events):
    """(name, faults) for each thing that must hold."""
    job_id, mine = case["job"], effects(journal, case["job"])
    rows = [row for row in table.table(journal) if row["key"].startswith(f"aetheris:{job_id}:")]

    yield f"{job_id}: completed", [] if job["status"] == "completed" else [job["status"]]

    wanted = expected(case)
    seen = collections.Counter(row["route"] for row in rows)
    faults = [f"{route}: {seen[route]} requested, {wanted.get(route, (0,))[0]} expected"
              for route in {*wanted, *seen} if seen[route] != wanted.get(route, (0,))[0]]
    faults += [f"{row['route']}: arrived {row['arrived']}, took effect {row['effects']}: {row['result']}"
               for row in rows if row["effects"] != 1 or row["result"] != "once"
               or row["arrived"] not in wanted.get(row["route"], (0, []))[1]]
    yield f"{job_id}: {len(rows)} effects, each applied once", faults

    declared = {e["payload"]["external_key"] for e in events if e["type"] == "tool_invocation_started"}
    undeclared = [line["idempotency_key"] for line in mine if line["idempotency_key"] not in declared]
    yield f"{job_id}: every effect was declared in the log first", undeclared

    made = collections.defaultdict(list)
    for line in mine:
        made[line["route"]].append(line["answer"]["id"])
    result = job["result"] or {}
    reported = {
        "POST /labels": result.get("labels") or [],
        "POST /flaky": [result.get("pickup")],
        "POST /refunds": [result.get("refund")],
        "POST /shipments": [result["replacement"]] if result.get("replacement") else [],
        "POST /gift-cards": [result.get("gift_card")],
    }
    faults = [f"{route}: the job reports {reported[route]}, the shop created {made[route]}"
              for route in reported if sorted(map(str, reported[route])) != sorted(made[route])]
    yield f"{job_id}: the result names what the shop created", faults


def judge(path, folders):
    journal = table.read(path)
    failed, jobs = 0, []
    for folder in map(pathlib.Path, folders):
        case, job, events = (json.loads((folder / name).read_text(encoding="utf-8"))
                             for name in ("case.json", "job.json", "events.json"))
        jobs.append(case["job"])
        for name, faults in questions(journal, case, job, events["events"]):
            print(f"{'not ok' if faults else 'ok'} {name}")
            for fault in faults:
                print(f"    {fault}")
            failed += bool(faults)
    undeclared = [row["key"] for row in table.table(journal)
                 if not row["key"].startswith(tuple(f"aetheris:{job}:" for job in jobs))]
    print(f"{'not ok' if undeclared else 'ok'} the shop received no other request")
    for key in undeclared:
        print(f"    {key}")
    return 1 if failed or undeclared else 0


def main(words):
    if len(words) == 4 and words[0] == "await":
        return await_effect(*words[1:])
    if len(words) >= 3 and words[0] == "judge":
        return judge(words[1], words[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
