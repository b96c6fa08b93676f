"""Warnings about requests that the code of an agent made and did not await before it returned: their outcomes are lost,
and what was not sent is not performed. For `aetheris dev` and the test kit.

The methods that make and await requests are wrapped. A warning is printed once for each line of the user's code. That a
coroutine was never awaited is found by Python; its warning is given the line that made the coroutine.
"""
import functools
import re
import sys
import warnings
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from .dev_warnings import is_of_sdk, place_of
from .loop import AgentLoop, AgentTask
from .request import Request, is_stopped
from .routine import Routine
from .sync import SyncCtx, SyncRequest, Threads

_NEVER = re.compile(r"coroutine '(?P<name>.*)' was never awaited\n"
                    r'(?:.*\n)*  File "(?P<path>.*)", line (?P<line>\d+), in ')


class _Made(NamedTuple):
    request: Any  # or a task
    place: str
    what: str
    delivered: int  # how many outcomes the routine had been given
    is_detached: bool = False  # its code may go on without the outcome


_made: "weakref.WeakKeyDictionary[Routine, List[_Made]]" = weakref.WeakKeyDictionary()
_awaited: "weakref.WeakSet[Any]" = weakref.WeakSet()
_printers: List[Callable[[str], None]] = []
_warned: Set[str] = set()


def warn_about_unawaited(print: Callable[[str], None]) -> Callable[[], None]:
    """Watches the agents of this process. `print` is given each warning. Returns what ends that."""
    if not _printers:
        _watch()
    if print not in _printers:
        _printers.append(print)

    def restore() -> None:
        if print in _printers:
            _printers.remove(print)
            if not _printers:
                _unwatch()
    return restore


def _warn(place: str, text: str) -> None:
    if place not in _warned:
        _warned.add(place)
        for print in _printers:
            print(f"{place}: {text}")


# ---------------------------------------------------------------- what is wrapped

def _on_request(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Routine, ctx: Any, name: str, kind: str, tool: str, **made: Any) -> Any:
        request = original(self, ctx, name, kind, tool, **made)
        frame, method = _caller()
        place = place_of(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        if place is not None and not request.done():
            what = _text(method, name, tool, isinstance(self.runner, Threads))
            _add(self, _Made(request, place, what, self._replay.count, tool.endswith(":detached")))
        return request
    return request


def _on_task(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_task(self: AgentLoop, *args: Any, **options: Any) -> Any:
        task = original(self, *args, **options)
        frame = sys._getframe(1)
        while frame.f_back is not None and "asyncio" in frame.f_globals.get("__name__", "").split("."):
            frame = frame.f_back
        place = place_of(frame.f_code.co_filename, frame.f_lineno)
        if place is not None:
            _add(self.routine, _Made(task, place, "a task", self.routine._replay.count))
        return task
    return create_task


# Each await of a future or task adds a callback to it, and so do gather, wait and wait_for.
def _on_await(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_done_callback(self: Any, *args: Any, **options: Any) -> Any:
        _awaited.add(self)
        return original(self, *args, **options)
    return add_done_callback


def _on_result(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result(self: SyncRequest) -> Any:
        _awaited.add(self)
        return original(self)
    return result


def _on_several(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def several(self: SyncCtx, requests: Any) -> Any:
        for request in requests:
            _awaited.add(request)
        return original(self, requests)
    return several


def _on_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def begin(self: Routine) -> None:
        sys.set_coroutine_origin_tracking_depth(max(1, sys.get_coroutine_origin_tracking_depth()))  # of this thread
        original(self)
    return begin


def _on_finish(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def finish(self: Routine, result: Any) -> None:
        if not self.is_inert and self.end is None:
            _warn_about(self)
        original(self, result)
    return finish


def _on_warning(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def showwarning(message: Any, category: Any, *args: Any, **options: Any) -> None:
        found = _NEVER.match(str(message)) if category is RuntimeWarning else None
        place = place_of(found["path"], int(found["line"])) if found else None
        if found is None or place is None:
            return original(message, category, *args, **options)
        name = found["name"].replace("Ctx.", "ctx.").split("<locals>.")[-1]
        _warn(place, f"{name}() was not awaited; it did nothing. Add await")
    return showwarning


_WRAPPED: List[Tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = [
    (Routine, "request", _on_request), (Routine, "begin", _on_begin), (Routine, "finish", _on_finish),
    (AgentLoop, "create_task", _on_task), (Request, "add_done_callback", _on_await),
    (AgentTask, "add_done_callback", _on_await), (SyncRequest, "result", _on_result), (SyncCtx, "gather", _on_several),
    (SyncCtx, "first", _on_several), (warnings, "showwarning", _on_warning)]
_originals: Dict[Tuple[Any, str], Any] = {}  # None: it was inherited


def _watch() -> None:
    for owner, name, wrapped in _WRAPPED:
        _originals[owner, name] = vars(owner).get(name)
        setattr(owner, name, wrapped(getattr(owner, name)))


def _unwatch() -> None:
    for (owner, name), original in _originals.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()


# ---------------------------------------------------------------- what is found

# The frame that called a method of ctx, and the method.
def _caller() -> Tuple[Optional[Any], str]:
    frame, method = sys._getframe(2), ""
    while frame is not None and is_of_sdk(frame.f_code.co_filename):
        frame, method = frame.f_back, frame.f_code.co_name  # type: ignore[assignment]
    return frame, method


def _text(method: str, name: str, tool: str, is_sync: bool) -> str:
    if tool.startswith("model:"):
        return f'ctx.{"later." if is_sync else ""}model("{tool[len("model:"):]}").{method}()'
    if method == "start":
        return f'ctx.start("{tool.split(":")[1]}")'
    named = f'"{name}"' if method in ("run", "call") else ""
    return f'ctx.{"later." if is_sync else ""}{method}({named})'


def _add(routine: Routine, made: _Made) -> None:
    known = _made.setdefault(routine, [])
    if len(known) % 64 == 63:
        known[:] = [one for one in known if not one.request.done()]
    known.append(made)


def _warn_about(routine: Routine) -> None:
    def is_open(one: _Made) -> bool:
        if one.request.done():
            return False
        if isinstance(one.request, AgentTask):
            return not getattr(one.request, "_must_cancel", False)
        return not is_stopped(one.request.branch)

    def is_sent(one: _Made) -> bool:
        return one.delivered < routine._replay.count
    left = [one for one in _made.pop(routine, ()) if is_open(one)]
    requests = [one for one in left if not isinstance(one.request, AgentTask)]
    lost = [one for one in requests if one.request not in _awaited and not (one.is_detached and is_sent(one))]
    for one in lost:
        is_sync = isinstance(one.request, SyncRequest)
        _warn(one.place, f"{one.what} was not awaited before the agent returned; its outcome is lost. "
                         f"{'Add .result()' if is_sync else 'Add await'}")
    if lost:
        return
    for one in requests:
        if not is_sent(one):  # other code awaits it, which nothing awaits
            _warn(one.place, f"{one.what} was not sent before the agent returned, and is not performed. Await the code "
                             "that calls it")
    for one in left:
        if isinstance(one.request, AgentTask) and one.request not in _awaited and not is_sent(one):
            _warn(one.place, "a task was not awaited before the agent returned, and its requests are not sent. Await it")
