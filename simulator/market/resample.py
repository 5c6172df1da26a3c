"""Coarser bars out of finer ones, with nothing invented.

A coarse bar is built from those of its finer bars that exist: it is absent when none does, and *partial* when some are
missing. The exchange's own daily bar of a day with an outage is made the same way. Partial bars are reported
(`simulator.market.bar_checks.find_gaps`), never hidden. A last coarse bar that the data does not reach the end of is
dropped, since its close is not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray
from simulator.market.timeframes import bar_start


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
