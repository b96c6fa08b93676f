#!/usr/bin/env python3
"""Reads src/log/events.def, decisions.def and records.def: events, decisions and records with their fields.

  events.py            checks that the tables of docs/data.md and src/log/field_names.h are those of these files
  events.py --write    writes them there
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/data.md"
CONSTANTS = ROOT / "src/log/field_names.h"
KEYWORDS = {"try"}  # of C++: their constants end with an underscore
Field = collections.namedtuple("Field", "number kind required meaning content")
Event = collections.namedtuple("Event", "struct number event_class schema fields")
Decision = collections.namedtuple("Decision", "struct kind states schema is_value fields")
Record = collections.namedtuple("Record", "struct name fields")
Member = collections.namedtuple("Member", "kind required left meaning")

# As docs/data.md calls the kinds of events.def.
KINDS = {"step": "id8", "invocation": "id8", "decision": "id8", "hash": "hash32", "idempotency": "hash32",
         "nullable": "json", "texts": "json"}
# What remains of a field when the value that contains it is erased.
LEFT = {"kept": "yes", "blinded": "with a blind", "erased": ""}


def words(text):
    """The arguments of a macro: names, numbers, and texts, whose parts are adjacent."""
    parts = re.findall(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*|[^,"\s]+', text)
    return ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', part)).replace('\\"', '"').replace("\\\\", "\\")
            if part.startswith('"') else part for part in parts]


def arguments(text, begin):
    """The text between the parentheses that open at `begin`, and where they close."""
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


def entries(root, name, macros):
    """(macro, words before the fields, [(required, words of a field)]) of each entry of a table."""
    text = "\n".join(line for line in (root / "src/log" / name).read_text(encoding="utf-8").splitlines()
                     if not line.startswith("//"))
    for match in re.finditer(rf"\b({macros})(?=\()", text):
        body, _ = arguments(text, match.end())
        fields = []
        for field in re.finditer(r"\bAE_(REQUIRED|OPTIONAL)(_AS)?(?=\()", body):
            inner, _ = arguments(body, field.end())
            fields.append((field[1] == "REQUIRED", words(inner)))
        yield match[1], words(body.split("AE_", 1)[0].rstrip(" ,\n")), fields


def read_events(root=ROOT):
    """{name: Event}, in the order of the file; the fields of an event by name, in their canonical order."""
    events = {}
    for _, (struct, name, number, event_class, schema), parts in entries(root, "events.def", "AE_EVENT"):
        fields = {}
        for required, (kind, *names, field_number, meaning) in parts:
            stored = "json" if re.match(r"(list|record)<", kind) else KINDS.get(kind, kind)
            fields[names[-1]] = Field(int(field_number), stored, required, meaning, kind)
        events[name] = Event(struct, int(number), event_class, int(schema), fields)
    return events


def members(parts):
    return {names[-1]: Member(kind, required, left, meaning) for required, (kind, *names, left, meaning) in parts}


def read_records(root=ROOT):
    """{struct: Record}, in the order of the file."""
    return {struct: Record(struct, name, members(parts))
            for _, (struct, name), parts in entries(root, "records.def", "AE_RECORD")}


def read_decisions(root=ROOT):
    """[Decision], in the order of the file."""
    return [Decision(struct, kind, states.split(), int(schema), macro == "AE_VALUE_DECISION", members(parts))
            for macro, (struct, kind, states, schema), parts
            in entries(root, "decisions.def", "AE_DECISION|AE_VALUE_DECISION")]


def content_text(kind, records):
    """What a JSON field holds: "" if that is not declared."""
    if kind == "texts":
        return " (a list of texts)"
    held = re.fullmatch(r"(list|record)<(\w+)>", kind)
    return f" ({'a list of ' if held[1] == 'list' else ''}[`{records[held[2]].name}`](#records))" if held else ""


def table(event, records):
    lines = ["| field | no. | kind | |", "|---|---|---|---|"]
    for name, field in event.fields.items():
        need = "*" if field.required else ""
        meaning = field.meaning + content_text(field.content, records)
        lines.append(f"| `{name}` | {field.number} | {field.kind}{need} | {meaning} |")
    return "\n".join(lines)


def type_name(kind, records):
    held = re.fullmatch(r"(list|record)<(\w+)>", kind)
    if held is None:
        return KINDS.get(kind, kind)
    return ("list of " if held[1] == "list" else "") + f"`{records[held[2]].name}`"


def member_rows(fields, records, is_value=False):
    for name, field in fields.items():
        need = "*" if field.required else ""
        shown = "the payload" if is_value else f"`{name}`"
        yield f"{shown} | {type_name(field.kind, records)}{need} | {LEFT[field.left]} | {field.meaning} |"


def decision_table(decisions, records):
    lines = ["| kind | state | field | type | remains | |", "|---|---|---|---|---|---|"]
    for decision in decisions:
        states = ", ".join(f"`{state}`" for state in decision.states)
        lines += [f"| `{decision.kind}` | {states} | {row}"
                  for row in member_rows(decision.fields, records, decision.is_value)]
    return "\n".join(lines)


def record_table(records):
    lines = ["| record | field | type | remains | |", "|---|---|---|---|---|"]
    for record in records.values():
        lines += [f"| `{record.name}` | {row}" for row in member_rows(record.fields, records)]
    return "\n".join(lines)


def replaced(page, heading, header, lines):
    """The page with another table, the first one with this header below the heading."""
    pattern = re.compile(rf"(^{re.escape(heading)}\n(?:(?!^### ).*\n)*?){re.escape(header)}\n(?:\|.*\n)+", re.M)
    page, count = pattern.subn(lambda match: match[1] + lines + "\n", page, count=1)
    if count != 1:
        sys.exit(f"{PAGE.name} has no table below {heading}")
    return page


def written(page, root=ROOT):
    """The page with the tables of events.def, decisions.def and records.def."""
    records = read_records(root)
    for name, event in read_events(root).items():
        page = replaced(page, f"### `{name}`", "| field | no. | kind | |", table(event, records))
    page = replaced(page, "#### Payloads of decisions", "| kind | state | field | type | remains | |",
                    decision_table(read_decisions(root), records))
    return replaced(page, "## Records", "| record | field | type | remains | |", record_table(records))


def constants(header, root=ROOT):
    """The header with one line for each field of events.def."""
    names = sorted({name for event in read_events(root).values() for name in event.fields})
    lines = [f'inline constexpr char {name}{"_" * (name in KEYWORDS)}[] = "{name}";' for name in names]
    written, count = re.subn(r"(?<=namespace ae::field \{\n).*?(?=\}  // namespace ae::field)",
                             lambda _: "\n" + "\n".join(lines) + "\n\n", header, flags=re.S)
    if count != 1:
        sys.exit(f"{CONSTANTS.name} has no namespace field")
    return written


def main():
    for path, new in ((PAGE, written(PAGE.read_text(encoding="utf-8"))),
                      (CONSTANTS, constants(CONSTANTS.read_text(encoding="utf-8")))):
        if sys.argv[1:] == ["--write"]:
            path.write_text(new, encoding="utf-8")
        elif new != path.read_text(encoding="utf-8"):
            sys.exit(f"{path.relative_to(ROOT)} does not match src/log/*.def; write it with: scripts/events.py --write")


if __name__ == "__main__":
    main()
