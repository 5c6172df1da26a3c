"""Where a process of a run finds the run's files: in a folder that all share, or with the one machine that keeps them.

Files that travel go in pieces of bounded size, arrive under another name and take their own one when their SHA-256 is
the expected one, so that neither a killed process nor a broken connection leaves half a file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.distributed.files.machine_copies import SUFFIX, MachineCopies
from backend.store.sharing.objects import file_sha256
from simulator.errors import RunFailed, UserError
from simulator.folders import path_inside

if TYPE_CHECKING:  # torch takes its time, and who only carries files does not need it
    from backend.config.schema import Config

Call = Callable[..., Any]  # of a method of a `Library` elsewhere: its name, then its arguments

BASE = "base"  # under this name a library gives the base model, wherever it lies
VERSIONS = "adapters"  # below this one are what the run began with and the versions of its team
SERVICES = "services"  # the one folder that a library takes files into
_PIECE = 32 * 2**20  # bytes of a file in one message
_ARRIVING = ".arriving"
_LAST = "state.json"  # what makes a checkpoint whole, so it goes after the rest
_KEPT = (".json", ".safetensors")  # what a process goes on from; its curves stay where they were drawn


class RunFiles:
    """The files of a run whose processes share its `folder`: what one has written, the others find."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def base(self, config: Config) -> Path:
        """The base model, which must be there: whoever began the run has made it. Raises `UserError`."""
        from backend.training.start import base_of

        base = base_of(config.training, self.folder)
        if not base.is_dir():
            raise UserError(f"{base} is not there: begin the run with `cryptosentinel train --launch processes`")
        return base

    def fetch(self, path: str, checksum: str) -> Path:
        """The file that another process wrote to `path` in the run's folder, `checksum` being its SHA-256."""
        return path_inside(self.folder, path, "a record of the run")

    def restore(self, part: str) -> None:
        """Bring the part of the run's folder that this process owns to where a former life of it left it."""

    def restore_file(self, name: str) -> None:
        """As `restore`, for one file; where none was kept, nothing is changed."""

    def keep(self, part: str) -> None:
        """Make sure that this part of the run's folder outlives this machine's copy of it."""

    def deliver(self, name: str) -> None:
        """As `keep`, for one file."""


class Library:
    """The files of a run for processes that do not share its `folder`; they read all of it that `names` tells, and
    write below `services`. `base` is the folder of the base model."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder, self._base = folder, base
        self._known: dict[tuple[str, int, int], str] = {}  # SHA-256 by name, size and time of the last change

    def names(self, part: str) -> dict[str, str]:
        """The files below `part` (`base`, or a folder in `services`) by name, with their SHA-256."""
        top = self._place(part)
        found = sorted(path for path in top.rglob("*") if path.is_file() and path.suffix != _ARRIVING)
        return {f"{part}/{path.relative_to(top).as_posix()}": self._checksum(path) for path in found}

    def read(self, name: str, offset: int) -> bytes:
        """The piece of a file from `offset` on; empty at its end."""
        with self._place(name).open("rb") as file:
            file.seek(offset)
            return file.read(_PIECE)

    def write(self, name: str, offset: int, content: bytes) -> None:
        """Take a piece of a file. Saying it twice does no harm."""
        path = self._own(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(path.name + _ARRIVING)
        with arriving.open("r+b" if offset and arriving.is_file() else "wb") as file:
            file.seek(offset)
            file.write(content)
            file.truncate()

    def finish(self, name: str, checksum: str) -> bool:
        """Put a file that has arrived in its place; False if it is not what was sent."""
        path = self._own(name)
        arriving = path.with_name(path.name + _ARRIVING)
        if arriving.is_file() and file_sha256(arriving) == checksum:
            os.replace(arriving, path)
        return path.is_file() and file_sha256(path) == checksum

    def prune(self, part: str, kept: Collection[str]) -> None:
        """Remove the files below `part` that are not among `kept`."""
        top = self._own(part)
        for path in sorted(top.rglob("*"), reverse=True):  # what is in a folder before the folder
            if path.is_file() and f"{part}/{path.relative_to(top).as_posix()}" not in kept:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def _checksum(self, path: Path) -> str:
        about = path.stat()
        key = (str(path), about.st_size, about.st_mtime_ns)
        if key not in self._known:
            self._known[key] = file_sha256(path)
        return self._known[key]

    def _place(self, name: str) -> Path:
        """Where a file or folder of that name lies. Raises `UserError` for one that is not for others."""
        first, _, rest = name.partition("/")
        top = {BASE: self._base, VERSIONS: self._folder / VERSIONS, SERVICES: self._folder / SERVICES}.get(first)
        if top is not None and (path := (top / rest).resolve()).is_relative_to(top.resolve()):
            return path
        raise UserError(f"'{name}' is no file of a run that its processes read")

    def _own(self, name: str) -> Path:
        if not name.startswith(f"{SERVICES}/"):
            raise UserError(f"'{name}' is no file that a process of a run writes")
        return self._place(name)


class CarriedFiles(RunFiles):
    """The files of a run for a process that does not share its folder: copies in `folder`, which is this process's
    own, got from a `Library` through `call`. `machine` is a folder that the processes of the run on this machine share:
    weights that one of them has got travel to none of the others."""

    def __init__(self, folder: Path, call: Call, machine: Path | None = None) -> None:
        super().__init__(folder)
        self._call = call
        self._machine = None if machine is None else MachineCopies(machine)

    def base(self, config: Config) -> Path:
        """A copy of the base model; what is here already does not travel again."""
        self.restore(BASE)
        return self.folder / BASE

    def fetch(self, path: str, checksum: str) -> Path:
        """A copy of the file; those beside it, of other steps, go. Raises `RunFailed` if its checksum is another."""
        target = path_inside(self.folder, path, "a record of the run")
        if not (target.is_file() and file_sha256(target) == checksum):
            self._take(path, checksum)
        for old in target.parent.iterdir():
            if old != target:
                old.unlink()
        return target

    def restore(self, part: str) -> None:
        """As it was when it was last kept: files that are there and not in the library go."""
        names = self._call("names", part)
        for name, checksum in names.items():
            path = path_inside(self.folder, name, "the library of the run")
            if not (path.is_file() and file_sha256(path) == checksum):
                self._take(name, checksum)
        top = self.folder / part
        for path in [path for path in top.rglob("*") if path.is_file()]:
            if path.relative_to(self.folder).as_posix() not in names:
                path.unlink()

    def keep(self, part: str) -> None:
        """Bring the library's copy to where this one is; a checkpoint is whole there or not at all."""
        top = self.folder / part
        paths = sorted(path for path in top.rglob("*") if path.is_file() and path.suffix in _KEPT)
        paths.sort(key=lambda path: path.name == _LAST)
        checksums = {path.relative_to(self.folder).as_posix(): file_sha256(path) for path in paths}
        there = self._call("names", part)
        for name, checksum in checksums.items():
            if there.get(name) != checksum:
                self._put(name, checksum)
        self._call("prune", part, list(checksums))

    def restore_file(self, name: str) -> None:
        """As `RunFiles.restore_file`."""
        checksum = self._call("names", name.rpartition("/")[0]).get(name)
        path = self.folder / name
        if checksum is not None and not (path.is_file() and file_sha256(path) == checksum):
            self._get(name, checksum)

    def deliver(self, name: str) -> None:
        """Bring one file to the library."""
        self._put(name, file_sha256(self.folder / name))

    def remove(self) -> None:
        """The copies are not needed any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._machine is not None:
            self._machine.forget()

    def _take(self, name: str, checksum: str) -> None:
        """Get a file, weights from this machine where they have come to it already."""
        if self._machine is None or not name.endswith(SUFFIX):
            self._get(name, checksum)
        else:
            self._machine.take(checksum, self.folder / name, partial(self._bring, name, checksum))

    def _get(self, name: str, checksum: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(path.name + _ARRIVING)
        self._bring(name, checksum, arriving)
        os.replace(arriving, path)

    def _bring(self, name: str, checksum: str, arriving: Path) -> None:
        """Bring a file of the library to the path `arriving`."""
        with arriving.open("wb") as file:
            while piece := self._call("read", name, file.tell()):
                file.write(piece)
        if file_sha256(arriving) != checksum:
            raise RunFailed(
                f"{name} of the run was cut short or changed on its way: its checksum is not the one in its record"
            )

    def _put(self, name: str, checksum: str) -> None:
        with (self.folder / name).open("rb") as file:
            offset = 0
            while (piece := file.read(_PIECE)) or not offset:
                self._call("write", name, offset, piece)
                offset += len(piece)
                if not piece:
                    break
        if not self._call("finish", name, checksum):
            raise RunFailed(f"{name} did not arrive as it was sent: is the disk of the run's folder full?")
