"""What the outcome teaches a sub-agent in a step, with its answers given again and without, at one policy.

`experimental.resampled_answers` repeats a rollout up to a question and samples its answer and the rest anew, so that
answers are compared that were given in one and the same situation. Compared are, of each sub-agent, the gradients of a
whole step of WINDOWS windows: with ROLLOUTS rollouts a window, and with FIRST rollouts and FURTHER further ones. A
sub-agent is paid for its format and for the outcome alone: its own score is a matter of its own call in both ways.
`make bench ONLY=training.turn_credit`.

The team is the preset `co_training` after a short warm start and two steps of training, so that both halves of its
adapters have a gradient; then nothing is trained any more, and all steps are independent draws of one law.

The value of a row is the variance of a step's gradient by the square of its mean, times the tokens that were sampled
for the step, by that of plain rollouts: below 1, answers given again say more for the same tokens. Intervals are
percentiles over resamples of the steps (`gradient_moments.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from backend.config.load import load_config
from backend.config.schema import Config
from backend.store.store import Store
from backend.training.algorithm.credit import assign_credit, score_sub
from backend.training.components import TrainingParts
from backend.training.curriculum.curriculum import credit_settings, curriculum_of
from backend.training.learning.learner import role_settings
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.rollout.collect import Rollout, collect
from backend.training.rollout.resampling import answer_again
from benchmarks.bench_store_share import train
from benchmarks.bench_training_gradient_noise import batch_gradient
from benchmarks.gradient_moments import Moments, interval, moments, p_of_no_mean, resamples, signal, variance
from benchmarks.run import Result
from cryptosentinel.agents.registry import SUB_AGENTS
from cryptosentinel.resampling import AnsweredRequests
from cryptosentinel.scheduler import Throughput
from cryptosentinel.team import derive_seed
from simulator.arrays import FloatArray

BY_NAME_ONLY = True
STEPS, WINDOWS, ROLLOUTS = 200, 16, 8
FIRST, FURTHER = 4, 5
RESAMPLES = 10_000
SEED = 1062
SETTINGS = (
    "nano.teacher=by_lot", "nano.decisions=3000", "nano.steps=700",
    "training.stage1_steps=0", "training.stage1_max_steps=0",
    "training.stage2_steps=2", "training.practice_queries=0", "training.practice_roles=", "training.shards=1",
    f"training.queries_per_step={WINDOWS}", f"training.rollouts_per_query={ROLLOUTS}", "training.beta=[0.1, 0.9, 0.0]",
    "training.validation_every=1000", "training.validation_queries=4", "training.learning_rate.trader=3e-4",
)  # fmt: skip
_SURE = 0.01  # p-value below which a mean is there

Groups = list[list[Rollout]]


@dataclass(frozen=True)
class Way:
    """So many rollouts of a window, and so many further ones that answer a question of one of these again."""

    name: str
    rollouts: int
    further: int


PLAIN, AGAIN = Way("plain", ROLLOUTS, 0), Way("again", FIRST, FURTHER)


def run() -> list[Result]:
    """The rows `training.turn_credit.*`, a sub-agent each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as scratch, Store.open(Path(scratch) / "store") as store:
            config = load_config("co_training", SETTINGS)
            parts = train(config, store, store, Path(scratch) / "run")
            roles = [role.key for role in SUB_AGENTS.values() if role.key in parts.policies.roles]
            plain, again = (_of_way(config, parts, roles, way) for way in (PLAIN, AGAIN))
            parts.recorder.close()
    finally:
        torch.set_num_threads(threads)
    return [_row(role, plain, again) for role in roles]


@dataclass(frozen=True)
class _Measured:
    """By role, the moments of a step's gradient and the calls of a step; tokens that were sampled for a step."""

    moments: dict[str, Moments]
    calls: dict[str, float]
    tokens: float


def _of_way(config: Config, parts: TrainingParts, roles: Sequence[str], way: Way) -> _Measured:
    gradients: dict[str, list[FloatArray]] = {role: [] for role in roles}
    calls: dict[str, list[int]] = {role: [] for role in roles}
    busy = Throughput()
    trainers = {
        role: RoleTrainer(
            parts.policies, role, replace(role_settings(config.training.of_role(role), role), minibatches=1)
        )
        for role in roles
    }
    for number in range(STEPS):
        groups = rollouts_of(parts, number, way, busy)
        for role, trainer in trainers.items():
            gradient, spoken = _gradient(config, role, trainer, groups)
            gradients[role].append(gradient)
            calls[role].append(spoken)
    return _Measured(
        {role: _moments(np.stack(of)) for role, of in gradients.items()},
        {role: float(np.mean(of)) for role, of in calls.items()},
        busy.usage.sampled / STEPS,
    )


def rollouts_of(parts: TrainingParts, number: int, way: Way, busy: Throughput) -> Groups:
    """The rollouts of step `number`, on windows of its own, by the policies as they are."""
    queries = parts.pool.draw(SEED, number, WINDOWS, easy=False)
    settings, seed = replace(parts.settings, rollouts_per_query=way.rollouts), derive_seed(SEED, way.name, number)
    notes: list[list[list[AnsweredRequests]]] = []
    groups = collect(parts.team, parts.engine, queries, settings, seed, throughput=busy, notes=notes)
    if not way.further:
        return groups
    roles = [one.key for one in parts.team.sub_agents.values()]
    further = answer_again(parts.team, parts.engine, groups, notes, roles, way.further, settings, seed, busy)
    return [[*group, *more] for group, more in zip(groups, further, strict=True)]


def _gradient(config: Config, role: str, trainer: RoleTrainer, groups: Groups) -> tuple[FloatArray, int]:
    """A role's gradient of a step, (P,), and the calls that it is made of."""
    training = config.training.of_role(role)
    stage = curriculum_of(training).stage(2)
    settings = credit_settings(training, stage)
    scored = score_sub(groups, role, stage.beta, "fractional", 1, np.random.default_rng(0), settings)
    items = [item for item in assign_credit(scored, settings).items if item.reward is not None]
    gradient = batch_gradient(
        trainer,
        [item.trajectory for item in items],
        [item.advantage for item in items],
        [item.weight for item in items],
        config,
    )
    return gradient, len(items)


def _moments(gradients: FloatArray) -> Moments:
    return moments(gradients, (gradients**2).sum(1), gradients)


def _row(role: str, plain: _Measured, again: _Measured) -> Result:
    draws, tokens = resamples(STEPS, RESAMPLES, SEED), again.tokens / plain.tokens
    before, after = plain.moments[role], again.moments[role]
    value = float((noise(after) / noise(before))[0]) * tokens
    ps = [p_of_no_mean(one.products, RESAMPLES, SEED) for one in (before, after)]
    text = "the mean of one of them is not told from 0, so this says nothing"
    if max(ps) < _SURE:
        low, high = interval(noise(after, draws) / noise(before, draws) * tokens)
        text = f"{low:.2f} to {high:.2f}"
    return Result(
        name=f"training.turn_credit.{role}",
        value=value,
        unit="variance by |E g|^2 at equal tokens, by plain's",
        against=f"{text}; variance by |E g|^2 {float(noise(before)[0]):.1f} plain (p of no mean {ps[0]:.4f}), "
        f"{float(noise(after)[0]):.1f} again ({ps[1]:.4f}); {plain.calls[role]:.0f} and {again.calls[role]:.0f} calls, "
        f"tokens {tokens:.2f}; {STEPS} steps of {WINDOWS} windows x {ROLLOUTS}, and x {FIRST} + {FURTHER}",
        ratio=value,
        target="reported",
        met=True,
    )


def noise(one: Moments, counts: np.ndarray | None = None) -> FloatArray:
    """Variance of a step's gradient by the square of its mean, of each resample."""
    return np.asarray(variance(one, counts) / signal(one.products, counts))
