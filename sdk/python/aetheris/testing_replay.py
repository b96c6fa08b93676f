"""replay: checks whether code fits recorded jobs, for `aetheris.testing`. The program reads their logs
(`aetheris preflight`), and the code runs in this process: the worker that the program starts only states where to
connect."""
import asyncio
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Union

from .definitions import Agent, Tool
from .errors import AetherisError, ConnectionFailed, InvalidInput
from .testing_server import find_program
from .testing_worker import WorkerThread

_SOCKET = re.compile(r"^aetheris-testing-socket (.+)$")
_STANDBY = '#!/bin/sh\necho "aetheris-testing-socket $AETHERIS_SOCKET"\nexec sleep 86400\n'
_DIVERGED = 6  # exit code
_LINES_MAX = 200  # that are kept of what the program prints


class StoredJobs(NamedTuple):
    """Jobs of a store or of a server."""
    store: Optional[str] = None
    """As `--store` of the commands: a file, `sqlite:PATH` or `postgres://…`."""
    url: Optional[str] = None
    """The server's address; AETHERIS_API_KEY is its key."""
    jobs: Optional[Sequence[str]] = None
    """Default: all jobs of these agents that have not ended."""


class ReplayedJob(NamedTuple):
    """A job that was checked."""
    job: str
    agent: Optional[str]
    """None: its log cannot be read."""
    verdict: str
    """continues, diverges, fails or not_judged"""
    reason: Optional[str]
    """Why it is not judged."""
    explanation: Optional[str]
    """What differs, or the exception."""
    recorded_requests: int


def replay(recorded: Union[str, Iterable[str], StoredJobs], code: Iterable[Union[Agent, Tool]], *,
           program: Optional[str] = None, log: Optional[Callable[[str, str], None]] = None) -> List[ReplayedJob]:
    """Runs the code of agents against recorded jobs. No tool and no function of `ctx.run` is called. `recorded`: files
    with the log of a job, as `aetheris events ID --json` and `aetheris prune --archive` write them, folders of them, or
    patterns of `glob`; or jobs of a store or a server. `code`: the agents, and the tools that their jobs call. Jobs of
    other agents are skipped.

    Raises `AetherisError`: `replay_diverged`, with what differs, if the code of a job makes other requests, ends
    otherwise or raises, or if the job cannot be judged; `not_found`: there is no job of these agents. Raises
    `ConnectionFailed`: the program cannot be started; `InvalidInput`."""
    offers = list(code)
    agents = [one.name for one in offers if isinstance(one, Agent)]
    found = _checked(recorded, offers, program, log)
    known = [one for one in found if one.agent is None or one.agent in agents]
    if not known:
        raise AetherisError("not_found", f"there is no recorded job of {', '.join(agents)} in {len(found)} jobs")
    bad = [_text_of(one) for one in known if one.verdict != "continues"]
    if bad:
        raise AetherisError("replay_diverged", "\n".join(
            [f"{len(bad)} of {len(known)} recorded jobs do not fit the code", *bad]))
    return known


async def replay_async(recorded: Union[str, Iterable[str], StoredJobs], code: Iterable[Union[Agent, Tool]],
                       **options: Any) -> List[ReplayedJob]:
    """As `replay`, for asyncio."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: replay(recorded, code, **options))


def _text_of(job: ReplayedJob) -> str:
    what = f"is not judged: {job.reason}" if job.verdict == "not_judged" else f"{job.verdict}:\n{job.explanation or ''}"
    return f"job {job.job} (agent {job.agent or 'unknown'}) {what.rstrip()}"


def _words_of(recorded: Union[str, Iterable[str], StoredJobs]) -> List[str]:
    if isinstance(recorded, StoredJobs):
        return [*(["--store", recorded.store] if recorded.store else []),
                *(["--all"] if recorded.jobs is None else ["--", *recorded.jobs])]
    paths = [path for pattern in ([recorded] if isinstance(recorded, str) else recorded) for path in _files_of(pattern)]
    if not paths:
        raise InvalidInput("replay was given no path")
    return [word for path in paths for word in ("--archive", path)]


def _files_of(pattern: Any) -> List[str]:
    text = os.fspath(pattern)
    if os.path.exists(text) or not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text))
    if not found:
        raise InvalidInput(f"no file matches {text}")
    return found


def _checked(recorded: Union[str, Iterable[str], StoredJobs], offers: List[Union[Agent, Tool]], program: Optional[str],
             log: Optional[Callable[[str, str], None]]) -> List[ReplayedJob]:
    words = _words_of(recorded)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
    if isinstance(recorded, StoredJobs) and recorded.url:
        env["AETHERIS_URL"] = recorded.url
        if "AETHERIS_API_KEY" in os.environ:
            env["AETHERIS_API_KEY"] = os.environ["AETHERIS_API_KEY"]
    program = program or find_program()
    folder = tempfile.mkdtemp(prefix="aetheris-testing-")
    standby = os.path.join(folder, "worker")
    with open(standby, "w", encoding="utf-8") as file:
        file.write(_STANDBY)
    os.chmod(standby, 0o700)
    try:
        with subprocess.Popen([program, "preflight", "--json", standby, *words], env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                return _results_of(process, offers, log)
            finally:
                process.kill()
    except OSError as error:
        raise ConnectionFailed("unavailable", f"{program} cannot be started: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _results_of(process: "subprocess.Popen[str]", offers: List[Union[Agent, Tool]],
                log: Optional[Callable[[str, str], None]]) -> List[ReplayedJob]:
    assert process.stdout is not None and process.stderr is not None
    output: List[str] = []
    reading = threading.Thread(target=lambda: output.append(process.stdout.read()),  # type: ignore[union-attr]
                               name="aetheris-testing", daemon=True)
    reading.start()
    worker: Optional[WorkerThread] = None
    lines: List[str] = []
    try:
        for line in process.stderr:
            found = _SOCKET.match(line.rstrip("\n"))
            if found and worker is None:
                worker = WorkerThread(offers, log or (lambda level, message: None), socket=found[1])
            elif not found:
                lines = [*lines[1 - _LINES_MAX:], line]
        status = process.wait()
        reading.join()
    finally:
        if worker is not None:
            worker.stop()
    try:
        answer: Dict[str, Any] = json.loads(output[0])
    except ValueError:
        answer = {}
    if status in (0, _DIVERGED) and "jobs" in answer:
        return [ReplayedJob(*[one[name] for name in ReplayedJob._fields]) for one in answer["jobs"]]
    raise AetherisError(str(answer.get("code", "unavailable")), str(answer.get("detail") or "".join(lines).rstrip()))
