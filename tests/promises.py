#!/usr/bin/env python3
"""Two guarantees, checked from outside of the process.

A write whose durability failed is never followed by its call: with every commit failing, the program of the tool is not run.
`replay` and `verify` only read: they open no network connection and do not change the bytes of the store (SQLite may create its
empty WAL). The engine itself has no clock, file or socket: `./dev check` verifies that.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from shared.program import BIN
from shared.sanitizer import sanitizer

AGENTS = """\
aetheris: 1
tools:
  pay: { command: ["sh", "-c", "echo paid >> paid.txt; echo ok"], effect: at_most_once, cwd: "." }
agents:
  payer:
    plan: [ { id: pay, tool: pay } ]
"""


def environment(**more):
    return {k: v for k, v in dict(os.environ, NO_COLOR="1", **more).items() if not k.startswith("AETHERIS_FAIL") or k in more}


def aetheris(folder, *arguments, **more):
    return subprocess.run([BIN, *arguments], cwd=folder, env=environment(**more), capture_output=True, text=True,
                          timeout=120, stdin=subprocess.DEVNULL)


def check_failed_write_makes_no_call(folder):
    done = aetheris(folder, "run", "agents.yaml", "--job-id", "p1", "--detach")
    assert done.returncode == 0, done.stderr
    failing = subprocess.Popen([BIN, "run", "agents.yaml", "--job-id", "p1", "--grace", "1s"], cwd=folder,
                               env=environment(AETHERIS_FAILPOINTS="append.before=error"), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        failing.wait(timeout=4)
    except subprocess.TimeoutExpired:
        failing.send_signal(signal.SIGINT)
    _, result = failing.communicate(timeout=60)
    assert failing.returncode != 0, result
    assert not (folder / "paid.txt").exists(), "the program was run although its declaration was never durable"
    done = aetheris(folder, "run", "agents.yaml", "--job-id", "p1")
    assert done.returncode == 0, done.stderr
    assert (folder / "paid.txt").read_text() == "paid\n"


def digest(folder):
    store = folder / ".aetheris"
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(store.iterdir())
            if p.is_file() and p.stat().st_size > 0 and not p.name.endswith(("-shm", ".lock"))}


def check_reading_changes_nothing(folder):
    before = digest(folder)
    seq = len(json.loads(aetheris(folder, "events", "p1", "--json").stdout)["events"])
    for command in (["replay", "p1", "--at", str(seq)], ["replay", "p1"], ["verify", "p1"], ["verify", "p1", "--json"]):
        trace = folder / "strace.txt"
        tracer = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=socket,connect,sendto"]
        done = subprocess.run([*tracer, BIN, *command], cwd=folder, env=environment(**sanitizer("detect_leaks=0")),
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        calls = trace.read_text()
        assert "AF_INET" not in calls and "sin_port" not in calls, f"{command}: {calls}"
        assert digest(folder) == before, f"{command} changed the store"


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="aetheris-promises-") as temporary:
        folder = pathlib.Path(temporary)
        (folder / "agents.yaml").write_text(AGENTS)
        for name, test in (("a write that was not durable is never followed by its call", check_failed_write_makes_no_call),
                           ("replay and verify open no connection and change nothing", check_reading_changes_nothing)):
            if test is check_reading_changes_nothing and shutil.which("strace") is None:
                print(f"ok {name} # SKIP strace is not installed")
                continue
            try:
                test(folder)
                print(f"ok {name}")
            except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError) as problem:
                failed += 1
                print(f"# {problem}")
                print(f"not ok {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
