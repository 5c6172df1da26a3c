"""Stationary block bootstrap of the bars of one window (Politis and Romano 1994).

Bars are drawn in blocks of random length, so that what neighboring bars have to do with each other stays. Means and
the Sharpe ratio are studentized: each resample is measured in its own standard error, made of its blocks (Götze and
Künsch 1996; for the Sharpe ratio Ledoit and Wolf 2008). That covers better than plain percentiles where tails are fat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.backtest import metrics
from simulator.backtest.resampling import (
    AHEAD,
    COLUMNS_OF_RESAMPLE,
    DEPTH,
    GROWTH,
    RATIO,
    SUMS_OF_BLOCK,
    resample,
)
from simulator.errors import DataError

FEWEST_RETURNS_FOR_INTERVAL = 30
_STEPS = 250  # of a path: more cannot be seen on a screen
_PATHS = 400


class Interval(NamedTuple):
    """An estimate and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class WindowIntervals:
    """How sure the results of one window are.

    Attributes:
        bars: returns that were resampled. block: mean length of a block, in bars.
        total_return: of windows of this length from the same law.
        sharpe: annual, like `metrics.sharpe`.
        max_drawdown: where the largest drawdown of such windows lies. No studentized interval is known for it, so it is
            made of percentiles.
        against: final wealth over that of the other curve, minus 1; None without one.
    """

    bars: int
    block: float
    level: float
    total_return: Interval
    sharpe: Interval
    max_drawdown: Interval
    against: Interval | None = None


def varies(returns: FloatArray) -> bool:
    """Whether the returns (n,) differ from each other by more than rounding."""
    return float(returns.std()) > 1e-12 * max(1.0, float(np.abs(returns).max()))


def window_intervals(
    returns: FloatArray,
    per_year: float,
    against: FloatArray | None = None,
    *,
    samples: int = 2_000,
    seed: int = 0,
    level: float = 0.95,
) -> WindowIntervals:
    """Intervals of one window.

    Args:
        returns: (n,) simple returns of bars, see `metrics.returns_of`.
        per_year: bars in a year.
        against: (n,) returns of the same bars to compare with, as those of holding.

    Raises `DataError` for fewer than 30 returns, returns that do not vary, and where an account was ruined: after that
    nothing varies either.
    """
    require_returns(len(returns), FEWEST_RETURNS_FOR_INTERVAL, "an interval")
    curves = [returns] if against is None else [returns, against]
    if len({len(one) for one in curves}) > 1:
        raise ValueError(f"the curves have {[len(one) for one in curves]} returns; they must be of the same bars")
    if not all(np.isfinite(one).all() for one in curves):
        raise DataError("an interval needs an account whose value is always known")
    if any(float(one.min()) <= -1.0 for one in curves):
        raise DataError("an interval needs an account that was not ruined")
    if not varies(returns):
        raise DataError("an interval needs returns that vary")
    logs = np.log1p(returns)
    gains = np.zeros(len(logs)) if against is None else logs - np.log1p(against)
    count, block = len(returns), optimal_block(returns)
    drawn = _drawn(returns, logs, gains, block, samples, seed)

    def wealth(interval: Interval) -> Interval:
        return Interval(*(math.expm1(min(count * end, 700.0)) for end in interval))  # beyond it no float

    scale = math.sqrt(per_year * (count - 1) / count)  # `metrics.sharpe` has the sample's deviation
    ratio = float(returns.mean() / returns.std())
    error = stationary_error(_sharpe_influence(returns), block)
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    shallow, deep = (-math.expm1(-depth) for depth in np.quantile(drawn[:, DEPTH], tails).tolist())
    found = WindowIntervals(
        bars=count,
        block=block,
        level=level,
        total_return=wealth(_mean_pivotal(logs, block, drawn[:, GROWTH], level)),
        sharpe=Interval(*(scale * end for end in _pivotal(ratio, error, drawn[:, RATIO], level))),
        max_drawdown=Interval(metrics.max_drawdown(returns), shallow, deep),
        against=None if against is None else wealth(_mean_pivotal(gains, block, drawn[:, AHEAD], level)),
    )
    ends = [*found.total_return, *found.sharpe, *found.max_drawdown, *(found.against or ())]
    if not all(map(math.isfinite, ends)):
        raise DataError("an interval needs returns that vary, and of a size that can be multiplied up")
    return found


def require_returns(count: int, needed: int, what: str) -> None:
    """Raise `DataError`, saying how many are needed, where there are too few returns for a statistic."""
    if count < needed:
        raise DataError(
            f"too few returns for {what}: it takes {needed}, and there are {count}; take a longer window or finer bars"
        )


def optimal_block(values: FloatArray) -> float:
    """Mean block length that serves the mean of `values` (n,) best in a stationary bootstrap: at least 1 bar.

    Politis and White, "Automatic Block-Length Selection for the Dependent Bootstrap", Econometric Reviews 23 (2004),
    with the correction of Patton, Politis and White (2009).
    """
    count = len(values)
    near = max(5, math.ceil(math.sqrt(math.log10(count))))  # lags that must all be small
    most = min(math.ceil(math.sqrt(count)) + near, count - 1)
    covariances = autocovariances(values)[: most + 1]
    if covariances[0] <= 0.0:
        return 1.0
    small = np.abs(covariances / covariances[0]) < 2.0 * math.sqrt(math.log10(count) / count)
    last = next((lag for lag in range(most - near + 1) if small[lag + 1 : lag + 1 + near].all()), None)
    width = most if last is None else min(2 * max(last, 1), most)
    lags = np.arange(1, width + 1)
    weights = np.clip(2.0 * (1.0 - lags / width), 0.0, 1.0)  # a flat top
    slope = 2.0 * float(weights * lags @ covariances[1 : width + 1])
    variance = float(covariances[0]) + 2.0 * float(weights @ covariances[1 : width + 1])
    if variance <= 0.0:
        return 1.0
    length = (slope * slope / (variance * variance) * count) ** (1.0 / 3.0)
    return float(min(max(length, 1.0), math.ceil(min(3.0 * math.sqrt(count), count / 3.0))))


def autocovariances(values: FloatArray) -> FloatArray:
    """(n,): mean product of the centered values with those of each lag later, divided by n."""
    centred = values - values.mean()
    size = 1 << (2 * len(values) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    return np.asarray(np.fft.irfft(spectrum * spectrum.conj(), size)[: len(values)] / len(values), np.float64)


def stationary_error(values: FloatArray, block: float) -> float:
    """Standard error of the mean of `values` (n,), as a stationary bootstrap with this mean block length has it in
    expectation (Politis and Romano 1994, lemma 1)."""
    count = len(values)
    covariances = autocovariances(values)
    circular = covariances[1:] + covariances[:0:-1]  # each lag with what remains of the circle
    stay = (1.0 - 1.0 / block) ** np.arange(1, count)
    variance = float(covariances[0]) + 2.0 * float((1.0 - np.arange(1, count) / count) * stay @ circular)
    return math.sqrt(max(variance, 0.0) / count)


def _drawn(
    returns: FloatArray, logs: FloatArray, gains: FloatArray, block: float, samples: int, seed: int
) -> FloatArray:
    """(samples, `COLUMNS_OF_RESAMPLE`): what each resample came to."""
    out = np.full((samples, COLUMNS_OF_RESAMPLE), float(returns.mean()))
    work = np.empty((len(returns), SUMS_OF_BLOCK))
    with np.errstate(all="ignore"):
        resample(returns - returns.mean(), logs, gains, block, seed, work, out)
    return out


def _sharpe_influence(returns: FloatArray) -> FloatArray:
    """(n,): what each return does to the Sharpe ratio of a bar, to first order."""
    mean, deviation = returns.mean(), returns.std()
    scores = (returns - mean) / deviation
    return np.asarray(scores - mean / deviation / 2.0 * (scores * scores - 1.0), np.float64)


def _mean_pivotal(values: FloatArray, block: float, pivots: FloatArray, level: float) -> Interval:
    if float(np.ptp(values)) == 0.0:  # as of a curve and itself
        return Interval(float(values[0]), float(values[0]), float(values[0]))
    return _pivotal(float(values.mean()), stationary_error(values, block), pivots, level)


def _pivotal(value: float, error: float, pivots: FloatArray, level: float) -> Interval:
    """The interval of an estimate from the distances of its resamples in standard errors: the ends change sides."""
    known = pivots[np.isfinite(pivots)]  # a resample without any spread says nothing
    if 2 * len(known) < len(pivots):
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(known, [(1.0 - level) / 2.0, (1.0 + level) / 2.0]).tolist()
    return Interval(value, value - high * error, value - low * error)


@dataclass(frozen=True)
class PathBand:
    """The middle `level` of the paths at each step, as shares: `low` and `high` of the return since the start, `deep`
    and `shallow` of the distance below the highest value so far (at most 0). `bars` (m,) are the positions in the
    window, from 0 to its last bar; all others are (m,) too."""

    level: float
    bars: IntArray
    low: FloatArray
    high: FloatArray
    deep: FloatArray
    shallow: FloatArray


def path_band(returns: FloatArray, *, samples: int = _PATHS, seed: int = 0, level: float = 0.95) -> PathBand | None:
    """Where the account might have been at each time: the band of paths that are drawn from the bars of one window, in
    blocks, so that it has the window's returns in another order, some of them several times.

    `returns` (n,) are simple returns of bars. Long windows are drawn in steps of several bars, whose blocks are as long
    in time. None for fewer than 30 returns, for returns that do not vary, and for an account that was ruined or whose
    value is not always known.
    """
    count = len(returns)
    if count < FEWEST_RETURNS_FOR_INTERVAL or not np.isfinite(returns).all() or float(returns.min()) <= -1.0:
        return None
    if float(returns.std()) <= 1e-12 * max(1.0, float(np.abs(returns).max())):
        return None
    stride = math.ceil(count / _STEPS)
    starts = np.arange(0, count, stride)
    growth = np.add.reduceat(np.log1p(returns), starts)
    picks = _blocks(len(growth), max(1.0, optimal_block(returns) / stride), samples, seed)
    paths = np.concatenate([np.zeros((samples, 1)), np.cumsum(growth[picks], axis=1)], axis=1)
    tails = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    low, high = np.expm1(np.quantile(paths, tails, axis=0))
    deep, shallow = np.expm1(np.quantile(paths - np.maximum.accumulate(paths, axis=1), tails, axis=0))
    bars = np.concatenate([starts, [count]])
    return PathBand(level, bars, low, high, deep, shallow)


def _blocks(steps: int, block: float, samples: int, seed: int) -> IntArray:
    """(samples, steps): which step of the window stands at each step of each path, on the circle of all steps."""
    random = np.random.default_rng(seed)
    columns = np.arange(steps)
    begins = random.random((samples, steps)) < 1.0 / block
    begins[:, 0] = True
    first = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    origin = np.take_along_axis(random.integers(0, steps, (samples, steps)), first, axis=1)
    picks: IntArray = (origin + columns - first) % steps
    return picks
