"""A session as a reader sees it: account, orders, decisions, guard, alerts, last report, and its row in the table of
runs.

All of it is read, nothing is played again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.decisions.document import DecisionDocument, StoredDecision
from backend.paper.journal import newest_entries
from backend.paper.monitor import METRICS, AlertRules, paper_problem
from backend.paper.parity import Parity
from backend.paper.sessions import PaperOutcome, paper_status
from backend.paper.switch import KILL_FILE, process_of
from backend.reporting.labels import title_of
from backend.reporting.run_table import RunRow, bare_row
from backend.store.errors import StoreError
from backend.store.records import EvaluationRecord, JournalRecord, RunRecord
from backend.store.store import Store
from simulator.errors import UserError

LAST_DECISIONS = 20
LAST_TRADES = 50
_REPORT = "paper_report"
_ENDINGS = {
    "finished": "the data came to its end",
    "stopped": "stopped",
    "flatten": "kill switch: closed all positions",
    "freeze": "kill switch: kept all positions",
    "liquidated": "liquidated",
}


@dataclass(frozen=True)
class LastReport:
    """What a report that was made at `at` (ms) found: the number of `differences` in the parity, and its sentences."""

    at: int
    differences: int
    parity: tuple[str, ...]


@dataclass(frozen=True)
class PaperEvent:
    """What is worth telling of the newest entries: an "alert", a "notice" of the feed or a "control" at `time` (ms)."""

    time: int
    event: str
    what: str
    detail: str


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
        curve: the time (ms) and the equity of the newest bars. events: of the newest entries, oldest first.
        positions: one of each symbol that is held.
        trades: the newest fills, the newest first, as the journal has them (see `Fill`).
        waiting: orders that wait at the last close, or were sent after it.
        decisions: the newest first, each with what the journal says of it beside.
        guard: what the guard holds, as the newest entry has it.
        team: who trades.
        problem: why somebody should look at it; empty where nobody needs to.
    """

    record: RunRecord
    outcome: PaperOutcome
    process: int | None
    curve: tuple[tuple[int, float], ...]
    events: tuple[PaperEvent, ...]
    positions: tuple[HeldPosition, ...]
    trades: tuple[Mapping[str, Any], ...]
    waiting: tuple[Mapping[str, Any], ...]
    decisions: tuple[tuple[StoredDecision, Mapping[str, Any]], ...]
    guard: Mapping[str, Any]
    team: str
    problem: str
    report: LastReport | None


def session_folders(runs: Path) -> list[str]:
    """Sessions that have begun below `runs`, by their folders alone, the newest first: no store is asked."""
    try:
        found = [path.parent for path in runs.glob(f"*/{METRICS}")]
        return [one.name for one in sorted(found, key=lambda one: (one / METRICS).stat().st_mtime, reverse=True)]
    except OSError:
        return []


def is_killed(folder: Path) -> bool:
    """Whether the kill switch of the session in `folder` is set."""
    return (folder / KILL_FILE).exists()


def overview(store: Store, run: str, runs: Path, now: float) -> SessionOverview:
    """The session `run` at `now` (seconds since the epoch). Raises `UserError` for one that is not in the store."""
    record, outcome = paper_status(run, store, runs)
    entries = newest_entries(store, run)
    guards = [entry.document["guard"] for entry in entries if entry.document.get("guard") is not None]
    return SessionOverview(
        record=record,
        outcome=outcome,
        process=process_of(runs / run),
        curve=tuple((one.time, float(one.document["account"]["equity"])) for one in entries if one.kind == "bar"),
        events=_events(entries),
        positions=_positions(outcome, entries),
        trades=_trades(entries),
        waiting=_waiting(entries),
        decisions=_decisions(run, entries),
        guard=guards[-1] if guards else {},
        team=str(record.config.get("team", "")),
        problem=paper_problem(record, runs / run, now),
        report=last_report(store, run),
    )


def _events(entries: Sequence[JournalRecord]) -> tuple[PaperEvent, ...]:
    rules, found = AlertRules(), list[PaperEvent]()
    for entry in entries:
        data = entry.document
        if entry.kind == "notice":
            found.append(PaperEvent(entry.time, "notice", str(data["kind"]), str(data["detail"])))
        elif entry.kind == "control":
            found.append(PaperEvent(entry.time, "control", str(data["what"]), ""))
        found += [PaperEvent(entry.time, "alert", what, detail) for what, detail in rules.of(entry.kind, data)]
    return tuple(found)


def _positions(outcome: PaperOutcome, entries: Sequence[JournalRecord]) -> tuple[HeldPosition, ...]:
    price: dict[str, float] = {}
    for entry in entries:
        if entry.kind != "bar":
            continue
        price |= {symbol: float(values[3]) for symbol, values in entry.document["bar"]["candles"].items()}
    rows = []
    for symbol, quantity in outcome.positions.items():
        if quantity:
            begun, last = (prices.get(symbol, float("nan")) for prices in (outcome.entry_prices, price))
            value, profit = quantity * last, quantity * (last - begun)
            rows.append(HeldPosition(symbol, quantity, begun, last, value, profit, value / outcome.equity))
    return tuple(rows)


def _trades(entries: Sequence[JournalRecord]) -> tuple[Mapping[str, Any], ...]:
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


def keep_report(store: Store, run: str, parity: Parity) -> None:
    """Keep what a report of the session `run` found, in the place of a former one."""
    document = {
        "at": int(time.time() * 1000),
        "differences": len(parity.differences),
        "parity": [parity_sentence(parity), *parity.differences[:20]],
    }
    store.put(EvaluationRecord(run, _REPORT, 0, document))


def last_report(store: Store, run: str) -> LastReport | None:
    """The newest report of the session `run`; None where none was made."""
    for record in store.evaluations(run):
        if record.name == _REPORT:
            kept = record.result
            return LastReport(int(kept["at"]), int(kept["differences"]), tuple(str(one) for one in kept["parity"]))
    return None


def parity_sentence(parity: Parity) -> str:
    """What was compared, in words."""
    return (
        f"parity: {parity.bars} bars, {parity.decisions} decisions and {parity.fills} fills compared with the backtest "
        f"of the recorded inputs: {len(parity.differences)} differences"
    )


def session_row(store: Store, run: RunRecord) -> RunRow:
    """The row of a session: its return so far, and what it has done. Also of one whose journal cannot be read, which
    says so. Raises `StoreError` where the store fails."""
    row = bare_row(run)
    team, data = run.config.get("team"), run.config.get("data")
    if isinstance(team, str):
        row = replace(row, teams=title_of(team))
    if isinstance(data, str):
        row = replace(row, data=data)
    try:
        _, outcome = paper_status(run.run, store)
        done = f"{outcome.bars} bars, {outcome.decisions} decisions, {outcome.fills} fills"
        row = replace(
            row,
            total_return=outcome.equity / outcome.begun_with - 1.0,
            verdict="; ".join(text for text in (_ENDINGS.get(outcome.why, ""), done) if text),
        )
    except (UserError, ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError):
        row = replace(row, verdict="its journal cannot be read")
    return replace(row, verdict=run.message) if run.message and run.status == "failed" else row
