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
from typing import Any

from surrealdb import RecordID

from backend.store.connection import Connection
from backend.store.errors import StoreError
from backend.store.lock import UserLock, user_alive
from backend.store.records import RunRecord

INTERVAL = 20.0  # seconds between renewals
_SECONDS = 150.0  # how long a lease lasts
_ABANDONED = "its process ended without saying so"
_TAKEN = "taken by another"
# A run is begun in one transaction; sent again it does no harm, since then the lease has the token of the first time.
_BEGIN = (
    "BEGIN; IF (SELECT VALUE token FROM ONLY $key) != $call AND {taken} {{ THROW '" + _TAKEN + "' }};"
    "UPSERT $id CONTENT $row RETURN NONE; UPSERT $key SET run = $run, owner = $owner, token = $call, "
    "expires_at = time::millis(time::now()) + $length RETURN NONE; COMMIT"
)
_IS_THERE = "(SELECT VALUE id FROM ONLY $id) != NONE"
_IS_TAKEN = "(SELECT VALUE owner FROM ONLY $key) != $former"
_HERE = "here-"  # so the names of owners begin that use the folder, and hold a lock in it

_log = logging.getLogger(__name__)


class Leases:
    """The leases of one open store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._owner = uuid.uuid4().hex if connection.folder is None else f"{_HERE}{uuid.uuid4().hex}"
        self._alive: UserLock | None = None
        self._milliseconds = int(1000 * _SECONDS)
        self._runs: set[str] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, record: RunRecord, row: dict[str, Any], former: str | None) -> None:
        """Write the record of a run; while it runs it is ours until `drop`.

        `former` is the owner in its lease, empty where it has none, of a run that is taken over; None for a new run.
        Whether that still holds is checked in the transaction that writes. The token of this call lets it pass when it
        is sent again because its answer was lost. Raises `StoreError` where another program was faster, or where the
        run is there already.
        """
        running = record.status == "running"
        folder = self._connection.folder
        if running and folder is not None and self._alive is None:
            self._alive = UserLock(folder, self._owner)
        parameters = {
            "id": row["id"], "row": row, "key": RecordID("lease", [record.run]), "run": record.run,
            "owner": self._owner, "length": self._milliseconds, "former": former or None, "call": uuid.uuid4().hex,
        }  # fmt: skip
        taken = _IS_THERE if former is None else _IS_TAKEN
        try:
            self._connection.query(_BEGIN.format(taken=taken), parameters)
        except StoreError as error:
            if _TAKEN not in str(error):
                raise
            raise StoreError(
                f"run {record.run} is in store {self._connection.name} already: nothing was written"
                if former is None
                else f"another program has just taken over run {record.run}: nothing was written"
            ) from error
        if not running:
            self.drop(record.run)
        elif folder is not None or self._connection.remote:
            self._runs.add(record.run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_all, name="leases of runs", daemon=True)
                self._thread.start()

    def owner_of(self, run: str) -> tuple[str, bool]:
        """The owner in the lease of a run, empty where it has none, and whether that is another one at work on it.

        One who uses the same folder shows it by a lock. The lease of any other is watched rather than compared with a
        clock, which may have jumped: that takes up to two and a half intervals.
        """
        folder = self._connection.folder
        owner = str(next(iter(first := self._lease_of(run)), [""])[0])
        if not first or owner == self._owner:
            return owner, False
        if folder is not None and owner.startswith(_HERE):
            return owner, user_alive(folder, owner)
        until = time.monotonic() + 2.5 * INTERVAL
        while time.monotonic() < until:
            time.sleep(INTERVAL / 40)
            now = self._lease_of(run)
            if now != first:
                return owner, bool(now)  # it may have ended just now
        return owner, False

    def _lease_of(self, run: str) -> list[list[object]]:
        found: list[list[object]] = self._connection.query(
            "SELECT VALUE [owner, expires_at] FROM $key", {"key": RecordID("lease", [run])}
        )
        return found

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


def mark_abandoned(connection: Connection) -> None:
    """Mark runs that are 'running' and nobody's as interrupted: those whose owner used the same folder and has died,
    and those of other owners whose lease has run out."""
    folder = connection.folder
    living: list[str] = []
    dead: list[str] = []
    owners = connection.query(
        "LET $running = SELECT VALUE run FROM run WHERE status = 'running';"
        "SELECT VALUE owner FROM lease WHERE run IN $running"
    )
    if not owners:
        return
    for owner in {str(owner) for owner in owners if folder is not None and str(owner).startswith(_HERE)}:
        (living if folder is not None and user_alive(folder, owner) else dead).append(owner)
    connection.query(
        "LET $over = SELECT VALUE run FROM lease WHERE owner IN $dead "
        "OR (owner NOT IN $living AND expires_at < time::millis(time::now()));"
        "UPDATE run SET status = 'interrupted', message = $abandoned "
        "WHERE status = 'running' AND run IN $over RETURN NONE",
        {"abandoned": _ABANDONED, "living": living, "dead": dead},
    )
