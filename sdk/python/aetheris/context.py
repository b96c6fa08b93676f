"""Ctx: the calls of an agent's code as requests of its routine."""
import datetime
import json
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import branches as parallel_branches
from .canonical import arguments_of, to_json
from .current import here
from .errors import InvalidInput, well_formed
from .job_tools import SEND, child_tool
from .redact import redactor
from .request import Branch, ClosedScope, Request
from .values import Duration, duration_ms, parse_time, time_of_ms, time_text

if TYPE_CHECKING:
    import uuid

    from .definitions import Agent, Tool
    from .http_response import Response
    from .routine import Routine

_KEY_BYTES_MAX = 256  # of the key of a wait, and of a channel
EFFECTS = ("read", "idempotent", "at_most_once")


class Job(NamedTuple):
    id: str
    agent: str
    labels: Dict[str, str]
    created_at: datetime.datetime


class Race(NamedTuple):
    """Which branch won, and what it returned."""
    won: str
    value: Any


class Next(NamedTuple):
    """Of a turn of a loop: the state of the next turn."""
    state: Any


class Done(NamedTuple):
    """Of a turn of a loop: the result of the loop."""
    result: Any = None


class Logger:
    """Writes to stderr; nothing while the routine repeats what is recorded."""

    def __init__(self, routine: "Routine") -> None:
        self._routine = routine

    def _write(self, level: str, message: str, fields: Dict[str, Any]) -> None:
        more = " " + json.dumps(fields, default=str, ensure_ascii=False) if fields else ""
        self._routine.log(level, well_formed(message + more))

    def debug(self, message: str, **fields: Any) -> None:
        self._write("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._write("info", message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._write("warn", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._write("error", message, fields)


def _policy(timeout: Optional[str], retry: Optional[Mapping[str, Any]],
            on_in_doubt: Optional[str]) -> Optional[Dict[str, Any]]:
    """What a call states beside the policy of its tool."""
    if timeout is None and retry is None and on_in_doubt is None:
        return None
    stated = {"timeout": timeout, "retry": retry, "on_in_doubt": on_in_doubt}
    policy: Dict[str, Any] = to_json({name: value for name, value in stated.items() if value is not None},
                                     "the options of the call")
    return policy


def _wait_text(text: Optional[str], what: str) -> Optional[str]:
    if text is None:
        return None
    if not isinstance(text, str) or not 0 < len(text.encode("utf-8", "replace")) <= _KEY_BYTES_MAX or \
            text != well_formed(text) or redactor.has_secret(text):
        raise InvalidInput(f"{what} has 1 to {_KEY_BYTES_MAX} bytes of text, and no secret")
    return text


class Requests:
    """Makes requests. Each raises InvalidInput at its line if a value is not JSON, or a name is not allowed.

    Options of all: `name` of the request, in place of that of the tool, `sleep`, `receive`, …; `key`, in place of the
    count of its name, used once in a scope. Of a call: `timeout`, `retry`, `on_in_doubt`, stricter than the policy of
    its tool.
    """

    def __init__(self, routine: "Routine", scope: str, closed: Optional[ClosedScope], branch: Branch) -> None:
        self.routine = routine
        self.scope_name = scope
        self.closed = closed
        self.branch = branch

    def _request(self, name: str, kind: str, tool: str, **made: Any) -> Any:
        return self.routine.request(self, name, kind, tool, **made)

    # ---------------------------------------------------------------- calls

    def run(self, name: str, effect: str, fn: Callable[..., Any], *, args: Optional[Mapping[str, Any]] = None,
            key: Optional[str] = None, timeout: Optional[str] = None, retry: Optional[Mapping[str, Any]] = None,
            on_in_doubt: Optional[str] = None) -> "Request[Any]":
        """Performs `fn` in this worker, once for each permit of the server: `fn(args, call)`, or `fn(call)` without
        `args`; parameters at the end may be left out. An `async def` runs on the worker's loop, a `def` on a thread.
        `effect` states what a repetition does. `args` are recorded, compared on replay and shown to who approves; what
        `fn` only closes over is not. `fn` makes no requests itself. Raises `ToolFailed`."""
        if not callable(fn):
            raise InvalidInput(f'ctx.run("{name}", effect, fn): fn must be a function')
        if effect not in EFFECTS:
            raise InvalidInput(f'ctx.run("{name}"): the effect is read, idempotent or at_most_once, not "{effect}"')
        given = arguments_of(args, name)
        return self.stated(name, effect, given, _Stated(fn, args is not None), key=key,
                           options=_policy(timeout, retry, on_in_doubt))

    def stated(self, name: str, effect: str, args: Dict[str, Any], fn: Callable[..., Any], **made: Any) -> Any:
        """A call of a function that is stated with it."""
        return self._request(name, "tool", f"run:{effect}", args=args, fn=fn, **made)

    def call(self, tool: "Union[Tool, str]", args: Optional[Mapping[str, Any]] = None, *, name: Optional[str] = None,
             key: Optional[str] = None, timeout: Optional[str] = None, retry: Optional[Mapping[str, Any]] = None,
             on_in_doubt: Optional[str] = None) -> "Request[Any]":
        """Calls a tool that the agent may use: one of the agents file, or one that a worker registered. Raises
        `ToolFailed`."""
        tool_name = tool if isinstance(tool, str) else getattr(tool, "name", "")
        return self._call("tool", tool_name, args, None, name, key, _policy(timeout, retry, on_in_doubt))

    def _call(self, kind: str, tool: str, args: Any, convert: Optional[Callable[[Any], Any]], name: Optional[str],
              key: Optional[str], options: Optional[Dict[str, Any]]) -> Any:
        if not isinstance(tool, str) or not tool:
            raise InvalidInput("a call names its tool")
        return self._request(name or tool, kind, tool, args=arguments_of(args, tool), convert=convert, key=key,
                             options=options)

    def start(self, agent: "Union[Agent, str]", input: Optional[Mapping[str, Any]] = None, *, detached: bool = False,
              name: Optional[str] = None, key: Optional[str] = None) -> "Request[Any]":
        """Starts a job of another agent, which `uses` names as `agent:NAME`. The request is its result; its `id` is that
        of the job, and `cancel()` cancels it. The job is created once, and is cancelled when this one ends without its
        result. With `detached` it is neither awaited nor cancelled: the result is `{"job": ID}`, once it is created.
        Raises `ToolFailed`, with the code of the child: also `not_found` (there is no such agent), `cancelled`."""
        agent_name = agent if isinstance(agent, str) else getattr(agent, "name", "")
        if not isinstance(agent_name, str) or not agent_name:
            raise InvalidInput("ctx.start names an agent")
        made: Request[Any] = self._request(name or agent_name, "tool", child_tool(agent_name, detached),
                                           args=arguments_of(input, agent_name), key=key)
        made.id = self.routine.child_id(made.position)
        return made

    def send(self, job: str, to: Mapping[str, str], payload: Any = None, *, name: str = "send",
             key: Optional[str] = None) -> "Request[None]":
        """Sends a message or a signal to another job of the store, once; `uses` names it as `job:send`. `to` is
        `{"channel": NAME}` or `{"key": KEY}`: its `receive` of a channel, or its `wait` for a signal with this key.
        What the job does not wait for yet is kept for it. Raises `ToolFailed`: `not_found`, `job_terminal` (it has ended),
        `wait_mismatch` (the wait with this key is not a wait for a signal, or had another answer)."""
        if not isinstance(job, str) or not isinstance(to, Mapping) or list(to) not in (["channel"], ["key"]):
            raise InvalidInput("ctx.send(job, to, payload): job is the id of a job, and to has a channel or a key")
        at = {member: _wait_text(text, f"a {member}") for member, text in to.items()}
        args = arguments_of({"job": job, "to": at, "payload": payload}, SEND)
        return self._request(name, "tool", SEND, args=args, key=key, convert=_nothing)

    def model(self, name: str) -> "Model":
        """A model of the agents file; the server calls it."""
        return Model(self, name)

    # ---------------------------------------------------------------- waits

    def _wait(self, name: str, wait: Dict[str, Any], key: Optional[str], **made: Any) -> Any:
        return self._request(name, "wait", wait["type"], wait=wait, key=key, **made)

    def sleep(self, duration: Duration, *, name: str = "sleep", key: Optional[str] = None) -> "Request[None]":
        """Waits by the store's clock: seconds, a timedelta, or a text such as `5m`. The worker need not run
        meanwhile."""
        return self._wait(name, {"type": "timer", "lasts_ms": duration_ms(duration)}, key, convert=_nothing)

    def until(self, time: Union[datetime.datetime, str], *, name: str = "until",
              key: Optional[str] = None) -> "Request[None]":
        """Waits until this time of the store's clock: a datetime with a time zone, or a text such as
        `2026-01-31T12:00:00Z`."""
        at = parse_time(time) if isinstance(time, str) else time
        if not isinstance(at, datetime.datetime):
            raise InvalidInput(f'ctx.until: "{time}" is not a time; give a datetime, or a text such as '
                               "2026-01-31T12:00:00Z")
        return self._wait(name, {"type": "timer", "due_at": time_text(at)}, key, convert=_nothing)

    def wait(self, type: str, wait_key: Optional[str] = None, *, expires: Optional[Duration] = None,
             on_expire: str = "fail", answer: str = "decision", question: Optional[str] = None, data: Any = None,
             name: Optional[str] = None, key: Optional[str] = None) -> "Request[Any]":
        """Waits for a `signal`, a `webhook` or a `human`. `wait_key`: the key that the answer names; the default is the
        id of the step. Raises `Rejected`, `WaitExpired`; with `on_expire="continue"` the result is None instead.
        `answer`, of a human wait: a `decision` (yes or no), or any `data`. `question` and `data` are shown to the
        approver."""
        if type not in ("signal", "webhook", "human"):
            raise InvalidInput(f'ctx.wait: the type is signal, webhook or human, not "{type}"')
        if on_expire not in ("fail", "continue") or answer not in ("decision", "data"):
            raise InvalidInput("ctx.wait: on_expire is fail or continue, and answer is decision or data")
        wait: Dict[str, Any] = {"type": type}
        named = _wait_text(wait_key, "the key of a wait")
        if named is not None:
            wait["key"] = named
        if expires is not None:
            wait["expires_ms"] = duration_ms(expires)
        if type == "human":
            if answer == "data":
                wait["accepts_data"] = True
            if question is not None:
                wait["question"] = to_json(question, "the question")
            if data is not None:
                wait["data"] = to_json(data, "the data of the question")
        return self._wait(name or type, wait, key, continues_when_expired=on_expire == "continue")

    def approval(self, question: str, *, data: Any = None, wait_key: Optional[str] = None,
                 expires: Optional[Duration] = None, name: str = "approval",
                 key: Optional[str] = None) -> "Request[Any]":
        """Waits for an approval: a dict with `decision`, and maybe `by` and `note`. Raises `Rejected`,
        `WaitExpired`."""
        return self.wait("human", wait_key, expires=expires, question=question, data=data, name=name, key=key)

    def receive(self, channel: str, *, expires: Optional[Duration] = None, name: str = "receive",
                key: Optional[str] = None) -> "Request[Any]":
        """The next message of a channel of this job. Raises `WaitExpired`."""
        wait: Dict[str, Any] = {"type": "message", "channel": _wait_text(channel, "a channel") or ""}
        if expires is not None:
            wait["expires_ms"] = duration_ms(expires)
        return self._wait(name, wait, key)


def _nothing(_: Any) -> None:
    return None


class _Stated:
    """A function that a request states: how it is called."""
    __slots__ = ("fn", "has_args")

    def __init__(self, fn: Callable[..., Any], has_args: bool) -> None:
        self.fn = fn
        self.has_args = has_args

    def __call__(self, args: Any, call: Any) -> Any:  # of the tests
        return self.fn(*given_to(self.fn, args, call, self.has_args))


def given_to(fn: Callable[..., Any], args: Any, call: Any, has_args: bool = True) -> Sequence[Any]:
    """The arguments of a function of a tool, or of `run`: as many of (args, call) as it has parameters."""
    count = _parameters(fn)
    if not has_args and count < 2:
        return (call,)[:count]
    return (args, call)[:count]


def _parameters(fn: Callable[..., Any]) -> int:
    """How many positional arguments it takes, at most 2."""
    code = getattr(fn, "__code__", None)
    if code is not None and not code.co_flags & 0x04 and not getattr(fn, "__wrapped__", None):
        count = code.co_argcount - len(getattr(fn, "__defaults__", None) or ()) - (1 if hasattr(fn, "__self__") else 0)
        return 2 if count > 2 else count
    import inspect
    try:
        count = 0
        for one in inspect.signature(fn).parameters.values():
            if one.kind is one.VAR_POSITIONAL:
                return 2
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty:
                count += 1
        return min(2, count)
    except (TypeError, ValueError):
        return 2


class Model:
    """A model of the agents file."""

    def __init__(self, requests: Requests, name: str) -> None:
        self._requests = requests
        self._tool = f"model:{name}"

    def generate(self, request: Mapping[str, Any], *, name: Optional[str] = None, key: Optional[str] = None,
                 timeout: Optional[str] = None, retry: Optional[Mapping[str, Any]] = None,
                 on_in_doubt: Optional[str] = None) -> "Request[Any]":
        """Calls the model with a request: `messages`, `temperature`, `max_tokens`, `schema`, … The answer has `text`,
        `finish_reason`, `model`, `usage` (docs/models.md)."""
        return self._made(request, None, name, key, _policy(timeout, retry, on_in_doubt))

    def text(self, prompt: str, *, request: Optional[Mapping[str, Any]] = None, name: Optional[str] = None,
             key: Optional[str] = None, timeout: Optional[str] = None, retry: Optional[Mapping[str, Any]] = None,
             on_in_doubt: Optional[str] = None) -> "Request[str]":
        """The text of the answer to one message. `request`: further members of the request, such as `temperature`."""
        return self._made(_ask(prompt, request), _text_of, name, key, _policy(timeout, retry, on_in_doubt))

    def json(self, prompt: str, schema: Mapping[str, Any], *, request: Optional[Mapping[str, Any]] = None,
             name: Optional[str] = None, key: Optional[str] = None, timeout: Optional[str] = None,
             retry: Optional[Mapping[str, Any]] = None, on_in_doubt: Optional[str] = None) -> "Request[Any]":
        """The answer to one message as JSON of this schema. The server checks it, and repeats the call once if it is
        not."""
        made = {**_ask(prompt, request), "schema": schema}
        return self._made(made, _json_of, name, key, _policy(timeout, retry, on_in_doubt))

    def _made(self, request: Any, convert: Optional[Callable[[Any], Any]], *more: Any) -> Any:
        return self._requests._call("llm", self._tool, request, convert, *more)


def _ask(prompt: str, request: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    return {**(request or {}), "messages": [{"role": "user", "content": prompt}]}


def _text_of(answer: Any) -> Any:
    return answer["text"]


def _json_of(answer: Any) -> Any:
    return answer.get("json")


class Values:
    """Values that are recorded, and the job."""
    routine: "Routine"

    @property
    def job(self) -> Job:
        """The job for which the code runs."""
        job = self.routine.start["job"]
        created = parse_time(job["created_at"]) or time_of_ms(0)
        return Job(job["id"], job["agent"], dict(job.get("labels") or {}), created)

    @property
    def replaying(self) -> bool:
        """The routine repeats what is recorded. For logging only: code that depends on it diverges."""
        return self.routine.is_replaying

    @property
    def log(self) -> Logger:
        """For messages of the worker."""
        return Logger(self.routine)

    def now(self) -> datetime.datetime:
        """The time, recorded, in UTC. Never earlier than before."""
        return time_of_ms(self.routine.values.now(self))

    def random(self) -> float:
        """In [0, 1), the same in every run."""
        return self.routine.values.random(self)

    def uuid(self) -> "uuid.UUID":
        """Version 4, recorded."""
        return self.routine.values.uuid(self)

    def patched(self, id: str) -> bool:
        """Is this the code after the change `id`? False in a job that had passed here before the change."""
        return self.routine.values.patched(self, id)

    def emit(self, name: str, value: Any) -> None:
        """A value for readers of the job, at most 256 KiB. No decision reads it."""
        self.routine.values.emit(self, name, value, False)

    def publish(self, name: str, value: Any) -> None:
        """As `emit`; readers of the job see the last value of this name."""
        self.routine.values.emit(self, name, value, True)


Body = Callable[..., Union[Any, Awaitable[Any]]]


class Ctx(Requests, Values):
    """What the function of an `async def` agent calls. Every call that reaches outside of the function goes through it
    and is recorded; the function may run again at any time, and is then given the same outcomes."""

    def inner(self, scope: str) -> "Ctx":
        """A ctx for a part of the code: a branch, an item, a scope that is not closed."""
        return Ctx(self.routine, scope, self.closed, Branch(self.branch))

    async def enter(self, fn: Body, *args: Any) -> Any:
        """Runs code with this ctx as the current one."""
        before = here.get()
        here.set(self)
        try:
            result = fn(self, *args)
            return await result if hasattr(result, "__await__") else result
        finally:
            here.set(before)

    async def scope(self, name: str, fn: Body, *args: Any, fold: bool = False) -> Any:
        """A part of the code with names, random numbers and counters of its own: `fn(ctx, *args)`. With `fold` it is a
        closed scope: its result is recorded when it ends, and from then on its body does not run again. So it changes
        nothing outside of itself, and inside of it only its own `ctx` may be used. Its open waits are closed at its
        end."""
        if fold:
            return await parallel_branches.closed(self, name, None, fn, *args)
        return await self.inner(self.routine.open_scope(self, name)).enter(fn, *args)

    async def map(self, name: str, items: Sequence[Any], fn: Body, *, parallel: int = 8, on_error: str = "fail",
                  fold: bool = False) -> List[Any]:
        """Runs `fn(ctx, item, index)` for each item, `parallel` (1 to 64) at a time, each in the scope `name/INDEX`.
        The results are in order of the items. `on_error`: with `fail` the first failure ends the map; with `collect`
        the result of a failed item is `{"error": {"code", "message"}}`. `fold`: each item is a closed scope."""
        return await parallel_branches.map_items(self, name, items, fn, parallel, on_error, fold)

    async def race(self, name: str, branches: Mapping[str, Body], *, losers: str = "cancel") -> Race:
        """The first branch that ends, with its result or its error. 1 to 64 branches, each in the scope `name/BRANCH`.
        The others are cancelled: their requests are not needed any more, their tasks get CancelledError and make no
        further requests. With `losers="go_on"` they continue."""
        return Race(*await parallel_branches.race(self, name, branches, losers))

    async def loop(self, name: str, state: Any, fn: Body) -> Any:
        """Repeats `fn(ctx, state, index)`, each turn a closed scope `name/INDEX`, until it returns `Done(result)`.
        `Next(state)` is the state of the next turn. A later routine runs the last turn only."""
        return await parallel_branches.repeat(self, name, state, fn)

    async def fetch(self, url: str, *, method: str = "GET", headers: Optional[Mapping[str, str]] = None,
                    body: Union[str, bytes, None] = None, effect: Optional[str] = None, name: Optional[str] = None,
                    key: Optional[str] = None, redirect: str = "follow", stream: bool = False) -> "Response":
        """HTTP by this worker, recorded. GET and HEAD are `read`; all other methods `at_most_once` unless `effect`
        states more. A `read` that is answered 408, 429 or 5xx, or not at all, is tried again by the engine, four times
        in all. Any other status is an answer.

        `redirect`: `follow` (at most 20, within the call), `manual` (the redirect is the answer), or `error` (it is
        recorded, and `ToolFailed` is raised with the code `http_302` or such). `stream`: the answer is given with the
        first text of an event stream or of JSON lines, and its body is read while it comes. Raises `InvalidInput`,
        `ToolFailed`."""
        from .http_calls import answered, fetch
        request: Request[Response] = fetch(self, url, method, headers, body, effect, name, key, redirect, stream)
        return answered(await request, redirect, request)

    def httpx(self, effect: Optional[str] = None) -> Any:
        """A transport for `httpx.AsyncClient(transport=ctx.httpx())`: each request is recorded, as by `fetch`."""
        from .httpx_transport import transport
        return transport(self, effect)


async def run_agent(routine: "Routine", fn: Body, input: Any) -> None:
    """The function of an async agent, to its end."""
    try:
        result = fn(routine.ctx, input)
        routine.finish(await result if hasattr(result, "__await__") else result)
    except GeneratorExit:
        raise
    except BaseException as error:
        routine.finish_with(error)


__all__ = ["Ctx", "Done", "Job", "Logger", "Model", "Next", "Race", "Requests", "Values", "given_to", "run_agent"]
