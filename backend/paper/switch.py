"""The files of a running session: its process, and by which it is told to end, the kill switch and an orderly stop.

They lie in the session's folder. Anybody who may write there can make them, with or without this program: a file `KILL`
closes everything, and one that holds `freeze` withdraws what waits and keeps positions.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from simulator.files import write_whole

KILL_FILE, STOP_FILE, PROCESS_FILE = "KILL", "STOP", "PROCESS"
SwitchOrder = Literal["flatten", "freeze", "stop"]
_LOOK_SECONDS = 0.02


class Switch:
    """What the files in `folder` say; they are looked at no more often than fifty times a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: SwitchOrder | None = None
        self._looked = -math.inf

    def order(self) -> SwitchOrder | None:
        """What is asked for; the kill switch goes before a stop, and neither is taken back while the session runs."""
        now = time.monotonic()
        if self._seen in (None, "stop") and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._seen = read_order(self._folder)
        return self._seen

    def look_again(self) -> None:
        """Let the next `order` look at the files, however short ago that was done."""
        self._looked = -math.inf


def read_order(folder: Path) -> SwitchOrder | None:
    """What the files say now. A kill switch that cannot be read, or holds anything but `freeze`, closes
    everything."""
    kill = folder / KILL_FILE
    if kill.exists():
        try:
            word = kill.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            word = ""
        return "freeze" if word == "freeze" else "flatten"
    return "stop" if (folder / STOP_FILE).exists() else None


def set_kill(folder: Path, how: Literal["flatten", "freeze"]) -> None:
    """Set the kill switch of the session in `folder`."""
    write_whole(folder / KILL_FILE, how)


def set_stop(folder: Path) -> None:
    """Ask the session in `folder` to stop."""
    write_whole(folder / STOP_FILE, "")


def release(folder: Path, kill: bool) -> None:
    """Take back a stop, and with `kill` the kill switch."""
    (folder / STOP_FILE).unlink(missing_ok=True)
    if kill:
        (folder / KILL_FILE).unlink(missing_ok=True)


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
