"""The heartbeat of a process of a run: it reports that it is alive, waits for others, and sees the end of the run."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

from backend.distributed.logs import set_service, set_step
from backend.store import lease
from backend.store.errors import StoreError
from backend.store.records import RunRecord, ServiceRecord, ServiceState
from backend.store.run_record import BY_HAND, code_version
from backend.store.sharing.fences import Fence
from backend.store.store import Store
from simulator.errors import RunFailed, UserError

T = TypeVar("T")

COORDINATOR = "rollout-0"  # the rollout worker that announces which step is next
BEAT_SECONDS = 5.0  # between two heartbeats
DEAD_AFTER = 4 * BEAT_SECONDS  # seconds without a heartbeat after which a process counts as dead
LEADERLESS_SECONDS = 3600.0  # for which the processes of a run that is led by hand wait for another leader
ENDED = ("stopped", "failed")  # states of a process that has ended
OVER = ("finished", "deleting")  # states of a run that nobody goes on with
_SHORTEST, _LONGEST = 0.02, 0.5  # seconds between two queries of the store
_GROWTH = 1.06  # of the time between two queries, so that a wait ends at most some 3 % late
_STUCK_FIRST = 6 * 3600.0  # seconds that a process's first piece of work may take
_STUCK_LEAST, _STUCK_TIMES = 600.0, 10.0  # later ones: seconds in any case, and times the longest one before
_LOG_AFTER = 60.0  # seconds of waiting after which the log names what is waited for

_log = logging.getLogger(__name__)


class NameTaken(UserError):
    """Another process that is alive has the name."""


class RunOver(Exception):
    """The run has ended, well or not: there is nothing more to wait for."""


@dataclass(frozen=True)
class StepAnnouncement:
    """The stage of the coordinator's step, which the other workers read in its message, and how many steps of the stage
    are done. They may begin with the step as soon as its weights are published."""

    stage: int
    stage_steps: int

    def text(self) -> str:
        """The beginning of the coordinator's message."""
        return f"stage {self.stage}, {self.stage_steps} steps in"

    @classmethod
    def parse(cls, message: str) -> Self | None:
        """The inverse of `text`, None for a message that announces nothing."""
        match = re.match(r"stage (\d+), (\d+) steps in", message)
        return cls(int(match[1]), int(match[2])) if match else None


class Heartbeat:
    """The heartbeat of the process `name` of a run, for a `with` block.

    `replaces` are ids of dead processes, with commas between them: this process takes their place at once. Any other
    process of the same name is dead if its last heartbeat is `DEAD_AFTER` seconds old by the database's clock and none
    follows while this one watches, as that clock may have jumped. Raises `NameTaken` for one that is alive; `check`
    raises later, should it have been taken for dead in error. With `standby` one that is alive is watched instead,
    until it ends or has been silent for `DEAD_AFTER` seconds of this process's own clock: `RunOver` if the run ends.

    The name is taken in one step of the database: of several that want it one gets it. `store` is the store for all
    that this process writes: the database refuses it from the moment on at which another process has the name.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        name: str,
        kind: str,
        role: str | None = None,
        replaces: str = "",
        standby: bool = False,
    ) -> None:
        self._store = store
        self.run = run
        self.process = f"{os.getpid()}@{socket.gethostname()}/{secrets.token_hex(4)}"
        self.store = store.fenced(Fence(ServiceRecord.table, (run, name), self.process))
        self._by_hand = BY_HAND in store.run(run).config
        self._standby = standby
        self._record = ServiceRecord(run, name, kind, role, code_version(), self.process, "starting", None, 0)
        former = self._present()
        if former is not None and former.process.partition("@")[0] not in replaces.split(","):
            former = self._outlived(former) if standby else self._require_dead(former)
        self._former = former
        # Before the run was resumed: processes that failed then are started again, and do not end the run now.
        self._failed_before = {_identity(service) for service in store.services(run) if service.state == "failed"}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reported_at, self._longest_work = time.monotonic(), 0.0
        self._announced: tuple[int, StepAnnouncement] | None = None
        self._replaced = False
        self._abandoned_since: float | None = None  # on the monotonic clock
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat of {name}", daemon=True)

    @property
    def name(self) -> str:
        """The name that the process goes by."""
        return self._record.name

    def __enter__(self) -> Self:
        while not self._take_name():
            taker = self._present()
            if not self._standby or taker is None:
                raise NameTaken(
                    f"another process has just begun as {self._record.name} of run {self.run}: start this one again "
                    "if that was not meant"
                )
            self._former = self._outlived(taker)
        set_service(self._record.name)
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
            self.report("stopped")
        elif isinstance(error, RunOver):
            self.report("stopped", message="the run is over")
        elif isinstance(error, KeyboardInterrupt):
            self.report("stopped", message="interrupted")
        else:
            self.report("failed", message=str(error)[:500] or type(error).__name__)

    def announce(self, step: int, announcement: StepAnnouncement) -> None:
        """Report work at `step`, and what the step is: all reports of that step begin with it. Raises as `check`."""
        if (self._announced, self._record.step) != ((step, announcement), step):
            self._announced = (step, announcement)
            self.report("working", step)

    def report(self, state: ServiceState, step: int | None = None, message: str | None = None) -> None:
        """Report at once what the process does; `step` stays as it was where it is None. Raises as `check`."""
        step = self._record.step if step is None else step
        if self._announced is not None and self._announced[0] == step and state not in ENDED:
            message = ": ".join([self._announced[1].text(), *([] if message is None else [message])])
        with self._lock:
            now = time.monotonic()
            if self._record.state == "working":
                self._longest_work = max(self._longest_work, now - self._reported_at)
            self._reported_at = now
            self._write(replace(self._record, state=state, step=step, message=message))
        set_step(self._record.step)
        _log.info("%s%s", state, f": {message}" if message else "")
        self.check()

    def check(self) -> None:
        """Raise `UserError` if another process has taken this one's place, which must then write no more."""
        if self._replaced:
            raise UserError(
                f"another process goes by the name {self._record.name} of run {self.run}: this one was thought dead "
                "(was its machine asleep?), and ends without touching what that one does"
            )

    def wait(self, step: int, what: str, probe: Callable[[], T | None]) -> T:
        """Call `probe` again and again until its result is not None; that result. Raises `RunOver` when the run ends
        before, `RunFailed` when another process of it has failed."""
        result = probe()
        if result is not None:
            if self._record.step != step or self._record.state == "starting":
                self.report("working", step)
            return result
        self.report("waiting", step, what)
        pause, began = _SHORTEST, time.monotonic()
        last_check = last_log = began
        while True:
            time.sleep(pause)
            result = probe()
            if result is not None:
                self.report("working", step)
                return result
            pause = min(_LONGEST, _GROWTH * pause)
            now = time.monotonic()
            if now - last_check > 2 * _LONGEST:
                self.check()
                self._check_run()
                last_check = now
            if now - last_log > _LOG_AFTER:
                _log.warning("has waited %.0f s %s%s", now - began, what, self._silent_services())
                last_log = now

    def _take_name(self) -> bool:
        """Take the name from who had it; False if another has been faster."""
        with self._lock:
            self._record = replace(self._record, beat=(0 if self._former is None else self._former.beat) + 1)
            return self._store.take_service(self._record, self._former)

    def _require_dead(self, former: ServiceRecord) -> ServiceRecord:
        """The last record of a process that is dead. Raises `NameTaken` if the one that `former` is about is alive."""
        if former.state in ENDED:
            return former
        age = (self._store.now() - former.updated_at) / 1000
        alive = (
            f"{former.name} of run {self.run} is at work already (process {former.process}, last heartbeat {{}}), and "
            "two would do the same work. Stop it, or try again in {} s if it is dead"
        )
        if 0 <= age < DEAD_AFTER:
            raise NameTaken(alive.format(f"{age:.0f} s ago", f"{DEAD_AFTER - age:.0f}"))
        until = time.monotonic() + 2 * BEAT_SECONDS
        while time.monotonic() < until:
            time.sleep(BEAT_SECONDS / 10)
            now = self._present() or former
            if (now.process, now.beat) != (former.process, former.beat):
                if now.state in ENDED:
                    return now
                raise NameTaken(alive.format("just now", f"{DEAD_AFTER:.0f}"))
        return former

    def _outlived(self, former: ServiceRecord) -> ServiceRecord:
        """Wait until whoever has the name has ended or gone silent; its last record."""
        _log.info("%s is at work (process %s); standing by to take its place", former.name, former.process)
        silent_since = time.monotonic()
        while former.state not in ENDED and time.monotonic() - silent_since < DEAD_AFTER:
            time.sleep(BEAT_SECONDS / 10)
            now = self._present() or former
            if (now.process, now.beat) != (former.process, former.beat):
                former, silent_since = now, time.monotonic()
            if (status := self._store.run(self.run).status) in OVER:
                _log.info("the run is %s", status)
                raise RunOver
        return former

    def _present(self) -> ServiceRecord | None:
        """The present record of this process's name."""
        services = self._store.services(self.run)
        return next((service for service in services if service.name == self._record.name), None)

    def _check_run(self) -> None:
        """Raise `RunOver` if the run has ended, `RunFailed` if another process of it has failed."""
        run = self._store.run(self.run)
        if run.status == "running":
            self._abandoned_since = None
        elif not self._may_come_back(run):
            raise RunOver
        for service in self._store.services(self.run):
            if self._by_hand and service.kind == "rollout" and service.name != COORDINATOR:
                continue  # the others roll out what was left to one that could not
            if service.state == "failed" and _identity(service) not in self._failed_before:
                raise RunFailed(f"{service.name} has failed: {service.message}")

    def _may_come_back(self, run: RunRecord) -> bool:
        """Whether the run may only seem to have lost its owner, since the database's clock has jumped. Then the owner
        takes it back with the next renewal of its lease."""
        if not lease.abandoned(run):
            return False
        if self._abandoned_since is None:
            self._abandoned_since = time.monotonic()
            _log.warning("run %s seems to have lost its owner; waiting whether the owner comes back", self.run)
        return time.monotonic() - self._abandoned_since < (LEADERLESS_SECONDS if self._by_hand else 3 * lease.INTERVAL)

    def _silent_services(self) -> str:
        """Which other processes have ended or have not reported lately, for the log."""
        now, silent = self._store.now(), []
        for service in self._store.services(self.run):
            if service.state in ENDED:
                silent.append(f"{service.name} has {service.state}")
            elif abs(now - service.updated_at) > 1000 * DEAD_AFTER:
                silent.append(f"{service.name} last reported {(now - service.updated_at) / 1000:.0f} s ago")
        return f"; {', '.join(silent)}" if silent else "; all others have reported lately"

    def _write(self, record: ServiceRecord) -> None:
        """Write the record with the next beat, unless another process has taken the name. Call with the lock held."""
        if self._replaced:
            return
        before = self._record.beat
        self._record = replace(record, beat=before + 1)
        self._replaced = not self._store.beat_service(self._record, before)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._end_if_stuck()
            try:
                with self._lock:
                    self._write(self._record)
            except StoreError as error:  # the next request of the process itself tells its caller
                _log.warning("no heartbeat: %s", error)

    def _end_if_stuck(self) -> None:
        """Kill this process where its work takes so long that it must be stuck, as in a call of a GPU that has failed:
        only a death is seen by the others, and the thread of the heartbeat lives on."""
        spent = time.monotonic() - self._reported_at
        limit = max(_STUCK_LEAST, _STUCK_TIMES * self._longest_work) if self._longest_work else _STUCK_FIRST
        if self._record.state == "working" and spent > limit:
            _log.error(
                "stuck: at one piece of work for %.0f s, and the longest before took %.0f s; this process kills itself",
                spent,
                self._longest_work,
            )
            os.kill(os.getpid(), signal.SIGKILL)


def _identity(service: ServiceRecord) -> tuple[str, str, int]:
    return service.name, service.process, service.beat
