"""A market that grows is at each bar the market that was built at once from the same bars, and an account in it has the
books of one in that market."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange, LiveExchange
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target
from simulator.market.events import FundingEvent
from simulator.market.growing import with_bar
from simulator.market.market import Bars, Market, MarketView
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried
from tests.markets import cut_off, without_places

WHOLE = replace(generate(SyntheticConfig(bars=60, seed=5, symbols=("AAA", "BBB"))), news=(), truth=None)


def following(market: Market, start: int) -> Iterator[tuple[int, dict[str, FloatArray], dict[str, list[FundingEvent]]]]:
    """Of each bar from `start` on, when it opens, its values and the settlements inside it."""
    for bar in range(start, len(market)):
        begin = int(market.open_time[bar])
        inside = {
            symbol: [one for one in events if begin < one.time <= begin + market.interval]
            for symbol, events in market.funding.items()
        }
        yield begin, {name: getattr(market, name)[bar] for name in BAR_COLUMNS}, inside


def grown(market: Market, start: int) -> list[Market]:
    """The market at every bar from `start` bars on, each made of the one before."""
    found = [cut_off(market, start - 1)]
    for bar in following(market, start):
        found.append(with_bar(found[-1], *bar))
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
    whole = without_places(WHOLE, *holes)
    for bars, market in enumerate(grown(whole, start), start):
        expected = cut_off(whole, bars - 1)
        assert_equal_views(market.view(bars - 1), expected.view(bars - 1))
        assert market.content_hash == expected.content_hash
        np.testing.assert_array_equal(market.present, expected.present)


@pytest.mark.parametrize("wrong", ["gap", "again", "high", "price", "volume", "spread", "funding", "series"])
def test_what_does_not_follow_or_cannot_be_is_refused(wrong: str) -> None:
    growing = cut_off(WHOLE, 9)
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


SYMBOLS = ("AAA", "BBB")
TRADED = replace(
    generate(SyntheticConfig(bars=70, seed=11, symbols=SYMBOLS)),
    news=(), truth=None, kinds={"AAA": "perpetual", "BBB": "spot"},
)  # fmt: skip
LIVE_FROM = 9
COSTS = Costs(impact=1.0, participation=0.01, latency_ms=700)


@st.composite
def scripts(draw: st.DrawFn) -> list[list[tuple[OrderRequest, int]]]:
    """What is submitted at each close, and how late."""
    size = st.floats(-60.0, 60.0).filter(lambda value: abs(value) > 0.01)
    order = st.one_of(
        st.builds(Order, st.sampled_from(SYMBOLS), size, delay=st.integers(0, 2)),
        st.builds(Order, st.sampled_from(SYMBOLS), size, stop=st.just(80.0), target=st.just(130.0)),
        st.builds(Order, st.sampled_from(SYMBOLS), size, kind=st.just("limit"), limit=st.floats(90.0, 110.0)),
        st.builds(Target, st.sampled_from(SYMBOLS), st.floats(-1.0, 1.0)),
        st.builds(Cancel, st.sampled_from(["#0", "#1", "#2"])),
    )
    late = st.integers(0, 3 * TRADED.interval)
    bars = st.lists(st.lists(st.tuples(order, late), max_size=2), min_size=60, max_size=60)
    return [[*requests] for requests in draw(bars)]


@tried(25)
@given(script=scripts(), holes=st.sets(st.tuples(st.integers(12, 60), st.integers(0, 1)), max_size=12))
def test_the_same_requests_give_the_same_books(
    script: list[list[tuple[OrderRequest, int]]], holes: set[tuple[int, int]]
) -> None:
    """Partial fills, impact, latency, thinking time, funding, brackets and absent bars."""
    market = without_places(TRADED, *holes)
    growing = cut_off(market, LIVE_FROM)
    live = LiveExchange(growing, costs=COSTS, max_leverage=2.0)
    usual = Exchange(market, LIVE_FROM, costs=COSTS, max_leverage=2.0)
    for requests, bar in zip(script, following(market, LIVE_FROM + 1), strict=True):
        for request, late in requests:
            live.submit(request, late)
            usual.submit(request, late)
        growing = with_bar(growing, *bar)
        live.extend(growing)
        usual.step()
    live.finish()
    assert [type(one) for one in live.ledger] == [type(one) for one in usual.ledger]
    for mine, theirs in zip(live.fills, usual.fills, strict=True):
        assert (mine.bar, mine.time, mine.symbol, mine.order) == (theirs.bar, theirs.time, theirs.symbol, theirs.order)
        # The volatility behind the impact is a difference of sums that begin elsewhere.
        np.testing.assert_allclose([mine.quantity, mine.price], [theirs.quantity, theirs.price], rtol=1e-9)
    reasons = [(one.bar, one.order, one.reason) for one in usual.rejections]
    assert [(one.bar, one.order, one.reason) for one in live.rejections] == reasons
    np.testing.assert_allclose(live.equity_curve(), usual.equity_curve(), rtol=1e-9)
    np.testing.assert_allclose(live.exposure_curve(), usual.exposure_curve(), rtol=1e-9, atol=1e-12)
