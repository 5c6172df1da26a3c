"""Metrics in MLflow: what goes there and what does not, and that no failure of it ends a run."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.recorder import TrainingRecorder
from backend.training.trackers import mlflow_logger
from backend.training.trackers.mlflow_logger import MlflowLogger, require_mlflow
from simulator.errors import UserError


@dataclass
class FakeClient:
    """Stands for MLflow's client: remembers what it is told, and fails where it is told to."""

    fails: str = ""
    places: list[str] = field(default_factory=list)
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics: list[tuple[str, float, int]] = field(default_factory=list)
    states: list[str] = field(default_factory=list)

    def __call__(self, tracking_uri: str) -> FakeClient:
        self.places.append(tracking_uri)
        if self.fails == "begin":
            raise ConnectionResetError("\x1b[31m nobody answers")
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        number = self.experiments.get(name)
        return None if number is None else SimpleNamespace(experiment_id=number)

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def search_runs(self, experiments: list[str], wanted: str, max_results: int) -> list[SimpleNamespace]:
        named = [run for run, tags in self.runs.items() if f"'{tags['cryptosentinel.run']}'" in wanted]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run)) for run in named[:max_results]]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        self.runs[f"id of {run_name}"] = tags
        return SimpleNamespace(info=SimpleNamespace(run_id=f"id of {run_name}"))

    def update_run(self, run: str, status: str) -> None:
        self.states.append(status)

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        if self.fails == "log":
            raise TimeoutError("the server is gone")
        self.metrics += metrics

    def set_terminated(self, run: str) -> None:
        self.states.append("FINISHED")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeClient:
    client = FakeClient(getattr(request, "param", ""))
    package, tracking, entities = (ModuleType(name) for name in ("mlflow", "mlflow.tracking", "mlflow.entities"))
    tracking.__dict__["MlflowClient"] = client
    entities.__dict__["Metric"] = lambda name, value, time, step: (name, value, step)
    for module in (package, tracking, entities):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", *mlflow_logger._PATIENCE):
        monkeypatch.setenv(name, "1")
    return client


@pytest.fixture
def store() -> Any:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord("train-1", "train", 1, "hash", 0, {"config": {"engine": {"url": "http://secret@x"}}}))
        yield opened


def test_metrics_go_there_and_nothing_else_does_and_a_resumed_run_goes_on(
    fake: FakeClient, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "train-1"
    folder.mkdir(parents=True)
    for step in (1, 2):
        recorder = TrainingRecorder(store, "train-1", folder, 6, mlflow_experiment="mine")
        recorder.metrics(step, {"manager/reward/mean": 0.5 * step, "odd name\n<b>": 1.0, "hole": float("nan")})
        recorder.close()
    assert fake.places == [f"sqlite:///{tmp_path}/runs/mlflow.db"] * 2
    assert fake.experiments == {"mine": "0"}
    assert fake.runs == {"id of train-1": {"cryptosentinel.run": "train-1", "mlflow.user": ""}}, "and nothing else"
    assert fake.metrics == [
        ("manager/reward/mean", 0.5, 1), ("odd_name__b_", 1.0, 1),
        ("manager/reward/mean", 1.0, 2), ("odd_name__b_", 1.0, 2),
    ]  # fmt: skip
    assert fake.states == ["FINISHED", "RUNNING", "FINISHED"]


def test_without_an_experiment_nothing_of_it_is_imported(fake: FakeClient, store: Store, tmp_path: Path) -> None:
    recorder = TrainingRecorder(store, "train-1", tmp_path, 6)
    recorder.metrics(1, {"a": 1.0})
    recorder.close()
    assert fake.places == []


@pytest.mark.parametrize("fake", ["begin", "log"], indirect=True)
def test_a_failure_is_said_once_and_ends_nothing(
    fake: FakeClient, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = TrainingRecorder(store, "train-1", tmp_path, 6, mlflow_experiment="mine")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            recorder.metrics(step, {"a": 1.0})
        recorder.close()
    [said] = caplog.messages
    assert said.startswith("MLflow failed") and "The run goes on" in said and "\x1b" not in said
    assert len(store.metrics("train-1")) == 3 and len(fake.places) == 1


def test_a_missing_package_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    there: set[str] = set()
    monkeypatch.setattr(mlflow_logger.importlib.util, "find_spec", lambda name: name in there or None)
    require_mlflow("")
    with pytest.raises(UserError, match="mlflow is not installed: pip install mlflow"):
        require_mlflow("mine")
    there.add("mlflow")
    with pytest.raises(UserError, match="sqlalchemy is not installed"):
        require_mlflow("mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    require_mlflow("mine")


def test_the_package_itself_takes_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: it is no dependency")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for step in (1, 2):
        logger = MlflowLogger("mine", "train-1", tmp_path / "train-1")
        logger.log(step, {"a/b": 0.5 * step, "hole": float("nan")})
        logger.close()
        assert not logger.failed
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    number = client.get_experiment_by_name("mine").experiment_id
    [run] = client.search_runs([number])
    assert run.info.status == "FINISHED" and run.data.metrics == {"a/b": 1.0} and run.data.params == {}
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "a/b")] == [(1, 0.5), (2, 1.0)]
    assert set(run.data.tags) <= {"cryptosentinel.run", "mlflow.runName", "mlflow.user"}
