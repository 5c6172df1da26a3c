"""Recorded data beside the bars: point-in-time numbers and snapshots of the order book.

| file | columns |
| --- | --- |
| `series-{kind}-{name}.parquet` | known_at, and one number column or more |
| `{SYMBOL}-book.parquet` | time, and per level, from 1: bid_price_1, bid_size_1, ask_price_1, ask_size_1 |

A series is called `kind/name` inside the program: `onchain/BTC`, `sentiment/fear_greed`. Times are integer milliseconds
since the epoch, UTC. Each record is known from its time on: `DataSeries.known_at`, `OrderBooks.time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import DataError
from simulator.market.timeframes import format_time
from simulator.tables import numbers, read_table, times, timestamp_array, write_table

SERIES_FILE = re.compile(r"series-([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)\.parquet")
SERIES_NAME = re.compile(r"([A-Za-z0-9_]+)/([A-Za-z0-9_-]+)")
BOOK_SUFFIX = "-book.parquet"
BOOK_COLUMNS = ("bid_price", "bid_size", "ask_price", "ask_size")

_Kept = TypeVar("_Kept", "DataSeries", "OrderBooks")


@dataclass(frozen=True)
class DataSeries:
    """n records of numbers that became known one after the other.

    Attributes:
        known_at: `(n,)` ms, strictly rising: from when on a record could be read.
        columns: name -> `(n,)` finite numbers, one column or more.

    Raises:
        DataError: records out of order, a value that is missing or not finite, columns of another length.
    """

    known_at: IntArray
    columns: dict[str, FloatArray]

    def __post_init__(self) -> None:
        if not self.columns:
            raise DataError("a series holds no column of numbers; give it at least one beside known_at")
        _check_order(self.known_at)
        for name, values in self.columns.items():
            if values.shape != self.known_at.shape:
                raise DataError(f"{name} has shape {values.shape}, expected {self.known_at.shape}")
            _check_rows(~np.isfinite(values), self.known_at, f"{name} is missing or not finite; mend or remove the row")

    def __len__(self) -> int:
        return len(self.known_at)

    def rows(self, start: int, stop: int) -> DataSeries:
        """A copy of the records [start, stop)."""
        part = slice(start, stop)
        return DataSeries(
            self.known_at[part].copy(), {name: values[part].copy() for name, values in self.columns.items()}
        )

    def until(self, time: int) -> DataSeries:
        """What is known at `time` (ms)."""
        return self.rows(0, int(np.searchsorted(self.known_at, time, side="right")))

    def content(self) -> Iterator[bytes]:
        """Everything in it, for a digest: equal content gives equal bytes, whatever the order of the columns."""
        yield self.known_at.astype(np.int64).tobytes()
        for name in sorted(self.columns):
            yield f"|{name}|".encode()
            yield np.ascontiguousarray(self.columns[name], np.float64).tobytes()


@dataclass(frozen=True)
class OrderBook:
    """One snapshot of an order book: `time` in ms, the others `(L,)`, best level first, NaN where a level is absent.

    Prices are in quote currency, sizes in base units.
    """

    time: int
    bid_price: FloatArray
    bid_size: FloatArray
    ask_price: FloatArray
    ask_size: FloatArray


@dataclass(frozen=True)
class OrderBooks:
    """n snapshots of one symbol's order book, up to L levels a side.

    `time` is `(n,)` ms, strictly rising. The others are `(n, L)`, best level first: prices in quote currency, sizes in
    base units, NaN where a level is absent.

    Raises:
        DataError: snapshots out of order, a price not above 0, a negative size, a level that is half there or stands
            behind an absent one, prices of a side in disorder, a best bid that is not below the best ask.
    """

    time: IntArray
    bid_price: FloatArray
    bid_size: FloatArray
    ask_price: FloatArray
    ask_size: FloatArray

    def __post_init__(self) -> None:
        _check_order(self.time)
        shape = self.bid_price.shape
        for name in BOOK_COLUMNS:
            found = getattr(self, name).shape
            if found != shape or len(found) != 2 or found[0] != len(self.time) or not found[1]:
                raise DataError(f"{name} has shape {found}, expected ({len(self.time)}, levels), as the other columns")
        for side, better in (("bid", -1.0), ("ask", 1.0)):
            self._check_side(side, better)
        self._report(
            self.bid_price[:, 0] >= self.ask_price[:, 0], "the best bid is not below the best ask (a crossed book)"
        )

    def __len__(self) -> int:
        return len(self.time)

    def at(self, row: int) -> OrderBook:
        """A copy of snapshot `row`."""
        return OrderBook(int(self.time[row]), *(getattr(self, name)[row].copy() for name in BOOK_COLUMNS))

    def until(self, time: int) -> OrderBooks:
        """What is known at `time` (ms)."""
        stop = int(np.searchsorted(self.time, time, side="right"))
        return OrderBooks(self.time[:stop].copy(), *(getattr(self, name)[:stop].copy() for name in BOOK_COLUMNS))

    def content(self) -> Iterator[bytes]:
        """Everything in it, for a digest. Every NaN has the same bytes here."""
        yield self.time.astype(np.int64).tobytes()
        for name in BOOK_COLUMNS:
            values = getattr(self, name)
            yield f"|{name}|{values.shape[1]}|".encode()
            yield np.where(np.isnan(values), np.nan, values).astype(np.float64).tobytes()

    def _check_side(self, side: str, better: float) -> None:
        price, size = getattr(self, f"{side}_price"), getattr(self, f"{side}_size")
        absent = np.isnan(price)
        self._report(np.isinf(price) | (price <= 0), f"a {side} price is not a number above 0")
        self._report(np.isinf(size) | (size < 0), f"a {side} size is negative or infinite")
        self._report(absent != np.isnan(size), f"a {side} level has a price without a size, or a size without a price")
        self._report(absent[:, :-1] & ~absent[:, 1:], f"a {side} level is there behind an absent one")
        order = "bids must fall" if side == "bid" else "asks must rise"
        self._report(better * np.diff(price, axis=1) <= 0, f"{side} prices are in disorder; {order} from the best on")

    def _report(self, wrong: BoolArray, what: str) -> None:
        rows = wrong if wrong.ndim == 1 else np.asarray(wrong.any(axis=1))
        _check_rows(rows, self.time, f"{what}; mend or remove the snapshot")


def series_file(name: str) -> str:
    """The file of series `name`. Raises `DataError` for a name that is not like `onchain/BTC`."""
    match = SERIES_NAME.fullmatch(name)
    if not match:
        raise DataError(f"{name!r} is not a name of a series; write kind/name, like onchain/BTC")
    return f"series-{match[1]}-{match[2]}.parquet"


def series_in(folder: Path) -> dict[str, Path]:
    """The files of series in `folder`, by the name of the series."""
    matches = ((SERIES_FILE.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {f"{match[1]}/{match[2]}": path for match, path in matches if match}


def read_series(path: Path) -> DataSeries:
    """The series in `path`, in the project's own shape. Raises `DataError`, which names the file and the record."""
    table = read_table(path, ("known_at",))
    columns = {name: numbers(table, name, path) for name in table.column_names if name != "known_at"}
    return _in_file(path, DataSeries, times(table, "known_at", path), columns)


def write_series(path: Path, series: DataSeries) -> None:
    """Write `series` in the project's own shape. Raises `DataError` where it cannot be written."""
    write_table(path, series_columns(series))


def series_columns(series: DataSeries) -> dict[str, Any]:
    """The columns of its file."""
    return {"known_at": timestamp_array(series.known_at), **series.columns}


def read_books(path: Path) -> OrderBooks:
    """The order books in `path`; an empty cell is an absent level. Raises `DataError`, with the file and the record."""
    table = read_table(path, ("time", *(f"{name}_1" for name in BOOK_COLUMNS)))
    levels = 1
    while f"bid_price_{levels + 1}" in table.column_names or f"ask_price_{levels + 1}" in table.column_names:
        levels += 1
    missing = [
        f"{name}_{level}"
        for level in range(1, levels + 1)
        for name in BOOK_COLUMNS
        if f"{name}_{level}" not in table.column_names
    ]
    if missing:
        raise DataError(f"{path}: column {', '.join(missing)} is missing; both sides have the same number of levels")
    sides = [
        np.stack([numbers(table, f"{name}_{level}", path) for level in range(1, levels + 1)], axis=1)
        for name in BOOK_COLUMNS
    ]
    return _in_file(path, OrderBooks, times(table, "time", path), *sides)


def write_books(path: Path, books: OrderBooks) -> None:
    """Write `books` in the project's own shape. Raises `DataError` where it cannot be written."""
    write_table(path, book_columns(books))


def book_columns(books: OrderBooks) -> dict[str, Any]:
    """The columns of its file, level by level; an absent level is an empty cell."""
    columns: dict[str, Any] = {"time": timestamp_array(books.time)}
    for level in range(books.bid_price.shape[1]):
        for name in BOOK_COLUMNS:
            columns[f"{name}_{level + 1}"] = pa.array(getattr(books, name)[:, level], pa.float64(), from_pandas=True)
    return columns


def _in_file(path: Path, kind: type[_Kept], *parts: Any) -> _Kept:
    """`kind(*parts)`, with the path in front of what is wrong with them."""
    try:
        return kind(*parts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _check_order(time: IntArray) -> None:
    if time.ndim != 1:
        raise DataError(f"the times have shape {time.shape}, expected one time a record")
    wrong = np.concatenate([[False], np.diff(time) <= 0])
    _check_rows(wrong, time, "it is not later than the record before it; sort the records and keep one of each time")


def _check_rows(wrong: BoolArray, time: IntArray, what: str) -> None:
    """Raise `DataError` about the first record that is `wrong`, counted from 0, with how many there are."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        more = int(wrong.sum()) - 1
        raise DataError(f"record {row} ({format_time(int(time[row]))}): {what}" + (f" ({more} more)" if more else ""))
