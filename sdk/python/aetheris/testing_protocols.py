"""How the models of a test answer: in the form of Chat Completions, of Messages, and of Responses of OpenAI."""
import http.server
import json
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

_PIECE = 16  # characters of a piece of a stream
_CREATED = 1767225600  # the same in every answer

Handler = http.server.BaseHTTPRequestHandler


class Answered(NamedTuple):
    body: Dict[str, Any]
    """Of the request."""
    message: Dict[str, Any]
    """As Chat Completions has it: `content`, `refusal`, `tool_calls`."""
    prompt_tokens: int
    completion_tokens: int
    reason: str
    """As Chat Completions has it."""


class Protocol(NamedTuple):
    path: str
    """The end of its path."""
    messages_of: Callable[[Dict[str, Any]], List[Dict[str, Any]]]
    """The conversation of a request."""
    schema_of: Callable[[Dict[str, Any]], Optional[Dict[str, Any]]]
    """Of the answer, if it is to be JSON."""
    send: Callable[[Handler, Answered], None]
    fail: Callable[[Handler, int, str, Optional[float]], None]


def _member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _error(status: int, message: str) -> Dict[str, Any]:
    return {"type": "server_error" if status >= 500 else "invalid_request_error", "message": message}


def _respond(request: Handler, status: int, kind: str, text: str, headers: Optional[Dict[str, str]] = None) -> None:
    data = text.encode()
    request.send_response(status)
    for name, value in {"content-type": kind, "content-length": str(len(data)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(data)


def _send_json(request: Handler, body: Dict[str, Any], status: int = 200, retry_after: Optional[float] = None) -> None:
    _respond(request, status, "application/json", json.dumps(body),
             {} if retry_after is None else {"retry-after": str(retry_after)})


def _pieces(text: Optional[str]) -> List[str]:
    return [text[at:at + _PIECE] for at in range(0, len(text), _PIECE)] if text else []


def _send_chat(request: Handler, answered: Answered) -> None:
    body, message, prompt_tokens, completion_tokens, reason = answered
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
             "total_tokens": prompt_tokens + completion_tokens}
    head = {"id": "chatcmpl-test", "created": _CREATED, "model": body.get("model")}
    if body.get("stream") is not True:
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        return _send_json(request, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunks: List[Dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]}
        for delta, end in _chat_deltas(message, reason)]
    if _member(body, "stream_options", "include_usage"):
        chunks.append({"choices": [], "usage": usage})
    events = [json.dumps({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    _respond(request, 200, "text/event-stream", "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))


def _chat_deltas(message: Dict[str, Any], reason: str) -> Iterator[Tuple[Dict[str, Any], Optional[str]]]:
    yield {"role": "assistant", "content": None if message["content"] is None else ""}, None
    for name in ("content", "refusal"):
        for piece in _pieces(message.get(name)):
            yield {name: piece}, None
    for index, call in enumerate(message.get("tool_calls", ())):
        named = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]}, None
        for piece in _pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
    yield {}, reason


def _send_messages(request: Handler, answered: Answered) -> None:
    body, message, prompt_tokens, completion_tokens, reason = answered
    reasons = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
    stop_reason = "refusal" if "refusal" in message else reasons.get(reason, reason)
    head = {"id": "msg_test", "type": "message", "role": "assistant", "model": body.get("model"), "stop_sequence": None}
    usage = {"input_tokens": prompt_tokens, "output_tokens": completion_tokens}
    blocks = list(_blocks(message))
    if body.get("stream") is not True:
        return _send_json(request, {**head, "content": [block for block, _, _ in blocks], "stop_reason": stop_reason,
                                    "usage": usage})
    begun = {**head, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    events: List[Dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, (_, begin, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": begin})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None},
                   "usage": {"output_tokens": completion_tokens}})
    events.append({"type": "message_stop"})
    _respond(request, 200, "text/event-stream",
             "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


def _blocks(message: Dict[str, Any]) -> Iterator[Tuple[Dict[str, Any], Dict[str, Any], List[Dict[str, Any]]]]:
    """A block as a whole; how it begins in a stream, and its pieces."""
    text = message.get("refusal") or message["content"]
    if text:
        yield ({"type": "text", "text": text}, {"type": "text", "text": ""},
               [{"type": "text_delta", "text": piece} for piece in _pieces(text)])
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        yield ({**block, "input": json.loads(arguments)}, {**block, "input": {}},
               [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(arguments)])


# ---------------------------------------------------------------- Responses

# No state is kept: a request has its whole conversation.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}  # by the reason of Chat Completions


def _send_responses(request: Handler, answered: Answered) -> None:
    body, message, prompt_tokens, completion_tokens, reason = answered
    items = list(_items(message))
    head = {"id": "resp_test", "object": "response", "created_at": _CREATED, "model": body.get("model"), "error": None,
            "instructions": body.get("instructions"), "metadata": {}, "parallel_tool_calls": True, "temperature": None,
            "tool_choice": body.get("tool_choice", "auto"), "tools": body.get("tools") or [], "top_p": None}
    incomplete = _INCOMPLETE.get(reason)
    whole = {**head, "status": "incomplete" if incomplete else "completed",
             "incomplete_details": {"reason": incomplete} if incomplete else None,
             "output": [item for item, _, _ in items],
             "usage": {"input_tokens": prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
                       "output_tokens": completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
                       "total_tokens": prompt_tokens + completion_tokens}}
    if body.get("stream") is not True:
        return _send_json(request, whole)
    begun = {**head, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    events: List[Dict[str, Any]] = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
    for index, (item, begin, parts) in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": index, "item": begin})
        events += [{**part, "item_id": item["id"], "output_index": index} for part in parts]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    _respond(request, 200, "text/event-stream", "".join(
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)))


def _items(message: Dict[str, Any]) -> Iterator[Tuple[Dict[str, Any], Dict[str, Any], List[Dict[str, Any]]]]:
    """An item as a whole; how it begins in a stream, and the events of its parts."""
    count = 0
    for name, kind, member in (("content", "output_text", "text"), ("refusal", "refusal", "refusal")):
        text = message.get(name)
        if not text:
            continue
        more: Dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        part = {"type": kind, **({"annotations": [], **more} if more else {})}
        head = {"type": "message", "id": f"msg_test_{count}", "role": "assistant"}
        count += 1
        yield ({**head, "status": "completed", "content": [{**part, member: text}]},
               {**head, "status": "in_progress", "content": []},
               [{"type": "response.content_part.added", "content_index": 0, "part": {**part, member: ""}},
                *({"type": f"response.{kind}.delta", "content_index": 0, "delta": piece, **more} for piece in _pieces(text)),
                {"type": f"response.{kind}.done", "content_index": 0, member: text, **more},
                {"type": "response.content_part.done", "content_index": 0, "part": {**part, member: text}}])
    for call in message.get("tool_calls", ()):
        function, arguments = call["function"], call["function"]["arguments"]
        head = {"type": "function_call", "id": f"fc_test_{count}", "call_id": call["id"], "name": function["name"]}
        count += 1
        yield ({**head, "status": "completed", "arguments": arguments}, {**head, "status": "in_progress", "arguments": ""},
               [*({"type": "response.function_call_arguments.delta", "delta": piece} for piece in _pieces(arguments)),
                {"type": "response.function_call_arguments.done", "name": function["name"], "arguments": arguments}])


# ---------------------------------------------------------------- all

def _list_of(body: Dict[str, Any], name: str) -> List[Dict[str, Any]]:
    found = body.get(name)
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return found if isinstance(found, list) else []


def _fail_openai(request: Handler, status: int, message: str, retry_after: Optional[float]) -> None:
    _send_json(request, {"error": {**_error(status, message), "param": None, "code": None}}, status, retry_after)


def _fail_messages(request: Handler, status: int, message: str, retry_after: Optional[float]) -> None:
    _send_json(request, {"type": "error", "error": _error(status, message)}, status, retry_after)


PROTOCOLS = (
    Protocol("/chat/completions", lambda body: _list_of(body, "messages"),
             lambda body: _member(body, "response_format", "json_schema", "schema"), _send_chat, _fail_openai),
    Protocol("/messages", lambda body: _list_of(body, "messages"),
             lambda body: _member(body, "output_config", "format", "schema"), _send_messages, _fail_messages),
    Protocol("/responses", lambda body: _list_of(body, "input"),
             lambda body: _member(body, "text", "format", "schema"), _send_responses, _fail_openai),
)
