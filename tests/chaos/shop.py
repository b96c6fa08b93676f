#!/usr/bin/env python3
"""The external service of chaos runs: an effect server that is never killed and records every request.

Every request is a durable line of its journal (fsync, shared by concurrent requests) before it is answered. The seed determines
what the n-th request of a key meets: an answer, a rejection, a connection cut after the effect, a late answer.

    shop.py --port 0 --journal FILE --seed N      prints `listening HOST:PORT`, ends with its input

Some requests take effect up to 1.2 s after they arrived, some after the timeout of their call but before its grace has passed,
also if the client was killed meanwhile.

    POST /idempotent/TOOL   takes effect once per key, later requests get the first answer
    POST /once/TOOL         every request that is not rejected takes effect
    GET  /find?key=K        {"found": …}: the effect of this key, or null
    GET  /look/ID           the same for the same ID
    POST /control           {"calm": true}: stops misbehaving
A line: {n, t, tool, kind: idempotent|once|read, key, exec, inv, try, sha, did: acted|repeat|refused|read, answer, body?}
"""
import argparse
import asyncio
import concurrent.futures
import hashlib
import json
import os
import sys
import time
import urllib.parse
import zlib

from files import put

LATE_ACT_S = 2.6   # after the tools' timeout of 2 s, before their grace of 3 s has passed
SLOW_ACT_S = 1.2
HANG_S = 4.0       # longer than any tool waits
SLOW_S = 0.3

# The number of requests, of a thousand, with each fault. All others are answered.
IDEMPOTENT = [("refuse", 15), ("drop", 8), ("fail_after", 8), ("hang", 1), ("slow", 15), ("busy", 3)]
ONCE = [("refuse", 1), ("limited", 8), ("drop", 3), ("fail_after", 1), ("hang", 1), ("slow", 15)]
LATE = {"idempotent": [("act_late", 3), ("act_slow", 20)], "once": [("act_late", 3), ("act_slow", 100)]}


class Shop:
    def __init__(self, options):
        self.seed, self.calm = options.seed, False
        self.file = os.open(options.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.lines, self.waiters, self.flushing = [], [], False
        self.count = 0
        self.made = {}   # key -> body of the answer that it got first
        self.seen = {}   # key -> requests so far

    def behavior_of(self, kind, key):
        """How this request of the key is treated, determined by the seed, the key's step and its number."""
        number = self.seen[key] = self.seen.get(key, 0) + 1
        if self.calm:
            return "ok"
        draw = zlib.crc32(f"{self.seed}:{key}:{number}".encode()) % 1000
        table = IDEMPOTENT if kind == "idempotent" else ONCE
        for name, share in table + LATE[kind]:
            if draw < share:
                return name
            draw -= share
        return "ok"

    def note(self, **fields):
        self.count += 1
        entry = {"n": self.count, "t": round(time.time(), 6), **fields}
        self.lines.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        if not self.flushing:
            self.flushing = True
            asyncio.get_running_loop().create_task(self.flush())
        return waiter

    async def flush(self):
        while self.lines:
            lines, waiters, self.lines, self.waiters = self.lines, self.waiters, [], []
            await asyncio.get_running_loop().run_in_executor(self.pool, put, self.file, lines)
            for waiter in waiters:
                waiter.set_result(None)
        self.flushing = False

    def act(self, kind, tool, call, answer):
        """The effect, or the first one again."""
        key = call["key"]
        if kind == "idempotent" and key in self.made:
            return self.made[key], self.note(tool=tool, kind=kind, did="repeat", answer=answer, **call)
        body = {"id": f"{tool}-{self.count + 1}", "key": key}
        self.made.setdefault(key, body)
        return body, self.note(tool=tool, kind=kind, did="acted", answer=answer, body=body, **call)

    async def answer(self, method, target, headers, content):
        """(status, body), or None: the connection is cut."""
        place = urllib.parse.urlsplit(target)
        parts = place.path.strip("/").split("/")
        if target == "/control":
            self.calm = bool(json.loads(content).get("calm"))
            return 200, {"calm": self.calm}
        call = {"key": headers.get("idempotency-key", ""), "exec": headers.get("x-aetheris-execution-key", ""),
                "inv": headers.get("x-aetheris-invocation-id", ""), "try": int(headers.get("x-aetheris-try", 0)),
                "sha": hashlib.sha256(content).hexdigest()}
        if method == "GET" and parts[0] == "find":
            found = self.made.get(urllib.parse.parse_qs(place.query)["key"][0])
            await self.note(tool="find", kind="read", did="read", answer="ok", **call)
            return 200, {"found": found}
        if method == "GET" and parts[0] == "look":
            await self.note(tool="look", kind="read", did="read", answer="ok", **call)
            return 200, {"id": parts[1], "size": zlib.crc32(parts[1].encode()) % 50}
        kind, tool = parts
        if method != "POST" or kind not in ("idempotent", "once") or not call["key"]:
            return 404, {"error": "there is no such thing here"}
        behavior = self.behavior_of(kind, call["key"])
        if behavior in ("refuse", "limited", "busy"):
            await self.note(tool=tool, kind=kind, did="refused", answer=behavior, **call)
            return {"refuse": 503, "limited": 429, "busy": 409}[behavior], {"error": behavior}
        if behavior == "act_late":
            await asyncio.sleep(LATE_ACT_S)
        if behavior == "act_slow":
            await asyncio.sleep(SLOW_ACT_S * (zlib.crc32(call["key"].encode()) % 100) / 100)
        body, durable = self.act(kind, tool, call, behavior)
        await durable
        if behavior == "slow":
            await asyncio.sleep(SLOW_S)
        if behavior == "drop":
            return None
        if behavior == "fail_after":
            return 500, {"error": "it acted all the same"}
        if behavior == "hang":
            await asyncio.sleep(HANG_S)
        return 200, body

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *rest = head.decode("latin-1").split("\r\n")
                headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in rest) if name}
                method, target, _ = first.split(" ")
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                # A request takes effect even if its client has disconnected.
                answered = await self.answer(method, target, headers, content)
                if answered is None:
                    return
                status, body = answered
                text = json.dumps(body).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
                             .encode() + text)
                if headers.get("connection", "").lower() == "close":
                    return
        except (asyncio.IncompleteReadError, OSError, ValueError):
            pass
        finally:
            writer.close()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--journal", required=True)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    shop = Shop(options)
    server = await asyncio.start_server(shop.serve, "127.0.0.1", options.port, backlog=1024)
    print("listening %s:%d" % server.sockets[0].getsockname(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
