"""`cryptosentinel sft`: each role learns from the best conversations of a team, and is scored before and after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import bars, console, narrow_table
from backend.cli.data import SymbolsOption
from backend.cli.options import (
    ConfigOption,
    DataOption,
    FundingOption,
    NewsOption,
    ResampleOption,
    SetOption,
    TimeframeOption,
    with_market,
)
from backend.config.load import load_config
from simulator.errors import Interrupted


def sft(
    config: ConfigOption = "demo",
    set_: SetOption = None,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Who is learnt from: 'scripted', 'warm_start' (the base itself), or the folder of a trained team. "
            "Repeatable; the best of all is kept.",
        ),
    ] = None,
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    funding: FundingOption = None,
    news: NewsOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run, which becomes a team.")] = Path("runs/sft"),
) -> None:
    """Fine-tune each role: collect conversations, learn the best of them, score that on held-out states.

    Ctrl-C is safe: the same command goes on.
    """
    from backend.builders.market import load_market
    from backend.training.sft.datasets import DROPPED
    from backend.training.sft_job import run_sft

    settings = with_market(load_config(config, set_ or []), data, symbols, timeframe, resample, funding, news)
    market = load_market(settings.market, settings.costs)
    try:
        with bars() as shown:
            result = run_sft(settings, market, from_ or ["scripted"], out, shown.report)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; what is in {out} is kept, and the same command goes on from here") from None
    console.print(_data_table(result.manifest["counts"]))
    for role, count in result.manifest["counts"].items():
        why = ", ".join(f"{count[reason]} {reason.replace('_', ' ')}" for reason in DROPPED if count[reason])
        console.print(f"{role}: dropped {why or 'none'}")
        if not count["train"]:
            console.print(f"note: {role} has nothing to learn from, so that it answers as the base does")
    console.print(_score_table(result.scores, settings.sft.score_on))
    for role, losses in result.losses.items():
        if losses is not None:
            console.print(
                f"{role}: imitation loss on validation states {losses[0]:.3f} -> {losses[1]:.3f} nats a token"
            )
    console.print(f"the team is in {out}; try: cryptosentinel evaluate {out}", soft_wrap=True)


def _data_table(counts: Mapping[str, Mapping[str, int]]) -> Table:
    """What was collected and kept, by role."""
    table = narrow_table("Conversations")
    for heading in ("collected", "dropped", "kept", "train", "validation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role, count in counts.items():
        dropped = count["collected"] - count["kept"]
        row = (count["collected"], dropped, count["kept"], count["train"], count["validation"])
        table.add_row(role, *(str(number) for number in row))
    return table


def _score_table(scores: Mapping[str, Mapping[str, Any]], part: str) -> Table:
    """The roles' scores before and after."""
    states = max(score["states"] for score in scores.values())
    table = narrow_table(f"{part.replace('_', '-')} score of each role: means over up to {states} states")
    for heading in ("before", "after", "diff", "95 % interval", "scripted", "valid"):
        table.add_column(heading, justify="right", no_wrap=True)
    for role, score in scores.items():
        found = score["difference"]
        low, high = (None, None) if found is None else found["ci95"]
        table.add_row(
            role,
            _number(score["before"]),
            _number(score["after"]),
            "-" if found is None else f"{found['mean']:+.3f}",
            "-" if low is None or high is None else f"{low:+.3f} to {high:+.3f}",
            _number(score["reference"]),
            f"{score['valid_before']:.0%}-{score['valid_after']:.0%}",
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
