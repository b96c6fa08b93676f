"""Warnings of `aetheris dev`."""
import pathlib
import random
import re
import sys
import tempfile
import time
import unittest
import uuid

from aetheris.dev_warnings import warn_about_unrecorded

from .support.harness import run_job


class Warnings(unittest.TestCase):
    def setUp(self):
        self.warnings = []
        self.addCleanup(warn_about_unrecorded(self.warnings.append))

    def test_they_name_the_line_what_is_used_and_what_to_use_instead_once(self):
        def helper():
            return time.time()

        async def code(ctx, input):
            found = [helper() for _ in range(3)]
            await ctx.sleep(1)
            found += [time.time_ns(), random.random(), random.choice([1]), len(str(uuid.uuid4()))]
            return all(isinstance(one, (int, float)) for one in found)

        def sync(ctx, input):
            found = [helper() for _ in range(3)]
            ctx.sleep(1)
            return helper() == 0 or [random.randint(1, 1), *ctx.map("m", [1], lambda c, item, i: len(str(uuid.uuid4())))]
        job = run_job(code, lambda job: job.engine.succeed("sleep", None))
        self.assertEqual(job.result, True)
        found = [re.fullmatch(r".*test_dev_warnings\.py:\d+: (.*)\(\) is not recorded: .* Use (.*)", one).groups()
                 for one in self.warnings]
        self.assertEqual(found, [("time.time", "ctx.now()"), ("time.time_ns", "ctx.now()"), ("random.random", "ctx.random()"),
                                 ("random.choice", "ctx.random()"), ("uuid.uuid4", "ctx.uuid()")])
        self.assertIn("test_dev_warnings.py:23: ", self.warnings[0])
        self.warnings.clear()
        self.assertEqual(run_job(sync, lambda job: job.engine.succeed("sleep", None)).result, [1, 36])
        self.assertEqual(len(self.warnings), 2, "the line of the helper was named before")

    def test_they_are_not_printed_for_functions_other_code_packages_and_the_sdk(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "site-packages/stamping.py"
            library.parent.mkdir()
            library.write_text("import random, time\n\ndef stamp():\n    return len([time.time(), random.random()])\n")
            sys.path.insert(0, str(library.parent))
            self.addCleanup(sys.path.remove, str(library.parent))
            import stamping

            def function():
                return len([time.time(), random.random(), uuid.uuid4()])

            async def coroutine():
                return function()

            async def code(ctx, input):
                recorded = len([ctx.now(), ctx.random(), ctx.uuid()])
                return [recorded, stamping.stamp(), await ctx.run("a", "read", function), await ctx.run("b", "read", coroutine)]
            self.assertEqual(run_job(code).result, [3, 2, 3, 3])
        self.assertTrue(time.time() > 0 and random.random() < 1)
        self.assertEqual(self.warnings, [])

    def test_they_leave_what_they_wrap_as_it_is(self):
        random.seed(7)
        first = [random.random(), random.randint(1, 100), random.sample(range(10), 3)]
        random.seed(7)
        self.assertEqual([random.random(), random.randint(1, 100), random.sample(range(10), 3)], first)
        self.assertEqual((random.random.__name__, uuid.uuid4().version), ("random", 4))


if __name__ == "__main__":
    unittest.main()
