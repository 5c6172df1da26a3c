"""Tests of curves of returns: how long a record must be, whether two Sharpe ratios differ, and what a curve owes to
holding.

The probabilistic and the deflated Sharpe ratio are in `simulator.backtest.metrics`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from backend.statistics.bootstrap import (
    FEWEST_RETURNS_FOR_INTERVAL,
    Interval,
    optimal_block,
    require_returns,
    varies,
)
from simulator.arrays import FloatArray, IntArray
from simulator.errors import DataError


@dataclass(frozen=True)
class SharpeDifference:
    """Two Sharpe ratios of a bar, on the same bars: their difference, its standard error and its two-sided p-value."""

    difference: float
    error: float
    p_value: float
    block: int


def minimum_track_record(
    sharpe: float, skew: float, kurtosis: float, *, benchmark: float = 0.0, confidence: float = 0.95
) -> float:
    """Returns that are needed before a Sharpe ratio of `sharpe` is above `benchmark` with `confidence`; infinite where
    it is not above it.

    Bailey and López de Prado, "The Sharpe Ratio Efficient Frontier", Journal of Risk 15 (2012). Both ratios are per
    bar; `kurtosis` is the full one, 3 for a normal.
    """
    if sharpe <= benchmark:
        return math.inf
    variance = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe * sharpe
    return 1.0 + variance * (NormalDist().inv_cdf(confidence) / (sharpe - benchmark)) ** 2


def sharpe_difference_test(
    ours: FloatArray, theirs: FloatArray, *, samples: int = 2_000, seed: int = 0
) -> SharpeDifference:
    """Whether two curves of returns (n,) of the same bars have different Sharpe ratios.

    Ledoit and Wolf, "Robust Performance Hypothesis Testing with the Sharpe Ratio", Journal of Empirical Finance 15
    (2008): circular blocks of both curves together, each resample studentised with the variance of its blocks. The
    blocks have the length that `optimal_block` finds for the difference's influence.

    Raises `DataError` for fewer than 30 returns, and where a curve does not vary.
    """
    require_returns(len(ours), FEWEST_RETURNS_FOR_INTERVAL, "a test of two Sharpe ratios")
    both = np.stack([ours, theirs])
    if not (varies(ours) and varies(theirs)):
        raise DataError("a test of two Sharpe ratios needs returns that vary")
    means, spread = both.mean(axis=1), both.std(axis=1)
    ratios = means / spread
    scores = (both - means[:, None]) / spread[:, None]
    influence = scores - ratios[:, None] / 2.0 * (scores * scores - 1.0)
    change = influence[0] - influence[1]
    difference = float(ratios[0] - ratios[1])
    block = max(1, round(optimal_block(change)))
    error = _block_error(change, block)
    if error == 0.0:
        return SharpeDifference(difference, 0.0, 1.0, block)
    pivots = _sharpe_pivots(both, block, samples, seed)
    beyond = int(np.sum(pivots >= abs(difference) / error))
    return SharpeDifference(difference, error, (1 + beyond) / (1 + len(pivots)), block)


def _block_error(change: FloatArray, block: int) -> float:
    """Standard error of the mean of `change`, from the sums of its circular blocks."""
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([change, change[: block - 1]]))])
    sums = running[block:] - running[:-block]
    return float(np.sqrt(np.mean(sums * sums) / block / len(change)))


def _sharpe_pivots(both: FloatArray, block: int, samples: int, seed: int) -> FloatArray:
    """(samples,): how many of its own standard errors each resampled difference is from the one that was seen."""
    count = both.shape[1]
    blocks = -(-count // block)
    length = blocks * block
    rng = np.random.default_rng(seed)
    seen = np.subtract(*(both.mean(axis=1) / both.std(axis=1)))
    pivots = []
    rows = max(1, 200_000 // length)
    for first in range(0, samples, rows):
        starts = rng.integers(count, size=(min(rows, samples - first), blocks))
        bars: IntArray = (starts[:, :, None] + np.arange(block)) % count
        drawn = both[:, bars].reshape(2, len(starts), length)
        means = drawn.mean(axis=2, keepdims=True)
        deviations = np.maximum(drawn.std(axis=2, keepdims=True), 1e-300)
        ratios = means / deviations
        scores = (drawn - means) / deviations
        influence = scores - ratios / 2.0 * (scores * scores - 1.0)
        sums = (influence[0] - influence[1]).reshape(len(starts), blocks, block).sum(axis=2)
        errors = np.sqrt((sums * sums).sum(axis=1)) / length
        change = np.abs((ratios[0] - ratios[1])[:, 0] - seen)
        pivots.append(change[errors > 0.0] / errors[errors > 0.0])
    return np.concatenate(pivots)


@dataclass(frozen=True)
class HoldRegression:
    """A regression of returns on those of holding.

    Attributes:
        alpha: what was earned a bar beyond `beta` times holding, with its interval. alpha_year: the same times the bars
            of a year.
        beta: the part of holding's returns that was taken. share: R², how much of the variance that explains.
        p_value: two-sided, of no alpha.
    """

    alpha: Interval
    alpha_year: Interval
    beta: Interval
    share: float
    p_value: float


def hold_regression(returns: FloatArray, held: FloatArray, per_year: float, level: float = 0.95) -> HoldRegression:
    """Alpha and beta of `returns` (n,) to those of holding (n,) on the same bars.

    Ordinary least squares with the standard errors of Newey and West (1987), lag floor(4 (n / 100)^(2/9)), so that
    neither changing volatility nor what neighbouring bars have to do with each other makes them too small. Raises
    `DataError` for fewer than 30 returns, and where holding does not vary.
    """
    count = len(returns)
    require_returns(count, FEWEST_RETURNS_FOR_INTERVAL, "alpha and beta")
    centred = held - held.mean()
    variance = float(np.mean(centred * centred))
    if variance <= 1e-24:
        raise DataError("alpha and beta need a holding whose returns vary")
    beta = float(np.mean(centred * returns)) / variance
    alpha = float(returns.mean() - beta * held.mean())
    rest = returns - alpha - beta * held
    design = np.stack([np.ones(count), held], axis=1)
    scores = design * rest[:, None]
    middle = scores.T @ scores
    lags = int(4.0 * (count / 100.0) ** (2.0 / 9.0))
    for lag in range(1, lags + 1):
        cross = scores[lag:].T @ scores[:-lag]
        middle += (1.0 - lag / (lags + 1.0)) * (cross + cross.T)
    bread = np.linalg.inv(design.T @ design)
    errors = np.sqrt(np.maximum(np.diag(bread @ middle @ bread), 0.0)).tolist()
    distance = NormalDist().inv_cdf((1.0 + level) / 2.0)
    bar = Interval(alpha, alpha - distance * errors[0], alpha + distance * errors[0])
    spread = float(returns.var())
    score = abs(alpha) / errors[0] if errors[0] > 0.0 else (0.0 if alpha == 0.0 else math.inf)
    return HoldRegression(
        alpha=bar,
        alpha_year=Interval(*(per_year * end for end in bar)),
        beta=Interval(beta, beta - distance * errors[1], beta + distance * errors[1]),
        share=1.0 - float(rest.var()) / spread if spread > 0.0 else 0.0,
        p_value=2.0 * (1.0 - NormalDist().cdf(score)),
    )


def break_even_cost(net_profit: float, costs: float, traded: float) -> float | None:
    """The cost of trading, as a share of the traded value, at which nothing is left of the profit before costs.

    `costs` are what was paid, `traded` the sum of the notionals of all fills. It takes the same trades and sizes for
    granted, so it is exact for small costs. None where nothing was traded. Negative: it lost money before costs, too.
    """
    return (net_profit + costs) / traded if traded > 0.0 else None
