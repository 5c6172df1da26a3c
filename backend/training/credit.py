"""From the rollouts of a step to what each role's optimiser needs: rewards, alignment weights, advantages.

Groups are (query, role). Roles never share a statistic (arXiv 2511.13288, and DESIGN of this project in docs/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from backend.training.advantages import group_advantages
from backend.training.alignment import AlignmentMethod, align
from backend.training.rewards import RewardParts, main_reward, sub_reward
from backend.training.rollouts import Practice, Rollout
from backend.training.trajectory import Trajectory


@dataclass(frozen=True)
class Credited:
    """One trajectory with its reward, alignment weight and advantage. `reward` is None where a score was missing."""

    trajectory: Trajectory
    parts: RewardParts
    reward: float | None
    weight: float
    advantage: float


@dataclass
class RoleCredit:
    """Everything one role trains on in a step. `degenerate` counts the groups without spread, `unscored` the calls
    without a reward."""

    items: list[Credited] = field(default_factory=list)
    groups: int = 0
    degenerate: int = 0
    unscored: int = 0


def credit_main(groups: Sequence[Sequence[Rollout]], alpha: tuple[float, float]) -> RoleCredit:
    """The manager's credit: one trajectory a rollout, K in a group."""
    result = RoleCredit()
    for group in groups:
        parts = [RewardParts(one.main.valid, one.main.format_score, one.outcome.score) for one in group]
        rewards = [main_reward(part.valid, part.format, part.outcome, alpha) for part in parts]
        advantages, degenerate = group_advantages(rewards)
        result.groups += 1
        result.degenerate += degenerate
        for one, part, reward, advantage in zip(group, parts, rewards, advantages, strict=True):
            result.items.append(Credited(one.main, part, reward, 1.0 / len(group), float(advantage)))
    return result


def credit_sub(
    groups: Sequence[Sequence[Rollout | Practice]],
    role: str,
    beta: tuple[float, float, float],
    method: AlignmentMethod,
    target: int,
    rng: np.random.Generator,
) -> RoleCredit:
    """A sub-agent's credit, from rollouts of the team or from practice."""
    result = RoleCredit()
    for group in groups:
        scored: list[tuple[Trajectory, RewardParts, float]] = []
        counts: list[int] = []
        for rollout in group:
            outcome = rollout.shared_outcome
            count = 0
            for call in rollout.subs:
                if call.role != role:
                    continue
                parts = RewardParts(call.valid, call.format_score, outcome, call.expert)
                reward = sub_reward(call.valid, call.format_score, outcome, call.expert, beta)
                if reward is None:
                    result.unscored += 1
                    result.items.append(Credited(call, parts, None, 0.0, 0.0))
                    continue
                scored.append((call, parts, reward))
                count += 1
            counts.append(count)
        if not scored:
            continue
        weights = align(counts, method, target, rng)
        advantages, degenerate = group_advantages([reward for _, _, reward in scored], weights)
        result.groups += 1
        result.degenerate += degenerate
        for (call, parts, reward), weight, advantage in zip(scored, weights, advantages, strict=True):
            result.items.append(Credited(call, parts, reward, float(weight), float(advantage)))
    return result


def calls_histogram(groups: Sequence[Sequence[Rollout]], role: str) -> dict[int, int]:
    """How many rollouts called `role` how often."""
    histogram: dict[int, int] = {}
    for group in groups:
        for rollout in group:
            count = sum(call.role == role for call in rollout.subs)
            histogram[count] = histogram.get(count, 0) + 1
    return histogram
