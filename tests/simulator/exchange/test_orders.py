"""Limits, triggers, groups and the life of orders as a table (see `tests.order_cases`), worked out by hand."""

from __future__ import annotations

import pytest

from simulator.exchange.orders import Cancel, Order, oco
from tests.order_cases import (
    STILL,
    WIDE,
    WIDE_SIGMA,
    Case,
    check,
    limit,
    market,
    stop,
    stop_limit,
    take_profit,
)

LIMITS = [
    Case(
        "a limit rests until the price goes through it, and gives liquidity there",
        [STILL, STILL, (100, 101, 94, 96)],
        {0: [limit(1, 95)]},
        [(2, 1, 95, "order", True)],
        equity=1001,
        half_spread=0.001,
    ),
    Case(
        "a limit that is only touched does not trade",
        [STILL, (100, 101, 95, 96)],
        {0: [limit(1, 95)]},
        [],
        [(1, "window_end")],
    ),
    Case(
        "a resting limit trades at the better open after a gap",
        [STILL, STILL, (90, 93, 89, 92)],
        {0: [limit(1, 95)]},
        [(2, 1, 90, "order", True)],
    ),
    Case(
        "a resting sell trades at its limit",
        [STILL, (100, 106, 99, 101)],
        {0: [limit(-1, 105)]},
        [(1, -1, 105, "order", True)],
        equity=1004,
    ),
    Case(
        "a limit beyond the ask takes liquidity at its first open and pays the taker's fee",
        [STILL, STILL],
        {0: [limit(1, 105)]},
        [(1, 1, 101, "order")],
        paid={"fees": 1.01, "spread": 1},
        costs={"taker_fee": 0.01, "maker_fee": 0.002},
        half_spread=0.01,
    ),
    Case(
        "a maker pays the maker's fee and no spread; a rebate is received",
        [STILL, (100, 100, 90, 95)],
        {0: [limit(2, 95)]},
        [(1, 2, 95, "order", True)],
        equity=1000 + 190 * 0.005,
        paid={"fees": -190 * 0.005, "spread": 0},
        costs={"taker_fee": 0.01, "maker_fee": -0.005},
        half_spread=0.01,
    ),
    Case(
        "a limit that would not trade at once is nothing for ioc and fok",
        [STILL, (100, 100, 90, 95)],
        {0: [limit(1, 95, in_force="ioc"), limit(1, 95, in_force="fok")]},
        [],
        [(1, "not_filled"), (1, "not_filled_whole")],
    ),
    Case(
        "ioc takes what the volume allows and drops the rest, fok all or nothing",
        [STILL, STILL, STILL, STILL],
        {
            0: [limit(3, 101, in_force="ioc")],
            1: [limit(3, 101, in_force="fok")],
            2: [limit(1, 101, in_force="fok")],
        },
        [(1, 1, 100, "order"), (3, 1, 100, "order")],
        [(1, "not_filled"), (2, "not_filled_whole")],
        costs={"participation": 0.1},
        volumes=[10, 10, 10, 10],
    ),
    Case(
        "a post-only order never takes",
        [STILL, (100, 100, 94, 95)],
        {0: [limit(1, 100, in_force="post_only"), limit(2, 95, in_force="post_only")]},
        [(1, 2, 95, "order", True)],
        [(1, "would_take")],
    ),
    Case(
        "a taking limit stops where its own impact reaches the limit; the rest waits there as a maker",
        [STILL, WIDE],
        {0: [limit(5, 101)]},
        [
            (1, 100 * (0.01 / WIDE_SIGMA) ** 2, 101, "order"),
            (1, 5 - 100 * (0.01 / WIDE_SIGMA) ** 2, 101, "order", True),
        ],
        costs={"impact": 1.0, "participation": 0.5},
        volumes=[100, 100],
    ),
]

TRIGGERS = [
    Case(
        "a buy stop trades at its trigger, worsened by the spread",
        [STILL, (100, 106, 100, 106)],
        {0: [stop(1, 105)]},
        [(1, 1, 105 * 1.01, "order")],
        half_spread=0.01,
    ),
    Case(
        "a stop trades when touched, at the worse open after a gap",
        [STILL, STILL, (105, 105, 103, 104), (90, 92, 89, 91)],
        {0: [stop(2, 105)], 2: [stop(-2, 95, reduce_only=True)]},
        [(2, 2, 105, "order"), (3, -2, 90, "order")],
        equity=970,
    ),
    Case(
        "a stop-limit takes at its trigger where the limit allows",
        [STILL, (100, 107, 100, 106)],
        {0: [stop_limit(1, 105, 106)]},
        [(1, 1, 105, "order")],
    ),
    Case(
        "a stop-limit with a limit behind its trigger rests from there on",
        [STILL, (100, 106, 100, 106), (106, 107, 103, 104)],
        {0: [stop_limit(1, 105, 104)]},
        [(2, 1, 104, "order", True)],
    ),
    Case(
        "a gap beyond its limit leaves a stop-limit resting",
        [STILL, (110, 111, 107, 108), (108, 109, 105, 106)],
        {0: [stop_limit(1, 105, 106)]},
        [(2, 1, 106, "order", True)],
    ),
    Case(
        "a take-profit trades when the price goes through, as a taker",
        [STILL, STILL, (100, 105, 100, 104), (104, 106, 103, 103)],
        {0: [market(1)], 1: [take_profit(-1, 105, reduce_only=True)]},
        [(1, 1, 100, "order"), (3, -1, 105, "order")],
        equity=1005,
    ),
    Case(
        "a trailing stop follows the high of the bars that are over",
        [STILL, STILL, (100, 120, 100, 118), (118, 119, 107, 110)],
        {0: [market(1)], 1: [Order("A", -1, kind="trailing_stop", trail=0.1)]},
        [(1, 1, 100, "order"), (3, -1, 108, "order")],
        equity=1008,
    ),
    Case(
        "a buyer's trailing stop follows the low and starts from the first open",
        [STILL, (100, 105, 80, 82), (82, 89, 81, 89)],
        {0: [Order("A", 1, kind="trailing_stop", trail=0.1)]},
        [(2, 1, 88, "order")],
    ),
]

GROUPS_AND_TIME = [
    Case(
        "one cancels the other: the take-profit the stop",
        [STILL, STILL, (100, 111, 99, 108), (108, 108, 80, 80)],
        {0: [market(1)], 1: [*oco(stop(-1, 90), take_profit(-1, 110), group="exit")]},
        [(1, 1, 100, "order"), (2, -1, 110, "order")],
        [(2, "one_cancels_other")],
        equity=1010,
    ),
    Case(
        "one cancels the other: a bar that holds both takes the stop, however they were ordered",
        [STILL, STILL, (100, 111, 89, 108), STILL],
        {0: [market(1)], 1: [*oco(take_profit(-1, 110), stop(-1, 90), group="exit")]},
        [(1, 1, 100, "order"), (2, -1, 90, "order")],
        [(2, "one_cancels_other")],
    ),
    Case(
        "what one of a group trades in part the other need not trade",
        [STILL, (100, 100, 94, 96), (96, 97, 94, 96), (96, 96, 80, 80)],
        {0: [*oco(limit(2, 95), limit(2, 90), group="entry")]},
        [(1, 1, 95, "order", True), (2, 1, 95, "order", True)],
        [(1, "one_cancels_other"), (2, "one_cancels_other")],
        costs={"participation": 0.1},
        volumes=[10, 10, 10, 10],
    ),
    Case(
        "a cancel holds from the next open on",
        [STILL, STILL, (100, 100, 90, 95)],
        {0: [limit(1, 95, id="x")], 1: [Cancel("x")]},
        [],
        [(2, "cancelled")],
    ),
    Case(
        "a cancel that travels a bar comes too late",
        [STILL, STILL, (100, 100, 90, 95), STILL],
        {0: [limit(1, 95, id="x")], 1: [Cancel("x")]},
        [(2, 1, 95, "order", True)],
        costs={"latency_bars": 1},
    ),
    Case(
        "an order reaches the venue only after its latency",
        [STILL, (101,) * 4, (102,) * 4, STILL],
        {0: [market(1)]},
        [(2, 1, 102, "order")],
        costs={"latency_bars": 1},
    ),
    Case(
        "a time stop closes at the open so many bars after the fill",
        [STILL, STILL, (101,) * 4, (103,) * 4, (104,) * 4],
        {0: [market(2, hold_bars=2)]},
        [(1, 2, 100, "order"), (3, -2, 103, "time")],
        equity=1006,
    ),
    Case(
        "an order expires after its bars",
        [STILL, STILL, STILL, (100, 100, 90, 95)],
        {0: [limit(1, 95, expire_bars=2)]},
        [],
        [(3, "expired")],
    ),
    Case(
        "fills at the deciding close where that convention is asked for",
        [STILL, (104, 105, 103, 104)],
        {0: [market(1)]},
        [(1, 1, 100, "order")],
        equity=1004,
        costs={"fill": "close"},
    ),
]

CASES = [*LIMITS, *TRIGGERS, *GROUPS_AND_TIME]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exchange_follows_the_table(case: Case) -> None:
    check(case)
