#!/usr/bin/env python3
"""apply.py TREE TABLE... [--check]: renames C++ identifiers by table, whole tokens only, never in string literals.

Lines of a table, tab-separated:
  id<TAB>old<TAB>new<TAB>scope      scope: space-separated path globs below the tree (src/cli/*.cc src/app/**); * = everything
  file<TAB>old/path.cc<TAB>new/path.cc      (moves a file, rewrites includes and paths in every text)
  # comment
In comments a token is replaced when it is CamelCase, has an underscore, or stands in backticks.
--check changes nothing and prints per line: occurrences, files, and whether `new` exists already in a file of the scope.
"""
import fnmatch, pathlib, re, subprocess, sys
args = [a for a in sys.argv[1:] if a != "--check"]
check = "--check" in sys.argv
root = pathlib.Path(args[0])
files = [f for f in subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
         if re.search(r"\.(h|cc|def)$", f) and not f.startswith("testdata/")]
text = {f: (root / f).read_text() for f in files}
TOKEN = re.compile(r'(?P<raw>R"(?P<d>[^(\s]*)\((?:.|\n)*?\)(?P=d)")|(?P<str>"(?:[^"\\\n]|\\.)*")|(?P<chr>\'(?:[^\'\\\n]|\\.)+\')|(?P<com>//[^\n]*|/\*(?:.|\n)*?\*/)|(?P<inc>^[ \t]*#[ \t]*include[^\n]*)|(?P<num>\b\d[\w\']*)|(?P<id>[A-Za-z_]\w*)', re.M)
def replaced(src, table):
    hits = {}
    def one(m):
        if m["id"]:
            new = table.get(m["id"])
            if new: hits[m["id"]] = hits.get(m["id"], 0) + 1
            return new or m[0]
        if m["com"]:
            def word(w):
                t = w[0]
                new = table.get(t)
                if not new: return t
                camel = re.search(r"[a-z]", t) and re.match(r"[A-Z]", t) and (re.search(r"[a-z][A-Z]", t) or w.start() > 3 and m[0][w.start()-2:w.start()] not in (". ", "// "))
                tick = m[0][w.start()-1:w.start()] == "`"
                return new if camel or "_" in t or tick else t
            return re.sub(r"[A-Za-z_]\w*", word, m[0])
        return m[0]
    return TOKEN.sub(one, src), hits
def matches(path, scope):
    return any(g == "*" or fnmatch.fnmatch(path, g) for g in scope.split())
moves = []
for table in args[1:]:
    for number, line in enumerate(pathlib.Path(table).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"): continue
        parts = line.split("\t")
        if parts[0] == "file":
            moves.append(parts[1:3])
            if check and not (root / parts[1]).exists(): print(f"{table}:{number}: no file {parts[1]}")
            continue
        if len(parts) != 4 or parts[0] != "id": print(f"{table}:{number}: not a line of a table: {line!r}"); continue
        _, old, new, scope = parts
        count, touched, there = 0, 0, []
        for f in files:
            if old not in text[f] or not matches(f, scope): continue
            out, hits = replaced(text[f], {old: new})
            if hits:
                count += hits[old]; touched += 1
                if re.search(rf"\b{re.escape(new)}\b", TOKEN.sub(lambda m: m["id"] or " ", text[f])): there.append(f)
            text[f] = out
        if check: print(f"{old} -> {new}: {count} in {touched} files" + (f"; EXISTS in {' '.join(there[:5])}" if there else "") + ("; NOTHING" if not count else ""))
if check: sys.exit()
for f in files: (root / f).write_text(text[f])
every = [f for f in subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True).stdout.split("\n") if f and not f.startswith("testdata/")]
for old, new in moves:
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", old, new], cwd=root, check=True)
if moves:
    by = {o.removeprefix("src/"): n.removeprefix("src/") for o, n in moves}
    pat = re.compile(r"(?<![\w.\-])(src/)?(" + "|".join(map(re.escape, sorted(by, key=len, reverse=True))) + r")\b")
    every = [dict(moves).get(f, f) for f in every]
    for f in every:
        p = root / f
        if p.is_symlink() or not p.is_file(): continue
        try: t = p.read_text()
        except UnicodeDecodeError: continue
        n = pat.sub(lambda m: (m[1] or "") + by[m[2]], t)
        if n != t: p.write_text(n)
