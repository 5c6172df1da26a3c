"""What choosing among many ways of trading does to the evidence: the probability of overfitting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError

_MOST_SPLITS = 12_870  # of 16 parts


@dataclass(frozen=True)
class Overfitting:
    """What became of the way of trading that was best in one half of the bars, over all ways to halve them.

    Attributes:
        probability: how often it was below the median in the other half (PBO); 0.5 is a choice that is worth nothing.
        loss_probability: how often it lost money there.
        slope: of its Sharpe ratio in the other half over that in the half where it was chosen.
        splits: halvings that were looked at.
    """

    probability: float
    loss_probability: float
    slope: float
    splits: int


def overfitting(returns: FloatArray, parts: int = 16) -> Overfitting:
    """Combinatorially symmetric cross-validation of `returns` (bars, ways of trading).

    Bailey, Borwein, López de Prado and Zhu, "The Probability of Backtest Overfitting", Journal of Computational Finance
    20 (2017). `parts` is even, 16 at most; bars that are left over at the beginning are not used. The measure is the
    Sharpe ratio. Raises `DataError` for fewer than two ways of trading, or fewer than two bars in a part.
    """
    if parts < 2 or parts % 2 or math.comb(parts, parts // 2) > _MOST_SPLITS:
        raise ValueError(f"parts is {parts}; it must be even, and from 2 to 16")
    bars, ways = returns.shape
    if ways < 2:
        raise DataError("the probability of overfitting needs two ways of trading or more: with one nothing was chosen")
    if bars < 2 * parts:
        raise DataError(f"the probability of overfitting needs {2 * parts} returns for {parts} parts, there are {bars}")
    size = bars // parts
    used = returns[bars - size * parts :].reshape(parts, size, ways)
    sums, squares = used.sum(axis=1), (used * used).sum(axis=1)
    chosen = np.array(list(combinations(range(parts), parts // 2)))
    inside = np.zeros((len(chosen), parts))
    np.put_along_axis(inside, chosen, 1.0, axis=1)
    seen, unseen = (_ratios(half, sums, squares, size * parts // 2) for half in (inside, 1.0 - inside))
    best = seen.argmax(axis=1)
    rows = np.arange(len(chosen))
    value = unseen[rows, best]
    # Ties count half, so that equal ways are in the middle.
    below = (unseen < value[:, None]).sum(axis=1) + 0.5 * ((unseen == value[:, None]).sum(axis=1) - 1)
    rank = (below + 1.0) / (ways + 1.0)
    before = seen[rows, best]
    varies = float(np.ptp(before)) > 0.0
    slope = float(np.polyfit(before, value, 1)[0]) if varies else 0.0
    lost = float(np.mean(((1.0 - inside) @ sums)[rows, best] < 0.0))
    return Overfitting(float(np.mean(rank < 0.5) + 0.5 * np.mean(rank == 0.5)), lost, slope, len(chosen))


def _ratios(half: FloatArray, sums: FloatArray, squares: FloatArray, count: int) -> FloatArray:
    """(splits, ways): Sharpe ratio of a bar in the parts that `half` (splits, parts) marks; 0 without spread."""
    means = half @ sums / count
    variances = half @ squares / count - means * means
    still = variances <= 1e-24
    return np.where(still, 0.0, means / np.sqrt(np.where(still, 1.0, variances)))
