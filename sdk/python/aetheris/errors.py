"""The errors of the SDK. Each has a stable `code`, and a message that states what failed, where, and what to do."""
import asyncio
import traceback
from typing import Any, Dict, List, Optional, Union

from .redact import redactor

MESSAGE_MAX = 4_096  # characters of the message of a failure or exception
STACK_MAX = 16_384


class AetherisError(Exception):
    """The base of all errors that the SDK raises. Act on `code`; the message is for people."""

    code: str

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Failure(AetherisError):
    """A failure that you raise on purpose.

    - Raised by an agent: the job fails with this code and message.
    - Raised by a function (`tool`, `ctx.run`): a definite failure. It states that the call had no effect. If you do not
      know that, raise any other exception: the outcome is then unknown, and the effect class decides what follows.

    A closed scope that failed raises one, too.
    """


class NotDone(Failure):
    """Raised by a function: the call certainly had no effect. With `retryable`, the engine may try again, as the
    tool's `retry` permits, and not earlier than after `retry_after_ms`."""

    def __init__(self, code: str, message: str, *, retryable: bool = False,
                 retry_after_ms: Optional[float] = None) -> None:
        super().__init__(code, message)
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms


class ToolFailed(AetherisError):
    """A request failed for good: its tries are used up, a policy denied it, or its arguments were refused.

    `tool` is the tool of the call, or the type of the wait; `position` is the position of the request."""

    def __init__(self, code: str, message: str, tool: str, position: str) -> None:
        super().__init__(code, message)
        self.tool = tool
        self.position = position


class Rejected(ToolFailed):
    """The answer to an approval or to another human wait is a rejection. Code: `rejected`. `note`: what the approver
    wrote, or empty."""

    def __init__(self, tool: str, position: str, note: str) -> None:
        super().__init__("rejected", f'"{position}" was rejected{": " + note if note else ""}', tool, position)
        self.note = note


class WaitExpired(ToolFailed):
    """Nothing came before the wait expired. Code: `wait_expired`."""

    def __init__(self, tool: str, position: str) -> None:
        super().__init__("wait_expired", f'there was no answer to "{position}" before the wait expired', tool, position)


class Cancelled(ToolFailed):
    """The result of a request that was cancelled (sync agents). Code: `cancelled`. In async agents, awaiting such a
    request raises `asyncio.CancelledError`, as for every future."""

    def __init__(self, tool: str, position: str, reason: Optional[str]) -> None:
        super().__init__("cancelled", f'the request "{position}" was cancelled{": " + reason if reason else ""}', tool,
                         position)


class InvalidInput(AetherisError):
    """A mistake in the code of the agent, found at the line that has it: a value that is not JSON, a name that is not
    allowed, a key that was used before, a socket in an agent. Code: `input_invalid`, `payload_too_large`,
    `wrong_context` or `unsupported`. If nothing catches it, the job parks until other code comes."""

    def __init__(self, message: str, code: str = "input_invalid") -> None:
        super().__init__(code, message)


class ConnectionFailed(AetherisError):
    """The connection to the server cannot be made or used. A worker ends with it only if a retry cannot help."""


class Evicted(BaseException):
    """Raised by every use of `ctx` in code that must not continue: its routine was dropped, or its branch lost a race.
    Do not catch it. What `finally` blocks do then is not recorded."""


def failure_in(error: Optional[BaseException]) -> Optional[Union[Failure, ToolFailed]]:
    """The failure in an error or in its causes; None: it has none. Libraries often wrap the errors of their calls.
    Of an exception group: the first failure, if each of its exceptions has one."""
    for _ in range(8):
        if error is None or isinstance(error, (Failure, ToolFailed)):
            return error
        if isinstance(error, asyncio.CancelledError):
            return Failure("cancelled", "a request was cancelled, and the code ended with that")
        inner = getattr(error, "exceptions", None)
        if isinstance(inner, tuple) and inner:
            failures = [failure_in(one) for one in inner]
            return failures[0] if all(failures) else None
        error = error.__cause__
    return None


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def message_text(text: str, length: int = MESSAGE_MAX) -> str:
    """A message as it may leave the worker: valid, without secrets, not too long."""
    return redactor.text(well_formed(text))[:length]


def failure_text(failure: AetherisError) -> Dict[str, str]:
    return {"code": str(failure.code), "message": message_text(str(failure))}


def exception_text(error: BaseException) -> Dict[str, Any]:
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"name": type(error).__name__[:200], "message": message_text(str(error)),
            "stack": redactor.text(well_formed(stack))[-STACK_MAX:]}


def end_of(error: BaseException) -> Dict[str, Any]:
    """A failure that an agent raises, or does not catch, ends its job. Any other exception is a mistake in its code."""
    failure = failure_in(error)
    return {"failure": failure_text(failure)} if failure else {"exception": exception_text(error)}


def where() -> Optional[str]:
    """The line of the agent's code that calls the SDK: the newest frame that is not of the SDK or of asyncio."""
    frames: List[traceback.FrameSummary] = traceback.extract_stack(limit=64)
    for frame in reversed(frames):
        if not frame.filename.startswith((_FOLDER, _ASYNCIO)) and not frame.filename.startswith("<"):
            return f"{frame.name} ({frame.filename}:{frame.lineno})"[:500]
    return None


_FOLDER = __file__.rsplit("/", 1)[0] + "/"
_ASYNCIO = asyncio.__file__.rsplit("/", 1)[0] + "/"
