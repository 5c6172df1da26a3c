"""Text tables: where the heading is, what parts the cells, and columns as numbers or times, with the line of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from simulator.arrays import FloatArray, IntArray
from simulator.data.formats.recorded import UNITS, epoch_ms
from simulator.errors import DataError
from simulator.tables import EARLIEST, LATEST

_DELIMITERS = (",", ";", "\t", "|")
_HEAD = 65_536  # bytes in which the heading lies
_COMMENT = re.compile(r"\s*(#|//|https?://|www\.)|[^,;\t|]*\.com\b[^,;\t|]*$", re.IGNORECASE)
_ZONED = r"(Z|UTC|GMT|[+-]\d\d:?\d\d)$"


@dataclass(frozen=True)
class CsvLayout:
    """What a text says of itself, and what a user says of it where that is given (not empty)."""

    delimiter: str = ""
    decimal: str = "."
    time_format: str = ""  # "s", "ms", "us", "ns", or as of strptime
    time_zone: str = ""  # of times that name none


@dataclass(frozen=True)
class CsvTable:
    """Cells of a text, all of them strings.

    Attributes:
        headings: of the columns, lower case; empty where the text has none.
        comment: the lines before the heading.
        columns: one array of strings a column.
        lines: (n,) the line of each row, from 1.
    """

    headings: tuple[str, ...]
    comment: str
    columns: Sequence[pa.ChunkedArray] = field(repr=False)
    lines: IntArray = field(repr=False)
    layout: CsvLayout

    def place(self, name: str) -> int | None:
        """The column with this heading, or with this number from 1 in a text without headings; None for none."""
        if name.strip().lower() in self.headings:
            return self.headings.index(name.strip().lower())
        if not self.headings and name.isdigit() and 1 <= int(name) <= len(self.columns):
            return int(name) - 1
        return None

    def numbers(self, place: int) -> FloatArray:
        """(n,): a column of numbers. Raises `DataError` with the line of a cell that is none."""
        cells = self.columns[place]
        if self.layout.decimal == ",":
            cells = pc.replace_substring(cells, ",", ".")
        try:
            return pc.cast(cells, pa.float64()).to_numpy().astype(np.float64)
        except pa.ArrowInvalid:
            for line, cell in zip(self.lines.tolist(), cells.to_pylist(), strict=True):
                if not _is_number(cell):
                    hint = "; for a decimal comma say --decimal ," if "," in cell else ""
                    raise DataError(f"line {line}: {cell[:40]!r} in {self.name(place)} is no number{hint}") from None
            raise

    def times(self, place: int, zone: str = "") -> tuple[IntArray, tuple[str, ...]]:
        """(n,): a column of times in ms, and notes. Numbers count from 1970 on; dates without a zone are of `zone`.

        What the user says of times goes first. Raises `DataError` with the line of a cell that is no time.
        """
        cells, stated = self.columns[place], self.layout.time_format
        if stated in UNITS or (not stated and len(cells) and _is_number(cells[0].as_py())):
            try:
                values: IntArray | FloatArray = pc.cast(cells, pa.int64()).to_numpy().astype(np.int64)
            except pa.ArrowInvalid:
                values = self.numbers(place)
            return epoch_ms(values, self.lines, stated)
        zoned = pc.match_substring_regex(cells, _ZONED).to_numpy() & ("%z" in stated.lower() or not stated)
        zone = self.layout.time_zone or zone
        if not zoned.all() and not zone:
            raise DataError(
                f"line {self.lines[~zoned][0]}: the time {cells[int(np.flatnonzero(~zoned)[0])].as_py()[:40]!r} names"
                " no zone; say it, as --time-zone UTC or --time-zone Europe/Berlin"
            )
        text = pd.Series(cells.to_pandas())
        moments = pd.to_datetime(text, format=stated or "ISO8601", utc=bool(zoned.all()), errors="coerce")
        unread = moments.isna().to_numpy()
        if unread.any() or not isinstance(moments.dtype, np.dtype | pd.DatetimeTZDtype):
            row = int(np.flatnonzero(unread)[0])
            raise DataError(
                f"line {self.lines[row]}: {text[row][:40]!r} is no time of the form {stated or '2024-01-31 08:00:00'};"
                " say the form with --time-format, as '%d.%m.%Y %H:%M'"
            )
        if not zoned.all():
            moments = self._localized(moments, zone)
        result = moments.to_numpy("datetime64[ms]").astype(np.int64)
        wrong = (result < EARLIEST) | (result >= LATEST)
        if wrong.any():
            raise DataError(f"line {self.lines[wrong][0]}: the time {text[wrong].iloc[0]!r} is not from 2000 to 2100")
        return result, ()

    def _localized(self, moments: pd.Series, zone: str) -> pd.Series:
        """Local times in UTC. The order of the rows tells the two hours apart that are one when clocks are set back."""
        newest_first = len(moments) > 1 and moments.iloc[0] > moments.iloc[-1]
        in_order = moments[::-1] if newest_first else moments
        try:
            local = in_order.dt.tz_localize(ZoneInfo(zone), ambiguous="infer", nonexistent="raise")
        except (ValueError, KeyError) as error:  # both of pandas' errors about clocks are ValueErrors
            raise DataError(
                f"the times are not local times of {zone}: {str(error).splitlines()[0]}; say the zone with --time-zone"
            ) from error
        utc = local.dt.tz_convert("UTC").dt.tz_localize(None)
        return utc[::-1] if newest_first else utc

    def name(self, place: int) -> str:
        """The heading of a column, or its number."""
        return self.headings[place] if self.headings else f"column {place + 1}"


def read_csv(data: bytes, layout: CsvLayout) -> CsvTable | None:
    """The table in `data`; None where that is no text or has fewer than two columns.

    Raises `DataError` with the line of a row that has another number of cells.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", errors="replace").encode()
    if b"\0" in data[:_HEAD]:
        return None
    head = data[:_HEAD].decode("utf-8", errors="replace").splitlines()
    skipped = 0
    while skipped < len(head) and (not head[skipped].strip() or _COMMENT.match(head[skipped])):
        skipped += 1
    if skipped == len(head):
        return None
    first = head[skipped]
    delimiter = layout.delimiter or max((one for one in _DELIMITERS if one != layout.decimal), key=first.count)
    width = first.count(delimiter) + 1
    if width < 2:
        return None
    cells = [cell.strip().strip('"') for cell in first.split(delimiter)]
    headed = not any(_is_number(cell.replace(",", ".") if layout.decimal == "," else cell) for cell in cells)
    names = [str(number) for number in range(width)]
    start = _after_line(data, skipped + headed)
    body = data[start:]
    lines = _row_lines(body, skipped + headed)
    if not len(lines):
        return CsvTable(_lower(cells) if headed else (), "\n".join(head[:skipped]), [], lines, layout)
    try:
        table = arrow_csv.read_csv(
            BytesIO(body),
            arrow_csv.ReadOptions(column_names=names, use_threads=False),
            arrow_csv.ParseOptions(delimiter=delimiter),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        for line, row in zip(lines.tolist(), (one for one in body.split(b"\n") if one.strip(b"\r")), strict=False):
            count = row.count(delimiter.encode()) + 1
            if count != width and b'"' not in row:
                raise DataError(
                    f"line {line}: has {count} cells, and the first row {width}; the file is cut off or damaged there"
                ) from None
        raise DataError(f"is no table of text ({str(error).splitlines()[0]}); say --delimiter") from error
    columns = [pc.utf8_trim_whitespace(table.column(name)) for name in names]
    if len(lines) != table.num_rows:  # cells with line breaks
        lines = np.arange(skipped + headed + 1, skipped + headed + 1 + table.num_rows)
    return CsvTable(_lower(cells) if headed else (), "\n".join(head[:skipped]), columns, lines, layout)


def _lower(cells: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.lower() for cell in cells)


def _after_line(data: bytes, count: int) -> int:
    place = 0
    for _ in range(count):
        end = data.find(b"\n", place)
        if end < 0:
            return len(data)
        place = end + 1
    return place


def _row_lines(body: bytes, before: int) -> IntArray:
    """The lines of the rows: empty lines are no rows."""
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(body)]])
    raw = np.frombuffer(body, np.uint8)
    length = stops - starts
    returned = (length > 0) & (raw[np.maximum(stops - 1, 0)] == ord("\r")) if len(raw) else np.zeros(1, np.bool_)
    rows: IntArray = np.flatnonzero(length - returned > 0) + before + 1
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
