"""What a training does when it goes wrong: a collapse is put back, updates that are never finite end it, and a role
that nobody asks is named."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.store.store import Store
from backend.training import trainer as trainer_module
from backend.training.checkpoints import checkpoints, load_checkpoint
from backend.training.components import LearningStep, RolloutBatch
from backend.training.curriculum.curriculum import StepPlan
from backend.training.in_process import CheckpointFolder
from backend.training.learning.learner import MAX_IDLE_STEPS
from backend.training.learning.step_data import StepData
from backend.training.trainer import Trainer
from backend.training.validation import Validation
from simulator.errors import RunFailed
from tests.small_world import RUN, SmallTraining, open_trainer, small_config, smaller_config, tree


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        yield opened


def validated(monkeypatch: pytest.MonkeyPatch, found: Sequence[tuple[float, float]]) -> None:
    """Let the validations find these outcomes and shares of valid answers, one after the other."""
    left = iter(found)

    def validate(*args: object) -> Validation:
        outcome, valid = next(left)
        return Validation(outcome, 0.0, 0.0, valid={"manager": 1.0, "trader": valid}, expert={})

    monkeypatch.setattr(trainer_module, "validate", validate)


def versions(trainer: SmallTraining) -> list[str]:
    return [trainer.policies.version(role) for role in trainer.policies.roles]


def steps(trainer: SmallTraining, number: int) -> list[dict[str, float]]:
    return [trainer.step() for _ in range(number)]


@pytest.mark.parametrize(
    ("last", "options", "rejected"),
    [
        ((0.54, 1.0), {"collapse_margin": 0.05}, True),  # 0.6 is the best before it
        ((0.56, 1.0), {"collapse_margin": 0.05}, False),
        ((0.56, 0.85), {"collapse_margin": 0.05, "rollback_format": 0.9}, True),
        ((0.1, 0.1), {}, False),  # nothing is rejected unless it is asked for
    ],
)
def test_a_collapse_puts_the_best_version_of_all_roles_back(
    last: tuple[float, float], options: dict[str, Any], rejected: bool,
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config = small_config(queries_per_step=4, warmup_steps=0, **options)
    validated(monkeypatch, [(0.6, 1.0), last])
    trainer = open_trainer(config, nano, tmp_path, store, stage=2)
    trainer.publish()
    [first] = steps(trainer, 1)
    best = versions(trainer)
    assert trainer.state.best_step == 1 and first.get("rejections", 0.0) == 0.0
    [second] = steps(trainer, 1)
    assert trainer.state.rejections == ([2] if rejected else [])
    assert second.get("rejections") == ((1.0 if rejected else 0.0) if options else None)
    assert (versions(trainer) == best) is rejected, "the step had moved them"
    assert any(learner.trainer.updates > 0 for learner in trainer.learners.values()) is not rejected
    answering = [trainer.engine.policy_version(role) for role in trainer.policies.roles]
    assert answering == versions(trainer), "the engine answers with what was put back"
    assert trainer.state.best_step == 1


def test_after_a_collapse_a_resumed_run_is_the_undisturbed_one(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smaller_config(collapse_margin=0.05, stage2_steps=2, stage1_max_steps=1, schedule="linear")
    outcomes = [(0.6, 1.0), (0.5, 1.0), (0.58, 1.0), (0.4, 1.0)]  # of steps 0 to 3
    files = []
    for name, lives in (("straight", [3]), ("resumed", [1, 1, 1])):
        validated(monkeypatch, outcomes)
        with Store.open("mem://") as store:
            for number in lives:
                trainer = open_trainer(config, nano, tmp_path / name, store)
                trainer.trainer.start()
                steps(trainer, number)
        assert trainer.state.rejections == [1, 3]
        files.append(tree(tmp_path / name / "checkpoints"))
    assert files[0] == files[1]


def test_updates_that_are_never_finite_end_the_run_with_its_parameters_intact(
    nano: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(queries_per_step=4, max_skipped=2, validation_every=100)
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

    def replace_weights(self, step: int, version: Path) -> None:
        pass


@pytest.mark.parametrize("auto_stop", [False, True])
def test_a_role_that_nobody_asks_is_named_once_or_ends_the_run(
    auto_stop: bool, nano: Path, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    parts = open_trainer(small_config(auto_stop=auto_stop, validation_every=100), nano, tmp_path, store).parts
    trainer = Trainer(
        parts, NoRollouts(), SilentTrader(), CheckpointFolder(tmp_path / "checkpoints", parts.policies, {})
    )
    with caplog.at_level(logging.WARNING):
        trainer.step()
        assert caplog.messages == []
        for _ in range(2):
            if auto_stop:
                with pytest.raises(RunFailed, match=r"training\.experimental\.auto_stop: trader had no conversation"):
                    trainer.step()
            else:
                trainer.step()
    [said] = caplog.messages
    assert "trader" in said and RUN in said
