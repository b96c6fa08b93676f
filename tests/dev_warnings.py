#!/usr/bin/env python3
"""`aetheris dev` warns about code that uses what is not recorded, and about requests that are not awaited.

Prints `ok NAME` or `not ok NAME` for each test.
  dev_warnings.py [WORDS]   only tests whose name contains WORDS
"""
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from dev_command import Folder  # noqa: E402
from shared.home import run_tests  # noqa: E402
from shared.program import ROOT  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def warnings_of(folder, typescript, python, names):
    """Runs an agent of each twice with `dev`; it returns 4."""
    folder.use_typescript()
    folder.env["AETHERIS_SDK_PYTHON"] = str(ROOT / "sdk/python")
    folder.write("agent.ts", 'import { agent } from "SDK/src/index.ts";\n' + typescript, executable=False)
    folder.write("agent.py", python, executable=False)
    folder.dev("agent.ts", "agent.py", "--no-watch")
    for name in 2 * names:
        folder.wait_for(f"agent {name}\n")
        done = folder.run("run", "agent.ts", name)
        assert done.returncode == 0 and done.stdout == "4\n", (done, folder.log())
    return sorted(re.findall(r"warn: (agent\.\w+:\d+: .*)$", folder.log(), re.M))


@test
def an_agent_that_uses_what_is_not_recorded_is_warned_about():
    typescript = """export const stamps = agent("stamps", {}, async (ctx) => {
  const n = [Date.now(), Math.random()].length;
  return n + (await ctx.run("a", "read", () => [Date.now(), Math.random()].length));
});
"""
    python = """import random, time
from aetheris import agent
@agent
async def stamps_too(ctx, input):
    n = len([time.time(), random.random()])
    return n + await ctx.run("a", "read", lambda: len([time.time(), random.random()]))
"""
    with Folder() as folder:
        lines = warnings_of(folder, typescript, python, ("stamps", "stamps_too"))
        found = [re.sub(r" is not recorded.*( Use ctx\.)", r"\1", line) for line in lines]
        assert found == ["agent.py:5: random.random() Use ctx.random()", "agent.py:5: time.time() Use ctx.now()",
                         "agent.ts:3: Date.now() Use ctx.now()", "agent.ts:3: Math.random() Use ctx.random()"], found
        # Another command of the worker does not wrap them.
        assert "is not recorded" not in folder.run("run", "agent.py", "stamps_too", "--store", "sqlite:other.db").stderr


@test
def a_request_that_is_not_awaited_is_warned_about():
    typescript = """export const forgets = agent("forgets", {}, async (ctx) => {
  ctx.run("send", "idempotent", () => null);
  return 4;
});
"""
    python = """from aetheris import agent
@agent
async def leaves_too(ctx, input):
    ctx.run("send", "idempotent", lambda: None)
    ctx.sleep(1).cancel()
    ctx.fetch("http://127.0.0.1:1/")
    return 4
"""
    with Folder() as folder:
        found = warnings_of(folder, typescript, python, ("forgets", "leaves_too"))
        lost = 'ctx.run("send") was not awaited before the agent returned; its outcome is lost. Add await'
        assert found == [f"agent.py:4: {lost}", "agent.py:6: ctx.fetch() was not awaited; it did nothing. Add await",
                         f"agent.ts:3: {lost}"], found


if __name__ == "__main__":
    sys.exit(run_tests("dev warnings", TESTS, " ".join(sys.argv[1:])))
