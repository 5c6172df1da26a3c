"""The exchange's rules as a table: candles, orders, expected fills with bar and reason.

Unless a case says otherwise there is one symbol, cash 1,000, no fee, no spread, no leverage. Candles are (open, high,
low, close) or None for a bar that the exchange never produced. Orders are keyed by the bar at whose close they are
decided. Fills are (bar, quantity, price, reason), rejections (bar, reason).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.events import FundingEvent
from simulator.market.market import Market

Candle = tuple[float, float, float, float] | None

HOUR = 3_600_000
STILL: Candle = (100, 100, 100, 100)


def buy(quantity: float, stop: float | None = None, target: float | None = None, delay: int = 0) -> Order:
    return Order("A", quantity, stop, target, delay)


def sell(quantity: float, stop: float | None = None, target: float | None = None, delay: int = 0) -> Order:
    return Order("A", -quantity, stop, target, delay)


@dataclass(frozen=True)
class Case:
    name: str
    candles: list[Candle]
    orders: dict[int, list[Order]]
    fills: list[tuple[int, float, float, str]]
    rejections: list[tuple[int, str]] = field(default_factory=list)
    equity: float | None = None  # at the last close
    half_spread: float = 0.0
    fee: float = 0.0
    leverage: float = 1.0
    funding: dict[float, float] = field(default_factory=dict)  # hours after the first open: rate


CASES = [
    Case(
        "an order fills at the next open, not at the close that decided it",
        [(90, 100, 90, 100), (103, 106, 102, 105)],
        {0: [buy(2)]},
        [(1, 2, 103, "order")],
        equity=1004,
    ),
    Case(
        "nothing decided at the last bar can fill",
        [STILL, STILL],
        {1: [buy(1)]},
        [],
        [(1, "window_end")],
    ),
    Case(
        "an order still waiting at the end is rejected then",
        [STILL, STILL, STILL],
        {0: [buy(1, delay=5)]},
        [],
        [(2, "window_end")],
    ),
    Case(
        "a buyer pays half the spread and the fee on the paid price",
        [STILL, STILL],
        {0: [buy(2)]},
        [(1, 2, 101, "order")],
        equity=1000 - 2 * 1 - 2 * 101 * 0.001,
        half_spread=0.01,
        fee=0.001,
    ),
    Case(
        "a round trip at a constant price costs both spreads and both fees, nothing else",
        [STILL, STILL, STILL],
        {0: [buy(2)], 1: [sell(2)]},
        [(1, 2, 101, "order"), (2, -2, 99, "order")],
        equity=1000 - 4 * 1 - (2 * 101 + 2 * 99) * 0.001,
        half_spread=0.01,
        fee=0.001,
    ),
    Case(
        "an absent bar fills nothing, the order waits, the mark stays",
        [STILL, None, (110, 111, 109, 110), STILL],
        {0: [buy(1)]},
        [(2, 1, 110, "order")],
        equity=990,
    ),
    Case(
        "delays count grid bars",
        [STILL, STILL, None, (104, 104, 104, 104), STILL],
        {0: [buy(1), buy(2, delay=1)]},
        [(1, 1, 100, "order"), (3, 2, 104, "order")],
    ),
    Case(
        "a stop fills at its price when the bar trades down to it",
        [STILL, (100, 102, 95, 101), STILL],
        {0: [buy(1, stop=95)]},
        [(1, 1, 100, "order"), (1, -1, 95, "stop")],
        equity=995,
    ),
    Case(
        "a gap through the stop fills at the open",
        [STILL, STILL, (90, 99, 88, 97)],
        {0: [buy(1, stop=95)]},
        [(1, 1, 100, "order"), (2, -1, 90, "stop")],
        equity=990,
    ),
    Case(
        "a gap above a short's stop fills at the open",
        [STILL, STILL, (110, 112, 99, 101)],
        {0: [sell(1, stop=105)]},
        [(1, -1, 100, "order"), (2, 1, 110, "stop")],
        equity=990,
    ),
    Case(
        "an entry that opens beyond its own stop is closed at once, at the open",
        [STILL, (90, 99, 88, 97)],
        {0: [buy(1, stop=95)]},
        [(1, 1, 90, "order"), (1, -1, 90, "stop")],
        equity=1000,
    ),
    Case(
        "a target fills at its price when the bar trades through it",
        [STILL, (100, 106, 99, 101), STILL],
        {0: [buy(1, target=105)]},
        [(1, 1, 100, "order"), (1, -1, 105, "target")],
        equity=1005,
    ),
    Case(
        "a target that is only touched does not fill",
        [STILL, (100, 105, 99, 101)],
        {0: [buy(1, target=105)]},
        [(1, 1, 100, "order")],
        equity=1001,
    ),
    Case(
        "a gap beyond a short's target fills at the better open",
        [STILL, STILL, (80, 99, 79, 97)],
        {0: [sell(1, target=95)]},
        [(1, -1, 100, "order"), (2, 1, 80, "target")],
        equity=1020,
    ),
    Case(
        "a bar that holds both takes the stop",
        [STILL, (100, 110, 90, 108)],
        {0: [buy(1, stop=95, target=105)]},
        [(1, 1, 100, "order"), (1, -1, 95, "stop")],
    ),
    Case(
        "a bar that holds both takes a short's stop as well",
        [STILL, (100, 110, 90, 92)],
        {0: [sell(1, stop=105, target=95)]},
        [(1, -1, 100, "order"), (1, 1, 105, "stop")],
    ),
    Case(
        "stops and targets pay spread and fee",
        [STILL, (100, 102, 94, 96)],
        {0: [buy(1, stop=95)]},
        [(1, 1, 101, "order"), (1, -1, 95 * 0.99, "stop")],
        equity=1000 - 101 * 1.001 + 95 * 0.99 * 0.999,
        half_spread=0.01,
        fee=0.001,
    ),
    Case(
        "the exit by stop cancels what was pending for that position",
        [STILL, (100, 100, 94, 96), STILL, STILL],
        {0: [buy(1, stop=95), buy(1, stop=95, delay=1)]},
        [(1, 1, 100, "order"), (1, -1, 95, "stop")],
        [(1, "bracket_closed")],
    ),
    Case(
        "a new decision replaces orders that still wait from an earlier one",
        [STILL, STILL, STILL, STILL],
        {0: [buy(1, delay=2)], 1: [sell(2)]},
        [(2, -2, 100, "order")],
        [(1, "superseded")],
    ),
    Case(
        "an unusable new order replaces nothing",
        [STILL, STILL, STILL, STILL],
        {0: [buy(1, delay=2)], 1: [buy(math.inf)]},
        [(3, 1, 100, "order")],
        [(1, "bad_quantity")],
    ),
    Case(
        "an order of nothing withdraws what waits from earlier bars",
        [STILL, STILL, STILL, STILL],
        {0: [buy(1, delay=2)], 1: [buy(0)]},
        [],
        [(1, "superseded")],
    ),
    Case(
        "an order of nothing where nothing waits is unusable",
        [STILL, STILL],
        {0: [buy(0)]},
        [],
        [(0, "bad_quantity")],
    ),
    Case(
        "an order beyond the leverage cap is cut to what fits at the fill",
        [STILL, (125, 125, 125, 125)],
        {0: [buy(20)]},
        [(1, 8, 125, "order")],
        [(1, "leverage_cap")],
    ),
    Case(
        "the cut leaves room for the order's own costs",
        [STILL, STILL],
        {0: [buy(20)]},
        [(1, 1000 / (101 * 1.001), 101, "order")],
        [(1, "leverage_cap")],
        half_spread=0.01,
        fee=0.001,
        equity=1000 / (101 * 1.001) * 100,
    ),
    Case(
        "turning round at the cap: the close is always allowed, the new side up to the cap",
        [STILL, STILL, STILL],
        {0: [buy(10)], 1: [sell(25)]},
        [(1, 10, 100, "order"), (2, -20, 100, "order")],
        [(2, "leverage_cap")],
    ),
    Case(
        "reducing orders fill before increasing ones of the same open",
        [STILL, STILL, STILL],
        {0: [buy(10)], 1: [buy(4), sell(5)]},
        [(1, 10, 100, "order"), (2, -5, 100, "order"), (2, 4, 100, "order")],
    ),
    Case(
        "a reduce-only order never turns the position round",
        [STILL, STILL, STILL],
        {0: [buy(2)], 1: [Order("A", -5, reduce_only=True)]},
        [(1, 2, 100, "order"), (2, -2, 100, "order")],
        [(2, "reduce_only")],
    ),
    Case(
        "a reduce-only order without a position is dropped",
        [STILL, STILL],
        {0: [Order("A", -5, reduce_only=True)]},
        [],
        [(1, "reduce_only")],
    ),
    Case(
        "a long pays positive funding on the close at its time",
        [STILL, (100, 110, 100, 110), STILL],
        {0: [buy(2)]},
        [(1, 2, 100, "order")],
        equity=1000 - 2 * 110 * 0.01,
        funding={2: 0.01},
    ),
    Case(
        "a short receives positive funding",
        [STILL, STILL],
        {0: [sell(2)]},
        [(1, -2, 100, "order")],
        equity=1002,
        funding={2: 0.01},
    ),
    Case(
        "an order filled at an open does not pay the funding of that very moment",
        [STILL, STILL],
        {0: [buy(2)]},
        [(1, 2, 100, "order")],
        equity=1000,
        funding={1: 0.01},
    ),
    Case(
        "funding inside a bar is settled on the last close, and before a stop in that bar",
        [STILL, (110, 111, 90, 92)],
        {0: [buy(1, stop=95)]},
        [(1, 1, 110, "order"), (1, -1, 95, "stop")],
        equity=985 - 100 * 0.01,
        funding={1.5: 0.01},
    ),
    Case(
        "funding is settled on the last close through an absent bar",
        [STILL, (100, 104, 100, 104), None, (104, 104, 104, 104)],
        {0: [buy(1)]},
        [(1, 1, 100, "order")],
        equity=1004 - 1.04,
        funding={3: 0.01},
    ),
    Case(
        "equity below zero closes everything and ends the account",
        [STILL, STILL, (45, 45, 45, 45), STILL, STILL],
        {0: [buy(20)], 1: [buy(1, delay=2)], 3: [buy(1)]},
        [(1, 20, 100, "order"), (2, -20, 45, "liquidation")],
        [(2, "liquidated"), (3, "liquidated")],
        equity=-100,
        leverage=2,
    ),
    Case(
        "each unusable order gets its reason",
        [STILL, STILL],
        {
            0: [
                Order("B", 1),
                buy(float("nan")),
                buy(float("inf")),
                buy(1, delay=-1),
                buy(1, stop=float("nan")),
                buy(1, stop=-5),
                buy(1, stop=100),
                buy(1, target=99),
                sell(1, stop=99),
                sell(1, target=100),
            ]
        },
        [],
        [
            (0, "unknown_symbol"),
            (0, "bad_quantity"),
            (0, "bad_quantity"),
            (0, "bad_delay"),
            (0, "bad_bracket"),
            (0, "bad_bracket"),
            (0, "stop_side"),
            (0, "target_side"),
            (0, "stop_side"),
            (0, "target_side"),
        ],
    ),
    Case(
        "a symbol that has not traded yet cannot be ordered",
        [None, STILL],
        {0: [buy(1)]},
        [],
        [(0, "no_price")],
    ),
    Case(
        "adding to a position keeps its bracket unless a new one is given",
        [STILL, STILL, STILL, (100, 100, 89, 95)],
        {0: [buy(1, stop=90)], 1: [buy(1, target=120)]},
        [(1, 1, 100, "order"), (2, 1, 100, "order"), (3, -2, 90, "stop")],
    ),
    Case(
        "turning round drops the old bracket",
        [STILL, STILL, STILL, (100, 121, 89, 95)],
        {0: [buy(1, stop=90, target=120)], 1: [sell(2)]},
        [(1, 1, 100, "order"), (2, -2, 100, "order")],
    ),
    Case(
        "a bracket for a side that the position no longer takes is refused with its order",
        [STILL, STILL, STILL, STILL],
        {0: [buy(1)], 1: [sell(30), buy(25, stop=105), buy(1)]},
        [(1, 1, 100, "order"), (2, -11, 100, "order"), (2, 1, 100, "order")],
        [(2, "leverage_cap"), (2, "position_changed")],
    ),
]


def market_of(case: Case) -> Market:
    nan = float("nan")
    bars = np.array([candle or (nan,) * 4 for candle in case.candles], dtype=np.float64)
    first, high, low, close = (bars[:, [k]].copy() for k in range(4))
    funding = tuple(FundingEvent(int(hours * HOUR), rate) for hours, rate in sorted(case.funding.items()))
    return Market(
        symbols=("A",),
        timeframe="1h",
        open_time=np.arange(len(bars), dtype=np.int64) * HOUR,
        open=first,
        high=high,
        low=low,
        close=close,
        volume=np.ones_like(close),
        half_spread=np.where(np.isnan(close), np.nan, case.half_spread),
        funding={"A": funding},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exchange_follows_the_table(case: Case) -> None:
    costs = Costs(taker_fee=case.fee, borrow_rate=0.0)
    exchange = Exchange(market_of(case), 0, 1_000.0, costs, case.leverage)
    for bar in range(len(case.candles)):
        for order in case.orders.get(bar, []):
            exchange.submit(order)
        exchange.step()

    fills: list[object] = [(fill.bar, fill.quantity, fill.price, fill.reason) for fill in exchange.fills]
    assert fills == [
        (bar, pytest.approx(quantity, rel=1e-12), pytest.approx(price, rel=1e-12), reason)
        for bar, quantity, price, reason in case.fills
    ]
    assert [(r.bar, r.reason) for r in exchange.rejections] == case.rejections
    if case.equity is not None:
        assert exchange.account().equity == pytest.approx(case.equity, rel=1e-12)
