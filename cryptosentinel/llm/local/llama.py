"""The Llama family for inference: packed weights, prefill and one-token step over a preallocated cache. `families.py`
says which architectures these are and what differs between them.

Written for speed where batches are small and the model is tiny, exact up to float rounding. What makes it quick:

* q, k and v are one projection, gate and up another. The norms' weights in front of them are folded into them.
* The two halves of each q and k head are interleaved, so that RoPE is one complex multiplication. Attention does not
  mind: q and k are permuted alike. The softmax scale is folded into q's norm, or where q has none, into its projection.
* Keys are kept transposed, so that a step's scores are a plain batched matrix product.
* A layer with a window reads only the slots in it: rows are right-aligned, so these are the same for all of them.
* On a CPU large matrices are packed for its kernels (`matrices.py`).
* What several rows begin with is read once for all of them (`shared_prefix.py`).
* The last layer of a prefill computes queries and MLP for the last token only.

Shapes: B rows, N new tokens, T cached tokens, H heads, G kv heads, D head dim, E hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from cryptosentinel.llm.architecture import same_shapes
from cryptosentinel.llm.local.families import Plan, family_plan
from cryptosentinel.llm.local.matrices import Matrix
from cryptosentinel.llm.local.prefix_cache import KVCache
from cryptosentinel.llm.local.shared_prefix import SharedPrefix
from cryptosentinel.llm.model_files import WeightFiles
from simulator.errors import UserError


@dataclass(frozen=True)
class Unread:
    """Tokens `ids` (B, N) at positions past..past + N of rows whose first `past` are in `cache`, (B rows, past + N
    slots)."""

    ids: torch.Tensor
    cache: KVCache
    past: int

    @property
    def length(self) -> int:
        """Tokens of each row, those that are known included."""
        return self.past + self.ids.shape[1]


_MATRICES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True)
class _Layer:
    """Packed weights of one layer, each laid out (in, out); None for what the architecture does not have."""

    qkv: Matrix  # (E, (H + 2G) D), input norm folded in, q and k interleaved
    qkv_bias: torch.Tensor | None  # ((H + 2G) D,), interleaved alike
    qk_norm: torch.Tensor | None  # (H + G, D), softmax scale folded into q's
    output: Matrix  # (H D, E)
    output_bias: torch.Tensor | None  # (E,)
    gate_up: Matrix  # (E, 2 I), post-attention norm folded in
    gate_up_bias: torch.Tensor | None  # (2 I,)
    down: Matrix  # (I, E)
    down_bias: torch.Tensor | None  # (E,)


class LlamaDecoder:
    """Inference on one set of weights. Call inside `torch.inference_mode()`.

    `state` holds Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`, ...); values are copied to `device` as
    `dtype`: float32, which is exact up to rounding, or bfloat16, in which matrix products are done then, while what is
    added up, norms, rotations and softmax stay float32. What is equal in one of the `others`, decoders of the same
    configuration on the same device, is kept once for all of them: adapters leave embedding, norms and head as they
    are. Raises `UserError` for a configuration that `families.why_not` refuses or a state that is not this model's.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        state: Mapping[str, torch.Tensor],
        device: torch.device,
        others: Sequence[LlamaDecoder] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        plan = family_plan(config)
        self.device = device
        self.dtype = dtype
        self.layer_count = plan.layers
        self.heads = plan.heads
        self.kv_heads = plan.kv_heads
        self.head_dim = plan.head_dim
        self.max_positions = plan.positions
        self.hidden = plan.hidden
        self._windows = plan.windows
        self._short = dtype != torch.float32
        self._activation: Callable[[torch.Tensor], torch.Tensor] = (
            F.silu if plan.activation == "silu" else ACT2FN[plan.activation]
        )
        weights = _Weights(plan, state, device)
        self.embedding: torch.Tensor = self._keep(
            weights["model.embed_tokens.weight"], [other.embedding for other in others]
        )
        self.norm: torch.Tensor = self._keep(weights["model.norm.weight"], [other.norm for other in others])
        heads = [other.head for other in others]
        self.head: Matrix
        if plan.tied:
            # Where it is packed, a tied head is a copy of the embedding, whose rows are looked up one by one.
            tied = next((other for other in others if other.embedding is self.embedding), None)
            self.head = Matrix(self.embedding.t(), shared=True) if tied is None else tied.head
        else:
            self.head = Matrix.kept(weights["lm_head.weight"].to(dtype).t(), heads)
        self.layers: list[_Layer] = [
            self._pack(weights, f"model.layers.{index}.", [other.layers[index] for other in others])
            for index in range(self.layer_count)
        ]
        self.rotation: torch.Tensor = others[0].rotation if others else _rotation(plan, device)
        self._eps = torch.full((1,), plan.eps, device=device)

    def memory(self) -> Iterator[tuple[int, int]]:
        """Address and bytes of all weights. A tied head has its embedding's, unless it is packed."""
        parts: list[Matrix | torch.Tensor | None] = [self.embedding, self.norm, self.head, self.rotation]
        for layer in self.layers:
            parts += [getattr(layer, field.name) for field in fields(layer)]
        for part in parts:
            if isinstance(part, Matrix):
                yield part.memory()
            elif part is not None:
                yield part.untyped_storage().data_ptr(), part.untyped_storage().nbytes()

    def new_cache(self, rows: int, slots: int) -> KVCache:
        """An empty cache. Zeros, not uninitialized memory: a masked slot still is multiplied by its weight of 0."""
        shape = (self.layer_count, rows, self.kv_heads)
        return KVCache(
            torch.zeros(*shape, self.head_dim, slots, device=self.device, dtype=self.dtype),
            torch.zeros(*shape, slots, self.head_dim, device=self.device, dtype=self.dtype),
        )

    @property
    def slot_bytes(self) -> int:
        """What the key and the value of a token take in each layer."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def looks_back_less_than(self, tokens: int) -> bool:
        """Whether a layer has a window of fewer tokens."""
        return any(window is not None and window < tokens for window in self._windows)

    def prefill(self, parts: Sequence[Unread]) -> list[torch.Tensor]:
        """Read the tokens of all parts; returns for each the logits (B, V) that follow the last one of each row.

        Every cache holds past + N slots, of which the first `past` are filled; the others are filled here. What works
        on a token alone is done for the tokens of all parts together: with few of them it takes hardly longer than
        with one, and attention is the little that is left for each part.
        """
        sizes = [part.ids.numel() for part in parts]
        hidden = torch.cat([self._embedded(part.ids).view(-1, self.hidden) for part in parts])
        rotation = torch.cat([self.rotation[part.past : part.length].repeat(part.ids.shape[0], 1, 1) for part in parts])
        causal = [self._causal(part) for part in parts]
        for index, layer in enumerate(self.layers):
            projected = [one.split(sizes) for one in self._project(layer, hidden, rotation)]
            last = index == self.layer_count - 1
            if last:  # only the last token of each row goes on
                ends = [part.ids.shape for part in parts]
                streams = zip(hidden.split(sizes), ends, strict=True)
                hidden = torch.cat([stream.view(rows, new, -1)[:, -1] for stream, (rows, new) in streams])
            attended = [
                self._read_part(index, part, shown, *own, last=last)
                for part, shown, *own in zip(parts, causal, *projected, strict=True)
            ]
            hidden = self._finish_layer(layer, hidden, torch.cat(attended))
        return list(self._logits(hidden).split([part.ids.shape[0] for part in parts]))

    def _causal(self, part: Unread) -> torch.Tensor | None:
        """Which slots (past + N) each new token (N) sees; None where all that come before it, which the kernel can tell
        itself: it then leaves out half of the work."""
        if part.past == 0 and not self.looks_back_less_than(part.length):
            return None
        return torch.ones(part.ids.shape[1], part.length, dtype=torch.bool, device=self.device).tril(part.past)

    def _read_part(
        self,
        index: int,
        part: Unread,
        causal: torch.Tensor | None,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        last: bool,
    ) -> torch.Tensor:
        """Write a layer's keys and values (B N, G, D) of a part to its cache; what its queries (B N, H, D), of the last
        layer those of each row's last token, attend to: (X, H D)."""
        (rows, new), cache, past, window = part.ids.shape, part.cache, part.past, self._windows[index]
        cache.keys[index, ..., past:] = key.view(rows, new, self.kv_heads, self.head_dim).permute(0, 2, 3, 1)
        cache.values[index, ..., past:, :] = value.view(rows, new, self.kv_heads, self.head_dim).transpose(1, 2)
        query = query.reshape(rows, new, self.heads, self.head_dim)
        allowed = causal
        if causal is not None and window is not None and window < past + new:
            allowed = causal.triu(past - window + 1)
        if last:  # it sees all, or its window
            query, allowed = query[:, -1:], allowed if allowed is None else allowed[-1:]
        attended = F.scaled_dot_product_attention(
            query.transpose(1, 2).to(self.dtype),
            cache.keys[index].transpose(2, 3).contiguous(),
            cache.values[index],
            attn_mask=allowed,
            is_causal=allowed is None and not last,
            scale=1.0,
            enable_gqa=True,
        )
        return attended.transpose(1, 2).reshape(rows * query.shape[1], -1)

    def step(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        slot: int,
        mask: torch.Tensor | None,
        shared: SharedPrefix | None = None,
    ) -> torch.Tensor:
        """Run one token a row, `ids` (B,) at `positions` (B,), and write it to `slot`; returns its logits (B, V).

        Uses the first B rows of `cache`. `mask` (>= B, G, 1, T) is added to the scores: 0 or -inf a slot; None: all
        slots count. Before the slots come the tokens of `shared`, if there is such; no layer may have a window then.
        """
        rows = ids.shape[0]
        groups = rows * self.kv_heads
        hidden = self._embedded(ids)
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
            seen_keys, seen_values, shut = all_keys[index], all_values[index], added
            if shared is not None:
                attended = self._attended_with(shared, index, query, seen_keys, seen_values, shut)
            else:
                window = self._windows[index]
                if window is not None and window <= slot:
                    seen_keys, seen_values = seen_keys[..., slot + 1 - window :], seen_values[:, slot + 1 - window :]
                    shut = None if added is None else added[..., slot + 1 - window :]
                attended = self._attended(query.reshape(groups, -1, self.head_dim), seen_keys, seen_values, shut)
            hidden = self._finish_layer(layer, hidden, attended.view(rows, -1))
        return self._logits(hidden)

    def _attended(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, added: torch.Tensor | None
    ) -> torch.Tensor:
        """One query a row and head, (B G, H / G, D); keys (B G, D, T), values (B G, T, D)."""
        if self._short:
            scores = torch.bmm(query.to(self.dtype), keys).float()
            scores = scores if added is None else scores + added
            return torch.bmm(torch.softmax(scores, dim=-1).to(self.dtype), values)
        scores = torch.bmm(query, keys) if added is None else torch.baddbmm(added, query, keys)
        return torch.bmm(torch.softmax(scores, dim=-1), values)

    def _attended_with(
        self,
        shared: SharedPrefix,
        index: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        added: torch.Tensor | None,
    ) -> torch.Tensor:
        """One query a row and head, (B, H, D), of the layer `index`; keys and values as in `_attended`, after those of
        `shared`. What is returned is (B G, H / G, D)."""
        room, groups, heads, size = shared.room, self.kv_heads, self.heads // self.kv_heads, self.head_dim
        own_part = self._weighed(query.reshape(-1, heads, size), keys, values, added)
        padded = query.new_zeros(shared.cache.keys.shape[1] * room, self.heads, size)
        padded.index_copy_(0, shared.places, query)
        padded = padded.view(-1, room, groups, heads, size).transpose(1, 2).reshape(-1, room * heads, size)
        prefix_keys, prefix_values = shared.cache.keys[index].flatten(0, 1), shared.cache.values[index].flatten(0, 1)
        shared_part = self._weighed(padded, prefix_keys, prefix_values, shared.mask).view(
            -1, groups, room, heads, size + 2
        )
        shared_part = shared_part.transpose(1, 2).reshape(-1, groups, heads, size + 2)[shared.places].flatten(0, 1)
        largest = torch.maximum(own_part[..., -1:], shared_part[..., -1:])
        joined = own_part[..., :-1] * torch.exp(own_part[..., -1:] - largest)
        joined += shared_part[..., :-1] * torch.exp(shared_part[..., -1:] - largest)
        return joined[..., :-1] / joined[..., -1:]

    def _weighed(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, added: torch.Tensor | None
    ) -> torch.Tensor:
        """A part of a softmax over more slots than these: for each query the sum of the weighed values, the sum of the
        weights e^(score - largest), and the largest score, (X, Y, D + 2). Shapes as in `_attended`."""
        if self._short:
            scores = torch.bmm(query.to(self.dtype), keys).float()
            scores = scores if added is None else scores + added
        else:
            scores = torch.bmm(query, keys) if added is None else torch.baddbmm(added, query, keys)
        largest = scores.amax(dim=-1, keepdim=True)
        weights = torch.exp(scores - largest)
        summed = torch.bmm(weights.to(self.dtype), values).float()
        return torch.cat([summed, weights.sum(dim=-1, keepdim=True), largest], dim=-1)

    def _project(
        self, layer: _Layer, hidden: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated q (X, H, D), rotated k (X, G, D) and v (X, G, D) of X tokens; rotation (X, 1, D / 2) complex."""
        tokens, rotated_heads = hidden.shape[0], self.heads + self.kv_heads
        projected = self._product(self._normed(hidden), layer.qkv, layer.qkv_bias)
        qkv = projected.view(tokens, rotated_heads + self.kv_heads, self.head_dim)
        turned = qkv[:, :rotated_heads]
        if self._short:
            turned = turned.float()
        if layer.qk_norm is not None:
            turned = self._normed(turned) * layer.qk_norm
        pairs = torch.view_as_complex(turned.view(tokens, rotated_heads, self.head_dim // 2, 2)) * rotation
        rotated = torch.view_as_real(pairs).view(tokens, rotated_heads, self.head_dim)
        return rotated[:, : self.heads], rotated[:, self.heads :], qkv[:, rotated_heads:]

    def _finish_layer(self, layer: _Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, MLP and both residual connections."""
        hidden = self._sum(hidden, attended, layer.output, layer.output_bias)
        gate, up = self._product(self._normed(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return self._sum(hidden, self._activation(gate) * up, layer.down, layer.down_bias)

    def _product(self, left: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return weight.times(left.to(self.dtype) if self._short else left, bias)

    def _sum(self, hidden: torch.Tensor, left: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        """The residual connection around a product; the stream itself is float32."""
        if self._short:
            return hidden + self._product(left, weight, bias)
        hidden = weight.added(hidden, left)
        return hidden if bias is None else hidden + bias

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids].float() if self._short else self.embedding[ids]

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """RMS norm without weights: half the small operations of `F.rms_norm`, which casts back and forth."""
        squares = torch.sum(hidden * hidden, dim=-1, keepdim=True)
        return hidden * torch.add(self._eps, squares, alpha=1.0 / hidden.shape[-1]).rsqrt_()

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._product(self._normed(hidden) * self.norm, self.head, None).float()

    def _pack(self, weights: _Weights, prefix: str, others: Sequence[_Layer]) -> _Layer:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        query, key = (weights[attention + name] for name in ("q_proj.weight", "k_proj.weight"))
        biases = [weights.get(f"{attention}{name}_proj.bias") for name in "qkv"]
        input_norm = weights[prefix + "input_layernorm.weight"]
        mlp_norm = weights[prefix + "post_attention_layernorm.weight"]
        scale = 1.0 / math.sqrt(self.head_dim)
        qk_norm = None
        if attention + "q_norm.weight" in weights:
            query_norm = self._interleaved(weights[attention + "q_norm.weight"]) / math.sqrt(self.head_dim)
            key_norm = self._interleaved(weights[attention + "k_norm.weight"])
            qk_norm = torch.cat([query_norm.expand(self.heads, -1), key_norm.expand(self.kv_heads, -1)])
        else:
            query = query * scale
            biases[0] = None if biases[0] is None else biases[0] * scale
        projections = torch.cat(
            [self._interleaved(query), self._interleaved(key), weights[attention + "v_proj.weight"]]
        )
        gate_up = torch.cat([weights[mlp + "gate_proj.weight"], weights[mlp + "up_proj.weight"]])
        packed: dict[str, Any] = {
            "qkv": (projections * input_norm).t(),
            "qkv_bias": _joined(
                biases[0] if biases[0] is None else self._interleaved(biases[0]),
                biases[1] if biases[1] is None else self._interleaved(biases[1]),
                biases[2],
            ),
            "qk_norm": qk_norm,
            "output": weights[attention + "o_proj.weight"].t(),
            "output_bias": weights.get(attention + "o_proj.bias"),
            "gate_up": (gate_up * mlp_norm).t(),
            "gate_up_bias": _joined(weights.get(mlp + "gate_proj.bias"), weights.get(mlp + "up_proj.bias")),
            "down": weights[mlp + "down_proj.weight"].t(),
            "down_bias": weights.get(mlp + "down_proj.bias"),
        }
        for name, weight in packed.items():
            if weight is None:
                continue
            known = [getattr(other, name) for other in others]
            packed[name] = Matrix.kept(weight.to(self.dtype), known) if name in _MATRICES else self._keep(weight, known)
        return _Layer(**packed)

    def _keep(self, weight: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
        """The first of `others` that equals `weight`, or else a contiguous copy of it in this decoder's numbers: the
        caller continues changing its tensors in place."""
        weight = weight.to(self.dtype)
        for other in others:
            if torch.equal(weight, other):
                return other
        return weight.clone(memory_format=torch.contiguous_format)

    def _interleaved(self, weight: torch.Tensor) -> torch.Tensor:
        """Reorder each head's rows from (first half, second half) to pairs: RoPE rotates component i with i + D / 2."""
        halves = weight.view(-1, 2, self.head_dim // 2, *weight.shape[1:])
        return halves.transpose(1, 2).reshape(weight.shape)


def _joined(*parts: torch.Tensor | None) -> torch.Tensor | None:
    """Biases of projections that are one; a model has all of them or none."""
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _rotation(plan: Plan, device: torch.device) -> torch.Tensor:
    """e^(i * position * frequency), stretched, complex64 (positions, 1, D / 2)."""
    angles = torch.arange(plan.positions, dtype=torch.float32)[:, None, None] * plan.frequencies
    return torch.polar(torch.full_like(angles, plan.stretch), angles).to(device)


class _Weights:
    """A state whose names and shapes have been checked; a weight is checked and cast when it is asked for, one at a
    time, so that a large model is not in memory twice."""

    def __init__(self, plan: Plan, state: Mapping[str, torch.Tensor], device: torch.device) -> None:
        # The headers of files say their shapes, so that none is read for it.
        given = (
            dict(state.shapes)
            if isinstance(state, WeightFiles)
            else {name: tuple(tensor.shape) for name, tensor in state.items()}
        )
        if plan.tied and "lm_head.weight" not in given:
            given["lm_head.weight"] = plan.shapes["lm_head.weight"]
        odd = same_shapes(given, plan.shapes)
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise UserError(
                f"these weights are not this model's: {'; '.join(odd[:3])}{more}. Give the checkpoint that fits"
            )
        self._state = state
        self._device = device

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def __getitem__(self, name: str) -> torch.Tensor:
        """The weight as float32 on the device, without gradients. It may be the state's own memory."""
        weight = self._state[name].detach().to(self._device, torch.float32)
        if not torch.isfinite(weight).all():
            raise UserError(
                f"{name} holds values that are not finite: training has diverged; use an earlier checkpoint"
            )
        return weight

    def get(self, name: str) -> torch.Tensor | None:
        """As above, or None where there is none."""
        return self[name] if name in self._state else None
