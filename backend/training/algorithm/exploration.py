"""Exploration that lasts: a target for a role's entropy, and tokens that are held back.

A policy gradient makes what was good likelier until one answer is left, and what is never tried is never learned.

**A target.** A bonus of fixed weight holds a policy open too much at the beginning or too little at the end. Here the
weight of the bonus follows the entropy H of the role's last step, in nats a sampled token, as in Soft Actor-Critic with
a learned temperature (arXiv 1812.05905; the dual of: maximise J where H >= target):

    log weight <- log weight + RATE (1 - H / target)

so it grows while the policy is surer than wanted, and falls while it is less sure. The difference is taken relative to
the target, since of a model that speaks a language most tokens are certain and H is some hundredths. The weight stays
within `SPAN` times its first value, up and down: a policy that cannot be opened is not pulled apart without limit, and
one that is open for long comes back soon.

**Covariance.** A step of a policy gradient lowers the entropy of a softmax by about the learning rate times the
covariance of log-prob and advantage (arXiv 2505.22617), and a few tokens make up most of it: likely ones that were
praised, and unlikely ones that were blamed. Clip-Cov takes the gradient of some of these from the update. The paper
draws them from a range of covariances; here they are the share with the largest ones, as its KL-Cov chooses them, which
needs no bounds in units of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray

RATE = 0.5  # a policy without any entropy has e times the weight after two steps
SPAN = 100.0


def next_entropy_weight(weight: float, entropy: float, target: float, first: float) -> float:
    """The weight of the entropy bonus in the next step.

    weight   that of the step which was just done
    entropy  the role's mean entropy in that step, nats a sampled token, at the sampling temperature
    target   wanted, nats a sampled token
    first    the weight of the first step

    Raises ValueError unless weight, target and first are positive and the entropy is finite and not negative.
    """
    if not (weight > 0.0 and target > 0.0 and first > 0.0 and 0.0 <= entropy < math.inf):
        raise ValueError(f"no weight follows from weight {weight}, entropy {entropy}, target {target}, first {first}")
    # A far too open policy would overflow nothing but the exponent: one step changes the weight e times at most.
    change = max(-1.0, RATE * (1.0 - entropy / target))
    return min(first * SPAN, max(first / SPAN, weight * math.exp(change)))


def token_covariances(logps: Sequence[npt.ArrayLike], advantages: Sequence[float]) -> list[FloatArray]:
    """What each token adds to the covariance of log-prob and advantage over all tokens of a batch: (log pi - mean log
    pi) (A - mean A), an array (n_i,) for each call.

    logps  the sampled tokens' log-probs of each call, (n_i,)
    """
    rows = [np.asarray(row, np.float64) for row in logps]
    if len(rows) != len(advantages):
        raise ValueError(f"{len(rows)} calls have {len(advantages)} advantages")
    counts = np.array([len(row) for row in rows])
    if counts.sum() == 0:
        return rows
    advantage = np.asarray(advantages, np.float64)
    mean_logp = float(np.concatenate(rows).mean())
    mean_advantage = float(advantage @ counts) / float(counts.sum())
    return [(row - mean_logp) * (one - mean_advantage) for row, one in zip(rows, advantage, strict=True)]


def held_tokens(
    logps: Sequence[npt.ArrayLike], advantages: Sequence[float], share: float
) -> list[npt.NDArray[np.bool_]]:
    """Which tokens of a batch are to have no gradient of the objective: the `share` in [0, 1) of all of them, rounded
    down, with the largest covariances above 0. An array (n_i,) for each call; arguments as in `token_covariances`."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"a share of {share} of the tokens cannot be held back")
    covariances = token_covariances(logps, advantages)
    whole = np.concatenate([*covariances, np.empty(0)])
    held = np.zeros(len(whole), np.bool_)
    count = int(share * len(whole))
    if count:
        largest = np.argsort(-whole, kind="stable")[:count]
        held[largest[whole[largest] > 0.0]] = True
    return np.split(held, np.cumsum([len(one) for one in covariances])[:-1])
