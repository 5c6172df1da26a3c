"""Disturbs the processes of a run from outside. When depends on what they do, not on the clock alone."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

from backend.store.records import ServiceRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.small_world import RUN

AT_WORK_SHARE = 0.7  # of all strikes: those that wait for a process in the middle of a step
_ANSWERED = 0.03  # seconds in which the store has done what a process asked of it before it was stopped
_LOOK = 0.02

Strike = Callable[[int], None]


def strike_at(store: Store, process: int, strike: Strike, only_at_work: bool) -> bool | None:
    """Do `strike` to a process, and return whether it was in the middle of a step: rolling out, learning, validating
    or publishing. None where it was not and `only_at_work` spared it.

    The process is stopped before its records are read, so that what they say is true when it is struck. Raises
    `ProcessLookupError`.
    """
    os.kill(process, signal.SIGSTOP)
    time.sleep(_ANSWERED)
    service = services_by_process(store).get(process)
    is_at_work = service is not None and service.state == "working" and service.step is not None
    if only_at_work and not is_at_work:
        os.kill(process, signal.SIGCONT)
        return None
    strike(process)
    return is_at_work


def services_by_process(store: Store) -> dict[int, ServiceRecord]:
    """What each process of the run on this machine has reported last, by its id."""
    return {int(one.process.partition("@")[0]): one for one in store.services(RUN)}


class Disturber(threading.Thread):
    """Does `strike` to one process of the run after another, `times` in all, with `pauses` of so many seconds, from
    the moment on at which `processes` have been started (default: a worker and a trainer for each role).

    A process that loads its libraries or waits does nothing that could go wrong, and on a busy machine, or where
    another hangs, it does so most of the time. So a share of the strikes wait for a process in the middle of a step,
    whenever that is; the others come at any moment. `begun` counts those that had reported anything, `at_work` those
    that were in the middle of a step.
    """

    def __init__(
        self,
        store: Store,
        strike: Strike,
        seed: int,
        times: int,
        pauses: tuple[float, float],
        processes: int = 1 + len(ROLES),
    ) -> None:
        super().__init__(daemon=True)
        self.disturbed: list[str] = []
        self.begun, self.at_work = 0, 0
        self.alive: dict[str, int] = {}
        self._store, self._strike, self._pauses, self._processes = store, strike, pauses, processes
        self._struck_at = set[tuple[int, int | None]]()  # process and beat: those that have not moved since
        self._rng = random.Random(seed)
        at_work = round(AT_WORK_SHARE * times)
        self._only_at_work = [True] * at_work + [False] * (times - at_work)  # of the strikes that are left
        self._rng.shuffle(self._only_at_work)

    def __str__(self) -> str:
        return f"{len(self.disturbed)} disturbed, {self.begun} of them had begun, {self.at_work} were at work"

    @property
    def left(self) -> int:
        """Strikes that are still to come."""
        return len(self._only_at_work)

    def started(self, name: str, process: int) -> None:
        """Process `process` goes by the name `name` now."""
        self.alive[name] = process
        if len(self.alive) == self._processes and not self.is_alive() and self.left:
            self.start()

    def run(self) -> None:
        while self._only_at_work:
            time.sleep(self._rng.uniform(*self._pauses))
            while not self._strike_one(self._only_at_work[-1]):
                time.sleep(_LOOK)
            self._only_at_work.pop()

    def _strike_one(self, only_at_work: bool) -> bool:
        """Strike a process, if there is one to be struck."""
        services = services_by_process(self._store)
        names = []
        for name, process in sorted(self.alive.items()):
            service = services.get(process)
            has_moved = (process, None if service is None else service.beat) not in self._struck_at
            if has_moved and (not only_at_work or (service is not None and service.state == "working")):
                names.append(name)
        if not names:
            return False
        name = self._rng.choice(names)
        process = self.alive[name]
        time.sleep(self._rng.uniform(0.0, 0.2 if only_at_work else 0.0))
        try:
            was_at_work = strike_at(self._store, process, self._strike, only_at_work)
        except ProcessLookupError:
            return False
        if was_at_work is None:
            return False
        service = services_by_process(self._store).get(process)
        self._struck_at.add((process, None if service is None else service.beat))
        self.disturbed.append(name)
        self.begun += service is not None
        self.at_work += was_at_work
        return True
