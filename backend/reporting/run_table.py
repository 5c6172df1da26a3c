"""Runs as rows of a table, and several of them side by side: what each was, what came of it, and how they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.decisions.backtest_document import BacktestDocument
from backend.reporting import charts
from backend.reporting.blocks import Missing, Picture, ReportBlock, Table, TableRow
from backend.reporting.labels import COLUMNS, Column, listed, title_of
from backend.reporting.run_summary import RunSummary, WindowResult
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store

_MOST_SETTINGS = 60  # that differ, in a comparison


@dataclass(frozen=True)
class RunRow:
    """A run in a line. What it did not get to, or what a run of its kind does not have, is None or empty.

    `total_return`, `sharpe`, `max_drawdown` and `costs` (a share of the start) are of the first team of a backtest, or
    means over the held-out windows of an evaluation. `certainty` is the probability that the true Sharpe ratio is above
    0. `difference` is the trained team less the warm-started one with its 95 % interval, of an evaluation, and the
    return less that of holding, without one, of a backtest.
    """

    run: str
    kind: str
    status: str
    started_at: int
    seed: int
    teams: str
    data: str
    total_return: float | None = None
    sharpe: float | None = None
    certainty: float | None = None
    max_drawdown: float | None = None
    costs: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    verdict: str = ""

    def mentions(self, words: str) -> bool:
        """Whether each of the words is somewhere in the row."""
        said = " ".join((self.run, self.kind, self.status, self.teams, self.data, self.verdict)).casefold()
        return all(word in said for word in words.casefold().split())


def run_row(store: Store, run: RunRecord) -> RunRow:
    """The row of a run, for which little of its records is read. Raises `StoreError` where the store fails."""
    settings = run.config.get("config")
    market = settings.get("market") if isinstance(settings, dict) else None
    stated = run.config.get("teams")
    teams = [str(name) for name in stated] if isinstance(stated, list) else []
    found: dict[str, Any] = {}
    try:
        found = _of_backtest(store, run.run, teams[0]) if teams else _of_evaluation(store, run.run)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        found = {"verdict": "its records cannot be read"}
    except StoreError as error:
        if run.status == "deleting":
            raise
        found = {"verdict": str(error)[:200]}
    if run.message and run.status != "finished":
        found["verdict"] = run.message
    return RunRow(
        run.run,
        run.kind,
        run.status,
        run.started_at,
        run.seed,
        listed([title_of(name) for name in teams]) if teams else "",
        str(market.get("data") or "synthetic market") if isinstance(market, dict) else "",
        **found,
    )


def _of_backtest(store: Store, run: str, main: str) -> dict[str, Any]:
    documents = {
        record.name: BacktestDocument.from_json(record.result, f"backtest {record.name} in run {run}")
        for name in dict.fromkeys((main, "hold"))
        for record in store.backtests(run, name)
    }
    own, hold = documents.get(main), documents.get("hold")
    if own is None:
        return {}
    against = own.total_return - hold.total_return if hold is not None and main != "hold" else None
    return {
        "total_return": own.total_return,
        "sharpe": own.metrics.get("sharpe"),
        "certainty": own.metrics.get("probabilistic_sharpe"),
        "max_drawdown": own.metrics.get("max_drawdown"),
        "costs": sum(own.costs.values()) / own.equity[0],
        "difference": against,
        "verdict": "" if own.lookahead is None else own.lookahead.text,
    }


def _of_evaluation(store: Store, run: str) -> dict[str, Any]:
    newest = {record.name: record.result for record in store.evaluations(run)}
    held_out, closing = newest.get("held_out", {}), newest.get("summary", {})
    rows = held_out.get("rows", {})
    own = rows.get("trained") or {}
    difference = held_out.get("difference") or {}
    low, high = difference.get("ci95") or (None, None)
    return {
        "total_return": own.get("total_return"),
        "sharpe": own.get("sharpe"),
        "max_drawdown": own.get("max_drawdown"),
        "costs": own.get("costs"),
        "difference": difference.get("mean"),
        "interval": None if low is None or high is None else (float(low), float(high)),
        "verdict": str(closing.get("verdict") or ""),
    }


def compared(runs: Sequence[RunSummary]) -> list[ReportBlock]:
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
