"""Teams without some sub-agent or any: the manager looks up what nobody is there for, and nothing else changes."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.manager import MAX_TURNS, OfCoin
from cryptosentinel.agents.registry import SPEAKERS, STANDARD, roles_of, team_of
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.team import TeamDecision
from tests.team_scenes import (
    SayingEngine,
    codec,
    decide,
    held_after,
    hold,
    submit,
    synthetic,
)

SMALLER = [keys for size in range(3) for keys in combinations(STANDARD, size)]
KNOW_BY_LOOKING = {"market_analyst": "get_trend", "risk_analyst": "get_risk"}


@pytest.mark.parametrize("roles", SMALLER, ids="-".join)
@settings(max_examples=12, deadline=None)
@given(
    bar=st.integers(150, 319),
    seed=st.integers(1, 4),
    held=st.sampled_from([0.0, 0.5, -1.0]),
    horizon=st.sampled_from([18, 240]),  # the longer one has losses that RiskAnalyst cuts
)
def test_a_smaller_scripted_team_takes_the_same_positions(
    roles: tuple[str, ...], bar: int, seed: int, held: float, horizon: int
) -> None:
    market = synthetic(seed=seed, coins=1)
    exposures = {market.symbols[0]: held}
    found = []
    for keys in (STANDARD, roles):
        engine = ScriptedEngine(codec(), expert_policies(keys))
        decision = decide(engine, market=market, bar=bar, exposures=exposures, roles=keys, horizon_bars=horizon)
        assert decision.events == []
        assert {transcript.role for transcript in decision.transcripts} <= set(roles_of(keys))
        found.append(held_after(decision.orders, market, bar, exposures))
    assert found[1] == pytest.approx(found[0])


WITHOUT_AN_ANALYST = [roles for roles in SMALLER if not {"market_analyst", "risk_analyst"} <= set(roles)]


@pytest.mark.parametrize("portfolio", [False, True], ids=["coin by coin", "portfolio"])
@pytest.mark.parametrize("roles", WITHOUT_AN_ANALYST, ids="-".join)
def test_what_is_not_inherited_nobody_looks_up(roles: tuple[str, ...], portfolio: bool) -> None:
    manager, _ = team_of(roles, portfolio, inherits=False)
    names = {tool.name for tool in manager.tools}
    assert not names & set(KNOW_BY_LOOKING.values()) and "look up" not in f"{manager.system} {manager.guide}".lower()
    asked, traded = set(), 0
    for seed in range(30):
        for policies in (expert_policies, novice_policies):
            engine = ScriptedEngine(codec(), policies(roles, portfolio=portfolio, inherits=False))
            decision = decide(engine, bar=150 + seed, seed=seed, roles=roles, inherit_tools=False, portfolio=portfolio)
            assert decision.events == []
            asked |= {transcript.role for transcript in decision.transcripts}
            if policies is expert_policies and "market_analyst" not in roles:
                assert decision.orders == []  # the rules know no direction
            traded += bool(decision.orders)
    assert asked == set(roles_of(roles)) and traded > 0


def test_where_nobody_can_know_a_direction_the_teacher_of_lots_draws_one() -> None:
    """Both sides come, and what is held is what was asked about."""
    roles, held = ("risk_analyst", "trader"), []
    engine = ScriptedEngine(codec(), expert_policies(roles, teacher="random_all", inherits=False))
    for number in range(120):
        decision = decide(
            engine, market=synthetic(coins=1), bar=150 + number, seed=number, roles=roles, inherit_tools=False
        )
        assert decision.events == []
        manager = next(one for one in decision.transcripts if one.role == "manager")
        asked, _, answer = codec().decode(list(manager.ids)).partition("submit_decision")
        sides = re.findall(r'"side": ?"(long|short)"', answer)
        if sides:  # else it keeps what it holds
            assert set(re.findall(r'"side": ?"(\w+)"', asked)) <= set(sides)
        held += sides
    assert held.count("long") > 15 and held.count("short") > 15


@pytest.mark.parametrize("roles", SMALLER, ids="-".join)
def test_the_manager_has_the_tools_of_who_is_absent_and_no_others(roles: tuple[str, ...]) -> None:
    manager, sub_agents = team_of(roles)
    names = {tool.name for tool in manager.tools}
    assert [one.key for one in sub_agents.values()] == list(roles)
    assert {name for name in names if name.startswith("consult_")} == set(sub_agents)
    assert ("ask_several" in names) == bool(roles)
    for role, tool in KNOW_BY_LOOKING.items():
        assert (tool in names) == (role not in roles)
    assert ("RiskAnalyst" in manager.system) == ("risk_analyst" in roles)
    looks_up = any(tool.name != "get_limits" and tool.run is not None for tool in manager.tools)
    assert (manager.max_turns > MAX_TURNS) == looks_up == bool({"market_analyst", "risk_analyst"} - set(roles))
    assert manager.max_turns > len(manager.tools)


def test_whatever_a_manager_may_call_is_known_to_who_reads_it() -> None:
    known = SPEAKERS["manager"].argument_types()
    for roles in (*SMALLER, STANDARD):
        assert known.keys() >= team_of(roles)[0].argument_types().keys()


def test_a_single_agent_looks_up_the_coin_that_it_names() -> None:
    """What it reads of a coin is what MarketAnalyst reads of it, and RiskAnalyst of the same side."""
    said = [
        render_call("get_trend", {"symbol": "C2"}),
        render_call("get_trend", {}),
        render_call("get_risk", {"symbol": "C2", "side": "short"}),
        submit(hold("C2", "short", 0.5)),
    ]
    alone = decide(SayingEngine({"manager": said}), roles=())
    texts = [
        render_call("consult_market_analyst", {"symbol": "C2"}),
        render_call("consult_market_analyst", {"symbol": "C1"}),
        render_call("consult_risk_analyst", {"symbol": "C2", "side": "short", "exposure": 0.5}),
        submit(hold("C2", "short", 0.5)),
    ]
    looks = [render_call("get_trend", {}), render_call("submit_analysis", {"up": 1, "flat": 0, "down": 0})]
    rules = [render_call("get_risk", {}), render_call("submit_verdict", {"verdict": "approve", "loss": 1})]
    together = decide(SayingEngine({"manager": texts, "market_analyst": looks * 2, "risk_analyst": rules}))
    assert alone.events == together.events == [] and alone.orders == together.orders
    heard = [tool_results(alone, 0)[:3], [tool_results(together, number)[0] for number in (1, 2, 3)]]
    assert heard[0] == heard[1] and len(set(heard[0])) == 3


def tool_results(decision: TeamDecision, number: int) -> list[str]:
    """What the tools answered in a conversation of the decision."""
    text = codec().decode(list(decision.transcripts[number].ids))
    return [part.partition("</tool_response>")[0] for part in text.split("<tool_response>")[1:]]


def test_a_single_agent_asks_nobody_and_names_no_other_coin() -> None:
    for said, reason in (
        (render_call("consult_market_analyst", {"symbol": "C1"}), "unknown_tool"),
        (render_call("get_trend", {"symbol": "C9"}), "unknown_symbol"),
        (render_call("get_risk", {"side": "flat"}), "bad_arguments"),
    ):
        assert decide(SayingEngine({"manager": [said]}), roles=()).events[0].startswith(f"manager#0: {reason}")
    assert issubclass(team_of(())[0].argument_types()["what_if"], OfCoin)
