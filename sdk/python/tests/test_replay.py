"""What a routine does with its record, and with mistakes of its author."""
import asyncio
import base64
import contextlib
import dataclasses
import decimal
import io
import json
import os
import pathlib
import unittest
import uuid

from aetheris import Evicted, Failure, InvalidInput, ToolFailed, agent, current, tool
from aetheris.canonical import canonical, to_json
from aetheris.errors import failure_in
from aetheris.positions import Positions
from aetheris.redact import RedactedText, Redactor, redactor

from .support.harness import TestJob, run_job


class Json(unittest.TestCase):
    def test_what_is_not_JSON_is_input_invalid_at_its_line_and_nothing_is_requested(self):
        cycle = []
        cycle.append(cycle)

        async def coroutine():
            pass
        waiting = coroutine()
        for value, words in ((float("nan"), "is nan"), (float("inf"), "is inf"), (2 ** 53, "beyond 2^53-1"),
                             (1e17, "beyond 2^53-1"), ("\ud800", "surrogate"), ({1}, "set"), (b"x", "bytes"),
                             (decimal.Decimal(1), "Decimal"), ({1: 2}, "not a text"), (cycle, "contains itself"),
                             (lambda: 1, "function"), (waiting, "await it first")):
            async def code(ctx, input):
                try:
                    ctx.call("x", {"x": value})
                except InvalidInput as error:
                    return [error.code, str(error)]
            job = run_job(code)
            self.assertEqual((job.result[0], job.positions), ("input_invalid", []))
            self.assertIn(words, job.result[1])
        waiting.close()

    def test_what_is_JSON_in_another_form(self):
        @dataclasses.dataclass
        class Point:
            x: float
            y: tuple
        value = {"p": Point(1.0, (1, -0.0)), "u": uuid.UUID(int=1), "big": 1e300, "e": 1.5e-7, "s": 1e-6, "ü\u20ac": None}
        self.assertEqual(canonical(to_json(value, "x")),
                         '{"big":1e+300,"e":1.5e-7,"p":{"x":1,"y":[1,0]},"s":0.000001,'
                         '"u":"00000000-0000-0000-0000-000000000001","ü€":null}')

    def test_canonical_JSON_is_that_of_RFC_8785(self):
        folder = os.environ.get("AETHERIS_TESTDATA")
        if not folder or not (pathlib.Path(folder) / "jcs").is_dir():
            self.skipTest("AETHERIS_TESTDATA has no jcs")
        checked = 0
        for path in sorted((pathlib.Path(folder) / "jcs").rglob("input/*.json")):
            expected = path.parent.parent / "output" / path.name
            value = json.loads(path.read_text(encoding="utf-8"))
            if expected.exists():
                self.assertEqual(canonical(value), expected.read_text(encoding="utf-8").strip(), path.name)
                checked += 1
        self.assertGreater(checked, 3)

    def test_a_value_may_have_16_MiB_and_an_emitted_one_256_KiB(self):
        with self.assertRaises(InvalidInput) as caught:
            to_json(["x" * (16 << 20)], "it")
        self.assertEqual(caught.exception.code, "payload_too_large")
        to_json(["x" * (15 << 20)], "it")


class Secrets(unittest.TestCase):
    def test_values_of_secrets_are_replaced(self):
        redactor = Redactor({"SHOP_API_KEY": "s3cr3t/value", "SHORT_KEY": "abc", "PATH": "/bin/with/8bytes", "A_TOKEN": "s3cr3t/v"})
        self.assertEqual(redactor.text("x s3cr3t/value y s3cr3t%2Fvalue z s3cr3t/v abc /bin/with/8bytes"),
                         "x [secret SHOP_API_KEY] y [secret SHOP_API_KEY] z [secret A_TOKEN] abc /bin/with/8bytes")
        for encode in (lambda value: value.hex(), lambda value: value.hex().upper(), lambda value: base64.b64encode(b"a" + value).decode(),
                       lambda value: base64.urlsafe_b64encode(b"bc" + value).decode()):
            self.assertIn("[secret SHOP_API_KEY]", redactor.text(f"before {encode(b's3cr3t/value')} after"))
        self.assertEqual(redactor.value({"a": ["s3cr3t/value"], "s3cr3t/value": 1}),
                         {"a": ["[secret SHOP_API_KEY]"], "[secret SHOP_API_KEY]": 1})

    def test_a_secret_is_replaced_in_the_JSON_of_a_text_that_is_JSON(self):
        pem = "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgk\u00e4\n-----END PRIVATE KEY-----\n"
        redactor = Redactor({"SHOP_KEY": pem})
        for inner in (False, True):
            for outer in (False, True):
                text = json.dumps({"body": json.dumps({"key": pem}, ensure_ascii=inner)}, ensure_ascii=outer)
                self.assertEqual(redactor.text(text), '{"body": "{\\"key\\": \\"[secret SHOP_KEY]\\"}"}')

    def test_a_value_is_found_in_json_inside_of_json(self):
        value = '-----BEGIN KEY-----\nMIIE"ü\\q😀\n-----END KEY-----\n'
        redactor = Redactor({"PEM_KEY": value})
        for ascii_at in range(5):
            body = value
            for depth in range(1, 5):
                body = json.dumps({"inner": body}, ensure_ascii=depth == ascii_at)
                clean = redactor.text(body)
                self.assertIn("[secret PEM_KEY]", clean, (depth, ascii_at))
                self.assertNotIn("MIIE", clean, (depth, ascii_at))

    def test_a_name_with_a_secret_is_refused(self):
        redactor.read({"SHOP_TOKEN": "tok-123456789"})
        try:
            async def code(ctx, input):
                await ctx.call("look", {}, name="tok-123456789")
            with contextlib.redirect_stderr(io.StringIO()):
                job = run_job(code)
            self.assertIn("no secret", job.result["exception"])
            self.assertNotIn("tok-123456789", json.dumps([job.host.sent, job.engine.record(), job.engine.end]))
        finally:
            redactor.read({})

    def test_pieces_of_a_text_together_have_no_secret(self):
        redactor.read({"SHOP_API_KEY": "correct-horse"})
        try:
            text = RedactedText()
            pieces = [text.feed(piece) for piece in ("the cor", "rect-", "horse is c", "orrect")] + [text.end()]
            self.assertEqual("".join(pieces), "the [secret SHOP_API_KEY] is correct")
        finally:
            redactor.read({})

    def test_no_secret_of_the_environment_leaves_a_routine(self):
        redactor.read({"SHOP_PASSWORD": "correct horse"})
        try:
            async def code(ctx, input):
                made = await ctx.run("a", "read", lambda a: ["correct horse", a["p"]], args={"p": "correct horse"})
                await ctx.scope("s", lambda at: at.approval("correct horse?", data="correct horse"), fold=True)
                ctx.emit("e", "correct horse")
                raise RuntimeError("no correct horse " + made[0])
            with contextlib.redirect_stderr(io.StringIO()) as printed:
                job = run_job(code, lambda job: job.engine.succeed("s/approval", {"by": "ada"}))
            self.assertNotIn("correct horse", json.dumps([job.host.sent, job.engine.record(), job.engine.end]))
            self.assertIn("[secret SHOP_PASSWORD]", job.result["exception"])
            self.assertNotIn("correct horse", printed.getvalue())
        finally:
            redactor.read({})


class Mistakes(unittest.TestCase):
    def test_names_keys_effects_durations_and_channels_are_checked(self):
        def twice(ctx):
            ctx.run("k", "read", lambda: 1, key="k")
            ctx.run("k", "read", lambda: 1, key="k")
        mistakes = [
            lambda ctx: ctx.run("", "read", lambda: 1), lambda ctx: ctx.run("a b", "read", lambda: 1),
            lambda ctx: ctx.run("a/b", "read", lambda: 1), lambda ctx: ctx.run("a", "write", lambda: 1),
            lambda ctx: ctx.run("a", "read", {}), lambda ctx: ctx.call("a", []), lambda ctx: ctx.call(""),
            lambda ctx: ctx.run("a", "read", lambda: 1, key="#1"), lambda ctx: ctx.sleep("soon"),
            lambda ctx: ctx.until("never"), lambda ctx: ctx.receive(""), lambda ctx: ctx.wait("timer"),
            lambda ctx: ctx.wait("human", on_expire="go_on"), lambda ctx: ctx.emit("a b", 1), lambda ctx: ctx.patched(""),
            lambda ctx: ctx.emit("a", "x" * 300_000), lambda ctx: ctx.map("m", [1], lambda *_: 1, parallel=0),
            lambda ctx: ctx.race("r", {}), lambda ctx: ctx.race("r", {"a/b": lambda c: 1}), twice,
            lambda ctx: ctx.fetch("nowhere"), lambda ctx: ctx.fetch("http://a:b@host/"), lambda ctx: ctx.fetch("ftp://host/")]
        for mistake in mistakes:
            async def code(ctx, input):
                try:
                    made = mistake(ctx)
                    if asyncio.iscoroutine(made):
                        await made
                except InvalidInput as error:
                    return error.code
            self.assertIn(run_job(code).result, ("input_invalid", "payload_too_large"), mistakes.index(mistake))

    def test_definitions_are_checked(self):
        for mistake in (lambda: tool("a b")(lambda: 1), lambda: tool("run:x")(lambda: 1),
                        lambda: tool(effect="write")(lambda: 1), lambda: agent("")(lambda c, i: 1),
                        lambda: agent(loop="other")(lambda c, i: 1), lambda: agent("a", loop="host")(lambda c, i: 1),
                        lambda: agent(7), lambda: agent("x")(None)):
            self.assertRaises(InvalidInput, mistake)

    def test_an_exception_of_the_code_is_no_failure_and_is_reported_with_the_job(self):
        async def code(ctx, input):
            return {}["missing"]
        job = run_job(code)
        end = job.engine.end["exception"]
        self.assertEqual((end["name"], end["message"]), ("KeyError", "'missing'"))
        self.assertIn("test_replay.py", end["stack"])
        self.assertRegex("\n".join(job.host.logged), r'^error job job-1 \(agent agent\): an exception ended the code. The job parks(.|\n)*KeyError')

    def test_a_result_that_is_not_JSON_is_an_exception(self):
        async def code(ctx, input):
            return float("nan")
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertIn('the result of the agent "agent" is nan', run_job(code).result["exception"])

    def test_ctx_in_a_function_ends_the_routine(self):
        async def code(ctx, input):
            try:
                await ctx.run("a", "read", lambda: ctx.run("b", "read", lambda: 1))
            except ToolFailed:
                pass
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertIn("inside of a function", run_job(code).result["exception"])

    def test_positions_are_limited_and_counts_are_by_name_key_and_content(self):
        made = Positions()
        self.assertEqual([made.next("s", "a", content="00ff"), made.next("s", "a", content="00ff"), made.next("s", "a")],
                         ["s/a~00ff", "s/a~00ff#2", "s/a"])
        self.assertRaises(InvalidInput, made.next, "x" * 500, "name-name-name")
        self.assertRaises(InvalidInput, made.next, "/".join("s" * 17), "a")

    def test_the_failure_in_an_error(self):
        failure = Failure("a", "b")
        cause = RuntimeError()
        cause.__cause__ = failure
        self.assertEqual((failure_in(cause), failure_in(ValueError())), (failure, None))


class Grants(unittest.TestCase):
    def test_a_tool_that_uses_does_not_name_fails_and_is_not_requested(self):
        async def code(ctx, input):
            codes = []
            for tool_name in ("other", "files.read", "own"):
                try:
                    await ctx.call(tool_name)
                except ToolFailed as error:
                    codes.append([error.code, error.position])
            try:
                await ctx.model("big").text("x")
            except ToolFailed as error:
                return codes + [error.code]
        job = TestJob(code)
        job.agent.definition["uses"] = ["files.*", "model:main"]
        job.restart()
        job.host.tools = ("own",)
        for position in ("files.read", "own"):
            job.run()
            job.engine.succeed(position, 1)
        job.run()
        self.assertEqual((job.result, job.positions), ([["tool_not_granted", "other"], "tool_not_granted"], ["files.read", "own"]))


class Replay(unittest.TestCase):
    def test_a_changed_argument_a_removed_request_and_an_early_end_are_found_at_once(self):
        version = [1]

        async def code(ctx, input):
            if version[0] == 3:
                return "end"
            if version[0] != 2:
                await ctx.call("look", {"amount": 40.5 if version[0] == 4 else 40})
            await ctx.receive("c")
        job = TestJob(code).run()
        job.engine.succeed("look", 1)
        job.run()
        findings = []
        for version[0] in (2, 3, 4):
            job.restart()
            job.host.settled(job.routine)
            diverged = job.host.diverged
            findings.append((diverged["finding"], diverged["position"], "test_replay.py" in diverged.get("where", "")))
            self.assertEqual(job.host.sent, [])
        self.assertEqual(findings, [("missing", "look", False), ("ended", "look", False), ("arguments", "look", True)])
        version[0] = 1
        job.restart()
        job.run()
        self.assertIsNone(job.host.diverged)
        job.drop()

    def test_divergence_in_a_sync_agent(self):
        amount = [1]

        def code(ctx, input):
            ctx.call("look", {"amount": amount[0]})
        job = TestJob(code).run()
        amount[0] = 2
        job.restart()
        job.host.settled(job.routine)
        self.assertEqual((job.host.diverged["finding"], job.host.diverged["found"]["tool"]), ("arguments", "look"))
        job.drop()

    def test_with_an_erased_blind_arguments_are_not_compared(self):
        amounts = iter(range(10))

        async def code(ctx, input):
            return await ctx.call("x", {"amount": next(amounts)})
        job = TestJob(code, blind_erased=True).run()
        job.restart()
        job.run()
        job.engine.succeed("x", "ok")
        self.assertEqual(job.run().result, "ok")

    def test_a_request_that_was_recorded_without_its_call_is_requested_again(self):
        async def code(ctx, input):
            await ctx.call("x", {"a": 1})
        job = TestJob(code).run()
        del job.engine.at("x")["arguments_hash"]
        start = job.engine.start()
        job.drop()
        job.begin(start)
        job.host.settled(job.routine)
        self.assertEqual([one["position"] for one in job.host.sent[0]["requests"]], ["x"])
        job.drop()

    def test_replaying_is_true_until_the_frontier_and_log_is_silent(self):
        seen = []

        async def code(ctx, input):
            seen.append(ctx.replaying)
            ctx.log.info("begun", n=1)
            await ctx.receive("a")
            seen.append(ctx.replaying)
            await ctx.receive("b")
        job = TestJob(code).run()
        self.assertEqual(job.host.logged, ['info begun {"n": 1}'])
        job.engine.succeed("receive", None)
        job.run()
        job.restart()
        job.run()
        self.assertEqual((seen, job.host.logged), ([False, False, True, True], []))
        job.drop()

    def test_a_dropped_routine_gets_CancelledError_and_ctx_performs_nothing(self):
        seen = []

        async def code(ctx, input):
            try:
                await ctx.receive("a")
            except asyncio.CancelledError:
                seen.append("cancelled")
                try:
                    await ctx.run("cleanup", "read", lambda: 1)
                except Evicted:
                    seen.append("evicted")
                ctx.log.info("silent")
        job = TestJob(code).run()
        host, routine = job.host, job.routine
        routine.drop("suspended")
        routine.deliver([{"position": "receive", "result": 1}])
        host.settled(routine)
        self.assertEqual((seen, job.positions, host.logged, len(host.sent)), (["cancelled", "evicted"], ["receive"], [], 1))
        job.routine = None

    def test_code_that_does_not_end_is_kept_and_never_run_again(self):
        rounds = []

        async def code(ctx, input):
            while True:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    rounds.append(1)
        job = TestJob(code).run()
        job.drop()
        self.assertEqual(len(rounds), 100)

    def test_current_is_the_ctx_of_the_scope_and_None_in_a_function(self):
        self.assertIsNone(current())

        async def part(at):
            return current() is at

        async def code(ctx, input):
            return [await ctx.run("f", "read", lambda: current() is None), await ctx.scope("s", part), current() is ctx]
        self.assertEqual(run_job(code).result, [True, True, True])

    def test_a_record_of_1000_steps_is_replayed(self):
        async def code(ctx, input):
            return sum([await ctx.run("n", "read", lambda a: a["i"], args={"i": i}) for i in range(1000)])
        job = run_job(code)
        self.assertEqual(job.result, 499_500)
        job.replayed()


class HostLoop(unittest.TestCase):
    """loop="host": on the ordinary loop of the worker."""

    def test_other_work_between_requests_is_awaited(self):
        async def code(ctx, input):
            await asyncio.sleep(0.02)
            one = await ctx.run("one", "read", lambda: 1)
            value = await asyncio.get_running_loop().run_in_executor(None, lambda: 5)
            return [one, value, *await asyncio.gather(ctx.call("a"), ctx.call("b"))]
        job = TestJob(code, loop="host", other_work_s=10)
        for _ in range(200):
            job.run()
            if "b" in job.engine.log:
                break
            job.host.loop.run_until_complete(asyncio.sleep(0.005))
        job.engine.succeed("b", 2)
        job.engine.succeed("a", 1)
        job.run()
        self.assertEqual(job.result, [1, 5, 1, 2])
        job.drop()

    def test_a_dropped_routine_leaves_no_task(self):
        seen = []

        async def waits(ctx, name):
            try:
                await ctx.receive(name)
            except asyncio.CancelledError:
                seen.append(name)
                raise

        async def code(ctx, input):
            task = asyncio.ensure_future(waits(ctx, "a"))
            await waits(ctx, "b")
            await task
        job = TestJob(code, loop="host").run()
        loop = job.host.loop
        job.drop()
        self.assertEqual(sorted(seen), ["a", "b"])
        self.assertEqual([task for task in asyncio.all_tasks(loop) if not task.done()], [])

    def test_a_request_that_is_missing_is_found_after_a_while(self):
        names = iter(("a", "b"))

        async def code(ctx, input):
            await ctx.call(next(names))
        job = TestJob(code, loop="host", other_work_s=0.05).run()
        job.restart()
        job.host.settled(job.routine)
        job.host.loop.run_until_complete(asyncio.sleep(0.1))
        self.assertEqual(job.host.diverged["finding"], "missing")
        job.drop()
