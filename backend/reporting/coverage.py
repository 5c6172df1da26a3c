"""The coverage map of a folder of data: of which symbol there is what and when, with every gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from plotly.express import timeline

from backend.reporting.blocks import Picture
from backend.reporting.charts import BLUE, GREEN, LIGHT, ORANGE, VERMILION, label_of
from simulator.arrays import IntArray
from simulator.data.catalog import Catalog
from simulator.errors import DataError
from simulator.market.timeframes import DAY_MS, TIMEFRAMES
from simulator.tables import read_table, times

_QUIET_DAYS = 3  # without a headline, or a rate, that are shown as a gap
_MOST_GAPS = 3_000  # spans of a kind that are drawn, the longest ones
_COLORS = {"bars": BLUE, "funding": GREEN, "news": ORANGE, "absent": VERMILION}


@dataclass(frozen=True)
class Coverage:
    """One file, from `first` to `last` (ms); `gaps` are start and end (ms) of what is absent between."""

    label: str
    kind: str  # bars, funding or news
    first: int
    last: int
    gaps: tuple[tuple[int, int], ...]


def coverage_of(folder: Path) -> list[Coverage]:
    """What is in `folder`: bars, funding and headlines. Raises `DataError` where it holds no bars or a file cannot be
    read."""
    coverage: list[Coverage] = []
    for series in Catalog(folder).series():
        if series.first is not None and series.last is not None:
            interval = TIMEFRAMES[series.timeframe]
            time = np.sort(times(read_table(series.path, ("timestamp",)), "timestamp", series.path))
            gaps = _gaps(time, interval, interval)
            label = f"{series.symbol} {series.timeframe}"
            coverage.append(Coverage(label, "bars", series.first, series.last + interval, gaps))
    for path in sorted(folder.glob("*-funding.parquet")):
        label = f"{path.name.removesuffix('-funding.parquet')} funding"
        coverage += _events(path, "timestamp", label, "funding")
    if (folder / "news.parquet").is_file():
        coverage += _events(folder / "news.parquet", "known_at", "news", "news")
    return coverage


def coverage_picture(series: Sequence[Coverage]) -> Picture:
    """A line for each file over time, what is absent in another color."""
    spans = [(one.label, one.kind, one.first, one.last) for one in series]
    gaps = sorted(((one.label, "absent", *gap) for one in series for gap in one.gaps), key=lambda gap: gap[2] - gap[3])
    table = pd.DataFrame([*spans, *gaps[:_MOST_GAPS]], columns=["file", "kind", "from", "to"])
    for column in ("from", "to"):
        table[column] = pd.to_datetime(table[column], unit="ms")
    table["file"] = table["file"].map(label_of)
    figure = timeline(table, x_start="from", x_end="to", y="file", color="kind", color_discrete_map=_COLORS)
    figure.update_traces(marker_line_width=1, selector={"name": "absent"})
    figure.for_each_trace(lambda trace: trace.marker.line.update(color=trace.marker.color))
    figure.update_layout(template=LIGHT, height=150 + 26 * len(series), barmode="overlay", bargap=0.35,
                         hovermode="closest", xaxis_title="", yaxis_title="", legend_title="")  # fmt: skip
    figure.update_yaxes(categoryorder="array", categoryarray=[label_of(one.label) for one in reversed(series)])
    caption = (
        "Bars that the exchange never made, and days without a headline or a funding rate, are absent; nothing is "
        "filled in."
    )
    return Picture("Coverage", caption, figure)


def _events(path: Path, column: str, label: str, kind: str) -> list[Coverage]:
    time = np.sort(times(read_table(path, (column,)), column, path))
    if not len(time):
        return []
    gaps = _gaps(time, _QUIET_DAYS * DAY_MS, 0)
    return [Coverage(label, kind, int(time[0]), int(time[-1]), gaps)]


def _gaps(time: IntArray, longest: int, length: int) -> tuple[tuple[int, int], ...]:
    """Where more than `longest` ms lie between two records, from the end of the former, which lasts `length`."""
    behind = np.flatnonzero(np.diff(time) > longest)
    return tuple((int(time[place]) + length, int(time[place + 1])) for place in behind)


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
