#!/usr/bin/env python3
"""`aetheris cancel`: compensation and what remains unknown.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_cancel.py [WORDS]   only tests whose name contains WORDS
"""
import sys

from shared.home import expect, home, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def cancel_ends_a_job_once():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        expect(h.run("cancel", "w", "--reason", "changed my mind"), 0)
        body = expect(h.run("job", "w", "--json"), 0).json()
        assert body["status"] == "cancelled"
        assert expect(h.run("cancel", "w", "--json"), 5).json()["code"] == "job_terminal"
        expect(h.run("run", "agents.yaml", "--job-id", "w"), 1)


SIDES = r"""
aetheris: 1
tools:
  # Each writes a line `KEY WORD` to its folder.
  book:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> done.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
    local: true
    on_in_doubt: probe
    probe: { tool: look, args: { key: "${ .call.external_key }" }, happened: "${ .result.found }" }
    compensate: { tool: unbook, args: { what: "${ .result }" } }
  look:
    command: ["sh", "-c", "cat > /dev/null; grep -sF \"$0 \" done.txt | awk 'NR == 1 { f = 1; printf \"%s\", \"{\\\"found\\\":\\\"\" $2 \"\\\"}\" } END { if (!f) print \"{}\" }'", "${ .args.key }"]
    effect: read
    output: json
  unbook:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY un$0\" >> done.txt", "${ .args.what }"]
    effect: idempotent
agents:
  trip:
    plan:
      - { id: a, tool: book, args: { what: flight } }
      - { id: b, tool: book, needs: [a], args: { what: hotel } }
      - { id: w, wait: { type: signal, key: paid }, needs: [b] }
"""


def side_effects(h):
    file = h.path / "done.txt"
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


@test
def cancel_compensates_completed_calls_and_reports_it():
    with home() as h:
        (h.path / "agents.yaml").write_text(SIDES)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t"), 0)
        assert expect(h.run("job", "t", "--json"), 0).json()["status"] == "queued", "nothing is compensated yet"
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 1)
        assert side_effects(h) == ["flight", "hotel", "unhotel", "unflight"]
        body = expect(h.run("job", "t", "--json"), 0).json()
        assert body["status"] == "cancelled"
        assert [one["node_id"] for one in body["compensated"]] == ["b", "a"]
        nodes = expect(h.run("trace", "t", "--json"), 0).json()["nodes"]
        assert [node["world"] for node in nodes] == ["rolled back", "rolled back", "unchanged"]
        assert "undo: unbook" in expect(h.run("trace", "t"), 0).out
        expect(h.run("verify", "t"), 0)


@test
def a_failed_compensation_is_not_reported_as_an_unknown_outcome():
    with home() as h:
        failing = SIDES.replace('echo \\"$AETHERIS_IDEMPOTENCY_KEY un$0\\" >> done.txt', "exit 9")
        assert failing != SIDES
        (h.path / "agents.yaml").write_text(failing)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t"), 0)
        parked = expect(h.run("run", "agents.yaml", "--job-id", "t"), 4).err
        listed = expect(h.run("jobs", "--in-doubt"), 0)
        for text in (parked, listed.out):
            assert "is unknown" not in text and 'compensation by tool "unbook" is not confirmed: it failed (exit_9)' in text, text
        for text in (parked, listed.out):
            assert "replace RESULT with the call's result as JSON" in text, text


@test
def cancel_without_compensation_lists_the_remaining_effects():
    with home() as h:
        (h.path / "agents.yaml").write_text(SIDES)
        expect(h.run("run", "agents.yaml", "--job-id", "t"), 4)
        expect(h.run("cancel", "t", "--no-compensate"), 0)
        body = expect(h.run("job", "t", "--json"), 0).json()
        assert body["status"] == "cancelled" and body["compensated"] == []
        assert [one["node_id"] for one in body["uncompensated"]] == ["b", "a"]
        assert side_effects(h) == ["flight", "hotel"]


@test
def a_job_killed_at_every_point_calls_and_compensates_once():
    for n in range(1, 100):
        with home() as h:
            (h.path / "agents.yaml").write_text(SIDES)
            killed = 0
            for step in ("run", "cancel", "run"):
                words = ("cancel", "t") if step == "cancel" else ("run", "agents.yaml", "--job-id", "t")
                result = h.run(*words, env={"AETHERIS_FAILPOINTS": f"append.after=exit@{n};tool.after=exit@{n}"})
                if result.code == 137:
                    killed += 1
                    result = h.run(*words)
                assert result.code in (0, 1, 4, 5), result
            status = expect(h.run("job", "t", "--json"), 0).json()
            assert status["status"] == "cancelled", status
            assert side_effects(h)[:2] == ["flight", "hotel"], side_effects(h)
            keys = [line.split()[0] for line in (h.path / "done.txt").read_text().splitlines()]
            assert sorted(set(side_effects(h))) == ["flight", "hotel", "unflight", "unhotel"]
            assert len(set(keys)) == 4, keys
            expect(h.run("verify", "t"), 0)
            if killed == 0:
                return
    raise AssertionError("it never ended")


@test
def a_cancelled_job_reports_its_calls_with_unknown_outcomes():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        assert "parked: the outcome of a call is unknown [invocation_in_doubt]; continues after aetheris resolve" in result.err, result
        unknown = "node d: the outcome of the call of tool \"doubt\" is unknown"
        result = expect(h.run("cancel", "d"), 0)
        assert result.out == "cancel requested\n" and unknown in result.err, result
        assert result.err.index("job d is cancelled\n") < result.err.index(unknown), result
        shown = expect(h.run("job", "d"), 0)
        assert "cancelled" in shown.out and unknown in shown.out, shown
        result = expect(h.run("run", "agents.yaml", "--job-id", "d"), 1)
        assert "was cancelled" in result.err and unknown in result.err, result
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "sure"), 4)
        result = expect(h.run("cancel", "sure"), 0)
        assert "is unknown" not in result.err and "is unknown" not in expect(h.run("job", "sure"), 0).out, result


@test
def a_running_job_is_cancelled_from_a_second_terminal():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "r", "--json")
        h.wait_for_hold()
        expect(h.run("cancel", "r"), 0)
        h.release_hold()
        result = expect(h.end(runner), 1)
        assert result.json()["status"] == "cancelled"
        expect(h.run("verify", "r"), 0)


if __name__ == "__main__":
    sys.exit(run_tests("cli_cancel", TESTS, " ".join(sys.argv[1:])))
