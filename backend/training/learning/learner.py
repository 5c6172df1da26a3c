"""One role's part of a training step: from the rollouts' trajectories to the role's next policy.

A learner reads the role's own trajectories and the team's outcomes, and nothing else of the other roles. So it computes
the same in a process of its own as in one process with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import align, target_count
from backend.training.algorithm.credit import (
    Attempt,
    RoleCredit,
    TeamAttempt,
    TrajectoryCredit,
    assign_credit,
    calls_histogram,
    score_main,
    score_sub,
)
from backend.training.algorithm.team_credit import BROADCAST
from backend.training.algorithm.trajectory import Trajectory
from backend.training.chosen_recipe import recipe_of
from backend.training.curriculum.curriculum import Curriculum, Stage
from backend.training.learning.role_trainer import GradientPool, RoleTrainer
from backend.training.learning.training_metrics import conversation_metrics, credit_metrics, practice_metrics
from backend.training.rollout.role_outcomes import role_outcome_metrics
from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.team import derive_seed

MAX_IDLE_STEPS = 10  # steps without a conversation of a role; so many in a row are no chance of the draw
MIN_CALLS = 20  # conversations from which the share of valid ones is judged; fewer say nothing about the format
MAX_SKIPPED = 5  # steps in a row without a finite update of a role that end the run


@dataclass(frozen=True)
class StepData:
    """What a step's rollouts left for the roles to learn from, one list a query and in the order of the queries.

    team           rollouts of the whole team
    everyone       these, and behind them the sub-agents' practice
    role_outcomes  by role, the part of the outcome that each rollout of `team` credits the role with
                   (`rollout.role_outcomes`); a role that is paid the whole outcome is absent
    """

    stage: Stage
    team: Sequence[Sequence[TeamAttempt]]
    everyone: Sequence[Sequence[Attempt]]
    role_outcomes: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


def tokens_of(data: StepData) -> int:
    """Tokens of all conversations of a step, practice included."""
    mains = sum(len(rollout.main.ids) for group in data.team for rollout in group)
    return mains + sum(len(call.ids) for group in data.everyone for attempt in group for call in attempt.subs)


@dataclass(frozen=True)
class LearningResult:
    """What came of a step for one role.

    credit       what the role was paid; None where it sat the step out
    metrics      by name, as `{role}/reward/mean`
    rolled_back  whether its parameters were put back to the last ones with a valid format
    """

    credit: RoleCredit | None
    metrics: Mapping[str, float]
    rolled_back: bool


@dataclass
class LearnerState:
    """What a learner remembers of its steps, beside parameters and optimizer.

    stage2_steps   steps of stage 2 that it has done: how far the schedules are
    idle_steps     steps in a row without a conversation of the role
    skipped_steps  steps in a row in which updates were tried and none of them was finite
    """

    stage2_steps: int = 0
    idle_steps: int = 0
    skipped_steps: int = 0


class Learner:
    """Trains `role` of `policies`, step by step, in a team of the roles `team`.

    `last_valid_parameters` are the role's parameters when its format was last valid, None before it was. With `state`
    they are what a checkpoint keeps of a learner beside policy and optimizer.
    """

    def __init__(
        self,
        config: TrainingConfig,
        policies: RolePolicies,
        role: str,
        gradients: GradientPool | None = None,
    ) -> None:
        """`gradients` is `RoleTrainer`'s."""
        self.config = config
        self.curriculum = Curriculum(config)
        self.recipe = recipe_of(config)
        self.policies = policies
        self.role = role
        self._gradients = gradients
        self.trainer = RoleTrainer(policies, role, config, gradients)
        self.last_valid_parameters: Mapping[str, Tensor] | None = None
        self.state = LearnerState()

    def train(self, step: int, data: StepData) -> LearningResult:
        """Learn from the rollouts of a step: roll back if the format is lost, assign credit, and make the updates."""
        conversations = self.conversations(data)
        rolled_back = self._roll_back(conversations)
        stage, rate = self._count_step(data, conversations)
        metrics = self._conversation_metrics(data, conversations)
        groups = self._scored_groups(step, data, stage, metrics)
        if groups is None:
            return LearningResult(None, metrics, rolled_back)
        credit = assign_credit(groups, self.recipe, weighted=self.role != MANAGER.key)
        metrics |= self._credit_metrics(credit, stage, data)
        scored = [item for item in credit.items if item.reward is not None]
        if scored and not rolled_back and self.role not in self.config.freeze:
            metrics |= self.trainer.step(
                [item.trajectory for item in scored],
                [item.advantage for item in scored],
                [item.weight for item in scored],
                self.config.temperature,
                rate,
            )
            self.count_skipped(metrics)
        return LearningResult(credit, metrics, rolled_back)

    def conversations(self, data: StepData) -> list[Trajectory]:
        """The role's conversations of a step, with its practice."""
        return self._conversations(data.everyone, data)

    def count_skipped(self, metrics: Mapping[str, float]) -> None:
        """Count the steps in a row without a finite update; `metrics` are those of the step's updates."""
        if metrics[f"{self.role}/updates"] > 0.0:
            self.state.skipped_steps = 0
        elif metrics[f"{self.role}/skipped_updates"] > 0.0:
            self.state.skipped_steps += 1

    def failure(self) -> str | None:
        """Why the role cannot continue, in a sentence, or None: too many steps without a finite update."""
        if self.state.skipped_steps < MAX_SKIPPED:
            return None
        return (
            f"every update of {self.role} was skipped in {self.state.skipped_steps} steps in a row, since its loss or "
            "gradient was not finite. The newest checkpoint has its parameters as they were before; train again with a "
            f"lower training.learning_rate.{self.role} or training.max_grad_norm, or with training.kl above 0"
        )

    def _count_step(self, data: StepData, conversations: Sequence[Trajectory]) -> tuple[Stage, float]:
        """The stage of a step and the schedule's factor on the learning rate; the state counts the step.

        The stage's number and the share of its tokens that is spent are the data's; how far the schedule is, the steps
        of stage 2 that this learner has done, or that share.
        """
        state, number, spent = self.state, data.stage.number, data.stage.spent
        rate = self.curriculum.rate(state.stage2_steps if number == 2 else 0, spent)
        state.stage2_steps += number == 2
        state.idle_steps = 0 if conversations else state.idle_steps + 1
        return self.curriculum.stage(number, spent), rate

    def _conversation_metrics(self, data: StepData, conversations: Sequence[Trajectory]) -> dict[str, float]:
        metrics = {f"{self.role}/silent_steps": float(self.state.idle_steps)}
        rollouts = sum(len(group) for group in data.team)
        spoken = self._conversations(data.team, data)
        metrics |= conversation_metrics(self.role, spoken, rollouts)
        return metrics | practice_metrics(self.role, spoken, conversations)

    def _credit_metrics(self, credit: RoleCredit, stage: Stage, data: StepData) -> dict[str, float]:
        """What the role was paid, by name."""
        main = self.role == MANAGER.key
        metrics = credit_metrics(self.role, credit, stage.alpha if main else stage.beta)
        if self.config.credit != BROADCAST and stage.pays_outcome and not main:
            metrics |= role_outcome_metrics(data.role_outcomes, {self.role: credit})
        return metrics

    def _conversations(self, groups: Sequence[Sequence[Attempt]], data: StepData) -> list[Trajectory]:
        """The role's conversations in `groups`; the manager's are those of the team."""
        if self.role == MANAGER.key:
            return [rollout.main for group in data.team for rollout in group]
        return [call for group in groups for attempt in group for call in attempt.subs if call.role == self.role]

    def _roll_back(self, conversations: Sequence[Trajectory]) -> bool:
        """Put the role's last valid parameters back if its format is lost, with a fresh optimizer: the momentum of the
        former one still points to where it was rolled back from. Keep its parameters if the format is valid.

        Returns whether it was rolled back.
        """
        valid = sum(call.valid for call in conversations)
        if len(conversations) < MIN_CALLS:
            return False
        if valid >= self.config.gate_format * len(conversations):
            self.last_valid_parameters = self.policies.role_state(self.role)
        elif valid < self.config.rollback_format * len(conversations) and self.last_valid_parameters is not None:
            self.policies.load_role_state(self.role, self.last_valid_parameters)
            self.trainer = RoleTrainer(self.policies, self.role, self.config, self._gradients)
            return True
        return False

    def _scored_groups(
        self, step: int, data: StepData, stage: Stage, metrics: dict[str, float]
    ) -> list[list[TrajectoryCredit]] | None:
        """The role's scored calls, None where it sits this step out; the alignment's target goes to `metrics`."""
        if self.role == MANAGER.key:
            mains = [rollout.main for group in data.team for rollout in group]
            if stage.number == 1 and sum(call.valid for call in mains) >= self.config.gate_format * len(mains):
                # Paid for its format alone, a manager that has it can only learn to say less: to ask nobody.
                return None
            return score_main(data.team, stage.alpha)
        method, histogram = self.recipe.alignment or self.config.alignment, calls_histogram(data.team, self.role)
        target = target_count(histogram) if histogram else 1
        if method == "duplicate_drop":
            metrics[f"{self.role}/alignment/target"] = float(target)
        rng = np.random.default_rng(derive_seed(self.config.seed, "alignment", step, self.role))
        weights = partial(align, method=method, target=target, rng=rng)
        return score_sub(data.everyone, self.role, stage.beta, weights, data.role_outcomes.get(self.role, ()))
