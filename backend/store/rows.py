"""The rows and keys by which records lie in the database, the statements that write them, and the size of a request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from surrealdb import RecordID
from surrealdb.data.types.range import BoundExcluded, BoundIncluded, Range

from backend.store.records import (
    CallCountRecord,
    Delegation,
    Record,
    TrajectoryRecord,
)

# Bounds of one request: a server takes messages of limited size.
ROWS_PER_REQUEST = 1_000
_BYTES_PER_REQUEST = 4_000_000

# Both ends of an edge are fixed once it exists, so one whose caller has changed is removed first. These are two
# transactions: the engine does not write a record that was deleted in the same transaction (SDK 3.0.0b10, tried).
WRITE_EDGES = (
    "FOR $row IN $rows { DELETE $row.id WHERE in != $row.in RETURN NONE };",
    "FOR $row IN $rows { LET $caller = $row.in; LET $edge = $row.id; LET $callee = $row.out;"
    "RELATE $caller->$edge->$callee CONTENT $row RETURN NONE };",
)

# Part of each transaction that changes rollouts, for each step of them. All are counted anew: a step that is written a
# second time, as after a crash, may have other rollouts than the first time.
COUNT_CALLS = """
FOR $one IN $steps {
    LET $run = $one.run; LET $step = $one.step;
    LET $called = array::flatten((SELECT VALUE object::entries(calls) FROM rollout WHERE run = $run AND step = $step));
    LET $counts = SELECT role, calls, count() AS rollouts
        FROM (SELECT VALUE { role: $this[0], calls: $this[1] } FROM $called) GROUP BY role, calls;
    UPSERT $one.id CONTENT {
        run: $run, step: $step, roles: $counts.role, calls: $counts.calls, rollouts: $counts.rollouts
    } RETURN NONE
};
"""

# A shard with all its records, in one statement and so in one transaction, unless it is there.
ADD_SHARD = (
    "IF !record::exists($mark) {"
    + "".join(
        f"FOR $row IN ${name} {{ UPSERT $row.id CONTENT $row RETURN NONE }};"
        for name in ("queries", "rollouts", "trajectories")
    )
    + "FOR $row IN $edges { LET $caller = $row.in; LET $edge = $row.id; LET $callee = $row.out;"
    "RELATE $caller->$edge->$callee CONTENT $row RETURN NONE };"
    f"{COUNT_CALLS} CREATE $mark CONTENT $shard RETURN NONE }};"
)
SHARD_BYTES = 12_000_000  # of conversations in a shard: a server takes 16 MiB in a message

# A record that is not replaced where it is there; whether it is the one that is there now.
ADD_FIRST = (
    "IF record::exists($id) { RETURN (SELECT * FROM ONLY $id) = $row } "
    "ELSE { CREATE $id CONTENT $row RETURN NONE; RETURN true }"
)


def key_range(kind: type[Record], run_id: str, step: int | None) -> RecordID | None:
    """The keys of the records that a run has, or one step of it: they are counted without a look at the records. None
    where the step is not the second part of the key."""
    if step is None:
        # "!" comes before whatever may follow in a longer id.
        return RecordID(kind.table, Range(BoundIncluded([run_id]), BoundExcluded([f"{run_id}!"])))
    if kind.identity[1:2] != ("step",):
        return None
    return RecordID(kind.table, Range(BoundIncluded([run_id, step]), BoundExcluded([run_id, step + 1])))


def counted_steps(steps: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """The parameter of `COUNT_CALLS` for steps of runs."""
    return [{"id": RecordID(CallCountRecord.table, [run, step]), "run": run, "step": step} for run, step in steps]


def equal_condition(fields: Mapping[str, str | int | None]) -> tuple[str, dict[str, str | int]]:
    """The condition that fields have these values (None: any), and its parameters."""
    equal = {name: value for name, value in fields.items() if value is not None}
    return " AND ".join(f"{name} = ${name}" for name in equal), equal


def call_histogram(records: Iterable[CallCountRecord]) -> dict[str, dict[int, int]]:
    """Per sub-agent how many rollouts called it how many times, over all steps."""
    histogram: dict[str, Counter[int]] = defaultdict(Counter)
    for record in records:
        for role, calls, rollouts in zip(record.roles, record.calls, record.rollouts, strict=True):
            histogram[role][calls] += rollouts
    return {role: dict(sorted(counts.items())) for role, counts in sorted(histogram.items())}


def record_key(record: Record, row: dict[str, Any]) -> RecordID:
    """The key of the record, whose row is `row`."""
    return RecordID(record.table, [row[name] for name in record.identity])


def database_row(record: Record) -> dict[str, Any]:
    """The record as the database takes it, with its key."""
    row = record.row()
    key = record_key(record, row)
    if isinstance(record, Delegation):
        callee = [row[name] for name in record.identity]
        ends = {
            "in": RecordID(TrajectoryRecord.table, [*callee[:-2], *row["caller"]]),
            "out": RecordID(TrajectoryRecord.table, callee),
        }
        return {"id": key, **ends, **row}
    return {"id": key, **row}


def numbered_edges(records: Sequence[TrajectoryRecord]) -> list[Delegation]:
    """An edge for each conversation that has a caller, numbered in their order among the calls of that caller."""
    edges: list[Delegation] = []
    made: Counter[tuple[int, int, int, tuple[str, int]]] = Counter()
    for record in records:
        if record.caller is not None:
            rollout = (record.step, record.query, record.rollout)
            position = made[(*rollout, record.caller)]
            made[(*rollout, record.caller)] += 1
            edges.append(Delegation(record.run, *rollout, record.caller, record.role, record.ordinal, position))
    return edges


def row_bytes(row: Mapping[str, Any]) -> int:
    """Bytes of the texts and arrays in a row, which are nearly all of it."""
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def portions(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows in requests within the bounds; a row that is larger than a request goes alone."""
    portion: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        own = row_bytes(row)
        if portion and (len(portion) == ROWS_PER_REQUEST or size + own > _BYTES_PER_REQUEST):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += own
    if portion:
        yield portion
