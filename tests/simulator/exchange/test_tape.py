"""A window's tape is that part of the whole history's tape, whatever the bars are refined or opened by."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.tape import market_tape
from simulator.exchange.venue import Venue
from simulator.kernel import layout as at
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from tests.examples import tried
from tests.markets import random_market

HOUR = 3_600_000


def walk(rng: np.random.Generator, bars: int, timeframe: str, start: int, absent: float) -> Market:
    """Two symbols; some of the bars are absent, and the first has funding every 2.5 hours."""
    funding = {"A": tuple(FundingEvent(start + hour * HOUR // 2, 0.001) for hour in range(1, bars, 5))}
    one = random_market(
        rng, bars, ("A", "B"), absent=absent, volume=(1.0, 9.0), rate=0.0, timeframe=timeframe, start=start
    )
    return replace(one, funding=funding)


@given(
    seed=st.integers(0, 2**32 - 1), first=st.integers(0, 79), length=st.integers(1, 40),
    offset=st.integers(-30, 200), finer=st.booleans(), fill=st.sampled_from(["next_open", "close"]),
)  # fmt: skip
@tried(80)
def test_a_window_is_part_of_the_whole(
    seed: int, first: int, length: int, offset: int, finer: bool, fill: Literal["next_open", "close"]
) -> None:
    rng = np.random.default_rng(seed)
    market = walk(rng, 80, "1h", 40 * HOUR, 0.1)
    venue = Venue(finer=walk(rng, 200, "15m", 40 * HOUR + offset * HOUR // 4, 0.3)) if finer else Venue()
    costs = Costs(impact=1.0, participation=0.1, fill=fill)
    stop = min(80, first + length)
    whole, per_bar = market_tape(market, 0, 80, costs, venue)
    part, again = market_tape(market, first, stop, costs, venue)
    assert per_bar == again == (4 if finer else 1)
    rows = slice(first * per_bar, stop * per_bar)
    for name in part._fields:
        own, expected = getattr(part, name), getattr(whole, name)
        if name == "delisted":
            expected = np.where(expected == at.NEVER, at.NEVER, expected - rows.start)
        elif name != "missing" or expected.shape[1]:
            expected = expected[rows] if name == "day" else expected[:, rows]
        if name == "missing" and not own.any() and not expected.any():
            continue  # without any missing it has no bars
        if name == "sigma":  # sums that begin elsewhere are rounded elsewhere
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-12)
        else:
            np.testing.assert_array_equal(own, expected)


def test_mark_prices_need_only_cover_the_window() -> None:
    rng = np.random.default_rng(0)
    market, mark = walk(rng, 80, "1h", 0, 0.0), walk(rng, 50, "1h", 20 * HOUR, 0.0)
    tape, _ = market_tape(market, 30, 60, Costs(), Venue(mark=mark))
    np.testing.assert_array_equal(tape.mark_close[0], mark.close[10:40])
    for first, stop in ((10, 30), (60, 75)):
        with pytest.raises(DataError, match="the very bars of memory"):
            market_tape(market, first, stop, Costs(), Venue(mark=mark))
