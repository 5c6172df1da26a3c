"""What a training does when it goes wrong: updates that are never finite end it, and a role that nobody asks is
named."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from backend.store.store import Store
from backend.training.checkpoints import checkpoints, load_checkpoint
from backend.training.components import LearningStep, RolloutBatch
from backend.training.curriculum.curriculum import StepPlan
from backend.training.in_process import CheckpointFolder
from backend.training.learning import learner
from backend.training.learning.learner import MAX_IDLE_STEPS, StepData
from backend.training.trainer import Trainer
from simulator.errors import RunFailed
from tests.small_world import RUN, SmallTraining, open_trainer, small_config


def versions(trainer: SmallTraining) -> list[str]:
    return [trainer.policies.version(role) for role in trainer.policies.roles]


def steps(trainer: SmallTraining, number: int) -> list[dict[str, float]]:
    return [trainer.step() for _ in range(number)]


def test_updates_that_are_never_finite_end_the_run_with_its_parameters_intact(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(queries_per_step=4, validation_every=100)
    monkeypatch.setattr(learner, "MAX_SKIPPED", 2)
    trainer = open_trainer(config, nano, tmp_path, store, stage=2)
    trainer.publish()
    before = versions(trainer)

    def never_finite(parameters: object, norm: float) -> torch.Tensor:
        return torch.tensor(float("nan"))

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", never_finite)
    metrics = trainer.step()
    assert metrics["manager/skipped_updates"] > 0.0 and metrics["manager/updates"] == 0.0
    trainer = open_trainer(config, nano, tmp_path, store)  # the count survives a resume
    trainer.publish()
    with pytest.raises(RunFailed, match=r"every update of (\w+) was skipped in 2 steps.*training\.learning_rate\.\1"):
        trainer.step()
    found = checkpoints(tmp_path / "checkpoints")
    assert [path.name for path in found] == ["step-000001", "step-000002"]
    state = load_checkpoint(found[-1], trainer.policies, trainer.learners)
    assert state.step == 2 and versions(trainer) == before
    assert [record.step for record in store.metrics(RUN)] == [1, 2], "the step is recorded before the run ends"


class NoRollouts:
    """A source of rollouts whose steps are empty."""

    def collect(self, plan: StepPlan) -> RolloutBatch:
        return RolloutBatch(StepData(plan.stage, [], []), {}, {})


class SilentTrader:
    """Learners whose trader has had no conversation for one step less than is too many, then for more."""

    def load_weights(self, step: int) -> None:
        pass

    def train_step(self, step: int, data: StepData) -> LearningStep:
        return LearningStep({"trader/silent_steps": MAX_IDLE_STEPS - 1.0 + step, "manager/silent_steps": 0.0})


def test_a_role_that_nobody_asks_is_named_once(
    nano: Path, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    parts = open_trainer(small_config(validation_every=100), nano, tmp_path, store).parts
    trainer = Trainer(
        parts, NoRollouts(), SilentTrader(), CheckpointFolder(tmp_path / "checkpoints", parts.policies, {})
    )
    with caplog.at_level(logging.WARNING):
        trainer.step()
        assert caplog.messages == []
        for _ in range(2):
            trainer.step()
    [said] = caplog.messages
    assert "trader" in said and RUN in said
