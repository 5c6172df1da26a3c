"""The clipped objective of M-GRPO (arXiv 2511.13288) for one role, and the terms that may be added to it.

Maximise, over the B calls of a batch,

    J = sum_i w_i mean_t min(rho A_i, clip(rho, 1 - eps_low, 1 + eps_high) A_i) / sum_i w_i

with w_i the alignment weights. Those of one group sum to 1, so the denominator is the number of groups that had a call,
and inside a group it counts rollouts (see `alignment`): never calls, never tokens.

The ratio rho = pi_new / pi_old is one of

    token       per sampled token, averaged over the call's own sampled tokens (GRPO's 1/|o|, arXiv 2402.03300), so that
                a long answer weighs no more than a short one
    sequence    one per call, the length-normalised exp(mean_t log rho_t) (GSPO, arXiv 2507.18071)
    trajectory  one per call, the plain product exp(sum_t log rho_t) (as the M-GRPO paper prints it)

Every tensor below is (B, T) float32 unless it says otherwise; `mask` (B, T) bool marks the sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RatioKind = Literal["token", "sequence", "trajectory"]


# exp beyond this overflows sooner or later, and an infinite ratio turns the gradient of its clipped side into NaN.
MAX_LOG_RATIO = 30.0


@dataclass(frozen=True)
class ClipStats:
    """What to watch, without gradient: entries are sampled tokens for `token`, calls for the other ratios.

    ratio    (n,) of each entry
    clipped  (n,) bool: the clip has cut the gradient of the entry
    """

    ratio: Tensor
    clipped: Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the sampled tokens of each row, (B,); a row without any gives 0. What is masked gets no gradient."""
    return _where_sampled(values, mask).sum(-1) / mask.sum(-1).clamp(min=1)


def weighted_mean(rows: Tensor, weights: Tensor, total: float | None = None) -> Tensor:
    """sum_i w_i rows_i / total, a scalar; rows and weights (B,); `total` is the sum of the weights when None.

    A micro-batch passes the total of its whole batch: the parts then add up to the batch's value, and so do the
    gradients.
    """
    return (rows * weights).sum() / (weights.sum() if total is None else total)


def policy_ratio(new_logps: Tensor, old_logps: Tensor, mask: Tensor, kind: RatioKind) -> Tensor:
    """pi_new / pi_old: (B, T) for `token` (1 where masked), (B, 1) for `sequence` and `trajectory`."""
    log_ratio = _where_sampled(new_logps - old_logps, mask)
    if kind != "token":
        log_ratio = log_ratio.sum(-1, keepdim=True)
    if kind == "sequence":
        log_ratio = log_ratio / mask.sum(-1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_objective(
    new_logps: Tensor,
    old_logps: Tensor,
    mask: Tensor,
    advantages: Tensor,
    weights: Tensor,
    eps_low: float,
    eps_high: float,
    ratio: RatioKind = "token",
    importance: Tensor | None = None,
    total: float | None = None,
) -> tuple[Tensor, ClipStats]:
    """J as a scalar to maximise. advantages, weights (B,); `total` as in `weighted_mean`.

    importance (B, T) from `importance_weights`, None for 1: multiplies each token's value. A call with one ratio takes
    the mean of its tokens' importance.
    """
    rho = policy_ratio(new_logps, old_logps, mask, ratio)
    bounded = rho.clamp(1.0 - eps_low, 1.0 + eps_high)
    advantage = advantages.unsqueeze(-1)
    value = torch.minimum(rho * advantage, bounded * advantage)
    entries = mask if ratio == "token" else mask.any(-1, keepdim=True)
    if importance is not None:
        value = value * (importance if ratio == "token" else masked_mean(importance, mask).unsqueeze(-1))
    # The minimum takes the constant side exactly where the policy has already moved far enough in A's direction.
    clipped = bounded * advantage < rho * advantage
    stats = ClipStats(rho.detach()[entries], clipped[entries])
    return weighted_mean(masked_mean(value, entries), weights, total), stats


def importance_weights(proximal_logps: Tensor, behaviour_logps: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights min(pi_proximal / pi_behaviour, cap), (B, T), 1 where masked, no gradient.

    `behaviour` is the engine that sampled (an older version, or another implementation), `proximal` the model as it is
    when the update begins, `current` the model while it moves. The decoupled objective (arXiv 2505.24298) clips
    current / proximal and multiplies by these weights; truncation bounds the variance of stale samples.
    """
    with torch.no_grad():
        return _where_sampled(proximal_logps - behaviour_logps, mask).exp().clamp(max=cap)


def k3(new_logps: Tensor, ref_logps: Tensor, mask: Tensor) -> Tensor:
    """The k3 estimate of KL(new || ref) per token: r - log r - 1 >= 0 with r = pi_ref / pi_new; 0 where masked.

    Unbiased in value only. In a loss, use `kl_terms`.
    """
    log_r = _where_sampled(ref_logps - new_logps, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_r.exp() - log_r - 1.0


def kl_terms(
    new_logps: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor, importance: Tensor | None = None
) -> Tensor:
    """KL(new || ref) per call, (B,), the mean over its sampled tokens, with an unbiased gradient.

    The tokens were drawn from the old policy. E_old[rho k3] is the KL of the new policy for every parameter, so its
    gradient is the KL's; the gradient of a bare k3 misses that the samples move with the policy.
    """
    value = policy_ratio(new_logps, old_logps, mask, "token") * k3(new_logps, ref_logps, mask)
    return masked_mean(value if importance is None else value * importance, mask)


def _where_sampled(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 at masked places; before an exp, it keeps what lies there out of value and gradient."""
    return values.where(mask, 0.0)
