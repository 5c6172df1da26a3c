"""Each optimizer: it learns, goes on bit for bit from what it saved, and refuses what is not its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.optimizers import OptimizerName
from simulator.errors import UserError
from tests.standard_settings import trainer_settings

Make = Callable[..., Trajectory]
INSTALLED = [  # adamw8bit computes on a CPU as well, slowly
    "adamw",
    pytest.param(
        "adamw8bit", marks=pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
    ),
]
RATE = 1e-2


def settings(name: OptimizerName) -> TrainingConfig:
    return trainer_settings(
        learning_rate=RATE,
        warmup_steps=3,
        optimizer=name,
        max_grad_norm=1e9,
    )


def log_prob(policies: RolePolicies, one: Trajectory) -> float:
    ids, mask = torch.from_numpy(one.ids).long()[None], torch.from_numpy(one.mask)[None]
    with torch.no_grad():
        return float(policies.logps("manager", ids, mask)[0].sum())


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("name", INSTALLED)
def test_the_rewarded_becomes_likelier(name: OptimizerName, mode: str, tiny: Qwen3ForCausalLM, make: Make) -> None:
    policies = RolePolicies(tiny, ["manager"], mode)  # type: ignore[arg-type] # one of the two
    trainer = RoleTrainer(policies, "manager", settings(name))
    good, bad = make(1), make(2)
    before = log_prob(policies, good) - log_prob(policies, bad)
    for _ in range(6):
        trainer.step([good, bad], [1.0, -1.0], [0.5, 0.5])
    assert log_prob(policies, good) - log_prob(policies, bad) > before + 0.1


@pytest.mark.parametrize("name", INSTALLED)
def test_two_steps_and_two_more_are_four(
    name: OptimizerName, tiny: Qwen3ForCausalLM, make: Make, tmp_path: Path
) -> None:
    batch, advantages, weights = [make(1), make(2), make(3)], [1.0, -1.0, 0.5], [0.5, 0.25, 0.25]
    rates = (1.0, 0.75, 0.5, 0.25)  # of a schedule

    def start() -> RoleTrainer:
        return RoleTrainer(RolePolicies(tiny, ["manager"]), "manager", settings(name))

    straight = start()
    whole = [straight.step(batch, advantages, weights, rate=rate) for rate in rates]
    first, second = start(), start()
    halves = [first.step(batch, advantages, weights, rate=rate) for rate in rates[:2]]
    first.policies.save(tmp_path)
    first.save(tmp_path / "trainer.safetensors")
    second.policies.load(tmp_path)
    second.load(tmp_path / "trainer.safetensors")
    halves += [second.step(batch, advantages, weights, rate=rate) for rate in rates[2:]]
    assert halves == whole
    assert second.policies.version("manager") == straight.policies.version("manager")
    warm_up = (1 / 3, 2 / 3, 1.0, 1.0)
    rates_had = [metrics["manager/lr"] for metrics in whole]
    assert rates_had == pytest.approx([RATE * warm * rate for warm, rate in zip(warm_up, rates, strict=True)])


@pytest.mark.parametrize("name", INSTALLED)
def test_the_state_of_another_optimizer_or_model_is_refused(
    name: OptimizerName, tiny: Qwen3ForCausalLM, make: Make
) -> None:
    policies = RolePolicies(tiny, ["manager"])
    trainer = RoleTrainer(policies, "manager", settings(name))
    trainer.step([make(1)], [1.0], [1.0])
    tensors, header = trainer.state_dict()
    fresh = RoleTrainer(policies, "manager", settings(name))
    with pytest.raises(UserError, match=f"is that of another: resume with training.optimizer = another, not {name}"):
        fresh.load_state_dict(tensors, {**header, "optimizer": "another"})
    cut = {key: tensor for key, tensor in tensors.items() if not key.startswith("3.")}
    numbers = {key: value for key, value in header["numbers"].items() if not key.startswith("3.")}
    wide = {key: torch.zeros(7, 3, 2) if tensor.dim() else tensor for key, tensor in tensors.items()}
    for wrong, said in ((cut, "not of"), (wide, r"\(7, 3, 2\)")):
        same = RoleTrainer(policies, "manager", settings(name))
        with pytest.raises(UserError, match=f"other parameters.*{said}"):
            same.load_state_dict(wrong, {**header, "numbers": numbers if wrong is cut else header["numbers"]})
        assert same.state_dict()[0] == {} and same.updates == 0, "what is refused changes nothing"
