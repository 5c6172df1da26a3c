"""Simulated scenarios: the same rules as the exchange, many paths at once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window
from simulator.backtest.scenarios import recorded_path, simulate_scenarios
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.orders import Order
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths
from tests.examples import tried
from tests.markets import HOUR, random_market


def market_of(seed: int, bars: int = 40, symbols: tuple[str, ...] = ("A", "B"), absent: float = 0.1) -> Market:
    """Random bars with funding on the hour."""
    return random_market(np.random.default_rng(seed), bars, symbols, 0.03, absent=absent, begins=True, settled=HOUR)


def arrays(path: PricePaths) -> dict[str, FloatArray]:
    """Those of every path."""
    named = {item.name: getattr(path, item.name) for item in fields(path)}
    return {name: value for name, value in named.items() if isinstance(value, np.ndarray) and value.ndim == 3}


def many(path: PricePaths, paths: int) -> PricePaths:
    given: dict[str, Any] = {name: np.repeat(value, paths, axis=0) for name, value in arrays(path).items()}
    return replace(path, **given)


def random_orders(rng: np.random.Generator, prices: dict[str, float], scale: float) -> list[Order]:
    orders = []
    for _ in range(int(rng.integers(0, 5))):
        symbol = str(rng.choice(["A", "B", "NONE"]))
        price = prices.get(symbol, 1.0)
        quantity = float(rng.normal(0.0, scale)) / price * float(rng.integers(0, 5) > 0)
        side = 1.0 if quantity > 0.0 else -1.0
        stop = price * (1.0 - side * float(rng.uniform(-0.01, 0.05))) if rng.random() < 0.5 else None
        target = price * (1.0 + side * float(rng.uniform(-0.01, 0.05))) if rng.random() < 0.5 else None
        orders.append(Order(symbol, quantity, stop, target, int(rng.integers(0, 6)), bool(rng.random() < 0.2)))
    return orders


@tried(80)
@given(seed=st.integers(0, 2**32 - 1), leverage=st.sampled_from([0.5, 1.0, 5.0]))
def test_the_recorded_path_gives_what_the_exchange_gives(seed: int, leverage: float) -> None:
    """From any account with positions, brackets and pending orders, bit-equal to simply going on."""
    rng = np.random.default_rng(seed)
    market = market_of(seed)
    costs = Costs(0.001)
    exchange = Exchange(market, 0, 1_000.0, costs, leverage)
    for _ in range(5):
        for order in random_orders(rng, exchange.account().mark, 800.0):
            exchange.submit(order)
        exchange.step(4)
    account = exchange.account()
    if not account.equity > 0.0:
        return
    orders = random_orders(rng, account.mark, 800.0)
    before = exchange.paid()
    outcome = simulate_scenarios(
        recorded_path(market, exchange.index, 15), account, orders, market.symbols, costs, leverage
    )
    for order in orders:
        exchange.submit(order)
    start = exchange.index
    exchange.step(15)
    curve = exchange.equity_curve()
    assert outcome.net_return[0] == curve[-1] / account.equity - 1.0
    for name in ("fees", "spread", "funding"):
        paid = exchange.paid()[name] - before[name]
        assert getattr(outcome, name)[0] == pytest.approx(paid / account.equity, rel=1e-9, abs=1e-12)
    for column, symbol in enumerate(market.symbols):
        fills = [f for f in exchange.fills if f.bar > start and f.symbol == symbol and f.reason == "order"]
        if fills:
            arrival = account.mark[symbol]
            cost = sum(f.quantity * (f.price - arrival) for f in fills)
            expected = cost / (arrival * sum(abs(f.quantity) for f in fills))
            assert outcome.shortfall[0, column] == pytest.approx(expected, rel=1e-6, abs=1e-9)
        else:
            assert np.isnan(outcome.shortfall[0, column])


def test_gross_is_net_without_the_costs() -> None:
    """Long 1 at 100 with a spread of 2 and a fee of 1 %, funding 1 % of 110, from 100 to 110, on 1,000."""
    bars = np.array([100.0, 110.0]).reshape(1, 2, 1)
    paths = PricePaths(bars, bars, bars, bars, np.full((1, 2, 1), 0.01), np.array([0.0, 0.01]).reshape(1, 2, 1))
    market = market_of(0, symbols=("A",))
    account = Exchange(market, 5, 1_000.0).account()
    account = replace(account, mark={"A": 100.0})
    outcome = simulate_scenarios(paths, account, [Order("A", 1.0)], ("A",), Costs(0.01))
    assert outcome.spread[0] == pytest.approx(0.001)
    assert outcome.fees[0] == pytest.approx(101 * 0.01 / 1_000)
    assert outcome.funding[0] == pytest.approx(110 * 0.01 / 1_000)
    assert outcome.net_return[0] == pytest.approx(0.010 - 0.001 - 0.00101 - 0.0011)
    assert outcome.shortfall[0, 0] == pytest.approx(0.01)


def test_what_does_not_fit_is_refused() -> None:
    market = market_of(5)
    account = BacktestRun(market, Window(0, 20)).account()
    path = recorded_path(market, 0, 3)
    with pytest.raises(DataError, match="same symbols"):
        simulate_scenarios(path, account, [], ("A",))
    with pytest.raises(DataError, match="equity"):
        simulate_scenarios(path, replace(account, equity=0.0), [], market.symbols)
    with pytest.raises(DataError, match="max_leverage"):
        simulate_scenarios(path, account, [], market.symbols, max_leverage=0.0)
    with pytest.raises(DataError, match="has no 30 bars after bar 20"):
        recorded_path(market, 20, 30)
    with pytest.raises(DataError, match="half_spread"):
        simulate_scenarios(replace(path, half_spread=path.half_spread - 1.0), account, [], market.symbols)
    with pytest.raises(DataError, match=r"PricePaths\.low"):
        replace(path, low=path.low[:, :1])
