"""`cryptosentinel paper`: sessions of a team on data that goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.console import console, narrow_table, print_account
from backend.cli.options import (
    MarketOptions,
    RecordOptions,
    RunsOption,
    StoreOption,
    WindowOptions,
    arguments_of,
    grouped,
)
from backend.cli.parts.progress import bars
from backend.runs.requests import RUNS, STORE, RunStart
from simulator.errors import UserError
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # the database takes its time
    from backend.paper.parity import Parity
    from backend.paper.sessions import PaperOutcome
    from backend.store.records import RunRecord

paper_app = typer.Typer(
    help="Paper trading: a team on data that goes on, with the simulator's exchange as the broker. No real money.",
    no_args_is_help=True,
)
SessionArgument = Annotated[str, typer.Argument(help="Id of the session, as `paper status` lists them.")]


@dataclass(frozen=True)
class SessionOptions:
    """Who trades, and on what data beside recorded bars."""

    team: Annotated[
        str, typer.Option("--team", help="Who trades: 'scripted', 'model' (see engine.model), or a training's folder.")
    ] = "scripted"
    shadow: Annotated[
        str,
        typer.Option("--shadow", help="A second team, named as --team: it decides on the same bars but never trades."),
    ] = ""
    exchange: Annotated[
        str,
        typer.Option("--exchange", help="Exchange whose live data is traded on, by its name in ccxt: binance, kraken."),
    ] = ""
    url: Annotated[str, typer.Option("--url", help="Server to ask instead of the exchange's own.")] = ""
    broker: Annotated[
        str, typer.Option("--broker", help="Who fills: simulated (default), or sandbox: its test network beside that.")
    ] = ""
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling.")] = 1


@paper_app.command("run")
@grouped
def run_session(
    market: MarketOptions,
    window: WindowOptions,
    recorded: RecordOptions,
    options: SessionOptions,
    session: Annotated[str, typer.Option("--session", hidden=True)] = "",
) -> None:
    """Begin a session and follow it to its end. It outlives any kill: `paper resume` goes on where its journal ends."""
    from backend.paper.sessions import PaperRequest, run_paper

    request = PaperRequest(session=session, **vars(options), **market.given(), **window.given())
    with bars(_announce) as shown:
        outcome = run_paper(request, recorded.store, recorded.runs, shown)
    _print(outcome)


@paper_app.command("start")
@grouped
def start_session(
    market: MarketOptions, window: WindowOptions, recorded: RecordOptions, options: SessionOptions
) -> None:
    """Begin a session in the background and return once it has begun. Its log is in its folder; `paper status`, `stop`
    and `kill` are as for one in the foreground."""
    from backend.paper.background import LOG_FILE, start_in_background
    from backend.store.run_record import new_run_id

    session = new_run_id("paper")
    folder = recorded.runs / session
    given = [part for group in (market, window, recorded, options) for part in arguments_of(group)]
    process = start_in_background(["paper", "run", "--session", session, *given], folder)
    console.print(f"session {session} runs in the background as process {process}; its log: {folder / LOG_FILE}")
    console.print(f"end it with: cryptosentinel paper stop {session}")


@paper_app.command("resume")
def resume_session(
    session: SessionArgument,
    release: Annotated[bool, typer.Option("--release", help="Take the kill switch back first.")] = False,
    shadow: Annotated[
        str,
        typer.Option("--shadow", help="From now on the second team, which never trades; any other ends."),
    ] = "",
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Go on with a session that was stopped, or killed, with the same account."""
    from backend.paper.sessions import resume_paper

    with bars(_announce) as shown:
        outcome = resume_paper(session, store, runs, shown, released=release, shadow=shadow)
    _print(outcome)


@paper_app.command("promote")
def promote_shadow(
    session: SessionArgument,
    team: Annotated[
        str, typer.Option("--team", help="Folder of the shadow, to be sure which it is; default: the session's shadow.")
    ] = "",
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Let the shadow of a session trade in the place of its team, from the next decision on. It must have passed
    `evaluate --gate` with the same files, and have decided often enough as the shadow."""
    from backend.paper.promotion.check import promotable
    from backend.paper.promotion.request import request_promotion
    from backend.paper.records.stored import newest_entries, session_record
    from backend.store.run_record import own_config, store_at

    with store_at(store) as opened:
        record = session_record(opened, session)
        _, entries = newest_entries(opened, session)
        if entries and entries[-1].kind == "end":
            why = entries[-1].document["why"]
            raise UserError(f"session {session} is over ({why}): begin another one with --team {team or 'FOLDER'}")
        proof = promotable(opened, record, own_config(record), team)
    folder = _folder(session, runs)
    console.print(proof.comparison, soft_wrap=True)
    console.print(f"{proof.team} passed the gate in {proof.gate} and decided {proof.decisions} times as {proof.shadow}")
    request_promotion(folder, proof.team, proof.digest)
    when = "at its next decision" if record.status == "running" else f"after `cryptosentinel paper resume {session}`"
    console.print(f"it takes the place in session {session} {when}, once the session has checked the same")


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
    from backend.paper.background import process_of
    from backend.paper.monitor import paper_problem
    from backend.paper.sessions import paper_sessions, paper_status

    if check and not session:
        raise UserError("--check is of one session: give its id, as `paper status` lists them")
    if session:
        record, outcome = paper_status(session, store, runs)
        process = process_of(runs / session)
        where = f", process {process}" if process else ""
        console.print(f"session {session}: {record.status}{where}{f' ({record.message})' if record.message else ''}")
        _print(outcome)
        _print_shadow(record, store, runs)
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
    parity: Annotated[
        bool, typer.Option("--parity/--no-parity", help="Play the recorded inputs through the backtest and compare.")
    ] = True,
    drift: Annotated[
        bool, typer.Option("--drift/--no-drift", help="Compare each week with a backtest of the bars before it.")
    ] = True,
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
) -> None:
    """Show what a session did, whether each week is what a backtest lets one expect, and whether a backtest of its
    recorded inputs does the same. A difference from that has exit code 1."""
    from backend.paper.monitor import tell_parity
    from backend.paper.overview.last_report import drift_sentences, keep_report
    from backend.paper.review.comparison import paper_comparison
    from backend.paper.review.drift import paper_drift
    from backend.paper.sessions import paper_parity, paper_status
    from backend.store.run_record import store_at

    record, outcome = paper_status(session, store, runs)
    console.print(f"session {session}: {record.status}{f' ({record.message})' if record.message else ''}")
    _print(outcome)
    _print_shadow(record, store, runs)
    with store_at(store) as opened:
        comparison = paper_comparison(session, opened) if record.config.get("shadow") else None
        if comparison is not None:
            console.print(comparison.sentence(), soft_wrap=True)
        drifted = paper_drift(session, opened) if drift else None
        for sentence in [] if drifted is None else drift_sentences(drifted):
            console.print(sentence, soft_wrap=True)
        same = paper_parity(session, opened) if parity else None
        keep_report(opened, session, same, drifted, comparison)
    if same is not None:
        tell_parity(session, outcome.folder, same.differences)
        _print_parity(same)


@paper_app.command("demo")
def run_demo(
    store: StoreOption = STORE,
    runs: RunsOption = RUNS,
    speed: Annotated[
        float | None,
        typer.Option("--speed", help="Times real time at which the week passes, 6000 if not given."),
    ] = None,
) -> None:
    """Trade the sample's last week in two minutes, killed and resumed on the way, with its report and parity. It needs
    no network."""
    from backend.paper.demo import TIMES_REAL, paper_demo

    with bars() as shown:
        shown.message("the sample's last week, bar by bar; the session is killed in the middle and resumed")
        speed = TIMES_REAL if speed is None else speed
        made = paper_demo(store, runs, shown, speed=speed)
    console.print(f"a week in {made.seconds:.0f} s; kills: {made.kills}, each resumed from the journal")
    _print(made.outcome)
    if made.outcome.missed > made.outcome.decisions:
        console.print(
            f"most decisions came too late: this machine is slow or busy; try --speed {speed / 4.0:g}", soft_wrap=True
        )
    _print_parity(made.parity)


def _print_shadow(record: RunRecord, store: str, runs: Path) -> None:
    """Print how the shadow of a session stands, if it has one."""
    from backend.paper.records.stored import shadow_name
    from backend.paper.sessions import paper_status

    if record.config.get("shadow"):
        its, outcome = paper_status(shadow_name(record), store, runs)
        why = f" ({its.message})" if its.status == "failed" and its.message else ""
        console.print(f"shadow {its.run}, {its.config['team']}: {its.status}{why}", soft_wrap=True)
        _print(replace(outcome, why=""))


def _print_parity(found: Parity) -> None:
    """Print a comparison with the backtest; a difference ends the command with exit code 1."""
    from backend.paper.overview.last_report import parity_sentence

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
    if outcome.sent or outcome.differences:
        console.print(f"sandbox: {outcome.sent} orders sent; {len(outcome.differences)} differences")
        for difference in outcome.differences:
            console.print(f"  {difference}", soft_wrap=True)
    if outcome.why in ("stopped", "flatten", "freeze"):
        release = "" if outcome.why == "stopped" else " --release"
        console.print(f"{outcome.why}; go on with: cryptosentinel paper resume {outcome.run}{release}")
    elif outcome.why:
        console.print(f"{outcome.why}; compare with the backtest: cryptosentinel paper report {outcome.run}")
