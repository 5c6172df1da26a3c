"""The filter of the drift against a sum over all courses that the hidden drift can take, and its symmetries."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.market import drift_filter
from simulator.market.drift_filter import drift_belief

SEEDS = st.integers(0, 2**32 - 1)


def returns_of(seed: int, count: int = 60) -> FloatArray:
    return np.random.default_rng(seed).standard_t(5, count) * 0.01


def student_t(x: float, freedom: float = drift_filter.TAIL_FREEDOM) -> float:
    """Density of Student's t of variance 1."""
    scale = math.sqrt((freedom - 2) / freedom)
    height = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2) * scale)
    return height * (1 + (x / scale) ** 2 / freedom) ** (-(freedom + 1) / 2)


def faded(variance: float, value: float, largest: float = drift_filter.LARGEST_RETURN) -> float:
    """The variance after a return, which counts as `largest` volatilities at most."""
    counted = min(value**2, largest**2 * variance)
    return drift_filter.FADING * variance + (1.0 - drift_filter.FADING) * counted


def by_enumeration(returns: FloatArray, variance: float) -> float:
    """P(up) - P(down) after `returns`: all 3^(n+1) courses of the drift, each by its probability."""
    weight = np.zeros(3)
    stay = 1.0 - 1.0 / drift_filter.MEAN_BARS
    scales, now = [], variance
    for value in returns:
        scales.append(math.sqrt(now))
        if not math.isnan(value):
            now = faded(now, value)
    for course in itertools.product((-1, 0, 1), repeat=len(returns) + 1):
        probability = 1.0 / 3.0
        for before, after in itertools.pairwise(course):
            probability *= stay * (before == after) + (1.0 - stay) / 3.0
        for state, value, scale in zip(course, returns, scales, strict=False):
            if not math.isnan(value):
                probability *= student_t(value / scale - state * drift_filter.DRIFT)
        weight[course[-1] + 1] += probability
    return float((weight[2] - weight[0]) / weight.sum())


def up_less_down(returns: FloatArray) -> float:
    belief = drift_filter._alone(returns, 1e-4, drift_filter.DRIFT)
    return float(belief[2] - belief[0])


@pytest.mark.parametrize("absent", [(), (0,), (2, 3)])
def test_is_the_posterior_of_the_last_drift(absent: tuple[int, ...]) -> None:
    returns = returns_of(3, 5)
    returns[list(absent)] = np.nan
    assert up_less_down(returns) == pytest.approx(by_enumeration(returns, 1e-4), abs=1e-12)


def test_is_the_posterior_after_a_jump() -> None:
    returns = returns_of(3, 5)
    returns[1] = 0.15
    assert up_less_down(returns) == pytest.approx(by_enumeration(returns, 1e-4), abs=1e-12)


@given(seed=SEEDS, jump=st.floats(-0.3, 0.3))
def test_a_jump_does_not_drown_what_comes_after_it(seed: int, jump: float) -> None:
    """Half a day after a jump, however large, a rise is seen nearly as it is without one."""
    returns = returns_of(seed)
    rise = np.concatenate([returns, np.zeros(1), 0.01 + 0.3 * returns[:12]])
    jumped = rise.copy()
    jumped[len(returns)] = jump
    assert drift_belief(jumped) > drift_belief(rise) - 0.5


@settings(max_examples=60)
@given(seed=SEEDS, scale=st.floats(1e-4, 1e4))
def test_is_odd_and_knows_no_unit(seed: int, scale: float) -> None:
    returns = returns_of(seed)
    belief = drift_belief(returns)
    assert -1.0 < belief < 1.0
    assert drift_belief(-returns) == pytest.approx(-belief, abs=1e-12)
    assert drift_belief(scale * returns) == pytest.approx(belief, rel=1e-6, abs=1e-9)


@given(seed=SEEDS)
def test_looks_back_no_further_than_it_says(seed: int) -> None:
    returns = returns_of(seed, drift_filter.FILTER_BARS + 50)
    assert drift_belief(returns) == drift_belief(returns[50:])


@given(seed=SEEDS, gap=st.integers(1, 30))
def test_absent_bars_make_it_less_sure(seed: int, gap: int) -> None:
    returns = returns_of(seed)
    after = drift_belief(np.concatenate([returns, np.full(gap, np.nan)]))
    fades = (1.0 - 1.0 / drift_filter.MEAN_BARS) ** gap
    assert after == pytest.approx(fades * drift_belief(returns), rel=1e-9)


def test_too_little_is_nan() -> None:
    assert math.isnan(drift_belief(returns_of(1, drift_filter.WARM_UP - 1)))
    assert math.isnan(drift_belief(np.zeros(50)))
    assert math.isnan(drift_belief(np.full(50, np.nan)))
