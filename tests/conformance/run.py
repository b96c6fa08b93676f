#!/usr/bin/env python3
"""The conformance suite of MCP (npm @modelcontextprotocol/conformance) against our client and our server, in both eras.

  ./dev conformance [--only WORDS] [--keep FOLDER]

Each scenario that a revision requires is run at that revision's wire version, the optional ones too. baseline.yml beside this
file lists what we do not pass, each with its reason: a check that fails and is not listed is a failure, and so is an entry that
fails nowhere any more. The client is client.py; the server is `aetheris serve agents.yaml`. Says `ok NAME` or
`not ok NAME` per scenario, and ends with

    client: N passed, M expected failures; server: N passed, M expected failures
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import oracles  # noqa: E402

ROOT = oracles.ROOT
BIN = os.environ.get("AETHERIS_BIN", str(ROOT / "build/release/aetheris"))
ERAS = ("2025-11-25", "2026-07-28")
PATIENCE_S = 300
AT_ONCE = 2


def suite(*words):
    """One run of the suite."""
    program = oracles.modules() / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    env = {**os.environ, "AETHERIS_ROOT": str(ROOT), "AETHERIS_BIN": BIN, "PATH": f"{oracles.node().parent}:{os.environ['PATH']}"}
    return subprocess.run([oracles.node(), program, *words], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=2 * PATIENCE_S)


def scenarios(era):
    """(leg, scenario) of all that the revision requires, and of all that it lists beside."""
    leg, found = None, []
    for line in suite("list", "--requirements", era).stdout.splitlines():
        if heading := re.match(r"(Server|Client) scenarios", line):
            leg = heading[1].lower()
        elif line.startswith("Run and reported"):
            leg = None
        elif beside := re.match(r"\s+- (\S+) \[(server|client)\]", line):
            found.append((beside[2], beside[1]))
        elif (name := re.match(r"\s+- (\S+)$", line)) and leg:
            found.append((leg, name[1]))
    assert {"client", "server"} <= {leg for leg, _ in found}, found
    return found


def baseline():
    """{(leg, entry): reason}; an entry is a scenario or SCENARIO:CHECK."""
    leg, entries = None, {}
    for number, line in enumerate((HERE / "baseline.yml").read_text().splitlines(), 1):
        if heading := re.fullmatch(r"(client|server):", line):
            leg = heading[1]
        elif entry := re.fullmatch(r"  - (\S+)\s+# (.+)", line):
            assert leg and (leg, entry[1]) not in entries, f"baseline.yml:{number}: said twice"
            entries[leg, entry[1]] = entry[2]
        elif line.strip() and not line.startswith("#"):
            raise SystemExit(f"baseline.yml:{number}: an entry is `  - SCENARIO[:CHECK]  # reason`")
    return entries


def checks(folder):
    files = list(pathlib.Path(folder).rglob("checks.json"))
    return json.loads(files[0].read_text()) if files else None


def failures(leg, name, era, where):
    """The checks of one scenario that failed: [(check, why)]."""
    timeout = str(PATIENCE_S * 1000)
    with tempfile.TemporaryDirectory() as folder:
        folder = where or folder
        out = pathlib.Path(folder) / f"{leg}-{era}-{name.replace('/', '-')}"
        words = ["--scenario", name, "--spec-version", era, "--force", "--timeout", timeout, "-o", str(out)]
        how = ["--command", f"{sys.executable} -B {HERE / 'client.py'}"] if leg == "client" else ["--url", failures.url]
        said = suite(leg, *how, *words)
        found = checks(out)
    if found is None:
        return [("run", (said.stdout + said.stderr)[-400:])]
    failed = [(check["id"], check.get("errorMessage") or check["description"]) for check in found if check["status"] == "FAILURE"]
    if leg == "client" and said.returncode and not failed:
        failed = [("client", (said.stdout + said.stderr)[-400:])]
    return failed


def serve(folder):
    """Starts the server; gives the process and its URL."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
    process = subprocess.Popen([BIN, "serve", str(HERE / "agents.yaml"), "--store", f"sqlite:{folder}/aetheris.db", "--listen", "127.0.0.1:0"],
                               cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        if address := re.search(r"http://[\d.]+:\d+", line):
            return process, f"{address[0]}/mcp"
    raise SystemExit("aetheris serve did not start")


def judged(leg, name, failed, known, used):
    """What failed and is not in the baseline; notes which entries were used."""
    left = []
    for check, why in failed:
        entry = next((e for e in ((leg, name), (leg, f"{name}:{check}")) if e in known), None)
        used.add(entry)
        if not entry:
            left.append((check, why))
    return left


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", help="keeps what the suite wrote, in this folder")
    options = parser.parse_args()
    known, used, bad = baseline(), set(), 0
    tally = {leg: [0, 0] for leg in ("client", "server")}
    wanted = [(leg, name, era) for era in ERAS for leg, name in scenarios(era) if options.only in f"{leg} {name} {era}"]
    with tempfile.TemporaryDirectory(prefix="aetheris-conformance-") as folder:
        process, failures.url = serve(folder)
        try:
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                results = pool.map(lambda each: failures(*each, options.keep), wanted)
                for (leg, name, era), failed in zip(wanted, results):
                    left = judged(leg, name, failed, known, used)
                    said = f"conformance/{leg} {name} {era}"
                    if left:
                        bad += 1
                        print(f"not ok {said}")
                        for check, why in left:
                            print(f"    {name}:{check}  {why}")
                    else:
                        tally[leg][bool(failed)] += 1
                        print(f"ok {said}" + (" (an expected failure)" if failed else ""), flush=True)
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
    stale = [entry for entry in known if entry not in used] if not options.only else []
    for leg, entry in stale:
        print(f"not ok conformance/{leg} {entry} is in baseline.yml and fails nowhere: take it out")
    print("; ".join(f"{leg}: {passed} passed, {expected} expected failures" for leg, (passed, expected) in tally.items()))
    return 1 if bad or stale else 0


if __name__ == "__main__":
    sys.exit(main())
