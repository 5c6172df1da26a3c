"""The full prompt: what it says, that it is the same in every decision, and that it changes no decision by rule."""

from __future__ import annotations

import pytest

from cryptosentinel.agents.instructions import callable_tools, instructions, opening, opening_results
from cryptosentinel.agents.registry import MANAGER, ROLES, team_of
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team, TeamDecision
from cryptosentinel.tools.context import ToolContext
from tests.standard_limits import guard_limits
from tests.team_scenes import SayingEngine, account_in, ask, codec, decide, standard_team, submit, synthetic


def decided(prompts: str, bar: int) -> TeamDecision:
    """The scripted team's decision on all coins at a bar."""
    engine = ScriptedEngine(codec(), expert_policies())
    team = Team(codec(), engine.policy_version, standard_team(prompts=prompts))
    market = synthetic()
    task = team.decide(market.view(bar), account_in(market, bar), market.symbols, Guard(guard_limits()), 1)
    return run_all([task], engine)[0]


@pytest.mark.parametrize("bar", range(130, 310, 20))
def test_the_rules_decide_alike_on_short_and_on_full_prompts(bar: int) -> None:
    short = decided("short", bar)
    full = decided("full", bar)
    assert full.orders == short.orders and full.manager.answer == short.manager.answer
    assert [one.answer for one in full.transcripts] == [one.answer for one in short.transcripts]
    # What everybody looks up first is in the first message: nobody calls a tool that computes.
    assert all("<tool_response>" not in codec().decode(list(one.ids)) for one in full.transcripts[1:])


def in_context(bar: int = 200, masked: bool = True) -> ToolContext:
    market = synthetic()
    return ToolContext(
        view=market.view(bar),
        account=account_in(market, bar),
        mask=Mask(market.symbols, masked),
        symbols=market.symbols,
        horizon_bars=12,
        share=1.0,
        symbol=market.symbols[0],
        side="long",
        exposure=0.5,
        limits=guard_limits().numbers(),
    )


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


def test_a_coin_that_is_not_masked_is_named_in_the_example() -> None:
    context = in_context(masked=False)
    assert '"symbol": "AAAUSDT"' in instructions(MANAGER, context) and '"C1"' not in instructions(MANAGER, context)


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
