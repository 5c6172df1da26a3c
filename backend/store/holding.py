"""A folder's store as held by this process: the lock, the engine, and the server by which other processes use it.

At any time one process holds a folder, and all others reach it through that one. When the holder ends, the first of
the others to notice holds it from then on. All stores of one process share its holding, which ends with the last one.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from backend.store.engine import DatabaseEngine
from backend.store.errors import StoreDiskError, StoreError
from backend.store.local_server import LocalServer, withdraw
from backend.store.lock import FolderLock
from backend.store.manifest import DATABASE_FOLDER, Known, needs_settling, take_manifest, write_digests
from backend.store.schema import check_version, make_database_folder

RESERVE_FILE = "reserve"
_RESERVE = 500_000  # bytes kept for the deletion that makes room on a full disk; files of the run go first
_ROOM = 1_000_000  # bytes that the engine needs to make a new database: without them it never returns

_log = logging.getLogger(__name__)

# One thread at a time takes up, joins or ends a holding of this process.
_changing = threading.RLock()
_holdings: dict[Path, FolderHolding] = {}
_parents: list[FolderHolding] = []  # of the process that this one was forked from: neither used nor ended here


def _forget_inherited() -> None:
    global _changing
    _changing = threading.RLock()  # a thread of the parent may have had it
    _parents.extend(_holdings.values())
    _holdings.clear()


os.register_at_fork(after_in_child=_forget_inherited)


class FolderHolding:
    """Use `hold`. `engine` is shared by all users of this process; `server` is None where nobody else may use it."""

    def __init__(self, folder: Path, lock: FolderLock, engine: DatabaseEngine, known: Known) -> None:
        self.engine = engine
        self.server: LocalServer | None = None
        self._folder = folder
        self._lock = lock
        self._known = known
        self._users = 1
        self._process = os.getpid()

    def join(self) -> None:
        """One more uses it; each must `leave`."""
        self._users += 1

    def leave(self) -> None:
        """One less uses it. With the last one it ends: no more clients, no open database, no lock on the folder."""
        with _changing:
            self._users -= 1
            if self._users or self._process != os.getpid():
                return
            _holdings.pop(self._folder, None)
            try:
                if self.server is not None:
                    self.server.stop()
            finally:
                try:
                    self.engine.close()
                    self._note_closed()
                finally:
                    self._lock.release()

    def _note_closed(self) -> None:
        try:
            write_digests(self._folder / DATABASE_FOLDER, self._known)
            _make_reserve(self._folder)
        except OSError as error:
            _log.warning("store %s: no manifest was written (%s): the next opening compares nothing", self._folder,
                         error)  # fmt: skip


def hold(folder: Path, prepare: Callable[[DatabaseEngine], object], exclusive: bool = False) -> FolderHolding:
    """Hold the folder and serve it, or join the holding of this process.

    `prepare` brings a database that was just opened into the state in which others may use it. It comes before the
    files for others are written: on a disk that these fill, the engine never returns from a database's first record.
    An `exclusive` holding serves nobody and never joins. Raises `FolderHeld` if another process holds the folder,
    RuntimeError with the engine's words if that cannot open it, `StoreError` for all else.
    """
    with _changing:
        folder = folder.resolve()
        if (held := _holdings.get(folder)) is not None and not exclusive:
            held.join()
            return held
        url = folder_url(folder)
        check_version(folder)
        lock = FolderLock(folder)
        try:
            holding = FolderHolding(folder, lock, *_open(folder, url, lock))
        except BaseException:
            lock.release()
            raise
        try:
            prepare(holding.engine)
            if not exclusive:
                holding.server = _serve(folder, holding)
        except BaseException:
            holding.leave()
            raise
        if not exclusive:
            _holdings[folder] = holding
        return holding


def _open(folder: Path, url: str, lock: FolderLock) -> tuple[DatabaseEngine, Known]:
    """The engine on the database of a folder that was just locked, and what is known of its files."""
    if shutil.disk_usage(folder).free < _RESERVE:
        (folder / RESERVE_FILE).unlink(missing_ok=True)
    lock.sign()
    withdraw(folder)  # of a holder that was killed
    if not (folder / DATABASE_FOLDER).exists():
        if shutil.disk_usage(folder).free < _ROOM:
            raise StoreDiskError(f"store {folder} cannot be made: the disk is full; free some space")
        make_database_folder(folder)
    known = take_manifest(folder)
    if known is None and needs_settling(folder):
        # After a kill the engine cuts the torn end of its log, and then goes on writing where it will not read again
        # (SDK 3.0.0b10, measured): what is acknowledged then is lost with the next kill. Closing it once, which puts
        # the log into tables, avoids that.
        DatabaseEngine(url).close()
    return DatabaseEngine(url), known or {}


def _serve(folder: Path, holding: FolderHolding) -> LocalServer | None:
    try:
        return LocalServer(folder, holding.engine.execute)
    except OSError as error:
        _log.info("store %s is not served to other programs (%s)", folder, error)
        return None


def _make_reserve(folder: Path) -> None:
    """Reserve the space that a deletion needs, where the disk has several times as much."""
    path = folder / RESERVE_FILE
    if not path.exists() and shutil.disk_usage(folder).free > 20 * _RESERVE:
        with path.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE)


def folder_url(folder: Path) -> str:
    """The address by which the engine opens a folder. Raises `StoreError` for a path that it would misread."""
    path = folder.absolute() / DATABASE_FOLDER
    if "?" in str(path):  # it would open the folder whose name ends there, which other stores may share
        raise StoreError(f"store {folder}: the engine cannot use a path with '?' in it ({path}); choose another folder")
    return f"surrealkv://{path}"
