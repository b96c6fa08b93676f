#!/usr/bin/env python3
"""The checker of `./dev demo --agent`: compares the journals of the external systems with what the two jobs should do.

  demo_agent_check.py FOLDER      half.json of the log after the kill; model.journal of the model, shop.journal of the shop, papers/ and memory.jsonl of the MCP servers

Prints `ok …` or `not ok …` per check and exits with 1 if anything was repeated, is missing or was not requested.
"""
import collections
import json
import pathlib
import sys


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def questions(folder):
    """(check, actual value, expected value)"""
    requests = collections.Counter((line["model"], line["turn"]) for line in lines(folder / "model.journal"))
    research = {turn: times for (model, turn), times in requests.items() if model == "research"}
    refund = {turn: times for (model, turn), times in requests.items() if model == "refund"}
    yield "papers: the interrupted model call was sent twice, all others once", research, {1: 1, 2: 1, 3: 2, 4: 1, 5: 1}
    yield "refund-43: each model call was sent once", refund, {1: 1, 2: 1, 3: 1}
    half = (folder / "half.json").read_text()
    yield "papers: nothing of the partial response was recorded", "I have read it" in half, False
    kept = [line["name"] for line in lines(folder / "memory.jsonl")]
    yield "papers: one finding is stored, once", kept, ["finding"]
    found = sorted(path.name for path in (folder / "papers").iterdir())
    yield "papers: one report is in the folder", found, ["bees.txt", "report.md"]
    shop = [line for line in lines(folder / "shop.journal") if line["route"] == "POST /refunds"]
    kinds = collections.Counter(line["kind"] for line in shop)
    yield "refund-43: the payment arrived twice and took effect once", (kinds["arrival"], kinds["effect"]), (2, 1)
    keys = {line["idempotency_key"] for line in shop}
    yield "refund-43: both requests had the same key", len(keys), 1
    bodies = [line["body"] for line in shop if line["kind"] == "arrival"]
    yield "refund-43: both requests were the approved call", bodies, [{"amount": 29, "order": "43"}] * 2


def main():
    bad = 0
    for what, seen, wanted in questions(pathlib.Path(sys.argv[1])):
        good = seen == wanted
        bad += not good
        print(f"{'ok' if good else 'not ok'} {what}" + ("" if good else f": {seen}, not {wanted}"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
