"""scripted_model: examples/model-server as a process."""
import contextlib
import subprocess

import oracles
from shared.program import ROOT


@contextlib.contextmanager
def scripted_model(*words):
    """Yields its URL. `words`: its options."""
    process = subprocess.Popen([oracles.node(), ROOT / "examples/model-server/server.mjs", *words], stdout=subprocess.PIPE,
                               text=True)
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()
