"""Metrics against empyrical on random curves, conventions and shares by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backtest import metrics
from simulator.backtest.trades import Trade
from tests.examples import tried

DAY = 86_400_000
NOTHING = np.zeros((3, 1))


def trade(pnl: float) -> Trade:
    return Trade("A", 1.0, 0, 0, 100.0, DAY, 1, 100.0, pnl, 0.0, 0.0, "order")


@tried(100)
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
        "var_95": -empyrical.value_at_risk(returns),
        "cvar_95": -empyrical.conditional_value_at_risk(returns),
    }
    for name, value in expected.items():
        if math.isfinite(value):
            assert got[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


@tried(100)
@given(
    equity=st.lists(st.floats(-1e3, 1e6), min_size=0, max_size=20).map(lambda tail: np.array([1_000.0, *tail])),
    interval=st.sampled_from([60_000, DAY]),
)
def test_every_metric_is_finite(equity: metrics.FloatArray, interval: int) -> None:
    got = metrics.compute(equity, interval, np.zeros((len(equity), 2)), [], 1e9, {"fees": 3.0, "funding": -1e3}, 5)
    assert all(math.isfinite(value) for value in got.values()), got
    assert 0.0 <= got["max_drawdown"] <= 1.0


def test_conventions_where_a_ratio_has_no_meaning() -> None:
    still = metrics.compute(np.full(3, 50.0), DAY, NOTHING, [], 0.0)
    expected = dict.fromkeys(still, 0.0) | {"probabilistic_sharpe": 0.5, "deflated_sharpe": 0.5}
    assert still == expected
    steady = metrics.compute(100.0 * 1.01 ** np.arange(10.0), DAY, np.zeros((10, 1)), [], 0.0)
    assert (steady["sharpe"], steady["sortino"], steady["calmar"], steady["max_drawdown"]) == (0.0, 0.0, 0.0, 0.0)
    assert steady["annual_return"] == pytest.approx(1.01**365 - 1.0)


def test_an_account_that_died_stays_dead() -> None:
    got = metrics.compute(np.array([100.0, 110.0, -5.0, -5.0]), DAY, np.zeros((4, 1)), [], 0.0)
    assert metrics.returns_of(np.array([100.0, 110.0, -5.0, -5.0])) == pytest.approx([0.1, -1.0, 0.0])
    assert got["total_return"] == pytest.approx(-1.05)
    assert (got["annual_return"], got["max_drawdown"]) == (-1.0, 1.0)


def test_exposure_and_long_share_by_hand() -> None:
    """The first row is before any decision could act. Gross: 0.9, 0.3, 0 over three closes; long: 0.6 + 0 of 1.2."""
    exposure = np.array([[9.0, 9.0], [0.6, -0.3], [0.0, -0.3], [0.0, 0.0]])
    got = metrics.compute(np.full(4, 100.0), DAY, exposure, [], 0.0)
    assert got["exposure"] == pytest.approx(0.4)
    assert (got["long_share"], got["max_exposure"], got["time_in_market"]) == pytest.approx((0.5, 0.9, 2 / 3))


def test_turnover_and_hit_rate_by_hand() -> None:
    trades = [trade(5.0), trade(-1.0), trade(0.0), trade(2.0)]
    got = metrics.compute(np.array([100.0, 150.0, 200.0]), DAY, NOTHING, trades, 300.0)
    assert got["turnover"] == pytest.approx(2.0)
    assert got["hit_rate"] == 0.5  # a trade that ends even is no hit
    assert got["trades"] == 4.0
    assert got["annual_turnover"] == pytest.approx(2.0 * 365 / 2)


RETURNS = st.builds(
    lambda seed, count, scale: np.random.default_rng(seed).standard_t(4.0, count) * scale,
    st.integers(0, 2**32 - 1),
    st.integers(3, 200),
    st.floats(1e-4, 0.01),
)
PROPERTY = settings(max_examples=50, deadline=None)


def curve(returns: metrics.FloatArray, cash: float = 1_000.0) -> metrics.FloatArray:
    return np.asarray(cash * np.concatenate([[1.0], np.cumprod(1.0 + returns)]), np.float64)


@PROPERTY
@given(returns=RETURNS)
def test_moments_agree_with_scipy(returns: metrics.FloatArray) -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    assert metrics.skew(returns) == pytest.approx(stats.skew(returns), rel=1e-8, abs=1e-10)
    assert metrics.kurtosis(returns) == pytest.approx(stats.kurtosis(returns), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(
    ("equity", "expected"),
    [
        ([100, 101, 102], 0),
        ([100, 100, 100], 0),
        ([100, 90, 100], 2),
        ([100, 90, 95, 99, 98], 4),
        ([100, 90, 100, 95, 96, 97, 101, 100], 4),  # the longest is not the deepest
        ([100, 101, 90, 80, 85, 103, 102], 4),
        ([100, 99, 100, 101, 50], 2),
        ([100, 50, 0, 0], 3),
    ],
)
def test_times_below_the_peak_by_hand(equity: list[float], expected: int) -> None:
    values = np.array(equity, np.float64)
    assert metrics.longest_drawdown(metrics.returns_of(values)) == expected
    got = metrics.compute(values, DAY // 6, np.zeros((len(values), 1)), [], 0.0)
    assert got["longest_drawdown_days"] == pytest.approx(expected / 6)


# Each of these looks at the returns as a set.
ORDERLESS = ("volatility", "sharpe", "sortino", "var_95", "cvar_95", "skew", "kurtosis", "probabilistic_sharpe",
             "total_return")  # fmt: skip


@PROPERTY
@given(returns=RETURNS, seed=st.integers(0, 100), factor=st.floats(1e-3, 1e3))
def test_neither_the_order_of_the_bars_nor_the_money_matters(
    returns: metrics.FloatArray, seed: int, factor: float
) -> None:
    def measured(values: metrics.FloatArray, cash: float) -> dict[str, float]:
        trades = [trade(0.01 * cash), trade(-0.02 * cash)]
        paid = {"fees": 0.03 * cash, "spread": 0.01 * cash}
        return metrics.compute(curve(values, cash), DAY, np.zeros((len(values) + 1, 1)), trades, 5.0 * cash, paid)

    plain, rich = measured(returns, 1e4), measured(returns, 1e4 * factor)
    assert rich == pytest.approx(plain, rel=1e-5, abs=1e-7)
    shuffled = measured(np.random.default_rng(seed).permutation(returns), 1e4)
    for name in ORDERLESS:
        assert shuffled[name] == pytest.approx(plain[name], rel=1e-6, abs=1e-9), name


def test_the_deflated_sharpe_ratio_of_its_paper() -> None:
    """Its numerical example: 2.5 a year over 1,250 days, skew -3, kurtosis 10, trials with a variance of 1/2 a year."""
    daily = 2.5 / math.sqrt(250)
    luck = metrics.luckiest_sharpe(100, math.sqrt(0.5 / 250))
    assert luck == pytest.approx(0.1132, abs=1e-4)
    assert metrics.sharpe_confidence(daily, luck, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=1e-4)
    fewer = metrics.luckiest_sharpe(46, math.sqrt(0.5 / 250))
    assert metrics.sharpe_confidence(daily, fewer, 1250, -3.0, 10.0) == pytest.approx(0.9505, abs=1e-3)


@PROPERTY
@given(returns=RETURNS)
def test_more_trials_deserve_less_trust(returns: metrics.FloatArray) -> None:
    trust = [metrics.deflated_sharpe(returns, trials) for trials in (1, 2, 10, 1_000)]
    assert trust[0] == metrics.probabilistic_sharpe(returns)
    assert trust == sorted(trust, reverse=True)
    assert 0.0 <= trust[-1] <= trust[0] <= 1.0
    mirrored = metrics.probabilistic_sharpe(-returns)
    assert mirrored == pytest.approx(1.0 - trust[0], abs=1e-9)
