#!/usr/bin/env python3
"""The client of a conformance scenario: the built program, with an agents file that names the server of the scenario.

  client.py URL      the suite sets MCP_CONFORMANCE_SCENARIO and sometimes MCP_CONFORMANCE_CONTEXT; run.py CONFORMANCE_TURNS

It does what a user would: `aetheris check` connects to the server and pins its tools, and `aetheris run` calls them, each in its
own step. The tools are read from the lock file. Where a server asks users while its call is open, `aetheris serve` runs the job,
because it is still running when they answer. Nothing here implements MCP.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.environ.get("AETHERIS_ROOT") or pathlib.Path(__file__).resolve().parents[2])
BIN = os.environ.get("AETHERIS_BIN", str(ROOT / "build/release/aetheris"))
PATIENCE = 60
AT_ONCE = 3  # the suite starts a client for each scenario at the same moment
ROUNDS = 20  # of questions
WAITS = 4    # the exit code of `run` when its job waits for an answer
EXAMPLES = {"string": "a", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None}


def example(schema):
    """Arguments that an input schema of the suite accepts."""
    required = schema.get("required", [])
    return {name: EXAMPLES[kind["type"]] for name, kind in schema.get("properties", {}).items() if name in required and "type" in kind}


def calls(tools):
    """(tool, arguments) in order: those of the scenario, otherwise each tool once."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if "toolCalls" in context:
        return [(call["name"], call["arguments"]) for call in context["toolCalls"]]
    schemas = {tool["name"]: tool["inputSchema"] for tool in tools}
    if "json_schema_echo" in schemas:  # it expects the stored schema of another tool
        return [("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})]
    return [(name, example(schema)) for name, schema in schemas.items()]


def write(folder, url, wanted):
    plan = [{"id": f"call_{number}", "tool": f"s.{tool}", "args": args, "on_error": "continue",
             **({"needs": [f"call_{number - 1}"]} if number else {})} for number, (tool, args) in enumerate(wanted)]
    agents = {"aetheris": 1, "tools": {"s": {"mcp": {"url": url}, "timeout": "20s", "on_in_doubt": "fail"}, "say": {"native": "echo", "effect": "read"}},
              "agents": {"a": {"plan": plan or [{"id": "say", "tool": "say", "args": {"text": "hello"}}], "output": "${ .steps }"}}}
    (folder / "agents.json").write_text(json.dumps(agents))


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}


def aetheris(folder, *words, **more):
    done = subprocess.run([BIN, *words], cwd=folder, env={**environment(), **more}, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    if done.returncode not in (0, WAITS):
        print(f"client.py: aetheris {words[0]} ended with code {done.returncode}", file=sys.stderr, flush=True)
    return done.returncode


@contextlib.contextmanager
def service(folder):
    """Where `run` finds the service that runs its job, if one does."""
    if not os.environ.get("MCP_CONFORMANCE_SCENARIO", "").startswith("elicitation"):
        yield {}
        return
    process = subprocess.Popen([BIN, "serve", "agents.json", "--listen", "127.0.0.1:0", "--json"], cwd=folder, env=environment(),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        yield {"AETHERIS_URL": json.loads(process.stdout.readline())["listening"]}
    finally:
        process.terminate()
        process.wait(PATIENCE)


def take_turn():
    """Takes one of a few locks in the folder of run.py until the process ends."""
    lock = open(pathlib.Path(os.environ["CONFORMANCE_TURNS"]) / f"turn-{os.getpid() % AT_ONCE}", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def answered(folder):
    """Answers the questions of tools during their calls."""
    waiting = json.loads(subprocess.run([BIN, "approvals", "--json"], cwd=folder, stdout=subprocess.PIPE, timeout=PATIENCE).stdout)
    for one in waiting["approvals"]:
        form = one["question"]["schema"]
        usual = {name: kind["default"] for name, kind in form.get("properties", {}).items() if "default" in kind}
        aetheris(folder, "approve", one["id"], "--arguments", json.dumps({**example(form), **usual}))


def main():
    turn = take_turn()
    with turn, tempfile.TemporaryDirectory(prefix="aetheris-conformance-") as name:
        folder = pathlib.Path(name)
        write(folder, sys.argv[-1], [])
        if code := aetheris(folder, "check", "agents.json"):
            return code
        tools = json.loads((folder / "agents.lock.json").read_text())["servers"]["s"]["tools"]
        write(folder, sys.argv[-1], calls(tools))
        with service(folder) as where:
            for _ in range(ROUNDS):
                code = aetheris(folder, "run", "agents.json", "--job-id", "j", **where)
                if code != WAITS:
                    return code
                answered(folder)
        print(f"client.py: input was requested more than {ROUNDS} times", file=sys.stderr, flush=True)
        return WAITS


if __name__ == "__main__":
    sys.exit(main())
