"""Several runs side by side: their results, their accounts, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, Table, TableRow
from backend.reporting.labels import COLUMNS, Column, listed, title_of
from backend.reporting.run_summary import RunSummary, WindowResult

_MOST_SETTINGS = 60  # that differ, in a comparison


def comparison_blocks(runs: Sequence[RunSummary]) -> list[ReportBlock]:
    """Several runs side by side: the results of those whose windows are stored, their accounts, and the settings in
    which they differ."""
    windows = {one.run.run: one.windows()[0] for one in runs if one.backtests}
    blocks: list[ReportBlock] = []
    if windows:
        rows = tuple(
            TableRow(f"{run}: {title_of(name)}", window.rows[name])
            for run, window in windows.items()
            for name in window.subjects
        )
        caption = "The first window of each run; of several teams in a run, each."
        spans = {(window.main_result.times[0], window.main_result.times[-1]) for window in windows.values()}
        if len(spans) > 1:
            caption += " The windows differ in time, so that the numbers cannot be compared as they are."
        blocks.append(Table("Results", caption, COLUMNS, rows, first="Run and team"))
        blocks.append(Picture("Equity", "Return since the start, net of all costs.", _equity(windows)))
    else:
        blocks.append(Missing("Results", "none of these runs has a stored window"))
    missing = [one.run.run for one in runs if one.run.run not in windows]
    if missing and windows:
        blocks.append(Missing(listed(missing), "no window is stored"))
    blocks.append(_differences(runs))
    return blocks


def _equity(windows: Mapping[str, WindowResult]) -> Any:
    return charts.accounts_chart(
        {
            f"{run}: {title_of(name)}": (window.results[name].times, window.results[name].equity)
            for run, window in windows.items()
            for name in window.subjects
        },
        "return since the start",
    )


def _differences(runs: Sequence[RunSummary]) -> ReportBlock:
    flat = {one.run.run: dict(_flat("", one.settings)) | {"seed": str(one.run.seed)} for one in runs}
    keys = sorted({key for values in flat.values() for key in values})
    differing = [key for key in keys if len({values.get(key) for values in flat.values()}) > 1]
    if not differing:
        return Missing("Settings", "they do not differ, nor does the seed")
    columns = tuple(Column(run, run, "text", "") for run in flat)
    rows = tuple(TableRow(key, {run: values.get(key) for run, values in flat.items()})
                 for key in differing[:_MOST_SETTINGS])  # fmt: skip
    return Table("Settings that differ", "", columns, rows, first="Setting")


def _flat(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", str(value)
