"""A week of paper trading in about a minute: the sample's last week, and a session that is killed three times.

The session runs in a process of its own, as a user's would, on recorded bars that come much faster than they did. It is
ended by SIGKILL on the way and resumed from its journal. Its progress is read from that journal.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from backend.builders.market import load_market
from backend.paper.parity import Parity
from backend.paper.sessions import PaperOutcome, paper_parity, paper_status
from backend.paper.switch import process_of
from backend.runs.requests import RUNS, SILENT, STORE, MarketRequest, Observer
from backend.store.run_record import new_run_id
from simulator.errors import RunFailed, UserError
from simulator.folders import sample_data
from simulator.market.timeframes import SECOND_MS, WEEK_MS, format_time

TIMES_REAL = 16_000.0  # times real time: a week in 38 seconds
_LOOK_SECONDS = 0.5
_BEYOND = 240.0  # seconds beyond the week, in which processes start and end
# A second of real time is hours here, so thinking is not measured by that.
_OVERRIDES = ("paper.history_bars=400", "costs.thinking_time=20")


@dataclass(frozen=True)
class PaperDemo:
    """The result of the demonstration."""

    outcome: PaperOutcome
    parity: Parity
    kills: int
    seconds: float


def paper_demo(
    store: str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    *,
    speed: float = TIMES_REAL,
    kills: int = 3,
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
    command, total = _week(run, speed)
    kept = ["--store", str(store), "--runs", str(runs)]
    kill_at = [total * (number + 1) // (kills + 1) for number in range(kills)]
    killed, latest = 0, begun + WEEK_MS / SECOND_MS / speed + _BEYOND
    while _was_killed(
        [*command, *kept], runs / run, str(store), (*kill_at, total + 1)[killed], total, latest, observer
    ):
        killed += 1
        command = ["resume", run]
        observer.message(f"the session's process was ended by SIGKILL; resuming from its journal ({run})")
    _, outcome = paper_status(run, store, runs)
    return PaperDemo(outcome, paper_parity(run, store), killed, time.monotonic() - begun)


def _week(run: str, speed: float) -> tuple[list[str], int]:
    """The command of a session over the sample's last week, and how many bars that has."""
    config = MarketRequest(data=sample_data()).on(None)
    market = load_market(config.market, config.costs)
    bars = WEEK_MS // market.interval
    first, last = (int(market.open_time[row]) + market.interval for row in (-1 - bars, -1))
    start, end = (format_time(close).replace(" ", "T") for close in (first, last))
    command = ["run", "--session", run, "--data", str(sample_data()), "--start", start, "--end", end]
    settings = [word for one in (*_OVERRIDES, f"paper.speed={speed!r}") for word in ("--set", one)]
    return [*command, "--decide-every", "1", *settings], bars


def _was_killed(
    command: list[str], folder: Path, store: str, kill_at: int, total: int, latest: float, observer: Observer
) -> bool:
    """Let `paper COMMAND` run in a process of its own; whether it was killed, after bar `kill_at` of `total`. Raises
    `RunFailed` with its words where it failed, or did not end by `latest` (monotonic seconds)."""
    words = [sys.executable, "-m", "backend.cli", "paper", *command]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while child.poll() is None:
            if time.monotonic() > latest:
                raise RunFailed(f"the session did not end with the week; look at {folder}, and at what else is running")
            # Before the session has the store, this process would take it.
            if process_of(folder) == child.pid:
                _, outcome = paper_status(folder.name, store, folder.parent)
                observer.progress("bars of the week", outcome.bars, total)
                if outcome.bars >= kill_at:
                    child.kill()
                    return True
            time.sleep(_LOOK_SECONDS)
        if child.returncode:
            _, errors = child.communicate()
            raise RunFailed(errors.strip().rpartition("error: ")[2] or f"it ended with exit code {child.returncode}")
        return False
    finally:
        child.kill()
        child.wait()
