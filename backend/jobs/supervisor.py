"""The supervisor of a queue: starts the next job when it is its turn, ends the cancelled that do not end by themselves,
and ends when nothing waits or runs. `python -m backend.jobs.supervisor RUNS`.

A job does not need it once it runs. The next supervisor finds in the files what a killed one has left.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from backend.jobs.files import JOB_LOG, OUTCOME, PROCESS, Job, JobOutcome, write_part
from backend.jobs.processes import start_detached
from backend.jobs.queue import JobQueue

CANCEL_SECONDS = 30.0  # seconds that a cancelled job has to end in order
_LAST_WORD = 5.0  # seconds after the second signal until it is killed
_LOOK_SECONDS = 0.2
_BEGINS_WITHIN = 300.0  # seconds until the process of a job must have said who it is


class Supervisor:
    """What one supervisor remembers: the processes that it started, and whom it has told to end."""

    def __init__(self, queue: JobQueue, patience: float = CANCEL_SECONDS) -> None:
        self._queue = queue
        self._patience = patience
        self._children: list[subprocess.Popen[bytes]] = []
        self._pressed: dict[str, float] = {}  # job -> when it got the second signal

    def serve(self) -> None:
        """Serve the queue until nothing is left; at once where another process does."""
        with ExitStack() as supervision:
            if not supervision.enter_context(self._queue.supervising()):
                return
            while True:
                if not self._step():
                    # Who adds a job now waits for the lock, and then finds that there is no supervisor.
                    with self._queue.changing():
                        if not self._queue.active():
                            supervision.close()
                            return
                time.sleep(_LOOK_SECONDS)

    def _step(self) -> bool:
        """One look at all jobs; whether anything is left to do."""
        self._children = [child for child in self._children if child.poll() is None]
        jobs = self._queue.active()
        running = [job for job in jobs if job.status == "running"]
        for job in running:
            self._end_cancelled(job)
        waiting = [job for job in reversed(jobs) if job.status == "queued"]
        for job in waiting[: max(0, self._queue.limit - len(running))]:
            self._start(job)
        return bool(jobs)

    def _start(self, job: Job) -> None:
        """Start the process of a job and wait until it has said who it is."""
        try:
            with (job.path / JOB_LOG).open("wb") as out:
                child = start_detached("backend.jobs.process", [str(job.path)], out, job.request.folder)
        except OSError as error:
            said = f"it could not begin: {error.filename or job.request.folder}: {error.strerror}"
            write_part(job.path / OUTCOME, JobOutcome(1, int(time.time() * 1000), said))
            return
        self._children.append(child)
        deadline = time.monotonic() + _BEGINS_WITHIN
        while not (job.path / PROCESS).exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS / 10)
        if not (job.path / PROCESS).exists():
            child.kill()
            code = child.wait() or 1
            said = f"its process ended before it began (exit code {code}); see its log"
            write_part(job.path / OUTCOME, JobOutcome(code, int(time.time() * 1000), said))

    def _end_cancelled(self, job: Job) -> None:
        if job.cancelled_at is None or job.process is None:
            return
        if time.time() - job.cancelled_at / 1000 < self._patience:
            return
        pressed = self._pressed.get(job.name)
        if pressed is None:
            self._pressed[job.name] = time.monotonic()
            job.process.identity.signal_group(signal.SIGTERM)
        elif time.monotonic() - pressed > _LAST_WORD:
            job.process.identity.signal_group(signal.SIGKILL)


if __name__ == "__main__":
    Supervisor(JobQueue(Path(sys.argv[1]))).serve()
