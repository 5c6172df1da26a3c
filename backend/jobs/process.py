"""The process of a job: `python -m backend.jobs.process FOLDER COMMAND...` waits for its turn, runs the command and
writes how it ended."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from runpy import run_module

from backend.config.plugins import refuse_own_modules
from backend.errors import INTERRUPTED
from backend.jobs.files import ALIVE, CANCEL, JobReport, own_job
from backend.jobs.queue import JobQueue

_PROGRAM = "backend.cli"  # above this package, so it is run by its name
_LOOK_SECONDS = 0.5  # between two looks whether it is its turn


def run_job(folder: Path, command: Sequence[str]) -> int:
    """Run the command of the job in `folder` in this process once it is its turn, and return its exit code."""
    with (folder / ALIVE).open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        report, code = JobReport(folder), 1  # of a defect, which shows its traceback
        own_job.append(report)
        try:
            report.set(pid=os.getpid())
            _wait_for_turn(folder)
            code = _run(folder, command, report)
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            report.set(exit_code=code, finished_at=int(time.time() * 1000))
    return code


def _wait_for_turn(folder: Path) -> None:
    """Wait until fewer jobs than the limit were submitted before this one and have not ended."""
    queue = JobQueue(folder.parent.parent)
    while not (folder / CANCEL).exists():
        active = [(job.request.submitted_at, job.name) for job in queue.active()]
        mine = queue.job(folder.name)
        if sum(one < (mine.request.submitted_at, mine.name) for one in active) < queue.limit:
            return
        time.sleep(_LOOK_SECONDS)


def _run(folder: Path, command: Sequence[str], report: JobReport) -> int:
    if (folder / CANCEL).exists():
        return INTERRUPTED
    report.set(started_at=int(time.time() * 1000))
    refuse_own_modules(not JobQueue(folder.parent.parent).job(folder.name).request.own_modules)
    sys.argv = ["cryptosentinel", *command]
    try:
        run_module(_PROGRAM, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1]), sys.argv[2:]))
