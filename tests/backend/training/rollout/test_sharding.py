"""Which windows a step has, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config.training import TrainingConfig
from backend.policies.role_policies import RolePolicies
from backend.training.curriculum.curriculum import Stage
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.rollout.collect import RolloutSettings
from backend.training.rollout.sharding import RolloutParts, Shard, ShardCollector, part, step_queries
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import Throughput
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from simulator.exchange.costs import Costs
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import standard_team

ENGINE = ScriptedEngine(make_byte_codec(), novice_policies())
SETTINGS = RolloutSettings(3, 4, 6, Costs(), 1.0, guard_limits())
POOL = QueryPool(generate(SyntheticConfig(bars=500, seed=2)), 0, 480, 6)
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
    asked, practised = step_queries(POOL, config, step, STAGES[stage], everybody)
    without = config.model_copy(update={"practice": {}})
    asked_alone, practised_alone = step_queries(POOL, without, step, STAGES[stage], everybody)
    assert [state(one) for one in asked] == [state(one) for one in asked_alone]
    assert [state(one) for one in practised[: len(practised_alone)]] == [state(one) for one in practised_alone]
    assert len(practised) - len(practised_alone) == practice
    numbers = [one.number for one in (*asked, *practised)]
    assert len(set(numbers)) == len(numbers)
    assert [one for number in range(shards) for one in part(practised, number, shards)] == practised


def test_practice_is_drawn_from_all_windows() -> None:
    config = TrainingConfig(queries_per_step=1, practice=practising(200))
    _, practised = step_queries(POOL, config, 0, STAGES[1], team("market_analyst"))
    easy = {state(one)[:2] for seed in range(20) for one in POOL.draw(seed, 0, 200, easy=True)}
    assert 0.3 < sum(state(one)[:2] in easy for one in practised) / len(practised) < 0.7


def test_who_is_frozen_does_not_practise_and_further_windows_are_for_whom_they_are_meant() -> None:
    config = TrainingConfig(queries_per_step=8, freeze=("trader",))
    everybody = team("market_analyst", "risk_analyst", "trader")

    def roll_out(practice: dict[str, int]) -> Shard:
        chosen = config.model_copy(update={"practice": practice})
        collector = ShardCollector(
            RolloutParts(chosen, SETTINGS, everybody, ENGINE, cast(RolePolicies, None), POOL, POOL), NoCache()
        )
        [queries] = collector.queries(0, STAGES[1])
        return collector.roll_out(0, queries, Throughput())

    shard = roll_out({"market_analyst": 3})
    speakers = [{call.role for one in group for call in one.subs} for group in shard.practice]
    assert speakers == [{"market_analyst", "risk_analyst"}] * 6 + [{"market_analyst"}] * 3
    assert {len(group) for group in shard.practice} == {SETTINGS.rollouts_per_query}
    # What is practised does not depend on who else practises.
    alone = roll_out(practising(3))
    for group, more in zip(shard.practice, alone.practice, strict=True):
        for one, other in zip(group, more, strict=True):
            said = {call.role: call.ids.tolist() for call in other.subs}
            assert all(said[call.role] == call.ids.tolist() for call in one.subs)


def test_windows_on_which_nobody_practises_are_no_windows() -> None:
    config = TrainingConfig(queries_per_step=8, practice={"trader": 3}, freeze=("trader",))
    assert len(step_queries(POOL, config, 0, STAGES[1], team("market_analyst", "trader"))[1]) == 6
    assert step_queries(POOL, config, 0, STAGES[1], team("trader"))[1] == []


@pytest.mark.parametrize("stage", [1, 2])
def test_steps_practise_on_windows_of_their_own(stage: int) -> None:
    config = TrainingConfig(queries_per_step=1, practice=practising(12))
    first, second = (step_queries(POOL, config, step, STAGES[stage], team("trader"))[1] for step in (0, 1))
    assert [state(one) for one in first] != [state(one) for one in second]
