"""The direction of a price's drift, estimated by a filter that allows the drift to change.

Hamilton (1989): a hidden Markov chain of down, none and up, observed through the returns. A return over a fixed number
of bars mixes the drifts before and after a turn; the filter gives most weight to the bars since the last turn. The
constants are round numbers for crypto markets in general and not fitted to any of them. On five synthetic markets a
drift of 0.1 to 0.25, a mean length of 40 to 90 bars and a look-back of 120 bars changed the earnings little.

**Beside other coins.** The drifts of coins turn together, and most of a return is a shock that all of them had. So with
another coin beside it a drift is told from a shock sooner. For each other coin j a filter runs over the nine regimes
that the two drifts can have together, observed through both returns, which are drawn from a Student t with the
correlation of the two coins. What the others say is put together as if it were independent of one another given the
coin's drift s, a composite likelihood (Varin, Reid and Firth 2011):

    log p(s | all) = log p(s | own) + sum over j of [log p(s | own, j) - log p(s | own)]

It is exact for two coins, and its cost grows with the coins, not with the 3^S regimes of them all. On two synthetic
markets of four coins it told a team that reads words as much as the filter over all 81 regimes did, and a drift of 0.25
as much as one of 0.2; one of 0.15 told less.
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
POOLED_DRIFT = 0.2  # as DRIFT, where other coins are read too
COMMON_TURNS = 0.5  # share of the turns that all coins take together
HIGHEST_CORRELATION = (
    0.9  # that two coins' shocks are taken to have: nearer to 1, a difference of ticks would prove all
)
LEAST_COMMON = 30  # returns that two coins must both have
LARGEST_COMMON = 6.0  # median returns that one counts as at most in the correlation: a jump is no sign of it


def drift_belief(returns: FloatArray) -> float:
    """P(up) - P(down), in [-1, 1], for the bar after the last of `returns`, (n,) log returns, oldest first.

    A NaN return carries no information, but counts as a bar. The result is NaN with fewer than `WARM_UP` known returns
    among the last `FILTER_BARS`, or if the first of these do not vary.
    """
    last = np.ascontiguousarray(returns[-FILTER_BARS:], np.float64)
    variance = _first_variance(last)
    if variance == 0.0:
        return math.nan
    belief = _alone(last, variance, DRIFT)
    return float(belief[2] - belief[0])


def pooled_drift_belief(returns: FloatArray, column: int) -> float:
    """P(up) - P(down), in [-1, 1], of the coin in a column of `returns`, (n, S) log returns of the same bars, oldest
    first, for the bar after the last.

    A coin with too few returns beside this one's says nothing; where none is left it is `drift_belief` of this coin
    alone, and NaN where that is. A NaN return carries no information, but counts as a bar.
    """
    last = np.ascontiguousarray(returns[-FILTER_BARS:], np.float64)
    own, variance = last[:, column], _first_variance(last[:, column])
    others = [
        (other, _first_variance(last[:, other]), _correlation(own, last[:, other]))
        for other in range(last.shape[1])
        if other != column
    ]
    usable = [one for one in others if one[1] > 0.0 and not math.isnan(one[2])]
    if variance == 0.0 or not usable:
        return drift_belief(own)
    alone = np.log(_alone(np.ascontiguousarray(own), variance, POOLED_DRIFT))
    pooled = alone.copy()
    for other, its_variance, correlation in usable:
        pooled += np.log(_beside(last[:, [column, other]], variance, its_variance, correlation)) - alone
    chances = np.exp(pooled - pooled.max())
    return float((chances[2] - chances[0]) / chances.sum())


def _first_variance(returns: FloatArray) -> float:
    """Of the first known returns; 0 with too few of them."""
    known = returns[~np.isnan(returns)][:WARM_UP]
    return float(np.var(known)) if len(known) == WARM_UP else 0.0


def _correlation(own: FloatArray, other: FloatArray) -> float:
    """Of the returns that both have, in [0, HIGHEST_CORRELATION]; NaN with too few."""
    both = ~np.isnan(own) & ~np.isnan(other)
    if int(both.sum()) < LEAST_COMMON:
        return math.nan
    pair: FloatArray = np.stack([own[both], other[both]])
    largest = LARGEST_COMMON * np.median(np.abs(pair), axis=1, keepdims=True)
    pair = np.clip(pair, -largest, largest)
    if (pair.std(axis=1) == 0.0).any():
        return math.nan
    table = np.asarray(np.corrcoef(pair), np.float64)
    return min(HIGHEST_CORRELATION, max(0.0, float(table[0, 1])))


@allocating
def _alone(returns: FloatArray, variance: float, drift: float) -> FloatArray:
    """(3,): the chances of down, none and up by the coin alone. `variance` is that before the first return."""
    belief = np.full(3, 1.0 / 3.0)
    for value in returns:
        if not np.isnan(value):
            z = value / np.sqrt(variance)
            for state in range(3):
                away = z - (state - 1) * drift
                # The variance is that of the returns, not of the t, whose is n / (n - 2) times its scale's.
                belief[state] *= (1.0 + away * away / (TAIL_FREEDOM - 2.0)) ** (-0.5 * (TAIL_FREEDOM + 1.0))
            belief /= belief.sum()
            variance = FADING * variance + (1.0 - FADING) * min(value * value, LARGEST_RETURN**2 * variance)
        belief = (1.0 - 1.0 / MEAN_BARS) * belief + (1.0 / MEAN_BARS) / 3.0
    return belief


@allocating
def _beside(returns: FloatArray, variance: float, its_variance: float, correlation: float) -> FloatArray:
    """(3,): the chances of down, none and up of the coin in the first column of (n, 2) returns."""
    belief = np.full((3, 3), 1.0 / 9.0)
    variances = np.array([variance, its_variance])
    z, known = np.empty(2), np.empty(2, np.bool_)
    common = COMMON_TURNS / MEAN_BARS
    own_turn = 1.0 - (1.0 - 1.0 / MEAN_BARS) / (1.0 - common)  # so that a coin turns as often as alone
    for bar in range(len(returns)):
        for coin in range(2):
            known[coin] = not np.isnan(returns[bar, coin])
            z[coin] = returns[bar, coin] / np.sqrt(variances[coin])
        count = int(known[0]) + int(known[1])
        if count:
            for mine in range(3):
                for its in range(3):
                    away, there = z[0] - (mine - 1) * POOLED_DRIFT, z[1] - (its - 1) * POOLED_DRIFT
                    if count == 2:
                        distance = (away * away - 2.0 * correlation * away * there + there * there) / (
                            1.0 - correlation * correlation
                        )
                    else:
                        distance = away * away if known[0] else there * there
                    belief[mine, its] *= (1.0 + distance / (TAIL_FREEDOM - 2.0)) ** (-0.5 * (TAIL_FREEDOM + count))
            belief /= belief.sum()
        for coin in range(2):
            if known[coin]:
                value = returns[bar, coin] * returns[bar, coin]
                counted = min(value, LARGEST_RETURN**2 * variances[coin])
                variances[coin] = FADING * variances[coin] + (1.0 - FADING) * counted
        belief = (1.0 - own_turn) * belief + own_turn / 3.0 * belief.sum(axis=0)  # this coin turns, then the other
        belief = (1.0 - own_turn) * belief + own_turn / 3.0 * belief.sum(axis=1).reshape(3, 1)
        belief *= 1.0 - common
        for state in range(3):
            belief[state, state] += common / 3.0
    return belief.sum(axis=1)
