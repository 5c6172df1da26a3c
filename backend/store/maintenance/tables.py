"""Whole tables of a store, as rows: what copies and checks read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.store.records import KINDS, Delegation, Record
from backend.store.store import Store, portions

# The kinds of which each record belongs to one step.
_OF_STEPS = tuple(kind for kind in KINDS if "step" in kind.identity)


class Tables:
    """The tables of an open store. A row is a record as the database holds it, its key included."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection

    def total(self, kind: type[Record]) -> int:
        """How many records of a kind the store holds, of all runs."""
        rows = self._connection.query(f"SELECT count() FROM {kind.table} GROUP ALL")
        return int(rows[0]["count"]) if rows else 0

    def run_ids(self, kind: type[Record]) -> list[str]:
        """The ids of the runs that have records of a kind, also where the run itself is not there. It reads them
        all."""
        rows = self._connection.query(f"SELECT run FROM {kind.table} GROUP BY run ORDER BY run")
        return [str(row["run"]) for row in rows]

    def steps(self, run_id: str) -> list[int]:
        """The steps of which a run has records of any kind, the newest first."""
        steps: set[int] = set()
        for kind in _OF_STEPS:
            rows = self._connection.query(
                f"SELECT step FROM {kind.table} WHERE run = $run GROUP BY step", {"run": run_id}
            )
            steps.update(row["step"] for row in rows)
        return sorted(steps, reverse=True)

    def rows(self, kind: type[Record], run_id: str) -> list[dict[str, Any]]:
        """The records of a kind that a run has, as the database holds them."""
        rows: list[dict[str, Any]] = self._connection.query(
            f"SELECT * FROM {kind.table} WHERE run = $run", {"run": run_id}
        )
        return rows

    def rows_of_step(self, run_id: str, step: int) -> dict[type[Record], list[dict[str, Any]]]:
        """All records of one step, as the database holds them at one moment; each kind after those it refers to."""
        found = self._connection.query(
            "RETURN { "
            + ", ".join(
                f"{kind.table}: (SELECT * FROM {kind.table} WHERE run = $run AND step = $step)" for kind in _OF_STEPS
            )
            + " }",
            {"run": run_id, "step": step},
        )
        return {kind: found[kind.table] for kind in _OF_STEPS if found[kind.table]}

    def insert_rows(self, kind: type[Record], rows: Sequence[dict[str, Any]]) -> None:
        """Add rows as `rows` and `rows_of_step` gave them, whose keys are not there yet."""
        what = f"RELATION INTO {kind.table}" if kind is Delegation else f"INTO {kind.table}"
        for portion in portions(rows):
            self._connection.query(f"INSERT {what} $rows RETURN NONE", {"rows": portion})

    @property
    def identity(self) -> str:
        """What tells this store from any other."""
        return str(self._connection.query("SELECT VALUE identity FROM store:schema")[0])

    def adopt_identity(self, identity: str) -> None:
        """Be the store of another identity from now on: of the one that this is a copy of, which it replaces."""
        self._connection.query("UPDATE store:schema SET identity = $identity RETURN NONE", {"identity": identity})
        self._connection.remember(identity)
