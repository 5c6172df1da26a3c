"""Where a market lacks bars."""

from __future__ import annotations

import numpy as np

from simulator.market.market import Market
from simulator.market.timeframes import format_time


def gap_summary(market: Market) -> str:
    """Which symbols lack how many bars, in one line; none of them has been filled in."""
    found = []
    for column, symbol in enumerate(market.symbols):
        there, parts = np.flatnonzero(market.present[:, column]), []
        steps = np.diff(there)
        gaps = np.flatnonzero(steps > 1)
        if len(gaps):
            longest = int(gaps[steps[gaps].argmax()])
            begin = format_time(int(market.open_time[there[longest] + 1]))
            absent = int(steps[gaps].sum()) - len(gaps)
            parts.append(f"{absent} bars absent in {len(gaps)} gaps (longest {steps[longest] - 1} from {begin})")
        partial = 0 if market.partial is None else int(market.partial[:, column].sum())
        if partial:
            parts.append(f"{partial} bars built from an incomplete set of finer bars")
        before, after = (int(there[0]), len(market) - 1 - int(there[-1])) if len(there) else (len(market), 0)
        ends = [f"{word} {bars}" for word, bars in (("first", before), ("last", after)) if bars]
        if ends:
            parts.append(f"not traded in the {' and '.join(ends)} bars")
        if parts:
            found.append(f"{symbol}: {', '.join(parts)}")
    return "; ".join(found) or "no gaps"
