"""Keys and values of what was read before: a conversation's next turn only computes what is new.

They lie in a tree of tokens, so what several conversations begin with (a role's instructions, the market that a group
of rollouts is asked about) is held once for all of them.

Shapes: L layers, B rows, G kv heads, D head dim, T slots, one for each token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class KVCache:
    """Keys (L, B, G, D, T) and values (L, B, G, T, D)."""

    keys: torch.Tensor
    values: torch.Tensor

    def blank(self, rows: int, slots: int) -> KVCache:
        """An empty cache of the same model: zeros, as a masked slot still is multiplied by its weight of 0."""
        layers, _, heads, size, _ = self.keys.shape
        return KVCache(
            self.keys.new_zeros(layers, rows, heads, size, slots),
            self.values.new_zeros(layers, rows, heads, slots, size),
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
        return KVCache(
            self.keys.clone(memory_format=torch.contiguous_format),
            self.values.clone(memory_format=torch.contiguous_format),
        )

    def grown(self, rows: int, slots: int) -> KVCache:
        """The first `rows` rows with room for that number of slots."""
        larger = self.blank(rows, slots)
        larger.keys[..., : self.keys.shape[4]] = self.keys[:, :rows]
        larger.values[..., : self.values.shape[3], :] = self.values[:, :rows]
        return larger

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(eq=False)
class _Node:
    """Tokens that follow those of the nodes above, and the one-row cache of their slots alone."""

    ids: tuple[int, ...]
    cache: KVCache
    above: dict[int, _Node]  # where it hangs: nodes by their first token
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixCache:
    """Finds, for a conversation, the longest beginning that earlier conversations of the same weights had.

    Attention is causal, so any beginning of what is known is usable. At most `max_bytes` are kept; the least recently
    used end of a conversation goes first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.nbytes = 0  # bytes kept now
        self._top: dict[int, _Node] = {}
        # The least recently used first. A node is used after each of those below it, so the first has none below it.
        self._by_use: OrderedDict[_Node, None] = OrderedDict()

    def longest(self, ids: tuple[int, ...]) -> tuple[int, list[KVCache]]:
        """Number of leading tokens of `ids` that are known, and one-row caches whose slots together are theirs."""
        path = list(self._path(ids))
        self._use([node for node, _ in path])
        return sum(common for _, common in path), [node.cache.row(0, 0, common) for node, common in path]

    def insert(self, ids: tuple[int, ...], cache: KVCache, start: int = 0) -> None:
        """Keep what is not known yet of the one-row `cache`, whose slots are those of `ids[start:]`.

        Nothing is kept where `ids` are more than `max_bytes` together, and where less than `start` of them is known:
        their beginning has been dropped, and what follows is of no use without it.
        """
        path = list(self._path(ids))
        known, slot_bytes = sum(common for _, common in path), cache.nbytes // max(1, len(ids) - start)
        if known < start or len(ids) * slot_bytes > self._max_bytes:
            return
        nodes = [node for node, _ in path]
        if known < len(ids):
            if path and path[-1][1] < len(nodes[-1].ids):
                nodes[-1] = self._split(*path[-1])
            above = nodes[-1].children if nodes else self._top
            leaf = _Node(ids[known:], cache.row(0, known - start, len(ids) - start).clone(), above)
            above[ids[known]] = leaf
            nodes.append(leaf)
            self.nbytes += leaf.cache.nbytes
        self._use(nodes)
        while self.nbytes > self._max_bytes:
            self._drop_least_used()

    def takes(self, ids: tuple[int, ...], slot_bytes: int) -> bool:
        """Whether a conversation may be so long, if a token takes `slot_bytes` in all layers together."""
        return len(ids) * slot_bytes <= self._max_bytes

    def clear(self) -> None:
        """Forget everything, as is due when the weights change."""
        self._top.clear()
        self._by_use.clear()
        self.nbytes = 0

    def _path(self, ids: tuple[int, ...]) -> Iterator[tuple[_Node, int]]:
        """The nodes along `ids` from the top, and how many tokens of each are theirs: of all but the last, all."""
        below, place = self._top, 0
        while place < len(ids) and (node := below.get(ids[place])) is not None:
            common = common_length(node.ids, ids[place : place + len(node.ids)])
            yield node, common
            if common < len(node.ids):
                return
            below, place = node.children, place + common

    def _split(self, node: _Node, at: int) -> _Node:
        """Make two nodes of one: its first `at` tokens, which is returned, and the others below them."""
        first = _Node(node.ids[:at], node.cache.row(0, 0, at).clone(), node.above, {node.ids[at]: node})
        node.above[first.ids[0]] = first
        node.cache = node.cache.row(0, at, len(node.ids)).clone()
        node.ids, node.above = node.ids[at:], first.children
        return first

    def _use(self, path: list[_Node]) -> None:
        for node in reversed(path):
            self._by_use[node] = None
            self._by_use.move_to_end(node)

    def _drop_least_used(self) -> None:
        node, _ = self._by_use.popitem(last=False)
        del node.above[node.ids[0]]
        self.nbytes -= node.cache.nbytes


def common_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common beginning, by bisection over slices (compared in C)."""
    if a == b:
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
