"""An exclusive lock on a folder.

The store takes this lock before it looks at anything in the folder. The engine locks its own part of the folder; this
lock also holds for the files beside it, and its message names the holder. It is `flock` on a file: the kernel drops it
when the holder dies, however it dies, so a crash leaves nothing to clean up. The holder's pid and start time are
written into the file only to name the holder to the second opener.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from backend.store.errors import StoreError


class FolderLock:
    """Holds `folder/lock` from construction until `release`.

    Raises `StoreError` if someone holds it already, this process included, or if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(
                f"store {folder}: cannot use this folder ({error.strerror}); choose a folder that can be written"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._descriptor)
            os.close(self._descriptor)
            raise StoreError(
                f"store {folder} is in use by {holder}. Only one process at a time may open it: wait until "
                "that one ends, stop it, or give another folder"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(
                f"store {folder}: its file system cannot lock files ({error.strerror}); choose a folder on a local disk"
            ) from error
        note = json.dumps({"pid": os.getpid(), "since": int(time.time())}).encode()
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, note, 0)
        except OSError as error:
            self.release()
            raise StoreError(f"store {folder}: cannot write ({error.strerror}); free some space") from error

    def release(self) -> None:
        """Give the lock back; a second call does nothing. The file stays, since removing it could race an opener."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _holder(descriptor: int) -> str:
    """Who wrote the lock file, in words. The note may be absent when the holder is just starting."""
    try:
        note = json.loads(os.pread(descriptor, 200, 0))
        pid, since = int(note["pid"]), datetime.fromtimestamp(note["since"], UTC)
    except (ValueError, KeyError, TypeError):
        return "another process"
    who = "this very process" if pid == os.getpid() else f"process {pid}"
    return f"{who}, which opened it at {since:%Y-%m-%d %H:%M:%S} UTC"
