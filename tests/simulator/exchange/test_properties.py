"""Laws of the books, on random markets with gaps, random orders, stops, targets, funding and leverage.

Everything is recomputed here from the records alone (fills and settlements), with arithmetic of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import Fill, FundingPayment
from simulator.exchange.orders import Order
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from tests.examples import tried

HOUR = 3_600_000
CASH = 10_000.0
SYMBOLS = ("A", "B", "C")


def random_market(rng: np.random.Generator, bars: int, count: int, step: float, absent: float) -> Market:
    """Random walks with gaps between close and open, wicks, absent bars, spread, and settlements at any time."""
    moves = rng.normal(0.0, step, (bars, count))
    gaps = rng.normal(0.0, step / 2, (bars, count))
    close = 100.0 * np.exp(np.cumsum(moves + gaps, axis=0))
    first = close * np.exp(-moves)
    high = np.maximum(first, close) * np.exp(np.abs(rng.normal(0.0, step / 2, (bars, count))))
    low = np.minimum(first, close) * np.exp(-np.abs(rng.normal(0.0, step / 2, (bars, count))))
    volume = np.ones((bars, count))
    half_spread = rng.uniform(0.0, 0.01, (bars, count))
    gone = rng.random((bars, count)) < absent
    for array in (first, high, low, close, volume, half_spread):
        array[gone] = np.nan
    funding = {
        symbol: tuple(
            FundingEvent(int(time), float(rng.normal(0.0, 0.01)))
            for time in sorted(rng.choice(np.arange(0, bars * 4), bars, replace=False) * (HOUR // 4))
        )
        for symbol in SYMBOLS[:count]
    }
    return Market(
        symbols=SYMBOLS[:count],
        timeframe="1h",
        open_time=np.arange(bars, dtype=np.int64) * HOUR,
        open=first,
        high=high,
        low=low,
        close=close,
        volume=volume,
        half_spread=half_spread,
        funding=funding,
    )


def random_order(rng: np.random.Generator, exchange: Exchange) -> Order:
    account = exchange.account()
    symbol = str(rng.choice(exchange.market.symbols)) if rng.random() < 0.95 else "UNKNOWN"
    price = account.mark.get(symbol, 100.0)
    quantity = float(rng.normal(0.0, 1.5)) * CASH / (price if price > 0.0 else 100.0)
    if rng.random() < 0.2 and symbol in account.positions:
        quantity = -account.positions[symbol]  # an exact close, or zero
    side = 1.0 if account.positions.get(symbol, 0.0) + quantity > 0.0 else -1.0
    stop = price * (1.0 - side * float(rng.normal(0.02, 0.02))) if rng.random() < 0.5 else None
    target = price * (1.0 + side * float(rng.normal(0.02, 0.02))) if rng.random() < 0.5 else None
    return Order(symbol, quantity, stop, target, int(rng.integers(0, 4)), bool(rng.random() < 0.2))


def random_run(seed: int, count: int, leverage: float, step: float) -> tuple[Exchange, list[dict[str, float]]]:
    """A finished run, and the cash and quantities that the account showed at each bar."""
    rng = np.random.default_rng(seed)
    market = random_market(rng, int(rng.integers(3, 40)), count, step, absent=0.15)
    costs = Costs(float(rng.choice([0.0, 0.0005, 0.01])), float(rng.choice([0.0, 1.0, 2.0])), borrow_rate=0.0)
    exchange = Exchange(market, 0, CASH, costs, leverage)
    seen = [{"cash": CASH, **dict.fromkeys(market.symbols, 0.0)}]
    for _ in range(len(market)):
        for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.6 else 0):
            exchange.submit(random_order(rng, exchange))
        if exchange.step():
            account = exchange.account()
            seen.append({"cash": account.cash, **account.positions})
    return exchange, seen


def marks_at(market: Market, bar: int) -> dict[str, float]:
    marks = {}
    for column, symbol in enumerate(market.symbols):
        known = [c for c in market.close[: bar + 1, column].tolist() if c == c]
        marks[symbol] = known[-1] if known else 0.0
    return marks


def profit(fills: list[tuple[float, float]], mark: float) -> float:
    """Realised plus unrealised pnl of one symbol by matching first in, first out. Fills are (quantity, price)."""
    lots: list[list[float]] = []
    earned = 0.0
    for quantity, price in fills:
        while lots and quantity * lots[0][0] < 0.0:
            matched = min(abs(quantity), abs(lots[0][0]))
            sign = 1.0 if lots[0][0] > 0.0 else -1.0
            earned += sign * matched * (price - lots[0][1])
            lots[0][0] -= sign * matched
            quantity += sign * matched
            if lots[0][0] == 0.0:
                lots.pop(0)
        if quantity != 0.0:
            lots.append([quantity, price])
    return earned + sum(quantity * (mark - price) for quantity, price in lots)


@tried(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 3),
    leverage=st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    step=st.sampled_from([0.001, 0.02, 0.2]),
)
def test_what_a_run_records_obeys_the_laws_of_the_books(seed: int, count: int, leverage: float, step: float) -> None:
    exchange, seen = random_run(seed, count, leverage, step)
    check_that_books_balance_at_every_bar(exchange, seen)
    check_that_costs_are_charged_once_and_prices_stay_in_the_bar(exchange)
    check_that_no_increase_exceeds_the_leverage_cap(exchange)


def check_that_books_balance_at_every_bar(exchange: Exchange, seen: list[dict[str, float]]) -> None:
    market = exchange.market
    curve = exchange.equity_curve()
    assert len(curve) == len(market) == len(seen)
    for bar in range(len(market)):
        past = [event for event in exchange.ledger if event.bar <= bar]
        fills = [event for event in past if isinstance(event, Fill)]
        funding = sum(event.amount for event in past if isinstance(event, FundingPayment))
        fees = sum(fill.fee for fill in fills)
        marks = marks_at(market, bar)

        cash = CASH - sum(f.quantity * f.price for f in fills) - fees - funding
        held = {s: sum(f.quantity for f in fills if f.symbol == s) for s in market.symbols}
        assert seen[bar]["cash"] == pytest.approx(cash, abs=1e-9 * CASH)
        for symbol in market.symbols:
            assert seen[bar][symbol] == pytest.approx(held[symbol], abs=1e-9)

        equity = seen[bar]["cash"] + sum(seen[bar][s] * marks[s] for s in market.symbols)
        assert curve[bar] == pytest.approx(equity, abs=1e-9 * CASH)
        earned = sum(profit([(f.quantity, f.price) for f in fills if f.symbol == s], marks[s]) for s in market.symbols)
        assert curve[bar] == pytest.approx(CASH + earned - fees - funding, abs=1e-9 * CASH)


def check_that_costs_are_charged_once_and_prices_stay_in_the_bar(exchange: Exchange) -> None:
    market, costs = exchange.market, exchange.costs
    for fill in exchange.fills:
        column = market.column(fill.symbol)
        half = np.nan_to_num(market.half_spread[fill.bar, column]) * costs.spread_multiplier
        middle = fill.price / (1.0 + half if fill.quantity > 0.0 else 1.0 - half)
        assert fill.fee == pytest.approx(abs(fill.quantity) * fill.price * costs.taker_fee, rel=1e-12, abs=1e-300)
        assert fill.spread_cost == pytest.approx(abs(fill.quantity) * middle * half, rel=1e-12, abs=1e-300)
        first, high, low, close = (a[fill.bar, column] for a in (market.open, market.high, market.low, market.close))
        if fill.reason == "order":
            assert middle == pytest.approx(first, rel=1e-12)
        elif fill.reason == "liquidation" and close != close:
            assert middle == pytest.approx(marks_at(market, fill.bar)[fill.symbol], rel=1e-12)
        else:
            assert low * (1 - 1e-12) <= middle <= high * (1 + 1e-12)
            assert close == close
    paid = exchange.paid()
    assert paid["fees"] == pytest.approx(sum(fill.fee for fill in exchange.fills))
    assert paid["spread"] == pytest.approx(sum(fill.spread_cost for fill in exchange.fills))


def check_that_no_increase_exceeds_the_leverage_cap(exchange: Exchange) -> None:
    market = exchange.market
    held = dict.fromkeys(market.symbols, 0.0)
    cash = CASH
    for event in exchange.ledger:
        if not isinstance(event, Fill):
            cash -= event.amount
            continue
        before = abs(held[event.symbol])
        turned = held[event.symbol] * (held[event.symbol] + event.quantity) < -1e-9
        held[event.symbol] += event.quantity
        cash -= event.quantity * event.price + event.fee
        if event.reason == "order" and (abs(held[event.symbol]) > before or turned):
            earlier = marks_at(market, event.bar - 1)
            opens = dict(zip(market.symbols, market.open[event.bar].tolist(), strict=True))
            price = {s: opens[s] if opens[s] == opens[s] else earlier[s] for s in market.symbols}
            gross = sum(abs(held[s]) * price[s] for s in market.symbols)
            equity = cash + sum(held[s] * price[s] for s in market.symbols)
            assert gross <= exchange.max_leverage * equity + 1e-9 * CASH


@tried(100)
@given(seed=st.integers(0, 2**32 - 1), bar=st.integers(0, 8), delay=st.integers(0, 4), sign=st.sampled_from([-1, 1]))
def test_no_fill_in_the_bar_of_the_decision(seed: int, bar: int, delay: int, sign: int) -> None:
    market = random_market(np.random.default_rng(seed), 20, 1, 0.02, absent=0.2)
    exchange = Exchange(market, bar, CASH)
    exchange.submit(Order("A", sign * 10.0, delay=delay))
    exchange.step(20)
    present = [b for b in range(bar + 1 + delay, 20) if market.present[b, 0]]
    if np.isnan(market.close[: bar + 1, 0]).all():
        assert [r.reason for r in exchange.rejections] == ["no_price"]
    else:
        assert [fill.bar for fill in exchange.fills] == present[:1]


@tried(60)
@given(seed=st.integers(0, 2**32 - 1), distance=st.floats(0.001, 0.05), sign=st.sampled_from([-1, 1]))
def test_a_mirrored_market_mirrors_the_stops_and_targets(seed: int, distance: float, sign: int) -> None:
    """Around a price of 100 the mirror of a price p is 200 - p: a short there is a long here, brackets included."""
    market = replace(random_market(np.random.default_rng(seed), 12, 1, 0.02, absent=0.0), funding={})
    mirror = Market(
        symbols=("A",),
        timeframe="1h",
        open_time=market.open_time,
        open=200.0 - market.open,
        high=200.0 - market.low,
        low=200.0 - market.high,
        close=200.0 - market.close,
        volume=market.volume,
        half_spread=market.half_spread,
    )
    runs = []
    for bars, side in ((market, sign), (mirror, -sign)):
        exchange = Exchange(bars, 0, CASH, Costs(0.0, 0.0, borrow_rate=0.0))
        price = float(bars.close[0, 0])
        reach = distance * 100.0 * side
        exchange.submit(Order("A", side * 5.0, price - reach, price + reach))
        exchange.step(12)
        runs.append(([(f.bar, f.reason) for f in exchange.fills], exchange.equity_curve()))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_allclose(runs[0][1], runs[1][1], atol=1e-9 * CASH)
