"""What an equity curve is worth, in numbers. Crypto trades every day: a year has 365 days.

Every number is finite; where a ratio has no meaning the convention is written beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.trades import Trade

YEAR_MS = 365 * 86_400_000
RUIN = 1e-9

FloatArray = NDArray[np.float64]


def compute(
    equity: FloatArray, interval: int, exposure: FloatArray, trades: Sequence[Trade], traded: float
) -> dict[str, float]:
    """All metrics of a run.

    Args:
        equity: (n,) at regular closes, the starting capital first.
        interval: milliseconds between two closes.
        exposure: (n, S) signed notional over equity at the same closes.
        trades: round trips, those still open at the end included at their value there.
        traded: sum of the absolute notionals of all fills.

    Returns:
        total_return, annual_return, volatility, sharpe, sortino, calmar, max_drawdown: see the functions below.
        exposure: mean over the closes after the first of the gross exposure, sum over symbols of its absolute value.
        long_share: part of that exposure that was long, 0 without any.
        turnover: `traded` over the mean equity; 2.0 is one all-in round trip. Not annualised.
        hit_rate: share of trades with a positive net pnl, 0 without trades. trades: their number.
    """
    returns = returns_of(equity)
    per_year = YEAR_MS / interval
    held = exposure[1:]
    gross = float(np.abs(held).sum())
    mean_equity = float(equity.mean())
    return {
        "total_return": float(equity[-1] / equity[0] - 1.0),
        "annual_return": annual_return(returns, per_year),
        "volatility": volatility(returns, per_year),
        "sharpe": sharpe(returns, per_year),
        "sortino": sortino(returns, per_year),
        "calmar": calmar(returns, per_year),
        "max_drawdown": max_drawdown(returns),
        "exposure": gross / len(held) if len(held) else 0.0,
        "long_share": float(np.maximum(held, 0.0).sum()) / gross if gross > 0.0 else 0.0,
        "turnover": traded / mean_equity if mean_equity > 0.0 else 0.0,
        "hit_rate": sum(trade.pnl > 0.0 for trade in trades) / len(trades) if trades else 0.0,
        "trades": float(len(trades)),
    }


def returns_of(equity: FloatArray) -> FloatArray:
    """(n - 1,): simple returns. The step that ruins the account is -1 and every later one 0: nothing is left to earn
    with. Ruined means less than a billionth of the start."""
    gone = equity <= RUIN * equity[0]
    if not gone.any():
        return equity[1:] / equity[:-1] - 1.0
    over = int(np.argmax(gone))
    returns = np.zeros(len(equity) - 1)
    returns[: over - 1] = equity[1:over] / equity[: over - 1] - 1.0
    returns[over - 1] = -1.0
    return returns


def annual_return(returns: FloatArray, per_year: float) -> float:
    """Compound growth per year, ``prod(1 + r) ** (per_year / n) - 1``; 0 without returns.

    A lucky short window would compound beyond any float; the exponent is capped at 700 (about 1e304).
    """
    if len(returns) == 0:
        return 0.0
    if returns.min() <= -1.0:
        return -1.0
    return math.expm1(min(float(np.log1p(returns).sum()) * per_year / len(returns), 700.0))


def volatility(returns: FloatArray, per_year: float) -> float:
    """Sample standard deviation of the returns times sqrt(per_year); 0 for fewer than two returns."""
    return float(returns.std(ddof=1)) * math.sqrt(per_year) if len(returns) > 1 else 0.0


def sharpe(returns: FloatArray, per_year: float) -> float:
    """Mean over sample standard deviation times sqrt(per_year), risk-free rate 0; 0 where the returns do not vary."""
    if len(returns) < 2 or _constant(returns):
        return 0.0
    return float(returns.mean() / returns.std(ddof=1)) * math.sqrt(per_year)


def sortino(returns: FloatArray, per_year: float) -> float:
    """Mean over the root mean square of the negative returns (over all n) times sqrt(per_year); 0 without a loss."""
    if len(returns) == 0 or not (returns < 0.0).any():
        return 0.0
    downside = math.sqrt(float(np.mean(np.minimum(returns, 0.0) ** 2)))
    return float(returns.mean()) / downside * math.sqrt(per_year) if downside > 0.0 else 0.0


def calmar(returns: FloatArray, per_year: float) -> float:
    """Annual return over the largest drawdown; 0 without a drawdown."""
    drawdown = max_drawdown(returns)
    return annual_return(returns, per_year) / drawdown if drawdown > 0.0 else 0.0


def max_drawdown(returns: FloatArray) -> float:
    """Largest loss from an earlier peak, the start included, as a fraction of that peak: 0 to 1."""
    wealth = np.concatenate([[1.0], np.cumprod(1.0 + returns)])
    return float(np.max(1.0 - wealth / np.maximum.accumulate(wealth)))


def _constant(returns: FloatArray) -> bool:
    """Equal but for rounding: their spread is noise, not risk."""
    return float(np.ptp(returns)) <= 1e-12 * max(1.0, float(np.abs(returns).max()))
