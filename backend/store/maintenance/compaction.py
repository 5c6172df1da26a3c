"""Compaction: the database of a folder written anew, which gives the space of deleted records back.

The engine (surrealkv in SDK 3.0.0b10, tried) gives the space of deleted values back when it merges files, but never
that of their keys, which it keeps as marks of deletion; and it has no request that would compact them. So a store in
which runs come and go grows by about a sixth of what is written, for ever. Whoever deletes much therefore compacts it
when it has grown enough (`compact_if_grown`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER, WORKPLACE, discard, mark_ready, size_of
from backend.store.lock import FolderHeld
from backend.store.maintenance.copying import OnCopied, copy_store
from backend.store.maintenance.object_copy import remove_stray_files
from backend.store.store import Store
from simulator.files import write_whole

LEAST_BYTES = 256_000_000  # below these a database is left alone
MEMORY = 2.0  # bytes that a compaction takes for each of the database: the engine merges files whole
GROWTH = 3.0  # times what the last compaction left
_NOTE = "compacted"  # file beside the database: the bytes that the last compaction left
_LONGEST_NOTE = 20


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
        after = size_of(folder / DATABASE_FOLDER)
    _note(folder, after)
    return Compaction(before, after, records, strays)


def compact_if_grown(folder: Path, on_copied: OnCopied, least: int = LEAST_BYTES) -> Compaction | None:
    """Compact the store in `folder` where its database takes more than `least` bytes and `GROWTH` times what the last
    compaction left, or, of a store that never had one, what it took when this was first called.

    None where it does not, or where another process uses the store. Raises `StoreError` as `compact_store` does, and
    where the machine has too little memory free.
    """
    size, left = size_of(folder / DATABASE_FOLDER), _noted(folder)
    if left is None:
        _note(folder, size)
        left = size
    if size <= max(least, GROWTH * left):
        return None
    if (free := _free_memory()) is not None and MEMORY * size > free:
        raise StoreError(
            f"store {folder} takes {size / 1e6:,.0f} MB, much of it of deleted records, and a compaction would need "
            f"{MEMORY * size / 1e6:,.0f} MB of memory, of which {free / 1e6:,.0f} MB are free: start `cryptosentinel "
            "store compact` when there is more"
        )
    try:
        return compact_store(folder, on_copied)
    except StoreError as error:
        if isinstance(error.__cause__, FolderHeld):
            return None
        raise


def _free_memory() -> int | None:
    """Bytes that the machine can give; None where it does not say."""
    try:
        available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(available[1]) * 1024 if available else None


def _noted(folder: Path) -> int | None:
    try:
        with (folder / _NOTE).open("rb") as file:
            return int(file.read(_LONGEST_NOTE))
    except (OSError, ValueError):  # there is none, or nobody wrote it whole: it is written anew
        return None


def _note(folder: Path, size: int) -> None:
    try:
        write_whole(folder / _NOTE, f"{size}\n")
    except OSError as error:
        raise StoreError(f"{folder / _NOTE} cannot be written ({error.strerror}): free some space") from error


def _write_anew(store: Store, workplace: Path, on_copied: OnCopied) -> int:
    """The same store in `workplace`; returns how many records it holds."""
    running = [record.run for record in store.runs() if record.status == "running"]
    if running:
        raise StoreError(f"run {running[0]} of the store is being written: compact it afterwards")
    return sum(copy_store(store, workplace, on_copied, replaces=True).values())
