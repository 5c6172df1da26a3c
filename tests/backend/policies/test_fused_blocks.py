"""Fused blocks and log-probs are the library's, in value and in every gradient. What a compiler makes of them is tried
on a GPU (`tests/backend/models/test_on_gpu.py`); here the same functions are run as they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import FalconConfig, GPT2Config, LlamaConfig, MixtralConfig, OPTConfig, PreTrainedConfig, Qwen3Config

from backend.policies.hardware import Hardware
from backend.policies.role_policies import LoraSettings, PolicyMode, RolePolicies
from tests.backend.models.test_architectures import CONFIGS, batch, lively
from tests.random_models import random_model
from tests.small_world import disturb
from tests.standard_settings import lora_settings

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
    disturb(policies, "trader", size=0.1, seed=2)
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


NONE: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SIZES: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **NONE}
GATED: dict[str, Any] = {**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "attention_dropout": 0.5}
GPT: dict[str, Any] = {
    "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.5, "embd_pdrop": 0.5,
    "attn_pdrop": 0.5, **NONE,
}  # fmt: skip
DROPS: dict[str, Any] = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5, "layerdrop": 0.5}
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "opt": lambda: OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64, **DROPS),
    "gpt2": lambda: GPT2Config(**GPT),
    "falcon": lambda: FalconConfig(**SIZES, hidden_dropout=0.5, attention_dropout=0.5, alibi=False),
    "llama": lambda: LlamaConfig(**GATED),
    "qwen3": lambda: Qwen3Config(**GATED, head_dim=8),
    "mixtral": lambda: MixtralConfig(**GATED, num_local_experts=2, router_jitter_noise=0.5),
}  # fmt: skip


def dense_batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(2, 64, (3, 16), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(16).expand(3, -1) >= 8


def learnt(policies: RolePolicies) -> tuple[Tensor, list[Tensor]]:
    """Log-probs and the gradient of their sum."""
    logps, _ = policies.logps("manager", *dense_batch())
    logps.sum().backward()
    gradients = [one.grad.clone() for one in policies.trainable("manager") if one.grad is not None]
    for one in policies.trainable("manager"):
        one.grad = None
    return logps.detach(), gradients


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_dropped_with_checkpointing_or_without(family: str, mode: PolicyMode) -> None:
    model = random_model(1, FAMILIES[family]())
    plain, again = (
        RolePolicies(model, ["manager"], mode, lora_settings(lora_rank=2), hardware=Hardware(checkpointing=on))
        for on in (False, True)
    )
    for policies in (plain, again):
        disturb(policies, seed=2)
    expected, gradients = learnt(plain)
    for policies in (plain, again, again):
        logps, found = learnt(policies)
        assert torch.equal(logps, expected)
        assert len(found) == len(gradients) > 0
        torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-6)
    assert max(one.abs().max() for one in gradients) > 0.0
    with torch.no_grad():
        assert torch.equal(again.logps("manager", *dense_batch())[0], expected), "as the first pass of a step is scored"
