"""The data of one training step as a learner gets it, and the result that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backend.training.algorithm.credit import Attempt, RoleCredit, TeamAttempt
from backend.training.curriculum.curriculum import Stage


@dataclass(frozen=True)
class StepData:
    """What a step's rollouts left for the roles to learn from, one list a query and in the order of the queries.

    team           rollouts of the whole team
    everyone       these, and behind them the sub-agents' practice
    role_outcomes  by role, the part of the outcome that each rollout of `team` credits the role with
                   (`rollout.role_outcomes`); a role that is paid the whole outcome is absent
    """

    stage: Stage
    team: Sequence[Sequence[TeamAttempt]]
    everyone: Sequence[Sequence[Attempt]]
    role_outcomes: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def tokens_of(data: StepData) -> int:
    """Tokens of all conversations of a step, practice included."""
    mains = sum(len(rollout.main.ids) for group in data.team for rollout in group)
    return mains + sum(len(call.ids) for group in data.everyone for attempt in group for call in attempt.subs)


@dataclass(frozen=True)
class LearningResult:
    """What came of a step for one role.

    credit       what the role was paid; None where it sat the step out
    metrics      by name, as `{role}/reward/mean`
    rolled_back  whether its parameters were put back to the last ones with a valid format
    """

    credit: RoleCredit | None
    metrics: Mapping[str, float]
    rolled_back: bool
