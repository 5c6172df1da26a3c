"""What it costs to hold: interest on what is borrowed, funding with and without data, and the end of a coin's bars.

The property test computes the carry anew from the fills, with arithmetic of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulator.arrays import BoolArray, FloatArray
from simulator.backtest.from_signals import run_signals
from simulator.backtest.scenarios import recorded_path, simulate_scenarios
from simulator.env.trading_env import EnvConfig, TradingVectorEnv
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange import Exchange
from simulator.exchange.exchange_records import BorrowPayment, Fill, FundingPayment
from simulator.exchange.orders import Order, Target
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.venue import Venue, carry_of, delisted_bars, kind_of, missing_settlements
from simulator.market.events import FundingEvent
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.examples import tried
from tests.markets import NAMES, bars_of, random_market, without_places
from tests.simulator.exchange.test_order_laws import random_order

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
FREE: dict[str, Any] = {"taker_fee": 0.0, "maker_fee": 0.0}


def flat_market(bars: int, kind: MarketKind | None, symbols: int = 1) -> Market:
    """Prices that never move, so that all that an account loses is what holding costs."""
    return bars_of(np.full((bars, symbols), 100.0), kinds=dict.fromkeys(NAMES[:symbols], kind) if kind else {})


def held(market: Market, exposure: float, leverage: float = 5.0, **costs: float) -> dict[str, float]:
    """What was paid for an exposure that stands from the second bar to the end."""
    exchange = Exchange(market, 0, 10_000.0, Costs(**(FREE | costs)), leverage)
    exchange.submit(Target("A", exposure))
    exchange.step(len(market))
    return exchange.paid()


def test_where_funding_is_known_it_is_paid_and_the_rest_is_charged() -> None:
    known = tuple(FundingEvent(8 * hours * HOUR, -0.001) for hours in range(1, 16))
    market = replace(flat_market(24 * 10, "perpetual"), funding={"A": known})
    received = held(market, 1.0, missing_funding_rate=0.0)["funding"]
    assert received == pytest.approx(-15 * 10.0)
    assert held(market, 1.0)["funding"] == pytest.approx(received + 15 * 1.0)
    [carried] = carry_of(market, Venue(), 1, 240)
    assert carried.unfunded_bars == 15 * 8
    exchange = Exchange(market, 0, 10_000.0)
    exchange.submit(Order("A", 10.0))
    exchange.step(240)
    payments = [entry for entry in exchange.ledger if isinstance(entry, FundingPayment)]
    assert [entry.assumed for entry in payments] == [False] * 15 + [True] * 15


def test_settlements_are_found_missing_by_their_place() -> None:
    eight = 8 * HOUR
    full = [FundingEvent(eight * step + 5, 0.0) for step in range(1, 10)]  # stamped some milliseconds late
    lacking, step = missing_settlements(full, 0, 9 * eight)
    assert (len(lacking), step) == (0, eight)
    hole = [event for event in full if event.time // eight != 4]
    assert missing_settlements(hole, 0, 9 * eight)[0].tolist() == [4 * eight]
    hourly = [FundingEvent(HOUR * step, 0.0) for step in range(1, 73)]
    assert len(missing_settlements(hourly, 0, 72 * HOUR)[0]) == 0
    daily = [FundingEvent(24 * HOUR * step, 0.0) for step in range(1, 4)]
    assert missing_settlements(daily, 0, 72 * HOUR)[1] == 24 * HOUR
    assert len(missing_settlements(daily, 0, 72 * HOUR)[0]) == 0
    # Asked minute by minute, as a live account does, they are those of the whole.
    minute = HOUR // 60
    for events in (full, hole, hourly, daily, ()):
        whole = missing_settlements(events, minute // 2, 40 * HOUR + minute // 2)[0].tolist()
        begins = range(minute // 2, 40 * HOUR, minute)
        parts = [missing_settlements(events, begin, begin + minute)[0].tolist() for begin in begins]
        assert [time for part in parts for time in part] == whole


@pytest.mark.parametrize("timeframe", ["1h", "4h", "1d"])
def test_the_synthetic_market_lacks_nothing(timeframe: str) -> None:
    """Its kind is known and its funding is whole, so the carry of its accounts is what it was."""
    market = generate(SyntheticConfig(bars=400, seed=3, timeframe=timeframe))
    for carried in carry_of(market, Venue(), 1, len(market)):
        assert (carried.kind, carried.unfunded_bars, carried.delisted) == ("perpetual", 0, None)


def test_kinds_come_from_rules_then_data_then_what_only_a_perpetual_has() -> None:
    market = flat_market(30, None)
    tiers = (MarginTier(0.0, 0.01, 10.0),)
    assert kind_of("A", market, Venue()) is None
    assert kind_of("A", market, Venue({"A": SymbolRules(tick=0.1)})) is None
    assert kind_of("A", market, Venue({"A": SymbolRules(tiers=tiers)})) == "perpetual"
    assert kind_of("A", market, Venue(isolated={"A": 2.0})) == "perpetual"
    assert kind_of("A", replace(market, funding={"A": (FundingEvent(HOUR, 0.0),)}), Venue()) == "perpetual"
    spot = replace(market, kinds={"A": "spot"})
    assert kind_of("A", spot, Venue({"A": SymbolRules()})) == "spot"
    assert kind_of("A", spot, Venue({"A": SymbolRules(kind="perpetual")})) == "perpetual"
    with pytest.raises(DataError, match="'spot' or 'perpetual'"):
        SymbolRules(kind="future")  # type: ignore[arg-type]  # what no symbol is


def loan(cash: float, values: FloatArray, perpetual: BoolArray) -> float:
    """What is borrowed to hold spot coins."""
    own = cash + float(values[perpetual].sum())
    return max(0.0, -own) if (values[~perpetual] > 0.01).any() else 0.0


def carry_again(exchange: Exchange) -> tuple[float, float, FloatArray]:
    """Funding, interest, and the equity at each close, from the fills alone."""
    market, costs = exchange.market, exchange.costs
    kinds = [kind_of(symbol, market, exchange.venue) for symbol in market.symbols]
    perpetual = np.array([kind == "perpetual" for kind in kinds])
    rate = costs.borrow_rate * market.interval / YEAR
    begin, end = int(market.open_time[1]), int(market.open_time[-1]) + market.interval
    lacking: list[dict[int, float]] = []
    for symbol in market.symbols:
        times, step = missing_settlements(market.funding.get(symbol, ()), begin, end)
        lacking.append(dict.fromkeys(times.tolist(), costs.missing_funding_rate * step / (8 * HOUR)))
    cash, quantity = exchange.initial_cash, np.zeros(len(market.symbols))
    mark = np.nan_to_num(market.close[0])
    funding = interest = 0.0
    equity = [cash]
    for bar in range(1, len(market)):
        close_time = int(market.open_time[bar]) + market.interval
        fills = [fill for fill in exchange.fills if fill.bar == bar]
        at_open = [fill for fill in fills if fill.time == market.open_time[bar]]

        def book(some: list[Fill]) -> None:
            nonlocal cash
            for fill in some:
                cash -= fill.quantity * fill.price + fill.fee
                quantity[market.symbols.index(fill.symbol)] += fill.quantity

        book(at_open)
        opened, owed = quantity.copy(), loan(cash, quantity * mark, perpetual)
        book([fill for fill in fills if fill.time != market.open_time[bar]])
        mark = np.where(np.isnan(market.close[bar]), mark, market.close[bar])
        for column, symbol in enumerate(market.symbols):
            if perpetual[column]:
                rates = [event.rate for event in market.funding.get(symbol, ()) if event.time == close_time]
                due = quantity[column] * mark[column] * sum(rates)
                funding, cash = funding + due, cash - due
        owed = max(owed, loan(cash, quantity * mark, perpetual))
        paid = 0.0
        for column in range(len(market.symbols)):
            if not perpetual[column]:
                paid += max(0.0, -opened[column], -quantity[column]) * mark[column] * rate
            elif close_time in lacking[column]:
                due = max(abs(opened[column]), abs(quantity[column])) * mark[column] * lacking[column][close_time]
                funding, cash = funding + due, cash - due
        paid += owed * rate
        interest, cash = interest + paid, cash - paid
        equity.append(cash + float((quantity * mark).sum()))
    return funding, interest, np.array(equity)


@tried(80)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.sampled_from(["spot", "perpetual", None]), min_size=3, max_size=3),
    leverage=st.sampled_from([1.0, 3.0]),
)
def test_the_carry_is_what_the_fills_say_it_should_be(
    seed: int, kinds: list[MarketKind | None], leverage: float
) -> None:
    rng = np.random.default_rng(seed)
    market = random_market(rng, int(rng.integers(10, 60)), ("A", "B", "C"), 0.004, absent=0.1)
    closes = {  # some settlements at closes, others missing; a symbol of no known kind has none, or it would be known
        symbol: tuple(FundingEvent(time, float(rng.normal(0.0, 0.01))) for time in range(8 * HOUR, 60 * HOUR, 8 * HOUR)
                      if rng.random() < 0.6)
        for symbol, kind in zip(market.symbols, kinds, strict=True) if kind == "perpetual"
    }  # fmt: skip
    stated = {symbol: kind for symbol, kind in zip(market.symbols, kinds, strict=True) if kind is not None}
    market = replace(market, funding=closes, kinds=stated)
    assume((delisted_bars(market) > len(market)).all())
    costs = Costs(0.001, float(rng.choice([0.0, 1.0])), borrow_rate=2.0, missing_funding_rate=0.01)
    rules = {"A": SymbolRules(tick=0.5), "B": SymbolRules(tick=0.01)}
    exchange = Exchange(market, 0, 10_000.0, costs, leverage, venue=Venue(rules))
    while exchange.index < exchange.stop:
        for _ in range(int(rng.integers(0, 3))):
            exchange.submit(random_order(rng, exchange, "", kinds=("market",)))
        exchange.step(int(rng.integers(1, 4)))
    assume(not exchange.account().liquidated)
    funding, interest, equity = carry_again(exchange)
    paid, account = exchange.paid(), exchange.account()
    assert paid["funding"] == pytest.approx(funding, abs=1e-9 * 10_000)
    assert paid["borrow"] == pytest.approx(interest, abs=1e-9 * 10_000)
    assert exchange.equity_curve() == pytest.approx(equity, abs=1e-9 * 10_000)
    positions = sum(account.positions[s] * account.mark[s] for s in market.symbols if account.positions[s])
    assert account.equity == pytest.approx(account.cash + positions, abs=1e-9 * 10_000)
    booked = [entry.amount for entry in exchange.ledger if isinstance(entry, FundingPayment)]
    assert sum(booked) == pytest.approx(paid["funding"], abs=1e-9 * 10_000)
    booked = [entry.amount for entry in exchange.ledger if isinstance(entry, BorrowPayment)]
    assert sum(booked) == pytest.approx(paid["borrow"], abs=1e-9 * 10_000)


@pytest.mark.parametrize("kind", ["spot", "perpetual", None])
@pytest.mark.parametrize("exposure", [-0.8, 2.0])
def test_all_ways_to_trade_pay_the_same(kind: MarketKind | None, exposure: float) -> None:
    """One account, signals, a batch of environments, and the scenario that history took."""
    market = flat_market(50, kind)
    costs = Costs(**FREE, missing_funding_rate=0.001)
    exchange = Exchange(market, 0, 10_000.0, costs, 2.0)
    exchange.submit(Target("A", exposure))
    exchange.step(49)
    due = exchange.paid()["funding"] + exchange.paid()["borrow"]
    assert due > 0.0

    signals = np.full(50, np.nan)
    signals[0] = exposure
    run = run_signals(market, signals, 10_000.0, costs, 2.0)
    assert run.costs["funding"] + run.costs["borrow"] == pytest.approx(due, abs=1e-9)

    levels = (-0.4, 0.0, 1.0)
    env = TradingVectorEnv(market, 2, EnvConfig(length=49, levels=levels, max_exposure=2.0, max_leverage=2.0,
                                               costs=costs))  # fmt: skip
    env.reset(seed=0)
    for _ in range(49):
        _, _, _, _, infos = env.step(np.array([1, levels.index(exposure / 2.0)]))
    assert infos["costs"].tolist() == pytest.approx([0.0, due], abs=1e-9)

    path = recorded_path(market, 0, 49, costs)
    account = Exchange(market, 0, 10_000.0, costs, 2.0).account()
    outcome = simulate_scenarios(path, account, [Order("A", exposure * 100.0)], ("A",), costs, 2.0)
    assert outcome.funding[0] * 10_000.0 == pytest.approx(due, abs=1e-9)


@pytest.mark.parametrize(("quantity", "price"), [(50.0, 60.0), (-50.0, 140.0)])
def test_a_delisted_coin_is_closed_with_a_haircut(quantity: float, price: float) -> None:
    """Its position once stood at the last price for ever."""
    market = without_places(flat_market(100, "perpetual", 2), (slice(30, None), 0))
    assert delisted_bars(market)[0] == 29 + 48
    exchange = Exchange(market, 0, 10_000.0, Costs(**FREE, missing_funding_rate=0.0, delisting_haircut=0.4))
    exchange.submit(Order("A", quantity))
    exchange.step(40)
    exchange.submit(Order("A", 1.0, kind="limit", limit=99.0, id="waits"))
    exchange.step(36)
    assert exchange.account().positions["A"] == quantity
    exchange.step()
    assert exchange.account().positions["A"] == 0.0
    last = exchange.fills[-1]
    assert (last.bar, last.quantity, last.reason) == (77, -quantity, "delisted")
    assert last.price == pytest.approx(price)
    exchange.submit(Order("A", 1.0))
    exchange.submit(Target("A", 0.5))
    assert [one.reason for one in exchange.rejections] == ["delisted"] * 3
    assert exchange.account().equity == pytest.approx(10_000.0 - abs(quantity) * 40.0)
    exchange.step(100)
    assert exchange.account().equity == exchange.account().cash


def test_an_outage_is_no_delisting() -> None:
    # The second ends less than two days before the end of the data.
    market = without_places(flat_market(80, "perpetual", 2), (slice(30, 60), 0), (slice(70, None), 1))
    assert (delisted_bars(market) > len(market)).all()
