"""What a paper session needs of a source of market data, and its clock: the real one, or one of recorded data that may
run faster.

A feed owns its connection: it reconnects, falls back from the stream to requests, waits out rate limits, and fills what
it missed, by itself. Whatever it does that way it tells with a `Notice`. The session pulls; it never calls into a
running event loop. A feed that is asynchronous inside runs its loop in a thread of its own and hands events over.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from simulator.errors import DataError
from simulator.exchange.venue import Venue, kind_of
from simulator.live.events import BookTop, Candle, FeedEvent, FeedHeartbeat, Funding, Notice
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.timeframes import SECOND_MS, format_time


class Clock(Protocol):
    """Milliseconds since the epoch, UTC, that never fall.

    Attributes:
        jumps: whether it stands still until somebody waits for a moment, and then is there at once.
    """

    jumps: bool

    def now(self) -> int:
        """The time now."""


class RealClock:
    """The time of this machine. A system clock that is set back stands still here until it has caught up."""

    jumps = False

    def __init__(self) -> None:
        self._latest = 0

    def now(self) -> int:
        self._latest = max(self._latest, time.time_ns() // 1_000_000)
        return self._latest


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
        """Wait until `now()` is `moment`, at most `timeout_s` seconds of real time; whether it is."""
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


class Feed(Protocol):
    """Live or recorded data of some symbols in bars of one timeframe.

    Attributes:
        name: of the source, for messages and records, like `binance` or `recorded`.
        symbols: as ccxt writes them, in the order of the market.
        timeframe: of the candles, one of `simulator.market.timeframes.TIMEFRAMES`.
        kinds: spot or perpetual, of each symbol; the session keeps them, so they must not change while it runs.
        clock: what `known_at` is read from.
    """

    name: str
    symbols: tuple[str, ...]
    timeframe: str
    kinds: Mapping[str, MarketKind]
    clock: Clock

    def open(self, since: int) -> None:
        """Connect, and deliver from then on every candle and settlement with ``at > since`` (ms), those first that have
        happened already. Called once, before `next`; a session that is resumed gives the close of the last bar that it
        has. Raises `UserError` where the source cannot be used: wrong keys, an unknown symbol, no such data.
        """

    def next(self, timeout_s: float) -> FeedEvent | None:
        """The next event by `known_at`, which never falls; None where none came within `timeout_s` seconds of real
        time. Candles of one symbol may come late, twice or out of order. After the notice `end` there is None for ever.
        Raises nothing that a retry could fix: that is a notice.
        """

    def backfill(self, since: int, until: int) -> Sequence[Candle | Funding]:
        """Candles and settlements with ``since < at <= until`` that the source has by now, in order of `at`, for the
        history before a session and for bars that did not come. What the source lacks is missing from it. Blocks;
        gives what it could get after a bounded number of tries, with notices of what failed in `next`.
        """

    def counters(self) -> Mapping[str, int | float]:
        """What was counted since the feed was made, by name: disconnections, requests that failed, and the like."""

    def close(self) -> None:
        """Disconnect. May be called twice, and from any state."""


_DELAY = 300  # ms


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
        self._clock = SimulatedClock(begin, speed)
        self.clock: Clock = self._clock
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
            self.clock = self._clock = SimulatedClock(since, self._speed)

    def next(self, timeout_s: float) -> FeedEvent | None:
        """The next event; with an infinite speed the clock jumps to it."""
        if not self._coming and not self._ended:
            self._fill()
        if not self._coming:
            return None
        event = self._coming[0]
        if not self._clock.wait_until(event.known_at, timeout_s):
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
                events.append(BookTop(symbol, bid, ask, close, known))
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
