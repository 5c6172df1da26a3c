"""The clipped objective of M-GRPO (arXiv 2511.13288) for one role, its variants, and the terms that may be added to it.

Maximise, over the B calls of a batch with n_i sampled tokens each,

    J = sum_i w_i mean_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i) / sum_i w_i

with w_i the alignment weights. Those of one group sum to 1, so the denominator is the number of groups that had a call,
and inside a group it counts rollouts (see `alignment`): never calls, never tokens. With clip_high above clip_low this
is clip-higher (DAPO, arXiv 2503.14476).

How the values v_it of the tokens become one number is the aggregation. Each is a quotient in which the weights stand
above and below, so that the number of calls d_k drops out of all of them:

    grpo     sum_i w_i (1/n_i) sum_t v_it / sum_i w_i
    dr_grpo  sum_i w_i sum_t v_it / (L sum_i w_i)
    dapo     sum_i w_i sum_t v_it / sum_i w_i n_i      over all calls of the batch
    bnpo     the same                                  over the calls of one optimizer step

grpo is the mean over rollouts of the mean over tokens (arXiv 2402.03300). dr_grpo is the mean over rollouts of the sum
over tokens by a constant L, so that a token weighs no less in a longer call (Dr. GRPO, arXiv 2503.20783). dapo is the
mean over all tokens (DAPO, arXiv 2503.14476): the d_k calls of a rollout share its weight, so their tokens count as
those of one call of their mean length. bnpo is the mean over the tokens at hand, as TRL calls it. TRL takes it over a
micro-batch, so that there the accumulation of gradients changes the result; here the normalizer is that of the whole
optimizer step, and it does not. With one optimizer step a batch it is dapo.

The policy loss is either PPO's clipped ratio as above (`clip`) or CISPO (`cispo`, MiniMax-M1, arXiv 2506.13585): v_it =
sg(clip(rho, 1 - clip_low, 1 + clip_high)) A_i log pi_new, with sg the stop of the gradient. No token loses its gradient
there; the clip only bounds its size. The paper sets no lower bound in effect: clip_low = 1.

The ratio rho = pi_new / pi_old is one of

    token       per sampled token, averaged over the call's own sampled tokens (GRPO's 1/|o|, arXiv 2402.03300), so that
                a long answer weighs no more than a short one
    sequence    one per call, the length-normalised exp(mean_t log rho_t) (GSPO, arXiv 2507.18071)
    trajectory  one per call, the plain product exp(sum_t log rho_t) (as the M-GRPO paper prints it)

Every tensor below is (B, T) float32 unless it says otherwise; `mask` (B, T) bool marks the sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

RatioKind = Literal["token", "sequence", "trajectory"]
PolicyLoss = Literal["clip", "cispo"]
Aggregation = Literal["grpo", "dr_grpo", "dapo", "bnpo"]
ImportanceKind = Literal["truncate", "mask", "none"]

_Row = TypeVar("_Row", Tensor, npt.NDArray[Any])


# exp beyond this overflows sooner or later, and an infinite ratio turns the gradient of its clipped side into NaN.
_MAX_LOG_RATIO = 30.0


@dataclass(frozen=True)
class ClipStats:
    """What to watch, without gradient: entries are sampled tokens for `token`, calls for the other ratios.

    ratio    (n,) of each entry
    clipped  (n,) bool: the clip has cut the gradient of the entry, off with `clip`, down or up to a bound with `cispo`
    """

    ratio: Tensor
    clipped: Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the sampled tokens of each row, (B,); a row without any gives 0. What is masked gets no gradient."""
    return _where_sampled(values, mask).sum(-1) / mask.sum(-1).clamp(min=1)


def normalizer(weights: _Row, tokens: _Row, how: Aggregation, constant_length: int = 0) -> float:
    """The denominator of an aggregation over the calls given; weights (B,), tokens (B,) sampled tokens of each.

    `constant_length` is L of `dr_grpo`. Additive over disjoint sets of calls, whichever aggregation. Raises
    ValueError for `dr_grpo` without it.
    """
    if how == "grpo":
        return float(weights.sum())
    if how == "dr_grpo":
        if constant_length < 1:
            raise ValueError(f"dr_grpo divides by a constant length of at least 1, not {constant_length}")
        return constant_length * float(weights.sum())
    return float((weights * tokens).sum())


def aggregate(
    values: Tensor,
    mask: Tensor,
    weights: Tensor,
    how: Aggregation = "grpo",
    total: float | None = None,
    constant_length: int = 0,
) -> Tensor:
    """The values of the sampled tokens as one scalar, as the module's docstring says; values (B, T), weights (B,).

    `total` is the normalizer, that of the calls given when None. A micro-batch passes the total of its whole batch: the
    parts then add up to the batch's value, and so do the gradients.
    """
    if total is None:
        total = normalizer(weights, mask.sum(-1), how, constant_length)
    rows = masked_mean(values, mask) if how == "grpo" else _where_sampled(values, mask).sum(-1)
    return (rows * weights).sum() / total


def policy_ratio(new_logps: Tensor, old_logps: Tensor, mask: Tensor, kind: RatioKind) -> Tensor:
    """pi_new / pi_old: (B, T) for `token` (1 where masked), (B, 1) for `sequence` and `trajectory`."""
    log_ratio = _where_sampled(new_logps - old_logps, mask)
    if kind != "token":
        log_ratio = log_ratio.sum(-1, keepdim=True)
    if kind == "sequence":
        log_ratio = log_ratio / mask.sum(-1, keepdim=True).clamp(min=1)
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def clipped_objective(
    new_logps: Tensor,
    old_logps: Tensor,
    mask: Tensor,
    advantages: Tensor,
    weights: Tensor,
    clip_low: float,
    clip_high: float,
    ratio: RatioKind = "token",
    importance: Tensor | None = None,
    total: float | None = None,
    *,
    policy_loss: PolicyLoss = "clip",
    aggregation: Aggregation = "grpo",
    constant_length: int = 0,
) -> tuple[Tensor, ClipStats]:
    """J as a scalar to maximise. advantages, weights (B,); `aggregation`, `total` and `constant_length` as in
    `aggregate`.

    importance (B, T) from `importance_weights`, None for 1: multiplies each token's value. A call with one ratio takes
    the mean of its tokens' importance. `cispo` and the aggregations other than `grpo` are over tokens: with another
    ratio than `token` they raise ValueError.
    """
    if ratio != "token" and (policy_loss != "clip" or aggregation != "grpo"):
        raise ValueError(f"{policy_loss} with {aggregation} is over tokens; the ratio '{ratio}' is one number a call")
    rho = policy_ratio(new_logps, old_logps, mask, ratio)
    bounded = rho.clamp(1.0 - clip_low, 1.0 + clip_high)
    advantage = advantages.unsqueeze(-1)
    if policy_loss == "cispo":
        value = bounded.detach() * advantage * _where_sampled(new_logps, mask)
        clipped = bounded != rho
    else:
        value = torch.minimum(rho * advantage, bounded * advantage)
        # The minimum takes the constant side exactly where the policy has already moved far enough in A's direction.
        clipped = bounded * advantage < rho * advantage
    entries = mask if ratio == "token" else mask.any(-1, keepdim=True)
    if importance is not None:
        value = value * (importance if ratio == "token" else masked_mean(importance, mask).unsqueeze(-1))
    stats = ClipStats(rho.detach()[entries], clipped[entries])
    return aggregate(value, entries, weights, aggregation, total, constant_length), stats


def importance_weights(
    proximal_logps: Tensor, behaviour_logps: Tensor, mask: Tensor, cap: float, kind: ImportanceKind = "truncate"
) -> Tensor:
    """Importance weights of each token from r = pi_proximal / pi_behaviour, (B, T), 1 where masked, no gradient.

    `behaviour` is the engine that sampled (an older version, or another implementation), `proximal` the model as it is
    when the update begins, `current` the model while it moves. The decoupled objective (arXiv 2505.24298) clips
    current / proximal and multiplies by these weights.

        truncate  min(r, cap): bounds the variance of stale samples (truncated importance sampling, arXiv 1802.01561)
        mask      r inside [1 / cap, cap] and 0 outside: what the two models see too differently teaches nothing
                  (IcePop, arXiv 2510.18855). The token stays in every denominator
        none      1: the difference is not corrected
    """
    with torch.no_grad():
        if kind == "none":
            return torch.ones_like(proximal_logps)
        weights = _where_sampled(proximal_logps - behaviour_logps, mask).exp()
        if kind == "truncate":
            return weights.clamp(max=cap)
        return weights.where((weights >= 1.0 / cap) & (weights <= cap), 0.0)


def importance_cut(importance: Tensor, cap: float) -> Tensor:
    """Which of the weights from `importance_weights` were truncated to the cap or masked, bool of the same shape."""
    return (importance >= cap) | (importance == 0.0)


def k3(new_logps: Tensor, ref_logps: Tensor, mask: Tensor) -> Tensor:
    """The k3 estimate of KL(new || ref) per token: r - log r - 1 >= 0 with r = pi_ref / pi_new; 0 where masked.

    Unbiased in value only. In a loss, use `kl_tokens`.
    """
    log_r = _where_sampled(ref_logps - new_logps, mask).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return log_r.exp() - log_r - 1.0


def kl_tokens(
    new_logps: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor, importance: Tensor | None = None
) -> Tensor:
    """KL(new || ref) per token, (B, T), with an unbiased gradient; 0 where masked.

    The tokens were drawn from the old policy. E_old[rho k3] is the KL of the new policy for every parameter, so its
    gradient is the KL's; the gradient of a bare k3 misses that the samples move with the policy. `importance` corrects
    for the engine as in `clipped_objective`.
    """
    value = policy_ratio(new_logps, old_logps, mask, "token") * k3(new_logps, ref_logps, mask)
    return value if importance is None else value * importance


def kl_terms(
    new_logps: Tensor, old_logps: Tensor, ref_logps: Tensor, mask: Tensor, importance: Tensor | None = None
) -> Tensor:
    """`kl_tokens` per call, (B,), the mean over its sampled tokens."""
    return masked_mean(kl_tokens(new_logps, old_logps, ref_logps, mask, importance), mask)


def _where_sampled(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 at masked places; before an exp, it keeps what lies there out of value and gradient."""
    return values.where(mask, 0.0)
