"""What can be known of any causal language model by its configuration, without memory for its weights.

The library builds the model on torch's `meta` device, which keeps shapes and no numbers; everything here is read from
that: the names and shapes of the weights, the blocks, the linear layers in them. No architecture is named.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING
from transformers.pytorch_utils import Conv1D

from simulator.errors import UserError

UNBOUNDED = 2**20  # positions of a model that has no limit of its own
_LINEARS = (nn.Linear, Conv1D)
# Of a state-space layer, whose kernels read these weights themselves, past any adapter.
_READ_BY_KERNELS = ("dt_proj", "out_proj")
# As experts' matrices were called while each was a layer of its own: peft takes these names for the experts even where
# a layer beside them is called so, and its adapters of experts are no pair of matrices a layer.
_EXPERTS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def causal_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The library's class that answers token after token for this configuration. Raises `UserError` for an
    architecture that does not."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise UserError(
            f"{kind} has an encoder and a decoder, and conversations are continued by a decoder alone: give a causal "
            "language model, such as Llama, Mistral, Qwen or Gemma"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(
            f"{kind} is not a causal language model (AutoModelForCausalLM has no class for it): give one, "
            "such as Llama, Mistral, Qwen or Gemma"
        )
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    built: type[PreTrainedModel] = found
    return built


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a configuration that is about text; of most models it is the whole."""
    part: PreTrainedConfig = config.get_text_config(decoder=True)
    return part


def positions_of(config: PreTrainedConfig) -> int:
    """Tokens of the longest conversation that the model takes."""
    text = text_config(config)
    for name in ("max_position_embeddings", "seq_length", "max_seq_len"):
        if isinstance(getattr(text, name, None), int):
            return int(getattr(text, name))
    return UNBOUNDED


def sizes_of(config: PreTrainedConfig, name: str) -> tuple[int, ...]:
    """A size that the configuration states: one number, that of each block where they differ (as the heads' width of
    Gemma 4), or nothing."""
    text = text_config(config)
    differ = getattr(text, "is_heterogeneous", False) and name in (text.per_layer_attributes or ())
    stated = [getattr(part, name, None) for part in (text.per_layer_config if differ else (text,))]
    return tuple(int(one) for one in stated if one is not None)


def vocabulary_of(config: PreTrainedConfig) -> int:
    """Rows of the embedding."""
    return int(text_config(config).vocab_size)


def empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The model without its weights. Raises `UserError` for an architecture that cannot be built."""
    return _empty(_Key(config))


def parameter_shapes(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights, in the order of the names; tied ones under all of their names."""
    state = empty_model(config).state_dict()
    return {name: tuple(state[name].shape) for name in sorted(state)}


def tied_names(config: PreTrainedConfig) -> dict[str, str]:
    """Weights that are other weights: by name, the one that they are."""
    model: Any = empty_model(config)
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[name] = first[id(parameter)]
        first.setdefault(id(parameter), name)
    return tied


def blocks_of(model: nn.Module, config: PreTrainedConfig) -> tuple[str, nn.ModuleList]:
    """Name and list of the blocks that a model repeats. Raises `UserError` where there is no such list."""
    layers = text_config(config).num_hidden_layers
    # Of several lists as long, the one with the most in it: a text model beside a tower for pictures.
    found = [
        (sum(one.numel() for one in part.parameters()), name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == layers and ".lora_" not in name
    ]
    if not found:
        raise UserError(f"{config.model_type} has no list of its {layers} blocks, so it cannot be trained here")
    _, name, blocks = max(found, key=lambda one: one[0])
    return name, blocks


def linear_layers(model: nn.Module, config: PreTrainedConfig) -> dict[str, tuple[int, int]]:
    """(in, out) of every linear layer in the blocks, by its name in the model, in the model's order."""
    prefix, blocks = blocks_of(model, config)
    return {
        f"{prefix}.{name}": _sizes(module) for name, module in blocks.named_modules() if isinstance(module, _LINEARS)
    }


def linear_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """What the linear layers of a block are called, each name once: those that an adapter may have.

    Left out is what an adapter would not reach: layers that compute in their own way (routers that answer with
    choices), weights that a state-space layer's kernels read themselves, and the names of experts where the library
    keeps all of these in one tensor.
    """
    model = empty_model(config)
    layers = linear_layers(model, config)
    left_out = {name.rpartition(".")[2] for name in layers if not _is_plain(model, name)}
    if any(parameter.dim() == 3 for parameter in blocks_of(model, config)[1].parameters()):
        left_out.update(_EXPERTS)
    return tuple(name for name in dict.fromkeys(name.rpartition(".")[2] for name in layers) if name not in left_out)


def beside_blocks(config: PreTrainedConfig) -> str | None:
    """A regular expression for what is outside of the blocks, where linear layers there are called like some in them,
    as in a tower for pictures; else None."""
    model = empty_model(config)
    prefix, _ = blocks_of(model, config)
    names = {name.rpartition(".")[2] for name in linear_layers(model, config)}
    outside = (
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, _LINEARS) and not name.startswith(f"{prefix}.")
    )
    return rf"(?!{re.escape(prefix)}\.).*" if any(name in names for name in outside) else None


def _is_plain(model: nn.Module, name: str) -> bool:
    """Whether a linear layer's product is what the model computes with it."""
    parent, _, child = name.rpartition(".")
    layer, mixer = model.get_submodule(name), model.get_submodule(parent)
    kind: Any = type(layer)
    state_space = hasattr(mixer, "A_log") and hasattr(mixer, "D")
    return _is_a_product(kind) and not (state_space and child in _READ_BY_KERNELS)


@lru_cache
def _is_a_product(kind: Any) -> bool:
    """Whether layers of this class compute x W' + b: by torch's own code, or (Falcon) by code that comes to the same,
    which a small one of them shows."""
    if kind.forward in (nn.Linear.forward, Conv1D.forward):
        return True
    try:
        with torch.random.fork_rng(devices=[]):
            layer: Any = kind(3, 2)
        x = torch.ones(1, 3)
        same = torch.allclose(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    except (TypeError, ValueError, RuntimeError, AttributeError):  # a router, say: it takes or answers something else
        return False
    return same


def describe_architecture(config: PreTrainedConfig) -> str:
    """In words: `Qwen3, 28 x 1024`."""
    text = text_config(config)
    name = causal_class(config).__name__.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
    return f"{name.removesuffix('ForConditionalGeneration')}, {text.num_hidden_layers} x {text.hidden_size}"


def _sizes(module: nn.Module) -> tuple[int, int]:
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    weight: Any = module.weight  # of Conv1D, which holds its matrix the other way round
    return int(weight.shape[0]), int(weight.shape[1])


class _Key:
    """A configuration, equal to another one that says the same."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.config = config
        self._text = config.to_json_string(use_diff=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._text == other._text and type(self.config) is type(other.config)

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=8)
def _empty(key: _Key) -> PreTrainedModel:
    built: Any = causal_class(key.config)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = built(copy.deepcopy(key.config)).eval()
    except (ValueError, TypeError, KeyError, RuntimeError, ArithmeticError, AttributeError, IndexError) as error:
        first = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise UserError(f"it describes a model that cannot be built ({first})") from error
    return model


def same_shapes(given: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What is wrong with names and shapes, in words; nothing where they agree."""
    odd = [f"{name} is missing" for name in wanted if name not in given]
    odd += [f"{name} is unknown" for name in sorted(given) if name not in wanted]
    odd += [
        f"{name} is {given[name]}, not {shape}" for name, shape in wanted.items() if given.get(name, shape) != shape
    ]
    return odd
