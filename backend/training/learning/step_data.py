"""What a learner gets for one step, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend.training.algorithm.credit import (
    Attempt,
    RoleCredit,
    TeamAttempt,
)
from backend.training.curriculum.curriculum import Stage


@dataclass(frozen=True)
class StepData:
    """What a step's rollouts left for the roles to learn from, a list a query and in the order of the queries.

    `team` are rollouts of the whole team; `everyone` is these and practice behind them. `shares` is, by role, the part
    of the outcome that each of `team` credits it with, where that is not the whole (`shares.role_shares`).
    """

    stage: Stage
    team: Sequence[Sequence[TeamAttempt]]
    everyone: Sequence[Sequence[Attempt]]
    shares: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Learnt:
    """What a role was paid (None: it sat this step out), its metrics, and whether it was taken back."""

    credit: RoleCredit | None
    metrics: dict[str, float]
    rolled_back: bool = False
