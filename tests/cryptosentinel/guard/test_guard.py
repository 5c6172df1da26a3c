"""No order gets past the guard that breaks a limit, whatever the orders are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp, GuardLimits
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order, on_step
from simulator.exchange.rules import SymbolRules
from simulator.market.market import Market, MarketView
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, hand_made_account, synthetic

BAR = 200
LIMITS = guard_limits(max_exposure=0.8, max_gross_exposure=1.5)
ROUNDING = 1e-9

NUMBERS = st.one_of(
    st.floats(-3, 3),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-308, 0.0, -0.0]),
    st.floats(allow_nan=True, allow_infinity=True),
)
# Exposure asked for, as a multiple that is turned into a quantity of the coin; odd numbers stay what they are.
ORDERS = st.lists(
    st.builds(
        lambda symbol, size, delay, reduce_only: (symbol, size, delay, reduce_only),
        st.sampled_from([*COINS, "DOGEUSDT", ""]),
        NUMBERS,
        st.integers(0, 6),
        st.booleans(),
    ),
    max_size=16,
)
HELD = st.fixed_dictionaries({coin: st.one_of(st.just(0.0), st.floats(-2, 2)) for coin in COINS})


def view_at(market: Market | None = None) -> MarketView:
    return (market or synthetic()).view(BAR)


def order_of(view: MarketView, symbol: str, size: float, delay: int = 0, **more: Any) -> Order:
    """An order that changes the exposure of `symbol` by `size`, on 10,000 of equity."""
    price = view.last_close(symbol) if symbol in view.symbols else 1.0
    return Order(symbol, size * 10_000.0 / price, delay=delay, **more)


def positions_over_time(
    view: MarketView, account: AccountView, waiting: list[Order], passed: list[Order]
) -> list[dict[str, float]]:
    """Exposures now and after each bar in which orders fill, as an exchange without price moves would have them."""
    superseded = {order.symbol for order in passed}
    live = [order for order in waiting if order.symbol not in superseded] + passed
    held = {symbol: account.exposure[symbol] for symbol in view.symbols}
    course = [dict(held)]
    for moment in sorted({order.delay for order in live}):
        for order in live:
            if order.delay != moment:
                continue
            change = order.quantity * view.last_close(order.symbol) / account.equity
            if order.reduce_only:
                before = held[order.symbol]
                change = min(max(change, -max(before, 0.0)), max(-before, 0.0))
            held[order.symbol] += change
        course.append(dict(held))
    return course


def gross(held: dict[str, float]) -> float:
    return sum(map(abs, held.values()))


@tried(300)
@given(asked=ORDERS, held=HELD, waiting=ORDERS)
def test_no_orders_lead_past_the_limits(
    asked: list[tuple[str, float, int, bool]],
    held: dict[str, float],
    waiting: list[tuple[str, float, int, bool]],
) -> None:
    view = view_at()
    pending = [
        order_of(view, symbol, size, delay)
        for symbol, size, delay, _ in waiting[:2]
        if symbol in COINS and math.isfinite(size) and 1e-9 < abs(size) < 1
    ]
    account = replace(hand_made_account(view, held), pending=tuple(pending))
    orders = [order_of(view, symbol, size, delay, reduce_only=only) for symbol, size, delay, only in asked]
    passed, clamps = Guard(LIMITS).review(view, account, orders)

    for order in passed:
        withdraws = any(other.symbol == order.symbol for other in account.pending)
        assert math.isfinite(order.quantity) and (order.quantity != 0.0 or withdraws) and order.symbol in COINS
    # What was held or waited before and lies past a limit may stay; nothing may lie further out than that.
    alone = positions_over_time(view, account, pending, [])
    for moment in positions_over_time(view, account, pending, passed):
        for coin in COINS:
            bound = max(LIMITS.max_exposure, *(abs(before[coin]) for before in alone))
            assert abs(moment[coin]) <= bound + ROUNDING
        bound = max(LIMITS.max_gross_exposure, *(gross(before) for before in alone), gross(held) + gross(alone[-1]))
        assert gross(moment) <= bound + ROUNDING
    if gross(held) <= LIMITS.max_gross_exposure and not pending:
        for moment in positions_over_time(view, account, pending, passed):
            assert gross(moment) <= LIMITS.max_gross_exposure + ROUNDING

    # Whatever did not pass as it was is in the log, with its rule and what was let through.
    by_order = {id(order) for order in orders} & {id(order) for order in passed}
    assert len(clamps) >= sum(id(order) not in by_order and order.quantity != 0.0 for order in orders)
    for clamp in clamps:
        assert clamp.rule and clamp.detail and math.isfinite(clamp.allowed)
        assert clamp.allowed == 0.0 or clamp.allowed in {order.quantity for order in passed}


@tried(150)
@given(size=st.floats(-3.0, 3.0), held=HELD, lot=st.sampled_from([0.001, 0.1, 1.0]))
def test_what_is_lessened_is_whole_lots_or_closes(size: float, held: dict[str, float], lot: float) -> None:
    view = view_at()
    account = hand_made_account(view, held)
    account = replace(account, rules=dict.fromkeys(COINS, SymbolRules(lot=lot)))
    order = order_of(view, COINS[0], size, 0)
    passed, clamps = Guard(LIMITS).review(view, account, [order])
    for one in passed:
        closes = account.positions[COINS[0]] + one.quantity == pytest.approx(0.0, abs=1e-9)
        assert not clamps or closes or on_step(one.quantity, lot)
        assert abs(one.quantity) <= abs(order.quantity) * (1.0 + 1e-9)


@tried(100)
@given(size=st.floats(-0.6, 0.6), held=HELD, dust=st.floats(0.0, 1e-12))
def test_what_rounding_leaves_of_a_limit_is_no_room(size: float, held: dict[str, float], dust: float) -> None:
    assume(gross(held) > 0.0)
    view = view_at()
    limits = replace(LIMITS, max_gross_exposure=gross(held) + dust, max_exposure=10.0)
    order = order_of(view, COINS[0], size)
    passed, _ = Guard(limits).review(view, hand_made_account(view, held), [order])
    reduces, unit = size * held[COINS[0]] < 0.0, abs(order.quantity / size) if size else 0.0
    assert all(reduces or one == order or abs(one.quantity) > 1e-12 * unit for one in passed)


@tried(150)
@given(
    asked=ORDERS,
    held=HELD,
    equity=st.sampled_from([10_000.0, 0.0, -5.0, math.nan, math.inf, 1e-300, 1e300]),
    drawdown=st.sampled_from([0.0, 0.49, 0.5, 0.9, math.nan]),
    broken=st.sampled_from([None, *COINS]),
)
def test_it_never_raises_and_fails_closed(
    asked: list[tuple[str, float, int, bool]],
    held: dict[str, float],
    equity: float,
    drawdown: float,
    broken: str | None,
) -> None:
    view = view_at()
    account = replace(hand_made_account(view, held), equity=equity, drawdown=drawdown)
    if broken is not None:
        account.positions[broken] = math.nan
    orders = [order_of(view, symbol, size, delay) for symbol, size, delay, _ in asked]
    passed, _ = Guard(LIMITS).review(view, account, orders)
    if not (math.isfinite(equity) and equity > 0) or broken is not None:
        assert passed == []
    if not drawdown < LIMITS.max_drawdown:
        for order in passed:
            grown = order.quantity * math.copysign(1.0, account.positions[order.symbol] or order.quantity)
            assert grown * view.last_close(order.symbol) / equity <= ROUNDING


def review(
    orders: list[Order], held: dict[str, float] | None = None, limits: GuardLimits = LIMITS, **account: Any
) -> tuple[list[Order], list[Clamp]]:
    view = view_at()
    return Guard(limits).review(view, replace(hand_made_account(view, held or {}), **account), orders)


@pytest.mark.parametrize(
    ("size", "held", "left", "rule"),
    [
        (0.8, 0.0, 0.8, None),
        (0.9, 0.0, 0.8, "max_exposure"),
        (-2.0, 0.0, -0.8, "max_exposure"),
        (-2.0, 0.5, -1.3, "max_exposure"),
        (0.1, 0.8, 0.0, "max_exposure"),
        (0.1, 1.2, 0.0, "max_exposure"),  # the price moved past the limit: it may not grow
        (-0.1, 1.2, -0.1, None),  # and it may shrink, even if that leaves it past the limit
        (-0.1, -1.2, 0.0, "max_exposure"),
        (0.1, -1.2, 0.1, None),
        (1e300, 0.0, 0.8, "max_exposure"),
        (math.inf, 0.0, 0.0, "not_a_number"),
        (math.nan, 0.0, 0.0, "not_a_number"),
    ],
)
def test_one_order(size: float, held: float, left: float, rule: str | None) -> None:
    view = view_at()
    [order] = orders = [order_of(view, COINS[0], size)]
    passed, clamps = review(orders, {COINS[0]: held})
    got = sum(order.quantity for order in passed) * view.last_close(COINS[0]) / 10_000
    assert got == pytest.approx(left, abs=1e-12)
    assert [clamp.rule for clamp in clamps] == ([] if rule is None else [rule])
    for clamp in clamps:
        assert clamp.symbol == order.symbol and clamp.asked == pytest.approx(order.quantity, nan_ok=True)
        assert clamp.allowed == sum(order.quantity for order in passed)
    if rule is None:
        assert passed == orders


def test_a_quantity_whose_value_overflows_is_dropped() -> None:
    passed, [clamp] = review([Order(COINS[0], 1e308)], equity=1e-3)
    assert passed == [] and clamp.rule == "not_a_number"


def test_what_passes_keeps_all_but_its_size() -> None:
    order = order_of(view_at(), COINS[0], 2.0, delay=3, stop=1.0, target=9.0)
    [passed], _ = review([order])
    assert passed == replace(order, quantity=passed.quantity) and passed.quantity == pytest.approx(0.4 * order.quantity)


def test_gross_exposure_counts_all_coins_and_what_was_sent_before() -> None:
    view = view_at()
    account = hand_made_account(view, {COINS[0]: -0.7})
    sent = [order_of(view, COINS[1], 0.6)]
    passed, [clamp] = Guard(LIMITS).review(view, account, [order_of(view, COINS[2], 0.5)], sent)
    assert passed[0].quantity * view.last_close(COINS[2]) / 10_000 == pytest.approx(0.2)
    assert clamp.rule == "max_gross_exposure"


def test_orders_that_wait_count_and_a_new_one_replaces_them() -> None:
    view = view_at()
    waiting = (order_of(view, COINS[0], 0.8, delay=2), order_of(view, COINS[1], 0.5, delay=1))
    account = replace(hand_made_account(view, {}), pending=waiting)
    guard = Guard(LIMITS)
    [passed], [clamp] = guard.review(view, account, [order_of(view, COINS[2], 0.5)])
    assert passed.quantity * view.last_close(COINS[2]) / 10_000 == pytest.approx(0.2) and clamp.rule == (
        "max_gross_exposure"
    )
    # The exchange drops what waits for a coin when a new order for it comes; so does the count.
    passed_all, clamps = guard.review(view, account, [order_of(view, COINS[0], 0.5), order_of(view, COINS[2], 0.5)])
    assert len(passed_all) == 2 and clamps == []


@pytest.mark.parametrize("delay", [0, 4])
def test_a_reduction_makes_no_room_before_it_has_filled(delay: int) -> None:
    view = view_at()
    held = {COINS[0]: 0.8, COINS[1]: 0.7}
    leaves, comes = order_of(view, COINS[0], -0.8, delay=delay), order_of(view, COINS[2], 0.8)
    passed, [clamp] = review([leaves, comes], held)
    assert passed == [leaves] and clamp.rule == "max_gross_exposure"
    assert clamp.detail.endswith("more held back until reductions fill")


def test_slices_are_counted_together() -> None:
    view = view_at()
    orders = [order_of(view, COINS[0], 0.5, delay=delay) for delay in range(3)]
    passed, clamps = review(orders)
    sizes = [order.quantity * view.last_close(COINS[0]) / 10_000 for order in passed]
    assert sizes == pytest.approx([0.5, 0.3]) and [clamp.rule for clamp in clamps] == ["max_exposure"] * 2


def test_too_many_orders() -> None:
    view = view_at()
    orders = [order_of(view, COINS[0], 0.001)] * 14
    passed, clamps = review(orders)
    assert len(passed) == 12 and [(clamp.rule, clamp.allowed) for clamp in clamps] == [("max_orders", 0.0)] * 2


def test_an_unknown_coin_is_dropped_and_the_others_pass() -> None:
    passed, clamps = review([Order("DOGEUSDT", 1.0), order_of(view_at(), COINS[0], 0.1)])
    assert [order.symbol for order in passed] == [COINS[0]] and [clamp.rule for clamp in clamps] == ["unknown_symbol"]


@pytest.mark.parametrize(("size", "left"), [(-0.3, -0.3), (-0.9, -0.5), (0.1, 0.0)])
def test_where_the_drawdown_is_not_a_number_positions_only_shrink(size: float, left: float) -> None:
    view = view_at()
    passed, clamps = review([order_of(view, COINS[0], size)], {COINS[0]: 0.5}, drawdown=math.nan)
    assert sum(order.quantity for order in passed) * view.last_close(COINS[0]) / 10_000 == pytest.approx(left)
    assert [clamp.rule for clamp in clamps] == ([] if left == size else ["max_drawdown"])


def rules_at(guard: Guard, bar: int, equity: float) -> list[str]:
    """Rules that clamp a purchase at `bar`."""
    view = synthetic().view(bar)
    account = hand_made_account(view, {}, equity=equity)
    return [clamp.rule for clamp in guard.review(view, account, [order_of(view, COINS[0], 0.1)])[1]]


def test_a_day_s_loss_is_seen_by_a_team_that_decides_once_a_day() -> None:
    guard = Guard(replace(LIMITS, daily_loss=0.1))
    assert [rules_at(guard, 203 + 6 * day, equity) for day, equity in enumerate((10_000.0, 8_900.0, 8_900.0))] == [
        [],
        ["daily_loss"] * 2,  # of the account, and of the order
        [],
    ]


def test_on_stale_data_positions_only_shrink() -> None:
    market = synthetic()
    arrays = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][BAR - 2 : BAR + 1, 0] = np.nan
        arrays[name][BAR - 1 : BAR + 1, 1] = np.nan
    view = replace(market, **arrays, truth=None).view(BAR)
    account = hand_made_account(view, {COINS[0]: 0.3, COINS[1]: 0.3})
    orders = [order_of(view, COINS[0], 0.1), order_of(view, COINS[0], -0.1), order_of(view, COINS[1], 0.1)]
    passed, clamps = Guard(LIMITS).review(view, account, orders)
    assert passed == orders[1:] and [clamp.rule for clamp in clamps] == ["stale_data"]
