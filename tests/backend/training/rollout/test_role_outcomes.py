"""Shares of the outcome: the laws of the Shapley value, and replays of decisions without what binds them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.algorithm.credit import RoleCredit
from backend.training.algorithm.team_credit import CREDITS, Counterfactual, Shapley
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from backend.training.rollout.role_outcomes import role_outcome_metrics, role_outcomes
from backend.training.rollout.scoring import RolloutScorer
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scripted_reading import exchanges
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team, replay, replayable_roles
from simulator.errors import UserError
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order
from tests.small_world import HORIZON, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.standard_settings import sub_credit
from tests.team_scenes import standard_team

ROLES = ("market_analyst", "risk_analyst", "trader")
Game = dict[frozenset[str], float]
coalitions = [frozenset(some) for size in range(4) for some in combinations(ROLES, size)]
games = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).map(lambda row: dict(zip(coalitions, row, strict=True)))


def _by_orders(game: Game, player: str) -> float:
    """The Shapley value by its other definition: the mean over all orders of arrival of what the player adds."""
    added = []
    for order in permutations(ROLES):
        before = frozenset(order[: order.index(player)])
        added.append(game[before | {player}] - game[before])
    return sum(added) / len(added)


@given(games)
def test_shapley_is_the_mean_over_orders_of_arrival_and_adds_up(game: Game) -> None:
    found = Shapley().shares(game.__getitem__, ROLES)
    for player in ROLES:
        assert found[player] == pytest.approx(_by_orders(game, player), abs=1e-12)
        assert -1.0 - 1e-12 <= found[player] <= 1.0 + 1e-12
    assert sum(found.values()) == pytest.approx(game[frozenset(ROLES)] - game[frozenset()], abs=1e-12)


@given(games, st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3))
def test_without_interaction_both_are_what_the_role_adds(game: Game, worth: list[float]) -> None:
    by_role = dict(zip(ROLES, worth, strict=True))
    additive = {some: 0.5 + sum(by_role[role] for role in some) for some in coalitions}
    assert Shapley().shares(additive.__getitem__, ROLES) == pytest.approx(by_role, abs=1e-12)
    assert Counterfactual().shares(additive.__getitem__, ROLES) == pytest.approx(by_role, abs=1e-12)
    whole = frozenset(ROLES)
    assert Counterfactual().shares(game.__getitem__, ROLES) == {one: game[whole] - game[whole - {one}] for one in ROLES}


SETTINGS = RolloutSettings(6, 4, HORIZON, Costs(), 1.0, guard_limits(max_exposure=0.9))


def _manager(messages: ChatMessages, seed: int) -> str:
    """Asks MarketAnalyst, then RiskAnalyst, Trader or both about a position drawn by the seed, and holds it."""
    rng = random.Random(seed)
    done = exchanges(messages, "manager")
    asked = [arguments for name, arguments, _ in done if name != "consult_market_analyst"]
    if not done:
        return render_call("consult_market_analyst", {"symbol": "C1"})
    if not asked:
        question = {"symbol": "C1", "side": rng.choice(["long", "short"]), "exposure": rng.choice([0.6, 1.0])}
        return render_call(rng.choice(["consult_risk_analyst", "consult_trader"]), question)
    if len(asked) == 1 and rng.random() < 0.7:
        return render_call(
            "consult_trader" if done[-1][0] == "consult_risk_analyst" else "consult_risk_analyst", asked[0]
        )
    return render_call("submit_decision", {"positions": [{"reason": "", **asked[0]}]})


def an_engine() -> ScriptedEngine:
    return ScriptedEngine(make_byte_codec(), {**novice_policies(), "manager": _manager})


def a_team() -> Team:
    return Team(make_byte_codec(), an_engine().policy_version, standard_team(horizon_bars=HORIZON))


@pytest.fixture(scope="module")
def groups() -> list[list[Rollout]]:
    """Rollouts of a team that holds what it asked about; its sub-agents answer at random."""
    queries = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 6, easy=False)
    return collect(a_team(), an_engine(), queries, SETTINGS, 1)


def again(one: Rollout, roles: tuple[str, ...]) -> list[Order]:
    return replay(a_team(), one.decision, one.query.view(), one.query.account(), Guard(SETTINGS.limits), roles)


def test_a_replay_with_everybody_is_the_decision(groups: list[list[Rollout]]) -> None:
    roles = replayable_roles(a_team())
    assert roles == ("risk_analyst", "trader")
    for one in (one for group in groups for one in group):
        assert again(one, roles) == one.decision.orders


def test_a_replay_without_riskanalyst_trades_what_was_asked_and_without_trader_at_once(
    groups: list[list[Rollout]],
) -> None:
    ruled = timed = 0
    for one in (one for group in groups for one in group):
        uncapped, at_once = again(one, ("trader",)), again(one, ("risk_analyst",))
        if not one.decision.rulings:
            assert uncapped == one.decision.orders, "nothing was ruled, so nothing comes back"
        else:
            [ruling] = one.decision.rulings
            assert ruling.allowed < ruling.asked
            ruled += uncapped != one.decision.orders
        assert all(order.delay == 0 for order in at_once)
        timed += any(order.delay for order in one.decision.orders)
    assert ruled >= 3 and timed >= 8, "both happen"


def _part(credit: RoleCredit, one: Rollout) -> set[float]:
    return {
        item.parts.outcome
        for item in credit.items
        if (item.trajectory.query, item.trajectory.rollout) == (one.query.key, one.number)
    }


@pytest.mark.parametrize("method", ["counterfactual", "shapley"])
def test_a_role_is_credited_with_what_its_effects_changed_on_the_same_scenarios(
    method: str, groups: list[list[Rollout]]
) -> None:
    outcomes = role_outcomes(a_team(), groups, SETTINGS, CREDITS[method]())
    assert set(outcomes) == {"risk_analyst", "trader"}, "advice cannot be replayed and is broadcast"
    moved = 0
    for number, group in enumerate(groups):
        scorer = RolloutScorer(group[0].query, SETTINGS.scenario_paths, HORIZON, SETTINGS.costs, 1.0)
        for position, one in enumerate(group):
            risk, trader = (2.0 * outcomes[role][number][position] - 1.0 for role in ("risk_analyst", "trader"))
            v = {some: scorer.outcome(again(one, some)).score for some in [(), ROLES[1:], ROLES[1:2], ROLES[2:]]}
            if method == "shapley":
                assert risk + trader == pytest.approx(v[ROLES[1:]] - v[()], abs=1e-9)
            else:
                assert risk == pytest.approx(v[ROLES[1:]] - v[ROLES[2:]], abs=1e-9)
                assert trader == pytest.approx(v[ROLES[1:]] - v[ROLES[1:2]], abs=1e-9)
            moved += abs(risk) > 1e-6 or abs(trader) > 1e-6
    assert moved >= 10


def test_the_credited_outcome_is_the_outcome_part_of_a_sub_agents_reward(groups: list[list[Rollout]]) -> None:
    outcomes = role_outcomes(a_team(), groups, SETTINGS, Shapley())
    credits = {role: sub_credit(groups, role, outcomes=outcomes.get(role, ())) for role in ROLES}
    for number, group in enumerate(groups):
        for position, one in enumerate(group):
            assert _part(credits["trader"], one) <= {outcomes["trader"][number][position]}
            assert _part(credits["market_analyst"], one) <= {one.shared_outcome}
    metrics = role_outcome_metrics(outcomes, credits)
    assert [metrics[f"{role}/credit/replayed"] for role in ROLES] == [0.0, 1.0, 1.0]
    assert 0.4 < metrics["trader/credit/mean"] < 0.6


def test_an_invalid_manager_leaves_everybody_neutral(
    groups: list[list[Rollout]],
) -> None:
    silent = [[replace(one, main=replace(one.main, valid=False)) for one in groups[0]]]
    assert role_outcomes(a_team(), silent, SETTINGS, Shapley())["trader"] == [[0.5] * len(groups[0])]


@pytest.mark.parametrize("share", [1.5, -1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float, groups: list[list[Rollout]]) -> None:
    class Wrong:
        def shares(self, value: object, players: object) -> dict[str, float]:
            return {"trader": share}

    with pytest.raises(UserError, match="trader a share of"):
        role_outcomes(a_team(), groups[:1], SETTINGS, Wrong())
