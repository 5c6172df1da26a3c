"""A new database in the place of the one in a store's folder, so that a crash at any moment leaves one of the two.

The new one is built in `FOLDER/.compact/db`. When it is whole, `.compact/ready` says so. Whoever holds the folder next
puts it in place before the database is opened (`finish_swap`): the present one moves to `.compact/former`, the new one
to its place, and `.compact` goes. Without `ready` the new one is not whole, and goes. A conversion keeps the former
one: `ready` then holds the name that it gets beside the new one.

A database of the former engine is recognised here too: the present engine must not touch it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

from backend.store.errors import StoreError

DATABASE_FOLDER = "db"
WORKPLACE = ".compact"
_READY, _FORMER = "ready", "former"
_KEPT = re.compile(rf"{DATABASE_FOLDER}-[a-z0-9-]{{1,40}}")


def mark_ready(folder: Path, keep_as: str | None = None) -> None:
    """Say that the database in `folder/.compact` is whole and to be put in place. The caller holds the folder alone,
    and the one in `folder` changes no more. With `keep_as`, as `db-NAME`, the former one stays in `folder` under that
    name, which is free. Raises `OSError`."""
    workplace = folder / WORKPLACE
    written = workplace / f"{_READY}.tmp"
    written.write_text(keep_as or "", encoding="utf-8")
    sync_tree(workplace)
    os.rename(written, workplace / _READY)
    sync_folder(workplace)
    sync_folder(folder)


def discard(folder: Path) -> None:
    """Remove a new database that is not to be put in place. The mark goes first: what is left when this is cut short
    must not be taken for a whole one."""
    (folder / WORKPLACE / _READY).unlink(missing_ok=True)
    shutil.rmtree(folder / WORKPLACE, ignore_errors=True)


def finish_swap(folder: Path) -> None:
    """Finish an exchange that is ready, undo one that is not. The caller holds the folder's lock and no database in
    it is open. Raises `OSError`; the next one goes on from there."""
    workplace, present = folder / WORKPLACE, folder / DATABASE_FOLDER
    if not workplace.exists():
        return
    former, new = workplace / _FORMER, workplace / DATABASE_FOLDER
    if (workplace / _READY).exists() and new.exists():
        if present.exists():
            name = (workplace / _READY).read_text(encoding="utf-8")
            os.rename(present, folder / name if _KEPT.fullmatch(name) else former)
        os.rename(new, present)
        sync_folder(workplace)
        sync_folder(folder)
    # The mark goes last: without it a part of `former` would be taken for a database that is not whole.
    for path in (new, former):
        if path.exists():
            shutil.rmtree(path)
    shutil.rmtree(workplace)


def of_former_engine(database: Path) -> bool:
    """Whether the folder of a database was written by engine 2 of SurrealDB, whose log has a folder of its own name."""
    return (database / "clog").is_dir()


def refuse_former_engine(folder: Path) -> None:
    """Raises `StoreError` where the store in `folder` is one of engine 2. Engine 3 cannot open that, and leaves files
    of its own there when it tries (SDK 2.0.0 and 3.0.0b10, tried)."""
    if of_former_engine(folder / DATABASE_FOLDER):
        raise StoreError(
            f"store {folder} was written with the former engine (SurrealDB 2), which this program cannot open: convert "
            f"it with `cryptosentinel store convert {shlex.quote(str(folder))}`, which keeps the original"
        )


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
