"""Server: the program as a child of the test, with a store in memory. For `aetheris.testing`."""
import atexit
import collections
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
from typing import Deque, Dict, Optional

from .errors import ConnectionFailed, InvalidInput

START_S = 30.0
STOP_S = 5.0
_LISTENING = re.compile(r"listening on (http://\S+)")
_LINES_MAX = 200  # that are kept of what the program prints


def find_program() -> str:
    """AETHERIS_BIN, `aetheris` in PATH, or the one in the package. Raises InvalidInput: there is none."""
    found = os.environ.get("AETHERIS_BIN") or shutil.which("aetheris")
    packaged = pathlib.Path(__file__).parent / "bin/aetheris"
    if not found and packaged.exists():
        found = str(packaged)
    if not found:
        raise InvalidInput("the program aetheris was not found: put it into PATH, or name it in AETHERIS_BIN")
    return found


class Server:
    """`models`: the text of an agents file; `more_env`: further variables. Raises ConnectionFailed: it did not start."""

    def __init__(self, program: Optional[str], agents_file: Optional[str], models: Optional[str] = None,
                 more_env: Optional[Dict[str, str]] = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="aetheris-testing-")
        program = program or find_program()
        files = [os.path.abspath(agents_file)] if agents_file else []
        if models is not None:
            files.append(os.path.join(self._folder, "models.json"))
            pathlib.Path(files[-1]).write_text(models, encoding="utf-8")
        # A lease bounds how long a call of a lost worker is unknown.
        words = [program, "serve", *files, "--store", "memory:?clock=virtual", "--listen", "127.0.0.1:0", "--lease", "2s"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
        env.update(more_env or {})
        self._lines: Deque[str] = collections.deque(maxlen=_LINES_MAX)
        self._url: Optional[str] = None
        self._listens = threading.Event()  # or it has ended
        try:
            self._process = subprocess.Popen(words, cwd=self._folder, env=env, stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ConnectionFailed("unavailable", f"{program} cannot be started: {error}") from None
        atexit.register(self._process.kill)
        self._reading = threading.Thread(target=self._read, name="aetheris-testing", daemon=True)
        self._reading.start()
        self._listens.wait(START_S)
        if self._url is None:
            self.stop()
            output = "".join(self._lines)
            raise ConnectionFailed("unavailable", f"{program} did not listen:\n{output}")

    @property
    def url(self) -> str:
        return self._url or ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = _LISTENING.search(line)
            if found:
                self._url = found[1]
                self._listens.set()
        self._listens.set()

    def stop(self) -> None:
        atexit.unregister(self._process.kill)
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(STOP_S)  # a child of the program may hold the pipe
        if not self._reading.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
