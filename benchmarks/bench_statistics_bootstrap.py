"""What the intervals of a window cost: 10,000 resamples of 3,000 bars with fat tails, and the lead over another curve.

Inside the clock: `window_intervals`, after a first call that compiles. Independent bars make the shortest blocks, which
take longest.
"""

from __future__ import annotations

import time

import numpy as np

from backend.statistics.bootstrap import window_intervals
from benchmarks.pace import within
from benchmarks.run import Result

BARS, SAMPLES, MOST_SECONDS = 3_000, 10_000, 2.0


def run() -> list[Result]:
    """The row `statistics.bootstrap`; its ratio is to the limit of 2 seconds."""
    rng = np.random.default_rng(1)
    ours, theirs = 0.01 * rng.standard_t(4, (2, BARS))
    window_intervals(ours, 365.0, theirs, samples=10)
    taken = []
    for number in range(3):
        start = time.perf_counter()
        window_intervals(ours, 365.0, theirs, samples=SAMPLES, seed=number)
        taken.append(time.perf_counter() - start)
    said = f"{SAMPLES:,} resamples of {BARS:,} bars"
    return [within("statistics.bootstrap", min(taken), "s", MOST_SECONDS, said)]
