"""The shape of a role's LoRA adapter."""

from __future__ import annotations

from dataclasses import dataclass

from peft import LoraConfig


@dataclass(frozen=True)
class LoraSettings:
    """Shape of the adapters: rank, scaling alpha / rank, and which linear layers carry one."""

    lora_rank: int
    lora_alpha: int
    lora_targets: tuple[str, ...]


def lora_config(lora: LoraSettings, base_name: str | None = None) -> LoraConfig:
    """The adapters' shape as peft has it; `base_name` is what an exported adapter calls its base."""
    return LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,
        target_modules=list(lora.lora_targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base_name,
    )
