"""The clipped objective: known answers, its three ratios, KL, staleness, and what must get no gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.config.training import CREDIT_NAMES, RECIPE_NAMES, TrainingConfig
from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.alignment import align
from backend.training.algorithm.objective import (
    ClipStats,
    RatioKind,
    importance_weights,
    kl_tokens,
    masked_mean,
    policy_ratio,
)
from backend.training.algorithm.recipes import RECIPES, Cispo, Dapo, DrGrpo, Grpo, Gspo, Mgrpo, MgrpoTrajectory, Recipe
from backend.training.algorithm.team_credit import BROADCAST, CREDITS
from backend.training.chosen_recipe import credit_of, recipe_of
from simulator.errors import UserError
from tests.backend.training.algorithm.laws import random_batch

KINDS: tuple[RatioKind, ...] = ("token", "sequence", "trajectory")
OF_RATIO: dict[RatioKind, type[Recipe]] = {"token": Mgrpo, "sequence": Gspo, "trajectory": MgrpoTrajectory}


def clipped(data: Any, clip: float, kind: RatioKind = "token", *more: Any) -> tuple[Tensor, ClipStats]:
    """The objective of the recipe with this ratio."""
    return OF_RATIO[kind](clip, clip).objective(*data, *more)


@pytest.mark.parametrize("kind", KINDS)
def test_clip_known(known: dict[str, Any], kind: RatioKind) -> None:
    for case in known["clip"]:
        new = torch.tensor([[0.0, np.log(case["ratio"])]], dtype=torch.float64, requires_grad=True)
        mask = torch.tensor([[False, True]])
        advantage = torch.tensor([case["advantage"]], dtype=torch.float64)
        recipe = OF_RATIO[kind](case["eps_low"], case["eps_high"])
        value, stats = recipe.objective(new, torch.zeros(1, 2), mask, advantage, torch.ones(1))
        (gradient,) = torch.autograd.grad(value, new)
        assert value.item() == pytest.approx(case["value"])
        assert (gradient[0, 1].item() != 0.0) == case["gradient_flows"]
        assert stats.clipped.tolist() == [not case["gradient_flows"]]
        assert stats.ratio.tolist() == pytest.approx([case["ratio"]])


def test_staleness_known(known: dict[str, Any]) -> None:
    case, mask = known["staleness"], torch.tensor([[True]])
    behaviour, proximal, current = (
        torch.tensor([[case[f"{name}_logprob"]]], dtype=torch.float64) for name in ("behaviour", "proximal", "current")
    )
    importance = importance_weights(proximal, behaviour, mask, case["cap"])
    assert importance.item() == pytest.approx(case["importance_weight"])
    assert policy_ratio(current, proximal, mask, "token").item() == pytest.approx(case["policy_ratio"])
    one = torch.ones(1)
    value, _ = clipped((current, proximal, mask, one, one), 0.2, "token", importance)
    assert value.item() == pytest.approx(case["importance_weight"] * case["policy_ratio"])
    assert importance_weights(proximal + 5.0, behaviour, mask, case["cap"]).item() == case["cap"]


def bandit_gradient(actions: list[int], advantages: np.ndarray, weights: np.ndarray) -> float:
    """d J / d logit of action 1, at two zero logits and ratio 1, one token an action."""
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    new = torch.log_softmax(logits, 0)[torch.tensor(actions)].unsqueeze(-1)
    mask = torch.ones(len(actions), 1, dtype=torch.bool)
    value, _ = clipped((new, new.detach(), mask, torch.from_numpy(advantages), torch.from_numpy(weights)), 0.2)
    (gradient,) = torch.autograd.grad(value, logits)
    return float(gradient[1])


def test_bandit_end_to_end_known(known: dict[str, Any]) -> None:
    case = known["bandit_end_to_end"]
    rng = np.random.default_rng(0)
    advantages, _ = group_advantages(case["main_rewards"])
    assert advantages == pytest.approx(case["main_advantages"])
    even = align([1] * case["K"], "fractional", 0, rng)
    assert bandit_gradient(case["main_actions"], advantages, even) == pytest.approx(case["grad_main_logit_1"])

    rewards = np.concatenate(case["sub_rewards"])
    actions = [action for calls in case["sub_actions"] for action in calls]
    weights = align([len(calls) for calls in case["sub_rewards"]], "fractional", 0, rng)
    assert weights @ rewards == pytest.approx(case["fractional"]["mean"])
    advantages, _ = group_advantages(rewards, weights)
    want = case["fractional"]["grad_sub_logit_1"]
    assert bandit_gradient(actions, advantages, weights) == pytest.approx(want)

    # The draw of the case: the first rollout's call twice, the third's as they are, the last's without its middle one.
    copied = np.array([2, 1, 1, 1, 0, 1]) / 6.0
    draws = (align([1, 2, 0, 3], "duplicate_drop", 2, np.random.default_rng(seed)) for seed in range(50))
    assert any(np.allclose(copied, draw) for draw in draws)
    advantages, _ = group_advantages(rewards, copied)
    want = case["duplicate_drop_d2_first_copied_middle_of_last_dropped"]["grad_sub_logit_1"]
    assert bandit_gradient(actions, advantages, copied) == pytest.approx(want, abs=1e-7)


@given(st.integers(0, 10_000), st.sampled_from(KINDS))
def test_masked_tokens_get_exactly_no_gradient(seed: int, kind: RatioKind) -> None:
    new, old, mask, advantages, weights = random_batch(seed)
    poisoned = torch.where(mask, old, torch.inf)  # whatever lies in masked places, padding included
    value, _ = clipped((new, poisoned, mask, advantages, weights), 0.2, kind)
    value = value - masked_mean(new, mask).sum() - masked_mean(kl_tokens(new, poisoned, poisoned, mask), mask).sum()
    (gradient,) = torch.autograd.grad(value, new)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0.0).all()
    assert (gradient[mask] != 0.0).any()


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_policy_that_has_run_away_keeps_a_finite_gradient(advantage: float) -> None:
    new = torch.zeros(1, 200, requires_grad=True)
    old, mask = torch.full((1, 200), -5.0), torch.ones(1, 200, dtype=torch.bool)
    value, _ = clipped((new, old, mask, torch.tensor([advantage]), torch.ones(1)), 0.2, "trajectory")
    (gradient,) = torch.autograd.grad(value, new)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_importance_multiplies_tokens_or_their_mean_and_has_no_gradient() -> None:
    new, old, mask, advantages, weights = random_batch(3)
    behaviour = old - 0.3
    importance = importance_weights(new, behaviour, mask, 100.0)
    assert not importance.requires_grad
    assert (importance[~mask] == 1.0).all()
    even = torch.full_like(importance, 1.5)
    for kind in KINDS:
        plain, scaled = (clipped((new, old, mask, advantages, weights), 0.2, kind, *more)[0] for more in ((), (even,)))
        assert scaled.item() == pytest.approx(1.5 * plain.item())


seeds = st.integers(0, 10_000)
kinds = st.sampled_from(sorted(RECIPES))


def value_of(data: Sequence[Tensor], kind: str, total: float | None = None) -> Tensor:
    new, old, mask, advantages, weights = data
    value, _ = RECIPES[kind](0.2, 0.28).objective(new, old, mask, advantages, weights, total=total)
    return value


def by_loops(data: Sequence[Tensor], kind: str) -> Tensor:
    """The formulas of the papers, a token at a time."""
    new, old, mask, advantages, weights = data
    above, below = torch.zeros((), dtype=torch.float64), 0.0
    for i in range(len(new)):
        tokens = [t for t in range(new.shape[1]) if mask[i, t]]
        whole = torch.exp(sum((new[i, t] - old[i, t] for t in tokens), torch.zeros((), dtype=torch.float64)))
        for t in tokens:
            ratio = torch.exp(new[i, t] - old[i, t])
            if kind == "gspo":
                ratio = whole ** (1.0 / len(tokens))
            elif kind == "mgrpo_trajectory":
                ratio = whole
            if kind == "cispo":
                value = min(max(ratio.item(), 0.8), 1.28) * advantages[i] * new[i, t]
            else:
                value = torch.min(ratio * advantages[i], ratio.clamp(0.8, 1.28) * advantages[i])
            above = above + weights[i] * value * (1.0 if RECIPES[kind].sums_tokens else 1.0 / len(tokens))
        below += weights[i].item() * {"dapo": len(tokens), "cispo": len(tokens), "dr_grpo": DrGrpo.length}.get(kind, 1)
    return above / below


@given(seeds, kinds)
@settings(deadline=None)  # the first one starts torch
def test_every_recipe_is_its_formula(seed: int, kind: str) -> None:
    data = random_batch(seed)
    data[2][seed % 4] = False  # a call without a sampled token
    got, want = value_of(data, kind), by_loops(data, kind)
    assert got.item() == pytest.approx(want.item(), abs=1e-12)
    gradients = [torch.autograd.grad(one, data[0])[0] for one in (got, want)]
    torch.testing.assert_close(gradients[0], gradients[1])


def test_dr_grpo_does_not_divide_by_sigma_and_grpo_aligns_nothing() -> None:
    rewards, valid = [0.1, 0.2, 0.6], [True, True, True]
    assert DrGrpo().advantages(rewards, valid, None)[0] == pytest.approx([-0.2, -0.1, 0.3])
    assert Mgrpo().advantages(rewards, valid, None)[0] == pytest.approx(np.array([-0.2, -0.1, 0.3]) / np.std(rewards))
    assert (Grpo.alignment, Mgrpo.alignment) == ("none", None)


def test_the_names_of_the_settings_are_those_of_the_classes() -> None:
    assert tuple(RECIPES) == RECIPE_NAMES and (BROADCAST, *CREDITS) == CREDIT_NAMES
    made = {name: type(recipe_of(TrainingConfig(recipe=name))) for name in RECIPE_NAMES}
    assert made == {"mgrpo": Mgrpo, "mgrpo_trajectory": MgrpoTrajectory, "grpo": Grpo, "gspo": Gspo, "dapo": Dapo,
                    "dr_grpo": DrGrpo, "cispo": Cispo}  # fmt: skip
    given_settings = recipe_of(TrainingConfig(clip_low=0.1, clip_high=0.3, scale_rewards=False, invalid_penalty=0.5))
    assert given_settings == Mgrpo(0.1, 0.3, False, 0.5)


class OnlyGood(Recipe):
    """Learns from what was better than the mean, and from nothing else."""

    def advantages(self, rewards: object, valid: object, weights: object) -> tuple[np.ndarray, bool]:
        advantages, degenerate = super().advantages(rewards, valid, weights)  # type: ignore[arg-type] # as it was given
        return np.maximum(advantages, 0.0), degenerate


class Halves:
    """Half of what a role changed."""

    def shares(self, value: Callable[[frozenset[str]], float], players: list[str]) -> dict[str, float]:
        everyone = frozenset(players)
        return {player: 0.5 * (value(everyone) - value(everyone - {player})) for player in players}


def test_a_recipe_and_a_credit_of_your_own() -> None:
    recipe = recipe_of(TrainingConfig(recipe=f"{__name__}:OnlyGood", scale_rewards=False))
    assert recipe.advantages([0.0, 1.0], [True, True], None)[0].tolist() == [0.0, 0.5]
    credit = credit_of(TrainingConfig(credit=f"{__name__}:Halves"))
    assert credit is not None and credit.shares(lambda who: float(len(who)), ["trader"]) == {"trader": 0.5}
    assert credit_of(TrainingConfig()) is None


def test_the_recipe_of_the_manual_is_ten_lines_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "guides" / "extending.md").read_text()
    block = page.split("<!-- tested: my_recipe.py -->\n```python\n")[1].split("```")[0]
    assert sum(bool(line.strip()) for line in block.splitlines()) <= 10
    (tmp_path / "my_recipe.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = recipe_of(TrainingConfig(recipe="my_recipe:OnlyGood"))
    assert recipe.advantages([0.0, 1.0], [True, True], None)[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["Halves", "seeds", "missing"])
def test_what_is_not_a_recipe_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match="recipe"):
        recipe_of(TrainingConfig(recipe=f"{__name__}:{name}"))
    with pytest.raises(UserError, match="credit"):
        credit_of(TrainingConfig(credit=f"{__name__}:{'OnlyGood' if name == 'Halves' else name}"))
