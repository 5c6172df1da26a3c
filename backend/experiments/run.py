"""The use case experiment: all cells of a file, side by side, and what they say together."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from backend.evaluation.trials import TrialCount, add_trial
from backend.experiments.analysis import ExperimentResult, analyse
from backend.experiments.cells import Cell, base_name, cell_market, check_arms, experiment_cells, make_base, run_cell
from backend.experiments.folder import PAGE, RESULTS, ExperimentFolder, open_folder
from backend.experiments.page import write_page
from backend.experiments.plan import ExperimentFile, read_experiment
from backend.processes import Helper, Work, WorkReport, cores, silent, started
from backend.runs.requests import RUNS, SILENT, STORE, Observer
from backend.store.records import EvaluationRecord
from backend.store.run_record import recorded_run, store_at
from backend.store.store import Store
from simulator.errors import UserError
from simulator.files import write_whole

_Made = TypeVar("_Made")


@dataclass(frozen=True, kw_only=True)
class ExperimentRequest:
    """The experiment in `file`. `seeds` replaces those of the file, `name` its name; `workers` 0: as many processes as
    there are cores."""

    file: Path
    seeds: str = ""
    name: str = ""
    workers: int = 0

    def read(self) -> ExperimentFile:
        """The experiment. Raises `UserError` for what cannot be run."""
        return read_experiment(self.file, self.seeds, self.name)


@dataclass(frozen=True)
class ExperimentOutcome:
    """A finished experiment. `page` is its page, `results` the same as JSON."""

    folder: Path
    page: Path
    results: Path
    result: ExperimentResult


@dataclass(frozen=True)
class _Task:
    """What a process needs to run a cell, or to make the warm start of one."""

    experiment: ExperimentFile
    cell: Cell
    folder: Path
    base: Path | None
    like: dict[str, Any] | None = None


def run_experiment(
    request: ExperimentRequest, store: Store | str | Path = STORE, runs: Path = RUNS, observer: Observer = SILENT
) -> ExperimentOutcome:
    """Run the cells of an experiment that are not finished yet, count each in the ledger of trials, and write its page.

    Raises `UserError` for a file that cannot be run or is not that which the experiment was begun with, `RunFailed`
    where a training cannot continue, and `Interrupted` after Ctrl-C; the same request then continues.
    """
    experiment = request.read()
    first_market = cell_market(experiment, experiment_cells(experiment)[0])  # refused now, not after hours
    check_arms(experiment)
    folder = open_folder(runs, experiment)
    workers = request.workers or cores()
    with (
        store_at(store) as opened,
        recorded_run(
            opened, folder.run, "experiment", experiment.seeds[0], first_market.content_hash, experiment.config,
            resumes=True,
            experiment={"name": experiment.name, "digest": experiment.digest, "question": experiment.plan.question},
        ),
    ):  # fmt: skip
        count = _run_cells(experiment, folder, workers, opened, observer)
        documents = {cell.name: _finished(folder, cell) for cell in experiment_cells(experiment)}
        result = analyse(experiment, folder.run, documents, count.trials, count.looks)
        document = json.loads(json.dumps(result.to_dict()))
        opened.put(EvaluationRecord(folder.run, "experiment", 0, document))
        try:
            write_whole(folder.path / RESULTS, json.dumps(document, indent=1) + "\n")
            write_page(result, folder.path)
        except OSError as error:
            raise UserError(f"the results cannot be written to {folder.path} ({error.strerror})") from error
    return ExperimentOutcome(folder.path, folder.path / PAGE, folder.path / RESULTS, result)


def _run_cells(
    experiment: ExperimentFile, folder: ExperimentFolder, workers: int, store: Store, observer: Observer
) -> TrialCount:
    """Run what is not finished: warm starts first, then the cells, those last that copy another's extent. The count is
    that of the first market's windows."""
    every = experiment_cells(experiment)
    left = [cell for cell in every if folder.cell(cell.name) is None]
    done = len(every) - len(left)
    if done:
        observer.message(f"{done} of {len(every)} cells are finished already")
    bases: dict[str, Cell] = {}
    for cell in left:
        name = base_name(experiment, cell)
        if name is not None:
            bases.setdefault(name, cell)
    making = [_Task(experiment, cell, _base_folder(folder, name), None) for name, cell in bases.items()]
    made = itertools.count(1)
    _side_by_side(_make_base, making, workers, lambda *_: observer.progress("warm starts", next(made), len(making)))
    observer.progress("cells", done, len(every))
    finished = itertools.count(done + 1)

    def keep(task: _Task, document: dict[str, Any]) -> None:
        folder.keep_cell(task.cell.name, document)
        observer.progress("cells", next(finished), len(every))

    for like in (False, True):
        wave = [cell for cell in left if bool(experiment.plan.arm(cell.arm).like) == like]
        tasks = [_task(experiment, folder, cell) for cell in wave]
        _side_by_side(_run, tasks, workers, keep)
    counted = TrialCount(0, 0)
    for cell in every:
        counted = _count(store, folder, cell, every[0], counted)
    return counted


def _side_by_side(
    work: Work[_Task, _Made], tasks: Sequence[_Task], workers: int, keep: Callable[[_Task, _Made], None]
) -> None:
    """Do `work` for each task, in as many processes, and `keep` each result as soon as it is there."""
    one_at_a_time = threading.Lock()

    def do(helper: Helper | None, task: _Task) -> None:
        made = helper.do(work, task, silent) if helper else work(task, silent)
        with one_at_a_time:
            keep(task, made)

    with started(min(workers, len(tasks)), import_torch=False) as pool:
        pool.share(do, tasks)


def _count(store: Store, folder: ExperimentFolder, cell: Cell, first: Cell, so_far: TrialCount) -> TrialCount:
    """Put a finished cell into the ledger; one that is there already stays one trial."""
    document = _finished(folder, cell)
    windows = document["windows"]
    found = add_trial(
        store, folder.run, cell.name, document["data_hash"], windows[0]["start"], windows[-1]["stop"],
        document["digest"],
    )  # fmt: skip
    same = cell.seed == first.seed
    return found if same else so_far


def _finished(folder: ExperimentFolder, cell: Cell) -> dict[str, Any]:
    document = folder.cell(cell.name)
    if document is None:
        raise UserError(f"cell {cell.name} of {folder.path} is gone: run the experiment again")
    return document


def _task(experiment: ExperimentFile, folder: ExperimentFolder, cell: Cell) -> _Task:
    base = base_name(experiment, cell)
    like = experiment.plan.arm(cell.arm).like
    copied = Cell(like, cell.seed)
    return _Task(
        experiment,
        cell,
        folder.cell_path(cell.name).with_suffix(""),
        None if base is None else _base_folder(folder, base) / "nano",
        _finished(folder, copied) if like else None,
    )


def _base_folder(folder: ExperimentFolder, name: str) -> Path:
    return folder.path / "bases" / name


def _make_base(task: _Task, report: WorkReport) -> None:
    make_base(task.experiment, task.cell, task.folder, report)


def _run(task: _Task, report: WorkReport) -> dict[str, Any]:
    return run_cell(task.experiment, task.cell, task.folder, task.base, task.like, report)
