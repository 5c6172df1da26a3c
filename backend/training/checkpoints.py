"""Checkpoints: everything that a run needs to continue bit for bit, in one folder a step, safetensors and JSON only.

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
from typing import TypeVar

from pydantic import TypeAdapter

from backend.policies.role_policies import RolePolicies
from backend.policies.tensor_files import read_tensors, write_tensors
from backend.training.learning.learner import Learner, LearnerState
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError
from simulator.files import DISK_FULL

KEPT = 2
_STATE = "state.json"


_Kind = TypeVar("_Kind", "TrainingState", LearnerState)


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
            (partial / f"learner-{role}.json").write_text(json.dumps(asdict(learner.state)))
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
    way_out = f"remove {path} to continue from the one before"
    state = read_kept(path / _STATE, TrainingState, way_out)
    policies.load(path / "policies")
    for role, learner in learners.items():
        learner.trainer.load(path / f"trainer-{role}.safetensors")
        learner.state = read_kept(path / f"learner-{role}.json", LearnerState, way_out)
        kept = path / f"good-{role}.safetensors"
        learner.last_valid_parameters = read_tensors(kept)[0] if kept.is_file() else None
    return state


def read_kept(path: Path, kind: type[_Kind], way_out: str) -> _Kind:
    """What a run kept in a file of JSON, with all its fields and no other. Raises `UserError`, which ends with the
    `way_out`, for anything else."""
    try:
        document = read_document(path, nan=True)
        named = {one.name for one in fields(kind)}
        if not isinstance(document, dict) or document.keys() != named:
            raise ValueError(f"it must hold {', '.join(sorted(named))} and nothing else")
        return TypeAdapter(kind).validate_python(document)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): {way_out}") from error
