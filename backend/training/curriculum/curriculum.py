"""The two stages of the paper's curriculum (arXiv 2511.13288), with the gate between them.

Stage 1 teaches the format, on easy windows. The sub-agents practice: they are asked directly and learn from their
expert scores, which need no good manager. The manager is rewarded for its format alone, and only while it lacks it: as
long as its advice is worth little, standing still would be its best answer, and a manager that has collapsed to it
stops trying. Stage 2 is collaboration, on all windows: everybody shares the team's outcome.

The learning rates fall over stage 2, whose length n is known; that of stage 1 depends on its gate. With i steps of
stage 2 done they have the factor 1 - (1 - lr_end) i / n, after the warm-up; in stage 1 it is 1. It is over n and not
n - 1 so that the last step still learns where lr_end is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.config.training import TrainingConfig
from backend.training.algorithm.rewards import ALPHA


@dataclass(frozen=True)
class Stage:
    """What a stage trains on and pays for: the weights of `rewards.main_reward` and `rewards.sub_reward`.

    `pays_outcome`: whether sub-agents are paid for the outcome. `spent`: the share of stage 2's tokens that the steps
    before have taken; 0 in stage 1, and where tokens end nothing.
    """

    number: int
    easy: bool
    alpha: tuple[float, float]
    beta: tuple[float, float, float]
    pays_outcome: bool = True
    spent: float = 0.0


@dataclass(frozen=True)
class StepPlan:
    """The step that is next, and its stage."""

    step: int
    stage: Stage


@dataclass(frozen=True)
class Curriculum:
    """`stage1_steps`..`stage1_max_steps` of stage 1, the gate on the valid answers of every role, then `stage2_steps`,
    all of the `config`. The schedule is over the steps of stage 2, or over its tokens where these end it before
    (`spent`, the share of them that has been taken)."""

    config: TrainingConfig

    def stage(self, number: int, spent: float = 0.0) -> Stage:
        """A stage, with so large a share of stage 2's tokens taken."""
        beta = self.config.beta
        if number == 1:
            # The outcome's share goes to the expert score, so that rewards stay on the same scale.
            return Stage(1, True, (1.0, 0.0), (beta[0], 0.0, beta[1] + beta[2]), False)
        return Stage(2, False, ALPHA, beta, self.config.pays_outcome(), spent)

    def rate(self, done: int, spent: float = 0.0) -> float:
        """The factor of the learning rates, with `done` steps of stage 2 behind and so large a share of its tokens; 0
        of both also in stage 1."""
        share = min(1.0, max(done / max(1, self.config.stage2_steps), spent))
        return 1.0 - (1.0 - self.config.lr_end) * share

    def gate_passed(self, valid: Mapping[str, float]) -> bool:
        """Whether every role that took part in the validation keeps the format."""
        return all(share >= self.config.gate_format for share in valid.values())

    def failed_roles(self, valid: Mapping[str, float]) -> str:
        """The roles below the gate with their shares, for a message."""
        return ", ".join(f"{role} {share:.1%}" for role, share in valid.items() if share < self.config.gate_format)
