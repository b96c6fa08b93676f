#!/usr/bin/env python3
"""Expired waits: each type rejects its answer and is shown as expired, also before a process records the expiry.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  expiry.py [WORDS]   only tests whose name contains WORDS
"""
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import expect, home, run_tests  # noqa: E402

TESTS = []
ANSWERS = {
    "signal": ["signal", "t", "k", "1"],
    "webhook": ["signal", "t", "k", "1"],
    "human": ["signal", "t", "k", '{"decision": "approve"}'],
    "message": ["message", "t", "k", "1"],
}


def test(function):
    TESTS.append(function)
    return function


@test
def an_expired_wait_of_each_type_rejects_answers_and_is_shown_as_expired():
    for kind, answer in ANSWERS.items():
        with home() as h:
            name = "channel" if kind == "message" else "key"
            (h.path / "w.yaml").write_text(
                "aetheris: 1\n"
                "agents: { x: { plan: [ { id: a, wait: { type: %s, %s: k, expires: 300ms, on_expire: continue } } ],"
                " output: \"${ .steps.a }\" } }\n" % (kind, name))
            expect(h.run("run", "w.yaml", "x", "--only", "--job-id", "t"), 4)
            wait, = expect(h.run("job", "t", "--json"), 0).json()["waits"]
            assert wait["expires_at"], wait
            time.sleep(0.4)  # no process runs the job now
            wait, = expect(h.run("job", "t", "--json"), 0).json()["waits"]
            assert (wait["expired"], wait["command"]) == (True, None), (kind, wait)
            shown = expect(h.run("job", "t"), 0)
            at = wait["expires_at"].replace("T", " ")[:len("2026-11-25 15:53:08")]
            assert f"expired at {at}Z" in shown.out, (kind, shown)
            late = expect(h.run(*answer), 5)
            assert "wait_expired" in late.err and wait["expires_at"] in late.err, (kind, late)


if __name__ == "__main__":
    sys.exit(run_tests("expiry", TESTS, " ".join(sys.argv[1:])))
