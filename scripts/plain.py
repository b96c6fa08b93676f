#!/usr/bin/env python3
"""The language check: documentation and messages use plain standard English.

  plain.py              checks the pages and the messages; prints FILE:LINE: PHRASE → REPLACEMENT
  plain.py --list       also prints every banned phrase in the messages, and in the pages of NOT_YET
  plain.py --self-test  plants banned phrases and long lines and checks that each is found

Pages: README.md, CONTRIBUTING.md, CHANGELOG.md, docs/**/*.md, and README.md and API.md of sdk, formal and examples. Exempt are code (fenced, indented and in backticks),
addresses of links and HTML comments; decision records up to number 0074 are history. Lines of prose have at most 120
columns; tables, headings and lines that consist of one long link or word are exempt.
Messages: string literals in the folders of MESSAGES, without tests, fuzzers, SQL statements and the single words of STORED.
A line of a message has at most 160 characters. In the folders of SDKS, also docstrings; only phrases are checked.
"""
import ast
import pathlib
import re
import sys
import tempfile

COLUMNS = 120
MESSAGE_MAX = 160  # characters of a line of a message
LAST_EXEMPT_DECISION = 74
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
MORE_PAGES = ("sdk", "formal", "examples")  # folders: their README.md and API.md

# Pages that are not rewritten yet. Remove a page when it is clean; do not add any.
NOT_YET = set()

# Literals of one word that are keys of stored or public JSON: `said` also names a server-sent event.
STORED = {"said", "told"}

# The most findings in the messages of each folder. Lower a number when messages improve; never raise it.
# src/engine, src/plan: texts that a log or a model's conversation records and that a replay derives again, such as the
# message of a failure, and the prompt of a planner; src/routines: "the answer to … was no", also such a message. src/app: the name of a server-sent event, `said`.
MESSAGES = {"src/agents": 0, "src/api": 0, "src/app": 1, "src/async": 0, "src/base": 0, "src/cli": 0, "src/engine": 20,
            "src/expr": 0, "src/inspect": 0, "src/json": 0, "src/llm": 0, "src/log": 0, "src/mcp": 0, "src/net": 0,
            "src/plan": 2, "src/runtime": 0, "src/schema": 0, "src/store": 0, "src/tools": 0,
            "include": 0, "src/embed": 0, "src/routines": 1}
SDKS = ("sdk/typescript/src", "sdk/python/aetheris")

# Phrase (a regular expression between word boundaries; a space matches any white space) and what to write instead.
BANNED = [(re.compile(r"(?<![\w'-])(?:" + phrase.replace(" ", r"\s+") + r")(?![\w-])", re.I), instead) for phrase, instead in (
    (r"nobody(?:'s)?", "no worker, no operator, no client"),
    (r"somebody(?:'s)?|anybody(?:'s)?", "an operator, another process"),
    (r"everybody(?:'s)?", "every client, every user"),
    (r"who(?:so)?ever", "the caller, the user, the process that"),
    (r"(?:a|one|the|each|every|no|another) person(?:'s)?(?: who)?", "an operator, an approver, a user"),
    (r"said", "reported, returned, recorded"),
    (r"says?|saying", "states, shows, has"),
    (r"told", "notified, receives"),
    (r"tells? of", "reports, describes"),
    (r"hears?|heard", "receives"),
    (r"speaks? of|spoken of", "describes, refers to"),
    (r"look(?:s|ed|ing)? (?:at|on|again|inside)|a look", "checks, inspects, reads"),
    (r"(?:of|for) (?:whom|whose)|of which|in whose", "split the sentence"),
    (r"so long(?! as)", "for this long, until"),
    (r"anew", "again"),
    (r"mend(?:s|ed|ing)?", "fixes, repairs, corrects"),
    (r"for ?ever(?: after)?|ever after", "permanently, always"),
    (r"let(?:s|ting)? go(?: of)?", "releases, abandons"),
    (r"stands?(?! for)|stood(?! for)", "is, is stored"),
    (r"in (?:the|its) place of", "instead of"),
    (r"(?<!there\s)(?:is|are|was) no(?! (?:longer|more|later|less|other|greater|larger|matter))", "is not a, is invalid"),
    (r"comes? to pass|came to pass", "happens"),
    (r"go(?:es|ing)? on|gone on|went on", "continues, resumes"),
    (r"from now on", "delete it"),
    (r"reads? back", "replays, replayed"),
    (r"in doubt", "with an unknown outcome"),
    (r"the world (?:is|was) (?:un)?changed", "effect applied, no effect"),
    (r"what became of", "the outcome of"),
    (r"tak(?:es?|en|ing) in|took in", "applies, applied"),
    (r"br(?:ings?|inging|ought) in", "imports"),
    (r"gives? back|given back|gave back", "returns, releases"),
    (r"written out", "literal"),
    (r"in a circle", "in a cycle"),
    (r"of chance|and chance", "random values"),
    (r"(?:keeps?|kept|fallen|falls?|fell) silent|is silent", "does not respond, prints nothing"),
    (r"all is well", "all checks pass"),
    (r"at hand", "current, available"),
    (r"where(?:of|with|upon)|there(?:of|with|upon)", "split the sentence"),
    (r"as we take it", "delete it"),
)]


def blank(text):
    """The same length and lines, without the characters."""
    return re.sub(r"[^\n]", "\x00", text)


def prose(text):
    """A page without code, addresses of links and comments; positions stay."""
    lines, fence, previous_blank, in_list = [], None, True, False
    for line in text.split("\n"):
        mark = re.match(r"\s*(?:> ?)?(```+|~~~+)", line)
        if fence or mark:
            if fence and mark and mark[1].startswith(fence):
                fence = None
            elif not fence:
                fence = mark[1]
            lines.append(blank(line))
            continue
        empty = not line.strip()
        code = line.startswith(("    ", "\t")) and not in_list and previous_blank
        if not code and re.match(r"\s*([-*+]|\d+[.)]) ", line):
            in_list = True
        elif not empty and not line.startswith(" "):
            in_list = False
        lines.append(blank(line) if code else line)
        previous_blank = empty or code
    text = "\n".join(lines)
    text = re.sub(r"<!--.*?-->", lambda match: blank(match[0]), text, flags=re.S)
    text = re.sub(r"(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", lambda match: blank(match[0]), text, flags=re.S)
    text = re.sub(r"\]\([^)\s]*\)", lambda match: "]" + blank(match[0][1:]), text)
    return re.sub(r"https?://\S+", lambda match: blank(match[0]), text)


def phrases(text):
    """(position, phrase, what to write instead) of each banned phrase."""
    found = []
    for pattern, instead in BANNED:
        for match in pattern.finditer(text):
            if "\n\n" not in match[0]:
                found.append((match.start(), " ".join(match[0].split()), instead))
    return sorted(found)


def page_findings(name, text):
    readable = prose(text)
    found = [(readable.count("\n", 0, at) + 1, f"{phrase} → {instead}") for at, phrase, instead in phrases(readable)]
    for number, (line, shown) in enumerate(zip(text.split("\n"), readable.split("\n")), 1):
        code = line.strip() and not shown.strip("\x00 ") and not re.match(r"\s*(`|\[[^\]]*\]\()", line)
        words = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)\S*", "x", line.strip()).split()
        table_or_heading = re.match(r"\s*(>\s*)?[|#]", line)
        if len(line) > COLUMNS and not (code or table_or_heading or len(words) <= 2):
            found.append((number, f"{len(line)} columns → at most {COLUMNS}"))
    return [f"{name}:{number}: {what}" for number, what in sorted(found)]


def decision_is_exempt(name):
    number = re.fullmatch(r"docs/decisions/(\d{4})-.*\.md", name)
    return bool(number) and int(number[1]) <= LAST_EXEMPT_DECISION


# The beginning of a statement or of a part of one.
SQL = re.compile(r"\s*\(?(?:SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|ALTER|DROP|UNION|FROM|WHERE|AND|ORDER|JOIN)\b")
LITERAL = re.compile(r'''//[^\n]*|/\*.*?\*/|\#\s*include[^\n]*|'(?:\\.|[^'\\\n])'|R"(\w*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"''', re.S)


def literals(text):
    """(content, position of each character) of the string literals of C++; adjacent ones are one."""
    found, end = [], None
    for match in LITERAL.finditer(text):
        group = 2 if match[2] is not None else 3
        if match[group] is None:
            continue
        if end is None or text[end:match.start()].strip():
            found.append(("", []))
        content, at = found[-1]
        at += range(match.start(group), match.end(group))
        shown = re.sub(r"\\t", "  ", re.sub(r"\\n", "\n ", match[group]))
        found[-1] = (content + shown, at)
        end = match.end()
    return found


def message_findings(root, folder):
    found = []
    for path in sorted((root / folder).rglob("*")):
        if path.suffix not in (".cc", ".h") or re.search(r"_(?:test|fuzz)\.|^test_", path.name):
            continue
        text = path.read_text()
        for content, at in literals(text):
            if SQL.match(content):
                continue
            longest = max(len(line) for line in content.split("\n"))
            if len(content.split()) > 3 and longest > MESSAGE_MAX:
                found.append(f"{path.relative_to(root)}:{text.count(chr(10), 0, at[0]) + 1}: {longest} characters → "
                             f"at most {MESSAGE_MAX}")
            if content not in STORED:
                found += [f"{path.relative_to(root)}:{text.count(chr(10), 0, at[first]) + 1}: {phrase} → {instead}"
                          for first, phrase, instead in phrases(content)]
    return found


TS_LITERAL = re.compile(r"//[^\n]*|/\*.*?\*/|/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n*\s])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])*/[a-z]*"
                        r"|'((?:\\.|[^'\\\n])*)'|`((?:\\.|[^`\\])*)`|\"((?:\\.|[^\"\\\n])*)\"", re.S)


def sdk_literals(name, text):
    """(line, content) of the string literals of a file of TypeScript or Python."""
    if name.endswith(".py"):
        return [(node.lineno, node.value) for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [(text.count("\n", 0, match.start()) + 1, next(group for group in match.groups() if group is not None))
            for match in TS_LITERAL.finditer(text) if any(group is not None for group in match.groups())]


def sdk_findings(root, folder):
    found = []
    for path in sorted((root / folder).rglob("*")):
        if path.suffix in (".ts", ".py"):
            for line, content in sdk_literals(path.name, path.read_text()):
                if content not in STORED:
                    found += [f"{path.relative_to(root)}:{line}: {phrase} → {instead}" for _, phrase, instead in phrases(content)]
    return found


def check(root, not_yet, messages, everything=False):
    """The problems, and notes that fail nothing."""
    problems, notes = [], []
    names = [name for name in PAGES if (root / name).exists()]
    names += [str(path.relative_to(root)) for path in sorted((root / "docs").rglob("*.md"))]
    names += [str(path.relative_to(root)) for folder in MORE_PAGES for path in sorted((root / folder).rglob("*.md"))
              if path.name in ("README.md", "API.md") and "node_modules" not in path.parts]
    for name in names:
        if decision_is_exempt(name):
            continue
        found = page_findings(name, (root / name).read_text(encoding="utf-8"))
        if name not in not_yet:
            problems += found
        elif not found:
            notes.append(f"{name} is clean: remove it from NOT_YET in scripts/plain.py")
        elif everything:
            notes += found
    problems += [f"{name} is in NOT_YET of scripts/plain.py and does not exist" for name in sorted(not_yet - set(names))]
    for folder in SDKS:
        problems += sdk_findings(root, folder)
    for folder, most in messages.items():
        found = message_findings(root, folder)
        if everything:
            notes += found
        if len(found) > most:
            problems += found if len(found) < 40 else found[:40] + ["…"]
            problems.append(f"{folder}: {len(found)} banned phrases in messages, at most {most} (scripts/plain.py MESSAGES)")
        elif len(found) < most:
            notes.append(f"{folder}: {len(found)} banned phrases in messages: lower {most} in scripts/plain.py MESSAGES")
    return problems, notes


# (file, content, what must be found; empty: nothing)
LONG = "The worker " + "renews its lease and " * 6 + "stops."
PLANTED = [
    ("README.md", "# Title\n\nThe worker sends it,\nand nobody\nreads it.\n", "README.md:4: nobody → "),
    ("README.md", "The job goes\non.\n", "README.md:1: goes on → "),
    ("docs/page.md", "- The error said so.\n", "docs/page.md:1: said → "),
    ("docs/page.md", "| a | the call is in doubt |\n|---|---|\n", "docs/page.md:1: in doubt → "),
    ("docs/page.md", "This is no plan. [It is told](page.md).\n", "docs/page.md:1: is no → "),
    ("docs/page.md", "This is text. [It is told](page.md).\n", "docs/page.md:1: told → "),
    ("docs/page.md", f"Short.\n\n{LONG}\n", f"docs/page.md:3: {len(LONG)} columns → at most 120"),
    ("docs/decisions/0075-new.md", "It begins anew.\n", "docs/decisions/0075-new.md:1: anew → "),
    ("CHANGELOG.md", "- mended\n", "CHANGELOG.md:1: mended → "),
    ("src/cli/a.cc", 'auto a = "one "\n   "person"; f("ok, " "nobody knows");\n', "src/cli/a.cc:2: nobody → "),
    ("src/cli/a.cc", 'f("' + "a word " * 12 + '"\n  "' + "a word " * 12 + '");\n', "src/cli/a.cc:1: 168 characters → at most 160"),
    ("src/cli/a.cc", 'f("' + "a word " * 12 + '\\n"\n  "' + "a word " * 12 + '");\n', ""),
    ("src/cli/a.cc", 'f(R"(whoever calls)");\n', "src/cli/a.cc:1: whoever → "),
    ("docs/page.md", "```\nnobody\n```\n\n    nobody\n\nThe key `said`, `is no\nword` and [a](said.md#told-anew). There is no job.\n", ""),
    ("docs/page.md", f"| {LONG} |\n\n```\n{LONG}\n```\n\n    {LONG}\n\n[a page](https://example.org/{'a' * 120})\n", ""),
    ("docs/page.md", "It is no longer a person-hour.\n", ""),
    ("docs/decisions/0074-old.md", "Nobody goes on.\n", ""),
    ("src/cli/a.cc", '// nobody knows\n#include "a.h"\nf("said"); g("is running");\n', ""),
    ("src/cli/a.cc", 'f("nobody");\n', "src/cli/a.cc:1: nobody → "),
    ("src/cli/a_test.cc", 'f("nobody knows");\n', ""),
    ("sdk/typescript/README.md", "It is told.\n", "sdk/typescript/README.md:1: told → "),
    ("formal/README.md", "It is told.\n", "formal/README.md:1: told → "),
    ("examples/a/README.md", "It is told.\n", "examples/a/README.md:1: told → "),
    ("sdk/typescript/src/a.ts", "// nobody\nconst a = /['\"]/;\nf(`job ${id} waits for\n  somebody`);\n", "sdk/typescript/src/a.ts:3: somebody → "),
    ("sdk/typescript/src/a.ts", "/* 'nobody' */ f('it', \"nobody\");\n", "sdk/typescript/src/a.ts:1: nobody → "),
    ("sdk/python/aetheris/a.py", "# nobody\nf(1,\n  f'{a} waits for somebody')\n", "sdk/python/aetheris/a.py:3: somebody → "),
    ("sdk/python/aetheris/a.py", "# nobody\nf('said')\n", ""),
    ("src/cli/a_fuzz.h", 'f("nobody knows");\n', ""),
    ("src/cli/a.cc", 'f("SELECT said FROM workers WHERE " ' + '"a AND " ' * 40 + ');\n', ""),
    ("src/cli/a.cc", 'f("Select: nobody knows");\n', "src/cli/a.cc:1: nobody → "),
]


def self_test():
    bad = 0
    for name, content, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            problems, _ = check(pathlib.Path(folder), set(), {"src/cli": 0})
        if not any(expected in line for line in problems) if expected else problems:
            bad += 1
            print(f"{content!r}: expected {expected or 'nothing'!r}, found {problems}")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "docs"
        path.mkdir()
        (path / "late.md").write_text("Nobody.\n")
        (path / "done.md").write_text("Clean.\n")
        problems, notes = check(pathlib.Path(folder), {"docs/late.md", "docs/done.md", "docs/gone.md"}, {"src/cli": 3})
    if len(problems) != 1 or "gone.md" not in problems[0] or len(notes) != 2:
        bad += 1
        print(f"NOT_YET and MESSAGES: found {problems}, {notes}")
    if not bad:
        print(f"{len(PLANTED)} planted texts and the lists of exceptions, all as expected")
    return 1 if bad else 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    problems, notes = check(pathlib.Path(__file__).resolve().parent.parent, NOT_YET, MESSAGES, "--list" in sys.argv)
    for text in notes + problems:
        print(text)
    print(f"{len(problems)} problems; {len(NOT_YET)} pages not rewritten, {sum(MESSAGES.values())} phrases left in messages")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
