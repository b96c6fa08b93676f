"""replay of aetheris.testing, with the real program: AETHERIS_BIN names it; without it these tests are skipped."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

from aetheris import AetherisError, ConnectionFailed, InvalidInput, agent, testing, tool

HAS_PROGRAM = os.path.exists(os.environ.get("AETHERIS_BIN", ""))
PAID = []


@tool(effect="idempotent")
def pay(args):
    PAID.append(args)
    return args["order"]


@agent("refund")
async def refund(ctx, input):
    order = await ctx.call(pay, {"order": input["order"]})
    await ctx.wait("signal", "go")
    return order


@agent("other")
async def other(ctx, input):
    return 1


@agent("refund")
async def changed(ctx, input):
    return await ctx.call(pay, {"order": input["order"] + "0"})


@agent("refund")
def sync_longer(ctx, input):
    order = ctx.call(pay, {"order": input["order"]})
    ctx.wait("signal", "go")
    ctx.sleep("1d")
    return order


@agent("refund")
async def raises(ctx, input):
    ctx.call(pay, {"order": input["order"]})
    ctx.wait("signal", "go")
    raise TypeError("a bug")


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-test-"))
        cls.t = testing.start([refund, other], [pay])
        for order in ("7", "8", "9"):
            job = cls.t.job(refund, {"order": order}, id=f"refund-{order}")
            if order == "9":
                cls.t.signal(job, "go")
                job.result()
            else:
                cls.t.until(job, "waiting")
            (cls.folder / f"{job.id}.json").write_text(json.dumps({"events": job.events()}))
        odd = cls.t.job(other, id="odd")
        odd.result()
        (cls.folder / "odd.json").write_text(json.dumps({"events": odd.events()}))
        PAID.clear()

    @classmethod
    def tearDownClass(cls):
        cls.t.close()
        shutil.rmtree(cls.folder)

    def check(self, code, text, *words, **options):
        with self.assertRaisesRegex(AetherisError, text) as raised:
            testing.replay(*words, **options)
        self.assertEqual(raised.exception.code, code)

    def test_code_that_fits_the_logs_passes(self):
        jobs = testing.replay(f"{self.folder}/refund-[78].json", [refund, pay])
        self.assertEqual([(one.job, one.verdict, one.recorded_requests) for one in jobs],
                         [("refund-7", "continues", 2), ("refund-8", "continues", 2)])
        self.assertEqual(len(testing.replay(str(self.folder), [refund, pay])), 3)  # jobs of other agents are skipped
        self.assertEqual(len(testing.replay([f"{self.folder}/odd.json", f"{self.folder}/refund-9.json"], [other, pay])), 1)
        self.assertEqual(PAID, [], "a function was called")

    def test_code_that_does_not_fit_fails_with_what_differs(self):
        self.check("replay_diverged", r'(?s)^2 of 2 .*job refund-7 \(agent refund\) diverges.*position pay.*test_testing_replay\.py'
                   r'.*recorded: call of tool "pay" {"order":"7"}', f"{self.folder}/refund-[78].json", [changed, pay])
        # What follows the records of a job that has not ended is not compared.
        self.assertEqual(len(testing.replay(f"{self.folder}/refund-7.json", [sync_longer, pay])), 1)
        self.check("replay_diverged", "sleep", f"{self.folder}/refund-9.json", [sync_longer, pay])
        self.check("replay_diverged", "TypeError: a bug", f"{self.folder}/refund-7.json", [raises, pay])

    def test_the_jobs_of_a_server(self):
        server = testing.StoredJobs(url=self.t.url)
        self.assertEqual(len(testing.replay(server, [refund, pay])), 2)  # those that have not ended
        self.check("replay_diverged", "^1 of 1", server._replace(jobs=["refund-8"]), [changed, pay])
        self.check("not_found", "nobody", server._replace(jobs=["nobody"]), [refund])

    def test_a_job_that_cannot_be_judged_does_not_pass(self):
        self.check("replay_diverged", "not judged.*pay", f"{self.folder}/refund-7.json", [refund])
        self.check("not_found", "refund in 1 jobs", f"{self.folder}/odd.json", [refund, pay])
        (self.folder / "broken.txt").write_text("{}")
        self.check("usage", "not the log of a job", f"{self.folder}/broken.txt", [refund])
        self.check("usage", "there is no", f"{self.folder}/none.json", [refund])
        for paths in (f"{self.folder}/none*.json", []):
            with self.assertRaises(InvalidInput):
                testing.replay(paths, [refund])
        with self.assertRaises(ConnectionFailed):
            testing.replay(str(self.folder), [refund], program="/nowhere")


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class AsyncReplay(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_in_coroutines(self):
        async with await testing.start_async([refund], [pay]) as t:
            job = await t.job(refund, {"order": "7"})
            await t.until(job, "waiting")
            server = testing.StoredJobs(url=t.url)
            self.assertEqual(len(await testing.replay_async(server, [refund, pay])), 1)
            with self.assertRaisesRegex(AetherisError, "diverges"):
                await testing.replay_async(server, [changed, pay])


if __name__ == "__main__":
    unittest.main()
