"""A block of the Llama family with its element-wise work fused: for GPUs, which otherwise wait for memory and launches.

The library's block issues some 450 operations forward and backward, most of which read and write all activations to
add or scale them. Here what stands before the attention and what follows it are a function each, of tensors alone, that
torch compiles: once for all blocks, all roles and any number of tokens. Weights, adapters and attention are the block's
own. N tokens, D head dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from backend.policies.linear_layers import BesideAdapter
from backend.policies.prefix_tree import attend
from cryptosentinel.llm.architecture import blocks_of
from cryptosentinel.llm.local.families import has_standard_blocks

# Weight (out, in), bias, A (r, in), B (out, r) and alpha / r; without an adapter there is no A and no B.
Layer = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, float]


def fuse(model: PreTrainedModel) -> None:
    """Let the blocks of a model compute so, in place; one without standard blocks stays as it is."""
    if has_standard_blocks(model.config):
        for block in blocks_of(model, model.config)[1]:
            block.forward = partial(_forward, block)


def of_any_length(tensor: Tensor) -> Tensor:
    """The tensor, whose first dimension the compiler takes for one that changes."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return tensor


def _forward(
    block: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    position_embeddings: tuple[Tensor, Tensor],
    tree: Any = None,
    **named: Any,
) -> Tensor:
    """As the block's: hidden states (B, T, H), rotations of the positions (B or 1, T, D) each."""
    attention, mlp, shape = block.self_attn, block.mlp, hidden_states.shape[:2]
    hidden = of_any_length(hidden_states.flatten(0, 1))
    cos, sin = (of_any_length(one.expand(*shape, -1).flatten(0, 1)) for one in position_embeddings)
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else None
    heads = _before_attention(
        hidden,
        cos,
        sin,
        block.input_layernorm.weight,
        _layer(attention.q_proj),
        _layer(attention.k_proj),
        _layer(attention.v_proj),
        norms,
        block.input_layernorm.variance_epsilon,
    )
    query, key, value = (one.unflatten(0, shape).transpose(1, 2) for one in heads)
    # Of one layer, or as Mistral has it, of all.
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    attended, _ = attend(
        attention, query, key, value, attention_mask, scaling=attention.scaling, tree=tree, sliding_window=window
    )
    out: Tensor = _after_attention(
        of_any_length(attended.flatten(0, 1).flatten(1)),
        hidden,
        block.post_attention_layernorm.weight,
        _layer(attention.o_proj),
        _layer(mlp.gate_proj),
        _layer(mlp.up_proj),
        _layer(mlp.down_proj),
        block.post_attention_layernorm.variance_epsilon,
    )
    return out.unflatten(0, shape)


def _layer(module: nn.Module) -> Layer:
    """A linear layer with its active adapter, of which there is at most one."""
    held: Any = module
    if not isinstance(module, LoraLayer):
        return held.weight, held.bias, None, None, 1.0
    base = held.base_layer
    adapter = None if held.disable_adapters else held.active_adapters[0]
    if adapter not in held.lora_A:
        return base.weight, base.bias, None, None, 1.0
    return base.weight, base.bias, held.lora_A[adapter].weight, held.lora_B[adapter].weight, held.scaling[adapter]


@torch.compile
def _before_attention(
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    query: Layer,
    key: Layer,
    value: Layer,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries, rotated keys and values, (N, heads, D) each, of hidden states (N, H) and rotations (N, D)."""
    parts = _products(_normed(hidden, norm, eps), query, key, value)
    queries, keys, values = (one.unflatten(-1, (-1, cos.shape[-1])) for one in parts)
    if norms is not None:
        queries, keys = _normed(queries, norms[0], eps), _normed(keys, norms[1], eps)
    return _rotated(queries, cos, sin), _rotated(keys, cos, sin), values.contiguous()


@torch.compile
def _after_attention(
    attended: Tensor, hidden: Tensor, norm: Tensor, out: Layer, gate: Layer, up: Layer, down: Layer, eps: float
) -> Tensor:
    """Hidden states (N, H) after the block, of what was attended to (N, heads x D) and those before it."""
    hidden = hidden + _products(attended, out)[0]
    gates, values = _products(_normed(hidden, norm, eps), gate, up)
    return hidden + _products(functional.silu(gates) * values, down)[0]


def _products(x: Tensor, *layers: Layer) -> tuple[Tensor, ...]:
    """W x + b + (alpha / r) B A x of several layers, (N, out) each, in the numbers of x, by one product."""
    weight = torch.cat([one[0].to(x.dtype) for one in layers])
    downs = [down.to(x.dtype) for _, _, down, _, _ in layers if down is not None]
    if downs:
        ups = [one[0].new_zeros(len(one[0]), 0) if one[3] is None else one[4] * one[3] for one in layers]
        result = BesideAdapter.apply(x, weight, torch.cat(downs), torch.block_diag(*ups).to(x.dtype))
    else:
        result = functional.linear(x, weight)
    if any(one[1] is not None for one in layers):
        biases = [one[0].new_zeros(len(one[0])) if one[1] is None else one[1] for one in layers]
        result = result + torch.cat(biases).to(result.dtype)
    return result.split([len(one[0]) for one in layers], -1)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight.to(x.dtype) * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]
