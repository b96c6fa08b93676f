#!/usr/bin/env python3
"""mutants.py TREE [HAND.py-renames are not known] TABLE...: renames the code lines of tests/mutants.cases (each by the file of its `@ FILE`, new path)
and says which ' ' and '-' lines are not in that file afterwards (wrapped otherwise by the formatter, or renamed by hand)."""
import fnmatch, pathlib, re, sys
root = pathlib.Path(sys.argv[1]); ids = []; moves = {}
for t in sys.argv[2:]:
    for line in pathlib.Path(t).read_text().splitlines():
        p = line.split("\t")
        if p[0] == "id" and len(p) == 4: ids.append(p[1:])
        if p[0] == "file": moves[p[2]] = p[1]
case = root / "tests/mutants.cases"; file = None; out = []; bad = 0
for line in case.read_text().split("\n"):
    if line.startswith("@ "): file = line[2:].strip()
    elif line.startswith(("==", ">", "#")) or not line: file = None if line.startswith(("==", ">")) else file
    elif file and line[0] in " -+":
        old = moves.get(file, file)
        for a, b, scope in ids:
            if any(g == "*" or fnmatch.fnmatch(old, g) for g in scope.split()):
                line = line[0] + "".join(s if i % 2 else re.sub(rf"\b{re.escape(a)}\b", b, s) for i, s in enumerate(re.split(r'("(?:[^"\\]|\\.)*")', line[1:])))
        if line[0] != "+" and line[1:] not in (root / file).read_text().split("\n"): print(f"{file}: {line}"); bad += 1
    out.append(line)
case.write_text("\n".join(out)); print(bad, "lines not found")
