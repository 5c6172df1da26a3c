"""A damaged store taken as it is, once its user has read what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER, finish_swap
from backend.store.integrity.acknowledged import ACKNOWLEDGED, MARK, Acknowledged, Damaged
from backend.store.integrity.copies import copy_damaged
from backend.store.lock import FolderHeld, FolderLock


@dataclass(frozen=True)
class Acceptance:
    """What was found, in words, and where the files are as they were found."""

    found: str
    copy: Path


def accept_store(folder: Path) -> Acceptance | None:
    """Let the next opening take the database in `folder` as it is, after a copy of all its files. Returns None, and
    does nothing, where it holds all that was acknowledged. Raises `StoreError`, then nothing was changed."""
    folder = folder.resolve()
    try:
        lock = FolderLock(folder)
    except FolderHeld as held:
        raise StoreError(f"{held}: end that one first") from held
    try:
        finish_swap(folder)
        try:
            Acknowledged(folder)
            return None
        except Damaged as error:
            found = str(error)
        database = folder / DATABASE_FOLDER
        copy = copy_damaged(folder)
        for name in (ACKNOWLEDGED, MARK):  # the mark goes last: without the file alone the store stays refused
            (database / name).unlink(missing_ok=True)
        return Acceptance(found, copy)
    except OSError as error:
        raise StoreError(
            f"store {folder} cannot be copied or changed ({error.strerror}): nothing was taken; free some space"
        ) from error
    finally:
        lock.release()
