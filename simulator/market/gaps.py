"""Where a market lacks bars, and a market at a glance."""

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


@dataclass(frozen=True)
class SymbolInfo:
    """One symbol of a market: counts of what there is; `first` and `last` are open times in ms, None without bars."""

    symbol: str
    bars: int
    first: int | None
    last: int | None
    absent: int
    partial: int
    zero_volume: int
    funding: int
    news: int


@dataclass(frozen=True)
class MarketInfo:
    """A market at a glance."""

    source: str
    timeframe: str
    bars: int
    first: int
    last: int
    content_hash: str
    synthetic: bool
    symbols: tuple[SymbolInfo, ...]


def describe_market(market: Market) -> MarketInfo:
    """What a market holds, symbol by symbol."""
    symbols = []
    for column, (symbol, holes) in enumerate(zip(market.symbols, find_gaps(market).symbols, strict=True)):
        traded = market.open_time[market.present[:, column]]
        symbols.append(
            SymbolInfo(
                symbol=symbol,
                bars=holes.bars,
                first=int(traded[0]) if len(traded) else None,
                last=int(traded[-1]) if len(traded) else None,
                absent=holes.absent,
                partial=holes.partial,
                zero_volume=int((market.volume[:, column] == 0).sum()),
                funding=len(market.funding.get(symbol, ())),
                news=sum(item.symbol in (None, symbol) for item in market.news),
            )
        )
    return MarketInfo(
        source=market.source,
        timeframe=market.timeframe,
        bars=len(market),
        first=int(market.open_time[0]),
        last=int(market.open_time[-1]),
        content_hash=market.content_hash,
        synthetic=market.truth is not None,
        symbols=tuple(symbols),
    )
