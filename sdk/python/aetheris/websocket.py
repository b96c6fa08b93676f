"""A WebSocket client (RFC 6455) over TCP, TLS or a Unix socket: text messages that are not fragmented, no
extensions."""
import asyncio
import base64
import hashlib
import os
import ssl
import urllib.parse
from typing import Any, Callable, Dict, Optional, Tuple

from .errors import ConnectionFailed

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_MAX = 16 << 10  # bytes of the answer to the upgrade
_CONTROL_MAX = 125
HANDSHAKE_S = 10.0
CLOSE_S = 2.0
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class WebSocketClient(asyncio.Protocol):
    """One connection. `on_message(text)`; `on_alive()`: something came; `on_close(code, reason)`: once, and nothing is
    received after it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, where: str, message_max: int) -> None:
        self.on_message: Callable[[str], None] = lambda _: None
        self.on_alive: Callable[[], None] = lambda: None
        self.on_close: Callable[[int, str], None] = lambda code, reason: None
        self._where = where
        self._message_max = message_max
        self._buffer = bytearray()
        self._transport: Any = None
        upgraded: "asyncio.Future[None]" = loop.create_future()
        self._upgraded: "Optional[asyncio.Future[None]]" = upgraded
        # The caller need not await it: `open` may have ended before.
        upgraded.add_done_callback(lambda one: one.cancelled() or one.exception())
        self._accept = ""
        self._subprotocol = ""
        self._is_open = False
        self._is_closed = False
        self._is_closing = False
        self._loop = loop

    @staticmethod
    async def open(*, url: Optional[str], socket: Optional[str], path: str, subprotocol: str, message_max: int,
                   headers: Dict[str, str]) -> "WebSocketClient":
        """Connects and upgrades, within 10 s. The caller then sets the listeners and calls `begin`.

        Raises ConnectionFailed: `unauthorized` and `forbidden` (the key is wrong or has not the role), `unsupported`
        (the server has no such protocol), `usage` (the address is not valid), `unavailable` (anything else; try
        again)."""
        loop = asyncio.get_running_loop()
        where = socket or url or ""
        host, port, tls = ("localhost", 0, None) if socket else _address(url or "")
        client = WebSocketClient(loop, where, message_max)

        async def connect() -> None:
            if socket:
                await loop.create_unix_connection(lambda: client, socket)
            else:
                await loop.create_connection(lambda: client, urllib.parse.urlsplit(url or "").hostname, port, ssl=tls)
            client._upgrade(path, host, subprotocol, headers)
            if client._upgraded is not None:
                await client._upgraded
        try:
            await asyncio.wait_for(connect(), HANDSHAKE_S)
        except asyncio.TimeoutError:
            client.destroy()
            raise ConnectionFailed("unavailable", f"{where}: no answer within {HANDSHAKE_S:.0f} s") from None
        except OSError as error:
            client.destroy()
            raise ConnectionFailed("unavailable", f"{where}: {error}. Is the server running?") from None
        except BaseException:
            client.destroy()
            raise
        return client

    # ---------------------------------------------------------------- sending

    def send(self, text: bytes) -> None:
        """Sends a text message. No effect after the connection is closed."""
        if self._is_open and not self._is_closing:
            self._write(TEXT, text)

    def ping(self) -> None:
        """The server answers with a pong: `on_alive` is called."""
        if self._is_open and not self._is_closing:
            self._write(PING, b"")

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Closes in order: waits 2 s at most for the server's answer."""
        if not self._is_open or self._is_closing:
            return
        self._is_closing = True
        self._write(CLOSE, code.to_bytes(2, "big") + reason.encode())
        self._loop.call_later(CLOSE_S, self._end, code, reason)

    def destroy(self) -> None:
        """Closes at once."""
        self._end(1006, "destroyed")

    # The frame of a client is masked.
    def _write(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        mask = os.urandom(4)
        if length < 126:
            head = bytes((0x80 | opcode, 0x80 | length))
        elif length < 65_536:
            head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | opcode, 0x80 | 127)) + length.to_bytes(8, "big")
        masked = int.from_bytes(payload, "little") ^ int.from_bytes((mask * (length // 4 + 1))[:length], "little")
        self._transport.write(head + mask + masked.to_bytes(length, "little"))

    # ---------------------------------------------------------------- the connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Optional[Exception]) -> None:
        self._end(1006, str(error) if error else "the connection was lost")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            self._read_head()
        while self._is_open and self._read_frame():
            pass

    def _upgrade(self, path: str, host: str, subprotocol: str, headers: Dict[str, str]) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self._accept = base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
        self._subprotocol = subprotocol
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Protocol: {subprotocol}",
                 *(f"{name}: {value}" for name, value in headers.items())]
        if self._transport is not None:
            self._transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def _read_head(self) -> None:
        waiting = self._upgraded
        if waiting is None or waiting.done():
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_MAX:
                waiting.set_exception(ConnectionFailed(
                    "unavailable", f"{self._where}: the answer to the upgrade is too long"))
            return
        refusal = _refusal(self._buffer[:end].decode("latin-1"), self._accept, self._subprotocol)
        del self._buffer[:end + 4]
        if refusal is not None:
            waiting.set_exception(ConnectionFailed(refusal[0], f"{self._where}: {refusal[1]}"))
            return
        self._upgraded = None
        waiting.set_result(None)

    def begin(self) -> None:
        """The listeners are set."""
        if self._is_closed:
            self.on_close(1006, "the connection was lost")
        else:
            self._is_open = True
            self.data_received(b"")

    def _end(self, code: int, reason: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        was_open, self._is_open = self._is_open, False
        self._buffer.clear()
        if self._transport is not None:
            # What was written is sent; a lost connection has nothing to send.
            self._transport.abort() if code == 1006 else self._transport.close()
        if self._upgraded is not None and not self._upgraded.done():
            self._upgraded.set_exception(ConnectionFailed(
                "unavailable", f"{self._where}: the connection was closed before the upgrade"))
        elif was_open:
            self.on_close(code, reason)

    # ---------------------------------------------------------------- receiving

    def _violated(self, code: int, reason: str) -> bool:
        self._is_closing = False
        self.close(code, reason)
        self._end(code, reason)
        return False

    def _read_frame(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        first, second = buffer[0], buffer[1]
        if first & 0x70 or second & 0x80:
            return self._violated(1002, "a frame with reserved bits or a mask")
        opcode = first & 0x0F
        if not first & 0x80 or opcode == 0:
            return self._violated(1002, "a message in several frames")
        length, at = second, 2
        if second >= 126:
            at = 4 if second == 126 else 10
            if len(buffer) < at:
                return False
            length = int.from_bytes(buffer[2:at], "big")
        if opcode >= 8 and length > _CONTROL_MAX:
            return self._violated(1002, "a control frame that is too long")
        if length > self._message_max:
            return self._violated(1009, "a message that is too long")
        if len(buffer) < at + length:
            return False
        payload = bytes(memoryview(buffer)[at:at + length])
        del buffer[:at + length]
        self.on_alive()
        return self._handle(opcode, payload)

    def _handle(self, opcode: int, payload: bytes) -> bool:
        if opcode == TEXT:
            try:
                text = payload.decode()
            except UnicodeDecodeError:
                return self._violated(1007, "a text that is not UTF-8")
            self.on_message(text)
        elif opcode == PING:
            if not self._is_closing:
                self._write(PONG, payload)
        elif opcode == CLOSE:
            if not self._is_closing:
                self._write(CLOSE, payload[:2])
            self._end(int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005,
                      payload[2:].decode("utf-8", "replace"))
            return False
        elif opcode != PONG:
            return self._violated(1003, "a frame that is not text")
        return True


def _address(url: str) -> Tuple[str, int, Optional[ssl.SSLContext]]:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), None
    if not parts.scheme or not parts.hostname and parts.scheme in ("http", "https", "ws", "wss"):
        raise ConnectionFailed("usage", f'AETHERIS_URL is not a URL: "{url}"')
    if parts.scheme not in ("http", "https", "ws", "wss"):
        raise ConnectionFailed("usage", f"AETHERIS_URL must begin with http://, https://, ws:// or wss://, not "
                                        f"{parts.scheme}://")
    is_secure = parts.scheme in ("https", "wss")
    tls = ssl.create_default_context() if is_secure else None
    if tls is not None:
        tls.set_alpn_protocols(["http/1.1"])
    return parts.netloc.rpartition("@")[2], port or (443 if is_secure else 80), tls


def _refusal(head: str, accept: str, subprotocol: str) -> Optional[Tuple[str, str]]:
    status, *lines = head.split("\r\n")
    number = status[9:12] if status.startswith("HTTP/1.1 ") else ""
    if number == "401":
        return "unauthorized", "the server refused the key (401). Set AETHERIS_API_KEY"
    if number == "403":
        return "forbidden", "the key must have the role worker or admin (403)"
    if number in ("404", "426"):
        return "unsupported", f"the server has no GET /api/worker for this protocol ({number}). Update the server"
    if number != "101":
        return "unavailable", f'the server answered "{status}"'
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if headers.get("sec-websocket-accept") != accept:
        return "unavailable", "the answer is not a WebSocket's"
    if headers.get("sec-websocket-protocol") != subprotocol or "sec-websocket-extensions" in headers:
        return "unsupported", f"the server does not speak {subprotocol}"
    return None
