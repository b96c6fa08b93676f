#!/usr/bin/env python3
"""The command line: usage, help, completion, errors and the checks of an agents file.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_usage.py [WORDS]   only tests whose name contains WORDS
"""
import re
import shlex
import shutil
import subprocess
import sys

from shared.home import PATIENCE, expect, home, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def version_and_help():
    with home() as h:
        for word in ("version", "--version"):
            assert re.match(r"aetheris \d+\.\d+\.\d+\n$", expect(h.run(word), 0).out)
        assert "nonsense" in expect(h.run("nonsense"), 2).err
        assert "version" in expect(h.run("version", "--json"), 0).json()
        text = expect(h.run("--help"), 0).out
        for command in ("init run check jobs job events trace replay verify signal message approvals "
                        "approve reject pause resume budget cancel resolve fork retry plan inspect completion "
                        "serve worker mcp keys migrate backup restore doctor version").split():
            assert re.search(rf"^  {command}\b", text, re.M), command
        for command in "exec".split():
            assert not re.search(rf"^  {command}\b", text, re.M), command


@test
def usage_errors_exit_with_2():
    with home() as h:
        for words in ([], ["nonsense"], ["job"], ["run"], ["run", "nowhere.yaml"], ["jobs", "--nonsense"],
                      ["jobs", "--store", "file.db"], ["jobs", "--store", "sqlite:"],
                      ["jobs", "--status", "asleep", "--store", "memory:"],
                      ["run", "agents.yaml"], ["run", "agents.yaml", "nobody"],
                      ["run", "agents.yaml", "echo", "--input", "{"],
                      ["run", "agents.yaml", "echo", "--label", "x"],
                      ["run", "agents.yaml", "echo", "--label", "a=1", "--label", "a=2"],
                      ["run", "agents.yaml", "echo", "--label", "a=1", "--label", "a=1"],
                      ["run", "agents.yaml", "echo", "--store", "memory:", "--detach"],
                      ["run", "agents.yaml", "echo", "--grace", "soon"],
                      ["run", "agents.yaml", "echo", "--job-id", "a b"],
                      ["run", "agents.yaml", "echo", "--durability", "none"]):
            result = expect(h.run(*words), 2)
            assert result.out == "", result
            assert result.err, words
        assert not h.store.exists()


@test
def commands_that_do_not_exist_yet_are_unsupported():
    with home() as h:
        for words in (["exec", "f"],):
            result = expect(h.run(*words, "--json"), 2)
            assert result.json()["code"] == "unsupported", result
            assert "unsupported" in result.err


@test
def errors_are_problem_objects_in_json_and_sentences_on_stderr():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo"), 0)
        result = expect(h.run("job", "nobody", "--json"), 3)
        body = result.json()
        assert body["code"] == "not_found" and body["status"] == 404 and body["title"] and body["detail"]
        assert "nobody" in result.err


@test
def check_reports_all_errors_with_their_positions():
    with home() as h:
        assert expect(h.run("check", "agents.yaml", "--json"), 0).json() == {"ok": True, "faults": []}
        expect(h.run("check", "agents.yaml"), 0)
        (h.path / "bad.yaml").write_text(
            "aetheris: 1\ntools:\n  a: { native: echo, efect: read }\nagents:\n  x:\n    plan:\n"
            "      - { id: one, tool: b }\n")
        result = expect(h.run("check", "bad.yaml", "--json"), 2)
        body = result.json()
        assert body["ok"] is False and len(body["faults"]) >= 2, body
        for fault in body["faults"]:
            assert {"code", "message", "file", "line", "column", "path", "suggestion"} <= set(fault), fault
            assert fault["file"] == "bad.yaml" and fault["line"] >= 1 and fault["column"] >= 1
        text = expect(h.run("check", "bad.yaml"), 2).out
        assert "bad.yaml:3:" in text and "effect" in text, text
        result = expect(h.run("run", "bad.yaml", "x", "--json"), 2)
        assert result.json()["code"] == "plan_invalid" and result.json()["faults"]
        assert not h.store.exists()


@test
def check_reports_a_tool_that_this_machine_cannot_run_with_its_position():
    with home() as h:
        (h.path / "bad.yaml").write_text(
            "aetheris: 1\ntools:\n  a: { command: [\"no-such-program\", \"-x\"], effect: read }\n"
            "  b: { command: [\"./nothing.sh\"], effect: read }\n"
            "  c: { command: [\"date\"], effect: read, cwd: nowhere }\n"
            "agents:\n  x: { plan: [ { id: one, tool: a } ] }\n")
        checked = expect(h.run("check", "bad.yaml", "--json"), 2).json()["faults"]
        assert [(f["code"], f["line"], f["column"], f["path"]) for f in checked] == [
            ("plan_invalid", 3, 18, "tools.a.command[0]"), ("plan_invalid", 4, 18, "tools.b.command[0]"),
            ("plan_invalid", 5, 46, "tools.c.cwd")], checked
        assert "no-such-program" in checked[0]["message"] and "PATH" in checked[0]["message"]
        result = expect(h.run("run", "bad.yaml", "--json"), 2)
        assert result.json()["code"] == "plan_invalid" and result.json()["faults"] == checked, result
        assert "bad.yaml:3:18: tools.a.command[0]: " in result.err, result
        assert not h.store.exists()


@test
def check_draws_a_graph():
    with home() as h:
        text = expect(h.run("check", "agents.yaml", "--graph"), 0).out
        assert "sleeps\n└─ t  wait for timer 700ms\n   └─ say  tool echo (read)\n" in text, text


@test
def init_writes_a_file_that_runs():
    with home() as h:
        result = expect(h.run("init", "new/place"), 0)
        assert "aetheris run" in result.out and "aetheris jobs" in result.out
        expect(h.run("check", "new/place/agents.yaml"), 0)
        result = expect(h.run("run", "new/place/agents.yaml", "--input", '{"name":"Ada"}'), 0)
        assert result.json()["message"] == "Hello, Ada!"
        assert (h.path / "new/place/notes.txt").exists()
        assert expect(h.run("init", "new/place", "--json"), 5).json()["code"] == "already_exists"


@test
def completion_completes_in_bash():
    with home() as h:
        script = expect(h.run("completion", "bash"), 0).out

        def completed(*words):
            line = " ".join(shlex.quote(w) for w in ("aetheris", *words))
            send_request = (f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); _aetheris\n"
                            'printf "%s\\n" "${COMPREPLY[@]}"')
            done = subprocess.run(["bash", "-c", send_request], cwd=h.path, capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0 and done.stderr == "", done.stderr
            return set(done.stdout.split())

        commands = set(re.findall(r"^  (\w+) ", expect(h.run("--help"), 0).out.split("Subcommands:")[-1], re.M))
        assert {"run", "verify", "inspect", "completion"} <= completed("") <= commands, (completed(""), commands)
        assert completed("ver") == {"verify", "version"}
        assert {"--input", "--job-id", "--signing-key", "--store", "--json"} <= completed("run", "agents.yaml", "--")
        assert completed("run", "--durability", "") == {"fused", "split"}
        assert completed("--store", "sqlite:x", "ins") == {"inspect"}
        assert {"--check", "--job", "--json"} <= completed("rebuild", "--")
        statuses = {"queued", "running", "waiting", "parked", "completed", "failed", "cancelled"}
        assert completed("jobs", "--status", "") == statuses
        assert completed("jobs", "--kind", "") == {"plan", "loop", "planner", "code"}
        assert "max_attempts" in completed("jobs", "--error", "max")
        assert completed("events", "a", "--class", "") == {"history", "coordination", "recorded_effect", "narrative", "effect"}
        assert "job_created" in completed("events", "a", "--type", "job_")
        assert "unknown_outcome" in completed("requests", "--kind", "")
        assert completed("completion", "") == {"bash", "zsh", "fish"}
        assert "agents.yaml" in completed("run", "ag") and "agents.yaml" in completed("check", "")
        assert "--key" in completed("verify", "a", "-")
        for shell in ("zsh", "fish"):
            other = expect(h.run("completion", shell), 0).out
            assert "inspect" in other and "durability" in other
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=other, text=True, check=True, timeout=PATIENCE)
        expect(h.run("completion", "tcsh"), 2)


@test
def a_rejected_value_is_reported_with_the_option_not_the_field():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        for words, name in ((["replay", "a", "--at", "999"], "--at"), (["jobs", "--limit", "0"], "--limit"),
                            (["jobs", "--cursor", "nobody"], "--cursor"), (["jobs", "--status", "odd"], "--status"),
                            (["jobs", "--since", "x"], "--since"), (["jobs", "--sort", "size"], "--sort"),
                            (["jobs", "--kind", "x"], "--kind"), (["jobs", "--cost-min", "x"], "--cost-min"),
                            (["jobs", "--stalled", "--older-than", "x"], "--older-than"), (["approvals", "--limit", "x"], "--limit"),
                            (["audit", "--after", "x"], "--after"), (["events", "a", "--class", "odd"], "--class"),
                            (["events", "a", "--type", "nonsense"], "--type"),
                            (["keys", "create", "--role", "viewer", "--expires", "soon"], "--expires"),
                            (["jobs", "--label", "team"], "--label must be NAME=VALUE")):
            result = expect(h.run(*words), 2)
            assert result.err.startswith(f"error: {name}"), (words, result)
        result = expect(h.run("events", "a", "--type", "job_complete"), 2)
        assert "did you mean job_completed?" in result.err, result
        assert len(expect(h.run("events", "a", "--type", "job_completed"), 0).out.splitlines()) == 1


@test
def a_usage_error_prints_the_usage_of_its_command():
    with home() as h:
        for words, usage in ((["retry", "a", "--nonsense"], "retry [OPTIONS] ID [FILE]"),
                             (["retry"], "retry [OPTIONS] ID [FILE]"),
                             (["budget", "a", "tokens=5"], "budget [OPTIONS] ID"),
                             (["--store", "memory:", "job"], "job [OPTIONS] ID"),
                             (["nonsense"], "[OPTIONS] COMMAND"),
                             (["--nonsense"], "[OPTIONS] COMMAND")):
            for more in ([], ["--json"]):
                result = expect(h.run(*words, *more), 2)
                assert result.err.endswith(f"\nusage: aetheris {usage}\n"), result
                assert "--help`" in result.err, result


@test
def a_misplaced_name_value_argument_prints_the_correct_form():
    with home() as h:
        for words, form in ((["budget", "a", "model_calls=5"], "write --model-calls 5"),
                            (["retry", "a", "agents.yaml", "n=2"], "aetheris run FILE n=2"),
                            (["fork", "a", "--at", "2", "n=2"], "--input JSON")):
            result = expect(h.run(*words), 2)
            assert form in result.err.splitlines()[0], result
        assert "write" not in expect(h.run("budget", "a", "nonsense=5"), 2).err


@test
def help_of_retry_does_not_describe_fork():
    with home() as h:
        result = expect(h.run("retry", "--help"), 0).out
        assert "that event" not in result and "fork" not in result, result
        assert "event" in expect(h.run("fork", "--help"), 0).out


@test
def help_command_and_help_option_print_the_same_help_with_common_options():
    with home() as h:
        for name in ("run", "jobs", "doctor", "completion"):
            result = expect(h.run(name, "--help"), 0)
            assert "--store" in result.out and "--json" in result.out and "Example: " in result.out, result
            assert expect(h.run("help", name), 0).out == result.out
        assert expect(h.run("help"), 0).out == expect(h.run("--help"), 0).out
        assert "nonsense" in expect(h.run("help", "nonsense"), 2).err


@test
def commands_that_cannot_work_are_not_suggested():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "asks", "--store", "memory:", "--job-id", "m"), 4)
        assert "aetheris signal" not in result.err and "then:" not in result.err and "the memory store ends with this process" in result.err, result
        result = expect(h.run("aproove", "x"), 2)
        assert "did you mean approve?" in result.err, result
        assert "did you mean" not in expect(h.run("xyzzy"), 2).err
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "e"), 0)
        result = expect(h.run("fork", "e", "--at", "0"), 2)
        assert "--at must be at least 1" in result.err and "missing" not in result.err, result
        # Each request to an ended job gets the same error, also the plan that it already had.
        for words in (("plan", "e", "agents.yaml"), ("pause", "e"), ("cancel", "e"), ("budget", "e", "--tokens", "4")):
            assert "[job_terminal]" in expect(h.run(*words), 5).err, words
        result = expect(h.run("budget", "e", "--note", "x"), 2)
        assert "--model-calls" in result.err and "aetheris job e" in result.err, result


if __name__ == "__main__":
    sys.exit(run_tests("cli_usage", TESTS, " ".join(sys.argv[1:])))
