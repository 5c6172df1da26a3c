"""The store: records in SurrealDB, in a folder, in memory, or behind a server.

A record replaces the one with the same key, so that a step repeated after a crash does no harm. Values always travel
as parameters, never inside the query text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from surrealdb import RecordID
from surrealdb.data.types.range import BoundExcluded, BoundIncluded, Range

from backend.store import lease
from backend.store.connection import Connection
from backend.store.errors import StoreError, half_deleted
from backend.store.records import (
    KINDS,
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    EvaluationRecord,
    JournalRecord,
    MetricRecord,
    PublishedRecord,
    QueryRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    RunStatus,
    ShardRecord,
    TrajectoryRecord,
    TrialRecord,
)

# Bounds of one request: a server takes messages of limited size.
_ROWS_PER_REQUEST = 1_000
_SHARD_BYTES = 12_000_000  # of conversations in a shard, one transaction: a server takes 16 MiB in a message
_BYTES_PER_REQUEST = 4_000_000
_ROWS_READ = 500  # of one request that reads a table page by page
# A shard with all its records, in one statement and so in one transaction, unless it is there.
_ADD_SHARD = (
    "IF !record::exists($mark) { FOR $row IN $rows { UPSERT $row.id CONTENT $row RETURN NONE };"
    "CREATE $mark CONTENT $shard RETURN NONE };"
)
# A record that is not replaced where it is there; whether it is the one that is there now.
_ADD_FIRST = (
    "IF record::exists($id) { RETURN (SELECT * FROM ONLY $id) = $row } "
    "ELSE { CREATE $id CONTENT $row RETURN NONE; RETURN true }"
)

R = TypeVar("R", bound=Record)


class Store:
    """An open store. Use `Store.open`, and close it: `with Store.open(folder) as store: ...`."""

    def __init__(self, connection: Connection, leases: lease.Leases) -> None:
        self._connection = connection
        self._name = connection.name
        self._leases = leases

    @classmethod
    def open(cls, where: str | Path, exclusive: bool = False) -> Self:
        """Open the store at `where`: a folder (made if absent), `mem://`, or `ws://` / `wss://` of a SurrealDB server.

        A folder that no process holds is held, and served to all of this user's programs that open it meanwhile. One
        that another process holds is reached through that one; when it ends, one of those that use the folder takes
        over. An `exclusive` user has the folder alone: it is refused where another program uses the folder.

        A server is signed in to with CRYPTOSENTINEL_STORE_USER and CRYPTOSENTINEL_STORE_PASSWORD of the environment,
        where they are set. Raises `StoreError` if the folder cannot be used, is damaged, belongs to another user or
        holds a store of another schema, and if its holder or the server does not answer.
        """
        connection = Connection(where, lease.mark_abandoned, exclusive)
        return cls(connection, lease.Leases(connection))

    @property
    def connection(self) -> Connection:
        """The connection to the database, for statements that concern no single run."""
        return self._connection

    @property
    def identity(self) -> str:
        """What tells this store from any other."""
        return self._connection.identity

    def close(self) -> None:
        """Close the database and give the folder back; a second call does nothing."""
        self._leases.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- writing ----------------------------------------------------------------------------------------------------

    def add_run(self, record: RunRecord) -> None:
        """Add a new run, which is ours while it runs. Raises `StoreError` where the store has a run of this id."""
        self._leases.begin(record, _database_row(record), former=None)

    def resume_run(self, record: RunRecord) -> None:
        """Take over the run of this id with a new record, or add it where there is none.

        Raises `StoreError` if another program is at work on it, which may take up to a minute to find out, or if its
        deletion has begun or it was imported.
        """
        found = self._connection.query("SELECT status, imported FROM $id", {"id": RecordID("run", [record.run])})
        if found and found[0]["status"] == "deleting":
            raise half_deleted(self._name, record.run)
        if found and found[0]["imported"]:
            raise StoreError(
                f"run {record.run} was imported, so it is only read: give the new run another id or folder"
            )
        self._leases.begin(record, _database_row(record), former=self._free_owner(record.run))

    def set_document(self, record: RunRecord) -> None:
        """Replace the document of a run, and nothing else of it."""
        row = _database_row(record)
        self._connection.query(
            "UPDATE $id SET config = $config RETURN NONE", {"id": row["id"], "config": row["config"]}
        )

    def claim(self, run_id: str) -> None:
        """Make sure that nobody else is at work on a run. Raises `StoreError` as `resume_run` does."""
        self._free_owner(run_id)

    def _free_owner(self, run_id: str) -> str:
        """The owner in the lease of a run that nobody else works on; empty where it has no lease."""
        owner, alive = self._leases.owner_of(run_id)
        if alive:
            raise StoreError(
                f"run {run_id} is being worked on by another program, which renews its lease: stop that one first"
            )
        return owner

    def finish_run(self, run_id: str, status: RunStatus, message: str | None = None) -> None:
        """Set how the run ended, and that it ended now. Raises `StoreError` if there is no such run."""
        ended = replace(self.run(run_id), status=status, message=message, finished_at=int(time.time() * 1000))
        self._write([ended])
        self._leases.drop(run_id)

    def add_metrics(self, run_id: str, step: int, values: dict[str, float]) -> None:
        """Add metrics to those of the step; a name that is there already gets the new value."""
        self._write([MetricRecord(run_id, step, values)], verb="MERGE")

    def add_shard(
        self,
        mark: ShardRecord,
        queries: Sequence[QueryRecord],
        rollouts: Sequence[RolloutRecord],
        trajectories: Sequence[TrajectoryRecord],
    ) -> None:
        """Add a shard of a step with all its records in one transaction; where the shard is there, change nothing.

        Two processes that both write a shard, as when one was thought dead, so leave that of one of them, whole.
        Raises `StoreError` for one that is larger than a server takes in a message.
        """
        rows = [_database_row(one) for one in (*queries, *rollouts, *trajectories)]
        if (size := sum(_row_bytes(row) for row in rows)) > _SHARD_BYTES:
            raise StoreError(
                f"shard {mark.shard} of step {mark.step} holds {size / 1e6:.0f} MB, and {_SHARD_BYTES / 1e6:.0f} MB go "
                "in one transaction: give training.shards a higher number"
            )
        row = _database_row(mark)
        self._connection.query(_ADD_SHARD, {"mark": row["id"], "shard": row, "rows": rows})

    def add_published(self, record: PublishedRecord) -> bool:
        """Add the weights that a role's trainer made for a step. False, and nothing changes, where the step has some:
        the first stay."""
        row = _database_row(record)
        return bool(self._connection.query(_ADD_FIRST, {"id": row["id"], "row": row}))

    def put(self, *records: Record) -> None:
        """Add records of any one kind, each in the place of one with its key; they are on disk when this returns."""
        self._write(records)

    # -- deleting ---------------------------------------------------------------------------------------------------

    def mark_deleting(self, run_id: str) -> None:
        """Begin to delete a run: from now on nobody reads it or continues with it. A second call does no harm, and
        neither does one for records whose run is not there. Raises `StoreError` if the run is being written."""
        if self._status(run_id) == "interrupted":
            self.claim(run_id)  # it may only look abandoned
        status = self._connection.query(
            "UPDATE $id SET status = 'deleting' WHERE status != 'running' RETURN NONE;"
            "RETURN SELECT VALUE status FROM ONLY $id",
            {"id": RecordID("run", [run_id])},
        )
        if status == "running":
            raise StoreError(
                f"run {run_id} is being written: delete it when it has ended, or stop the program that writes it"
            )

    def delete_run(self, run_id: str, on_deleted: Callable[[int], None] | None = None) -> int:
        """Delete a run with all its records, and return how many they were. `on_deleted` is told of each portion.

        The run itself goes last. Until then it is marked, so a deletion that was cut short leaves no run that looks
        whole, and a second call finishes it. Raises `StoreError` as `mark_deleting` does.
        """
        self.mark_deleting(run_id)
        deleted = sum(self._delete(key_range(kind, [run_id]), on_deleted) for kind in reversed(KINDS[:-1]))
        self._leases.drop(run_id)
        return deleted + self._delete(key_range(RunRecord, [run_id]))

    def drop_trajectories(self, run_id: str, first: int, stop: int) -> int:
        """Delete the conversations of the steps ``first .. stop - 1``, and return how many they were. Queries,
        rollouts, rewards and metrics stay."""
        return self._delete(key_range(TrajectoryRecord, [run_id, first], [run_id, stop]))

    # -- reading ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunRecord]:
        """All runs, the newest first; also one whose deletion was cut short, with the status `deleting`."""
        rows = self._connection.query("SELECT * FROM run ORDER BY started_at DESC, run")
        return [RunRecord.from_row(row) for row in rows]

    def run(self, run_id: str) -> RunRecord:
        """One run. Raises `StoreError` if there is none with this id, or its deletion was cut short."""
        rows = self._connection.query("SELECT * FROM $id", {"id": RecordID("run", [run_id])})
        if not rows:
            known = ", ".join(record.run for record in self.runs()[:10]) or "none yet"
            raise StoreError(f"store {self._name} has no run '{run_id}'; its newest runs: {known}")
        if rows[0]["status"] == "deleting":
            raise half_deleted(self._name, run_id)
        return RunRecord.from_row(rows[0])

    def queries(self, run_id: str, step: int | None = None) -> list[QueryRecord]:
        """Queries in order of step and position."""
        return self._read(QueryRecord, run=run_id, step=step)

    def rollouts(self, run_id: str, step: int | None = None) -> list[RolloutRecord]:
        """Rollouts in order of step, query and position."""
        return self._read(RolloutRecord, run=run_id, step=step)

    def trajectories(self, run_id: str, step: int, role: str | None = None) -> list[TrajectoryRecord]:
        """Conversations of a step, of one role or of all, in order of query, rollout, role and ordinal."""
        return self._read(TrajectoryRecord, run=run_id, step=step, role=role)

    def rewards(self, run_id: str, step: int | None = None, role: str | None = None) -> list[RewardRecord]:
        """Rewards in order of step, query, rollout, role and ordinal."""
        return self._read(RewardRecord, run=run_id, step=step, role=role)

    def adapters(self, run_id: str) -> list[AdapterRecord]:
        """Versions of all roles' weights in order of step, then role."""
        return sorted(self._read(AdapterRecord, run=run_id), key=lambda record: (record.step, record.role))

    def metrics(self, run_id: str) -> list[MetricRecord]:
        """Metrics in order of step."""
        return self._read(MetricRecord, run=run_id)

    def evaluations(self, run_id: str) -> list[EvaluationRecord]:
        """Evaluations in order of name, then step."""
        return self._read(EvaluationRecord, run=run_id)

    def backtests(self, run_id: str, name: str | None = None) -> list[BacktestRecord]:
        """Backtests in order of name; with `name` that one, if there is one."""
        return self._read(BacktestRecord, run=run_id, name=name)

    def trials(self, data_hash: str | None = None) -> list[TrialRecord]:
        """The ledger of trials, or that of one market, in order of time."""
        condition = "" if data_hash is None else " WHERE data_hash = $data"
        rows = self._connection.query(f"SELECT * FROM trial{condition} ORDER BY tested_at, id", {"data": data_hash})
        return [TrialRecord.from_row(row) for row in rows]

    def decisions(self, run_id: str, backtest: str | None = None) -> list[DecisionRecord]:
        """Decisions in order of backtest, then ordinal."""
        return self._read(DecisionRecord, run=run_id, backtest=backtest)

    def journal(self, run_id: str) -> list[JournalRecord]:
        """A paper session's journal, in order, snapshots first."""
        return self._read(JournalRecord, run=run_id)

    def journal_between(self, run_id: str, first: int, stop: int) -> list[JournalRecord]:
        """Its entries of the ordinals ``first .. stop - 1``, in order, without a look at the others."""
        keys = key_range(JournalRecord, [run_id, first], [run_id, stop])
        rows = self._connection.query("SELECT * FROM $keys ORDER BY id", {"keys": keys})
        return [JournalRecord.from_row(row) for row in rows]

    def shards(self, run_id: str, step: int | None = None) -> list[ShardRecord]:
        """Markers of complete shards in order of step and shard."""
        return self._read(ShardRecord, run=run_id, step=step)

    def published(self, run_id: str, step: int | None = None, role: str | None = None) -> list[PublishedRecord]:
        """Published weights in order of step and role."""
        return self._read(PublishedRecord, run=run_id, step=step, role=role)

    def count(self, kind: type[Record], run_id: str, step: int | None = None) -> int:
        """How many records of a kind a run has, or one step of it, for kinds whose second identifying field is the
        step: they are counted by their keys, without a look at the records."""
        return self.count_keys(key_range(kind, [run_id] if step is None else [run_id, step]))

    def count_keys(self, keys: RecordID) -> int:
        """How many records have one of the keys."""
        rows = self._connection.query("SELECT count() FROM $keys GROUP ALL", {"keys": keys})
        return int(rows[0]["count"]) if rows else 0

    def each(self, kind: type[R], run_id: str) -> Iterator[R]:
        """All records of a kind that a run has, in order of key, read page by page."""
        for rows in self.pages(key_range(kind, [run_id])):
            yield from (kind.from_row(row) for row in rows)

    def pages(self, keys: RecordID) -> Iterator[list[dict[str, Any]]]:
        """The rows of a range of keys in order, page by page, until one is not full: nobody runs after a writer."""
        text, full, bounds = f"SELECT * FROM $keys ORDER BY id LIMIT {_ROWS_READ}", True, keys.id
        assert isinstance(bounds, Range)
        while full and (rows := self._connection.query(text, {"keys": keys})):
            yield rows
            full = len(rows) == _ROWS_READ
            keys = RecordID(keys.table_name, Range(BoundExcluded(rows[-1]["id"].id), bounds.end))

    def steps(self, kind: type[Record], run_id: str) -> list[int]:
        """The steps of which a run has records of a kind, in order."""
        rows = self._connection.query(
            "SELECT step FROM $keys GROUP BY step ORDER BY step", {"keys": key_range(kind, [run_id])}
        )
        return [row["step"] for row in rows]

    # -- the database -----------------------------------------------------------------------------------------------

    def _write(self, records: Sequence[Record], verb: str = "CONTENT") -> None:
        """Put records in place, in transactions of bounded size."""
        for rows in _portions([_database_row(record) for record in records]):
            self._connection.query(f"FOR $row IN $rows {{ UPSERT $row.id {verb} $row RETURN NONE }}", {"rows": rows})

    def _delete(self, keys: RecordID, on_deleted: Callable[[int], None] | None = None) -> int:
        """Delete the records of a range of keys, in transactions of bounded size; returns how many they were."""
        text = (
            f"LET $found = SELECT VALUE id FROM $keys LIMIT {_ROWS_PER_REQUEST};"
            "DELETE $found RETURN NONE; RETURN array::len($found)"
        )
        deleted = 0
        while portion := int(self._connection.query(text, {"keys": keys})):
            deleted += portion
            if on_deleted is not None:
                on_deleted(portion)
        return deleted

    def _status(self, run_id: str) -> str | None:
        """The status of a run; None if there is none with this id."""
        rows = self._connection.query("SELECT VALUE status FROM $id", {"id": RecordID("run", [run_id])})
        return str(rows[0]) if rows else None

    def _read(self, kind: type[R], **equal: str | int | None) -> list[R]:
        """Records whose fields equal those given (None: any), the run among them, in order of their keys."""
        rest = {name: value for name, value in equal.items() if value is not None}
        keys = key_range(kind, [rest.pop(name) for name in takewhile(rest.__contains__, kind.identity)])
        condition = "".join(f" {'AND' if place else 'WHERE'} {name} = ${name}" for place, name in enumerate(rest))
        rows = self._connection.query(f"SELECT * FROM $keys{condition} ORDER BY id", {"keys": keys, **rest})
        return [kind.from_row(row) for row in rows]


# -- keys, rows and requests -------------------------------------------------------------------------------------------


def key_range(kind: type[Record], begin: Sequence[str | int], stop: Sequence[str | int] | None = None) -> RecordID:
    """The keys that begin with the values `begin`, or lie from there up to `stop`."""
    behind: list[Any] = [*begin, {}] if stop is None else [*stop]  # every text and number comes before an object
    return RecordID(kind.table, Range(BoundIncluded([*begin]), BoundExcluded(behind)))


def _database_row(record: Record) -> dict[str, Any]:
    """The record as the database takes it, with its key. Raises `StoreError`."""
    row = record.row()
    return {"id": RecordID(record.table, [row[name] for name in record.identity]), **row}


def _row_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of the texts and arrays in a row, which are nearly all of it."""
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def _portions(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in requests within the bounds; a row that is larger than a request goes alone."""
    portion: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        own = _row_bytes(row)
        if portion and (len(portion) == _ROWS_PER_REQUEST or size + own > _BYTES_PER_REQUEST):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += own
    if portion:
        yield portion
