"""Columnar market history and the point-in-time view of it.

A `Market` holds the whole history of several symbols on one time grid. Strategies, tools and agents get a `MarketView`
instead. It stands at the close of one bar and is their only access to the data. A request for anything that was not
known by then raises `LookAheadError`.

Time is in integer milliseconds since the epoch, UTC. Bars carry their open time; bar `i` is complete, and so known,
at `open_time[i] + interval`. Arrays are `(T, S)`: T bars, S symbols, float64. A bar that the exchange never produced is
NaN with `present` False; nothing is ever filled in.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import DataError, LookAheadError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.instruments import MarketKind
from simulator.market.price_paths import PrivateSigns
from simulator.market.resample import CoarseBars, resample_arrays
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS, HALF_SPREAD_BPS, bar_start, interval_of

if TYPE_CHECKING:
    import pandas as pd

Indicator = Callable[..., FloatArray]


class HiddenState(Protocol):
    """The state behind a synthetic market, which a market only carries along; see `simulator.synthetic.truth`."""

    def select(self, symbols: Sequence[str]) -> HiddenState:
        """The state of some of the symbols, in the order asked for."""


@dataclass(frozen=True)
class Market:
    """History of S symbols on one grid of T bars (see the module's docstring for units).

    `half_spread` is a fraction of the price, per bar. `truth` exists for synthetic markets only and is never reachable
    from a view. Equal content gives an equal `content_hash`, whatever file it came from; `kinds` is not content: it
    states how to trade, not what happened.
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
    truth: HiddenState | None = None
    partial: BoolArray | None = None  # (T, S): bars built from an incomplete set of finer bars; None: not resampled
    source: str = "memory"
    series: dict[str, DataSeries] = field(default_factory=dict)  # by name, like onchain/BTC
    kinds: dict[str, MarketKind] = field(default_factory=dict)  # spot or perpetual, of the symbols where it is known
    signs: PrivateSigns | None = None  # of a market in which each role knows what no other does

    def __post_init__(self) -> None:
        shape = (len(self.open_time), len(self.symbols))
        for name in BAR_COLUMNS:
            # Whole numbers would be other content than the same floats, and the kernel would be compiled for them anew.
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
            if getattr(self, name).shape != shape:
                raise DataError(f"{self.source}: {name} has shape {getattr(self, name).shape}, expected {shape}")
        if len(set(self.symbols)) != len(self.symbols) or not self.symbols:
            raise DataError(f"{self.source}: symbols must be distinct and at least one, got {list(self.symbols)}")
        if len(self.open_time) == 0:
            raise DataError(f"{self.source}: there are no bars")
        steps = np.diff(self.open_time)
        if len(steps) and not (steps == self.interval).all():
            raise DataError(f"{self.source}: the grid of bars is not regular; load it through simulator.data.catalog")
        # A view finds the known events by bisection. Wrong order would let it see the future.
        for symbol, events in self.funding.items():
            if any(later.time <= earlier.time for earlier, later in pairwise(events)):
                raise DataError(f"{self.source}: the funding of {symbol} is not in order of time")
        if any(later.known_at < earlier.known_at for earlier, later in pairwise(self.news)):
            raise DataError(f"{self.source}: the news are not in order of known_at")
        if self.signs is not None and not self.signs.crowded.shape == self.signs.confirmed.shape == shape:
            raise DataError(f"{self.source}: private signs of shape {self.signs.crowded.shape}, expected {shape}")
        # Series check their own order.
        for name in self.series:
            if name.count("/") != 1:
                raise DataError(f"{self.source}: {name!r} is not a name of a series; write kind/name, like onchain/BTC")

    @classmethod
    def from_frame(
        cls,
        frames: pd.DataFrame | Mapping[str, pd.DataFrame],
        symbol: str = "BTCUSDT",
        *,
        half_spread_bps: float = HALF_SPREAD_BPS,
    ) -> Self:
        """A market of pandas tables of bars: one of `symbol`, or several by symbol.

        Each has an index of open times (without a zone: UTC) and the columns open, high, low, close and volume; no
        order is filled in a bar without volume. A row of NaN alone is an absent bar. `half_spread_bps` is half the
        spread in basis points; its default is that of files without one. Raises `DataError`, with the time of the row,
        for one that is NaN in part, off the grid of whole bars, or impossible.
        """
        from simulator.market.resample import frame_columns  # pandas takes half a second

        by_symbol = frames if isinstance(frames, Mapping) else {symbol: frames}
        timeframe, open_time, columns = frame_columns(by_symbol, half_spread_bps)
        return cls(tuple(by_symbol), timeframe, open_time, **columns, source="a table")

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
        """Cache of `MarketView.computed`."""
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
        if self.signs is not None:
            for part in self.signs.content():
                digest.update(part)
        for name, one in sorted(self.series.items()):
            digest.update(f"|series|{name}|{len(one)}|".encode())
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
            kinds={symbol: self.kinds[symbol] for symbol in symbols if symbol in self.kinds},
            signs=None if self.signs is None else self.signs.select(columns),
        )

    def resample(self, timeframe: str) -> Market:
        """The same history in coarser bars (see `simulator.market.resample`); all else keeps its times.

        A resampled market has no truth: the hidden state lives on the finer grid. Raises `DataError` when the bars of
        `timeframe` are not made of whole bars of this market, or when not one of them is complete, and for a market of
        private knowledge, whose signs are those of its own bars.
        """
        if timeframe == self.timeframe:
            return self
        if self.signs is not None:
            raise DataError(f"{self.source} has signs at each bar and no coarser bars; generate it at {timeframe}")
        coarse = self.coarser(timeframe)
        if not len(coarse.open_time):
            raise DataError(f"{self.source}: {len(self)} bars of {self.timeframe} hold no complete bar of {timeframe}")
        partial = coarse.partial
        if self.partial is not None:
            # What was partial before stays partial, also when a market is resampled twice.
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

    def indicator(self, symbol: str, indicator: Indicator, parameters: tuple[float, ...]) -> FloatArray:
        """(T,): an indicator of the whole history, made once and kept, for `MarketView.computed`. Not to be written to.

        Raises `DataError` as `values_of` does.
        """
        made = values_of(indicator, self.view(len(self) - 1).bars(symbol, len(self)), parameters)
        self.indicators[symbol, indicator, parameters] = made
        return made

    def without_indicators(self) -> Market:
        """The same market, for a run whose indicators are to be known apart from those of other runs."""
        same = copy(self)
        vars(same).pop("indicators", None)
        return same

    def view(self, index: int) -> MarketView:
        """The market as it was known at the close of bar `index`."""
        if not 0 <= index < len(self):
            raise DataError(f"{self.source}: bar {index} is outside 0..{len(self) - 1}")
        return MarketView(self, index)


def values_of(indicator: Indicator, bars: Bars, parameters: tuple[float, ...]) -> FloatArray:
    """(n,): the indicator of n bars, read-only. Raises `DataError` for what is not an array of one number a bar."""
    made = np.array(indicator(bars, *parameters), order="C")
    if made.shape != (len(bars),) or made.dtype.kind not in "biuf":
        raise DataError(
            f"{name_of(indicator)} returned {made.dtype} of shape {made.shape}, expected ({len(bars)},) numbers."
        )
    made.flags.writeable = False
    return made


def name_of(indicator: Indicator) -> str:
    """What an indicator is called in messages and verdicts."""
    return str(getattr(indicator, "__qualname__", type(indicator).__name__))


@dataclass(frozen=True)
class Bars:
    """Consecutive grid bars of one symbol, oldest first. Absent bars are NaN with `present` False."""

    symbol: str
    open_time: IntArray
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    half_spread: FloatArray
    present: BoolArray

    def __len__(self) -> int:
        return len(self.open_time)


class MarketView:
    """What was known at the close of bar `index`: the only access to data for agents, tools and strategies.

    No attribute of a view, and no array that it gives, leads to what comes later. A view cannot be changed.
    """

    __slots__ = ("_history", "index")
    index: int  # bar of the market at whose close the view stands

    def __init__(self, market: Market, index: int) -> None:
        _set_history(self, market)
        set_index(self, index)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a MarketView cannot be changed, so its {name} cannot be set")

    @property
    def symbols(self) -> tuple[str, ...]:
        return _history_of(self).symbols

    @property
    def timeframe(self) -> str:
        return _history_of(self).timeframe

    @property
    def interval(self) -> int:
        return _history_of(self).interval

    @property
    def now(self) -> int:
        """The clock: close time of the current bar."""
        market = _history_of(self)
        return int(market.open_time[self.index]) + market.interval

    def bar(self, symbol: str, index: int) -> Bars:
        """The single bar at an absolute `index`. Raises `LookAheadError` past the clock."""
        if index > self.index:
            raise LookAheadError(f"bar {index} of {symbol} is not complete at bar {self.index}")
        return self._slice(symbol, index, index + 1)

    def bars(self, symbol: str, count: int, timeframe: str | None = None) -> Bars:
        """The last `count` grid bars, the current one included; fewer where the history begins later.

        `timeframe` asks for coarser bars, made by the rules of `simulator.market.resample`. Only complete ones are
        given: a coarse bar is there from the close of its last finer bar on. Raises `DataError` where the bars of
        `timeframe` are not made of whole bars of this market.
        """
        market = _history_of(self)
        if timeframe is None or timeframe == market.timeframe:
            return self._slice(symbol, max(0, self.index + 1 - count), self.index + 1)
        column = market.column(symbol)
        coarse = market.coarser(timeframe)
        begin = bar_start(int(market.open_time[0]), coarse.interval)
        complete = (self.now - begin) // coarse.interval
        return _bars_of(coarse, symbol, column, max(0, complete - count), complete)

    def computed(self, symbol: str, indicator: Indicator, *parameters: float) -> FloatArray:
        """(index + 1,): an indicator at every bar so far, the newest last; made once per market, so it is cheap to ask
        for at each bar.

        `indicator(bars, *parameters)` gets the symbol's whole history and returns an array of its length whose value at
        a bar may depend on that bar and earlier ones only. It is the one function that is given later bars, so the
        look-ahead verdict of a backtest makes each indicator again with other later bars and compares the arrays.
        The array is not to be written to.
        """
        market = _history_of(self)
        known = market.indicators.get((symbol, indicator, parameters))
        if known is None:
            known = market.indicator(symbol, indicator, parameters)
        return np.asarray(_Past(known, self.index + 1))

    def latest(self, symbol: str, indicator: Indicator, *parameters: float) -> float:
        """The newest value of `computed`, as a plain number: the quickest way to look an indicator up."""
        market = _history_of(self)
        known = market.indicators.get((symbol, indicator, parameters))
        if known is None:
            known = market.indicator(symbol, indicator, parameters)
        return known.item(self.index)

    def last_close(self, symbol: str) -> float:
        """Close of the newest present bar; NaN before the symbol's first bar."""
        market = _history_of(self)
        column = market.close[: self.index + 1, market.column(symbol)]
        known = np.flatnonzero(~np.isnan(column[-500:]))
        if len(known):
            return float(column[-500:][known[-1]])
        known = np.flatnonzero(~np.isnan(column))
        return float(column[known[-1]]) if len(known) else float("nan")

    def funding(self, symbol: str, count: int) -> tuple[FundingEvent, ...]:
        """The last `count` settlements at or before now."""
        market = _history_of(self)
        market.column(symbol)  # an unknown symbol is an error, not an empty answer
        events = market.funding.get(symbol, ())
        stop = bisect_right(events, self.now, key=lambda event: event.time)
        return tuple(events[max(0, stop - count) : stop])

    def news(self, symbol: str, count: int, max_age: int | None = None) -> tuple[NewsItem, ...]:
        """The last `count` headlines about `symbol` or the whole market, known by now and at most `max_age` ms old."""
        market, now = _history_of(self), self.now
        market.column(symbol)
        if count < 1:
            return ()
        found: list[NewsItem] = []
        for position in range(bisect_right(market.news, now, key=lambda item: item.known_at) - 1, -1, -1):
            item = market.news[position]
            if max_age is not None and now - item.known_at > max_age:
                break
            if item.symbol is None or item.symbol == symbol:
                found.append(item)
                if len(found) == count:
                    break
        return tuple(reversed(found))

    @property
    def series_names(self) -> tuple[str, ...]:
        """The series of which at least one record is known by now, sorted."""
        now, series = self.now, _history_of(self).series
        return tuple(name for name, one in sorted(series.items()) if len(one) and one.known_at[0] <= now)

    def series(self, name: str, count: int) -> DataSeries:
        """The last `count` records of series `name` that are known by now; fewer, or none, where it begins later.

        Raises `DataError` where the market has no such series.
        """
        market = _history_of(self)
        try:
            one = market.series[name]
        except KeyError:
            there = ", ".join(sorted(market.series)) or "none"
            raise DataError(f"{market.source}: no series '{name}'; there are {there}") from None
        stop = int(np.searchsorted(one.known_at, self.now, side="right"))
        return one.rows(max(0, stop - count), stop)

    @property
    def private(self) -> bool:
        """Whether each role knows what no other does, so that its tools may not show what is another's."""
        return _history_of(self).signs is not None

    def crowded(self, symbol: str) -> bool | None:
        """Whether a coin's market is crowded now; None where nobody says so."""
        market = _history_of(self)
        column = market.column(symbol)
        return None if market.signs is None else bool(market.signs.crowded[self.index, column])

    def confirmed(self, symbol: str, published: int | None = None) -> bool | None:
        """Whether the headlines about a coin are confirmed now, and not rumours, or were when one was `published`, a
        time in ms (before the first bar: at its close); None where nobody says so. Raises `LookAheadError` for a time
        to come."""
        market, index = _history_of(self), self.index
        column = market.column(symbol)
        if published is not None:
            if published > self.now:
                raise LookAheadError(f"{published} is later than {self.now}, the time of this view")
            closes = market.open_time[: index + 1] + market.interval
            index = max(0, int(np.searchsorted(closes, published, side="right")) - 1)
        return None if market.signs is None else bool(market.signs.confirmed[index, column])

    def _slice(self, symbol: str, start: int, stop: int) -> Bars:
        market = _history_of(self)
        column = market.column(symbol)
        if start < 0:
            raise LookAheadError(f"bar {start} of {symbol} lies before the history")
        return _bars_of(market, symbol, column, start, stop)


class _Past:
    """The first `count` values of an array, which numpy reads through the array interface.

    A slice would lead to all values through its `base`; an array made from this has only this as its base.
    """

    __slots__ = ("__array_interface__", "_whole")

    def __init__(self, whole: FloatArray, count: int) -> None:
        described = whole.__array_interface__
        described["shape"] = (count,)
        self.__array_interface__ = described
        _set_whole(self, whole)  # its memory must live as long as this


# The slots that hold what a strategy must not see are reached through these functions only: without its name in the
# class, no attribute of the object leads to it.
_history_of: Callable[[MarketView], Market] = vars(MarketView)["_history"].__get__
_set_history: Callable[[MarketView, Market], None] = vars(MarketView)["_history"].__set__
_set_whole: Callable[[_Past, FloatArray], None] = vars(_Past)["_whole"].__set__
set_index: Callable[[MarketView, int], None] = vars(MarketView)["index"].__set__  # only for a view that nobody keeps
del MarketView._history, _Past._whole  # type: ignore[attr-defined]  # slots are attributes at run time


def _bars_of(history: Market | CoarseBars, symbol: str, column: int, start: int, stop: int) -> Bars:
    rows = slice(start, stop)
    close = history.close[rows, column].copy()
    # Copies: a caller that writes into its bars must not change history.
    return Bars(
        symbol=symbol,
        open_time=history.open_time[rows].copy(),
        open=history.open[rows, column].copy(),
        high=history.high[rows, column].copy(),
        low=history.low[rows, column].copy(),
        close=close,
        volume=history.volume[rows, column].copy(),
        half_spread=history.half_spread[rows, column].copy(),
        present=~np.isnan(close),
    )
