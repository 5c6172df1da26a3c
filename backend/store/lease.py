"""Who a running run belongs to, so that the run of a process that died does not stay 'running' for ever.

A folder is its opener's alone (`lock.py`), so when it is opened, a run that somebody had in there is nobody's any more.
Behind a server several processes live side by side: each renews a lease on its runs, and a run whose lease has run out
is nobody's. Times are the database's own, so the clocks of the machines need not agree.
"""

from __future__ import annotations

import logging
import threading
import time

from surrealdb import RecordID

from backend.store.connection import Connection
from backend.store.errors import StoreError
from backend.store.records import RunRecord

INTERVAL = 20.0  # seconds between renewals
_ABANDONED = "its process ended without saying so"

_log = logging.getLogger(__name__)


class Leases:
    """The leases of one open store. `owner` tells it from all others; `seconds` is how long a lease lasts."""

    def __init__(self, connection: Connection, owner: str, seconds: float) -> None:
        self._connection = connection
        self._owner = owner
        self._milliseconds = int(1000 * seconds)
        self._runs: set[str] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, run: str) -> None:
        """The run is ours: of a server's store until `drop`, of a folder as long as the folder is."""
        key = RecordID("lease", [run])
        if not self._connection.remote:
            self._connection.query("DELETE $key RETURN NONE", {"key": key})
            return
        self._connection.query(
            "UPSERT $key SET run = $run, owner = $owner, expires_at = time::millis(time::now()) + $length RETURN NONE",
            {"key": key, "run": run, "owner": self._owner, "length": self._milliseconds},
        )
        self._runs.add(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_all, name="leases of runs", daemon=True)
            self._thread.start()

    def alive_elsewhere(self, run: str) -> bool:
        """Whether somebody else renews a lease on the run. It is watched rather than compared with a clock, which may
        have jumped: that takes up to two and a half intervals."""

        def look() -> list[list[object]]:
            found: list[list[object]] = self._connection.query(
                "SELECT VALUE [owner, expires_at] FROM lease WHERE run = $run", {"run": run}
            )
            return found

        first = look()
        if not first or first[0][0] == self._owner:
            return False
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
        """Renew no more; what still runs counts as abandoned when its lease has run out."""
        self._over.set()

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


def mark_abandoned(connection: Connection, whole_folder: bool) -> None:
    """Mark runs that are 'running' and nobody's as interrupted: those whose lease has run out and, where the caller
    holds the whole folder, those without a lease."""
    connection.query(
        "LET $running = SELECT VALUE run FROM run WHERE status = 'running';"
        "LET $leased = SELECT VALUE run FROM lease WHERE run IN $running;"
        "LET $expired = SELECT VALUE run FROM lease WHERE run IN $running AND expires_at < time::millis(time::now());"
        "UPDATE run SET status = 'interrupted', message = $abandoned WHERE status = 'running' "
        "AND (run IN $expired OR ($whole AND run NOT IN $leased)) RETURN NONE",
        {"whole": whole_folder, "abandoned": _ABANDONED},
    )
