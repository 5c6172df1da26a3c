"""The folder of a search below `runs/searches/`: what was decided, each part that is finished, and the result.

Each file is written in one step, so whatever a kill leaves is whole: a part is there and finished, or is done again.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from backend.experiments.documents import (
    RoundDocument,
    SearchState,
    check_new,
    checked_document,
    folder_inside,
)
from backend.store.run_record import code_version, new_run_id
from simulator.arrays import FloatArray
from simulator.errors import UserError
from simulator.files import write_whole

SEARCHES = "searches"
_STATE, _RESULT, _PARTS = "search.json", "result.json", "parts"
_NAME = re.compile(r"[a-z0-9][a-z0-9_+.-]{0,63}")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SearchFolder:
    """The folder at `path`, of the run `run`."""

    path: Path
    run: str

    def round_returns(self, name: str, sets: Sequence[str], bars: int) -> list[FloatArray] | None:
        """Returns (bars,) of each set of a round as they were kept; None where it has to be played. Raises `UserError`
        for a damaged file, and where other sets were kept than `sets`."""
        path, otherwise = self.path / _PARTS / f"{name}.json", "remove it, and the round is played again"
        if not path.is_file():
            return None
        kept = checked_document(path, RoundDocument, otherwise)
        if kept.sets != list(sets):
            raise UserError(
                f"{path} holds other sets than are drawn now: is another version of the program installed? Go on with "
                "the former one, or begin another search with --name"
            )
        try:
            columns = [np.frombuffer(base64.b64decode(text, validate=True), "<f8") for text in kept.returns]
        except ValueError as error:
            raise UserError(f"{path} cannot be read ({error}): {otherwise}") from error
        if len(columns) != len(sets) or any(len(one) != bars or not np.isfinite(one).all() for one in columns):
            raise UserError(f"{path} has not {bars} returns of each of its {len(sets)} sets: {otherwise}")
        return columns

    def keep_round(self, name: str, sets: Sequence[str], returns: Sequence[FloatArray]) -> None:
        """Write a finished round."""
        folder = self.path / _PARTS
        folder.mkdir(parents=True, exist_ok=True)
        packed = [base64.b64encode(np.asarray(one, "<f8").tobytes()).decode() for one in returns]
        document = {"sets": list(sets), "returns": packed, "code": code_version()}
        write_whole(folder / f"{name}.json", json.dumps(document) + "\n")

    def result(self, kind: type[_Result]) -> _Result | None:
        """The result of the search; None where it is not finished. Raises `UserError` for a damaged file."""
        path = self.path / _RESULT
        if not path.is_file():
            return None
        return checked_document(path, kind, "remove it, and it is made anew from its rounds")

    def keep_result(self, document: Mapping[str, Any]) -> None:
        """Write the result."""
        write_whole(self.path / _RESULT, json.dumps(document, indent=1) + "\n")


def open_search(runs: Path, name: str, kind: str, plan: Mapping[str, Any]) -> SearchFolder:
    """The folder of the search called `name`, made where there is none. `plan` is all that decides its result.

    Raises `UserError` where it was begun with another plan, with the difference: half of it would be of another search.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' is no name of a search: write lower-case letters, digits, _ + . -")
    path = folder_inside(runs, SEARCHES, name)
    decided = json.loads(json.dumps(plan))
    state = path / _STATE
    if not state.is_file():
        check_new(path, _PARTS)
        path.mkdir(parents=True, exist_ok=True)
        run = new_run_id(kind)
        begun = {"run": run, "plan": decided, "begun_at": int(time.time() * 1000)}
        write_whole(state, json.dumps(begun, indent=1) + "\n")
        return SearchFolder(path, run)
    known = checked_document(state, SearchState, f"move {path} away to begin anew")
    if known.plan != decided:
        raise UserError(
            f"the search '{name}' was begun with another plan, and half of each is none:\n"
            f"{_difference(known.plan, decided)}\ngive the same again to go on, or begin another one with --name"
        )
    return SearchFolder(path, known.run)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str:
    """The values that differ, a line each; tables value by value."""
    lines = []
    for key in dict.fromkeys((*before, *now)):
        former, present, place = before.get(key), now.get(key), f"{within}{key}"
        if former == present:
            continue
        if isinstance(former, dict) and isinstance(present, dict):
            lines.append(_difference(former, present, f"{place}."))
        else:
            lines.append(f"  {place}: {json.dumps(former)}; now {json.dumps(present)}")
    return "\n".join(lines)
