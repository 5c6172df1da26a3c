"""Rewards of M-GRPO (arXiv 2511.13288) and the scores they are made of, all in [0, 1].

    main agent:  R = a1 format + a2 outcome              0 when its format is invalid
    sub-agent:   R = b1 format + b2 outcome + b3 expert  0 when its format is invalid

`outcome` is the team's, one per rollout, or what a role changed of it (`team_credit`). The expert scores are
verifiable: each compares what an agent said with what happened on the market. No model judges. All scores are proper
or monotone, so honesty is the best answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.arrays import FloatArray

ALPHA = (0.1, 0.9)
BETA = (0.1, 0.4, 0.5)


@dataclass(frozen=True)
class RewardParts:
    """The parts of one trajectory's reward, kept apart so that a record can be re-weighed later.

    `outcome` is the team's outcome of the rollout, 0 when the main agent's format was invalid, or the part of it that
    `team_credit` gives the role. `expert` is None where no score exists, always so for the main agent. Raises
    ValueError for a part outside [0, 1], or NaN.
    """

    valid: bool
    format: float
    outcome: float
    expert: float | None = None

    def __post_init__(self) -> None:
        _check("format", self.format)
        _check("outcome", self.outcome)
        if self.expert is not None:
            _check("expert", self.expert)

    def terms(self) -> tuple[float, float, float]:
        """Format, outcome and expert score as they count: all 0 when the format is invalid, and so is a missing expert
        score. The reward is their sum weighted with (b1, b2, b3)."""
        if not self.valid:
            return 0.0, 0.0, 0.0
        return self.format, self.outcome, self.expert or 0.0


def main_reward(valid: bool, format_score: float, outcome: float, alpha: tuple[float, float] = ALPHA) -> float:
    """The main agent's reward: alpha[0] format + alpha[1] outcome, 0 when invalid. Raises as `RewardParts` does."""
    parts = RewardParts(valid, format_score, outcome)
    return alpha[0] * parts.format + alpha[1] * parts.outcome if valid else 0.0


def sub_reward(
    valid: bool, format_score: float, outcome: float, expert: float | None, beta: tuple[float, float, float] = BETA
) -> float | None:
    """A sub-agent's reward: beta[0] format + beta[1] outcome + beta[2] expert, 0 when invalid.

    None when a valid call has no expert score although the score counts (beta[2] > 0). Such a call must be left out
    of its group and counted: the other weights renormalized, or a guessed score, would put it on another scale than
    the calls it is compared with, and it would be praised or blamed for lacking a score. Raises as `RewardParts` does.
    """
    parts = RewardParts(valid, format_score, outcome, expert)
    if not valid:
        return 0.0
    reward = beta[0] * parts.format + beta[1] * parts.outcome
    if beta[2] == 0.0:
        return reward
    return None if parts.expert is None else reward + beta[2] * parts.expert


def squash(x: float) -> float:
    """Any finite number to [0, 1], 0 to one half: (1 + tanh x) / 2."""
    if not math.isfinite(x):
        raise ValueError(f"cannot squash {x}")
    return 0.5 * (1.0 + math.tanh(x))


@dataclass(frozen=True)
class Tail:
    """How much large losses count in the outcome: `weight` in [0, 1], of losses beyond `loss`, a fraction of equity."""

    weight: float = 0.0
    loss: float = 0.1


NO_TAIL = Tail()


def outcome_score(net_returns: npt.ArrayLike, volatility: float, tail: Tail = NO_TAIL) -> float:
    """Mean over n >= 1 scenarios of the same state, in [0, 1], of

        (1 - w) squash(net return / volatility) + w (1 - min(1, max(0, loss - l) / l)),   w = tail.weight, l = tail.loss

    The squashed return saturates, so that a loss of a fifth of the account hardly counts more than a usual one. The
    second term, an expected shortfall beyond a fixed loss, falls from 1 to 0 while the loss grows from l to 2 l: with
    it ruin is worse than a bad day. No trade gives 0.5 without a tail, and (1 + w) / 2 with it.

    net_returns (n,) fractions of equity over the horizon, net of all costs; `volatility` the market's expected
    standard deviation over the same horizon, known at decision time. The mean is taken after squashing, so that one
    recorded future (n = 1) estimates the same quantity as many simulated ones.
    """
    return float(outcome_scores(_row("net_returns", net_returns)[None], volatility, tail)[0])


def outcome_scores(net_returns: FloatArray, volatility: float, tail: Tail = NO_TAIL) -> FloatArray:
    """`outcome_score` of each row of `net_returns` (K, n): (K,)."""
    _positive("volatility", volatility)
    scores: FloatArray = np.mean(0.5 * (1.0 + np.tanh(net_returns / volatility)), axis=-1)
    if tail.weight == 0.0:
        return scores
    _positive("tail.loss", tail.loss)
    beyond: FloatArray = np.mean(np.clip((-net_returns - tail.loss) / tail.loss, 0.0, 1.0), axis=-1)
    return (1.0 - tail.weight) * scores + tail.weight * (1.0 - beyond)


def brier_score(probabilities: npt.ArrayLike, outcome_frequencies: npt.ArrayLike) -> float:
    """One minus half the multiclass Brier score, averaged over the outcomes that came, in [0, 1].

    probabilities (C,) the stated distribution over all C classes; outcome_frequencies (C,) how often each class came:
    one-hot for a recorded future, shares for simulated ones. E|p - onehot|^2 = sum p^2 - 2 sum p f + 1, which is
    least at p = f (Brier 1950): a proper score, since the classes are fixed in advance and none is the agent's pick.
    """
    stated = _distribution("probabilities", probabilities)
    came = _distribution("outcome_frequencies", outcome_frequencies)
    if stated.shape != came.shape:
        raise ValueError(f"{stated.shape[0]} probabilities for {came.shape[0]} classes of outcome")
    brier = float(stated @ stated - 2.0 * stated @ came + 1.0)
    return min(1.0, max(0.0, 1.0 - 0.5 * brier))


def pinball_score(stated: float, losses: npt.ArrayLike, level: float, scale: float) -> float:
    """How good a stated quantile of the loss is: one minus the normalized pinball loss (Koenker & Bassett 1978).

    stated  the loss that is not exceeded with probability `level`, same unit as losses (n,), n >= 1 scenarios
    scale   the largest loss told apart. Both are clipped to [0, scale] first, which bounds the score in [0, 1]
            while the best answer stays the true quantile (clipped): a cut through the *loss* would not keep that,
            and would teach an analyst to understate risk.
    """
    _positive("scale", scale)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level {level} is outside (0, 1)")
    if math.isnan(stated):
        raise ValueError("stated is NaN")
    excess = np.clip(_row("losses", losses), 0.0, scale) - min(max(stated, 0.0), scale)
    pinball = float(np.mean(np.maximum(level * excess, (level - 1.0) * excess)))
    return max(0.0, 1.0 - pinball / (max(level, 1.0 - level) * scale))  # rounding may pass 0 by a last bit


def intervention_value(with_cap: npt.ArrayLike, without: npt.ArrayLike, scale: float) -> float:
    """What a cap or veto was worth: squash(mean(with_cap - without) / scale); 0.5 where it changed nothing.

    with_cap, without (n,): the utility of the same n scenarios with the reduction and without it, in one unit with
    `scale`. Common scenarios, so that luck cancels.
    """
    _positive("scale", scale)
    capped, free = _row("with_cap", with_cap), _row("without", without)
    if capped.shape != free.shape:
        raise ValueError(f"{capped.shape[0]} scenarios with the cap, {free.shape[0]} without")
    return squash(float(np.mean(capped - free)) / scale)


def shortfall_score(shortfall: float, scale: float) -> float:
    """Execution quality: squash(-shortfall / scale); 0.5 is a fill at the arrival price.

    shortfall: signed implementation shortfall against the arrival price as a fraction of the notional, positive is a
    cost (Perold 1988). Where nothing was filled there is no shortfall and no score: give None as the expert part.
    """
    _positive("scale", scale)
    return squash(-shortfall / scale)


def _check(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:  # False for NaN as well
        raise ValueError(f"reward part {name} = {value} is outside [0, 1]")


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be positive and finite, not {value}")


def _row(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    row = np.atleast_1d(np.asarray(values, np.float64))
    if row.ndim != 1 or row.size == 0 or not np.isfinite(row).all():
        raise ValueError(f"{name} must be one row of finite numbers, not {values!r}")
    return row


def _distribution(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    row = _row(name, values)
    if (row < 0.0).any() or abs(float(row.sum()) - 1.0) > 1e-6:
        raise ValueError(f"{name} {row.tolist()} is not a distribution")
    return row


@dataclass(frozen=True)
class Outcome:
    """The team's outcome of one rollout: `score` in [0, 1], and what it was made of (fractions of equity, means)."""

    score: float
    net_return: float
    fees: float
    spread: float
    funding: float
