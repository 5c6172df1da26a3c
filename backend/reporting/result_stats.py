"""Statistics of a stored backtest beyond its metrics: months, drawdowns, trades, costs.

What a record lacks, such as a kind of costs, is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from backend.decisions.backtest_document import BacktestDocument
from simulator.backtest import metrics
from simulator.backtest.metrics import COST_KEYS, cost_split, trade_statistics
from simulator.backtest.trades import Trade
from simulator.market.timeframes import DAY_MS

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Month:
    """A calendar month (UTC) of a run. `whole` is false where the run saw only a part of it."""

    year: int
    month: int
    total_return: float
    whole: bool


@dataclass(frozen=True)
class Drawdown:
    """A stretch below an earlier peak: `depth` as a fraction of that peak; times of closes in ms, UTC. `recovery` is
    the first close back at the peak, None where the account did not get there; `days` last until it or the end."""

    depth: float
    peak: int
    valley: int
    recovery: int | None
    days: float


def monthly_returns(times: Sequence[int], equity: Sequence[float]) -> list[Month]:
    """The compounded return of each calendar month, in order.

    A return belongs to the month in which its bar ran, so a close at midnight of the first ends the month before. The
    months multiply up to the total return; that of an account that was ruined is -1 (see `metrics.returns_of`).
    """
    if len(times) < 2:
        return []
    months = pd.to_datetime(np.asarray(times[1:], np.int64) - 1, unit="ms").to_period("M")
    growth = pd.Series(1.0 + _returns(equity)).groupby(months).prod() - 1.0
    begun: list[pd.Period] = list(months.unique())
    return [
        Month(one.year, one.month, total, times[0] <= _start_of(one) and times[-1] >= _start_of(one + 1))
        for one, total in zip(begun, growth.tolist(), strict=True)
    ]


def yearly_returns(months: Sequence[Month]) -> dict[int, float]:
    """The compounded return of each year."""
    years: dict[int, float] = {}
    for month in months:
        years[month.year] = years.get(month.year, 1.0) * (1.0 + month.total_return)
    return {year: growth - 1.0 for year, growth in years.items()}


def deepest_drawdowns(times: Sequence[int], equity: Sequence[float], most: int = 5) -> list[Drawdown]:
    """The `most` deepest drawdowns of an account, the deepest first. They do not overlap. `times` (n,) are closes in
    ms, `equity` (n,) is positive at the start; a ruined account is at a depth of 1 from then on."""
    depth = metrics.drawdowns(_returns(equity))
    below = np.flatnonzero(depth > 1e-12)  # less is rounding
    stretches = np.split(below, np.flatnonzero(np.diff(below) > 1) + 1) if len(below) else []
    rows = []
    for stretch in stretches:
        first, last = int(stretch[0]), int(stretch[-1])
        lowest = first + int(np.argmax(depth[first : last + 1]))
        recovered = last + 1 < len(depth)
        end = last + 1 if recovered else last
        days = (times[end] - times[first - 1]) / DAY_MS
        recovery = times[end] if recovered else None
        rows.append(Drawdown(float(depth[lowest]), times[first - 1], times[lowest], recovery, days))
    return sorted(rows, key=lambda row: (-row.depth, row.peak))[:most]


def trade_summary(trades: Sequence[Trade], start_equity: float) -> dict[str, float | None]:
    """`trade_statistics` with what they leave out; None for what has no meaning (a rate of no trades) or is not known.

    Beside them: `mae`, `mfe`, mean excursions; `median_hours`, `longest_hours`, holding times.
    """
    statistics: dict[str, float | None] = dict(trade_statistics(trades, start_equity))
    if not trades:
        statistics |= dict.fromkeys(("hit_rate", "expectancy", "best_trade", "worst_trade", "profit_factor"))
    if not any(trade.pnl < 0.0 for trade in trades):
        statistics["payoff_ratio"] = None
    held = [trade.holding_ms / _HOUR_MS for trade in trades if trade.holding_ms is not None]
    adverse = [trade.mae for trade in trades if trade.mae is not None]
    favourable = [trade.mfe for trade in trades if trade.mfe is not None]
    return statistics | {
        "mae": fmean(adverse) if adverse else None,
        "mfe": fmean(favourable) if favourable else None,
        "median_hours": median(held) if held else None,
        "longest_hours": max(held) if held else None,
    }


def trade_return(trade: Trade) -> float:
    """Net pnl over the value of the position at its entry."""
    return trade.pnl / (abs(trade.quantity) * trade.entry_price)


def cost_summary(result: BacktestDocument) -> dict[str, float | None]:
    """What trading cost, in quote currency: each of `COST_KEYS` (None where it was not recorded) and `total`; `net` and
    `gross`, the profit after and before costs; `total_of_gross`, costs over the profit before them, None where that was
    not positive. Negative amounts were received."""
    equity, paid = result.equity, result.costs
    net = equity[-1] - equity[0]
    total = math.fsum(paid.values())
    split = cost_split(paid, equity[0], net)
    kinds: dict[str, float | None] = {key: paid.get(key) for key in COST_KEYS}
    return kinds | {
        "total": total,
        "net": net,
        "gross": net + total,
        "total_of_gross": split["cost_total_of_gross"] if net + total > 0.0 else None,
    }


def traded_notional(result: BacktestDocument) -> dict[str, float]:
    """Value of all fills of each symbol that was traded, the largest first."""
    traded: dict[str, float] = {}
    for fill in result.fills:
        traded[fill.symbol] = traded.get(fill.symbol, 0.0) + abs(fill.quantity) * fill.price
    return dict(sorted(traded.items(), key=lambda item: (-item[1], item[0])))


def _returns(equity: Sequence[float]) -> NDArray[np.float64]:
    return metrics.returns_of(np.asarray(equity, np.float64))


def _start_of(month: pd.Period) -> int:
    """In ms, UTC."""
    return int(month.start_time.value) // 1_000_000


def inference_cost_line(result: BacktestDocument) -> str | None:
    """What a team's inference took and what it leaves of the return, in a sentence; None where nothing was recorded."""
    spent = result.inference
    if spent is None:
        return None
    engine = spent.engine
    text = f"inference took {spent.calls:,} requests and {spent.tokens:,} tokens in {spent.seconds:,.1f} s"
    if engine:
        text += f" ({engine['tokens_per_second']:,.0f} sampled a second, {100 * engine['prefix_reuse']:.0f} % of the "
        text += "prompts known from before)"
    if engine.get("reasoning_tokens"):
        text += f"; {engine['reasoning_tokens']:,.0f} of the tokens were thoughts"
    if engine.get("thoughts_cut"):
        text += f"; {engine['thoughts_cut']:,.0f} thoughts were cut off at their budget"
    if engine.get("cut_off_retries"):
        text += f"; {engine['cut_off_retries']:,.0f} of the requests repeat answers that were cut off"
    if spent.money:
        left = 100 * result.return_after_inference
        text += f"; it cost {spent.money:,.4g}, which leaves a return of {left:+.2f} %"
    if not spent.priced:
        text += "; it cost money, and the price is unknown (add the model to budget.prices)"
    if engine and engine["failures"]:
        text += f"; {engine['failures']:.0f} requests failed"
    return text
