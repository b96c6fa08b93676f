"""Runs agents in a test: the server is the real one, with a store in memory whose clock the test advances; the agents
and tools run in this process (docs/testing-agents.md).

    with testing.start(agents=[refund], tools={"get_order": lambda args: {"id": "43", "total": 29}}) as t:
        job = t.job("refund", {"order": "43"})
        t.approve(job)
        assert job.result() == {"refund": "re_14"}

`start_async` has the same in coroutines.
"""
import asyncio
import datetime
import json
import threading
import time
from typing import Any, Awaitable, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Union

from .client import ENDED, Client
from .crash_proxy import CrashProxy, Point
from .definitions import Agent, Tool
from .dev_warnings import print_warning
from .errors import AetherisError, Failure, InvalidInput
from .functions import Functions
from .testing_models import FakeModel, ModelAnswer, ModelCall, ModelServer
from .testing_replay import ReplayedJob, StoredJobs, replay, replay_async
from .testing_server import Server
from .testing_worker import WorkerThread
from .unawaited import warn_about_unawaited
from .values import duration_ms

__all__ = ["AsyncTestJob", "AsyncTesting", "CallRecord", "CrashReport", "FakeModel", "ModelAnswer", "ModelCall",
           "ReplayedJob", "StoredJobs", "TestJob", "Testing", "Tools", "crash_everywhere", "crash_everywhere_async", "replay",
           "replay_async", "start", "start_async"]

PATIENCE_S = 30.0  # of real time
_POLL_S = 0.005
_POLL_MAX_S = 0.1
_ADVANCES_MAX = 100_000  # of the clock, for one result

Tools = Union[Iterable[Tool], Mapping[str, Union[Tool, Callable[..., Any]]]]


class CallRecord:
    """A call that a function of this process performed, or a model of the test."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.tool: str = call["tool"]
        """`run:EFFECT` for a function of `ctx.run`; `model:NAME` for a model."""
        self.position: Optional[str] = call["position"]
        """Of the request of an agent; None: of a plan or a loop, or the call of a model."""
        self.job: Optional[str] = call["job"]
        self.arguments: Any = call["arguments"]
        self.effect: str = call["effect"]
        self.key: str = call["key"]
        self.try_: int = call["try"]
        self.result: Any = None
        self.error: Optional[Dict[str, Any]] = None
        """`{code, message, definite?}`; None: it returned, or has not ended."""

    def _end(self, end: Mapping[str, Any]) -> None:
        self.result = end.get("result")
        self.error = end.get("failure") or end.get("unknown")

    def __repr__(self) -> str:
        return f"CallRecord({self.position or self.tool}, {self.arguments}, try {self.try_})"


class TestJob:
    """A job of a test. Made by `Testing.job`."""
    __test__ = False  # not a class of tests

    def __init__(self, test: "Testing", id: str) -> None:
        self.test = test
        self.id = id

    def view(self) -> Dict[str, Any]:
        """The job, as `GET /api/jobs/ID` gives it."""
        return self.test.client.job(self.id)

    def status(self) -> str:
        return str(self.view()["status"])

    def events(self) -> List[Dict[str, Any]]:
        """The events of its log."""
        found: List[Dict[str, Any]] = self.test.client.request(
            "GET", f"/api/jobs/{self.id}/events?limit=1000000")["events"]
        return found

    def result(self) -> Any:
        """Its result. While the job only waits for time, the clock is advanced to the next instant that is due. Raises
        `Failure`: it failed, or was cancelled; `AetherisError`: it is parked, or waits for an answer."""
        for _ in range(_ADVANCES_MAX):
            view = self.view()
            status = view["status"]
            if status == "completed":
                return view.get("result")
            if status == "failed":
                error = view.get("error") or {}
                raise Failure(str(error.get("code", "failed")), str(error.get("message", "the job failed")))
            if status == "cancelled":
                raise Failure("cancelled", f"job {self.id} was cancelled")
            if status == "parked":
                reason = (view.get("parked") or {}).get("reason", "parked")
                raise AetherisError(str(reason), f"job {self.id} is parked: {_described(view)}")
            if self.test.skip_to_next():
                continue
            again = self.view()  # it may have continued meanwhile
            if status == "waiting" and again["status"] == status:
                raise AetherisError("waiting", f"job {self.id} waits for an answer, and more time does not help: "
                                               f"{_described(again)}")
        raise AetherisError("timeout", f"job {self.id} does not end")


class Testing:
    """A server with a store in memory, and a worker in this process. Made by `start`."""
    __test__ = False

    def __init__(self, program: Optional[str], agents_file: Optional[str], models: Optional[Mapping[str, FakeModel]],
                 models_url: Optional[str], offers: List[Union[Agent, Tool]],
                 log: Optional[Callable[[str, str], None]]) -> None:
        self._models = None if models is None else ModelServer(models, self._on_call)
        file = self._models.agents_file() if self._models and not models_url else None
        env = {models_url: self._models.url} if self._models and models_url else {}
        try:
            self._server = Server(program, agents_file, file, env)
        except BaseException:
            if self._models is not None:
                self._models.close()
            raise
        self._offers = offers
        self._log = log
        self._made: List[CallRecord] = []
        self._jobs = 0
        self._proxy: Optional[CrashProxy] = None
        self._worker: Optional[WorkerThread] = None
        self._crashed = threading.Event()
        self.client = Client(self._server.url)
        """For other requests of the server's API."""

    def __enter__(self) -> "Testing":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._server.url

    def job(self, agent: Union[str, Agent], input: Any = None, *, id: Optional[str] = None,
            labels: Optional[Mapping[str, str]] = None) -> TestJob:
        """Creates a job."""
        name = agent if isinstance(agent, str) else agent.name
        self._jobs += 1
        id = id or f"{name}-{self._jobs}"
        self.client.create(name, {} if input is None else input, id=id, labels=labels)
        return TestJob(self, id)

    def until(self, job: TestJob, wanted: Union[str, Callable[[Dict[str, Any]], bool]]) -> Dict[str, Any]:
        """Waits until the job has this status, or the condition holds for it. Time does not advance. Raises
        `AetherisError`, `timeout`, after 30 s of real time, or once the job has ended otherwise."""
        def found() -> Optional[Dict[str, Any]]:
            view = job.view()
            if wanted(view) if callable(wanted) else view["status"] == wanted:
                return view
            if view["status"] in ENDED:
                raise self._not_so(job, wanted, view)
            return None
        view = _polled(found)
        if view is None:
            raise self._not_so(job, wanted, job.view())
        return view

    @staticmethod
    def _not_so(job: TestJob, wanted: Any, view: Dict[str, Any]) -> AetherisError:
        what = "as it was awaited" if callable(wanted) else wanted
        return AetherisError("timeout", f"job {job.id} did not become {what}: {_described(view)}")

    def approve(self, job: TestJob, *, request: Optional[str] = None, note: Optional[str] = None,
                arguments: Any = None) -> None:
        """Approves the only open request of the job, or the one with this id. Waits until there is one."""
        self.client.approve(request or self._open_request(job), note=note, arguments=arguments)

    def reject(self, job: TestJob, *, request: Optional[str] = None, note: Optional[str] = None) -> None:
        """Rejects it."""
        self.client.reject(request or self._open_request(job), note=note)

    def _open_request(self, job: TestJob) -> str:
        def found() -> Optional[str]:
            view = job.view()
            requests = self.client.requests(job.id)
            if len(requests) > 1:
                raise InvalidInput(f"job {job.id} has {len(requests)} open requests; name one: "
                                   f"{', '.join(str(one['id']) for one in requests)}")
            if requests:
                return str(requests[0]["id"])
            if view["status"] in ENDED:
                raise AetherisError("not_found", f"job {job.id} has no open request: {_described(view)}")
            return None
        request = _polled(found)
        if request is None:
            raise AetherisError("not_found", f"job {job.id} has no open request: {_described(job.view())}")
        return request

    def signal(self, job: TestJob, wait_key: str, payload: Any = None) -> None:
        """Answers a wait for a signal, also before it is open."""
        self.client.request("POST", f"/api/jobs/{job.id}/signal",
                            {"correlation_key": wait_key, "payload": payload, "buffer": True})

    def message(self, job: TestJob, channel: str, payload: Any = None) -> None:
        """Sends a message on a channel."""
        self.client.message(job.id, channel, payload)

    def cancel(self, job: TestJob) -> None:
        self.client.cancel(job.id)

    def skip(self, duration: Union[str, int, float]) -> None:
        """Advances the clock, by a text such as `3d` or by seconds. All that is due in this time happens in its order:
        whenever no job runs, the clock goes to the next instant that is due."""
        self._clock({"advance": f"{duration_ms(duration)}ms"})

    def skip_to_next(self) -> bool:
        """Advances the clock to the next instant that is due. False: none is."""
        return bool(self._clock({"to_next": True})["advanced"])

    def now(self) -> datetime.datetime:
        """The time of the server."""
        text = str(self._clock({})["now"])
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))

    def _clock(self, body: Dict[str, Any]) -> Dict[str, Any]:
        answer: Dict[str, Any] = self.client.request("POST", "/api/clock", body)
        return answer

    def calls(self, name: Optional[str] = None) -> List[CallRecord]:
        """The calls of functions of this process and of its models, in their order: all, those of a tool or of
        `model:NAME`, or those at a position."""
        return [call for call in list(self._made) if name is None or name in (call.tool, call.position)]

    def close(self) -> None:
        """Ends the worker and the server; all is lost."""
        if self._worker is not None:
            self._worker.stop()
        if self._proxy is not None:
            self._proxy.close()
        self._server.stop()
        if self._models is not None:
            self._models.close()

    # ---------------------------------------------------------------- its worker

    def _connect(self) -> None:
        self._crashed = threading.Event()
        self._proxy = CrashProxy(self._server.url, self._crashed.set)
        refused: List[str] = []

        def log(level: str, message: str) -> None:
            if level == "error":
                refused.append(message)
            if self._log is not None:
                self._log(level, message)

        def adapt(functions: Functions) -> None:
            functions.observe = self._on_call
            functions.route = self._models and self._models.route
        self._worker = WorkerThread(self._offers, log, url=self._proxy.url, adapt=adapt)
        wanted = {offer.name for offer in self._offers if isinstance(offer, Agent)}

        def is_usable() -> Optional[bool]:
            agents = self.client.request("GET", "/api/agents")["agents"]
            if wanted <= {one["name"] for one in agents if one.get("runs_here")}:
                return True
            if refused:
                raise InvalidInput(refused[0])
            return None
        if not _polled(is_usable):
            raise InvalidInput("the server did not accept the agents")

    def _on_call(self, call: Dict[str, Any]) -> Callable[[Dict[str, Any]], None]:
        record = CallRecord(call)
        self._made.append(record)
        return record._end

    def _crashing(self, point: Optional[Point], work: Callable[[], Any]) -> Any:
        """Runs `work`, and ends the worker at this frame. Its value, how many frames there were, and whether the worker
        was ended."""
        assert self._proxy is not None
        proxy, crashed, is_over = self._proxy, self._crashed, threading.Event()
        proxy.arm(point)

        def replace() -> None:
            crashed.wait()
            if is_over.is_set():
                return
            if self._worker is not None:
                self._worker.stop()
            self._connect()
        replacing = threading.Thread(target=replace, name="aetheris-testing", daemon=True)
        replacing.start()
        try:
            value = work()
        finally:
            frames, has_crashed = proxy.frames, crashed.is_set()
            proxy.arm(None)
            if not has_crashed:
                is_over.set()
                crashed.set()
            replacing.join()
            if not has_crashed:
                crashed.clear()
        return value, frames, has_crashed


def start(agents: Iterable[Agent], tools: Tools = (), *, tools_of: Iterable[Tool] = (),
          models: Optional[Mapping[str, FakeModel]] = None, models_url: Optional[str] = None,
          agents_file: Optional[str] = None, program: Optional[str] = None,
          log: Optional[Callable[[str, str], None]] = None) -> Testing:
    """Starts a server and a worker.

    `tools`: those that the agents call, or, by name, functions instead of them. A function has the definition of the
    tool with its name in `tools_of`; else it is idempotent. `models`: the substitutes of models, by name: the models of
    the server, and those that clients call by `ctx.fetch`; an agent names the first in `uses`, such as
    `model:main`. `agents_file`: further tools, models and policies.
    `models_url`: the name of a variable, for an agents file whose models have `base_url: "${ env.NAME }"`: the address
    of `models`, which are then the models of that file, by the name that it gives the provider (`model`).
    `program`: default AETHERIS_BIN, or `aetheris` in PATH. `log(level, message)`: what the worker reports.

    Raises `InvalidInput`, `ConnectionFailed`."""
    warn_about_unawaited(print_warning)
    offers: List[Union[Agent, Tool]] = [*agents, *_tools(tools, list(tools_of))]
    test = Testing(program, agents_file, models, models_url, offers, log)
    try:
        test._connect()
    except BaseException:
        test.close()
        raise
    return test


def _tools(tools: Tools, tools_of: List[Tool]) -> List[Tool]:
    if not isinstance(tools, Mapping):
        return list(tools)
    made = []
    for name, given in tools.items():
        if not isinstance(given, Tool):
            known = [one.definition for one in tools_of if one.name == name]
            given = Tool(name, known[0] if known else {"effect": "idempotent"}, given)
        if given.name != name:
            raise InvalidInput(f'the tool "{given.name}" is given under the name "{name}"')
        made.append(given)
    return made


def _polled(found: Callable[[], Any]) -> Any:
    """What `found` gives, once it is not None; None: after PATIENCE_S it was still None."""
    until, delay = time.monotonic() + PATIENCE_S, _POLL_S
    while True:
        value = found()
        if value is not None or time.monotonic() > until:
            return value
        time.sleep(delay)
        delay = min(2 * delay, _POLL_MAX_S)


def _described(view: Mapping[str, Any]) -> str:
    """What is known about a job that does not do what the test expects."""
    names = ("status", "parked", "exception", "divergence", "error", "waits", "in_doubt")
    return json.dumps({name: view[name] for name in names if view.get(name)})


# ---------------------------------------------------------------- crashes

class CrashReport(NamedTuple):
    crashes: int
    """How often the worker was ended."""
    in_doubt: int
    """In how many of these the outcome of an at_most_once call stayed unknown, so that an operator must decide."""


def crash_everywhere(make: Callable[[], TestJob]) -> CrashReport:
    """Runs the job that `make` creates without a crash, then once for each frame that the worker sends in it, before and
    after the frame; each time the worker ends there, and a new one continues the job.

    Raises `AetherisError`: `crash_changed_result` if the job ends otherwise; `call_repeated` if an at_most_once function
    is called twice, or a call has another key when it is called again. A job that parks because the outcome of an
    at_most_once call is unknown has not ended otherwise: that is what this effect promises."""
    first = make()
    test, expected = first.test, _end_of(first)
    (job, end), frames, _ = test._crashing(None, lambda: _run(make))
    if end != expected:
        raise AetherisError("crash_changed_result", f"two runs without a crash ended with {expected} and {end}")
    crashes = in_doubt = 0
    for frame in range(1, frames + 1):
        for when in ("before", "after"):
            at = f"the worker ended {when} frame {frame} of {frames}"
            (job, end), _, has_crashed = test._crashing((frame, when), lambda: _run(make))
            _check_calls(job, at)
            if not has_crashed:
                continue
            crashes += 1
            if end == {"code": "invocation_in_doubt"}:
                in_doubt += 1
            elif end != expected:
                raise AetherisError("crash_changed_result",
                                    f"{at}: the job ended with {end}, without a crash with {expected}")
    return CrashReport(crashes, in_doubt)


def _run(make: Callable[[], TestJob]) -> Any:
    job = make()
    return job, _end_of(job)


def _end_of(job: TestJob) -> Dict[str, Any]:
    try:
        return {"result": job.result()}
    except AetherisError as error:
        return {"code": error.code}


def _check_calls(job: TestJob, at: str) -> None:
    keys: Dict[str, str] = {}  # by position
    performed = set()  # keys
    for call in job.test.calls():
        if call.job != job.id:
            continue
        place = call.position or call.tool
        known = keys.setdefault(place, call.key)
        if call.position is not None and known != call.key:
            raise AetherisError("call_repeated", f"{at}: the call at {place} has the keys {known} and {call.key}")
        if call.effect == "at_most_once" and call.key in performed:
            raise AetherisError("call_repeated", f"{at}: the at_most_once call at {place} was performed twice")
        if not (call.error or {}).get("definite"):  # a definite failure had no effect
            performed.add(call.key)


# ---------------------------------------------------------------- for asyncio

class AsyncTestJob:
    """A `TestJob` whose methods are coroutines."""
    __test__ = False

    def __init__(self, job: TestJob) -> None:
        self.job = job
        self.id = job.id

    async def view(self) -> Dict[str, Any]:
        return await _threaded(self.job.view)

    async def status(self) -> str:
        return await _threaded(self.job.status)

    async def events(self) -> List[Dict[str, Any]]:
        return await _threaded(self.job.events)

    async def result(self) -> Any:
        return await _threaded(self.job.result)


class AsyncTesting:
    """A `Testing` whose methods are coroutines. Made by `start_async`."""
    __test__ = False

    def __init__(self, test: Testing) -> None:
        self.test = test
        self.url = test.url

    async def __aenter__(self) -> "AsyncTesting":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def job(self, agent: Union[str, Agent], input: Any = None, **more: Any) -> AsyncTestJob:
        return AsyncTestJob(await _threaded(lambda: self.test.job(agent, input, **more)))

    async def until(self, job: AsyncTestJob,
                    wanted: Union[str, Callable[[Dict[str, Any]], bool]]) -> Dict[str, Any]:
        return await _threaded(lambda: self.test.until(job.job, wanted))

    async def approve(self, job: AsyncTestJob, **answer: Any) -> None:
        await _threaded(lambda: self.test.approve(job.job, **answer))

    async def reject(self, job: AsyncTestJob, **answer: Any) -> None:
        await _threaded(lambda: self.test.reject(job.job, **answer))

    async def signal(self, job: AsyncTestJob, wait_key: str, payload: Any = None) -> None:
        await _threaded(lambda: self.test.signal(job.job, wait_key, payload))

    async def message(self, job: AsyncTestJob, channel: str, payload: Any = None) -> None:
        await _threaded(lambda: self.test.message(job.job, channel, payload))

    async def cancel(self, job: AsyncTestJob) -> None:
        await _threaded(lambda: self.test.cancel(job.job))

    async def skip(self, duration: Union[str, int, float]) -> None:
        await _threaded(lambda: self.test.skip(duration))

    async def skip_to_next(self) -> bool:
        return await _threaded(self.test.skip_to_next)

    async def now(self) -> datetime.datetime:
        return await _threaded(self.test.now)

    def calls(self, name: Optional[str] = None) -> List[CallRecord]:
        return self.test.calls(name)

    async def close(self) -> None:
        await _threaded(self.test.close)


async def start_async(agents: Iterable[Agent], tools: Tools = (), **options: Any) -> AsyncTesting:
    """As `start`, for asyncio."""
    return AsyncTesting(await _threaded(lambda: start(agents, tools, **options)))


async def crash_everywhere_async(make: Callable[[], Awaitable[AsyncTestJob]]) -> CrashReport:
    """As `crash_everywhere`, for asyncio."""
    loop = asyncio.get_running_loop()

    async def made() -> AsyncTestJob:
        return await make()
    return await _threaded(
        lambda: crash_everywhere(lambda: asyncio.run_coroutine_threadsafe(made(), loop).result().job))


async def _threaded(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)
