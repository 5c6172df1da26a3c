"""A further sub-agent is one role: nothing else has to know of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from cryptosentinel.agents import registry
from cryptosentinel.agents.instructions import callable_tools, instructions, opening, opening_results
from cryptosentinel.agents.manager import ASK_SEVERAL, AskAnalyst, AskSeveral
from cryptosentinel.agents.registry import MANAGER, ROLES, STANDARD, SUB_AGENTS, team_of
from cryptosentinel.agents.role import SubAgent, Tool
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments, render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team, TeamDecision
from cryptosentinel.tools import market
from cryptosentinel.tools.context import ToolContext
from simulator.errors import UserError
from tests.standard_limits import guard_limits
from tests.team_scenes import SayingEngine, account_in, ask, codec, context_at, decide, standard_team, submit, synthetic


def test_the_registry_fits_together() -> None:
    assert list(ROLES) == [MANAGER.key, *(role.key for role in SUB_AGENTS.values())]
    asked = {tool.name: tool for tool in MANAGER.tools if tool.run is None}
    several = asked.pop(ASK_SEVERAL)
    assert several.arguments is not AskSeveral and issubclass(several.arguments, AskSeveral)
    assert asked == {name: role.consult for name, role in SUB_AGENTS.items()}
    for name, sub_agent in SUB_AGENTS.items():
        assert name == sub_agent.consult.name == f"consult_{sub_agent.key}" and sub_agent.consult.run is None
    for role in ROLES.values():
        names = list(role.argument_types())
        assert len(names) == len(role.tools) + 1 and names[-1] == role.answer.name
        assert role.answer.run is None and role.max_turns > len(role.tools)
        assert [role.tool(name).name for name in names] == names
    # A sub-agent's tools are all computed: only the manager delegates.
    assert all(tool.run is not None for role in SUB_AGENTS.values() for tool in role.tools)


class Tone(Arguments):
    tone: float = Field(ge=-1, le=1)


NEWS_ANALYST = SubAgent(
    key="news_analyst",
    title="NewsAnalyst",
    system="You are NewsAnalyst.",
    max_turns=3,
    tools=(Tool("get_news", "Headlines.", NoArguments, market.news),),
    answer=Tool("submit_tone", "The tone.", Tone),
    brief=lambda context: f"{context.mask.alias(context.symbol)}: tone?",
    consult=Tool("consult_news_analyst", "How good the news are.", AskAnalyst),
)


@pytest.fixture
def with_news_analyst(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more role in the registry."""
    for name in ("_FOUND", "SUB_AGENTS", "ROLES", "SPEAKERS"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry.register(NEWS_ANALYST)


def test_a_fourth_sub_agent_is_one_role(with_news_analyst: None) -> None:
    engine = SayingEngine(
        {
            "manager": [ask("news_analyst", "C2"), ask("news_analyst", "C1"), submit()],
            "news_analyst": [render_call("get_news", {}), render_call("submit_tone", {"tone": 0.5}), "Nothing."],
        }
    )
    decision = decide(engine, schemas_in_prompt=True, roles=(*STANDARD, "news_analyst"))
    assert decision.manager.valid
    assert [(t.role, t.ordinal, t.brief, t.answer) for t in decision.transcripts[1:]] == [
        ("news_analyst", 0, {"symbol": "BBBUSDT"}, {"tone": 0.5}),
        ("news_analyst", 1, {"symbol": "AAAUSDT"}, None),
    ]


@pytest.mark.parametrize(("roles", "said"), [(("oracle",), "no role 'oracle'"), (("trader", "trader"), "named twice")])
def test_roles_that_cannot_be_are_refused(roles: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        registry.team_of(roles)


def decided(prompts: str, bar: int) -> TeamDecision:
    """The scripted team's decision on all coins at a bar."""
    engine = ScriptedEngine(codec(), expert_policies())
    team = Team(codec(), engine.policy_version, standard_team(prompts=prompts))
    market = synthetic()
    task = team.decide(market.view(bar), account_in(market, bar), market.symbols, Guard(guard_limits()), 1)
    return run_all([task], engine)[0]


@pytest.mark.parametrize("bar", range(130, 310, 60))
def test_the_rules_decide_alike_on_short_and_on_full_prompts(bar: int) -> None:
    short = decided("short", bar)
    full = decided("full", bar)
    assert full.orders == short.orders and full.manager.answer == short.manager.answer
    assert [one.answer for one in full.transcripts] == [one.answer for one in short.transcripts]
    # What everybody looks up first is in the first message: nobody calls a tool that computes.
    assert all("<tool_response>" not in codec().decode(list(one.ids)) for one in full.transcripts[1:])


def in_context(bar: int = 200) -> ToolContext:
    market, limits = synthetic(), guard_limits().numbers()
    given: dict[str, Any] = {
        "account": account_in(market, bar),
        "horizon_bars": 12,
        "side": "long",
        "exposure": 0.5,
        "limits": limits,
    }
    return context_at(market, bar, **given)


@pytest.mark.parametrize("key", ROLES)
def test_the_system_turn_is_the_same_in_every_decision(key: str) -> None:
    [text] = {instructions(ROLES[key], in_context(bar)) for bar in (150, 200, 250)}
    assert "horizon is 12 bars (2 days)" in text
    assert ("0.05 %" in text) == (key != "market_analyst"), "what trading costs is said to those whom it concerns"


def test_it_names_who_is_in_the_team_and_nobody_else() -> None:
    alone, pair = team_of(())[0].guide, team_of(("market_analyst",))[0].guide
    assert all(role.title in MANAGER.guide for role in ROLES.values()) and "Look up" not in MANAGER.guide
    assert "MarketAnalyst" in pair and "RiskAnalyst" not in pair and "Trader how" not in pair and "Look up" in pair
    assert "MarketAnalyst" not in alone and "ask_several" not in alone and "Look up" in alone


@pytest.mark.parametrize("key", ROLES)
def test_what_is_told_at_first_is_not_offered_again(key: str) -> None:
    role = ROLES[key]
    names = {tool["function"]["name"] for tool in callable_tools(role, ("C1",))}
    assert names == set(role.argument_types()) - set(role.opening)
    message = opening(role, in_context())
    assert message.startswith(role.brief(in_context()))
    assert {name for name, _, _ in opening_results(role, message)} == set(role.opening)


@pytest.mark.parametrize("key", ROLES)
def test_the_examples_are_valid_answers_that_differ(key: str) -> None:
    role = ROLES[key]
    said = [role.answer.arguments.model_validate(dict(example)) for example in role.examples]
    assert len({one.model_dump_json() for one in said}) == len(said) > 1, "one example alone is copied"


def test_the_last_turn_is_for_the_answer_and_what_was_asked_before_is_not_told_again() -> None:
    again = render_call("get_volatility", {})
    full, short = ([again] * 40 for _ in range(2))
    heard = {}
    for prompts, spoken in (("full", full), ("short", short)):
        engine = SayingEngine({"manager": [ask("market_analyst"), submit()], "market_analyst": spoken})
        decide(engine, prompts=prompts, schemas_in_prompt=True)
        heard[prompts] = [request for request in engine.requests if request.role == "market_analyst"]
    offered = [[tool["function"]["name"] for tool in request.tools] for request in heard["full"]]
    assert offered[-1] == ["submit_analysis"] and all(len(names) > 7 for names in offered[:-1])
    named = ["get_volatility" in names for names in offered[:3]]
    assert named == [True, True, False], "no grammar allows it a third time"
    assert len(offered) == 1 + 1 + 14 + 1 + 1, "asked, a repeat that costs a turn, 14 that cost none, one more, answer"
    results = [turn["content"] for turn in codec().messages(heard["full"][-1].ids) if turn["role"] == "tool"]
    assert "forecast" in results[0]
    assert results[1:-1] == ['{"note": "you have this result already; call submit_analysis"}'] * (len(results) - 2)
    assert results[-1].endswith('"last_turn": "call submit_analysis now"}')
    assert len({tuple(len(request.tools) for request in heard["short"])}) == 1  # nano's turns are as they were
    assert "already" not in codec().decode(list(heard["short"][-1].ids))


@pytest.mark.parametrize("repeats", [1, 2, 5, 13])
def test_a_repeated_call_costs_one_turn_however_often_it_is_made(repeats: int) -> None:
    others = [render_call("get_bars", {"timeframe": "1h", "count": count}) for count in range(2, 40)]
    engine = SayingEngine(
        {
            "manager": [ask("market_analyst"), submit()],
            "market_analyst": [render_call("get_volatility", {})] * (1 + repeats) + others,
        }
    )
    decide(engine, prompts="full", schemas_in_prompt=True)
    made = [request for request in engine.requests if request.role == "market_analyst"]
    assert len(made) == 14 + repeats - 1, "14 turns, of which the repeats took one"
    assert len({request.seed for request in made}) == len(made)
