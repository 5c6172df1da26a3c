"""Starts all processes of a training on this machine, watches them, and starts again those that are killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from backend.config.load import config_from_dict
from backend.distributed.heartbeat import COORDINATOR
from backend.distributed.logs import last_message
from backend.distributed.parent import PARENT
from backend.store.errors import StoreError
from backend.store.store import Store
from cryptosentinel.agents.registry import roles_of
from simulator.errors import RunFailed

OnStep = Callable[[int], None]
RESTARTS = 1000  # of all processes together; a run that needs more is not worth going on with
_LOOK = 0.2  # seconds between two looks at the processes
_GRACE = 20.0  # seconds to end in after being asked to


@dataclass
class _Child:
    """A process, and how it is started again; `dead` are the ids of those that were it before."""

    name: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes]
    dead: list[str] = field(default_factory=list)


@contextmanager
def gateway(path: str, log: Path) -> Iterator[str]:
    """The address of a server of the store at `path`: itself if it is one, else one that is started for the block."""
    if path.startswith(("ws://", "wss://")):
        yield path
        return
    port = _free_port()
    child = _start("store", ["serve", "store", "--path", path, "--port", str(port)], log)
    over = threading.Event()
    watch = threading.Thread(target=_keep, args=(child, over), name="watch of the store", daemon=True)
    try:
        deadline = time.monotonic() + 60.0
        while not _listens(port):
            if child.process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the server of the store {path} did not start: {last_message(log)}")
            time.sleep(0.05)
        watch.start()
        yield f"ws://127.0.0.1:{port}"
    except (StoreError, RunFailed) as error:
        if watch.ident is not None and child.process.poll() is not None:
            raise RunFailed(f"the server of the store {path} ended: {last_message(log)}") from error
        raise
    finally:
        over.set()
        if watch.ident is not None:
            watch.join()
        _end([child])


def run_processes(
    address: str,
    run: str,
    runs: Path,
    workers: int,
    on_step: OnStep,
    on_start: Callable[[str, int], None] | None = None,
) -> None:
    """The rollout workers and a trainer for each role of a run that has begun, until the leader has done.

    Logs are in the run's folder, `services/*.log`. A process that a signal has ended is started again; one that failed
    ends the run: `RunFailed` with its last words. `on_start` hears of each process that starts, with its id.
    """
    folder = runs / run / "services"
    folder.mkdir(parents=True, exist_ok=True)
    common = ["--store", address, "--run", run, "--runs", str(runs)]
    wanted = {
        f"rollout-{number}": ["serve", "rollout", *common, "--number", str(number), "--workers", str(workers)]
        for number in range(workers)
    } | {f"trainer-{role}": ["serve", "trainer", *common, "--role", role] for role in _team(address, run)}
    children: list[_Child] = []
    try:
        for name, arguments in wanted.items():
            children.append(_start(name, arguments, folder / f"{name}.log"))
            if on_start is not None:
                on_start(name, children[-1].process.pid)
        with Store.open(address) as store:
            _watch(store, run, children, on_step, on_start)
    finally:
        _end(children)


def _team(address: str, run: str) -> tuple[str, ...]:
    """The roles of the run's team."""
    with Store.open(address) as store:
        config = config_from_dict(store.run(run).config["config"], f"the configuration of run {run}")
    return roles_of(config.team.roles)


def _watch(
    store: Store, run: str, children: list[_Child], on_step: OnStep, on_start: Callable[[str, int], None] | None
) -> None:
    restarts, seen = 0, -1
    while True:
        for child in children:
            code = child.process.poll()
            if code is None:
                continue
            if code == 0 and child.name == COORDINATOR:
                if (status := store.run(run).status) != "running":
                    raise RunFailed(f"somebody else has ended run {run}: it is {status}")
                return
            if code >= 0 or restarts == RESTARTS:
                raise RunFailed(f"{child.name} ended with code {code}: {last_message(child.log)}")
            restarts += 1
            # All that died by this name: the last may not have lived long enough to put its own into the store.
            child.dead.append(str(child.process.pid))
            replaces = ["--replaces", ",".join(child.dead)]
            child.process = _start(child.name, [*child.arguments, *replaces], child.log).process
            if on_start is not None:
                on_start(child.name, child.process.pid)
        step = coordinator_step(store, run)
        if step is not None and step != seen:
            seen = step
            on_step(step)
        time.sleep(_LOOK)


def coordinator_step(store: Store, run: str) -> int | None:
    """The step that the leader of a run is at, None before it has said so. Raises `RunFailed` without a store."""
    try:
        return next((one.step for one in store.services(run) if one.name == COORDINATOR), None)
    except StoreError as error:
        raise RunFailed(f"the store is gone: {error}") from error


def _keep(child: _Child, over: threading.Event) -> None:
    """Start a process again whenever a signal has killed it, until `over`; its clients wait for it meanwhile."""
    while not over.wait(_LOOK):
        code = child.process.poll()
        if code is not None and code < 0:
            child.process = _start(child.name, child.arguments, child.log).process


def _start(name: str, arguments: list[str], log: Path) -> _Child:
    log.parent.mkdir(parents=True, exist_ok=True)
    # Two threads in one process are many times slower than one while another process computes.
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {PARENT: str(os.getpid())}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "backend.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | own,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )
    return _Child(name, arguments, log, process)


def _end(children: list[_Child]) -> None:
    """Ask all to end, and kill those that do not."""
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
