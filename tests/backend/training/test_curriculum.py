"""The two stages and the gate between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.curriculum import Curriculum

PLAN = Curriculum(2, 6, 4, 0.9, (0.1, 0.9), (0.1, 0.4, 0.5))


def test_stage_1_pays_for_format_and_expertise_on_easy_states() -> None:
    stage = PLAN.stage(1)
    assert stage.easy
    assert stage.alpha == (1.0, 0.0)
    assert stage.beta == (0.1, 0.0, 0.9)
    assert sum(stage.beta) == pytest.approx(1.0)


def test_stage_2_pays_as_configured_on_all_states() -> None:
    stage = PLAN.stage(2)
    assert not stage.easy
    assert (stage.alpha, stage.beta) == (PLAN.alpha, PLAN.beta)


@given(st.dictionaries(st.sampled_from(["manager", "trader", "risk_analyst"]), st.floats(0, 1)))
def test_the_gate_opens_when_every_role_that_spoke_keeps_the_format(valid: dict[str, float]) -> None:
    opened = PLAN.gate_passed(valid)
    assert opened == (min(valid.values(), default=1.0) >= 0.9)
    named = PLAN.failed_roles(valid)
    assert opened == (named == "")
    for role, share in valid.items():
        assert (role in named) == (share < 0.9)
