"""SyncCtx: the same for an agent that is a plain `def`. It runs on a thread, and every call blocks.

Branches of a map or race run on threads of their own. One thread of a routine runs at a time; one that blocks hands
over to the next that can continue, in order. So the routine is as deterministic as on an agent loop. It has settled
when no thread of it can continue.
"""
import collections
import contextvars
import threading
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .branches import check_map, check_race, turn_of
from .canonical import to_json
from .context import Model, Race, Requests, Values
from .current import here
from .errors import Cancelled, Evicted, InvalidInput, failure_in, failure_text
from .positions import joined
from .request import Branch, ClosedScope, Made, is_stopped

if TYPE_CHECKING:
    import datetime

    from .definitions import Agent, Tool
    from .http_response import Response
    from .routine import Routine
    from .values import Duration

EVICTION_S = 10.0
_fiber = threading.local()

lost_threads = 0  # of dropped routines, that did not end in 10 s


class Fiber:
    """A thread of a routine, and whether it may run."""

    def __init__(self, runner: "Threads", branch: Branch, work: Callable[[], None]) -> None:
        self.runner = runner
        self.branch = branch
        self.turn = threading.Semaphore(0)
        self.is_ready = True
        self.has_ended = False
        self._work = work
        self._context = contextvars.copy_context()
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"aetheris-routine-{runner.routine.number}")

    def _run(self) -> None:
        self.turn.acquire()
        _fiber.current = self
        try:
            self._context.run(self._work)
        finally:
            self.has_ended = True
            self.runner.leave(self)


class Threads:
    """Runs the code of a routine on threads, one at a time."""
    is_exact = True
    loop: Any = None

    def __init__(self, routine: "Routine") -> None:
        self.routine = routine
        self._mutex = threading.Lock()
        self._ready: Deque[Fiber] = collections.deque()
        self._fibers: List[Fiber] = []
        self._running: Optional[Fiber] = None
        self._waits_for_settled = False

    # ---------------------------------------------------------------- on the worker's thread

    def settle(self) -> bool:
        with self._mutex:
            if self._running is None and not self._ready:
                return True
            self._waits_for_settled = True
            if self._running is None:
                self._resume_next()
            return False

    def resumed(self) -> None:
        pass

    def advance_time(self, ms: float) -> None:
        pass

    def touched(self) -> None:
        pass

    def evict(self) -> None:
        """Every blocked call raises Evicted."""
        with self._mutex:
            for fiber in self._fibers:
                if not fiber.has_ended and not fiber.is_ready and fiber is not self._running:
                    fiber.is_ready = True
                    self._ready.append(fiber)
            if self._running is None:
                self._resume_next()
            left = [fiber for fiber in self._fibers if not fiber.has_ended]
        if left:
            self.routine.host.post(lambda: self.routine.host.loop.call_later(EVICTION_S, self._count_lost, left))

    def _count_lost(self, fibers: List[Fiber]) -> None:
        global lost_threads
        left = [fiber for fiber in fibers if not fiber.has_ended]
        if left:
            lost_threads += len(left)
            self.routine.host.log("warn", f"{len(left)} threads of the dropped routine of job "
                                          f"{self.routine.start['job']['id']} do not end; their place is lost")

    # ---------------------------------------------------------------- on its own threads

    def is_inside(self, _: Any) -> bool:
        fiber = getattr(_fiber, "current", None)
        return fiber is not None and fiber.runner is self

    def make_request(self) -> "SyncRequest":
        return SyncRequest()

    def begin_scope(self, scope: ClosedScope) -> None:
        pass

    def add(self, branch: Branch, work: Callable[[], None]) -> Fiber:
        """A thread that begins when it is its turn."""
        fiber = Fiber(self, branch, work)
        fiber.thread.start()
        with self._mutex:
            self._fibers = [one for one in self._fibers if not one.has_ended]
            self._fibers.append(fiber)
            self._ready.append(fiber)
        return fiber

    def wake(self, fibers: List[Fiber]) -> None:
        """These continue when it is their turn."""
        with self._mutex:
            for fiber in fibers:
                if not fiber.is_ready and not fiber.has_ended:
                    fiber.is_ready = True
                    self._ready.append(fiber)

    def wake_stopped(self) -> None:
        self.wake([fiber for fiber in self._fibers if fiber is not self._running and is_stopped(fiber.branch)])

    def block(self) -> None:
        """Hands over until this thread is woken. Raises Evicted: its code must not continue."""
        fiber: Fiber = _fiber.current
        with self._mutex:
            if self.routine.is_inert:
                raise Evicted()
            fiber.is_ready = False
            self._resume_next()
        fiber.turn.acquire()
        if self.routine.is_inert or is_stopped(fiber.branch):
            raise Evicted()

    def leave(self, _: Fiber) -> None:
        with self._mutex:
            self._resume_next()

    # REQUIRES: the mutex is held.
    def _resume_next(self) -> None:
        self._running = self._ready.popleft() if self._ready else None
        if self._running is not None:
            self._running.turn.release()
        elif self._waits_for_settled:
            self._waits_for_settled = False
            self.routine.host.post(lambda: self.routine.host.schedule(self.routine))


class SyncRequest(Made):
    """A request of a sync agent, made by `ctx.later`, or by `ctx.start`: then its `id` is that of the job."""

    def __init__(self) -> None:
        self._state = "open"
        self._value: Any = None
        self._reason: Optional[str] = None
        self._waiting: List[Fiber] = []
        self.order = 0  # of its outcome among all

    def done(self) -> bool:
        return self._state != "open"

    def result(self) -> Any:
        """Blocks until the outcome is delivered. Raises `ToolFailed` (or `Rejected`, `WaitExpired`, `Cancelled`)."""
        self.routine.check_call(here.get() or self.routine.ctx)
        while self._state == "open":
            wait_for([self], self.routine)
        if self._state == "failed":
            raise self._value
        if self._state == "stopped":
            raise Cancelled(self.tool, self.position, self._reason)
        return self._value

    def cancel(self, reason: Optional[str] = None) -> bool:
        """The outcome is not needed any more: `result()` raises `Cancelled`. See `Request.cancel` of async agents."""
        return False if self.done() else self.routine.cancel(self, reason)

    def give(self, value: Any) -> None:
        if self.convert is not None:
            try:
                value = self.convert(value)
            except Exception as error:
                return self.fail(error)
        self._settle("given", value)

    def fail(self, error: Exception) -> None:
        self._settle("failed", error)

    def stop(self, reason: Optional[str] = None) -> bool:
        self._reason = reason
        return self._settle("stopped", None)

    def _settle(self, state: str, value: Any) -> bool:
        if self._state != "open":
            return False
        self._state, self._value = state, value
        self.order = self.routine.next_order()
        waiting, self._waiting = self._waiting, []
        self.routine.runner.wake(waiting)
        return True


def wait_for(requests: Sequence[SyncRequest], routine: "Routine") -> None:
    """Blocks until one of them may have an outcome."""
    fiber: Fiber = _fiber.current
    for request in requests:
        request._waiting.append(fiber)
    try:
        routine.runner.block()
    finally:
        for request in requests:
            if fiber in request._waiting:
                request._waiting.remove(fiber)


class SyncModel:
    """A model of the agents file. Each call blocks and gives the answer."""

    def __init__(self, later: Requests, name: str) -> None:
        self._model = Model(later, name)

    def generate(self, request: Mapping[str, Any], **options: Any) -> Dict[str, Any]:
        return self._model.generate(request, **options).result()  # type: ignore[no-any-return]

    def text(self, prompt: str, **options: Any) -> str:
        return self._model.text(prompt, **options).result()

    def json(self, prompt: str, schema: Mapping[str, Any], **options: Any) -> Any:
        return self._model.json(prompt, schema, **options).result()


class SyncCtx(Values):
    """What the function of a `def` agent calls: the methods of `Ctx`, which block and give the outcome. `later` has the
    calls and waits that do not block: `ctx.later.call(…)` is a request with `result()` and `cancel()`."""

    def __init__(self, routine: "Routine", scope: str, closed: Optional[ClosedScope], branch: Branch) -> None:
        self.routine = routine
        self.scope_name = scope
        self.closed = closed
        self.branch = branch
        self.later = Requests(routine, scope, closed, branch)

    def inner(self, scope: str) -> "SyncCtx":
        return SyncCtx(self.routine, scope, self.closed, Branch(self.branch))

    def enter(self, fn: Callable[..., Any], *args: Any) -> Any:
        before = here.get()
        here.set(self)
        try:
            return fn(self, *args)
        finally:
            here.set(before)

    # ---------------------------------------------------------------- calls and waits

    def run(self, name: str, effect: str, fn: Callable[..., Any], **options: Any) -> Any:
        return self.later.run(name, effect, fn, **options).result()

    def call(self, tool: "Union[Tool, str]", args: Optional[Mapping[str, Any]] = None, **options: Any) -> Any:
        return self.later.call(tool, args, **options).result()

    def start(self, agent: "Union[Agent, str]", input: Optional[Mapping[str, Any]] = None,
              **options: Any) -> SyncRequest:
        """As `Ctx.start`. Does not block: `result()` of what it returns does."""
        return self.later.start(agent, input, **options)  # type: ignore[return-value]

    def send(self, job: str, to: Mapping[str, str], payload: Any = None, **options: Any) -> None:
        self.later.send(job, to, payload, **options).result()

    def model(self, name: str) -> SyncModel:
        return SyncModel(self.later, name)

    def sleep(self, duration: "Duration", **options: Any) -> None:
        self.later.sleep(duration, **options).result()

    def until(self, time: "Union[datetime.datetime, str]", **options: Any) -> None:
        self.later.until(time, **options).result()

    def wait(self, type: str, wait_key: Optional[str] = None, **options: Any) -> Any:
        return self.later.wait(type, wait_key, **options).result()

    def approval(self, question: str, **options: Any) -> Dict[str, Any]:
        return self.later.approval(question, **options).result()  # type: ignore[no-any-return]

    def receive(self, channel: str, **options: Any) -> Any:
        return self.later.receive(channel, **options).result()

    def fetch(self, url: str, *, method: str = "GET", headers: Optional[Mapping[str, str]] = None,
              body: Union[str, bytes, None] = None, effect: Optional[str] = None, name: Optional[str] = None,
              key: Optional[str] = None, redirect: str = "follow", stream: bool = False) -> "Response":
        """As `Ctx.fetch`."""
        from .http_calls import answered, fetch
        request = fetch(self.later, url, method, headers, body, effect, name, key, redirect, stream)
        return answered(request.result(), redirect, request)

    def urlopen(self, request: Any, data: Optional[bytes] = None, *, effect: Optional[str] = None) -> Any:
        """As `urllib.request.urlopen`, recorded: takes a URL or a `urllib.request.Request`, follows redirects, raises
        `urllib.error.HTTPError` for a status of 400 or more."""
        from .http_calls import urlopen
        return urlopen(self, request, data, effect)

    # ---------------------------------------------------------------- several requests

    def gather(self, requests: Sequence[SyncRequest]) -> List[Any]:
        """The results of all, in their order. The first failure, by the order of delivery, is raised."""
        self.routine.check_call(self)
        while True:
            failed = [one for one in requests if one._state in ("failed", "stopped")]
            if failed:
                return [min(failed, key=lambda one: one.order).result()]
            left = [one for one in requests if not one.done()]
            if not left:
                return [one.result() for one in requests]
            wait_for(left, self.routine)

    def first(self, requests: Sequence[SyncRequest]) -> SyncRequest:
        """The one of them whose outcome was delivered first. Blocks until there is one."""
        self.routine.check_call(self)
        if not requests:
            raise InvalidInput("ctx.first: there is no request to wait for")
        while True:
            done = [one for one in requests if one.done()]
            if done:
                return min(done, key=lambda one: one.order)
            wait_for(requests, self.routine)

    # ---------------------------------------------------------------- scopes and branches

    def scope(self, name: str, fn: Callable[..., Any], *args: Any, fold: bool = False) -> Any:
        if fold:
            return self._closed(name, None, fn, *args)
        return self.inner(self.routine.open_scope(self, name)).enter(fn, *args)

    def _closed(self, name: str, number: Optional[int], fn: Callable[..., Any], *args: Any) -> Any:
        return self._run_closed(self.routine.begin_scope(self, name, number), fn, *args)

    def _run_closed(self, begun: Tuple[Any, Any], fn: Callable[..., Any], *args: Any) -> Any:
        routine = self.routine
        request, closed = begun
        if closed is not None:
            inner = SyncCtx(routine, closed.position, closed, closed.branch)
            try:
                result = inner.enter(fn, *args)
            except Exception as error:
                routine.end_scope_with(closed, error)
            else:
                routine.end_scope(closed, result)
        return request.result()

    def map(self, name: str, items: Sequence[Any], fn: Callable[..., Any], *, parallel: int = 8,
            on_error: str = "fail", fold: bool = False) -> List[Any]:
        routine = self.routine
        check_map(name, parallel, on_error)
        routine.check_call(self)
        scope = "" if fold else routine.open_scope(self, name)
        listed = list(items)
        results: List[Any] = [None] * len(listed)
        running: Dict[int, Branch] = {}
        state: Dict[str, Any] = {"next": 0, "error": None}
        group = Group(self)

        def work() -> None:
            while state["next"] < len(listed) and state["error"] is None:
                index = state["next"]
                state["next"] += 1
                outer = self.inner(self.scope_name if fold else joined(scope, index))
                running[index] = outer.branch
                _fiber.current.branch = outer.branch
                try:
                    if fold:
                        results[index] = outer._closed(name, index, fn, listed[index], index)
                    else:
                        results[index] = outer.enter(fn, listed[index], index)
                except Exception as error:
                    if state["error"] is not None or is_stopped(outer.branch):
                        return
                    failure = failure_in(error)
                    if on_error == "collect" and failure:
                        results[index] = {"error": failure_text(failure)}
                    else:
                        state["error"] = error
                        routine.stop_branches([branch for at, branch in running.items() if at != index])
                        routine.runner.wake_stopped()
                        return group.finish()
                del running[index]

        for _ in range(min(parallel, len(listed))):
            group.add(Branch(self.branch), work)
        group.join()
        if state["error"] is not None:
            raise state["error"]
        return results

    def race(self, name: str, branches: Mapping[str, Callable[..., Any]], *, losers: str = "cancel") -> Race:
        """As `Ctx.race`. In a loser, the call that blocks raises Evicted."""
        routine = self.routine
        check_race(name, branches, losers)
        scope = routine.open_scope(self, name)
        contexts = {branch: self.inner(joined(scope, branch)) for branch in branches}
        decided: List[Tuple[str, Any, Optional[BaseException]]] = []
        group = Group(self)

        def run(branch: str) -> None:
            if decided and losers == "cancel":
                return
            value: Any = None
            failed: Optional[BaseException] = None
            try:
                value = contexts[branch].enter(branches[branch])
            except Exception as error:
                failed = error
            if decided:
                return
            decided.append((branch, value, failed))
            if losers == "cancel":
                routine.stop_branches([context.branch for other, context in contexts.items() if other != branch])
                routine.runner.wake_stopped()
            group.finish()

        for branch in branches:
            group.add(contexts[branch].branch, lambda branch=branch: run(branch))  # type: ignore[misc]
        group.join()
        won, value, failed = decided[0]
        if failed is not None:
            raise failed
        return Race(won, value)

    def loop(self, name: str, state: Any, fn: Callable[..., Any]) -> Any:
        at = to_json(state, f'the state of the loop "{name}"')
        loop, index = self.routine.begin_loop(self, name)
        while True:
            end = self._run_closed(self.routine.begin_turn(self, loop, index),
                                   lambda inner, given, i: turn_of(name, fn(inner, given, i)), at, index)
            if "done" in end:
                return end["done"]
            at = end["next"]
            index += 1


class Group:
    """Branches on threads. The thread that began them waits until all have ended, or `finish`."""

    def __init__(self, ctx: SyncCtx) -> None:
        self._runner: Threads = ctx.routine.runner
        self._parent: Fiber = _fiber.current
        self._left = 0
        self._is_finished = False

    def add(self, branch: Branch, work: Callable[[], None]) -> None:
        self._left += 1

        def run() -> None:
            try:
                work()
            except Evicted:
                pass
            finally:
                self._left -= 1
                if self._left == 0:
                    self.finish()
        self._runner.add(branch, run)

    def finish(self) -> None:
        self._is_finished = True
        self._runner.wake([self._parent])

    def join(self) -> None:
        self._is_finished = self._is_finished or self._left == 0
        while not self._is_finished:
            self._runner.block()


def begin_agent(routine: "Routine", fn: Callable[..., Any], input: Any) -> None:
    def main() -> None:
        here.set(routine.ctx)
        try:
            routine.finish(fn(routine.ctx, input))
        except BaseException as error:
            routine.finish_with(error)
    routine.runner.add(routine.root, main)
