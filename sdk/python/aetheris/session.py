"""Session: the frames of a worker. It connects, numbers frames, keeps them until they are acknowledged, and sends them
again after a lost connection, so that frames arrive once and in order while both processes live.

            connected                 welcome
  waiting -------------> greeting --------------> open
     ^                       |                      |
     '-----------------------'----------------------'   the connection is lost: back-off of 50 ms to 5 s

A session that the server does not resume is gone: `on_session` states it before the first message of the new one.
"""
import asyncio
import collections
import random
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from .canonical import dumps, loads
from .errors import ConnectionFailed, well_formed
from .values import steady
from .websocket import WebSocketClient

SUBPROTOCOL = "aetheris.worker.1"
FRAME_MAX = 32 << 20
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 5.0
GREETING_S = 10.0
BATCH_MAX = 8 << 20  # bytes of a frame with several messages


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return well_formed(text).encode()


class Session:
    def __init__(self, listener: Any, *, address: Callable[[], Dict[str, Optional[str]]],
                 api_key: Optional[str]) -> None:
        """`address()`: `url` and `socket`, for each connection. `listener`: `hello()`, the first message of each
        connection, without `resume`; `on_session(welcome, is_new)`: a session began or was resumed;
        `on_message(message, sent_at)`; `on_too_large(message)`: it does not fit into a frame; `on_trouble(error)`: a
        connection was lost or could not be made."""
        self.acknowledged_at = steady()  # when the newest frame that the server acknowledged was sent
        self.state = "waiting"
        self._listener = listener
        self._address, self._api_key = address, api_key
        self._connection: Optional[WebSocketClient] = None
        self._generation = 0  # of connections
        self._id: Optional[str] = None
        self._limits: Dict[str, float] = {"heartbeat_ms": 2_000, "silent_ms": 15_000, "resume_ms": 20_000}
        self._batch: List[Dict[str, Any]] = []
        # Number, ack, messages, when: not acknowledged.
        self._kept: Deque[Tuple[int, int, str, float]] = collections.deque()
        self._sent = 0  # the last number given
        self._received = 0  # the last frame of the server that was processed
        self._backoff_s = BACKOFF_MIN_S
        self._last_sent = 0.0
        self._last_received = 0.0
        self._hello_sent_at = 0.0
        self._timer: Optional[asyncio.TimerHandle] = None
        self._beat: Optional[asyncio.TimerHandle] = None
        self._connecting: "Optional[asyncio.Task[None]]" = None
        self._closed: "Optional[asyncio.Future[None]]" = None

    def start(self) -> None:
        """Connects, and connects again until `close`."""
        self._loop = asyncio.get_running_loop()
        self._connect()

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    def add(self, message: Dict[str, Any]) -> None:
        """A part of the next frame."""
        self._batch.append(message)

    def flush(self) -> None:
        """Sends what was added as one frame, or as several if it is large."""
        if not self._batch or self.state == "closed" or self._id is None:
            return
        messages, self._batch = self._batch, []
        whole = dumps(messages)
        if len(whole) < BATCH_MAX // 4:  # a character has at most 4 bytes
            return self._send_frame(whole[1:-1])
        texts: List[str] = []
        size = 0
        for message in messages:
            text = dumps(message)
            length = len(text) if len(text) < FRAME_MAX // 4 else len(_encoded(text))
            if length > FRAME_MAX - 100:
                self._listener.on_too_large(message)
                continue
            if size + length > BATCH_MAX and texts:
                self._send_frame(",".join(texts))
                texts, size = [], 0
            texts.append(text)
            size += length
        if texts:
            self._send_frame(",".join(texts))
        if self._batch:
            self.flush()  # of on_too_large

    async def close(self) -> None:
        """Ends the connection with 1000. Returns when it is closed."""
        if self.state == "closed":
            return
        self.state = "closed"
        self._stop_timers()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._closed = self._loop.create_future()
            self._connection.close(1000, "the worker stops")
            await self._closed

    # ---------------------------------------------------------------- connecting

    def _connect(self) -> None:
        if self.state != "closed":
            self._generation += 1
            self._connecting = self._loop.create_task(self._open(self._generation))

    async def _open(self, generation: int) -> None:
        try:
            connection = await WebSocketClient.open(
                **self._address(), path="/api/worker", subprotocol=SUBPROTOCOL, message_max=FRAME_MAX,
                headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else {})
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if generation == self._generation:
                self._on_lost(error if isinstance(error, ConnectionFailed) else
                              ConnectionFailed("unavailable", f"{type(error).__name__}: {error}"))
            return
        if generation != self._generation or self.state == "closed":
            return connection.destroy()

        def on_message(text: str) -> None:
            if generation == self._generation:
                self._on_text(text)

        def on_alive() -> None:
            self._last_received = steady()

        def on_close(code: int, reason: str) -> None:
            if self.state == "closed":
                if self._closed is not None and not self._closed.done():
                    self._closed.set_result(None)
            elif generation == self._generation:
                self._on_lost(ConnectionFailed("unavailable",
                                               f"closed by the server or the network ({code}): {reason}"))
        connection.on_message, connection.on_alive, connection.on_close = on_message, on_alive, on_close
        self._loop.call_soon(self._greet, connection, generation)

    def _greet(self, connection: WebSocketClient, generation: int) -> None:
        if generation != self._generation or self.state == "closed":
            return connection.destroy()
        self._connection = connection
        self.state = "greeting"
        connection.begin()
        if self.state != "greeting":
            return  # it was lost
        self._last_received = steady()
        hello = {"type": "hello", **self._listener.hello()}
        # The frames that resume a session are not counted: their number is 0.
        if self._id is not None:
            hello["resume"] = {"session": self._id, "ack": self._received}
        self._hello_sent_at = steady()
        self._write(1 if self._id is None else 0, self._received, dumps(hello))
        self._timer = self._loop.call_later(GREETING_S, self._drop, "no welcome within 10 s")

    def _on_lost(self, error: ConnectionFailed) -> None:
        if self.state == "closed":
            return
        self._stop_timers()
        self._connection = None
        self.state = "waiting"
        self._listener.on_trouble(error)
        wait = self._backoff_s * (0.5 + random.random() / 2)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
        self._timer = self._loop.call_later(wait, self._connect)

    def _drop(self, reason: str) -> None:
        connection = self._connection
        self._generation += 1
        if connection is not None:
            connection.destroy()
        self._on_lost(ConnectionFailed("unavailable", reason))

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._beat):
            if timer is not None:
                timer.cancel()
        self._timer = self._beat = None

    # ---------------------------------------------------------------- frames

    def _send_frame(self, messages: str) -> None:
        self._sent += 1
        self._kept.append((self._sent, self._received, messages, steady()))
        if self.state == "open":
            self._write(self._sent, self._received, messages)

    def _write(self, number: int, ack: int, messages: str) -> None:
        self._last_sent = steady()
        if self._connection is not None:
            self._connection.send(_encoded(f'{{"frame":{number},"ack":{ack},"messages":[{messages}]}}'))

    def _on_text(self, text: str) -> None:
        try:
            frame = loads(text)
            number, ack, messages = frame["frame"], frame["ack"], frame["messages"]
            if type(number) is not int or type(ack) is not int or not isinstance(messages, list):
                raise ValueError("frame, ack or messages has another type")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return self._drop(f"a message of the server is not a frame: {error!r}")
        if self.state == "greeting":
            return self._on_welcome(number, ack, messages)
        if self.state != "open" or number <= self._received:
            return  # processed before
        if number != self._received + 1:
            return self._drop(f"frame {number} of the server follows frame {self._received}")
        while self._kept and self._kept[0][0] <= ack:
            self.acknowledged_at = self._kept.popleft()[3]
        self._received = number  # before anything that may raise: no frame is processed twice
        self._process(messages)

    def _process(self, messages: List[Any]) -> None:
        for message in messages:
            if isinstance(message, dict) and isinstance(message.get("type"), str) and message["type"] != "welcome":
                self._listener.on_message(message, self.acknowledged_at)

    def _on_welcome(self, number: int, ack: int, messages: List[Any]) -> None:
        named = {one.get("type"): one for one in messages if isinstance(one, dict)}
        welcome, refusal = named.get("welcome"), named.get("error")
        if welcome is None:
            return self._drop(f"the server refused the hello: {refusal.get('code')}: {refusal.get('message')}"
                              if refusal else "the server sent no welcome")
        self._stop_timers()
        self.state = "open"
        self._backoff_s = BACKOFF_MIN_S
        self._limits = {**self._limits, **(welcome.get("limits") or {})}
        is_new = self._id is None or welcome.get("resumed") is not True
        self._id = welcome.get("session")
        if is_new:
            self._kept.clear()
            self._batch = []
            self._sent = 1  # the hello
            self._received = number
            self.acknowledged_at = self._hello_sent_at
        else:
            # Permits that come again count from the frame that they acknowledged at first.
            while self._kept and self._kept[0][0] <= ack:
                self._kept.popleft()
        self._start_heartbeat()
        self._listener.on_session(welcome, is_new)
        if not is_new:
            for kept, kept_ack, text, _ in list(self._kept):  # unchanged
                self._write(kept, kept_ack, text)
        self._process(messages)
        self.flush()

    def _start_heartbeat(self) -> None:
        every = max(0.01, self._limits["heartbeat_ms"] / 2000)

        def beat() -> None:
            now = steady()
            if (now - self._last_received) * 1000 > self._limits["silent_ms"]:
                return self._drop(f"the server was silent for {self._limits['silent_ms']} ms")
            self._beat = self._loop.call_later(every, beat)
            if self._connection is not None:
                self._connection.ping()
            if now - self._last_sent >= self._limits["heartbeat_ms"] / 1000 - every - 0.001:
                self.add({"type": "heartbeat"})
                self.flush()
        self._beat = self._loop.call_later(every, beat)
