"""Volume, rules, exposures, fees and margin as a table (see `tests.order_cases`), worked out by hand."""

from __future__ import annotations

import pytest

from simulator.exchange.orders import Cancel, Order, Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from tests.order_cases import (
    ONE_TIER,
    STILL,
    WIDE,
    WIDE_SIGMA,
    Candle,
    Case,
    bars,
    check,
    limit,
    market,
    rules,
    stop,
)

VOLUME_AND_RULES = [
    Case(
        "what a bar's volume does not allow waits for the next bars",
        [STILL, STILL, (101,) * 4, (102,) * 4],
        {0: [market(2.5)]},
        [(1, 1, 100, "order"), (2, 1, 101, "order"), (3, 0.5, 102, "order")],
        costs={"participation": 0.1},
        volumes=[10, 10, 10, 10],
    ),
    Case(
        "orders of one bar share its volume in order of submission",
        [STILL, STILL, STILL],
        {0: [market(0.7), market(0.7)]},
        [(1, 0.7, 100, "order"), (1, 0.3, 100, "order"), (2, 0.4, 100, "order")],
        costs={"participation": 0.1},
        volumes=[10, 10, 10],
    ),
    Case(
        "a stop that the volume fills in part continues at the next open",
        [STILL, STILL, (100, 100, 94, 96), (96.5, 97, 96, 96)],
        {0: [market(2, stop=95)]},
        [(1, 2, 100, "order"), (2, -1, 95, "stop"), (3, -1, 96.5, "stop")],
        costs={"participation": 0.1},
        volumes=[10, 100, 10, 100],
    ),
    Case(
        "impact grows with the root of the share of the volume",
        [STILL, WIDE],
        {0: [market(4)]},
        [(1, 4, 100 * (1 + 1.5 * WIDE_SIGMA * 0.2), "order")],
        equity=1000 + 4 * 5 - 400 * 1.5 * WIDE_SIGMA * 0.2,
        paid={"impact": 400 * 1.5 * WIDE_SIGMA * 0.2},
        costs={"impact": 1.5, "participation": 0.5},
        volumes=[100, 100],
    ),
    Case(
        "orders that break the venue's rules are refused, those on the steps are not",
        [STILL, STILL, STILL],
        {
            0: [
                market(0.25),
                limit(1, 95.05),
                market(2, stop=90.01),
                market(0.1),
                market(60),
                market(0.4),
                market(0.5),
            ]
        },
        [(1, 0.5, 100, "order")],
        [
            (0, "off_lot"),
            (0, "off_tick"),
            (0, "off_tick"),
            (0, "min_quantity"),
            (0, "max_quantity"),
            (0, "min_notional"),
        ],
        venue=rules(tick=0.1, lot=0.1, min_quantity=0.2, max_quantity=50, min_notional=45),
    ),
    Case(
        "the cut to what the leverage allows ends on a lot",
        [STILL, STILL],
        {0: [market(21)]},
        [(1, 9, 100, "order")],
        [(1, "leverage_cap")],
        venue=rules(lot=3),
    ),
    Case(
        "each malformed request gets its reason",
        [STILL, STILL],
        {
            0: [
                Order("A", 1, kind="limit"),
                market(1, limit=99),
                limit(1, -5),
                Order("A", 1, kind="trailing_stop", trail=1.0),
                market(1, in_force="ioc"),
                market(1, hold_bars=0),
                limit(1, 90, expire_bars=0),
                Target("A", 1.5),
                Target("B", 0.5),
                Cancel("nobody"),
                limit(1, 90, id="x", expire_bars=1),
                limit(1, 91, id="x"),
            ]
        },
        [],
        [
            *[(0, "bad_price")] * 5,
            *[(0, "bad_duration")] * 2,
            (0, "bad_exposure"),
            (0, "unknown_symbol"),
            (0, "unknown_id"),
            (0, "duplicate_id"),
            (1, "window_end"),
        ],
    ),
]

TARGETS_AND_FEES = [
    Case(
        "an exposure holds after its costs",
        [STILL, STILL],
        {0: [Target("A", 0.5)]},
        [(1, 5 / (1 + 0.5 * (0.01 + 0.001 * 1.01)), 101, "order")],
        equity=1000 / (1 + 0.5 * (0.01 + 0.001 * 1.01)),
        costs={"taker_fee": 0.001},
        half_spread=0.01,
    ),
    Case(
        "an exposure is sized at the open where it trades; turning closes first; zero goes flat",
        [STILL, (125,) * 4, (125,) * 4, (125,) * 4],
        {0: [Target("A", 0.5)], 1: [Target("A", -0.25)], 2: [Target("A", 0.0)]},
        [
            (1, 4, 125, "order"),
            (2, -4, 125, "order"),
            (2, -2, 125, "order"),
            (3, 2, 125, "order"),
        ],
        equity=1000,
    ),
    Case(
        "an exposure ends on a lot, and is dropped where that is worth too little",
        [STILL, STILL, STILL],
        {0: [Target("A", 0.55)], 1: [Target("A", 0.65)]},
        [(1, 5, 100, "order")],
        [(2, "min_notional")],
        venue=rules(lot=1, min_notional=150),
    ),
    Case(
        "a spot short pays for the coins it borrows, and no funding",
        [STILL, STILL, STILL],
        {0: [market(-2)]},
        [(1, -2, 100, "order")],
        equity=1000 - 2 * 2,
        paid={"borrow": 4, "funding": 0},
        costs={"borrow_rate": 0.01 * 24 * 365},
        venue=rules(kind="spot"),
        funding={2: 0.01},
    ),
    Case(
        "a spot long borrows nothing",
        [STILL, STILL],
        {0: [market(2)]},
        [(1, 2, 100, "order")],
        equity=1000,
        paid={"borrow": 0},
        venue=rules(kind="spot"),
    ),
    Case(
        "a fee in base is taken from the coins bought, and in quote from a sale",
        [STILL, STILL, (110,) * 4],
        {0: [market(2)], 1: [market(-1.98)]},
        [(1, 2, 100, "order"), (2, -1.98, 110, "order")],
        equity=1000 - 200 + 1.98 * 110 * 0.99,
        paid={"fees": 2 + 1.98 * 110 * 0.01},
        costs={"taker_fee": 0.01, "fee_currency": "base"},
        venue=rules(kind="spot"),
    ),
    Case(
        "a symbol's own fee goes before the account's",
        [STILL, STILL],
        {0: [market(1)]},
        [(1, 1, 100, "order")],
        paid={"fees": 0.3},
        costs={"taker_fee": 0.01},
        venue=rules(taker_fee=0.003),
    ),
]

CROSS_LONG = 3000 / (40 * 0.99)  # 40 bought at 100 leave cash -3000; 40 p - 3000 = 0.01 * 40 p
CROSS_SHORT = 3000 / (20 * 1.01)  # 20 sold at 100 leave cash 3000; 3000 - 20 p = 0.01 * 20 p
APART = 800 / 9.9  # 10 bought at 100 on a margin of 200; 200 + 10 (p - 100) = 0.01 * 10 p
WICK: list[Candle] = [STILL, STILL, (100, 100, 70, 98)]
ISOLATED = Venue({"A": SymbolRules(tiers=ONE_TIER)}, isolated={"A": 5})


def two_halves(first: Candle, second: Candle) -> Venue:
    """Half hours of three hours, still but for the middle one."""
    return Venue(finer=bars([STILL, STILL, first, second, STILL, STILL], "30m", [1e6] * 6, 0.0))


MARGIN = [
    Case(
        "a cross long is liquidated where its equity meets the maintenance margin, and the account ends",
        [*WICK, STILL],
        {0: [market(40), limit(1, 10)], 2: [market(1)]},
        [(1, 40, 100, "order"), (2, -40, CROSS_LONG, "liquidation")],
        [(2, "liquidated"), (2, "liquidated")],
        equity=40 * CROSS_LONG * (1 - 0.004) - 3000,
        paid={"liquidation": 40 * CROSS_LONG * 0.004},
        venue=rules(tiers=ONE_TIER, liquidation_fee=0.004),
        leverage=5,
    ),
    Case(
        "a cross short is liquidated above",
        [STILL, STILL, (100, 160, 100, 101)],
        {0: [market(-20)]},
        [(1, -20, 100, "order"), (2, 20, CROSS_SHORT, "liquidation")],
        equity=3000 - 20 * CROSS_SHORT,
        venue=rules(tiers=ONE_TIER),
        leverage=5,
    ),
    Case(
        "a stop above the liquidation price saves the account",
        WICK,
        {0: [market(40, stop=76)]},
        [(1, 40, 100, "order"), (2, -40, 76, "stop")],
        equity=40,
        venue=rules(tiers=ONE_TIER),
        leverage=5,
    ),
    Case(
        "stops below the liquidation price come too late",
        WICK,
        {0: [market(40, stop=75)], 1: [stop(-40, 75.5, reduce_only=True)]},
        [(1, 40, 100, "order"), (2, -40, CROSS_LONG, "liquidation")],
        [(2, "liquidated")],
        venue=rules(tiers=ONE_TIER),
        leverage=5,
    ),
    Case(
        "a tier limits the leverage of what is opened",
        [STILL, STILL],
        {0: [market(40)]},
        [(1, 20, 100, "order")],
        [(1, "leverage_cap")],
        venue=rules(tiers=(MarginTier(0.0, 0.01, 2.0),)),
        leverage=5,
    ),
    Case(
        "an isolated position is liquidated on its own margin; the account lives on",
        [*WICK, STILL],
        {0: [market(10)], 2: [market(1)]},
        [(1, 10, 100, "order"), (2, -10, APART, "liquidation"), (3, 1, 100, "order")],
        equity=1000 + 10 * (APART - 100),
        venue=ISOLATED,
    ),
    Case(
        "beyond a gap the insurance pays what the isolated margin does not hold",
        [STILL, STILL, (70, 71, 69, 70)],
        {0: [market(10)]},
        [(1, 10, 100, "order"), (2, -10, 70, "liquidation")],
        equity=800,
        paid={"liquidation": -100},
        venue=ISOLATED,
    ),
    Case(
        "a wick of the trade price liquidates nobody whose mark price stays",
        WICK,
        {0: [market(40)]},
        [(1, 40, 100, "order")],
        equity=1000 - 40 * 1,
        venue=Venue(
            {"A": SymbolRules(tiers=ONE_TIER)}, mark=bars([STILL, STILL, (100, 100, 97, 99)], "1h", [1.0] * 3, 0.0)
        ),
        leverage=5,
    ),
    Case(
        "finer bars that go up first take the target",
        [STILL, (100, 106, 94, 100), STILL],
        {0: [market(1, stop=95, target=105)]},
        [(1, 1, 100, "order"), (1, -1, 105, "target")],
        equity=1005,
        venue=two_halves((100, 106, 99, 100), (100, 100, 94, 100)),
    ),
    Case(
        "finer bars that go down first take the stop",
        [STILL, (100, 106, 94, 100), STILL],
        {0: [market(1, stop=95, target=105)]},
        [(1, 1, 100, "order"), (1, -1, 95, "stop")],
        equity=995,
        venue=two_halves((100, 100, 94, 100), (100, 106, 99, 100)),
    ),
]

CASES = [*VOLUME_AND_RULES, *TARGETS_AND_FEES, *MARGIN]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exchange_follows_the_table(case: Case) -> None:
    check(case)
