#!/usr/bin/env python3
"""Running calls: functions that never return, progress reports, missing heartbeats, recoveries.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  running.py [WORDS]   only tests whose name contains WORDS
"""
import json
import pathlib
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shared.home import expect, home, run_tests, until  # noqa: E402

TESTS = []

AGENTS = r"""
aetheris: 1
tools:
  echo:   { native: echo, effect: read }
  stuck:  { native: nap, timeout: 500ms }
  looks:  { native: nap, timeout: 500ms, effect: read }
  silent: { native: nap, timeout: 60s, heartbeat_timeout: 300ms, effect: read }
  long:   { native: nap, timeout: 60s, effect: read }
  # Reports, then waits until the file `go` exists in its folder.
  reports:
    command: ["sh", "-c", "echo '{\"percent\":50}' >&$AETHERIS_PROGRESS_FD; echo began >> began.txt; while [ ! -e go ]; do sleep 0.02; done; echo '{\"percent\":100}' >&3; echo done"]
    effect: read
    timeout: 60s
  mute:
    command: ["sh", "-c", "echo 1 >&3; sleep 60"]
    heartbeat_timeout: 300ms
    timeout: 60s
agents:
  stuck:
    plan:
      - { id: nap, tool: stuck, args: { ms: 45000, deaf: true } }
      - { id: say, tool: echo, args: { said: 7 } }
      - { id: more, tool: echo, args: { said: 8 }, needs: [say] }
  many:
    deadline: 1s
    plan:
      - { id: naps, map: "${ .input }", max_parallel: 40, do: { tool: looks, args: { ms: 45000, deaf: true } }, on_item_error: collect }
      - { id: say, tool: echo, args: { said: 7 } }
  looks:   { plan: [ { id: nap, tool: looks, args: { ms: 45000 } } ] }
  silent:  { plan: [ { id: nap, tool: silent, args: { ms: 45000 } } ] }
  speaks:  { plan: [ { id: nap, tool: silent, args: { ms: 1500, report_ms: 100 } } ], output: "${ .steps.nap.slept_ms }" }
  long:    { plan: [ { id: nap, tool: long, args: { ms: 45000, deaf: true } } ] }
  reports: { plan: [ { id: r, tool: reports } ], output: "${ .steps.r }" }
  mute:    { plan: [ { id: m, tool: mute } ] }
"""


def test(function):
    TESTS.append(function)
    return function


def agents(h):
    (h.path / "agents.yaml").write_text(AGENTS)


def events(h, job):
    result = expect(h.run("events", job, "--json"), 0)
    return result.json()["events"] if result.out.lstrip().startswith("{") else [json.loads(x) for x in result.out.splitlines()]


def of_type(all_events, name):
    return [e for e in all_events if e["type"] == name]


def node(h, job, name):
    trace = expect(h.run("trace", job, "--json"), 0).json()
    return next(n for n in trace["nodes"] if n["node_id"] == name)


@test
def a_function_that_never_returns_times_out_and_delays_no_other_node():
    with home() as h:
        agents(h)
        began = time.monotonic()
        expect(h.run("run", "agents.yaml", "stuck", "--job-id", "j"), 4)
        took = time.monotonic() - began
        assert took < 20, f"the program waited for the function: {took:.1f} s"
        nap = node(h, "j", "nap")
        assert nap["status"] == "in_doubt" and nap["tries"][0]["outcome"] == "timeout", nap
        assert nap["tries"][0]["duration_us"] < 5_000_000, nap
        assert node(h, "j", "say")["status"] == node(h, "j", "more")["status"] == "done"
        of_more = [e["seq"] for e in events(h, "j") if e["payload"].get("node_id") == "more"]
        cut = of_type(events(h, "j"), "tool_invocation_finished")[-1]
        assert cut["payload"]["outcome"] == "timeout" and max(of_more) < cut["seq"], "it was delayed"
        expect(h.run("verify", "j"), 0)


@test
def queued_functions_are_withdrawn_at_the_deadline():
    with home() as h:
        agents(h)
        began = time.monotonic()
        expect(h.run("run", "agents.yaml", "many", "--job-id", "j", "--input", json.dumps(list(range(20)))), 1)
        assert time.monotonic() - began < 30, "it waited for the functions"
        ended = [e["payload"] for e in of_type(events(h, "j"), "tool_invocation_finished")]
        assert sum(p["outcome"] == "timeout" for p in ended) == 16, ended
        assert sum((p.get("error") or {}).get("code") == "not_sent" for p in ended) >= 4, ended
        assert node(h, "j", "say")["status"] == "done"


@test
def a_function_that_exceeds_its_timeout_fails_with_timeout():
    with home() as h:
        agents(h)
        expect(h.run("run", "agents.yaml", "looks", "--job-id", "j"), 1)
        nap = node(h, "j", "nap")
        assert nap["error"]["code"] == "timeout", nap
        assert "had not returned after 500ms" in nap["error"]["message"], nap


@test
def a_function_without_heartbeats_times_out_and_one_that_reports_does_not():
    with home() as h:
        agents(h)
        expect(h.run("run", "agents.yaml", "silent", "--job-id", "s"), 1)
        error = node(h, "s", "nap")["error"]
        assert error["code"] == "timeout" and "reported nothing for 300ms" in error["message"], error
        assert expect(h.run("run", "agents.yaml", "speaks", "--job-id", "t"), 0).out == "1500\n"
        reports = of_type(events(h, "t"), "progress")
        assert 1 <= len(reports) <= 4, reports
        assert reports[-1]["payload"]["detail"] == {"report": {"done_ms": 1500}, "try": 1}, reports


@test
def a_process_exits_on_sigterm_while_a_function_still_runs():
    with home() as h:
        agents(h)
        process = h.start("run", "agents.yaml", "long", "--job-id", "j", "--grace", "300ms")
        until(lambda: h.store.exists() and '"outcome":null' in h.run("trace", "j", "--json").out.replace(" ", ""))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        h.end(process)
        assert time.monotonic() - began < 15, "it waited for the function"
        assert expect(h.run("job", "j", "--json"), 0).json()["status"] == "queued"


@test
def progress_of_a_program_is_shown_while_it_runs():
    with home() as h:
        agents(h)
        process = h.start("run", "agents.yaml", "reports", "--job-id", "j")
        h.wait_for_hold()
        until(lambda: '{"percent":50}' in expect(h.run("trace", "j"), 0).out)
        shown = expect(h.run("events", "j"), 0).out
        assert "progress" in shown and '"percent":50' in shown, shown
        h.release_hold()
        result = expect(h.end(process), 0)
        assert result.out == "done\n", result
        tried = node(h, "j", "r")["tries"][-1]  # on a busy machine the first try may not have been sent
        assert tried["progress"]["report"] == {"percent": 100}, tried
        assert [e["payload"]["detail"]["report"]["percent"] for e in of_type(events(h, "j"), "progress")] == [50, 100]
        expect(h.run("verify", "j"), 0)


@test
def a_program_without_heartbeats_is_killed_and_its_outcome_is_unknown():
    with home() as h:
        agents(h)
        expect(h.run("run", "agents.yaml", "mute", "--job-id", "j"), 4)
        tried = node(h, "j", "m")["tries"][0]
        assert tried["outcome"] == "timeout" and "reported nothing for 300ms" in tried["error"]["message"], tried


@test
def a_recovery_records_what_it_found():
    with home() as h:
        agents(h)
        process = h.start("run", "agents.yaml", "reports", "--job-id", "j")
        h.wait_for_hold()
        process.kill()
        process.wait()
        h.release_hold()
        expect(h.run("run", "agents.yaml", "reports", "--job-id", "j"), 0)
        all_events = events(h, "j")
        attempts = of_type(all_events, "job_running")
        (started,), (completed,) = of_type(all_events, "recovery_started"), of_type(all_events, "recovery_completed")
        assert started["payload"]["attempt_id"] == attempts[1]["payload"]["attempt_id"], started
        assert started["payload"]["detail"]["after"] == attempts[0]["payload"]["attempt_id"], started
        assert completed["payload"]["detail"] == {"caught_up": 0, "in_doubt": 0, "injected": 0, "pending": 1,
                                                  "resent": 1}, completed
        expect(h.run("verify", "j"), 0)


@test
def a_wait_that_expired_while_no_process_ran_ends_immediately():
    with home() as h:
        (h.path / "agents.yaml").write_text("""\
aetheris: 1
agents:
  human: { plan: [ { id: ok, wait: { type: human, expires: 300ms, on_expire: continue } } ], output: "${ .steps.ok }" }
  signal: { plan: [ { id: ok, wait: { type: signal, key: k, expires: 300ms, on_expire: continue } } ], output: "${ .steps.ok }" }
  late: { deadline: 300ms, plan: [ { id: ok, wait: { type: human } } ] }
""")
        for agent in ("human", "signal", "late"):
            expect(h.run("run", "agents.yaml", agent, "--only", "--job-id", agent), 4)
        time.sleep(0.4)
        for agent in ("human", "signal"):
            result = expect(h.run("run", "agents.yaml", agent, "--only", "--job-id", agent), 0)
            assert "timed_out" in result.out, result
        result = expect(h.run("run", "agents.yaml", "late", "--only", "--job-id", "late"), 1)
        assert "deadline" in result.err, result


@test
def a_heartbeat_timeout_on_a_tool_that_returns_immediately_is_an_error():
    with home() as h:
        (h.path / "agents.yaml").write_text(AGENTS.replace(
            "echo:   { native: echo, effect: read }", "echo:   { native: echo, effect: read, heartbeat_timeout: 1s }"))
        result = expect(h.run("check", "agents.yaml"), 2)
        assert "4:60" in result.out + result.err and "returns at once" in result.out + result.err, result


if __name__ == "__main__":
    sys.exit(run_tests("running", TESTS, " ".join(sys.argv[1:])))
