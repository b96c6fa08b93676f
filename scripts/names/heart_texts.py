#!/usr/bin/env python3
"""heart_texts.py TREE TABLE...: the names of tables in texts that quote the code: tests/mutants.cases (lines below `@ FILE`), and spans
`path: name, name` and `Class::name` in docs/*.md and formal/README.md. Run once, after apply.py. Works for the table of any group."""
import fnmatch, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]); ids = []; back = {}
for t in sys.argv[2:]:
    for l in pathlib.Path(t).read_text().splitlines():
        p = l.split("\t")
        if p[0] == "id" and len(p) == 4: ids.append(p[1:])
        if p[0] == "file": back[p[2]] = p[1]
def table(path):
    path = path if path.startswith(("src/", "bench/")) else "src/" + path
    path = back.get(path, path)
    return [(o, n) for o, n, s in ids if any(g == "*" or fnmatch.fnmatch(path, g) for g in s.split())]
def words(s, pairs):
    parts = re.split(r'("(?:[^"\\]|\\.)*")', s)
    for i in range(0, len(parts), 2):
        for o, n in pairs: parts[i] = re.sub(rf"\b{re.escape(o)}\b", n, parts[i])
    return "".join(parts)
p = root / "tests/mutants.cases"; out = []; cur = None
for l in p.read_text().split("\n"):
    if l.startswith("@ "): cur = table(l[2:].strip())
    elif l.startswith(("== ", "> ", "#")): cur = None
    elif cur and l[:1] in "+- ": l = l[:1] + words(l[1:], cur)
    out.append(l)
p.write_text("\n".join(out))
star = [(o, n) for o, n, s in ids if s == "*" and (("_" in o) or re.match(r"[A-Z][a-z]+[A-Z]", o))]
for f in subprocess.run(["git", "ls-files", "docs/*.md", "formal/README.md"], cwd=root, capture_output=True, text=True).stdout.split():
    q = root / f; t = q.read_text()
    def span(m):
        s = m[1]
        w = re.match(r"((?:src/|bench/)?[\w/.]+\.(?:cc|h)): (.*)", s)
        if w: return f"`{w[1]}: {words(w[2], table(w[1]))}`"
        return f"`{words(s, star)}`"
    n = re.sub(r"`([^`\n]+)`", span, t)
    if n != t: q.write_text(n)
