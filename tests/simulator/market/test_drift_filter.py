"""The filter of the drift, of a coin alone and beside others: against a sum over all courses that the hidden drifts can
take, its symmetries, and what it knows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.market import drift_filter
from simulator.market.drift_filter import drift_belief, pooled_drift_belief
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from simulator.synthetic.truth import truth_of

SEEDS = st.integers(0, 2**32 - 1)
SYMBOLS = ("AAAUSDT", "BBBUSDT", "CCCUSDT", "DDDUSDT")


def returns_of(seed: int, count: int = 60, coins: int = 3) -> FloatArray:
    rng = np.random.default_rng(seed)
    return (rng.standard_t(5, (count, 1)) + rng.standard_t(5, (count, coins))) * 0.01


def density(away: FloatArray, correlation: float) -> float:
    """Of Student's t with unit variances, up to a factor that depends on its dimension alone."""
    shape = np.full((len(away), len(away)), correlation) + (1.0 - correlation) * np.eye(len(away))
    distance = away @ np.linalg.inv(shape) @ away
    freedom = drift_filter.TAIL_FREEDOM
    return float((1.0 + distance / (freedom - 2.0)) ** (-0.5 * (freedom + len(away))))


def turning(before: tuple[int, ...], after: tuple[int, ...], common: float) -> float:
    """The chance that drifts turn from one state into another, where a share of the turns is common to all coins."""
    chance = 1.0 / drift_filter.MEAN_BARS
    own = 1.0 - (1.0 - chance) / (1.0 - common)
    alone = math.prod(own / 3.0 + (1.0 - own) * float(a == b) for a, b in zip(before, after, strict=True))
    return (1.0 - common) * alone + common / 3.0 * float(len({*after}) == 1)


def by_enumeration(returns: FloatArray, variances: list[float], correlation: float, drift: float) -> FloatArray:
    """P(down), P(none), P(up) of the first coin after `returns` (bars, coins): all courses of the drifts, each by its
    probability."""
    coins = returns.shape[1]
    common = drift_filter.COMMON_TURNS / drift_filter.MEAN_BARS if coins > 1 else 0.0
    states = list(itertools.product((-1, 0, 1), repeat=coins))
    now, weight = np.array(variances), dict.fromkeys(states, 1.0 / len(states))
    for row in returns:
        known, scaled = ~np.isnan(row), row / np.sqrt(now)
        seen = {
            state: weight[state] * density((scaled - drift * np.array(state))[known], correlation) for state in states
        }
        weight = {after: sum(seen[before] * turning(before, after, common) for before in states) for after in states}
        counted = np.minimum(row**2, drift_filter.LARGEST_RETURN**2 * now)
        now = np.where(known, drift_filter.FADING * now + (1.0 - drift_filter.FADING) * counted, now)
    first = np.array([sum(weight[state] for state in states if state[0] == sign) for sign in (-1, 0, 1)])
    return first / first.sum()


@pytest.mark.parametrize("absent", [(), ((1, 0),), ((2, 1), (3, 1)), ((0, 0), (0, 1))])
@pytest.mark.parametrize("coins", [1, 2])
def test_is_the_posterior_of_the_last_drifts(coins: int, absent: tuple[tuple[int, int], ...]) -> None:
    returns = returns_of(3, 8, 2)
    returns[5, 0] = 0.2  # a jump
    for place in absent:
        returns[place] = np.nan
    if coins == 1:
        chances = drift_filter._alone(np.ascontiguousarray(returns[:, 0]), 1e-4, drift_filter.DRIFT)
        expected = by_enumeration(returns[:, :1], [1e-4], 0.0, drift_filter.DRIFT)
    else:
        chances = drift_filter._beside(returns, 1e-4, 3e-4, 0.6)
        expected = by_enumeration(returns, [1e-4, 3e-4], 0.6, drift_filter.POOLED_DRIFT)
    assert chances == pytest.approx(expected, abs=1e-12)


@given(seed=SEEDS, jump=st.floats(-0.3, 0.3))
def test_a_jump_does_not_drown_what_comes_after_it(seed: int, jump: float) -> None:
    """Half a day after a jump, however large, a rise is seen nearly as it is without one."""
    returns = returns_of(seed)[:, 0]
    rise = np.concatenate([returns, np.zeros(1), 0.01 + 0.3 * returns[:12]])
    jumped = rise.copy()
    jumped[len(returns)] = jump
    assert drift_belief(jumped) > drift_belief(rise) - 0.5


@settings(max_examples=60)
@given(seed=SEEDS, scale=st.floats(1e-4, 1e4), absent=st.integers(0, 20))
def test_is_odd_and_knows_neither_unit_nor_order(seed: int, scale: float, absent: int) -> None:
    returns = returns_of(seed)
    returns[np.random.default_rng(seed).integers(0, 60, absent), 2] = np.nan
    belief, alone = pooled_drift_belief(returns, 0), drift_belief(returns[:, 0])
    assert -1.0 < belief < 1.0 and -1.0 < alone < 1.0
    assert drift_belief(-returns[:, 0]) == pytest.approx(-alone, abs=1e-12)
    assert drift_belief(scale * returns[:, 0]) == pytest.approx(alone, rel=1e-6, abs=1e-9)
    assert pooled_drift_belief(-returns, 0) == pytest.approx(-belief, abs=1e-9)
    assert pooled_drift_belief(returns * np.array([1.0, scale, 1.0]), 0) == pytest.approx(belief, rel=1e-6, abs=1e-9)
    assert pooled_drift_belief(returns[:, [1, 0, 2]], 1) == pytest.approx(belief, abs=1e-9)
    assert pooled_drift_belief(returns[:, [0, 2, 1]], 0) == pytest.approx(belief, abs=1e-9)


@given(seed=SEEDS, gap=st.integers(1, 30))
def test_looks_back_no_further_than_it_says_and_absent_bars_make_it_less_sure(seed: int, gap: int) -> None:
    returns = returns_of(seed, drift_filter.FILTER_BARS + 50)
    assert pooled_drift_belief(returns, 1) == pooled_drift_belief(returns[50:], 1)
    assert drift_belief(returns[:, 0]) == drift_belief(returns[50:, 0])
    last = returns[-60:, 0]
    after = drift_belief(np.concatenate([last, np.full(gap, np.nan)]))
    assert after == pytest.approx((1.0 - 1.0 / drift_filter.MEAN_BARS) ** gap * drift_belief(last), rel=1e-9)


def test_too_little_is_nan() -> None:
    assert math.isnan(drift_belief(returns_of(1, drift_filter.WARM_UP - 1)[:, 0]))
    assert math.isnan(drift_belief(np.zeros(50)))
    assert math.isnan(drift_belief(np.full(50, np.nan)))


def test_a_coin_that_is_not_there_says_nothing() -> None:
    returns = returns_of(5, 60, 2)
    returns[:, 1] = np.nan
    alone = drift_filter._alone(np.ascontiguousarray(returns[:, 0]), 1e-4, drift_filter.POOLED_DRIFT)
    assert drift_filter._beside(returns, 1e-4, 1e-4, 0.5) == pytest.approx(alone, abs=1e-12)
    assert pooled_drift_belief(returns, 0) == drift_belief(returns[:, 0])
    assert pooled_drift_belief(returns[:, :1], 0) == drift_belief(returns[:, 0])
    assert math.isnan(pooled_drift_belief(returns, 1))
    returns[:, 1] = 0.0  # a price that stands still has no volatility
    assert pooled_drift_belief(returns, 0) == drift_belief(returns[:, 0])
    few = returns_of(5, 60, 2)
    few[: 60 - drift_filter.LEAST_COMMON + 1, 1] = np.nan
    assert pooled_drift_belief(few, 0) == drift_belief(few[:, 0])
    assert pooled_drift_belief(few[1:], 0) == drift_belief(few[1:, 0])


def test_it_knows_more_of_the_drift_than_a_coin_alone_shows() -> None:
    """Of a generated market, by the correlation with the hidden regime of the next bar."""
    market = generate(SyntheticConfig(bars=6000, seed=3, symbols=SYMBOLS, kind="private", drift_ratio=0.45))
    returns, hidden = np.diff(np.log(market.close), axis=0), truth_of(market).regime
    bars = np.arange(300, 5999, 7)
    shown = {
        name: np.array([[belief(returns[:bar], column) for column in range(4)] for bar in bars])
        for name, belief in (
            ("pooled", pooled_drift_belief),
            ("alone", lambda one, column: drift_belief(one[:, column])),
        )
    }
    known = {name: float(np.corrcoef(rows.ravel(), hidden[bars].ravel())[0, 1]) for name, rows in shown.items()}
    assert known["pooled"] > known["alone"] + 0.01, known
