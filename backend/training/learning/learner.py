"""One role's part of a training step: from what the rollouts left to the role's next policy.

It reads the role's own trajectories and the team's outcomes and nothing else of the other roles, so that it does the
same in a process of its own as in one loop with the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np
from torch import Tensor

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import target_count
from backend.training.algorithm.credit import (
    Attempt,
    RoleCredit,
    calls_histogram,
    credit_main,
    credit_settings,
    credit_sub,
)
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import Stage, curriculum_of
from backend.training.learning.metrics import credit_metrics, spoken_metrics
from backend.training.learning.role_trainer import Batch, GradientPool, RoleTrainer, RoleTrainerSettings
from backend.training.learning.step_data import Learnt, StepData
from backend.training.rollout.counterfactual import share_metrics
from cryptosentinel.agents.registry import MANAGER, ROLES
from cryptosentinel.team import derive_seed

SILENT_STEPS = 10  # steps without a conversation of a role, after which that is no chance of the draw
MIN_CALLS = 20  # fewer conversations of a role than these tell nothing about its format


@dataclass
class Past:
    """What a learner remembers of its steps, beside parameters and optimiser.

    collaborated  steps of stage 2 that it has done: how far the schedules are
    silent        steps in a row without a conversation of the role
    skipped       steps in a row in which none of the updates that it tried was finite
    histograms    how many rollouts called it how often (`credit.calls_histogram`), of the last steps, oldest first
    """

    collaborated: int = 0
    silent: int = 0
    skipped: int = 0
    histograms: list[dict[int, int]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also by way of JSON, where keys are text. Raises ValueError, TypeError, KeyError
        or AttributeError for anything else."""
        kept = [{int(calls): int(rollouts) for calls, rollouts in one.items()} for one in raw["histograms"]]
        return cls(int(raw["collaborated"]), int(raw["silent"]), int(raw["skipped"]), kept)


class Learner:
    """Trains `role` of `policies`, step by step, in a team of the roles `team`. `good` are its parameters as they last
    kept their format, None before they did; `past` is what else it remembers. A checkpoint has all of it."""

    def __init__(
        self,
        config: TrainingConfig,
        policies: RolePolicies,
        role: str,
        team: Sequence[str] = tuple(ROLES),
        gradients: GradientPool | None = None,
    ) -> None:
        self.config = config.of_role(role)
        self.curriculum = curriculum_of(self.config)
        self.policies = policies
        self.role = role
        self.team = team
        self._gradients = gradients
        self.trainer = self._fresh_trainer()
        self.good: dict[str, Tensor] | None = None
        self.past = Past()

    def learn(self, step: int, data: StepData) -> Learnt:
        """Roll back if the format is lost, else credit the role's trajectories and make its optimiser steps."""
        rolled_back = self._roll_back(self.spoken(data))
        learnt, rate = self.pay(step, data)
        if learnt.credit is not None and not rolled_back and self._learns(step):
            learnt.metrics.update(self._step(learnt.credit, rate))
        return replace(learnt, rolled_back=rolled_back)

    def pay(self, step: int, data: StepData) -> tuple[Learnt, float]:
        """What the role is paid for a step, and the factor of a schedule on its learning rate. No weight changes.

        The stage's number is the data's; its weights and the learning rate are those of the role's own settings and of
        the steps of stage 2 that it has done.
        """
        past, done = self.past, self.past.collaborated
        rate = self.curriculum.rate(done if data.stage.number == 2 else 0)
        stage = self.curriculum.stage(data.stage.number, done)
        past.collaborated += stage.number == 2
        past.silent = 0 if self.spoken(data) else past.silent + 1
        metrics = {f"{self.role}/silent_steps": float(past.silent)}
        metrics |= spoken_metrics(self.role, self._spoken(data.team, data), sum(len(group) for group in data.team))
        credit = self._credit(step, data, stage, metrics)
        if credit is None:
            return Learnt(None, metrics), rate
        metrics |= credit_metrics(self.role, credit, stage.alpha if self.role == MANAGER.key else stage.beta)
        if self.config.credit != "broadcast" and stage.pays_outcome and self.role != MANAGER.key:
            metrics |= share_metrics(data.shares, {self.role: credit})
        return Learnt(credit, metrics), rate

    def spoken(self, data: StepData) -> list[Trajectory]:
        """The role's conversations of a step, in practice too."""
        return self._spoken(data.everyone, data)

    def begin(self, credit: RoleCredit) -> Batch | None:
        """What there is to learn of a credit, divided into updates; None for nothing."""
        items = [item for item in credit.items if item.reward is not None]
        if not items:
            return None
        return self.trainer.begin(
            [item.trajectory for item in items],
            [item.advantage for item in items],
            [item.weight for item in items],
            self.config.temperature,
        )

    def note(self, metrics: Mapping[str, float]) -> None:
        """Remember whether the updates of a step were finite."""
        if metrics[f"{self.role}/updates"] > 0.0:
            self.past.skipped = 0
        elif metrics[f"{self.role}/skipped_updates"] > 0.0:
            self.past.skipped += 1

    def restart(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        """A fresh optimiser, for `parameters` where they are given: the momentum of the former one points to where the
        role should not have gone."""
        if parameters is not None:
            self.policies.load_role_state(self.role, parameters)
        self.trainer = self._fresh_trainer()

    def failure(self) -> str | None:
        """Why the role cannot go on, in a sentence, or None: too many steps without a finite update."""
        limit = self.config.max_skipped
        if not limit or self.past.skipped < limit:
            return None
        return (
            f"every update of {self.role} was skipped in {self.past.skipped} steps in a row, since its loss or "
            f"gradient was not finite (training.max_skipped = {limit}). The newest checkpoint has its parameters as "
            f"they were before; train anew with a lower training.learning_rate.{self.role} or training.max_grad_norm, "
            "or with training.kl above 0"
        )

    def _fresh_trainer(self) -> RoleTrainer:
        return RoleTrainer(self.policies, self.role, role_settings(self.config, self.role), self._gradients)

    def _learns(self, step: int) -> bool:
        """Whether the role's weights may change in this step: it is not frozen, and where roles alternate, it is its
        turn among those that are not."""
        free = [role for role in self.team if role not in self.config.freeze]
        if not self.config.alternate:
            return self.role in free
        return self.role == free[step // self.config.alternate % len(free)]

    def _spoken(self, groups: Sequence[Sequence[Attempt]], data: StepData) -> list[Trajectory]:
        """The role's conversations in `groups`; the manager's are those of the team."""
        if self.role == MANAGER.key:
            return [one.main for group in data.team for one in group]
        return [call for group in groups for one in group for call in one.subs if call.role == self.role]

    def _roll_back(self, spoken: Sequence[Trajectory]) -> bool:
        """Take back the role's parameters if its last steps ruined its format; remember them if it keeps it."""
        valid = sum(call.valid for call in spoken)
        if len(spoken) < MIN_CALLS:
            return False
        if valid >= self.config.gate_format * len(spoken):
            self.good = self.policies.role_state(self.role)
        elif valid < self.config.rollback_format * len(spoken) and self.good is not None:
            self.restart(self.good)
            return True
        return False

    def _credit(self, step: int, data: StepData, stage: Stage, metrics: dict[str, float]) -> RoleCredit | None:
        """The role's credit, None where it sits this step out; metrics of the alignment go to `metrics`."""
        config = self.config
        settings = credit_settings(config, stage)
        if self.role == MANAGER.key:
            mains = [one.main for group in data.team for one in group]
            if stage.number == 1 and sum(call.valid for call in mains) >= config.gate_format * len(mains):
                # Paid for its format alone, a manager that has it can only learn to say less: to ask nobody.
                return None
            return credit_main(data.team, stage.alpha, settings)
        target = self._target(data)
        if config.alignment == "duplicate_drop":
            metrics[f"{self.role}/alignment/target"] = float(target)
        rng = np.random.default_rng(derive_seed(config.seed, "alignment", step, self.role))
        shares = data.shares.get(self.role)
        return credit_sub(data.everyone, self.role, stage.beta, config.alignment, target, rng, settings, shares)

    def _target(self, data: StepData) -> int:
        """d of duplicate_drop: as it is set, or measured over the last `alignment_window` steps (`target_count`)."""
        if self.config.alignment_target:
            return self.config.alignment_target
        self.past.histograms.append(calls_histogram(data.team, self.role))
        del self.past.histograms[: -self.config.alignment_window]
        seen: Counter[int] = Counter()
        for histogram in self.past.histograms:
            seen.update(histogram)
        return target_count(seen) if seen else 1

    def _step(self, credit: RoleCredit, rate: float) -> dict[str, float]:
        batch = self.begin(credit)
        if batch is None:
            return {}
        metrics = self.trainer.learn(batch, rate)
        self.note(metrics)
        return metrics


def role_settings(config: TrainingConfig, role: str) -> RoleTrainerSettings:
    """The settings of one role's trainer; `config` as it is for the role (`TrainingConfig.of_role`)."""
    return RoleTrainerSettings(
        learning_rate=getattr(config.learning_rate, role),
        warmup_steps=config.warmup_steps,
        optimiser=config.optimiser,
        weight_decay=config.weight_decay,
        adam_betas=config.adam_betas,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        ratio=config.ratio,
        policy_loss=config.policy_loss,
        aggregation=config.aggregation,
        constant_length=config.constant_length,
        kl=config.kl,
        entropy=config.entropy,
        importance=config.importance,
        importance_cap=config.importance_cap,
        mask_truncated=config.mask_truncated,
        max_grad_norm=config.max_grad_norm,
        minibatches=config.minibatches,
        micro_batch_tokens=config.micro_batch_tokens,
        seed=config.seed,
    )
