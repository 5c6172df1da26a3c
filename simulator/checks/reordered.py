"""The same history with something of it in another order: headlines at each other's times, or the days of a window.

A trader who only reads what it is shown has no more to go by in the one than in the other; a model that remembers what
really came next has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, DAY_MS

_PRICES = ("open", "high", "low", "close")


def with_shuffled_news(market: Market, seed: int) -> Market:
    """The market with the texts of its headlines at each other's times: a text keeps nothing but its words.

    Times and coins stay where they are, so that as many headlines come out as did. Raises `DataError` where there are
    fewer than two.
    """
    if len(market.news) < 2:
        raise DataError(f"{market.source}: {len(market.news)} headlines cannot be shuffled; name a folder of news")
    order = np.random.default_rng(seed).permutation(len(market.news))
    news = tuple(replace(item, text=market.news[place].text) for item, place in zip(market.news, order, strict=True))
    return replace(market, news=news)


def with_shuffled_days(market: Market, start: int, stop: int, seed: int) -> Market:
    """The market up to the close of bar `start`; from there to bar `stop` its days in another order.

    A day keeps its bars as changes of the price before it, its volumes, spreads, headlines and funding rates, so the
    whole window's change stays the same and its path does not. Bars after `stop` are left out, and so are order books
    and other series, which would tell of the real days.

    Raises `DataError` for a window of fewer than three days, and for a market whose roles have signs of their own.
    """
    if market.signs is not None:
        raise DataError(f"{market.source}: the days of a market with private signs cannot be reordered")
    a_day = max(1, DAY_MS // market.interval)
    days = (stop - start) // a_day
    if days < 3:
        raise DataError(
            f"{market.source}: the window from bar {start} to {stop} has {days} whole days, which is too few to be "
            "reordered: choose a window of three days or more"
        )
    order = np.random.default_rng(seed).permutation(days)
    tail = np.arange(start + 1 + days * a_day, stop + 1)
    moved = np.concatenate([*(start + 1 + day * a_day + np.arange(a_day) for day in order), tail])
    rows = np.concatenate([np.arange(start + 1), moved])
    columns: dict[str, Any] = {name: getattr(market, name)[rows] for name in BAR_COLUMNS}
    changes = {name: getattr(market, name) / _price_before(market.close) for name in _PRICES}
    for column in range(len(market.symbols)):
        here = {name: changes[name][moved, column] for name in _PRICES}
        steps = np.where(np.isfinite(here["close"]), here["close"], 1.0)
        closes = market.close[: start + 1, column]
        known = closes[np.isfinite(closes)]
        if not len(known):
            raise DataError(f"{market.source}: {market.symbols[column]} has no price before bar {start}")
        before = known[-1] * np.concatenate([[1.0], np.cumprod(steps)[:-1]])
        for name in _PRICES:
            columns[name][start + 1 :, column] = before * here[name]
    begin, end = (int(market.open_time[bar]) + market.interval for bar in (start, stop))
    length, place_of = a_day * market.interval, {int(day): place for place, day in enumerate(order)}

    def shift(time: int) -> int:
        """By how much (ms) what happened at `time` is moved. A close belongs to the day that ends with it."""
        day = -((begin - time) // length) - 1
        return (place_of[day] - day) * length if 0 <= day < days else 0

    def moved_news(item: NewsItem) -> NewsItem:
        return replace(item, time=item.time + shift(item.known_at), known_at=item.known_at + shift(item.known_at))

    funding = {
        symbol: [FundingEvent(one.time + shift(one.time), one.rate) for one in events if one.time <= end]
        for symbol, events in market.funding.items()
    }
    news = (moved_news(item) for item in market.news if item.known_at <= end)
    return replace(
        market,
        open_time=market.open_time[: stop + 1],
        **columns,
        partial=None if market.partial is None else market.partial[rows],
        news=tuple(sorted(news, key=lambda item: item.known_at)),
        funding={symbol: tuple(sorted(events, key=lambda one: one.time)) for symbol, events in funding.items()},
        series={},
        books={},
        truth=None,
    )


def _price_before(close: FloatArray) -> FloatArray:
    """(T, S): the last close before each bar; NaN before the first."""
    places = np.where(np.isfinite(close), np.arange(len(close))[:, None], -1)
    newest = np.maximum.accumulate(places, axis=0)
    filled = np.where(newest >= 0, np.take_along_axis(close, np.maximum(newest, 0), axis=0), np.nan)
    return np.vstack([np.full((1, close.shape[1]), np.nan), filled[:-1]])
