"""WorkerThread: a worker on a thread of its own. For `aetheris.testing`."""
import asyncio
import threading
from typing import Callable, List, Optional, Union

from .definitions import Agent, Tool
from .functions import Functions
from .worker import Worker

STOP_S = 30.0


class WorkerThread:
    def __init__(self, offers: List[Union[Agent, Tool]], log: Callable[[str, str], None], *, url: Optional[str] = None,
                 socket: Optional[str] = None, adapt: Optional[Callable[[Functions], None]] = None) -> None:
        """`adapt` is called with the functions of the worker before it connects."""
        self._worker = Worker(*offers, url=url, socket=socket, log=log)
        if adapt is not None:
            adapt(self._worker._functions)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="aetheris-worker", daemon=True)
        self._thread.start()
        self._begun.wait()

    async def _run(self) -> None:
        running = asyncio.ensure_future(self._worker.run())
        await asyncio.sleep(0)
        self._begun.set()
        await asyncio.wait([running])

    def stop(self) -> None:
        if self._thread.is_alive():
            try:
                asyncio.run_coroutine_threadsafe(self._worker.stop(0), self._worker.loop)
            except RuntimeError:
                pass  # it has just ended
            self._thread.join(STOP_S)
