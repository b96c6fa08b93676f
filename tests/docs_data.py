#!/usr/bin/env python3
"""Compares docs/data.md with the code.

Checked are: every event type and field of src/log/events.def, with number, kind and whether it is required; the decisions and
records of src/log/decisions.def and records.def; every word of src/log/words.cc; every table and column of
src/store/sqlite/schema.cc; every JSON example against its type; and the commit that the page draws byte by byte is decoded,
including its hash. Prints `ok NAME` or `not ok NAME`.
"""
import hashlib
import os
import pathlib
import re
import sys
import uuid
from datetime import datetime, timezone

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parent.parent)
sys.path.insert(0, str(ROOT / "scripts"))
import events as events_file  # noqa: E402
from verify_vectors import VALUE_FIELDS, canonical, event_hash, read_json  # noqa: E402

EVENTS = events_file.read_events(ROOT)
PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")
failed = []


def report(name, faults):
    for fault in faults:
        print(f"# {fault}")
    print(f"{'not ok' if faults else 'ok'} docs/data.md: {name}")
    failed.extend(faults)


def source(path):
    return (ROOT / path).read_text(encoding="utf-8")


# ---------------------------------------------------------------- the code


def code_table():
    """{name: (number, class, schema, {field: (number, kind, required)})}"""
    return {name: (event.number, event.event_class, event.schema,
                   {field: (f.number, f.kind, f.required) for field, f in event.fields.items()})
            for name, event in EVENTS.items()}


def code_words():
    body = source("src/log/words.cc").split("kWords = ", 1)[1].split("});", 1)[0]
    return re.findall(r'^\s+"(\w*)",', body, re.M)


def code_columns():
    """{table: [column…]}"""
    sql = source("src/store/sqlite/schema.cc").split('R"sql(', 1)[1].split(')sql"', 1)[0]
    tables = {}
    for name, body in re.findall(r"CREATE TABLE (\w+)\(\n(.*?)\n\)", sql, re.S):
        columns = [line.split()[0] for line in body.splitlines()]
        tables[name] = [c for c in columns if c.islower()]
    return tables


# ---------------------------------------------------------------- the page

SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", re.M | re.S)
HEADER = re.compile(r"^Number (\d+) · (\w+) · schema (\d+)\.", re.M)
FIELD = re.compile(r"^\| `([\w.]+)` \| (\d+) \| (\w+)(\*?) \|", re.M)
JSON_BLOCK = re.compile(r"^```json\n(.*?)^```", re.M | re.S)


def page_sections():
    return dict(SECTION.findall(PAGE))


PATTERNS = {
    "id8": r"[0-9a-f]{16}",
    "hash32": r"[0-9a-f]{64}",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "instant": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z",
    "external_key": r"aetheris:[^:]+:[0-9a-f]{16}:.+",
}


def is_invalid_example(kind, value):
    """Whether `value` is invalid in a field of this kind."""
    if kind in PATTERNS:
        return not (isinstance(value, str) and re.fullmatch(PATTERNS[kind], value))
    if kind in ("text", "word"):
        return not isinstance(value, str)
    if kind == "integer":
        return not (isinstance(value, float) and value.is_integer())
    if kind == "boolean":
        return not isinstance(value, bool)
    if kind == "error":
        return not (isinstance(value, dict) and sorted(value) == ["code", "message"])
    return kind not in ("json", "value")


def check_events():
    table, sections = code_table(), page_sections()
    report("every event type", [f"no section for {name}" for name in table if name not in sections] +
        [f"a section for {name}, which is no event type" for name in sections if name not in table])
    fields, examples = [], []
    for name, (number, event_class, schema, wanted) in table.items():
        section = sections.get(name, "")
        header = HEADER.search(section)
        if not header or header.groups() != (str(number), event_class, str(schema)):
            fields.append(f"{name}: must be Number {number} · {event_class} · schema {schema}.")
        shown = {f: (int(n), kind, must == "*") for f, n, kind, must in FIELD.findall(section)}
        for field in {*wanted, *shown}:
            if wanted.get(field) != shown.get(field):
                fields.append(f"{name}.{field}: the table has {wanted.get(field)}, the page {shown.get(field)}")
        blocks = JSON_BLOCK.findall(section)
        if not blocks:
            examples.append(f"{name}: no example")
        for block in blocks:
            payload = read_json(block)
            examples += [f"{name}: no field {f}" for f in payload if f not in wanted]
            examples += [f"{name}: {f} is missing" for f, (_, _, must) in wanted.items() if must and f not in payload]
            examples += [f"{name}: {f} cannot be {payload[f]!r}" for f in payload
                         if f in wanted and is_invalid_example(wanted[f][1], payload[f])]
    report("every field, with number, kind and whether it is required", fields)
    report("the tables match src/log/*.def", [] if events_file.written(PAGE, ROOT) == PAGE else
        ["write them with: scripts/events.py --write"])
    report("every example fits its type", examples)


def sha(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_ids():
    """The ids of the examples are derived as documented."""
    payload = {name: read_json(JSON_BLOCK.findall(section)[0]) for name, section in page_sections().items()
               if name in ("plan_generated", "tool_invocation_started")}
    plan, call = payload["plan_generated"], payload["tool_invocation_started"]
    job, arguments = call["external_key"].split(":")[1], canonical(call["arguments"])
    key = sha(job, call["command_id"], call["tool_name"], arguments)
    report("the ids of the examples are derived as documented", [
        name for name, shown, made in (
            ("plan_hash", plan["plan_hash"], sha(canonical(plan["task_graph"]))),
            ("decision_id", plan["decision_id"], plan["plan_hash"][:16]),
            ("arguments_hash", call["arguments_hash"], sha(arguments)),
            ("idempotency_key", call["idempotency_key"], key),
            ("invocation_id", call["invocation_id"], sha(job, call["command_id"], key)[:16]),
            ("external_key", call["external_key"].split(":")[2], call["step_id"])) if shown != made])


def check_words():
    shown = {int(n): word for n, word in re.findall(r"(\d+)\s`(\w+)`", PAGE.split("## Words", 1)[1].split("\n## ", 1)[0])}
    wanted = {n: word for n, word in enumerate(code_words()) if n > 0}
    report("every word", [f"{n}: {wanted.get(n)} in the code, {shown.get(n)} on the page"
                          for n in sorted({*wanted, *shown}) if wanted.get(n) != shown.get(n)])


def check_columns():
    part = PAGE.split("## The SQLite file", 1)[1]
    faults = []
    for table, columns in code_columns().items():
        row = re.search(rf"^\| `{table}` \|(.*)$", part, re.M)
        if not row:
            faults.append(f"no row for table {table}")
            continue
        faults += [f"{table}.{c} is not named" for c in columns if f"`{c}`" not in row[1]]
    report("every table and column of the SQLite file", faults)


# ---------------------------------------------------------------- what this version writes


def written_sources():
    """The sources of the engine and the runtime that create events, without tests."""
    files = [f for folder in ("src/engine", "src/runtime") for f in sorted((ROOT / folder).rglob("*.cc"))
             if not f.name.endswith("_test.cc")]
    return {str(f.relative_to(ROOT)): f.read_text(encoding="utf-8") for f in files}


def ticked(section, field):
    """The words in backticks in the row of a field."""
    row = re.search(rf"^\| `{field}` \|[^|]*\|[^|]*\|(.*)\|$", section, re.M)
    return set(re.findall(r"`(\w+)`", row[1])) if row else set()


def check_written():
    """Events and fields that the page marks as later are not written, and all others are."""
    sources = written_sources()
    code = "\n".join(sources.values())
    sections, table = page_sections(), code_table()
    faults = []
    for name in table:
        emitted = re.search(rf"emit(_of)?<{EVENTS[name].struct}>|\b{EVENTS[name].struct}(\{{| \w+(\{{| =|[;()]))", code) is not None
        later = "writes none" in sections[name]
        if emitted == later:
            faults.append(f"{name}: the page {'marks it as not written' if later else 'documents it'}, "
                          f"the code {'writes' if emitted else 'does not write'} it")
        for field in re.findall(r"^\| `(\w+)` \| \d+ \| \w+\*? \| later\b", sections[name], re.M):
            if re.search(rf"\b{EVENTS[name].struct} ?\w*\{{[^;]*\.{field} =", code):
                faults.append(f"{name}.{field}: marked as later, and the code writes it")
    report("events and fields marked as later are not written", faults)


def check_vocabulary():
    """Decision kinds, result types of nodes, and the reasons of parks and releases."""
    sources, sections = written_sources(), page_sections()
    code = "\n".join(sources.values())
    faults = []

    def compare(what, page, wanted):
        assert wanted, f"no {what} was found in the code"
        faults.extend(f"{what} {word}: {'only in the code' if word in wanted else 'only on the page'}"
                      for word in sorted(page ^ wanted))

    kinds = {decision.kind for decision in events_file.read_decisions(ROOT)}
    compare("decision kind", ticked(sections["decision_recorded"], "kind") - {"when"}, kinds)
    types = set(re.findall(r'case ResultType::(\w+):\s+return "', sources["src/engine/state/status.cc"])) - {"none"}
    compare("result type", ticked(sections["node_finished"], "result_type") - {"step_compensated", "node_finished"}, types)

    codes = {}
    for body in re.findall(r"\bJobParked\{(.*?)\}", code, re.S):
        head, until = body.split(".until")
        reasons = set(re.findall(r"Code::(\w+)", head)) | set(re.findall(r'"(\w+)"', head))
        for name in re.findall(r"\bk[A-Z]\w+", head):
            reasons |= set(re.findall(rf'{name} = "(\w+)"', source("src/engine/confirm/confirm.h")))
        name = re.search(r"park_until::(k\w+)", until)[1]
        ends = re.search(rf'{name} = "(\w+)"', source("src/log/park_until.h"))[1]
        codes.setdefault(ends, set()).update(reasons)
    reasons = set().union(*codes.values()) | set(re.findall(r'paused_event\("(\w+)"\)', code))
    for name in re.findall(r"paused_event\((k\w+)\)", code):
        reasons |= set(re.findall(rf'{name} = "(\w+)"', source("src/engine/state/state.h")))
    if "code_name(Code::store_rolled_back)" in sources["src/runtime/service/rollback.cc"]:
        reasons.add("store_rolled_back")
    compare("reason of job_parked", ticked(sections["job_parked"], "reason"), reasons)
    compare("until of job_parked", ticked(sections["job_parked"], "until"), set(codes))

    given_back = set()
    for body in re.findall(r"requeued_event\(([^;]*?), (?:std::nullopt|backoff)\)", code):
        given_back |= set(re.findall(r'"(\w+)"', body))
        for name in re.findall(r"engine::(k\w+)", body):
            given_back |= set(re.findall(rf'{name} = "(\w+)"', source("src/engine/state/state.h")))
    compare("reason of job_requeued", ticked(sections["job_requeued"], "reason"), given_back)
    report("decision kinds, result types, and reasons of parks and releases", faults)


# ---------------------------------------------------------------- the commit that is drawn


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        assert self.at + count <= len(self.data), "the bytes end too early"
        self.at += count
        return self.data[self.at - count:self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self):
        return self.take(self.varint())


def instant(us):
    seconds, rest = divmod(us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def read_field(kind, form, data, words):
    """(value, salt)"""
    if kind == "text":
        return data.text().decode(), None
    if kind == "word":
        number = data.byte()
        return (words[number] if number else data.text().decode()), None
    if kind in ("id8", "hash32"):
        return data.take(8 if kind == "id8" else 32).hex(), None
    if kind == "uuid":
        return str(uuid.UUID(bytes=data.take(16))), None
    if kind == "integer":
        n = data.varint()
        return float(n >> 1 if n % 2 == 0 else -(n >> 1) - 1), None
    if kind == "boolean":
        return bool(data.byte()), None
    if kind == "instant":
        return instant(int.from_bytes(data.take(8), "big")), None
    if kind == "json" and form == 0:
        return read_json(data.text()), None
    if kind == "value" and form == 0:
        salt = data.take(16)
        return read_json(data.text()), salt.hex()
    raise AssertionError(f"form {form} of {kind} is not read by this test")


def open_commit(job, previous, data):
    """A second decoder of sealed commits. Returns (events, head)."""
    table, words = {number: (name, fields) for name, (number, _, _, fields) in code_table().items()}, code_words()
    assert data.byte() == 1, "version"
    first_id = int.from_bytes(data.take(16), "big")
    created_at = instant(int.from_bytes(data.take(8), "big"))
    attempt = {0: lambda: None, 1: lambda: str(uuid.UUID(bytes=data.take(16))),
               2: lambda: data.text().decode()}[data.byte()]()
    count, first_seq = data.varint(), data.varint()
    events, head = [], previous
    for i in range(count):
        number, schema = data.byte(), data.byte()
        name, fields = table[number]
        body = Bytes(data.text())
        payload, salts = {}, {}
        while body.at < len(body.data):
            byte = body.byte()
            field, kind = next((f, k) for f, (n, k, _) in fields.items() if n == byte & 31)
            payload[field], salt = read_field(kind, byte >> 5, body, words)
            if salt:
                salts[field] = salt
        event = {"job_id": job, "seq": float(first_seq + i), "id": str(uuid.UUID(int=first_id + i)), "type": name,
                 "schema": float(schema), "created_at": created_at, "payload": payload, "salts": salts}
        if attempt:
            event["attempt_id"] = attempt
        head = event_hash(head, event)
        events.append(event)
    assert data.take(32) == head, "the last 32 bytes are not the hash of the last event"
    assert data.at == len(data.data), "bytes are left"
    return events, head


def check_audit():
    """The actions of the audit log that the code writes are those that the page lists."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.cc"))
                     if not path.name.endswith("_test.cc") and path.parent.name != "sim")
    written = set(re.findall(r'\.act = "(\w+)"', code)) | set(re.findall(r'record\(question, "(\w+)"', code))
    row = re.search(r"^\| `audit` \| `seq`, (.*)$", PAGE, re.M)[1].split("`act` is ", 1)[1]
    report("every action of the audit log", [f"{act} is not named" for act in sorted(written) if f"`{act}`" not in row] or
        [f"only {len(written)} acts were found in the code"][:len(written) < 10])


def check_drawing():
    part = PAGE.split("## One commit, byte by byte", 1)[1].split("\n## ", 1)[0]
    faults = []
    try:
        job = re.search(r"job `([^`]+)`", part)[1]
        previous = bytes.fromhex(re.search(r"head before it\s+is `([0-9a-f]{64})`", part)[1])
        drawing = re.search(r"^```\n(.*?)^```", part, re.M | re.S)[1]
        hexes = [line[:48].strip() for line in drawing.splitlines()]
        data = Bytes(bytes.fromhex("".join(hexes)))
        events, _ = open_commit(job, previous, data)
        for line in drawing.splitlines():  # a quoted text of a line must be in its bytes
            for quoted in re.findall(r'"([^"]+)"', line[48:]):
                if quoted.encode() not in bytes.fromhex(line[:48].strip()):
                    faults.append(f"the line does not hold {quoted!r}: {line.strip()}")
        shown = [read_json(block) for block in JSON_BLOCK.findall(part)]
        if [canonical(e["payload"]) for e in events] != [canonical(p) for p in shown]:
            faults.append(f"the bytes decode to {[canonical(e['payload']) for e in events]}")
    except (AssertionError, ValueError, KeyError, TypeError, IndexError) as why:
        faults.append(f"{type(why).__name__}: {why}")
    report("the drawn commit decodes as documented and its hash matches", faults)


def check_value_fields():
    wanted = {}
    for name, (_, _, _, fields) in code_table().items():
        values = [f + (".message" if kind == "error" else "") for f, (_, kind, _) in sorted(fields.items())
                  if kind in ("value", "error")]
        if values:
            wanted[name] = sorted(values)
    report("the Python verifier has the same value fields",
        [f"{name}: {wanted.get(name)}, scripts/verify_vectors.py has {VALUE_FIELDS.get(name)}"
         for name in {*wanted, *VALUE_FIELDS} if wanted.get(name) != sorted(VALUE_FIELDS.get(name, []))])


check_events()
check_ids()
check_words()
check_columns()
check_written()
check_vocabulary()
check_audit()
check_drawing()
check_value_fields()
sys.exit(1 if failed else 0)
