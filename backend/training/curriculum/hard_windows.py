"""Stage 2 on the windows that the team handles badly, told by what can be seen of a window and never by how it went.

A single window goes badly above all where its hidden state contradicts what can be seen; a team trained on such windows
learns to distrust its evidence. So windows are put into *cells* by what is known at the decision: the drift that a
filter of the returns believes in (five grades) and the volatility (three). Which cell a window is in tells nothing of
its future that an agent could not know, hence drawing some cells more often changes how often situations are met and
not what is right in them.

What a team leaves lying in a cell c is learnt from the rollouts of its last `MEMORY_STEPS` steps there. A rollout's
choice is short, flat or long, its worth the outcome above the mean of its group, whose rollouts share state and
scenarios:

    gap(c) = max over choices a of   n_ca / (n_ca + SHRUNK) * mean worth of the rollouts in c that chose a

which is near 0 where all choose alike or no choice is better than another, and large where one choice is better and the
team does not make it every time. Shrinking by n / (n + SHRUNK) keeps the luck of a few rollouts out. The largest of
three means is above 0 by chance alone; alike in all cells, and so of little weight where there is something to learn.

The gaps are computed from the store's records of complete steps alone, so that a resumed run and every worker of a
training apart draw the same windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from backend.store.records import QueryRecord, RolloutRecord
from backend.store.store import Store
from cryptosentinel.tools.market import CLEAR_DRIFT, STRONG_DRIFT
from simulator.arrays import IntArray
from simulator.market.drift_filter import FILTER_BARS, drift_belief
from simulator.market.market import Market

MEMORY_STEPS = 10  # steps back
SHRUNK = 16.0  # rollouts whose worth of 0 is added to those of a choice
DRIFTS = (-STRONG_DRIFT, -CLEAR_DRIFT, CLEAR_DRIFT, STRONG_DRIFT)  # the grades are those that the analyst is told
_VOLATILITY_BARS = 60
VOLATILITIES = 3  # grades, with equally many windows each
CELLS = (len(DRIFTS) + 1) * VOLATILITIES
FLAT = 0.1  # |exposure| up to which a rollout chose to be flat


def cells_of(markets: Sequence[Market], bars: IntArray) -> IntArray:
    """The cell of each state, (S, bars); -1 where the filter or the volatility is not known yet. Takes 30 ms for a
    thousand states."""
    drift = np.full((len(markets), len(bars)), np.nan)
    volatility = np.full_like(drift, np.nan)
    for row, market in enumerate(markets):
        returns = np.diff(np.log(market.close[:, 0]), prepend=np.nan)
        for place, bar in enumerate(bars):
            seen = returns[max(0, bar + 1 - FILTER_BARS) : bar + 1]
            lately = seen[~np.isnan(seen)][-_VOLATILITY_BARS:]
            if len(lately):
                drift[row, place] = drift_belief(seen)
                volatility[row, place] = np.sqrt(np.mean(lately**2))
        # A coin is calm or wild by its own standards, so the grades differ in nothing but the time.
        if not np.isnan(volatility[row]).all():
            volatility[row] /= np.nanmedian(volatility[row])
    known = ~(np.isnan(drift) | np.isnan(volatility))
    bounds = np.quantile(volatility[known], np.arange(1, VOLATILITIES) / VOLATILITIES) if known.any() else []
    cells = np.digitize(drift, DRIFTS) * VOLATILITIES + np.digitize(volatility, bounds)
    return np.where(known, cells, -1).astype(np.int64)


def cell_gaps(heard: Iterable[tuple[int, Sequence[RolloutRecord]]]) -> tuple[float, ...]:
    """gap(c) of every cell, (CELLS,), of groups of rollouts given with their cell; where a cell was not met it is the
    mean of those that were, and () where none was."""
    worth: dict[tuple[int, int], list[float]] = defaultdict(list)
    met: set[int] = set()
    for cell, group in heard:
        mean = sum(one.outcome for one in group) / len(group)
        met.add(cell)
        for one in group:
            exposure = one.parts["exposure"]
            choice = 0 if abs(exposure) <= FLAT else 1 if exposure > 0 else -1
            worth[cell, choice].append(one.outcome - mean)
    if not met:
        return ()
    by_cell = {
        cell: max(0.0, *(sum(row) / (len(row) + SHRUNK) for (place, _), row in worth.items() if place == cell))
        for cell in met
    }
    usual = sum(by_cell.values()) / len(by_cell)
    return tuple(by_cell.get(cell, usual) for cell in range(CELLS))


@dataclass(frozen=True)
class Hard:
    """How windows are drawn: `share` of them in proportion to the gap of their cell, the others evenly."""

    share: float
    gaps: tuple[float, ...]  # (CELLS,)

    def chances(self, cells: IntArray) -> npt.NDArray[np.float64]:
        """The probability of each of `cells` (N,) to be drawn, (N,), summing to 1. Those without a cell, and all where
        every gap is 0, are drawn evenly."""
        even = np.full(len(cells), 1.0 / len(cells))
        weight = np.where(cells >= 0, np.asarray(self.gaps)[cells], 0.0)
        return (1.0 - self.share) * even + self.share * weight / weight.sum() if weight.any() else even

    def metrics(self) -> dict[str, float]:
        """Named `hard/...`."""
        return {"hard/gap/mean": float(np.mean(self.gaps)), "hard/gap/max": max(self.gaps)}


class Gaps:
    """What is left lying in each cell before each step of a run, from the store; steps that were read are kept.
    `cell_of` tells the cell of a coin and bar, below 0 for none."""

    def __init__(self, store: Store, run: str, cell_of: Callable[[str, int], int]) -> None:
        self._store, self._run, self._cell_of = store, run, cell_of
        self._steps: dict[int, list[tuple[QueryRecord, list[RolloutRecord]]]] = {}

    def before(self, step: int) -> tuple[float, ...]:
        """The gaps that steps before `step` tell of, () where they tell nothing."""
        past = range(max(0, step - MEMORY_STEPS), step)
        self._steps = {one: self._groups(one) for one in past}
        heard = [
            (self._cell_of(query.symbols[0], query.bar), group) for one in past for query, group in self._steps[one]
        ]
        return cell_gaps((cell, group) for cell, group in heard if cell >= 0)

    def _groups(self, step: int) -> list[tuple[QueryRecord, list[RolloutRecord]]]:
        if step in self._steps:
            return self._steps[step]
        by_query: dict[int, list[RolloutRecord]] = defaultdict(list)
        for one in self._store.rollouts(self._run, step):
            by_query[one.query].append(one)
        queries = sorted(self._store.queries(self._run, step), key=lambda one: one.query)
        return [(one, sorted(by_query[one.query], key=lambda r: r.rollout)) for one in queries if one.query in by_query]
