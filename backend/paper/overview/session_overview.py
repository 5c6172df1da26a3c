"""How a session stands, for who watches it: account, orders, decisions, guard, alerts. All of it is read, nothing is
played again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.decisions.document import DecisionDocument, StoredDecision
from backend.paper.background import process_of
from backend.paper.monitor import LOG, paper_problem
from backend.paper.overview.last_report import LastReport, last_report
from backend.paper.records.stored import newest_entries, session_record, shadow_name
from backend.paper.sessions import PaperOutcome, paper_status
from backend.paper.switch import KILL_FILE
from backend.store.errors import StoreError
from backend.store.records import JournalRecord, RunRecord
from backend.store.store import Store

LAST_DECISIONS = 20
LAST_TRADES = 50
_TRADED_ENTRIES = 1_000  # of the journal that are looked through for them
_TAIL = 4_000_000  # bytes of the log that are read: about a month of minutes
_LATEST = ("alert", "notice", "control", "promotion")


@dataclass(frozen=True)
class EventLog:
    """What the log of a session has, of its end: closes (ms) with the equity, and what is worth telling."""

    times: tuple[int, ...]
    equity: tuple[float, ...]
    events: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class HeldPosition:
    """A position at the last close: its signed quantity in base units, its average entry price and the last price in
    quote currency, its value, its profit before closing costs, and its share of the equity (below 0: short)."""

    symbol: str
    quantity: float
    entry: float
    price: float
    value: float
    profit: float
    share: float


@dataclass(frozen=True)
class SessionOverview:
    """A session as it stands.

    Attributes:
        positions: one of each symbol that is held.
        trades: the newest fills, the newest first, as the journal has them (see `Fill`).
        waiting: orders that wait at the last close, or were sent after it.
        decisions: the newest first, each with what the journal says of it beside.
        guard: what the guard holds, as the newest entry has it.
        problem: why somebody should look at it; empty where nobody needs to.
        shadow: the same of its shadow, without a shadow of its own.
    """

    record: RunRecord
    outcome: PaperOutcome
    process: int | None
    log: EventLog
    positions: tuple[HeldPosition, ...]
    trades: tuple[Mapping[str, Any], ...]
    waiting: tuple[Mapping[str, Any], ...]
    decisions: tuple[tuple[StoredDecision, Mapping[str, Any]], ...]
    guard: Mapping[str, Any]
    promotion: Mapping[str, Any]
    problem: str
    report: LastReport | None
    shadow: PaperOutcome | None = None


def session_folders(runs: Path) -> list[str]:
    """Sessions that have begun below `runs`, by their folders alone, the newest first: no store is asked."""
    try:
        found = [path.parent for path in runs.glob(f"*/{LOG}")]
        return [one.name for one in sorted(found, key=lambda one: (one / LOG).stat().st_mtime, reverse=True)]
    except OSError:
        return []


def is_killed(folder: Path) -> bool:
    """Whether the kill switch of the session in `folder` is set."""
    return (folder / KILL_FILE).exists()


def overview(store: Store, run: str, runs: Path, now: float) -> SessionOverview:
    """The session `run` at `now` (seconds since the epoch). Raises `UserError` for one that is not in the store."""
    record, outcome = paper_status(run, store, runs)
    record = session_record(store, run)
    snapshot, entries = newest_entries(store, run)
    bars = [entry for entry in entries if entry.kind == "bar"]
    guards = [entry.document["guard"] for entry in entries if entry.document.get("guard") is not None]
    before = {} if snapshot is None else snapshot.state
    promotions = [entry.document for entry in entries if entry.kind == "promotion"]
    shadow = None
    if record.config.get("shadow") and any(one.run == shadow_name(record) for one in store.runs()):
        _, shadow = paper_status(shadow_name(record), store, runs)
    return SessionOverview(
        record=record,
        outcome=outcome,
        process=process_of(runs / run),
        log=event_log(runs / run / LOG),
        positions=_positions(outcome, bars),
        trades=_trades(store, run, entries[-1].ordinal if entries else 0 if snapshot is None else snapshot.after),
        waiting=_waiting(entries),
        decisions=_decisions(run, entries),
        guard=guards[-1] if guards else before.get("guard", {}),
        promotion=promotions[-1] if promotions else before.get("team") or {},
        problem=paper_problem(record, runs / run, now),
        report=last_report(store, run),
        shadow=shadow,
    )


def event_log(path: Path) -> EventLog:
    """What the log at `path` has; lines that cannot be read are left out."""
    times, equity, events = list[int](), list[float](), list[Mapping[str, Any]]()
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            event = json.loads(line)
            if event["event"] == "bar":
                point = int(event["time"]), float(event["equity"])
                times.append(point[0])
                equity.append(point[1])
            elif event["event"] in _LATEST:
                events.append(event)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    return EventLog(tuple(times), tuple(equity), tuple(events))


def _positions(outcome: PaperOutcome, bars: Sequence[JournalRecord]) -> tuple[HeldPosition, ...]:
    price: dict[str, float] = {}
    for entry in bars:
        price |= {symbol: float(values[3]) for symbol, values in entry.document["bar"]["candles"].items()}
    rows = []
    for symbol, quantity in outcome.positions.items():
        if quantity:
            begun, last = (prices.get(symbol, float("nan")) for prices in (outcome.entry_prices, price))
            value, profit = quantity * last, quantity * (last - begun)
            rows.append(HeldPosition(symbol, quantity, begun, last, value, profit, value / outcome.equity))
    return tuple(rows)


def _trades(store: Store, run: str, last: int) -> tuple[Mapping[str, Any], ...]:
    """The newest fills of the entries up to the ordinal `last`."""
    entries = store.journal_between(run, max(0, last - _TRADED_ENTRIES), last + 1)
    ledger = [one for entry in entries if entry.kind == "bar" for one in entry.document["happened"]["ledger"]]
    return tuple([one for one in reversed(ledger) if one["kind_of_record"] == "Fill"][:LAST_TRADES])


def _waiting(entries: Sequence[JournalRecord]) -> tuple[Mapping[str, Any], ...]:
    """What waited at the last close, and what was sent since."""
    waiting: list[Mapping[str, Any]] = []
    for entry in entries:
        if entry.kind == "bar":
            waiting = list(entry.document.get("waiting", ()))
        if not entry.document.get("dropped"):
            sent = [request for request, _ in entry.document.get("requests") or ()]
            ended = {request.get("id") for request in sent if request.get("kind_of_record") == "Cancel"}
            waiting = [order for order in waiting if order.get("id") not in ended]
            waiting += [request for request in sent if request.get("kind_of_record") != "Cancel"]
    return tuple(waiting)


def _decisions(run: str, entries: Sequence[JournalRecord]) -> tuple[tuple[StoredDecision, Mapping[str, Any]], ...]:
    rows = []
    for entry in reversed([one for one in entries if one.kind == "decision"][-LAST_DECISIONS:]):
        for document in entry.document["decisions"]:
            try:
                read = DecisionDocument.from_json(document, f"entry {entry.ordinal} of the journal of {run}")
            except StoreError:
                continue
            rows.append((StoredDecision(run, "", entry.ordinal, entry.time, read), entry.document))
    return tuple(rows)
