#!/usr/bin/env python3
"""The checker of `./dev demo --code`: compares the journals of the shop and of the model with what the job should do.

  demo_code_check.py FOLDER      job.json of the job; shop.journal of the shop, model.journal of the model

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
    job = json.loads((folder / "job.json").read_text())
    journal = lines(folder / "shop.journal")
    of_route = lambda route: [line for line in journal if line["route"] == route]  # noqa: E731
    kinds = {route: collections.Counter(line["kind"] for line in of_route(route)) for route in ("POST /refunds", "POST /mail")}
    refunds, mails = of_route("POST /refunds"), of_route("POST /mail")
    yield "the job completed", job["status"], "completed"
    yield "the refund arrived twice and took effect once", (kinds["POST /refunds"]["arrival"], kinds["POST /refunds"]["effect"]), (2, 1)
    yield "both requests had the same key", len({line["idempotency_key"] for line in refunds}), 1
    bodies = [line["body"] for line in refunds if line["kind"] == "arrival"]
    yield "both requests were the approved call", bodies, [{"amount": 29, "order": "43"}] * 2
    yield "the mail arrived once and was sent once", (kinds["POST /mail"]["arrival"], kinds["POST /mail"]["effect"]), (1, 1)
    made = [line["answer"]["id"] for line in refunds if line["kind"] == "effect"]
    yield "the result names the refund of the shop", job["result"]["refunds"], made
    yield "the mail names the refund of the shop", [made[0] in line["body"]["text"] for line in mails if line["kind"] == "arrival"], [True]
    turns = collections.Counter(line["turn"] for line in lines(folder / "model.journal"))
    yield "each of the three answers of the model was requested once", dict(turns), {1: 1, 2: 1, 3: 1}


def main():
    bad = 0
    for what, seen, wanted in questions(pathlib.Path(sys.argv[1])):
        good = seen == wanted
        bad += not good
        print(f"{'ok' if good else 'not ok'} {what}" + ("" if good else f": {seen}, not {wanted}"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
