"""ModelServer: the models of a test, for `aetheris.testing`. A local HTTP server with the protocols Chat Completions,
Messages and Responses, which gives the answers of the test: to the server, which calls the models of agents, and to
clients that were given `ctx.fetch` or `ctx.httpx()`."""
import asyncio
import hashlib
import http.server
import inspect
import json
import re
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .canonical import to_json
from .testing_protocols import PROTOCOLS, Answered, Protocol

if TYPE_CHECKING:
    from .functions import Call

_BODY_MAX = 64 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")  # of a model of an agents file
_KEY = re.compile(r"aetheris:(.+):[^:]+:[^:]+$")
_CALL_HEADER = "x-aetheris-test-call"  # of a call of ctx.fetch: its job, key and try

ModelAnswer = Union[str, Mapping[str, Any]]
"""A text, or an object: `text`, `json` (given as text), `tool_calls` ([{name, arguments, id?}]), `refusal`,
`finish_reason`, `usage` ({prompt_tokens, completion_tokens}); or a failure: `status`, `message`, `retry_after` (in
seconds)."""


class ModelCall:
    """A request to a model."""

    def __init__(self, body: Dict[str, Any], protocol: Protocol, job: Optional[str], key: str, try_: int) -> None:
        self.body: Dict[str, Any] = body
        """All of the request, as the protocol has it: Chat Completions; Messages or Responses of a client."""
        self.messages: List[Dict[str, Any]] = protocol.messages_of(body)
        """The conversation so far, as the protocol has it."""
        self.schema: Optional[Dict[str, Any]] = protocol.schema_of(body)
        """Of the answer, if it is to be JSON."""
        self.job: Optional[str] = job
        self.key: str = key
        self.try_: int = try_


FakeModel = Union[Callable[[ModelCall], Union[ModelAnswer, Awaitable[ModelAnswer]]], Sequence[ModelAnswer]]
"""The substitute of a model: a function (`def` or `async def`), or the answers of each job in their order. A call that
is repeated with its key after it was answered gets the same answer."""


class ModelServer:
    """`on_call` is called with each call, before it is answered; what it returns, with its end."""

    def __init__(self, models: Mapping[str, FakeModel],
                 on_call: Callable[[Dict[str, Any]], Callable[[Dict[str, Any]], None]]) -> None:
        self._models = dict(models)
        self._on_call = on_call
        self._lists: Dict[Tuple[str, Optional[str]], _JobAnswers] = {}
        self._lock = threading.Lock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner._handle(self)

            def log_message(self, *_: Any) -> None:
                pass
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=lambda: self._server.serve_forever(0.05), name="aetheris-testing-models", daemon=True).start()

    def agents_file(self) -> str:
        """The agents file that names the models. A name that it does not allow is only one for clients."""
        models = {name: {"provider": "openai", "base_url": self.url, "model": name}
                  for name in self._models if _NAME.match(name)}
        return json.dumps({"aetheris": 1, "models": models})

    def route(self, method: str, url: str, call: "Call", job: Optional[str]) -> Optional[Tuple[str, Dict[str, str]]]:
        """The calls of models by clients that were given ctx.fetch come here, too."""
        path = urllib.parse.urlsplit(url).path
        protocol = next((one for one in PROTOCOLS if path.endswith(one.path)), None)
        if method != "POST" or protocol is None:
            return None
        named = {"job": job, "key": call.key, "try": call.try_}
        return self.url + protocol.path, {_CALL_HEADER: json.dumps(named)}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = _body_of(request)
        protocol = next((one for one in PROTOCOLS if request.path == f"/v1{one.path}"), None)
        if body is None or protocol is None:
            return request.send_error(404, "a model of a test answers requests of Chat Completions, Messages and Responses")
        name, call = str(body.get("model")), _call_of(request, body, protocol)
        args = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        end = self._on_call({"tool": f"model:{name}", "position": None, "job": call.job, "arguments": args,
                             "effect": "read", "key": call.key, "try": call.try_})
        answer = self._answer_of(name, call)
        if not isinstance(answer, str) and "status" in answer:
            reason = str(answer.get("message", "as the test states"))
            end({"failure": {"code": f"http_{answer['status']}", "message": reason}})
            return protocol.fail(request, answer["status"], reason, answer.get("retry_after"))
        message = _message_of(answer, call.key)
        end({"result": message})
        stated = None if isinstance(answer, str) else answer.get("finish_reason")
        finish_reason = stated or ("tool_calls" if "tool_calls" in message else "stop")
        protocol.send(request, Answered(body, message, *_usage_of(answer, call.messages, message), finish_reason))

    def _answer_of(self, name: str, call: ModelCall) -> ModelAnswer:
        """What the test states wrongly is a failure that is not tried again, so that its job shows it."""
        model = self._models.get(name)
        if model is None:
            return {"status": 404, "message": f'the test has no model "{name}"'}
        try:
            if not callable(model):
                return self._next_of(name, model, call)
            answer = model(call)
            return _checked(asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)
        except Exception as error:
            return {"status": 400, "message": f'the model "{name}" of the test: {type(error).__name__}: {error}'}

    def _next_of(self, name: str, answers: Sequence[ModelAnswer], call: ModelCall) -> ModelAnswer:
        with self._lock:
            known = self._lists.setdefault((name, call.job), _JobAnswers())
            if call.key in known.by_key:
                return known.by_key[call.key]
            if known.used == len(answers):
                raise ValueError(f"it has {len(answers)} answers for a job, and {call.job or 'one'} makes another call")
            answer = _checked(answers[known.used])
            known.used += 1
            if isinstance(answer, str) or "status" not in answer:
                known.by_key[call.key] = answer
            return answer


class _JobAnswers:
    def __init__(self) -> None:
        self.used = 0  # of a list
        self.by_key: Dict[str, ModelAnswer] = {}


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _checked(answer: Any) -> ModelAnswer:
    if isinstance(answer, (str, Mapping)):
        return answer
    raise ValueError("an answer is a text, or an object with text, json, tool_calls, refusal or status")


def _body_of(request: http.server.BaseHTTPRequestHandler) -> Optional[Dict[str, Any]]:
    size = int(request.headers.get("content-length") or 0)
    if size > _BODY_MAX:
        return None
    try:
        body = json.loads(request.rfile.read(size))
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _call_of(request: http.server.BaseHTTPRequestHandler, body: Dict[str, Any], protocol: Protocol) -> ModelCall:
    own = request.headers.get(_CALL_HEADER)
    if own:
        named = json.loads(own)
        return ModelCall(body, protocol, named["job"], named["key"], named["try"])
    key = request.headers.get("idempotency-key") or ""
    found = _KEY.match(key)
    return ModelCall(body, protocol, found and found[1], key, int(request.headers.get("x-aetheris-try") or 1))


def _message_of(answer: ModelAnswer, key: str) -> Dict[str, Any]:
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    text = answer.get("text")
    if text is None and "json" in answer:
        text = json.dumps(to_json(answer["json"], "the answer of a model"), ensure_ascii=False)
    message: Dict[str, Any] = {"role": "assistant", "content": text}
    if "refusal" in answer:
        message["refusal"] = answer["refusal"]
    if "tool_calls" in answer:
        message["tool_calls"] = [
            {"id": call.get("id") or f"call_{hashlib.sha256(f'{key}/{index}'.encode()).hexdigest()[:24]}", "type": "function",
             "function": {"name": call["name"], "arguments": json.dumps(call.get("arguments") or {}, ensure_ascii=False)}}
            for index, call in enumerate(answer["tool_calls"])]
    return message


def _usage_of(answer: ModelAnswer, messages: List[Dict[str, Any]], message: Dict[str, Any]) -> Tuple[int, int]:
    """Tokens: those of the test, or one for each four characters."""
    stated = {} if isinstance(answer, str) else answer.get("usage") or {}
    return (stated.get("prompt_tokens", len(json.dumps(messages)) // 4 + 1),
            stated.get("completion_tokens", len(json.dumps(message)) // 4 + 1))
