"""The laws of `laws.py` hold for the code, and each classic mistake that is planted into it breaks one.

A mutant is the source of a module with one place changed, so that what is caught is a mistake in the code that runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from transformers import Qwen3ForCausalLM

from backend.training.algorithm import advantages, alignment, credit, objective, recipes
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning import role_trainer
from tests.backend.training.algorithm import laws
from tests.backend.training.algorithm.laws import LAWS, Code, Law

# The mistake, the module, what is written there, what is planted instead, and the law that notices.
MUTANTS: tuple[tuple[str, ModuleType, str, str, Law], ...] = (
    (
        "the mask is shifted by one", objective,
        "return values.where(mask, 0.0)", "return values.where(mask.roll(1, -1), 0.0)",
        laws.masked_tokens_get_no_gradient_and_sampled_ones_get_one,
    ),
    (
        "sigma is the sample's", advantages,
        "np.sqrt(share @ centred**2)", "np.sqrt(share @ centred**2 * len(unit) / (len(unit) - 1))",
        laws.advantages_have_unit_population_variance,
    ),
    (
        "roles are pooled", credit,
        "if call.role == role]", 'if call.role != "manager"]',
        laws.roles_share_no_statistic,
    ),
    (
        "padding is in the mean", objective,
        "/ mask.sum(-1).clamp(min=1)\n", "/ mask.shape[-1]\n",
        laws.padding_changes_nothing,
    ),
    (
        "the clip is optimistic", objective,
        "torch.minimum(ratio * advantages", "torch.maximum(ratio * advantages",
        laws.the_clip_is_pessimistic,
    ),
    (
        "the sides of the clip are changed", objective,
        "clamp(1.0 - clip_low, 1.0 + clip_high) * advantages", "clamp(1.0 - clip_high, 1.0 + clip_low) * advantages",
        laws.the_clip_is_pessimistic,
    ),
    (
        "the ratio is to the engine's log-probs", role_trainer,
        "if remembered else new.detach()", "if remembered else batch.sampled_logps",
        laws.the_ratio_begins_at_one_and_is_to_where_the_step_began,
    ),
    (
        "the ratio is to the policy as it is now", role_trainer,
        "old = pad_sequence(remembered, batch_first=True) if remembered else new.detach()", "old = new.detach()",
        laws.the_ratio_begins_at_one_and_is_to_where_the_step_began,
    ),
    (
        "a long answer weighs more", recipes,
        "if self.sums_tokens else", "if True else",
        laws.a_long_answer_weighs_as_much_as_a_short_one,
    ),
    (
        "the mean over tokens is one over calls", recipes,
        "return float((weights * tokens).sum())", "return float(weights.sum() * (tokens > 0).sum())",
        laws.tokens_weigh_alike_in_the_mean_over_tokens,
    ),
    (
        "the KL forgets that the samples move", objective,
        'value = policy_ratio(new_logps, old_logps, mask, "token") * k3(', "value = k3(",
        laws.kl_has_its_true_gradient,
    ),
    (
        "a floor on sigma decides what is degenerate", advantages,
        "if high - low <= _ROUNDING * max(abs(low), abs(high)):", "if inside.std() < 1e-17:",
        laws.equal_rewards_teach_nothing,
    ),
    (
        "a rollout counts more the more it calls", alignment,
        "np.repeat(1.0 / (len(calls) * np.maximum(calls, 1)), calls)", "np.full(calls.sum(), 1.0 / calls.sum())",
        laws.each_rollout_counts_alike,
    ),
    (
        "each micro-batch has its own denominator", role_trainer,
        "advantages, weights, importance, total)", "advantages, weights, importance, None)",
        laws.accumulation_changes_nothing,
    ),
)  # fmt: skip


OF_OBJECTIVE = {name for name, one in vars(objective).items() if getattr(one, "__module__", "") == objective.__name__}


@pytest.fixture
def code(tiny: Qwen3ForCausalLM, make: Callable[..., Trajectory]) -> Code:
    return Code(objective, recipes, advantages, alignment, credit, role_trainer, tiny, make)


def planted(module: ModuleType, written: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`module` with one place changed, beside the true one."""
    source = inspect.getsource(module)
    assert source.count(written) == 1, f"{module.__name__} does not say {written!r} once"
    mutant = ModuleType(f"{module.__name__}_mutant")
    monkeypatch.setitem(sys.modules, mutant.__name__, mutant)  # where dataclasses look for their module
    exec(compile(source.replace(written, instead), str(module.__file__), "exec"), mutant.__dict__)
    return mutant


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_code_keeps_every_law(law: Law, code: Code) -> None:
    law(code)


@pytest.mark.parametrize(
    ("mistake", "module", "written", "instead", "law"), MUTANTS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_mistake_is_noticed(
    mistake: str, module: ModuleType, written: str, instead: str, law: Law, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = planted(module, written, instead, monkeypatch)
    parts = {module.__name__.rpartition(".")[2]: mutant}
    if module is objective:  # the recipes are made of its functions
        parts["recipes"] = planted(recipes, "RECIPES:", "RECIPES:", monkeypatch)
        for recipe in parts["recipes"].RECIPES.values():
            assert recipe.__module__ == f"{recipes.__name__}_mutant"
        vars(parts["recipes"]).update({name: vars(mutant)[name] for name in vars(recipes) if name in OF_OBJECTIVE})
    with pytest.raises(AssertionError):
        law(Code(**{**vars(code), **parts}))


def test_every_law_notices_something() -> None:
    assert {law for *_, law in MUTANTS} == set(LAWS)
