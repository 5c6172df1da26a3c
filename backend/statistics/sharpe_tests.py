"""Whether two Sharpe ratios differ. The probabilistic and the deflated one are in `simulator.backtest.metrics`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backend.statistics.bootstrap import (
    FEWEST_RETURNS_FOR_INTERVAL,
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


def sharpe_difference_test(
    ours: FloatArray, theirs: FloatArray, *, samples: int = 2_000, seed: int = 0
) -> SharpeDifference:
    """Whether two curves of returns (n,) of the same bars have different Sharpe ratios.

    Ledoit and Wolf, "Robust Performance Hypothesis Testing with the Sharpe Ratio", Journal of Empirical Finance 15
    (2008): circular blocks of both curves together, each resample studentized with the variance of its blocks. The
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
