"""Markets for tests: bars of given closes, and random walks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simulator.arrays import FloatArray
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, interval_of

HOUR = 3_600_000
NAMES = ("A", "B", "C", "D")


def bars_of(
    close: ArrayLike, symbols: Sequence[str] = NAMES, *, timeframe: str = "1h", start: int = 0,
    volume: ArrayLike = 1.0, half_spread: ArrayLike = 0.0, **more: Any,
) -> Market:  # fmt: skip
    """Bars of closes (T,) or (T, S), opened at the close before and without wicks unless `more` says otherwise; a close
    that is NaN makes an absent bar. `symbols` are the first of these names."""
    table = np.asarray(close, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    before = np.vstack([table[:1], table[:-1]])

    def shaped(values: ArrayLike) -> FloatArray:
        values = np.asarray(values, np.float64)
        return np.broadcast_to(values[:, None] if values.shape == (len(table),) else values, table.shape)

    arrays: dict[str, Any] = {"open": np.where(np.isnan(before), table, before), "close": table}
    arrays |= {name: shaped(more.pop(name)) for name in ("open", "high", "low") if name in more}
    arrays.setdefault("high", np.maximum(arrays["open"], table))
    arrays.setdefault("low", np.minimum(arrays["open"], table))
    arrays |= {"volume": shaped(volume), "half_spread": shaped(half_spread)}
    absent = np.isnan(table)
    arrays = {name: np.where(absent, np.nan, values) for name, values in arrays.items()}
    times = start + np.arange(len(table), dtype=np.int64) * interval_of(timeframe)
    return Market(tuple(symbols[: table.shape[1]]), timeframe, times, **arrays, **more)


def random_market(
    rng: np.random.Generator, bars: int, symbols: Sequence[str] = NAMES[:1], step: float = 0.02, *,
    absent: float = 0.0, begins: bool = False, spread: float = 0.005, volume: tuple[float, float] = (1.0, 1.0),
    settled: int = HOUR // 4, rate: float = 0.005, **more: Any,
) -> Market:  # fmt: skip
    """Random walks from 100 with gaps, wicks, spreads up to `spread`, volumes in their range, and a share `absent` of
    the bars missing; with `begins` none of the first. Funding is settled as often as there are bars, at multiples of
    `settled` (ms) that are drawn, with rates of deviation `rate`; 0: never."""
    shape = (bars, len(symbols))
    moves, gaps = rng.normal(0.0, step, shape), rng.normal(0.0, step / 2, shape)
    close = 100.0 * np.exp(np.cumsum(moves + gaps, axis=0))
    first = close * np.exp(-moves)
    up, down = np.exp(np.abs(rng.normal(0.0, step / 2, (2, *shape))))
    gone = rng.random(shape) < absent
    gone[0] &= not begins
    funding = {
        symbol: tuple(
            FundingEvent(int(time), float(rng.normal(0.0, rate)))
            for time in sorted(rng.choice(np.arange(bars * HOUR // settled), bars, replace=False) * settled)
        )
        for symbol in symbols
        if rate
    }
    return bars_of(
        np.where(gone, np.nan, close), symbols, open=first, high=np.maximum(first, close) * up,
        low=np.minimum(first, close) / down, volume=rng.uniform(*volume, shape),
        half_spread=rng.uniform(0.0, spread, shape), funding=funding, **more,
    )  # fmt: skip


def without_bars(market: Market, absent: ArrayLike) -> Market:
    """The market without some bars: those where `absent` (T, S) is true."""
    gone = np.broadcast_to(np.asarray(absent), market.close.shape)
    arrays: dict[str, Any] = {name: np.where(gone, np.nan, getattr(market, name)) for name in BAR_COLUMNS}
    return replace(market, **arrays)


def without_places(market: Market, *places: Any) -> Market:
    """The market without the bars at these places: indices of (T, S), each a pair of numbers, slices or lists."""
    absent = np.zeros(market.close.shape, np.bool_)
    for place in places:
        absent[place] = True
    return without_bars(market, absent)


def cut_off(market: Market, index: int) -> Market:
    """The market as if it had ended with bar `index`."""
    now = int(market.open_time[index]) + market.interval
    arrays: dict[str, Any] = {name: getattr(market, name)[: index + 1].copy() for name in ("open_time", *BAR_COLUMNS)}
    funding = {key: tuple(one for one in events if one.time <= now) for key, events in market.funding.items()}
    return replace(
        market,
        **arrays,
        funding={key: events for key, events in funding.items() if events},
        news=tuple(item for item in market.news if item.known_at <= now),
        series={name: one.until(now) for name, one in market.series.items()},
    )
