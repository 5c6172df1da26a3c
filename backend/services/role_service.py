"""The trainer of one role as a process of its own: it waits for a step's records, learns, and publishes its weights."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from backend.config import Config
from backend.services.beacon import Beacon
from backend.services.step_data import step_data
from backend.store.records import PublishedRecord
from backend.store.store import Store
from backend.teams import role_policies
from backend.training.checkpoints import TrainingState, checkpoints, load_checkpoint, save_checkpoint
from backend.training.curriculum import curriculum_of
from backend.training.journal import Journal
from backend.training.learner import Learner, Learnt
from backend.training.tensor_files import write_tensors

KEPT = 4  # published files beside those that a run may still need


class RoleService:
    """Trains `role` of the run in `folder`, from the newest checkpoint of its own on.

    What it leaves does not depend on when the records of a step arrive or how often it is killed: a step is learnt from
    when it is complete, and a checkpoint is written before what it publishes.
    """

    def __init__(
        self, config: Config, base: Path, role: str, store: Store, run: str, folder: Path, beacon: Beacon
    ) -> None:
        self.config = config.training
        self.role = role
        self.store = store
        self.run_id = run
        self.folder = folder
        self.beacon = beacon
        self.curriculum = curriculum_of(config.training)
        self.policies, _ = role_policies(base, config.training, roles=(role,))
        self.learner = Learner(config.training, self.policies, role)
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
            self.beacon.wait(step, "for rollouts", partial(self._complete, step))
            data = step_data(self.store, self.run_id, step, self.role, self.config, self.curriculum)
            learnt = self.learner.learn(step, data)
            if learnt.credit is not None:
                self.journal.rewards(step, {self.role: learnt.credit})
            if learnt.rolled_back:
                self.state.rollbacks.append((step, self.role))
            self.state.step = step + 1
            self._remember(learnt)
            save_checkpoint(self._checkpoints(), self.state, self.policies, {self.role: self.learner})
            self._publish({"metrics": learnt.metrics, "rolled_back": learnt.rolled_back})

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
            checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
            metrics=told,
        )
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

    def _complete(self, step: int) -> bool | None:
        return self.store.step_complete(self.run_id, step, self.config.shards) or None

    def _checkpoints(self) -> Path:
        return self.folder / "services" / self.role / "checkpoints"

    def _published(self) -> Path:
        return self.folder / "services" / self.role / "published"
