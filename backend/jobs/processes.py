"""Processes that outlive the one that started them, and who a process is, so that no other is ever signalled for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}  # for a log: no colours, no narrow tables


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by its number and the moment of its start, as the system writes it: numbers are given out again."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether this very process is still there. One that has ended and is not waited for yet is not."""
        return self.started != "" and process_start(self.pid) == self.started

    def signal_group(self, number: signal.Signals) -> bool:
        """Send a signal to the process and those that it started, as a terminal's Ctrl-C does; False where it is gone.
        It must have been started by `start_detached`, which makes it the first of its group."""
        if not self.alive:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def this_process() -> ProcessIdentity:
    """The identity of the process that asks."""
    return ProcessIdentity(os.getpid(), process_start(os.getpid()))


def process_start(pid: int) -> str:
    """When the process of that number began, in words that only can be compared; empty where there is none."""
    if pid <= 0:
        return ""
    if not Path("/proc/self/stat").exists():
        return _start_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    if fields[0] in "ZX":  # it has ended
        return ""
    return f"{fields[19]} {boot}"  # ticks since the machine began, and which beginning that was


def _start_by_ps(pid: int) -> str:
    """The same where there is no /proc: to the second."""
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, start = found.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else start.strip()


def start_detached(
    module: str, arguments: Sequence[str], out: BinaryIO, folder: str | Path | None = None
) -> subprocess.Popen[bytes]:
    """Run `python -m module` with these arguments, detached from this terminal and this program's end, in `folder`.

    What it says goes to `out`. The arguments are given as they are: no shell reads them. Raises OSError.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        env=os.environ | _PLAIN,
    )  # fmt: skip
