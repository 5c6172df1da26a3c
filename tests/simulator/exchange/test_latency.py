"""Latency in milliseconds, in bars with and without finer ones, fills on the tick, and a stop that turns a position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulator.backtest.from_signals import run_signals
from simulator.env.trading_env import EnvConfig, TradingEnv
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import BAR_COLUMNS, MINUTE_MS
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried
from tests.order_cases import FREE, Candle, bars

MINUTE = 60_000
HOURS: list[Candle] = [(100, 100, 100, 100), (100, 106, 94, 103), (103, 104, 102, 103), (103, 103, 103, 103)]


def costs(**more: Any) -> Costs:
    return Costs(**(FREE | more))


def hours(candles: list[Candle] = HOURS, half_spread: float = 0.0) -> Market:
    return bars(candles, "1h", [1e6] * len(candles), half_spread)


def minutes() -> Market:
    """Four hours of minutes; each opens at 100 plus its number, and reaches 0.5 to both sides."""
    first = 100.0 + np.arange(240.0)[:, None]
    time = np.arange(240, dtype=np.int64) * MINUTE
    spread = np.zeros_like(first)
    return Market(("A",), "1m", time, first, first + 0.5, first - 0.5, first + 0.25, np.full_like(first, 1e6), spread)


def fills(exchange: Exchange) -> list[tuple[int, float, float]]:
    return [(fill.bar, fill.quantity, fill.price) for fill in exchange.fills]


@pytest.mark.parametrize(
    ("latency", "bar", "price"),
    [
        (0, 1, 100.0),
        (36_000, 1, 100.0 + 0.1 * 6.0),  # a hundredth of the hour: a tenth of the way to the high
        (900_000, 1, 103.0),
        (3_600_000, 2, 103.0),  # a whole bar later
        (2 * 3_600_000 + 900_000, 3, 103.0),
    ],
)
def test_an_order_meets_a_price_that_ran_against_it(latency: int, bar: int, price: float) -> None:
    exchange = Exchange(hours(), 0, 1_000.0, costs(latency_ms=latency))
    exchange.submit(Order("A", 1.0))
    exchange.step(4)
    [(its_bar, quantity, its_price)] = fills(exchange)
    assert (its_bar, quantity) == (bar, 1.0)
    assert its_price == pytest.approx(price)


def test_finer_bars_show_the_price_of_the_moment() -> None:
    """Whole minutes are the open of that minute. What is left runs against the order within the minute."""
    market = hours([(100, 340, 90, 159.25), (160, 340, 90, 219.25), (220, 340, 90, 279.25), (280, 340, 90, 339.25)])
    for latency, price in ((0, 160.0), (MINUTE, 161.0), (5 * MINUTE, 165.0), (5 * MINUTE + 15_000, 165.25)):
        exchange = Exchange(market, 0, 1_000.0, costs(latency_ms=latency), venue=Venue(finer=minutes()))
        exchange.submit(Order("A", 1.0))
        exchange.step(3)
        assert [fill.price for fill in exchange.fills] == [pytest.approx(price)], latency
    exchange = Exchange(market, 0, 1_000.0, costs(), venue=Venue(finer=minutes()))
    exchange.submit(Order("A", -1.0), thinking_ms=7 * MINUTE)
    exchange.submit(Target("A", 0.1), thinking_ms=8 * MINUTE + 1)
    exchange.step(3)
    assert (exchange.fills[0].time, exchange.fills[0].price) == (67 * MINUTE, 167.0)
    assert exchange.fills[-1].time == 69 * MINUTE


candles = st.lists(
    st.tuples(st.floats(80, 120), st.floats(80, 120), st.floats(0, 10), st.floats(0, 10)), min_size=4, max_size=8
)


@tried(120)
@given(shapes=candles, latency=st.integers(0, 2 * 3_600_000), side=st.sampled_from([1.0, -1.0]), target=st.booleans())
def test_latency_never_helps(
    shapes: list[tuple[float, float, float, float]], latency: int, side: float, target: bool
) -> None:
    """A fill is never better than the open of the bar that it fell into, and never outside that bar."""
    table: list[Candle] = [(o, max(o, c) + up, min(o, c) - down, c) for o, c, up, down in shapes]
    exchange = Exchange(hours(table), 0, 1_000.0, costs(latency_ms=latency))
    exchange.submit(Target("A", 0.5 * side) if target else Order("A", side))
    exchange.step(len(table))
    for fill in exchange.fills:
        first, high, low, _ = table[fill.bar]
        assert fill.bar == 1 + latency // 3_600_000
        assert side * (fill.price - first) >= -1e-9
        assert low - 1e-9 <= fill.price <= high + 1e-9


def test_a_late_limit_fills_only_where_the_close_is_through_it() -> None:
    """The low of the bar may have come before the order was there."""
    for close, filled in ((103.0, []), (97.0, [(1, 1.0, 98.0)])):
        table = [HOURS[0], (100, 106, 94, close), (104, 104, 104, 104), (104, 104, 104, 104)]
        exchange = Exchange(hours(table), 0, 1_000.0, costs(latency_ms=1_000))
        exchange.submit(Order("A", 1.0, kind="limit", limit=98.0))
        exchange.step(4)
        assert fills(exchange) == filled


@pytest.mark.parametrize(("latency", "filled"), [(0, []), (3_600_000, [(2, 1.0, 102.5)]), (1_000, [])])
def test_a_cancel_is_as_late_as_an_order(latency: int, filled: list[tuple[int, float, float]]) -> None:
    """It falls into a bar beside the orders that are sent with it, which the guard counts as coming after it."""
    exchange = Exchange(hours(), 0, 1_000.0, costs())
    exchange.submit(Order("A", 1.0, kind="limit", limit=102.5, delay=1, id="a"))
    exchange.step()
    exchange.submit(Cancel("a"), thinking_ms=latency)
    exchange.step(2)
    assert fills(exchange) == filled


def test_signals_and_environments_are_late_too() -> None:
    run = run_signals(hours(), np.array([0.5, np.nan, np.nan, np.nan]), 1_000.0, costs(latency_ms=900_000))
    assert run.fills[0].price == pytest.approx(103.0)
    with pytest.raises(DataError, match="latency of bars"):
        run_signals(hours(), np.zeros(4), 1_000.0, costs(latency_ms=3_600_000))
    with pytest.raises(DataError, match="reaches the next decision"):
        TradingEnv(hours(), EnvConfig(length=2, costs=costs(latency_ms=3_600_000)))
    env = TradingEnv(hours(), EnvConfig(window=1, length=3, costs=costs(latency_ms=900_000), cash=1_000.0))
    env.reset(seed=0)
    _, _, _, _, info = env.step(2)
    assert info["equity"] == pytest.approx(1_000.0 * 103.0 / 103.0)


@tried(120)
@example(shapes=[(80.0, 80.0, 0.0, 0.0)] * 2, tick=0.01, half_spread=1e-15, kind="market", side=1.0)
@example(shapes=[(80.0, 80.0, 0.0, 0.0)] * 2, tick=0.01, half_spread=1e-15, kind="market", side=-1.0)
@given(
    shapes=candles,
    tick=st.sampled_from([0.01, 0.1, 0.5, 3.0]),
    half_spread=st.floats(0.0, 0.01),
    kind=st.sampled_from(["market", "target", "stop"]),
    side=st.sampled_from([1.0, -1.0]),
)
def test_what_takes_is_filled_on_the_tick_against_the_trader(
    shapes: list[tuple[float, float, float, float]], tick: float, half_spread: float, kind: str, side: float
) -> None:
    table: list[Candle] = [(o, max(o, c) + up, min(o, c) - down, c) for o, c, up, down in shapes]
    played = []
    for step in (0.0, tick):
        venue = Venue({"A": SymbolRules(tick=step)})
        exchange = Exchange(hours(table, half_spread), 0, 1_000.0, costs(), 2.0, venue=venue)
        trigger = tick * round(100.0 / tick)
        requests: dict[str, OrderRequest] = {
            "market": Order("A", side), "target": Target("A", 0.7 * side),
            "stop": Order("A", side, kind="stop", trigger=trigger),
        }  # fmt: skip
        exchange.submit(requests[kind])
        exchange.step(len(table))
        played.append(exchange)
        for fill in exchange.fills:
            notional = sum(f.quantity * f.price for f in exchange.fills)
            assert exchange.account().cash == pytest.approx(1_000.0 - notional)
            assert fill.spread_cost >= 0.0
    exact, rounded = played[0].fills, played[1].fills
    assert [fill.bar for fill in exact] == [fill.bar for fill in rounded]
    for free, fill in zip(exact, rounded, strict=True):
        assert fill.price / tick == pytest.approx(round(fill.price / tick), abs=1e-6)
        assert -1e-6 * tick <= side * (fill.price - free.price) <= tick * (1 + 1e-6)
    if kind == "target" and rounded:  # sized so that it holds after the costs, the rounding among them
        account, first = played[1], table[rounded[0].bar][0]
        worth = rounded[0].quantity * first
        assert worth / (1_000.0 - abs(rounded[0].quantity) * abs(rounded[0].price - first)) == pytest.approx(0.7 * side)
        assert account.paid()["spread"] == pytest.approx(sum(fill.spread_cost for fill in rounded))


def test_a_limit_stays_at_its_price_and_a_price_below_the_tick_too() -> None:
    venue = Venue({"A": SymbolRules(tick=5.0)})
    exchange = Exchange(hours(), 0, 1_000.0, costs(), venue=venue)
    exchange.submit(Order("A", 1.0, kind="limit", limit=95.0))
    exchange.step(4)
    assert fills(exchange) == [(1, 1.0, 95.0)]
    exchange = Exchange(hours(), 0, 1_000.0, costs(), venue=Venue({"A": SymbolRules(tick=1_000.0)}))
    exchange.submit(Order("A", -1.0))
    exchange.step(4)
    assert fills(exchange) == [(1, -1.0, 100.0)]


def test_a_stop_that_turns_a_position_does_not_go_back_to_the_open() -> None:
    """Long 1 from 100; a stop sells 2 at 97, and the short has its stop at 98 and its target at 95. The price came from
    the open at 100 down through 97, so the stop at 98 is met on the way up again, at 98. The kernel once took the short
    from the bar's open, above its stop, and closed it at 100; or gave it its target in the bar that opened it."""
    table: list[Candle] = [(100, 100, 100, 100), (100, 100, 100, 100), (100, 103, 94, 99), (99, 99, 99, 99)]
    exchange = Exchange(hours(table), 0, 1_000.0, costs())
    exchange.submit(Order("A", 1.0))
    exchange.step()
    exchange.submit(Order("A", -2.0, stop=98.0, target=95.0, kind="stop", trigger=97.0))
    exchange.step(3)
    assert fills(exchange) == [(1, 1.0, 100.0), (2, -2.0, 97.0), (2, 1.0, 98.0)]
    # Without a stop in the bar it stays, and its target counts from the next bar on.
    exchange = Exchange(hours(table), 0, 1_000.0, costs())
    exchange.submit(Order("A", 1.0))
    exchange.step()
    exchange.submit(Order("A", -2.0, target=95.0, kind="stop", trigger=97.0))
    exchange.step(3)
    assert fills(exchange) == [(1, 1.0, 100.0), (2, -2.0, 97.0)]


SYMBOLS = ("AAA", "BBB")
KINDS: dict[str, Any] = {"AAA": "perpetual", "BBB": "spot"}
FIRST_BAR, LENGTH, INSIDE = 55, 75, 60
_MINUTES = generate(SyntheticConfig(bars=LENGTH * INSIDE, seed=5, symbols=SYMBOLS, timeframe="1m"))
_WHOLE = part_of(_MINUTES, 0, len(_MINUTES), KINDS)
HOURLY = replace(_WHOLE.resample("1h"), partial=None)


def finer_without(lost: set[tuple[int, int]]) -> Market:
    """The minutes without those of the hours `lost`, (hour, column) each, and every third one of the others."""
    arrays = {name: getattr(_WHOLE, name).copy() for name in BAR_COLUMNS}
    for values in arrays.values():
        values[1::3] = np.nan
        for hour, column in lost:
            values[hour * INSIDE : (hour + 1) * INSIDE, column] = np.nan
    return replace(_WHOLE, **arrays)


@pytest.mark.parametrize("late", [0, 20 * MINUTE_MS, 59 * MINUTE_MS, 100 * MINUTE_MS])
def test_a_late_order_meets_a_bar_without_finer_ones_as_it_does_where_there_are_none_at_all(late: int) -> None:
    costs = Costs(latency_ms=300)
    hours = {(hour, column) for hour in range(LENGTH) for column in (0, 1)}
    nothing_finer = Exchange(HOURLY, FIRST_BAR, costs=costs)
    all_lost = Exchange(HOURLY, FIRST_BAR, costs=costs, venue=Venue(finer=finer_without(hours)))
    for exchange in (nothing_finer, all_lost):
        exchange.submit(Order("BBB", 20.0), late)
        exchange.step(4)
    [one], [other] = nothing_finer.fills, all_lost.fills
    assert (one.bar, one.quantity) == (other.bar, other.quantity)
    assert one.price == pytest.approx(other.price, rel=1e-12)


def test_a_cancel_acts_from_the_open_of_a_bar_without_finer_ones() -> None:
    hours = {(hour, column) for hour in range(LENGTH) for column in (0, 1)}
    exchange = Exchange(HOURLY, FIRST_BAR, costs=Costs(), venue=Venue(finer=finer_without(hours)))
    low = float(HOURLY.low[FIRST_BAR + 1, 1])
    exchange.submit(Order("BBB", 5.0, kind="limit", limit=low * 1.0001, id="waits"))
    exchange.submit(Cancel("waits"), 30 * MINUTE_MS)
    exchange.step()
    assert not exchange.fills
    assert [one.reason for one in exchange.rejections] == ["cancelled"]
