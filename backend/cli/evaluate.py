"""`cryptosentinel evaluate` and `demo`: what a training changed, measured on held-out windows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backend.cli.console import bars, comparison_table, console, difference_line, print_account, print_notes
from backend.cli.options import (
    BaselinesOption,
    ConfigOption,
    MarketOptions,
    RecordOptions,
    SetOption,
    baseline_names,
    grouped,
)
from backend.runs.requests import EvaluateRequest, RunRequest, RunStart


@grouped
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished training run, such as runs/demo.")],
    market: MarketOptions,
    recorded: RecordOptions,
    config: Annotated[
        str, typer.Option("--config", "-c", help="A preset or TOML file; default: the configuration of the run.")
    ] = "",
    set_: SetOption = None,
    baselines: BaselinesOption = "",
) -> None:
    """Measure a trained team against its warm start and the baselines on held-out windows, with an interval."""
    from backend.runs.evaluation import evaluate_team

    request = EvaluateRequest(
        folder=folder,
        config=config,
        overrides=tuple(set_ or ()),
        baselines=baseline_names(baselines),
        **market.given(),
    )

    def announce(start: RunStart) -> None:
        print_notes(start.notes)
        print_account(start)

    with bars(announce) as shown:
        outcome = evaluate_team(request, recorded.store, recorded.runs, shown)
    console.print(comparison_table("Held out", outcome.held_out))
    console.print(difference_line(outcome.held_out))
    console.print(outcome.verdict)
    console.print(f"report: {outcome.report}")


@grouped
def demo(recorded: RecordOptions, config: ConfigOption = "demo", set_: SetOption = None) -> None:
    """The whole loop in minutes: make a market, train a team in it, and measure what that changed."""
    from backend.runs.demo import run_demo

    request = RunRequest(config=config, overrides=tuple(set_ or ()))
    with bars() as shown:
        outcome = run_demo(request, recorded.store, recorded.runs, shown)
    for title, evaluation in (("Held out", outcome.held_out), ("No-edge twin", outcome.no_edge)):
        if evaluation is not None:
            console.print(comparison_table(title, evaluation))
            console.print(difference_line(evaluation))
    console.print(f"\n{outcome.verdict}\n", style="bold")
    console.print(f"report: {outcome.report}\nnext: make ui, or cryptosentinel backtest --team {outcome.folder}")
