#!/usr/bin/env python3
"""docs/guarantees.md says which function keeps each sentence of the specification and which tests prove it: this holds
the tables against the code.

Every file and function that the page names is there; every test, sentence of the store suite, rule of the simulated world,
search of the model and check of a script is there; each section, 1 to 14 of the specification and A1 to A3 of the
contract at the edges, has its rows, and no row has gone. A cell names what there is, or says why there is nothing. The
table of hostile tests in docs/security.md is held the same way. Says `ok NAME` or `not ok NAME`, and how many rows are
open.
"""
import collections
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parent.parent)
PAGE = ROOT / "docs/guarantees.md"
SECURITY = ROOT / "docs/security.md"
HOSTILE_ROWS = 21
# Rows of each section. A row may be split or added; whoever takes one away changes this number and says why.
ROWS = {"1": 38, "2": 9, "3": 19, "4": 22, "5": 31, "6": 45, "7": 26, "8": 12, "9": 19, "10": 38, "11": 17,
        "12": 11, "13": 19, "14": 39, "A1": 31, "A2": 25, "A3": 21}
OPEN = ("not yet", "none yet", "being built", "comes later")

failed = []


def say(name, faults):
    for fault in faults:
        print(f"# {fault}")
    print(f"{'not ok' if faults else 'ok'} docs/guarantees.md: {name}")
    failed.extend(faults)


# ---------------------------------------------------------------- what the page says

Row = collections.namedtuple("Row", "section sentence functions tests")
CODE = re.compile(r"(`+)(.+?)\1")  # a span of code; with two backticks it may hold one


def rows():
    found, section, bad = [], None, []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#+ (A?\d+ )?", line):
            section = heading[1].strip() if heading[1] and line.startswith("### ") else None
        elif section and line.startswith("|") and not re.match(r"\|[-|]+$|\| sentence \|", line):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if len(cells) == 3:
                found.append(Row(section, *cells))
            else:
                bad.append(f"{len(cells)} cells instead of 3: {line[:80]}")
    return found, bad


def hostile_rows():
    """The table of hostile tests in docs/security.md."""
    part = SECURITY.read_text(encoding="utf-8").split("\n## Hostile tests\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| it tries")]
    assert len(lines) >= HOSTILE_ROWS, f"{len(lines)} rows in the table of hostile tests, it had {HOSTILE_ROWS}"
    return [Row("hostile", *(cell.strip() for cell in line.strip().strip("|").split(" | "))) for line in lines]


def spans(cell):
    return [match[2] for match in CODE.finditer(cell)]


def is_elsewhere(row):
    return "**being built**" in row.functions + row.tests


def is_open(cell):
    return any(f"**{word}**" in cell for word in OPEN)


def in_place(row):
    return f"§{row.section}, “{row.sentence[:60]}”"


# ---------------------------------------------------------------- what the code has


def sources(*patterns):
    return [path for pattern in patterns for path in sorted((ROOT / "src").rglob(pattern))]


def strings(text):
    """Literals of C++, those that stand side by side joined."""
    literal = r'"((?:[^"\\\n]|\\.)*)"'
    return ["".join(re.findall(literal, match[0])) for match in re.finditer(rf"{literal}(?:\s*{literal})*", text)]


def unit_tests():
    names = set()
    for path in sources("*_test.cc", "*_test.h"):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"\bAE_TEST(?:_SLOW)?\(", text):
            first = strings(text[match.end():match.end() + 600].split("{", 1)[0])
            names.update(first[:1])
    return names


def store_sentences():
    names = set()
    for path in sorted((ROOT / "src/store").glob("conformance_*_test.h")) + [ROOT / "src/store/conformance_test.h"]:
        text = path.read_text(encoding="utf-8")
        names |= set(re.findall(r'^\s+\{"([^"]+)",\s*\w+\},', text, re.M)) | set(re.findall(r'add_many\("([^"]+)"', text))
    return names


def sim_rules():
    rule = re.compile(r"[A-Z]{1,2}\d \S")
    return {text for path in sources("*.cc", "*.h") if path.parent.name == "sim" and not path.name.endswith("_test.cc")
            for text in strings(path.read_text(encoding="utf-8")) if rule.match(text)}


def searches():
    text = (ROOT / "scripts/model").read_text(encoding="utf-8")
    holds = {name for name, breaks in re.findall(r'Search\("([^"]+)",[^)]*?(breaks=)?[^)]*?\)', text)}
    broken = re.findall(r'Search\("([^"]+)",[^)]*breaks="(\w+)"\)', text)
    return (holds - {name for name, _ in broken}) | {f"{name} breaks {what}" for name, what in broken}


def script_checks(path):
    """Names of functions with blanks for underscores, and every literal text."""
    text = path.read_text(encoding="utf-8")
    texts = re.findall(r'f?"((?:[^"\\\n]|\\.)*)"', text)
    return [name.replace("_", " ") for name in re.findall(r"^def (\w+)\(", text, re.M)], texts


def has_check(path, wanted):
    functions, texts = script_checks(path)
    if wanted in functions:
        return True
    for text in texts:  # what a script fills in is as good as anything; what stands before the name is `ok`, or a file
        while begin := re.match(r"(?:\{[^{}]*\}|not ok|ok)[: ]+", text):
            text = text[begin.end():]
        parts = re.split(r"\{[^{}]*\}|\$\w+", text)
        if sum(map(len, parts)) >= 20 and re.fullmatch(".+".join(map(re.escape, parts)), wanted):
            return True
    return False


def defines(text, name):
    """Is it defined in this text: a function, a type, a constant?"""
    plain = re.escape(name.split("::")[-1])
    owner = re.escape("::".join(name.split("::")[:-1]))
    qualified = rf"{owner}::{plain}" if owner else rf"(?:\w+::)*{plain}"
    no_call = r"(?!\s|return\b|if\b|for\b|while\b|else\b|case\b|co_)"
    types = r"(?:[\w:<>,&*~\[\]()]+\s+)"
    if any(re.search(pattern, text, re.M) for pattern in (
            rf"^{no_call}{types}*[&*]*{qualified}\(", rf"^  {no_call}{types}+[&*]*{qualified}\(",
            rf"^\s*(?:class|struct|enum class) {plain}\b", rf"^constexpr .*\b{plain}\b",
            rf"^def {plain}\(", rf"^#+ {plain}$")):
        return True
    if not owner:
        return False  # a member that is defined inside of its class
    within = re.search(rf"\b(?:class|struct) {owner.split('::')[-1]}\b[^;]*?\{{", text)
    return bool(within and re.search(rf"^  +(?:[\w:<>,&*~\[\]]+\s+)*[&*]*{plain}\(", text[within.end():], re.M))


# ---------------------------------------------------------------- one against the other


def function_faults(row):
    named = spans(row.functions)
    faults = []
    for span in named:
        place, colon, names = span.partition(": ")
        path = next((p for p in (ROOT / "src" / place, ROOT / place) if colon and p.is_file()), None)
        if not path:
            if colon:
                faults.append(f"{in_place(row)}: no file {place}")
            continue
        text = path.read_text(encoding="utf-8")
        faults += [f"{in_place(row)}: {place} has no {name}" for name in names.split(", ") if not defines(text, name)]
    if not any(": " in span for span in named) and not is_open(row.functions):
        faults.append(f"{in_place(row)}: no function, and no word why")
    return faults


class Tests:
    def __init__(self):
        self.units, self.store, self.sim, self.model = unit_tests(), store_sentences(), sim_rules(), searches()

    def has(self, name):
        if name.startswith("store: "):
            return name[7:] in self.store
        if name.startswith("sim: "):
            return name[5:] in self.sim
        if name.startswith("model: "):
            return name[7:] in self.model
        if match := re.match(r"((?:tests|scripts)/[\w.]+): (.+)", name):
            path = ROOT / match[1]
            return path.is_file() and has_check(path, match[2])
        return name in self.units

    def faults(self, row):
        named = spans(row.tests)
        faults = [f"{in_place(row)}: there is no test `{name}`" for name in named if not self.has(name)]
        if not named and not is_open(row.tests):
            faults.append(f"{in_place(row)}: no test, and no word why")
        if named and "**none yet**" in row.tests:
            faults.append(f"{in_place(row)}: names a test and says that there is none")
        return faults


def main():
    everything, malformed = rows()
    table = [row for row in everything if not is_elsewhere(row)]
    say("every row has a sentence, a function and a test",
        malformed + [f"{in_place(row)}: an empty cell" for row in everything if not all(row)])
    say("every file, function and heading that the page names is there",
        [fault for row in table for fault in function_faults(row)])
    tests = Tests()
    say("every test that the page names is there", [fault for row in table for fault in tests.faults(row)])
    say("every test that the page on security names is there",
        [f"security.md, “{row.sentence[:60]}”: {fault}" for row in hostile_rows() for fault in tests.faults(row)])
    count = collections.Counter(row.section for row in everything)
    say("every section has its rows, and none has gone",
        [f"§{section} has {count[section]} rows, it had {least}" for section, least in ROWS.items()
         if count[section] < least])
    for row in everything:  # what is written elsewhere may be named before it is here
        if is_elsewhere(row) and spans(row.tests) and not function_faults(row) + tests.faults(row):
            print(f"# {in_place(row)}: it is there now: take **being built** away")
    open_rows = collections.Counter(word for row in everything for word in OPEN
                                    if f"**{word}**" in row.functions + row.tests)
    print(f"# {len(everything)} rows; " + ", ".join(f"{word}: {open_rows[word]}" for word in OPEN))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
