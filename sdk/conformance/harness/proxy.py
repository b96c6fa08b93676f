"""Proxy: a Unix socket between a worker and its server. It parses WebSocket frames, counts those that matter in both
directions, and applies one fault at one of them.

A frame matters if it has a message about a routine or a call; greetings, heartbeats, acknowledgements and `stop` depend
on time, and are passed on without being counted.
"""
import collections
import json
import os
import socket
import struct
import threading
import time

OUT, IN = "out", "in"  # from the worker, to the worker
UNCOUNTED = {"hello", "welcome", "heartbeat", "drain", "text", "progress", "stop", "closing"}

# ACTION@NUMBER:DIRECTION. The frame is dropped by `…_before`, and delivered by `…_after`.
ACTIONS = ["cut_before", "cut_after", "kill_worker_before", "kill_worker_after", "kill_server_before",
           "kill_server_after", "kill_both_before", "kill_both_after", "freeze_worker", "freeze_server", "late"]
# Of a library, which has no frames: ACTION@NUMBER:commit.
KILL_BEFORE, KILL_AFTER, COMMIT = "kill_before", "kill_after", "commit"


class Fault(collections.namedtuple("Fault", "action number direction")):
    """What happens at which frame."""

    @classmethod
    def parse(cls, text):
        action, _, rest = text.partition("@")
        number, _, direction = rest.partition(":")
        is_kill = action in (KILL_BEFORE, KILL_AFTER) and direction == COMMIT
        if not number.isdigit() or not (is_kill or (action in ACTIONS and direction in (OUT, IN))):
            raise ValueError(f'"{text}" is not a fault; write ACTION@NUMBER:{OUT} or :{IN}, with one of {ACTIONS}')
        return cls(action, int(number), direction)

    def __str__(self):
        return f"{self.action}@{self.number}:{self.direction}"


def frame_length(data):
    """(length of the header, of the payload) of a WebSocket frame that `data` begins with; None: not complete."""
    if len(data) < 2:
        return None
    length, header = data[1] & 0x7F, 2
    if length == 126:
        header = 4
        if len(data) < header:
            return None
        length = struct.unpack_from(">H", data, 2)[0]
    elif length == 127:
        header = 10
        if len(data) < header:
            return None
        length = struct.unpack_from(">Q", data, 2)[0]
    if data[1] & 0x80:
        header += 4
    return (header, length) if len(data) >= header + length else None


def payload_of(frame, header, length):
    payload = frame[header:header + length]
    if not frame[1] & 0x80:
        return bytes(payload)
    mask = bytes(frame[header - 4:header])
    whole = int.from_bytes(payload, "big") ^ int.from_bytes((mask * (length // 4 + 1))[:length], "big")
    return whole.to_bytes(length, "big")


def is_counted(frame, header, length):
    if frame[0] & 0x0F != 1:
        return False
    messages = json.loads(payload_of(frame, header, length)).get("messages", [])
    return any(message.get("type") not in UNCOUNTED for message in messages)


class Proxy:
    """Threads: one for each direction of each connection. `on_fault(fault)` is called by one of them, before the frame is
    passed on or dropped; it does what concerns processes. `upstream`: a path, or (host, port)."""

    def __init__(self, path, upstream, on_fault):
        self.path, self.upstream, self.on_fault = str(path), upstream, on_fault
        self.lock = threading.Lock()
        self.counts = {OUT: 0, IN: 0}
        self.fault, self.has_fired, self.hold = None, False, 0.0
        self.pairs = set()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()

    def begin(self, fault=None, hold=0.0):
        """Counts from now on. `hold`: seconds for which `late` delays its frame."""
        with self.lock:
            self.counts = {OUT: 0, IN: 0}
            self.fault, self.has_fired, self.hold = fault, False, hold

    def close(self):
        self.listener.close()
        os.unlink(self.path)
        self.cut()

    def cut(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self.end(pair)

    @staticmethod
    def end(pair):
        for one in pair:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def accept(self):
        while True:
            try:
                worker, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_INET if isinstance(self.upstream, tuple) else socket.AF_UNIX)
            try:
                server.connect(self.upstream)
            except OSError:
                worker.close()
                server.close()
                continue
            pair = (worker, server)
            with self.lock:
                self.pairs.add(pair)
            ends = [0]
            for source, sink, direction in ((worker, server, OUT), (server, worker, IN)):
                threading.Thread(target=self.pump, args=(pair, source, sink, direction, ends), daemon=True).start()

    def pump(self, pair, source, sink, direction, ends):
        try:
            self.pass_on(pair, source, sink, direction)
        except OSError:
            pass
        self.end(pair)
        with self.lock:
            self.pairs.discard(pair)
            ends[0] += 1
            is_last = ends[0] == 2
        if is_last:
            for one in pair:
                one.close()

    def pass_on(self, pair, source, sink, direction):
        data = bytearray()
        is_upgraded = False
        while piece := source.recv(1 << 20):
            data += piece
            if not is_upgraded:
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    continue
                sink.sendall(data[:end + 4])
                del data[:end + 4]
                is_upgraded = True
            while (found := frame_length(data)) is not None:
                header, length = found
                frame = bytes(data[:header + length])
                del data[:header + length]
                if not self.pass_frame(pair, sink, direction, frame, header, length):
                    return

    def pass_frame(self, pair, sink, direction, frame, header, length):
        """False: the connection is cut."""
        fault = None
        if is_counted(frame, header, length):
            with self.lock:
                self.counts[direction] += 1
                wanted = self.fault
                if wanted and not self.has_fired and wanted.direction == direction:
                    if self.counts[direction] == wanted.number:
                        fault, self.has_fired = wanted, True
        if fault is None:
            sink.sendall(frame)
            return True
        if fault.action == "late":
            time.sleep(self.hold)
            sink.sendall(frame)
            return True
        if fault.action.endswith("_after"):
            sink.sendall(frame)
        if not fault.action.startswith("cut"):
            self.on_fault(fault)
        if fault.action.startswith("freeze"):
            sink.sendall(frame)
            return True
        self.end(pair)
        return False
