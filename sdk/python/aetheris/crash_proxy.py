"""CrashProxy: a connection of a worker that ends at one of its frames, as it does when the process of the worker dies.

It counts the frames of the worker with messages about routines and calls. The server is notified that the worker has ended,
as it would find out about a process that it knows; so its calls are lost at once. Threads: one for each direction.
"""
import json
import socket
import struct
import threading
import urllib.parse
from typing import Callable, Iterator, Optional, Set, Tuple

_UNCOUNTED = frozenset(("hello", "heartbeat", "drain", "text", "progress"))
_TEXT = 1
_CLOSE_NORMAL = bytes([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE8])  # masked with 0

Point = Tuple[int, str]  # the frame from 1, and `before` or `after`: before, the server does not get it


class CrashProxy:
    def __init__(self, target: str, on_crash: Callable[[], None]) -> None:
        """`on_crash`: called once, in a thread of this object."""
        parts = urllib.parse.urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 0)
        self._on_crash = on_crash
        self._lock = threading.Lock()
        self._point: Optional[Point] = None
        self._is_over = False
        self._sockets: Set[socket.socket] = set()
        self.frames = 0  # of the worker, that were passed on or dropped
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="aetheris-testing", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def arm(self, point: Optional[Point]) -> None:
        """Counts from here, and crashes there; None: it only counts."""
        with self._lock:
            self.frames, self._point = 0, point

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            sockets = list(self._sockets)
        _shut(self._listener)
        for one in sockets:
            _shut(one)

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                if self._is_over:
                    _shut(worker)
                    _shut(server)
                    return
                self._sockets.update((worker, server))
            for work, args in ((self._pass_on, (server, worker)), (self._watch, (worker, server))):
                threading.Thread(target=work, args=args, name="aetheris-testing", daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                target.sendall(data)
        except OSError:
            pass
        self._drop(source, target)

    def _watch(self, worker: socket.socket, server: socket.socket) -> None:
        try:
            for data, is_counted in _pieces(worker):
                crashes = False
                with self._lock:
                    if self._is_over:
                        return
                    if is_counted:
                        self.frames += 1
                        crashes = self._point is not None and self._point[0] == self.frames
                        self._is_over = crashes
                if crashes:
                    return self._crash(data, server)
                server.sendall(data)
        except OSError:
            pass
        self._drop(worker, server)

    def _crash(self, data: bytes, server: socket.socket) -> None:
        assert self._point is not None
        try:
            server.sendall((data if self._point[1] == "after" else b"") + _CLOSE_NORMAL)
        except OSError:
            pass
        self.close()
        self._on_crash()

    def _drop(self, *sockets: socket.socket) -> None:
        for one in sockets:
            _shut(one)
        with self._lock:
            self._sockets.difference_update(sockets)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()


def _pieces(worker: socket.socket) -> Iterator[Tuple[bytes, bool]]:
    """What a client sends: the head of its request, then frames. Each with: is it counted?"""
    rest, has_head = b"", False
    while True:
        length = _frame_length(rest) if has_head else _head_length(rest)
        if length is not None and len(rest) >= length:
            piece, rest = rest[:length], rest[length:]
            yield piece, has_head and _is_counted(piece)
            has_head = True
            continue
        data = worker.recv(1 << 16)
        if not data:
            return
        rest += data


def _head_length(data: bytes) -> Optional[int]:
    end = data.find(b"\r\n\r\n")
    return None if end < 0 else end + 4


def _payload_at(data: bytes) -> Optional[Tuple[int, int]]:
    """Where the payload begins, and its length; None: too few bytes."""
    if len(data) < 2:
        return None
    length, head = data[1] & 0x7F, 2
    if length == 126:
        head = 4
    elif length == 127:
        head = 10
    if len(data) < head:
        return None
    if head == 4:
        length = struct.unpack_from(">H", data, 2)[0]
    elif head == 10:
        length = struct.unpack_from(">Q", data, 2)[0]
    return head + (4 if data[1] & 0x80 else 0), length


def _frame_length(data: bytes) -> Optional[int]:
    at = _payload_at(data)
    return None if at is None else at[0] + at[1]


def _is_counted(frame: bytes) -> bool:
    at = _payload_at(frame)
    if at is None or frame[0] & 0x0F != _TEXT:
        return False
    mask = frame[at[0] - 4:at[0]]
    text = bytes(byte ^ mask[i % 4] for i, byte in enumerate(frame[at[0]:]))
    return any(message.get("type") not in _UNCOUNTED for message in json.loads(text).get("messages", []))
