"""The metrics of a run in MLflow as well, where `training.mlflow_experiment` names an experiment.

Where that is says the environment (`MLFLOW_TRACKING_URI`, with a user, a password or a token in the variables that
MLflow reads itself); without it the file `mlflow.db` in the folder of the runs, which `mlflow ui` shows. What goes
there is the name of the run and its metrics: no configuration, no file, nothing about the machine; MLflow's own
telemetry is off. A run that goes on after an interruption goes on there, too.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.training.trackers.outside_logger import OutsideLogger, plain, plain_run
from simulator.errors import UserError

_URI = "MLFLOW_TRACKING_URI"
_TAG = "cryptosentinel.run"
_MOST_METRICS = 1_000  # in one request
# A server that is gone must not hold a training up, which it would for minutes by the defaults.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def require_mlflow(experiment: str) -> None:
    """Raise `UserError` where there is an experiment, but no package for it: before anything is trained."""
    if not experiment:
        return
    missing = [] if importlib.util.find_spec("mlflow") else ["mlflow"]
    if not missing and not os.environ.get(_URI) and importlib.util.find_spec("sqlalchemy") is None:
        missing = ["sqlalchemy"]  # `mlflow-skinny` comes without it, and a file of its own needs it
    if missing:
        raise UserError(
            f"training.mlflow_experiment = {experiment!r}, and {missing[0]} is not installed: pip install "
            "mlflow, or leave the setting out"
        )


class MlflowLogger(OutsideLogger):
    """Sends the metrics of `run` to `experiment`; `folder` is that of the run."""

    title = "MLflow"

    def __init__(self, experiment: str, run: str, folder: Path) -> None:
        super().__init__()
        self._client: Any = None
        self._id = ""
        self.attempt(lambda: self._begin(experiment, plain_run(run), folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step; what is not finite is left out."""
        self.attempt(lambda: self._send(step, values))

    def close(self) -> None:
        """Mark the run as ended."""
        self.attempt(lambda: self._client.set_terminated(self._id))

    def _begin(self, experiment: str, run: str, folder: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        place = os.environ.get(_URI) or f"sqlite:///{(folder.resolve().parent / 'mlflow.db').as_posix()}"
        self._client = MlflowClient(tracking_uri=place)
        known = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if known is None else known.experiment_id
        begun = self._client.search_runs([number], f"tags.`{_TAG}` = '{run}'", max_results=1)
        if begun:
            self._id = begun[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            # Without a user: MLflow would write the name of the account on this machine.
            self._id = self._client.create_run(number, run_name=run, tags={_TAG: run, "mlflow.user": ""}).info.run_id

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        rows = [Metric(plain(name), value, now, step) for name, value in values.items() if math.isfinite(value)]
        for first in range(0, len(rows), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=rows[first : first + _MOST_METRICS])
