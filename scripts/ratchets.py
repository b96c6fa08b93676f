#!/usr/bin/env python3
"""Counts that may only fall: names, literals and sizes of the sources.

  ratchets.py              fails where a count is above its limit in scripts/ratchets.json
  ratchets.py --list       also prints each place
  ratchets.py --update     lowers the limits to the counts; never raises one
  ratchets.py --self-test  plants one place of each kind and checks that it is counted

  identifiers  names of C++, Python, JavaScript and shell code with a word that the field does not use (WORDS), by folder
  literals     string literals of C++ outside of tests that equal a field name of log/events.def, by folder
  constants    uses of field::NAME outside of tests, by folder; api, cli, inspect, agents, embed and
               routines work on JSON and are not counted
  files        files over 700 lines
  headers      C++ headers over 200 lines
  functions    functions over 80 lines

A header or a function with a comment "Long: <why>", at the top of the file or directly above the function, is not
counted. Files that git ignores are not counted. The limits are those of the newest commit: a new exception needs a smaller one elsewhere.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMITS = ROOT / "scripts" / "ratchets.json"
FILE_MAX, HEADER_MAX, FUNCTION_MAX = 700, 200, 80
REASON = re.compile(r"^ *(?://|#) Long: \w", re.M)

# Words of identifiers, whole parts between underscores or capitals: standard words are in CONTRIBUTING.md.
WORDS = set("wish wishes say says said tell tells told asks asked heard hears ears stands stood nobody somebody whoever knock "
            "hush bury errand deed rested astray spoken anew".split())
# Names of external interfaces.
EXTERNAL = {"CURLOPT_NOBODY"}
# Of src/log: a member of their structs has the name that is stored.
TABLES = ("events.def", "records.def", "decisions.def")
GENERATED = "field_names.h"  # the constants themselves (scripts/events.py)
CONSTANTS_EXEMPT = {"src/api", "src/cli", "src/inspect", "src/agents", "src/embed", "src/routines"}

TOKEN = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'|[A-Za-z_]\w*''', re.S)
PYTHON = re.compile(r"""[rbfRBF]*(?:\"\"\".*?\"\"\"|'''.*?''')|\#[^\n]*|[rbfRBF]*"(?:\\.|[^"\\\n])*"|[rbfRBF]*'(?:\\.|[^'\\\n])*'"""
                    r"""|[A-Za-z_]\w*""", re.S)
SCRIPT = re.compile(r'''//[^\n]*|/\*.*?\*/|`(?:\\.|[^`\\])*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|/(?:\\.|[^/\\\n ])+/[a-z]*|[A-Za-z_]\w*''', re.S)
# What a shell script defines: a function, a variable.
SHELL = re.compile(r"^ *(?:(?:local|readonly|export) +)?(?:for +)?([A-Za-z_]\w*)(?=\(\)|\+?=| in )", re.M)
FIELD = re.compile(r'''AE_(?:REQUIRED|OPTIONAL)(?:_AS)?\(\s*[\w<>]+,\s*(?:\w+,\s*(?="?\w+"?,\s*\d))?"?(\w+)"?,''')


def sources(root, languages):
    """The files of the repository, also new ones; not what it ignores, such as builds and node_modules."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, check=True,
                            capture_output=True, text=True).stdout
    for path in sorted(root / name for name in listed.split("\0") if name):
        if path.is_file() and language_of(path) in languages:
            yield path


SUFFIXES = {".cc": "cc", ".h": "h", ".def": "def", ".py": "python", ".sh": "shell", ".mjs": "script"}


def language_of(path):
    """By its suffix; of a file without one by its first line."""
    if path.suffix:
        return SUFFIXES.get(path.suffix)
    with path.open("rb") as file:
        first = file.readline(80)
    return "python" if re.match(rb"#!.*python", first) else "shell" if re.match(rb"#!.*sh\b", first) else None


def is_test(path):
    return re.search(r"_(?:test|fuzz)\.|^test_", path.name) is not None or "testing" in path.parts


def parts(identifier):
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)}


def folder_of(path, root):
    names = path.relative_to(root).parts
    return "/".join(names[:2]) if names[0] == "src" else names[0]


def fields_of(root, tables=TABLES):
    """The names of the fields in tables of src/log. Comments also show the form of a field."""
    paths = [root / "src/log" / table for table in tables]
    declared = "\n".join(path.read_text(encoding="utf-8") for path in paths if path.exists())
    return set(FIELD.findall(re.sub(r"//[^\n]*", "", declared)))


def names_of(text, language):
    """(position, name) of the identifiers of a source; of a shell script those that it defines."""
    if language == "shell":
        return [(match.start(1), match[1]) for match in SHELL.finditer(text)]
    pattern = {"python": PYTHON, "script": SCRIPT}.get(language, TOKEN)
    return [(match.start(), match[0]) for match in pattern.finditer(text) if re.fullmatch(r"[A-Za-z_]\w*", match[0])]


def identifier_places(root):
    stored = fields_of(root)
    for path in sources(root, {"cc", "h", "python", "shell", "script"}):
        text, language, seen = path.read_text(encoding="utf-8"), language_of(path), set()
        for at, name in names_of(text, language):
            if name in seen or not parts(name) & WORDS or name in EXTERNAL:
                continue
            # A member of a typed event, or its constant. A local variable of the same name is counted.
            if name in stored and language in ("cc", "h") and (
                    path.name == GENERATED or re.search(r"(?:\.|->|\bfield::)$", text[max(at - 7, 0):at])):
                continue
            seen.add(name)
            yield folder_of(path, root), f"{path.relative_to(root)}:{text.count(chr(10), 0, at) + 1}: {name}"


def constant_places(root):
    for path in sources(root / "src", {"cc", "h"}):
        if is_test(path) or folder_of(path, root) in CONSTANTS_EXEMPT:
            continue
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"\bfield::(\w+)", re.sub(r"//[^\n]*", "", text)):
            yield folder_of(path, root), f"{path.relative_to(root)}: {match[0]}"


def literal_places(root):
    fields = fields_of(root, ("events.def",))
    for path in sources(root / "src", {"cc", "h"}):
        if is_test(path) or path.name == GENERATED:
            continue
        text = path.read_text(encoding="utf-8")
        for match in TOKEN.finditer(text):
            if match[0].startswith('"') and match[0][1:-1] in fields:
                yield folder_of(path, root), f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"


def functions(path, text):
    """(name, first line, lines) of functions: from the line that opens the body to the closing brace in its column."""
    lines = text.split("\n")
    if language_of(path) == "python":
        starts = [(i, re.match(r"( *)(?:async )?def (\w+)", line)) for i, line in enumerate(lines)]
        for i, match in starts:
            if match:
                end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() and
                            len(lines[j]) - len(lines[j].lstrip()) <= len(match[1]) and not lines[j].lstrip().startswith(")")),
                           len(lines))
                yield match[2], i + 1, end - i
        return
    for i, line in enumerate(lines):
        if not re.match(r" {0,4}[^\s/#}].*\) ?(?:const |noexcept |override |-> .+)*\{$", line):
            continue
        if re.match(r"\s*(?:if|for|while|switch|namespace|struct|class|else|do|return)\b", line):
            continue
        first = i
        while first > 0 and not re.search(r"^\s*$|[;{}:]$|^#", lines[first - 1]):
            first -= 1  # a signature of several lines
        indent = len(lines[first]) - len(lines[first].lstrip())
        end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith(" " * indent + "}")), i)
        yield lines[first].strip()[:60], first + 1, end - first + 1


def has_reason(lines, first):
    """Does the comment above a function state why it is long? `first`: the line, from 1, of the comment or signature."""
    at = first - 1
    while at > 0 and re.match(r" *(?://|#|@)", lines[at - 1]):
        at -= 1
    end = next((i for i in range(first - 1, len(lines)) if not re.match(r" *(?://|#|@)", lines[i])), len(lines))
    return REASON.search("\n".join(lines[at:end]))


def size_places(root):
    for path in sources(root, {"cc", "h", "python", "def"}):
        text = path.read_text(encoding="utf-8")
        name, count = path.relative_to(root), text.count("\n")
        if count > FILE_MAX:
            yield "files", f"{name}: {count} lines"
        lines = text.split("\n")
        if path.suffix == ".h" and count > HEADER_MAX and not REASON.search("\n".join(lines[:40])):
            yield "headers", f"{name}: {count} lines"
        for function, line, length in functions(path, text):
            if length > FUNCTION_MAX and not has_reason(lines, line):
                yield "functions", f"{name}:{line}: {function} has {length} lines"


def counted(root):
    """{kind: {where: [place…]}}"""
    found = {"identifiers": {}, "literals": {}, "constants": {}, "files": {}, "headers": {}, "functions": {}}
    for kind, places in (("identifiers", identifier_places), ("literals", literal_places), ("constants", constant_places)):
        for where, place in places(root):
            found[kind].setdefault(where, []).append(place)
    for kind, place in size_places(root):
        found[kind].setdefault("all", []).append(place)
    return found


def compare(found, limits):
    problems, lower = [], {}
    for kind, places in found.items():
        for where in sorted(set(places) | set(limits.get(kind, {}))):
            count, limit = len(places.get(where, ())), limits.get(kind, {}).get(where, 0)
            if count > limit:
                problems.append(f"{kind} in {where}: {count}, at most {limit} (scripts/ratchets.py --list shows them)")
            if min(count, limit):
                lower.setdefault(kind, {})[where] = min(count, limit)
    return problems, lower


def self_test():
    planted = {
        "src/log/events.def": 'AE_REQUIRED(text, agent, 1, "")\nAE_OPTIONAL(text, asked, 2, "")\n',
        "src/api/a.cc": 'int told = 1;  // said\nauto x = json["agent"];\nvoid f(int a) {\n' + "  g();\n" * 90 + "}\n",
        "src/api/a.h": "int i;\n" * 201,
        "src/api/b.h": "// A table.\n// Long: one table.\n" + "int i;\n" * 201,
        "src/api/b.cc": "// A table.\n// Long: one table.\nvoid f(int a) {\n" + "  g();\n" * 90 + "}\n",
        "src/api/a_test.cc": 'auto x = json["agent"];\n' + "int i;\n" * 700,
        "src/plan/a.cc": 'auto x = json[field::agent];  // field::agent\n',
        "src/runtime/a.cc": "event.asked = event->asked;\nint asked = 1;\n",
        "src/runtime/b.cc": "auto& x = event.asked;\n",
        "tests/a.py": "def whoever():\n    pass\nx = f\"\"\"\nsays: 1\n\"\"\"\n",
        "tests/b": "#!/usr/bin/env python3\ntold = 1\n",
        "tests/c": "#!/usr/bin/env bash\n# told\necho 'told'\nsay() { local told=1; }\n",
        "tests/d.mjs": "const told = `says`;  // said\n",
        "examples/node_modules/a.py": "def whoever():\n    pass\n",
        ".gitignore": "node_modules/\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        subprocess.run(["git", "init", "-q", folder], check=True)
        for name, content in planted.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        counts = {kind: {where: len(all) for where, all in places.items()} for kind, places in counted(root).items()}
    expected = {"identifiers": {"src/api": 1, "src/runtime": 1, "tests": 4}, "literals": {"src/api": 1},
                "constants": {"src/plan": 1}, "files": {"all": 1}, "headers": {"all": 1}, "functions": {"all": 1}}
    if counts != expected:
        print(f"expected {expected}, counted {counts}")
        return 1
    problems, lower = compare({"files": {"all": ["a", "b"]}}, {"files": {"all": 1}})
    if len(problems) != 1 or lower != {"files": {"all": 1}}:
        print(f"a count above its limit: {problems}, {lower}")
        return 1
    print("each kind is counted; a count above its limit fails and is not written")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    found = counted(ROOT)
    if "--list" in sys.argv:
        for kind, places in found.items():
            for where in sorted(places):
                print("\n".join(f"{kind} {place}" for place in places[where]))
    if not LIMITS.exists():
        limits = {kind: {where: len(all) for where, all in sorted(places.items())} for kind, places in found.items()}
    problems, lower = compare(found, limits)
    if "--update" in sys.argv and not problems:
        LIMITS.write_text(json.dumps(lower, indent=1, sort_keys=True) + "\n")
    print("\n".join(problems + [", ".join(f"{sum(map(len, places.values()))} {kind}" for kind, places in found.items())]))
    return 1 if problems else 0


sys.exit(main())
