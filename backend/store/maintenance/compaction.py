"""Compaction: the database of a folder written anew, which gives the space of deleted records back.

The engine (surrealkv in SDK 3.0.0b10, tried) keeps the space of what was deleted until its files grow tenfold, and has
no request that would compact them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER, WORKPLACE, discard, mark_ready, size_of
from backend.store.maintenance.copying import OnCopied, copy_store
from backend.store.maintenance.object_copy import remove_stray_files
from backend.store.maintenance.tables import Tables
from backend.store.store import Store


@dataclass(frozen=True)
class Compaction:
    """Bytes of the database before and after, how many records it holds, and how many files of runs were removed that
    no record names."""

    before: int
    after: int
    records: int
    strays: int


def compact_store(folder: Path, on_copied: OnCopied) -> Compaction:
    """Write the database of the store in `folder` anew and put it in place. It needs the space of what it keeps.

    The present one stays until the new one was read and compared. The files of runs stay where they are; those that no
    record names, and that are older than a day, are removed. Raises `StoreError` if anybody uses the folder, a run
    of it is being written, or the new one cannot be written or differs; then all is as it was.
    """
    folder = folder.absolute()
    if not (folder / DATABASE_FOLDER).is_dir() and not (folder / WORKPLACE).is_dir():
        raise StoreError(f"{folder} holds no store: give the folder of one")
    with Store.open(folder, exclusive=True) as store:
        before = size_of(folder / DATABASE_FOLDER)
        workplace = folder / WORKPLACE
        try:
            records = _write_anew(store, workplace, on_copied)
            mark_ready(folder)
        except BaseException as error:
            discard(folder)
            if isinstance(error, OSError):
                raise StoreError(
                    f"store {folder} cannot be compacted ({error.strerror}): it is as it was; free some space"
                ) from error
            raise
        strays = remove_stray_files(store)
    with Store.open(folder):  # which puts the new one in place
        return Compaction(before, size_of(folder / DATABASE_FOLDER), records, strays)


def _write_anew(store: Store, workplace: Path, on_copied: OnCopied) -> int:
    """The same store in `workplace`; returns how many records it holds."""
    running = [record.run for record in store.runs() if record.status == "running"]
    if running:
        raise StoreError(f"run {running[0]} of the store is being written: compact it afterwards")
    return sum(copy_store(store, workplace, on_copied, Tables(store).identity).values())
