"""Reaper: ends the processes of a run when the run itself is killed.

A child reads a pipe whose other end only this process holds: however this process ends, the pipe closes, and the child
kills the groups that are left. It is in a session of its own, so a signal to the run's group does not reach it.
"""
import os
import signal
import subprocess
import sys
import threading


class Reaper:
    """Threads: any."""

    def __init__(self):
        self.lock = threading.Lock()
        self.child = subprocess.Popen([sys.executable, "-B", __file__], stdin=subprocess.PIPE, text=True, bufsize=1,
                                      start_new_session=True)

    def add(self, group):
        self._write(f"+{group}\n")

    def remove(self, group):
        """After its processes have ended: the id may be used again."""
        self._write(f"-{group}\n")

    def close(self):
        with self.lock:
            self.child.stdin.close()
        self.child.wait()

    def _write(self, line):
        with self.lock:
            self.child.stdin.write(line)


def main():
    groups = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
