"""What a trainer is composed of. Three parts have a local and a distributed implementation:

    part            local (`in_process.py`)              on Ray (`backend.distributed.driver`)
    RolloutSource   this process and its helpers         actors: the rollout workers
    LearnerPool     a learner for each role here         actors: a trainer for each role
    StateStore      a checkpoint of everything           the driver's own small file

The trainer does not know which of them it runs with, and both end with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from backend.policies.adapters import Publisher, publisher
from backend.processes import ALONE, Workers
from backend.training.algorithm.credit import RoleCredit
from backend.training.checkpoints import TrainingState
from backend.training.curriculum.curriculum import StepPlan
from backend.training.learning.learner import StepData
from backend.training.recorder import TrainingRecorder
from backend.training.rollout.sharding import RolloutParts, ShardCollector
from backend.training.rollout.shared_shards import SharedShards, TrainingPlace


@dataclass(frozen=True)
class TrainingParts(RolloutParts):
    """What every process of a training has, whatever learns: what rolls out, and what writes the records. `folder` is
    the run's; `workers` share what there is to roll out, and `place` is where a helper among them finds the rest."""

    recorder: TrainingRecorder
    folder: Path
    workers: Workers = ALONE
    place: TrainingPlace | None = None

    @cached_property
    def publisher(self) -> Publisher:
        """Puts new weights where the engine answers with them."""
        return publisher(self.engine, self.policies, self.folder / "served")

    @cached_property
    def collector(self) -> ShardCollector:
        """Rolls shards out."""
        return ShardCollector(self, self.publisher)

    @cached_property
    def shards(self) -> SharedShards:
        """Rolls all shards of a step out, and of a validation, here and in helpers."""
        return SharedShards(self.collector, self.workers, self.place)


@dataclass(frozen=True)
class RolloutBatch:
    """The rollouts of a step, their metrics, and what the engine did for them (`Throughput.metrics`)."""

    data: StepData
    metrics: dict[str, float]
    engine: Mapping[str, float]


class RolloutSource(Protocol):
    """Where the rollouts of a step come from."""

    def collect(self, plan: StepPlan) -> RolloutBatch:
        """All rollouts of a step, which are in the store by then."""
        ...


@dataclass(frozen=True)
class LearningStep:
    """What came of a step of learning: metrics, the credit of each role as far as it is known here, which role was
    rolled back in which step, and why the run cannot continue, None if it can."""

    metrics: dict[str, float]
    credits: Mapping[str, RoleCredit] = field(default_factory=dict)
    rollbacks: Sequence[tuple[int, str]] = ()
    failure: str | None = None


class LearnerPool(Protocol):
    """Who learns from the rollouts, and where the weights of the engine come from."""

    def load_weights(self, step: int) -> None:
        """Let the engine answer with the weights that roll out `step`."""
        ...

    def train_step(self, step: int, data: StepData) -> LearningStep:
        """Let every role learn from the rollouts of `step`; the engine then answers with the new weights."""
        ...


class StateStore(Protocol):
    """Where the state of a training is kept between its steps."""

    def load(self) -> TrainingState | None:
        """The state after the last step that was completed, None before the first."""
        ...

    def save(self, state: TrainingState) -> None:
        """Keep the state, and with it all that a resumed run needs."""
        ...
