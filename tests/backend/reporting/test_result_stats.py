"""What is computed from stored results: months, drawdowns, trades, costs, candles."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.backtest_document import BacktestDocument
from backend.reporting import result_stats
from backend.reporting.market_reload import MOST_CANDLES, candles
from simulator.backtest import metrics
from simulator.backtest.metrics import COST_KEYS
from simulator.backtest.run import run_backtest
from simulator.backtest.trades import Trade
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import Fill
from simulator.market.timeframes import TIMEFRAMES
from simulator.strategies import AlwaysShort, Hold, SmaCross
from tests.stored_runs import WINDOW, small_market

HOUR, DAY = TIMEFRAMES["1h"], TIMEFRAMES["1d"]


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@cache
def stored(name: str = "sma_cross") -> BacktestDocument:
    strategy = {"sma_cross": SmaCross, "hold": Hold, "always_short": AlwaysShort}[name]()
    return BacktestDocument.of(run_backtest(small_market(), strategy, WINDOW, costs=Costs()))


def trade(pnl: float, quantity: float = 1.0, **changes: Any) -> Trade:
    made = Trade("AAAUSDT", quantity, 0, 1, 100.0, HOUR, 2, 100.0 + pnl, pnl, 0.0, 0.0, "order")
    return replace(made, **changes)


RETURNS = st.lists(st.floats(-0.9, 3.0), min_size=1, max_size=300)


@settings(deadline=None)
@given(
    returns=RETURNS,
    start=st.integers(at("2019-01-01") // HOUR, at("2024-12-31") // HOUR),
    interval=st.sampled_from(["1h", "4h", "1d"]),
)
def test_months_multiply_up_to_the_total_return(returns: list[float], start: int, interval: str) -> None:
    equity = np.concatenate([[1e4], 1e4 * np.cumprod(1.0 + np.array(returns))])
    times = [start * HOUR + number * TIMEFRAMES[interval] for number in range(len(equity))]
    months = result_stats.monthly_returns(times, equity.tolist())
    total = math.prod(1.0 + month.total_return for month in months)
    expected = float(np.prod(1.0 + metrics.returns_of(equity)))  # of an account that is ruined: 0
    assert total == pytest.approx(expected, rel=1e-9, abs=1e-12)
    years = result_stats.yearly_returns(months)
    assert math.prod(1.0 + value for value in years.values()) == pytest.approx(total, rel=1e-9, abs=1e-12)
    assert [(one.year, one.month) for one in months] == sorted({(one.year, one.month) for one in months})
    assert all(month.whole for month in months[1:-1])


@pytest.mark.parametrize(
    ("first", "step", "equity", "expected"),
    [
        # A bar that closes at midnight of the first belongs to the month before.
        ("2023-01-31T00:00", DAY, [100.0, 110.0, 121.0], [("2023-01", 0.1, False), ("2023-02", 0.1, False)]),
        ("2023-12-31T23:00", HOUR, [100.0, 50.0, 50.0], [("2023-12", -0.5, False), ("2024-01", 0.0, False)]),
        # Ruined: nothing is left to earn with.
        ("2023-01-31T00:00", DAY, [100.0, -5.0, 20.0], [("2023-01", -1.0, False), ("2023-02", 0.0, False)]),
        ("2023-02-01T00:00", 28 * DAY, [100.0, 120.0], [("2023-02", 0.2, True)]),
        ("2023-02-01T00:00", DAY, [100.0], []),
    ],
)
def test_months_by_hand(first: str, step: int, equity: list[float], expected: list[tuple[str, float, bool]]) -> None:
    times = [at(first) + number * step for number in range(len(equity))]
    found = result_stats.monthly_returns(times, equity)
    assert [(f"{one.year}-{one.month:02d}", one.whole) for one in found] == [
        (name, whole) for name, _, whole in expected
    ]
    assert [one.total_return for one in found] == pytest.approx([value for _, value, _ in expected])


ACCOUNTS = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=60).map(lambda path: [100.0, *path])


@settings(deadline=None, max_examples=60)
@given(ACCOUNTS)
def test_drawdowns_are_those_of_the_account_and_do_not_overlap(equity: list[float]) -> None:
    times = [number * 4 * HOUR for number in range(len(equity))]
    account = pd.Series(equity, index=times)
    under = account / account.cummax() - 1.0
    rows = result_stats.deepest_drawdowns(times, equity, most=len(equity))
    for row in rows:
        assert under[row.valley] == pytest.approx(-row.depth)
        assert under[row.peak] == pytest.approx(0.0, abs=1e-12) and row.peak < row.valley
        end = times[-1] if row.recovery is None else row.recovery
        assert row.days == pytest.approx((end - row.peak) / DAY)
        assert row.recovery is None or under[row.recovery] == pytest.approx(0.0, abs=1e-12)
    assert [row.depth for row in rows] == sorted((row.depth for row in rows), reverse=True)
    ordered = sorted(rows, key=lambda row: row.peak)
    assert all(a.recovery is not None and a.recovery <= b.peak for a, b in pairwise(ordered))
    deepest = rows[0].depth if rows else 0.0
    assert deepest == pytest.approx(-under.min(), abs=1e-9)


def test_trades_without_a_loss_have_an_infinite_profit_factor_and_no_payoff_ratio() -> None:
    won = result_stats.trade_summary([trade(5.0, mae=-0.02, mfe=0.1, holding_ms=2 * HOUR)], 1_000.0)
    assert (won["profit_factor"], won["payoff_ratio"], won["hit_rate"]) == (math.inf, None, 1.0)
    assert (won["mae"], won["mfe"], won["median_hours"]) == (-0.02, 0.1, 2.0)
    none = result_stats.trade_summary([], 1_000.0)
    assert none["trades"] == 0.0
    assert not [key for key, value in none.items() if value is not None and not math.isfinite(value)]
    assert (none["hit_rate"], none["mae"], none["longest_hours"]) == (None, None, None)


def test_excursions_and_times_are_means_over_the_trades_that_know_them() -> None:
    trades = [
        trade(10.0, mae=-0.1, mfe=0.2, holding_ms=HOUR),
        trade(-5.0, quantity=-2.0, mae=-0.3, mfe=0.0, holding_ms=5 * HOUR),
        trade(1.0),
    ]
    found = result_stats.trade_summary(trades, 1_000.0)
    assert found["mae"] == pytest.approx(-0.2) and found["mfe"] == pytest.approx(0.1)
    assert (found["median_hours"], found["longest_hours"]) == (3.0, 5.0)
    assert found["profit_factor"] == pytest.approx(11.0 / 5.0)
    assert result_stats.trade_return(trades[1]) == pytest.approx(-5.0 / 200.0)


@pytest.mark.parametrize("name", ["sma_cross", "hold", "always_short"])
def test_costs_lie_between_profit_before_and_after(name: str) -> None:
    result = stored(name)
    found = result_stats.cost_summary(result)
    kinds = [found[key] or 0.0 for key in COST_KEYS]
    assert found["gross"] == pytest.approx(result.equity[-1] - result.equity[0] + math.fsum(kinds))
    assert found["total"] == pytest.approx(math.fsum(kinds))
    gross = found["gross"] or 0.0
    assert (found["total_of_gross"] is None) == (gross <= 0.0)


def test_traded_symbols_come_most_traded_first() -> None:
    fills = [("A", 1.0, 10.0), ("B", -3.0, 10.0), ("A", -1.0, 15.0), ("C", 2.5, 10.0)]
    made = tuple(Fill(0, 0, symbol, size, price, 0.0, 0.0, "order") for symbol, size, price in fills)
    result = stored().model_copy(update={"fills": made})
    assert list(result_stats.traded_notional(result).items()) == [("B", 30.0), ("A", 25.0), ("C", 25.0)]


@pytest.mark.parametrize("bars", [180, 5_000, 100_000])
def test_candles_are_few_and_lose_no_extreme(bars: int) -> None:
    market = long_market(bars)
    first, last = int(market.open_time[30]) + market.interval, int(market.open_time[-1]) + market.interval
    shown = candles(market, "AAAUSDT", first, last)
    assert len(shown) <= MOST_CANDLES
    assert len(shown) > MOST_CANDLES / 8 or len(shown) == bars - 30
    assert float(np.nanmax(shown.high)) == float(np.nanmax(market.high[30:, 0]))
    assert float(np.nanmin(shown.low)) == float(np.nanmin(market.low[30:, 0]))
    assert shown.close[shown.present][-1] == market.close[-1, 0]
    assert shown.open[shown.present][0] == market.open[30, 0]


def test_candles_say_what_cannot_be_shown() -> None:
    market = small_market()
    with pytest.raises(DataError, match="no symbol 'XUSDT'"):
        candles(market, "XUSDT", 0, 1)
    with pytest.raises(DataError, match="there are no bars from 1970-01-01"):
        candles(market, "AAAUSDT", 0, DAY)


@cache
def long_market(bars: int) -> Any:
    """The small market's first coin over and over, in 5m bars; with a hole."""
    base = small_market().select(["AAAUSDT"])
    index = np.arange(bars) % len(base)
    columns = {
        name: getattr(base, name)[index].copy() for name in ("open", "high", "low", "close", "volume", "half_spread")
    }
    for values in columns.values():
        values[60:70] = np.nan
    times = base.open_time[0] + TIMEFRAMES["5m"] * np.arange(bars)
    return replace(base, timeframe="5m", open_time=times, **columns, truth=None, funding={}, news=())
