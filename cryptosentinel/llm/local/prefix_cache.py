"""Keys and values of what was read before: a conversation's next turn only computes what is new."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from cryptosentinel.llm.local.llama import KVCache


class PrefixCache:
    """Finds, for a conversation, the longest beginning that some earlier conversation of the same weights had.

    Attention is causal, so any beginning of a stored conversation is usable. In the sorted list of all stored ones,
    the longest common beginning is found at a neighbour of the place where the new one would stand. At most
    `max_bytes` are kept; the least recently used go first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.nbytes = 0  # bytes kept now
        self._entries: OrderedDict[tuple[int, ...], KVCache] = OrderedDict()
        self._sorted: list[tuple[int, ...]] = []

    def longest(self, ids: tuple[int, ...]) -> tuple[int, KVCache | None]:
        """Number of leading tokens of `ids` that are known, and a one-row cache that holds at least these."""
        place = bisect_left(self._sorted, ids)
        neighbours = self._sorted[max(place - 1, 0) : place + 1]
        if not neighbours:
            return 0, None
        length, best = max((_common_length(ids, other), other) for other in neighbours)
        if length == 0:
            return 0, None
        self._entries.move_to_end(best)
        return length, self._entries[best]

    def insert(self, ids: tuple[int, ...], cache: KVCache) -> None:
        """Keep the one-row `cache` of all tokens in `ids`, unless it is the beginning of a stored one or too large.

        A stored beginning of `ids` becomes superfluous and is dropped. So no entry is the beginning of another, and
        whatever relates to `ids` in this way is its neighbour in the order.
        """
        place = bisect_left(self._sorted, ids)
        if cache.nbytes > self._max_bytes or (place < len(self._sorted) and self._sorted[place][: len(ids)] == ids):
            return
        if place > 0 and ids[: len(self._sorted[place - 1])] == self._sorted[place - 1]:
            self._remove(self._sorted[place - 1])
        while self.nbytes + cache.nbytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
        self._entries[ids] = cache
        insort(self._sorted, ids)
        self.nbytes += cache.nbytes

    def clear(self) -> None:
        """Forget everything, as is due when the weights change."""
        self._entries.clear()
        self._sorted.clear()
        self.nbytes = 0

    def _remove(self, ids: tuple[int, ...]) -> None:
        self.nbytes -= self._entries.pop(ids).nbytes
        del self._sorted[bisect_left(self._sorted, ids)]


def _common_length(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Length of the longest common beginning, by bisection over slices (compared in C)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
