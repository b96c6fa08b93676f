#!/usr/bin/env python3
"""Jobs that wait for a user: signals, approvals, unknown outcomes, notifications and the printed commands.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_answers.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import datetime
import json
import re
import shlex
import socket
import sys
import threading
import time

from shared.home import AGENTS, expect, home, run_printed, run_tests, until

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def the_notify_program_is_started_once_per_pending_question():
    with home() as h:
        (h.path / "people.yaml").write_text("""
aetheris: 1
tools:
  doubt: { native: doubt, effect: at_most_once }
  pay:   { native: echo, effect: idempotent, approval: required }
agents:
  a:
    plan:
      - { id: ask, wait: { type: human, key: sign } }
      - { id: pay, tool: pay, args: { x: 1 } }
      - { id: lost, tool: doubt }
""")
        received = h.path / "received"
        program = h.path / "notify me"
        program.write_text(f"#!/bin/sh\ncat >> '{received}'\necho noise\n")
        program.chmod(0o755)
        result = expect(h.run("run", "people.yaml", "--job-id", "j", "--notify", str(program)), 4)
        assert "noise" not in result.out, result
        items = {item["kind"]: item for item in map(json.loads, received.read_text().splitlines())}
        assert sorted(items) == ["approval", "in_doubt", "wait"], items
        assert all(item["job"] == "j" for item in items.values()), items
        assert items["wait"]["key"] == "sign" and items["wait"]["node_id"] == "ask", items
        expect(h.run("run", "people.yaml", "--job-id", "j", "--notify", str(program)), 4)
        assert len(received.read_text().splitlines()) == 3, "nothing new waits"
        for kind in ("wait", "approval"):
            expect(h.run(*shlex.split(items[kind]["command"])[1:]), 0)
        assert items["in_doubt"]["command"] == "aetheris job j", "no answer is a default"
        assert "aetheris resolve j " in expect(run_printed(h, items["in_doubt"]["command"]), 0).out
        key = items["in_doubt"]["key"].removeprefix("resolve/")
        expect(h.run("resolve", "j", key[:12], "happened"), 0)
        expect(h.run("run", "people.yaml", "--job-id", "j"), 0)
        expect(h.run("verify", "j"), 0)

        bad = h.path / "bad"
        bad.write_text("#!/bin/sh\nexit 3\n")
        for name, why in ((str(bad), "cannot be started"), ("no-such-program-here", "cannot be started")):
            result = expect(h.run("run", "people.yaml", "--notify", name), 4)
            assert result.err.count(why) == 3, result
        bad.chmod(0o755)
        result = expect(h.run("run", "people.yaml", "--notify", str(bad)), 4)
        assert result.err.count("ended with 3") == 3, result
        expect(h.run("run", "people.yaml", "--notify", ""), 2)


@test
def a_waiting_job_exits_with_4_and_prints_the_command_that_answers():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        assert result.out == ""
        assert "aetheris signal w go-w" in result.err and "aetheris run agents.yaml --job-id w" in result.err
        body = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--json"), 4).json()
        assert body["status"] == "waiting" and body["waiting"]["correlation_key"] == "go-w"
        result = expect(h.run("signal", "w", "wrong", "1", "--json"), 2)
        assert result.json()["code"] == "wait_mismatch" and result.json()["status"] == 400
        expect(h.run("signal", "w", "go-w", "not json"), 2)
        result = expect(h.run("signal", "w", "go-w", '{"yes":true}', "--json"), 0)
        assert result.json()["delivered"] is True
        assert expect(h.run("job", "w", "--json"), 0).json()["status"] == "queued"
        result = expect(h.run("signal", "w", "go-w", '{"yes":true}', "--json"), 0).json()
        assert result["duplicate"] is True and result["applied"] is True
        assert expect(h.run("run", "agents.yaml", "--job-id", "w"), 0).json() == {"yes": True}
        result = expect(h.run("signal", "w", "go-w", '{"yes":false}', "--json"), 5).json()
        assert result["duplicate"] is True and result["applied"] is False


@test
def an_answer_that_differs_from_the_recorded_one_is_a_conflict():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        expect(h.run("signal", "a", "go-a", "1"), 0)
        assert "with the same payload" in expect(h.run("signal", "a", "go-a", "1"), 0).out
        result = expect(h.run("signal", "a", "go-a", "2"), 5)
        assert "with another payload: 1" in result.out, result
        assert expect(h.run("signal", "a", "go-a", "2", "--json"), 5).json()["applied"] is False


@test
def a_rejection_prints_what_the_job_does_next():
    with home() as h:
        (h.path / "ask.yaml").write_text(
            "aetheris: 1\ntools:\n  buy: { native: echo, effect: read, approval: required }\nagents:\n"
            "  stops: { plan: [ { id: b, tool: buy } ] }\n"
            "  goes_on: { plan: [ { id: b, tool: buy, on_error: continue } ] }\n")
        for agent, then, code in (("stops", "the job fails at node b", 1),
                                  ("goes_on", "node b fails and the job continues", 0)):
            expect(h.run("run", "ask.yaml", agent, "--job-id", agent), 4)
            approval = expect(h.run("approvals", "--json"), 0).json()["approvals"][0]["id"]
            result = expect(h.run("reject", approval), 0)
            assert result.out == "rejected\n", result
            assert result.err.startswith(f"When a process runs the job next, {then}.\nTo continue, run: "), result
            expect(h.run("run", "ask.yaml", "--job-id", agent), code)


@test
def a_call_with_an_unknown_outcome_parks_the_job_until_it_is_resolved():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        assert "aetheris resolve d" in result.err, result
        body = expect(h.run("job", "d", "--json"), 0).json()
        assert body["status"] == "parked" and len(body["in_doubt"]) == 1
        doubt = body["in_doubt"][0]
        assert "the outcome of the call of tool \"doubt\" is unknown" in result.err and "replace RESULT with the call's result as JSON" in result.err, result
        for field in ("idempotency_key", "invocation_id", "external_key", "tool", "node_id", "arguments", "since"):
            assert field in doubt, field
        # Every view shows the call, so an operator can find out its outcome.
        call = (json.dumps(doubt["arguments"], separators=(",", ":")), doubt["external_key"], doubt["tool"])
        assert doubt["arguments"] == {"message": "lost"} and doubt["external_key"], doubt
        for seen in (result.err, expect(h.run("job", "d"), 0).out, expect(h.run("jobs", "--in-doubt"), 0).out):
            assert all(word in seen for word in call), (call, seen)
        key = doubt["idempotency_key"]
        assert expect(h.run("resolve", "d", "0" * 64, "happened", "1", "--json"), 5).json()["code"] == "not_in_doubt"
        expect(h.run("resolve", "d", key, "perhaps"), 2)
        assert expect(h.run("resolve", "d", key[:12], "happened", '{"id":9}'), 0).out.endswith('\nresult: {"id":9}\n')
        for _ in range(2):  # before the job continues, and after it has ended
            again = expect(h.run("resolve", "d", key, "happened", '{"id":9}'), 0)
            assert re.match(r"already answered with the same payload, by .+ at 20\S+ \S+Z\n", again.out), again
            other = expect(h.run("resolve", "d", key, "happened", "1", "--json"), 5).json()
            assert other["code"] == "not_in_doubt" and re.search(
                r'happened by .+ at 20\S+Z with the result \{"id":9\}$', other["detail"]), other
            assert expect(h.run("run", "agents.yaml", "--job-id", "d"), 0).json() == {"id": 9}
        expect(h.run("verify", "d"), 0)


@contextlib.contextmanager
def delayed_socket(h, seconds):
    """Between the command line and the owner: what changes something arrives later. Yields when each was let through."""
    here, there = h.path / ".aetheris/aetheris.sock", h.path / "owner.sock"
    here.rename(there)
    through, door = [], socket.socket(socket.AF_UNIX)
    door.bind(str(here))
    door.listen()

    def carry(source, target, posts):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if posts and data.startswith(b"POST"):
                    time.sleep(seconds)
                    through.append(datetime.datetime.now(datetime.timezone.utc))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                caller, owner = door.accept()[0], socket.socket(socket.AF_UNIX)
                owner.connect(str(there))
                threading.Thread(target=carry, args=(caller, owner, True), daemon=True).start()
                threading.Thread(target=carry, args=(owner, caller, False), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield through
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        there.rename(here)


@test
def resolve_reports_an_omitted_result_as_null():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        key = expect(h.run("job", "d", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "d", key, "happened"), 0).out == "recorded: happened\nresult: null\n"
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "e"), 4)
        key = expect(h.run("job", "e", "--json"), 0).json()["in_doubt"][0]["idempotency_key"]
        assert expect(h.run("resolve", "e", key, "fail"), 0).out == "recorded: fail\n"


@test
def not_happened_is_checked_against_the_time_at_which_the_command_started():
    with home() as h:
        (h.path / "both.yaml").write_text(
            AGENTS + "  both: { plan: [ { id: d, tool: doubt, args: { message: m } }, { id: h, tool: hold } ] }\n")
        runner = h.start("run", "both.yaml", "both", "--job-id", "d")
        h.wait_for_hold()
        key = until(lambda: expect(h.run("job", "d", "--json"), 0).json()["in_doubt"])[0]["idempotency_key"]
        with delayed_socket(h, 0.5) as through:
            result = expect(h.run("resolve", "d", key, "not_happened", "--json"), 5).json()
        assert result["code"] == "not_settled", result
        checked_at = datetime.datetime.fromisoformat(re.search(r"at (\S+)Z the call", result["detail"])[1] + "+00:00")
        assert (through[0] - checked_at).total_seconds() >= 0.4, (checked_at, through)


@test
def every_printed_command_can_be_pasted_into_a_shell():
    with home() as h:
        (h.path / "ways.yaml").write_text(
            "aetheris: 1\ntools:\n  doubt: { command: [sh, -c, \"kill -9 $$\"], effect: at_most_once, local: true }\nagents:\n"
            "  doubts: { plan: [ { id: d, tool: doubt, args: { message: lost } } ], output: \"${ .steps.d }\" }\n"
            "  asks: { plan: [ { id: w, wait: { type: signal, key: \"it's a key; $HOME\" } } ], output: \"${ .steps.w }\" }\n")
        (h.path / "else where").mkdir()
        for store in ([], ["--store", "sqlite:else where/s.db"]):
            result = expect(h.run("run", "ways.yaml", "asks", "--job-id", "w", *store), 4)
            commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", result.err)
            assert len(commands) == 2, result
            body = expect(h.run("job", "w", "--json", *store), 0).json()
            assert body["waiting"]["command"] == commands[0] == body["waits"][0]["command"], body
            trace = expect(h.run("trace", "w", *store), 0).out
            assert commands[0] in trace, trace
            for command in commands:
                expect(run_printed(h, command), 0)
            for how in range(3):
                id = f"d{how}"
                result = expect(h.run("run", "ways.yaml", "doubts", "--job-id", id, *store), 4)
                commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", result.err)
                assert len(commands) == 4, result
                assert [shlex.split(c)[4] for c in commands[:3]] == ["happened", "not_happened", "fail"]
                body = expect(h.run("job", id, "--json", *store), 0).json()
                assert body == expect(h.run("run", "ways.yaml", "--job-id", id, "--json", *store), 4).json()
                assert body["in_doubt"][0]["commands"] == commands[:3], body
                assert body["parked"]["command"] == commands[0]
                trace = expect(h.run("trace", id, *store), 0).out
                for command in commands[:3]:
                    assert command in trace, trace
                if how == 0:
                    assert run_printed(h, commands[0]).code == 2, "a form that is not filled in is rejected"
                expect(run_printed(h, commands[how].replace(" RESULT", " '{}'")), 0)
                assert run_printed(h, commands[3]).code == [0, 4, 1][how]


@test
def approvals_signals_and_messages_are_requested_and_answered():
    with home() as h:
        (h.path / "people.yaml").write_text(
            "aetheris: 1\ntools:\n  buy: { native: echo, approval: \"${ .args.n > 1 }\" }\nagents:\n"
            "  buys: { plan: [ { id: b, tool: buy, args: { n: 5 } } ], output: \"${ .steps.b }\" }\n"
            "  hears:\n    plan:\n      - { id: m, wait: { type: message, channel: c } }\n"
            "      - { id: s, needs: [m], wait: { type: signal, key: k } }\n    output: \"${ .steps }\"\n")
        expect(h.run("approvals", "--json"), 3)
        result = expect(h.run("run", "people.yaml", "buys", "--job-id", "b"), 4)
        commands = re.findall(r"(?:answer|or|then): +(aetheris .*)", result.err)
        assert [shlex.split(c)[1] for c in commands] == ["approve", "reject", "run"], result
        waiting = expect(h.run("approvals", "--json"), 0).json()["approvals"]
        assert [a["kind"] for a in waiting] == ["call"] and waiting[0]["arguments"] == {"n": 5}, waiting
        for seen in (result.err, expect(h.run("job", "b"), 0).out):
            assert "approval of the call of tool \"buy\"" in seen and 'arguments: {"n":5}' in seen, seen
            assert "aetheris approvals\n" in seen and f"aetheris approve {waiting[0]['id']}\n" in seen, seen
        wait, = expect(h.run("job", "b", "--json"), 0).json()["waits"]
        assert (wait["tool"], wait["arguments"], wait["approval_id"], wait["answer"]) == ("buy", {"n": 5}, waiting[0]["id"], "decision"), wait
        assert commands[0] in expect(h.run("trace", "b"), 0).out
        expect(h.run("pause", "b"), 0)
        assert expect(h.run("job", "b", "--json"), 0).json()["parked"]["until"] == "resume"
        expect(run_printed(h, commands[0]), 0)
        expect(h.run("reject", waiting[0]["id"]), 5)
        expect(h.run("approve", "b.0123456789abcdef"), 3)
        expect(h.run("resume", "b"), 0)
        expect(h.run("resume", "b"), 5)
        assert json.loads(expect(h.run("run", "people.yaml", "--job-id", "b"), 0).out) == {"n": 5}
        expect(h.run("run", "people.yaml", "hears", "--job-id", "h"), 4)
        expect(h.run("signal", "h", "k", "7"), 2)
        expect(h.run("signal", "h", "k", "7", "--buffer"), 0)
        expect(h.run("message", "h", "c", "8"), 0)
        assert json.loads(expect(h.run("run", "people.yaml", "--job-id", "h"), 0).out) == {"m": 8, "s": 7}


@test
def run_reports_a_job_that_parks_immediately():
    with home() as h:
        for n in range(25):  # it may park before `run` reads it for the first time
            result = expect(h.run("run", "agents.yaml", "doubts", "--only", "--job-id", f"d{n}"), 4)
            assert f"aetheris resolve d{n} " in result.err, result


@test
def run_reports_a_recovered_job_that_blocks_with_the_command_that_answers():
    with home() as h:
        for agent, id in (("doubts", "left"), ("asks", "asked"), ("echo", "fine"), ("sleeps", "slept")):
            expect(h.run("run", "agents.yaml", agent, "--detach", "--job-id", id), 0)
        result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}'), 0)
        assert result.json() == {"n": 1}
        lines = [line for line in result.err.splitlines() if "answer" in line]
        assert len(lines) == 2, result
        parked = next(line for line in lines if "job left is parked" in line)
        waiting = next(line for line in lines if "job asked is waiting" in line)
        expect(run_printed(h, re.search(r"aetheris signal \S+ \S+ '[^']*'", waiting)[0]), 0)
        expect(run_printed(h, re.search(r"aetheris resolve \S+ \S+ happened ", parked)[0] + "'{}'"), 0)
        result = expect(h.run("run", "agents.yaml", "echo", "--json"), 0)  # nothing blocks any more
        assert "answer" not in result.err
        for id in ("left", "asked", "fine"):
            assert expect(h.run("job", id, "--json"), 0).json()["status"] == "completed", id


if __name__ == "__main__":
    sys.exit(run_tests("cli_answers", TESTS, " ".join(sys.argv[1:])))
