"""`cryptosentinel backtest`: teams and strategies against the baselines over one window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from backend.cli.console import console, narrow_table, print_account, print_notes
from backend.cli.options import (
    BaselinesOption,
    MarketOptions,
    RecordOptions,
    WindowOptions,
    baseline_names,
    grouped,
)
from backend.cli.parts.progress import bars
from backend.runs.requests import BacktestRequest, RunStart
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.decisions.backtest_document import StoredBacktest
    from backend.reporting.run_summary import WindowResult
    from backend.statistics.bootstrap import Interval


@grouped
def backtest(
    market: MarketOptions,
    window: WindowOptions,
    recorded: RecordOptions,
    team: Annotated[
        list[str] | None,
        typer.Option(
            "--team",
            help="Who is tested: 'scripted', the folder of a training run, 'model' (one that was not trained, see "
            "engine.model; model=NAME, to compare several), a strategy like ema_cross, or your own as module:Class. "
            "Repeatable.",
        ),
    ] = None,
    baselines: BaselinesOption = "",
    finer: Annotated[
        str, typer.Option("--finer", help="Finer bars that decide what came first inside a bar: 1m, 5m.")
    ] = "",
    rules: Annotated[
        str,
        typer.Option("--rules", help="JSON file of the venue's rules; default: rules.json in --data. 'none' for none."),
    ] = "",
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling and of the random baseline.")] = 1,
    like: Annotated[
        str,
        typer.Option(
            "--like",
            help="A stored backtest whose data, window, costs, settings and seed are used; without --team also its "
            "teams.",
        ),
    ] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            help="Play this variant of each team besides: without:ROLE, scripted:ROLE, no_veto, unmasked, "
            "shuffled_news, shuffled_days, altered_future. Repeatable.",
        ),
    ] = None,
    unmasked: Annotated[
        bool, typer.Option("--unmasked", help="Play each team again with names and dates shown, and compare the two.")
    ] = False,
    in_sample: Annotated[
        bool,
        typer.Option(
            "--in-sample", help="Play a window that a team was trained on, too, and mark the result for ever."
        ),
    ] = False,
    check_lookahead: Annotated[
        bool,
        typer.Option(
            "--check-lookahead/--no-check-lookahead",
            help="End the backtest of your own strategy with the look-ahead verdict; a bad one has exit code 1.",
        ),
    ] = True,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            help="Record the team's calls in this file, NAME.jsonl. --team NAME.jsonl replays it. After an "
            "interruption, the same command continues and repeats no call.",
        ),
    ] = None,
) -> None:
    """Backtest teams and strategies against the baselines over one window, store every decision, and write a report."""
    request = BacktestRequest(
        teams=tuple(team or (() if like else ("scripted",))),
        variants=tuple(variant or ()),
        like=like,
        baselines=baseline_names(baselines),
        finer=finer,
        rules=rules,
        seed=seed,
        unmasked=unmasked,
        record=record,
        check_lookahead=check_lookahead,
        in_sample=in_sample,
        **market.given(),
        **window.given(),
    )
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
        console.print(f"{name}: {verdict.text}")
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
    from simulator.market.gaps import find_gaps

    market, window = start.market, start.window
    assert window is not None
    first, last = (format_time(int(market.open_time[bar]) + market.interval) for bar in (window.start, window.stop))
    console.print(
        f"{market.source}: {', '.join(market.symbols)}, {market.timeframe} bars, decisions every {window.decide_every} "
        f"bars from {first} to {last} UTC ({start.why_window})"
    )
    console.print(f"data: {find_gaps(market).summary()}")
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
