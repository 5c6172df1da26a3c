"""Performance metrics of an equity curve. Crypto trades every day: a year has 365 days.

Every number but the profit factor is finite. Where a ratio is not defined, its docstring says which value stands in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import NormalDist

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.trades import Trade
from simulator.errors import UserError
from simulator.market.timeframes import DAY_MS, YEAR_MS

_RUIN = 1e-9
_TAIL = 0.05  # share of the returns that are in a tail
_EULER = 0.5772156649015329  # the Euler-Mascheroni constant


def compute(
    equity: FloatArray,
    interval: int,
    exposure: FloatArray,
    trades: Sequence[Trade],
    traded: float,
    costs: Mapping[str, float] | None = None,
    trials: int = 1,
) -> dict[str, float]:
    """All metrics of a run.

    Args:
        equity: (n,) at regular closes, the starting capital first.
        interval: milliseconds between two closes.
        exposure: (n, S) signed notional over equity at the same closes.
        trades: round trips, those still open at the end included at their value there.
        traded: sum of the absolute notionals of all fills.
        costs: money paid, see `simulator.backtest.metrics.cost_split`; None leaves its metrics out.
        trials: how many ways of trading were tried before this one was chosen, see `deflated_sharpe`.

    Returns:
        total_return, annual_return, volatility, sharpe, sortino, calmar, max_drawdown, var_95, cvar_95, skew,
        kurtosis, probabilistic_sharpe, deflated_sharpe: see the functions below.
        longest_drawdown_days: see `longest_drawdown`.
        exposure: mean over the closes after the first of the gross exposure, sum over symbols of its absolute value.
        max_exposure: the largest of them. time_in_market: share of them that are not 0.
        long_share: part of that exposure that was long, 0 without any.
        turnover: `traded` over the mean equity; 2.0 is one all-in round trip. annual_turnover: the same per year.
        hit_rate, trades and the others of `simulator.backtest.metrics.trade_statistics`; those of `cost_split`
        with `costs`.
    """
    returns = returns_of(equity)
    per_year = YEAR_MS / interval
    start = float(equity[0])
    held = np.abs(exposure[1:]).sum(axis=1)
    gross = float(np.abs(exposure[1:]).sum())
    long = float(np.maximum(exposure[1:], 0.0).sum())
    turnover = ratio(traded, float(equity.mean()))
    result = {
        "total_return": float(equity[-1] / equity[0] - 1.0),
        "annual_return": annual_return(returns, per_year),
        "volatility": annual_volatility(returns, per_year),
        "sharpe": sharpe(returns, per_year),
        "sortino": sortino(returns, per_year),
        "calmar": calmar(returns, per_year),
        "max_drawdown": max_drawdown(returns),
        "var_95": value_at_risk(returns),
        "cvar_95": expected_shortfall(returns),
        "longest_drawdown_days": longest_drawdown(returns) * interval / DAY_MS,
        "skew": skew(returns),
        "kurtosis": kurtosis(returns),
        "probabilistic_sharpe": probabilistic_sharpe(returns),
        "deflated_sharpe": deflated_sharpe(returns, trials),
        "exposure": gross / len(held) if len(held) else 0.0,
        "max_exposure": float(held.max()) if len(held) else 0.0,
        "time_in_market": float(np.mean(held > 0.0)) if len(held) else 0.0,
        "long_share": long / gross if gross > 0.0 else 0.0,
        "turnover": turnover,
        "annual_turnover": turnover * per_year / len(returns) if len(returns) else 0.0,
        **trade_statistics(trades, start),
    }
    if costs is not None:
        result |= cost_split(costs, start, float(equity[-1]) - start)
    return result


def returns_of(equity: FloatArray) -> FloatArray:
    """(n - 1,): simple returns. The step that ruins the account is -1 and every later one 0: nothing is left to earn
    with. Ruined means less than a billionth of the start."""
    gone = equity <= _RUIN * equity[0]
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


def annual_volatility(returns: FloatArray, per_year: float) -> float:
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
    return float(drawdowns(returns).max())


def drawdowns(returns: FloatArray) -> FloatArray:
    """(n + 1,): loss from the highest earlier close, the start included, as a fraction of it; 0 at a peak."""
    wealth = np.concatenate([[1.0], np.cumprod(1.0 + returns)])
    return np.asarray(1.0 - wealth / np.maximum.accumulate(wealth), np.float64)


def longest_drawdown(returns: FloatArray) -> int:
    """Steps from a peak to the first close that is not below it, or to the end; the longest such time, 0 without a
    drawdown. Losses below 1e-12 are rounding."""
    depth = drawdowns(returns)
    at_peak = np.flatnonzero(depth <= 1e-12)  # the start is one of them
    steps = np.diff(at_peak)
    # Two neighbours that are both at a peak enclose no loss.
    return max([int(step) for step in steps[steps > 1]] + [len(depth) - 1 - int(at_peak[-1])])


def value_at_risk(returns: FloatArray) -> float:
    """The loss of a bar that only one in twenty exceeds: minus the 5 % quantile, historical, positive for a loss."""
    return -float(np.quantile(returns, _TAIL)) if len(returns) else 0.0


def expected_shortfall(returns: FloatArray) -> float:
    """Mean loss over the worst twentieth of the bars, at least one: conditional value at risk, positive for a loss."""
    if len(returns) == 0:
        return 0.0
    count = int((len(returns) - 1) * _TAIL) + 1
    return -float(np.sort(returns)[:count].mean())


def skew(returns: FloatArray) -> float:
    """Third standardized moment of the population; 0 where the returns do not vary."""
    return _moments(returns)[0]


def kurtosis(returns: FloatArray) -> float:
    """Fourth standardized moment of the population minus the 3 of a normal; 0 where the returns do not vary."""
    return _moments(returns)[1] - 3.0


def probabilistic_sharpe(returns: FloatArray, benchmark: float = 0.0) -> float:
    """Probability that the true Sharpe ratio of a bar exceeds `benchmark`, given length, skew and tails of the record.

    Bailey and López de Prado, "The Sharpe Ratio Efficient Frontier", Journal of Risk 15 (2012). Both ratios are per
    bar, not annual. 0.5, no evidence either way, for fewer than two returns and where they do not vary.
    """
    if len(returns) < 2 or _constant(returns):
        return 0.5
    return sharpe_confidence(sharpe(returns, 1.0), benchmark, len(returns), *_moments(returns))


def deflated_sharpe(returns: FloatArray, trials: int, deviation: float | None = None) -> float:
    """Probability that the Sharpe ratio is real and not the best of `trials` ways of trading without any skill.

    Bailey and López de Prado, "The Deflated Sharpe Ratio", Journal of Portfolio Management 40 (2014). One trial gives
    `probabilistic_sharpe`.

    Args:
        trials: number of independent ways that were tried. Raises `UserError` below 1.
        deviation: standard deviation of their Sharpe ratios per bar; None takes that of the estimate for a way without
            skill, 1 / sqrt(n - 1).
    """
    if deviation is None:
        deviation = 1.0 / math.sqrt(max(len(returns) - 1, 1))
    return probabilistic_sharpe(returns, luckiest_sharpe(trials, deviation))


def luckiest_sharpe(trials: int, deviation: float) -> float:
    """Expected largest of `trials` independent Sharpe ratios of mean 0 and the given standard deviation; 0 for one."""
    if trials < 1:
        raise UserError(f"the number of trials is {trials}; count the way of trading that was chosen, so at least 1.")
    if trials == 1:
        return 0.0
    quantile = NormalDist().inv_cdf
    higher, lower = quantile(1.0 - 1.0 / trials), quantile(1.0 - 1.0 / (trials * math.e))
    return deviation * ((1.0 - _EULER) * higher + _EULER * lower)


def sharpe_confidence(sharpe: float, benchmark: float, count: int, skew: float, kurtosis: float) -> float:
    """Probability that a Sharpe ratio exceeds `benchmark` when `sharpe` was seen over `count` returns.

    `kurtosis` is the full one, 3 for a normal.
    """
    variance = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe * sharpe
    # Moments of real returns keep it from below 0; rounding may not, and a deviation of 0 is certainty.
    score = (sharpe - benchmark) * math.sqrt(count - 1) / math.sqrt(max(variance, 1e-300))
    return NormalDist().cdf(score)


def _moments(returns: FloatArray) -> tuple[float, float]:
    """Standardized third and fourth moments; those of a normal, (0, 3), where the returns do not vary."""
    if len(returns) == 0 or _constant(returns):
        return 0.0, 3.0
    centred = returns - returns.mean()
    centred /= np.abs(centred).max()  # powers of very small or large numbers would leave the floats
    squares = centred * centred  # products: a power of 3 or 4 takes ten times as long
    variance = float(np.mean(squares))
    return float(np.mean(squares * centred)) / variance**1.5, float(np.mean(squares * squares)) / variance**2


def _constant(returns: FloatArray) -> bool:
    """Equal but for rounding: their spread is noise, not risk."""
    return float(np.ptp(returns)) <= 1e-12 * max(1.0, float(np.abs(returns).max()))


# Statistics of round trips. A trade is won when its net pnl is above 0 and lost when it is below; one that ends even is
# neither. Trades that are still open at the end of a run count at their value there.

COST_KEYS = ("fees", "spread", "impact", "funding", "borrow", "liquidation")
LARGEST = 1e300  # a ratio beyond it says no more, and the next multiplication would make it infinite


def trade_statistics(trades: Sequence[Trade], start_equity: float) -> dict[str, float]:
    """Statistics of `trades`, oldest exit first; all are 0 without trades.

    Returns:
        trades: their number. hit_rate: share of them that was won.
        profit_factor: sum of the gains over sum of the losses; infinite with gains and without a loss.
        payoff_ratio: mean gain over mean loss, 0 without a gain or without a loss.
        expectancy: mean net pnl of a trade as a fraction of `start_equity`.
        best_trade, worst_trade: largest and smallest net pnl as fractions of `start_equity`.
        lose_streak: most trades lost in a row, by exit; one that ends even ends it.
        bars_held: mean number of bars, over the trades of which it is known.
    """
    gains = [trade.pnl for trade in trades if trade.pnl > 0.0]
    losses = [-trade.pnl for trade in trades if trade.pnl < 0.0]
    held = [trade.bars_held for trade in trades if trade.bars_held is not None]
    gained, lost = sum(gains), sum(losses)
    pnl = [trade.pnl for trade in trades]
    return {
        "trades": float(len(trades)),
        "hit_rate": len(gains) / len(trades) if trades else 0.0,
        "profit_factor": math.inf if gains and not losses else ratio(gained, lost),
        "payoff_ratio": ratio(gained / len(gains), lost / len(losses)) if gains and losses else 0.0,
        "expectancy": sum(pnl) / len(pnl) / start_equity if pnl else 0.0,
        "best_trade": max(pnl) / start_equity if pnl else 0.0,
        "worst_trade": min(pnl) / start_equity if pnl else 0.0,
        "lose_streak": float(_lost_in_a_row(trades)),
        "bars_held": sum(held) / len(held) if held else 0.0,
    }


def cost_split(costs: Mapping[str, float], start_equity: float, profit: float) -> dict[str, float]:
    """What each cost took, as a fraction of the equity at the start and of the profit before costs.

    Args:
        costs: money by the names of `COST_KEYS`, negative where it was received; a name that is missing is 0.
        profit: net change of the equity, which the costs are part of already.

    Returns:
        For each name, and for `total` of all, two numbers: `cost_{name}` is the fraction of `start_equity`,
        `cost_{name}_of_gross` that of `profit + total`, the profit before costs. The latter is 0 where that profit is
        not positive: nothing was earned for costs to be a share of.
    """
    paid = {name: float(costs.get(name, 0.0)) for name in COST_KEYS}
    paid["total"] = sum(paid.values())
    gross = profit + paid["total"]
    split = {f"cost_{name}": amount / start_equity for name, amount in paid.items()}
    return split | {f"cost_{name}_of_gross": ratio(amount, gross) for name, amount in paid.items()}


def ratio(numerator: float, denominator: float) -> float:
    """The quotient, kept within ±`LARGEST`; 0 where the denominator is not positive."""
    return max(-LARGEST, min(numerator / denominator, LARGEST)) if denominator > 0.0 else 0.0


def _lost_in_a_row(trades: Sequence[Trade]) -> int:
    return max((sum(1 for _ in run) for lost, run in groupby(trade.pnl < 0.0 for trade in trades) if lost), default=0)
