"""Folders for what only this process needs: weights on their way to a server, the meeting point of its followers.

A process that is killed leaves its folders behind. Each is locked as long as its process lives, and whoever makes the
next one removes those that nobody holds, but for the newest of those that are kept for their logs.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simulator.errors import RunFailed

_PREFIX = "cryptosentinel-"
_LOCK = ".lock"  # in the folder: held while its process lives, and not empty where the folder is to be kept
_PROBE = 4096  # bytes
_KEPT = 5  # folders
_held: dict[Path, int] = {}  # descriptors of this process's locks by their folders, open as long as these are used


def temporary_folder(
    purpose: str, *, keep: bool = False, prefix: str = _PREFIX, inside: Callable[[], str] = tempfile.gettempdir
) -> Path:
    """A new folder that only this user can read, in the folder that `inside` names; it is removed when this process
    ends, unless it is to be kept: then the newest few are.

    Raises `RunFailed` where the machine's folder for temporary files is full or cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{purpose}-", dir=inside()))
        _lock(folder, keep)
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
    _clear_up(folder, prefix)
    return folder


@contextmanager
def folder_of_block(purpose: str) -> Iterator[Path]:
    """`temporary_folder` for a block, after which it is gone."""
    folder = temporary_folder(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(_held.pop(folder))


def _lock(folder: Path, keep: bool) -> None:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    _held[folder] = descriptor
    with suppress(OSError):  # a file system without locks: then nothing is cleared up there
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if keep:
        os.write(descriptor, b"keep")


def _clear_up(own: Path, prefix: str) -> None:
    """Remove what processes of this user that have ended left beside `own`."""
    kept = []
    for folder in _left_behind(own, prefix):
        with suppress(OSError):
            if (folder / _LOCK).stat().st_size:
                kept.append((folder.stat().st_mtime, folder))
            else:
                shutil.rmtree(folder)
    for _, folder in sorted(kept)[:-_KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _left_behind(own: Path, prefix: str) -> Iterator[Path]:
    """The folders that this program made for this user and that no process holds."""
    for folder in own.parent.glob(f"{prefix}*"):
        try:
            if folder == own or folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it has none (yet), or has gone meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except OSError:  # somebody is at work in it
            pass
        finally:
            os.close(descriptor)
