"""The jobs of a folder of runs: submit one, cancel one, resume one.

There is no daemon. Each job is a process of its own from the moment it is submitted, and waits for its turn by itself
(`process.py`): as many run at a time as the machine has room for, in the order in which they were submitted.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from backend.config.plugins import own_modules_refused
from backend.jobs.commands import check_command, resumed_command
from backend.jobs.files import CANCEL, JOB, JOB_LOG, Job, JobRequest, own_process, read_job, read_jobs, write_part
from backend.jobs.processes import start_detached
from simulator.errors import UserError

FOLDER = "jobs"  # beside the folders of the runs
_CORES_A_JOB = 8


@dataclass(frozen=True)
class Submission:
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
        return [job for job in read_jobs(self.folder, ended=False) if job.active]

    def job(self, name: str) -> Job:
        """One job. Raises `UserError` where there is none of that name."""
        return read_job(self.folder, name)

    def submit(
        self,
        command: Sequence[str],
        folder: Path | None = None,
        *,
        once: bool = False,
        resumes: str = "",
        own_modules: bool = True,
    ) -> Submission:
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
            if asked == (tuple(command), where, own_modules) and one.cancelled_at is None:
                return Submission(one, False)
        request = JobRequest(tuple(command), where, int(time.time() * 1000), resumes, own_modules=own_modules)
        try:
            return Submission(self.job(self._begin(request)), True)
        except OSError as error:
            raise UserError(
                f"the job cannot be started ({error.filename or self.folder}: {error.strerror}): use a folder that you "
                "can write to, as with --runs"
            ) from error

    def cancel(self, name: str) -> Job:
        """Cancel a job: one that waits does not begin, and one that runs is told to end, as by Ctrl-C. A second call
        ends it at once.

        Raises `UserError` where there is no such job, it has ended, or it is not this user's: then nothing is signaled.
        """
        job = self.job(name)
        if not job.active:
            raise UserError(f"job {name} cannot be cancelled, it is {job.status}. {job.message}".rstrip(" ."))
        if job.cancelled_at is None:
            try:
                write_part(job.path / CANCEL, int(time.time() * 1000))
            except OSError as error:
                raise UserError(f"{job.path / CANCEL} cannot be written ({error.strerror}): remove it") from error
        number = signal.SIGINT if job.cancelled_at is None else signal.SIGKILL
        job = self.job(name)
        # Once more, as late as can be: it may have ended meanwhile, and its number be another's.
        if job.process is not None and own_process(job.path, job.request, job.process):
            os.killpg(job.process.pid, number)
        return self.job(name)

    def resume(self, name: str) -> Submission:
        """Continue a job that stopped, as a new job; one that waits or runs is left as it is.

        Raises `UserError` where there is no such job, it is not this user's, or it cannot be continued.
        """
        job = self.job(name)
        if not job.own:
            raise UserError(
                f"job {name} is not yours, so its command may be anything: read it with `cryptosentinel jobs show "
                f"{name}`, and submit it yourself with `cryptosentinel jobs run`"
            )
        if job.active:
            return Submission(job, False)
        command, folder = resumed_command(job), Path(job.request.folder)
        return self.submit(command, folder, once=True, resumes=name, own_modules=job.request.own_modules)

    def _begin(self, request: JobRequest) -> str:
        """Start the process of a new job; its name. Raises OSError, and `UserError` for a link."""
        for place in (self.folder.parent, self.folder):
            if place.is_symlink():
                raise UserError(f"{place} is a link, through which nothing is written: use the folder itself")
        self.folder.mkdir(parents=True, exist_ok=True)
        moment = datetime.fromtimestamp(request.submitted_at / 1000, UTC)
        kind = re.sub(r"[^a-z0-9]", "", request.command[0])
        name = f"{kind}-{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        path = self.folder / name
        request = request.signed(path)
        path.mkdir(mode=0o700)
        try:
            write_part(path / JOB, request)
            with (path / JOB_LOG).open("xb") as out:
                arguments = [os.path.realpath(path), request.token, *request.command]
                start_detached("backend.jobs.process", arguments, out, request.folder)
        except OSError:
            shutil.rmtree(path)
            raise
        return name


def command_words(command: Sequence[str]) -> str:
    """A command as one types it in a shell."""
    return shlex.join(("cryptosentinel", *command))
