"""What the guard keeps between decisions: the day's loss and a drawdown; and that a restart keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.limits import Clamp
from simulator.errors import UserError
from simulator.exchange.orders import Order
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, hand_made_account, synthetic

A, B, C = COINS
FIRST = 203  # closes at 00:00; bars of 4 hours
LIMITS = guard_limits(max_exposure=0.8, max_gross_exposure=1.5, daily_loss=0.1, max_drawdown=0.4)


def look(
    guard: Guard, bar: int, sizes: list[tuple[str, float]], held: dict[str, float] | None = None, **account: Any
) -> tuple[list[Order], list[Clamp]]:
    """One review at the close of `bar`, of market orders in fractions of 10,000."""
    view = synthetic().view(bar)
    orders = [Order(symbol, size * 10_000.0 / view.last_close(symbol)) for symbol, size in sizes]
    return guard.review(view, replace(hand_made_account(view, held or {}), **account), orders)


def rules(clamps: list[Clamp]) -> list[str]:
    return [clamp.rule for clamp in clamps]


def test_after_a_drawdown_all_is_closed_and_nothing_opens() -> None:
    guard = Guard(LIMITS)
    held = {A: 0.5, B: -0.3}
    assert rules(look(guard, FIRST, [(C, 0.1)], held, drawdown=0.39)[1]) == []
    passed, clamps = look(guard, FIRST + 1, [(C, 0.1), (A, -0.1)], held, drawdown=0.4)
    closes = hand_made_account(synthetic().view(FIRST + 1), held).positions
    assert [(one.symbol, one.quantity, one.reduce_only) for one in passed] == [
        (A, -closes[A], True),
        (B, -closes[B], True),
    ]
    assert rules(clamps) == ["max_drawdown"] * 5 and clamps[0].symbol == ""
    assert [(clamp.asked, clamp.allowed) for clamp in clamps[3:]] == [(0.0, -closes[A]), (0.0, -closes[B])]
    # The recovery of the equity changes nothing.
    assert look(guard, FIRST + 30, [(C, 0.1)], drawdown=0.0)[0] == []
    assert look(guard, FIRST + 31, [], {C: 0.2}, drawdown=0.0)[0] != []


def test_each_position_is_closed_once() -> None:
    view, guard = synthetic().view(FIRST), Guard(LIMITS)
    account = hand_made_account(view, {A: 0.5, B: 0.2}, drawdown=0.5)
    first, _ = guard.review(view, account, [])
    assert guard.review(view, account, [], first) == ([], [])
    waits = replace(account, pending=(replace(first[0], id="#1"),))
    assert [one.symbol for one in guard.review(view, waits, [])[0]] == [B]


def test_what_waits_is_withdrawn_while_positions_may_only_shrink() -> None:
    view = synthetic().view(FIRST)
    grows, shrinks = Order(A, 1.0, kind="limit", limit=1.0, id="g"), Order(A, -1.0, reduce_only=True, id="s")
    account = replace(hand_made_account(view, {A: 0.5}), pending=(grows, shrinks))
    guard = Guard(LIMITS)
    guard.review(view, account, [])
    assert guard.withdrawals(account) == []
    beyond: list[dict[str, Any]] = [
        {"drawdown": 0.4},
        {"drawdown": math.nan},
        {"equity": 9_000.0},
        {"equity": math.nan},
    ]
    for bad in beyond:
        assert [one.id for one in guard.withdrawals(replace(account, **bad))] == ["g"]
    flat = Guard(LIMITS)
    flat.review(view, replace(account, drawdown=0.4), [])
    assert [one.id for one in flat.withdrawals(account)] == ["g"]


SIZES = st.lists(st.tuples(st.sampled_from(COINS), st.floats(-1.2, 1.2)), max_size=5)
REVIEWS = st.lists(
    st.tuples(
        st.integers(0, 7),  # bars since the last one
        SIZES,
        st.fixed_dictionaries({coin: st.sampled_from([0.0, 0.3, -0.5]) for coin in COINS}),
        st.sampled_from([10_000.0, 9_500.0, 8_800.0, 7_000.0, 0.0, math.nan]),
        st.sampled_from([0.0, 0.0, 0.1, 0.35, 0.45, math.nan]),
    ),
    min_size=1,
    max_size=10,
)


@tried(120)
@given(reviews=REVIEWS, cut=st.integers(0, 10))
def test_a_restart_changes_nothing(reviews: list[Any], cut: int) -> None:
    def run(restarts: bool) -> list[Any]:
        guard, bar, seen = Guard(LIMITS), 100, []
        for number, (later, sizes, held, equity, drawdown) in enumerate(reviews):
            if restarts and number == min(cut, len(reviews) - 1):
                saved = json.dumps(guard.state(), allow_nan=False)
                guard = Guard(LIMITS)
                guard.restore(json.loads(saved))
            bar += later
            seen.append(look(guard, bar, sizes, held, equity=equity, drawdown=drawdown))
        return [*seen, guard.state()]

    assert run(True) == run(False)


@tried(120)
@given(reviews=REVIEWS)
def test_after_a_drawdown_orders_only_reduce_for_good(reviews: list[Any]) -> None:
    guard = Guard(LIMITS)
    bar, flat = 100, False
    for later, sizes, held, equity, drawdown in reviews:
        bar += later
        passed, _ = look(guard, bar, sizes, held, equity=equity, drawdown=drawdown)
        flat |= drawdown >= 0.4 and equity > 0.0
        if flat:
            for one in passed:
                assert one.reduce_only and one.quantity * held[one.symbol] < 0.0


HELD_BACK = {
    "order": asdict(Order(A, 1.0, stop=2.0)), "goal": 3.0, "since": 5, "begin": 6,
}  # fmt: skip
GOOD = {
    "format": 2, "day": 18_000, "day_equity": 1.0e4, "last_equity": 9.0e3,
    "flat_rule": "daily_loss", "flat_until": 9, "traded": [[5, 0.0], [6, 7.5]],
    "held_back": [HELD_BACK],
}  # fmt: skip


MISSING = object()


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 3}, {"format": 1}, {"format": 0}, {"flat_rule": "x"}, {"flat_rule": ""}, {"flat_until": 1.5},
        {"flat_until": None}, {"flat_rule": "max_drawdown"},
        {"traded": [[1, -1.0]]}, {"held_back": [HELD_BACK | {"goal": None}]}, {"held_back": [HELD_BACK | {"x": 1}]},
        {"held_back": [{"order": {}}]},
        {"day": None}, {"day": 1.5}, {"day": True}, {"day_equity": None}, {"day_equity": -1.0},
        {"last_equity": math.nan}, {"last_equity": "9000"}, {"more": 1}, {"day_equity": math.inf},
        *({name: MISSING} for name in GOOD),
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused_and_forgets_nothing(damage: dict[str, Any]) -> None:
    guard = Guard(LIMITS)
    guard.restore(GOOD)
    assert guard.state() == GOOD
    with pytest.raises(UserError, match=r"state of the guard is damaged.*undamaged copy"):
        guard.restore({name: value for name, value in (GOOD | damage).items() if value is not MISSING})
    assert guard.state() == GOOD
