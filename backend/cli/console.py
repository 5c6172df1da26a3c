"""What the command line shows: tables, notes, errors without tracebacks; and the options that say where runs lie."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from cryptosentinel.protocol.untrusted import visible

if TYPE_CHECKING:  # the settings take their time, and `--help` needs none
    from backend.runs.requests import RunStart


_SHOWN: Any = {"rich_help_panel": "Advanced", "show_default": False}
StoreOption = Annotated[
    str,
    typer.Option("--store", help="Folder of the store (runs/store), or ws:// of a server.", metavar="TEXT", **_SHOWN),
]
RunsOption = Annotated[
    Path, typer.Option("--runs", help="Folder that holds a folder for each run (runs).", metavar="TEXT", **_SHOWN)
]


class PlainConsole(Console):
    """A terminal for text that is not ours: names, notes, messages and settings out of records and files.

    Nothing in a text is markup, and every character that a terminal would obey is spelled out. All that the command
    line prints passes here, so no command needs to remember it; what is bold or red is said with `style` or `Text`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, *, style: str | Style = "", **options: Any) -> Text:
        """The text as it is, without markup."""
        return super().render_str(visible(text), style=style, **{**options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The parts of whatever is printed, none of which holds a control character but those of the console itself."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


console = PlainConsole()
errors = PlainConsole(stderr=True)


def print_account(start: RunStart) -> None:
    """Print the costs and the venue of a run."""
    from backend.builders.market import describe_carry, describe_costs, describe_venue

    account, market = start.account, start.market
    console.print(f"costs: {describe_costs(account.costs, market)}")
    console.print(f"carry: {describe_carry(account, market, start.window)}")
    console.print(f"venue: {describe_venue(account.venue, market, start.window)}")


def print_notes(notes: Iterable[str]) -> None:
    """Print what a reader must know, a line each."""
    for note in notes:
        console.print(f"note: {note}")


def narrow_table(title: str) -> Table:
    """A table for rows of a name and numbers, which fits 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    return table


def size_in_words(size: int) -> str:
    """Bytes as people read them: 0 B, 12.3 kB, 4.56 GB."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000.0:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000.0
    return f"{value:.2f} GB"


def comparison_table(title: str, evaluation: Mapping[str, Any]) -> Table:
    """The rows of an evaluation, the best return first."""
    table = narrow_table(f"{title}: means over {evaluation['windows']} windows")
    for heading in ("return%", "Sharpe", "loss%", "expo", "trades", "long", "hold", "cost%"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = sorted(evaluation["rows"].items(), key=lambda item: -(item[1].get("total_return") or 0.0))
    forms = (
        ("total_return", 100, "+.2f"), ("sharpe", 1, ".2f"), ("max_drawdown", 100, ".1f"), ("exposure", 1, ".2f"),
        ("trades", 1, ".1f"), ("long_share", 1, ".2f"), ("hold_rate", 1, ".2f"), ("costs", 100, ".2f"),
    )  # fmt: skip
    for name, row in rows:
        cells = [(row.get(key), scale, form) for key, scale, form in forms]
        table.add_row(name, *("-" if value is None else f"{scale * value:{form}}" for value, scale, form in cells))
    return table


def value_table(value: Mapping[str, Any], control: bool = False) -> Table:
    """What decisions are worth on held-out states, or on those of the no-edge control, the best outcome first."""
    where = "states of the no-edge control" if control else "held-out states"
    table = narrow_table(
        f"What a decision earns: means over {value['states']:,} {where} x {value['scenario_paths']:,} scenarios"
    )
    for heading in ("bp", "95 % interval", "outcome", "questions", "trades%"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in sorted(value["rows"].items(), key=lambda item: -item[1]["outcome"]):
        low, high = row["net_return_ci95"]
        table.add_row(
            _VALUED.get(name, name),
            f"{1e4 * row['net_return']:+.1f}",
            f"{1e4 * low:+.1f} to {1e4 * high:+.1f}",
            f"{row['outcome']:.4f}",
            f"{row['questions']:.2f}",
            f"{100 * row['traded']:.0f}",
        )
    return table


_VALUED = {"warm_started": "before training", "holding": "doing nothing"}


def difference_line(evaluation: Mapping[str, Any]) -> str:
    """The paired difference in words."""
    from backend.evaluation.evidence import attribution

    difference = evaluation["difference"]
    low, high = difference["ci95"]
    return (
        f"{difference['of']} - {difference['against']}: {100 * difference['mean']:+.2f} percentage points a window, "
        f"95 % interval {100 * low:+.2f} to {100 * high:+.2f} "
        f"({attribution(difference['mean'], difference['costs_saved'])})"
    )
