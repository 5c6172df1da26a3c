import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.statistics.bootstrap import (
    optimal_block,
    stationary_error,
    window_intervals,
)
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.errors import DataError


def wave(count: int, phi: float, seed: int) -> FloatArray:
    """An autoregression of first order."""
    shocks = np.random.default_rng(seed).standard_normal(count)
    values = shocks.copy()
    for step in range(1, count):
        values[step] = phi * values[step - 1] + shocks[step]
    return values


def test_the_block_of_another_program() -> None:
    """arch 8.0.0 finds 2.35900661 for these draws."""
    assert optimal_block(wave(1000, 0.0, 5)) == pytest.approx(2.35900661)


@pytest.mark.parametrize("phi", [0.3, 0.7])
def test_the_block_that_theory_has_for_an_autoregression(phi: float) -> None:
    """Politis and White (2004): (2 G² / D)^(1/3) n^(1/3) with D = 2 g(0)², both known for one of first order."""
    found = np.median([optimal_block(wave(2_000, phi, seed)) for seed in range(15)])
    known = ((2.0 * phi / (1.0 - phi**2)) ** 2 * 2_000) ** (1 / 3)
    assert found == pytest.approx(known, rel=0.35)


@pytest.mark.parametrize(("phi", "block"), [(0.0, 1.0), (0.5, 6.0)])
def test_the_standard_error_and_the_resamples_agree_with_a_plain_loop(phi: float, block: float) -> None:
    count, rng = 80, np.random.default_rng(1)
    returns = 0.01 * wave(count, phi, 2)
    means, depths = [], []
    for _ in range(3_000):
        bars = np.empty(count, int)
        for step in range(count):
            fresh = step == 0 or rng.random() < 1.0 / block
            bars[step] = rng.integers(count) if fresh else (bars[step - 1] + 1) % count
        means.append(returns[bars].mean())
        depths.append(metrics.max_drawdown(returns[bars]))
    assert np.std(means) == pytest.approx(stationary_error(returns, block), rel=0.05)
    if block == optimal_block(returns):
        found = window_intervals(returns, 365.0, samples=3_000, seed=3).max_drawdown
        assert [found.low, found.high] == pytest.approx(np.quantile(depths, [0.025, 0.975]).tolist(), rel=0.08)


def test_the_estimates_are_those_of_the_metrics_and_equal_seeds_give_equal_intervals() -> None:
    returns, held = 0.01 * wave(300, 0.2, 3) + 0.001, 0.02 * wave(300, 0.0, 4)
    found = window_intervals(returns, 365.0, held, samples=500, seed=7)
    assert found.total_return.value == pytest.approx(np.prod(1.0 + returns) - 1.0)
    assert found.sharpe.value == pytest.approx(metrics.sharpe(returns, 365.0))
    assert found.max_drawdown.value == pytest.approx(metrics.max_drawdown(returns))
    assert found.against is not None
    assert found.against.value == pytest.approx(np.prod(1.0 + returns) / np.prod(1.0 + held) - 1.0)
    for one in (found.total_return, found.sharpe, found.against):
        assert one.low < one.value < one.high
    assert found == window_intervals(returns, 365.0, held, samples=500, seed=7)
    assert window_intervals(returns, 365.0, returns, samples=500).against == (0.0, 0.0, 0.0)
    assert found != window_intervals(returns, 365.0, held, samples=500, seed=8)
    wider = window_intervals(returns, 365.0, held, samples=500, seed=7, level=0.99)
    assert wider.sharpe.low < found.sharpe.low and found.sharpe.high < wider.sharpe.high


@given(scale=st.floats(1e-3, 5.0), seed=st.integers(0, 20))
def test_the_sharpe_interval_does_not_change_with_the_size_of_the_position(scale: float, seed: int) -> None:
    returns = 0.01 * wave(60, 0.0, seed)
    one, other = (window_intervals(returns * by, 365.0, samples=200).sharpe for by in (1.0, scale))
    assert other == pytest.approx(one, rel=1e-6)


def test_what_has_no_interval_is_refused_with_the_reason() -> None:
    with pytest.raises(DataError, match="it takes 30, and there are 29"):
        window_intervals(np.linspace(-0.1, 0.1, 29), 365.0)
    with pytest.raises(DataError, match="returns that vary"):
        window_intervals(np.zeros(40), 365.0)
    ruined = np.r_[np.linspace(-0.1, 0.1, 39), -1.0]
    with pytest.raises(DataError, match="not ruined"):
        window_intervals(ruined, 365.0)
    with pytest.raises(ValueError, match="same bars"):
        window_intervals(np.linspace(-0.1, 0.1, 40), 365.0, np.zeros(41))
