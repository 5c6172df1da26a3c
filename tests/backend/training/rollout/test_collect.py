"""Rollouts of one query share its state and scenarios and differ by their seeds alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backend.store.store import Store
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
from backend.training.rollout.scoring import RolloutScorer
from backend.training.rollout.sharding import Shard
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from simulator.exchange.costs import Costs
from tests.small_world import HORIZON, RUN, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.standard_settings import main_credit
from tests.team_scenes import standard_team

SETTINGS = RolloutSettings(6, 4, HORIZON, Costs(), 1.0, guard_limits())
POOL = QueryPool(small_market(), *TRAIN, HORIZON)


def rolled(queries: list[Query], seed: int = 1, settings: RolloutSettings = SETTINGS) -> list[list[Rollout]]:
    """Rollouts of a team that answers at random."""
    engine = ScriptedEngine(make_byte_codec(), novice_policies())
    team = Team(make_byte_codec(), engine.policy_version, standard_team(horizon_bars=HORIZON))
    return collect(team, engine, queries, settings, seed)


def practised(queries: list[Query], seed: int = 1, settings: RolloutSettings = SETTINGS) -> list[list[Practice]]:
    """The same team's sub-agents, asked directly."""
    engine = ScriptedEngine(make_byte_codec(), novice_policies())
    team = Team(make_byte_codec(), engine.policy_version, standard_team(horizon_bars=HORIZON))
    return practise(team, engine, queries, settings, seed)


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
    recorder = TrainingRecorder(store, RUN, tmp_path, HORIZON)
    metrics = team_metrics(recorder.rollouts(2, 2, Shard(groups, []), {}), ROLES)
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
    assert team_metrics([], ROLES) == {} and conversation_metrics("trader", [], 4) == {}
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
