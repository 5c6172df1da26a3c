"""The commands of `cryptosentinel check`: does a strategy or a team look ahead, and how much history does it need?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import console, print_notes
from backend.cli.options import grouped
from backend.cli.progress import bars
from backend.runs.requests import CheckRequest
from cryptosentinel.team_settings import split_names
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # imported inside the commands: torch takes seconds, and `--help` should not
    from backend.runs.check import CheckCase

check_app = typer.Typer(
    help="Check a strategy or a team: look-ahead, and the history it needs. Exit code 1 where something is found.",
    no_args_is_help=True,
)


OutOption = Annotated[Path | None, typer.Option("--out", help="File to write the whole report to, as JSON.")]


@check_app.command("lookahead")
@grouped
def lookahead(request: CheckRequest, out: OutOption = None) -> None:
    """Decide on markets that become another one after each decision: none may change. A strategy is tested over the
    whole history, a team over its window."""
    _check_out(out)
    case = _case(request)
    from backend.runs.check import case_verdict

    _announce(case)
    with bars() as shown:
        verdict = case_verdict(
            case, request.seed, lambda done, total: shown.progress("parts of the history", done, total)
        )
    clean = verdict.status == "clean"
    document = {"check": "lookahead", "clean": clean, "seed": request.seed, "data_hash": case.market.content_hash}
    _write(out, {**document, **case.describe(), **verdict.to_dict(), "text": verdict.sentence()})
    console.print(f"{case.name}: {verdict.sentence()}", soft_wrap=True)
    if not clean:
        raise typer.Exit(1)


@check_app.command("recursion")
@grouped
def recursion(
    request: CheckRequest,
    warm_up: Annotated[
        str, typer.Option("--warm-up", help="Lengths of history to try, in bars, with commas.")
    ] = "121,200,400,800",
    times: Annotated[int, typer.Option("--times", min=2, help="How many decisions to test.")] = 20,
    out: OutOption = None,
) -> None:
    """Decide with histories that begin later: from how many bars on does more history change nothing?"""
    from backend.training.curriculum.queries import WARM_UP_BARS
    from simulator.backtest.run import Window
    from simulator.checks.recursion import check_recursion

    lengths = _lengths(warm_up)
    _check_out(out)
    case = _case(replace(request, greedy=True))
    # A strategy that keeps state must be able to begin as early as the longest history.
    asked = case.window
    early = max(0, min(max(lengths), asked.start - WARM_UP_BARS)) // asked.decide_every * asked.decide_every
    longer = Window(asked.start - early, asked.stop, asked.decide_every)
    _announce(case)
    with bars() as shown:
        report = check_recursion(
            case.drive, case.market, longer, warm_ups=lengths, times=times, first_time=asked.start,
            on_progress=lambda done, total: shown.progress("times", done, total), **case.account,
        )  # fmt: skip
    document = {"check": "recursion", "clean": report.clean, "seed": request.seed}
    _write(out, {**document, **case.describe(), **report.to_dict()})
    table = Table("warm-up", "compared", "changed", "first change", title=case.name, title_justify="left")
    for one in report.warm_ups:
        table.add_row(
            str(one.bars),
            str(one.compared),
            str(one.changed),
            "-" if one.first is None else f"{format_time(one.first.time)} {one.first.symbol} {one.first.field}",
        )
    console.print(table)
    console.print(f"{report.with_orders} of the {len(report.times)} times had orders")
    if report.settled is None:
        console.print(
            f"{case.name}: even {max(lengths)} bars of history do not decide as all of it does: load more, or let it "
            "look back a fixed number of bars",
        )
        raise typer.Exit(1)
    console.print(f"{case.name}: from {report.settled} bars of history on, more of it changes nothing")


def _case(request: CheckRequest) -> CheckCase:
    request.check()
    from backend.runs.check import check_case

    case = check_case(request)
    print_notes(case.notes)
    return case


def _announce(case: CheckCase) -> None:
    document = case.describe()
    console.print(
        f"{case.name} on {case.market.source}: {', '.join(case.market.symbols)}, {case.market.timeframe} bars, "
        f"decisions every {case.window.decide_every} bars from {document['first_decision']} to "
        f"{document['last_decision']} UTC",
    )
    console.print(f"data {case.market.content_hash[:12]}")


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in split_names(text)})
    except ValueError:
        lengths = []
    if not lengths or lengths[0] < 1:
        raise UserError(f"--warm-up '{text}': give lengths in bars, at least 1 each, with commas, like 121,200,400")
    return lengths


def _check_out(out: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out}: give the path of a file in a folder that exists")


def _write(out: Path | None, report: dict[str, Any]) -> None:
    if out is None:
        return
    try:
        write_whole(out, json.dumps(report, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): give another file with --out") from error
    console.print(f"report: {out}")
