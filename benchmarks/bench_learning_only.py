"""What one role's learning is worth while the others stay as they began: `make bench ONLY=learning.only`.

The markets, warm starts, windows and settings of `learning.oracle_share`, with every role frozen but one. The value is
the gain over the warm start in percentage points of return a window, its interval the same bootstrap over seeds and
windows, its ratio the part of the gain that training all roles brings.
"""

from __future__ import annotations

import numpy as np

from benchmarks.bench_learning_oracle_share import EVERYBODY, cells, gains, share_interval
from benchmarks.run import Result
from cryptosentinel.agents.registry import ROLES

BY_NAME_ONLY = True  # four trainings for each of `bench_learning_oracle_share.py`


def run() -> list[Result]:
    """The rows `learning.only.ROLE`."""
    everybody, *alone = cells([EVERYBODY, *ROLES])
    whole = gains(everybody, everybody).mean()
    rows: list[Result] = []
    for role, documents in zip(ROLES, alone, strict=True):
        gained = gains(documents, everybody)
        mean, low, high = share_interval(gained, np.ones_like(gained))
        rows.append(
            Result(
                name=f"learning.only.{role}",
                value=100 * mean,
                unit="points of return a window",
                against=f"warm start; 95 % interval {100 * low:+.2f} to {100 * high:+.2f}; "
                f"all roles {100 * whole:+.2f}",
                ratio=mean / whole,
                target="interval > 0",
                met=low > 0.0,
            )
        )
    return rows
