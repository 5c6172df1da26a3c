"""The trainer of one role as a process of its own: wait for the records of a step, learn, publish the new weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.distributed.files.run_files import SERVICES, RunFiles
from backend.distributed.heartbeat import Heartbeat
from backend.distributed.step_records import EarlyTokens, is_complete, read_step_data
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.tensor_files import write_tensors
from backend.store.records import PublishedRecord
from backend.store.sharing.objects import file_sha256
from backend.store.store import Store
from backend.training.checkpoints import TrainingState, load_newest, save_checkpoint
from backend.training.curriculum.curriculum import Curriculum
from backend.training.learning.learner import Learner
from backend.training.learning.role_trainer import GradientPool
from backend.training.learning.step_data import LearningResult, StepData
from backend.training.recorder import TrainingRecorder
from backend.training.start import start_of
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError
from simulator.files import write_whole

LAST_METRICS = "last_metrics.json"
_FORMER_LAST_METRICS = "told.json"  # in the folders of older runs
_KEPT_FILES = 4  # published files beside those that a run may still need


class RoleTrainerService:
    """Trains `role` of the run in `folder`, from the newest checkpoint of its own on.

    Its results do not depend on when the records of a step arrive or how often it is killed: it learns from a step when
    all of it is there, and writes a checkpoint before the weights that it publishes.
    """

    def __init__(
        self,
        config: Config,
        base: Path,
        role: str,
        store: Store,
        run: str,
        folder: Path,
        heartbeat: Heartbeat,
        files: RunFiles,
        gradients: GradientPool | None = None,
    ) -> None:
        self.config = config.training
        self.role = role
        self.store = store
        self.run_id = run
        self.folder = folder
        self.heartbeat = heartbeat
        self.files = files
        self.curriculum = Curriculum(config.training)
        held = replace(hardware_of(config.training), shards=None if gradients is None else gradients.shards)
        start = start_of(config.training, folder)
        self.policies, _ = role_policies(base, config.training, roles=(role,), hardware=held, start=start)
        self.learner = Learner(config.training, self.policies, role, gradients)
        self.recorder = TrainingRecorder(store, run, folder / SERVICES / role, config.team.horizon_bars)
        self.state = TrainingState()

    def run(self) -> None:
        """Learn step after step, until the run is over (`RunOver`). Raises `RunFailed` where the role cannot go on."""
        self.state = load_newest(self._checkpoints(), self.policies, {self.role: self.learner}) or self.state
        if not self.store.published(self.run_id, self.state.step, self.role):
            self._publish(self._saved_metrics())
        while True:
            self._train_step(self.state.step)
            failure = self.learner.failure()
            if failure is not None:
                raise RunFailed(failure)

    def _train_step(self, step: int) -> None:
        """Read the rollouts of a step as they come, learn when all of them are there, and publish the new weights."""
        early = EarlyTokens(self.store, self.run_id, step, self.role)

        def complete() -> bool | None:
            if is_complete(self.store, self.run_id, step, self.config):
                return True
            early.read_some()
            return None

        self.heartbeat.wait(step, "for rollouts", complete)
        data = read_step_data(self.store, self.run_id, step, self.role, self.config, self.curriculum, early)
        self._check_origin(step, data)
        result = self.learner.train(step, data)
        if result.credit is not None:
            self.recorder.rewards(step, {self.role: result.credit})
        if result.rolled_back:
            self.state.rollbacks.append((step, self.role))
        self.state.step = step + 1
        self._save_metrics(result)
        save_checkpoint(self._checkpoints(), self.state, self.policies, {self.role: self.learner})
        self._publish({"metrics": dict(result.metrics), "rolled_back": result.rolled_back})

    def _check_origin(self, step: int, data: StepData) -> None:
        """Raise `RunFailed` for conversations with weights that this role did not publish for the step."""
        calls = [call for group in data.everyone for one in group for call in one.subs]
        oldest = max(0, step - self.config.staleness)
        known = {
            record.version
            for number in range(oldest, step + 1)
            for record in self.store.published(self.run_id, number, self.role)
        }
        foreign = {version for call in calls for version in call.all_versions} - known
        if foreign:
            raise RunFailed(
                f"step {step} holds conversations of {self.role} with weights {min(foreign)}, which its trainer did "
                "not publish for this step: they are of another run, or of a worker with other weights. Start this "
                "run's own workers alone, and a new run"
            )

    def _publish(self, metrics: dict[str, Any]) -> None:
        """Write the role's weights for the next step, and their record with the metrics of the last one."""
        version, step = self.policies.version(self.role), self.state.step
        path = self._published() / f"step-{step:06d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, self.policies.role_state(self.role), self.policies.header(self.role))
        record = PublishedRecord(
            run=self.run_id,
            role=self.role,
            step=step,
            version=version,
            path=str(path.relative_to(self.folder)),
            checksum=file_sha256(path),
            metrics=metrics,
        )
        self.files.keep(f"{SERVICES}/{self.role}")
        self.store.add_published(record)
        kept = _KEPT_FILES + self.config.staleness
        for old in sorted(self._published().glob("step-*.safetensors"))[:-kept]:
            old.unlink()

    def _save_metrics(self, result: LearningResult) -> None:
        """Keep the metrics of the step, before the checkpoint that ends it."""
        saved = {"step": self.state.step, "metrics": dict(result.metrics), "rolled_back": result.rolled_back}
        write_whole(self._services() / LAST_METRICS, json.dumps(saved))

    def _saved_metrics(self) -> dict[str, Any]:
        """The metrics of the last step, which this process may not have published before it was killed; none where the
        last step was another."""
        for name in (LAST_METRICS, _FORMER_LAST_METRICS):
            path = self._services() / name
            if path.is_file() and (saved := _metrics_in(path)).get("step") == self.state.step:
                return {"metrics": saved["metrics"], "rolled_back": saved["rolled_back"]}
        return {"metrics": {}, "rolled_back": False}

    def _services(self) -> Path:
        return self.folder / SERVICES / self.role

    def _checkpoints(self) -> Path:
        return self._services() / "checkpoints"

    def _published(self) -> Path:
        return self._services() / "published"


def _metrics_in(path: Path) -> dict[str, Any]:
    """What a file of last metrics holds. Raises `UserError` for one that is damaged."""
    try:
        saved = read_document(path, nan=True)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): remove it to go on without the metrics of that step"
        ) from error
    return saved if isinstance(saved, dict) and {"metrics", "rolled_back"} <= saved.keys() else {}
