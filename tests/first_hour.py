#!/usr/bin/env python3
"""The first hour of a new user: an agent fails, its file is changed, and the printed command retries it.

Says `ok NAME` or `not ok NAME`. The tools are real programs; each writes a line per call into a file, which is the
count of the effects.

  first_hour.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.server
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
from shared.home import PATIENCE, expect, home, run_tests, until  # noqa: E402
from shared.server import Server  # noqa: E402
from shared.desk import SCENARIOS, Desk  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function

BROKEN = """\
aetheris: 1
tools:
  pay:
    command: ["sh", "-c", "echo paid >> paid; echo '{\\"receipt\\": 7}'"]
    output: json
    effect: at_most_once
  print:
    command: ["sh", "-c", "echo printed >> printed; cat"]
    output: json
    effect: idempotent
agents:
  trip:
    plan:
      - { id: charge, tool: pay, args: { amount: 5 } }
      - { id: ticket, tool: print, needs: [charge], args: { receipt: "${ .steps.charge.reciept | floor }" } }
    output: "${ .steps.ticket.receipt }"
"""
FIXED = BROKEN.replace("reciept", "receipt")


def lines(home_, name):
    path = home_.path / name
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def printed_command(stderr):
    """The retry command of a failure's own stderr, as words after `aetheris`."""
    words = shlex.split(re.search(r"aetheris retry .*", stderr)[0])
    assert words[0] == "aetheris", words
    return words[1:]


def broken(h):
    (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
    said = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
    assert "expression_failed" in said.err, said
    return said


def fix(h):
    (h.path / "trip.yaml").write_text(FIXED, encoding="utf-8")


@test
def the_printed_command_retries_with_the_changed_file():
    with home() as h:
        said = broken(h)
        fix(h)
        began = time.monotonic()
        done = expect(h.run(*printed_command(said.err)), 0)
        assert time.monotonic() - began < 10
        assert done.out == "7\n", done
        assert "plan changed: nodes.ticket: args" in done.err, done
        assert "\nIt keeps results of: charge\n" in done.err, done
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed"])


@test
def a_job_that_was_retried_names_its_newest_retry_and_no_other_command():
    with home() as h:
        said = broken(h)
        assert "\nTook effect: charge\n" in said.err, said
        said = expect(h.run(*printed_command(said.err)), 1)  # the file is as it was
        assert "already failed" not in said.err, "this command ran it"
        for words in (["run", "trip.yaml", "--job-id", "x1"], ["job", "x1"], ["trace", "x1"]):
            shown = h.run(*words)
            shown = shown.out + shown.err
            assert "Retried as job x1-retry-1 (failed)." in shown, shown
            assert re.search(r"aetheris retry x1-retry-1 (trip\.yaml|FILE) --job-id x1-retry-2\b", shown), shown
        fix(h)
        expect(h.run(*printed_command(h.run("run", "trip.yaml", "--job-id", "x1").err)), 0)
        for words in (["run", "trip.yaml", "--job-id", "x1"], ["job", "x1"], ["trace", "x1"],
                      ["run", "trip.yaml", "--job-id", "x1-retry-1"]):
            shown = h.run(*words)
            shown = shown.out + shown.err
            assert "Retried as job x1-retry-2 (completed)." in shown and "aetheris retry" not in shown, shown
        # A retry that exists is a repeated request, also when another came after it.
        (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
        expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x1-retry-1"), 1)
        fix(h)
        # Another retry would make the calls again that the last one made.
        for more in ([], ["--job-id", "x3"]):
            said = expect(h.run("retry", "x1", "trip.yaml", *more), 5)
            assert "x1-retry-2 (completed)" in said.err and "[effects_repeated]" in said.err, said
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed"])
        assert expect(h.run("retry", "x1", "trip.yaml", "--repeat-effects"), 0).out == "7\n"
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed", "printed"])
        assert "x1-retry-3 (completed)" in expect(h.run("job", "x1"), 0).out


@test
def a_retry_without_an_id_is_found_again():
    with home() as h:
        broken(h)
        fix(h)
        expect(h.run("retry", "x1", "trip.yaml"), 0)
        assert "Retried as job x1-retry-1 (completed)." in expect(h.run("job", "x1"), 0).out


REFUSED = """\
aetheris: 1
tools:
  pay: { command: ["sh", "-c", "echo paid >> paid; echo no JSON"], output: json, effect: at_most_once }
agents:
  pays: { plan: [ { id: charge, tool: pay } ] }
"""


@test
def a_failure_whose_call_took_effect_names_the_option_that_makes_it_again():
    with home() as h:
        (h.path / "trip.yaml").write_text(REFUSED, encoding="utf-8")
        said = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "Took effect: charge" in said.err, said
        assert "aetheris retry x1 trip.yaml --job-id x1-retry-1 --repeat charge\n" in said.err, said
        assert said.err.index("aetheris resolve x1 ") < said.err.index("aetheris retry x1 "), said
        expect(h.run(*printed_command(said.err)), 5)
        assert lines(h, "paid") == ["paid"]
        (h.path / "trip.yaml").write_text(REFUSED.replace("no JSON", "1"), encoding="utf-8")
        expect(h.run(*printed_command(said.err), "--repeat", "charge"), 0)
        assert lines(h, "paid") == ["paid", "paid"]


@test
def a_retry_whose_answer_was_lost_is_one_by_its_job_id():
    with home() as h:
        broken(h)
        fix(h)
        for _ in range(2):
            assert expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert (lines(h, "paid"), lines(h, "printed")) == (["paid"], ["printed"])
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 5)
        assert "already_exists" in refused.err and lines(h, "paid") == ["paid"], refused
        expect(h.run("verify", "x2"), 0)


@test
def the_printed_command_makes_one_job_whenever_it_is_killed():
    with home() as h:
        said = broken(h)
        fix(h)
        retry = printed_command(said.err)
        shutil.copytree(h.path, h.path.parent / (h.path.name + "-failed"))
        traced = expect(h.run(*retry, env={"AETHERIS_FAILPOINTS_TRACE": "1"}), 0)
        points = list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", traced.err)))
        assert len(points) >= 10, traced
        for point in points:
            shutil.rmtree(h.path)
            shutil.copytree(h.path.parent / (h.path.name + "-failed"), h.path)
            killed = h.run(*retry, env={"AETHERIS_FAILPOINTS": point.replace("@", "=exit@")})
            assert killed.code == 137, (point, killed)
            assert expect(h.run(*retry), 0).out == "7\n", point
            jobs = json.loads(expect(h.run("jobs", "--json"), 0).out)["jobs"]
            assert sorted(job["id"] for job in jobs) == ["x1", "x1-retry-1"], (point, jobs)
            assert lines(h, "paid") == ["paid"], point
        shutil.rmtree(h.path.parent / (h.path.name + "-failed"))


@test
def a_retry_that_fails_prints_a_command_with_the_next_id():
    with home() as h:
        said = broken(h)
        for number in (1, 2):
            words = printed_command(said.err)
            assert words[-2:] == ["--job-id", f"x1-retry-{number}"], words
            said = expect(h.run(*words), 1)
        fix(h)
        assert expect(h.run(*printed_command(said.err)), 0).out == "7\n"
        assert lines(h, "paid") == ["paid"]


@test
def a_changed_effect_is_repeated_only_when_its_node_is_dropped():
    with home() as h:
        broken(h)
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml"), 2)
        assert "plan_invalid" in refused.err and "charge" in refused.err, refused
        assert lines(h, "paid") == ["paid"]
        expect(h.run("retry", "x1", "trip.yaml", "--drop", "charge"), 0)
        assert lines(h, "paid") == ["paid", "paid"]


@test
def a_failure_at_a_kept_result_names_the_option_that_runs_its_node_again():
    with home() as h:
        text = FIXED.replace("    output: json\n    effect: at_most_once", "    effect: at_most_once")
        (h.path / "trip.yaml").write_text(text, encoding="utf-8")
        first = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "--drop" not in first.err, first
        (h.path / "trip.yaml").write_text(FIXED, encoding="utf-8")
        again = expect(h.run(*printed_command(first.err)), 1)
        assert "at node ticket" in again.err, again
        assert "To run node charge again, whose result was kept, add: --drop charge\n" in again.err, again
        for command in ("job", "trace"):
            assert "add: --drop charge" in expect(h.run(command, "x1-retry-1"), 0).out
        assert lines(h, "paid") == ["paid"]
        assert expect(h.run(*printed_command(again.err), "--drop", "charge"), 0).out == "7\n"
        assert lines(h, "paid") == ["paid", "paid"]


INPUT = """\
aetheris: 1
tools:
  print: { command: ["sh", "-c", "cat"], output: json, effect: read }
agents:
  trip:
    plan: [ { id: ticket, tool: print, args: { id: "ticket ${ .input.id }" } } ]
    output: "${ .steps.ticket.id }"
"""


@test
def a_failure_at_the_input_proposes_a_new_job_with_another_input():
    with home() as h:
        (h.path / "trip.yaml").write_text(INPUT, encoding="utf-8")
        said = expect(h.run("run", "trip.yaml", "--job-id", "x1", "order=43"), 1)
        assert "With another input, run: aetheris run trip.yaml id=VALUE order=VALUE\n" in said.err, said
        assert "After correcting the file, run: aetheris retry x1 trip.yaml" in said.err, said
        assert "aetheris run FILE trip id=VALUE order=VALUE\n" in expect(h.run("job", "x1"), 0).out
        assert "aetheris run FILE trip --input JSON\n" in expect(h.run("trace", "x1"), 0).out
        assert expect(h.run("run", "trip.yaml", "id=7", "order=43"), 0).out == "ticket 7\n"


@test
def run_says_when_the_file_differs_from_the_plan_of_the_job():
    with home() as h:
        broken(h)
        fix(h)
        again = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "trip.yaml, or a variable that it reads, differs from the plan of job x1" in again.err, again
        assert "aetheris retry x1 trip.yaml --job-id x1-retry-1" in again.err, again


@test
def retry_detached_leaves_the_job_to_another_process():
    with home() as h:
        broken(h)
        fix(h)
        made = expect(h.run("retry", "x1", "trip.yaml", "--detach", "--job-id", "x2"), 0)
        assert made.out == "x2\n" and lines(h, "printed") == [], made
        assert expect(h.run("run", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert lines(h, "paid") == ["paid"]


@test
def plan_of_a_failed_job_names_the_command_that_retries_it():
    with home() as h:
        broken(h)
        fix(h)
        for words in ([], ["--json"]):
            said = expect(h.run("plan", "x1", "trip.yaml", *words), 5)
            assert "job_terminal" in said.err + said.out, said
            retry = printed_command(said.err)
            assert retry == ["retry", "x1", "trip.yaml", "--job-id", "x1-retry-1"], said
        assert expect(h.run(*retry), 0).out == "7\n"
        said = expect(h.run("plan", "x1-retry-1", "trip.yaml"), 5)
        assert "job_terminal" in said.err and "aetheris retry" not in said.err, said
        assert lines(h, "paid") == ["paid"]


# `print` and the first item fail; `seat`, its dependent and the other items are committed after that.
BRANCHES = """\
aetheris: 1
tools:
  pay: { command: ["sh", "-c", "echo paid >> paid; echo 5"], effect: at_most_once }
  print: { command: ["sh", "-c", "touch failed; exit 3"], effect: at_most_once }
  count:
    command: ["sh", "-c", "while [ ! -e failed ]; do sleep 0.02; done; echo $0 >> counted; echo $0", "${ .args.what }"]
    effect: at_most_once
agents:
  trip:
    plan:
      - { id: charge, tool: pay }
      - { id: ticket, tool: print, needs: [charge] }
      - { id: seat, tool: count, needs: [charge], args: { what: seat } }
      - { id: meal, tool: count, needs: [seat], args: { what: meal } }
      - { id: bags, map: [1, 2], needs: [charge], do: { tool: count, args: { what: "bag-${ .item }" } } }
    output: "${ .steps.meal }"
"""
PRINTS = BRANCHES.replace("touch failed; exit 3", "echo printed >> printed; echo ok")


@test
def a_retry_keeps_what_branches_beside_the_failed_node_did():
    for place in ("here", "owner", "server"):
        with home() as h:
            (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
            expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
            before = lines(h, "counted")  # `meal` begins if the failure is recorded after `seat` is committed
            assert sorted(set(before) - {"meal"}) == ["bag-1", "bag-2", "seat"], before
            (h.path / "trip.yaml").write_text(PRINTS, encoding="utf-8")
            server = Server(h, "trip.yaml") if place != "here" else None
            env = server.env if place == "server" else None
            done = expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2", env=env), 0)
            assert done.out == "meal\n" and "plan changed: tools.print" in done.err, done
            counts = [lines(h, name) for name in ("paid", "printed", "counted")]
            assert counts[:2] == [["paid"], ["printed"]], counts
            assert sorted(counts[2]) == ["bag-1", "bag-2", "meal", "seat"], counts
            for job in ("x1", "x2"):
                expect(h.run("verify", job, env=env), 0)
            if server:
                expect(server.stop(), 0)


@test
def a_server_with_an_older_tool_refuses_a_retry_before_anything_is_written():
    with home() as h:
        (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
        server = Server(h, "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        (h.path / "trip.yaml").write_text(PRINTS, encoding="utf-8")
        for more in ([], ["--detach"]):
            for env in (None, server.env):
                said = expect(h.run("retry", "x1", "trip.yaml", *more, env=env), 5)
                assert "[needs_version]" in said.err and 'tool "print"' in said.err and 'agent "trip"' in said.err, said
                assert "restart it" in said.err and "`serve --watch`" in said.err, said
                assert (f"process {server.process.pid}" in said.err) == (env is None), said
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["x1"]
        expect(server.stop(), 0)
        server = Server(h, "trip.yaml")
        assert expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 0).out == "meal\n"
        expect(server.stop(), 0)
        counts = [lines(h, name) for name in ("paid", "printed", "counted")]
        assert (counts[:2], len(counts[2])) == ([["paid"], ["printed"]], 4), counts


@test
def a_server_that_lacks_a_tool_or_the_agent_refuses_a_retry_before_anything_is_written():
    with home() as h:
        (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
        server = Server(h, "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        (h.path / "new.yaml").write_text(PRINTS.replace("print", "emit"), encoding="utf-8")
        said = expect(h.run("retry", "x1", "new.yaml"), 5)
        assert "[needs_version]" in said.err and 'no tool "emit"' in said.err, said
        expect(server.stop(), 0)
        server = Server(h, "agents.yaml")
        said = expect(h.run("retry", "x1", "trip.yaml"), 5)
        assert "[needs_version]" in said.err and 'does not run agent "trip"' in said.err, said
        assert "serve this file too (`aetheris serve FILE… trip.yaml`)" in said.err, said
        assert "--watch" not in said.err, said
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["x1"]
        expect(server.stop(), 0)


@test
def a_server_that_reloads_the_file_takes_a_retry_with_it():
    with home() as h:
        (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
        server = Server(h, "--watch", "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        (h.path / "trip.yaml").write_text(PRINTS, encoding="utf-8")
        until(lambda: server.get("/api/agents/trip")[1]["version"] == 2)
        assert expect(h.run("retry", "x1", "trip.yaml"), 0).out == "meal\n"
        assert (lines(h, "paid"), lines(h, "printed"), len(lines(h, "counted"))) == (["paid"], ["printed"], 4)
        expect(server.stop(), 0)


@test
def a_server_with_an_older_tool_refuses_a_plan():
    with home() as h:
        text = BRANCHES.replace("tool: print, needs", "wait: { type: signal, key: go }, needs") + "    queue: q\n"
        text = text.replace("needs: [seat]", "needs: [ticket]")
        (h.path / "failed").touch()
        (h.path / "trip.yaml").write_text(text, encoding="utf-8")
        server = Server(h, "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 4)
        (h.path / "trip.yaml").write_text(text.replace("echo $0 >>", "echo new >>"), encoding="utf-8")
        said = expect(h.run("plan", "x1", "trip.yaml"), 5)
        assert "[needs_version]" in said.err and 'tool "count"' in said.err, said
        assert expect(h.run("job", "x1", "--json"), 0).json()["plan"] == 0
        expect(server.stop(), 0)


WHERE = """\
aetheris: 1
models:
  main: { provider: openai, base_url: "http://HOST/v1", model: m, retry: { max_attempts: 1 } }
tools:
  get_trip:
    http: { method: GET, url: "http://HOST/trips/${ .args.id }?token=${ .args.token // 1 }" }
    effect: read
    retry: { max_attempts: 1 }
  head: { http: { method: GET, url: "http://HOST/", headers: { X-Id: "id ${ .args.id }" } }, effect: read }
  post: { http: { method: POST, url: "http://HOST/", body: { a: ["n ${ .args.n }"] } }, effect: at_most_once }
  say:  { command: [echo, "it is ${ .args.word }"], effect: read }
  env:  { command: [echo], env: { WORD: "${ .args.word + 1 }" }, effect: read }
  json: { command: [echo, not json], output: json, effect: read }
  rule: { command: [echo, "{}"], output: json, result_schema: { type: object, required: [n] }, effect: read }
  take: { command: [echo], args_schema: { type: object, properties: { n: { type: integer } } }, effect: read }
agents:
  AGENT
"""
# The agent; what its failure names: node, tool, field, expression and cause, and its code.
FAILURES = {
    "args": ('plan: [ { id: a, tool: say, args: { list: [ { word: "to ${ .input.who }" } ] } } ]',
             "at node a (tool say): args.list[0].word: .input.who is null [expression_failed]"),
    "types": ('plan: [ { id: a, tool: say, args: { word: "${ .input.n + 1 | .x }" } } ]',
              "at node a (tool say): args.word: .input.n + 1 | .x: "),
    "when": ('plan: [ { id: a, tool: say, when: "${ .input.n | .x }", args: { word: x } } ]',
             "at node a (tool say): when: .input.n | .x: "),
    "output": ('plan: [ { id: a, tool: say, args: { word: x } } ]\n    output: { b: "see ${ .input.none }" }',
               ": output.b: .input.none is null [expression_failed]"),
    "map": ('plan: [ { id: m, map: "${ .input.n }", do: { tool: say, args: { word: x } } } ]',
            "at node m: map: .input.n: the value of `map` must be an array [expression_failed]"),
    "item": ('plan: [ { id: m, map: "${ [1, null] }", do: { tool: say, args: { word: "is ${ .item }" } } } ]',
             "at node m, item 1 (tool say): args.word: .item is null [expression_failed]"),
    "wait": ('plan: [ { id: w, wait: { type: signal, key: "k-${ .input.key }" } } ]',
             "at node w: wait.key: .input.key is null [expression_failed]"),
    "timer": ('plan: [ { id: w, wait: { type: timer, for: "${ .input.n }" } } ]',
              "at node w: wait.for: .input.n: "),
    "prompt": ('plan: [ { id: a, llm: { model: main, prompt: "Say ${ .input.word }" } } ]',
               "at node a (model main): prompt: .input.word is null [expression_failed]"),
    "loop": ('loop: { model: main, system: "You are ${ .input.who }", tools: [say] }',
             "at node loop (model main): system: .input.who is null [expression_failed]"),
    "planner": ('planner: { model: main, system: Plan., prompt: "Do ${ .input.what }", tools: [say] }',
                "at node planner (model main): prompt: .input.what is null [expression_failed]"),
    "schema": ('plan: [ { id: a, tool: take, args: { n: "${ .input.word // .input.text }" } } ]',
               "at node a (tool take): args.n: .input.word // .input.text: "),
    "url": ('plan: [ { id: a, tool: get_trip, args: { x: 1 } } ]',
            "at node a (tool get_trip): http.url: .args.id is null [request_invalid]"),
    "headers": ('plan: [ { id: a, tool: head } ]',
                "at node a (tool head): http.headers.X-Id: .args.id is null [request_invalid]"),
    "body": ('plan: [ { id: a, tool: post } ]',
             "at node a (tool post): http.body.a[0]: .args.n is null [request_invalid]"),
    "command": ('plan: [ { id: a, tool: say } ]',
                "at node a (tool say): command[1]: .args.word is null [request_invalid]"),
    "env": ('plan: [ { id: a, tool: env, args: { word: x } } ]',
            "at node a (tool env): env: WORD: .args.word + 1: "),
    "status": ('plan: [ { id: a, tool: get_trip, args: { id: "a b", token: geheim } } ]',
               "at node a (tool get_trip): GET HOST/trips/a%20b answered 404: no such trip [http_404]"),
    "connect": ('plan: [ { id: a, tool: get_trip, args: { id: 7, token: geheim } } ]',
                "at node a (tool get_trip): GET HOST/trips/7: "),
    "broken": ('plan: [ { id: a, tool: json } ]', "at node a (tool json): the call succeeded, but "),
    "result": ('plan: [ { id: a, tool: rule } ]', "at node a (tool rule): the call succeeded, but "),
    "model": ('plan: [ { id: a, llm: { model: main, prompt: Hi } } ]',
              "at node a (model main): the server answered 404: no such trip; check `base_url` (HOST) and `model` "
              "(tried once) [http_404]"),
}


class NotFound(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"no such trip"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def nothing_found():
    """HOST of a server that answers 404."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFound)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fails(h, name, agent, host):
    """The job's failure and what `run` printed; the printed commands are run verbatim."""
    text = WHERE.replace("AGENT", f"{name}:\n    {agent}").replace("HOST", host)
    (h.path / f"{name}.yaml").write_text(text, encoding="utf-8")
    run = expect(h.run("run", f"{name}.yaml", "--job-id", name, "--input", '{"n": 1, "text": "t"}'), 1)
    details = shlex.split(re.search(r"^Details: aetheris (.*)$", run.err, re.M)[1])
    traced = expect(h.run(*details), 0)
    retried = expect(h.run(*printed_command(run.err)), 1)
    line = re.search(r"^job \S+ failed(.*)$", run.err, re.M)[1]
    assert re.search(r"^job \S+ failed(.*)$", retried.err, re.M)[1] == line, (run, retried)
    return line.replace(host, "HOST"), traced, run


@test
def a_failure_names_node_tool_field_expression_and_the_next_command():
    with home() as h, nothing_found() as host:
        for name, (agent, wanted) in FAILURES.items():
            at = "127.0.0.1:1" if name == "connect" else host
            line, traced, run = fails(h, name, agent, at)
            assert line.lstrip().startswith(wanted), (name, line)
            assert re.search(r" \[[a-z0-9_]+\]$", line), line
            assert "geheim" not in run.err and "token=" not in run.err, run
            error = json.loads(expect(h.run("job", name, "--json"), 0).out)["error"]
            summary = error["summary"].replace(at, "HOST")
            assert line == (" at " if error["node_id"] else ": ") + f"{summary} [{error['code']}]", (line, error)
            shown = expect(h.run("job", name), 0)
            assert error["summary"] in shown.out and f"aetheris trace {name}" in shown.out, shown
            squeezed = "".join(traced.out.split())
            assert "".join(error["summary"].split()) in squeezed, (error, traced)
            followed = expect(h.run("events", name, "-f"), 0)
            assert error["summary"] in followed.err, followed
            listed = expect(h.run("jobs"), 0).out
            assert f"{error['code']}: {error['summary']}"[:50] in listed, listed


@test
def the_members_of_a_failure_are_null_where_they_do_not_apply():
    with home() as h, nothing_found() as host:
        wanted = {
            "item": {"node_id": "m", "item": 1, "turn": None, "tool": "say", "model": None, "field": "args.word",
                     "expression": ".item"},
            "output": {"node_id": None, "item": None, "turn": None, "tool": None, "model": None,
                       "field": "output.b", "expression": ".input.none"},
            "loop": {"node_id": "loop", "item": None, "turn": None, "tool": None, "model": "main", "field": "system",
                     "expression": ".input.who"},
            "status": {"node_id": "a", "item": None, "turn": None, "tool": "get_trip", "model": None, "field": None,
                       "expression": None},
        }
        for name, members in wanted.items():
            fails(h, name, FAILURES[name][0], host)
            error = json.loads(expect(h.run("job", name, "--json"), 0).out)["error"]
            assert {k: error[k] for k in members} == members, error
            nodes = json.loads(expect(h.run("trace", name, "--json"), 0).out)["nodes"]
            if name == "item":
                assert nodes[0]["items"][1]["error"]["expression"] == ".item", nodes
            expect(h.run("verify", name), 0)


@test
def job_prints_why_a_job_is_blocked_on_stdout():
    with home() as h:
        blocked = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        assert "aetheris signal w go-w" in blocked.err and blocked.out == "", blocked
        shown = expect(h.run("job", "w"), 0)
        assert "aetheris signal w go-w '{}'" in shown.out and shown.err == "", shown


@test
def a_timer_and_a_wait_are_no_crash_in_the_trace():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        expect(h.run("signal", "w", "go-w", "1"), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "w", "asks"), 0)
        traced = expect(h.run("trace", "w"), 0).out
        assert "attempt" not in traced and "replayed" not in traced and "key " not in traced, traced
        assert len(json.loads(expect(h.run("trace", "w", "--json"), 0).out)["attempts"]) == 2
        assert " · invocation " in expect(h.run("trace", "w", "-v"), 0).out


# ---------------------------------------------------------------- retries without `retry` in the file

RETRIES = """\
aetheris: 1
tools:
  look: { http: { method: GET, url: "${ env.AT }/look" }, effect: read }
  once: { http: { method: GET, url: "${ env.AT }/once" }, effect: read, retry: { max_attempts: 1 } }
  pay: { http: { method: POST, url: "${ env.AT }/pay" }, effect: at_most_once }
  mark: { http: { method: POST, url: "${ env.AT }/mark" }, effect: idempotent }
models:
  main: { provider: openai, base_url: "${ env.AT }/v1", model: m, stream: false }
agents:
  ask: { plan: [ { id: a, llm: { model: main, prompt: Hi } } ], output: "${ .steps.a.text }" }
  chat: { loop: { model: main, tools: [look] } }
  few: { budget: { model_calls: 2 }, plan: [ { id: a, llm: { model: main, prompt: Hi } } ], output: "${ .steps.a.text }" }
  soon: { deadline: 1500ms, plan: [ { id: a, llm: { model: main, prompt: Hi } } ] }
  look: { plan: [ { id: a, tool: look } ], output: "${ .steps.a }" }
  once: { plan: [ { id: a, tool: once } ] }
  pay: { plan: [ { id: a, tool: pay } ] }
  mark: { plan: [ { id: a, tool: mark } ] }
"""


class Upstream(http.server.ThreadingHTTPServer):
    """A model and a web service. `answers`: statuses in order, then 200. Records the time of each request."""

    def __init__(self, *answers, retry_after=None):
        super().__init__(("127.0.0.1", 0), UpstreamRequest)
        self.daemon_threads = True
        self.answers, self.retry_after, self.times = list(answers), retry_after, []
        self.env = {"AT": f"http://127.0.0.1:{self.server_port}"}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class UpstreamRequest(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.do_GET()

    def do_GET(self):
        upstream = self.server
        upstream.times.append(time.monotonic())
        status = upstream.answers.pop(0) if upstream.answers else 200
        body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        text = json.dumps(body if status == 200 else {"error": {"message": "not now"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if status != 200 and upstream.retry_after is not None:
            self.send_header("Retry-After", str(upstream.retry_after))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def tries(h, job):
    """The tries of a job, as its log has them."""
    events = expect(h.run("events", job, "--json"), 0).json()["events"]
    return [e["payload"]["outcome"] for e in events if e["type"] == "tool_invocation_finished"]


def retries(h, agent, upstream, code):
    (h.path / "agents.yaml").write_text(RETRIES, encoding="utf-8")
    words = ["--input", '{"message": "Hi"}'] if agent == "chat" else []
    done = expect(h.run("run", "agents.yaml", agent, "--job-id", "r", *words, env=upstream.env), code)
    expect(h.run("verify", "r"), 0)
    return done


@test
def a_model_is_retried_by_default_as_its_server_asks():
    for agent in ("ask", "chat"):
        with home() as h, Upstream(429, 429, retry_after=1) as upstream:
            assert "Hello." in retries(h, agent, upstream, 0).out
            assert len(upstream.times) == 3 and tries(h, "r")[-1] == "success" and len(tries(h, "r")) == 3, upstream.times
            waits = [b - a for a, b in zip(upstream.times, upstream.times[1:])]
            assert all(1 <= wait < 9 for wait in waits), waits
            trace = expect(h.run("trace", "r"), 0).out
            assert all(f"try {n}" in trace for n in (1, 2, 3)) and "http_429" in trace, trace


@test
def a_failure_that_persists_ends_after_four_tries():
    with home() as h, Upstream(*[529] * 9) as upstream:
        assert "(tried 4 times)" in retries(h, "ask", upstream, 1).err
        assert len(upstream.times) == 4, upstream.times


@test
def a_read_tool_is_retried_by_default():
    with home() as h, Upstream(503) as upstream:
        assert "Hello." in retries(h, "look", upstream, 0).out
        assert len(upstream.times) == 2 and len(tries(h, "r")) == 2, upstream.times


@test
def a_definitive_error_is_not_retried():
    for agent, status in (("ask", 401), ("ask", 400), ("ask", 413), ("look", 404), ("look", 403)):
        with home() as h, Upstream(status) as upstream:
            retries(h, agent, upstream, 1)
            assert len(upstream.times) == 1, (agent, status, upstream.times)


@test
def one_try_in_the_file_and_tools_with_a_side_effect_have_no_default():
    # The at_most_once call of unknown outcome is not repeated: the job waits for an operator.
    for agent, code in (("once", 1), ("pay", 4), ("mark", 4)):
        with home() as h, Upstream(503, retry_after=0) as upstream:
            retries(h, agent, upstream, code)
            assert len(upstream.times) == 1, (agent, upstream.times)


@test
def a_retry_counts_in_the_budget_and_ends_with_the_deadline():
    with home() as h, Upstream(503, 503, 503, retry_after=0) as upstream:
        retries(h, "few", upstream, 4)
        assert len(upstream.times) == 2, upstream.times
        shown = expect(h.run("job", "r", "--json"), 0).json()
        assert shown["usage"]["model_calls"] == 2, shown
    with home() as h, Upstream(*[429] * 9, retry_after=30) as upstream:
        began = time.monotonic()
        assert "deadline_exceeded" in retries(h, "soon", upstream, 1).err
        assert len(upstream.times) == 1 and time.monotonic() - began < 20, upstream.times


# ---------------------------------------------------------------- several commands in one folder


@test
def a_second_run_hands_its_job_to_the_first_and_waits():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        done = expect(h.run("run", "agents.yaml", "echo", "n:=1", "--json"), 0)
        assert done.json()["status"] == "completed" and done.json()["result"] == {"n": 1}, done
        assert f"runs in process {first.pid}, which owns the store" in done.err, done
        failed = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert "no_money" in failed.err and "aetheris retry f agents.yaml" in failed.err, failed
        asks = expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        assert "aetheris signal a go-a" in asks.err, asks
        h.release_hold()
        assert expect(h.end(first), 0).out == "held\n"


@test
def when_the_first_run_is_killed_the_second_takes_over():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds_once", "--job-id", "r")
        h.wait_for_hold()
        second = h.start("run", "agents.yaml", "sleeps", "--job-id", "s")
        until(lambda: h.run("job", "s").code == 0)
        third = h.start("run", "agents.yaml", "holds", "--only", "--job-id", "t")
        h.wait_for_hold(2)
        first.kill()
        first.wait()
        h.release_hold()
        assert expect(h.end(second), 0).json() == {"woke": True}
        assert expect(h.end(third), 0).out == "held\n"
        events = expect(h.run("events", "s", "--json"), 0).json()["events"]
        assert [e["type"] for e in events].count("tool_invocation_started") == 1, events
        # A call at most once is not repeated: its outcome is unknown, or its program finished and was heard.
        assert len(lines(h, "began.txt")) <= 4, lines(h, "began.txt")
        for job in ("r", "s", "t"):
            expect(h.run("verify", job), 0)


@test
def an_effect_happens_once_when_the_owner_is_killed():
    with home() as h:
        (h.path / "once.yaml").write_text("""
aetheris: 1
tools:
  pay: { command: ["sh", "-c", "echo paid >> paid; echo ok"], effect: at_most_once }
  hold: { command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done"], effect: read }
agents:
  buys: { plan: [ { id: pay, tool: pay }, { id: h, tool: hold, needs: [pay] } ], output: "${ .steps.pay }" }
""", encoding="utf-8")
        first = h.start("run", "once.yaml", "--job-id", "a")
        h.wait_for_hold()
        second = h.start("run", "once.yaml")
        h.wait_for_hold(2)
        first.kill()
        first.wait()
        h.wait_for_hold(3)
        h.release_hold()
        assert expect(h.end(second), 0).out == "ok\n"
        assert lines(h, "paid") == ["paid", "paid"], "one for each job"
        jobs = expect(h.run("jobs", "--json"), 0).json()["jobs"]
        assert len(jobs) == 2 and {j["status"] for j in jobs} == {"completed"}, jobs


@test
def two_runs_that_start_at_once_both_end_well():
    with home() as h:
        runs = [h.start("run", "agents.yaml", "echo", f"n:={n}") for n in range(4)]
        for n, run in enumerate(runs):
            assert expect(h.end(run), 0).json() == {"n": n}
        assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 4


@test
def an_owner_that_does_not_run_the_agent_is_named():
    with home() as h:
        first = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        (h.path / "trip.yaml").write_text(BROKEN, encoding="utf-8")
        said = expect(h.run("run", "trip.yaml"), 5)
        assert f"process {first.pid} owns the store and does not run agent \"trip\"" in said.err, said
        assert "serve this file too (`aetheris serve FILE… trip.yaml`)" in said.err, said
        text = (h.path / "agents.yaml").read_text(encoding="utf-8")
        (h.path / "new.yaml").write_text(text.replace('code: "no_money"', 'code: "no_gold"'), encoding="utf-8")
        said = expect(h.run("run", "new.yaml", "fails"), 5)
        assert "runs another version of agent \"fails\"" in said.err, said
        h.release_hold()
        expect(h.end(first), 0)
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["r"]
        assert "expression_failed" in expect(h.run("run", "trip.yaml"), 1).err


@test
def run_announces_the_older_jobs_that_it_resumes():
    with home() as h:
        for job in ("a", "b"):
            expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", job), 0)
        said = expect(h.run("run", "agents.yaml", "echo", "--only"), 0)
        assert "resuming" not in said.err, said
        said = expect(h.run("run", "agents.yaml", "echo"), 0)
        assert re.search(r"^resuming 2 unfinished jobs: (a, b|b, a); use --only to skip$", said.err, re.M), said
        assert "resuming" not in expect(h.run("run", "agents.yaml", "echo"), 0).err


# ---------------------------------------------------------------- the conversation of a job

LED_BY_A_MODEL = """\
aetheris: 1
tools:
  get_order:
    description: Read an order
    command: ["sh", "-c", "echo began >> began; while [ ! -e go ]; do sleep 0.02; done; echo '{\\"id\\":\\"43\\",\\"total\\":12}'"]
    output: json
    effect: read
  refund:
    description: Refund an order
    command: ["sh", "-c", "echo paid >> paid; echo '{\\"receipt\\": 7}'"]
    output: json
    effect: at_most_once
models:
  main:
    provider: openai
    base_url: "${ env.MODELS }/v1"
    api_key: "secret:MODEL_KEY"
    model: refund
    price: { input: "1", output: "2" }
agents:
  helper: { loop: { model: main, system: You are kind., tools: [get_order, refund] } }
"""


@test
def a_transcript_shows_the_conversation_of_a_running_and_a_finished_job():
    with contextlib.closing(Desk(["sk-first-hour"], SCENARIOS / "refund.json")) as desk:
        (desk.path / "agents.yaml").write_text(LED_BY_A_MODEL, encoding="utf-8")
        desk.env |= {"MODELS": desk.open_models(), "MODEL_KEY": "sk-first-hour"}
        piped = desk.path / "piped.txt"
        begin = {"cwd": desk.path, "env": desk.env, "stdin": subprocess.DEVNULL}
        with open(piped, "wb") as out, open(desk.path / "run.txt", "wb") as rest:
            run = subprocess.Popen([desk.program, "run", "agents.yaml", "--message", "Refund order 43", "--job-id", "c"], stdout=rest,
                                   stderr=rest, **begin)
            follow = None
            try:
                until(lambda: lines(desk, "began"))
                follow = subprocess.Popen([desk.program, "transcript", "c", "-f"], stdout=out, stderr=rest, **begin)
                until(lambda: "→ get_order" in piped.read_text(encoding="utf-8"))
                text = piped.read_text(encoding="utf-8")
                assert text.startswith("job c · agent helper · running · 1 model answer · 1 tool call · "), text
                assert "← get_order" not in text and "turn 2" not in text and lines(desk, "paid") == [], text
                assert follow.poll() is None
                (desk.path / "go").touch()
                codes = run.wait(PATIENCE), follow.wait(PATIENCE)
                assert codes == (0, 0), (codes, (desk.path / "run.txt").read_text(encoding="utf-8"))
            finally:
                for process in filter(None, (run, follow)):
                    process.kill()
                    process.wait()
        assert lines(desk, "paid") == ["paid"]
        finished = desk.run("transcript", "c", code=0).stdout
        head, _, body = finished.partition("\n")
        assert re.fullmatch(r"job c · agent helper · completed · 3 model answers · 2 tool calls · [\d,]+ tokens · "
                            r"cost 0\.\d+", head), head
        turn = r"turn {} · model main.* · [\d,]+ tokens · cost 0\.\d+ · \d+ ms\n"
        assert re.fullmatch(r'\[input\] \{"message":"Refund order 43"\}\n\nnode loop\n\[system\] You are kind\.\n'
                            r"\[user\] Refund order 43\n" + turn.format(1) +
                            r'→ get_order \{"id":"43"\}  \(read\)\n← get_order \{"id":"43","total":12\}  \d+ ms\n' +
                            turn.format(2) + r"\[assistant\] The order exists\. I request the refund\.\n"
                            r'→ refund \{"amount":12,"order":"43"\}  \(at_most_once\)\n← refund \{"receipt":7\}  \d+ ms\n' +
                            turn.format(3) + r"\[assistant\] 12 EUR was refunded for order 43\.\n\n\[completed\] .*\n", body), body
        # What was followed is the same, between the heads of its beginning and its end.
        assert piped.read_text(encoding="utf-8").partition("\n")[2] == f"{body}\n{head}\n"


# ---------------------------------------------------------------- where the store is


@test
def the_store_of_a_parent_folder_is_found():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        assert f"created store at {h.path.resolve()}/.aetheris/aetheris.db\n" in said.err, said
        assert "created store" not in expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0).err
        below = h.path / "x" / "y"
        below.mkdir(parents=True)
        top, h.path = h.path, below
        try:
            assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 2
            said = expect(h.run("run", "../../agents.yaml", "asks", "--job-id", "c"), 4)
            assert "created store" not in said.err and "--store" not in said.err, said
            for words in (["job", "c"], ["doctor"], ["approvals"], ["signal", "c", "go-c", "1"],
                          ["run", "../../agents.yaml", "--job-id", "c"]):
                expect(h.run(*words), 0)
            assert list(below.iterdir()) == []
            # The home folder is searched only when it is the current one.
            said = expect(h.run("jobs", env={"HOME": str(top)}), 3)
            assert "there is no store in this folder or a parent" in said.err, said
        finally:
            h.path = top
        expect(h.run("jobs", env={"HOME": str(top)}), 0)


@test
def commands_that_only_read_create_no_store():
    with home() as h:
        for words in (["jobs"], ["jobs", "--stuck"], ["approvals"], ["job", "a"], ["events", "a"], ["trace", "a"],
                      ["verify", "a"], ["replay", "a"], ["inspect"], ["audit"], ["keys", "list"], ["cancel", "a"],
                      ["backup", "copy.db"], ["prune", "--older-than", "1d"]):
            said = h.run(*words)
            assert said.code == 3, (words, said)
            assert expect(h.run(*words, "--json"), 3).json()["code"] == "not_found", words
        expect(h.run("check", "agents.yaml"), 0)
        expect(h.run("doctor"), 0)
        assert sorted(p.name for p in h.path.iterdir()) == ["agents.yaml"]


@test
def a_mistyped_path_of_a_store_creates_nothing():
    with home() as h:
        for words in (["run", "agents.yaml", "echo"], ["serve", "agents.yaml", "--listen", "127.0.0.1:0"],
                      ["run", "agents.yaml", "echo", "--detach"], ["migrate"], ["jobs"],
                      ["keys", "create", "--role", "viewer"]):
            said = expect(h.run(*words, "--store", "sqlite:dta/new/a.db"), 3)
            assert "dta/new" in said.err, said
        assert sorted(p.name for p in h.path.iterdir()) == ["agents.yaml"]


@test
def a_store_of_another_user_is_refused():
    with home() as h:
        if os.geteuid() != 0:
            return  # only root can give a folder away
        expect(h.run("run", "agents.yaml", "echo"), 0)
        below = h.path / "x"
        below.mkdir()
        os.chown(h.path / ".aetheris", 12345, 12345)
        for folder in (h.path, below):
            for words in (["jobs"], ["run", str(h.path / "agents.yaml"), "echo"]):
                done = subprocess.run([h.program, *words], cwd=folder, env=h.env, capture_output=True, text=True)
                assert done.returncode == 2 and "belongs to another user (uid 12345)" in done.stderr, done
        os.chown(h.path / ".aetheris", 0, 0)
        # A link of another user to our own store is not followed.
        (below / ".aetheris").symlink_to(h.path / ".aetheris")
        os.lchown(below / ".aetheris", 12345, 12345)
        done = subprocess.run([h.program, "jobs"], cwd=below, env=h.env, capture_output=True, text=True)
        assert done.returncode == 2 and "belongs to another user" in done.stderr, done


# ---------------------------------------------------------------- input


@test
def the_input_is_given_as_words():
    with home() as h:
        said = expect(h.run("run", "agents.yaml", "echo", "a=b=c", 'list:=[1, {"x": null}]', "empty=", "--message", "hi",
                            "--input", '{"n": 1}', "--job-id", "i"), 0)
        assert said.json() == {"a": "b=c", "empty": "", "list": [1, {"x": None}], "message": "hi", "n": 1}
        expect(h.run("run", "agents.yaml", "echo", "n:=2", "--job-id", "i"), 5)
        (h.path / "one.yaml").write_text(
            "aetheris: 1\ntools: { echo: { native: echo, effect: read } }\n"
            "agents: { one: { plan: [ { id: s, tool: echo, args: { x: \"${ .input }\" } } ], output: \"${ .steps.s.x }\" } }\n",
            encoding="utf-8")
        assert expect(h.run("run", "one.yaml", "name=Ada"), 0).json() == {"name": "Ada"}
        assert expect(h.run("run", "one.yaml", "--message", "hello"), 0).json() == {"message": "hello"}
        assert expect(h.run("run", "one.yaml", "--dry-run", "--json", "name=Ada"), 0).json()["input"] == {"name": "Ada"}
        for words, named in ((["a=1", "a=2"], '"a"'), (["n:=1", "--input", '{"n":2}'], '"n"'),
                             (["message=x", "--message", "y"], '"message"'), (["a=1", "--input", "[1]"], "--input"),
                             (["--message", "x", "--input", "5"], "--input"), (["=x"], "KEY=VALUE"),
                             (["a=1", "stray"], '"stray"'), (["a:={"], "a:=")):
            said = expect(h.run("run", "agents.yaml", "echo", *words), 2)
            assert named in said.err, (words, said)


# ---------------------------------------------------------------- approve now?

ASKS = """\
aetheris: 1
tools:
  pay:
    command: ["sh", "-c", "echo paid >> paid; echo ok"]
    effect: at_most_once
    approval: required
agents:
  buys: { plan: [ { id: pay, tool: pay, args: { amount: 5 } } ], output: "${ .steps.pay }" }
"""


class OnTerminal:
    """A command whose stdin, stdout and stderr are a terminal."""

    def __init__(self, h, *words, out=None):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(h.path)
            os.execve(h.program, [h.program, *words], {**h.env, "TERM": "dumb"})
        self.text = ""

    def read(self):
        if not select.select([self.master], [], [], PATIENCE)[0]:
            raise AssertionError("no output: " + self.text)
        try:
            part = os.read(self.master, 65536).decode()
        except OSError:
            return False
        self.text += part
        return part != ""

    def until(self, words):
        while words not in self.text:
            assert self.read(), self.text

    def type(self, text):
        os.write(self.master, text.encode())

    def end(self):
        while self.read():
            pass
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def asking(h, *words):
    (h.path / "buys.yaml").write_text(ASKS, encoding="utf-8")
    return OnTerminal(h, *(words or ("run", "buys.yaml", "--job-id", "b")))


@test
def yes_at_the_prompt_approves_and_the_run_continues():
    with home() as h:
        run = asking(h)
        run.until("approve now? [y/N] ")
        assert 'waits for approval of the call of tool "pay"' in run.text and '"amount": 5' in run.text, run.text
        assert lines(h, "paid") == []
        run.type("y\n")
        assert run.end() == 0 and run.text.rstrip().endswith("ok"), run.text
        assert lines(h, "paid") == ["paid"]
        events = expect(h.run("events", "b", "--json"), 0).json()["events"]
        assert any("cli:" in json.dumps(e) and "approve" in json.dumps(e) for e in events), events


@test
def anything_else_at_the_prompt_leaves_the_call_pending():
    with home() as h:
        for answer in ("n\n", "\n", "yep\n", "\x04"):
            run = asking(h)
            run.until("approve now? [y/N] ")
            run.type(answer)
            assert run.end() == 4, run.text
            assert "aetheris approve b." in run.text and "job b is waiting" in run.text, run.text
        assert lines(h, "paid") == []
        expect(h.run("approve", expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]), 0)


@test
def ctrl_c_at_the_prompt_leaves_the_call_pending():
    with home() as h:
        run = asking(h)
        run.until("approve now? [y/N] ")
        run.type("\x03")
        assert run.end() == 128 + signal.SIGINT, run.text
        assert "aetheris approve b." in run.text, run.text
        assert len(expect(h.run("approvals", "--json"), 0).json()["approvals"]) == 1


@test
def nothing_is_prompted_in_a_pipe_or_with_json():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKS, encoding="utf-8")
        said = expect(h.run("run", "buys.yaml", "--job-id", "b", stdin="y\n"), 4)
        assert "approve now?" not in said.err and "aetheris approve b." in said.err, said
        run = asking(h, "run", "buys.yaml", "--job-id", "b", "--json")
        assert run.end() == 4 and "approve now?" not in run.text, run.text
        assert lines(h, "paid") == []


@test
def a_job_at_the_owner_prompts_too():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKS.replace("agents:", """\
  hold: { command: ["sh", "-c", "echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done"], effect: read }
agents:
  holds: { plan: [ { id: h, tool: hold } ] }"""), encoding="utf-8")
        first = h.start("run", "buys.yaml", "holds")
        h.wait_for_hold()
        run = OnTerminal(h, "run", "buys.yaml", "buys", "--job-id", "b")
        run.until("approve now? [y/N] ")
        run.type("y\n")
        assert run.end() == 0 and lines(h, "paid") == ["paid"], run.text
        h.release_hold()
        expect(h.end(first), 0)


@test
def a_retry_with_a_file_prompts_too():
    with home() as h:
        (h.path / "buys.yaml").write_text(ASKS.replace("amount: 5", 'amount: "${ .input.no.way | floor }"'), encoding="utf-8")
        expect(h.run("run", "buys.yaml", "--job-id", "b"), 1)
        run = asking(h, "retry", "b", "buys.yaml", "--job-id", "c")
        run.until("approve now? [y/N] ")
        run.type("y\n")
        assert run.end() == 0 and lines(h, "paid") == ["paid"], run.text


PARTS = """\
aetheris: 1
tools:
  say: { command: ["cat"], output: json, effect: read }
agents:
  parts:
    plan:
      - { id: each, map: [1, 2], do: { tool: say, args: { n: "${ .item }" } } }
      - { id: asks, wait: { type: signal, key: go }, needs: [each] }
      - { id: never, tool: say, needs: [each], when: "${ false }" }
      - { id: bad, tool: say, needs: [asks], args: { n: "${ .input.a.b | floor }" } }
"""


@test
def replay_and_trace_name_each_part_in_full():
    with home() as h:
        (h.path / "parts.yaml").write_text(PARTS, encoding="utf-8")
        told = expect(h.run("run", "parts.yaml", "--job-id", "p", "-v"), 4).err
        for line in (r"✓ each\[0\] +say \{\"n\":1\}", r"✓ each\[1\] +say \{\"n\":2\}", r"✓ each +\d"):
            assert re.search(line, told), told
        before = expect(h.run("replay", "p"), 0).out
        assert re.search(r"\n  waits +node asks waits for a signal with the key go\n", before), before
        assert '"' not in before, before
        traced = expect(h.run("trace", "p"), 0).out
        assert re.search(r"asks +signal ", traced) and "…" not in traced.replace("… asks", ""), traced
        expect(h.run("signal", "p", "go"), 0)
        expect(h.run("run", "parts.yaml", "--job-id", "p"), 1)
        shown = expect(h.run("replay", "p"), 0).out
        rows = dict(line.split() for line in shown.splitlines() if len(line.split()) == 2 and line[0] != " ")
        assert rows == {"NODE": "STATE", "each": "done", "each[0]": "done", "each[1]": "done", "asks": "done",
                        "never": "skipped", "bad": "failed"}, shown


@test
def a_job_that_does_not_exist_is_reported_in_one_form():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "e"), 0)
        for command in ("job", "events", "trace", "transcript", "replay", "verify", "cancel"):
            missing = expect(h.run(command, "nope"), 3)
            assert "job nope in this store; `aetheris jobs` lists them [not_found]" in missing.err, (command, missing)


@test
def a_program_runs_in_the_folder_of_its_file():
    with home() as h:
        (h.path / "notes.txt").write_text("a note", encoding="utf-8")
        (h.path / "reads.yaml").write_text(
            'aetheris: 1\ntools: { read: { command: ["cat", "notes.txt"], effect: read } }\n'
            'agents: { a: { plan: [{ id: note, tool: read }], output: "${ .steps.note }" } }\n', encoding="utf-8")
        (h.path / "sub").mkdir()
        done = subprocess.run([h.program, "run", "../reads.yaml"], cwd=h.path / "sub", env=h.env, capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "a note\n"), done


if __name__ == "__main__":
    sys.exit(run_tests("first hour", TESTS, " ".join(sys.argv[1:])))
