"""What the alignment of trajectories does to the gradient of the sub-agents: its noise, and where it points.

Rollouts call a sub-agent different numbers of times. M-GRPO (arXiv 2511.13288) copies and drops calls until each
rollout has d of them (`duplicate_drop`); `fractional` gives each call the weight that it has then on average; `none`
counts calls. Compared on the same rollouts, step by step, are the gradients of one whole step: the project's own
credit, alignment and objective, at the policy that sampled, where the ratio is 1. d is the 0.95, 0.99 and 0.999
quantile of the calls of a rollout over all steps, and the 8 of the paper. `make bench ONLY=training.gradient_noise`.

The team is a small nano that learnt from the preset's teacher and from novices, who ask 0 to 4 times at random, and
made two steps of training, so that both halves of its adapters have a gradient. Then nothing is trained any more: all
steps are independent draws of one law, each with queries of its own. The sub-agents' practice of the preset is left
out: there each is asked once, and all ways are the same.

At ratio 1 the gradient of a step is linear in those of its calls: sum_i w_i A_i grad_i / sum_i w_i, grad_i that of the
mean log-prob of the call's sampled tokens. So each call's gradient is computed once, in full, and every way and every
draw of `duplicate_drop` is a combination of them, advantages included. For the first step it is checked, for each role
and way, that this is the gradient which `RoleTrainer` makes of the batch.

The value of a row is the variance E |g - E g|^2 by that of `fractional`, of all sub-agents' gradients together; below
1 is less noise. `gradient_moments.py` says how it is estimated. That of `fractional` is its variance by |E g|^2, the
number of steps whose mean has as much noise as signal. No optimizer step is made with any way here: what the noise does
to the final team is not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from backend.config.load import load_config
from backend.config.schema import Config
from backend.store.store import Store
from backend.training.algorithm.alignment import AlignmentMethod, align, target_count
from backend.training.algorithm.credit import TrajectoryCredit, assign_credit, calls_histogram, score_sub
from backend.training.algorithm.trajectory import Trajectory
from backend.training.chosen_recipe import recipe_of
from backend.training.components import TrainingParts
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.rollout.collect import Rollout, collect
from benchmarks.bench_store_share import train
from benchmarks.gradient_moments import (
    Moments,
    interval,
    moments,
    p_of_no_mean,
    resamples,
    signal,
    variance,
)
from benchmarks.run import TREND_MARKET, Result
from cryptosentinel.agents.registry import SUB_AGENTS
from cryptosentinel.team import derive_seed
from simulator.arrays import FloatArray

BY_NAME_ONLY = True
STEPS, QUERIES, ROLLOUTS = 40, 16, 8
DRAWS = 16  # of `duplicate_drop` in each step
RESAMPLES = 10_000
SEED = 2511
TRAINED = 2
SETTINGS = (
    "nano.decisions=3000", "nano.steps=700", "training.stage1_steps=0", "training.stage1_max_steps=0",
    f"training.stage2_steps={TRAINED}", f"training.queries_per_step={QUERIES}",
    f"training.rollouts_per_query={ROLLOUTS}", "training.validation_every=1000", "training.validation_queries=4",
)  # fmt: skip
_CLOSE = 1e-4  # of a gradient's norm: float32, added up in another order
_SURE = 0.01  # p-value below which a mean is there


@dataclass(frozen=True)
class Way:
    """A way of alignment; `target` is d of `duplicate_drop`, measured as a `quantile` where that is given."""

    name: str
    method: AlignmentMethod
    quantile: float | None = None
    target: int = 1


WAYS = (
    Way("fractional", "fractional"),
    Way("none", "none"),
    Way("drop_p95", "duplicate_drop", 0.95),
    Way("drop_p99", "duplicate_drop", 0.99),
    Way("drop_p99_9", "duplicate_drop", 0.999),
    Way("drop_8", "duplicate_drop", None, 8),
)


@dataclass(frozen=True)
class RoleGradients:
    """What one role's gradients are in one way: their moments, tokens to train in a step with copies taken literally,
    and d."""

    moments: Moments
    tokens: float
    target: int


Groups = list[list[Rollout]]


def run() -> list[Result]:
    """The rows `training.gradient_noise.*`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as scratch, Store.open(Path(scratch) / "store") as store:
            config = load_config(TREND_MARKET, SETTINGS)
            parts = train(config, store, store, Path(scratch) / "run")
            steps = [_rollouts(parts, number) for number in range(STEPS)]
            roles = [role.key for role in SUB_AGENTS.values() if role.key in parts.policies.roles]
            gradients_of = {role: _of_role(config, parts, role, steps) for role in roles}
            parts.recorder.close()
    finally:
        torch.set_num_threads(threads)
    return [*(_calls_row(role, steps) for role in roles), *_rows(gradients_of)]


# -- the rollouts -----------------------------------------------------------------------------------------------------


def _rollouts(parts: TrainingParts, number: int) -> Groups:
    """The rollouts of a step, on queries of its own, by the policies as they are."""
    queries = parts.pool.draw(SEED, number, QUERIES, easy=False)
    return collect(parts.team, parts.engine, queries, parts.settings, derive_seed(SEED, "step", number))


# -- a role's gradients -----------------------------------------------------------------------------------------------


def _of_role(config: Config, parts: TrainingParts, role: str, steps: Sequence[Groups]) -> dict[str, RoleGradients]:
    """What a role's gradients are, by the names of the ways."""
    histogram: dict[int, int] = {}
    for groups in steps:
        for count, rollouts in calls_histogram(groups, role).items():
            histogram[count] = histogram.get(count, 0) + rollouts
    ways = [way if way.quantile is None else replace(way, target=target_count(histogram, way.quantile)) for way in WAYS]
    # One optimizer step, so that the gradient is that of the whole step.
    trainer = RoleTrainer(parts.policies, role, config.training.model_copy(update={"minibatches": 1}))
    means: dict[str, list[FloatArray]] = {way.name: [] for way in ways}
    squares: dict[str, list[float]] = {way.name: [] for way in ways}
    tokens: dict[str, list[float]] = {way.name: [] for way in ways}
    for number, groups in enumerate(steps):
        spoken: list[Trajectory] = []
        by_call = np.empty((0, 0))
        for way in ways:
            draws = range(DRAWS if way.method == "duplicate_drop" else 1)
            credits = [scored_calls(config, role, groups, way, derive_seed(SEED, role, number, draw)) for draw in draws]
            if not spoken:  # the same calls in every way, and in the same order
                spoken = [item.trajectory for item in credits[0]]
                by_call = np.stack([batch_gradient(trainer, [one], [1.0], [1.0], config) for one in spoken])
            if number == 0:
                _check(trainer, credits[0], by_call, way, config)
            gradients = np.stack([coefficients(credit) for credit in credits]) @ by_call
            means[way.name].append(gradients.mean(0))
            squares[way.name].append(float((gradients**2).sum(1).mean()))
            tokens[way.name] += [tokens_to_train(credit, way) for credit in credits]
    base = np.stack(means["fractional"])
    return {
        way.name: RoleGradients(
            moments(np.stack(means[way.name]), np.array(squares[way.name]), base),
            float(np.mean(tokens[way.name])),
            way.target,
        )
        for way in ways
    }


def scored_calls(config: Config, role: str, groups: Groups, way: Way, seed: int) -> list[TrajectoryCredit]:
    """A role's calls of a step that have a reward, each with its weight and advantage as the training computes them."""
    weights = partial(align, method=way.method, target=way.target, rng=np.random.default_rng(seed))
    scored = score_sub(groups, role, config.training.beta, weights)
    credit = assign_credit(scored, recipe_of(config.training))
    return [item for item in credit.items if item.reward is not None]


def coefficients(credit: Sequence[TrajectoryCredit]) -> FloatArray:
    """What each call's gradient is multiplied by in that of the step, (calls,)."""
    weights = np.array([item.weight for item in credit])
    return np.asarray(weights * np.array([item.advantage for item in credit]) / weights.sum())


def tokens_to_train(credit: Sequence[TrajectoryCredit], way: Way) -> float:
    """Tokens that go forward and backward, up to the last sampled one of each call with a gradient; as often as the
    call is among the items of `duplicate_drop`."""
    callers: dict[str, set[int]] = {}
    for item in credit:
        callers.setdefault(item.trajectory.query, set()).add(item.trajectory.rollout)
    total = 0.0
    for item in credit:
        mask = item.trajectory.mask
        if item.weight > 0.0 and item.advantage != 0.0 and mask.any():
            times = (
                item.weight * way.target * len(callers[item.trajectory.query])
                if way.method == "duplicate_drop"
                else 1.0
            )
            total += times * (int(np.flatnonzero(mask)[-1]) + 1)
    return total


def batch_gradient(
    trainer: RoleTrainer,
    spoken: Sequence[Trajectory],
    advantages: Sequence[float],
    weights: Sequence[float],
    config: Config,
) -> FloatArray:
    """The gradient of the objective of a batch, (P,), as the trainer computes it; nothing moves."""
    parameters = trainer.policies.trainable(trainer.role)
    batch = trainer.split_batch(spoken, advantages, weights, config.training.temperature)
    if trainer.accumulate_gradients(batch, 0) is None:
        return np.zeros(sum(one.numel() for one in parameters))
    parts = [torch.zeros(one.numel()) if one.grad is None else -one.grad.flatten() for one in parameters]
    for one in parameters:
        one.grad = None
    return torch.cat(parts).double().numpy()


def _check(
    trainer: RoleTrainer, credit: Sequence[TrajectoryCredit], by_call: FloatArray, way: Way, config: Config
) -> None:
    """Raise RuntimeError where the combination of the calls' gradients is not the gradient of the batch."""
    whole = batch_gradient(
        trainer,
        [item.trajectory for item in credit],
        [item.advantage for item in credit],
        [item.weight for item in credit],
        config,
    )
    apart, size = np.linalg.norm(coefficients(credit) @ by_call - whole), np.linalg.norm(whole)
    if not apart <= _CLOSE * size or not size > 0.0:
        raise RuntimeError(
            f"training.gradient_noise: {trainer.role}'s gradient in the way {way.name} differs by {apart:.3g} from "
            f"that of the trainer, whose norm is {size:.3g}"
        )


# -- the rows ---------------------------------------------------------------------------------------------------------


def _calls_row(role: str, steps: Sequence[Groups]) -> Result:
    rollouts = [rollout for groups in steps for group in groups for rollout in group]
    spoken = [call for rollout in rollouts for call in rollout.subs if call.role == role]
    counts = np.array([sum(call.role == role for call in rollout.subs) for rollout in rollouts])
    p95, p99, p999 = (target_count(dict(zip(*_counted(counts), strict=True)), q) for q in (0.95, 0.99, 0.999))
    valid = np.mean([call.valid for call in spoken])
    shares = ", ".join(f"{count} in {np.mean(counts == count):.1%}" for count in range(counts.max() + 1))
    return Result(
        name=f"training.gradient_noise.{role}",
        value=float(counts.mean()),
        unit="calls a rollout",
        against=f"{len(rollouts)} rollouts: {shares}; median {np.median(counts):.0f}, quantiles 0.95, 0.99, 0.999: "
        f"{p95}, {p99}, {p999}; most {counts.max()}; {valid:.1%} of the answers valid",
        ratio=None,
        target="reported",
        met=True,
    )


def _counted(counts: np.ndarray) -> tuple[list[int], list[int]]:
    values, times = np.unique(counts, return_counts=True)
    return values.tolist(), times.tolist()


def _rows(gradients_of: Mapping[str, Mapping[str, RoleGradients]]) -> list[Result]:
    """A row for each way, of the gradients of all roles together; each role's are in its text."""
    draws = resamples(STEPS, RESAMPLES, SEED)
    rows: list[Result] = []
    for way in WAYS:
        of = {role: (ways[way.name], ways["fractional"]) for role, ways in gradients_of.items()}
        one, base = (_together([pair[which] for pair in of.values()]) for which in (0, 1))
        if way.name == "fractional":
            value, unit = float((variance(base.moments) / signal(base.moments.products))[0]), "variance by |E g|^2"
            texts = [_text_of_fractional("all", base.moments, draws)]
            texts += [_text_of_fractional(role, pair[1].moments, draws) for role, pair in of.items()]
        else:
            value, unit = float((variance(one.moments) / variance(base.moments))[0]), "variance by fractional's"
            texts = [_text("all", one, base, draws, way)]
            texts += [_text(role, *pair, draws, way) for role, pair in of.items()]
        rows.append(
            Result(
                name=f"training.gradient_noise.{way.name}",
                value=value,
                unit=unit,
                against=f"{STEPS} steps of {QUERIES} x {ROLLOUTS} rollouts; " + "; ".join(texts),
                ratio=None if way.name == "fractional" else value,
                target="reported",
                met=True,
            )
        )
    return rows


def _together(each: Sequence[RoleGradients]) -> RoleGradients:
    """The gradients of several roles, side by side."""
    total = each[0].moments
    for one in each[1:]:
        total = total + one.moments
    return RoleGradients(total, sum(one.tokens for one in each), 0)


def _text_of_fractional(name: str, one: Moments, draws: np.ndarray) -> str:
    value = float((variance(one) / signal(one.products))[0])
    p = p_of_no_mean(one.products, RESAMPLES, SEED)
    low, high = interval(variance(one, draws) / signal(one.products, draws))
    sure = f"{value:.1f} ({low:.1f} to {high:.1f})" if p < _SURE and low > 0.0 else "|E g| not told from 0"
    return f"{name}: {sure}, p of no mean {p:.4f}"


def _text(name: str, one: RoleGradients, base: RoleGradients, draws: np.ndarray, way: Way) -> str:
    """Noise, mean, bias and work of a way, beside those of `fractional`."""
    mine, its = one.moments, base.moments
    ratio = float((variance(mine) / variance(its))[0])
    low, high = interval(variance(mine, draws) / variance(its, draws))
    text = f"{name}"
    if way.method == "duplicate_drop" and one.target:
        text += f" (d = {one.target})"
    text += f": {ratio:.3f} ({low:.3f} to {high:.3f})"
    if way.method == "duplicate_drop":
        drawn = float((mine.squares - np.diag(mine.products)).mean()) * DRAWS / (DRAWS - 1)
        text += f", {drawn / float(variance(mine)[0]):.1%} of it by the draws"
    size = float(signal(its.products)[0])
    if p_of_no_mean(its.products, RESAMPLES, SEED) < _SURE and size > 0.0:
        text += f", |E g|^2 {float(signal(mine.products)[0]) / size:.3f} of fractional's"
        apart = float(signal(mine.differences)[0]) / size
        ends = interval(signal(mine.differences, draws) / signal(its.products, draws))
        text += f", squared bias {apart:+.4f} of it ({ends[0]:+.4f} to {ends[1]:+.4f})"
    text += f", p of no bias {p_of_no_mean(mine.differences, RESAMPLES, SEED):.4f}"
    return text + f", tokens {one.tokens / base.tokens:.2f}"
