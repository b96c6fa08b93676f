"""Functions: which calls a worker remembers, and what call gives."""
import asyncio
import os
import tempfile
import unittest

from aetheris import AetherisError, tool
from aetheris.functions import Functions
from aetheris.redact import redactor
from aetheris.values import steady

CALLS = 5_000
STEP = {"type": "perform", "job": "job-1", "tool": "add", "arguments": {}, "try": 1, "key": "k", "execution_key": "e",
        "send_within_ms": 10_000, "timeout_ms": 10_000}


@tool(effect="read")
async def add():
    return {"text": "x" * 100}


class Host:
    def __init__(self, acknowledged_at):
        self.loop = asyncio.get_running_loop()
        self.acknowledged_at = acknowledged_at
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def routine(self, number):
        return None

    def tool(self, name):
        return add

    def post(self, function):
        self.loop.call_soon_threadsafe(function)


async def remembered(acknowledged_at):
    functions = Functions(Host(acknowledged_at), 1)
    for call in range(1, CALLS + 1):
        functions.perform({**STEP, "call": call, "invocation": f"i-{call}"}, steady())
        if call % 100 == 0:
            await functions.when_idle()
    return functions


class Remembered(unittest.TestCase):
    def test_a_call_whose_end_the_server_has_is_not_kept(self):
        async def main():
            functions = await remembered(lambda: steady() + 60)
            self.assertLess(functions.kept, 2_000)
            self.assertEqual(functions.left()["left"], [])
        asyncio.run(main())

    def test_a_call_whose_end_the_server_may_not_have_is_kept_and_listed(self):
        async def main():
            functions = await remembered(steady)
            left = functions.left()
            self.assertEqual((functions.kept, len(left["left"])), (CALLS, CALLS))
            self.assertTrue(14_000 < left["left_for_ms"] <= 15_000, left["left_for_ms"])
        asyncio.run(main())

    def test_an_end_of_a_session_that_is_gone_is_kept_whatever_the_next_one_acknowledges(self):
        async def main():
            ahead = [0]
            functions = await remembered(lambda: steady() + ahead[0])
            functions.on_session_gone()
            ahead[0] = 60
            functions.left()
            self.assertEqual(len(functions.late_ends()), CALLS)
        asyncio.run(main())


class Begin(unittest.TestCase):
    def test_a_function_that_waited_too_long_for_a_thread_is_not_begun(self):
        begun = []

        @tool(effect="at_most_once")
        def slow(args, call):
            begun.append(args["n"])
            call.signal.wait(0.3)

        async def main():
            functions = Functions(Host(steady), 1)
            functions._host.tool = lambda name: slow
            for call in (1, 2, 3):
                functions.perform({**STEP, "call": call, "invocation": f"i-{call}", "arguments": {"n": call},
                                   "send_within_ms": 150, "timeout_ms": 100 if call == 2 else 10_000}, steady())
            await functions.when_idle()
            ends = [(message["type"], message.get("call"), (message.get("failure") or message.get("unknown") or {}).get("code"))
                    for message in functions._host.sent]
            self.assertEqual(begun, [1])
            self.assertEqual(ends, [("ended", 2, "timeout"), ("ended", 1, None), ("late", None, "not_sent"),
                                    ("ended", 3, "not_sent")])
        asyncio.run(main())


class Secret(unittest.TestCase):
    def test_call_secret_reads_a_variable_or_a_file_and_hides_it(self):
        async def main():
            functions = Functions(Host(steady), 1)
            found = []

            async def reads(args, call):
                for name in ("SHOP_PIN", "SHOP_PASS", "SHOP_NONE", "SHOP_LOST"):
                    try:
                        found.append(call.secret(name))
                    except AetherisError as error:
                        found.append(error.code)
                return found
            functions._host.tool = lambda name: tool("reads", effect="read")(reads)
            with tempfile.NamedTemporaryFile("w") as file:
                file.write("from a file\n")
                file.flush()
                os.environ.update({"SHOP_PIN": "0123456789", "SHOP_PASS_FILE": file.name, "SHOP_LOST_FILE": "/nowhere"})
                functions.perform({**STEP, "call": 1, "invocation": "i"}, steady())
                await functions.when_idle()
            self.assertEqual(found, ["0123456789", "from a file", "secret_missing", "secret_missing"])
            self.assertEqual(functions._host.sent[0]["result"],
                             ["[secret SHOP_PIN]", "[secret SHOP_PASS]", "secret_missing", "secret_missing"])
        try:
            asyncio.run(main())
        finally:
            for name in ("SHOP_PIN", "SHOP_PASS_FILE", "SHOP_LOST_FILE"):
                os.environ.pop(name, None)
            redactor.read({})
