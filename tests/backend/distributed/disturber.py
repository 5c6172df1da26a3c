"""Disturbs the processes of a run from outside, at moments drawn by a seed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from backend.store.records import ServiceRecord
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.small_world import RUN


class Disturber(threading.Thread):
    """Does `disturb` to the id of one process of the run after another, `times` in all, with `pauses` of so many
    seconds, from the moment on at which the worker and a trainer for each role have been started.

    A process that loads its libraries does nothing that could go wrong, and on a busy machine it does so most of the
    time. Half of the times a process is therefore left alone until it has begun. `begun` counts those that had,
    `at_work` those that were in the middle of their work.
    """

    def __init__(
        self, store: Store, disturb: Callable[[int], None], seed: int, times: int, pauses: tuple[float, float]
    ) -> None:
        super().__init__(daemon=True)
        self.disturbed: list[str] = []
        self.left, self.begun, self.at_work = times, 0, 0
        self.alive: dict[str, int] = {}
        self._store, self._disturb, self._pauses = store, disturb, pauses
        self._rng = random.Random(seed)

    def __str__(self) -> str:
        return f"{len(self.disturbed)} disturbed, {self.begun} of them had begun, {self.at_work} were at work"

    def started(self, name: str, process: int) -> None:
        """Process `process` goes by the name `name` now."""
        self.alive[name] = process
        if len(self.alive) == 1 + len(ROLES) and not self.is_alive() and self.left:
            self.start()

    def run(self) -> None:
        while self.left:
            time.sleep(self._rng.uniform(*self._pauses))
            name, awaits = self._rng.choice(sorted(self.alive)), self._rng.random() < 0.5
            while awaits and self._service(name) is None:
                time.sleep(0.1)
            if awaits:
                time.sleep(self._rng.uniform(0.0, 1.0))
            service, process = self._service(name), self.alive[name]
            try:
                self._disturb(process)
            except ProcessLookupError:
                continue
            self.disturbed.append(name)
            self.begun += service is not None
            self.at_work += service is not None and service.state == "working"
            self.left -= 1

    def _service(self, name: str) -> ServiceRecord | None:
        """What the present process of that name has reported, None before it has reported anything."""
        mine = (service for service in self._store.services(RUN) if service.name == name)
        return next((service for service in mine if service.process.startswith(f"{self.alive[name]}@")), None)
