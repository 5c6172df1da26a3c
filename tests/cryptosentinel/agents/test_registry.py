"""A further sub-agent is one role: nothing else has to know of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import Field

from cryptosentinel.agents import registry
from cryptosentinel.agents.manager import ASK_SEVERAL, AskAnalyst, AskSeveral
from cryptosentinel.agents.registry import MANAGER, ROLES, STANDARD, SUB_AGENTS
from cryptosentinel.agents.role import SubAgent, Tool
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments, render_call
from cryptosentinel.tools import market
from simulator.errors import UserError
from tests.team_scenes import SayingEngine, ask, decide, submit


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


def test_without_its_entry_it_is_unknown() -> None:
    decision = decide(SayingEngine({"manager": [ask("news_analyst")]}))
    assert decision.events[0].startswith("manager#0: unknown_tool")


@pytest.mark.parametrize("key", ["trader", "manager", "tone_analyst"])
def test_a_role_under_another_name_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="its key must be a name of its own"):
        registry.register(replace(NEWS_ANALYST, key=key))


def test_a_smaller_team_cannot_ask_who_is_not_there() -> None:
    engine = SayingEngine({"manager": [ask("risk_analyst"), submit()]})
    decision = decide(engine, roles=("market_analyst",))
    assert decision.events[0].startswith("manager#0: unknown_tool")


@pytest.mark.parametrize(("roles", "said"), [(("oracle",), "no role 'oracle'"), (("trader", "trader"), "named twice")])
def test_roles_that_cannot_be_are_refused(roles: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        registry.team_of(roles)
