"""Exploration that lasts: a target for a role's entropy.

A policy gradient makes what was good likelier until one answer is left, and what is never tried is never learned. A
bonus of fixed weight holds a policy open too much at the beginning or too little at the end. Here the weight of the
bonus follows the entropy H of the role's last step, in nats a sampled token, as in Soft Actor-Critic with a learned
temperature (arXiv 1812.05905; the dual of: maximise J where H >= target):

    log weight <- log weight + RATE (1 - H / target)

so it grows while the policy is surer than wanted, and falls while it is less sure. The difference is taken relative to
the target, since of a model that speaks a language most tokens are certain and H is some hundredths. The weight stays
within `SPAN` times its first value, up and down: a policy that cannot be opened is not pulled apart without limit, and
one that is open for long comes back soon.
"""

from __future__ import annotations

import math

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
