"""Laws that random requests of every kind must obey, recomputed from the records alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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
from simulator.market.market import Market
from tests.examples import tried
from tests.markets import random_market

CASH = 10_000.0
SYMBOLS = ("A", "B", "C")
KINDS = ("market", "limit", "stop", "stop_limit", "take_profit", "trailing_stop")
LIQUIDATION_FEE = 0.003


def random_order(
    rng: np.random.Generator,
    exchange: Exchange,
    name: str,
    size: float = 1.0,
    digits: int | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> Order:
    """An order of about `size` times the cash, its numbers of so many digits behind the point."""

    def rounded(value: float) -> float:
        return value if digits is None else round(value, digits)

    symbol = str(rng.choice(sorted(exchange.market.symbols))) if rng.random() < 0.95 else "UNKNOWN"
    kind = str(rng.choice(kinds))
    account = exchange.account()
    price, held = account.mark.get(symbol, 100.0), account.positions.get(symbol, 0.0)
    price = price if price > 0.0 else 100.0
    quantity = -held if held != 0.0 and rng.random() < 0.3 else rounded(float(rng.normal(0.0, size)) * CASH / price)
    near = [rounded(price * math.exp(float(rng.normal(0.0, 0.02)))) for _ in range(2)]
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
        away = float(rng.normal(0.03, 0.02))  # now and then on the wrong side
        fields |= {"stop": rounded(level * (1.0 - side * away)), "target": rounded(level * (1.0 + side * away))}
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
    seen: list[dict[str, float]]  # cash, equity and quantities that the account showed at each bar


def random_run(seed: int, step: float, leverage: float, symbols: tuple[str, ...] = SYMBOLS) -> Run:
    """A run with requests of every kind on cross, isolated and spot symbols, which the market has in this order."""
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
    bars = int(rng.integers(5, 40))
    market = random_market(rng, bars, SYMBOLS, step, absent=0.1, begins=True, volume=(0.0, 1e3), rate=0.002)
    market = market.select(symbols)
    exchange = Exchange(market, 0, CASH, costs, leverage, venue=venue)
    orders: dict[str, Order] = {}
    limits: dict[str, float] = {}
    kept: list[tuple[Fill, float]] = []
    seen = [{"cash": CASH, "equity": CASH, **dict.fromkeys(SYMBOLS, 0.0)}]
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
        account = exchange.account()
        seen.append({"cash": account.cash, "equity": account.equity, **account.positions})
    return Run(exchange, orders, kept, seen)


@given(
    seed=st.integers(0, 2**32 - 1),
    step=st.sampled_from([0.005, 0.03, 0.2]),
    leverage=st.sampled_from([1.0, 3.0, 10.0]),
)
@tried(60)
def test_what_a_run_records_obeys_the_laws(seed: int, step: float, leverage: float) -> None:
    run = random_run(seed, step, leverage)
    check_the_books(run)
    check_the_costs(run)
    check_the_participation(run.exchange)
    check_the_limits(run)
    check_the_end(run.exchange)
    check_the_quantities(run)


def marks_at(market: Market, bar: int) -> dict[str, float]:
    """The last known closes."""
    closes = {symbol: market.close[: bar + 1, market.column(symbol)] for symbol in market.symbols}
    return {symbol: float(known[~np.isnan(known)][-1]) for symbol, known in closes.items()}


def check_the_books(run: Run) -> None:
    """What the account shows at each bar and has paid in the end follows from the records."""
    exchange, curve = run.exchange, run.exchange.equity_curve()
    assert len(curve) == len(exchange.market) == len(run.seen)
    cash, fees, penalties = CASH, 0.0, 0.0
    sums = {FundingPayment: 0.0, BorrowPayment: 0.0, InsurancePayment: 0.0, LiquidationFee: 0.0}
    held, ledger = dict.fromkeys(SYMBOLS, 0.0), list(exchange.ledger)
    for bar, seen in enumerate(run.seen):
        while ledger and ledger[0].bar <= bar:
            entry = ledger.pop(0)
            if isinstance(entry, Fill):
                value = entry.quantity * entry.price
                of_tier = entry.reason == "liquidation" and entry.symbol != "C"
                cash, fees = cash - value - entry.fee, fees + entry.fee
                penalties += abs(value) * LIQUIDATION_FEE * of_tier
                held[entry.symbol] += entry.quantity
            else:
                cash -= entry.amount
                sums[type(entry)] += entry.amount
        marks = marks_at(exchange.market, bar)
        equity = cash + sum(held[symbol] * marks[symbol] for symbol in SYMBOLS)
        assert seen["cash"] == pytest.approx(cash, rel=1e-9, abs=1e-6)
        assert {symbol: seen[symbol] for symbol in SYMBOLS} == pytest.approx(held, rel=1e-9, abs=1e-7)
        assert curve[bar] == pytest.approx(equity, rel=1e-9, abs=1e-5)
        assert seen["equity"] == pytest.approx(curve[bar], rel=1e-12, abs=1e-9)
    assert not ledger
    paid = exchange.paid()
    assert paid["fees"] == pytest.approx(fees, rel=1e-9, abs=1e-6)
    assert paid["funding"] == pytest.approx(sums[FundingPayment], rel=1e-9, abs=1e-6)
    assert sums[LiquidationFee] == pytest.approx(penalties, rel=1e-9, abs=1e-6)
    assert paid["borrow"] == pytest.approx(sums[BorrowPayment], rel=1e-9, abs=1e-6)
    assert paid["liquidation"] == pytest.approx(sums[LiquidationFee] + sums[InsurancePayment], rel=1e-9, abs=1e-6)


def check_the_costs(run: Run) -> None:
    """Each fill pays its fee and its half spread once, at a price that the bar had."""
    market, costs = run.exchange.market, run.exchange.costs
    for fill in run.exchange.fills:
        column, size = market.column(fill.symbol), abs(fill.quantity)
        worse = math.copysign((fill.spread_cost + fill.impact_cost) / size, fill.quantity)
        middle = fill.price - worse
        rate = costs.maker_fee if fill.maker else costs.taker_fee
        assert fill.fee == pytest.approx(size * fill.price * rate, rel=1e-9)
        half = 0.0 if fill.maker else np.nan_to_num(market.half_spread[fill.bar, column])
        assert fill.spread_cost == pytest.approx(size * middle * half, rel=1e-6, abs=1e-9)
        assert fill.impact_cost >= 0.0
        first, high, low, close = (a[fill.bar, column] for a in (market.open, market.high, market.low, market.close))
        if np.isnan(close):
            assert fill.reason == "liquidation"
            assert middle == pytest.approx(marks_at(market, fill.bar)[fill.symbol], rel=1e-9)
        else:
            assert low * (1 - 1e-9) <= middle <= high * (1 + 1e-9)
            if fill.reason == "order" and fill.order in run.orders and run.orders[fill.order].kind == "market":
                assert middle == pytest.approx(first, rel=1e-9)
    assert run.exchange.paid()["spread"] == pytest.approx(sum(fill.spread_cost for fill in run.exchange.fills))


def check_the_leverage(exchange: Exchange) -> None:
    """No fill at an open that enlarges or turns a position leads beyond the leverage, at the opens."""
    market, held, cash = exchange.market, dict.fromkeys(SYMBOLS, 0.0), CASH
    for entry in exchange.ledger:
        if not isinstance(entry, Fill):
            cash -= entry.amount
            continue
        former = held[entry.symbol]
        held[entry.symbol] += entry.quantity
        cash -= entry.quantity * entry.price + entry.fee
        grows = abs(held[entry.symbol]) > abs(former) or former * held[entry.symbol] < -1e-9
        if grows and entry.reason == "order" and entry.time == market.open_time[entry.bar]:
            earlier, opens = marks_at(market, entry.bar - 1), market.open[entry.bar]
            price = {s: earlier[s] if np.isnan(at) else float(at) for s, at in zip(market.symbols, opens, strict=True)}
            gross = sum(abs(held[s]) * price[s] for s in SYMBOLS)
            equity = cash + sum(held[s] * price[s] for s in SYMBOLS)
            assert gross <= exchange.max_leverage * equity + 1e-6 * CASH


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


@tried(100)
@given(
    seed=st.integers(0, 2**32 - 1), step=st.sampled_from([0.001, 0.02, 0.2]), leverage=st.sampled_from([0.5, 3.0, 10.0])
)
def test_no_market_order_leads_beyond_the_leverage(seed: int, step: float, leverage: float) -> None:
    rng = np.random.default_rng(seed)
    market = random_market(rng, int(rng.integers(3, 40)), SYMBOLS, step, absent=0.15, begins=True)
    exchange = Exchange(market, 0, CASH, Costs(float(rng.choice([0.0, 0.01])), borrow_rate=0.0), leverage)
    for bar in range(len(market)):
        for number in range(int(rng.integers(0, 4))):
            exchange.submit(random_order(rng, exchange, f"{bar}-{number}", kinds=("market",)))
        exchange.step()
    check_the_leverage(exchange)


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


@tried(100)
@given(seed=st.integers(0, 2**32 - 1), bar=st.integers(0, 8), delay=st.integers(0, 4), sign=st.sampled_from([-1, 1]))
def test_no_fill_in_the_bar_of_the_decision(seed: int, bar: int, delay: int, sign: int) -> None:
    market = random_market(np.random.default_rng(seed), 20, absent=0.2)
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
    market = random_market(np.random.default_rng(seed), 12, rate=0.0)
    mirror = replace(
        market, open=200.0 - market.open, high=200.0 - market.low, low=200.0 - market.high, close=200.0 - market.close
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
