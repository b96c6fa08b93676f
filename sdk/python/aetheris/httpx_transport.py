"""ctx.httpx(): a transport for httpx. Each request is recorded; a redirect that httpx follows is a request of its own.
The body of a stream is read while it comes."""
from typing import TYPE_CHECKING, Any, AsyncIterator, Optional

from .errors import InvalidInput
from .http_calls import fetch

if TYPE_CHECKING:
    from .context import Ctx


def transport(ctx: "Ctx", effect: Optional[str]) -> Any:
    try:
        import httpx
    except ImportError:
        raise InvalidInput("ctx.httpx() needs the package httpx; ctx.fetch needs no package", "unsupported") from None

    class Body(httpx.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self._answer.aiter_bytes():
                yield piece

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            body: bytes = await request.aread()
            has_body = bool(body) or request.headers.get("content-length", "0") != "0"
            answer = await fetch(ctx, str(request.url), request.method, dict(request.headers),
                                 body if has_body else None, effect, None, None, stream=True)
            return httpx.Response(answer.status, headers=answer.headers, stream=Body(answer), request=request)

    return Transport()
