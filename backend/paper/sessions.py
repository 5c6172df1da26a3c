"""Paper sessions as use cases: begin, resume, look, compare."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account, limits_of, thinking_time_of
from backend.builders.strategies import NamedStrategy, made_ready
from backend.config.base import suggestion
from backend.config.load import load_config
from backend.config.schema import RECORDED_FEED, Config
from backend.decisions.backtest_document import write_backtest
from backend.models.digest import team_digest
from backend.models.manifest import MANIFEST, team_folder
from backend.paper.feeds import GRACE_SECONDS, FeedBars, MakeFeed, account_again, new_start, rules_to_json, start_again
from backend.paper.journal import (
    Journal,
    entries_in_portions,
    entries_of,
    history_from_json,
    history_to_json,
    newest_entries,
)
from backend.paper.monitor import Monitor
from backend.paper.parity import Parity, check_parity
from backend.paper.session import PaperSession
from backend.paper.switch import Switch, read_order, release, running
from backend.paper.thinking import DeadlineRunner, StrategyPlayer, trade
from backend.runs.backtest import Subject, market_settings, subject_of
from backend.runs.requests import RUNS, SILENT, STORE, Observer, PaperRequest, RunStart
from backend.store.errors import StoreError
from backend.store.records import PAPER, JournalRecord, RunRecord
from backend.store.run_record import new_run_id, own_config, store_at, versions
from backend.store.store import Store
from cryptosentinel.episode import ThinkingTime, play
from cryptosentinel.guard.guard import Guard
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.live.bar_assembly import BarAssembler
from simulator.live.broker import SimulatedBroker
from simulator.live.exchange_feed import ExchangeFeed
from simulator.live.feed import Feed
from simulator.market.timeframes import SECOND_MS

LEAST_SPACE = 100_000_000  # bytes: a journal of minutes grows by about 15 million a day
_LIVE_PRESET = "recorded"  # the costs of recorded data are those of a live market
_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# The counts of a feed that tell of trouble.
FEED_TROUBLE = (
    "gaps", "disconnects", "hung", "malformed", "timeouts", "server_errors", "maintenance", "rate_limits", "dns",
    "refusals", "skewed", "late", "duplicate", "conflicting", "implausible", "off_grid", "unknown",
)  # fmt: skip
# Ends after which a session can be resumed.
_PAUSES = frozenset({"stopped", "freeze", "flatten"})


@dataclass(frozen=True)
class PaperOutcome:
    """How a session ended, or stands. `why` is "finished", "stopped", "flatten", "freeze", "liquidated", or empty while
    it runs or was killed; `missed` counts closes at which a decision was due and none was taken. `met` counts by name
    what the feed met."""

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
    met: Mapping[str, int] = field(default_factory=dict)
    entry_prices: Mapping[str, float] = field(default_factory=dict)  # average price of each open position


def run_paper(
    request: PaperRequest,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    make_feed: MakeFeed = ExchangeFeed,
) -> PaperOutcome:
    """Begin a session and let it run to its end; `make_feed` makes the feed of an exchange.

    Raises `UserError` for a request that cannot be met, and `RunFailed` where the exchange cannot be reached; then
    nothing is recorded.
    """
    config = session_settings(request)
    subject = session_subject(request.team, config)
    if request.session and not _SESSION_NAME.fullmatch(request.session):
        raise UserError(
            f"'{request.session}' cannot name a session: use up to 64 letters, digits, '_' and '-', a letter or digit "
            "first"
        )
    check_space(runs)
    begin = new_start(config, request, make_feed)
    run, history, account = request.session or new_run_id(PAPER), begin.history, begin.account
    folder = runs / run
    try:
        start = {
            "history": history_to_json(history),
            "decide_every": begin.window.decide_every,
            "last": begin.last,
            "cash": account.cash,
            "rules": None if begin.live is None else rules_to_json(begin.live),
        }
        with store_at(store) as opened:
            observer.started(RunStart(run, folder, config, begin.source, account, begin.window))
            folder.mkdir(parents=True, exist_ok=True)
            document = {
                "config": config.to_dict(),
                "versions": versions() | {"ccxt": version("ccxt")},
                "team": request.team,
                "team_digest": digest_of_named(request.team, config),
                "data": begin.source.source,
                "symbols": list(history.symbols),
            }
            now = int(time.time() * 1000)
            data_hash = begin.source.content_hash
            record = RunRecord(run, PAPER, request.seed, data_hash, now, document)
            with _recorded(opened, record) as outcomes:
                journal = Journal(opened, run)
                journal.write("start", begin.feed.clock.now(), start)
                feed = begin.feed
                parts = SessionParts(opened, record, folder, config, subject, account, feed, journal, observer)
                outcomes.append(play_session(parts, [], start))
            return outcomes[0]
    finally:
        begin.feed.close()


def resume_paper(
    run: str,
    store: Store | str | Path = STORE,
    runs: Path = RUNS,
    observer: Observer = SILENT,
    *,
    released: bool = False,
    make_feed: MakeFeed = ExchangeFeed,
) -> PaperOutcome:
    """Continue a session that stopped, or was killed, where its journal ends. `released` takes the kill switch back.

    Raises `UserError` for a session that is over, that another program runs, or whose kill switch is set, and where the
    files of its team are not those that traded.
    """
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        entries = entries_of(opened, run)[1:]
        folder = runs / run
        if entries and entries[-1].kind == "end":
            raise UserError(f"session {run} is over ({entries[-1].document['why']}): begin another one")
        if read_order(folder) in ("flatten", "freeze") and not released:
            raise UserError(
                f"the kill switch of session {run} is set ({folder}): look why, and take it back with "
                f"`cryptosentinel paper resume {run} --release`"
            )
        subject = stored_subject(record, config)
        opened.claim(run)
        check_space(runs)
        begin = start_again(config, history_from_json(start["history"]), start, make_feed)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            release(folder, released)
            journal = Journal(opened, run, len(entries) + 1)
            again = replace(record, status="running", finished_at=None, message=None)
            with _recorded(opened, again, resumes=True) as outcomes:
                observer.started(RunStart(run, folder, config, begin.source, begin.account, begin.window))
                parts = SessionParts(
                    opened, record, folder, config, subject, begin.account, begin.feed, journal, observer
                )
                outcomes.append(play_session(parts, entries, start, released))
            return outcomes[0]
        finally:
            begin.feed.close()


def paper_status(run: str, store: Store | str | Path = STORE, runs: Path = RUNS) -> tuple[RunRecord, PaperOutcome]:
    """How a session stands, by its journal: also one that runs in another process."""
    with store_at(store) as opened:
        record = session_record(opened, run)
        cash = float(session_start(opened, run)["cash"])
        entries = newest_entries(opened, run)
        bars = [entry for entry in entries if entry.kind == "bar"]
        last: Mapping[str, Any] = {"account": {"equity": cash, "positions": {}}, "totals": {}}
        since = entries
        if bars:
            last, since = bars[-1].document, [entry for entry in entries if entry.ordinal > bars[-1].ordinal]
        over = [entry.document["why"] for entry in since if entry.kind == "end"]
        totals: Mapping[str, int] = last["totals"]
        decisions = totals.get("decided", 0) + sum(entry.kind == "decision" for entry in since)
        missed = totals.get("missed", 0) + sum(bool(entry.document.get("missed")) for entry in since)
        outcome = PaperOutcome(
            run, runs / run, over[-1] if over else "", totals.get("bars", 0), decisions, totals.get("fills", 0), missed,
            last["account"]["equity"], cash, last["account"]["positions"],
            {name: count for name, count in last.get("feed", {}).items() if name in FEED_TROUBLE},
            last["account"].get("entry_prices", {}),
        )  # fmt: skip
        return record, outcome


def paper_sessions(store: Store | str | Path = STORE) -> list[RunRecord]:
    """All sessions, the newest first."""
    with store_at(store) as opened:
        return [record for record in opened.runs() if record.kind == PAPER]


def paper_parity(run: str, store: Store | str | Path = STORE) -> Parity:
    """Play the session's recorded inputs through the backtest and compare. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        account = account_again(config, history_from_json(start["history"]), start)
        subject = stored_subject(record, config)
        return check_parity(entries_of(opened, run), subject, account, limits_of(config.guard), record.seed)


@dataclass(frozen=True)
class SessionParts:
    """What a session is made of."""

    store: Store
    record: RunRecord
    folder: Path
    config: Config
    subject: Subject
    account: Account
    feed: Feed
    journal: Journal
    observer: Observer


def play_session(
    parts: SessionParts, entries: Sequence[JournalRecord], start: dict[str, Any], released: bool = False
) -> PaperOutcome:
    """Take up what the journal has after its first entry, `start`, and let the session run to its end or pause.
    `released`: the kill switch was taken back. Raises `StoreError` as `PaperSession.restore` does, and `UserError` for
    a strategy that does not decide again as it did."""
    config, subject, account, feed = parts.config, parts.subject, parts.account, parts.feed
    run, settings = parts.record.run, config.paper
    history = history_from_json(start["history"])
    broker = SimulatedBroker(history, account.cash, account.costs, account.max_leverage, account.venue)
    assembler = BarAssembler(
        dict(history.kinds), history.interval, broker.close, config.costs.half_spread_bps / 1e4,
        lambda: broker.account().mark,
    )  # fmt: skip
    limits = limits_of(config.guard)
    team = subject if isinstance(subject, LoadedTeam) else None
    player = None if isinstance(subject, LoadedTeam) else StrategyPlayer(subject)
    guard = Guard(limits)
    last = None if start["last"] is None else int(start["last"])
    expected = 0 if last is None else (last - int(history.open_time[-1])) // history.interval
    session = PaperSession(
        broker, FeedBars(feed, assembler, parts.journal, round(GRACE_SECONDS * SECOND_MS), last),
        parts.journal, Switch(parts.folder), guard, None if team is None else team.team.codec,
        decide_every=int(start["decide_every"]),
        on_bar=lambda bars: parts.observer.progress("paper", bars, expected),
    )  # fmt: skip
    session.restore(entries, released, None if player is None else player.check_again)
    if entries:
        session.resumed(released)

    def why_not() -> str | None:
        asked = session.asked()
        if asked in ("flatten", "freeze"):
            return f"kill switch: {asked}"
        over = session.thinking_seconds() > settings.decision_timeout
        return f"no answer within {settings.decision_timeout:g} s" if over else None

    monitor = Monitor(run, parts.folder, entries)
    parts.journal.tell(monitor.entry)
    try:
        feed.open(broker.close)
        with running(parts.folder):
            thinker = DeadlineRunner(why_not)
            session.thinks_with(thinker)
            if team is None:
                assert player is not None
                trade(player, session, thinker)
            else:
                task = play(
                    team.team, session, limits, parts.record.seed, guard=guard, on_clamps=session.clamped,
                    price=team.price, decisions=session.decisions, thinking_time=session_thinking_time(config),
                )  # fmt: skip
                thinker.run(task, team.engine)
    finally:
        feed.close()
        monitor.close()
    if session.ended not in _PAUSES:
        session.finish()
    result = session.result()
    if len(result.times) > 1:
        write_backtest(parts.store, run, subject.name, result)
    held = session.account()
    return PaperOutcome(
        run, parts.folder, session.ended, session.bars, session.decided, len(result.fills), session.missed,
        held.equity, account.cash, held.positions,
    )  # fmt: skip


def session_record(store: Store, run: str) -> RunRecord:
    """The record of the session `run`. Raises `UserError` for a run that is not a session, and for an unknown one."""
    known = store.runs()
    if run not in {record.run for record in known}:
        sessions = [record.run for record in known if record.kind == PAPER]
        near = suggestion(run, sessions)
        raise UserError(f"there is no session '{run}'{near}; the newest are: {', '.join(sessions[:5]) or 'none yet'}")
    record = store.run(run)
    if record.kind != PAPER:
        raise UserError(f"run {run} is a {record.kind} and not a paper session")
    return record


def stored_session(store: Store, run: str) -> tuple[RunRecord, Config, dict[str, Any]]:
    """A stored session, with what it needs: its configuration, and the first entry of its journal. Raises `UserError`
    for an imported one."""
    record = session_record(store, run)
    return record, own_config(record), session_start(store, run)


def session_start(store: Store, run: str) -> dict[str, Any]:
    """The first entry of a session's journal. Raises `StoreError` without one."""
    return next(entries_in_portions(store, run)).document


def session_thinking_time(config: Config) -> ThinkingTime:
    """Which time the decisions of a session take: on live data that which they take."""
    live = config.paper.feed != RECORDED_FEED and config.costs.thinking_time == "auto"
    return "measured" if live else thinking_time_of(config)


def session_subject(name: str, config: Config) -> Subject:
    """The team or strategy called `name`, ready to trade. Raises `UserError` where there is none."""
    subject = subject_of(name, config)
    return made_ready(subject)[0] if isinstance(subject, NamedStrategy) else subject


def digest_of_named(name: str, config: Config) -> str:
    """SHA-256 of the files of the team called `name`; empty for one that is not the folder of a training."""
    folder = team_folder(name)
    return team_digest(folder, config.training.base_model) if (folder / MANIFEST).is_file() else ""


def stored_subject(record: RunRecord, config: Config) -> Subject:
    """Who trades in a stored session. Raises `UserError` where the files of its team are not those that traded."""
    name, digest = str(record.config["team"]), str(record.config.get("team_digest", ""))
    if digest and digest_of_named(name, config) != digest:
        raise UserError(
            f"the files of {name} are not those that the session traded with: put them back, or begin another session"
        )
    return session_subject(name, config)


def session_settings(request: PaperRequest) -> Config:
    """The configuration of a new session. Raises `ConfigError` as `load_config` does."""
    chosen = request.config or _LIVE_PRESET
    stated = request.on(chosen)
    if stated.paper.feed == RECORDED_FEED:
        if stated.paper.url:
            raise UserError("paper.url is of an exchange's data: name one with --exchange, or leave it out")
        return market_settings(request)
    # What a preset sets for recorded data is not meant.
    live = dict.fromkeys(("market.funding_dir", "market.news", "market.start", "market.end"), "")
    return load_config(stated, options={**live, "market.data": str(request.data) if request.data else ""})


def check_space(folder: Path) -> None:
    """Raise `RunFailed` where a session's journal would soon find no room on the disk of `folder`."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free < LEAST_SPACE:
        raise RunFailed(
            f"only {free / 1e6:.0f} MB are free on the disk of {folder}, and a session needs {LEAST_SPACE / 1e6:.0f} "
            "for its journal: free some space, or choose another folder with --runs and --store"
        )


@contextmanager
def _recorded(store: Store, record: RunRecord, resumes: bool = False) -> Iterator[list[PaperOutcome]]:
    """Record the session around a block, which puts its outcome into the list: running, and then finished, failed, or
    interrupted where it can be resumed."""
    run, outcomes = record.run, list[PaperOutcome]()
    (store.resume_run if resumes else store.add_run)(record)
    try:
        yield outcomes
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", "stopped by the user")
        raise Interrupted(
            f"session {run} was interrupted; its journal is kept; continue with: cryptosentinel paper resume {run}"
        ) from None
    except Exception as error:
        with suppress(StoreError):  # the store may be why; a run without an end counts as abandoned
            store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    [outcome] = outcomes
    store.finish_run(run, "interrupted" if outcome.why in _PAUSES else "finished", outcome.why)
