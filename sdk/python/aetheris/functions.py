"""Functions: performs the calls for which the server gives permits, and remembers how they ended.

  a success of a call of a routine   given to the routine at once; its next advance has it
  anything else                      sent as `ended`
  the session is gone                sent as `late` in the next one, for 10 minutes
"""
import asyncio
import concurrent.futures
import contextvars
import inspect
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from .canonical import fresh, sized_json, to_json
from .context import _Stated, given_to
from .current import IN_FUNCTION, here
from .errors import AetherisError, Failure, InvalidInput, NotDone, message_text, well_formed
from .redact import RedactedText, redactor
from .request import Made
from .streams import StreamHost
from .values import steady

KEPT_S = 30 * 60.0  # the server keeps lost calls for 10 minutes
ADVANCE_S = 15.0  # more than an advance waits for a routine that does other work
KEPT_BYTES_MAX = 64 << 20  # of the results that are kept
COMPACT_MIN = 1_000  # calls
LEFT_MAX = 100_000  # calls of a hello
PROGRESS_S = 1.0
PROGRESS_MAX = 4_096  # bytes of a report, as JSON
TEXT_MAX = 16 << 20  # bytes of the text of a call
PIECE_MAX = 1 << 20  # characters of a message of text, so that it fits into a frame

_deciding = threading.Lock()

End = Dict[str, Any]  # {"result"}, {"failure"} or {"unknown"}


class Signal:
    """States that a call has ended before its function returned: at its timeout, or when it is cut off."""

    def __init__(self) -> None:
        self._event: Optional[threading.Event] = None
        self._then: Optional[Callable[[], None]] = None
        self.aborted: bool = False
        self.code = ""  # of the reason
        self.reason: Optional[str] = None

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Blocks until it is aborted, or for this time. For functions on threads."""
        if self._event is None:
            self._event = threading.Event()
        return self.aborted or self._event.wait(seconds)

    def _when_aborted(self, then: Optional[Callable[[], None]]) -> None:
        """Calls this, on any thread, once it is aborted; None: nothing."""
        self._then = then
        if self.aborted and then is not None:
            then()

    def _abort(self, code: str, reason: str) -> None:
        self.code, self.reason = code, reason
        self.aborted = True
        if self._event is not None:
            self._event.set()
        then = self._then
        if then is not None:
            then()


class Call:
    """What a function is given about the call that it performs."""

    def __init__(self, permit: Dict[str, Any], functions: "Functions", kept: "_Kept") -> None:
        self.key: str = permit["key"]
        """Repeated by every try of the call: use it as the idempotency key of the other system."""
        self.execution_key: str = permit["execution_key"]
        """Names this call in the log."""
        self.try_: int = permit["try"]
        """1, 2, 3, …"""
        self.signal: Signal = kept.signal
        """Aborted at the timeout of the call, or when it is cut off. A function that is an `async def` is then
        cancelled, too."""
        self.traceparent: str = permit.get("traceparent") or ""
        """The W3C trace context; empty: there is none."""
        self.inputs: Any = permit.get("inputs")
        """Answers to what an earlier try asked for."""
        self._functions = functions
        self._kept = kept
        self._streams: Optional[StreamHost] = None

    def _routed(self, method: str, url: str) -> Tuple[str, Dict[str, str]]:
        """Where a request of ctx.fetch goes, and headers of it. For tests."""
        route = self._functions.route
        return route and route(method, url, self, self._kept.job) or (url, {})

    def _note_usage(self, usage: Optional[Dict[str, Any]]) -> None:
        """What its function used of a model that it called itself."""
        self._kept.usage = usage

    def progress(self, report: Any) -> None:
        """Reports progress to readers, at most once a second; of several reports the newest. Not recorded. Raises
        InvalidInput: it is not JSON, or has more than 4,096 bytes."""
        value = redactor.value(to_json(report, "the report of progress", PROGRESS_MAX))
        if redactor.is_needed:  # a name can be longer than its secret
            value = to_json(value, "the report of progress", PROGRESS_MAX)
        self._functions.post(lambda: self._functions.progress(self._kept, value))

    def text(self, text: str) -> None:
        """A piece of output for readers. Not recorded. What does not fit into 16 MiB of a call is dropped, and so is
        all that follows."""
        piece = well_formed(str(text))
        self._functions.post(lambda: self._functions.text(self._kept, piece))

    def secret(self, name: str) -> str:
        """The value of the environment variable NAME, or of the file that NAME_FILE names. It is replaced in all that
        leaves the worker, if it has at least 8 bytes. Raises AetherisError, `secret_missing`."""
        value = os.environ.get(name)
        path = os.environ.get(f"{name}_FILE")
        if not value and path:
            try:
                with open(path, encoding="utf-8") as file:
                    value = file.read()
            except (OSError, ValueError) as error:
                raise AetherisError("secret_missing", f"the file that {name}_FILE names cannot be read: "
                                                      f"{type(error).__name__}") from None
            value = value[:-1] if value.endswith("\n") else value
            value = value[:-1] if value.endswith("\r") else value
        if not value:
            raise AetherisError("secret_missing", f"the secret {name} is not set; set the environment variable {name}, "
                                                  f"or {name}_FILE to a file with it")
        redactor.add(name, value)
        return value


class _Kept:
    """A call that this worker received."""
    __slots__ = ("job", "invocation", "try_", "call", "is_gone", "end", "is_end_stated", "ended_at", "bytes", "signal",
                 "begin_until", "is_begun", "timeout_ms", "deadline", "task", "text_bytes", "output", "report", "progress_timer",
                  "streams", "usage")

    def __init__(self, permit: Dict[str, Any], job: Optional[str]) -> None:
        self.job = job  # None: it is not known
        self.invocation = permit["invocation"]
        self.try_ = permit["try"]
        self.call: int = permit["call"]
        self.is_gone = False  # its session is
        self.end: Optional[End] = None
        self.is_end_stated = False  # an end was sent in its session, maybe before the function returned
        self.ended_at = 0.0
        self.bytes = 0
        self.signal = Signal()
        self.begin_until = 0.0
        self.is_begun: Optional[bool] = None  # None: it is not decided
        self.timeout_ms = 0
        self.deadline = 0.0  # by the clock of the loop
        self.task: "Optional[asyncio.Task[None]]" = None
        self.text_bytes = 0
        self.output: Optional[RedactedText] = None
        self.report: Any = None
        self.progress_timer: Optional[asyncio.TimerHandle] = None
        self.streams: Optional[StreamHost] = None
        self.usage: Optional[Dict[str, Any]] = None  # of a model that the function called itself

    def name(self) -> Dict[str, Any]:
        return {"job": self.job, "invocation": self.invocation, "try": self.try_}

    def decide(self, is_begun: bool) -> bool:
        """Is the function begun? The first answer holds. On any thread."""
        with _deciding:
            if self.is_begun is None:
                self.is_begun = is_begun
            return self.is_begun

    def check_begin(self) -> None:
        """Begins. Raises NotDone: it is too late."""
        if not self.decide(steady() <= self.begin_until):
            raise _not_begun()

    def late(self, end: End) -> List[Dict[str, Any]]:
        # What is not known adds nothing to what the server knows.
        return [] if self.job is None or "unknown" in end else [{"type": "late", **self.name(), **end}]


class Functions:
    def __init__(self, host: Any, threads_max: int) -> None:
        """`host`: `loop`, `send(message)`, `routine(number)`, `tool(name)`, `post(function)` from any thread,
        `log(level, message)`, `acknowledged_at()`: when the newest frame that the server acknowledged was sent."""
        self.post: Callable[[Callable[[], None]], None] = host.post
        self._host = host
        # Is called with each call that is performed, and returns what is called with its end. For tests.
        self.observe: Optional[Callable[[Dict[str, Any]], Callable[[End], None]]] = None
        self.route: Optional[Callable[[str, str, Call, Optional[str]], Optional[Tuple[str, Dict[str, str]]]]] = None
        self._calls: Dict[int, _Kept] = {}  # of this session, that run
        self._running: Dict[_Kept, None] = {}  # also of sessions that are gone
        self._kept: List[_Kept] = []  # all that run, and those whose ends the server may not have
        self._kept_bytes = 0
        self._compact_at = COMPACT_MIN
        self._idle: "List[asyncio.Future[None]]" = []
        self._ended: List[Callable[[], None]] = []  # in this turn
        self._next_deadline = float("inf")
        self._deadline_timer: Optional[asyncio.TimerHandle] = None
        self._threads = concurrent.futures.ThreadPoolExecutor(threads_max, "aetheris-function")

    @property
    def running(self) -> int:
        """How many functions run, also of sessions that are gone."""
        return len(self._running)

    @property
    def kept(self) -> int:
        """How many calls are kept."""
        return len(self._kept)

    async def when_idle(self) -> None:
        """Returns when no function runs."""
        while self.running > 0:
            waiting: "asyncio.Future[None]" = self._host.loop.create_future()
            self._idle.append(waiting)
            await waiting

    def perform(self, permit: Dict[str, Any], sent_at: float) -> None:
        number, position = permit.get("routine"), permit.get("position")
        routine = None if number is None else self._host.routine(number)
        tool: str = permit["tool"]
        request: Optional[Made] = None
        is_checked_first = False  # the server must check the result before the routine gets it
        if tool.startswith("run:"):
            request = None if position is None or routine is None else routine.function_at(position)
            if request is None:
                return self._not_sent(permit, f'this worker has no function for "{tool}" at "{position}"')
            fn, effect = request.fn, tool[4:]
        else:
            offered = self._host.tool(tool)
            if offered is None:
                return self._not_sent(permit, f'this worker has no function for "{tool}"')
            fn, effect = offered.fn, offered.definition.get("effect", "at_most_once")
            is_checked_first = offered.definition.get("result_schema") is not None
        # A later try may make an unknown outcome known.
        if permit["try"] == 1 and position is not None and routine is not None and routine.has_cancelled(position):
            return self._not_sent(permit, "its code does not need it any more")
        if not (steady() - sent_at) * 1000 <= permit["send_within_ms"]:
            return self._not_sent(permit, f"the permit came later than {permit['send_within_ms']} ms")
        args = permit.get("arguments")
        if not isinstance(args, dict):
            requested = request.args if request is not None else \
                routine.arguments_at(position) if routine is not None and position is not None else {}
            args = fresh(requested or {})
        job = permit.get("job") or (routine.start["job"]["id"] if routine is not None else None)
        kept = _Kept(permit, job)
        kept.begin_until = sent_at + permit["send_within_ms"] / 1000
        self._calls[kept.call] = kept
        self._kept.append(kept)
        self._running[kept] = None
        kept.timeout_ms = permit["timeout_ms"]
        kept.deadline = self._host.loop.time() + kept.timeout_ms / 1000
        if kept.deadline < self._next_deadline:
            self._watch(kept.deadline)
        call = Call(permit, self, kept)
        to = None if is_checked_first or position is None else routine
        self._begin(kept, fn, args, call, effect, tool, to, position)

    def abandon(self, number: int) -> None:
        """Cuts a call off. What it does later is sent as `late`."""
        kept = self._calls.get(number)
        if kept is not None:
            self._cut_off(kept, "abandoned", "the call was cut off")

    def abandon_all(self) -> None:
        """Cuts off all calls of this session."""
        for number in list(self._calls):
            self.abandon(number)

    def on_session_gone(self) -> None:
        """The session is gone: its calls end as `late`."""
        for kept in self._kept:
            kept.is_gone = True
        self._calls.clear()

    def left(self) -> Dict[str, Any]:
        """The calls that this worker received: all that run, and those that ended within `left_for_ms`. The server has
        the ends of earlier ones."""
        self._forget_old()
        now = steady()
        # A call that is not listed was never begun.
        named = [kept for kept in self._kept if kept.job is not None and kept.is_begun is not False]
        running = [kept for kept in named if kept.end is None]
        ended = sorted((kept for kept in named if kept.end is not None), key=lambda kept: -kept.ended_at)
        most = max(0, LEFT_MAX - len(running))
        known = max(self._host.acknowledged_at() - ADVANCE_S, now - KEPT_S,
                    ended[most].ended_at if len(ended) > most else 0)
        listed = running + [kept for kept in ended if kept.ended_at > known]
        return {"left": [kept.name() for kept in listed], "left_for_ms": max(0, int((now - known) * 1000) - 1)}

    def has_unreported_ends(self) -> bool:
        """Are there ends that the server may not have, besides those that it knows from `left`?"""
        acknowledged_at = self._host.acknowledged_at()
        return any(kept.end is not None and kept.ended_at > acknowledged_at for kept in self._kept)

    def late_ends(self) -> List[Dict[str, Any]]:
        """The ends that are known of calls of sessions that are gone."""
        return [message for kept in self._kept if kept.is_gone and kept.end is not None
                for message in kept.late(kept.end)]

    # ---------------------------------------------------------------- one call

    def _not_sent(self, permit: Dict[str, Any], message: str) -> None:
        self._host.send({"type": "ended", "call": permit["call"], "failure": {
            "code": "not_sent", "message": message, "definite": True, "retryable": True}})

    def _begin(self, kept: _Kept, fn: Any, args: Any, call: Call, effect: str, tool: str, routine: Any,
               position: Any) -> None:
        has_args = True
        if type(fn) is _Stated:
            fn, has_args = fn.fn, fn.has_args
        if routine is not None and tool.startswith("run:"):
            call._streams = kept.streams = StreamHost(kept.call, position, routine, self.post)

        on_end = self.observe and self.observe({"tool": tool, "position": position, "job": kept.job, "arguments": args,
                                                "effect": effect, "key": call.key, "try": call.try_})

        def end(outcome: End) -> None:
            if on_end:
                on_end(outcome)
            self._on_end(kept, outcome, routine, position)

        given = given_to(fn, args, call, has_args)
        if _is_async(fn):
            async def begin() -> Any:
                kept.check_begin()
                return await fn(*given)
            self._start_task(kept, begin(), effect, tool, end)
            return

        def work() -> None:
            here.set(IN_FUNCTION)
            try:
                kept.check_begin()  # it may have waited for a thread
                result = fn(*given)
                if hasattr(result, "__await__"):
                    self.post(lambda: self._start_task(kept, _awaited(result), effect, tool, end))
                    return
                outcome = _end_of_result(kept, result, tool, effect)
            except BaseException as error:
                outcome = _end_of_error(error)
            self.post(lambda: end(outcome))
        self._threads.submit(contextvars.Context().run, work)

    def _start_task(self, kept: _Kept, coroutine: Any, effect: str, tool: str, end: Callable[[End], None]) -> None:
        async def work() -> None:
            here.set(IN_FUNCTION)
            # Not before: a task that is cancelled before its first step never enters this function.
            kept.task = asyncio.current_task()
            if kept.is_end_stated and kept.task is not None:
                kept.task.cancel()
            try:
                outcome = _end_of_result(kept, await coroutine, tool, effect)
            except BaseException as error:
                outcome = _end_of_error(error)
            # Not inside of this task: the end can run code of a routine.
            if not self._ended:
                loop.call_soon(self._end_all)
            self._ended.append(lambda: end(outcome))
        loop = self._host.loop
        loop.create_task(work())

    def _end_all(self) -> None:
        ended, self._ended = self._ended, []
        for end in ended:
            end()

    # One timer for the deadlines of all calls: of most of them it never fires.
    def _watch(self, deadline: float) -> None:
        self._next_deadline = deadline
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_timer = self._host.loop.call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        now = self._host.loop.time()
        self._next_deadline, self._deadline_timer = float("inf"), None
        running = [kept for kept in self._running if not kept.is_end_stated]
        for kept in running:
            if kept.deadline <= now:
                self._cut_off(kept, "timeout", f"the function did not return within {kept.timeout_ms} ms")
        left = [kept.deadline for kept in running if kept.deadline > now]
        if left:
            self._watch(min(left))

    def _on_end(self, kept: _Kept, end: End, routine: Any, position: Any) -> None:
        if kept.end is not None:
            return  # it was cut off before it began
        del self._running[kept]
        kept.end = end
        kept.ended_at = steady()
        kept.task = None
        if kept.progress_timer is not None:
            kept.progress_timer.cancel()
        self._kept_bytes += kept.bytes
        if kept.output is not None:
            self._send_text(kept, kept.output.end())
        is_here = self._calls.get(kept.call) is kept
        if is_here:
            del self._calls[kept.call]
        if kept.is_gone or kept.is_end_stated:
            for message in kept.late(end):
                self._host.send(message)
        elif is_here:
            is_given = "result" in end and routine is not None and \
                routine.on_success(kept.call, position, end)
            if not is_given:
                self._host.send({"type": "ended", "call": kept.call, **end})
        if len(self._kept) > self._compact_at or self._kept_bytes > KEPT_BYTES_MAX:
            self._forget_old()
        if self._idle:
            idle, self._idle = self._idle, []
            for waiting in idle:
                if not waiting.done():
                    waiting.set_result(None)

    def _cut_off(self, kept: _Kept, code: str, message: str) -> None:
        if kept.end is not None or kept.is_end_stated or kept.signal.aborted:
            return
        if kept.streams is not None and not kept.streams.withdraw() and not kept.is_gone:
            return kept.signal._abort(code, message)  # its function returns what the routine has of the answer
        if not kept.decide(False):
            return self._on_end(kept, _end_of_error(_not_begun()), None, None)
        kept.is_end_stated = True
        if self._calls.get(kept.call) is kept:
            del self._calls[kept.call]
            if not kept.is_gone:
                self._host.send({"type": "ended", "call": kept.call, "unknown": {"code": code, "message": message}})
        kept.signal._abort(code, message)
        if kept.task is not None:
            kept.task.cancel()

    def _forget_old(self) -> None:
        since = steady() - KEPT_S
        # The server has the ends of calls that ended before.
        known = max(since, self._host.acknowledged_at() - ADVANCE_S)
        kept_on = []
        for kept in self._kept:
            if kept.end is None or kept.ended_at > (since if kept.is_gone else known):
                kept_on.append(kept)
            else:
                self._kept_bytes -= kept.bytes
        self._kept = kept_on
        self._compact_at = max(COMPACT_MIN, 2 * len(kept_on))
        for kept in kept_on:
            if self._kept_bytes <= KEPT_BYTES_MAX:
                break
            if kept.bytes:
                self._kept_bytes -= kept.bytes
                kept.bytes = 0
                kept.end = {"unknown": {"code": "result_dropped", "message": "the result is not kept any more"}}

    # ---------------------------------------------------------------- output of a call

    def text(self, kept: _Kept, piece: str) -> None:
        if kept.output is None:
            kept.output = RedactedText()
        self._send_text(kept, kept.output.feed(piece))

    def _send_text(self, kept: _Kept, piece: str) -> None:
        for begin in range(0, len(piece), PIECE_MAX):
            if self._calls.get(kept.call) is not kept or kept.text_bytes > TEXT_MAX:
                return
            part, at = piece[begin:begin + PIECE_MAX], kept.text_bytes
            kept.text_bytes += len(part.encode())
            if kept.text_bytes > TEXT_MAX:
                kept.text_bytes = TEXT_MAX + 1  # also the next one does not fit
            else:
                self._host.send({"type": "text", "call": kept.call, "at": at, "text": part})

    def progress(self, kept: _Kept, value: Any) -> None:
        if self._calls.get(kept.call) is not kept:
            return
        if kept.progress_timer is not None:
            kept.report = (value,)
            return
        self._host.send({"type": "progress", "call": kept.call, "value": value})

        def next_report() -> None:
            kept.progress_timer = None
            report, kept.report = kept.report, None
            if report is not None:
                self.progress(kept, report[0])
        kept.progress_timer = self._host.loop.call_later(PROGRESS_S, next_report)


def _not_begun() -> NotDone:
    return NotDone("not_sent", "the function was not begun in time", retryable=True)


def _is_async(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return inspect.iscoroutinefunction(fn) if code is None else bool(code.co_flags & inspect.CO_COROUTINE)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _end_of_result(kept: _Kept, result: Any, tool: str, effect: str) -> End:
    try:
        value, kept.bytes = sized_json(result, f'the result of "{tool}"')
        end = {"result": redactor.value(value)}
        return end if kept.usage is None else {**end, "usage": kept.usage}
    except InvalidInput as error:
        # It happened, but what it returned cannot be recorded. Of an at_most_once call nothing more is known.
        text = {"code": "tool_output_invalid", "message": message_text(str(error))}
        return {"unknown": text} if effect == "at_most_once" else \
            {"failure": {**text, "definite": False, "retryable": False}}


def _end_of_error(error: BaseException) -> End:
    """A Failure states that there was no effect. Of any other exception that is not known."""
    if isinstance(error, Failure):
        failure: Dict[str, Any] = {"code": str(error.code), "message": message_text(str(error)), "definite": True}
        if isinstance(error, NotDone):
            failure["retryable"] = bool(error.retryable)
            if error.retry_after_ms is not None:
                failure["retry_after_ms"] = max(0, round(error.retry_after_ms))
        return {"failure": failure}
    return {"unknown": {"code": "exception", "message": message_text(f"{type(error).__name__}: {error}")}}
