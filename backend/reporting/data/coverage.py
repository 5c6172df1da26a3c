"""The coverage map of a folder of data: of which symbol there is what and when, with every gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.reporting.blocks import Picture, Table, TableRow
from backend.reporting.charts import BLUE, GREEN, ORANGE, VERMILION, blank_figure, moments
from backend.reporting.drawing.figure import PlainFigure, trace
from backend.reporting.labels import Column
from simulator.arrays import IntArray
from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.market.timeframes import DAY_MS, TIMEFRAMES
from simulator.tables import read_table, times

_QUIET_DAYS = 3  # without a headline, or a rate, that are shown as a gap
_MOST_GAPS = 3_000  # spans of a kind that are drawn, the longest ones
_COLOURS = {"bars": BLUE, "funding": GREEN, "news": ORANGE}


@dataclass(frozen=True)
class Coverage:
    """One file: `records` between `first` and `last` (ms); `gaps` are start and end (ms) of what is absent between."""

    label: str
    kind: str  # bars, funding or news
    records: int
    first: int
    last: int
    gaps: tuple[tuple[int, int], ...]
    absent: int | None  # bars that lie in the gaps; None where records have no grid


def coverage_of(folder: Path) -> list[Coverage]:
    """What is in `folder`: bars, funding and headlines. Raises `DataError` where it holds no bars or a file cannot be
    read."""
    coverage: list[Coverage] = []
    for series in Catalog(folder).series():
        if series.first is not None and series.last is not None:
            interval = TIMEFRAMES[series.timeframe]
            time = np.sort(times(read_table(series.path, ("timestamp",)), "timestamp", series.path))
            coverage.append(
                Coverage(f"{series.symbol} {series.timeframe}", "bars", series.bars, series.first,
                         series.last + interval, _gaps(time, interval, interval), series.absent)
            )  # fmt: skip
    for path in sorted(folder.glob("*-funding.parquet")):
        label = f"{path.name.removesuffix('-funding.parquet')} funding"
        coverage += _events(path, "timestamp", label, "funding")
    if (folder / "news.parquet").is_file():
        coverage += _events(folder / "news.parquet", "known_at", "news", "news")
    return coverage


def coverage_picture(series: Sequence[Coverage]) -> Picture:
    """A line for each file over time, what is absent in another colour."""
    figure = blank_figure("", "", "")
    labels = [one.label for one in series]
    for kind, colour in _COLOURS.items():
        of_kind = [one for one in series if one.kind == kind]
        if of_kind:
            _add_bars(figure, kind, colour, [(one.label, one.first, one.last) for one in of_kind])
    absent = [(one.label, *gap) for one in series for gap in one.gaps]
    if absent:
        _add_bars(figure, "absent", VERMILION, absent)
    figure.update_layout(barmode="overlay", bargap=0.35, height=150 + 26 * len(labels), hovermode="closest")
    figure.update_xaxes(type="date")
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], automargin=True)
    caption = (
        "Bars that the exchange never made, and days without a headline or a funding rate, are absent; nothing is "
        "filled in. A gap is drawn at least as wide as can be seen."
    )
    return Picture("Coverage", caption, figure)


def coverage_table(series: Sequence[Coverage]) -> Table:
    """The same in numbers."""
    columns = (
        Column("kind", "What", "text", ""),
        Column("records", "Records", "count", "bars, funding rates or headlines"),
        Column("first", "First (UTC)", "moment", ""),
        Column("last", "Last (UTC)", "moment", "bars: the close of the last one"),
        Column("gaps", "Gaps", "count", "runs of absent bars, or quiet times"),
        Column("absent", "Absent bars", "count", ""),
    )
    rows = tuple(
        TableRow(one.label, {"kind": one.kind, "records": one.records, "first": one.first, "last": one.last,
                             "gaps": len(one.gaps), "absent": one.absent})
        for one in series
    )  # fmt: skip
    return Table("In numbers", "", columns, rows, first="File", folded=True)


def _events(path: Path, column: str, label: str, kind: str) -> list[Coverage]:
    time = np.sort(times(read_table(path, (column,)), column, path))
    if not len(time):
        return []
    gaps = _gaps(time, _QUIET_DAYS * DAY_MS, 0)
    return [Coverage(label, kind, len(time), int(time[0]), int(time[-1]), gaps, None)]


def _gaps(time: IntArray, longest: int, length: int) -> tuple[tuple[int, int], ...]:
    """Where more than `longest` ms lie between two records, from the end of the former, which lasts `length`."""
    behind = np.flatnonzero(np.diff(time) > longest)
    return tuple((int(time[place]) + length, int(time[place + 1])) for place in behind)


def _add_bars(figure: PlainFigure, name: str, colour: str, spans: Sequence[tuple[str, int, int]]) -> None:
    """Spans of time (ms) as lying bars."""
    drawn = sorted(spans, key=lambda span: span[1] - span[2])[:_MOST_GAPS]
    least = _least_width(spans) if name == "absent" else 0
    figure.add_trace(
        trace(
            "bar",
            y=[label for label, _, _ in drawn],
            base=moments([first for _, first, _ in drawn]),
            x=[max(last - first, least) for _, first, last in drawn],
            orientation="h",
            name=name,
            marker={"color": colour, "line": {"color": colour, "width": 1 if name == "absent" else 0}},
            customdata=[f"{a} to {b}" for a, b in zip(moments([one[1] for one in drawn]),
                                                      moments([one[2] for one in drawn]), strict=True)],
            hovertemplate="%{y}: %{customdata}",
        )
    )  # fmt: skip


def _least_width(spans: Sequence[tuple[str, int, int]]) -> int:
    """The width (ms) below which a gap could not be seen."""
    whole = max(last for _, _, last in spans) - min(first for _, first, _ in spans)
    return max(1, whole // 600)


def data_folders(roots: Sequence[Path]) -> list[Path]:
    """The folders of bars in and below some folders, at most two levels down, without a look into their files."""
    folders: dict[Path, None] = {}
    for root in roots:
        for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"):
            for path in sorted(root.glob(pattern)):
                if path.parent not in folders and _has_bars(path.parent):
                    folders[path.parent] = None
    return list(folders)


def _has_bars(folder: Path) -> bool:
    try:
        return bool(Catalog(folder).symbols())
    except DataError:
        return False
