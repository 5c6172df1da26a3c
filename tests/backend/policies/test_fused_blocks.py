"""Fused blocks and log-probs are the library's, in value and in every gradient. What a compiler makes of them is tried
on a GPU (`tests/backend/models/test_on_gpu.py`); here the same functions are run as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config

from backend.policies.hardware import Hardware
from backend.policies.role_policies import LoraSettings, PolicyMode, RolePolicies
from tests.backend.models.test_architectures import CONFIGS, batch, lively
from tests.random_models import random_model

FAMILY = ("llama", "mistral", "qwen2", "qwen3")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN, SHORT = Hardware(), Hardware(precision="bfloat16")


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


def learned(
    kind: str, hardware: Hardware, mode: PolicyMode, targets: tuple[str, ...] = ALL, rows: slice = slice(None)
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, entropies, their gradient and the reference's log-probs, of a policy away from its start."""
    shape = LoraSettings(3, 6, targets)
    policies = RolePolicies(lively(CONFIGS[kind]()), ["manager", "trader"], mode, shape, hardware=hardware)
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policies.trainable("trader"):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    ids, mask = (one[rows] for one in batch())
    reference = policies.reference_logps("trader", ids, mask, 0.7)
    logps, entropy = policies.logps("trader", ids, mask, 0.7, entropy_gradient=True)
    (torch.linspace(-1.0, 1.0, logps.numel()).view(logps.shape) * logps + entropy).sum().backward()
    gradient = torch.cat([one.grad.flatten() for one in policies.trainable("trader") if one.grad is not None])
    assert all(one.grad is None for one in policies.trainable("manager"))
    return logps.detach(), entropy.detach(), gradient, reference


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("kind", FAMILY)
def test_values_and_gradients_are_the_library_s(kind: str, mode: PolicyMode, checkpointing: bool) -> None:
    expected = learned(kind, PLAIN, mode)
    found = learned(kind, replace(PLAIN, compiled=True, checkpointing=checkpointing), mode)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("targets", [("v_proj",), ("k_proj", "o_proj", "up_proj"), ("down_proj", "q_proj")])
@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)])  # with beginnings in common, and one conversation
def test_some_layers_alone_may_have_an_adapter(targets: tuple[str, ...], rows: slice) -> None:
    expected = learned("qwen2", PLAIN, "lora", targets, rows)
    for ours, theirs in zip(
        learned("qwen2", replace(PLAIN, compiled=True), "lora", targets, rows), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", FAMILY)
def test_short_numbers_are_as_near(kind: str) -> None:
    exact, theirs = (learned(kind, one, "lora")[2] for one in (PLAIN, SHORT))
    ours = learned(kind, replace(SHORT, compiled=True), "lora")[2]
    assert not torch.equal(ours, theirs)
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()


def test_another_architecture_keeps_its_blocks() -> None:
    model: Any = random_model(0, GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=32, vocab_size=40))
    policies = RolePolicies(model, ["manager"], "full", hardware=replace(PLAIN, compiled=True))
    trained: Any = policies.activate("manager")
    assert not any("forward" in vars(block) for block in trained.transformer.h)
