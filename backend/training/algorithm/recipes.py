"""Recipes: variants of the objective, each a class, chosen by `training.recipe`.

For one role, maximize over the B calls of a batch with n_i sampled tokens each

    J = sum_i w_i mean_t v_it / sum_i w_i        v_it = min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i)

with A_i the advantages and w_i the alignment weights. Those of one group sum to 1, so the denominator is the number of
groups that had a call, and inside a group it counts rollouts (`alignment`): never calls, never tokens. A recipe may
replace

    advantages     rewards of a group -> advantages
    values         log-probs and advantages -> v_it
    sums_tokens    the tokens of a call are added and not averaged; then `total` says what the sum is divided by
    alignment      a method of its own in place of `training.alignment`

Each denominator is additive over disjoint sets of calls, and the weights stand above and below, so that the number of
calls d_k drops out of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt
from torch import Tensor

from backend.training.algorithm.advantages import advantages_of_valid, group_advantages
from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.algorithm.objective import (
    ClipStats,
    RatioKind,
    clipped_values,
    masked_mean,
    policy_ratio,
    weighted_logps,
    where_sampled,
)
from simulator.arrays import FloatArray

_Row = TypeVar("_Row", Tensor, npt.NDArray[Any])


@dataclass(frozen=True)
class Recipe:
    """What every recipe has; a recipe of your own is a subclass. The fields are the settings of the same name."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    scale_rewards: bool = True
    invalid_penalty: float = 0.0

    ratio: ClassVar[RatioKind] = "token"
    sums_tokens: ClassVar[bool] = False
    alignment: ClassVar[AlignmentMethod | None] = None

    def advantages(
        self, rewards: Sequence[float], valid: Sequence[bool], weights: Sequence[float] | None
    ) -> tuple[FloatArray, bool]:
        """The advantages (n,) of one group, and whether it has nothing to compare.

        rewards (n,), valid (n,) bool; weights (n,) of the alignment, None where all calls count alike.
        """
        if self.invalid_penalty:
            return advantages_of_valid(rewards, valid, self.invalid_penalty, weights, self.scale_rewards)
        return group_advantages(rewards, weights, self.scale_rewards)

    def values(self, new_logps: Tensor, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """v and where the clip acts, both shaped as `ratio`: (B, T), or (B, 1) where it is one a call.

        new_logps (B, T), 0 where not sampled; ratio as `objective.policy_ratio` has it; advantages (B, 1).
        """
        return clipped_values(ratio, advantages, self.clip_low, self.clip_high)

    def total(self, weights: _Row, tokens: _Row) -> float:
        """The denominator over the calls given; weights (B,), tokens (B,) sampled tokens of each."""
        return float(weights.sum())

    def aggregate(self, values: Tensor, mask: Tensor, weights: Tensor, total: float | None = None) -> Tensor:
        """Values of the sampled tokens as one scalar; values, mask (B, T), weights (B,).

        `total` is the denominator, that of the calls given when None. A micro-batch passes the total of its whole
        batch: the parts then add up to the batch's value, and so do the gradients.
        """
        if total is None:
            total = self.total(weights, mask.sum(-1))
        rows = where_sampled(values, mask).sum(-1) if self.sums_tokens else masked_mean(values, mask)
        return (rows * weights).sum() / total

    def objective(
        self,
        new_logps: Tensor,
        old_logps: Tensor,
        mask: Tensor,
        advantages: Tensor,
        weights: Tensor,
        importance: Tensor | None = None,
        total: float | None = None,
    ) -> tuple[Tensor, ClipStats]:
        """J as a scalar to maximize; log-probs and mask (B, T), advantages and weights (B,).

        importance (B, T) from `objective.importance_weights`, None for 1: multiplies each token's value; a call with
        one ratio takes the mean of its tokens'. `total` as in `aggregate`.
        """
        rho = policy_ratio(new_logps, old_logps, mask, self.ratio)
        value, clipped = self.values(where_sampled(new_logps, mask), rho, advantages.unsqueeze(-1))
        entries = mask if self.ratio == "token" else mask.any(-1, keepdim=True)
        if importance is not None:
            one_a_token = self.ratio == "token"
            value = value * (importance if one_a_token else masked_mean(importance, mask).unsqueeze(-1))
        return self.aggregate(value, entries, weights, total), ClipStats(rho.detach()[entries], clipped[entries])


class Mgrpo(Recipe):
    """M-GRPO (arXiv 2511.13288): calls aligned by rollout, compared within (query, role), clipped by token.

    The mean over a call's own tokens (GRPO's 1/|o|) keeps a long answer from weighing more than a short one.
    """


class MgrpoTrajectory(Recipe):
    """M-GRPO as the paper prints it (arXiv 2511.13288): one ratio a call, the product of its tokens' ratios.

    The product leaves any clip range within a few tokens, so it learns from short answers only.
    """

    ratio = "trajectory"


class Grpo(Recipe):
    """GRPO (arXiv 2402.03300) for every role apart: each call is a sample of its own.

    Nothing is aligned, so a rollout counts more the more often it asks a role; M-GRPO's ablation.
    """

    alignment = "none"


class Gspo(Recipe):
    """GSPO (arXiv 2507.18071): one ratio a call, the geometric mean of its tokens' ratios.

    It stays near 1, so the paper clips far more tightly: training.clip_low = 3e-4, training.clip_high = 4e-4.
    """

    ratio = "sequence"


class Dapo(Recipe):
    """DAPO (arXiv 2503.14476): the mean over all tokens of the batch, sum_i w_i sum_t v_it / sum_i w_i n_i.

    The d_k calls of a rollout share its weight, so their tokens count as those of one call of their mean length. The
    paper's clip-higher is training.clip_high = 0.28. Its dynamic sampling and its penalty for length are left out.
    """

    sums_tokens = True

    def total(self, weights: _Row, tokens: _Row) -> float:
        """All tokens, by the weights of their calls."""
        return float((weights * tokens).sum())


class DrGrpo(Recipe):
    """Dr. GRPO (arXiv 2503.20783): no division by sigma, and the sum over tokens by a constant in place of their mean.

    So queries whose rewards hardly differ get no larger steps, and a token weighs no less in a longer call. AdamW
    divides the constant out again: it matters beside `kl`, `entropy` and `max_grad_norm` only.
    """

    length: ClassVar[int] = 128  # tokens by which a call's sum is divided
    sums_tokens = True

    def advantages(
        self, rewards: Sequence[float], valid: Sequence[bool], weights: Sequence[float] | None
    ) -> tuple[FloatArray, bool]:
        """R - mean, whatever `scale_rewards` says."""
        if self.invalid_penalty:
            return advantages_of_valid(rewards, valid, self.invalid_penalty, weights, scale=False)
        return group_advantages(rewards, weights, scale=False)

    def total(self, weights: _Row, tokens: _Row) -> float:
        """The rollouts, times the constant length."""
        return self.length * float(weights.sum())


class Cispo(Dapo):
    """CISPO (MiniMax-M1, arXiv 2506.13585): sg(clip(rho)) A log pi_new, averaged over all tokens as in DAPO.

    No token loses its gradient; the clip only bounds its size. The paper has no lower bound: training.clip_low = 1.
    """

    def values(self, new_logps: Tensor, ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        """The clipped weight on the log-probability."""
        return weighted_logps(ratio, new_logps, advantages, self.clip_low, self.clip_high)


RECIPES: dict[str, type[Recipe]] = {
    "mgrpo": Mgrpo,
    "mgrpo_trajectory": MgrpoTrajectory,
    "grpo": Grpo,
    "gspo": Gspo,
    "dapo": Dapo,
    "dr_grpo": DrGrpo,
    "cispo": Cispo,
}
