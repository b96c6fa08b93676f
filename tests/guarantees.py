#!/usr/bin/env python3
"""Pages of docs/ name the function that implements a statement and the tests that prove it. This checks those names
against the code.

A table is checked if it has a column `tests`; its functions are in a column `function` or `where`, if it has one. Every file,
function, type and heading that a cell names must exist, and so must every test, sentence of the store suite, rule of the
simulated world, search of the model and check of a script. A cell without a name must give the reason. A section may not lose
rows. Prints `ok NAME` or `not ok NAME` for each page, and the number of open rows. Of docs/architecture.md every file and every
`file: function` is checked.

  guarantees.py          every page
  guarantees.py PAGE     one page, such as `docs/seeds.md`
"""
import collections
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parent.parent)
# The least rows of each section, by the code or the text of its heading. Rows may be split or added; a commit that
# removes one changes the number and gives the reason.
PAGES = {
    "docs/guarantees.md": {"1": 38, "2": 9, "3": 19, "4": 22, "5": 31, "6": 45, "7": 26, "8": 12, "9": 19, "10": 38,
                           "11": 17, "12": 11, "13": 19, "14": 39, "A1": 31, "A2": 25, "A3": 21},
    "docs/security.md": {"What a tool can do": 12, "Hostile tests": 21},
    "docs/seeds.md": {"S0": 38, "S1": 28, "S2": 54, "S3": 41, "S4": 19, "Where we differ on purpose": 19},
}
ARCHITECTURE = "docs/architecture.md"
FUNCTIONS, TESTS = {"function", "where"}, "tests"  # names of columns
# What a cell without a name may give as the reason.
OPEN = ("not yet", "none yet", "being built", "comes later", "none, on purpose", "not there yet")

failed = []


def report(page, name, faults):
    for fault in faults:
        print(f"# {fault}")
    print(f"{'not ok' if faults else 'ok'} {page}: {name}")
    failed.extend(faults)


# ---------------------------------------------------------------- the pages

# functions: None = the table has no such column
Row = collections.namedtuple("Row", "section sentence functions tests")
CODE = re.compile(r"(`+)(.+?)\1")  # a span of code; with two backticks it may hold one


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def rows(page):
    """The rows of its tables with a column `tests`, and the errors in their form."""
    found, bad, section, columns = [], [], None, None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#+ (([A-Z]?\d+) )?(.*)", line):
            section = heading[2] or heading[3]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells_of(line)
        elif TESTS in columns and not re.fullmatch(r"[|-]+", line):
            cells = cells_of(line)
            if len(cells) != len(columns):
                bad.append(f"{len(cells)} cells instead of {len(columns)}: {line[:80]}")
                continue
            where = next((i for i, name in enumerate(columns) if name in FUNCTIONS), None)
            tests = columns.index(TESTS)
            sentence = " · ".join(cells[:tests if where is None else where])
            found.append(Row(section, sentence, None if where is None else cells[where], cells[tests]))
            if not all(cells):
                bad.append(f"{in_place(found[-1])}: an empty cell")
    return found, bad


def spans(cell):
    return [match[2] for match in CODE.finditer(cell)]


def is_elsewhere(row):
    return "**being built**" in (row.functions or "") + row.tests


def is_open(cell):
    return any(f"**{word}**" in cell for word in OPEN)


def in_place(row):
    return f"§{row.section}, “{row.sentence[:60]}”"


# ---------------------------------------------------------------- the code


def sources(*patterns):
    return [path for pattern in patterns for path in sorted((ROOT / "src").rglob(pattern))]


def strings(text):
    """Literals of C++; adjacent ones are joined."""
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
    for text in texts:  # a replaced field matches any text; the name follows `ok`, or a file
        while begin := re.match(r"(?:\{[^{}]*\}|not ok|ok)[: ]+", text):
            text = text[begin.end():]
        parts = re.split(r"\{[^{}]*\}|\$\w+", text)
        if sum(map(len, parts)) >= 20 and re.fullmatch(".+".join(map(re.escape, parts)), wanted):
            return True
    return False


def defines(text, name):
    """Is it defined in this text: a function, a type, a constant? `f(T)`: the overload of f that takes a T."""
    name, _, argument = name.removesuffix(")").partition("(")
    plain = re.escape(name.split("::")[-1])
    owner = re.escape("::".join(name.split("::")[:-1]))
    qualified = rf"{owner}::{plain}" if owner else rf"(?:\w+::)*{plain}"
    if argument:
        return bool(re.search(rf"\b{qualified}\([^)]*\b{re.escape(argument)}\b", text))
    no_call = r"(?!\s|return\b|if\b|for\b|while\b|else\b|case\b|co_)"
    types = r"(?:[\w:<>,&*~\[\]()]+\s+)"
    if any(re.search(pattern, text, re.M) for pattern in (
            rf"^{no_call}{types}*[&*]*{qualified}\(", rf"^  {no_call}{types}+[&*]*{qualified}\(",
            rf"^\s*(?:class|struct|enum class) {plain}\b", rf"^constexpr [^;={{]*\b{plain}\b",
            rf"^def {plain}\(", rf"^#+ {plain}$")):
        return True
    if not owner:
        return False  # a member that is defined inside of its class
    within = re.search(rf"\b(?:class|struct) {owner.split('::')[-1]}\b(?!::)[^;]*?\{{", text)
    return bool(within and re.search(rf"^  +(?:[\w:<>,&*~\[\]]+\s+)*[&*]*{plain}\(", text[within.end():], re.M))


# ---------------------------------------------------------------- the comparison


def reference_errors(span):
    """What of `FILE` or `FILE: NAME, NAME` is not there."""
    place, _, names = span.partition(": ")
    path = next((p for p in (ROOT / "src" / place, ROOT / place) if p.is_file()), None)
    if not path:
        return [f"no file {place}"]
    text = path.read_text(encoding="utf-8")
    return [f"{place} has no {name}" for name in names.split(", ") if name and not defines(text, name)]


def function_errors(row):
    if row.functions is None:
        return []
    named = [span for span in spans(row.functions) if ": " in span or "/" in span]  # the others are plain words
    faults = [f"{in_place(row)}: {fault}" for span in named for fault in reference_errors(span)]
    if not named and not is_open(row.functions):
        faults.append(f"{in_place(row)}: no function, and no reason")
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

    def errors(self, row):
        named = spans(row.tests)
        faults = [f"{in_place(row)}: there is no test `{name}`" for name in named if not self.has(name)]
        if not named and not is_open(row.tests):
            faults.append(f"{in_place(row)}: no test, and no reason")
        if named and "**none yet**" in row.tests:
            faults.append(f"{in_place(row)}: names a test and says that there is none")
        return faults


def check(page, least, tests):
    everything, malformed = rows(page)
    table = [row for row in everything if not is_elsewhere(row)]
    report(page, "every row has all cells", malformed)
    if any(row.functions is not None for row in everything):
        report(page, "every file, function and heading that the page names exists",
               [fault for row in table for fault in function_errors(row)])
    report(page, "every test that the page names exists", [fault for row in table for fault in tests.errors(row)])
    count = collections.Counter(row.section for row in everything)
    report(page, "no section has lost rows",
           [f"§{section} has {count[section]} rows, it had {rows_before}" for section, rows_before in least.items()
            if count[section] < rows_before])
    for row in everything:  # a row that is being built may name what does not exist yet
        if is_elsewhere(row) and spans(row.tests) and not function_errors(row) + tests.errors(row):
            print(f"# {in_place(row)}: it is there now: take **being built** away")
    open_rows = collections.Counter(word for row in everything for word in OPEN
                                    if f"**{word}**" in (row.functions or "") + row.tests)
    print(f"# {page}: {len(everything)} rows" + "".join(f"; {word}: {count}" for word, count in open_rows.items()))


def check_references(page):
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    files = [span for span in spans(text) if re.match(r"[\w./]+\.(?:cc|h|py|pml|def)(?:: |$)", span)]
    report(page, "every file and function that the page names exists",
           [fault for span in files for fault in reference_errors(span)])


def main():
    pages = [*PAGES, ARCHITECTURE]
    chosen = sys.argv[1:] or pages
    if unknown := [page for page in chosen if page not in pages]:
        sys.exit(f"guarantees.py: no such page: {', '.join(unknown)}; one of {', '.join(pages)}")
    tests = Tests()
    for page in chosen:
        if page == ARCHITECTURE:
            check_references(page)
        else:
            check(page, PAGES[page], tests)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
