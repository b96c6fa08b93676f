"""How the code of a routine runs: on the agent loop (the default of `async def`), or on the worker's loop
(`loop="host"`).

The agent loop is an asyncio event loop of one routine, without a clock, sockets or threads. It runs until its queue is
empty, so the end of an advance is exact. Tasks and futures hash by their number, so sets of them have the same order in
every run.
"""
import asyncio
import collections
import contextvars
import functools
import sys
import threading
from asyncio import events
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Deque, Dict, List, Optional

from .current import here, IN_FUNCTION
from .errors import Evicted, InvalidInput
from .request import ClosedScope, Request
from .values import ms_of

if TYPE_CHECKING:
    from .routine import Routine

EVICTION_ROUNDS = 100
TURNS = 3  # of the worker's loop, after which code on it has settled
_TASKS_MIN = 64


class AgentTask(asyncio.Task):  # type: ignore[type-arg]
    number = 0

    def __init__(self, coro: Any, *, loop: "AgentLoop", **options: Any) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, **options)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class AgentFuture(asyncio.Future):  # type: ignore[type-arg]
    number = 0

    def __init__(self, *, loop: "AgentLoop") -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class DurableTimer(asyncio.TimerHandle):
    request: Optional[Request] = None


class Clock:
    """The numbers and the time of the code of a closed scope, or of the code in no closed scope. They do not depend on
    what ran in other closed scopes, because the body of one that has ended does not run again."""
    __slots__ = ("number", "time")

    def __init__(self, time: float) -> None:
        self.number = 0
        self.time = time


class AgentLoop(asyncio.AbstractEventLoop):
    """The loop of one routine, and what runs its code."""
    is_exact = True  # it knows when the code has settled

    def __init__(self, routine: "Routine") -> None:
        self.routine = routine
        self.loop = self
        self._ready: Deque[asyncio.Handle] = collections.deque()
        self._tasks: List[AgentTask] = []
        self._tasks_max = _TASKS_MIN
        self._thread: Optional[int] = None  # that runs it now
        self._clock = Clock((ms_of(routine.start["job"].get("created_at")) or 0.0) / 1000)
        _install_in_order()

    def clock(self) -> Clock:
        """Of the code that calls."""
        closed = getattr(here.get(), "closed", None)
        return self._clock if closed is None else closed.clock  # type: ignore[no-any-return]

    def next_number(self) -> int:
        clock = self.clock()
        clock.number += 1
        return clock.number

    # ---------------------------------------------------------------- for the routine

    def begin(self, main: Coroutine[Any, Any, None], ctx: Any) -> None:
        context = contextvars.Context()
        context.run(here.set, ctx)
        context.run(self.create_task, main)

    def settle(self) -> bool:
        """Runs the code until it has settled."""
        ready = self._ready
        if not ready:
            return True
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._thread = threading.get_ident()
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:  # type: ignore[attr-defined]
                    handle._run()
        finally:
            self._thread = None
            events._set_running_loop(before)
        return True

    def is_inside(self, _: Any) -> bool:
        """Does the code of the routine call, and not a function?"""
        return self._thread is not None and self._thread == threading.get_ident()

    def make_request(self) -> Request:
        return Request(loop=self, number=self.next_number())

    def begin_scope(self, scope: ClosedScope) -> None:
        """The body of this closed scope will run."""
        scope.clock = Clock(self.clock().time)

    def touched(self) -> None:
        pass  # code runs in `settle` only

    def resumed(self) -> None:
        pass

    def evict(self) -> None:
        """Cancels all tasks. What does not end in 100 rounds is kept, and never run again."""
        if self._thread is not None:
            return  # its code runs; the step evicts it when it has settled
        for _ in range(EVICTION_ROUNDS):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.settle()
        _kept.extend(task for task in self._tasks if not task.done())
        self._tasks = []
        self._ready.clear()

    # ---------------------------------------------------------------- AbstractEventLoop

    def call_soon(self, callback: Callable[..., Any], *args: Any,  # type: ignore[override]
                  context: Optional[contextvars.Context] = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any,  # type: ignore[override]
                   context: Optional[contextvars.Context] = None) -> asyncio.TimerHandle:
        """A durable timer: a request with the name `sleep` in the scope of the code that calls."""
        clock = self.clock()
        timer = DurableTimer(clock.time + max(0.0, delay), callback, args, self, context)
        if delay <= 0:
            self._ready.append(timer)
            return timer
        if delay == float("inf"):
            return timer
        ctx = here.get()
        if ctx is None or ctx is IN_FUNCTION or ctx.routine is not self.routine:
            ctx = self.routine.ctx
        timer.request = ctx.sleep(delay)
        timer.request.add_done_callback(functools.partial(self._fire, timer, clock))
        return timer

    def _fire(self, timer: DurableTimer, clock: Clock, request: Request) -> None:
        if request.cancelled() or timer.cancelled():
            return
        clock.time = max(clock.time, timer.when())
        if request.exception() is None:
            timer._run()  # type: ignore[attr-defined]

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any,  # type: ignore[override]
                context: Optional[contextvars.Context] = None) -> asyncio.TimerHandle:
        return self.call_later(when - self.clock().time, callback, *args, context=context)

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        request = timer.request if isinstance(timer, DurableTimer) else None
        if request is not None and not request.done() and not self.routine.is_inert:
            request.cancel()

    def time(self) -> float:
        """Seconds since 1970: of the creation of the job, of the newest timer that fired, or of the newest
        `ctx.now()`."""
        return self.clock().time

    def advance_time(self, ms: float) -> None:
        clock = self.clock()
        clock.time = max(clock.time, ms / 1000)

    def create_future(self) -> "asyncio.Future[Any]":
        return AgentFuture(loop=self)

    def create_task(self, coro: Any, *, name: Optional[str] = None,  # type: ignore[override]
                    context: Optional[contextvars.Context] = None, **options: Any) -> "asyncio.Task[Any]":
        if context is not None:
            options["context"] = context
        options.pop("eager_start", None)
        task = AgentTask(coro, loop=self, name=name or "agent-task", **options)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._tasks_max = max(_TASKS_MIN, 2 * len(self._tasks))
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def is_running(self) -> bool:
        return self._thread is not None

    def is_closed(self) -> bool:
        return False

    def get_exception_handler(self) -> None:
        return None

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: Dict[str, Any]) -> None:
        error = context.get("exception")
        if self.routine.is_inert or isinstance(error, Evicted):
            return
        self.routine.log("error", f"{context.get('message', 'an exception that nothing handles')}: {error!r}")

    def default_exception_handler(self, context: Dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        pass


# Tasks of dropped routines that do not end. If they were collected, their code would run at any time.
_kept: List[AgentTask] = []


def _refused(name: str) -> Any:
    def refuse(self: AgentLoop, *_: Any, **__: Any) -> Any:
        raise InvalidInput(f"loop.{name} cannot be used in an agent: sockets, subprocesses, threads and signals are "
                           'not recorded. Put it into ctx.run, or state @agent(…, loop="host")', "unsupported")
    refuse.__name__ = name
    return refuse


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("__") and _name not in AgentLoop.__dict__:
        setattr(AgentLoop, _name, _refused(_name))
AgentLoop.__abstractmethods__ = frozenset()


@functools.lru_cache(maxsize=None)
def _install_in_order() -> None:
    """asyncio.as_completed makes a set of its coroutines, whose order is that of their addresses, and so does
    asyncio.wait before Python 3.11. On an agent loop they become tasks before, in the order in which they were given."""
    for name in ("as_completed", "wait") if sys.version_info < (3, 11) else ("as_completed",):
        made = _in_order(getattr(asyncio, name))
        setattr(asyncio, name, made)
        setattr(asyncio.tasks, name, made)


def _in_order(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def ordered(fs: Any, **options: Any) -> Any:
        loop = events._get_running_loop()
        if isinstance(loop, AgentLoop) and not asyncio.isfuture(fs) and not asyncio.iscoroutine(fs):
            if isinstance(fs, (set, frozenset)) and any(map(asyncio.iscoroutine, fs)):
                raise InvalidInput(f"asyncio.{original.__name__}: the order of a set of coroutines differs in each run; "
                                   "give a list")
            fs = [asyncio.ensure_future(one, loop=loop) for one in fs]
        return original(fs, **options)
    return ordered


class HostLoop:
    """Runs the code of a routine on the worker's ordinary loop. It has settled when three turns of the loop brought
    nothing, which is a guess: code that awaits other work continues later."""
    is_exact = False

    def __init__(self, routine: "Routine") -> None:
        self.routine = routine
        self.loop: asyncio.AbstractEventLoop = routine.host.loop
        self._number = 0
        self._turns = 0  # without anything new
        self._is_counting = False
        self._task: "Optional[asyncio.Task[None]]" = None

    def begin(self, main: Coroutine[Any, Any, None], ctx: Any) -> None:
        context = contextvars.copy_context()
        context.run(here.set, ctx)
        self._task = context.run(self.loop.create_task, main)
        self._turns = 0

    def settle(self) -> bool:
        if self._turns >= TURNS:
            return True
        if not self._is_counting:
            self._is_counting = True
            self.loop.call_soon(self._turn)
        return False

    def _turn(self) -> None:
        self._turns += 1
        if self._turns < TURNS:
            self.loop.call_soon(self._turn)
        else:
            self._is_counting = False
            self.routine.host.schedule(self.routine)

    def is_inside(self, ctx: Any) -> bool:
        return ctx is not IN_FUNCTION and events._get_running_loop() is self.loop

    def make_request(self) -> Request:
        self._number += 1
        return Request(loop=self.loop, number=self._number)

    def begin_scope(self, scope: ClosedScope) -> None:
        pass

    def touched(self) -> None:
        """The code did something."""
        self._turns = 0
        self.routine.host.schedule(self.routine)

    def resumed(self) -> None:
        """The code was given something."""
        self._turns = 0

    def evict(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def advance_time(self, ms: float) -> None:
        pass
