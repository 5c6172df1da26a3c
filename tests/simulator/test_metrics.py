"""Metrics against empyrical on random curves, conventions and shares by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import metrics
from simulator.trades import Trade

DAY = 86_400_000
NOTHING = np.zeros((3, 1))


def trade(pnl: float) -> Trade:
    return Trade("A", 1.0, 0, 0, 100.0, DAY, 1, 100.0, pnl, 0.0, 0.0, "order")


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(10, 300),
    scale=st.floats(1e-4, 0.1),
    interval=st.sampled_from([DAY, DAY // 6, DAY // 24]),
)
def test_agrees_with_empyrical(seed: int, count: int, scale: float, interval: int) -> None:
    with warnings.catch_warnings():  # its use of pandas
        warnings.simplefilter("ignore")
        empyrical = pytest.importorskip("empyrical", reason="empyrical-reloaded is not installed")
    returns = np.random.default_rng(seed).normal(0.0, scale, count)
    equity = 1_000.0 * np.concatenate([[1.0], np.cumprod(1.0 + returns)])
    per_year = 365 * DAY // interval
    got = metrics.compute(equity, interval, np.zeros((count + 1, 1)), [], 0.0)
    expected = {
        "total_return": empyrical.cum_returns_final(returns),
        "annual_return": empyrical.annual_return(returns, annualization=per_year),
        "volatility": empyrical.annual_volatility(returns, annualization=per_year),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=per_year),
        "sortino": empyrical.sortino_ratio(returns, annualization=per_year),
        "calmar": empyrical.calmar_ratio(returns, annualization=per_year),
        "max_drawdown": -empyrical.max_drawdown(returns),
    }
    for name, value in expected.items():
        if math.isfinite(value):
            assert got[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@settings(max_examples=100, deadline=None)
@given(
    equity=st.lists(st.floats(-1e3, 1e6), min_size=0, max_size=20).map(lambda tail: np.array([1_000.0, *tail])),
    interval=st.sampled_from([60_000, DAY]),
)
def test_every_metric_is_finite(equity: metrics.FloatArray, interval: int) -> None:
    got = metrics.compute(equity, interval, np.zeros((len(equity), 2)), [], 1e9)
    assert all(math.isfinite(value) for value in got.values()), got
    assert 0.0 <= got["max_drawdown"] <= 1.0


def test_conventions_where_a_ratio_has_no_meaning() -> None:
    still = metrics.compute(np.full(3, 50.0), DAY, NOTHING, [], 0.0)
    assert set(still.values()) == {0.0}
    steady = metrics.compute(100.0 * 1.01 ** np.arange(10.0), DAY, np.zeros((10, 1)), [], 0.0)
    assert (steady["sharpe"], steady["sortino"], steady["calmar"], steady["max_drawdown"]) == (0.0, 0.0, 0.0, 0.0)
    assert steady["annual_return"] == pytest.approx(1.01**365 - 1.0)


def test_an_account_that_died_stays_dead() -> None:
    got = metrics.compute(np.array([100.0, 110.0, -5.0, -5.0]), DAY, np.zeros((4, 1)), [], 0.0)
    assert metrics.returns_of(np.array([100.0, 110.0, -5.0, -5.0])) == pytest.approx([0.1, -1.0, 0.0])
    assert got["total_return"] == pytest.approx(-1.05)
    assert (got["annual_return"], got["max_drawdown"]) == (-1.0, 1.0)


def test_max_drawdown_counts_from_the_start() -> None:
    equity = np.array([100.0, 80.0, 120.0, 90.0])
    assert metrics.compute(equity, DAY, np.zeros((4, 1)), [], 0.0)["max_drawdown"] == pytest.approx(0.25)


def test_exposure_and_long_share_by_hand() -> None:
    """The first row is before any decision could act. Gross: 0.9, 0.3, 0 over three closes; long: 0.6 + 0 of 1.2."""
    exposure = np.array([[9.0, 9.0], [0.6, -0.3], [0.0, -0.3], [0.0, 0.0]])
    got = metrics.compute(np.full(4, 100.0), DAY, exposure, [], 0.0)
    assert got["exposure"] == pytest.approx(0.4)
    assert got["long_share"] == pytest.approx(0.5)


def test_turnover_and_hit_rate_by_hand() -> None:
    trades = [trade(5.0), trade(-1.0), trade(0.0), trade(2.0)]
    got = metrics.compute(np.array([100.0, 150.0, 200.0]), DAY, NOTHING, trades, 300.0)
    assert got["turnover"] == pytest.approx(2.0)
    assert got["hit_rate"] == 0.5  # a trade that ends even is no hit
    assert got["trades"] == 4.0
