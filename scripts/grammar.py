#!/usr/bin/env python3
"""The grammar of agents files, from docs/agents.schema.json.

  grammar.py OUT       writes the C++ file that defines shape_of and words_of (src/agents/grammar.h); run by the build
  grammar.py --check   compares the tables of keys in docs with the schema, and checks the form of the schema:
                       each mapping with keys and each enumeration is a definition of its own

Of a definition, the properties are the keys of a mapping, in the order of messages. A deprecated one is an alias, an
older name of the key that its description names. Branches of `oneOf` are its kinds:
either they require a key each and refuse (`false`) the keys of other kinds, or they are definitions with a `type`.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "docs/agents.schema.json"
HEADER = ROOT / "src/agents/grammar.h"

# Tables whose first column has keys: page, heading, and the mappings that they describe.
TABLES = [
    ("agents-file.md", "A complete file", ["agents_file"]),
    ("agents-file.md", "http", ["own_tool"]),
    ("agents-file.md", "command", ["own_tool"]),
    ("agents-file.md", "sandbox", ["sandbox_limits"]),
    ("agents-file.md", "worker", ["own_tool"]),
    ("agents-file.md", "Policy", ["own_tool", "mcp_server"]),
    ("agents-file.md", "probe", ["own_tool"]),
    ("agents-file.md", "compensate", ["own_tool"]),
    ("agents-file.md", "changes and verify", ["own_tool", "verify"]),
    ("agents-file.md", "Models", ["model"]),
    ("agents-file.md", "Agents", ["agent"]),
    ("agents-file.md", "Nodes", ["node"]),
    ("agents-file.md", "tool", ["node"]),
    ("agents-file.md", "llm", ["llm"]),
    ("agents-file.md", "wait", ["wait"]),
    ("agents-file.md", "map", ["node"]),
    ("agents-file.md", "loop", ["loop"]),
    ("agents-file.md", "context", ["context"]),
    ("agents-file.md", "Planners", ["planner"]),
    ("agents-file.md", "Code agents", ["code"]),
    ("child-jobs.md", None, ["own_tool", "node"]),
    ("approvals.md", None, ["policy"]),
    ("budgets.md", None, ["budget"]),
    ("mcp.md", None, ["mcp_server"]),
]


def fail(problem):
    sys.exit(f"grammar.py: {problem}")


class Grammar:
    def __init__(self, schema):
        self.schema = schema
        self.defs = schema["$defs"] | {"agents_file": schema}

    def follow(self, schema):
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self.defs[schema["$ref"].removeprefix("#/$defs/")]
        return schema

    def aliases(self, schema):
        """{alias: its key}"""
        found = {}
        for name, value in schema.get("properties", {}).items():
            if isinstance(value, dict) and value.get("deprecated"):
                match = re.fullmatch(r"Alias of `(\w+)`", value.get("description", ""))
                if not match or match[1] not in schema["properties"]:
                    fail(f"{name} is deprecated: its description must be: Alias of `KEY`, which is another key")
                found[name] = match[1]
        return found

    def keys(self, schema):
        """The keys of a mapping, in their order, without aliases."""
        if "properties" in schema:
            aliases = self.aliases(schema)
            return [key for key in schema["properties"] if key not in aliases]
        return list(dict.fromkeys(key for branch in self.branches(schema) for key in self.keys(branch)))

    def branches(self, schema):
        return [self.follow(branch) for branch in schema.get("oneOf", []) if "$ref" in branch]

    def refused(self, schema):
        return [key for key, value in schema.get("properties", {}).items() if value is False]

    def kinds(self, schema):
        """{kind: its keys}"""
        found = {}
        for branch in schema.get("oneOf", []):
            if "$ref" in branch:
                branch = self.follow(branch)
                for kind in self.words(branch["properties"].get("type", {})):
                    found[kind] = self.keys(branch)
            else:
                refused = self.refused(branch)
                found[branch["required"][0]] = [key for key in schema["properties"] if key not in refused]
        return found

    def words(self, schema):
        """The words of an enumeration, also of one beside which other values are allowed."""
        schema = self.follow(schema)
        if not isinstance(schema, dict):
            return []
        words = schema.get("enum", [schema["const"]] if "const" in schema else [])
        for branch in schema.get("anyOf", []):
            words = words + (self.words(branch) if "$ref" not in branch else [])
        return [word for word in words if isinstance(word, str)]

    def is_mapping(self, schema):
        return isinstance(schema, dict) and ("properties" in schema or bool(self.branches(schema)))


# ---------------------------------------------------------------- the generated file

def enumerators(name):
    """Those of an enum of the header."""
    body = re.search(rf"enum class {name} : std::uint8_t {{(.*?)}};", HEADER.read_text(), re.S)[1]
    return re.findall(r"\w+", body)


def array(kind, name, items):
    return f"      static constexpr {kind} {name}[] = {{{', '.join(items)}}};\n"


def quoted(words):
    return [json.dumps(word) for word in words]


def case_of_mapping(grammar, name):
    schema = grammar.defs.get(name)
    if schema is None or not grammar.is_mapping(schema):
        fail(f"{SCHEMA.name} has no mapping {name}")
    refused, kinds = grammar.refused(schema), grammar.kinds(schema)
    text, members = array("std::string_view", "keys", quoted(grammar.keys(schema))), [".keys = keys"]
    if aliases := grammar.aliases(schema):
        text += array("KeyAlias", "aliases", [f"{{{json.dumps(alias)}, {json.dumps(key)}}}" for alias, key in aliases.items()])
        members.append(".aliases = aliases")
    if refused:
        text += array("std::string_view", "refused", quoted(refused))
        members.append(".refused = refused")
    if kinds:
        text += array("std::string_view", "kinds", quoted(kinds))
        for number, keys in enumerate(kinds.values()):
            text += array("std::string_view", f"keys_{number}", quoted(keys))
        text += array("Names", "keys_of_kinds", [f"keys_{number}" for number in range(len(kinds))])
        members += [".kinds = kinds", ".keys_of_kinds = keys_of_kinds"]
    text += f"      static constexpr Shape shape{{{', '.join(members)}}};\n      return shape;\n"
    return f"    case Mapping::{name}: {{\n{text}    }}\n"


def case_of_words(grammar, name):
    words = grammar.words(grammar.defs.get(name))
    if not words:
        fail(f"{SCHEMA.name} has no enumeration {name}")
    return f"    case Words::{name}: {{\n{array('std::string_view', 'words', quoted(words))}      return words;\n    }}\n"


def generated(grammar):
    mappings = "".join(case_of_mapping(grammar, name) for name in enumerators("Mapping"))
    words = "".join(case_of_words(grammar, name) for name in enumerators("Words"))
    return f"""// Generated from docs/{SCHEMA.name} by scripts/grammar.py.
#include <utility>

#include "agents/grammar.h"

namespace ae::agents {{

const Shape& shape_of(Mapping mapping) {{
  switch (mapping) {{
{mappings}  }}
  std::unreachable();
}}

Names words_of(Words name) {{
  switch (name) {{
{words}  }}
  std::unreachable();
}}

}}  // namespace ae::agents
"""


# ---------------------------------------------------------------- checks

def inline(grammar, schema, path):
    """Mappings and enumerations without a definition of their own."""
    for key, below in schema.get("properties", {}).items():
        if not isinstance(below, dict):
            continue
        for one in [below, *below.get("anyOf", []), *below.get("oneOf", [])]:
            if "properties" in one:
                yield f"{path}.{key}: its mapping must be a definition in $defs"
            if len(grammar.words(one)) > 1 and "$ref" not in one and key != "type":
                yield f"{path}.{key}: its words must be a definition in $defs"


def form_problems(grammar):
    mappings, words = set(enumerators("Mapping")), set(enumerators("Words"))
    kinds = {branch["$ref"].removeprefix("#/$defs/") for schema in grammar.defs.values() if isinstance(schema, dict)
             for branch in schema.get("oneOf", []) if "$ref" in branch}
    for name, schema in grammar.defs.items():
        yield from inline(grammar, schema, name)
        if grammar.is_mapping(schema) and name not in mappings | kinds:
            yield f"{name}: a mapping that src/agents/grammar.h does not have"
        if grammar.words(schema) and name not in words:
            yield f"{name}: words that src/agents/grammar.h does not have"


def sections(page):
    """{heading: its lines}; the lines before the first heading are below None."""
    heading, found = None, {None: []}
    for line in (ROOT / "docs" / page).read_text().splitlines():
        if match := re.match(r"#+ (.*)", line):
            heading = match[1]
        found.setdefault(heading, []).append(line)
    return found


def key_rows(lines):
    """The keys of each row of the tables whose first column is headed `key` or `key of …`."""
    rows, inside = [], False
    for line in lines:
        if not line.startswith("|"):
            inside = False
        elif re.match(r"\| key( of [\w ]+)? \|", line):
            inside = True
        elif inside and not line.startswith("|---"):
            rows.append(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return rows


def full_paths(keys):
    """`changes[].type` and `id` of one row are `changes[].type` and `changes[].id`."""
    prefix = ""
    for key in keys:
        if "." in key:
            prefix = key.rpartition(".")[0] + "."
            yield key
        else:
            yield prefix + key


def find_key(grammar, mappings, path):
    """The schema of a key that is given by its path below one of the mappings, or None."""
    first, *rest = path.replace("[]", "").split(".")
    for name in mappings:
        schema = grammar.defs[name]
        found = [branch["properties"][first] for branch in [schema, *grammar.branches(schema)]
                 if first in branch.get("properties", {})]
        for part in rest:
            below = [grammar.follow(one) for one in found]
            below = [grammar.follow(one.get("items", one)) for one in below]
            found = [one["properties"][part] for one in below if part in one.get("properties", {})]
        if found:
            return found[0]
    return None


def table_problems(grammar):
    documented, texts = {}, {}  # keys by mapping; the sections about each enumeration
    for page, heading, mappings in TABLES:
        found = sections(page)
        lines = found.get(heading, []) if heading else [line for lines in found.values() for line in lines]
        rows = key_rows(lines)
        where = f"docs/{page}" + (f", {heading}" if heading else "")
        if not rows:
            yield f"{where}: no table of keys"
        for path in (path for keys in rows for path in full_paths(keys)):
            schema = find_key(grammar, mappings, path)
            if schema is None:
                yield f"{where}: `{path}` is no key of {' or '.join(mappings)}"
                continue
            for name in mappings:
                documented.setdefault(name, set()).add(path.partition(".")[0].replace("[]", ""))
            for word in grammar.words(schema):
                texts.setdefault((path, word), []).append("\n".join(lines))
    for (path, word), sections_of_key in texts.items():
        if not any(re.search(rf"`[^`\n]*\b{re.escape(word)}\b[^`\n]*`", text) for text in sections_of_key):
            yield f"no section with a row of `{path}` names `{word}`"
    for name, keys in documented.items():
        schema = grammar.defs[name]
        for key in set(grammar.keys(schema)) - set(grammar.refused(schema)) - keys - set(grammar.kinds(schema)):
            yield f"no table of keys has `{key}` of {name}"


def main():
    grammar = Grammar(json.loads(SCHEMA.read_text()))
    if sys.argv[1:] == ["--check"]:
        problems = [*form_problems(grammar), *table_problems(grammar)]
        for problem in problems:
            print(problem)
        print(f"{len(TABLES)} tables, {len(problems)} problems")
        return 1 if problems else 0
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    pathlib.Path(sys.argv[1]).write_text(generated(grammar))
    return 0


if __name__ == "__main__":
    sys.exit(main())
