"""A copy of a store by its files, verified by their SHA-256 and by a process of its own that reads every record.

It takes the time of reading and writing the files and the memory of one portion of them, where a copy through the
engine (`copying.py`) takes some twenty times as long: the engine writes and merges all of it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER
from backend.store.integrity.snapshot import DatabaseSnapshot, SnapshotFile
from backend.store.maintenance.copying import OnCopied

_PORTION = 1 << 20  # bytes


def copy_files(snapshot: DatabaseSnapshot, target: Path, on_copied: OnCopied) -> dict[str, int]:
    """Make the folder `target` a store with the files of a snapshot, and verify it: the process that reads the copy
    compares the files of runs with their records. Returns how many records of each
    table it holds. It has an identity of its own, and a run that was being written is one that was interrupted.

    Raises `StoreError` if the copy differs or cannot be read, and `OSError` if it cannot be written.
    """
    with snapshot.opened() as files:
        _reserve(target, files)
        total, done = sum(file.length for file in files), 0
        sums = {}
        for file in files:
            sums[file.name] = _copied(file, target / file.name)
            done += file.length
            on_copied("copied", done, total)
    for name, digest in sums.items():
        if name.startswith(f"{DATABASE_FOLDER}/") and _digest(target / name) != digest:
            raise StoreError(f"{target / name} does not hold what was written to it: is the disk damaged?")
    return _read_all(target, on_copied)


def _reserve(target: Path, files: Sequence[SnapshotFile]) -> None:
    """Make the files with the room that they need, so that a disk without it is known before anything is copied.
    Raises `OSError`."""
    for file in files:
        path = target / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as made:
            if file.length:
                os.posix_fallocate(made.fileno(), 0, file.length)
    for name in ("sstables", "vlog", "wal", "manifest"):  # the engine's, also where they are empty
        (target / DATABASE_FOLDER / name).mkdir(parents=True, exist_ok=True)


def _copied(file: SnapshotFile, target: Path) -> bytes:
    """Copy a file, onto the disk, and return the SHA-256 of what was read."""
    digest, at = hashlib.sha256(), 0
    with target.open("r+b", 0) as copy:
        while at < file.length:
            part = os.pread(file.descriptor, min(_PORTION, file.length - at), at)
            if not part:
                raise StoreError(f"{file.name} of the store was cut while it was copied")
            digest.update(part)
            copy.write(part)
            at += len(part)
        os.fsync(copy.fileno())
        # What is compared is to come from the disk.
        os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.digest()


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", 0) as file:
        while part := file.read(_PORTION):
            digest.update(part)
    return digest.digest()


def _read_all(target: Path, on_copied: OnCopied) -> dict[str, int]:
    """What the reading process says of the copy."""
    command = [sys.executable, "-m", "backend.store.maintenance.copy_reader", str(target)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with (
        TemporaryFile(dir=target) as complaints,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        counted: Counter[str] | None = None
        try:
            for line in process.stdout:
                document = json.loads(line)
                if "error" in document:
                    raise StoreError(f"the copy cannot be read: {document['error']}")
                if "records" in document:
                    counted = Counter(document["records"])
                else:
                    on_copied("verified", document["done"], document["total"])
        finally:
            with suppress(OSError):
                process.kill()
        if counted is None:
            complaints.seek(0)
            last = complaints.read().decode(errors="replace").strip().splitlines()[-1:]
            raise StoreError(f"the copy could not be read: the process that reads it ended ({' '.join(last)})")
    return dict(counted)
