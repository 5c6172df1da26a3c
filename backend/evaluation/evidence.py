"""How sure the numbers of a backtest are: intervals, what the number of trials leaves of the Sharpe ratio, and at what
cost of trading nothing is left."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from backend.decisions.backtest_document import BacktestDocument
from backend.statistics.bootstrap import WindowIntervals, window_intervals
from simulator.arrays import FloatArray
from simulator.backtest import metrics
from simulator.errors import DataError
from simulator.market.timeframes import YEAR_MS

_LEVEL = 0.95
_MOST_RETURNS = 20_000  # that are resampled: of more, some are put together
_SAMPLES = 2_000
_FEWEST_SAMPLES, _MOST_BARS = 200, 20_000_000  # of all resamples together: what a reader waits for


@dataclass(frozen=True)
class Evidence:
    """How sure the numbers of one result are. What is None could not be had; `problem` says why there is no interval.

    Attributes:
        trials: ways of trading that were tried on this data and window when it was measured, itself included.
        probabilistic, deflated: probability that the true Sharpe ratio is above 0, of one trial and after all.
        break_even: the cost of trading, as a share of the traded value, at which nothing is left of the profit before
            costs, for the same trades and sizes; None where nothing was traded.
    """

    trials: int
    intervals: WindowIntervals | None
    problem: str
    probabilistic: float
    deflated: float
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
    together = max(1, len(returns) // _MOST_RETURNS)
    try:
        ruined = held is not None and held.min(initial=0.0) <= -1.0
        other = None if ruined or held is None else _compounded(held, together).tobytes()
        intervals = _intervals(_compounded(returns, together).tobytes(), per_year / together, other)
    except DataError as error:
        problem = str(error)
    traded = math.fsum(abs(fill.quantity) * fill.price for fill in result.fills)
    earned = result.equity[-1] - result.equity[0] + math.fsum(result.costs.values())
    return Evidence(
        trials=trials,
        intervals=intervals,
        problem=problem,
        probabilistic=metrics.probabilistic_sharpe(returns),
        deflated=metrics.deflated_sharpe(returns, trials),
        break_even=earned / traded if traded > 0.0 else None,
    )


@lru_cache(maxsize=1_000)
def _intervals(returns: bytes, per_year: float, held: bytes | None) -> WindowIntervals:
    """`window_intervals` of these numbers, made once a process: a table of runs shows what each run itself shows.
    Raises `DataError` as that does."""
    samples = min(_SAMPLES, max(_FEWEST_SAMPLES, _MOST_BARS // max(len(returns) // 8, 1)))
    other = None if held is None else np.frombuffer(held)
    return window_intervals(np.frombuffer(returns), per_year, other, samples=samples, level=_LEVEL)


def _compounded(returns: FloatArray, count: int) -> FloatArray:
    """Returns of `count` bars each, (n // count,); bars that are left over at the beginning are not used. A resampled
    block spans many bars, so the interval is nearly that of the bars themselves."""
    if count == 1:
        return returns
    used = returns[len(returns) % count :].reshape(-1, count)
    return np.asarray(np.expm1(np.log1p(np.maximum(used, -1.0)).sum(axis=1)))


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
