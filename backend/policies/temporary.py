"""Folders for what only this process needs: weights on their way to a server, the meeting point of its followers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from simulator.errors import RunFailed

_PREFIX = "cryptosentinel-"
_LEFT_SECONDS = 30 * 86_400.0  # untouched for so long, a folder was left by a process that was killed
_PROBE = 4096  # bytes


def temporary_folder(
    purpose: str, *, keep: bool = False, prefix: str = _PREFIX, inside: Callable[[], str] = tempfile.gettempdir
) -> Path:
    """A new folder that only this user can read, in the folder that `inside` gives; it is removed when this process
    ends, or with `keep` (for logs) a month later.

    Raises `RunFailed` where the machine's folder for temporary files is full or cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{purpose}-", dir=inside()))
        # A full disk takes a folder's name and no file.
        probe = folder / "probe"
        probe.write_bytes(bytes(_PROBE))
        probe.unlink()
    except OSError as error:
        where = os.environ.get("TMPDIR") or "the machine's folder for temporary files"
        raise RunFailed(
            f"nothing can be written to {where} ({error.strerror or error}): free some space there, or set TMPDIR to a "
            "folder that can be written"
        ) from error
    if not keep:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for other in folder.parent.glob(f"{prefix}*"):
        with suppress(OSError):
            seen = other.lstat()
            if seen.st_uid == os.getuid() and seen.st_mtime < time.time() - _LEFT_SECONDS and not other.is_symlink():
                shutil.rmtree(other)
    return folder
