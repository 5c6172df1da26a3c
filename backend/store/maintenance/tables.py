"""Whole tables of a store, as rows: what copies and checks read and write.

Nothing here reads a table to find out what is in it: runs, steps and numbers come from the indexes, which are a
fraction of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.store.records import (
    KINDS,
    CallCountRecord,
    Delegation,
    FileRecord,
    MetricRecord,
    Record,
    RunRecord,
    ServiceRecord,
    TensorRecord,
    TrialRecord,
)
from backend.store.rows import portions
from backend.store.store import Store

OF_A_RUN: tuple[type[Record], ...] = (
    *KINDS,
    ServiceRecord,
    FileRecord,
    TensorRecord,
    CallCountRecord,
)  # what goes when a run is deleted
COPIED: tuple[type[Record], ...] = (*OF_A_RUN, TrialRecord)
# The kinds whose records belong to one step each, which is the second part of their key; each after those it refers to.
OF_STEPS = tuple(kind for kind in COPIED if kind.identity[1:2] == ("step",))
OF_RUNS = tuple(kind for kind in COPIED if kind not in OF_STEPS and kind is not RunRecord)

_LEAST = -(2**63)


class Tables:
    """The tables of an open store. A row is a record as the database holds it, its key included."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection

    def total(self, kind: type[Record], run_id: str) -> int:
        """How many records of a kind a run has."""
        rows = self._connection.query(f"SELECT count() FROM {kind.table} WHERE run = $run GROUP ALL", {"run": run_id})
        return int(rows[0]["count"]) if rows else 0

    def run_ids(self, kind: type[Record]) -> list[str]:
        """The ids of the runs that have records of a kind, also where the run itself is not there."""
        if kind is RunRecord or self._connection.remote:  # a server may use its indexes in another order
            rows = self._connection.query(f"SELECT run FROM {kind.table} GROUP BY run ORDER BY run")
            return [str(row["run"]) for row in rows]
        found: list[str] = []
        text, beyond = f"SELECT VALUE run FROM {kind.table} WHERE run >= $beyond LIMIT 1", ""
        while rows := self._connection.query(text, {"beyond": beyond}):
            found.append(str(rows[0]))
            beyond = f"{rows[0]}!"  # comes before whatever may follow in a longer id
        return found

    def steps(self, run_id: str) -> list[int]:
        """The steps of which a run has records of any kind, the newest first."""
        rows = self._connection.query("SELECT VALUE step FROM metric WHERE run = $run", {"run": run_id})
        steps: set[int] = {int(step) for step in rows}
        kinds = [kind for kind in OF_STEPS if kind is not MetricRecord]  # whose index has no step
        if self._connection.remote:
            for kind in kinds:
                text = f"SELECT step FROM {kind.table} WHERE run = $run GROUP BY step"
                steps.update(row["step"] for row in self._connection.query(text, {"run": run_id}))
            return sorted(steps, reverse=True)
        # By `>=`: with `>` the engine finds nothing in an index of three fields (surrealdb-embedded 3.0.0b10, tried).
        first = (f"(SELECT VALUE step FROM {kind.table} WHERE run = $run AND step >= $next LIMIT 1)" for kind in kinds)
        text, following = f"RETURN array::flatten([{', '.join(first)}])", _LEAST
        while found := self._connection.query(text, {"run": run_id, "next": following}):
            steps.add(min(found))
            following = min(found) + 1
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
                f"{kind.table}: (SELECT * FROM {kind.table} WHERE run = $run AND step = $step)" for kind in OF_STEPS
            )
            + " }",
            {"run": run_id, "step": step},
        )
        return {kind: found[kind.table] for kind in OF_STEPS if found[kind.table]}

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

    def adopt_bucket(self, bucket: str | None) -> None:
        """From now on the files of runs lie in this bucket; None for beside the database."""
        self._connection.query("UPDATE store:schema SET bucket = $bucket RETURN NONE", {"bucket": bucket})


def stray_runs(store: Store, runs: Sequence[str]) -> list[str]:
    """The ids in records whose run is not there, as an import leaves them that was cut short."""
    known, stray = set(runs), set[str]()
    for kind in COPIED:
        if kind is not RunRecord:
            stray.update(run for run in Tables(store).run_ids(kind) if run not in known)
    return sorted(stray)
