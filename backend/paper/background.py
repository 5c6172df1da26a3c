"""A session in the background: a process that outlives the terminal, with its log in the session's folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from backend.errors import INTERRUPTED
from backend.jobs.queue import start_detached
from simulator.errors import Interrupted, RunFailed, UserError
from simulator.files import write_whole

LOG_FILE, PROCESS_FILE = "session.log", "PROCESS"
_PATIENCE = 300.0  # seconds until a session must have begun
_LOOK_SECONDS = 0.05


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Show by a file in `folder` that this process runs the session, for the time of a block."""
    path = folder / PROCESS_FILE
    write_whole(path, str(os.getpid()))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def process_of(folder: Path) -> int | None:
    """The process that runs the session in `folder`, None where there is none."""
    try:
        process = int((folder / PROCESS_FILE).read_text())
        os.kill(process, 0)
    except (OSError, ValueError, OverflowError):
        return None
    return process


def start_in_background(command: Sequence[str], folder: Path, patience: float = _PATIENCE) -> int:
    """Run `cryptosentinel` with the arguments `command`, which begin a session in `folder`, detached from this
    terminal; returns its process once the session has begun.

    Raises `UserError` or `RunFailed` with the command's own words where it ended before that.
    """
    folder.mkdir(parents=True)
    log = folder / LOG_FILE
    with log.open("wb") as out:
        child = start_detached("backend.cli", command, out)
    deadline = time.monotonic() + patience
    try:
        while child.poll() is None and process_of(folder) != child.pid:
            if time.monotonic() > deadline:
                raise RunFailed(f"the session has not begun in {patience:.0f} seconds; what it does is in {log}")
            time.sleep(_LOOK_SECONDS)
    except BaseException:
        child.terminate()
        raise
    if child.returncode in (None, 0):
        return child.pid
    words = log.read_text(encoding="utf-8", errors="replace").strip()
    with suppress(OSError):  # nothing began: nothing is left, unless the command wrote more
        log.unlink()
        folder.rmdir()
    reason = words.rpartition("error: ")[2] or f"the command ended with exit code {child.returncode}"
    if child.returncode == INTERRUPTED:
        raise Interrupted(reason)
    raise (UserError if child.returncode == 2 else RunFailed)(reason)
