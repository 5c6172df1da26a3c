"""What happens inside the bars of a market: trades, unfinished candles, order books. Pure, and equal for equal input.

A bar of n ticks goes from its open to one extreme, to the other and to its close; the low comes first in a rising bar.
Its volume is shared out evenly. Tick `k` of a bar falls at (2k + 1) / 2n of its length. Everything at a moment follows
from the ticks up to it, so what REST says and what the streams say is one history.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import UserError
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS

FEWEST_TICKS = 4  # open, low, high, close
_FUNDING_INTERVAL = DAY_MS // 3
_LEVELS = 10
_LEAST_HALF_SPREAD = 1e-6  # of the price, so that a book is never crossed
_MIX = 2_654_435_761  # Knuth's multiplicative hash: sizes of the book that look drawn and are not

BookLevel = tuple[float, float]  # price, size


def decimal_text(value: float) -> str:
    """A number as Binance writes it, without an exponent; `float` gives it back to the bit."""
    return format(Decimal(repr(float(value))), "f")


@dataclass(frozen=True)
class BarSoFar:
    """A bar after `trades` of its ticks; `open_time` in ms. `first_id` is the id of its first trade."""

    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    trades: int
    first_id: int
    closed: bool


@dataclass(frozen=True)
class Tick:
    """One trade. `id` rises by one from tick to tick of a symbol, `time` in ms. `bar` and `place` say which it is."""

    id: int
    time: int
    price: float
    size: float
    sold: bool  # the aggressor sold
    bar: int
    place: int


class MarketTape:
    """The ticks of `market`, `ticks` to a bar. Raises `UserError` for fewer than `FEWEST_TICKS`."""

    def __init__(self, market: Market, ticks: int = FEWEST_TICKS) -> None:
        if ticks < FEWEST_TICKS:
            raise UserError(f"a bar needs {FEWEST_TICKS} ticks or more for its open, low, high and close, not {ticks}")
        self.market = market
        self.ticks = ticks
        self.interval = market.interval
        self.begin = int(market.open_time[0])
        self.end = int(market.open_time[-1]) + market.interval
        self._path = np.linspace(0.0, 3.0, ticks)

    def bar_at(self, time: int) -> int:
        """The bar that `time` (ms) falls into, which may lie outside the market."""
        return (time - self.begin) // self.interval

    def open_time(self, bar: int) -> int:
        return self.begin + bar * self.interval

    def tick_time(self, bar: int, place: int) -> int:
        return self.open_time(bar) + (2 * place + 1) * self.interval // (2 * self.ticks)

    def ticks_by(self, time: int, bar: int) -> int:
        """How many ticks of `bar` have happened by `time` (ms)."""
        return sum(self.tick_time(bar, place) <= time for place in range(self.ticks))

    def is_present(self, column: int, bar: int) -> bool:
        return 0 <= bar < len(self.market) and not math.isnan(self.market.close[bar, column])

    def prices(self, column: int, bar: int) -> FloatArray:
        """`(ticks,)`: the path of a present bar."""
        market = self.market
        corners = [float(values[bar, column]) for values in (market.open, market.low, market.high, market.close)]
        if corners[3] < corners[0]:
            corners[1], corners[2] = corners[2], corners[1]
        path: FloatArray = np.interp(self._path, [0.0, 1.0, 2.0, 3.0], corners)
        # Whatever the number of ticks, the two extremes are traded.
        path[round((self.ticks - 1) / 3)], path[round(2 * (self.ticks - 1) / 3)] = corners[1], corners[2]
        return path

    def tick(self, column: int, bar: int, place: int) -> Tick:
        prices = self.prices(column, bar)
        last = prices[place - 1] if place else prices[0]
        return Tick(
            id=bar * self.ticks + place + 1,
            time=self.tick_time(bar, place),
            price=float(prices[place]),
            size=float(self.market.volume[bar, column]) / self.ticks,
            sold=bool(prices[place] < last),
            bar=bar,
            place=place,
        )

    def bar(self, column: int, bar: int, ticks: int, *, closed: bool) -> BarSoFar | None:
        """A bar after so many of its ticks; None where it is absent, or nothing of it has happened."""
        if not self.is_present(column, bar) or not (ticks or closed):
            return None
        market, first = self.market, bar * self.ticks + 1
        if closed:
            values = [float(column_[bar, column]) for column_ in (market.open, market.high, market.low, market.close)]
            return BarSoFar(
                self.open_time(bar), values[0], values[1], values[2], values[3],
                float(market.volume[bar, column]), self.ticks, first, closed=True,
            )  # fmt: skip
        path = self.prices(column, bar)[:ticks]
        volume = float(market.volume[bar, column]) * ticks / self.ticks
        return BarSoFar(
            self.open_time(bar), float(path[0]), float(path.max()), float(path.min()), float(path[-1]),
            volume, ticks, first, closed=False,
        )  # fmt: skip

    def bars(self, column: int, start: int, stop: int, now: int) -> Iterator[BarSoFar]:
        """The bars [start, stop) as they stand at `now` (ms), the unfinished one too; absent ones are left out."""
        current = self.bar_at(now)
        for number in range(max(0, start), min(stop, current + 1, len(self.market))):
            closed = number < current
            found = self.bar(column, number, 0 if closed else self.ticks_by(now, number), closed=closed)
            if found is not None:
                yield found

    def last_tick(self, column: int, now: int) -> Tick | None:
        """The newest trade at `now` (ms), None before the first."""
        bar = min(self.bar_at(now), len(self.market) - 1)
        done = self.ticks_by(now, bar) if bar >= 0 else 0
        while bar >= 0:
            if done and self.is_present(column, bar):
                return self.tick(column, bar, done - 1)
            bar, done = bar - 1, self.ticks
        return None

    def earlier_tick(self, column: int, tick: Tick) -> Tick | None:
        """The trade before `tick`."""
        if tick.place:
            return self.tick(column, tick.bar, tick.place - 1)
        return self.last_tick(column, self.open_time(tick.bar) - 1)

    def book(self, column: int, tick: Tick) -> tuple[list[BookLevel], list[BookLevel]]:
        """Bids and asks after `tick`, best first."""
        spread = float(self.market.half_spread[tick.bar, column])
        half = max(_LEAST_HALF_SPREAD, spread if spread == spread else 0.0)
        bids, asks = [], []
        for level in range(_LEVELS):
            away = half * (1 + level)
            size = round(tick.size * (0.5 + (tick.id * _MIX * (level + 1) >> 4) % 1024 / 1024), 6) or 1e-6
            bids.append((round(tick.price * (1 - away), 10), size))
            asks.append((round(tick.price * (1 + away), 10), size))
        return bids, asks

    def funding(self, symbol: str, now: int) -> tuple[FundingEvent | None, int]:
        """The last settlement by `now`, and the time (ms) of the next."""
        events = self.market.funding.get(symbol, ())
        place = bisect_right(events, now, key=lambda event: event.time)
        last = events[place - 1] if place else None
        if place < len(events):
            return last, events[place].time
        return last, (now // _FUNDING_INTERVAL + 1) * _FUNDING_INTERVAL
