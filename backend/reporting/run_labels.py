"""Tags and a note that a reader gives a run on the page of runs.

Labels are a document of the run in the store (an `EvaluationRecord` named `labels`), so that export, backup and
deletion take them along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.store.records import EvaluationRecord
from backend.store.store import Store
from simulator.errors import UserError

LABELS = "labels"
_MOST_TAGS, _LONGEST_TAG, _LONGEST_NOTE = 20, 40, 2_000


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


def write_labels(store: Store, run: str, labels: RunLabels) -> None:
    """Put the labels of a run in place of its former ones. Raises `StoreError` where there is no such run."""
    store.run(run)
    store.put(EvaluationRecord(run, LABELS, 0, {"tags": list(labels.tags), "note": labels.note}))


def read_labels(store: Store) -> dict[str, RunLabels]:
    """The labels of all runs that have some."""
    return {one.run: _labels_of(one.result) for one in map(EvaluationRecord.from_row, _label_rows(store))}


def table_state(store: Store) -> list[str]:
    """What is another one when something of the table of runs has changed: name, status and end of each run, and the
    labels."""
    runs = store.connection.query("SELECT run, status, started_at, finished_at FROM run ORDER BY run")
    return [*map(repr, runs), *map(repr, _label_rows(store))]


def _label_rows(store: Store) -> list[dict[str, Any]]:
    """By their keys: the table also holds all evaluations of all trainings."""
    from surrealdb import RecordID  # `backend.store` must be imported first: it leaves out what is not needed of it

    names = store.connection.query("SELECT VALUE run FROM run")
    keys = [RecordID(EvaluationRecord.table, [name, LABELS, 0]) for name in names]
    rows: list[dict[str, Any]] = store.connection.query("SELECT * FROM $keys", {"keys": keys})
    return rows


def _labels_of(document: Mapping[str, Any]) -> RunLabels:
    tags, note = document.get("tags"), document.get("note")
    return RunLabels(
        tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        note if isinstance(note, str) else "",
    )
