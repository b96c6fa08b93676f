"""Request: what a routine has requested, and its outcome once it is delivered. ClosedScope, Branch: where it was
made."""
import asyncio
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional

from .errors import Failure, Rejected, ToolFailed, WaitExpired

if TYPE_CHECKING:
    from .routine import Routine

Function = Callable[..., Any]


class Branch:
    """A branch of a map or race. One that is stopped makes no further requests."""
    __slots__ = ("parent", "is_stopped")

    def __init__(self, parent: "Optional[Branch]" = None) -> None:
        self.parent = parent
        self.is_stopped = False


def is_stopped(branch: Optional[Branch]) -> bool:
    while branch is not None:
        if branch.is_stopped:
            return True
        branch = branch.parent
    return False


class ClosedScope:
    """A closed scope whose body runs, or has returned while requests of it have no outcome."""
    __slots__ = ("position", "branch", "open", "has_returned", "end", "stop_body", "clock")

    def __init__(self, position: str, branch: Branch) -> None:
        self.position = position
        self.branch = branch
        self.open = 0  # requests directly inside of it
        self.has_returned = False
        self.end: Dict[str, Any] = {}  # result or failure
        self.stop_body: Optional[Callable[[], Any]] = None  # cancels its task
        self.clock: Any = None  # of the agent loop


SCOPES = ("scope", "turn")
"""Kinds of closed scopes; a turn is one of a loop."""


class Made:
    """What a request has, async or sync."""
    routine: "Routine"
    position: str
    kind: str
    tool: str
    id: str = ""  # of the child job that it starts
    fn: Optional[Function]
    args: Dict[str, Any]
    closed: Optional[ClosedScope]
    branch: Branch
    continues_when_expired: bool
    convert: Optional[Callable[[Any], Any]]
    is_cancelled: bool  # its outcome is not needed
    body: Optional[ClosedScope]  # of a closed scope that runs
    cancels_body: bool  # the scope is cancelled, and its body ends by itself

    # Supplied by Request and SyncRequest.
    def give(self, value: Any) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError

    def stop(self, reason: Optional[str] = None) -> bool:
        """It has no outcome any more, for its code. False: it has one."""
        raise NotImplementedError


class Request(asyncio.Future, Made):  # type: ignore[type-arg]
    """A request of an async agent: a future of its outcome.

    Awaiting it raises `ToolFailed` (or `Rejected`, `WaitExpired`). `position` is its name in the log, for example
    `items/2/charge#2`. `id` is the id of the job that `ctx.start` started, known before it is created.
    """
    number = 0

    def __init__(self, *, loop: asyncio.AbstractEventLoop, number: int) -> None:
        super().__init__(loop=loop)
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def cancel(self, msg: Optional[Any] = None) -> bool:
        """The outcome is not needed any more: awaiting it raises asyncio.CancelledError. A wait is closed. A call that
        was not sent is withdrawn; an open one gets no further try, and its outcome is recorded and not given. A closed
        scope is cancelled as a task is: its body gets CancelledError."""
        return False if self.done() else self.routine.cancel(self, None if msg is None else str(msg))

    def give(self, value: Any) -> None:
        if self.done():
            return
        if self.convert is not None:
            try:
                value = self.convert(value)
            except Exception as error:
                return self.fail(error)
        self.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self.done():
            self.set_exception(error)
            self._log_traceback = False  # a failure that nothing awaits is not an error of the process

    def stop(self, reason: Optional[str] = None) -> bool:
        return super().cancel() if reason is None else super().cancel(reason)


def settle(request: Made, outcome: Dict[str, Any]) -> None:
    """Gives the routine the outcome of its request."""
    if request.is_cancelled or is_stopped(request.branch):
        return
    position, tool = request.position, request.tool
    failure = outcome.get("failure")
    if failure:
        code, message = failure["code"], failure["message"]
        if request.kind not in SCOPES:
            request.fail(ToolFailed(code, message, tool, position))
        elif request.cancels_body and code == "cancelled":
            request.stop()
        else:
            request.fail(Failure(code, message))
    elif outcome.get("timed_out"):
        if request.continues_when_expired:
            request.give(None)
        else:
            request.fail(WaitExpired(tool, position))
    elif outcome.get("rejected"):
        result = outcome.get("result")
        note = result.get("note") if isinstance(result, dict) else None
        request.fail(Rejected(tool, position, note if isinstance(note, str) else ""))
    else:
        request.give(outcome.get("result"))
