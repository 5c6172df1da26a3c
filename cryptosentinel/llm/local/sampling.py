"""Sampling one token a row: a uniform number that depends on the request alone, and the inverse CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# 40 bits: u < 1 holds by a margin, so u * total stays below total in float64 and no impossible token is ever picked.
_BITS = 40


def uniforms(seeds: Sequence[int], starts: Sequence[int], steps: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (rows, steps): entry (r, s) is a hash of seeds[r] and position starts[r] + s.

    The hash is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
    applied to the seed and then to the seed's hash plus the position times the golden gamma. No state, hence no order
    dependence.
    """
    seed = np.array([value & _MASK for value in seeds], dtype=np.uint64)[:, None]
    position = np.array(starts, dtype=np.uint64)[:, None] + np.arange(1, steps + 1, dtype=np.uint64)[None, :]
    bits = _mix(_mix(seed + np.uint64(_GOLDEN)) + position * np.uint64(_GOLDEN))
    return (bits >> np.uint64(64 - _BITS)).astype(np.float64) / float(1 << _BITS)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row and its log-prob in the distribution it was drawn from.

    logits (B, V) float32; temperatures (B,), 0 for greedy, whose log-prob is that of the unscaled distribution;
    uniform (B,) float64 in [0, 1). Returns ids (B,) int64 and log-probs (B,) float32.
    """
    greedy = temperatures == 0
    logps = torch.log_softmax(logits / torch.where(greedy, 1.0, temperatures)[:, None], dim=-1)
    # The CDF is summed in float64: in float32 the tail of a large vocabulary would be lost to rounding.
    cdf = torch.cumsum(logps.exp(), dim=-1, dtype=torch.float64)
    threshold = uniform * cdf[:, -1]
    drawn = torch.searchsorted(cdf, threshold[:, None], right=True)[:, 0]
    ids = torch.where(greedy, logits.argmax(dim=-1), drawn) if bool(greedy.any()) else drawn
    return ids, logps.gather(1, ids[:, None])[:, 0]


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser; overflow wraps, as it must."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
