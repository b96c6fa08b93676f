"""Warnings of `aetheris dev`: code of an agent uses a time, a random value or an id that is not recorded.

The functions are wrapped before the user's file is loaded. Their results stay the same. A warning is printed once for
each line, if the caller is code of the user that runs in an agent: not in a function of `ctx.run` or of a tool, and not
in a package.
"""
import functools
import os
import random
import sys
import sysconfig
import time
import uuid
from typing import Any, Callable, List, Optional, Set, Tuple

from .current import current

PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = tuple(os.path.realpath(path) + os.sep for path in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"],
                                                             os.path.dirname(os.__file__)})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_KEPT = ("seed", "getstate", "setstate")  # they draw nothing

_FUNCTIONS: List[Tuple[Any, str, str]] = [
    *[(time, name, "ctx.now()") for name in ("time", "time_ns")],
    *[(uuid, name, "ctx.uuid()") for name in ("uuid1", "uuid4")],
    *[(random, name, "ctx.random()") for name in random.__all__
      if name[0].islower() and name not in _KEPT and callable(getattr(random, name))]]


def warn_about_unrecorded(print: Callable[[str], None]) -> Callable[[], None]:
    """Wraps the functions of this process. `print` is given each warning. Returns what restores them."""
    warned: Set[Tuple[str, str]] = set()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _FUNCTIONS]

    def warn(what: str, instead: str) -> None:
        if current() is None:
            return
        frame = sys._getframe(2)  # of the caller
        place = place_of(frame.f_code.co_filename, frame.f_lineno)
        if place is not None and (place, what) not in warned:
            warned.add((place, what))
            print(f"{place}: {what}() is not recorded: it differs when the code runs again. Use {instead}")

    def wrapped(original: Callable[..., Any], what: str, instead: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            warn(what, instead)
            return original(*args, **named)
        return call
    for owner, name, instead in _FUNCTIONS:
        setattr(owner, name, wrapped(getattr(owner, name), f"{owner.__name__}.{name}", instead))

    def restore() -> None:
        for owner, name, original in originals:
            setattr(owner, name, original)
    return restore


def place_of(path: str, line: int) -> Optional[str]:
    """agent.py:14; None: it is not code of the user."""
    if not _is_of_user(path):
        return None
    short = os.path.relpath(path)
    return f"{path if short.startswith('..') else short}:{line}"


def is_of_sdk(path: str) -> bool:
    return path.startswith(PACKAGE)


def _is_of_user(path: str) -> bool:
    if path.startswith("<") or any(part in path for part in _PACKAGES):
        return False
    real = os.path.realpath(path)
    return not real.startswith((PACKAGE, os.path.realpath(PACKAGE) + os.sep, *_STDLIB))


def print_warning(warning: str) -> None:
    sys.stderr.write(f"aetheris: warn: {warning}\n")
    sys.stderr.flush()
