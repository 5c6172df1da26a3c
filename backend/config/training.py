"""The settings of the training: M-GRPO (arXiv 2511.13288) and its two-stage curriculum.

`experimental.py` has the variants of the objective. The formulas are in the docstrings of the modules in
`backend/training` that compute them. Settings that contradict each other, or that nothing would read, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backend.config.base import (
    ALL_LINEAR,
    Fraction,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    Names,
    PositionShare,
    Rate,
    RewardWeights,
    Section,
)
from backend.config.experimental import ExperimentalConfig

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
_PREFIX = "experimental."


class RoleRates(Section):
    """Learning rate of each role's optimizer."""

    manager: Rate = Field(2e-4, description="learning rate of DeepTraderManager")
    market_analyst: Rate = Field(2e-4, description="learning rate of MarketAnalyst")
    risk_analyst: Rate = Field(2e-4, description="learning rate of RiskAnalyst")
    trader: Rate = Field(2e-4, description="learning rate of Trader")

    def of(self, role: str) -> float:
        """A role's rate; a role of the user's own has that of MarketAnalyst."""
        rates: dict[str, float] = self.model_dump()
        return rates.get(role, self.market_analyst)


class TrainingConfig(Section):
    """M-GRPO (arXiv 2511.13288) and its two-stage curriculum."""

    base_model: str = Field(
        "",
        description="causal language model to train: a folder, or the name of a pulled one; empty: make nano. Also the "
        "base of a team that has none in its folder",
    )
    start_from: str = Field(
        "", description="folder of a team of `sft` or `train` to continue from, its base included; empty: the base"
    )
    states: str = Field(
        "",
        description="file of states that a paper session recorded, from which queries start in place of drawn ones; "
        "`train --from-paper` writes and names it",
    )
    stage1_steps: int = Field(20, ge=0, le=100_000, description="steps of stage 1: format and expert reward")
    stage1_max_steps: int = Field(60, ge=0, le=100_000, description="steps after which stage 1 gives its gate up")
    stage2_steps: int = Field(40, ge=0, le=100_000, description="steps of stage 2: the team's outcome")
    tokens: int = Field(
        0,
        ge=0,
        le=10**12,
        description="tokens of all rollouts after which the training ends, whatever its steps; 0: the steps decide",
    )
    queries_per_step: int = Field(16, ge=1, le=4096, description="market windows per step")
    rollouts_per_query: int = Field(8, ge=2, le=256, description="K: rollouts of each window from the same state")
    practice_queries: int = Field(
        0, ge=0, le=4096, description="further windows per step on which sub-agents are asked alone, in both stages"
    )
    practice_roles: Names = Field(
        (), description="sub-agents that practise on practice_queries, as 'A,B'; empty: all of them"
    )
    practice_sizes: tuple[PositionShare, ...] = Field(
        (0.5, 1.0),
        min_length=1,
        description="positions on which sub-agents practise, as shares of the largest that a coin may have: one by lot",
    )
    scenario_paths: int = Field(
        16, ge=1, le=1024, description="synthetic markets: simulated scenarios over which the outcome is averaged"
    )
    scenario_source: Literal["truth", "beliefs"] = Field(
        "truth", description="synthetic markets: scenarios of the hidden regime, or of those that public data allow"
    )
    temperature: float = Field(1.0, gt=0.0, le=5.0, description="sampling temperature of the rollouts")
    alignment: Literal["fractional", "duplicate_drop", "none"] = Field(
        "fractional", description="how rollouts with different numbers of sub-agent calls are made comparable"
    )
    alpha: tuple[Fraction, Fraction] = Field(
        (0.1, 0.9), description="weights of format and outcome in the manager's reward; their sum is 1"
    )
    beta: RewardWeights = Field(
        (0.1, 0.4, 0.5),
        description="weights of format, outcome and expert reward in a sub-agent's reward; their sum is 1",
    )
    reward: str = Field(
        "",
        description="outcome of your own in place of the squashed return: my_module:reward, or an installed one's name",
    )
    scores: Names = Field(
        (), description="expert scores of your own in place of the roles', as 'market_analyst=my_module:score,...'"
    )
    invalid_penalty: float = Field(
        0.0,
        ge=0.0,
        le=10.0,
        description="above 0: valid answers are compared with valid ones alone, and an invalid one's advantage is so "
        "far below 0; 0: it is compared with them by its reward of 0",
    )
    clip_low: Fraction = Field(0.2, description="epsilon_low: the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(0.2, ge=0.0, le=10.0, description="epsilon_high: the ratio is clipped above 1 + clip_high")
    kl: float = Field(0.0, ge=0.0, le=10.0, description="weight of the KL (k3) to the model that the run began with")
    entropy: float = Field(0.0, ge=0.0, le=1.0, description="weight of the entropy bonus")
    learning_rate: RoleRates = Field(default_factory=RoleRates, description="learning rate per role")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="course of the learning rates over stage 2, by its steps or, where tokens end it, by these; in "
        "stage 1 they are constant",
    )
    lr_end: Fraction = Field(0.0, description="final learning rate of a schedule, as a share of the first")
    warmup_steps: int = Field(5, ge=0, le=10_000, description="optimizer steps over which learning rates rise from 0")
    minibatches: int = Field(4, ge=1, le=64, description="optimizer steps per role on the rollouts of one step")
    optimizer: Literal["adamw", "adamw8bit", "adafactor", "sgd"] = Field(
        "adamw",
        description="AdamW; AdamW with eight-bit moments, on a GPU with the extra qlora; Adafactor, with less memory "
        "for whole models; or SGD with a momentum of 0.9",
    )
    adam_betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="AdamW: decay rates of the two moments")
    weight_decay: Fraction = Field(0.0, description="weight decay of the optimizer")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="the gradient of each role is clipped to this norm")
    freeze: Names = Field((), description="roles that keep their weights, as 'A,B'")
    weights: Literal["lora", "full"] = Field("lora", description="train a LoRA adapter or a whole model per role")
    lora_rank: LoraRank = Field(16, description="rank of the adapters")
    lora_alpha: LoraAlpha = Field(0, description="updates are scaled by lora_alpha / lora_rank; 0: twice the rank")
    lora_targets: LoraTargets = Field(
        ALL_LINEAR,
        description="linear layers of a block that have an adapter, by their names in the model, as 'q_proj,v_proj'",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the trainer and of the local engine; auto: a GPU if torch sees one"
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "float32",
        description="type of the frozen base and of matrix products; auto: bfloat16 on a GPU; trained weights are "
        "float32",
    )
    quantization: Literal["none", "nf4"] = Field(
        "none", description="nf4: frozen base in 4 bits (QLoRA); needs a GPU and the extra qlora"
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute blocks in the backward pass: less memory, a third more work, equal gradients"
    )
    micro_batch_tokens: int = Field(
        8192,
        ge=64,
        le=1_000_000,
        description="padded tokens per forward pass: bounds memory, changes no gradient",
    )
    train_thoughts: bool = Field(
        True,
        description="learn the tokens of thoughts too (team.thinking_tokens); off: only the answers that follow them",
    )
    data_parallel: int = Field(
        1, ge=1, le=64, description="processes on this machine, each with a GPU, that share every optimizer step"
    )
    sharding: Literal["none", "fsdp"] = Field(
        "none",
        description="fsdp: the processes of data_parallel divide the weights among them (FSDP2), for a base that one "
        "GPU does not hold",
    )
    shards: int = Field(
        1,
        ge=1,
        le=1024,
        description="parts of a step's windows, of a validation and of a warm start's batch, for processes to share",
    )
    validation_every: int = Field(5, ge=1, le=100_000, description="steps between two validations")
    validation_queries: int = Field(32, ge=1, le=4096, description="market windows of a validation")
    gate_format: Fraction = Field(0.97, description="share of valid answers, of every role, that opens stage 2")
    rollback_format: Fraction = Field(0.9, description="a role with a lower share of valid answers is rolled back")
    wandb_project: str = Field(
        "", max_length=128, description="project of Weights & Biases that gets the metrics as well; empty: none"
    )
    mlflow_experiment: str = Field(
        "", max_length=128, description="experiment of MLflow that gets the metrics as well; empty: none"
    )
    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of all random draws of the training")
    experimental: ExperimentalConfig = Field(
        default_factory=ExperimentalConfig, description="variants whose effect has not been measured here"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stage1_steps + self.stage2_steps == 0:
            raise ValueError("stage1_steps + stage2_steps is 0: there is nothing to train")
        if self.stage1_max_steps < self.stage1_steps:
            raise ValueError(
                f"stage1_max_steps = {self.stage1_max_steps} is below stage1_steps = {self.stage1_steps}: "
                "raise the one or lower the other"
            )
        if self.reward and self.experimental.tail_weight:
            raise ValueError(
                f"reward = '{self.reward}' takes the place of the outcome that experimental.tail_weight = "
                f"{self.experimental.tail_weight:g} is a part of: leave one of them out"
            )
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def of_role(self, role: str) -> Self:
        """The settings of one role: those of `per_role` in place of the common ones."""
        entries = {key: value for key, value in self.experimental.per_role.items() if key == role}
        changes = {name: value for entry in entries.values() for name, value in entry if value is not None}
        deeper = {name: changes.pop(name) for name in ExperimentalConfig.model_fields if name in changes}
        experimental = self.experimental.model_copy(update={**deeper, "per_role": {}})
        return self.model_copy(update={**changes, "experimental": experimental})

    def anchors(self) -> bool:
        """Whether any role has a KL term."""
        return any(self.of_role(role).kl > 0.0 for role in RoleRates.model_fields)

    def pays_outcome(self) -> bool:
        """Whether stage 2 pays a sub-agent for the outcome in any of its steps."""
        settings = (self, *map(self.of_role, self.experimental.per_role))
        weights = [one for each in settings for one in (each.beta, each.experimental.beta_end)]
        return any(one[1] > 0.0 for one in weights if one)

    def _contradictions(self) -> list[str]:
        """Settings that cannot both be meant, each with both names."""
        variants = self.experimental
        problems = [*_weight_problems(self.alpha, variants.alpha_end, "alpha", _PREFIX)]
        problems += [*_weight_problems(self.beta, variants.beta_end, "beta", _PREFIX)]
        problems += [*self._stage2_problems(), *self._per_role_problems()]
        if problems:  # what follows relies on weights that are right
            return problems
        problems += [*self._role_name_problems(), *self._unread(), *self._shared_model_problems()]
        problems += [*self._objective_problems(), *self._model_problems()]
        return problems

    def _role_name_problems(self) -> Iterator[str]:
        """Lists of roles: unknown names, and lists that leave nothing to do."""
        roles = tuple(RoleRates.model_fields)
        for key, listed, known in (("freeze", self.freeze, roles), ("practice_roles", self.practice_roles, roles[1:])):
            for role in sorted(set(listed) - set(known)):
                kind = "role" if known == roles else "sub-agent"
                yield f"{key} names '{role}', which is no {kind}; there are {', '.join(known)}"
        if self.practice_roles and not self.practice_queries:
            yield (
                f"practice_roles = {','.join(self.practice_roles)} is read with practice_queries above 0 only: set "
                "that, or leave practice_roles out"
            )
        if set(self.freeze) >= set(roles):
            yield "freeze names every role: there is nothing to train"

    def _unread(self) -> Iterator[str]:
        """Settings that nothing would read."""
        variants = self.experimental
        drops = self.alignment == "duplicate_drop"
        measured = "alignment = 'duplicate_drop' and a measured experimental.alignment_target"
        for section, key, read, owner in (
            (
                variants,
                "min_group",
                variants.group != "role",
                "experimental.group = 'ordinal' or 'question'",
            ),
            (variants, "constant_length", variants.aggregation == "dr_grpo", "experimental.aggregation = 'dr_grpo'"),
            (
                variants,
                "importance_cap",
                variants.importance != "none",
                "experimental.importance = 'truncate' or 'mask'",
            ),
            (variants, "overlong_buffer", variants.overlong_length > 0, "experimental.overlong_length above 0"),
            (variants, "alignment_target", drops, "alignment = 'duplicate_drop'"),
            (variants, "alignment_window", self._measures_target(), measured),
            (self, "adam_betas", self.optimizer.startswith("adamw"), "optimizer = 'adamw' or 'adamw8bit'"),
            (self, "lr_end", self.lr_schedule != "constant", "lr_schedule = 'linear' or 'cosine'"),
        ):
            value = getattr(section, key)
            if not read and value != type(section).model_fields[key].default:
                name = key if section is self else f"{_PREFIX}{key}"
                shown = list(value) if isinstance(value, tuple) else f"{value:g}"
                yield f"{name} = {shown} is read with {owner} only: set that, or leave {name} out"

    def _shared_model_problems(self) -> Iterator[str]:
        """Settings that are about separate models, with one model for all roles."""
        if self.experimental.models == "separate":
            return
        rates = self.learning_rate.model_dump()
        if len(set(rates.values())) > 1:
            listed = ", ".join(f"{role} {rate:g}" for role, rate in rates.items())
            yield (
                f"experimental.models = 'shared' has one optimizer, and learning_rate several rates ({listed}): "
                "give all one"
            )
        separate = ["freeze"] if self.freeze else []
        separate += ["data_parallel"] if self.data_parallel > 1 else []
        for role, entry in self.experimental.per_role.items():
            shape = (entry.lora_rank, entry.lora_alpha, entry.lora_targets)
            separate += [f"experimental.per_role.{role}.lora_*"] if any(part is not None for part in shape) else []
        for key in separate:
            yield (
                f"experimental.models = 'shared' trains one model for all roles in one process, and {key} is about "
                f"separate roles or processes: leave {key} out, or use experimental.models = 'separate'"
            )

    def _objective_problems(self) -> Iterator[str]:
        """Variants of the objective that do not go together."""
        variants = self.experimental
        of_their_own = {entry.partition("=")[0].strip() for entry in self.scores}
        for role, key in (("market_analyst", "advice_weight"), ("risk_analyst", "verdict_weight")):
            share = getattr(variants, key)
            if role in of_their_own and share != type(variants).model_fields[key].default:
                yield (
                    f"scores has one of your own for {role}, in place of the one that experimental.{key} = "
                    f"{share:g} is a share of: leave one of them out"
                )
        if variants.single_calls == "batch" and variants.reward_aggregation == "normalize_then_sum":
            yield (
                "experimental.single_calls = 'batch' is a baseline of the summed reward, and "
                "experimental.reward_aggregation = 'normalize_then_sum' has one for each part: use 'sum_then_normalize'"
            )
        for key, value, problem in (
            ("reward_aggregation", "normalize_then_sum", "has one for each part of the reward"),
            ("single_calls", "batch", "compares with rewards of other windows"),
        ):
            if self.invalid_penalty and getattr(variants, key) == value:
                yield (
                    f"invalid_penalty = {self.invalid_penalty:g} is an advantage of the summed reward "
                    f"within a window, and experimental.{key} = '{value}' {problem}: leave one of them out"
                )
        if variants.group == "ordinal" and variants.min_group > self.rollouts_per_query:
            yield (
                f"experimental.min_group = {variants.min_group} is above rollouts_per_query = "
                f"{self.rollouts_per_query}: no group by ordinal can be as large; lower the one or raise the other"
            )
        if variants.aggregation == "dr_grpo" and variants.constant_length == 0:
            yield (
                "experimental.aggregation = 'dr_grpo' needs experimental.constant_length above 0, the tokens that a "
                "sum is divided by"
            )
        for key, value, plain in (
            ("aggregation", variants.aggregation, "grpo"),
            ("policy_loss", variants.policy_loss, "clip"),
        ):
            if value != plain and variants.ratio != "token":
                yield (
                    f"experimental.{key} = '{value}' is over tokens and experimental.ratio = '{variants.ratio}' is one "
                    f"number a call: use ratio = 'token' or {key} = '{plain}'"
                )
        if variants.reward_aggregation == "normalize_then_sum" and not variants.scale_rewards:
            yield (
                "experimental.reward_aggregation = 'normalize_then_sum' divides by sigma and "
                "experimental.scale_rewards = false does not: without sigma the two aggregations are one, so use "
                "'sum_then_normalize'"
            )
        if variants.overlong_length and not 1 <= variants.overlong_buffer <= variants.overlong_length:
            yield (
                f"experimental.overlong_length = {variants.overlong_length} needs experimental.overlong_buffer from 1 "
                f"to {variants.overlong_length}, not {variants.overlong_buffer}"
            )
        yield from [*self._entropy_problems()][:1]
        if variants.credit != "broadcast" and not self.pays_outcome():
            yield (
                f"experimental.credit = '{variants.credit}' divides an outcome that beta = {list(self.beta)} "
                "does not pay"
            )
        if variants.resampled_answers and variants.dynamic_rounds:
            yield (
                f"experimental.resampled_answers = {variants.resampled_answers} divides the rollouts of a window, and "
                f"experimental.dynamic_rounds = {variants.dynamic_rounds} counts the windows whose rollouts differ: "
                "leave one of them out"
            )

    def _entropy_problems(self) -> Iterator[str]:
        """A target of the entropy without a bonus whose weight could follow it."""
        for role in RoleRates.model_fields:
            own = self.of_role(role)
            if own.experimental.entropy_target and not own.entropy:
                yield (
                    f"experimental.entropy_target = {own.experimental.entropy_target:g} of {role} is followed by the "
                    "weight of its entropy bonus, and that begins with entropy = 0: set entropy, for example to 0.001"
                )

    def _model_problems(self) -> Iterator[str]:
        """What contradicts the base, the adapters or the device."""
        if self.start_from and self.base_model:
            yield (
                f"start_from = {self.start_from} has a base of its own and base_model = {self.base_model} names one: "
                "leave one of them out"
            )
        if self.weights == "full":
            adapters = ("lora_rank", "lora_alpha", "lora_targets")
            named = [key for key in adapters[1:] if getattr(self, key) != type(self).model_fields[key].default]
            named += [
                f"experimental.per_role.{role}.{key}"
                for role, entry in self.experimental.per_role.items()
                for key in adapters
                if getattr(entry, key) is not None
            ]
            for key in named:
                yield f"{key} is of adapters and weights = 'full' has none: use weights = 'lora'"
        if self.sharding == "fsdp":
            if self.quantization != "none":
                yield (
                    f"sharding = 'fsdp' cannot divide the packed weights of quantization = '{self.quantization}': drop "
                    "one of them"
                )
            if self.weights == "full" and self.optimizer in ("adafactor", "adamw8bit"):
                yield (
                    f"optimizer = '{self.optimizer}' needs whole matrices, and with sharding = 'fsdp' and weights = "
                    "'full' each process has a part of them: use 'adamw' or 'sgd'"
                )
        if self.optimizer == "adamw8bit" and self.device == "cpu":
            yield "optimizer = 'adamw8bit' needs a GPU, and device = 'cpu': use optimizer = 'adamw', or drop device"
        if self.quantization != "none":
            for key, value, other in (("weights", self.weights, "full"), ("device", self.device, "cpu")):
                if value == other:
                    yield (
                        f"quantization = '{self.quantization}' is for adapters on a GPU, and {key} = '{other}': drop "
                        "one of them"
                    )

    def _stage2_problems(self) -> Iterator[str]:
        """What needs a stage 2 that there is not, and a project's name that cannot be one."""
        variants = self.experimental
        ends = {"alpha_end": variants.alpha_end, "beta_end": variants.beta_end}
        ends |= {f"per_role.{role}.beta_end": entry.beta_end or () for role, entry in variants.per_role.items()}
        if self.stage2_steps < 2:
            for key in (key for key, end in ends.items() if end):
                yield f"experimental.{key} is reached over stage 2, and stage2_steps is {self.stage2_steps}"
        if self.lr_schedule != "constant" and self.stage2_steps == 0:
            yield f"lr_schedule = '{self.lr_schedule}' is over stage 2, and stage2_steps is 0"
        for key in ("dynamic_rounds", "hard_share"):
            if getattr(variants, key) and self.stage2_steps == 0:
                yield f"experimental.{key} = {getattr(variants, key)} is of stage 2, and stage2_steps is 0"
        if set(self.wandb_project) & set("/\\#?%:"):
            yield f"wandb_project = {self.wandb_project!r}: Weights & Biases refuses names with / \\ # ? % :"

    def _per_role_problems(self) -> Iterator[str]:
        """Settings of a role that it does not have, or that nothing reads."""
        for role, entry in self.experimental.per_role.items():
            key, settings = f"experimental.per_role.{role}", self.of_role(role)
            yield from _weight_problems(settings.beta, settings.experimental.beta_end, f"{key}.beta")
            if role == "manager":
                others = [name for name in ("beta", "beta_end", "alignment_target") if getattr(entry, name) is not None]
                yield from (f"{key}.{name}: {name} is of sub-agents, and the manager is none" for name in others)
            elif entry.alignment_target and self.alignment != "duplicate_drop":
                yield (
                    f"{key}.alignment_target = {entry.alignment_target} is read with alignment = 'duplicate_drop' "
                    "only: set that, or leave it out"
                )

    def _measures_target(self) -> bool:
        """Whether some sub-agent's target of duplicate_drop is measured."""
        variants = self.experimental
        targets = [entry.alignment_target for role, entry in variants.per_role.items() if role != "manager"]
        return self.alignment == "duplicate_drop" and 0 in (variants.alignment_target, *targets)


def _weight_problems(begin: tuple[float, ...], end: tuple[float, ...], name: str, prefix: str = "") -> Iterator[str]:
    """What is wrong with the weights of a reward, at the beginning and at the end of stage 2; `prefix` is that of the
    key of the end."""
    for key, weights in ((name, begin), (f"{prefix}{name}_end", end)):
        if weights and abs(sum(weights) - 1.0) > 1e-9:
            yield f"{key} = {list(weights)} sums to {sum(weights):g}; the weights must sum to 1"
    if end and len(end) != len(begin):
        yield (f"{prefix}{name}_end = {list(end)} has {len(end)} weights and {name} has {len(begin)}: give as many")
