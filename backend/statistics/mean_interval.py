"""Intervals of means: of independent values, as of what windows or seeds came to, and of seeds × windows; and p-values
of several comparisons.

Of independent values it is Student's interval for fewer than 12, a symmetric studentized bootstrap (Hall 1992) from
there on. A percentile bootstrap holds the mean too seldom where values are few: of 24 values with the tails of
Student's t with 3 degrees in 91.8 of 100 cases instead of 95, of five values in 81
(`tests/backend/statistics/test_coverage.py`).

The windows of one seed have something in common (a training, often a market), so seeds × windows are not independent
values: to pool them makes an interval that is far too narrow. There are two designs:

* nested: each seed has windows of its own, as where it generates its own market. Only the means of the seeds are
  independent, and the interval is Student's of these.
* crossed: all seeds trade the same windows of one history. Both are drawn, so both add variance: a random-effects
  analysis of variance in two ways without replication, with Satterthwaite's degrees of freedom (Searle, Casella and
  McCulloch, "Variance Components", 1992, chapter 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.errors import DataError

_FEWEST_RESAMPLED = 12
RESAMPLES = 5000  # behind a 95 % interval: its ends are then known to a fiftieth of its width
_STILL, _ROUNDING = 1e-15, 1e-9  # of seeds × windows
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


@dataclass(frozen=True)
class GridInterval:
    """A mean over seeds × windows.

    Attributes:
        low, high: ends of its interval. p_value: two-sided, of a mean of 0. degrees: of freedom of Student's t.
        seed_spread: standard deviation of the seeds' means; window_spread: of the windows' means, 0 where each seed has
            windows of its own.
    """

    mean: float
    low: float
    high: float
    p_value: float
    degrees: int
    seeds: int
    windows: int
    seed_spread: float
    window_spread: float


def grid_interval(values: FloatArray, *, nested: bool, level: float = 0.95) -> GridInterval:
    """The mean of `values` (seeds, windows).

    With `nested` each seed has windows of its own. Raises `DataError` for fewer than two seeds of such, and for a
    single value; says how many it takes.
    """
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError("a mean over seeds and windows needs a table of finite values")
    seeds, windows = values.shape
    if nested and seeds < 2:
        raise DataError(
            f"too few seeds for an interval: it takes 2 where each has a market of its own, and there is {seeds}"
        )
    if seeds * windows < 2:
        raise DataError("too few values for an interval: it takes 2 seeds or 2 windows, and there is 1 of each")
    rows, columns = values.mean(axis=1), values.mean(axis=0)
    mean = float(values.mean())
    if nested or windows == 1:
        variance, degrees = float(rows.var(ddof=1)) / seeds, float(seeds - 1)
    elif seeds == 1 or _still(values - columns, values):
        # Seeds that change nothing, as of a strategy, are one seed.
        variance, degrees = float(columns.var(ddof=1)) / windows, float(windows - 1)
    else:
        variance, degrees = _crossed(values, rows, columns, mean)
    error = float(np.sqrt(variance))
    scale = max(float(np.abs(values).max()), _STILL)
    spreads = (_spread(rows), 0.0 if nested else _spread(columns))
    if error <= _STILL * scale:
        chance = 1.0 if abs(mean) <= _STILL * scale else 0.0
        return GridInterval(mean, mean, mean, chance, max(1, int(degrees + _ROUNDING)), seeds, windows, *spreads)
    whole = max(1, int(degrees + _ROUNDING))  # rounded down: wider, never narrower
    half = student_quantile(whole, level) * error
    chance = 1.0 - student_share(whole, abs(mean) / error)
    return GridInterval(mean, mean - half, mean + half, min(1.0, max(0.0, chance)), whole, seeds, windows, *spreads)


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """(n,): p-values adjusted for being n: the chance of any false finding stays below the level (Holm 1979)."""
    values = np.asarray(p_values, np.float64)
    if values.ndim != 1 or not ((values >= 0.0) & (values <= 1.0)).all():
        raise ValueError(f"p-values are a list of numbers from 0 to 1, not {values.tolist()}")
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0)
    return adjusted


def _crossed(values: FloatArray, rows: FloatArray, columns: FloatArray, mean: float) -> tuple[float, float]:
    """Variance of the mean and its degrees of freedom where seeds and windows are both drawn."""
    seeds, windows = values.shape
    of_seeds = windows * float(rows.var(ddof=1))
    of_windows = seeds * float(columns.var(ddof=1))
    rest = values - rows[:, None] - columns + mean
    of_rest = float((rest * rest).sum()) / ((seeds - 1) * (windows - 1))
    both = of_seeds + of_windows - of_rest
    # A component that comes out negative is taken for 0, so that the variance is never below that of one design alone.
    larger, degrees = max((of_seeds, float(seeds - 1)), (of_windows, float(windows - 1)))
    if np.isclose(of_seeds, of_windows, rtol=_ROUNDING):
        degrees = float(min(seeds, windows) - 1)
    if both > larger * (1.0 + _ROUNDING):
        squares = of_seeds**2 / (seeds - 1) + of_windows**2 / (windows - 1)
        squares += of_rest**2 / ((seeds - 1) * (windows - 1))
        larger, degrees = both, both**2 / squares
    return larger / (seeds * windows), degrees


def _spread(values: FloatArray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _still(rest: FloatArray, values: FloatArray) -> bool:
    return float(np.abs(rest).max()) <= _STILL * max(1.0, float(np.abs(values).max()))
