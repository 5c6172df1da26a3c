"""What a sub-agent's call is compared with: its peers by question, those that back off, and the batch for a call that
is alone. Numbers are worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.credit import RoleCredit, ScoredCall, ScoredGroup, assign_credit
from backend.training.algorithm.grouping import comparisons, continuations, question_of, single_call_advantage
from backend.training.algorithm.rewards import RewardParts
from backend.training.algorithm.trajectory import Trajectory
from tests.standard_settings import standard_credit

A, B, C = (1, 2, 3), (1, 2, 4), (1, 5)  # what was read before the answer
said = st.lists(st.tuples(st.sampled_from([A, B, C]), st.floats(0.0, 1.0)), min_size=1, max_size=8)


def call(question: Sequence[int], ordinal: int = 0, answer: int = 9) -> Trajectory:
    ids = np.array([*question, answer, 7, answer], np.int32)  # an answer, a tool's result, and the next turn
    mask = np.array([False] * len(question) + [True, False, True])
    return Trajectory(
        "trader", "0-0", 0, ordinal, ids, mask, np.zeros(len(ids), np.float32), "v", True, 1.0, 0.5, truncated=False
    )


def group(*calls: tuple[Sequence[int], float], **options: Any) -> ScoredGroup:
    """Calls of one query, each (question, reward), that count alike."""
    scored = [ScoredCall(call(question), RewardParts(True, 1.0, 0.0), reward) for question, reward in calls]
    return ScoredGroup(scored, np.full(len(scored), 1.0 / max(1, len(scored))), (0.1, 0.4, 0.5), **options)


def advantages(groups: Sequence[ScoredGroup], **settings: Any) -> list[float]:
    return [item.advantage for item in assigned(groups, **settings).items]


def assigned(groups: Sequence[ScoredGroup], **settings: Any) -> RoleCredit:
    return assign_credit(groups, standard_credit(**settings))


def test_a_question_is_what_was_read_before_the_first_answer() -> None:
    assert question_of(call(A)) == question_of(call(A, ordinal=3, answer=8))
    assert len({question_of(call(one)) for one in (A, B, C)}) == 3


def test_answers_are_compared_with_answers_to_the_same_question() -> None:
    # Question A pays 0.1 and 0.3, question B 0.8 and 1.0: the paper's group praises whoever was asked B.
    mixed = group((A, 0.1), (B, 0.8), (A, 0.3), (B, 1.0))
    assert np.sign(advantages([mixed])).tolist() == [-1, 1, -1, 1]
    assert advantages([mixed], group="question", min_group=2) == pytest.approx([-1, -1, 1, 1])
    assert assigned([mixed], group="question", min_group=2).groups == 2


def test_a_question_with_few_answers_backs_off_to_all_of_the_role() -> None:
    # A has two answers and C one; the mean of all is 0.4.
    mixed = group((A, 0.2), (A, 0.4), (C, 0.6))
    sigma = np.sqrt((0.2**2 + 0.0**2 + 0.2**2) / 3)
    assert advantages([mixed], group="question", min_group=2) == pytest.approx([-1, 1, 0.2 / sigma])
    assert advantages([mixed], group="question", min_group=3) == pytest.approx([-0.2 / sigma, 0, 0.2 / sigma])


@given(said, st.integers(2, 4))
def test_every_call_receives_once_and_from_its_own_question_or_from_all(
    drawn: list[tuple[tuple[int, ...], float]], least: int
) -> None:
    calls, rewards = [call(question) for question, _ in drawn], np.array([reward for _, reward in drawn])
    found = comparisons(calls, np.full(len(calls), 1.0 / len(calls)), "question", least)
    assert sorted(one for _, receivers in found for one in receivers) == list(range(len(calls)))
    got = advantages([group(*drawn)], group="question", min_group=least)
    for position, (question, _) in enumerate(drawn):
        peers = [i for i, (other, _) in enumerate(drawn) if other == question]
        among = peers if len(peers) >= least else list(range(len(drawn)))
        want, _ = group_advantages(rewards[among])
        assert got[position] == pytest.approx(want[among.index(position)])


def test_a_call_alone_is_compared_with_the_other_queries_which_count_alike() -> None:
    # The others are one query with 0.0 and 0.4, a quarter each, and one with 0.8, a half: their mean is 0.5.
    groups = [group((A, 0.9)), group((A, 0.0), (B, 0.4)), group((C, 0.8))]
    sigma = np.sqrt(0.25 * 0.5**2 + 0.25 * 0.1**2 + 0.5 * 0.3**2)
    # The call of the last query is alone too: its others are 0.9 (half) and 0.0, 0.4 (a quarter each), mean 0.55.
    last = np.sqrt(0.5 * 0.35**2 + 0.25 * 0.55**2 + 0.25 * 0.15**2)
    want = [0.4 / sigma, -1.0, 1.0, 0.25 / last]
    assert advantages(groups, single_calls="batch") == pytest.approx(want)
    assert advantages(groups) == pytest.approx([0.0, -1.0, 1.0, 0.0]), "none, as the paper has it"
    plain = advantages(groups, single_calls="batch", scale_rewards=False)
    assert plain == pytest.approx([0.4, -0.2, 0.2, 0.25])
    assert (assigned(groups).degenerate, assigned(groups, single_calls="batch").degenerate) == (2, 0)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_baseline_of_a_call_does_not_depend_on_its_own_reward(own: float, other: float, more: float) -> None:
    groups = [group((A, own)), group((A, 0.0), (A, 1.0)), group((B, other))]
    changed = [group((A, more)), *groups[1:]]
    first, second = (advantages(one, single_calls="batch", scale_rewards=False)[0] for one in (groups, changed))
    assert first - second == pytest.approx(own - more)


def test_without_anything_to_compare_with_a_call_alone_learns_nothing() -> None:
    nobody = [group((A, 0.9)), group(unscored=())]
    assert advantages(nobody, single_calls="batch") == [0.0]
    assert assigned(nobody, single_calls="batch").degenerate == 1
    equal = [group((A, 0.9)), group((A, 0.5), (A, 0.5))]
    assert advantages(equal, single_calls="batch")[0] == 0.0, "no sigma to divide by"
    advantage, degenerate = single_call_advantage(0.9, [(np.array([0.5]), np.array([1.0]))], scale=False)
    assert advantage == pytest.approx(0.4) and not degenerate


def test_a_call_in_a_team_is_not_compared_with_practice_which_has_no_outcome() -> None:
    team, practice = [group((A, 0.9)), group((A, 0.7))], group((A, 0.1), (A, 0.2), practice=True)
    assert advantages([*team, practice], single_calls="batch", scale_rewards=False)[:2] == pytest.approx([0.2, -0.2])


# -- answers that were given again ----------------------------------------------------------------------------------


def of_rollout(number: int, question: Sequence[int] = A, ordinal: int = 0) -> Trajectory:
    return replace(call(question, ordinal), rollout=number)


def test_answers_to_one_question_in_one_rollout_are_compared_with_each_other() -> None:
    # Rollouts 0 and 1 asked A, rollout 1 then asked B; rollouts 2 and 3 repeat rollout 1 up to its second question.
    calls = [of_rollout(0), of_rollout(1), of_rollout(1, B, 1), of_rollout(2, B, 1), of_rollout(3, B, 1)]
    calls += [of_rollout(3, C, 2)]  # asked after the new answer
    origins = [None, None, None, 1, 1, 1]
    weights = np.full(len(calls), 1.0)
    everyone = list(range(6))
    assert comparisons(calls, weights, "role", 2, origins) == [([2, 3, 4], [2, 3, 4]), (everyone, [0, 1, 5])]
    assert comparisons(calls, weights, "role", 2, [None] * 6) == [(everyone, everyone)]
    by_question = comparisons(calls, weights, "question", 2, origins)
    assert by_question == [([2, 3, 4], [2, 3, 4]), ([0, 1], [0, 1]), (everyone, [5])]


def test_an_answer_without_another_that_counts_is_compared_as_usual() -> None:
    calls, weights = [of_rollout(0), of_rollout(1), of_rollout(2)], np.array([0.0, 0.5, 0.5])
    assert comparisons(calls, weights, "role", 2, [None, None, 0]) == [([0, 1, 2], [0, 1, 2])]


def test_the_rest_of_a_conversation_is_compared_with_the_rest_of_the_same_one() -> None:
    mains = [of_rollout(number) for number in range(5)]
    assert continuations(mains, [None, None, None, 1, 1]) == [([0, 1, 2], [0, 1, 2]), ([1, 3, 4], [3, 4])]
    assert continuations(mains, [None] * 5) == [([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])]


def test_answering_again_removes_what_was_decided_before() -> None:
    """The manager's question decides nine tenths of what is earned: among all calls of the role the better answer to
    the worse question is blamed, and among the answers to that question it is praised."""
    again = [of_rollout(0), of_rollout(1, B), of_rollout(2, B), of_rollout(3, B)]
    rewards = [0.9, 0.1, 0.2, 0.0]
    scored = [ScoredCall(one, RewardParts(True, 1.0, 0.0), reward) for one, reward in zip(again, rewards, strict=True)]
    plain = ScoredGroup(scored, np.full(4, 0.25), (0.1, 0.4, 0.5))
    assert np.sign(advantages([plain])).tolist() == [1, -1, -1, -1]
    assert np.sign(advantages([replace(plain, origins=[None, None, 1, 1])]))[1:].tolist() == [0, 1, -1]


@given(st.floats(0.1, 0.9), st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
def test_the_expected_gradient_of_answers_given_again_is_the_true_one(chance: float, worth: list[float]) -> None:
    """By enumeration: two questions, drawn alike, two answers with the probabilities `chance` and the rest, and what
    each answer to each question is worth. One rollout and two that answer its question again; without the division by
    sigma a mean of n answers has (n - 1) / n of the gradient (as GRPO's has), the same for all questions."""
    law = {0: chance, 1: 1.0 - chance}
    gradient = expected = 0.0
    for question in (0, 1):
        paid = {answer: worth[2 * question + answer] for answer in law}
        mean = sum(law[answer] * paid[answer] for answer in law)
        expected += 0.5 * law[0] * (paid[0] - mean)  # d E[reward] / d the logit of answer 0
        for answers in product(law, repeat=3):
            probability = 0.5 * math.prod(law[answer] for answer in answers)
            calls = [of_rollout(number, (A, B)[question]) for number in range(3)]
            scored = [
                ScoredCall(one, RewardParts(True, 1.0, 0.0), paid[answer])
                for one, answer in zip(calls, answers, strict=True)
            ]
            given_again = ScoredGroup(scored, np.full(3, 1 / 3), (0.1, 0.4, 0.5), origins=[None, 0, 0])
            values = advantages([given_again], scale_rewards=False)
            scores = [(answer == 0) - law[0] for answer in answers]
            gradient += probability * float(np.mean(np.array(values) * scores))
    assert gradient == pytest.approx(expected * 2 / 3, abs=1e-9)
