"""One run as one file, to move it between stores or to keep it.

The file is gzip over lines of JSON: a header and one line for each record, the run's own last. Nothing of a file is
used before all of it has been checked. The run's files (checkpoints, adapters, reports) lie in its folder and stay
behind.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

from backend.store.errors import StoreError
from backend.store.records import KINDS, Record, RunRecord
from backend.store.schema import SCHEMA_VERSION
from backend.store.store import Store
from simulator.documents import lines_of, parse_json

_FORMAT = "cryptosentinel-run"
_BY_TABLE = {kind.table: kind for kind in KINDS}
_BYTES = "base64"  # the only key of an object that stands for bytes
_RECORDS_AT_ONCE = 500
_LONGEST = 128 * 2**20  # bytes of one record: the result of a year of minutes has about 30 million

Check = Callable[[Record], None]


def export_run(store: Store, run_id: str, path: Path) -> int:
    """Write a run with all its records to `path`, and return how many they are. The file is whole or not there.

    Raises `StoreError` if there is no such run, if it is still running, if there is such a file already or it cannot be
    written.
    """
    if store.run(run_id).status == "running":
        raise StoreError(f"run {run_id} is still running: export it when it has ended")
    if path.exists():
        raise StoreError(f"{path} exists already: give another file, or remove it")
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No time of writing and no name inside, so that equal runs make equal files.
        with partial.open("xb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for line in _lines(store, run_id):
                file.write(line)
                count += 1
            file.close()
            os.fsync(raw.fileno())
        partial.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}): give another file, or free some space"
        ) from error
    finally:
        if path.parent.is_dir():
            partial.unlink(missing_ok=True)
    return count - 1


def import_run(store: Store, path: Path, check: Check = lambda record: None, *, own: bool = False) -> tuple[str, int]:
    """Add the run in `path` to the store, and return its id and how many records were written: 0 if the store has the
    very same run already. It is marked as imported, unless it is the user's `own`.

    The run itself is written last, so an import that was cut short can be done again. Raises `StoreError` for a file
    that is damaged, cut short or not an exported run, for one of another schema, and if the store has another run of
    this id. `check` looks at each record before any is written, and raises `StoreError` for one that cannot be used.
    """
    run_id = _run_of(path, next(_read_lines(path), b""))
    for record in _records(path, run_id):
        check(record)
    if any(record.run == run_id for record in store.runs()):
        pairs = zip_longest(_records(path, run_id), _stored(store, run_id))
        if all(one and other and _listed(one) == _listed(other) for one, other in pairs):
            return run_id, 0
        raise StoreError(f"{path} holds run {run_id}, and the store has another run of this id: nothing was changed")
    written = 0
    for _, records in groupby(_records(path, run_id), key=lambda record: record.table):
        while portion := list(islice(records, _RECORDS_AT_ONCE)):
            if isinstance(run := portion[0], RunRecord):
                store.add_run(replace(run, imported=not own))  # refused if another program has just added this run
            else:
                store.put(*portion)
            written += len(portion)
    return run_id, written


def _stored(store: Store, run_id: str) -> Iterator[Record]:
    """All records of a run, in the order of a file. Whether it was imported is a fact of this store."""
    for kind in KINDS:
        for record in store.each(kind, run_id):
            yield replace(record, imported=False) if isinstance(record, RunRecord) else record


def _lines(store: Store, run_id: str) -> Iterator[bytes]:
    yield _line({"format": _FORMAT, "schema": SCHEMA_VERSION, "run": run_id})
    yield from map(_listed, _stored(store, run_id))


def _line(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def _listed(record: Record) -> bytes:
    """The line of a record."""
    row = record.row().items()
    plain = {name: {_BYTES: base64.b64encode(one).decode()} if isinstance(one, bytes) else one for name, one in row}
    return _line([record.table, plain])


def _records(path: Path, run_id: str) -> Iterator[Record]:
    """The records of a file, the run last. Raises `StoreError`, at the latest after the last one, for a file that is
    not whole: gzip has a checksum."""
    record: Record | None = None
    for line in islice(_read_lines(path), 1, None):
        if isinstance(record, RunRecord):
            raise _foreign(path)
        record = _record(path, line, run_id)
        yield record
    if not isinstance(record, RunRecord):
        raise _foreign(path)


def _run_of(path: Path, line: bytes) -> str:
    try:
        header = parse_json(line)
        known, run_id, schema = header["format"] == _FORMAT, header["run"], header["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(path) from error
    if not known or not isinstance(run_id, str):
        raise _foreign(path)
    if schema != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema {schema!r}, and this program reads {SCHEMA_VERSION}: export it again")
    return run_id


def _record(path: Path, line: bytes, run_id: str) -> Record:
    try:
        table, values = parse_json(line, nan=True)  # a metric may be NaN
        record = _BY_TABLE[table].from_row({name: _value(one) for name, one in values.items()})
        record.row()  # what it refuses would be stored wrongly
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, StoreError) as error:
        reason = str(error) if isinstance(error, StoreError) else f"{type(error).__name__} in a record"
        raise StoreError(f"{path} is damaged or no exported run ({reason[:300]}): export the run again") from error
    if record.run != run_id:
        raise _foreign(path)
    return replace(record, imported=False) if isinstance(record, RunRecord) else record


def _value(value: Any) -> Any:
    coded = isinstance(value, dict) and value.keys() == {_BYTES} and isinstance(value[_BYTES], str)
    return base64.b64decode(value[_BYTES], validate=True) if coded else value


def _read_lines(path: Path) -> Iterator[bytes]:
    begun = False
    try:
        with gzip.open(path, "rb") as file:
            for line in lines_of(file, _LONGEST):
                begun = True
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise _damaged(path) if begun or not isinstance(error, gzip.BadGzipFile) else _foreign(path) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): give the file of an exported run") from error


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged or was cut short: export the run again, or copy the file again")


def _foreign(path: Path) -> StoreError:
    return StoreError(f"{path} is not an exported run: give a file that `cryptosentinel runs export` wrote")
