#!/usr/bin/env python3
"""The MCP conformance suite (npm @modelcontextprotocol/conformance) against our client and our server, for both protocol eras.

  ./dev conformance [--only WORDS] [--quick] [--keep FOLDER]

Each scenario that a revision requires, and those that it lists in addition, is run at the wire version of the revision.
baseline.yml lists the expected failures with their reasons: a failing check that is not listed is a failure, and so is an entry
that no longer fails. The client is client.py; the server is `aetheris serve agents.yaml`. `--only` checks the scenarios whose
`LEG NAME REVISION` contains the words, `--quick` all without OAuth. The suite runs the client scenarios concurrently and allows
some answers half a second, so a failed scenario is run once more, alone. Prints `ok NAME` or `not ok NAME` for each scenario, and
ends with a line for each revision and one for all:

    client: N passed, M expected failures; server: N passed, M expected failures
"""
import argparse
import concurrent.futures
import contextlib
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
LEGS = ("client", "server")
OAUTH = "auth/"
SCENARIO_S = 300  # time limit of a scenario
SUITE_S = 600     # … and a part of the suite
AT_ONCE = 2
AGAIN_MAX = 12    # scenarios; if more fail, time is not the cause
SHOWN_MAX = 400   # characters of the output of a program


def suite(*words):
    """One run of the suite."""
    program = oracles.modules() / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    env = {**os.environ, "AETHERIS_ROOT": str(ROOT), "AETHERIS_BIN": BIN, "PATH": f"{oracles.node().parent}:{os.environ['PATH']}"}
    return subprocess.run([oracles.node(), program, *words], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=SUITE_S)


def scenarios(era):
    """(leg, scenario) of all that the revision requires, and of all that it lists in addition."""
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
    assert set(LEGS) == {leg for leg, _ in found}, found
    return found


def baseline():
    """{(leg, entry): reason}; an entry is a scenario or SCENARIO:CHECK."""
    leg, entries = None, {}
    for number, line in enumerate((HERE / "baseline.yml").read_text().splitlines(), 1):
        if heading := re.fullmatch(r"(client|server):", line):
            leg = heading[1]
        elif entry := re.fullmatch(r"  - (\S+)\s+# (.+)", line):
            assert leg and (leg, entry[1]) not in entries, f"baseline.yml:{number}: listed twice"
            entries[leg, entry[1]] = entry[2]
        elif line.strip() and not line.lstrip().startswith("#"):
            raise SystemExit(f"baseline.yml:{number}: an entry is `  - SCENARIO[:CHECK]  # reason`")
    return entries


def failed_checks(folder):
    """[(check, reason)] of one scenario, from the folder that the suite has written."""
    checks = json.loads((folder / "checks.json").read_text())
    failed = [(one["id"], one.get("errorMessage") or one["description"]) for one in checks if one["status"] == "FAILURE"]
    ended = folder / "stderr.txt"
    # A client that exited with an error has failed, whatever the scenario reports.
    if not failed and ended.exists() and (last_line := re.search(r"^client\.py: .*", ended.read_text(), re.M)):
        failed = [("client", last_line[0])]
    if not checks:
        failed = [("run", "the suite checked nothing")]
    return failed


def part(leg, era, url, out, name=None):
    """Runs all scenarios of a leg and a revision, or one: ({scenario: [(check, reason)]}, the end of the output of the suite)."""
    how = ["--command", f"{sys.executable} -B {HERE / 'client.py'}"] if leg == "client" else ["--url", url]
    which = ["--scenario", name, "--spec-version", era, "--force"] if name else ["--requirements", era]
    done = suite(leg, *how, *which, "--timeout", str(1000 * SCENARIO_S), "-o", str(out))
    found = {}
    for checks in out.rglob("checks.json"):
        name = str(checks.parent.relative_to(out)).removeprefix("server-")
        found[re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", name)] = failed_checks(checks.parent)
    return found, (done.stdout + done.stderr)[-SHOWN_MAX:]


@contextlib.contextmanager
def serving(folder):
    """Yields the URL of our server."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
    log = pathlib.Path(folder) / "serve.log"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [BIN, "serve", str(HERE / "agents.yaml"), "--store", f"sqlite:{folder}/aetheris.db", "--listen", "127.0.0.1:0"],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out, text=True)
    try:
        address = next((found for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line))), None)
        if not address:
            raise SystemExit(f"aetheris serve did not start: {log.read_text()[-SHOWN_MAX:]}")
        yield f"{address[0]}/mcp"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def judged(leg, name, failed, known, used):
    """What failed and is not in the baseline; notes which entries were used."""
    left = []
    for check, why in failed:
        entry = next((e for e in ((leg, name), (leg, f"{name}:{check}")) if e in known), None)
        used.add(entry)
        if not entry:
            left.append((check, why))
    return left


def run(wanted, known, url, folder):
    """{(leg, scenario, era): [(check, why)]}"""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        # A server's part waits and a client's part works: one of each at once.
        parts = {(leg, era): pool.submit(part, leg, era, url, folder / f"{leg}-{era}")
                 for era in ERAS for leg in LEGS if any((leg, era) == (one[0], one[2]) for one in wanted)}
    results = {}
    for leg, name, era in wanted:
        found, output = parts[leg, era].result()
        results[leg, name, era] = found.get(name, [("run", f"the suite did not run it: {output}")])
    again = [key for key in wanted if judged(key[0], key[1], results[key], known, set())]
    for leg, name, era in again if len(again) <= AGAIN_MAX else []:
        print(f"# once more, alone: {leg} {name} {era}: {results[leg, name, era]}", flush=True)
        found, output = part(leg, era, url, folder / f"again-{leg}-{era}-{name.replace('/', '-')}", name)
        results[leg, name, era] = next(iter(found.values()), [("run", output)])
    return results


def report(wanted, results, known, used):
    """Prints the result of each scenario. Returns {(era, leg): [passed, expected failures]} and the number of failures."""
    tally, bad = {(era, leg): [0, 0] for era in ERAS for leg in LEGS}, 0
    for leg, name, era in wanted:
        failed = results[leg, name, era]
        left = judged(leg, name, failed, known, used)
        title = f"conformance/{leg} {name} {era}"
        if left:
            bad += 1
            print(f"not ok {title}")
            for check, why in left:
                print(f"    {name}:{check}  {why}")
        else:
            tally[era, leg][bool(failed)] += 1
            print(f"ok {title}" + (" (an expected failure)" if failed else ""))
    return tally, bad


def summary(counts):
    return "; ".join(f"{leg}: {passed} passed, {expected} expected failures" for leg, (passed, expected) in counts.items())


def main():
    parser = argparse.ArgumentParser(description="The conformance suite of MCP against our client and server.")
    parser.add_argument("--only", default="", metavar="WORDS")
    parser.add_argument("--keep", metavar="FOLDER", help="keeps what the suite wrote, in this folder")
    parser.add_argument("--quick", action="store_true", help="leaves out the scenarios of OAuth")
    options = parser.parse_args()
    known, used = baseline(), set()
    wanted = [(leg, name, era) for era in ERAS for leg, name in scenarios(era)
              if options.only in f"{leg} {name} {era}" and not (options.quick and name.startswith(OAUTH))]
    with tempfile.TemporaryDirectory(prefix="aetheris-conformance-") as folder, serving(folder) as url:
        os.environ["CONFORMANCE_TURNS"] = folder
        results = run(wanted, known, url, pathlib.Path(options.keep or folder))
    tally, bad = report(wanted, results, known, used)
    seen = {(leg, name) for leg, name, _ in wanted} if not options.only else set()
    stale = [entry for entry in known if entry not in used and (entry[0], entry[1].split(":")[0]) in seen]
    for leg, entry in stale:
        print(f"not ok conformance/{leg} {entry} is in baseline.yml and fails nowhere: take it out")
    for era in ERAS:
        print(f"{era}  {summary({leg: tally[era, leg] for leg in LEGS})}")
    print(summary({leg: [sum(tally[era, leg][i] for era in ERAS) for i in (0, 1)] for leg in LEGS}))
    return 1 if bad or stale or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
