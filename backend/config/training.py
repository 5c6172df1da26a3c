"""The settings of the training: M-GRPO (arXiv 2511.13288), its variants and its two-stage curriculum.

`docs/training.md` has a table of the variants with their papers; the formulas are in the docstrings of the modules in
`backend/training` that compute them. Settings that contradict each other, or that nothing would read, are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from backend.config.base import Fraction, Names, Rate, Section

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # of a Qwen3 block


def _known(targets: tuple[str, ...]) -> tuple[str, ...]:
    odd = [name for name in targets if name not in LINEARS]
    if odd:
        raise ValueError(f"'{odd[0]}' is no linear layer of a Qwen3 block; there are {', '.join(LINEARS)}")
    if len(set(targets)) != len(targets):
        raise ValueError(f"{', '.join(targets)} names a layer twice")
    return targets


Targets = Annotated[Names, Field(min_length=1), AfterValidator(_known)]
Rank = Annotated[int, Field(ge=1, le=256)]
Alpha = Annotated[int, Field(ge=0, le=4096)]


class RoleRates(Section):
    """One learning rate per role."""

    manager: Rate = Field(2e-4, description="DeepTraderManager")
    market_analyst: Rate = Field(2e-4, description="MarketAnalyst")
    risk_analyst: Rate = Field(2e-4, description="RiskAnalyst")
    trader: Rate = Field(2e-4, description="Trader")


RoleName = Literal["manager", "market_analyst", "risk_analyst", "trader"]
Weights3 = tuple[Fraction, Fraction, Fraction]
Above = Annotated[float, Field(ge=0.0, le=10.0)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class RoleSettings(Section):
    """What one role has of its own: keys of `TrainingConfig`, None where the role has the common value."""

    clip_low: Fraction | None = Field(None, description="as training.clip_low")
    clip_high: Above | None = Field(None, description="as training.clip_high")
    kl: Above | None = Field(None, description="as training.kl")
    entropy: Fraction | None = Field(None, description="as training.entropy")
    beta: Weights3 | None = Field(None, description="as training.beta; of sub-agents")
    beta_end: tuple[Fraction, ...] | None = Field(None, description="as training.beta_end; of sub-agents")
    alignment_target: Annotated[int, Field(ge=0, le=256)] | None = Field(
        None, description="as training.alignment_target; of sub-agents"
    )
    lora_rank: Rank | None = Field(None, description="as training.lora_rank")
    lora_alpha: Alpha | None = Field(None, description="as training.lora_alpha")
    lora_targets: Targets | None = Field(None, description="as training.lora_targets")


class TrainingConfig(Section):
    """M-GRPO (arXiv 2511.13288) and its two-stage curriculum."""

    base_model: str = Field(
        "", description="folder of a Qwen3 model to train, or name of a pulled one; empty: make nano"
    )
    start_from: str = Field(
        "", description="folder of a team of `sft` or `train` whose base and weights to go on from; empty: the base"
    )
    stage1_steps: int = Field(20, ge=0, le=100_000, description="steps on format, with expert rewards, easy windows")
    stage1_max_steps: int = Field(60, ge=0, le=100_000, description="stage 1 goes on up to so many steps for its gate")
    stage2_steps: int = Field(40, ge=0, le=100_000, description="steps on collaboration, all windows")
    queries_per_step: int = Field(16, ge=1, le=4096, description="market windows per step")
    practice_queries: int = Field(
        0, ge=0, le=4096, description="further windows per step on which sub-agents practise alone, in both stages"
    )
    practice_roles: Names = Field(
        (), description="the sub-agents that practise on `practice_queries`, as 'A,B'; empty: all of them"
    )
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
    hard_share: Fraction = Field(
        0.0, description="stage 2: share of the windows drawn from situations that the team handles badly"
    )
    rollouts_per_query: int = Field(8, ge=2, le=256, description="K: rollouts of each window from the same state")
    scenario_paths: int = Field(
        16, ge=1, le=1024, description="synthetic markets: simulated scenarios over which the outcome is averaged"
    )
    scenario_source: Literal["truth", "beliefs"] = Field(
        "truth", description="synthetic markets: scenarios of the hidden regime, or of those that public data allow"
    )
    detrend: bool = Field(
        False, description="scenarios lose their part's mean drift, so that being always long or short earns nothing"
    )
    outcome_scale: float = Field(
        1.0, gt=0.0, le=100.0, description="volatilities of net return that the outcome is squashed by; large: linear"
    )
    alignment: Literal["fractional", "duplicate_drop", "none"] = Field(
        "fractional", description="how different numbers of sub-agent calls are made comparable"
    )
    alignment_target: int = Field(
        0, ge=0, le=256, description="alignment = 'duplicate_drop': its d, the calls of each rollout; 0: measured"
    )
    alignment_window: int = Field(
        1, ge=1, le=1000, description="steps, this one and those before it, over which that d is measured"
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
    beta: Weights3 = Field(
        (0.1, 0.4, 0.5), description="sub-agents' weights of format, outcome and expert reward; sum 1"
    )
    alpha_end: tuple[Fraction, ...] = Field(
        (), description="alpha in the last step of stage 2, reached in a straight line; empty: alpha throughout"
    )
    beta_end: tuple[Fraction, ...] = Field((), description="beta in the last step of stage 2, as alpha_end")
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
    per_role: dict[RoleName, RoleSettings] = Field(
        default_factory=dict,
        description="what a role has of its own of " + ", ".join(RoleSettings.model_fields),
    )
    optimiser: Literal["adamw", "adafactor", "sgd"] = Field(
        "adamw", description="AdamW; Adafactor, with less memory for whole models; or SGD with a momentum of 0.9"
    )
    adam_betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="AdamW's decay of its two moments")
    weight_decay: Fraction = Field(0.0, description="weight decay of the optimiser")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rates go on in stage 2, after a constant stage 1"
    )
    lr_end: Fraction = Field(0.0, description="share of its learning rate that a schedule ends at")
    freeze: Names = Field((), description="roles that keep their weights, as 'A,B': for ablations")
    alternate: int = Field(
        0, ge=0, le=100_000, description="the roles learn in turn, so many steps each; 0: all of them in every step"
    )
    minibatches: int = Field(4, ge=1, le=64, description="optimiser steps a role makes on the rollouts of one step")
    warmup_steps: int = Field(5, ge=0, le=10_000, description="steps over which the learning rates rise from 0")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="the gradient of each role is clipped to this norm")
    models: Literal["separate", "shared"] = Field(
        "separate", description="a model for each role; or one for all, trained on the sum of their objectives"
    )
    weights: Literal["lora", "full"] = Field("lora", description="train an adapter per role, or a whole model per role")
    lora_rank: Rank = Field(16, description="rank of the adapters")
    lora_alpha: Alpha = Field(0, description="their updates are scaled by alpha / rank; 0: alpha is twice the rank")
    lora_targets: Targets = Field(LINEARS, description="linear layers that carry an adapter, as 'A,B'")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where policies are trained, and sampled without a server; auto: a GPU that torch sees"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "float32",
        description="of the frozen base and of matrix products; auto: bfloat16 on a GPU; what is trained is float32",
    )
    gradient_checkpointing: bool = Field(
        False, description="compute blocks again in the backward pass: less memory, a third more work, equal gradients"
    )
    quantisation: Literal["none", "nf4"] = Field(
        "none", description="frozen base in four bits (QLoRA), on a GPU; needs the extra qlora"
    )
    data_parallel: int = Field(
        1, ge=1, le=64, description="processes of this machine, each with a GPU, that share every optimiser step"
    )
    kl: float = Field(0.0, ge=0.0, le=10.0, description="weight of the KL (k3) to the model that the run began with")
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
    collapse_margin: Fraction = Field(
        0.0,
        description="a validation whose outcome is so much below the best, or that lost its format, puts the best "
        "version back; 0: never",
    )
    max_skipped: int = Field(
        5, ge=0, le=10_000, description="steps in a row without a finite update of some role that end the run; 0: any"
    )
    wandb_project: str = Field(
        "", max_length=128, description="project of Weights & Biases that the metrics go to as well; empty: none"
    )
    auto_stop: bool = Field(
        False, description="end the run where the doctor finds something that it cannot recover from"
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of everything that training draws")

    @model_validator(mode="after")
    def _check(self) -> Self:
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

    def of_role(self, role: str) -> Self:
        """The settings as they are for one role: those of `per_role` in place of the common ones."""
        own = {
            name: value
            for key, entry in self.per_role.items()
            if key == role
            for name, value in entry
            if value is not None
        }
        return self.model_copy(update={**own, "per_role": {}})

    def anchors(self) -> bool:
        """Whether any role is held to what it began with."""
        return any(self.of_role(role).kl > 0.0 for role in RoleRates.model_fields)

    def _shared_models(self) -> list[str]:
        """What cannot be meant of one model for all roles."""
        if self.models == "separate":
            return []
        found = []
        rates = self.learning_rate.model_dump()
        if len(set(rates.values())) > 1:
            told = ", ".join(f"{role} {rate:g}" for role, rate in rates.items())
            found.append(f"models = 'shared' has one optimiser, and learning_rate several rates ({told}): give all one")
        apart = [key for key in ("freeze", "alternate") if getattr(self, key)]
        apart += ["data_parallel"] if self.data_parallel > 1 else []
        for role, own in self.per_role.items():
            shape = (own.lora_rank, own.lora_alpha, own.lora_targets)
            apart += [f"per_role.{role}.lora_*"] if any(part is not None for part in shape) else []
        return found + [
            f"models = 'shared' trains one model for all roles in one process, and {key} is about roles or processes "
            f"apart: leave {key} out, or use models = 'separate'"
            for key in apart
        ]

    def _contradictions(self) -> list[str]:
        """What two keys say that cannot both be meant, each with both names."""
        found = [*_weights(self.alpha, self.alpha_end, "alpha"), *_weights(self.beta, self.beta_end, "beta")]
        found += [*self._schedules(), *self._roles_own()]
        if found:  # what follows relies on weights that are right
            return found
        if self.start_from and self.base_model:
            found.append(
                f"start_from = {self.start_from} has a base of its own and base_model = {self.base_model} names one: "
                "leave one of them out"
            )
        roles = tuple(RoleRates.model_fields)
        for key, listed, known in (("freeze", self.freeze, roles), ("practice_roles", self.practice_roles, roles[1:])):
            for role in sorted(set(listed) - set(known)):
                kind = "role" if known == roles else "sub-agent"
                found.append(f"{key} names '{role}', which is no {kind}; there are {', '.join(known)}")
        if self.practice_roles and not self.practice_queries:
            found.append(
                f"practice_roles = {','.join(self.practice_roles)} is read with practice_queries above 0 only: set "
                "that, or leave practice_roles out"
            )
        if set(self.freeze) >= set(roles):
            found.append("freeze names every role: there is nothing to train")
        for key, read, owner in (
            ("min_group", self.group == "ordinal", "group = 'ordinal'"),
            ("constant_length", self.aggregation == "dr_grpo", "aggregation = 'dr_grpo'"),
            ("importance_cap", self.importance != "none", "importance = 'truncate' or 'mask'"),
            ("overlong_buffer", self.overlong_length > 0, "overlong_length above 0"),
            ("alignment_target", self.alignment == "duplicate_drop", "alignment = 'duplicate_drop'"),
            ("alignment_window", self._measures(), "alignment = 'duplicate_drop' and a measured alignment_target"),
            ("adam_betas", self.optimiser == "adamw", "optimiser = 'adamw'"),
            ("lr_end", self.schedule != "constant", "schedule = 'linear' or 'cosine'"),
        ):
            value = getattr(self, key)
            if not read and value != type(self).model_fields[key].default:
                shown = list(value) if isinstance(value, tuple) else f"{value:g}"
                found.append(f"{key} = {shown} is read with {owner} only: set that, or leave {key} out")
        found += self._shared_models()
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
        if self.credit != "broadcast" and not self.pays_outcome():
            found.append(f"credit = '{self.credit}' shares an outcome that beta = {list(self.beta)} does not pay")
        if self.weights == "full":
            adapters = ("lora_rank", "lora_alpha", "lora_targets")
            named = [key for key in adapters[1:] if getattr(self, key) != type(self).model_fields[key].default]
            named += [
                f"per_role.{role}.{key}" for role, own in self.per_role.items() for key in adapters
                if getattr(own, key) is not None
            ]  # fmt: skip
            found += [f"{key} is of adapters and weights = 'full' has none: use weights = 'lora'" for key in named]
        if self.quantisation != "none":
            for key, value, other in (("weights", self.weights, "full"), ("device", self.device, "cpu")):
                if value == other:
                    found.append(
                        f"quantisation = '{self.quantisation}' is for adapters on a GPU, and {key} = '{other}': drop "
                        "one of them"
                    )
        if self.dynamic_rounds and self.stage2_steps == 0:
            found.append(f"dynamic_rounds = {self.dynamic_rounds} is of stage 2, and stage2_steps is 0")
        if self.hard_share and self.stage2_steps == 0:
            found.append(f"hard_share = {self.hard_share} is of stage 2, and stage2_steps is 0")
        return found

    def _schedules(self) -> list[str]:
        """What contradicts the stage 2 that schedules are over, and a name that cannot be one."""
        found = []
        ends = {key: value for key, value in (("alpha_end", self.alpha_end), ("beta_end", self.beta_end)) if value}
        ends |= {f"per_role.{role}.beta_end": own.beta_end for role, own in self.per_role.items() if own.beta_end}
        if self.stage2_steps < 2:
            found += [f"{key} is reached over stage 2, and stage2_steps is {self.stage2_steps}" for key in ends]
        if self.schedule != "constant" and self.stage2_steps == 0:
            found.append(f"schedule = '{self.schedule}' is over stage 2, and stage2_steps is 0")
        if set(self.wandb_project) & set("/\\#?%:"):
            found.append(f"wandb_project = {self.wandb_project!r}: Weights & Biases refuses names with / \\ # ? % :")
        return found

    def _roles_own(self) -> list[str]:
        """What is set of a role that it does not have, or that nothing reads."""
        found = []
        for role, own in self.per_role.items():
            key, as_it_is = f"per_role.{role}", self.of_role(role)
            found += _weights(as_it_is.beta, as_it_is.beta_end, f"{key}.beta")
            if role == "manager":
                others = [name for name in ("beta", "beta_end", "alignment_target") if getattr(own, name) is not None]
                found += [f"{key}.{name}: {name} is of sub-agents, and the manager is none" for name in others]
            elif own.alignment_target and self.alignment != "duplicate_drop":
                found.append(
                    f"{key}.alignment_target = {own.alignment_target} is read with alignment = 'duplicate_drop' only: "
                    "set that, or leave it out"
                )
        return found

    def _measures(self) -> bool:
        """Whether some sub-agent's target of duplicate_drop is measured."""
        own = [entry.alignment_target for role, entry in self.per_role.items() if role != "manager"]
        return self.alignment == "duplicate_drop" and 0 in (self.alignment_target, *own)

    def pays_outcome(self) -> bool:
        """Whether stage 2 pays a sub-agent for the outcome at some time."""
        ways = [(self.beta, self.beta_end)]
        ways += [(one.beta, one.beta_end) for one in map(self.of_role, self.per_role)]
        return any(weights[1] > 0.0 for way in ways for weights in way if weights)


def _weights(begin: tuple[float, ...], end: tuple[float, ...], name: str) -> list[str]:
    """What is wrong with the weights of a reward, at the beginning and at the end of stage 2."""
    found = []
    for key, weights in ((name, begin), (f"{name}_end", end)):
        if weights and abs(sum(weights) - 1.0) > 1e-9:
            found.append(f"{key} = {list(weights)} sums to {sum(weights):g}; the weights must sum to 1")
    if end and len(end) != len(begin):
        found.append(f"{name}_end = {list(end)} has {len(end)} weights and {name} has {len(begin)}: give as many")
    return found
