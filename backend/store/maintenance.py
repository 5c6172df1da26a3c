"""Backup and compaction of a store in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surrealdb import RecordID
from surrealdb.data import cbor
from surrealdb.data.types.range import BoundExcluded, Range

from backend.store.connection import Connection
from backend.store.errors import StoreError
from backend.store.holding import NEW, READY
from backend.store.lock import FolderLock
from backend.store.manifest import DATABASE_FOLDER
from backend.store.records import ALL_KINDS, Delegation
from backend.store.store import Store
from simulator.files import DISK_FULL

OnDone = Callable[[str, int, int], None]  # what, done, total

_ROWS = 500  # of one request


@dataclass(frozen=True)
class Compaction:
    """Bytes of the database before and after, and how many records it holds."""

    before: int
    after: int
    records: int


def existing(folder: Path) -> Path:
    """`folder`, which holds a store. Raises `StoreError`."""
    if not any((folder / name).is_dir() for name in (DATABASE_FOLDER, NEW)):
        raise StoreError(f"there is no store in {folder}: give the folder of one with --store")
    return folder


def backup_store(source: Store, target: Path) -> dict[str, int]:
    """Copy a store into the folder `target`, which is then a store itself, also while programs write to the source:
    their requests wait. Returns how many records of each table the copy holds.

    The files are copied with their manifest, which is compared when the copy is opened. Raises `StoreError` for a
    server's store, if there is something at `target`, or if the copy cannot be written; then nothing is there.
    """
    if target.exists():
        raise StoreError(f"{target} exists already: give another folder for the backup")
    work = target.with_name(f".{target.name}.partial")
    lock = FolderLock(work)  # refused where another backup writes there
    try:
        shutil.rmtree(work / "store", ignore_errors=True)  # of a backup that was killed
        source.connection.copy_database(work / "store" / DATABASE_FOLDER)
        os.sync()
        with Store.open(work / "store", exclusive=True) as copy:
            counts = {kind.table: _count(copy.connection, kind.table) for kind in ALL_KINDS}
        os.rename(work / "store", target)
    except OSError as error:
        advice = "; free some space" if error.errno in DISK_FULL else ""
        raise StoreError(f"the backup {target} cannot be written ({error.strerror}){advice}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()
    return counts


def compact_store(folder: Path, on_done: OnDone = lambda what, done, total: None) -> Compaction:
    """Write the database of the store in `folder` again, without the space of deleted records, which the engine never
    gives back (SDK 3.0.0b10). It needs the space of what it keeps.

    The present database stays until the new one was read and compared. Raises `StoreError` if another program uses the
    folder, a run is being written, or the new database cannot be written or differs; then all is as it was.
    """
    folder = existing(folder).absolute()
    work = folder / NEW
    with Store.open(folder, exclusive=True) as store:
        running = [record.run for record in store.runs() if record.status == "running"]
        if running:
            raise StoreError(f"run {running[0]} of the store is being written: compact it afterwards")
        before = size_of(folder / DATABASE_FOLDER)
        try:
            records = _copy_records(store.connection, work, on_done)
            os.sync()
            (work / READY).touch()
        except BaseException as error:
            shutil.rmtree(work, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError(f"store {folder} cannot be compacted ({error.strerror}): free some space") from error
            raise
    Store.open(folder).close()  # puts the new database in place, as any other opening would
    return Compaction(before, size_of(folder / DATABASE_FOLDER), records)


def _copy_records(source: Connection, work: Path, on_done: OnDone) -> int:
    total, written, digests = sum(_count(source, kind.table) for kind in ALL_KINDS), 0, []
    with Store.open(work, exclusive=True) as new:
        for kind in ALL_KINDS:
            what = f"RELATION INTO {kind.table}" if kind is Delegation else f"INTO {kind.table}"
            for rows in _pages(source, kind.table):
                new.connection.query(f"INSERT {what} $rows RETURN NONE", {"rows": rows})
                digests.append(hashlib.sha256(cbor.encode(rows)).digest())
                written += len(rows)
                on_done("copied", written, total)
        (own,) = source.query("SELECT * FROM store:schema")
        new.connection.query("UPSERT store:schema CONTENT $own RETURN NONE", {"own": own})
        new.connection.remember(own["identity"])
    with Store.open(work, exclusive=True) as new:
        pages = (rows for kind in ALL_KINDS for rows in _pages(new.connection, kind.table))
        if [hashlib.sha256(cbor.encode(rows)).digest() for rows in pages] != digests:
            raise StoreError(f"the copy in {work} does not hold what was written to it: is the disk damaged?")
    return written


def _pages(connection: Connection, table: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table in the order of their keys."""
    rows = connection.query(f"SELECT * FROM {table} LIMIT {_ROWS}")
    while rows:
        yield rows
        beyond = RecordID(table, Range(BoundExcluded(rows[-1]["id"].id), None))
        rows = connection.query(f"SELECT * FROM $beyond LIMIT {_ROWS}", {"beyond": beyond})


def _count(connection: Connection, table: str) -> int:
    rows = connection.query(f"SELECT count() FROM {table} GROUP ALL")
    return int(rows[0]["count"]) if rows else 0


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())
