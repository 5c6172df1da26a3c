"""The parts of a tearsheet against what pandas and scipy's formulas make of the same account."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.reporting.backtest_sections import equity_section, numbers_section
from backend.reporting.blocks import Missing, Picture, ReportBlock, Table
from backend.reporting.result_stats import daily_returns, deepest_drawdowns
from backend.reporting.run_summary import WindowResult
from simulator.market.timeframes import DAY_MS

HOUR_MS = 3_600_000
accounts = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=60).map(lambda path: [100.0, *path])


@settings(deadline=None, max_examples=60)
@given(accounts)
def test_drawdowns_are_those_of_the_account_and_do_not_overlap(equity: list[float]) -> None:
    times = [number * 4 * HOUR_MS for number in range(len(equity))]
    account = pd.Series(equity, index=times)
    under = account / account.cummax() - 1.0
    rows = deepest_drawdowns(times, equity, most=len(equity))
    for row in rows:
        assert under[row.valley] == pytest.approx(-row.depth)
        assert under[row.peak] == pytest.approx(0.0, abs=1e-12) and row.peak < row.valley
        end = times[-1] if row.recovery is None else row.recovery
        assert row.days == pytest.approx((end - row.peak) / DAY_MS)
        assert row.recovery is None or under[row.recovery] == pytest.approx(0.0, abs=1e-12)
    assert [row.depth for row in rows] == sorted((row.depth for row in rows), reverse=True)
    ordered = sorted(rows, key=lambda row: row.peak)
    assert all(a.recovery is not None and a.recovery <= b.peak for a, b in pairwise(ordered))
    deepest = rows[0].depth if rows else 0.0
    assert deepest == pytest.approx(-under.min(), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(accounts, st.integers(0, 23))
def test_days_multiply_up_to_the_total_return(equity: list[float], hour: int) -> None:
    times = [(hour + number * 5) * HOUR_MS for number in range(len(equity))]
    days = daily_returns(times, equity)
    assert math.prod(1.0 + value for value in days.values()) == pytest.approx(equity[-1] / equity[0])
    assert all(day % DAY_MS == 0 for day in days)


def test_a_close_at_midnight_ends_the_day_before() -> None:
    assert list(daily_returns([0, DAY_MS, 2 * DAY_MS], [1.0, 1.1, 1.21])) == [0, DAY_MS]


def drawdowns(window: WindowResult) -> ReportBlock:
    return next(one for one in numbers_section(window).blocks if one.title == "Deepest drawdowns")


def distribution(window: WindowResult) -> ReportBlock:
    return next(one for one in equity_section(window).blocks if one.title == "Distribution of daily returns")


def test_the_blocks_of_a_backtest(window: WindowResult) -> None:
    table, picture = drawdowns(window), distribution(window)
    assert isinstance(table, Table) and 1 <= len(table.rows) <= 5
    assert table.rows[0].values["depth"] == pytest.approx(window.main_result.metrics["max_drawdown"])
    assert isinstance(picture, Picture) and len(picture.figure.data) == 2
    days = daily_returns(window.main_result.times, window.main_result.equity)
    assert sum(picture.figure.data[0].y) == len(days) == sum(picture.figure.data[1].y)
    assert "best" in picture.caption and "skewness" in picture.caption


def test_an_account_that_never_moved_has_neither(window: WindowResult) -> None:
    flat = window.main_result.model_copy(update={"equity": [1e4] * len(window.main_result.times)})
    still = replace(window, results={**window.results, window.main: flat})
    assert isinstance(drawdowns(still), Missing)
    picture = distribution(still)
    assert isinstance(picture, Picture) and "skewness" not in picture.caption
