"""The commands of `cryptosentinel jobs`, as a user types them; no process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.jobs import queue
from backend.jobs.files import STATE, JobState, write_part
from backend.jobs.queue import JobQueue
from tests.command_line import Run, program


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    return program(tmp_path, monkeypatch, capsys)


def test_a_job_from_its_order_to_its_end(command: Run, tmp_path: Path) -> None:
    assert "there are no jobs" in command("jobs", "list").out
    said = command("jobs", "run", "--", "train", "--config", "quick", "--set", "a.b='x y'")
    assert said.code == 0 and "train --config quick --set" in said.out
    [job] = JobQueue(tmp_path / "runs").jobs()
    assert job.request.command == ("train", "--config", "quick", "--set", "a.b='x y'")
    assert job.name in command("jobs", "list").out
    shown = command("jobs", "show", job.name).out
    assert "state: queued" in shown and str(tmp_path) in shown
    assert f"job {job.name} is cancelled" in command("jobs", "cancel", job.name).out
    again = command("jobs", "cancel", job.name)
    assert again.code == 2 and "it is cancelled" in again.err
    write_part(job.path / STATE, JobState(run="train-7", what="M-GRPO", done=2, total=5))
    listed = command("jobs", "list").out
    assert "cancelled" in listed and "40%" in listed and "train-7" in listed


def test_what_a_log_says_is_shown_as_text(command: Run, tmp_path: Path) -> None:
    command("jobs", "run", "--", "sft")
    [job] = JobQueue(tmp_path / "runs").jobs()
    (job.path / "log").write_text("\x1b[31mred [bold]x[/bold]\nerror: the disk is full\n")
    write_part(job.path / STATE, JobState(exit_code=1, finished_at=5))
    shown = command("jobs", "show", job.name).out
    assert "\x1b" not in shown and "[bold]x[/bold]" in shown and "state: failed: the disk is full" in shown
    assert "\x1b" not in command("jobs", "show", job.name, "--log").out


def test_mistakes_are_explained(command: Run) -> None:
    for arguments, words in (
        (("run", "--", "ui"), "cannot be a job"),
        (("run", "--", "--team", "hold"), "cannot be a job"),
        (("show", "nothing"), "there is no job"),
        (("cancel", "../.."), "there is no job"),
    ):
        result = command("jobs", *arguments)
        assert result.code == 2 and words in result.err, arguments
