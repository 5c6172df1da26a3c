"""Group advantages: known answers and the laws they obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.advantages import advantages_of_valid, group_advantages

# Rewards have few decimals here, so that two of them are either equal or clearly different.
grid = st.integers(0, 1000).map(lambda n: n / 1000)
groups = st.lists(st.tuples(grid, st.integers(1, 20)), min_size=1, max_size=12).map(
    lambda rows: (np.array([row[0] for row in rows]), np.array([row[1] for row in rows], float))
)


def test_group_basic_known(known: dict[str, Any]) -> None:
    case = known["group_basic"]
    advantages, degenerate = group_advantages(case["rewards"])
    assert advantages == pytest.approx(case["advantages"])
    assert not degenerate


def test_fractional_known(known: dict[str, Any]) -> None:
    case = known["fractional"]
    rewards, weights = np.concatenate(case["sub_rewards"]), np.concatenate(case["weights"])
    assert np.dot(weights, rewards) == pytest.approx(case["mean"])
    assert group_advantages(rewards, weights)[0] == pytest.approx(np.concatenate(case["advantages"]))


def test_roles_never_pool_known(known: dict[str, Any]) -> None:
    case = known["roles_never_pool"]
    apart_a, apart_b = group_advantages(case["role_a"])[0], group_advantages(case["role_b"])[0]
    assert apart_a == pytest.approx(case["advantages_a"], abs=1e-9)
    assert apart_b == pytest.approx(case["advantages_b"], abs=1e-9)
    pooled = group_advantages(case["role_a"] + case["role_b"])[0]
    assert np.abs(pooled[:4] - apart_a).max() > 0.5, "the mutant that pools roles would be seen"


def test_degenerate_known(known: dict[str, Any]) -> None:
    for name in ("all_equal", "singleton"):
        case = known["degenerate"][name]
        advantages, degenerate = group_advantages(case["rewards"])
        assert advantages.tolist() == case["advantages"]
        assert degenerate
    assert group_advantages([])[1]


@given(groups, st.floats(0.01, 100.0), st.floats(-5.0, 5.0), st.floats(0.01, 100.0))
def test_affine_rewards_and_scaled_weights_change_nothing(
    group: tuple[np.ndarray, np.ndarray], a: float, b: float, c: float
) -> None:
    rewards, weights = group
    want = group_advantages(rewards, weights)[0]
    assert group_advantages(a * rewards + b, c * weights)[0] == pytest.approx(want, abs=1e-7)


@given(groups, grid)
def test_a_dropped_call_shapes_nothing_and_gets_nothing(group: tuple[np.ndarray, np.ndarray], dropped: float) -> None:
    rewards, weights = group
    advantages, degenerate = group_advantages(np.append(rewards, dropped), np.append(weights, 0.0))
    want, want_degenerate = group_advantages(rewards, weights)
    assert advantages[:-1] == pytest.approx(want)
    assert advantages[-1] == 0.0
    assert degenerate == want_degenerate


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_raise(bad: float) -> None:
    with pytest.raises(ValueError, match="reward"):
        group_advantages([0.1, bad])
    with pytest.raises(ValueError, match="weight"):
        group_advantages([0.1, 0.2], [1.0, bad])
    with pytest.raises(ValueError, match="weight"):
        group_advantages([0.1, 0.2], [1.0, -1.0])
    with pytest.raises(ValueError, match="length"):
        group_advantages([0.1, 0.2], [1.0])


def test_an_invalid_answer_praises_nobody_and_costs_the_penalty() -> None:
    # Compared by its reward of 0 the invalid one would give the three others +0.21, +0.15 and +0.18.
    rewards, valid = [0.66, 0.60, 0.63, 0.0], [True, True, True, False]
    advantages, degenerate = advantages_of_valid(rewards, valid, 0.1, scale=False)
    assert advantages == pytest.approx([0.03, -0.03, 0.0, -0.1]) and not degenerate
    scaled, _ = advantages_of_valid(rewards, valid, 0.5)
    assert scaled == pytest.approx([np.sqrt(1.5), -np.sqrt(1.5), 0.0, -0.5])
    weighted, _ = advantages_of_valid(rewards, valid, 0.1, [2.0, 1.0, 0.0, 0.0], scale=False)
    assert weighted == pytest.approx([0.02, -0.04, 0.0, 0.0]), "what was dropped gets nothing"


def test_a_group_teaches_its_format_even_where_its_valid_answers_are_alike() -> None:
    assert advantages_of_valid([0.6, 0.6, 0.0], [True, True, False], 0.1)[0].tolist() == [0.0, 0.0, -0.1]
    assert not advantages_of_valid([0.6, 0.6, 0.0], [True, True, False], 0.1)[1]
    assert advantages_of_valid([0.6, 0.6], [True, True], 0.1)[1]
    advantages, degenerate = advantages_of_valid([0.0, 0.0], [False, False], 0.1)
    assert advantages.tolist() == [-0.1, -0.1] and not degenerate
    for penalty in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="penalty positive"):
            advantages_of_valid([0.6], [True], penalty)


@given(groups, st.floats(0.01, 5.0))
def test_without_an_invalid_answer_it_is_the_group_s_advantage(group: tuple[Any, Any], penalty: float) -> None:
    rewards, weights = group
    advantages, degenerate = advantages_of_valid(rewards, np.full(len(rewards), True), penalty, weights)
    want, equal = group_advantages(rewards, weights)
    assert advantages.tolist() == want.tolist() and degenerate is equal
