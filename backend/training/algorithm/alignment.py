"""Trajectory alignment of M-GRPO (arXiv 2511.13288): rollouts call a sub-agent different numbers of times.

Every method is one weight per call, and the weights of a group (one query, one role) sum to 1: the objective's
denominator counts rollouts, never calls, so neither the number nor the size of optimizer steps depends on how often a
sub-agent was called. K rollouts with counts (d_1, ..., d_K); K_eff of them called at least once; d is the target.

    duplicate_drop  (the paper) m / (d K_eff): d - d_k uniform random copies are added, or d_k - d random calls
                    dropped, so that each rollout has d items; m is how often a call is among them
    fractional      1 / (K_eff d_k), the exact expectation of the former: no copies, nothing dropped
    none            1 / (d_1 + ... + d_K), the ablation: a rollout counts more the more often it called

A rollout without a call has no weight, and a group without calls is an empty row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

AlignmentMethod = Literal["duplicate_drop", "fractional", "none"]


def target_count(histogram: Mapping[int, int], quantile: float = 0.99) -> int:
    """Smallest d >= 1 with P(d_k <= d) >= quantile; histogram maps a number of calls to how many rollouts made it.

    At least 1, since a target of 0 would drop the few calls that were made. Raises ValueError on an empty histogram.
    """
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile {quantile} is outside (0, 1]")
    total = sum(histogram.values())
    if total <= 0 or min(histogram.values()) < 0 or min(histogram) < 0:
        raise ValueError("a histogram of calls needs at least one rollout, and no negative number")
    seen = 0
    for count in sorted(histogram):
        seen += histogram[count]
        if seen >= quantile * total - 1e-9 * total:  # 99 of 100 is 0.99, whatever the rounding of 0.99
            break
    return max(1, count)


def align(
    counts: Sequence[int], method: AlignmentMethod, target: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Weights of the calls of one group, (sum of counts,), ordered by rollout, then by call; they sum to 1.

    counts (K,) calls per rollout, zeros allowed; `target` and `rng` matter to duplicate_drop only.
    """
    if any(count < 0 for count in counts):
        raise ValueError(f"negative number of calls in {list(counts)}")
    if method == "fractional":
        return _fractional(counts)
    if method == "none":
        return np.full(sum(counts), 1.0 / max(1, sum(counts)))
    if target < 1:
        raise ValueError(f"duplicate_drop needs a target of at least 1, not {target}")
    callers = sum(count > 0 for count in counts)
    multiplicities = [_multiplicities(count, target, rng) for count in counts if count > 0]
    return np.concatenate([np.empty(0), *multiplicities]) / max(1, target * callers)


def _fractional(counts: Sequence[int]) -> npt.NDArray[np.float64]:
    calls = np.asarray([count for count in counts if count > 0], np.int64)
    return np.repeat(1.0 / (len(calls) * np.maximum(calls, 1)), calls) if len(calls) else np.empty(0)


def _multiplicities(count: int, target: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """How often each of `count` >= 1 calls is among the `target` items that stand for the rollout, (count,)."""
    if count >= target:
        kept = np.zeros(count)
        kept[rng.permutation(count)[:target]] = 1.0
        return kept
    copies = np.bincount(rng.integers(count, size=target - count), minlength=count)
    return 1.0 + copies.astype(np.float64)
