"""What data each part of a history has: headlines and funding often begin years after the bars."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from backend.builders.market import Split
from cryptosentinel.tools.market import FUNDING_MAX_AGE, NEWS_MAX_AGE
from simulator.arrays import IntArray
from simulator.market.market import Market
from simulator.market.timeframes import format_time


def part_notes(market: Market, parts: Split) -> list[str]:
    """A sentence for each part: its days, and on which share of its bars, over all coins, there is a price, and a
    headline or a funding rate that is new enough for the team's tools. And one of what the training part has none of:
    who then decides without it, and that it is paid as ever."""
    close = market.open_time + market.interval
    known = {
        "bars": market.present,
        "headlines": _columns(
            market,
            close,
            NEWS_MAX_AGE,
            ((one.known_at for one in market.news if one.symbol in (None, name)) for name in market.symbols),
        ),
        "funding": _columns(
            market,
            close,
            FUNDING_MAX_AGE,
            ((one.time for one in market.funding.get(name, ())) for name in market.symbols),
        ),
    }
    notes = []
    for title, (start, stop) in (
        ("training", parts.train),
        ("validation", parts.validation),
        ("held-out", parts.held_out),
    ):
        shares = ", ".join(f"{name} on {np.mean(there[start:stop]):.0%}" for name, there in known.items())
        days = f"{format_time(int(market.open_time[start]))[:10]} to {format_time(int(close[stop - 1]))[:10]}"
        notes.append(f"The {title} part, {days}, has {shares} of its {stop - start} bars, over all coins.")
    begin, end = parts.train
    absent = [name for name in ("headlines", "funding") if not known[name][begin:end].any()]
    if absent:
        rest = ", ".join(name for name in ("prices", "headlines", "funding") if name not in absent)
        notes.append(
            f"The training part has no {' and no '.join(absent)}: MarketAnalyst learns from {rest} alone there. What "
            "it is paid stays as it is: its forecast's score and its share of the outcome."
        )
    return notes


def _columns(market: Market, close: IntArray, age: int, times: Iterable[Iterable[int]]) -> np.ndarray:
    """(T, S): whether an event of at most `age` milliseconds is known at each close, by coin."""
    columns = []
    for one in times:
        sorted_times = np.asarray([-(2**62), *one], dtype=np.int64)
        newest = sorted_times[np.searchsorted(sorted_times, close, side="right") - 1]
        columns.append(close - newest <= age)
    return np.stack(columns, axis=1)
