"""Tools that attack the server which runs them.

As root, the servers run as another user, so the kernel's refusals are those of an ordinary user, not of root.
"""
import contextlib
import json
import os
import pathlib
import shutil
import sys

from shared.home import expect, home, run_tests, Skip, until
from shared.server import Server

USER = 65534


# The program of the tool `attack`.
ATTACK = (pathlib.Path(__file__).resolve().parent / "attack_program.py").read_text()


AGENTS = """
aetheris: 1
tools:
  attack: { command: ["python3", "attack.py"], output: json, effect: at_most_once, timeout: 60s %s }
  pay:    { command: ["sh", "-c", "echo paid >> paid.txt"], effect: at_most_once, approval: required }
agents:
  attacks: { plan: [ { id: a, tool: attack, args: "${ .input }" } ], output: "${ .steps.a }" }
  pays:    { plan: [ { id: p, tool: pay } ] }
"""


@contextlib.contextmanager
def user_home(more="", agents=None):
    """A home that belongs to another user than root."""
    with home() as h:
        (h.path / "agents.yaml").write_text(agents or AGENTS % more)
        (h.path / "attack.py").write_text(ATTACK)
        if os.geteuid() == 0:
            for path in (h.path, *h.path.iterdir()):
                os.chown(path, USER, USER)
            h.env["HOME"] = str(h.path)
        h.env["SECRET_OF_THE_SERVER"] = "canary-7f3a91"
        yield h


def as_user():
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv"):
        raise Skip("setpriv is not installed")
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


@contextlib.contextmanager
def serving_as_user(more="", agents=None):
    with user_home(more, agents) as h:
        yield Server(h, prefix=as_user())


def attack(s, attacks, status="completed"):
    code, job = s.post("/api/jobs?wait=60s", {"agent": "attacks", "input": attacks})
    assert (code, job["status"]) == (201, status), job
    return job.get("result")


def pending_payment(s):
    s.post("/api/jobs", {"agent": "pays", "id": "pays"})
    until(lambda: s.get("/api/approvals")[1]["approvals"])
    return s.get("/api/approvals")[1]["approvals"][0]["id"]


def socket_path(s):
    return str(s.h.path / ".aetheris/aetheris.sock")


def is_forbidden(answer):
    return answer[0] == 403 and json.loads(answer[1])["code"] == "forbidden"


def no_key_was_created(s):
    return expect(s.h.run("keys", "list", "--json", "--store", f"sqlite:{s.h.store}"), 0).json()["keys"] == []


def run_or_skip(area, tests):
    """`run_tests`, or a skip of each test where another user cannot be used."""
    try:
        as_user()
    except Skip as why:
        for function in tests:
            print(f"ok {area}/{function.__name__.replace('_', ' ')} # SKIP {why}")
        return 0
    return run_tests(area, tests, " ".join(sys.argv[1:]))
