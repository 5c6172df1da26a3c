"""Training rows of a role, packed into micro-batches by their tokens, and what a step measures of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.policies.prefix_tree import sortable
from backend.training.algorithm.objective import (
    ClipStats,
    importance_cut,
)
from backend.training.algorithm.trajectory import PaddedBatch, Trajectory

TAILS = (0.01, 0.99)  # of the ratios: one token that moved far says less than a hundredth of them


@dataclass
class Row:
    """A trajectory that is learnt from; `proximal` (length,) its log-probs before the first of several updates, None
    where that is the only one that it is in."""

    trajectory: Trajectory
    advantage: float
    weight: float
    proximal: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens up to the last sampled one, as `pad_trajectories` cuts it."""
        return int(np.flatnonzero(self.trajectory.mask)[-1]) + 1


MicroBatch = list[Row]


def _micro_batches(rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
    """At most `budget` padded tokens at once (or a single longer row).

    Rows that begin alike are neighbours, so that what they share is computed once (`shared_prefixes`): those of a query
    together, in the order of their tokens. Queries of similar length follow each other: there is little padding.
    """
    longest: dict[str, int] = {}
    for row in rows:
        longest[row.trajectory.query] = max(longest.get(row.trajectory.query, 0), row.length)

    def place(row: Row) -> tuple[int, str, bytes]:
        query = row.trajectory.query
        return longest[query], query, sortable(row.trajectory.ids[: row.length])

    members: list[Row] = []
    most = 0
    for row in sorted(rows, key=place):
        most = max(most, row.length)
        if members and (len(members) + 1) * most > budget:
            yield members
            members, most = [], row.length
        members.append(row)
    if members:
        yield members


class Watch:
    """Sums over the micro-batches of one `step`."""

    def __init__(self, importance_cap: float) -> None:
        self.skipped_updates = 0
        self._importance_cap = importance_cap
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._lr = 0.0  # of the last update
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._largest = {"ratio/max": 0.0, "engine_gap": 0.0}
        self._ratios: list[Tensor] = []

    def join(self, other: Watch) -> None:
        """Add what another process has seen of the same step."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0.0) + other._counts[name]
        self._largest = {name: max(value, other._largest[name]) for name, value in self._largest.items()}
        self._ratios += other._ratios

    def add_update(self, loss: float, norm: float, lr: float) -> None:
        """Record an optimiser step that was taken; norm before clipping."""
        self._losses.append(loss)
        self._norms.append(norm)
        self._lr = lr

    def add_kl(self, kl: Tensor, weights: Tensor) -> None:
        """Record KL per call (B,) with the weights it is learnt with."""
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

    def metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        """Everything by name; means are left out where nothing was seen."""
        found = {
            "updates": float(len(self._losses)),
            "skipped_updates": float(self.skipped_updates),
            "trained": float(len(rows)),
            "tokens": float(sum(int(row.trajectory.mask.sum()) for row in rows)),
        }
        if self._losses:
            found["loss"] = sum(self._losses) / len(self._losses)
            found["lr"] = self._lr
            found["grad_norm"] = sum(self._norms) / len(self._norms)
        if self._counts:
            found |= {name: total / self._counts[name] for name, total in self._sums.items()} | self._largest
            low, high = np.quantile(torch.cat(self._ratios).numpy(), TAILS)
            found |= {"ratio/p01": float(low), "ratio/p99": float(high)}
        return found

    def _add(self, name: str, total: Tensor, count: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(total)
        self._counts[name] = self._counts.get(name, 0.0) + count
