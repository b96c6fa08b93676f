#!/usr/bin/env python3
"""Forks, retries and new plans of a job.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_fork.py [WORDS]   only tests whose name contains WORDS
"""
import re
import sys

from shared.home import AGENTS, expect, home, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


# The tool `stamp` counts its calls in calls.txt, and `fragile` fails until the file `fixed` exists.
FORKS = r"""
aetheris: 1
tools:
  stamp:
    command: ["sh", "-c", "cat > /dev/null; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> calls.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
  fragile:
    command: ["sh", "-c", "cat > /dev/null; test -e fixed || exit 3; echo \"$AETHERIS_IDEMPOTENCY_KEY $0\" >> calls.txt; echo \"$0\"", "${ .args.what }"]
    effect: at_most_once
agents:
  trip:
    plan:
      - { id: a, tool: stamp, args: { what: "one ${ .input.n }" } }
      - { id: b, tool: fragile, needs: [a], args: { what: "two ${ .steps.a }" } }
      - { id: c, tool: stamp, needs: [b], args: { what: "three ${ .steps.b } ${ .input.n }" } }
    output: "${ .steps.c }"
  asks:
    plan:
      - { id: a, tool: stamp, args: { what: first } }
      - { id: w, wait: { type: signal, key: go }, needs: [a] }
      - { id: z, tool: stamp, needs: [w], args: { what: old } }
    output: "${ .steps.z }"
  each:
    plan:
      - { id: labels, map: [x, y], do: { tool: stamp, args: { what: "${ .item }" } } }
"""


REPLANNED = FORKS.replace("what: old", "what: \"new ${ .steps.w }\"")


def recorded_calls(h):
    """The arguments of each call."""
    file = h.path / "calls.txt"
    return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []


def last_seq(h, job):
    return expect(h.run("events", job, "--json"), 0).json()["events"][-1]["seq"]


@test
def retry_resumes_a_failed_job_after_its_tool_was_fixed():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "trip", "--job-id", "t", "--input", '{"n":"1"}'), 1)
        assert recorded_calls(h) == ["one 1"]
        (h.path / "fixed").touch()
        result = expect(h.run("retry", "t", "--job-id", "t2"), 0)
        assert result.out == "t2\n" and "aetheris run FILE --job-id t2" in result.err, result
        assert expect(h.run("retry", "t", "--job-id", "t2"), 0).out == "t2\n", "the repeated request returns the same job"
        body = expect(h.run("job", "t2", "--json"), 0).json()
        assert body["status"] == "queued" and body["forked_from"]["job_id"] == "t", body
        expect(h.run("run", "agents.yaml", "--job-id", "t2"), 0)
        assert recorded_calls(h) == ["one 1", "two one 1", "three two one 1 1"]
        keys = [line.split()[0] for line in (h.path / "calls.txt").read_text().splitlines()]
        assert len(set(keys)) == 3
        for job in ("t", "t2"):
            expect(h.run("verify", job), 0)
        nodes = expect(h.run("trace", "t2", "--json"), 0).json()["nodes"]
        assert [node["imported"] for node in nodes] == [True, False, False]
        assert "imported" in expect(h.run("trace", "t2"), 0).out
        assert expect(h.run("job", "t", "--json"), 0).json()["status"] == "failed", "the first job is unchanged"
        assert expect(h.run("retry", "t2", "--json"), 2).json()["code"] == "input_invalid"
        assert expect(h.run("retry", "nobody", "--json"), 3).json()["code"] == "not_found"


@test
def a_fork_names_the_items_of_a_map_as_other_commands_do():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "each", "--job-id", "m"), 0)
        result = expect(h.run("fork", "m", "--at", "2"), 5).err
        assert "labels[0] (stamp, applied), labels[1] (stamp, applied)" in result and "labels/" not in result, result
        assert re.search(r"^labels\[0\] +stamp ", result, re.MULTILINE), result
        assert "✓ [0]" in expect(h.run("trace", "m"), 0).out


@test
def a_fork_lists_the_effects_it_would_repeat_and_requires_consent():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        (h.path / "fixed").touch()
        expect(h.run("run", "agents.yaml", "trip", "--job-id", "t", "--input", '{"n":"1"}'), 0)
        events = expect(h.run("events", "t", "--json"), 0).json()["events"]
        at = next(e["seq"] for e in events if e["type"] == "node_started" and e["payload"]["node_id"] == "b")
        result = expect(h.run("fork", "t", "--at", str(at), "--json"), 5).json()
        assert result["code"] == "effects_repeated", result
        assert [(e["node_id"], e["state"]) for e in result["effects"]] == [("b", "committed"), ("c", "committed")]
        result = expect(h.run("fork", "t", "--at", str(at)), 5)
        assert "--repeat-effects" in result.err and "b (fragile, applied)" in result.err, result
        sent = {e["payload"]["node_id"]: e["seq"] for e in events if e["type"] == "tool_invocation_started"}
        assert re.search(rf"^b +\w+ +at_most_once +applied +\w+ +{sent['b']}$", result.err, re.M), result
        assert expect(h.run("jobs", "--json"), 0).json()["jobs"][0]["id"] == "t", "no job was created"
        one = ["--repeat", step_id_of(h, "t", "b")]
        expect(h.run("fork", "t", "--at", str(at), *one), 5)
        both = one + ["--repeat", step_id_of(h, "t", "c")]
        expect(h.run("fork", "t", "--at", str(at), *both, "--job-id", "f"), 0)
        expect(h.run("fork", "t", "--at", str(at), "--job-id", "f"), 0)
        assert expect(h.run("fork", "t", "--at", "2", "--job-id", "f", "--json"), 5).json()["code"] == "already_exists"
        key = ["--idempotency-key", "k", "--repeat-effects", "--input", '{"n":"2"}', "--json"]
        keyed = expect(h.run("fork", "t", "--at", str(at), *key), 0).json()["id"]
        assert expect(h.run("fork", "t", "--at", str(at), *key), 0).json()["id"] == keyed
        assert expect(h.run("run", "agents.yaml", "--job-id", "f"), 0).out == "three two one 1 1\n"
        assert expect(h.run("run", "agents.yaml", "--job-id", keyed), 0).out == "three two one 1 2\n"
        assert recorded_calls(h)[0] == "one 1" and recorded_calls(h).count("one 1") == 1, recorded_calls(h)
        assert len(recorded_calls(h)) == 7
        # A fork at the last event imports everything.
        assert expect(h.run("fork", "t", "--at", str(events[-1]["seq"]), "--job-id", "e"), 0).out == "e\n"
        expect(h.run("run", "agents.yaml", "--job-id", "e"), 0)
        assert len(recorded_calls(h)) == 7
        for job in ("f", "e", keyed):
            expect(h.run("verify", job), 0)
        assert expect(h.run("fork", "t", "--at", "999", "--json"), 2).json()["code"] == "input_invalid"
        assert expect(h.run("fork", "t", "--json"), 2).json()["code"] == "usage"


def step_id_of(h, job, node):
    nodes = expect(h.run("trace", job, "--json"), 0).json()["nodes"]
    return next(one["step_id"] for one in nodes if one["node_id"] == node)


@test
def a_waiting_job_accepts_a_new_plan():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        (h.path / "new.yaml").write_text(REPLANNED)
        result = expect(h.run("plan", "w", "new.yaml", "--reason", "a better word"), 0)
        assert result.out == "plan 1 keeps a, w\n", result
        assert expect(h.run("plan", "w", "new.yaml"), 0).out == "it has this plan already\n"
        expect(h.run("run", "new.yaml", "--job-id", "w"), 4)
        expect(h.run("signal", "w", "go", '"yes"'), 0)
        assert expect(h.run("run", "new.yaml", "--job-id", "w"), 0).out == "new yes\n"
        assert recorded_calls(h) == ["first", "new yes"]
        expect(h.run("verify", "w"), 0)
        events = expect(h.run("events", "w", "--json"), 0).json()["events"]
        decision = next(e["payload"] for e in events if e["payload"].get("kind") == "re_plan")
        assert decision["reason"] == "a better word" and decision["by"].startswith("cli")
        assert expect(h.run("job", "w", "--json"), 0).json()["plan"] == 1
        assert expect(h.run("plan", "w", "agents.yaml", "--json"), 5).json()["code"] == "job_terminal"


@test
def a_new_plan_must_name_the_effects_that_it_drops():
    with home() as h:
        (h.path / "agents.yaml").write_text(FORKS)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        (h.path / "other.yaml").write_text(FORKS.replace("what: first", "what: second"))
        result = expect(h.run("plan", "w", "other.yaml", "--json"), 2).json()
        assert result["code"] == "plan_invalid" and ": a;" in result["detail"], result
        expect(h.run("plan", "w", "other.yaml", "--drop", "nobody"), 2)
        result = expect(h.run("plan", "w", "other.yaml", "--drop", "a", "--json"), 0).json()
        assert result["drop"] == ["a"] and result["carried"] == [], result
        result = expect(h.run("run", "other.yaml", "--job-id", "w"), 4)
        assert "signal w 'go#1'" in result.err, "the wait starts again, under its own key"
        expect(h.run("signal", "w", "go#1", "1"), 0)
        expect(h.run("run", "other.yaml", "--job-id", "w"), 0)
        assert recorded_calls(h) == ["first", "second", "old"]
        expect(h.run("verify", "w"), 0)
        (h.path / "broken.yaml").write_text(FORKS.replace("needs: [w]", "needs: [nobody]"))
        result = expect(h.run("plan", "w", "broken.yaml", "--json"), 2).json()
        assert result["code"] == "plan_invalid" and result["faults"], result
        (h.path / "none.yaml").write_text(FORKS.replace("  asks:", "  other:"))
        assert expect(h.run("plan", "w", "none.yaml", "--json"), 2).json()["code"] == "plan_invalid"


@test
def a_leased_job_accepts_a_new_plan_only_between_two_calls():
    with home() as h:
        def file(last):
            (h.path / "held.yaml").write_text(AGENTS.replace("  holds_and_asks:", """  held:
    plan:
      - { id: h, tool: hold }
      - { id: z, tool: echo, needs: [h], args: { word: """ + last + """ } }
    output: "${ .steps.z.word }"
  holds_and_asks:"""))
        file("old")
        process = h.start("run", "held.yaml", "held", "--job-id", "j")
        h.wait_for_hold()
        file("new")
        result = expect(h.run("plan", "j", "held.yaml", "--json"), 5).json()
        assert result["code"] == "call_pending", result
        expect(h.run("pause", "j"), 0)
        h.release_hold()
        expect(h.end(process), 4)
        expect(h.run("plan", "j", "held.yaml"), 0)
        expect(h.run("resume", "j"), 0)
        assert expect(h.run("run", "held.yaml", "--job-id", "j"), 0).out == "new\n"
        expect(h.run("verify", "j"), 0)


@test
def a_fork_or_a_new_plan_that_is_killed_is_atomic():
    for n in range(1, 100):
        with home() as h:
            (h.path / "agents.yaml").write_text(FORKS.replace("at_most_once", "idempotent"))
            (h.path / "new.yaml").write_text(REPLANNED.replace("at_most_once", "idempotent"))
            expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
            killed = 0
            at = str(last_seq(h, "w"))
            for words in (("fork", "w", "--at", at, "--job-id", "f"), ("plan", "f", "new.yaml"),
                          ("signal", "f", "go", '"yes"', "--buffer"), ("run", "new.yaml", "--job-id", "f", "--only")):
                result = h.run(*words, env={"AETHERIS_FAILPOINTS": f"append.before=exit@{n};append.after=exit@{n}"})
                if result.code == 137:
                    killed += 1
                    result = h.run(*words)
                assert result.code == 0, (words, result)
            lines = (h.path / "calls.txt").read_text().splitlines()
            assert len(set(lines)) == 2 and sorted(set(recorded_calls(h))) == ["first", "new yes"], lines
            for job in ("w", "f"):
                expect(h.run("verify", job), 0)
            if killed == 0:
                return
    raise AssertionError("it never ended")


@test
def a_refused_fork_names_the_option_that_allows_repeated_effects():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        expect(h.run("cancel", "d"), 0)
        for words in ([], ["--json"]):
            result = expect(h.run("fork", "d", "--at", "2", *words), 5)
            text = result.json()["detail"] if words else result.err
            assert "allow it with --repeat-effects or --repeat STEP, or fork at a later event" in text, result
            assert "repeat_effects" not in text, result


if __name__ == "__main__":
    sys.exit(run_tests("cli_fork", TESTS, " ".join(sys.argv[1:])))
