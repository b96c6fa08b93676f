"""Streams: the body of an answer to ctx.fetch, while it comes.

The function reads the body to its end, on its thread, whether or not the code reads it. The routine is given the answer
with the first piece of text. This is the delivery of the call's outcome: until the end of the stream is known, the
routine sends nothing and is given nothing else. So nothing that follows from half an answer leaves the worker, and the
recorded order is that of a whole answer. A stream that breaks after that is recorded with the text that was given, and
its error.
"""
import codecs
import collections
import http.client
import json
import os
import re
import socket
import threading
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Deque, Dict, Iterator, List, Optional

from .canonical import VALUE_MAX
from .errors import AetherisError, InvalidInput, message_text
from .redact import RedactedText, redactor

if TYPE_CHECKING:
    from .functions import Call
    from .model_answers import ModelAnswer
    from .routine import Routine

STREAM_MAX = VALUE_MAX - (64 << 10)  # bytes of JSON, with room for the head
_CHUNK = 64 << 10
_STREAMED = re.compile(r"(text/event-stream|application/(x-ndjson|jsonl))\s*(;|$)", re.I)

Failure = Dict[str, str]  # code, message


def is_stream(content_type: Optional[str]) -> bool:
    """Is the code given a successful body of this type while it comes?"""
    return _STREAMED.match(content_type or "") is not None


class StreamHost:
    """Gives the routine of a call the stream of its answer."""

    def __init__(self, call: int, position: str, routine: "Routine", post: Callable[[Callable[[], None]], None]) -> None:
        self.call = call
        self.position = position
        self.routine = routine
        self.post = post  # to the thread of the worker
        self._lock = threading.Lock()
        self._stream: Optional[BodyStream] = None  # that was offered
        self._is_withdrawn = False

    def offer(self, stream: "BodyStream") -> None:
        with self._lock:
            if self._is_withdrawn:
                return
            self._stream = stream
        self.post(lambda: self.routine.on_stream(self.call, self.position, stream))

    def changed(self) -> None:
        self.post(lambda: self.routine.host.schedule(self.routine))

    def withdraw(self) -> bool:
        """The call ends without the routine: it is given no stream, also none that is offered later. False: it has
        it. On any thread."""
        with self._lock:
            if self._stream is not None and not self._stream.withdraw():
                return False
            self._is_withdrawn = True
        self.post(lambda: self.routine.withdraw_stream(self.call))
        return True


class BodyStream:
    """A body whose pieces come from the thread of a function. The code is given what came when it has settled."""

    def __init__(self, head: Dict[str, Any]) -> None:
        self.head = head
        """The answer without its body."""
        self.is_given = False
        self.is_withdrawn = False
        self._lock = threading.Lock()
        self._came: Deque[bytes] = collections.deque()
        self._came_end = False
        self._pieces: Deque[bytes] = collections.deque()  # of the code; so are the three below
        self._has_ended = False
        self._failure: Optional[Failure] = None
        self._routine: Optional["Routine"] = None
        self._future: Any = None
        self._waiting: List[Any] = []  # threads of a sync agent

    @staticmethod
    def recorded(answer: Dict[str, Any], body: Optional[bytes]) -> "BodyStream":
        """A whole body, from a record."""
        stream = BodyStream({name: value for name, value in answer.items() if not name.startswith("body")})
        stream._pieces.extend([body] if body else [])
        stream._has_ended = True
        partial = answer.get("partial")
        stream._failure = partial if isinstance(partial, dict) else None
        return stream

    def withdraw(self) -> bool:
        """The routine is not given it. False: it has it. On any thread."""
        with self._lock:
            self.is_withdrawn = not self.is_given
            return self.is_withdrawn

    # ---------------------------------------------------------------- on the thread of the function

    def push(self, piece: str) -> None:
        self._came.append(piece.encode())

    def close(self, failure: Optional[Failure] = None) -> None:
        self._failure = failure
        self._came_end = True

    # ---------------------------------------------------------------- on the thread of the worker

    def give(self, routine: "Routine") -> bool:
        """The routine has it now. False: it was withdrawn."""
        with self._lock:
            self.is_given = not self.is_withdrawn
        self._routine = routine
        self.advance()
        return self.is_given

    def advance(self) -> bool:
        """Gives the code what has come. False: nothing has."""
        has_ended, came = self._came_end, len(self._came)  # the end is stated after the last piece
        self._pieces.extend(self._came.popleft() for _ in range(came))
        if came == 0 and (not has_ended or self._has_ended):
            return False
        self._has_ended = has_ended
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)
        waiting, self._waiting = self._waiting, []
        if waiting and self._routine is not None:
            self._routine.runner.wake(waiting)
        return True

    # ---------------------------------------------------------------- for the code

    def _next(self, error_of: Callable[[Failure], Exception]) -> Optional[bytes]:
        """None: nothing has come; empty: the end."""
        if self._pieces:
            return self._pieces.popleft()
        if not self._has_ended:
            return None
        if self._failure is not None:
            raise error_of(self._failure)
        return b""

    async def pieces(self, error_of: Callable[[Failure], Exception]) -> AsyncIterator[bytes]:
        while True:
            piece = self._next(error_of)
            if piece is None:
                assert self._routine is not None
                self._future = self._routine.runner.loop.create_future()
                await self._future
            elif piece:
                yield piece
            else:
                return

    def blocking_pieces(self, error_of: Callable[[Failure], Exception]) -> Iterator[bytes]:
        from .sync import wait_for
        while True:
            piece = self._next(error_of)
            if piece is None:
                assert self._routine is not None
                if self._routine.agent.is_async:
                    raise InvalidInput("an async agent reads a stream by aiter_bytes(), aiter_lines() or await aread()")
                wait_for([self], self._routine)  # type: ignore[list-item]
            elif piece:
                yield piece
            else:
                return


class RoutineStreams:
    """The stream that the code of a routine reads."""

    def __init__(self) -> None:
        self._stream: Optional[BodyStream] = None  # was given, and its call has not ended
        self._call = 0
        self._delivered = 0
        self._end: Optional[Dict[str, Any]] = None  # of its call

    @property
    def is_open(self) -> bool:
        """Until its end the routine sends nothing and is given nothing else."""
        return self._stream is not None

    def give(self, routine: "Routine", call: int, stream: BodyStream, delivered: int) -> bool:
        """Gives the code the stream. False: it was withdrawn."""
        if not stream.give(routine):
            return False
        self._stream, self._call, self._delivered, self._end = stream, call, delivered, None
        return True

    def on_success(self, call: int, end: Dict[str, Any]) -> bool:
        """Is this the end of the stream that the code reads?"""
        if self._stream is None or call != self._call:
            return False
        self._end = {"call": call, **end, "delivered": self._delivered}
        return True

    def advance(self) -> bool:
        """Gives the code what has come. False: nothing has."""
        return self._stream is not None and self._stream.advance()

    def take_end(self) -> Optional[Dict[str, Any]]:
        """The success of a call whose stream has ended, once."""
        end, self._end = self._end, None
        if end is not None:
            self._stream = None
        return end

    def drop(self) -> None:
        """The routine is inert: the call ends without it."""
        self._stream = None


# ---------------------------------------------------------------- the function

def read_stream(answer: Any, head: Dict[str, Any], call: "Call", host: StreamHost,
                model: Optional["ModelAnswer"]) -> Dict[str, Any]:
    """Reads a body to its end, and gives the routine its pieces. A stream that breaks before the routine has it is a try
    that failed: its error is raised. Later, the result is what the routine was given, and the error."""
    stream = BodyStream(redactor.value(head))
    text: List[str] = []
    with _Guard(answer, call):
        try:
            for piece in filter(None, _texts(answer, call, model)):
                stream.push(piece)
                if not text:
                    host.offer(stream)
                text.append(piece)
                host.changed()
            failure = None
        except Exception as error:
            known = AetherisError(call.signal.code, str(call.signal.reason)) if call.signal.aborted else error
            if host.withdraw():
                raise known
            code = known.code if isinstance(known, AetherisError) else "reset"
            message = str(known) if isinstance(known, AetherisError) else f"the answer broke off: {known!r}"
            failure = {"code": code, "message": message_text(message)}
    stream.close(failure)
    call._note_usage(None if model is None else model.usage())
    host.changed()
    whole = {**head, "body": "".join(text)}
    return whole if failure is None else {**whole, "partial": failure}


# The text of the body, without secrets, as it is recorded.
def _texts(answer: Any, call: "Call", model: Optional["ModelAnswer"]) -> Iterator[str]:
    decoder, redacted = codecs.getincrementaldecoder("utf-8")("replace"), RedactedText()
    left: Optional[int] = answer.length  # None: it is not stated
    size = 0
    while left != 0:
        chunk = answer.read1(_CHUNK if left is None else min(left, _CHUNK))
        if not chunk and left is None:
            break
        if not chunk:
            raise http.client.IncompleteRead(b"", left)
        left = None if left is None else left - len(chunk)
        piece = decoder.decode(chunk)
        size += len(json.dumps(piece, ensure_ascii=False).encode())
        if size > STREAM_MAX:
            raise AetherisError("payload_too_large", f"the answer has more than {STREAM_MAX} bytes")
        call.text(piece if model is None else model.feed(piece))
        yield redacted.feed(piece)
    if call.signal.aborted:  # its connection was ended
        raise ConnectionAbortedError()
    call.text("" if model is None else model.end())
    yield redacted.feed(decoder.decode(b"", True)) + redacted.end()


class _Guard:
    """Ends the connection of an answer when its call is cut off, while a thread reads it."""

    def __init__(self, answer: Any, call: "Call") -> None:
        self._socket = socket.socket(fileno=os.dup(answer.fileno()))
        self._signal = call.signal

    def __enter__(self) -> None:
        self._signal._when_aborted(self._end)

    def _end(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def __exit__(self, *_: Any) -> None:
        self._signal._when_aborted(None)
        self._socket.close()
