"""aetheris.testing with the real program: AETHERIS_BIN names it; without it these tests are skipped."""
import asyncio
import datetime
import os
import pathlib
import tempfile
import unittest

from aetheris import AetherisError, Failure, InvalidInput, ConnectionFailed, NotDone, agent, testing, tool

HAS_PROGRAM = os.path.exists(os.environ.get("AETHERIS_BIN", ""))
DAY = datetime.timedelta(days=1)


@tool(effect="at_most_once", timeout="10s")
def pay_back(args):
    return {"id": f"re_{args['amount']}"}


@agent("refund", uses=["get_order"])
async def refund(ctx, input):
    order = await ctx.call("get_order", {"id": input["order"]})
    if order["total"] > 20:
        await ctx.approval(f"Refund {order['total']}?", wait_key="approve", expires="2d")
    paid = await ctx.call(pay_back, {"amount": order["total"]})
    await ctx.sleep("3d")
    await ctx.run("mail", "idempotent", lambda: None, args={"to": "ada"})
    return {"refund": paid["id"]}


@agent("sleeps")
def sleeps(ctx, input):
    begun = ctx.now()
    for _ in range(input["times"]):
        ctx.sleep("1d")
    return round((ctx.now() - begun) / DAY)


@agent("steps")
async def steps(ctx, input):
    done = [await ctx.run("step", "idempotent", lambda args: args["i"], args={"i": i}) for i in range(input["n"])]
    await ctx.sleep("1h")
    return done


@agent("sync_steps")
def sync_steps(ctx, input):
    done = [ctx.run("step", "idempotent", lambda args: args["i"], args={"i": i}) for i in range(2)]
    ctx.sleep("1h")
    return done


@agent("once")
async def once(ctx, input):
    return await ctx.call(pay_back, {"amount": 1})


@agent("waits")
async def waits(ctx, input):
    return await ctx.wait(type="signal", wait_key="go", **input)


@agent("fails")
async def fails(ctx, input):
    if input["how"] == "failure":
        raise Failure("no_money", "the account is empty")
    raise TypeError("a bug")


AGENTS = [refund, sleeps, steps, sync_steps, once, waits, fails]
TOOLS = {"get_order": lambda args: {"total": int(args["id"])}, "pay_back": pay_back}


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class Sync(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.t = testing.start(AGENTS, TOOLS)

    @classmethod
    def tearDownClass(cls):
        cls.t.close()

    def test_a_job_waits_for_an_approval_then_sleeps_then_ends(self):
        job = self.t.job(refund, {"order": "29"})
        self.t.until(job, "waiting")
        self.t.approve(job)
        began = self.t.now()
        self.assertEqual(job.result(), {"refund": "re_29"})
        self.assertGreaterEqual(self.t.now() - began, 3 * DAY)
        paid = [call for call in self.t.calls("pay_back") if call.job == job.id]
        self.assertEqual([(one.arguments, one.result, one.effect, one.try_) for one in paid],
                         [({"amount": 29}, {"id": "re_29"}, "at_most_once", 1)])
        self.assertEqual(len([call for call in self.t.calls("mail") if call.job == job.id]), 1)
        self.assertGreater(len(job.events()), 10)

    def test_an_approval_expires(self):
        job = self.t.job("refund", {"order": "31"}, id="expired")
        self.t.until(job, "waiting")
        self.t.skip("2d")
        self.t.until(job, lambda view: view["status"] in ("parked", "failed"))
        self.assertIn("expired", str(job.view()))

    def test_the_time_of_a_sync_agent_is_that_of_the_clock(self):
        self.assertEqual(self.t.job(sleeps, {"times": 20}).result(), 20)

    def test_skip_lets_all_happen_that_is_due_meanwhile(self):
        job = self.t.job(sleeps, {"times": 5})
        self.t.until(job, "waiting")
        self.t.skip("3d")
        self.assertEqual(job.status(), "waiting")
        self.t.skip("3d")
        self.t.until(job, "completed")

    def test_signals_and_their_expiry(self):
        job = self.t.job(waits, {})
        self.t.signal(job, "go", {"n": 1})
        self.assertEqual(job.result(), {"n": 1})
        self.assertIsNone(self.t.job(waits, {"expires": "1d", "on_expire": "continue"}).result())
        with self.assertRaises(AetherisError) as raised:
            self.t.job(waits, {}).result()
        self.assertEqual(raised.exception.code, "waiting")

    def test_a_result_that_does_not_come_is_explained(self):
        with self.assertRaises(Failure) as raised:
            self.t.job(fails, {"how": "failure"}).result()
        self.assertEqual(raised.exception.code, "no_money")
        with self.assertRaisesRegex(AetherisError, "a bug") as raised:
            self.t.job(fails, {"how": "bug"}).result()
        self.assertEqual(raised.exception.code, "routine_failed")
        with self.assertRaisesRegex(AetherisError, "did not become parked"):
            self.t.until(self.t.job(once), "parked")
        with self.assertRaisesRegex(AetherisError, "no open request"):
            self.t.approve(self.t.job(once))

    def test_the_job_ends_as_without_crashes_wherever_the_worker_ends(self):
        for made in (steps, sync_steps):
            report = testing.crash_everywhere(lambda: self.t.job(made, {"n": 3}))
            self.assertGreaterEqual(report.crashes, 6)
            self.assertEqual(report.in_doubt, 0)

    def test_an_at_most_once_function_is_not_called_again(self):
        report = testing.crash_everywhere(lambda: self.t.job(once))
        self.assertGreaterEqual(report.crashes, 2)
        self.assertGreaterEqual(report.in_doubt, 1)


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class Async(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_in_coroutines(self):
        async with await testing.start_async(AGENTS, TOOLS) as t:
            job = await t.job(refund, {"order": "29"})
            await t.until(job, "waiting")
            await t.approve(job, note="fine")
            self.assertEqual(await job.result(), {"refund": "re_29"})
            self.assertEqual([call.key.startswith("aetheris:") for call in t.calls("pay_back")], [True])
            report = await testing.crash_everywhere_async(lambda: t.job(steps, {"n": 1}))
            self.assertGreaterEqual(report.crashes, 4)

    async def test_tools_are_awaited_and_tried_again(self):
        tries = []

        @tool(effect="read", retry={"max_attempts": 3, "retry_on": ["busy"], "initial_backoff": "1h", "max_backoff": "2h"})
        async def flaky():
            tries.append(1)
            await asyncio.sleep(0)
            if len(tries) < 3:
                raise NotDone("busy", "later", retryable=True)
            return len(tries)

        @agent("tries")
        async def tries_agent(ctx, input):
            return await ctx.call(flaky)
        async with await testing.start_async([tries_agent], [flaky]) as t:
            began = await t.now()
            self.assertEqual(await (await t.job("tries")).result(), 3)
            self.assertEqual([(call.try_, (call.error or {}).get("code")) for call in t.calls("flaky")],
                             [(1, "busy"), (2, "busy"), (3, None)])
            self.assertGreater(await t.now() - began, DAY / 1440)


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class Start(unittest.TestCase):
    def test_code_whose_result_depends_on_the_run_is_found(self):
        runs = []

        @agent("drifts")
        async def drifts(ctx, input):
            runs.append(1)  # not recorded
            at = len(runs)
            await ctx.run("one", "read", lambda: 1)
            return at
        with testing.start([drifts]) as t, self.assertRaises(AetherisError) as raised:
            testing.crash_everywhere(lambda: t.job(drifts))
        self.assertEqual(raised.exception.code, "crash_changed_result")

    def test_it_refuses_what_it_cannot_use(self):
        with self.assertRaises(InvalidInput):
            testing.start([once], {"other": pay_back})
        with self.assertRaises(ConnectionFailed):
            testing.start([once], program="/bin/false")
        with self.assertRaises(ConnectionFailed):
            testing.start([once], program="/nowhere")

        @agent("uses", uses=["missing"])
        async def uses(ctx, input):
            return None
        with self.assertRaisesRegex(InvalidInput, "missing"):
            testing.start([uses])

    def test_an_agents_file(self):
        @agent("prices", uses=["price"])
        async def prices(ctx, input):
            return await ctx.call("price", {})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "agents.yaml"
            path.write_text("aetheris: 1\ntools: { price: { effect: read, command: [echo, '7'] } }\n")
            with testing.start([prices], agents_file=str(path)) as t:
                self.assertEqual(str(t.job(prices).result()).strip(), "7")


if __name__ == "__main__":
    unittest.main()
