"""Fresh models of any architecture."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from cryptosentinel.llm.architecture import causal_class


def random_model(seed: int, config: PreTrainedConfig) -> PreTrainedModel:
    """A freshly initialized float32 model; the same seed gives the same weights and leaves torch's generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built: Any = causal_class(config)
        model: PreTrainedModel = built(config).float().eval()
        return model
