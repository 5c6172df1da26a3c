"""An event loop in a thread of its own, for engines whose requests to a server run side by side."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines on a daemon thread, until `close` or the end of the program; `at_end` runs there last."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _end, self._loop, thread, at_end)

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start `work`; the future gets its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`."""
        return self.start(work).result()

    def cancel_pending(self) -> None:
        """Cancel all that was started and has not ended; not waited for."""

        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, at_end: Callable[[], Awaitable[None]]) -> None:
    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await at_end()

    asyncio.run_coroutine_threadsafe(end(), loop).add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    thread.join(timeout=5.0)
