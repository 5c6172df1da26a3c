"""Processes that outlive the one that started them, and who a process is, so that no other is ever signaled for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}  # for a log: no colors, no narrow tables


@dataclass(frozen=True)
class RunningProcess:
    """A process that is there: the user that it belongs to, its session, when it began (in words that can only be
    compared: numbers of processes are given out again), and its arguments."""

    user: int
    session: int
    started: str
    arguments: tuple[str, ...]


def process_at(pid: int) -> RunningProcess | None:
    """The process of that number; None where there is none, or it has ended and is not waited for yet."""
    if pid <= 0:
        return None
    try:
        if not Path("/proc/self/stat").exists():
            return _by_ps(pid)
        place = Path(f"/proc/{pid}")
        fields = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        if fields[0] in "ZX":
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        words = (place / "cmdline").read_bytes().split(b"\0")
        # `started` is in ticks since the machine began, and says which beginning that was.
        return RunningProcess(
            place.stat().st_uid, int(fields[3]), f"{fields[19]} {boot}", tuple(os.fsdecode(one) for one in words)
        )
    except (OSError, ValueError, OverflowError):
        return None


def _by_ps(pid: int) -> RunningProcess | None:
    """The same where there is no /proc: to the second, and arguments cut at spaces."""
    asked = ["ps", "-ww", "-o", "stat=,uid=,lstart=,args=", "-p", str(pid)]
    words = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    if len(words) < 7 or words[0].startswith("Z"):
        return None
    return RunningProcess(int(words[1]), os.getsid(pid), " ".join(words[2:7]), tuple(words[7:]))


def start_detached(
    module: str, arguments: Sequence[str], out: BinaryIO, folder: str | Path | None = None
) -> subprocess.Popen[bytes]:
    """Run `python -m module` with these arguments in `folder`, in a session of its own: neither the end of this
    program nor that of its terminal ends it.

    What it prints goes to `out`. The arguments are given as they are: no shell reads them. Raises OSError.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        env=os.environ | _PLAIN,
    )  # fmt: skip
