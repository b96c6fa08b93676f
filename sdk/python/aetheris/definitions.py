"""agent and tool: what a worker offers."""
import inspect
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Union, overload

from .canonical import fresh
from .context import EFFECTS, Ctx, run_agent
from .errors import InvalidInput
from .loop import AgentLoop, HostLoop
from .sync import SyncCtx, Threads, begin_agent

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
LOOPS = ("agent", "host")


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInput(f'the name of {what} has 1 to 128 letters, digits, "_", ".", ":" and "-", not '
                           f'"{str(name)[:100]}"')


class Tool:
    """A tool that this worker performs. Calling it calls its function, without a record."""
    kind = "tool"

    def __init__(self, name: str, definition: Dict[str, Any], fn: Callable[..., Any]) -> None:
        _check_name(name, "a tool")
        if name.startswith(("run:", "model:", "agent:", "job:")):
            raise InvalidInput(f'"{name}": names of tools do not begin with run:, model:, agent: or job:')
        if definition.get("effect", "read") not in EFFECTS:
            raise InvalidInput(f'tool "{name}": the effect is read, idempotent or at_most_once, not '
                               f'"{definition["effect"]}"')
        self.name = name
        self.definition = definition
        self.fn = fn
        self.__doc__ = fn.__doc__

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.fn(*args, **more)

    def offer(self) -> Dict[str, Any]:
        return {"name": self.name, "effect": "at_most_once", **self.definition}


class Agent:
    """An agent that this worker runs."""
    kind = "agent"

    def __init__(self, name: str, definition: Dict[str, Any], fn: Callable[..., Any], loop: str = "agent") -> None:
        _check_name(name, "an agent")
        if loop not in LOOPS:
            raise InvalidInput(f'agent "{name}": loop is agent or host, not "{loop}"')
        self.name = name
        self.definition = definition
        self.fn = fn
        self.is_async = inspect.iscoroutinefunction(fn)
        if loop == "host" and not self.is_async:
            raise InvalidInput(f'agent "{name}": loop="host" is for async def; a def runs on a thread')
        self._loop = loop
        self.__doc__ = fn.__doc__

    def offer(self, default_version: Optional[str]) -> Dict[str, Any]:
        offer = {"name": self.name, **self.definition, "language": "python"}
        version = self.version(default_version)
        if version:
            offer["version"] = version
        return offer

    def version(self, default: Optional[str]) -> Optional[str]:
        return self.definition.get("version") or default

    # ---------------------------------------------------------------- for a routine

    def runner(self, routine: Any) -> Any:
        if not self.is_async:
            return Threads(routine)
        return AgentLoop(routine) if self._loop == "agent" else HostLoop(routine)

    def context(self, routine: Any) -> Any:
        return (Ctx if self.is_async else SyncCtx)(routine, "", None, routine.root)

    def begin(self, routine: Any) -> None:
        given = fresh(routine.start.get("input"))
        if self.is_async:
            routine.runner.begin(run_agent(routine, self.fn, given), routine.ctx)
        else:
            begin_agent(routine, self.fn, given)


def _definition(members: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


@overload
def tool(name: Callable[..., Any]) -> Tool: ...


@overload
def tool(name: Optional[str] = None, **definition: Any) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(name: Union[str, Callable[..., Any], None] = None, *, effect: Optional[str] = None,
         description: Optional[str] = None, timeout: Optional[str] = None, grace: Optional[str] = None,
         retry: Optional[Mapping[str, Any]] = None, on_in_doubt: Optional[str] = None, probe: Any = None,
         dedupe_window: Optional[str] = None, args_schema: Optional[Mapping[str, Any]] = None,
         result_schema: Optional[Mapping[str, Any]] = None, approval: Optional[str] = None,
         capabilities: Optional[List[str]] = None, changes: Any = None, verify: Any = None, compensate: Any = None,
         definite_failures: Optional[List[str]] = None, output_max: Optional[int] = None,
         heartbeat_timeout: Optional[str] = None) -> Any:
    """Makes a tool of a function: `fn(args, call)`, where parameters at the end may be left out. The default of `name`
    is the function's. The other arguments are the tool's policy, with the names and defaults of the agents file;
    without `effect` it is `at_most_once`. An agents file may define the same tool; it holds instead.

    The function is called once for each permit of the server: the engine retries, not the function. An `async def` runs
    on the worker's loop, a `def` on a thread. It returns JSON; raises `Failure` or `NotDone` if there was certainly no
    effect; anything else that it raises is an unknown outcome.

    Raises `InvalidInput`: the name or the effect is not valid."""
    definition = _definition({
        "effect": effect, "description": description, "timeout": timeout, "grace": grace, "retry": retry,
        "on_in_doubt": on_in_doubt, "probe": probe, "dedupe_window": dedupe_window, "args_schema": args_schema,
        "result_schema": result_schema, "approval": approval, "capabilities": capabilities, "changes": changes,
        "verify": verify, "compensate": compensate, "definite_failures": definite_failures, "output_max": output_max,
        "heartbeat_timeout": heartbeat_timeout})
    return _decorated(name, lambda named, fn: Tool(named, definition, fn), "tool")


@overload
def agent(name: Callable[..., Any]) -> Agent: ...


@overload
def agent(name: Optional[str] = None, **definition: Any) -> Callable[[Callable[..., Any]], Agent]: ...


def agent(name: Union[str, Callable[..., Any], None] = None, *, version: Optional[str] = None,
          description: Optional[str] = None, uses: Optional[List[str]] = None,
          input_schema: Optional[Mapping[str, Any]] = None, output_schema: Optional[Mapping[str, Any]] = None,
          parallel: Optional[int] = None, on_exception: Optional[str] = None, loop: str = "agent") -> Any:
    """Makes an agent of a function `fn(ctx, input)`, whose requests are recorded. It may run again at any time, from
    its beginning, and is then given the same outcomes, so all that reaches outside of it goes through `ctx`. Its result
    is the job's. A `Failure` that it raises fails the job; any other exception parks it until other code comes.

    An `async def` runs on an event loop of its own, and gets a `Ctx`; with `loop="host"` it runs on the worker's
    ordinary loop, for frameworks that open sockets. A `def` runs on a thread, and gets a `SyncCtx`.

    `uses`: the tools and models that the agent may call: names, `NAME.*`, `model:NAME`. `version`: jobs stay with the
    version under which they were created; the default is AETHERIS_VERSION. `on_exception`: `park` (the default) or
    `fail`.

    Raises `InvalidInput`: the name is not valid."""
    definition = _definition({
        "version": version, "description": description, "uses": uses, "input_schema": input_schema,
        "output_schema": output_schema, "parallel": parallel, "on_exception": on_exception})
    return _decorated(name, lambda named, fn: Agent(named, definition, fn, loop), "agent")


def _decorated(name: Any, make: Callable[[str, Callable[..., Any]], Any], what: str) -> Any:
    def decorate(fn: Callable[..., Any]) -> Any:
        if not callable(fn):
            raise InvalidInput(f"@{what} decorates a function")
        return make(name if isinstance(name, str) else getattr(fn, "__name__", ""), fn)
    if callable(name):
        fn, name = name, None
        return decorate(fn)
    if name is not None and not isinstance(name, str):
        raise InvalidInput(f"the name of @{what} is a text")
    return decorate
