"""Jobs: their state follows from their files, each waits for its turn, and no other process is ever signaled."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.main import app
from backend.jobs import files, process, queue
from backend.jobs.commands import backtest_command, check_command, resumed_command
from backend.jobs.files import (
    CANCEL,
    EQUITY,
    JOB,
    JOB_LOG,
    OUTCOME,
    PROCESS,
    PROGRESS,
    Job,
    JobOutcome,
    JobProcess,
    JobProgress,
    JobRequest,
    own_process,
    write_part,
)
from backend.jobs.processes import process_at
from backend.jobs.progress import JobReport
from backend.jobs.queue import JobQueue
from backend.runs.requests import BacktestRequest
from simulator.errors import UserError

COMMAND = ("data", "list", "nowhere")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    """A queue whose jobs get no process: a test gives them one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    return JobQueue(tmp_path / "runs")


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that wait, with the arguments that they are given."""
    children: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, session: bool = True) -> subprocess.Popen[bytes]:
        text = "import time; print(1, flush=True); time.sleep(60)"
        command = [sys.executable, "-c", text, *arguments]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=session)
        assert child.stdout is not None
        child.stdout.readline()
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def begun_by(job: Job, pid: int, at: int = 1) -> None:
    """The job's folder names this process."""
    found = process_at(pid)
    write_part(job.path / PROCESS, JobProcess(pid, "" if found is None else found.started, at))


def test_a_state_follows_from_the_files_whoever_was_killed_in_between(
    jobs: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each set of files that a kill can leave is one state, and none needs to be put right."""
    alive = {"waits": True, "works": True, "gone": None, "other": False}
    monkeypatch.setattr(files, "own_process", lambda path, request, one: alive[one.started])
    expected: dict[tuple[str | None, bool, int | None], str] = {
        # process, cancelled, exit code
        (None, False, None): "queued", (None, True, None): "cancelled",
        ("waits", False, None): "queued", ("waits", True, None): "queued",
        ("works", False, None): "running", ("works", True, None): "running",
        ("gone", False, None): "died", ("gone", True, None): "cancelled",
        **{("other", late, code): "foreign" for late in (False, True) for code in (None, 0, 2)},
        **{(who, late, 0): "done" for who in ("works", "gone") for late in (False, True)},
        **{(who, False, 2): "failed" for who in ("works", "gone")},
        **{(who, True, 2): "cancelled" for who in ("works", "gone")},
        **{(who, late, 130): "cancelled" for who in ("works", "gone") for late in (False, True)},
    }  # fmt: skip
    for (who, cancelled, code), status in expected.items():
        job = jobs.submit(COMMAND).job
        if who is not None:
            write_part(job.path / PROCESS, JobProcess(1, who, int(who != "waits")))
        if cancelled:
            write_part(job.path / CANCEL, 5)
        if code is not None:
            write_part(job.path / OUTCOME, JobOutcome(code, 7))
        assert jobs.job(job.name).status == status, (who, cancelled, code)
        (job.path / PROGRESS).write_text('{"run": 5')  # half written, or by another program
        assert jobs.job(job.name).progress == JobProgress()
    old = jobs.submit(COMMAND).job
    write_part(old.path / JOB, JobRequest(COMMAND, "", 1).signed(old.path))
    assert jobs.job(old.name).status == "died", "its process has never come"


def test_only_the_very_process_of_a_job_is_signaled(
    jobs: JobQueue, started: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A folder may name any process: another one of this user, one of another user, one that has the number of one that
    has ended, the job of a folder that was copied. None of them gets a signal."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    job = jobs.submit(COMMAND).job
    place, token = os.path.realpath(job.path), job.request.token
    mine = started(place, token)
    begun_by(job, mine.pid)
    assert jobs.job(job.name).status == "running"
    copy = tmp_path / "copied"
    shutil.copytree(jobs.folder.parent, copy)
    others = {
        "a process of this user": started("some", "thing").pid,
        "one without the token": started(place, "f" * 32).pid,
        "one for another folder": started(str(tmp_path), token).pid,
        "one that leads no session": started(place, token, session=False).pid,
        "the test itself": os.getpid(),
        "process 1": 1,
        "its parent": os.getppid(),
    }
    for who, pid in others.items():
        begun_by(job, pid)
        assert jobs.job(job.name).status == "foreign", who
        with pytest.raises(UserError, match="is not yours: nothing is done with it"):
            jobs.cancel(job.name)
    for pid, start in ((mine.pid, "1 before the last start of the machine"), (0, ""), (-1, ""), (2**40, "x")):
        write_part(job.path / PROCESS, JobProcess(pid, start, 1))
        assert jobs.job(job.name).status == "died"
        with pytest.raises(UserError, match="it is died"):
            jobs.cancel(job.name)
    with pytest.raises(UserError, match="is not yours"):
        JobQueue(copy).cancel(job.name)
    assert not sent
    begun_by(job, mine.pid)
    jobs.cancel(job.name)
    assert jobs.job(job.name).message == "it is being stopped"
    jobs.cancel(job.name)
    assert sent == [(mine.pid, signal.SIGINT), (mine.pid, signal.SIGKILL)]


def test_a_process_of_another_user_is_foreign(
    jobs: JobQueue, started: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.submit(COMMAND).job
    child = started(os.path.realpath(job.path), job.request.token)
    begun_by(job, child.pid)
    [seen] = [files.read_part(job.path / PROCESS, JobProcess)]
    assert seen is not None and own_process(job.path, job.request, seen)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert own_process(job.path, job.request, seen) is False
    assert jobs.job(job.name).status == "foreign"
    with pytest.raises(UserError, match="is not yours"):
        jobs.resume(job.name)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link": lambda path: path.symlink_to(path.parent.parent.parent.parent / "secret"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a folder": lambda path: path.mkdir(),
    "nonsense": lambda path: path.write_bytes(b"\xff\x00{[" * 1000),
    "deep nesting": lambda path: path.write_text("[" * 100_000),
    "numbers without end": lambda path: path.write_text('{"pid": 1e999, "exit_code": -' + "9" * 5000 + "}"),
}


@pytest.mark.parametrize("part", [JOB, PROCESS, PROGRESS, OUTCOME, CANCEL, JOB_LOG, EQUITY])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_of_a_job_is_neither_followed_nor_waited_for(
    jobs: JobQueue, tmp_path: Path, part: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of a job by each thing that it should not be: everything is answered at once, in words."""
    (tmp_path / "secret").write_text('{"exit_code": 0, "finished_at": 1} secret')
    monkeypatch.setattr(os, "killpg", lambda pid, number: pytest.fail("a process was signaled"))
    job, other = jobs.submit(COMMAND).job, jobs.submit(COMMAND).job
    (job.path / part).unlink(missing_ok=True)
    monkeypatch.chdir(job.path)  # the name of a socket is short
    HOSTILE[kind](job.path / part)
    began = time.monotonic()
    with suppress(UserError):
        seen = jobs.job(job.name)
        shown = [seen.status, seen.message, seen.log(), seen.equity(), seen.progress, seen.how_far, seen.share]
        assert "secret" not in str(shown) and seen.status in ("queued", "cancelled")
    assert other.name in [one.name for one in jobs.jobs()], "it hides another one"
    with suppress(UserError):
        jobs.cancel(job.name)
    with suppress(UserError):
        jobs.resume(job.name)
    assert time.monotonic() - began < 5.0
    assert (tmp_path / "secret").read_text().endswith("secret")


@pytest.mark.parametrize("place", ["job", "jobs"])
def test_a_job_behind_a_link_is_foreign(jobs: JobQueue, tmp_path: Path, place: str) -> None:
    job = jobs.submit(COMMAND).job
    if place == "job":
        shutil.move(job.path, tmp_path / "elsewhere")
        job.path.symlink_to(tmp_path / "elsewhere")
        assert jobs.job(job.name).status == "foreign"
        return
    shutil.move(jobs.folder, tmp_path / "elsewhere")
    jobs.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link, through which nothing is written"):
        jobs.submit(COMMAND)


def test_two_jobs_run_one_after_the_other_and_write_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, in sessions of their own; an argument is no shell's."""
    monkeypatch.chdir(tmp_path)
    jobs = JobQueue(tmp_path / "runs")
    names = [jobs.submit(one).job.name for one in (COMMAND, ("data", "list", "; touch $(echo pwned)"))]
    deadline = time.monotonic() + 120
    while jobs.active() and time.monotonic() < deadline:
        time.sleep(0.1)
    first, second = (jobs.job(name) for name in names)
    assert (first.status, second.status) == ("failed", "failed")
    assert first.outcome is not None and first.outcome.exit_code == 2
    assert "nowhere" in first.message and "touch" in second.message and not list(tmp_path.glob("*pwned*"))
    if jobs.limit == 1:
        assert first.finished_at is not None and second.started_at is not None
        assert first.finished_at <= second.started_at, "one at a time"
    with pytest.raises(UserError, match=r"the job cannot be started .*no such folder"):
        jobs.submit(COMMAND, tmp_path / "no such folder")
    assert len(jobs.jobs()) == 2, "what could not begin leaves no job"


def test_a_job_waits_for_those_that_were_submitted_before_it(
    jobs: JobQueue, started: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobQueue, "limit", 1)
    first, second = jobs.submit(COMMAND).job, jobs.submit(COMMAND).job
    later = JobRequest(COMMAND, "", first.request.submitted_at + 1).signed(second.path)
    write_part(second.path / JOB, later)
    child = started(os.path.realpath(first.path), first.request.token)
    begun_by(first, child.pid)
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            write_part(first.path / OUTCOME, JobOutcome(0, 1))

    monkeypatch.setattr(process.time, "sleep", look)
    process._wait_for_turn(first.path)
    assert not looks
    process._wait_for_turn(second.path)
    assert len(looks) == 3


def test_the_same_work_is_one_job(jobs: JobQueue, tmp_path: Path) -> None:
    one, other = jobs.submit(COMMAND, once=True), jobs.submit(COMMAND, once=True)
    assert one.new and not other.new and one.job.name == other.job.name
    assert jobs.submit(COMMAND).new, "who wants it twice gets it twice"
    assert jobs.submit(COMMAND, tmp_path / "elsewhere", once=True).new
    for job in jobs.jobs():
        jobs.cancel(job.name)
    assert jobs.submit(COMMAND, once=True).new, "one that is cancelled is not taken for it"


def test_a_job_that_is_cancelled_before_it_begins_does_nothing(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_run", lambda *given: pytest.fail("it ran"))
    job = jobs.submit(COMMAND).job
    jobs.cancel(job.name)
    assert process.run_job(job.path, COMMAND) == 130
    assert jobs.job(job.name).outcome == JobOutcome(130, jobs.job(job.name).finished_at or 0)
    with pytest.raises(UserError, match="cannot be cancelled"):
        jobs.cancel(job.name)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", "nothing", "A", "x" * 200, "a\n", "\0"])
def test_a_name_leads_nowhere_else(jobs: JobQueue, name: str) -> None:
    with pytest.raises(UserError, match="there is no job"):
        jobs.job(name)


def test_a_damaged_folder_hides_no_other(jobs: JobQueue) -> None:
    kept, damaged = jobs.submit(COMMAND).job, jobs.submit(COMMAND).job
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
    (jobs.folder.parent / "file").parent.mkdir(parents=True, exist_ok=True)
    (jobs.folder.parent / "file").write_text("")
    with pytest.raises(UserError, match="the job cannot be started"):
        JobQueue(jobs.folder.parent / "file").submit(COMMAND)


@pytest.mark.parametrize(
    ("progress", "left"),
    [
        (JobProgress("", "step", 30, 40, at=60_000, since=20_000, first=10), 20.0),  # 2 s a step, ten to go
        (
            JobProgress("", "step", 30, 40, at=50_000, since=10_000, first=10),
            10.0,
        ),  # the last count was ten seconds ago
        (JobProgress("", "step", 39, 40, at=20_000, since=10_000, first=29), 0.0),  # it takes longer than it should
        (JobProgress("", "step", 10, 40, at=60_000, since=60_000, first=10), None),
        (JobProgress("", "step", 40, 40, at=60_000, since=20_000, first=10), None),
        (JobProgress(), None),
    ],
)
def test_time_left_is_of_the_pace_so_far(jobs: JobQueue, progress: JobProgress, left: float | None) -> None:
    job = jobs.submit(COMMAND).job
    write_part(job.path / PROGRESS, progress)
    assert jobs.job(job.name).seconds_left(60.0) == left


def test_each_part_of_a_job_has_a_pace_of_its_own(jobs: JobQueue) -> None:
    job = jobs.submit(COMMAND).job
    report = JobReport(job.path, seconds=0.0)
    for what, done, total in (("rollouts", 3, 8), ("rollouts", 8, 8), ("steps", 50, 60), ("steps", 51, 60)):
        report.moved(what, done, total)
    progress = jobs.job(job.name).progress
    assert (progress.first, progress.done) == (50, 51) and 0 < progress.since <= progress.at


def test_progress_is_seen_while_it_is_made(jobs: JobQueue) -> None:
    job, clock = jobs.submit(COMMAND).job, itertools.count(0.0, 0.1)
    report = JobReport(job.path, seconds=1.0, clock=lambda: next(clock))
    report.started("backtest-7")
    report.equity("a", list(range(10_000)), [1.0] * 9_999 + [2.0])
    report.moved("backtest", 1, 3)
    assert jobs.job(job.name).progress.done == 0, "not at every step"
    report.moved("backtest", 3, 3)
    seen = jobs.job(job.name)
    assert (seen.run, seen.how_far, seen.share) == ("backtest-7", "backtest 3/3", 1.0)
    with (job.path / EQUITY).open("a") as file:
        file.write('["a", 5\n["a", 10000, 3.0]\n["b", 1')
    times, values = seen.equity()["a"]
    assert len(times) < 500 and times[-2:] == [9_999, 10_000] and values[-2:] == [2.0, 3.0]
    (job.path / JOB_LOG).write_text("x" * 500 + "\nlast words\n")
    assert seen.log(100) == "last words\n"


REQUESTS = st.builds(
    BacktestRequest,
    config=st.sampled_from(["", "quick"]),
    data=st.sampled_from([None, Path("bars of mine")]),
    symbols=st.sampled_from([(), ("AAAUSDT",), ("AAAUSDT", "BBBUSDT")]),
    timeframe=st.sampled_from(["", "4h"]),
    resample=st.sampled_from(["", "1d"]),
    funding=st.sampled_from([None, Path("funding")]),
    news=st.sampled_from([None, Path("-news")]),
    teams=st.sampled_from([("scripted",), ("hold", "runs/my team")]),
    start=st.sampled_from(["", "2020-01-01"]),
    end=st.sampled_from(["", "2020-03-01"]),
    decide_every=st.integers(0, 9),
    seed=st.integers(0, 9),
    finer=st.sampled_from(["", "1m"]),
    rules=st.sampled_from(["", "none"]),
    baselines=st.sampled_from([None, (), ("hold", "flat")]),
    unmasked=st.booleans(),
    record=st.sampled_from([None, Path("tape.jsonl")]),
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
            app(list(backtest_command(request, "some/store", "some/runs")), standalone_mode=False)
    assert read == [request]


@pytest.mark.parametrize(
    ("command", "run", "goes_on"),
    [
        (("train", "--config", "quick", "--store=s", "--workers", "2"), "train-1",
         ("train", "--resume", "train-1", "--store=s", "--workers", "2")),
        (("train", "--config", "quick"), "", ("train", "--config", "quick")),
        (("sft", "--out", "x"), "", ("sft", "--out", "x")),
        (("backtest", "--record=c"), "b", ("backtest", "--record=c")),
        (("backtest", "--team=hold"), "b", None),
        (("evaluate", "x"), "e", None),
    ],
)  # fmt: skip
def test_how_a_job_goes_on(jobs: JobQueue, command: tuple[str, ...], run: str, goes_on: tuple[str, ...] | None) -> None:
    job = jobs.submit(command).job
    write_part(job.path / PROGRESS, JobProgress(run=run))
    assert jobs.resume(job.name).job.name == job.name, "it waits: it goes on by itself"
    write_part(job.path / OUTCOME, JobOutcome(130, 1))
    if goes_on is None:
        with pytest.raises(UserError, match="keeps nothing to go on with"):
            jobs.resume(job.name)
        return
    assert resumed_command(jobs.job(job.name)) == goes_on
    new = jobs.resume(job.name)
    assert new.new and new.job.request.command == goes_on and new.job.request.resumes == job.name
    write_part(job.path / OUTCOME, JobOutcome(0, 1))
    with pytest.raises(UserError, match="is done"):
        jobs.resume(job.name)


def test_files_of_a_job_are_whole_and_only_its_users(jobs: JobQueue) -> None:
    job = jobs.submit(COMMAND).job
    assert json.loads((job.path / JOB).read_text())["command"] == list(COMMAND)
    assert sorted(path.name for path in job.path.iterdir()) == [JOB, JOB_LOG], "something is left beside"
    assert job.path.stat().st_mode & 0o077 == 0
