"""Files of JSON lines that are durable before the next action: many writers share an fsync."""
import json
import os
import threading


class Lines:
    """Appends; `write` returns when the line is on disk. Threads: any."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lock = threading.Condition()
        self.waiting = []
        self.taken = 0    # lines that were handed in
        self.durable = 0  # of these, on disk
        self.busy = False

    def write(self, entry):
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with self.lock:
            self.waiting.append(line)
            self.taken += 1
            mine = self.taken
            while self.durable < mine:
                if self.busy:
                    self.lock.wait()
                    continue
                batch, upto, self.busy, self.waiting = self.waiting, self.taken, True, []
                self.lock.release()
                try:
                    put(self.file, batch)
                finally:
                    self.lock.acquire()
                    self.busy = False
                self.durable = upto
                self.lock.notify_all()


def put(file, lines):
    """Writes them all and waits for the disk."""
    data = b"".join(lines)
    while data:
        data = data[os.write(file, data):]
    os.fsync(file)


def read(path):
    """Every whole line of a file that may not be there."""
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)
    except FileNotFoundError:
        return
