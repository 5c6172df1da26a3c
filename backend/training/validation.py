"""Validation: what the team as it is now does on states that it never trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.training.curriculum.queries import Query
from backend.training.learning.training_metrics import format_counts
from backend.training.rollout.collect import RolloutSettings, collect
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.engine import Engine
from cryptosentinel.team import Team


@dataclass(frozen=True)
class Validation:
    """Means over all rollouts. `valid` and `expert` are by role; a role that was never called is absent."""

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


def validate(team: Team, engine: Engine, queries: Sequence[Query], settings: RolloutSettings, seed: int) -> Validation:
    """Roll the team out on `queries`, always with the same sampling seeds."""
    groups = collect(team, engine, queries, settings, seed)
    rollouts = [rollout for group in groups for rollout in group]
    expert: dict[str, float] = {}
    for role in ROLES:
        scores = [call.expert for one in rollouts for call in one.subs if call.role == role and call.expert is not None]
        if scores:
            expert[role] = float(np.mean(scores))
    return Validation(
        outcome=float(np.mean([one.outcome.score for one in rollouts])),
        net_return=float(np.mean([one.outcome.net_return for one in rollouts])),
        hold_share=float(np.mean([not one.decision.orders for one in rollouts])),
        valid={role: valid / calls for role, (valid, calls) in format_counts(groups).items()},
        expert=expert,
    )
