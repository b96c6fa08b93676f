#!/usr/bin/env python3
"""`aetheris run`: results, inputs, ids, stores, deadlines, recovery of other jobs, queues and versions.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_run.py [WORDS]   only tests whose name contains WORDS
"""
import sys
import time

from shared.home import expect, home, run_tests, until

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def run_prints_only_the_result():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}'), 0)
        assert result.json() == {"n": 7}
        assert result.err == f"created store at {h.store.resolve()}\n", result
        assert expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}'), 0).err == ""
        (h.path / "in.json").write_text('{"n":8}')
        assert expect(h.run("run", "agents.yaml", "echo", "--input", "@in.json"), 0).json() == {"n": 8}
        result = expect(h.run("run", "agents.yaml", "echo", "--input", "@-", stdin='{"n":9}'), 0)
        assert result.json() == {"n": 9}


@test
def run_json_prints_the_job():
    with home() as h:
        body = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":7}', "--job-id", "j1",
                            "--label", "team=red", "--json"), 0).json()
        assert body["id"] == "j1" and body["agent"] == "echo" and body["status"] == "completed"
        assert body["input"] == {"n": 7} and body["result"] == {"n": 7} and body["labels"]["team"] == "red"
        for field in ("error", "waiting", "in_doubt", "waits", "parked", "attempt", "created_at", "updated_at"):
            assert field in body, field
        assert expect(h.run("job", "j1", "--json"), 0).json() == body


@test
def a_failed_job_exits_with_1():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "fails", "--json"), 1)
        assert result.json()["status"] == "failed" and result.json()["error"]["code"] == "no_money"
        result = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert result.out == "" and "the account is empty" in result.err and "already" not in result.err
        result = expect(h.run("run", "agents.yaml", "fails", "--job-id", "f"), 1)
        assert "job f had already failed; this command ran nothing" in result.err, result


@test
def invalid_input_exits_with_2_and_creates_no_store():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":"x"}', "--json"), 2)
        assert result.json()["code"] == "input_invalid" and "/n" in result.json()["detail"], result
        assert not h.store.exists()


@test
def dry_run_makes_no_calls_and_writes_nothing():
    with home() as h:
        body = expect(h.run("run", "agents.yaml", "holds_and_asks", "--dry-run", "--json"), 0).json()
        assert [step["id"] for step in body["steps"]] == ["h", "w"]
        assert "hold" in expect(h.run("run", "agents.yaml", "holds", "--dry-run"), 0).out
        assert not h.store.exists() and not (h.path / "began.txt").exists()
        expect(h.run("run", "agents.yaml", "echo", "--dry-run", "--input", '{"n":"x"}'), 2)


@test
def repeating_a_job_id_returns_the_same_job():
    with home() as h:
        first = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a"), 0)
        again = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a"), 0)
        assert again.out == first.out
        assert expect(h.run("run", "agents.yaml", "--job-id", "a"), 0).out == first.out
        assert len(expect(h.run("jobs", "--json"), 0).json()["jobs"]) == 1
        events = len(expect(h.run("events", "a", "--json"), 0).json()["events"])
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":2}', "--job-id", "a"), 5)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "a"), 5)
        assert "job a had already completed; this command ran nothing" in again.err and not first.err.count("already"), again
        assert len(expect(h.run("events", "a", "--json"), 0).json()["events"]) == events


@test
def an_idempotency_key_creates_one_job():
    with home() as h:
        words = ("run", "agents.yaml", "echo", "--idempotency-key", "k", "--json")
        one = expect(h.run(*words, "--input", '{"n":1}'), 0).json()
        two = expect(h.run(*words, "--input", '{"n":1}'), 0).json()
        assert one["id"] == two["id"]
        result = expect(h.run(*words, "--input", '{"n":2}'), 5)
        assert result.json()["code"] == "idempotency_conflict"


@test
def run_waits_for_timers():
    with home() as h:
        begin = time.monotonic()
        assert expect(h.run("run", "agents.yaml", "sleeps"), 0).json() == {"woke": True}
        assert time.monotonic() - begin >= 0.7
        assert expect(h.run("run", "agents.yaml", "sleeps", "--only"), 0).json() == {"woke": True}


@test
def retries_are_made_and_shown_in_the_trace():
    with home() as h:
        assert expect(h.run("run", "agents.yaml", "flaky", "--job-id", "f"), 0).out == "fine\n"
        text = expect(h.run("trace", "f"), 0).out
        assert "exit_75" in text, text


@test
def a_memory_store_is_not_persistent():
    with home() as h:
        assert expect(h.run("run", "agents.yaml", "echo", "--store", "memory:", "--input", '{"n":1}'), 0).json()
        assert not h.store.exists()
        assert expect(h.run("jobs", "--store", "memory:", "--json"), 0).json()["jobs"] == []


@test
def printed_commands_name_a_store_that_is_not_the_default():
    with home() as h:
        (h.path / "other").mkdir()
        result = expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--store", "sqlite:other/s.db"), 4)
        assert "aetheris signal w go-w" in result.err and "--store sqlite:other/s.db" in result.err, result
        assert (h.path / "other/s.db").exists() and not h.store.exists()
        expect(h.run("signal", "w", "go-w", "1", env={"AETHERIS_STORE": "sqlite:other/s.db"}), 0)


@test
def a_job_fails_at_its_deadline():
    with home() as h:
        result = expect(h.run("run", "agents.yaml", "sleeps", "--job-id", "a", "--deadline", "300ms", "--json"), 1).json()
        assert result["error"]["code"] == "deadline_exceeded", result
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b", "--deadline", "1h"), 0)
        for bad in ("soon", "", "0s"):
            expect(h.run("run", "agents.yaml", "echo", "--deadline", bad), 2)


@test
def a_secret_too_short_to_redact_causes_a_warning():
    with home() as h:
        (h.path / "s.yaml").write_text(
            "aetheris: 1\ntools:\n"
            "  t: { command: [\"sh\", \"-c\", \"echo $A-$B\"], env: { A: \"secret:PIN\", B: \"secret:TOKEN\" }, effect: read }\n"
            "agents:\n  s: { plan: [ { id: t, tool: t } ], output: \"${ .steps.t }\" }\n")
        result = expect(h.run("run", "s.yaml", env={"PIN": "123", "TOKEN": "12345"}), 0)
        assert result.out == "123-[secret TOKEN]\n", result
        warned = [line for line in result.err.splitlines() if "warning" in line]
        assert len(warned) == 1 and "PIN" in warned[0] and "123" not in warned[0] and "TOKEN" not in warned[0], result
        result = expect(h.run("run", "s.yaml", env={"PIN": "1234", "TOKEN": "12345"}), 0)
        assert "warning" not in result.err, result


@test
def run_recovers_unfinished_jobs_first_unless_only_is_given():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "lost")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "left"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"
        expect(h.run("run", "agents.yaml", "echo", "--only"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"
        assert expect(h.run("job", "lost", "--json"), 0).json()["status"] == "running"
        h.release_hold()
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits"), 4)
        for job in ("left", "lost"):
            assert expect(h.run("job", job, "--json"), 0).json()["status"] == "completed", job


@test
def run_does_not_recover_jobs_of_other_agents_files():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "left"), 0)
        (h.path / "other.yaml").write_text(
            "aetheris: 1\ntools:\n  e: { native: echo, effect: read }\nagents:\n"
            "  other: { plan: [ { id: a, tool: e } ] }\n")
        expect(h.run("run", "other.yaml"), 0)
        assert expect(h.run("job", "left", "--json"), 0).json()["status"] == "queued"


@test
def a_job_is_not_claimed_with_an_agents_file_that_cannot_run_it():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--detach", "--job-id", "e", "--input", '{"n":1}'), 0)
        (h.path / "less.yaml").write_text(
            "aetheris: 1\ntools:\n  other: { native: echo, effect: read }\nagents:\n"
            "  echo: { plan: [ { id: a, tool: other } ] }\n")
        result = expect(h.run("run", "less.yaml", "--job-id", "e", "--json"), 5)
        assert result.json()["code"] == "needs_version" and "echo" in result.json()["detail"], result
        result = expect(h.run("run", "less.yaml"), 0)  # and it does not block other jobs
        body = expect(h.run("job", "e", "--json"), 0).json()
        assert body["status"] == "queued" and body["attempt"] == 0, body
        assert expect(h.run("run", "agents.yaml", "--job-id", "e"), 0).json() == {"n": 1}
        expect(h.run("verify", "e"), 0)


@test
def a_job_stays_queued_until_a_process_offers_its_capabilities():
    with home() as h:
        (h.path / "needs.yaml").write_text("""
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  heavy: { required_capabilities: [gpu, eu], plan: [ { id: say, tool: echo, args: { x: 1 } } ] }
""")
        result = expect(h.run("run", "needs.yaml", "--job-id", "j", "--capability", "gpu"), 5)
        assert "needs_version" in result.err and "eu" in result.err, result
        body = expect(h.run("job", "j", "--json"), 0).json()
        assert body["status"] == "queued", body
        expect(h.run("run", "needs.yaml", "--job-id", "j", "--capability", "gpu", "--capability", "eu"), 0)
        expect(h.run("run", "needs.yaml", "--capability", "a b"), 2)


@test
def queue_limits_and_fairness_labels_are_applied():
    with home() as h:
        (h.path / "lines.yaml").write_text("""
aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents:
  a: { queue: nightly, plan: [ { id: say, tool: echo, args: { x: 1 } } ] }
""")
        for job, tenant in (("big1", "big"), ("big2", "big"), ("big3", "big"), ("small1", "small")):
            expect(h.run("run", "lines.yaml", "--job-id", job, "--detach", "--label", f"tenant={tenant}"), 0)
        assert expect(h.run("inspect", "big1", "--json"), 0).json()["job"]["queue"] == "nightly"
        expect(h.run("run", "lines.yaml", "--job-id", "last", "--queue", "daily", "--queue-limit", "nightly=1",
                     "--queue-limit", "daily=2", "--fair-by", "tenant"), 0)
        began = {job: expect(h.run("events", job, "--type", "job_running", "--json"), 0).json()["events"][0]["created_at"]
                 for job in ("big1", "big2", "big3", "small1", "last")}
        nightly = sorted(("big1", "big2", "big3", "small1"), key=began.get)
        assert nightly == ["big1", "small1", "big2", "big3"], began
        created = expect(h.run("events", "last", "--type", "job_created", "--json"), 0).json()["events"][0]["payload"]
        assert created["queue"] == "daily", created
        ends = {job: expect(h.run("events", job, "--type", "job_completed", "--json"), 0).json()["events"][0]["created_at"]
                for job in nightly}
        for one, next_one in zip(nightly, nightly[1:]):
            assert ends[one] <= began[next_one], (one, next_one, began, ends)
        expect(h.run("run", "lines.yaml", "--no-fair-by"), 0)
        for bad in (["--queue", "a b"], ["--queue", ""], ["--queue-limit", "nightly"], ["--queue-limit", "nightly=0"],
                    ["--queue-limit", "nightly=x"], ["--queue-limit", "=1"], ["--queue-limit", "a=1", "--queue-limit", "a=2"],
                    ["--fair-by", ""], ["--fair-by", "tenant", "--no-fair-by"]):
            result = expect(h.run("run", "lines.yaml", *bad), 2)
            assert bad[0] in result.err, result


@test
def a_strict_or_route_job_runs_only_under_its_own_execution_version():
    with home() as h:
        def file(version, policy):
            (h.path / "v.yaml").write_text(f"""
aetheris: 1
tools: {{ echo: {{ native: echo, effect: read }} }}
agents:
  a:
    versions: {{ policy: {policy}, execution: {version} }}
    plan: [ {{ id: t, wait: {{ type: timer, for: 50ms }} }}, {{ id: say, needs: [t], tool: echo, args: {{ x: 1 }} }} ]
""")
        file("one", "strict")
        for job in ("strict", "other", "ends"):
            expect(h.run("run", "v.yaml", "--job-id", job, "--detach"), 0)
        file("two", "strict")
        result = expect(h.run("run", "v.yaml", "--job-id", "strict"), 4)
        assert "parked: it needs another execution version" in result.err, result
        assert "execution: one" in result.err and "aetheris run FILE --job-id strict" in result.err, result
        parked = expect(h.run("job", "strict", "--json"), 0).json()
        assert parked["parked"]["until"] == "version" and parked["execution_version"] == "one", parked
        assert parked["parked"]["command"] == "aetheris run FILE --job-id strict", parked
        assert h.run("events", "strict", "--type", "node_started", "--json").json()["events"] == []
        noted = h.run("events", "strict", "--type", "version_mismatched", "--json").json()["events"][0]["payload"]
        assert (noted["job_version"], noted["worker_version"]) == ("one", "two"), noted
        assert "execution version one → two" in expect(h.run("trace", "strict"), 0).out
        listed = expect(h.run("jobs", "--stalled", "--json"), 0).json()["jobs"]
        stuck = {job["id"]: job["stalled"] for job in listed}
        assert stuck["strict"]["missing"] == ["execution_version:a=one"], stuck
        assert "version a=one" in stuck["strict"]["message"] and stuck["strict"]["until"] == "version", stuck
        # Another file of the same version changes nothing, and neither does `resume`; the run before met all three.
        expect(h.run("run", "v.yaml", "--job-id", "strict"), 4)
        assert "until `version`" in expect(h.run("resume", "strict"), 5).err
        assert len(h.run("events", "strict", "--type", "job_parked", "--json").json()["events"]) == 1
        # A plan that is not strict accepts any version; a cancelled job needs none.
        file("two", "warn")
        expect(h.run("plan", "other", "v.yaml"), 0)
        expect(h.run("run", "v.yaml", "--job-id", "other"), 0)
        file("two", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "ends"), 4)
        expect(h.run("cancel", "ends"), 0)
        file("one", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "strict"), 0)
        resumed = h.run("events", "strict", "--type", "job_resumed", "--json").json()["events"]
        assert len(resumed) == 1 and resumed[0]["payload"]["by"], resumed

        expect(h.run("run", "v.yaml", "--job-id", "swept", "--detach"), 0)
        file("two", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "swept"), 4)
        file("one", "strict")
        expect(h.run("run", "v.yaml", "--job-id", "new"), 0)  # a process that starts claims jobs that waited for its version
        until(lambda: h.run("job", "swept", "--json").json()["status"] in ("queued", "waiting", "completed"))

        file("one", "route")
        expect(h.run("run", "v.yaml", "--job-id", "route", "--detach"), 0)
        file("two", "route")
        result = expect(h.run("run", "v.yaml", "--job-id", "route"), 5)
        assert "execution_version_mismatch" in result.err, result
        assert h.run("job", "route", "--json").json()["status"] == "queued"
        file("one", "route")
        expect(h.run("run", "v.yaml", "--job-id", "route"), 0)
        file("one", "warn")
        expect(h.run("run", "v.yaml", "--job-id", "warned", "--detach"), 0)
        file("two", "warn")
        result = expect(h.run("run", "v.yaml", "--job-id", "warned"), 0)
        assert "execution version" in result.err, result


if __name__ == "__main__":
    sys.exit(run_tests("cli_run", TESTS, " ".join(sys.argv[1:])))
