"""A forward pass that computes what conversations have in common once.

Conversations of a role begin alike: with the same system prompt, those of a group with the same brief, and often with
the same first turns. A token's hidden state depends on the tokens before it and on nothing else, so equal beginnings
have equal states. The conversations of a batch are therefore written as a tree whose nodes are tokens: one node for
each distinct beginning. Everything that works on a token alone (embedding, norms, projections, MLP, adapters) is done
once a node, without padding; attention lets each node see its own ancestors. Gradients flow back through the shared
nodes, summed over the conversations, so value and gradient are those of a pass over every conversation, up to float
rounding.

Attention reads keys and values of whole conversations, gathered from the nodes, but asks for each node once: in the
first conversation, in lexicographic order, that has it. The nodes that a conversation is the first to have are its
last ones, so its queries are a stretch at its end.

Hugging Face's own layers do the computing; only the attention function is ours (`attend`). It is registered beside
theirs and is theirs for a pass without a tree, so checkpointed layers, adapters and quantized weights work as they do
without it. Shapes: B conversations of at most T tokens, N nodes, H heads, G kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from cryptosentinel.llm.local.families import why_not

Ints = npt.NDArray[np.int64]
ATTENTION = "shared_prefixes"  # the name that `attend` is registered under
_IN_FAMILY: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()
WORTHWHILE = 0.9  # at most this share of the padded tokens of a plain pass, or the plain pass is made


@dataclass(frozen=True)
class Block:
    """Conversations whose new nodes are asked for in one call of attention.

    queries (b, Q) and keys (b, K) are nodes, padded on the right; at (b, Q) is the position of each query; allowed
    (b, 1, Q, K) bool says what a query sees, None where that is the plain causal mask.
    """

    queries: Tensor
    keys: Tensor
    at: Tensor
    allowed: Tensor | None

    def seen(self, window: int | None) -> Tensor | None:
        """`allowed` in a layer that sees at most `window` tokens back, the query's own included."""
        if window is None or window >= self.keys.shape[1]:
            return self.allowed
        key = torch.arange(self.keys.shape[1], device=self.at.device)
        return ((key <= self.at[..., None]) & (key > self.at[..., None] - window))[:, None]


@dataclass(frozen=True)
class PrefixTree:
    """ids (N,) and positions (N,) of the nodes; nodes (B, T) of each conversation, 0 beyond its end; the blocks, and
    where each node's query is among the padded queries of all blocks, places (N,)."""

    ids: Tensor
    positions: Tensor
    nodes: Ints
    blocks: tuple[Block, ...]
    places: Tensor


def sortable(ids: npt.NDArray[np.integer[Any]]) -> bytes:
    """Token ids as bytes whose order is that of the ids, so equal beginnings are neighbors when sorted."""
    return ids.astype(">u4").tobytes()


def common_starts(rows: Sequence[npt.NDArray[np.integer[Any]]]) -> tuple[list[int], Ints]:
    """The order in which equal beginnings are neighbors, and for each of the rows, as they were given, how many of its
    first tokens an earlier one in that order has: its longest common beginning with any of them."""
    order = sorted(range(len(rows)), key=lambda row: sortable(rows[row]))
    starts = np.zeros(len(rows), np.int64)
    for before, row in pairwise(order):
        size = min(len(rows[before]), len(rows[row]))
        differs = np.flatnonzero(rows[before][:size] != rows[row][:size])
        starts[row] = differs[0] if len(differs) else size
    return order, starts


def prefix_tree(ids: Ints, lengths: Ints, device: torch.device) -> PrefixTree:
    """The tree of B conversations, ids (B, T) padded on the right, of `lengths` (B,) tokens; at least one has one."""
    rows = [line[:length] for line, length in zip(ids, lengths, strict=True)]
    order, starts = common_starts(rows)
    nodes = np.zeros(ids.shape, np.int64)
    count, before = 0, 0
    for row in order:
        start, length = starts[row], lengths[row]
        nodes[row, :start] = nodes[before, :start]
        nodes[row, start:length] = np.arange(count, count + length - start)
        count, before = count + length - start, row
    held = np.arange(ids.shape[1]) < lengths[:, None]
    token, position = np.zeros(count, np.int64), np.zeros(count, np.int64)
    token[nodes[held]] = ids[held]
    position[nodes[held]] = np.nonzero(held)[1]
    blocks, places = _blocks(nodes, starts, lengths, count, device)
    return PrefixTree(_tensor(token, device), _tensor(position, device), nodes, blocks, places)


def _blocks(
    nodes: Ints, starts: Ints, lengths: Ints, count: int, device: torch.device
) -> tuple[tuple[Block, ...], Tensor]:
    """Conversations with about as many new nodes together, so that padding at most doubles the queries; those that
    share nothing apart, since the causal mask needs none in memory."""
    members: dict[tuple[bool, int], list[int]] = {}
    for row in np.flatnonzero(lengths > starts).tolist():
        members.setdefault((bool(starts[row]), int(lengths[row] - starts[row]).bit_length()), []).append(row)
    blocks, places, asked = [], np.zeros(count, np.int64), 0
    for (shares, _), chosen in sorted(members.items()):
        start, length = starts[chosen, None], lengths[chosen, None]
        keys = nodes[chosen, : length.max()]
        at = start + np.arange((length - start).max())  # position of each query
        queries = np.take_along_axis(keys, np.minimum(at, length - 1), 1)
        real = at < length
        places[queries[real]] = asked + np.flatnonzero(real)
        asked += at.size
        allowed = (np.arange(keys.shape[1]) <= at[..., None])[:, None] if shares else None
        blocks.append(
            Block(
                _tensor(queries, device),
                _tensor(keys, device),
                _tensor(at, device),
                None if allowed is None else _tensor(allowed, device),
            )
        )
    return tuple(blocks), _tensor(places, device)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    tree: PrefixTree | None = None,
    sliding_window: int | None = None,
    **named: Any,
) -> tuple[Tensor, None]:
    """Attention in a tree, query (1, H, N, D), key and value (1, G, N, D) to (1, N, H, D); without one it is `sdpa`."""
    if tree is None:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, sliding_window=sliding_window, **named
        )
        return attended
    return _attend_in_tree(query, key, value, tree, scaling, sliding_window), None


@torch.compiler.disable
def _attend_in_tree(
    query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree, scaling: float | None, window: int | None
) -> Tensor:
    """`attend` with a tree. Its shapes differ from one batch to the next, and it is kernels that no compiler fuses."""
    heads, width = query.shape[1], query.shape[3]
    by_node = [one[0].transpose(0, 1).flatten(1) for one in (query, key, value)]  # (N, heads x D)
    answers = []
    for block in tree.blocks:
        queries, keys, values = (
            pick(table, index).unflatten(-1, (-1, width)).transpose(1, 2)
            for table, index in zip(by_node, (block.queries, block.keys, block.keys), strict=True)
        )
        allowed = block.seen(window)
        if allowed is not None and query.is_cuda:  # its kernels take a mask or grouped heads, not both
            keys, values = (one.repeat_interleave(heads // one.shape[1], 1) for one in (keys, values))
        answer = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=allowed,
            is_causal=allowed is None,
            scale=scaling,
            enable_gqa=True,
        )
        answers.append(answer.transpose(1, 2).reshape(-1, heads * width))
    return pick(torch.cat(answers), tree.places).view(1, -1, heads, width)


def pick(table: Tensor, index: Tensor) -> Tensor:
    """Rows of `table` (N, W) by an index of any shape. Unlike indexing, its gradient is summed in a fixed order."""
    return functional.embedding(index, table)


@dataclass(frozen=True)
class SampledStates:
    """What the output layer needs for the sampled tokens of a batch.

    states (U, hidden size) that a token follows and targets (U,), that token: each pair once; index (sampled,) tells
    which pair each sampled token is, in the order of the mask's entries.
    """

    states: Tensor
    targets: Tensor
    index: Tensor


def sampled_states(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> SampledStates | None:
    """The states before the sampled tokens of a batch, ids (B, T) and mask (B, T) on the CPU, by a pass over its tree;
    None where a tree saves too little, or the model is one that `attend` does not compute."""
    if not _can_share(model):
        return None
    tokens, sampled, device = ids.numpy(), mask.numpy(), model.device
    # Up to the last sampled token, which nothing follows.
    lengths = np.where(sampled.any(1), sampled.shape[1] - 1 - np.argmax(sampled[:, ::-1], 1), 0)
    tree = prefix_tree(tokens, lengths, device)
    if len(tree.ids) > WORTHWHILE * ids.shape[0] * (ids.shape[1] - 1):
        return None
    row, position = np.nonzero(sampled)
    pairs = np.stack([tree.nodes[row, position - 1], tokens[row, position]])
    (before, target), index = np.unique(pairs, axis=1, return_inverse=True)
    states = pick(_hidden_states(model, tree), _tensor(before, device))
    return SampledStates(states, _tensor(target, device), _tensor(index, device))


def _can_share(model: PreTrainedModel) -> bool:
    """An architecture of the Llama family, whose attention is done by torch's own kernel and without dropout."""
    config = model.config
    return (
        config._attn_implementation in ("sdpa", ATTENTION)
        and in_family(model)
        and not (model.training and config.attention_dropout)
    )


def in_family(model: PreTrainedModel) -> bool:
    """Whether `attend` computes the model's attention, and its output layer alone makes logits of states."""
    known = _IN_FAMILY.get(model)
    if known is None:
        known = _IN_FAMILY[model] = why_not(model.config) is None
    return known


def _hidden_states(model: PreTrainedModel, tree: PrefixTree) -> Tensor:
    """Last hidden state of each node, (N, hidden size). The model keeps `attend` as its attention function, since
    layers that are computed again in the backward pass look it up there."""
    decoder = model.get_decoder()
    decoder.config._attn_implementation = ATTENTION
    states: Tensor = decoder(
        input_ids=tree.ids[None],
        position_ids=tree.positions[None],
        # Four dimensions: taken for a mask as it is, and looked at by nobody.
        attention_mask=tree.ids.new_zeros(1, 1, 1, 1),
        use_cache=False,
        tree=tree,
    ).last_hidden_state
    return states[0]


def _tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return sent(torch.from_numpy(array), device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device. A GPU fetches it in its turn: nobody waits until that comes."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
