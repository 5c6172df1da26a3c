"""The files of a store as they were between two requests, for who copies them while the database goes on.

Whoever holds the folder closes the engine for a moment, which puts all that was written into files, and makes links to
them in `FOLDER/.snapshots`. The engine never changes a finished table and only adds to large values (surrealdb-embedded
3.0.0b10, tried), so what a link shows up to the length noted with it stays as it was. Who copies opens the files and
removes the links; what a kill leaves, the next holder removes.

The files of runs (`objects/`) are linked at the same moment. They never change. Their records are written after them
and deleted before them, so what a record of the snapshot names is there.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER
from backend.store.integrity.copies import link_database, link_or_copy
from backend.store.sharing.objects import OBJECTS_FOLDER, ObjectFolder

SNAPSHOTS = ".snapshots"
_OTHER_FILES = 64  # that a process opens meanwhile


@dataclass(frozen=True)
class SnapshotFile:
    """An open file of a snapshot: where it belongs in the store's folder, and its length in bytes."""

    name: str
    descriptor: int
    length: int


@dataclass(frozen=True)
class DatabaseSnapshot:
    """Links to the files of a store in `folder`, and the length of each by its path there."""

    folder: Path
    lengths: dict[str, int]

    def text(self) -> str:
        """For another process of this machine; `from_text` reads it."""
        return json.dumps({"folder": self.folder.name, "lengths": self.lengths})

    @classmethod
    def from_text(cls, store: Path, text: str) -> DatabaseSnapshot:
        """A snapshot of the store in a folder. Raises ValueError, KeyError or TypeError for another text."""
        document = json.loads(text)
        return cls(
            store / SNAPSHOTS / Path(document["folder"]).name,
            {str(name): int(length) for name, length in document["lengths"].items()},
        )

    @contextmanager
    def opened(self) -> Iterator[list[SnapshotFile]]:
        """Its files, open for reading; the links are removed at once. Raises `OSError`."""
        with ExitStack() as stack:
            try:
                _allow_open_files(len(self.lengths))
                files = [
                    SnapshotFile(name, stack.enter_context((self.folder / name).open("rb", 0)).fileno(), length)
                    for name, length in sorted(self.lengths.items())
                ]
            finally:
                shutil.rmtree(self.folder, ignore_errors=True)
            yield files


def _allow_open_files(more: int) -> None:
    """Let this process have that many more files open, as far as it may: a shell allows 1,024 at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + more + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def take_snapshot(folder: Path) -> DatabaseSnapshot:
    """Link the files of a store, whose database is closed. Raises `StoreError` if the engine has left a log, as it does
    where the disk is full, or the links cannot be made; then none is there."""
    target = folder / SNAPSHOTS / secrets.token_hex(8)
    try:
        target.mkdir(parents=True)
        link_database(folder / DATABASE_FOLDER, target / DATABASE_FOLDER)
        _link_objects(folder / OBJECTS_FOLDER, target / OBJECTS_FOLDER)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise StoreError(
            f"store {folder}: links to its files cannot be made in {target.parent} ({error.strerror}): free some space"
        ) from error
    # What lies beside the engine's own folders is of the process that has it open.
    lengths = {
        str(path.relative_to(target)): os.stat(path).st_size
        for path in sorted(target.rglob("*"))
        if path.is_file() and path.parent != target / DATABASE_FOLDER
    }
    if logs := [name for name, length in lengths.items() if name.startswith(f"{DATABASE_FOLDER}/wal/") and length]:
        shutil.rmtree(target, ignore_errors=True)
        raise StoreError(
            f"store {folder}: the database could not put its log {logs[0]} into tables. Nothing is lost: free some "
            "space and start again"
        )
    return DatabaseSnapshot(target, lengths)


def _link_objects(objects: Path, target: Path) -> None:
    for name in ObjectFolder(objects).names():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # its record was deleted before the database was closed
            link_or_copy(objects / name, target / name)


def remove_snapshots(folder: Path) -> None:
    """Remove what a kill has left of snapshots."""
    shutil.rmtree(folder / SNAPSHOTS, ignore_errors=True)
