"""What `cryptosentinel.compare` returns: backtests compared bar by bar, as a table, a picture and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from backend.evaluation.paired_runs import ComparedResult, PairedDifference, marks_within, paired_differences
from backend.reporting import charts
from backend.reporting.blocks import Picture, ReportSection, Table, TableRow
from backend.reporting.comparison.teams import wealth_chart
from backend.reporting.drawing.figure import PlainFigure
from backend.reporting.html.page import render_sections
from backend.reporting.labels import COLUMNS, Column, interval_text, title_of
from backend.statistics.bootstrap import Interval
from simulator.errors import UserError
from simulator.files import write_whole

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLUMNS = (
    Column("wealth", "Over the first", "change", "final wealth over that of the first, less 1"),
    Column("interval", "95 % interval", "text", "of that difference; one that holds 0 says: not proven"),
    Column("sharpe", "Sharpe", "ratio", "difference of the annual Sharpe ratios"),
    Column("p_value", "p", "ratio", "probability of such a difference of the Sharpe ratios where there is none"),
    Column("adjusted", "p, Holm", "ratio", "the same, corrected for all that were compared here"),
)
_CAPTION = (
    "Only what traded the same bars, in the same window, at the same costs is compared. Stationary block bootstrap of "
    "the paired bars; Sharpe ratios by Ledoit and Wolf (2008). An interval that holds 0 says: not proven."
)


@dataclass(frozen=True)
class ComparisonOutcome:
    """Backtests that were compared, the first with each of the others. `compared` are those, `differences` one less, in
    the same order."""

    compared: Sequence[ComparedResult]
    differences: Sequence[PairedDifference]

    @property
    def verdict(self) -> str:
        """A sentence for each of the others: ahead of the first, behind it, or not proven; and one for each team that
        was trained on the window."""
        first = self._names[0]
        sentences = [
            f"{name} {_verdict(row.wealth)} {first}: {interval_text(row.wealth, 'change')} (95 % interval)."
            for name, row in zip(self._names[1:], self.differences, strict=True)
        ]
        return "\n".join([*sentences, *(f"{mark}." for mark in marks_within(self.compared))])

    def frame(self) -> pd.DataFrame:
        """A row for each but the first: `wealth`, its final wealth over the first's less 1, with the interval `low` to
        `high`; `sharpe`, the difference of the annual Sharpe ratios; `p_value` of that, and `adjusted` by Holm."""
        rows = [
            {
                "wealth": row.wealth.value,
                "low": row.wealth.low,
                "high": row.wealth.high,
                "sharpe": row.sharpe,
                "p_value": row.p_value,
                "adjusted": row.adjusted,
            }
            for row in self.differences
        ]
        return pd.DataFrame(rows, index=pd.Index(self._names[1:], name=f"against {self._names[0]}"))

    def plot(self) -> go.Figure:
        """The differences with their intervals."""
        return self._picture().plotly()

    def _picture(self) -> PlainFigure:
        return wealth_chart(dict(zip(self._names[1:], self.differences, strict=True)))

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

    def _page(self) -> str:
        results = tuple(
            TableRow(title_of(name), one.result.metrics, main=one is self.compared[0])
            for name, one in zip(self._names, self.compared, strict=True)
        )
        differences = tuple(
            TableRow(
                title_of(name),
                {**vars(row), "wealth": row.wealth.value, "interval": interval_text(row.wealth, "change")},
            )
            for name, row in zip(self._names[1:], self.differences, strict=True)
        )
        accounts = {
            name: (one.result.times, one.result.equity) for name, one in zip(self._names, self.compared, strict=True)
        }
        equity = charts.accounts_chart(accounts, "return since the start")
        caption = "Return since the start, net of all costs."
        sections = [
            ReportSection(
                "Differences",
                (
                    Table("Against the first", _CAPTION, _COLUMNS, differences, tinted=True),
                    Picture(
                        f"Final wealth over that of {title_of(self._names[0])}",
                        "A bar wholly right of 0: better on this window. One that touches 0: the window does not tell.",
                        self._picture(),
                    ),
                ),
            ),
            ReportSection("Results", (Table("Results", "", COLUMNS, results), Picture("Equity", caption, equity))),
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
