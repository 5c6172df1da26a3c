"""A copy of a whole store, written through the engine and read again to compare.

Rows are passed on as the database encoded them (`pages.py`). The engine keeps what is written in memory until it is
closed, and whatever was read: up to 1 GB and up to half of the machine's memory (surrealdb-embedded 3.0.0b10), and
nothing sets it less. So both databases are closed and opened again now and then.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.store.errors import StoreError
from backend.store.gateway.rpc_messages import Encoded
from backend.store.maintenance.pages import Page, read_pages, run_page
from backend.store.maintenance.tables import COPIED, OF_RUNS, Tables, stray_runs
from backend.store.records import Delegation, Record, RunRecord
from backend.store.store import Store

_MODULUS = 2**256
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1_000, 4_000_000  # of one transaction
_READ_BYTES = 32_000_000  # read until what the engine keeps of it is given back
_COUNTED = 10_000  # records, whose part of the indexes takes some 20 MB
# The same of writing, which takes more than twice that. Each opening leaves a table file, and the engine merges every
# four of them, in memory: of many small ones never all at once.
_WRITTEN_BYTES = 32_000_000

WRITTEN_MEANWHILE = "it was being written when this copy was made"  # message of a run that was running

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


def copy_store(source: Store, target: Path, on_copied: OnCopied, replaces: bool = False) -> dict[str, int]:
    """Copy everything in `source` into a new store in the folder `target` and verify it: the copy is opened anew and
    read. Returns how many records of each table it holds. One that `replaces` the source has its identity and its
    bucket, any other an identity of its own and files beside it.

    A run that is being written becomes one that was interrupted. Raises `StoreError` if the copy cannot be written or
    differs.
    """
    copied, written = Counter[str](), list[tuple[Page, bytes]]()
    there = all_counted(source)
    total = sum(sum(counts.values()) for counts in there.values())
    with _Copy(target) as copy:
        read = 0
        for run in there:
            of_run = Counter[str]()
            for page, content in _pages(source, copy, run):
                content = copy.normal(content) if source.connection.remote else content
                of_run.update(copy.write(page, content))
                written.append((page, hashlib.sha256(content).digest()))
                read = released(source, read + len(content))
                done = copied.total() + of_run.total()
                copy.relieve()
                on_copied("copied", done, max(total, done))
            _refuse_less(source, run, there[run], of_run)
            copied += of_run
        if replaces:
            copy.replace(source)
    _verify(target, written, copied, on_copied)
    return dict(copied)


def all_rows(store: Store) -> Iterator[tuple[type[Record], list[Row]]]:
    """All rows of a store, in portions of one kind; each after what it refers to."""
    runs = [record.run for record in store.runs()]
    for run in (*runs, *stray_runs(store, runs)):
        run_rows = Tables(store).rows(RunRecord, run)
        if run_rows:
            yield RunRecord, run_rows
        for kind in OF_RUNS:
            yield kind, Tables(store).rows(kind, run)
        for step in Tables(store).steps(run):
            yield from Tables(store).rows_of_step(run, step).items()


class _Copy:
    """The new store in `folder`, of which nobody else knows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0
        self._store = Store.open(folder, exclusive=True)

    def __enter__(self) -> _Copy:
        return self

    def __exit__(self, *exception: object) -> None:
        self._store.close()

    def normal(self, content: bytes) -> bytes:
        """The same values as this store's engine encodes them."""
        return self._store.connection.query_encoded("RETURN $page", {"page": Encoded(content)})

    def encoded(self, rows: list[Row]) -> bytes:
        """A page of rows of runs."""
        return self._store.connection.query_encoded("RETURN { run: $rows }", {"rows": rows})

    def write(self, page: Page, content: bytes) -> dict[str, int]:
        """Add the records of a page, whose keys are not there yet, and return how many they are by table."""
        connection, given = self._store.connection, {"page": Encoded(content)}
        lengths = ", ".join(f"{kind.table}: array::len($page.{kind.table})" for kind in page.kinds)
        counts: dict[str, int] = connection.query(f"RETURN {{ {lengths} }}", given)
        most = max(1, min(_ROWS_AT_ONCE, sum(counts.values()) * _BYTES_AT_ONCE // len(content)))
        statements = [
            f"INSERT {'RELATION ' if kind is Delegation else ''}INTO {kind.table} "
            f"$page.{kind.table}[{first}..{min(first + most, counts[kind.table])}] RETURN NONE;"
            for kind in page.kinds
            for first in range(0, counts[kind.table], most)
        ]
        if statements:
            connection.query("".join(statements), given)
        self._written += len(content)
        return counts

    def relieve(self) -> None:
        """Close the database and open it again where enough was written for a file."""
        if self._written > _WRITTEN_BYTES:
            self._store.close()
            self._store, self._written = Store.open(self._folder, exclusive=True), 0

    def replace(self, source: Store) -> None:
        """Be the store that this is a copy of."""
        Tables(self._store).adopt_bucket(source.connection.bucket())
        Tables(self._store).adopt_identity(Tables(source).identity)


def _pages(source: Store, copy: _Copy, run: str) -> Iterator[tuple[Page, bytes]]:
    """A run before its records, so that it is not shown as more complete than it is."""
    if rows := Tables(source).rows(RunRecord, run):
        yield run_page(run), copy.encoded([_stopped(row) for row in rows])
    yield from read_pages(source, run)


def all_counted(store: Store) -> dict[str, Counter[str]]:
    """How many records of each table each run has, also of runs that are not there. Gives the engine's memory back."""
    runs = [record.run for record in store.runs()]
    return {run: counted(store, run) for run in (*runs, *stray_runs(store, runs))}


def counted(store: Store, run: str) -> Counter[str]:
    """How many records of each table a run has."""
    counts = Counter({kind.table: Tables(store).total(kind, run) for kind in COPIED})
    if counts.total() > _COUNTED:
        store.connection.release_memory()
    return counts


def _refuse_less(source: Store, run: str, there: Counter[str], copied: Counter[str]) -> None:
    """Raises `StoreError` if other numbers of records were copied than a run had, and nobody has changed it since."""
    if copied != there and counted(source, run) == there:
        raise StoreError(f"run {run} has {there.total()} records, of which {copied.total()} were copied: start again")


def _verify(target: Path, written: list[tuple[Page, bytes]], copied: Counter[str], on_copied: OnCopied) -> None:
    with Store.open(target, exclusive=True) as copy:
        read, done, total = 0, 0, copied.total()
        for number, (page, digest) in enumerate(written, 1):
            content = page.read(copy.connection)
            if hashlib.sha256(content).digest() != digest:
                raise StoreError(f"the copy in {target} does not hold what was written to it: {page.what}")
            read = released(copy, read + len(content))
            done = total * number // len(written)
            on_copied("verified", done, total)
        held = sum(all_counted(copy).values(), Counter[str]())
    if held != copied:
        raise StoreError(f"the copy in {target} holds {held.total()} records, and {copied.total()} were written to it")


def released(store: Store, read: int) -> int:
    """Bytes read since the engine gave its memory back, which it does here when they are many."""
    if read <= _READ_BYTES:
        return read
    store.connection.release_memory()
    return 0


def _stopped(row: Row) -> Row:
    if row["status"] != "running":
        return row
    return {**row, "status": "interrupted", "message": WRITTEN_MEANWHILE}


def _canonical(row: Row) -> bytes:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), default=_text).encode()


def _text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
