"""The shape of each role's LoRA adapter, as the configuration has it."""

from __future__ import annotations

from backend.config.training import TrainingConfig
from backend.policies.lora import ALL_LINEAR, LoraSettings
from cryptosentinel.agents.registry import ROLES


def adapter_shape(training: TrainingConfig, role: str) -> LoraSettings:
    """Rank, alpha and layers of a role's adapter."""
    return LoraSettings(training.lora_rank, 2 * training.lora_rank, ALL_LINEAR)


def adapter_shapes(training: TrainingConfig) -> dict[str, LoraSettings]:
    """`adapter_shape` of every role."""
    return {role: adapter_shape(training, role) for role in ROLES}


def largest_rank(training: TrainingConfig) -> int:
    """What a server must have room for (vLLM's `--max-lora-rank`)."""
    return max(shape.lora_rank for shape in adapter_shapes(training).values())
