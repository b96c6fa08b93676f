"""A server of the worker protocol whose frames a test writes."""
import asyncio
import base64
import hashlib
import json
import os
import tempfile

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LIMITS = {"heartbeat_ms": 2_000, "silent_ms": 15_000, "resume_ms": 20_000}
PATIENCE_S = 60.0


def welcome(session, **more):
    return {"type": "welcome", "session": session, "now": "2026-01-01T00:00:00.000000Z", "limits": LIMITS, "agents": [],
            "resumed": False, **more}


class Connection:
    """A worker's connection. Heartbeats are not given to the test."""

    def __init__(self, head, reader, writer):
        self.head = head
        self.writer = writer
        self.on_frame = None
        self.sends = True
        self._frames = asyncio.Queue()
        self._controls = asyncio.Queue()
        self._messages = []
        self._closed = asyncio.Event()
        self._task = asyncio.ensure_future(self._read(reader))

    async def _read(self, reader):
        try:
            while True:
                first, second = await reader.readexactly(2)
                assert second & 0x80, "the frame of a client is masked"
                length = second & 0x7F
                if length >= 126:
                    length = int.from_bytes(await reader.readexactly(2 if length == 126 else 8), "big")
                mask = await reader.readexactly(4)
                payload = bytes(byte ^ mask[i & 3] for i, byte in enumerate(await reader.readexactly(length)))
                opcode = first & 0x0F
                if opcode == 9 and self.sends:
                    self.raw(0x8A, payload)
                elif opcode in (8, 10):
                    self._controls.put_nowait((opcode, payload))
                    if opcode == 8:
                        self.raw(0x88, payload[:2])
                        self.writer.close()
                elif opcode == 1:
                    frame = json.loads(payload)
                    if self.on_frame is None:
                        self._frames.put_nowait(frame)
                    else:
                        self.on_frame(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._closed.set()

    def raw(self, first, payload):
        length = len(payload)
        head = bytes((first, length)) if length < 126 else bytes((first, 126)) + length.to_bytes(2, "big") \
            if length < 65_536 else bytes((first, 127)) + length.to_bytes(8, "big")
        self.bytes(head + payload)

    def bytes(self, data):
        if not self.writer.is_closing():
            self.writer.write(data)

    def send(self, number, ack, *messages):
        self.raw(0x81, json.dumps({"frame": number, "ack": ack, "messages": messages}).encode())

    async def next(self):
        """The next frame that has a message besides heartbeats."""
        while True:
            frame = await asyncio.wait_for(self._frames.get(), PATIENCE_S)
            if any(message["type"] != "heartbeat" for message in frame["messages"]):
                return frame

    async def heartbeat(self):
        return await asyncio.wait_for(self._frames.get(), PATIENCE_S)

    async def message(self, kind=None):
        """The next message (of this type)."""
        while True:
            while not self._messages:
                self._messages = (await self.next())["messages"]
            message = self._messages.pop(0)
            if message["type"] != "heartbeat" and kind in (None, message["type"]):
                return message

    async def control(self):
        return await asyncio.wait_for(self._controls.get(), PATIENCE_S)

    async def closed(self):
        await asyncio.wait_for(self._closed.wait(), PATIENCE_S)

    def cut(self):
        self.writer.transport.abort()


class ScriptedServer:
    def __init__(self):
        self.connections = asyncio.Queue()
        self.on_connection = None
        self.refuses_with = None  # the status line of the upgrade's answer
        self.all = []
        self.socket = None
        self.url = None

    @classmethod
    async def listen(cls, kind="socket", tls=None):
        server = cls()
        if kind == "socket":
            server.folder = tempfile.TemporaryDirectory()
            server.socket = os.path.join(server.folder.name, "s")
            server._server = await asyncio.start_unix_server(server._accept, server.socket)
        else:
            server._server = await asyncio.start_server(server._accept, "127.0.0.1", 0, ssl=tls)
            port = server._server.sockets[0].getsockname()[1]
            server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        return server

    async def accept(self):
        """The next connection of a worker."""
        return await asyncio.wait_for(self.connections.get(), PATIENCE_S)

    async def close(self):
        self._server.close()
        for connection in self.all:
            connection.cut()
            await connection.closed()
        if self.socket:
            self.folder.cleanup()

    async def _accept(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if self.refuses_with is not None:
            writer.write(f"HTTP/1.1 {self.refuses_with}\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()
            return
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        accept = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
        writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
                     f"{accept}\r\nSec-WebSocket-Protocol: aetheris.worker.1\r\n\r\n".encode())
        connection = Connection(head, reader, writer)
        self.all.append(connection)
        if self.on_connection is not None:
            self.on_connection(connection)
        else:
            self.connections.put_nowait(connection)
