"""Warnings about requests that are not awaited."""
import asyncio
import re
import unittest

from aetheris import Agent, unawaited
from aetheris.dev_warnings import print_warning
from aetheris.unawaited import warn_about_unawaited

from .support.harness import TestJob

LOST = " was not awaited before the agent returned; its outcome is lost. Add await"
NOTHING = " was not awaited; it did nothing. Add await"
UNSENT = " was not sent before the agent returned, and is not performed. Await the code that calls it"


def one():
    return 1


async def forgets(ctx, input):
    await ctx.run("first", "read", one)
    ctx.run("send", "idempotent", one)  # line 23
    return 1


class Unawaited(unittest.TestCase):
    def setUp(self):
        self.warnings = []
        unawaited._warned.clear()
        self.addCleanup(warn_about_unawaited(self.warnings.append))

    def warned(self, fn, result=1, **options):
        """The warnings of an agent; all of its calls succeed, its waits stay open."""
        job = TestJob(fn, **options).run()
        self.assertEqual(job.result, result)
        job.drop()
        found, self.warnings[:] = list(self.warnings), []
        return [re.sub(r"^\S*test_unawaited\.py:\d+: ", "", line) for line in found]

    def test_it_is_named_with_its_line_once(self):
        for loop in ("agent", "host"):
            unawaited._warned.clear()
            TestJob(forgets, loop=loop).run().drop()
            self.assertEqual([line.split("/")[-1] for line in self.warnings], [f'test_unawaited.py:23: ctx.run("send"){LOST}'])
            self.warnings.clear()
            self.assertEqual(self.warned(forgets, loop=loop), [])

    def test_it_is_named_whatever_it_requests(self):
        async def code(ctx, input):
            ctx.call("pay", {})
            ctx.start(Agent("other", {}, one), {})
            ctx.start("apart", {}, detached=True)
            ctx.send("job", {"channel": "in"}, 1)
            ctx.model("main").text("Hello")
            ctx.sleep(1)
            ctx.approval("Pay?")
            ctx.fetch("http://127.0.0.1:1/")
            ctx.map("all", [1], lambda c, item, i: 1)
            return 1
        what = ['call("pay")', 'start("other")', 'start("apart")', "send()", 'model("main").text()', "sleep()", "approval()"]
        self.assertEqual(self.warned(code), ["ctx.fetch()" + NOTHING, "ctx.map()" + NOTHING] + [f"ctx.{one}{LOST}" for one in what])

    def test_a_request_of_a_sync_agent_is_named(self):
        def code(ctx, input):
            ctx.later.run("send", "idempotent", one)
            ctx.start("other", {})
            return 1
        lost = LOST.replace("Add await", "Add .result()")
        self.assertEqual(self.warned(code), ['ctx.later.run("send")' + lost, 'ctx.start("other")' + lost])

    def test_code_that_nothing_awaits_is_named(self):
        async def send(ctx):
            await ctx.run("send", "read", one)

        async def coroutine(ctx, input):
            send(ctx)
            return 1

        async def task(ctx, input):
            asyncio.create_task(send(ctx))
            return 1

        async def begun(ctx, input):
            asyncio.create_task(send(ctx))
            await asyncio.sleep(0)
            return 1
        self.assertEqual(self.warned(coroutine), ["send()" + NOTHING])
        self.assertEqual(self.warned(task),
                         ["a task was not awaited before the agent returned, and its requests are not sent. Await it"])
        self.assertEqual(self.warned(begun)[0], 'ctx.run("send")' + UNSENT)

    def test_it_is_not_named_if_it_was_awaited_cancelled_lost_a_race_was_sent_to_a_detached_job_or_has_its_outcome(self):
        async def item(ctx, item, i):
            return await ctx.run("b", "read", one)

        async def loses(ctx):
            await ctx.sleep(3600)

        async def code(ctx, input):
            ctx.run("delivered", "read", one)
            ctx.start("apart", {}, detached=True)
            wait = ctx.wait("signal")
            await ctx.race("first", {"wins": lambda c: c.run("wins", "read", one), "loses": loses})
            await asyncio.wait([wait, ctx.run("plain", "read", one)], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(ctx.run("a", "read", one), ctx.map("m", [1, 2], item))
            await ctx.scope("s", lambda c: c.run("c", "read", one), fold=True)
            ctx.sleep(3600).cancel()
            task = asyncio.create_task(loses(ctx))
            task.cancel()
            return await ctx.run("last", "read", one)

        def sync(ctx, input):
            ctx.later.run("delivered", "read", one)
            ctx.first([ctx.later.sleep(3600), ctx.later.run("plain", "read", one)])
            ctx.race("first", {"wins": lambda c: c.run("wins", "read", one), "loses": lambda c: c.sleep(3600)})
            return ctx.gather([ctx.later.run("last", "read", one)])[0]
        for fn in (code, sync):
            self.assertEqual(self.warned(fn), [])

    def test_it_is_not_named_in_code_that_fails(self):
        async def code(ctx, input):
            ctx.run("send", "read", one)
            raise TypeError("broken")
        self.assertEqual(self.warned(code, {"exception": "broken"}), [])

    def test_nothing_stays_wrapped(self):
        self.doCleanups()
        warn_about_unawaited(print_warning)()  # that of the test kit
        self.assertEqual(self.warned(forgets), [])
        self.assertNotIn("add_done_callback", vars(unawaited.Request))


if __name__ == "__main__":
    unittest.main()
