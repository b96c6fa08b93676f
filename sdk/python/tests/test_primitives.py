"""Calls, waits and values of ctx: what each requests, what it gives, how it fails; a new routine is given the same."""
import asyncio
import datetime
import re
import unittest

from aetheris import Failure, Rejected, ToolFailed, WaitExpired, tool
from aetheris.values import duration_ms, time_value
from aetheris.errors import InvalidInput

from .support.harness import TestJob, run_job


class Calls(unittest.TestCase):
    def test_run_performs_its_function_with_the_recorded_arguments(self):
        async def code(ctx, input):
            return await ctx.run("add", "read", lambda a, call: {"sum": a["a"] + a["b"], "key": call.key},
                                 args={"a": 1, "b": 2})
        job = run_job(code)
        self.assertEqual(job.result, {"sum": 3, "key": "aetheris:job-1:add:0"})
        self.assertEqual((job.engine.at("add")["tool"], job.engine.at("add")["arguments"]), ("run:read", {"a": 1, "b": 2}))
        job.replayed()
        self.assertEqual(len(job.engine.performed), 1, "the function is not performed again")

    def test_a_function_takes_as_many_of_args_and_call_as_it_has_parameters(self):
        async def later(args, call):
            await asyncio.sleep(0)
            return [args["n"], call.try_]

        async def code(ctx, input):
            return [await ctx.run("a", "idempotent", lambda: 1), await ctx.run("b", "read", lambda call: call.try_),
                    await ctx.run("c", "read", lambda a: a["n"], args={"n": 2}),
                    await ctx.run("d", "read", later, args={"n": 3})]
        job = run_job(code)
        self.assertEqual(job.result, [1, 1, 2, [3, 1]])
        self.assertEqual(job.engine.at("a")["arguments"], {})

    def test_call_names_a_tool_or_has_one(self):
        @tool(effect="read")
        def price(args):
            return len(args["id"])

        async def code(ctx, input):
            return [await ctx.call(price, {"id": "abc"}), await ctx.call("other")]
        job = run_job(code, lambda job: job.engine.succeed("price", 3))
        job.engine.succeed("other", "x")
        job.run()
        self.assertEqual((job.result, price({"id": "abc"})), ([3, "x"], 3))
        self.assertEqual(job.engine.at("price")["arguments"], {"id": "abc"})

    def test_a_call_can_be_stricter_than_the_policy_of_its_tool(self):
        async def code(ctx, input):
            await ctx.call("pay", {"amount": 1}, timeout="5s", retry={"max_attempts": 2}, on_in_doubt="park")
        job = TestJob(code).run()
        self.assertEqual(job.host.sent[0]["requests"][0]["options"],
                         {"timeout": "5s", "retry": {"max_attempts": 2}, "on_in_doubt": "park"})
        job.drop()

    def test_start_requests_the_tool_of_the_agent_and_knows_the_id_of_the_job(self):
        async def code(ctx, input):
            child = ctx.start("research", {"topic": "bees"})
            apart = ctx.start("research", key="apart", detached=True)
            await ctx.send(child.id, {"channel": "in"}, 7)
            await ctx.send("other", {"key": "go"}, name="go")
            return [child.id, apart.id, await child, await apart]
        job = TestJob(code).run()
        for position, result in (("send", {"accepted": True}), ("go", {"accepted": True}), ("research", "wax"),
                                 ("research@apart", {"job": "x"})):
            job.engine.succeed(position, result)
            job.run()
        child = "54b3e57f-55fb-8e9d-926a-1d03ed35eb04"
        self.assertEqual(job.result, [child, "124190c9-0f45-86a2-8691-f8b12e6e6d1e", "wax", {"job": "x"}])
        found = {position: (one["tool"], one["arguments"]) for position, one in job.engine.log.items()}
        self.assertEqual(found, {
            "research": ("agent:research", {"topic": "bees"}), "research@apart": ("agent:research:detached", {}),
            "send": ("job:send", {"job": child, "to": {"channel": "in"}, "payload": 7}),
            "go": ("job:send", {"job": "other", "to": {"key": "go"}, "payload": None})})
        job.replayed()

    def test_an_agent_that_uses_does_not_name_is_not_started(self):
        async def code(ctx, input):
            codes = []
            for made in (ctx.start("research"), ctx.start("research", detached=True), ctx.send("job", {"key": "k"})):
                try:
                    await made
                except ToolFailed as error:
                    codes.append([error.code, str(error)])
            return codes
        job = TestJob(code)
        job.agent.definition["uses"] = ["*", "agent:other"]
        job.restart()
        job.run()
        refused = "the agent \"agent\" may not call \"{}\": add it to `uses` of the agent's definition"
        self.assertEqual(job.result, [["tool_not_granted", refused.format(name)]
                                      for name in ("agent:research", "agent:research", "job:send")])

    def test_send_has_one_address(self):
        async def code(ctx, input):
            refused = 0
            for to in ({}, {"channel": "c", "key": "k"}, {"channel": ""}, {"wait_key": "k"}, "c"):
                try:
                    ctx.send("job", to, 1)
                except InvalidInput:
                    refused += 1
            return refused
        self.assertEqual(run_job(code).result, 5)

    def test_a_model_generate_text_and_json(self):
        async def code(ctx, input):
            model = ctx.model("main")
            generated = await model.generate({"messages": [{"role": "user", "content": "x"}]})
            return [await model.text("hi"), generated["text"], await model.json("n?", {"type": "number"})]
        job = TestJob(code)
        for position in ("model:main", "model:main#2", "model:main#3"):
            job.run()
            job.engine.succeed(position, {"text": position, "finish_reason": "stop", "model": "m", "usage": {}, "json": 7})
        job.run()
        self.assertEqual(job.result, ["model:main#2", "model:main", 7])
        request = job.engine.at("model:main#2")
        self.assertEqual((request["kind"], request["tool"], request["arguments"]),
                         ("llm", "model:main", {"messages": [{"role": "user", "content": "hi"}]}))
        self.assertEqual(job.engine.at("model:main#3")["arguments"]["schema"], {"type": "number"})
        job.replayed()

    def test_a_call_that_failed_for_good_raises_ToolFailed_with_its_code_tool_and_position(self):
        async def code(ctx, input):
            try:
                return await ctx.call("pay", {"amount": 1})
            except ToolFailed as error:
                return [error.code, str(error), error.tool, error.position]
        job = run_job(code, lambda job: job.engine.fail("pay", "http_402", "no money"))
        self.assertEqual(job.result, ["http_402", "no money", "pay", "pay"])
        job.replayed()

    def test_a_failure_that_nothing_catches_is_the_jobs_also_as_the_cause_of_another_error(self):
        async def wrapped(ctx, input):
            try:
                await ctx.call("pay")
            except ToolFailed as error:
                raise RuntimeError("wrapped") from error
        job = run_job(wrapped, lambda job: job.engine.fail("pay", "http_402", "no"))
        self.assertEqual(job.engine.end, {"failure": {"code": "http_402", "message": "no"}})

        async def raises(ctx, input):
            raise Failure("out_of_stock", "none left")
        self.assertEqual(run_job(raises).engine.end, {"failure": {"code": "out_of_stock", "message": "none left"}})

    def test_what_a_function_returns_is_a_copy_live_as_in_a_replay(self):
        shared = {"list": [1], "at": datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc), "n": 2.0}

        async def code(ctx, input):
            result = await ctx.run("make", "read", lambda: shared)
            shared["list"].append(2)
            result["list"].append(3)
            return result
        job = run_job(code)
        self.assertEqual(job.result, {"list": [1, 3], "at": "1970-01-01T00:00:00.000Z", "n": 2})
        self.assertEqual(repr(job.result["n"]), "2", "1.0 is 1, as in the record")
        self.assertEqual(job.engine.at("make")["outcome"]["result"]["list"], [1])

    def test_arguments_are_taken_when_they_are_given(self):
        async def code(ctx, input):
            args = {"list": [1]}
            made = ctx.run("use", "read", lambda a: len(a["list"]), args=args)
            args["list"].append(2)
            return await made
        self.assertEqual(run_job(code).result, 1)


class Waits(unittest.TestCase):
    def test_sleep_until_wait_receive(self):
        async def code(ctx, input):
            await ctx.sleep("5m")
            await ctx.until("2026-05-01T00:00:00Z")
            signal = await ctx.wait("signal", "order/1", expires="1d")
            return [signal, await ctx.receive("mail", expires=1.5)]
        job = TestJob(code)
        for position, wait, outcome in (
                ("sleep", {"type": "timer", "lasts_ms": 300_000}, None),
                ("until", {"type": "timer", "due_at": "2026-05-01T00:00:00.000000Z"}, None),
                ("signal", {"type": "signal", "key": "order/1", "expires_ms": 86_400_000}, {"ok": True}),
                ("receive", {"type": "message", "channel": "mail", "expires_ms": 1500}, "hello")):
            job.run()
            self.assertEqual(job.engine.at(position)["wait"], wait)
            job.engine.succeed(position, outcome)
        job.run()
        self.assertEqual(job.result, [{"ok": True}, "hello"])
        job.replayed()

    def test_an_approval_yes_no_and_none_in_time(self):
        async def code(ctx, input):
            answers = await asyncio.gather(*[ctx.approval(f"pay {key}?", key=key, data={"key": key}, expires="1h")
                                             for key in "abc"], return_exceptions=True)
            return [[type(one).__name__, one.code, getattr(one, "note", None)] if isinstance(one, ToolFailed) else one["by"]
                    for one in answers]

        def world(job):
            job.engine.succeed("approval@a", {"by": "ada"})
            job.engine.finish("approval@b", rejected=True, result={"note": "too much"})
            job.engine.finish("approval@c", timed_out=True)
        job = run_job(code, world)
        self.assertEqual(job.engine.at("approval@a")["wait"],
                         {"type": "human", "question": "pay a?", "data": {"key": "a"}, "expires_ms": 3_600_000})
        self.assertEqual(job.result, ["ada", ["Rejected", "rejected", "too much"], ["WaitExpired", "wait_expired", None]])
        self.assertTrue(issubclass(Rejected, ToolFailed) and issubclass(WaitExpired, ToolFailed))
        job.replayed()

    def test_on_expire_continue_gives_None(self):
        async def code(ctx, input):
            return await ctx.wait("human", answer="data", on_expire="continue", expires="1h")
        job = run_job(code, lambda job: job.engine.finish("human", timed_out=True))
        self.assertEqual((job.result, job.engine.at("human")["wait"]["accepts_data"]), (None, True))

    def test_cancel_reports_waits_and_calls_and_raises_CancelledError_at_once(self):
        async def code(ctx, input):
            wait, call = ctx.receive("c"), ctx.call("look")
            await ctx.run("step", "read", lambda: 1)
            found = []
            for request in (wait, call):
                request.cancel("not needed")
                try:
                    await request
                except asyncio.CancelledError:
                    found.append(request.position)
            return found
        job = run_job(code)
        self.assertEqual((job.result, job.engine.cancelled), (["receive", "look"], ["receive", "look"]))
        job.replayed()
        self.assertEqual(job.engine.cancelled, ["receive", "look"], "they have outcomes")

    def test_cancelled_requests_are_reported_again_by_the_next_routine(self):
        async def code(ctx, input):
            call = ctx.run("slow", "idempotent", lambda: 1)
            await ctx.call("look")
            call.cancel()
            await ctx.call("after")
        job = TestJob(code, admits=lambda request: True)
        job.routine.on_success = lambda *_: True  # the function does not end
        job.run()
        job.engine.succeed("look", 1)
        job.run()
        self.assertEqual(job.engine.cancelled, ["slow"], "an open try is awaited")
        job.restart()
        job.run()
        self.assertEqual(job.engine.cancelled, ["slow", "slow"])
        job.drop()

    def test_a_request_that_is_cancelled_in_its_own_advance_is_not_made(self):
        async def code(ctx, input):
            ctx.call("look").cancel()
            await ctx.run("step", "read", lambda: 1)
            return "done"
        job = run_job(code)
        self.assertEqual((job.positions, job.engine.cancelled), (["step"], []))

    def test_a_cancelled_request_that_is_not_caught_fails_the_job(self):
        async def code(ctx, input):
            request = ctx.receive("c")
            request.cancel()
            await request
        self.assertEqual(run_job(code).result, {"failure": "cancelled"})


class Values(unittest.TestCase):
    def test_times_random_numbers_uuids_and_patches_are_recorded_emitted_values_counted(self):
        async def part(ctx):
            return [ctx.now(), ctx.random(), ctx.uuid()]

        async def code(ctx, input):
            before = [ctx.now(), ctx.random(), ctx.uuid(), ctx.patched("new")]
            await ctx.sleep(0.001)
            after = await ctx.scope("s", part)
            ctx.emit("progress", {"n": 1})
            ctx.publish("state", "x")
            return [*before, *after]
        job = run_job(code, lambda job: job.engine.succeed("sleep", None))
        values = job.engine.values
        self.assertEqual(sorted(values), ["patch:new", "random", "time:1", "time:s/1", "uuid:1", "uuid:s/1"])
        self.assertRegex(values["time:1"]["time"], r"^2026-01-01T00:00:\d\d\.\d{3}000Z$")
        self.assertRegex(values["uuid:1"], re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab]"))
        self.assertEqual([(one["name"], one["published"]) for one in job.engine.emitted_values],
                         [("progress", False), ("state", True)])
        job.replayed()
        self.assertEqual(len(job.engine.emitted_values), 2)

    def test_patched_is_false_in_a_job_that_had_passed_there_before_the_change(self):
        version = ["old"]

        async def code(ctx, input):
            if version[0] == "new" and ctx.patched("change"):
                return "new"
            await ctx.receive("c")
            return "old"
        job = TestJob(code).run()
        version[0] = "new"
        job.restart()
        job.run()
        job.engine.succeed("receive", None)
        job.run()
        self.assertEqual((job.result, job.engine.values["patch:change"]), ("old", False))
        self.assertEqual(run_job(code).result, "new")

    def test_now_never_goes_back_also_after_a_replay_by_an_earlier_clock(self):
        times = []

        async def code(ctx, input):
            times.append(ctx.now())
            await ctx.receive("c")
            times.append(ctx.now())
        job = run_job(code)
        job.restart(now="2025-01-01T00:00:00.000000Z")
        job.run()
        job.engine.succeed("receive", None)
        job.run()
        self.assertEqual(times[0], times[1])
        self.assertGreaterEqual(times[2], times[1])

    def test_durations_and_times(self):
        self.assertEqual([duration_ms(one) for one in ("500ms", "30s", "5m", "24h", "7d", 1.5, datetime.timedelta(days=1))],
                         [500, 30_000, 300_000, 86_400_000, 604_800_000, 1500, 86_400_000])
        self.assertEqual(time_value(1767225600000), {"ms": 1767225600000, "time": "2026-01-01T00:00:00.000000Z"})
        for bad in ("", "1", "-1s", "1y", -1, float("nan"), "36501d", None, True):
            self.assertRaises(InvalidInput, duration_ms, bad)

    def test_the_job_is_that_of_the_start(self):
        async def code(ctx, input):
            return [ctx.job.id, ctx.job.agent, ctx.job.labels, ctx.job.created_at.isoformat(), input]
        self.assertEqual(run_job(code, input={"n": 1}).result,
                         ["job-1", "agent", {"team": "a"}, "2026-01-01T00:00:00+00:00", {"n": 1}])
