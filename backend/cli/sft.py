"""`cryptosentinel sft`: each role learns from the best conversations of a team, and is scored before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import bars, console, narrow_table
from backend.cli.options import ConfigOption, MarketOptions, SetOption, grouped
from backend.runs.requests import RUNS, SftRequest

if TYPE_CHECKING:  # it imports torch
    from backend.runs.outcomes import SftOutcome


@grouped
def sft(
    market: MarketOptions,
    config: ConfigOption = "demo",
    set_: SetOption = None,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Whose conversations are learned: 'scripted', 'warm_start' (the base itself), or the folder of a "
            "trained team. Repeatable; the best of all is kept.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run, which becomes a team.")] = RUNS / "sft",
) -> None:
    """Fine-tune each role: collect conversations, learn the best of them, score that on held-out states.

    Ctrl-C is safe: the same command goes on.
    """
    from backend.runs.train import fine_tune_roles

    request = SftRequest(
        config=config,
        overrides=tuple(set_ or ()),
        sources=tuple(from_ or ("scripted",)),
        folder=out,
        **market.given(),
    )
    with bars() as shown:
        outcome = fine_tune_roles(request, shown)
    console.print(_data_table(outcome))
    for role in outcome.counts:
        why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in outcome.dropped(role).items())
        console.print(f"{role}: dropped {why or 'none'}")
        if not outcome.counts[role]["train"]:
            console.print(f"note: {role} has nothing to learn from, so that it answers as the base does")
    console.print(_score_table(outcome.scores, outcome.config.sft.score_on))
    for role, losses in outcome.losses.items():
        if losses is not None:
            console.print(
                f"{role}: imitation loss on validation states {losses[0]:.3f} -> {losses[1]:.3f} nats a token"
            )
    console.print(f"the team is in {out}; try: cryptosentinel evaluate {out}", soft_wrap=True)


def _data_table(outcome: SftOutcome) -> Table:
    """What was collected and kept, by role."""
    table = narrow_table("Conversations")
    for heading in ("collected", "dropped", "kept", "train", "validation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role in outcome.counts:
        table.add_row(role, *(str(number) for number in outcome.conversations(role).values()))
    return table


def _score_table(scores: Mapping[str, Mapping[str, Any]], part: str) -> Table:
    """The roles' scores before and after."""
    states = max(score["states"] for score in scores.values())
    table = narrow_table(f"{part.replace('_', '-')} score of each role: means over up to {states} states")
    for heading in ("before", "after", "diff", "95 % interval", "scripted", "valid"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role, score in scores.items():
        difference = score["difference"]
        low, high = (None, None) if difference is None else difference["ci95"]
        table.add_row(
            role,
            _number(score["before"]),
            _number(score["after"]),
            "-" if difference is None else f"{difference['mean']:+.3f}",
            "-" if low is None or high is None else f"{low:+.3f} to {high:+.3f}",
            _number(score["reference"]),
            f"{score['valid_before']:.0%}-{score['valid_after']:.0%}",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
