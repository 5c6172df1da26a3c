"""Funding settlements and headlines from Parquet files, the project's own and recorded ones of other shapes.

For a headline the time matters at which it could be read. Files of the project state it (`known_at`). Recorded files
have a publication time of varying reliability, so a late time is assumed rather than an early one:

* Where only the day is known, a headline becomes known 32 h after that day's 00:00 UTC, when the day is over
  everywhere in America too. That is so where the row states it (`time_is_date_only`), where it names its day
  (`file_date`), and where its time is midnight, in UTC or in the time zone of the column.
* Otherwise it becomes known `delay` after its stated time, by default 8 h: some collectors write local time.

A time of midnight is a day without a time far more often than not: 00:00 is what a date becomes when it is read as a
time. A count could tell how often, but it would make what is known at one row depend on later rows. So each row is
judged alone, and a headline of midnight comes a day late. A row whose `time_is_date_only` is false is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simulator.arrays import BoolArray, IntArray
from simulator.errors import DataError
from simulator.market.coins import about
from simulator.market.timeframes import DAY_MS, HOUR_MS, SECOND_MS
from simulator.tables import numbers, read_table, times, timestamp_array

DAY_KNOWN_AFTER = 32 * HOUR_MS
DEFAULT_DELAY = 8 * HOUR_MS


def read_funding(path: Path) -> tuple[FundingEvent, ...]:
    """Settlements in `path` (columns `timestamp`, `funding_rate`), in order of time. Raises `DataError`."""
    table = read_table(path, ("timestamp", "funding_rate"))
    time, rate = times(table, "timestamp", path), numbers(table, "funding_rate", path)
    if (np.diff(time) <= 0).any():
        raise DataError(f"{path}: settlements are not in order of time, or one is there twice; sort and de-duplicate")
    if not (np.abs(rate) < 1).all():  # NaN fails too
        raise DataError(f"{path}: a funding rate is missing or not a fraction between -1 and 1")
    return tuple(FundingEvent(int(t), float(r)) for t, r in zip(time, rate, strict=True))


def read_news(path: Path, symbols: tuple[str, ...], delay: int = DEFAULT_DELAY) -> tuple[NewsItem, ...]:
    """Headlines in a file, or in all Parquet files of a folder, about `symbols` or the whole market; by `known_at`.

    Headlines that their source tagged with other coins are left out (`simulator.market.coins`). `delay` (ms)
    applies to files that state no `known_at`.
    Raises `DataError` for files that cannot be used.
    """
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        if not files:
            raise DataError(f"{path}: holds no Parquet file of news")
    else:
        files = [path]
    return in_order(item for file in files for item in _news_of(file, symbols, delay))


def in_order(items: Iterable[NewsItem]) -> tuple[NewsItem, ...]:
    """Headlines in the order in which they became known; one order for equal content."""
    return tuple(sorted(items, key=lambda item: (item.known_at, item.time, item.symbol or "", item.text)))


def funding_columns(events: Sequence[FundingEvent]) -> dict[str, Any]:
    """The columns of a file of settlements."""
    return {
        "timestamp": timestamp_array(np.array([event.time for event in events], np.int64)),
        "funding_rate": np.array([event.rate for event in events], np.float64),
    }


def news_columns(items: Sequence[NewsItem]) -> dict[str, Any]:
    """The columns of a file of headlines in the project's own shape."""
    return {
        "time": timestamp_array(np.array([item.time for item in items], np.int64)),
        "known_at": timestamp_array(np.array([item.known_at for item in items], np.int64)),
        "symbol": pa.array([item.symbol for item in items], pa.string()),
        "text": pa.array([item.text for item in items], pa.string()),
    }


def _news_of(path: Path, symbols: tuple[str, ...], delay: int) -> list[NewsItem]:
    table = read_table(path, ())
    names = table.column_names
    if {"time", "known_at", "symbol", "text"} <= set(names):
        time, known_at = times(table, "time", path), times(table, "known_at", path)
        text = _texts(table, path, ("text",))
    elif "timestamp" in names and ("title" in names or "text" in names):
        time = times(table, "timestamp", path)
        known_at = _known_at(table, time, path, delay)
        text = _texts(table, path, ("title", "text"))
    else:
        raise DataError(
            f"{path}: not a file of news; it needs the columns time, known_at, symbol, text, or timestamp and title"
            f" or text; it has {', '.join(names) or 'none'}"
        )
    early = known_at < time
    if early.any():
        raise DataError(f"{path}: {int(early.sum())} headlines are known before they happened")
    return [
        NewsItem(int(time[row]), int(known_at[row]), symbol, text[row])
        for row, concerned in enumerate(about(table, text, symbols))
        for symbol in concerned
    ]


def _known_at(table: pa.Table, time: IntArray, path: Path, delay: int) -> IntArray:
    """When each row was known, (rows,) ms. No row's depends on another row."""
    day, dated = _midnights(table.column("timestamp"), time)
    if "time_is_date_only" in table.column_names:
        column = table.column("time_is_date_only")
        if not pa.types.is_boolean(column.type):
            raise DataError(f"{path}: time_is_date_only is {column.type}; it must be true or false")
        stated = np.array(column.is_valid().to_pylist(), np.bool_)
        dated = np.where(stated, np.array(column.to_pylist(), np.bool_), dated)
    if "file_date" in table.column_names:
        try:
            named = np.array(table.column("file_date").to_pylist(), "datetime64[D]")
        except ValueError as error:
            raise DataError(f"{path}: file_date is not a date like 2023-01-31 ({error})") from error
        there = ~np.isnat(named)
        day = np.where(there, named.astype("datetime64[ms]").astype(np.int64), day)
        dated = dated | there
    # A stated time later than the day's end is believed as well.
    return np.where(dated, np.maximum(day + DAY_KNOWN_AFTER, time + delay), time + delay)


def _midnights(column: pa.ChunkedArray, time: IntArray) -> tuple[IntArray, BoolArray]:
    """The day of each row, (rows,) ms at 00:00 UTC, and whether the row's time is midnight to the second: in UTC, or in
    the time zone of the column. Where it is both, the later day counts."""
    wall = time
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        wall = pc.local_timestamp(column).cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_numpy()
    day = time // DAY_MS * DAY_MS
    local = wall % DAY_MS < SECOND_MS
    day = np.where(local, np.maximum(day, wall // DAY_MS * DAY_MS), day)
    return day, (time % DAY_MS < SECOND_MS) | local


def _texts(table: pa.Table, path: Path, names: tuple[str, ...]) -> list[str]:
    """The first of the columns `names` that has a text, row by row, on one line."""
    there = [table.column(name).to_pylist() for name in names if name in table.column_names]
    lines = [[" ".join(str(value or "").split()) for value in column] for column in there]
    texts = [next((line for line in row if line), "") for row in zip(*lines, strict=True)]
    blank = sum(not text for text in texts)
    if blank:
        raise DataError(f"{path}: {blank} rows have no text; remove them")
    return texts


@dataclass(frozen=True)
class NewsItem:
    """A headline. `known_at` is when it could be read; all ordering uses it, never `time`."""

    time: int
    known_at: int
    symbol: str | None  # None: concerns the whole market
    text: str


@dataclass(frozen=True)
class FundingEvent:
    """A funding settlement of a perpetual: longs pay `rate` times notional to shorts. Known at `time`."""

    time: int
    rate: float
