"""A new database in the place of the one in a store's folder, so that a crash at any moment leaves one of the two.

The new one is built in `FOLDER/.compact/db`. When it is whole, `.compact/ready` says so. Whoever holds the folder next
puts it in place before the database is opened (`finish_swap`): the present one moves to `.compact/former`, the new one
to its place, and `.compact` goes. Without `ready` the new one is not whole, and goes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

DATABASE_FOLDER = "db"
WORKPLACE = ".compact"
_READY, _FORMER = "ready", "former"


def mark_ready(folder: Path) -> None:
    """Say that the database in `folder/.compact` is whole and to be put in place. The caller holds the folder alone,
    and the one in `folder` changes no more. Raises `OSError`."""
    workplace = folder / WORKPLACE
    sync_tree(workplace)
    (workplace / _READY).touch()
    sync_folder(workplace)
    sync_folder(folder)


def finish_swap(folder: Path) -> None:
    """Finish a compaction that is ready, undo one that is not. The caller holds the folder's lock and no database in
    it is open. Raises `OSError`; the next one goes on from there."""
    workplace, present = folder / WORKPLACE, folder / DATABASE_FOLDER
    if not workplace.exists():
        return
    former, new = workplace / _FORMER, workplace / DATABASE_FOLDER
    if (workplace / _READY).exists() and new.exists():
        if present.exists():
            os.rename(present, former)
        os.rename(new, present)
        sync_folder(workplace)
        sync_folder(folder)
    # The mark goes last: without it a part of `former` would be taken for a database that is not whole.
    for path in (new, former):
        if path.exists():
            shutil.rmtree(path)
    shutil.rmtree(workplace)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder. Links are not followed."""
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())


def sync_folder(folder: Path) -> None:
    """Let the names in a folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Let everything below a folder outlive a power failure."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)
