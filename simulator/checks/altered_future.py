"""A market that is the real one up to the present and another one after it, at each decision of a run.

A strategy that decides in it as it did in the real market has used nothing later, whatever way it looked: each decision
is a cut. Only the past is ever real in here, so a whole run is tested in the time of one run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window
from simulator.checks.perturbation import perturbed
from simulator.market.market import Bars, Indicator, Market, MarketView, name_of, values_of
from simulator.market.resample import CoarseBars, resample_arrays
from simulator.market.series import BOOK_COLUMNS
from simulator.market.timeframes import BAR_COLUMNS, bar_start

_RENEWED = 64  # bars after which the near future is made anew, at the price level of then
_NEAR = 256  # bars of it
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12  # differences of indicators that are rounding; the latter times the largest value

# An indicator by what stays the same from run to run: symbol, name, parameters.
IndicatorName = tuple[str, str, tuple[float, ...]]
Indicators = Mapping[tuple[str, Indicator, tuple[float, ...]], FloatArray]  # as a market keeps them


@dataclass(frozen=True)
class IndicatorDifference:
    """An indicator that changed at `bar` when only bars after bar `cut` were altered."""

    name: IndicatorName
    cut: int
    bar: int
    expected: float
    found: float


class AlteredFuture:
    """The market of one run, in which `view(index)` makes everything up to bar `index` real.

    `recorded` are the indicators of the real run, in the order in which they were made. An indicator is made again at
    its first use, with the later bars altered, and compared with that of the real run (`differences`). From then on
    the values of the real run are given: to make it again at each bar would take too long.
    """

    def __init__(
        self,
        real: Market,
        start: int,
        rng: np.random.Generator,
        recorded: Indicators,
    ) -> None:
        self._market = _Shown(real, start, rng, by_name(recorded))

    def view(self, index: int) -> MarketView:
        """What was known at the close of bar `index`; not earlier than that of the last call."""
        self._market.reveal(index)
        return MarketView(self._market, index)

    @property
    def differences(self) -> list[IndicatorDifference]:
        """Indicators that were not as in the real run."""
        return self._market.differences


class AlteredRun(BacktestRun):
    """A run through the real market in which everything after each close looks otherwise: who decides as in the real
    one has used nothing later. Orders are filled at the real prices."""

    def __init__(self, market: Market, window: Window, seed: int, **terms: Any) -> None:
        super().__init__(market, window, **terms)
        self._future = AlteredFuture(market, window.start, np.random.default_rng([seed, window.start]), {})

    def view(self) -> MarketView:
        return self._future.view(self.index)


class _Shown(Market):
    """A market whose rows and events become the real ones as time passes."""

    def __init__(
        self,
        real: Market,
        start: int,
        rng: np.random.Generator,
        recorded: Mapping[IndicatorName, Sequence[FloatArray]],
    ) -> None:
        other = perturbed(real, start, rng)
        super().__init__(**{one.name: getattr(other, one.name) for one in fields(Market)})
        funding = {
            symbol: _Events(real.funding[symbol], events, lambda event: event.time)
            for symbol, events in other.funding.items()
        }
        news = _Events(real.news, other.news, lambda item: item.known_at)
        # The class is frozen for those who read it; these are its own parts.
        vars(self).update(
            funding=funding,
            news=news,
            differences=[],
            _real=real,
            _rng=rng,
            _recorded=recorded,
            _events=[*funding.values(), news],
            _rows=[
                (mine, its)
                for mine, its in ((getattr(self, one.name), getattr(real, one.name)) for one in fields(Market))
                if isinstance(mine, np.ndarray) and mine is not its
            ],
            _known=start,
            _renewed=start,
            _coarse={},
            _served={},
            _uses=Counter(),
        )
        self._renew()
        for events in self._events:
            events.reveal(self._now)

    differences: list[IndicatorDifference]
    _real: Market
    _rng: np.random.Generator
    _recorded: Mapping[IndicatorName, Sequence[FloatArray]]
    _events: list[_Events]
    _rows: list[tuple[Any, Any]]  # what has a row a bar: the array of this market and the real one
    _known: int  # the last real bar
    _renewed: int  # the bar at which the near future was last made
    _coarse: dict[str, tuple[CoarseBars, int]]  # with how many of its bars are real
    _served: dict[tuple[str, Indicator, tuple[float, ...]], _Served | None]
    _uses: Counter[IndicatorName]

    @property
    def _now(self) -> int:
        return int(self.open_time[self._known]) + self.interval

    def reveal(self, index: int) -> None:
        """Make everything up to the close of bar `index` real."""
        if index <= self._known:
            return
        rows, known_before = slice(self._known + 1, index + 1), self._now
        for shown, real in self._rows:
            shown[rows] = real[rows]
        vars(self)["_known"] = index
        for events in self._events:
            events.reveal(self._now)
        for name, series in self.series.items():
            passed = _between(series.known_at, known_before, self._now)
            for column, values in series.columns.items():
                values[passed] = self._real.series[name].columns[column][passed]
        for symbol, books in self.books.items():
            passed = _between(books.time, known_before, self._now)
            for column in BOOK_COLUMNS:
                getattr(books, column)[passed] = getattr(self._real.books[symbol], column)[passed]
        if index - self._renewed >= _RENEWED:
            self._renew()

    def _renew(self) -> None:
        """Make the near future anew, so that its prices are near those of now: a price far off is easily told."""
        begin, stop = self._known, min(self._known + _NEAR, len(self))
        near = {name: getattr(self, name)[max(0, begin - _NEAR) : stop] for name in BAR_COLUMNS}
        part = replace(
            self._real, open_time=self.open_time[max(0, begin - _NEAR) : stop], **near,
            funding={}, news=(), truth=None, partial=None, series={}, books={},
        )  # fmt: skip
        other = perturbed(part, begin - max(0, begin - _NEAR), self._rng)
        for name in BAR_COLUMNS:
            getattr(self, name)[begin + 1 : stop] = getattr(other, name)[len(other) - (stop - begin - 1) :]
        vars(self)["_renewed"] = begin

    def coarser(self, timeframe: str) -> CoarseBars:
        """As of every market, with the bars that are complete by now real."""
        real = self._real.coarser(timeframe)
        if timeframe not in self._coarse:
            columns = {name: getattr(self, name) for name in BAR_COLUMNS}
            self._coarse[timeframe] = resample_arrays(self.open_time, columns, self.interval, real.interval), 0
        coarse, known = self._coarse[timeframe]
        begin = bar_start(int(self.open_time[0]), coarse.interval)
        complete = (self._now - begin) // coarse.interval
        for name in (*BAR_COLUMNS, "partial"):
            getattr(coarse, name)[known:complete] = getattr(real, name)[known:complete]
        self._coarse[timeframe] = coarse, complete
        return coarse

    def indicator(self, symbol: str, indicator: Indicator, parameters: tuple[float, ...]) -> FloatArray:
        """An indicator as `AlteredFuture` says. Its values after now are those of another future or not to be used."""
        key = (symbol, indicator, parameters)
        if key in self._served:
            served = self._served[key]
            return self._made(key) if served is None else served.until(self._known)
        made, name = self._made(key), (symbol, name_of(indicator), parameters)
        of_name = self._recorded.get(name, ())
        expected = of_name[self._uses[name]] if self._uses[name] < len(of_name) else None
        self._uses[name] += 1
        if expected is None:
            self._served[key] = None
            return made
        difference = compared(name, expected, made, self._known)
        if difference is not None:
            self.differences.append(difference)
        self._served[key] = served = _Served(expected, made)
        return served.until(self._known)

    def _made(self, key: tuple[str, Indicator, tuple[float, ...]]) -> FloatArray:
        symbol, indicator, parameters = key
        bars = self._real.view(len(self._real) - 1).bars(symbol, len(self._real))
        return values_of(indicator, altered_bars(bars, self._known, self._rng), parameters)


class _Served:
    """The values of an indicator of the real run up to now, with others behind them."""

    def __init__(self, real: FloatArray, other: FloatArray) -> None:
        self._real, self._shown, self._known = real, other.astype(real.dtype), -1

    def until(self, bar: int) -> FloatArray:
        rows = slice(self._known + 1, bar + 1)
        self._shown[rows] = self._real[rows]
        self._known = max(self._known, bar)
        return self._shown


class _Events(Sequence[Any]):
    """Events that are the real ones up to now and others after it."""

    def __init__(self, real: Sequence[Any], other: Sequence[Any], known_at: Callable[[Any], int]) -> None:
        self._real, self._other, self._known_at = real, other, known_at
        self._known, self._skipped = 0, 0

    def reveal(self, now: int) -> None:
        self._known = bisect_right(self._real, now, key=self._known_at)
        self._skipped = bisect_right(self._other, now, key=self._known_at)

    def __len__(self) -> int:
        return self._known + len(self._other) - self._skipped

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self._real[place] if place < self._known else self._other[place - self._known + self._skipped]


def by_name(indicators: Indicators) -> dict[IndicatorName, list[FloatArray]]:
    """Indicators that two runs made, each with functions of its own, can be compared by their names and their order."""
    found: dict[IndicatorName, list[FloatArray]] = {}
    for (symbol, indicator, parameters), values in indicators.items():
        found.setdefault((symbol, name_of(indicator), parameters), []).append(values)
    return found


def compared(name: IndicatorName, expected: FloatArray, found: FloatArray, cut: int) -> IndicatorDifference | None:
    """The first value up to bar `cut` that is not as expected; rounding is allowed."""
    mine, its = expected[: cut + 1], found[: cut + 1]
    if mine.tobytes() == its.tobytes():
        return None
    finite = np.abs(mine[np.isfinite(mine)])
    close = np.isclose(mine, its, _RELATIVE, _ABSOLUTE * float(finite.max(initial=0.0)), equal_nan=True)
    if close.all():
        return None
    bar = int(np.flatnonzero(~close)[0])
    return IndicatorDifference(name, cut, bar, float(mine[bar]), float(its[bar]))


def altered_bars(bars: Bars, cut: int, rng: np.random.Generator) -> Bars:
    """The bars of a symbol with those after bar `cut` altered: another path near the price of then, other volumes."""
    count = len(bars) - cut - 1
    known = bars.close[: cut + 1]
    known = known[~np.isnan(known)]
    last = float(known[-1]) if len(known) else 100.0
    # A random walk folded into a band, so that it ends nowhere that no market goes.
    path = rng.normal(0.0, 0.2) + np.cumsum(rng.normal(0.0, 0.02, count + 1))
    price = last * np.exp(np.abs((path - 1.0) % 4.0 - 2.0) - 1.0)
    first, final = price[:-1], price[1:]
    # An indicator that was never given an absent bar may not know any.
    absent = rng.random(count) < (0.0 if bars.present.all() else 0.05)
    volume = float(np.nanmean(bars.volume[: cut + 1])) if len(known) else 1.0
    made = {
        "open": first,
        "high": np.maximum(first, final) * np.exp(rng.random(count) * 0.02),
        "low": np.minimum(first, final) * np.exp(-rng.random(count) * 0.02),
        "close": final,
        "volume": volume * np.exp(rng.normal(0.0, 0.5, count)),
        "half_spread": np.exp(rng.normal(-8.5, 0.3, count)),
    }
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(bars, name)[: cut + 1], np.where(absent, np.nan, values)])
        for name, values in made.items()
    }
    return replace(bars, **arrays, present=~np.isnan(arrays["close"]))


def _between(times: Any, after: int, until: int) -> slice:
    """The records that became known after `after` and up to `until`."""
    return slice(int(np.searchsorted(times, after, side="right")), int(np.searchsorted(times, until, side="right")))
