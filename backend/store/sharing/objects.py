"""Files of runs, kept with the store: in a folder beside its database, by the hash of what they hold.

The database holds who needs which file (`FileRecord`); here lies what is in it. A file arrives in pieces under a name
of its own and gets its place when its SHA-256 is the expected one. So whoever sends it twice, or is killed while it
sends, does no harm, and a name never refers to half a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from backend.store.errors import StoreDiskError, StoreError
from backend.store.records import StoredFile, valid_run_id
from simulator.files import DISK_FULL

OBJECTS_FOLDER = "objects"
PIECE_BYTES = 4 * 2**20  # of a file in one message to the store
_ANSWER_BYTES = 2**20  # of one from it: others wait while the process that holds the store copies it
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}")
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_UPLOADS = ".uploads"
FORGOTTEN_AFTER = 86_400.0  # seconds after which an upload that nobody went on with, or a file without a record, may go

WrittenT = TypeVar("WrittenT")


class ObjectStore(Protocol):
    """Where the contents of files are. `part` groups those of one writer within a run. Raises `StoreError`."""

    def offered(self) -> bool:
        """Whether files are taken at all: a server of SurrealDB takes none."""

    def write(self, run: str, upload: str, offset: int, content: bytes) -> None:
        """Take a piece of a file that arrives under the name `upload`. Saying it twice does no harm."""

    def finish(self, run: str, upload: str, part: str, checksum: str) -> bool:
        """Put what has arrived in its place; False if it is not what was sent."""

    def read(self, run: str, part: str, checksum: str, offset: int) -> bytes:
        """A piece of a file from `offset` on, empty at its end."""

    def remove(self, run: str, part: str, checksums: list[str]) -> None:
        """Remove files that nobody needs any more."""

    def remove_run(self, run: str) -> None:
        """Remove all files of a run."""


class ObjectFolder:
    """An `ObjectStore` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def offered(self) -> bool:
        """See `ObjectStore`."""
        return True

    def write(self, run: str, upload: str, offset: int, content: bytes) -> None:
        """See `ObjectStore`."""
        path = self._upload(run, upload)

        def append() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if offset and path.is_file() else "wb") as file:
                file.seek(offset)
                file.write(content)
                file.truncate()

        _on_disk(path, append)

    def finish(self, run: str, upload: str, part: str, checksum: str) -> bool:
        """See `ObjectStore`."""
        path, arrived = self._path(run, part, checksum), self._upload(run, upload)

        def place() -> bool:
            if arrived.is_file() and file_sha256(arrived) == checksum:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(arrived, path)
            else:
                arrived.unlink(missing_ok=True)
            self._forget_uploads(run)
            return path.is_file()

        return _on_disk(path, place)

    def read(self, run: str, part: str, checksum: str, offset: int) -> bytes:
        """See `ObjectStore`."""
        path = self._path(run, part, checksum)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(_ANSWER_BYTES)
        except FileNotFoundError:
            raise StoreError(
                f"a file of run {run} is not in {self._folder} any more ({part}, {checksum[:12]}): it was replaced "
                "meanwhile, or the store's folder was copied without it"
            ) from None

    def remove(self, run: str, part: str, checksums: list[str]) -> None:
        """See `ObjectStore`."""
        paths = [self._path(run, part, checksum) for checksum in checksums]

        def unlink() -> None:
            for path in paths:
                path.unlink(missing_ok=True)

        _on_disk(self._folder, unlink)

    def remove_run(self, run: str) -> None:
        """See `ObjectStore`."""
        _check_link(self._folder)
        shutil.rmtree(self._folder / valid_run_id(run), ignore_errors=True)  # takes no link itself

    def names(self) -> list[str]:
        """All whole files, each as `RUN/PART/CHECKSUM`, its place in this folder."""
        self._check_links()
        paths = (path.relative_to(self._folder) for path in sorted(self._folder.glob("*/*/*")))
        return [path.as_posix() for path in paths if path.parts[1] != _UPLOADS]

    def _check_links(self) -> None:
        """A store's folder may come from anybody. Raises `StoreError` for a link in it in the place of a folder: what
        lies behind it would be taken for files that nobody needs."""
        for place in (self._folder, *self._folder.glob("*"), *self._folder.glob("*/*")):
            _check_link(place)

    def remove_others(self, named: Collection[str], seconds: float = FORGOTTEN_AFTER) -> int:
        """Remove the files that are not in `named` and older than that, and return how many they were."""
        others = self.others(named, seconds)
        for name in others:
            (self._folder / name).unlink(missing_ok=True)
        return len(others)

    def others(self, named: Collection[str], seconds: float = FORGOTTEN_AFTER) -> list[str]:
        """The files that are not in `named` and older than that: of a younger one the record may be on its way."""
        oldest = time.time() - seconds
        return [
            name
            for name in self.names()
            if name not in named and (path := self._folder / name).is_file() and path.stat().st_mtime <= oldest
        ]

    def contents(self, run: str) -> set[tuple[str, str]]:
        """Part and checksum of all files of a run."""
        top = self._folder / valid_run_id(run)
        return {(path.parent.name, path.name) for path in top.glob("*/*") if path.parent.name != _UPLOADS}

    def _path(self, run: str, part: str, checksum: str) -> Path:
        check_object(part, checksum)
        path = self._folder / valid_run_id(run) / part / checksum
        for place in (self._folder, path.parents[1], path.parent, path):
            _check_link(place)
        return path

    def _upload(self, run: str, upload: str) -> Path:
        check_upload(run, upload)
        path = self._folder / run / _UPLOADS / upload
        for place in (self._folder, path.parents[1], path.parent, path):
            _check_link(place)
        return path

    def _forget_uploads(self, run: str) -> None:
        """Remove what killed processes have left half sent."""
        for path in (self._folder / run / _UPLOADS).glob("*"):
            with suppress(FileNotFoundError):  # another process's, which has just been put in its place
                if time.time() - path.stat().st_mtime > FORGOTTEN_AFTER:
                    path.unlink()


def check_object(part: str, checksum: str) -> None:
    """Raise `StoreError` for what names no file of a run: it may come from anybody."""
    if not (_PART.fullmatch(part) and _CHECKSUM.fullmatch(checksum)):
        raise StoreError(f"'{part}/{checksum}' names no file of a run")


def check_upload(run: str, upload: str) -> None:
    """Raise `StoreError` for what names no file of a run that arrives."""
    valid_run_id(run)
    if not _UPLOAD.fullmatch(upload):
        raise StoreError(f"'{upload}' names no file that arrives")


def object_part(name: str) -> str:
    """The part of the object store in which the file `name` of a run lies: one for each folder that has one writer."""
    return "-".join(name.split("/")[:2])


def object_name(file: StoredFile) -> str:
    """`RUN/PART/CHECKSUM`, where the content of a file lies in an `ObjectFolder`."""
    return f"{file.run}/{object_part(file.name)}/{file.checksum}"


def object_pieces(objects: ObjectStore, file: StoredFile) -> Iterator[bytes]:
    """The content of a file, in pieces. Raises `StoreError` where it is not there."""
    offset = 0
    while piece := objects.read(file.run, object_part(file.name), file.checksum, offset):
        offset += len(piece)
        yield piece


def unreferenced(gone: Collection[tuple[str, str]], kept: Collection[tuple[str, str]]) -> dict[str, list[str]]:
    """By part the checksums among `gone`, pairs of name and checksum, that no file of `kept` has in the same part."""
    needed = {(object_part(name), checksum) for name, checksum in kept}
    found: dict[str, list[str]] = {}
    for name, checksum in gone:
        if (object_part(name), checksum) not in needed:
            found.setdefault(object_part(name), []).append(checksum)
    return found


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_link(place: Path) -> None:
    if place.is_symlink():
        raise StoreError(f"{place} is a link, which this program does not follow: find out who put it there, remove it")
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise StoreError(f"{place} is neither a file nor a folder: find out who put it there, remove it")


def _on_disk(path: Path, write: Callable[[], WrittenT]) -> WrittenT:
    """What `write` returns. Raises `StoreDiskError` where the disk fails it."""
    try:
        return write()
    except OSError as error:
        advice = "free some space" if error.errno in DISK_FULL else "see who owns it"
        raise StoreDiskError(f"{path} cannot be written ({error.strerror}): {advice}, and start again") from error
