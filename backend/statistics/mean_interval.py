"""Interval of a mean of independent values, as of what windows or seeds came to.

Student's interval for fewer than 12 values, a symmetric studentised bootstrap (Hall 1992) from there on. A percentile
bootstrap holds the mean too seldom where values are few: of 24 values with the tails of Student's t with 3 degrees in
91.8 of 100 cases instead of 95, of five values in 81 (`tests/backend/statistics/test_coverage.py`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_FEWEST_RESAMPLED = 12
RESAMPLES = 5000  # behind a 95 % interval: its ends are then known to a fiftieth of its width
_MOST_STILL = 0.05  # share of the resamples without any spread, which have no standard error


def mean_interval(values: npt.ArrayLike, samples: int, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean of independent `values` (n,), n >= 2, from `samples` resamples of them.

    For a paired comparison give the differences. Raises ValueError for fewer than two values or one that is not finite.
    """
    row = np.asarray(values, np.float64)
    if row.ndim != 1 or len(row) < 2 or not np.isfinite(row).all():
        raise ValueError(f"an interval needs at least two finite values, not {row.tolist()}")
    centre, count = float(row.mean()), len(row)
    scale = float(np.abs(row - centre).max())
    if scale <= 1e-15 * abs(centre):
        return centre, centre
    spread = (row - centre) / scale
    error = float(spread.std(ddof=1)) / math.sqrt(count)
    half = scale * error * _widths(spread, samples, seed, level)
    return centre - half, centre + half


def student_quantile(degrees: int, level: float) -> float:
    """How many standard errors to either side hold `level` of Student's t with `degrees` (1 or more) of freedom."""
    low, high = 0.0, 1.0
    while student_share(degrees, high) < level:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_share(degrees, middle) < level else (low, middle)
    return high


def _widths(spread: npt.NDArray[np.float64], samples: int, seed: int, level: float) -> float:
    """The half-width of the interval in standard errors, of values with the mean 0."""
    count = len(spread)
    if count >= _FEWEST_RESAMPLED:
        drawn = spread[np.random.default_rng(seed).integers(count, size=(samples, count))]
        errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
        known = errors > 1e-12
        if float(np.mean(~known)) <= _MOST_STILL:
            return float(np.quantile(np.abs(drawn.mean(axis=1)[known]) / errors[known], level))
    return student_quantile(count - 1, level)


def student_share(degrees: int, distance: float) -> float:
    """Share of Student's t within `distance` of 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(distance, math.sqrt(degrees))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2 == 1
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    first = 1 if odd else 0
    for power in range(first, degrees - 1, 2):
        total += term
        term *= square * (power + 1) / (power + 2)
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total
