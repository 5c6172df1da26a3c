"""Jobs: their state follows from their files, one supervisor serves the queue, and no other process is ever hit."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli.main import app
from backend.jobs import process, queue, supervisor
from backend.jobs.commands import backtest_command, check_command, resumed_command
from backend.jobs.files import (
    CANCEL,
    EQUITY,
    JOB_LOG,
    OUTCOME,
    PROCESS,
    PROGRESS,
    Job,
    JobCancellation,
    JobOutcome,
    JobProcess,
    JobProgress,
    read_jobs,
    write_once,
    write_part,
)
from backend.jobs.processes import ProcessIdentity, process_start, this_process
from backend.jobs.progress import JobReport
from backend.jobs.queue import JobQueue
from backend.jobs.supervisor import Supervisor
from backend.runs.requests import BacktestRequest
from simulator.errors import UserError

COMMAND = ("data", "list", "nowhere")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    """A queue whose supervisor is not started: a test serves it itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    return JobQueue(tmp_path / "runs")


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process, first of its group, that ignores what would end it but for a kill."""
    text = (
        "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(1, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def running_as(job: Job, who: ProcessIdentity) -> None:
    write_part(job.path / PROCESS, JobProcess(who.pid, who.started, 1))


def test_a_state_follows_from_the_files_whoever_was_killed_in_between(jobs: JobQueue) -> None:
    """Each set of files that a kill can leave is one of the six states, and none needs to be put right."""
    me, gone = this_process(), ProcessIdentity(os.getpid(), "another start")
    expected: dict[tuple[str | None, bool, int | None], str] = {
        # process, cancelled, exit code
        (None, False, None): "queued", (None, True, None): "cancelled",
        (None, False, 1): "failed", (None, True, 1): "cancelled",
        ("alive", False, None): "running", ("alive", True, None): "running",
        ("gone", False, None): "died", ("gone", True, None): "cancelled",
        **{(who, late, 0): "done" for who in ("alive", "gone") for late in (False, True)},
        **{(who, False, 2): "failed" for who in ("alive", "gone")},
        **{(who, True, 2): "cancelled" for who in ("alive", "gone")},
        **{(who, late, 130): "cancelled" for who in ("alive", "gone") for late in (False, True)},
    }  # fmt: skip
    for (who, cancelled, code), status in expected.items():
        job = jobs.submit(COMMAND).job
        if who is not None:
            running_as(job, me if who == "alive" else gone)
        if cancelled:
            write_once(job.path / CANCEL, JobCancellation(5))
        if code is not None:
            write_part(job.path / OUTCOME, JobOutcome(code, 7))
        assert jobs.job(job.name).status == status, (who, cancelled, code)
        (job.path / PROGRESS).write_text('{"run": 5')  # half written, or by somebody else
        assert jobs.job(job.name).progress == JobProgress()


def test_a_number_that_was_given_out_again_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    hit: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: hit.append(pid))
    me = this_process()
    other = ProcessIdentity(me.pid, "1 before the last start of the machine")
    assert me.alive and not other.alive
    assert not other.signal_group(signal.SIGKILL) and not hit
    assert not ProcessIdentity(0, "").alive and not ProcessIdentity(-1, "").signal_group(signal.SIGKILL)
    assert me.signal_group(signal.SIGINT) and hit == [me.pid]


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) == ""
    child.wait()


def test_two_jobs_run_one_after_the_other_and_say_how_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(queue, "start_detached", lambda module, given, out: started.append((module, *given)))
    jobs = JobQueue(tmp_path / "runs")
    first = jobs.submit(COMMAND).job
    second = jobs.submit(("data", "list", "; touch $(echo pwned)")).job
    third = jobs.submit(COMMAND, tmp_path / "no such folder").job
    assert started == [("backend.jobs.supervisor", str(tmp_path / "runs"))] * 3, "none was there yet"
    assert [job.status for job in jobs.jobs()] == ["queued"] * 3
    Supervisor(jobs).serve()
    ended = [jobs.job(job.name) for job in (first, second, third)]
    assert [job.status for job in ended] == ["failed"] * 3
    assert ended[0].outcome is not None and ended[0].outcome.exit_code == 2
    assert "no such folder" in ended[0].message and "no such folder" in ended[0].log().lower()
    assert "touch" in ended[1].message and not list(tmp_path.glob("*pwned*")), "an argument is no shell's"
    assert "could not begin" in ended[2].message
    assert ended[0].process is not None and ended[1].process is not None and ended[0].finished_at is not None
    assert ended[0].finished_at <= ended[1].process.started_at, "one at a time"


def test_the_limit_counts_those_that_run(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Supervisor, "_start", lambda self, job: begun.append(job.name))
    names = [jobs.submit(COMMAND).job.name for _ in range(4)]
    running_as(jobs.job(names[0]), this_process())
    server = Supervisor(jobs)
    jobs.set_limit(1)
    assert server._step() and begun == []
    jobs.set_limit(3)
    assert server._step() and begun == names[1:3], "those who asked first"
    for wrong in (0, -1, 65):
        with pytest.raises(UserError, match="from 1 to 64"):
            jobs.set_limit(wrong)
    (jobs.folder / "limit").write_text("many")
    assert jobs.limit >= 1


def test_one_supervisor_serves_and_one_that_ends_is_followed(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(queue, "start_detached", lambda *given: started.append(given))
    with jobs.supervising() as first, jobs.supervising() as second:
        assert first and not second
        job = jobs.submit(COMMAND).job
        jobs.wake()
        assert not started, "the one that is there sees it"
    jobs.wake()
    assert len(started) == 1
    jobs.cancel(job.name)
    Supervisor(jobs).serve()  # ends at once, as nothing is left
    with jobs.supervising() as free:
        assert free
    jobs.wake()
    assert len(started) == 2, "cancel looked as well, and there is nothing to wake for"


def test_two_people_pressing_the_same_button_get_one_job(jobs: JobQueue, tmp_path: Path) -> None:
    one, other = jobs.submit(COMMAND, once=True), jobs.submit(COMMAND, once=True)
    assert one.new and not other.new and one.job.name == other.job.name
    assert jobs.submit(COMMAND).new, "who wants it twice gets it twice"
    assert jobs.submit(COMMAND, tmp_path / "elsewhere", once=True).new
    for job in jobs.jobs():
        jobs.cancel(job.name)
    assert jobs.submit(COMMAND, once=True).new, "one that is cancelled is not taken for it"


def test_a_second_cancel_sends_no_second_signal(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command takes a second signal as: at once."""
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(number))
    job = jobs.submit(COMMAND).job
    running_as(job, this_process())
    assert jobs.cancel(job.name).status == "running"
    assert jobs.cancel(job.name).message == "it is being stopped"
    assert sent == [signal.SIGINT]


def test_a_cancelled_job_that_does_not_end_is_ended(
    jobs: JobQueue, stubborn: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LAST_WORD", 0.05)
    job = jobs.submit(COMMAND).job
    running_as(job, ProcessIdentity(stubborn.pid, process_start(stubborn.pid)))
    jobs.cancel(job.name)
    server = Supervisor(jobs, patience=0.2)
    server._step()
    assert stubborn.poll() is None, "it has its time"
    deadline = time.monotonic() + 10
    while server._step() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stubborn.wait(5) == -signal.SIGKILL
    assert jobs.job(job.name).status == "cancelled"


def test_a_job_that_is_cancelled_before_it_begins_does_nothing(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_run_command", lambda folder: pytest.fail("it ran"))
    job = jobs.submit(COMMAND).job
    jobs.cancel(job.name)
    assert process.run_job(job.path) == 130
    assert jobs.job(job.name).status == "cancelled"
    with pytest.raises(UserError, match="ended already"):
        jobs.cancel(job.name)


def test_a_job_is_run_once_although_two_processes_begin_it(jobs: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Path] = []

    def run(folder: Path) -> int:
        ran.append(folder)
        return 0

    monkeypatch.setattr(process, "_run_command", run)
    job = jobs.submit(COMMAND).job
    assert (process.run_job(job.path), process.run_job(job.path)) == (0, 1)
    assert ran == [job.path] and jobs.job(job.name).status == "done"


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
        ("paper", "start"),
        ("paper",),
        ("--help",),
        ("data", "a\0b"),
    ]
    for command in commands:
        with pytest.raises(UserError):
            check_command(command)
    (jobs.folder.parent / "file").parent.mkdir(parents=True, exist_ok=True)
    (jobs.folder.parent / "file").write_text("")
    with pytest.raises(UserError, match="jobs cannot be kept"):
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
    record=st.sampled_from([None, Path("cassette")]),
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


def test_files_of_a_job_are_whole(jobs: JobQueue) -> None:
    job = jobs.submit(COMMAND).job
    assert json.loads((job.path / "job.json").read_text())["command"] == list(COMMAND)
    assert write_once(job.path / CANCEL, JobCancellation(1)) and not write_once(job.path / CANCEL, JobCancellation(2))
    assert sorted(path.name for path in job.path.iterdir()) == ["cancel.json", "job.json"], "nothing is left beside"
    assert read_jobs(jobs.folder, ended=False) == read_jobs(jobs.folder)
