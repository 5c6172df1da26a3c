"""What one call of one role leaves behind for training: the tokens, and which of them the model chose.

A trajectory is a whole conversation of one call: the prompt and every tool answer are in `ids` too, with `mask` False.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One conversation. Lengths are checked here, once, so that nobody downstream has to.

    ids            (L,) int32    every token of the conversation
    mask           (L,) bool     True where the model sampled the token; False at position 0, which has no prefix
    sampled_logps  (L,) float32  log-prob under the engine that sampled it, temperature included; 0 where not `mask`
    expert         the expert's score in [0, 1], None where there is none
    ordinal        0 for the role's first call in this rollout, 1 for the second, ...
    thought_tokens sampled tokens that were thoughts; `thoughts_cut` of these were closed as their budget was spent
    failure        kind of what ended it without a valid answer, as `bad_json`; None for a valid one
    """

    role: str
    query: str
    rollout: int
    ordinal: int
    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    sampled_logps: npt.NDArray[np.float32]
    policy_version: str
    valid: bool
    format_score: float
    expert: float | None
    truncated: bool
    failure: str | None = None
    thought_tokens: int = 0
    thoughts_cut: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError on arrays or numbers that cannot be a trajectory."""
        where = f"trajectory of {self.role}, query {self.query}, rollout {self.rollout}, call {self.ordinal}"
        wanted = {"ids": np.int32, "mask": np.bool_, "sampled_logps": np.float32}
        for name, dtype in wanted.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != dtype:
                raise ValueError(f"{where}: {name} must be one row of {dtype.__name__}, not {array.dtype}{array.shape}")
            if len(array) != len(self.ids):
                raise ValueError(f"{where}: {name} has {len(array)} entries for {len(self.ids)} ids")
        if len(self.ids) == 0 or self.mask[0]:
            raise ValueError(f"{where}: the first token must be there and cannot have been sampled")
        if not np.isfinite(self.sampled_logps).all() or self.sampled_logps[~self.mask].any():
            raise ValueError(f"{where}: sampled_logps must be finite, and 0 where the mask is False")
        if not 0.0 <= self.format_score <= 1.0:
            raise ValueError(f"{where}: format_score {self.format_score} is outside [0, 1]")
        if self.expert is not None and not 0.0 <= self.expert <= 1.0:
            raise ValueError(f"{where}: expert {self.expert} is outside [0, 1]")


def failure_kind(reason: str | None) -> str | None:
    """The kind in a transcript's reason, which is `kind: what exactly`; None for None."""
    return None if reason is None else reason.partition(":")[0]


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """Trajectories as right-padded tensors: ids (B, T) int64, mask (B, T) bool, sampled_logps (B, T) float32.

    Padding holds id 0, mask False and log-prob 0. Attention is causal, so padding on the right cannot reach a
    sampled token and needs no attention mask.
    """

    ids: Tensor
    mask: Tensor
    sampled_logps: Tensor


def pad_trajectories(trajectories: Sequence[Trajectory]) -> PaddedBatch:
    """Stack B >= 1 trajectories, in the order given; T is the longest prefix that ends in a sampled token.

    Tokens after the last sampled one predict nothing that is trained on, so they are cut off. T is at least 1.
    """
    ends = [int(np.flatnonzero(one.mask)[-1]) + 1 if one.mask.any() else 1 for one in trajectories]
    shape = (len(trajectories), max(ends))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    sampled_logps = np.zeros(shape, np.float32)
    for row, (one, end) in enumerate(zip(trajectories, ends, strict=True)):
        ids[row, :end], mask[row, :end] = one.ids[:end], one.mask[:end]
        sampled_logps[row, :end] = one.sampled_logps[:end]
    import torch  # not needed to collect, only to train

    return PaddedBatch(torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(sampled_logps))
