"""The shape of the roles' LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from peft import LoraConfig
from transformers import PreTrainedConfig

from backend.config.training import TrainingConfig
from cryptosentinel.llm.architecture import beside_blocks, linear_names
from simulator.errors import UserError

ALL_LINEAR = ("all-linear",)  # the word of peft


@dataclass(frozen=True)
class LoraSettings:
    """Shape of the adapters: rank, scaling alpha / rank, and which linear layers carry one."""

    lora_rank: int
    lora_alpha: int
    lora_targets: tuple[str, ...]


def adapted_layers(config: PreTrainedConfig) -> tuple[str, ...]:
    """The linear layers of a block that an adapter can be on. Raises `UserError` where there is none."""
    known = linear_names(config)
    if not known:
        raise UserError(
            f"no layer in the blocks of {config.model_type} is one that an adapter can be on: use another model, or "
            "training.lora_rank = 0"
        )
    return known


def on_model(lora: LoraSettings, config: PreTrainedConfig) -> LoraSettings:
    """The shape with the names of this architecture's linear layers where it says all of them. Raises `UserError` for
    a name that no linear layer of its blocks has."""
    known = adapted_layers(config)
    if lora.lora_targets == ALL_LINEAR:
        return replace(lora, lora_targets=known)
    odd = [name for name in lora.lora_targets if name not in known]
    if odd:
        raise UserError(
            f"the adapter's target '{odd[0]}' is not a linear layer of a block of {config.model_type}; there are "
            f"{', '.join(known)}, or {ALL_LINEAR[0]} for all of them"
        )
    return lora


def lora_config(lora: LoraSettings, config: PreTrainedConfig, base_name: str | None = None) -> LoraConfig:
    """The shape of adapters on a model of this configuration, as peft has it; `base_name` is what an exported adapter
    calls its base."""
    return LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        target_modules=list(lora.lora_targets),
        exclude_modules=beside_blocks(config),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
    )


def adapter_shape(training: TrainingConfig) -> LoraSettings:
    """The shape of the roles' adapters, as the configuration has it."""
    return LoraSettings(training.lora_rank, 2 * training.lora_rank, ALL_LINEAR)
