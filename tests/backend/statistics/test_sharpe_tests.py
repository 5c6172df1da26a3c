import math

import numpy as np
import pytest

from backend.statistics.sharpe_tests import sharpe_difference_test
from simulator.arrays import FloatArray
from simulator.errors import DataError


def pair(count: int, correlation: float, seed: int) -> tuple[FloatArray, FloatArray]:
    first, second = np.random.default_rng(seed).standard_normal((2, count))
    return first, correlation * first + math.sqrt(1.0 - correlation**2) * second


def test_the_error_of_independent_normal_returns_has_a_closed_form() -> None:
    """Memmel (2003), after Jobson and Korkie (1981)."""
    ours, theirs = pair(20_000, 0.6, 1)
    ours, theirs = ours + 0.1, theirs + 0.05
    a, b, r = 0.1, 0.05, 0.6
    known = math.sqrt((2.0 - 2.0 * r + 0.5 * (a * a + b * b - 2.0 * a * b * r * r)) / 20_000)
    found = sharpe_difference_test(ours, theirs, samples=200)
    assert found.error == pytest.approx(known, rel=0.05)
    assert found.difference == pytest.approx(0.05, abs=3.0 * known)
    assert found.p_value < 0.01


def test_equal_skill_is_seldom_called_different() -> None:
    found = [sharpe_difference_test(*pair(120, 0.5, seed), samples=200).p_value for seed in range(120)]
    assert np.mean(np.array(found) < 0.05) <= 0.11
    assert np.mean(np.array(found) < 0.5) == pytest.approx(0.5, abs=0.15)


def test_the_same_curve_twice_and_what_is_too_short() -> None:
    ours, theirs = pair(40, 0.5, 1)
    assert sharpe_difference_test(ours, ours, samples=100).p_value == 1.0
    with pytest.raises(DataError, match="it takes 30, and there are 10"):
        sharpe_difference_test(ours[:10], theirs[:10])
    with pytest.raises(DataError, match="returns that vary"):
        sharpe_difference_test(ours, np.zeros(40))
