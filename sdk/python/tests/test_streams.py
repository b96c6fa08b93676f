"""Streams of ctx.fetch: a worker, a scripted server, and an HTTP server that writes pieces when the test does."""
import asyncio
import threading
import unittest

from aetheris import InvalidInput, ToolFailed, Worker, agent
from aetheris.http_response import Response, _Lines
from aetheris.streams import BodyStream

from .support.server import LIMITS, ScriptedServer, welcome
from .test_wire import permit, start_of

PIECES = ["data: one\n", "data: tw", "o\r\ndata: th\u00fc", "r\n"]
LINES = ["data: one", "data: two", "data: th\u00fcr"]


class Pieces:
    """An HTTP server: `answers` has what writes each answer."""

    def __init__(self):
        self.answers, self.all = asyncio.Queue(), []

    async def listen(self):
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/"
        return self

    async def answer(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.answers.put_nowait(writer)
        self.all.append(writer)

    def close(self):
        self.server.close()
        for writer in self.all:
            writer.close()


def write(answer, *pieces):
    for piece in pieces:
        answer.write(b"%x\r\n%s\r\n" % (len(piece.encode()), piece.encode()))


def end(answer):
    answer.write(b"0\r\n\r\n")
    answer.close()


class Streams(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.server = await ScriptedServer.listen()
        self.http = await Pieces().listen()
        self.lines = asyncio.Queue()
        self.offers_late, self.release = False, threading.Event()
        loop = asyncio.get_running_loop()

        def see(line):
            loop.call_soon_threadsafe(self.lines.put_nowait, line)

        @agent("one", version="async")
        async def reads(ctx, input):
            answer = await ctx.fetch(self.http.url, name="get", stream=True)
            first = None
            try:
                async for line in answer.aiter_lines():
                    see(line)
                    first = first or ctx.run("after", "read", lambda: None)
            except ToolFailed as error:
                return [error.code, error.position]
            return "the end"

        @agent("one", version="sync")
        def reads_sync(ctx, input):
            answer = ctx.fetch(self.http.url, name="get", stream=True)
            first = None
            try:
                for line in answer.iter_lines():
                    see(line)
                    first = first or ctx.later.run("after", "read", lambda: None)
            except ToolFailed as error:
                return [error.code, error.position]
            return "the end"

        @agent("one", version="two")
        async def reads_two(ctx, input):
            async def read(name):
                async for line in (await ctx.fetch(self.http.url, name=name, stream=True)).aiter_lines():
                    see(f"{name} {line}")
                return name
            return await asyncio.gather(read("a"), read("b"))

        @agent("one", version="unaware")
        async def reads_unaware(ctx, input):
            def unaware(args, call):
                """Offers a stream, and does not notice that it is cut off."""
                if self.offers_late:
                    call.signal.wait(10)
                stream = BodyStream({"status": 200, "headers": {}})
                stream.push("2\n")
                call._streams.offer(stream)
                see("b offers")
                self.release.wait(10)
                return "2\n"

            async def read():
                async for line in (await ctx.fetch(self.http.url, name="a", stream=True)).aiter_lines():
                    see(f"a {line}")

            async def run():
                try:
                    return str(await ctx.run("b", "read", unaware))
                except ToolFailed as error:
                    return error.code
            return (await asyncio.gather(read(), run()))[1]
        offers = (reads, reads_sync, reads_two, reads_unaware)
        self.worker = Worker(*offers, socket=self.server.socket, log=lambda level, message: None)
        self.running = asyncio.ensure_future(self.worker.run())
        self.connection = await self.server.accept()
        await self.connection.next()
        self.connection.send(1, 1, welcome("s-1", limits=LIMITS))

    async def asyncTearDown(self):
        self.release.set()
        await self.worker.stop(0)
        await asyncio.gather(self.running, return_exceptions=True)
        await self.server.close()
        self.http.close()

    def permit(self, call, position, **more):
        args = {"method": "GET", "url": self.http.url, "headers": {}}
        return permit(call, "run:read", routine=1, position=position, arguments=args, **more)

    async def begin(self, version, **more):
        """What answers the request of the agent."""
        self.connection.send(2, 1, start_of(1, version=version))
        await self.connection.message("advance")
        self.connection.send(3, 2, self.permit(5, "get", **more))
        return await self.http.answers.get()

    async def seen(self, count):
        return [await asyncio.wait_for(self.lines.get(), 10) for _ in range(count)]

    async def reads_to_the_end(self, version):
        answer = await self.begin(version)
        for piece, lines in zip(PIECES, (LINES[:1], [], LINES[1:2], LINES[2:])):
            write(answer, piece)
            self.assertEqual(await self.seen(len(lines)), lines)
        sent = asyncio.ensure_future(self.connection.message("advance"))
        await asyncio.sleep(0.05)
        self.assertFalse(sent.done(), "the request after the first piece was sent before the end")
        end(answer)
        message = await sent
        function, = message["functions"]
        self.assertEqual((function["call"], function["delivered"], function["result"]["body"]), (5, 0, "".join(PIECES)))
        self.assertNotIn("partial", function["result"])
        self.assertEqual([(one["position"], one["delivered"]) for one in message["requests"]], [("after", 1)])
        self.assertEqual(message["end"], {"result": "the end"})

    async def test_the_code_has_each_piece_when_it_comes_and_nothing_is_sent_before_the_end(self):
        await self.reads_to_the_end("async")

    async def test_so_has_a_sync_agent(self):
        await self.reads_to_the_end("sync")

    async def breaks(self, version, code, then, **more):
        answer = await self.begin(version, **more)
        write(answer, PIECES[0])
        self.assertEqual(await self.seen(1), LINES[:1])
        then(answer)
        message = await self.connection.message("advance")
        function, = message["functions"]
        self.assertEqual((function["result"]["body"], function["result"]["partial"]["code"]), (PIECES[0], code))
        self.assertEqual(message["end"], {"result": [code, "get"]})

    async def test_a_stream_that_breaks_is_a_success_with_what_the_code_has_and_the_error(self):
        await self.breaks("async", "reset", lambda answer: answer.close())

    async def test_so_is_one_that_is_cut_off(self):
        await self.breaks("async", "timeout", lambda answer: None, timeout_ms=300)

    async def test_so_is_one_of_a_sync_agent(self):
        await self.breaks("sync", "abandoned", lambda answer: self.connection.send(4, 2, {"type": "abandon", "call": 5}))

    async def test_a_stream_that_breaks_before_its_first_text_is_a_try_that_failed(self):
        answer = await self.begin("async")
        answer.close()
        message = await self.connection.message("ended")
        self.assertEqual((message["call"], message["failure"]["code"], message["failure"]["retryable"]), (5, "reset", True))

    async def test_a_second_stream_is_given_after_the_end_of_the_first(self):
        self.connection.send(2, 1, start_of(1, version="two"))
        await self.connection.message("advance")
        self.connection.send(3, 2, self.permit(5, "a"))
        first = await self.http.answers.get()
        write(first, "1\n")
        self.assertEqual(await self.seen(1), ["a 1"])
        self.connection.send(4, 2, self.permit(6, "b"))
        second = await self.http.answers.get()
        write(second, "2\n")
        end(second)
        # Its end is recorded by the server, which delivers it later.
        message = await self.connection.message("ended")
        self.assertEqual((message["call"], message["result"]["body"]), (6, "2\n"))
        end(first)
        self.assertEqual((await self.connection.message("advance"))["functions"][0]["call"], 5)
        self.connection.send(5, 3, {"type": "deliver", "routine": 1, "outcomes": [
            {"position": "b", "kind": "tool", "result": message["result"]}]})
        self.assertEqual(await self.seen(1), ["b 2"])
        self.assertEqual((await self.connection.message("advance"))["end"], {"result": ["a", "b"]})

    async def is_not_given_after_its_end(self):
        """A stream whose call is cut off, while the code reads another one."""
        self.connection.send(2, 1, start_of(1, version="unaware"))
        await self.connection.message("advance")
        self.connection.send(3, 2, self.permit(5, "a"))
        first = await self.http.answers.get()
        write(first, "1\n")
        self.assertEqual(await self.seen(1), ["a 1"])
        self.connection.send(4, 2, permit(6, "run:read", routine=1, position="b", timeout_ms=100))
        if not self.offers_late:
            self.assertEqual(await self.seen(1), ["b offers"])
        message = await self.connection.message("ended")
        self.assertEqual((message["call"], message["unknown"]["code"]), (6, "timeout"))
        if self.offers_late:
            self.assertEqual(await self.seen(1), ["b offers"])
        end(first)
        self.assertEqual((await self.connection.message("advance"))["functions"][0]["call"], 5)
        self.connection.send(5, 3, {"type": "deliver", "routine": 1, "outcomes": [
            {"position": "b", "kind": "tool", "failure": {"code": "timeout", "message": "too late"}}]})
        message = await asyncio.wait_for(self.connection.message("advance"), 20)
        self.assertEqual((message["delivered"], message["end"]), (2, {"result": "timeout"}))

    async def test_a_stream_that_waits_is_not_given_after_the_end_of_its_call(self):
        await self.is_not_given_after_its_end()

    async def test_nor_is_one_that_is_offered_after_the_end_of_its_call(self):
        self.offers_late = True
        await self.is_not_given_after_its_end()

    async def test_a_routine_that_is_dropped_leaves_the_end_to_the_server(self):
        answer = await self.begin("async")
        write(answer, PIECES[0])
        await self.seen(1)
        self.connection.send(4, 2, {"type": "stop", "routine": 1, "reason": "moved"})
        await asyncio.sleep(0.05)
        write(answer, *PIECES[1:])
        end(answer)
        message = await self.connection.message("ended")
        self.assertEqual((message["call"], message["result"]["body"]), (5, "".join(PIECES)))


class Recorded(unittest.IsolatedAsyncioTestCase):
    @staticmethod
    def response(is_streamed=True, **more):
        return Response({"status": 200, "headers": {}, **more}, lambda failure: ToolFailed(
            failure["code"], failure["message"], "run:read", "get"), is_streamed)

    async def test_a_whole_body_is_read_in_one_piece_once(self):
        whole = self.response(body="a\nb")
        self.assertRaises(InvalidInput, lambda: whole.body)
        self.assertEqual([piece async for piece in whole.aiter_bytes()], [b"a\nb"])
        with self.assertRaises(InvalidInput):
            await whole.aread()
        again = self.response(body_base64="/w==")
        self.assertEqual((await again.aread(), again.body, [piece async for piece in again.aiter_bytes()]),
                         (b"\xff", b"\xff", [b"\xff"]))
        self.assertEqual((list(self.response(body="a\nb").iter_lines()), self.response().read()), (["a", "b"], b""))

    async def test_a_partial_body_gives_its_text_and_then_its_error(self):
        partial = {"body": "a", "partial": {"code": "reset", "message": "it broke off"}}
        pieces = self.response(**partial).aiter_bytes()
        self.assertEqual(await pieces.__anext__(), b"a")
        with self.assertRaises(ToolFailed) as caught:
            await pieces.__anext__()
        self.assertEqual((caught.exception.code, caught.exception.position), ("reset", "get"))
        self.assertRaises(ToolFailed, self.response, False, **partial)

    def test_lines_end_with_a_line_feed_a_carriage_return_or_both(self):
        text = "a\r\nb\rc\n\n\u2028d\u00fc\r".encode()
        for size in range(1, len(text) + 1):
            lines = _Lines()
            found = [line for at in range(0, len(text), size) for line in lines.feed(text[at:at + size])]
            self.assertEqual(found + lines.end(), ["a", "b", "c", "", "\u2028d\u00fc"], size)


if __name__ == "__main__":
    unittest.main()
