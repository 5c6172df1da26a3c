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
