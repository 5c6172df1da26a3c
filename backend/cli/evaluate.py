"""`cryptosentinel evaluate` and `demo`: the effect of a training, measured on held-out data.

`cryptosentinel doctor`: what the metrics of a training run say about its health."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from backend.cli.console import (
    comparison_table,
    console,
    difference_line,
    print_account,
    print_notes,
    value_table,
)
from backend.cli.options import RecordOptions, StoreOption, grouped
from backend.cli.progress import bars
from backend.runs.requests import STORE, EvaluateRequest, RunRequest, RunStart

if TYPE_CHECKING:  # they import the database and torch
    from backend.runs.outcomes import EvaluationOutcome


@grouped
def evaluate(request: EvaluateRequest, recorded: RecordOptions) -> None:
    """Measure a trained team against the initial team, its teacher and the baselines on held-out data."""
    request.check()
    from backend.runs.evaluation import evaluate_team

    def announce(start: RunStart) -> None:
        print_notes(start.notes)
        print_account(start)

    with bars(announce) as shown:
        outcome = evaluate_team(request, recorded.store, recorded.runs, shown)
    _print_outcome(outcome)


@grouped
def demo(
    request: RunRequest,
    recorded: RecordOptions,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=0,
            max=64,
            help="Processes that share the work; 0: one a core, training.shards at most. The result is the same.",
        ),
    ] = 0,
) -> None:
    """The whole loop in minutes: make a market, train a team in it, and measure the effect."""
    request.check()
    from backend.runs.demo import run_demo

    with bars() as shown:
        outcome = run_demo(request, recorded.store, recorded.runs, shown, workers or None)
    _print_outcome(outcome)
    console.print(f"next: cryptosentinel backtest --team {outcome.folder}, or make ui")


def _print_outcome(outcome: EvaluationOutcome) -> None:
    """What decisions are worth, or where that is not known the held-out windows; then the verdict."""
    if outcome.value is not None:
        console.print(value_table(outcome.value))
    else:
        console.print(comparison_table("Held out", outcome.held_out))
        console.print(difference_line(outcome.held_out))
    console.print(f"\n{outcome.verdict}\n", style="bold")
    console.print(f"report: {outcome.page}")


def doctor(
    run: Annotated[
        str,
        typer.Argument(help="A run, as `cryptosentinel runs` lists it, or its folder; also while it runs."),
    ],
    store: StoreOption = STORE,
) -> None:
    """Say what is wrong with a training run, and what to try."""
    from backend.evaluation.doctor import examine_run
    from backend.store.store import Store

    with Store.open(store) as opened:
        found = examine_run(opened, Path(run).name)  # a run's folder bears its id
    console.print(f"{found.run}: {found.steps} steps: {found.verdict()}")
    for role, reasons in found.failures.items():
        ranked = sorted(reasons.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{reason[:60]} {count}" for reason, count in ranked[:5])
        console.print(f"{role}: invalid because of {shown}")
    for one in found.findings:
        lasted = f"step {one.step}" if one.until == one.step else f"from step {one.step} to {one.until}"
        name = Text(f"{one.severity}: {one.rule}", style="bold")
        console.print(Text.assemble(name, f", {one.role or 'team'}, {lasted}, at {one.value:.4g}"))
        console.print(f"  when: {one.condition}")
        console.print(f"  try: {one.advice}")
    if found.too_short:
        shown = ", ".join(f"{rule} ({steps})" for rule, steps in found.too_short.items())
        console.print(f"not judged yet, with the steps they still need: {shown}")
