"""Files as bytes and as tables of text.

The bytes of a file: plain, gzipped, or the members of a zip archive; bounded, whatever an archive states. Tables of
text: where the heading is, and columns as numbers and times, with the line of what is wrong.
"""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from simulator.arrays import FloatArray, IntArray
from simulator.errors import DataError
from simulator.folders import check_regular
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import TIMEFRAMES
from simulator.tables import EARLIEST, LATEST

MOST_UNPACKED = 2 * 2**30  # of one file or member, unpacked
_MOST_MEMBERS = 10_000
_UNITS = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # ms in each
_HEAD = 65_536  # bytes in which the heading lies
_COMMENT = re.compile(r"\s*(#|//|https?://|www\.|sep=)|[^,;\t|]*\.com\b[^,;\t|]*$", re.IGNORECASE)
_EMPTY = ("", "nan", "NaN", "NAN", "null", "None")  # a cell without a value
_GERMAN = {"datum": "date", "uhrzeit": "time", "zeit": "time", "eröffnung": "open", "hoch": "high", "tief": "low",
           "schluss": "close", "schlusskurs": "close", "volumen": "volume"}  # fmt: skip
_DATES = ("ISO8601", "%Y.%m.%d %H:%M:%S", "%Y.%m.%d %H:%M", "%Y.%m.%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d",
          "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y", "%Y-%m-%d %I-%p")  # fmt: skip
_ZONED, _CLOCK = r"(?:Z|UTC|GMT|[+-]\d\d:?\d\d)$", r"\d:\d|-[AP]M$"


@dataclass(frozen=True)
class Content:
    """A file as it was packed: its own name, without `.gz`, and its bytes; `member` is its name in a zip archive."""

    path: Path
    name: str
    data: bytes
    member: str = ""


def contents_of(path: Path, most: int = MOST_UNPACKED) -> Iterator[Content]:
    """What is in `path`, member by member where it is an archive; folders and checksums in archives are left out.

    Raises `DataError` for a file that cannot be read, is damaged, or holds more than `most` bytes.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == b"PK":
                yield from _members(path, most)
                return
            packed = GzipFile(fileobj=file) if start == b"\x1f\x8b" else file
            yield Content(path, path.name.removesuffix(".gz"), _bounded(packed, path, most))
    except (zipfile.BadZipFile, BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: is cut off or damaged ({error}); download it again") from error
    except RuntimeError as error:  # of an encrypted member, or one packed in another way
        raise DataError(f"{path}: cannot be unpacked ({error}); unpack it yourself") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _members(path: Path, most: int) -> Iterator[Content]:
    with zipfile.ZipFile(path) as archive:
        members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.endswith(".CHECKSUM")]
        if not members:
            raise DataError(f"{path}: is an empty archive; download it again")
        if len(members) > _MOST_MEMBERS:
            raise DataError(f"{path}: holds more than {_MOST_MEMBERS:,} files; divide it by symbol or time")
        for one in members:
            with archive.open(one) as file:
                data = _bounded(file, path, most)  # what an archive states of its members may be wrong
            most -= len(data)
            yield Content(path, PurePosixPath(one.filename).name, data, one.filename)


def _bounded(file: IO[bytes] | GzipFile, path: Path, most: int) -> bytes:
    parts, left = [], most
    while part := file.read(2**20):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise DataError(f"{path}: holds more than {most:,} bytes unpacked; divide it by symbol or time")
    return b"".join(parts)


def heading(name: str) -> str:
    """A heading in lower case and English, without quotes and brackets around it."""
    plain = name.strip().strip('"<>').lower()
    return _GERMAN.get(plain, plain)


def read_text(data: bytes, decimal: str = "") -> tuple[pd.DataFrame, bool, str] | None:
    """The cells as text, by heading and with the line as index; whether there are headings; the lines above them.

    Without headings the columns are "1", "2", ... None where it is not text or has fewer than two columns. Raises
    `DataError` with the line of a row of another length.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", errors="replace").encode()
    if b"\0" in data[:_HEAD]:
        return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        data[:_HEAD].decode("utf-8")
        encoding = "utf-8"
    except UnicodeDecodeError as error:  # it is Excel's, unless the head ends inside a letter
        encoding = "utf-8" if error.start > _HEAD - 4 else "cp1252"
    head = data[:_HEAD].decode(encoding, errors="replace").splitlines()
    above = next((at for at, line in enumerate(head) if line.strip() and not _COMMENT.match(line)), len(head))
    first = head[above] if above < len(head) else ""
    delimiter = max((one for one in ",;\t|" if one != decimal), key=re.sub(r'"[^"]*"', "", first).count)
    if delimiter not in first:
        return None
    names = [heading(name) for name in next(csv.reader([first], delimiter=delimiter))]
    headed, width = not any(is_number(name.replace(",", ".")) for name in names), len(names)
    begin, wrong, numbers = above + headed, list[str](), [str(at + 1) for at in range(width)]

    def refused(row: arrow_csv.InvalidRow) -> str:
        wrong.append(f"line {row.number}: has {row.actual_columns} cells, and the first row {width}")
        return "skip"

    cells = pd.DataFrame(columns=numbers, dtype=str)
    if data.count(b"\n") >= begin and data.split(b"\n", begin)[begin:] not in ([], [b""]):
        try:
            table = arrow_csv.read_csv(
                BytesIO(data),
                arrow_csv.ReadOptions(column_names=numbers, skip_rows=begin, use_threads=False, encoding=encoding),
                arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=refused, ignore_empty_lines=False),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(numbers, pa.string()), strings_can_be_null=False),
            )
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise DataError(f"is not a table of text ({str(error).splitlines()[0]}); write it again") from None
        if wrong:
            raise DataError(f"{wrong[0]}; the file is cut off or damaged there")
        cells = table.to_pandas()
    cells.index = pd.RangeIndex(begin + 1, begin + 1 + len(cells))
    cells = cells.apply(lambda column: column.str.strip())
    cells = cells[(cells != "").any(axis=1)]  # empty lines
    numbered = [f"{name} {at + 1}" if name in names[:at] else name for at, name in enumerate(names)]
    cells.columns = pd.Index(numbered if headed else numbers)
    return cells, headed, "\n".join(head[:above])


def decimal_of(cells: pd.DataFrame) -> str:
    """The decimal point of these columns: "." unless cells show that it is ",". Raises `DataError` with the line."""
    if not any(cells[name].str.contains(",", regex=False).any() for name in cells):
        return "."
    flat = cells.stack()
    commas = flat[flat.str.contains(",", regex=False)]
    grouped = commas.str.fullmatch(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
    german = commas.str.fullmatch(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")
    # 42,000.5 and 1,234,567 part thousands for sure, and so does 1,234 beside 1.5.
    parted = commas.str.contains(r",\d+[,.]").any() or flat.str.fullmatch(r"[+-]?\d+\.(?!\d{3}$)\d+").any()
    if grouped.all() and parted:
        return "."
    if german.all() and not grouped.all() and not parted:
        return ","
    line, name = (commas[~grouped] if not grouped.all() else commas).index[0]
    raise DataError(
        f"line {line}: {str(cells.loc[line, name])[:40]!r} in {name} is not a number, unless its comma is a decimal"
        " point or parts thousands; give --decimal , or --decimal ."
    )


def numbers_of(cells: pd.Series, decimal: str) -> FloatArray:
    """(n,): a column of numbers, NaN where a cell is empty. Raises `DataError` with the line of any other cell."""
    if (fast := _cast(cells, pa.float64())) is not None and decimal == ".":
        return fast
    parts = "." if decimal == "," else ","
    plain = cells.mask(cells.isin(_EMPTY))
    if plain.str.contains(parts, regex=False).any():
        whole = plain.str.fullmatch(rf"[+-]?\d{{1,3}}(?:\{parts}\d{{3}})+(?:\{decimal}\d+)?", na=False)
        plain = plain.where(~whole, plain.str.replace(parts, "", regex=False))
    values = pd.to_numeric(plain.str.replace(",", ".", regex=False) if decimal == "," else plain, errors="coerce")
    wrong = values.isna() & plain.notna()
    if wrong.any():
        hint = "; for a decimal comma give --decimal ," if "," in str(cells[wrong].iloc[0]) else ""
        raise DataError(
            f"line {cells.index[wrong][0]}: {cells[wrong].iloc[0][:40]!r} in {cells.name} is not a number{hint}"
        )
    return values.to_numpy(np.float64)


def _cast(cells: pd.Series, kind: pa.DataType) -> Any:
    """(n,): the cells as numbers of this kind, which is quick; None where one of them is not a number."""
    try:
        return pc.cast(pa.array(cells), kind).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None


def times_of(cells: pd.Series, form: str, zone: str, usual_zone: str = "") -> tuple[IntArray, tuple[str, ...]]:
    """(n,): a column of times in ms, and notes. Numbers count from 1970 on.

    `form` and `zone` are what the user gives. Other dates without a zone are of `usual_zone`, and days without a time
    of day of UTC, where alone a bar of a day can begin. Raises `DataError` with the line of a cell that is not a time.
    """
    line = cells.index.to_numpy()
    if not form and is_number(cells.iloc[0]):
        whole = _cast(cells, pa.int64())
        return epoch_ms(numbers_of(cells, ".") if whole is None else whole, line)
    read = form or next(
        (one for one in _DATES if pd.notna(pd.to_datetime(cells.iloc[0], format=one, errors="coerce"))), ""
    )
    zoned = cells.str.contains(_ZONED).to_numpy(bool) & ("%z" in form.lower() or not form)
    zone = zone or usual_zone or ("" if cells.str.contains(_CLOCK).any() else "UTC")
    if not zoned.all() and not zone:
        raise DataError(
            f"line {line[~zoned][0]}: the time {cells[~zoned].iloc[0][:40]!r} names no zone; give it, as --time-zone"
            " UTC or --time-zone Europe/Berlin"
        )
    moments = pd.to_datetime(cells, format=read, utc=bool(zoned.all()), errors="coerce")
    unread = moments.isna().to_numpy()
    if unread.any() or not isinstance(moments.dtype, np.dtype | pd.DatetimeTZDtype):
        row = int(np.argmax(unread))
        raise DataError(
            f"line {line[row]}: {cells.iloc[row][:40]!r} is not a time of the form {form or '2024-01-31 08:00:00'};"
            " give the form with --time-format, as '%d.%m.%Y %H:%M'"
        )
    utc = moments if zoned.all() else _in_utc(moments, zone)
    result = utc.to_numpy("datetime64[ms]").astype(np.int64)
    wrong = (result < EARLIEST) | (result >= LATEST)
    if wrong.any():
        raise DataError(f"line {line[wrong][0]}: the time {cells[wrong].iloc[0]!r} is not from 2000 to 2100")
    return result, ()


def _in_utc(moments: pd.Series, zone: str) -> pd.Series:
    """Local times in UTC. The order of the rows tells the two hours apart that are one when clocks are set back."""
    newest_first = len(moments) > 1 and moments.iloc[0] > moments.iloc[-1]
    in_order = moments[::-1] if newest_first else moments
    try:
        local = in_order.dt.tz_localize(ZoneInfo(zone), ambiguous="infer", nonexistent="raise")
    except (ValueError, KeyError) as error:  # both of pandas' errors about clocks are ValueErrors
        raise DataError(
            f"the times are not local times of {zone}: {str(error).splitlines()[0]}; give the zone with --time-zone"
        ) from error
    utc = local.dt.tz_convert("UTC").dt.tz_localize(None)
    return utc[::-1] if newest_first else utc


def epoch_ms(values: IntArray | FloatArray, line: IntArray, unit: str = "line") -> tuple[IntArray, tuple[str, ...]]:
    """Milliseconds of n numbers since 1970, and what to say of them. From 2000 to 2100 the ranges of seconds, milli-,
    micro- and nanoseconds lie apart, so each number has one unit.

    Raises `DataError` with the line (or another `unit`) of a number that is not such a time.
    """
    result, found = np.full(len(values), -1, np.int64), []
    for name, size in _UNITS.items():
        rows = (values >= EARLIEST / size) & (values < LATEST / size)
        if rows.any():
            found.append(f"{int(rows.sum())} in {name}")
            exact = np.issubdtype(values.dtype, np.integer) and size < 1
            result[rows] = values[rows] // round(1 / size) if exact else np.round(values[rows] * size)
    if (result < 0).any():
        row = int(np.argmin(result))
        raise DataError(
            f"{unit} {line[row]}: the time {values[row]:.15g} is not a number of seconds, milliseconds or microseconds"
            " since 1970 from 2000 to 2100; give the form of dates with --time-format"
        )
    return result, (f"times {', '.join(found)}",) if len(found) > 1 else ()


def is_number(cell: str) -> bool:
    """Whether a cell is a number with a decimal point."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


# What names of files and folders state


_ANY = "|".join((*TIMEFRAMES, "1s", "2w", "1mo", "1M", "1y"))  # those of other lengths are known, and refused
_WORDS = {"minute": "1m", "min": "1m", "hour": "1h", "hourly": "1h", "h": "1h", "60m": "1h", "d": "1d", "day": "1d",
          "daily": "1d", "week": "1w", "weekly": "1w", "w": "1w"}  # fmt: skip
_FREQTRADE = re.compile(
    rf"([A-Za-z0-9]+)_([A-Za-z0-9]+)(?:_([A-Za-z0-9]+))?-({_ANY})"
    r"(?:-(spot|futures|mark|index|premiumIndex|funding_rate|open_interest))?"
)
_EXCHANGES = {
    "binance", "binanceus", "bitfinex", "bitget", "bitmex", "bitstamp", "bybit", "coinbase", "deribit", "exmo", "ftx",
    "gateio", "gemini", "hitbtc", "htx", "huobi", "kraken", "kucoin", "mexc", "okcoin", "okx", "poloniex",
}  # fmt: skip
_PERPETUAL = {"perp", "perpetual", "swap", "futures", "um", "usdm"}
# Words in lower case are a symbol only where they end with a currency: `btcusdt`, but not `prices`.
_ENDING = r"usd[tcde]?|[bft]d?usd|dai|eur|gbp|jpy|krw|try|brl|aud|btc|eth|bnb"
_CURRENCY = re.compile(rf"([a-z0-9]{{2,20}}?)(?:{_ENDING})", re.IGNORECASE)
_SYMBOL = re.compile(rf"[A-Z0-9]{{2,30}}|(?i:[a-z0-9]{{2,20}}(?:{_ENDING}))")
# Folders in a tree of Binance Vision or freqtrade that name no venue.
_LAYERS = {"klines", "markpriceklines", "fundingrate", "monthly", "daily", "data", "futures", "spot", "um"}


@dataclass(frozen=True)
class NamedFile:
    """What a name states; empty or None where it states nothing. `series` is freqtrade's type of candles."""

    symbol: str = ""
    timeframe: str = ""
    venue: str = ""
    instrument: MarketKind | None = None
    series: str = ""


def named_file(path: Path, member: str) -> NamedFile:
    """What the name of `member` states, a member of the archive `path` or its own name, and then the path.

    Raises `DataError` for a symbol that is margined in its coin.
    """
    stem = member.partition(".")[0].removesuffix("-funding")
    if match := _FREQTRADE.fullmatch(stem):
        return _of_freqtrade(path, match)
    own, outer = _of_words(stem), _of_words(path.name.partition(".")[0].removesuffix("-funding"))
    symbol, timeframe = own.symbol or outer.symbol, own.timeframe or outer.timeframe
    parts = [part.lower() for part in path.resolve().parts[:-1]]
    pairs = set(pairwise(parts))
    if ("futures", "cm") in pairs:
        raise DataError("coin-margined futures cannot be used; take those of futures/um or spot")
    if ("futures", "um") in pairs:
        return NamedFile(symbol, timeframe, "binance-usdm", "perpetual")
    if {("spot", "monthly"), ("spot", "daily")} & pairs:
        return NamedFile(symbol, timeframe, "binance", "spot")
    venue = own.venue or outer.venue or _folder(path, {symbol.lower(), timeframe.lower()})
    return NamedFile(symbol, timeframe, venue, own.instrument or outer.instrument)


def _of_freqtrade(path: Path, match: re.Match[str]) -> NamedFile:
    """`BTC_USDT-1h` in the folder of an exchange is spot; `BTC_USDT_USDT-1h-futures` in its `futures` a perpetual."""
    base, quote, settle, timeframe, series = match.groups()
    folder = path.parent.resolve()
    if settle and settle != quote:
        raise DataError(f"{base}/{quote} is margined in {settle}; only perpetuals margined in their quote can be used")
    venue = (folder.parent if folder.name == "futures" else folder).name
    if settle and not venue.endswith(("futures", "usdm", "perp", "swap")):
        venue += "-futures"
    return NamedFile(base + quote, timeframe, venue, "perpetual" if settle else "spot", series or "")


def _of_words(stem: str) -> NamedFile:
    """A name of exchange, symbol and timeframe in some order, as `Binance_BTCUSDT_1h` or `BINANCE_BTCUSDT, 60`."""
    timeframe = exchange = ""
    perpetual, left = False, []
    for word in re.findall(r"[A-Za-z0-9]+", stem):
        lower = word.lower()
        length = re.fullmatch(r"(\d+)(min|hour|day|week)", lower)
        if lower in _EXCHANGES:
            exchange = lower
        elif lower in _PERPETUAL:
            perpetual = True
        elif re.fullmatch(_ANY, word) or lower in TIMEFRAMES:
            timeframe = word if re.fullmatch(_ANY, word) else lower
        elif length or lower in _WORDS:
            timeframe = f"{length[1]}{length[2][0]}" if length else _WORDS[lower]
        elif not word.isdigit() and lower not in ("spot", "ohlcv", "candles", "klines", "fundingrate"):
            left.append(word)
    joined = ["".join(left)] if len(left) <= 2 else []
    # A word beside the symbol, as in `BTCUSDT_data`; `bitstampUSD` names no coin.
    paired = [word for word in left if (ends := _CURRENCY.fullmatch(word)) and ends[1].lower() not in _EXCHANGES]
    symbol = next((word for word in joined if _SYMBOL.fullmatch(word)), paired[0] if len(paired) == 1 else "")
    venue = f"{exchange}-futures" if exchange and perpetual else exchange
    timeframe = {"60m": "1h"}.get(timeframe, timeframe)
    return NamedFile(symbol if _SYMBOL.fullmatch(symbol) else "", timeframe, venue, "perpetual" if perpetual else None)


def _folder(path: Path, skipped: set[str]) -> str:
    named = (part.strip("/\\") for part in path.resolve().parts[-2::-1] if part.lower() not in _LAYERS | skipped)
    return next(named, "") or "imported"
