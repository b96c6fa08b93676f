"""Response: a recorded answer to ctx.fetch, whole or while its body comes."""
import base64
import codecs
import email.message
import json
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Union

from .errors import InvalidInput
from .streams import BodyStream


class Response:
    """A recorded answer. `headers` has lower-case names.

    With `stream=True` its body is read while it comes: in an async agent by `aiter_bytes()`, `aiter_lines()` or
    `await aread()`, in a sync agent by `iter_bytes()`, `iter_lines()` or `read()`, once. If the stream broke, that
    raises `ToolFailed` after the text that had come."""

    def __init__(self, answer: Union[Dict[str, Any], BodyStream], failed: Callable[[Mapping[str, str]], Exception],
                 is_streamed: bool) -> None:
        stream = answer if isinstance(answer, BodyStream) else BodyStream.recorded(answer, body_of(answer))
        self.status: int = stream.head["status"]
        self.reason: str = stream.head.get("status_text", "")
        self.url: str = stream.head.get("url", "")
        self.headers: Dict[str, str] = dict(stream.head.get("headers") or {})
        self._stream: Optional[BodyStream] = stream
        self._failed = failed
        self._body: Optional[bytes] = None
        if not is_streamed:
            self.read()

    @property
    def body(self) -> bytes:
        """All bytes. Raises InvalidInput: it is a stream that was not read by `aread()` or `read()`."""
        if self._body is None:
            raise InvalidInput("the body is a stream; read it first: await response.aread(), in a def agent "
                               "response.read()")
        return self._body

    def text(self) -> str:
        charset = email.message.Message()
        charset["content-type"] = self.headers.get("content-type", "")
        return self.body.decode(str(charset.get_param("charset", "utf-8")), "replace")

    def json(self) -> Any:
        return json.loads(self.body)

    # ---------------------------------------------------------------- while it comes

    async def aread(self) -> bytes:
        """All bytes, when they have come."""
        if self._body is None:
            self._body = b"".join([piece async for piece in self.aiter_bytes()])
        return self._body

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """The bytes as they come. A replay gives them in one piece."""
        if self._body is None:
            async for piece in self._taken().pieces(self._failed):
                yield piece
        elif self._body:
            yield self._body

    async def aiter_lines(self) -> AsyncIterator[str]:
        """The lines as they come, without their ends."""
        lines = _Lines()
        async for piece in self.aiter_bytes():
            for line in lines.feed(piece):
                yield line
        for line in lines.end():
            yield line

    def read(self) -> bytes:
        """As `aread`, for a sync agent."""
        if self._body is None:
            self._body = b"".join(self.iter_bytes())
        return self._body

    def iter_bytes(self) -> Iterator[bytes]:
        """As `aiter_bytes`, for a sync agent."""
        if self._body is None:
            yield from self._taken().blocking_pieces(self._failed)
        elif self._body:
            yield self._body

    def iter_lines(self) -> Iterator[str]:
        """As `aiter_lines`, for a sync agent."""
        lines = _Lines()
        for piece in self.iter_bytes():
            yield from lines.feed(piece)
        yield from lines.end()

    def _taken(self) -> BodyStream:
        stream, self._stream = self._stream, None
        if stream is None:
            raise InvalidInput("the body is a stream, which is read once")
        return stream


class _Lines:
    """Lines of UTF-8 that comes in pieces. They end with a line feed, a carriage return, or both."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, piece: bytes) -> List[str]:
        text = self._held + self._decoder.decode(piece)
        more = "\r" if text.endswith("\r") else ""  # a line feed may follow
        *lines, last = text[:len(text) - len(more)].replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._held = last + more
        return lines

    def end(self) -> List[str]:
        text = self._held + self._decoder.decode(b"", True)
        return [text[:-1] if text.endswith("\r") else text] if text else []


def body_of(value: Mapping[str, Any]) -> Optional[bytes]:
    if isinstance(value.get("body"), str):
        return str(value["body"]).encode()
    if isinstance(value.get("body_base64"), str):
        return base64.b64decode(value["body_base64"])
    return None
