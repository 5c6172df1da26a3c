"""A backup: a second store in a folder of its own, also of a store that is being written."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import sync_folder, sync_tree
from backend.store.lock import FolderLock
from backend.store.maintenance.copying import OnCopied, all_counted, copy_store
from backend.store.maintenance.file_copy import copy_files
from backend.store.maintenance.object_copy import adopt_files, copy_objects
from backend.store.store import Store
from simulator.files import DISK_FULL


def backup_store(source: Store, target: Path, on_copied: OnCopied) -> dict[str, int]:
    """Copy a store into the folder `target`, which is itself a store, and verify the copy. Returns how many
    records of each table it holds. The files of runs that lie with the store are copied and compared, too.

    It is written beside its place, in a hidden folder, and renamed when it is whole and verified. Raises `StoreError`
    if there is something at `target` or the copy cannot be written; then nothing is there.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} exists already: give another folder for the backup")
    workplace = target.with_name(f".{target.name}.partial")
    copy = workplace / "store"
    lock: FolderLock | None = None
    try:
        lock = FolderLock(workplace)  # refuses where another backup is at it
        shutil.rmtree(copy, ignore_errors=True)  # of a backup that was cut short
        copied = _copy(source, copy, on_copied)
        sync_tree(copy)
        if target.exists():
            raise StoreError(f"{target} was made meanwhile: give another folder for the backup")
        os.rename(copy, target)
        sync_folder(target.parent)
    except OSError as error:
        advice = "; free some space" if error.errno in DISK_FULL else ""
        raise StoreError(
            f"the backup {target} cannot be written ({error.strerror}): nothing is there{advice}"
        ) from error
    finally:
        try:
            _leave(workplace, lock)
        except BaseException:  # an interrupt has cut it short
            _leave(workplace, lock)
            raise
    return copied


def _leave(workplace: Path, lock: FolderLock | None) -> None:
    """Remove the workplace, unless it is another's."""
    if lock is None:  # an interrupt came while it was taken, or another has it
        try:
            lock = FolderLock(workplace)
        except StoreError:
            return
    if not lock.released:
        shutil.rmtree(workplace, ignore_errors=True)
        lock.release()


def _copy(source: Store, target: Path, on_copied: OnCopied) -> dict[str, int]:
    """By its files where they are this machine's, else record by record."""
    # Only who has the database open can give the memory back that counting takes.
    before = _counts(source) if source.connection.holds else None
    source.verify_files()
    # The copy of a store with a bucket has the files beside it: nobody else's bucket is needed to put it back.
    snapshot = None if source.connection.bucket() is not None else source.connection.snapshot()
    if snapshot is None:
        files = copy_objects(source, target) if source.connection.keeps_files else {}
        copied = copy_store(source, target, on_copied)
        return copied | adopt_files(source, target, files)
    copied = copy_files(snapshot, target, on_copied)
    if before is not None and +Counter(copied) != before and _counts(source) == before:
        raise StoreError(f"the copy holds {sum(copied.values())} records, and the store {before.total()}: start again")
    return copied


def _counts(store: Store) -> Counter[str]:
    return +sum(all_counted(store).values(), Counter[str]())
