"""Rollouts of one query share its state and scenarios and differ by their seeds alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.store.store import Store
from backend.training.algorithm.credit import RoleCredit
from backend.training.algorithm.team_credit import CREDITS, Counterfactual, Shapley
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.learning.training_metrics import (
    conversation_metrics,
    credit_metrics,
    format_counts,
    ordered_exposure,
    team_metrics,
)
from backend.training.recorder import TrainingRecorder
from backend.training.rollout import collect as rollouts_module
from backend.training.rollout.collect import Practice, Rollout, RolloutSettings, collect, practise
from backend.training.rollout.role_outcomes import role_outcome_metrics, role_outcomes
from backend.training.rollout.scoring import RolloutScorer
from backend.training.rollout.sharding import RolloutParts, Shard, ShardCollector, part, step_queries
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import Throughput
from cryptosentinel.scripted_reading import exchanges
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team, replay, replayable_roles
from simulator.errors import UserError
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Order
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.small_world import HORIZON, RUN, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.standard_settings import main_credit, sub_credit
from tests.team_scenes import standard_team

SETTINGS = RolloutSettings(6, 4, HORIZON, Costs(), 1.0, guard_limits())
POOL = QueryPool(small_market(), *TRAIN, HORIZON)
ENGINE = ScriptedEngine(make_byte_codec(), novice_policies())
NOVICES = Team(make_byte_codec(), ENGINE.policy_version, standard_team(horizon_bars=HORIZON))


def rolled(queries: list[Query], seed: int = 1, settings: RolloutSettings = SETTINGS) -> list[list[Rollout]]:
    """Rollouts of a team that answers at random."""
    return collect(NOVICES, ENGINE, queries, settings, seed)


def practised(queries: list[Query], seed: int = 1, settings: RolloutSettings = SETTINGS) -> list[list[Practice]]:
    """The same team's sub-agents, asked directly."""
    return practise(NOVICES, ENGINE, queries, settings, seed)


def _said(groups: list[list[Rollout]]) -> list[list[tuple[int, ...]]]:
    return [[tuple(one.main.ids.tolist()) for one in group] for group in groups]


def test_every_query_is_judged_once_and_all_its_rollouts_by_that_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    class Counting(RolloutScorer):
        def __init__(self, query: Query, *rest: object) -> None:
            judged.append(query.key)
            super().__init__(query, *rest)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(rollouts_module, "RolloutScorer", Counting)
    queries = POOL.draw(1, 0, 5, easy=False)
    groups = rolled(queries)
    assert judged == [query.key for query in queries]
    equal = 0
    for group in groups:
        for one in group:
            for other in group:
                if one.decision.orders == other.decision.orders:
                    assert one.outcome == other.outcome
                    equal += one is not other
    assert equal, "no two rollouts sent the same orders, so nothing was tested"


def test_a_rollout_depends_on_seed_query_and_number_only() -> None:
    queries = POOL.draw(1, 0, 4, easy=False)
    together = _said(rolled(queries))
    assert together == _said(rolled(queries))
    assert together[2:] == _said(rolled(queries[2:])), "which other queries there are does not matter"
    assert together != _said(rolled(queries, seed=2))
    assert any(len(set(group)) > 1 for group in together), "the rollouts of a query differ"


def test_trajectories_tell_what_was_said() -> None:
    for group in rolled(POOL.draw(1, 1, 6, easy=False)):
        for number, one in enumerate(group):
            assert one.number == number
            assert [call.role for call in one.subs] == [talk.role for talk in one.decision.transcripts[1:]]
            for call, talk in zip((one.main, *one.subs), one.decision.transcripts, strict=True):
                assert call.query == one.query.key
                assert tuple(call.ids.tolist()) == talk.ids
                assert call.valid == talk.valid == (call.format_score == 1.0)
                assert call.valid or call.expert is None
            ordinals = [(call.role, call.ordinal) for call in one.subs]
            assert len(set(ordinals)) == len(ordinals)


def test_metrics_are_means_over_the_rollouts(store: Store, tmp_path: Path) -> None:
    groups = rolled(POOL.draw(1, 2, 6, easy=False))
    every = [one for group in groups for one in group]
    recorder = TrainingRecorder(store, RUN, tmp_path)
    metrics = team_metrics(recorder.rollouts(2, 2, Shard(groups, []), {}))
    recorder.close()
    spoken = {role: [c for one in every for c in (one.main, *one.subs) if c.role == role] for role in ROLES}
    for role, calls in spoken.items():
        metrics |= conversation_metrics(role, calls, len(every))
    assert metrics["team/outcome"] == pytest.approx(sum(one.outcome.score for one in every) / len(every))
    assert metrics["team/hold_share"] == sum(not one.decision.orders for one in every) / len(every)
    assert metrics["market_analyst/calls"] == sum(
        call.role == "market_analyst" for one in every for call in one.subs
    ) / len(every)
    assert format_counts(groups)["manager"] == (len(every), len(every)) and metrics["manager/valid"] == 1.0
    exposures = [ordered_exposure(one) for one in every]
    assert metrics["team/exposure"] == pytest.approx(sum(map(abs, exposures)) / len(every))
    assert metrics["team/tokens"] == sum(len(c.ids) for one in every for c in (one.main, *one.subs))
    assert team_metrics([]) == {} and conversation_metrics("trader", [], 4) == {}
    credit = main_credit(groups)
    paid = credit_metrics("manager", credit, (0.1, 0.9))
    assert paid["manager/reward/mean"] == pytest.approx(0.1 + 0.9 * metrics["team/outcome"])
    assert paid["manager/degenerate_share"] == credit.degenerate / 6


def test_in_practice_each_sub_agent_gets_one_question_a_query_that_all_its_rollouts_share() -> None:
    queries = POOL.draw(1, 3, 8, easy=True)
    groups = practised(queries)
    sides = set()
    for query, group in zip(queries, groups, strict=True):
        assert [one.number for one in group] == list(range(SETTINGS.rollouts_per_query))
        for one in group:
            assert [call.role for call in one.subs] == ["market_analyst", "risk_analyst", "trader"]
            assert [talk.brief for talk in one.transcripts] == [talk.brief for talk in group[0].transcripts]
            assert {call.query for call in one.subs} == {query.key}
            assert one.shared_outcome == 0.0, "there was no team whose outcome could be shared"
        sides.add(group[0].transcripts[1].brief["side"])
    assert sides == {"long", "short"}
    assert any(len({call.ids.tobytes() for one in group for call in one.subs[:1]}) > 1 for group in groups)
    again = practised(queries[3:])
    assert [[talk.ids for talk in one.transcripts] for group in again for one in group] == [
        [talk.ids for talk in one.transcripts] for group in groups[3:] for one in group
    ], "which other queries there are does not matter"


@pytest.mark.parametrize(("belief", "least", "most"), [((0.8, 0.1, 0.1), 0.0, 0.3), ((0.1, 0.2, 0.7), 0.7, 1.0)])
def test_practice_proposes_the_likelier_side_more_often(belief: tuple[float, ...], least: float, most: float) -> None:
    queries = [replace(query, belief=belief) for query in POOL.draw(1, 0, 40, easy=False)]
    sides = [
        transcript.brief["side"]
        for group in practised(queries)
        for transcript in group[0].transcripts
        if "side" in transcript.brief
    ]
    assert len(sides) == 80 and least <= np.mean([side == "long" for side in sides]) <= most
    without = [replace(query, belief=None) for query in queries]
    drawn = [one.brief["side"] for group in practised(without) for one in group[0].transcripts if "side" in one.brief]
    assert 0.4 < np.mean([side == "long" for side in drawn]) < 0.6


def test_practice_asks_about_whole_positions() -> None:
    groups = practised(POOL.draw(1, 0, 100, easy=False))
    asked = [one.brief["exposure"] for group in groups for one in group[0].transcripts if "exposure" in one.brief]
    assert asked == [1.0] * 200


OF_SHARDS = RolloutSettings(3, 4, 6, Costs(), 1.0, guard_limits())
WINDOWS = QueryPool(generate(SyntheticConfig(bars=500, seed=2)), 0, 480, 6)
STAGES = {1: Stage(1, True, (1.0, 0.0), (0.1, 0.0, 0.9)), 2: Stage(2, False, (0.1, 0.9), (0.1, 0.4, 0.5))}


class NoCache:
    """The publisher of an engine whose weights stay as they are."""

    def publish(self, roles: Iterable[str]) -> None:
        pass

    def forget(self) -> None:
        pass


def team(*roles: str) -> Team:
    return Team(make_byte_codec(), lambda role: "v", standard_team(horizon_bars=6, roles=roles))


def state(query: Query) -> tuple[str, int, float]:
    return query.symbol, query.bar, query.exposure


def practising(windows: int) -> dict[str, int]:
    """As many further windows for every sub-agent."""
    return dict.fromkeys(("market_analyst", "risk_analyst", "trader"), windows) if windows else {}


@given(
    st.integers(1, 9), st.integers(0, 9), st.integers(1, 5), st.sampled_from([1, 2]), st.integers(0, 50),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_practice_adds_windows_and_changes_no_other(
    queries: int, practice: int, shards: int, stage: int, step: int
) -> None:
    config = TrainingConfig(queries_per_step=queries, shards=shards, practice=practising(practice))
    everybody = team("market_analyst", "trader")
    asked, practised = step_queries(WINDOWS, config, step, STAGES[stage], everybody)
    without = config.model_copy(update={"practice": {}})
    asked_alone, practised_alone = step_queries(WINDOWS, without, step, STAGES[stage], everybody)
    assert [state(one) for one in asked] == [state(one) for one in asked_alone]
    assert [state(one) for one in practised[: len(practised_alone)]] == [state(one) for one in practised_alone]
    assert len(practised) - len(practised_alone) == practice
    later = step_queries(WINDOWS, config, step + 1, STAGES[stage], everybody)[1]
    assert practice < 3 or [state(one) for one in later] != [state(one) for one in practised]
    numbers = [one.number for one in (*asked, *practised)]
    assert len(set(numbers)) == len(numbers)
    assert [one for number in range(shards) for one in part(practised, number, shards)] == practised


def test_practice_is_drawn_from_all_windows() -> None:
    config = TrainingConfig(queries_per_step=1, practice=practising(200))
    _, practised = step_queries(WINDOWS, config, 0, STAGES[1], team("market_analyst"))
    easy = {state(one)[:2] for seed in range(20) for one in WINDOWS.draw(seed, 0, 200, easy=True)}
    assert 0.3 < sum(state(one)[:2] in easy for one in practised) / len(practised) < 0.7


def test_who_is_frozen_does_not_practise_and_further_windows_are_for_whom_they_are_meant() -> None:
    config = TrainingConfig(queries_per_step=8, freeze=("trader",))
    everybody = team("market_analyst", "risk_analyst", "trader")

    def roll_out(practice: dict[str, int]) -> Shard:
        chosen = config.model_copy(update={"practice": practice})
        collector = ShardCollector(
            RolloutParts(chosen, OF_SHARDS, everybody, ENGINE, cast(RolePolicies, None), WINDOWS, WINDOWS), NoCache()
        )
        [queries] = collector.queries(0, STAGES[1])
        return collector.roll_out(0, queries, Throughput())

    shard = roll_out({"market_analyst": 3})
    speakers = [{call.role for one in group for call in one.subs} for group in shard.practice]
    assert speakers == [{"market_analyst", "risk_analyst"}] * 6 + [{"market_analyst"}] * 3
    assert {len(group) for group in shard.practice} == {OF_SHARDS.rollouts_per_query}
    # What is practised does not depend on who else practises.
    alone = roll_out(practising(3))
    for group, more in zip(shard.practice, alone.practice, strict=True):
        for one, other in zip(group, more, strict=True):
            said = {call.role: call.ids.tolist() for call in other.subs}
            assert all(said[call.role] == call.ids.tolist() for call in one.subs)


def test_windows_on_which_nobody_practises_are_no_windows() -> None:
    config = TrainingConfig(queries_per_step=8, practice={"trader": 3}, freeze=("trader",))
    assert len(step_queries(WINDOWS, config, 0, STAGES[1], team("market_analyst", "trader"))[1]) == 6
    assert step_queries(WINDOWS, config, 0, STAGES[1], team("trader"))[1] == []


PLAYERS = ("market_analyst", "risk_analyst", "trader")
Game = dict[frozenset[str], float]
coalitions = [frozenset(some) for size in range(4) for some in combinations(PLAYERS, size)]
games = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8).map(lambda row: dict(zip(coalitions, row, strict=True)))


def _by_orders(game: Game, player: str) -> float:
    """The Shapley value by its other definition: the mean over all orders of arrival of what the player adds."""
    added = []
    for order in permutations(PLAYERS):
        before = frozenset(order[: order.index(player)])
        added.append(game[before | {player}] - game[before])
    return sum(added) / len(added)


@given(games)
def test_shapley_is_the_mean_over_orders_of_arrival_and_adds_up(game: Game) -> None:
    found = Shapley().shares(game.__getitem__, PLAYERS)
    for player in PLAYERS:
        assert found[player] == pytest.approx(_by_orders(game, player), abs=1e-12)
        assert -1.0 - 1e-12 <= found[player] <= 1.0 + 1e-12
    assert sum(found.values()) == pytest.approx(game[frozenset(PLAYERS)] - game[frozenset()], abs=1e-12)


@given(games, st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3))
def test_without_interaction_both_are_what_the_role_adds(game: Game, worth: list[float]) -> None:
    by_role = dict(zip(PLAYERS, worth, strict=True))
    additive = {some: 0.5 + sum(by_role[role] for role in some) for some in coalitions}
    assert Shapley().shares(additive.__getitem__, PLAYERS) == pytest.approx(by_role, abs=1e-12)
    assert Counterfactual().shares(additive.__getitem__, PLAYERS) == pytest.approx(by_role, abs=1e-12)
    whole = frozenset(PLAYERS)
    assert Counterfactual().shares(game.__getitem__, PLAYERS) == {
        one: game[whole] - game[whole - {one}] for one in PLAYERS
    }


LIMITED = RolloutSettings(6, 4, HORIZON, Costs(), 1.0, guard_limits(max_exposure=0.9))


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
    return collect(a_team(), an_engine(), POOL.draw(1, 0, 6, easy=False), LIMITED, 1)


def again(one: Rollout, roles: tuple[str, ...]) -> list[Order]:
    return replay(a_team(), one.decision, one.query.view(), one.query.account(), Guard(LIMITED.limits), roles)


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
    outcomes = role_outcomes(a_team(), groups, LIMITED, CREDITS[method]())
    assert set(outcomes) == {"risk_analyst", "trader"}, "advice cannot be replayed and is broadcast"
    moved = 0
    for number, group in enumerate(groups):
        scorer = RolloutScorer(group[0].query, LIMITED.scenario_paths, HORIZON, LIMITED.costs, 1.0)
        for position, one in enumerate(group):
            risk, trader = (2.0 * outcomes[role][number][position] - 1.0 for role in ("risk_analyst", "trader"))
            v = {some: scorer.outcome(again(one, some)).score for some in [(), PLAYERS[1:], PLAYERS[1:2], PLAYERS[2:]]}
            if method == "shapley":
                assert risk + trader == pytest.approx(v[PLAYERS[1:]] - v[()], abs=1e-9)
            else:
                assert risk == pytest.approx(v[PLAYERS[1:]] - v[PLAYERS[2:]], abs=1e-9)
                assert trader == pytest.approx(v[PLAYERS[1:]] - v[PLAYERS[1:2]], abs=1e-9)
            moved += abs(risk) > 1e-6 or abs(trader) > 1e-6
    assert moved >= 10


def test_the_credited_outcome_is_the_outcome_part_of_a_sub_agents_reward(groups: list[list[Rollout]]) -> None:
    outcomes = role_outcomes(a_team(), groups, LIMITED, Shapley())
    credits = {role: sub_credit(groups, role, outcomes=outcomes.get(role, ())) for role in PLAYERS}
    for number, group in enumerate(groups):
        for position, one in enumerate(group):
            assert _part(credits["trader"], one) <= {outcomes["trader"][number][position]}
            assert _part(credits["market_analyst"], one) <= {one.shared_outcome}
    metrics = role_outcome_metrics(outcomes, credits)
    assert [metrics[f"{role}/credit/replayed"] for role in PLAYERS] == [0.0, 1.0, 1.0]
    assert 0.4 < metrics["trader/credit/mean"] < 0.6


def test_an_invalid_manager_leaves_everybody_neutral(groups: list[list[Rollout]]) -> None:
    silent = [[replace(one, main=replace(one.main, valid=False)) for one in groups[0]]]
    assert role_outcomes(a_team(), silent, LIMITED, Shapley())["trader"] == [[0.5] * len(groups[0])]


@pytest.mark.parametrize("share", [1.5, -1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float, groups: list[list[Rollout]]) -> None:
    class Wrong:
        def shares(self, value: object, players: object) -> dict[str, float]:
            return {"trader": share}

    with pytest.raises(UserError, match="trader a share of"):
        role_outcomes(a_team(), groups[:1], LIMITED, Wrong())
