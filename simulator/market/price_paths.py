"""Price paths, which are possible continuations of a market, and the signs of a generated market that one role's tools
show and no other's (see `simulator.synthetic.private`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import BoolArray
from simulator.errors import DataError
from simulator.market.instruments import MarketKind

_FIELDS = ("open", "high", "low", "close", "half_spread", "funding_rate")


@dataclass(frozen=True)
class PricePaths:
    """Several continuations of the same market, bar by bar.

    All arrays have shape ``(paths, bars, S)`` and dtype float64, the symbols in the order of the market.

    Attributes:
        open, high, low, close: prices in quote currency; NaN where a bar is absent.
        half_spread: half the bid-ask spread as a fraction of the price.
        funding_rate: rate settled at the close of that bar, 0 where nothing is settled. A long position of
            notional ``n`` pays ``n * rate``; a short one receives it.
        interval: length of a bar in ms; 0 where it is not known. Borrowing and latency need it.
        kinds: of the symbols; empty: all are perpetuals.
        missing_funding: rates of settlements that the data lacks, which both sides pay at the close of that bar; None
            where none is missing.
        delisted: (S,) the bar at whose open what is held is closed, see `simulator.exchange.venue.delisted_bars`; None
            where all symbols stay listed.
    """

    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    half_spread: NDArray[np.float64]
    funding_rate: NDArray[np.float64]
    interval: int = 0
    kinds: tuple[MarketKind | None, ...] = ()
    missing_funding: NDArray[np.float64] | None = None
    delisted: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        shape = self.open.shape
        if len(shape) != 3 or min(shape) < 1:
            raise DataError(f"PricePaths needs arrays of shape (paths, bars, symbols), none empty; open has {shape}.")
        for name in _FIELDS:
            array = getattr(self, name)
            if array.shape != shape:
                raise DataError(f"PricePaths.{name} has shape {array.shape}, open has {shape}; make them equal.")
        for name, given in (("missing_funding", self.missing_funding), ("delisted", self.delisted)):
            wanted = shape if name == "missing_funding" else shape[2:]
            if given is not None and given.shape != wanted:
                raise DataError(f"PricePaths.{name} has shape {given.shape}; it must have {wanted}.")
        if self.kinds and len(self.kinds) != shape[2]:
            raise DataError(f"PricePaths.kinds names {len(self.kinds)} symbols, open has {shape[2]}.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(paths, bars, symbols)``."""
        paths, bars, symbols = self.open.shape
        return paths, bars, symbols


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
