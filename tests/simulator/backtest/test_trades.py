"""Round trips: what they cost, how long they lasted, how far the price went, and their statistics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backtest.metrics import COST_KEYS, cost_split, trade_statistics
from simulator.backtest.trades import Trade, trades_of, with_excursions
from simulator.exchange.exchange_records import (
    BorrowPayment,
    Fill,
    FillReason,
    FundingPayment,
    InsurancePayment,
    LedgerEntry,
    LiquidationFee,
)
from simulator.market.market import Market
from tests.examples import tried
from tests.markets import HOUR, bars_of, random_market

SEEDS = st.integers(0, 2**32 - 1)


def market_of(rows: list[tuple[float, float, float, float]]) -> Market:
    """One symbol, A, from rows of open, high, low, close."""
    first, high, low, close = np.array(rows, np.float64).T
    return bars_of(close, open=first, high=high, low=low)


MARKET = market_of(
    [
        (100, 101, 99, 100),
        (100, 104, 97, 103),
        (103, 106, 102, 105),
        (105, 120, 80, 90),
        (math.nan, math.nan, math.nan, math.nan),
        (91, 95, 85, 94),
        (94, 96, 93, 95),
    ]
)


def fill(bar: int, quantity: float, price: float, reason: FillReason = "order", inside: bool = False) -> Fill:
    return Fill((bar + inside) * HOUR, bar, "A", quantity, price, 0.0, 0.0, reason)


def excursions(fills: list[Fill], end: int = 6) -> list[tuple[float | None, float | None, int | None]]:
    last = float(MARKET.close[end, 0])
    trades = with_excursions(trades_of(fills, {"A": last}, (end + 1) * HOUR, end), MARKET)
    return [(trade.mae, trade.mfe, trade.bars_held) for trade in trades]


@pytest.mark.parametrize(
    ("fills", "low", "high", "bars"),
    [
        # Open to open: all of bars 1 and 2, and no more of bar 3 than its open.
        ([fill(1, 1.0, 100.0), fill(3, -1.0, 105.0)], 97, 106, 2),
        # A stop inside bar 3: its high may have come after, its low was certainly not suffered.
        ([fill(1, 1.0, 100.0), fill(3, -1.0, 96.0, "stop", True)], 96, 106, 3),
        # A target inside bar 3: the price of the target is the best, and its low may have come after.
        ([fill(1, 1.0, 100.0), fill(3, -1.0, 110.0, "target", True)], 97, 110, 3),
        # Stopped in the bar of the entry: its open and the stop are all that is known.
        ([fill(3, 1.0, 105.0), fill(3, -1.0, 90.0, "stop", True)], 90, 105, 1),
        ([fill(3, 1.0, 104.0), fill(3, -1.0, 90.0, "stop", True)], 90, 105, 1),
        # Entered inside bar 1: its close counts, its low and high do not.
        ([fill(1, 1.0, 102.0, inside=True), fill(2, -1.0, 103.0)], 102, 103, 1),
        ([fill(1, 1.0, 101.0, inside=True), fill(1, -1.0, 102.0, "target", True)], 101, 102, 1),
        # Still open at the end: the last bar counts as a whole.
        ([fill(5, 1.0, 91.0)], 85, 96, 2),
        # The absent bar 4 says nothing.
        ([fill(3, 1.0, 105.0), fill(5, -1.0, 91.0)], 80, 120, 2),
        # A fill beyond the bars, for it holds the spread.
        ([fill(1, 1.0, 100.0), fill(2, -1.0, 96.5)], 96.5, 104, 1),
    ],
)
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_excursions_by_hand(fills: list[Fill], low: float, high: float, bars: int, side: float) -> None:
    turned = [replace(one, quantity=side * one.quantity) for one in fills]
    entry = fills[0].price
    down, up = low / entry - 1.0, high / entry - 1.0
    ((mae, mfe, held),) = excursions(turned)
    assert (mae, mfe) == pytest.approx((down, up) if side > 0.0 else (-up, -down))
    assert held == bars


def walk(seed: int, bars: int) -> Market:
    return random_market(np.random.default_rng(seed), bars, rate=0.0)


def random_fills(seed: int, market: Market) -> list[Fill]:
    """At the opens of some bars and inside others, so that the position grows, shrinks, turns and closes."""
    rng = np.random.default_rng(seed)
    fills = []
    for bar in np.flatnonzero(rng.random(len(market)) < 0.4).tolist():
        inside = bool(rng.random() < 0.3)
        span = market.high[bar, 0] - market.low[bar, 0]
        price = float(market.low[bar, 0] + rng.random() * span if inside else market.open[bar, 0])
        quantity = float(rng.integers(-2, 3)) or 1.0
        fee, spread, impact = rng.uniform(0.0, 1.0, 3).tolist()
        fills.append(Fill((bar + inside) * HOUR, bar, "A", quantity, price, fee, spread, "order", impact))
    return fills


@tried(60)
@given(seed=SEEDS)
def test_what_random_trades_have_in_common(seed: int) -> None:
    market = walk(seed, 40)
    fills, last = random_fills(seed, market), float(market.close[-1, 0])
    bare = trades_of(fills, {"A": last}, 40 * HOUR, 39)
    trades = with_excursions(bare, market)
    assert [replace(trade, bars_held=None, mae=None, mfe=None) for trade in trades] == bare
    assert sum(trade.spread for trade in trades) == pytest.approx(sum(one.spread_cost for one in fills))
    assert sum(trade.impact for trade in trades) == pytest.approx(sum(one.impact_cost for one in fills))
    assert sum(trade.fees for trade in trades) == pytest.approx(sum(one.fee for one in fills))
    for trade in trades:
        assert trade.mae is not None and trade.mfe is not None and trade.closing_price is not None
        assert trade.holding_ms == trade.exit_time - trade.entry_time
        side = math.copysign(1.0, trade.quantity)
        # No worse and no better than the bars that it touched (a fill lies within its bar here).
        rows = slice(trade.entry_bar, trade.exit_bar + 1)
        ends = side * (np.array([market.low[rows, 0].min(), market.high[rows, 0].max()]) / trade.entry_price - 1.0)
        assert min(ends) - 1e-12 <= trade.mae <= 0.0 <= trade.mfe <= max(ends) + 1e-12
        # At least as wide as its last fill and as what the bars in between went through.
        seen = [side * (trade.closing_price / trade.entry_price - 1.0)]
        between = slice(trade.entry_bar + 1, trade.exit_bar)
        for values in (market.low[between, 0], market.high[between, 0]):
            seen += (side * (values / trade.entry_price - 1.0)).tolist()
        assert trade.mae <= min(seen) + 1e-12 and trade.mfe >= max(seen) - 1e-12


def test_payments_belong_to_the_trade_that_caused_them() -> None:
    ledger: list[LedgerEntry] = [
        fill(1, -1.0, 100.0),
        FundingPayment(1, "A", 2.0),
        BorrowPayment(2, "A", 0.5),
        fill(3, 1.0, 120.0, "liquidation", True),
        LiquidationFee(3, "A", 1.5),
        InsurancePayment(3, "A", -7.0),
        fill(5, 1.0, 91.0),
    ]
    lost, held = trades_of(ledger, {"A": 95.0}, 7 * HOUR, 6)
    assert (lost.funding, lost.borrow, lost.liquidation) == (2.0, 0.5, -5.5)
    assert lost.pnl == pytest.approx(-20.0 - 2.0 - 0.5 + 5.5)
    assert (held.borrow, held.liquidation, held.pnl) == pytest.approx((0.0, 0.0, 4.0))


AMOUNTS = st.floats(-1e6, 1e6).map(lambda amount: round(amount, 2))


def trades_with(pnl: list[float], bars: list[int | None] | None = None) -> list[Trade]:
    held = bars or [None] * len(pnl)
    return [
        Trade("A", 1.0, 0, 0, 100.0, 1, 1, 100.0, amount, 0.0, 0.0, "order", bars_held=count)
        for amount, count in zip(pnl, held, strict=True)
    ]


def test_by_hand() -> None:
    got = trade_statistics(
        trades_with([10.0, 20.0, -5.0, 0.0, -5.0, -20.0, 6.0], [1, 2, None, 3, None, None, None]), 100.0
    )
    assert got == pytest.approx(
        {
            "trades": 7,
            "hit_rate": 3 / 7,
            "profit_factor": 36 / 30,
            "payoff_ratio": 12 / 10,
            "expectancy": 6 / 7 / 100,
            "best_trade": 0.2,
            "worst_trade": -0.2,
            "lose_streak": 2,  # the one that ends even ends the streak before it
            "bars_held": 2,
        },
        rel=1e-5,
    )


@pytest.mark.parametrize(
    ("pnl", "zero"),
    [
        ([], set(trade_statistics([], 1.0))),
        ([3.0], {"payoff_ratio", "lose_streak", "bars_held"}),
        ([-3.0], {"hit_rate", "profit_factor", "payoff_ratio", "bars_held"}),
    ],
)
def test_where_a_number_has_no_meaning_it_is_0(pnl: list[float], zero: set[str]) -> None:
    assert {name for name, value in trade_statistics(trades_with(pnl), 100.0).items() if value == 0.0} == zero


@tried(100)
@given(pnl=st.lists(AMOUNTS, min_size=1, max_size=40), start=st.floats(1.0, 1e6))
def test_agrees_with_pandas(pnl: list[float], start: float) -> None:
    got, series = trade_statistics(trades_with(pnl), start), pd.Series(pnl)
    won, lost = series[series > 0], series[series < 0]
    assert got["hit_rate"] == pytest.approx(len(won) / len(series))
    assert got["expectancy"] == pytest.approx(series.mean() / start, abs=1e-9)
    assert (got["best_trade"], got["worst_trade"]) == pytest.approx((series.max() / start, series.min() / start))
    if len(won) and len(lost):
        assert got["profit_factor"] == pytest.approx(won.sum() / -lost.sum())
        assert got["payoff_ratio"] == pytest.approx(won.mean() / -lost.mean())
    hit = series < 0
    assert got["lose_streak"] == hit.astype(int).groupby((~hit).cumsum()).sum().max()
    assert all(math.isfinite(value) for name, value in got.items() if name != "profit_factor")


@tried(100)
@given(costs=st.dictionaries(st.sampled_from(COST_KEYS), AMOUNTS), profit=AMOUNTS, start=st.floats(1.0, 1e6))
def test_the_parts_of_the_costs_sum_to_the_total(costs: dict[str, float], profit: float, start: float) -> None:
    got = cost_split(costs, start, profit)
    assert len(got) == 2 * (len(COST_KEYS) + 1)
    parts = math.fsum(got[f"cost_{name}"] for name in COST_KEYS)
    assert parts == pytest.approx(got["cost_total"], rel=1e-9, abs=1e-6)
    assert got["cost_total"] == pytest.approx(sum(costs.values()) / start, rel=1e-9, abs=1e-6)
    gross = profit + sum(costs.values())
    if gross > 1.0:
        assert got["cost_total_of_gross"] == pytest.approx(sum(costs.values()) / gross, rel=1e-6, abs=1e-9)
    elif gross < -1.0:
        assert got["cost_total_of_gross"] == 0.0
