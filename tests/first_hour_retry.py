#!/usr/bin/env python3
"""The first hour of a new user: an agent fails, its file is changed, and the printed command retries it.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  first_hour_retry.py [WORDS]   only tests whose name contains WORDS
"""
import json
import re
import shutil
import sys
import time

from shared.home import expect, home, run_tests, until
from shared.server import Server
from shared.trip import BROKEN, FIXED, fix, lines_of, printed_command, run_broken

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def the_printed_command_retries_with_the_changed_file():
    with home() as h:
        result = run_broken(h)
        fix(h)
        began = time.monotonic()
        done = expect(h.run(*printed_command(result.err)), 0)
        assert time.monotonic() - began < 10
        assert done.out == "7\n", done
        assert "plan changed: nodes.ticket: args" in done.err, done
        assert "\nIt keeps results of: charge\n" in done.err, done
        assert (lines_of(h, "paid"), lines_of(h, "printed")) == (["paid"], ["printed"])


@test
def a_job_that_was_retried_names_its_newest_retry_and_no_other_command():
    with home() as h:
        result = run_broken(h)
        assert "\nTook effect: charge\n" in result.err, result
        result = expect(h.run(*printed_command(result.err)), 1)  # the file is as it was
        assert "already failed" not in result.err, "this command ran it"
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
        # Another retry would repeat the calls of the last one.
        for more in ([], ["--job-id", "x3"]):
            result = expect(h.run("retry", "x1", "trip.yaml", *more), 5)
            assert "x1-retry-2 (completed)" in result.err and "[effects_repeated]" in result.err, result
        assert (lines_of(h, "paid"), lines_of(h, "printed")) == (["paid"], ["printed"])
        assert expect(h.run("retry", "x1", "trip.yaml", "--repeat-effects"), 0).out == "7\n"
        assert (lines_of(h, "paid"), lines_of(h, "printed")) == (["paid"], ["printed", "printed"])
        assert "x1-retry-3 (completed)" in expect(h.run("job", "x1"), 0).out


@test
def a_retry_without_a_job_id_is_shown_at_the_original_job():
    with home() as h:
        run_broken(h)
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
def a_failure_after_an_effect_names_the_option_that_repeats_the_call():
    with home() as h:
        (h.path / "trip.yaml").write_text(REFUSED, encoding="utf-8")
        result = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "Took effect: charge" in result.err, result
        assert "aetheris retry x1 trip.yaml --job-id x1-retry-1 --repeat charge\n" in result.err, result
        assert result.err.index("aetheris resolve x1 ") < result.err.index("aetheris retry x1 "), result
        expect(h.run(*printed_command(result.err)), 5)
        assert lines_of(h, "paid") == ["paid"]
        (h.path / "trip.yaml").write_text(REFUSED.replace("no JSON", "1"), encoding="utf-8")
        expect(h.run(*printed_command(result.err), "--repeat", "charge"), 0)
        assert lines_of(h, "paid") == ["paid", "paid"]


@test
def a_repeated_retry_with_a_job_id_creates_one_job():
    with home() as h:
        run_broken(h)
        fix(h)
        for _ in range(2):
            assert expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert (lines_of(h, "paid"), lines_of(h, "printed")) == (["paid"], ["printed"])
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 5)
        assert "already_exists" in refused.err and lines_of(h, "paid") == ["paid"], refused
        expect(h.run("verify", "x2"), 0)


@test
def the_printed_command_creates_one_job_whenever_it_is_killed():
    with home() as h:
        result = run_broken(h)
        fix(h)
        retry = printed_command(result.err)
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
            assert lines_of(h, "paid") == ["paid"], point
        shutil.rmtree(h.path.parent / (h.path.name + "-failed"))


@test
def a_retry_that_fails_prints_a_command_with_the_next_id():
    with home() as h:
        result = run_broken(h)
        for number in (1, 2):
            words = printed_command(result.err)
            assert words[-2:] == ["--job-id", f"x1-retry-{number}"], words
            result = expect(h.run(*words), 1)
        fix(h)
        assert expect(h.run(*printed_command(result.err)), 0).out == "7\n"
        assert lines_of(h, "paid") == ["paid"]


@test
def a_changed_effect_is_repeated_only_when_its_node_is_dropped():
    with home() as h:
        run_broken(h)
        (h.path / "trip.yaml").write_text(FIXED.replace("amount: 5", "amount: 6"), encoding="utf-8")
        refused = expect(h.run("retry", "x1", "trip.yaml"), 2)
        assert "plan_invalid" in refused.err and "charge" in refused.err, refused
        assert lines_of(h, "paid") == ["paid"]
        expect(h.run("retry", "x1", "trip.yaml", "--drop", "charge"), 0)
        assert lines_of(h, "paid") == ["paid", "paid"]


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
        assert lines_of(h, "paid") == ["paid"]
        assert expect(h.run(*printed_command(again.err), "--drop", "charge"), 0).out == "7\n"
        assert lines_of(h, "paid") == ["paid", "paid"]


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
def a_failure_caused_by_the_input_suggests_a_new_job_with_another_input():
    with home() as h:
        (h.path / "trip.yaml").write_text(INPUT, encoding="utf-8")
        result = expect(h.run("run", "trip.yaml", "--job-id", "x1", "order=43"), 1)
        assert "With another input, run: aetheris run trip.yaml id=VALUE order=VALUE\n" in result.err, result
        assert "After correcting the file, run: aetheris retry x1 trip.yaml" in result.err, result
        assert "aetheris run FILE trip id=VALUE order=VALUE\n" in expect(h.run("job", "x1"), 0).out
        assert "aetheris run FILE trip --input JSON\n" in expect(h.run("trace", "x1"), 0).out
        assert expect(h.run("run", "trip.yaml", "id=7", "order=43"), 0).out == "ticket 7\n"


@test
def run_reports_that_the_file_differs_from_the_plan_of_the_job():
    with home() as h:
        run_broken(h)
        fix(h)
        again = expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        assert "trip.yaml, or a variable that it reads, differs from the plan of job x1" in again.err, again
        assert "aetheris retry x1 trip.yaml --job-id x1-retry-1" in again.err, again


@test
def a_detached_retry_leaves_the_job_to_another_process():
    with home() as h:
        run_broken(h)
        fix(h)
        made = expect(h.run("retry", "x1", "trip.yaml", "--detach", "--job-id", "x2"), 0)
        assert made.out == "x2\n" and lines_of(h, "printed") == [], made
        assert expect(h.run("run", "trip.yaml", "--job-id", "x2"), 0).out == "7\n"
        assert lines_of(h, "paid") == ["paid"]


@test
def plan_of_a_failed_job_names_the_command_that_retries_it():
    with home() as h:
        run_broken(h)
        fix(h)
        for words in ([], ["--json"]):
            result = expect(h.run("plan", "x1", "trip.yaml", *words), 5)
            assert "job_terminal" in result.err + result.out, result
            retry = printed_command(result.err)
            assert retry == ["retry", "x1", "trip.yaml", "--job-id", "x1-retry-1"], result
        assert expect(h.run(*retry), 0).out == "7\n"
        result = expect(h.run("plan", "x1-retry-1", "trip.yaml"), 5)
        assert "job_terminal" in result.err and "aetheris retry" not in result.err, result
        assert lines_of(h, "paid") == ["paid"]


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
def a_retry_keeps_the_results_of_other_branches():
    for place in ("here", "owner", "server"):
        with home() as h:
            (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
            expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
            before = lines_of(h, "counted")  # `meal` begins if the failure is recorded after `seat` is committed
            assert sorted(set(before) - {"meal"}) == ["bag-1", "bag-2", "seat"], before
            (h.path / "trip.yaml").write_text(PRINTS, encoding="utf-8")
            server = Server(h, "trip.yaml") if place != "here" else None
            env = server.env if place == "server" else None
            done = expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2", env=env), 0)
            assert done.out == "meal\n" and "plan changed: tools.print" in done.err, done
            counts = [lines_of(h, name) for name in ("paid", "printed", "counted")]
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
                result = expect(h.run("retry", "x1", "trip.yaml", *more, env=env), 5)
                assert "[needs_version]" in result.err and 'tool "print"' in result.err and 'agent "trip"' in result.err, result
                assert "restart it" in result.err and "`serve --watch`" in result.err, result
                assert (f"process {server.process.pid}" in result.err) == (env is None), result
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["x1"]
        expect(server.stop(), 0)
        server = Server(h, "trip.yaml")
        assert expect(h.run("retry", "x1", "trip.yaml", "--job-id", "x2"), 0).out == "meal\n"
        expect(server.stop(), 0)
        counts = [lines_of(h, name) for name in ("paid", "printed", "counted")]
        assert (counts[:2], len(counts[2])) == ([["paid"], ["printed"]], 4), counts


@test
def a_server_that_lacks_a_tool_or_the_agent_refuses_a_retry_before_anything_is_written():
    with home() as h:
        (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
        server = Server(h, "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        (h.path / "new.yaml").write_text(PRINTS.replace("print", "emit"), encoding="utf-8")
        result = expect(h.run("retry", "x1", "new.yaml"), 5)
        assert "[needs_version]" in result.err and 'no tool "emit"' in result.err, result
        expect(server.stop(), 0)
        server = Server(h, "agents.yaml")
        result = expect(h.run("retry", "x1", "trip.yaml"), 5)
        assert "[needs_version]" in result.err and 'does not run agent "trip"' in result.err, result
        assert "serve this file too (`aetheris serve FILE… trip.yaml`)" in result.err, result
        assert "--watch" not in result.err, result
        assert [j["id"] for j in expect(h.run("jobs", "--json"), 0).json()["jobs"]] == ["x1"]
        expect(server.stop(), 0)


@test
def a_server_that_reloaded_the_file_accepts_a_retry():
    with home() as h:
        (h.path / "trip.yaml").write_text(BRANCHES, encoding="utf-8")
        server = Server(h, "--watch", "trip.yaml")
        expect(h.run("run", "trip.yaml", "--job-id", "x1"), 1)
        (h.path / "trip.yaml").write_text(PRINTS, encoding="utf-8")
        until(lambda: server.get("/api/agents/trip")[1]["version"] == 2)
        assert expect(h.run("retry", "x1", "trip.yaml"), 0).out == "meal\n"
        assert (lines_of(h, "paid"), lines_of(h, "printed"), len(lines_of(h, "counted"))) == (["paid"], ["printed"], 4)
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
        result = expect(h.run("plan", "x1", "trip.yaml"), 5)
        assert "[needs_version]" in result.err and 'tool "count"' in result.err, result
        assert expect(h.run("job", "x1", "--json"), 0).json()["plan"] == 0
        expect(server.stop(), 0)


if __name__ == "__main__":
    sys.exit(run_tests("first_hour_retry", TESTS, " ".join(sys.argv[1:])))
