"""Variants of a market for the checks: truncated at the close of a bar, perturbed after it, or with a later beginning.

Truncated and perturbed markets agree with the market in everything that was known at that close. Each function treats
every field of `Market`. The truth is dropped: nothing that a strategy may use depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Market
from simulator.market.series import BOOK_COLUMNS, DataSeries, OrderBooks
from simulator.market.signs import PrivateSigns
from simulator.market.timeframes import BAR_COLUMNS

TREATED = frozenset(
    {
        "symbols", "timeframe", "source", "kinds",  # the same in every history
        "open_time", *BAR_COLUMNS, "partial", "funding", "news", "series", "books", "signs", "truth",
    }
)  # fmt: skip

_HEADLINES = (
    "buyers return after a quiet week",
    "outage at a large venue, withdrawals are paused",
    "regulator opens an inquiry",
    "record inflows into funds",
    "selling goes on, no support in sight",
)


def truncated(market: Market, index: int) -> Market:
    """The market as if it ended with bar `index`: nothing that became known after its close exists."""
    now = _close_of(market, index)
    return replace(
        market,
        **_rows(market, slice(0, index + 1)),
        funding={symbol: tuple(one for one in events if one.time <= now) for symbol, events in market.funding.items()},
        news=tuple(item for item in market.news if item.known_at <= now),
        series={name: one.until(now) for name, one in market.series.items()},
        books={symbol: books.until(now) for symbol, books in market.books.items()},
        truth=None,
    )


def perturbed(market: Market, index: int, rng: np.random.Generator) -> Market:
    """The market up to the close of bar `index`, followed by other, random data of the same length.

    Bars go on from another price level with another path, volumes, spreads and holes; settlements have other rates,
    series and order books other numbers at the same times; other headlines come out, some of them about events
    before the close of `index`. Equal states of `rng` give equal markets.
    """
    now = _close_of(market, index)
    bars = _other_bars(market, index, rng)
    partial = market.partial
    if partial is not None:
        partial = partial.copy()
        # An absent bar was built from nothing, so it is not partial either.
        partial[index + 1 :] = (rng.random(partial[index + 1 :].shape) < 0.5) & ~np.isnan(bars["close"][index + 1 :])
    return replace(
        market,
        **bars,
        partial=partial,
        funding={
            symbol: tuple(
                one if one.time <= now else FundingEvent(one.time, float(rng.normal(0.0, 1e-3))) for one in events
            )
            for symbol, events in market.funding.items()
        },
        news=(*(item for item in market.news if item.known_at <= now), *_other_news(market, now, rng)),
        series={name: _other_series(one, now, rng) for name, one in market.series.items()},
        books={symbol: _other_books(books, now, rng) for symbol, books in market.books.items()},
        signs=None if market.signs is None else _other_signs(market.signs, index),
        truth=None,
    )


def begun_at(market: Market, index: int) -> Market:
    """The market without the bars before `index`. What became known beside the bars stays: it is still known."""
    _close_of(market, index)
    return replace(
        market,
        **_rows(market, slice(index, None)),
        truth=None,
    )


def with_room(market: Market) -> Market:
    """The market with one absent bar at its end, so that orders of its last close have a bar to wait for."""
    absent = np.full((1, len(market.symbols)), np.nan)
    bars: dict[str, Any] = {name: np.concatenate([getattr(market, name), absent]) for name in BAR_COLUMNS}
    return replace(
        market,
        open_time=np.append(market.open_time, market.open_time[-1] + market.interval),
        **bars,
        partial=None,
        signs=None if market.signs is None else _with_a_row(market.signs),
        truth=None,
    )


def _rows(market: Market, rows: slice) -> dict[str, Any]:
    """The fields that have a row a bar, with these rows only."""
    arrays: dict[str, Any] = {name: getattr(market, name)[rows].copy() for name in ("open_time", *BAR_COLUMNS)}
    arrays["partial"] = None if market.partial is None else market.partial[rows].copy()
    return {**arrays, "signs": None if market.signs is None else market.signs.rows(rows)}


def _close_of(market: Market, index: int) -> int:
    if not 0 <= index < len(market):
        raise DataError(f"{market.source}: bar {index} is outside 0..{len(market) - 1}; choose one of these.")
    return int(market.open_time[index]) + market.interval


def _other_bars(market: Market, index: int, rng: np.random.Generator) -> dict[str, Any]:
    """The bar columns, (T, S), with the rows after `index` made from what was known at its close and from `rng`."""
    known, later = slice(0, index + 1), slice(index + 1, None)
    other = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for column in range(len(market.symbols)):
        count = len(market) - index - 1
        closes = _present(market.close[known, column])
        last = closes[-1] if len(closes) else 100.0
        moves = np.diff(np.log(closes[-1000:]))
        scale = float(moves.std()) if len(moves) > 1 and moves.std() > 0.0 else 0.01
        # A jump of the whole level, so that the very next open is another one by far more than a tick.
        path = np.clip(rng.normal(0.0, 0.5) + np.cumsum(rng.normal(0.0, scale, count + 1)), -10.0, 10.0)
        prices = last * np.exp(path)
        first, final = prices[:-1], prices[1:]
        wicks = np.exp(np.abs(rng.normal(0.0, scale, (2, count))))
        absent = rng.random(count) < 0.05
        values = {
            "open": first,
            "high": np.maximum(first, final) * wicks[0],
            "low": np.minimum(first, final) / wicks[1],
            "close": final,
            "volume": _typical(market.volume[known, column], 1.0) * np.exp(rng.normal(0.0, 1.0, count)),
            "half_spread": np.minimum(
                _typical(market.half_spread[known, column], 2e-4) * np.exp(rng.normal(0.0, 0.5, count)), 0.5
            ),
        }
        for name, made in values.items():
            other[name][later, column] = np.where(absent, np.nan, made)
    return other


def _other_signs(signs: PrivateSigns, index: int) -> PrivateSigns:
    """The signs with the opposite of each after `index`."""
    there = np.arange(len(signs.crowded))[:, None] <= index
    return PrivateSigns(*(np.where(there, shown, ~shown) for shown in (signs.crowded, signs.confirmed)))


def _with_a_row(signs: PrivateSigns) -> PrivateSigns:
    return PrivateSigns(*(np.pad(shown, ((0, 1), (0, 0))) for shown in (signs.crowded, signs.confirmed)))


def _other_news(market: Market, now: int, rng: np.random.Generator) -> list[NewsItem]:
    """Headlines that become known after `now`, in order: the first ones at once, the others until the market's end."""
    about = [*market.symbols, None]
    end = max(int(market.open_time[-1]), now) + market.interval
    soon = [now + 1 + number for number in range(len(about))]
    times = sorted([*soon, *rng.integers(now + 1, end, 4 * len(about)).tolist()])
    return [
        NewsItem(
            time=time - int(rng.integers(0, market.interval)),
            known_at=time,
            symbol=about[int(rng.integers(len(about)))],
            text=_HEADLINES[int(rng.integers(len(_HEADLINES)))],
        )
        for time in times
    ]


def _other_series(series: DataSeries, now: int, rng: np.random.Generator) -> DataSeries:
    """The records after `now` with other numbers, on the scale of the column."""
    begin = int(np.searchsorted(series.known_at, now, side="right"))
    columns = {}
    for name, values in series.columns.items():
        other = values.copy()
        size = float(np.abs(values).mean()) if len(values) else 0.0
        noise = rng.normal(0.0, max(size, 1e-6), len(values) - begin)
        other[begin:] = values[begin:] * np.exp(rng.normal(0.0, 0.5, len(noise))) + noise
        columns[name] = other
    return replace(series, columns=columns)


def _other_books(books: OrderBooks, now: int, rng: np.random.Generator) -> OrderBooks:
    """The snapshots after `now` at other prices, with other sizes; both sides move alike, so no book is crossed."""
    begin = bisect_right(books.time.tolist(), now)
    other = {name: getattr(books, name).copy() for name in BOOK_COLUMNS}
    level = np.exp(rng.normal(0.0, 0.5, (len(books) - begin, 1)))
    for name, values in other.items():
        later = values[begin:]
        values[begin:] = later * (level if name.endswith("price") else np.exp(rng.normal(0.0, 1.0, later.shape)))
    return replace(books, **other)


def _present(values: FloatArray) -> FloatArray:
    known: FloatArray = values[~np.isnan(values)]
    return known


def _typical(values: FloatArray, without: float) -> float:
    """Median of the positive values, `without` where there are none."""
    known = values[values > 0.0]
    return float(np.median(known)) if len(known) else without
