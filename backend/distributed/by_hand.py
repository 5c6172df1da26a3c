"""A training whose processes are started one by one, on machines that share the store and nothing else.

`train --begin` writes the run: its record with all that its processes must agree on, and the files that it begins with.
Then it ends. From any machine that reaches the store, `serve lead` leads the run, `serve rollout` rolls out and `serve
trainer` trains a role, in any order. Who leads holds the name of the coordinator, as a lease that its heartbeat renews;
others that want to lead stand by. The run is `interrupted` while nobody leads it, and `running` while somebody does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from backend.distributed.files.run_files import SERVICES, RunFiles
from backend.distributed.files.store_files import StoreFiles
from backend.distributed.heartbeat import LEADERLESS_SECONDS, Heartbeat
from backend.store.records import RunRecord
from backend.store.run_record import BY_HAND
from backend.store.sharing.fences import StoreFenced
from backend.store.store import Store
from simulator.errors import Interrupted, UserError

FilesPlace = Literal["store", "folder"]
BEGUN = "begun; it waits for its processes"
_PROCESSES = "processes"  # in the run's folder: the folders of processes that keep copies
_MACHINE = "copies"  # in the run's folder: weights that this machine's processes share
_LOOK_SECONDS = 1.0  # between two looks whether somebody leads
_LOG_AFTER = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ByHand:
    """What the record of such a run says of its processes: how many rollout workers are planned, and where its files
    are: with the store, or in a folder that all machines share."""

    workers: int
    files: FilesPlace

    def document(self) -> dict[str, Any]:
        """As it is in the record's configuration, by `BY_HAND`."""
        return asdict(self)

    @classmethod
    def of(cls, record: RunRecord) -> Self | None:
        """What the record of a run says; None of a run that was begun in another way. Raises `UserError`."""
        document = record.config.get(BY_HAND)
        if document is None:
            return None
        match document:
            case {"workers": int(workers), "files": "store" | "folder" as files}:
                return cls(workers, files)
        raise UserError(f"the record of run {record.run} does not say how its processes work together: begin it anew")

    def folder(self, runs: Path, run: str, process: str | None) -> Path:
        """The folder in which a process works: the run's; where files do not travel by it, one of its own. Whoever
        leads has None for `process`: its copy of the run's folder becomes the team."""
        if self.files == "folder" or process is None:
            return runs / run
        return runs / run / _PROCESSES / process

    def run_files(self, folder: Path, store: Store, run: str, runs: Path) -> RunFiles:
        """The files of the run for a process that works in `folder` and writes through `store`; `runs` is this
        machine's folder of runs."""
        if self.files == "folder":
            return RunFiles(folder)
        return StoreFiles(folder, store, run, runs / run / _MACHINE)


def commands(run: str, roles: tuple[str, ...], workers: int, store: str) -> list[str]:
    """The commands that carry the run out."""
    options = f"--store {store}"
    return [
        f"cryptosentinel serve lead {run} {options}",
        *([f"cryptosentinel serve rollout {run} {options}"] * (workers - 1)),
        *(f"cryptosentinel serve trainer {run} --role {role} {options}" for role in roles),
    ]


def publish_begin(store: Store, run: str, folder: Path, by_hand: ByHand) -> None:
    """Bring the files that the run begins with to where its processes find them."""
    (folder / SERVICES).mkdir(parents=True, exist_ok=True)
    if by_hand.files == "store":
        StoreFiles(folder, store, run).begin()


def await_leader(store: Store, run: str) -> RunRecord:
    """The run, once somebody leads it. Raises `UserError` for one that is over, and where nobody comes to lead it."""
    began = last_log = time.monotonic()
    while (record := store.run(run)).status != "running":
        if record.status == "finished":
            raise UserError(f"run {run} is finished: there is nothing to do for it")
        now = time.monotonic()
        if now - began > LEADERLESS_SECONDS:
            raise UserError(f"nobody has led run {run} for {LEADERLESS_SECONDS:.0f} s: start `serve lead {run}` first")
        if now - last_log > _LOG_AFTER or now - began < _LOOK_SECONDS:
            _log.info("waiting: run %s is %s (%s), and nobody leads it yet", run, record.status, record.message or "-")
            last_log = now
        time.sleep(_LOOK_SECONDS)
    return record


@contextmanager
def led_run(heartbeat: Heartbeat, record: RunRecord) -> Iterator[None]:
    """Lead a run for a block: it is running, then finished, failed or interrupted. Nothing of it is written by one
    whose place another has taken meanwhile. The record's configuration stays that of who began the run."""
    store, run = heartbeat.store, record.run
    store.resume_run(replace(record, status="running", message=None, finished_at=None))
    try:
        yield
    except StoreFenced as error:
        raise UserError(f"another process leads run {run} now: this one was silent for too long") from error
    except KeyboardInterrupt:
        store.finish_run(run, "interrupted", "stopped by the user")
        raise Interrupted(
            f"run {run} was interrupted; what it stored is kept, and `serve lead {run}` goes on"
        ) from None
    except Exception as error:
        heartbeat.check()  # who was replaced has nothing to say of the run
        store.finish_run(run, "failed", f"{type(error).__name__}: {error}"[:500])
        raise
    store.finish_run(run, "finished")
