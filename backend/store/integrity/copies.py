"""Copies of a database within its store's folder, made before the engine may repair or cut it.

Each is a whole database, what was acknowledged of it included: put in the place of `db` it is the store as it was. The
engine never writes into a finished table, so a copy shares tables with the original, by links, and needs the space of
the rest.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER, sync_tree

COPIES = "before-repair"
_KEPT = 2
_TIME = re.compile(r"\d{8}T\d{6}\.\d{9}Z")
_TABLES, _LARGE_VALUES = "sstables", "vlog"


def keep_copy(folder: Path) -> None:
    """Copy the database into a new folder in `folder/before-repair`, of which the newest two stay. Large values are
    shared as tables are: the engine only adds to them. Raises `StoreError`; then no copy was removed."""
    copies = folder / COPIES
    try:
        copies.mkdir(exist_ok=True)
        link_database(folder / DATABASE_FOLDER, copies / _now())
        for old in kept_copies(folder)[:-_KEPT]:
            shutil.rmtree(old)
    except OSError as error:
        raise StoreError(
            f"store {folder}: its database cannot be copied to {copies} before it may be repaired "
            f"({error.strerror}). Nothing was changed: free some space"
        ) from error


def kept_copies(folder: Path) -> list[Path]:
    """The copies in `folder/before-repair`, oldest first."""
    try:
        return sorted(path for path in (folder / COPIES).iterdir() if _TIME.fullmatch(path.name))
    except FileNotFoundError:
        return []


def link_database(database: Path, target: Path) -> None:
    """Copy a closed database to `target`, which is whole or absent: tables and large values by links where links can
    be made. Raises `OSError`."""
    _copy(database, target, (_TABLES, _LARGE_VALUES))


def copy_damaged(folder: Path) -> Path:
    """Copy the database into a new folder `damaged-TIME` in `folder`, and return that. Raises `OSError`."""
    copy = folder / f"damaged-{_now()}"
    _copy(folder / DATABASE_FOLDER, copy, (_TABLES,))
    sync_tree(copy)
    return copy


def _now() -> str:
    now = time.time_ns()
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now // 10**9))}.{now % 10**9:09d}Z"


def _copy(database: Path, target: Path, shared: tuple[str, ...]) -> None:
    """Copy to `target`, which is whole or absent. Files in the folders `shared` are links where links can be made."""
    partial = target.parent / ".partial"
    if partial.exists():  # of one that was killed
        shutil.rmtree(partial)
    try:
        partial.mkdir()
        for path in sorted(database.rglob("*")):  # a folder comes before what is in it
            name = path.relative_to(database)
            if path.is_dir():
                (partial / name).mkdir()
            elif name.parts[0] in shared:
                link_or_copy(path, partial / name)
            else:
                shutil.copy2(path, partial / name)
        os.rename(partial, target)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def link_or_copy(path: Path, target: Path) -> None:
    """A second name of a file, a copy where its file system has no such. Raises `OSError`."""
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(path, target)
