"""Nothing vanishes: what was asked for is traded, or a record says how much of it was not, and why.

Random markets with gaps, a coin that is never listed again, latency, lots, thin volume, and every kind of request.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backtest.from_signals import run_signals
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target, oco
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.kernel import layout as at
from simulator.market.market import Market
from tests.examples import tried
from tests.markets import bars_of, random_market, without_places
from tests.simulator.exchange.test_order_laws import CASH, random_order

BARS = 30


def thin_market(seed: int, delisted: bool) -> Market:
    """Volumes of about what an account of CASH trades in a few bars; the last coin may end half way."""
    rng = np.random.default_rng(seed)
    market = random_market(rng, BARS, ("A", "B", "C"), absent=0.2, rate=0.0)
    market = replace(market, volume=market.volume * rng.lognormal(5.0, 1.5, market.close.shape))
    return without_places(market, (slice(BARS // 2, None), 2)) if delisted else market


def random_request(rng: np.random.Generator, exchange: Exchange, number: int) -> list[OrderRequest]:
    """One request of any kind, with an id of its own; some name an earlier one."""
    symbol = str(rng.choice(exchange.market.symbols))
    dice = rng.integers(0, 11)
    if dice == 0:
        exposure = round(float(rng.uniform(-1.0, 1.0)), 2) + 1e-6 * number
        return [Target(symbol, exposure, delay=int(rng.integers(0, 3)))]
    if dice == 1:
        return [Cancel(f"o{int(rng.integers(0, number + 1))}")]
    if dice == 2:
        return [Order(symbol, 0.0)]
    if dice == 3:
        pair = [random_order(rng, exchange, f"o{number}{letter}", 0.4, 1) for letter in "ab"]
        return [*oco(*pair, group=f"g{number}")]
    return [random_order(rng, exchange, f"o{number}", 0.4, 1)]


@tried(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    latency=st.integers(0, 2),
    lot=st.sampled_from([0.0, 0.1]),
    participation=st.sampled_from([None, 0.1]),
    leverage=st.sampled_from([1.0, 3.0]),
    delisted=st.booleans(),
)
def test_every_order_is_filled_or_recorded_to_the_last_unit(
    seed: int, latency: int, lot: float, participation: float | None, leverage: float, delisted: bool
) -> None:
    rng = np.random.default_rng(seed)
    market = thin_market(seed, delisted)
    rules = {symbol: SymbolRules(lot=lot, min_notional=20.0 * (lot > 0.0)) for symbol in market.symbols}
    costs = Costs(0.001, latency_bars=latency, participation=participation)
    exchange = Exchange(market, 0, CASH, costs, leverage, venue=Venue(rules=rules))
    submitted: list[Order] = []
    number = 0
    for _ in range(BARS):
        for _ in range(int(rng.integers(0, 3))):
            number += 1
            for request in random_request(rng, exchange, number):
                exchange.submit(request)
                if isinstance(request, Order) and request.quantity != 0.0:
                    submitted.append(request)
        exchange.step()
    assert exchange.account().pending == () and np.isnan(exchange._state.positions[0, :, at.WANTED]).all()

    asked, accounted = defaultdict[str, float](float), defaultdict[str, float](float)
    for order in submitted:
        asked[order.id] += order.quantity
    for fill in exchange.fills:
        accounted[fill.order] += fill.quantity
    final = Counter[str]()
    for rejection in exchange.rejections:
        request = rejection.order
        if isinstance(request, Order) and request.quantity != 0.0:
            accounted[request.id] += request.quantity if rejection.quantity is None else rejection.quantity
            final[request.id] += rejection.reason in ("window_end", "cancelled", "expired", "superseded")
    for name, quantity in asked.items():
        assert accounted[name] == pytest.approx(quantity, abs=1e-6), name
        assert final[name] <= sum(order.id == name for order in submitted)


@tried(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    latency=st.integers(0, 2),
    lot=st.sampled_from([0.0, 0.1]),
    participation=st.sampled_from([None, 0.1]),
    fee=st.sampled_from([0.0, 0.002]),
    delisted=st.booleans(),
)
def test_every_target_is_reached_after_the_costs_or_recorded_once(
    seed: int, latency: int, lot: float, participation: float | None, fee: float, delisted: bool
) -> None:
    rng = np.random.default_rng(seed)
    market = thin_market(seed, delisted)
    venue = Venue(rules={symbol: SymbolRules(lot=lot) for symbol in market.symbols})
    costs = Costs(fee, latency_bars=latency, participation=participation, borrow_rate=0.0)
    exchange = Exchange(market, 0, CASH, costs, 2.0, venue=venue)
    open_targets: dict[str, tuple[int, Target]] = {}  # the newest of each symbol, with the bar from which on it acts
    submitted: list[Target] = []
    reached: list[Target] = []
    for _ in range(BARS):
        for symbol in market.symbols:
            if rng.random() < 0.25:
                exposure = float(rng.choice([0.0, 0.3, -0.3, 0.5])) + 1e-6 * (len(submitted) + 1)
                target = Target(symbol, exposure, delay=int(rng.integers(0, 2)))
                submitted.append(target)
                exchange.submit(target)
                if not any(one.order == target for one in exchange.rejections):
                    open_targets[symbol] = exchange.index + 1 + target.delay + latency, target
        if not exchange.step():
            continue
        account, bar = exchange.account(), exchange.index
        opens = np.where(market.present[bar], market.open[bar], list(account.mark.values()))
        held = np.array(list(account.positions.values()))
        worth = np.where(held == 0.0, 0.0, held * np.nan_to_num(opens))
        equity = account.cash + float(worth.sum())
        for column, symbol in enumerate(market.symbols):
            active, target = open_targets.get(symbol, (BARS, Target(symbol, 0.0)))
            if active > bar or not market.present[bar, column]:
                continue
            if not math.isnan(exchange._state.positions[0, column, at.WANTED]):
                assert participation is not None, "only the volume may keep it waiting"
                continue
            # Where the volume keeps other coins waiting, their costs are not paid yet.
            slack = lot * float(opens[column]) / equity * 1.01 + 1e-9
            slack += 0.0 if participation is None else 0.03 * abs(target.exposure)
            del open_targets[symbol]
            if not any(one.order == replace(target, delay=0) for one in exchange.rejections):
                assert abs(worth[column] / equity - target.exposure) <= slack
                reached.append(target)
    named = Counter(one.order.exposure for one in exchange.rejections if isinstance(one.order, Target))
    for target in submitted:
        assert named[target.exposure] == (0 if target in reached else 1), target
    for one in exchange.rejections:
        assert one.reason in ("window_end", "superseded", "no_price")
        if one.quantity is not None:
            assert one.quantity != 0.0 and "not reached" in one.detail


def steady(coins: int = 1, volume: float = 1e9, half_spread: float = 0.0) -> Market:
    return bars_of(np.full((6, coins), 100.0), volume=volume, half_spread=half_spread)


def test_what_the_margin_keeps_back_of_a_target_is_recorded() -> None:
    exchange = Exchange(steady(2), 0, CASH, Costs(0.001), 1.0)
    exchange.submit(Target("A", 0.8))
    exchange.step()
    exchange.submit(Target("B", 0.8))
    exchange.step()
    [record] = exchange.rejections
    assert record.order == Target("B", 0.8) and record.reason == "leverage_cap"
    assert record.quantity is not None and record.quantity == pytest.approx(60.0, rel=0.01)


def test_signals_that_wait_at_the_end_are_recorded() -> None:
    run = run_signals(steady(volume=100.0), np.array([1.0, *[math.nan] * 5]), costs=Costs(0.0, participation=0.1))
    [record] = run.rejections
    assert (record.reason, record.order, record.bar) == ("window_end", Target("A", 1.0), 5)
    assert record.quantity == pytest.approx(50.0)
    assert run_signals(steady(), np.array([1.0, *[math.nan] * 5]), costs=Costs(0.0)).rejections == []
