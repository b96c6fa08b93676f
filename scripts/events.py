#!/usr/bin/env python3
"""Reads src/log/events.def: every kind of event, with its number, class, newest schema and fields.

  events.py            checks that the tables of docs/data.md are those of events.def
  events.py --write    writes them there
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/data.md"
Field = collections.namedtuple("Field", "number kind required meaning")
Event = collections.namedtuple("Event", "struct number event_class schema fields")

# As docs/data.md calls the kinds of events.def.
KINDS = {"step": "id8", "invocation": "id8", "decision": "id8", "hash": "hash32", "idempotency": "hash32"}


def words(text):
    """The arguments of a macro: names, numbers, and texts whose parts stand one after the other."""
    parts = re.findall(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*|[^,"\s]+', text)
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)).replace('\\"', '"').replace("\\\\", "\\")
            if part.startswith('"') else part for part in parts]


def arguments(text, begin):
    """What stands between the parentheses that open at `begin`, and where they close."""
    depth, at, quoted = 0, begin, False
    while True:
        char = text[at]
        if char == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted and char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return text[begin + 1:at], at + 1
        at += 1


def read_events(root=ROOT):
    """{name: Event}, in the order of the file; the fields of an event by name, in their canonical order."""
    text = "\n".join(line for line in (root / "src/log/events.def").read_text(encoding="utf-8").splitlines()
                     if not line.startswith("//"))
    events = {}
    for match in re.finditer(r"\bAE_EVENT(?=\()", text):
        body, _ = arguments(text, match.end())
        fields = {}
        for field in re.finditer(r"\bAE_(REQUIRED|OPTIONAL)(_AS)?(?=\()", body):
            inner, _ = arguments(body, field.end())
            kind, *names, number, meaning = words(inner)
            fields[names[-1]] = Field(int(number), KINDS.get(kind, kind), field[1] == "REQUIRED", meaning)
        struct, name, number, event_class, schema = words(body.split("AE_", 1)[0].rstrip(" ,\n"))[:5]
        events[name] = Event(struct, int(number), event_class, int(schema), fields)
    return events


def table(event):
    lines = ["| field | no. | kind | |", "|---|---|---|---|"]
    for name, field in event.fields.items():
        need = "*" if field.required else ""
        lines.append(f"| `{name}` | {field.number} | {field.kind}{need} | {field.meaning} |")
    return "\n".join(lines)


def written(page, events):
    """The page with the tables of events.def."""
    for name, event in events.items():
        pattern = re.compile(rf"(^### `{name}`\n(?:(?!^### ).*\n)*?)\| field \| no\. \| kind \| \|\n(?:\|.*\n)+", re.M)
        page, count = pattern.subn(lambda match: match[1] + table(event) + "\n", page, count=1)
        if count != 1:
            sys.exit(f"{PAGE.name} has no table for {name}")
    return page


def main():
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, read_events())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit("the tables of docs/data.md are not those of src/log/events.def; write them with: scripts/events.py --write")


if __name__ == "__main__":
    main()
