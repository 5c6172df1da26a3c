"""The settings of the training: M-GRPO (arXiv 2511.13288), its variants and its two-stage curriculum.

`docs/training.md` has a table of the variants with their papers; the formulas are in the docstrings of the modules in
`backend/training` that compute them. Settings that contradict each other, or that nothing would read, are refused.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from backend.sections import Fraction, Names, Rate, Section


class RoleRates(Section):
    """One learning rate per role."""

    manager: Rate = Field(2e-4, description="DeepTraderManager")
    market_analyst: Rate = Field(2e-4, description="MarketAnalyst")
    risk_analyst: Rate = Field(2e-4, description="RiskAnalyst")
    trader: Rate = Field(2e-4, description="Trader")


class TrainingConfig(Section):
    """M-GRPO (arXiv 2511.13288) and its two-stage curriculum."""

    base_model: str = Field(
        "", description="folder of a Qwen3 model to train, or name of a pulled one; empty: make nano"
    )
    stage1_steps: int = Field(20, ge=0, le=100_000, description="steps on format, with expert rewards, easy windows")
    stage1_max_steps: int = Field(60, ge=0, le=100_000, description="stage 1 goes on up to so many steps for its gate")
    stage2_steps: int = Field(40, ge=0, le=100_000, description="steps on collaboration, hard windows")
    queries_per_step: int = Field(16, ge=1, le=4096, description="market windows per step")
    shards: int = Field(
        1, ge=1, le=1024, description="parts of a step's windows, each rolled out on its own; workers share these"
    )
    staleness: int = Field(
        0, ge=0, le=64, description="train --launch: rollouts use the weights of so many steps before; 0: synchronous"
    )
    unsynchronised: bool = Field(
        False, description="train --launch: the newest weights since then, whichever are there; not reproducible"
    )
    dynamic_rounds: int = Field(
        0,
        ge=0,
        le=16,
        description="stage 2: rounds of further windows for those that teach the manager nothing; 0: none",
    )
    rollouts_per_query: int = Field(8, ge=2, le=256, description="K: rollouts of each window from the same state")
    futures_paths: int = Field(
        16, ge=1, le=1024, description="synthetic markets: simulated futures over which the outcome is averaged"
    )
    alignment: Literal["fractional", "duplicate_drop", "none"] = Field(
        "fractional", description="how different numbers of sub-agent calls are made comparable"
    )
    group: Literal["role", "ordinal"] = Field(
        "role", description="a call is compared with all of its role in its window, or with those of its ordinal"
    )
    min_group: int = Field(
        4, ge=2, le=256, description="group = 'ordinal': smaller groups are compared with all of the role"
    )
    ratio: Literal["token", "sequence", "trajectory"] = Field("token", description="level of the importance ratio")
    policy_loss: Literal["clip", "cispo"] = Field(
        "clip", description="PPO's clipped ratio, or CISPO's clipped weight on the log-prob"
    )
    aggregation: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = Field(
        "grpo", description="mean per call; sum by a constant length; mean over the step's tokens; over the update's"
    )
    constant_length: int = Field(
        0, ge=0, le=1_000_000, description="aggregation = 'dr_grpo': tokens that a call's sum is divided by"
    )
    clip_low: Fraction = Field(0.2, description="epsilon_low: the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0.0, le=10.0, description="epsilon_high: the ratio is clipped above 1 + clip_high")
    importance: Literal["truncate", "mask", "none"] = Field(
        "truncate", description="weights of trainer / sampler: cut at the cap, 0 outside [1/cap, cap], or all 1"
    )
    importance_cap: float = Field(2.0, gt=1.0, le=100.0, description="bound of these weights")
    alpha: tuple[Fraction, Fraction] = Field((0.1, 0.9), description="manager's weights of format and outcome; sum 1")
    beta: tuple[Fraction, Fraction, Fraction] = Field(
        (0.1, 0.4, 0.5), description="sub-agents' weights of format, outcome and expert reward; sum 1"
    )
    reward_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize", description="advantages of the summed reward, or the sum of its parts' advantages (GDPO)"
    )
    scale_rewards: bool = Field(True, description="divide advantages by the group's sigma; false: Dr. GRPO")
    credit: Literal["broadcast", "counterfactual", "shapley"] = Field(
        "broadcast",
        description="a sub-agent's part of the outcome: all of it, or what its effect on the orders changed",
    )
    overlong_length: int = Field(
        0, ge=0, le=1_000_000, description="sampled tokens of a conversation above which its reward is 1 lower; 0: any"
    )
    overlong_buffer: int = Field(
        0, ge=0, le=1_000_000, description="tokens before `overlong_length` over which that penalty grows from 0"
    )
    mask_truncated: bool = Field(False, description="learn nothing from conversations cut off at the token limit")
    learning_rate: RoleRates = Field(default_factory=RoleRates, description="learning rate per role")
    freeze: Names = Field((), description="roles that keep their weights, as 'A,B': for ablations")
    alternate: int = Field(
        0, ge=0, le=100_000, description="the roles learn in turn, so many steps each; 0: all of them in every step"
    )
    minibatches: int = Field(4, ge=1, le=64, description="optimiser steps a role makes on the rollouts of one step")
    warmup_steps: int = Field(5, ge=0, le=10_000, description="steps over which the learning rates rise from 0")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="the gradient of each role is clipped to this norm")
    weights: Literal["lora", "full"] = Field("lora", description="train an adapter per role, or a whole model per role")
    lora_rank: int = Field(16, ge=1, le=256, description="rank of the adapters")
    kl: float = Field(0.0, ge=0.0, le=10.0, description="weight of the KL (k3) to the warm-started model")
    entropy: float = Field(0.0, ge=0.0, le=1.0, description="weight of the entropy bonus")
    temperature: float = Field(1.0, gt=0.0, le=5.0, description="sampling temperature of the rollouts")
    validation_every: int = Field(5, ge=1, le=100_000, description="steps between two validations")
    validation_queries: int = Field(32, ge=1, le=4096, description="market windows of a validation")
    gate_format: Fraction = Field(0.97, description="every role's share of valid answers that opens stage 2")
    rollback_format: Fraction = Field(0.9, description="a role with a lower share of valid answers is rolled back")
    micro_batch_tokens: int = Field(
        8192,
        ge=64,
        le=1_000_000,
        description="padded tokens in one forward pass: memory; no gradient depends on it",
    )
    auto_stop: bool = Field(
        False, description="end the run where the doctor finds something that it cannot recover from"
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything that training draws")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, weights in (("alpha", self.alpha), ("beta", self.beta)):
            if abs(sum(weights) - 1.0) > 1e-9:
                raise ValueError(f"{name} = {list(weights)} sums to {sum(weights):g}; the weights must sum to 1")
        if self.stage1_steps + self.stage2_steps == 0:
            raise ValueError("stage1_steps + stage2_steps is 0: there is nothing to train")
        if self.stage1_max_steps < self.stage1_steps:
            raise ValueError(
                f"stage1_max_steps = {self.stage1_max_steps} is below stage1_steps = {self.stage1_steps}: "
                "raise the one or lower the other"
            )
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> list[str]:
        """What two keys say that cannot both be meant, each with both names."""
        found = []
        roles = tuple(RoleRates.model_fields)
        for role in self.freeze:
            if role not in roles:
                found.append(f"freeze names '{role}', which is no role; there are {', '.join(roles)}")
        if set(self.freeze) >= set(roles):
            found.append("freeze names every role: there is nothing to train")
        for key, read, owner in (
            ("min_group", self.group == "ordinal", "group = 'ordinal'"),
            ("constant_length", self.aggregation == "dr_grpo", "aggregation = 'dr_grpo'"),
            ("importance_cap", self.importance != "none", "importance = 'truncate' or 'mask'"),
            ("overlong_buffer", self.overlong_length > 0, "overlong_length above 0"),
        ):
            value = getattr(self, key)
            if not read and value != type(self).model_fields[key].default:
                found.append(f"{key} = {value:g} is read with {owner} only: set that, or leave {key} out")
        if self.group == "ordinal" and self.min_group > self.rollouts_per_query:
            found.append(
                f"min_group = {self.min_group} is above rollouts_per_query = {self.rollouts_per_query}: no group by "
                "ordinal can be as large; lower the one or raise the other"
            )
        if self.aggregation == "dr_grpo" and self.constant_length == 0:
            found.append("aggregation = 'dr_grpo' needs constant_length above 0, the tokens that a sum is divided by")
        for key, value, plain in (("aggregation", self.aggregation, "grpo"), ("policy_loss", self.policy_loss, "clip")):
            if value != plain and self.ratio != "token":
                found.append(
                    f"{key} = '{value}' is over tokens and ratio = '{self.ratio}' is one number a call: "
                    f"use ratio = 'token' or {key} = '{plain}'"
                )
        if self.reward_aggregation == "normalize_then_sum" and not self.scale_rewards:
            found.append(
                "reward_aggregation = 'normalize_then_sum' divides by sigma and scale_rewards = false does not: "
                "without sigma the two aggregations are one, so use 'sum_then_normalize'"
            )
        if self.overlong_length and not 1 <= self.overlong_buffer <= self.overlong_length:
            found.append(
                f"overlong_length = {self.overlong_length} needs overlong_buffer from 1 to {self.overlong_length}, "
                f"not {self.overlong_buffer}"
            )
        if self.credit != "broadcast" and self.beta[1] == 0.0:
            found.append(f"credit = '{self.credit}' shares an outcome that beta = {list(self.beta)} does not pay")
        if self.dynamic_rounds and self.stage2_steps == 0:
            found.append(f"dynamic_rounds = {self.dynamic_rounds} is of stage 2, and stage2_steps is 0")
        return found
