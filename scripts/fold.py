#!/usr/bin/env python3
"""Checks that the version of the fold covers what `apply` reaches (src/engine/CMakeLists.txt).

  fold.py              no covered file of src/engine includes a file that is left out, or calls a function of one
  fold.py --list       also prints both lists
  fold.py --self-test  plants an include and a call, and checks that both are found

A function is one that a left-out .cc file defines outside of its anonymous namespace, by its name; a name that a covered file
defines too is an overload and is not checked. Methods of a class that a left-out header declares need that header.
"""
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFINITION = re.compile(r"^(?!return|else|using|namespace|struct|class|#|})[\w:<>,&*\s\[\]]+?[\s&*](\w+)\([^;{}]*\)[^;{}]*\{", re.M)


def sources(root):
    """({covered path: text}, {left-out path: text}) of src/engine, without tests."""
    engine = root / "src/engine"
    cmake = (engine / "CMakeLists.txt").read_text()
    patterns = re.findall(r'^set\(no_fold_\w+\s+"(.*)"\)$', cmake, re.M)
    folders = re.search(r"foreach\(folder ([^)]*)\)", cmake)
    if len(patterns) != 2 or not folders:
        sys.exit("src/engine/CMakeLists.txt does not set no_fold_cc and no_fold_h, or has no list of folders")
    left_out = re.compile("|".join(patterns).replace("\\\\", "\\"))
    covered, out = {}, {}
    for path in sorted(engine.glob("*/*.[ch]*")):
        if not re.search(r"_(test|fuzz)\.(cc|h)$", path.name):
            folds = path.parent.name in folders[1].split() and not left_out.search(str(path))
            (covered if folds else out)[path] = path.read_text(encoding="utf-8")
    return covered, out


def plain(text):
    """Without comments and texts."""
    return re.sub(r'//[^\n]*|"(?:\\.|[^"\\\n])*"', "", text)


def defined(text):
    """The functions of a file that others can call: not those of its anonymous namespace, no methods."""
    text = re.sub(r"^namespace \{$.*?^\}  // namespace$", "", text, flags=re.M | re.S)
    return {match[1] for match in DEFINITION.finditer(plain(text))
            if match[0][:match.start(1) - match.start()][-2:] != "::" and not match[1].endswith("_")}


def problems(root):
    covered, out = sources(root)
    found = []
    headers = {str(path.relative_to(root / "src")) for path in out if path.suffix == ".h"}
    left = {name: path for path, text in out.items() if path.suffix == ".cc" for name in defined(text)}
    own = set().union(*(defined(text) for text in covered.values()))
    for path, text in covered.items():
        where = path.relative_to(root)
        found += [f"{where} includes {name}, which the version of the fold does not cover"
                  for name in re.findall(r'^#include "([^"]+)"', text, re.M) if name in headers]
        if path.suffix == ".cc":
            called = set(re.findall(r"(?<![\w.>])(\w+)\(", plain(text)))
            found += [f"{where} calls {name}() of {left[name].relative_to(root)}, which the version of the fold does not cover"
                      for name in sorted(called & set(left) - own)]
    return found


def self_test():
    planted = {
        "CMakeLists.txt": 'set(no_fold_cc "/(decide)(_[a-z]+)?\\\\.cc$")\nset(no_fold_h "/decider\\\\.h$")\n'
                          "foreach(folder ../base\n  state heart)\n",
        "heart/decide.cc": "namespace {\nint hidden(int a) {\n}\n}  // namespace\nint next_of(int a) {\n  return 1;\n}\n"
                           "int Decider::run(int a) {\n}\n",
        "heart/decider.h": "",
        "heart/apply.cc": '#include "engine/heart/decider.h"\nint f(int a) {\n  return next_of(a) + hidden(a) + x.run(a);\n}\n',
        "heart/apply_test.cc": "int g(int a) {\n  return next_of(a);\n}\n",
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in planted.items():
            path = root / "src/engine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = problems(root)
    if len(found) != 2 or "includes engine/heart/decider.h" not in found[0] or "calls next_of()" not in found[1]:
        print(f"found {found}")
        return 1
    print("a planted include and a planted call are found")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    covered, out = sources(ROOT)
    if "--list" in sys.argv:
        print("\n".join(f"covered  {path.relative_to(ROOT)}" for path in covered))
        print("\n".join(f"left out {path.relative_to(ROOT)}" for path in out))
    found = problems(ROOT)
    print("\n".join(found + [f"{len(covered)} files of src/engine are covered, {len(out)} are left out"]))
    return 1 if found else 0


sys.exit(main())
