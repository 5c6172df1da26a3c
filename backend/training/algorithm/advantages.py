"""Group-relative advantages (GRPO, arXiv 2402.03300; per role and query in M-GRPO, arXiv 2511.13288).

group      A = (R - mean) / sigma of the summed reward, both within the group
no sigma   A = R - mean (Dr. GRPO, arXiv 2503.20783): sigma gives queries whose rewards hardly differ the largest
           steps
apart      valid answers are compared with valid ones alone, and an invalid one has a penalty of fixed size
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Rewards are sums of a few products of numbers in [0, 1]: equal ones may differ in the last bits, by some 1e-16.
_ROUNDING = 1e-12


def group_advantages(
    rewards: npt.ArrayLike, weights: npt.ArrayLike | None = None, scale: bool = True
) -> tuple[npt.NDArray[np.float64], bool]:
    """(R - mean) / sigma within one group, R - mean without `scale`, and whether the group is degenerate.

    rewards (n,), one role of one query; weights (n,) >= 0 from `alignment.align`, uniform when None. Mean and sigma
    are weighted, sigma is the population's. A call of weight 0 was dropped: it shapes no statistic and gets 0.

    A group whose rewards are all equal has nothing to compare and gives zeros. Equality decides, not a floor on sigma:
    the sigma of equal rewards is float noise, and dividing by it makes advantages spike. A group of one is degenerate,
    and so is an empty one. Raises ValueError on NaN, infinity, or a negative weight.
    """
    reward = np.asarray(rewards, np.float64)
    weight = np.ones_like(reward) if weights is None else np.asarray(weights, np.float64)
    if reward.ndim != 1 or reward.shape != weight.shape:
        raise ValueError(f"rewards {reward.shape} and weights {weight.shape} must be rows of one length")
    if not np.isfinite(reward).all():
        raise ValueError("a reward is NaN or infinite")
    if not (np.isfinite(weight).all() and (weight >= 0.0).all()):
        raise ValueError("a weight is negative, NaN or infinite")
    counted = weight > 0.0
    advantages = np.zeros_like(reward)
    if not counted.any():
        return advantages, True
    inside, share = reward[counted], weight[counted] / weight[counted].sum()
    low, high = inside.min(), inside.max()
    if high - low <= _ROUNDING * max(abs(low), abs(high)):
        return advantages, True
    if not scale:
        advantages[counted] = inside - share @ inside
        return advantages, False
    unit = (inside - low) / (high - low)  # advantages do not change under scaling, and a tiny spread cannot underflow
    centred = unit - share @ unit
    advantages[counted] = centred / np.sqrt(share @ centred**2)
    return advantages, False


def advantages_of_valid(
    rewards: npt.ArrayLike,
    valid: npt.ArrayLike,
    penalty: float,
    weights: npt.ArrayLike | None = None,
    scale: bool = True,
) -> tuple[npt.NDArray[np.float64], bool]:
    """`group_advantages` among the valid calls of a group, and -penalty for each invalid one; whether it is degenerate.

    rewards (n,), weights (n,) as in `group_advantages`; valid (n,) bool. An invalid call is paid nothing, which may be
    twenty times as far from the others as these are from each other. In their mean it praises whatever the valid ones
    of its group did, and its own tokens drown theirs in the gradient. This is the policy gradient of a reward that is
    the group's mean minus the penalty where the format is lost. A group without spread among its valid calls is
    degenerate where none is invalid.
    """
    reward, right = np.asarray(rewards, np.float64), np.asarray(valid, np.bool_)
    weight = np.ones_like(reward) if weights is None else np.asarray(weights, np.float64)
    if right.shape != reward.shape or not (np.isfinite(penalty) and penalty > 0.0):
        raise ValueError(f"valid {right.shape} must be a row like the rewards {reward.shape}, the penalty positive")
    advantages = np.zeros_like(reward)
    advantages[right], degenerate = group_advantages(reward[right], weight[right], scale)
    wrong = ~right & (weight > 0.0)
    advantages[wrong] = -penalty
    return advantages, degenerate and not wrong.any()
