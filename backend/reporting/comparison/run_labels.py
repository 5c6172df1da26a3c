"""Tags and a note that a reader gives a run, and runs that differ in their seed alone.

Labels are a document of the run in the store (an `EvaluationRecord` named `labels`), so that export, backup and
deletion take them along.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.reporting.comparison.run_table import RunRow
from backend.statistics.seed_grid import grid_interval
from backend.store.records import EvaluationRecord, RunRecord
from backend.store.store import Store
from simulator.errors import UserError

LABELS = "labels"
_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 20, 40, 2_000
# Of a run's record: what may differ between runs that are one experiment with several seeds.
_OWN = ("versions", "hardware", "notes", "trials", "summary", "command")


@dataclass(frozen=True)
class RunLabels:
    """What a reader wrote about a run."""

    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, tags: str, note: str) -> RunLabels:
        """Tags with commas between them, and a note. Raises `UserError` for what is too long."""
        names = tuple(dict.fromkeys(word.strip() for word in tags.split(",") if word.strip()))
        if len(names) > _MOST_TAGS or any(len(tag) > _LONGEST_TAG for tag in names):
            raise UserError(f"at most {_MOST_TAGS} tags of {_LONGEST_TAG} characters: shorten them")
        if len(note) > _LONGEST_NOTE:
            raise UserError(f"the note has {len(note)} characters, of {_LONGEST_NOTE} at most: shorten it")
        return cls(names, note.strip())


@dataclass(frozen=True)
class SeedGroup:
    """Runs that are alike but for the seed: the mean of their return (a fraction) with Student's 95 % interval."""

    runs: tuple[str, ...]
    kind: str
    teams: str
    data: str
    mean: float
    low: float
    high: float


def write_labels(store: Store, run: str, labels: RunLabels) -> None:
    """Put the labels of a run in place of its former ones. Raises `StoreError` where there is no such run."""
    store.run(run)
    store.add_evaluation(EvaluationRecord(run, LABELS, 0, {"tags": list(labels.tags), "note": labels.note}))


def read_labels(store: Store) -> dict[str, RunLabels]:
    """The labels of all runs that have some."""
    rows = store.connection.query(f"SELECT * FROM {EvaluationRecord.table} WHERE name = $name", {"name": LABELS})
    records = [EvaluationRecord.from_row(row) for row in rows]
    return {one.run: _labels_of(one.result) for one in records}


def seed_groups(runs: Sequence[RunRecord], rows: Sequence[RunRow]) -> list[SeedGroup]:
    """The groups of runs with two seeds or more that ended with a return."""
    by_key: dict[str, dict[int, RunRow]] = {}
    for run, row in zip(runs, rows, strict=True):
        if run.status == "finished" and row.total_return is not None:
            by_key.setdefault(_key(run), {}).setdefault(run.seed, row)
    groups = []
    for alike in by_key.values():
        if len(alike) > 1:
            members = list(alike.values())
            interval = grid_interval(np.array([[one.total_return] for one in members], float), nested=True)
            first = members[0]
            groups.append(
                SeedGroup(tuple(one.run for one in members), first.kind, first.teams, first.data, interval.mean,
                          interval.low, interval.high)
            )  # fmt: skip
    return groups


def _labels_of(document: Mapping[str, Any]) -> RunLabels:
    tags, note = document.get("tags"), document.get("note")
    return RunLabels(
        tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        note if isinstance(note, str) else "",
    )


def _key(run: RunRecord) -> str:
    """All that decides a run but its seed."""
    compared = {name: value for name, value in run.config.items() if name not in _OWN}
    return json.dumps([run.kind, run.data_hash, _without_seeds(compared)], sort_keys=True, default=str)


def _without_seeds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seeds(inner) for name, inner in value.items() if name != "seed"}
    return value
