"""A store of the former engine written anew with the present one.

The former engine runs in a process and an environment of its own (`export_2.py`) on a copy of the database, because it
changes what it opens. Its records are checked as those of an import, written to a new database in the folder's
workplace, read again and compared. Then the new database takes the place of the former one, which stays beside it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from backend.store.connection import folder_url
from backend.store.errors import StoreError
from backend.store.folder_swap import (
    DATABASE_FOLDER,
    WORKPLACE,
    discard,
    finish_swap,
    mark_ready,
    of_former_engine,
    size_of,
)
from backend.store.lock import FolderLock
from backend.store.maintenance.copying import Fingerprint, OnCopied, all_rows
from backend.store.maintenance.tables import COPIED, Tables
from backend.store.migration import SCHEMA_VERSION, upgraded_row
from backend.store.records import CallCountRecord, Delegation, Record, RunRecord, TrajectoryRecord
from backend.store.store import Store
from simulator.documents import lines_of, parse_json
from simulator.files import copy_folder

ENVIRONMENT = ".venv-former-engine"
_EXPORTER = Path(__file__).with_name("export_2.py")
_FORMAT, _FORMAT_VERSION = "cryptosentinel-former-store", 1
_KEPT = f"{DATABASE_FOLDER}-engine-2"
_OF_ENGINE_3 = ("LOCK", "sstables", "vlog", "wal")  # what a try of engine 3 to open it leaves
_NOT_COPIED = {"store", "lease"}  # of the store itself; who is at work on a run at the moment
_BY_TABLE = {kind.table: kind for kind in COPIED}
_LONGEST = 128 * 2**20  # bytes of a line, as in an import
_RECORDS_AT_ONCE, _BYTES_AT_ONCE = 500, 8_000_000
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")
_STOPPED = "it was running when its store was last used with the former engine"


@dataclass(frozen=True)
class Conversion:
    """How many records of each table the store holds now, where the former database is kept, and how many bytes of its
    damaged log could not be read."""

    records: dict[str, int]
    kept: Path
    dropped: int


def convert_store(folder: Path, python: Path | None, on_copied: OnCopied, salvage: bool = False) -> Conversion:
    """Convert the store in `folder`. It needs the space of the database twice.

    `python` has the former engine; None for the one that the Makefile installs. With `salvage` what can be read of a
    damaged log will do. Raises `StoreError` if it is no store of the former engine, that engine is absent, anybody uses
    the store, or any record cannot be read or written; then all is as it was. Killed at any moment, the store is as it
    was or converted.
    """
    folder = folder.absolute()
    database = folder / DATABASE_FOLDER
    if not database.is_dir() and not (folder / WORKPLACE).is_dir():
        raise StoreError(f"{folder} holds no store: give the folder of one")
    folder_url(folder)
    lock = FolderLock(folder)
    try:
        finish_swap(folder)  # of a conversion that was cut short
        if not of_former_engine(database):
            raise StoreError(f"{folder} holds no store of the former engine: there is nothing to convert")
        found, kept = _former_python(python), _free_name(folder)
        try:
            records, dropped = _write_anew(folder, found, on_copied, salvage)
            mark_ready(folder, kept.name)
        except BaseException:
            discard(folder)
            raise
        finish_swap(folder)
        return Conversion(records, kept, dropped)
    except OSError as error:
        raise StoreError(
            f"store {folder} cannot be converted ({error.strerror or error}): nothing of it is lost; free some space, "
            "see who owns it, and start again"
        ) from error
    finally:
        lock.release()


def _former_python(given: Path | None) -> Path:
    """The Python that has the former engine: the one given, or that of the project's `.venv-former-engine`. Raises
    `StoreError` where it is absent."""
    python = given or Path(__file__).parents[3] / ENVIRONMENT / "bin" / "python"
    if not os.access(python, os.X_OK) or python.is_dir():
        what = f"{python} cannot be run" if given else "the former engine is not installed"
        raise StoreError(
            f"{what}: run `make {ENVIRONMENT}` in the folder of the project, or make an environment with "
            "`pip install surrealdb==2.0.0` and give its Python with --former-python"
        )
    return python.absolute()  # not resolved: an environment's Python is a link


def _free_name(folder: Path) -> Path:
    """Where the former database is to be kept; also a second time, after somebody went back to it."""
    names = (f"{_KEPT}-{number}" if number > 1 else _KEPT for number in range(1, 1000))
    return next(folder / name for name in names if not os.path.lexists(folder / name))


def _write_anew(folder: Path, python: Path, on_copied: OnCopied, salvage: bool) -> tuple[dict[str, int], int]:
    """The same records in a database in the workplace; returns how many of each table, and the bytes of the log that
    the former engine dropped."""
    workplace = folder / WORKPLACE
    source = workplace / "source"
    database = folder / DATABASE_FOLDER
    free, needed = shutil.disk_usage(folder).free, 2 * size_of(database)
    if free < needed:
        raise StoreError(
            f"store {folder}: its conversion needs about {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free: "
            "free some space"
        )
    copy_folder(database, source, without=_OF_ENGINE_3)
    before = size_of(source / "clog")
    written = Fingerprint()
    with Store.open(workplace, exclusive=True) as copy:
        total = _copy_records(_Export(folder, python, source), copy, written, on_copied)
    # It cuts a damaged log where the damage begins, and goes on as if nothing had been there.
    after = size_of(source / "clog")
    if after < before and not salvage:
        raise StoreError(
            f"store {folder}: the log of its database is damaged. The former engine reads {after:,} of its {before:,} "
            f"bytes ({sum(written.rows.values()):,} records) and would drop the rest without a word. Nothing was "
            "changed: go back to a copy of the folder, or take what can be read with --salvage"
        )
    shutil.rmtree(source)
    stored = Fingerprint()
    with Store.open(workplace, exclusive=True) as copy:
        for kind, rows in all_rows(copy):
            if kind is CallCountRecord:  # counted anew
                continue
            stored.add(kind, [kind.from_row(row).row() for row in rows])
            on_copied("verified", sum(stored.rows.values()), total)
    if differing := written.differences(stored):
        raise StoreError(
            f"store {folder}: the new database does not hold what was written to it: {', '.join(differing)}; the store "
            "is as it was"
        )
    return stored.rows, max(0, before - after)


def _copy_records(export: _Export, copy: Store, written: Fingerprint, on_copied: OnCopied) -> int:
    """Write what the former engine reads, and return how many records that is."""
    done = 0
    for kind, records in export.records():
        if kind is RunRecord:
            records = [_stopped(record) for record in records]
        copy.put(records)
        written.add(kind, [record.row() for record in records])
        done += len(records)
        on_copied("converted", done, max(done, export.total))
    if export.identity is not None:
        Tables(copy).adopt_identity(export.identity)
    return done


class _Export:
    """What the former engine reads from a copy of a database."""

    def __init__(self, folder: Path, python: Path, source: Path) -> None:
        self.total = 0
        self.identity: str | None = None
        self._folder = folder
        self._command = [str(python), "-I", str(_EXPORTER), str(source), *_BY_TABLE]
        self._schema = 0
        self._counted: dict[str, int] = {}

    def records(self) -> Iterator[tuple[type[Record], list[Any]]]:
        """All records, in portions of one kind; each after what it refers to. Raises `StoreError` at the latest after
        the last one if any was missing or the former engine failed."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        with TemporaryFile(dir=self._folder) as complaints:  # where there is room for the database twice
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, env=environment
            )
            assert process.stdout is not None
            try:
                yield from self._checked(process.stdout, process, complaints)
            finally:
                process.kill()
                with suppress(OSError):
                    process.stdout.close()
                process.wait()

    def _checked(
        self, lines: IO[bytes], process: subprocess.Popen[bytes], complaints: IO[bytes]
    ) -> Iterator[tuple[type[Record], list[Any]]]:
        digest, counts = hashlib.sha256(), Counter[str]()
        end: Any = None
        portion, size = list[Record](), 0
        try:
            for line in lines_of(lines, _LONGEST):
                if end is not None:
                    raise self._damaged("something follows its end")
                document = parse_json(line, nan=True)  # a metric may be NaN
                if isinstance(document, list):
                    record = self._record(document)
                    if portion and (
                        portion[0].table != record.table or len(portion) == _RECORDS_AT_ONCE or size > _BYTES_AT_ONCE
                    ):
                        yield type(portion[0]), portion
                        portion, size = [], 0
                    portion.append(record)
                    size += len(line)
                    counts[record.table] += 1
                elif not self._schema:
                    self._begin(document)
                else:
                    end = document
                    continue
                digest.update(line)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise self._damaged(f"{type(error).__name__} in line {sum(counts.values()) + 2}") from error
        if process.wait() or end is None:
            raise self._failed(process.returncode, complaints)
        if end != {"records": dict(counts), "sha256": digest.hexdigest()}:
            raise self._damaged("its sum is another one")
        for table, count in self._counted.items():
            if table not in _NOT_COPIED and counts[table] != count:
                raise self._damaged(f"{counts[table]:,} of {count:,} records of the table {table}")
        if portion:
            yield type(portion[0]), portion

    def _begin(self, header: Any) -> None:
        if (header["format"], header["version"]) != (_FORMAT, _FORMAT_VERSION):
            raise self._damaged("its format is unknown")
        schema, self._counted, identity = header["schema"], dict(header["records"]), header["identity"]
        if type(schema) is not int or not 1 <= schema <= SCHEMA_VERSION:
            raise StoreError(
                f"store {self._folder} has version {str(schema)[:20]} of the schema, and this program knows 1 to "
                f"{SCHEMA_VERSION}: convert it with the program that fits"
            )
        unknown = [name for name, n in self._counted.items() if n and name not in {*_BY_TABLE, *_NOT_COPIED}]
        if unknown:
            raise StoreError(
                f"store {self._folder} holds a table that is not of this program, {', '.join(unknown)[:200]}: it is "
                "as it was; remove that table with the program that made it"
            )
        if not (identity is None or isinstance(identity, str)):
            raise self._damaged("its identity is no text")
        self._schema, self.identity = schema, identity
        self.total = sum(count for name, count in self._counted.items() if name not in _NOT_COPIED)

    def _record(self, document: list[Any]) -> Record:
        table, key, fields = document
        try:
            kind = _BY_TABLE[table]
            row = {
                name: base64.b64decode(value["base64"], validate=True) if _is(value, "base64") else value
                for name, value in fields.items()
            }
            ends = [row.pop(name, None) for name in ("in", "out")]
            record = kind.from_row(upgraded_row(table, row, self._schema))
            identity = [getattr(record, name) for name in kind.identity]
            record.row()  # what it refuses would be stored wrongly
        except StoreError as error:
            reason = str(error).partition(": import")[0]  # what else it advises is for another case
            raise StoreError(
                f"store {self._folder}: record {str(key)[:200]} of the table {str(table)[:40]} is damaged "
                f"({reason[:300]}). Nothing was changed: delete its run with the former program, and start again"
            ) from error
        if key != identity:
            raise self._damaged(f"record {str(key)[:200]} of the table {table} has the fields of another one")
        if isinstance(record, Delegation):
            joined = ([*identity[:-2], *record.caller], identity)
            if ends != [{"record": [TrajectoryRecord.table, end]} for end in joined]:
                raise self._damaged(f"edge {str(key)[:200]} joins other conversations than it says")
        return record

    def _failed(self, code: int, complaints: IO[bytes]) -> StoreError:
        complaints.seek(0)
        said = complaints.read(100_000).decode(errors="replace").strip().splitlines() or [""]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = f"{how}: {said[-1][:300]}" if said[-1] else how
        return StoreError(
            f"store {self._folder} cannot be converted, the former engine {reason}. Nothing was changed; start again"
        )

    def _damaged(self, reason: str) -> StoreError:
        return StoreError(
            f"store {self._folder}: what the former engine gave is damaged ({reason}). Nothing was changed; start again"
        )


def _stopped(record: RunRecord) -> RunRecord:
    """A run that was running when the former program ended is nobody's now."""
    return replace(record, status="interrupted", message=_STOPPED) if record.status == "running" else record


def _is(value: Any, what: str) -> bool:
    return isinstance(value, dict) and value.keys() == {what} and isinstance(value[what], str)
