"""Laws of the formulas as functions of the code that they hold for: each returns where it is kept and raises
AssertionError where it is broken. `test_mutants.py` holds the code to them, and shows that they notice mistakes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import align
from backend.training.algorithm.recipes import Mgrpo
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import Rollout
from cryptosentinel.team import TeamDecision
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_settings import trainer_settings

SEEDS = range(12)


@dataclass(frozen=True)
class Code:
    """The modules that a law is asked of, and what a trainer needs to run: a tiny model, a maker of trajectories."""

    objective: ModuleType
    recipes: ModuleType
    advantages: ModuleType
    alignment: ModuleType
    credit: ModuleType
    role_trainer: ModuleType
    tiny: Qwen3ForCausalLM
    make: Callable[..., Trajectory]


Law = Callable[[Code], None]


def random_batch(seed: int, rows: int = 4, length: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """new, old (B, T), mask (B, T), advantages, weights (B,); each row has a sampled token."""
    rng = torch.Generator().manual_seed(seed)
    new, other = -3.0 * torch.rand(2, rows, length, generator=rng, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=rng) < 0.6
    mask[:, 0], mask[:, 1] = False, True
    advantages = torch.randn(rows, generator=rng, dtype=torch.float64)
    weights = torch.rand(rows, generator=rng, dtype=torch.float64) + 0.1
    return new.requires_grad_(), 0.8 * new.detach() + 0.2 * other, mask, advantages, weights


def _value(
    code: Code, batch: tuple[Tensor, ...], eps: tuple[float, float] = (0.2, 0.28), recipe: str = "mgrpo"
) -> Tensor:
    value: Tensor = code.recipes.RECIPES[recipe](*eps).objective(*batch)[0]
    return value


def _equal(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def masked_tokens_get_no_gradient_and_sampled_ones_get_one(code: Code) -> None:
    for seed in SEEDS:
        new, _, mask, advantages, weights = random_batch(seed)
        value = _value(code, (new, new.detach(), mask, advantages, weights))
        (gradient,) = torch.autograd.grad(value, new)
        assert ((gradient != 0.0) == mask).all(), "exactly the sampled tokens have a gradient at ratio 1"


def padding_changes_nothing(code: Code) -> None:
    for seed in SEEDS:
        new, old, mask, advantages, weights = random_batch(seed)
        wide = [torch.nn.functional.pad(one, (0, 3)) for one in (new, old, mask)]
        for recipe in code.recipes.RECIPES:
            narrow = _value(code, (new, old, mask, advantages, weights), recipe=recipe)
            _equal(_value(code, (*wide, advantages, weights), recipe=recipe), narrow)


def a_long_answer_weighs_as_much_as_a_short_one(code: Code) -> None:
    """At ratio 1 every call adds w A, however long: GRPO's denominator counts rollouts, never tokens."""
    for seed in SEEDS:
        new, _, mask, advantages, weights = random_batch(seed)
        value = _value(code, (new, new.detach(), mask, advantages, weights))
        _equal(value, (weights * advantages).sum() / weights.sum())


def tokens_weigh_alike_in_the_mean_over_tokens(code: Code) -> None:
    for seed in SEEDS:
        new, _, mask, advantages, weights = random_batch(seed)
        value = _value(code, (new, new.detach(), mask, advantages, weights), recipe="dapo")
        tokens = weights * mask.sum(-1)
        _equal(value, (tokens * advantages).sum() / tokens.sum())


def the_clip_is_pessimistic(code: Code) -> None:
    """(ratio, advantage, value, whether the gradient flows) at epsilons 0.2 and 0.4, as in PPO (arXiv 1707.06347)."""
    table = (
        (1.3, 1.0, 1.3, True), (1.5, 1.0, 1.4, False), (0.5, 1.0, 0.5, True),
        (0.9, -1.0, -0.9, True), (0.7, -1.0, -0.8, False), (1.5, -1.0, -1.5, True),
    )  # fmt: skip
    for ratio, advantage, want, flows in table:
        new = torch.tensor([[float(np.log(ratio))]], dtype=torch.float64, requires_grad=True)
        one = torch.ones(1, dtype=torch.float64)
        value = _value(code, (new, torch.zeros_like(new), one[None] > 0, advantage * one, one), (0.2, 0.4))
        assert abs(value.item() - want) < 1e-9
        assert (torch.autograd.grad(value, new)[0].item() != 0.0) == flows


def kl_has_its_true_gradient(code: Code) -> None:
    """Over all actions of a softmax, E_old[rho k3] has the value and the gradient of the KL; a bare k3 has not."""
    logits = torch.tensor([0.3, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.9, -0.2], dtype=torch.float64), 0)
    log_probs = torch.log_softmax(logits, 0)
    exact = (log_probs.exp() * (log_probs - reference)).sum()
    (want,) = torch.autograd.grad(exact, logits, retain_graph=True)
    new, mask, probability = log_probs.unsqueeze(-1), torch.ones(3, 1, dtype=torch.bool), log_probs.exp().detach()
    tokens = code.objective.kl_tokens(new, new.detach(), reference.unsqueeze(-1), mask)
    ours = (probability * tokens.squeeze(-1)).sum()
    _equal(ours, exact)
    _equal(torch.autograd.grad(ours, logits, retain_graph=True)[0], want)
    bare = (probability * code.objective.k3(new, reference.unsqueeze(-1), mask).squeeze(-1)).sum()
    assert (torch.autograd.grad(bare, logits)[0] - want).abs().max() > 0.05


def advantages_have_unit_population_variance(code: Code) -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        rewards, weights = rng.random(3 + seed % 4), rng.integers(1, 4, 3 + seed % 4)
        advantages, degenerate = code.advantages.group_advantages(rewards, weights)
        assert not degenerate
        assert abs(weights @ advantages**2 / weights.sum() - 1.0) < 1e-9
        copies = code.advantages.group_advantages(np.repeat(rewards, weights))[0]
        assert np.allclose(copies, np.repeat(advantages, weights)), "a whole weight is as many copies"


def equal_rewards_teach_nothing(code: Code) -> None:
    for reward in (0.1 + 0.2, 0.3, 1 / 3):
        advantages, degenerate = code.advantages.group_advantages([reward, reward, reward + 5e-17, reward])
        assert degenerate and not advantages.any()
    assert not code.advantages.group_advantages([0.5, 0.5 + 1e-9])[1], "a small difference is one"


def each_rollout_counts_alike(code: Code) -> None:
    for method in ("fractional", "duplicate_drop"):
        weights = code.alignment.align([1, 3, 0, 2], method, 2, np.random.default_rng(0))
        for part in np.split(weights, [1, 4]):
            assert abs(part.sum() - 1 / 3) < 1e-12


def _trajectory(role: str, query: str, rollout: int, ordinal: int, expert: float | None) -> Trajectory:
    mask, ids = np.array([False, True]), np.array([1, 2], np.int32)
    return Trajectory(role, query, rollout, ordinal, ids, mask, np.zeros(2, np.float32), "v", True, 1.0, expert, False)


def _rollouts(with_others: bool) -> list[list[Rollout]]:
    """A query of three rollouts that call Trader once each; with others, RiskAnalyst as well, and better."""
    [query] = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 1, easy=False)
    group = []
    for number, (outcome, expert) in enumerate([(0.2, 0.1), (0.5, 0.6), (0.9, 0.4)]):
        calls = [_trajectory("trader", query.key, number, 0, expert)]
        if with_others:
            calls.insert(0, _trajectory("risk_analyst", query.key, number, 0, 1.0 - 0.2 * expert))
        main = _trajectory("manager", query.key, number, 0, None)
        earned = Outcome(outcome, 0.0, 0.0, 0.0, 0.0)
        group.append(Rollout(query, number, 0, TeamDecision([], [], [], []), earned, main, tuple(calls)))
    return [group]


def roles_share_no_statistic(code: Code) -> None:
    found = []
    for with_others in (False, True):
        weights = partial(align, method="fractional", target=2, rng=np.random.default_rng(0))
        groups = code.credit.score_sub(_rollouts(with_others), "trader", (0.1, 0.4, 0.5), weights)
        credit = code.credit.assign_credit(groups, Mgrpo())
        found.append([(one.advantage, one.weight) for one in credit.items if one.trajectory.role == "trader"])
    assert found[0] == found[1]


def _sampled(policies: RolePolicies, code: Code) -> list[Trajectory]:
    """Six trajectories whose log-probs are those of the present policy."""
    batch = []
    for one in (code.make(i, prompt=3 + 2 * i, answer=1 + i % 3) for i in range(6)):
        with torch.no_grad():
            ids, mask = torch.from_numpy(one.ids).long()[None], torch.from_numpy(one.mask)[None]
            logps = policies.logps(one.role, ids, mask)[0][0]
        batch.append(replace(one, sampled_logps=logps.numpy()))
    return batch


def _step(code: Code, batch: list[Trajectory], policies: RolePolicies, **changes: Any) -> dict[str, float]:
    settings = trainer_settings(learning_rate=0.05, warmup_steps=1, max_grad_norm=1e9, **changes)
    trainer = code.role_trainer.RoleTrainer(copy.deepcopy(policies), "manager", settings)
    advantages, weights = [1.0, -1.0, 0.5, 1.5, -0.5, -1.0], [0.3, 0.2, 0.25, 0.25, 0.25, 0.25]
    metrics: dict[str, float] = trainer.step(batch, advantages, weights)
    return metrics


def the_ratio_begins_at_one_and_is_to_where_the_step_began(code: Code) -> None:
    """The policy that proposes is the trainer's own before the first update: not the engine's, however stale its
    log-probs, and not that of the update before."""
    policies = RolePolicies(code.tiny, ("manager",))
    batch = _sampled(policies, code)
    stale = [replace(one, sampled_logps=(one.sampled_logps - np.float32(0.5)) * one.mask) for one in batch]
    first = _step(code, stale, policies, minibatches=1)
    assert abs(first["manager/ratio/max"] - 1.0) < 1e-5 and first["manager/clip_share"] == 0.0
    later = _step(code, batch, policies, minibatches=3)
    assert later["manager/ratio/max"] > 1.05 and later["manager/clip_share"] > 0.0


def accumulation_changes_nothing(code: Code) -> None:
    policies = RolePolicies(code.tiny, ("manager",))
    batch = _sampled(policies, code)
    for recipe in code.recipes.RECIPES:
        options = {"recipe": recipe, "kl": 0.3, "entropy": 0.2}
        whole, parts, single = (
            _step(code, batch, policies, micro_batch_tokens=tokens, **options) for tokens in (10_000, 40, 1)
        )
        for report in (parts, single):
            assert report.keys() == whole.keys()
            assert all(abs(report[name] - whole[name]) <= 1e-5 + 1e-4 * abs(whole[name]) for name in whole), recipe


LAWS: tuple[Law, ...] = (
    masked_tokens_get_no_gradient_and_sampled_ones_get_one,
    padding_changes_nothing,
    a_long_answer_weighs_as_much_as_a_short_one,
    tokens_weigh_alike_in_the_mean_over_tokens,
    the_clip_is_pessimistic,
    kl_has_its_true_gradient,
    advantages_have_unit_population_variance,
    equal_rewards_teach_nothing,
    each_rollout_counts_alike,
    roles_share_no_statistic,
    the_ratio_begins_at_one_and_is_to_where_the_step_began,
    accumulation_changes_nothing,
)
