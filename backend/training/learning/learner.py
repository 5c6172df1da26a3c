"""One role's part of a training step: from the rollouts' trajectories to the role's next policy.

It reads the role's own trajectories and the team's outcomes, and nothing else of the other roles. So it computes the
same in a process of its own as in one process with the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from torch import Tensor

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import target_count
from backend.training.algorithm.credit import (
    Attempt,
    CreditSettings,
    RoleCredit,
    ScoredGroup,
    assign_credit,
    calls_histogram,
    score_main,
    score_sub,
    shuffled,
)
from backend.training.algorithm.exploration import next_entropy_weight
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import Stage, credit_settings, curriculum_of
from backend.training.learning.role_trainer import Batch, GradientPool, RoleTrainer, RoleTrainerSettings
from backend.training.learning.step_data import LearningResult, StepData
from backend.training.learning.training_metrics import credit_metrics, practice_metrics, spoken_metrics
from backend.training.rollout.role_outcomes import role_outcome_metrics
from cryptosentinel.agents.registry import MANAGER
from cryptosentinel.team import derive_seed

MAX_IDLE_STEPS = 10  # steps without a conversation of a role; so many in a row are no chance of the draw
MIN_CALLS = 20  # conversations from which the share of valid ones is judged; fewer say nothing about the format


@dataclass
class LearnerState:
    """What a learner remembers of its steps, beside parameters and optimizer.

    stage2_steps     steps of stage 2 that it has done: how far the schedules are
    idle_steps       steps in a row without a conversation of the role
    skipped_steps    steps in a row in which updates were tried and none of them was finite
    call_histograms  of each of the last steps, oldest first: how many rollouts called the role how often
                     (`credit.calls_histogram`)
    entropy_weight   of the bonus in the next step, where it follows a target; None before the first one
    """

    stage2_steps: int = 0
    idle_steps: int = 0
    skipped_steps: int = 0
    call_histograms: list[dict[int, int]] = field(default_factory=list)
    entropy_weight: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also by way of JSON, where keys are text.

        Raises ValueError, TypeError, KeyError or AttributeError for anything else.
        """
        histograms = [
            {int(calls): int(rollouts) for calls, rollouts in histogram.items()} for histogram in raw["call_histograms"]
        ]
        weight = raw["entropy_weight"]
        return cls(
            int(raw["stage2_steps"]),
            int(raw["idle_steps"]),
            int(raw["skipped_steps"]),
            histograms,
            None if weight is None else float(weight),
        )


@dataclass(frozen=True)
class CreditInput:
    """What a role's credit for a step is computed from.

    stage     the stage with the role's own weights of the rewards
    settings  how rewards become advantages
    groups    the role's scored calls; None where the role sits the step out
    rate      the schedule's factor on the learning rate
    metrics   of the role's conversations and their alignment
    """

    stage: Stage
    settings: CreditSettings
    groups: Sequence[ScoredGroup] | None
    rate: float
    metrics: Mapping[str, float]


class Learner:
    """Trains `role` of `policies`, step by step, in a team of the roles `team`.

    `last_valid_parameters` are the role's parameters when its format was last valid, None before it was. With `state`
    they are what a checkpoint keeps of a learner beside policy and optimizer; `restore` puts both back.
    """

    def __init__(
        self,
        config: TrainingConfig,
        policies: RolePolicies,
        role: str,
        gradients: GradientPool | None = None,
    ) -> None:
        """`config` is the team's; the role's own settings are taken from it. `gradients` is `RoleTrainer`'s."""
        self.config = config.of_role(role)
        self.curriculum = curriculum_of(self.config)
        self.policies = policies
        self.role = role
        self._gradients = gradients
        self.trainer = self._fresh_trainer()
        self.last_valid_parameters: Mapping[str, Tensor] | None = None
        self.state = LearnerState()

    def train(self, step: int, data: StepData) -> LearningResult:
        """Learn from the rollouts of a step: roll back if the format is lost, assign credit, and make the updates."""
        rolled_back = self._roll_back(self.conversations(data))
        given = self.credit_input(step, data)
        credit = None if given.groups is None else assign_credit(given.groups, given.settings)
        metrics = {**given.metrics, **self.credit_metrics(given, credit, data)}
        if credit is not None and not rolled_back and self.role not in self.config.freeze:
            batch = self.split_batch(credit)
            if batch is not None:
                metrics |= self.trainer.train(batch, given.rate)
                metrics |= self.note_updates(metrics)
        return LearningResult(credit, metrics, rolled_back)

    def credit_input(self, step: int, data: StepData) -> CreditInput:
        """The role's calls of a step with rewards and alignment weights. The state counts the step; no weight changes.

        The stage's number and the share of its tokens that is spent are the data's. The weights of the rewards and the
        learning rate are those of the role's own settings after the steps of stage 2 that it has done, or that share.
        """
        state, done = self.state, self.state.stage2_steps
        number, spent = data.stage.number, data.stage.spent
        rate = self.curriculum.rate(done if number == 2 else 0, spent)
        stage = self.curriculum.stage(number, done, spent)
        state.stage2_steps += stage.number == 2
        state.idle_steps = 0 if self.conversations(data) else state.idle_steps + 1
        metrics = {f"{self.role}/silent_steps": float(state.idle_steps)}
        rollouts = sum(len(group) for group in data.team)
        spoken = self._conversations(data.team, data)
        metrics |= spoken_metrics(self.role, spoken, rollouts)
        metrics |= practice_metrics(self.role, spoken, self.conversations(data))
        settings = credit_settings(self.config, stage)
        groups = self._scored_groups(step, data, stage, settings, metrics)
        return CreditInput(stage, settings, groups, rate, metrics)

    def credit_metrics(self, given: CreditInput, credit: RoleCredit | None, data: StepData) -> dict[str, float]:
        """What the role was paid, by name; empty where it sat the step out."""
        if credit is None:
            return {}
        main = self.role == MANAGER.key
        metrics = credit_metrics(self.role, credit, given.stage.alpha if main else given.stage.beta)
        if self.config.experimental.credit != "broadcast" and given.stage.pays_outcome and not main:
            metrics |= role_outcome_metrics(data.role_outcomes, {self.role: credit})
        return metrics

    def conversations(self, data: StepData) -> list[Trajectory]:
        """The role's conversations of a step, with its practice."""
        return self._conversations(data.everyone, data)

    def split_batch(self, credit: RoleCredit) -> Batch | None:
        """The scored trajectories of a credit, divided into updates; None where there are none."""
        items = [item for item in credit.items if item.reward is not None]
        if not items:
            return None
        if self.state.entropy_weight is not None:
            self.trainer.weigh_entropy(self.state.entropy_weight)
        return self.trainer.split_batch(
            [item.trajectory for item in items],
            [item.advantage for item in items],
            [item.weight for item in items],
            self.config.temperature,
        )

    def note_updates(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Remember how a step's updates went, whose `metrics` these are; what else there is to watch of them."""
        self.count_skipped(metrics)
        target, entropy = self.config.experimental.entropy_target, metrics.get(f"{self.role}/entropy")
        if not target:
            return {}
        weight = self.trainer.settings.entropy
        if entropy is not None:
            self.state.entropy_weight = next_entropy_weight(weight, entropy, target, self.config.entropy)
        return {f"{self.role}/entropy_weight": weight}

    def count_skipped(self, metrics: Mapping[str, float]) -> None:
        """Count the steps in a row without a finite update; `metrics` are those of the step's updates."""
        if metrics[f"{self.role}/updates"] > 0.0:
            self.state.skipped_steps = 0
        elif metrics[f"{self.role}/skipped_updates"] > 0.0:
            self.state.skipped_steps += 1

    def restart(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        """Start a fresh optimizer, for `parameters` where they are given. The momentum of the former one still points
        to where the role was rolled back from."""
        if parameters is not None:
            self.policies.load_role_state(self.role, parameters)
        self.trainer = self._fresh_trainer()

    def remember_valid(self, parameters: Mapping[str, Tensor]) -> None:
        """Keep `parameters` as those to roll back to."""
        self.last_valid_parameters = parameters

    def restore(self, state: LearnerState, last_valid_parameters: Mapping[str, Tensor] | None) -> None:
        """Continue from what a checkpoint kept; policy and optimizer are restored apart."""
        self.state = state
        self.last_valid_parameters = last_valid_parameters

    def failure(self) -> str | None:
        """Why the role cannot go on, in a sentence, or None: too many steps without a finite update."""
        limit = self.config.experimental.max_skipped
        if not limit or self.state.skipped_steps < limit:
            return None
        return (
            f"every update of {self.role} was skipped in {self.state.skipped_steps} steps in a row, since its loss or "
            f"gradient was not finite (training.experimental.max_skipped = {limit}). The newest checkpoint has its "
            f"parameters as they were before; train anew with a lower training.learning_rate.{self.role} or "
            "training.max_grad_norm, or with training.kl above 0"
        )

    def _fresh_trainer(self) -> RoleTrainer:
        return RoleTrainer(self.policies, self.role, role_settings(self.config, self.role), self._gradients)

    def _conversations(self, groups: Sequence[Sequence[Attempt]], data: StepData) -> list[Trajectory]:
        """The role's conversations in `groups`; the manager's are those of the team."""
        if self.role == MANAGER.key:
            return [rollout.main for group in data.team for rollout in group]
        return [call for group in groups for attempt in group for call in attempt.subs if call.role == self.role]

    def _roll_back(self, conversations: Sequence[Trajectory]) -> bool:
        """Put the role's last valid parameters back if its format is lost; keep its parameters if the format is valid.

        Returns whether it was rolled back.
        """
        valid = sum(call.valid for call in conversations)
        if len(conversations) < MIN_CALLS:
            return False
        if valid >= self.config.gate_format * len(conversations):
            self.remember_valid(self.policies.role_state(self.role))
        elif valid < self.config.rollback_format * len(conversations) and self.last_valid_parameters is not None:
            self.restart(self.last_valid_parameters)
            return True
        return False

    def _scored_groups(
        self, step: int, data: StepData, stage: Stage, settings: CreditSettings, metrics: dict[str, float]
    ) -> list[ScoredGroup] | None:
        """The role's scored calls, None where it sits this step out; the alignment's target goes to `metrics`."""
        groups = self._scored(step, data, stage, settings, metrics)
        if groups is None or not self.config.experimental.shuffled_rewards:
            return groups
        rng = np.random.default_rng(derive_seed(self.config.seed, "shuffled rewards", step, self.role))
        return [shuffled(group, rng) for group in groups]

    def _scored(
        self, step: int, data: StepData, stage: Stage, settings: CreditSettings, metrics: dict[str, float]
    ) -> list[ScoredGroup] | None:
        config = self.config
        if self.role == MANAGER.key:
            mains = [rollout.main for group in data.team for rollout in group]
            if stage.number == 1 and sum(call.valid for call in mains) >= config.gate_format * len(mains):
                # Paid for its format alone, a manager that has it can only learn to say less: to ask nobody.
                return None
            return score_main(data.team, stage.alpha, settings)
        target = self._target(data)
        if config.alignment == "duplicate_drop":
            metrics[f"{self.role}/alignment/target"] = float(target)
        rng = np.random.default_rng(derive_seed(config.seed, "alignment", step, self.role))
        outcomes = data.role_outcomes.get(self.role)
        return score_sub(
            data.everyone, self.role, stage.beta, config.alignment, target, rng, settings, outcomes, len(data.team)
        )

    def _target(self, data: StepData) -> int:
        """d of duplicate_drop: as configured, or measured over the last `alignment_window` steps (`target_count`)."""
        if self.config.experimental.alignment_target:
            return self.config.experimental.alignment_target
        histograms = self.state.call_histograms
        histograms.append(calls_histogram(data.team, self.role))
        del histograms[: -self.config.experimental.alignment_window]
        total: Counter[int] = Counter()
        for histogram in histograms:
            total.update(histogram)
        return target_count(total) if total else 1


def role_settings(config: TrainingConfig, role: str) -> RoleTrainerSettings:
    """The settings of one role's trainer; `config` as it is for the role (`TrainingConfig.of_role`)."""
    return RoleTrainerSettings(
        learning_rate=config.learning_rate.of(role),
        warmup_steps=config.warmup_steps,
        optimizer=config.optimizer,
        weight_decay=config.weight_decay,
        adam_betas=config.adam_betas,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        ratio=config.experimental.ratio,
        policy_loss=config.experimental.policy_loss,
        aggregation=config.experimental.aggregation,
        constant_length=config.experimental.constant_length,
        kl=config.kl,
        entropy=config.entropy,
        clip_cov=config.experimental.clip_cov,
        importance=config.experimental.importance,
        importance_cap=config.experimental.importance_cap,
        mask_truncated=config.experimental.mask_truncated,
        max_grad_norm=config.max_grad_norm,
        minibatches=config.minibatches,
        micro_batch_tokens=config.micro_batch_tokens,
        seed=config.seed,
    )
