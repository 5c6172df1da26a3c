"""Copies of a run's files that all its processes on one machine share, so that each file travels there once.

A file goes by the SHA-256 of what it holds, under which whoever needs it first brings it here. Everybody else waits for
that and takes a hard link to it: what one process removes or replaces stays for the others.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backend.store.sharing.objects import FORGOTTEN_AFTER, file_sha256
from simulator.errors import RunFailed

SUFFIX = ".safetensors"  # no other files are shared
_CHECKSUM = re.compile(r"[0-9a-f]{64}")  # a record may come from anybody, and becomes a name here
_ARRIVING = ".arriving"
_LOCK = "lock"
_KEPT = 8  # files that nobody has any more: one that is slower than the others may still need them
_PATIENCE = 60.0  # seconds to wait for another process's turn, which may have been stopped in it
_LOOK = 0.05  # seconds between two looks whether it has ended

_log = logging.getLogger(__name__)


class MachineCopies:
    """The files in `folder`, which the processes of a run on this machine have in common."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, checksum: str, target: Path, bring: Callable[[Path], None]) -> None:
        """Put the file with this SHA-256 in place as `target`. Where it is not on this machine yet, `bring` is called
        with the path to which it brings all of it. Raises what `bring` raises, and `RunFailed` for what is no SHA-256.
        """
        if not _CHECKSUM.fullmatch(checksum):
            raise RunFailed(f"the record of {target.name} has no SHA-256: another program has written it")
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = self._folder / f"{checksum}{SUFFIX}"
        with self._turn():
            if not kept.is_file():
                self._bring(kept, bring)
        _link(kept, target)
        if file_sha256(target) == checksum:
            self.forget(_KEPT)
            return
        _log.warning("%s was damaged after it had come; it travels again", kept)
        with self._turn():
            self._bring(kept, bring)
        _link(kept, target)

    def forget(self, kept: int = 0) -> None:
        """Remove the files that no process has any more, but for the newest `kept` of them, and what processes that
        were killed have left half."""
        unused: list[tuple[int, Path]] = []
        for path in self._folder.glob("*"):
            with suppress(FileNotFoundError):  # another process has removed it meanwhile
                about = path.stat()
                if path.suffix == SUFFIX and about.st_nlink == 1:
                    unused.append((about.st_mtime_ns, path))
                elif path.suffix == _ARRIVING and time.time() - about.st_mtime > FORGOTTEN_AFTER:
                    path.unlink()
        for _, path in sorted(unused)[: len(unused) - kept]:
            path.unlink(missing_ok=True)

    def _bring(self, kept: Path, bring: Callable[[Path], None]) -> None:
        arriving = kept.with_name(f"{secrets.token_hex(8)}{_ARRIVING}")
        try:
            bring(arriving)
            os.replace(arriving, kept)
        finally:
            arriving.unlink(missing_ok=True)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time, for a block. Who does not come to an end in time is passed by: then a file may travel
        twice, and nothing else happens."""
        descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        _log.warning("another process has brought files for over %.0f s; going on beside it", _PATIENCE)
                        break
                time.sleep(_LOOK)
            yield
        finally:
            os.close(descriptor)


def _link(kept: Path, target: Path) -> None:
    """Make `target` the same file as `kept`, or a copy of it where the file system knows no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + _ARRIVING)
    part.unlink(missing_ok=True)
    try:
        os.link(kept, part)
    except OSError:  # another file system, or one without links; a file that has gone fails again
        shutil.copyfile(kept, part)
    os.replace(part, target)
