"""The trainer of one role: reads a step's rollouts in the store, learns, and publishes the new weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.distributed.files import SERVICES, RunFiles
from backend.distributed.step_records import read_step_data
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.tensor_files import write_tensors
from backend.store.records import PublishedRecord
from backend.store.store import Store
from backend.training.checkpoints import TrainingState, load_newest, save_checkpoint
from backend.training.curriculum.curriculum import Curriculum
from backend.training.learning.learner import Learner, LearningResult, StepData
from backend.training.recorder import TrainingRecorder
from backend.training.start import start_of
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError
from simulator.files import file_sha256, write_whole

LAST_METRICS = "last_metrics.json"
_KEPT_FILES = 4  # published files: a driver that resumes may be a step behind


class RoleTrainerService:
    """Trains `role` of the run in `folder`, from the newest checkpoint of its own on.

    It writes a checkpoint before the weights that it publishes, so it may be killed at any moment: the next one takes
    the step again from the checkpoint before it, or publishes what the last one had no time to.
    """

    def __init__(self, config: Config, base: Path, role: str, store: Store, run: str, files: RunFiles) -> None:
        self.role = role
        self._config = config.training
        self._store, self._run, self._files = store, run, files
        self._folder = files.folder / SERVICES / role
        self._checkpoints = self._folder / "checkpoints"
        files.fetch_folder(f"{SERVICES}/{role}/checkpoints", anew=True)
        self._curriculum = Curriculum(config.training)
        start = start_of(config.training, files.folder)
        self._policies, _ = role_policies(
            base, config.training, roles=(role,), hardware=hardware_of(config.training), start=start
        )
        self._learner = Learner(config.training, self._policies, role)
        self._recorder = TrainingRecorder(store, run, self._folder)
        learners = {role: self._learner}
        self._state = load_newest(self._checkpoints, self._policies, learners) or TrainingState()

    def publish(self) -> int:
        """Publish the weights for the next step unless that is done; the number of that step."""
        if not self._store.published(self._run, self._state.step, self.role):
            self._publish(self._saved_metrics())
        return self._state.step

    def train(self, step: int) -> None:
        """Learn from `step`, whose shards are all stored, and publish the new weights; nothing where that is done.

        Raises `RunFailed` for rollouts that are not of this run's weights.
        """
        if self.publish() > step:
            return
        if self._state.step < step:
            raise RunFailed(f"the checkpoint of {self.role} is of step {self._state.step}, and step {step} is next")
        data = read_step_data(self._store, self._run, step, self.role, self._config, self._curriculum)
        self._check_origin(step, data)
        result = self._learner.train(step, data)
        if result.credit is not None:
            self._recorder.rewards(step, {self.role: result.credit})
        self._state.step = step + 1
        metrics = self._metrics(result)
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        write_whole(self._checkpoints / LAST_METRICS, json.dumps(metrics))
        save_checkpoint(self._checkpoints, self._state, self._policies, {self.role: self._learner})
        self._files.send_folder(f"{SERVICES}/{self.role}/checkpoints")
        self._publish(metrics)

    def _check_origin(self, step: int, data: StepData) -> None:
        """Raise `RunFailed` for conversations with weights that this role did not publish for the step."""
        [record] = self._store.published(self._run, step, self.role)
        calls = [call for group in data.everyone for one in group for call in one.subs]
        foreign = {call.policy_version for call in calls} - {record.version}
        if foreign:
            raise RunFailed(
                f"step {step} holds conversations of {self.role} with weights {min(foreign)}, which its trainer did "
                "not publish for this step: they are of another run. Start a new run"
            )

    def _publish(self, metrics: dict[str, Any]) -> None:
        """Write the role's weights for the next step, and their record with the metrics of the last one.

        Each step of a role has one record, and the first stays: a trainer that was thought dead and publishes late is
        refused. The file's name holds the version, so no file of another trainer is ever overwritten.
        """
        version, step = self._policies.version(self.role), self._state.step
        name = f"{SERVICES}/{self.role}/published/step-{step:06d}-{version.rpartition('-')[2]}.safetensors"
        path = self._files.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, self._policies.role_state(self.role), self._policies.header(self.role))
        self._files.send(name)
        record = PublishedRecord(self._run, self.role, step, version, name, file_sha256(path), metrics)
        if not self._store.add_published(record):
            [first] = self._store.published(self._run, step, self.role)
            if first.version != version:
                raise RunFailed(f"another trainer of {self.role} has published other weights for step {step}")
        for old in sorted(path.parent.glob("step-*.safetensors"))[:-_KEPT_FILES]:
            old.unlink()

    def _metrics(self, result: LearningResult) -> dict[str, Any]:
        return {
            "metrics": dict(result.metrics),
            "rolled_back": result.rolled_back,
            "failure": self._learner.failure(),
        }

    def _saved_metrics(self) -> dict[str, Any]:
        """The metrics of the last step, which the process before this one may not have published before it was killed.
        Raises `UserError` for a damaged file."""
        path = self._checkpoints / LAST_METRICS
        if self._state.step == 0 or not path.is_file():
            return {"metrics": {}, "rolled_back": False, "failure": None}
        try:
            saved = read_document(path, nan=True)
            return {name: saved[name] for name in ("metrics", "rolled_back", "failure")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}): put the run's folder back from a copy") from error
