"""The limits that Trader chooses: where they rest, how long, and how they turn a position round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.agents.manager import Side
from cryptosentinel.agents.trader import Execution
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun, Window, orders_for_target
from simulator.exchange.orders import on_step
from simulator.exchange.rules import SymbolRules
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import SayingEngine, ask, decide, hand_made_account, hold, make_team, submit, synthetic

COIN = "AAAUSDT"  # C1 behind the mask
BAR = 200


@pytest.mark.parametrize("side", ["long", "short"])
@pytest.mark.parametrize(("offset", "tick"), [(0.0, 0.0), (1.5, 0.0), (1.5, 0.25)])
def test_limits_rest_on_the_better_side_of_the_price(side: str, offset: float, tick: float) -> None:
    asked = ask("trader", symbol="C1", side=side, exposure=0.9)
    said = render_call("submit_orders", {"type": "limit", "wait": 1, "slices": 2, "offset": offset, "rest": 3})
    engine = SayingEngine({"manager": [asked, submit(hold("C1", side, 0.9))], "trader": [said]})
    orders = decide(engine, bar=BAR, rules={COIN: SymbolRules(tick=tick)}).orders
    price, better = synthetic().view(BAR).last_close(COIN), -1.0 if side == "long" else 1.0
    assert [(order.kind, order.delay, order.expire_bars) for order in orders] == [("limit", 1, 3), ("limit", 2, 3)]
    for order in orders:
        assert order.limit is not None and on_step(order.limit, tick)
        gained = better * (order.limit / price - 1.0)
        assert offset / 100 - 1e-9 <= gained <= offset / 100 + tick / price + 1e-9


@tried(60)
@given(held=st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.25, 1.0]), wanted=st.floats(-1.0, 1.0), slices=st.integers(1, 3))
def test_limits_turn_a_position_round_and_no_guard_cuts_them(held: float, wanted: float, slices: int) -> None:
    """What closes comes first and only reduces. All of it filled, the position is the wanted one."""
    view = synthetic().view(BAR)
    account = hand_made_account(view, {COIN: held})
    plan = Execution(type="limit", wait=0, slices=slices, offset=0.0)
    plain = orders_for_target(view, account, COIN, wanted, delays=plan.delays())
    orders = plan.placed(plain, view.last_close(COIN), SymbolRules(), account.positions[COIN])
    passed, clamps = Guard(guard_limits()).review(view, account, orders)
    assert passed == orders and not clamps
    position = account.positions[COIN]
    for order in orders:
        assert order.reduce_only == (position * order.quantity < 0.0) and order.kind == "limit"
        assert not order.reduce_only or abs(order.quantity) <= abs(position) + 1e-9
        position = 0.0 if abs(position + order.quantity) < 1e-9 else position + order.quantity
    assert position == pytest.approx(account.positions[COIN] + sum(order.quantity for order in plain))
    assert [order.delay for order in orders] == sorted(order.delay for order in orders)


def test_a_limit_that_turns_a_position_round_is_filled_whole() -> None:
    """A bar that goes through its price fills what closes and what opens, in this order."""
    market, bars = synthetic(coins=1), Window(200, 212, 4)
    said = render_call("submit_orders", {"type": "limit", "wait": 0, "slices": 1, "offset": 0.0})
    sides: list[Side] = ["long", "short", "long"]
    turns = [(ask("trader", symbol="C1", side=side, exposure=1.0), submit(hold("C1", side, 1.0))) for side in sides]
    engine = SayingEngine({"manager": [one for turn in turns for one in turn], "trader": [said] * 3})
    [episode] = run_all([play(make_team(), BacktestRun(market, bars), guard_limits(), 0)], engine)
    sent = [decision.orders for _, decision in episode.decisions]
    assert [[order.reduce_only for order in orders] for orders in sent] == [[False], [True, False], [True, False]]
    fills = [fill.quantity for fill in episode.result.fills]
    assert len(fills) == 5 and sum(fills) > 0.0 > sum(fills[:3]), "each was filled, and turned the position"


def test_orders_that_rest_end_with_the_next_decision() -> None:
    said = render_call("submit_orders", {"type": "limit", "wait": 0, "slices": 1, "offset": 20.0})
    asks = ask("trader", symbol="C1", side="long", exposure=0.5)
    engine = SayingEngine({"manager": [asks, submit(hold("C1", "long", 0.5))] * 3, "trader": [said] * 3})
    run = BacktestRun(synthetic(coins=1), Window(200, 212, 4))
    [episode] = run_all([play(make_team(), run, guard_limits(), 0)], engine)
    assert [len(decision.orders) for _, decision in episode.decisions] == [1, 1, 1]
    ended = [rejection.reason for rejection in episode.result.rejections]
    assert ended == ["cancelled", "cancelled", "window_end"] and not episode.result.fills
