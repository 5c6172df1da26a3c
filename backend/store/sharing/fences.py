"""Fences: a process writes only as long as what it writes for is still its own.

A process that was stopped, or cut off from the store, may go on long after another has taken its place or its work.
Whether it still may is therefore no question that it asks before it writes: the database asks it in the transaction
that writes. See M. Kleppmann, Designing Data-Intensive Applications, "Fencing tokens"; the token here is the id of the
process, which no other process ever has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from surrealdb import RecordID

from backend.store.errors import StoreError

FENCED = "fenced off:"  # so the database begins its refusal


class StoreFenced(StoreError):
    """What was to be written belongs to another process now. Nothing was written."""


@dataclass(frozen=True)
class Fence:
    """The record of `table` whose key has the values `identity` must have this `process`."""

    table: str
    identity: tuple[str | int, ...]
    process: str

    def __str__(self) -> str:
        """The record, for messages."""
        return f"{self.table} {'/'.join(str(value) for value in self.identity)}"


def guard(fences: Sequence[Fence]) -> tuple[str, dict[str, Any]]:
    """Statements that end a transaction where one of the fences has fallen, and their parameters."""
    text, parameters = "", dict[str, Any]()
    for number, fence in enumerate(fences):
        text += (
            f"IF (SELECT VALUE process FROM ONLY $fence{number}) != $process{number} "
            f"{{ THROW '{FENCED} ' + $name{number} + ' belongs to another process now' }};"
        )
        parameters |= {
            f"fence{number}": RecordID(fence.table, list(fence.identity)),
            f"process{number}": fence.process,
            f"name{number}": str(fence),
        }
    return text, parameters


# Of a shard that is not complete and that nobody has, or whose process has ended, is silent or was replaced.
CLAIM = """
LET $done = SELECT VALUE shard FROM ONLY $marker;
LET $claim = SELECT * FROM ONLY $key;
LET $holder = SELECT * FROM ONLY type::record('service', [$run, $claim.service ?? '']);
IF $done = NONE AND ($claim = NONE OR $claim.process = $process OR $holder = NONE OR $holder.process != $claim.process
    OR $holder.state IN ['stopped', 'failed'] OR $holder.updated_at < time::millis(time::now()) - $dead_after) {
    UPSERT $key CONTENT {
        run: $run, step: $step, shard: $shard, service: $service, process: $process
    } RETURN NONE
};
"""
# What it returns then: whether this process has the shard, which is not complete.
CLAIMED = "RETURN (SELECT VALUE process FROM ONLY $key) = $process AND (SELECT VALUE shard FROM ONLY $marker) = NONE"


def claim_order(shards: list[int], process: str) -> list[int]:
    """The shards in the order in which a process asks for them: from one on that is another for each process. So many
    workers that are free at once, as when a step begins, do not all ask for the same ones first."""
    first = crc32(process.encode()) % max(1, len(shards))
    return shards[first:] + shards[:first]
