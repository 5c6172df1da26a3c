"""Recorded data beside the bars: point-in-time numbers, in files `series-{kind}-{name}.parquet` with the column
known_at and one number column or more.

A series is called `kind/name` inside the program: `onchain/BTC`, `sentiment/fear_greed`. Times are integer milliseconds
since the epoch, UTC. Each record is known from its `known_at` on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import DataError
from simulator.market.timeframes import format_time
from simulator.tables import numbers, read_table, times, timestamp_array

SERIES_FILE = re.compile(r"series-([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)\.parquet")
SERIES_NAME = re.compile(r"([A-Za-z0-9_]+)/([A-Za-z0-9_-]+)")


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
            _check_rows(~np.isfinite(values), self.known_at, f"{name} is missing or not finite; fix or remove the row")

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
    try:
        return DataSeries(times(table, "known_at", path), columns)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def series_columns(series: DataSeries) -> dict[str, Any]:
    """The columns of its file."""
    return {"known_at": timestamp_array(series.known_at), **series.columns}


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
