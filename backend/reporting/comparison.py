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

from backend.decisions.backtest_document import BacktestDocument
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

# Fewer trades get no rank: of five, all won by the toss of a coin has a probability of 1 in 32, below 5 %; of fewer, no
# outcome whatever tells skill from luck, and none at all is not a way of trading.
LEAST_TRADES_RANKED = 5
_MOST_SETTINGS = 60  # that differ, in a comparison

_DIFFERENCE_COLUMNS = (
    Column("wealth", "Over the first", "change", "final wealth over that of the first, minus 1"),
    Column("interval", "95 % interval", "text", "of that difference; if it includes 0: not statistically significant"),
    Column("sharpe_gap", "Sharpe gap", "ratio", "difference of the annual Sharpe ratios"),
    Column("p_value", "p", "ratio", "probability of such a difference of the Sharpe ratios where there is none"),
    Column("adjusted", "p, Holm", "ratio", "the same, corrected for all that were compared here"),
)
_TEAM_COLUMNS = (
    Column("rank", "Rank", "count", f"by return; a dash with fewer than {LEAST_TRADES_RANKED} trades"),
    *(column for column in COLUMNS if column.key in ("total_return", "sharpe", "max_drawdown", "trades")),
    *_DIFFERENCE_COLUMNS,
    Column("tokens", "Tokens", "count", "read and sampled by its models"),
    Column("money", "Thinking", "money", "what the models' answers cost, in the account's currency"),
    Column("after_thinking", "After thinking", "change", "return minus what thinking cost"),
)
_CAPTION = (
    "Only what traded the same bars, in the same window, at the same costs is compared. Stationary block bootstrap of "
    "the paired bars; Sharpe ratios by Ledoit and Wolf (2008). An interval that includes 0: not statistically "
    "significant."
)
_EQUITY = "Return since the start, net of all costs."


def ranking(results: Mapping[str, BacktestDocument]) -> dict[str, int | None]:
    """The rank of each result by its total return, best first, from 1; behind them, with None, those of fewer than
    `LEAST_TRADES_RANKED` trades."""
    best = sorted(results, key=lambda name: -results[name].total_return)
    few = [name for name in best if results[name].metrics.get("trades", 0.0) < LEAST_TRADES_RANKED]
    ranked = [name for name in best if name not in few]
    return {name: number for number, name in enumerate(ranked, 1)} | dict.fromkeys(few)


def teams_section(window: WindowResult, run: RunRecord) -> ReportSection | None:
    """The teams and strategies of one backtest against the first of them; None where only one was tested."""
    if len(window.subjects) < 2:
        return None
    compared = [ComparedResult(run, name, window.results[name]) for name in window.subjects]
    differences, problem = _paired(compared)
    rows = []
    for name, rank in ranking({name: window.results[name] for name in window.subjects}).items():
        result, found = window.results[name], differences.get(name)
        values = {"rank": rank, **result.metrics, "after_thinking": result.return_after_inference}
        if result.inference is not None:
            values["tokens"] = result.inference.tokens
            values["money"] = result.inference.money if result.inference.priced else None
        rows.append(TableRow(title_of(name), values | _values(found), main=name == window.main))
    caption = f"{_CAPTION} Below {LEAST_TRADES_RANKED} trades there is no rank: so few say nothing."
    table = Table("Against one another", caption, _TEAM_COLUMNS, tuple(rows), tinted=True)
    pictures = _pictures(title_of(window.main), {title_of(name): one for name, one in differences.items()})
    return ReportSection("Against one another", (table, *pictures, *problem))


def compared_runs(runs: Sequence[RunSummary]) -> list[ReportBlock]:
    """Several runs side by side: results, differences from the first with intervals, accounts, and the settings that
    differ."""
    windows = {one.run.run: one.windows()[0] for one in runs if one.backtests}
    if not windows:
        return [Missing("Results", "none of these runs has a stored window"), _settings_table(runs)]
    compared = [
        ComparedResult(one.run, name, windows[one.run.run].results[name])
        for one in runs
        if one.run.run in windows
        for name in windows[one.run.run].subjects
    ]
    names = [f"{one.run.run}: {title_of(one.name)}" for one in compared]
    rows = tuple(
        TableRow(label, windows[one.run.run].rows[one.name]) for label, one in zip(names, compared, strict=True)
    )
    blocks: list[ReportBlock] = [Table("Results", "The first window of each run.", COLUMNS, rows, "Run and team")]
    missing = [one.run.run for one in runs if one.run.run not in windows]
    blocks += [Missing(listed(missing), "no window is stored")] if missing else []
    if len(compared) > 1:
        differences, problem = _paired(compared, names)
        shown = tuple(TableRow(label, _values(found)) for label, found in differences.items())
        blocks += [Table(f"Against {names[0]}", _CAPTION, _DIFFERENCE_COLUMNS, shown, tinted=True)] if shown else []
        blocks += [*_pictures(names[0], differences), *problem]
    accounts = {label: (one.result.times, one.result.equity) for label, one in zip(names, compared, strict=True)}
    blocks.append(Picture("Equity", _EQUITY, charts.accounts_chart(accounts, "return since the start")))
    return [*blocks, _settings_table(runs)]


def _paired(
    compared: Sequence[ComparedResult], names: Sequence[str] = ()
) -> tuple[dict[str, PairedDifference], list[Missing]]:
    """The differences of all but the first, by `names` (default: their own); or why there are none."""
    labels = list(names or [one.name for one in compared])
    try:
        return dict(zip(labels[1:], paired_differences(compared), strict=True)), []
    except (DataError, UserError) as error:
        return {}, [Missing("Differences", str(error))]


def _values(difference: PairedDifference | None) -> dict[str, Any]:
    """The values of `_DIFFERENCE_COLUMNS`; nothing for the first, which is not compared with itself."""
    if difference is None:
        return {}
    return {
        "wealth": difference.wealth.value,
        "interval": interval_text(difference.wealth, "change"),
        "sharpe_gap": difference.sharpe,
        "p_value": difference.p_value,
        "adjusted": difference.adjusted,
    }


def _pictures(first: str, differences: Mapping[str, PairedDifference]) -> list[Picture]:
    caption = "An interval wholly right of 0: better on this window. One that includes 0: the window does not tell."
    title = f"Final wealth over that of {first}"
    return [Picture(title, caption, wealth_chart(differences))] if differences else []


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
        named = dict(zip(self._names, self.compared, strict=True))
        titled = {title_of(name): row for name, row in self._rows.items()}
        rows = tuple(TableRow(title, _values(row)) for title, row in titled.items())
        differences = Table("Against the first", _CAPTION, _DIFFERENCE_COLUMNS, rows, tinted=True)
        results = tuple(
            TableRow(title_of(name), one.result.metrics, main=one is self.compared[0]) for name, one in named.items()
        )
        accounts = {title_of(name): (one.result.times, one.result.equity) for name, one in named.items()}
        equity = Picture("Equity", _EQUITY, charts.accounts_chart(accounts, "return since the start"))
        sections = [
            ReportSection("Differences", (differences, *_pictures(title_of(self._names[0]), titled))),
            ReportSection("Results", (Table("Results", "", COLUMNS, results), equity)),
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
