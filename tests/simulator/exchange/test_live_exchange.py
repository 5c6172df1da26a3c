"""An account in a market that grows has the books of one in the market that was there at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange, LiveExchange
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target
from simulator.market.growing import with_bar
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried

SYMBOLS = ("AAA", "BBB")
MARKET = replace(
    generate(SyntheticConfig(bars=70, seed=11, symbols=SYMBOLS)),
    news=(), truth=None, kinds={"AAA": "perpetual", "BBB": "spot"},
)  # fmt: skip
START = 9
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
    late = st.integers(0, 3 * MARKET.interval)
    bars = st.lists(st.lists(st.tuples(order, late), max_size=2), min_size=60, max_size=60)
    return [[*requests] for requests in draw(bars)]


def beginning(market: Market, bars: int) -> Market:
    end = int(market.open_time[bars - 1]) + market.interval
    arrays = {name: getattr(market, name)[:bars] for name in ("open_time", *BAR_COLUMNS)}
    funding = {key: tuple(one for one in events if one.time <= end) for key, events in market.funding.items()}
    return replace(market, **arrays, funding=funding)


@tried(25)
@given(script=scripts(), holes=st.sets(st.tuples(st.integers(12, 60), st.integers(0, 1)), max_size=12))
def test_the_same_requests_give_the_same_books(
    script: list[list[tuple[OrderRequest, int]]], holes: set[tuple[int, int]]
) -> None:
    """Partial fills, impact, latency, thinking time, funding, brackets and absent bars."""
    arrays = {name: getattr(MARKET, name).copy() for name in BAR_COLUMNS}
    for bar, column in holes:
        for one in arrays.values():
            one[bar, column] = np.nan
    market = replace(MARKET, **arrays)
    growing = beginning(market, START + 1)
    live = LiveExchange(growing, costs=COSTS, max_leverage=2.0)
    usual = Exchange(market, START, costs=COSTS, max_leverage=2.0)
    for bar in range(START + 1, len(market)):
        for request, late in script[bar - START - 1]:
            live.submit(request, late)
            usual.submit(request, late)
        open_time = int(market.open_time[bar])
        inside = {
            key: [one for one in events if open_time < one.time <= open_time + market.interval]
            for key, events in market.funding.items()
        }
        growing = with_bar(growing, open_time, {name: getattr(market, name)[bar] for name in BAR_COLUMNS}, inside)
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
