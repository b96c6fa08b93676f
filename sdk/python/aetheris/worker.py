"""Worker: a process's connection to the server, its routines and its functions.

All routines that were given something run in the same turn of the worker's loop. What they and the functions send in it
is one frame.
"""
import asyncio
import binascii
import json
import os
import platform
import signal
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Union

from . import sync
from .definitions import Agent, Tool
from .errors import ConnectionFailed, InvalidInput
from .functions import Functions
from .redact import redactor
from .routine import OTHER_WORK_S, Routine
from .session import Session

SDK_VERSION = "0.1.0"
GRACE_S = 30.0
_NAMES_MAX = 20  # of agents or tools in one line
_TROUBLE_S = 1.0  # a connection that is lost for a shorter time is not reported
PROTOCOL = 1
DEFAULT_URL = "http://127.0.0.1:7070"
# The server refused the worker: a retry does not help.
FINAL = frozenset(("unauthorized", "forbidden", "unsupported", "usage"))


class _Loading:
    """A record whose last part has not come."""

    def __init__(self, start: Dict[str, Any]) -> None:
        self.start = start
        self.record: Dict[str, Any] = {"requests": [], "deliveries": [], "values": {}, "emitted": {}}
        self.delivered: List[Dict[str, Any]] = []

    def add(self, part: Optional[Dict[str, Any]]) -> None:
        part = part or {}
        self.record["requests"].extend(part.get("requests") or [])
        self.record["deliveries"].extend(part.get("deliveries") or [])
        self.record["values"].update(part.get("values") or {})
        self.record["emitted"].update(part.get("emitted") or {})


class Worker:
    """Offers agents and tools to the server, and connects for as long as `run` runs: after a lost connection with a
    back-off of 50 ms to 5 s.

    `socket`: the server's Unix socket. `url`: its address. Without both: AETHERIS_SOCKET, then AETHERIS_URL, then
    `.aetheris/aetheris.sock` in the current folder or a parent, then http://127.0.0.1:7070. `api_key`: default
    AETHERIS_API_KEY. `routines`, `calls`: how many at a time. `log(level, message)`: the default writes to stderr.
    `other_work_s`: how long code of loop="host" may do work that is not a request before a recorded request counts as
    missing.

    Raises InvalidInput: nothing is offered, or a name twice."""

    def __init__(self, *offers: Union[Agent, Tool], socket: Optional[str] = None, url: Optional[str] = None,
                 api_key: Optional[str] = None, routines: int = 256, calls: int = 256,
                 log: Optional[Callable[[str, str], None]] = None, other_work_s: float = OTHER_WORK_S) -> None:
        redactor.read(os.environ)
        self.loop: asyncio.AbstractEventLoop
        self._version = os.environ.get("AETHERIS_VERSION")
        self._agents: Dict[str, Agent] = {}  # by name and version
        self._tools: Dict[str, Tool] = {}
        for offer in offers:
            known: Dict[str, Any] = self._agents if isinstance(offer, Agent) else self._tools
            key = _agent_key(offer.name, offer.version(self._version)) if isinstance(offer, Agent) else offer.name
            if key in known:
                raise InvalidInput(f'the {offer.kind} "{key}" is offered twice')
            known[key] = offer
        if not offers:
            raise InvalidInput("the worker was given no agent and no tool; write @agent(…) or @tool(…)")
        self._session = Session(self, address=lambda: _address(socket, url),
                                api_key=api_key or os.environ.get("AETHERIS_API_KEY"))
        self._socket, self._url = socket, url
        self._connections = 0
        self._refusal: Dict[str, Any] = {}  # the reason of the next `stop`
        self._capacity = {"routines": routines, "calls": calls}
        self._log = log
        self._other_work_s = other_work_s
        self._functions = Functions(self, max(1, calls))
        self._routines: Dict[int, Routine] = {}
        self._loading: Dict[int, _Loading] = {}
        self._name = f"{_hostname()}:{os.getpid()}:{binascii.hexlify(os.urandom(4)).decode()}"
        self._scheduled: List[Routine] = []
        self._has_turn = False
        self._posted: List[Callable[[], None]] = []
        self._post_lock = threading.Lock()
        self._thread = 0
        self._is_stopping = False
        self._is_session_gone = False  # while its routines are dropped
        self._trouble = ""  # of the connection
        self._is_trouble_reported = self._has_connected = False
        self._trouble_timer: Optional[asyncio.TimerHandle] = None
        self._changed: "Optional[asyncio.Future[None]]" = None
        self._closed: "Optional[asyncio.Future[None]]" = None

    async def run(self) -> None:
        """Connects, and returns when the worker has stopped. Raises ConnectionFailed: the server refused it. If it is
        cancelled, the session ends at once: calls that run are lost."""
        self._start()
        assert self._closed is not None
        try:
            await self._closed
        except asyncio.CancelledError:
            await self._finish()
            raise

    def _start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closed = self.loop.create_future()
        # Not inside of a task: the session runs code of routines.
        self.loop.call_soon(self._session.start)

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """Stops in order: no further routine is started here; functions that run are awaited for `grace_s`, then cut
        off; their ends are sent. If the connection is lost, it is made again in this time to send them. Jobs continue
        in other workers."""
        if self._is_stopping or self._closed is None:
            return
        self._is_stopping = True
        if self._session.is_open:
            self.send({"type": "drain"})
        try:
            await asyncio.wait_for(self._when_idle(), grace_s)
        except asyncio.TimeoutError:
            pass
        self._functions.abandon_all()
        await asyncio.sleep(0)
        self._session.flush()
        await self._finish()
        if not self._closed.done():
            self._closed.set_result(None)

    async def _when_idle(self) -> None:
        while True:
            await self._functions.when_idle()
            if not (self._routines if self._session.is_open else self._functions.has_unreported_ends()):
                return
            self._changed = self.loop.create_future()
            await self._changed

    def _note_change(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def _finish(self) -> None:
        self._is_stopping = True
        self.loop.call_soon(self._drop_routines, "the worker stops")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._session.flush()
        await self._session.close()

    # ---------------------------------------------------------------- for routines and functions

    def schedule(self, routine: Routine) -> None:
        if not routine.is_scheduled:
            routine.is_scheduled = True
            self._scheduled.append(routine)
            self._wake()

    def send(self, message: Dict[str, Any]) -> None:
        """A part of this turn's frame."""
        if message["type"] == "diverged":
            self._on_diverged(message)
        self._session.add(message)
        self._wake()

    def _on_diverged(self, message: Dict[str, Any]) -> None:
        number, place = message["routine"], message.get("where")
        what = {"arguments": "the code requests something else than the log has",
                "missing": "the code does not make a request that the log has",
                "ended": "the code ended before a request that the log has"}
        routine = self._routines.get(number)
        then = "The job keeps its version" if routine is not None and routine.start.get("trial") else \
            'The job parks; "aetheris resume" continues it after the code is corrected. What differs: ' \
            f"aetheris divergence {self._job_of(number)}"
        if routine is None or not routine.start.get("check"):  # the server shows what it finds
            self.log("error", f'{self._name_of(number)}: {what.get(message["finding"], message["finding"])}, at '
                              f'"{message["position"]}"{f", {place}" if place else ""}. {then}')
        self._forget(number, "diverged")

    def _job_of(self, number: int) -> str:
        routine = self._routines.get(number)
        return "JOB" if routine is None else str(routine.start["job"]["id"])

    # job refund-7 (agent refund)
    def _name_of(self, number: int) -> str:
        known: Any = self._routines.get(number) or self._loading.get(number)
        if known is None:
            return f"routine {number}"
        return f"job {known.start['job']['id']} (agent {known.start['agent']})"

    def offers_tool(self, name: str) -> bool:
        return name in self._tools

    def end_call(self, call: int, end: Dict[str, Any]) -> None:
        if not self._is_session_gone:
            self.send({"type": "ended", "call": call, **end})

    def post(self, function: Callable[[], None]) -> None:
        """Calls it on the worker's thread."""
        if threading.get_ident() == self._thread:
            return function()
        with self._post_lock:
            self._posted.append(function)
            is_first = len(self._posted) == 1
        if is_first:
            try:
                self.loop.call_soon_threadsafe(self._run_posted)
            except RuntimeError:
                pass  # the loop is closed: the worker has stopped

    def _run_posted(self) -> None:
        with self._post_lock:
            posted, self._posted = self._posted, []
        for function in posted:
            try:
                function()
            except Exception as error:
                self.log("error", f"{type(error).__name__}: {error}")

    def routine(self, number: int) -> Optional[Routine]:
        return self._routines.get(number)

    def acknowledged_at(self) -> float:
        return self._session.acknowledged_at

    def tool(self, name: str) -> Optional[Tool]:
        return self._tools.get(name)

    def log(self, level: str, message: str) -> None:
        if self._log is not None:
            self._log(level if level in ("error", "warn") else "info", message)
        else:
            sys.stderr.write(f"aetheris: {level}: {message}\n")
            sys.stderr.flush()

    # ---------------------------------------------------------------- the loop

    def _wake(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._has_turn = False
        routines, self._scheduled = self._scheduled, []
        for routine in routines:
            try:
                routine.step()
            except Exception as error:  # of the SDK, or of a runner: the routine cannot continue here
                self._lose(routine.number, "internal", f"{type(error).__name__}: {error}")
        self._session.flush()

    # ---------------------------------------------------------------- the session

    def hello(self) -> Dict[str, Any]:
        hello: Dict[str, Any] = {
            "protocol": PROTOCOL, "sdk": f"python/{SDK_VERSION}", "worker": self._name,
            "agents": [redactor.value(agent.offer(self._version)) for agent in self._agents.values()],
            "tools": [redactor.value(tool.offer()) for tool in self._tools.values()],
            "capacity": {**self._capacity, "routines": max(1, self._capacity["routines"] - sync.lost_threads)}}
        self._connections += 1
        return {**hello, "connection": self._connections, **self._functions.left()}

    def on_session(self, welcome: Dict[str, Any], is_new: bool) -> None:
        self._report_faults(welcome.get("agents") or [])
        if self._is_verbose():
            self.log("info", f"connected as {self._name}, session {welcome.get('session')}")
        elif not self._has_connected and not os.environ.get("AETHERIS_SUPERVISED"):
            self.log("info", self._connected_text(welcome))
        elif self._is_trouble_reported:
            self.log("info", "connected")
        if self._trouble_timer is not None:
            self._trouble_timer.cancel()
        self._trouble_timer, self._is_trouble_reported, self._has_connected = None, False, True
        if self._is_stopping:
            self.loop.call_soon(self._note_change)  # after what it sends at first
            self.send({"type": "drain"})
        if not is_new:
            return
        self._is_session_gone = True
        self._functions.on_session_gone()
        self._drop_routines("its session is gone")
        self._is_session_gone = False
        for message in self._functions.late_ends():
            self.send(message)

    # connected to http://127.0.0.1:7070; agents: a, b
    def _connected_text(self, welcome: Dict[str, Any]) -> str:
        address = _address(self._socket, self._url)
        refused = {one.get("name") for one in welcome.get("agents") or [] if one.get("faults") is not None}
        taken = dict.fromkeys(one.name for one in self._agents.values() if one.name not in refused)
        lists = [_list_text("agents", list(taken)), _list_text("tools", list(self._tools))]
        return "; ".join([f"connected to {address['socket'] or address['url']}", *filter(None, lists)])

    # The faults of a hello are the same for all of its agents.
    def _report_faults(self, agents: List[Dict[str, Any]]) -> None:
        agents_of: Dict[str, List[str]] = {}  # by fault
        for offered in agents:
            faults = offered.get("faults")
            version = f" (version {offered['version']})" if offered.get("version") else ""
            for fault in faults if isinstance(faults, list) else [] if faults is None else [faults]:
                agents_of.setdefault(_fault_text(fault), []).append(f"{offered.get('name')}{version}")
        for fault, names in agents_of.items():
            self.log("error", f"the server does not take {', '.join(names)}: {fault}")

    def on_trouble(self, error: ConnectionFailed) -> None:
        self.loop.call_soon(self._note_change)
        if error.code in FINAL:
            self.log("error", str(error))
            if not self._is_stopping:
                self.loop.create_task(self._refused(error))
            return
        is_new = str(error) != self._trouble
        self._trouble = str(error)
        if is_new if self._is_trouble_reported else not self._has_connected or self._is_verbose():
            self._report_trouble()
        elif not self._is_trouble_reported and self._trouble_timer is None:
            self._trouble_timer = self.loop.call_later(_TROUBLE_S, self._report_trouble)

    def _is_verbose(self) -> bool:
        return self._log is not None or bool(os.environ.get("AETHERIS_VERBOSE"))

    def _report_trouble(self) -> None:
        if self._is_stopping:
            return
        self._is_trouble_reported = True
        self.log("warn", f"not connected: {self._trouble.rstrip('.?')}. Trying again")

    async def _refused(self, error: ConnectionFailed) -> None:
        await self._finish()
        if self._closed is not None and not self._closed.done():
            self._closed.set_exception(error)

    def on_too_large(self, message: Dict[str, Any]) -> None:
        if message["type"] == "ended":
            return self.send({"type": "ended", "call": message["call"], "unknown": {
                "code": "tool_output_invalid", "message": "the result is larger than a frame of 32 MiB"}})
        if message["type"] != "advance":
            return self.log("error", f"a message of type {message['type']} is larger than a frame and was not sent")
        for function in message.get("functions") or []:
            self.send({"type": "ended", "call": function["call"], "result": function["result"]})
        self._lose(message["routine"], "payload_too_large",
                   "what the routine requested at a time is larger than a frame of 32 MiB")

    def on_message(self, message: Dict[str, Any], sent_at: float) -> None:
        kind = message["type"]
        if kind == "perform":
            self._functions.perform(message, sent_at)
        elif kind == "deliver":
            loading = self._loading.get(message["routine"])
            routine = self._routines.get(message["routine"])
            if loading is not None:
                loading.delivered.extend(message["outcomes"])
            elif routine is not None:
                routine.deliver(message["outcomes"])
        elif kind == "start":
            loading = self._loading[message["routine"]] = _Loading(message)
            loading.add(message.get("record"))
            if not message.get("more"):
                self._on_loaded(loading)
        elif kind == "record":
            loading = self._loading.get(message["routine"])
            if loading is not None:
                loading.add(message.get("record"))
                if not message.get("more"):
                    self._on_loaded(loading)
        elif kind == "abandon":
            self._functions.abandon(message["call"])
        elif kind == "stop":
            if message.get("reason") == "refused":
                self._on_refused(message["routine"])
            self._forget(message["routine"], str(message.get("reason")))
        elif kind == "closing":
            self.log("info", f"the server stops within {message.get('within_ms')} ms")
        elif kind == "error" and message.get("routine") is not None:
            self._refusal = message
        elif kind == "error":
            self.log("error", f"the server reports {message.get('code')}: {message.get('message')}")

    # The error that came before states why.
    def _on_refused(self, number: int) -> None:
        why, self._refusal = self._refusal if self._refusal.get("routine") == number else {}, {}
        if why.get("code") == "tool_not_granted":
            what = "Add it to `uses` of the agent, in its definition or in the agents file. The plan of this job " \
                   "does not change: cancel it, and create another"
        else:
            what = "The SDK or the server has an error, or their versions do not match"
        reason = f"{why.get('code')}: {why.get('message')}" if why else "it gave no reason"
        self.log("error", f"{self._name_of(number)}: the server refused a request, and the job parks: {reason}. {what}")

    # ---------------------------------------------------------------- routines

    # A routine could begin with the first part. It begins with the last one, so no request of it has to wait.
    def _on_loaded(self, loading: _Loading) -> None:
        start = loading.start
        number = start["routine"]
        agent = self._agents.get(_agent_key(start["agent"], start.get("version")))
        if agent is None:
            version = f" {start['version']}" if start.get("version") else ""
            return self._lose(number, "not_found", f'this worker does not offer the agent "{start["agent"]}"{version}')
        try:
            routine = Routine({**start, "record": loading.record}, agent, self, self._other_work_s)
        except (ValueError, KeyError, TypeError) as error:
            return self._lose(number, "log_corrupt", str(error))
        del self._loading[number]
        self._routines[number] = routine
        routine.deliver(loading.delivered)
        routine.begin()

    def _lose(self, number: int, code: str, message: str) -> None:
        self.log("error", f"{self._name_of(number)}: {message}")
        self._forget(number, "lost")
        self.send({"type": "lost", "routine": number, "code": code, "message": message})

    def _forget(self, number: int, reason: str) -> None:
        self._loading.pop(number, None)
        routine = self._routines.pop(number, None)
        if routine is not None:
            routine.drop(reason)
        self._note_change()

    def _drop_routines(self, reason: str) -> None:
        self._loading.clear()
        for number in list(self._routines):
            self._forget(number, reason)
        self._scheduled = []


# tools.pay.timeout: must be a duration [plan_invalid]
def _fault_text(fault: Any) -> str:
    if not isinstance(fault, dict) or not isinstance(fault.get("message"), str):
        return json.dumps(fault)
    place = ":".join(str(fault[name]) for name in ("file", "line", "column") if fault.get(name)) if fault.get("line") else ""
    text = ": ".join(part for part in (place, fault.get("path"), fault["message"]) if part)
    suggestion = f" (did you mean {fault['suggestion']}?)" if fault.get("suggestion") else ""
    return f"{text}{suggestion} [{fault.get('code')}]"


def _agent_key(name: str, version: Optional[str]) -> str:
    return f"{name} {version}" if version else name


def _hostname() -> str:
    return platform.node()


# agents: a, b
def _list_text(kind: str, names: List[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f"{kind}: {', '.join(names[:_NAMES_MAX])}{more}" if names else ""


def _address(socket: Optional[str], url: Optional[str]) -> Dict[str, Optional[str]]:
    """Of the server, found for each connection: it may be started later than the worker."""
    if socket is None and url is None:
        socket = os.environ.get("AETHERIS_SOCKET") or None
        url = os.environ.get("AETHERIS_URL") or None
        if socket is None and url is None:
            socket = find_socket(os.getcwd())
    return {"socket": socket, "url": url or DEFAULT_URL}


def find_socket(folder: str) -> Optional[str]:
    """The socket of a server whose store is in this folder or in a parent; None: there is none. The rules are those of
    the commands ("Which store" in docs/cli.md): a folder of another user is not used, and the search ends below the
    home folder, below a folder that all users share, and where the file system changes."""
    begin, at = os.stat(folder), folder
    while True:
        if at != folder:
            state = os.stat(at)
            is_shared = state.st_mode & 0o1002 == 0o1002
            if state.st_dev != begin.st_dev or is_shared or at == os.environ.get("HOME"):
                return None
        store = os.path.join(at, ".aetheris")
        if os.path.exists(store):
            path = os.path.join(store, "aetheris.sock")
            if os.stat(store).st_uid != os.getuid() or not os.path.exists(path):
                return None
            # The path of a socket has at most 107 bytes.
            return min(os.path.relpath(path, folder), path, key=len)
        if at == os.path.dirname(at):
            return None
        at = os.path.dirname(at)


def serve(*offers: Union[Agent, Tool], **options: Any) -> None:
    """Runs a `Worker` with these offers and options until SIGTERM or SIGINT, which end it in order within 30 s; a
    second one at once. Raises `ConnectionFailed`: the server refused it; `InvalidInput`."""
    async def main() -> None:
        worker = Worker(*offers, **options)
        signals: List[Any] = []

        def on_signal() -> None:
            if signals:
                os._exit(1)
            signals.append(worker.loop.create_task(worker.stop()))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        await worker.run()
    asyncio.run(main())
