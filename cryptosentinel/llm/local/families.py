"""Which architectures the decoder of this project computes, and what it must know of one beside its weights.

The Llama family: a block normalizes (RMS), attends with rotated queries and keys, normalizes again and has a gated MLP.
What differs inside the family is read from the model that the library would build: biases, norms of queries and keys,
tied heads, widths and groups from its weights' names and shapes; positions from its own rotary embedding, so that every
scaling of it that does not depend on the length is exact; windows from the configuration. An architecture is added to
`FAMILY` when its forward pass in the library is this one; `tests/backend/models/test_architectures.py` holds each
to that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from cryptosentinel.llm.architecture import empty_model, parameter_shapes
from simulator.errors import UserError

# By the library's name for it (SmolLM and SmolLM2 are `llama`, Qwen2.5 is `qwen2`): which layers have a window.
Windows = Literal["none", "every", "by layer"]
FAMILY: dict[str, Windows] = {"llama": "none", "mistral": "every", "qwen2": "by layer", "qwen3": "by layer"}
_EVERY_LENGTH = ("default", "linear", "llama3", "yarn")  # scalings of positions that are the same at every length
_WEIGHTS = re.compile(
    r"model\.(embed_tokens|norm)\.weight|lm_head\.weight|model\.layers\.\d+\.("
    r"(input|post_attention)_layernorm\.weight|self_attn\.[qk]_norm\.weight|self_attn\.[qkvo]_proj\.(weight|bias)|"
    r"mlp\.(gate|up|down)_proj\.(weight|bias))"
)


@dataclass(frozen=True)
class Plan:
    """A configuration of the family in numbers.

    windows      of each layer: how many tokens back it sees, itself included; None: all
    frequencies  (D / 2,) of the rotation of each pair, and `stretch`, what it multiplies queries and keys by
    """

    shapes: dict[str, tuple[int, ...]]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    positions: int
    eps: float
    tied: bool
    activation: str
    windows: tuple[int | None, ...]
    frequencies: torch.Tensor
    stretch: float


def has_standard_blocks(config: PreTrainedConfig) -> bool:
    """Whether a model is of the family and its MLPs are gated by SiLU: blocks that the trainer can compute as one."""
    return why_not(config) is None and config.hidden_act == "silu"


def why_not(config: PreTrainedConfig) -> str | None:
    """Why this project's own decoder and prefix tree do not compute a model, in words; None where they do."""
    if config.model_type not in FAMILY:
        return f"they compute the Llama family ({', '.join(FAMILY)}), not {config.model_type}"
    rope = str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))
    if rope not in _EVERY_LENGTH:
        return f"positions that depend on the length (rope_type = {rope}) are not theirs"
    odd = sorted(set(_layer_types(config)) - {"full_attention", "sliding_attention"})
    if odd:
        return f"layers of {', '.join(odd)} are not theirs"
    unknown = [name for name in parameter_shapes(config) if not _WEIGHTS.fullmatch(name)]
    if unknown:
        return f"{unknown[0]} is not a weight of theirs"
    if config.hidden_act not in ACT2FN:
        return f"hidden_act = {config.hidden_act} is not known"
    rotary = _rotary(config)
    if 2 * len(rotary.inv_freq) != head_dim_of(config):
        return "positions that turn a part of each head are not theirs"
    return None


def family_plan(config: PreTrainedConfig) -> Plan:
    """What the decoder needs. Raises `UserError` for a configuration that it does not compute."""
    reason = why_not(config)
    if reason is not None:
        raise UserError(f"the project's decoder and prefix tree do not compute this model: {reason}")
    rotary: Any = _rotary(config)
    heads = config.num_attention_heads
    return Plan(
        shapes=parameter_shapes(config),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=head_dim_of(config),
        positions=config.max_position_embeddings,
        eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        activation=config.hidden_act,
        windows=windows_of(config),
        frequencies=rotary.inv_freq.float(),
        stretch=float(rotary.attention_scaling),
    )


def head_dim_of(config: PreTrainedConfig) -> int:
    """Width of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def windows_of(config: PreTrainedConfig) -> tuple[int | None, ...]:
    """How many tokens back each layer of a model of the family sees, itself included; None: all."""
    width = getattr(config, "sliding_window", None)
    return tuple(int(width) if width and one == "sliding_attention" else None for one in _layer_types(config))


def _layer_types(config: PreTrainedConfig) -> list[str]:
    """What each layer attends to, in the library's words."""
    kind = FAMILY[config.model_type]
    if kind == "by layer":
        return list(config.layer_types)
    return ["sliding_attention" if kind == "every" else "full_attention"] * int(config.num_hidden_layers)


def _rotary(config: PreTrainedConfig) -> Any:
    """The library's own rotary embedding of this configuration, with its numbers."""
    empty: Any = empty_model(config)
    return type(empty.model.rotary_emb)(config=config)
