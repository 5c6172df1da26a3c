"""Rewards against known answers; scores bounded, proper, and refusing what is no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.rewards import (
    RewardParts,
    brier_score,
    intervention_value,
    main_reward,
    outcome_score,
    pinball_score,
    shortfall_score,
    squash,
    sub_reward,
)

unit = st.floats(0.0, 1.0)
real = st.floats(-1e3, 1e3)
rows = st.lists(real, min_size=1, max_size=8)
distributions = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(lambda row: np.array(row) / sum(row))
NAN = float("nan")


def test_main_rewards_known(known: dict[str, Any]) -> None:
    case = known["main_group"]
    got = [
        main_reward(bool(v), 1.0, o, tuple(case["alpha"])) for v, o in zip(case["valid"], case["outcome"], strict=True)
    ]
    assert got == pytest.approx(case["rewards"])


def test_sub_rewards_known(known: dict[str, Any]) -> None:
    for case in known["sub_reward"]:
        got = sub_reward(bool(case["valid"]), case["format"], case["outcome"], case["expert"], tuple(case["beta"]))
        assert got == pytest.approx(case["reward"])


def test_a_missing_expert_score_gives_no_reward_unless_it_does_not_matter() -> None:
    assert sub_reward(True, 1.0, 0.5, None) is None
    assert sub_reward(False, 1.0, 0.5, None) == 0.0, "an invalid answer has no score and needs none"
    assert sub_reward(True, 1.0, 0.5, None, (0.2, 0.8, 0.0)) == pytest.approx(0.6)


@pytest.mark.parametrize("bad", [NAN, -0.01, 1.01, math.inf])
def test_a_part_outside_the_unit_interval_raises(bad: float) -> None:
    for parts in [(bad, 0.5, 0.5), (0.5, bad, 0.5), (0.5, 0.5, bad)]:
        with pytest.raises(ValueError, match="outside"):
            RewardParts(True, *parts)
        with pytest.raises(ValueError, match="outside"):
            sub_reward(False, *parts)
    with pytest.raises(ValueError, match="outside"):
        main_reward(True, 1.0, bad)


@given(real, real)
def test_squash_is_bounded_odd_about_one_half_and_increasing(x: float, y: float) -> None:
    assert 0.0 <= squash(x) <= 1.0
    assert squash(x) + squash(-x) == pytest.approx(1.0)
    assert squash(min(x, y)) <= squash(max(x, y))
    assert squash(0.0) == 0.5


@given(rows, st.floats(0.01, 10.0))
def test_the_outcome_of_many_scenarios_is_the_mean_of_their_outcomes(returns: list[float], volatility: float) -> None:
    each = [outcome_score([one], volatility) for one in returns]
    assert outcome_score(returns, volatility) == pytest.approx(sum(each) / len(each))
    assert each[0] == pytest.approx(squash(returns[0] / volatility))


@given(distributions, distributions)
def test_brier_is_proper_and_bounded(stated: np.ndarray, came: np.ndarray) -> None:
    assert 0.0 <= brier_score(stated, came) <= brier_score(came, came) <= 1.0
    expected = sum(f * (1.0 - 0.5 * sum((stated - np.eye(3)[c]) ** 2)) for c, f in enumerate(came))
    assert brier_score(stated, came) == pytest.approx(expected), "the mean over outcomes of the score of each"


@given(st.lists(st.floats(-0.2, 0.5), min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.95]), st.floats(-0.1, 0.6))
def test_pinball_is_best_at_the_empirical_quantile(losses: list[float], level: float, stated: float) -> None:
    best = float(np.quantile(losses, level, method="inverted_cdf"))
    score = pinball_score(stated, losses, level, 0.4)
    assert 0.0 <= score <= pinball_score(best, losses, level, 0.4) + 1e-12 <= 1.0 + 1e-12


def test_pinball_punishes_a_breach_by_level_and_caution_by_the_rest() -> None:
    assert pinball_score(0.0, [0.1], 0.9, 0.1) == pytest.approx(0.0)
    assert pinball_score(0.1, [0.0], 0.9, 0.1) == pytest.approx(1.0 - 0.1 / 0.9)
    assert pinball_score(0.05, [0.05], 0.9, 0.1) == 1.0


@given(rows, st.floats(0.1, 10.0))
def test_an_intervention_is_worth_what_it_changed(returns: list[float], scale: float) -> None:
    base = np.array(returns)
    assert intervention_value(base, base, scale) == 0.5
    assert intervention_value(base + 0.2, base, scale) == pytest.approx(squash(0.2 / scale), abs=1e-9)
    assert intervention_value(base, base + 0.2, scale) == pytest.approx(squash(-0.2 / scale), abs=1e-9)


def test_shortfall_is_a_cost() -> None:
    assert shortfall_score(0.0, 0.001) == 0.5
    assert shortfall_score(0.001, 0.001) < 0.5 < shortfall_score(-0.001, 0.001)


@given(st.booleans(), unit, unit, st.none() | unit)
def test_the_terms_are_what_the_reward_is_the_weighted_sum_of(
    valid: bool, form: float, outcome: float, expert: float | None
) -> None:
    beta = (0.1, 0.4, 0.5)
    terms = RewardParts(valid, form, outcome, expert).terms()
    reward = sub_reward(valid, form, outcome, expert, beta)
    if reward is not None:
        assert np.dot(beta, terms) == pytest.approx(reward)
    alone = RewardParts(valid, form, outcome).terms()
    assert np.dot((0.1, 0.9, 0.0), alone) == pytest.approx(main_reward(valid, form, outcome))


def test_what_is_no_number_raises() -> None:
    for call in (
        lambda: squash(NAN),
        lambda: outcome_score([0.1, NAN], 1.0),
        lambda: outcome_score([], 1.0),
        lambda: outcome_score([0.1], 0.0),
        lambda: brier_score([0.5, 0.5, NAN], [1, 0, 0]),
        lambda: brier_score([0.5, 0.4, 0.0], [1, 0, 0]),
        lambda: brier_score([1.5, -0.5, 0.0], [1, 0, 0]),
        lambda: brier_score([0.5, 0.5], [1, 0, 0]),
        lambda: pinball_score(NAN, [0.1], 0.9, 1.0),
        lambda: pinball_score(0.1, [0.1], 1.0, 1.0),
        lambda: pinball_score(0.1, [math.inf], 0.9, 1.0),
        lambda: intervention_value([0.1, 0.2], [0.1], 1.0),
        lambda: shortfall_score(NAN, 1.0),
        lambda: shortfall_score(0.1, -1.0),
    ):
        with pytest.raises(ValueError):
            call()
