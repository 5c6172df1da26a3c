"""Coarser bars out of finer ones, with nothing invented.

A coarse bar is built from those of its finer bars that exist: it is absent when none does, and *partial* when some are
missing. The exchange's own daily bar of a day with an outage is made the same way. Partial bars are reported
(`simulator.market.gaps.gap_summary`), never hidden. A last coarse bar that the data does not reach the end of is
dropped, since its close is not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray, IntArray
from simulator.errors import DataError
from simulator.market.bar_checks import BAR_VALUES, check_bars
from simulator.market.timeframes import BAR_COLUMNS, TIMEFRAMES, bar_start, format_time
from simulator.tables import EARLIEST, LATEST


@dataclass(frozen=True)
class CoarseBars:
    """Resampled columns, all `(T', S)` except `open_time` `(T',)`; `partial` marks bars with a missing part."""

    open_time: npt.NDArray[np.int64]
    open: FloatArray
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    half_spread: FloatArray
    partial: npt.NDArray[np.bool_]
    interval: int  # ms


def resample_arrays(
    open_time: npt.NDArray[np.int64],
    columns: dict[str, FloatArray],
    interval: int,
    target: int,
) -> CoarseBars:
    """Aggregate a regular grid of bars of `interval` ms to bars of `target` ms, aligned to the epoch.

    `columns` holds `open, high, low, close, volume, half_spread`, each `(T, S)` with NaN where absent. Open is the
    first present open, close the last present close, volume the sum, half spread the mean over the parts present.
    `target` must be a multiple of `interval`. T' is 0 when not even one coarse bar is complete.
    """
    parts = target // interval
    symbols = columns["close"].shape[1]
    first = bar_start(int(open_time[0]), target)
    lead = (int(open_time[0]) - first) // interval
    bars = (lead + len(open_time)) // parts  # floor: the unfinished last bar is left out
    kept = max(0, bars * parts - lead)

    def blocks(name: str) -> FloatArray:
        padded = np.full((bars * parts, symbols), np.nan)
        padded[lead:] = columns[name][:kept]
        return padded.reshape(bars, parts, symbols)

    close = blocks("close")
    present = ~np.isnan(close)
    count = present.sum(axis=1)
    absent = count == 0
    first_part = present.argmax(axis=1)[:, None, :]
    last_part = (parts - 1 - present[:, ::-1].argmax(axis=1))[:, None, :]

    def pick(values: FloatArray, part: npt.NDArray[np.int64]) -> FloatArray:
        picked: FloatArray = np.take_along_axis(values, part, axis=1)[:, 0]
        return picked

    def total(values: FloatArray) -> FloatArray:
        summed: FloatArray = np.where(present, values, 0.0).sum(axis=1)
        return np.where(absent, np.nan, summed)

    return CoarseBars(
        open_time=first + target * np.arange(bars, dtype=np.int64),
        open=pick(blocks("open"), first_part),
        high=np.where(absent, np.nan, np.where(present, blocks("high"), -np.inf).max(axis=1, initial=-np.inf)),
        low=np.where(absent, np.nan, np.where(present, blocks("low"), np.inf).min(axis=1, initial=np.inf)),
        close=pick(close, last_part),
        volume=total(blocks("volume")),
        half_spread=total(blocks("half_spread")) / np.maximum(count, 1),
        partial=~absent & (count < parts),
        interval=target,
    )


if TYPE_CHECKING:
    import pandas as pd


def frame_columns(frames: Mapping[str, pd.DataFrame], half_spread_bps: float) -> tuple[str, IntArray, dict[str, Any]]:
    """The timeframe, the open times (T,) in ms and all bar columns (T, S) of tables of bars by symbol.

    Each table has an index of open times (without a zone: UTC) and the columns open, high, low, close and volume; no
    order is filled in a bar without volume. A row of which every value is NaN, as a row that is not there, is an absent
    bar. The timeframe is the most frequent step between two open times. Raises `DataError`, with the symbol and the
    time of the row, for a row that is NaN in part, off the grid of whole bars, or impossible.
    """
    if not frames:
        raise DataError("no table of bars is given: give at least one symbol")
    if not 0.0 <= half_spread_bps < 1e4:
        raise DataError(f"half_spread_bps is {half_spread_bps}; give at least 0 and less than 10000")
    tables = {symbol: _checked(symbol, frame) for symbol, frame in frames.items()}
    steps = np.diff(np.unique(np.concatenate([times for times, _ in tables.values()])))
    if not len(steps):
        raise DataError("a single bar has no timeframe: give at least two")
    lengths, counts = np.unique(steps, return_counts=True)
    interval = int(lengths[counts.argmax()])
    timeframe = next((name for name, length in TIMEFRAMES.items() if length == interval), None)
    if timeframe is None:
        raise DataError(
            f"the open times are mostly {interval / 60_000:g} minutes apart; timeframes are {', '.join(TIMEFRAMES)}"
        )
    for symbol, (times, values) in tables.items():
        spread = np.full(len(times), half_spread_bps / 1e4)
        for issue in check_bars(symbol, interval, times, {**values, "half_spread": spread}):
            if issue.fatal:
                raise DataError(f"{issue} UTC; the table has {timeframe} bars: correct or remove such rows")
    begin, end = (limit(times[place] for times, _ in tables.values()) for limit, place in ((min, 0), (max, -1)))
    grid = np.arange(begin, end + 1, interval, dtype=np.int64)
    columns: dict[str, Any] = {name: np.full((len(grid), len(tables)), np.nan) for name in BAR_COLUMNS}
    for place, (times, values) in enumerate(tables.values()):
        rows = (times - grid[0]) // interval
        for name, column in values.items():
            columns[name][rows, place] = column
        columns["half_spread"][rows, place] = half_spread_bps / 1e4
    return timeframe, grid, columns


def _checked(symbol: str, frame: pd.DataFrame) -> tuple[IntArray, dict[str, FloatArray]]:
    """Open times in order and the columns of the rows that hold a bar."""
    import pandas as pd  # it takes half a second

    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"{symbol}: a table of bars must be a pandas DataFrame, not {type(frame).__name__}")
    if not isinstance(frame.index, pd.DatetimeIndex):
        raise DataError(f"{symbol}: the index must be open times (a DatetimeIndex), not {type(frame.index).__name__}")
    if frame.index.hasnans:
        row = int(np.flatnonzero(frame.index.isna())[0])
        raise DataError(f"{symbol}: row {row} has no open time; correct or remove such rows")
    lower = frame.rename(columns={name: str(name).lower() for name in frame.columns}).sort_index()
    missing = [name for name in BAR_VALUES if name not in lower]
    if missing:
        raise DataError(
            f"{symbol}: column {', '.join(missing)} is missing; there are {', '.join(map(str, frame.columns))}"
        )
    try:
        values = lower[list(BAR_VALUES)].to_numpy(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{symbol}: a column of bars holds what is not a number ({error})") from error
    unknown = np.isnan(values)
    partly = unknown.any(axis=1) & ~unknown.all(axis=1)
    if partly.any():
        row = int(np.flatnonzero(partly)[0])
        names = ", ".join(name for name, lacks in zip(BAR_VALUES, unknown[row], strict=True) if lacks)
        raise DataError(
            f"{symbol}: the bar of {lower.index[row]} has no {names}: give all five values, or none for an absent bar"
        )
    there = ~unknown.all(axis=1)
    if not there.any():
        raise DataError(f"{symbol}: the table holds no bars")
    times = _times(lower)[there]
    if times[0] < EARLIEST or times[-1] >= LATEST:
        wrong = times[0] if times[0] < EARLIEST else times[-1]
        raise DataError(f"{symbol}: a bar opens at {format_time(int(wrong))} UTC; times from 2000 to 2100 are read")
    return times, dict(zip(BAR_VALUES, values[there].T, strict=True))


def _times(table: pd.DataFrame) -> IntArray:
    index: Any = table.index
    utc = index.tz_localize("UTC") if index.tz is None else index.tz_convert("UTC")
    moments: IntArray = utc.as_unit("ms").asi8
    return moments
