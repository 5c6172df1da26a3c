"""The commands of `cryptosentinel experiment`: run one from its file, show one, list them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.console import console, narrow_table
from backend.cli.options import RecordOptions, RunsOption, grouped
from backend.cli.progress import bars
from backend.runs.requests import RUNS
from simulator.errors import UserError

if TYPE_CHECKING:  # they import the database
    from backend.experiments.analysis import ExperimentResult

experiment_app = typer.Typer(
    help="Experiments: arms, seeds and windows from one file, with the test chosen before the run.",
    no_args_is_help=True,
)


@experiment_app.callback()
def experiment_command() -> None:
    """Experiments: arms, seeds and windows from one file, with the test chosen before the run."""


@experiment_app.command("run")
@grouped
def experiment_run(
    file: Annotated[Path, typer.Argument(help="TOML file of the experiment, such as experiments/NAME.toml.")],
    recorded: RecordOptions,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds in place of the file's: 1-10, or 1,2,5-8.")] = "",
    name: Annotated[str, typer.Option("--name", help="Another name, for another folder; default: the file's.")] = "",
    workers: Annotated[
        int, typer.Option("--workers", min=0, max=256, help="Processes at a time; 0: as many as there are cores.")
    ] = 0,
) -> None:
    """Run an experiment. After Ctrl-C or a kill the same command continues with the cells that are not finished."""
    from backend.experiments.run import ExperimentRequest, run_experiment

    request = ExperimentRequest(file=file, seeds=seeds, name=name, workers=workers)
    with bars() as shown:
        outcome = run_experiment(request, recorded.store, recorded.runs, shown)
    _show(outcome.result)
    console.print(f"page: {outcome.page}", soft_wrap=True)


@experiment_app.command("show")
def experiment_show(
    name: Annotated[str, typer.Argument(help="An experiment, as `cryptosentinel experiment list` names it.")],
    runs: RunsOption = RUNS,
) -> None:
    """Show what a finished experiment found."""
    from backend.experiments.folder import EXPERIMENTS, PAGE, stored_result
    from simulator.folders import path_inside

    folder = path_inside(runs / EXPERIMENTS, name, "the experiment")
    _show(stored_result(folder))
    console.print(f"page: {folder / PAGE}", soft_wrap=True)


@experiment_app.command("list")
def experiment_list(runs: RunsOption = RUNS) -> None:
    """List the experiments, how far they are, and what they ask."""
    from backend.experiments.folder import RESULTS, experiment_folders, finished_cells, read_state_of

    folders = experiment_folders(runs)
    if not folders:
        console.print("there are no experiments; run one with: cryptosentinel experiment run experiments/NAME.toml")
        return
    table = narrow_table(f"experiments in {runs}")
    for heading in ("state", "cells", "question"):
        table.add_column(heading)
    for folder in folders:
        state = "finished" if (folder / RESULTS).is_file() else "unfinished"
        try:
            question = read_state_of(folder).question
        except UserError as error:  # of one damaged folder the others are not to blame
            state, question = "damaged", str(error)
        table.add_row(folder.name, state, str(finished_cells(folder)), question)
    console.print(table)


def _show(result: ExperimentResult) -> None:
    """Print the comparisons of an experiment and its sentence."""
    from backend.experiments.measures import measure_called
    from backend.experiments.page import arm_cells

    measure = measure_called(result.measure)
    amount = f"{result.states} states" if result.states else f"{result.windows} windows"
    console.print(result.question, style="bold", soft_wrap=True)
    title = f"{result.measure.replace('_', ' ')} {measure.each}"
    table = narrow_table(f"{title}, {len(result.seeds)} seeds x {amount}")
    for heading in (f"mean{measure.axis}", f"difference{measure.axis}", "interval", "p", "corrected"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm, cells in arm_cells(result).items():
        table.add_row(arm, *(cells.get(key, "-") for key in ("mean", "beyond", "interval", "p", "corrected")))
    console.print(table)
    console.print(result.sentence, soft_wrap=True)
