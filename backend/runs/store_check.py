"""The use case store check: every record is read, and compared with what it refers to."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.decisions.backtest_document import StoredBacktest
from backend.decisions.document import StoredDecision
from backend.runs.deletion import folder_of
from backend.store.errors import StoreError
from backend.store.records import (
    ALL_KINDS,
    KINDS,
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    QueryRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    ShardRecord,
    TrajectoryRecord,
)
from backend.store.store import Store

_Key = tuple[Any, ...]
_Found = dict[type[Record], dict[_Key, Record]]  # the records that could be read, by key
OnChecked = Callable[[str, int, int], None]  # what, done, total

_OF_STEPS = tuple(kind for kind in KINDS if kind.identity[1:2] == ("step",))


@dataclass
class StoreCheck:
    """The result of a check. `records` are counted by table; `problems` are sentences by the run that they are of;
    `notes` are no damage."""

    records: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, run: str, problem: str) -> None:
        """Note a problem of a run."""
        self.problems.setdefault(run, []).append(problem)


def check_store(store: Store, runs: Path, on_checked: OnChecked) -> StoreCheck:
    """Read everything in a store: each record can be read and has the key of its fields, each document has its form,
    what a record refers to is there, and so are the files of kept weights below `runs`. Changes nothing.

    What an interrupted run did not write of its last step is no damage, nor are conversations that `store.keep` dropped
    or records that a running training is about to write.
    """
    check = StoreCheck()
    known = [str(run) for run in store.connection.query("SELECT VALUE run FROM run ORDER BY run")]
    ids = (store.connection.query(f"SELECT run FROM {kind.table} GROUP BY run") for kind in KINDS)
    strays = {str(row["run"]) for rows in ids for row in rows} - {*known}
    for run in sorted(strays):
        check.add(
            run, "there are records of it and no run, as an import leaves them that was cut short: import it again"
        )
    everything = (*known, *sorted(strays))
    for done, run in enumerate(everything, 1):
        record: Record | None = None
        for found in _portions(store, run, check):
            record = next(iter(found.get(RunRecord, {}).values()), record)
            if isinstance(record, RunRecord):
                _check_references(record, found, check)
            _check_weights(run, found, folder_of(run, runs), check)
        if isinstance(record, RunRecord) and record.status == "deleting":
            check.add(run, "its deletion was cut short")
        on_checked("runs checked", done, len(everything))
    return check


def _portions(store: Store, run: str, check: StoreCheck) -> Iterator[_Found]:
    """The records of a run that can be read: first those of no step, then a step at a time."""
    others = tuple(kind for kind in ALL_KINDS if kind not in _OF_STEPS)
    yield {kind: _readable(store, kind, run, None, check) for kind in others}
    for step in sorted({step for kind in _OF_STEPS for step in store.steps(kind, run)}):
        yield {kind: _readable(store, kind, run, step, check) for kind in _OF_STEPS}


def _readable(store: Store, kind: type[Record], run: str, step: int | None, check: StoreCheck) -> dict[_Key, Record]:
    """The records of a kind by key, without those that cannot be read."""
    condition = "run = $run" if step is None else "run = $run AND step = $step"
    rows = store.connection.query(f"SELECT * FROM {kind.table} WHERE {condition}", {"run": run, "step": step})
    records: dict[_Key, Record] = {}
    for row in rows:
        key = tuple(row["id"].id) if isinstance(row["id"].id, list) else (row["id"].id,)
        try:
            record = kind.from_row(row)
            record.row()  # what could not be written now was not written so
            if isinstance(record, DecisionRecord):
                StoredDecision.from_record(record)
            elif isinstance(record, BacktestRecord):
                StoredBacktest.from_record(record)
        except (StoreError, ValueError, TypeError, KeyError, AttributeError) as error:
            check.add(run, f"{kind.table} {list(key)} cannot be read: {error}")
            continue
        if key != tuple(row[name] for name in kind.identity):
            check.add(run, f"{kind.table} {list(key)} has the key of another record")
        records[key] = record
    check.records[kind.table] += len(rows)
    return records


# -- what records refer to ---------------------------------------------------------------------------------------------


def _check_references(run: RunRecord, found: _Found, check: StoreCheck) -> None:
    """Look for records that refer to what is not there. A run that did not finish may lack the end of a step."""
    queries, rollouts, talks = (found.get(kind, {}) for kind in (QueryRecord, RolloutRecord, TrajectoryRecord))
    rewards = found.get(RewardRecord, {})
    finished, dropped = run.status == "finished", not talks and bool(rewards or rollouts) and _keeps_some(run)

    def refer(kind: type[Record], key: _Key, there: bool, problem: str) -> None:
        if not there:
            check.add(run.run, f"{kind.table} {list(key)} {problem}")

    for kind, records in ((RolloutRecord, rollouts), (TrajectoryRecord, talks)):
        for key in records:
            refer(kind, key, key[:3] in queries, "is of a query that is not there")
    for key, talk in talks.items():
        assert isinstance(talk, TrajectoryRecord)
        if talk.caller is not None:
            there = (*key[:4], *talk.caller) in talks
            refer(TrajectoryRecord, key, there, "was delegated by a conversation that is not there")
    for key in rewards if not dropped else ():
        refer(RewardRecord, key, key in talks, "is of a conversation that is not there")
    backtests = {key[1] for key in found.get(BacktestRecord, {})}
    for key in found.get(DecisionRecord, {}) if finished and run.kind == "backtest" else ():
        refer(DecisionRecord, key, key[1] in backtests, "is of a backtest that is not there")
    marks = [mark for mark in found.get(ShardRecord, {}).values() if isinstance(mark, ShardRecord)]
    counted = {"queries": len(queries), "rollouts": len(rollouts)} | ({} if dropped else {"trajectories": len(talks)})
    for what, held in counted.items() if finished and marks else ():
        written = sum(getattr(mark, what) for mark in marks)
        if written != held:
            check.add(run.run, f"step {marks[0].step} holds {held} {what}, and {written} were written")


def _keeps_some(run: RunRecord) -> bool:
    """Whether old conversations of the run are dropped."""
    config = run.config.get("config")
    section = config.get("store") if isinstance(config, Mapping) else None
    return isinstance(section, Mapping) and bool(section.get("keep"))


def _check_weights(run: str, found: _Found, folder: Path | None, check: StoreCheck) -> None:
    """Compare kept weights with their checksums."""
    for record in found.get(AdapterRecord, {}).values():
        assert isinstance(record, AdapterRecord)
        path = None if folder is None else folder / record.path
        if path is None or not path.is_file():
            check.notes.append(f"run {run}: {record.path} of {record.role} is not there to be compared")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != record.checksum:
                check.add(run, f"{path} is not the file that was kept: its checksum differs")
