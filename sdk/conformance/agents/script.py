"""script: the agent of the conformance scenarios, which interprets a program with the primitives
of the SDK.

SCRIPT_KIND is `async` (the default), `host` or `sync`. The interpreter is written once, as a coroutine: in a sync
agent, what it awaits blocks, so it never suspends.
"""
import asyncio
import json
import os
import urllib.request

from aetheris import Cancelled, Failure, NotDone, ToolFailed, agent, tool
from aetheris.canonical import canonical, fresh

SHOP = os.environ.get("AETHERIS_SHOP", "")
KIND = os.environ.get("SCRIPT_KIND") or "async"
NAMES = ("key", "name")
OPTIONS = NAMES + ("timeout", "retry", "on_in_doubt")


class WrongProgram(Exception):
    pass


# ---------------------------------------------------------------- values

def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def joined_text(given):
    for one in given:
        if not is_number(one) and not isinstance(one, str):
            raise WrongProgram(f"$cat of {one!r}")
    return "".join(one if isinstance(one, str) else canonical(one) for one in given)


def total(given):
    if not all(map(is_number, given)):
        raise WrongProgram("$add needs two numbers")
    return given[0] + given[1]


def is_less(a, b):
    if not (is_number(a) and is_number(b)) and not (isinstance(a, str) and isinstance(b, str)):
        raise WrongProgram("$lt needs two numbers or two texts")
    return a < b


def size(value):
    if not isinstance(value, (str, list, dict)):
        raise WrongProgram("$len needs a text, a list or an object")
    return len(value)


def is_true(value):
    return value is not None and value is not False


EXPRESSIONS = {
    "$cat": joined_text, "$add": total, "$eq": lambda given: canonical(given[0]) == canonical(given[1]),
    "$lt": lambda given: is_less(*given), "$le": lambda given: not is_less(given[1], given[0]),
    "$and": lambda given: all(map(is_true, given)), "$or": lambda given: any(map(is_true, given)),
    "$append": lambda given: [*given[0], given[1]]}
UNARY = {"$len": size, "$not": lambda value: not is_true(value)}


class Scope:
    """What the code of a body sees."""

    def __init__(self, ctx, variables, own, requests):
        self.ctx = ctx
        self.variables = variables  # shared by branches
        self.own = own  # of the body: item, index, state
        self.requests = requests

    def inside(self, ctx, is_closed, **own):
        """What the body of a scope sees. A closed one has its own variables."""
        return Scope(ctx, fresh(self.variables) if is_closed else self.variables, {**self.own, **own},
                     {} if is_closed else self.requests)

    def variable(self, path):
        name, *rest = path.split(".")
        at = self.own[name] if name in self.own else self.variables.get(name)
        for part in rest:
            if isinstance(at, list):
                at = at[int(part)] if part.isdigit() and int(part) < len(at) else None
            else:
                at = at.get(part) if isinstance(at, dict) else None
        return fresh(at)

    def value(self, expression):
        if isinstance(expression, list):
            return [self.value(item) for item in expression]
        if not isinstance(expression, dict):
            return expression
        name = next(iter(expression), "")
        if len(expression) != 1 or not name.startswith("$"):
            return {member: self.value(inner) for member, inner in expression.items()}
        inner = expression[name]
        if name == "$quote":
            return fresh(inner)
        if name == "$var":
            return self.variable(inner)
        if name in UNARY:
            return UNARY[name](self.value(inner))
        if name not in EXPRESSIONS or not isinstance(inner, list):
            raise WrongProgram(f"{name} of {inner!r}")
        return EXPRESSIONS[name]([self.value(item) for item in inner])


# ---------------------------------------------------------------- functions

def perform(args, call):
    body = json.dumps({"key": call.key, "try": call.try_, "label": args["label"], "value": args["value"]}).encode()
    request = urllib.request.Request(f"{SHOP}/perform", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
    does = args["does"]
    act = does[min(call.try_, len(does)) - 1] if does else {}
    if "slow_ms" in act and call.signal.wait(act["slow_ms"] / 1000):
        raise RuntimeError("the call was cut off")
    if act.get("hang"):
        call.signal.wait()
        raise RuntimeError("the call was cut off")
    if "fail" in act:
        code, message = act["fail"], act.get("message", act["fail"])
        if act.get("retryable"):
            raise NotDone(code, message, retryable=True, retry_after_ms=act.get("retry_after_ms"))
        raise Failure(code, message)
    if "throw" in act:
        raise RuntimeError(act["throw"])
    if "result" in act:
        return act["result"]
    return float("nan") if act.get("invalid") else args["value"]


# ---------------------------------------------------------------- async and sync

class Blocking:
    """Awaits what blocks, in a sync agent."""

    def __init__(self, result):
        self._result = result

    def __await__(self):
        return self._result()
        yield


def driven(coroutine):
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise WrongProgram("the coroutine of a sync agent awaits something")


class SyncBranches:
    """The scopes and branches of a SyncCtx, for coroutines."""

    def __init__(self, ctx):
        self.ctx = ctx

    def body(self, fn):
        return lambda inner, *args: driven(fn(inner, *args))

    def scope(self, name, fn, **options):
        return Blocking(lambda: self.ctx.scope(name, self.body(fn), **options))

    def map(self, name, items, fn, **options):
        return Blocking(lambda: self.ctx.map(name, items, self.body(fn), **options))

    def loop(self, name, state, fn):
        return Blocking(lambda: self.ctx.loop(name, state, self.body(fn)))

    def race(self, name, branches, **options):
        bodies = {branch: self.body(fn) for branch, fn in branches.items()}
        return Blocking(lambda: self.ctx.race(name, bodies, **options))

    def fetch(self, url, **options):
        return Blocking(lambda: self.ctx.fetch(url, **options))


def branches_of(ctx):
    return SyncBranches(ctx) if KIND == "sync" else ctx


def requests_of(ctx):
    return ctx.later if KIND == "sync" else ctx


async def outcome(request, reason=None):
    if KIND == "sync":
        return await Blocking(request.result)
    try:
        return await request
    except asyncio.CancelledError:
        if request.cancelled():  # the request, and not the code that awaits it
            raise Cancelled(request.tool, request.position, reason) from None
        raise


# ---------------------------------------------------------------- requests

def picked(op, names):
    return {name: op[name] for name in names if name in op}


def evaluated(op, scope, names):
    return {name: scope.value(op[name]) for name in names if name in op}


def duration(value):
    return value / 1000 if is_number(value) else value  # numbers of a program are milliseconds


def arguments_of(op, scope, label):
    does = op.get("does", [{}])
    return {"label": op.get("label", label), "value": scope.value(op.get("value")),
            "does": does if isinstance(does, list) else [does]}


def expiring(op):
    return {"expires": duration(op["expires"])} if "expires" in op else {}


def request(op, scope):
    """Makes one request."""
    ctx, name = requests_of(scope.ctx), op["op"]
    if name == "run":
        return ctx.run(op["name"], op["effect"], perform, args=arguments_of(op, scope, op["name"]),
                       **picked(op, [one for one in OPTIONS if one != "name"]))
    if name == "call":
        return ctx.call(op["tool"], arguments_of(op, scope, op["tool"]), **picked(op, OPTIONS))
    if name == "model":
        model, prompt = ctx.model(op["model"]), scope.value(op["prompt"])
        options = picked(op, OPTIONS)
        return model.json(prompt, op["schema"], **options) if "schema" in op else model.text(prompt, **options)
    if name == "sleep":
        return ctx.sleep(duration(op["for"]), **picked(op, NAMES))
    if name == "until":
        return ctx.until(scope.value(op["at"]), **picked(op, NAMES))
    if name == "wait":
        return ctx.wait(op["type"], **evaluated(op, scope, ("wait_key", "data")), **expiring(op),
                        **picked(op, ("on_expire", "answer", "question", *NAMES)))
    if name == "approval":
        return ctx.approval(scope.value(op["question"]), **evaluated(op, scope, ("data", "wait_key")), **expiring(op),
                            **picked(op, NAMES))
    if name == "start":
        return ctx.start(op["agent"], {"program": op["program"], "data": scope.value(op.get("data"))},
                         **picked(op, ("detached", *NAMES)))
    if name == "send":
        to = {"channel": op["channel"]} if "channel" in op else {"key": op["to_key"]}
        return ctx.send(scope.value(op["job"]), to, scope.value(op.get("value")), **picked(op, NAMES))
    if name == "receive":
        return ctx.receive(op["channel"], **expiring(op), **picked(op, NAMES))
    raise WrongProgram(f'there is no operation "{name}"')


# ---------------------------------------------------------------- operations: (value, has the body returned?)

async def body(op, scope):
    return (await execute(op, scope))[0]


async def run_seq(op, scope):
    last = (None, False)
    for one in op["do"]:
        last = await execute(one, scope)
        if last[1]:
            break
    return last


async def run_all(op, scope):
    if KIND != "sync":
        return await asyncio.gather(*[body(branch, scope) for branch in op["branches"]]), False
    made = [request(branch, scope) for branch in op["branches"]]
    return await Blocking(lambda: scope.ctx.gather(made)), False


async def run_first(op, scope):
    tasks = [asyncio.ensure_future(body(branch, scope)) for branch in op["branches"]]
    for first in asyncio.as_completed(tasks):
        return await first, False


async def run_race(op, scope):
    branches = {name: lambda ctx, branch=branch: body(branch, scope.inside(ctx, False))
                for name, branch in op["branches"].items()}
    won, value = await branches_of(scope.ctx).race(op["name"], branches, **picked(op, ("losers",)))
    return {"won": won, "value": value}, False


async def run_scope(op, scope):
    fold = op.get("fold") is True
    return await branches_of(scope.ctx).scope(
        op["name"], lambda ctx: body(op["do"], scope.inside(ctx, fold)), **picked(op, ("fold",))), False


async def run_map(op, scope):
    fold, item, index = op.get("fold") is True, op.get("item", "item"), op.get("index", "index")
    return await branches_of(scope.ctx).map(
        op["name"], scope.value(op["items"]),
        lambda ctx, given, at: body(op["do"], scope.inside(ctx, fold, **{item: given, index: at})),
        **picked(op, ("parallel", "on_error", "fold"))), False


async def run_loop(op, scope):
    return await branches_of(scope.ctx).loop(
        op["name"], scope.value(op["state"]),
        lambda ctx, state, index: body(op["do"], scope.inside(ctx, True, state=state, index=index))), False


async def run_fetch(op, scope):
    more = {"body": json.dumps(scope.value(op["body"])), "headers": {"content-type": "application/json"}} \
        if "body" in op else {}
    answer = await branches_of(scope.ctx).fetch(
        SHOP + scope.value(op["path"]), **more, **picked(op, ("method", "effect", "name", "key")))
    return {"status": answer.status, "body": answer.json() if answer.body else None}, False


async def run_later(op, scope):
    scope.requests[op["request"]] = [request(op["do"], scope), None]
    return None, False


async def run_await(op, scope):
    return await outcome(*scope.requests[op["request"]]), False


async def run_cancel(op, scope):
    named = scope.requests[op["request"]]
    if named[0].cancel(op.get("reason")):
        named[1] = op.get("reason")
    return None, False


async def run_try(op, scope):
    try:
        return await execute(op["do"], scope)
    except (Failure, ToolFailed) as error:
        scope.variables[op.get("error", "error")] = {"code": error.code, "message": str(error)}
    return await execute(op["catch"], scope)


async def run_throw(op, scope):
    message = op.get("message", op.get("code"))
    raise RuntimeError(message) if op.get("exception") else Failure(op["code"], message)


async def run_raw(op, scope):
    for _ in range(op.get("turns", 1) if KIND != "sync" else 0):
        await asyncio.sleep(0)
    return None, False


async def run_set(op, scope):
    value = scope.value(op["value"])
    scope.variables[op["var"]] = value
    return value, False


async def run_if(op, scope):
    chosen = op["then"] if is_true(scope.value(op["cond"])) else op.get("else")
    return (None, False) if chosen is None else await execute(chosen, scope)


SIMPLE = {
    "now": lambda op, scope: round(scope.ctx.now().timestamp() * 1000), "random": lambda op, scope: scope.ctx.random(),
    "uuid": lambda op, scope: str(scope.ctx.uuid()), "patched": lambda op, scope: scope.ctx.patched(op["id"]),
    "emit": lambda op, scope: scope.ctx.emit(op["name"], scope.value(op["value"])),
    "publish": lambda op, scope: scope.ctx.publish(op["name"], scope.value(op["value"])),
    "child_id": lambda op, scope: scope.requests[op["request"]][0].id, "job_id": lambda op, scope: scope.ctx.job.id,
    "get": lambda op, scope: scope.value(op["value"]),
    "job": lambda op, scope: {"agent": scope.ctx.job.agent, "labels": scope.ctx.job.labels}}
OPERATIONS = {
    "seq": run_seq, "all": run_all, "first": run_first, "race": run_race, "scope": run_scope, "map": run_map,
    "loop": run_loop, "fetch": run_fetch, "later": run_later, "await": run_await, "cancel": run_cancel, "try": run_try,
    "throw": run_throw, "raw": run_raw, "set": run_set, "if": run_if}


async def execute(op, scope):
    name = op["op"]
    if name == "return":
        end = (scope.value(op["value"]), True)
    elif name in SIMPLE:
        end = (SIMPLE[name](op, scope), False)
    elif name in OPERATIONS:
        end = await OPERATIONS[name](op, scope)
    else:
        end = (await outcome(request(op, scope)), False)
    if "as" in op:
        scope.variables[op["as"]] = fresh(end[0])
    return end


async def script(ctx, input):
    return await body(input["program"], Scope(ctx, {"input": input.get("data")}, {}, {}))


def sync_script(ctx, input):
    return driven(script(ctx, input))


# ---------------------------------------------------------------- what the worker offers

TOOLS = []
for _name, _effect in (("read", "read"), ("idempotent", "idempotent"), ("once", "at_most_once")):
    _retry = {"max_attempts": 3, "initial_backoff": "10ms",
              "retry_on": ["connect", *([] if _name == "once" else ["timeout", "worker_lost"]), "busy"]}
    TOOLS.append(tool(f"worker_{_name}", effect=_effect, timeout="10s", retry=_retry)(perform))
USES = [f"{by}_{name}" for by in ("worker", "server") for name in ("read", "idempotent", "once")] \
    + ["model:main", "server_child", "agent:script", "agent:nowhere", "job:send"]
AGENTS = [
    agent(name, version="1", uses=USES, on_exception=on_exception, loop="host" if KIND == "host" else "agent")(
        sync_script if KIND == "sync" else script)
    for name, on_exception in (("script", "park"), ("script_fails", "fail"))]
