"""Values that a routine records instead of reading a clock or chance, and durations."""
import datetime
import hashlib
import math
import re
import secrets
import time
from typing import Any, Dict, Optional, Union

from .errors import InvalidInput

DAY_MS = 86_400_000
DURATION_MAX_MS = 36_500 * DAY_MS
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)

Duration = Union[str, int, float, datetime.timedelta]
"""Seconds, a timedelta, or a text such as `500ms`, `30s`, `5m`, `24h`, `7d`. At most 36500d."""


class RandomNumbers:
    """The random numbers of one scope of a job, which follow from the job's seed (64 hex digits)."""

    def __init__(self, seed: str, scope: str) -> None:
        name = scope.encode()
        self._prefix = b"aetheris.random.v1" + bytes.fromhex(seed) + len(name).to_bytes(8, "big") + name
        self._drawn = 0
        self._block = b""

    def next(self) -> float:
        """In [0, 1), of 53 bits."""
        group = self._drawn % 4
        if group == 0:
            self._block = hashlib.sha256(self._prefix + (self._drawn // 4).to_bytes(8, "big")).digest()
        self._drawn += 1
        return (int.from_bytes(self._block[group * 8:group * 8 + 8], "big") >> 11) * 2.0 ** -53


def new_seed() -> str:
    return secrets.token_hex(32)


def time_text(at: datetime.datetime) -> str:
    """RFC 3339 in UTC, with microseconds. Raises InvalidInput: the time has no time zone."""
    if at.tzinfo is None:
        raise InvalidInput(f"the time {at} has no time zone; use for example datetime.now(timezone.utc)")
    return at.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_of_ms(ms: float) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(milliseconds=ms)


def time_value(ms: int) -> Dict[str, Any]:
    """The form in which a time is recorded."""
    return {"ms": ms, "time": time_text(time_of_ms(ms))}


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_time(text: str) -> Optional[datetime.datetime]:
    """RFC 3339; None: it is not."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    zone = "+00:00" if found[4] in "Zz" else found[4]
    try:
        return datetime.datetime.fromisoformat(f"{found[1]}T{found[2]}.{(found[3] or '0')[:6].ljust(6, '0')}{zone}")
    except ValueError:
        return None


def ms_of(value: Any) -> Optional[float]:
    """Milliseconds of a recorded time, or of the text of one; None: it is none."""
    if isinstance(value, dict):
        value = value.get("time")
    at = parse_time(value) if isinstance(value, str) else None
    return None if at is None else at.timestamp() * 1000


def duration_ms(duration: Duration) -> int:
    """Milliseconds of a duration. Raises InvalidInput: it is none, is negative, or has more than 36500 days."""
    if isinstance(duration, str):
        found = _DURATION.fullmatch(duration)
        if found is None:
            raise InvalidInput(f'"{duration[:100]}" is not a duration; write for example 500ms, 30s, 5m, 24h or 7d')
        ms = int(found[1]) * _UNITS[found[2]]
    elif isinstance(duration, datetime.timedelta):
        ms = math.ceil(duration / datetime.timedelta(milliseconds=1))
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool) and math.isfinite(duration):
        ms = math.ceil(duration * 1000)
    else:
        raise InvalidInput(f"{duration!r} is not a duration; give seconds, or a text such as 500ms, 30s, 5m, 24h or 7d")
    if not 0 <= ms <= DURATION_MAX_MS:
        raise InvalidInput(f"a duration is 0 to 36500d, not {duration}")
    return ms


def _clock() -> int:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:  # not Linux: the monotonic clock may pause while the machine is suspended
        return time.CLOCK_MONOTONIC if hasattr(time, "CLOCK_MONOTONIC") else -1
    return int(boottime)


_CLOCK = _clock()


def steady() -> float:
    """Seconds of a clock that does not go back, and counts the time for which the machine is suspended."""
    return time.clock_gettime(_CLOCK) if _CLOCK >= 0 else time.monotonic()
