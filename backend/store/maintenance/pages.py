"""The records of a run in pages, each read in one request and kept as the database encoded it.

Decoding and encoding rows in Python takes twice the time of reading and writing them. A page is passed on unread: the
same request, sent to a copy, gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surrealdb import RecordID
from surrealdb.data.types.range import BoundExcluded, BoundIncluded, Range

from backend.store.connection import Connection
from backend.store.maintenance.tables import OF_RUNS, OF_STEPS, Tables
from backend.store.records import BacktestRecord, DecisionRecord, Record, RunRecord
from backend.store.store import Store

_BYTES = 4_000_000  # about that long is a page of decisions; all of a step, and a backtest, are one page each
_FIRST_WINDOW, _LARGEST_WINDOW = 16, 4_096  # decisions
_END = 2**63 - 1  # the greatest number of a decision
_PAGED = (BacktestRecord, DecisionRecord)  # of which a run may have hundreds of megabytes


@dataclass(frozen=True)
class Page:
    """Records of the kinds `kinds`: what `text` selects is an object of rows by table. `what` names it in messages."""

    what: str
    kinds: tuple[type[Record], ...]
    text: str
    parameters: dict[str, Any]

    def read(self, connection: Connection) -> bytes:
        """The rows in a store, in the order of their keys, as the database encoded them."""
        return connection.query_encoded(self.text, self.parameters)


def run_page(run: str) -> Page:
    """The record of a run."""
    return _page(f"run {run}", {RunRecord: RecordID(RunRecord.table, [run])})


def read_pages(store: Store, run: str) -> Iterator[tuple[Page, bytes]]:
    """All other records of a run, each after what it refers to.

    A step is read in one request, so that no edge and no reward comes without what it refers to, also while a training
    writes. The newest step comes first: what is written meanwhile makes a copy no older than the moment at which it
    began.
    """
    connection = store.connection
    for kind in OF_RUNS:
        if kind not in _PAGED:
            page = _page(f"{kind.table} of run {run}", {kind: _keys(kind, [run])})
            yield page, page.read(connection)
    for name in connection.query("SELECT VALUE name FROM backtest WHERE run = $run", {"run": run}):
        page = _page(f"backtest {name} of run {run}", {BacktestRecord: RecordID(BacktestRecord.table, [run, name])})
        yield page, page.read(connection)
    for name in _deciding(connection, run):
        yield from _decisions(connection, run, name)
    for step in Tables(store).steps(run):
        page = _page(f"step {step} of run {run}", {kind: _keys(kind, [run, step]) for kind in OF_STEPS})
        yield page, page.read(connection)


def _page(what: str, selected: dict[type[Record], RecordID]) -> Page:
    tables = ", ".join(f"{kind.table}: (SELECT * FROM ${kind.table})" for kind in selected)
    return Page(what, tuple(selected), f"RETURN {{ {tables} }}", {kind.table: keys for kind, keys in selected.items()})


def _keys(kind: type[Record], beginning: list[Any]) -> RecordID:
    """All keys of a kind that begin so."""
    *same, last = beginning
    # "!" comes before whatever may follow in a longer id of a run.
    following = last + 1 if isinstance(last, int) else f"{last}!"
    return RecordID(kind.table, Range(BoundIncluded([*same, last]), BoundExcluded([*same, following])))


def _deciding(connection: Connection, run: str) -> Iterator[str]:
    """The backtests of which a run has decisions."""
    if connection.remote:
        text = "SELECT backtest FROM decision WHERE run = $run GROUP BY backtest"
        yield from (row["backtest"] for row in connection.query(text, {"run": run}))
        return
    text, parameters = "SELECT VALUE backtest FROM decision WHERE run = $run LIMIT 1", {"run": run}
    while rows := connection.query(text, parameters):
        yield rows[0]
        text = "SELECT VALUE backtest FROM decision WHERE run = $run AND backtest > $after LIMIT 1"
        parameters = {"run": run, "after": rows[0]}


def _decisions(connection: Connection, run: str, name: str) -> Iterator[tuple[Page, bytes]]:
    """The decisions of a backtest, in windows of their numbers that give pages of about equal size."""
    rows = connection.query(
        "SELECT count() FROM decision WHERE run = $run AND backtest = $name GROUP ALL", {"run": run, "name": name}
    )
    left = int(rows[0]["count"]) if rows else 0
    first, window = 0, _FIRST_WINDOW
    while left > 0 and first < _END:
        last = min(first + window, _END)
        keys = Range(BoundIncluded([run, name, first]), BoundExcluded([run, name, last]))
        page = _page(f"decisions {first} to {last} of run {run}", {DecisionRecord: RecordID("decision", keys)})
        content = page.read(connection)
        found = _length(content, DecisionRecord.table)
        if found:
            yield page, content
            left -= found
            window = max(1, min(4 * window, window * _BYTES // len(content), _LARGEST_WINDOW))
        else:
            window *= 4  # their numbers have a gap
        first = last


def _length(content: bytes, table: str) -> int:
    """How many rows the only table of a page has."""
    at = 2 + len(table)  # behind the head of a map of one, and a key of less than 24 bytes
    short = content[at] - 0x80
    if short < 24:
        return short
    return int.from_bytes(content[at + 1 : at + 1 + (1 << short - 24)], "big")
