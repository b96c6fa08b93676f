"""Commits: stands for the proxy where there are no frames. Counts the commits of a library's store, and has the process
killed before or after one of them (commits.cc)."""
import atexit
import mmap
import shutil
import struct
import subprocess
import tempfile
import threading
import time
import pathlib

from harness.proxy import COMMIT, KILL_BEFORE

SIZE = 32  # bytes of Commits in commits.cc
COUNT, BEFORE, AFTER, IS_KILLED = 0, 8, 16, 24  # offsets in it
_building = threading.Lock()
_folder = None


def preload():
    """The library that is loaded into the process; it is built once."""
    global _folder
    with _building:
        if _folder is None:
            _folder = pathlib.Path(tempfile.mkdtemp(prefix="conformance-commits-"))
            atexit.register(shutil.rmtree, _folder, ignore_errors=True)
            source = pathlib.Path(__file__).with_name("commits.cc")
            subprocess.run(["g++", "-std=c++20", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", source, "-o",
                            _folder / "commits.so"], check=True)
    return _folder / "commits.so"


class Commits:
    """Threads: one of its own until a fault has happened. It calls `on_fault(fault)` after the process was killed."""

    def __init__(self, path, on_fault):
        path.write_bytes(bytes(SIZE))
        with open(path, "r+b") as file:
            self.shared = mmap.mmap(file.fileno(), SIZE)
        self.on_fault = on_fault
        self.began, self.watcher, self.is_over = 0, None, False

    def read(self, offset):
        return struct.unpack_from("Q", self.shared, offset)[0]

    def write(self, offset, value):
        struct.pack_into("Q", self.shared, offset, value)

    @property
    def counts(self):
        return {COMMIT: self.read(COUNT) - self.began}

    @property
    def has_fired(self):
        return self.read(IS_KILLED) == 1

    def begin(self, fault=None, hold=0.0):
        """Counts from now on."""
        self.close()
        self.began = self.read(COUNT)
        self.write(IS_KILLED, 0)
        if fault is None:
            return

        def watch():
            while not self.has_fired and not self.is_over:
                time.sleep(0.002)
            if self.has_fired:
                self.on_fault(fault)
        self.is_over = False
        self.watcher = threading.Thread(target=watch, daemon=True)
        self.write(BEFORE if fault.action == KILL_BEFORE else AFTER, self.began + fault.number)
        self.watcher.start()

    def close(self):
        self.write(BEFORE, 0)
        self.write(AFTER, 0)
        self.is_over = True
        if self.watcher is not None:
            self.watcher.join()
            self.watcher = None
