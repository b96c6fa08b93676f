#!/usr/bin/env python3
"""Runs every curl command of docs/api.md with the real curl, in order, in a folder made by `aetheris init`, and compares the
answers with the page.

Below each curl is a line `# STATUS [or STATUS] BODY`. BODY is JSON that the answer must contain (of a list, the first values; a
word in capitals matches any text, and the same text in later lines), or a text in the answer; of an event stream its beginning.
In requests, those words and port 7070 are replaced. Other lines of the blocks are run too; a line that cannot be run is an error.

Prints `ok NAME` or `not ok NAME` for each line. tests/shared/program.py finds the program.
"""
import json
import pathlib
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shared.home import PATIENCE, expect, home  # noqa: E402
from shared.program import BIN, ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

PORT = "127.0.0.1:7070"
GROUPS = {  # the routes that the page must show
    "create and wait": r"curl -d .*/api/jobs\?wait=", "look": r"curl \S*/api/jobs/\w+$", "live": r"text/event-stream",
    "go on": r"Last-Event-ID", "signal": r"/signal", "approve": r"/api/approvals/", "resolve": r"/resolve",
    "cancel": r"/cancel", "fork": r"/fork", "agents": r"-X PUT .*/api/agents/", "keys": r"/api/keys", "metrics": r"/metrics"}


class Differs(Exception):
    pass


def examples(page):
    """[(line, documented answer or None)] of the blocks of the page."""
    found = []
    for line in page.splitlines():
        if not line.startswith("    "):
            if "curl -" in line.replace("`curl -d`", ""):
                raise Differs(f"a curl outside of a block is not run: {line}")
            continue
        line = line.strip()
        if line.startswith("#"):
            if not found or found[-1][1] is not None:
                raise Differs(f"an answer without a request: {line}")
            found[-1][1] = line[1:].strip()
        else:
            found.append([line, None])
    for line, answer in found:
        if line.startswith("curl ") != (answer is not None):
            raise Differs(f"no answer is documented: {line}" if answer is None else f"an answer without a curl: {line}")
    return found


class Reader:
    """Types the commands of the page."""

    def __init__(self, h):
        self.h, self.server, self.words = h, None, {}
        self.env = {**h.env, "PATH": f"{pathlib.Path(BIN).resolve().parent}:{h.env['PATH']}"}

    def type(self, line, answer):
        for word, value in self.words.items():
            line = re.sub(rf"\b{word}\b", value, line)
        if self.server:
            line = line.replace(PORT, self.server.address)
        if line.startswith("aetheris serve ") and line.endswith(" &"):
            self.server = Server(self.h, *line.split()[2:-1])
        elif line == "kill -9 %1":
            self.server.process.send_signal(signal.SIGKILL)
            self.server.process.wait()
        elif answer is None:
            self.shell(line)
        else:
            self.curl(line, answer)

    def shell(self, line):
        done = subprocess.run(["bash", "-c", line], cwd=self.h.path, env=self.env, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise Differs(f"exit {done.returncode}: {done.stdout} {done.stderr}")
        return done.stdout

    def curl(self, line, answer):
        printed = self.shell(line.replace("curl ", r"curl -sS -w '\n%{http_code} %{content_type}' ", 1))
        body, _, last = printed.rpartition("\n")
        status, _, kind = last.partition(" ")
        wanted, text = re.fullmatch(r"(\d+(?: or \d+)?) (.*)", answer).groups()
        if status not in wanted.split(" or "):
            raise Differs(f"{status}, not {wanted}: {body[:1000]}")
        if text.startswith("{"):
            if "json" not in kind:
                raise Differs(f"{kind} is not JSON")
            capitals = re.sub(r"(?<=[\[:,] )([A-Z][A-Z_]*)(?=[,}\]])", r'"\\u0000\1"', text)
            self.compare(json.loads(capitals), json.loads(body), "")
        elif not body.startswith(text + "\n") if "event-stream" in kind else text not in body:
            raise Differs(f"{text!r} is not in {body[:1000]!r}")

    def compare(self, wanted, got, where):
        if isinstance(wanted, dict):
            if not isinstance(got, dict) or wanted.keys() - got.keys():
                raise Differs(f"{where or 'the answer'} is {got!r}, and should have {sorted(wanted)}")
            for name in wanted:
                self.compare(wanted[name], got[name], f"{where}.{name}")
        elif isinstance(wanted, list):
            if not isinstance(got, list) or len(got) < len(wanted):
                raise Differs(f"{where} is {got!r}, and should be {wanted!r}")
            for n, value in enumerate(wanted):
                self.compare(value, got[n], f"{where}[{n}]")
        elif isinstance(wanted, str) and wanted.startswith("\0"):
            if not isinstance(got, str) or not got or self.words.setdefault(wanted[1:], got) != got:
                raise Differs(f"{where} is {got!r}, and {wanted[1:]} is {self.words.get(wanted[1:])!r}")
        elif wanted != got or isinstance(wanted, bool) != isinstance(got, bool):
            raise Differs(f"{where} is {got!r}, not {wanted!r}")


def main():
    page = (ROOT / "docs/api.md").read_text()
    name = "the page is read"
    try:
        lines = examples(page)
        missing = [group for group, pattern in GROUPS.items() if not any(re.search(pattern, line) for line, _ in lines)]
        if missing:
            raise Differs(f"no example for: {', '.join(missing)}")
        with home(BIN) as h:
            (h.path / "agents.yaml").unlink()
            reader = Reader(h)
            for line, answer in lines:
                name = line
                reader.type(line, answer)
                print(f"ok api examples/{line[:150]}", flush=True)
            expect(reader.server.stop(), 0)
    except (Differs, subprocess.TimeoutExpired, ValueError) as why:  # later lines depend on it
        print(f"not ok api examples/{name}\n    {why}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
