"""A TCP proxy that can be cut, slow, silent, or forget to answer; where it leads to can be changed (a failover)."""
import asyncio
import resource
import socket
import threading

PIECE = 1 << 16


class Proxy:
    """Has its own thread and loop. Threads: any may call.

    delay     seconds by which data is delayed, in both directions
    silent    nothing is forwarded, connections stay open (half open)
    deaf      a response is dropped and its connection closed: a lost response
    """

    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        self.delay, self.silent, self.deaf = 0.0, False, False
        self.open = set()
        self.loop = asyncio.new_event_loop()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # two for each connection
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = listener.getsockname()[1]
        self.loop.run_until_complete(self.listen(listener))
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def listen(self, listener):
        self.server = await asyncio.start_server(self.serve, sock=listener)

    async def serve(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self.open.add(pair)
        ways = [asyncio.ensure_future(way) for way in (self.copy(reader, far_writer, False),
                                                       self.copy(far_reader, writer, True))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)  # one side has ended: so does the other
        for way in ways:
            way.cancel()
        self.open.discard(pair)
        for one in pair:
            one.transport.abort()

    async def copy(self, source, sink, answers):
        try:
            while piece := await source.read(PIECE):
                while self.silent:
                    await asyncio.sleep(0.05)
                if self.delay:
                    await asyncio.sleep(self.delay)
                if answers and self.deaf:
                    return
                sink.write(piece)
                await sink.drain()
        except OSError:
            return

    def cut(self):
        """Ends every connection at once."""
        self.loop.call_soon_threadsafe(lambda: [one.transport.abort() for pair in list(self.open) for one in pair])

    def heal(self):
        self.delay, self.silent, self.deaf = 0.0, False, False

    def end(self):
        async def leave():
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self.loop.stop()
        asyncio.run_coroutine_threadsafe(leave(), self.loop)
        self.thread.join(5)
