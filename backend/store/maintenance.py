"""Backup of a store. A copy has no space of deleted records, which the engine never gives back (SDK 3.0.0b10)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surrealdb import RecordID
from surrealdb.data import cbor
from surrealdb.data.types.range import BoundExcluded, BoundIncluded, Range

from backend.store.errors import StoreError
from backend.store.lock import FolderLock
from backend.store.manifest import DATABASE_FOLDER
from backend.store.records import ALL_KINDS
from backend.store.store import Store
from simulator.files import DISK_FULL

OnDone = Callable[[str, int, int], None]  # what, done, total
# The keys of all records, by table: every list comes before every object. What refers to others comes before them, so
# that a copy that is made while a program writes has all that its records refer to.
_EVERY = [RecordID(kind.table, Range(BoundIncluded([]), BoundExcluded({}))) for kind in reversed(ALL_KINDS)]


def existing(folder: Path) -> Path:
    """`folder`, which holds a store. Raises `StoreError`."""
    if not (folder / DATABASE_FOLDER).is_dir():
        raise StoreError(f"there is no store in {folder}: give the folder of one with --store")
    return folder


def backup_store(source: Store, target: Path, on_done: OnDone = lambda what, done, total: None) -> int:
    """Copy a store into the folder `target`, which is then a store itself, and return how many records the copy has.
    What programs add to the source meanwhile may be in the copy or not.

    The copy is read again and compared. Raises `StoreError` if there is something at `target`, or if the copy cannot be
    written; then nothing is there.
    """
    if target.exists():
        raise StoreError(f"{target} exists already: give another folder for the backup")
    work = target.with_name(f".{target.name}.partial")
    lock = FolderLock(work)  # refused where another backup writes there
    try:
        shutil.rmtree(work / "store", ignore_errors=True)  # of a backup that was killed
        copied = _copy_records(source, work / "store", on_done)
        os.sync()
        os.rename(work / "store", target)
    except OSError as error:
        advice = "; free some space" if error.errno in DISK_FULL else ""
        raise StoreError(f"the backup {target} cannot be written ({error.strerror}){advice}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()
    return copied


def _copy_records(source: Store, work: Path, on_done: OnDone) -> int:
    total, written, copied = sum(source.count_keys(keys) for keys in _EVERY), 0, hashlib.sha256()
    with Store.open(work, exclusive=True) as new:
        for keys in _EVERY:
            for page in source.pages(keys):
                rows = [_without_writer(row) for row in page]
                new.connection.query(f"INSERT INTO {keys.table_name} $rows RETURN NONE", {"rows": rows})
                for row in rows:
                    copied.update(cbor.encode(row))
                written += len(rows)
                on_done("copied", written, total)
        new.connection.query("UPDATE store:schema SET identity = $own RETURN NONE", {"own": source.identity})
        new.connection.identity = source.identity
    found = hashlib.sha256()
    with Store.open(work, exclusive=True) as new:
        for row in (row for keys in _EVERY for rows in new.pages(keys) for row in rows):
            found.update(cbor.encode(row))
    if found.digest() != copied.digest():
        raise StoreError(f"the copy in {work} does not hold what was written to it: is the disk damaged?")
    return written


def _without_writer(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a copy, in which nobody works on a run; its fields are in order, as the database gives them."""
    if row.get("status") == "running":
        row = row | {"status": "interrupted", "message": "it was running when the copy was made"}
    return dict(sorted(row.items()))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())
