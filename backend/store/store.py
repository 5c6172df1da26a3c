"""The store: records in SurrealDB, embedded in a folder, in memory, or behind a server.

A record replaces the one with the same key, so that a step repeated after a crash does no harm. Values always travel
as parameters, never inside the query text. One request runs at a time: the embedded engine can grant one thing twice
to concurrent transactions.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from surrealdb import BlockingEmbeddedSurrealConnection, BlockingWsSurrealConnection, RecordID
from surrealdb.errors import SurrealError
from websockets.exceptions import WebSocketException

from backend.store.errors import StoreError
from backend.store.lock import FolderLock
from backend.store.records import (
    AdapterRecord,
    BacktestRecord,
    DecisionRecord,
    Delegation,
    EvaluationRecord,
    MetricRecord,
    QueryRecord,
    Record,
    RewardRecord,
    RolloutRecord,
    RunRecord,
    RunStatus,
    TrajectoryRecord,
)

SCHEMA_VERSION = 1
NAMESPACE = "cryptosentinel"
DATABASE = "main"
USER_VARIABLE = "CRYPTOSENTINEL_STORE_USER"
PASSWORD_VARIABLE = "CRYPTOSENTINEL_STORE_PASSWORD"

_SCHEMA = Path(__file__).with_name("schema.surql")
_ROWS_PER_REQUEST = 1_000  # keeps a message to a server below a few MB

# What the SDK raises: its own errors, RuntimeError from the embedded engine, the others from the way to a server.
_FAILURES = (SurrealError, RuntimeError, OSError, WebSocketException)

_DISK_ADVICE = "is the disk full? Free some space and start again: what was stored until now is still there"

R = TypeVar("R", bound=Record)


class Store:
    """An open store. Use `Store.open`, and close it: `with Store.open(folder) as store: ...`."""

    def __init__(
        self,
        connection: BlockingWsSurrealConnection,
        name: str,
        lock: FolderLock | None,
    ) -> None:
        self._connection = connection
        self._name = name
        self._folder_lock = lock
        self._one_at_a_time = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, where: str | Path) -> Self:
        """Open the store at `where`: a folder (made if absent), `mem://`, or `ws://` / `wss://` of a SurrealDB server.

        A server is signed in to with the environment's CRYPTOSENTINEL_STORE_USER and CRYPTOSENTINEL_STORE_PASSWORD,
        where they are set. Raises `StoreError` if the folder is open elsewhere, cannot be used or holds a store of
        another version, and if the server does not answer.
        """
        url, lock = str(where), None
        if not url.startswith(("mem://", "ws://", "wss://")):
            if "://" in url:
                raise StoreError(f"store {url}: give a folder, 'mem://' or the 'ws://' address of a server")
            folder = Path(where).absolute()
            lock = FolderLock(folder)
            url = f"surrealkv://{folder / 'db'}"
        try:
            connection = _connect(url, str(where))
        except StoreError:
            if lock is not None:
                lock.release()
            raise
        store = cls(connection, str(where), lock)
        try:
            store._migrate()
            if lock is not None:
                store._mark_abandoned_runs()
        except StoreError:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the database and give the folder back; a second call does nothing."""
        with self._one_at_a_time:
            if self._closed:
                return
            self._closed = True
            self._connection.close()
            if self._folder_lock is not None:
                self._folder_lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- writing ----------------------------------------------------------------------------------------------------

    def add_run(self, record: RunRecord) -> None:
        """Add a run, or replace the one with this id: a resumed run is running again."""
        self._write([record])

    def finish_run(self, run_id: str, status: RunStatus, message: str | None = None) -> None:
        """Set how the run ended, and that it ended now. Raises `StoreError` if there is no such run."""
        ended = replace(self.run(run_id), status=status, message=message, finished_at=int(time.time() * 1000))
        self._write([ended])

    def add_query(self, record: QueryRecord) -> None:
        """Add one query of a step."""
        self._write([record])

    def add_rollouts(self, records: Sequence[RolloutRecord]) -> None:
        """Add the rollouts of a step."""
        self._write(records)

    def add_trajectories(self, records: Sequence[TrajectoryRecord]) -> None:
        """Add conversations, and an edge `caller -> delegated -> callee` for each that has a caller.

        Give all conversations of a rollout in one call and in the order in which they began: that order numbers the
        calls that each caller made. Raises `StoreError` if a caller is neither among them nor stored.
        """
        self._write(records)
        edges: list[Delegation] = []
        made: Counter[tuple[int, int, int, tuple[str, int]]] = Counter()
        for record in records:
            if record.caller is not None:
                rollout = (record.step, record.query, record.rollout)
                position = made[(*rollout, record.caller)]
                made[(*rollout, record.caller)] += 1
                edges.append(Delegation(record.run, *rollout, record.caller, record.role, record.ordinal, position))
        self._write_edges(edges)

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

    def add_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Add decisions of a backtest."""
        self._write(records)

    # -- reading ----------------------------------------------------------------------------------------------------

    def runs(self) -> list[RunRecord]:
        """All runs, the newest first."""
        rows = self._query("SELECT * FROM run ORDER BY started_at DESC, run")
        return [RunRecord.from_row(row) for row in rows]

    def run(self, run_id: str) -> RunRecord:
        """One run. Raises `StoreError` if there is none with this id."""
        rows = self._query("SELECT * FROM $id", {"id": RecordID("run", [run_id])})
        if not rows:
            known = ", ".join(record.run for record in self.runs()[:10]) or "none yet"
            raise StoreError(f"store {self._name} has no run '{run_id}'; its newest runs: {known}")
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

    def backtests(self, run_id: str) -> list[BacktestRecord]:
        """Backtests in order of name."""
        return self._read(BacktestRecord, run=run_id)

    def decisions(self, run_id: str, backtest: str | None = None) -> list[DecisionRecord]:
        """Decisions in order of backtest, then ordinal."""
        return self._read(DecisionRecord, run=run_id, backtest=backtest)

    def calls_per_rollout(self, run_id: str) -> dict[str, dict[int, int]]:
        """Per sub-agent a histogram: how many rollouts of the run called it how many times."""
        rows = self._query("SELECT calls FROM rollout WHERE run = $run", {"run": run_id})
        histogram: dict[str, Counter[int]] = defaultdict(Counter)
        for row in rows:
            for role, calls in row["calls"].items():
                histogram[role][calls] += 1
        return {role: dict(sorted(counts.items())) for role, counts in sorted(histogram.items())}

    # -- the database -----------------------------------------------------------------------------------------------

    def _write(self, records: Sequence[Record], verb: str = "CONTENT") -> None:
        """Put records of one table in place, in transactions of at most `_ROWS_PER_REQUEST` rows."""
        rows = []
        for record in records:
            row = record.row()
            rows.append({"id": RecordID(record.table, [row[name] for name in record.identity]), **row})
        for start in range(0, len(rows), _ROWS_PER_REQUEST):
            self._query(
                f"FOR $row IN $rows {{ UPSERT $row.id {verb} $row RETURN NONE }}",
                {"rows": rows[start : start + _ROWS_PER_REQUEST]},
            )

    def _write_edges(self, edges: Sequence[Delegation]) -> None:
        rows = []
        for edge in edges:
            row = edge.row()
            callee = [row[name] for name in edge.identity]
            rows.append(
                {
                    "id": RecordID(edge.table, callee),
                    "in": RecordID(TrajectoryRecord.table, [*callee[:-2], *row["caller"]]),
                    "out": RecordID(TrajectoryRecord.table, callee),
                    **row,
                }
            )
        for start in range(0, len(rows), _ROWS_PER_REQUEST):
            # Both ends of an edge are fixed once it exists, so a repetition first removes it.
            self._query(
                "BEGIN; DELETE $rows.id RETURN NONE; INSERT RELATION INTO delegated $rows RETURN NONE; COMMIT",
                {"rows": rows[start : start + _ROWS_PER_REQUEST]},
            )

    def _read(self, kind: type[R], **equal: str | int | None) -> list[R]:
        """Records whose fields equal those given (None: any), in order of their keys."""
        wanted = {name: value for name, value in equal.items() if value is not None}
        condition = " AND ".join(f"{name} = ${name}" for name in wanted)
        rows = self._query(f"SELECT * FROM {kind.table} WHERE {condition} ORDER BY id", wanted)
        return [kind.from_row(row) for row in rows]

    def _query(self, text: str, parameters: dict[str, Any] | None = None) -> Any:
        """Result of the last statement. The SDK's own `query` would not notice that any but the first one failed."""
        with self._one_at_a_time:
            if self._closed:
                raise StoreError(f"store {self._name} is closed")
            try:
                response = self._connection.query_raw(text, parameters)
            except _FAILURES as error:
                raise self._failed(str(error)) from error
        if "result" not in response:
            raise self._failed(str(response.get("error")))
        failures = [statement["result"] for statement in response["result"] if statement["status"] != "OK"]
        if failures:
            # The other statements of a failed transaction only say that they were not executed.
            raise self._failed(next((text for text in failures if "not executed" not in text), failures[0]))
        return response["result"][-1]["result"]

    def _failed(self, reason: str) -> StoreError:
        advice = f"; {_DISK_ADVICE}" if "IO error" in reason else ""
        return StoreError(f"store {self._name}: {reason}{advice}")

    def _migrate(self) -> None:
        """Bring an empty database to the schema; refuse one of another version."""
        if not self._query("INFO FOR DB")["tables"]:
            schema = _SCHEMA.read_text(encoding="utf-8")
            self._query(
                f"BEGIN;\n{schema}\nUPSERT store:schema SET version = $version;\nCOMMIT", {"version": SCHEMA_VERSION}
            )
            return
        rows = self._query("SELECT VALUE version FROM store:schema")
        if rows != [SCHEMA_VERSION]:
            found = f"version {rows[0]}" if rows else "no version"
            raise StoreError(
                f"store {self._name} has {found} of the schema, this program writes version {SCHEMA_VERSION}: "
                "give another folder, or open it with the program that wrote it"
            )

    def _mark_abandoned_runs(self) -> None:
        """The folder is ours alone, so a run that is still 'running' belongs to a process that died."""
        self._query(
            "UPDATE run SET status = 'interrupted', message = 'its process ended without saying so' "
            "WHERE status = 'running' RETURN NONE"
        )


def _connect(url: str, name: str) -> BlockingWsSurrealConnection:
    """A connection that has signed in where it must and uses our database."""
    try:
        if url.startswith("ws"):
            connection = BlockingWsSurrealConnection(url)
            if USER_VARIABLE in os.environ:
                password = os.environ.get(PASSWORD_VARIABLE, "")
                connection.signin({"username": os.environ[USER_VARIABLE], "password": password})
        else:
            connection = BlockingEmbeddedSurrealConnection(url)
            connection.connect()
        connection.use(NAMESPACE, DATABASE)
    except _FAILURES as error:
        if url.startswith("ws"):
            advice = f"is the server running, and are {USER_VARIABLE} and {PASSWORD_VARIABLE} right?"
        elif "IO error" in str(error):
            advice = _DISK_ADVICE
        else:
            advice = "if it was damaged, move it away and give an empty folder"
        raise StoreError(f"store {name} cannot be opened: {error}; {advice}") from error
    return connection
