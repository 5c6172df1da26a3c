"""The two stages of the paper's curriculum (arXiv 2511.13288), with the gate between them.

Stage 1 teaches the format, on easy windows. The sub-agents practise: they are asked directly and learn from their
expert scores, which need no good manager. The manager is rewarded for its format alone, and only while it lacks it: as
long as its advice is worth little, standing still would be its best answer, and a manager that has collapsed to it
stops trying. Stage 2 is collaboration, on all windows: everybody shares the team's outcome.

What changes over time changes over stage 2, whose length n is known; that of stage 1 depends on its gate. With i steps
of stage 2 done, the weights of the rewards are (1 - p) alpha + p alpha_end with p = i / (n - 1), so that the last step
has alpha_end (and beta likewise): the expert's score may fade and the outcome grow. The learning rates have the factor

    linear   1 - (1 - e) i / n                      cosine   e + (1 - e) (1 + cos(pi i / n)) / 2

after the warm-up, with e = lr_end (SGDR's cosine without restarts, arXiv 1608.03983); in stage 1 it is 1. It is over n
and not n - 1 so that the last step still learns where e is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from backend.config.training import TrainingConfig
from backend.training.curriculum.hard_windows import Gaps, Hard

if TYPE_CHECKING:  # it imports torch, and whoever only looks at a training needs none
    from backend.training.algorithm.credit import CreditSettings

Schedule = Literal["constant", "linear", "cosine"]
Weights = TypeVar("Weights", tuple[float, float], tuple[float, float, float])


@dataclass(frozen=True)
class Stage:
    """What a stage trains on and pays for: the weights of `rewards.main_reward` and `rewards.sub_reward`.

    `pays_outcome`: whether some sub-agent is paid for the outcome at some time of the stage. `hard`: how its windows
    are drawn, all alike without. `spent`: the share of stage 2's tokens that the steps before have taken; 0 in stage 1,
    and where tokens end nothing.
    """

    number: int
    easy: bool
    alpha: tuple[float, float]
    beta: tuple[float, float, float]
    pays_outcome: bool = True
    hard: Hard | None = None
    spent: float = 0.0


@dataclass(frozen=True)
class Curriculum:
    """`stage1_steps`..`stage1_max_steps` of stage 1, the gate on the valid answers of every role, then `stage2_steps`.

    `alpha_end` and `beta_end` are the weights of the last step, () where they stay as they are. Schedules are over the
    steps of stage 2, or over its tokens where these end it before (`spent`, the share of them that has been taken).
    """

    stage1_steps: int
    stage1_max_steps: int
    stage2_steps: int
    gate_format: float
    alpha: tuple[float, float]
    beta: tuple[float, float, float]
    alpha_end: tuple[float, ...]
    beta_end: tuple[float, ...]
    pays_outcome: bool
    lr_schedule: Schedule
    lr_end: float

    def stage(self, number: int, done: int = 0, spent: float = 0.0) -> Stage:
        """A stage, with `done` steps of stage 2 behind it and so large a share of its tokens."""
        if number == 1:
            # The outcome's share goes to the expert score, so that rewards stay on the same scale.
            return Stage(1, True, (1.0, 0.0), (self.beta[0], 0.0, self.beta[1] + self.beta[2]), False)
        share = min(1.0, max(done / max(1, self.stage2_steps - 1), spent))
        alpha, beta = _between(self.alpha, self.alpha_end, share), _between(self.beta, self.beta_end, share)
        return Stage(2, False, alpha, beta, self.pays_outcome, spent=spent)

    def rate(self, done: int, spent: float = 0.0) -> float:
        """The factor of the learning rates, with `done` steps of stage 2 behind and so large a share of its tokens; 0
        of both also in stage 1."""
        share = min(1.0, max(done / max(1, self.stage2_steps), spent))
        if self.lr_schedule == "linear":
            return 1.0 - (1.0 - self.lr_end) * share
        if self.lr_schedule == "cosine":
            return self.lr_end + (1.0 - self.lr_end) * (1.0 + math.cos(math.pi * share)) / 2.0
        return 1.0

    def gate_passed(self, valid: Mapping[str, float]) -> bool:
        """Whether every role that spoke in the validation keeps the format."""
        return all(share >= self.gate_format for share in valid.values())

    def failed_roles(self, valid: Mapping[str, float]) -> str:
        """The roles below the gate with their shares, for a message."""
        return ", ".join(f"{role} {share:.1%}" for role, share in valid.items() if share < self.gate_format)


@dataclass(frozen=True)
class StepPlan:
    """The step that is next, its stage, and how many steps of that stage are done. `goes_on`: the step after it is of
    the same stage, whatever this one brings, as no validation comes between them."""

    step: int
    stage: Stage
    stage_steps: int
    goes_on: bool = False


class StepPlanner:
    """Plans the steps of a run: the stage as the curriculum has it, and which windows of stage 2 are drawn more often.

    It reads the configuration and the store's records of complete steps alone, so all processes of a run plan alike.
    """

    def __init__(self, config: TrainingConfig, gaps: Gaps) -> None:
        self._curriculum = curriculum_of(config)
        self._hard_share = config.experimental.hard_share
        self._gaps = gaps

    def plan(self, step: int, stage: int, stage_steps: int, spent: float = 0.0) -> StepPlan:
        """The plan of a step in stage number `stage`, of which `stage_steps` steps are done and so large a share of its
        tokens is taken."""
        planned = self._curriculum.stage(stage, stage_steps, spent)
        if stage != 1 and self._hard_share and (gaps := self._gaps.before(step)):
            planned = replace(planned, hard=Hard(self._hard_share, gaps))
        return StepPlan(step, planned, stage_steps)


def curriculum_of(config: TrainingConfig) -> Curriculum:
    """The curriculum as a configuration has it."""
    return Curriculum(
        config.stage1_steps,
        config.stage1_max_steps,
        config.stage2_steps,
        config.gate_format,
        config.alpha,
        config.beta,
        config.experimental.alpha_end,
        config.experimental.beta_end,
        config.pays_outcome(),
        config.lr_schedule,
        config.lr_end,
    )


def credit_settings(config: TrainingConfig, stage: Stage) -> CreditSettings:
    """How rewards become advantages in a stage (`algorithm.credit`)."""
    from backend.training.algorithm.credit import CreditSettings

    return CreditSettings(
        scale_rewards=config.experimental.scale_rewards,
        reward_aggregation=config.experimental.reward_aggregation,
        group=config.experimental.group,
        single_calls=config.experimental.single_calls,
        min_group=config.experimental.min_group,
        overlong_length=config.experimental.overlong_length,
        overlong_buffer=config.experimental.overlong_buffer,
        invalid_penalty=config.invalid_penalty,
        keep_degenerate=stage.number == 1 or config.experimental.dynamic_rounds == 0,
    )


def _between(begin: Weights, end: tuple[float, ...], share: float) -> Weights:
    """`begin` moved to `end` by `share` in [0, 1], exactly either of them at 0 and 1; `begin` where there is no end."""
    if not end:
        return begin
    moved = tuple((1.0 - share) * a + share * b for a, b in zip(begin, end, strict=True))
    return cast(Weights, moved)  # of begin's length
