"""JSON values: checked copies, and the canonical text (RFC 8785) that is hashed."""
import dataclasses
import datetime
import enum
import hashlib
import json
import math
import uuid
from typing import Any, Dict, List, Optional, Tuple, Union

from .errors import InvalidInput

Json = Union[None, bool, int, float, str, List[Any], Dict[str, Any]]
"""A JSON value. Integers are between -(2^53-1) and 2^53-1; numbers are finite; texts are valid Unicode."""

VALUE_MAX = 16 << 20  # bytes of a value, as JSON
EMITTED_MAX = 256 << 10  # bytes of a value that `emit` and `publish` take
_DEPTH_MAX = 90
_INTEGER_MAX = 2 ** 53 - 1
_INTEGER_LITERAL_MAX = 1e21  # from here on, the canonical text of a number has an exponent

_encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))
# The encoder of C, made once: JSONEncoder.encode makes one for each value.
_make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
_encode = _make and _make(None, _encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False)
loads = json.loads


def dumps(value: Any) -> str:
    """The JSON text of a JSON value."""
    return "".join(_encode(value, 0)) if _encode else _encoder.encode(value)


class _Unrecordable(Exception):
    pass


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Unrecordable(f"{path} is a text with half of a surrogate pair") from None
    return value


def _number(value: float, path: str) -> Union[int, float]:
    if not math.isfinite(value):
        raise _Unrecordable(f"{path} is {value}; use None or a text")
    if value != math.floor(value) or abs(value) >= _INTEGER_LITERAL_MAX:
        return value
    if abs(value) > _INTEGER_MAX:
        raise _Unrecordable(f"{path} is an integer beyond 2^53-1; use a text")
    return int(value)  # 1.0 is recorded as 1


def _copy(value: Any, path: str, depth: int) -> Json:
    kind = type(value)
    if kind is str:
        return _text(value, path)
    if kind is int:
        if not -_INTEGER_MAX <= value <= _INTEGER_MAX:
            raise _Unrecordable(f"{path} is an integer beyond 2^53-1; use a text")
        return value
    if kind is bool or value is None:
        return value
    if kind is float:
        return _number(value, path)
    if depth >= _DEPTH_MAX:
        raise _Unrecordable(f"{path} is nested deeper than {_DEPTH_MAX} levels, or contains itself")
    if kind is dict or isinstance(value, dict):
        made: Dict[str, Json] = {}
        for key, member in value.items():
            if type(key) is not str:
                raise _Unrecordable(f"{path} has the name {key!r}, which is not a text")
            made[_text(key, path)] = _copy(member, f"{path}.{key}" if len(path) < 400 else path, depth + 1)
        return made
    if kind is list or kind is tuple or isinstance(value, (list, tuple)):
        return [_copy(member, f"{path}[{i}]" if len(path) < 400 else path, depth + 1) for i, member in enumerate(value)]
    return _copy_other(value, path, depth)


def _copy_other(value: Any, path: str, depth: int) -> Json:
    if isinstance(value, enum.Enum):
        return _copy(value.value, path, depth + 1)
    for base in (str, int, float):
        if isinstance(value, base):
            return _copy(base(value), path, depth + 1)
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise _Unrecordable(f"{path} is a time without a time zone; use for example datetime.now(timezone.utc)")
        return value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _copy({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, path, depth + 1)
    if hasattr(value, "__await__"):
        raise _Unrecordable(f"{path} is a {type(value).__name__}; await it first")
    raise _Unrecordable(f"{path} is a {type(value).__name__}; use a list, a dict or a text")


def sized_json(value: Any, what: str, bytes_max: int = VALUE_MAX) -> Tuple[Any, int]:
    """As to_json, and the length of its text."""
    try:
        copied = _copy(value, what, 0)
    except _Unrecordable as error:
        raise InvalidInput(f"{error}: only JSON can be recorded") from None
    kind = type(copied)
    size = 8
    if kind is dict or kind is list or kind is str and len(copied) > 500:  # type: ignore[arg-type]
        text = dumps(copied)
        size = len(text)
        if 4 * size > bytes_max and len(text.encode()) > bytes_max:  # a character has at most 4 bytes
            raise InvalidInput(f"{what} has more than {bytes_max >> 10} KiB as JSON; store it elsewhere and pass a "
                               "reference", "payload_too_large")
    return copied, size


def to_json(value: Any, what: str, bytes_max: int = VALUE_MAX) -> Any:
    """A copy of `value` as JSON. A tuple becomes a list; a datetime, date or UUID a text; a dataclass an object; 1.0
    becomes 1.

    Raises InvalidInput: it has no JSON form, or is too large. `what` names it in the message."""
    return sized_json(value, what, bytes_max)[0]


def fresh(value: Any) -> Any:
    """A copy of a JSON value."""
    kind = type(value)
    if kind is dict:
        return {key: fresh(member) if type(member) is dict or type(member) is list else member
                for key, member in value.items()}
    if kind is list:
        return [fresh(member) if type(member) is dict or type(member) is list else member for member in value]
    return value


def _number_text(value: float) -> str:
    """As ECMAScript writes a number that is not an integer below 2^53."""
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text[:-2] if text.endswith(".0") else text
    power = int(exponent)
    digits = mantissa.replace(".", "").lstrip("-")
    if -7 < power < 0:
        return ("-" if value < 0 else "") + "0." + "0" * (-power - 1) + digits
    if 0 <= power < 21:
        return ("-" if value < 0 else "") + digits.ljust(power + 1, "0")
    if mantissa.endswith(".0"):
        mantissa = mantissa[:-2]
    return f"{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"


def canonical(value: Json) -> str:
    """The canonical text of a JSON value (RFC 8785): names in order, no spaces."""
    kind = type(value)
    if kind is dict:
        names = sorted(value, key=_utf16)  # type: ignore[arg-type]
        return "{" + ",".join(dumps(name) + ":" + canonical(value[name]) for name in names) + "}"  # type: ignore
    if kind is list:
        return "[" + ",".join(map(canonical, value)) + "]"  # type: ignore[arg-type]
    if kind is float:
        return "0" if value == 0 else _number_text(value)  # type: ignore[arg-type]
    return dumps(value)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def blinded_hash(blind: str, value: Json) -> str:
    """The hash of arguments, as the log has it, in hex. A job of an earlier version has no blind."""
    prefix = "aetheris.blind.v1" + blind if blind else ""
    return hashlib.sha256((prefix + canonical(value)).encode()).hexdigest()


def arguments_of(args: Optional[Any], tool: str) -> Dict[str, Any]:
    """The arguments of a call. Raises InvalidInput: they are not an object."""
    copied = to_json({} if args is None else args, f'the arguments of "{tool}"')
    if not isinstance(copied, dict):
        raise InvalidInput(f'the arguments of "{tool}" must be an object')
    return copied


__all__ = ["Json", "arguments_of", "blinded_hash", "canonical", "dumps", "fresh", "loads", "sized_json", "to_json"]
