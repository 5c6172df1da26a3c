"""Where a market lacks bars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.market.market import Market
from simulator.market.timeframes import format_time


@dataclass(frozen=True)
class Gap:
    """A run of absent bars: `bars` grid bars, the first opening at `start` (ms)."""

    start: int
    bars: int


@dataclass(frozen=True)
class SymbolGaps:
    """Holes of one symbol. `before` and `after` count the market's bars outside the symbol's own history."""

    symbol: str
    bars: int
    gaps: tuple[Gap, ...]
    before: int
    after: int
    partial: int  # bars that were resampled from an incomplete set of finer bars

    @property
    def absent(self) -> int:
        """Bars missing inside the symbol's own history."""
        return sum(gap.bars for gap in self.gaps)


@dataclass(frozen=True)
class GapReport:
    """Holes of every symbol of a market."""

    symbols: tuple[SymbolGaps, ...]

    @property
    def absent(self) -> int:
        return sum(symbol.absent for symbol in self.symbols)

    @property
    def partial(self) -> int:
        return sum(symbol.partial for symbol in self.symbols)

    def summary(self) -> str:
        """One line for a person: which symbols lack how many bars; none of them has been filled in."""
        found = []
        for symbol in self.symbols:
            parts = []
            if symbol.absent:
                longest = max(symbol.gaps, key=lambda gap: gap.bars)
                parts.append(
                    f"{symbol.absent} bars absent in {len(symbol.gaps)} gaps"
                    f" (longest {longest.bars} from {format_time(longest.start)})"
                )
            if symbol.partial:
                parts.append(f"{symbol.partial} bars built from an incomplete set of finer bars")
            if symbol.before or symbol.after:
                ends = [f"{word} {bars}" for word, bars in (("first", symbol.before), ("last", symbol.after)) if bars]
                parts.append(f"not traded in the {' and '.join(ends)} bars")
            if parts:
                found.append(f"{symbol.symbol}: {', '.join(parts)}")
        return "; ".join(found) or "no gaps"


def find_gaps(market: Market) -> GapReport:
    """Where bars are absent or partial, symbol by symbol."""
    reports = []
    for column, symbol in enumerate(market.symbols):
        present = np.flatnonzero(market.present[:, column])
        partial = 0 if market.partial is None else int(market.partial[:, column].sum())
        if not len(present):
            reports.append(SymbolGaps(symbol, 0, (), len(market), 0, partial))
            continue
        holes = np.flatnonzero(np.diff(present) > 1)
        runs = tuple(
            Gap(int(market.open_time[present[hole] + 1]), int(present[hole + 1] - present[hole] - 1)) for hole in holes
        )
        after = len(market) - 1 - int(present[-1])
        reports.append(SymbolGaps(symbol, len(present), runs, int(present[0]), after, partial))
    return GapReport(tuple(reports))
