"""The settings of a role's trainer for tests: the configuration's defaults, in one update a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backend.config.training import TrainingConfig
from backend.training.learning.learner import role_settings
from backend.training.learning.role_trainer import RoleTrainerSettings


def trainer_settings(**changes: Any) -> RoleTrainerSettings:
    """The defaults of `TrainingConfig` for the manager, with one minibatch and a warm-up of ten steps."""
    defaults = role_settings(TrainingConfig(minibatches=1, warmup_steps=10, seed=0), "manager")
    return replace(defaults, **changes)
