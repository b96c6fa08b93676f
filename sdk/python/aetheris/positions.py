"""Positions: names the requests of one routine. The first `charge` of scope `items/2` is items/2/charge, the second
items/2/charge#2, one with a key items/2/charge@KEY, one by its content items/2/charge~HASH.

Positions depend on the names and on the order of requests only, so a new routine names the same requests in the same
way.
"""
import re
from typing import Any, Dict, Optional, Set

from .errors import InvalidInput
from .redact import redactor

_POSITION_MAX = 512  # bytes
_SCOPES_MAX = 16
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def is_request_name(name: Any) -> bool:
    """A position is recorded as it is, so it has no secret."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and not redactor.has_secret(name)


def joined(scope: str, name: Any) -> str:
    return f"{scope}/{name}" if scope else str(name)


def is_inside(position: str, scope: str) -> bool:
    return position.startswith(scope + "/")


def check_name(name: Any, what: str = "a request or scope") -> None:
    if not is_request_name(name):
        raise InvalidInput(f'the name of {what} has 1 to 64 letters, digits, "_", ".", ":" and "-" and no '
                           f'secret, not "{redactor.text(str(name))[:100]}"')


def _check_position(position: str) -> str:
    if len(position) <= _POSITION_MAX and position.count("/") <= _SCOPES_MAX:
        return position
    raise InvalidInput(f'"{position[:100]}" is not a position: it has at most {_POSITION_MAX} bytes and {_SCOPES_MAX} '
                       "scopes")


class Positions:
    def __init__(self) -> None:
        self._counts: Dict[str, int] = {}  # of requests, by position without #n
        self._keys: Set[str] = set()
        self._scopes: Dict[str, str] = {}  # how each is used: closed, numbered, branches

    def next(self, scope: str, name: Any, key: Optional[str] = None, content: Optional[str] = None) -> str:
        """Of the next request with this name, key or content. Raises InvalidInput."""
        check_name(name)
        position = joined(scope, name)
        if key is not None:
            if not isinstance(key, str) or _KEY.fullmatch(key) is None or redactor.has_secret(key):
                raise InvalidInput(f'the key of "{name}" has 1 to 128 letters, digits, "_", ".", ":" and "-" and no '
                                   f'secret, not "{redactor.text(str(key))[:100]}"')
            keyed = _check_position(f"{position}@{key}")
            if keyed in self._keys:
                raise InvalidInput(f'the key "{key}" of "{name}" was used before in its scope')
            self._keys.add(keyed)
            return keyed
        counted = position if content is None else f"{position}~{content}"
        count = self._counts.get(counted, 0) + 1
        found = _check_position(counted if count == 1 else f"{counted}#{count}")
        self._counts[counted] = count
        return found

    def closed_scope(self, scope: str, name: Any, number: Optional[int] = None) -> str:
        """Of a closed scope: `name`, or `name/number`. Raises InvalidInput: also if it was used before."""
        check_name(name)
        position = joined(scope, name)
        if number is not None:
            self._use(position, "numbered")
            position = joined(position, number)
        _check_position(position)
        if position in self._counts or position in self._scopes:
            raise InvalidInput(f'"{position}" was used before; give each closed scope a name of its own, or use '
                               "ctx.loop")
        self._scopes[position] = "closed"
        self._counts[position] = 1  # a request with this name is its second
        return position

    def loop(self, scope: str, name: Any) -> str:
        """Of a loop. Raises InvalidInput: also if the name was used before."""
        check_name(name)
        position = _check_position(joined(scope, name))
        if position in self._scopes:
            raise InvalidInput(f'"{position}" was used before; give each loop a name of its own')
        self._scopes[position] = "turns"
        return position

    def open_scope(self, scope: str, name: Any) -> str:
        """The scope of the branches of a map or race, or a scope that is not closed. Its names count on if it is used
        again."""
        check_name(name)
        position = _check_position(joined(scope, name))
        self._use(position, "branches")
        return position

    def forget_inside(self, scope: str) -> None:
        """This closed scope has ended: no position inside of it is requested any more."""
        for known in (self._counts, self._scopes):
            for position in [one for one in known if is_inside(one, scope)]:
                del known[position]  # type: ignore[attr-defined]
        self._keys = {one for one in self._keys if not is_inside(one, scope)}

    def _use(self, position: str, use: str) -> None:
        if self._scopes.setdefault(position, use) != use:
            raise InvalidInput(f'the scope "{position}" was used before: closed scopes, loops, and the branches of a '
                               "map or race, have different names")
