"""A part of a market, and a market with one more bar, for a session that is under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.bar_checks import value_faults
from simulator.market.events import FundingEvent
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, format_time


def part_of(market: Market, first: int, stop: int, kinds: Mapping[str, MarketKind]) -> Market:
    """Bars ``first .. stop - 1`` with what was settled up to their end; without what a growing market has not."""
    end = int(market.open_time[stop - 1]) + market.interval
    arrays: dict[str, Any] = {name: getattr(market, name)[first:stop].copy() for name in ("open_time", *BAR_COLUMNS)}
    funding = {symbol: tuple(one for one in events if one.time <= end) for symbol, events in market.funding.items()}
    return replace(
        market, **arrays, funding={symbol: events for symbol, events in funding.items() if events}, news=(), series={},
        truth=None, partial=None, kinds=dict(kinds),
    )  # fmt: skip


def with_bar(
    market: Market, open_time: int, bar: Mapping[str, FloatArray], funding: Mapping[str, Sequence[FundingEvent]]
) -> Market:
    """A new market: `market`, which has no news and no series, with one more bar, which opens at `open_time` (ms).

    Args:
        bar: each of the bar columns, (S,); NaN in all of them where a symbol has no bar.
        funding: by symbol, settlements after the last bar's close and up to this one's.

    Raises:
        DataError: another bar than the next one, one that is impossible, or a settlement outside of it; a market whose
            news or series would not continue.
    """
    if market.news or market.series:
        raise DataError(f"{market.source}: a market that grows has no news and no series; leave them out.")
    last, interval = int(market.open_time[-1]), market.interval
    if open_time != last + interval:
        raise DataError(f"the bar of {format_time(open_time)} does not follow that of {format_time(last)}.")
    values = {name: np.asarray(bar[name], dtype=np.float64) for name in BAR_COLUMNS}
    absent = np.isnan(values["close"])
    there = {name: np.where(absent, 0.5, value) for name, value in values.items()}  # 0.5 is possible in each column
    if any(wrong.any() for _, wrong, _ in value_faults(there)) or not all(
        (np.isnan(one) == absent).all() for one in values.values()
    ):
        raise DataError(f"the bar of {format_time(open_time)} is impossible: {values}.")
    for symbol, events in funding.items():
        times = [open_time, *(event.time for event in events)]
        if times != sorted(set(times)) or times[-1] > open_time + interval:
            raise DataError(f"the funding of {symbol} is not inside the bar of {format_time(open_time)}.")
    arrays: dict[str, Any] = {name: np.vstack([getattr(market, name), value]) for name, value in values.items()}
    settled = {symbol: (*market.funding.get(symbol, ()), *funding.get(symbol, ())) for symbol in market.symbols}
    return replace(
        market, open_time=np.append(market.open_time, open_time), **arrays, truth=None, partial=None,
        funding={symbol: events for symbol, events in settled.items() if events},
    )  # fmt: skip
