"""How sure the numbers of a backtest are: intervals, what the number of trials leaves of the Sharpe ratio, alpha and
beta, and how dear trading may become."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from backend.decisions.backtest_document import BacktestDocument
from backend.statistics.bootstrap import WindowIntervals, window_intervals
from backend.statistics.curve_tests import HoldRegression, break_even_cost, hold_regression, minimum_track_record
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.errors import DataError
from simulator.market.timeframes import YEAR_MS

_LEVEL = 0.95
_SAMPLES = 2_000
_FEWEST_SAMPLES, _MOST_BARS = 200, 20_000_000  # of all resamples together: what a reader waits for


@dataclass(frozen=True)
class Evidence:
    """How sure the numbers of one result are. What is None could not be had; `problem` says why there is no interval.

    Attributes:
        trials: ways of trading that were tried on this data and window when it was measured, itself included.
        probabilistic, deflated: probability that the true Sharpe ratio is above 0, of one trial and after all.
        days_needed: `minimum_track_record`; None where the ratio is not above 0.
        break_even: `break_even_cost`.
    """

    trials: int
    intervals: WindowIntervals | None
    problem: str
    probabilistic: float
    deflated: float
    days_needed: float | None
    regression: HoldRegression | None
    break_even: float | None

    @property
    def verdict(self) -> str:
        """Whether it earned more than holding did, in a few words; empty where there is nothing to compare with."""
        against = None if self.intervals is None else self.intervals.against
        if against is None:
            return ""
        if against.low > 0.0:
            return "Better, beyond chance."
        if against.high < 0.0:
            return "Worse, beyond chance."
        return "Not proven better."

    def facts(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self)


def evidence_of(result: BacktestDocument, hold: BacktestDocument | None, trials: int) -> Evidence:
    """How sure the numbers of `result` are, beside those of holding on the same bars."""
    interval = result.times[1] - result.times[0] if len(result.times) > 1 else YEAR_MS
    per_year, returns = YEAR_MS / interval, _returns(result)
    held = _returns(hold) if hold is not None and hold.times == result.times else None
    intervals, problem = None, ""
    try:
        ruined = held is not None and held.min(initial=0.0) <= -1.0
        other = None if ruined or held is None else held.tobytes()
        intervals = _intervals(returns.tobytes(), per_year, other)
    except DataError as error:
        problem = str(error)
    regression = None
    if held is not None:
        try:
            regression = hold_regression(returns, held, per_year, _LEVEL)
        except DataError as error:
            problem = problem or str(error)
    needed = minimum_track_record(
        metrics.sharpe(returns, 1.0), metrics.skew(returns), metrics.kurtosis(returns) + 3.0, confidence=_LEVEL
    )
    return Evidence(
        trials=trials,
        intervals=intervals,
        problem=problem,
        probabilistic=metrics.probabilistic_sharpe(returns),
        deflated=metrics.deflated_sharpe(returns, trials),
        days_needed=needed * interval / metrics.DAY_MS if math.isfinite(needed) else None,
        regression=regression,
        break_even=break_even_cost(
            result.equity[-1] - result.equity[0],
            math.fsum(result.costs.values()),
            math.fsum(abs(fill.quantity) * fill.price for fill in result.fills),
        ),
    )


@lru_cache(maxsize=1_000)
def _intervals(returns: bytes, per_year: float, held: bytes | None) -> WindowIntervals:
    """`window_intervals` of these numbers, made once a process: a table of runs shows what each run itself shows.
    Raises `DataError` as that does."""
    samples = min(_SAMPLES, max(_FEWEST_SAMPLES, _MOST_BARS // max(len(returns) // 8, 1)))
    other = None if held is None else np.frombuffer(held)
    return window_intervals(np.frombuffer(returns), per_year, other, samples=samples, level=_LEVEL)


def _returns(result: BacktestDocument) -> FloatArray:
    return metrics.returns_of(np.asarray(result.equity, np.float64))


def attribution(gain: float, saved: float, unit: str = "") -> str:
    """The two parts of a difference of returns: `lower trading costs +0.66, trading itself -0.66`, in percent.

    Args:
        gain: difference of the returns, net of costs. saved: what the first paid less in costs, the same unit; negative
            where it paid more. The rest, ``gain - saved``, is the difference before costs.
    """

    def shown(value: float) -> str:
        text = f"{100 * value:+.2f}"
        return (text.replace("-", "+") if not float(text) else text) + unit  # what rounds to 0 has no sign of its own

    rest = f"trading itself {shown(gain - saved)}"
    if shown(saved) == shown(0.0):
        return f"{rest}, trading costs the same"
    return f"{'lower' if saved > 0.0 else 'higher'} trading costs {shown(saved)}, {rest}"
