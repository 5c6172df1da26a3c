"""The files of a run whose processes share no folder: their contents lie with the store, their names are its records.

A process has copies in a folder of its own. A name is written by the process to which it belongs, through its fenced
store: one that was replaced, and goes on unknowingly, changes no file.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.distributed.files.run_files import CarriedFiles
from backend.models.registry import START
from backend.store.records import FileRecord
from backend.store.sharing.objects import object_part, unreferenced
from backend.store.store import Store
from backend.training.start import NANO, base_of
from simulator.errors import RunFailed, UserError


class StoreLibrary:
    """What `CarriedFiles` calls, on the files of `run` in `store`; see `run_files.Library`."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._reading: dict[str, str] = {}  # checksum of the files that are read at the moment, by name
        self._uploads: dict[str, tuple[str, int]] = {}  # of each file that is sent, its name on the way and its size

    def call(self, method: str, *arguments: Any) -> Any:
        """The answer of the method of that name."""
        return getattr(self, method)(*arguments)

    def names(self, part: str) -> dict[str, str]:
        """See `Library`."""
        return {file.name: file.checksum for file in self._store.files(self._run, part)}

    def read(self, name: str, offset: int) -> bytes:
        """See `Library`. A file that is replaced while it is read is read to its end as it was."""
        if not offset:
            checksums = self.names(name.rpartition("/")[0])
            if name not in checksums:
                raise RunFailed(f"{name} of run {self._run} is not with the store: its process keeps it no more")
            self._reading[name] = checksums[name]
        return self._store.objects.read(self._run, object_part(name), self._reading[name], offset)

    def write(self, name: str, offset: int, content: bytes) -> None:
        """See `Library`."""
        if not offset:
            self._uploads[name] = secrets.token_hex(16), 0
        upload, _ = self._uploads[name]
        self._store.objects.write(self._run, upload, offset, content)
        self._uploads[name] = upload, offset + len(content)

    def finish(self, name: str, checksum: str) -> bool:
        """See `Library`."""
        upload, size = self._uploads.pop(name)
        former = self.names(name.rpartition("/")[0]).get(name)
        if not self._store.objects.finish(self._run, upload, object_part(name), checksum):
            return False
        self._store.add_file(FileRecord(self._run, name, checksum, size))
        if former not in (None, checksum):
            self._forget({name: str(former)})
        return True

    def prune(self, part: str, kept: list[str]) -> None:
        """See `Library`. What the run began with stays."""
        there = self.names(part).items()
        gone = {name: checksum for name, checksum in there if name not in kept and not name.startswith(f"{START}/")}
        if gone:
            self._store.remove_files(self._run, list(gone))
            self._forget(gone)

    def _forget(self, gone: dict[str, str]) -> None:
        """Remove the contents of files that were replaced or removed, where no other file has them."""
        kept = [(file.name, file.checksum) for file in self._store.files(self._run)]
        for part, checksums in unreferenced(list(gone.items()), kept).items():
            self._store.objects.remove(self._run, part, checksums)


class StoreFiles(CarriedFiles):
    """The files of a run for a process with copies in `folder`, which writes through its fenced `store`; `machine` as
    `CarriedFiles` has it."""

    def __init__(self, folder: Path, store: Store, run: str, machine: Path | None = None) -> None:
        super().__init__(folder, StoreLibrary(store, run).call, machine)

    def base(self, config: Config) -> Path:
        """As `RunFiles.base`. What the run has made travels; any other model must be on this machine."""
        base = base_of(config.training, self.folder)
        if base.is_relative_to(self.folder.absolute()) or base.is_relative_to(self.folder):
            self.restore(NANO)
        if not base.is_dir():
            raise UserError(
                f"the base model {base} is not on this machine: put it there as where the run was begun, or name one "
                "that all machines have"
            )
        return base

    def begin(self) -> None:
        """Bring what the run begins with to the store."""
        for part in (NANO, START):
            for path in sorted(path for path in (self.folder / part).rglob("*") if path.is_file()):
                self.deliver(path.relative_to(self.folder).as_posix())
