#!/usr/bin/env python3
"""`aetheris serve --watch`: agents files are reloaded while jobs run.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  serve_watch.py [WORDS]   only tests whose name contains WORDS
"""
import http.server
import json
import os
import sys
import threading
import time

from shared.home import expect, home, run_tests, until
from shared.server import Scripted, Server, StderrLines

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def agent_that_prints(agent, word, more=""):
    return f"""
aetheris: 1
tools: {{ say_{agent}: {{ command: [echo, "{word}"], effect: read }} }}
agents: {{ {agent}: {{ plan: [ {{ id: t, wait: {{ type: signal, key: go }} }}, {{ id: s, tool: say_{agent}, args: {{}}, needs: [t] }} ],
  output: "${{ .steps.s }}" }} }}
{more}"""


@test
def watch_reloads_a_valid_file_and_keeps_the_last_version_of_an_invalid_one():
    with home() as h:
        (h.path / "a.yaml").write_text(agent_that_prints("one", "old"))
        (h.path / "b.yaml").write_text(agent_that_prints("two", "old"))
        expect(h.run("serve", "--watch", "--listen", "127.0.0.1:0"), 2)
        s = Server(h, "--watch", "a.yaml", "b.yaml")
        seen = StderrLines(s.process)

        def result(agent, job):
            s.post("/api/jobs", {"agent": agent, "id": job})
            until(lambda: s.status(job) == "waiting")
            return finish(job)

        def finish(job):
            s.post(f"/api/jobs/{job}/signal", {"correlation_key": "go", "payload": 1})
            until(lambda: s.status(job) in ("completed", "failed"))
            return s.get(f"/api/jobs/{job}")[1]["result"]

        def version(agent):
            return s.get(f"/api/agents/{agent}")[1]["version"]

        s.post("/api/jobs", {"agent": "one", "id": "before"})
        until(lambda: s.status("before") == "waiting")
        assert version("one") == 1
        # An invalid edit: its errors are printed, and the server continues.
        (h.path / "a.yaml").write_text(agent_that_prints("one", "new", "toolz: {}\n"))
        until(lambda: seen.has("error: a.yaml not reloaded; the last valid version stays in use"))
        line = (h.path / "a.yaml").read_text().splitlines().index("toolz: {}") + 1
        assert seen.has(f"a.yaml:{line}:1: toolz: unknown key `toolz`"), seen.lines
        assert version("one") == 1
        assert result("one", "broken") == "old"
        # A valid edit: new jobs use it, running jobs keep their version.
        (h.path / "a.yaml").write_text(agent_that_prints("one", "new"))
        until(lambda: seen.has("reloaded a.yaml: agent one version 1 → 2"))
        assert result("one", "after") == "new" and finish("before") == "old"
        # An editor that replaces the file; the other file.
        (h.path / ".b.tmp").write_text(agent_that_prints("two", "new"))
        os.rename(h.path / ".b.tmp", h.path / "b.yaml")
        until(lambda: seen.has("reloaded b.yaml: agent two version 1 → 2"))
        assert result("two", "renamed") == "new" and version("one") == 2
        # No agent has changed.
        (h.path / "b.yaml").write_text(agent_that_prints("two", "new", "# a remark\n"))
        until(lambda: seen.has("reloaded b.yaml: no agent changed"))
        # Missing for a moment, then unchanged: no reload.
        before = len([line for line in seen.lines if "reload" in line])
        (h.path / "a.yaml").rename(h.path / "away")
        (h.path / "away").rename(h.path / "a.yaml")
        # A new agent.
        (h.path / "b.yaml").write_text(agent_that_prints("two", "new", "").replace(
            "agents: {", "agents: { three: { plan: [ { id: s, tool: say_two, args: {} } ] }, "))
        until(lambda: seen.has("reloaded b.yaml: agent three version 1"))
        assert len([line for line in seen.lines if "reload" in line]) == before + 1, seen.lines
        # One file is edited while the other one cannot be read: that is reported once, and reloaded later.
        (h.path / "a.yaml").rename(h.path / "away")
        (h.path / "b.yaml").write_text(agent_that_prints("two", "newest"))
        until(lambda: seen.has("cannot read a.yaml"))
        (h.path / "away").rename(h.path / "a.yaml")
        until(lambda: seen.has("reloaded b.yaml: agent three version 1 → 2, agent two version 2 → 3"))
        assert len([line for line in seen.lines if line.startswith("cannot read a.yaml")]) == 1, seen.lines
        expect(s.h.run("verify", "before", env=s.env), 0)
        s.stop()


@test
def watch_logs_a_reload_as_json_and_without_watch_nothing_is_reloaded():
    with home() as h:
        (h.path / "a.yaml").write_text(agent_that_prints("one", "old"))
        s = Server(h, "--watch", "a.yaml", "--log", "json")
        seen = StderrLines(s.process)
        (h.path / "a.yaml").write_text("aetheris: 1\nagents: 7\n")
        until(lambda: seen.has("reload_failed"))
        (h.path / "a.yaml").write_text(agent_that_prints("one", "new"))
        until(lambda: seen.has('"event":"reloaded"'))
        s.stop()
        lines = {line["event"]: line for line in map(json.loads, seen.lines)}
        assert lines["reload_failed"]["faults"][0]["path"] == "agents", lines
        assert lines["reload_failed"]["files"] == ["a.yaml"] and lines["reload_failed"]["level"] == "error", lines
        assert lines["reloaded"]["agents"] == [{"from": 1, "name": "one", "to": 2}], lines
        s = Server(h, "--watch", "a.yaml", "--log", "text")
        seen = StderrLines(s.process)
        (h.path / "a.yaml").write_text("aetheris: 1\nagents: 7\ntoolz: 1\n")
        until(lambda: seen.has("not reloaded"))
        line = [line for line in seen.lines if "not reloaded" in line][0]
        assert " error a.yaml:2:9: agents: " in line and "; a.yaml:3:1: toolz: " in line, seen.lines
        s.stop()
        (h.path / "a.yaml").write_text(agent_that_prints("one", "new"))
        s = Server(h, "a.yaml")
        (h.path / "a.yaml").write_text(agent_that_prints("one", "newer"))
        result = expect(h.run("run", "a.yaml", "one", "--detach"), 5)
        assert "restart it" in result.err and "serve --watch" in result.err, result
        assert "reload" not in expect(s.stop(), 0).err


class CountingServer(Scripted):
    """The downstream: a slow service that counts its requests by job and node."""
    lock = threading.Lock()
    got = {}

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        with self.lock:
            self.got.setdefault((body["job"], body["node"]), []).append(self.path)
        time.sleep(0.2)
        answer = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


COUNTED_AGENTS = """
aetheris: 1
tools:
  post: { http: { method: POST, url: "URL/VERSION", body: "${ .args }" }, effect: at_most_once, result: body }
agents:
  twice:
    plan:
      - { id: a, tool: post, args: { job: "${ .input.job }", node: a } }
      - { id: b, tool: post, args: { job: "${ .input.job }", node: b }, needs: [a] }
    output: { a: "${ .steps.a.path }", b: "${ .steps.b.path }", is: VERSION }
"""


@test
def watch_loses_no_call_and_sends_none_twice():
    with home() as h, http.server.ThreadingHTTPServer(("127.0.0.1", 0), CountingServer) as downstream:
        threading.Thread(target=downstream.serve_forever, daemon=True).start()
        CountingServer.got.clear()
        text = COUNTED_AGENTS.replace("URL", f"http://127.0.0.1:{downstream.server_port}")
        (h.path / "a.yaml").write_text(text.replace("VERSION", "v1"))
        s = Server(h, "--watch", "a.yaml")
        seen = StderrLines(s.process)
        jobs, over = [], threading.Event()

        def create_jobs():
            while not over.is_set():
                job = f"j{len(jobs)}"
                assert s.post("/api/jobs", {"agent": "twice", "id": job, "input": {"job": job}})[0] == 201, job
                jobs.append(job)
                time.sleep(0.02)

        client = threading.Thread(target=create_jobs)
        client.start()
        for number in range(2, 8):
            # Every second edit is invalid first.
            if number % 2:
                (h.path / "a.yaml").write_text(text.replace("VERSION", f"v{number}").replace("plan:", "plans:"))
                faults = len([line for line in seen.lines if "not reloaded" in line])
                until(lambda: len([line for line in seen.lines if "not reloaded" in line]) > faults)
            (h.path / "a.yaml").write_text(text.replace("VERSION", f"v{number}"))
            until(lambda: seen.has(f"agent twice version {number - 1} → {number}"))
            before = len(jobs)
            until(lambda: len(jobs) > before + 3)
        over.set()
        client.join()
        until(lambda: all(s.status(job) in ("completed", "failed", "parked") for job in jobs))
        versions = set()
        for job in jobs:
            body = s.get(f"/api/jobs/{job}")[1]
            assert body["status"] == "completed", body
            version = body["result"]["is"]
            assert body["result"] == {"a": f"/{version}", "b": f"/{version}", "is": version}, body
            assert version == f"v{body['agent_version']}", body
            for node in ("a", "b"):
                assert CountingServer.got[(job, node)] == [f"/{version}"], (job, node, CountingServer.got[(job, node)])
            versions.add(version)
        assert versions == {f"v{number}" for number in range(1, 8)}, versions
        assert len(CountingServer.got) == 2 * len(jobs), "no other request was sent"
        expect(h.run("verify", jobs[0], env=s.env), 0)
        expect(s.stop(), 0)
        downstream.shutdown()


def is_alive(pid):
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# An MCP server that records SIGTERM in a file.
NOTES_SIGTERM = """
import os, pathlib, runpy, signal, sys
def stop(*_):
    with open(pathlib.Path(sys.argv[2]).parent / "stopped", "a") as file:
        file.write(f"{os.getpid()}\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
sys.path.insert(0, os.path.dirname("PROGRAM"))
sys.argv[0] = "PROGRAM"
runpy.run_path("PROGRAM", run_name="__main__")
"""


@test
def watch_keeps_one_mcp_server_after_many_edits_and_kills_those_that_do_not_stop():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared", "mcp_server.py")
    with home() as h:
        (h.path / "deaf.py").write_text(NOTES_SIGTERM.replace("PROGRAM", program).replace("    os._exit(0)\n", ""))

        def file(number):
            command = [sys.executable, "-B", str(h.path / "deaf.py"), "--journal", str(h.path / "journal")]
            agents = {"says": {"plan": [{"id": "c", "tool": "s.echo", "args": {"text": "now"}}]}}
            server = {"command": command, "env": {"NUMBER": str(number)}}
            return json.dumps({"aetheris": 1, "tools": {"s": {"mcp": server}}, "agents": agents})

        def servers():
            return {json.loads(line)["pid"] for line in (h.path / "journal").read_text().splitlines()}

        (h.path / "a.yaml").write_text(file(0))
        expect(h.run("check", "a.yaml"), 0)
        s = Server(h, "--watch", "a.yaml")
        seen = StderrLines(s.process)
        for number in range(1, 11):
            assert s.post("/api/jobs?wait=30s", {"agent": "says"})[1]["status"] == "completed"
            (h.path / "a.yaml").write_text(file(number))
            until(lambda: len([line for line in seen.lines if line.startswith("reloaded a.yaml")]) == number)
        assert s.post("/api/jobs?wait=30s", {"agent": "says"})[1]["status"] == "completed"
        assert len(servers()) == 11
        until(lambda: sum(map(is_alive, servers())) == 1)
        stopped = {int(pid) for pid in (h.path / "stopped").read_text().split()}
        assert len(stopped) == 10 and stopped < servers(), "each received SIGTERM and did not stop"
        expect(s.stop(), 0)


@test
def watch_restarts_a_changed_mcp_server_for_new_calls_only():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shared", "mcp_server.py")
    with home() as h:
        def file(era):
            command = [sys.executable, "-B", program, "--journal", str(h.path / "journal"), "--era", era]
            go = {"id": "w", "wait": {"type": "signal", "key": "go"}}
            # Another server, whose calls are short.
            other = [sys.executable, "-B", str(h.path / "other.py"), "--journal", str(h.path / "other"), "--era", era]
            agents = {"hangs": {"plan": [{"id": "c", "tool": "s.hang", "args": {}}]},
                      "short": {"plan": [{"id": "c", "tool": "o.echo", "args": {"text": "short"}}]},
                      "says": {"plan": [{"id": "c", "tool": "s.echo", "args": {"text": "now"}}]},
                      "later": {"plan": [go, {"id": "c", "tool": "s.echo", "args": {"text": "later"}, "needs": ["w"]}]}}
            return json.dumps({"aetheris": 1, "tools": {"s": {"mcp": {"command": command}}, "o": {"mcp": {"command": other}}},
                               "agents": agents})

        def calls(text, journal="journal"):
            lines = (h.path / journal).read_text().splitlines() if (h.path / journal).exists() else []
            return [one for one in map(json.loads, lines) if one["tool"] == text or one["args"].get("text") == text]

        (h.path / "other.py").write_text(NOTES_SIGTERM.replace("PROGRAM", program))
        (h.path / "a.yaml").write_text(file("legacy"))
        expect(h.run("check", "a.yaml"), 0)
        s = Server(h, "--watch", "a.yaml")
        seen = StderrLines(s.process)
        s.post("/api/jobs", {"agent": "later", "id": "waits"})
        s.post("/api/jobs", {"agent": "hangs", "id": "open"})
        until(lambda: len(calls("hang")) == 1 and s.status("waits") == "waiting")
        old = calls("hang")[0]["pid"]
        s.post("/api/jobs?wait=30s", {"agent": "short", "id": "short"})
        idle = calls("short", "other")[0]["pid"]
        (h.path / "a.yaml").write_text(file("modern"))
        until(lambda: seen.has("reloaded a.yaml"))
        s.post("/api/jobs", {"agent": "says", "id": "new"})
        until(lambda: s.status("new") == "completed")
        new = calls("now")[0]["pid"]
        assert new != old
        until(lambda: not is_alive(idle))
        assert (h.path / "stopped").read_text() == f"{idle}\n", "it received SIGTERM"
        assert is_alive(old) and s.status("open") == "running", "its call is open"
        (h.path / "go").touch()
        until(lambda: s.status("open") == "completed")
        assert len(calls("hang")) == 1
        until(lambda: not is_alive(old))
        # An older job uses the server of its own version.
        s.post("/api/jobs/waits/signal", {"correlation_key": "go", "payload": 1})
        until(lambda: s.status("waits") in ("completed", "failed", "parked"))
        assert s.status("waits") == "completed", s.get("/api/jobs/waits")
        assert len(calls("later")) == 1 and calls("later")[0]["pid"] not in (old, new)
        until(lambda: not is_alive(calls("later")[0]["pid"]))
        assert is_alive(new)
        expect(s.stop(), 0)
        assert not is_alive(new)


@test
def watch_prints_the_warnings_of_a_file_again():
    with home() as h:
        (h.path / "a.yaml").write_text(agent_that_prints("one", "old"))
        (h.path / "p.yaml").write_text("aetheris: 1\npolicies: [ { tools: [nothing_of_it], action: deny } ]\n")
        s = Server(h, "--watch", "a.yaml", "--policies", "p.yaml")
        seen = StderrLines(s.process)
        until(lambda: seen.has("nothing_of_it"))
        (h.path / "a.yaml").write_text(agent_that_prints("one", "new"))
        until(lambda: len([line for line in seen.lines if "nothing_of_it" in line]) == 2)
        warnings = [line for line in seen.lines if "nothing_of_it" in line]
        assert warnings[0].startswith("warning: p.yaml:") and warnings[0] == warnings[1], warnings
        # An edit of the policies file alone.
        (h.path / "p.yaml").write_text("aetheris: 1\npolicies: [ { tools: [say_one], action: require_approval } ]\n")
        until(lambda: seen.has("reloaded p.yaml: agent one version 2 → 3"))
        assert len([line for line in seen.lines if "nothing_of_it" in line]) == 2
        expect(s.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_tests("serve_watch", TESTS, " ".join(sys.argv[1:])))
