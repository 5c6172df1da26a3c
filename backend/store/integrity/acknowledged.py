"""A small file beside the engine's own that says what was acknowledged, so that damage is seen before it is repaired.

After a crash the engine cuts its write-ahead log where it cannot read on, without a word, and every record behind that
place is gone. So each acknowledged write leaves a line in `FOLDER/db/acknowledged`: how long the log is by now and the
CRC-32 of all of it. The log is only appended to, so a write costs its own bytes again and no more. A clean end leaves
sizes and CRC-32 of all files. They are compared before the engine opens anything: it may find more than was
acknowledged, never less. The file lies among the engine's so that it moves with them. Its lines are not forced onto
the disk, as the engine's own writes are not: after a loss of power the log may be shorter than is said here, and the
store is refused, rightly.

What is known of the engine's files (surrealdb-embedded 3.0.0b10, tried): `wal/N.wal` is appended to, also by the next
opening, until its contents are in `sstables/`, then it goes; `vlog/` is appended to; a table is not changed once
written; the manifest lists the tables and the first log that is still needed, and each change of it alters more than
one byte. Tables have checksums that the engine looks at; values above 4 KB, in `vlog/`, have none. A new manifest is
written as `manifest/.tmp_...` first; killed then, the engine leaves that file and never reads it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surrealdb.data.cbor import decode

from backend.store.errors import StoreError
from backend.store.folder_swap import DATABASE_FOLDER
from backend.store.gateway.rpc_messages import DISK_TROUBLE
from backend.store.integrity.copies import keep_copy, kept_copies
from backend.store.integrity.open_logs import NO_BYTES, Extent, OpenLogs, logs_of
from simulator.documents import parse_json

ACKNOWLEDGED = "acknowledged"
# Is there wherever ACKNOWLEDGED was once: so one that is missing is told from one that never was.
MARK = "acknowledged.kept"

_MANIFEST = f"manifest/{0:020d}.manifest"
_FIRST_LOG = slice(10, 18)  # in the manifest: number of the first log that is still needed, big-endian
_LOG = re.compile(r"wal/\d{1,20}\.wal")
_FILE = re.compile(r"(?:[A-Za-z0-9_-]{1,80}/)?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,80}")
_UNFINISHED = re.compile(r"manifest/\.tmp_[0-9_]{1,80}")
_READ_AT_ONCE = 1 << 20
_READ_AT_OPENING = 64 << 20  # bytes of finished files that are read again at each opening
_OTHERS_EVERY = 0.1  # seconds after which a line says of more than the logs: that changes a few times a minute at most
_LONGEST = 1 << 20  # bytes of the file before it is begun anew

_log = logging.getLogger(__name__)


def last_write(where: str | Path) -> tuple[int, ...] | None:
    """What is another one after each write to the store in a folder, and after each program that has held it; None
    where there is no such folder, as of a server's. Nothing is opened for it."""
    try:
        file = os.stat(Path(where) / DATABASE_FOLDER / ACKNOWLEDGED)
    except OSError:
        return None
    return file.st_ino, file.st_size, file.st_mtime_ns


class Damaged(StoreError):
    """The folder holds less than was acknowledged, or something else. `what` was found, in words."""

    def __init__(self, folder: Path, what: str, changed: str = "Nothing was changed") -> None:
        self.what = what
        advice = (
            f"{changed}: put back a backup, or keep what can still be read with `cryptosentinel store accept "
            f"{shlex.quote(str(folder))}`, which first copies the database's files"
        )
        if copies := kept_copies(folder):
            advice += (
                f". As the database was before it was last repaired it is in {copies[-1]}: to go back to that, move "
                f"{folder / DATABASE_FOLDER} away and put it there"
            )
        super().__init__(f"store {folder} is damaged: {what}. {advice}")


@dataclass
class _State:
    """What the lines say: `logs` and `files` by their path in the engine's folder, and the manifest's bytes."""

    logs: dict[str, Extent] = field(default_factory=dict)
    files: dict[str, Extent] = field(default_factory=dict)
    manifest: bytes = b""
    closed: bool = False
    damage: str = ""  # what was found once the engine was open, in words

    def take(self, line: dict[str, Any]) -> None:
        """One more line. Raises `ValueError` or `TypeError` where it is none of this program's: the store may be
        somebody else's, who can make a checksum too."""
        self.closed = bool(line.get("closed"))
        if line.get("begin") or self.closed:
            self.logs.clear()
            self.files.clear()
        self.logs.update(_extents(line.get("logs", {}), _LOG))
        files = line.get("files", {})  # former versions wrote down unfinished ones too
        self.files.update(_extents({name: files[name] for name in files if not _UNFINISHED.fullmatch(name)}, _FILE))
        if not self.closed:  # it changes while a store is open, and its bytes are said apart
            self.files.pop(_MANIFEST, None)
        self.manifest = bytes.fromhex(line["manifest"]) if "manifest" in line else self.manifest
        self.damage = str(line.get("damage", self.damage))
        for name in line.get("gone", ()):
            self.logs.pop(name, None)


class Acknowledged:
    """What was acknowledged of the store in `folder`, whose lock the caller holds.

    Raises `Damaged` if the engine's files hold less than that. Call `before_opening` and `begin` before and after the
    engine opens, `note` after each request before its sender gets the answer, and `end` once the engine is closed.
    Where there is a tail, the engine is opened and closed once before, with `check_opened` and `check_settled`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = folder / DATABASE_FOLDER
        self._root = str(self._database)  # each request asks for sizes, and Path is slow
        self._path = self._database / ACKNOWLEDGED
        self._descriptor: int | None = None
        self._length = 0
        self._manifest_seen: tuple[int, ...] | None = None
        self._begun = False
        self._partial: dict[str, Extent] = {}  # what the logs hold since a write failed
        self._others_due = 0.0  # on the monotonic clock
        self._open_logs = OpenLogs(self._root)
        self._noted = self._path.exists()
        self._state = self._read() if self._noted else _State()
        if self._state.damage:
            raise self._damaged(self._state.damage)
        if self._noted:
            self._compare()
        elif (self._database / MARK).exists():
            raise self._damaged(f"{self._path} is missing, which says what the store must hold at least")
        # What is found now was compared just now: `end` need not read again what stays as it is.
        self._before = {name: self._identity(name) for name in self._state.files}

    @property
    def noted(self) -> bool:
        """Whether anything was noted: a store of a former version has no note."""
        return self._noted

    @property
    def has_tail(self) -> bool:
        """Whether a log holds more than was acknowledged, as after a kill or a full disk in the middle of a write."""
        return not self._state.closed and any(
            (self._size(name) or 0) > self._state.logs.get(name, NO_BYTES)[0] for name in logs_of(self._root)
        )

    def before_opening(self) -> None:
        """The engine is about to open, and may change files and repair what it takes for damaged. Raises
        `StoreError`."""
        if self.has_tail:
            keep_copy(self._folder)
        if self._noted:
            if self._state.closed:
                self._state.manifest = self._manifest() or b""
            self._state.closed = False
            self._renew()
        elif self._is_new():
            # A kill before the engine has made its files leaves a log of which nothing was acknowledged. Without a note
            # it could not be told from one of a former version, whose every byte counts.
            try:
                self._database.mkdir(exist_ok=True)
            except OSError as error:
                raise self._unwritable(error) from error
            self._renew()

    def _is_new(self) -> bool:
        return not any(path.is_file() for path in self._database.rglob("*"))

    def cut_tails(self) -> None:
        """Cut the logs to what was acknowledged, where the engine cannot open them otherwise. `before_opening` has
        copied them. Raises `StoreError`."""
        try:
            for name in logs_of(self._root):
                if (self._size(name) or 0) > (kept := self._state.logs.get(name, NO_BYTES)[0]):
                    os.truncate(f"{self._root}/{name}", kept)
        except OSError as error:
            raise self._unwritable(error) from error

    def check_opened(self) -> None:
        """The engine is open. Raises `Damaged` if it has cut what was acknowledged."""
        if self._noted:
            try:
                self._check_logs()
            except Damaged as error:
                raise self._cut_while_opening(error.what) from error

    def check_settled(self) -> None:
        """The engine has opened the database and closed it again. Raises `StoreError` if it has kept a log."""
        if kept := logs_of(self._root):
            raise StoreError(
                f"store {self._folder}: the database could not put its log {self._database / kept[0]} into tables. "
                "Nothing is lost: free some space and start again"
            )

    def begin(self) -> None:
        """The engine is open, and what it holds is what is to be kept from now on. Raises `Damaged` if it has cut what
        was acknowledged, and `StoreError` if nothing can be noted."""
        self.check_opened()
        files = {name: extent for name, extent in self._state.files.items() if self._size(name) is not None}
        logs = {name: self._extended(name, NO_BYTES) for name in logs_of(self._root)}
        self._state = _State(logs, files, self._manifest() or b"")
        self._renew()
        try:
            (self._database / MARK).touch()
        except OSError as error:
            raise self._unwritable(error) from error
        self._begun = True

    def note(self, request: bytes, answer: bytes) -> None:
        """What the log holds by now is acknowledged, by the answer to a request. Does nothing where nothing was
        written, nor of a write that failed: it has left a part of a record, which a later one may complete. Raises
        RuntimeError, as the engine does, where it cannot be noted."""
        try:
            if not (grown := self._open_logs.grown(self._state.logs)):
                return
            if grown == self._partial or (DISK_TROUBLE.encode() in answer and _failed(answer)):
                self._partial = grown
                return
            now = time.monotonic()
            if now < self._others_due:
                self._append(_grown_line(grown))
                self._state.logs.update(grown)
            else:
                self._append_all(grown)
                self._others_due = now + _OTHERS_EVERY
        except OSError as error:
            # Not acknowledged, then. In the words by which the engine tells of the same.
            raise RuntimeError(f"{DISK_TROUBLE}: {self._path}: {error.strerror}") from error
        if self._length > _LONGEST:
            try:
                self._renew()
            except StoreError as error:  # it goes on growing; what was said stays right
                _log.debug("%s", error)

    def end(self) -> None:
        """The engine was closed; a second call does nothing. One that has left a log has not ended in order, as where
        the disk is full, and may still change its files: nothing more is said then, nor where `begin` failed."""
        if self._descriptor is None:
            return
        if not self._begun or logs_of(self._root):
            self.abandon()
            return
        try:
            self._append(_line({"closed": True, "files": self._finished_files()}))
        except OSError as error:
            _log.warning("%s cannot be written (%s): the next opening compares with what it said before", self._path,
                         error.strerror)  # fmt: skip
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files, without a word on how it ended."""
        self._open_logs.close()
        self._close()

    def verify(self) -> None:
        """Compare every byte of the finished files that the engine has not replaced since. Raises `Damaged`."""
        for name, extent in sorted(self._state.files.items()):
            if name.startswith("vlog/") or self._identity(name) == self._before.get(name):
                self._check(name, extent)

    # -- comparing --------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        found, noted = self._manifest(), self._state.manifest
        manifest = self._database / _MANIFEST
        if self._state.closed:
            self._compare_files(tuple(self._state.files))
            return
        if found is None:
            if noted:
                raise self._damaged(f"{manifest} is missing")
            return
        if found != noted and (noted.startswith(found) or _one_byte_differs(found, noted)):
            raise self._damaged(f"{manifest} is not as it was written")
        self._check_logs()
        # Tables come and go while a store is open, and the engine checks them itself.
        self._compare_files([name for name in self._state.files if name.startswith("vlog/") and self._size(name)])

    def _check_logs(self) -> None:
        first_log = int.from_bytes((self._manifest() or b"")[_FIRST_LOG], "big")
        for name, extent in sorted(self._state.logs.items()):
            if int(Path(name).stem) >= first_log:  # what came before is in tables
                self._check(name, extent)

    def _compare_files(self, names: list[str] | tuple[str, ...]) -> None:
        read = 0
        for name in sorted(names):
            length, checksum = self._state.files[name]
            size = self._size(name)
            if size is None or size < length:
                raise self._damaged(f"{self._database / name} had {length} bytes and has {size or 0}")
            if read + length <= _READ_AT_OPENING:
                read += length
                self._check(name, (length, checksum))

    def _check(self, name: str, extent: Extent) -> None:
        size = self._size(name)
        if size is None or size < extent[0]:
            raise self._damaged(f"of {self._database / name}, {extent[0]} bytes were acknowledged; it has {size or 0}")
        if self._extended(name, NO_BYTES, extent[0]) != extent:
            raise self._damaged(f"the first {extent[0]} bytes of {self._database / name} are not what was acknowledged")

    def _damaged(self, what: str) -> Damaged:
        return Damaged(self._folder, what)

    def _cut_while_opening(self, what: str) -> Damaged:
        """Say so in the file too: closing puts what the engine has left into tables, and the next opening would find no
        log that is too short."""
        what = f"the database engine cut what was acknowledged when it opened it: {what}"
        try:
            self._append(_line({"damage": what}))
        except OSError:
            self._path.unlink(missing_ok=True)  # which is refused too
        return Damaged(self._folder, what, "Nothing else was changed")

    # -- files ------------------------------------------------------------------------------------------------------

    def _finished_files(self) -> dict[str, Extent]:
        files = {}
        for path in sorted(self._database.rglob("*")):
            name = str(path.relative_to(self._database))
            if (
                not path.is_file()
                or path.name == "LOCK"
                or name.startswith(ACKNOWLEDGED)
                or name.startswith(f".{ACKNOWLEDGED}")
                or _UNFINISHED.fullmatch(name)
            ):
                continue
            found, before = self._identity(name), self._before.get(name)
            grown = name.startswith("vlog/") and found is not None and before is not None and found[0] == before[0]
            known = self._state.files.get(name, NO_BYTES) if grown or found == before else NO_BYTES
            files[name] = self._extended(name, known)
        return files

    def _manifest(self) -> bytes | None:
        try:
            return (self._database / _MANIFEST).read_bytes()
        except FileNotFoundError:
            return None

    def _size(self, name: str) -> int | None:
        try:
            return os.stat(f"{self._root}/{name}").st_size
        except FileNotFoundError:
            return None

    def _identity(self, name: str) -> tuple[int, ...] | None:
        """Differs once the file was written to or replaced."""
        try:
            found = os.stat(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _extended(self, name: str, known: Extent, until: int | None = None) -> Extent:
        """The extent of a file, read on from what is known of it; an empty one if it has gone meanwhile."""
        length, checksum = known
        size = self._size(name) if until is None else until
        if size is None or size <= length:
            return known if size is not None else NO_BYTES
        try:
            with open(f"{self._root}/{name}", "rb", buffering=0) as file:
                file.seek(length)
                while length < size and (part := file.read(min(_READ_AT_ONCE, size - length))):
                    checksum = zlib.crc32(part, checksum)
                    length += len(part)
        except FileNotFoundError:
            return NO_BYTES
        return (length, checksum)

    def _read(self) -> _State:
        """What the file says. Its end may be incomplete: then that write was not acknowledged."""
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read ({error.strerror})") from error
        state = _State()
        *lines, _ = content.split(b"\n")
        if not lines:
            raise self._damaged(f"{self._path} is empty, which says what the store must hold at least")
        for line in lines:
            text, _, checksum = line.rpartition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                raise self._damaged(f"{self._path} itself, which says what the store must hold at least")
            try:
                state.take(parse_json(text))
            except (ValueError, TypeError, AttributeError) as error:
                raise self._damaged(f"a line of {self._path} is none of this program's ({error})") from error
        return state

    def _renew(self) -> None:
        """Begin the file anew with the present state, whole or not at all."""
        fresh = self._path.with_name(f".{ACKNOWLEDGED}.new")
        seen, descriptor = self._identity(_MANIFEST), None
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            content = _line(
                {
                    "begin": True,
                    "logs": self._state.logs,
                    "files": self._state.files,
                    "manifest": self._state.manifest.hex(),
                }
            )
            _write(descriptor, content)
            os.fsync(descriptor)
            os.replace(fresh, self._path)
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            raise self._unwritable(error) from error
        self._close()
        self._descriptor, self._length, self._manifest_seen, self._noted = descriptor, len(content), seen, True

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(f"{self._path} cannot be written ({error.strerror}); free some space")

    def _append_all(self, grown: dict[str, Extent]) -> None:
        """Say how the logs have grown, and what else has changed."""
        line: dict[str, Any] = {"logs": grown}
        if gone := [name for name in self._state.logs if not self._open_logs.has(name)]:
            line["gone"] = gone
        seen = self._identity(_MANIFEST)
        if seen != self._manifest_seen:
            line["manifest"] = (self._manifest() or b"").hex()
        self._append(_line(line))
        self._manifest_seen = seen
        self._state.take(line)

    def _append(self, content: bytes) -> None:
        assert self._descriptor is not None
        try:
            _write(self._descriptor, content)
        except OSError:  # the next line must not stand behind a part of this one
            os.ftruncate(self._descriptor, self._length)
            raise
        self._length += len(content)


def _extents(found: dict[str, Any], names: re.Pattern[str]) -> dict[str, Extent]:
    """Extents by the paths of files, which lie in the database's folder."""
    extents = {}
    for name, (length, checksum) in found.items():
        if not names.fullmatch(name):
            raise ValueError(f"'{name[:100]}' is no file of a database")
        if not (isinstance(length, int) and isinstance(checksum, int) and length >= 0):
            raise ValueError(f"the extent of {name} is no length and checksum")
        extents[name] = (length, checksum)
    return extents


def _line(document: dict[str, Any]) -> bytes:
    return _with_checksum(json.dumps(document, separators=(",", ":")).encode())


def _grown_line(grown: dict[str, Extent]) -> bytes:
    """`_line` of `{"logs": grown}`, written by hand: the encoder would take longer than all else of a small write."""
    logs = ",".join([f'"{name}":[{length},{checksum}]' for name, (length, checksum) in grown.items()])
    return _with_checksum(f'{{"logs":{{{logs}}}}}'.encode())


def _with_checksum(text: bytes) -> bytes:
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _write(descriptor: int, content: bytes) -> None:
    """All of it. Raises `OSError`, also where only a part was taken before the disk was full."""
    while content:
        content = content[os.write(descriptor, content) :]


def _failed(answer: bytes) -> bool:
    """Whether an answer says of a statement that the disk did not take it. Others may have such words in a record."""
    document = decode(answer)
    statements = document.get("result")
    if not isinstance(statements, list):
        return "error" in document
    return any(isinstance(one, dict) and one.get("status") == "ERR" for one in statements)


def _one_byte_differs(one: bytes, other: bytes) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1
