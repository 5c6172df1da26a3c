"""The filter of the drift against a sum over all courses that the hidden drift can take, and its symmetries."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.market import drift_filter
from simulator.market.drift_filter import drift_belief
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of

ROOT = Path(__file__).resolve().parents[3]
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


def log_likelihood(returns: FloatArray, largest: float) -> float:
    """Mean log density of each return given those before it, by the filter's model."""
    belief, variance, total = np.full(3, 1.0 / 3.0), float(np.var(returns[: drift_filter.WARM_UP])), 0.0
    drifts = np.array([-1.0, 0.0, 1.0]) * drift_filter.DRIFT
    half = (drift_filter.TAIL_FREEDOM + 1.0) / 2.0
    height = student_t(0.0)
    for value in returns:
        z = value / math.sqrt(variance)
        belief = belief * height * (1.0 + (z - drifts) ** 2 / (drift_filter.TAIL_FREEDOM - 2.0)) ** -half
        likely = float(belief.sum())
        total += math.log(likely) - math.log(variance) / 2.0
        variance = faded(variance, float(value), largest)
        belief = belief / likely
        belief += (1.0 / 3.0 - belief) / drift_filter.MEAN_BARS
    return total / len(returns)


def test_the_bound_on_a_jump_makes_recorded_returns_likelier() -> None:
    """On each of ten coins, bars of four hours. With a bound of three volatilities it is not so on all of them."""
    folder = Path(os.environ.get("CRYPTOSENTINEL_SHARED", ROOT.parent / "shared")) / "market-data" / "binance"
    if not folder.is_dir():
        pytest.skip(f"no recorded market data at {folder} (set CRYPTOSENTINEL_SHARED to the folder that holds it)")
    coins = sorted(folder.glob("*-1h.parquet"))[:10]
    assert len(coins) == 10
    for coin in coins:
        close = pd.read_parquet(coin)["close"].to_numpy(np.float64)[::4]
        returns = np.diff(np.log(close[-4000:]))
        assert log_likelihood(returns, drift_filter.LARGEST_RETURN) > log_likelihood(returns, math.inf), coin.stem


def test_too_little_is_nan() -> None:
    assert math.isnan(drift_belief(returns_of(1, drift_filter.WARM_UP - 1)))
    assert math.isnan(drift_belief(np.zeros(50)))
    assert math.isnan(drift_belief(np.full(50, np.nan)))


def test_the_filter_follows_a_hidden_regime() -> None:
    market = generate(SyntheticConfig(bars=4000, seed=5, drift_ratio=0.45))
    returns = np.diff(np.log(market.close), axis=0, prepend=np.nan)
    bars = range(drift_filter.FILTER_BARS, 4000, 5)
    beliefs = np.array([[drift_belief(returns[: bar + 1, column]) for column in range(4)] for bar in bars])
    regimes = truth_of(market).regime[list(bars)]
    assert np.corrcoef(beliefs.ravel(), regimes.ravel())[0, 1] > 0.5
