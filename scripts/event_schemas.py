#!/usr/bin/env python3
"""Makes the schemas of the payloads of events in docs/openapi.json from src/log/events.def, decisions.def and records.def.

  event_schemas.py           checks that the schemas of docs/openapi.json are those of these files
  event_schemas.py --write   writes them there

A generated schema has `x-source`, the file that it is made from. The schema `Event` refers to the payload of each type.
"""
import json
import re
import sys

import events as tables

DOCUMENT = tables.ROOT / "docs/openapi.json"
REFERENCE = "#/components/schemas/"
ERASED = "ErasedValue"
DIGITS = {"id8": 16, "hash32": 64}
# Records of what others supply: the answer of an operator may have any JSON there (docs/decisions/0093-records-in-events.md).
SUPPLIED = {"TokenUsage"}
TYPES = {"text": "string", "word": "string", "external_key": "string", "integer": "integer", "boolean": "boolean"}


def plain(meaning):
    """Without the links of docs/data.md."""
    return re.sub(r"\[([^]]+)]\([^)]+\)", r"\1", meaning)


def reference(name):
    return {"$ref": REFERENCE + name}


def hex_digits(count):
    return {"type": "string", "pattern": f"^[0-9a-f]{{{count}}}$"}


def kind_schema(kind):
    """The schema of a field. JSON without a record, and a value, may be anything."""
    held = re.fullmatch(r"(list|record)<(\w+)>", kind)
    if held and held[2] in SUPPLIED:
        return {"anyOf": [reference(held[2]), {}]}
    if held:
        return {"type": "array", "items": reference(held[2])} if held[1] == "list" else reference(held[2])
    if kind == "texts":
        return {"type": "array", "items": {"type": "string"}}
    stored = tables.KINDS.get(kind, kind)
    if stored in DIGITS:
        return hex_digits(DIGITS[stored])
    if stored == "uuid":
        return {"type": "string", "format": "uuid"}
    if stored == "instant":
        return {"type": "string", "format": "date-time"}
    if stored == "error":
        return {"type": "object", "required": ["code", "message"], "properties": {
            "code": {"type": "string"}, "message": {"description": "A sentence, or an erased value"}}}
    return {"type": TYPES[stored]} if stored in TYPES else {}


def field_schema(kind, meaning):
    return {**kind_schema(kind), **({"description": plain(meaning)} if meaning else {})}


def object_schema(source, description, fields):
    """`fields`: {name: (kind, required, meaning)}"""
    schema = {"type": "object", "description": description, "x-source": f"src/log/{source}"}
    required = [name for name, (_, is_required, _) in fields.items() if is_required]
    if required:
        schema["required"] = required
    schema["properties"] = {name: field_schema(kind, meaning) for name, (kind, _, meaning) in fields.items()}
    return schema


def member_fields(members):
    return {name: (member.kind, member.required, member.meaning) for name, member in members.items()}


def decision_schema(decision):
    states = f" {', '.join(decision.states)}" if decision.states else ""
    description = f"Payload of a decision: {decision.kind}{states}"
    if not decision.is_value:
        return object_schema("decisions.def", description, member_fields(decision.fields))
    (member,) = decision.fields.values()
    return {**kind_schema(member.kind), "description": f"{description}: {plain(member.meaning)}",
            "x-source": "src/log/decisions.def"}


def payload_rules(decisions):
    """Which payload a decision of a kind and state has."""
    rules = {}
    for decision in decisions:
        rules.setdefault((decision.kind, tuple(decision.states)), []).append(decision.struct)
    for (kind, states), structs in rules.items():
        case = {"properties": {"kind": {"const": kind}}, "required": ["kind"]}
        if states:
            case = {"properties": {"kind": {"const": kind}, "state": {"enum": list(states)}}, "required": ["kind", "state"]}
        yield {"if": case, "then": {"properties": {"payload": {"anyOf": [reference(name) for name in (*structs, ERASED)]}}}}


def referenced(value):
    """The names of the schemas that a schema refers to."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from [inner.removeprefix(REFERENCE)] if name == "$ref" else referenced(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from referenced(inner)


def generated(root=tables.ROOT):
    """{name: schema}: events, decisions, and the records that they contain."""
    decisions = tables.read_decisions(root)
    schemas = {}
    for name, event in tables.read_events(root).items():
        fields = {field: (f.content, f.required, f.meaning) for field, f in event.fields.items()}
        schemas[event.struct] = object_schema(
            "events.def", f"Payload of {name}: {event.event_class}, schema {event.schema}", fields)
    schemas["DecisionRecorded"]["allOf"] = list(payload_rules(decisions))
    schemas.update((decision.struct, decision_schema(decision)) for decision in decisions)
    records = {struct: object_schema("records.def", f"Record {record.name}", member_fields(record.fields))
               for struct, record in tables.read_records(root).items()}
    wanted = list(referenced(schemas))
    for name in wanted:
        if name in records and name not in schemas:
            schemas[name] = records[name]
            wanted.extend(referenced(records[name]))
    schemas[ERASED] = {
        "type": "object", "description": "A value that was erased from the log", "x-source": "src/log/events.def",
        "required": ["$redacted"],
        "properties": {"$redacted": hex_digits(64), "left": {"description": "Of a decision: the fields that remain"}}}
    return schemas


def event_rules(root=tables.ROOT):
    """Which payload an event of a type has. A type that a newer program wrote has any."""
    return [{"if": {"properties": {"type": {"const": name}}}, "then": {"properties": {"payload": reference(event.struct)}}}
            for name, event in tables.read_events(root).items()]


def written(text, root=tables.ROOT):
    """The text of the document with the schemas of the tables."""
    document = json.loads(text)
    schemas = document["components"]["schemas"]
    for name in [name for name, schema in schemas.items() if "x-source" in schema]:
        del schemas[name]
    made = generated(root)
    if twice := made.keys() & schemas.keys():
        sys.exit(f"{DOCUMENT.name}: these names are those of events, decisions or records: {', '.join(sorted(twice))}")
    schemas["Event"]["allOf"] = event_rules(root)
    schemas.update(made)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main():
    text = DOCUMENT.read_text(encoding="utf-8")
    new = written(text)
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(new, encoding="utf-8")
    elif new != text:
        sys.exit("the schemas of events in docs/openapi.json are not those of src/log/*.def; write them with: "
                 "scripts/event_schemas.py --write")


if __name__ == "__main__":
    main()
