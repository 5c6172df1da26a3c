"""A job as files in its folder. Each file has one writer and is written in one step, so a job has at every moment one
state, whoever was killed in between; nothing has to be put right after a crash.

A folder of runs may be somebody else's, and a job is a command with options: it would run what they name. So only a
request that bears this user's signature is carried out; it covers the job's name and the folder that it lies in.

| file | written by | says |
| --- | --- | --- |
| `job.json` | who asks for the job | the command, where it runs, since when it waits |
| `process.json` | the job's own process, first of all | which process it is |
| `progress.json`, `equity.jsonl` | the same, meanwhile | the run that it makes, and how far it is |
| `outcome.json` | the same, last of all | its exit code |
| `cancel.json` | who cancels it, the first one | when |
| `log` | the command | what it says |
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from backend.config.ownership import is_signed, key_file, sign
from backend.jobs.processes import ProcessIdentity
from simulator.errors import UserError
from simulator.files import write_whole

JobStatus = Literal["queued", "running", "done", "failed", "cancelled", "died"]
ACTIVE: tuple[JobStatus, ...] = ("queued", "running")
JOB, PROCESS, PROGRESS, OUTCOME, CANCEL = (
    f"{name}.json" for name in ("job", "process", "progress", "outcome", "cancel")
)
JOB_LOG, EQUITY = "log", "equity.jsonl"
_SIGNALLED = (129, 130, 143)  # exit codes of a command that a signal has ended
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_LOG_BYTES = 200_000  # of a log that are read at once

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class JobRequest:
    """What was asked for: the arguments of `cryptosentinel`, the folder that they are meant in, and when (ms).
    `resumes` is the job that this one goes on with, `signature` that of the user who asked. `own_modules`: whether it
    may import the user's modules that the command names, which the page does not let it."""

    command: tuple[str, ...]
    folder: str
    submitted_at: int
    resumes: str = ""
    signature: str = ""
    own_modules: bool = True

    def signed(self, path: Path) -> JobRequest:
        """The request of the job in the folder `path`, signed. Raises `UserError` where no key can be kept."""
        signature = sign(self._signed_value(path))
        if not signature:
            raise UserError(
                f"a job is signed, so that nobody else's command is run for you, and the key cannot be kept in "
                f"{key_file()}, readable by you alone: set XDG_STATE_HOME to a folder that you can write to"
            )
        return replace(self, signature=signature)

    def is_own(self, path: Path) -> bool:
        """Whether this user asked for it, in that very folder."""
        return is_signed(self._signed_value(path), self.signature)

    def _signed_value(self, path: Path) -> list[object]:
        return ["job", os.path.realpath(path), asdict(replace(self, signature=""))]


@dataclass(frozen=True)
class JobProcess:
    """The process that runs the job, and when it began (ms)."""

    pid: int
    started: str
    started_at: int

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.started)


@dataclass(frozen=True)
class JobOutcome:
    """How it ended, and when (ms). `message` is there where its process never began."""

    exit_code: int
    finished_at: int
    message: str = ""


@dataclass(frozen=True)
class JobCancellation:
    """When it was cancelled (ms)."""

    at: int


@dataclass(frozen=True)
class JobProgress:
    """The run that the job makes, and how far it is: `done` of `total` parts of `what`, at a time in ms. `since` is
    when it first counted parts of this kind (ms), and `first` how many were done by then."""

    run: str = ""
    what: str = ""
    done: int = 0
    total: int = 0
    note: str = ""
    at: int = 0
    since: int = 0
    first: int = 0


@dataclass(frozen=True)
class Job:
    """A job as its files say it is at one moment."""

    name: str
    path: Path
    request: JobRequest
    process: JobProcess | None
    outcome: JobOutcome | None
    cancelled_at: int | None
    progress: JobProgress
    alive: bool
    own: bool  # whether this user asked for it

    @property
    def status(self) -> JobStatus:
        """Whether it waits, runs, or how it ended. `died`: its process is gone and has not said how it ended. One that
        somebody else asked for does not wait: it has failed."""
        if self.outcome is not None:
            if self.outcome.exit_code == 0:
                return "done"
            stopped = self.cancelled_at is not None or self.outcome.exit_code in _SIGNALLED
            return "cancelled" if stopped else "failed"
        if self.process is not None and self.alive:
            return "running"
        if self.cancelled_at is not None:
            return "cancelled"
        if self.process is not None:
            return "died"
        return "queued" if self.own else "failed"

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.status in ACTIVE

    @property
    def run(self) -> str:
        """The id of the run that it made or makes; empty while it has not begun one."""
        return self.progress.run

    @property
    def started_at(self) -> int | None:
        return None if self.process is None else self.process.started_at

    @property
    def finished_at(self) -> int | None:
        return None if self.outcome is None else self.outcome.finished_at

    @property
    def message(self) -> str:
        """Why it is not done, in one sentence; empty where there is nothing to say."""
        status = self.status
        if status == "died":
            return "its process ended without a word, as after a kill or a restart of the machine; see its log"
        if status != "failed":
            return "it is being stopped" if status == "running" and self.cancelled_at is not None else ""
        if self.outcome is None:
            return "it is not run: it bears no signature of yours for this folder; give its command yourself"
        if self.outcome.message:
            return self.outcome.message
        said = self.log(4_000).rpartition("error: ")
        return " ".join(said[2].split())[:500] if said[1] else f"exit code {self.outcome.exit_code}; see its log"

    @property
    def how_far(self) -> str:
        """Which part it is at, of how many; empty before there is any."""
        progress = self.progress
        return f"{progress.what} {progress.done}/{progress.total}" if progress.total else ""

    @property
    def share(self) -> float | None:
        """How much of its present part is done, from 0 to 1; None before there is any."""
        progress = self.progress
        return min(1.0, max(0.0, progress.done / progress.total)) if progress.total > 0 else None

    def seconds_left(self, now: float) -> float | None:
        """How long its present part still takes at the pace so far, in seconds at `now` (s since the epoch). None while
        there is no pace: before two counts, and after the last."""
        progress = self.progress
        made, missing = progress.done - progress.first, progress.total - progress.done
        taken = (progress.at - progress.since) / 1000.0
        if made <= 0 or missing <= 0 or taken <= 0.0:
            return None
        return max(0.0, taken / made * missing - (now - progress.at / 1000.0))

    def log(self, most: int = _LOG_BYTES) -> str:
        """The end of what the command said, at most so many bytes; empty before it began."""
        try:
            with (self.path / JOB_LOG).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                text = file.read(most).decode("utf-8", errors="replace")
        except OSError:
            return ""
        return text.partition("\n")[2] if size > most else text

    def equity(self) -> dict[str, tuple[list[int], list[float]]]:
        """The accounts so far by name: times (ms) and values."""
        curves: dict[str, tuple[list[int], list[float]]] = {}
        try:
            lines = (self.path / EQUITY).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return curves
        for line in lines:
            try:
                name, time, value = json.loads(line)
                times, values = curves.setdefault(str(name), ([], []))
                point = int(time), float(value)
            except (ValueError, TypeError):  # the last line may be half written
                continue
            times.append(point[0])
            values.append(point[1])
        return curves


def read_job(jobs: Path, name: str) -> Job:
    """The job of that name. Raises `UserError` where there is none, or it cannot be read."""
    if not _NAME.fullmatch(name) or not (jobs / name / JOB).is_file():
        raise UserError(f"there is no job '{name[:100]}' in {jobs}: see them with `cryptosentinel jobs list`")
    path = jobs / name
    process = read_part(path / PROCESS, JobProcess)
    # The process is asked first: one that ends between the two looks has written its outcome by then.
    alive = process is not None and process.identity.alive
    request = read_part(path / JOB, JobRequest)
    if request is None:
        raise UserError(f"{path / JOB} cannot be read: remove the folder {path}, and start the job anew")
    cancelled = read_part(path / CANCEL, JobCancellation)
    return Job(
        name,
        path,
        request,
        process,
        read_part(path / OUTCOME, JobOutcome),
        None if cancelled is None else cancelled.at,
        read_part(path / PROGRESS, JobProgress) or JobProgress(),
        alive,
        request.is_own(path),
    )


def read_jobs(jobs: Path, ended: bool = True) -> list[Job]:
    """All jobs of a folder that can be read, the newest first; without `ended`, only those that have no outcome."""
    found = []
    for path in jobs.glob(f"*/{JOB}") if jobs.is_dir() else ():
        if not ended and (path.parent / OUTCOME).exists():
            continue
        try:
            found.append(read_job(jobs, path.parent.name))
        except UserError:
            continue  # of one damaged folder the others are not to blame; `read_job` says what is wrong with it
    return sorted(found, key=lambda job: (job.request.submitted_at, job.name), reverse=True)


def read_part(path: Path, kind: type[_Part]) -> _Part | None:
    """A file of a job; None where there is none, and where it is none of this program's."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_part(path: Path, document: Any) -> None:
    """Write a file of a job in one step. Raises OSError."""
    write_whole(path, json.dumps(asdict(document)))


def write_once(path: Path, document: Any) -> bool:
    """The same for a file that only the first writer may write: False where it is there. Raises OSError."""
    own = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    write_whole(own, json.dumps(asdict(document)))
    try:
        os.link(own, path)
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True


def equity_lines(points: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Points of accounts as lines of `equity.jsonl`."""
    return "".join(f"{json.dumps([name, time, value])}\n" for name, of_one in points.items() for time, value in of_one)
