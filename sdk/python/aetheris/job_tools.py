"""The tools of the server that start other jobs and send to them: their names, grants and ids."""
import hashlib
import uuid
from typing import Iterable, Mapping

SEND = "job:send"
_CHILD = "agent:"
_DETACHED = ":detached"
_NAMED = ("model:", _CHILD, "job:")  # no pattern of `uses` grants them


def child_tool(agent: str, detached: bool) -> str:
    """The tool that starts a job of this agent."""
    return f"{_CHILD}{agent}{_DETACHED if detached else ''}"


def grant_of(tool: str) -> str:
    """The entry of `uses` that grants a tool."""
    return tool[:-len(_DETACHED)] if tool.startswith(_CHILD) and tool.endswith(_DETACHED) else tool


def grants(uses: Iterable[str], tool: str) -> bool:
    """Does `uses` of an agent grant the tool?"""
    grant, is_named = grant_of(tool), tool.startswith(_NAMED)
    return any(one == grant or not is_named and (one == "*" or one.endswith(".*") and tool.startswith(one[:-1]))
               for one in uses)


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()


def child_job_id(job: str, steps: Mapping[str, str], position: str) -> str:
    """Of the child job that is started at a position (SPEC §3)."""
    step = _hash(job, steps["decision"], f"{steps['path']}/{position}", "tool").hex()[:16]
    made = bytearray(_hash(job, step, "child")[:16])
    made[6] = made[6] & 0x0F | 0x80
    made[8] = made[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(made)))
