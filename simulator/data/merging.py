"""Rows that join those of a catalog's file, by their time: an import adds to what is stored and deletes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa

from simulator.arrays import IntArray
from simulator.data.catalog import read_bars
from simulator.errors import DataError
from simulator.market.events import funding_columns, read_funding
from simulator.market.series import book_columns, read_books, read_series, series_columns
from simulator.market.timeframes import format_time
from simulator.tables import Columns, read_table, timestamp_array

FileKind = Literal["bars", "funding", "book", "news", "series"]
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


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one file, called `label`, in order of time (ms, the first column); `lines` are what they are counted in,
    and (n,) their numbers in the file."""

    label: str
    frame: pd.DataFrame
    lines: tuple[str, IntArray] | None = None

    def place(self, row: int) -> str:
        """Where a row of the file stands."""
        return f"{self.lines[0]} {self.lines[1][row]} " if self.lines else ""


def frame_of(columns: Columns) -> pd.DataFrame:
    """The columns of a file as a table, with times in ms."""
    table = pa.table(dict(columns))
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            whole = table.column(place).cast(pa.timestamp("ms", field.type.tz), safe=False).cast(pa.int64())
            table = table.set_column(place, field.name, whole)
    frame: pd.DataFrame = table.to_pandas()
    return frame


class Disagreement(DataError):
    """A file that contradicts another one, or what is stored; `part` is what it holds."""

    def __init__(self, part: Part, message: str) -> None:
        super().__init__(message)
        self.part = part


def merged(
    path: Path, kind: FileKind, parts: Sequence[Part], *, replace: bool, interval: int = 0
) -> tuple[Columns, Change]:
    """The rows of the file `path` with those of all `parts`, in order of time, and how they differ from the file.

    A row is known by its time; a headline by all of it, so that equal headlines are kept once. `interval` is the length
    of a bar, ms. With `replace` a row takes the place of the stored one of the same time; all other rows stay.

    Raises:
        Disagreement: as `joined` does. DataError: a stored file that cannot be used.
    """
    before = _stored(path, kind, interval) if path.exists() else None
    if kind == "news":
        both = pd.concat([part.frame for part in ([before, *parts] if before else parts)]).drop_duplicates(_NEWS)
        both = both.sort_values(_NEWS, na_position="first")
        return _columns(both), Change(before is None, len(both) - (len(before.frame) if before else 0), 0)
    given = joined(parts, kind)
    if before is None:
        return _columns(given), Change(True, len(given), 0)
    key = given.columns[0]
    common = before.frame[key].isin(given[key])
    if not replace:
        return _columns(joined([before, *parts], kind, path)), Change(False, len(given) - int(common.sum()), 0)
    kept = Part(str(path), before.frame[~common])
    both = joined([kept, *parts] if len(kept.frame) else parts, kind, path)
    old, new = before.frame[common].set_index(key), given[given[key].isin(before.frame[key])].set_index(key)
    changed = _differs(old, new).any(axis=1) if list(old) == list(new) else np.ones(len(old), np.bool_)
    return _columns(both), Change(False, len(given) - int(common.sum()), int(changed.sum()))


def joined(parts: Sequence[Part], kind: FileKind, stored: Path | None = None) -> pd.DataFrame:
    """The rows of all parts by time, equal ones once; the first part is what is `stored` there, where that is given.

    Raises `Disagreement` about a part with a row that differs from one of the same time, or with columns that the other
    rows lack.
    """
    columns = [{str(name) for name in part.frame} for part in parts]
    for part, own in zip(parts[1:], columns[1:], strict=True):
        for absent, where in (
            (columns[0] - own, "here"),
            (own - columns[0], f"in {stored or parts[0].label}"),
        ):
            if kind != "book" and absent - {"partial"}:
                name = min(absent - {"partial"})
                raise Disagreement(
                    part, f"the column {name} is missing {where}; import files with the same columns together"
                )
    rows = pd.concat([part.frame for part in parts], ignore_index=True)
    key, names = rows.columns[0], [str(name) for name in rows]
    if "partial" in names:
        rows["partial"] = rows["partial"].fillna(0.0)
    order = np.argsort(rows[key].to_numpy(), kind="stable")
    owner = np.repeat(np.arange(len(parts)), [len(part.frame) for part in parts])[order]
    row = np.concatenate([np.arange(len(part.frame)) for part in parts])[order]
    rows = rows.iloc[order]
    same = np.concatenate([[False], np.diff(rows[key].to_numpy()) == 0])
    if not same.any():
        return rows
    differs = _differs(rows.shift(), rows)
    wrong = differs.any(axis=1).to_numpy() & same
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        name, part, other = names[int(differs.iloc[at].to_numpy().argmax())], parts[owner[at]], parts[owner[at - 1]]
        time, mine, its = (
            format_time(int(rows[key].iloc[at])),
            float(rows[name].iloc[at]),
            float(rows[name].iloc[at - 1]),
        )
        if stored is not None and owner[at - 1] == 0:
            own = owner == owner[at]
            raise Disagreement(
                part,
                f"{name} of {time} is {mine:.10g} here and {its:.10g} in {stored} ({int((wrong & own).sum())} of"
                f" {int((same & own).sum())} common rows differ); import the right one with --replace",
            )
        raise Disagreement(
            part,
            f"{part.place(row[at])}says {name} {mine:g} of {time}, {other.label} {other.place(row[at - 1])}says"
            f" {its:g}; keep one of the files",
        )
    return rows[~same]


def _stored(path: Path, kind: FileKind, interval: int) -> Part:
    try:
        if kind == "bars":
            time, values, issues = read_bars(path, interval)
            fatal = [issue.detail for issue in issues if issue.fatal]
            if fatal:
                raise DataError(f"{path}: {fatal[0]}")
            return Part(str(path), frame_of({"timestamp": timestamp_array(time), **values}))
        if kind == "funding":
            return Part(str(path), frame_of(funding_columns(read_funding(path))))
        if kind == "book":
            return Part(str(path), frame_of(book_columns(read_books(path))))
        if kind == "series":
            return Part(str(path), frame_of(series_columns(read_series(path))))
        table = read_table(path, tuple(_NEWS))
        return Part(str(path), frame_of({name: table.column(name).combine_chunks() for name in _NEWS}))
    except DataError as error:
        raise DataError(f"the stored file cannot be extended: {error}; fix it, or move it away") from None


def _columns(frame: pd.DataFrame) -> Columns:
    """The columns of a file with the rows of `frame`."""
    return {
        name: timestamp_array(frame[name].to_numpy())
        if name in ("timestamp", "time", "known_at")
        else pa.array(frame[name], pa.string() if name in ("symbol", "text") else pa.float64(), from_pandas=True)
        for name in map(str, frame)
    }


def _differs(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Which values differ; an absent one equals an absent one."""
    return (before != after) & ~(before.isna() & after.isna())
