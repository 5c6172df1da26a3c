"""The two stages of the paper's curriculum (arXiv 2511.13288), with the gate between them.

Stage 1 teaches the format, on easy windows. The sub-agents practise: they are asked directly and learn from their
expert scores, which need no good manager. The manager is rewarded for its format alone, and only while it lacks it: as
long as its advice is worth little, standing still would be its best answer, and a manager that has collapsed to it
stops trying. Stage 2 is collaboration, on all windows: everybody shares the team's outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend.config import TrainingConfig


@dataclass(frozen=True)
class Stage:
    """What a stage trains on and pays for: the weights of `rewards.main_reward` and `rewards.sub_reward`."""

    number: int
    easy: bool
    alpha: tuple[float, float]
    beta: tuple[float, float, float]


@dataclass(frozen=True)
class Curriculum:
    """`min_steps`..`max_steps` of stage 1, the gate on the share of valid answers of every role, then `steps2`."""

    min_steps: int
    max_steps: int
    steps2: int
    gate: float
    alpha: tuple[float, float]
    beta: tuple[float, float, float]

    def stage(self, number: int) -> Stage:
        if number == 1:
            # The outcome's share goes to the expert score, so that rewards stay on the same scale.
            return Stage(1, True, (1.0, 0.0), (self.beta[0], 0.0, self.beta[1] + self.beta[2]))
        return Stage(2, False, self.alpha, self.beta)

    def gate_passed(self, valid: Mapping[str, float]) -> bool:
        """Whether every role that spoke in the validation keeps the format."""
        return all(share >= self.gate for share in valid.values())

    def failed_roles(self, valid: Mapping[str, float]) -> str:
        """The roles below the gate with their shares, for a message."""
        return ", ".join(f"{role} {share:.1%}" for role, share in valid.items() if share < self.gate)


def curriculum_of(config: TrainingConfig) -> Curriculum:
    """The curriculum as a configuration has it."""
    return Curriculum(
        config.stage1_steps,
        config.stage1_max_steps,
        config.stage2_steps,
        config.gate_format,
        config.alpha,
        config.beta,
    )
