"""The embedded engine of one database, shared by all users of the process that holds the store.

One request runs at a time: concurrent transactions lose each other's leases (SDK 3.0.0b10, measured). The engine holds
the interpreter's lock while it works, so no request may take long.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

from surrealdb.data import cbor
from surrealdb_embedded import SyncEmbeddedDB

NAMESPACE, DATABASE = "cryptosentinel", "main"
DISK_TROUBLE = "IO error"  # part of the engine's message when the disk fails it
_SCHEME = "surrealkv://"
_TABLES = "sstables"  # the engine's folder of sorted tables
_LARGE = 32_000_000  # bytes of a table that takes half a second to merge
_IDLE, _MOST = 4, 12  # openings in which nothing moved, after which nothing is left to merge; openings in all

# A forked child has none of the engine's threads. Dropping an inherited engine there would wait for them for ever, so
# the garbage collector leaves alone all that the parent had.
os.register_at_fork(after_in_child=gc.freeze)


class DatabaseEngine:
    """An open engine. Its methods may be called from any thread."""

    def __init__(self, url: str) -> None:
        """Open the database at `url`: `mem://` or `surrealkv:///folder`. Raises RuntimeError in its words."""
        self._url = url
        self._one_at_a_time = threading.Lock()
        self._tables_before = self._large_tables()
        self._database = self._opened()

    def execute(self, request: bytes) -> bytes:
        """The answer to one request, both in CBOR. Raises RuntimeError or ValueError with the engine's words."""
        with self._one_at_a_time:
            return bytes(self._database.execute(request))

    def close(self) -> None:
        """Close the database after the request under way; a second call does nothing.

        Closing writes what is new into one table, which a later opening merges: seconds and a gigabyte of memory for a
        table of 800 MB, and twice. So a writer of a large table also has it merged.
        """
        with self._one_at_a_time:
            self._database.close()
            if self._large_tables() - self._tables_before:
                self._merge()

    def _merge(self) -> None:
        """Open the closed database and close it again until the engine has nothing left to merge."""
        idle = openings = 0
        while idle < _IDLE and openings < _MOST:
            before = self._large_tables()
            try:
                self._opened().close()
            except RuntimeError:
                return  # it was closed in order: whoever opens it next gets the engine's message
            idle = idle + 1 if self._large_tables() == before else 0
            openings += 1

    def _opened(self) -> SyncEmbeddedDB:
        database = SyncEmbeddedDB(self._url)
        database.connect()
        database.execute(cbor.encode({"id": "store", "method": "use", "params": [NAMESPACE, DATABASE]}))
        return database

    def _large_tables(self) -> set[str]:
        found: set[str] = set()
        if self._url.startswith(_SCHEME):
            with suppress(FileNotFoundError), os.scandir(Path(self._url.removeprefix(_SCHEME)) / _TABLES) as tables:
                found = {table.name for table in tables if table.stat().st_size > _LARGE}
        return found
