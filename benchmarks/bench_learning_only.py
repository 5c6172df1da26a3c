"""What one role's learning is worth while the others stay as they began: `make bench ONLY=learning.only`.

The markets, warm starts, windows and settings of `learning.oracle_share`, with every role frozen but one. The value is
the gain over the warm start in percentage points of return a window, its interval the same bootstrap over seeds and
windows, its ratio the part of the gain that training all roles brings. `learning.only.together` is what that gain has
above the sum of the roles' own: what they learn because the others learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bench_learning_oracle_share import EVERYBODY, cells, gains, rows_of, share_interval
from benchmarks.run import Result
from cryptosentinel.agents.registry import ROLES

BY_NAME_ONLY = True  # four trainings for each of `bench_learning_oracle_share.py`


def run() -> list[Result]:
    """The rows `learning.only.ROLE` and `learning.only.together`."""
    found = dict(zip((EVERYBODY, *ROLES), cells([EVERYBODY, *ROLES]), strict=True))
    gained = {name: gains(documents, found[EVERYBODY]) for name, documents in found.items()}
    alone = sum((gained[role] for role in ROLES), np.zeros_like(gained[EVERYBODY]))
    return [
        *(_row(role, gained[role], gained[EVERYBODY], _shares(found[role])) for role in ROLES),
        _row("together", gained[EVERYBODY] - alone, gained[EVERYBODY], "above the sum of the roles alone"),
    ]


def _row(name: str, gained: npt.NDArray[np.float64], whole: npt.NDArray[np.float64], told: str) -> Result:
    mean, low, high = share_interval(gained, np.ones_like(gained))
    return Result(
        name=f"learning.only.{name}",
        value=100 * mean,
        unit="points of return a window",
        against=f"warm start; 95 % interval {100 * low:+.2f} to {100 * high:+.2f}; all roles "
        f"{100 * whole.mean():+.2f}; {told}",
        ratio=mean / whole.mean(),
        target="interval > 0",
        met=low > 0.0,
    )


def _shares(documents: Sequence[dict[str, Any]]) -> str:
    """What the team earns of what the oracle does, and what it learnt from."""
    oracle = rows_of(documents, "oracle")
    said = []
    for row in ("trained", "trained, greedy"):
        share, low, high = share_interval(rows_of(documents, row), oracle)
        said.append(f"{row} {share:.0%} ({low:.0%} to {high:.0%}) of the oracle's earnings")
    rollouts = ", ".join(str(document["rollouts"]) for document in documents)
    return f"{'; '.join(said)}; {rollouts} rollouts"
