"""A job as files in its folder. Each has one writer and is written in one step, so a job has one state at every moment.

| file | written by | contents |
| --- | --- | --- |
| `job.json` | the program that submits the job | the command, where it runs, and since when it waits |
| `state.json` | the job's process | its number, the run that it makes, how far it is, its exit code |
| `alive` | the job's process | locked while that lives: a crash frees it, and a number alone proves nothing |
| `cancel` | the first program that cancels it | nothing; its time |
| `log` | the command | its output |
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from simulator.files import write_whole
from simulator.folders import check_regular

JobStatus = Literal["queued", "running", "done", "failed", "cancelled", "died"]
JOB, STATE, ALIVE, CANCEL, JOB_LOG = "job.json", "state.json", "alive", "cancel", "log"
_SIGNALED = (129, 130, 143)  # exit codes of a command that a signal has ended
_LOG_BYTES = 200_000  # of a log that are read at once
_PART_BYTES = 1_000_000  # of any other file
_SECONDS = 0.4  # between two writes of its progress
_BEGINS_WITHIN = 300.0  # seconds until the process of a job must have begun

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class JobRequest:
    """What was asked for: the arguments of `cryptosentinel`, the folder that they are meant in, and when (ms).
    `own_modules`: whether it may import the user's modules that the command names."""

    command: tuple[str, ...]
    folder: str
    submitted_at: int
    own_modules: bool = True


@dataclass(frozen=True)
class JobState:
    """The process of a job, when its turn came (ms; 0 while it waits), the run that it makes, how far it is (`done` of
    `total` parts of `what`), and how and when it ended."""

    pid: int = 0
    started_at: int = 0
    run: str = ""
    what: str = ""
    done: int = 0
    total: int = 0
    note: str = ""
    exit_code: int | None = None
    finished_at: int | None = None


@dataclass(frozen=True)
class Job:
    """A job as its files have it at one moment."""

    name: str
    path: Path
    request: JobRequest
    state: JobState
    cancelled: bool
    alive: bool

    @property
    def status(self) -> JobStatus:
        """Whether it waits, runs, or how it ended. `died`: its process is gone and has not written how it ended."""
        code = self.state.exit_code
        if code is not None:
            return "done" if code == 0 else "cancelled" if self.cancelled or code in _SIGNALED else "failed"
        if self.alive:
            return "running" if self.state.started_at else "queued"
        if self.cancelled:
            return "cancelled"
        waits = not self.state.pid and time.time() - self.request.submitted_at / 1000 < _BEGINS_WITHIN
        return "queued" if waits else "died"

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.status in ("queued", "running")

    @property
    def run(self) -> str:
        """The id of the run that it made or makes; empty while it has not begun one."""
        return self.state.run

    @property
    def message(self) -> str:
        """Why it is not done, in one sentence; empty where there is nothing to say."""
        status = self.status
        if status == "died":
            return "its process ended without an exit code, as after a kill or a restart of the machine; see its log"
        if status == "failed":
            _, found, words = self.log(4_000).rpartition("error: ")
            return " ".join(words.split())[:500] if found else "it ended with an error; see its log"
        return "it is being stopped" if self.active and self.cancelled else ""

    @property
    def share(self) -> float | None:
        """How much of its present part is done, from 0 to 1; None before there is any."""
        return min(1.0, max(0.0, self.state.done / self.state.total)) if self.state.total > 0 else None

    def log(self, most: int = _LOG_BYTES) -> str:
        """The end of the command's output, at most that many bytes; empty before it began."""
        text = _end_of(self.path / JOB_LOG, most + 1).decode("utf-8", errors="replace")
        return text.partition("\n")[2] if len(text.encode()) > most else text


def is_alive(path: Path) -> bool:
    """Whether the process of the job in the folder `path` lives."""
    try:
        with open(os.open(path / ALIVE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _end_of(path: Path, most: int) -> bytes:
    """The end of a regular file, at most that many bytes; empty where there is none."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most)
    except (OSError, ValueError):
        return b""


def read_part(path: Path, kind: type[_Part]) -> _Part | None:
    """A file of a job; None where there is none, or it is damaged."""
    try:
        return TypeAdapter(kind).validate_json(_end_of(path, _PART_BYTES))
    except ValidationError:
        return None


def write_part(path: Path, document: Any) -> None:
    """Write a file of a job in one step. Raises OSError."""
    write_whole(path, json.dumps(asdict(document)))


class JobReport:
    """Writes the state of the job in `folder`. A disk that is full costs the report and not the run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._state, self._last = folder, JobState(), float("-inf")

    def set(self, **changed: Any) -> None:
        """Change fields of the state and write it at once. Raises OSError."""
        self._state, self._last = replace(self._state, **changed), time.monotonic()
        write_part(self._folder / STATE, self._state)

    def started(self, run: str) -> None:
        """The run begins."""
        with suppress(OSError):
            self.set(run=run)

    def moved(self, what: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` parts of `what` are finished. Not every part is written, but the last one is."""
        self._state = replace(self._state, what=what, done=done, total=total, note=note)
        if done >= total or time.monotonic() - self._last >= _SECONDS:
            with suppress(OSError):
                self.set()


own_job: list[JobReport] = []  # that of the job that this process runs, at most one
