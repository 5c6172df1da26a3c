"""What the files of an experiment hold, checked when they are read.

The folder of runs may be somebody else's, and a file in it cut short or written by hand. The user finds
values of the types that the program itself writes, or one message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError

from backend.store.records import valid_run_id
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.folders import check_links, path_inside

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
    """One window of a cell: its ends (ms) and its figures."""

    start: int
    stop: int
    decisions: int
    total_return: FiniteFloat
    sharpe: FiniteFloat
    max_drawdown: FiniteFloat
    exposure: FiniteFloat
    long_share: FiniteFloat
    turnover: FiniteFloat
    trades: FiniteFloat
    costs: FiniteFloat
    hold_rate: FiniteFloat | None = None
    calls: FiniteFloat | None = None
    rulings: FiniteFloat | None = None


class HeldOutDocument(BaseModel):
    """What the decisions of a cell are worth on held-out states (`backend.experiments.held_out`)."""

    net_return: FiniteFloat
    outcome: FiniteFloat
    questions: FiniteFloat
    traded: FiniteFloat
    traded_now: FiniteFloat | None
    traded_later: FiniteFloat | None
    allowed: FiniteFloat | None = None
    states: int
    scenario_paths: int
    states_hash: _Text


class CellDocument(BaseModel):
    """A finished cell."""

    cell: _Text
    data_hash: _Text
    source: _Text
    symbols: list[_Text]
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


def folder_inside(runs: Path, kind: str, name: str) -> Path:
    """The folder `name` of all of a `kind` below `runs`. Raises `UserError` where it, or a link in it, leads out of
    `runs`."""
    path = path_inside(runs, f"{kind}/{name}", "the folder of runs")
    check_links(path)
    return path


def check_new(path: Path, parts: str) -> None:
    """Raise `UserError` where a folder holds finished parts and does not say what they are parts of."""
    if any((path / parts).glob("*.json")):
        raise UserError(f"{path} holds finished parts and not what they are parts of: move it away to begin again")
