"""Checks of recorded bars: fatal errors, and notes on unusual ones.

Loading and `Catalog.check` share them: loading stops at the first fatal `Issue`, `Catalog.check` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.arrays import BoolArray, FloatArray, IntArray
from simulator.market.events import FundingEvent
from simulator.market.timeframes import BAR_COLUMNS, WEEK_MS, bar_start, format_time

BAR_VALUES = BAR_COLUMNS[:5]  # of every file of bars
# The typical range is that of this many bars around a bar. With fewer than _FEWEST nothing is judged.
_AROUND, _FEWEST = 49, 9
# A wick, or a jump between two bars, is reported if it exceeds the typical range by so many robust deviations. In five
# years of recorded hours a handful of bars exceed the first.
_WICK_DEVIATIONS, _JUMP_DEVIATIONS = 15.0, 3.0
_SCALE = np.log(5.0)  # from here on a jump is one to another scale or coin, however long the gap that it spans
_VOLUME_SCALE = 200.0  # of the medians of the volume before and after a bar: it is counted in another unit
_STALE_BARS = 3  # equal bars in a row that are reported


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


def faults_of(
    interval: int, open_time: IntArray, columns: Mapping[str, FloatArray]
) -> Iterator[tuple[str, BoolArray, str]]:
    """What makes bars unusable: the kind, which bars (n,) it is about, and the words that follow "bars"."""
    yield "unsorted", np.append(np.diff(open_time) < 0, False), "are followed by an earlier one"
    in_order = np.sort(open_time)
    yield "duplicate", np.isin(open_time, in_order[1:][np.diff(in_order) == 0]), "share their time with another"
    grid = "do not open on a whole interval" + ", Monday 00:00 UTC for weeks" * (interval == WEEK_MS)
    yield "misaligned", np.asarray(bar_start(open_time, interval) != open_time), grid
    yield from value_faults(columns)


def value_faults(columns: Mapping[str, FloatArray]) -> Iterator[tuple[str, BoolArray, str]]:
    """Those of them that the values of a bar alone show."""
    unknown = np.asarray(~np.isfinite(np.stack([*columns.values()])).all(axis=0))
    yield "not_a_number", unknown, "have a value that is missing or not finite"
    low, high = columns["low"], columns["high"]
    bad = (low <= 0) | (low > np.minimum(columns["open"], columns["close"])) | (columns["volume"] < 0)
    bad |= high < np.maximum(columns["open"], columns["close"])
    if "half_spread" in columns:
        bad |= (columns["half_spread"] < 0) | (columns["half_spread"] >= 1)
    words = (
        "are impossible (low, open, close, high in disorder, a price not above 0, a negative volume or a half spread"
        " outside 0..1)"
    )
    yield "impossible", ~unknown & bad, words


def check_bars(file: str, interval: int, open_time: IntArray, columns: dict[str, FloatArray]) -> list[Issue]:
    """Findings about the bars of one file: `open_time` `(n,)` in ms, `columns` name -> `(n,)`."""
    if not len(open_time):
        return [Issue(file, "empty", 0, "holds no bars", fatal=True)]
    issues: list[Issue] = []

    def report(kind: str, where: BoolArray, what: str, *, fatal: bool) -> None:
        count = int(where.sum())
        if count:
            first = format_time(int(open_time[where][0]))
            issues.append(Issue(file, kind, count, f"{count} bars {what}, the first at {first}", fatal))

    for kind, where, what in faults_of(interval, open_time, columns):
        report(kind, where, what, fatal=True)
    silent = columns["volume"] == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8)))
    longest = int(np.diff(edges)[::2].max()) if len(edges) else 0
    report("zero_volume", silent, f"have no volume (up to {longest} in a row)", fatal=False)
    step = np.diff(open_time)
    absent = int((step // interval - 1).sum())
    if absent and not any(issue.kind in ("unsorted", "duplicate", "misaligned") for issue in issues):
        first = format_time(int(open_time[np.flatnonzero(step > interval)[0]]) + interval)
        detail = f"{absent} bars are absent in {int((step > interval).sum())} gaps, the first at {first}"
        issues.append(Issue(file, "gap", absent, detail, fatal=False))
    return issues


def unusual_bars(file: str, interval: int, open_time: IntArray, columns: dict[str, FloatArray]) -> list[Issue]:
    """Notes about bars that are possible and unlikely: flash wicks, runs of equal bars, jumps between bars and across
    gaps, prices or volume of another scale.

    For bars without a fatal finding, in order: `open_time` `(n,)` in ms, `columns` name -> `(n,)`.
    """
    steps = np.diff(open_time) // interval
    first, high, low, close = (columns[name] for name in BAR_VALUES[:4])
    issues = _stale_runs(file, open_time, steps == 1, columns)
    limit = np.full(len(close), _SCALE)  # of a jump

    def report(kind: str, size: FloatArray, words: str, values: Callable[[int], str]) -> None:
        """A note about the bars with a `size` (n,) above 0, with the values of the one with the largest."""
        found = np.flatnonzero(size > 0)
        if len(found):
            largest = int(size.argmax())
            detail = (
                f"{len(found)} bars {words}, the first at {format_time(int(open_time[found[0]]))}, the furthest at"
                f" {format_time(int(open_time[largest]))} ({values(largest)})"
            )
            issues.append(Issue(file, kind, len(found), detail, fatal=False))

    def extremes(bar: int) -> str:
        return f"high {high[bar]:g}, low {low[bar]:g}"

    if len(open_time) >= _FEWEST:
        typical, deviation = _usual_range(np.log(high / low))
        wick = np.maximum(np.log(high / np.maximum(first, close)), np.log(np.minimum(first, close) / low))
        far = wick > typical + _WICK_DEVIATIONS * deviation
        report("flash_wick", wick * far, "have a wick far beyond the ranges of the bars around them", extremes)
        # Across a gap of several bars a price may go further, as its square root, but not to another scale.
        limit[1:] = np.minimum(_SCALE, (typical + _JUMP_DEVIATIONS * deviation)[1:] * np.sqrt(steps))
    body = np.abs(np.log(close / first))
    report("scale", body * (body > _SCALE), "have a close of another scale than the open", extremes)
    jump = np.append(0.0, np.abs(np.log(first[1:] / close[:-1])))
    wide, across = jump * (jump > limit), np.append(False, steps > 1)

    def leap(bar: int) -> str:
        return f"from {close[bar - 1]:g} to {first[bar]:g}"

    report("jump", wide * ~across, "open far from the close before them", leap)
    report("gap_jump", wide * across, "open far from the close before the gap in front of them", leap)
    return issues + _volume_scale(file, open_time, columns["volume"])


def _volume_scale(file: str, open_time: IntArray, volume: FloatArray) -> list[Issue]:
    """A note about places from which on the volume is counted in another unit: medians of the bars on either side."""
    width = min(_AROUND, len(volume) // 2)
    if width < _FEWEST:
        return []
    middle = _medians(volume, width)
    before, after = middle[:-width], middle[width:]  # of the bars before and from bar `width`, `width` + 1, ... on
    known = (before > 0) & (after > 0)
    ratio = np.where(known, np.maximum(before, after) / np.where(known, np.minimum(before, after), 1.0), 1.0)
    beyond = ratio > _VOLUME_SCALE
    starts = np.flatnonzero(np.diff(np.concatenate([[False], beyond]).astype(np.int8)) == 1)
    if not len(starts):
        return []
    # A median turns when half of its bars have changed; a mean of logarithms is furthest apart at the place itself.
    sums = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(volume, np.finfo(np.float64).tiny)))])
    means = (sums[width:] - sums[:-width]) / width
    place = int(np.where(beyond, np.abs(means[width:] - means[:-width]), -1.0).argmax())
    detail = (
        f"the volume changes its scale {len(starts)} times, the most at {format_time(int(open_time[place + width]))}"
        f" (median {before[place]:g} before, {after[place]:g} after): is it counted in another unit?"
    )
    return [Issue(file, "volume_scale", len(starts), detail, fatal=False)]


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
    """Median of the ranges of the bars around each, and the robust deviation from it, `(n,)` both; n is at least
    `_FEWEST`.

    The deviation is 1.4826 median absolute deviations, and at least a quarter of the median: in a quiet spell, where
    all ranges are nearly equal, nothing would be usual otherwise.
    """
    width = min(_AROUND, len(ranges))
    # The first and the last bars share the window of the nearest bar that has a whole one.
    window = np.clip(np.arange(len(ranges)) - width // 2, 0, len(ranges) - width)
    typical = _medians(ranges, width)[window]
    deviation = _medians(np.abs(ranges - typical), width)[window]
    return typical, np.maximum(1.4826 * deviation, 0.25 * typical)


def _medians(values: FloatArray, width: int) -> FloatArray:
    """The median of each `width` values in a row, `(n - width + 1,)`."""
    import pandas as pd  # it takes half a second

    found: FloatArray = pd.Series(values).rolling(width).median().to_numpy()[width - 1 :]
    return found


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
