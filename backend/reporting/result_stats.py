"""Statistics of a stored backtest beyond its metrics: days, months, drawdowns, rolling Sharpe, trades, costs, regimes.

What a record lacks, such as a kind of costs, is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from backend.decisions.backtest_document import BacktestDocument
from simulator.backtest import metrics
from simulator.backtest.metrics import COST_KEYS, cost_split, trade_statistics
from simulator.backtest.regimes import Regimes, by_regime
from simulator.backtest.trades import Trade
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS

ROLLING_DAYS = 30
FEWEST_RETURNS = 20  # of a rolling window: the deviation of fewer says nothing
_MOST_WINDOWS = 1_500  # more cannot be seen on a screen
_MOST_NUMBERS = 1_000_000  # that are looked at together
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


@dataclass(frozen=True)
class RollingSharpe:
    """Annual Sharpe ratios over the last `bars` returns, at the closes `times` (ms); None where nothing varied."""

    bars: int
    days: float
    times: list[int]
    values: list[float | None]


def monthly_returns(times: Sequence[int], equity: Sequence[float]) -> list[Month]:
    """The compounded return of each calendar month, in order.

    A return belongs to the month in which its bar ran, so a close at midnight of the first ends the month before. The
    months multiply up to the total return; that of an account that was ruined is -1 (see `metrics.returns_of`).
    """
    returns = _returns(equity)
    if not len(returns):
        return []
    closes = np.asarray(times[1:], np.int64) - 1
    months = closes.astype("datetime64[ms]").astype("datetime64[M]").astype(np.int64)  # since January 1970
    starts = np.flatnonzero(np.diff(months, prepend=months[0] - 1))
    growth = np.multiply.reduceat(1.0 + returns, starts) - 1.0
    named = [(1970 + number // 12, number % 12 + 1) for number in months[starts].tolist()]
    return [
        Month(year, month, total, times[0] <= _month_start(year, month) and times[-1] >= _month_end(year, month))
        for (year, month), total in zip(named, growth.tolist(), strict=True)
    ]


def yearly_returns(months: Sequence[Month]) -> dict[int, float]:
    """The compounded return of each year."""
    years: dict[int, float] = {}
    for month in months:
        years[month.year] = years.get(month.year, 1.0) * (1.0 + month.total_return)
    return {year: growth - 1.0 for year, growth in years.items()}


def daily_returns(times: Sequence[int], equity: Sequence[float]) -> dict[int, float]:
    """The compounded return of each day (UTC), by the day's start in ms. `times` (n,) are closes, `equity` (n,).

    A return belongs to the day in which its bar ran, so a close at midnight ends the day before; a bar longer than a
    day counts as the day on which it ended. The days multiply up to the total return.
    """
    returns = _returns(equity)
    if not len(returns):
        return {}
    days = (np.asarray(times[1:], np.int64) - 1) // DAY_MS * DAY_MS
    starts = np.flatnonzero(np.diff(days, prepend=-1))
    growth = np.multiply.reduceat(1.0 + returns, starts) - 1.0
    return dict(zip(days[starts].tolist(), growth.tolist(), strict=True))


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


def rolling_window(times: Sequence[int]) -> int | None:
    """Returns in a rolling window: those of 30 days, or a third of the run where that is less; None below 20."""
    if len(times) < 2:
        return None
    bars = min(ROLLING_DAYS * metrics.DAY_MS // (times[1] - times[0]), (len(times) - 1) // 3)
    return bars if bars >= FEWEST_RETURNS else None


def rolling_sharpe(times: Sequence[int], equity: Sequence[float]) -> RollingSharpe | None:
    """`metrics.sharpe` of the last `rolling_window` returns, at up to 1,500 closes spread evenly over the run.

    None for a run too short for such a window. A window without variance has no Sharpe ratio: None stands for it.
    """
    bars = rolling_window(times)
    if bars is None:
        return None
    interval = times[1] - times[0]
    returns = _returns(equity)
    count = len(returns) - bars + 1
    ends = np.unique(np.linspace(bars, len(returns), min(count, _MOST_WINDOWS)).round().astype(int)).tolist()
    values = _sharpes(sliding_window_view(returns, bars)[np.array(ends) - bars], metrics.YEAR_MS / interval)
    return RollingSharpe(bars, bars * interval / metrics.DAY_MS, [times[end] for end in ends], values)


def trade_summary(trades: Sequence[Trade], start_equity: float) -> dict[str, float | None]:
    """`trade_statistics` with what they leave out; None for what has no meaning (a rate of no trades) or is not known.

    Beside them: `mae`, `mfe`, mean excursions; `median_hours`, `longest_hours`, holding times; `winner_mae`, the mean
    MAE of the trades that were won: how far against it a good trade goes.
    """
    statistics: dict[str, float | None] = dict(trade_statistics(trades, start_equity))
    if not trades:
        statistics |= dict.fromkeys(("hit_rate", "expectancy", "best_trade", "worst_trade", "profit_factor"))
    if not any(trade.pnl < 0.0 for trade in trades):
        statistics["payoff_ratio"] = None
    held = [trade.holding_ms / _HOUR_MS for trade in trades if trade.holding_ms is not None]
    adverse = [trade.mae for trade in trades if trade.mae is not None]
    favourable = [trade.mfe for trade in trades if trade.mfe is not None]
    won = [trade.mae for trade in trades if trade.mae is not None and trade.pnl > 0.0]
    return statistics | {
        "mae": fmean(adverse) if adverse else None,
        "mfe": fmean(favourable) if favourable else None,
        "winner_mae": fmean(won) if won else None,
        "median_hours": median(held) if held else None,
        "longest_hours": max(held) if held else None,
    }


def by_side(trades: Sequence[Trade]) -> dict[str, list[Trade]]:
    """The trades that were long and those that were short."""
    return {
        "long": [trade for trade in trades if trade.quantity > 0.0],
        "short": [trade for trade in trades if trade.quantity < 0.0],
    }


def trade_return(trade: Trade) -> float:
    """Net pnl over the value of the position at its entry."""
    return trade.pnl / (abs(trade.quantity) * trade.entry_price)


def cost_summary(result: BacktestDocument) -> dict[str, float | None]:
    """What trading cost, in quote currency: each of `COST_KEYS` (None where it was not recorded) and `total`; `net` and
    `gross`, the profit after and before costs; `total_share`, costs over the equity at the start; `total_of_gross`,
    costs over the profit before them, None where that was not positive. Negative amounts were received."""
    equity, paid = result.equity, result.costs
    net = equity[-1] - equity[0]
    total = math.fsum(paid.values())
    split = cost_split(paid, equity[0], net)
    kinds: dict[str, float | None] = {key: paid.get(key) for key in COST_KEYS}
    return kinds | {
        "total": total,
        "net": net,
        "gross": net + total,
        "total_share": total / equity[0],
        "total_of_gross": split["cost_total_of_gross"] if net + total > 0.0 else None,
    }


def traded_notional(result: BacktestDocument) -> dict[str, float]:
    """Value of all fills of each symbol that was traded, the largest first."""
    traded: dict[str, float] = {}
    for fill in result.fills:
        traded[fill.symbol] = traded.get(fill.symbol, 0.0) + abs(fill.quantity) * fill.price
    return dict(sorted(traded.items(), key=lambda item: (-item[1], item[0])))


def regime_rows(
    result: BacktestDocument,
    market: Market,
    against: BacktestDocument | None,
    kinds: Sequence[Regimes] | None = None,
) -> list[dict[str, Any]]:
    """The fields of each `RegimeRow` of `result`, with `against`: the return of another result there, or None. `kinds`
    as in `by_regime`.

    Raises `DataError` where `market` is not the one of the result.
    """
    rows = by_regime(result.result(), market, kinds)
    others = by_regime(against.result(), market, kinds) if against is not None else []
    returns = {(row.kind, row.regime): row.total_return for row in others}
    return [{**asdict(row), "against": returns.get((row.kind, row.regime))} for row in rows]


def _returns(equity: Sequence[float]) -> NDArray[np.float64]:
    return metrics.returns_of(np.asarray(equity, np.float64))


def _sharpes(windows: NDArray[np.float64], per_year: float) -> list[float | None]:
    """`metrics.sharpe` of each row (n, bars); None where a row does not vary, for which that gives 0."""
    values: list[float | None] = []
    rows = max(1, _MOST_NUMBERS // windows.shape[1])
    for first in range(0, len(windows), rows):
        part = windows[first : first + rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = part.mean(axis=1) / part.std(axis=1, ddof=1) * math.sqrt(per_year)
        # Returns that differ by rounding alone do not vary.
        still = np.ptp(part, axis=1) <= 1e-12 * np.maximum(1.0, np.abs(part).max(axis=1))
        values += [None if constant else float(one) for constant, one in zip(still, ratio, strict=True)]
    return values


def _month_start(year: int, month: int) -> int:
    return round(datetime(year, month, 1, tzinfo=UTC).timestamp() * 1000)


def _month_end(year: int, month: int) -> int:
    return _month_start(year + month // 12, month % 12 + 1)


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
