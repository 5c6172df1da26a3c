"""The direction of a price's drift, estimated by a filter that allows the drift to change.

Hamilton (1989): a hidden Markov chain of down, none and up, observed through the returns. A return over a fixed number
of bars mixes the drifts before and after a turn; the filter gives most weight to the bars since the last turn. The
constants are round numbers for crypto markets in general and not fitted to any of them. On five synthetic markets a
drift of 0.1 to 0.25, a mean length of 40 to 90 bars and a look-back of 120 bars changed the earnings little.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.arrays import FloatArray
from simulator.kernel.jit import allocating

FILTER_BARS = 240  # returns that the filter looks back on, at most
DRIFT = 0.15  # of a bar in an up or down drift, in volatilities of a bar
MEAN_BARS = 60  # after which a drift is drawn anew, on average, each of the three as likely as the others
TAIL_FREEDOM = 5.0  # of the Student t that returns are taken for: a jump is no proof of a drift
FADING = 0.94  # of the variance from bar to bar (RiskMetrics 1996)
LARGEST_RETURN = 4.0  # volatilities that a return counts as at most in the variance
WARM_UP = 20  # returns that the variance begins with


def drift_belief(returns: FloatArray) -> float:
    """P(up) - P(down), in [-1, 1], for the bar after the last of `returns`, (n,) log returns, oldest first.

    A NaN return carries no information, but counts as a bar. The result is NaN with fewer than `WARM_UP` known returns
    among the last `FILTER_BARS`, or if the first of these do not vary.
    """
    last = np.ascontiguousarray(returns[-FILTER_BARS:], np.float64)
    known = last[~np.isnan(last)][:WARM_UP]
    variance = float(np.var(known)) if len(known) == WARM_UP else 0.0
    return _filtered(last, variance) if variance > 0.0 else math.nan


@allocating
def _filtered(returns: FloatArray, variance: float) -> float:
    belief = np.full(3, 1.0 / 3.0)  # down, none, up
    for value in returns:
        if not np.isnan(value):
            z = value / np.sqrt(variance)
            for state in range(3):
                away = z - (state - 1) * DRIFT
                # The variance is that of the returns, not of the t, whose is n / (n - 2) times its scale's.
                belief[state] *= (1.0 + away * away / (TAIL_FREEDOM - 2.0)) ** (-0.5 * (TAIL_FREEDOM + 1.0))
            belief /= belief.sum()
            variance = FADING * variance + (1.0 - FADING) * min(value * value, LARGEST_RETURN**2 * variance)
        belief = (1.0 - 1.0 / MEAN_BARS) * belief + (1.0 / MEAN_BARS) / 3.0
    return belief[2] - belief[0]
