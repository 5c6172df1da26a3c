"""The folder of a search below `runs/searches/`: what was decided, each part that is finished, and the result.

Each file is written in one step, so whatever a kill leaves is whole: a part is there and finished, or is done again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.store.records import valid_run_id
from backend.store.run_record import code_version, new_run_id
from simulator.documents import read_document
from simulator.errors import UserError
from simulator.files import write_whole
from simulator.folders import check_links

SEARCHES = "searches"
_STATE, _RESULT, _PARTS = "search.json", "result.json", "parts"
_NAME = re.compile(r"[a-z0-9][a-z0-9_+.-]{0,63}")


@dataclass(frozen=True)
class SearchFolder:
    """The folder at `path`, of the run `run`."""

    path: Path
    run: str

    def part(self, name: str) -> dict[str, Any] | None:
        """What is known of a part; None where it has to be done. Raises `UserError` for a damaged file."""
        return _document(self.path / _PARTS / f"{name}.json", "the part is done again")

    def keep_part(self, name: str, document: Mapping[str, Any]) -> None:
        """Write a finished part."""
        folder = self.path / _PARTS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{name}.json", json.dumps({**document, "code": code_version()}) + "\n")

    def work_folder(self, name: str) -> Path:
        """Where the work on a part may leave its own files."""
        return self.path / _PARTS / name

    def result(self) -> dict[str, Any] | None:
        """The result of the search; None where it is not finished. Raises `UserError` for a damaged file."""
        return _document(self.path / _RESULT, "it is made anew from the parts")

    def keep_result(self, document: Mapping[str, Any]) -> None:
        """Write the result."""
        write_whole(self.path / _RESULT, json.dumps(document, indent=1) + "\n")


def open_search(runs: Path, name: str, kind: str, plan: Mapping[str, Any]) -> SearchFolder:
    """The folder of the search called `name`, made where there is none. `plan` is all that decides its result.

    Raises `UserError` where it was begun with another plan, with the difference: half of it would be of another search.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"'{name}' is no name of a search: write lower-case letters, digits, _ + . -")
    path = runs / SEARCHES / name
    decided = json.loads(json.dumps(plan))
    state = path / _STATE
    if not state.is_file():
        path.mkdir(parents=True, exist_ok=True)
        run = new_run_id(kind)
        begun = {"run": run, "plan": decided, "begun_at": int(time.time() * 1000)}
        write_whole(state, json.dumps(begun, indent=1) + "\n")
        return SearchFolder(path, run)
    check_links(path)
    try:
        begun = read_document(state)
        run, former = valid_run_id(begun["run"]), dict(begun["plan"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{state} cannot be read ({error!r}): move {path} away to begin anew") from error
    if former != decided:
        raise UserError(
            f"the search '{name}' was begun with another plan, and half of each is none:\n"
            f"{_difference(former, decided)}\ngive the same again to go on, or begin another one with --name"
        )
    return SearchFolder(path, run)


def _document(path: Path, otherwise: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        document: dict[str, Any] = read_document(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): remove it, and {otherwise}") from error
    return document


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
