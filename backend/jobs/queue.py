"""The jobs of a folder of runs: submit one, see them, cancel one.

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
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from backend.config.plugins import own_modules_refused
from backend.jobs.commands import check_command
from backend.jobs.files import CANCEL, JOB, JOB_LOG, STATE, Job, JobRequest, JobState, is_alive, read_part, write_part
from simulator.errors import UserError

FOLDER = "jobs"  # beside the folders of the runs
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_CORES_A_JOB = 8
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}  # for a log: no colors, no narrow tables


class JobQueue:
    """The jobs in the folder `jobs` of the folder of runs."""

    limit = max(1, (os.cpu_count() or 1) // _CORES_A_JOB)  # jobs that run at a time

    def __init__(self, runs: Path) -> None:
        self.folder = (runs / FOLDER).absolute()

    def jobs(self) -> list[Job]:
        """All jobs that can be read, the newest first."""
        found = []
        for path in self.folder.glob(f"*/{JOB}"):
            with suppress(UserError):  # one damaged folder hides no other; `job` tells what is wrong with it
                found.append(self.job(path.parent.name))
        return sorted(found, key=lambda job: (job.request.submitted_at, job.name), reverse=True)

    def active(self) -> list[Job]:
        """Those that wait or run, the newest first."""
        return [job for job in self.jobs() if job.active]

    def job(self, name: str) -> Job:
        """One job. Raises `UserError` where there is none of that name, or it cannot be read."""
        path = self.folder / name
        if not _NAME.fullmatch(name) or not path.is_dir() or not os.path.lexists(path / JOB):
            raise UserError(f"there is no job '{name[:100]}' in {self.folder}: see `cryptosentinel jobs list`")
        request, alive = read_part(path / JOB, JobRequest), is_alive(path)  # first: one that ends now writes its state
        if request is None:
            raise UserError(f"{path / JOB} cannot be read: remove the folder {path}, and submit the job again")
        state = read_part(path / STATE, JobState) or JobState()
        return Job(name, path, request, state, os.path.lexists(path / CANCEL), alive)

    def submit(self, command: Sequence[str], folder: Path | None = None) -> Job:
        """Let `cryptosentinel` do `command` in `folder` (default: the current one) as soon as it is its turn.

        A job of the same command in the same folder that waits or runs is taken instead of a new one. It may import the
        user's modules that the command names only where this process may. Raises `UserError` for a command that cannot
        be a job, and where the folder of jobs cannot be written.
        """
        check_command(command)
        where, own_modules = str((folder or Path.cwd()).absolute()), not own_modules_refused()
        for one in self.active():
            asked = (one.request.command, one.request.folder, one.request.own_modules)
            if asked == (tuple(command), where, own_modules) and not one.cancelled:
                return one
        now = time.time()
        kind = re.sub(r"[^a-z0-9]", "", command[0])
        path = self.folder / f"{kind}-{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        try:
            path.mkdir(parents=True, mode=0o700)
            write_part(path / JOB, JobRequest(tuple(command), where, int(now * 1000), own_modules))
            with (path / JOB_LOG).open("xb") as out:
                start_detached("backend.jobs.process", [os.path.realpath(path), *command], out, where)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise UserError(
                f"the job cannot be started ({error.filename or self.folder}: {error.strerror}): use a folder that you "
                "can write to, as with --runs"
            ) from error
        return self.job(path.name)

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
