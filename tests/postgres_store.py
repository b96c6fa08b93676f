#!/usr/bin/env python3
"""A store on a real PostgreSQL server: rebuild, restored and rolled back stores, doctor, prune.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  postgres_store.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import sys

from shared import retention
from shared.home import expect, home, until
from shared.postgres_server import NUMBERS, run_with_server, running_server, shared_store, sql
from shared.server import Server

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def an_invalid_time_in_one_row_stops_no_other_job():
    file = {"aetheris": 1, "tools": {"e": {"native": "echo", "effect": "read"}},
            "agents": {"waits": {"plan": [{"id": "w", "wait": {"type": "signal", "key": "k"}}]}}}
    for column in ("created_at", "updated_at", "not_before", "wake_at", "ripe_at"):
        for value in (2**63 - 1, -(2**63)):
            with shared_store() as (h, env):
                (h.path / "agents.yaml").write_text(json.dumps(file))
                for job in ("damaged", "sound"):
                    expect(h.run("run", "agents.yaml", "waits", "--only", "--job-id", job, env=env), 4)
                table, key = {"created_at": ("jobs", "number"),
                              "updated_at": ("log_ends", "job")}.get(column, ("heads", "job"))
                one = "(SELECT number FROM jobs WHERE job_id = 'damaged')"
                sql(env, f"UPDATE {table} SET {column} = {value} WHERE {key} = {one}")
                where = (column, value)
                server = Server(h, env=env)
                status, jobs = server.get("/api/jobs")
                assert status == 200 and len(jobs["jobs"]) == 2, (where, jobs)
                for job in ("damaged", "sound"):
                    server.post(f"/api/jobs/{job}/signal", {"correlation_key": "k"})
                until(lambda: server.status("sound") == "completed")
                for path in ("/api/jobs/damaged", "/api/jobs/damaged/trace", "/metrics"):
                    assert server.get(path)[0] < 500 or "log_corrupt" in str(server.get(path)[1]), (where, path)
                expect(server.stop(), 0)


TABLES = ("jobs", "heads", "log_ends", "commits", "labels", "checkpoints", "effects", "ledger", "inbox", "signed_heads",
          "blobs", "summaries")


# Every column that is derived from the log. The lease holder and the epoch are not.
DAMAGE = """
UPDATE jobs SET agent = 'nobody', idempotency_key = '';
UPDATE jobs SET request_hash = 'x', priority = 77 - priority, capabilities = '{no}', created_at = number, forked_from = 'x';
UPDATE jobs SET agent = 'echo', idempotency_key = 'k' WHERE number = (SELECT max(number) FROM jobs);
UPDATE heads SET priority = 9, queue = 'q', turn = 't', not_before = 5, wake_at = 6, ripe_at = 7, ready = NOT ready,
    status = CASE status WHEN 'completed' THEN 'running' ELSE 'completed' END;
UPDATE log_ends SET updated_at = 8, attempt = 'nobody';
DELETE FROM heads WHERE attempt IS NULL AND job % 2 = 0;
DELETE FROM log_ends WHERE job % 3 = 0;
UPDATE summaries SET error = 'x', kind = 'x', cost_micros = 7, changed_at = 7, body = 'y';
INSERT INTO summaries VALUES(9999, '', 'plan', 0, 0, '{}');
DELETE FROM labels;
INSERT INTO labels SELECT min(number), 0, 'not', 'so' FROM jobs;
INSERT INTO labels VALUES(9999, 0, 'of', 'nobody');
UPDATE commits SET last_seq = 0, blobs = 'y';
"""


def rows_of(env):
    return {table: sql(env, f"SELECT t::text FROM {table} t ORDER BY 1") for table in TABLES}


@test
def rebuild_restores_the_rows_of_every_kind_of_job_also_while_a_server_runs():
    with shared_store() as (h, env):
        expect(h.run("rebuild", env=env), 3)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--idempotency-key", "k", "--label", "z=1",
                     "--label", "a=2", "--input", '{"n": 1}', env=env), 0)
        expect(h.run("run", "agents.yaml", "fails", "--job-id", "failed", env=env), 1)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting", "--label", "team=red", env=env), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked", env=env), 4)
        expect(h.run("run", "agents.yaml", "maps_and_asks", "--job-id", "long", "--input", json.dumps(list(range(80))),
                     env=env), 4)
        before = rows_of(env)
        fine = expect(h.run("rebuild", "--check", "--json", env=env), 0).json()
        assert fine["ok"] and fine["jobs"] == 5 and fine["differing"] == [], fine

        sql(env, DAMAGE)
        damaged = rows_of(env)
        assert damaged != before
        body = expect(h.run("rebuild", "--check", "--job", "done", "--json", env=env), 6).json()
        status = [row for row in body["differing"][0]["rows"] if row["column"] == "status"]
        assert status in ([], [{"column": "status", "derived": "'completed'", "stored": "'running'", "table": "heads"}]), body
        refused = expect(h.run("rebuild", "--job", "done", env=env), 6)
        assert "another job of agent echo" in refused.out + refused.err, refused
        assert rows_of(env) == damaged, "neither a comparison nor a refused rebuild writes"

        result = expect(h.run("rebuild", env=env), 0)
        assert "5 rebuilt" in result.out, result
        after = rows_of(env)
        for table in TABLES:
            assert after[table] == before[table], (table, before[table], after[table])
        audit = expect(h.run("audit", "--json", env=env), 0).json()["entries"]
        assert [entry["act"] for entry in audit] == ["rebuild"], audit
        expect(h.run("audit", "--verify", env=env), 0)
        sql(env, "DELETE FROM checkpoints")
        expect(h.run("rebuild", env=env), 0)
        assert rows_of(env)["checkpoints"] == before["checkpoints"]

        server = Server(h, env=env)
        server.post("/api/jobs", {"agent": "holds", "id": "held"})
        h.wait_for_hold()
        expect(h.run("rebuild", env=env), 0)
        h.release_hold()
        until(lambda: server.status("held") == "completed")
        expect(server.stop(), 0)
        sql(env, "DELETE FROM commits WHERE job = 1 AND first_seq > 1")
        cut = rows_of(env)
        result = expect(h.run("rebuild", "--json", env=env), 6).json()
        assert not result["ok"], result
        assert rows_of(env) == cut, "the rows of a truncated log stay"


@test
def a_changed_fairness_label_is_not_reported_as_a_difference_by_rebuild():
    with shared_store() as (h, env):
        def turns():
            return sql(env, "SELECT job_id, turn FROM heads JOIN jobs ON number = job ORDER BY 1")

        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--label", "team=red", "--input", '{"n": 1}', env=env), 0)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "b", "--label", "team=blue", env=env), 4)
        for label in ("team", "zone"):
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "c" + label, "--label", "team=red", "--label", "zone=x",
                         "--input", '{"n": 1}', "--fair-by", label, env=env), 0)
            result = expect(h.run("rebuild", "--check", "--json", env=env), 0).json()
            assert result["ok"] and result["differing"] == [], result
        there = turns()
        assert there.split() == ["SET", "a|", "b|", "cteam|red", "czone|x"], there
        expect(h.run("rebuild", env=env), 0)
        assert turns() == there
        sql(env, "UPDATE heads SET turn = 'nobody'")
        expect(h.run("rebuild", "--check", env=env), 6)
        expect(h.run("rebuild", env=env), 0)
        assert turns().split() == ["SET", "a|", "b|", "cteam|x", "czone|x"], turns()


def dump(env):
    """Dumps the store as the operations manual describes; `restore` restores it."""
    path = f"/tmp/aetheris-{os.getpid()}-{next(NUMBERS)}.dump"
    running_server().program("pg_dump", "-Fc", "-n", "aetheris", "-f", path, env["AETHERIS_STORE"].rsplit("/", 1)[1])
    return path


def forget_location(env):
    """Removes the recorded location, as in a store of an older version."""
    sql(env, "DELETE FROM aetheris.meta WHERE key = 'place'")


def restore(env, path):
    name = env["AETHERIS_STORE"].rsplit("/", 1)[1]
    running_server().program("psql", "-d", name, "-qc", "DROP SCHEMA aetheris CASCADE")
    running_server().program("pg_restore", "--exit-on-error", "--single-transaction", "-d", name, path)


@test
def a_restored_store_is_detected_by_its_position_file_or_declared_with_restored():
    for remembers in (True, False):
        with shared_store() as (h, env):
            expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach", env=env), 0)
            backup = dump(env)
            expect(h.run("signal", "waits", "go-waits", '"after the backup"', env=env), 0)
            expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
            restore(env, backup)
            os.unlink(backup)
            forget_location(env)
            marks = list((h.path / ".aetheris").glob("*.mark"))
            assert len(marks) == 1, marks
            if not remembers:
                marks[0].unlink()
            result = h.run("doctor", "--json", env=env).json()
            assert remembers == ("store_rolled_back" in [p["code"] for p in result["problems"]]), result
            if remembers:
                for words in (["run", "agents.yaml", "echo"], ["signal", "waits", "go-waits", "1"],
                              ["serve", "agents.yaml", "--listen", "127.0.0.1:0"]):
                    result = expect(h.run(*words, env=env), 7)
                    assert "store_rolled_back" in result.err and "doctor --accept-rollback" in result.err, result
                assert expect(h.run("job", "waits", "--json", env=env), 0).json()["status"] == "waiting"
            else:
                expect(h.run("doctor", "--restored", env=env), 2)
            words = ["doctor", "--accept-rollback", "--json"] + ([] if remembers else ["--restored"])
            body = expect(h.run(*words, env=env), 0).json()
            assert body == {"accepted": True, "ending": 0, "may_repeat": [], "parked": 2, "pausing": 0}, body
            for job in ("waits", "queued"):
                parked = expect(h.run("job", job, "--json", env=env), 0).json()["parked"]
                assert (parked["reason"], parked["until"]) == ("store_rolled_back", "resume"), parked
            expect(h.run("resume", "waits", env=env), 0)
            expect(h.run("signal", "waits", "go-waits", '"again"', env=env), 0)
            expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
            expect(h.run("verify", "waits", env=env), 0)
            expect(h.run("audit", "--verify", env=env), 0)


@test
def a_restored_dump_is_detected_without_a_position_file():
    for where in ("same", "other"):
        for end in ("accept", "nothing_lost"):
            with shared_store() as (h, env), home() as fresh:
                expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
                expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach", env=env), 0)
                backup = dump(env)
                if where == "same":
                    restore(env, backup)
                else:
                    env = {"AETHERIS_STORE": running_server().database()}
                    running_server().program("pg_restore", "--exit-on-error", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], backup)
                os.unlink(backup)
                for words in (["run", "agents.yaml", "echo"], ["signal", "waits", "go-waits", "1"],
                              ["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["worker", "agents.yaml"]):
                    result = expect(fresh.run(*words, env=env), 7)
                    assert "store_rolled_back" in result.err and "doctor --accept-rollback" in result.err, result
                result = fresh.run("doctor", "--json", env=env).json()
                assert "store_rolled_back" in [p["code"] for p in result["problems"]], result
                assert expect(fresh.run("job", "waits", "--json", env=env), 0).json()["status"] == "waiting"
                if end == "accept":
                    body = expect(fresh.run("doctor", "--accept-rollback", "--json", env=env), 0).json()
                    assert (body["accepted"], body["parked"]) == (True, 2), body
                    assert expect(fresh.run("job", "waits", "--json", env=env), 0).json()["status"] == "parked"
                    expect(fresh.run("resume", "waits", env=env), 0)
                else:
                    body = expect(fresh.run("doctor", "--accept-rollback", "--nothing-lost", "--json", env=env), 0).json()
                    assert (body["accepted"], body["parked"]) == (True, 0), body
                expect(fresh.run("signal", "waits", "go-waits", '"here"', env=env), 0)
                expect(fresh.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
                expect(fresh.run("audit", "--verify", env=env), 0)


@test
def nothing_lost_is_refused_when_the_position_file_is_ahead():
    with shared_store() as (h, env):
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)
        backup = dump(env)
        expect(h.run("signal", "waits", "go-waits", '1', env=env), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only", env=env), 0)
        restore(env, backup)
        os.unlink(backup)
        result = expect(h.run("doctor", "--accept-rollback", "--nothing-lost", env=env), 7)
        assert "went backwards" in result.err, result
        expect(h.run("doctor", "--accept-rollback", env=env), 0)


@test
def a_database_server_without_an_identifier_is_compared_by_its_other_values():
    with shared_store() as (h, env):
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", env=env), 0)
        place = sql(env, "SELECT value FROM aetheris.meta WHERE key = 'place'").split()[1:]
        for known, code in ((["-", *place[1:]], 0), (["1", *place[1:]], 7), ([place[0], "1", place[2]], 7)):
            sql(env, f"UPDATE aetheris.meta SET value = '{' '.join(known)}' WHERE key = 'place'")
            assert (h.run("signal", "a", "k", "1", env=env).code == 7) == (code == 7), known


@test
def a_server_whose_store_was_rolled_back_stops_writing():
    with shared_store() as (h, env):
        server = Server(h, env=env)
        server.post("/api/jobs", {"agent": "echo", "input": {"n": 1}, "id": "before"})
        until(lambda: server.status("before") == "completed")
        backup = dump(env)
        server.post("/api/jobs", {"agent": "echo", "input": {"n": 2}, "id": "after"})
        until(lambda: server.status("after") == "completed")
        restore(env, backup)
        os.unlink(backup)
        result = until(lambda: server.process.poll() is not None and h.end(server.process))
        assert result.code == 7 and "went backwards" in result.err, result
        expect(h.run("signal", "before", "k", "1", env=env), 7)
        body = expect(h.run("doctor", "--accept-rollback", "--json", env=env), 0).json()
        assert body["accepted"], body
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 3}', env=env), 0)


@test
def a_server_without_workers_stops_when_its_store_was_rolled_back():
    with shared_store() as (h, env):
        server = Server(h, "agents.yaml", "--workers", "0", env=env)
        assert server.post("/api/jobs", {"agent": "echo", "id": "before"})[0] == 201
        backup = dump(env)
        assert server.post("/api/jobs", {"agent": "echo", "id": "after"})[0] == 201
        restore(env, backup)
        os.unlink(backup)
        result = until(lambda: server.process.poll() is not None and h.end(server.process))
        assert result.code == 7 and "went backwards" in result.err, result


@test
def doctor_reports_a_missing_synchronous_standby_and_an_unreachable_server():
    with shared_store() as (h, env):
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 1}', env=env), 0)
        result = h.run("doctor", "--json", env=env)
        codes = [problem["code"] for problem in result.json()["problems"]]
        assert "no_synchronous_standby" in codes, result
        unreachable = h.run("doctor", "--json", "--store", "postgres://127.0.0.1:1/x")
        assert "unavailable" in [problem["code"] for problem in unreachable.json()["problems"]], unreachable


@test
def doctor_and_verify_report_damage_outside_the_logs():
    with shared_store() as (h, env):
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits", env=env), 4)

        def codes():
            return {p["code"]: p["message"] for p in h.run("doctor", "--json", env=env).json()["problems"]}

        assert not {"foreign_trigger", "meta", "rows_differ"} & set(codes()), codes()
        for damage, code, repair in (
                ("CREATE RULE evil AS ON UPDATE TO audit DO INSTEAD NOTHING", "foreign_trigger", "DROP RULE evil ON audit"),
                ("CREATE TRIGGER evil BEFORE UPDATE ON heads FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                 "foreign_trigger", "DROP TRIGGER evil ON heads"),
                ("UPDATE heads SET status = 'completed'", "rows_differ", "UPDATE heads SET status = 'waiting'"),
                ("UPDATE meta SET value = 'x' WHERE key = 'audit_head'", "meta",
                 "UPDATE meta SET value = '0 ' || repeat('0', 64) WHERE key = 'audit_head'")):
            sql(env, damage)
            found = codes()
            assert code in found, (damage, found)
            if code == "foreign_trigger":
                assert f"`{repair}`" in found[code], found
            sql(env, repair)
        assert not {"foreign_trigger", "meta", "rows_differ"} & set(codes()), codes()
        sql(env, "UPDATE jobs SET request_hash = decode(repeat('00', 32), 'hex')")
        result = expect(h.run("verify", "waits", "--json", env=env), 6).json()
        assert "request_hash" in result["proofs"]["state_machine"]["detail"], result


@test
def a_prune_that_is_killed_can_be_repeated_until_all_jobs_are_deleted():
    with shared_store() as (h, env):
        retention.check_prune_survives_kills(h, env)


if __name__ == "__main__":
    sys.exit(run_with_server("postgres_store", TESTS))
