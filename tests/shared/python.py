"""The Python that runs the SDK."""
import functools
import os
import subprocess
import sys


def interpreters():
    """This Python, and that of the system: one of them may have httpx."""
    found = [sys.executable]
    if os.path.exists("/usr/bin/python3") and not os.path.samefile("/usr/bin/python3", sys.executable):
        found.append("/usr/bin/python3")
    return found


@functools.cache
def python_with_httpx():
    """None: there is none."""
    for python in interpreters():
        if subprocess.run([python, "-c", "import httpx"], capture_output=True).returncode == 0:
            return python
    return None
