"""What a job's own process writes while it works: the run that it makes, how far it is, and accounts as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from backend.jobs.files import EQUITY, PROGRESS, JobProgress, equity_lines, write_part

_SECONDS = 0.4  # between two writes
_POINTS = 400  # of one account in one call
_own_job: list[Path] = []  # the folder of the job that this process runs, at most one


def report_into(folder: Path) -> None:
    """This process runs the job in `folder`."""
    _own_job[:] = [folder]


def job_report() -> JobReport | None:
    """Where this process reports, if it runs a job."""
    return JobReport(_own_job[0]) if _own_job else None


class JobReport:
    """Writes at most every `seconds`, but a run's start and what is finished at once. A disk that is full costs the
    report and not the run."""

    def __init__(self, folder: Path, seconds: float = _SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._seconds, self._clock = folder, seconds, clock
        self._last = -seconds
        self._progress = JobProgress()
        self._points: dict[str, list[tuple[int, float]]] = {}

    def started(self, run: str) -> None:
        """The run begins."""
        self._progress = replace(self._progress, run=run)
        self._write()

    def moved(self, what: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` parts of `what` are finished."""
        if (what, total) != (self._progress.what, self._progress.total) or done < self._progress.done:
            self._progress = replace(self._progress, since=_now(), first=done)
        self._progress = replace(self._progress, what=what, done=done, total=total, note=note)
        if done >= total or self._clock() - self._last >= self._seconds:
            self._write()

    def equity(self, name: str, times: Sequence[int], values: Sequence[float]) -> None:
        """An account at some closes. Of many at once every so-manieth is kept, and the last."""
        step = max(1, len(times) // _POINTS)
        kept = [*range(0, len(times), step)]
        if kept and kept[-1] != len(times) - 1:
            kept.append(len(times) - 1)
        self._points.setdefault(name, []).extend((int(times[one]), float(values[one])) for one in kept)

    def _write(self) -> None:
        self._last = self._clock()
        with suppress(OSError):
            if self._points:
                with (self._folder / EQUITY).open("a", encoding="utf-8") as file:
                    file.write(equity_lines(self._points))
                self._points = {}
            write_part(self._folder / PROGRESS, replace(self._progress, at=_now()))


def _now() -> int:
    return int(time.time() * 1000)
