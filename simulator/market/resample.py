"""Coarser bars out of finer ones, with nothing invented.

A coarse bar is built from those of its finer bars that exist: it is absent when none does, and *partial* when some are
missing. The exchange's own daily bar of a day with an outage is made the same way. Partial bars are reported
(`simulator.market.bar_checks.find_gaps`), never hidden. A last coarse bar that the data does not reach the end of is
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
from simulator.market.timeframes import TIMEFRAMES, bar_start


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

_PRICES = ("open", "high", "low", "close")


def frame_columns(frames: Mapping[str, pd.DataFrame]) -> tuple[str, IntArray, dict[str, Any]]:
    """The timeframe, the open times (T,) in ms and the columns (T, S) of tables of bars by symbol.

    Each table has an index of open times (without a zone: UTC) and the columns open, high, low, close and volume; no
    order is filled in a bar without volume. A bar that one of them lacks is NaN. Raises `DataError` for what is no such
    table.
    """
    if not frames:
        raise DataError("no table of bars is given: give at least one symbol")
    tables = {symbol: _checked(symbol, frame) for symbol, frame in frames.items()}
    times = np.unique(np.concatenate([_times(table) for table in tables.values()]))
    if len(times) < 2:
        raise DataError("a single bar has no timeframe: give at least two")
    interval = int(np.diff(times).min())
    timeframe = next((name for name, length in TIMEFRAMES.items() if length == interval), None)
    if timeframe is None or ((times - times[0]) % interval).any():
        raise DataError(
            f"the open times are no regular grid: the smallest step is {interval} ms; known are {', '.join(TIMEFRAMES)}"
        )
    grid = np.arange(times[0], times[-1] + 1, interval, dtype=np.int64)
    columns: dict[str, Any] = {name: np.full((len(grid), len(tables)), np.nan) for name in (*_PRICES, "volume")}
    for place, table in enumerate(tables.values()):
        rows = (_times(table) - grid[0]) // interval
        for name, column in columns.items():
            column[rows, place] = table[name].to_numpy(np.float64)
    return timeframe, grid, columns


def _checked(symbol: str, frame: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd  # it takes half a second

    if not isinstance(frame.index, pd.DatetimeIndex):
        raise DataError(f"{symbol}: the index must be open times (a DatetimeIndex), not {type(frame.index).__name__}")
    lower = frame.rename(columns={name: str(name).lower() for name in frame.columns}).sort_index()
    missing = [name for name in (*_PRICES, "volume") if name not in lower]
    if missing:
        raise DataError(
            f"{symbol}: column {', '.join(missing)} is missing; there are {', '.join(map(str, frame.columns))}"
        )
    if lower.index.has_duplicates:
        raise DataError(f"{symbol}: the bar of {lower.index[lower.index.duplicated()][0]} is there twice")
    prices = lower[list(_PRICES)].to_numpy(np.float64)
    known = prices[~np.isnan(prices).any(axis=1)]
    if (known <= 0.0).any() or (known[:, 1] < known.max(axis=1)).any() or (known[:, 2] > known.min(axis=1)).any():
        raise DataError(f"{symbol}: a bar has a price that is not above 0, or a high or low inside its own range")
    return lower


def _times(table: pd.DataFrame) -> IntArray:
    index: Any = table.index
    utc = index.tz_localize("UTC") if index.tz is None else index.tz_convert("UTC")
    moments: IntArray = utc.as_unit("ms").asi8
    return moments
