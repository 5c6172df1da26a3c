"""The settings of the training: M-GRPO (arXiv 2511.13288) and its two-stage curriculum.

The formulas are in the docstrings of the modules in `backend/training` that compute them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from backend.config.base import Fraction, LoraRank, Rate, RewardWeights, name_or_plugin
from cryptosentinel.team_settings import Names, Section

RECIPE_NAMES = ("mgrpo", "mgrpo_trajectory", "grpo", "gspo", "dapo", "dr_grpo", "cispo")
CREDIT_NAMES = ("broadcast", "counterfactual", "shapley")


PrecisionName = Literal["auto", "float32", "bfloat16", "nf4"]
RoleName = Literal["manager", "market_analyst", "risk_analyst", "trader"]
ROLE_NAMES: tuple[str, ...] = get_args(RoleName)
DEFAULT_RATE = 2e-4


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
    practice: dict[str, Annotated[int, Field(ge=1, le=4096)]] = Field(
        default_factory=dict,
        description="further windows per step on which a sub-agent is asked alone, by role, in both stages",
    )
    scenario_paths: int = Field(
        16, ge=1, le=1024, description="synthetic markets: simulated scenarios over which the outcome is averaged"
    )
    scenario_source: Literal["truth", "beliefs"] = Field(
        "truth", description="synthetic markets: scenarios of the hidden regime, or of those that public data allow"
    )
    temperature: float = Field(1.0, gt=0.0, le=5.0, description="sampling temperature of the rollouts")
    recipe: Annotated[str, name_or_plugin("recipe", RECIPE_NAMES)] = Field(
        "mgrpo",
        description="objective (backend/training/algorithm/recipes.py): mgrpo (arXiv 2511.13288), mgrpo_trajectory "
        "(its ratio as printed), grpo (arXiv 2402.03300), gspo (arXiv 2507.18071), dapo (arXiv 2503.14476), dr_grpo "
        "(arXiv 2503.20783), cispo (arXiv 2506.13585), or a class of your own as my_module:MyRecipe",
    )
    credit: Annotated[str, name_or_plugin("credit", CREDIT_NAMES)] = Field(
        "broadcast",
        description="a sub-agent's share of the outcome: all of it, what its answer changed in it (arXiv 1705.08926), "
        "its Shapley value, or a class of your own as my_module:MyCredit",
    )
    alignment: Literal["fractional", "duplicate_drop", "none"] = Field(
        "fractional", description="how rollouts with different numbers of sub-agent calls are made comparable"
    )
    beta: RewardWeights = Field(
        (0.1, 0.4, 0.5),
        description="weights of format, outcome and expert reward in a sub-agent's reward; their sum is 1",
    )
    reward: str = Field(
        "",
        description="outcome of your own in place of the squashed return: my_module:reward, or an installed one's name",
    )
    scale_rewards: bool = Field(
        True, description="divide advantages by the group's sigma; false: do not (arXiv 2503.20783)"
    )
    advice_weight: Fraction = Field(
        0.0,
        description="share of MarketAnalyst's expert score that is the outcome of the exposure its lean speaks for, "
        "without costs; the rest is the Brier score of its probabilities",
    )
    verdict_weight: Fraction = Field(
        0.3,
        description="share of RiskAnalyst's expert score that is the value of its reductions and vetoes; the rest is "
        "the pinball score of the loss that it states",
    )
    tail_weight: Fraction = Field(
        0.0, description="share of the outcome that losses above 5 % of the equity decide; 0: the squashed return alone"
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
    importance_cap: float = Field(
        2.0, gt=1.0, le=100.0, description="cap of the importance weights, trainer / sampler (arXiv 1802.01561)"
    )
    learning_rate: dict[RoleName, Rate] = Field(
        default_factory=dict, description="learning rate of a role's optimizer, by role; 2e-4 for the others"
    )
    lr_end: Fraction = Field(
        1.0,
        description="share of the learning rates that stage 2 ends with; they fall to it linearly, by its steps or, "
        "where tokens end it, by these; 1: constant",
    )
    warmup_steps: int = Field(5, ge=0, le=10_000, description="optimizer steps over which learning rates rise from 0")
    minibatches: int = Field(4, ge=1, le=64, description="optimizer steps per role on the rollouts of one step")
    optimizer: Literal["adamw", "adamw8bit"] = Field(
        "adamw", description="AdamW; or AdamW with eight-bit moments, on a GPU with the extra qlora"
    )
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="the gradient of each role is clipped to this norm")
    freeze: Names = Field((), description="roles that keep their weights, as 'A,B'")
    lora_rank: LoraRank = Field(
        16, description="rank of the LoRA adapter of each role (arXiv 2106.09685); 0: train a whole model per role"
    )
    precision: PrecisionName = Field(
        "float32",
        description="type of the frozen base and of matrix products; auto: bfloat16 on a GPU; nf4: that, over a base "
        "in 4 bits (QLoRA, arXiv 2305.14314), on a GPU with the extra qlora; trained weights are float32",
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
    seed: int = Field(1, ge=0, le=2**31 - 1, description="seed of all random draws of the training")

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def rate_of(self, role: str) -> float:
        """A role's learning rate; a role of the user's own has that of MarketAnalyst."""
        known = role if role in ROLE_NAMES else "market_analyst"
        return next((rate for name, rate in self.learning_rate.items() if name == known), DEFAULT_RATE)

    @property
    def weights(self) -> Literal["lora", "full"]:
        """Whether a role trains an adapter or a whole model."""
        return "lora" if self.lora_rank else "full"

    def pays_outcome(self) -> bool:
        """Whether stage 2 pays a sub-agent for the outcome."""
        return self.beta[1] > 0.0

    def _problems(self) -> Iterator[str]:
        """What cannot be meant, and pairs of which one would silently do nothing."""
        if self.stage1_steps + self.stage2_steps == 0:
            yield "stage1_steps + stage2_steps is 0: there is nothing to train"
        if self.stage1_max_steps < self.stage1_steps:
            yield (
                f"stage1_max_steps = {self.stage1_max_steps} is below stage1_steps = {self.stage1_steps}: "
                "raise the one or lower the other"
            )
        if abs(sum(self.beta) - 1.0) > 1e-9:
            yield f"beta = {list(self.beta)} sums to {sum(self.beta):g}; the weights must sum to 1"
        yield from self._role_problems()
        yield from self._unread_problems()
        yield from self._model_problems()

    def _role_problems(self) -> Iterator[str]:
        """Roles that are frozen: unknown names, and all of them."""
        for role in sorted(set(self.freeze) - set(ROLE_NAMES)):
            yield f"freeze: '{role}' is not a role; there are {', '.join(ROLE_NAMES)}"
        if set(self.freeze) >= set(ROLE_NAMES):
            yield "freeze lists every role: there is nothing to train"

    def _unread_problems(self) -> Iterator[str]:
        """Settings that nothing would read."""
        defaults = {name: info.default for name, info in type(self).model_fields.items()}
        for key, read, reader in (
            ("lr_end", self.stage2_steps > 0, "stage2_steps above 0"),
            ("tail_weight", not self.reward, "reward left empty"),
            ("credit", self.pays_outcome(), "a beta that pays for the outcome"),
        ):
            value = getattr(self, key)
            if not read and value != defaults[key]:
                yield f"{key} = {value} is read with {reader} only: set that, or leave {key} out"
        if self.recipe == "grpo" and self.alignment == "duplicate_drop":
            yield "recipe = 'grpo' aligns nothing, and alignment = 'duplicate_drop' is set: leave one of them out"

    def _model_problems(self) -> Iterator[str]:
        """What contradicts the base or the adapters."""
        if self.precision == "nf4" and self.weights == "full":
            yield "precision = 'nf4' is for adapters over a frozen base, and lora_rank = 0 has none: drop one of them"
