"""Routine: one running copy of an agent's function, for one job: its requests, its record, what is delivered to it, and
the advance that it makes (src/routines/native/execution.h is the same in C++).

  a request        matched with the record, or a part of the advance
  settled          the code has no more to run. Before the frontier the next recorded outcome is delivered. After it the
                   advance is sent, then the next outcome that has come is delivered: one at a time, in the order in
                   which they came.
  dropped          or diverged, or lost: nothing is delivered, and the code is evicted

What comes: durable outcomes from the server, successes of functions, and results of closed scopes. How the code runs is
the runner's: an agent loop, the worker's loop, or threads.
"""
import collections
import traceback
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from .canonical import blinded_hash, fresh, to_json
from .current import here, IN_FUNCTION
from .errors import Evicted, InvalidInput, ToolFailed, end_of, exception_text, failure_in, failure_text, where
from .job_tools import child_job_id, grant_of, grants
from .positions import Positions, joined
from .recorded_values import RecordedValues
from .redact import redactor
from .replay import Replay
from .request import SCOPES, Branch, ClosedScope, Made, is_stopped, settle
from .streams import BodyStream, RoutineStreams
from .values import steady

if TYPE_CHECKING:
    from .definitions import Agent

OPEN_REQUESTS_MAX = 10_000  # of one scope
OTHER_WORK_S = 10.0  # how long code of loop="host" may do other work before a recorded request counts as missing
_WITHDRAWN = ("withdrawn", None, None, None)  # of what arrived
_STEPS_MAX = 256  # deliveries of one routine in a turn of the worker


class Routine:
    def __init__(self, start: Dict[str, Any], agent: "Agent", host: Any, other_work_s: float = OTHER_WORK_S) -> None:
        """`host`: `loop`; `schedule(routine)` calls `step` soon; `send(message)`; `end_call(call, end)`, of a call that
        no advance has; `log(level, message)`; `post(function)` from any thread; `offers_tool(name)`. Raises ValueError:
        the record is not one."""
        self.number: int = start["routine"]
        self.start = start
        self.agent = agent
        self.host = host
        self.is_scheduled = False
        self.is_inert = False  # dropped, diverged or lost
        self.end: Optional[Dict[str, Any]] = None
        self._other_work_s = other_work_s
        record = {name: start["record"].get(name) or empty for name, empty in
                  (("requests", []), ("deliveries", []), ("values", {}), ("emitted", {}))}
        self._without_call: Set[str] = {  # recorded requests that wait to be admitted
            one["position"] for one in record["requests"]
            if one["kind"] in ("tool", "llm") and not one.get("arguments_hash")}
        self._ended_scopes: Set[str] = set()  # of the record
        for outcome in record["deliveries"]:
            if "passed_over" in outcome:
                continue
            self._without_call.discard(outcome["position"])
            if outcome.get("kind") in SCOPES:
                self._ended_scopes.add(outcome["position"])
        self._replay = Replay(record)
        self._positions = Positions()
        self._open: Dict[str, Made] = {}  # without an outcome, by position
        self._running: Dict[str, ClosedScope] = {}  # closed scopes whose bodies have not returned
        self._open_outside = 0  # of the open ones, in no closed scope
        # While code runs on threads, only append: another thread may, too.
        self._arrived: Deque[Tuple[str, Any, Any, Any]] = collections.deque()
        self._functions: List[Dict[str, Any]] = []  # of the next advance; so are the four below
        self._items: List[Dict[str, Any]] = []
        self._requests: List[Dict[str, Any]] = []
        self._cancelled: List[str] = []
        self._new_end: Optional[Dict[str, Any]] = None
        self._has_unsent_advance = False
        self._is_live = False  # it has been at the frontier
        self._is_stepping = False
        self._order = 0
        self.values = RecordedValues(self, self._replay)
        self.streams = RoutineStreams()
        self._other_work: Any = None  # a timer
        self._other_work_until: Optional[float] = None
        self.root = Branch()
        self.runner: Any = agent.runner(self)
        self.ctx: Any = agent.context(self)

    # ---------------------------------------------------------------- for the worker

    def begin(self) -> None:
        self.agent.begin(self)
        self._has_unsent_advance = True
        self.host.schedule(self)

    def deliver(self, outcomes: List[Dict[str, Any]]) -> None:
        if self.is_inert:
            return
        self._arrived.extend(("outcome", None, None, outcome) for outcome in outcomes)
        self.host.schedule(self)

    def function_at(self, position: str) -> Optional[Made]:
        """The request with the function that the code stated at this position; None: none, or it has its outcome."""
        request = self._open.get(position)
        return None if self.is_inert or request is None or request.fn is None else request

    def has_cancelled(self, position: str) -> bool:
        """Does the code not need the outcome of this request any more?"""
        request = self._open.get(position)
        return request is not None and request.is_cancelled

    def arguments_at(self, position: str) -> Optional[Dict[str, Any]]:
        """The arguments of the call that was requested at this position."""
        request = self._open.get(position)
        return None if request is None else request.args

    def on_success(self, call: int, position: str, end: Dict[str, Any]) -> bool:
        """Gives the routine the success of a call. False: it has an outcome already, or none is awaited, or the routine
        is given nothing before the end of a stream: then the server records it, and delivers it afterwards."""
        success = ("success", call, position, end)
        if not self.streams.on_success(call, end):
            if self.is_inert or not self._is_live or position not in self._open:
                return False
            at = self._arrived_at("stream", call)
            if self.streams.is_open:
                self.withdraw_stream(call)
                return False
            if at is None:
                self._arrived.append(success)
            else:
                self._arrived[at] = success
        self.host.schedule(self)
        return True

    def on_stream(self, call: int, position: str, stream: BodyStream) -> None:
        """Gives the routine the answer of a call while its body comes. Its success follows."""
        if not self.is_inert and self._is_live and position in self._open:
            self._arrived.append(("stream", call, position, stream))
            self.host.schedule(self)

    def withdraw_stream(self, call: int) -> None:
        """The stream has no end, and was not given."""
        at = self._arrived_at("stream", call)
        if at is not None:
            self._arrived[at] = _WITHDRAWN

    # Not by iteration: another thread may append.
    def _arrived_at(self, kind: str, call: int) -> Optional[int]:
        for at in range(len(self._arrived)):
            if self._arrived[at][:2] == (kind, call):
                return at
        return None

    def drop(self, reason: str) -> None:
        """Nothing is sent, and no request settles any more."""
        if not self.is_inert:
            self._become_inert(reason)
        self._end_calls()

    @property
    def is_replaying(self) -> bool:
        return not self._replay.is_at_frontier()

    def log(self, level: str, message: str) -> None:
        if not self.is_inert and not self.is_replaying:
            self.host.log(level, redactor.text(message))

    # ---------------------------------------------------------------- steps

    def step(self) -> None:
        """Called soon after `schedule`: runs the code, and delivers as long as something is there."""
        self.is_scheduled = False
        if self.is_inert or self._is_stepping:
            return
        self._is_stepping = True
        try:
            for _ in range(_STEPS_MAX):
                if not self.runner.settle():
                    return  # it schedules the next step when it has settled
                if self.is_inert:
                    return self.runner.evict()
                if not self._advance():
                    return
        finally:
            self._is_stepping = False
        self.host.schedule(self)

    # The code has settled. False: nothing was delivered.
    def _advance(self) -> bool:
        if not self._is_live:
            state = self._replay_next()
            if state != "frontier":
                return state == "delivered"
            self._is_live = True
            self._has_unsent_advance = True
        if self.streams.is_open:  # what follows from half an answer is not sent
            if self.streams.advance():
                self.runner.resumed()
                return True
            end = self.streams.take_end()
            if end is None:
                return False
            self._functions.append(end)
            self._has_unsent_advance = True
        if self._has_unsent_advance:
            self._seal()
        return self._give_next()

    # Delivers the next recorded outcome: "delivered", "waits" or "frontier".
    def _replay_next(self) -> str:
        replay = self._replay
        while True:
            missing = replay.find_missing(self.end is not None)
            if missing is not None:
                if self.end is not None or self.runner.is_exact:
                    self._diverge(missing)
                else:
                    self._await_other_work(self._other_work_s,
                                           lambda: self._diverge(replay.find_missing(False) or missing or {}))
                return "waits"
            self._stop_awaiting()
            if not replay.may_deliver():
                return "frontier"
            outcome = replay.deliver()
            if outcome.get("passed_over"):
                continue
            self._complete(outcome["position"], outcome)
            self.runner.resumed()
            return "delivered"

    # After the frontier. False: nothing has come.
    def _give_next(self) -> bool:
        while self._arrived:
            kind, call, position, given = self._arrived.popleft()
            if kind == "withdrawn" or kind == "stream" and not self._give_stream(call, position, given):
                continue
            self._has_unsent_advance = True
            self._other_work_until = None
            if kind == "outcome":
                self._replay.count += 1
                self._complete(given["position"], given)
            elif kind == "success":
                self._give_success(call, position, given)
            elif kind == "scope":
                self._give_scope(given)
            self.runner.resumed()
            return True
        return False

    # Only to code that awaits it. Else its success is given when it comes.
    def _give_stream(self, call: int, position: str, stream: BodyStream) -> bool:
        request = self._open.get(position)
        if request is None or request.is_cancelled or is_stopped(request.branch):
            return False
        if not self.streams.give(self, call, stream, self._replay.count):
            return False
        # The server records the successes that have come, and delivers them afterwards.
        for at in range(len(self._arrived)):
            kind, other, _, end = self._arrived[at]
            if kind == "success":
                self._arrived[at] = _WITHDRAWN
                self.host.end_call(other, end)
        self._replay.count += 1
        self._complete(position, {"result": stream})
        return True

    def _give_success(self, call: int, position: str, end: Dict[str, Any]) -> None:
        if position not in self._open:  # another outcome was delivered first
            return self.host.end_call(call, end)
        self._functions.append({"call": call, **end, "delivered": self._replay.count})
        self._replay.count += 1
        self._complete(position, {"result": fresh(end["result"])})

    def _give_scope(self, scope: ClosedScope) -> None:
        position = scope.position
        self._items.append({"kind": "scope_ended", "position": position, "delivered": self._replay.count, **scope.end})
        self._replay.count += 1
        # The values and names inside of an ended scope are not used any more.
        self._positions.forget_inside(position)
        self.values.forget(position)
        self._complete(position, fresh(scope.end))

    # No effect if the request is not open: it has an outcome, or was made in an ended scope.
    def _complete(self, position: str, outcome: Dict[str, Any]) -> None:
        request = self._open.get(position)
        if request is not None:
            settle(request, outcome)
            self._close(request)

    def _close(self, request: Made) -> None:
        del self._open[request.position]
        scope = request.closed
        if scope is None:
            self._open_outside -= 1
            return
        scope.open -= 1
        if scope.open == 0 and scope.has_returned and self.end is None:
            self._arrived.append(("scope", None, None, scope))

    def record(self, item: Dict[str, Any]) -> None:
        """Adds a value to the next advance."""
        self._items.append(item)
        self._touch()

    # The code did something.
    def _touch(self) -> None:
        self._has_unsent_advance = True
        self.runner.touched()

    def _seal(self) -> None:
        self._stop_awaiting()
        if self._new_end is not None:  # results of scopes are not delivered after the end
            self._arrived = collections.deque(one for one in self._arrived if one[0] != "scope")
        self._has_unsent_advance = False
        message: Dict[str, Any] = {"type": "advance", "routine": self.number, "delivered": self._replay.count}
        if self._functions:
            message["functions"], self._functions = self._functions, []
        if self._items:
            message["items"], self._items = self._items, []
        if self._requests:
            message["requests"], self._requests = self._requests, []
        if self._cancelled:
            cancelled = [position for position in self._cancelled if position in self._open]
            if cancelled:
                message["cancelled"] = cancelled
            self._cancelled = []
        if self._new_end is not None:
            message["end"], self._new_end = self._new_end, None
        if self._arrived:
            message["settled"] = False
        elif not self.runner.is_exact and self._does_other_work():
            now = steady()
            if self._other_work_until is None:
                self._other_work_until = now + self._other_work_s
            left = self._other_work_until - now
            if left > 0:
                message["settled"] = False
                self._await_other_work(left, self._touch)
        self.host.send(message)

    # Does the code await something that is not a request, for example a socket? Then nothing that comes can continue
    # it, and the server would take the job for stalled.
    def _does_other_work(self) -> bool:
        return self.end is None and not any(
            one.kind not in SCOPES and not one.is_cancelled and not is_stopped(one.branch) for one in self._open.values())

    def _await_other_work(self, seconds: float, then: Callable[[], None]) -> None:
        def later() -> None:
            self._other_work = None
            if not self.is_inert:
                then()
        if self._other_work is None:
            self._other_work = self.host.loop.call_later(seconds, later)

    def _stop_awaiting(self) -> None:
        if self._other_work is not None:
            self._other_work.cancel()
            self._other_work = None

    # ---------------------------------------------------------------- ends

    def finish(self, result: Any) -> None:
        """The code returned this."""
        try:
            self._finish({"result": redactor.value(to_json(result, f'the result of the agent "{self.agent.name}"'))})
        except InvalidInput as error:
            self.finish_with(error)

    def finish_with(self, error: BaseException) -> None:
        """The code ended with this exception."""
        if not self.is_inert and self.end is None:
            end = end_of(error)
            if "exception" in end:
                self._report(error)
            self._finish(end)

    def end_with_exception(self, error: BaseException) -> None:
        """The routine ends with this exception, whatever its code does."""
        if not self.is_inert and self.end is None:
            self._report(error)
            self._finish({"exception": exception_text(error)})

    def _report(self, error: BaseException) -> None:
        if self.start.get("check"):
            return  # the server shows it
        job = self.start["job"]["id"]
        then = "The job keeps its version" if self.start.get("trial") else \
            "The job fails" if self.agent.definition.get("on_exception") == "fail" else \
            f"The job parks. After the code is corrected: aetheris resume {job}"
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.host.log("error", redactor.text(f"job {job} (agent {self.agent.name}): an exception ended the code. {then}\n"
                                             f"{text.rstrip()}"))

    def _finish(self, end: Dict[str, Any]) -> None:
        if self.is_inert or self.end is not None:
            return
        self.end = self._new_end = end
        self._touch()

    def _diverge(self, divergence: Dict[str, Any], place: Optional[str] = None) -> None:
        message = {"type": "diverged", "routine": self.number, **divergence}
        for kind in ("exception", "failure"):
            if self.end is not None and kind in self.end:
                message["found"] = {kind: dict(self.end[kind])}
        if place is not None:
            message["where"] = place
        self.host.post(lambda: self.host.send(message))
        self._become_inert("diverged")

    def _become_inert(self, reason: str) -> None:
        self.is_inert = True
        self._stop_awaiting()
        self.host.post(self._end_calls)  # what arrives, arrives on the worker's thread
        waiting, self._open = list(self._open.values()), {}
        if not self.runner.is_exact:
            for request in waiting:
                request.stop()  # what awaits it on the worker's loop is cancelled
        self.runner.evict()

    # Successes that were not sent end their calls without the routine.
    def _end_calls(self) -> None:
        functions, self._functions = self._functions, []
        end = self.streams.take_end()
        self.streams.drop()
        functions.extend([] if end is None else [end])
        for function in functions:
            del function["delivered"]
            self.host.end_call(function.pop("call"), function)
        while self._arrived:
            kind, call, _, end = self._arrived.popleft()
            if kind == "success":
                self.host.end_call(call, end)

    # ---------------------------------------------------------------- calls of a ctx

    def check_call(self, ctx: Any) -> None:
        """May this ctx be used here? Raises Evicted: its code must not continue; InvalidInput, and ends the routine."""
        at = here.get()
        if not self.runner.is_inside(at):
            return self._refuse_context("ctx was used inside of a function or thread, which performs one call; return "
                                        "its result and use ctx after it")
        if self.is_inert or self.end is not None or is_stopped(ctx.branch):
            raise Evicted()
        if at is None or at is IN_FUNCTION or at.routine is not self or at.closed is ctx.closed:
            return
        self._refuse_context("the ctx of another scope was used inside of a closed scope; use the ctx that the scope "
                             "was given")

    def _refuse_context(self, message: str) -> None:
        error = InvalidInput(message, "wrong_context")

        def end() -> None:
            self.end_with_exception(error)
            self.host.schedule(self)
        self.host.post(end)
        raise error

    def request(self, ctx: Any, name: str, kind: str, tool: str, *, args: Optional[Dict[str, Any]] = None,
                fn: Any = None, wait: Optional[Dict[str, Any]] = None, key: Optional[str] = None,
                options: Optional[Dict[str, Any]] = None, by_content: bool = False,
                continues_when_expired: bool = False,
                convert: Optional[Callable[[Any], Any]] = None) -> Any:
        """A request of the code. Raises InvalidInput, Evicted."""
        self.check_call(ctx)
        is_call = kind != "wait"
        recorded = redactor.value(args or {})  # a stated function is given them as they are
        arguments_hash = None
        if is_call and not self.start.get("blind_erased") and (by_content or not self._is_live):
            arguments_hash = blinded_hash(self.start.get("blind") or "", recorded)
        if by_content and key is None:
            position = self._position_by_content(ctx.scope_name, name, arguments_hash)
        else:
            position = self._positions.next(ctx.scope_name, name, key)
        if is_call and not self._is_granted(tool):
            return self._refused(tool, position)
        made = self._add(ctx, position, kind, tool, arguments_hash, recorded, redactor.value(wait), options)
        if fn is not None:
            made.fn, made.args = fn, args or {}
        made.continues_when_expired = continues_when_expired
        made.convert = convert
        return made

    # `uses` of the definition, if it states any. Without it, the agents file of the server may grant tools.
    def _is_granted(self, tool: str) -> bool:
        uses = self.agent.definition.get("uses")
        return uses is None or tool.startswith("run:") or self.host.offers_tool(tool) or grants(uses, tool)

    def child_id(self, position: str) -> str:
        """Of the child job that is started at this position; empty: unknown."""
        steps = self.start.get("steps")
        return child_job_id(self.start["job"]["id"], steps, position) if steps else ""

    # A request that fails at once, and is not sent.
    def _refused(self, tool: str, position: str) -> Any:
        made: Any = self.runner.make_request()
        made.routine, made.position, made.tool = self, position, tool
        message = f'the agent "{self.agent.name}" may not call "{grant_of(tool)}": add it to `uses` of the agent\'s definition'
        made.fail(ToolFailed("tool_not_granted", message, tool, position))
        return made

    def _position_by_content(self, scope: str, name: str, arguments_hash: Optional[str]) -> str:
        if arguments_hash is not None:
            return self._positions.next(scope, name, content=arguments_hash[:16])
        # The blind is erased, so the hash cannot be computed again: the next of this name that the record has.
        recorded = self._replay.unmatched_with_prefix(f"{joined(scope, name)}~")
        return recorded or self._positions.next(scope, name, content=blinded_hash("erased", name)[:16])

    def _add(self, ctx: Any, position: str, kind: str, tool: str, arguments_hash: Optional[str] = None,
             args: Optional[Dict[str, Any]] = None, wait: Optional[Dict[str, Any]] = None,
             options: Optional[Dict[str, Any]] = None) -> Made:
        closed: Optional[ClosedScope] = ctx.closed
        if (self._open_outside if closed is None else closed.open) >= OPEN_REQUESTS_MAX:
            raise InvalidInput(f"a scope has at most {OPEN_REQUESTS_MAX} requests without an outcome; await some of "
                               "them first")
        is_call = kind == "tool" or kind == "llm"
        match = self._replay.match(position, kind, tool if is_call else None, arguments_hash,
                                   None if wait is None else wait["type"])
        if match == "diverged":
            self._diverge(self._replay.divergence or {}, where())
            raise Evicted()
        if kind in SCOPES:
            if match == "new":
                begun = {"kind": "scope_begun", "position": position, "delivered": self._replay.count}
                if kind == "turn":
                    begun["turn"] = True
                self._items.append(begun)
        elif match == "new" or position in self._without_call:
            request: Dict[str, Any] = {"position": position, "kind": kind, "delivered": self._replay.count}
            if is_call:
                request["tool"] = tool
                request["arguments"] = args
            if options:
                request["options"] = options
            if wait is not None:
                request["wait"] = wait
            self._requests.append(request)
        made: Made = self.runner.make_request()
        made.routine = self
        made.position = position
        made.kind = kind
        made.tool = tool
        made.fn = None
        made.args = args or {}
        made.closed = closed
        made.branch = ctx.branch
        made.continues_when_expired = False
        made.convert = None
        made.is_cancelled = False
        made.body = None
        made.cancels_body = False
        self._open[position] = made
        if closed is None:
            self._open_outside += 1
        else:
            closed.open += 1
        self._touch()
        return made

    def cancel(self, request: Made, reason: Optional[str]) -> bool:
        """The code does not need this outcome any more. False: it has it."""
        if self.is_inert or self.end is not None or is_stopped(request.branch):
            return request.stop(reason)
        if request.kind in SCOPES:
            request.cancels_body = True
            if request.body is not None and request.body.stop_body is not None:
                request.body.stop_body()
            return True
        self._cancel_open(request)
        return request.stop(reason)

    # No effect if it has an outcome, or was cancelled before.
    def _cancel_open(self, request: Made) -> None:
        position = request.position
        if request.is_cancelled or self._open.get(position) is not request:
            return
        request.is_cancelled = True
        unsent = [i for i, made in enumerate(self._requests) if made["position"] == position]
        for i in unsent:
            del self._requests[i]
        if unsent and position not in self._without_call:
            self._close(request)  # as if it had not been made
        else:
            self._cancelled.append(position)
        self._touch()

    def next_order(self) -> int:
        """Numbers the outcomes that the code was given."""
        self._order += 1
        return self._order

    # ---------------------------------------------------------------- scopes and branches

    def open_scope(self, ctx: Any, name: str) -> str:
        """The scope of a map, a race or a scope that is not closed."""
        self.check_call(ctx)
        return self._positions.open_scope(ctx.scope_name, name)

    def begin_scope(self, ctx: Any, name: str, number: Optional[int]) -> Tuple[Any, Optional[ClosedScope]]:
        """The request of a closed scope, and the scope; None: its result is recorded, and its body does not run."""
        self.check_call(ctx)
        return self._begin_closed(ctx, self._positions.closed_scope(ctx.scope_name, name, number), "scope")

    def begin_loop(self, ctx: Any, name: str) -> Tuple[str, int]:
        """The position of a loop, and the number of the turn with which this routine begins."""
        self.check_call(ctx)
        loop = self._positions.loop(ctx.scope_name, name)
        return loop, self._replay.first_turn(loop)

    def begin_turn(self, ctx: Any, loop: str, number: int) -> Tuple[Any, Optional[ClosedScope]]:
        """As begin_scope."""
        self.check_call(ctx)
        return self._begin_closed(ctx, joined(loop, number), "turn")

    def _begin_closed(self, ctx: Any, position: str, kind: str) -> Tuple[Any, Optional[ClosedScope]]:
        request = self._add(ctx, position, kind, kind)
        if position in self._ended_scopes:
            return request, None
        closed = ClosedScope(position, Branch(ctx.branch))
        request.body = closed
        self.runner.begin_scope(closed)
        self._running[position] = closed
        return request, closed

    def end_scope(self, closed: ClosedScope, result: Any) -> None:
        """The body returned this."""
        try:
            self._end_scope(closed, {"result": redactor.value(
                to_json(result, f'the result of the scope "{closed.position}"'))})
        except InvalidInput as error:
            self.end_scope_with(closed, error)

    def end_scope_with(self, closed: ClosedScope, error: BaseException) -> None:
        """The body ended with this exception. What a scope returns is recorded. An exception that is not a failure is
        not a result, so the code ends with it."""
        failure = failure_in(error)
        if failure:
            self._end_scope(closed, {"failure": failure_text(failure)})
        elif not is_stopped(closed.branch):
            self.end_with_exception(error)

    def _end_scope(self, closed: ClosedScope, end: Dict[str, Any]) -> None:
        if self.is_inert or self.end is not None or closed.has_returned:
            return
        self._running.pop(closed.position, None)
        closed.end = end
        closed.branch.is_stopped = True  # nothing of it continues
        self._end_stopped(("wait",))
        closed.has_returned = True
        if closed.open == 0:
            self._arrived.append(("scope", None, None, closed))
        self._touch()

    def stop_branches(self, branches: List[Branch]) -> None:
        """Stops these branches: they make no further requests, and those without an outcome are cancelled."""
        if self.is_inert or self.end is not None:
            return
        for branch in branches:
            branch.is_stopped = True
        self._end_stopped(("wait", "tool", "llm"))

    # Cancels these kinds of requests of stopped branches. Their closed scopes end here.
    def _end_stopped(self, kinds: Tuple[str, ...]) -> None:
        for request in list(self._open.values()):
            if is_stopped(request.branch):
                if request.kind in kinds:
                    self._cancel_open(request)
                request.stop()
        for closed in list(reversed(self._running.values())):
            if is_stopped(closed.branch):
                failure = {"code": "evicted", "message": "this branch is not needed any more"}
                self._end_scope(closed, {"failure": failure})
