"""The write-ahead logs of an open database, followed as they grow."""

from __future__ import annotations

import os
import time
import zlib

Extent = tuple[int, int]  # length of a file's beginning in bytes, and its CRC-32
NO_BYTES: Extent = (0, 0)

_LOGS = "wal"
_FIRST_PART, _NEXT_PARTS = 1 << 14, 1 << 20  # bytes read at once: most requests write less than the first
_CLOCK_TICK = 50_000_000  # ns within which a file system may give two changes of a folder the same time


def logs_of(database: str) -> list[str]:
    """The logs in the folder of a database, by their path in it."""
    try:
        return sorted(f"{_LOGS}/{name}" for name in os.listdir(f"{database}/{_LOGS}") if name.endswith(".wal"))
    except FileNotFoundError:
        return []


class OpenLogs:
    """The logs of the database in the folder `database`. `grown` is asked after each request to the engine, so files
    stay open and their folder is listed only when it has changed. Close it."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._files: dict[str, int] = {}
        self._folder: int | None = None
        self._folder_changed = 0  # time of the newest change seen, in ns
        self._listed = 0  # time before the newest listing, in ns

    def has(self, name: str) -> bool:
        """Whether that log was there when `grown` was last asked."""
        return name in self._files

    def grown(self, known: dict[str, Extent]) -> dict[str, Extent]:
        """The extents of the logs that have grown beyond what is known of them. Raises `OSError`."""
        self._follow()
        found = {}
        for name, file in self._files.items():
            length, checksum = known.get(name, NO_BYTES)
            asked = _FIRST_PART
            while part := os.pread(file, asked, length):
                checksum = zlib.crc32(part, checksum)
                length += len(part)
                found[name] = (length, checksum)
                if len(part) < asked:
                    break
                asked = _NEXT_PARTS
        return found

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        folder, self._folder = self._folder, None
        for file in (*self._files.values(), *([] if folder is None else [folder])):
            os.close(file)
        self._files.clear()

    def _follow(self) -> None:
        """Open the logs that are new, and close those that have gone."""
        if self._folder is not None:
            changed = os.fstat(self._folder).st_mtime_ns
            if changed == self._folder_changed and changed < self._listed - _CLOCK_TICK:
                return
        now = time.time_ns()
        if self._folder is None:
            try:
                self._folder = os.open(f"{self._database}/{_LOGS}", os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                return
        changed = os.fstat(self._folder).st_mtime_ns  # before the listing: what comes meanwhile is listed next time
        present = logs_of(self._database)
        for name in self._files.keys() - set(present):
            os.close(self._files.pop(name))
        for name in present:
            if name not in self._files:
                try:
                    self._files[name] = os.open(f"{self._database}/{name}", os.O_RDONLY)
                except FileNotFoundError:
                    continue  # its contents are in tables by now
        self._folder_changed, self._listed = changed, now
