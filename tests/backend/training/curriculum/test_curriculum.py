"""The two stages and the gate between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.rewards import ALPHA
from backend.training.curriculum.curriculum import Curriculum
from tests.standard_settings import standard_curriculum

PLAN = standard_curriculum(stage1_steps=2, stage1_max_steps=6, stage2_steps=4, gate_format=0.9, beta=(0.1, 0.4, 0.5))


def changed(plan: Curriculum, **changes: object) -> Curriculum:
    return Curriculum(plan.config.model_copy(update=changes))


def test_stage_1_pays_for_format_and_expertise_on_easy_states() -> None:
    stage = PLAN.stage(1)
    assert stage.easy
    assert stage.alpha == (1.0, 0.0)
    assert stage.beta == (0.1, 0.0, 0.9)
    assert sum(stage.beta) == pytest.approx(1.0)


def test_stage_2_pays_as_configured_on_all_states() -> None:
    stage = PLAN.stage(2)
    assert not stage.easy
    assert (stage.alpha, stage.beta) == (ALPHA, PLAN.config.beta)


@given(st.dictionaries(st.sampled_from(["manager", "trader", "risk_analyst"]), st.floats(0, 1)))
def test_the_gate_opens_when_every_role_that_spoke_keeps_the_format(valid: dict[str, float]) -> None:
    opened = PLAN.gate_passed(valid)
    assert opened == (min(valid.values(), default=1.0) >= 0.9)
    named = PLAN.failed_roles(valid)
    assert opened == (named == "")
    for role, share in valid.items():
        assert (role in named) == (share < 0.9)


@given(end=st.floats(0.0, 1.0), steps=st.integers(1, 50))
def test_rates_fall_from_one_towards_their_end(end: float, steps: int) -> None:
    plan = changed(PLAN, lr_end=end, stage2_steps=steps)
    rates = [plan.rate(done) for done in range(steps + 3)]
    assert rates[0] == 1.0
    assert all(after <= before + 1e-12 for before, after in pairwise(rates))
    assert rates[steps:] == pytest.approx([end] * 3), "at its end after the last step, and not beyond it"
    assert changed(plan, stage2_steps=2 * steps).rate(steps) == pytest.approx((1.0 + end) / 2.0)
    for spent in (0.25, 0.75, 1.5):  # of the tokens, where they end stage 2 before its steps
        by_tokens = [plan.rate(done, spent) for done in range(steps + 1)]
        assert by_tokens == pytest.approx([min(rate, changed(plan, stage2_steps=4).rate(round(4 * spent)))
                                           for rate in rates[: steps + 1]])  # fmt: skip


def test_rates_are_constant_where_no_end_is_set() -> None:
    assert {PLAN.rate(done, spent) for done in range(6) for spent in (0.0, 0.5, 1.0)} == {1.0}
