"""Backtests against one another: the teams of one run, several runs on the page, and what `cryptosentinel.compare`
returns. Differences have intervals; what cannot be paired says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from backend.evaluation.paired_runs import ComparedResult, PairedDifference, marks_within, paired_differences
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, ReportSection, Table, TableRow
from backend.reporting.html_page import render_sections
from backend.reporting.labels import COLUMNS, Column, interval_text, listed, title_of
from backend.reporting.run_summary import RunSummary, WindowResult
from backend.statistics.bootstrap import Interval
from backend.store.records import RunRecord
from simulator.errors import DataError, UserError
from simulator.files import write_whole

_MOST_SETTINGS = 60  # that differ, in a comparison

_DIFFERENCE_COLUMNS = (
    Column("wealth", "Over the first", "change", "final wealth over that of the first, minus 1"),
    Column("interval", "95 % interval", "text", "of that difference; if it includes 0: not statistically significant"),
    Column("sharpe_gap", "Sharpe gap", "ratio", "difference of the annual Sharpe ratios"),
    Column("p_value", "p", "ratio", "probability of such a difference of the Sharpe ratios where there is none"),
    Column("adjusted", "p, Holm", "ratio", "the same, corrected for all that were compared here"),
)
_CAPTION = (
    "Only what traded the same bars, in the same window, at the same costs is compared. Stationary block bootstrap of "
    "the paired bars; Sharpe ratios by Ledoit and Wolf (2008). An interval that includes 0: not statistically "
    "significant."
)
_EQUITY = "Return since the start, net of all costs."


def teams_section(window: WindowResult, run: RunRecord) -> ReportSection | None:
    """The teams and strategies of one backtest against the first of them; None where only one was tested."""
    if len(window.subjects) < 2:
        return None
    compared = [ComparedResult(run, name, window.results[name]) for name in window.subjects]
    differences, problem = _paired(compared, [title_of(name) for name in window.subjects])
    blocks = _difference_blocks(title_of(window.main), differences)
    return ReportSection("Against one another", (*blocks, *problem))


def compared_runs(runs: Sequence[RunSummary]) -> list[ReportBlock]:
    """Several runs side by side: results, differences from the first with intervals, accounts, and the settings that
    differ."""
    windows = {one.run.run: one.windows()[0] for one in runs if one.backtests}
    if not windows:
        return [Missing("Results", "none of these runs has a stored window"), _settings_table(runs)]
    compared = {
        f"{one.run.run}: {title_of(name)}": ComparedResult(one.run, name, windows[one.run.run].results[name])
        for one in runs
        if one.run.run in windows
        for name in windows[one.run.run].subjects
    }
    names = list(compared)
    missing = [one.run.run for one in runs if one.run.run not in windows]
    blocks: list[ReportBlock] = [Missing(listed(missing), "no window is stored")] if missing else []
    if len(compared) > 1:
        differences, problem = _paired(list(compared.values()), names)
        blocks += [*_difference_blocks(names[0], differences), *problem]
    return [*_result_blocks(compared, "The first window of each run."), *blocks, _settings_table(runs)]


def _result_blocks(compared: Mapping[str, ComparedResult], caption: str = "") -> list[ReportBlock]:
    """By label: what each came to, and the accounts."""
    rows = tuple(
        TableRow(label, one.result.metrics | {"costs": sum(one.result.costs.values()) / one.result.equity[0]})
        for label, one in compared.items()
    )
    accounts = {label: (one.result.times, one.result.equity) for label, one in compared.items()}
    equity = charts.accounts_chart(accounts, "return since the start")
    return [Table("Results", caption, COLUMNS, rows), Picture("Equity", _EQUITY, equity)]


def _difference_blocks(first: str, differences: Mapping[str, PairedDifference]) -> list[ReportBlock]:
    if not differences:
        return []
    rows = tuple(TableRow(label, _values(found)) for label, found in differences.items())
    about = "An interval wholly right of 0: better on this window. One that includes 0: the window does not tell."
    return [
        Table(f"Against {first}", _CAPTION, _DIFFERENCE_COLUMNS, rows, tinted=True),
        Picture(f"Final wealth over that of {first}", about, wealth_chart(differences)),
    ]


def _paired(
    compared: Sequence[ComparedResult], names: Sequence[str]
) -> tuple[dict[str, PairedDifference], list[Missing]]:
    """The differences of all but the first, by `names`; or why there are none."""
    try:
        return dict(zip(names[1:], paired_differences(compared), strict=True)), []
    except (DataError, UserError) as error:
        return {}, [Missing("Differences", str(error))]


def _values(difference: PairedDifference) -> dict[str, Any]:
    """The values of `_DIFFERENCE_COLUMNS`."""
    return {
        "wealth": difference.wealth.value,
        "interval": interval_text(difference.wealth, "change"),
        "sharpe_gap": difference.sharpe,
        "p_value": difference.p_value,
        "adjusted": difference.adjusted,
    }


def wealth_chart(differences: Mapping[str, PairedDifference]) -> go.Figure:
    """By label: final wealth over the first's, minus 1, with its 95 % interval, in percent."""
    rows = {
        label: charts.IntervalBar(100.0 * one.wealth.value, 100.0 * one.wealth.low, 100.0 * one.wealth.high)
        for label, one in differences.items()
    }
    return charts.interval_chart(rows, "final wealth over the first's, minus 1", " %")


def _settings_table(runs: Sequence[RunSummary]) -> ReportBlock:
    flat = {one.run.run: dict(_flat("", one.settings)) | {"seed": str(one.run.seed)} for one in runs}
    keys = sorted({key for values in flat.values() for key in values})
    differing = [key for key in keys if len({values.get(key) for values in flat.values()}) > 1]
    if not differing:
        return Missing("Settings", "they do not differ, nor does the seed")
    columns = tuple(Column(run, run, "text", "") for run in flat)
    rows = tuple(
        TableRow(key, {run: values.get(key) for run, values in flat.items()}) for key in differing[:_MOST_SETTINGS]
    )
    return Table("Settings that differ", "", columns, rows, first="Setting")


def _flat(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", str(value)


@dataclass(frozen=True)
class ComparisonOutcome:
    """Backtests that were compared, the first with each of the others. `compared` are those, `differences` one less, in
    the same order."""

    compared: Sequence[ComparedResult]
    differences: Sequence[PairedDifference]

    @property
    def verdict(self) -> str:
        """A sentence for each of the others: ahead of the first, behind it, or not significantly different; and one for
        each team that was trained on the window."""
        sentences = [
            f"{name} {_verdict(row.wealth)} {self._names[0]}: {interval_text(row.wealth, 'change')} (95 % interval)."
            for name, row in self._rows.items()
        ]
        return "\n".join([*sentences, *(f"{mark}." for mark in marks_within(self.compared))])

    def frame(self) -> pd.DataFrame:
        """A row for each but the first: `wealth`, its final wealth over the first's minus 1, with the interval `low` to
        `high`; `sharpe`, the difference of the annual Sharpe ratios; `p_value` of that, and `adjusted` by Holm."""
        rows = [
            {"wealth": row.wealth.value, "low": row.wealth.low, "high": row.wealth.high, "sharpe": row.sharpe,
             "p_value": row.p_value, "adjusted": row.adjusted}
            for row in self.differences
        ]  # fmt: skip
        return pd.DataFrame(rows, index=pd.Index(self._names[1:], name=f"against {self._names[0]}"))

    def plot(self) -> go.Figure:
        """The differences with their intervals."""
        return wealth_chart({title_of(name): row for name, row in self._rows.items()})

    def report(self, path: str | Path = "runs/comparison.html") -> Path:
        """Write one page that works offline with tables and pictures; returns its path. Raises `UserError` where it
        cannot be written."""
        page = Path(path)
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_whole(page, self._page())
        except OSError as error:
            raise UserError(f"{page} cannot be written ({error.strerror}): choose another path") from error
        return page

    @property
    def _names(self) -> list[str]:
        """The names of teams, with their runs where a name comes twice."""
        often = Counter(one.name for one in self.compared)
        return [one.name if often[one.name] == 1 else str(one) for one in self.compared]

    @property
    def _rows(self) -> dict[str, PairedDifference]:
        return dict(zip(self._names[1:], self.differences, strict=True))

    def _page(self) -> str:
        named = {title_of(name): one for name, one in zip(self._names, self.compared, strict=True)}
        titled = {title_of(name): row for name, row in self._rows.items()}
        sections = [
            ReportSection("Differences", tuple(_difference_blocks(title_of(self._names[0]), titled))),
            ReportSection("Results", tuple(_result_blocks(named))),
        ]
        runs = ", ".join(dict.fromkeys(one.run.run for one in self.compared))
        return render_sections("comparison", self.verdict, f"run {runs}", sections)


def compare_results(compared: Sequence[ComparedResult], seed: int) -> ComparisonOutcome:
    """The first with each of the others. Raises `UserError` for fewer than two and for what cannot be paired."""
    return ComparisonOutcome(tuple(compared), tuple(paired_differences(compared, seed)))


def _verdict(wealth: Interval) -> str:
    if wealth.low > 0.0:
        return "is ahead of"
    return "is behind" if wealth.high < 0.0 else "is not proven to differ from"
