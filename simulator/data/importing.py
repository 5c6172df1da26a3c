"""A folder tree of recorded files, made into catalogs.

Files of other programs are read by `simulator.data.formats`. The project's own Parquet files are recognized by their
columns and names:

| kind | columns | name |
| --- | --- | --- |
| bars | timestamp, open, high, low, close, volume | `BTCUSDT-1h.parquet`, in the folder of a venue |
| funding | timestamp, funding_rate | `BTCUSDT-funding.parquet` |
| book | time, bid_price_1, ... | `BTCUSDT-book.parquet`, in the folder of a venue |
| news | those that `simulator.market.events` reads | any |
| series | known_at and numbers | `series-onchain-BTC.parquet` |
| series | timestamp and numbers, in a folder `onchain` or `sentiment` | `anything-BTC-1d.parquet` |

A venue is a folder that holds bars. It becomes a catalog of its own, for one symbol is another instrument at another
venue. News, series and funding in a folder with the name of a venue (`funding/binance-usdm` beside `binance-usdm`) go
to that one. All other news and series go to every venue, other funding wherever its symbol has bars. What the tree
states about its symbols, spot or perpetual, is written down in the catalogs' `instruments.json`.

Files of one series are joined with each other and with what a catalog has (`simulator.data.merging`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulator.data.archive import MARKET_MANIFEST, SYMBOL, bar_file
from simulator.data.catalog import BAR_FILE, STORED_COLUMNS, Catalog, read_bars
from simulator.data.formats import (
    BAR_VALUES,
    NO_DATA,
    SUFFIXES,
    FileOptions,
    Recorded,
    is_recorded,
    read_recorded,
)
from simulator.data.merging import Change, Disagreement, FileKind, Part, frame_of, joined, merged
from simulator.data.venue import INSTRUMENTS_FILE, StatedKind, read_instruments, write_instruments
from simulator.errors import DataError
from simulator.market.bar_checks import check_bars
from simulator.market.events import NewsItem, funding_columns, news_columns, read_funding, read_news
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
from simulator.tables import Columns, column_names, timestamp_array, write_table

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
    """A recognized file: `name` is the symbol, or the name of the series; `source` tells series of one name apart.
    `recorded` is what a file of another program holds."""

    path: Path
    kind: FileKind
    venue: str  # the name of its folder
    name: str = ""
    timeframe: str = ""
    source: str = ""
    recorded: Recorded | None = None

    @property
    def file(self) -> str:
        """The file of a catalog that it becomes a part of."""
        if self.kind == "bars":
            mark = self.recorded is not None and self.recorded.kind == "mark"
            return f"mark/{bar_file(self.name, self.timeframe)}" if mark else bar_file(self.name, self.timeframe)
        return {"funding": f"{self.name}{_FUNDING_SUFFIX}", "book": f"{self.name}{BOOK_SUFFIX}", "news": _NEWS}.get(
            self.kind
        ) or series_file(self.name)

    @property
    def trades(self) -> bool:
        """Whether its symbol can be traded by it."""
        return self.kind == "bars" and (self.recorded is None or self.recorded.kind == "bars")


@dataclass
class _Work:
    """An import under way."""

    root: Path
    out: Path
    options: FileOptions
    replace: bool
    symbols: Sequence[str] | None
    is_tree: bool = True  # False: one file
    sources: list[SourceFile] = field(default_factory=list)
    written: dict[Path, Change] = field(default_factory=dict)
    traded: dict[str, set[str]] = field(default_factory=dict)  # the symbols that have usable bars, by venue
    stated: dict[str, dict[str, MarketKind]] = field(default_factory=dict)  # by files: venue, symbol
    series: list[str] = field(default_factory=list)

    def tell(self, path: Path, outcome: ImportOutcome, detail: object) -> None:
        self.sources.append(SourceFile(path.relative_to(self.root), outcome, str(detail).removeprefix(f"{path}: ")))

    def symbols_of(self, venue: str) -> set[str]:
        """The symbols of which the tree or the venue's catalog has bars."""
        return self.traded.get(venue, set()) | _stored_symbols(self.out / venue)

    def venues(self) -> list[str]:
        """The venues of the tree; where it has none, those that `out` has catalogs of."""
        stored = self.out.iterdir() if self.out.is_dir() else ()
        return sorted(self.traded or {path.name for path in stored if _stored_symbols(path)})

    def targets(self, one: _Found) -> list[Path]:
        """Where a file goes. Raises `DataError` where it has no place."""
        if one.kind == "bars" or one.recorded:
            if not one.trades and one.name not in self.symbols_of(one.venue):
                raise DataError(
                    f"there are no bars of {one.name} in {one.venue} for it to stand beside; import both together"
                )
            if (self.out / one.venue / MARKET_MANIFEST).exists():
                raise DataError(
                    f"{self.out / one.venue} holds a market that was written as a whole; choose another folder"
                )
            return [self.out / one.venue / one.file]
        venues = self.venues()
        if not venues:
            raise DataError("no venue of the tree has usable bars for it to stand beside")
        known = self.symbols_of(one.venue)
        own = [one.venue] if known else venues
        if one.kind == "book":
            own = [one.venue] if one.name in known else []
        elif one.kind == "funding" and not known:
            own = [venue for venue in own if one.name in self.symbols_of(venue)]
        if not own:
            raise DataError(
                f"there are no bars of {one.name} for it to stand beside; put both in the folder of one venue"
            )
        paths = [self.out / venue / one.file for venue in own]
        for path in paths:
            if path in self.written and one.kind != "news":
                raise DataError(f"{path} is made of another file of the tree already; keep one of the two")
        return paths

    def write(self, path: Path, columns: Columns, change: Change) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
        if change.state != "unchanged":
            write_table(path, columns)
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
    work = _Work(Path(source), Path(out), options or FileOptions(), replace, symbols)
    paths = _paths(work)
    found = [one for path in paths for one in _found_in(path, work)]
    for one in found:
        if one.kind == "bars" and work.is_tree and (work.out / one.venue).resolve().is_relative_to(work.root.resolve()):
            raise DataError(f"{work.out / one.venue}: lies in the tree that is imported; choose another folder")
    missing = sorted(set(symbols or ()) - {one.name for one in found if one.trades})
    if missing:
        raise DataError(f"{work.root}: no bars of {', '.join(missing)}; ask for symbols that have some, or for none")
    with import_lock(work.out):
        groups: dict[tuple[Any, ...], list[_Found]] = {}
        for one in _named_apart(found):
            # Bars go first: what stands beside them needs to know the venues that could be used.
            venue = "" if one.kind == "news" else one.venue
            groups.setdefault((not one.trades, venue, one.kind, one.file), []).append(one)
        for key in sorted(groups):
            (_take_news if key[2] == "news" else _take)(groups[key], work)
            progress(len({one.path for one in work.sources}), len(paths))
        kinds = {
            work.out / venue: _state_kinds(work.out / venue, traded, instrument, work.stated.get(venue, {}))
            for venue, traded in sorted(work.traded.items())
        }
    progress(len(paths), len(paths))
    changed = {path.relative_to(work.out).parts[0] for path in work.written}
    return ImportReport(
        tuple(sorted(work.sources, key=lambda one: one.path)),
        tuple(sorted(work.written.items())),
        tuple(work.out / venue for venue in sorted(changed | set(work.traded))),
        kinds,
        tuple(work.series),
    )


@contextmanager
def import_lock(out: Path) -> Iterator[None]:
    """Hold the folder `out`, which is made, for a block, so that no import loses the rows of another one; the end of
    the process lets go of it too. A folder that was made and holds nothing goes again.

    Raises `DataError` where it cannot be made, or another import holds it.
    """
    made, folder = not out.exists(), -1
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = os.open(out, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if folder != -1:
            os.close(folder)
        if error.errno == errno.EWOULDBLOCK:
            raise DataError(f"{out}: another import is writing here; repeat the command when it ends") from None
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        os.close(folder)
        if made and not any(out.iterdir()):
            out.rmdir()


def _state_kinds(
    catalog: Path, symbols: Collection[str], instrument: MarketKind | None, stated: dict[str, MarketKind]
) -> dict[str, StatedKind]:
    """Write down what is known of the kinds of `symbols` in `catalog`; what was written there before stays, unless
    `instrument` says something else. What files `stated` comes after it. Raises `DataError` as `stated_kinds` does."""
    path = catalog / INSTRUMENTS_FILE
    before = read_instruments(path) if path.exists() else {}
    known = before | dict.fromkeys(symbols, instrument) if instrument else stated | before
    if known != before:
        write_instruments(path, known)
    found = Catalog(catalog).kinds()
    own = {symbol: one.kind for symbol, one in found.items() if symbol in symbols and one.kind is not None}
    if known | own != known:
        write_instruments(path, known | own)
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
    for path in named:
        if not path.is_file() and not path.is_dir():
            work.tell(path, "refused", "it is a FIFO, device or socket, or a link that leads nowhere")
    paths = sorted(path for path in named if path.is_file())
    if not paths and not work.sources:
        raise DataError(f"{work.root}: holds no file that ends with {', '.join(known)}")
    return paths


def _found_in(path: Path, work: _Work) -> list[_Found]:
    """What a file holds that can be taken; all else is told."""
    found: list[_Found] = []
    try:
        if is_recorded(path):
            for one in read_recorded(path, work.root, work.options):
                if isinstance(one, str):
                    work.tell(path, "unknown", one)
                    continue
                kind: FileKind = "funding" if one.kind == "funding" else "bars"
                found.append(_Found(path, kind, one.venue, one.symbol, one.timeframe, recorded=one))
        elif isinstance(known := _recognise(path), str):
            work.tell(path, "unknown", known)
        else:
            found.append(known)
    except DataError as error:
        work.tell(path, "refused", error)
    wanted = []
    for item in found:
        if work.symbols is not None and item.kind in ("bars", "funding", "book") and item.name not in work.symbols:
            work.tell(path, "left out", f"{item.kind} of {item.name}, which was not asked for")
        else:
            wanted.append(item)
    return wanted


def _recognise(path: Path) -> _Found | str:
    """What `path` is, or why it is nothing that can be imported. Raises `DataError` where it cannot be read."""
    columns = set(column_names(path))
    venue = path.parent.resolve().name
    if columns >= {"timestamp", *STORED_COLUMNS}:
        match = BAR_FILE.fullmatch(path.name)
        if not match:
            return f"has columns of bars; name it like BTCUSDT-1h.parquet, with one of {', '.join(TIMEFRAMES)}"
        return _Found(path, "bars", venue, match[1], match[2])
    kinds: list[tuple[FileKind, set[str], str, str]] = [
        ("funding", {"timestamp", "funding_rate"}, _FUNDING_SUFFIX, "funding"),
        ("book", {"time", "bid_price_1"}, BOOK_SUFFIX, "order books"),
    ]
    for kind, needed, suffix, what in kinds:
        if columns >= needed:
            symbol = path.name.removesuffix(suffix)
            if symbol == path.name or not SYMBOL.fullmatch(symbol):
                return f"has columns of {what}; name it like BTCUSDT{suffix}"
            return _Found(path, kind, venue, symbol)
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
    plain = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in (asset, source)]
    return _Found(path, "series", venue, f"{kinds[0]}/{plain[0]}", match[2], plain[1] or "recorded")


def _named_apart(found: Sequence[_Found]) -> list[_Found]:
    """Recorded series of one name get their sources' names, all but the one with the newest record."""
    newest: dict[str, tuple[int, Path]] = {}
    for one in found:
        if one.kind == "series" and one.source:
            try:
                last = (int(_series(one).known_at[-1:].sum()), one.path)
            except DataError:
                continue  # it is refused, with the reason, when it is taken
            newest[one.name] = max(newest.get(one.name, last), last)
    return [
        replace(one, name=f"{one.name}-{one.source}")
        if one.kind == "series" and one.source and newest.get(one.name, (0, one.path))[1] != one.path
        else one
        for one in found
    ]


def _series(one: _Found) -> DataSeries:
    if not one.source:
        return read_series(one.path)
    # The index of a day is published as that day begins. All else sums up the period that starts at its time.
    published = one.name.startswith("sentiment/fear_greed")
    return read_recorded_series(one.path, 0 if published else interval_of(one.timeframe))


def _part(one: _Found, work: _Work) -> tuple[Part, str]:
    """The rows of a file, and what it holds in words. Raises `DataError` where it cannot be used."""
    label, columns = str(one.path.relative_to(work.root)), dict[str, Any]()
    if kept := one.recorded:
        rows = kept.rows
        names = BAR_VALUES if one.kind == "bars" else ("funding_rate",)
        columns = {name: np.ascontiguousarray(rows.values[:, at]) for at, name in enumerate(names)}
        frame = frame_of({"timestamp": timestamp_array(rows.time), **columns})
        said = f"{kept.kind}: {kept.format}, {len(rows.time)} {_span(rows.time)} for {one.venue}/{one.file}"
        return Part(kept.label, frame, (rows.unit, rows.line)), "; ".join([said, *rows.notes])
    if one.kind == "bars":
        time, columns, issues = read_bars(one.path, interval_of(one.timeframe))
        for issue in issues:
            if issue.fatal:
                raise DataError(issue.detail)
        said = "; ".join([f"{len(time)} {_span(time)}", *(issue.detail for issue in issues)])
        columns = {"timestamp": timestamp_array(time), **columns}
    elif one.kind == "book":
        columns = book_columns(books := read_books(one.path))
        said = f"{len(books)} order books"
    elif one.kind == "funding":
        columns = funding_columns(events := read_funding(one.path))
        said = f"{len(events)} settlements"
    else:
        columns = series_columns(series := _series(one))
        said = f"{len(series)} records of {', '.join(series.columns)} as {one.name}"
    return Part(label, frame_of(columns)), f"{one.kind}: {said}"


def _take(group: list[_Found], work: _Work) -> None:
    """Write the series that the files of a group are parts of. A file that contradicts what is there is refused."""
    first, targets = group[0], list[Path]()
    parts: list[tuple[_Found, Part, str]] = []
    for one in group:
        try:
            targets = work.targets(one)
            parts.append((one, *_part(one, work)))
        except DataError as error:
            work.tell(one.path, "refused", error)
    files: list[tuple[Path, Columns, Change]] = []
    interval = interval_of(first.timeframe) if first.kind == "bars" else 0
    while parts and not files:
        rows = [part for _, part, _ in parts]
        try:
            files = [
                (path, *merged(path, first.kind, rows, replace=work.replace, interval=interval)) for path in targets
            ]
        except Disagreement as error:
            work.tell(next(one.path for one, part, _ in parts if part is error.part), "refused", error)
            parts = [entry for entry in parts if entry[1] is not error.part]
        except DataError as error:
            for one, _, _ in parts:
                work.tell(one.path, "refused", error)
            return
    if not files:
        return
    if first.trades:
        work.traded.setdefault(first.venue, set()).add(first.name)
    for one, _, said in parts:
        if one.recorded and one.recorded.instrument:
            work.stated.setdefault(one.venue, {})[one.name] = one.recorded.instrument
        if first.kind != "bars" and not one.recorded:
            bare = first.kind == "funding" and one.name not in work.symbols_of(targets[0].parent.name)
            said += f" for {', '.join(path.parent.name for path in targets)}"
            said += f", which has no bars of {one.name}" * bare
        work.tell(one.path, "taken", said)
    for file in files:
        work.write(*file)
    if first.recorded:
        work.series.append(_joined_words(first, rows))


def _joined_words(first: _Found, parts: Sequence[Part]) -> str:
    """What was joined of files of other programs: rows, gaps and what they have in common."""
    frame, told = joined(parts, first.kind), []
    time = frame["timestamp"].to_numpy()
    if first.kind == "bars":
        values = {str(name): frame[name].to_numpy(np.float64) for name in list(frame)[1:]}
        notes = check_bars(first.file, interval_of(first.timeframe), time, values)
        told = [issue.detail for issue in notes if first.trades or issue.kind == "gap"]
    common = sum(len(part.frame) for part in parts) - len(frame)
    told += [f"{common} rows are in two files"] * bool(common)
    count = f"{len(parts)} file{'s' * (len(parts) > 1)}"
    return "; ".join([f"{first.venue}/{first.file}: {len(frame)} rows {_span(time)} of {count}", *told])


def _take_news(group: list[_Found], work: _Work) -> None:
    """Add headlines to the catalogs, to each those about its symbols and the whole market."""
    items: dict[Path, list[NewsItem]] = {}
    for one in group:
        try:
            # Symbols of an earlier import keep their headlines.
            read = {
                path: read_news(one.path, tuple(sorted(_stored_symbols(path.parent)))) for path in work.targets(one)
            }
            said = ", ".join(f"{len(found)} headlines for {path.parent.name}" for path, found in read.items())
            work.tell(one.path, "taken", f"news: {said}")
        except DataError as error:
            work.tell(one.path, "refused", error)
            continue
        for path, found in read.items():
            items.setdefault(path, []).extend(found)
    for path, headlines in items.items():
        if headlines:
            try:
                work.write(path, *merged(path, "news", [Part("", frame_of(news_columns(headlines)))], replace=False))
            except DataError as error:
                for one in group:
                    work.sources = [told for told in work.sources if work.root / told.path != one.path]
                    work.tell(one.path, "refused", error)


def _span(time: Any) -> str:
    return f"from {format_time(int(time[0]))} to {format_time(int(time[-1]))}"
