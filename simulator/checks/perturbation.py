"""Markets that agree with a market in everything that was known at a close, and in nothing else.

A market is truncated there, perturbed after it, or begun later. An `AlteredFuture` is perturbed after each close in
turn: who decides in it as in the real market has used nothing later, whatever way it looked. Each decision is a cut,
and a whole run is tested in the time of one run. Each function treats every field of `Market`. The truth is dropped:
nothing that a strategy may use depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import DataError
from simulator.market.events import FundingEvent, NewsItem
from simulator.market.market import Bars, Indicator, Market, MarketView, name_of, values_of
from simulator.market.price_paths import PrivateSigns
from simulator.market.resample import CoarseBars, resample_arrays
from simulator.market.series import DataSeries
from simulator.market.timeframes import BAR_COLUMNS, DAY_MS, bar_start

TREATED = frozenset(
    {
        "symbols", "timeframe", "source", "kinds",  # the same in every history
        "open_time", *BAR_COLUMNS, "partial", "funding", "news", "series", "signs", "truth",
    }
)  # fmt: skip

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12  # differences of indicators that are rounding; the latter times the largest value
_HOLES = 0.05  # share of later bars that are absent
_HEADLINES = (
    "buyers return after a quiet week",
    "outage at a large venue, withdrawals are paused",
    "regulator opens an inquiry",
    "record inflows into funds",
    "selling continues, no support in sight",
)


def truncated(market: Market, index: int) -> Market:
    """The market as if it ended with bar `index`: nothing that became known after its close exists."""
    now = _close_of(market, index)
    return replace(
        market,
        **_rows(market, slice(0, index + 1)),
        funding={symbol: tuple(one for one in events if one.time <= now) for symbol, events in market.funding.items()},
        news=tuple(item for item in market.news if item.known_at <= now),
        series={name: one.until(now) for name, one in market.series.items()},
        truth=None,
    )


def perturbed(market: Market, index: int, rng: np.random.Generator) -> Market:
    """The market up to the close of bar `index`, followed by other, random data of the same length.

    Bars continue from another price level with another path, volumes, spreads and holes; settlements have other rates,
    series other numbers at the same times; other headlines come out, some of them about events
    before the close of `index`. Equal states of `rng` give equal markets.
    """
    now = _close_of(market, index)
    bars = _other_columns(market, index, rng)
    partial = market.partial
    if partial is not None:
        partial = partial.copy()
        # An absent bar was built from nothing, so it is not partial either.
        partial[index + 1 :] = (rng.random(partial[index + 1 :].shape) < 0.5) & ~np.isnan(bars["close"][index + 1 :])
    return replace(
        market,
        **bars,
        partial=partial,
        funding={
            symbol: tuple(
                one if one.time <= now else FundingEvent(one.time, float(rng.normal(0.0, 1e-3))) for one in events
            )
            for symbol, events in market.funding.items()
        },
        news=(*(item for item in market.news if item.known_at <= now), *_other_news(market, now, rng)),
        series={name: _other_series(one, now, rng) for name, one in market.series.items()},
        signs=None if market.signs is None else _other_signs(market.signs, index),
        truth=None,
    )


def drop_before(market: Market, index: int) -> Market:
    """The market without the bars before `index`. What became known beside the bars stays: it is still known."""
    _close_of(market, index)
    return replace(
        market,
        **_rows(market, slice(index, None)),
        truth=None,
    )


def _rows(market: Market, rows: slice) -> dict[str, Any]:
    """The fields that have a row a bar, with these rows only."""
    arrays: dict[str, Any] = {name: getattr(market, name)[rows].copy() for name in ("open_time", *BAR_COLUMNS)}
    arrays["partial"] = None if market.partial is None else market.partial[rows].copy()
    return {**arrays, "signs": None if market.signs is None else market.signs.rows(rows)}


def other_bars(known: Mapping[str, FloatArray], count: int, rng: np.random.Generator, holes: float) -> dict[str, Any]:
    """`count` bars of a symbol, (count,) by column, which continue from its `known` ones, (k,) by column, on another
    path
    with other volumes and spreads. A share of `holes` is absent."""
    closes = known["close"][~np.isnan(known["close"])]
    moves = np.diff(np.log(closes[-1000:]))
    scale = float(moves.std()) if len(moves) > 1 and moves.std() > 0.0 else 0.01
    # A jump of the whole level, so that the very next open is another one by far more than a tick, and a random walk
    # that is folded into a band, so that it ends nowhere that no market goes.
    path = rng.normal(0.0, 0.5) + np.cumsum(rng.normal(0.0, scale, count + 1))
    prices = (closes[-1] if len(closes) else 100.0) * np.exp(np.abs((path - 1.0) % 4.0 - 2.0) - 1.0)
    first, final = prices[:-1], prices[1:]
    wicks = np.exp(np.abs(rng.normal(0.0, scale, (2, count))))
    volume, spread = (_typical(known[name], without) for name, without in (("volume", 1.0), ("half_spread", 2e-4)))
    made = {
        "open": first,
        "high": np.maximum(first, final) * wicks[0],
        "low": np.minimum(first, final) / wicks[1],
        "close": final,
        "volume": volume * np.exp(rng.normal(0.0, 1.0, count)),
        "half_spread": np.minimum(spread * np.exp(rng.normal(0.0, 0.5, count)), 0.5),
    }
    absent = rng.random(count) < holes
    return {name: np.where(absent, np.nan, values) for name, values in made.items()}


def altered_bars(bars: Bars, cut: int, rng: np.random.Generator) -> Bars:
    """The bars of a symbol with others after bar `cut`."""
    known = {name: getattr(bars, name)[: cut + 1] for name in BAR_COLUMNS}
    # An indicator that was never given an absent bar may not know any.
    made = other_bars(known, len(bars) - cut - 1, rng, 0.0 if bars.present.all() else _HOLES)
    arrays: dict[str, Any] = {name: np.concatenate([known[name], values]) for name, values in made.items()}
    return replace(bars, **arrays, present=~np.isnan(arrays["close"]))


def _other_columns(market: Market, index: int, rng: np.random.Generator) -> dict[str, Any]:
    """The bar columns, (T, S), with the rows after `index` made from what was known at its close and from `rng`."""
    other = {name: getattr(market, name).copy() for name in BAR_COLUMNS}
    for column in range(len(market.symbols)):
        known = {name: getattr(market, name)[: index + 1, column] for name in BAR_COLUMNS}
        for name, values in other_bars(known, len(market) - index - 1, rng, _HOLES).items():
            other[name][index + 1 :, column] = values
    return other


def _typical(values: FloatArray, without: float) -> float:
    """Median of the positive values, `without` where there are none."""
    known = values[values > 0.0]
    return float(np.median(known)) if len(known) else without


def _close_of(market: Market, index: int) -> int:
    if not 0 <= index < len(market):
        raise DataError(f"{market.source}: bar {index} is outside 0..{len(market) - 1}; choose one of these.")
    return int(market.open_time[index]) + market.interval


def _other_signs(signs: PrivateSigns, index: int) -> PrivateSigns:
    """The signs with the opposite of each after `index`."""
    there = np.arange(len(signs.crowded))[:, None] <= index
    return PrivateSigns(*(np.where(there, shown, ~shown) for shown in (signs.crowded, signs.confirmed)))


def _other_news(market: Market, now: int, rng: np.random.Generator) -> list[NewsItem]:
    """Headlines that become known after `now`, in order: the first ones at once, the others until the market's end."""
    about = [*market.symbols, None]
    end = max(int(market.open_time[-1]), now) + market.interval
    soon = [now + 1 + number for number in range(len(about))]
    times = sorted([*soon, *rng.integers(now + 1, end, 4 * len(about)).tolist()])
    return [
        NewsItem(
            time=time - int(rng.integers(0, market.interval)),
            known_at=time,
            symbol=about[int(rng.integers(len(about)))],
            text=_HEADLINES[int(rng.integers(len(_HEADLINES)))],
        )
        for time in times
    ]


def _other_series(series: DataSeries, now: int, rng: np.random.Generator) -> DataSeries:
    """The records after `now` with other numbers, on the scale of the column."""
    begin = int(np.searchsorted(series.known_at, now, side="right"))
    columns = {}
    for name, values in series.columns.items():
        other = values.copy()
        size = float(np.abs(values).mean()) if len(values) else 0.0
        noise = rng.normal(0.0, max(size, 1e-6), len(values) - begin)
        other[begin:] = values[begin:] * np.exp(rng.normal(0.0, 0.5, len(noise))) + noise
        columns[name] = other
    return replace(series, columns=columns)


# An indicator by what stays the same from run to run: symbol, name, parameters.
IndicatorName = tuple[str, str, tuple[float, ...]]
Indicators = Mapping[tuple[str, Indicator, tuple[float, ...]], FloatArray]  # as a market keeps them


class AlteredRun(BacktestRun):
    """A run through the real market in which everything after each close looks otherwise: who decides as in the real
    one has used nothing later. Orders are filled at the real prices."""

    def __init__(self, market: Market, window: Window, seed: int, **terms: Any) -> None:
        super().__init__(market, window, **terms)
        self._future = AlteredFuture(market, window.start, np.random.default_rng([seed, window.start]), {})

    def view(self) -> MarketView:
        return self._future.view(self.index)


class AlteredFuture(Market):
    """The market of one run, in which `view(index)` makes everything up to the close of bar `index` real.

    `recorded` are the indicators of the real run, in the order in which they were made. An indicator is made again at
    its first use, with the later bars altered, and compared with that of the real run (`changed`). From then on the
    values of the real run are given up to now: to make it again at each bar would take too long.
    """

    def __init__(self, real: Market, start: int, rng: np.random.Generator, recorded: Indicators) -> None:
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
            _real=real,
            _rng=rng,
            _recorded=by_name(recorded),
            _events=[*funding.values(), news],
            _rows=[*_arrays_beside(self, real), *_arrays_beside(self.signs, real.signs)],
            _known=start,
            changed=None,
            _coarse={},
            _served={},
            _uses=Counter(),
        )
        for events in self._events:
            events.reveal(self._now)

    # An indicator that was not as in the real run, the bar, and both values there.
    changed: tuple[IndicatorName, int, float, float] | None
    _real: Market
    _rng: np.random.Generator
    _recorded: Mapping[IndicatorName, Sequence[FloatArray]]
    _events: list[_Events]
    _rows: list[tuple[Any, Any]]  # what has a row a bar: the array of this market and the real one
    _known: int  # the last real bar
    _coarse: dict[str, tuple[CoarseBars, int]]  # with how many of its bars are real
    _served: dict[tuple[str, Indicator, tuple[float, ...]], _Served | None]
    _uses: Counter[IndicatorName]

    @property
    def _now(self) -> int:
        return int(self.open_time[self._known]) + self.interval

    def view(self, index: int) -> MarketView:
        """What was known at the close of bar `index`; not earlier than that of the last call."""
        if index > self._known:
            self._reveal(index)
        return MarketView(self, index)

    def _reveal(self, index: int) -> None:
        """Make everything up to the close of bar `index` real."""
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
        """An indicator as the class says. Its values after now are those of another future or not to be used."""
        key = (symbol, indicator, parameters)
        if key not in self._served:
            made, name = self._made(key), (symbol, name_of(indicator), parameters)
            of_name = self._recorded.get(name, ())
            real = of_name[self._uses[name]] if self._uses[name] < len(of_name) else None
            self._uses[name] += 1
            self._served[key] = None if real is None else _Served(real, made)
            if real is None:
                return made
            bar = first_differing(real, made, self._known)
            if bar is not None:
                vars(self)["changed"] = name, bar, float(real[bar]), float(made[bar])
        served = self._served[key]
        return self._made(key) if served is None else served.until(self._known)

    def _made(self, key: tuple[str, Indicator, tuple[float, ...]]) -> FloatArray:
        symbol, indicator, parameters = key
        bars = self._real.view(len(self._real) - 1).bars(symbol, len(self._real))
        return values_of(indicator, altered_bars(bars, self._known, self._rng), parameters)


def _arrays_beside(mine: Any, its: Any) -> list[tuple[Any, Any]]:
    """The arrays of a dataclass that another one of its kind has as well, and does not share; none of None."""
    pairs = [(getattr(mine, one.name), getattr(its, one.name)) for one in fields(mine)] if mine is not None else []
    return [(one, other) for one, other in pairs if isinstance(one, np.ndarray) and one is not other]


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


def _between(times: Any, after: int, until: int) -> slice:
    """The records that became known after `after` and up to `until`."""
    return slice(int(np.searchsorted(times, after, side="right")), int(np.searchsorted(times, until, side="right")))


def first_differing(expected: FloatArray, found: FloatArray, cut: int) -> int | None:
    """The bar of the first value up to bar `cut` that is not as expected; rounding is allowed."""
    mine, its = expected[: cut + 1], found[: cut + 1]
    if mine.tobytes() == its.tobytes():
        return None
    finite = np.abs(mine[np.isfinite(mine)])
    close = np.isclose(mine, its, _RELATIVE, _ABSOLUTE * float(finite.max(initial=0.0)), equal_nan=True)
    return None if close.all() else int(np.flatnonzero(~close)[0])


# The same history with something of it in another order. A trader who only reads what it is shown has no more to go by
# in the one than in the other; a model that remembers what really came next has.

_PRICES = ("open", "high", "low", "close")


def with_shuffled_news(market: Market, seed: int) -> Market:
    """The market with the texts of its headlines at each other's times: a text keeps nothing but its words.

    Times and coins stay where they are, so that as many headlines come out as did. Raises `DataError` where there are
    fewer than two.
    """
    if len(market.news) < 2:
        raise DataError(f"{market.source}: {len(market.news)} headlines cannot be shuffled; name a folder of news")
    order = np.random.default_rng(seed).permutation(len(market.news))
    news = tuple(replace(item, text=market.news[place].text) for item, place in zip(market.news, order, strict=True))
    return replace(market, news=news)


def with_shuffled_days(market: Market, start: int, stop: int, seed: int) -> Market:
    """The market up to the close of bar `start`; from there to bar `stop` its days in another order.

    A day keeps its bars as changes of the price before it, its volumes, spreads, headlines and funding rates, so the
    whole window's change stays the same and its path does not. Bars after `stop` are left out, and so are
    series, which would tell of the real days.

    Raises `DataError` for a window of fewer than three days, and for a market whose roles have signs of their own.
    """
    if market.signs is not None:
        raise DataError(f"{market.source}: the days of a market with private signs cannot be reordered")
    a_day = max(1, DAY_MS // market.interval)
    days = (stop - start) // a_day
    if days < 3:
        raise DataError(
            f"{market.source}: the window from bar {start} to {stop} has {days} whole days, which is too few to be "
            "reordered: choose a window of three days or more"
        )
    order = np.random.default_rng(seed).permutation(days)
    tail = np.arange(start + 1 + days * a_day, stop + 1)
    moved = np.concatenate([*(start + 1 + day * a_day + np.arange(a_day) for day in order), tail])
    rows = np.concatenate([np.arange(start + 1), moved])
    columns: dict[str, Any] = {name: getattr(market, name)[rows] for name in BAR_COLUMNS}
    changes = {name: getattr(market, name) / _price_before(market.close) for name in _PRICES}
    for column in range(len(market.symbols)):
        here = {name: changes[name][moved, column] for name in _PRICES}
        steps = np.where(np.isfinite(here["close"]), here["close"], 1.0)
        closes = market.close[: start + 1, column]
        known = closes[np.isfinite(closes)]
        if not len(known):
            raise DataError(f"{market.source}: {market.symbols[column]} has no price before bar {start}")
        before = known[-1] * np.concatenate([[1.0], np.cumprod(steps)[:-1]])
        for name in _PRICES:
            columns[name][start + 1 :, column] = before * here[name]
    begin, end = (int(market.open_time[bar]) + market.interval for bar in (start, stop))
    length, place_of = a_day * market.interval, {int(day): place for place, day in enumerate(order)}

    def shift(time: int) -> int:
        """By how much (ms) what happened at `time` is moved. A close belongs to the day that ends with it."""
        day = -((begin - time) // length) - 1
        return (place_of[day] - day) * length if 0 <= day < days else 0

    def moved_news(item: NewsItem) -> NewsItem:
        return replace(item, time=item.time + shift(item.known_at), known_at=item.known_at + shift(item.known_at))

    funding = {
        symbol: [FundingEvent(one.time + shift(one.time), one.rate) for one in events if one.time <= end]
        for symbol, events in market.funding.items()
    }
    news = (moved_news(item) for item in market.news if item.known_at <= end)
    return replace(
        market,
        open_time=market.open_time[: stop + 1],
        **columns,
        partial=None if market.partial is None else market.partial[rows],
        news=tuple(sorted(news, key=lambda item: item.known_at)),
        funding={symbol: tuple(sorted(events, key=lambda one: one.time)) for symbol, events in funding.items()},
        series={},
        truth=None,
    )


def _price_before(close: FloatArray) -> FloatArray:
    """(T, S): the last close before each bar; NaN before the first."""
    places = np.where(np.isfinite(close), np.arange(len(close))[:, None], -1)
    newest = np.maximum.accumulate(places, axis=0)
    filled = np.where(newest >= 0, np.take_along_axis(close, np.maximum(newest, 0), axis=0), np.nan)
    return np.vstack([np.full((1, close.shape[1]), np.nan), filled[:-1]])
