"""Settings of the product's parts for tests and benchmarks: the configuration's defaults, with some of them changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backend.config.training import ROLE_NAMES, TrainingConfig
from backend.policies.role_policies import LoraSettings, adapter_shape
from backend.training.algorithm.alignment import AlignmentMethod, align
from backend.training.algorithm.credit import RoleCredit, TeamAttempt, assign_credit, score_main, score_sub
from backend.training.algorithm.recipes import Mgrpo, Recipe
from backend.training.curriculum.curriculum import Curriculum

ALPHA, BETA = (0.1, 0.9), (0.1, 0.4, 0.5)


def changed(config: TrainingConfig, **changes: Any) -> TrainingConfig:
    """The settings with others; a `learning_rate` is that of every role."""
    if "learning_rate" in changes:
        changes["learning_rate"] = dict.fromkeys(ROLE_NAMES, changes["learning_rate"])
    return config.model_copy(update=changes)


def trainer_settings(**changes: Any) -> TrainingConfig:
    """A trainer with one minibatch and a warm-up of ten steps."""
    return changed(TrainingConfig(minibatches=1, warmup_steps=10, seed=0), **changes)


def main_credit(groups: Any, recipe: Recipe | None = None, alpha: tuple[float, float] = ALPHA) -> RoleCredit:
    """The manager's credit for groups of `TeamAttempt`."""
    rolled: list[list[TeamAttempt]] = groups
    return assign_credit(score_main(rolled, alpha), recipe or Mgrpo(), weighted=False)


def sub_credit(
    groups: Any,
    role: str,
    recipe: Recipe | None = None,
    method: AlignmentMethod = "fractional",
    target: int = 2,
    outcomes: Any = (),
    beta: tuple[float, float, float] = BETA,
    seed: int = 1,
) -> RoleCredit:
    """A sub-agent's credit for groups of `Attempt`."""
    weights = partial(align, method=method, target=target, rng=np.random.default_rng(seed))
    return assign_credit(score_sub(groups, role, beta, weights, outcomes), recipe or Mgrpo())


def standard_curriculum(**changes: Any) -> Curriculum:
    """The two stages."""
    return Curriculum(TrainingConfig().model_copy(update=changes))


def lora_settings(**changes: Any) -> LoraSettings:
    """The manager's adapter."""
    return replace(adapter_shape(TrainingConfig()), **changes)
