"""How far a run is: progress bars on a terminal, and in a log a line every some seconds."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from backend.cli.console import console
from backend.jobs.files import JobReport, own_job
from backend.runs.requests import Observer, RunStart

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from backend.training.trainer import Progress as TrainingProgress

SECONDS_A_LINE = 10.0  # in a log at most one line in so long


class ShownProgress(Observer):
    """What a command shows of a run. `on_start` shows that it begins."""

    def __init__(self, on_start: Callable[[RunStart], None]) -> None:
        self._on_start = on_start

    def started(self, start: RunStart) -> None:
        """Show the run that begins, and why nothing moves for a while where the simulator was never used before."""
        self._on_start(start)
        from simulator.exchange.exchange import is_ready

        if not is_ready():
            console.print("compiling the simulator, once for this installation: half a minute, more on a busy machine")

    def message(self, text: str) -> None:
        """Print a line."""
        console.print(text)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` parts of `what` are finished."""
        self.show(what, done, total, "")

    def trained(self, progress: TrainingProgress) -> None:
        """Show a training step: its stage, the team's outcome and the shares of valid answers."""
        metrics = progress.metrics
        note = (
            f"M-GRPO stage {progress.stage}  outcome {metrics['team/outcome']:.3f}  "
            f"valid {metrics['manager/valid']:.0%}"
        )
        if "validation/outcome" in metrics:
            note += f"  validation {metrics['validation/outcome']:.3f}"
        self.show("M-GRPO", progress.step, progress.total, note)

    @abstractmethod
    def show(self, what: str, done: int, total: int, note: str) -> None:
        """Show that `done` of `total` parts of `what` are finished, with a note."""


class ProgressBars(ShownProgress):
    """Progress bars by name: the first news of a name starts its bar."""

    def __init__(self, progress: Progress, on_start: Callable[[RunStart], None]) -> None:
        super().__init__(on_start)
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, what: str, done: int, total: int, note: str) -> None:
        """Move the bar `what`. A note stays until the next one."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, note="")
        self._progress.update(self._tasks[what], completed=done, total=total)
        if note:
            self._progress.update(self._tasks[what], note=note)


class ProgressLines(ShownProgress):
    """A line every `seconds` of whatever moves then, and one at the end of what such a line has told of.

    A command that is quicker prints none.
    """

    def __init__(
        self,
        on_start: Callable[[RunStart], None],
        seconds: float = SECONDS_A_LINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(on_start)
        self._seconds, self._clock = seconds, clock
        self._begun = self._last = clock()
        self._told: set[str] = set()

    def show(self, what: str, done: int, total: int, note: str) -> None:
        """Print a line where it is time for one, or where something ends that had one."""
        now = self._clock()
        if now - self._last < self._seconds and not (what in self._told and done >= total):
            return
        self._last = now
        if done < total:
            self._told.add(what)
        else:
            self._told.discard(what)
        minutes, seconds = divmod(int(now - self._begun), 60)
        console.print(f"{minutes}:{seconds:02d}  {what} {done}/{total}  {note}".rstrip(), highlight=False)


class JobLines(ProgressLines):
    """The lines of a job's log, and beside them what others see of the job while it works."""

    def __init__(self, on_start: Callable[[RunStart], None], report: JobReport) -> None:
        super().__init__(on_start)
        self._report = report

    def started(self, start: RunStart) -> None:
        """Show the run that begins, and name it to the job."""
        self._report.started(start.run)
        super().started(start)

    def show(self, what: str, done: int, total: int, note: str) -> None:
        """Report it, and print a line where it is time for one."""
        self._report.moved(what, done, total, note)
        super().show(what, done, total, note)


def _nothing(start: RunStart) -> None:
    """Shows nothing of a run's start."""


@contextmanager
def bars(on_start: Callable[[RunStart], None] = _nothing) -> Iterator[ShownProgress]:
    """The progress of a run, for the time of a block; it observes the run."""
    if own_job:
        yield JobLines(on_start, own_job[-1])
        return
    if not console.is_terminal:
        yield ProgressLines(on_start)
        return
    columns = (
        TextColumn("{task.description:<20}", markup=False),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield ProgressBars(progress, on_start)
