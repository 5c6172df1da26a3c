"""Rows of a recorded file with the lines they stand in: checked one by one, then joined over files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.errors import DataError
from simulator.market.instruments import MarketKind
from simulator.market.timeframes import bar_start, format_time, interval_of
from simulator.tables import EARLIEST, LATEST

RecordedKind = Literal["bars", "mark", "funding"]
BAR_VALUES = ("open", "high", "low", "close", "volume")
FUNDING_VALUES = ("funding_rate",)
UNITS = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}  # ms in each
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_FEWEST = 3  # rows that tell the distance between bars


@dataclass(frozen=True)
class Rows:
    """n rows in order of time: `time` (n,) ms, `values` (n, k), `line` (n,) from 1; `notes` say what was unusual."""

    time: IntArray
    values: FloatArray
    line: IntArray
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """What a file holds: bars, mark prices or funding of one symbol at one venue.

    Attributes:
        label: what tells the file apart from others, its path in the tree and its member.
        timeframe: empty for funding.
        instrument: what the file's name or folder states of the symbol.
        format: for people.
        unit: what `rows.line` counts, "line" or "row".
    """

    label: str
    kind: RecordedKind
    venue: str
    symbol: str
    timeframe: str
    instrument: MarketKind | None
    format: str
    rows: Rows
    unit: str = "line"

    @property
    def key(self) -> tuple[RecordedKind, str, str, str]:
        """Files of one key hold parts of one series."""
        return self.kind, self.venue, self.symbol, self.timeframe


def epoch_ms(values: IntArray | FloatArray, line: IntArray, unit: str = "") -> tuple[IntArray, tuple[str, ...]]:
    """Milliseconds of n numbers since 1970 in `unit`, else in that which each number must be; and what to say of them.

    From 2000 to 2100 the ranges of seconds, milliseconds, micro- and nanoseconds lie apart, so a number has one unit.
    Raises `DataError` with the line of a number that is no such time.
    """
    result = np.zeros(len(values), np.int64)
    known = np.zeros(len(values), np.bool_)
    found = []
    for name, size in UNITS.items():
        rows = (values >= EARLIEST / size) & (values < LATEST / size)
        if unit and name != unit and rows.any():
            raise DataError(
                f"line {line[rows][0]}: the time {values[rows][0]:.0f} is in {_UNIT_NAMES[name]}, not in"
                f" {_UNIT_NAMES[unit]}; leave --time-format out, and the unit of each row is told by its size"
            )
        if rows.any():
            found.append(f"{int(rows.sum())} in {_UNIT_NAMES[name]}")
            whole = values[rows]
            exact = np.issubdtype(whole.dtype, np.integer) and size < 1
            result[rows] = whole // round(1 / size) if exact else np.round(whole * size)
        known |= rows
    if not known.all():
        raise DataError(
            f"line {line[~known][0]}: the time {values[~known][0]:.15g} is no number of seconds, milliseconds or"
            " microseconds since 1970 from 2000 to 2100; say the form of dates with --time-format"
        )
    return result, (f"times {', '.join(found)}",) if len(found) > 1 else ()


def ordered(rows: Rows, unit: str = "line") -> Rows:
    """The rows from old to new; equal rows once. Raises `DataError` for another order, and two rows of one time."""
    time, values, line, notes = rows.time, rows.values, rows.line, list(rows.notes)
    step = np.diff(time)
    if len(step) and step.min() < 0:
        if step.max() > 0:
            place = int(np.flatnonzero(step < 0 if time[-1] >= time[0] else step > 0)[0]) + 1
            raise DataError(
                f"{unit} {line[place]}: {format_time(int(time[place]))} comes after"
                f" {format_time(int(time[place - 1]))} in {unit} {line[place - 1]}, so the file is in no order;"
                " sort it by time, and divide it if it holds several symbols"
            )
        time, values, line = time[::-1], values[::-1], line[::-1]
        step = np.diff(time)
    same = np.concatenate([[False], step == 0])
    if same.any():
        differs = np.concatenate([[False], (values[1:] != values[:-1]).any(axis=1)]) & same
        if differs.any():
            place = int(np.flatnonzero(differs)[0])
            one, other = sorted((int(line[place - 1]), int(line[place])))
            raise DataError(
                f"{unit} {other}: says something else of {format_time(int(time[place]))} than {unit} {one}; remove one"
            )
        notes.append(f"{int(same.sum())} rows repeated, taken once")
        time, values, line = time[~same], values[~same], line[~same]
    return Rows(time, values, line, tuple(notes))


def check_bar_rows(rows: Rows, timeframe: str, unit: str = "line") -> None:
    """Raise `DataError` with the line of the first bar that is impossible, off the grid, or of other bars."""
    interval, time = interval_of(timeframe), rows.time
    open_, high, low, close, volume = rows.values.T
    finite: BoolArray = np.isfinite(rows.values)
    positive: BoolArray = rows.values[:, :4] > 0
    found: list[tuple[BoolArray, str]] = [
        (np.asarray(~finite.all(axis=1)), "a value is missing or not finite"),
        (np.asarray(~positive.all(axis=1)), "a price is not above 0"),
        (
            (low > np.minimum(open_, close)) | (high < np.maximum(open_, close)),
            "low, open, close, high in disorder",
        ),
        (volume < 0, "the volume is negative"),
    ]
    for wrong, what in found:
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            shown = ", ".join(f"{name} {value:g}" for name, value in zip(BAR_VALUES, rows.values[place], strict=True))
            raise DataError(
                f"{unit} {rows.line[place]}: {what} ({shown}; {int(wrong.sum())} such rows); mend or remove them"
            )
    step = np.diff(time)
    if len(time) >= _FEWEST and step.min() > interval:
        usual = int(np.median(step)) // 60_000
        raise DataError(
            f"the bars are {usual} minutes apart, and those of {timeframe} {interval // 60_000}: say --timeframe, or"
            " name the file after its timeframe"
        )
    off = bar_start(time, interval) != time
    if off.any():
        place = int(np.flatnonzero(off)[0])
        raise DataError(
            f"{unit} {rows.line[place]}: {format_time(int(time[place]))} is not the open of a bar of {timeframe}"
            + (", which is a Monday 00:00 UTC" if timeframe == "1w" else "")
            + f" ({int(off.sum())} such rows); say another --timeframe or --time-zone"
        )


def check_funding_rows(rows: Rows, unit: str = "line") -> None:
    """Raise `DataError` with the line of the first rate that is none."""
    wrong = ~(np.abs(rows.values[:, 0]) < 1)  # NaN too
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{unit} {rows.line[place]}: the rate {rows.values[place, 0]:g} is no fraction between -1 and 1; mend it"
        )


def joined(parts: Sequence[Recorded]) -> tuple[IntArray, FloatArray, int]:
    """The rows of files of one key, by time, what they have in common once; and how many rows that were.

    Raises `Disagreement` for two files that say different things of one time.
    """
    time = np.concatenate([one.rows.time for one in parts])
    values = np.concatenate([one.rows.values for one in parts])
    line = np.concatenate([one.rows.line for one in parts])
    owner = np.repeat(np.arange(len(parts)), [len(one.rows.time) for one in parts])
    order = np.argsort(time, kind="stable")
    time, values, line, owner = time[order], values[order], line[order], owner[order]
    same = np.concatenate([[False], np.diff(time) == 0])
    differs = np.concatenate([[False], (values[1:] != values[:-1]).any(axis=1)]) & same
    if differs.any():
        place = int(np.flatnonzero(differs)[0])
        first, second = parts[owner[place - 1]], parts[owner[place]]
        column = int(np.flatnonzero(values[place] != values[place - 1])[0])
        name = (FUNDING_VALUES if first.kind == "funding" else BAR_VALUES)[column]
        raise Disagreement(
            second,
            f"{second.unit} {line[place]} says {name} {values[place, column]:g} of {format_time(int(time[place]))},"
            f" {first.label} {first.unit} {line[place - 1]} says {values[place - 1, column]:g}; keep one of the files",
        )
    return time[~same], values[~same], int(same.sum())


class Disagreement(DataError):
    """Two files that overlap and differ; `part` is the later one by name."""

    def __init__(self, part: Recorded, message: str) -> None:
        super().__init__(message)
        self.part = part
