"""The guard before a real exchange: whatever is asked, bar after bar, on a market with jumps and gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.guard.guard import Guard
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order, OrderKind, OrderRequest
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.market import Market, MarketView
from simulator.market.timeframes import BAR_COLUMNS
from tests.standard_limits import guard_limits
from tests.team_scenes import COINS, synthetic

FIRST = 100
DECISIONS = 8
LIMITS = guard_limits(
    max_exposure=0.8,
    max_gross_exposure=1.5,
    max_net_exposure=1.2,
    max_orders=6,
    max_order_rate=30,
    rate_hours=24.0,
    max_drawdown=0.2,
    shutdown_drawdown=0.4,
    daily_loss=0.1,
    price_band=0.3,
    max_order_notional=7_000.0,
    max_symbol_notional=7_500.0,
)


@cache
def jumpy(seed: int, gaps: bool) -> Market:
    """Bars of 4 hours that jump by a few percent between one another, some of them absent."""
    market = synthetic()
    random = np.random.default_rng(seed)
    shape = market.close.shape
    moves = 0.03 * random.standard_t(3, shape)
    close = 100.0 * np.exp(np.cumsum(np.clip(moves, -0.25, 0.25), axis=0))
    opens = np.vstack([close[:1], close[:-1]]) * np.exp(0.01 * random.standard_normal(shape))
    arrays: dict[str, Any] = {
        "open": opens,
        "close": close,
        "high": np.maximum(opens, close) * 1.01,
        "low": np.minimum(opens, close) * 0.99,
        "volume": np.full(shape, 1e6),
        "half_spread": np.full(shape, 2e-4),
    }
    if gaps:
        absent = random.random(shape) < 0.15
        for name in BAR_COLUMNS:
            arrays[name] = np.where(absent, np.nan, arrays[name])
    return replace(market, **arrays, truth=None, funding={}, news=())


@dataclass(frozen=True)
class Ask:
    """What somebody asks for, in units that do not depend on the price."""

    symbol: str
    size: float
    kind: OrderKind
    at: float
    delay: int
    reduce_only: bool
    group: str
    bracket: bool

    def order(self, view: MarketView, equity: float, name: str) -> Order:
        price = view.last_close(self.symbol)
        sign = math.copysign(1.0, self.size)
        level = price * (1.0 + 0.05 * self.at)
        needed: dict[str, Any] = {
            "market": {},
            "limit": {"limit": level},
            "stop": {"trigger": level},
            "stop_limit": {"trigger": level, "limit": level},
            "take_profit": {"trigger": level},
            "trailing_stop": {"trail": 0.05},
        }[self.kind]
        if self.bracket:
            needed |= {"stop": price * (1.0 - 0.2 * sign), "target": price * (1.0 + 0.2 * sign)}
        return Order(
            self.symbol,
            self.size * max(equity, 1.0) / price,
            delay=self.delay,
            reduce_only=self.reduce_only,
            kind=self.kind,
            group=self.group,
            id=name,
            **needed,
        )


KINDS: list[OrderKind] = ["market", "market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop"]
ASKS = st.lists(
    st.lists(
        st.builds(
            Ask,
            st.sampled_from(COINS),
            st.one_of(st.floats(-3.0, 3.0), st.sampled_from([0.0, 1e9, -1e9, math.nan, math.inf])),
            st.sampled_from(KINDS),
            st.floats(-2.0, 2.0),
            st.integers(0, 3),
            st.booleans(),
            st.sampled_from(["", "", "g"]),
            st.booleans(),
        ),
        max_size=8,
    ),
    min_size=3,
    max_size=DECISIONS,
)


def gross(exposure: dict[str, float]) -> float:
    return math.fsum(map(abs, exposure.values()))


def submit(exchange: Exchange, requests: Sequence[OrderRequest]) -> None:
    for request in requests:
        exchange.submit(request)


def repriced(before: AccountView, after: AccountView, symbol: str) -> float:
    """|Exposure| that the position of before would have now."""
    return abs(before.positions[symbol]) * after.mark[symbol] / after.equity


@settings(max_examples=40, deadline=None)
@given(asks=ASKS, seed=st.integers(0, 9), gaps=st.booleans(), every=st.sampled_from([1, 2, 6]))
def test_whatever_is_asked_the_limits_hold(asks: list[list[Ask]], seed: int, gaps: bool, every: int) -> None:
    market = jumpy(seed, gaps)
    rules = dict.fromkeys(COINS, SymbolRules(lot=0.001))
    exchange = Exchange(market, FIRST, costs=Costs(0.0, 0.0), max_leverage=10.0, venue=Venue(rules=rules))
    guard = Guard(LIMITS)
    sent: list[int] = []
    shut = False
    bars: dict[str, int] = {}  # of the decisions
    for number, asked in enumerate(asks):
        view, before = market.view(exchange.index), exchange.account()
        bars[str(number)] = view.index
        orders = [one.order(view, before.equity, f"{number}/{place}") for place, one in enumerate(asked)]
        passed, clamps = guard.review(view, before, orders)
        assert "guard_error" not in [clamp.rule for clamp in clamps]
        refused = len(exchange.rejections)
        submit(exchange, [*guard.withdrawals(before), *passed])
        sent += [view.now] * len(passed)
        assert len(passed) <= LIMITS.max_orders
        assert sum(moment > view.now - 24 * 3_600_000 for moment in sent) <= LIMITS.max_order_rate
        for order in passed:
            worth = abs(order.quantity) * max(view.last_close(order.symbol), order.limit or 0.0, order.trigger or 0.0)
            held = abs(before.positions[order.symbol]) * before.mark[order.symbol]
            assert worth <= max(LIMITS.max_order_notional, held) * (1 + 1e-9) or order.reduce_only
        exchange.step(every)
        after = exchange.account()
        if after.equity <= 0.0 or after.liquidated:
            break
        # Prices may carry what was sent beyond a limit: by so much at most.
        drift = _drift(exchange, min((bars[one.id.partition("/")[0]] for one in before.pending), default=view.index))
        for symbol in COINS:
            most = min(LIMITS.max_exposure * drift, LIMITS.max_symbol_notional / after.equity * drift)
            assert abs(after.exposure[symbol]) <= max(most, repriced(before, after, symbol)) * (1 + 1e-6)
        whole = not np.isnan(market.close[view.index : exchange.index + 1]).any()
        unfilled = any(one.reason not in ("superseded", "cancelled") for one in exchange.rejections[refused:])
        if whole and not unfilled:  # a reduction that could not be made has given room to others
            held_now = math.fsum(repriced(before, after, symbol) for symbol in COINS)
            assert gross(after.exposure) <= max(LIMITS.max_gross_exposure * drift, held_now) * (1 + 1e-6)
        shut |= before.drawdown >= LIMITS.shutdown_drawdown
        if shut:
            for symbol in COINS:
                grown = abs(after.positions[symbol]) - abs(before.positions[symbol])
                assert grown <= 1e-9 and after.positions[symbol] * before.positions[symbol] >= 0.0
        if before.drawdown >= LIMITS.max_drawdown and before.equity > 0.0:
            for symbol in COINS:
                assert after.positions[symbol] * before.positions[symbol] >= -1e-9
                assert abs(after.positions[symbol]) <= abs(before.positions[symbol]) + 1e-9


def _drift(exchange: Exchange, begin: int) -> float:
    """How much larger an exposure that was decided on at bar `begin` or later can have become by prices alone, and by
    the equity that has fallen since."""
    market, end = exchange.market, exchange.index
    closes = [[market.view(bar).last_close(symbol) for symbol in COINS] for bar in range(begin, end + 1)]
    with np.errstate(invalid="ignore"):
        reached = np.nanmax(np.vstack([closes, market.high[begin : end + 1]]), axis=0)
    equity = exchange.equity_curve()[begin - FIRST :]
    return float((reached / np.min(closes, axis=0)).max() * equity.max() / equity[-1])


ATTACKS: dict[str, list[Ask]] = {
    "all in, each coin": [Ask(coin, 1e9, "market", 0.0, 0, False, "", False) for coin in COINS],
    "all in, short": [Ask(coin, -1e9, "market", 0.0, 0, False, "", False) for coin in COINS],
    "by resting orders": [Ask(coin, 9.0, "limit", 1.9, 0, False, "", False) for coin in COINS],
    "by stops that fire at once": [Ask(coin, 9.0, "stop", 0.1, 0, False, "", False) for coin in COINS],
    "in many small orders": [Ask(COINS[n % 3], 0.3, "market", 0.0, 0, False, "", False) for n in range(200)],
    "later": [Ask(COINS[n % 3], 0.7, "market", 0.0, n % 4, False, "", False) for n in range(6)],
    "as one group": [Ask(COINS[n % 3], 0.9, "limit", 1.9, 0, False, "g", False) for n in range(6)],
    "churning": [Ask(COINS[0], 5.0 * (-1) ** n, "market", 0.0, n % 2, False, "", False) for n in range(6)],
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_attack_that_has_the_models_stays_within_the_limits(attack: str, seed: int) -> None:
    """The models say whatever the attacker wants, at every bar; what reaches the exchange is within the limits."""
    market, guard = jumpy(seed, gaps=False), Guard(LIMITS)
    exchange = Exchange(market, FIRST, max_leverage=10.0)
    sent: list[int] = []
    most, lowest = 0.0, exchange.initial_cash
    for number in range(60):
        view, account = market.view(exchange.index), exchange.account()
        lowest = min(lowest, account.equity)
        orders = [one.order(view, account.equity, f"{number}/{place}") for place, one in enumerate(ATTACKS[attack])]
        passed, _ = guard.review(view, account, orders)
        sent += [view.now] * len(passed)
        assert sum(moment > view.now - 24 * 3_600_000 for moment in sent) <= LIMITS.max_order_rate
        submit(exchange, [*guard.withdrawals(account), *passed])
        exchange.step()
        drift = _drift(exchange, FIRST if account.pending else view.index)
        held = {symbol: repriced(account, exchange.account(), symbol) for symbol in COINS}
        now = exchange.account().exposure
        assert gross(now) <= max(LIMITS.max_gross_exposure * drift, gross(held)) * (1 + 1e-6)
        most = max(most, gross(now))
    assert most > 0.5, "the attack got something through"
    # Past the shutdown all is closed at the next open: the worst bar of these markets takes no more than this.
    assert lowest > exchange.initial_cash * (1.0 - LIMITS.shutdown_drawdown) * 0.6


def test_a_shutdown_empties_the_account_and_keeps_it_so() -> None:
    market = jumpy(0, gaps=False)
    fall = np.where(np.arange(len(market))[:, None] > FIRST + 3, 0.4, 1.0)
    arrays: dict[str, Any] = {name: getattr(market, name) * fall for name in ("open", "high", "low", "close")}
    crash = replace(market, **arrays)
    exchange, guard = Exchange(crash, FIRST, max_leverage=2.0), Guard(replace(LIMITS, daily_loss=1.0))
    for number in range(12):
        view, account = crash.view(exchange.index), exchange.account()
        orders = [
            Ask(coin, 0.5, "market", 0.0, 0, False, "", False).order(view, 1e4, f"{number}{coin}") for coin in COINS
        ]
        resting = [
            Ask(coin, 0.3, "limit", -1.9, 0, False, "", False).order(view, 1e4, f"r{number}{coin}") for coin in COINS
        ]
        passed, clamps = guard.review(view, account, [*orders, *resting] if number < 3 else orders)
        submit(exchange, [*guard.withdrawals(account), *passed])
        exchange.step()
        if number >= 5:
            assert not any(exchange.account().positions.values()) and exchange.account().pending == ()
            assert {clamp.rule for clamp in clamps} == {"shutdown"}
    assert guard.state()["shut"]
