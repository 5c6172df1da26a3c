"""What M-GRPO adds to imitation: `make bench ONLY=learning.after_sft`.

The markets, warm starts and windows of `learning.oracle_share`. Each warm start is first fine-tuned on the scripted
team's conversations, as `sft` does, and M-GRPO goes on from there: `learning.after_sft` is the share of the oracle's
earnings that the team then reaches, `learning.after_sft.gain` what it earns above the team that it began as, decided
likewise, in percentage points of return a window.
"""

from __future__ import annotations

import numpy as np

from benchmarks.bench_learning_oracle_share import AFTER_SFT, cells, rows_of, share_interval, share_row
from benchmarks.run import Result

BY_NAME_ONLY = True  # it takes long


def run() -> list[Result]:
    """The rows of `learning.after_sft`, sampled as in training and greedy."""
    [documents] = cells([AFTER_SFT])
    rows = []
    for name, row in (("learning.after_sft", "trained"), ("learning.after_sft.greedy", "trained, greedy")):
        rows.append(share_row(name, documents, row))
        gained = rows_of(documents, row) - rows_of(documents, row.replace("trained", "warm_started"))
        mean, low, high = share_interval(gained, np.ones_like(gained))
        rows.append(
            Result(
                name=f"{name}.gain",
                value=100 * mean,
                unit="points of return a window",
                against=f"after sft alone; 95 % interval {100 * low:+.2f} to {100 * high:+.2f}",
                ratio=None,
                target="interval > 0",
                met=low > 0.0,
            )
        )
    return rows
