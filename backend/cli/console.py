"""What the command line shows: progress bars, tables, and errors without tracebacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from backend.training.trainer import Progress as TrainingProgress

console = Console()
errors = Console(stderr=True)


class Bars:
    """Progress bars by name: the first report of a name starts its bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, what: str, done: int, total: int) -> None:
        """Move the bar `what` to `done` of `total`."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, note="")
        self._progress.update(self._tasks[what], completed=done, total=total)

    def trained(self, progress: TrainingProgress) -> None:
        """Show a training step: its stage, the team's outcome and the shares of valid answers."""
        what = f"M-GRPO stage {progress.stage}"
        self.report("M-GRPO", progress.step, progress.total)
        metrics = progress.metrics
        note = f"{what}  outcome {metrics['team/outcome']:.3f}  valid {metrics['manager/valid']:.0%}"
        if "validation/outcome" in metrics:
            note += f"  validation {metrics['validation/outcome']:.3f}"
        self._progress.update(self._tasks["M-GRPO"], note=note)


@contextmanager
def bars() -> Iterator[Bars]:
    """Progress bars for the time of a block."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)


def narrow_table(title: str) -> Table:
    """A table for rows of a name and numbers, which fits 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    return table


def comparison_table(title: str, evaluation: Mapping[str, Any]) -> Table:
    """The rows of an evaluation, the best return first."""
    table = narrow_table(f"{title}: means over {evaluation['windows']} windows")
    for heading in ("return%", "Sharpe", "loss%", "expo", "trades", "long", "hold", "cost%"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = sorted(evaluation["rows"].items(), key=lambda item: -item[1]["total_return"])
    for name, row in rows:
        table.add_row(
            name,
            f"{100 * row['total_return']:+.2f}",
            f"{row['sharpe']:.2f}",
            f"{100 * row['max_drawdown']:.1f}",
            f"{row['exposure']:.2f}",
            f"{row['trades']:.1f}",
            f"{row['long_share']:.2f}",
            "-" if row["hold_rate"] is None else f"{row['hold_rate']:.2f}",
            f"{100 * row['costs']:.2f}",
        )
    return table


def difference_line(evaluation: Mapping[str, Any]) -> str:
    """The paired difference in words."""
    found = evaluation["difference"]
    low, high = found["ci95"]
    return (
        f"{found['of']} - {found['against']}: {100 * found['mean']:+.2f} percentage points a window, 95 % interval "
        f"{100 * low:+.2f} to {100 * high:+.2f} (lower costs explain {100 * found['costs_saved']:+.2f})"
    )
