"""Sub-agents that are asked about all coins of a portfolio in one conversation: who is asked, and what binds."""

from __future__ import annotations

from typing import Any

import pytest

from cryptosentinel.agents.instructions import callable_tools, instructions, listed_tools, opening, opening_results
from cryptosentinel.agents.joint import answers_of, joint, of_several
from cryptosentinel.agents.registry import ROLES, SUB_AGENTS, team_of
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.team import Team, TeamDecision
from cryptosentinel.tools.context import ToolContext
from tests.standard_limits import guard_limits
from tests.team_scenes import SayingEngine, account_in, codec, decide, hold, standard_team, submit, synthetic

JOINT: dict[str, Any] = {"prompts": "full", "schemas_in_prompt": True, "portfolio": True}


def on_positions(*positions: dict[str, Any], ask: tuple[str, ...] = ("risk_analyst",)) -> str:
    return render_call("consult_on_positions", {"ask": list(ask), "positions": list(positions)})


def long(symbol: str, exposure: float = 0.4) -> dict[str, Any]:
    return {"symbol": symbol, "side": "long", "exposure": exposure}


def each(name: str, *answers: dict[str, Any]) -> str:
    return render_call(f"{name}_each", {"answers": list(answers)})


def verdict(symbol: str, said: str = "approve", **more: Any) -> dict[str, Any]:
    return {"symbol": symbol, "verdict": said, "loss": 5, **more}


def by_rule(prompts: str, bar: int, policies: Any = expert_policies, roles: Any = None) -> TeamDecision:
    market = synthetic()
    changes = {} if roles is None else {"roles": roles}
    settings = standard_team(**{**JOINT, "prompts": prompts, "schemas_in_prompt": prompts == "full", **changes})
    engine = ScriptedEngine(codec(), policies(settings.roles, portfolio=True))
    team = Team(codec(), engine.policy_version, settings)
    held = {"AAAUSDT": 0.3, "BBBUSDT": -0.2} if bar % 40 else {}
    task = team.decide(market.view(bar), account_in(market, bar, held), market.symbols, Guard(guard_limits()), 1)
    return run_all([task], engine)[0]


@pytest.mark.parametrize("bar", range(140, 310, 40))
def test_the_rules_decide_alike_on_short_and_on_full_prompts(bar: int) -> None:
    short, full = by_rule("short", bar), by_rule("full", bar)
    assert full.events == [] and full.orders == short.orders and full.manager.answer == short.manager.answer
    # One conversation a role, whatever the number of coins.
    assert len({one.role for one in full.transcripts}) == len(full.transcripts)


@pytest.mark.parametrize("roles", [(), ("market_analyst",), ("risk_analyst",), ("trader", "market_analyst")])
def test_smaller_teams_decide_so_too(roles: tuple[str, ...]) -> None:
    short, full = by_rule("short", 200, roles=roles), by_rule("full", 200, roles=roles)
    assert full.events == [] and full.manager.answer == short.manager.answer


@pytest.mark.parametrize("bar", range(140, 310, 40))
def test_what_a_novice_says_is_valid(bar: int) -> None:
    assert by_rule("full", bar, novice_policies).events == []


def test_a_verdict_binds_its_own_coin_and_a_coin_without_one_may_not_grow() -> None:
    said = {
        "manager": [
            on_positions(long("C1"), long("C2"), long("C3")),
            submit(hold("C1", "long", 0.4), hold("C2", "long", 0.4), hold("C3", "long", 0.4)),
        ],
        "risk_analyst": [each("submit_verdict", verdict("C2", "reduce", to=0.1), verdict("C1"))],
    }
    decision = decide(SayingEngine(said), **JOINT)
    assert {(ruling.symbol, ruling.verdict, ruling.allowed) for ruling in decision.rulings} == {
        ("BBBUSDT", "reduce", 0.1),
        ("CCCUSDT", "invalid", 0.0),
    }
    transcript = decision.transcripts[1]
    answers = answers_of(ROLES["risk_analyst"], transcript.brief, transcript.answer)
    assert [(asked["symbol"], answer is None) for asked, answer in answers] == [
        ("AAAUSDT", False), ("BBBUSDT", False), ("CCCUSDT", True)
    ]  # fmt: skip
    heard = codec().decode(list(decision.manager.ids))
    assert '"C3": {"error": "no valid answer"}' in heard


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([verdict("C1"), verdict("C1")], "bad_arguments"),
        ([verdict("C3")], "unknown_symbol"),  # a coin, but not one of the question
        ([], "bad_arguments"),
    ],
)
def test_answers_about_other_coins_are_refused(answers: list[dict[str, Any]], code: str) -> None:
    said = {"manager": [on_positions(long("C1"), long("C2")), submit()]}
    decision = decide(SayingEngine({**said, "risk_analyst": [each("submit_verdict", *answers)]}), **JOINT)
    assert decision.events[0].startswith(f"risk_analyst#0: {code}: ")


def test_two_roles_answer_one_call_and_nobody_is_asked_twice() -> None:
    plan = {"symbol": "C1", "type": "market", "wait": 2, "slices": 1}
    said = {
        "manager": [on_positions(long("C1"), ask=("risk_analyst", "trader")), submit(hold("C1", "long", 0.4))],
        "risk_analyst": [each("submit_verdict", verdict("C1"))],
        "trader": [each("submit_orders", plan)],
    }
    decision = decide(SayingEngine(said), **JOINT)
    assert decision.events == [] and [order.delay for order in decision.orders] == [2]
    twice = decide(SayingEngine({"manager": [on_positions(long("C1"), ask=("trader", "trader"))]}), **JOINT)
    assert twice.events[0].startswith("manager#0: bad_arguments: consult_on_positions")


@pytest.mark.parametrize("key", [role.key for role in SUB_AGENTS.values()])
def test_a_first_message_tells_of_every_coin_and_a_grammar_asks_for_each(key: str) -> None:
    market = synthetic()
    plain = ToolContext(
        view=market.view(200), account=account_in(market, 200), mask=Mask(market.symbols, True),
        symbols=market.symbols, horizon_bars=12, share=1.0, symbol=market.symbols[0], portfolio=True,
        limits=guard_limits().numbers(),
    )  # fmt: skip
    asked = {} if key == "market_analyst" else {"side": "long", "exposure": 0.3}
    role = joint(SUB_AGENTS[f"consult_{key}"])
    context = of_several(plain, dict.fromkeys(("CCCUSDT", "AAAUSDT"), asked))
    message = opening(role, context)
    told = opening_results(role, message)
    for name in role.opening:
        named = {arguments.get("symbol") for tool, arguments, _ in told if tool == name}
        assert named in ({"C3", "C1"}, {None})
    assert "several coins" in instructions(role, context)
    for example in role.examples:
        role.answer.arguments.model_validate(dict(example))
    coins = ("C3", "C1")
    answer = callable_tools(role, coins)[-1]["function"]["parameters"]["properties"]["answers"]
    assert [one["properties"]["symbol"] for one in answer["prefixItems"]] == [{"const": "C3"}, {"const": "C1"}]
    listed = listed_tools(role, coins)[-1]["function"]["parameters"]["properties"]["answers"]
    assert listed["items"]["properties"]["symbol"] == {"enum": ["C3", "C1"]}


def test_coin_by_coin_nothing_is_asked_jointly() -> None:
    for portfolio, joint_questions in ((False, False), (True, False)):
        manager, _ = team_of(
            tuple(role.key for role in SUB_AGENTS.values()), portfolio, joint_questions=joint_questions
        )
        assert not any(tool.name.startswith("consult_on") for tool in manager.tools)
