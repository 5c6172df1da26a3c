"""The jobs of a folder of runs: submit one, cancel one, resume one.

There is no daemon. Each job is a process of its own from the moment it is submitted, and waits for its turn by itself
(`process.py`): as many run at a time as the machine has room for, in the order in which they were submitted.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple

from backend.config.plugins import own_modules_refused
from backend.jobs.commands import check_command, resumed_command
from backend.jobs.files import CANCEL, JOB, JOB_LOG, Job, JobRequest, read_job, read_jobs, write_part
from simulator.errors import UserError

FOLDER = "jobs"  # beside the folders of the runs
_CORES_A_JOB = 8
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}  # for a log: no colors, no narrow tables


class Submission(NamedTuple):
    """A job, and whether it is new: the same command may wait or run already."""

    job: Job
    new: bool


class JobQueue:
    """The jobs in the folder `jobs` of the folder of runs."""

    limit = max(1, (os.cpu_count() or 1) // _CORES_A_JOB)  # jobs that run at a time

    def __init__(self, runs: Path) -> None:
        self.folder = (runs / FOLDER).absolute()

    def jobs(self) -> list[Job]:
        """All jobs, the newest first."""
        return read_jobs(self.folder)

    def active(self) -> list[Job]:
        """Those that wait or run, the newest first."""
        return [job for job in self.jobs() if job.active]

    def job(self, name: str) -> Job:
        """One job. Raises `UserError` where there is none of that name."""
        return read_job(self.folder, name)

    def submit(
        self, command: Sequence[str], folder: Path | None = None, *, once: bool = False, resumes: str = "",
        own_modules: bool = True,
    ) -> Submission:  # fmt: skip
        """Let `cryptosentinel` do `command` in `folder` (default: the current one) as soon as it is its turn.

        With `once`, a job of the same command in the same folder that waits or runs is taken instead of a new one.
        It may import the user's modules that the command names only where this process may, and with `own_modules`.
        Raises `UserError` for a command that cannot be a job, and where the folder of jobs cannot be written.
        """
        check_command(command)
        where = str((folder or Path.cwd()).absolute())
        own_modules = own_modules and not own_modules_refused()
        for one in self.active() if once else ():
            asked = (one.request.command, one.request.folder, one.request.own_modules)
            if asked == (tuple(command), where, own_modules) and not one.cancelled:
                return Submission(one, False)
        now = time.time()
        kind = re.sub(r"[^a-z0-9]", "", command[0])
        path = self.folder / f"{kind}-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        try:
            path.mkdir(parents=True, mode=0o700)
            write_part(path / JOB, JobRequest(tuple(command), where, int(now * 1000), resumes, own_modules))
            with (path / JOB_LOG).open("xb") as out:
                start_detached("backend.jobs.process", [os.path.realpath(path), *command], out, where)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise UserError(
                f"the job cannot be started ({error.filename or self.folder}: {error.strerror}): use a folder that you "
                "can write to, as with --runs"
            ) from error
        return Submission(self.job(path.name), True)

    def cancel(self, name: str) -> Job:
        """Cancel a job: one that waits does not begin, and one that runs is told to end, as by Ctrl-C. A second call
        ends it at once. Raises `UserError` where there is no such job, or it has ended; no signal is sent then."""
        job = self.job(name)
        if not job.active:
            raise UserError(f"job {name} cannot be cancelled, it is {job.status}. {job.message}".rstrip(" ."))
        try:
            (job.path / CANCEL).touch()
        except OSError as error:
            raise UserError(f"{job.path / CANCEL} cannot be written ({error.strerror}): remove it") from error
        now = self.job(name)  # once more, as late as can be: a process that lives has its own number
        if now.alive and now.state.pid > 1:
            os.killpg(now.state.pid, signal.SIGKILL if job.cancelled else signal.SIGINT)
        return self.job(name)

    def resume(self, name: str) -> Submission:
        """Continue a job that stopped, as a new job; one that waits or runs is left as it is. Raises `UserError` where
        there is no such job, or it cannot be continued."""
        job = self.job(name)
        if job.active:
            return Submission(job, False)
        command = resumed_command(job)
        if command is None:
            kept = "is done" if job.status == "done" else f"is a '{job.request.command[0]}', which keeps nothing"
            raise UserError(f"job {name} {kept}: start it again with `cryptosentinel jobs run -- ...`")
        return self.submit(
            command, Path(job.request.folder), once=True, resumes=name, own_modules=job.request.own_modules
        )


def start_detached(
    module: str, arguments: Sequence[str], out: BinaryIO, folder: str | Path | None = None
) -> subprocess.Popen[bytes]:
    """Run `python -m module` with these arguments in `folder`, in a session of its own: neither the end of this
    program nor that of its terminal ends it. Its output goes to `out`; no shell reads the arguments. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        env=os.environ | _PLAIN,
    )  # fmt: skip
