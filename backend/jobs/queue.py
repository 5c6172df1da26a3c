"""The queue of jobs: ask for one, cancel one, go on with one, and how many may run at a time.

No daemon has to be kept alive: whoever changes the queue starts its supervisor where none runs, and that one ends when
nothing is left to do.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from backend.config.plugins import own_modules_refused
from backend.jobs.commands import check_command, resumed_command
from backend.jobs.files import (
    CANCEL,
    JOB,
    Job,
    JobCancellation,
    JobRequest,
    read_job,
    read_jobs,
    write_once,
    write_part,
)
from backend.jobs.processes import start_detached
from simulator.errors import UserError
from simulator.files import write_whole

FOLDER = "jobs"  # beside the folders of the runs
MOST_AT_A_TIME = 64
_CORES_A_JOB = 8  # below twice that number one job runs at a time
_LIMIT, _LOCK, _SUPERVISOR, _SUPERVISOR_LOG = "limit", "lock", "supervisor", "supervisor.log"


@dataclass(frozen=True)
class Submission:
    """A job, and whether it is new: the same command may wait or run already."""

    job: Job
    new: bool


class JobQueue:
    """The jobs in the folder `jobs` of the folder of runs."""

    def __init__(self, runs: Path) -> None:
        self.folder = (runs / FOLDER).absolute()

    def jobs(self) -> list[Job]:
        """All jobs, the newest first."""
        return read_jobs(self.folder)

    def active(self) -> list[Job]:
        """Those that wait or run, the newest first, without a look at those that have said how they ended."""
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
        with self._locked():
            own_modules = own_modules and not own_modules_refused()
            asked = tuple(command), own_modules
            same = [one for one in self.active() if (one.request.command, one.request.own_modules) == asked]
            for one in same:
                if once and one.own and one.request.folder == where and one.cancelled_at is None:
                    return Submission(one, False)
            name = self._add(JobRequest(tuple(command), where, _now(), resumes, own_modules=own_modules))
            self._wake()
        return Submission(self.job(name), True)

    def cancel(self, name: str) -> Job:
        """Cancel a job: one that waits does not begin, one that runs is told to end, as by Ctrl-C. It is ended by force
        where it has not within `supervisor.CANCEL_SECONDS` seconds. A second call changes nothing.

        Raises `UserError` where there is no such job or it has ended already.
        """
        job = self.job(name)
        if not job.active:
            raise UserError(f"job {name} has ended already: it is {job.status}")
        # Only the first one who cancels sends the signal: a command takes a second one as "at once".
        if write_once(job.path / CANCEL, JobCancellation(_now())):
            process = self.job(name).process
            if process is not None:
                process.identity.signal_group(signal.SIGINT)
        with self._locked():
            self._wake()
        return self.job(name)

    def resume(self, name: str) -> Submission:
        """Go on with a job that stopped, as a new job; one that waits only has its turn looked at.

        Raises `UserError` where there is no such job, or nothing can go on.
        """
        job = self.job(name)
        if not job.own:
            raise UserError(
                f"job {name} bears no signature of yours for {job.path}, so its command may be anything: read it with "
                f"`cryptosentinel jobs show {name}`, and give it yourself with `cryptosentinel jobs run`"
            )
        if job.active:
            self.wake()
            return Submission(self.job(name), False)
        command, folder = resumed_command(job), Path(job.request.folder)
        return self.submit(command, folder, once=True, resumes=name, own_modules=job.request.own_modules)

    def wake(self) -> None:
        """Start the supervisor where jobs wait and none runs, as after a restart of the machine."""
        if any(job.status == "queued" for job in self.active()):
            with self._locked():
                self._wake()

    @property
    def limit(self) -> int:
        """How many jobs run at a time."""
        try:
            return min(MOST_AT_A_TIME, max(1, int((self.folder / _LIMIT).read_text())))
        except (OSError, ValueError):
            return max(1, (os.cpu_count() or 1) // _CORES_A_JOB)

    def set_limit(self, limit: int) -> None:
        """Let so many jobs run at a time, from now on. Raises `UserError`."""
        if not 1 <= limit <= MOST_AT_A_TIME:
            raise UserError(f"{limit} jobs at a time: give a number from 1 to {MOST_AT_A_TIME}")
        with self._locked():
            write_whole(self.folder / _LIMIT, str(limit))

    @contextmanager
    def supervising(self) -> Iterator[bool]:
        """The block is the queue's supervisor; yields False where another process is."""
        descriptor = self._opened(_SUPERVISOR)
        try:
            yield _lock(descriptor, wait=False)
        finally:
            os.close(descriptor)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The queue is changed by nobody else during the block."""
        with self._locked():
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = self._opened(_LOCK)
        try:
            _lock(descriptor, wait=True)
            yield
        finally:
            os.close(descriptor)

    def _opened(self, name: str, flags: int = os.O_RDWR) -> int:
        """A file of the queue, made where there is none. Raises `UserError` where it cannot be, and for a link: the
        folder may be somebody else's."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (self.folder, self.folder / name):
                if path.is_symlink():
                    raise UserError(f"{path} is a link, through which nothing is written: put the file itself there")
            return os.open(self.folder / name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UserError(
                f"jobs cannot be kept in {self.folder} ({error.strerror}): name another folder with --runs"
            ) from error

    def _add(self, request: JobRequest) -> str:
        """The folder of a new job; returns its name."""
        kind = re.sub(r"[^a-z0-9]", "", request.command[0])
        moment = datetime.fromtimestamp(request.submitted_at / 1000, UTC)
        first = f"{kind}-{moment:%Y%m%d-%H%M%S}-{moment.microsecond // 1000:03d}"
        name, number = first, 1
        while os.path.lexists(self.folder / name):
            number += 1
            name = f"{first}-{number}"
        request = request.signed(self.folder / name)
        (self.folder / name).mkdir()
        write_part(self.folder / name / JOB, request)
        return name

    def _wake(self) -> None:
        """Start a supervisor where none is. Only under the lock: the one that is does not end meanwhile."""
        with self.supervising() as free:
            pass
        if free:
            with os.fdopen(self._opened(_SUPERVISOR_LOG, os.O_WRONLY | os.O_APPEND), "ab") as out:
                start_detached("backend.jobs.supervisor", [str(self.folder.parent)], out)


def command_words(command: Sequence[str]) -> str:
    """A command as one types it in a shell."""
    return shlex.join(("cryptosentinel", *command))


def _lock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _now() -> int:
    return int(time.time() * 1000)
