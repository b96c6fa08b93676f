#!/usr/bin/env python3
"""Integrity of a store: verify, signed heads, modified logs, rollback, redaction, the audit log, doctor.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  cli_integrity.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys

from shared.home import expect, home, run_sql, run_tests

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def verify_reports_each_proof():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        body = expect(h.run("verify", "a", "--json"), 0).json()
        assert body["ok"] is True and body["head"] == "unsigned", body
        assert set(body["proofs"]) == {"execution_hash", "event_chain", "ledger", "replay", "state_machine"}
        assert all(proof["ok"] is True for proof in body["proofs"].values())
        expect(h.run("verify", "a"), 0)


def create_key(h, name):
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(h.path / name)], check=True)
    (h.path / name).chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", str(h.path / name), "-pubout", "-out", str(h.path / (name + ".pub"))],
                   check=True)


@test
def a_signed_head_proves_the_signer_and_the_completeness_of_the_log():
    with home() as h:
        create_key(h, "ada")
        create_key(h, "eve")
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", "--signing-key", "ada"), 4)
        for key in ("ada", "ada.pub"):
            assert expect(h.run("verify", "a", "--key", key, "--json"), 0).json()["head"] == "intact"
        proof = expect(h.run("verify", "a", "--json"), 0).json()
        assert proof["head"] == "unknown_key" and len(proof["signature"]["key_id"]) == 16, proof
        assert expect(h.run("verify", "a", "--key", "eve.pub", "--json"), 6).json()["head"] == "unknown_key"
        assert expect(h.run("verify", "a", "--key", "eve", "--key", "ada", "--json"), 0).json()["head"] == "intact"
        assert expect(h.run("verify", "a", "--json", env={"AETHERIS_SIGNING_KEY": "ada"}), 0).json()["head"] == "intact"
        # A process without a key continues the job, then one with a key.
        expect(h.run("signal", "a", "go-a", "1"), 0)
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()
        assert proof["head"] == "unsigned" and "up to event" in proof["proofs"]["event_chain"]["detail"], proof
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a", env={"AETHERIS_SIGNING_KEY": "ada"}), 0)
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()
        assert proof["head"] == "intact", proof
        # The end is removed, and the rows are changed to match.
        body = expect(h.run("inspect", "a", "--json"), 0).json()
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            rows = db.execute("SELECT id, last_seq, body FROM commits ORDER BY id").fetchall()
            db.execute("DELETE FROM commits WHERE id = ?", (rows[-1][0],))
            db.execute("UPDATE heads SET last_seq = ?, last_commit = ?, commits = commits - 1, head = ?",
                       (rows[-2][1], rows[-2][0], rows[-2][2][-32:]))
            db.execute("UPDATE jobs SET status = 'running'")
            db.commit()
        assert len(expect(h.run("inspect", "a", "--json"), 0).json()["commits"]) == len(body["commits"]) - 1
        proof = expect(h.run("verify", "a", "--key", "ada", "--json"), 6).json()
        assert proof["head"] == "truncated", proof
        with contextlib.closing(sqlite3.connect(h.store)) as db:
            db.execute("DELETE FROM signed_heads")
            db.commit()
        assert expect(h.run("verify", "a", "--key", "ada", "--json"), 0).json()["head"] == "unsigned"


@test
def a_signing_key_that_other_users_can_read_is_rejected():
    with home() as h:
        create_key(h, "ada")
        (h.path / "ada").chmod(0o640)
        result = expect(h.run("run", "agents.yaml", "echo", "--signing-key", "ada"), 2)
        assert "chmod 600 ada" in result.err, result
        for wrong in ("nowhere", "ada.pub"):
            (h.path / "ada.pub").chmod(0o600)
            expect(h.run("run", "agents.yaml", "echo", "--signing-key", wrong), 2)
        assert not h.store.exists()
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("verify", "a", "--key", "agents.yaml"), 2)
        expect(h.run("verify", "a", "--key", "00ff"), 2)


@test
def a_modified_log_exits_with_6():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--input", '{"n":4242}'), 0)
        for name in ("aetheris.db", "aetheris.db-wal"):
            file = h.path / ".aetheris" / name
            if file.exists():
                file.write_bytes(file.read_bytes().replace(b"4242", b"4243"))
        result = h.run("verify", "a", "--json")
        assert result.code == 6, result
        assert result.json()["ok"] is False and result.json()["head"] == "altered", result


@test
def a_log_with_missing_commits_exits_with_6():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--durability", "split"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        whole = h.path / "whole"
        (h.path / ".aetheris").rename(whole)

        def without(which):
            shutil.rmtree(h.path / ".aetheris", ignore_errors=True)
            shutil.copytree(whole, h.path / ".aetheris")
            with contextlib.closing(sqlite3.connect(h.store)) as db:
                commits = db.execute("SELECT id, first_seq, last_seq FROM commits WHERE job = "
                                     "(SELECT id FROM jobs WHERE job_id = 'a') ORDER BY id").fetchall()
                assert len(commits) > 4
                gone = commits[which]
                db.executemany("DELETE FROM commits WHERE id = ?", [(id,) for id, _, _ in gone])
                db.commit()
                return gone, commits

        for which, head in ((slice(-1, None), "truncated"), (slice(-3, None), "truncated"),
                            (slice(0, None), "truncated"), (slice(2, 3), "altered"), (slice(0, 1), "altered")):
            gone, commits = without(which)
            result = expect(h.run("verify", "a", "--json"), 6)
            proof = result.json()
            assert proof["ok"] is False and proof["head"] == head, (which, result)
            detail = proof["proofs"]["event_chain"]["detail"]
            assert proof["proofs"]["event_chain"]["ok"] is False
            before = gone[0][1] - 1  # the last event that exists
            assert re.search(rf"\bevent {before}\b", detail), (which, detail)
            assert "NOT verified" in expect(h.run("verify", "a"), 6).out
            for words in (["job", "a"], ["events", "a"], ["trace", "a"], ["replay", "a"]):
                result = expect(h.run(*words, "--json"), 6)
                assert result.json()["code"] == "log_corrupt", (which, result)
            expect(h.run("verify", "b"), 0)


@test
def a_rolled_back_store_is_detected_and_can_be_accepted():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waiting"), 4)
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "parked"), 4)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--only"), 0)
        runner = h.start("run", "agents.yaml", "holds", "--job-id", "live", "--only")
        h.wait_for_hold()
        runner.kill()
        runner.wait()
        expect(h.run("pause", "queued"), 0)  # so that the store is closed cleanly
        expect(h.run("resume", "queued"), 0)
        backup = h.path / "backup.db"
        shutil.copy(h.store, backup)
        result = expect(h.run("doctor", "--accept-rollback"), 0)
        assert "was not rolled back" in result.out, result
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)
        shutil.copy(backup, h.store)

        for words in (["run", "agents.yaml", "echo"], ["signal", "waiting", "go-waiting", "1"], ["cancel", "done"]):
            result = expect(h.run(*words), 7)
            assert "store_rolled_back" in result.err and "doctor --accept-rollback" in result.err, result
        assert expect(h.run("job", "waiting", "--json"), 0).json()["status"] == "waiting"
        result = h.run("doctor", "--json")
        assert result.code == 1 and "store_rolled_back" in [p["code"] for p in result.json()["problems"]], result

        body = expect(h.run("doctor", "--accept-rollback", "--json"), 0).json()
        assert [(job["id"], job["calls"]) for job in body.pop("may_repeat")] == [("parked", ["d (doubt, at_most_once)"])]
        assert body == {"accepted": True, "ending": 0, "parked": 3, "pausing": 1}, body
        for job in ("waiting", "queued"):
            parked = expect(h.run("job", job, "--json"), 0).json()["parked"]
            assert (parked["reason"], parked["until"]) == ("store_rolled_back", "resume"), parked
        assert expect(h.run("job", "parked", "--json"), 0).json()["parked"]["reason"] == "invocation_in_doubt"
        assert expect(h.run("job", "done", "--json"), 0).json()["status"] == "completed"
        assert "store_rolled_back" not in h.run("doctor", "--json").out
        result = expect(h.run("doctor", "--accept-rollback"), 0)
        assert "was not rolled back" in result.out, result

        expect(h.run("run", "agents.yaml", "--job-id", "live"), 4)
        parked = expect(h.run("job", "live", "--json"), 0).json()["parked"]
        assert parked["reason"] == "store_rolled_back", parked
        h.release_hold()
        for job in ("queued", "live", "waiting"):
            expect(h.run("resume", job), 0)
        expect(h.run("signal", "waiting", "go-waiting", "1"), 0)
        for job in ("queued", "live", "waiting"):
            expect(h.run("run", "agents.yaml", "--job-id", job, "--only"), 0)
        for job in ("queued", "live", "waiting", "parked", "done"):
            expect(h.run("verify", job), 0)
        shutil.copy(backup, h.store)  # older than the accepted rollback
        expect(h.run("run", "agents.yaml", "echo"), 7)


SECRET = "Ada-Lovelace-4711"


@test
def a_redacted_value_is_removed_everywhere_and_the_log_still_verifies():
    for durability in ("fused", "split"):
        with home() as h:
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "a", "--durability", durability, "--input",
                         json.dumps({"name": SECRET, "n": 1})), 0)
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "b", "--input", '{"n": 2}'), 0)
            proved = expect(h.run("verify", "a", "--json"), 0).json()
            assert proved["redacted"] == [], proved
            events = expect(h.run("events", "a", "--json"), 0).json()["events"]
            holders = [e for e in events if SECRET in json.dumps(e)]
            names = [f"{e['seq']}:{f}" for e in holders for f in e["salts"]]
            assert holders[0]["seq"] == 1 and len(holders) > 2, holders

            for bad in (["1"], ["--reason", "x"], ["x", "--reason", "x"], ["0", "--reason", "x"], ["1:", "--reason", "x"],
                        ["1:nothing", "--reason", "x"], ["999", "--reason", "x"], ["1", "--all", "--reason", "x"]):
                expect(h.run("redact", "a", *bad), 2)
            expect(h.run("redact", "nobody", "1", "--reason", "x"), 3)
            assert expect(h.run("audit", "--json"), 0).json()["entries"] == []

            body = expect(h.run("redact", "a", *names, "--reason", "by request", "--json"), 0).json()
            assert [f"{v['seq']}:{v['field']}" for v in body["redacted"]] == sorted(
                names, key=lambda n: (int(n.split(":")[0]), n)) and body["gone"] == [], body
            after = expect(h.run("events", "a", "--json"), 0).json()["events"]
            assert SECRET not in json.dumps(after)
            assert [e["hash"] for e in after] == [e["hash"] for e in events]
            assert "$redacted" in after[0]["payload"]["input"], after[0]
            proof = expect(h.run("verify", "a", "--json"), 0).json()
            assert proof["redacted"] == body["redacted"] and proof["head"] == "unsigned", proof
            result = expect(h.run("verify", "a"), 0)
            assert "redacted  event 1, input" in result.out, result
            for words in (["job", "a"], ["trace", "a"], ["replay", "a"], ["inspect", "a"], ["rebuild", "--check"]):
                assert SECRET not in expect(h.run(*words, "--json"), 0).out, words
            for file in (h.path / ".aetheris").iterdir():
                if file.is_file():
                    assert SECRET.encode() not in file.read_bytes(), file

            again = expect(h.run("redact", "a", "1:input", "--reason", "again", "--json"), 0).json()
            assert (again["gone"], again["redacted"], again["forks"]) == ([{"field": "input", "seq": 1}], [], []), again
            entries = expect(h.run("audit", "--json"), 0).json()["entries"]
            assert len(entries) == 1, entries
            one = entries[0]
            assert (one["act"], one["job"], one["seq"], one["prev_hash"]) == ("redact", "a", 1, "0" * 64), one
            beside = {"effects": 1} if durability == "split" else {}
            assert one["detail"] == {**beside, "reason": "by request", "values": body["redacted"]}, one
            assert one["by"].startswith("cli:"), one
            assert SECRET not in json.dumps(entries)
            expect(h.run("run", "agents.yaml", "--job-id", "a"), 0)
            expect(h.run("redact", "b", "--all", "--reason", "all of it"), 0)
            expect(h.run("verify", "b"), 0)
            assert "verified" in expect(h.run("audit", "--verify"), 0).out
            assert "redact" in expect(h.run("audit"), 0).out


@test
def a_value_that_resembles_a_redaction_is_treated_as_data():
    lookalike = {"$redacted": "a" * 64}
    with home() as h:
        (h.path / "looks.yaml").write_text("""
aetheris: 1
tools:
  echo: { native: echo, effect: idempotent }
  fail: { native: fail, effect: read }
agents:
  a:
    plan:
      - { id: echoes, tool: echo, args: { $redacted: "${ .input.digest }" } }
      - { id: fails, tool: fail, needs: [echoes], args: { of: "${ .steps.echoes }" } }
""")
        expect(h.run("run", "looks.yaml", "--job-id", "j", "--input", json.dumps({"digest": "a" * 64})), 1)
        result = [e["payload"].get("result") for e in expect(h.run("events", "j", "--json"), 0).json()["events"]]
        assert lookalike in result, result
        for words in (["retry", "j", "--job-id", "again"], ["fork", "j", "--at", str(len(result)), "--job-id", "f"]):
            expect(h.run(*words), 0)
            expect(h.run("run", "looks.yaml", "--job-id", words[-1]), 1)
        for job in ("j", "again", "f"):
            proof = expect(h.run("verify", job, "--json"), 0).json()
            assert proof["redacted"] == [] and " the plan" in proof["proofs"]["replay"]["detail"], proof
        result_seq = next(e["seq"] for e in expect(h.run("events", "j", "--json"), 0).json()["events"]
                          if e["payload"].get("result") == lookalike)
        expect(h.run("redact", "j", f"{result_seq}:result", "--keep-forks", "--reason", "x"), 0)
        result = expect(h.run("retry", "j", "--job-id", "late"), 2)
        assert "has been erased from the log" in result.err, result
        gone = expect(h.run("verify", "j", "--json"), 0).json()["redacted"]
        assert gone == [{"field": "blind", "seq": 1}, {"field": "result", "seq": result_seq}], gone


@test
def values_of_an_unfinished_job_cannot_be_redacted():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "w", "--input", "{}"), 4)
        result = expect(h.run("redact", "w", "1:input", "--reason", "x"), 5)
        assert "not_settled" in result.err, result
        expect(h.run("cancel", "w"), 0)
        expect(h.run("redact", "w", "1:input", "--reason", "x"), 0)
        expect(h.run("verify", "w"), 0)


@test
def the_audit_log_records_operations_and_each_modification_is_detected():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        expect(h.run("fork", "a", "--at", "2", "--job-id", "f"), 0)
        backup = h.path / "backup.db"
        shutil.copy(h.store, backup)
        run_sql(h.store, "UPDATE jobs SET priority = 9 WHERE job_id = 'a'")
        expect(h.run("rebuild", "--check"), 6)
        expect(h.run("rebuild"), 0)
        expect(h.run("rebuild"), 0)  # nothing to do, nothing to record
        acts = [(e["act"], e["job"]) for e in expect(h.run("audit", "--json"), 0).json()["entries"]]
        assert acts == [("fork", "a"), ("rebuild", "")], acts
        expect(h.run("cancel", "f"), 0)
        shutil.copy(backup, h.store)
        expect(h.run("doctor", "--accept-rollback"), 0)
        body = expect(h.run("audit", "--json"), 0).json()
        assert [e["act"] for e in body["entries"]] == ["fork", "accept_rollback"], body
        page = expect(h.run("audit", "--limit", "1", "--json"), 0).json()
        assert page["next"] == 1 and len(page["entries"]) == 1, page
        page = expect(h.run("audit", "--after", "1", "--json"), 0).json()
        assert page["next"] is None and page["entries"] == body["entries"][1:], page
        assert expect(h.run("audit", "--verify", "--json"), 0).json()["entries"] == 2
        whole = (h.store).read_bytes()
        for damage, head in (("UPDATE audit SET body = replace(body, 'cli:', 'cly:') WHERE seq = 1", "altered"),
                             ("UPDATE audit SET hash = zeroblob(32) WHERE seq = 2", "altered"),
                             ("DELETE FROM audit WHERE seq = 1", "altered"),
                             ("DELETE FROM audit WHERE seq = 2", "truncated"),
                             ("DELETE FROM audit", "truncated"),
                             ("DELETE FROM meta WHERE key = 'audit_head'", "altered")):
            run_sql(h.store, damage)
            result = expect(h.run("audit", "--verify", "--json"), 6)
            assert result.json()["head"] == head and not result.json()["ok"], (damage, result)
            assert "NOT verified" in expect(h.run("audit", "--verify"), 6).out
            h.store.write_bytes(whole)
        expect(h.run("audit", "--verify"), 0)


@test
def doctor_lists_jobs_that_wait_for_an_operator_as_notes():
    with home() as h:
        expect(h.run("run", "agents.yaml", "doubts", "--job-id", "d"), 4)
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "a"), 4)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "q", "--detach"), 0)
        result = expect(h.run("doctor"), 0)
        notes = [line for line in result.out.splitlines() if line.startswith("note ")]
        assert [re.search("job (.*?) is ([a-z]+)", line).groups() for line in notes] == \
            [("q", "queued"), ("a", "waiting"), ("d", "parked")], result
        for line, command in zip(notes, ("aetheris run FILE --job-id q", "aetheris job a", "aetheris job d")):
            assert f"`{command}`" in line, result
        assert result.out.endswith("\nok\n") and "problem" not in result.out, result
        body = expect(h.run("doctor", "--json"), 0).json()
        assert body["ok"] and body["problems"] == [], body
        assert [one["code"] for one in body["notes"]] == ["queued", "waiting", "parked"], body
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "q2", "--detach"), 0)
        assert "2 jobs are queued and no process runs them: `aetheris jobs --status queued`" in h.run("doctor").out


@test
def doctor_reports_an_interrupted_job_as_a_problem():
    with home() as h:
        job = h.start("run", "agents.yaml", "holds", "--job-id", "r")
        h.wait_for_hold()
        job.kill()
        job.wait()
        result = expect(h.run("doctor"), 1)
        assert "job r is running and no process runs it: `aetheris run FILE --job-id r` resumes it" in result.out, result


@test
def doctor_prints_a_line_per_check_and_ok():
    with home() as h:
        result = expect(h.run("doctor"), 0)
        assert result.out.endswith("\nok\n") and "does not exist yet" in result.out and result.err == "", result
        expect(h.run("run", "agents.yaml", "echo"), 0)
        result = expect(h.run("doctor"), 0)
        lines = result.out.splitlines()
        assert lines[-1] == "ok" and all(line.startswith("ok       ") for line in lines[:-1]), result
        assert [line.split()[1] for line in lines[:-1]] == \
            ["environment", "clock", "sandbox", "writable", "disk", "permissions", "secrets", "rollback", "store",
             "rows", "lock", "jobs"], result
        result = expect(h.run("doctor", env={"AETHERIS_FAILPOINTS": "append.before=error@99"}), 1)
        problems = [line for line in result.out.splitlines() if line.startswith("problem ")]
        assert "AETHERIS_FAILPOINTS" in problems[0] and len(problems) == 1, result
        assert result.out.endswith("\n1 problem\n"), result
        body = expect(h.run("doctor", "--json"), 0).json()
        assert body["ok"] and body["problems"] == [] and all(one["ok"] for one in body["checks"]), body
        h.store.chmod(0o644)
        body = expect(h.run("doctor", "--json"), 1).json()
        assert body["ok"] is False and body["problems"][0]["code"] == "permissions"


def as_user_without_rights():
    """A prefix that drops the rights of root, which writes everywhere."""
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []


@test
def doctor_reports_a_folder_that_is_not_writable():
    with home() as h:
        h.path.chmod(0o555)
        try:
            process = h.start("run", "agents.yaml", "echo", prefix=as_user_without_rights())
            expect(h.end(process), 7)
            for store in ([], ["--store", "sqlite:sub/x.db"]):
                process = h.start("doctor", "--json", *store, prefix=as_user_without_rights())
                body = expect(h.end(process), 1).json()
                assert [one["code"] for one in body["problems"]] == ["read_only"], body
            result = h.end(h.start("doctor", prefix=as_user_without_rights()))
            assert result.code == 1 and "problem  writable" in result.out and "`aetheris run` would fail" in result.out, result
        finally:
            h.path.chmod(0o755)
        expect(h.run("doctor"), 0)


if __name__ == "__main__":
    sys.exit(run_tests("cli_integrity", TESTS, " ".join(sys.argv[1:])))
