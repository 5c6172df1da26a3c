import numpy as np
import pytest

from backend.statistics.curve_tests import break_even_cost, hold_regression
from simulator.errors import DataError


def test_what_holding_explains_wholly() -> None:
    held = np.random.default_rng(1).normal(0.0, 0.02, 200)
    found = hold_regression(0.001 + 0.5 * held, held, 365.0)
    assert found.alpha.value == pytest.approx(0.001) and found.beta.value == pytest.approx(0.5)
    assert found.share == pytest.approx(1.0) and found.p_value == pytest.approx(0.0, abs=1e-9)
    assert found.alpha_year.value == pytest.approx(0.365)


def test_the_errors_of_newey_and_west_in_full() -> None:
    """The textbook's double sum over bars and lags."""
    rng = np.random.default_rng(2)
    held = rng.normal(0.0, 0.02, 120)
    returns = 0.3 * held + rng.normal(0.0, 0.01, 120)
    found = hold_regression(returns, held, 365.0)
    design = np.stack([np.ones(120), held], axis=1)
    line = np.linalg.lstsq(design, returns, rcond=None)[0]
    rest = returns - design @ line
    middle = np.zeros((2, 2))
    for one in range(120):
        for other in range(max(0, one - 4), min(120, one + 5)):
            weight = 1.0 - abs(one - other) / 5.0
            middle += weight * rest[one] * rest[other] * np.outer(design[one], design[other])
    bread = np.linalg.inv(design.T @ design)
    errors = np.sqrt(np.diag(bread @ middle @ bread))
    assert (found.alpha.value, found.beta.value) == pytest.approx(tuple(line))
    assert found.alpha.high - found.alpha.value == pytest.approx(1.959964 * errors[0], rel=1e-5)
    assert found.beta.high - found.beta.value == pytest.approx(1.959964 * errors[1], rel=1e-5)


def test_alpha_of_luck_is_seldom_significant() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(200):
        held = rng.standard_t(4, 200)
        found.append(hold_regression(0.5 * held + rng.standard_t(4, 200), held, 1.0).p_value)
    assert np.mean(np.array(found) < 0.05) <= 0.10


def test_what_cannot_be_regressed_says_why() -> None:
    with pytest.raises(DataError, match="alpha and beta: it takes 30, and there are 5"):
        hold_regression(np.zeros(5), np.zeros(5), 365.0)
    with pytest.raises(DataError, match="returns vary"):
        hold_regression(np.ones(40), np.zeros(40), 365.0)


def test_the_cost_at_which_nothing_is_left() -> None:
    assert break_even_cost(80.0, 20.0, 50_000.0) == pytest.approx(0.002)
    assert break_even_cost(-120.0, 20.0, 50_000.0) == pytest.approx(-0.002)
    assert break_even_cost(5.0, 0.0, 0.0) is None
