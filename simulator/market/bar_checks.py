"""Checks of recorded bars: fatal errors, and notes on unusual ones.

Loading and `Catalog.check` share them: loading stops at the first fatal `Issue`, `Catalog.check` lists all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.market.events import FundingEvent
from simulator.market.timeframes import WEEK_MS, bar_start, format_time

# The typical range is that of this many bars around a bar. With fewer than _FEWEST nothing is judged.
_AROUND, _FEWEST = 49, 9
# A wick, or a jump between two bars, is reported if it exceeds the typical range by so many robust deviations. In five
# years of recorded hours a handful of bars exceed the first.
_WICK_DEVIATIONS, _JUMP_DEVIATIONS = 15.0, 3.0
_STALE_BARS = 3  # equal bars in a row that are reported
_WINDOWS_AT_ONCE = 16_384  # bounds the memory of the medians


@dataclass(frozen=True)
class Issue:
    """A finding about one file. Fatal ones keep it from being loaded."""

    file: str
    kind: str
    count: int
    detail: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.detail}"


def check_bars(file: str, interval: int, open_time: IntArray, columns: dict[str, FloatArray]) -> list[Issue]:
    """Findings about the bars of one file: `open_time` `(n,)` in ms, `columns` name -> `(n,)`."""
    if not len(open_time):
        return [Issue(file, "empty", 0, "holds no bars", fatal=True)]
    issues: list[Issue] = []

    def report(kind: str, where: npt.NDArray[np.bool_], what: str, *, fatal: bool) -> None:
        count = int(where.sum())
        if count:
            first = format_time(int(open_time[: len(where)][where][0]))
            issues.append(Issue(file, kind, count, f"{count} {what}, the first at {first}", fatal))

    step = np.diff(open_time)
    report("unsorted", step < 0, "bars are followed by an earlier one", fatal=True)
    in_order = np.sort(open_time)
    repeated = np.isin(open_time, in_order[1:][np.diff(in_order) == 0])
    report("duplicate", repeated, "bars share their time with another", fatal=True)
    grid = "bars do not open on a whole interval" + ", Monday 00:00 UTC for weeks" * (interval == WEEK_MS)
    report("misaligned", bar_start(open_time, interval) != open_time, grid, fatal=True)

    unknown = np.zeros(len(open_time), np.bool_)
    for values in columns.values():
        unknown |= ~np.isfinite(values)
    report("not_a_number", unknown, "bars have a value that is missing or not finite", fatal=True)
    report("impossible", ~unknown & _impossible(columns), "bars are impossible (low, open, close, high in disorder, "
           "a price not above 0, a negative volume or a half spread outside 0..1)", fatal=True)  # fmt: skip
    report("zero_volume", columns["volume"] == 0, "bars have no volume", fatal=False)
    if not any(issue.kind in ("unsorted", "duplicate", "misaligned") for issue in issues):
        absent = int((step // interval - 1).sum())
        if absent:
            first = format_time(int(open_time[np.flatnonzero(step > interval)[0]]) + interval)
            detail = f"{absent} bars are absent in {int((step > interval).sum())} gaps, the first at {first}"
            issues.append(Issue(file, "gap", absent, detail, fatal=False))
    return issues


def unusual_bars(file: str, interval: int, open_time: IntArray, columns: dict[str, FloatArray]) -> list[Issue]:
    """Notes about bars that are possible and unlikely: flash wicks, runs of equal bars, jumps between bars.

    For bars without a fatal finding, in order: `open_time` `(n,)` in ms, `columns` name -> `(n,)`.
    """
    adjacent = np.diff(open_time) == interval
    issues = _stale_runs(file, open_time, adjacent, columns)
    if len(open_time) < _FEWEST:
        return issues
    typical, deviation = _usual_range(np.log(columns["high"] / columns["low"]))
    up = np.log(columns["high"] / np.maximum(columns["open"], columns["close"]))
    down = np.log(np.minimum(columns["open"], columns["close"]) / columns["low"])
    wick = np.maximum(up, down)
    flash = np.flatnonzero(wick > typical + _WICK_DEVIATIONS * deviation)
    if len(flash):
        longest = flash[wick[flash].argmax()]
        detail = (
            f"{len(flash)} bars have a wick far beyond the ranges of the bars around them, the first at"
            f" {format_time(int(open_time[flash[0]]))}, the longest at {format_time(int(open_time[longest]))}"
            f" (high {columns['high'][longest]:g}, low {columns['low'][longest]:g})"
        )
        issues.append(Issue(file, "flash_wick", len(flash), detail, fatal=False))
    # Across a hole a price may be anywhere.
    jump = np.where(adjacent, np.abs(np.log(columns["open"][1:] / columns["close"][:-1])), 0.0)
    wide = np.flatnonzero(jump > (typical + _JUMP_DEVIATIONS * deviation)[1:]) + 1
    if len(wide):
        first = format_time(int(open_time[wide[0]]))
        detail = f"{len(wide)} bars open far from the close before them, the first at {first}"
        issues.append(Issue(file, "jump", len(wide), detail, fatal=False))
    return issues


def _stale_runs(file: str, open_time: IntArray, adjacent: BoolArray, columns: dict[str, FloatArray]) -> list[Issue]:
    equal = adjacent.copy()
    for name in ("open", "high", "low", "close", "volume"):
        equal &= columns[name][1:] == columns[name][:-1]
    edges = np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)  # bars [start, stop] are equal
    lengths = stops - starts + 1
    runs = lengths >= _STALE_BARS
    if not runs.any():
        return []
    first = format_time(int(open_time[starts[runs][0]]))
    bars = int(lengths[runs].sum())
    detail = f"{bars} bars repeat each other in {int(runs.sum())} runs of equal bars, the first at {first}"
    return [Issue(file, "stale", bars, detail, fatal=False)]


def _usual_range(ranges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Median and robust deviation of the ranges of the bars around each, `(n,)` both; n is at least `_FEWEST`.

    The deviation is 1.4826 median absolute deviations, and at least a quarter of the median: in a quiet spell, where
    all ranges are nearly equal, nothing would be usual otherwise.
    """
    width = min(_AROUND, len(ranges))
    windows = sliding_window_view(ranges, width)
    typical, deviation = np.empty(len(windows)), np.empty(len(windows))
    for start in range(0, len(windows), _WINDOWS_AT_ONCE):
        part = slice(start, start + _WINDOWS_AT_ONCE)
        typical[part] = np.median(windows[part], axis=1)
        deviation[part] = np.median(np.abs(windows[part] - typical[part, None]), axis=1)
    # The first and the last bars share the window of the nearest bar that has a whole one.
    window = np.clip(np.arange(len(ranges)) - width // 2, 0, len(windows) - 1)
    return typical[window], np.maximum(1.4826 * deviation, 0.25 * typical)[window]


def check_funding(file: str, events: Sequence[FundingEvent], open_times: Sequence[tuple[IntArray, int]]) -> list[Issue]:
    """A note about settlements at times of which there is no bar.

    `open_times` holds, for each file of bars of the symbol, their open times `(n,)` in order and their length, ms.
    """
    time = np.array([event.time for event in events], np.int64)
    bare = np.ones(len(time), np.bool_)
    for opens, interval in open_times:
        last = np.searchsorted(opens, time, side="right") - 1
        bare &= (last < 0) | (time > opens[last] + interval)
    if not bare.any():
        return []
    count, first = int(bare.sum()), format_time(int(time[bare][0]))
    detail = f"{count} of {len(time)} settlements fall where there is no bar, the first at {first}"
    return [Issue(file, "funding_without_bars", count, detail, fatal=False)]


def _impossible(columns: dict[str, FloatArray]) -> BoolArray:
    low, high = columns["low"], columns["high"]
    body_low = np.minimum(columns["open"], columns["close"])
    body_high = np.maximum(columns["open"], columns["close"])
    bad: BoolArray = (low <= 0) | (low > body_low) | (high < body_high) | (columns["volume"] < 0)
    if "half_spread" in columns:
        bad |= (columns["half_spread"] < 0) | (columns["half_spread"] >= 1)
    return bad
