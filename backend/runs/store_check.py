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
from backend.store.maintenance.object_copy import file_problem, stray_files
from backend.store.maintenance.tables import OF_A_RUN, OF_RUNS, Tables, stray_runs
from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    CallCountRecord,
    DecisionRecord,
    Delegation,
    FileRecord,
    QueryRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    ShardRecord,
    TensorRecord,
    TrajectoryRecord,
)
from backend.store.sharing.objects import OBJECTS_FOLDER
from backend.store.sharing.token_files import in_file, problem_of_place, without_tokens
from backend.store.store import Store

_Key = tuple[Any, ...]
_Found = dict[type[Record], dict[_Key, Record]]  # the records that could be read, by key
OnChecked = Callable[[str, int, int], None]  # what, done, total
_RECORDS_AT_ONCE = 10_000  # read until the engine gives the memory of them back


@dataclass
class StoreCheck:
    """What a check found. `records` are counted by table; `problems` by the run that they are of, in words; `notes` are
    no damage."""

    records: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, run: str, problem: str) -> None:
        """Note a problem of a run."""
        self.problems.setdefault(run, []).append(problem)


def check_store(store: Store, runs: Path, on_checked: OnChecked) -> StoreCheck:
    """Read everything in a store: each record can be read and has the key of its fields, each document has its form,
    what a record refers to is there, and so are the files of kept weights below `runs` and those that lie with the
    store. Changes nothing.

    What an interrupted run did not write of its last step is no damage, nor are conversations that `store.keep` dropped
    or records that a running training is about to write.
    """
    check = StoreCheck()
    runs_there = _runs(store, check)
    read = 0
    for place, run in enumerate(runs_there):
        record = _run_record(store, run, check)
        for share, found in _portions(store, run, check):
            _references(record, found, check)
            _files(run, found, folder_of(run, runs), check)
            if record is not None and record.status != "deleting" and store.connection.keeps_files:
                _files_with_store(store, found, check)
            # Not by records: to count them first would take a fifth of the time, and memory.
            on_checked("checked, % of each run", 100 * place + int(100 * share), 100 * len(runs_there))
            if check.records.total() - read > _RECORDS_AT_ONCE:
                read = check.records.total()
                store.connection.release_memory()
    if strays := stray_files(store) if store.connection.keeps_files else []:
        check.notes.append(
            f"{len(strays)} files in {OBJECTS_FOLDER} of the store are named by no record: `store compact` removes them"
        )
    return check


def _runs(store: Store, check: StoreCheck) -> list[str]:
    """The runs, and the ids in records whose run is not there."""
    runs = []
    for run in Tables(store).run_ids(RunRecord):
        runs.append(run)
    for run in (strays := stray_runs(store, runs)):
        if any(Tables(store).total(kind, run) for kind in OF_A_RUN):  # its trials outlive a run
            check.add(
                run, "there are records of it and no run, as an import leaves them that was cut short: import it again"
            )
    return runs + strays


def _run_record(store: Store, run: str, check: StoreCheck) -> RunRecord | None:
    rows = Tables(store).rows(RunRecord, run)
    records = _readable(RunRecord, rows, run, check)
    check.records[RunRecord.table] += len(rows)
    for record in records.values():
        assert isinstance(record, RunRecord)
        if record.status == "deleting":
            check.add(run, "its deletion was cut short")
        return record
    return None


def _portions(store: Store, run: str, check: StoreCheck) -> Iterator[tuple[float, _Found]]:
    """The records of a run that can be read: first those of no step, then a step at a time; with the share of the run
    that is read by then."""
    found: _Found = {}
    for kind in OF_RUNS:
        try:
            rows = Tables(store).rows(kind, run)
        except StoreError as error:
            check.add(run, f"its {kind.table} records cannot be read: {error}")
            continue
        check.records[kind.table] += len(rows)
        found[kind] = _readable(kind, rows, run, check)
    yield 0.0, found
    try:
        steps = Tables(store).steps(run)
    except StoreError as error:
        check.add(run, f"its steps cannot be read: {error}")
        return
    for place, step in enumerate(steps, 1):
        try:
            by_kind = Tables(store).rows_of_step(run, step)
        except StoreError as error:
            check.add(run, f"its step {step} cannot be read: {error}")
            continue
        check.records.update({kind.table: len(rows) for kind, rows in by_kind.items()})
        found = {kind: _readable(kind, rows, run, check) for kind, rows in by_kind.items()}
        files = [file for file in found.get(TensorRecord, {}).values() if isinstance(file, TensorRecord)]
        for row in by_kind.get(TrajectoryRecord, ()):
            if in_file(row) and (problem := problem_of_place(row, files)) is not None:
                check.add(run, f"trajectory {row['id'].id} cannot be read: {problem}")
        yield place / len(steps), found


def _readable(kind: type[Record], rows: list[dict[str, Any]], run: str, check: StoreCheck) -> dict[_Key, Record]:
    """The records of rows by key, without those that cannot be read."""
    records: dict[_Key, Record] = {}
    for there in rows:
        row = without_tokens(there) if kind is TrajectoryRecord and in_file(there) else there
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
    return records


# -- what records refer to ---------------------------------------------------------------------------------------------


def _references(run: RunRecord | None, found: _Found, check: StoreCheck) -> None:
    """Look for records that refer to what is not there. A run that did not finish may lack the end of a step."""
    if run is None:
        return
    name, finished = run.run, run.status == "finished"
    queries, rollouts = found.get(QueryRecord, {}), found.get(RolloutRecord, {})
    talks, rewards = found.get(TrajectoryRecord, {}), found.get(RewardRecord, {})
    edges = found.get(Delegation, {})
    for kind in (RolloutRecord, TrajectoryRecord):
        for key in found.get(kind, {}):
            if key[:3] not in queries:
                check.add(name, f"{kind.table} {list(key)} is of a query that is not there")
    for key, edge in edges.items():
        assert isinstance(edge, Delegation)
        if key not in talks or (*key[:4], *edge.caller) not in talks:
            check.add(name, f"delegated {list(key)} is an edge to a conversation that is not there")
    for key, talk in talks.items():
        assert isinstance(talk, TrajectoryRecord)
        if talk.caller is not None and (*key[:4], *talk.caller) not in talks:
            check.add(name, f"trajectory {list(key)} was delegated by a conversation that is not there")
        elif talk.caller is not None and finished and key not in edges:
            check.add(name, f"trajectory {list(key)} lacks its edge to the conversation that delegated it")
    dropped = not talks and bool(rewards or rollouts) and _keeps_some(run)
    if not dropped:
        for key in rewards:
            if key not in talks:
                check.add(name, f"reward {list(key)} is of a conversation that is not there")
    _call_counts(name, rollouts, found.get(CallCountRecord, {}), check)
    marks = [mark for mark in found.get(ShardRecord, {}).values() if isinstance(mark, ShardRecord)]
    if finished and marks:
        counted = {"queries": len(queries), "rollouts": len(rollouts)} | (
            {} if dropped else {"trajectories": len(talks)}
        )
        for what, there in counted.items():
            written = sum(getattr(mark, what) for mark in marks)
            if written != there:
                check.add(name, f"step {marks[0].step} holds {there} {what}, and {written} were written")
    if finished and run.kind == "backtest":
        backtests = {key[1] for key in found.get(BacktestRecord, {})}
        for key in found.get(DecisionRecord, {}):
            if key[1] not in backtests:
                check.add(name, f"decision {list(key)} is of a backtest that is not there")


def _call_counts(run: str, rollouts: Mapping[_Key, Record], counts: Mapping[_Key, Record], check: StoreCheck) -> None:
    """Compare the calls counted for a step with those of its rollouts."""
    made = Counter[_Key]()
    for key, rollout in rollouts.items():
        assert isinstance(rollout, RolloutRecord)
        made.update((key[1], role, calls) for role, calls in rollout.calls.items())
    counted = Counter[_Key]()
    for key, count in counts.items():
        assert isinstance(count, CallCountRecord)
        for role, calls, number in zip(count.roles, count.calls, count.rollouts, strict=True):
            counted[(key[1], role, calls)] += number
    for step in sorted({key[0] for key in made.keys() | counted.keys() if made[key] != counted[key]}):
        check.add(run, f"the calls counted for step {step} are not those of its rollouts")


def _keeps_some(run: RunRecord) -> bool:
    """Whether old conversations of the run are dropped."""
    config = run.config.get("config")
    section = config.get("store") if isinstance(config, Mapping) else None
    return isinstance(section, Mapping) and bool(section.get("keep"))


def _files(run: str, found: _Found, folder: Path | None, check: StoreCheck) -> None:
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


def _files_with_store(store: Store, found: _Found, check: StoreCheck) -> None:
    """Read the files of a run that lie with the store, and compare them with their records."""
    for file in (*found.get(FileRecord, {}).values(), *found.get(TensorRecord, {}).values()):
        assert isinstance(file, FileRecord | TensorRecord)
        if (problem := file_problem(store, file)) is not None:
            check.add(file.run, f"{file.name} lies with the store, and {problem}")
