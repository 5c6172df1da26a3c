"""No order gets past the guard that breaks a limit, whatever the orders are; and what it makes of every kind."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp, GuardLimits
from simulator.errors import DataError
from simulator.exchange.orders import Cancel, Order, OrderKind, OrderRequest, Target, oco, on_step
from simulator.exchange.rules import SymbolRules
from simulator.market.market import MarketView
from tests.examples import tried
from tests.markets import without_places
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, course_of, hand_made_account, synthetic

A, B, C = COINS
BAR = 200
EQUITY = 10_000.0
LIMITS = guard_limits(max_exposure=0.8, max_gross_exposure=1.5)
ROUNDING = 1e-9


def view_at(*absent: tuple[int, int]) -> MarketView:
    """The market at `BAR`, without the last so many bars of some coins: (coin, bars)."""
    places = [(slice(BAR + 1 - bars, BAR + 1), column) for column, bars in absent]
    return (without_places(synthetic(), *places) if absent else synthetic()).view(BAR)


def close_of(symbol: str) -> float:
    return view_at().last_close(symbol) if symbol in COINS else 1.0


def order(symbol: str, size: float, kind: OrderKind = "market", at: float = 1.0, **more: Any) -> Order:
    """An order of `size` times the equity at the last close; its prices stand at `at` times the last close."""
    price = close_of(symbol)
    needed: dict[str, Any] = {
        "market": {}, "limit": {"limit": price * at}, "stop": {"trigger": price * at},
        "stop_limit": {"trigger": price * at, "limit": price * at}, "take_profit": {"trigger": price * at},
        "trailing_stop": {"trail": 0.05},
    }[kind]  # fmt: skip
    return Order(symbol, size * EQUITY / price, kind=kind, **needed, **more)


def clamped(
    orders: list[OrderRequest] | list[Order],
    held: dict[str, float] | None = None,
    limits: GuardLimits = LIMITS,
    sent: list[Order] | None = None,
    **account: Any,
) -> tuple[list[Order], list[Clamp]]:
    view = view_at()
    return Guard(limits).review(view, replace(hand_made_account(view, held or {}), **account), orders, sent or ())


def review(orders: list[OrderRequest] | list[Order], *given: Any, **more: Any) -> tuple[Any, list[str]]:
    """Symbol and size of what passes, and the rules that clamped."""
    passed, clamps = clamped(orders, *given, **more)
    return [(one.symbol, one.quantity * close_of(one.symbol) / EQUITY) for one in passed], [c.rule for c in clamps]


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
        order(symbol, size, delay=delay)
        for symbol, size, delay, _ in waiting[:2]
        if symbol in COINS and math.isfinite(size) and 1e-9 < abs(size) < 1
    ]
    account = replace(hand_made_account(view, held), pending=tuple(pending))
    orders = [order(symbol, size, delay=delay, reduce_only=only) for symbol, size, delay, only in asked]
    passed, clamps = Guard(LIMITS).review(view, account, orders)

    for one in passed:
        withdraws = any(other.symbol == one.symbol for other in account.pending)
        assert math.isfinite(one.quantity) and (one.quantity != 0.0 or withdraws) and one.symbol in COINS
    # What was held or waited before and lies past a limit may stay; nothing may lie further out than that.
    alone = course_of(view, account, [])
    course = course_of(view, account, passed)
    for moment in course:
        for coin in COINS:
            bound = max(LIMITS.max_exposure, *(abs(before[coin]) for before in alone))
            assert abs(moment[coin]) <= bound + ROUNDING
        bound = max(LIMITS.max_gross_exposure, *(gross(before) for before in alone), gross(held) + gross(alone[-1]))
        assert gross(moment) <= bound + ROUNDING
    if gross(held) <= LIMITS.max_gross_exposure and not pending:
        for moment in course:
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
    asked = order(A, size)
    passed, clamps = Guard(LIMITS).review(view, account, [asked])
    for one in passed:
        closes = account.positions[COINS[0]] + one.quantity == pytest.approx(0.0, abs=1e-9)
        assert not clamps or closes or on_step(one.quantity, lot)
        assert abs(one.quantity) <= abs(asked.quantity) * (1.0 + 1e-9)


@tried(100)
@given(size=st.floats(-0.6, 0.6), held=HELD, dust=st.floats(0.0, 1e-12))
def test_what_rounding_leaves_of_a_limit_is_no_room(size: float, held: dict[str, float], dust: float) -> None:
    assume(gross(held) > 0.0)
    view = view_at()
    limits = replace(LIMITS, max_gross_exposure=gross(held) + dust, max_exposure=10.0)
    asked = order(A, size)
    passed, _ = Guard(limits).review(view, hand_made_account(view, held), [asked])
    reduces, unit = size * held[COINS[0]] < 0.0, abs(asked.quantity / size) if size else 0.0
    assert all(reduces or one == asked or abs(one.quantity) > 1e-12 * unit for one in passed)


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
    orders = [order(symbol, size, delay=delay) for symbol, size, delay, _ in asked]
    passed, _ = Guard(LIMITS).review(view, account, orders)
    if not (math.isfinite(equity) and equity > 0) or broken is not None:
        assert passed == []
    if not drawdown < LIMITS.max_drawdown:
        for one in passed:
            grown = one.quantity * math.copysign(1.0, account.positions[one.symbol] or one.quantity)
            assert grown * view.last_close(one.symbol) / equity <= ROUNDING


RESTING: tuple[OrderKind, ...] = ("limit", "stop", "stop_limit", "take_profit", "trailing_stop")
CASES: list[tuple[list[Order], dict[str, float], list[tuple[str, float]], list[str]]] = [
    # What rests counts as if it were filled, beside what fills at once and the other way round.
    ([order(A, 0.5), order(A, 0.5, "limit")], {}, [(A, 0.5), (A, 0.3)], ["max_exposure"]),
    ([order(A, 0.5, "stop"), order(A, 0.5)], {}, [(A, 0.5), (A, 0.3)], ["max_exposure"]),
    ([order(A, 0.8, "limit"), order(B, 0.8, "limit")], {}, [(A, 0.8), (B, 0.7)], ["max_gross_exposure"]),
    # A purchase and a sale that rest may fill one without the other: no netting, but both sides have room.
    ([order(A, 0.8, "limit"), order(A, -0.8, "limit"), order(B, 0.7)], {}, [(A, 0.8), (A, -0.8), (B, 0.7)], []),
    # A position may be gone before the sale that rests is filled, so that counts as a short.
    ([order(A, -0.9, "limit")], {A: 0.5}, [(A, -0.8)], ["max_exposure"]),
    ([order(A, -0.9, "limit", reduce_only=True)], {A: 0.5}, [(A, -0.5)], ["reduce_only"]),
    ([order(A, 0.4, "stop", reduce_only=True)], {A: 0.5}, [], ["reduce_only"]),
    # It protects a position that is still to come.
    (
        [order(A, 0.5, "limit"), order(A, -0.5, "stop", reduce_only=True)],
        {},
        [(A, 0.5), (A, -0.5)],
        [],
    ),
    # Reductions that may fail make no room for others.
    (
        [order(A, -0.8, "limit", reduce_only=True), order(B, 0.8)],
        {A: 0.8},
        [(A, -0.8), (B, 0.7)],
        ["max_gross_exposure"],
    ),
    *(
        ([order(A, -0.8, delay=delay), order(B, 0.8)], {A: 0.8}, [(A, -0.8), (B, 0.7)], ["max_gross_exposure"])
        for delay in (0, 4)
    ),
    # Of a group the largest counts.
    (oco(order(A, 0.6, "limit"), order(A, 0.8, "stop"), group="g"), {}, [(A, 0.6), (A, 0.8)], []),
    (oco(order(A, 0.6, "limit"), order(A, 0.9, "stop"), group="g"), {}, [(A, 0.6), (A, 0.8)], ["max_exposure"]),
    (
        [*oco(order(A, 0.6, "limit"), order(A, 0.5, "stop"), group="g"), order(A, 0.6, "limit")],
        {},
        [(A, 0.6), (A, 0.5), (A, 0.2)],
        ["max_exposure"],
    ),
    # Groups of different symbols each have their largest.
    (
        [*oco(order(A, 0.8, "limit"), order(B, 0.8, "limit"), group="g")],
        {},
        [(A, 0.8), (B, 0.7)],
        ["max_gross_exposure"],
    ),
    # A purchase far above the market is measured at its own price.
    ([order(A, 0.5, "stop", at=2.0)], {}, [(A, 0.4)], ["max_exposure"]),
    ([order(A, 0.8, "limit", at=0.5)], {}, [(A, 0.8)], []),
    # A reduction that the exchange will refuse (its stop is on the wrong side) makes no room.
    (
        [order(A, -0.4, stop=close_of(A) * 2), order(B, 0.8), order(C, 0.5)],
        {A: 0.8},
        [(A, -0.4), (B, 0.7)],
        ["max_gross_exposure", "max_gross_exposure"],
    ),
    # One that only reduces is counted as what it will do, not as what it says.
    (
        [order(A, -0.5, delay=4, reduce_only=True), order(A, -0.5), order(A, 1.5, delay=5)],
        {A: 0.5},
        [(A, -0.5), (A, -0.5), (A, 0.3)],
        ["max_exposure"],
    ),
    # Slices count together; a coin that is not there and orders beyond their number are dropped alone.
    ([order(A, 0.5, delay=delay) for delay in range(3)], {}, [(A, 0.5), (A, 0.3)], ["max_exposure"] * 2),
    ([order("DOGEUSDT", 1.0), order(A, 0.1)], {}, [(A, 0.1)], ["unknown_symbol"]),
    ([order(A, 0.001)] * 14, {}, [(A, 0.001)] * 12, ["max_orders"] * 2),
    # One order alone: its size, what is held, what is left of it and why.
    *(
        ([order(A, size)], {A: held}, [(A, left)] if left else [], [rule] if rule else [])
        for size, held, left, rule in [
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
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("orders", "held", "left", "rules"), CASES)
def test_kinds_of_orders(
    orders: list[Order], held: dict[str, float], left: list[tuple[str, float]], rules: list[str]
) -> None:
    passed, found = review(orders, held)
    assert [symbol for symbol, _ in passed] == [symbol for symbol, _ in left]
    assert [size for _, size in passed] == pytest.approx([size for _, size in left])
    assert found == rules


@pytest.mark.parametrize("kind", RESTING)
def test_while_positions_may_only_shrink_nothing_rests_that_could_open_one(kind: OrderKind) -> None:
    for size in (0.3, -0.3):
        passed, rules = review([order(A, size, kind)], {A: 0.5}, drawdown=math.nan)
        assert passed == [] and rules == ["max_drawdown"]
    passed, rules = review([order(A, -0.3, kind, reduce_only=True)], {A: 0.5}, drawdown=math.nan)
    assert passed == [(A, pytest.approx(-0.3))] and rules == []


@pytest.mark.parametrize("kind", ["market", *RESTING])
def test_what_waits_from_before(kind: OrderKind) -> None:
    waiting = (order(A, 0.6, kind, delay=1, id="w"),)
    passed, rules = review([order(A, 0.5, "limit")], pending=waiting)
    assert passed == [(A, pytest.approx(0.2))] and rules == ["max_exposure"]
    # A market order supersedes market orders and nothing else.
    passed, rules = review([order(A, 0.5)], pending=waiting)
    assert passed == [(A, pytest.approx(0.5 if kind == "market" else 0.2))]
    assert rules == ([] if kind == "market" else ["max_exposure"])
    # What waits to reduce makes no room: the next decision may replace it.
    leaving = (order(A, -0.8, kind, delay=1, id="w", reduce_only=True),)
    passed, rules = review([order(B, 0.8)], {A: 0.8}, pending=leaving)
    assert passed == [(B, pytest.approx(0.7))] and rules == ["max_gross_exposure"]


def test_what_closes_twice_does_not_turn_the_position() -> None:
    """A limit that only reduces may close the position before a market order that was to close it comes."""
    protects, leaves = order(A, -0.5, "limit", at=1.1, reduce_only=True), order(A, -0.5, delay=1)
    turns = order(A, -1.3, delay=1)
    view = view_at()
    frozen = hand_made_account(view, {A: 0.5}, drawdown=math.nan)
    passed, [clamp] = Guard(LIMITS).review(view, frozen, [protects, leaves])
    assert passed == [protects, replace(leaves, reduce_only=True)]
    assert clamp.rule == "reduce_only" and clamp.asked == clamp.allowed == leaves.quantity
    assert review([leaves, protects], {A: 0.5}, drawdown=math.nan)[1] == ["max_drawdown"]
    assert review([turns], {A: 0.5})[1] == []
    passed_sizes, rules = review([protects, turns], {A: 0.5})
    assert [size for _, size in passed_sizes] == pytest.approx([-0.5, -0.8]) and rules == ["max_exposure"]
    assert review([turns, protects], {A: 0.5}) == ([(A, pytest.approx(-1.3))], ["max_exposure"])
    assert review([leaves, protects], {A: 0.5})[1] == [], "both may, as a short of that size is within the limits"


def test_a_clamp_tells_what_was_asked_and_allowed_and_only_the_size_is_changed() -> None:
    asked = order(A, 2.0, delay=3, stop=1.0, target=9.0)
    [passed], [clamp] = clamped([asked])
    assert passed == replace(asked, quantity=passed.quantity) and passed.quantity == pytest.approx(0.4 * asked.quantity)
    assert (clamp.symbol, clamp.asked, clamp.allowed) == (A, asked.quantity, passed.quantity)
    [leaves], [clamp] = clamped([order(A, -0.8), order(B, 0.8)], {A: 0.8, C: 0.7})
    assert leaves.symbol == A and clamp.detail.endswith("more held back until reductions fill")
    nothing, [clamp] = clamped([Order(A, 1e308)], equity=1e-3)
    assert nothing == [] and clamp.rule == "not_a_number", "its value overflows"


def test_gross_exposure_counts_all_coins_and_what_was_sent_before() -> None:
    passed, rules = review([order(C, 0.5)], {A: -0.7}, sent=[order(B, 0.6)])
    assert passed == [(C, pytest.approx(0.2))] and rules == ["max_gross_exposure"]


def test_a_symbol_without_a_bar_makes_no_room_for_others() -> None:
    view = view_at((0, 1))
    account = hand_made_account(view, {A: 0.8})
    leaves = Order(A, -account.positions[A])
    passed, [clamp] = Guard(LIMITS).review(view, account, [leaves, order(B, 0.8)])
    assert passed[0] == leaves and passed[1].quantity * view.last_close(B) / EQUITY == pytest.approx(0.7)
    assert clamp.rule == "max_gross_exposure"


def test_on_stale_data_positions_only_shrink() -> None:
    view = view_at((0, 3), (1, 2))
    account = hand_made_account(view, {A: 0.3, B: 0.3})
    orders = [order(A, 0.1), order(A, -0.1), order(B, 0.1)]
    passed, clamps = Guard(LIMITS).review(view, account, orders)
    assert passed == orders[1:] and [clamp.rule for clamp in clamps] == ["stale_data"]


def test_a_day_s_loss_is_seen_by_a_team_that_decides_once_a_day() -> None:
    guard, found = Guard(replace(LIMITS, daily_loss=0.1)), []
    for day, equity in enumerate((10_000.0, 8_900.0, 8_900.0)):
        view = synthetic().view(203 + 6 * day)
        _, clamps = guard.review(view, hand_made_account(view, {}, equity=equity), [order(A, 0.1)])
        found.append([clamp.rule for clamp in clamps])
    assert found == [[], ["daily_loss"] * 2, []], "of the account, and of the order"


def test_a_position_can_be_closed_whatever_waits() -> None:
    waiting = (order(A, -1.5, "stop", at=0.9, id="w"), order(B, 1.5, "limit", at=0.9, id="x"))
    accounts: list[dict[str, Any]] = [{}, {"drawdown": math.nan}]
    for account in accounts:
        passed, rules = review([order(A, -0.5)], {A: 0.5}, pending=waiting, **account)
        assert passed == [(A, pytest.approx(-0.5))] and rules == []


@pytest.mark.parametrize(
    "request_",
    [
        Target(A, 0.1),
        Cancel("w"),
        cast(Order, None),
        cast(Order, "buy"),
        cast(Order, {"symbol": A}),
    ],
)
def test_only_orders_pass(request_: OrderRequest) -> None:
    view = view_at()
    good = order(B, 0.1)
    waiting = (order(A, 0.1, "limit", id="w"),)
    account = replace(hand_made_account(view, {}), pending=waiting)
    passed, clamps = Guard(LIMITS).review(view, account, [request_, good])
    assert passed == [good]
    [clamp] = clamps
    assert clamp.rule == "not_an_order" and clamp.allowed == 0.0 and type(request_).__name__ in clamp.detail


@pytest.mark.parametrize("field", ["limit", "trigger", "trail", "stop", "target"])
@pytest.mark.parametrize("price", [math.nan, math.inf, -0.2, 0.0])
def test_a_price_that_is_no_positive_number_loses_the_order(field: str, price: float) -> None:
    kind: OrderKind = "trailing_stop" if field == "trail" else "limit" if field == "limit" else "stop"
    kind = "market" if field in ("stop", "target") else kind
    prices: dict[str, Any] = {field: price}
    sizes, rules = review([replace(order(A, 0.1, kind), **prices), order(B, 0.1)])
    assert [symbol for symbol, _ in sizes] == [B] and rules == ["not_a_number"]


def test_a_failure_inside_lets_nothing_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    view, guard = view_at(), Guard(LIMITS)
    before = guard.state()
    broken = order(A, 0.1, delay=cast(int, "soon"))
    passed, clamps = guard.review(view, hand_made_account(view, {}), [order(B, 0.1), broken])
    assert passed == [] and {clamp.rule for clamp in clamps} == {"guard_error"} and len(clamps) == 2
    quiet = Guard(LIMITS)
    quiet.review(view, hand_made_account(view, {}), [])
    assert all("TypeError" in clamp.detail for clamp in clamps) and guard.state() == quiet.state() != before
    account = hand_made_account(view, {})
    monkeypatch.setattr(MarketView, "last_close", lambda view, symbol: 1 / 0)
    passed, clamps = guard.review(view, account, [Order(A, 1.0)])
    assert passed == [] and [(clamp.rule, clamp.asked) for clamp in clamps] == [
        ("guard_error", 1.0),
        ("guard_error", 0.0),
    ]


def test_a_failure_of_the_guard_itself_closes_everything_and_raises_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a decision and between decisions; what is closing already is not sent again, whatever waits is withdrawn."""
    view = view_at()
    held = hand_made_account(view, {A: 0.5, B: -0.3})
    resting, opening = order(A, 0.1, "limit", 0.9, id="rest"), order(C, 0.2, delay=1, id="open")
    closing = Order(B, -held.positions[B], reduce_only=True, delay=1, id="closing")
    account = replace(held, pending=(resting, opening, closing))
    monkeypatch.setattr(MarketView, "last_close", lambda view, symbol: 1 / 0)
    closes = [Order(A, -held.positions[A], reduce_only=True), Order(C, 0.0)]
    requests, clamps = Guard(LIMITS).watch(view, account)
    assert requests == [Cancel("rest"), *closes]
    assert [(clamp.rule, clamp.symbol) for clamp in clamps] == [("guard_error", "")]
    assert "closes all positions" in clamps[0].detail and "ZeroDivisionError" in clamps[0].detail
    passed, clamps = Guard(LIMITS).review(view, account, [Order(C, 1.0)])
    assert passed == closes and [(clamp.rule, clamp.symbol) for clamp in clamps] == [
        ("guard_error", C),
        ("guard_error", ""),
    ]


@pytest.mark.parametrize("name", [one.name for one in fields(GuardLimits)])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_limits_are_positive(name: str, value: float) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(DataError, match=name):
        replace(LIMITS, **changed)
