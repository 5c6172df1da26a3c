"""Tokens of conversations in files: for each role in a shard of a step one safetensors file, beside the database.

The database keeps a row for each conversation, which says where its tokens are, and each file's hash (`TensorRecord`).
Long conversations would otherwise be most of what passes through it, and one answer with a role's step keep all other
clients waiting. A file is there before its record, and its record before the rows; of a shard that is rolled out again
the files of the first attempt stay until the step is dropped, for whoever reads them at that moment.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from backend.store.errors import StoreError
from backend.store.records import TensorRecord, TrajectoryRecord
from backend.store.rows import equal_condition
from backend.store.sharing.objects import PIECE_BYTES, ObjectStore, object_part, object_pieces

if TYPE_CHECKING:  # listing runs needs no arrays
    import numpy as np
    import numpy.typing as npt

_Row = dict[str, Any]
_Arrays = dict[str, "npt.NDArray[Any]"]  # what a file holds, by name
_DTYPES = {"ids": "<i4", "mask": "|b1", "sampled_logps": "<f4"}  # as `dtype.str` has them
PLACE_FIELDS = ("shard", "first", "tokens")  # of a row: in the file of `shard`, `tokens` of them from `first` on
_NO_TOKENS = dict.fromkeys(_DTYPES, b"")


@dataclass(frozen=True, eq=False)
class ConversationTokens:
    """The tokens of a conversation of L tokens, as `TrajectoryRecord` describes them.

    ids            (L,) int32
    mask           (L,) bool
    sampled_logps  (L,) float32
    """

    ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    sampled_logps: npt.NDArray[np.float32]


def write_token_files(objects: ObjectStore, shard: int, rows: Sequence[_Row]) -> list[TensorRecord]:
    """Write the tokens in the rows of conversations of a shard to files, one for each role and step; each row then says
    where its tokens are in place of them. Returns the records of the files. Raises `StoreError`."""
    import numpy as np
    from safetensors.numpy import save  # of the extra `train`: who only reads other records needs it not

    by_file: dict[tuple[str, int, str], list[_Row]] = defaultdict(list)
    for row in rows:
        by_file[row["run"], row["step"], row["role"]].append(row)
    records = []
    for (run, step, role), own in by_file.items():
        joined = {name: b"".join(row[name] for row in own) for name in _DTYPES}
        first = 0
        for row in own:
            tokens = len(row["mask"])
            row.update(dict.fromkeys(_DTYPES), **dict(zip(PLACE_FIELDS, (shard, first, tokens), strict=True)))
            first += tokens
        arrays = {name: np.frombuffer(joined[name], dtype) for name, dtype in _DTYPES.items()}
        content = save(arrays, {"run": run, "step": str(step), "shard": str(shard), "role": role})
        record = TensorRecord(run, step, shard, role, hashlib.sha256(content).hexdigest(), len(content), first)
        _send(objects, record, content)
        records.append(record)
    return records


def in_file(row: _Row) -> bool:
    """Whether the tokens of a conversation, given by its row, are in a file."""
    return row.get("shard") is not None


def without_tokens(row: _Row) -> _Row:
    """The row of a conversation as if it had no tokens."""
    return {**row, **_NO_TOKENS}


def problem_of_place(row: _Row, files: Iterable[TensorRecord]) -> str | None:
    """What is wrong with where the row of a conversation says that its tokens are, in words; None where nothing is."""
    for file in files:
        if (file.step, file.shard, file.role) == (row["step"], row["shard"], row["role"]):
            inside = row["first"] >= 0 and row["first"] + row["tokens"] <= file.tokens
            return None if inside else f"its tokens lie beyond the {file.tokens} of {file.name}"
    return "the record of the file with its tokens is not there"


class Database(Protocol):
    """What is asked for rows and files, as `Connection` is."""

    @property
    def objects(self) -> ObjectStore:
        """The files. Raises `StoreError` where there is no place for any."""

    def query(self, text: str, parameters: dict[str, Any]) -> Any:
        """Result of the last statement."""


class TokenReader:
    """Reads the tokens of conversations, given by their rows, in `database`; each file once, when it is needed, but for
    those whose contents `early` has by their checksums."""

    def __init__(
        self, database: Database, files: Iterable[TensorRecord], early: Mapping[str, _Arrays] | None = None
    ) -> None:
        self._database = database
        self._files = {(file.run, file.step, file.shard, file.role): file for file in files}
        self._arrays = dict(early or {})

    def row(self, row: _Row) -> _Row:
        """The row with its tokens in it. Raises `StoreError` where they cannot be read."""
        if not in_file(row):
            return row
        return {**row, **{name: part.tobytes() for name, part in self._parts(row).items()}}

    def tokens(self, row: _Row) -> ConversationTokens:
        """The tokens, wherever they are. Raises `StoreError` where they cannot be read."""
        import numpy as np

        parts = self._parts(row) if in_file(row) else {n: np.frombuffer(row[n], dtype) for n, dtype in _DTYPES.items()}
        return ConversationTokens(parts["ids"].copy(), parts["mask"].copy(), parts["sampled_logps"].copy())

    def _parts(self, row: _Row) -> dict[str, npt.NDArray[Any]]:
        key = (row["run"], row["step"], row["shard"], row["role"])
        files = [self._files[key]] if key in self._files else []
        if (problem := problem_of_place(row, files)) is not None:
            raise StoreError(f"a conversation of run {row['run']}, step {row['step']}, cannot be read: {problem}")
        file = self._files[key]
        if file.checksum not in self._arrays:
            self._arrays[file.checksum] = read_token_file(self._database.objects, file)
        stop = row["first"] + row["tokens"]
        return {name: array[row["first"] : stop] for name, array in self._arrays[file.checksum].items()}


def conversations(
    database: Database, fields: Mapping[str, str | int | None], early: Mapping[str, _Arrays] | None = None
) -> tuple[list[_Row], TokenReader]:
    """The rows of conversations whose fields have these values (None: any), in order of their keys, and what reads
    their tokens, with `early` as `TokenReader` has it: rows and files are those of one moment."""
    condition, wanted = equal_condition(fields)
    tables = (TrajectoryRecord.table, TensorRecord.table)
    selected = ", ".join(f"{table}: (SELECT * FROM {table} WHERE {condition} ORDER BY id)" for table in tables)
    there = database.query(f"RETURN {{ {selected} }}", wanted)
    files = [TensorRecord.from_row(row) for row in there[TensorRecord.table]]
    return there[TrajectoryRecord.table], TokenReader(database, files, early)


def _send(objects: ObjectStore, record: TensorRecord, content: bytes) -> None:
    upload = secrets.token_hex(16)
    for offset in range(0, len(content), PIECE_BYTES):
        objects.write(record.run, upload, offset, content[offset : offset + PIECE_BYTES])
    if not objects.finish(record.run, upload, object_part(record.name), record.checksum):
        raise StoreError(f"{record.name} of run {record.run} did not arrive as it was sent: is the store's disk full?")


def read_token_file(objects: ObjectStore, record: TensorRecord) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a file, as `ConversationTokens` has them, of all its conversations one after the other. Raises
    `StoreError` for one that is not there or not what its record says."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    content = b"".join(object_pieces(objects, record))
    what = f"{record.name} of run {record.run} lies with the store, and"
    if hashlib.sha256(content).hexdigest() != record.checksum:
        raise StoreError(
            f"{what} its SHA-256 is not that of its record: put a backup back, or roll this step out again"
        )
    try:
        arrays = load(content)
    except SafetensorError as error:
        raise StoreError(f"{what} it cannot be read ({error}): another program has written it") from error
    expected = {name: (dtype, (record.tokens,)) for name, dtype in _DTYPES.items()}
    if {name: (array.dtype.str, array.shape) for name, array in arrays.items()} != expected:
        raise StoreError(f"{what} it does not hold the tokens of conversations: another program has written it")
    return arrays
