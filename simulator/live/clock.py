"""The clock of a session: the real one, or one of recorded data that may run faster."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

from simulator.errors import DataError


class Clock(Protocol):
    """Milliseconds since the epoch, UTC, that never fall.

    Attributes:
        jumps: whether it stands still until somebody waits for a moment, and then is there at once.
    """

    jumps: bool

    def now(self) -> int:
        """The time now."""

    def wait_until(self, moment: int, timeout_s: float) -> bool:
        """Wait until `now()` is `moment`, at most `timeout_s` seconds of real time; whether it is."""


class RealClock:
    """The time of this machine. A system clock that is set back stands still here until it has caught up."""

    jumps = False

    def __init__(self) -> None:
        self._latest = 0

    def now(self) -> int:
        self._latest = max(self._latest, time.time_ns() // 1_000_000)
        return self._latest

    def wait_until(self, moment: int, timeout_s: float) -> bool:
        ahead = (moment - self.now()) / 1000.0
        time.sleep(min(max(ahead, 0.0), timeout_s))
        return self.now() >= moment


class SimulatedClock:
    """Begins at `start` (ms) and runs `speed` times as fast as real time.

    With an infinite speed it moves only when somebody waits for a moment or says that time has passed; then what is
    read from it depends on nothing but what was asked of it, and runs repeat themselves.
    """

    def __init__(self, start: int, speed: float = math.inf) -> None:
        if not speed > 0.0:
            raise DataError(f"the clock's speed is {speed}; give a number above 0, or infinity for as fast as it goes.")
        self._moment, self._speed = start, speed
        self.jumps = math.isinf(speed)
        self._begun = time.monotonic()
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            return self._now()

    def wait_until(self, moment: int, timeout_s: float) -> bool:
        with self._lock:
            ahead = moment - self._now()
            if math.isinf(self._speed):
                self._moment = max(self._moment, moment)
                return True
        time.sleep(min(max(ahead, 0) / 1000.0 / self._speed, timeout_s))
        return self.now() >= moment

    def passed(self, milliseconds: int) -> None:
        """Move on by what something would have taken in real time, which did not take it here."""
        with self._lock:
            self._moment += milliseconds

    def _now(self) -> int:
        if math.isinf(self._speed):
            return self._moment
        return self._moment + int((time.monotonic() - self._begun) * 1000.0 * self._speed)
