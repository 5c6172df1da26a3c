"""From the rollouts of a step to a reward, a weight and an advantage for each trajectory of a role.

A group is (query, role): the K rollouts of one query, as one role took part in them. Roles never share a statistic
(arXiv 2511.13288). The two halves are

    score_main, score_sub   the calls of each group with their rewards (`rewards`) and alignment weights (`alignment`)
    assign_credit           their advantages (`advantages`)

A sub-agent's calls can also be compared within (query, role, ordinal) or (query, role, question), and one without peers
with the batch: `grouping`. The grouping decides what a call is compared with. How much it counts is decided by the
alignment alone, whose weights sum to 1 over (query, role) whatever the grouping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from backend.training.algorithm.advantages import (
    advantages_of_valid,
    batch_scaled,
    decoupled_advantages,
    group_advantages,
)
from backend.training.algorithm.alignment import AlignmentMethod, align
from backend.training.algorithm.grouping import (
    GroupKey,
    SingleCalls,
    comparisons,
    continuations,
    is_single,
    single_call_advantage,
)
from backend.training.algorithm.rewards import Outcome, RewardParts, main_reward, overlong_penalty, sub_reward
from backend.training.algorithm.trajectory import Trajectory
from simulator.arrays import FloatArray

RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]


class Attempt(Protocol):
    """What credit reads of a rollout of the team or of a sub-agents' practice: the sub-agents' trajectories in the
    order of the calls, the outcome in [0, 1] that they share, and the number of the rollout whose beginning it
    repeats, None where it repeats none."""

    @property
    def subs(self) -> tuple[Trajectory, ...]: ...

    @property
    def shared_outcome(self) -> float: ...

    @property
    def resampled_from(self) -> int | None: ...


class TeamAttempt(Attempt, Protocol):
    """What credit reads of a rollout of the whole team: also the manager's trajectory and the outcome."""

    @property
    def main(self) -> Trajectory: ...

    @property
    def outcome(self) -> Outcome: ...


@dataclass(frozen=True)
class CreditSettings:
    """How advantages come of rewards; named as in the configuration.

    scale_rewards       divide by the group's sigma (`group_advantages`)
    reward_aggregation  normalize_then_sum: sum the advantages of the reward's parts (`decoupled_advantages`, then
                        `batch_scaled`)
    group               what a sub-agent's call is compared with (`grouping`); fewer calls than `min_group` back off
    single_calls        batch: a sub-agent's call without peers has the role's other queries as its baseline
    overlong_length     with `overlong_buffer` of `overlong_penalty`, in sampled tokens of a conversation; 0: no penalty
    invalid_penalty     above 0: valid calls are compared with valid ones alone, and this is what an invalid one's
                        advantage is below 0 (`advantages_of_valid`)
    keep_degenerate     False: the manager's degenerate groups are in no denominator, as dynamic sampling wants it
    """

    scale_rewards: bool
    reward_aggregation: RewardAggregation
    group: GroupKey
    single_calls: SingleCalls
    min_group: int
    overlong_length: int
    overlong_buffer: int
    invalid_penalty: float
    keep_degenerate: bool

    @property
    def decoupled(self) -> bool:
        """Whether each part of the reward has its own advantage."""
        return self.reward_aggregation == "normalize_then_sum"


@dataclass(frozen=True)
class ScoredCall:
    """A trajectory with its reward and the parts that the reward is the weighted sum of."""

    trajectory: Trajectory
    parts: RewardParts
    reward: float


@dataclass(frozen=True)
class ScoredGroup:
    """The calls of one role in the K rollouts of one query, before they are compared.

    weights       (n,) alignment weights of the n scored calls
    coefficients  of format, outcome and expert score in the reward
    unscored      calls without a reward, since their expert score is missing
    main          whether they are the main agent's: one call a rollout, which all count alike
    practice      whether the role was asked without the team, so that no outcome is in the rewards
    origins       of each call the number of the rollout whose beginning its own repeats, None where there is none; may
                  be empty where there is none at all
    """

    calls: Sequence[ScoredCall]
    weights: FloatArray
    coefficients: tuple[float, float, float]
    unscored: Sequence[tuple[Trajectory, RewardParts]] = ()
    main: bool = False
    practice: bool = False
    origins: Sequence[int | None] = ()


@dataclass(frozen=True)
class TrajectoryCredit:
    """A trajectory with its reward, alignment weight and advantage. `reward` is None where a score was missing."""

    trajectory: Trajectory
    parts: RewardParts
    reward: float | None
    weight: float
    advantage: float


@dataclass(frozen=True)
class RoleCredit:
    """Everything one role trains on in a step.

    `items` holds the unscored calls first, then the scored ones by query. `groups` counts what was compared,
    `degenerate` those of them without spread, `unscored` the calls without a reward.
    """

    items: Sequence[TrajectoryCredit] = ()
    groups: int = 0
    degenerate: int = 0
    unscored: int = 0


def assign_credit(groups: Sequence[ScoredGroup], settings: CreditSettings) -> RoleCredit:
    """The credit of one role for a step: the advantage of each call within its group. `groups` come from `score_main`
    or `score_sub`."""
    compared = degenerate = 0
    weights: list[FloatArray] = []
    advantages: list[FloatArray] = []
    for group in groups:
        weight, advantage = group.weights, np.zeros(len(group.calls))
        spoken, origins = [call.trajectory for call in group.calls], group.origins or [None] * len(group.calls)
        if group.main:
            compared_with = continuations(spoken, origins)
        else:
            compared_with = comparisons(spoken, weight, settings.group, settings.min_group, origins)
        for members, receivers in compared_with:
            calls = [group.calls[i] for i in members]
            # The main agent's calls count alike: statistics without weights have the rounding of the plain mean.
            among = None if group.main else weight[members]
            if settings.decoupled:
                terms, coefficients = [call.parts.terms() for call in calls], (*group.coefficients, 1.0)
                values, equal = decoupled_advantages(terms, coefficients, among)
            elif settings.invalid_penalty:
                rewards, valid = [call.reward for call in calls], [call.parts.valid for call in calls]
                values, equal = advantages_of_valid(
                    rewards, valid, settings.invalid_penalty, among, settings.scale_rewards
                )
            else:
                values, equal = group_advantages([call.reward for call in calls], among, settings.scale_rewards)
            advantage[receivers] = values[np.isin(members, receivers)]
            if settings.single_calls == "batch" and not group.main and is_single(weight):
                alone = int(np.flatnonzero(weight)[0])
                alike = [one for one in groups if one is not group and one.practice == group.practice]
                others = [(_rewards(other), other.weights) for other in alike]
                advantage[alone], equal = single_call_advantage(
                    group.calls[alone].reward, others, settings.scale_rewards
                )
            compared += 1
            degenerate += equal
            if equal and group.main and not settings.keep_degenerate:
                weight = np.zeros(len(group.calls))
        weights.append(weight)
        advantages.append(advantage)
    if settings.decoupled:
        advantages = batch_scaled(advantages, weights)
    items = [TrajectoryCredit(call, parts, None, 0.0, 0.0) for group in groups for call, parts in group.unscored]
    unscored = len(items)
    for group, weight, advantage in zip(groups, weights, advantages, strict=True):
        for call, w, a in zip(group.calls, weight, advantage, strict=True):
            items.append(TrajectoryCredit(call.trajectory, call.parts, call.reward, float(w), float(a)))
    return RoleCredit(tuple(items), compared, degenerate, unscored)


def score_main(
    groups: Sequence[Sequence[TeamAttempt]], alpha: tuple[float, float], settings: CreditSettings
) -> list[ScoredGroup]:
    """The main agent's calls of each query with their rewards: one trajectory a rollout, weight 1/K each."""
    scored: list[ScoredGroup] = []
    for group in groups:
        calls: list[ScoredCall] = []
        for rollout in group:
            main, penalty = rollout.main, _overlong(rollout.main, settings)
            parts = RewardParts(main.valid, main.format_score, rollout.outcome.score, overlong=penalty)
            reward = main_reward(parts.valid, parts.format, parts.outcome, alpha)
            calls.append(ScoredCall(main, parts, reward + penalty))
        weights, origins = np.full(len(calls), 1.0 / len(calls)), [rollout.resampled_from for rollout in group]
        scored.append(ScoredGroup(calls, weights, (*alpha, 0.0), main=True, origins=origins))
    return scored


def score_sub(
    groups: Sequence[Sequence[Attempt]],
    role: str,
    beta: tuple[float, float, float],
    method: AlignmentMethod,
    target: int,
    rng: np.random.Generator,
    settings: CreditSettings,
    outcomes: Sequence[Sequence[float]] | None = None,
    practice_from: int | None = None,
) -> list[ScoredGroup]:
    """A sub-agent's calls of each query with their rewards and alignment weights. Queries without a call are left out.

    `method`, `target` and `rng` are those of `align`. `outcomes` replaces the team's outcome for each rollout of the
    first groups by the part of it that the role is credited with (`credit` other than broadcast). None pays every call
    the team's outcome (broadcast). The groups from number `practice_from` on are practice, which has no outcome; with
    None there is no practice.
    """
    scored: list[ScoredGroup] = []
    for number, group in enumerate(groups):
        calls: list[ScoredCall] = []
        unscored: list[tuple[Trajectory, RewardParts]] = []
        counts: list[int] = []
        origins: list[int | None] = []
        replayed = outcomes[number] if outcomes is not None and number < len(outcomes) else None
        for position, rollout in enumerate(group):
            outcome = rollout.shared_outcome if replayed is None else replayed[position]
            before = len(calls)
            for call in rollout.subs:
                if call.role != role:
                    continue
                penalty = _overlong(call, settings)
                parts = RewardParts(call.valid, call.format_score, outcome, call.expert, penalty)
                reward = sub_reward(call.valid, call.format_score, outcome, call.expert, beta)
                if reward is None:
                    unscored.append((call, parts))
                else:
                    calls.append(ScoredCall(call, parts, reward + penalty))
            counts.append(len(calls) - before)
            origins += [rollout.resampled_from] * counts[-1]
        practice = practice_from is not None and number >= practice_from
        if calls:
            weights = align(counts, method, target, rng)
            scored.append(ScoredGroup(calls, weights, beta, unscored, practice=practice, origins=origins))
        elif unscored:
            scored.append(ScoredGroup([], np.empty(0), beta, unscored, practice=practice))
    return scored


def shuffled(group: ScoredGroup, rng: np.random.Generator) -> ScoredGroup:
    """The group with its rewards, and the parts they were made of, at each other's calls: a control in which nothing
    can be learnt, while rewards, their spread and the weights are as they were."""
    order = rng.permutation(len(group.calls)).tolist()
    calls = [
        ScoredCall(call.trajectory, group.calls[taken].parts, group.calls[taken].reward)
        for call, taken in zip(group.calls, order, strict=True)
    ]
    return replace(group, calls=calls)


def calls_histogram(groups: Sequence[Sequence[Attempt]], role: str) -> dict[int, int]:
    """How many rollouts called `role` how often, for `alignment.target_count`. Those that repeat the beginning of
    another one say nothing about it."""
    histogram: dict[int, int] = {}
    for group in groups:
        for rollout in (one for one in group if one.resampled_from is None):
            count = sum(call.role == role for call in rollout.subs)
            histogram[count] = histogram.get(count, 0) + 1
    return histogram


def _overlong(call: Trajectory, settings: CreditSettings) -> float:
    if not settings.overlong_length:
        return 0.0
    return overlong_penalty(int(call.mask.sum()), settings.overlong_length, settings.overlong_buffer)


def _rewards(group: ScoredGroup) -> FloatArray:
    return np.array([call.reward for call in group.calls], np.float64)
