"""Statistics of round trips against pandas and by hand, and what costs took."""

from __future__ import annotations

import math
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backtest.metrics import COST_KEYS, cost_split, ratio, trade_statistics
from simulator.backtest.trades import Trade
from tests.examples import tried

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


def test_ratio_stays_finite_and_grows_with_what_is_above() -> None:
    assert (ratio(1.0, 0.0), ratio(-3.0, 2.0), ratio(3.0, -2.0)) == (0.0, -1.5, 0.0)
    values = [ratio(above, 1e-308) for above in (-1e308, -1.0, 0.0, 1.0, 1e308)]
    assert all(one <= other for one, other in pairwise(values))
    assert all(math.isfinite(value) for value in values)
