"""Functions: which calls a worker remembers, and what call gives."""
import asyncio
import os
import tempfile
import unittest

from aetheris import AetherisError, InvalidInput, tool
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
            self.assertEqual(ends, [("ended", 2, "not_sent"), ("ended", 1, None), ("ended", 3, "not_sent")])
            self.assertEqual([one["invocation"] for one in functions.left()["left"]], ["i-1"])
        asyncio.run(main())

    def test_a_call_that_is_cut_off_before_its_function_is_begun_ends_as_not_sent(self):
        begun = []

        @tool(effect="at_most_once")
        async def on_loop(args):
            begun.append("on_loop")

        @tool(effect="at_most_once")
        def on_thread(args, call):
            begun.append("on_thread")
            call.signal.wait(10)

        async def main():
            functions = Functions(Host(steady), 1)
            functions._host.tool = {"on_loop": on_loop, "on_thread": on_thread}.get
            functions.perform({**STEP, "call": 1, "invocation": "i-1", "tool": "on_thread"}, steady())
            while not begun:
                await asyncio.sleep(0.001)
            for call, name in ((2, "on_loop"), (3, "on_thread")):
                functions.perform({**STEP, "call": call, "invocation": f"i-{call}", "tool": name}, steady())
                functions.abandon(call)
            self.assertEqual([one["invocation"] for one in functions.left()["left"]], ["i-1"])
            self.assertEqual(functions.running, 1)
            functions.abandon(1)
            await asyncio.wait_for(functions.when_idle(), 10)
            await asyncio.sleep(0.05)
            not_sent = {"code": "not_sent", "message": "the function was not begun in time", "definite": True,
                        "retryable": True}
            self.assertEqual([message for message in functions._host.sent if message.get("call") in (2, 3)],
                             [{"type": "ended", "call": call, "failure": not_sent} for call in (2, 3)])
            self.assertEqual(begun, ["on_thread"])
        asyncio.run(main())

    def test_a_coroutine_of_a_function_on_a_thread_that_is_cut_off_before_its_first_step_ends(self):
        async def body():
            await asyncio.sleep(10)

        async def main():
            functions = Functions(Host(steady), 1)
            functions._host.tool = lambda name: tool("gives", effect="read")(lambda args: body())
            start_task = functions._start_task

            def start_and_cut_off(*args):
                start_task(*args)
                functions.abandon(1)
            functions._start_task = start_and_cut_off
            functions.perform({**STEP, "call": 1, "invocation": "i-1"}, steady())
            await asyncio.wait_for(functions.when_idle(), 5)
            self.assertEqual(functions._host.sent[0]["unknown"]["code"], "abandoned")
        asyncio.run(main())


class Output(unittest.TestCase):
    def perform(self, function):
        async def main():
            functions = Functions(Host(steady), 1)
            functions._host.tool = lambda name: tool("prints", effect="read")(function)
            functions.perform({**STEP, "call": 1, "invocation": "i"}, steady())
            await functions.when_idle()
            return functions._host.sent
        return asyncio.run(main())

    def test_a_report_that_is_larger_than_the_server_takes_is_refused_at_its_line(self):
        refused = []

        def reports(args, call):
            call.progress("x" * 4_094)
            for report in ("x" * 4_095, "ü" * 2_048, "\x01" * 700, {"a": ["x" * 4_090]}, "k3y-of-8 " * 400):
                try:
                    call.progress(report)
                except InvalidInput as error:
                    refused.append((error.code, str(error)))
        redactor.read({"SHOP_API_KEY": "k3y-of-8"})
        try:
            sent = self.perform(reports)
        finally:
            redactor.read({})
        self.assertEqual([message["type"] for message in sent], ["progress", "ended"])
        self.assertEqual([code for code, _ in refused], ["payload_too_large"] * 5)
        self.assertIn("the report of progress has more than 4 KiB as JSON", refused[0][1])

    def test_text_beyond_16_MiB_of_a_call_is_dropped(self):
        def prints(args, call):
            for piece in ("x" * (12 << 20), "ü" * (1 << 20), "x" * (2 << 20), "y" * (1 << 20), "z"):
                call.text(piece)
        sent = [(message["at"] >> 20, len(message["text"])) for message in self.perform(prints)
                if message["type"] == "text"]
        self.assertEqual(sent, [(at, 1 << 20) for at in (*range(13), 14, 15)])

    def test_after_a_piece_of_text_that_does_not_fit_no_later_one_is_sent(self):
        def prints(args, call):
            for piece in ("x", "y" * (16 << 20), "z"):
                call.text(piece)
        sent = "".join(message["text"] for message in self.perform(prints) if message["type"] == "text")
        self.assertEqual((len(sent), sent[0], set(sent[1:])), (1 + (15 << 20), "x", {"y"}))


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
