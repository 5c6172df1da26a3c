"""Paper sessions as use cases: begin, resume, look, compare."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import Account, limits_of
from backend.config.load import load_config
from backend.config.schema import RECORDED, SANDBOX, Config
from backend.decisions.backtest_document import write_backtest
from backend.paper.alerts import AlertKind
from backend.paper.background import running
from backend.paper.bar_source import BarSource, FeedBars
from backend.paper.feeds import MakeFeed, account_again, new_start, rules_to_json, start_again
from backend.paper.journal import (
    Journal,
    bar_from_json,
    entries_in_portions,
    entries_of,
    history_from_json,
    history_to_json,
)
from backend.paper.monitor import SHARED_WITH_SHADOW, Monitor, most_silence
from backend.paper.parity import Parity, check_parity
from backend.paper.promotion.check import Promotable, promotable
from backend.paper.promotion.promoter import Promoter
from backend.paper.promotion.request import PROMOTE_FILE, PromotionRequest
from backend.paper.records.stored import (
    digest_of_named,
    newest_entries,
    promotions_in,
    session_record,
    session_start,
    session_team,
    session_thinking_time,
    shadow_name,
    stored_session,
    team_in_place,
    team_of_digest,
)
from backend.paper.sandbox import SANDBOX_ENTRY, SandboxMirror, sandbox_differences, sandbox_of
from backend.paper.session import PaperSession
from backend.paper.shadow.shadow_run import ShadowRun, SharedBars
from backend.paper.snapshots import JournalReplay, Snapshot, inside_of, missed_before, shortening, shortening_of
from backend.paper.switch import Switch, read_order, release
from backend.paper.thinking import Thinker
from backend.runs.backtest import market_settings
from backend.runs.requests import RUNS, SILENT, STORE, Observer, RunStart, WindowRequest
from backend.store.errors import StoreError
from backend.store.records import PAPER, JournalRecord, RunRecord
from backend.store.run_record import new_run_id, store_at, versions
from backend.store.store import Store
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.live.bar_assembly import BarAssembler
from simulator.live.broker import SimulatedBroker
from simulator.live.exchange_feed.exchange_feed import ExchangeFeed
from simulator.live.feed import Feed
from simulator.live.sandbox import SandboxAccount
from simulator.market.timeframes import SECOND_MS, inside_timeframe

LEAST_SPACE = 100_000_000  # bytes: a journal of minutes grows by about 15 million a day
_LIVE_PRESET = "recorded"  # the costs of recorded data are those of a live market
_NEAR = 100  # entries
_SHADOW_ENDS_IN = 10.0  # seconds after its last decision
_OTHER_FILES = "its files are not those that it began with"
_SHADOW_SETTINGS = ("paper.broker=simulated", "paper.metrics_port=0")
_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Of what a session met those counts that tell of trouble.
FEED_TROUBLE = (
    "filled", "duplicates", "corrections", "early", "gaps", "disconnects", "hung", "malformed", "timeouts",
    "server_errors", "maintenance", "rate_limits", "dns", "refusals", "skewed", "late", "duplicate", "conflicting",
    "implausible", "off_grid", "unknown", "trades_lost", "overflow",
)  # fmt: skip
# Ends after which a session goes on when it is resumed.
_PAUSES = frozenset({"stopped", "freeze", "flatten"})


@dataclass(frozen=True, kw_only=True)
class PaperRequest(WindowRequest):
    """A paper session of one team. Without `exchange` and a setting `paper.feed` the data is recorded. `exchange` is an
    id of ccxt, `url` a server to ask in its place; `broker` is as in the settings.
    `session` is the id of the session, made where it is empty. `shadow` is a second team, which decides on the same
    bars with an account of its own and trades nowhere."""

    team: str = "scripted"
    shadow: str = ""
    exchange: str = ""
    url: str = ""
    broker: str = ""
    session: str = ""

    def options(self) -> dict[str, Any]:
        """As on every market; also where data comes from and who fills the orders."""
        named = {"feed": self.exchange, "url": self.url, "broker": self.broker}
        return super().options() | {f"paper.{key}": value for key, value in named.items() if value}


@dataclass(frozen=True)
class PaperOutcome:
    """How a session ended, or stands. `why` is "finished", "stopped", "flatten", "freeze", "liquidated", or empty while
    it runs or was killed; `missed` counts closes at which a decision was due and none was taken. `met` counts by name
    what the feed met. Of a session with a sandbox, `sent` are orders to the test network and `differences` what that
    had otherwise at the last comparison."""

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
    sent: int = 0
    differences: tuple[str, ...] = ()
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
    team = session_team(request.team, config)
    if request.shadow:
        session_team(request.shadow, config)  # refused before anything begins
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
            "keeps": shortening(config.paper.snapshot_bars, config.paper.history_bars, history.timeframe).to_json(),
            "rules": None if begin.live is None else rules_to_json(begin.live),
            "inside": "" if begin.live is None else inside_timeframe(history.timeframe),
        }
        with sandbox_of(config, history.symbols) as sandbox, store_at(store) as opened:
            observer.started(RunStart(run, folder, config, begin.source, account, begin.window))
            folder.mkdir(parents=True, exist_ok=True)
            document = {
                "config": config.to_dict(),
                "versions": versions() | {"ccxt": version("ccxt")},
                "team": request.team,
                "team_digest": digest_of_named(request.team, config),
                "data": begin.source.source,
                "symbols": list(history.symbols),
                **({"shadow": request.shadow} if request.shadow else {}),
            }
            now = int(time.time() * 1000)
            data_hash = begin.source.content_hash
            record = RunRecord(run, PAPER, request.seed, data_hash, now, document)
            with _recorded(opened, record) as outcomes:
                journal = Journal(opened, run)
                journal.write("start", begin.feed.clock.now(), start)
                feed = begin.feed
                parts = SessionParts(opened, record, folder, config, team, account, feed, journal, observer, sandbox)
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
    shadow: str = "",
    make_feed: MakeFeed = ExchangeFeed,
) -> PaperOutcome:
    """Go on with a session that stopped, or was killed, where its journal ends. `released` takes the kill switch back.
    `shadow` is a team that is its shadow from now on, in the place of any other.

    Raises `UserError` for a session that is over, that another program runs, or whose kill switch is set, and where the
    files of its team are not those that traded.
    """
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        if "shadow_of" in record.config:
            of = record.config["shadow_of"]
            raise UserError(f"{run} is the shadow of session {of} and goes on with it: resume {of}")
        snapshot, entries = newest_entries(opened, run)
        folder = runs / run
        if entries and entries[-1].kind == "end":
            raise UserError(f"session {run} is over ({entries[-1].document['why']}): begin another one")
        if read_order(folder) in ("flatten", "freeze") and not released:
            raise UserError(
                f"the kill switch of session {run} is set ({folder}): look why, and take it back with "
                f"`cryptosentinel paper resume {run} --release`"
            )
        team = team_in_place(record, config, promotions_in(snapshot, entries))
        if shadow:
            session_team(shadow, config)  # refused before anything changes
        opened.claim(run)
        check_space(runs)
        record = _with_shadow(opened, record, shadow) if shadow else record
        begin = start_again(config, history_from_json(start["history"]), start, make_feed)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            release(folder, released)
            journal = Journal(
                opened, run, entries[-1].ordinal + 1 if entries else snapshot.after + 1 if snapshot else 1
            )
            again = replace(record, status="running", finished_at=None, message=None)
            symbols = begin.history.symbols
            with sandbox_of(config, symbols) as sandbox, _recorded(opened, again, resumes=True) as outcomes:
                observer.started(RunStart(run, folder, config, begin.source, begin.account, begin.window))
                parts = SessionParts(
                    opened, record, folder, config, team, begin.account, begin.feed, journal, observer, sandbox
                )
                outcomes.append(play_session(parts, entries, start, released, snapshot))
            return outcomes[0]
        finally:
            begin.feed.close()


def paper_status(run: str, store: Store | str | Path = STORE, runs: Path = RUNS) -> tuple[RunRecord, PaperOutcome]:
    """How a session stands, by its journal: also one that runs in another process."""
    with store_at(store) as opened:
        record = session_record(opened, run)
        cash = float(session_start(opened, run)["cash"])
        snapshot, entries = newest_entries(opened, run)
        before: Mapping[str, Any] = snapshot.state if snapshot else {}
        bars = [entry for entry in entries if entry.kind == "bar"]
        decisions = int(before.get("decided", 0)) + sum(entry.kind == "decision" for entry in entries)
        over = [entry.document["why"] for entry in entries if entry.kind == "end"]
        last: dict[str, Any] = {"account": {"equity": cash, "positions": {}}}
        if bars:
            last = bars[-1].document
        elif snapshot:  # which follows a bar, but for what the sandbox wrote beside it
            near = opened.journal_between(run, max(0, snapshot.after - _NEAR), snapshot.after + 1)
            last = next(one.document for one in reversed(near) if one.kind == "bar")
        fills = sum(one["kind_of_record"] == "Fill" for entry in bars for one in entry.document["happened"]["ledger"])
        missed = missed_before(before) + sum(bool(entry.document.get("missed")) for entry in entries)
        outcome = PaperOutcome(
            run, runs / run, over[-1] if over else "", int(before.get("bars", 0)) + len(bars), decisions,
            int(before.get("fills", 0)) + fills, missed, last["account"]["equity"], cash, last["account"]["positions"],
            {name: count for name, count in last.get("feed", {}).items() if name in FEED_TROUBLE},
            *sandbox_differences(sandbox_entries(opened, record)), last["account"].get("entry_prices", {}),
        )  # fmt: skip
        return record, outcome


def sandbox_entries(store: Store, record: RunRecord) -> list[JournalRecord]:
    """What the journal of a session says of its sandbox; nothing is read of one that has none."""
    paper = record.config.get("config", {}).get("paper", {})
    if paper.get("broker") != SANDBOX:
        return []
    return [entry for entry in entries_in_portions(store, record.run) if entry.kind == SANDBOX_ENTRY]


def paper_sessions(store: Store | str | Path = STORE) -> list[RunRecord]:
    """All sessions, the newest first."""
    with store_at(store) as opened:
        return [record for record in opened.runs() if record.kind == PAPER]


def paper_parity(run: str, store: Store | str | Path = STORE) -> Parity:
    """Play the session's recorded inputs through the backtest and compare. Raises `UserError`."""
    with store_at(store) as opened:
        record, config, start = stored_session(opened, run)
        entries = entries_of(opened, run)
        account = account_again(config, history_from_json(start["history"]), start)
        promotions = promotions_in(None, entries)
        teams = [team_in_place(record, config, promotions[:number]) for number in range(len(promotions) + 1)]
        return check_parity(
            entries, teams[0].team, teams[0].engine, account, limits_of(config.guard), record.seed, teams[1:]
        )


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
    sandbox: SandboxAccount | None = None


def play_session(
    parts: SessionParts,
    entries: Sequence[JournalRecord],
    start: dict[str, Any],
    released: bool = False,
    snapshot: Snapshot | None = None,
    shared: SharedBars | None = None,
) -> PaperOutcome:
    """Take up what the journal says after its first entry, `start`, or after `snapshot`, and let the session run to its
    end or pause.
    `released`: the kill switch was taken back. `shared`: this is the shadow of a session, which gives it these bars,
    and whose kill switch and stop it obeys. Raises `StoreError` as `PaperSession.restore` does."""
    config, team, account, feed = parts.config, parts.team, parts.account, parts.feed
    run, settings = parts.record.run, config.paper
    history = history_from_json(start["history"]) if snapshot is None else snapshot.history
    inside = inside_of(start)
    broker = SimulatedBroker(history, account.cash, account.costs, account.max_leverage, account.venue, inside)
    if snapshot is not None:
        broker.go_on(snapshot.state["broker"])
    grace = round(settings.grace_seconds * SECOND_MS)
    half_spread = config.costs.half_spread_bps / 1e4
    assembler = BarAssembler(
        dict(history.kinds), history.interval, broker.close, half_spread, inside, lambda: broker.account().mark
    )
    limits = limits_of(config.guard)
    guard = Guard(limits)
    last = None if start["last"] is None else int(start["last"])
    expected = 0 if last is None else (last - int(history.open_time[-1])) // history.interval
    mirror = None
    if parts.sandbox is not None:
        write = partial(_write_sandbox, parts.journal, feed)
        mirror = SandboxMirror(parts.sandbox, run, write, sandbox_entries(parts.store, parts.record))
    bars: BarSource = shared or FeedBars(feed, assembler, parts.journal, grace, last)
    shadow = _shadow_of(parts, start, released) if shared is None and parts.record.config.get("shadow") else None
    switch = Switch(parts.folder if shared is None else parts.folder.parent)
    session = PaperSession(
        broker, bars, parts.journal, switch, guard, team.team.codec, decide_every=int(start["decide_every"]),
        follower=mirror, shares=None if shadow is None else shadow.take,
        on_bar=lambda bars: parts.observer.progress("paper", bars, expected),
        keeps=shortening_of(start), notes=lambda: {"monitor": monitor.state()},
        whole_result=JournalReplay(parts.store, run, start, account).result,
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
        if bars.ended == "paused":
            return "the session that it is the shadow of has stopped"
        over = session.thinking_seconds() > settings.decision_timeout
        return f"no answer within {settings.decision_timeout:g} s" if over else None

    def prove(request: PromotionRequest) -> tuple[Promotable, LoadedTeam]:
        proof = promotable(parts.store, parts.store.run(run), config)
        if (proof.team, proof.digest) != (request.team, request.digest):
            raise UserError(f"{request.team or PROMOTE_FILE} is not what `paper promote` has checked: ask for it again")
        return proof, team_of_digest(proof.team, proof.digest, config)

    def refuse(why: str) -> None:
        parts.journal.write("notice", bars.now(), {"kind": "promotion", "detail": f"refused: {why}"})

    asked_for = 0 if session.promotion is None else int(session.promotion["asked"])
    promoter = Promoter(parts.folder, prove, refuse, lambda: feed.clock.jumps, asked_for)
    if shared is None:
        session.succeeded_by(promoter)
    told_elsewhere = frozenset[AlertKind]() if shared is None else SHARED_WITH_SHADOW
    silence = most_silence(config, history.interval)
    monitor = Monitor(run, parts.folder, settings.metrics_port, silence, told_elsewhere)
    monitor.go_on({} if snapshot is None else snapshot.state, entries)
    parts.journal.tell(monitor.entry)
    try:
        if shared is None:
            feed.open(broker.close)
        if shadow is not None:
            shadow.start()
            if session.promotion is not None and session.promotion["shadow"] == shadow_name(parts.record):
                shadow.leave()  # a kill came before it could
        with running(parts.folder):
            while True:
                thinker = Thinker(team.engine, why_not)
                session.thinks_with(thinker)
                thinker.run(
                    play(
                        team.team, session, limits, parts.record.seed, guard=guard, on_clamps=session.clamped,
                        price=team.price, decisions=session.decisions,
                        thinking_time=session_thinking_time(config),
                    )
                )  # fmt: skip
                if not session.succeeded or promoter.team is None:
                    break
                team = promoter.team
                session.decided_by(team.team.codec)
                if shadow is not None:
                    shadow.leave()
    finally:
        if shared is None:
            feed.close()
        if shadow is not None:
            over = session.ended and session.ended not in _PAUSES
            shadow.close("over" if over else "paused", settings.decision_timeout + _SHADOW_ENDS_IN)
        if mirror is not None:
            mirror.close()
        monitor.close()
    if session.ended not in _PAUSES:
        session.finish()
    result = session.result()
    if len(result.times) > 1:
        write_backtest(parts.store, run, parts.team.name, result)
    held = session.account()
    return PaperOutcome(
        run, parts.folder, session.ended, session.bars, session.decided, len(result.fills), session.missed,
        held.equity, account.cash, held.positions,
    )  # fmt: skip


def _with_shadow(store: Store, record: RunRecord, team: str) -> RunRecord:
    """The record of a session whose newest shadow is `team`; one that it had is over."""
    former = shadow_name(record)
    number = int(record.config.get("shadows", 1))
    if record.config.get("shadow"):
        number += 1
        if any(one.run == former and one.status != "finished" for one in store.runs()):
            store.finish_run(former, "finished", f"{team} is the shadow now")
    return replace(record, config={**record.config, "shadow": team, "shadows": number})


def _shadow_of(parts: SessionParts, start: dict[str, Any], released: bool) -> ShadowRun | None:
    """The shadow of a session, begun or to be resumed; None where it is over."""
    store, main, run = parts.store, parts.record, shadow_name(parts.record)
    known = {one.run for one in store.runs()}
    name = str(main.config["shadow"])
    document = {key: value for key, value in main.config.items() if key not in ("shadow", "shadows")}
    document |= {"team": name, "team_digest": digest_of_named(name, parts.config), "shadow_of": main.run}
    record = store.run(run) if run in known else replace(main, run=run, config=document)
    if record.status == "failed" and record.message == _OTHER_FILES:
        return None
    if record.config.get("team_digest", "") != document["team_digest"]:
        store.finish_run(run, "failed", _OTHER_FILES)
        return None
    team = session_team(name, parts.config)
    if not store.journal_between(run, 0, 1):
        Journal(store, run).write("start", parts.feed.clock.now(), start)
    snapshot, entries = newest_entries(store, run)
    if entries and entries[-1].kind == "end":
        return None
    store.resume_run(replace(record, status="running", finished_at=None, message=None))
    newest = [int(entry.document["bar"]["open_time"]) for entry in entries if entry.kind == "bar"]
    history = history_from_json(start["history"]) if snapshot is None else snapshot.history
    latest = newest[-1] if newest else int(history.open_time[-1])
    past = [
        bar_from_json(entry.document["bar"])
        for entry in entries_in_portions(store, main.run)
        if entry.kind == "bar" and int(entry.document["bar"]["open_time"]) > latest
    ]
    bars = SharedBars(lambda: parts.feed.clock, past)
    written = entries[-1].ordinal + 1 if entries else snapshot.after + 1 if snapshot else 1
    folder = parts.folder / "shadow"
    folder.mkdir(parents=True, exist_ok=True)
    shadowed = load_config(parts.config, _SHADOW_SETTINGS, name="the shadow")
    own = SessionParts(
        store, record, folder, shadowed, team, parts.account, parts.feed,
        Journal(store, run, written), SILENT,
    )  # fmt: skip

    def play_shadow() -> None:
        outcome = play_session(own, entries, start, released, snapshot, bars)
        store.finish_run(run, "interrupted" if outcome.why in _PAUSES else "finished", outcome.why)

    def failed(error: BaseException) -> None:
        store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])

    return ShadowRun(bars, play_shadow, failed)


def session_settings(request: PaperRequest) -> Config:
    """The configuration of a new session. Raises `ConfigError` as `load_config` does."""
    chosen = request.config or _LIVE_PRESET
    stated = request.on(chosen)
    if stated.paper.feed == RECORDED:
        if stated.paper.url or stated.paper.broker == SANDBOX:
            setting = "paper.broker = 'sandbox'" if stated.paper.broker == SANDBOX else "paper.url"
            raise UserError(f"{setting} is of an exchange's data: name one with --exchange, or leave it out")
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


def _write_sandbox(journal: Journal, feed: Feed, document: dict[str, Any]) -> None:
    journal.write(SANDBOX_ENTRY, feed.clock.now(), document)


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
            f"session {run} was interrupted; its journal is kept; go on with: cryptosentinel paper resume {run}"
        ) from None
    except Exception as error:
        with suppress(StoreError):  # the store may be why; a run without an end counts as abandoned
            store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    [outcome] = outcomes
    store.finish_run(run, "interrupted" if outcome.why in _PAUSES else "finished", outcome.why)
