"""A folder's store as held by this process: the lock, the engine, and the gateway by which other processes use it.

At any time one process holds a folder, and all others reach it through that one. When the holder ends, whichever of
them comes first holds it from then on. All stores of one process share its holding, which ends with the last of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from backend.store.errors import StoreError
from backend.store.folder_swap import finish_swap, refuse_former_engine
from backend.store.gateway import address
from backend.store.gateway.credentials import random_account
from backend.store.gateway.engine import StoreEngine
from backend.store.gateway.host import HostedGateway, Listen, log_line
from backend.store.integrity.acknowledged import Acknowledged
from backend.store.integrity.snapshot import DatabaseSnapshot, remove_snapshots, take_snapshot
from backend.store.lock import FolderLock, refuse_links
from backend.store.sharing.objects import OBJECTS_FOLDER, ObjectFolder, answer_object_call

LOCKED = "already locked"  # so the engine says that a process has just begun or not quite ended

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
    """Use `hold`. `engine` is for all in this process; `gateway` is there once it serves."""

    def __init__(self, folder: Path, lock: FolderLock, engine: StoreEngine, acknowledged: Acknowledged) -> None:
        self.engine = engine
        self.gateway: HostedGateway | None = None
        self._folder = folder
        self._lock = lock
        self._acknowledged = acknowledged
        self._users = 1
        self._process = os.getpid()

    def verify_files(self) -> None:
        """Compare every byte of the database's finished files. Raises `StoreError` for one that is damaged."""
        self._acknowledged.verify()

    def snapshot(self) -> DatabaseSnapshot:
        """The database's files as they are between two requests. Raises `StoreError`, and RuntimeError in the engine's
        words."""
        return self.engine.while_closed(lambda: take_snapshot(self._folder))

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that this one was forked from."""
        return self._process != os.getpid()

    def join(self) -> None:
        """One more uses it; each must `leave`."""
        self._users += 1

    def serve(self, listen: Listen, say: Callable[[str], None] | None) -> None:
        """Let other processes use it. Raises `StoreError`."""
        writer, reader = random_account("writer"), random_account("reader", reads_only=True)
        accounts = [writer, reader, *([] if listen.account is None else [listen.account])]
        objects = partial(answer_object_call, ObjectFolder(self._folder / OBJECTS_FOLDER))
        gateway = HostedGateway(self.engine, listen, accounts, say or log_line, objects, lambda: self.snapshot().text())
        try:
            address.publish(self._folder, address.Address(self._lock.launch, gateway.url, writer, reader))
        except StoreError:
            gateway.stop()
            raise
        self.gateway = gateway

    def leave(self) -> None:
        """One less uses it. With the last one it ends: no more clients, no open database, no lock on the folder."""
        with _changing:
            self._users -= 1
            if self._users or self.inherited:
                return
            _holdings.pop(self._folder, None)
            try:
                if self.gateway is not None:
                    address.withdraw(self._folder)
                    self.gateway.stop()
                self.engine.close()
                self._acknowledged.end()
            finally:
                self._acknowledged.abandon()
                self._lock.release()


def hold(
    folder: Path,
    url: str,
    prepare: Callable[[FolderHolding], None],
    listen: Listen | None = None,
    say: Callable[[str], None] | None = None,
    exclusive: bool = False,
) -> FolderHolding:
    """Hold the folder, whose database has that address, and serve it; or join the holding of this process.

    `prepare` brings a database that was just opened into the state in which others may use it. `listen` is for who
    serves it on purpose, `exclusive` for who serves nobody; such a one never joins. Raises `FolderHeld` if another
    process holds it, RuntimeError in the engine's words if that cannot open it, `StoreError` for all else.
    """
    with _changing:
        folder = folder.resolve()
        if (held := _holdings.get(folder)) is not None and listen is None and not exclusive:
            held.join()
            return held
        lock = FolderLock(folder)
        engine: StoreEngine | None = None
        acknowledged: Acknowledged | None = None
        try:
            refuse_links(folder, OBJECTS_FOLDER)
            address.withdraw(folder)  # of one that was killed
            _finish_swap(folder)
            remove_snapshots(folder)
            refuse_former_engine(folder)
            acknowledged = Acknowledged(folder)
            acknowledged.before_opening()
            if acknowledged.has_tail:
                _settle(url, acknowledged)
            engine = StoreEngine(url, acknowledged.note)
            acknowledged.begin()
            holding = FolderHolding(folder, lock, engine, acknowledged)
            prepare(holding)
            if not exclusive:
                holding.serve(listen or Listen(), say)
        except BaseException:
            if engine is not None:
                engine.close()
            if acknowledged is not None and engine is not None:
                acknowledged.end()
            elif acknowledged is not None:
                acknowledged.abandon()
            lock.release()
            raise
        if not exclusive:
            _holdings[folder] = holding
        return holding


def _settle(url: str, acknowledged: Acknowledged) -> None:
    """Let the engine put into tables what a log holds that does not end as it should.

    Once it has cut the end of a log it goes on writing to the file that it has replaced, and behind zeros it writes
    where it will not read again (surrealdb-embedded 3.0.0b10, tried): what is acknowledged then is lost with the next
    kill. After an end in order there is no such log. Raises `StoreError`, and RuntimeError in the engine's words.
    """
    try:
        engine = StoreEngine(url)
    except RuntimeError as error:  # some ends it refuses; without a note nobody knows where the end begins
        if not acknowledged.noted or LOCKED in str(error):
            raise
        acknowledged.cut_tails()
        engine = StoreEngine(url)
    try:
        acknowledged.check_opened()
    finally:
        engine.close()
    acknowledged.check_settled()


def _finish_swap(folder: Path) -> None:
    try:
        finish_swap(folder)
    except OSError as error:
        raise StoreError(
            f"store {folder}: what a compaction left cannot be put in place ({error.strerror}): see who owns "
            f"{error.filename or folder}"
        ) from error
