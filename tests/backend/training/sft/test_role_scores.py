"""Held-out scores of the roles: paired, invalid answers at 0, nothing measured left out."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
import pytest

from backend.builders.loaded_team import scripted_team
from backend.statistics.mean_interval import mean_interval
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.role_scores import RoleScores, compare_roles, score_roles
from cryptosentinel.agents.registry import ROLES, STANDARD
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedEngine, ScriptedPolicy
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.team import derive_seed
from tests.small_world import HORIZON, VALIDATION, rollout_settings, small_config, small_market

NAN = float("nan")


def wavering_policies(
    share: float, portfolio: bool = False, team: Collection[str] = STANDARD
) -> dict[str, ScriptedPolicy]:
    """The expert's rules, but for about `share` of the turns, which are the novice's. The seed decides which."""
    experts, novices = expert_policies(team, portfolio=portfolio), novice_policies(team, portfolio=portfolio)

    def wavering(role: str) -> ScriptedPolicy:
        def says(messages: ChatMessages, seed: int) -> str:
            rng = random.Random(derive_seed(seed, "waver"))
            return (novices if rng.random() < share else experts)[role](messages, seed)

        return says

    return {role: wavering(role) for role in experts}


def scores(*rows: list[float], valid: bool = True) -> dict[str, RoleScores]:
    table = np.array(rows)
    return {role: RoleScores(table, np.full(table.shape, valid)) for role in ROLES}


def test_the_difference_is_taken_where_every_team_was_measured() -> None:
    before = scores([0.2, 0.4], [0.5, NAN], [NAN, NAN], [0.1, 0.1])
    after = scores([0.6, 0.6], [0.5, 0.7], [0.9, 0.9], [0.3, 0.5])
    reference = scores([0.7, 0.7], [0.8, 0.8], [0.9, 0.9], [NAN, NAN])
    found = compare_roles(before, after, reference, 200, 1)["trader"]
    assert found["states"] == 2
    assert (found["before"], found["after"]) == pytest.approx((0.4, 0.6))
    assert found["reference"] == pytest.approx(0.75)
    assert found["difference"]["mean"] == pytest.approx(0.2)
    low, high = found["difference"]["ci95"]
    assert (low + high) / 2.0 == pytest.approx(0.2)
    assert (low, high) == pytest.approx(mean_interval([0.3, 0.1], 200, 1)), (
        "of the two states that all were measured in"
    )


@pytest.mark.parametrize("rows", [[[NAN, NAN], [0.5, 0.5]], [[NAN, NAN], [NAN, NAN]]])
def test_too_few_states_have_no_difference(rows: list[list[float]]) -> None:
    found = compare_roles(scores(*rows), scores(*rows), scores(*rows), 200, 1)["manager"]
    assert found["difference"] is None
    assert found["before"] == (0.5 if found["states"] else None)


def test_the_expert_beats_a_team_that_wavers_and_ties_with_itself() -> None:
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 20, easy=False)
    settings, codec = rollout_settings(small_config(rollouts_per_query=3)), make_byte_codec()
    expert = scripted_team(small_config().team)
    seen: list[tuple[int, int]] = []

    def of(share: float) -> dict[str, RoleScores]:
        loaded = expert.__class__("w", expert.team, ScriptedEngine(codec, wavering_policies(share)))
        return score_roles(loaded, queries, settings, 1, lambda done, total: seen.append((done, total)))

    steady, wavering, wild = of(0.0), of(0.5), of(1.0)
    assert seen == [(16, 20), (20, 20)] * 3
    own = score_roles(expert, queries, settings, 1, lambda done, total: None)
    for role in ROLES:
        np.testing.assert_array_equal(own[role].score, steady[role].score)
        assert own[role].valid.all()
        assert own[role].score.shape == (20, 3)
    found = compare_roles(wild, steady, wavering, 200, 1)
    assert found["market_analyst"]["difference"]["mean"] > 0.01
    assert compare_roles(own, steady, own, 200, 1)["trader"]["difference"]["ci95"] == [0.0, 0.0]


def test_an_invalid_answer_scores_nothing() -> None:
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 2, easy=False)
    expert = scripted_team(small_config().team)
    policies = {**expert_policies(), "trader": lambda messages, seed: "no call"}
    mute = expert.__class__("m", expert.team, ScriptedEngine(make_byte_codec(), policies))
    found = score_roles(mute, queries, rollout_settings(small_config()), 1, lambda done, total: None)
    assert not found["trader"].valid.any()
    assert (found["trader"].score == 0.0).all()
    assert found["risk_analyst"].valid.all()
