"""Starts all processes of a training on this machine, watches them, and starts again those that are killed or hang."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from backend.distributed.heartbeat import COORDINATOR
from backend.distributed.logs import last_message
from backend.distributed.parent import PARENT
from backend.distributed.silence import SilenceWatch
from backend.store.errors import StoreError
from backend.store.records import ServiceRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from cryptosentinel.agents.registry import roles_of
from simulator.errors import RunFailed

_log = logging.getLogger(__name__)

OnStep = Callable[[int], None]
RESTARTS = 1000  # of all processes together; a run that needs more is not worth going on with
_POLL = 0.2  # seconds between two looks at the processes
_LOOK = 2.0  # seconds between two looks at their heartbeats
_GRACE = 20.0  # seconds to end in after being asked to


class _Child:
    """A process on this machine, started when this object is made."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._arguments = arguments
        self._process = _spawn(arguments, log)
        self._dead: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Of the process, negative for the signal that has ended it; None while it is alive."""
        return self._process.poll()

    def replace(self) -> None:
        """Start the process again, in the place of all that have died by this name: the last may have died before it
        could put its own id into the store."""
        self._dead.append(str(self.pid))
        self._process = _spawn([*self._arguments, "--replaces", ",".join(self._dead)], self.log)

    def interrupt(self) -> None:
        """Ask it to end."""
        if self.exit_code() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, also one that is stopped, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self, deadline: float) -> None:
        """Wait for its end up to `deadline` on the monotonic clock, then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()


def run_processes(
    address: str,
    run: str,
    runs: Path,
    workers: int,
    on_step: OnStep,
    on_start: Callable[[str, int], None] | None = None,
    approved: str = "",
) -> None:
    """The rollout workers and a trainer for each role of a run that has begun, until the coordinator has done.

    Logs are in the run's folder, `services/*.log`. A process that a signal has ended is started again, and so is one
    that hangs, which is killed (`SilenceWatch`); one that failed ends the run: `RunFailed` with its last message.
    `on_start` gets the name and id of each process that starts; `approved` is the digest of the run's configuration,
    for processes that cannot check its signature.
    """
    folder = runs / run / "services"
    folder.mkdir(parents=True, exist_ok=True)
    common = [run, "--store", address, "--runs", str(runs), *(["--approved", approved] if approved else [])]
    wanted = {
        f"rollout-{number}": ["serve", "rollout", *common, "--number", str(number)] for number in range(workers)
    } | {f"trainer-{role}": ["serve", "trainer", *common, "--role", role] for role in _team(address, run)}
    children: list[_Child] = []
    try:
        for name, arguments in wanted.items():
            children.append(_Child(name, arguments, folder / f"{name}.log"))
            if on_start is not None:
                on_start(name, children[-1].pid)
        with Store.open(address) as store:
            _watch(store, run, children, on_step, on_start)
    finally:
        _end(children)


def _team(address: str, run: str) -> tuple[str, ...]:
    """The roles of the run's team."""
    with Store.open(address) as store:
        config, _ = stored_config(store.run(run))
    return roles_of(config.team.roles)


def _watch(
    store: Store, run: str, children: list[_Child], on_step: OnStep, on_start: Callable[[str, int], None] | None
) -> None:
    restarts, last_step, last_look, silence = 0, -1, time.monotonic(), SilenceWatch()
    while True:
        if (now := time.monotonic()) - last_look > _LOOK:
            last_look = now
            _kill_hanging(store, run, children, silence)
        for child in children:
            code = child.exit_code()
            if code is None:
                continue
            if code == 0 and child.name == COORDINATOR:
                if (status := store.run(run).status) != "running":
                    raise RunFailed(f"somebody else has ended run {run}: it is {status}")
                return
            if code >= 0 or restarts == RESTARTS:
                raise RunFailed(f"{child.name} ended with code {code}: {last_message(child.log)}")
            restarts += 1
            child.replace()
            if on_start is not None:
                on_start(child.name, child.pid)
        step = coordinator_step(store, run)
        if step is not None and step != last_step:
            last_step = step
            on_step(step)
        time.sleep(_POLL)


def _kill_hanging(store: Store, run: str, children: list[_Child], silence: SilenceWatch) -> None:
    """Kill the processes that hang; those that have ended are seen elsewhere. Raises `RunFailed` as `SilenceWatch`."""
    services = services_of(store, run)
    for child in children:
        if child.exit_code() is not None:
            continue
        why = silence.look(child.name, child.pid, services, time.monotonic())
        if why is not None:
            _log.warning("%s", why)
            child.kill()


def services_of(store: Store, run: str) -> list[ServiceRecord]:
    """The processes of a run. Raises `RunFailed` without a store."""
    try:
        return store.services(run)
    except StoreError as error:
        raise RunFailed(f"the store is gone: {error}") from error


def coordinator_step(store: Store, run: str) -> int | None:
    """The step that the coordinator of a run is at, None before it has said so. Raises `RunFailed` without a store."""
    return next((service.step for service in services_of(store, run) if service.name == COORDINATOR), None)


def _spawn(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    # Two threads in one process are many times slower than one while another process computes.
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {PARENT: str(os.getpid())}
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "backend.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )


def _end(children: list[_Child]) -> None:
    """Ask all to end, and kill those that do not."""
    for child in children:
        child.interrupt()
    deadline = time.monotonic() + _GRACE
    for child in children:
        child.end(deadline)
