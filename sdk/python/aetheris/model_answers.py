"""Answers of model APIs to ctx.fetch: the tokens that they count, and the text of their streams.

Known are Chat Completions, Responses and Messages, by the path of the request and the form of the answer.
"""
import json
import re
from typing import Any, Dict, List, Mapping, Optional

from .errors import well_formed

_PATHS = re.compile(r"/(chat/completions|responses|messages)$")
_MODEL_MAX = 256  # bytes of a name
_BYTES_OF_TOKEN = 3  # as budgets of the server estimate
_COUNT_MAX = (1 << 53) - 1


class ModelAnswer:
    """Reads the answer to a request to a model API."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._line = ""  # the begin of the next line of a stream
        self._held = ""  # the stream until an event has come
        self._is_known: Optional[bool] = None  # None: no event has come
        self._text_bytes = 0  # of the answer
        self._counts: Dict[str, Any] = {}

    @staticmethod
    def of(args: Mapping[str, Any]) -> "Optional[ModelAnswer]":
        """None: the request is not one to a model API."""
        request = args.get("body")
        if args["method"] != "POST" or not isinstance(request, str) or not _PATHS.search(args["url"].split("?", 1)[0]):
            return None
        return ModelAnswer(request)

    def read(self, body: str) -> None:
        """A whole answer."""
        answer = _parsed(body)
        if answer is None:
            return
        self._is_known = _is_answer(answer)
        self._text_bytes = _size(body)
        self._count(answer.get("usage"), True)

    def feed(self, piece: str) -> str:
        """The next piece of a stream. Returns the text in it for readers: of another stream than a model's, all."""
        if self._is_known is False:
            return piece
        if self._is_known is None:
            self._held += piece
        lines = re.split("\r\n|\n|\r", self._line + piece)
        self._line = lines.pop()
        return self._read_lines(lines)

    def end(self) -> str:
        """The stream has ended. Returns the rest of its text."""
        line, self._line = self._line, ""
        text = self._read_lines([line])
        return self._held if self._is_known is None else text

    def _read_lines(self, lines: List[str]) -> str:
        text = ""
        for line in lines:
            event = _parsed(line[5:]) if line.startswith("data:") else None
            if event is None:
                continue
            if self._is_known is None:
                self._is_known = _is_event(event)
            if not self._is_known:
                held, self._held, self._line = self._held, "", ""
                return held
            self._held = ""
            text += self._on_event(event)
        return text

    def usage(self) -> Optional[Dict[str, Any]]:
        """None: it is not the answer of a model."""
        if not self._is_known:
            return None
        usage = dict(self._counts)
        model = (_parsed(self._request) or {}).get("model")
        if isinstance(model, str) and model and _size(model) <= _MODEL_MAX:
            usage["model"] = well_formed(model)
        if "input_tokens" in usage and "output_tokens" in usage:
            return usage
        read = usage.get("input_tokens", -(-_size(self._request) // _BYTES_OF_TOKEN))
        written = usage.get("output_tokens", -(-self._text_bytes // _BYTES_OF_TOKEN))
        usage["incomplete"] = True
        usage["total_tokens"] = max(usage.get("total_tokens", 0), min(read + written, _COUNT_MAX))
        return usage

    def _on_event(self, event: Dict[str, Any]) -> str:
        kind, delta = event.get("type"), event.get("delta")
        if not isinstance(kind, str):
            return self._on_chunk(event)
        if kind == "response.output_text.delta":
            return self._text_of(delta)
        if kind == "content_block_delta" and isinstance(delta, dict):
            text = self._text_of(delta.get("text"))
            self._text_of(delta.get("thinking"))
            self._text_of(delta.get("partial_json"))
            return text
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._count(event["message"].get("usage"), False)
        if kind == "message_delta":
            self._count(event.get("usage"), True)
        if kind.startswith("response.") and isinstance(event.get("response"), dict):
            self._count(event["response"].get("usage"), True)
        if kind == "response.function_call_arguments.delta":
            self._text_of(delta)
        return ""

    # Of Chat Completions.
    def _on_chunk(self, event: Dict[str, Any]) -> str:
        self._count(event.get("usage"), True)
        text = ""
        for choice in _items(event.get("choices")):
            delta = choice.get("delta")
            if not isinstance(delta, dict):
                continue
            content = self._text_of(delta.get("content"))
            if choice.get("index") == 0:
                text += content
            for call in _items(delta.get("tool_calls")):
                if isinstance(call.get("function"), dict):
                    self._text_of(call["function"].get("arguments"))
        return text

    def _text_of(self, text: Any) -> str:
        if not isinstance(text, str):
            return ""
        self._text_bytes += _size(text)
        return text

    # Later counts of an answer replace earlier ones. `is_final`: its output is counted.
    def _count(self, usage: Any, is_final: bool) -> None:
        if not isinstance(usage, dict):
            return

        def inside(names: List[str], member: str) -> Optional[int]:
            found = (_number(usage[name].get(member)) for name in names if isinstance(usage.get(name), dict))
            return next((count for count in found if count is not None), None)

        def first(*names: str) -> Optional[int]:
            return next((_number(usage[name]) for name in names if usage.get(name) is not None), None)
        read = _number(usage.get("cache_read_input_tokens"))
        counted = first("prompt_tokens", "input_tokens")
        if counted is not None:
            counted += (read or 0) + (_number(usage.get("cache_creation_input_tokens")) or 0)
            counted = min(counted, _COUNT_MAX)
        cached = read if read is not None else inside(["prompt_tokens_details", "input_tokens_details"], "cached_tokens")
        counts = {
            "input_tokens": counted,
            "output_tokens": first("completion_tokens", "output_tokens") if is_final else None,
            "total_tokens": first("total_tokens"),
            "cached_tokens": cached,
            "reasoning_tokens": inside(["completion_tokens_details", "output_tokens_details"], "reasoning_tokens"),
        }
        self._counts.update((name, count) for name, count in counts.items() if count is not None)


def _items(value: Any) -> List[Dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(count: Any) -> Optional[int]:
    is_integer = type(count) is int or type(count) is float and count.is_integer()
    return int(count) if is_integer and 0 <= count <= _COUNT_MAX else None


def _size(text: str) -> int:
    return len(well_formed(text).encode())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _parsed(text: str) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_answer(answer: Dict[str, Any]) -> bool:
    if answer.get("type") == "message":
        return isinstance(answer.get("content"), list)
    if answer.get("object") == "response":
        return isinstance(answer.get("output"), list)
    return isinstance(answer.get("choices"), list)


def _is_event(event: Dict[str, Any]) -> bool:
    kind = event.get("type")
    if isinstance(kind, str):
        return kind == "message_start" or kind.startswith("response.")
    return isinstance(event.get("choices"), list)
