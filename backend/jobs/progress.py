"""What a job's own process writes while it works: the run that it makes, how far it is, and accounts as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.jobs.files import STATE, JobState, append_equity, write_part

_SECONDS = 0.4  # between two writes
_POINTS = 400  # of one account in one call
_own_job: list[JobReport] = []  # that of the job that this process runs, at most one


def report_into(folder: Path) -> JobReport:
    """From now on this process runs the job in `folder`."""
    _own_job[:] = [JobReport(folder)]
    return _own_job[0]


def job_report() -> JobReport | None:
    """Where this process reports, if it runs a job."""
    return _own_job[0] if _own_job else None


class JobReport:
    """Writes at most every `seconds`, but a run's start and what is finished at once. A disk that is full costs the
    report and not the run."""

    def __init__(self, folder: Path, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._seconds, self._clock = folder, seconds, clock
        self._last = -seconds
        self._state = JobState()
        self._points: dict[str, list[tuple[int, float]]] = {}

    def set(self, **changed: Any) -> None:
        """Change fields of the state and write it at once. Raises OSError."""
        self._state = replace(self._state, **changed)
        write_part(self._folder / STATE, self._state)

    def started(self, run: str) -> None:
        """The run begins."""
        self._state = replace(self._state, run=run)
        self._write()

    def moved(self, what: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` parts of `what` are finished."""
        self._state = replace(self._state, what=what, done=done, total=total, note=note)
        if done >= total or self._clock() - self._last >= self._seconds:
            self._write()

    def equity(self, name: str, times: Sequence[int], values: Sequence[float]) -> None:
        """An account at some closes. Of many at once a share is kept, and the last."""
        kept = sorted({*range(0, len(times), max(1, len(times) // _POINTS)), len(times) - 1} - {-1})
        self._points.setdefault(name, []).extend((int(times[one]), float(values[one])) for one in kept)

    def _write(self) -> None:
        self._last = self._clock()
        with suppress(OSError):
            for name, points in self._points.items():
                append_equity(self._folder, name, points)
            self._points = {}
            self.set()
