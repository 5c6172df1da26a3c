"""An account that gets finer bars and depth with each bar has the books of one that had them from the start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.live_exchange import LiveExchange
from simulator.exchange.orders import Cancel, Order, OrderRequest
from simulator.exchange.tape import market_tape
from simulator.exchange.venue import Venue
from simulator.market.growing import GrowingMarket, part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, HOUR_MS, MINUTE_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried

SYMBOLS = ("AAA", "BBB")
KINDS: dict[str, Any] = {"AAA": "perpetual", "BBB": "spot"}
START, HOURS, INSIDE = 55, 75, 60
COSTS = Costs(impact=1.0, participation=0.05, latency_ms=700)
_MINUTES = generate(SyntheticConfig(bars=HOURS * INSIDE, seed=5, symbols=SYMBOLS, timeframe="1m"))
_WHOLE = part_of(_MINUTES, 0, len(_MINUTES), KINDS)
MARKET = replace(_WHOLE.resample("1h"), partial=None)


@st.composite
def scripts(draw: st.DrawFn) -> list[list[tuple[OrderRequest, int]]]:
    """What is submitted at each close, and how late."""
    size = st.floats(-400.0, 400.0).filter(lambda value: abs(value) > 0.1)
    order = st.one_of(
        st.builds(Order, st.sampled_from(SYMBOLS), size),
        st.builds(Order, st.sampled_from(SYMBOLS), size, stop=st.just(80.0), target=st.just(130.0)),
        st.builds(Order, st.sampled_from(SYMBOLS), size, kind=st.just("limit"), limit=st.floats(90.0, 110.0)),
        st.builds(Cancel, st.sampled_from(["#0", "#1", "#2"])),
    )
    bars = HOURS - START - 1
    late = st.integers(0, 2 * HOUR_MS)
    requests = st.lists(st.lists(st.tuples(order, late), max_size=2), min_size=bars, max_size=bars)
    return [[*some] for some in draw(requests)]


def finer_without(lost: set[tuple[int, int]]) -> Market:
    """The minutes without those of the hours `lost`, (hour, column) each, and every third one of the others."""
    arrays = {name: getattr(_WHOLE, name).copy() for name in BAR_COLUMNS}
    for values in arrays.values():
        values[1::3] = np.nan
        for hour, column in lost:
            values[hour * INSIDE : (hour + 1) * INSIDE, column] = np.nan
    return replace(_WHOLE, **arrays)


def minutes_of(finer: Market, first: int, stop: int) -> Market:
    rows = slice(first * INSIDE, stop * INSIDE)
    return replace(finer, **{name: getattr(finer, name)[rows] for name in ("open_time", *BAR_COLUMNS)})


@tried(15)
@given(
    script=scripts(),
    lost=st.sets(st.tuples(st.integers(START - 3, HOURS - 1), st.integers(0, 1)), max_size=12),
    seed=st.integers(0, 99),
)
def test_finer_bars_and_depth_that_come_bar_by_bar(
    script: list[list[tuple[OrderRequest, int]]], lost: set[tuple[int, int]], seed: int
) -> None:
    finer = finer_without(lost)
    depth: FloatArray = np.random.default_rng(seed).uniform(0.0, 1e-3, (len(MARKET), 2))
    depth[::4] = np.nan
    growing = GrowingMarket(part_of(MARKET, 0, START + 1, KINDS))
    grid = Venue(finer=minutes_of(finer, START, START + 1))
    live = LiveExchange(growing.market, costs=COSTS, max_leverage=2.0, venue=grid)
    usual = Exchange(MARKET, START, costs=COSTS, max_leverage=2.0, venue=Venue(finer=finer, depth=depth))
    for bar in range(START + 1, len(MARKET)):
        for request, late in script[bar - START - 1]:
            live.submit(request, late)
            usual.submit(request, late)
        opened = int(MARKET.open_time[bar])
        inside = {
            key: [one for one in events if opened < one.time <= opened + HOUR_MS]
            for key, events in MARKET.funding.items()
        }
        grown = growing.append(opened, {name: getattr(MARKET, name)[bar] for name in BAR_COLUMNS}, inside)
        live.extend(grown, minutes_of(finer, bar - 1, bar + 1), depth[bar])
        usual.step()
        if bar == START + 9:  # an account that goes on from what was saved, without the bars before
            kept = growing.keep(52)
            live.keep(kept)
            saved = live.state()
            again = LiveExchange(kept, costs=COSTS, max_leverage=2.0, venue=grid)
            again.go_on(saved)
            before, live = live, again
            filled, refused = len(usual.fills), len(usual.rejections)
    live.finish()
    for mine, theirs in zip(live.fills, usual.fills[filled:], strict=True):
        assert (mine.bar, mine.time, mine.symbol, mine.order) == (theirs.bar, theirs.time, theirs.symbol, theirs.order)
        np.testing.assert_allclose([mine.quantity, mine.price], [theirs.quantity, theirs.price], rtol=1e-9)
    reasons = [(one.bar, one.order, one.reason) for one in usual.rejections[refused:]]
    assert [(one.bar, one.order, one.reason) for one in live.rejections] == reasons
    assert live.account().equity == pytest.approx(usual.account().equity, rel=1e-9)
    assert before.index == START + 9


@pytest.mark.parametrize("late", [0, 20 * MINUTE_MS, 59 * MINUTE_MS, 100 * MINUTE_MS])
def test_a_late_order_meets_a_bar_without_finer_ones_as_it_does_where_there_are_none_at_all(late: int) -> None:
    costs = Costs(latency_ms=300)
    hours = {(hour, column) for hour in range(HOURS) for column in (0, 1)}
    nothing_finer = Exchange(MARKET, START, costs=costs)
    all_lost = Exchange(MARKET, START, costs=costs, venue=Venue(finer=finer_without(hours)))
    for exchange in (nothing_finer, all_lost):
        exchange.submit(Order("BBB", 20.0), late)
        exchange.step(4)
    [one], [other] = nothing_finer.fills, all_lost.fills
    assert (one.bar, one.quantity) == (other.bar, other.quantity)
    assert one.price == pytest.approx(other.price, rel=1e-12)


def test_a_late_order_meets_the_finer_bar_of_its_time() -> None:
    exchange = Exchange(MARKET, START, costs=Costs(), venue=Venue(finer=_WHOLE))
    exchange.submit(Order("BBB", 20.0), 20 * MINUTE_MS)
    exchange.step()
    [fill] = exchange.fills
    row = (START + 1) * INSIDE + 20
    worse = 1.0 + float(_WHOLE.half_spread[row, 1])
    assert fill.price == pytest.approx(float(_WHOLE.open[row, 1]) * worse)
    assert fill.time == int(_WHOLE.open_time[row])


def test_a_cancel_acts_from_the_open_of_a_bar_without_finer_ones() -> None:
    hours = {(hour, column) for hour in range(HOURS) for column in (0, 1)}
    exchange = Exchange(MARKET, START, costs=Costs(), venue=Venue(finer=finer_without(hours)))
    low = float(MARKET.low[START + 1, 1])
    exchange.submit(Order("BBB", 5.0, kind="limit", limit=low * 1.0001, id="waits"))
    exchange.submit(Cancel("waits"), 30 * MINUTE_MS)
    exchange.step()
    assert not exchange.fills
    assert [one.reason for one in exchange.rejections] == ["cancelled"]


def test_impact_is_never_less_than_the_depth_says_and_a_whole_bar_has_the_volatility_of_bars() -> None:
    depth: FloatArray = np.full((len(MARKET), 2), np.nan)
    depth[60, 0], depth[61, 0] = 1.0, 0.0
    usual, _ = market_tape(MARKET, START, HOURS, COSTS, Venue())
    deeper, _ = market_tape(MARKET, START, HOURS, COSTS, Venue(depth=depth))
    changed = np.argwhere(usual.sigma != deeper.sigma)
    assert changed.tolist() == [[0, 60 - START, 0]]
    assert deeper.sigma[0, 60 - START, 0] == pytest.approx(float(MARKET.volume[60, 0]) ** 0.5)
    refined, per_bar = market_tape(MARKET, START, HOURS, COSTS, Venue(finer=finer_without({(60, 0)})))
    assert refined.sigma[0, (60 - START) * per_bar, 0] == usual.sigma[0, 60 - START, 0]


def test_an_account_that_was_begun_without_finer_bars_takes_none() -> None:
    growing = GrowingMarket(part_of(MARKET, 0, START + 1, KINDS))
    live = LiveExchange(growing.market)
    columns = {name: getattr(MARKET, name)[START + 1] for name in BAR_COLUMNS}
    grown = growing.append(int(MARKET.open_time[START + 1]), columns, {})
    with pytest.raises(DataError, match="begun without finer bars"):
        live.extend(grown, _WHOLE)
