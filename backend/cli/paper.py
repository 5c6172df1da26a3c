"""`cryptosentinel paper`: sessions of a team or strategy on live or recorded data."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.console import console, narrow_table, print_account
from backend.cli.options import (
    RecordOptions,
    RunsOption,
    StoreOption,
    grouped,
)
from backend.cli.progress import bars
from backend.runs.requests import RUNS, STORE, PaperRequest, RunStart
from simulator.errors import UserError
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.paper.parity import Parity
    from backend.paper.sessions import PaperOutcome

paper_app = typer.Typer(
    help="Paper trading: a team or strategy on live or recorded data, filled by the simulator. No real money.",
    no_args_is_help=True,
)
SessionArgument = Annotated[str, typer.Argument(help="Id of the session, as `paper status` lists them.")]


@paper_app.command("run")
@grouped
def run_session(
    request: PaperRequest,
    recorded: RecordOptions,
    session: Annotated[str, typer.Option("--session", hidden=True)] = "",
) -> None:
    """Begin a session and follow it to its end. After any kill, `paper resume` continues it."""
    from backend.paper.sessions import run_paper

    with bars(_announce) as shown:
        outcome = run_paper(replace(request, session=session), recorded.store, recorded.runs, shown)
    _print(outcome)


@paper_app.command("resume")
def resume_session(
    session: SessionArgument,
    release: Annotated[bool, typer.Option("--release", help="Take the kill switch back first.")] = False,
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Continue a session that was stopped, or killed, with the same account."""
    from backend.paper.sessions import resume_paper

    with bars(_announce) as shown:
        outcome = resume_paper(session, store, runs, shown, released=release)
    _print(outcome)


@paper_app.command("status")
def show_status(
    session: Annotated[str, typer.Argument(help="Id of a session; without one, all are listed.")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 0 where the session is well, or finished; 1 where it is not.")
    ] = False,
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Show how a session stands, also one that runs elsewhere, or list all sessions."""
    from backend.paper.monitor import paper_problem
    from backend.paper.sessions import paper_sessions, paper_status
    from backend.paper.switch import process_of

    if check and not session:
        raise UserError("--check is of one session: give its id, as `paper status` lists them")
    if session:
        record, outcome = paper_status(session, store, runs)
        process = process_of(runs / session)
        where = f", process {process}" if process else ""
        console.print(f"session {session}: {record.status}{where}{f' ({record.message})' if record.message else ''}")
        _print(outcome)
        problem = paper_problem(record, runs / session, time.time()) if check else ""
        if problem:
            console.print(f"not well: {problem}")
            raise typer.Exit(1)
        return
    table = narrow_table("paper sessions")
    for heading in ("status", "begun", "why"):
        table.add_column(heading, no_wrap=True)
    for record in paper_sessions(store):
        table.add_row(record.run, record.status, format_time(record.started_at), record.message or "")
    console.print(table)


@paper_app.command("stop")
def stop_session(session: SessionArgument, runs: RunsOption = RUNS) -> None:
    """Ask a running session to stop. Its positions and orders stay as they are, and it can be resumed."""
    from backend.paper.switch import set_stop

    set_stop(_folder(session, runs))
    console.print(f"session {session} stops at once, or when its decision is made")


@paper_app.command("kill")
def kill_session(
    session: SessionArgument,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Withdraw what waits and keep positions; else everything is closed.")
    ] = False,
    runs: RunsOption = RUNS,
) -> None:
    """Set the kill switch: within a second nothing is decided any more, also while a model thinks."""
    from backend.paper.switch import set_kill

    set_kill(_folder(session, runs), "freeze" if freeze else "flatten")
    console.print(f"the kill switch of session {session} is set; `paper resume {session} --release` takes it back")


@paper_app.command("report")
def report_session(
    session: SessionArgument,
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Show what a session did, and whether a backtest of its recorded inputs does the same. A difference has exit code
    1."""
    from backend.paper.overview import keep_report
    from backend.paper.sessions import paper_parity, paper_status
    from backend.store.run_record import store_at

    record, outcome = paper_status(session, store, runs)
    console.print(f"session {session}: {record.status}{f' ({record.message})' if record.message else ''}")
    _print(outcome)
    with store_at(store) as opened:
        same = paper_parity(session, opened)
        keep_report(opened, session, same)
    _print_parity(same)


@paper_app.command("demo")
def run_demo(
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
    speed: Annotated[
        float | None,
        typer.Option("--speed", help="Times real time at which the week passes, 16000 if not given."),
    ] = None,
) -> None:
    """Trade the sample's last week in about a minute, killed three times and resumed, with its parity. It needs no
    network."""
    from backend.paper.demo import TIMES_REAL, paper_demo

    with bars() as shown:
        shown.message("the sample's last week, bar by bar; the session is killed three times and resumed")
        speed = TIMES_REAL if speed is None else speed
        made = paper_demo(store, runs, shown, speed=speed)
    console.print(f"a week in {made.seconds:.0f} s; kills: {made.kills}, each resumed from the journal")
    _print(made.outcome)
    if made.outcome.missed > made.outcome.decisions:
        console.print(
            f"most decisions came too late: this machine is slow or busy; try --speed {speed / 4.0:g}", soft_wrap=True
        )
    _print_parity(made.parity)


def _print_parity(found: Parity) -> None:
    """Print a comparison with the backtest; a difference ends the command with exit code 1."""
    from backend.paper.overview import parity_sentence

    console.print(parity_sentence(found))
    for what, count in found.inputs.items():
        if count:
            console.print(f"  played as recorded: {count} {what}")
    for difference in found.differences:
        console.print(f"  {difference}", soft_wrap=True)
    if found.differences:
        raise typer.Exit(1)


def _folder(session: str, runs: Path) -> Path:
    folder = runs / session
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such session; `cryptosentinel paper status` lists them")
    return folder


def _announce(start: RunStart) -> None:
    market, window = start.market, start.window
    assert window is not None
    first = format_time(int(market.open_time[window.start]) + market.interval)
    console.print(
        f"session {start.run}: {', '.join(market.symbols)}, {market.timeframe} bars, decisions every "
        f"{window.decide_every} bars from {first} UTC"
    )
    print_account(start)
    console.print(f"kill switch: cryptosentinel paper kill {start.run}, or a file {start.folder / 'KILL'}")


def _print(outcome: PaperOutcome) -> None:
    gained = 100.0 * (outcome.equity / outcome.begun_with - 1.0)
    held = ", ".join(f"{symbol} {quantity:.6g}" for symbol, quantity in outcome.positions.items() if quantity)
    console.print(
        f"{outcome.bars} bars, {outcome.decisions} decisions, {outcome.missed} missed, {outcome.fills} fills; equity "
        f"{outcome.equity:.2f} ({gained:+.2f} %), holding {held or 'nothing'}"
    )
    if outcome.met:
        console.print("met: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in outcome.met.items()))
    if outcome.why in ("stopped", "flatten", "freeze"):
        release = "" if outcome.why == "stopped" else " --release"
        console.print(f"{outcome.why}; continue with: cryptosentinel paper resume {outcome.run}{release}")
    elif outcome.why:
        console.print(f"{outcome.why}; compare with the backtest: cryptosentinel paper report {outcome.run}")
