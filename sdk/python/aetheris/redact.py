"""Secrets: values that do not leave the worker. Each is replaced by `[secret NAME]` in all that is sent to the server.

Known are the values of environment variables whose names end in KEY, TOKEN, SECRET or PASSWORD, and those that
`call.secret` has given, if they have at least 8 bytes. A value is found as it is, escaped for JSON (up to 4 times: in
the JSON of a text that is JSON) or a URL, as hex and as base64.
"""
import base64
import json
import os
import re
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional

_NAME = re.compile(r"(?:.*_)?(?:KEY|TOKEN|SECRET|PASSWORD)", re.S)
_NESTED_MAX = 4  # levels of JSON in a text of JSON
_BYTES_MIN = 8  # shorter values are not hidden: that would destroy the text


def _in_base64(value: bytes, altchars: bytes) -> List[str]:
    """Inside of a longer base64 the value begins at one of three places. Digits that also depend on its neighbours are
    left."""
    found = []
    for before in range(3):
        text = base64.b64encode(bytes(before) + value, altchars).decode().rstrip("=")
        found.append(text[-(-before * 8 // 6):(before + len(value)) * 8 // 6])
    return found


def _in_json(value: str) -> List[str]:
    """In a text of JSON, in a text in it, and so on. Some encoders write what is not ASCII as \\uXXXX."""
    level = [value]
    found = level
    for _ in range(_NESTED_MAX):
        escaped = [json.dumps(form, ensure_ascii=is_ascii)[1:-1] for form in level for is_ascii in (False, True)]
        level = list(dict.fromkeys(escaped))
        found = found + level
    return found


class Redactor:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.read(environment)

    def read(self, environment: Mapping[str, str]) -> None:
        """Takes the secrets of this environment instead of those before."""
        self.is_needed = False
        self._names: Dict[str, str] = {}  # of the variables, by form
        self._pattern: Optional["re.Pattern[str]"] = None
        for name, value in sorted(environment.items()):
            if _NAME.fullmatch(name):
                self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Replaces this value in all that follows."""
        data = value.encode("utf-8", "surrogateescape")
        if len(data) < _BYTES_MIN or value in self._names:
            return
        quoted = urllib.parse.quote(data, safe="!'()*~")
        forms = [*_in_json(value), quoted,
                 urllib.parse.quote(data, safe=""), quoted.replace("%20", "+"), data.hex(), data.hex().upper(),
                 *_in_base64(data, b"+/"), *_in_base64(data, b"-_")]
        for form in forms:
            self._names.setdefault(form, name)
        # The longest first: one form can contain another one.
        ordered = sorted(self._names, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, ordered)))
        self.longest = len(ordered[0])
        self.is_needed = True

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: f"[secret {self._names[found[0]]}]", text)

    def value(self, value: Any) -> Any:
        """The JSON value without secrets: the same, if there are none."""
        return self._value(value) if self.is_needed else value

    def _value(self, value: Any) -> Any:
        if type(value) is str:
            return self.text(value)
        if type(value) is dict:
            return {self.text(name): self._value(member) for name, member in value.items()}
        if type(value) is list:
            return [self._value(member) for member in value]
        return value

    def has_secret(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def begin_of_form(self, text: str) -> int:
        """How many characters at the end of the text may be the begin of a secret."""
        if self.is_needed:
            for size in range(min(self.longest - 1, len(text)), 0, -1):
                end = text[-size:]
                if any(len(form) > size and form.startswith(end) for form in self._names):
                    return size
        return 0


redactor = Redactor(os.environ)


class RedactedText:
    """A text that comes in pieces: all pieces together have no secret. Holds back what may be the begin of one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        text = redactor.text(self._held + piece)
        hold = redactor.begin_of_form(text)
        self._held = text[len(text) - hold:]
        return text[:len(text) - hold]

    def end(self) -> str:
        text, self._held = self._held, ""
        return text
