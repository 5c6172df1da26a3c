"""No dropout in any pass of a policy, whatever its architecture drops out by its configuration, and with gradient
checkpointing too: two passes are equal, and so are the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from backend.policies.hardware import Hardware
from backend.policies.role_policies import PolicyMode, RolePolicies
from tests.random_models import random_model
from tests.standard_settings import lora_settings

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


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(2, 64, (3, 16), generator=torch.Generator().manual_seed(0))
    return ids, torch.arange(16).expand(3, -1) >= 8


def learnt(policies: RolePolicies) -> tuple[Tensor, list[Tensor]]:
    """Log-probs and the gradient of their sum."""
    logps, _ = policies.logps("manager", *batch())
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
    with torch.no_grad():
        for one, other in zip(plain.trainable("manager"), again.trainable("manager"), strict=True):
            one.add_(0.02 * torch.randn(one.shape, generator=torch.Generator().manual_seed(2)))
            other.copy_(one)
    expected, gradients = learnt(plain)
    for policies in (plain, again, again):
        logps, found = learnt(policies)
        assert torch.equal(logps, expected)
        assert len(found) == len(gradients) > 0
        torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-6)
    assert max(one.abs().max() for one in gradients) > 0.0
    with torch.no_grad():
        assert torch.equal(again.logps("manager", *batch())[0], expected), "as the first pass of a step is scored"
