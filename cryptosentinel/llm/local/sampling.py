"""Sampling one token a row: a uniform number that depends on the request alone, and the inverse CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
# 40 bits: u < 1 holds by a margin, so u * total stays below total in float64 and no impossible token is ever picked.
_BITS = 40
_BY_BLOCKS_FROM = 2**13  # words; nano's vocabulary is smaller and keeps its numbers to the bit
_BLOCK = 512


def uniforms(seeds: Sequence[int], starts: Sequence[int], steps: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (rows, steps): entry (r, s) is a hash of seeds[r] and position starts[r] + s.

    The hash is SplitMix64's finalizer (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014),
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
    scaled = logits / torch.where(greedy, 1.0, temperatures)[:, None]
    if logits.shape[-1] >= _BY_BLOCKS_FROM:
        return _by_blocks(scaled, greedy, uniform)
    logps = torch.log_softmax(scaled, dim=-1)
    # The CDF is summed in float64: in float32 the tail of a large vocabulary would be lost to rounding.
    cdf = torch.cumsum(logps.exp(), dim=-1, dtype=torch.float64)
    threshold = uniform * cdf[:, -1]
    drawn = torch.searchsorted(cdf, threshold[:, None], right=True)[:, 0]
    ids = torch.where(greedy, logits.argmax(dim=-1), drawn) if bool(greedy.any()) else drawn
    return ids, logps.gather(1, ids[:, None])[:, 0]


def _by_blocks(scaled: torch.Tensor, greedy: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for a large vocabulary, with one exponential a word and no CDF of all words: first the block is found
    that the uniform number falls into, by the CDF of the blocks' sums (float64 too), then the word in it."""
    rows, words = scaled.shape
    highest = scaled.amax(dim=-1, keepdim=True)
    weights = (scaled - highest).exp_()
    if words % _BLOCK:
        weights = F.pad(weights, (0, _BLOCK - words % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    cdf = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    total = cdf[:, -1]
    threshold = uniform * total
    block = torch.searchsorted(cdf, threshold[:, None], right=True)[:, 0]
    below = torch.where(block > 0, cdf.gather(1, (block - 1).clamp_(min=0)[:, None])[:, 0], 0.0)
    inside = blocks[torch.arange(rows, device=scaled.device), block].cumsum(dim=-1, dtype=torch.float64)
    # Two sums of the same numbers may differ in the last bit; the word is in this block in any case.
    rest = (threshold - below).clamp_(min=0.0).minimum(torch.nextafter(inside[:, -1], torch.zeros_like(total)))
    drawn = block * _BLOCK + torch.searchsorted(inside, rest[:, None], right=True)[:, 0]
    ids = torch.where(greedy, scaled.argmax(dim=-1), drawn) if bool(greedy.any()) else drawn
    return ids, (scaled.gather(1, ids[:, None]) - highest)[:, 0] - total.log().float()


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer; overflow wraps, as it must."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
