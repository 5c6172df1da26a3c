"""A training in one process: it rolls out all shards itself, and the learners of all roles are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.checkpoints import TrainingState, load_newest, save_checkpoint
from backend.training.components import LearningStep, RolloutBatch, TrainingParts
from backend.training.curriculum.curriculum import StepPlan
from backend.training.learning.helper_gradients import HelperGradients
from backend.training.learning.learner import Learner, StepData
from backend.training.learning.role_trainer import GradientPool
from backend.training.learning.training_metrics import team_metrics
from backend.training.rollout.sharding import Shard
from backend.training.trainer import Trainer
from cryptosentinel.scheduler import Throughput


def local_trainer(
    parts: TrainingParts, learners: Mapping[str, Learner], side_by_side: HelperGradients | None = None
) -> Trainer:
    """A trainer whose rollouts, learners and checkpoints are all in this process and its helpers. `side_by_side`
    computes the gradients of the learners, where roles learn at the same time."""
    states = CheckpointFolder(parts.folder / "checkpoints", parts.policies, learners)
    return Trainer(parts, LocalRollouts(parts), LocalLearners(parts, learners, side_by_side), states)


def helper_gradients(parts: TrainingParts) -> HelperGradients | None:
    """Who computes the gradients of several roles at the same time; None where there is no helper, or a
    process with a GPU is to be shared."""
    if parts.workers.number == 1 or parts.place is None or parts.policies.device.type != "cpu":
        return None
    return HelperGradients(parts.workers, parts.place)


def _tokens(conversations: Sequence[Trajectory]) -> int:
    return sum(len(one.ids) for one in conversations)


def local_learners(parts: TrainingParts, gradients: GradientPool | None = None) -> dict[str, Learner]:
    """A learner for each role, by role; `gradients` computes the gradients of all of them."""
    return {role: Learner(parts.config, parts.policies, role, gradients) for role in parts.policies.roles}


class LocalRollouts:
    """Rolls out all shards of a step in this process and its helpers."""

    def __init__(self, parts: TrainingParts) -> None:
        self._collector = parts.collector
        self._shards = parts.shards
        self._recorder = parts.recorder

    def collect(self, plan: StepPlan) -> RolloutBatch:
        """As `RolloutSource.collect`."""
        step, stage, throughput = plan.step, plan.stage, Throughput()
        queries = self._collector.queries(step, stage)
        shards = self._shards.roll_out(step, queries, throughput)
        whole = Shard([one for part in shards for one in part.team], [one for part in shards for one in part.practice])
        outcomes = self._collector.role_outcomes(whole.team, stage)
        records = self._recorder.rollouts(step, stage.number, whole, outcomes)
        metrics = {"stage": float(stage.number), **team_metrics(records)}
        data = StepData(stage, whole.team, [*whole.team, *whole.practice], outcomes)
        return RolloutBatch(data, metrics, throughput.metrics())


class LocalLearners:
    """The learners of all roles, in this process."""

    def __init__(
        self, parts: TrainingParts, learners: Mapping[str, Learner], side_by_side: HelperGradients | None = None
    ) -> None:
        """`side_by_side` computes the gradients of the learners."""
        self._config = parts.config
        self._side_by_side = side_by_side
        self._policies = parts.policies
        self._publisher = parts.publisher
        self._learners = learners

    def load_weights(self, step: int) -> None:
        """As `LearnerPool.load_weights`: the policies as they are."""
        self._publisher.publish(self._policies.roles)

    def train_step(self, step: int, data: StepData) -> LearningStep:
        """As `LearnerPool.train_step`."""
        if self._side_by_side is not None:
            # The longest first, so that no process waits for it at the end.
            roles = sorted(self._learners, key=lambda role: -_tokens(self._learners[role].conversations(data)))
            learned = self._side_by_side.side_by_side(
                lambda role: self._learners[role].train(step, data), roles, self._config.freeze
            )
            by_role = dict(zip(roles, learned, strict=True))
            results = {role: by_role[role] for role in self._learners}
        else:
            results = {role: learner.train(step, data) for role, learner in self._learners.items()}
        metrics: dict[str, float] = {}
        for result in results.values():
            metrics |= result.metrics
        credits = {role: result.credit for role, result in results.items() if result.credit is not None}
        self._publisher.publish(credits)
        failures = (learner.failure() for learner in self._learners.values())
        return LearningStep(
            metrics,
            credits,
            rollbacks=[(step, role) for role, result in results.items() if result.rolled_back],
            failure=next((failure for failure in failures if failure is not None), None),
        )


class CheckpointFolder:
    """Keeps the state in a checkpoint together with policies, optimizers and what the learners remember."""

    def __init__(self, folder: Path, policies: RolePolicies, learners: Mapping[str, Learner]) -> None:
        self._folder = folder
        self._policies = policies
        self._learners = learners

    def load(self) -> TrainingState | None:
        """Go to the newest checkpoint; None if there is none. Raises `UserError` for one of another model."""
        return load_newest(self._folder, self._policies, self._learners)

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint. Raises `RunFailed` where the disk is full."""
        save_checkpoint(self._folder, state, self._policies, self._learners)
