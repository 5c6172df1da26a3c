"""Time inside an event loop: a session's clock, and waiting by it without blocking the loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

from simulator.live.feed import Clock

_LOOKS = 3  # what was written to a local socket is there at once, but for a busy kernel


class LoopClock:
    """`clock` for coroutines; `speed` is how many of its seconds pass in one of the loop's."""

    def __init__(self, clock: Clock, speed: float = 1.0) -> None:
        self.clock, self.speed = clock, speed

    def now(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return self.clock.now()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds of the clock."""
        await asyncio.sleep(seconds / self.speed)


class _PatientSelector(selectors.DefaultSelector):
    """Never waits for a timer: where no file is ready, it calls `skip` with the seconds that it was to wait."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        for _ in range(_LOOKS):
            ready = super().select(0)
            if ready:
                return ready
        self._skip(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while there is work and jumps to the next timer when there is none.

    A day of timers passes in the time that its work takes, in the same order on every machine. Both ends of a
    connection have to be in the loop; what waits for a thread or for another machine finds its timers gone.
    """

    def __init__(self) -> None:
        self._moment = 0.0
        super().__init__(_PatientSelector(self._skip))

    def time(self) -> float:
        return self._moment

    def _skip(self, seconds: float) -> None:
        self._moment += seconds


class VirtualClock:
    """The clock of a `VirtualLoop`, which shows `start` (ms) at the loop's beginning."""

    jumps = True

    def __init__(self, loop: asyncio.AbstractEventLoop, start: int) -> None:
        self._loop, self._start = loop, start

    def now(self) -> int:
        return self._start + round(self._loop.time() * 1000)
