"""The training rows of a role, their packing into micro-batches, and the statistics of a step over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.policies.prefix_tree import sortable
from backend.training.algorithm.objective import ClipStats, importance_cut
from backend.training.algorithm.trajectory import PaddedBatch, Trajectory

_TAIL_QUANTILES = (0.01, 0.99)  # of the ratios: the largest ratio may be that of a single token


@dataclass(frozen=True, eq=False)
class TrainingRow:
    """A trajectory with a gradient, its advantage and its alignment weight.

    `proximal` (length,) are its log-probs under the policy before the first of several updates. It is None in the first
    update: there the forward pass of the update itself gives them.
    """

    trajectory: Trajectory
    advantage: float
    weight: float
    proximal: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens up to the last sampled one, as `pad_trajectories` cuts it."""
        return int(np.flatnonzero(self.trajectory.mask)[-1]) + 1


MicroBatch = list[TrainingRow]


def micro_batches(rows: Sequence[TrainingRow], budget: int) -> Iterator[MicroBatch]:
    """The rows in micro-batches of at most `budget` padded tokens; a row longer than that is one by itself.

    The rows of a query follow each other in the order of their tokens, so that rows with a common prefix are in one
    micro-batch and the prefix is computed once (`policies.prefix_tree`). Queries of similar length follow each other,
    so that there is little padding.
    """
    longest: dict[str, int] = {}
    for row in rows:
        longest[row.trajectory.query] = max(longest.get(row.trajectory.query, 0), row.length)

    def place(row: TrainingRow) -> tuple[int, str, bytes]:
        query = row.trajectory.query
        return longest[query], query, sortable(row.trajectory.ids[: row.length])

    members: list[TrainingRow] = []
    most = 0
    for row in sorted(rows, key=place):
        most = max(most, row.length)
        if members and (len(members) + 1) * most > budget:
            yield members
            members, most = [], row.length
        members.append(row)
    if members:
        yield members


class StepStats:
    """Statistics of one step of a role: sums over its micro-batches, from which `metrics` takes means and maxima."""

    def __init__(self, importance_cap: float) -> None:
        self._skipped_updates = 0
        self._importance_cap = importance_cap
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._learning_rate = 0.0  # of the last update
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._largest = {"ratio/max": 0.0, "engine_gap": 0.0}
        self._ratios: list[Tensor] = []

    def merge(self, other: StepStats) -> None:
        """Add the statistics of another process's micro-batches of the same step."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0.0) + other._counts[name]
        self._largest = {name: max(value, other._largest[name]) for name, value in self._largest.items()}
        self._ratios += other._ratios

    def take(self, counted: StepStats) -> None:
        """Have what `counted` has: these statistics as another process continued with them."""
        self.__dict__.update(counted.__dict__)

    @property
    def engine_gap(self) -> float:
        """Largest difference, so far, between a log-prob of the policy before the step and the engine's."""
        return self._largest["engine_gap"]

    def add_update(self, loss: float, norm: float, learning_rate: float) -> None:
        """Record an optimizer step that was taken; `norm` of the gradient before clipping."""
        self._losses.append(loss)
        self._norms.append(norm)
        self._learning_rate = learning_rate

    def add_skipped_update(self) -> None:
        """Record an optimizer step that was not taken, since its loss or gradient was not finite."""
        self._skipped_updates += 1

    def add_kl(self, kl: Tensor, weights: Tensor) -> None:
        """Record the KL of each call (B,) with the calls' weights (B,)."""
        self._add("kl", (kl * weights).sum(), float(weights.sum()))

    def add_tokens(
        self, stats: ClipStats, entropy: Tensor, importance: Tensor, old_logps: Tensor, batch: PaddedBatch
    ) -> None:
        """Record a micro-batch: entropy, importance (sampled,), old_logps (B, T)."""
        self._add("clip_share", stats.clipped.sum(), stats.clipped.numel())
        self._add("ratio/mean", stats.ratio.sum(), stats.ratio.numel())
        self._ratios.append(stats.ratio.float().cpu())
        self._add("entropy", entropy.sum(), entropy.numel())
        self._add("importance/mean", importance.sum(), importance.numel())
        self._add("importance/cut_share", importance_cut(importance, self._importance_cap).sum(), importance.numel())
        gap = (old_logps - batch.sampled_logps)[batch.mask].abs().max()
        for name, value in (("ratio/max", stats.ratio.max()), ("engine_gap", gap)):
            self._largest[name] = max(self._largest[name], value.item())

    def metrics(self, rows: Sequence[TrainingRow]) -> dict[str, float]:
        """The metrics by name, over the updates so far; a mean over nothing is left out."""
        metrics = {
            "updates": float(len(self._losses)),
            "skipped_updates": float(self._skipped_updates),
            "trained": float(len(rows)),
            "tokens": float(sum(int(row.trajectory.mask.sum()) for row in rows)),
        }
        if self._losses:
            metrics["loss"] = sum(self._losses) / len(self._losses)
            metrics["lr"] = self._learning_rate
            metrics["grad_norm"] = sum(self._norms) / len(self._norms)
        if self._counts:
            metrics |= {name: total / self._counts[name] for name, total in self._sums.items()} | self._largest
            low, high = np.quantile(torch.cat(self._ratios).numpy(), _TAIL_QUANTILES)
            metrics |= {"ratio/p01": float(low), "ratio/p99": float(high)}
        return metrics

    def _add(self, name: str, total: Tensor, count: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(total)
        self._counts[name] = self._counts.get(name, 0.0) + count
