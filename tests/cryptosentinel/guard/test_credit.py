"""What the guard counts of open orders is at least what the exchange has really accepted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from cryptosentinel.guard.pending import OrderSchedule
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order, OrderKind
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import MarketView
from tests.cryptosentinel.guard.hostile import FIRST, jumpy
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, synthetic

A, B, _ = COINS
LIMITS = guard_limits(max_exposure=1.0, max_gross_exposure=1.0)
FREE = Costs(0.0, 0.0, borrow_rate=0.0, missing_funding_rate=0.0)
KINDS = ("market", "market", "market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop")


@pytest.mark.parametrize("kind", ["market", "limit"])
def test_a_market_order_that_reuses_an_id_in_use_makes_no_room(kind: OrderKind) -> None:
    """The exchange refuses it, so the order that waits stays: all of the gross exposure is taken."""
    market = synthetic()
    exchange, guard = Exchange(market, FIRST, costs=FREE, max_leverage=10.0), Guard(LIMITS)
    close = {symbol: market.view(FIRST).last_close(symbol) for symbol in COINS}
    level: dict[str, Any] = {"limit": close[A] * 0.99} if kind == "limit" else {}
    for requests in (
        [Order(A, 1e4 / close[A], delay=3, id="x", kind=kind, **level)],
        [Order(A, 1e-3 / close[A], id="x"), Order(B, 1e4 / close[B])],
    ):
        view, account = market.view(exchange.index), exchange.account()
        for order in guard.review(view, account, requests)[0]:
            exchange.submit(order)
        exchange.step()
    assert [rejection.reason for rejection in exchange.rejections] == ["duplicate_id"]
    reach = OrderSchedule(market.view(exchange.index), exchange.account()).reaches()
    assert math.fsum(one.largest for one in reach.values()) <= 1.05, "what moved since then included"


def hostile_order(rng: np.random.Generator, view: MarketView, exchange: Exchange) -> Order:
    """An order of any kind, with an id that is free, in use, or one that the exchange may give itself."""
    account = exchange.account()
    symbol = COINS[int(rng.integers(len(COINS)))] if rng.random() < 0.95 else "UNKNOWN"
    price = view.last_close(symbol) if symbol in COINS else 100.0
    kind: Any = KINDS[int(rng.integers(len(KINDS)))]
    size = float(rng.choice([0.0, 1e-6, 0.1, 0.5, 1.0, -0.1, -0.5, -1.0, math.nan]))
    quantity = size * account.equity / price
    if rng.random() < 0.3 and symbol in account.positions:
        quantity = -account.positions[symbol]
    level = price * (1.0 + float(rng.normal(0.0, 0.05)))
    names = {"limit": ("limit",), "stop_limit": ("limit", "trigger"), "trailing_stop": (), "market": ()}
    prices: dict[str, Any] = dict.fromkeys(names.get(kind, ("trigger",)), level)
    prices |= {"trail": 0.05} if kind == "trailing_stop" else {}
    if rng.random() < 0.3:
        prices |= {"stop": price * float(rng.uniform(0.9, 1.1)), "target": price * float(rng.uniform(0.9, 1.1))}
    waiting = [order.id for order in account.pending]
    chosen = ["", "x", "y", f"#{int(rng.integers(12))}", *waiting]
    return Order(
        symbol, quantity, delay=int(rng.choice([0, 0, 1, 3])), reduce_only=bool(rng.random() < 0.2), kind=kind,
        group=str(rng.choice(["", "", "g"])), id=str(rng.choice(chosen)), **prices,
    )  # fmt: skip


@tried(300)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_guard_counts_at_least_what_the_exchange_accepted(seed: int) -> None:
    """Duplicate ids, refused brackets and sizes, thin volume, late arrival, groups, orders that only reduce."""
    rng = np.random.default_rng(seed)
    market = jumpy(int(rng.integers(4)), bool(rng.random() < 0.5))
    rules = {} if rng.random() < 0.5 else dict.fromkeys(COINS, SymbolRules(lot=0.01, min_notional=500.0))
    costs = replace(
        FREE, participation=[None, 0.02][int(rng.integers(2))], latency_bars=int(rng.integers(2)),
        latency_ms=int(rng.choice([0, 250])),
    )  # fmt: skip
    exchange = Exchange(market, FIRST, costs=costs, max_leverage=3.0, venue=Venue(rules=rules))
    guard = Guard(guard_limits(max_exposure=0.8, max_gross_exposure=1.5))
    for _ in range(6):
        view, account = market.view(exchange.index), exchange.account()
        if account.liquidated or account.equity <= 0.0:
            return
        orders = [hostile_order(rng, view, exchange) for _ in range(int(rng.integers(1, 6)))]
        passed, clamps = guard.review(view, account, orders)
        assert not [clamp for clamp in clamps if clamp.rule == "guard_error"]
        counted = OrderSchedule(view, account)
        for order in passed:
            counted.add(order)
            exchange.submit(order)
        for symbol, real in OrderSchedule(view, exchange.account()).reaches().items():
            reach = counted.reaches()[symbol]
            assert reach.low <= real.low + 1e-9 and reach.high >= real.high - 1e-9, (symbol, reach, real)
        exchange.step()
