"""python3 -m aetheris FILE: serves the agents and tools of a Python file.

  AETHERIS_SOCKET or AETHERIS_URL   the server
  AETHERIS_API_KEY                  a key with the role worker or admin
  AETHERIS_VERSION                  the version of agents that state none
  AETHERIS_VERBOSE                  not empty: it prints a line for each connection
  AETHERIS_DEV                      not empty (`aetheris dev`): it warns where an agent uses what is not recorded, and
                                    where it does not await a request
  AETHERIS_SUPERVISED               not empty: a command started it, which reports when it is ready

Once it is connected, it prints one line with the server and what it offers. SIGTERM or SIGINT ends it in order within
30 s; a second one at once. Exit codes: 0 stopped, 2 usage, 1 all else.
"""
import gc
import importlib.util
import os
import sys
import traceback
from typing import Any, List

from .definitions import Agent, Tool
from .dev_warnings import print_warning, warn_about_unrecorded
from .errors import AetherisError
from .unawaited import warn_about_unawaited
from .worker import serve

USAGE = "usage: python3 -m aetheris FILE   (a Python file with functions that are decorated with @agent and @tool)\n"


# Jobs in flight are many objects that live long. With the interpreter's thresholds, looking for cycles among them again
# and again takes a quarter of the CPU time of a step. A module that is loaded can set others.
GC_THRESHOLDS = (10_000, 20, 50)


def load(path: str) -> Any:
    """The module of a file. What it imports is found beside it."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def offers_of(module: Any) -> List[Any]:
    found: List[Any] = []
    for value in vars(module).values():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, (Agent, Tool)) and one not in found:
                found.append(one)
    return found


def main(words: List[str]) -> int:
    if words in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        return 0
    if len(words) != 1 or words[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 2
    if os.environ.get("AETHERIS_DEV"):
        warn_about_unrecorded(print_warning)
        warn_about_unawaited(print_warning)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        module = load(words[0])
    except BaseException:
        sys.stderr.write(f"aetheris: {words[0]} cannot be loaded\n{traceback.format_exc()}")
        return 1
    offers = offers_of(module)
    if not offers:
        sys.stderr.write(f"aetheris: {words[0]} has no agent and no tool; write: @agent async def NAME(ctx, input)\n")
        return 2
    try:
        serve(*offers)
    except AetherisError as error:
        sys.stderr.write(f"aetheris: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a function on a thread that does not end must not hold the process
