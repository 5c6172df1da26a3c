"""Models that are divided among processes (FSDP2): gloo processes on the CPU stand for GPUs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch.distributed.tensor import DTensor

from backend.config.training import TrainingConfig
from backend.policies.adapters import save_versions
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.data_parallel import ShardedGradients, gradient_pool, rounds
from backend.training.learning.role_trainer import GradientPool, RoleTrainer
from cryptosentinel.llm.nano import load_model, nano_config, new_nano, save_model, train_tokenizer
from simulator.errors import RunFailed
from tests.backend.training.learning.test_data_parallel import row
from tests.standard_settings import trainer_settings

Make = Callable[..., Trajectory]
Weights = Literal["lora", "full"]
ROLES = ("manager", "trader")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which no dimension divides by three, and the vocabulary not by two."""
    folder = tmp_path_factory.mktemp("base") / "nano"
    model = new_nano(0, nano_config(301, hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=50))
    save_model(folder, model, train_tokenizer(["a small text", "another small text"], 301))
    return folder


def training(weights: Weights, processes: int = 3) -> TrainingConfig:
    return TrainingConfig(
        data_parallel=processes, sharding="fsdp", weights=weights, device="cpu", kl=0.1, gradient_checkpointing=True
    )


def start_of(base: Path, weights: Weights) -> Path:
    """Weights to begin with, which the KL is to."""
    folder = base.parent / f"start-{weights}"
    if not folder.exists():
        policies, _ = role_policies(base, training(weights), roles=ROLES)
        torch.manual_seed(1)
        with torch.no_grad():
            for role in ROLES:
                for parameter in policies.trainable(role):
                    parameter.add_(0.02 * torch.randn_like(parameter))
        save_versions(policies, folder, "first", 1)
    return folder


@contextmanager
def divided(base: Path, weights: Weights, processes: int = 3) -> Iterator[tuple[RolePolicies, ShardedGradients]]:
    """Policies of several processes, and who computes their gradients."""
    config = training(weights, processes)
    with gradient_pool(base, config, ROLES, start_of(base, weights)) as pool:
        assert isinstance(pool, ShardedGradients)
        hardware = replace(hardware_of(config), shards=pool.shards)
        yield role_policies(base, config, roles=ROLES, hardware=hardware, start=start_of(base, weights))[0], pool


def alone(base: Path, weights: Weights) -> RolePolicies:
    return role_policies(base, training(weights), roles=ROLES, start=start_of(base, weights))[0]


def trainer_of(policies: RolePolicies, gradients: GradientPool | None = None) -> RoleTrainer:
    settings = trainer_settings(
        learning_rate=2e-4, warmup_steps=1, minibatches=2, kl=0.1, entropy=0.01, micro_batch_tokens=64
    )
    return RoleTrainer(policies, "manager", settings, gradients)


def steps(trainer: RoleTrainer, make: Make, count: int = 1) -> list[dict[str, float]]:
    """The metrics of steps on eleven conversations of different lengths."""
    batch = [make(i, prompt=3 + 2 * i, answer=1 + i % 5) for i in range(11)]
    return [trainer.step(batch, [math.sin(i) for i in range(11)], [0.25] * 11) for _ in range(count)]


def assert_close(found: RolePolicies, expected: RolePolicies) -> None:
    state = found.role_state("manager")
    for name, value in expected.role_state("manager").items():
        torch.testing.assert_close(state[name], value, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "processes"),
    [*(pytest.param(weights, 3, marks=pytest.mark.slow) for weights in ("lora", "full")), ("full", 2)],
)
def test_processes_take_the_steps_of_one_resume_and_save_whole_files(
    weights: Weights, processes: int, base: Path, make: Make, tmp_path: Path
) -> None:
    single = alone(base, weights)
    before = single.role_state("manager")
    expected_trainer = trainer_of(single)
    expected = steps(expected_trainer, make, 2)
    assert any((before[name] - value).abs().max() > 2e-4 for name, value in single.role_state("manager").items())
    with divided(base, weights, processes) as (policies, pool):
        trainer = trainer_of(policies, pool)
        found = steps(trainer, make)
        policies.save(tmp_path / "policies")
        trainer.save(tmp_path / "trainer.safetensors")
        merged = policies.merged_state("manager")
        version = policies.version("trader")
    assert version == single.version("trader")

    # Another group goes on from the checkpoint.
    with divided(base, weights, processes) as (policies, pool):
        policies.load(tmp_path / "policies")
        trainer = trainer_of(policies, pool)
        trainer.load(tmp_path / "trainer.safetensors")
        found += steps(trainer, make)
        assert_close(policies, single)
        parts = [one for one in policies._model("manager").parameters() if isinstance(one, DTensor)]
        whole = sum(one.numel() for one in parts)
        assert whole > 0 and sum(one.to_local().numel() for one in parts) < (0.03 + 1 / processes) * whole
        policies.save(tmp_path / "after")
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)

    # What was written is an ordinary checkpoint: one process goes on from it, and an engine loads the merged model.
    one_process = alone(base, weights)
    one_process.load(tmp_path / "after")
    assert_close(one_process, single)
    one_process.load(tmp_path / "policies")
    for name, value in one_process.merged_state("manager").items():
        torch.testing.assert_close(merged[name], value, rtol=0.0, atol=1e-6)
    load_model(base)[0].load_state_dict(merged)
    resumed = trainer_of(one_process)
    resumed.load(tmp_path / "trainer.safetensors")
    steps(resumed, make)
    assert_close(one_process, single)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_with_its_number(base: Path, make: Make) -> None:
    with divided(base, "full") as (policies, pool):
        trainer = trainer_of(policies, pool)
        process, _ = pool._followers[1]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RunFailed, match=r"process 2 of training\.data_parallel = 3 died \(signal 9\): .*resume"):
            steps(trainer, make)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("lengths", [[], [4], [3, 9, 2, 2], [7, 7, 1, 5, 6, 2, 30]])
def test_every_process_makes_as_many_passes_and_every_batch_counts_once(size: int, lengths: list[int]) -> None:
    batches = [[row(one + 1)] for one in lengths]
    parts = rounds(batches, size)
    assert sorted(id(one) for part, _ in parts for one in part) == sorted(map(id, batches))
    assert len({len(part) + (extra is not None) for part, extra in parts}) == 1
