"""Jobs: their state follows from their files, each waits for its turn, and no other process is ever signaled."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.main import app
from backend.jobs import process, queue
from backend.jobs.commands import check_command, request_command
from backend.jobs.files import (
    ALIVE,
    CANCEL,
    JOB,
    JOB_LOG,
    STATE,
    Job,
    JobReport,
    JobRequest,
    JobState,
    write_part,
)
from backend.jobs.queue import JobQueue
from backend.runs.requests import BacktestRequest
from simulator.errors import UserError

COMMAND, OTHER = ("data", "list", "nowhere"), ("data", "list", "elsewhere")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    """A queue whose jobs get no process: a test gives them one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    return JobQueue(tmp_path / "runs")


@contextmanager
def living(job: Job) -> Iterator[None]:
    """The process of the job lives for a block: it holds the lock."""
    with (job.path / ALIVE).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_state_follows_from_the_files_whoever_was_killed_in_between(jobs: JobQueue) -> None:
    """Each set of files that a kill can leave is one state, and none needs to be put right."""
    waits, works = JobState(9), JobState(9, 5)
    expected: list[tuple[JobState | None, bool, bool, str]] = [
        # written by its process, whether that lives, cancelled
        (None, False, False, "queued"), (None, False, True, "cancelled"), (None, True, False, "queued"),
        (waits, True, False, "queued"), (waits, True, True, "queued"), (waits, False, False, "died"),
        (works, True, False, "running"), (works, True, True, "running"),
        (works, False, False, "died"), (works, False, True, "cancelled"),
        *((replace(works, exit_code=0), lives, late, "done") for lives in (False, True) for late in (False, True)),
        *((replace(works, exit_code=2), lives, False, "failed") for lives in (False, True)),
        *((replace(works, exit_code=2), lives, True, "cancelled") for lives in (False, True)),
        *((replace(works, exit_code=code), False, False, "cancelled") for code in (129, 130, 143)),
    ]  # fmt: skip
    for number, (state, lives, cancelled, status) in enumerate(expected):
        job = jobs.submit((*COMMAND, str(number)))
        if state is not None:
            write_part(job.path / STATE, state)
        if cancelled:
            (job.path / CANCEL).touch()
        with living(job) if lives else nullcontext():
            assert jobs.job(job.name).status == status, (state, lives, cancelled)
        (job.path / STATE).write_text('{"run": 5')  # half written, or by another program
        assert jobs.job(job.name).state == JobState()
    old = jobs.submit(OTHER)
    write_part(old.path / JOB, JobRequest(COMMAND, "", 1))
    assert jobs.job(old.name).status == "died", "its process has never come"


def test_only_a_process_that_holds_the_jobs_lock_is_signaled(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes are given out again: the one of a job that has died may be another's by now."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    job = jobs.submit(COMMAND)
    write_part(job.path / STATE, JobState(os.getpid(), 1))
    with pytest.raises(UserError, match="it is died"):
        jobs.cancel(job.name)
    assert not sent
    with living(job):
        jobs.cancel(job.name)
        assert jobs.job(job.name).message == "it is being stopped"
        jobs.cancel(job.name)
    assert sent == [(os.getpid(), signal.SIGINT), (os.getpid(), signal.SIGKILL)]
    for number in (0, 1, -1):
        other = jobs.submit((*COMMAND, str(number)))
        write_part(other.path / STATE, JobState(number, 1))
        with living(other):
            jobs.cancel(other.name)
    assert len(sent) == 2, "no group of everybody"


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder": lambda path: path.mkdir(),
    "nonsense": lambda path: path.write_bytes(b"\xff\x00{[" * 1000),
    "deep nesting": lambda path: path.write_text("[" * 100_000),
    "numbers without end": lambda path: path.write_text('{"pid": 1e999, "exit_code": -' + "9" * 5000 + "}"),
}


@pytest.mark.parametrize("part", [JOB, STATE, ALIVE, CANCEL, JOB_LOG])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_of_a_job_is_neither_followed_nor_waited_for(
    jobs: JobQueue, part: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of a job by each thing that it should not be: everything is answered at once, in words."""
    monkeypatch.setattr(os, "killpg", lambda pid, number: pytest.fail("a process was signaled"))
    job, other = jobs.submit(COMMAND), jobs.submit(OTHER)
    (job.path / part).unlink(missing_ok=True)
    monkeypatch.chdir(job.path)  # the name of a socket is short
    HOSTILE[kind](job.path / part)
    began = time.monotonic()
    with suppress(UserError):
        seen = jobs.job(job.name)
        shown = [seen.message, seen.log(), seen.state, seen.share]
        assert str(shown) and seen.status in ("queued", "cancelled")
    assert other.name in [one.name for one in jobs.jobs()], "it hides another one"
    with suppress(UserError):
        jobs.cancel(job.name)
    assert time.monotonic() - began < 5.0


def test_two_jobs_run_one_after_the_other_and_write_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, in sessions of their own; an argument is no shell's."""
    monkeypatch.chdir(tmp_path)
    jobs = JobQueue(tmp_path / "runs")
    names = [jobs.submit(one).name for one in (COMMAND, ("data", "list", "; touch $(echo pwned)"))]
    deadline = time.monotonic() + 120
    while jobs.active() and time.monotonic() < deadline:
        time.sleep(0.1)
    first, second = (jobs.job(name) for name in names)
    assert (first.status, second.status) == ("failed", "failed")
    assert first.state.exit_code == 2
    assert "nowhere" in first.message and "touch" in second.message and not list(tmp_path.glob("*pwned*"))
    if jobs.limit == 1:
        assert first.state.finished_at is not None
        assert first.state.finished_at <= second.state.started_at, "one at a time"
    with pytest.raises(UserError, match=r"the job cannot be started .*no such folder"):
        jobs.submit(COMMAND, tmp_path / "no such folder")
    assert len(jobs.jobs()) == 2, "what could not begin leaves no job"


def test_a_job_waits_for_those_that_were_submitted_before_it(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobQueue, "limit", 1)
    first, second = jobs.submit(COMMAND), jobs.submit(OTHER)
    write_part(second.path / JOB, JobRequest(OTHER, "", first.request.submitted_at + 1))
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            write_part(first.path / STATE, JobState(exit_code=0, finished_at=1))

    monkeypatch.setattr(process.time, "sleep", look)
    process._wait_for_turn(first.path)
    assert not looks
    process._wait_for_turn(second.path)
    assert len(looks) == 3


def test_the_same_work_is_one_job(jobs: JobQueue, tmp_path: Path) -> None:
    one, other = jobs.submit(COMMAND), jobs.submit(COMMAND)
    assert one.name == other.name
    assert jobs.submit(COMMAND, tmp_path / "elsewhere").name != one.name
    for job in jobs.jobs():
        jobs.cancel(job.name)
    assert jobs.submit(COMMAND).name != one.name, "one that is cancelled is not taken for it"


def test_a_job_that_is_cancelled_before_it_begins_does_nothing(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run_module", lambda *given, **more: pytest.fail("it ran"))
    job = jobs.submit(COMMAND)
    jobs.cancel(job.name)
    assert process.run_job(job.path, COMMAND) == 130
    assert jobs.job(job.name).state.exit_code == 130
    with pytest.raises(UserError, match="cannot be cancelled"):
        jobs.cancel(job.name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "nothing", "A", "x" * 200, "a\n", "\0"])
def test_a_name_leads_nowhere_else(jobs: JobQueue, name: str) -> None:
    with pytest.raises(UserError, match="there is no job"):
        jobs.job(name)


def test_a_damaged_folder_hides_no_other(jobs: JobQueue) -> None:
    kept, damaged = jobs.submit(COMMAND), jobs.submit(OTHER)
    (damaged.path / "job.json").write_text('{"command": 7}')
    assert [job.name for job in jobs.jobs()] == [kept.name]
    with pytest.raises(UserError, match="cannot be read: remove the folder"):
        jobs.job(damaged.name)


def test_what_is_no_job_is_refused(jobs: JobQueue) -> None:
    commands: list[Sequence[str]] = [
        (),
        ("ui",),
        ("jobs", "list"),
        ("paper",),
        ("paper", "start"),
        ("--help",),
        ("data", "a\0b"),
    ]
    for command in commands:
        with pytest.raises(UserError):
            check_command(command)
    for allowed in (["paper", "run"], ("paper", "demo")):  # the command line gives a list
        check_command(allowed)
    (jobs.folder.parent / "file").parent.mkdir(parents=True, exist_ok=True)
    (jobs.folder.parent / "file").write_text("")
    with pytest.raises(UserError, match="the job cannot be started"):
        JobQueue(jobs.folder.parent / "file").submit(COMMAND)


def test_progress_is_seen_while_it_is_made(jobs: JobQueue) -> None:
    job = jobs.submit(COMMAND)
    report = JobReport(job.path)
    report.started("backtest-7")
    report.moved("backtest", 1, 3)
    assert jobs.job(job.name).state.done == 0, "not at every step"
    report.moved("backtest", 3, 3)
    seen = jobs.job(job.name)
    assert (seen.run, seen.state.what, seen.share) == ("backtest-7", "backtest", 1.0)
    (job.path / JOB_LOG).write_text("x" * 500 + "\nlast words\n")
    assert seen.log(100) == "last words\n"


REQUESTS = st.builds(
    BacktestRequest,
    config=st.sampled_from(["", "quick"]),
    data=st.sampled_from(["", "bars of mine"]),
    symbols=st.sampled_from([(), ("AAAUSDT",), ("AAAUSDT", "BBBUSDT")]),
    timeframe=st.sampled_from(["", "4h"]),
    resample=st.sampled_from(["", "1d"]),
    teams=st.sampled_from([("scripted",), ("hold", "runs/my team")]),
    start=st.sampled_from(["", "2020-01-01"]),
    end=st.sampled_from(["", "2020-03-01"]),
    decide_every=st.integers(0, 9),
    seed=st.integers(0, 9),
    finer=st.sampled_from(["", "1m"]),
    rules=st.sampled_from(["", "none"]),
    baselines=st.sampled_from([None, (), ("hold", "flat")]),
    variants=st.sampled_from([(), ("no_veto", "unmasked")]),
    record=st.sampled_from(["", "-tape.jsonl"]),
    check_lookahead=st.booleans(),
    overrides=st.sampled_from([(), ("costs.impact=0.0", 'venue.rules=""', "evaluation.baselines=['hold']")]),
)


@settings(max_examples=25)
@given(REQUESTS)
def test_a_backtest_as_a_command_is_the_same_backtest(request: BacktestRequest) -> None:
    """What the page hands to the queue is what its form says: nothing is lost on the way through the command line."""
    read: list[BacktestRequest] = []

    class Read(Exception):
        pass

    def stop(self: BacktestRequest) -> None:
        read.append(self)
        raise Read

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BacktestRequest, "check", stop)
        with pytest.raises(Read):
            app(
                list(request_command(("backtest",), request, store="some/store", runs="some/runs")),
                standalone_mode=False,
            )
    assert read == [request]


def test_files_of_a_job_are_whole_and_only_its_users(jobs: JobQueue) -> None:
    job = jobs.submit(COMMAND)
    assert json.loads((job.path / JOB).read_text())["command"] == list(COMMAND)
    assert sorted(path.name for path in job.path.iterdir()) == [JOB, JOB_LOG], "something is left beside"
    assert job.path.stat().st_mode & 0o077 == 0
