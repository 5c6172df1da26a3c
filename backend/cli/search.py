"""`cryptosentinel search`: many parameter sets of a strategy, and what choosing the best of them is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.console import console, narrow_table
from backend.cli.options import grouped
from backend.cli.parts.places import StoreOption
from backend.cli.parts.progress import bars
from backend.runs.requests import STORE, WindowRequest
from simulator.errors import UserError
from simulator.files import write_whole

if TYPE_CHECKING:  # it imports the database
    from backend.experiments.search import SearchResult

_SHOWN = 5


@grouped
def search(
    strategy: Annotated[str, typer.Argument(help="A strategy's name, or your own as module:Class.")],
    window: WindowRequest,
    trials: Annotated[int, typer.Option("--trials", min=2, max=100_000, help="Parameter sets to try.")] = 200,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="NAME=LOW..HIGH in place of the strategy's own ranges. Repeatable."),
    ] = None,
    test_share: Annotated[
        float, typer.Option("--test-share", help="Last part of the window, which the search does not see.")
    ] = 0.3,
    workers: Annotated[
        int, typer.Option("--workers", min=0, max=256, help="Processes at a time; 0: as many as there are cores.")
    ] = 0,
    store: StoreOption = STORE,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all of it to this file, too.")] = None,
) -> None:
    """Try many parameter sets of a strategy on the first part of a window, and the best of them once on the rest.

    Needs the extra `search` (optuna).
    """
    from backend.experiments.search import SearchRequest, search_parameters

    request = SearchRequest(
        strategy=strategy, trials=trials, ranges=_ranges(range_ or []) or None, test_share=test_share, workers=workers,
        **vars(window),
    )  # fmt: skip
    request.check()
    with bars() as shown:
        result = search_parameters(request, store, shown)
    _show(result)
    if json_ is not None:
        try:
            json_.parent.mkdir(parents=True, exist_ok=True)
            write_whole(json_, json.dumps(result.to_dict(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"{json_} cannot be written ({error.strerror}): give another file with --json") from error
        console.print(f"all of it: {json_}", soft_wrap=True)


def _ranges(texts: list[str]) -> dict[str, tuple[float, float]]:
    ranges = {}
    for text in texts:
        name, _, ends = text.partition("=")
        low, dots, high = ends.partition("..")
        try:
            ranges[name.strip()] = (float(low), float(high))
        except ValueError:
            dots = ""
        if not dots:
            raise UserError(f"--range {text}: write NAME=LOW..HIGH, as fast=5..50")
    return ranges


def _show(result: SearchResult) -> None:
    """Print the best sets, and what choosing them is worth."""
    table = narrow_table(f"{result.run}: the best of {len(result.tried)} sets on {result.bars} bars")
    for heading in ("return%", "Sharpe", "p corrected"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in result.tried[:_SHOWN]:
        name = one.name.rpartition(":")[2]
        table.add_row(name, f"{100 * one.total_return:+.1f}", f"{one.sharpe:.2f}", f"{one.adjusted:.3f}")
    console.print(table)
    lucky = result.overfitting
    console.print(
        f"probability of overfitting {lucky.probability:.0%} ({lucky.splits} halvings): how often the best of one "
        "half is below the middle in the other; 50 % is a choice that is worth nothing",
        soft_wrap=True,
    )
    console.print(
        f"P(Sharpe > 0) of the best after {max(result.trials, len(result.tried))} trials: {result.deflated:.2f}; "
        f"walk-forward Sharpe of choosing the best so far: {result.walk_forward:.2f}",
        soft_wrap=True,
    )
    chosen = f"cryptosentinel backtest --team {result.chosen.name}"
    if result.final is not None and result.final.against is not None:
        ahead = result.final.against
        sure = f", over holding {100 * ahead.low:+.1f} to {100 * ahead.high:+.1f} % (95 %)"
    else:
        sure = f"; no interval, {result.problem}"
    looks = "once, by this search" if result.looks == 1 else f"by {result.looks} runs so far"
    console.print(
        f"on the last part, which the search did not see: {100 * result.final_return:+.1f} %, Sharpe "
        f"{result.final_sharpe:.2f}, holding {100 * result.hold_return:+.1f} %{sure}; these bars were looked at "
        f"{looks}",
        soft_wrap=True,
    )
    console.print(f"play it with: {chosen}", soft_wrap=True)
