"""A week of paper trading in two minutes: the sample's last week, and a session that is killed once on the way.

The session runs in a process of its own, as a user's would, on recorded bars that come much faster than they did. It is
ended by SIGKILL in the middle and resumed from its journal. Its progress is read from that journal.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from backend.builders.market import load_market
from backend.paper.background import process_of
from backend.paper.parity import Parity
from backend.paper.sessions import PaperOutcome, PaperRequest, paper_parity, paper_status, resume_paper, run_paper
from backend.runs.requests import RUNS, SILENT, STORE, MarketRequest, Observer
from backend.store.run_record import new_run_id
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.folders import sample_data
from simulator.market.timeframes import SECOND_MS, WEEK_MS, format_time

TIMES_REAL = 6000.0  # times real time: a week in 100 seconds
_LOOK_SECONDS = 1.0
_BEYOND = 240.0  # seconds beyond the week, in which processes start and end
# A second of real time is a hundred minutes here, so nobody's thinking is measured by that.
_OVERRIDES = ("paper.history_bars=400", "costs.thinking_time=20")


@dataclass(frozen=True)
class PaperDemo:
    """The result of the demonstration."""

    outcome: PaperOutcome
    parity: Parity
    kills: int
    seconds: float


@dataclass(frozen=True)
class _Session:
    """What the session's process gets."""

    request: PaperRequest
    store: str
    runs: Path
    resumes: bool


def paper_demo(
    store: str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    *,
    speed: float = TIMES_REAL,
    kills: int = 1,
) -> PaperDemo:
    """Trade the last week of the sample, killed `kills` times on the way.

    Raises:
        UserError: a store in memory, which no second process can read, or an impossible speed. RunFailed: the session
        ended before the week.
    """
    if str(store).startswith("mem:"):
        raise UserError(f"--store {store} is of one process, and the demonstration has two: name a folder")
    if not 0.0 < speed < math.inf:
        raise UserError(f"the speed is {speed}: give how much faster than real time the week passes, above 0")
    begun = time.monotonic()
    run = new_run_id("paper")
    request, total = _week(run, speed)
    killed = 0
    for number in range(kills + 1):
        kill_at = total * (number + 1) // (kills + 1) if number < kills else None
        session = _Session(request, str(store), runs, number > 0)
        if not _was_killed(session, total, observer, kill_at, WEEK_MS / SECOND_MS / speed + _BEYOND):
            break
        killed += 1
        observer.message(f"the session's process was ended by SIGKILL; resuming from its journal ({run})")
    _, outcome = paper_status(run, store, runs)
    return PaperDemo(outcome, paper_parity(run, store), killed, time.monotonic() - begun)


def _week(run: str, speed: float) -> tuple[PaperRequest, int]:
    """A session over the sample's last week, and how many bars that has."""
    config = MarketRequest(data=sample_data()).on(None)
    market = load_market(config.market, config.costs)
    bars = WEEK_MS // market.interval
    first, last = (int(market.open_time[row]) + market.interval for row in (-1 - bars, -1))
    start, end = (format_time(close).replace(" ", "T") for close in (first, last))
    overrides = (*_OVERRIDES, f"paper.speed={speed!r}")
    request = PaperRequest(
        data=sample_data(), start=start, end=end, decide_every=1, session=run, overrides=overrides
    )  # fmt: skip
    return request, bars


def _was_killed(session: _Session, total: int, observer: Observer, kill_at: int | None, seconds: float) -> bool:
    """Let the session run in a process of its own; whether it was killed, after bar `kill_at`. Raises `RunFailed` where
    it ended early, or not within `seconds`."""
    context = multiprocessing.get_context("spawn")
    words, its = context.Pipe()
    child = context.Process(target=_play, args=(its, session), daemon=True)
    folder = session.runs / session.request.session
    latest = time.monotonic() + seconds
    child.start()
    its.close()
    try:
        while child.is_alive():
            if time.monotonic() > latest:
                raise RunFailed(
                    f"the session did not end with the week; look at {folder}, and for what else is running"
                )
            # Before the session has the store, this process would take it.
            if process_of(folder) == child.pid and _bars_shown(session, total, observer) >= (kill_at or math.inf):
                child.kill()
                child.join()
                return True
            child.join(_LOOK_SECONDS)
        reason = ""
        with suppress(EOFError):
            reason = str(words.recv())
        if reason or child.exitcode:
            raise RunFailed(reason or f"the session's process ended with code {child.exitcode}")
        return False
    finally:
        if child.is_alive():
            child.terminate()
            child.join(10.0)
            child.kill()
            child.join()


def _bars_shown(session: _Session, total: int, observer: Observer) -> int:
    """How many bars the session has had, after showing it."""
    _, outcome = paper_status(session.request.session, session.store, session.runs)
    observer.progress("bars of the week", outcome.bars, total)
    return outcome.bars


def _play(words: Connection, session: _Session) -> None:
    """The session, in its own process; sends the reason where it ends early."""
    with suppress(Interrupted):
        try:
            if session.resumes:
                resume_paper(session.request.session, session.store, session.runs)
            else:
                run_paper(session.request, session.store, session.runs)
        except (UserError, RunFailed) as error:
            if isinstance(error, Interrupted):
                raise
            words.send(str(error))
