#!/usr/bin/env python3
"""`aetheris rebuild`: the rows of a store are derived again from its logs.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_rebuild.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import sqlite3
import sys

from shared.home import expect, home, run_sql, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


DAMAGE = """
    UPDATE jobs SET agent = 'nobody', idempotency_key = '';
    UPDATE jobs SET request_hash = x'00', priority = 9, capabilities = 'no', queue = 'q', turn = 't', created_at = 1, not_before = 5, wake_at = 6,
      ripe_at = 7, ready = 9, status = CASE status WHEN 'completed' THEN 'running' ELSE 'completed' END;
    DELETE FROM heads; DELETE FROM labels;
    INSERT INTO labels VALUES(1, 0, 'not', 'so');
    UPDATE commits SET first_seq = 0, last_seq = 0, prev = id, jump = NULL, blobs = x'00';
    UPDATE checkpoints SET body = x'00';
"""


def rows_of(store):
    """Every row of every table."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: sorted(map(repr, db.execute(f"SELECT * FROM {table}"))) for table in tables}


@test
def rebuild_restores_the_rows_of_every_kind_of_job():
    with home() as h:
        expect(h.run("rebuild"), 3)
        expect(h.run("rebuild", "--store", "memory:"), 2)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--idempotency-key", "k", "--label", "z=1",
                     "--label", "a=2"), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "failed"), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting", "--label", "team=red"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked"), 4)
        expect(h.run("run", "agents.yaml", "maps_and_asks", "--job-id", "long", "--input", json.dumps(list(range(80)))), 4)
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "live", "--only")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        before = rows_of(h.store)
        assert len(before["checkpoints"]) == 1 and len(before["jobs"]) == 6, before
        fine = expect(h.run("rebuild", "--check", "--json"), 0).json()
        assert fine["ok"] and fine["checked_only"] and fine["jobs"] == 6 and fine["differing"] == [], fine

        run_sql(h.store, DAMAGE)
        damaged = rows_of(h.store)
        result = expect(h.run("rebuild", "--check"), 6)
        assert "jobs.status" in result.out and "waiting" in result.out and "heads" in result.out, result
        body = expect(h.run("rebuild", "--check", "--job", "waiting", "--json"), 6).json()
        assert not body["ok"] and body["jobs"] == 1, body
        status = [row for row in body["differing"][0]["rows"] if row["column"] == "status"]
        assert status == [{"column": "status", "derived": "'waiting'", "stored": "'completed'", "table": "jobs"}], body
        assert rows_of(h.store) == damaged
        expect(h.run("rebuild", "--job", "nobody"), 3)

        result = expect(h.run("rebuild"), 0)
        assert "6 rebuilt" in result.out, result
        after = rows_of(h.store)
        for table, rows in before.items():
            if table not in ("audit", "meta"):  # they record the rebuild
                assert after[table] == rows, (table, rows, after[table])
        assert len(after["audit"]) == 1, after["audit"]
        expect(h.run("rebuild", "--check"), 0)

        run_sql(h.store, "DELETE FROM checkpoints")
        expect(h.run("rebuild", "--check"), 0)  # checkpoints are optional
        expect(h.run("rebuild"), 0)
        assert rows_of(h.store)["checkpoints"] == before["checkpoints"]
        for job in ("done", "failed", "waiting", "parked", "long", "live"):
            expect(h.run("verify", job), 0)
        h.release_hold()
        assert expect(h.run("run", "agents.yaml", "--job-id", "live"), 0).out == "held\n"
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)


@test
def rebuild_restores_the_request_of_an_idempotency_key():
    with home() as h:
        command = ["run", "agents.yaml", "asks", "--detach", "--idempotency-key", "k", "--priority", "3", "--queue", "slow",
                 "--deadline", "1h"]
        job = expect(h.run(*command), 0).out
        before = rows_of(h.store)
        assert expect(h.run("rebuild", "--check", "--json"), 0).json()["ok"]
        run_sql(h.store, "UPDATE jobs SET request_hash = x'00'")
        expect(h.run("rebuild"), 0)
        assert rows_of(h.store)["jobs"] == before["jobs"]
        assert expect(h.run(*command), 0).out == job
        for other in (["--priority", "4"], ["--queue", "fast"], ["--deadline", "2h"]):
            name = command.index(other[0])
            expect(h.run(*command[:name], *other, *command[name + 2:]), 5)


@test
def rebuild_is_refused_while_another_process_owns_the_store():
    with home() as h:
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "a")
        h.wait_for_hold()
        result = expect(h.run("rebuild"), 7)
        assert "store_locked" in result.err and str(runner.pid) in result.err, result
        expect(h.run("rebuild", "--check"), 0)
        h.release_hold()
        expect(h.end(runner), 0)
        expect(h.run("rebuild"), 0)


@test
def a_killed_rebuild_can_be_run_again():
    with home() as h:
        for number in range(55):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", f"j{number}", "--only"), 0)
        before = rows_of(h.store)
        run_sql(h.store, DAMAGE)
        expect(h.run("rebuild", env={"AETHERIS_FAILPOINTS": "rebuild.after_batch=exit@1"}), 137)
        half = expect(h.run("rebuild", "--check", "--json"), 6).json()
        assert 0 < half["differing_jobs"] < 55, half["differing_jobs"]
        expect(h.run("rebuild"), 0)
        after = rows_of(h.store)
        for table, rows in before.items():
            if table not in ("audit", "meta"):
                assert after[table] == rows, table
        assert len(after["audit"]) == 2, after["audit"]


@test
def rebuild_does_not_change_the_rows_of_a_truncated_log():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        run_sql(h.store, "DELETE FROM commits WHERE id = (SELECT last_commit FROM heads WHERE job = 1)")
        cut = rows_of(h.store)
        body = expect(h.run("rebuild", "--json"), 6).json()
        assert [refused["id"] for refused in body["refused"]] == ["a"] and body["refused"][0]["code"] == "log_corrupt", body
        assert rows_of(h.store) == cut
        result = expect(h.run("rebuild"), 6)
        assert "a: " in result.err and "backup" in result.err, result


if __name__ == "__main__":
    sys.exit(run_tests("cli_rebuild", TESTS, " ".join(sys.argv[1:])))
