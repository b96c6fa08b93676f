"""Prints what a step costs a worker: jobs of 10 steps of about 200 bytes, some of them at a time, against a server in another
process that answers at once and records nothing.

  throughput.py [STEPS] [IN_FLIGHT] [async|sync|thread]   thread: an async agent whose functions are a plain def
"""
import base64
import hashlib
import json
import multiprocessing
import os
import pathlib
import resource
import socket
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
FILLER = "x" * 150
JOB = {"agent": "bench", "labels": {}, "created_at": "2026-01-01T00:00:00.000000Z"}
RECORD = {"requests": [], "deliveries": [], "values": {}, "emitted": {}}


def frames_of(connection):
    """The frames of a worker, as JSON."""
    buffer = bytearray()
    while True:
        while True:
            if len(buffer) >= 2:
                length, at = buffer[1] & 0x7F, 2
                if length >= 126:
                    at = 4 if length == 126 else 10
                    length = int.from_bytes(buffer[2:at], "big")
                if len(buffer) >= at + 4 + length:
                    break
            part = connection.recv(1 << 20)
            if not part:
                return
            buffer += part
        mask, payload = bytes(buffer[at:at + 4]), bytes(buffer[at + 4:at + 4 + length])
        opcode = buffer[0] & 0x0F
        del buffer[:at + 4 + length]
        if opcode == 1:
            key = int.from_bytes((mask * (length // 4 + 1))[:length], "little")
            yield json.loads((int.from_bytes(payload, "little") ^ key).to_bytes(length, "little"))


def serve(path, ready, steps, in_flight, results):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    ready.set()
    connection, _ = listener.accept()
    head = connection.recv(65536).decode()
    key = head.split("Sec-WebSocket-Key: ")[1].split("\r\n")[0]
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    connection.sendall(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: aetheris.worker.1\r\n\r\n".encode())
    number = routines = calls = done = 0
    began = None

    def start():
        nonlocal routines
        routines += 1
        return {"type": "start", "routine": routines, "job": {**JOB, "id": f"job-{routines}"}, "agent": "bench",
                "input": {"order": f"o-{routines}"}, "now": "2026-01-01T00:00:00.000000Z", "blind": "ab", "record": RECORD}

    for frame in frames_of(connection):
        answers = []
        for message in frame["messages"]:
            if message["type"] == "hello":
                answers.append({"type": "welcome", "session": "s", "now": "2026-01-01T00:00:00.000000Z", "limits": {
                    "heartbeat_ms": 2000, "silent_ms": 15000, "resume_ms": 20000}})
                answers += [start() for _ in range(in_flight)]
                began = time.monotonic()
            if message["type"] != "advance":
                continue
            done += len(message.get("functions", ()))
            if "end" in message:
                answers += [{"type": "stop", "routine": message["routine"], "reason": "ended"}, start()]
            for request in message.get("requests", ()):
                calls += 1
                answers.append({
                    "type": "perform", "call": calls, "tool": request["tool"], "job": f"job-{message['routine']}",
                    "routine": message["routine"], "position": request["position"], "try": 1,
                    "key": f"aetheris:job-{message['routine']}:0123456789abcdef:01a200a7-e41c-7f8a-9475-7b3034e053df",
                    "execution_key": "0123456789abcdef", "invocation": "01a200a7-e41c-7f8a-9475-7b3034e053df",
                    "send_within_ms": 10000, "timeout_ms": 30000})
        if done >= steps:
            results.put((done, time.monotonic() - began))
            connection.sendall(b"\x88\x02\x03\xe8")
            return
        if answers:
            number += 1
            payload = json.dumps({"frame": number, "ack": frame["frame"], "messages": answers}).encode()
            head = bytes((0x81, 126)) + len(payload).to_bytes(2, "big") if 126 <= len(payload) < 65536 else \
                bytes((0x81, 127)) + len(payload).to_bytes(8, "big") if len(payload) >= 65536 else bytes((0x81, len(payload)))
            connection.sendall(head + payload)


def offers(kind):
    from aetheris import agent

    async def step(args):
        return {"step": args["step"], "text": FILLER}

    def thread_step(args):
        return {"step": args["step"], "text": FILLER}
    function = step if kind == "async" else thread_step

    if kind == "sync":
        @agent("bench")
        def bench(ctx, input):
            return sum(ctx.run("work", "idempotent", function, args={"order": input["order"], "step": i})["step"]
                       for i in range(10))
    else:
        @agent("bench")
        async def bench(ctx, input):
            total = 0
            for i in range(10):
                total += (await ctx.run("work", "idempotent", function, args={"order": input["order"], "step": i}))["step"]
            return {"sum": total}
    return [bench]


def main(steps, in_flight, kind):
    import asyncio
    from aetheris import Worker
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        ready, results = multiprocessing.Event(), multiprocessing.Queue()
        server = multiprocessing.Process(target=serve, args=(path, ready, steps, in_flight, results))
        server.start()
        ready.wait()

        async def run():
            worker = Worker(*offers(kind), socket=path, log=lambda *_: None, routines=in_flight)
            running = asyncio.ensure_future(worker.run())
            before = resource.getrusage(resource.RUSAGE_SELF)
            done, seconds = await asyncio.get_running_loop().run_in_executor(None, results.get)
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            await worker.stop(0)
            await running
            return done, seconds, cpu
        done, seconds, cpu = asyncio.run(run())
        server.join()
    print(f"{kind}, {in_flight} in flight: {done} steps, {done / seconds:.0f} steps/s, {cpu / done * 1e6:.1f} us CPU a step")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]) if words else 100_000, int(words[1]) if len(words) > 1 else 256, words[2] if len(words) > 2 else "async")
