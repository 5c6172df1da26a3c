"""A market that grows is at each bar the market that was built at once from the same bars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.events import FundingEvent
from simulator.market.growing import with_bar
from simulator.market.market import Bars, Market, MarketView
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried

WHOLE = replace(generate(SyntheticConfig(bars=60, seed=5, symbols=("AAA", "BBB"))), news=(), truth=None)


def cut(market: Market, bars: int) -> Market:
    """The first bars, and what was settled by then."""
    end = int(market.open_time[bars - 1]) + market.interval
    arrays = {name: getattr(market, name)[:bars].copy() for name in ("open_time", *BAR_COLUMNS)}
    funding = {key: tuple(one for one in events if one.time <= end) for key, events in market.funding.items()}
    return replace(market, **arrays, funding={key: events for key, events in funding.items() if events})


def with_holes(market: Market, holes: set[tuple[int, int]]) -> Market:
    arrays = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for bar, column in holes:
        for one in arrays.values():
            one[bar, column] = np.nan
    return replace(market, **arrays)


def grown(market: Market, start: int) -> list[Market]:
    """The market at every bar from `start` bars on, each made of the one before."""
    found = [cut(market, start)]
    for bar in range(start, len(market)):
        open_time = int(market.open_time[bar])
        inside = {
            symbol: [one for one in events if open_time < one.time <= open_time + market.interval]
            for symbol, events in market.funding.items()
        }
        bar_of = {name: getattr(market, name)[bar] for name in BAR_COLUMNS}
        found.append(with_bar(found[-1], open_time, bar_of, inside))
    return found


def ranges(bars: Bars, length: float) -> FloatArray:
    """An indicator: the mean range of the last bars."""
    weights = np.ones(int(length)) / length
    return np.convolve(np.nan_to_num(bars.high - bars.low), weights)[: len(bars)]


def assert_equal_views(one: MarketView, other: MarketView) -> None:
    assert (one.now, one.index, one.symbols) == (other.now, other.index, other.symbols)
    for symbol in one.symbols:
        for timeframe, count in ((None, 500), (None, 3), ("12h", 9)):
            mine, theirs = one.bars(symbol, count, timeframe), other.bars(symbol, count, timeframe)
            for name in ("open_time", *BAR_COLUMNS, "present"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        assert one.funding(symbol, 99) == other.funding(symbol, 99)
        np.testing.assert_array_equal(one.last_close(symbol), other.last_close(symbol))
        np.testing.assert_array_equal(one.computed(symbol, ranges, 5.0), other.computed(symbol, ranges, 5.0))
        assert one.latest(symbol, ranges, 3.0) == other.latest(symbol, ranges, 3.0)


@tried(25)  # each compares all views of a whole market
@given(start=st.integers(1, 20), holes=st.sets(st.tuples(st.integers(0, 59), st.integers(0, 1)), max_size=30))
def test_every_view_is_that_of_the_market_built_at_once_and_stays_what_it_was(
    start: int, holes: set[tuple[int, int]]
) -> None:
    """Views are compared after the market has grown to its end: what came later has changed none of them."""
    whole = with_holes(WHOLE, holes)
    for bars, market in enumerate(grown(whole, start), start):
        expected = cut(whole, bars)
        assert_equal_views(market.view(bars - 1), expected.view(bars - 1))
        assert market.content_hash == expected.content_hash
        np.testing.assert_array_equal(market.present, expected.present)


@pytest.mark.parametrize("wrong", ["gap", "again", "high", "price", "volume", "spread", "funding", "series"])
def test_what_does_not_follow_or_cannot_be_is_refused(wrong: str) -> None:
    growing = cut(WHOLE, 10)
    bar = {name: getattr(WHOLE, name)[10].copy() for name in BAR_COLUMNS}
    open_time = int(WHOLE.open_time[10])
    funding: dict[str, tuple[FundingEvent, ...]] = {}
    if wrong == "gap":
        open_time += WHOLE.interval
    elif wrong == "again":
        open_time -= WHOLE.interval
    elif wrong == "high":
        bar["high"][0] = bar["low"][0] / 2
    elif wrong == "volume":
        bar["volume"][1] = np.nan
    elif wrong == "price":
        bar["low"][1] = 0.0
    elif wrong == "spread":
        bar["half_spread"][0] = 1.0
    elif wrong == "series":
        growing = replace(growing, series={"a/b": DataSeries(np.array([open_time]), {"x": np.ones(1)})})
    else:
        funding = {"AAA": WHOLE.funding["AAA"][:1]}
    with pytest.raises(DataError):
        with_bar(growing, open_time, bar, funding)
