"""What the guard makes of every kind of order, and of prices and sizes in money."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import GuardLimits
from simulator.errors import DataError
from simulator.exchange.orders import Cancel, Order, OrderKind, OrderRequest, Target, oco
from simulator.market.market import MarketView
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, hand_made_account, synthetic

A, B, C = COINS
BAR = 200
EQUITY = 10_000.0
LIMITS = guard_limits(max_exposure=0.8, max_gross_exposure=1.5)


def view_at() -> MarketView:
    return synthetic().view(BAR)


def close_of(symbol: str) -> float:
    return view_at().last_close(symbol)


def order(symbol: str, size: float, kind: OrderKind = "market", at: float = 1.0, **more: Any) -> Order:
    """An order of `size` times the equity at the last close; its prices stand at `at` times the last close."""
    price = close_of(symbol)
    needed: dict[str, Any] = {
        "market": {},
        "limit": {"limit": price * at},
        "stop": {"trigger": price * at},
        "stop_limit": {"trigger": price * at, "limit": price * at},
        "take_profit": {"trigger": price * at},
        "trailing_stop": {"trail": 0.05},
    }[kind]
    return Order(symbol, size * EQUITY / price, kind=kind, **needed, **more)


def review(
    orders: list[OrderRequest] | list[Order],
    held: dict[str, float] | None = None,
    limits: GuardLimits = LIMITS,
    **account: Any,
) -> tuple[Any, list[str]]:
    """Symbol and size of what passes, and the rules that clamped."""
    view = view_at()
    passed, clamps = Guard(limits).review(view, replace(hand_made_account(view, held or {}), **account), orders)
    sizes = [(one.symbol, one.quantity * view.last_close(one.symbol) / EQUITY) for one in passed]
    return sizes, [clamp.rule for clamp in clamps]


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
    ([order(A, -0.8), order(B, 0.8)], {A: 0.8}, [(A, -0.8), (B, 0.7)], ["max_gross_exposure"]),
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
]  # fmt: skip


@pytest.mark.parametrize(("orders", "held", "left", "rules"), CASES)
def test_kinds_of_orders(
    orders: list[Order], held: dict[str, float], left: list[tuple[str, float]], rules: list[str]
) -> None:
    passed, clamped = review(orders, held)
    assert [symbol for symbol, _ in passed] == [symbol for symbol, _ in left]
    assert [size for _, size in passed] == pytest.approx([size for _, size in left])
    assert clamped == rules


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


def test_a_symbol_without_a_bar_makes_no_room_for_others() -> None:
    market = synthetic()
    arrays: dict[str, Any] = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][BAR, 0] = np.nan
    view = replace(market, **arrays, truth=None).view(BAR)
    account = hand_made_account(view, {A: 0.8})
    leaves = Order(A, -account.positions[A])
    passed, [clamp] = Guard(LIMITS).review(view, account, [leaves, order(B, 0.8)])
    assert passed[0] == leaves and passed[1].quantity * view.last_close(B) / EQUITY == pytest.approx(0.7)
    assert clamp.rule == "max_gross_exposure"


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


def test_an_order_that_breaks_the_review_is_no_way_to_close_the_account() -> None:
    view, guard = view_at(), Guard(LIMITS)
    account = hand_made_account(view, {A: 0.5})
    passed, clamps = guard.review(view, account, [order(B, 0.1, delay=cast(int, "soon"))])
    assert passed == [] and [(clamp.rule, clamp.symbol) for clamp in clamps] == [("guard_error", B)]


@pytest.mark.parametrize("name", [one.name for one in fields(GuardLimits)])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_limits_are_positive(name: str, value: float) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(DataError, match=name):
        replace(LIMITS, **changed)


@tried(150)
@given(
    size=st.floats(-2.0, 2.0),
    held=st.fixed_dictionaries({coin: st.floats(-1.0, 1.0) for coin in COINS}),
    kind=st.sampled_from(["market", *RESTING]),
    tight=st.sampled_from(["max_exposure", "max_gross_exposure"]),
)
def test_a_tighter_limit_lets_no_more_through(size: float, held: dict[str, float], kind: OrderKind, tight: str) -> None:
    view = view_at()
    account = hand_made_account(view, held)
    one = order(A, size, kind)
    wide = Guard(LIMITS).review(view, account, [one])[0]
    limit: dict[str, Any] = {tight: 0.2}
    narrow = Guard(replace(LIMITS, **limit)).review(view, account, [one])[0]
    assert sum(abs(left.quantity) for left in narrow) <= sum(abs(left.quantity) for left in wide) * (1 + 1e-12)
