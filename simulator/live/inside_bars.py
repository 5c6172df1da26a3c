"""Bars inside a bar, made of the trades that were heard, with the spread of the book of their time.

They are used where they are the whole of the bar: first, highest, lowest and last price and the volume of the trades
are those of the candle. Where a trade was lost or counted twice the bar stands as one, as in a backtest that has no
finer bars there. Beside them stands what the levels of the book say about the cost of an order that is bigger than the
best one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.live.events import BookTop, MarketTrade
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, interval_of

# Its number in the bar; open, high, low, close and volume; half the spread, a fraction of the price.
InsideBar = tuple[int, float, float, float, float, float, float]
_TOLERANCE = 1e-9  # of prices, which the same text was read into
_VOLUME_TOLERANCE = 1e-6  # of a sum, which is rounded on both sides


class _Gathered:
    """What was heard of one symbol in one bar. `places` has by number of the bar inside: when its first trade was, its
    prices and volume, when its last one was."""

    def __init__(self) -> None:
        self.places: dict[int, list[Any]] = {}
        self.spreads: dict[int, tuple[float, int]] = {}

    def trade(self, place: int, order: tuple[int, int], price: float, quantity: float) -> None:
        """Add a trade; `order` is when it was, and which one of that time."""
        there = self.places.get(place)
        if there is None:
            self.places[place] = [order, price, price, price, price, quantity, order]
            return
        if order < there[0]:
            there[0], there[1] = order, price
        if order >= there[6]:
            there[6], there[4] = order, price
        there[2], there[3] = max(there[2], price), min(there[3], price)
        there[5] += quantity

    def is_whole(self, candle: Sequence[float]) -> bool:
        """Whether the trades are all of `candle`."""
        if not self.places:
            return False
        first, last = self.places[min(self.places)], self.places[max(self.places)]
        prices = (first[1], max(one[2] for one in self.places.values()), min(one[3] for one in self.places.values()))
        same = all(
            math.isclose(heard, stated, rel_tol=_TOLERANCE)
            for heard, stated in zip((*prices, last[4]), candle, strict=False)
        )
        return same and math.isclose(sum(one[5] for one in self.places.values()), candle[4], rel_tol=_VOLUME_TOLERANCE)

    def bars(self, half_spread: float) -> tuple[InsideBar, ...]:
        """The bars inside, in order. `half_spread` is that of those before which no book was seen."""
        made: list[InsideBar] = []
        for place in sorted({*self.places, *self.spreads}):
            if place in self.spreads:
                total, count = self.spreads[place]
                half_spread = total / count
            if place in self.places:
                _, first, high, low, last, volume, _ = self.places[place]
                made.append((place, first, high, low, last, volume, half_spread))
        return tuple(made)


class TradesOfBars:
    """Gathers trades and spreads, by bar of `interval` ms, into bars of `length` ms."""

    def __init__(self, interval: int, length: int) -> None:
        self._interval, self._length = interval, length
        self._bars: dict[int, dict[str, _Gathered]] = {}  # open time of the bar, symbol
        self._heard = 0
        self.lost = 0  # bars of a symbol of which not all trades were heard

    def take(self, event: MarketTrade | BookTop, open_time: int) -> None:
        """Use `event`; `open_time` (ms) is that of the bar under way. What is neither of that bar nor of the next is
        left out."""
        away = event.at - open_time
        if not 0 <= away < 2 * self._interval:
            return
        opened = open_time + away // self._interval * self._interval
        place = away % self._interval // self._length
        gathered = self._bars.setdefault(opened, {}).setdefault(event.symbol, _Gathered())
        if isinstance(event, MarketTrade):
            # Ids that are numbers rise from trade to trade; others come in the order of the stream.
            self._heard += 1
            number = int(event.id) if event.id.isascii() and event.id.isdigit() else self._heard
            gathered.trade(place, (event.at, number), event.price, event.quantity)
        else:
            total, count = gathered.spreads.get(place, (0.0, 0))
            gathered.spreads[place] = (total + event.half_spread, count + 1)

    def finish(
        self, open_time: int, candles: dict[str, tuple[float, float, float, float, float]], spreads: dict[str, float]
    ) -> dict[str, tuple[InsideBar, ...]]:
        """The bars inside the one that opens at `open_time`, of the symbols whose trades are all there. `spreads` are
        half spreads of the whole bar."""
        there = self._bars.pop(open_time, {})
        self._bars = {opened: gathered for opened, gathered in self._bars.items() if opened > open_time}
        made = {}
        for symbol, candle in candles.items():
            gathered = there.get(symbol)
            if gathered is not None and gathered.is_whole(candle):
                made[symbol] = gathered.bars(spreads[symbol])
            elif gathered is not None and gathered.places:
                self.lost += 1
        return made


def inside_from_json(bars: Sequence[Sequence[Any]]) -> tuple[InsideBar, ...]:
    """The bars inside one bar, of lists. Raises `ValueError` and `TypeError` for what they cannot be."""
    made: list[InsideBar] = []
    for place, first, high, low, last, volume, half in bars:
        prices = float(first), float(high), float(low), float(last)
        made.append((int(place), *prices, float(volume), float(half)))
    return tuple(made)


def inside_market(
    symbols: Sequence[str], bars: Sequence[tuple[int, dict[str, tuple[InsideBar, ...]]]], interval: int, timeframe: str
) -> Market:
    """The bars inside of consecutive bars of `interval` ms, each with its open time, as one market of `timeframe`; NaN
    where there is none. Of one bar at least."""
    length = interval_of(timeframe)
    inside = interval // length
    arrays: dict[str, Any] = {name: np.full((inside * len(bars), len(symbols)), np.nan) for name in BAR_COLUMNS}
    for number, (_, by_symbol) in enumerate(bars):
        for column, symbol in enumerate(symbols):
            for place, *values in by_symbol.get(symbol, ()):
                for name, value in zip(BAR_COLUMNS, values, strict=True):
                    arrays[name][number * inside + place, column] = value
    opens = bars[0][0] + length * np.arange(inside * len(bars), dtype=np.int64)
    return Market(tuple(symbols), timeframe, opens, **arrays, source="trades")


def least_impact(bids: Sequence[tuple[float, float]], asks: Sequence[tuple[float, float]]) -> float:
    """The smallest c with which ``half spread + c sqrt(quantity)`` is at no quantity cheaper than taking the levels.

    Args:
        bids, asks: (price, size) of each level, the best one first; sizes in base units.

    Returns:
        c, a fraction of the mid price by the square root of base units: the form of the kernel's market impact, so an
        order that walks the book pays its levels at least, by that rule. Beyond the last level it goes on as there.
        0 for a book of one level.

    Taking a quantity q whose last unit stands at the distance d_k of level k costs, beyond the half spread h, a unit
    ``g(q) = (d_k - h) - sum_j<k (d_k - d_j) size_j / q``; ``g(q) / sqrt(q)`` has its maximum inside the level at
    ``q = 3 sum / (d_k - h)``, or at the level's ends.
    """
    middle = (bids[0][0] + asks[0][0]) / 2.0
    half = (asks[0][0] - bids[0][0]) / 2.0 / middle
    largest = 0.0
    for levels in (bids, asks):
        before = valued = 0.0  # size of the levels so far, and its value by distance
        for price, size in levels:
            away = abs(price / middle - 1.0)
            beyond, saved = away - half, away * before - valued
            if beyond > 0.0 and size > 0.0:
                quantity = min(max(3.0 * saved / beyond, before), before + size)
                for at in (quantity, before + size):
                    if at > 0.0:
                        largest = max(largest, (beyond - saved / at) / math.sqrt(at))
            before, valued = before + size, valued + away * size
    return largest
