"""The store: records in SurrealDB, in a folder, in memory, or behind a server.

A record replaces the one with the same key, so that a step repeated after a crash does no harm. Values always travel
as parameters, never inside the query text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
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
    CallCountRecord,
    DecisionRecord,
    Delegation,
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
from backend.store.rows import (
    ADD_FIRST,
    ADD_SHARD,
    COUNT_CALLS,
    ROWS_PER_REQUEST,
    SHARD_BYTES,
    WRITE_EDGES,
    call_histogram,
    counted_steps,
    database_row,
    equal_condition,
    key_range,
    numbered_edges,
    portions,
    row_bytes,
)
from backend.store.schema import prepare_schema

R = TypeVar("R", bound=Record)


class Store:
    """An open store. Use `Store.open`, and close it: `with Store.open(folder) as store: ...`."""

    def __init__(self, connection: Connection, leases: lease.Leases) -> None:
        self._connection = connection
        self._name = connection.name
        self._leases = leases

    @classmethod
    def open(cls, where: str | Path, reads_only: bool = False, exclusive: bool = False) -> Self:
        """Open the store at `where`: a folder (made if absent), `mem://`, or `ws://` / `wss://` of a SurrealDB server.

        A folder that no process holds is held, and served to all of this user's programs that open it meanwhile. One
        that another process holds is reached through that one; when it ends, one of those that use the folder takes
        over. `reads_only` is for a program that writes no record: it also opens a folder that it cannot write.
        `exclusive` is for one that must have the folder alone: it is refused where another program uses the folder.

        A server is signed in to with CRYPTOSENTINEL_STORE_USER and CRYPTOSENTINEL_STORE_PASSWORD of the environment,
        where they are set. Raises `StoreError` if the folder cannot be used, is damaged, belongs to another user or
        holds a store of another schema, and if its holder or the server does not answer.
        """
        identity = ""

        def prepare(connection: Connection) -> None:
            nonlocal identity
            identity = prepare_schema(connection)
            lease.mark_abandoned(connection, whole_folder=True)

        connection = Connection(where, prepare, reads_only, exclusive)
        store = cls(connection, lease.Leases(connection))
        try:
            connection.remember(identity or prepare_schema(connection))
            if not connection.holds and not reads_only:
                lease.mark_abandoned(connection, whole_folder=False)
        except StoreError:
            store.close()
            raise
        return store

    @property
    def connection(self) -> Connection:
        """The connection to the database, for statements that concern no single run."""
        return self._connection

    @property
    def identity(self) -> str:
        """What tells this store from any other."""
        return str(self._connection.query("SELECT VALUE identity FROM ONLY store:schema"))

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
        self._leases.begin(record, database_row(record), former=None)

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
        self._leases.begin(record, database_row(record), former=self._free_owner(record.run))

    def set_document(self, record: RunRecord) -> None:
        """Replace the document of a run, and nothing else of it."""
        row = database_row(record)
        self._change(
            "UPDATE $id SET config = $config RETURN NONE;", parameters={"id": row["id"], "config": row["config"]}
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

    def add_queries(self, records: Sequence[QueryRecord]) -> None:
        """Add queries of a step."""
        self._write(records)

    def add_rollouts(self, records: Sequence[RolloutRecord]) -> None:
        """Add the rollouts of a step."""
        self._write(records)

    def add_trajectories(self, records: Sequence[TrajectoryRecord]) -> None:
        """Add conversations, and an edge `caller -> delegated -> callee` for each that has a caller.

        Give all conversations of a rollout in one call and in the order in which they began: that order numbers the
        calls that each caller made. Raises `StoreError` if a caller is neither among them nor stored.
        """
        self._write(records)
        self._write(numbered_edges(records))

    def add_rewards(self, records: Sequence[RewardRecord]) -> None:
        """Add the rewards of a step, one per trajectory."""
        self._write(records)

    def add_adapter(self, record: AdapterRecord) -> None:
        """Add a version of a role's weights."""
        self._write([record])

    def add_metrics(self, run_id: str, step: int, values: dict[str, float]) -> None:
        """Add metrics to those of the step; a name that is there already gets the new value."""
        self._write([MetricRecord(run_id, step, values)], verb="MERGE")

    def add_evaluation(self, record: EvaluationRecord) -> None:
        """Add the outcome of an evaluation."""
        self._write([record])

    def add_backtest(self, record: BacktestRecord) -> None:
        """Add the result of a backtest."""
        self._write([record])

    def add_trial(self, record: TrialRecord) -> None:
        """Add a row to the ledger of trials. Nothing deletes it."""
        self._write([record])

    def add_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Add decisions of a backtest."""
        self._write(records)

    def add_journal(self, record: JournalRecord) -> None:
        """Add an entry of a paper session's journal; it is on disk when this returns."""
        self._write([record])

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
        edges = numbered_edges(trajectories)
        rows = [[database_row(one) for one in kind] for kind in (queries, rollouts, trajectories, edges)]
        if (size := sum(row_bytes(row) for row in rows[2])) > SHARD_BYTES:
            raise StoreError(
                f"shard {mark.shard} of step {mark.step} holds {size / 1e6:.0f} MB, and {SHARD_BYTES / 1e6:.0f} MB go "
                "in one transaction: give training.shards a higher number"
            )
        row = database_row(mark)
        names = ("queries", "rollouts", "trajectories", "edges")
        parameters = {"mark": row["id"], "shard": row, "steps": counted_steps([(mark.run, mark.step)])}
        self._change(ADD_SHARD, parameters=parameters | dict(zip(names, rows, strict=True)))

    def add_published(self, record: PublishedRecord) -> bool:
        """Add the weights that a role's trainer made for a step. False, and nothing changes, where the step has some:
        the first stay."""
        row = database_row(record)
        return bool(self._connection.query(ADD_FIRST, {"id": row["id"], "row": row}))

    def put(self, records: Sequence[Record]) -> None:
        """Add records of any one kind as they are, edges too."""
        self._write(records)

    # -- deleting ---------------------------------------------------------------------------------------------------

    def mark_deleting(self, run_id: str) -> None:
        """Begin to delete a run: from now on nobody reads it or goes on with it. A second call does no harm, and
        neither does one for records whose run is not there. Raises `StoreError` if the run is being written."""
        if self._status(run_id) == "interrupted" and lease.abandoned(self.run(run_id)):
            self.claim(run_id)
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
        deleted = 0
        kinds: tuple[type[Record], ...] = (CallCountRecord, *reversed(KINDS[:-1]))
        for kind in kinds:
            for step in self.steps(kind, run_id) if "step" in kind.identity else (None,):
                portion = self._delete(kind, run_id, step)
                deleted += portion
                if on_deleted is not None and portion:
                    on_deleted(portion)
        self._leases.drop(run_id)
        return deleted + self._delete(RunRecord, run_id, None)

    def drop_trajectories(self, run_id: str, steps: Iterable[int]) -> int:
        """Delete the conversations of steps, with the edges between them, and return how many conversations they were.
        Queries, rollouts, rewards and metrics stay."""
        dropped = 0
        for step in steps:
            self._delete(Delegation, run_id, step)
            dropped += self._delete(TrajectoryRecord, run_id, step)
        return dropped

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

    def delegations(self, run_id: str, step: int) -> list[Delegation]:
        """Edges of the graph: who called whom in a step."""
        return self._read(Delegation, run=run_id, step=step)

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
        bounds = Range(BoundIncluded([run_id, first]), BoundExcluded([run_id, stop]))
        rows = self._connection.query("SELECT * FROM $keys ORDER BY id", {"keys": RecordID("journal", bounds)})
        return [JournalRecord.from_row(row) for row in rows]

    def shards(self, run_id: str, step: int | None = None) -> list[ShardRecord]:
        """Markers of complete shards in order of step and shard."""
        return self._read(ShardRecord, run=run_id, step=step)

    def published(self, run_id: str, step: int | None = None, role: str | None = None) -> list[PublishedRecord]:
        """Published weights in order of role and step."""
        return self._read(PublishedRecord, run=run_id, step=step, role=role)

    def now(self) -> int:
        """The time by the database's clock, in milliseconds since the epoch."""
        return int(self._connection.query("RETURN time::millis(time::now())"))

    def count(self, kind: type[Record], run_id: str, step: int | None = None) -> int:
        """How many records of a kind a run has, or one step of it."""
        if (keys := key_range(kind, run_id, step)) is not None:
            rows = self._connection.query("SELECT count() FROM $keys GROUP ALL", {"keys": keys})
            return int(rows[0]["count"]) if rows else 0
        condition = "run = $run" if step is None else "run = $run AND step = $step"
        rows = self._connection.query(
            f"SELECT count() FROM {kind.table} WHERE {condition} GROUP ALL", {"run": run_id, "step": step}
        )
        return int(rows[0]["count"]) if rows else 0

    def each(self, kind: type[R], run_id: str) -> Iterator[R]:
        """All records of a kind that a run has, in order of key; those of steps are read one step at a time."""
        for step in self.steps(kind, run_id) if "step" in kind.identity else (None,):
            yield from self._read(kind, run=run_id, step=step)

    def steps(self, kind: type[Record], run_id: str, before: int | None = None) -> list[int]:
        """The steps of which a run has records of a kind, in order; only those before step `before`, if given."""
        condition = "run = $run" if before is None else "run = $run AND step < $before"
        rows = self._connection.query(
            f"SELECT step FROM {kind.table} WHERE {condition} GROUP BY step ORDER BY step",
            {"run": run_id, "before": before},
        )
        return [row["step"] for row in rows]

    def calls_per_rollout(self, run_id: str) -> dict[str, dict[int, int]]:
        """Per sub-agent a histogram: how many rollouts of the run called it how many times."""
        return call_histogram(self._read(CallCountRecord, run=run_id))

    # -- the database -----------------------------------------------------------------------------------------------

    def _write(self, records: Sequence[Record], verb: str = "CONTENT") -> None:
        """Put records of one table in place, in transactions of bounded size."""
        if records:
            self._write_rows(type(records[0]), [database_row(record) for record in records], verb)

    def _write_rows(self, kind: type[Record], every: Sequence[dict[str, Any]], verb: str = "CONTENT") -> None:
        plain = f"FOR $row IN $rows {{ UPSERT $row.id {verb} $row RETURN NONE }};"
        for rows in portions(every):
            if kind is RolloutRecord:
                steps = counted_steps({(row["run"], row["step"]) for row in rows})
                self._change(plain + COUNT_CALLS, parameters={"rows": rows, "steps": steps})
            else:
                self._change(*(WRITE_EDGES if kind is Delegation else (plain,)), parameters={"rows": rows})

    def _change(self, *transactions: str, parameters: dict[str, Any]) -> None:
        """Carry out transactions one after the other."""
        self._connection.query("".join(f"BEGIN; {text} COMMIT;" for text in transactions), parameters)

    def _delete(self, kind: type[Record], run_id: str, step: int | None) -> int:
        """Delete the records of a kind that a run has, or one step of it, in transactions of bounded size; returns how
        many they were."""
        keys = None if step is None else key_range(kind, run_id, step)
        if keys is not None and (count := self.count(kind, run_id, step)) <= ROWS_PER_REQUEST:
            # Takes two thirds of the time: no index is asked, and no key is passed on.
            self._connection.query("DELETE $keys RETURN NONE", {"keys": keys})
            return count
        condition = "run = $run" if step is None else "run = $run AND step = $step"
        text = (
            f"LET $keys = SELECT VALUE id FROM {kind.table} WHERE {condition} LIMIT {ROWS_PER_REQUEST};"
            "DELETE $keys RETURN NONE; RETURN array::len($keys)"
        )
        deleted = 0
        while portion := int(self._connection.query(text, {"run": run_id, "step": step})):
            deleted += portion
        return deleted

    def _status(self, run_id: str) -> str | None:
        """The status of a run; None if there is none with this id."""
        rows = self._connection.query("SELECT VALUE status FROM $id", {"id": RecordID("run", [run_id])})
        return str(rows[0]) if rows else None

    def _read(self, kind: type[R], **equal: str | int | None) -> list[R]:
        """Records whose fields equal those given (None: any), in order of their keys."""
        condition, wanted = equal_condition(equal)
        rows = self._connection.query(f"SELECT * FROM {kind.table} WHERE {condition} ORDER BY id", wanted)
        return [kind.from_row(row) for row in rows]
