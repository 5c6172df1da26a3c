"""One role's part of a training step: from what the rollouts left to the role's next policy.

It reads the role's own trajectories and the team's outcomes and nothing else of the other roles, so that it does the
same in a process of its own as in one loop with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from backend.config import TrainingConfig
from backend.training.alignment import target_count
from backend.training.credit import (
    Attempt,
    CreditSettings,
    RoleCredit,
    TeamAttempt,
    calls_histogram,
    credit_main,
    credit_sub,
)
from backend.training.curriculum import Stage
from backend.training.metrics import credit_metrics, spoken_metrics
from backend.training.policies import RolePolicies
from backend.training.role_trainer import RoleTrainer, RoleTrainerSettings
from backend.training.shares import share_metrics
from backend.training.trajectory import Trajectory
from cryptosentinel.agents.registry import MANAGER, ROLES
from cryptosentinel.team import derive_seed

MIN_CALLS = 20  # fewer conversations of a role than these tell nothing about its format


@dataclass(frozen=True)
class StepData:
    """What a step's rollouts left for the roles to learn from, a list a query and in the order of the queries.

    `team` are rollouts of the whole team; `everyone` is these and practice behind them. `shares` is, by role, the part
    of the outcome that each of `team` credits it with, where that is not the whole (`shares.role_shares`).
    """

    stage: Stage
    team: Sequence[Sequence[TeamAttempt]]
    everyone: Sequence[Sequence[Attempt]]
    shares: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Learnt:
    """What a role was paid (None: it sat this step out), its metrics, and whether it was taken back."""

    credit: RoleCredit | None
    metrics: dict[str, float]
    rolled_back: bool = False


class Learner:
    """Trains `role` of `policies`, step by step. `good` are its parameters as they last kept their format, None before
    they did."""

    def __init__(self, config: TrainingConfig, policies: RolePolicies, role: str) -> None:
        self.config = config
        self.policies = policies
        self.role = role
        self.trainer = RoleTrainer(policies, role, role_settings(config, role))
        self.good: dict[str, Tensor] | None = None

    def learn(self, step: int, data: StepData) -> Learnt:
        """Roll back if the format is lost, else credit the role's trajectories and make its optimiser steps."""
        rolled_back = self._roll_back(self._spoken(data.everyone, data))
        rollouts = sum(len(group) for group in data.team)
        metrics = spoken_metrics(self.role, self._spoken(data.team, data), rollouts)
        credit = self._credit(step, data)
        if credit is None:
            return Learnt(None, metrics, rolled_back)
        metrics |= credit_metrics(self.role, credit)
        if self.config.credit != "broadcast" and data.stage.beta[1] > 0.0 and self.role != MANAGER.key:
            metrics |= share_metrics(data.shares, {self.role: credit})
        if not rolled_back and self._learns(step):
            metrics |= self._step(credit)
        return Learnt(credit, metrics, rolled_back)

    def _learns(self, step: int) -> bool:
        """Whether the role's weights may change in this step: it is not frozen, and where roles alternate, it is its
        turn among those that are not."""
        free = [role for role in ROLES if role not in self.config.freeze]
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
            self.policies.load_role_state(self.role, self.good)
            # The optimiser's momentum points to where the format was lost.
            self.trainer = RoleTrainer(self.policies, self.role, role_settings(self.config, self.role))
            return True
        return False

    def _credit(self, step: int, data: StepData) -> RoleCredit | None:
        config, stage = self.config, data.stage
        settings = credit_settings(config, stage)
        if self.role == MANAGER.key:
            mains = [one.main for group in data.team for one in group]
            if stage.number == 1 and sum(call.valid for call in mains) >= config.gate_format * len(mains):
                # Paid for its format alone, a manager that has it can only learn to say less: to ask nobody.
                return None
            return credit_main(data.team, stage.alpha, settings)
        histogram = calls_histogram(data.team, self.role)
        target = target_count(histogram) if histogram else 1
        rng = np.random.default_rng(derive_seed(config.seed, "alignment", step, self.role))
        shares = data.shares.get(self.role)
        return credit_sub(data.everyone, self.role, stage.beta, config.alignment, target, rng, settings, shares)

    def _step(self, credit: RoleCredit) -> dict[str, float]:
        items = [item for item in credit.items if item.reward is not None]
        if not items:
            return {}
        return self.trainer.step(
            [item.trajectory for item in items],
            [item.advantage for item in items],
            [item.weight for item in items],
            self.config.temperature,
        )


def credit_settings(config: TrainingConfig, stage: Stage) -> CreditSettings:
    """How advantages come of rewards in a stage."""
    return CreditSettings(
        scale=config.scale_rewards,
        decoupled=config.reward_aggregation == "normalize_then_sum",
        group=config.group,
        min_group=config.min_group,
        overlong=(config.overlong_length, config.overlong_buffer) if config.overlong_length else None,
        keep_degenerate=stage.number == 1 or config.dynamic_rounds == 0,
    )


def role_settings(config: TrainingConfig, role: str) -> RoleTrainerSettings:
    """The settings of one role's trainer."""
    return RoleTrainerSettings(
        lr=getattr(config.learning_rate, role),
        warmup_steps=config.warmup_steps,
        eps_low=config.clip_low,
        eps_high=config.clip_high,
        ratio=config.ratio,
        loss=config.policy_loss,
        aggregation=config.aggregation,
        constant_length=config.constant_length,
        kl_coef=config.kl,
        entropy_coef=config.entropy,
        importance=config.importance,
        importance_cap=config.importance_cap,
        mask_truncated=config.mask_truncated,
        max_grad_norm=config.max_grad_norm,
        minibatches=config.minibatches,
        micro_batch_tokens=config.micro_batch_tokens,
        seed=config.seed,
    )
