"""What a role's trainer reads of a step: its own trajectories, and what came of the team's rollouts. Nothing else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from backend.config.training import TrainingConfig
from backend.distributed.run_files import sha256
from backend.store.records import PublishedRecord, RolloutRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory, failure_kind
from backend.training.curriculum.curriculum import Curriculum
from backend.training.learning.step_data import StepData
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.replay import acts_through_code


@dataclass(frozen=True)
class Heard:
    """One rollout, or one practice, as the records tell it to one role: `own` are that role's trajectories."""

    valid: bool
    outcome: Outcome
    own: tuple[Trajectory, ...]

    @property
    def main(self) -> Trajectory:
        """The manager's trajectory; only its own trainer reads it."""
        [main] = self.own
        return main

    @property
    def subs(self) -> tuple[Trajectory, ...]:
        """The role's calls, in their order."""
        return self.own

    @property
    def shared_outcome(self) -> float:
        """As `Rollout.shared_outcome`."""
        return self.outcome.score if self.valid else 0.0


_NOTHING = Outcome(0.0, 0.0, 0.0, 0.0, 0.0)


def step_data(store: Store, run: str, step: int, role: str, config: TrainingConfig, curriculum: Curriculum) -> StepData:
    """The data of a complete step for `role`; equal, to the bit, to what a loop in one process has."""
    queries = sorted(store.queries(run, step), key=lambda one: one.query)
    stage = curriculum.stage(queries[0].stage)
    spoken: dict[tuple[int, int], list[TrajectoryRecord]] = defaultdict(list)
    for record in store.trajectories(run, step, role):
        spoken[record.query, record.rollout].append(record)
    rollouts: dict[int, list[RolloutRecord]] = defaultdict(list)
    for one in store.rollouts(run, step):
        rollouts[one.query].append(one)
    team: list[list[Heard]] = []
    shares: list[list[float]] = []
    practice: list[list[Heard]] = []
    for query in queries:
        number = query.query
        if number in rollouts:
            group = sorted(rollouts[number], key=lambda one: one.rollout)
            team.append([_heard(one, spoken[number, one.rollout]) for one in group])
            # A rollout that did not call the role has no share that anybody reads.
            shares.append([next((t.shared for t in spoken[number, one.rollout]), None) or 0.0 for one in group])
        else:
            attempts = sorted(place for place in spoken if place[0] == number)
            practice.append([Heard(False, _NOTHING, _trajectories(spoken[place])) for place in attempts])
    replayed = config.credit != "broadcast" and stage.pays_outcome and acts_through_code(ROLES[role])
    return StepData(stage, team, [*team, *practice], {role: shares} if replayed else {})


def _heard(rollout: RolloutRecord, records: list[TrajectoryRecord]) -> Heard:
    parts = rollout.parts
    outcome = Outcome(rollout.outcome, parts["net_return"], parts["fees"], parts["spread"], parts["funding"])
    return Heard(rollout.valid, outcome, _trajectories(records))


def _trajectories(records: list[TrajectoryRecord]) -> tuple[Trajectory, ...]:
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
            format_score=one.format_score or 0.0,
            expert=one.expert,
            truncated=one.truncated,
            failure=failure_kind(one.reason),
        )
        for one in sorted(records, key=lambda one: one.ordinal)
    )


def closing_shard(config: TrainingConfig) -> int | None:
    """The number of the marker that says that a step gets no further shards, beyond all that it may get; None where
    none is needed, as every step has the same ones. The leader writes it."""
    return config.shards * (config.dynamic_rounds + 1) if config.dynamic_rounds else None


def is_complete(store: Store, run: str, step: int, config: TrainingConfig) -> bool | None:
    """True once everything of a step is there, to the last record; None before."""
    return store.step_complete(run, step, config.shards, closing_shard(config)) or None


PUT_BACK = "put_back"  # in `PublishedRecord.metrics`: the weights that were replaced


def put_back(record: PublishedRecord, version: str, path: Path, folder: Path) -> PublishedRecord:
    """`record` with the weights in `path`, a file of the run's `folder`, instead of its own."""
    replaced = {"version": record.version, "path": record.path, "checksum": record.checksum}
    return replace(
        record,
        version=version,
        path=str(path.relative_to(folder)),
        checksum=sha256(path),
        metrics={**record.metrics, PUT_BACK: replaced},
    )


def trained(record: PublishedRecord) -> PublishedRecord:
    """The record as the role's trainer wrote it."""
    if PUT_BACK not in record.metrics:
        return record
    told = {key: value for key, value in record.metrics.items() if key != PUT_BACK}
    return replace(record, metrics=told, **record.metrics[PUT_BACK])
