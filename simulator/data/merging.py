"""Rows that join those of a catalog's file, by their time: an import adds to what is stored and deletes nothing."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
import pyarrow as pa

from simulator.data.catalog import read_bars
from simulator.errors import DataError
from simulator.market.events import funding_columns, read_funding
from simulator.market.series import book_columns, read_books, read_series, series_columns
from simulator.market.timeframes import format_time
from simulator.tables import Columns, read_table, timestamp_array, write_table

FileKind = Literal["bars", "funding", "book", "news", "series"]
_KEYS = {"bars": "timestamp", "funding": "timestamp", "book": "time", "series": "known_at"}
_NEWS = ["known_at", "time", "symbol", "text"]


@dataclass(frozen=True)
class Change:
    """What an import did to a file: rows `added` to those that were there, and rows `replaced` with other values."""

    new: bool
    added: int
    replaced: int

    @property
    def state(self) -> Literal["written", "unchanged", "extended", "replaced"]:
        if self.new:
            return "written"
        return "replaced" if self.replaced else "extended" if self.added else "unchanged"


def merged_rows(
    path: Path, kind: FileKind, columns: Columns, *, replace: bool, interval: int = 0
) -> tuple[Columns, Change]:
    """The rows of the file `path` with those of `columns`, in order of time, and how they differ from the file.

    A row is known by its time; a headline by all of it, so that equal headlines are kept once. `interval` is the length
    of a bar, ms. With `replace` a row takes the place of one of the same time; all other rows stay.

    Raises:
        DataError: without `replace`, a row that differs from the stored one of its time; columns that the other rows
            lack; a stored file that cannot be used.
    """
    given = _frame(kind, columns)
    if not path.exists():
        return _columns(kind, given, columns), Change(True, len(given), 0)
    stored = _stored(path, kind, interval)
    if kind == "news":
        both = pd.concat([stored, given]).drop_duplicates(_NEWS)
        return _columns(kind, both, columns), Change(False, len(both) - len(stored), 0)
    if not replace:
        _check(path, kind, stored, given)
    given, kept = _same_columns(path, kind, given, stored[~stored.index.isin(given.index)])
    common = stored.index.intersection(given.index)
    names = [name for name in given.columns if name in stored.columns]
    changed = _differs(stored.loc[common, names], given.loc[common, names]).any(axis=1)
    if set(names) != set(stored.columns) | set(given.columns):
        changed[:] = True
    both = pd.concat([kept, given]) if len(kept) else given
    change = Change(False, len(given) - len(common), int(changed.sum()))
    return _columns(kind, both.sort_index(), columns), change


def write_merged_rows(path: Path, columns: Columns, change: Change) -> None:
    """Write the file unless it has these rows already. Raises `DataError` where it cannot be written."""
    if change.state != "unchanged":
        write_table(path, columns)


class ImportLock:
    """The folder `out` is written by one import at a time, so that neither loses the rows of the other."""

    def __init__(self, out: Path) -> None:
        """Make the folder and lock it. Raises `DataError` where it cannot be, or another import holds it."""
        self._out, self._made, self._folder = out, not out.exists(), -1
        try:
            out.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(out, os.O_RDONLY)
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if error.errno == errno.EWOULDBLOCK:
                raise DataError(f"{out}: another import is writing here; repeat the command when it ends") from None
            raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error

    def release(self) -> None:
        """Let other imports write, as the end of the process does; a folder that was made and holds nothing goes."""
        if self._folder == -1:
            return
        os.close(self._folder)
        self._folder = -1
        if self._made and not any(self._out.iterdir()):
            self._out.rmdir()


def _stored(path: Path, kind: FileKind, interval: int) -> pd.DataFrame:
    try:
        if kind == "bars":
            time, values, issues = read_bars(path, interval)
            fatal = [issue.detail for issue in issues if issue.fatal]
            if fatal:
                raise DataError(f"{path}: {fatal[0]}")
            return _frame(kind, {"timestamp": timestamp_array(time), **values})
        if kind == "funding":
            return _frame(kind, funding_columns(read_funding(path)))
        if kind == "book":
            return _frame(kind, book_columns(read_books(path)))
        if kind == "series":
            return _frame(kind, series_columns(read_series(path)))
        table = read_table(path, tuple(_NEWS))
        return _frame(kind, {name: table.column(name).combine_chunks() for name in _NEWS})
    except DataError as error:
        raise DataError(f"the stored file cannot be extended: {error}; fix it, or move it away") from None


def _frame(kind: FileKind, columns: Columns) -> pd.DataFrame:
    """The rows as a frame, by time but for headlines. Times are integers (ms)."""
    table = pa.table(dict(columns))
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            whole = table.column(place).cast(pa.timestamp("ms", field.type.tz), safe=False).cast(pa.int64())
            table = table.set_column(place, field.name, whole)
    frame: pd.DataFrame = table.to_pandas()
    return frame if kind == "news" else frame.set_index(_KEYS[kind])


def _columns(kind: FileKind, frame: pd.DataFrame, like: Columns) -> Columns:
    """The columns of a file with the rows of `frame`; types are those of `like`."""
    if kind == "news":
        frame = frame.drop_duplicates(_NEWS).sort_values(_NEWS, na_position="first")
    else:
        frame = frame.reset_index()
    types = pa.table(dict(like)).schema
    known = {name: types.field(name).type for name in types.names}
    return {
        name: timestamp_array(frame[name].to_numpy())
        if pa.types.is_timestamp(known.get(name, pa.float64()))
        else pa.array(frame[name], known.get(name, pa.float64()), from_pandas=True)
        for name in frame.columns
    }


def _check(path: Path, kind: FileKind, stored: pd.DataFrame, given: pd.DataFrame) -> None:
    common = stored.index.intersection(given.index).sort_values()
    names = [name for name in given.columns if name in stored.columns]
    before, after = stored.loc[common, names], given.loc[common, names]
    differs = _differs(before, after)
    wrong = differs.any(axis=1)
    if wrong.any():
        place = int(wrong.to_numpy().argmax())
        time, name = int(common[place]), names[int(differs.to_numpy()[place].argmax())]
        raise DataError(
            f"{name} of {format_time(time)} is {_number(after, time, name)} here and {_number(before, time, name)} in"
            f" {path} ({int(wrong.sum())} of {len(common)} common rows differ); import the right one with --replace"
        )
    _same_columns(path, kind, given, stored)


def _number(frame: pd.DataFrame, time: int, name: str) -> str:
    return f"{float(frame[name].loc[time]):.10g}"


def _same_columns(
    path: Path, kind: FileKind, given: pd.DataFrame, stored: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with the columns of both. Raises `DataError` where rows lack a value that has no default."""
    names = [*stored.columns, *(name for name in given.columns if name not in stored.columns)]
    for frame, other, where in ((given, stored, "here"), (stored, given, f"in {path}")):
        missing = [name for name in other.columns if name not in frame.columns and name != "partial"]
        if missing and kind != "book" and len(frame) and len(other):
            raise DataError(f"the column {missing[0]} is missing {where}; import files with the same columns together")
    if not len(stored):
        return given, stored
    filled = [frame.reindex(columns=names) for frame in (given, stored)]
    for frame in filled:
        if "partial" in names:
            frame["partial"] = frame["partial"].fillna(0.0)
    return filled[0], filled[1]


def _differs(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Which values differ; an absent one equals an absent one."""
    return (before != after) & ~(before.isna() & after.isna())
