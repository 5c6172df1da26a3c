"""Where the account might have been at each time: a band of paths that are drawn from the bars of one window.

The bars are drawn in blocks of random length (Politis and Romano 1994), so a path of the band has the window's returns
in another order, some of them several times. It says how much of a curve is the luck of one order of days.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from backend.statistics.bootstrap import FEWEST_RETURNS_FOR_INTERVAL, optimal_block
from simulator.arrays import FloatArray, IntArray

_STEPS = 250  # of a path: more cannot be seen on a screen
_SAMPLES = 400


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


def path_band(returns: FloatArray, *, samples: int = _SAMPLES, seed: int = 0, level: float = 0.95) -> PathBand | None:
    """The band of `returns` (n,), simple returns of bars. Long windows are drawn in steps of several bars, whose blocks
    are as long in time.

    None for fewer than 30 returns, for returns that do not vary, and for an account that was ruined or whose value is
    not always known.
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
