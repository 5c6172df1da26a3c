"""How a process of a run says that it is alive, waits for the others, and learns that it is over."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from backend.distributed.logs import PLACE
from backend.store import lease
from backend.store.errors import StoreError
from backend.store.records import RunRecord, ServiceRecord, ServiceState
from backend.store.run_record import code_version
from backend.store.store import Store
from simulator.errors import RunFailed, UserError

T = TypeVar("T")

LEADER = "rollout-0"  # the worker that says which step is next
BEAT = 5.0  # seconds between two signs of life
SILENT = 4 * BEAT  # who was not heard for so long is taken for dead
_SHORTEST, _LONGEST = 0.02, 0.5  # seconds between two looks at the store
_GROWTH = 1.06  # from one look to the next: what is waited too long is some 3 % of what was waited
_TELL = 60.0  # seconds of waiting after which the log says for whom

_log = logging.getLogger(__name__)


class RunOver(Exception):
    """The run has ended, well or not: there is nothing more to wait for."""


class Beacon:
    """The sign of life of the process `name` of a run, in a `with` block.

    `replaces` are ids of dead processes, with commas, whose place this one takes at once. Another of that name is dead
    if it was not heard of for `SILENT` seconds by the database's clock and then its beat stands still: that clock may
    have jumped. Raises `UserError` for one that is alive, also later, should that one have been taken for dead in
    error.
    """

    def __init__(
        self, store: Store, run: str, name: str, kind: str, role: str | None = None, replaces: str = ""
    ) -> None:
        self._store = store
        self.run = run
        others = store.services(run)
        found = next((one for one in others if one.name == name), None)
        if found is not None and found.process not in replaces.split(","):
            self._refuse_the_living(found)
        # Of a former life of the run: those who failed then have to start again, not to end this one.
        self._failed_before = {(one.name, one.process, one.beat) for one in others if one.state == "failed"}
        beat = 0 if found is None else found.beat
        self._record = ServiceRecord(run, name, kind, role, code_version(), str(os.getpid()), "starting", None, beat)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._replaced = False
        self._abandoned_since: float | None = None  # on the monotonic clock
        self._thread = threading.Thread(target=self._beat, name=f"beats of {name}", daemon=True)

    def __enter__(self) -> Self:
        with self._lock:
            self._record = replace(self._record, beat=self._record.beat + 1)
            self._store.report_service(self._record)
        _log.info("started: %s, process %s, code %s", self._record.name, self._record.process, code_version())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._replaced:
            return
        if error is None:
            self.say("stopped")
        elif isinstance(error, RunOver):
            self.say("stopped", message="the run is over")
        elif isinstance(error, KeyboardInterrupt):
            self.say("stopped", message="interrupted")
        else:
            self.say("failed", message=str(error)[:500] or type(error).__name__)

    def say(self, state: ServiceState, step: int | None = None, message: str | None = None) -> None:
        """Tell at once what the process does; `step` stays as it was where it is None. Raises as `check`."""
        with self._lock:
            self._report(
                replace(self._record, state=state, step=self._record.step if step is None else step, message=message)
            )
        PLACE.step = self._record.step
        _log.info("%s%s", state, f": {message}" if message else "")
        self.check()

    def check(self) -> None:
        """Raise `UserError` if another process has taken this one's place, which must then write no more."""
        if self._replaced:
            raise UserError(
                f"another process goes by the name {self._record.name} of run {self.run}: this one was thought dead "
                "(was its machine asleep?), and ends without touching what that one does"
            )

    def wait(self, step: int, what: str, look: Callable[[], T | None]) -> T:
        """What `look` finds, as soon as it finds something. Raises `RunOver` when the run ends before, `RunFailed` when
        another process of it has failed."""
        found = look()
        if found is not None:
            return found
        self.say("waiting", step, what)
        pause, began = _SHORTEST, time.monotonic()
        looked = told = began
        while True:
            time.sleep(pause)
            found = look()
            if found is not None:
                self.say("working", step)
                return found
            pause = min(_LONGEST, _GROWTH * pause)
            now = time.monotonic()
            if now - looked > 2 * _LONGEST:
                self.check()
                self._check_run()
                looked = now
            if now - told > _TELL:
                _log.warning("has waited %.0f s %s%s", now - began, what, self._silent())
                told = now

    def _refuse_the_living(self, found: ServiceRecord) -> None:
        """Raise `UserError` if the process that `found` is about is at work."""
        if found.state in ("stopped", "failed"):
            return
        silent = (self._store.now() - found.updated_at) / 1000
        alive = (
            f"{found.name} of run {self.run} is at work already (process {found.process}, heard of {{}}), and two "
            "would do the same work. Stop it, or try again in {} s if it is dead"
        )
        if 0 <= silent < SILENT:
            raise UserError(alive.format(f"{silent:.0f} s ago", f"{SILENT - silent:.0f}"))
        until = time.monotonic() + 2 * BEAT
        while time.monotonic() < until:
            time.sleep(BEAT / 10)
            now = next((one for one in self._store.services(self.run) if one.name == found.name), found)
            if (now.process, now.beat) != (found.process, found.beat):
                if now.state in ("stopped", "failed"):
                    return
                raise UserError(alive.format("just now", f"{SILENT:.0f}"))

    def _check_run(self) -> None:
        run = self._store.run(self.run)
        if run.status != "running" and not self._may_come_back(run):
            raise RunOver
        failed = [
            one
            for one in self._store.services(self.run)
            if one.state == "failed" and (one.name, one.process, one.beat) not in self._failed_before
        ]
        if failed:
            raise RunFailed(f"{failed[0].name} has failed: {failed[0].message}")

    def _may_come_back(self, run: RunRecord) -> bool:
        """Whether the run only seems to be nobody's, since the database's clock has jumped: its owner would say so with
        the next renewal of its lease."""
        if not lease.abandoned(run):
            return False
        if self._abandoned_since is None:
            self._abandoned_since = time.monotonic()
            _log.warning("run %s seems to have lost its owner; waiting whether that is alive", self.run)
        return time.monotonic() - self._abandoned_since < 3 * lease.INTERVAL

    def _silent(self) -> str:
        """Who of the others was not heard of lately, for the log."""
        now = self._store.now()
        gone = [
            f"{one.name} was last heard of {(now - one.updated_at) / 1000:.0f} s ago"
            if one.state not in ("stopped", "failed")
            else f"{one.name} has {one.state}"
            for one in self._store.services(self.run)
            if one.state in ("stopped", "failed") or abs(now - one.updated_at) > 1000 * SILENT
        ]
        return f"; {', '.join(gone)}" if gone else "; all others were heard of lately"

    def _report(self, record: ServiceRecord) -> None:
        """Write the record with the next beat, unless another process has taken the name. Call with the lock held."""
        if self._replaced:
            return
        before = self._record.beat
        self._record = replace(record, beat=before + 1)
        self._replaced = not self._store.beat_service(self._record, before)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                with self._lock:
                    self._report(self._record)
            except StoreError as error:  # the next request of the process itself tells its caller
                _log.warning("no sign of life: %s", error)
