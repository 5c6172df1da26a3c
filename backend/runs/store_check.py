"""The use case store check: every record of a store is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backend.decisions.backtest_document import StoredBacktest
from backend.decisions.document import StoredDecision
from backend.store.errors import StoreError
from backend.store.records import ALL_KINDS, KINDS, BacktestRecord, DecisionRecord, Record, RunRecord
from backend.store.store import Store, key_range

OnChecked = Callable[[str, int, int], None]  # what, done, total


@dataclass
class StoreCheck:
    """The result of a check. `records` are counted by table; `problems` are sentences by the run that they are of."""

    records: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)

    def add(self, run: str, problem: str) -> None:
        """Note a problem of a run."""
        self.problems.setdefault(run, []).append(problem)


def check_store(store: Store, on_checked: OnChecked) -> StoreCheck:
    """Read everything in a store: each record can be read and has the key of its fields, each document has its form,
    and each record belongs to a run. Changes nothing."""
    check = StoreCheck()
    known = {str(run) for run in store.connection.query("SELECT VALUE run FROM run")}
    found = (store.connection.query(f"SELECT run FROM {kind.table} GROUP BY run") for kind in KINDS)
    everything = sorted(known | {str(row["run"]) for rows in found for row in rows})
    for done, run in enumerate(everything, 1):
        if run not in known:
            check.add(run, "there are records of it and no run, as an import leaves them that was cut short: repeat it")
        for kind in ALL_KINDS:
            for rows in store.pages(key_range(kind, [run])):
                for row in rows:
                    _check_row(kind, row, run, check)
        on_checked("runs checked", done, len(everything))
    return check


def _check_row(kind: type[Record], row: dict[str, Any], run: str, check: StoreCheck) -> None:
    check.records[kind.table] += 1
    key = list(row["id"].id)
    try:
        record = kind.from_row(row)
        record.row()  # what could not be written now was not written so
        if isinstance(record, DecisionRecord):
            StoredDecision.from_record(record)
        elif isinstance(record, BacktestRecord):
            StoredBacktest.from_record(record)
        elif isinstance(record, RunRecord) and record.status == "deleting":
            check.add(run, "its deletion was cut short")
        if key != [getattr(record, name) for name in kind.identity]:
            check.add(run, f"{kind.table} {key} has the key of another record")
    except (StoreError, ValueError, TypeError, KeyError, AttributeError) as error:
        check.add(run, f"{kind.table} {key} cannot be read: {error}")
