"""A worker without an SDK, as a program of its own: `plain_worker(…)` is its text.

Its agents return ANSWER, or throw. It speaks the worker protocol over a WebSocket (docs/worker-protocol.md).
"""
PROGRAM = r'''#!/usr/bin/env python3
import base64, json, os, signal, socket, struct, sys

AGENTS = %(agents)r
ANSWER = %(answer)r
%(more)s
server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["AETHERIS_SOCKET"])
server.sendall(("GET /api/worker HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: aetheris.worker.1\r\nSec-WebSocket-Key: "
                + base64.b64encode(os.urandom(16)).decode() + "\r\n\r\n").encode())
head = b""
while b"\r\n\r\n" not in head:
    more = server.recv(1)
    if not more:
        sys.exit("no answer: " + head.decode())
    head += more
assert b" 101 " in head, head
sent = received = 0


def send(*messages, close=None):
    global sent
    sent += 1
    data = json.dumps({"frame": sent, "ack": received, "messages": messages}).encode()
    opcode = 0x81
    if close is not None:
        data, opcode = struct.pack(">H", close), 0x88
    mask = os.urandom(4)
    size = struct.pack("B", 0x80 | len(data)) if len(data) < 126 else struct.pack(">BH", 0xFE, len(data))
    server.sendall(bytes([opcode]) + size + mask + bytes(c ^ mask[i %% 4] for i, c in enumerate(data)))


def read(count):
    data = b""
    while len(data) < count:
        try:
            more = server.recv(count - len(data))
        except socket.timeout:
            send()
            continue
        if not more:
            sys.exit(0)
        data += more
    return data


def stop(*_):
    send(close=1000)
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
send({"type": "hello", "protocol": 1, "sdk": "plain/1", "worker": f"here:{os.getpid()}:1",
      "agents": AGENTS, "tools": [], "capacity": {"routines": 8, "calls": 8}})
server.settimeout(1)
while True:
    first, size = read(2)
    if size == 126:
        (size,) = struct.unpack(">H", read(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", read(8))
    data = read(size)
    if first & 15 != 1:
        sys.exit(0)
    frame = json.loads(data)
    received = frame["frame"]
    for message in frame["messages"]:
        if message["type"] == "start":
            send({"type": "advance", "routine": message["routine"], "delivered": 0, "end": ANSWER})
'''


def plain_worker(answer="one", agents=None, end=None, more=""):
    """`end`: in place of a result. `more`: lines of Python that run before it connects."""
    agents = agents or [{"name": "plain", "language": "python"}]
    return PROGRAM % {"agents": agents, "answer": end or {"result": answer}, "more": more}
