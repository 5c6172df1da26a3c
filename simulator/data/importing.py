"""A folder tree of recorded files, made into catalogs.

Bars and funding as Binance Vision, CryptoDataDownload and freqtrade write them, and CSV of any columns, are read by
`simulator.data.formats`; files of one series are joined. A Parquet file is
recognised by its columns and its name. All are validated before anything is written:

| kind | columns | name |
| --- | --- | --- |
| bars | timestamp, open, high, low, close, volume | `BTCUSDT-1h.parquet`, in the folder of a venue |
| funding | timestamp, funding_rate | `BTCUSDT-funding.parquet` |
| book | time, bid_price_1, … | `BTCUSDT-book.parquet`, in the folder of a venue |
| news | those that `simulator.market.events` reads | any |
| series | known_at and numbers | `series-onchain-BTC.parquet` |
| series | timestamp and numbers, in a folder `onchain` or `sentiment` | `anything-BTC-1d.parquet` |

A venue is a folder that holds bars. It becomes a catalog of its own, for one symbol is another instrument at another
venue. News, series and funding in a folder with the name of a venue (`funding/binance-usdm` beside `binance-usdm`) go
to that one. All other news and series go to every venue, other funding wherever its symbol has bars.

What the tree states about its symbols, spot or perpetual, is written down in the catalogs' `instruments.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.data.archive import MARKET_MANIFEST, SYMBOL, bar_file
from simulator.data.catalog import BAR_FILE, STORED_COLUMNS, Catalog, read_bars
from simulator.data.formats.recognise import NO_DATA, SUFFIXES, FileOptions, read_recorded
from simulator.data.formats.recorded import BAR_VALUES, FUNDING_VALUES, Disagreement, Recorded, joined
from simulator.data.instruments import INSTRUMENTS_FILE, StatedKind, read_instruments, write_instruments
from simulator.data.merging import Change, FileKind, ImportLock, merged_rows, write_merged_rows
from simulator.errors import DataError
from simulator.market.bar_checks import check_bars
from simulator.market.events import (
    NewsItem,
    funding_columns,
    news_columns,
    read_funding,
    read_news,
    time_findings,
)
from simulator.market.instruments import MarketKind
from simulator.market.series import (
    BOOK_SUFFIX,
    SERIES_FILE,
    DataSeries,
    book_columns,
    read_books,
    read_recorded_series,
    read_series,
    series_columns,
    series_file,
)
from simulator.market.timeframes import TIMEFRAMES, format_time, interval_of
from simulator.tables import Columns, column_names, timestamp_array

ImportOutcome = Literal["taken", "refused", "left out", "unknown"]

_FUNDING_SUFFIX = "-funding.parquet"
_NEWS = "news.parquet"
_TIMED_NAME = re.compile(rf"(.+)-({'|'.join(TIMEFRAMES)})")
_FEAR_AND_GREED = re.compile(r"fear[-_ ]?(and[-_ ])?greed", re.IGNORECASE)


@dataclass(frozen=True)
class SourceFile:
    """What became of one file of the tree; `path` is relative to it, `detail` says what was taken or why nothing."""

    path: Path
    outcome: ImportOutcome
    detail: str


@dataclass(frozen=True)
class ImportReport:
    """Every file of the tree that might hold data, and every file of the catalogs with what was done to it."""

    sources: tuple[SourceFile, ...]
    written: tuple[tuple[Path, Change], ...]
    catalogs: tuple[Path, ...]
    kinds: dict[Path, dict[str, StatedKind]]  # of the symbols of each catalog
    series: tuple[str, ...] = ()  # what was joined of files of other programs, with its gaps


@dataclass(frozen=True)
class _Found:
    """A recognised file: `name` is the symbol, or the name of the series; `source` tells series of one name apart."""

    path: Path
    kind: FileKind
    venue: str  # the name of its folder
    name: str = ""
    timeframe: str = ""
    source: str = ""


_Merged = list[tuple[Path, Columns, Change]]


@dataclass
class _Work:
    """An import under way."""

    root: Path
    out: Path
    replace: bool = False
    is_tree: bool = True  # False: one file
    lock: ImportLock | None = None
    sources: list[SourceFile] = field(default_factory=list)
    taken: dict[Path, Path] = field(default_factory=dict)  # file of a catalog: the file that it is made of
    written: dict[Path, Change] = field(default_factory=dict)
    traded: dict[str, set[str]] = field(default_factory=dict)  # the symbols that have usable bars, by venue
    news: dict[str, list[NewsItem]] = field(default_factory=dict)  # by venue
    stated: dict[str, dict[str, MarketKind]] = field(default_factory=dict)  # by files: venue, symbol
    series: list[str] = field(default_factory=list)

    def tell(self, path: Path, outcome: ImportOutcome, detail: str) -> None:
        self.sources.append(SourceFile(path.relative_to(self.root), outcome, detail))

    def claim(self, one: _Found, venues: Sequence[str], name: str) -> list[Path]:
        """Where `name` of these venues' catalogs goes. Raises `DataError` where another file has taken the place."""
        paths = [self.out / venue / name for venue in venues]
        for path in paths:
            if path in self.taken:
                rival = self.taken[path].relative_to(self.root)
                raise DataError(f"{path.parent.name}/{name} is made of {rival} already; keep one of the two")
        self.taken |= dict.fromkeys(paths, one.path)
        return paths

    def symbols(self, venue: str) -> set[str]:
        """The symbols of which the tree or the venue's catalog has bars."""
        return self.traded.get(venue, set()) | _stored_symbols(self.out / venue)

    def venues(self) -> list[str]:
        """The venues of the tree; where it has none, those that `out` has catalogs of."""
        stored = self.out.iterdir() if self.out.is_dir() else ()
        return sorted(self.traded or {path.name for path in stored if _stored_symbols(path)})

    def merge(self, paths: Sequence[Path], kind: FileKind, columns: Columns, timeframe: str = "") -> _Merged:
        """The rows added to each of the files. Raises `DataError` where one of them cannot take them."""
        interval = interval_of(timeframe) if kind == "bars" else 0
        return [(path, *merged_rows(path, kind, columns, replace=self.replace, interval=interval)) for path in paths]

    def write(self, files: _Merged) -> None:
        for path, columns, change in files:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
            write_merged_rows(path, columns, change)
            self.written[path] = change


def _stored_symbols(catalog: Path) -> set[str]:
    if not catalog.is_dir() or (catalog / MARKET_MANIFEST).exists():
        return set()
    return {match[1] for path in catalog.iterdir() if (match := BAR_FILE.fullmatch(path.name))}


def import_tree(
    source: str | Path,
    out: str | Path,
    symbols: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    instrument: MarketKind | None = None,
    options: FileOptions | None = None,
    *,
    replace: bool = False,
) -> ImportReport:
    """Make one catalog `out/VENUE` of each venue in the tree `source`; of some `symbols` only, where given.

    `source` may be one file. `options` say what files of other programs do not say of themselves.

    Nothing in `source` is changed. Rows join those that a catalog has already, by time. A file with a row that differs
    from the stored one of the same time is refused; with `replace` its rows take the place of the stored ones of the
    same times, and all others stay. Headlines are added. `progress` is called with the files done and their number.
    `instrument` is the kind of all the symbols, in place of what the tree states.

    Raises:
        DataError: no such folder or no file of a known kind in it, a symbol that no venue has, an `out` that lies in
            the tree, cannot be written to, holds a market that the project wrote or is written by another import. What
            is wrong with single files is in the report.
    """
    work = _Work(Path(source), Path(out), replace)
    try:
        return _import(work, symbols, progress, instrument, options or FileOptions())
    finally:
        if work.lock is not None:
            work.lock.release()


def _import(
    work: _Work,
    symbols: Sequence[str] | None,
    progress: Callable[[int, int], None],
    instrument: MarketKind | None,
    options: FileOptions,
) -> ImportReport:
    paths = _paths(work)
    found: list[_Found] = []
    recorded: list[tuple[Path, Recorded]] = []
    foreign = {path for path in paths if _is_foreign(path)}
    for number, path in enumerate(sorted(foreign), 1):
        recorded += [(path, one) for one in _read(path, work, symbols, options)]
        progress(number, len(paths))
    for path in paths:
        if path in foreign:
            continue
        try:
            one = _recognise(path)
        except DataError as error:
            work.tell(path, "refused", _reason(path, error))
            continue
        if isinstance(one, str):
            work.tell(path, "unknown", one)
        elif symbols is not None and one.kind in ("bars", "funding", "book") and one.name not in symbols:
            work.tell(path, "left out", f"{one.kind} of {one.name}, which was not asked for")
        else:
            found.append(one)
    bars = [one for one in found if one.kind == "bars"]
    for one in bars:
        _check_outside(work, one.venue)
    for _, part in recorded:
        _check_outside(work, part.venue)
    there = {one.name for one in bars} | {part.symbol for _, part in recorded if part.kind == "bars"}
    _check_symbols(symbols, there, work.root)
    work.lock = ImportLock(work.out)
    done = len(paths) - len(found)
    progress(done, len(paths))
    # Bars go first: what stands beside them needs to know the venues that could be used.
    _take_recorded([entry for entry in recorded if entry[1].kind == "bars"], work)
    for one in bars + _named_apart([one for one in found if one.kind != "bars"]):
        try:
            detail, targets, columns = _take(one, work)
            files = work.merge(targets, one.kind, columns, one.timeframe)
        except DataError as error:
            work.tell(one.path, "refused", _reason(one.path, error))
        else:
            work.write(files)
            work.tell(one.path, "taken", f"{one.kind}: {detail}")
        done += 1
        progress(done, len(paths))
    _take_recorded([entry for entry in recorded if entry[1].kind != "bars"], work)
    for venue, items in work.news.items():
        if items:
            work.write(work.merge([work.out / venue / _NEWS], "news", news_columns(items)))
    changed = {path.relative_to(work.out).parts[0] for path in work.written}
    catalogs = tuple(work.out / venue for venue in sorted(changed | set(work.traded)))
    return ImportReport(
        tuple(sorted(work.sources, key=lambda one: one.path)),
        tuple(sorted(work.written.items())),
        catalogs,
        {
            catalog: _state_kinds(catalog, work.traded[catalog.name], instrument, work.stated.get(catalog.name, {}))
            for catalog in catalogs
            if catalog.name in work.traded
        },
        tuple(work.series),
    )


def _state_kinds(
    catalog: Path, symbols: Collection[str], instrument: MarketKind | None, stated: dict[str, MarketKind]
) -> dict[str, StatedKind]:
    """Write down what is known of the kinds of `symbols` in `catalog`; what was written there before stays, unless
    `instrument` says something else. What files `stated` comes after it. Raises `DataError` as `stated_kinds` does."""
    path = catalog / INSTRUMENTS_FILE
    before = read_instruments(path) if path.exists() else {}
    if instrument is None and stated.keys() - before.keys():
        before = stated | before
        write_instruments(path, before)
    if instrument is not None:
        write_instruments(path, before | dict.fromkeys(symbols, instrument))
    found = Catalog(catalog).kinds()
    own = {symbol: one.kind for symbol, one in found.items() if symbol in symbols and one.kind is not None}
    if own and before | own != before:
        write_instruments(path, before | own)
    return {symbol: found[symbol] for symbol in sorted(symbols)}


def _paths(work: _Work) -> list[Path]:
    if work.root.is_file():
        path, work.root, work.is_tree = work.root, work.root.parent, False
        return [path]
    if not work.root.is_dir():
        special = "it is a FIFO, device or socket" if work.root.exists() else "there is no such folder or file"
        raise DataError(f"{work.root}: {special}; name a folder of recorded files, or one of them")
    if work.out.resolve().is_relative_to(work.root.resolve()):
        raise DataError(f"{work.out}: lies in the tree that is imported; choose a folder outside {work.root}")
    known = (".parquet", *SUFFIXES)
    named = [path for path in work.root.rglob("*") if path.name.endswith(known) and path.name not in NO_DATA]
    paths = sorted(path for path in named if path.is_file())
    for path in named:
        if not path.is_file() and not path.is_dir():
            work.tell(path, "refused", "it is a FIFO, device or socket, or a link that leads nowhere")
    if not paths and not work.sources:
        raise DataError(f"{work.root}: holds no file that ends with {', '.join(known)}")
    return paths


def _check_outside(work: _Work, venue: str) -> None:
    folder = work.out / venue
    if work.is_tree and folder.resolve().is_relative_to(work.root.resolve()):
        raise DataError(f"{folder}: lies in the tree that is imported; choose another folder")


def _is_foreign(path: Path) -> bool:
    """Whether the file is read by `simulator.data.formats`: all but the project's own kinds of Parquet."""
    if path.suffix != ".parquet":
        return True
    try:
        columns = column_names(path)
    except DataError:
        return False  # it is refused with the other Parquet files
    return "timestamp" not in columns and {"date", *BAR_VALUES} <= set(columns)


def _read(path: Path, work: _Work, symbols: Sequence[str] | None, options: FileOptions) -> list[Recorded]:
    """What a file of another program holds; what cannot be taken of it is told."""
    found: list[Recorded] = []
    try:
        for one in read_recorded(path, work.root, options):
            if isinstance(one, str):
                work.tell(path, "unknown", one)
            elif symbols is not None and one.symbol not in symbols:
                work.tell(path, "left out", f"{one.kind} of {one.symbol}, which was not asked for")
            else:
                found.append(one)
    except DataError as error:
        work.tell(path, "refused", _reason(path, error))
    return found


def _take_recorded(recorded: list[tuple[Path, Recorded]], work: _Work) -> None:
    """Write each series that the files are parts of. A file that contradicts another one is refused."""
    for key in sorted({one.key for _, one in recorded}):
        parts = [entry for entry in recorded if entry[1].key == key]
        try:
            _take_series(parts, work)
        except DataError as error:
            for path in {path for path, _ in parts}:
                work.tell(path, "refused", str(error))


def _take_series(parts: list[tuple[Path, Recorded]], work: _Work) -> None:
    """Join and write the parts of one series. Raises `DataError` where it has no place."""
    kind, venue, symbol, timeframe = parts[0][1].key
    if kind != "bars" and symbol not in work.symbols(venue):
        raise DataError(f"there are no bars of {symbol} in {venue} for it to stand beside; import both together")
    folder = work.out / venue
    if (folder / MARKET_MANIFEST).exists():
        raise DataError(f"{folder} holds a market that was written as a whole; choose another folder")
    name = f"{symbol}{_FUNDING_SUFFIX}" if kind == "funding" else bar_file(symbol, timeframe)
    place = f"mark/{name}" if kind == "mark" else name
    source = _Found(parts[0][0], "funding" if kind == "funding" else "bars", venue, symbol, timeframe)
    target = work.claim(source, [venue], place)[0]
    stored: FileKind = "funding" if kind == "funding" else "bars"
    parts = [entry for entry in parts if _agrees(entry, target, stored, work)]
    while parts:
        try:
            time, values, common = joined([one for _, one in parts])
            break
        except Disagreement as error:
            work.tell(next(path for path, one in parts if one is error.part), "refused", str(error))
            parts = [entry for entry in parts if entry[1] is not error.part]
    if not parts:
        return
    columns = _series_columns(time, values)
    files = work.merge([target], stored, columns, timeframe)
    notes = [] if kind == "funding" else check_bars(str(target), interval_of(timeframe), time, columns)
    told = [issue.detail for issue in notes if kind == "bars" or issue.kind == "gap"]
    told += [f"{common} rows are in two files"] * bool(common)
    if kind == "bars":
        work.traded.setdefault(venue, set()).add(symbol)
    for path, one in parts:
        if one.instrument:
            work.stated.setdefault(venue, {})[symbol] = one.instrument
        said = f"{kind}: {one.format}, {len(one.rows.time)} {_span(one.rows.time)} for {venue}/{place}"
        work.tell(path, "taken", "; ".join([said, *one.rows.notes]))
    work.write(files)
    count = f"{len(parts)} file{'s' * (len(parts) > 1)}"
    work.series.append("; ".join([f"{venue}/{place}: {len(time)} rows {_span(time)} of {count}", *told]))


def _agrees(entry: tuple[Path, Recorded], target: Path, kind: FileKind, work: _Work) -> bool:
    """Whether a part of a series fits what is stored of it; where it does not, it is refused."""
    path, one = entry
    if work.replace:
        return True
    try:
        columns = _series_columns(one.rows.time, one.rows.values)
        work.merge([target], kind, columns, one.timeframe)
    except DataError as error:
        work.tell(path, "refused", str(error))
        return False
    return True


def _series_columns(time: IntArray, values: FloatArray) -> dict[str, Any]:
    names = FUNDING_VALUES if values.shape[1] == 1 else BAR_VALUES
    columns = {name: np.ascontiguousarray(values[:, number]) for number, name in enumerate(names)}
    return {"timestamp": timestamp_array(time), **columns}


def _span(time: IntArray) -> str:
    return f"from {format_time(int(time[0]))} to {format_time(int(time[-1]))}"


def _check_symbols(symbols: Sequence[str] | None, there: Collection[str], root: Path) -> None:
    missing = [symbol for symbol in symbols or () if symbol not in there]
    if missing:
        raise DataError(f"{root}: no bars of {', '.join(missing)}; ask for symbols that have some, or for none")


def _recognise(path: Path) -> _Found | str:
    """What `path` is, or why it is nothing that can be imported. Raises `DataError` where it cannot be read."""
    columns = set(column_names(path))
    venue = path.parent.resolve().name
    if columns >= {"timestamp", *STORED_COLUMNS}:
        match = BAR_FILE.fullmatch(path.name)
        if not match:
            return f"has columns of bars; name it like BTCUSDT-1h.parquet, with one of {', '.join(TIMEFRAMES)}"
        return _Found(path, "bars", venue, match[1], match[2])
    if columns >= {"timestamp", "funding_rate"}:
        symbol = path.name.removesuffix(_FUNDING_SUFFIX)
        if symbol == path.name or not SYMBOL.fullmatch(symbol):
            return "has columns of funding; name it like BTCUSDT-funding.parquet"
        return _Found(path, "funding", venue, symbol)
    if columns >= {"time", "bid_price_1"}:
        symbol = path.name.removesuffix(BOOK_SUFFIX)
        if symbol == path.name or not SYMBOL.fullmatch(symbol):
            return "has columns of order books; name it like BTCUSDT-book.parquet"
        return _Found(path, "book", venue, symbol)
    if {"time", "known_at", "symbol", "text"} <= columns or ("timestamp" in columns and columns & {"title", "text"}):
        return _Found(path, "news", venue)
    if "known_at" in columns:
        match = SERIES_FILE.fullmatch(path.name)
        if not match:
            return "has columns of a series; name it like series-onchain-BTC.parquet"
        return _Found(path, "series", venue, f"{match[1]}/{match[2]}")
    if "timestamp" in columns:
        return _recorded_series(path, venue)
    return f"not bars, funding, books, news or a series; it has the columns {', '.join(sorted(columns)) or 'none'}"


def _recorded_series(path: Path, venue: str) -> _Found | str:
    folders = {part.lower().replace("-", "").replace("_", "") for part in path.parts[:-1]}
    kinds = [kind for kind in ("onchain", "sentiment") if kind in folders]
    match = _TIMED_NAME.fullmatch(path.stem)
    if len(kinds) != 1 or not match:
        return "not bars, funding, books or news; numbers of a day are named like x-BTC-1d.parquet in a folder onchain"
    if kinds[0] == "sentiment" and _FEAR_AND_GREED.search(path.stem):
        return _Found(path, "series", venue, "sentiment/fear_greed", match[2], "recorded")
    source, _, asset = match[1].rpartition("-")
    name = re.sub(r"[^A-Za-z0-9_]", "_", asset)
    collector = re.sub(r"[^A-Za-z0-9_]", "_", source) or "recorded"
    return _Found(path, "series", venue, f"{kinds[0]}/{name}", match[2], collector)


def _named_apart(found: Sequence[_Found]) -> list[_Found]:
    """Recorded series of one name get their sources' names, all but the one with the newest record."""
    named: list[_Found] = []
    newest: dict[str, tuple[int, Path]] = {}
    for one in found:
        if one.kind == "series" and one.source:
            try:
                last = (int(_series(one).known_at[-1:].sum()), one.path)
            except DataError:
                continue  # it is refused, with the reason, when it is taken
            newest[one.name] = max(newest.get(one.name, last), last)
    for one in found:
        rival = newest.get(one.name)
        apart = one.kind == "series" and one.source and rival and rival[1] != one.path
        named.append(replace(one, name=f"{one.name}-{one.source}") if apart else one)
    return named


def _series(one: _Found) -> DataSeries:
    if not one.source:
        return read_series(one.path)
    # The index of a day is published as that day begins. All else sums up the period that starts at its time.
    published = one.name.startswith("sentiment/fear_greed")
    return read_recorded_series(one.path, 0 if published else interval_of(one.timeframe))


def _take(one: _Found, work: _Work) -> tuple[str, list[Path], Columns]:
    """What is in a file, in words; where it goes and what is written there. Raises `DataError` where it is refused."""
    if one.kind == "bars":
        return _take_bars(one, work)
    venues = work.venues()
    if not venues:
        raise DataError("no venue of the tree has usable bars for it to stand beside")
    own = [one.venue] if work.symbols(one.venue) else venues
    if one.kind == "news":
        return _take_news(one, own, work), [], {}
    columns: dict[str, Any]
    if one.kind == "series":
        series, name = _series(one), series_file(one.name)
        columns, content = series_columns(series), f"{len(series)} records of {', '.join(series.columns)} as {one.name}"
    elif one.kind == "book":
        books, name = read_books(one.path), one.path.name
        columns, content = book_columns(books), f"{len(books)} order books"
        own = [one.venue] if one.name in work.symbols(one.venue) else []
    else:
        events, name = read_funding(one.path), one.path.name
        columns, content = funding_columns(events), f"{len(events)} settlements"
        if not work.symbols(one.venue):
            own = [venue for venue in own if one.name in work.symbols(venue)]
    if not own:
        raise DataError(f"there are no bars of {one.name} for it to stand beside; put both in the folder of one venue")
    bare = one.kind == "funding" and one.name not in work.symbols(own[0])
    detail = f"{content} for {', '.join(own)}" + (f", which has no bars of {one.name}" if bare else "")
    return detail, work.claim(one, own, name), columns


def _take_bars(one: _Found, work: _Work) -> tuple[str, list[Path], Columns]:
    folder = work.out / one.venue
    if (folder / MARKET_MANIFEST).exists():
        raise DataError(f"{folder} holds a market that was written as a whole; choose another folder")
    time, columns, issues = read_bars(one.path, interval_of(one.timeframe))
    for issue in issues:
        if issue.fatal:
            raise DataError(issue.detail)
    paths = work.claim(one, [one.venue], one.path.name)
    work.traded.setdefault(one.venue, set()).add(one.name)
    notes = "".join(f"; {issue.detail}" for issue in issues)
    detail = f"{len(time)} from {format_time(int(time[0]))} to {format_time(int(time[-1]))}{notes}"
    return detail, paths, {"timestamp": timestamp_array(time), **columns}


def _take_news(one: _Found, venues: Sequence[str], work: _Work) -> str:
    counts = []
    for venue in venues:
        # Symbols of an earlier import keep their headlines.
        items = read_news(one.path, tuple(sorted(_stored_symbols(work.out / venue))))
        work.news.setdefault(venue, []).extend(items)
        counts.append(f"{len(items)} headlines for {venue}")
    return "; ".join([", ".join(counts), *time_findings(one.path)])


def _reason(path: Path, error: DataError) -> str:
    return str(error).removeprefix(f"{path}: ")
