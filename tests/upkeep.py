#!/usr/bin/env python3
"""Maintenance of SQLite stores: migrate, backup, restore, detected losses, doctor and prune.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  upkeep.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared import retention  # noqa: E402
from shared.home import Skip, expect, home, run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []
NEWEST = 8  # the layout that this version writes


def test(function):
    TESTS.append(function)
    return function


def sql(path, statement, write=False):
    connection = sqlite3.connect(path)
    rows = connection.execute(statement).fetchall()
    if write:
        connection.commit()
    connection.close()
    return rows


def schema(path):
    """The tables and indexes, independent of the SQL that created them: an added column is written differently."""
    columns = sql(path, "SELECT m.name, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk FROM sqlite_schema m, "
                        "pragma_table_xinfo(m.name) c WHERE m.type = 'table'")
    indexes = sql(path, "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type <> 'table'")
    how = sql(path, "SELECT name, wr, strict FROM pragma_table_list WHERE type = 'table'")
    meta = sql(path, "SELECT key FROM meta WHERE key <> 'audit_head'")  # written with the first audit entry
    layout = sql(path, "PRAGMA user_version") + sql(path, "PRAGMA application_id")
    return sorted(columns, key=str), sorted((n, t, re.sub(r"\s+", " ", s or "")) for n, t, s in indexes), sorted(how), \
        sorted(meta), layout


@test
def migrate_brings_every_older_store_to_the_current_schema():
    with home() as h:
        fresh = h.path / "fresh.db"
        result = expect(h.run("migrate", "--store", f"sqlite:{fresh}", "--json"), 0)
        assert result.json() == {"changed": True, "due": False, "from": 0, "to": NEWEST}, result
        golden_stores = sorted((pathlib.Path(ROOT) / "testdata/golden").glob("*/store.db"))
        layouts = set()
        for golden in golden_stores:
            old = h.path / "old.db"
            shutil.copy(golden, old)
            before = sql(old, "PRAGMA user_version")[0][0]
            layouts.add(before)
            store = ("--store", f"sqlite:{old}")
            result = expect(h.run("migrate", "--check", "--json", *store), 5 if before < NEWEST else 0)
            assert result.json() == {"changed": False, "due": before < NEWEST, "from": before, "to": NEWEST}, result
            assert sql(old, "PRAGMA user_version")[0][0] == before, "--check changes nothing"
            result = expect(h.run("migrate", *store), 0)
            if before < NEWEST:
                assert result.out == f"layout {before} -> layout {NEWEST}: done\n", result
                result = expect(h.run("migrate", *store), 0)
            assert result.out == f"layout {NEWEST}: up to date\n", result
            expect(h.run("migrate", "--check", *store), 0)
            assert schema(old) == schema(fresh), golden
            for job in expect(h.run("jobs", "--json", *store), 0).json()["jobs"]:
                expect(h.run("verify", job["id"], *store), 0)
            assert not {"rows_differ", "meta", "foreign_trigger"} & set(codes(h, *store)), golden
            for file in h.path.glob("old.db*"):
                file.unlink()
        assert min(layouts) == 1, "the first layout is among them"


@test
def concurrent_processes_migrate_a_store_once():
    with home() as h:
        golden = sorted((pathlib.Path(ROOT) / "testdata/golden").glob("*/store.db"))[0]
        for old in (False, True):
            path = h.path / f"{old}.db"
            if old:
                shutil.copy(golden, path)
            all_of_them = [h.start("migrate", "--json", "--store", f"sqlite:{path}") for _ in range(8)]
            result = [expect(h.end(process), 0).json() for process in all_of_them]
            assert sum(one["changed"] for one in result) == 1, result
            assert all(one["to"] == NEWEST for one in result), result


@test
def migrate_reports_why_a_store_cannot_be_migrated():
    with home() as h:
        newer, other = h.path / "newer.db", h.path / "other.db"
        expect(h.run("migrate", "--store", f"sqlite:{newer}"), 0)
        sql(newer, f"PRAGMA user_version = {NEWEST + 1}", write=True)
        for words in ([], ["--check"]):
            result = h.run("migrate", *words, "--json", "--store", f"sqlite:{newer}")
            assert result.code != 0 and result.json()["code"] == "needs_version", result
        assert sql(newer, "PRAGMA user_version") == [(NEWEST + 1,)], "no downgrade"
        sql(other, "CREATE TABLE t(x)", write=True)
        result = expect(h.run("migrate", "--store", f"sqlite:{other}"), 7)
        assert "another program" in result.err, result
        expect(h.run("migrate", "--store", "memory:"), 2)
        result = expect(h.run("migrate", "--check", "--store", f"sqlite:{h.path / 'none/a.db'}"), 5)
        assert "no store" in result.out and not (h.path / "none").exists(), "--check creates nothing"


@test
def migrate_of_a_current_store_works_while_it_is_owned():
    with home() as h:
        server = Server(h)
        result = expect(h.run("migrate", "--json"), 0)
        assert result.json() == {"changed": False, "due": False, "from": NEWEST, "to": NEWEST}, result
        expect(server.stop(), 0)


@test
def a_backup_of_a_store_in_use_is_complete():
    with home() as h:
        server = Server(h)
        for i in range(50):
            server.post("/api/jobs", {"agent": "echo", "input": {"n": i}, "id": f"j{i}"})
            if i == 25:
                result = expect(h.run("backup", "b.db", "--json"), 0).json()
        backup = h.path / "b.db"
        assert result == {"bytes": backup.stat().st_size, "file": "b.db"}, result
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        until(lambda: all(server.status(f"j{i}") == "completed" for i in range(50)))
        jobs = sql(backup, "SELECT count(*) FROM jobs")[0][0]
        assert 26 <= jobs < 50, jobs
        before = backup.read_bytes()
        result = expect(h.run("backup", "b.db"), 5)
        assert "exists already" in result.err and backup.read_bytes() == before, result
        expect(h.run("backup", "c.db", "--store", "sqlite:none.db"), 3)
        expect(h.run("backup", "no/folder/c.db"), 7)
        result = expect(h.run("backup", "c.db", "--store", "postgres://127.0.0.1:1/x"), 2)
        assert "pg_dump" in result.err, result
        assert not list(h.path.glob("*.part*")) and not (h.path / "c.db").exists()
        expect(server.stop(), 0)


@test
def a_killed_backup_leaves_no_file_of_that_name():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        sql(h.store, "CREATE TABLE filler(x)", write=True)
        connection = sqlite3.connect(h.store)
        connection.executemany("INSERT INTO filler VALUES(randomblob(1000000))", [()] * 120)
        connection.commit()
        connection.close()
        process = h.start("backup", "b.db")
        until(lambda: list(h.path.glob("b.db.part-*")) or process.poll() is not None)
        os.kill(process.pid, signal.SIGKILL)
        h.end(process)
        assert process.returncode == -signal.SIGKILL and not (h.path / "b.db").exists()
        expect(h.run("backup", "b.db"), 0)


@test
def progress_is_shown_on_terminals_only():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        connection = sqlite3.connect(h.store)
        connection.execute("CREATE TABLE filler(x)")
        connection.executemany("INSERT INTO filler VALUES(?)", [(i,) for i in range(20000)])
        connection.commit()
        connection.close()
        assert expect(h.run("backup", "quiet.db"), 0).err == ""
        master, slave = pty.openpty()
        process = subprocess.Popen([h.program, "backup", "b.db"], cwd=h.path, env=h.env, stderr=slave,
                                   stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(master, 4096):
                shown += part
        os.close(master)
        assert process.wait() == 0 and b"MiB copied" in shown, shown


def make_backup(h):
    """Creates a store with a job of each kind, a backup, and later changes."""
    expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits"), 4)
    expect(h.run("run", "agents.yaml", "echo", "--job-id", "queued", "--detach"), 0)
    expect(h.run("run", "agents.yaml", "echo", "--job-id", "done", "--only"), 0)
    expect(h.run("backup", "b.db"), 0)
    expect(h.run("signal", "waits", "go-waits", '"after the backup"'), 0)
    expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only"), 0)


def move_store_away(h):
    for end in ("", "-wal", "-shm"):
        file = pathlib.Path(f"{h.store}{end}")
        if file.exists():
            file.rename(h.path / f"old.db{end}")


@test
def a_store_restored_in_place_runs_no_job_until_the_rollback_is_accepted():
    for position in ("kept", "lost"):
        with home() as h:
            make_backup(h)
            result = expect(h.run("restore", "b.db"), 5)
            assert "exists already" in result.err, "a store is never overwritten"
            move_store_away(h)
            if position == "lost":
                pathlib.Path(f"{h.store}.position").unlink()
            result = expect(h.run("restore", "b.db", "--json"), 0).json()
            assert result == {"jobs_proved": 3, "restored": "b.db", "to_accept": True, "verified": True}, result
            assert stat.S_IMODE(h.store.stat().st_mode) == 0o600
            assert not list(h.store.parent.glob("*.part*"))
            for words in (["run", "agents.yaml", "echo"], ["run", "agents.yaml", "--job-id", "waits"],
                          ["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["signal", "waits", "go-waits", "1"]):
                result = expect(h.run(*words), 7)
                assert "store_rolled_back" in result.err and "doctor --accept-rollback" in result.err, result
            assert expect(h.run("job", "waits", "--json"), 0).json()["status"] == "waiting", "it can be read"
            body = expect(h.run("doctor", "--accept-rollback", "--json"), 0).json()
            assert body == {"accepted": True, "ending": 0, "may_repeat": [], "parked": 2, "pausing": 0}, body
            for job in ("waits", "queued"):
                parked = expect(h.run("job", job, "--json"), 0).json()["parked"]
                assert parked["reason"] == "store_rolled_back", parked
            expect(h.run("resume", "waits"), 0)
            expect(h.run("signal", "waits", "go-waits", '"again"'), 0)
            expect(h.run("run", "agents.yaml", "--job-id", "waits", "--only"), 0)
            acts = [entry["act"] for entry in expect(h.run("audit", "--json"), 0).json()["entries"]]
            assert acts == ["restore", "accept_rollback"], acts
            expect(h.run("audit", "--verify"), 0)
            for job in ("waits", "queued", "done"):
                expect(h.run("verify", job), 0)


@test
def nothing_lost_is_accepted_for_a_moved_store_and_rejected_for_an_older_one():
    with home() as h:
        make_backup(h)
        elsewhere = ("--store", f"sqlite:{h.path}/new/a.db")
        expect(h.run("backup", "last.db"), 0)
        result = expect(h.run("restore", "last.db", *elsewhere), 3)
        assert "there is no folder" in result.err and not (h.path / "new").exists(), result
        (h.path / "new").mkdir()
        result = expect(h.run("restore", "last.db", "--nothing-lost", *elsewhere, "--json"), 0).json()
        assert not result["to_accept"], result
        expect(h.run("run", "agents.yaml", "--job-id", "queued", "--only", *elsewhere), 0)
        move_store_away(h)
        result = expect(h.run("restore", "b.db", "--nothing-lost", "--json"), 0).json()
        assert result["to_accept"], "the position file is newer"
        expect(h.run("run", "agents.yaml", "echo"), 7)


@test
def a_backup_used_directly_is_read_only_until_it_is_restored_or_accepted():
    for end in ("restore", "accept", "nothing_lost"):
        with home() as h:
            make_backup(h)
            store = ("--store", f"sqlite:{h.path}/b.db")
            for words in (["run", "agents.yaml", "echo"], ["run", "agents.yaml", "--job-id", "waits"],
                          ["serve", "agents.yaml", "--listen", "127.0.0.1:0"], ["signal", "waits", "go-waits", "1"]):
                result = expect(h.run(*words, *store), 7)
                assert "store_rolled_back" in result.err and "backup that was not restored" in result.err, result
            result = h.run("doctor", "--json", *store).json()
            assert "store_rolled_back" in [p["code"] for p in result["problems"]], result
            assert expect(h.run("job", "waits", "--json", *store), 0).json()["status"] == "waiting", "reading works"
            expect(h.run("verify", "waits", *store), 0)
            expect(h.run("events", "waits", *store), 0)
            if end == "restore":
                new = ("--store", f"sqlite:{h.path}/new.db")
                result = expect(h.run("restore", "b.db", "--json", *new), 0).json()
                assert result["to_accept"], result
                expect(h.run("run", "agents.yaml", "echo", *new), 7)
            elif end == "accept":
                body = expect(h.run("doctor", "--accept-rollback", "--restored", "--json", *store), 0).json()
                assert (body["accepted"], body["parked"]) == (True, 2), body
                for job in ("waits", "queued"):
                    parked = expect(h.run("job", job, "--json", *store), 0).json()["parked"]
                    assert parked["reason"] == "store_rolled_back", parked
                assert sql(h.path / "b.db", "SELECT * FROM meta WHERE key = 'accepting'") == []
                timelines = [sql(file, "SELECT value FROM meta WHERE key = 'timeline'") for file in (h.path / "b.db", h.store)]
                assert timelines[0] != timelines[1], timelines
            else:
                body = expect(h.run("doctor", "--accept-rollback", "--nothing-lost", "--json", *store), 0).json()
                assert (body["accepted"], body["parked"]) == (True, 0), body
                expect(h.run("run", "agents.yaml", "--job-id", "queued", "--only", *store), 0)
                expect(h.run("audit", "--verify", *store), 0)


def expect_rolled_back(h, what):
    for words in (["run", "agents.yaml", "echo"], ["serve", "agents.yaml", "--listen", "127.0.0.1:0"],
                  ["signal", "done", "k", "1"], ["migrate"], ["rebuild"]):
        result = expect(h.run(*words), 7)
        assert "store_rolled_back" in result.err, (what, words, result)
    result = h.run("doctor", "--json")
    assert "store_rolled_back" in [p["code"] for p in result.json()["problems"]], (what, result)
    result = expect(h.run("doctor", "--accept-rollback", "--nothing-lost"), 7)
    assert "store_rolled_back" in result.err, (what, result)


def lose_the_store(h, what):
    wal = pathlib.Path(f"{h.store}-wal")
    if what == "files":
        for end in ("", "-wal", "-shm"):
            pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
    elif what == "emptied":
        for file in (h.store, wal):
            if file.exists():
                os.truncate(file, 0)
    elif what == "truncated":
        os.truncate(h.store, 0)
    else:
        wal.unlink()
        pathlib.Path(f"{h.store}-shm").unlink(missing_ok=True)
        assert h.store.stat().st_size == 4096, "one page"


@test
def the_loss_of_a_store_is_detected_until_it_is_accepted():
    for what in ("files", "emptied", "truncated", "wal"):
        with home() as h:
            server = Server(h)
            for job in range(3):
                server.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": job}, "id": f"j{job}"})
            os.kill(server.process.pid, signal.SIGKILL)
            h.end(server.process)
            store_id = pathlib.Path(f"{h.store}.position").read_bytes().split()[1]
            lose_the_store(h, what)
            expect_rolled_back(h, what)
            left = {file.name: file.read_bytes() for file in h.store.parent.glob("aetheris.db*") if file.suffix != ".lock"}
            expect_rolled_back(h, what)
            assert left == {name: (h.store.parent / name).read_bytes() for name in left}, "nothing is written in the meantime"
            result = expect(h.run("doctor", "--accept-rollback"), 0)
            assert "empty store" in result.out, result
            assert expect(h.run("jobs", "--json"), 0).json()["jobs"] == []
            assert sql(h.store, "SELECT value FROM meta WHERE key = 'store_id'")[0][0].encode() == store_id, "it is the same store"
            expect(h.run("run", "agents.yaml", "echo", "--job-id", "j0"), 0)
            expect(h.run("audit", "--verify"), 0)
            acts = [entry["act"] for entry in expect(h.run("audit", "--json"), 0).json()["entries"]]
            assert acts == ["accept_rollback"], acts


@test
def a_lost_store_that_reappears_after_acceptance_is_detected():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        old = h.store.read_bytes()
        h.store.unlink()
        expect(h.run("doctor", "--accept-rollback"), 0)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        for end in ("", "-wal", "-shm"):
            pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
        h.store.write_bytes(old)
        result = expect(h.run("run", "agents.yaml", "echo"), 7)
        assert "store_rolled_back" in result.err, result


@test
def a_backup_can_be_restored_after_the_store_was_lost():
    with home() as h:
        make_backup(h)
        for end in ("", "-wal", "-shm"):
            pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
        expect(h.run("restore", "b.db"), 0)
        body = expect(h.run("doctor", "--accept-rollback", "--json"), 0).json()
        assert body["parked"] == 2, body


@test
def an_empty_store_file_without_a_position_file_is_initialized():
    with home() as h:
        for end in ("", "-wal", "-shm", ".position"):
            pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
        h.store.parent.mkdir(exist_ok=True)
        h.store.write_bytes(b"")
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)


EFFECTS = """
aetheris: 1
tools:
  look: { native: echo, effect: read }
  pay:  { native: echo, effect: at_most_once }
  post: { native: echo, effect: idempotent }
agents:
  shop:
    plan:
      - { id: see, tool: look }
      - { id: paid, tool: pay, needs: [see] }
      - { id: w, wait: { type: signal, key: go }, needs: [paid] }
      - { id: posted, tool: post, needs: [w] }
      - { id: again, tool: pay, needs: [w] }
      - { id: seen, tool: look, needs: [w] }
"""


@test
def an_accepted_rollback_lists_the_calls_that_may_be_repeated():
    with home() as h:
        (h.path / "shop.yaml").write_text(EFFECTS)
        expect(h.run("run", "shop.yaml", "shop", "--job-id", "a"), 4)
        expect(h.run("backup", "b.db"), 0)
        last = expect(h.run("events", "a", "--json"), 0).json()["events"][-1]["seq"]
        store = ("--store", f"sqlite:{h.path}/b.db")
        shutil.copy(h.path / "b.db", h.path / "c.db")
        result = expect(h.run("doctor", "--accept-rollback", *store), 0)
        assert f"a, after event {last} of " in result.out, result
        assert "posted (post, idempotent), again (pay, at_most_once)\n" in result.out, result
        body = expect(h.run("doctor", "--accept-rollback", "--json", "--store", f"sqlite:{h.path}/c.db"), 0).json()
        assert [(job["id"], job["seq"], job["calls"]) for job in body["may_repeat"]] == \
            [("a", last, ["posted (post, idempotent)", "again (pay, at_most_once)"])], body


@test
def a_store_has_one_owner_for_every_path_that_leads_to_it():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        links = h.path / "links"
        links.mkdir()
        (links / "a.db").symlink_to(h.store)
        (links / "b.db").symlink_to("a.db")
        (h.path / "folder").symlink_to(h.store.parent)
        paths = [links / "a.db", links / "b.db", h.path / "folder/aetheris.db", "links/a.db", "./links/../links/a.db",
                 ".aetheris/../.aetheris/aetheris.db"]
        server = Server(h)
        for path in paths:
            store = ("--store", f"sqlite:{path}")
            result = expect(h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0", *store), 7)
            assert "store_locked" in result.err, result
            expect(h.run("run", "agents.yaml", "asks", "--job-id", f"j{paths.index(path)}", "--detach", *store), 0)
            assert server.get(f"/api/jobs/j{paths.index(path)}")[0] == 200, "the command reached the owner"
        expect(server.stop(), 0)
        server = Server(h, "agents.yaml", "--store", f"sqlite:{links}/b.db")
        result = expect(h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0"), 7)
        assert "store_locked" in result.err, result
        expect(server.stop(), 0)
        assert sorted(file.name for file in links.iterdir()) == ["a.db", "b.db"], "no file is created beside a link"


@test
def a_store_reached_through_another_mount_has_one_owner():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        other = h.path / "other"
        other.mkdir()
        (other / "x.db").write_bytes(b"")
        mount = f"mount --bind {h.store} {other}/x.db && exec {h.program} run agents.yaml echo --store sqlite:{other}/x.db"
        if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
            raise Skip("this machine does not allow private mounts")
        server = Server(h)
        result = subprocess.run(["unshare", "-rm", "sh", "-c", mount], cwd=h.path, env=h.env, capture_output=True, text=True)
        assert result.returncode == 7 and "store_locked" in result.stderr, result
        expect(server.stop(), 0)


@test
def a_store_with_hard_links_or_that_is_not_a_regular_file_is_rejected():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        other = h.path / "other.db"
        os.link(h.store, other)
        for words in (["run", "agents.yaml", "echo"], ["jobs"], ["migrate"], ["backup", "b.db"], ["rebuild"], ["serve", "agents.yaml"]):
            for path in (h.store, other):
                result = expect(h.run(*words, "--store", f"sqlite:{path}"), 7)
                assert "hard links" in result.err and "[unavailable]" in result.err, result
        result = h.run("doctor")
        assert result.code == 1 and "hard links" in result.out, result
        other.unlink()
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "b"), 0)
        os.mkfifo(h.path / "fifo")
        (h.path / "link").symlink_to("fifo")
        for path in ("fifo", "link", ".aetheris", "/dev/null"):
            for words in (["jobs"], ["job", "a"], ["run", "agents.yaml", "echo"], ["doctor"], ["migrate"], ["inspect"],
                          ["backup", "b.db"], ["restore", "b.db"], ["rebuild"], ["doctor", "--accept-rollback"]):
                result = h.run(*words, "--store", f"sqlite:{path}")
                assert result.code != 0 and "choose another path" in result.err + result.out, (path, words, result)
        result = expect(h.run("restore", "fifo", "--store", "sqlite:new.db"), 2)
        assert "not a regular file" in result.err, result


def codes(h, *words):
    return {problem["code"]: problem["message"] for problem in h.run("doctor", "--json", *words).json()["problems"]}


@test
def doctor_reports_damage_outside_the_logs():
    with home() as h:
        expect(h.run("run", "agents.yaml", "asks", "--job-id", "waits"), 4)
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "done"), 0)
        expect(h.run("doctor"), 0)
        whole = h.store.read_bytes()
        damages = {
            "DELETE FROM heads WHERE job = 1": ("rows_differ", "rebuild"),
            "UPDATE jobs SET status = 'completed' WHERE job_id = 'waits'": ("rows_differ", "jobs.status is 'completed'"),
            "UPDATE heads SET commits = 9 WHERE job = 2": ("rows_differ", "heads.commits is 9"),
            "UPDATE jobs SET request_hash = x'00' WHERE job_id = 'done'": ("rows_differ", "request_hash"),
            "CREATE TRIGGER evil AFTER INSERT ON commits BEGIN SELECT 1; END": ("foreign_trigger", 'DROP TRIGGER "evil"'),
            "UPDATE meta SET value = 'x' WHERE key = 'store_id'": ("meta", "store_id"),
            "UPDATE meta SET value = lower(hex(randomblob(16))) WHERE key = 'store_id'": ("meta", "names"),
            "UPDATE meta SET value = 'x' WHERE key = 'timeline'": ("meta", "timeline"),
            "DELETE FROM meta WHERE key = 'position'": ("meta", "position"),
        }
        for damage, (code, words) in damages.items():
            sql(h.store, damage, write=True)
            found = codes(h)
            assert code in found and words in found[code], (damage, found)
            for end in ("-wal", "-shm"):
                pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
            h.store.write_bytes(whole)
        expect(h.run("doctor"), 0)
        for mode, expected in ((0o777, True), (0o757, True), (0o700, False), (0o1777, False)):
            h.store.parent.chmod(mode)
            assert ("permissions" in codes(h)) == expected, oct(mode)
        sql(h.store, "UPDATE jobs SET status = 'completed' WHERE job_id = 'waits'", write=True)
        expect(h.run("rebuild"), 0)
        h.store.parent.chmod(0o700)
        expect(h.run("doctor"), 0)


@test
def verify_compares_the_row_of_a_job_with_its_creation_and_commits():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--job-id", "a"), 0)
        whole = h.store.read_bytes()
        for damage, word in (("UPDATE jobs SET request_hash = zeroblob(32)", "request_hash"),
                             ("UPDATE jobs SET created_at = 9223372036854775807", "created_at"),
                             ("UPDATE heads SET commits = commits + 1", "commits")):
            sql(h.store, damage, write=True)
            result = expect(h.run("verify", "a", "--json"), 6).json()
            assert word in result["proofs"]["state_machine"]["detail"], result
            for end in ("-wal", "-shm"):
                pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
            h.store.write_bytes(whole)
        expect(h.run("verify", "a"), 0)
        expect(h.run("redact", "a", "1:input", "--reason", "x"), 0)
        expect(h.run("verify", "a"), 0)


@test
def an_older_backup_is_restored_with_the_current_schema():
    with home() as h:
        for golden in sorted((pathlib.Path(ROOT) / "testdata/golden").glob("*/store.db")):
            to = h.path / f"{golden.parent.name}.db"
            before = golden.read_bytes()
            store = ("--store", f"sqlite:{to}")
            result = expect(h.run("restore", str(golden), "--json", *store), 0).json()
            assert result["jobs_proved"] > 0 and result["to_accept"], result
            assert golden.read_bytes() == before, "a backup is only read"
            assert not list(golden.parent.glob("store.db-*")), "and no file is created beside it"
            assert sql(to, "PRAGMA user_version") == [(NEWEST,)]
            expect(h.run("doctor", "--accept-rollback", *store), 0)


@test
def a_damaged_backup_is_not_restored():
    with home() as h:
        make_backup(h)
        move_store_away(h)
        backup = h.path / "b.db"
        whole = backup.read_bytes()
        body = sql(backup, "SELECT body FROM commits WHERE job = (SELECT id FROM jobs WHERE job_id = 'done')")[0][0]
        at = whole.index(body) + len(body) // 2
        backup.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        result = expect(h.run("restore", "b.db"), 6)
        assert "done" in result.err and not h.store.exists(), result
        expect(h.run("restore", "b.db", "--skip-verify"), 0)
        expect(h.run("verify", "done"), 6)
        for end in ("", "-wal", "-shm"):
            pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
        backup.write_bytes(whole[:len(whole) // 2])
        damages = [whole[:len(whole) // 2], b"not a store at all, " * 500]
        # A damaged page: found by the copy, by verification, or part of an index, which the copy rebuilds.
        damages += [whole[:page] + b"\xff" * 4096 + whole[page + 4096:] for page in range(4096, len(whole) - 4096, 4096)]
        refused = 0
        for damage in damages:
            backup.write_bytes(damage)
            result = h.run("restore", "b.db")
            if result.code == 0 and "3 jobs proved" in result.out:
                for end in ("", "-wal", "-shm"):
                    pathlib.Path(f"{h.store}{end}").unlink(missing_ok=True)
                continue
            refused += 1
            assert not h.store.exists() and not list(h.store.parent.glob("*.part*")), result
            assert result.code == 6 and "[log_corrupt]" in result.err and ".part" not in result.err, result
            assert "an earlier backup" in result.err, result
        assert refused > len(damages) / 2, (refused, len(damages))
        for damage in damages[:2]:
            backup.write_bytes(damage)
            assert "b.db is damaged (" in expect(h.run("restore", "b.db"), 6).err
        expect(h.run("restore", "nowhere.db"), 3)
        backup.write_bytes(whole)
        expect(h.run("restore", "b.db"), 0)


@test
def a_restore_is_refused_while_the_store_is_owned():
    with home() as h:
        server = Server(h)
        server.post("/api/jobs", {"agent": "echo", "input": {"n": 1}, "id": "a"})
        expect(h.run("backup", "b.db"), 0)
        result = expect(h.run("restore", "b.db"), 7)
        assert "store_locked" in result.err, result
        expect(server.stop(), 0)


@test
def a_killed_prune_can_be_repeated_until_all_jobs_are_deleted():
    with home() as h:
        retention.check_prune_survives_kills(h, None)
        assert sql(h.store, "SELECT count(*) FROM jobs")[0][0] == retention.WAITING + 1
        for table in ("heads", "commits", "labels", "checkpoints", "value_uses", "effects", "inbox"):
            orphans = sql(h.store, f"SELECT count(*) FROM {table} WHERE job NOT IN (SELECT id FROM jobs)")
            assert orphans == [(0,)], table


@test
def a_fork_does_not_depend_on_a_deleted_origin():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--input", json.dumps({"n": 7, "text": "x" * 600}), "--job-id", "origin"), 0)
        last = len(expect(h.run("events", "origin", "--json"), 0).json()["events"]) - 1
        expect(h.run("fork", "origin", "--at", str(last), "--job-id", "waits", "--repeat-effects"), 0)
        result = expect(h.run("prune", "--older-than", "0s", "--json"), 0).json()
        assert result["jobs"] == 1, result
        expect(h.run("job", "origin"), 3)
        expect(h.run("verify", "waits"), 0)
        expect(h.run("run", "agents.yaml", "--job-id", "waits"), 0)
        expect(h.run("replay", "waits"), 0)


@test
def a_prune_runs_at_the_owner_and_archives_only_on_its_machine():
    with home() as h:
        server = Server(h)
        for i in range(3):
            server.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": i}, "id": f"e{i}", "labels": {"i": str(i)}})
        status, body = server.post("/api/prune", {"older_than": "0s", "archive": str(h.path / "no")})
        assert (status, body["code"]) == (400, "unsupported") and not (h.path / "no").exists(), body
        result = expect(h.run("prune", "--older-than", "0s", "--archive", "no", env=server.env), 2)
        assert "on the store's machine" in result.err, result
        status, body = server.post("/api/prune", {"older_than": "0s", "labels": {"i": "2"}})
        assert (status, body["jobs"], body["more"]) == (200, 1, False), body
        result = expect(h.run("prune", "--older-than", "0s", "--status", "completed", "--agent", "echo",
                              "--archive", "kept", "--json"), 0).json()
        assert result["jobs"] == 2 and (h.path / "kept/e0.json").exists(), result
        assert server.get("/api/jobs")[1]["jobs"] == []
        # The same id is another job, also for a follower of its events.
        server.post("/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 77}, "id": "e0"})
        events = server.get("/api/jobs/e0/events")[1]["events"]
        assert events[0]["payload"]["input"] == {"n": 77}, events[0]
        for bad in ({}, {"older_than": "soon"}, {"older_than": "1d", "status": ["running"]},
                    {"older_than": "1d", "labels": {"a": 1}}, {"older_than": "1d", "dry_run": 1},
                    {"older_than": "1d", "archive": 5}, {"older_than": "1d", "folder": "x"}, {"older_than": "1d", "after": -1}):
            assert server.post("/api/prune", bad)[0] == 400, bad
        expect(server.stop(), 0)


@test
def an_archive_that_cannot_be_written_stops_the_prune():
    with home() as h:
        expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 1}', "--job-id", "a"), 0)
        (h.path / "file").write_text("")
        for folder in ("file", "none/deeper", "/proc/archive"):
            result = h.run("prune", "--older-than", "0s", "--archive", folder, "--json")
            assert result.code != 0 and result.json()["code"] in ("unavailable", "usage"), result
        expect(h.run("job", "a"), 0)
        expect(h.run("prune", "--older-than", "0s", "--label", "a"), 2)
        expect(h.run("prune", "--older-than", "0s", "--status", "completed,"), 2)
        expect(h.run("prune"), 2)


if __name__ == "__main__":
    sys.exit(run_tests("upkeep", TESTS, " ".join(sys.argv[1:])))
