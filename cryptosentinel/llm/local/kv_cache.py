"""Keys and values of what a model of the Llama family has read.

Shapes: L layers, B rows, G kv heads, D head dim, T slots, one for each token.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        """The first `rows` rows with room for so many slots."""
        larger = self.blank(rows, slots)
        larger.keys[..., : self.keys.shape[4]] = self.keys[:, :rows]
        larger.values[..., : self.values.shape[3], :] = self.values[:, :rows]
        return larger

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values take."""
        return self.keys.nbytes + self.values.nbytes
