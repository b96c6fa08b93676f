"""Random programs by seed: joins, races, maps, closed scopes, loops, values and waits, whose branches share a variable that
every request contains. Crashes come at random moments. A new routine makes the same requests again, and the log of a job
gives the same end whenever it is replayed.

AETHERIS_SEED=N repeats one seed; AETHERIS_PROGRAMS=N runs N of them.
"""
import asyncio
import hashlib
import json
import os
import sys
import unittest

from aetheris import Done, Next, ToolFailed
from aetheris.canonical import canonical
from aetheris.definitions import Agent
from aetheris.routine import Routine

from .support.engine import Engine
from .support.harness import Dice, Host, call_function

EFFECTS = ["read", "idempotent", "at_most_once", "read"]


class Maker:
    """Makes a program: lists of [act, name, kind, blocks]."""

    def __init__(self, dice):
        self.dice, self.requests, self.scopes = dice, 0, 0

    def block(self, depth):
        made = []
        for _ in range(1 + self.dice.below(3)):
            if self.requests < 16:
                made.append(self.statement(depth))
        return made

    def statement(self, depth):
        dice = self.dice
        n = dice.below(14 if depth == 0 else 30)
        name, kind = f"n{dice.below(2)}", dice.below(4)
        acts = ["run"] * 6 + ["call"] * 2 + ["wait", "cancel", "value", "patch", "emit", "timeout"]
        if n < 14:
            act = acts[n]
            if act in ("run", "call", "wait", "cancel", "timeout"):
                self.requests += 1
            return [act, name, kind, []]
        act = ["all", "all", "race", "ctx_race", "map", "map", "scope", "scope", "loop", "all", "race", "ctx_race",
               "timed_scope", "timed_block", "background", "timed_race"][n - 14]
        is_scope = act in ("scope", "loop", "timed_scope", "timed_block", "background")
        # A closed scope is used once, and so is a map of closed scopes.
        if is_scope or act == "map" and kind == 0:
            self.scopes += 1
            name = f"s{self.scopes}"
        else:
            name = f"b{dice.below(2)}"
        branches = 1 if is_scope or act == "map" else 2 + dice.below(2)
        return [act, name, kind, [self.block(depth - 1) for _ in range(branches)]]


def mixed(x, by):
    return hashlib.sha256(f"{x} {canonical(by)}".encode()).hexdigest()[:12]


async def outcome_of(made):
    try:
        return await made
    except ToolFailed as error:
        return {"failed": error.code}


# In a closed scope `shared` is a variable of the scope, and the outer ones are only read.
async def run_block(ctx, block, shared, outer):
    for statement in block:
        result = await run_statement(ctx, statement, shared, outer)
        shared["x"] = mixed(shared["x"], result)
    return shared["x"]


async def run_statement(ctx, statement, shared, outer):
    act, name, kind, blocks = statement
    args = {"x": shared["x"], "outer": [one["x"] for one in outer]}

    def inner(block, at):
        return run_block(at, block, shared, outer)

    def closed(block, at):
        return run_block(at, block, {"x": "local"}, [*outer, shared])
    if act == "run":
        return await outcome_of(ctx.run(name, EFFECTS[kind], lambda given: mixed("run", given), args=args))
    if act == "call":
        return await outcome_of(ctx.call("look", args, name=name))
    if act == "wait":
        if kind == 0:
            return await outcome_of(ctx.sleep("20s", name=name))
        if kind == 1:
            return await outcome_of(ctx.receive("c", name=name))
        return await outcome_of(ctx.wait("signal", name=name, expires="60s", on_expire="continue"))
    if act == "cancel":
        made = ctx.call("look", args, name=f"d{name}") if kind % 2 else ctx.wait("signal", name=name)
        if kind < 2:
            await outcome_of(ctx.run(f"c{name}", "read", lambda: kind, args=args))
        made.cancel()
        return made.cancelled()
    if act == "timeout":
        try:
            return await asyncio.wait_for(outcome_of(ctx.call("look", args, name=name)), 5)
        except asyncio.TimeoutError:
            return "timeout"
    if act == "value":
        return [int(ctx.now().timestamp() * 1000), ctx.random(), str(ctx.uuid())][:kind + 1][-1]
    if act == "patch":
        return ctx.patched(f"p{kind % 2}")
    if act == "emit":
        ctx.emit(name, args)
        return None
    if act == "all":
        return await asyncio.gather(*[inner(block, ctx) for block in blocks])
    if act == "race":  # the losers go on
        if kind == 0:
            for made in asyncio.as_completed([inner(block, ctx) for block in blocks]):
                return await made
        tasks = [asyncio.ensure_future(inner(block, ctx)) for block in blocks]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in done]
    if act == "ctx_race":
        branches = {f"r{i}": lambda at, block=block: inner(block, at) for i, block in enumerate(blocks)}
        won = await ctx.race(name, branches, losers="go_on" if kind == 0 else "cancel")
        return {"won": won.won, "value": won.value}
    if act == "map":
        fold = kind == 0
        return await ctx.map(name, [1, 2, 3], lambda at, item, i: (closed if fold else inner)(blocks[0], at),
                             parallel=1 + kind % 3, fold=fold)
    if act == "scope":
        return await ctx.scope(name, lambda at: closed(blocks[0], at), fold=True)
    if act == "background":  # nothing awaits it
        asyncio.ensure_future(ctx.scope(name, lambda at: run_block(at, blocks[0], {"x": "own"}, [*outer, shared])))
        return None
    if act in ("timed_scope", "timed_block", "timed_race"):
        async def timed():
            if act == "timed_scope":
                return await ctx.scope(name, lambda at: closed(blocks[0], at), fold=True)
            if act == "timed_block":
                return await ctx.scope(name, lambda at: inner(blocks[0], at))
            return list(await ctx.race(name, {f"r{i}": lambda at, block=block: inner(block, at)
                                              for i, block in enumerate(blocks)}))
        try:
            return await asyncio.wait_for(timed(), 5)
        except asyncio.TimeoutError:
            return "timeout"

    async def turn(at, state, i):
        following = {"x": state["x"]}
        await run_block(at, blocks[0], following, [*outer, shared])
        return Next(following) if i < kind % 3 else Done(following["x"])
    return await ctx.loop(name, {"x": "begin"}, turn)


# The same in a sync agent. `all` and `race` are branches of ctx.map and ctx.race, which have scopes of their own.

def sync_outcome(make):
    try:
        return make()
    except ToolFailed as error:
        return {"failed": error.code}


def sync_block(ctx, block, shared, outer):
    for statement in block:
        result = sync_statement(ctx, statement, shared, outer)
        shared["x"] = mixed(shared["x"], result)
    return shared["x"]


def sync_statement(ctx, statement, shared, outer):
    act, name, kind, blocks = statement
    args = {"x": shared["x"], "outer": [one["x"] for one in outer]}

    def inner(block, at):
        return sync_block(at, block, shared, outer)

    def closed(block, at):
        return sync_block(at, block, {"x": "local"}, [*outer, shared])
    if act == "run":
        return sync_outcome(lambda: ctx.run(name, EFFECTS[kind], lambda given: mixed("run", given), args=args))
    if act in ("call", "timeout"):
        requests = [ctx.later.call("look", args, name=name), ctx.later.sleep(5, name=f"t{name}")]
        if act == "timeout":
            won = ctx.first(requests)
            for request in requests:
                request.cancel()
            return requests.index(won)
        return sync_outcome(requests[0].result)
    if act == "wait":
        if kind == 0:
            return sync_outcome(lambda: ctx.sleep("20s", name=name))
        if kind == 1:
            return sync_outcome(lambda: ctx.receive("c", name=name))
        return sync_outcome(lambda: ctx.wait("signal", name=name, expires="60s", on_expire="continue"))
    if act == "cancel":
        made = ctx.later.call("look", args, name=f"d{name}") if kind % 2 else ctx.later.wait("signal", name=name)
        if kind < 2:
            sync_outcome(lambda: ctx.run(f"c{name}", "read", lambda: kind, args=args))
        made.cancel()
        return sync_outcome(made.result)
    if act == "value":
        return [int(ctx.now().timestamp() * 1000), ctx.random(), str(ctx.uuid())][:kind + 1][-1]
    if act == "patch":
        return ctx.patched(f"p{kind % 2}")
    if act == "emit":
        ctx.emit(name, args)
        return None
    if act in ("all", "background", "timed_block"):
        return ctx.map(f"a{name}", blocks, lambda at, block, i: inner(block, at))
    if act in ("race", "ctx_race", "timed_race"):
        branches = {f"r{i}": lambda at, block=block: inner(block, at) for i, block in enumerate(blocks)}
        won = ctx.race(name, branches, losers="go_on" if act == "race" or kind == 0 else "cancel")
        return {"won": won.won, "value": won.value}
    if act == "map":
        fold = kind == 0
        return ctx.map(name, [1, 2, 3], lambda at, item, i: (closed if fold else inner)(blocks[0], at),
                       parallel=1 + kind % 3, fold=fold)
    if act in ("scope", "timed_scope"):
        return ctx.scope(name, lambda at: closed(blocks[0], at), fold=True)

    def turn(at, state, i):
        following = {"x": state["x"]}
        sync_block(at, blocks[0], following, [*outer, shared])
        return Next(following) if i < kind % 3 else Done(following["x"])
    return ctx.loop(name, {"x": "begin"}, turn)


class Simulation:
    """One job: messages and ends of functions come in random order, and the routine crashes at random moments."""

    def __init__(self, dice, program, is_sync):
        self.dice = dice
        self.engine = Engine(admits=lambda request: not dice.one_in(4))

        async def code(ctx, input):
            return await run_block(ctx, program, {"x": "x"}, [])

        def sync_code(ctx, input):
            return sync_block(ctx, program, {"x": "x"}, [])
        self.agent = Agent("agent", {}, sync_code if is_sync else code)
        self.crashes = 0
        self.is_quiet = False  # no outcome comes
        self.routine = None
        self.crash()

    def drop(self):
        if self.routine is not None:
            self.routine.drop("crash")
            self.host.settled(self.routine)
            self.host.close()

    def crash(self):
        self.drop()
        self.host = Host()
        self.seen = 0
        self.to_engine, self.to_worker, self.functions = [], [], []
        self.crashes += 1
        self.routine = Routine(self.engine.start(), self.agent, self.host)
        self.routine.begin()

    def run(self, crash_one_in):
        """To the end of the job."""
        steps = 0
        while self.engine.end is None:
            steps += 1
            assert steps < 5_000, f"the job does not end: {[(one['position'], one['ended']) for one in self.engine.log.values()]}"
            if self.dice.one_in(3):
                self.host.settled(self.routine)
            self.to_engine += self.host.sent[self.seen:]
            self.seen = len(self.host.sent)
            assert self.host.diverged is None, self.host.diverged
            if crash_one_in and self.crashes < 40 and self.dice.one_in(crash_one_in):
                self.crash()
            else:
                self.act()
        self.host.settled(self.routine)

    def act(self):
        dice, engine = self.dice, self.engine
        choice = dice.below(6)
        if choice < 2 and self.to_engine:
            engine.receive(self.to_engine.pop(0))
        elif choice == 2 and self.to_worker:
            message = self.to_worker.pop(0)
            if message["type"] == "deliver":
                self.routine.deliver(message["outcomes"])
            else:
                self.functions.append(message)
        elif choice == 3 and not self.is_quiet and self.functions:
            self.end_function(self.functions.pop(dice.below(len(self.functions))))
        elif choice == 4 and not self.is_quiet:
            still_open = [one for one in engine.open() if not one.get("tool", "").startswith("run:")]
            if still_open:
                self.finish(dice.pick(still_open))
        else:
            engine.admit_all()
        self.to_worker += engine.outbox
        engine.outbox = []

    def finish(self, request):
        position, wait = request["position"], request.get("wait")
        if wait and wait["type"] == "timer":
            self.engine.succeed(position, None)
        elif wait and self.dice.one_in(3):
            self.engine.finish(position, timed_out=True)
        elif self.dice.one_in(4):
            self.engine.fail(position, "http_503", "no")
        else:
            self.engine.succeed(position, {"answer": self.dice.below(100)})

    def end_function(self, permit):
        position = permit["position"]
        request = self.routine.function_at(position)
        if request is None or self.engine.at(position)["ended"]:
            return
        if self.dice.one_in(5):
            return self.engine.fail(position, "exception", "it failed")
        result, error = call_function(permit, request)
        assert error is None, error
        if not self.routine.on_success(permit["call"], position, {"result": result}):
            self.engine.succeed(position, result)


def run_seed(seed, is_sync):
    dice = Dice(seed)
    program = Maker(dice).block(3)
    simulation = Simulation(dice, program, is_sync)
    simulation.run(12)
    engine = simulation.engine
    crashes, end = simulation.crashes, engine.end
    assert "exception" not in end, end
    log = json.dumps([engine.record(), end])
    # The log alone gives the same end, as long as nothing new comes.
    engine.end = None
    simulation.is_quiet = True
    simulation.crash()
    simulation.run(0)
    assert json.dumps([engine.record(), engine.end]) == log
    simulation.drop()
    cancelled = [position for position in engine.cancelled]
    return crashes, len(engine.log), len(cancelled), hashlib.sha256(log.encode()).hexdigest()


REPEATED = os.environ.get("AETHERIS_SEED")
FIRST = int(REPEATED) if REPEATED else 1
COUNT = 1 if REPEATED else int(os.environ.get("AETHERIS_PROGRAMS", "300"))


class Programs(unittest.TestCase):
    def run_all(self, is_sync, count):
        total = [0, 0, 0]
        for seed in range(FIRST, FIRST + count):
            try:
                figures = run_seed(seed, is_sync)
            except BaseException:
                print(f"SEED {seed}\nrepeat: AETHERIS_SEED={seed} python3 -m unittest tests.test_programs", file=sys.stderr)
                raise
            total = [a + b for a, b in zip(total, figures)]
        print(f"# {total[1]} requests, {total[0]} crashes, {total[2]} cancelled", file=sys.stderr)
        if REPEATED is None:
            self.assertGreater(total[0], count)
            self.assertGreater(total[1], 2 * count)
            self.assertGreater(total[2], count // 10)

    def test_async_programs_continue_after_crashes_and_their_logs_give_the_same_end(self):
        self.run_all(False, COUNT)

    def test_sync_programs_continue_after_crashes_and_their_logs_give_the_same_end(self):
        self.run_all(True, max(1, COUNT // 3))


if __name__ == "__main__":
    unittest.main()
