"""No protective order fills better than the price at which the position could be closed at that moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import Fill
from simulator.exchange.orders import Order, OrderKind
from simulator.market.market import Market
from tests.examples import tried
from tests.order_cases import FREE, HOUR, STILL, Candle, bars

CASH = 100_000.0
FLAT: Candle = STILL
DOWN: Candle = (100, 103, 96, 97)
UP: Candle = (100, 104, 97, 103)
KINDS: tuple[OrderKind, ...] = ("market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop")


def market_of(candles: list[Candle]) -> Market:
    return bars(candles, "1h", [1e6] * len(candles), 0.0)


def order_of(kind: OrderKind, quantity: float, **prices: Any) -> Order:
    """An order of this kind with those of the prices that it needs."""
    needed = {"limit": ("limit",), "stop_limit": ("trigger", "limit"), "trailing_stop": ("trail",), "market": ()}
    kept = {name: prices[name] for name in needed.get(kind, ("trigger",))}
    return Order("A", quantity, prices.get("stop"), prices.get("target"), kind=kind, **kept)


@pytest.mark.parametrize(
    ("order", "candle", "level"),
    [
        (order_of("stop_limit", 10, trigger=100.5, limit=130, stop=129), DOWN, "below 100.5"),
        (order_of("stop_limit", -10, trigger=99.5, limit=70, stop=71), UP, "above 99.5"),
        (order_of("stop", 10, trigger=100.5, stop=101), DOWN, "below 100.5"),
        (order_of("limit", 10, limit=130, stop=129), DOWN, "below 100,"),
        (order_of("trailing_stop", 10, trail=0.02, stop=102.5), DOWN, "below 102"),
        (order_of("trailing_stop", -10, trail=0.02, target=99), UP, "below 98"),
        (order_of("take_profit", 10, trigger=130, stop=120), DOWN, "below 100,"),
        (order_of("stop_limit", 10, trigger=100.5, limit=99, stop=99.5), DOWN, "below 99"),
    ],
)
def test_a_bracket_on_the_wrong_side_is_refused_with_the_price_that_it_must_be_beyond(
    order: Order, candle: Candle, level: str
) -> None:
    exchange = Exchange(market_of([FLAT, candle, FLAT]), 0, CASH, Costs(**FREE))
    exchange.submit(order)
    [rejection] = exchange.rejections
    assert rejection.reason in ("stop_side", "target_side")
    assert level in rejection.detail
    exchange.step(2)
    assert exchange.account().equity == CASH


@pytest.mark.parametrize(
    "order",
    [
        order_of("stop", 10, trigger=90, stop=95),  # fires at the market, which stands above the stop
        order_of("trailing_stop", 10, trail=0.02, stop=101),
        order_of("limit", 10, limit=130, stop=99),
        order_of("stop_limit", 10, trigger=100.5, limit=130, stop=100.4, target=100.6),
    ],
)
def test_a_bracket_on_the_right_side_of_where_the_order_trades_is_accepted(order: Order) -> None:
    exchange = Exchange(market_of([FLAT, FLAT]), 0, CASH, Costs(**FREE))
    exchange.submit(order)
    assert not exchange.rejections


def test_a_stop_that_a_gap_left_above_the_entry_closes_at_the_entry() -> None:
    """Accepted at 100, where the order would fire at once; it opens at 85 and fires inside the bar, at 90."""
    exchange = Exchange(market_of([FLAT, (85, 96, 84, 86), FLAT]), 0, CASH, Costs(**FREE))
    exchange.submit(order_of("stop", 10, trigger=90, stop=95))
    exchange.step(2)
    assert [(fill.bar, fill.price, fill.reason) for fill in exchange.fills] == [(1, 90, "order"), (1, 90, "stop")]


def candles_of(rng: np.random.Generator, count: int, step: float, *, falls: bool) -> np.ndarray[Any, Any]:
    """(count, 4) bars around 100 with gaps; with `falls` no price lies above one before."""
    gaps, moves = rng.normal(0.0, step, count) * (rng.random(count) < 0.5), rng.normal(0.0, step, count)
    if falls:
        gaps, moves = -np.abs(gaps), -np.abs(moves)
    ends = 100.0 * np.exp(np.cumsum(gaps + moves))
    first = ends * np.exp(-moves)
    up, down = np.exp(rng.exponential(step, (2, count)))
    high = first if falls else np.maximum(first, ends) * up
    table = np.column_stack([first, high, ends if falls else np.minimum(first, ends) / down, ends])
    table[0] = 100.0
    return table


def mirrored(table: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Around 100: what rises there falls here."""
    return 200.0 - table[:, [0, 2, 1, 3]]


def random_order(
    rng: np.random.Generator, mark: float, side: float, step: float, closes: bool, *, behind: bool
) -> Order:
    """An order of any kind, its prices on any side; `closes`: one that only reduces a position of `side`; `behind`: its
    prices lie where a position of `side` loses."""
    moves = rng.normal(0.0, 2.0 * step, 4)
    near = (mark * np.exp(-side * np.abs(moves) if behind else moves)).tolist()
    prices: dict[str, Any] = {"trigger": near[0], "limit": near[1], "trail": float(rng.uniform(0.001, 0.05))}
    prices |= {name: near[2 + place] for place, name in enumerate(("stop", "target")) if rng.random() < 0.6}
    quantity = 10.0 * side * (-1.0 if closes else 1.0)
    order = order_of(KINDS[int(rng.integers(len(KINDS)))], quantity, **prices)
    order = replace(order, delay=int(rng.integers(0, 3)), reduce_only=closes)
    return replace(order, stop=None, target=None) if closes else order


def submitted(
    seed: int, candles: np.ndarray[Any, Any], side: float, step: float, *, behind: bool = False
) -> dict[int, list[Order]]:
    """By bar, what is submitted at its close: entries on one side and orders that only reduce, in any order."""
    rng = np.random.default_rng(seed)
    found: dict[int, list[Order]] = {}
    for bar in range(len(candles) - 1):
        if behind or rng.random() < 0.5:
            found[bar] = [
                random_order(rng, float(candles[bar, 3]), side, step, bool(rng.random() < 0.4), behind=behind)
                for _ in range(int(rng.integers(1, 4)))
            ]
    return found


def played(market: Market, orders: dict[int, list[Order]], costs: Costs, **more: Any) -> Exchange:
    exchange = Exchange(market, 0, CASH, costs, 10.0, **more)
    for bar in range(len(market) - 1):
        for order in orders.get(bar, []):
            exchange.submit(order)
        exchange.step()
    return exchange


scenes = {
    "seed": st.integers(0, 2**32 - 1),
    "side": st.sampled_from([1.0, -1.0]),
    "step": st.sampled_from([0.002, 0.01, 0.03]),
}


@tried(600)
@given(**scenes)
def test_nothing_is_earned_on_bars_that_only_move_against_the_position(seed: int, side: float, step: float) -> None:
    table = candles_of(np.random.default_rng(seed), 12, step, falls=True)
    table = table if side > 0.0 else mirrored(table)
    market = market_of([tuple(row) for row in table.tolist()])
    exchange = played(market, submitted(seed, table, side, step, behind=True), Costs(**FREE))
    assert exchange.equity_curve().max() <= CASH * (1.0 + 1e-12)


@tried(300)
@given(**scenes)
def test_no_protective_order_beats_the_market_at_its_moment(seed: int, side: float, step: float) -> None:
    """A bracket's stop: no better than the open, or than the entry inside the bar. What closes a position in the bar
    inside which it was opened: no better than the entry."""
    table = candles_of(np.random.default_rng(seed), 12, step, falls=False)
    table = table if side > 0.0 else mirrored(table)
    market = market_of([tuple(row) for row in table.tolist()])
    exchange = played(market, submitted(seed, table, side, step), Costs(**FREE))
    checked_against_the_market(exchange.fills, market, side)


def checked_against_the_market(fills: list[Fill], market: Market, side: float) -> None:
    held, newest, born = 0.0, fills[0] if fills else None, -1
    for fill in fills:
        inside = fill.time == (fill.bar + 1) * HOUR
        if fill.quantity * side > 0.0:
            born = (fill.bar if inside else -1) if held == 0.0 else born
            newest = fill
        elif fill.reason == "stop" or (inside and born == fill.bar):
            assert newest is not None
            at_most = newest.price if newest.bar == fill.bar else float(market.open[fill.bar, 0])
            assert side * (fill.price - at_most) <= 1e-9
        held = 0.0 if abs(held + fill.quantity) < 1e-9 else held + fill.quantity
