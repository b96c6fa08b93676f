"""Checks of `prune` for stores of either kind, used by upkeep.py and postgres_store.py."""
import sys

from shared.home import expect
from shared.program import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from verify_vectors import read_json, verify  # noqa: E402

ENDED, WAITING = 200, 12


def create_jobs(h, env):
    """Creates 200 jobs that end and, between them, some that wait, with one server."""
    from shared.server import Server
    from shared.home import until
    server = Server(h, env=env)
    for i in range(ENDED):
        body = {"agent": "echo", "input": {"n": i, "text": "x" * 400}, "id": f"e{i}", "idempotency_key": f"k{i}"}
        assert server.post("/api/jobs", body)[0] == 201
        if i % (ENDED // WAITING) == 0 and i // (ENDED // WAITING) < WAITING:
            body = {"agent": "asks", "id": f"w{i // (ENDED // WAITING)}"}
            assert server.post("/api/jobs", body)[0] == 201
    until(lambda: all(server.status(f"e{i}") == "completed" for i in range(ENDED)))
    until(lambda: all(server.status(f"w{i}") == "waiting" for i in range(WAITING)))
    expect(server.stop(), 0)


def jobs(h, env):
    return [job["id"] for job in expect(h.run("jobs", "--limit", "1000", "--json", env=env), 0).json()["jobs"]]


def logs(h, env, names):
    return {name: expect(h.run("events", name, "--json", env=env), 0).out for name in names}


def check_prune_survives_kills(h, env):
    """A prune is killed after archiving and before and after a deletion; when it is repeated it completes."""
    env = env or {}
    create_jobs(h, env)
    waiting = [f"w{i}" for i in range(WAITING)]
    before = logs(h, env, waiting + ["e0", "e77", "e199"])
    dry = expect(h.run("prune", "--older-than", "0s", "--dry-run", "--json", env=env), 0).json()
    assert dry["jobs"] == ENDED and dry["dry_run"] and dry["oldest"] <= dry["newest"], dry
    assert len(jobs(h, env)) == ENDED + WAITING, "nothing is deleted"
    assert expect(h.run("prune", "--older-than", "1d", "--json", env=env), 0).json()["jobs"] == 0
    left = ENDED
    for point in ("prune.archived=exit@1", "prune.before=exit@1", "prune.after=exit@1", "prune.archived=exit@2"):
        words = ("prune", "--older-than", "0s", "--archive", "kept", "--json")
        result = h.run(*words, env={**env, "AETHERIS_FAILPOINTS": point})
        assert result.code == 137, result
        now = jobs(h, env)
        archived = {file.name[:-5] for file in (h.path / "kept").glob("*.json")}
        gone = {f"e{i}" for i in range(ENDED)} - set(now)
        assert gone <= archived, "every deleted job is in the archive"
        assert set(waiting) <= set(now) and len(now) <= left + WAITING, now
        left = len(now) - WAITING
    assert 0 < left < ENDED, left
    # A file of that name exists, with other content.
    stays = sorted(name for name in jobs(h, env) if name.startswith("e"))[0]
    existing = h.path / f"other/{stays}.json"
    existing.parent.mkdir()
    existing.write_text("something else\n")
    result = expect(h.run("prune", "--older-than", "0s", "--archive", "other", env=env), 5)
    assert existing.name in result.err and stays in jobs(h, env) and existing.read_text() == "something else\n", result
    done = expect(h.run("prune", "--older-than", "0s", "--archive", "kept", "--json", env=env), 0).json()
    assert (done["jobs"], done["left_jobs"]) == (left, 0), done
    assert sorted(jobs(h, env)) == sorted(waiting)
    assert logs(h, env, waiting) == {name: before[name] for name in waiting}, "waiting jobs are unchanged"
    for i in range(ENDED):
        text = (h.path / f"kept/e{i}.json").read_text()
        verify(read_json(text)["events"])
        if f"e{i}" in before:
            assert text == before[f"e{i}"], "as `events --json` prints it"
    expect(h.run("audit", "--verify", env=env), 0)
    entries = expect(h.run("audit", "--json", env=env), 0).json()["entries"]
    assert sum(entry["detail"]["jobs"] for entry in entries if entry["act"] == "prune") == ENDED
    expect(h.run("rebuild", "--check", env=env), 0)
    problems = h.run("doctor", "--json", env=env).json()["problems"]
    assert not [p for p in problems if p["code"] != "no_synchronous_standby"], problems
    for name in waiting:
        expect(h.run("signal", name, f"go-{name}", '"go"', env=env), 0)
        expect(h.run("run", "agents.yaml", "--job-id", name, "--only", env=env), 0)
        expect(h.run("verify", name, env=env), 0)
    # The id and the key of a deleted job create a new job.
    result = expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 78}', "--job-id", "e5",
                          "--idempotency-key", "k5", env=env), 0)
    assert result.json() == {"n": 78}, result
    expect(h.run("verify", "e5", env=env), 0)
