"""Teams and baselines on the same windows, and what one team earns more than another, with its interval.

All take the same windows, costs and limits; the teams also share the sampling seeds. A difference is taken window by
window, so that what the market did to both cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account
from backend.builders.strategies import named_strategies
from backend.processes import WorkReport
from backend.statistics.mean_interval import mean_interval
from cryptosentinel.episode import EpisodeResult, ThinkingTime, play
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.engine import RememberingEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import derive_seed
from simulator.backtest.run import BacktestResult, BacktestRun, Strategy, Window, run_backtest
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.strategies import MatchedRandom, Oracle
from simulator.synthetic.oracle import OraclePolicy, solve
from simulator.synthetic.truth import truth_of

_METRICS = ("total_return", "sharpe", "max_drawdown", "exposure", "trades", "long_share", "turnover", "hit_rate")
ORACLE_LEVELS = 5


def split_windows(start: int, stop: int, count: int, decisions: int, decide_every: int) -> list[Window]:
    """`count` windows of `decisions` decisions that follow each other without overlap in the bars [start, stop).

    Raises `DataError` when they do not fit.
    """
    bars = decisions * decide_every
    if count * bars >= stop - start:
        raise DataError(
            f"{count} windows of {decisions} decisions every {decide_every} bars need {count * bars + 1} bars, the "
            f"held-out part has {stop - start}: use fewer or shorter windows, or more bars"
        )
    step = (stop - 1 - start) // count
    return [Window(start + number * step, start + number * step + bars, decide_every) for number in range(count)]


def play_windows(
    loaded: LoadedTeam,
    market: Market,
    windows: Sequence[Window],
    account: Account,
    limits: GuardLimits,
    seed: int,
    report: WorkReport,
    thinking_time: ThinkingTime = 0.0,
) -> list[EpisodeResult]:
    """The team's backtests of all windows, side by side. A measured `thinking_time` is that of the whole batch that an
    answer was one of."""
    tasks = [
        play(
            loaded.team, BacktestRun(market, window, **account.terms), limits, derive_seed(seed, window.start),
            price=loaded.price, thinking_time=thinking_time,
        )
        for window in windows
    ]  # fmt: skip
    report(loaded.name, 0, len(tasks))
    episodes = run_all(tasks, loaded.engine, on_finished=lambda done: report(loaded.name, done, len(tasks)))
    if isinstance(loaded.engine, RememberingEngine):
        loaded.engine.forget()  # what it kept of these conversations helps no other, and is large
    return episodes


def baselines(
    names: Sequence[str],
    market: Market,
    windows: Sequence[Window],
    account: Account,
    matched_to: Sequence[BacktestResult],
    seed: int,
) -> dict[str, list[BacktestResult]]:
    """The baselines `names` (see `EvaluationConfig.baselines`) on every window, in that order.

    `matched_to` is whose exposure and rhythm the random trader copies. The oracle is left out where the truth of the
    market is not known.
    """
    known = named_strategies()
    policy: OraclePolicy | None = None
    if Oracle.name in names and market.truth is not None:
        levels = np.linspace(-1.0, 1.0, ORACLE_LEVELS) / len(market.symbols)
        policy = solve(truth_of(market), account.costs, levels.tolist(), windows[0].decide_every)

    def made(name: str, number: int) -> Strategy:
        if name == MatchedRandom.name:
            return MatchedRandom.matched_to(matched_to, derive_seed(seed, "random", number))
        return Oracle(policy) if policy is not None and name == Oracle.name else known[name]()

    return {
        name: [
            run_backtest(market, made(name, number), window, **account.terms) for number, window in enumerate(windows)
        ]
        for name in names
        if name != Oracle.name or policy is not None
    }


def table(
    results: Mapping[str, Sequence[BacktestResult]], episodes: Mapping[str, Sequence[EpisodeResult]]
) -> dict[str, Any]:
    """A row for each name: means over the windows, and the return of every window. `hold_rate` (share of decisions that
    changed nothing) is known for teams only."""
    rows: dict[str, Any] = {}
    for name, runs in results.items():
        row: dict[str, Any] = {key: float(np.mean([run.metrics[key] for run in runs])) for key in _METRICS}
        row["costs"] = float(np.mean([sum(run.costs.values()) / run.equity[0] for run in runs]))
        row["per_window"] = [run.metrics["total_return"] for run in runs]
        row["hold_rate"] = None
        if name in episodes:
            decisions = [decision for episode in episodes[name] for _, decision in episode.decisions]
            row["hold_rate"] = float(np.mean([not decision.orders for decision in decisions]))
        rows[name] = row
    return rows


def difference(
    results: Mapping[str, Sequence[BacktestResult]], of: str, against: str, samples: int, seed: int
) -> dict[str, Any]:
    """Mean paired difference of the windows' returns, its 95 % bootstrap interval, and the part that lower costs
    explain."""
    pairs = list(zip(results[of], results[against], strict=True))
    gains = [one.metrics["total_return"] - other.metrics["total_return"] for one, other in pairs]
    saved = [(sum(other.costs.values()) - sum(one.costs.values())) / one.equity[0] for one, other in pairs]
    low, high = mean_interval(gains, samples, seed)
    return {
        "of": of,
        "against": against,
        "mean": float(np.mean(gains)),
        "ci95": [low, high],
        "costs_saved": float(np.mean(saved)),
        "per_window": gains,
    }


def chained_equity(results: Mapping[str, Sequence[BacktestResult]], interval: int) -> dict[str, Any]:
    """Equity from 1 on over the windows played end to end, with the days traded since the start. Each window begins
    without positions."""
    curves = {}
    for name, runs in results.items():
        curve = [1.0]
        for run in runs:
            curve += (curve[-1] * run.equity[1:] / run.equity[0]).tolist()
        curves[name] = curve
    length = len(next(iter(curves.values())))
    return {"equity": curves, "equity_days": [bar * interval / 86_400_000 for bar in range(length)]}
