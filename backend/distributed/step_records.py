"""The records of a step, as a role's trainer reads them: its own trajectories and the outcomes of the team's rollouts,
and nothing of the other roles."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from backend.config.training import TrainingConfig
from backend.store.records import RolloutRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.team_credit import BROADCAST
from backend.training.algorithm.trajectory import Trajectory, failure_kind
from backend.training.curriculum.curriculum import Curriculum
from backend.training.learning.learner import StepData
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.team import acts_through_code


@dataclass(frozen=True)
class StepRollout:
    """A rollout of the team, or a practice, as one role reads it: `calls` are that role's trajectories."""

    valid: bool
    outcome: Outcome
    calls: tuple[Trajectory, ...]

    @property
    def main(self) -> Trajectory:
        """The manager's trajectory; only its own trainer reads it."""
        [main] = self.calls
        return main

    @property
    def subs(self) -> tuple[Trajectory, ...]:
        """The role's calls, in their order."""
        return self.calls

    @property
    def shared_outcome(self) -> float:
        """As `Rollout.shared_outcome`."""
        return self.outcome.score if self.valid else 0.0


_NO_OUTCOME = Outcome(0.0, 0.0, 0.0, 0.0, 0.0)  # practice has none


def read_step_data(
    store: Store, run: str, step: int, role: str, config: TrainingConfig, curriculum: Curriculum
) -> StepData:
    """The data of a complete step for `role`; equal, to the bit, to what a training in one process has."""
    queries = sorted(store.queries(run, step), key=lambda query: query.query)
    stage = curriculum.stage(queries[0].stage)
    calls: dict[tuple[int, int], list[TrajectoryRecord]] = defaultdict(list)
    for trajectory in store.trajectories(run, step, role):
        calls[trajectory.query, trajectory.rollout].append(trajectory)
    rollouts: dict[int, list[RolloutRecord]] = defaultdict(list)
    for rollout in store.rollouts(run, step):
        rollouts[rollout.query].append(rollout)
    team: list[list[StepRollout]] = []
    outcomes: list[list[float]] = []
    practice: list[list[StepRollout]] = []
    for query in queries:
        number = query.query
        if number in rollouts:
            group = sorted(rollouts[number], key=lambda rollout: rollout.rollout)
            team.append([_step_rollout(one, calls[number, one.rollout]) for one in group])
            # A rollout that did not call the role has no share that anybody reads.
            outcomes.append([next((call.shared for call in calls[number, one.rollout]), None) or 0.0 for one in group])
        else:
            attempts = sorted(place for place in calls if place[0] == number)
            practice.append([StepRollout(False, _NO_OUTCOME, _trajectories(calls[place])) for place in attempts])
    is_credited_apart = config.credit != BROADCAST and stage.pays_outcome and acts_through_code(ROLES[role])
    return StepData(stage, team, [*team, *practice], {role: outcomes} if is_credited_apart else {})


def _step_rollout(rollout: RolloutRecord, calls: list[TrajectoryRecord]) -> StepRollout:
    parts = rollout.parts
    outcome = Outcome(rollout.outcome, parts["net_return"], parts["fees"], parts["spread"], parts["funding"])
    return StepRollout(rollout.valid, outcome, _trajectories(calls))


def _trajectories(conversations: list[TrajectoryRecord]) -> tuple[Trajectory, ...]:
    return tuple(
        Trajectory(
            role=one.role,
            query=f"{one.step}-{one.query}",
            rollout=one.rollout,
            ordinal=one.ordinal,
            ids=np.array(one.ids, np.int32),
            mask=np.array(one.mask, np.bool_),
            sampled_logps=np.array(one.sampled_logps, np.float32),
            policy_version=one.policy_version,
            valid=one.valid,
            format_score=one.format_score,
            expert=one.expert,
            truncated=one.truncated,
            failure=failure_kind(one.reason),
            thought_tokens=one.thought_tokens,
            thoughts_cut=one.thoughts_cut,
        )
        for one in sorted(conversations, key=lambda one: one.ordinal)
    )
