"""How a process of a run says that it is alive, waits for the others, and learns that it is over."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from types import TracebackType
from typing import Self, TypeVar

from backend.store.records import ServiceRecord, ServiceState
from backend.store.store import Store
from simulator.errors import RunFailed, UserError

T = TypeVar("T")

BEAT = 5.0  # seconds between two signs of life
SILENT = 4 * BEAT  # who was not heard for so long is taken for dead
_SHORTEST, _LONGEST = 0.02, 0.5  # seconds between two looks at the store


class RunOver(Exception):
    """The run has ended, well or not: there is nothing more to wait for."""


class Beacon:
    """The sign of life of the process `name` of a run, in a `with` block.

    `replaces` is the id of a dead process whose place this one takes at once; otherwise a process of that name that was
    heard of lately is a reason to stop. Raises `UserError` then.
    """

    def __init__(
        self, store: Store, run: str, name: str, kind: str, role: str | None = None, replaces: str = ""
    ) -> None:
        self._store = store
        self.run = run
        found = next((one for one in store.services(run) if one.name == name), None)
        if found is not None and found.state not in ("stopped", "failed") and found.process != replaces:
            silent = (store.now() - found.updated_at) / 1000
            if silent < SILENT:
                raise UserError(
                    f"{name} of run {run} is at work already (process {found.process}, heard of {silent:.0f} s ago), "
                    f"and two would do the same work. Stop it, or try again in {SILENT - silent:.0f} s if it is dead"
                )
        beat = 0 if found is None else found.beat
        self._record = ServiceRecord(
            run, name, kind, role, version("cryptosentinel"), str(os.getpid()), "starting", None, beat
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"beats of {name}", daemon=True)

    def __enter__(self) -> Self:
        self.say("starting")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None or isinstance(error, RunOver):
            self.say("stopped")
        elif isinstance(error, KeyboardInterrupt):
            self.say("stopped", message="interrupted")
        else:
            self.say("failed", message=str(error)[:500] or type(error).__name__)

    def say(self, state: ServiceState, step: int | None = None, message: str | None = None) -> None:
        """Tell at once what the process does; `step` stays as it was where it is None."""
        with self._lock:
            self._record = replace(
                self._record,
                state=state,
                step=self._record.step if step is None else step,
                message=message,
                beat=self._record.beat + 1,
            )
            self._store.report_service(self._record)

    def wait(self, step: int, what: str, look: Callable[[], T | None]) -> T:
        """What `look` finds, as soon as it finds something. Raises `RunOver` when the run ends before, `RunFailed` when
        another process of it has failed."""
        found = look()
        if found is not None:
            return found
        self.say("waiting", step, what)
        pause, looked = _SHORTEST, time.monotonic()
        while True:
            time.sleep(pause)
            found = look()
            if found is not None:
                self.say("working", step)
                return found
            pause = min(_LONGEST, 1.3 * pause)
            if time.monotonic() - looked > 2 * _LONGEST:
                self._check_run()
                looked = time.monotonic()

    def _check_run(self) -> None:
        if self._store.run(self.run).status != "running":
            raise RunOver
        failed = [one for one in self._store.services(self.run) if one.state == "failed"]
        if failed:
            raise RunFailed(f"{failed[0].name} has failed: {failed[0].message}")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with self._lock:
                self._record = replace(self._record, beat=self._record.beat + 1)
                self._store.report_service(self._record)
