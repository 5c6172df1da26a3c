"""The variants of a role's update: each aggregation's gradient, masked conversations, masked importance weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.objective import Aggregation
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import trainer_settings

Make = Callable[..., Trajectory]
FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
LENGTH = 7
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
    trainer = RoleTrainer(copy.deepcopy(policies), "manager", replace(FREE, **changes))
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


@pytest.mark.parametrize("how", ["dapo", "bnpo", "dr_grpo"])
def test_the_means_over_tokens_count_calls_without_a_gradient(
    how: Aggregation, policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    step(policies, calls, aggregation=how, constant_length=LENGTH if how == "dr_grpo" else 0)
    tokens = [int(one.mask.sum()) for one in calls]
    counted = LENGTH * sum(WEIGHTS) if how == "dr_grpo" else float(np.dot(WEIGHTS, tokens))
    close(gradients[0], terms(policies, calls, list(range(6))) / counted)


@pytest.mark.parametrize("loss", ["clip", "cispo"])
@pytest.mark.parametrize("how", AGGREGATIONS)
def test_accumulation_changes_nothing(
    how: Aggregation, loss: str, policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    for tokens in (10_000, 40, 1):
        terms: dict[str, Any] = {"kl": 0.3, "entropy": 0.2, "constant_length": LENGTH, "policy_loss": loss}
        step(policies, calls, aggregation=how, micro_batch_tokens=tokens, **terms)
    close(gradients[1], gradients[0])
    close(gradients[2], gradients[0])


def test_at_ratio_one_cispo_is_the_policy_gradient(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    step(policies, calls, aggregation="dapo")
    metrics = step(policies, calls, aggregation="dapo", policy_loss="cispo")
    close(gradients[1], gradients[0])
    assert metrics["manager/clip_share"] == 0.0


def test_bnpo_divides_each_update_by_its_own_tokens_and_dapo_by_a_share_of_all(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    """lr 0: both updates are taken at the same policy. All six calls are dealt out for bnpo, the five with a gradient
    for dapo."""
    tokens = np.array([int(one.mask.sum()) for one in calls])
    counted = np.array(WEIGHTS) * tokens
    for how in ("bnpo", "dapo"):
        gradients.clear()
        settings = replace(FREE, aggregation=how, minibatches=2, learning_rate=0.0)
        trainer = RoleTrainer(copy.deepcopy(policies), "manager", settings)
        dealt = list(range(6)) if how == "bnpo" else [0, 1, 3, 4, 5]
        plan = trainer._plan(len(dealt))
        trainer.step(calls, ADVANTAGES, WEIGHTS)
        for part, gradient in zip(plan, gradients, strict=True):
            members = [dealt[i] for i in part.tolist()]
            below = counted[members].sum() if how == "bnpo" else counted.sum() / 2
            close(gradient, terms(policies, calls, members) / float(below))


@pytest.mark.parametrize("how", ["grpo", "dapo"])
def test_a_masked_conversation_teaches_nothing_and_counts_as_a_call_without_tokens(
    how: Aggregation, policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    cut_off = [replace(one, truncated=i == 4) for i, one in enumerate(calls)]
    metrics = step(policies, cut_off, aggregation=how, mask_truncated=True, kl=1e-12)
    assert (metrics["manager/masked"], metrics["manager/trained"]) == (1.0, 5.0)
    step(policies, calls, [a * (i != 4) for i, a in enumerate(ADVANTAGES)], aggregation=how)
    # As a call of advantage 0, but for its tokens, which the mean over tokens no longer counts.
    tokens = np.array([int(one.mask.sum()) for one in calls]) * np.array(WEIGHTS)
    close(gradients[0], gradients[1] * (1.0 if how == "grpo" else float(tokens.sum() / (tokens.sum() - tokens[4]))))
    assert "manager/masked" not in step(policies, cut_off)


def test_importance_weights_are_cut_or_masked_and_the_share_is_told(
    policies: RolePolicies, calls: list[Trajectory], gradients: list[Tensor]
) -> None:
    shift = np.float32(-0.9)  # e^0.9 is above the cap of 2
    stale = [replace(one, sampled_logps=one.sampled_logps + shift * one.mask * (i < 3)) for i, one in enumerate(calls)]
    plain = step(policies, calls)
    shares = {}
    for kind in ("truncate", "mask", "none"):
        shares[kind] = step(policies, stale, importance=kind)["manager/importance/cut_share"]
    for factor in (2.0, 0.0):
        step(policies, calls, [a * factor for a in ADVANTAGES[:3]] + ADVANTAGES[3:])
    close(gradients[1], gradients[4])  # the weight is the cap
    close(gradients[2], gradients[5])  # the weight is 0
    close(gradients[3], gradients[0])
    counted = [int(one.mask.sum()) for i, one in enumerate(calls) if ADVANTAGES[i] != 0.0]
    assert shares["truncate"] == shares["mask"] == pytest.approx(sum(counted[:2]) / sum(counted))
    assert shares["none"] == plain["manager/importance/cut_share"] == 0.0
