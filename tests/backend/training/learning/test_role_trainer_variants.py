"""A role's update by each recipe: its gradient, and importance weights that are cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.recipes import RECIPES, DrGrpo
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import changed, trainer_settings

Make = Callable[..., Trajectory]
FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)
ADVANTAGES = [0.7, -1.2, 0.0, 0.4, 1.1, -0.6]  # the third call carries no gradient
WEIGHTS = [0.3, 0.2, 0.4, 0.1, 0.35, 0.15]


@pytest.fixture
def gradients() -> Iterator[list[Tensor]]:
    """The gradient that each optimizer step was given, as one row."""
    seen: list[Tensor] = []

    def note(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        parameters = optimizer.param_groups[0]["params"]
        seen.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]))

    hook = register_optimizer_step_pre_hook(note)
    yield seen
    hook.remove()


@pytest.fixture
def policies(tiny: Qwen3ForCausalLM) -> RolePolicies:
    """A policy away from its start: at B = 0 half of a LoRA's gradient is 0."""
    made = RolePolicies(tiny, ("manager",))
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.trainable("manager"):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return made


@pytest.fixture
def calls(policies: RolePolicies, make: Make) -> list[Trajectory]:
    """Six calls of different lengths, as if the present policy had sampled them."""
    batch = []
    for one in (make(i, prompt=3 + 2 * i, answer=1 + i) for i in range(6)):
        with torch.no_grad():
            logps = policies.logps("manager", *tensors(one))[0][0]
        batch.append(replace(one, sampled_logps=logps.numpy()))
    return batch


def tensors(one: Trajectory) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(one.ids).long()[None], torch.from_numpy(one.mask)[None]


def step(
    policies: RolePolicies, calls: list[Trajectory], advantages: list[float] = ADVANTAGES, **changes: Any
) -> dict[str, float]:
    trainer = RoleTrainer(copy.deepcopy(policies), "manager", changed(FREE, **changes))
    return trainer.step(calls, advantages, WEIGHTS)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def terms(policies: RolePolicies, calls: list[Trajectory], members: list[int]) -> Tensor:
    """sum_i w_i A_i d/dtheta sum_t log pi, the numerator of the means over tokens at ratio 1."""
    total = torch.zeros(())
    for i in members:
        logps = token_logps(policies.activate("manager"), *tensors(calls[i]))[0]
        total = total - WEIGHTS[i] * ADVANTAGES[i] * logps.sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, policies.trainable("manager"))])


@pytest.mark.parametrize("how", ["dapo", "dr_grpo"])
def test_the_means_over_tokens_count_calls_without_a_gradient(
    how: str, policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    step(policies, calls, recipe=how)
    tokens = [int(one.mask.sum()) for one in calls]
    counted = DrGrpo.length * sum(WEIGHTS) if how == "dr_grpo" else float(np.dot(WEIGHTS, tokens))
    close(gradients[0], terms(policies, calls, list(range(6))) / counted)


@pytest.mark.parametrize("how", sorted(RECIPES))
def test_accumulation_changes_nothing(
    how: str, policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    for tokens in (10_000, 40, 1):
        step(policies, calls, recipe=how, micro_batch_tokens=tokens, kl=0.3, entropy=0.2)
    close(gradients[1], gradients[0])
    close(gradients[2], gradients[0])


def test_at_ratio_one_cispo_is_the_policy_gradient(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    step(policies, calls, recipe="dapo")
    metrics = step(policies, calls, recipe="cispo")
    close(gradients[1], gradients[0])
    assert metrics["manager/clip_share"] == 0.0


def test_dapo_divides_each_update_by_its_share_of_all_tokens(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    """lr 0: both updates are taken at the same policy. The five calls with a gradient are dealt out."""
    counted = np.array(WEIGHTS) * np.array([int(one.mask.sum()) for one in calls])
    trainer = RoleTrainer(
        copy.deepcopy(policies), "manager", changed(FREE, recipe="dapo", minibatches=2, learning_rate=0.0)
    )
    dealt = [0, 1, 3, 4, 5]
    plan = trainer._plan(len(dealt))
    trainer.step(calls, ADVANTAGES, WEIGHTS)
    for part, gradient in zip(plan, gradients, strict=True):
        members = [dealt[i] for i in part.tolist()]
        close(gradient, terms(policies, calls, members) / float(counted.sum() / 2))


def test_importance_weights_are_cut_and_the_share_is_reported(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    shift = np.float32(-0.9)  # e^0.9 is above the cap of 2
    stale = [replace(one, sampled_logps=one.sampled_logps + shift * one.mask * (i < 3)) for i, one in enumerate(calls)]
    plain, cut = step(policies, calls), step(policies, stale)
    step(policies, calls, [a * 2.0 for a in ADVANTAGES[:3]] + ADVANTAGES[3:])
    close(gradients[1], gradients[2])  # the weight is the cap
    counted = [int(one.mask.sum()) for i, one in enumerate(calls) if ADVANTAGES[i] != 0.0]
    assert cut["manager/importance/cut_share"] == pytest.approx(sum(counted[:2]) / sum(counted))
    assert plain["manager/importance/cut_share"] == 0.0
