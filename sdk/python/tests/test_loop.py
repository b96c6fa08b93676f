"""What asyncio does on the agent loop: the same in every run, under every hash seed."""
import asyncio
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import unittest

from aetheris import InvalidInput

from .support.harness import TestJob, run_job

TASK_GROUP = hasattr(asyncio, "TaskGroup")


async def shapes(ctx, input):
    """gather, TaskGroup, wait_for, wait, as_completed, Queue, Event, Lock, Semaphore, shield."""
    async def work(n):
        return await ctx.call(n)

    async def folded(at, count):
        return await asyncio.gather(*[at.call(f"f{n}") for n in range(count)])
    out = [await asyncio.gather(ctx.call("a"), ctx.call("b")), await ctx.scope("s", folded, 3, fold=True),
           await ctx.map("m", [1, 2], lambda at, item, i: folded(at, item), fold=True)]
    if TASK_GROUP:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(n)) for n in "cdef"]
        out.append([task.result() for task in tasks])
    try:
        await asyncio.wait_for(ctx.call("slow"), 5)
    except asyncio.TimeoutError:
        out.append("timeout")
    done, pending = await asyncio.wait([asyncio.ensure_future(work(n)) for n in "ghijklmnop"])
    out.append([[task.result() for task in done], len(pending)])
    queue = asyncio.Queue()

    async def produce():
        for n in "xyz":
            await queue.put(await ctx.call(n))
    producer = asyncio.ensure_future(produce())
    out.append([await queue.get() for _ in range(3)])
    await producer
    out.append([await one for one in asyncio.as_completed([work("r"), work("s"), work("t")])])
    condition, turn = asyncio.Condition(), []

    async def turns(n):
        got = await ctx.call(n)
        async with condition:
            turn.append(got)
            condition.notify_all()

    async def last():
        async with condition:
            await condition.wait_for(lambda: len(turn) == 2)
            return list(turn)
    out.append((await asyncio.gather(last(), turns("7"), turns("8")))[0])
    lock, event, semaphore = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(2)

    async def locked(n):
        async with semaphore, lock:
            out.append(await ctx.call(n))
            event.set()
    await asyncio.gather(*[locked(n) for n in "123"], event.wait())
    out.append(await asyncio.shield(ctx.call("shielded")))
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    first = {asyncio.ensure_future(work(n)) for n in "456"}
    done, pending = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    out.append([task.result() for task in done])
    return out


def drive(job, seed):
    """Answers one request at a time, in an order that follows from the seed."""
    state = seed
    while job.run().engine.end is None and job.host.diverged is None:
        waiting = sorted(one["position"] for one in job.engine.open() if one["position"] != "slow")
        state = (state * 1103515245 + 12345) % (1 << 31)
        position = waiting[state % len(waiting)]
        job.engine.succeed(position, position)
    return job


class Asyncio(unittest.TestCase):
    def test_its_primitives_work_and_replay(self):
        for seed in range(1, 8):
            job = drive(TestJob(shapes), seed)
            self.assertIsInstance(job.result, list, job.result)
            self.assertEqual(job.result[0], ["a", "b"])
            self.assertIn("slow", job.engine.cancelled)
            job.replayed()

    def test_a_record_replays_under_every_hash_seed(self):
        made = [run_elsewhere(seed, "record", str(seed)) for seed in (1, 2, 3)]
        for text in made:
            ends = {run_elsewhere(seed, "replay", "", text) for seed in (0, 4, 77)}
            self.assertEqual(ends, {json.dumps(json.loads(text)["end"])})

    def test_a_set_of_coroutines_is_refused(self):
        async def code(ctx, input):
            made = {ctx.scope("a", lambda at: 1), ctx.scope("b", lambda at: 2)}
            try:
                asyncio.as_completed(made)
            except InvalidInput as error:
                for one in made:
                    one.close()
                return str(error)
        self.assertIn("give a list", run_job(code).result)

    def test_the_order_of_sets_and_the_time_do_not_depend_on_closed_scopes_that_have_ended(self):
        async def body(at, tasks):
            async def nothing():
                pass
            await asyncio.gather(*[nothing() for _ in range(tasks)])
            await asyncio.sleep(5)
            return await at.run("x", "read", lambda: 1)

        for tasks in range(1, 9):
            async def code(ctx, input):
                begin = asyncio.get_running_loop().time()
                await ctx.scope("s", body, tasks, fold=True)

                async def value(n):
                    return n
                done, _ = await asyncio.wait([asyncio.ensure_future(value(n)) for n in range(7)])
                time = asyncio.get_running_loop().time() - begin
                order = [task.result() for task in done]
                await ctx.call("c", {"order": order, "time": time})
                return order
            job = run_job(code, lambda job: job.engine.succeed("s/sleep", None))
            job.engine.succeed("c", None)
            self.assertEqual(sorted(job.run().result), list(range(7)))
            job.replayed()

    @unittest.skipUnless(hasattr(asyncio, "timeout"), "asyncio.timeout is new in Python 3.11")
    def test_timeouts_are_durable_timers_that_are_cancelled(self):
        async def code(ctx, input):
            async with asyncio.timeout(30):
                await ctx.call("fast")
            try:
                async with asyncio.timeout(7):
                    await ctx.call("slow")
            except asyncio.TimeoutError:
                return "late"

        job = TestJob(code).run()
        self.assertEqual(job.engine.at("sleep")["wait"], {"type": "timer", "lasts_ms": 30_000})
        job.engine.succeed("fast", 1)
        job.run()
        self.assertEqual(job.engine.cancelled, ["sleep"])
        job.engine.succeed("sleep#2", None)
        job.run()
        self.assertEqual((job.result, job.engine.cancelled), ("late", ["sleep", "slow"]))
        job.replayed()

    def test_the_time_of_the_loop_follows_from_timers_and_now(self):
        async def code(ctx, input):
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await asyncio.sleep(5)
            after = loop.time() - begin
            now = ctx.now().timestamp()
            return [after, loop.time() - begin >= after, now - loop.time() <= 0.001]
        job = run_job(code, lambda job: job.engine.succeed("sleep", None))
        self.assertEqual(job.result, [5, True, True])
        job.replayed()

    def test_sockets_subprocesses_threads_and_signals_are_refused(self):
        async def code(ctx, input):
            loop = asyncio.get_running_loop()
            refused = []
            for make in (lambda: asyncio.open_connection("127.0.0.1", 1), lambda: asyncio.to_thread(print),
                         lambda: asyncio.create_subprocess_exec("true"), lambda: loop.getaddrinfo("localhost", 1),
                         lambda: loop.sock_recv(None, 1), lambda: loop.add_signal_handler(1, print),
                         lambda: loop.run_in_executor(None, print), lambda: loop.call_soon_threadsafe(print)):
                try:
                    made = make()
                    if asyncio.iscoroutine(made):
                        await made
                except InvalidInput as error:
                    refused.append(error.code)
                    assert "ctx.run" in str(error)
            return refused
        self.assertEqual(run_job(code).result, ["unsupported"] * 8)

    @unittest.skipUnless(TASK_GROUP, "asyncio.TaskGroup is new in Python 3.11")
    def test_a_failure_in_a_task_group_is_the_jobs(self):
        async def code(ctx, input):
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.scope("a", lambda at: at.call("x")))
                group.create_task(ctx.scope("b", lambda at: at.receive("y")))
        job = run_job(code, lambda job: job.engine.fail("a/x", "http_402", "no"))
        self.assertEqual((job.result, job.engine.cancelled), ({"failure": "http_402"}, ["b/receive"]))

    def test_a_task_that_fails_and_that_nothing_awaits_is_logged(self):
        async def code(ctx, input):
            async def fails():
                raise ValueError("x")
            asyncio.ensure_future(fails())
            await ctx.call("a")
            import gc
            gc.collect()
            await ctx.call("b")
        with contextlib.redirect_stderr(io.StringIO()):
            job = run_job(code, lambda job: job.engine.succeed("a", 1))
            job.drop()
        self.assertIn("a", job.positions)


def run_elsewhere(hash_seed, *words_and_input):
    words, text = (words_and_input[:2], "") if len(words_and_input) == 2 else (words_and_input[:1], words_and_input[2])
    done = subprocess.run([sys.executable, "-m", "tests.test_loop", *words], input=text, capture_output=True, text=True,
                          cwd=pathlib.Path(__file__).resolve().parents[1], timeout=120,
                          env={**os.environ, "PYTHONHASHSEED": str(hash_seed)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def main(words):
    if words[0] == "record":
        job = drive(TestJob(shapes), int(words[1]))
        print(json.dumps({"record": job.engine.record(), "end": job.engine.end}))
    else:
        made = json.loads(sys.stdin.read())
        job = TestJob(shapes)
        start = {**job.engine.start(), "record": made["record"]}
        job.drop()
        job.begin(start)
        job.host.settled(job.routine)
        assert job.host.diverged is None, job.host.diverged
        print(json.dumps(job.host.sent[0]["end"]))


if __name__ == "__main__":
    main(sys.argv[1:])
