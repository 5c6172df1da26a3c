"""Checkpoints: everything that a run needs to go on bit for bit, in one folder a step, safetensors and JSON only.

A checkpoint is written beside the others under a temporary name and renamed when it is whole, so that an interrupt or
a full disk leaves the former one usable. A file that was cut short is refused: safetensors knows its length, and JSON
its end.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from pydantic import TypeAdapter

from backend.policies.role_policies import RolePolicies
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.training.learning.learner import Learner, LearnerState
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError
from simulator.files import DISK_FULL

KEPT = 2
_STATE = "state.json"


@dataclass
class TrainingState:
    """Where a run stands: steps done, the stage and the step it began at, the best validation, which roles were rolled
    back when, the tokens of all rollouts so far, and of these those of stage 1."""

    step: int = 0
    stage: int = 1
    stage_began: int = 0
    best_score: float | None = None
    best_step: int | None = None
    rollbacks: list[tuple[int, str]] = field(default_factory=list)
    tokens: int = 0
    stage1_tokens: int = 0


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    policies: RolePolicies,
    learners: Mapping[str, Learner],
) -> Path:
    """Write `step-N` into `folder` and drop all but the newest two: the policies, and of each role the optimizer, the
    parameters to roll it back to and what else it remembers.

    Raises `RunFailed` where the disk is full: the former checkpoints are as they were, and what was begun is removed.
    """
    target = folder / f"step-{state.step:06d}"
    partial = folder / f"{target.name}.tmp"
    shutil.rmtree(partial, ignore_errors=True)
    with room_for(partial):
        partial.mkdir(parents=True)
        policies.save(partial / "policies")
        for role, learner in learners.items():
            learner.trainer.save(partial / f"trainer-{role}.safetensors")
            (partial / f"learner-{role}.json").write_text(json.dumps(learner.state.to_dict()))
            valid = learner.last_valid_parameters
            if valid is not None:
                write_tensors(partial / f"good-{role}.safetensors", valid, {"kind": "good", "role": role})
        (partial / _STATE).write_text(json.dumps(asdict(state)))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    _drop_old(folder)
    return target


def _drop_old(folder: Path) -> None:
    """Remove all but the newest whole checkpoints, and what is left of others whose removal was cut short."""
    kept = checkpoints(folder)[-KEPT:]
    for old in sorted(folder.glob("step-*")) if kept else ():
        if old not in kept:
            (old / _STATE).unlink(missing_ok=True)  # first: what is left of it must not be taken for a whole one
            shutil.rmtree(old)


@contextmanager
def room_for(partial: Path) -> Iterator[None]:
    """Remove `partial` where the disk cannot take it, and say so."""
    try:
        yield
    except RunFailed:  # of `write_tensors`, which says it
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        shutil.rmtree(partial, ignore_errors=True)
        raise RunFailed(
            f"{partial.with_suffix('')} cannot be written ({error.strerror}): free some space and resume; the "
            "checkpoint before it is intact"
        ) from error


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".tmp" and (path / _STATE).is_file())


def load_newest(folder: Path, policies: RolePolicies, learners: Mapping[str, Learner]) -> TrainingState | None:
    """Put policies and learners where the newest whole checkpoint in `folder` has them, and finish a removal that was
    cut short; None where there is no checkpoint. Raises `UserError` as `load_checkpoint` does."""
    _drop_old(folder)
    existing = checkpoints(folder)
    return load_checkpoint(existing[-1], policies, learners) if existing else None


def load_checkpoint(path: Path, policies: RolePolicies, learners: Mapping[str, Learner]) -> TrainingState:
    """Put policies and learners where they were. Raises `UserError` for a checkpoint of another model or a damaged
    one."""
    try:
        state = read_state(path / _STATE)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path / _STATE} cannot be read ({error}): remove {path} to go on from the one before"
        ) from error
    policies.load(path / "policies")
    for role, learner in learners.items():
        learner.trainer.load(path / f"trainer-{role}.safetensors")
        kept = path / f"good-{role}.safetensors"
        valid = read_tensors(kept)[0] if kept.is_file() else None
        learner.restore(_learner_state(path / f"learner-{role}.json"), valid)
    return state


def read_state(path: Path) -> TrainingState:
    """The state in a file of JSON. Raises `OSError`, and `ValueError` for anything else than a state."""
    document = read_document(path, nan=True)
    if not isinstance(document, dict) or "step" not in document:
        raise ValueError("it names no step")
    unknown = sorted(document.keys() - {one.name for one in fields(TrainingState)})
    if unknown:
        raise ValueError(f"it has what no state has: {', '.join(unknown)}")
    return TypeAdapter(TrainingState).validate_python(document)


def _learner_state(path: Path) -> LearnerState:
    """What a learner remembers of its steps."""
    try:
        return LearnerState.from_dict(read_document(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): remove {path.parent} to go on from the one before"
        ) from error
