"""One run as one file, to move it between stores or to keep it.

The file is gzip over lines of JSON: a header (format, run, schema version), one line for each record, and a last line
with the number of records by table and the SHA-256 of all lines before it. Nothing of a file is believed before its
last line has been checked. What processes are doing at the moment (services and leases) does not belong to a run's
records and stays behind; so do the run's files (checkpoints, adapters, reports), which lie in its folder.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from backend.config.ownership import unsigned
from backend.store.errors import StoreError
from backend.store.records import KINDS, Record, RunRecord
from backend.store.schema import SCHEMA_VERSION
from backend.store.store import Store
from simulator.documents import lines_of, parse_json

_FORMAT = "cryptosentinel-run"
_FORMAT_VERSION = 1

_BY_TABLE = {kind.table: kind for kind in KINDS}
_BYTES = "base64"  # the only key of an object that stands for bytes
_RECORDS_AT_ONCE = 500
_LONGEST = 128 * 2**20  # bytes of one record: the result of a year of minutes has about 30 million


def export_run(store: Store, run_id: str, path: Path) -> int:
    """Write a run with all its records to `path`, and return how many they are.

    The file is written beside its place and renamed when whole; what a killed export left there is written over.
    Raises `StoreError` if there is no such run, if it is still running, if there is such a file already, another
    program is writing it or it cannot be written.
    """
    if store.run(run_id).status == "running":
        raise StoreError(f"run {run_id} is still running: export it when it has ended")
    if path.exists():
        raise StoreError(f"{path} exists already: give another file, or remove it")
    partial = path.with_name(f".{path.name}.tmp")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(partial) as raw:
            # No time of writing and no name inside, so that equal runs make equal files.
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
                for line in _lines(store, run_id):
                    file.write(line)
                    count += 1
            raw.flush()
            os.fsync(raw.fileno())
            partial.replace(path)
    except BlockingIOError:
        raise StoreError(f"{path} is being written by another program: wait for it, or give another file") from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}): give another file, or free some space"
        ) from error
    return count - 2


@contextmanager
def _alone(partial: Path) -> Iterator[IO[bytes]]:
    """An empty file that no other program writes, for a block; it is removed unless the block has renamed it. Raises
    `BlockingIOError` where another program writes it."""
    with partial.open("ab") as raw:
        fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel drops it with its holder
        try:
            same = os.path.samestat(os.fstat(raw.fileno()), partial.stat())
        except FileNotFoundError:
            same = False
        if not same:  # another program has finished it between the two lines above
            raise BlockingIOError
        raw.truncate(0)
        try:
            yield raw
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def import_run(store: Store, path: Path, check: Callable[[Record], None] = lambda record: None) -> tuple[str, int]:
    """Add the run in `path` to the store, and return its id and how many records were written: 0 if the store has the
    very same run already.

    The run itself is written last, so an import that was cut short can be done again. Raises `StoreError` for a file
    that is damaged, cut short or not an exported run, for one of another schema, and if the store has another run of
    this id. `check` looks at each record before any is written, and raises `StoreError` for one that cannot be used.
    """
    run_id = _verified(path, check)
    if any(record.run == run_id for record in store.runs()):
        if _digest(_stored(store, run_id)) == _digest(_records(path, run_id)):
            return run_id, 0
        raise StoreError(f"{path} holds run {run_id}, and the store has another run of this id: nothing was changed")
    written = 0
    for _, records in groupby(_records(path, run_id), key=lambda record: record.table):
        for portion in _portions(records):
            if isinstance(run := portion[0], RunRecord):
                store.add_run(run)  # refused if another program has added a run of this id meanwhile
            else:
                store.put(portion)
            written += len(portion)
    return run_id, written


# -- lines of a file ---------------------------------------------------------------------------------------------------


def _lines(store: Store, run_id: str) -> Iterator[bytes]:
    digest, counts = hashlib.sha256(), Counter[str]()
    for document in _documents(store, run_id):
        line = _line(document)
        digest.update(line)
        if isinstance(document, list):
            counts[document[0]] += 1
        yield line
    yield _line({"records": dict(counts), "sha256": digest.hexdigest()})


def _documents(store: Store, run_id: str) -> Iterator[Any]:
    yield {"format": _FORMAT, "version": _FORMAT_VERSION, "schema": SCHEMA_VERSION, "run": run_id}
    for record in _stored(store, run_id):
        yield _listed(record)


def _stored(store: Store, run_id: str) -> Iterator[Record]:
    """All records of a run, in the order of a file."""
    for kind in KINDS:
        yield from map(_without_signature, store.each(kind, run_id))


def _without_signature(record: Record) -> Record:
    """A file may go to anybody and come from anybody: that its run is the user's own is not in it."""
    return replace(record, config=unsigned(record.config)) if isinstance(record, RunRecord) else record


def _listed(record: Record) -> list[Any]:
    return [record.table, {name: _plain(value) for name, value in record.row().items()}]


def _line(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def _plain(value: Any) -> Any:
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _digest(records: Iterable[Record]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(_line(_listed(record)))
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


def _verified(path: Path, check: Callable[[Record], None]) -> str:
    """The id of the run in a file, once all of it has been read and checked."""
    digest, counts = hashlib.sha256(), Counter[str]()
    lines = _read_lines(path)
    first = next(lines, b"")
    run_id = _header(path, first)
    digest.update(first)
    held = next(lines, None)
    for line in lines:
        # `held` is not the last line, so it is a record.
        assert held is not None
        digest.update(held)
        record = _record(path, held, run_id)
        check(record)
        counts[record.table] += 1
        held = line
    try:
        end = parse_json(held or b"null")
        complete = end["sha256"] == digest.hexdigest() and end["records"] == dict(counts)
    except (ValueError, TypeError, KeyError):
        complete = False
    if not complete:
        raise _damaged(path)
    if counts[RunRecord.table] != 1:
        raise _foreign(path)
    return run_id


def _header(path: Path, line: bytes) -> str:
    try:
        header = parse_json(line)
        known, run_id = header["format"] == _FORMAT, header["run"]
        version = header["version"], header["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(path) from error
    if not known or not isinstance(run_id, str):
        raise _foreign(path)
    if version != (_FORMAT_VERSION, SCHEMA_VERSION):
        raise StoreError(
            f"{path} has format {version[0]!r} and schema {version[1]!r}, and this program reads format "
            f"{_FORMAT_VERSION} and schema {SCHEMA_VERSION}: import it with the program that exported it"
        )
    return run_id


def _records(path: Path, run_id: str) -> Iterator[Record]:
    """The records of a file that was verified."""
    lines = _read_lines(path)
    next(lines)
    held = next(lines)
    for line in lines:
        yield _record(path, held, run_id)
        held = line


def _record(path: Path, line: bytes, run_id: str) -> Record:
    try:
        table, values = parse_json(line, nan=True)  # a metric may be NaN
        kind = _BY_TABLE[table]
        row = {
            name: base64.b64decode(value[_BYTES], validate=True) if _is_bytes(value) else value
            for name, value in values.items()
        }
        record = kind.from_row(row)
        record.row()  # what it refuses would be stored wrongly
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, StoreError) as error:
        reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__} in a record"
        raise StoreError(f"{path} is damaged or no exported run ({reason[:300]}): export the run again") from error
    if record.run != run_id:
        raise _foreign(path)
    return _without_signature(record)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_BYTES} and isinstance(value[_BYTES], str)


def _read_lines(path: Path) -> Iterator[bytes]:
    begun = False
    try:
        with gzip.open(path, "rb") as file:
            for line in lines_of(file, _LONGEST):
                begun = True
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        if isinstance(error, gzip.BadGzipFile) and not begun:
            raise _foreign(path) from error
        raise _damaged(path) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): give the file of an exported run") from error


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or was cut short: export the run again, or copy the file again")


def _foreign(path: Path) -> StoreError:
    return StoreError(f"{path} is not an exported run: give a file that `cryptosentinel runs export` wrote")


def _portions(records: Iterator[Record]) -> Iterator[Sequence[Record]]:
    portion: list[Record] = []
    for record in records:
        portion.append(record)
        if len(portion) == _RECORDS_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
