"""Where one role alone learns, processes share the micro-batches of its updates, and no bit of the result changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from backend.config.schema import Config
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.processes import Workers
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning import helper_gradients as module
from backend.training.learning.helper_gradients import HelperGradients
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.rollout.shared_shards import TrainingPlace
from tests.copying_helper import CopyingHelper
from tests.standard_settings import trainer_settings

Make = Callable[..., Trajectory]
ROLES = ("manager", "trader")
# Several updates of several micro-batches, with log-probs that are remembered, an anchor and an entropy bonus.
SETTINGS = trainer_settings(
    learning_rate=2e-3, warmup_steps=1, minibatches=2, kl=0.1, entropy=0.01, micro_batch_tokens=64
)


def policies_of(nano: Path) -> RolePolicies:
    return role_policies(nano, TrainingConfig(lora_rank=2, kl=0.1), roles=ROLES)[0]


def steps(trainer: RoleTrainer, make: Make) -> list[dict[str, float]]:
    batch = [make(i, prompt=3 + 2 * i, answer=1 + i % 5) for i in range(12)]
    return [trainer.step(batch, [math.sin(i) for i in range(12)], [0.25] * 12) for _ in range(2)]


@pytest.mark.parametrize("frozen", [("trader",), ()], ids=["one learns", "both learn"])
def test_shared_micro_batches_change_no_bit(
    frozen: tuple[str, ...], nano: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together, there = (policies_of(nano) for _ in range(3))
    monkeypatch.setattr(module, "helpers_parts", lambda place: SimpleNamespace(parts=SimpleNamespace(policies=there)))
    expected = steps(RoleTrainer(alone, "manager", SETTINGS), make)
    helper = CopyingHelper()
    pool = HelperGradients(Workers([helper]), TrainingPlace(Config(), nano, None))
    trainer = RoleTrainer(together, "manager", SETTINGS, pool)

    def learn(role: str) -> list[dict[str, float]]:
        return steps(trainer, make) if role == "manager" else []

    found = pool.side_by_side(learn, ROLES, frozen)
    assert found == [expected, []]
    for name, value in alone.role_state("manager").items():
        assert torch.equal(together.role_state("manager")[name], value), name
    if frozen:
        assert helper.tasks > 4, "the helper had its part of the micro-batches"


def test_nothing_is_shared_once_the_roles_have_learned(nano: Path, make: Make) -> None:
    helper = CopyingHelper()
    pool = HelperGradients(Workers([helper]), TrainingPlace(Config(), nano, None))
    pool.side_by_side(lambda role: role, ROLES, ("trader",))
    steps(RoleTrainer(policies_of(nano), "manager", SETTINGS, pool), make)
    assert helper.tasks == 0
