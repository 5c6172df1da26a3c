"""Copies of a database's files within the store's folder, made before the engine may repair or cut them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER

COPIES = "before-repair"
_KEPT = 2


def keep_copy(folder: Path, files: Sequence[Path]) -> None:
    """Copy files of the database into a new folder in `folder/before-repair`, of which the newest two stay. Only what
    the engine may change is given: it never writes into a finished table. Raises `StoreError`."""
    copies = folder / COPIES
    partial = copies / ".partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in files:
            if path.exists():
                shutil.copy2(path, partial / path.name)
        os.rename(partial, copies / f"{time.time_ns():020d}")
        for old in sorted(path for path in copies.iterdir() if path.name.isdigit())[:-_KEPT]:
            shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(
            f"store {folder}: its log cannot be copied to {copies} before the database may repair it "
            f"({error.strerror}); free some space"
        ) from error


def copy_database(folder: Path) -> Path:
    """Copy the whole database into a new folder `damaged-TIME` in `folder`, and return that. Raises `OSError`."""
    copy = folder / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    partial = folder / ".damaged.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(folder / DATABASE_FOLDER, partial)
    os.rename(partial, copy)
    return copy
