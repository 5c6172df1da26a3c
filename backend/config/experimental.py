"""Settings of the training that no preset and no benchmark uses: variants of the objective from the literature, and
switches for studies.

They work and are tested; how much each of them helps has not been measured here. `docs/training.md` has a table of the
variants with their papers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.config.base import Fraction, LoraAlpha, LoraRank, LoraTargets, RewardWeights, Section

RoleName = Literal["manager", "market_analyst", "risk_analyst", "trader"]
Above = Annotated[float, Field(ge=0.0, le=10.0)]
Nats = Annotated[float, Field(ge=0.0, le=10.0)]


class RoleSettings(Section):
    """Values of one role that replace the common ones; None: the role has the common value."""

    clip_low: Fraction | None = Field(None, description="as training.clip_low")
    clip_high: Above | None = Field(None, description="as training.clip_high")
    kl: Above | None = Field(None, description="as training.kl")
    entropy: Fraction | None = Field(None, description="as training.entropy")
    entropy_target: Nats | None = Field(None, description="as training.experimental.entropy_target")
    beta: RewardWeights | None = Field(None, description="as training.beta; of sub-agents")
    beta_end: tuple[Fraction, ...] | None = Field(None, description="as training.experimental.beta_end; of sub-agents")
    alignment_target: Annotated[int, Field(ge=0, le=256)] | None = Field(
        None, description="as training.experimental.alignment_target; of sub-agents"
    )
    lora_rank: LoraRank | None = Field(None, description="as training.lora_rank")
    lora_alpha: LoraAlpha | None = Field(None, description="as training.lora_alpha")
    lora_targets: LoraTargets | None = Field(None, description="as training.lora_targets")


class ExperimentalConfig(Section):
    """Variants of the objective and switches for studies, whose effect has not been measured in this project."""

    per_role: dict[RoleName, RoleSettings] = Field(
        default_factory=dict,
        description="settings of one role that replace the common ones: any of " + ", ".join(RoleSettings.model_fields),
    )
    models: Literal["separate", "shared"] = Field(
        "separate", description="a model for each role, or one model for all roles (parameter sharing)"
    )
    ratio: Literal["token", "sequence", "trajectory"] = Field(
        "token", description="level of the importance ratio: of each token, or one of the whole call"
    )
    policy_loss: Literal["clip", "cispo"] = Field(
        "clip", description="clipped ratio (PPO), or clipped weight on the log-probability (CISPO)"
    )
    aggregation: Literal["grpo", "dr_grpo", "dapo", "bnpo"] = Field(
        "grpo",
        description="tokens are averaged over each call, divided by constant_length, averaged over the step, "
        "or averaged over the update",
    )
    constant_length: int = Field(
        0, ge=0, le=1_000_000, description="tokens by which aggregation = 'dr_grpo' divides the sum of a call"
    )
    importance: Literal["truncate", "mask", "none"] = Field(
        "truncate", description="weights of trainer / sampler: cut at the cap, 0 outside [1/cap, cap], or all 1"
    )
    importance_cap: float = Field(2.0, gt=1.0, le=100.0, description="cap of the importance weights")
    group: Literal["role", "ordinal", "question"] = Field(
        "role",
        description="a call is compared with all calls of its role in a window, with those of its ordinal, or with "
        "answers to the same question",
    )
    min_group: int = Field(
        4,
        ge=2,
        le=256,
        description="group = 'ordinal' or 'question': where it has fewer calls, they are compared with all of the role",
    )
    single_calls: Literal["none", "batch"] = Field(
        "none",
        description="a role's only call in a window learns nothing, or is compared with the role's calls in the "
        "step's other windows",
    )
    scale_rewards: bool = Field(True, description="divide advantages by the group's sigma; false: Dr. GRPO")
    reward_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = Field(
        "sum_then_normalize", description="advantages of the summed reward, or the sum of its parts' advantages (GDPO)"
    )
    credit: Literal["broadcast", "counterfactual", "shapley"] = Field(
        "broadcast", description="a sub-agent's share of the outcome: all of it, or what its answer changed in it"
    )
    resampled_answers: int = Field(
        0,
        ge=0,
        le=64,
        description="stage 2: further rollouts of each window that repeat one of its rollouts up to a question, drawn "
        "by lot, and sample its answer and what follows anew; 0: none",
    )
    alignment_target: int = Field(
        0, ge=0, le=256, description="alignment = 'duplicate_drop': calls kept of each rollout (d); 0: measured"
    )
    alignment_window: int = Field(
        1, ge=1, le=1000, description="alignment = 'duplicate_drop': last steps over which d is measured"
    )
    entropy_target: Nats = Field(
        0.0,
        description="entropy of a role, nats a sampled token, that the weight of its entropy bonus follows from step "
        "to step, beginning with training.entropy; 0: the weight stays",
    )
    clip_cov: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of the sampled tokens of a step without a gradient of the objective: those that lower the "
        "entropy most",
    )
    alpha_end: tuple[Fraction, ...] = Field(
        (), description="alpha in the last step of stage 2, approached linearly; empty: alpha stays as it is"
    )
    beta_end: tuple[Fraction, ...] = Field(
        (), description="beta in the last step of stage 2, approached linearly; empty: beta stays as it is"
    )
    overlong_length: int = Field(
        0, ge=0, le=1_000_000, description="sampled tokens of a conversation above which its reward is 1 lower; 0: any"
    )
    overlong_buffer: int = Field(
        0, ge=0, le=1_000_000, description="tokens before overlong_length over which that penalty grows from 0 to 1"
    )
    mask_truncated: bool = Field(False, description="learn nothing from conversations cut off at the token limit")
    dynamic_rounds: int = Field(
        0,
        ge=0,
        le=16,
        description="stage 2: at most so many rounds of further windows in place of those without a signal for the "
        "manager; 0: none",
    )
    hard_share: Fraction = Field(
        0.0, description="stage 2: share of the windows drawn from situations that the team handles badly"
    )
    detrend: bool = Field(
        False, description="take the mean drift of the part out of the scenarios, so that always long earns nothing"
    )
    outcome_scale: float = Field(
        1.0, gt=0.0, le=100.0, description="volatilities of net return at which the outcome saturates"
    )
    advice_weight: Fraction = Field(
        0.0,
        description="share of MarketAnalyst's expert score that is the outcome of the exposure its lean speaks for, "
        "without costs; the rest is the Brier score of its probabilities",
    )
    verdict_weight: Fraction = Field(
        0.3,
        description="share of RiskAnalyst's expert score that is what its reductions and vetoes were worth; the rest "
        "is the pinball score of the loss that it states",
    )
    tail_weight: Fraction = Field(
        0.0, description="share of the outcome that large losses decide; 0: only the squashed return counts"
    )
    tail_loss: float = Field(
        0.1,
        gt=0.0,
        le=0.5,
        description="loss of equity over the horizon from which that share falls; it is 0 at twice the loss",
    )
    staleness: int = Field(
        0, ge=0, le=64, description="rollouts use the weights of so many steps before; 0: those of the step itself"
    )
    newest_weights: bool = Field(
        False,
        description="train --launch: the newest weights there are within staleness, also in the middle of a "
        "conversation; not reproducible",
    )
    collapse_margin: Fraction = Field(
        0.0,
        description="a validation this much below the best outcome, or without its format, restores the best version; "
        "0: never",
    )
    max_skipped: int = Field(
        5, ge=0, le=10_000, description="steps in a row without a finite update of a role that end the run; 0: any"
    )
    shuffled_rewards: bool = Field(
        False,
        description="a control that must learn nothing: the rewards of a role are shuffled among its calls on a window",
    )
    auto_stop: bool = Field(False, description="end the run when the diagnosis finds a fault that does not heal")
