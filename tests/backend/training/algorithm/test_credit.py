"""From rollouts to advantages: groups by query and role, missing scores left out and counted, d_k = 0 harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.algorithm.credit import RoleCredit, calls_histogram
from backend.training.algorithm.recipes import Mgrpo
from backend.training.algorithm.rewards import Outcome
from backend.training.algorithm.trajectory import Trajectory
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
