"""Market data in a folder of Parquet files.

| file | columns |
| --- | --- |
| `{SYMBOL}-{timeframe}.parquet` | timestamp (of the open), open, high, low, close, volume; maybe half_spread, partial |
| `{SYMBOL}-funding.parquet` | timestamp, funding_rate |
| `instruments.json` | no table: spot or perpetual by symbol, see `simulator.data.venue` |
| `news.parquet` | time, known_at, symbol (null: the whole market), text |
| `series-{kind}-{name}.parquet` | see `simulator.market.series` |
| `truth.parquet`, `market.json` | of synthetic markets: the hidden state of every bar, and the recipe |

What a venue allows (`rules.json`) is read by `simulator.data.venue`.

Bars that are not in a file are absent from the market; nothing is filled in. `simulator.market.gaps.gap_summary`
lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.data.archive import SYMBOL, check_finished, read_truth, recorded_hash
from simulator.data.venue import INSTRUMENTS_FILE, RULES_FILE, StatedKind, read_instruments, read_rules, stated_kinds
from simulator.errors import DataError
from simulator.folders import data_folder
from simulator.market.bar_checks import BAR_VALUES, Issue, check_bars, check_funding, unusual_bars
from simulator.market.events import DEFAULT_DELAY, read_funding, read_news
from simulator.market.market import Market
from simulator.market.resample import resample_arrays
from simulator.market.series import read_series, series_in
from simulator.market.timeframes import (
    BAR_COLUMNS,
    HALF_SPREAD_BPS,
    TIMEFRAMES,
    format_time,
    interval_of,
    next_bar_start,
)
from simulator.tables import numbers, read_table, times

BAR_FILE = re.compile(rf"({SYMBOL.pattern})-({'|'.join(TIMEFRAMES)})\.parquet")


@dataclass(frozen=True)
class SeriesInfo:
    """One file of bars. `first` and `last` are open times (ms), None in an empty file."""

    symbol: str
    timeframe: str
    path: Path
    bars: int
    first: int | None
    last: int | None
    absent: int  # bars missing between first and last


@dataclass(frozen=True)
class _Series:
    """Bars of one symbol on its own regular grid, `(T, 1)` each, NaN where absent."""

    open_time: IntArray
    columns: dict[str, FloatArray]
    partial: BoolArray


class Catalog:
    """The market data in the folder `root`. Raises `DataError` when there is no such folder."""

    def __init__(self, root: str | Path) -> None:
        self.root = data_folder(root)
        check_finished(self.root)

    def series(self) -> list[SeriesInfo]:
        """Every file of bars, by symbol and timeframe. Raises `DataError` when there are none or one is unreadable."""
        found = []
        for symbol, files in self._files().items():
            for timeframe, path in files.items():
                time = times(read_table(path, ("timestamp",)), "timestamp", path)
                first, last = (int(time.min()), int(time.max())) if len(time) else (None, None)
                grid = 0 if first is None or last is None else (last - first) // interval_of(timeframe) + 1
                found.append(SeriesInfo(symbol, timeframe, path, len(time), first, last, grid - len(time)))
        return found

    def symbols(self) -> tuple[str, ...]:
        """The symbols that have bars, sorted."""
        return tuple(self._files())

    def kinds(self, funding_dir: str | Path | None = None) -> dict[str, StatedKind]:
        """What states of each symbol whether it is spot or a perpetual; `funding_dir` as of `load`.

        Raises `DataError` for statements that cannot be read or contradict each other.
        """
        root = self.root if funding_dir is None else Path(funding_dir)
        funded = [path.name.removesuffix("-funding.parquet") for path in root.glob("*-funding.parquet")]
        return stated_kinds(self.root, self.symbols(), funded)

    def check(self, symbols: Sequence[str] | None = None, timeframe: str | None = None) -> list[Issue]:
        """Everything wrong or noteworthy about the files, of some symbols or one timeframe where given."""
        issues: list[Issue] = []
        wanted = self._checked(symbols) if symbols is not None else self.symbols()
        open_times: dict[str, list[tuple[IntArray, int]]] = {}
        seen: dict[tuple[str, bytes], Path] = {}
        files = [(name, frame, path) for name, own in self._files().items() for frame, path in own.items()]
        for symbol, frame, path in files:
            if symbol not in wanted or timeframe not in (None, frame):
                continue
            try:
                time, columns, found = read_bars(path, interval_of(frame))
            except DataError as error:
                issues.append(_unreadable(path, error))
                continue
            issues.extend(found)
            if not any(issue.fatal for issue in found):
                issues.extend(unusual_bars(str(path), interval_of(frame), time, columns))
                open_times.setdefault(symbol, []).append((time, interval_of(frame)))
                same = seen.setdefault((frame, time.tobytes() + columns["close"].tobytes()), path)
                if same != path:
                    detail = f"holds the same times and closes as {same.name}: one of the two is of another symbol"
                    issues.append(Issue(str(path), "same_bars", len(time), detail, fatal=False))
        issues.extend(self._check_beside(None if symbols is None else wanted, open_times))
        recorded = recorded_hash(self.root)
        if recorded and symbols is None and timeframe is None and not any(issue.fatal for issue in issues):
            kept, frame, content_hash = recorded
            if self.load(kept, frame).content_hash != content_hash:
                detail = "the files are not those that were written here, so the truth may not fit them"
                issues.append(Issue(str(self.root), "changed", 1, detail, fatal=False))
        return issues

    def _check_beside(
        self, wanted: Sequence[str] | None, open_times: dict[str, list[tuple[IntArray, int]]]
    ) -> Iterator[Issue]:
        """Findings about what stands beside the bars: funding of the `wanted` symbols, rules, news, series."""
        rules, instruments, news = (self.root / name for name in (RULES_FILE, INSTRUMENTS_FILE, "news.parquet"))
        beside: list[tuple[Path, Callable[[Path], Any]]] = [
            *((path, read_funding) for path in sorted(self.root.glob("*-funding.parquet"))),
            *((path, read_series) for path in series_in(self.root).values()),
            (rules, read_rules),
            (instruments, read_instruments),
            (news, lambda path: read_news(path, self.symbols())),
        ]
        if rules.exists() and instruments.exists():
            beside.append((self.root, lambda _: self.kinds()))
        for path, read in beside:
            symbol = path.name.removesuffix("-funding.parquet")
            if not path.exists() or (read is read_funding and wanted is not None and symbol not in wanted):
                continue
            try:
                found = read(path)
                if read is read_funding:
                    yield from check_funding(str(path), found, open_times.get(symbol, []))
            except DataError as error:
                yield _unreadable(path, error)

    def load(
        self,
        symbols: Sequence[str] | None = None,
        timeframe: str = "1h",
        *,
        start: int | None = None,
        end: int | None = None,
        resample: str | None = None,
        half_spread_bps: float = HALF_SPREAD_BPS,
        funding_dir: str | Path | None = None,
        news_path: str | Path | None = None,
        news_delay: int = DEFAULT_DELAY,
        min_bars: int = 1,
    ) -> Market:
        """The market of `symbols` (all where None) in bars of `timeframe`.

        Where a symbol has no file of that timeframe, its coarsest finer one is resampled; `resample` asks for bars made
        from those of `timeframe`. The grid spans all symbols. `start` (inclusive) and `end` (exclusive) bound the open
        times, ms. `half_spread_bps` stands in where a file has no `half_spread`. Funding and news come from the
        folder itself, or from `funding_dir` and `news_path` (a file or a folder; see `simulator.market.events` for
        `news_delay`). A symbol without a file of funding has none. All series of the folder are
        part of the market.

        Raises `DataError` for anything that cannot be used: see `simulator.market.bar_checks`, and `min_bars`.
        """
        chosen = self._checked(symbols if symbols is not None else self.symbols())
        target = interval_of(resample or timeframe)
        if target % interval_of(timeframe):
            raise DataError(f"{resample} bars cannot be made of {timeframe} bars")
        if not 0 <= half_spread_bps < 10_000:
            raise DataError(f"half_spread_bps is {half_spread_bps}; it must be at least 0 and below 10000")
        series = [self._series(symbol, timeframe, target, half_spread_bps, exact=bool(resample)) for symbol in chosen]
        first = min(int(one.open_time[0]) for one in series)
        stop = max(int(one.open_time[-1]) for one in series) + target
        kinds = self.kinds(funding_dir)
        low = first if start is None else max(first, next_bar_start(start, target))
        high = stop if end is None else min(stop, next_bar_start(end, target))
        bars = max(0, high - low) // target
        if bars < max(1, min_bars):
            raise DataError(
                f"{self.root}: the window holds {bars} bars of {resample or timeframe}, at least"
                f" {max(1, min_bars)} are needed; there is data from {format_time(first)} to {format_time(stop)} UTC"
            )
        open_time = low + target * np.arange(bars, dtype=np.int64)
        arrays, partial = _on_grid(series, open_time, target)
        funding_root = self.root if funding_dir is None else Path(funding_dir)
        if not funding_root.is_dir():
            raise DataError(f"{funding_root}: there is no such folder of funding rates")
        own = self.root / "news.parquet"
        reported = own if news_path is None and own.exists() else news_path
        news = () if reported is None else read_news(Path(reported), chosen, news_delay)
        funded = {symbol: funding_root / f"{symbol}-funding.parquet" for symbol in chosen}
        return Market(
            symbols=chosen,
            timeframe=resample or timeframe,
            open_time=open_time,
            **arrays,
            # What was known before the window stays: it was known in the window too.
            funding={
                symbol: tuple(event for event in read_funding(path) if event.time <= high)
                for symbol, path in funded.items()
                if path.exists()
            },
            news=tuple(item for item in news if item.known_at <= high),
            truth=None if resample else read_truth(self.root, chosen, timeframe, open_time),
            partial=partial if partial.any() else None,
            source=str(self.root),
            series={name: read_series(path).until(high) for name, path in series_in(self.root).items()},
            kinds={symbol: kind for symbol in chosen if (kind := kinds[symbol].kind) is not None},
        )

    def beside(self, market: Market, timeframe: str, half_spread_bps: float = HALF_SPREAD_BPS) -> Market:
        """Bars of `timeframe` of the symbols and the time of `market`, and nothing but bars.

        They lie on a grid that begins where that of `market` does and ends with it; a symbol without usable files here
        is absent throughout. Files are chosen and resampled as in `load`.

        Raises `DataError` for unusable bars, a `timeframe` that does not divide that of `market`, and where not one bar
        is left.
        """
        target = interval_of(timeframe)
        if market.interval % target:
            raise DataError(f"{market.timeframe} bars do not consist of {timeframe} bars; choose a finer timeframe")
        first, count = int(market.open_time[0]), len(market) * (market.interval // target)
        open_time = first + target * np.arange(count, dtype=np.int64)
        files = self._files()
        usable = [any(target % interval_of(frame) == 0 for frame in files.get(name, ())) for name in market.symbols]
        series = [
            self._series(symbol, timeframe, target, half_spread_bps, exact=False) if there else None
            for symbol, there in zip(market.symbols, usable, strict=True)
        ]
        arrays, partial = _on_grid(series, open_time, target)
        if np.isnan(arrays["close"]).all():
            raise DataError(
                f"{self.root}: no {timeframe} bars of {', '.join(market.symbols)} between {format_time(first)} and "
                f"{format_time(first + count * target)} UTC; `cryptosentinel data list {self.root}` shows what there is"
            )
        return Market(
            market.symbols, timeframe, open_time, **arrays, partial=partial if partial.any() else None,
            source=str(self.root),
        )  # fmt: skip

    def _files(self) -> dict[str, dict[str, Path]]:
        """The files of bars by symbol and timeframe, the finest first. Raises `DataError` where there are none."""
        matches = [(BAR_FILE.fullmatch(path.name), path) for path in self.root.iterdir()]
        found = sorted((match[1], interval_of(match[2]), match[2], path) for match, path in matches if match)
        if not found:
            inner = [path.name for path in sorted(self.root.iterdir()) if path.is_dir() and any(path.glob("*.parquet"))]
            hint = f"; did you mean its folder {' or '.join(inner)}?" if inner else ""
            raise DataError(f"{self.root}: holds no bars; files are named like BTCUSDT-1h.parquet{hint}")
        files: dict[str, dict[str, Path]] = {}
        for symbol, _, timeframe, path in found:
            files.setdefault(symbol, {})[timeframe] = path
        return files

    def _checked(self, symbols: Sequence[str]) -> tuple[str, ...]:
        """The symbols, once each is known to be a plain name with bars here."""
        known = self.symbols()
        if not symbols:
            raise DataError(f"no symbols are asked for; {self.root} has {', '.join(known)}")
        for symbol in symbols:
            if not SYMBOL.fullmatch(symbol):
                raise DataError(f"{symbol!r} is not a symbol: use letters, digits, '_' and '-'")
            if symbol not in known:
                near = [name for name in known if name.lower() == symbol.lower()]
                hint = f"; write it as {near[0]}" if near else f"; there are {', '.join(known)}"
                raise DataError(f"{self.root}: no symbol '{symbol}'{hint}")
        if len(set(symbols)) != len(symbols):
            raise DataError(f"a symbol is asked for twice: {', '.join(symbols)}")
        return tuple(symbols)

    def _series(self, symbol: str, timeframe: str, target: int, half_spread_bps: float, *, exact: bool) -> _Series:
        """Bars of `target` ms of a symbol: of its file of `timeframe` or, unless `exact`, of the coarsest finer one."""
        files, asked = self._files()[symbol], interval_of(timeframe)
        usable = [frame for frame in files if asked % interval_of(frame) == 0 and not exact]
        if timeframe not in files and not usable:
            raise DataError(f"{self.root}: {symbol} has no bars of {timeframe}; it has {', '.join(files)}")
        frame = timeframe if timeframe in files else usable[-1]
        path, interval = files[frame], interval_of(frame)
        time, columns, issues = read_bars(path, interval)
        fatal = [issue for issue in issues if issue.fatal]
        if fatal:
            raise DataError(f"{fatal[0]}; fix the file or download it again")
        columns.setdefault("half_spread", np.full(len(time), half_spread_bps / 1e4))
        place = (time - time[0]) // interval
        open_time = time[0] + interval * np.arange(place[-1] + 1, dtype=np.int64)
        grid = {name: np.full((len(open_time), 1), np.nan) for name in columns}
        for name, values in columns.items():
            grid[name][place, 0] = values
        flags = grid.pop("partial", None)
        partial = np.zeros((len(open_time), 1), np.bool_) if flags is None else flags == 1
        if interval == target:
            return _Series(open_time, grid, partial)
        coarse = resample_arrays(open_time, grid, interval, target)
        if not len(coarse.open_time):
            raise DataError(f"{path}: {len(time)} bars of {frame} do not hold one complete coarser bar")
        return _Series(coarse.open_time, {name: getattr(coarse, name) for name in BAR_COLUMNS}, coarse.partial)


def _on_grid(series: Sequence[_Series | None], open_time: IntArray, interval: int) -> tuple[dict[str, Any], BoolArray]:
    """The columns `(T, S)` by name and `partial` `(T, S)` of the series on the regular grid `open_time` `(T,)`.

    What the grid does not hold is left out; None is a series without bars. The series' grids must be parts of it.
    """
    shape = (len(open_time), len(series))
    arrays = {name: np.full(shape, np.nan) for name in BAR_COLUMNS}
    partial = np.zeros(shape, np.bool_)
    low, high = int(open_time[0]), int(open_time[-1]) + interval
    for column, one in enumerate(series):
        if one is None:
            continue
        rows = np.flatnonzero((one.open_time >= low) & (one.open_time < high))
        place = (one.open_time[rows] - low) // interval
        for name in BAR_COLUMNS:
            arrays[name][place, column] = one.columns[name][rows, 0]
        partial[place, column] = one.partial[rows, 0]
    return arrays, partial


def read_bars(path: Path, interval: int) -> tuple[IntArray, dict[str, FloatArray], list[Issue]]:
    """The bars in `path`: open times `(n,)` in ms, columns `(n,)` by name, and what `check_bars` finds about them.

    `interval` is the length of a bar in ms. Raises `DataError` for a file that is not one of bars.
    """
    table = read_table(path, ("timestamp", *BAR_VALUES))
    time = times(table, "timestamp", path)
    names = [*BAR_VALUES, *(name for name in ("half_spread", "partial") if name in table.column_names)]
    columns = {name: numbers(table, name, path) for name in names}
    return time, columns, check_bars(str(path), interval, time, columns)


def _unreadable(path: Path, error: DataError) -> Issue:
    return Issue(str(path), "unreadable", 1, str(error).removeprefix(f"{path}: "), fatal=True)
