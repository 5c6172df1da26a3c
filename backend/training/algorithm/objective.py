"""The formulas of the clipped objective (arXiv 2511.13288) that `recipes` puts together, and the terms added to it.

Every tensor below is (B, T) float32 unless it says otherwise; `mask` (B, T) bool marks the sampled tokens. The ratio
rho = pi_new / pi_old is one of

    token       per sampled token (GRPO, arXiv 2402.03300)
    sequence    one per call, the length-normalized exp(mean_t log rho_t) (GSPO, arXiv 2507.18071)
    trajectory  one per call, the plain product exp(sum_t log rho_t) (as the M-GRPO paper prints it)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RatioKind = Literal["token", "sequence", "trajectory"]

# exp beyond this overflows sooner or later, and an infinite ratio turns the gradient of its clipped side into NaN.
_MAX_LOG_RATIO = 30.0


@dataclass(frozen=True)
class ClipStats:
    """What to watch, without gradient: entries are sampled tokens where the ratio is one a token, else calls.

    ratio    (n,) of each entry
    clipped  (n,) bool: the clip has cut the gradient of the entry off, or its weight down or up to a bound
    """

    ratio: Tensor
    clipped: Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the sampled tokens of each row, (B,); a row without any gives 0. What is masked gets no gradient."""
    return where_sampled(values, mask).sum(-1) / mask.sum(-1).clamp(min=1)


def policy_ratio(new_logps: Tensor, old_logps: Tensor, mask: Tensor, kind: RatioKind) -> Tensor:
    """pi_new / pi_old: (B, T) for `token` (1 where masked), (B, 1) for `sequence` and `trajectory`."""
    log_ratio = where_sampled(new_logps - old_logps, mask)
    if kind != "token":
        log_ratio = log_ratio.sum(-1, keepdim=True)
    if kind == "sequence":
        log_ratio = log_ratio / mask.sum(-1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def clipped_values(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) (PPO, arXiv 1707.06347), and where the clip has cut the
    gradient off; `advantages` (B, 1). With clip_high above clip_low this is clip-higher (DAPO, arXiv 2503.14476)."""
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    # The minimum takes the constant side exactly where the policy has already moved far enough in A's direction.
    return torch.minimum(ratio * advantages, bounded), bounded < ratio * advantages


def weighted_logps(
    ratio: Tensor, new_logps: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """sg(clip(rho, 1 - clip_low, 1 + clip_high)) A log pi_new (CISPO, arXiv 2506.13585), with sg the stop of the
    gradient, and where the clip has changed the weight; `advantages` (B, 1)."""
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return bounded.detach() * advantages * new_logps, bounded != ratio


def importance_weights(proximal_logps: Tensor, behavior_logps: Tensor, mask: Tensor, cap: float) -> Tensor:
    """min(pi_proximal / pi_behavior, cap) of each token, (B, T), 1 where masked, no gradient (truncated importance
    sampling, arXiv 1802.01561).

    `behavior` is the engine that sampled (an older version, or another implementation), `proximal` the model as it is
    when the update begins, `current` the model while it moves. The decoupled objective (arXiv 2505.24298) clips
    current / proximal and multiplies by these weights; the cap bounds the variance of stale samples.
    """
    with torch.no_grad():
        return where_sampled(proximal_logps - behavior_logps, mask).exp().clamp(max=cap)


def importance_cut(importance: Tensor, cap: float) -> Tensor:
    """Which of the weights from `importance_weights` were truncated to the cap, bool of the same shape."""
    return importance >= cap


def k3(new_logps: Tensor, ref_logps: Tensor, mask: Tensor) -> Tensor:
    """The k3 estimate of KL(new || ref) per token: r - log r - 1 >= 0 with r = pi_ref / pi_new; 0 where masked.

    Unbiased in value only. In a loss, use `kl_tokens`.
    """
    log_r = where_sampled(ref_logps - new_logps, mask).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return log_r.exp() - log_r - 1.0


def kl_tokens(
    new_logps: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor, importance: Tensor | None = None
) -> Tensor:
    """KL(new || ref) per token, (B, T), with an unbiased gradient; 0 where masked.

    The tokens were drawn from the old policy. E_old[rho k3] is the KL of the new policy for every parameter, so its
    gradient is the KL's; the gradient of a bare k3 misses that the samples move with the policy. `importance` corrects
    for the engine as in `recipes.Recipe.objective`.
    """
    value = policy_ratio(new_logps, old_logps, mask, "token") * k3(new_logps, ref_logps, mask)
    return value if importance is None else value * importance


def where_sampled(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 at masked places; before an exp, it keeps what lies there out of value and gradient."""
    return values.where(mask, 0.0)
