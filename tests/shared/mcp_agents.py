"""Agents files whose tools come from an MCP server: the test server, or an official one (tests/oracles)."""
import contextlib
import json
import pathlib
import subprocess
import sys

import oracles

SERVER = pathlib.Path(__file__).resolve().parent / "mcp_server.py"


def command(h, era="legacy", *more):
    return [sys.executable, "-B", str(SERVER), "--journal", str(h.path / "journal"), "--era", era,
            "--tools", str(h.path / "tools.json"), *more]


def write_agents(h, mcp, agents, **entry):
    """An agents file with one server, `s`, and an agent for each of `agents`: name -> (tool, args)."""
    plan = {name: {"plan": [{"id": "call", "tool": tool, "args": args}], "output": "${ .steps.call }"}
            for name, (tool, args) in agents.items()}
    (h.path / "agents.yaml").write_text(json.dumps({"aetheris": 1, "tools": {"s": {"mcp": mcp, **entry}}, "agents": plan}))


def journal(h):
    file = h.path / "journal"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def calls(h, tool):
    return [line for line in journal(h) if line["tool"] == tool]


@contextlib.contextmanager
def behind_http(h, era, *more):
    process = subprocess.Popen(command(h, era, "--http", *more), stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def real(name, *words):
    return {"command": [str(oracles.node()), str(oracles.modules() / "node_modules/@modelcontextprotocol" / name / "dist/index.js"),
                        *words]}
