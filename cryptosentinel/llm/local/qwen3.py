"""The Qwen3 architecture for inference: packed float32 weights, prefill and one-token step over a preallocated cache.

Written for speed where batches are small and the model is tiny, exact up to float rounding. What makes it quick:

* q, k and v are one projection, gate and up another. The norms' weights in front of them are folded into them.
* The two halves of each q and k head are interleaved, so that RoPE is one complex multiplication. Attention does not
  mind: q and k are permuted alike. The softmax scale is folded into q's norm weight.
* Keys are kept transposed, so that a step's scores are a plain batched matrix product.
* The last layer of a prefill computes queries and MLP for the last token only.

Shapes: B rows, N new tokens, T cached tokens, H heads, G kv heads, D head dim, E hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Qwen3Config

from simulator.errors import UserError


@dataclass(frozen=True)
class KVCache:
    """Keys (L, B, G, D, T) and values (L, B, G, T, D)."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def zeros(cls, model: Qwen3Decoder, rows: int, length: int) -> KVCache:
        """An empty cache. Zeros, not uninitialised memory: a masked slot still is multiplied by its weight of 0."""
        shape = (model.layer_count, rows, model.kv_heads)
        return cls(
            torch.zeros(*shape, model.head_dim, length, device=model.device),
            torch.zeros(*shape, length, model.head_dim, device=model.device),
        )

    def row(self, row: int, start: int, stop: int) -> KVCache:
        """A view of one row's slots [start, stop), as a cache of one row."""
        return KVCache(
            self.keys[:, row : row + 1, :, :, start:stop],
            self.values[:, row : row + 1, :, start:stop],
        )

    def write(self, row: int, start: int, other: KVCache) -> None:
        """Copy a one-row cache into `row` from slot `start` on."""
        stop = start + other.values.shape[3]
        self.keys[:, row : row + 1, :, :, start:stop] = other.keys
        self.values[:, row : row + 1, :, start:stop] = other.values

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target`."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def clone(self) -> KVCache:
        """A contiguous copy."""
        return KVCache(self.keys.contiguous().clone(), self.values.contiguous().clone())

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class _Layer:
    """Packed weights of one layer, each laid out (in, out)."""

    qkv: torch.Tensor  # (E, (H + 2G) D), input norm folded in, q and k interleaved
    qk_norm: torch.Tensor  # (H + G, D), softmax scale folded into q's
    output: torch.Tensor  # (H D, E)
    gate_up: torch.Tensor  # (E, 2 I), post-attention norm folded in
    down: torch.Tensor  # (I, E)


class Qwen3Decoder:
    """Inference on one set of weights. Call inside `torch.inference_mode()`.

    `state` holds Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`, ...); values are copied to `device` as
    float32. What is equal in one of the `others`, decoders of the same configuration on the same device, is kept once
    for all of them: adapters leave embedding, norms and head as they are. Raises `UserError` for an unsupported
    configuration or a state that is not this model's.
    """

    def __init__(
        self,
        config: Qwen3Config,
        state: Mapping[str, torch.Tensor],
        device: torch.device,
        others: Sequence[Qwen3Decoder] = (),
    ) -> None:
        check_supported(config)
        self.device = device
        self.layer_count: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or config.num_attention_heads
        self.head_dim: int = config.head_dim
        self.max_positions: int = config.max_position_embeddings
        self.eps: float = config.rms_norm_eps
        self.hidden: int = config.hidden_size
        weights = _Weights(config, state, device)
        self.embedding: torch.Tensor = _kept_once(
            weights["model.embed_tokens.weight"], [other.embedding for other in others]
        )
        self.norm: torch.Tensor = _kept_once(weights["model.norm.weight"], [other.norm for other in others])
        self.head: torch.Tensor = (
            self.embedding.t()
            if config.tie_word_embeddings
            else _kept_once(weights["lm_head.weight"], [other.head.t() for other in others]).t()
        )
        self.layers: list[_Layer] = [
            self._pack(weights, f"model.layers.{index}.", [other.layers[index] for other in others])
            for index in range(self.layer_count)
        ]
        self.rotation: torch.Tensor = others[0].rotation if others else _rotation(config, device)
        self._eps = torch.full((1,), self.eps, device=device)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All weights. A tied head comes beside its embedding, whose memory it shares."""
        yield from (self.embedding, self.norm, self.head, self.rotation)
        for layer in self.layers:
            yield from (getattr(layer, field.name) for field in fields(layer))

    def prefill(self, ids: torch.Tensor, cache: KVCache, past: int) -> torch.Tensor:
        """Run tokens `ids` (B, N) at positions past..past+N of every row; returns the last token's logits (B, V).

        `cache` holds past + N slots, of which the first `past` are filled; the others are filled here.
        """
        rows, new = ids.shape
        hidden = self.embedding[ids].view(rows * new, self.hidden)
        rotation = self.rotation[past : past + new].repeat(rows, 1, 1)
        allowed = torch.ones(new, past + new, dtype=torch.bool, device=self.device).tril(past)
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, hidden, rotation)
            cache.keys[index, ..., past:] = key.view(rows, new, self.kv_heads, self.head_dim).permute(0, 2, 3, 1)
            cache.values[index, ..., past:, :] = value.view(rows, new, self.kv_heads, self.head_dim).transpose(1, 2)
            query = query.reshape(rows, new, self.heads, self.head_dim)
            if index == self.layer_count - 1:
                query, allowed = query[:, -1:], allowed[-1:]
                hidden = hidden.view(rows, new, self.hidden)[:, -1]
            attended = F.scaled_dot_product_attention(
                query.transpose(1, 2),
                cache.keys[index].transpose(2, 3).contiguous(),
                cache.values[index],
                attn_mask=allowed,
                scale=1.0,
                enable_gqa=True,
            )
            hidden = self._finish_layer(layer, hidden, attended.transpose(1, 2).reshape(hidden.shape[0], -1))
        return self._logits(hidden)

    def step(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: KVCache, slot: int, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Run one token a row, `ids` (B,) at `positions` (B,), and write it to `slot`; returns its logits (B, V).

        Uses the first B rows of `cache`. `mask` (>= B, G, 1, T) is added to the scores: 0 or -inf a slot; None: all
        slots count.
        """
        rows = ids.shape[0]
        groups = rows * self.kv_heads
        hidden = self.embedding[ids]
        rotation = self.rotation[positions]
        added = None if mask is None else mask[:rows].view(groups, 1, -1)[:, :, : slot + 1]
        # All views at once: made layer by layer, they would take as long as some of the computing.
        keys, values = cache.keys[:, :rows], cache.values[:, :rows]
        new_keys, new_values = keys[..., slot].unbind(), values[..., slot, :].unbind()
        all_keys, all_values = (
            keys.flatten(1, 2)[..., : slot + 1].unbind(),
            values.flatten(1, 2)[:, :, : slot + 1].unbind(),
        )
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, hidden, rotation)
            new_keys[index].copy_(key)
            new_values[index].copy_(value)
            query = query.reshape(groups, -1, self.head_dim)
            scores = (
                torch.bmm(query, all_keys[index]) if added is None else torch.baddbmm(added, query, all_keys[index])
            )
            attended = torch.bmm(torch.softmax(scores, dim=-1), all_values[index])
            hidden = self._finish_layer(layer, hidden, attended.view(rows, -1))
        return self._logits(hidden)

    def _project(
        self, layer: _Layer, hidden: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated q (X, H, D), rotated k (X, G, D) and v (X, G, D) of X tokens; rotation (X, 1, D / 2) complex."""
        tokens, rotated_heads = hidden.shape[0], self.heads + self.kv_heads
        qkv = torch.mm(self._normed(hidden), layer.qkv).view(tokens, rotated_heads + self.kv_heads, self.head_dim)
        normed = self._normed(qkv[:, :rotated_heads]) * layer.qk_norm
        pairs = torch.view_as_complex(normed.view(tokens, rotated_heads, self.head_dim // 2, 2)) * rotation
        rotated = torch.view_as_real(pairs).view(tokens, rotated_heads, self.head_dim)
        return rotated[:, : self.heads], rotated[:, self.heads :], qkv[:, rotated_heads:]

    def _finish_layer(self, layer: _Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, MLP and both residual connections."""
        hidden = torch.addmm(hidden, attended, layer.output)
        gate, up = torch.mm(self._normed(hidden), layer.gate_up).chunk(2, dim=-1)
        return torch.addmm(hidden, F.silu(gate) * up, layer.down)

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """RMS norm without weights: half the small operations of `F.rms_norm`, which casts back and forth."""
        squares = torch.sum(hidden * hidden, dim=-1, keepdim=True)
        return hidden * torch.add(self._eps, squares, alpha=1.0 / hidden.shape[-1]).rsqrt_()

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.mm(self._normed(hidden) * self.norm, self.head)

    def _pack(self, weights: _Weights, prefix: str, others: Sequence[_Layer]) -> _Layer:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        query, key = (weights[attention + name] for name in ("q_proj.weight", "k_proj.weight"))
        input_norm = weights[prefix + "input_layernorm.weight"]
        mlp_norm = weights[prefix + "post_attention_layernorm.weight"]
        projections = torch.cat(
            [self._interleaved(query), self._interleaved(key), weights[attention + "v_proj.weight"]]
        )
        query_norm = self._interleaved(weights[attention + "q_norm.weight"]) / math.sqrt(self.head_dim)
        key_norm = self._interleaved(weights[attention + "k_norm.weight"])
        gate_up = torch.cat([weights[mlp + "gate_proj.weight"], weights[mlp + "up_proj.weight"]])
        packed = {
            "qkv": (projections * input_norm).t(),
            "qk_norm": torch.cat([query_norm.expand(self.heads, -1), key_norm.expand(self.kv_heads, -1)]),
            "output": weights[attention + "o_proj.weight"].t(),
            "gate_up": (gate_up * mlp_norm).t(),
            "down": weights[mlp + "down_proj.weight"].t(),
        }
        return _Layer(
            **{name: _kept_once(weight, [getattr(other, name) for other in others]) for name, weight in packed.items()}
        )

    def _interleaved(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder each head's rows from (first half, second half) to pairs: RoPE rotates component i with i + D / 2."""
        halves = weight.view(-1, 2, self.head_dim // 2, *weight.shape[1:])
        return halves.transpose(1, 2).reshape(weight.shape)


def check_supported(config: Qwen3Config) -> None:
    """Raise `UserError` for a configuration that `Qwen3Decoder` does not compute."""
    unsupported = {
        "model_type": config.model_type != "qwen3",
        "hidden_act": config.hidden_act != "silu",
        "attention_bias": bool(config.attention_bias),
        "sliding_window": config.sliding_window is not None,
        "rope_parameters": _rope(config).get("rope_type", "default") != "default",
    }
    wrong = [f"{name} = {getattr(config, name)!r}" for name, bad in unsupported.items() if bad]
    if wrong:
        raise UserError(
            f"this engine computes plain Qwen3 only, not {', '.join(wrong)}: use a vLLM server for this model"
        )


def _rope(config: Qwen3Config) -> dict[str, Any]:
    return dict(config.rope_parameters or {})


def _rotation(config: Qwen3Config, device: torch.device) -> torch.Tensor:
    """e^(i * position * frequency), complex64 (positions, 1, D / 2)."""
    theta = float(_rope(config)["rope_theta"])
    frequencies = 1.0 / (theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim))
    angles = torch.arange(config.max_position_embeddings, dtype=torch.float32)[:, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(device)


class _Weights:
    """A state whose names and shapes have been checked; a weight is checked and cast when it is asked for, one at a
    time, so that a large model is not in memory twice."""

    def __init__(self, config: Qwen3Config, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        expected = _expected_shapes(config)
        given = {name for name in state if not (config.tie_word_embeddings and name == "lm_head.weight")}
        odd = [f"{name} is missing" for name in sorted(set(expected) - given)]
        odd += [f"{name} is unknown" for name in sorted(given - set(expected))]
        odd += [
            f"{name} is {tuple(state[name].shape)}, not {shape}"
            for name, shape in expected.items()
            if name in state and tuple(state[name].shape) != shape
        ]
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise UserError(
                f"these weights are not this model's: {'; '.join(odd[:3])}{more}. Give the checkpoint that fits"
            )
        self._state = state
        self._device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        """The weight as float32 on the device, without gradients. It may be the state's own memory."""
        weight = self._state[name].detach().to(self._device, torch.float32)
        if not torch.isfinite(weight).all():
            raise UserError(
                f"{name} holds values that are not finite: training has diverged; use an earlier checkpoint"
            )
        return weight


def _kept_once(weight: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """The first of `others` that equals `weight`, or else a contiguous copy of it: the caller goes on changing its
    tensors in place."""
    for other in others:
        if torch.equal(weight, other):
            return other
    return weight.clone(memory_format=torch.contiguous_format)


def _expected_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries = config.num_attention_heads * dim
    keys = (config.num_key_value_heads or config.num_attention_heads) * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_hidden_layers):
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes
