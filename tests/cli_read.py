#!/usr/bin/env python3
"""Commands that read: jobs, events, trace, replay and inspect; they create nothing and need no owner.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_read.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import re
import sqlite3
import subprocess
import sys
import time

from shared.home import PATIENCE, expect, home, run_tests, until

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def without_a_store_commands_report_not_found_and_create_none():
    with home() as h:
        for words in (["jobs"], ["approvals"], ["job", "a"], ["events", "a"], ["events", "a", "-f"], ["trace", "a"], ["replay", "a"],
                      ["verify", "a"], ["signal", "a", "k"], ["cancel", "a"],
                      ["resolve", "a", "12345678", "fail"]):
            result = expect(h.run(*words, "--json"), 3)
            assert result.json()["code"] == "not_found", result
        assert not (h.path / ".aetheris").exists()


@test
def without_an_owner_read_commands_write_nothing_and_a_signal_runs_no_job():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--only"), 4)

        def written():  # without the index of the write-ahead log, which readers share
            files = [h.store, h.store.with_name(h.store.name + "-wal")]
            return [file.read_bytes() if file.exists() else b"" for file in files]

        before = written()
        for words in (["jobs"], ["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"], ["verify", "a"],
                      ["approvals"]):
            expect(h.run(*words), 0)
            assert written() == before, words
        seq = expect(h.run("job", "a", "--json"), 0).json()["seq"]
        expect(h.run("signal", "a", "go-a", "7"), 0)
        job = expect(h.run("job", "a", "--json"), 0).json()
        assert job["status"] == "queued" and job["seq"] > seq, job
        last = expect(h.run("run", "agents.yaml", "--job-id", "a"), 0)
        assert last.json() == 7, "the lock is free again"
        assert "resuming job a (queued)\n" in last.err, last


@test
def a_queued_job_reports_that_no_worker_runs_its_agent():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n":1}', "--job-id", "a", "--detach"), 0)
        (h.path / "other.yaml").write_text("aetheris: 1\nagents:\n  nap:\n    plan:\n"
                                           "      - { id: w, wait: { type: timer, for: 10ms } }\n")
        server = h.start("serve", "other.yaml", "--listen", "127.0.0.1:0", "--json")
        assert "listening" in json.loads(server.stdout.readline())
        job = expect(h.run("job", "a", "--json"), 0).json()
        assert job["status"] == "queued" and job["no_worker"]["message"].startswith("no worker runs the agent echo;"), job
        assert "answer: aetheris serve FILE\n" in expect(h.run("job", "a"), 0).out
        nap = expect(h.run("run", "other.yaml", "--job-id", "n", "--json"), 0).json()
        assert nap["no_worker"] is None, nap


@test
def jobs_are_listed_newest_first_and_filtered():
    with home() as h:
        for i, label in enumerate(["red", "blue", "red"]):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", f"j{i}", "--label", f"team={label}"), 0)
            time.sleep(0.005)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "bad"), 1)
        ids = [job["id"] for job in expect(h.run("jobs", "--json"), 0).json()["jobs"]]
        assert ids == ["bad", "j2", "j1", "j0"], ids
        def listed(*words):
            return [job["id"] for job in expect(h.run("jobs", "--json", *words), 0).json()["jobs"]]
        assert listed("--label", "team=red") == ["j2", "j0"]
        assert listed("--status", "failed") == ["bad"]
        assert listed("--status", "failed", "--status", "completed", "--limit", "2") == ["bad", "j2"]
        assert listed("--error", "http_500", "--since", "1h") == [] and listed("--kind", "plan", "--search", "j1") == ["j1"]
        assert listed("--sort", "ended") == ids and listed("--sort", "changed", "--until", "1h") == []
        assert listed("--agent", "echo", "--limit", "2") == ["j2", "j1"]
        page = expect(h.run("jobs", "--json", "--limit", "2"), 0).json()
        assert page["next_cursor"].startswith("j2@"), page
        assert listed("--limit", "2", "--cursor", page["next_cursor"]) == ["j1", "j0"]
        assert listed("--limit", "2", "--cursor", "j2") == ["j1", "j0"]
        counts = expect(h.run("jobs", "--count", "--label", "team=red", "--json"), 0).json()
        assert counts["statuses"]["completed"] == 2 and counts["statuses"]["failed"] == 0 and not counts["capped"], counts
        text = expect(h.run("jobs", "--count"), 0).out
        assert ["completed", "3"] in [line.split() for line in text.splitlines()] and "request: budget" in text, text
        expect(h.run("jobs", "--count", "--status", "failed"), 2)
        text = expect(h.run("jobs"), 0).out
        assert text.splitlines()[0].split()[:3] == ["ID", "STATUS", "AGENT"] and "\x1b" not in text


@test
def jobs_lists_why_each_job_does_not_continue():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "good"), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "bad"), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "asks"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "doubts"), 4)
        rows = {line.split()[0]: line for line in expect(h.run("jobs"), 0).out.splitlines()}
        assert rows["ID"].rstrip().endswith("REASON"), rows
        assert "no_money: " in rows["bad"] and "waits for" in rows["asks"], rows
        assert rows["doubts"].endswith("the outcome of a call is unknown"), rows
        assert re.fullmatch(r"good +completed +echo +[-0-9]+ [:0-9]+Z +[\d.]+ m?s", rows["good"]), rows
        expect(h.run("cancel", "asks"), 0)
        assert "been cancelled" in expect(h.run("run", "agents.yaml", "--job-id", "asks"), 1).err


@test
def events_have_all_envelope_fields():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        body = expect(h.run("events", "a", "--json"), 0).json()
        assert body["next"] is None
        events = body["events"]
        assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
        assert events[0]["type"] == "job_created" and events[-1]["type"] == "job_completed"
        assert events[0]["prev_hash"] == "0" * 64
        for before, event in zip(events, events[1:]):
            assert event["prev_hash"] == before["hash"]
        for event in events:
            assert {"job_id", "seq", "id", "type", "schema", "created_at", "payload", "prev_hash",
                    "hash"} <= set(event), event
        lines = expect(h.run("events", "a", "-f", "--json"), 0).out.splitlines()
        assert [json.loads(line) for line in lines] == events
        types = [e["type"] for e in expect(h.run("events", "a", "--json", "--type", "node_finished"), 0).json()["events"]]
        assert types == ["node_finished"]
        classes = expect(h.run("events", "a", "--json", "--class", "coordination"), 0).json()["events"]
        assert {e["type"] for e in classes} == {"job_running"}
        after = expect(h.run("events", "a", "--json", "--after", "3"), 0).json()["events"]
        assert after == events[3:]
        assert len(expect(h.run("events", "a"), 0).out.splitlines()) == len(events)


@test
def replay_shows_the_state_at_an_earlier_event():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        early = expect(h.run("replay", "a", "--at", "2", "--json"), 0).json()
        late = expect(h.run("replay", "a", "--json"), 0).json()
        assert early != late
        expect(h.run("replay", "a"), 0)
        assert expect(h.run("replay", "a", "--at", "9999", "--json"), 2).json()["code"] == "input_invalid"


@test
def inspect_shows_all_rows_of_a_job_and_reports_a_corrupt_commit():
    with home() as h:
        expect(h.run("inspect", "nobody"), 3)
        expect(h.run("run", "agents.yaml", "flaky", "--job-id", "a", "--durability", "split"), 0)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "b", "--label", "team=red"), 4)
        jobs = {job["id"]: job for job in expect(h.run("inspect", "--json"), 0).json()["jobs"]}
        assert set(jobs) == {"a", "b"} and jobs["b"]["labels"] == {"team": "red"}, jobs
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        assert body["job"] == jobs["a"]
        events = expect(h.run("events", "a", "--json"), 0).json()["events"]
        assert [t for c in body["commits"] for t in c["types"]] == [e["type"] for e in events]
        assert body["commits"][-1]["head"] == events[-1]["hash"] == jobs["a"]["head"]
        assert all(c["bytes"] > 0 and len(c["sha256"]) == 64 for c in body["commits"])
        assert len(body["effects"]) == len(body["ledger"]) == 2 and body["effects"][0]["record"]["try"] == 1
        assert body["blobs"] and all(blob["whole"] for blob in body["blobs"])
        text = expect(h.run("inspect", "a"), 0).out
        assert "job_created" in text and "effects" in text
        assert "b" in expect(h.run("inspect"), 0).out
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            row = db.execute("SELECT id, body FROM commits ORDER BY id LIMIT 1 OFFSET 2").fetchone()
            db.execute("UPDATE commits SET body = ? WHERE id = ?", (row[1][:-1] + b"?", row[0]))
            db.commit()
        broken = expect(h.run("inspect", "a", "--json"), 0).json()["commits"]
        assert "refused" in broken[2] and "types" in broken[1] and "types" not in broken[3]


@test
def inspect_reads_while_another_process_owns_the_store():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "a")
        h.wait_for_hold()
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        assert body["job"]["status"] == "running" and body["job"]["claim"]["epoch"] == 1, body["job"]
        assert body["ledger"][0]["state"] == "INFLIGHT", body["ledger"]
        h.release_hold()
        expect(h.end(runner), 0)


@test
def trace_lists_steps_by_parent_and_shows_a_single_step():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        nodes = expect(h.run("trace", "a", "--json"), 0).json()["nodes"]
        page = expect(h.run("trace", "a", "--parent", "root", "--json"), 0).json()
        assert [row["step_id"] for row in page["steps"]] == [node["step_id"] for node in nodes], page
        assert page["total"] == len(nodes) and page["by_status"] == {"done": len(nodes)}, page
        step = nodes[0]["step_id"]
        assert expect(h.run("trace", "a", "--step", step, "--json"), 0).json() == {**nodes[0], "items": []}
        listed = expect(h.run("trace", "a", "--parent", "root"), 0).out
        assert step in listed and "done" in listed, listed
        shown = expect(h.run("trace", "a", "--step", step), 0).out
        assert nodes[0]["node_id"] in shown and "done" in shown, shown
        expect(h.run("trace", "a", "--parent", step), 0)
        expect(h.run("trace", "a", "--step", "nothing"), 3)
        expect(h.run("trace", "a", "--step", step, "--parent", "root"), 2)


@test
def followed_events_continue_across_owners():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)
        watcher = h.start("events", "w", "-f", "--json")
        time.sleep(0.5)
        expect(h.run("signal", "w", "go-w", "5"), 0)
        time.sleep(0.3)
        assert watcher.poll() is None
        expect(h.run("run", "agents.yaml", "--job-id", "w"), 0)
        seen = [json.loads(line)["seq"] for line in expect(h.end(watcher), 0).out.splitlines()]
        assert seen == list(range(1, len(seen) + 1)) and len(seen) > 10, seen


@test
def followed_events_continue_across_a_server_restart():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w"), 4)

        def serve(listen):
            server = h.start("serve", "agents.yaml", "--listen", listen, "--json")
            return server, json.loads(server.stdout.readline())["listening"]

        server, url = serve("127.0.0.1:0")
        out, err = h.path / "out.txt", h.path / "err.txt"
        with open(out, "wb") as to, open(err, "wb") as warnings:
            watcher = subprocess.Popen([h.program, "events", "w", "-f", "--json"], cwd=h.path, env={**h.env, "AETHERIS_URL": url},
                                       stdin=subprocess.DEVNULL, stdout=to, stderr=warnings)
        h.started.append(watcher)
        until(lambda: "wait_opened" in out.read_text())
        server.terminate()
        h.end(server)
        until(lambda: "the connection is lost" in err.read_text())
        server, _ = serve(url.removeprefix("http://"))
        expect(h.run("signal", "w", "go-w", "5"), 0)
        watcher.wait(PATIENCE)
        server.terminate()
        h.end(server)
        assert watcher.returncode == 0, err.read_text()
        seen = [json.loads(line) for line in out.read_text().splitlines()]
        assert seen == expect(h.run("events", "w", "--json"), 0).json()["events"], seen
        warnings = err.read_text().splitlines()
        assert len(warnings) == 2 and url in warnings[0] and "available again" in warnings[1], warnings


@test
def replay_without_json_prints_a_summary():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":7}'), 0)
        result = expect(h.run("replay", "a"), 0).out
        assert len(result.splitlines()) < 20 and "completed" in result and '{"n":7}' in result, result


if __name__ == "__main__":
    sys.exit(run_tests("cli_read", TESTS, " ".join(sys.argv[1:])))
