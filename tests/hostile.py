#!/usr/bin/env python3
"""Hostile servers, and the other jobs of the process that calls them.

One process recovers jobs whose tools call a server that returns a gibibyte, trickles, never answers, sends endless headers,
redirects, disconnects or returns invalid JSON, and jobs whose calls are answered normally. The server holds the normal calls
back until every hostile one has arrived, and keeps the hostile ones open until the last normal one is answered: if one call could
block another job, this test would never end. The memory of the process is compared with that of a run without hostile servers.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import traceback

from shared.program import BIN
from shared.sanitizer import sanitizer

PATIENCE = 120.0
GIBIBYTE = 1 << 30
GOOD_JOBS = 3
GOOD_CALLS = 8          # of each good job, in sequence
MEMORY_MORE_MAX = 64    # MiB, for a gibibyte and five other bad answers at once

# The error code of the job that makes the call.
BAD = {
    "flood": "tool_output_invalid",
    "trickle": "reset",
    "silent": "reset",
    "headers": "reset",
    "redirect": "http_302",
    "cut": "reset",
    "bad_json": "tool_output_invalid",
}


class Server:
    def __init__(self, bad):
        self.bad = set(bad)
        self.arrived, self.followed, self.flooded = set(), 0, 0
        self.good_calls = 0
        self.all_bad_arrived, self.all_good_done = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        if not bad:
            self.all_bad_arrived.set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        with peer:
            peer.settimeout(PATIENCE)
            try:
                request = b""
                while b"\r\n\r\n" not in request:
                    part = peer.recv(65536)
                    if not part:
                        return
                    request += part
                getattr(self, request.split(b" ")[1][1:].decode())(peer)
            except OSError:
                return  # the caller disconnected

    def arrives(self, name):
        with self.lock:
            self.arrived.add(name)
            if self.arrived == self.bad:
                self.all_bad_arrived.set()

    @staticmethod
    def answer(peer, body, kind="application/json"):
        peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                     "Connection: close\r\n\r\n".encode() + body)

    def good(self, peer):
        assert self.all_bad_arrived.wait(PATIENCE)
        self.answer(peer, b'{"fine": true}')
        with self.lock:
            self.good_calls += 1
            if self.good_calls == GOOD_JOBS * GOOD_CALLS:
                self.all_good_done.set()

    def flood(self, peer):
        self.arrives("flood")
        block = b"x" * (1 << 20)
        peer.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {GIBIBYTE}\r\n\r\n".encode())
        for _ in range(GIBIBYTE >> 20):
            peer.sendall(block)
            self.flooded += len(block)

    def trickle(self, peer):
        self.arrives("trickle")
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
        while not self.all_good_done.wait(0.01):
            peer.sendall(b" ")

    def silent(self, peer):
        self.arrives("silent")
        self.all_good_done.wait(PATIENCE)

    def headers(self, peer):
        self.arrives("headers")
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        for n in range(1 << 20):
            peer.sendall(f"X-{n}: {'y' * 1000}\r\n".encode())

    def redirect(self, peer):
        self.arrives("redirect")
        peer.sendall(f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{self.port}/redirected\r\n"
                     "Content-Length: 0\r\n\r\n".encode())

    def redirected(self, peer):
        self.followed += 1
        self.answer(peer, b"{}")

    def cut(self, peer):
        self.arrives("cut")
        peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"half": ')

    def bad_json(self, peer):
        self.arrives("bad_json")
        self.answer(peer, b'{"a": 1, "a": ' + b"[" * 100_000)


def agents_file(port):
    tools, agents = [], []
    for name in ("good", *BAD):
        tools.append(f'  {name}: {{ http: {{ method: GET, url: "http://127.0.0.1:{port}/{name}" }}, effect: read, '
                     f"timeout: {int(PATIENCE)}s }}")
        calls = GOOD_CALLS if name == "good" else 1
        agents.append(f"  {name}:\n    plan:")
        for n in range(calls):
            needs = f", needs: [c{n - 1}]" if n else ""
            agents.append(f"      - {{ id: c{n}, tool: {name}{needs} }}")
        agents.append(f'    output: "${{ .steps.c{calls - 1} }}"')
    return "aetheris: 1\ntools:\n" + "\n".join(tools) + "\nagents:\n" + "\n".join(agents) + "\n"


def environment():
    env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
    return {**env, **sanitizer("quarantine_size_mb=1")}


def aetheris(folder, *words):
    done = subprocess.run([BIN, *words], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=PATIENCE)
    return done.returncode, done.stdout, done.stderr


def recover(folder, bad):
    """Creates the jobs in a new store and recovers all in one process. Returns its peak in MiB, and the server."""
    server = Server(bad)
    try:
        (folder / "agents.yaml").write_text(agents_file(server.port))
        good = [f"good-{n}" for n in range(GOOD_JOBS)]
        for name in [*bad, *good]:
            code, out, err = aetheris(folder, "run", "agents.yaml", name.split("-")[0], "--detach", "--job-id", name)
            assert code == 0 and out == name + "\n", (name, err)
        process = subprocess.Popen([BIN, "run", "agents.yaml", "--job-id", good[0], "--json"], cwd=folder,
                                   env=environment(), stdin=subprocess.DEVNULL, stdout=(folder / "out").open("wb"),
                                   stderr=(folder / "err").open("wb"))
        stopper = threading.Timer(PATIENCE, process.kill)
        stopper.start()
        _, status, usage = os.wait4(process.pid, 0)  # the resources of this process alone
        stopper.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, (process.returncode, (folder / "err").read_text(), server.arrived, server.good_calls)
        assert json.loads((folder / "out").read_text())["result"] == {"fine": True}
        for name in good:
            job = json.loads(aetheris(folder, "job", name, "--json")[1])
            assert job["status"] == "completed" and job["result"] == {"fine": True}, job
        return usage.ru_maxrss / 1024, server
    finally:
        server.listener.close()


def check_other_jobs_continue(folder):
    (folder / "without").mkdir()
    (folder / "with").mkdir()
    usual, _ = recover(folder / "without", [])
    peak, server = recover(folder / "with", list(BAD))
    assert server.arrived == set(BAD) and server.followed == 0, (server.arrived, server.followed)
    assert server.all_good_done.is_set()
    for name, code in BAD.items():
        exit_code, out, _ = aetheris(folder / "with", "job", name, "--json")
        job = json.loads(out)
        assert exit_code == 0 and job["status"] == "failed" and job["error"]["code"] == code, (name, job["error"])
        exit_code, out, _ = aetheris(folder / "with", "verify", name)
        assert exit_code == 0, out
    print(f"# {usual:.0f} MiB without bad servers, {peak:.0f} MiB with; {server.flooded >> 20} MiB of the flood went out")
    assert peak < usual + MEMORY_MORE_MAX, f"{peak:.0f} MiB, without bad servers {usual:.0f} MiB"


def main():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-hostile-"))
    name = "hostile/a hostile server delays no other job and memory stays bounded"
    try:
        check_other_jobs_continue(folder)
        print(f"ok {name}", flush=True)
        return 0
    except Exception:
        print(f"not ok {name}")
        print("    " + traceback.format_exc().replace("\n", "\n    "), flush=True)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
