"""`cryptosentinel backtest`: teams and strategies against the baselines over one window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from backend.cli.console import console, narrow_table, print_account, print_notes
from backend.cli.options import RecordOptions, grouped
from backend.cli.progress import bars
from backend.runs.requests import BacktestRequest, RunStart
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.decisions.backtest_document import StoredBacktest
    from backend.reporting.run_summary import WindowResult
    from backend.statistics.bootstrap import Interval


@grouped
def backtest(request: BacktestRequest, recorded: RecordOptions) -> None:
    """Backtest teams and strategies against the baselines over one window, store every decision, and write a report.

    \b
    cryptosentinel backtest --team ema_cross                        a strategy on the sample
    cryptosentinel backtest --team runs/demo --data bars.csv        a trained team on your own bars
    cryptosentinel backtest --team buy:Mine --start 2021-01-01      your own strategy, in buy.py
    cryptosentinel backtest --like RUN --variant no_veto,unmasked   a stored backtest, changed
    """
    request.check()
    from backend.reporting.result_stats import inference_cost_line
    from backend.runs.backtest import backtest_teams

    shown_before: list[str] = []

    def announce(start: RunStart) -> None:
        _announce(start)
        shown_before.extend(start.notes)

    with bars(announce) as shown:
        outcome = backtest_teams(request, recorded.store, recorded.runs, shown)
    print_notes(note for note in outcome.notes if note not in shown_before)
    console.print(_result_table(outcome.run, outcome.summary.backtests))
    _print_evidence(outcome.summary.windows()[0])
    for stored in outcome.summary.backtests:
        line = inference_cost_line(stored.document)
        if line is not None:
            console.print(f"{stored.name}: {line}")
    console.print(f"report: {outcome.page}")
    verdicts = outcome.lookahead
    for name, verdict in verdicts.items():
        console.print(f"{name}: {verdict.sentence()}")
    console.print(Text(outcome.summary.windows()[0].title, "bold"), soft_wrap=True)
    if not all(verdict.trusted for verdict in verdicts.values()):
        raise typer.Exit(1)


def _print_evidence(window: WindowResult) -> None:
    """How sure the results are, or why that cannot be told."""

    def cell(interval: Interval | None, form: str, scale: int = 100) -> str:
        return "-" if interval is None else f"{scale * interval.low:{form}} to {scale * interval.high:{form}}"

    table = narrow_table("95 % intervals")
    for heading in ("return%", "Sharpe", "loss%", "over hold%", "P(S>0)"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, sure in window.evidence.items():
        found = sure.intervals
        if found is not None:
            table.add_row(
                name,
                cell(found.total_return, "+.0f"),
                cell(found.sharpe, ".1f", 1),
                cell(found.max_drawdown, ".0f"),
                cell(found.against, "+.0f"),
                f"{sure.deflated:.2f}",
            )
    if table.row_count:
        console.print(table)
        ways = "1 way of trading was" if window.trials == 1 else f"{window.trials} ways of trading were"
        console.print(
            f"P(S>0): probability that the true Sharpe ratio is above 0; {ways} tried on this data and window",
            soft_wrap=True,
        )
    for name, sure in window.evidence.items():
        if sure.intervals is None:
            console.print(f"{name}: no interval, {sure.problem}", soft_wrap=True)


def _announce(start: RunStart) -> None:
    """What is about to be played, at which costs, and what a reader must know."""
    from simulator.market.gaps import gap_summary

    market, window = start.market, start.window
    assert window is not None
    first, last = (format_time(int(market.open_time[bar]) + market.interval) for bar in (window.start, window.stop))
    console.print(
        f"{market.source}: {', '.join(market.symbols)}, {market.timeframe} bars, decisions every {window.decide_every} "
        f"bars from {first} to {last} UTC ({start.why_window})"
    )
    console.print(f"data: {gap_summary(market)}")
    print_account(start)
    print_notes(start.notes)


def _result_table(run: str, backtests: Sequence[StoredBacktest]) -> Table:
    """The results, the best return first."""
    table = narrow_table(f"run {run}")
    for heading in ("return%", "Sharpe", "loss%", "expo", "trades", "long", "costs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stored in sorted(backtests, key=lambda stored: -stored.document.total_return):
        metrics = stored.document.metrics
        table.add_row(
            stored.name,
            f"{100 * metrics['total_return']:+.2f}",
            f"{metrics['sharpe']:.2f}",
            f"{100 * metrics['max_drawdown']:.1f}",
            f"{metrics['exposure']:.2f}",
            f"{metrics['trades']:.0f}",
            f"{metrics['long_share']:.2f}",
            f"{sum(stored.document.costs.values()):.2f}",
        )
    return table
