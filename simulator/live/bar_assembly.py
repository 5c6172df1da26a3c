"""From the events of a feed to complete bars of all symbols, one after the other.

A bar is whole when every symbol's candle is there, and with it the funding that a perpetual settles at its close. How
long is waited for that, the session says. What has not come by then is absent in the bar, for good: a decision may have
been taken on it. What comes late, twice or from elsewhere changes nothing and is said (`RefusedEvent`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from simulator.exchange.venue import SETTLEMENT_MS
from simulator.live.events import BookTop, Candle, FeedEvent, Funding
from simulator.market.instruments import MarketKind

# Why an event does not enter a bar.
#   late: its bar is over. duplicate: it is there already. conflicting: another one is there already; the first counts.
#   off_grid: it is not a bar of this timeframe. unknown: of a symbol that is not traded.
#   implausible: a candle whose prices are more than `MOST_MOVE` times the last close, or less than its part. The next
#   candle of the symbol decides: where it agrees with this one, it and what follows are used. This one is not.
Reason = Literal["late", "duplicate", "conflicting", "off_grid", "unknown", "implausible"]
MOST_MOVE = 10.0


@dataclass(frozen=True)
class RefusedEvent:
    """An event that was not used, in words that a journal can keep."""

    reason: Reason
    what: Literal["candle", "funding"]
    symbol: str
    at: int
    known_at: int


@dataclass(frozen=True)
class LiveBar:
    """One bar of all S symbols, as it was known when it was over.

    Attributes:
        open_time: ms. known_at: when it was over for the session.
        candles: by symbol, open, high, low, close and volume; a symbol that is not in it has no bar.
        half_spread: by symbol, a fraction of the price, of those with a candle.
        funding: (symbol, time, rate) of the settlements inside it, its close included.
    """

    open_time: int
    known_at: int
    candles: dict[str, tuple[float, float, float, float, float]]
    half_spread: dict[str, float]
    funding: tuple[tuple[str, int, float], ...]


class BarAssembler:
    """Takes events in the order in which they became known, and gives bars from `open_time` on.

    Args:
        interval: ms.
        half_spread: of bars in which no order book was seen, a fraction of the price.
        kinds: of every symbol.
        closes: gives the last close of each symbol; one that is missing or NaN is not compared with.
    """

    def __init__(
        self,
        kinds: dict[str, MarketKind],
        interval: int,
        open_time: int,
        half_spread: float,
        closes: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.open_time = open_time  # of the bar that is next
        self._kinds, self._interval, self._half_spread = dict(kinds), interval, half_spread
        self._candles: dict[int, dict[str, tuple[float, float, float, float, float]]] = {}
        self._closes = closes
        self._doubted: dict[str, Candle] = {}  # the newest implausible candle of a symbol
        self._funding: dict[str, dict[int, float]] = {symbol: {} for symbol in kinds}
        self._spreads: dict[str, tuple[float, int]] = {}  # sum and number of the half spreads seen

    @property
    def close(self) -> int:
        """When the next bar closes."""
        return self.open_time + self._interval

    def take(self, event: FeedEvent) -> RefusedEvent | None:
        """Use `event`, or say why not."""
        if isinstance(event, Candle):
            return self._take_candle(event)
        if isinstance(event, Funding):
            return self._take_funding(event)
        if isinstance(event, BookTop) and event.symbol in self._kinds:
            total, count = self._spreads.get(event.symbol, (0.0, 0))
            self._spreads[event.symbol] = (total + event.half_spread, count + 1)
        return None

    def missing(self) -> tuple[str, ...]:
        """Symbols whose candle of the next bar, or the funding settled at its close, has not come."""
        there = self._candles.get(self.open_time, {})
        due = self.close % SETTLEMENT_MS == 0
        return tuple(
            symbol
            for symbol, kind in self._kinds.items()
            if symbol not in there or (due and kind == "perpetual" and self.close not in self._funding[symbol])
        )

    def skip(self) -> None:
        """The next bar is known from elsewhere."""
        self.finish(self.close)

    def is_whole(self, now: int) -> bool:
        """Whether the next bar is over at the time `now` and nothing of it is missing."""
        return now >= self.close and not self.missing()

    def finish(self, now: int) -> LiveBar:
        """The next bar as it is known at `now`; what comes of it from here on is late."""
        candles = self._candles.pop(self.open_time, {})
        ordered = {symbol: candles[symbol] for symbol in self._kinds if symbol in candles}
        spreads = {}
        for symbol in ordered:
            total, count = self._spreads.get(symbol, (0.0, 0))
            spreads[symbol] = total / count if count else self._half_spread
        funding = []
        for symbol, settled in self._funding.items():
            for time in sorted(time for time in settled if time <= self.close):
                funding.append((symbol, time, settled.pop(time)))
        bar = LiveBar(self.open_time, now, ordered, spreads, tuple(funding))
        self.open_time, self._spreads = self.close, {}
        return bar

    def _take_candle(self, candle: Candle) -> RefusedEvent | None:
        def refused(reason: Reason) -> RefusedEvent:
            return RefusedEvent(reason, "candle", candle.symbol, candle.at, candle.known_at)

        if candle.symbol not in self._kinds:
            return refused("unknown")
        if (candle.open_time - self.open_time) % self._interval or candle.at - candle.open_time != self._interval:
            return refused("off_grid")
        if candle.open_time < self.open_time:
            return refused("late")
        values = (candle.open, candle.high, candle.low, candle.close, candle.volume)
        there = self._candles.setdefault(candle.open_time, {})
        if candle.symbol in there:
            return refused("duplicate" if there[candle.symbol] == values else "conflicting")
        doubted = self._doubted.get(candle.symbol)
        if doubted is not None and replace(doubted, known_at=candle.known_at) == candle:
            return refused("duplicate")
        confirmed = doubted is not None and doubted.open_time < candle.open_time and _is_near(candle, doubted.close)
        if not confirmed and not _is_near(candle, self._closes().get(candle.symbol, math.nan)):
            self._doubted[candle.symbol] = candle
            return refused("implausible")
        self._doubted.pop(candle.symbol, None)
        there[candle.symbol] = values
        return None

    def _take_funding(self, funding: Funding) -> RefusedEvent | None:
        def refused(reason: Reason) -> RefusedEvent:
            return RefusedEvent(reason, "funding", funding.symbol, funding.at, funding.known_at)

        if funding.symbol not in self._kinds:
            return refused("unknown")
        if funding.at <= self.open_time:
            return refused("late")
        there = self._funding[funding.symbol]
        if funding.at in there:
            return refused("duplicate" if there[funding.at] == funding.rate else "conflicting")
        there[funding.at] = funding.rate
        return None


def _is_near(candle: Candle, close: float) -> bool:
    """Whether all prices of a candle are within `MOST_MOVE` times `close`; where that is NaN, nothing is known."""
    return not (candle.low < close / MOST_MOVE or candle.high > close * MOST_MOVE)
