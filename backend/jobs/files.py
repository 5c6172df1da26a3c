"""A job as files in its folder. Each has one writer and is written in one step, so a job has one state at every moment.

A folder of runs may be someone else's. No job is started from its files, as the command is among the arguments of its
process, and none is resumed whose request does not bear this user's signature. A process is signaled only where the
system itself says that it is this user's, the first of its session, and was started for this very folder
(`own_process`). Files are opened without following links, and only regular ones.

| file | written by | contents |
| --- | --- | --- |
| `job.json` | the program that submits the job | the command, where it runs, and since when it waits |
| `process.json` | the job's process, first of all and when it is its turn | which process it is |
| `progress.json`, `equity.jsonl` | the same, meanwhile | the run that it makes, and how far it is |
| `outcome.json` | the same, last of all | its exit code |
| `cancel.json` | the first program that cancels it | when |
| `log` | the command | its output |
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from backend.config.ownership import is_signed, key_file, sign
from backend.jobs.processes import process_at
from simulator.errors import UserError
from simulator.files import write_whole

JobStatus = Literal["queued", "running", "done", "failed", "cancelled", "died", "foreign"]
JOB, PROCESS, PROGRESS, OUTCOME, CANCEL = (
    f"{name}.json" for name in ("job", "process", "progress", "outcome", "cancel")
)
JOB_LOG, EQUITY = "log", "equity.jsonl"
_SIGNALED = (129, 130, 143)  # exit codes of a command that a signal has ended
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_LOG_BYTES = 200_000  # of a log that are read at once
_PART_BYTES = 1_000_000  # of any other file
_BEGINS_WITHIN = 300.0  # seconds until the process of a job must have written which one it is

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class JobRequest:
    """What was asked for: the arguments of `cryptosentinel`, the folder that they are meant in, when (ms), the job that
    this one resumes, and the token that the job's process has among its arguments: the user's signature of all that.
    `own_modules`: whether it may import the user's modules that the command names, which the page does not let it."""

    command: tuple[str, ...]
    folder: str
    submitted_at: int
    resumes: str = ""
    token: str = ""
    own_modules: bool = True

    def signed(self, path: Path) -> JobRequest:
        """The request of the job in the folder `path`, with its token. Raises `UserError` where no key can be kept."""
        if token := sign(self._signed_value(path)):
            return replace(self, token=token)
        raise UserError(
            f"a job is signed, so that no one else's command is run for you, and the key cannot be kept in "
            f"{key_file()}, for you alone: set XDG_STATE_HOME to a folder that you can write to"
        )

    def is_own(self, path: Path) -> bool:
        """Whether this user asked for it, in that very folder."""
        return is_signed(self._signed_value(path), self.token)

    def _signed_value(self, path: Path) -> list[object]:
        return ["job", os.path.realpath(path), asdict(replace(self, token=""))]


@dataclass(frozen=True)
class JobProcess:
    """The process that runs the job, and when it was its turn (ms); 0 while it waits."""

    pid: int
    started: str
    started_at: int


@dataclass(frozen=True)
class JobOutcome:
    """How it ended, and when (ms)."""

    exit_code: int
    finished_at: int


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
    """A job as its files have it at one moment. `own` is whether folder and process are this user's."""

    name: str
    path: Path
    request: JobRequest
    process: JobProcess | None
    outcome: JobOutcome | None
    cancelled_at: int | None
    progress: JobProgress
    alive: bool
    own: bool

    @property
    def status(self) -> JobStatus:
        """Whether it waits, runs, or how it ended. `died`: its process is gone and has not written how it ended."""
        if not self.own:
            return "foreign"
        if self.outcome is not None:
            if self.outcome.exit_code == 0:
                return "done"
            stopped = self.cancelled_at is not None or self.outcome.exit_code in _SIGNALED
            return "cancelled" if stopped else "failed"
        if self.process is not None and self.alive:
            return "running" if self.process.started_at else "queued"
        if self.cancelled_at is not None:
            return "cancelled"
        waits = self.process is None and time.time() - self.request.submitted_at / 1000 < _BEGINS_WITHIN
        return "queued" if waits else "died"

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.status in ("queued", "running")

    @property
    def run(self) -> str:
        """The id of the run that it made or makes; empty while it has not begun one."""
        return self.progress.run

    @property
    def started_at(self) -> int | None:
        return (self.process.started_at or None) if self.process else None

    @property
    def finished_at(self) -> int | None:
        return None if self.outcome is None else self.outcome.finished_at

    @property
    def message(self) -> str:
        """Why it is not done, in one sentence; empty where there is nothing to say."""
        match self.status:
            case "died":
                return (
                    "its process is gone without an exit code, as after a kill or a restart of the machine; see its log"
                )
            case "foreign":
                return f"{self.path}, its request or the process that it names is not yours: nothing is done with it"
            case "running" | "queued":
                return "it is being stopped" if self.cancelled_at is not None else ""
            case "failed":
                _, found, words = self.log(4_000).rpartition("error: ")
                return " ".join(words.split())[:500] if found else "it ended with an error; see its log"
        return ""

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
        """The end of the command's output, at most that many bytes; empty before it began."""
        text = (read_regular(self.path / JOB_LOG, most + 1) or b"").decode("utf-8", errors="replace")
        return text.partition("\n")[2] if len(text.encode()) > most else text

    def equity(self) -> dict[str, tuple[list[int], list[float]]]:
        """The accounts so far by name: times (ms) and values."""
        curves: dict[str, tuple[list[int], list[float]]] = {}
        for line in (read_regular(self.path / EQUITY, 100 * _PART_BYTES) or b"").splitlines():
            try:
                name, time_, value = json.loads(line)
                times, values = curves.setdefault(str(name), ([], []))
                point = int(time_), float(value)
            except (ValueError, TypeError, RecursionError):  # the last line may be half written
                continue
            times.append(point[0])
            values.append(point[1])
        return curves


def own_process(path: Path, request: JobRequest, process: JobProcess) -> bool | None:
    """Whether the process that a job's folder names is that job's: this user's, the first of its session, started for
    this folder with this job's token. False where another process is there, None where the one it names is gone."""
    found = process_at(process.pid)
    if found is None or found.started != process.started:
        return None
    given = {os.path.realpath(path), request.token} - {""}
    return found.user == os.getuid() and found.session == process.pid and len(given.intersection(found.arguments)) == 2


def read_job(jobs: Path, name: str) -> Job:
    """The job of that name. Raises `UserError` where there is none, or it cannot be read."""
    path = jobs / name
    if not _NAME.fullmatch(name) or not path.is_dir() or not os.path.lexists(path / JOB):
        raise UserError(f"there is no job '{name[:100]}' in {jobs}: see them with `cryptosentinel jobs list`")
    # The process first: one that ends between the two looks has written its outcome by then.
    process, request = read_part(path / PROCESS, JobProcess), read_part(path / JOB, JobRequest)
    if request is None:
        raise UserError(f"{path / JOB} cannot be read: remove the folder {path}, and submit the job again")
    own = None if process is None else own_process(path, request, process)
    about = path.lstat()
    return Job(
        name,
        path,
        request,
        process,
        read_part(path / OUTCOME, JobOutcome),
        read_part(path / CANCEL, int),
        read_part(path / PROGRESS, JobProgress) or JobProgress(),
        own is True,
        own is not False and stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and request.is_own(path),
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
            continue  # one damaged folder hides no other; `read_job` says what is wrong with it
    return sorted(found, key=lambda job: (job.request.submitted_at, job.name), reverse=True)


def read_regular(path: Path, most: int) -> bytes | None:
    """The end of a regular file, at most that many bytes; None where there is none, and for a link, a FIFO, a device or
    a socket, none of which is followed or waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, about.st_size - most))
        return file.read(most)


def read_part(path: Path, kind: type[_Part]) -> _Part | None:
    """A file of a job; None where there is none, or not one of this program's."""
    try:
        return TypeAdapter(kind).validate_json(read_regular(path, _PART_BYTES) or b"")
    except ValidationError:
        return None


def write_part(path: Path, document: Any) -> None:
    """Write a file of a job in one step. Raises OSError."""
    write_whole(path, json.dumps(document if isinstance(document, int) else asdict(document)))


def equity_lines(points: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Points of accounts as lines of `equity.jsonl`."""
    return "".join(f"{json.dumps([name, time, value])}\n" for name, of_one in points.items() for time, value in of_one)
