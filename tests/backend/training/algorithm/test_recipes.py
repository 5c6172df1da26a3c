"""The recipes, each against its paper's formula as loops and against its laws, and one of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.config.training import CREDIT_NAMES, RECIPE_NAMES, TrainingConfig
from backend.training.algorithm.objective import importance_cut, importance_weights
from backend.training.algorithm.recipes import RECIPES, Cispo, Dapo, DrGrpo, Grpo, Gspo, Mgrpo, MgrpoTrajectory, Recipe
from backend.training.algorithm.team_credit import BROADCAST, CREDITS
from backend.training.chosen_recipe import credit_of, recipe_of
from simulator.errors import UserError

seeds = st.integers(0, 10_000)
kinds = st.sampled_from(sorted(RECIPES))

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def batch(seed: int, rows: int = 4, length: int = 6) -> Batch:
    """new, old (B, T), mask (B, T), advantages, weights (B,); a row may have no sampled token, but the first has."""
    rng = torch.Generator().manual_seed(seed)
    new, old = -3.0 * torch.rand(2, rows, length, generator=rng, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=rng) < 0.5
    mask[0, 1] = True
    advantages = torch.randn(rows, generator=rng, dtype=torch.float64)
    weights = torch.rand(rows, generator=rng, dtype=torch.float64) + 0.1
    return new.requires_grad_(), old, mask, advantages, weights


def objective(data: Batch, kind: str, total: float | None = None) -> Tensor:
    value, _ = RECIPES[kind](0.2, 0.28).objective(*data, total=total)
    return value


def by_loops(data: Batch, kind: str) -> Tensor:
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
    data = batch(seed)
    got, want = objective(data, kind), by_loops(data, kind)
    assert got.item() == pytest.approx(want.item(), abs=1e-12)
    gradients = [torch.autograd.grad(one, data[0])[0] for one in (got, want)]
    torch.testing.assert_close(gradients[0], gradients[1])


@given(seeds, kinds, st.integers(2, 5))
def test_a_rollout_that_calls_more_often_weighs_no_more(seed: int, kind: str, calls: int) -> None:
    """d equal calls that share the weight of one leave the objective as it was: d_k is in no denominator."""
    data = batch(seed)
    repeats = torch.tensor([calls, 1, 1, 1])
    more = [one.repeat_interleave(repeats, 0) for one in data]
    more[4] = more[4] / repeats.repeat_interleave(repeats)
    again = objective(tuple(more), kind)  # type: ignore[arg-type] # five tensors, as it wants
    assert again.item() == pytest.approx(objective(data, kind).item(), abs=1e-12)


@given(seeds, kinds)
def test_micro_batches_with_the_total_add_up(seed: int, kind: str) -> None:
    data = batch(seed)
    tokens = data[2].sum(-1)
    totals = [RECIPES[kind]().total(data[4][rows], tokens[rows]) for rows in (slice(0, 3), slice(3, 4), slice(0, 4))]
    assert totals[0] + totals[1] == pytest.approx(totals[2])
    assert RECIPES[kind]().total(data[4].numpy(), tokens.numpy()) == pytest.approx(totals[2])
    first, rest = (tuple(x[rows] for x in data) for rows in (slice(0, 1), slice(1, 4)))
    parts = objective(first, kind, totals[2]) + objective(rest, kind, totals[2])  # type: ignore[arg-type] # five tensors
    assert parts.item() == pytest.approx(objective(data, kind).item(), abs=1e-12)


@given(seeds)
def test_equal_lengths_make_all_means_one(seed: int) -> None:
    data = batch(seed)
    full = (*data[:2], torch.ones_like(data[2]), *data[3:])
    assert objective(full, "dapo").item() == pytest.approx(objective(full, "mgrpo").item())
    assert DrGrpo.length * objective(full, "dr_grpo").item() == pytest.approx(6 * objective(full, "mgrpo").item())


@given(seeds)
def test_cispo_keeps_every_token_and_bounds_its_weight(seed: int) -> None:
    data = batch(seed)
    new, old, mask, advantages, weights = data
    value, stats = Cispo(0.2, 0.28).objective(*data)
    (gradient,) = torch.autograd.grad(value, new)
    bounded = (new - old).exp().clamp(0.8, 1.28) * (weights * advantages)[:, None] / (weights[:, None] * mask).sum()
    torch.testing.assert_close(gradient, (bounded * mask).detach())
    assert stats.clipped.tolist() == [not 0.8 <= ratio <= 1.28 for ratio in stats.ratio.tolist()]


@given(seeds, st.floats(1.01, 5.0))
def test_importance_weights_are_cut_at_the_cap(seed: int, cap: float) -> None:
    new, old, mask, _, _ = batch(seed)
    ratio, weights = (new - old).exp().detach()[mask], importance_weights(new, old, mask, cap)
    assert torch.equal(weights[mask], ratio.clamp(max=cap))
    assert torch.equal(importance_cut(weights, cap)[mask], ratio >= cap)
    assert not weights.requires_grad
    assert (weights[~mask] == 1.0).all() and not importance_cut(weights, cap)[~mask].any()


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
    page = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()
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
