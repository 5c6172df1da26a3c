"""The commands of `cryptosentinel check`: does a strategy or a team look ahead, and how much history does it need?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from backend.cli.console import console, print_notes
from backend.cli.options import MarketOptions, WindowOptions, grouped
from backend.cli.parts.progress import bars
from backend.config.base import split_names
from backend.runs.requests import CheckRequest
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # imported inside the commands: torch takes seconds, and `--help` should not
    from backend.runs.check import CheckCase
    from simulator.checks.lookahead import LookaheadFinding

_SHOWN = 10  # findings in the table; the file has all
_LONGEST = 60  # characters of a value in the table

check_app = typer.Typer(
    help="Check a strategy or a team: look-ahead, and the history it needs. Exit code 1 where something is found.",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class SubjectOptions:
    """What is checked, how often, and where the report goes."""

    strategy: Annotated[
        str, typer.Option("--strategy", help="A strategy's name, or your own: my_module:MyStrategy, from this folder.")
    ] = ""
    team: Annotated[str, typer.Option("--team", help="'scripted' or the folder of a training run.")] = ""
    times: Annotated[int, typer.Option("--times", min=2, help="How many decisions to test.")] = 20
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the tested times, of the altered markets and of sampling.")
    ] = 1
    out: Annotated[Path | None, typer.Option("--out", help="File to write the whole report to, as JSON.")] = None


@check_app.command("lookahead")
@grouped
def lookahead(
    market: MarketOptions,
    window: WindowOptions,
    subject: SubjectOptions,
    draws: Annotated[int, typer.Option("--draws", min=0, help="Altered markets for each of the times.")] = 3,
) -> None:
    """Decide on markets that end, or become another one, after a time: nothing decided up to it may change."""
    _check_out(subject.out)
    case = _case(subject, market, window)
    from backend.runs.check import history_verdict
    from simulator.checks.lookahead import check_lookahead

    _announce(case)
    with bars() as shown:
        report = check_lookahead(
            case.drive, case.market, case.window, times=subject.times, draws=draws, seed=subject.seed,
            on_progress=lambda done, total: shown.progress("times", done, total), **case.account,
        )  # fmt: skip
        verdict = None
        if not report.findings:  # what differs in this window already needs no look at the rest of the history
            verdict = history_verdict(
                case, subject.seed, lambda done, total: shown.progress("parts of the history", done, total)
            )
    clean = report.clean and (verdict is None or verdict.status == "clean")
    whole = None if verdict is None else {**verdict.to_dict(), "text": verdict.sentence()}
    _write(
        subject.out,
        {"check": "lookahead", **case.describe(), **report.to_dict(), "clean": clean, "whole_history": whole},
    )
    console.print(
        f"{report.comparisons} decisions compared, at {len(report.times)} times, each with the market cut off and "
        f"{report.draws} altered markets; {report.with_orders} of these times had orders; seed {report.seed}"
    )
    if report.findings:
        console.print(_findings_table(f"{case.name}: {len(report.findings)} findings", report.findings))
        first = report.findings[0]
        console.print(
            f"{case.name} depends on what was not known, first at {format_time(first.time)} UTC (bar {first.bar})."
            if first.kind != "not_repeatable"
            else f"{case.name} decides otherwise on the very same data: fix its seed, and check again.",
        )
        raise typer.Exit(1)
    if not report.with_orders:
        console.print("note: no order was sent at any of these times, which proves little; choose another window")
    if verdict is not None:
        console.print(f"{case.name}: {verdict.sentence()}")
        if verdict.status != "clean":
            raise typer.Exit(1)
        return
    console.print(f"{case.name}: no look-ahead found")


@check_app.command("recursion")
@grouped
def recursion(
    market: MarketOptions,
    window: WindowOptions,
    subject: SubjectOptions,
    warm_up: Annotated[
        str, typer.Option("--warm-up", help="Lengths of history to try, in bars, with commas.")
    ] = "121,200,400,800",
) -> None:
    """Decide with histories that begin later: from how many bars on does more history change nothing?"""
    from backend.training.curriculum.queries import WARM_UP_BARS
    from simulator.backtest.run import Window
    from simulator.checks.recursion import check_recursion

    lengths = _lengths(warm_up)
    _check_out(subject.out)
    case = _case(subject, market, window, greedy=True)
    # A strategy that keeps state must be able to begin as early as the longest history.
    asked = case.window
    early = max(0, min(max(lengths), asked.start - WARM_UP_BARS)) // asked.decide_every * asked.decide_every
    longer = Window(asked.start - early, asked.stop, asked.decide_every)
    _announce(case)
    with bars() as shown:
        report = check_recursion(
            case.drive, case.market, longer, warm_ups=lengths, times=subject.times, first_time=asked.start,
            seed=subject.seed, on_progress=lambda done, total: shown.progress("times", done, total), **case.account,
        )  # fmt: skip
    document = {"check": "recursion", "clean": report.clean, "seed": subject.seed}
    _write(subject.out, {**document, **case.describe(), **report.to_dict()})
    table = Table("warm-up", "compared", "changed", "exposure", "first change", title=case.name, title_justify="left")
    for one in report.warm_ups:
        table.add_row(
            str(one.bars),
            str(one.compared),
            str(one.changed),
            f"{one.exposure_difference:.2g}",
            "-" if one.first is None else f"{format_time(one.first.time)} {one.first.symbol} {one.first.field}",
        )
    console.print(table)
    console.print(f"{report.with_orders} of the {len(report.times)} times had orders; exposure: largest difference")
    if report.settled is None:
        console.print(
            f"{case.name}: even {max(lengths)} bars of history do not decide as all of it does: load more, or let it "
            "look back a fixed number of bars",
        )
        raise typer.Exit(1)
    console.print(f"{case.name}: from {report.settled} bars of history on, more of it changes nothing")


def _case(subject: SubjectOptions, market: MarketOptions, window: WindowOptions, *, greedy: bool = False) -> CheckCase:
    request = CheckRequest(
        strategy=subject.strategy,
        team=subject.team,
        seed=subject.seed,
        greedy=greedy,
        **market.given(),
        **window.given(),
    )
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


def _findings_table(title: str, findings: tuple[LookaheadFinding, ...]) -> Table:
    table = Table("kind", "time (UTC)", "symbol", "field", "whole market", "altered market", title=title)
    table.title_justify = "left"
    for one in findings[:_SHOWN]:
        cells = (one.kind, format_time(one.time), one.symbol, one.field, _short(one.expected), _short(one.found))
        table.add_row(*cells)
    if len(findings) > _SHOWN:
        table.caption = f"and {len(findings) - _SHOWN} more; --out FILE.json has all"
    return table


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


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
