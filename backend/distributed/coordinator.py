"""What the coordinator's trainer runs with.

The coordinator is rollout worker 0: it plans the steps, validates, and keeps the state of the run, while each role
learns in a process of its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from backend.distributed.files.run_files import SERVICES, VERSIONS, RunFiles
from backend.distributed.published_weights import PublishedWeights
from backend.training.checkpoints import TrainingState, read_state
from backend.training.components import LearningStep
from backend.training.learning.step_data import StepData
from simulator.errors import UserError
from simulator.files import write_whole

_STATE = Path(SERVICES, "coordinator.json")
_FORMER_STATE = Path(SERVICES, "leader.json")  # its former name, in the folders of older runs


class RemoteLearners:
    """A `LearnerPool` whose learners are other processes. They read the rollouts in the store and publish weights."""

    def __init__(self, weights: PublishedWeights) -> None:
        self._weights = weights

    def load_weights(self, step: int) -> None:
        """As `LearnerPool.load_weights`: those that were published for `step`."""
        self._weights.load(step)

    def train_step(self, step: int, data: StepData) -> LearningStep:
        """As `LearnerPool.train_step`: wait for the weights of the next step, and report what their trainers say."""
        metrics: dict[str, float] = {}
        rollbacks: list[tuple[int, str]] = []
        for record in self._weights.load(step + 1):
            metrics |= record.metrics["metrics"]
            if record.metrics["rolled_back"]:
                rollbacks.append((record.step - 1, record.role))
            metrics[f"{record.role}/staleness"] = float(step + 1 - record.step)
        return LearningStep(metrics, rollbacks=rollbacks)


class CoordinatorState:
    """A `StateStore` that keeps the state of the run in `folder` in a file of its own; the rest of what a resumed run
    needs is with the trainers and in the store. `files` keeps it, and the versions of the team, where another machine
    may take over."""

    def __init__(self, folder: Path, files: RunFiles | None = None) -> None:
        self._folder = folder
        self._files = files or RunFiles(folder)

    def load(self) -> TrainingState | None:
        """As `StateStore.load`. Reads the file under its former name where there is no other."""
        self._files.restore(VERSIONS)
        self._files.restore_file(_STATE.as_posix())
        for name in (_STATE, _FORMER_STATE):
            if (self._folder / name).is_file():
                try:
                    return read_state(self._folder / name)
                except (OSError, ValueError) as error:
                    raise UserError(f"{self._folder / name} cannot be read ({error}): train anew") from error
        return None

    def save(self, state: TrainingState) -> None:
        """As `StateStore.save`: whole or not at all."""
        path = self._folder / _STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(state)))
        self._files.keep(VERSIONS)
        self._files.deliver(_STATE.as_posix())


def coordinator_state(folder: Path) -> TrainingState:
    """The state of the run in `folder` after the last step that its coordinator completed. Raises `UserError` before
    the first one."""
    state = CoordinatorState(folder).load()
    if state is None:
        raise UserError(f"{folder / _STATE} is not there: no step of the run was completed with --launch")
    return state
