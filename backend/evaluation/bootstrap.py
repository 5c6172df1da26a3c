"""Percentile bootstrap of a mean (Efron 1979)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def mean_interval(values: npt.ArrayLike, samples: int, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of independent `values` (n,), n >= 2, by resampling them `samples` times with replacement.

    For a paired comparison give the differences. Raises ValueError for fewer than two values or one that is not finite.
    """
    row = np.asarray(values, np.float64)
    if row.ndim != 1 or len(row) < 2 or not np.isfinite(row).all():
        raise ValueError(f"an interval needs at least two finite values, not {row.tolist()}")
    rng = np.random.default_rng(seed)
    means = row[rng.integers(len(row), size=(samples, len(row)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
