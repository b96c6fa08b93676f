"""map, race, loop and closed scopes of async agents: branches of a routine, each in a scope of its own.

They are pure over what is delivered: nothing of them is recorded but what their branches request, and the results of
closed scopes.
"""
import asyncio
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .canonical import to_json
from .current import here
from .errors import InvalidInput, failure_in, failure_text
from .positions import check_name, joined
from .request import Branch, is_stopped

if TYPE_CHECKING:
    from .context import Ctx

BRANCHES_MAX = 64  # of a race; items of a map at a time


async def closed(ctx: "Ctx", name: str, number: Optional[int], fn: Callable[..., Any], *args: Any) -> Any:
    """A closed scope."""
    return await run_closed(ctx, ctx.routine.begin_scope(ctx, name, number), fn, *args)


async def run_closed(ctx: "Ctx", begun: Tuple[Any, Any], fn: Callable[..., Any], *args: Any) -> Any:
    """Runs the body of a closed scope, unless its result is recorded."""
    routine = ctx.routine
    request, scope = begun
    if scope is not None:
        inner = type(ctx)(routine, scope.position, scope, scope.branch)

        async def body() -> None:
            try:
                result = await inner.enter(fn, *args)
            except GeneratorExit:
                raise
            except BaseException as error:
                routine.end_scope_with(scope, error)
            else:
                routine.end_scope(scope, result)
        before = here.get()
        here.set(inner)  # the task belongs to the scope
        scope.stop_body = routine.runner.loop.create_task(body()).cancel
        here.set(before)
    return await request


def check_map(name: str, parallel: Any, on_error: str) -> None:
    if not isinstance(parallel, int) or not 1 <= parallel <= BRANCHES_MAX:
        raise InvalidInput(f'ctx.map("{name}"): parallel is 1 to {BRANCHES_MAX}, not {parallel}')
    if on_error not in ("fail", "collect"):
        raise InvalidInput(f'ctx.map("{name}"): on_error is fail or collect, not "{on_error}"')


def check_race(name: str, branches: Mapping[str, Any], losers: str) -> None:
    if not 1 <= len(branches) <= BRANCHES_MAX:
        raise InvalidInput(f'ctx.race("{name}"): a race has 1 to {BRANCHES_MAX} branches')
    if losers not in ("cancel", "go_on"):
        raise InvalidInput(f'ctx.race("{name}"): losers is cancel or go_on, not "{losers}"')
    for branch in branches:
        check_name(branch, f'a branch of ctx.race("{name}")')


async def map_items(ctx: "Ctx", name: str, items: Sequence[Any], fn: Callable[..., Any], parallel: int, on_error: str,
                    fold: bool) -> List[Any]:
    routine = ctx.routine
    check_map(name, parallel, on_error)
    routine.check_call(ctx)
    scope = "" if fold else routine.open_scope(ctx, name)
    listed = list(items)
    results: List[Any] = [None] * len(listed)
    running: Dict[int, Tuple[Branch, "asyncio.Task[None]"]] = {}
    workers: "List[asyncio.Task[None]]" = []
    state = {"next": 0, "left": min(parallel, len(listed)), "has_failed": False, "is_cancelled": False}
    ended: "asyncio.Future[None]" = routine.runner.loop.create_future()

    async def work(number: int) -> None:
        while state["next"] < len(listed) and not state["has_failed"]:
            index = state["next"]
            state["next"] += 1
            # The scope of an item can be stopped from outside of it.
            outer = ctx.inner(ctx.scope_name if fold else joined(scope, index))
            running[index] = (outer.branch, workers[number])
            try:
                if fold:
                    results[index] = await closed(outer, name, index, fn, listed[index], index)
                else:
                    results[index] = await outer.enter(fn, listed[index], index)
            except BaseException as error:
                failure = failure_in(error)
                if state["has_failed"] or state["is_cancelled"] or is_stopped(outer.branch):
                    raise
                if on_error == "collect" and failure:
                    results[index] = {"error": failure_text(failure)}
                else:
                    state["has_failed"] = True
                    others = [one for at, one in running.items() if at != index]
                    routine.stop_branches([branch for branch, _ in others])
                    for _, task in others:
                        task.cancel()
                    raise
            del running[index]

    async def run(number: int) -> None:
        try:
            await work(number)
        except GeneratorExit:
            raise
        except BaseException as error:
            if not ended.done():
                ended.set_exception(error)
        else:
            state["left"] -= 1
            if state["left"] == 0 and not ended.done():
                ended.set_result(None)

    for number in range(state["left"]):
        workers.append(routine.runner.loop.create_task(run(number)))
    if workers:
        await _awaited(ended, workers, lambda: state.update(is_cancelled=True))
    return results


async def _awaited(ended: "asyncio.Future[Any]", tasks: "Iterable[asyncio.Task[None]]",
                   on_cancel: Callable[[], None] = lambda: None) -> Any:
    """The end of branches. If the code that awaits it is cancelled, so are the branches."""
    try:
        return await ended
    except asyncio.CancelledError:
        if not ended.done() or ended.cancelled():  # else it is the end of a branch
            on_cancel()
            for task in tasks:
                task.cancel()
        raise


async def race(ctx: "Ctx", name: str, branches: Mapping[str, Callable[..., Any]], losers: str) -> Tuple[str, Any]:
    routine = ctx.routine
    check_race(name, branches, losers)
    scope = routine.open_scope(ctx, name)
    contexts = {branch: ctx.inner(joined(scope, branch)) for branch in branches}
    tasks: "Dict[str, asyncio.Task[None]]" = {}
    decided: "asyncio.Future[Tuple[str, Any]]" = routine.runner.loop.create_future()

    def decide(won: str) -> bool:
        if decided.done():
            return False
        if losers == "cancel":
            routine.stop_branches([context.branch for branch, context in contexts.items() if branch != won])
            for branch, task in tasks.items():
                if branch != won:
                    task.cancel()
        return True

    async def run(branch: str) -> None:
        if decided.done() and losers == "cancel":
            return  # a branch can end while others begin
        try:
            value = await contexts[branch].enter(branches[branch])
        except GeneratorExit:
            raise
        except BaseException as error:
            if decide(branch):
                decided.set_exception(error)
        else:
            if decide(branch):
                decided.set_result((branch, value))

    for branch in branches:
        tasks[branch] = routine.runner.loop.create_task(run(branch))
    return await _awaited(decided, tasks.values())


def turn_of(name: str, turn: Any) -> Dict[str, Any]:
    """What a turn of a loop returned, in the form that is recorded."""
    from .context import Done, Next
    if isinstance(turn, Next):
        return {"next": turn.state}
    if isinstance(turn, Done):
        return {"done": turn.result}
    if isinstance(turn, dict) and ("done" in turn or "next" in turn):
        return {"done": turn["done"]} if "done" in turn else {"next": turn["next"]}
    raise InvalidInput(f'ctx.loop("{name}"): a turn returns Next(state) or Done(result)')


async def repeat(ctx: "Ctx", name: str, state: Any, fn: Callable[..., Any]) -> Any:
    at = to_json(state, f'the state of the loop "{name}"')
    loop, index = ctx.routine.begin_loop(ctx, name)

    async def turn(inner: "Ctx", given: Any, number: int) -> Dict[str, Any]:
        result = fn(inner, given, number)
        return turn_of(name, await result if hasattr(result, "__await__") else result)

    while True:
        end = await run_closed(ctx, ctx.routine.begin_turn(ctx, loop, index), turn, at, index)
        if "done" in end:
            return end["done"]
        at = end["next"]
        index += 1
