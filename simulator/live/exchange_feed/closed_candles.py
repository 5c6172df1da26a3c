"""Closed candles of one symbol: each once, in order, whatever order they come in. Pure: no network, no clock.

Whoever has a closed candle offers it. One that is next is given at once, with those that waited for it; one that is
ahead waits, and what is missing before it is to be asked for. What the exchange has none of is passed over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from simulator.market.timeframes import bar_start, next_bar_start

_MOST_WAITING = 20_000  # candles that wait for an earlier one; what lies further ahead is asked for when its turn comes
_REMEMBERED = 256  # given candles that a late one is compared with

CandleRow = tuple[int, float, float, float, float, float]  # open time (ms), open, high, low, close, volume
Arrival = Literal["next", "early", "duplicate", "correction", "too_late"]


@dataclass
class ClosedCandles:
    """What has been given and what is awaited, from the candle that opens at or after `since` (ms) on.

    Attributes:
        expected: open time of the next candle to give, ms.
    """

    interval: int
    since: int
    expected: int = field(init=False)
    _waiting: dict[int, CandleRow] = field(default_factory=dict, init=False)
    _given: dict[int, CandleRow] = field(default_factory=dict, init=False)
    _order: deque[int] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.expected = next_bar_start(self.since, self.interval)

    def offer(self, row: CandleRow) -> Arrival:
        """Take a closed candle in; `ready` gives what can be given after it."""
        time = row[0]
        if time >= self.expected:
            known = self._waiting.get(time)
            if known is None and len(self._waiting) < _MOST_WAITING:
                self._waiting[time] = row
            if known is not None:
                # Nobody has seen the first version yet, so the newest one counts.
                self._waiting[time] = row
                return "duplicate"
            return "next" if time == self.expected else "early"
        given = self._given.get(time)
        if given is None:
            return "too_late"
        if given == row:
            return "duplicate"
        self._remember(row)
        return "correction"

    def ready(self) -> list[CandleRow]:
        """The candles that are next, in order; each is given once."""
        rows = []
        while self.expected in self._waiting:
            row = self._waiting.pop(self.expected)
            self._remember(row)
            rows.append(row)
            self.expected += self.interval
        return rows

    def missing(self, now: int) -> range:
        """Open times of the candles that had closed by `now` (ms), are awaited and come before every one that waits."""
        closed = bar_start(now, self.interval)
        return range(self.expected, min([closed, *self._waiting]), self.interval)

    def waits(self) -> bool:
        """Whether a candle waits here for an earlier one."""
        return bool(self._waiting)

    def pass_over(self, until: int) -> int:
        """Give up the candles that open before `until` (ms) and are not here, as far as the first that is; how many."""
        stop = min([until, *self._waiting])
        count = max(0, (stop - self.expected) // self.interval)
        self.expected += count * self.interval
        return count

    def _remember(self, row: CandleRow) -> None:
        if row[0] not in self._given:
            self._order.append(row[0])
        self._given[row[0]] = row
        if len(self._order) > _REMEMBERED:
            del self._given[self._order.popleft()]
