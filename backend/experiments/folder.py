"""The folder of an experiment below `runs/experiments/`: what was decided, and a file for each cell that is finished.

`experiment.toml` is the file as it was when the experiment began, `experiment.json` the rest of what was decided then,
and `cells/CELL.json` a finished cell. Each is written in one step, so whatever a kill leaves is whole: a cell is there
and finished, or it is run again.

The folder of runs may be somebody else's, and a file in it cut short or written by hand. So what is read is checked: it
has the types that the program itself writes, or there is one message.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from backend.experiments.plan import ExperimentFile
from backend.store.records import valid_run_id
from backend.store.run_record import code_version, new_run_id
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.folders import check_links, path_inside

if TYPE_CHECKING:
    from backend.experiments.analysis import ExperimentResult

EXPERIMENTS = "experiments"
RESULTS, PAGE = "results.json", "page.html"
_TEXT, _STATE, _CELLS = "experiment.toml", "experiment.json", "cells"

_Document = TypeVar("_Document")
_Text = Annotated[str, Field(max_length=100_000)]
_RunId = Annotated[str, AfterValidator(valid_run_id)]


class StyleDocument(BaseModel):
    """Extent and rhythm of an arm, which a random one copies."""

    sizes: list[FiniteFloat]
    long_share: FiniteFloat
    changes: FiniteFloat


class TrainingDocument(BaseModel):
    """What the training of a cell took."""

    steps: int
    best_step: int | None
    tokens: int


class WindowDocument(BaseModel):
    """One window of a cell: its ends (ms) and its figures; `calls` of a team alone."""

    start: int
    stop: int
    total_return: FiniteFloat
    sharpe: FiniteFloat
    max_drawdown: FiniteFloat
    turnover: FiniteFloat
    costs: FiniteFloat
    calls: FiniteFloat | None = None


class HeldOutDocument(BaseModel):
    """What the decisions of a cell are worth on held-out states (`backend.experiments.measures.value_of_arm`)."""

    net_return: FiniteFloat
    outcome: FiniteFloat
    questions: FiniteFloat
    traded: FiniteFloat
    allowed: FiniteFloat | None = None
    states: int
    scenario_paths: int
    states_hash: _Text


class CellDocument(BaseModel):
    """A finished cell."""

    cell: _Text
    data_hash: _Text
    windows: Annotated[list[WindowDocument], Field(min_length=1)]
    style: StyleDocument
    digest: _Text
    training: TrainingDocument | None
    held_out: HeldOutDocument | None = None
    seconds: FiniteFloat
    code: _Text


class ExperimentState(BaseModel):
    """What was decided when an experiment began."""

    run: _RunId
    digest: _Text
    seeds: list[int]
    config: dict[str, dict[str, Any]]
    question: _Text


def checked_document(path: Path, kind: type[_Document], otherwise: str) -> _Document:
    """The document in a file. Raises `UserError` where it cannot be read or is not of that kind; `otherwise` is what
    to do about it."""
    try:
        return TypeAdapter(kind).validate_python(read_document(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path} cannot be read ({place}: {first['msg']}): {otherwise}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): {otherwise}") from error


@dataclass(frozen=True)
class ExperimentFolder:
    """The folder at `path`, of the run `run`."""

    path: Path
    run: str

    def cell(self, name: str) -> dict[str, Any] | None:
        """The document of a finished cell; None where it has to be run. Raises `UserError` for a damaged one."""
        path = self.cell_path(name)
        if not path.is_file():
            return None
        otherwise = "remove it, and the cell is run again"
        document = checked_document(path, CellDocument, otherwise)
        if document.cell != name:
            raise UserError(f"{path} is of the cell {document.cell[:100]}: {otherwise}")
        return document.model_dump(exclude_unset=True)

    def cell_path(self, name: str) -> Path:
        """The file of a cell; what its training needs lies in the folder of the same name beside it."""
        return self.path / _CELLS / f"{name}.json"

    def keep_cell(self, name: str, document: dict[str, Any]) -> None:
        """Write a finished cell."""
        path = self.cell_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({**document, "code": code_version()}, indent=1) + "\n")


def open_folder(runs: Path, experiment: ExperimentFile) -> ExperimentFolder:
    """The folder of an experiment, made where there is none.

    Raises `UserError` where the experiment was begun with another file, other seeds or another preset, with the
    difference: half of it would be of another experiment.
    """
    path = path_inside(runs, f"{EXPERIMENTS}/{experiment.name}", "the folder of runs")
    check_links(path)
    state = path / _STATE
    if not state.is_file():
        if finished_cells(path):
            raise UserError(f"{path} holds finished cells and not their plan: move it away to begin again")
        path.mkdir(parents=True, exist_ok=True)
        run = new_run_id("experiment")
        write_whole(path / _TEXT, experiment.text)
        write_whole(state, json.dumps(_state_of(experiment, run), indent=1) + "\n")
        return ExperimentFolder(path, run)
    begun = read_state_of(path)
    if begun.digest != experiment.digest:
        raise UserError(
            f"the experiment '{experiment.name}' was begun with another plan, and half of each is none:\n"
            f"{_difference(path, begun, experiment)}\nput the file back as it was to continue, or begin another one "
            "with --name"
        )
    return ExperimentFolder(path, begun.run)


def read_state_of(path: Path) -> ExperimentState:
    """What was decided when the experiment in the folder `path` began. Raises `UserError`."""
    state = path / _STATE
    if not state.is_file():
        raise UserError(f"{path} holds no experiment: run one with `cryptosentinel experiment run FILE`")
    return checked_document(state, ExperimentState, f"move {path} away to begin again")


def experiment_folders(runs: Path) -> list[Path]:
    """The folders of all experiments below `runs`, by name."""
    folder = runs / EXPERIMENTS
    return sorted(one.parent for one in folder.glob(f"*/{_STATE}"))


def stored_result(path: Path) -> ExperimentResult:
    """The results of the finished experiment in the folder `path`. Raises `UserError` where it is not finished."""
    file = path / RESULTS
    if not file.is_file():
        raise UserError(f"the experiment in {path} is not finished: continue with the same `experiment run`")
    from backend.experiments.analysis import ExperimentResult  # it imports the whole of the market

    otherwise = "run the experiment again, which makes it again"
    result = checked_document(file, ExperimentResult, otherwise)
    for arm in result.arms:
        if len(arm.values) != len(result.seeds) or not all(arm.values) or result.measure not in arm.means:
            raise UserError(f"{file} cannot be read (arm '{arm.arm[:100]}' has no value of each seed): {otherwise}")
    return result


def finished_cells(path: Path) -> int:
    """How many cells of the experiment in `path` are finished."""
    return sum(1 for _ in (path / _CELLS).glob("*.json"))


def _state_of(experiment: ExperimentFile, run: str) -> dict[str, Any]:
    return {
        "run": run,
        "question": experiment.plan.question,
        "digest": experiment.digest,
        "seeds": list(experiment.seeds),
        "config": experiment.config.to_dict(),
    }


def _difference(path: Path, begun: ExperimentState, experiment: ExperimentFile) -> str:
    """What differs: lines of the file, the seeds, settings of the preset."""
    before = (path / _TEXT).read_text(encoding="utf-8", errors="replace") if (path / _TEXT).is_file() else ""
    lines = difflib.unified_diff(
        [*before.splitlines(), *_decided(begun.seeds, begun.config)],
        [*experiment.text.splitlines(), *_decided(experiment.seeds, experiment.config.to_dict())],
        "as it was begun", "now", lineterm="", n=0,
    )  # fmt: skip
    return "\n".join(f"  {line}" for line in lines if not line.startswith("@@"))


def _decided(seeds: Sequence[int], config: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Seeds and settings, a line each."""
    settings = [f"{section}.{key} = {value}" for section, values in config.items() for key, value in values.items()]
    return [f"seeds: {', '.join(map(str, seeds))}", *settings]
