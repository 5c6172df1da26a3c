"""Validation: how the present team does on states of the validation part, which it never trains on.

The same states and sampling seeds are used every time, so two validations of a run differ by the team alone. The
trainer keeps the version with the best outcome, opens the gate of stage 1 by the shares of valid answers, and takes a
fall of the outcome for a collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.training.curriculum.queries import Query
from backend.training.learning.training_metrics import format_counts
from backend.training.rollout.collect import Rollout
from backend.training.rollout.sharding import part
from backend.training.rollout.shared_shards import SharedShards
from cryptosentinel.agents.registry import ROLES


@dataclass(frozen=True)
class Validation:
    """Means over all rollouts: outcome score, net return, and the share of decisions without an order.

    `valid` and `expert` are the share of valid answers and the expert score by role, without roles that were never
    called.
    """

    outcome: float
    net_return: float
    hold_share: float
    valid: dict[str, float]
    expert: dict[str, float]

    def metrics(self) -> dict[str, float]:
        """Named `validation/...`."""
        values = {
            "validation/outcome": self.outcome,
            "validation/net_return": self.net_return,
            "validation/hold_share": self.hold_share,
        }
        values |= {f"validation/{role}/valid": share for role, share in self.valid.items()}
        values |= {f"validation/{role}/expert": score for role, score in self.expert.items()}
        return values


def validate(shared: SharedShards, queries: Sequence[Query], shards: int, seed: int) -> Validation:
    """Roll the team out on `queries` in that number of shards, always with the same sampling seeds."""
    return validation_of(shared.validate([part(queries, one, shards) for one in range(shards)], seed))


def validation_of(groups: Sequence[Sequence[Rollout]]) -> Validation:
    """What the rollouts of a validation say."""
    rollouts = [rollout for group in groups for rollout in group]
    expert: dict[str, float] = {}
    for role in ROLES:
        calls = [call for rollout in rollouts for call in rollout.subs if call.role == role]
        scores = [call.expert for call in calls if call.expert is not None]
        if scores:
            expert[role] = float(np.mean(scores))
    return Validation(
        outcome=float(np.mean([rollout.outcome.score for rollout in rollouts])),
        net_return=float(np.mean([rollout.outcome.net_return for rollout in rollouts])),
        hold_share=float(np.mean([not rollout.decision.orders for rollout in rollouts])),
        valid={role: valid / calls for role, (valid, calls) in format_counts(groups).items()},
        expert=expert,
    )
