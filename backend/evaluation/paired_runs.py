"""Backtests that are compared bar by bar: only what was traded on the same bars, in the same window, at the same costs.

What the market did to both cancels in a paired difference. Of two windows, two data sets or two sets of costs nothing
cancels, so they are refused, and the message says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.decisions.backtest_document import BacktestDocument, read_backtests
from backend.evaluation.trials import marks_of
from backend.statistics.bootstrap import Interval, varies, window_intervals
from backend.statistics.mean_interval import holm
from backend.statistics.sharpe_tests import sharpe_difference_test
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.errors import UserError
from simulator.market.timeframes import YEAR_MS, format_time

_SECTIONS = ("costs", "venue")  # of the configuration, that both must have alike
_SAMPLES = 2_000
_MOST_SHOWN = 5


@dataclass(frozen=True)
class ComparedResult:
    """The team or strategy `name` of a run."""

    run: RunRecord
    name: str
    result: BacktestDocument

    def __str__(self) -> str:
        return f"{self.run.run} ({self.name})"


@dataclass(frozen=True)
class PairedDifference:
    """What `ours` made beyond `theirs`.

    Attributes:
        wealth: its final wealth over the other's, minus 1, with the 95 % interval.
        sharpe: difference of the annual Sharpe ratios. p_value: two-sided, that there is none (Ledoit and Wolf 2008).
        adjusted: the same after Holm's correction for all comparisons that were asked for at once.
    """

    ours: ComparedResult
    theirs: ComparedResult
    wealth: Interval
    sharpe: float
    p_value: float
    adjusted: float


def compared_result(store: Store, run_id: str, team: str = "") -> ComparedResult:
    """What is compared of a run: `team`, or the first that it tested. Raises `UserError` for a run without a backtest,
    or without this team."""
    run, results, tested = _results_of(store, run_id)
    name = team or next(iter(tested), next(iter(results)))
    if name not in results:
        raise UserError(f"run {run_id} has no result of '{name}'; it has {', '.join(results)}")
    return ComparedResult(run, name, results[name])


def results_within(store: Store, run_id: str) -> list[ComparedResult]:
    """All that were tested in one run, in their order: teams, their variants and strategies, without baselines. Raises
    `UserError` for a run without a backtest."""
    run, results, tested = _results_of(store, run_id)
    return [ComparedResult(run, name, results[name]) for name in tested]


def _results_of(store: Store, run_id: str) -> tuple[RunRecord, dict[str, BacktestDocument], list[str]]:
    """A run, its results by name, and the names of those that were tested in it."""
    run = store.run(run_id)
    results = {one.name: one.document for one in read_backtests(store, run_id)}
    if run.kind != "backtest" or not results:
        raise UserError(f"run {run_id} is not a backtest with a result ({run.kind}, {run.status}): compare backtests")
    stated = run.config.get("teams")
    return run, results, [str(name) for name in stated or () if name in results]


def paired_differences(compared: Sequence[ComparedResult], seed: int = 0) -> list[PairedDifference]:
    """Each result but the first against the first. Raises `UserError` for fewer than two, and for results that cannot
    be paired; `DataError` for windows that are too short."""
    if len(compared) < 2:
        raise UserError("a comparison needs two results or more: name two runs, or one that tested several teams")
    first, *others = compared
    for other in others:
        reasons = differing(first, other)
        if reasons:
            raise UserError(f"{other} cannot be compared with {first}: {'; '.join(reasons)}")
    per_year = YEAR_MS / (first.result.times[1] - first.result.times[0]) if len(first.result.times) > 1 else 1.0
    base = metrics.returns_of(np.asarray(first.result.equity))
    rows = []
    for other in others:
        returns = metrics.returns_of(np.asarray(other.result.equity))
        rows.append((other, _lead(returns, base, per_year, seed), _p_value(returns, base, seed)))
    adjusted = holm([p_value for _, _, p_value in rows]).tolist()
    return [
        PairedDifference(
            other,
            first,
            wealth,
            other.result.metrics.get("sharpe", 0.0) - first.result.metrics.get("sharpe", 0.0),
            p_value,
            strict,
        )
        for (other, wealth, p_value), strict in zip(rows, adjusted, strict=True)
    ]  # fmt: skip


def _lead(returns: FloatArray, base: FloatArray, per_year: float, seed: int) -> Interval:
    """The final wealth of `returns` over that of `base`, minus 1. What never trades does not vary, so its lead is the
    other's turned round."""
    if varies(returns):
        lead = window_intervals(returns, per_year, base, samples=_SAMPLES, seed=seed).against
        assert lead is not None
        return lead
    if not varies(base):
        ratio = float(np.expm1(np.log1p(returns).sum() - np.log1p(base).sum()))
        return Interval(ratio, ratio, ratio)
    lag = window_intervals(base, per_year, returns, samples=_SAMPLES, seed=seed).against
    assert lag is not None
    return Interval(*(1.0 / (1.0 + end) - 1.0 for end in (lag.value, lag.high, lag.low)))


def _p_value(returns: FloatArray, base: FloatArray, seed: int) -> float:
    """Of no difference in the Sharpe ratios; 1 where one of them is not defined, since nothing is shown then."""
    if not (varies(returns) and varies(base)):
        return 1.0
    return sharpe_difference_test(returns, base, samples=_SAMPLES, seed=seed).p_value


def marks_within(compared: Sequence[ComparedResult]) -> list[str]:
    """The sentences on teams that were trained on the window in which they are compared."""
    return list(dict.fromkeys(mark for one in compared for mark in marks_of(one.run.config)))


def differing(first: ComparedResult, other: ComparedResult) -> list[str]:
    """Why two results cannot be paired, a sentence each; empty where they can."""
    reasons = []
    if first.run.data_hash != other.run.data_hash:
        reasons.append(f"the data differ ({first.run.data_hash[:12]} and {other.run.data_hash[:12]})")
    if first.result.symbols != other.result.symbols:
        reasons.append(f"the coins differ ({', '.join(first.result.symbols)} and {', '.join(other.result.symbols)})")
    if first.result.times != other.result.times:
        reasons.append(f"the windows differ ({_window(first)} and {_window(other)})")
    if first.result.equity[0] != other.result.equity[0]:
        reasons.append(f"the capital differs ({first.result.equity[0]:g} and {other.result.equity[0]:g})")
    for section in _SECTIONS:
        changed = _changed(_section(first, section), _section(other, section))
        if changed:
            shown = ", ".join(f"{section}.{key} {one} and {two}" for key, one, two in changed[:_MOST_SHOWN])
            more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
            reasons.append(f"the {section} differ ({shown}{more})")
    return reasons


def _section(one: ComparedResult, name: str) -> Mapping[str, Any]:
    settings = one.run.config.get("config")
    section = settings.get(name) if isinstance(settings, dict) else None
    return section if isinstance(section, dict) else {}


def _changed(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The keys whose values differ, with both."""
    keys = [*first, *(key for key in other if key not in first)]
    return [(key, first.get(key), other.get(key)) for key in keys if first.get(key) != other.get(key)]


def _window(one: ComparedResult) -> str:
    times = one.result.times
    return f"{format_time(times[0])} to {format_time(times[-1])} UTC, {len(times)} closes"
