"""Which format a file has, by its content, and its rows.

| format | content |
| --- | --- |
| Binance Vision bars | text of 12 columns, with or without headings; times in ms, or in microseconds since 2025 |
| Binance Vision funding | the headings calc_time, funding_interval_hours, last_funding_rate |
| CryptoDataDownload | a line with the address, then unix, date, symbol, open, …; newest first; times in s or ms |
| freqtrade | Feather or Parquet with date, open, …; JSON of rows [ms, open, high, low, close, volume] |
| Yahoo, by yfinance | three lines of headings: Price and the columns, Ticker, Date |
| CSV | the headings of a time and of open, high, low, close, volume; or those that the user names |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from simulator.arrays import FloatArray
from simulator.data.formats.contents import MOST_UNPACKED, Content, contents_of
from simulator.data.formats.csv_table import CsvLayout, CsvTable, read_csv
from simulator.data.formats.names import NamedFile, binance_name, freqtrade_name, known_timeframe, named_file
from simulator.data.formats.recorded import (
    BAR_VALUES,
    Recorded,
    RecordedKind,
    Rows,
    check_bar_rows,
    check_funding_rows,
    epoch_ms,
    ordered,
)
from simulator.errors import DataError, UserError
from simulator.folders import check_regular
from simulator.market.timeframes import interval_of
from simulator.tables import numbers, read_table, times

SUFFIXES = (".csv", ".txt", ".tsv", ".zip", ".json", ".feather", ".csv.gz", ".json.gz")
# Files of the project, and of others, that lie among data and hold none.
NO_DATA = {"instruments.json", "rules.json", "download.json", "market.json", "package.json", "config.json"}
FIELDS = ("time", *BAR_VALUES)
_TIME_NAMES = ("timestamp", "unix", "unix timestamp", "time", "open_time", "open time", "datetime", "date")
_BAR_HEADINGS = {"open", "high", "low", "close", "volume"}
_KLINE_COLUMNS = 12
_YAHOO = re.compile(rb"Price,([^\r\n]*)\r?\nTicker,([^\r\n]+)\r?\n(Date|Datetime),*\r?\n")
_LEFT_OUT = {"index", "premiumIndex", "open_interest"}  # series of freqtrade that no market here has
_VENUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KNOWN = (
    "Binance Vision CSV or zip, CryptoDataDownload CSV, freqtrade Feather, Parquet or JSON, and any CSV whose columns"
    " are named, as --columns time=Date,open=Open,high=High,low=Low,close=Close,volume=Vol"
)


@dataclass(frozen=True)
class FileOptions:
    """What a user says of files that do not say it; empty: what content and name say.

    Attributes:
        columns: heading, or number from 1, of each of time, open, high, low, close, volume, for files of text.
        layout: how these are written.
        symbol, timeframe, venue: of all files.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    layout: CsvLayout = field(default_factory=CsvLayout)
    symbol: str = ""
    timeframe: str = ""
    venue: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in FIELDS]
        missing = [name for name in FIELDS if name not in self.columns]
        if self.columns and (unknown or missing):
            what = f"{unknown[0]!r} is none of them" if unknown else f"{', '.join(missing)} is missing"
            raise UserError(f"--columns names a column for each of {', '.join(FIELDS)}; {what}")
        if self.timeframe:
            interval_of(self.timeframe)
        if self.symbol and not re.fullmatch(r"[A-Za-z0-9_-]+", self.symbol):
            raise UserError(f"--symbol {self.symbol!r}: use letters, digits, '_' and '-', as BTCUSDT")
        if self.venue and not _VENUE.fullmatch(self.venue):
            raise UserError(f"--venue {self.venue!r}: use letters, digits, '.', '_' and '-', as binance-usdm")
        if self.layout.decimal not in (".", ","):
            raise UserError(f"--decimal {self.layout.decimal!r}: a decimal point is '.' or ','")
        try:
            ZoneInfo(self.layout.time_zone or "UTC")
        except (KeyError, ValueError, OSError):
            raise UserError(
                f"--time-zone {self.layout.time_zone!r}: no such zone; write it like Europe/Berlin"
            ) from None
        if len(self.layout.delimiter) > 1:
            raise UserError(f"--delimiter {self.layout.delimiter!r}: give one character, or tab")


def columns_of(text: str) -> dict[str, str]:
    """The mapping in `time=Date,open=Open,…`. Raises `UserError` for a text of another form."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not (mark and name.strip() and heading.strip()) for name, mark, heading in pairs):
        raise UserError(
            f"--columns {text!r}: write it like time=Date,open=Open,high=High,low=Low,close=Close,volume=Vol"
        )
    return {name.strip(): heading.strip() for name, _, heading in pairs}


def read_recorded(path: Path, root: Path, options: FileOptions) -> Iterator[Recorded | str]:
    """What `path`, a file of the tree `root`, holds, or why that cannot be imported; several from an archive.

    Raises `DataError` for a file that has a known format and cannot be used.
    """
    if path.suffix in (".feather", ".parquet"):
        yield _of_freqtrade(Content(path, path.name, b""), _arrow_rows(path), root, options, "row")
        return
    for content in contents_of(path):
        try:
            yield _recognised(content, root, options)
        except DataError as error:
            raise DataError(f"{content.label}{str(error).removeprefix(f'{path}: ')}") from error


def _recognised(content: Content, root: Path, options: FileOptions) -> Recorded | str:
    if content.data.lstrip()[:1] in (b"[", b"{"):
        return _json(content, root, options)
    if yahoo := _YAHOO.match(content.data):
        return _yahoo(content, yahoo, root, options)
    table = read_csv(content.data, options.layout)
    if table is None:
        return f"{content.label}no table; known are {_KNOWN}"
    if not len(table.lines):
        raise DataError("holds no row")
    headings = set(table.headings)
    if options.columns:
        return _mapped(content, table, root, options)
    if {"calc_time", "last_funding_rate"} <= headings:
        return _funding(content, table, root, options)
    if _is_klines(table):
        return _klines(content, table, root, options)
    time = next((name for name in _TIME_NAMES if name in headings), "")
    downloaded = "cryptodatadownload" in table.comment.lower()
    if time and _BAR_HEADINGS - {"volume"} <= headings and (downloaded or _volumes(table)):
        return _headed(content, table, time, root, options)
    columns = ", ".join(table.headings) or f"{len(table.columns)} columns without headings"
    return f"{content.label}no known format; it has {columns}. Known are {_KNOWN}"


def _recorded(
    content: Content, kind: RecordedKind, named: NamedFile, of_format: str, rows: Rows, root: Path,
    options: FileOptions, unit: str = "line",
) -> Recorded:  # fmt: skip
    """The rows once they are checked, with what the user says in place of what the names do."""
    symbol, frame = options.symbol or named.symbol, options.timeframe or named.timeframe
    if not symbol:
        raise DataError("nothing says the symbol; name the file like BTCUSDT-1h, or say --symbol BTCUSDT")
    rows = ordered(rows, unit)
    if kind == "funding":
        frame = ""
        check_funding_rows(rows, unit)
    else:
        if not frame:
            apart = f"; its rows are {int(np.median(np.diff(rows.time))) // 60_000} minutes apart" * (
                len(rows.time) > 1
            )
            raise DataError(f"nothing says the timeframe{apart}: name the file like BTCUSDT-1h, or say --timeframe 1h")
        check_bar_rows(rows, known_timeframe(frame), unit)
    label = str(content.path.relative_to(root)) + (f" {content.member}" if content.member else "")
    venue = options.venue or named.venue
    return Recorded(label, kind, venue, symbol.upper(), frame, named.instrument, of_format, rows, unit)


def _said(read: Callable[[Path, str], NamedFile], content: Content) -> NamedFile:
    """What the name of a file says; of a member of an archive its own name, and then that of the archive."""
    own, outer = read(content.path, content.name), read(content.path, content.path.name)
    return replace(own, symbol=own.symbol or outer.symbol, timeframe=own.timeframe or outer.timeframe)


# Binance Vision


def _is_klines(table: CsvTable) -> bool:
    if table.headings:
        return {"open_time", "close_time", "open", "high", "low", "close"} <= set(table.headings)
    if len(table.columns) != _KLINE_COLUMNS:
        return False
    opened, closed = (table.columns[place][0].as_py() for place in (0, 6))
    return opened.isdigit() and closed.isdigit() and int(opened) < int(closed)


def _klines(content: Content, table: CsvTable, root: Path, options: FileOptions) -> Recorded | str:
    folders = {part.lower() for part in content.path.resolve().parts}
    if folders & {"indexpriceklines", "premiumindexklines"}:
        return f"{content.label}prices of an index, which no market here has"
    named = _said(binance_name, content)
    places = [table.place(name) for name in ("open_time", *BAR_VALUES, "close_time")] if table.headings else [*range(7)]
    found = [place for place in places if place is not None]
    if len(found) < 7:
        raise DataError(f"has no column {('open_time', *BAR_VALUES, 'close_time')[places.index(None)]}")
    time, notes = table.times(found[0])
    closed, _ = table.times(found[6])
    length = int(np.median(closed - time)) + 1
    frame = options.timeframe or named.timeframe
    if frame and known_timeframe(frame) and length != interval_of(frame):
        raise DataError(
            f"line {table.lines[0]}: its bars last {length // 60_000} minutes, and those of {frame}"
            f" {interval_of(frame) // 60_000}; name the file after its timeframe, or say --timeframe"
        )
    rows = Rows(time, _columns(table, found[1:6]), table.lines, notes)
    kind: RecordedKind = "mark" if "markpriceklines" in folders else "bars"
    return _recorded(content, kind, named, "Binance Vision", rows, root, options)


def _funding(content: Content, table: CsvTable, root: Path, options: FileOptions) -> Recorded:
    named = _said(binance_name, content)
    time, notes = table.times(table.headings.index("calc_time"))
    rates = table.numbers(table.headings.index("last_funding_rate"))[:, None]
    named = replace(named, instrument="perpetual")
    return _recorded(content, "funding", named, "Binance Vision", Rows(time, rates, table.lines, notes), root, options)


# Other text


def _yahoo(content: Content, headings: re.Match[bytes], root: Path, options: FileOptions) -> Recorded:
    """A table of yfinance; one of days names no zone and no timeframe."""
    columns, tickers, time = (part.decode("utf-8", "replace") for part in headings.groups())
    named = set(tickers.split(","))
    if len(named) > 1:
        raise DataError(
            f"line 2: holds {len(named)} tickers, {', '.join(sorted(named)[:2])} among them; give each a file"
        )
    table = read_csv(f"{time},{columns}\n".encode() + content.data[headings.end() :], options.layout)
    if table is None or not len(table.lines):
        raise DataError("holds no row")
    said = replace(
        options,
        symbol=options.symbol or re.sub(r"[^A-Za-z0-9]", "", named.pop()),
        timeframe=options.timeframe or ("1d" if time == "Date" else ""),
    )
    found = _headed(content, replace(table, lines=table.lines + 2), time.lower(), root, said, utc=True)
    rows = replace(found.rows, notes=(*found.rows.notes, "volume as Yahoo counts it, which for coins is in money"))
    return replace(found, format="Yahoo", rows=rows)


def _headed(
    content: Content, table: CsvTable, time: str, root: Path, options: FileOptions, *, utc: bool = False
) -> Recorded:
    downloaded = "cryptodatadownload" in table.comment.lower() or "symbol" in table.headings
    symbol = ""
    if "symbol" in table.headings:
        named = table.columns[table.headings.index("symbol")].unique().to_pylist()
        if len(named) > 1:
            raise DataError(f"holds {len(named)} symbols, {named[0]} and {named[1]} among them; give each a file")
        symbol = named[0]
    said = _said(named_file, content)
    said = replace(said, symbol=options.symbol or re.sub(r"[^A-Za-z0-9]", "", symbol) or said.symbol)
    volumes = _volumes(table)
    base = [name for name in volumes if said.symbol.lower().startswith(name.removeprefix("volume").strip(" _-()"))]
    if not base:
        raise DataError(
            f"none of the columns {', '.join(volumes)} counts coins of {said.symbol}; say it with --columns"
        )
    # Dates of CryptoDataDownload are UTC.
    moment, notes = _moments(table, table.headings.index(time), utc=downloaded or utc)
    places = [*(table.headings.index(name) for name in BAR_VALUES[:4]), table.headings.index(base[0])]
    rows = Rows(moment, _columns(table, places), table.lines, notes)
    return _recorded(content, "bars", said, "CryptoDataDownload" if downloaded else "CSV", rows, root, options)


def _moments(table: CsvTable, place: int, *, utc: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    first = str(table.columns[place][0].as_py())
    if utc and not table.layout.time_format and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d-[AP]M", first):
        table = replace(table, layout=replace(table.layout, time_format="%Y-%m-%d %I-%p"))
    return table.times(place, "UTC" if utc else "")


def _volumes(table: CsvTable) -> list[str]:
    return [name for name in table.headings if name == "volume" or name.startswith(("volume ", "volume_", "volume("))]


def _mapped(content: Content, table: CsvTable, root: Path, options: FileOptions) -> Recorded:
    places = {name: table.place(heading) for name, heading in options.columns.items()}
    missing = [options.columns[name] for name, place in places.items() if place is None]
    if missing:
        has = ", ".join(table.headings) or f"{len(table.columns)} columns without headings; name them by number, from 1"
        raise DataError(f"has no column {', '.join(missing)}; it has {has}")
    found = {name: place for name, place in places.items() if place is not None}
    time, notes = table.times(found["time"])
    rows = Rows(time, _columns(table, [found[name] for name in BAR_VALUES]), table.lines, notes)
    return _recorded(content, "bars", _said(named_file, content), "CSV", rows, root, options)


def _columns(table: CsvTable, places: list[int]) -> FloatArray:
    return np.stack([table.numbers(place) for place in places], axis=1)


# freqtrade


def _json(content: Content, root: Path, options: FileOptions) -> Recorded | str:
    try:
        rows = json.loads(content.data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not valid JSON ({error}); download it again") from error
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and len(row) == 6 for row in rows)):
        return f"{content.label}no list of rows [ms, open, high, low, close, volume]; known are {_KNOWN}"
    try:
        array = np.array(rows, np.float64)
    except (TypeError, ValueError):
        bad = next(n for n, row in enumerate(rows, 1) if any(type(cell) not in (int, float) for cell in row))
        raise DataError(f"row {bad}: {str(rows[bad - 1])[:80]} is not six numbers; download it again") from None
    line = np.arange(1, len(rows) + 1)
    try:
        time, notes = epoch_ms(array[:, 0], line)
    except DataError as error:
        raise DataError(str(error).replace("line", "row", 1)) from error
    return _of_freqtrade(content, Rows(time, array[:, 1:], line, notes), root, options, "row")


def _arrow_rows(path: Path) -> Rows:
    """The rows of a Feather or Parquet file of freqtrade. Raises `DataError` for another, and a damaged one."""
    try:
        if path.suffix == ".parquet":
            table = read_table(path, ("date", *BAR_VALUES))
        else:
            check_regular(path)
            batches, size = [], 0
            with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    batches.append(reader.get_batch(number))
                    size += batches[-1].nbytes
                    if size > MOST_UNPACKED:
                        raise DataError(f"{path}: holds more than {MOST_UNPACKED:,} bytes; divide it by time")
                table = pa.Table.from_batches(batches, reader.schema)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a readable {path.suffix[1:]} file ({str(error).splitlines()[0]}); write or download it again"
        ) from error
    missing = {"date", *BAR_VALUES} - set(table.column_names)
    if missing:
        raise DataError(f"{path}: has no column {', '.join(sorted(missing))}; known are {_KNOWN}")
    values = np.stack([numbers(table, name, path) for name in BAR_VALUES], axis=1)
    return Rows(times(table, "date", path), values, np.arange(1, len(values) + 1))


def _of_freqtrade(content: Content, rows: Rows, root: Path, options: FileOptions, unit: str) -> Recorded | str:
    named = freqtrade_name(content.path, content.name) or named_file(content.path, content.name)
    if named.series in _LEFT_OUT:
        return f"{named.series} of {named.symbol}, which no market here has"
    if not len(rows.time):
        raise DataError("holds no row")
    if named.series == "funding_rate":
        # freqtrade keeps the rate as the open of a candle.
        rates = replace(rows, values=rows.values[:, :1])
        return _recorded(content, "funding", named, "freqtrade", rates, root, options, unit)
    kind: RecordedKind = "mark" if named.series == "mark" else "bars"
    if kind == "mark":
        rows = replace(rows, values=np.nan_to_num(rows.values) if np.isnan(rows.values[:, 4]).all() else rows.values)
    return _recorded(content, kind, named, "freqtrade", rows, root, options, unit)
