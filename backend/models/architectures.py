"""Which architecture a configuration trains; and that of the models that presets name, as their published config.json
describe them, so that estimates need no folder.

What the dense Qwen3 models share: head dimension 128, vocabulary 151936, RoPE theta 1e6, 40960 positions, SwiGLU, RMS
norm with epsilon 1e-6, norms of queries and keys, no biases (arXiv 2505.09388, table 1, and the models' own files).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from backend.config.schema import NanoConfig
from backend.config.training import TrainingConfig
from backend.models.manifest import read_manifest, team_folder
from backend.models.registry import base_of_team, hub_folder, is_hub_name
from cryptosentinel.llm.model_files import CONFIG, read_config
from cryptosentinel.llm.nano import NANO_VOCABULARY, nano_config
from simulator.errors import UserError

HEAD_DIM = 128
VOCABULARY = 151_936
ROPE_THETA = 1_000_000.0
POSITIONS = 40_960


@dataclass(frozen=True)
class _Size:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool


_SIZES = {
    "Qwen3-0.6B": _Size(1024, 3072, 28, 16, 8, True),
    "Qwen3-1.7B": _Size(2048, 6144, 28, 16, 8, True),
    "Qwen3-4B": _Size(2560, 9728, 36, 32, 8, True),
    "Qwen3-8B": _Size(4096, 12288, 36, 32, 8, False),
}
_SMOLLM2 = {
    "SmolLM2-135M-Instruct": _Size(576, 1536, 30, 9, 3, True),
    "SmolLM2-360M-Instruct": _Size(960, 2560, 32, 15, 5, True),
}
KNOWN = tuple(_SIZES)
KNOWN_SMALL = tuple(_SMOLLM2)


def qwen3_config(name: str, layers: int | None = None) -> Qwen3Config:
    """The configuration of a known model by its name, with only its first `layers` blocks where that is given. Raises
    `UserError` for another name."""
    size = _SIZES.get(name)
    if size is None:
        raise UserError(f"the architecture of '{name}' is not known here: there are {', '.join(KNOWN)}")
    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers if layers is None else layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=size.tied,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
    )


def smollm2_config(name: str) -> LlamaConfig:
    """The configuration of one of the small SmolLM2, of the Llama architecture (arXiv 2502.02737 and the models' own
    files). Raises `KeyError` for another name."""
    size = _SMOLLM2[name]
    return LlamaConfig(
        vocab_size=49_152,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=size.tied,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )


def architecture_of(training: TrainingConfig, nano: NanoConfig) -> PreTrainedConfig:
    """The architecture that a configuration trains: that of the team it starts from, of the folder or of the pulled
    model where it is there, or else known by its name; nano where no base is named. Raises `UserError` for a base that
    is none of them."""
    if training.start_from:
        team = team_folder(training.start_from)
        return read_config(base_of_team(team, read_manifest(team), training.base_model))
    if not training.base_model:
        return nano_config(NANO_VOCABULARY, hidden_size=nano.hidden_size, layers=nano.layers)
    name = Path(training.base_model)
    folders = [name, hub_folder(training.base_model)] if is_hub_name(training.base_model) else [name]
    for folder in folders:
        if (folder / CONFIG).is_file():
            return read_config(folder)
    if name.name in _SIZES:
        return qwen3_config(name.name)
    if name.name in _SMOLLM2:
        return smollm2_config(name.name)
    raise UserError(
        f"training.base_model = {training.base_model} holds no {CONFIG}, and its name is none of "
        f"{', '.join(KNOWN + KNOWN_SMALL)}: give the folder of a model"
    )
