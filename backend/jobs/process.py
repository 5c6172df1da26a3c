"""The process of a job: `python -m backend.jobs.process FOLDER` runs the job's command and writes how it ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from runpy import run_module

from backend.config.plugins import refuse_own_modules
from backend.errors import INTERRUPTED
from backend.jobs.files import (
    CANCEL,
    JOB,
    OUTCOME,
    PROCESS,
    JobOutcome,
    JobProcess,
    JobRequest,
    read_part,
    write_once,
    write_part,
)
from backend.jobs.processes import this_process
from backend.jobs.progress import report_into

_PROGRAM = "backend.cli"  # above this package, so it is run by its name


def run_job(folder: Path) -> int:
    """Run the command of the job in `folder` in this process, and return its exit code."""
    me = this_process()
    if not write_once(folder / PROCESS, JobProcess(me.pid, me.started, _now())):
        print("another process runs this job", file=sys.stderr)
        return 1
    code = 1  # of a defect, which shows its traceback
    try:
        code = INTERRUPTED if (folder / CANCEL).exists() else _run_command(folder)
    finally:
        write_part(folder / OUTCOME, JobOutcome(code, _now()))
    return code


def _run_command(folder: Path) -> int:
    request = read_part(folder / JOB, JobRequest)
    if request is None:
        print(f"error: {folder / JOB} cannot be read", file=sys.stderr)
        return 1
    if not request.is_own(folder):
        print(f"error: {folder / JOB} bears no signature of yours: its command is not run", file=sys.stderr)
        return 2
    refuse_own_modules(not request.own_modules)
    sys.argv = ["cryptosentinel", *request.command]
    report_into(folder)
    try:
        run_module(_PROGRAM, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if ending.code is None:
            return 0
        return ending.code if isinstance(ending.code, int) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _now() -> int:
    return int(time.time() * 1000)


if __name__ == "__main__":
    sys.exit(run_job(Path(sys.argv[1])))
