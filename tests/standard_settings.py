"""Settings of the product's parts for tests and benchmarks: the configuration's defaults, with some of them changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from backend.config.training import TrainingConfig
from backend.policies.adapter_shapes import adapter_shape
from backend.policies.lora import LoraSettings
from backend.training.algorithm.credit import CreditSettings
from backend.training.curriculum.curriculum import Curriculum, credit_settings, curriculum_of
from backend.training.learning.learner import role_settings
from backend.training.learning.role_trainer import RoleTrainerSettings


def trainer_settings(**changes: Any) -> RoleTrainerSettings:
    """The manager's trainer, with one minibatch and a warm-up of ten steps."""
    defaults = role_settings(TrainingConfig(minibatches=1, warmup_steps=10, seed=0), "manager")
    return replace(defaults, **changes)


def standard_credit(**changes: Any) -> CreditSettings:
    """How advantages come of rewards."""
    config = TrainingConfig()
    return replace(credit_settings(config, curriculum_of(config).stage(2)), **changes)


def standard_curriculum(**changes: Any) -> Curriculum:
    """The two stages."""
    return replace(curriculum_of(TrainingConfig()), **changes)


def lora_settings(**changes: Any) -> LoraSettings:
    """The manager's adapter."""
    return replace(adapter_shape(TrainingConfig(), "manager"), **changes)
