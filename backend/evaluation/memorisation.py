"""What a team owes to knowing which coin and which time it looks at.

A model that has read about a period may remember how it went. Two guards against believing such a result: the same team
is played with and without masks, and the window is laid beside the day up to which the model may have read.
"""

from __future__ import annotations

import numpy as np

from backend.evaluation.bootstrap import mean_interval
from simulator.backtest.run import BacktestResult
from simulator.market.timeframes import format_time, parse_time

_PARTS = 24  # of a window, for an interval; fewer where it has fewer bars
_SAMPLES = 5_000


def masking_note(name: str, masked: BacktestResult, unmasked: BacktestResult, seed: int) -> str:
    """A sentence on the paired difference between a team's two runs over one window, with a 95 % interval.

    The window is cut into equal parts; the difference of the money earned in each is one value, in percent of the
    equity at the start. Parts follow one another, so the interval is a little too narrow.
    """
    parts = min(_PARTS, len(masked.equity) - 1)
    places = np.linspace(0, len(masked.equity) - 1, parts + 1).round().astype(int)
    gains = [100.0 * np.diff(run.equity[places]) / run.equity[0] for run in (masked, unmasked)]
    totals = [float(gain.sum()) for gain in gains]
    text = f"{name} made {totals[0]:+.2f} % with masks and {totals[1]:+.2f} % with names and dates shown"
    if parts < 2:
        return f"{text}; the window is too short for an interval"
    low, high = (parts * edge for edge in mean_interval(gains[1] - gains[0], _SAMPLES, seed))
    verdict = (
        "which may be memory: trust the masked figures" if low > 0.0
        else "so knowing the names costs it something" if high < 0.0
        else "so knowing the names shows no effect"
    )  # fmt: skip
    return (
        f"{text}: shown less masked {totals[1] - totals[0]:+.2f} percentage points, 95 % interval {low:+.2f} to "
        f"{high:+.2f} over {parts} parts of the window, {verdict}"
    )


def cutoff_note(name: str, cutoff: str, first: int, last: int) -> str | None:
    """A warning where the window from `first` to `last` (ms) begins before the model's knowledge ends; None where it
    does not, or where `cutoff` is empty."""
    if not cutoff or parse_time(cutoff) <= first:
        return None
    known = min(1.0, (parse_time(cutoff) - first) / max(1, last - first))
    window = f"{format_time(first)} to {format_time(last)} UTC"
    return (
        f"{name} may have read about {100 * known:.0f} % of the window ({window}): its knowledge ends at {cutoff}. "
        "What it earned there may be memory"
    )
