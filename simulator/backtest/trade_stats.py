"""Statistics of a list of round trips; the docstrings state the conventions. Only a profit factor can be infinite.

A trade is won when its net pnl is above 0 and lost when it is below; one that ends even is neither. Trades that are
still open at the end of a run count at their value there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from simulator.backtest.trades import Trade

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
