#!/usr/bin/env python3
"""Was anything done twice? The answer from the shop's own journal.

    python3 table.py shop.journal [--json] [--wide]

One line for each effect (a route and the key it was asked under): how many requests arrived, how
many of them the shop turned away, how often it took effect, and the verdict.

    once        it took effect, once
    none        it did not take effect (turned away, cut off, or still under way)
    REPEATED    an idempotent key took effect more than once, or a request that must never be sent
                twice (at_most_once) arrived again after one that was not turned away

Exit code: 0 nothing was repeated, 1 something was, 2 the journal cannot be read. Reads are
counted, never judged: reading twice harms nobody.
"""

import argparse
import json
import sys


def read(path):
    """The journal's lines; a last line without its end was never answered and does not count."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def table(journal):
    """[{route, policy, key, arrived, refused, effects, verdict}] in the order of arrival."""
    rows = {}
    for entry in journal:
        if entry.get("policy") not in ("idempotent", "at_most_once"):
            continue
        key = entry["idempotency_key"]
        # Requests without a key cannot be told to be the same: each stands for itself.
        same = key if key is not None else f"(no key) {entry.get('arrival', entry['n'])}"
        row = rows.setdefault((entry["route"], same), {
            "route": entry["route"], "policy": entry["policy"], "key": same,
            "arrived": 0, "refused": 0, "effects": 0})
        row[{"arrival": "arrived", "refused": "refused", "effect": "effects"}[entry["kind"]]] += 1
    for row in rows.values():
        sent_twice = row["policy"] == "at_most_once" and row["arrived"] - row["refused"] > 1
        if row["effects"] > 1 or sent_twice:
            row["verdict"] = "REPEATED"
        else:
            row["verdict"] = "once" if row["effects"] else "none"
    return list(rows.values())


def shorten(text, width):
    """The middle goes: a key begins with its job and ends with its attempt."""
    if len(text) <= width:
        return text
    front = (width - 1) // 2
    return text[:front] + "…" + text[len(text) - (width - 1 - front):]


def show(rows, reads, wide):
    head = ("effect", "key", "arrived", "refused", "took effect", "verdict")
    lines = [(row["route"] + ("" if row["policy"] == "idempotent" else " (at most once)"),
              row["key"] if wide else shorten(row["key"], 40),
              str(row["arrived"]), str(row["refused"]), str(row["effects"]), row["verdict"])
             for row in rows]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    for line in [head, *lines]:
        cells = [cell.rjust(width) if 2 <= i <= 4 else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())
    repeated = sum(row["verdict"] == "REPEATED" for row in rows)
    print(f"\n{len(rows)} effects asked for, {sum(row['effects'] for row in rows)} took place, "
          f"{repeated} repeated; {reads} reads")


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
    ok = all(row["verdict"] != "REPEATED" for row in rows)
    if options.json:
        print(json.dumps({"ok": ok, "effects": rows, "reads": reads}))
    else:
        show(rows, reads, options.wide)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
