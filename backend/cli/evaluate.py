"""`cryptosentinel evaluate` and `demo`: the effect of a training, measured on held-out data.

`cryptosentinel doctor`: what the metrics of a training run say about its health."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from backend.cli.console import (
    comparison_table,
    console,
    difference_line,
    narrow_table,
    print_account,
    print_notes,
    value_table,
)
from backend.cli.options import (
    BaselinesOption,
    ConfigOption,
    MarketOptions,
    RecordOptions,
    SetOption,
    StoreOption,
    baseline_names,
    grouped,
)
from backend.cli.parts.progress import bars
from backend.runs.requests import STORE, EvaluateRequest, RunRequest, RunStart
from simulator.errors import UserError
from simulator.files import write_whole

if TYPE_CHECKING:  # they import the database and torch
    from backend.evaluation.doctor import Examination
    from backend.runs.outcomes import EvaluationOutcome

# What `doctor` shows, as (metric, words); `{role}/` stands before those of a role.
ROLE_ROWS = (
    ("reward/mean", "reward"),
    ("reward/std", "reward, sigma"),
    ("reward/format_share", "format's share of it"),
    ("reward/outcome_share", "outcome's share of it"),
    ("expert/mean", "expert score"),
    ("valid", "valid answers"),
    ("practice/valid", "valid in practice"),
    ("degenerate_share", "groups without spread"),
    ("calls", "calls a rollout"),
    ("silent_steps", "steps without a call"),
    ("calls/efficiency", "effective calls"),
    ("length", "sampled tokens a call"),
    ("truncated", "cut off"),
    ("entropy", "entropy, nats"),
    ("kl", "KL, nats"),
    ("clip_share", "clipped"),
    ("ratio/max", "largest ratio"),
    ("engine_gap", "engine gap, nats"),
    ("grad_norm", "gradient norm"),
    ("skipped_updates", "skipped updates"),
)
TEAM_ROWS = (
    ("team/outcome", "outcome"),
    ("validation/outcome", "outcome, validation"),
    ("team/train_gap", "training minus validation"),
    ("team/net_return", "net return"),
    ("team/hold_share", "decisions without order"),
    ("validation/hold_share", "the same, validation"),
    ("team/exposure", "exposure"),
    ("team/net_exposure", "net exposure"),
    ("team/timing", "exposure with move"),
    ("rollbacks", "rollbacks so far"),
)


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
    gate: Annotated[
        bool, typer.Option("--gate", help="Judge it by the rules of `gate` and record that: exit code 1 if not passed.")
    ] = False,
    in_sample: Annotated[
        bool,
        typer.Option(
            "--in-sample", help="Measure on windows that it was trained on, too, and mark the result for ever."
        ),
    ] = False,
) -> None:
    """Measure a trained team against the initial team, its teacher and the baselines on held-out data."""
    request = EvaluateRequest(
        folder=folder,
        config=config,
        overrides=tuple(set_ or ()),
        baselines=baseline_names(baselines),
        gate=gate,
        in_sample=in_sample,
        **market.given(),
    )

    request.check()
    from backend.runs.evaluation import evaluate_team

    def announce(start: RunStart) -> None:
        print_notes(start.notes)
        print_account(start)

    with bars(announce) as shown:
        outcome = evaluate_team(request, recorded.store, recorded.runs, shown)
    _print_outcome(outcome)
    if outcome.gate is not None:
        for rule in outcome.gate.rules:
            console.print(f"{'pass' if rule.passed else 'FAIL'}  {rule.name}: {rule.sentence}", soft_wrap=True)
        console.print(outcome.gate.sentence())
        if not outcome.gate.passed:
            raise typer.Exit(1)


@grouped
def demo(
    recorded: RecordOptions,
    config: ConfigOption = "demo",
    set_: SetOption = None,
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
    request = RunRequest(config=config, overrides=tuple(set_ or ()))
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
    json_: Annotated[Path | None, typer.Option("--json", help="Write all of it to this file, too.")] = None,
) -> None:
    """Say what is wrong with a training run, and what to try: a table per role, and the findings."""
    from backend.evaluation.doctor import examine_run
    from backend.store.store import Store

    with Store.open(store) as opened:
        found = examine_run(opened, Path(run).name)  # a run's folder bears its id
    show(found)
    if json_ is not None:
        try:
            json_.parent.mkdir(parents=True, exist_ok=True)
            write_whole(json_, json.dumps(found.to_dict(), indent=2) + "\n")
        except OSError as error:
            raise UserError(f"{json_} cannot be written ({error.strerror}): give another file with --json") from error
        console.print(f"all of it: {json_}")


def show(found: Examination) -> None:
    """Print an examination."""
    from cryptosentinel.agents.registry import ROLES

    console.print(f"{found.run}: {found.steps} steps; means of the first and the last third of them")
    for role in ROLES:
        table = _table(found, role, [(f"{role}/{name}", words) for name, words in ROLE_ROWS])
        if table.row_count:
            console.print(table)
        if found.failures.get(role):
            ranked = sorted(found.failures[role].items(), key=lambda item: -item[1])
            reasons = ", ".join(f"{reason[:60]} {count}" for reason, count in ranked[:5])
            console.print(f"{role}: invalid because of {reasons}")
    console.print(_table(found, "team", TEAM_ROWS))
    console.print(found.verdict())
    for one in found.findings:
        lasted = f"step {one.step}" if one.until == one.step else f"from step {one.step} to {one.until}"
        name = Text(f"{one.severity}: {one.rule}", style="bold")
        console.print(Text.assemble(name, f", {one.role or 'team'}, {lasted}, at {one.value:.4g}"))
        console.print(f"  when: {one.condition}")
        console.print(f"  try: {one.advice}")
    if found.too_short:
        console.print(f"not judged yet, with the steps they still need: {_steps_missing(found)}")


def _steps_missing(found: Examination) -> str:
    """The rules that need more steps, and for whom."""
    shown = []
    for rule, by_role in found.too_short.items():
        missing = ", ".join(f"{role or 'team'} {count}" for role, count in by_role.items())
        shown.append(f"{rule} ({missing})")
    return "; ".join(shown)


def _table(found: Examination, title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """What is known of the metrics, a line each."""
    table = narrow_table(title)
    for heading in ("first", "last", "least", "largest", "steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, words in rows:
        known = found.summaries.get(name)
        if known is not None:
            numbers = (known.first, known.last, known.low, known.high)
            table.add_row(words, *(f"{number:.3g}" for number in numbers), str(known.points))
    return table
