"""The process of a job: `python -m backend.jobs.process FOLDER TOKEN COMMAND...` waits for its turn, runs the command
and writes how it ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from runpy import run_module

from backend.config.plugins import refuse_own_modules
from backend.errors import INTERRUPTED
from backend.jobs.files import CANCEL, JOB, OUTCOME, PROCESS, JobOutcome, JobProcess, JobRequest, read_part, write_part
from backend.jobs.processes import process_at
from backend.jobs.progress import report_into
from backend.jobs.queue import JobQueue

_PROGRAM = "backend.cli"  # above this package, so it is run by its name
_LOOK_SECONDS = 0.5  # between two looks whether it is its turn


def run_job(folder: Path, command: Sequence[str]) -> int:
    """Run the command of the job in `folder` in this process once it is its turn, and return its exit code."""
    me = process_at(os.getpid())
    started = "" if me is None else me.started
    code = 1  # of a defect, which shows its traceback
    try:
        write_part(folder / PROCESS, JobProcess(os.getpid(), started, 0))
        _wait_for_turn(folder)
        write_part(folder / PROCESS, JobProcess(os.getpid(), started, int(time.time() * 1000)))
        code = INTERRUPTED if (folder / CANCEL).exists() else _run(folder, command)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        write_part(folder / OUTCOME, JobOutcome(code, int(time.time() * 1000)))
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


def _run(folder: Path, command: Sequence[str]) -> int:
    request = read_part(folder / JOB, JobRequest)
    if request is None or not request.is_own(folder) or request.command != tuple(command):
        print(f"error: {folder / JOB} was changed: submit the job again", file=sys.stderr)
        return 2
    refuse_own_modules(not request.own_modules)
    sys.argv = ["cryptosentinel", *command]
    report_into(folder)
    try:
        run_module(_PROGRAM, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1]), sys.argv[3:]))
