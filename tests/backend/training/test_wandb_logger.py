"""Metrics at Weights & Biases: what goes there and what does not, and that no failure of it ends a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training import wandb_logger
from backend.training.recorder import TrainingRecorder
from backend.training.wandb_logger import WandbLogger, require_wandb
from simulator.errors import UserError


class FakeRun:
    """Remembers what it is told; fails where it is told to."""

    def __init__(self, fails: str) -> None:
        self.lines: list[dict[str, float]] = []
        self.axes: list[tuple[str, str | None]] = []
        self.finished = False
        self._fails = fails

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.axes.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        if self._fails == "log":
            raise ConnectionResetError("\x1b[31m the service is gone")
        self.lines.append(values)

    def finish(self) -> None:
        self.finished = True


class FakeWandb(ModuleType):
    """Stands for the package `wandb`."""

    def __init__(self, fails: str) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self.run = FakeRun(fails)
        self._fails = fails

    def Settings(self, **settings: Any) -> str:
        self.settings = settings
        return "the settings"

    def init(self, **how: Any) -> FakeRun:
        self.begun.append(how)
        if self._fails == "init":
            raise TimeoutError("nobody answers")
        return self.run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeWandb:
    made = FakeWandb(getattr(request, "param", ""))
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord("train-1", "train", 1, "hash", 0, {"config": {"engine": {"url": "http://secret@x"}}}))
        yield opened


def test_metrics_go_there_as_they_are_in_the_journal_and_nothing_else_does(
    fake: FakeWandb, store: Store, tmp_path: Path
) -> None:
    recorder = TrainingRecorder(store, "train-1", tmp_path, 6, "mine")
    recorder.metrics(1, {"manager/reward/mean": 0.5, "odd name\n<b>": 1.0})
    recorder.metrics(2, {"manager/reward/mean": 0.75})
    recorder.close()
    [begun] = fake.begun
    assert begun == {
        "project": "mine", "id": "train-1", "name": "train-1", "dir": str(tmp_path), "resume": "allow",
        "settings": "the settings",
    }, "neither the configuration nor anything else"  # fmt: skip
    off = ("disable_code", "disable_git", "disable_job_creation", "x_disable_meta", "x_disable_machine_info")
    assert all(fake.settings[name] is True for name in off) and fake.settings["console"] == "off"
    assert fake.run.lines == [
        {"step": 1, "manager/reward/mean": 0.5, "odd_name__b_": 1.0},
        {"step": 2, "manager/reward/mean": 0.75},
    ]
    assert fake.run.axes == [("step", None), ("*", "step")] and fake.run.finished


def test_without_a_project_nothing_of_it_is_imported(fake: FakeWandb, store: Store, tmp_path: Path) -> None:
    recorder = TrainingRecorder(store, "train-1", tmp_path, 6)
    recorder.metrics(1, {"a": 1.0})
    recorder.close()
    assert fake.begun == []


@pytest.mark.parametrize("fake", ["init", "log"], indirect=True)
def test_a_failure_is_said_once_and_ends_nothing(
    fake: FakeWandb, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = TrainingRecorder(store, "train-1", tmp_path, 6, "mine")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            recorder.metrics(step, {"a": 1.0})
        recorder.close()
    [said] = caplog.messages
    assert "The run continues" in said and "\x1b" not in said
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(store.metrics("train-1")) == 3
    assert len(fake.begun) == 1


def test_a_missing_package_or_key_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    require_wandb()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setattr(wandb_logger.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'cryptosentinel\[wandb\]'"):
        require_wandb()
    monkeypatch.setattr(wandb_logger.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UserError, match=r"WANDB_API_KEY.*WANDB_MODE=offline"):
        require_wandb()
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_wandb()
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(UserError, match="there is no key"):
        require_wandb()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    require_wandb()


@pytest.mark.parametrize("name", ["a/b", "a#b", "a\\b", "x" * 129])
def test_a_project_with_a_name_that_is_refused_there_is_refused_here(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", name)
    with pytest.raises(UserError, match="is not a name that Weights & Biases takes"):
        require_wandb()


def test_the_package_itself_takes_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    mirror = WandbLogger("mine", "train-1", tmp_path)
    mirror.log(1, {"a": 0.5, "b": float("nan")})
    mirror.close()
    assert not mirror.failed
    [record] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert record.name == "run-train-1.wandb" and record.read_bytes().startswith(b":W&B")
