"""How often intervals hold what they should, by simulation. Nominal is 95 in 100."""

import numpy as np
import pytest

from backend.statistics.bootstrap import window_intervals
from backend.statistics.mean_interval import mean_interval, student_quantile
from simulator.arrays import FloatArray


def autocorrelated(rows: int, count: int, rng: np.random.Generator) -> FloatArray:
    values = 0.02 * rng.standard_t(4, (rows, count + 50))
    for step in range(1, count + 50):
        values[:, step] += 0.2 * values[:, step - 1]
    return np.clip(0.002 + values[:, 50:], -0.8, 5.0)


def test_the_intervals_of_a_window_hold_the_truth_about_as_often_as_they_say() -> None:
    """The truth is taken from two million bars."""
    count, rows, inside = 250, 100, []
    long = autocorrelated(2_000, 1_000, np.random.default_rng(9)).ravel()
    sharpe, growth = long.mean() / long.std(), np.log1p(long).mean()
    rng = np.random.default_rng(count)
    ours, theirs = (autocorrelated(rows, count, rng) for _ in range(2))
    for number in range(rows):
        found = window_intervals(ours[number], 1.0, theirs[number], samples=500, seed=number)
        assert found.against is not None
        inside.append(
            (
                found.total_return.low <= np.expm1(count * growth) <= found.total_return.high,
                found.sharpe.low <= sharpe <= found.sharpe.high,
                found.against.low <= 0.0 <= found.against.high,
            )
        )
    assert all(0.86 <= share <= 1.0 for share in np.mean(inside, axis=0)), "return, Sharpe ratio, against another"


def test_the_interval_of_24_windows_with_fat_tails() -> None:
    """A percentile bootstrap held 91.8 %."""
    rng = np.random.default_rng(1)
    intervals = [mean_interval(rng.standard_t(3, 24), 400, 3) for _ in range(600)]
    assert 0.925 <= np.mean([low <= 0.0 <= high for low, high in intervals]) <= 0.98


@pytest.mark.parametrize(("degrees", "known"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (10, 2.2281), (30, 2.0423)])
def test_the_quantiles_of_student(degrees: int, known: float) -> None:
    assert student_quantile(degrees, 0.95) == pytest.approx(known, abs=1e-4)
