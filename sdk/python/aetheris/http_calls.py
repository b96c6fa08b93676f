"""ctx.fetch, ctx.urlopen and ctx.httpx: HTTP that is recorded. The worker performs it, as a function of the request
(tool run:EFFECT), on a thread.
"""
import base64
import email.message
import email.utils
import http.client
import io
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import urllib.response
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Union

from .errors import InvalidInput, NotDone, ToolFailed, well_formed
from .http_response import Response, body_of
from .model_answers import ModelAnswer
from .streams import is_stream, read_stream

if TYPE_CHECKING:
    from .context import Requests
    from .functions import Call
    from .sync import SyncCtx

# The headers of a request that are recorded and compared. All others, such as Authorization, are only sent.
_RECORDED = ("accept", "content-type", "anthropic-beta", "anthropic-version", "openai-beta")
# The headers of an answer that are not recorded: they are of the connection, or secret.
_DROPPED = frozenset(("connection", "content-length", "keep-alive", "set-cookie", "transfer-encoding"))
_BOUNDARY = "aetheris-boundary"  # of form data, whose own is random
_REDIRECTS = (301, 302, 303, 307, 308)
_REDIRECTS_MAX = 20
_READ_TRIES = 4  # of run:read; the status of the last one is an answer
_NAME = re.compile(r"[^A-Za-z0-9_.:-]")


def fetch(requests: "Requests", url: str, method: str, headers: Optional[Mapping[str, str]],
          body: Union[str, bytes, None], effect: Optional[str], name: Optional[str], key: Optional[str],
          redirect: str = "manual", stream: bool = False) -> Any:
    """A request whose outcome is a Response. `stream`: also while its body comes."""
    if redirect not in ("follow", "manual", "error"):
        raise InvalidInput(f'redirect is follow, manual or error, not "{redirect}"')
    address, host = _address(url)
    method = method.upper()
    sent = {str(key).lower(): str(value) for key, value in (headers or {}).items()}
    if isinstance(body, str) and "content-type" not in sent:
        sent["content-type"] = "text/plain;charset=UTF-8"
    if body is not None and not isinstance(body, (str, bytes)):
        raise InvalidInput("the body of a request is a text or bytes; a stream cannot be sent again, so read it first")
    chosen = effect or ("read" if method in ("GET", "HEAD") else "at_most_once")
    if chosen not in ("read", "idempotent", "at_most_once"):
        raise InvalidInput(f'the effect of a request is read, idempotent or at_most_once, not "{effect}"')
    args = _arguments(method, address, sent, body)

    def perform(given: Dict[str, Any], call: "Call") -> Dict[str, Any]:
        return _send(given, sent, chosen, call, redirect == "follow", stream)

    def failed(failure: Mapping[str, str]) -> ToolFailed:
        return ToolFailed(failure["code"], failure["message"], made.tool, made.position)
    made = requests.stated(name or _NAME.sub("_", f"{method}:{host}")[:64], chosen, args, perform,
                           by_content=name is None and key is None, key=key,
                           convert=lambda answer: Response(answer, failed, stream))
    return made


def answered(answer: Response, redirect: str, request: Any) -> Response:
    """The answer of a request made by `fetch`. Raises ToolFailed: it is a redirect, and `redirect` is error."""
    location = answer.headers.get("location")
    if redirect == "error" and answer.status in _REDIRECTS and location is not None:
        raise ToolFailed(f"http_{answer.status}", f"{urllib.parse.urlsplit(answer.url).netloc} answered with a redirect to "
                                                  f"{location}", request.tool, request.position)
    return answer


def _address(url: str) -> Tuple[str, str]:
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port
    except ValueError:
        parts = urllib.parse.urlsplit("")
    if not parts.scheme or not parts.hostname:
        raise InvalidInput(f'"{url[:200]}" is not an absolute URL')
    if parts.scheme not in ("http", "https"):
        raise InvalidInput(f"the URL begins with http:// or https://, not {parts.scheme}:")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("the URL has a user name or password, which would be recorded; use a header")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.lower(), parts.path or "/", parts.query, "")), \
        parts.netloc.lower()


def _arguments(method: str, url: str, headers: Dict[str, str], body: Union[str, bytes, None]) -> Dict[str, Any]:
    recorded = {name: headers[name] for name in _RECORDED if name in headers}
    found = re.match(r'multipart/form-data;.*boundary="?([^";]+)', recorded.get("content-type", ""), re.I)
    if found and body is not None:
        recorded["content-type"] = f"multipart/form-data; boundary={_BOUNDARY}"
        raw = body.encode() if isinstance(body, str) else body
        body = raw.replace(found[1].encode(), _BOUNDARY.encode())
    from .canonical import arguments_of
    args = {"method": method, "url": url, "headers": recorded, **_body_value(body)}
    return arguments_of(args, f"{method} {url[:200]}")


def _body_value(body: Union[str, bytes, None]) -> Dict[str, str]:
    if body is None:
        return {}
    if isinstance(body, str):
        return {"body": well_formed(body)}
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    def http_response(self, request: Any, response: Any) -> Any:
        return response
    https_response = http_response


_opener = urllib.request.build_opener(_NoRedirect, _EveryStatus)
_NOT_SENT = (ConnectionRefusedError, socket.gaierror)


def _send(args: Dict[str, Any], all_headers: Dict[str, str], effect: str, call: "Call",
          follows: bool, is_streamed: bool) -> Dict[str, Any]:
    """Performs the request once. `args` may differ from what was requested: who approves may edit them."""
    headers = {name: value for name, value in all_headers.items()
               if name not in ("content-length", "host", "connection", "accept-encoding", "transfer-encoding")}
    headers.update({name: str(value) for name, value in (args.get("headers") or {}).items()})
    headers["accept-encoding"] = "identity"
    if effect != "read":
        headers.setdefault("idempotency-key", call.key)
    if call.traceparent:
        headers.setdefault("traceparent", call.traceparent)
    method, url, body = args["method"], args["url"], body_of(args)
    stated, (url, more) = url, call._routed(method, url)
    headers.update(more)
    redirects = 0
    try:
        while True:
            with _opener.open(urllib.request.Request(url, body, headers, method=method), timeout=600) as answer:
                location = answer.headers.get("location") if answer.status in _REDIRECTS and follows else None
                if location is None:
                    return _recorded(answer, stated if more else url, effect, call, args, is_streamed)
            redirects += 1
            if redirects > _REDIRECTS_MAX:
                raise http.client.HTTPException(f"more than {_REDIRECTS_MAX} redirects")
            method, url, headers, body = _redirected(answer.status, location, method, url, headers, body)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        # Beyond a redirect, a connection that is refused does not mean that nothing happened.
        if isinstance(reason, _NOT_SENT) and (redirects == 0 or effect == "read"):
            raise NotDone("connect", f"the connection was not made: {reason}", retryable=True) from None
        if effect == "read":
            raise NotDone("reset", f"there was no complete answer: {reason!r}", retryable=True) from None
        raise


def _recorded(answer: Any, url: str, effect: str, call: "Call", args: Mapping[str, Any], is_streamed: bool) -> Dict[str, Any]:
    head = {"status": answer.status, "status_text": well_formed(answer.reason or ""), "url": url,
            "headers": {name.lower(): well_formed(value) for name, value in answer.headers.items()
                        if name.lower() not in _DROPPED}}
    is_ok, content_type = 200 <= answer.status < 300, answer.headers.get("content-type")
    model = ModelAnswer.of(args) if is_ok else None
    host = getattr(call, "_streams", None) if is_streamed else None
    if host is not None and is_ok and is_stream(content_type):
        return read_stream(answer, head, call, host, model)
    body = answer.read()
    if effect == "read" and call.try_ < _READ_TRIES:
        _check_status(answer, url)
    value = _body_value(body)
    if model is not None and "body" in value:
        if is_stream(content_type):
            model.feed(value["body"])
            model.end()
        else:
            model.read(value["body"])
        call._note_usage(model.usage())
    return {**head, **value}


def _redirected(status: int, location: str, method: str, url: str, headers: Dict[str, str],
                body: Optional[bytes]) -> Tuple[str, str, Dict[str, str], Optional[bytes]]:
    """The method, URL, headers and body of the request that follows."""
    following = urllib.parse.urljoin(url, location)
    dropped = set()
    if urllib.parse.urlsplit(following)[:2] != urllib.parse.urlsplit(url)[:2]:
        dropped |= {"authorization", "cookie"}
    if status == 303 or status < 303 and method == "POST":
        method, body = "GET", None
        dropped.add("content-type")
    return method, following, {name: value for name, value in headers.items() if name not in dropped}, body


def _check_status(answer: Any, url: str) -> None:
    """What only reads is tried again by the engine after these statuses."""
    if answer.status not in (408, 429) and answer.status < 500:
        return
    after = str(answer.headers.get("retry-after") or "")
    seconds: Optional[float] = None
    if after.isascii() and after.isdigit():
        seconds = float(after)
    elif after:
        try:
            seconds = email.utils.parsedate_to_datetime(after).timestamp() - time.time()
        except (TypeError, ValueError):
            pass
    host = urllib.parse.urlsplit(url).netloc
    raise NotDone(f"http_{answer.status}", f"{host} answered {answer.status}", retryable=True,
                  retry_after_ms=seconds * 1000 if seconds is not None and seconds > 0 else None)


# ---------------------------------------------------------------- urlopen

def urlopen(ctx: "SyncCtx", request: Any, data: Optional[bytes], effect: Optional[str]) -> Any:
    if isinstance(request, str):
        request = urllib.request.Request(request, data)
    elif data is not None:
        request.data = data
    method, url, body = request.get_method(), request.full_url, request.data
    if body is not None and not isinstance(body, bytes):
        raise InvalidInput("ctx.urlopen: the data of the request is bytes")
    headers = {name.lower(): value for name, value in request.header_items()}
    if body is not None:
        headers.setdefault("content-type", "application/x-www-form-urlencoded")
    for _ in range(_REDIRECTS_MAX):
        answer = fetch(ctx.later, url, method, headers, body, effect, None, None).result()
        location = answer.headers.get("location")
        if answer.status not in _REDIRECTS or location is None:
            return _opened(answer, url)
        method, url, headers, body = _redirected(answer.status, location, method, url, headers, body)
    raise urllib.error.HTTPError(url, answer.status, f"more than {_REDIRECTS_MAX} redirects", _message(answer), None)


def _message(answer: Response) -> http.client.HTTPMessage:
    message = http.client.HTTPMessage()
    for name, value in answer.headers.items():
        message[name] = value
    return message


def _opened(answer: Response, url: str) -> Any:
    if answer.status >= 400:
        raise urllib.error.HTTPError(url, answer.status, answer.reason, _message(answer), io.BytesIO(answer.body))
    return urllib.response.addinfourl(io.BytesIO(answer.body), _message(answer), url, answer.status)


__all__: List[str] = ["Response", "answered", "fetch", "urlopen"]
