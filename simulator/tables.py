"""Parquet in and out, with the errors that a user can fix. Times are integer milliseconds, UTC, inside the program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from simulator.errors import DataError
from simulator.folders import check_regular

_MOST_VALUES, _MOST_BYTES = 400_000_000, 8 * 2**30  # of one file
# Times outside this range are seconds, microseconds or garbage, not milliseconds since the epoch.
EARLIEST, LATEST = 946_684_800_000, 4_102_444_800_000  # 2000-01-01, 2100-01-01


Columns = Mapping[str, pa.Array | npt.NDArray[np.generic]]


def read_table(path: Path, required: tuple[str, ...]) -> pa.Table:
    """The table in `path`. Raises `DataError` when it is missing, unreadable or lacks one of the `required` columns."""
    try:
        _check_size(path)
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    missing = [name for name in required if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path}: column {', '.join(missing)} is missing; it has {', '.join(table.column_names) or 'none'}"
        )
    return table


def _check_size(path: Path) -> None:
    """Raise `DataError` for a file that says that it holds more than a machine should be asked for."""
    check_regular(path)
    about = pq.read_metadata(path)
    size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
    if about.num_rows * about.num_columns > _MOST_VALUES or size > _MOST_BYTES:
        raise DataError(
            f"{path}: {about.num_rows:,} rows of {about.num_columns} columns, {size:,} bytes unpacked; at most "
            f"{_MOST_VALUES:,} values and {_MOST_BYTES:,} bytes are read: divide it into files by symbol or time"
        )


def times(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.int64]:
    """A column of times in milliseconds: timestamps of any unit (UTC if they name no zone), or integers of ms."""
    column = table.column(name)
    if column.null_count:
        raise DataError(f"{path}: {column.null_count} rows have no {name}")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise DataError(f"{path}: {name} is {column.type}; it must be a timestamp, or an integer of milliseconds")
    values = column.to_numpy().astype(np.int64)
    if len(values) and (values.min() < EARLIEST or values.max() >= LATEST):
        raise DataError(f"{path}: {name} holds {values.min()}..{values.max()}, which is not milliseconds since 1970")
    return values


def numbers(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.float64]:
    """A numeric column as float64, NaN where null."""
    column = table.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise DataError(f"{path}: {name} is {column.type}; it must be a number")
    return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64)


def write_table(path: Path, columns: Columns) -> None:
    """Write `columns` in one piece: the file is whole or not there. Equal content gives equal bytes."""
    part = path.with_suffix(".tmp")
    try:
        pq.write_table(pa.table(dict(columns)), part, compression="zstd", compression_level=9)
        with part.open("rb") as written:  # the content is on disk before the name is
            os.fsync(written.fileno())
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}; free some space, or choose another folder"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def timestamp_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """Milliseconds as a Parquet timestamp column in UTC."""
    return pa.array(values, pa.int64()).cast(pa.timestamp("ms", "UTC"))


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); write or download it again")
