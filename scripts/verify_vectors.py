#!/usr/bin/env python3
"""Verifies the hash chain of events: a second implementation of SPEC §13, which knows no stored bytes.

  verify_vectors.py testdata/vectors/chain*.json       the published vectors
  verify_vectors.py --events FILE                   envelopes as `aetheris events --json` prints them, or one a line

Prints `ok NAME` or `not ok NAME` and why, one line for each log; ends with 1 if any is not ok.
Needs nothing but Python's standard library.
"""
import hashlib
import json
import struct
import sys

from jcs_numbers import es6

# The fields whose value may be redacted: the chain holds SHA256(salt, canonical value) in their place.
VALUE_FIELDS = {
    "job_created": ["blind", "input"],
    "fork_imported": ["results"],
    "decision_recorded": ["payload"],
    "command_committed": ["result"],
    "tool_invocation_started": ["arguments"],
    "tool_invocation_finished": ["result", "error.message"],
    "node_finished": ["result", "error.message"],
    "job_completed": ["result"],
    "job_failed": ["error"],
    "wait_completed": ["payload"],
    "wait_opened": ["question_data", "question_text"],
    "agent_message": ["payload"],
    "time_recorded": ["value"],
    "timer_fired": ["value"],
    "random_recorded": ["value"],
    "uuid_recorded": ["value"],
    "http_recorded": ["value"],
    "outcome_noted": ["note", "result"],
    "routine_failed": ["error"],
    "value_emitted": ["value"],
}
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
           "\t": "\\t"}


class Altered(Exception):
    """Why a log does not verify."""


def canonical_text(text):
    quoted = (ESCAPES.get(c, f"\\u{ord(c):04x}" if c < " " else c) for c in text)
    return '"' + "".join(quoted) + '"'


def canonical(value):
    """RFC 8785. Numbers come as floats (read_json)."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return es6(value)
    if isinstance(value, str):
        return canonical_text(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    return "{" + ",".join(f"{canonical_text(key)}:{canonical(value[key])}" for key in keys) + "}"


def read_json(text):
    return json.loads(text, parse_int=float, parse_float=float)


def committed(name, value, salts):
    """What the chain has for the value field `name`."""
    if name in salts:
        salt = bytes.fromhex(salts[name])
        if len(salt) != 16:
            raise Altered(f"the salt of {name} is not 16 bytes")
        return {"$sha256": hashlib.sha256(salt + canonical(value).encode()).hexdigest()}
    # The retained part of an erased decision is beside its commitment, and not in the chain.
    if isinstance(value, dict) and set(value) - {"left"} == {"$redacted"}:
        return {"$sha256": value["$redacted"]}
    raise Altered(f"{name} has neither a salt nor a commitment")


def hashed_payload(event):
    payload = dict(event["payload"])
    salts = event.get("salts", {})
    # Later types: the fields with a salt are the value fields.
    fields = VALUE_FIELDS.get(event["type"], list(salts))
    for salted in salts:
        if salted not in fields:
            raise Altered(f"a salt for {salted}, which is not a value field")
    for name in fields:
        outer, _, inner = name.partition(".")
        if outer not in payload:
            continue
        if inner:
            payload[outer] = dict(payload[outer])
            payload[outer][inner] = committed(name, payload[outer][inner], salts)
        else:
            payload[outer] = committed(name, payload[outer], salts)
    return canonical(payload)


def part(content):
    """f(x): 8 bytes of length, then the content; a number is 8 bytes; absent is length 2^64-1."""
    if content is None:
        return b"\xff" * 8
    if isinstance(content, float):
        content = struct.pack(">Q", int(content))
    elif isinstance(content, str):
        content = content.encode()
    return struct.pack(">Q", len(content)) + content


def event_hash(previous, event):
    text = b"aetheris.event.v1" + previous
    for field in ("job_id", "seq", "id", "type", "schema", "created_at"):
        text += part(event[field])
    return hashlib.sha256(text + part(event.get("attempt_id")) + part(hashed_payload(event))).digest()


def verify(events):
    """The head of the log. Raises Altered."""
    head = bytes(32)
    for number, event in enumerate(events, 1):
        try:
            if event["seq"] != number:
                raise Altered(f"seq is {event['seq']:g}")
            if event["prev_hash"] != head.hex():
                raise Altered("prev_hash is not the hash of the event before")
            head = event_hash(head, event)
            if event["hash"] != head.hex():
                raise Altered(f"hash should be {head.hex()}")
        except (Altered, KeyError, ValueError, TypeError) as why:
            raise Altered(f"event {number}: {why}") from why
    return head.hex()


def logs_of(arguments):
    if arguments[0] == "--events":
        with open(arguments[1], encoding="utf-8") as file:
            values = [read_json(line) for line in file if line.strip()]
        # All of them in one value, or one a line.
        events = [event for value in values for event in value.get("events", [value])]
        return [{"name": arguments[1], "events": events}]
    logs = []
    for path in arguments:
        with open(path, encoding="utf-8") as file:
            logs += read_json(file.read())["logs"]
    return logs


def main(arguments):
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    failed = 0
    for log in logs_of(arguments):
        name = f"chain vectors: {log['name']} ({len(log['events'])} events)"
        try:
            head = verify(log["events"])
            if log.get("head", head) != head:
                raise Altered(f"the head should be {head}")
            print(f"ok {name}")
        except Altered as why:
            failed += 1
            print(f"not ok {name}: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
