"""Paper sessions as use cases: begin, resume, look, compare."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account, account_of, limits_of, load_market, thinking_time_of
from backend.config.ownership import signed
from backend.config.schema import Config
from backend.decisions.backtest_document import write_backtest
from backend.paper.journal import Journal, entries_in_portions, entries_of, history_from_json, history_to_json
from backend.paper.parity import Parity, check_parity
from backend.paper.replay import JournalReplay
from backend.paper.session import PaperSession
from backend.paper.snapshots import Snapshot, newest_snapshot, shortening, shortening_of
from backend.paper.switch import Switch, read_order, release
from backend.paper.thinking import Thinker
from backend.runs.backtest import market_settings, requested_window, subject_of
from backend.runs.requests import RUNS, SILENT, STORE, Observer, RunStart, WindowRequest
from backend.store.records import JournalRecord, RunRecord
from backend.store.run_record import new_run_id, store_at, stored_config, versions
from backend.store.store import Store
from cryptosentinel.conversation.memory import Memory
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from simulator.backtest.run import Window
from simulator.errors import DataError, Interrupted, UserError
from simulator.live.bar_assembly import BarAssembler
from simulator.live.broker import SimulatedBroker
from simulator.live.feed import Feed
from simulator.live.recorded_feed import RecordedFeed
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import SECOND_MS

PAPER = "paper"
# Ends after which a session goes on when it is resumed.
_PAUSES = frozenset({"stopped", "freeze", "flatten"})


@dataclass(frozen=True, kw_only=True)
class PaperRequest(WindowRequest):
    """A paper session of one team; the dates are those of recorded data."""

    team: str = "scripted"


@dataclass(frozen=True)
class PaperOutcome:
    """How a session ended, or stands. `why` is "finished", "stopped", "flatten", "freeze", "liquidated", or empty while
    it runs or was killed; `missed` counts closes at which a decision was due and none was taken."""

    run: str
    folder: Path
    why: str
    bars: int
    decisions: int
    fills: int
    missed: int
    equity: float
    begun_with: float
    positions: dict[str, float]


def run_paper(
    request: PaperRequest, store: Store | str | Path = STORE, runs: Path = RUNS, observer: Observer = SILENT
) -> PaperOutcome:
    """Begin a session and let it run to its end. Raises `UserError` for a request that cannot be met; then nothing is
    recorded."""
    config = market_settings(request)
    market = load_market(config.market, config.costs)
    window = requested_window(market, request)
    team = _team(request.team, config)
    account = account_of(config, market)
    begin = _recorded_data(config, market, account, window)
    run = new_run_id(PAPER)
    folder = runs / run
    observer.started(RunStart(run, folder, config, market, account, window))
    start = {
        "history": history_to_json(begin.history),
        "decide_every": window.decide_every,
        "last": int(market.open_time[window.stop]),
        "cash": account.cash,
        "keeps": shortening(config.paper.snapshot_bars, config.paper.history_bars, market.timeframe).to_json(),
    }
    with store_at(store) as opened:
        folder.mkdir(parents=True, exist_ok=True)
        document = {"config": config.to_dict(), "versions": versions(), "team": request.team, "data": market.source}
        now = int(time.time() * 1000)
        record = RunRecord(run, PAPER, request.seed, market.content_hash, now, signed(run, document))
        with _recorded(opened, record) as outcomes:
            journal = Journal(opened, run)
            journal.write("start", begin.feed.clock.now(), start)
            parts = SessionParts(opened, record, folder, config, team, account, begin.feed, journal, observer)
            outcomes.append(play_session(parts, [], start))
        return outcomes[0]


def resume_paper(
    run: str,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    *,
    released: bool = False,
) -> PaperOutcome:
    """Go on with a session that stopped, or was killed, where its journal ends. `released` takes the kill switch back.

    Raises `UserError` for a session that is over, that another program runs, or whose kill switch is set.
    """
    with store_at(store) as opened:
        record, config, team, market, account, start = _stored(opened, run)
        snapshot, entries = newest_entries(opened, run)
        folder = runs / run
        if entries and entries[-1].kind == "end":
            raise UserError(f"session {run} is over ({entries[-1].document['why']}): begin another one")
        if read_order(folder, config.paper.on_kill) in ("flatten", "freeze") and not released:
            raise UserError(
                f"the kill switch of session {run} is set ({folder}): look why, and take it back with "
                f"`cryptosentinel paper resume {run} --release`"
            )
        opened.claim(run)
        folder.mkdir(parents=True, exist_ok=True)
        release(folder, released)
        history = history_from_json(start["history"])
        window = _window(market, history, start)
        begin = _recorded_data(config, market, account, window)
        observer.started(RunStart(run, folder, config, market, account, window))
        journal = Journal(opened, run, entries[-1].ordinal + 1 if entries else snapshot.after + 1 if snapshot else 1)
        with _recorded(opened, replace(record, status="running", finished_at=None, message=None)) as outcomes:
            parts = SessionParts(opened, record, folder, config, team, account, begin.feed, journal, observer)
            outcomes.append(play_session(parts, entries, start, released, snapshot))
        return outcomes[0]


def newest_entries(store: Store, run: str) -> tuple[Snapshot | None, list[JournalRecord]]:
    """The newest snapshot, if there is one, and the entries after it, or after the start."""
    snapshot = newest_snapshot(store, run)
    return snapshot, list(entries_in_portions(store, run, snapshot.after + 1 if snapshot else 1))


def paper_status(run: str, store: Store | str | Path = STORE, runs: Path = RUNS) -> tuple[RunRecord, PaperOutcome]:
    """How a session stands, by its journal: also one that runs in another process."""
    with store_at(store) as opened:
        record = _record(opened, run)
        cash = float(_start_of(opened, run)["cash"])
        snapshot, entries = newest_entries(opened, run)
        before: Mapping[str, Any] = snapshot.state if snapshot else {}
        bars = [entry for entry in entries if entry.kind == "bar"]
        decisions = int(before.get("decided", 0)) + sum(entry.kind == "decision" for entry in entries)
        over = [entry.document["why"] for entry in entries if entry.kind == "end"]
        last: dict[str, Any] = {"equity": cash, "positions": {}}
        if bars:
            last = bars[-1].document["account"]
        elif snapshot:
            [entry] = opened.journal_between(run, snapshot.after, snapshot.after + 1)
            last = entry.document["account"]
        fills = sum(one["kind_of_record"] == "Fill" for entry in bars for one in entry.document["happened"]["ledger"])
        missed = len(before.get("missed", ())) + sum(bool(entry.document.get("missed")) for entry in entries)
        outcome = PaperOutcome(
            run, runs / run, over[-1] if over else "", int(before.get("bars", 0)) + len(bars), decisions,
            int(before.get("fills", 0)) + fills, missed, last["equity"], cash, last["positions"],
        )  # fmt: skip
        return record, outcome


def paper_sessions(store: Store | str | Path = STORE) -> list[RunRecord]:
    """All sessions, the newest first."""
    with store_at(store) as opened:
        return [record for record in opened.runs() if record.kind == PAPER]


def paper_parity(run: str, store: Store | str | Path = STORE) -> Parity:
    """Play the session's recorded inputs through the backtest and compare. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, team, _, account, _ = _stored(opened, run)
        entries = entries_of(opened, run)
        return check_parity(entries, team.team, team.engine, account, limits_of(config.guard), record.seed)


@dataclass(frozen=True)
class SessionParts:
    """What a session is made of."""

    store: Store
    record: RunRecord
    folder: Path
    config: Config
    team: LoadedTeam
    account: Account
    feed: Feed
    journal: Journal
    observer: Observer


def play_session(
    parts: SessionParts,
    entries: Sequence[JournalRecord],
    start: dict[str, Any],
    released: bool = False,
    snapshot: Snapshot | None = None,
) -> PaperOutcome:
    """Take up what the journal says after its first entry, `start`, or after `snapshot`, and let the session run to its
    end or pause.
    `released`: the kill switch was taken back. Raises `StoreError` as `PaperSession.restore` does."""
    config, team, account, feed = parts.config, parts.team, parts.account, parts.feed
    run, settings = parts.record.run, config.paper
    history = history_from_json(start["history"]) if snapshot is None else snapshot.history
    broker = SimulatedBroker(history, account.cash, account.costs, account.max_leverage, account.venue)
    if snapshot is not None:
        broker.go_on(snapshot.state["broker"])
    grace = round(settings.grace_seconds * SECOND_MS)
    assembler = BarAssembler(
        dict(history.kinds), history.interval, broker.close, grace, config.costs.half_spread_bps / 1e4
    )
    limits = limits_of(config.guard)
    guard, memory = Guard(limits), Memory() if team.team.settings.memory else None
    if memory is not None:
        saved = [] if snapshot is None else [snapshot.state["memory"]]
        saved += [entry.document["memory"] for entry in entries if entry.document.get("memory") is not None]
        memory = Memory.from_dict(saved[-1]) if saved else memory
    expected = (int(start["last"]) - int(history.open_time[-1])) // history.interval
    session = PaperSession(
        broker, assembler, feed, parts.journal, Switch(parts.folder, settings.on_kill), guard, team.team.codec,
        decide_every=int(start["decide_every"]), grace=grace, memory=memory,
        on_bar=lambda bars: parts.observer.progress("paper", bars, expected),
        keeps=shortening_of(start), whole_result=JournalReplay(parts.store, run, start, account).result,
    )  # fmt: skip
    if snapshot is not None:
        session.go_on(snapshot)
        expected += session.bars
    session.restore(entries, released=released)
    if entries or snapshot is not None:
        session.resumed(released)

    def why_not() -> str | None:
        asked = session.asked()
        if asked in ("flatten", "freeze"):
            return f"kill switch: {asked}"
        over = session.thinking_seconds() > settings.decision_timeout
        return f"no answer within {settings.decision_timeout:g} s" if over else None

    thinker = Thinker(team.engine, why_not)
    session.thinks_with(thinker)
    feed.open(broker.close)
    try:
        thinker.run(
            play(
                team.team, session, limits, parts.record.seed, guard=guard, on_clamps=session.clamped, memory=memory,
                budget=team.budget, decisions=session.decisions, thinking_time=thinking_time_of(config),
            )
        )  # fmt: skip
    finally:
        feed.close()
    if session.ended not in _PAUSES:
        session.finish()
    result = session.result()
    if len(result.times) > 1:
        write_backtest(parts.store, run, team.name, result)
    held = session.account()
    return PaperOutcome(
        run, parts.folder, session.ended, session.bars, session.decided, len(result.fills), len(session.missed),
        held.equity, account.cash, held.positions,
    )  # fmt: skip


def _team(name: str, config: Config) -> LoadedTeam:
    subject = subject_of(name, config)
    if not isinstance(subject, LoadedTeam):
        raise UserError(
            f"'{name}' is a strategy: a paper session is of a team; name 'scripted', 'model' or a run's folder"
        )
    return subject


def _window(market: Market, history: Market, start: dict[str, Any]) -> Window:
    """Where the session's history ends in `market`, and where the session ends. Raises `DataError` for other bars."""
    opens = [int(history.open_time[-1]), int(start["last"])]
    first, last = ((time - int(market.open_time[0])) // market.interval for time in opens)
    if not 0 <= first < last < len(market) or int(market.open_time[first]) != opens[0]:
        raise DataError(f"{market.source}: these are not the bars of the session; give the data that it was begun with")
    return Window(int(first), int(last), int(start["decide_every"]))


def _record(store: Store, run: str) -> RunRecord:
    record = store.run(run)
    if record.kind != PAPER:
        raise UserError(f"run {run} is a {record.kind}, no paper session")
    return record


def _stored(store: Store, run: str) -> tuple[RunRecord, Config, LoadedTeam, Market, Account, dict[str, Any]]:
    """A stored session, with what it needs."""
    record = _record(store, run)
    config, withheld = stored_config(record, to_continue=True)
    if withheld:
        raise UserError(
            f"session {run} was not begun by this user, and its configuration names {withheld[0].key}: adopt it with "
            f"`cryptosentinel runs adopt {run}` if it is your own"
        )
    start = _start_of(store, run)
    market = load_market(config.market, config.costs)
    team = _team(str(record.config["team"]), config)
    return record, config, team, market, account_of(config, market), start


def _start_of(store: Store, run: str) -> dict[str, Any]:
    """The first entry of a session's journal. Raises `StoreError` without one."""
    return next(entries_in_portions(store, run)).document


@dataclass(frozen=True)
class _FeedStart:
    """A feed that is not opened yet, and the bars known before its first one."""

    feed: Feed
    history: Market


def _recorded_data(config: Config, market: Market, account: Account, window: Window) -> _FeedStart:
    """The recorded bars of `market` from the close of the window's first bar to its last one.

    Raises `DataError` where there are none.
    """
    first = max(0, window.start + 1 - config.paper.history_bars)
    begin = int(market.open_time[window.start]) + market.interval
    speed = config.paper.speed or math.inf
    recorded = part_of(market, first, window.stop + 1, market.kinds)
    feed = RecordedFeed(recorded, account.venue, begin, speed)
    return _FeedStart(feed, part_of(market, first, window.start + 1, feed.kinds))


@contextmanager
def _recorded(store: Store, record: RunRecord) -> Iterator[list[PaperOutcome]]:
    """Record the session around a block, which puts its outcome into the list: running, and then finished, failed, or
    interrupted where it can be resumed."""
    run, outcomes = record.run, list[PaperOutcome]()
    store.add_run(record)
    try:
        yield outcomes
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", "stopped by Ctrl-C or a signal")
        raise Interrupted(
            f"session {run} was interrupted; its journal is kept; go on with: cryptosentinel paper resume {run}"
        ) from None
    except Exception as error:
        store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    [outcome] = outcomes
    store.finish_run(run, "interrupted" if outcome.why in _PAUSES else "finished", outcome.why)
