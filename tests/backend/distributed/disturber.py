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

    A process that loads its libraries or waits does nothing that could go wrong, and on a busy machine, or where
    another hangs, it does so most of the time. Half of the times one that is at work is therefore waited for. `begun`
    counts those that had reported anything, `at_work` those that were in the middle of their work.
    """

    def __init__(
        self, store: Store, disturb: Callable[[int], None], seed: int, times: int, pauses: tuple[float, float]
    ) -> None:
        super().__init__(daemon=True)
        self.disturbed: list[str] = []
        self.left, self.begun, self.at_work = times, 0, 0
        self.alive: dict[str, int] = {}
        self._store, self._disturb, self._pauses = store, disturb, pauses
        self._left_at = set[tuple[int, int | None]]()  # process and beat: those that have not moved since
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
            name = self._at_work() if self._rng.random() < 0.5 else self._rng.choice(sorted(self.alive))
            process, service = self.alive[name], self._services().get(name)
            beat = None if service is None else service.beat
            if (process, beat) in self._left_at:
                continue
            try:
                self._disturb(process)
            except ProcessLookupError:
                continue
            self._left_at.add((process, beat))
            self.disturbed.append(name)
            self.begun += service is not None
            self.at_work += service is not None and service.state == "working"
            self.left -= 1

    def _at_work(self) -> str:
        """Wait until a process is at work, and then for a moment; its name."""
        while True:
            services = self._services().values()
            names = [
                one.name
                for one in services
                if one.state == "working" and (self.alive[one.name], one.beat) not in self._left_at
            ]
            if names:
                time.sleep(self._rng.uniform(0.0, 0.2))
                return self._rng.choice(names)
            time.sleep(0.02)

    def _services(self) -> dict[str, ServiceRecord]:
        """What the present processes have reported, by name; nothing of those that have reported nothing."""
        found = ((one, self.alive.get(one.name)) for one in self._store.services(RUN))
        return {service.name: service for service, process in found if service.process.startswith(f"{process}@")}
