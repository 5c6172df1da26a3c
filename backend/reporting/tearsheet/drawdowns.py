"""The deepest drawdowns of an account, one by one, as a tearsheet lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.reporting.blocks import Missing, Table, TableRow
from backend.reporting.labels import Column, title_of
from backend.reporting.run_summary import WindowResult
from simulator.backtest import metrics
from simulator.market.timeframes import DAY_MS

_MOST = 5  # that are listed
_ROUNDING = 1e-12  # a loss below this is none
_TITLE = "Deepest drawdowns"
_COLUMNS = (
    Column("depth", "Depth", "share", "loss from the peak at the lowest close"),
    Column("peak", "Peak (UTC)", "moment", "the last close before the loss"),
    Column("valley", "Lowest (UTC)", "moment", "the lowest close"),
    Column("recovery", "Back at the peak (UTC)", "moment", "a dash: not until the end of the window"),
    Column("days", "Days below", "days", "from the peak to the recovery, or to the end of the window"),
)


@dataclass(frozen=True)
class Drawdown:
    """A stretch below an earlier peak: `depth` as a fraction of that peak; times of closes in ms, UTC. `recovery` is
    the first close back at the peak, None where the account did not get there; `days` last until it or the end."""

    depth: float
    peak: int
    valley: int
    recovery: int | None
    days: float


def deepest_drawdowns(times: Sequence[int], equity: Sequence[float], most: int = _MOST) -> list[Drawdown]:
    """The `most` deepest drawdowns of an account, the deepest first. They do not overlap. `times` (n,) are closes in
    ms, `equity` (n,) is positive at the start; a ruined account is at a depth of 1 from then on."""
    depth = metrics.drawdowns(metrics.returns_of(np.asarray(equity, np.float64)))
    below = np.flatnonzero(depth > _ROUNDING)
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


def drawdowns_block(window: WindowResult) -> Table | Missing:
    """The table of the main team's deepest drawdowns, or that there was none."""
    result = window.main_result
    rows = deepest_drawdowns(result.times, result.equity)
    if not rows:
        return Missing(_TITLE, "the account was never below an earlier close")
    caption = (
        f"The deepest of {title_of(window.main)}, bar by bar. Good: shallow, few, and over before one would have "
        "stopped trading."
    )
    listed = tuple(TableRow(str(number), vars(row)) for number, row in enumerate(rows, 1))
    return Table(_TITLE, caption, _COLUMNS, listed, "Rank")
