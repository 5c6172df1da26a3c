"""Columnar market history and the point-in-time view of it.

A `Market` holds the whole history of several symbols on one time grid. Whoever decides gets a `MarketView` instead:
it stands at the close of one bar and is the only door to the data. What had not been known by then raises
`LookAheadError`.

Time is in integer milliseconds since the epoch, UTC. Bars carry their open time; bar `i` is complete, and so known,
at `open_time[i] + interval`. Arrays are `(T, S)`: T bars, S symbols, float64. A bar that the exchange never produced is
NaN with `present` False; nothing is ever filled in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.errors import DataError
from simulator.resample import CoarseBars, resample_arrays
from simulator.view import Bars as Bars
from simulator.view import MarketView

if TYPE_CHECKING:  # they import this module
    from simulator.series import Books, Series
    from simulator.truth import Truth

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

TIMEFRAMES: dict[str, int] = {
    "1m": 60_000,
    "5m": 300_000,
    "15m": 900_000,
    "30m": 1_800_000,
    "1h": 3_600_000,
    "4h": 14_400_000,
    "1d": 86_400_000,
}


BAR_COLUMNS = ("open", "high", "low", "close", "volume", "half_spread")


def interval_of(timeframe: str) -> int:
    """Length of a bar in milliseconds. Raises `DataError` for an unknown timeframe."""
    try:
        return TIMEFRAMES[timeframe]
    except KeyError:
        raise DataError(f"unknown timeframe '{timeframe}': use one of {', '.join(TIMEFRAMES)}") from None


def parse_time(text: str) -> int:
    """Milliseconds since the epoch of an ISO date or time, taken as UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(f"'{text}' is not a date: write it like 2023-01-31 or 2023-01-31T08:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def format_time(time: int) -> str:
    """`2023-01-31 08:00` (UTC) of milliseconds since the epoch."""
    return datetime.fromtimestamp(time / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class NewsItem:
    """A headline. `known_at` is when it could be read; all ordering uses it, never `time`."""

    time: int
    known_at: int
    symbol: str | None  # None: concerns the whole market
    text: str


@dataclass(frozen=True)
class FundingEvent:
    """A funding settlement of a perpetual: longs pay `rate` times notional to shorts. Known at `time`."""

    time: int
    rate: float


@dataclass(frozen=True)
class Market:
    """History of S symbols on one grid of T bars (see the module's docstring for units).

    `half_spread` is a fraction of the price, per bar. `truth` exists for synthetic markets only and is never reachable
    from a view. Equal content gives an equal `content_hash`, whatever file it came from.
    """

    symbols: tuple[str, ...]
    timeframe: str
    open_time: IntArray  # (T,)
    open: FloatArray  # (T, S), as all below
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    half_spread: FloatArray
    funding: dict[str, tuple[FundingEvent, ...]] = field(default_factory=dict)
    news: tuple[NewsItem, ...] = ()  # sorted by known_at
    truth: Truth | None = None
    partial: BoolArray | None = None  # (T, S): bars built from an incomplete set of finer bars; None: not resampled
    source: str = "memory"
    series: dict[str, Series] = field(default_factory=dict)  # by name, like onchain/BTC
    books: dict[str, Books] = field(default_factory=dict)  # by symbol

    def __post_init__(self) -> None:
        shape = (len(self.open_time), len(self.symbols))
        for name in BAR_COLUMNS:
            if getattr(self, name).shape != shape:
                raise DataError(f"{self.source}: {name} has shape {getattr(self, name).shape}, expected {shape}")
        if len(set(self.symbols)) != len(self.symbols) or not self.symbols:
            raise DataError(f"{self.source}: symbols must be distinct and at least one, got {list(self.symbols)}")
        if len(self.open_time) == 0:
            raise DataError(f"{self.source}: there are no bars")
        steps = np.diff(self.open_time)
        if len(steps) and not (steps == self.interval).all():
            raise DataError(f"{self.source}: the grid of bars is not regular; load it through simulator.catalog")
        # A view finds what is known by bisection, so order is what keeps the future out of it.
        for symbol, events in self.funding.items():
            if any(later.time <= earlier.time for earlier, later in pairwise(events)):
                raise DataError(f"{self.source}: the funding of {symbol} is not in order of time")
        if any(later.known_at < earlier.known_at for earlier, later in pairwise(self.news)):
            raise DataError(f"{self.source}: the news are not in order of known_at")
        # Series and books check their own order.
        for name in self.series:
            if name.count("/") != 1:
                raise DataError(f"{self.source}: {name!r} is not a name of a series; write kind/name, like onchain/BTC")
        for symbol in self.books:
            if symbol not in self.symbols:
                raise DataError(f"{self.source}: order books of '{symbol}', which is not a symbol of the market")

    def __len__(self) -> int:
        return len(self.open_time)

    @cached_property
    def interval(self) -> int:
        return interval_of(self.timeframe)

    @cached_property
    def present(self) -> BoolArray:
        """(T, S): False where the exchange produced no bar."""
        return ~np.isnan(self.close)

    @cached_property
    def indicators(self) -> dict[Any, FloatArray]:
        """What `MarketView.computed` has made so far."""
        return {}

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over everything that a view can show."""
        digest = hashlib.sha256(f"{self.timeframe}|{','.join(self.symbols)}".encode())
        for array in (self.open_time, *(getattr(self, name) for name in BAR_COLUMNS)):
            digest.update(np.ascontiguousarray(array).tobytes())
        for symbol in self.symbols:
            for event in self.funding.get(symbol, ()):
                digest.update(f"{symbol}|{event.time}|{event.rate!r}".encode())
        for item in self.news:
            digest.update(f"{item.time}|{item.known_at}|{item.symbol}|{item.text}".encode())
        # A market without them keeps the hash that it had before there were any: recorded runs name it.
        beside: list[tuple[str, Series | Books]] = [(f"|series|{name}|", one) for name, one in self.series.items()]
        beside += [(f"|book|{symbol}|", books) for symbol, books in self.books.items()]
        for label, one in sorted(beside, key=lambda entry: entry[0]):
            digest.update(f"{label}{len(one)}|".encode())
            for part in one.content():
                digest.update(part)
        return digest.hexdigest()

    def column(self, symbol: str) -> int:
        """Position of `symbol` in the second axis. Raises `DataError` for an unknown one."""
        try:
            return self.symbols.index(symbol)
        except ValueError:
            raise DataError(f"{self.source}: no symbol '{symbol}'; there are {', '.join(self.symbols)}") from None

    def select(self, symbols: Sequence[str]) -> Market:
        """The same history of some of the symbols, in the order asked for; its truth is narrowed with it."""
        columns = [self.column(symbol) for symbol in symbols]
        if not columns:
            raise DataError(f"{self.source}: no symbols are selected; there are {', '.join(self.symbols)}")
        arrays: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[:, columns]) for name in BAR_COLUMNS}
        return replace(
            self,
            symbols=tuple(symbols),
            **arrays,
            funding={symbol: self.funding[symbol] for symbol in symbols if symbol in self.funding},
            news=tuple(item for item in self.news if item.symbol is None or item.symbol in symbols),
            truth=None if self.truth is None else self.truth.select(symbols),
            partial=None if self.partial is None else np.ascontiguousarray(self.partial[:, columns]),
            books={symbol: self.books[symbol] for symbol in symbols if symbol in self.books},
        )

    def resample(self, timeframe: str) -> Market:
        """The same history in coarser bars (see `simulator.resample`); all else keeps its times.

        A resampled market has no truth: the hidden state lives on the finer grid. Raises `DataError` when the bars of
        `timeframe` are not made of whole bars of this market, or when not one of them is complete.
        """
        if timeframe == self.timeframe:
            return self
        coarse = self.coarser(timeframe)
        if not len(coarse.open_time):
            raise DataError(f"{self.source}: {len(self)} bars of {self.timeframe} hold no complete bar of {timeframe}")
        partial = coarse.partial
        if self.partial is not None:
            # What was partial before stays partial: resampling twice must not launder a hole.
            columns = {name: getattr(self, name) for name in BAR_COLUMNS}
            columns["volume"] = np.where(self.partial, 1.0, 0.0)
            ever = resample_arrays(self.open_time, columns, self.interval, coarse.interval)
            partial = partial | (np.nan_to_num(ever.volume) > 0)
        arrays: dict[str, Any] = {name: getattr(coarse, name) for name in BAR_COLUMNS}
        return replace(
            self,
            timeframe=timeframe,
            open_time=coarse.open_time,
            **arrays,
            truth=None,
            partial=partial,
        )

    def coarser(self, timeframe: str) -> CoarseBars:
        """The complete bars of a coarser `timeframe`, made once and kept; none where no bar of it is complete.

        Raises `DataError` when the bars of `timeframe` are not made of whole bars of this market.
        """
        kept = self._coarser.get(timeframe)
        if kept is None:
            target = interval_of(timeframe)
            if target % self.interval:
                raise DataError(f"{self.source}: {timeframe} bars cannot be made of {self.timeframe} bars")
            columns = {name: getattr(self, name) for name in BAR_COLUMNS}
            kept = self._coarser[timeframe] = resample_arrays(self.open_time, columns, self.interval, target)
        return kept

    @cached_property
    def _coarser(self) -> dict[str, CoarseBars]:
        return {}

    def view(self, index: int) -> MarketView:
        """The market as it was known at the close of bar `index`."""
        if not 0 <= index < len(self):
            raise DataError(f"{self.source}: bar {index} is outside 0..{len(self) - 1}")
        return MarketView(self, index)
