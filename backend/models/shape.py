"""The architecture of a model in numbers: what the estimates of memory, of operations and of adapters count with.

Read from the model as the library builds it without memory, so it is that of any architecture; no formula of one.
`architecture_of` gives the one that a configuration trains, also before its model was pulled: for the models that
presets name, as their published config.json describe them (Qwen3: arXiv 2505.09388, table 1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig, Qwen3Config

from backend.config.schema import NanoConfig
from backend.config.training import TrainingConfig
from backend.models.manifest import read_manifest, team_folder
from backend.models.registry import base_of_team, hub_folder, is_hub_name
from cryptosentinel.llm.architecture import (
    blocks_of,
    empty_model,
    linear_layers,
    linear_names,
    positions_of,
    sizes_of,
    text_config,
    vocabulary_of,
)
from cryptosentinel.llm.local.families import has_standard_blocks
from cryptosentinel.llm.model_files import CONFIG, read_config
from cryptosentinel.llm.nano import NANO_VOCABULARY, nano_config
from simulator.errors import UserError

_HEAD_NORM = re.compile(r"\.(q|query)_(layer)?norm$")
# hidden, intermediate, layers, heads, key heads, and whether embedding and output layer are one.
_QWEN3 = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, True),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, True),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, False),
}
KNOWN = tuple(_QWEN3)


@dataclass(frozen=True)
class Linear:
    """A linear layer of a block, by its name there. `share` is in how many of the blocks it is, 1 for all of them;
    `adapted` whether an adapter may be on it."""

    name: str
    inputs: int
    outputs: int
    share: float = 1.0
    adapted: bool = True

    @property
    def numbers(self) -> float:
        """Numbers of its matrix, on average a block."""
        return self.inputs * self.outputs * self.share


@dataclass(frozen=True)
class Shape:
    """An architecture in numbers.

    tied            whether embedding and output layer are one matrix
    linears         the linear layers of a block; of blocks that differ, those of all kinds
    block           numbers in a block: the average where blocks differ
    outside         numbers outside of blocks, embedding and output layer: the last norm, say
    head_norms      whether queries and keys have norms
    standard        whether the blocks are ones that `policies.fused_blocks` computes
    """

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    positions: int
    linears: tuple[Linear, ...]
    block: float
    outside: int
    head_norms: bool
    standard: bool

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Shape:
        """That of a configuration. Raises `UserError` for a model that cannot be built, or has no blocks."""
        model, text = empty_model(config), text_config(config)
        prefix, blocks = blocks_of(model, config)
        layers, adapted = len(blocks), linear_names(config)
        found: dict[tuple[str, int, int], int] = {}
        for name, (inputs, outputs) in linear_layers(model, config).items():
            inside = name.removeprefix(f"{prefix}.").partition(".")[2]
            found[inside, inputs, outputs] = found.get((inside, inputs, outputs), 0) + 1
        linears = tuple(
            Linear(*key, share=count / layers, adapted=key[0].rpartition(".")[2] in adapted)
            for key, count in found.items()
        )
        whole = sum(one.numel() for one in model.parameters())
        in_blocks = sum(one.numel() for one in blocks.parameters())
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        tied = head is None or head.weight is embedding.weight
        table = vocabulary_of(config) * int(text.hidden_size)
        heads = max(sizes_of(config, "num_attention_heads"), default=0) or 1
        return cls(
            vocabulary=vocabulary_of(config),
            hidden=int(text.hidden_size),
            intermediate=max(sizes_of(config, "intermediate_size"), default=0)
            or max((one.outputs for one in linears), default=0),
            layers=layers,
            heads=heads,
            kv_heads=max(sizes_of(config, "num_key_value_heads"), default=0) or heads,
            head_dim=max(sizes_of(config, "head_dim"), default=0) or text.hidden_size // heads,
            tied=tied,
            positions=positions_of(config),
            linears=linears,
            block=in_blocks / layers,
            outside=whole - in_blocks - table * (1 if tied else 2),
            head_norms=any(_HEAD_NORM.search(name) for name, _ in blocks.named_modules()),
            standard=has_standard_blocks(config),
        )

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, which is that of the values."""
        return self.kv_heads * self.head_dim

    @property
    def linear_numbers(self) -> int:
        """Numbers in the linear layers of all blocks."""
        return round(self.layers * sum(one.numbers for one in self.linears))

    @property
    def embedding(self) -> int:
        """Numbers in the embedding."""
        return self.vocabulary * self.hidden

    @property
    def body(self) -> int:
        """Numbers in all blocks and in what is outside of them and of both ends."""
        return round(self.layers * self.block) + self.outside

    @property
    def parameters(self) -> int:
        """Numbers in the whole model."""
        return self.body + self.embedding * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Numbers in a LoRA adapter of `rank` on all linear layers: rank (in + out) each."""
        widths = sum((one.inputs + one.outputs) * one.share for one in self.linears if one.adapted)
        return round(self.layers * rank * widths)


def qwen3_config(name: str, layers: int | None = None) -> Qwen3Config:
    """The configuration of a known model by its name, with only its first `layers` blocks where that is given. Raises
    `UserError` for another name."""
    if name not in _QWEN3:
        raise UserError(f"the architecture of '{name}' is not known here: there are {', '.join(KNOWN)}")
    hidden, intermediate, blocks, heads, kv_heads, tied = _QWEN3[name]
    return Qwen3Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=blocks if layers is None else layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
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
    if name.name in KNOWN:
        return qwen3_config(name.name)
    raise UserError(
        f"training.base_model = {training.base_model} holds no {CONFIG}, and its name is none of {', '.join(KNOWN)}: "
        "give the folder of a model"
    )
