"""Recorded files of other programs: one table of known formats, each with what its files look like.

| format | content |
| --- | --- |
| Binance Vision | bars of 12 columns, with or without headings, in ms or us; funding: calc_time, last_funding_rate |
| CryptoDataDownload | a line with the address, then unix, date, symbol, open, ...; newest first |
| TradingView, Yahoo, Kaggle, MetaTrader, any CSV | the headings of a time, or a date and a time, and of the values |
| yfinance | three lines of headings: Price and the columns, Ticker, Date |
| Kraken, ccxt | no headings: time, open, high, low, close, volume; Kraken adds the trades |
| freqtrade, ccxt | Feather or Parquet with date, open, ...; JSON of rows [ms, open, high, low, close, volume] |
| this project | Parquet with timestamp, open, ...; funding with timestamp, funding_rate |

The symbol comes from the user, a column or the name of the file; the timeframe from the user, the name or the distance
of the rows. Rows without any value are left out. Every other doubt is an error with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa

from simulator.arrays import BoolArray, IntArray
from simulator.data.archive import bar_file
from simulator.data.text import (
    MOST_UNPACKED,
    Content,
    NamedFile,
    contents_of,
    decimal_of,
    epoch_ms,
    heading,
    is_number,
    named_file,
    numbers_of,
    read_text,
    times_of,
)
from simulator.errors import DataError, UserError
from simulator.folders import check_regular
from simulator.market.bar_checks import BAR_VALUES, faults_of
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import TIMEFRAMES, format_time, interval_of
from simulator.tables import numbers, read_table, times

RecordedKind = Literal["bars", "mark", "funding"]
SUFFIXES = (".parquet", ".csv", ".txt", ".tsv", ".zip", ".json", ".feather", ".csv.gz", ".json.gz")
# Files of the project, and of others, that lie among data and hold none.
NO_DATA = {"instruments.json", "rules.json", "download.json", "market.json", "package.json", "config.json"}
FIELDS = ("time", *BAR_VALUES)
_PRICES = frozenset(BAR_VALUES[:4])
_FEWEST = 3  # rows that tell the distance between bars
_YFINANCE = re.compile(rb"Price,([^\r\n]*)\r?\nTicker,([^\r\n]+)\r?\n(Date|Datetime),*\r?\n")
_LEFT_OUT = {"index", "premiumIndex", "open_interest"}  # freqtrade's series that no market here has
_TIMES = ("timestamp", "unix", "unix timestamp", "calc_time", "open_time", "open time", "datetime", "date", "time")
_KNOWN = (
    "CSV or zip of Binance Vision, CryptoDataDownload, TradingView, Kraken, Yahoo, Kaggle; Feather, Parquet or JSON of"
    " freqtrade and ccxt; and any CSV whose columns are named, as --columns time=Date,open=Open,high=High,low=Low,"
    "close=Close,volume=Vol"
)


class _Format(NamedTuple):
    """A format of text, known by the headings that it `needs` and the `comment` above them or, without headings, by the
    number of its `columns`. Dates that name no zone are of `zone`; `note` says what is unusual."""

    name: str
    needs: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    comment: str = ""
    zone: str = ""
    note: str = ""


_KLINES = ("open_time", *BAR_VALUES, "close_time", "quote", "count", "taker_base", "taker_quote", "ignore")
_YAHOO = _Format("Yahoo", _PRICES | {"adj close"}, zone="UTC", note="volume as Yahoo counts it, for coins in money")
_CSV = _Format("CSV", _PRICES)
_FORMATS = (
    _Format("Binance Vision", frozenset({"calc_time", "last_funding_rate"})),
    _Format("Binance Vision", _PRICES | {"open_time", "close_time"}, _KLINES),
    _Format("Kraken", columns=("time", *BAR_VALUES, "trades")),
    _Format("Kraken", columns=("time", *BAR_VALUES[:4], "vwap", "volume", "trades")),
    _Format("ccxt", columns=FIELDS),
    _Format("CryptoDataDownload", _PRICES, comment="cryptodatadownload", zone="UTC"),
    _YAHOO,
    _CSV,
)


@dataclass(frozen=True)
class FileOptions:
    """What the user states about files that do not state it themselves; empty: what content and name state.

    Attributes:
        columns: heading, or number from 1, of each of time, open, high, low, close, volume, for files of text.
        symbol, timeframe, venue: of all files.
        decimal: the decimal point. time_format: of dates, as of strptime. time_zone: of times that name none.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    symbol: str = ""
    timeframe: str = ""
    venue: str = ""
    decimal: str = ""
    time_format: str = ""
    time_zone: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in FIELDS]
        missing = [name for name in FIELDS if name not in self.columns]
        if self.columns and (unknown or missing):
            what = f"{unknown[0]!r} is none of them" if unknown else f"{', '.join(missing)} is missing"
            raise UserError(f"--columns names a column for each of {', '.join(FIELDS)}; {what}")
        if self.timeframe:
            interval_of(self.timeframe)
        if not re.fullmatch(r"[A-Za-z0-9_-]*", self.symbol):
            raise UserError(f"--symbol {self.symbol!r}: use letters, digits, '_' and '-', as BTCUSDT")
        if not re.fullmatch(r"|[A-Za-z0-9][A-Za-z0-9._-]*", self.venue):
            raise UserError(f"--venue {self.venue!r}: use letters, digits, '.', '_' and '-', as binance-usdm")
        if self.decimal not in ("", ".", ","):
            raise UserError(f"--decimal {self.decimal!r}: a decimal point is '.' or ','")
        try:
            ZoneInfo(self.time_zone or "UTC")
        except (KeyError, ValueError, OSError):
            raise UserError(f"--time-zone {self.time_zone!r}: no such zone; write it like Europe/Berlin") from None


def columns_of(text: str) -> dict[str, str]:
    """The mapping in `time=Date,open=Open,...`. Raises `UserError` for a text of another form."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not (mark and name.strip() and head.strip()) for name, mark, head in pairs):
        raise UserError(
            f"--columns {text!r}: write it like time=Date,open=Open,high=High,low=Low,close=Close,volume=Vol"
        )
    return {name.strip(): head.strip() for name, _, head in pairs}


@dataclass(frozen=True)
class Recorded:
    """The rows of a file, in order of time: bars, mark prices or funding of one symbol at one venue.

    Attributes:
        label: its path in the tree and its member.
        timeframe: empty for funding.
        instrument: what its name or folder states.
        rows: `time` (ms), and `BAR_VALUES` or `funding_rate`; the index is the line, or another `unit`, from 1.
        notes: what was unusual.
    """

    label: str
    kind: RecordedKind
    venue: str
    symbol: str
    timeframe: str
    instrument: MarketKind | None
    format: str
    rows: pd.DataFrame
    unit: str
    notes: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file of a catalog that the rows belong to."""
        if self.kind == "funding":
            return f"{self.symbol}-funding.parquet"
        return "mark/" * (self.kind == "mark") + bar_file(self.symbol, self.timeframe)

    @property
    def time(self) -> IntArray:
        """(n,) ms."""
        return self.rows["time"].to_numpy(np.int64)


def read_recorded(path: Path, root: Path, options: FileOptions) -> Iterator[Recorded | str]:
    """What `path`, a file of the tree `root`, holds, or why that cannot be imported; several from an archive.

    Raises `DataError` for a file that has a known format and cannot be used.
    """
    if path.suffix in (".feather", ".parquet"):
        yield _of_arrow(path, root, options)
        return
    for content in contents_of(path):
        inside = f"{content.member}: " if content.member else ""
        try:
            as_json = content.data.lstrip()[:1] in (b"[", b"{")
            found = _of_json(content, root, options) if as_json else _of_text(content, root, options)
        except DataError as error:
            raise DataError(f"{inside}{str(error).removeprefix(f'{path}: ')}") from error
        yield f"{inside}{found}" if isinstance(found, str) else found


# Text


def _of_text(content: Content, root: Path, options: FileOptions) -> Recorded | str:
    named = named_file(content.path, content.name)
    data, form = content.data, None
    if heads := _YFINANCE.match(data):
        columns, tickers, time_head = (part.decode("utf-8", "replace") for part in heads.groups())
        named = replace(named, symbol=_only_symbol(tickers.split(","), "tickers", "line 2: "))
        # Blank lines in place of the other headings keep the lines as they are.
        data, form = f"{time_head},{columns}\n\n\n".encode() + data[heads.end() :], _YAHOO
    table = read_text(data, options.decimal)
    if table is None:
        return f"no table; known are {_KNOWN}"
    cells, headed, comment = table
    if cells.empty:
        raise DataError("holds no row")
    if options.columns:
        cells, form = _mapped(cells, options.columns, headed), _CSV
    form = form or _format_of(cells, headed, comment)
    if form is None:
        has = ", ".join(cells.columns) if headed else f"{cells.shape[1]} columns without headings"
        return f"no known format; it has {has}. Known are {_KNOWN}"
    if not headed and not options.columns:
        cells = cells.set_axis(list(form.columns), axis=1)
    return _text_rows(content, cells, form, named, root, options)


def _text_rows(
    content: Content, cells: pd.DataFrame, form: _Format, named: NamedFile, root: Path, options: FileOptions
) -> Recorded | str:
    """The rows of a table of text with headings."""
    folders = {part.lower() for part in content.path.resolve().parts}
    if form.name == "Binance Vision" and folders & {"indexpriceklines", "premiumindexklines"}:
        return "prices of an index, which no market here has"
    zone = form.zone
    if "symbol" in cells.columns:
        zone = "UTC"  # as of CryptoDataDownload, whose address may be cut off
        named = replace(named, symbol=_only_symbol(cells["symbol"], "symbols") or named.symbol)
    if "last_funding_rate" in cells.columns:
        names, named = ["last_funding_rate"], replace(named, instrument="perpetual", series="funding_rate")
    else:
        names = [*BAR_VALUES[:4], _volume(list(cells.columns), options.symbol or named.symbol)]
        named = replace(named, series="mark") if "markpriceklines" in folders else named
    decimal = options.decimal or decimal_of(cells[names])
    rows = pd.DataFrame({name: numbers_of(cells[name], decimal) for name in names}, cells.index)
    # Some write a row of nothing for a bar without trades, some with a volume of 0.
    empty = rows[names[:4]].isna().all(axis=1) & ~(rows[names[-1]] > 0) & (len(names) > 1)
    notes = [form.note, f"{int(empty.sum())} rows without a value left out" * bool(empty.any())]
    if empty.all():
        raise DataError("holds no row with a value")
    time, reported = times_of(_time_cells(cells[~empty]), options.time_format, options.time_zone, zone)
    rows = rows[~empty].set_axis(_columns(len(names)), axis=1)
    rows.insert(0, "time", time)
    return _recorded(content, named, form.name, rows, [*reported, *notes], root, options)


def _columns(count: int) -> list[str]:
    return list(BAR_VALUES) if count > 1 else ["funding_rate"]


def _only_symbol(names: Sequence[str] | pd.Series, what: str, where: str = "") -> str:
    """The one symbol among `names`, in letters and digits. Raises `DataError` for several."""
    coins = sorted(set(names))
    if len(coins) > 1:
        raise DataError(f"{where}holds {len(coins)} {what}, {' and '.join(coins[:2])} among them; give each a file")
    return re.sub(r"[^A-Za-z0-9]", "", coins[0])


def _format_of(cells: pd.DataFrame, headed: bool, comment: str) -> _Format | None:
    heads = set(cells.columns)
    valued = "last_funding_rate" in heads or (heads & set(_TIMES) and _volumes(list(cells.columns)))
    for form in _FORMATS:
        if headed and valued and form.needs and form.needs <= heads and form.comment in comment.lower():
            return form
        if not headed and len(form.columns) == cells.shape[1] and all(map(is_number, cells.iloc[0])):
            return form
    return None


def _mapped(cells: pd.DataFrame, columns: Mapping[str, str], headed: bool) -> pd.DataFrame:
    """The columns that the user names, under the names of their fields."""
    missing = [name for name in columns.values() if heading(name) not in cells.columns]
    if missing:
        has = ", ".join(cells.columns) if headed else f"{cells.shape[1]} columns without headings, which are 1, 2, ..."
        raise DataError(f"has no column {', '.join(missing)}; it has {has}")
    return pd.DataFrame({name: cells[heading(of)] for name, of in columns.items()})


def _volumes(heads: Sequence[str]) -> list[str]:
    return [name for name in heads if re.match(r"(base[ _])?volume(from$|$|[ _(-])|vol$|tickvol$", name)]


def _volume(heads: Sequence[str], symbol: str) -> str:
    """The column of the volume in coins. Raises `DataError` where there is none."""
    found = _volumes(heads)
    plain = [name for name in ("volume", "base volume", "base_volume", "volumefrom") if name in found]
    coins = [name for name in found if symbol.lower().startswith(re.sub(r"volume|[ _()-]", "", name))]
    ticks = [name for name in found if name in ("vol", "tickvol")]
    chosen = [*plain, *coins, *ticks]
    if not chosen:
        raise DataError(f"none of the columns {', '.join(found)} counts coins of {symbol}; name it with --columns")
    return chosen[0]


def _time_cells(cells: pd.DataFrame) -> pd.Series:
    """The column of times; a date and a time of day in two columns are joined."""
    names = [name for name in _TIMES if name in cells.columns]
    if names[:2] == ["date", "time"] and not is_number(cells["time"].iloc[0]):
        return cells["date"] + " " + cells["time"]
    return cells["time" if names[:2] == ["date", "time"] else names[0]]


# JSON and Arrow


def _of_json(content: Content, root: Path, options: FileOptions) -> Recorded | str:
    """The rows of ccxt's and freqtrade's JSON. Raises `DataError` for a damaged file."""
    try:
        rows = json.loads(content.data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not valid JSON ({error}); download it again") from error
    if not (isinstance(rows, list) and rows and all(isinstance(row, list) and len(row) == 6 for row in rows)):
        return f"no list of rows [ms, open, high, low, close, volume]; known are {_KNOWN}"
    bad = next((n for n, row in enumerate(rows, 1) if any(type(cell) not in (int, float) for cell in row)), 0)
    if bad:
        raise DataError(f"row {bad}: {str(rows[bad - 1])[:80]} is not six numbers; download it again")
    table = pd.DataFrame(rows, pd.RangeIndex(1, len(rows) + 1), FIELDS, np.float64)
    time, notes = epoch_ms(table["time"].to_numpy(), table.index.to_numpy(), "row")
    named = named_file(content.path, content.name)
    return _recorded(content, named, "ccxt", table.assign(time=time), notes, root, options, "row")


def _of_arrow(path: Path, root: Path, options: FileOptions) -> Recorded | str:
    """The rows of a Feather or Parquet file of bars or funding. Raises `DataError` for a damaged file."""
    form = path.suffix[1:].capitalize()
    try:
        table = read_table(path, ()) if form == "Parquet" else _feather(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not a readable {form} file ({str(error).splitlines()[0]}); write or download it again"
        ) from error
    time = next((name for name in ("timestamp", "date") if name in table.column_names), "")
    wanted = _columns(5 if set(BAR_VALUES) <= set(table.column_names) else 1)
    if not time or not set(wanted) <= set(table.column_names):
        return f"not a table of bars or funding; it has the columns {', '.join(table.column_names) or 'none'}"
    columns = {"time": times(table, time, path), **{name: numbers(table, name, path) for name in wanted}}
    named = named_file(path, path.name)
    if len(wanted) == 1:
        named = replace(named, series="funding_rate")
    notes = ["its column half_spread is not taken"] * ("half_spread" in table.column_names)
    rows = pd.DataFrame(columns, pd.RangeIndex(1, table.num_rows + 1))
    return _recorded(Content(path, path.name, b""), named, form, rows, notes, root, options, "row")


def _feather(path: Path) -> pa.Table:
    check_regular(path)
    batches, size = [], 0
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            batches.append(reader.get_batch(number))
            size += batches[-1].nbytes
            if size > MOST_UNPACKED:
                raise DataError(f"{path}: holds more than {MOST_UNPACKED:,} bytes; divide it by time")
        return pa.Table.from_batches(batches, reader.schema)


# Checks


def _recorded(
    content: Content, named: NamedFile, form: str, rows: pd.DataFrame, notes: Sequence[str], root: Path,
    options: FileOptions, unit: str = "line",
) -> Recorded | str:  # fmt: skip
    """The rows once they are checked, with what the user states in place of what the names state."""
    if named.series in _LEFT_OUT:
        return f"{named.series} of {named.symbol}, which no market here has"
    if rows.empty:
        raise DataError("holds no row")
    symbol, frame, reported = options.symbol or named.symbol, options.timeframe or named.timeframe, [*notes]
    if not symbol:
        raise DataError("its symbol is not known; name the file like BTCUSDT-1h, or give --symbol BTCUSDT")
    kind: RecordedKind = "funding" if named.series == "funding_rate" else "mark" if named.series == "mark" else "bars"
    rows, repeated = _ordered(rows, unit)
    reported.append(f"{repeated} rows repeated, taken once" * bool(repeated))
    if kind == "funding":  # freqtrade keeps the rate as the open of a candle
        frame, rows = "", rows.iloc[:, :2].set_axis(["time", "funding_rate"], axis=1)
        _refuse(rows, ~(rows["funding_rate"].abs() < 1).to_numpy(), "have a rate that is not between -1 and 1", unit)
    else:
        if kind == "mark":  # a price that nobody trades has no volume
            rows = rows.fillna({"volume": 0.0})
        if not frame:
            frame = _frame_of(rows["time"].to_numpy())
            reported.append(f"bars of {frame}, by the distance of its rows")
        _check_bars(rows, frame, unit)
    label = str(content.path.relative_to(root)) + (f" {content.member}" if content.member else "")
    return Recorded(
        label, kind, options.venue or named.venue, symbol.upper(), frame, named.instrument, form, rows, unit,
        tuple(note for note in reported if note),
    )  # fmt: skip


def _refuse(rows: pd.DataFrame, wrong: BoolArray, what: str, unit: str) -> None:
    """Raise `DataError` with the line and the values of the first row that is wrong."""
    if wrong.any():
        shown = ", ".join(f"{name} {value:g}" for name, value in rows.iloc[:, 1:].loc[wrong].iloc[0].items())
        raise DataError(
            f"{unit} {rows.index[wrong][0]}: the first of {int(wrong.sum())} rows that {what} ({shown}); fix or remove"
            " them"
        )


def _ordered(rows: pd.DataFrame, unit: str) -> tuple[pd.DataFrame, int]:
    """The rows from old to new, and how many are there twice; equal rows are kept once. Raises `DataError` for another
    order, and two rows of one time."""
    time, line = rows["time"].to_numpy(), rows.index
    step = np.diff(time)
    if len(step) and step.min() < 0:
        if step.max() > 0:
            place = int(np.flatnonzero(step < 0 if time[-1] >= time[0] else step > 0)[0]) + 1
            raise DataError(
                f"{unit} {line[place]}: {format_time(int(time[place]))} comes after"
                f" {format_time(int(time[place - 1]))} in {unit} {line[place - 1]}, so the file is in no order; sort it"
                " by time, and divide it if it holds several symbols"
            )
        rows = rows[::-1]
    same = rows["time"].diff() == 0
    differs = (rows != rows.shift()).any(axis=1) & same
    if differs.any():
        place = int(differs.to_numpy().argmax())
        one, other = sorted(rows.index[[place - 1, place]])
        moment = format_time(int(rows["time"].iloc[place]))
        raise DataError(f"{unit} {other}: differs from {unit} {one}, which is also of {moment}; remove one")
    return rows[~same], int(same.sum())


def _frame_of(time: IntArray) -> str:
    """The timeframe of bars by their distance, of which most must be the shortest. Raises `DataError`."""
    step = np.diff(time)
    frame = next((name for name, length in TIMEFRAMES.items() if len(step) and length == step.min()), "")
    if len(time) < _FEWEST or not frame or np.mean(step == step.min()) < 0.5 or (step % step.min()).any():
        apart = f"; its rows are {int(np.median(step)) // 60_000} minutes apart" if len(step) else ""
        raise DataError(
            f"its timeframe is not known{apart}: name the file like BTCUSDT-1h, or give --timeframe 1h; timeframes are"
            f" {', '.join(TIMEFRAMES)}"
        )
    return frame


def _check_bars(rows: pd.DataFrame, timeframe: str, unit: str) -> None:
    """Raise `DataError` with the line of the first bar that is impossible, off the grid, or of other bars."""
    if timeframe not in TIMEFRAMES:
        raise DataError(f"bars of {timeframe} are not used here; take one of {', '.join(TIMEFRAMES)}")
    interval, time = interval_of(timeframe), rows["time"].to_numpy()
    step = np.diff(time)
    if len(time) >= _FEWEST and step.min() > interval:
        raise DataError(
            f"the bars are {int(np.median(step)) // 60_000} minutes apart, and those of {timeframe}"
            f" {interval // 60_000}: give --timeframe, or name the file after its timeframe"
        )
    for kind, wrong, what in faults_of(interval, time, {name: rows[name].to_numpy() for name in BAR_VALUES}):
        hint = "; give another --timeframe or --time-zone" * (kind == "misaligned")
        _refuse(rows, wrong, f"{what}{hint}", unit)
