"""Interval and p-value of a mean over seeds × windows, and p-values of several comparisons.

The windows of one seed have something in common (a training, often a market), so seeds × windows are no independent
values: to pool them makes an interval that is far too narrow. There are two designs:

* nested: each seed has windows of its own, as where it generates its own market. Only the means of the seeds are
  independent, and the interval is Student's of these.
* crossed: all seeds trade the same windows of one history. Both are drawn, so both add variance: a random-effects
  analysis of variance in two ways without replication, with Satterthwaite's degrees of freedom (Searle, Casella and
  McCulloch, "Variance Components", 1992, chapter 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.statistics.mean_interval import student_quantile, student_share
from simulator.arrays import FloatArray
from simulator.errors import DataError

_STILL, _ROUNDING = 1e-15, 1e-9


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
