#!/usr/bin/env python3
"""Moves src/core and src/engine into named modules, in a clean work tree: rooms.py [TREE]

It moves the files, rewrites includes, CMake, scripts, planted defects, tests and pages, formats what it changed, and
prints what is left to look at. It commits nothing. It stops before any change when the tree is not clean, or when a
file has no line in mapping.py; a new test of engine goes to engine/heart, and is printed.

A branch that was begun before the move: merge the last commit before the move into it, run this script, commit, then
`git merge -s ours MOVE` with the commit of the move. What the script does depends only on the tree. The commit of the
move deletes this folder.
"""
import collections
import importlib.util
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from mapping import FEATURES, room_of  # noqa: E402

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
ORDER = ["base", "json", "expr", "schema", "log", "plan", "engine", "inspect"]
FOLDERS = ["state", "heart", *FEATURES]  # of engine
TEST = re.compile(r"_(test|bench|fuzz)\.(cc|h)$")
COLUMNS = 120
LAST_EXEMPT_DECISION = 74  # as in scripts/plain.py: older records are history, and their lines may be longer
left = []  # what to look at by hand


def git(*args):
    return subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def write(name, text):
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def replace(name, *pairs):
    """Each text stands in the file; when one does not, it is a thing to look at."""
    text = read(name)
    for old, new in pairs:
        if old not in text:
            left.append(f"{name}: no {old!r}, so it was not replaced by {new!r}")
        text = text.replace(old, new)
    write(name, text)


# ---------------------------------------------------------------- what goes where

def plan_moves():
    moves, lost, taken = {}, [], {}
    for name in git("ls-files", "src/core", "src/engine").splitlines():
        if name.endswith("CMakeLists.txt"):
            continue
        short = name.removeprefix("src/")
        room = room_of(short)
        if room is None and short.startswith("engine/") and TEST.search(short):
            room = "engine/heart"  # tests of more than one feature
            left.append(f"{name}: no line of mapping.py names this test, so it went to {room}")
        if room is None or not re.search(r"\.(h|cc)$", name):
            lost.append(name)
            continue
        new = f"{room}/{short.split('/', 1)[1]}"
        assert new not in taken, (new, taken[new], name)
        taken[new] = name
        moves[short] = new
    if lost:
        sys.exit("no line of mapping.py names: " + " ".join(lost))
    return moves


def text_files():
    for name in git("ls-files").splitlines():
        path = ROOT / name
        if path.is_symlink() or not path.is_file() or name.startswith("testdata/"):
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            pass


# ---------------------------------------------------------------- names of tests, which begin with their module

def joined(text):
    literal = r'"((?:[^"\\\n]|\\.)*)"'
    match = re.match(rf"\s*{literal}(?:\s*{literal})*", text)
    return "".join(re.findall(literal, match[0])) if match else None


def renamed_tests(moves):
    names = {}
    for old, new in moves.items():
        if not old.startswith("core/") or not old.endswith("_test.cc"):
            continue
        text = read(f"src/{new}")
        for match in re.finditer(r"\bAE_TEST(?:_SLOW)?\(", text):
            name = joined(text[match.end():])
            if name and name.startswith("core/"):
                names[name] = new.split("/")[0] + name[len("core"):]
        text = text.replace("core_test", new.split("/")[0] + "_test")
        write(f"src/{new}", re.sub(r'(\bAE_TEST(?:_SLOW)?\(\s*")core/', rf"\g<1>{new.split('/')[0]}/", text))
    return names


# ---------------------------------------------------------------- paths in every text

PATH = re.compile(r"(?:(?<![\w.\-])|(?<=\.\./))(src/|(?<![\w/.\-]))(core|engine)/(\w+\.(?:h|cc))\b")


def rewrite_paths(moves, tests):
    changed = []
    by_length = sorted(tests, key=len, reverse=True)
    for name, text in text_files():
        if name == "scripts/layers.py":
            continue

        def moved(match):
            new = moves.get(f"{match[2]}/{match[3]}")
            if new is None:
                left.append(f"{name}: {match[0]} is no file")
                return match[0]
            return match[1] + new

        new = PATH.sub(moved, text)
        if "core/" in new and not name.startswith("src/"):
            for test in by_length:
                new = new.replace(f"`{test}`", f"`{tests[test]}`")
        if new != text:
            write(name, new)
            changed.append(name)
    return changed


# ---------------------------------------------------------------- CMake

def modules():
    return {str(path.parent.relative_to(ROOT / "src")): path for path in sorted((ROOT / "src").rglob("CMakeLists.txt"))}


def owner(folders, relative):
    found = [folder for folder in folders if relative.startswith(folder + "/")]
    return max(found, key=len, default=None)


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def included(folders):
    """{module: rooms that its code includes}, {module: rooms that only its tests include, also by headers of tests}"""
    code, tests = collections.defaultdict(set), collections.defaultdict(set)

    def targets(path):
        for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
            yield target
            if TEST.search(target):
                yield from targets(ROOT / "src" / target)

    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".cc", ".h"):
            continue
        relative = str(path.relative_to(ROOT / "src"))
        module = owner(folders, relative)
        for target in targets(path):
            other = owner(folders, target)
            if other in ORDER and other != module:
                (tests if TEST.search(path.name) else code)[module].add(other)
    return code, {module: found - code[module] for module, found in tests.items()}


LISTS = ("DEPENDS", "TEST_DEPENDS", "LIBS", "TEST_LIBS", "SUBDIRS")


def ae_module(words):
    """The call, wrapped."""
    lines = [f"ae_module({words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + 1 > COLUMNS:
            lines.append(" ")
        lines[-1] += " " + word
    return "\n".join(lines) + ")"


def rewrite_depends():
    files = modules()
    code, tests = included(list(files))
    for folder, path in files.items():
        text = path.read_text(encoding="utf-8")
        match = re.search(r"\bae_module\s*\(([^)]*)\)", text)
        words, into, lists = match[1].split(), None, collections.OrderedDict()
        head = [words[0]]
        for word in words[1:]:
            if word in LISTS:
                into = lists.setdefault(word, [])
            elif into is None:
                head.append(word)
            else:
                into.append(word)
        for key, needed in (("DEPENDS", code[folder]), ("TEST_DEPENDS", tests.get(folder, set()))):
            kept = [word for word in lists.get(key, []) if word not in ("core", *ORDER)]
            now = [room for room in ORDER if room in needed] + kept
            if now:
                lists[key] = now
            else:
                lists.pop(key, None)
        for key in sorted(lists, key=LISTS.index):
            head += [key, *lists[key]]
        new = text[:match.start()] + ae_module(head) + text[match.end():]
        if new != text:
            path.write_text(new, encoding="utf-8")


ENGINE = """ae_module(engine PURE SUBDIRS {folders})

# The fold's version is a digest of all that it may run, which is this module and those below it: a checkpoint that another
# fold made is never used, and no number has to be raised.
set(fold)
foreach(folder ../base ../json ../expr ../schema ../log ../plan
  {folders})
  list(APPEND fold ${{folder}}/*.cc ${{folder}}/*.h)
endforeach()
file(GLOB fold CONFIGURE_DEPENDS ${{fold}})
"""


def write_modules(old_engine):
    write("src/base/CMakeLists.txt", "ae_module(base PURE LIBS OpenSSL::Crypto)\n")
    write("src/schema/CMakeLists.txt", "ae_module(schema PURE LIBS re2)\n")
    for room in ("json", "expr", "log", "plan", "inspect"):
        write(f"src/{room}/CMakeLists.txt", f"ae_module({room} PURE)\n")
    mark = 'list(FILTER fold EXCLUDE REGEX'
    assert mark in old_engine and "set_source_files_properties(checkpoint.cc " in old_engine, "src/engine/CMakeLists.txt has changed"
    rest = old_engine[old_engine.index(mark):]
    rest = rest.replace("set_source_files_properties(checkpoint.cc ", "set_source_files_properties(state/checkpoint.cc ")
    write("src/engine/CMakeLists.txt", ENGINE.format(folders=" ".join(FOLDERS)) + rest)
    text = read("CMakeLists.txt")
    head, tail = text.split("ae_add_modules(\n", 1)
    listed, tail = tail.split(")", 1)
    lines = []
    for line in listed.splitlines():
        words = line.split()
        if "core" in words or "engine" in words:
            words = [word for word in words if word not in ("core", "engine")]
            line = "  " + " ".join(ORDER) + ("\n  " + " ".join(words) if words else "")
        lines.append(line)
    write("CMakeLists.txt", head + "ae_add_modules(\n" + "\n".join(lines) + ")" + tail)
    text = read("cmake/fold_version.cmake")
    write("cmake/fold_version.cmake", text)


# ---------------------------------------------------------------- scripts and tests

def edit_layers():
    text = read("scripts/layers.py")
    head, toy = text.split("# ---- self-test\n", 1)
    for old, new in (("arrows point at core;", "arrows point at base;"), ("core/json.h", "json/json.h"),
                     ('r"(core|json)/value\\.(h|cc)"', 'r"json/value\\.(h|cc)"')):
        if old not in head:
            left.append(f"scripts/layers.py: no {old!r}")
        head = head.replace(old, new)
    toy = re.sub(r"\bcore\b", "json", toy)
    write("scripts/layers.py", head + "# ---- self-test\n" + toy)


def suites_of(hunks, suites):
    """The suites of a planted defect: tests of one module before are tests of several now."""
    rooms = []
    for hunk in hunks:
        match = re.match(r"src/(\w+)/", hunk)
        if match and match[1] in ORDER and match[1] not in rooms:
            rooms.append(match[1])
    now = []
    for suite in suites:
        if suite == "core":
            now += [room for room in rooms if room in ORDER[:5]] or ORDER[:5]
        elif suite == "engine":
            now += [room for room in rooms if room in ("plan", "inspect")] + ["engine", "inspect"]
        else:
            now.append(suite)
    return list(dict.fromkeys(now))


def edit_mutants():
    text = read("scripts/mutants")
    for old in ("core", "engine"):
        line = f'    "{old}": (["{old}_test"], ["tests/{old}_test", "--gtest_fail_fast"]),\n'
        assert line in text, f"scripts/mutants has no suite {old}"
        rooms = ORDER[:5] if old == "core" else ORDER[5:]
        text = text.replace(line, "".join(line.replace(old, room) for room in rooms))
    write("scripts/mutants", text)
    lines, hunks = [], []
    for line in read("tests/mutants.cases").splitlines():
        if line.startswith("== "):
            hunks = []
        elif line.startswith("@ "):
            hunks.append(line[2:].strip())
        elif line.startswith("> "):
            line = "> " + " ".join(suites_of(hunks, line[2:].split()))
        lines.append(line)
    write("tests/mutants.cases", "\n".join(lines) + "\n")


def edit_plain():
    spec = importlib.util.spec_from_file_location("plain", ROOT / "scripts/plain.py")
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    found = {room: len(plain.message_findings(ROOT, f"src/{room}")) for room in ORDER}
    before = plain.MESSAGES["src/core"] + plain.MESSAGES["src/engine"]
    if sum(found.values()) > before:
        left.append(f"scripts/plain.py: {sum(found.values())} phrases in messages, {before} before")
    entries = [f'"{folder}": {most}' for folder, most in sorted(
        [*((f"src/{room}", count) for room, count in found.items()),
         *((folder, most) for folder, most in plain.MESSAGES.items() if folder not in ("src/core", "src/engine"))])]
    lines = ["MESSAGES = {"]
    for number, entry in enumerate(entries):
        entry += "}" if number + 1 == len(entries) else ","
        if len(lines[-1]) + 1 + len(entry) > COLUMNS:
            lines.append(" " * len("MESSAGES = "))
        lines[-1] += ("" if lines[-1].endswith("{") else " ") + entry
    text = re.sub(r"^MESSAGES = \{[^}]*\}", lambda _: "\n".join(lines), read("scripts/plain.py"), flags=re.M)
    write("scripts/plain.py", text)


def edit_docs_data():
    name = "tests/docs_data.py"
    replace(name, ('sorted((ROOT / folder).glob("*.cc"))', 'sorted((ROOT / folder).rglob("*.cc"))'))
    if '("src/engine", "src/runtime")' not in read(name):
        left.append(f"{name}: written_sources names other folders than src/engine and src/runtime")
    # Only the planner's answers have a kind that is no decision; plan.cc is no longer among the sources that it reads.
    replace(name, ('name not in ("src/plan/plan.cc", "src/engine/planner/planner.cc")', 'name != "src/engine/planner/planner.cc"'))


# ---------------------------------------------------------------- pages

BLOCK = """    base      errors, ids, instants, stored bytes, hashes, signatures, UTF-8, trace context              pure
    json      values, JSON reader, canonical JSON, order of values, server-sent events                   pure
    expr      the expression language and templates                                                      pure
    schema    JSON Schema; answers of models and of users, validated with one                            pure
    log       the event table, seal/open, hash chain, redaction; outcomes as they are recorded           pure
    plan      the task graph: read, compiled, cached; limits and prices                                  pure
    engine    state/ State, apply, checkpoints          heart/ decide, absorb, calls, waits              pure
              one folder for each feature: approvals/ budget/ confirm/ fork/ loop/ planner/ questions/ replan/ undo/
    inspect   reads logs, decides nothing: views, trace, drift, proofs, signed heads, transcript         pure
"""


def edit_pages():
    name = "docs/architecture.md"
    text = read(name)
    found = re.search(r"^    core      .*\n    engine    .*\n", text, re.M)
    if found:
        write(name, text.replace(found[0], BLOCK))
    else:
        left.append(f"{name}: no lines of core and engine in the list of modules")
    replace(name, ("Dependencies point towards `core`.", "Dependencies point towards `base`. In `engine`, a feature "
                   "includes `state`, `heart` and its own files, never another feature ([{number}](decisions/{file})).".format(
                       number=DECISION[:4], file=DECISION)))
    replace("CONTRIBUTING.md",
            ("`core`, `engine` and `mcp` are pure:", "`base`, `json`, `expr`, `schema`, `log`, `plan`, `engine`, `inspect` and `mcp` are pure:"),
            ("`src/engine/*_test.cc`", "`src/engine/**/*_test.cc`, `src/inspect/*_test.cc`"))
    replace("docs/guarantees.md", ("`src/engine/*_test.cc`", "`src/engine/**/*_test.cc`"))
    replace("docs/decisions/0004-json-schema.md", ("`src/core/schema*.cc`", "`src/schema/schema*.cc`"))
    write(f"docs/decisions/{DECISION}", RECORD)


def free_decision():
    numbers = [int(path.name[:4]) for path in (ROOT / "docs/decisions").glob("[0-9]*.md")]
    return f"{max(numbers) + 1:04}-pure-modules.md"


RECORD = """# {number} The pure code is eight libraries

**Situation.** The dependency rule ([0001](0001-modules-and-layering.md)) holds between folders. `core` was one folder of
67 code files and `engine` one of 88, so no rule applied inside of them: the reader of JSON could include the event table,
and a decision could include the page that shows it. A commit that changed `engine` changed 6.5 of its files on average,
because the files of one feature were sorted by verb (`apply_x`, `decide_x`, `take_x`).

**Decision.** Each line is a library and lists what it may depend on; `scripts/layers.py` checks it:

    base                          errors, ids, time, bytes, hashes, signatures, UTF-8
    json      base                values, reader, canonical writer
    expr      base json           the expression language
    schema    base json           JSON Schema
    log       base json schema    events, seal, open, chain, redaction
    plan      all of these        the task graph
    engine    and plan            the fold and the decision
    inspect   and engine          reads logs, decides nothing

`engine` stays one library with one folder for each feature: its events, decisions, requests and tests. `engine/state`
includes only its own files. `engine/heart` also includes `state`. A feature includes `state`, `heart` and its own files.
`engine/heart/features.h` has one line for each feature that the heart or another feature calls; only `.cc` files include
it. Tests may include any feature.

The fold's version ([0013](0013-checkpoints.md)) is a digest of all of these except `inspect`: a change of a view keeps
the stored checkpoints.

**Turned down.** *A library for each feature*: the heart calls features and features call the heart, so the libraries
would be one cycle. *Features that register themselves*: static constructors, and an order that no file shows.
*A namespace for each library*: every line that names a type would change, in the same step as every path.

**What would change our mind.** Two features that cannot be changed one without the other: they are one feature.
"""


def wrap_page(text, old):
    """Lines of prose that have grown over 120 columns give their last words to the next line of the paragraph."""
    known = {line for line in old.split("\n") if len(line) > COLUMNS}
    lines, fence, at = text.split("\n"), False, 0
    while at < len(lines):
        line = lines[at]
        if re.match(r"\s*(?:> ?)?(```|~~~)", line):
            fence = not fence
        code = fence or (line.startswith("    ") and not re.match(r"\s*([-*+]|\d+[.)]) ", line)
                         and (at == 0 or not lines[at - 1].strip() or lines[at - 1].startswith("    ")))
        if len(line) > COLUMNS and line not in known and not code and not re.match(r"\s*(>\s*)?[|#]", line) and " " in line[:COLUMNS + 1].strip():
            indent = re.match(r"\s*(?:(?:[-*+]|\d+[.)]) )?", line)[0]
            cut = break_at(line, len(indent))
            if cut is None:
                at += 1
                continue
            rest = line[cut:].lstrip()
            lines[at] = line[:cut].rstrip()
            follows = lines[at + 1] if at + 1 < len(lines) else ""
            begins = not follows.strip() or re.match(r"\s*([-*+>|#]|\d+[.)] |```|~~~)", follows)
            if begins:
                lines.insert(at + 1, " " * len(indent) + rest)
            else:
                own = re.match(r"\s*", follows)[0]
                lines[at + 1] = own + rest + " " + follows.lstrip()
        at += 1
    return "\n".join(lines)


def break_at(line, least):
    """The last blank before the limit that stands in no code span and no link."""
    spans = [match.span() for match in re.finditer(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", line)]
    blanks = [i for i, char in enumerate(line[:COLUMNS + 1]) if char == " " and i > least and
              not any(a <= i < b for a, b in spans)]
    return blanks[-1] if blanks else None


# ---------------------------------------------------------------- all of it

def main():
    global DECISION, RECORD
    if git("status", "--porcelain").strip():
        sys.exit("the tree is not clean")
    if not (ROOT / "src/core").is_dir():
        sys.exit("there is no src/core: was it moved before?")
    before = dict(text_files())
    moves = plan_moves()
    DECISION = free_decision()
    RECORD = RECORD.format(number=DECISION[:4])
    old_engine = read("src/engine/CMakeLists.txt")
    for folder in [*ORDER, *(f"engine/{name}" for name in FOLDERS)]:
        (ROOT / "src" / folder).mkdir(parents=True, exist_ok=True)
    for old, new in moves.items():
        git("mv", f"src/{old}", f"src/{new}")
    git("rm", "-q", "src/core/CMakeLists.txt")

    tests = renamed_tests(moves)
    rewrite_paths(moves, tests)
    write_modules(old_engine)
    rewrite_depends()
    edit_layers()
    edit_mutants()
    edit_plain()
    edit_docs_data()
    edit_pages()
    git("add", "-A")
    changed = git("diff", "--cached", "--name-only", "--diff-filter=d").splitlines()
    for name in changed:
        if name.endswith(".md") and not name.startswith("testdata/"):
            text = read(name)
            if (number := re.fullmatch(r"docs/decisions/(\d{4})-.*", name)) and int(number[1]) <= LAST_EXEMPT_DECISION:
                continue
            new = wrap_page(text, before.get(name, ""))
            if new != text:
                write(name, new)
    ours = [name for name in changed if re.match(r"(src|bench|examples|tests)/.*\.(h|cc)$", name)]
    for begin in range(0, len(ours), 100):
        subprocess.run(["clang-format-19", "-i", *ours[begin:begin + 100]], cwd=ROOT, check=True)
    git("add", "-A")

    for name, text in text_files():
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\bsrc/core\b|\bcore_test\b|ae_core\b|(?<![\w/.-])core/\w+\.(h|cc)|`core`|\"core/", line):
                left.append(f"{name}:{number}: {line.strip()[:140]}")
    print(f"{len(moves)} files moved, {len(tests)} tests renamed, {len(changed)} files changed; to look at:")
    print(*(f"  {text}" for text in dict.fromkeys(left)), sep="\n")


if __name__ == "__main__":
    main()
