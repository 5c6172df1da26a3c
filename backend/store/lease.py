"""Who a running run belongs to, so that the run of a process that died does not stay 'running' for ever.

Each process renews a lease on its runs, and a run whose lease has run out is nobody's. Times are the database's own, so
the clocks of the machines need not agree. Those who use a folder hold a lock in it besides (`lock.py`), so the others
see at once when one of them has died.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid

from surrealdb import RecordID

from backend.store.connection import Connection
from backend.store.errors import StoreError
from backend.store.lock import UserLock, user_alive
from backend.store.migration import migrate
from backend.store.records import RunRecord

INTERVAL = 20.0  # seconds between renewals
_ABANDONED = "its process ended without saying so"
_HERE = "here-"  # so the names of owners begin that use the folder, and hold a lock in it

_log = logging.getLogger(__name__)


class Leases:
    """The leases of one open store; `seconds` is how long a lease lasts."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._owner = uuid.uuid4().hex if connection.folder is None else f"{_HERE}{uuid.uuid4().hex}"
        self._alive: UserLock | None = None
        self._milliseconds = int(1000 * seconds)
        self._runs: set[str] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, run: str) -> None:
        """The run is ours until `drop`. A store in memory is its opener's alone."""
        key = RecordID("lease", [run])
        folder = self._connection.folder
        if folder is None and not self._connection.remote:
            return
        if folder is not None and self._alive is None:
            self._alive = UserLock(folder, self._owner)
        self._connection.query(
            "UPSERT $key SET run = $run, owner = $owner, expires_at = time::millis(time::now()) + $length RETURN NONE",
            {"key": key, "run": run, "owner": self._owner, "length": self._milliseconds},
        )
        self._runs.add(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_all, name="leases of runs", daemon=True)
            self._thread.start()

    def alive_elsewhere(self, run: str) -> bool:
        """Whether somebody else is at work on the run. One who uses the same folder shows it by a lock. The lease of
        any other is watched rather than compared with a clock, which may have jumped: that takes up to two and a half
        intervals."""

        def look() -> list[list[object]]:
            found: list[list[object]] = self._connection.query(
                "SELECT VALUE [owner, expires_at] FROM lease WHERE run = $run", {"run": run}
            )
            return found

        first = look()
        if not first or first[0][0] == self._owner:
            return False
        owner, folder = str(first[0][0]), self._connection.folder
        if folder is not None and owner.startswith(_HERE):
            return user_alive(folder, owner)
        until = time.monotonic() + 2.5 * INTERVAL
        while time.monotonic() < until:
            time.sleep(INTERVAL / 40)
            now = look()
            if now != first:
                return bool(now)  # it may have ended just now
        return False

    def drop(self, run: str) -> None:
        """The run has ended, or is somebody else's."""
        self._runs.discard(run)
        self._connection.query("DELETE $key RETURN NONE", {"key": RecordID("lease", [run])})

    def close(self) -> None:
        """Renew no more; what still runs counts as abandoned, at the latest when its lease has run out."""
        self._over.set()
        if self._alive is not None:
            self._alive.release()

    def _renew_all(self) -> None:
        while not self._over.wait(INTERVAL):
            for run in tuple(self._runs):
                try:
                    self._renew(run)
                except StoreError as error:  # whoever uses the store next is told; a thread has nobody to tell
                    if not self._over.is_set():
                        _log.warning("the lease of run %s was not renewed: %s", run, error)

    def _renew(self, run: str) -> None:
        """Renew unless another has taken it over. Who was thought dead, as after a laptop's sleep, is alive again."""
        self._connection.query(
            "BEGIN; UPDATE $key SET expires_at = time::millis(time::now()) + $length WHERE owner = $owner RETURN NONE;"
            "UPDATE $run SET status = 'running', message = NONE "
            "WHERE status = 'interrupted' AND message = $abandoned AND $key.owner = $owner RETURN NONE; COMMIT",
            {
                "key": RecordID("lease", [run]),
                "run": RecordID("run", [run]),
                "owner": self._owner,
                "length": self._milliseconds,
                "abandoned": _ABANDONED,
            },
        )


def abandoned(run: RunRecord) -> bool:
    """Whether the run counts as interrupted only because its lease ran out; its owner, if alive, takes that back."""
    return run.status == "interrupted" and run.message == _ABANDONED


def prepare_database(connection: Connection) -> None:
    """Bring a database that this process has just opened into the state in which others may use it: of the newest
    version, with no run that belongs to a process that died."""
    migrate(connection)
    mark_abandoned(connection, whole_folder=True)


def mark_abandoned(connection: Connection, whole_folder: bool) -> None:
    """Mark runs that are 'running' and nobody's as interrupted: those whose owner uses the same folder and has died,
    those of other owners whose lease has run out, and, where the caller has just opened the whole folder, those
    without a lease."""
    folder, living, dead = connection.folder, [], []
    if folder is not None:
        owners = connection.query(
            "LET $running = SELECT VALUE run FROM run WHERE status = 'running';"
            "SELECT VALUE owner FROM lease WHERE run IN $running"
        )
        here = {str(owner) for owner in owners if str(owner).startswith(_HERE)}
        living = [owner for owner in here if user_alive(folder, owner)]
        dead = [owner for owner in here if owner not in living]
    connection.query(
        "LET $running = SELECT VALUE run FROM run WHERE status = 'running';"
        "LET $leased = SELECT VALUE run FROM lease WHERE run IN $running;"
        "LET $expired = SELECT VALUE run FROM lease WHERE run IN $running AND owner NOT IN $living "
        "AND (owner IN $dead OR expires_at < time::millis(time::now()));"
        "UPDATE run SET status = 'interrupted', message = $abandoned WHERE status = 'running' "
        "AND (run IN $expired OR ($whole AND run NOT IN $leased)) RETURN NONE",
        {"whole": whole_folder, "abandoned": _ABANDONED, "living": living, "dead": dead},
    )
