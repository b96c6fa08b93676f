#!/usr/bin/env python3
"""Did any effect happen twice? The answer from the shop's own journal.

    python3 table.py shop.journal [--json] [--wide]

One line for each effect (a route and its key): how many requests arrived, how
many of them the shop rejected, how often it took effect, and the result.

    once        it took effect once
    none        it did not take effect (rejected, cut off, or still in progress)
    REPEATED    an idempotent key took effect more than once, or a request that must never be sent
                twice (at_most_once) arrived again after one that was not rejected

Exit code: 0 nothing was repeated, 1 something was, 2 the journal cannot be read. Reads are
counted only: a repeated read has no effect. Keys are shown by the part that differs (--wide: whole).
"""

import argparse
import json
import os
import sys


def read(path):
    """The journal's lines; a last line without its end was never answered and does not count."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def table(journal):
    """[{route, policy, key, arrived, refused, effects, result}] in the order of arrival."""
    rows = {}
    for entry in journal:
        if entry.get("policy") not in ("idempotent", "at_most_once"):
            continue
        key = entry["idempotency_key"]
        # Requests without a key cannot be matched: each has a row.
        same = key if key is not None else f"(no key) {entry.get('arrival', entry['n'])}"
        row = rows.setdefault((entry["route"], same), {
            "route": entry["route"], "policy": entry["policy"], "key": same,
            "arrived": 0, "refused": 0, "effects": 0})
        row[{"arrival": "arrived", "refused": "refused", "effect": "effects"}[entry["kind"]]] += 1
    for row in rows.values():
        sent_twice = row["policy"] == "at_most_once" and row["arrived"] - row["refused"] > 1
        if row["effects"] > 1 or sent_twice:
            row["result"] = "REPEATED"
        else:
            row["result"] = "once" if row["effects"] else "none"
    return list(rows.values())


def shorten(keys, width):
    """Keys by the part that differs: what all of them begin with is cut to its end, then the middle of a long one."""
    begin = os.path.commonprefix(keys) if len(set(keys)) > 1 else ""
    begin = begin[:begin.rfind(":") + 1]  # whole parts
    short = []
    for key in keys:
        text = "…" + key[len(begin):] if begin else key
        if len(text) > width:
            front = (width - 1) // 2
            text = text[:front] + "…" + text[len(text) - (width - 1 - front):]
        short.append(text)
    return short


def show(rows, reads, wide):
    head = ("effect", "key", "arrived", "refused", "took effect", "result")
    keys = [row["key"] for row in rows]
    lines = [(row["route"] + ("" if row["policy"] == "idempotent" else " (at most once)"), key,
              str(row["arrived"]), str(row["refused"]), str(row["effects"]), row["result"])
             for row, key in zip(rows, keys if wide else shorten(keys, 40))]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        cells = [cell.rjust(width) if 2 <= i <= 4 else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())
    applied = sum(row["effects"] > 0 for row in rows)
    duplicated = sum(row["result"] == "REPEATED" for row in rows)
    print(f"\neffects: {len(rows)} requested, {applied} applied, {duplicated} duplicated; reads: {reads}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journal")
    parser.add_argument("--json", action="store_true", help="one JSON value instead of a table")
    parser.add_argument("--wide", action="store_true", help="whole keys")
    options = parser.parse_args()
    try:
        journal = read(options.journal)
        rows = table(journal)
    except (OSError, ValueError, KeyError) as error:
        print(f"table.py: {options.journal} cannot be read as a journal: {error}", file=sys.stderr)
        return 2
    reads = sum(entry.get("policy") == "read" for entry in journal)
    ok = all(row["result"] != "REPEATED" for row in rows)
    if options.json:
        print(json.dumps({"ok": ok, "effects": rows, "reads": reads}))
    else:
        show(rows, reads, options.wide)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
