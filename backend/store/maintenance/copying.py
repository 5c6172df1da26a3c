"""A copy of a whole store, written through the engine and read again to compare.

The rows are copied as they are. A step is read in one request, so that no edge and no reward comes without what it
refers to, also while a training writes. The newest step comes first and a run before its records: what is written
meanwhile makes the copy no older than the moment at which it began, and never shows a run as more complete than it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.store.errors import StoreError
from backend.store.maintenance.tables import Tables
from backend.store.records import KINDS, Record, RunRecord, ServiceRecord
from backend.store.store import Store

COPIED: tuple[type[Record], ...] = (*KINDS, ServiceRecord)
_MODULUS = 2**256

Row = dict[str, Any]
OnCopied = Callable[[str, int, int], None]  # what, done, total


@dataclass
class Fingerprint:
    """What a store holds, whatever the order of its rows: by table the number of rows and the sum of their SHA-256
    modulo 2^256."""

    rows: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)

    def add(self, kind: type[Record], rows: list[Row]) -> None:
        """Count rows of a kind."""
        total = sum(int.from_bytes(hashlib.sha256(_canonical(row)).digest()) for row in rows)
        self.rows[kind.table] = self.rows.get(kind.table, 0) + len(rows)
        self.sums[kind.table] = (self.sums.get(kind.table, 0) + total) % _MODULUS

    def differences(self, other: Fingerprint) -> list[str]:
        """The tables in which two differ, with the numbers of rows."""
        return [
            f"{kind.table} ({self.rows.get(kind.table, 0)} and {other.rows.get(kind.table, 0)} rows)"
            for kind in COPIED
            if self.sums.get(kind.table, 0) != other.sums.get(kind.table, 0)
            or self.rows.get(kind.table, 0) != other.rows.get(kind.table, 0)
        ]


def copy_store(source: Store, target: Path, on_copied: OnCopied) -> Fingerprint:
    """Copy everything in `source` into a new store in the folder `target` and verify it:
    the copy is opened anew and read. Returns what it holds.

    A run that is being written becomes one that was interrupted. Raises `StoreError` if the copy cannot be written or
    differs.
    """
    total, done = sum(Tables(source).total(kind) for kind in COPIED), 0
    written = Fingerprint()
    with Store.open(target) as copy:
        for kind, rows in all_rows(source):
            if kind is RunRecord:
                rows = [_stopped(row) for row in rows]
            Tables(copy).insert_rows(kind, rows)
            written.add(kind, rows)
            done += len(rows)
            on_copied("copied", done, max(total, done))
    stored = Fingerprint()
    with Store.open(target) as copy:
        for kind, rows in all_rows(copy):
            stored.add(kind, rows)
            on_copied("verified", sum(stored.rows.values()), done)
    differing = written.differences(stored)
    if differing:
        raise StoreError(f"the copy in {target} does not hold what was written to it: {', '.join(differing)}")
    return stored


def all_rows(store: Store) -> Iterator[tuple[type[Record], list[Row]]]:
    """All rows of a store, in portions of one kind; each after what it refers to."""
    runs = [record.run for record in store.runs()]
    for run in (*runs, *stray_runs(store, runs)):
        run_rows = Tables(store).rows(RunRecord, run)
        if run_rows:
            yield RunRecord, run_rows
        for kind in COPIED:
            if kind is not RunRecord and "step" not in kind.identity:
                yield kind, Tables(store).rows(kind, run)
        for step in Tables(store).steps(run):
            yield from Tables(store).rows_of_step(run, step).items()


def stray_runs(store: Store, runs: list[str]) -> list[str]:
    """The ids in records whose run is not there, as an import leaves them that was cut short."""
    known = set(runs)
    stray: set[str] = set()
    for kind in COPIED:
        if kind is not RunRecord and Tables(store).total(kind) != sum(store.count(kind, run) for run in runs):
            stray |= set(Tables(store).run_ids(kind)) - known
    return sorted(stray)


def _stopped(row: Row) -> Row:
    if row["status"] != "running":
        return row
    return {**row, "status": "interrupted", "message": "it was being written when this copy was made"}


def _canonical(row: Row) -> bytes:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), default=_text).encode()


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
