#!/usr/bin/env python3
"""docs.py TREE TABLE...: BEFORE apply.py (paths are the old ones). Renames in what apply.py leaves alone:
`path/file.cc: name, Class::name` in *.md, code lines of tests/mutants.cases, and kConstants in C++ comments."""
import fnmatch, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]); rows = []
for t in sys.argv[2:]:
    for l in pathlib.Path(t).read_text().splitlines():
        p = l.split("\t")
        if p[0] == "id" and len(p) == 4: rows.append((p[1], p[2], p[3].split()))
def table(path):
    out = {}
    for old, new, scope in rows:
        if any(g == "*" or fnmatch.fnmatch(path, g) for g in scope): out.setdefault(old, new)
    return out
def sub(text, tab): return re.sub(r"[A-Za-z_]\w*", lambda m: tab.get(m[0], m[0]), text)
files = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout.split("\n")
for f in files:
    if f.endswith(".md") and not f.startswith("docs/decisions"):
        p = root / f
        if p.is_symlink(): continue
        s = p.read_text(); n = re.sub(r"`((?:src/)?)((?:[\w]+/)+\w+\.(?:h|cc)): ([^`]+)`", lambda m: f"`{m[1]}{m[2]}: {sub(m[3], table('src/' + m[2]))}`", s)
        if n != s: p.write_text(n); print(f)
    if re.search(r"^(src|bench|tests)/.*\.(h|cc)$", f):
        p = root / f; tab = {k: v for k, v in table(f).items() if re.match(r"k[A-Z]", k)}
        if not tab: continue
        s = p.read_text(); n = re.sub(r"//[^\n]*", lambda m: sub(m[0], tab), s)
        if n != s: p.write_text(n); print(f)
p = root / "tests/mutants.cases"; out = []; cur = {}
for l in p.read_text().split("\n"):
    if l.startswith("@ "): cur = table(l[2:].strip())
    elif l[:1] in "-+" and l[:1]: l = l[0] + re.sub(r'"(?:[^"\\]|\\.)*"|[A-Za-z_]\w*', lambda m: cur.get(m[0], m[0]), l[1:])
    out.append(l)
p.write_text("\n".join(out))
