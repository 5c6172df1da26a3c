"""From the rollouts of a step to a reward, a weight and an advantage for each trajectory of a role.

A group is (query, role): the K rollouts of one query, as one role took part in them. Roles never share a statistic
(arXiv 2511.13288).

    score_main, score_sub   the calls of each group with their rewards (`rewards`) and alignment weights (`alignment`)
    assign_credit           their advantages (`recipes`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from backend.training.algorithm.recipes import Recipe
from backend.training.algorithm.rewards import Outcome, RewardParts, main_reward, sub_reward
from backend.training.algorithm.trajectory import Trajectory
from simulator.arrays import FloatArray


class Attempt(Protocol):
    """What credit reads of a rollout of the team or of a sub-agents' practice: the sub-agents' trajectories in the
    order of the calls, and the outcome in [0, 1] that they share."""

    @property
    def subs(self) -> tuple[Trajectory, ...]: ...

    @property
    def shared_outcome(self) -> float: ...


class TeamAttempt(Attempt, Protocol):
    """What credit reads of a rollout of the whole team: also the manager's trajectory and the outcome."""

    @property
    def main(self) -> Trajectory: ...

    @property
    def outcome(self) -> Outcome: ...


@dataclass(frozen=True)
class TrajectoryCredit:
    """A trajectory with its reward, alignment weight and advantage. `reward` is None where a score was missing."""

    trajectory: Trajectory
    parts: RewardParts
    reward: float | None
    weight: float = 0.0
    advantage: float = 0.0


@dataclass(frozen=True)
class RoleCredit:
    """Everything one role trains on in a step: its calls by query, those without a reward first. `groups` counts what
    was compared, `degenerate` those of them without spread."""

    items: Sequence[TrajectoryCredit] = ()
    groups: int = 0
    degenerate: int = 0

    @property
    def unscored(self) -> int:
        """Calls without a reward, since their expert score is missing."""
        return sum(item.reward is None for item in self.items)


def assign_credit(groups: Sequence[Sequence[TrajectoryCredit]], recipe: Recipe, *, weighted: bool = True) -> RoleCredit:
    """The credit of one role for a step: the advantage of each call within its group, by the recipe. The groups come
    from `score_main`, whose calls all count alike (`weighted` False), or `score_sub`."""
    items = [item for group in groups for item in group if item.reward is None]
    compared = degenerate = 0
    for group in groups:
        scored = [item for item in group if item.reward is not None]
        if scored:
            rewards = [item.reward for item in scored if item.reward is not None]
            weights = [item.weight for item in scored] if weighted else None
            advantages, equal = recipe.advantages(rewards, [item.parts.valid for item in scored], weights)
            items += [replace(item, advantage=float(one)) for item, one in zip(scored, advantages, strict=True)]
            compared, degenerate = compared + 1, degenerate + equal
    return RoleCredit(tuple(items), compared, degenerate)


def score_main(groups: Sequence[Sequence[TeamAttempt]], alpha: tuple[float, float]) -> list[list[TrajectoryCredit]]:
    """The main agent's calls of each query with their rewards: one trajectory a rollout, weight 1/K each."""
    scored: list[list[TrajectoryCredit]] = []
    for group in groups:
        parts = [RewardParts(one.main.valid, one.main.format_score, one.outcome.score) for one in group]
        rewards = [main_reward(one.valid, one.format, one.outcome, alpha) for one in parts]
        scored.append(
            [
                TrajectoryCredit(one.main, part, reward, 1.0 / len(group))
                for one, part, reward in zip(group, parts, rewards, strict=True)
            ]
        )
    return scored


def score_sub(
    groups: Sequence[Sequence[Attempt]],
    role: str,
    beta: tuple[float, float, float],
    align: Callable[[Sequence[int]], FloatArray],
    outcomes: Sequence[Sequence[float]] = (),
) -> list[list[TrajectoryCredit]]:
    """A sub-agent's calls of each query with their rewards and alignment weights. Queries without a call are left out.

    `align` gives the weights of a group's scored calls from their number in each rollout (`alignment.align`).
    `outcomes` replace the team's outcome for each rollout of the first groups by the part of it that the role is
    credited with (`team_credit`); without them every call is paid the team's outcome (broadcast).
    """
    scored: list[list[TrajectoryCredit]] = []
    for number, group in enumerate(groups):
        items: list[TrajectoryCredit] = []
        counts: list[int] = []
        for position, rollout in enumerate(group):
            outcome = outcomes[number][position] if number < len(outcomes) else rollout.shared_outcome
            calls = [_scored_call(call, outcome, beta) for call in rollout.subs if call.role == role]
            counts.append(sum(item.reward is not None for item in calls))
            items += calls
        if items:
            weights = iter(align(counts) if any(counts) else np.empty(0))
            scored.append([one if one.reward is None else replace(one, weight=float(next(weights))) for one in items])
    return scored


def _scored_call(call: Trajectory, outcome: float, beta: tuple[float, float, float]) -> TrajectoryCredit:
    parts = RewardParts(call.valid, call.format_score, outcome, call.expert)
    return TrajectoryCredit(call, parts, sub_reward(call.valid, call.format_score, outcome, call.expert, beta))


def calls_histogram(groups: Sequence[Sequence[Attempt]], role: str) -> dict[int, int]:
    """How many rollouts called `role` how often, for `alignment.target_count`."""
    histogram: dict[int, int] = {}
    for group in groups:
        for rollout in group:
            count = sum(call.role == role for call in rollout.subs)
            histogram[count] = histogram.get(count, 0) + 1
    return histogram
