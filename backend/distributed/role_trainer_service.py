"""The trainer of one role as a process of its own: it waits for a step's records, learns, and publishes its weights."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.distributed.heartbeat import Beacon
from backend.distributed.run_files import SERVICES, RunFiles, sha256
from backend.distributed.step_data import PUT_BACK, is_complete, step_data
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.tensor_files import write_tensors
from backend.store.records import PublishedRecord
from backend.store.store import Store
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from backend.training.curriculum.curriculum import curriculum_of
from backend.training.learning.learner import Learner
from backend.training.learning.role_trainer import GradientPool
from backend.training.learning.step_data import Learnt, StepData
from backend.training.recorder import Journal
from backend.training.start import start_of
from cryptosentinel.agents.registry import roles_of
from simulator.errors import RunFailed

KEPT = 4  # published files beside those that a run may still need


class RoleService:
    """Trains `role` of the run in `folder`, from the newest checkpoint of its own on.

    What it leaves does not depend on when the records of a step arrive or how often it is killed: a step is learnt from
    when it is complete, and a checkpoint is written before what it publishes.
    """

    def __init__(
        self,
        config: Config,
        base: Path,
        role: str,
        store: Store,
        run: str,
        folder: Path,
        beacon: Beacon,
        files: RunFiles | None = None,
        gradients: GradientPool | None = None,
    ) -> None:
        self.config = config.training
        self.role = role
        self.store = store
        self.run_id = run
        self.folder = folder
        self.beacon = beacon
        self.files = files or RunFiles(folder)
        self.curriculum = curriculum_of(config.training)
        held = hardware_of(config.training)
        start = start_of(config.training, folder)
        self.policies, _ = role_policies(base, config.training, roles=(role,), hardware=held, start=start)
        self.learner = Learner(config.training, self.policies, role, roles_of(config.team.roles), gradients)
        self.journal = Journal(store, run, folder / "services" / role, config.team.horizon_bars)
        self.state = TrainingState()

    def run(self) -> None:
        """Learn step after step, until the run is over (`RunOver`)."""
        kept = checkpoints(self._checkpoints())
        if kept:
            self.state = load_checkpoint(kept[-1], self.policies, {self.role: self.learner})
        if not self.store.published(self.run_id, self.state.step, self.role):
            self._publish(self._remembered())
        while True:
            step = self.state.step
            self.beacon.wait(step, "for rollouts", partial(is_complete, self.store, self.run_id, step, self.config))
            data = step_data(self.store, self.run_id, step, self.role, self.config, self.curriculum)
            self._put_back(step)
            self._check_origin(step, data)
            learnt = self.learner.learn(step, data)
            if learnt.credit is not None:
                self.journal.rewards(step, {self.role: learnt.credit})
            if learnt.rolled_back:
                self.state.rollbacks.append((step, self.role))
            self.state.step = step + 1
            self._remember(learnt)
            save_checkpoint(self._checkpoints(), self.state, self.policies, {self.role: self.learner})
            self._publish({"metrics": learnt.metrics, "rolled_back": learnt.rolled_back})
            failure = self.learner.failure()
            if failure is not None:
                raise RunFailed(failure)

    def _put_back(self, step: int) -> None:
        """Go to the best version, with a fresh optimiser, if the leader has put it in the place of this role's weights
        for the step. It does so before the step is rolled out, so it is there when the step is complete."""
        [record] = self.store.published(self.run_id, step, self.role)
        if PUT_BACK in record.metrics:
            self.policies.load_files({self.role: self.files.fetch(record.path, record.checksum)})
            self.learner.restart()

    def _check_origin(self, step: int, data: StepData) -> None:
        """Raise `RunFailed` for conversations that were not had with weights which this role published for the step."""
        calls = [call for group in data.everyone for one in group for call in one.subs]
        oldest = max(0, step - self.config.staleness)
        known = {
            one.version
            for made in range(oldest, step + 1)
            for one in self.store.published(self.run_id, made, self.role)
        }
        foreign = {call.policy_version for call in calls} - known
        if foreign:
            raise RunFailed(
                f"step {step} holds conversations of {self.role} with weights {min(foreign)}, which its trainer did "
                "not publish for this step: they are of another run, or of a worker with other weights. Start this "
                "run's own workers alone, and a new run"
            )

    def _publish(self, told: dict[str, Any]) -> None:
        """Write the role's weights for the step that comes, and say so."""
        version, step = self.policies.version(self.role), self.state.step
        path = self._published() / f"step-{step:06d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        write_tensors(partial, self.policies.role_state(self.role), self.policies.header(self.role))
        partial.replace(path)
        record = PublishedRecord(
            run=self.run_id,
            role=self.role,
            step=step,
            version=version,
            path=str(path.relative_to(self.folder)),
            checksum=sha256(path),
            metrics=told,
        )
        self.files.keep(f"{SERVICES}/{self.role}")
        self.store.add_published(record)
        for old in sorted(self._published().glob("step-*.safetensors"))[: -KEPT - self.config.staleness]:
            old.unlink()

    def _remember(self, learnt: Learnt) -> None:
        """Keep what is to be told of the step, before the checkpoint that ends it."""
        told = {"step": self.state.step, "metrics": learnt.metrics, "rolled_back": learnt.rolled_back}
        partial = self._told().with_suffix(".tmp")
        partial.write_text(json.dumps(told))
        partial.replace(self._told())

    def _remembered(self) -> dict[str, Any]:
        """What a former life of this process did not come to tell."""
        told = json.loads(self._told().read_text()) if self._told().is_file() else {"step": None}
        known = told["step"] == self.state.step
        return {"metrics": told["metrics"] if known else {}, "rolled_back": known and told["rolled_back"]}

    def _told(self) -> Path:
        return self.folder / "services" / self.role / "told.json"

    def _checkpoints(self) -> Path:
        return self.folder / "services" / self.role / "checkpoints"

    def _published(self) -> Path:
        return self.folder / "services" / self.role / "published"
