#!/usr/bin/env python3
"""The layering check: dependencies point at base; pure modules depend on pure ones; only app depends on drivers;
drivers do not depend on each other; the pure modules have an order, as have the folders of runtime; the features of engine
never include each other; only api and cli have commands in their texts. It reads the ae_module(...) line of each module.

  layers.py               checks the tree
  layers.py --self-test   plants one violation of each rule in a toy tree and requires that it is found
  layers.py --graph       prints who depends on whom
"""
import pathlib
import re
import sys
import tempfile
from dataclasses import dataclass, field

# Modules that put everything together: they may name drivers. So may tests and bench/.
COMPOSERS = {"app", "embed", "sim", "testing"}
DRIVER_PARENTS = ("store", "tools", "llm", "routines")  # a module in a folder below these is a driver
DRIVERS = {"mcp/client"}  # drivers in other folders
# The functions of native routines are native tools that belong to a request.
BUILDS_ON = {"routines_native": "tools_native"}

# What pure modules may depend on.
ORDER = {"base": "", "json": "base", "expr": "base json", "schema": "base json", "log": "base json schema",
         "plan": "base json expr schema log", "engine": "base json expr schema log plan",
         "inspect": "base json expr schema log plan engine"}
# The folders of engine: state includes only state, heart also state, and each other folder is a feature, which includes
# its own files, heart and state. What a feature offers to heart and to other features is included by FEATURES.
STATE, HEART, FEATURES = "state", "heart", "engine/heart/features.h"
# The folders of other modules, and which of them each may include, beside its own files and those of the module's own
# folder (""), which includes none of them.
FOLDERS = {"runtime": {"": "", "driver": "", "service": "", "scheduler": "driver service"}}

# The modules whose texts may name commands. An error has an action instead (base/action.h), and these make text of it.
COMMAND_TEXTS = {"api", "cli", "sim", "testing"}
# Its text is recorded as the outcome of a call.
RECORDED_TEXTS = {"mcp/client/server.cc"}

IMPURE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|stop_token|semaphore|latch|barrier|"
    r"fstream|iostream|filesystem|random|ctime|time\.h|unistd\.h|fcntl\.h|poll\.h|pthread\.h|"
    r"netdb\.h|signal\.h|csignal|dirent\.h|sqlite3\.h|sys/.*|arpa/.*|netinet/.*|curl/.*|"
    r"boost/asio.*|boost/beast.*)$")
IMPURE_CALL = re.compile(r"\b\w*[cC]lock::now\s*\(|\b(getenv|fopen|popen|system|rand|srand|"
                         r"gettimeofday|clock_gettime)\s*\(|\btime\s*\(\s*(nullptr|NULL|0)\s*\)")
FORBIDDEN = [
    (re.compile(r"\bjson::parse\s*\("),
     "boost::json::parse misreads numbers and keeps the last duplicate key: json/json.h"),
    (re.compile(r"\bYAML::Load"), "YAML::Load builds a tree without limits: use the event interface"),
]
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(?:wor" r"k|ho" r"me)/")
COMMAND = re.compile(r'\bCommand k\w+\{\s*\.name = "(\w+)"')
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]')
TEXT = {".cc", ".h", ".py", ".sh", ".cmake", ".txt", ".json", ".yaml", ".yml", ".sql", ".ts", ".tsx",
        ".js", ".toml", ".html", ".css", ""}
PASSED_OVER = {".git", "build", "node_modules", "__pycache__", "dist", ".venv"}


@dataclass
class Module:
    name: str
    folder: str  # relative to src/
    pure: bool = False
    depends: list = field(default_factory=list)
    test_depends: list = field(default_factory=list)
    subdirs: list = field(default_factory=list)

    @property
    def driver(self):
        below = self.folder.count("/") == 1 and self.folder.split("/")[0] in DRIVER_PARENTS
        return below or self.folder in DRIVERS


class Tree:
    def __init__(self, root):
        self.root = root
        self.problems = []
        self.modules = {}
        names = [name for path in (root / "src/cli").glob("*.cc") for name in COMMAND.findall(path.read_text())]
        self.command = re.compile(r"`aetheris " + (rf"|\baetheris ({'|'.join(names)})\b" if names else ""))
        for path in sorted((root / "src").rglob("CMakeLists.txt")):
            self.read_module(path)

    def problem(self, path, line, text):
        where = path.relative_to(self.root)
        self.problems.append(f"{where}:{line}: {text}" if line else f"{where}: {text}")

    def read_module(self, path):
        text = re.sub(r"#.*", "", path.read_text())
        match = re.search(r"\bae_module\s*\(([^)]*)\)", text)
        if not match:
            self.problem(path, 0, "no ae_module(...) line")
            return
        words = match[1].split()
        module = Module(words[0].replace("/", "_"), str(path.parent.relative_to(self.root / "src")))
        into = None
        lists = {"DEPENDS": module.depends, "TEST_DEPENDS": module.test_depends, "SUBDIRS": module.subdirs}
        for word in words[1:]:
            if word == "PURE":
                module.pure, into = True, None
            elif word in ("DEPENDS", "TEST_DEPENDS", "LIBS", "TEST_LIBS", "SUBDIRS"):
                into = lists.get(word)
            elif into is not None:
                into.append(word.replace("/", "_"))
        if module.name != module.folder.replace("/", "_"):
            self.problem(path, 0, f"module {module.name} is named otherwise than its folder")
        self.modules[module.name] = module

    def owner(self, relative):
        """The module whose folder holds a path relative to src/: the deepest one."""
        best = None
        for module in self.modules.values():
            if relative.startswith(module.folder + "/"):
                if best is None or len(module.folder) > len(best.folder):
                    best = module
        return best

    # ---- rules about dependency lines

    def check_lines(self):
        for module in self.modules.values():
            path = self.root / "src" / module.folder / "CMakeLists.txt"
            for name in module.depends:
                other = self.modules.get(name)
                if other is None:
                    if not (self.root / "src" / name.replace("_", "/", 1)).exists() and \
                       not (self.root / "src" / name).exists():
                        self.problem(path, 0, f"depends on {name}, which is no module")
                    continue
                if module.pure and not other.pure:
                    self.problem(path, 0, f"{module.name} is PURE and depends on {name}, which is not")
                self.check_driver(path, 0, module, other, False)
                if name in ORDER and module.name in ORDER and name not in ORDER[module.name].split():
                    self.problem(path, 0, f"{module.name} may not depend on {name}, only on: "
                                          f"{ORDER[module.name] or 'nothing'}")
        self.check_cycles()

    def check_cycles(self):
        state = {}

        def walk(name, trail):
            if state.get(name) == "done" or name not in self.modules:
                return
            if name in trail:
                loop = trail[trail.index(name):] + [name]
                path = self.root / "src" / self.modules[name].folder / "CMakeLists.txt"
                self.problem(path, 0, "a cycle: " + " -> ".join(loop))
                return
            for other in self.modules[name].depends:
                walk(other, trail + [name])
            state[name] = "done"

        for name in sorted(self.modules):
            walk(name, [])

    def check_driver(self, path, line, module, other, is_test):
        if not other.driver or other is module or is_test or BUILDS_ON.get(module.name) == other.name:
            return
        if module.driver:
            self.problem(path, line, f"driver {module.name} knows driver {other.name}; "
                                     "drivers never know each other")
        elif module.name not in COMPOSERS:
            self.problem(path, line, f"{module.name} knows driver {other.name}; only app may")

    # ---- rules about sources

    def check_sources(self):
        for path in sorted((self.root / "src").rglob("*")):
            if path.suffix not in (".cc", ".h") or not path.is_file():
                continue
            relative = str(path.relative_to(self.root / "src"))
            module = self.owner(relative)
            if module is None:
                self.problem(path, 0, "belongs to no module (no CMakeLists.txt with ae_module above it)")
                continue
            folder = str(path.parent.relative_to(self.root / "src" / module.folder))
            if path.suffix == ".cc" and folder != "." and folder not in module.subdirs:
                self.problem(path, 0, f"is not compiled: {folder} is not among the SUBDIRS of {module.name}")
            if folder != "." and folder not in FOLDERS.get(module.folder, {folder: ""}):
                self.problem(path, 0, f"{folder} is not in FOLDERS of scripts/layers.py: which folders may it include?")
            if folder == "." and module.name == "engine" and module.subdirs:
                self.problem(path, 0, "belongs into a folder of engine: " + ", ".join(module.subdirs))
            self.check_source(path, relative, module)
        for folder in ("bench", "examples", "tests"):
            for path in sorted((self.root / folder).rglob("*.cc")):
                self.check_forbidden(path, strip(path.read_text(errors="replace")))

    def check_source(self, path, relative, module):
        raw = path.read_text(errors="replace")
        code = strip(raw)
        is_test = path.stem.endswith(("_test", "_bench", "_fuzz", "_testing_main"))
        for number, line in enumerate(raw.splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            if match[1] == '"':
                self.check_own_include(path, number, match[2], module, is_test)
                if not is_test:
                    self.check_feature(path, number, relative, match[2])
                    self.check_folders(path, number, relative, match[2], module)
            else:
                self.check_outside_include(path, number, match[2], module, is_test, relative)
        if module.pure and not is_test:
            for number, line in enumerate(code.splitlines(), 1):
                if found := IMPURE_CALL.search(line):
                    self.problem(path, number, f"{module.name} is PURE: no {found[0].strip('( ')}")
        if path.suffix == ".h":
            for number, line in enumerate(code.splitlines(), 1):
                if "boost::json" in line or "boost/json" in line:
                    self.problem(path, number, "no boost::json in a header: Value is the currency")
        self.check_forbidden(path, code)
        self.check_awaits(path, code, raw.splitlines())
        if not is_test and module.folder not in COMMAND_TEXTS and relative not in RECORDED_TEXTS:
            self.check_commands(path, raw)

    def check_own_include(self, path, number, target, module, is_test):
        if "/" not in target:
            self.problem(path, number, f'"{target}": includes start at src/ ("module/file.h")')
            return
        other = self.owner(target)
        if other is None:
            self.problem(path, number, f'"{target}" is in no module')
            return
        if other is module:
            return
        allowed = set(module.depends)
        if is_test:
            allowed |= {"testing", *module.test_depends}
        if other.name not in allowed:
            field_name = "TEST_DEPENDS" if is_test else "DEPENDS"
            self.problem(path, number, f'"{target}": {module.name} does not name {other.name} in its '
                                       f"{field_name}")
        self.check_driver(path, number, module, other, is_test)

    def check_feature(self, path, number, relative, target):
        if not re.match(r"engine/\w+/", relative) or not re.match(r"engine/\w+/", target):
            return
        here, there = relative.split("/")[1], target.split("/")[1]
        if target == FEATURES and path.suffix == ".h":
            self.problem(path, number, f"a header includes {FEATURES}; only .cc files may")
        elif here == there or there == STATE or (there == HEART and here != STATE):
            return
        elif here == STATE:
            self.problem(path, number, f"engine/state includes engine/{there}; it may include only its own files")
        elif relative != FEATURES:
            self.problem(path, number, f"engine/{here} includes engine/{there}; include {FEATURES} instead")

    def check_folders(self, path, number, relative, target, module):
        if module.folder not in FOLDERS or self.owner(target) is not module:
            return
        order = FOLDERS[module.folder]
        here, there = (str(pathlib.PurePosixPath(name).relative_to(module.folder).parent).removeprefix(".")
                       for name in (relative, target))
        if there not in (here, "", *order.get(here, "").split()):
            self.problem(path, number, f"{module.name}/{here} includes {module.name}/{there}; it may include: "
                                       f"{', '.join(['its own files', *order.get(here, '').split()])}")

    def check_outside_include(self, path, number, target, module, is_test, relative):
        if module.pure and not is_test:
            counts = re.fullmatch(r"json/value\.(h|cc)|base/inline_text\.h", relative)  # reference counts
            if IMPURE.match(target) or (target == "atomic" and not counts):
                self.problem(path, number, f"{module.name} is PURE: no <{target}>")
        if re.match(r"boost/(asio|beast)\b", target):
            in_net = module.folder == "net" and (path.suffix == ".cc" or
                                                 path.name.endswith("_internal.h"))
            if not in_net:
                self.problem(path, number, f"<{target}>: Asio and Beast live in src/net/*.cc only")
        if path.suffix == ".h" and target.startswith("boost/json"):
            return  # reported once, by the rule about headers

    def check_forbidden(self, path, code):
        for number, line in enumerate(code.splitlines(), 1):
            for pattern, why in FORBIDDEN:
                if pattern.search(line):
                    self.problem(path, number, why)

    def check_commands(self, path, raw):
        for at, text in literals(raw):
            if self.command.search(text):
                self.problem(path, raw.count("\n", 0, at) + 1,
                             "a command in a text; give the error an action (base/action.h)")

    def check_awaits(self, path, code, raw):
        """g++ 12 destroys some temporaries of a co_await expression twice (HOUSE: coroutines)."""
        for match in re.finditer(r"\bco_await\b", code):
            number = code.count("\n", 0, match.start()) + 1
            found = risky_await(code, match.end())
            if found and "await: safe" not in raw[number - 1]:
                self.problem(path, number, f"{found} inside a co_await: g++ 12 may destroy it twice; use "
                                           "a named local (or write `// await: safe` and the reason)")

    # ---- rules about every text file

    def check_paths(self):
        for path in walk_text(self.root):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if MACHINE_PATH.search(line):
                    self.problem(path, number, "a path of one machine")

    def check(self):
        self.check_lines()
        self.check_sources()
        self.check_paths()
        return self.problems


TOKEN = re.compile(r'R"([^\s()\\]{0,16})\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def literals(text):
    """Offset and contents of each string; adjacent strings are one."""
    found, end = [], None
    for match in TOKEN.finditer(text):
        token = match[0]
        if token[0] == "/":
            continue
        joins = end is not None and not strip(text[end:match.start()]).strip()
        end = None
        if token[0] == "'":
            continue
        inside = token[token.index("(") + 1:token.rindex(")")] if token[0] == "R" else token[1:-1]
        if joins:
            found[-1] = (found[-1][0], found[-1][1] + inside)
        else:
            found.append((match.start(), inside))
        end = match.end()
    return found


def strip(text):
    """Takes comments and the insides of strings out; lines and columns stay."""
    def blank(match):
        found = match[0]
        line = text.rfind("\n", 0, match.start()) + 1
        if text[line:match.start()].lstrip().startswith("#"):
            return found if found[0] == '"' else re.sub(r"[^\n]", " ", found)
        keep = '"' if found[0] in '"R' else ""
        inside = re.sub(r"[^\n]", " ", found)
        return keep + inside[len(keep):len(inside) - len(keep)] + keep if keep else inside

    return TOKEN.sub(blank, text)


def risky_await(code, begin):
    """Reads one co_await expression: a braced or conditional temporary as an argument, or None."""
    depth, lambdas = 0, []
    i = begin
    while i < len(code):
        char = code[i]
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
            if depth < 0:
                return None
        elif char == "{":
            before = code[begin:i].rstrip()
            # A body: after `)`, `]`, `mutable`, `noexcept` or a lambda's return type.
            if depth == 0 and not before:
                return None
            if re.search(r"(\)|\]|\bmutable|\bnoexcept|->\s*[\w:<>, *&]+)$", before):
                if depth == 0:
                    return None  # the body of the if or while around it
                i = skip_braces(code, i)
                continue
            if depth > 0 and (before[-1:] in "(,{" or re.match(r"\{\s*\.", code[i:])):
                return "a braced argument"
            i = skip_braces(code, i)
            continue
        elif char == "?" and depth > 0:
            return "a conditional argument"
        elif char == ";" and depth <= 0:
            return None
        i += 1
    return None


def skip_braces(code, i):
    depth = 0
    while i < len(code):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        i += 1
        if depth == 0:
            break
    return i


def walk_text(root):
    pending = [root]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            if path.is_symlink() or path.name in PASSED_OVER or path.name.startswith("build-"):
                continue
            if path.is_dir():
                pending.append(path)
            elif path.suffix in TEXT and path.stat().st_size < 4 << 20:
                yield path


# ---- self-test

TOY = {
    "src/json/CMakeLists.txt": "ae_module(json PURE)\n",
    "src/json/value.h": "#pragma once\n#include <atomic>\n",
    "src/json/id.cc": '#include "json/value.h"\n// std::chrono::steady_clock::now() is not for us\n',
    "src/engine/CMakeLists.txt": "ae_module(engine PURE DEPENDS json SUBDIRS budget heart loop state)\n",
    "src/engine/heart/decide.cc": '#include "json/value.h"\n',
    "src/engine/budget/budget.cc": '#include "engine/budget/budget.h"\n#include "engine/heart/features.h"\n'
                                   '#include "engine/state/state.h"\n',
    "src/engine/budget/budget_test.cc": '#include "engine/loop/loop.h"\n',
    "src/engine/heart/features.h": '#include "engine/budget/budget.h"\n#include "engine/loop/loop.h"\n',
    "src/engine/heart/walk.cc": '#include "engine/heart/features.h"\n#include "engine/state/state.h"\n',
    "src/engine/loop/loop.h": '#include "engine/heart/walk.h"\n',
    "src/engine/state/apply.cc": '#include "engine/state/state.h"\n',
    "src/engine/heart/decide_test.cc": '#include <random>\n#include "testing/test.h"\n',
    "src/store/CMakeLists.txt": "ae_module(store DEPENDS json)\n",
    "src/store/store.h": '#include "json/value.h"\n',
    "src/store/memory/CMakeLists.txt": "ae_module(store/memory DEPENDS json store)\n",
    "src/store/memory/memory.h": '#include "store/store.h"\n',
    "src/store/sqlite/CMakeLists.txt": "ae_module(store_sqlite DEPENDS json store LIBS sqlite)\n",
    "src/store/sqlite/sqlite.h": '#include "store/store.h"\n',
    "src/mcp/protocol/CMakeLists.txt": "ae_module(mcp/protocol PURE DEPENDS json)\n",
    "src/mcp/protocol/message.h": '#include "json/value.h"\n',
    "src/mcp/client/CMakeLists.txt": "ae_module(mcp/client DEPENDS json mcp/protocol)\n",
    "src/mcp/client/session.h": '#include "mcp/protocol/message.h"\n',
    "src/net/CMakeLists.txt": "ae_module(net DEPENDS json LIBS boost)\n",
    "src/net/loop.cc": "#include <boost/asio.hpp>\n",
    "src/runtime/CMakeLists.txt":
        "ae_module(runtime DEPENDS json engine store TEST_DEPENDS store/memory SUBDIRS driver scheduler service)\n",
    "src/runtime/log.h": "\n",
    "src/runtime/driver/driver.h": '#include "runtime/log.h"\n',
    "src/runtime/driver/driver_test.cc": '#include "runtime/scheduler/scheduler.h"\n',
    "src/runtime/scheduler/scheduler.h": '#include "runtime/driver/driver.h"\n#include "runtime/log.h"\n',
    "src/runtime/worker.cc": '#include "store/store.h"\nvoid f() {\n  auto r = co_await g(a, B{1});\n'
                             "  co_await h([&](int x) { return x; });\n  if (co_await k(x)) {\n  }\n}\n",
    "src/runtime/worker_test.cc": '#include "store/memory/memory.h"\n#include "testing/test.h"\n',
    "src/testing/CMakeLists.txt": "ae_module(testing)\n",
    "src/testing/test.h": "\n",
    "src/cli/CMakeLists.txt": "ae_module(cli DEPENDS app)\n",
    "src/cli/jobs.cc": 'extern const Command kJobs{\n    .name = "jobs"};\nauto v = "see: aetheris jobs";\n',
    "src/app/help.cc": '// aetheris jobs\nauto v = "an aetheris server";\n',
    "src/app/help_test.cc": 'auto v = "aetheris jobs";\n',
    "src/app/CMakeLists.txt": "ae_module(app DEPENDS json store store_memory store_sqlite)\n",
    "src/app/app.cc": '#include "store/memory/memory.h"\n#include "store/sqlite/sqlite.h"\n',
}

PLANTED = [
    ("an undeclared include", {"src/store/x.cc": '#include "engine/heart/walk.h"\n'}, "does not name engine"),
    ("an include through a dependency only",
     {"src/net/x.cc": '#include "store/store.h"\n'}, "does not name store"),
    ("an include from nowhere", {"src/net/x.cc": '#include "loop.h"\n'}, "includes start at src/"),
    ("an include of no module", {"src/net/x.cc": '#include "nowhere/x.h"\n'}, "is in no module"),
    ("a cycle", {"src/store/CMakeLists.txt": "ae_module(store DEPENDS json runtime)\n"}, "a cycle"),
    ("a dependency on nothing", {"src/net/CMakeLists.txt": "ae_module(net DEPENDS cor)\n"}, "no module"),
    ("a module misnamed", {"src/net/CMakeLists.txt": "ae_module(web DEPENDS json)\n"}, "otherwise"),
    ("a folder without a line", {"src/store/x/y.cc": "\n", "src/odd/z.cc": "\n"}, "belongs to no module"),
    ("a file of engine outside of its folders", {"src/engine/x.h": "\n"}, "belongs into a folder of engine"),
    ("a folder that is not compiled", {"src/engine/undo/x.cc": "\n"}, "is not compiled: undo"),
    ("a pure module on the one above it", {"src/base/CMakeLists.txt": "ae_module(base PURE DEPENDS json)\n",
                                    "src/json/CMakeLists.txt": "ae_module(json PURE)\n"}, "base may not depend on json"),
    ("an engine that depends on what inspects it",
     {"src/engine/CMakeLists.txt": "ae_module(engine PURE DEPENDS inspect)\n",
      "src/inspect/CMakeLists.txt": "ae_module(inspect PURE)\n"}, "engine may not depend on inspect"),
    ("a feature in another", {"src/engine/budget/x.cc": '#include "engine/loop/loop.h"\n'},
     "engine/budget includes engine/loop"),
    ("a feature in the heart", {"src/engine/heart/x.cc": '#include "engine/loop/loop.h"\n'},
     "engine/heart includes engine/loop"),
    ("the heart in the state", {"src/engine/state/x.cc": '#include "engine/heart/walk.h"\n'},
     "engine/state includes engine/heart"),
    ("all features in a header", {"src/engine/budget/x.h": '#include "engine/heart/features.h"\n'},
     "a header includes engine/heart/features.h"),
    ("the scheduler in the driver", {"src/runtime/driver/x.cc": '#include "runtime/scheduler/scheduler.h"\n'},
     "runtime/driver includes runtime/scheduler"),
    ("the driver in the service", {"src/runtime/service/x.cc": '#include "runtime/driver/driver.h"\n'},
     "runtime/service includes runtime/driver"),
    ("the driver in what all folders share", {"src/runtime/x.h": '#include "runtime/driver/driver.h"\n'},
     "runtime/ includes runtime/driver"),
    ("a folder of runtime without an order", {"src/runtime/x/y.h": "\n"}, "x is not in FOLDERS"),
    ("a pure module on an impure one",
     {"src/engine/CMakeLists.txt": "ae_module(engine PURE DEPENDS json net)\n"}, "which is not"),
    *[(f"<{name}> in a pure module", {"src/engine/x.cc": f"#include <{name}>\n"}, "is PURE")
      for name in ("thread", "mutex", "atomic", "fstream", "iostream", "filesystem", "random",
                   "sys/socket.h", "unistd.h")],
    ("a clock in a pure module",
     {"src/json/x.cc": "auto t = std::chrono::system_clock::now();\n"}, "is PURE"),
    ("the environment in a pure module", {"src/json/x.cc": 'auto t = std::getenv("A");\n'}, "is PURE"),
    ("a driver known to the runtime",
     {"src/runtime/CMakeLists.txt": "ae_module(runtime DEPENDS json store store_memory)\n"}, "only app may"),
    ("a driver included by the runtime",
     {"src/runtime/x.cc": '#include "store/memory/memory.h"\n'}, "only app may"),
    ("a driver included by its parent",
     {"src/store/x.cc": '#include "store/memory/memory.h"\n'}, "only app may"),
    ("a driver that knows another",
     {"src/store/sqlite/x.cc": '#include "store/memory/memory.h"\n'}, "never know each other"),
    ("a client of MCP known to the runtime",
     {"src/runtime/CMakeLists.txt": "ae_module(runtime DEPENDS json engine store mcp/client TEST_DEPENDS "
                                    "store/memory)\n"}, "only app may"),
    ("Asio outside net", {"src/runtime/x.cc": "#include <boost/asio/post.hpp>\n"}, "src/net/*.cc only"),
    ("Beast in a header of net", {"src/net/x.h": "#include <boost/beast/http.hpp>\n"}, "src/net/*.cc only"),
    ("boost::json in a header", {"src/store/x.h": "boost::json::value v;\n"}, "no boost::json"),
    ("boost/json.hpp in a header", {"src/store/x.h": "#include <boost/json.hpp>\n"}, "no boost::json"),
    ("boost::json::parse", {"src/store/x.cc": "auto v = boost::json::parse (text);\n"}, "misreads"),
    ("YAML::Load", {"src/store/x.cc": "auto v = YAML::LoadFile(text);\n"}, "event interface"),
    ("a machine path in code", {"src/store/x.cc": 'auto v = "/wo' 'rk/main";\n'}, "a path of one machine"),
    ("a machine path in a script", {"scripts/x": "cd /ho" "me/me\n"}, "a path of one machine"),
    ("a command in a text", {"src/store/x.cc": 'auto v = "see: aetheris jobs";\n'}, "a command in a text"),
    ("a quoted command in a text", {"src/app/x.cc": 'auto v = "see `aetheris "  // next\n         "x`";\n'},
     "x.cc:1: a command in a text"),
    ("a command in two strings", {"src/store/x.h": 'auto v = "see aetheris "\n         "jobs";\n'}, "a command in a text"),
    ("a command in a raw string", {"src/store/x.cc": 'auto v = R"(aetheris jobs)";\n'}, "a command in a text"),
    ("a braced argument in a co_await", {"src/store/x.cc": "co_await f({.a = 1});\n"}, "braced argument"),
    ("a braced aggregate in a co_await", {"src/store/x.cc": "co_await f(A{.a = 1});\n"}, "braced argument"),
    ("a conditional in a co_await", {"src/store/x.cc": "co_await f(a ? b : c);\n"}, "conditional argument"),
]


def self_test():
    def problems(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return Tree(pathlib.Path(folder)).check()

    bad = 0
    if found := problems(TOY):
        bad += 1
        print("the toy tree is clean, but:", *found, sep="\n  ")
    for name, files, expected in PLANTED:
        found = problems({**TOY, **files})
        if not any(expected in line for line in found):
            bad += 1
            print(f"{name} went unseen; found: {found}")
    if not bad:
        print(f"{len(PLANTED)} planted violations, all seen")
    return 1 if bad else 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    tree = Tree(pathlib.Path(__file__).resolve().parent.parent)
    if "--graph" in sys.argv:
        for module in tree.modules.values():
            print(f"{module.name}{' (pure)' if module.pure else ''}: {' '.join(module.depends)}")
        return 0
    for text in tree.check():
        print(text)
    print(f"{len(tree.modules)} modules, {len(tree.problems)} problems")
    return 1 if tree.problems else 0


if __name__ == "__main__":
    sys.exit(main())
