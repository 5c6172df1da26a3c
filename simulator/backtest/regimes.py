"""Results of a run by market regime.

A labeling gives each bar of a market one regime, known at the close of that bar: it is made of closes up to then. What
happens in bar i + 1 is booked under the label of bar i, because that is what a decision for bar i + 1 could have known;
the truth of a synthetic market, whose row i governs bar i + 1, is read in the same way.

Labels describe the market as a whole: of the equally weighted mean of its symbols.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simulator.arrays import FloatArray, IntArray
from simulator.backtest import metrics
from simulator.backtest.run import BacktestResult
from simulator.errors import DataError, UserError
from simulator.market.market import Market
from simulator.synthetic.truth import truth_of

LOOKBACK_DAYS = 14
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Regimes:
    """A labeling of the bars of a market: `labels` (T,) are positions in `names`."""

    kind: str
    names: tuple[str, ...]
    labels: IntArray


@dataclass(frozen=True)
class RegimeRow:
    """What a run did in one regime. Over all regimes of a kind, all but the ratios sum to those of the run.

    Attributes:
        bars: how many bars of the window were in it. share: the same as a fraction of the window.
        total_return: change of the equity in its bars as a fraction of the equity at the start.
        sharpe: annual, of the returns of its bars alone.
        trades: round trips that were opened in its bars. hit_rate: share of those with a positive net pnl, 0 without.
        fees, spread, impact: money, by the bar of the fill. funding: money with the interest on what was
            borrowed, by the bar in which the trade was opened.
    """

    kind: str
    regime: str
    bars: int
    share: float
    total_return: float
    sharpe: float
    trades: int
    hit_rate: float
    fees: float
    spread: float
    impact: float
    funding: float


def trend_regimes(market: Market, lookback: int | None = None, threshold: float = 1.0) -> Regimes:
    """bear, range or bull by the return over the last `lookback` bars (default: 14 days of them).

    A trend is a return whose size exceeds `threshold` times what a walk without drift moves in that time: the standard
    deviation of its bars times the square root of their number. "unknown" before there is that number of bars.
    """
    count = _checked_lookback(market, lookback)
    if not threshold > 0.0:
        raise UserError(f"the threshold of a trend is {threshold}; give a positive number of standard deviations.")
    moves = _market_moves(market)
    rolling = pd.Series(moves).rolling(count)
    total, usual = rolling.sum().to_numpy(), rolling.std().to_numpy() * math.sqrt(count)
    labels = 2 + (total > threshold * usual).astype(np.int64) - (total < -threshold * usual)
    return Regimes("trend", (UNKNOWN, "bear", "range", "bull"), np.where(np.isnan(usual), 0, labels))


def volatility_regimes(market: Market, lookback: int | None = None) -> Regimes:
    """calm, normal or wild: the tercile of the volatility of the last `lookback` bars among all values up to then.

    The default is 14 days of bars. "unknown" until there are three times as many: the rank of a value among a few that
    overlap it means nothing.
    """
    count = _checked_lookback(market, lookback)
    deviation = pd.Series(_market_moves(market)).rolling(count).std()
    rank = deviation.expanding(2 * count).rank(pct=True).to_numpy()
    labels = 1 + (rank > 1 / 3).astype(np.int64) + (rank > 2 / 3)
    return Regimes("volatility", (UNKNOWN, "calm", "normal", "wild"), np.where(np.isnan(rank), 0, labels))


def true_regimes(market: Market) -> Regimes:
    """bear, range or bull as the hidden state of a synthetic market has it; several symbols are averaged, and more than
    a third to one side decides. Raises `DataError` for a market without a truth."""
    truth = None if market.truth is None else truth_of(market)
    if truth is None or not np.array_equal(truth.open_time, market.open_time):
        raise DataError(f"{market.source}: its true regimes are not known; use those of trend or volatility.")
    mean = truth.regime.astype(np.float64).mean(axis=1)
    labels = 1 + (mean > 1 / 3).astype(np.int64) - (mean < -1 / 3)
    return Regimes("truth", ("bear", "range", "bull"), labels)


def usual_regimes(market: Market) -> list[Regimes]:
    """Trend and volatility, and the truth where there is one."""
    kinds = [trend_regimes(market), volatility_regimes(market)]
    return [*kinds, true_regimes(market)] if market.truth is not None else kinds


def by_regime(result: BacktestResult, market: Market, kinds: Sequence[Regimes] | None = None) -> list[RegimeRow]:
    """What `result` did in each regime that occurs in its window, kind by kind.

    Args:
        market: the one of the run.
        kinds: labelings of that market; None takes `usual_regimes`.

    Raises `DataError` where the market or a labeling is not that of the run.
    """
    count = len(result.times)
    rows = slice(result.start, result.start + count)
    if result.symbols != market.symbols or not np.array_equal(market.open_time[rows] + market.interval, result.times):
        raise DataError(f"{market.source} is not the market of the result; give the one that the run was made on.")
    if kinds is None:
        kinds = usual_regimes(market)
    table: list[RegimeRow] = []
    for regimes in kinds:
        if regimes.labels.shape != market.open_time.shape:
            raise DataError(f"the {regimes.kind} regimes label {len(regimes.labels)} bars of {len(market)}; label all.")
        for position, name in enumerate(regimes.names):
            row = _row(result, market.interval, regimes.kind, name, regimes.labels == position)
            if row.bars:
                table.append(row)
    return table


def _row(result: BacktestResult, interval: int, kind: str, name: str, labelled: NDArray[np.bool_]) -> RegimeRow:
    """The row of the bars that follow a bar of `labeled`, (T,)."""
    stop = result.start + len(result.times) - 1
    inside = labelled[result.start : stop]
    bars = int(inside.sum())
    returns = metrics.returns_of(result.equity)[inside]
    fills = [fill for fill in result.fills if labelled[fill.bar - 1]]
    trades = [trade for trade in result.trades if labelled[trade.entry_bar - 1]]
    return RegimeRow(
        kind=kind,
        regime=name,
        bars=bars,
        share=bars / len(inside) if len(inside) else 0.0,
        total_return=float(np.diff(result.equity)[inside].sum() / result.equity[0]),
        sharpe=metrics.sharpe(returns, metrics.YEAR_MS / interval),
        trades=len(trades),
        hit_rate=sum(trade.pnl > 0.0 for trade in trades) / len(trades) if trades else 0.0,
        fees=math.fsum(fill.fee for fill in fills),
        spread=math.fsum(fill.spread_cost for fill in fills),
        impact=math.fsum(fill.impact_cost for fill in fills),
        funding=math.fsum(trade.funding + trade.borrow for trade in trades),
    )


def _market_moves(market: Market) -> FloatArray:
    """(T,): mean log return of the symbols from their last known close; NaN where no symbol has two closes yet."""
    close = pd.DataFrame(np.log(market.close)).ffill()
    return close.diff().mean(axis=1).to_numpy(np.float64)


def _checked_lookback(market: Market, lookback: int | None) -> int:
    if lookback is None:
        return max(2, LOOKBACK_DAYS * metrics.DAY_MS // market.interval)
    if lookback < 2:
        raise UserError(f"the lookback of a regime is {lookback} bars; give at least 2.")
    return lookback
