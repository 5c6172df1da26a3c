"""A market that grows by a bar, for a session that goes on now.

Each bar gives a new `Market`, whose arrays are the beginnings of larger ones: nothing is copied but when the room is
used up, which then doubles. So a bar costs the same however long the history is, on average, and a market or a view
that was given out earlier stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.events import FundingEvent
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, format_time

_PRICES = ("open", "high", "low", "close")


def part_of(market: Market, first: int, stop: int, kinds: Mapping[str, MarketKind]) -> Market:
    """Bars ``first .. stop - 1`` with what was settled up to their end; without what a growing market has not."""
    end = int(market.open_time[stop - 1]) + market.interval
    arrays: dict[str, Any] = {name: getattr(market, name)[first:stop].copy() for name in ("open_time", *BAR_COLUMNS)}
    funding = {symbol: tuple(one for one in events if one.time <= end) for symbol, events in market.funding.items()}
    return replace(
        market, **arrays, funding={symbol: events for symbol, events in funding.items() if events}, news=(), series={},
        truth=None, partial=None, kinds=dict(kinds),
    )  # fmt: skip


class GrowingMarket:
    """`market` is the history so far; `append` adds the next bar of the grid."""

    def __init__(self, start: Market) -> None:
        """`start` holds at least one bar, no news and no series: those would not go on. Raises `DataError`."""
        beside = [name for name in ("news", "series") if getattr(start, name)]
        if beside:
            raise DataError(f"{start.source}: a market that grows has no {', '.join(beside)}; leave them out.")
        self._market = replace(start, truth=None, partial=None)
        self._used = 0
        self._arrays: dict[str, Any] = {}
        self._funding = {symbol: tuple(start.funding.get(symbol, ())) for symbol in start.symbols}
        self._reserve(2 * len(start))
        self._used = len(start)
        self._market = self._current()

    @property
    def market(self) -> Market:
        """The history so far."""
        return self._market

    def append(
        self, open_time: int, bar: Mapping[str, FloatArray], funding: Mapping[str, Sequence[FundingEvent]]
    ) -> Market:
        """The history with one more bar, which opens at `open_time` (ms).

        Args:
            bar: each of the bar columns, (S,); NaN in all of them where a symbol has no bar.
            funding: by symbol, settlements after the last bar's close and up to this one's.

        Raises:
            DataError: another bar than the next one, one that is impossible, or a settlement outside of it; then
                nothing has changed.
        """
        last, interval = int(self._market.open_time[-1]), self._market.interval
        if open_time != last + interval:
            raise DataError(f"the bar of {format_time(open_time)} does not follow that of {format_time(last)}.")
        values = {name: np.asarray(bar[name], dtype=np.float64) for name in BAR_COLUMNS}
        absent = np.isnan(values["close"])
        prices = np.stack([values[name] for name in _PRICES])
        with np.errstate(invalid="ignore"):
            sound = (prices > 0.0).all(axis=0) & np.isfinite(prices).all(axis=0)
            sound &= (values["low"] <= prices.min(axis=0)) & (values["high"] >= prices.max(axis=0))
            sound &= (values["volume"] >= 0.0) & (values["half_spread"] >= 0.0) & (values["half_spread"] < 1.0)
        if not (sound | absent).all() or not all((np.isnan(one) == absent).all() for one in values.values()):
            raise DataError(f"the bar of {format_time(open_time)} is impossible: {values}.")
        more = {symbol: tuple(events) for symbol, events in funding.items() if events}
        for symbol, events in more.items():
            times = [open_time, *(event.time for event in events)]
            if times != sorted(set(times)) or times[-1] > open_time + interval:
                raise DataError(f"the funding of {symbol} is not inside the bar of {format_time(open_time)}.")
        if self._used == len(self._arrays["open_time"]):
            self._reserve(2 * self._used)
        row = self._used
        self._arrays["open_time"][row] = open_time
        self._arrays["present"][row] = ~absent
        for name, value in values.items():
            self._arrays[name][row] = value
        for symbol, events in more.items():
            self._funding[symbol] += events
        self._used += 1
        self._market = self._current()
        return self._market

    def _current(self) -> Market:
        columns = {name: array[: self._used] for name, array in self._arrays.items()}
        return self._market.continued(columns, {symbol: events for symbol, events in self._funding.items() if events})

    def _reserve(self, rows: int) -> None:
        """Room for `rows` bars. The former arrays are left as they are to who has views of them."""
        for name in ("open_time", "present", *BAR_COLUMNS):
            former = getattr(self._market, name)
            fresh = np.empty((rows, *former.shape[1:]), former.dtype)
            fresh[: len(former)] = former
            self._arrays[name] = fresh
