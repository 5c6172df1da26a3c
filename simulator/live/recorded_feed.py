"""Recorded data as a feed: the bars of a market come as they would have come then, at any speed.

For tests, demonstrations and rehearsals without a network. A candle is known `delay` after its close, with the clock of
the recording; so is what was settled then. Between them nothing happens, and heartbeats say that time passes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from simulator.errors import DataError
from simulator.exchange.carry import kind_of
from simulator.exchange.venue import Venue
from simulator.live.events import BookTop, Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.live.feed import Clock, SimulatedClock
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.timeframes import SECOND_MS, format_time

_DELAY = 300  # ms
_BOOK_SIZE = 1.0  # base units; the recording does not say


class RecordedFeed:
    """`market` from `begin` (ms) on, `speed` times as fast as it was; infinite: as fast as it is asked for.

    The clock stands at `begin`. What opens it later, after a crash, begins there instead (`open`): no time has passed
    for a recording while nobody looked.
    """

    name = "recorded"

    def __init__(self, market: Market, venue: Venue, begin: int, speed: float = math.inf, delay: int = _DELAY) -> None:
        """Raises `DataError` where the market has no bar after `begin`."""
        self._market, self._delay = market, delay
        self.symbols, self.timeframe = market.symbols, market.timeframe
        self.kinds: Mapping[str, MarketKind] = {
            symbol: kind_of(symbol, market, venue) or "spot" for symbol in market.symbols
        }
        self._speed = speed
        self.clock: Clock = SimulatedClock(begin, speed)
        if int(market.open_time[-1]) + market.interval <= begin:
            raise DataError(f"{market.source} has no bar that closes after {format_time(begin)}.")
        self._row = 0
        self._coming: deque[FeedEvent] = deque()
        self._ended = False

    def open(self, since: int) -> None:
        """Deliver what happened after `since`."""
        self._row = int((self._market.open_time + self._market.interval <= since).sum())
        self._coming.clear()
        self._ended = False
        if since > self.clock.now():
            self.clock = SimulatedClock(since, self._speed)

    def next(self, timeout_s: float) -> FeedEvent | None:
        """The next event; with an infinite speed the clock jumps to it."""
        if not self._coming and not self._ended:
            self._fill()
        if not self._coming:
            return None
        event = self._coming[0]
        if not self.clock.wait_until(event.known_at, timeout_s):
            now = self.clock.now()
            return FeedHeartbeat(now, now) if timeout_s * self._speed >= 1.0 else None
        return self._coming.popleft()

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """What the recording has of that time and is known by now."""
        found: list[Candle | Funding] = []
        market = self._market
        first = int((market.open_time + market.interval <= since).sum())
        for row in range(first, len(market)):
            if int(market.open_time[row]) + market.interval > min(until, self.clock.now()):
                break
            found += [event for event in self._events_of(row) if isinstance(event, Candle | Funding)]
        return found

    def counters(self) -> Mapping[str, int | float]:
        """Nothing is counted."""
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def _fill(self) -> None:
        market = self._market
        if self._row == len(market):
            self._ended = True
            now = self.clock.now()
            self._coming.append(Notice("end", "", f"{market.source} has no further bar", now, now))
            return
        self._coming += self._events_of(self._row)
        self._row += 1

    def _events_of(self, row: int) -> list[FeedEvent]:
        market = self._market
        open_time = int(market.open_time[row])
        close = open_time + market.interval
        known = close + self._delay
        events: list[FeedEvent] = []
        for column, symbol in enumerate(market.symbols):
            if not market.present[row, column]:
                continue
            half, middle = float(market.half_spread[row, column]), float(market.close[row, column])
            if half > 0.0:
                bid, ask = middle * (1.0 - half), middle * (1.0 + half)
                events.append(BookTop(symbol, bid, _BOOK_SIZE, ask, _BOOK_SIZE, close, known))
        for symbol, settled in market.funding.items():
            events += [Funding(symbol, one.rate, one.time, known) for one in settled if open_time < one.time <= close]
        for column, symbol in enumerate(market.symbols):
            if market.present[row, column]:
                first, high, low, last, volume = (
                    float(getattr(market, name)[row, column]) for name in ("open", "high", "low", "close", "volume")
                )
                events.append(Candle(symbol, open_time, first, high, low, last, volume, close, known))
        # A symbol without a bar must not hold the others up for ever: time goes on without it.
        events.append(FeedHeartbeat(known + SECOND_MS, known + SECOND_MS))
        return events
