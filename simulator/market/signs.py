"""Signs of a generated market that one role's tools show and no other's: see `simulator.synthetic.private`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.arrays import BoolArray


@dataclass(frozen=True)
class PrivateSigns:
    """What can be read at the close of each bar, `(T, S)` in the order of the market's symbols.

    `crowded`: whether the market in a coin is crowded, so that a jump may come; RiskAnalyst's. `confirmed`: whether the
    headlines of the time are confirmed or rumours; MarketAnalyst's. Trader's sign is the spread, which is a bar's.
    """

    crowded: BoolArray
    confirmed: BoolArray

    def select(self, columns: Sequence[int]) -> PrivateSigns:
        """The signs of some of the symbols, by their columns."""
        kept = list(columns)
        return PrivateSigns(np.ascontiguousarray(self.crowded[:, kept]), np.ascontiguousarray(self.confirmed[:, kept]))

    def rows(self, kept: slice) -> PrivateSigns:
        """The signs at the closes of some of the bars."""
        return PrivateSigns(self.crowded[kept].copy(), self.confirmed[kept].copy())

    def content(self) -> Iterator[bytes]:
        """What a hash of the market is made of."""
        yield self.crowded.tobytes()
        yield self.confirmed.tobytes()
