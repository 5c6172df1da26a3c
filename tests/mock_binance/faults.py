"""What goes wrong on a mock exchange, how often, and when: drawn from a seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from simulator.market.timeframes import DAY_MS, HOUR_MS

MessageFault = Literal["dropped", "malformed"]
_MESSAGES: Sequence[MessageFault] = ("dropped", "malformed")


@dataclass(frozen=True)
class Faults:
    """How often each fault happens; nothing by default.

    Attributes:
        dropped, malformed: share of the messages of a stream, 0..1.
        disconnects: per hour; every socket ends without a word. hangs: per hour; every open socket falls silent and
            stays open.
        failed: share of the requests that get a 503. bursts: per day; all requests get a 503 for `burst` seconds.
        limited: share of the requests that get a 429; those that come before its Retry-After, `retry_after` seconds,
            is over get a 418.
        clock_error: ms that the exchange's clock is wrong by, in every answer.
        maintenance: stretches [start, end) of time (ms) in which nothing is served.
        seed: of all draws.
    """

    dropped: float = 0.0
    malformed: float = 0.0
    disconnects: float = 0.0
    hangs: float = 0.0
    failed: float = 0.0
    bursts: float = 0.0
    burst: float = 30.0
    limited: float = 0.0
    retry_after: int = 2
    clock_error: int = 0
    maintenance: tuple[tuple[int, int], ...] = ()
    seed: int = 0


# A bad network, of which the soak test is made.
BAD_NETWORK = Faults(dropped=0.02, malformed=0.02, disconnects=1.0, bursts=1.0, failed=0.01, limited=0.005)


@dataclass
class FaultDraws:
    """The draws of a run from `start` to `end` (ms), and the count of what was done by name."""

    faults: Faults
    start: int
    end: int
    injected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        faults = self.faults
        self.disconnects = self._moments("disconnects", faults.disconnects, HOUR_MS)
        self.hangs = self._moments("hangs", faults.hangs, HOUR_MS)
        self.bursts = self._moments("bursts", faults.bursts, DAY_MS)
        self._requests = random.Random(f"{faults.seed}:requests")
        self._banned_until = 0

    def messages(self, connection: int) -> random.Random:
        """The generator of one connection's message faults."""
        return random.Random(f"{self.faults.seed}:messages:{connection}")

    def message(self, draw: random.Random) -> MessageFault | None:
        """What happens to the next message; a fault is counted."""
        place = draw.random()
        for name in _MESSAGES:
            share: float = getattr(self.faults, name)
            if place < share:
                self.injected[name] += 1
                return name
            place -= share
        return None

    def in_maintenance(self, time: int) -> bool:
        return any(start <= time < end for start, end in self.faults.maintenance)

    def refusal(self, time: int) -> tuple[int, int | None] | None:
        """The HTTP status and Retry-After (seconds) that the request at `time` (ms) gets, None for an answer."""
        if self.in_maintenance(time):
            self.injected["maintenance"] += 1
            return 503, None
        if time < self._banned_until:
            # Whoever asks during a ban does not obey it; the count is for tests.
            self.injected["banned"] += 1
            return 418, 1 + (self._banned_until - time) // 1000
        if any(moment <= time < moment + 1000 * self.faults.burst for moment in self.bursts):
            self.injected["burst"] += 1
            return 503, None
        place = self._requests.random()
        if place < self.faults.limited:
            self.injected["limited"] += 1
            self._banned_until = time + 1000 * self.faults.retry_after
            return 429, self.faults.retry_after
        if place < self.faults.limited + self.faults.failed:
            self.injected["failed"] += 1
            return 503, None
        return None

    def _moments(self, name: str, rate: float, unit: int) -> list[int]:
        """Times (ms) of a Poisson process of `rate` per `unit` ms."""
        draw, found, time = random.Random(f"{self.faults.seed}:{name}"), [], float(self.start)
        while rate / unit > 0.0:  # a tiny rate may be none
            time += draw.expovariate(rate / unit)
            if time >= self.end:
                break
            found.append(int(time))
        return found
