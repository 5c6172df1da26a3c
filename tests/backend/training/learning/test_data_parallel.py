"""Several processes compute one optimizer step: gloo processes on the CPU stand for GPUs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.training import TrainingConfig
from backend.policies.adapters import save_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning import data_parallel as module
from backend.training.learning.batches import TrainingRow
from backend.training.learning.data_parallel import DataParallelGradients, balanced
from backend.training.learning.role_trainer import GradientPool, RoleTrainer
from cryptosentinel.llm.nano import nano_config, new_nano, save_model, train_tokenizer
from simulator.errors import RunFailed
from tests.standard_settings import changed, trainer_settings

Make = Callable[..., Trajectory]
ROLES = ("manager", "trader")
TRAINING = TrainingConfig(data_parallel=2, lora_rank=4, device="cpu", kl=0.1)
# Several updates a step (so log-probs are remembered), an anchor and an entropy bonus: all that a process computes.
SETTINGS = trainer_settings(
    learning_rate=2e-3, warmup_steps=1, minibatches=2, kl=0.1, entropy=0.01, micro_batch_tokens=64
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "nano"
    tokenizer = train_tokenizer(["a small text", "another small text"], 300)
    model = new_nano(0, nano_config(300, hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=48))
    save_model(folder, model, tokenizer)
    return folder


@pytest.fixture(scope="module")
def start(base: Path) -> Path:
    """Weights to begin with, which the KL is to: those of an adapter that has moved."""
    policies, _ = role_policies(base, TRAINING, roles=ROLES)
    torch.manual_seed(1)
    with torch.no_grad():
        for role in ROLES:
            for parameter in policies.trainable(role):
                parameter.add_(0.05 * torch.randn_like(parameter))
    save_versions(policies, base.parent / "start", "first", 1)
    return base.parent / "start"


@pytest.fixture
def pool(base: Path, start: Path) -> Iterator[DataParallelGradients]:
    made = DataParallelGradients(base, TRAINING, ROLES, start)
    yield made
    made.close()


def steps(policies: RolePolicies, make: Make, gradients: GradientPool | None = None) -> list[dict[str, float]]:
    """The metrics of two steps on twelve conversations of different lengths."""
    trainer = RoleTrainer(policies, "manager", SETTINGS, gradients)
    batch = [make(i, prompt=3 + 2 * i, answer=1 + i % 5) for i in range(12)]
    advantages = [math.sin(i) for i in range(12)]
    return [trainer.step(batch, advantages, [0.25] * 12) for _ in range(2)]


def test_two_processes_take_the_steps_of_one_and_a_dead_one_ends_the_run(
    base: Path, start: Path, pool: DataParallelGradients, make: Make
) -> None:
    alone, together = (role_policies(base, TRAINING, roles=ROLES, start=start)[0] for _ in range(2))
    before = together.role_state("manager")
    expected, found = steps(alone, make), steps(together, make, pool)
    for name, value in alone.role_state("manager").items():
        torch.testing.assert_close(together.role_state("manager")[name], value, rtol=0.0, atol=1e-6)
    assert any((before[name] - value).abs().max() > 1e-3 for name, value in alone.role_state("manager").items())
    for one, other in zip(expected, found, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    assert together.version("trader") == alone.version("trader")

    process, _ = pool._followers[0]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"process 1 of training\.data_parallel = 2 died \(signal 9\): .*resume"):
        steps(together, make, pool)


@pytest.mark.slow
def test_a_process_that_fails_says_why(pool: DataParallelGradients) -> None:
    task = module._Task("nobody", SETTINGS, module._Part([]), None, 1.0)
    pool._followers[0][1].send_bytes(module._packed(task))
    with pytest.raises(RunFailed, match=r"process 1 of training\.data_parallel failed: KeyError: 'nobody'"):
        pool._answers()


def row(length: int) -> TrainingRow:
    """A conversation of so many tokens, the last one sampled."""
    mask = np.arange(length) == length - 1
    ids, logps = np.zeros(length, np.int32), np.zeros(length, np.float32)
    return TrainingRow(Trajectory("manager", "q", 0, 0, ids, mask, logps, "v", True, 1.0, None, False), 1.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(2, 50), min_size=1, max_size=5), max_size=12), st.integers(1, 5))
def test_every_batch_has_one_process_and_none_much_more_than_another(lengths: list[list[int]], size: int) -> None:
    batches = [[row(one) for one in batch] for batch in lengths]
    parts = balanced(batches, size)
    assert len(parts) == size
    assert sorted(id(one) for part in parts for one in part) == sorted(map(id, batches))
    loads = [sum(len(one) * max(row.length for row in one) for one in part) for part in parts]
    largest = max((len(one) * max(row.length for row in one) for one in batches), default=0)
    assert max(loads) - min(loads) <= largest


def test_what_is_sent_arrives_as_it_was() -> None:
    sent = module._Task("manager", changed(SETTINGS, kl=1.0), module._Part([]), 3.0, 0.5)
    assert module._unpacked(module._packed(sent), torch.device("cpu")) == sent
