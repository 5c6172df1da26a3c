"""From the rollouts of a step to what each role's optimiser needs: rewards, alignment weights, advantages.

Groups are (query, role). Roles never share a statistic (arXiv 2511.13288, and DESIGN of this project in docs/).

A sub-agent's calls can also be compared within (query, role, ordinal): first calls with first calls, second ones with
second ones, since a later call is asked under other circumstances. An ordinal with too few calls in a query backs off
to all calls of (query, role). How much a call counts is the alignment's business alone, and its weights still sum to 1
over (query, role): the grouping decides what a call is compared with, and never how large a step is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from backend.config.training import TrainingConfig
from backend.training.algorithm.advantages import batch_scaled, decoupled_advantages, group_advantages
from backend.training.algorithm.alignment import AlignmentMethod, align
from backend.training.algorithm.rewards import Outcome, RewardParts, main_reward, overlong_penalty, sub_reward
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import Stage
from simulator.arrays import FloatArray

GroupKey = Literal["role", "ordinal"]
RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]
Call = tuple[Trajectory, RewardParts, float]  # with its reward


class Attempt(Protocol):
    """What credit must know of a rollout or a practice: its sub-trajectories in the order of the calls, and the
    outcome that they share."""

    @property
    def subs(self) -> tuple[Trajectory, ...]: ...

    @property
    def shared_outcome(self) -> float: ...


class TeamAttempt(Attempt, Protocol):
    """What it must know of a rollout of the whole team: also the manager's trajectory and the outcome."""

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
    group               what a sub-agent's call is compared with; an ordinal with fewer calls than `min_group` backs off
    overlong_length     with `overlong_buffer` of `overlong_penalty`, in sampled tokens of a conversation; 0: no penalty
    keep_degenerate     False: the manager's degenerate groups are in no denominator, as dynamic sampling wants it
    """

    scale_rewards: bool = True
    reward_aggregation: RewardAggregation = "sum_then_normalize"
    group: GroupKey = "role"
    min_group: int = 4
    overlong_length: int = 0
    overlong_buffer: int = 0
    keep_degenerate: bool = True

    @property
    def decoupled(self) -> bool:
        """Whether each part of the reward has its own advantage."""
        return self.reward_aggregation == "normalize_then_sum"


STANDARD_CREDIT = CreditSettings()


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


@dataclass(frozen=True)
class _Scored:
    """The scored calls of one query with their weights and advantages, both (n,)."""

    calls: Sequence[Call]
    weights: FloatArray
    advantages: FloatArray


def credit_main(
    groups: Sequence[Sequence[TeamAttempt]], alpha: tuple[float, float], settings: CreditSettings = STANDARD_CREDIT
) -> RoleCredit:
    """The manager's credit: one trajectory a rollout, K in a group."""
    result = RoleCredit()
    scored: list[_Scored] = []
    for group in groups:
        calls: list[Call] = []
        for one in group:
            penalty = _overlong(one.main, settings)
            parts = RewardParts(one.main.valid, one.main.format_score, one.outcome.score, overlong=penalty)
            calls.append((one.main, parts, main_reward(parts.valid, parts.format, parts.outcome, alpha) + penalty))
        weights = np.full(len(calls), 1.0 / len(group))
        # All K rollouts count alike: statistics without weights, whose rounding is the plain mean's.
        advantages, degenerate = _compared(calls, None, (*alpha, 0.0), settings)
        if degenerate and not settings.keep_degenerate:
            weights = np.zeros(len(calls))
        result.groups += 1
        result.degenerate += degenerate
        scored.append(_Scored(calls, weights, advantages))
    _gather(result, scored, settings)
    return result


def credit_sub(
    groups: Sequence[Sequence[Attempt]],
    role: str,
    beta: tuple[float, float, float],
    method: AlignmentMethod,
    target: int,
    rng: np.random.Generator,
    settings: CreditSettings = STANDARD_CREDIT,
    outcomes: Sequence[Sequence[float]] | None = None,
) -> RoleCredit:
    """A sub-agent's credit, from rollouts of the team or from practice.

    `outcomes`: the part of the outcome that each rollout of the first groups credits the role with (`role_shares`); the
    groups behind these are practice, which has no outcome. None broadcasts the team's outcome.
    """
    result = RoleCredit()
    scored: list[_Scored] = []
    for number, group in enumerate(groups):
        calls: list[Call] = []
        counts: list[int] = []
        replayed = outcomes[number] if outcomes is not None and number < len(outcomes) else None
        for position, rollout in enumerate(group):
            outcome = rollout.shared_outcome if replayed is None else replayed[position]
            count = 0
            for call in rollout.subs:
                if call.role != role:
                    continue
                penalty = _overlong(call, settings)
                parts = RewardParts(call.valid, call.format_score, outcome, call.expert, penalty)
                reward = sub_reward(call.valid, call.format_score, outcome, call.expert, beta)
                if reward is None:
                    result.unscored += 1
                    result.items.append(Credited(call, parts, None, 0.0, 0.0))
                    continue
                calls.append((call, parts, reward + penalty))
                count += 1
            counts.append(count)
        if not calls:
            continue
        weights = align(counts, method, target, rng)
        advantages = np.zeros(len(calls))
        for among, own in _comparisons(calls, weights, settings):
            found = np.zeros(len(calls))
            found[among], degenerate = _compared([calls[i] for i in among], weights[among], beta, settings)
            advantages[own] = found[own]
            result.groups += 1
            result.degenerate += degenerate
        scored.append(_Scored(calls, weights, advantages))
    _gather(result, scored, settings)
    return result


def calls_histogram(groups: Sequence[Sequence[Attempt]], role: str) -> dict[int, int]:
    """How many rollouts called `role` how often."""
    histogram: dict[int, int] = {}
    for group in groups:
        for rollout in group:
            count = sum(call.role == role for call in rollout.subs)
            histogram[count] = histogram.get(count, 0) + 1
    return histogram


def _overlong(one: Trajectory, settings: CreditSettings) -> float:
    if not settings.overlong_length:
        return 0.0
    return overlong_penalty(int(one.mask.sum()), settings.overlong_length, settings.overlong_buffer)


def _comparisons(
    calls: Sequence[Call], weights: FloatArray, settings: CreditSettings
) -> list[tuple[list[int], list[int]]]:
    """Which calls of a query are compared with which: (those that make the statistics, those that take their advantage
    from them), as positions. Calls that the alignment dropped make no group large."""
    everyone = list(range(len(calls)))
    if settings.group == "role":
        return [(everyone, everyone)]
    ordinals: dict[int, list[int]] = {}
    for position, (trajectory, _, _) in enumerate(calls):
        ordinals.setdefault(trajectory.ordinal, []).append(position)
    large = [own for own in ordinals.values() if np.count_nonzero(weights[own]) >= settings.min_group]
    rest = sorted(set(everyone).difference(*large))
    return [(own, own) for own in large] + ([(everyone, rest)] if rest else [])


def _compared(
    calls: Sequence[Call],
    weights: FloatArray | None,
    coefficients: tuple[float, float, float],
    settings: CreditSettings,
) -> tuple[FloatArray, bool]:
    """Advantages of calls that are compared with one another, and whether they are degenerate. `coefficients` are those
    of format, outcome and expert score; the overlong penalty has 1."""
    if settings.decoupled:
        return decoupled_advantages([parts.terms() for _, parts, _ in calls], (*coefficients, 1.0), weights)
    return group_advantages([reward for _, _, reward in calls], weights, settings.scale_rewards)


def _gather(result: RoleCredit, scored: Sequence[_Scored], settings: CreditSettings) -> None:
    """Put the scored calls of all queries into `result`."""
    advantages = [one.advantages for one in scored]
    if settings.decoupled:
        advantages = batch_scaled(advantages, [one.weights for one in scored])
    for one, row in zip(scored, advantages, strict=True):
        for (call, parts, reward), weight, advantage in zip(one.calls, one.weights, row, strict=True):
            result.items.append(Credited(call, parts, reward, float(weight), float(advantage)))


def credit_settings(config: TrainingConfig, stage: Stage) -> CreditSettings:
    """How advantages come of rewards in a stage."""
    return CreditSettings(
        scale_rewards=config.scale_rewards,
        reward_aggregation=config.reward_aggregation,
        group=config.group,
        min_group=config.min_group,
        overlong_length=config.overlong_length,
        overlong_buffer=config.overlong_buffer,
        keep_degenerate=stage.number == 1 or config.dynamic_rounds == 0,
    )
