"""Scopes, maps, races and loops of async and sync agents, and that a new routine is given the same."""
import asyncio
import unittest

from aetheris import Done, Failure, Next

from .support.harness import TestJob, run_job


class Scopes(unittest.TestCase):
    def test_names_are_counted_in_their_scope_keys_replace_the_count(self):
        async def step(at):
            return await at.run("a", "read", lambda: 1)

        async def nested(inner):
            await step(inner)
            await inner.scope("deep", step)

        async def code(ctx, input):
            await step(ctx)
            await step(ctx)
            await ctx.run("a", "read", lambda: 1, key="k")
            await ctx.scope("in", nested)
        job = run_job(code)
        self.assertEqual(job.positions, ["a", "a#2", "a@k", "in/a", "in/deep/a"])
        job.replayed()

    def test_map_some_at_a_time_results_in_order(self):
        figures = {"running": 0, "most": 0}

        async def item_of(inner, item, i):
            figures["running"] += 1
            figures["most"] = max(figures["most"], figures["running"])
            await inner.run("step", "read", lambda a: None, args={"item": item})
            figures["running"] -= 1
            return item * 10 + i

        async def code(ctx, input):
            return await ctx.map("items", [3, 1, 2, 5], item_of, parallel=2)
        job = run_job(code)
        self.assertEqual((job.result, figures["most"]), ([30, 11, 22, 53], 2))
        self.assertEqual(job.positions, [f"items/{i}/step" for i in range(4)])
        job.replayed()

    def test_map_the_first_failure_ends_it_or_failures_are_collected(self):
        async def item_of(inner, item, i):
            if item == "bad":
                raise Failure("bad_item", "no")
            return await inner.receive("c")

        def body(**options):
            async def code(ctx, input):
                return await ctx.map("items", ["ok", "bad", "ok"], item_of, **options)
            return code
        failed = run_job(body())
        self.assertEqual((failed.result, failed.engine.cancelled), ({"failure": "bad_item"}, []))

        def world(job):
            job.engine.succeed("items/0/receive", 1)
            job.engine.succeed("items/2/receive", 2)
        collected = run_job(body(on_error="collect"), world)
        self.assertEqual(collected.result, [1, {"error": {"code": "bad_item", "message": "no"}}, 2])
        collected.replayed()

    def test_map_an_item_that_is_cancelled_is_a_failure_of_it(self):
        async def item_of(inner, item, i):
            request = inner.receive("c")
            if item == "bad":
                request.cancel("not needed")
            return await request

        def body(**options):
            async def code(ctx, input):
                return await ctx.map("items", ["ok", "bad", "ok"], item_of, **options)
            return code

        def world(job):
            job.engine.succeed("items/0/receive", 1)
            job.engine.succeed("items/2/receive", 1)
        for fold in (False, True):
            job = run_job(body(on_error="collect", fold=fold), world)
            self.assertEqual([one if one == 1 else one["error"]["code"] for one in job.result], [1, "cancelled", 1])
            job.replayed()
        self.assertEqual(run_job(body()).result, {"failure": "cancelled"})

    def test_a_cancelled_request_ends_a_race_and_a_gather_as_a_failure(self):
        async def cancelled(ctx):
            request = ctx.receive("c")
            request.cancel("not needed")
            return await request

        async def race(ctx, input):
            return await ctx.race("r", {"a": cancelled, "b": lambda c: c.sleep("1h")})

        async def caught(ctx, input):
            try:
                await ctx.race("r", {"a": cancelled, "b": lambda c: c.sleep("1h")})
            except asyncio.CancelledError:
                return await ctx.call("after")

        async def gathered(ctx, input):
            ends = await asyncio.gather(cancelled(ctx), ctx.call("after"), return_exceptions=True)
            return [type(ends[0]).__name__, ends[1]]

        def sync(ctx, input):
            return ctx.race("r", {"a": lambda c: c.later.receive("c").cancel() and c.call("after"), "b": lambda c: c.sleep("1h")})
        after = lambda job: job.engine.succeed([one for one in job.engine.log if one.endswith("after")][0], 1)
        self.assertEqual(run_job(race).result, {"failure": "cancelled"})
        for code, expected in ((caught, 1), (gathered, ["CancelledError", 1]), (sync, ["a", 1])):
            job = run_job(code, after)
            self.assertEqual(job.result, expected)
            job.replayed()

    def test_map_that_is_cancelled_collects_nothing(self):
        ended = []

        async def item_of(inner, item, i):
            try:
                return await inner.receive("c")
            finally:
                ended.append(i)

        async def code(ctx, input):
            try:
                return await asyncio.wait_for(ctx.map("items", [1, 2, 3], item_of, parallel=2, on_error="collect"), 1)
            except asyncio.TimeoutError:
                return "timeout"
        job = run_job(code, lambda job: job.engine.succeed("sleep", None))
        self.assertEqual((job.result, sorted(ended), sorted(job.positions)),
                         ("timeout", [0, 1], ["items/0/receive", "items/1/receive", "sleep"]))
        job.replayed()

    def test_sync_map_an_item_that_is_cancelled_is_a_failure_of_it(self):
        def item_of(inner, item, i):
            request = inner.later.receive("c")
            if item == "bad":
                request.cancel("not needed")
            return request.result()

        def world(job):
            job.engine.succeed("items/0/receive", 1)
            job.engine.succeed("items/2/receive", 1)
        for fold in (False, True):
            def code(ctx, input, fold=fold):
                return ctx.map("items", ["ok", "bad", "ok"], item_of, on_error="collect", fold=fold)
            job = run_job(code, world)
            self.assertEqual([one if one == 1 else one["error"]["code"] for one in job.result], [1, "cancelled", 1])
            job.replayed()

    def test_race_the_losers_are_cancelled_and_make_no_requests(self):
        seen = []

        async def answer(inner):
            try:
                return await inner.receive("c")
            finally:
                seen.append("finally")
                try:
                    await inner.run("cleanup", "read", lambda: 1)
                except BaseException as error:
                    seen.append(type(error).__name__)

        async def code(ctx, input):
            won, value = await ctx.race("first", {"answer": answer, "call": lambda inner: inner.call("slow"),
                                                  "timeout": lambda inner: inner.sleep("10s")})
            await ctx.run("after", "read", lambda: 1)
            return [won, value]
        job = run_job(code, lambda job: job.engine.succeed("first/timeout/sleep", None))
        self.assertEqual((job.result, sorted(job.engine.cancelled), seen), (
            ["timeout", None], ["first/answer/receive", "first/call/slow"], ["finally", "Evicted"]))
        self.assertNotIn("first/answer/cleanup", job.positions)
        job.replayed()

    def test_race_with_go_on_the_losers_continue(self):
        async def code(ctx, input):
            seen = []

            async def branch(inner):
                seen.append(await inner.call(inner.scope_name[-1]))
            await ctx.race("first", {"a": branch, "b": branch}, losers="go_on")
            await ctx.call("c")
            return seen

        def world(job):
            job.engine.succeed("first/a/a", "a")
            job.engine.succeed("first/b/b", "b")
        job = run_job(code, world)
        job.engine.succeed("c", None)
        self.assertEqual(job.run().result, ["a", "b"])
        job.replayed()

    def test_a_closed_scope_runs_once_and_its_waits_are_closed_at_its_end(self):
        runs = []

        async def body(inner):
            runs.append(1)
            inner.receive("c")
            return {"n": await inner.run("step", "read", lambda: 7)}

        async def code(ctx, input):
            value = await ctx.scope("closed", body, fold=True)
            await ctx.receive("after")
            return value
        job = run_job(code)
        self.assertEqual((len(runs), job.engine.cancelled), (1, ["closed/receive"]))
        job.restart()
        job.run()
        job.engine.succeed("receive", None)
        self.assertEqual((job.run().result, len(runs)), ({"n": 7}, 1))

    def test_a_closed_scope_that_ends_with_a_wait_that_was_not_sent_ends_once(self):
        async def body(inner):
            await inner.run("step", "read", lambda: 7)
            inner.receive("c")
            return 1

        def sync_body(inner):
            inner.run("step", "read", lambda: 7)
            inner.later.receive("c")
            return 1

        async def code(ctx, input):
            return [await ctx.scope("s", body, fold=True), await ctx.run("after", "read", lambda: 2)]

        def sync_code(ctx, input):
            return [ctx.scope("s", sync_body, fold=True), ctx.run("after", "read", lambda: 2)]
        for fn in (code, sync_code):
            job = run_job(fn)
            self.assertEqual((job.result, job.positions), ([1, 2], ["s", "s/step", "after"]))
            job.replayed()

    def test_a_closed_scope_a_failure_is_its_result_an_exception_ends_the_code_although_it_is_caught(self):
        def code_with(error):
            async def body(inner):
                raise error

            async def code(ctx, input):
                try:
                    return await ctx.scope("s", body, fold=True)
                except Exception as caught:
                    return [type(caught).__name__, getattr(caught, "code", None)]
            return code
        failed = run_job(code_with(Failure("empty", "nothing")))
        self.assertEqual(failed.result, ["Failure", "empty"])
        failed.replayed()
        self.assertEqual(run_job(code_with(TypeError("boom"))).result, {"exception": "boom"})

    def test_inside_of_a_closed_scope_only_its_own_ctx_can_be_used(self):
        async def code(ctx, input):
            await ctx.scope("s", lambda inner: ctx.run("x", "read", lambda: 1), fold=True)
        self.assertIn("ctx of another scope", run_job(code).result["exception"])

    def test_the_closed_scope_of_a_loser_ends_with_its_requests(self):
        async def outer(at):
            won, _ = await at.race("first", {
                "scope": lambda inner: inner.scope("closed", lambda in2: in2.call("look"), fold=True),
                "timeout": lambda inner: inner.sleep("10s")})
            return won

        async def code(ctx, input):
            return await ctx.scope("outer", outer, fold=True)
        job = TestJob(code).run()
        job.engine.at("outer/first/scope/closed/look")["call"] = 99  # its try is open, so it is awaited
        job.engine.succeed("outer/first/timeout/sleep", None)
        self.assertIsNone(job.run().result, "the outer scope has a request without an outcome")
        job.engine.succeed("outer/first/scope/closed/look", 1)
        self.assertEqual(job.run().result, "timeout")
        self.assertEqual(job.engine.at("outer/first/scope/closed")["outcome"]["failure"]["code"], "evicted")
        job.replayed()

    def test_a_timeout_cancels_a_closed_scope_as_it_cancels_a_task(self):
        async def body(inner):
            try:
                await inner.receive("c")
            finally:
                await inner.run("cleanup", "read", lambda: 1)

        async def code(ctx, input):
            try:
                await asyncio.wait_for(ctx.scope("s", body, fold=True), 5)
            except asyncio.TimeoutError:
                return "timeout"
        job = run_job(code, lambda job: job.engine.succeed("sleep", None))
        self.assertEqual((job.result, job.positions), ("timeout", ["s", "sleep", "s/receive", "s/cleanup"]))
        self.assertEqual(job.engine.at("s")["outcome"]["failure"]["code"], "cancelled")
        job.replayed()

    def test_a_loop_runs_its_last_turn_again_and_no_earlier_one(self):
        turns = []

        async def turn(inner, state, i):
            turns.append(i)
            message = await inner.receive("numbers")
            return Done(state["sum"]) if message < 0 else Next({"sum": state["sum"] + message})

        async def code(ctx, input):
            return await ctx.loop("count", {"sum": 0}, turn)
        job = TestJob(code)
        for i, n in enumerate((5, 6, 7)):
            job.run()
            job.engine.succeed(f"count/{i}/receive", n)
        job.run()
        turns.clear()
        job.restart()
        job.run()
        self.assertEqual(turns, [3])
        job.engine.succeed("count/3/receive", -1)
        self.assertEqual(job.run().result, 18)

    def test_a_map_of_closed_scopes(self):
        async def code(ctx, input):
            return await ctx.map("m", [1, 2], lambda inner, n, i: inner.run("x", "read", lambda a: a["n"] * 2,
                                                                           args={"n": n}), fold=True)
        job = run_job(code)
        self.assertEqual((job.result, job.positions), ([2, 4], ["m/0", "m/1", "m/0/x", "m/1/x"]))
        job.replayed()


class Sync(unittest.TestCase):
    """Agents that are a plain def."""

    def test_calls_block_and_later_ones_do_not(self):
        def code(ctx, input):
            first = ctx.run("a", "read", lambda: 1)
            later = [ctx.later.call("b"), ctx.later.call("c")]
            won = ctx.first(later)
            return [first, won.position, ctx.gather(later), ctx.model("main").text("hi")]
        job = TestJob(code).run()
        job.engine.succeed("c", 3)
        job.run()
        job.engine.succeed("b", 2)
        job.run()
        job.engine.succeed("model:main", {"text": "hello"})
        self.assertEqual(job.run().result, [1, "c", [2, 3], "hello"])
        job.replayed()

    def test_map_race_and_loop(self):
        def turn(inner, state, i):
            return Done(state) if i == 2 else Next(state + inner.run("n", "read", lambda: i + 1))

        def code(ctx, input):
            doubled = ctx.map("m", [1, 2, 3], lambda c, n, i: c.run("x", "read", lambda a: a["n"] * 2, args={"n": n}),
                              parallel=2)
            won = ctx.race("r", {"wait": lambda c: c.receive("never"), "call": lambda c: c.call("slow"),
                                 "fast": lambda c: c.sleep(1)})
            folded = ctx.scope("s", lambda c: c.run("y", "read", lambda: 5), fold=True)
            return [doubled, won.won, folded, ctx.loop("l", 0, turn)]
        job = run_job(code, lambda job: job.engine.succeed("r/fast/sleep", None))
        self.assertEqual((job.result, sorted(job.engine.cancelled)),
                         ([[2, 4, 6], "fast", 5, 3], ["r/call/slow", "r/wait/receive"]))
        job.replayed()

    def test_a_failure_of_map_stops_the_others(self):
        seen = []

        def item_of(c, item, i):
            try:
                c.call("look")
            except Exception:
                raise
            except BaseException as error:
                seen.append(type(error).__name__)
                raise
            return item

        def code(ctx, input):
            return ctx.map("m", [1, 2], item_of)
        job = run_job(code, lambda job: job.engine.fail("m/1/look", "http_500", "no"))
        self.assertEqual((job.result, seen), ({"failure": "http_500"}, ["Evicted"]))

    def test_cancel_and_result(self):
        def code(ctx, input):
            request = ctx.later.receive("c")
            request.cancel("not needed")
            try:
                request.result()
            except Failure:
                pass
            except Exception as error:
                return [type(error).__name__, error.code, str(error)]
        job = run_job(code)
        self.assertEqual(job.result, ["Cancelled", "cancelled", 'the request "receive" was cancelled: not needed'])
        self.assertEqual(job.positions, [])

    def test_a_dropped_routine_raises_Evicted_in_the_blocked_call_and_its_finally_performs_nothing(self):
        seen = []

        def code(ctx, input):
            try:
                ctx.receive("c")
            except BaseException as error:
                seen.append(type(error).__name__)
                try:
                    ctx.run("cleanup", "read", lambda: 1)
                except BaseException as second:
                    seen.append(type(second).__name__)
                raise
        job = TestJob(code).run()
        job.drop()
        self.assertEqual((seen, job.positions), (["Evicted", "Evicted"], ["receive"]))

    def test_ctx_in_a_thread_or_function_ends_the_routine(self):
        def code(ctx, input):
            return ctx.run("a", "read", lambda: ctx.run("b", "read", lambda: 1))
        job = run_job(code)
        self.assertIn("inside of a function", job.result["exception"])
