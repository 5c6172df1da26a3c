"""The point-in-time view of a market: what was known at the close of one bar, and nothing else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.errors import DataError, LookAheadError

if TYPE_CHECKING:  # `simulator.market` makes views, so it imports this module
    from simulator.market import BoolArray, FloatArray, FundingEvent, IntArray, Market, NewsItem
    from simulator.resample import CoarseBars
    from simulator.series import Book, Series

    Indicator = Callable[..., FloatArray]


@dataclass(frozen=True)
class Bars:
    """Consecutive grid bars of one symbol, oldest first. Absent bars are NaN with `present` False."""

    symbol: str
    open_time: IntArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    half_spread: FloatArray
    present: BoolArray

    def __len__(self) -> int:
        return len(self.open_time)


class MarketView:
    """What was known at the close of bar `index`: the only door for agents, tools and strategies."""

    __slots__ = ("_market", "index")

    def __init__(self, market: Market, index: int) -> None:
        self._market = market
        self.index = index

    @property
    def symbols(self) -> tuple[str, ...]:
        return self._market.symbols

    @property
    def timeframe(self) -> str:
        return self._market.timeframe

    @property
    def interval(self) -> int:
        return self._market.interval

    @property
    def now(self) -> int:
        """The clock: close time of the current bar."""
        return int(self._market.open_time[self.index]) + self._market.interval

    def bar(self, symbol: str, index: int) -> Bars:
        """The single bar at an absolute `index`. Raises `LookAheadError` past the clock."""
        if index > self.index:
            raise LookAheadError(f"bar {index} of {symbol} is not complete at bar {self.index}")
        return self._slice(symbol, index, index + 1)

    def bars(self, symbol: str, count: int, timeframe: str | None = None) -> Bars:
        """The last `count` grid bars, the current one included; fewer where the history begins later.

        `timeframe` asks for coarser bars, made by the rules of `simulator.resample`. Only complete ones are given: a
        coarse bar is there from the close of its last finer bar on. Raises `DataError` where the bars of `timeframe`
        are not made of whole bars of this market.
        """
        if timeframe is None or timeframe == self._market.timeframe:
            return self._slice(symbol, max(0, self.index + 1 - count), self.index + 1)
        column = self._market.column(symbol)
        coarse = self._market.coarser(timeframe)
        begin = int(self._market.open_time[0]) // coarse.interval * coarse.interval
        complete = (self.now - begin) // coarse.interval
        return _bars_of(coarse, symbol, column, max(0, complete - count), complete)

    def computed(self, symbol: str, indicator: Indicator, *parameters: float) -> FloatArray:
        """(index + 1,): an indicator at every bar so far, the newest last; made once per market, so it is cheap to ask
        for at each bar.

        `indicator(bars, *parameters)` gets the symbol's whole history and returns an array of its length whose value at
        a bar may depend on that bar and earlier ones only. `cryptosentinel check lookahead` finds one that cheats.
        The array is not to be written to.
        """
        known = self._market.indicators.get((symbol, indicator, parameters))
        if known is None:
            known = self._compute(symbol, indicator, parameters)
        return known[: self.index + 1]

    def latest(self, symbol: str, indicator: Indicator, *parameters: float) -> float:
        """The newest value of `computed`, as a plain number: the quickest way to look an indicator up."""
        known = self._market.indicators.get((symbol, indicator, parameters))
        if known is None:
            known = self._compute(symbol, indicator, parameters)
        return known.item(self.index)

    def _compute(self, symbol: str, indicator: Indicator, parameters: tuple[float, ...]) -> FloatArray:
        """Make an indicator of the whole history and keep it."""
        bars = MarketView(self._market, len(self._market) - 1).bars(symbol, len(self._market))
        made = indicator(bars, *parameters)
        if made.shape != (len(bars),):
            raise DataError(f"{indicator.__name__} returned shape {made.shape}, expected ({len(bars)},).")
        made.flags.writeable = False
        self._market.indicators[symbol, indicator, parameters] = made
        return made

    def last_close(self, symbol: str) -> float:
        """Close of the newest present bar; NaN before the symbol's first bar."""
        column = self._market.close[: self.index + 1, self._market.column(symbol)]
        known = np.flatnonzero(~np.isnan(column[-500:]))
        if len(known):
            return float(column[-500:][known[-1]])
        known = np.flatnonzero(~np.isnan(column))
        return float(column[known[-1]]) if len(known) else float("nan")

    def funding(self, symbol: str, count: int) -> tuple[FundingEvent, ...]:
        """The last `count` settlements at or before now."""
        self._market.column(symbol)  # an unknown symbol is an error, not an empty answer
        events = self._market.funding.get(symbol, ())
        stop = bisect_right(events, self.now, key=lambda event: event.time)
        return events[max(0, stop - count) : stop]

    def news(self, symbol: str, count: int, max_age: int | None = None) -> tuple[NewsItem, ...]:
        """The last `count` headlines about `symbol` or the whole market, known by now and at most `max_age` ms old."""
        self._market.column(symbol)
        if count < 1:
            return ()
        found: list[NewsItem] = []
        for position in range(bisect_right(self._market.news, self.now, key=lambda item: item.known_at) - 1, -1, -1):
            item = self._market.news[position]
            if max_age is not None and self.now - item.known_at > max_age:
                break
            if item.symbol is None or item.symbol == symbol:
                found.append(item)
                if len(found) == count:
                    break
        return tuple(reversed(found))

    @property
    def series_names(self) -> tuple[str, ...]:
        """The series of which at least one record is known by now, sorted."""
        now = self.now
        return tuple(name for name, one in sorted(self._market.series.items()) if len(one) and one.known_at[0] <= now)

    def series(self, name: str, count: int) -> Series:
        """The last `count` records of series `name` that are known by now; fewer, or none, where it begins later.

        Raises `DataError` where the market has no such series.
        """
        try:
            one = self._market.series[name]
        except KeyError:
            there = ", ".join(sorted(self._market.series)) or "none"
            raise DataError(f"{self._market.source}: no series '{name}'; there are {there}") from None
        stop = int(np.searchsorted(one.known_at, self.now, side="right"))
        return one.rows(max(0, stop - count), stop)

    def book(self, symbol: str) -> Book | None:
        """The newest order book of `symbol` that is known by now; None where there is none yet, or none at all."""
        self._market.column(symbol)
        books = self._market.books.get(symbol)
        known = 0 if books is None else int(np.searchsorted(books.time, self.now, side="right"))
        return books.at(known - 1) if books is not None and known else None

    def _slice(self, symbol: str, start: int, stop: int) -> Bars:
        column = self._market.column(symbol)
        if start < 0:
            raise LookAheadError(f"bar {start} of {symbol} lies before the history")
        return _bars_of(self._market, symbol, column, start, stop)


def _bars_of(history: Market | CoarseBars, symbol: str, column: int, start: int, stop: int) -> Bars:
    rows = slice(start, stop)
    close = history.close[rows, column].copy()
    # Copies: a caller that writes into its bars must not change history.
    return Bars(
        symbol=symbol,
        open_time=history.open_time[rows].copy(),
        open=history.open[rows, column].copy(),
        high=history.high[rows, column].copy(),
        low=history.low[rows, column].copy(),
        close=close,
        volume=history.volume[rows, column].copy(),
        half_spread=history.half_spread[rows, column].copy(),
        present=~np.isnan(close),
    )
