"""Folders for what only this process needs: weights on their way to a server, the meeting point of its followers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from simulator.errors import RunFailed

_PROBE = 4096  # bytes


def temporary_folder(purpose: str, *, keep: bool = False) -> Path:
    """A new folder that only this user can read; it is removed when this process ends, unless it is to be kept.

    Raises `RunFailed` where the machine's folder for temporary files is full or cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"cryptosentinel-{purpose}-"))
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
    return folder
