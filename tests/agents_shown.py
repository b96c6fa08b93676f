#!/usr/bin/env python3
"""The examples and pages about agents work as shown: examples/agents, each run as its first lines describe, and every command
of docs/agents-in-ten-minutes.md, with the scripted model server, real MCP servers and the shop.

Results are checked outside of the program: in the folder, the file of the memory server, and the journals of the shop and
the model server. Prints `ok NAME` or `not ok NAME` for each test. tests/oracles provides Node and the MCP servers.
  agents_shown.py [WORDS]   only tests whose name contains WORDS
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracles  # noqa: E402
from shared.home import run_tests, until  # noqa: E402
from shared.program import BIN  # noqa: E402

ROOT = oracles.ROOT
PATIENCE = 240
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def unsanitized():
    """The program for memory measurements: the release build, if it is newer than the sources; a sanitizer uses more memory."""
    release = ROOT / "build/release/aetheris"
    newest = max(path.stat().st_mtime for path in (ROOT / "src").rglob("*.[ch]*"))
    return release if release.exists() and release.stat().st_mtime > newest else pathlib.Path(BIN)


class Place:
    """A folder that the examples expect: `examples` in it, programs on the PATH, a model server and a shop."""

    def __init__(self, start_servers=True):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-shown-")).resolve()
        (self.path / "examples").mkdir()
        for name in ("agents", "shop", "model-server"):
            shutil.copytree(ROOT / "examples" / name, self.path / "examples" / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        (self.path / "bin").mkdir()
        (self.path / "bin/aetheris").symlink_to(pathlib.Path(BIN).resolve())
        path = f"{self.path / 'bin'}:{oracles.node().parent}:{os.environ['PATH']}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("AETHERIS_", "MODEL", "SHOP_"))}
        self.env |= {"PATH": path, "MODEL_KEY": "any-key", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
        self.started = []
        if start_servers:
            self.env["MODEL_URL"] = self.start_server("node", "examples/model-server/server.mjs", "--journal", "model.journal") + "/v1"
            shop = self.start_server("python3", "examples/shop/shop.py", "--port", "0", "--journal", "shop.journal")
            self.env["SHOP_URL"] = f"http://{shop}"

    def start_server(self, *words):
        """Starts a server. The last word of its first line is its address."""
        process = subprocess.Popen(words, cwd=self.path, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            process.kill()
            process.wait()
            process.stdout.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def aetheris(self, *words, code=0, **env):
        done = subprocess.run([BIN, *words], cwd=self.path, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, example, job, message=None, code=0, **env):
        message_words = ["--input", json.dumps({"message": message})] if message else []
        return self.aetheris("run", f"examples/agents/{example}.yaml", "--job-id", job, "--json", *message_words, code=code, **env)

    def lines(self, name):
        file = self.path / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def expect_verified(self, job, turns):
        """A finished job verifies, has counted tokens and cost, and called the model once per turn."""
        self.aetheris("verify", job)
        usage = json.loads(self.aetheris("job", job, "--json"))["usage"]
        assert usage["model_calls"] == turns and usage["total_tokens"] > 0 and usage["cost_micros"] > 0, usage
        trace = self.aetheris("trace", job)
        assert "tokens" in trace and "cost" in trace, trace


@test
def the_research_example_reads_remembers_and_reports():
    with Place() as place:
        (place.path / "papers").mkdir()
        (place.path / "papers/bees.txt").write_text("Bees dance.\n")
        folder = str(place.path / "papers")
        env = {"MODEL": "research", "FOLDER": folder, "MEMORY": str(place.path / "memory.jsonl")}
        pinned = (place.path / "examples/agents/research.lock.json").read_bytes()
        result = json.loads(place.run("research", "papers", f"Report on the folder {folder}", **env))
        assert result["result"]["text"] == "The report is written." and result["result"]["turns"] == 5, result
        assert "# Report" in (place.path / "papers/report.md").read_text()
        kept = place.lines("memory.jsonl")
        assert [line["name"] for line in kept] == ["finding"] and "Bees dance." in kept[0]["observations"][0], kept
        assert (place.path / "examples/agents/research.lock.json").read_bytes() == pinned, "the lock file does not match its servers"
        assert len(place.lines("model.journal")) == 5
        place.expect_verified("papers", 5)


@test
def the_coding_example_makes_the_tests_pass():
    with Place() as place:
        head = [line[4:] for line in (ROOT / "examples/agents/coding.yaml").read_text().splitlines()
                if re.match(r"#   (echo|mkdir)", line)]
        assert len(head) == 3, head
        subprocess.run(["sh", "-ec", "\n".join(head)], cwd=place.path, check=True)
        work = place.path / "work"
        assert subprocess.run(["sh", "test.sh"], cwd=work, capture_output=True).returncode == 1, "the tests pass before the run"
        result = json.loads(place.run("coding", "fix-sum", "Make test.sh pass.", MODEL="coding", FOLDER=str(work)))
        assert result["result"]["text"] == "The tests pass now.", result
        assert subprocess.run(["sh", "test.sh"], cwd=work, capture_output=True).returncode == 0, "the tests still fail"
        place.expect_verified("fix-sum", 4)


def refund(place, answer):
    place.run("refund_agent", "refund-43", "Refund order 43, please.", code=4, MODEL="refund")
    waiting = json.loads(place.aetheris("approvals", "--json"))["approvals"]
    assert [(a["tool"], a["arguments"]) for a in waiting] == [("refund", {"order": "43", "amount": 29})], waiting
    assert not [line for line in place.lines("shop.journal") if line["kind"] == "effect"], "paid before the approval"
    place.aetheris(answer, waiting[0]["id"])
    result = json.loads(place.run("refund_agent", "refund-43", MODEL="refund"))["result"]
    paid = [line["route"] for line in place.lines("shop.journal") if line["kind"] == "effect"]
    assert len(place.lines("model.journal")) == 3, "a recorded answer was requested again"
    place.expect_verified("refund-43", 3)
    return result["text"], paid


@test
def the_refund_example_pays_once_after_an_approval():
    with Place() as place:
        assert refund(place, "approve") == ("29 EUR was refunded for order 43.", ["POST /refunds"])


@test
def the_refund_example_pays_nothing_after_a_rejection():
    with Place() as place:
        result, paid = refund(place, "reject")
        assert result.startswith("Nothing was refunded") and paid == [], (result, paid)


@test
def every_example_documents_how_to_run_it_with_a_scripted_and_a_real_model():
    files = sorted((ROOT / "examples/agents").glob("*.yaml"))
    assert len(files) >= 3, files
    for file in files:
        head = file.read_text().split("\naetheris: 1")[0]
        assert all(line.startswith("#") for line in head.strip().splitlines()), file
        for words in ("server.mjs", "https://api.openai.com/v1", "MODEL_KEY=sk-", f"aetheris run examples/agents/{file.name}"):
            assert words in head, f"{file.name} does not contain {words}"


@test
def the_agent_demo_is_killed_twice_and_repeats_no_effect():
    done = subprocess.run([ROOT / "scripts/demo", "--agent"], env={**os.environ, "AETHERIS_BIN": BIN}, capture_output=True, text=True,
                          timeout=2 * PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("\n$ kill -9 ") == 2 and done.stdout.count("\nok ") == 8 and "replayed" in done.stdout, done.stdout


# ---------------------------------------------------------------- many at once

SILENT = """\
aetheris: 1
models: { main: { provider: openai, base_url: "${ env.MODEL_URL }", api_key: "secret:MODEL_KEY", model: silent } }
agents: { waits: { loop: { model: main } } }
"""


@test
def a_hundred_loops_with_stalled_models_use_little_memory_and_no_threads():
    stall = {"stall_ms": 3600000, "stall_after": 10, "times": "always"}
    with Place(start_servers=False) as place:
        (place.path / "silent.json").write_text(json.dumps({"turns": [{"fail": stall, "text": "A sentence that comes to no end. " * 8}]}))
        (place.path / "silent.yaml").write_text(SILENT)
        place.env["MODEL_URL"] = place.start_server("node", "examples/model-server/server.mjs", "--journal", "model.journal", "--scenario",
                                             "silent.json") + "/v1"
        url = json.loads(place.start_server(unsanitized().resolve(), "serve", "silent.yaml", "--listen", "127.0.0.1:0", "--json"))["listening"]
        server_pid = place.started[-1].pid
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def send_request(jobs, count):
            for _ in range(jobs):
                body = json.dumps({"agent": "waits", "input": {"message": "Go."}}).encode()
                opener.open(urllib.request.Request(url + "/api/jobs", body, {"content-type": "application/json"}), timeout=PATIENCE).close()
            until(lambda: (place.path / "model.journal").exists() and len(place.lines("model.journal")) == count)
            lines = (line.partition(":") for line in pathlib.Path(f"/proc/{server_pid}/status").read_text().splitlines())
            return {name: value.split() for name, _, value in lines}

        few, many = send_request(10, 10), send_request(100, 110)
        assert not [line for line in place.lines("model.journal") if line["answer"].startswith("refused")]
        assert many["Threads"] == few["Threads"], (few["Threads"], many["Threads"])
        each = (int(many["VmRSS"][0]) - int(few["VmRSS"][0])) / 100
        sanitized = b"__asan_init" in pathlib.Path(f"/proc/{server_pid}/exe").read_bytes()
        print(f"# {each:.1f} KiB for each job" + (", with a sanitizer: not checked, there is no release build" if sanitized else ""))
        assert sanitized or each < 64, f"{each} KiB for each job"


# ---------------------------------------------------------------- docs/agents-in-ten-minutes.md

VARIES = [(r"\d{4}-\d\d-\d\d[ T][0-9:.]+(Z| UTC)?", "TIME"), (r"\d\d:\d\d:\d\d", "TIME"),
          (r"[\d.]+ (ms|s)\b", "TIME"), (r"[━ ]{2,}", " "), (r"aetheris:[\w-]+:\S+", "KEY"), (r"\b[0-9a-f]{64}\b", "HASH"),
          (r"\s+", " ")]


def normalized(line):
    for pattern, word in VARIES:
        line = re.sub(pattern, word, line)
    return line.strip()


@test
def every_command_of_agents_in_ten_minutes_prints_what_the_page_shows():
    text = (ROOT / "docs/agents-in-ten-minutes.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.S)
    files = re.findall(r"`(\w+\.yaml)`:\n\n```yaml\n(.*?)```", text, re.S)
    assert len(blocks) >= 6 and files, (len(blocks), [name for name, _ in files])
    pinned = json.loads((ROOT / "tests/oracles/package.json").read_text())["dependencies"]
    for name, version in re.findall(r"(@modelcontextprotocol/[\w-]+)@([\d.]+)", text):
        assert pinned[name] == version, f"the page installs {name} {version}, the tests {pinned[name]}"
    with Place(start_servers=False) as place:
        for name, content in files:
            (place.path / name).write_text(content)
        script, expected = "", []
        for block in blocks:
            for line in block.splitlines():
                if line.startswith(("$ ", "> ")):
                    script += line[2:] + "\n"
                elif line.strip() not in ("", "…"):
                    expected.append(line)
        done = subprocess.run(["bash", "-uo", "pipefail", "-c", f"trap 'kill -9 $(jobs -p) 2>/dev/null' EXIT\n{script}"], cwd=place.path,
                              env=place.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
                              stdin=subprocess.DEVNULL)
    printed = collections.Counter(normalized(line) for line in done.stdout.splitlines())
    missing = sorted((collections.Counter(map(normalized, expected)) - printed).elements())
    assert not missing, f"the page shows, and was not printed:\n{chr(10).join(missing)}\n---- output\n{done.stdout}"


if __name__ == "__main__":
    sys.exit(run_tests("agents_shown", TESTS, " ".join(sys.argv[1:])))
