#!/usr/bin/env python3
"""The output of commands: control characters, pipes and terminals, truncation, failed writes.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_output.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import re
import signal
import subprocess
import sys

from shared.home import PATIENCE, Result, expect, home, on_terminal, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_long_value_is_truncated_on_a_terminal_only():
    with home() as h:
        given = {"n": 1, "text": "x" * 5000}
        expect(h.run("run", "agents.yaml", "echo", "--input", json.dumps(given), "--job-id", "long"), 0)
        shown = on_terminal(h, "job", "long", env={"COLUMNS": "100", "NO_COLOR": "1"}).replace("\r\n", "\n")
        assert max(map(len, shown.splitlines())) <= 100 and shown.count("… (cut: --json has it all)\n") == 2, shown
        assert "x" * 5000 in expect(h.run("job", "long"), 0).out, "a pipe gets all of it"
        assert expect(h.run("job", "long", "--json"), 0).json()["input"] == given


@test
def control_characters_in_job_output_are_escaped():
    with home() as h:
        hostile = json.dumps({"n": 1, "x": "\x1b[2Jboo\x07\u202e"})
        result = expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", hostile), 0)
        for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["jobs"]):
            result = expect(h.run(*words), 0)
            for bad in ("\x1b", "\x07", "\u202e"):
                assert bad not in result.out + result.err, (words, result)


@test
def json_output_is_exact_and_has_no_raw_control_characters():
    with home() as h:
        given = {"n": 1, "x": "\x1b[2Jboo\x07\x7f\u0085\u202e\u2066\u200f tab\t line\n \u00e9 \U0001F642"}
        hostile = json.dumps(given)
        outs = [expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", hostile), 0).out]
        assert json.loads(outs[0]) == given, outs
        for words in (["run", "agents.yaml", "--job-id", "a", "--json"], ["job", "a", "--json"],
                      ["events", "a", "--json"], ["events", "a", "-f", "--json"], ["trace", "a", "--json"],
                      ["replay", "a", "--json"], ["verify", "a", "--json"]):
            outs.append(expect(h.run(*words), 0).out)
            for line in outs[-1].splitlines() if "-f" in words else [outs[-1]]:
                json.loads(line)
        assert json.loads(outs[1])["result"] == given and json.loads(outs[2])["input"] == given
        for out in outs:
            for bad in ("\x1b", "\x07", "\x7f", "\u0085", "\u202e", "\u2066", "\u200f"):
                assert bad not in out, out
            assert "\\x" not in out, out
        line = re.search(r"^  result +(.*)$", expect(h.run("job", "a"), 0).out, re.M)[1]
        assert json.loads(line) == given, line


@test
def a_failed_write_of_output_exits_with_7_and_is_reported():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":1}'), 0)

        def run_into(*words, out="/dev/full"):
            with open(out, "wb") as file:
                done = subprocess.run([h.program, *words], cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=file,
                                      stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
            return Result(done.returncode, "", done.stderr)

        for words in (["run", "agents.yaml", "echo", "--job-id", "b", "--input", '{"n":2}'], ["job", "a"],
                      ["job", "a", "--json"], ["jobs"], ["events", "a", "-f"], ["--help"], ["version"],
                      ["check", "agents.yaml"]):
            result = expect(run_into(*words), 7)
            assert "No space left on device" in result.err and result.err.count("error:") == 1, result
        assert expect(h.run("run", "agents.yaml", "--job-id", "b"), 0).json() == {"n": 2}  # the job itself was done
        expect(run_into("run", "agents.yaml", "fails", "--json"), 1)  # the more severe error is reported
        expect(run_into("job", "nobody", "--json"), 3)
        reader, writer = os.pipe()  # the reader is gone: end like every program in a pipe, without a message
        os.close(reader)
        try:
            done = subprocess.run([h.program, "events", "a"], cwd=h.path, env=h.env, stdin=subprocess.DEVNULL, stdout=writer,
                                  stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        finally:
            os.close(writer)
        assert done.returncode == 128 + signal.SIGPIPE and done.stderr == "", done
        # A closed stdout is not confused with another file of the process.
        done = subprocess.run(["sh", "-c", 'exec "$0" run agents.yaml echo --input \'{"n":3}\' >&-', h.program], cwd=h.path,
                              env=h.env, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        assert done.returncode == 7, done
        expect(h.run("run", "agents.yaml", "echo"), 0)


@test
def piped_output_is_complete_at_any_terminal_width():
    with home() as h:
        long = "x" * 700
        (h.path / "any.yaml").write_text("""
aetheris: 1
tools: { say: { native: echo, effect: read } }
agents: { any: { plan: [ { id: s, tool: say, args: { n: "${ .input.n }" } } ], output: "${ .steps.s }" } }
""")
        expect(h.run("run", "any.yaml", "any", "--job-id", "j" * 60, "--label", "team=" + "red" * 20,
                     "--input", json.dumps({"n": long})), 0)
        for words in (["jobs"], ["job", "j" * 60], ["trace", "j" * 60], ["events", "j" * 60], ["replay", "j" * 60],
                      ["inspect"], ["check", "agents.yaml"]):
            result = [expect(h.run(*words, env={"COLUMNS": columns}), 0).out for columns in ("40", "300")]
            assert result[0] == result[1] and "…" not in result[0], (words, result)
        assert long in h.run("job", "j" * 60).out and "red" * 20 in h.run("jobs").out
        # The arguments of a call that waits for approval, and of one whose outcome is unknown.
        (h.path / "asks.yaml").write_text("""
aetheris: 1
tools:
  pay: { native: echo, effect: at_most_once, approval: required }
  lost: { native: doubt, effect: at_most_once }
agents:
  pays: { plan: [ { id: p, tool: pay, args: { n: "${ .input.n }" } } ] }
  loses: { plan: [ { id: l, tool: lost, args: { message: "${ .input.n }" } } ] }
""")
        long = "y" * 5000
        for agent in ("pays", "loses"):
            result = expect(h.run("run", "asks.yaml", agent, "--only", "--job-id", agent, "--input",
                                  json.dumps({"n": long})), 4)
            assert long in result.err and "…" not in result.err, result.err[:400]
            assert long in h.run("job", agent).out
        assert long in h.run("jobs", "--in-doubt").out


@test
def a_table_on_a_narrow_terminal_omits_columns_and_never_wraps():
    with home() as h:
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "a-job-with-a-name"), 0)
        for columns in (40, 50, 60, 80, 120):
            for words in (["jobs"], ["trace", "a-job-with-a-name"]):
                shown = on_terminal(h, *words, env={"COLUMNS": str(columns), "NO_COLOR": "1"})
                lines = shown.replace("\r\n", "\n").splitlines()
                assert max(map(len, lines)) <= columns, (columns, shown)
        assert "━" in on_terminal(h, "trace", "a-job-with-a-name", env={"COLUMNS": "80", "NO_COLOR": "1"}), "bars stay"


@test
def colours_are_used_on_terminals_only():
    with home() as h:
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "f"), 0)
        h.env.pop("NO_COLOR", None)
        assert "\x1b[" in on_terminal(h, "trace", "f")
        assert "\x1b[" not in on_terminal(h, "trace", "f", env={"NO_COLOR": "1"})
        assert "\x1b[" not in expect(h.run("trace", "f"), 0).out


if __name__ == "__main__":
    sys.exit(run_tests("cli_output", TESTS, " ".join(sys.argv[1:])))
