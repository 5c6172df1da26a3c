"""A further sub-agent is one role and one entry: nothing else has to know of it."""

from __future__ import annotations

import pytest
from pydantic import Field

import cryptosentinel.team as team_module
from cryptosentinel.agents import manager, registry
from cryptosentinel.agents.manager import AskAnalyst
from cryptosentinel.agents.registry import MANAGER, ROLES, SUB_AGENTS
from cryptosentinel.protocol import Arguments, NoArguments, render_call
from cryptosentinel.roles import SubAgent, Tool
from cryptosentinel.tools import market as market_tools
from tests.team_scenes import SayingEngine, ask, decide, submit


def test_the_registry_fits_together() -> None:
    assert list(ROLES) == [MANAGER.key, *(role.key for role in SUB_AGENTS.values())]
    assert {tool.name: tool for tool in MANAGER.tools} == {name: role.consult for name, role in SUB_AGENTS.items()}
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
    """How good the news are."""

    tone: float = Field(ge=-1, le=1)


NEWS_ANALYST = SubAgent(
    key="news_analyst",
    title="NewsAnalyst",
    system="You are NewsAnalyst.",
    tools=(Tool("get_news", "Headlines.", NoArguments, market_tools.news),),
    answer=Tool("submit_tone", "The tone.", Tone),
    max_turns=3,
    brief=lambda context: f"{context.mask.alias(context.symbol)}: tone?",
    consult=Tool("consult_news_analyst", "How good the news are.", AskAnalyst),
)


def test_a_fourth_sub_agent_is_one_role_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    # What `registry.py` makes of its entries, with one more of them.
    entries = (*registry._TEAM, NEWS_ANALYST)
    monkeypatch.setattr(team_module, "SUB_AGENTS", {role.consult.name: role for role in entries})
    monkeypatch.setattr(team_module, "MANAGER", manager.role_over(entries))
    engine = SayingEngine(
        {
            "manager": [ask("news_analyst", "C2"), ask("news_analyst", "C1"), submit()],
            "news_analyst": [render_call("get_news", {}), render_call("submit_tone", {"tone": 0.5}), "Nothing."],
        }
    )
    decision = decide(engine, schemas_in_prompt=True)
    assert decision.manager.valid
    assert [(t.role, t.ordinal, t.brief, t.answer) for t in decision.transcripts[1:]] == [
        ("news_analyst", 0, {"symbol": "BBBUSDT"}, {"tone": 0.5}),
        ("news_analyst", 1, {"symbol": "AAAUSDT"}, None),
    ]


def test_without_its_entry_it_is_unknown() -> None:
    decision = decide(SayingEngine({"manager": [ask("news_analyst")]}))
    assert decision.events[0].startswith("manager#0: unknown_tool")
