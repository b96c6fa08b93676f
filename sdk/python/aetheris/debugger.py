"""python3 -m aetheris.debugger FILE: serves a file as `python3 -m aetheris` does, under pdb. It waits for a client before it
loads the file, and stops there: set breakpoints (`b agent.py:12`), then continue (`c`). `breakpoint()` stops, too.

  python3 -m aetheris.debugger --connect SOCKET   connects this terminal to it

The socket is in a folder that only its user can open.
"""
import os
import pdb
import shutil
import socket
import sys
import tempfile
import threading
from typing import Any, List

from . import __main__ as program

USAGE = "usage: python3 -m aetheris.debugger FILE | --connect SOCKET\n"


class Debugger(pdb.Pdb):
    """pdb over a connection. Without its client, the code continues; `quit` ends the process."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(stdin=connection.makefile("r"), stdout=connection.makefile("w"), nosigint=True)

    def interaction(self, frame: Any, traceback: Any) -> None:
        try:
            super().interaction(frame, traceback)
        except OSError:  # the client has ended
            self.clear_all_breaks()
            self.set_continue()

    def do_EOF(self, arg: str) -> Any:
        return self.do_continue(arg)

    def do_quit(self, arg: str) -> Any:
        os._exit(1)

    do_q = do_exit = do_quit


def accepted() -> socket.socket:
    """The connection of the first client."""
    folder = tempfile.mkdtemp(prefix="aetheris-debugger-")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            path = os.path.join(folder, "socket")
            listener.bind(path)
            listener.listen(1)
            print(f"Debugger listening on {path}", file=sys.stderr, flush=True)
            return listener.accept()[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve(words: List[str]) -> int:
    debugger = Debugger(accepted())
    sys.breakpointhook = lambda *_, **__: debugger.set_trace(sys._getframe(1))
    threading.settrace(debugger.trace_dispatch)  # agents that are not coroutines have threads
    return int(debugger.runcall(program.main, words))


def connect(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            sys.stderr.write(f"aetheris: no debugger listens on {path}: {error}\n")
            return 1

        def send() -> None:
            for line in sys.stdin.buffer:
                connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
        threading.Thread(target=send, daemon=True).start()
        while True:
            received = connection.recv(65536)
            if not received:
                return 0
            sys.stdout.buffer.write(received)
            sys.stdout.buffer.flush()


def main(words: List[str]) -> int:
    if len(words) == 2 and words[0] == "--connect":
        return connect(words[1])
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 2
    return serve(words)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as of the program
