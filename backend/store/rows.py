"""The keys of records in the database, their rows, and the size of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from surrealdb import RecordID
from surrealdb.data.types.range import BoundExcluded, BoundIncluded, Range

from backend.store.records import Record

# Bounds of one request: a server takes messages of limited size.
ROWS_PER_REQUEST = 1_000
SHARD_BYTES = 12_000_000  # of conversations in a shard, one transaction: a server takes 16 MiB in a message
_BYTES_PER_REQUEST = 4_000_000


def key_range(kind: type[Record], begin: Sequence[str | int], stop: Sequence[str | int] | None = None) -> RecordID:
    """The keys that begin with the values `begin`, or lie from there up to `stop`."""
    behind = [*begin, {}] if stop is None else [*stop]  # every text and number comes before an object
    return RecordID(kind.table, Range(BoundIncluded([*begin]), BoundExcluded(behind)))


def range_and_rest(kind: type[Record], equal: Mapping[str, str | int]) -> tuple[RecordID, dict[str, str | int]]:
    """The keys of the records whose fields have these values, and those of the fields that a key does not decide. The
    run is among them."""
    rest = dict(equal)
    begin = []
    for name in kind.identity:
        if name not in rest:
            break
        begin.append(rest.pop(name))
    return key_range(kind, begin), rest


def beyond(row: Mapping[str, Any], keys: RecordID) -> RecordID:
    """The keys of `keys` behind that of `row`."""
    return RecordID(keys.table_name, Range(BoundExcluded(row["id"].id), keys.id.end))


def database_row(record: Record) -> dict[str, Any]:
    """The record as the database takes it, with its key. Raises `StoreError`."""
    row = record.row()
    return {"id": RecordID(record.table, [row[name] for name in record.identity]), **row}


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
