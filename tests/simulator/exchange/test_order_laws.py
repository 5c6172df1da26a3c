"""Laws that random requests of every kind must obey, recomputed from the records alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import BorrowPayment, Fill, FundingPayment, InsurancePayment, LiquidationFee
from simulator.exchange.orders import Cancel, Order, Target, oco
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.events import FundingEvent
from simulator.market.market import Market
from tests.examples import tried

HOUR = 3_600_000
CASH = 10_000.0
SYMBOLS = ("A", "B", "C")
KINDS = ("market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop")
LIQUIDATION_FEE = 0.003


def random_market(rng: np.random.Generator, step: float) -> Market:
    """Random walks of three symbols with gaps, wicks, absent bars, funding and thin volume."""
    shape = (int(rng.integers(5, 40)), len(SYMBOLS))
    moves, gaps = rng.normal(0.0, step, shape), rng.normal(0.0, step / 2, shape)
    close = 100.0 * np.exp(np.cumsum(moves + gaps, axis=0))
    first = close * np.exp(-moves)
    high = np.maximum(first, close) * np.exp(np.abs(rng.normal(0.0, step, shape)))
    low = np.minimum(first, close) * np.exp(-np.abs(rng.normal(0.0, step, shape)))
    volume, half_spread = rng.uniform(0.0, 1_000.0, shape), rng.uniform(0.0, 0.005, shape)
    gone = rng.random(shape) < 0.1
    gone[0] = False
    for array in (first, high, low, close, volume, half_spread):
        array[gone] = np.nan
    funding = {
        symbol: tuple(FundingEvent(hour * HOUR, float(rng.normal(0.0, 0.002))) for hour in range(1, shape[0], 4))
        for symbol in SYMBOLS
    }
    times = np.arange(shape[0], dtype=np.int64) * HOUR
    return Market(SYMBOLS, "1h", times, first, high, low, close, volume, half_spread, funding)


def random_order(rng: np.random.Generator, exchange: Exchange, name: str) -> Order:
    symbol, kind = str(rng.choice(SYMBOLS)), str(rng.choice(KINDS))
    price = exchange.account().mark[symbol]
    held = exchange.account().positions[symbol]
    quantity = -held if held != 0.0 and rng.random() < 0.3 else float(rng.normal(0.0, 1.0)) * CASH / price
    near = [price * math.exp(float(rng.normal(0.0, 0.02))) for _ in range(2)]
    fields: dict[str, Any] = {}
    if kind in ("limit", "stop_limit"):
        fields["limit"] = near[0]
        fields["in_force"] = str(rng.choice(["gtc", "gtc", "ioc", "fok", "post_only"]))
    if kind in ("stop", "stop_limit", "take_profit"):
        fields["trigger"] = near[1]
    if kind == "trailing_stop":
        fields["trail"] = float(rng.uniform(0.005, 0.1))
    level = fields.get("limit", fields.get("trigger", price))
    side = 1.0 if held + quantity > 0.0 else -1.0
    if rng.random() < 0.3:
        fields |= {"stop": level * (1.0 - side * 0.03), "target": level * (1.0 + side * 0.03)}
    if rng.random() < 0.2:
        fields["hold_bars"] = int(rng.integers(1, 5))
    if rng.random() < 0.3:
        fields["expire_bars"] = int(rng.integers(1, 5))
    return Order(
        symbol, quantity, delay=int(rng.integers(0, 3)), reduce_only=bool(rng.random() < 0.2), id=name,
        kind=kind, **fields,  # type: ignore[arg-type]  # keywords by chance
    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    exchange: Exchange
    orders: dict[str, Order]  # by id, as submitted
    limits_kept: list[tuple[Fill, float]]  # fills with the limit that their order had then


def random_run(
    seed: int,
    step: float,
    leverage: float,
    symbols: tuple[str, ...] = SYMBOLS,
) -> Run:
    """A run with requests of every kind on cross, isolated and spot symbols.

    `symbols` is their order in the market.
    """
    rng = np.random.default_rng(seed)
    tiers = (MarginTier(0.0, 0.01, 20.0), MarginTier(15_000.0, 0.05, 5.0))
    venue = Venue(
        {
            "A": SymbolRules(tiers=tiers, liquidation_fee=LIQUIDATION_FEE),
            "B": SymbolRules(tiers=tiers, liquidation_fee=LIQUIDATION_FEE),
            "C": SymbolRules(kind="spot"),
        },
        isolated={"B": 4.0} if rng.random() < 0.5 else {},
    )
    costs = Costs(
        taker_fee=0.001, maker_fee=float(rng.choice([-0.0005, 0.0002])), participation=float(rng.choice([0.02, 0.2])),
        impact=float(rng.choice([0.0, 1.0])), latency_bars=int(rng.integers(0, 2)), borrow_rate=10.0,
    )  # fmt: skip
    market = random_market(rng, step).select(symbols)
    exchange = Exchange(market, 0, CASH, costs, leverage, venue=venue)
    orders: dict[str, Order] = {}
    limits: dict[str, float] = {}
    kept: list[tuple[Fill, float]] = []
    for bar in range(len(market) - 1):
        for number in range(int(rng.integers(0, 4))):
            order = random_order(rng, exchange, f"{bar}-{number}")
            pair = [order]
            if rng.random() < 0.2:
                pair = oco(order, random_order(rng, exchange, f"{bar}-{number}-other"), group=order.id)
            for one in pair:
                orders[one.id] = one
                if one.limit is not None:
                    limits[one.id] = one.limit
                exchange.submit(one)
        ungrouped = [order for order in exchange.account().pending if not order.group]
        if ungrouped and rng.random() < 0.2:
            exchange.submit(Cancel(ungrouped[int(rng.integers(len(ungrouped)))].id))
        if rng.random() < 0.1:
            exchange.submit(Target(str(rng.choice(SYMBOLS)), float(rng.uniform(-leverage, leverage))))
        before = len(exchange.fills)
        exchange.step()
        kept += [(fill, limits[fill.order]) for fill in exchange.fills[before:] if fill.order in limits]
    return Run(exchange, orders, kept)


@given(
    seed=st.integers(0, 2**32 - 1),
    step=st.sampled_from([0.005, 0.03, 0.2]),
    leverage=st.sampled_from([1.0, 3.0, 10.0]),
)
@tried(60)
def test_what_a_run_records_obeys_the_laws(seed: int, step: float, leverage: float) -> None:
    run = random_run(seed, step, leverage)
    check_the_books(run.exchange)
    check_the_participation(run.exchange)
    check_the_limits(run)
    check_the_end(run.exchange)
    check_the_quantities(run)


def check_the_books(exchange: Exchange) -> None:
    """What the account holds and has paid follows from the records."""
    cash, fees, penalties = CASH, 0.0, 0.0
    sums = {FundingPayment: 0.0, BorrowPayment: 0.0, InsurancePayment: 0.0, LiquidationFee: 0.0}
    held = dict.fromkeys(SYMBOLS, 0.0)
    for entry in exchange.ledger:
        if isinstance(entry, Fill):
            value = entry.quantity * entry.price
            penalty = abs(value) * LIQUIDATION_FEE if entry.reason == "liquidation" and entry.symbol != "C" else 0.0
            cash -= value + entry.fee
            fees, penalties = fees + entry.fee, penalties + penalty
            held[entry.symbol] += entry.quantity
        else:
            cash -= entry.amount
            sums[type(entry)] += entry.amount
    account = exchange.account()
    marks = {
        symbol: next(c for c in exchange.market.close[::-1, column].tolist() if c == c)
        for column, symbol in enumerate(SYMBOLS)
    }
    assert account.cash == pytest.approx(cash, rel=1e-9, abs=1e-6)
    assert account.positions == pytest.approx(held, rel=1e-9, abs=1e-7)
    equity = cash + sum(held[symbol] * marks[symbol] for symbol in SYMBOLS)
    assert account.equity == pytest.approx(equity, rel=1e-9, abs=1e-5)
    paid = exchange.paid()
    assert paid["fees"] == pytest.approx(fees, rel=1e-9, abs=1e-6)
    assert paid["funding"] == pytest.approx(sums[FundingPayment], rel=1e-9, abs=1e-6)
    assert sums[LiquidationFee] == pytest.approx(penalties, rel=1e-9, abs=1e-6)
    assert paid["borrow"] == pytest.approx(sums[BorrowPayment], rel=1e-9, abs=1e-6)
    assert paid["liquidation"] == pytest.approx(sums[LiquidationFee] + sums[InsurancePayment], rel=1e-9, abs=1e-6)


def check_the_participation(exchange: Exchange) -> None:
    """No bar is traded beyond the participation."""
    assert exchange.costs.participation is not None
    traded = np.zeros_like(exchange.market.close)
    for fill in exchange.fills:
        if fill.reason != "liquidation":
            traded[fill.bar, SYMBOLS.index(fill.symbol)] += abs(fill.quantity)
    allowed = exchange.costs.participation * np.nan_to_num(exchange.market.volume)
    assert (traded <= allowed * (1 + 1e-9) + 1e-9).all()


def check_the_limits(run: Run) -> None:
    """No limit trades worse than its limit, and only limits make."""
    for fill, worst in run.limits_kept:
        side = math.copysign(1.0, fill.quantity)
        assert side * (fill.price / worst - 1.0) <= 1e-9
    with_limit = {id(fill) for fill, _ in run.limits_kept}
    assert all(id(fill) in with_limit for fill in run.exchange.fills if fill.maker)


def check_the_end(exchange: Exchange) -> None:
    """An account without equity is over."""
    liquidations = [fill.bar for fill in exchange.fills if fill.reason == "liquidation"]
    curve = exchange.equity_curve()
    under = np.flatnonzero(curve <= 0.0)
    ended = exchange.account().liquidated
    assert not len(under) or ended or (liquidations and min(liquidations) <= int(under[0]))
    if ended:
        assert not any(exchange.account().positions.values())
    if len(under) and not exchange.venue.isolated:
        assert ended
        assert all(fill.bar <= int(under[0]) for fill in exchange.fills)


def check_the_quantities(run: Run) -> None:
    """Orders trade no more than asked, and groups no more than their largest."""
    traded: dict[str, float] = {}
    for fill in run.exchange.fills:
        traded[fill.order] = traded.get(fill.order, 0.0) + fill.quantity
    groups: dict[str, list[str]] = {}
    for name, order in run.orders.items():
        done = traded.get(name, 0.0)
        assert done * order.quantity >= 0.0
        assert abs(done) <= abs(order.quantity) * (1 + 1e-9)
        if order.group:
            groups.setdefault(order.group, []).append(name)
    for names in groups.values():
        total = sum(abs(traded.get(name, 0.0)) for name in names)
        assert total <= max(abs(run.orders[name].quantity) for name in names) * (1 + 1e-9)


@given(seed=st.integers(0, 2**32 - 1), step=st.sampled_from([0.005, 0.03, 0.2]), symbols=st.permutations(SYMBOLS))
@tried(60)
def test_the_order_of_the_symbols_does_not_matter(seed: int, step: float, symbols: list[str]) -> None:
    one = random_run(seed, step, 3.0).exchange
    other = random_run(seed, step, 3.0, symbols=tuple(symbols)).exchange
    assert other.equity_curve() == pytest.approx(one.equity_curve(), rel=1e-7, abs=1e-4)
    assert other.paid() == pytest.approx(one.paid(), rel=1e-7, abs=1e-4)
    for symbol in SYMBOLS:
        mine, theirs = ([fill for fill in run.fills if fill.symbol == symbol] for run in (one, other))
        assert [(fill.bar, fill.reason, fill.order) for fill in mine] == [
            (fill.bar, fill.reason, fill.order) for fill in theirs
        ]
        assert [fill.quantity for fill in mine] == pytest.approx([fill.quantity for fill in theirs], rel=1e-6, abs=1e-7)
