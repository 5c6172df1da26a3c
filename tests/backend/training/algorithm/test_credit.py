"""From rollouts to advantages: groups by query and role, missing scores left out and counted, d_k = 0 harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.advantages import batch_scaled, decoupled_advantages, group_advantages
from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.algorithm.credit import (
    CreditSettings,
    RoleCredit,
    TrajectoryCredit,
    assign_credit,
    calls_histogram,
    score_main,
    score_sub,
    shuffled,
)
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import Rollout
from cryptosentinel.team import TeamDecision
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_settings import standard_credit

ALPHA, BETA = (0.1, 0.9), (0.1, 0.4, 0.5)
STANDARD_CREDIT = standard_credit()
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
    chosen = standard_credit(**settings)
    return assign_credit(score_sub(drawn, "trader", BETA, method, target, np.random.default_rng(1), chosen), chosen)


def main_credit(drawn: list[list[Rollout]], settings: CreditSettings = STANDARD_CREDIT) -> RoleCredit:
    return assign_credit(score_main(drawn, ALPHA, settings), settings)


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
def test_other_queries_and_other_roles_change_nothing(
    drawn: list[list[tuple[bool, float, list[Call]]]], others: list[list[tuple[bool, float, list[Call]]]]
) -> None:
    def advantages(found: RoleCredit) -> list[float]:
        return [one.advantage for one in found.items if one.trajectory.query == QUERIES[0].key]

    alone = build(drawn[:1])
    beside = build([drawn[0], *others[:2]])
    assert advantages(credit(alone)) == advantages(credit(beside))
    mixed = [
        [
            Rollout(**{**vars(one), "subs": (_trajectory("risk_analyst", 0, one.number, 0, True, 0.3), *one.subs)})
            for one in group
        ]
        for group in alone
    ]
    assert advantages(credit(mixed)) == advantages(credit(alone))


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


def test_equal_rewards_are_a_degenerate_group() -> None:
    found = credit(build([[(True, 0.5, [(True, 0.7)]), (True, 0.5, [(True, 0.7)])]]))
    assert (found.groups, found.degenerate) == (1, 1)
    assert [one.advantage for one in found.items] == [0.0, 0.0]


def test_the_histogram_counts_rollouts_by_their_calls_of_the_role() -> None:
    rolled = build([[(True, 0.5, [(True, 0.1)] * 2), (True, 0.5, [])], [(True, 0.5, [(True, 0.1)] * 2)]])
    assert calls_histogram(rolled, "trader") == {2: 2, 0: 1}
    assert calls_histogram(rolled, "risk_analyst") == {0: 3}


Drawn = list[list[tuple[bool, float, list[Call]]]]


def scored(found: RoleCredit, query: int) -> list[TrajectoryCredit]:
    return [one for one in found.items if one.trajectory.query == QUERIES[query].key and one.reward is not None]


@given(groups, methods, st.integers(2, 5))
def test_by_ordinal_first_calls_are_compared_with_first_calls_and_few_back_off(
    drawn: Drawn, method: AlignmentMethod, least: int
) -> None:
    rolled = build(drawn)
    by_role, by_ordinal = credit(rolled, method), credit(rolled, method, group="ordinal", min_group=least)
    assert [one.weight for one in by_ordinal.items] == [one.weight for one in by_role.items], "no step is larger"
    for query in range(len(drawn)):
        items, plain = scored(by_ordinal, query), scored(by_role, query)
        for ordinal in {one.trajectory.ordinal for one in items}:
            own = [i for i, one in enumerate(items) if one.trajectory.ordinal == ordinal]
            got = [items[i].advantage for i in own]
            weights = np.array([items[i].weight for i in own])
            if np.count_nonzero(weights) < least:
                assert got == [plain[i].advantage for i in own]
            else:
                want, _ = group_advantages([float(items[i].reward or 0.0) for i in own], weights)
                assert got == pytest.approx(want)


def test_a_query_counts_a_group_an_ordinal_and_one_for_those_that_backed_off() -> None:
    one, two = [(True, 0.1)], [(True, 0.2), (True, 0.9)]
    rolled = build([[(True, 0.5, one), (True, 0.5, two), (True, 0.5, one)]])
    found = credit(rolled, group="ordinal", min_group=2)
    assert (found.groups, found.degenerate) == (2, 0)
    assert credit(rolled, group="ordinal", min_group=4).groups == credit(rolled).groups == 1
    equal = build([[(True, 0.5, one), (True, 0.5, [*one, (True, 0.9)])]])
    assert credit(equal, group="ordinal", min_group=2).degenerate == 1, "the first calls are equal"


@given(groups)
def test_decoupled_credit_is_the_parts_advantages_over_the_batchs_sigma(drawn: Drawn) -> None:
    found = credit(build(drawn), reward_aggregation="normalize_then_sum")
    rows = [items for items in (scored(found, query) for query in range(len(drawn))) if items]
    weights = [np.array([one.weight for one in items]) for items in rows]
    made = [
        decoupled_advantages([one.parts.terms() for one in items], (*BETA, 1.0), weight)[0]
        for items, weight in zip(rows, weights, strict=True)
    ]
    for items, want in zip(rows, batch_scaled(made, weights), strict=True):
        assert [one.advantage for one in items] == pytest.approx(want.tolist())
    main = main_credit(build(drawn), standard_credit(reward_aggregation="normalize_then_sum"))
    values = np.array([one.advantage for one in main.items]) * [one.weight for one in main.items]
    assert values.sum() == pytest.approx(0.0, abs=1e-9)


@given(groups)
def test_without_sigma_the_managers_advantage_is_its_reward_above_the_mean(drawn: Drawn) -> None:
    found = main_credit(build(drawn), standard_credit(scale_rewards=False))
    for query in range(len(drawn)):
        items = scored(found, query)
        rewards = np.array([one.reward for one in items])
        assert [one.advantage for one in items] == pytest.approx((rewards - rewards.mean()).tolist(), abs=1e-9)


@given(groups)
def test_groups_that_teach_nothing_can_be_left_out_of_the_managers_denominator(drawn: Drawn) -> None:
    kept, left_out = (main_credit(build(drawn), standard_credit(keep_degenerate=keep)) for keep in (True, False))
    assert (kept.groups, kept.degenerate) == (left_out.groups, left_out.degenerate)
    assert sum(one.weight for one in kept.items) == pytest.approx(kept.groups)
    assert sum(one.weight for one in left_out.items) == pytest.approx(kept.groups - kept.degenerate)
    assert [one.advantage for one in kept.items] == [one.advantage for one in left_out.items]


@given(groups)
def test_shuffled_rewards_are_the_same_rewards_at_other_calls(drawn: Drawn) -> None:
    scored_groups = score_main(build(drawn), ALPHA, STANDARD_CREDIT)
    found = [shuffled(group, np.random.default_rng(1)) for group in scored_groups]
    for group, turned in zip(scored_groups, found, strict=True):
        assert sorted(call.reward for call in group.calls) == sorted(call.reward for call in turned.calls)
        assert [call.trajectory for call in group.calls] == [call.trajectory for call in turned.calls]
        assert all(call.parts.outcome in {one.parts.outcome for one in group.calls} for call in turned.calls)


@given(groups)
def test_an_overlong_answer_is_paid_less_whether_valid_or_not(drawn: Drawn) -> None:
    """Every call of these samples one token."""
    rolled = build(drawn)
    for length, buffer, penalty in ((1, 1, -1.0), (2, 2, -0.5), (9, 8, 0.0)):
        settings = standard_credit(overlong_length=length, overlong_buffer=buffer)
        for plain, found in (
            (main_credit(rolled), main_credit(rolled, settings)),
            (credit(rolled), credit(rolled, overlong_length=length, overlong_buffer=buffer)),
        ):
            for before, after in zip(plain.items, found.items, strict=True):
                assert (before.reward is None) == (after.reward is None)
                assert after.parts.overlong == penalty
                assert after.reward is None or after.reward == pytest.approx((before.reward or 0.0) + penalty)
            got, want = ([one.advantage for one in credit.items] for credit in (found, plain))
            assert got == pytest.approx(want, abs=1e-6), "a penalty that all share changes no advantage"


def test_an_outcome_of_its_own_takes_the_place_of_the_teams() -> None:
    rolled = build([[(True, 0.9, [(True, 0.5)]), (False, 0.9, [(True, 0.5)])]])
    scored = score_sub(rolled, "trader", BETA, "fractional", 2, np.random.default_rng(1), STANDARD_CREDIT, [[0.3, 0.5]])
    found = assign_credit(scored, STANDARD_CREDIT)
    assert [one.parts.outcome for one in found.items] == [0.3, 0.5]
    assert [one.reward for one in found.items] == pytest.approx([0.1 + 0.12 + 0.25, 0.1 + 0.2 + 0.25])


def test_practice_behind_the_rollouts_has_no_outcome_of_its_own() -> None:
    """The team's groups come first; what is behind them was said to no team and is paid by its expert scores."""
    rolled = build(
        [[(True, 0.9, [(True, 0.5)]), (True, 0.9, [(True, 0.5)])], [(False, 0.0, [(True, 0.2), (True, 0.8)])]]
    )
    scored = score_sub(rolled, "trader", BETA, "fractional", 2, np.random.default_rng(1), STANDARD_CREDIT, [[0.3, 0.5]])
    found = assign_credit(scored, STANDARD_CREDIT)
    assert [one.parts.outcome for one in found.items] == [0.3, 0.5, 0.0, 0.0]
    assert [one.advantage for one in found.items] == pytest.approx([-1.0, 1.0, -1.0, 1.0], abs=1e-6)


def test_a_shuffled_reward_has_nothing_to_do_with_the_call() -> None:
    [group] = score_main(build([[(True, place / 5, []) for place in range(6)]]), ALPHA, STANDARD_CREDIT)
    own, rng = np.array([call.reward for call in group.calls]), np.random.default_rng(3)
    turned = np.array([[call.reward for call in shuffled(group, rng).calls] for _ in range(2_000)])
    assert abs(np.corrcoef(np.tile(own, 2_000), turned.ravel())[0, 1]) < 0.05


def test_with_a_penalty_an_invalid_answer_changes_no_other_s_advantage() -> None:
    """The manager of rollout 2 and one of the trader's answers are invalid."""
    drawn = build([[(True, 0.7, [(True, 0.4)]), (True, 0.5, [(True, 0.8)]), (False, 0.9, [(False, None)])]])
    apart = main_credit(drawn, standard_credit(invalid_penalty=0.2, scale_rewards=False))
    assert [one.advantage for one in apart.items] == pytest.approx([0.09, -0.09, -0.2])
    assert [one.reward for one in apart.items] == pytest.approx([0.73, 0.55, 0.0]), "what is paid stays what it is"
    together = main_credit(drawn, standard_credit(scale_rewards=False))
    assert [one.advantage for one in together.items] == pytest.approx([0.73 - 1.28 / 3, 0.55 - 1.28 / 3, -1.28 / 3])
    of_trader = credit(drawn, invalid_penalty=0.2, scale_rewards=False)
    assert [one.advantage for one in of_trader.items] == pytest.approx([-0.06, 0.06, -0.2])
