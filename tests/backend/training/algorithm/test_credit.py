"""From rollouts to advantages: groups by query and role, missing scores left out and counted, d_k = 0 harmless."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.advantages import advantages_of_valid, group_advantages
from backend.training.algorithm.alignment import AlignmentMethod, align, target_count
from backend.training.algorithm.credit import RoleCredit, calls_histogram
from backend.training.algorithm.recipes import Mgrpo
from backend.training.algorithm.rewards import (
    Outcome,
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
from backend.training.algorithm.trajectory import Trajectory, pad_trajectories
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import Rollout
from cryptosentinel.team import TeamDecision
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_settings import main_credit, sub_credit

QUERIES = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 3, easy=False)
Call = tuple[bool, float | None]  # valid, expert score
scores = st.floats(0.0, 1.0)
calls = st.lists(st.tuples(st.booleans(), st.none() | scores), max_size=4)
rollouts = st.lists(st.tuples(st.booleans(), scores, calls), min_size=1, max_size=6)
groups = st.lists(rollouts, min_size=1, max_size=3)
methods = st.sampled_from(["fractional", "duplicate_drop", "none"])


def _trajectory(role: str, query: int, rollout: int, ordinal: int, valid: bool, expert: float | None) -> Trajectory:
    return Trajectory(
        role, QUERIES[query].key, rollout, ordinal, np.array([1, 2], np.int32), np.array([False, True]),
        np.zeros(2, np.float32), "v", valid, float(valid), expert if valid else None, False,
    )  # fmt: skip


def build(drawn: Sequence[Sequence[tuple[bool, float, Sequence[Call]]]], role: str = "trader") -> list[list[Rollout]]:
    """Groups of rollouts, each (manager valid, outcome, calls of `role`)."""
    nothing = TeamDecision([], [], [], [])
    return [
        [
            Rollout(
                QUERIES[query], number, 0, nothing, Outcome(outcome, 0.0, 0.0, 0.0, 0.0),
                _trajectory("manager", query, number, 0, valid, None),
                tuple(_trajectory(role, query, number, i, *call) for i, call in enumerate(made)),
            )
            for number, (valid, outcome, made) in enumerate(group)
        ]
        for query, group in enumerate(drawn)
    ]  # fmt: skip


def credit(
    drawn: list[list[Rollout]], method: AlignmentMethod = "fractional", target: int = 2, **settings: Any
) -> RoleCredit:
    return sub_credit(drawn, "trader", Mgrpo(**settings), method, target)


def _check_groups(found: RoleCredit) -> None:
    for query in QUERIES:
        items = [one for one in found.items if one.trajectory.query == query.key and one.reward is not None]
        if not items:
            continue
        weights = np.array([one.weight for one in items])
        advantages = np.array([one.advantage for one in items])
        assert weights.sum() == pytest.approx(1.0)
        assert weights @ advantages == pytest.approx(0.0, abs=1e-9)
        assert weights @ advantages**2 == pytest.approx(1.0 if advantages.any() else 0.0)


@given(groups, methods)
def test_every_group_of_a_sub_agent_is_centred_and_every_call_is_accounted_for(
    drawn: list[list[tuple[bool, float, list[Call]]]], method: AlignmentMethod
) -> None:
    rolled = build(drawn)
    found = credit(rolled, method)
    made = [call for group in drawn for _, _, some in group for call in some]
    assert len(found.items) == len(made)
    assert found.unscored == sum(valid and expert is None for valid, expert in made)
    assert found.unscored == sum(one.reward is None for one in found.items)
    assert all(one.weight == one.advantage == 0.0 for one in found.items if one.reward is None)
    assert found.degenerate <= found.groups <= len(drawn)
    _check_groups(found)


@given(groups)
def test_every_group_of_the_manager_is_centred(drawn: list[list[tuple[bool, float, list[Call]]]]) -> None:
    found = main_credit(build(drawn))
    assert found.groups == len(drawn)
    assert [one.reward for one in found.items] == pytest.approx(
        [0.1 + 0.9 * outcome if valid else 0.0 for group in drawn for valid, outcome, _ in group]
    )
    _check_groups(found)


@given(groups, groups)
def test_other_queries_change_nothing(
    drawn: list[list[tuple[bool, float, list[Call]]]], others: list[list[tuple[bool, float, list[Call]]]]
) -> None:
    def advantages(found: RoleCredit) -> list[float]:
        return [one.advantage for one in found.items if one.trajectory.query == QUERIES[0].key]

    beside = build([drawn[0], *others[:2]])
    assert advantages(credit(build(drawn[:1]))) == advantages(credit(beside))


def test_a_manager_without_a_valid_answer_gives_its_sub_agents_no_outcome() -> None:
    found = credit(build([[(False, 0.9, [(True, 0.6)]), (True, 0.9, [(True, 0.6)])]]))
    assert [one.parts.outcome for one in found.items] == [0.0, 0.9]
    assert [one.reward for one in found.items] == pytest.approx([0.1 + 0.5 * 0.6, 0.1 + 0.4 * 0.9 + 0.5 * 0.6])


def test_an_invalid_call_is_worth_nothing_and_stays_in_its_group() -> None:
    found = credit(build([[(True, 0.9, [(False, None), (True, 0.5)])]]))
    assert [one.reward for one in found.items] == pytest.approx([0.0, 0.1 + 0.36 + 0.25])
    assert [one.advantage for one in found.items] == pytest.approx([-1.0, 1.0])
    assert found.unscored == 0


@pytest.mark.parametrize("method", ["fractional", "duplicate_drop", "none"])
def test_a_role_that_nobody_called_has_no_credit(method: AlignmentMethod) -> None:
    rolled = build([[(True, 0.2, []), (True, 0.8, [])]])
    assert credit(rolled, method) == RoleCredit()
    assert calls_histogram(rolled, "trader") == {0: 2}


def test_practice_behind_the_rollouts_has_no_outcome_of_its_own() -> None:
    """The team's groups come first; what is behind them was said to no team and is paid by its expert scores."""
    rolled = build(
        [[(True, 0.9, [(True, 0.5)]), (True, 0.9, [(True, 0.5)])], [(False, 0.0, [(True, 0.2), (True, 0.8)])]]
    )
    found = sub_credit(rolled, "trader", outcomes=[[0.3, 0.5]])
    assert [one.parts.outcome for one in found.items] == [0.3, 0.5, 0.0, 0.0]
    assert [one.advantage for one in found.items] == pytest.approx([-1.0, 1.0, -1.0, 1.0], abs=1e-6)


def test_with_a_penalty_an_invalid_answer_changes_no_other_s_advantage() -> None:
    """The manager of rollout 2 and one of the trader's answers are invalid."""
    drawn = build([[(True, 0.7, [(True, 0.4)]), (True, 0.5, [(True, 0.8)]), (False, 0.9, [(False, None)])]])
    apart = main_credit(drawn, Mgrpo(invalid_penalty=0.2, scale_rewards=False))
    assert [one.advantage for one in apart.items] == pytest.approx([0.09, -0.09, -0.2])
    assert [one.reward for one in apart.items] == pytest.approx([0.73, 0.55, 0.0]), "what is paid stays what it is"
    together = main_credit(drawn, Mgrpo(scale_rewards=False))
    assert [one.advantage for one in together.items] == pytest.approx([0.73 - 1.28 / 3, 0.55 - 1.28 / 3, -1.28 / 3])
    of_trader = credit(drawn, invalid_penalty=0.2, scale_rewards=False)
    assert [one.advantage for one in of_trader.items] == pytest.approx([-0.06, 0.06, -0.2])


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


METHODS: tuple[AlignmentMethod, ...] = ("duplicate_drop", "fractional", "none")
counts_of = st.lists(st.integers(0, 7), min_size=1, max_size=8)


def split(row: np.ndarray, counts: list[int]) -> list[list[float]]:
    return [part.tolist() for part in np.split(row, np.cumsum(counts)[:-1])]


def test_target_count_known(known: dict[str, Any]) -> None:
    case = known["target_count"]
    assert target_count({int(d): n for d, n in case["histogram"].items()}, case["quantile"]) == case["target"]


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 50), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_the_target_is_the_smallest_that_covers_the_quantile(histogram: dict[int, int], quantile: float) -> None:
    target, total = target_count(histogram, quantile), sum(histogram.values())
    covered = sum(n for d, n in histogram.items() if d <= target)
    below = sum(n for d, n in histogram.items() if d < target)
    assert covered >= quantile * total - 1e-6
    assert target == 1 or below < quantile * total


@pytest.mark.parametrize("histogram", [{}, {1: 0}, {1: -1, 2: 3}, {-1: 3}])
def test_a_histogram_without_rollouts_is_refused(histogram: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="histogram"):
        target_count(histogram)


def test_fractional_weights_known(known: dict[str, Any]) -> None:
    case = known["fractional"]
    counts = [len(calls) for calls in case["sub_rewards"]]
    weights = align(counts, "fractional", 0, np.random.default_rng(0))
    for got, want in zip(split(weights, counts), case["weights"], strict=True):
        assert got == pytest.approx(want)
    no_calls = known["degenerate"]["no_calls"]
    weights = align(no_calls["counts"], "fractional", 0, np.random.default_rng(0))
    assert split(weights, no_calls["counts"]) == no_calls["weights"]


@given(counts_of, st.sampled_from(METHODS), st.integers(1, 6), st.integers(0, 99))
def test_weights_sum_to_one_and_each_rollout_counts_alike(
    counts: list[int], method: AlignmentMethod, target: int, seed: int
) -> None:
    weights = align(counts, method, target, np.random.default_rng(seed))
    assert weights.shape == (sum(counts),)
    assert (weights >= 0.0).all()
    if sum(counts):
        assert weights.sum() == pytest.approx(1.0)
    if method != "none":
        callers = sum(count > 0 for count in counts)
        for part in split(weights, counts):
            assert sum(part) == pytest.approx(1.0 / callers if part else 0.0)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 99))
def test_duplicate_drop_only_copies_or_only_drops(counts: list[int], target: int, seed: int) -> None:
    weights = align(counts, "duplicate_drop", target, np.random.default_rng(seed)) * target * len(counts)
    for count, part in zip(counts, split(weights, counts), strict=True):
        assert part == pytest.approx(np.round(part)), "whole multiplicities"
        assert (min(part) >= 1 - 1e-9) if count <= target else (max(part) <= 1 + 1e-9)
    again = align(counts, "duplicate_drop", target, np.random.default_rng(seed)) * target * len(counts)
    assert (weights == again).all()


def test_duplicate_drop_over_seeds_known(known: dict[str, Any]) -> None:
    case = known["duplicate_drop_over_seeds"]
    counts = [len(calls) for calls in case["sub_rewards"]]
    rewards = np.concatenate([np.array(calls, float) for calls in case["sub_rewards"]])
    rng = np.random.default_rng(11)
    draws = np.array([align(counts, "duplicate_drop", case["target"], rng) for _ in range(20_000)])
    means = draws @ rewards
    variances = draws @ rewards**2 - means**2
    items = case["target"] * len(counts)
    # Standard errors are about 3e-4, 2e-5, 2e-4 and 7e-3: the bounds are some four of them.
    assert means.mean() == pytest.approx(case["expected_mean"], abs=1.3e-3)
    assert means.var() == pytest.approx(case["variance_of_mean"], abs=9e-5)
    assert variances.mean() == pytest.approx(case["expected_population_variance"], abs=8e-4)
    assert draws.mean(0) * items == pytest.approx(np.concatenate(case["expected_multiplicity"]), abs=0.03)
    assert draws.mean(0) == pytest.approx(align(counts, "fractional", 0, rng), abs=0.004)


def test_one_draw_of_duplicate_drop_known(known: dict[str, Any]) -> None:
    case = known["duplicate_drop_one_draw"]
    rewards = np.concatenate([np.array(calls, float) for calls in case["sub_rewards"]])
    drawn = np.array([3, 1, 1, 1, 1, 1, 0]) / 8.0
    seeds = range(2000)
    draws = (align([2, 5], "duplicate_drop", case["target"], np.random.default_rng(seed)) for seed in seeds)
    assert any(np.allclose(drawn, weights) for weights in draws), "the case's draw is one that comes up"
    advantages, degenerate = group_advantages(rewards, drawn)
    assert not degenerate
    assert drawn @ rewards == pytest.approx(case["mean"])
    assert np.sqrt(drawn @ (rewards - case["mean"]) ** 2) == pytest.approx(case["std"])
    assert advantages[[0, 1, 3]] == pytest.approx(list(case["advantage_of"].values()))


def test_none_counts_calls() -> None:
    assert align([1, 3, 0], "none", 0, np.random.default_rng(0)).tolist() == [0.25] * 4


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        align([1, -1], "fractional", 0, np.random.default_rng(0))
    with pytest.raises(ValueError, match="target"):
        align([1], "duplicate_drop", 0, np.random.default_rng(0))


# Rewards have few decimals here, so that two of them are either equal or clearly different.
grid = st.integers(0, 1000).map(lambda n: n / 1000)
weighted_groups = st.lists(st.tuples(grid, st.integers(1, 20)), min_size=1, max_size=12).map(
    lambda rows: (np.array([row[0] for row in rows]), np.array([row[1] for row in rows], float))
)


def test_group_basic_known(known: dict[str, Any]) -> None:
    case = known["group_basic"]
    advantages, degenerate = group_advantages(case["rewards"])
    assert advantages == pytest.approx(case["advantages"])
    assert not degenerate


def test_fractional_advantages_known(known: dict[str, Any]) -> None:
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


@given(weighted_groups, st.floats(0.01, 100.0), st.floats(-5.0, 5.0), st.floats(0.01, 100.0))
def test_affine_rewards_and_scaled_weights_change_nothing(
    group: tuple[np.ndarray, np.ndarray], a: float, b: float, c: float
) -> None:
    rewards, weights = group
    want = group_advantages(rewards, weights)[0]
    assert group_advantages(a * rewards + b, c * weights)[0] == pytest.approx(want, abs=1e-7)


@given(weighted_groups, grid)
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


@given(weighted_groups, st.floats(0.01, 5.0))
def test_without_an_invalid_answer_it_is_the_group_s_advantage(group: tuple[Any, Any], penalty: float) -> None:
    rewards, weights = group
    advantages, degenerate = advantages_of_valid(rewards, np.full(len(rewards), True), penalty, weights)
    want, equal = group_advantages(rewards, weights)
    assert advantages.tolist() == want.tolist() and degenerate is equal


Make = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.zeros(3, np.int32)}, "mask has 13 entries for 3 ids"),
        ({"ids": np.zeros(13, np.int64)}, "ids must be one row of int32"),
        ({"ids": np.zeros((1, 13), np.int32)}, "ids must be one row"),
        ({"mask": np.ones(13, np.bool_)}, "the first token"),
        ({"sampled_logps": np.full(13, np.nan, np.float32)}, "finite"),
        ({"sampled_logps": np.full(13, -1.0, np.float32)}, "0 where the mask is False"),
        ({"format_score": 1.5}, "format_score"),
        ({"expert": float("nan")}, "expert"),
    ],
)
def test_what_cannot_be_a_trajectory_is_refused_by_name(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make(3, **changes)
    assert "manager, query q0, rollout 3" in str(error.value)


def test_padding_keeps_every_sampled_token_and_cuts_what_follows_the_last(make: Make) -> None:
    short, long = make(1, prompt=3, answer=1), make(2, prompt=6, answer=5)
    tail = make(3, mask=np.repeat([False, True, False], [5, 2, 6]), sampled_logps=np.zeros(13, np.float32))
    batch = pad_trajectories([short, long, tail])
    assert batch.ids.shape == batch.mask.shape == batch.sampled_logps.shape == (3, 15)
    assert batch.ids.dtype == torch.int64
    for row, one in enumerate([short, long, tail]):
        assert batch.ids[row][batch.mask[row]].tolist() == one.ids[one.mask].tolist()
        assert batch.sampled_logps[row][batch.mask[row]].tolist() == one.sampled_logps[one.mask].tolist()
    assert not batch.ids[2, 7:].any(), "tokens after the last sampled one are cut"
    assert pad_trajectories([tail]).ids.shape == (1, 7)


def test_a_trajectory_without_a_sampled_token_still_has_a_row(make: Make) -> None:
    silent = make(1, mask=np.zeros(13, np.bool_), sampled_logps=np.zeros(13, np.float32))
    assert pad_trajectories([silent]).mask.tolist() == [[False]]
