"""What a curve owes to holding, and how much dearer trading may become before nothing is left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from backend.statistics.bootstrap import FEWEST_RETURNS_FOR_INTERVAL, Interval, require_returns
from simulator.arrays import FloatArray
from simulator.errors import DataError


@dataclass(frozen=True)
class HoldRegression:
    """A regression of returns on those of holding.

    Attributes:
        alpha: what was earned a bar beyond `beta` times holding, with its interval. alpha_year: the same times the bars
            of a year.
        beta: the part of holding's returns that was taken. share: R², how much of the variance that explains.
        p_value: two-sided, of no alpha.
    """

    alpha: Interval
    alpha_year: Interval
    beta: Interval
    share: float
    p_value: float


def hold_regression(returns: FloatArray, held: FloatArray, per_year: float, level: float = 0.95) -> HoldRegression:
    """Alpha and beta of `returns` (n,) to those of holding (n,) on the same bars.

    Ordinary least squares with the standard errors of Newey and West (1987), lag floor(4 (n / 100)^(2/9)), so that
    neither changing volatility nor what neighbouring bars have to do with each other makes them too small. Raises
    `DataError` for fewer than 30 returns, and where holding does not vary.
    """
    count = len(returns)
    require_returns(count, FEWEST_RETURNS_FOR_INTERVAL, "alpha and beta")
    centred = held - held.mean()
    variance = float(np.mean(centred * centred))
    if variance <= 1e-24:
        raise DataError("alpha and beta need a holding whose returns vary")
    beta = float(np.mean(centred * returns)) / variance
    alpha = float(returns.mean() - beta * held.mean())
    rest = returns - alpha - beta * held
    design = np.stack([np.ones(count), held], axis=1)
    scores = design * rest[:, None]
    middle = scores.T @ scores
    lags = int(4.0 * (count / 100.0) ** (2.0 / 9.0))
    for lag in range(1, lags + 1):
        cross = scores[lag:].T @ scores[:-lag]
        middle += (1.0 - lag / (lags + 1.0)) * (cross + cross.T)
    bread = np.linalg.inv(design.T @ design)
    errors = np.sqrt(np.maximum(np.diag(bread @ middle @ bread), 0.0)).tolist()
    distance = NormalDist().inv_cdf((1.0 + level) / 2.0)
    bar = Interval(alpha, alpha - distance * errors[0], alpha + distance * errors[0])
    spread = float(returns.var())
    score = abs(alpha) / errors[0] if errors[0] > 0.0 else (0.0 if alpha == 0.0 else math.inf)
    return HoldRegression(
        alpha=bar,
        alpha_year=Interval(*(per_year * end for end in bar)),
        beta=Interval(beta, beta - distance * errors[1], beta + distance * errors[1]),
        share=1.0 - float(rest.var()) / spread if spread > 0.0 else 0.0,
        p_value=2.0 * (1.0 - NormalDist().cdf(score)),
    )


def break_even_cost(net_profit: float, costs: float, traded: float) -> float | None:
    """The cost of trading, as a share of the traded value, at which nothing is left of the profit before costs.

    `costs` are what was paid, `traded` the sum of the notionals of all fills. It takes the same trades and sizes for
    granted, so it is exact for small costs. None where nothing was traded. Negative: it lost money before costs, too.
    """
    return (net_profit + costs) / traded if traded > 0.0 else None
