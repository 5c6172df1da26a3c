"""A week of paper trading in two minutes: a mock exchange with a bad network, and a session that is killed once.

The exchange plays the last week of the sample in this process, much faster than real time. The session runs in a
process of its own, as a user's would, reads the exchange through ccxt, and is ended by SIGKILL in the middle. What is
said of it meanwhile is read from its journal.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from backend.builders.market import load_market
from backend.paper.background import process_of
from backend.paper.parity import Parity
from backend.paper.sessions import PaperOutcome, PaperRequest, paper_parity, paper_status, resume_paper, run_paper
from backend.runs.requests import RUNS, SILENT, STORE, MarketRequest, Observer
from backend.store.run_record import new_run_id
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.folders import sample_data
from simulator.live.clock import SimulatedClock
from simulator.live.exchange_feed.exchange_feed import ExchangeFeed
from simulator.live.exchange_feed.settings import FeedSettings
from simulator.live.mock_exchange.answers import base_and_quote
from simulator.live.mock_exchange.faults import Faults
from simulator.live.mock_exchange.host import serving_exchange
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import SECOND_MS, WEEK_MS, format_time

TIMES_REAL = 6000.0  # times real time: a week in 100 seconds
HISTORY_BARS = 400
_LOOK_SECONDS = 1.0
_BEGINS_IN = 120.0  # seconds of real time until the session's process must have begun
_ENDS_IN = 120.0  # and beyond the week, until it must have ended
# A bad network, as often as a week of 100 seconds lets one see it.
FAULTS = Faults(
    dropped=0.01, duplicated=0.01, delayed=0.01, reordered=0.01, delay=600.0, disconnects=0.25, bursts=1.0,
    burst=1800.0, failed=0.01, seed=1,
)  # fmt: skip
# A second of real time is a hundred minutes here: nobody's thinking is measured by that.
_OVERRIDES = (f"paper.history_bars={HISTORY_BARS}", "paper.grace_seconds=600", "costs.thinking_time=20")


@dataclass(frozen=True)
class PaperDemo:
    """What the demonstration came to. `faults` counts by name what the exchange did."""

    outcome: PaperOutcome
    parity: Parity
    kills: int
    faults: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class _Job:
    """What the session's process is told. The clock shows `moment` (ms) when this machine's shows `read_at` (s)."""

    request: PaperRequest
    store: str
    runs: Path
    moment: int
    read_at: float
    speed: float
    resumes: bool


def paper_demo(
    store: str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    *,
    speed: float = TIMES_REAL,
    kills: int = 1,
) -> PaperDemo:
    """Trade the last week of the sample on a mock exchange, killed `kills` times on the way.

    Raises:
        UserError: a store in memory, which no second process can read. RunFailed: the session ended before the week.
    """
    if str(store).startswith("mem:"):
        raise UserError(f"--store {store} is of one process, and the demonstration has two: name a folder")
    if not 0.0 < speed < math.inf:
        raise UserError(f"the speed is {speed}: give how much faster than real time the week passes, above 0")
    begun = time.monotonic()
    process = _Process()
    try:
        return _traded(process, store, runs, observer, speed, kills, begun)
    finally:
        process.end()


def _traded(
    process: _Process, store: str | Path, runs: Path, observer: Observer, speed: float, kills: int, begun: float
) -> PaperDemo:
    week, first = _week()
    # A session that begins when the first bar is over already has it in its history: one bar fewer.
    run, total = new_run_id("paper"), len(week) - first
    # The week does not pass while a process starts, which takes a busy machine as long as some days of it.
    process.wait()
    clock = SimulatedClock(int(week.open_time[first]) + SECOND_MS, speed)
    with serving_exchange(week, clock, speed=speed, faults=FAULTS) as exchange:
        request = PaperRequest(
            exchange="binance", url=exchange.url, symbols=tuple(_perpetual(symbol) for symbol in week.symbols),
            timeframe=week.timeframe, decide_every=1, session=run, overrides=_OVERRIDES,
            end=format_time(int(week.open_time[-1]) + week.interval).replace(" ", "T"),
        )  # fmt: skip
        left = kills
        while True:
            job = _Job(request, str(store), runs, clock.now(), time.monotonic(), speed, left < kills)
            process.begin(job)
            struck = _watch(process, job, total, observer, total * (kills - left + 1) // (kills + 1) if left else None)
            if not struck:
                break
            left -= 1
            observer.message(f"the session's process was ended by SIGKILL; going on from its journal ({run})")
            process.start_again()
            process.wait()
        faults = dict(exchange.draws.injected)
    _, outcome = paper_status(run, store, runs)
    return PaperDemo(outcome, paper_parity(run, store), kills, faults, time.monotonic() - begun)


def _week() -> tuple[Market, int]:
    """The sample's last week with the history before it, and the number of its first bar, which is under way."""
    config = MarketRequest(data=sample_data()).on(None)
    market = load_market(config.market, config.costs)
    bars = WEEK_MS // market.interval
    first = len(market) - bars - HISTORY_BARS - 1
    return part_of(market, first, len(market), market.kinds), HISTORY_BARS


def _perpetual(symbol: str) -> str:
    base, quote = base_and_quote(symbol)
    return f"{base}/{quote}:{quote}"


class _Process:
    """The process of a session, from its start on; the session begins when it is told to."""

    def __init__(self) -> None:
        self.start_again()

    def start_again(self) -> None:
        """Start a process in the place of one that has ended."""
        context = multiprocessing.get_context("spawn")
        self._words, its = context.Pipe()
        self.child: BaseProcess = context.Process(target=_play, args=(its,), daemon=True)
        self.child.start()
        its.close()

    def wait(self) -> None:
        """Wait until it has started. Raises `RunFailed` where it does not."""
        try:
            if self._words.poll(_BEGINS_IN):
                self._words.recv()
                return
        except EOFError:
            pass
        raise RunFailed(f"the session's process did not start within {_BEGINS_IN:.0f} s; look for what else is running")

    def begin(self, job: _Job) -> None:
        """Let the session begin, or go on."""
        self._words.send(job)

    def last_words(self) -> str:
        """What a session that ended wrote; nothing where it wrote nothing."""
        try:
            return str(self._words.recv())
        except EOFError:
            return ""

    def end(self) -> None:
        """End it, if it has not ended."""
        if self.child.is_alive():
            self.child.terminate()
            self.child.join(10.0)
            self.child.kill()
            self.child.join()


def _watch(process: _Process, job: _Job, total: int, observer: Observer, kill_at: int | None) -> bool:
    """Tell of the session that has begun in `process`; whether it was killed, after bar `kill_at`."""
    child = process.child
    folder = job.runs / job.request.session
    latest = time.monotonic() + _BEGINS_IN + WEEK_MS / SECOND_MS / job.speed + _ENDS_IN
    while child.is_alive():
        if time.monotonic() > latest:
            raise RunFailed(f"the session did not end with the week; look at {folder}, and for what else is running")
        # Before it has the store, this process would take it.
        if process_of(folder) == child.pid and _told(job, total, observer, kill_at):
            child.kill()
            child.join()
            return True
        child.join(_LOOK_SECONDS)
    reason = process.last_words()
    if reason or child.exitcode:
        raise RunFailed(reason or f"the session's process ended with code {child.exitcode}")
    return False


def _told(job: _Job, total: int, observer: Observer, kill_at: int | None) -> bool:
    """Tell how far the session is; whether that is bar `kill_at`."""
    _, outcome = paper_status(job.request.session, job.store, job.runs)
    observer.progress("bars of the week", outcome.bars, total)
    return kill_at is not None and outcome.bars >= kill_at


def _play(words: Connection) -> None:
    """The session, in its own process: says that it has started, is told what to do, and says what ended it early."""
    words.send("started")
    try:
        job: _Job = words.recv()
    except EOFError:  # nobody wants it any more
        return
    clock = SimulatedClock(job.moment + int((time.monotonic() - job.read_at) * SECOND_MS * job.speed), job.speed)

    def feed(settings: FeedSettings) -> ExchangeFeed:
        return ExchangeFeed(settings, clock, job.speed)

    with suppress(Interrupted):
        try:
            if job.resumes:
                resume_paper(job.request.session, job.store, job.runs, make_feed=feed)
            else:
                run_paper(job.request, job.store, job.runs, make_feed=feed)
        except (UserError, RunFailed) as error:
            if isinstance(error, Interrupted):
                raise
            words.send(str(error))
