"""Checkpoints: everything that a run needs to go on bit for bit, in one folder a step, safetensors and JSON only.

A checkpoint is written beside the others under a temporary name and renamed when it is whole, so that an interrupt or
a full disk leaves the former one usable.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backend.training.learner import Learner
from backend.training.policies import RolePolicies
from backend.training.tensor_files import read_tensors, write_tensors
from simulator.errors import UserError

KEPT = 2


@dataclass
class TrainingState:
    """Where a run stands: steps done, the stage and the step it began at, the best validation, what was rolled back."""

    step: int = 0
    stage: int = 1
    stage_began: int = 0
    best_score: float | None = None
    best_step: int | None = None
    rollbacks: list[tuple[int, str]] = field(default_factory=list)


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    policies: RolePolicies,
    learners: Mapping[str, Learner],
) -> Path:
    """Write `step-N` into `folder` and drop all but the newest two: the policies, and of each role the optimiser and
    the parameters to roll it back to."""
    target = folder / f"step-{state.step:06d}"
    partial = folder / f"{target.name}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policies.save(partial / "policies")
    for role, learner in learners.items():
        learner.trainer.save(partial / f"trainer-{role}.safetensors")
        if learner.good is not None:
            write_tensors(partial / f"good-{role}.safetensors", learner.good, {"kind": "good", "role": role})
    (partial / "state.json").write_text(json.dumps(asdict(state)))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp" and (path / "state.json").is_file())


def load_checkpoint(path: Path, policies: RolePolicies, learners: Mapping[str, Learner]) -> TrainingState:
    """Put policies and learners where they were. Raises `UserError` for a checkpoint of another model or a damaged
    one."""
    try:
        raw = json.loads((path / "state.json").read_text())
        raw["rollbacks"] = [(int(step), str(role)) for step, role in raw["rollbacks"]]
        state = TrainingState(**raw)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}/state.json cannot be read ({error}): remove {path} to go on from the one before"
        ) from error
    policies.load(path / "policies")
    for role, learner in learners.items():
        learner.trainer.load(path / f"trainer-{role}.safetensors")
        kept = path / f"good-{role}.safetensors"
        learner.good = read_tensors(kept)[0] if kept.is_file() else None
    return state
